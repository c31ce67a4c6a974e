//! Who may do what: the rules of `[[access]]`.
//!
//! `request` and `connect` ask what is decided about a request; `hashcache-cli` reads the rules.
//!
//! Invariant: no I/O and no clock. The address, the time and the request are arguments, so tests
//! and commands get the answers that clients get.

mod destination;
mod list;
mod name;
mod name_set;
mod rule_set;
mod rules;
mod settings;
mod times;

pub use destination::{Destination, DestinationError};
pub use list::ListFormat;
pub(crate) use list::{BadLines, read_list};
pub(crate) use name_set::{HostHashes, NameSet, Reach};
pub use rule_set::RULES_MAX;
pub use rules::{
    AccessRequest, AccessRuleError, AccessRuleFault, AccessRules, ClientRules, Decision,
    RequestUser, TimedRules, UserNeeded,
};
pub use settings::{AccessAction, AccessRule, AccessSettings, ListSettings, RuleClients};
pub use times::{WeekMinute, WeekSpan, WeekSpanError};
