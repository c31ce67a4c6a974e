//! Access rules as the operator wrote them.
//!
//! Made by `hashcache-cli`; `rules` compiles them. Invariant: a condition that is given is not
//! empty: an empty list would match nothing, or, read carelessly, everything.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hashcache_base::net::address::ConnectPort;
use hashcache_base::net::nat64::Nat64;
use hashcache_base::net::prefix::Prefix;

use super::destination::Destination;
use super::list::ListFormat;
use super::times::WeekSpan;

/// What a rule does with the requests that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAction {
    /// They are served.
    Allow,
    /// They are refused.
    Deny,
    /// They are served; `CONNECT` makes a tunnel, whatever `intercept` says.
    Tunnel,
    /// They are served by the origin: nothing is looked up or stored.
    NoCache,
    /// They are served within the limits that the rule names.
    Limit,
}

impl AccessAction {
    /// The words for actions.
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
    /// Clients that are served where no rule matches.
    Local,
    /// A network of `[networks]`, by its name.
    Named(String),
    /// The clients of a network.
    Network(Prefix),
}

/// Conditions on a request. All that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConditions {
    /// Clients by address.
    pub clients: Option<Vec<RuleClients>>,
    /// Users by name.
    pub users: Option<Vec<String>>,
    /// Users by group.
    pub groups: Option<Vec<String>>,
    /// Hosts of URLs and of `CONNECT`.
    pub destinations: Option<Vec<Destination>>,
    /// Lists that have the host, by their names.
    pub lists: Option<Vec<String>>,
    /// Their ports.
    pub ports: Option<Vec<ConnectPort>>,
    /// Methods, case-sensitive as HTTP has them.
    pub methods: Option<Vec<String>>,
    /// Times of the local week.
    pub times: Option<Vec<WeekSpan>>,
}

impl AccessConditions {
    /// Whether they are about certain users.
    pub(super) fn need_user(&self) -> bool {
        self.users.is_some() || self.groups.is_some()
    }

    /// Whether they are about certain hosts.
    pub(super) fn are_about_hosts(&self) -> bool {
        self.destinations.is_some() || self.lists.is_some()
    }

    /// Whether requests of one client to one host and port may differ in them, apart from the user.
    pub(super) fn vary(&self) -> bool {
        self.methods.is_some() || self.times.is_some()
    }

    /// Whether every request of their clients meets them.
    pub(super) fn are_blanket(&self) -> bool {
        !self.need_user() && !self.are_about_hosts() && !self.vary() && self.ports.is_none()
    }
}

/// One rule. It matches a request that meets its conditions and no exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// Its name, for pages and logs.
    pub name: Option<String>,
    /// What it does.
    pub action: AccessAction,
    /// Its conditions.
    pub conditions: AccessConditions,
    /// Its exceptions: a request that meets one of them is left to the rules that follow.
    pub except: Vec<AccessConditions>,
    /// Limits within which the requests are served, by their names.
    pub limits: Option<Vec<String>>,
    /// The reason, for the page that refuses.
    pub reason: Option<String>,
    /// The rule as the operator wrote it, and where, for explanations.
    pub written: Option<String>,
}

impl AccessRule {
    /// A rule without conditions.
    pub fn of(action: AccessAction) -> Self {
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

    /// True if the rule or one of its exceptions names users or groups.
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
    /// Its name in rules.
    pub name: String,
    /// Its files; together they are the list.
    pub files: Vec<PathBuf>,
    /// How their lines are written.
    pub format: ListFormat,
}

/// All that is configured about access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessSettings {
    /// The rules; the first that matches decides.
    pub rules: Vec<AccessRule>,
    /// The groups that rules may name, with their users.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The lists that rules may name.
    pub lists: Vec<ListSettings>,
    /// The limits that rules may name, by their names; the proxy has them by these numbers.
    pub limits: Vec<String>,
    /// Names for networks.
    pub networks: BTreeMap<String, Vec<Prefix>>,
    /// Prefixes of this network's translators, besides the well-known one: an address within one is
    /// also the IPv4 address that it embeds.
    pub nat64: Vec<Nat64>,
    /// A person to ask, for pages that refuse.
    pub contact: Option<String>,
}
