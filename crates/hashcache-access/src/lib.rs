//! The proxy's access control: access rules, lists of hosts, users, quotas.
//!
//! The proxy requests a decision for each request; `hashcache-cli` reads the rules from the
//! settings file.
//!
//! Invariant: the rules do no I/O and have no clock. The address, the time and the request are
//! arguments, so tests and commands get the same answers as clients.

// The rules.
mod destination;
mod entry;
mod host_rules;
mod list;
mod name;
mod name_set;
mod port_rules;
mod request;
mod rule_clients;
mod rule_faults;
mod rule_set;
mod rules;
mod search;
mod settings;
mod times;
mod user_rules;

// Lists, users and limits, to which rules refer.
pub mod lists;
pub mod quota;
pub mod users;

pub use destination::Destination;
pub use list::{BadLines, ListFormat, read_list};
pub use name_set::{HostHashes, NameSet, Reach};
pub use request::{AccessRequest, Decision, RequestUser, UserNeeded};
pub use rule_faults::{AccessRuleError, AccessRuleFault};
pub use rules::{AccessRules, ClientRules, TimedRules};
pub use settings::{
    AccessAction, AccessConditions, AccessRule, AccessSettings, ListSettings, RuleClients,
};
pub use times::{WeekMinute, WeekSpan};
