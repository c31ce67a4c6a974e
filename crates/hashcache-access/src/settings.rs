//! Access rules as the operator wrote them.
//!
//! Made by `hashcache-cli`; `rules` compiles them. Invariant: a condition that is given is not
//! empty: an empty list would match nothing, or, if the code were careless, everything.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hashcache_base::net::address::ConnectPort;
use hashcache_base::net::nat64::Nat64;
use hashcache_base::net::prefix::Prefix;

use super::destination::Destination;
use super::list::ListFormat;
use super::times::WeekSpan;

/// The action of a rule for the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAction {
    /// The requests are served.
    Allow,
    /// The requests are refused.
    Deny,
    /// The requests are served; `CONNECT` makes a tunnel, whatever the value of `intercept`.
    Tunnel,
    /// The requests are served by the origin: the cache is neither read nor written.
    NoCache,
    /// The requests are served within the limits that the rule names.
    Limit,
}

impl AccessAction {
    /// All actions and their names in settings.
    pub const ALL: [(&'static str, Self); 5] = [
        ("allow", Self::Allow),
        ("deny", Self::Deny),
        ("tunnel", Self::Tunnel),
        ("no-cache", Self::NoCache),
        ("limit", Self::Limit),
    ];
}

/// The clients of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleClients {
    /// Every client.
    All,
    /// Clients that are served if no rule matches.
    Local,
    /// A network in `[networks]`, by name.
    Named(String),
    /// The clients in a network.
    Network(Prefix),
}

/// Conditions on a request. All given conditions must be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConditions {
    /// Clients by address.
    pub clients: Option<Vec<RuleClients>>,
    /// Users by name.
    pub users: Option<Vec<String>>,
    /// Users by group.
    pub groups: Option<Vec<String>>,
    /// Hosts in URLs and in `CONNECT`.
    pub destinations: Option<Vec<Destination>>,
    /// Lists that contain the host, by name.
    pub lists: Option<Vec<String>>,
    /// The ports of these hosts.
    pub ports: Option<Vec<ConnectPort>>,
    /// Methods, case-sensitive as in HTTP.
    pub methods: Option<Vec<String>>,
    /// Times in the local week.
    pub times: Option<Vec<WeekSpan>>,
}

impl AccessConditions {
    /// Returns true if the conditions name users or groups.
    pub(super) fn need_user(&self) -> bool {
        self.users.is_some() || self.groups.is_some()
    }

    /// Returns true if the conditions name hosts or lists.
    pub(super) fn are_about_hosts(&self) -> bool {
        self.destinations.is_some() || self.lists.is_some()
    }

    /// Returns true if the result may differ, apart from the user, for requests from the same
    /// client to the same host and port.
    pub(super) fn vary(&self) -> bool {
        self.methods.is_some() || self.times.is_some()
    }

    /// Returns true if every request from the named clients meets the conditions.
    pub(super) fn are_blanket(&self) -> bool {
        !self.need_user() && !self.are_about_hosts() && !self.vary() && self.ports.is_none()
    }
}

/// A rule. It matches a request that meets the conditions and no exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// The name, for pages and logs.
    pub name: Option<String>,
    /// The action.
    pub action: AccessAction,
    /// The conditions.
    pub conditions: AccessConditions,
    /// The exceptions: a request that meets an exception is left to the rules that follow.
    pub except: Vec<AccessConditions>,
    /// Limits within which the requests are served, by name.
    pub limits: Option<Vec<String>>,
    /// The reason, for the page that refuses.
    pub reason: Option<String>,
    /// The rule as the operator wrote it, and the place in the settings, for explanations.
    pub written: Option<String>,
}

impl AccessRule {
    /// A rule without conditions.
    pub fn from_action(action: AccessAction) -> Self {
        Self {
            name: None,
            action,
            conditions: AccessConditions::default(),
            except: Vec::new(),
            limits: None,
            reason: None,
            written: None,
        }
    }

    /// True if the rule or an exception names users or groups.
    pub(super) fn needs_user(&self) -> bool {
        self.all_conditions().any(AccessConditions::need_user)
    }

    /// The conditions of the rule, then of each exception.
    pub(super) fn all_conditions(&self) -> impl Iterator<Item = &AccessConditions> {
        std::iter::once(&self.conditions).chain(&self.except)
    }
}

/// A list of hosts in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSettings {
    /// The name in rules.
    pub name: String,
    /// The files; together they are the list.
    pub files: Vec<PathBuf>,
    /// The format of the lines.
    pub format: ListFormat,
}

/// All access settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSettings {
    /// The rules; the first rule that matches decides.
    pub rules: Vec<AccessRule>,
    /// The groups that rules may name, with their users.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The lists that rules may name.
    pub lists: Vec<ListSettings>,
    /// The limits that rules may name, by name; the proxy uses the indices in this list.
    pub limits: Vec<String>,
    /// Names for networks.
    pub networks: BTreeMap<String, Vec<Prefix>>,
    /// Prefixes of this network's translators, in addition to the well-known prefix: an address
    /// within a prefix is also the IPv4 address that it embeds.
    pub nat64: Vec<Nat64>,
    /// The contact for questions, for pages that refuse.
    pub contact: Option<String>,
}
