//! The clients of a rule, compiled.

use std::net::IpAddr;

use hashcache_base::net::prefix::Prefix;

use super::rule_faults::AccessRuleError;
use super::settings::{AccessAction, AccessConditions, AccessSettings, RuleClients};

/// The clients of a compiled rule.
#[derive(Debug)]
pub(super) enum Clients {
    All,
    Some {
        local: bool,
        networks: Box<[Prefix]>,
    },
}

impl Clients {
    /// The clients that `conditions` name, otherwise `by_default`.
    pub(super) fn new(
        conditions: &AccessConditions,
        by_default: Self,
        settings: &AccessSettings,
    ) -> Result<Self, AccessRuleError> {
        let Some(clients) = &conditions.clients else {
            return Ok(by_default);
        };
        let (mut local, mut networks) = (false, Vec::new());
        for client in clients {
            match client {
                RuleClients::All => return Ok(Self::All),
                RuleClients::Local => local = true,
                RuleClients::Network(network) => networks.push(*network),
                RuleClients::Named(name) => match settings.networks.get(name) {
                    Some(named) => networks.extend(named),
                    None => return Err(AccessRuleError::UnknownNetwork { name: name.clone() }),
                },
            }
        }
        let networks = networks.into();
        Ok(Self::Some { local, networks })
    }

    /// The clients of a rule that names no clients. A rule with `deny` is for all clients. Any
    /// other rule is only for clients that are served by default, so that a rule about another
    /// subject does not open the proxy to the Internet.
    pub(super) fn by_default(action: AccessAction) -> Self {
        match action {
            AccessAction::Deny => Self::All,
            _ => Self::Some {
                local: true,
                networks: Box::default(),
            },
        }
    }

    /// Returns true if the client at `address` is included; `by_default`: the client is served if
    /// no rule matches.
    pub(super) fn contain(&self, address: IpAddr, by_default: bool) -> bool {
        match self {
            Self::All => true,
            Self::Some { local, networks } => {
                (*local && by_default) || networks.iter().any(|it| it.contains(address))
            }
        }
    }

    /// Returns true if these clients include all clients of `others`, as far as the settings show.
    pub(super) fn cover(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::All, _) => true,
            (Self::Some { .. }, Self::All) => false,
            (
                Self::Some { local, networks },
                Self::Some {
                    local: other_local,
                    networks: other_networks,
                },
            ) => (*local || !other_local) && other_networks.iter().all(|it| networks.contains(it)),
        }
    }
}
