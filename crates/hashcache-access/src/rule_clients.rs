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
    /// The clients that `conditions` name, or else `by_default`.
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

    /// The clients of a rule that names none: with `deny` all clients. Any other rule is then only
    /// for those that are served anyway, so that nobody opens a proxy to the Internet by a rule
    /// about something else.
    pub(super) fn by_default(action: AccessAction) -> Self {
        match action {
            AccessAction::Deny => Self::All,
            _ => Self::Some {
                local: true,
                networks: Box::default(),
            },
        }
    }

    /// Whether the client at `address` is one of them; `by_default`: it is served where no rule
    /// matches.
    pub(super) fn contain(&self, address: IpAddr, by_default: bool) -> bool {
        match self {
            Self::All => true,
            Self::Some { local, networks } => {
                (*local && by_default) || networks.iter().any(|it| it.contains(address))
            }
        }
    }

    /// Whether every client of `others` is one of these, as far as the settings tell.
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
