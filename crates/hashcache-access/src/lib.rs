//! Access rules: which requests of which clients a forward proxy serves.
//!
//! `request` and `connect` ask what is decided about a request; `hashcache-cli` reads the rules.
//!
//! Invariant: no I/O and no clock. The address, the time and the request are arguments, so tests
//! and commands get the answers that clients get.

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

pub use destination::Destination;
pub use list::ListFormat;
pub(crate) use list::{BadLines, read_list};
pub(crate) use name_set::{HostHashes, NameSet, Reach};
pub(crate) use request::{AccessRequest, Decision, RequestUser, UserNeeded};
pub use rule_faults::{AccessRuleError, AccessRuleFault};
pub use rules::AccessRules;
pub(crate) use rules::{ClientRules, TimedRules};
pub use settings::{
    AccessAction, AccessConditions, AccessRule, AccessSettings, ListSettings, RuleClients,
};
pub(crate) use times::WeekMinute;
pub use times::WeekSpan;
