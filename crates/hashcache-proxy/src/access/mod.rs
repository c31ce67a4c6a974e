//! Who may do what: the rules of `[[access]]`.
//!
//! `request` and `connect` ask what is decided about a request; `hashcache-cli` reads the rules.
//!
//! Invariant: no I/O and no clock. The address, the time and the request are arguments, so tests
//! and commands get the answers that clients get.

mod destination;
mod name;
mod rule_set;
mod rules;
mod settings;
mod times;

pub use destination::{Destination, DestinationError};
pub use rule_set::RULES_MAX;
pub use rules::{
    AccessRequest, AccessRuleError, AccessRuleFault, AccessRules, ClientRules, Decision, TimedRules,
};
pub use settings::{AccessAction, AccessRule, AccessSettings, RuleClients};
pub use times::{WeekMinute, WeekSpan, WeekSpanError};
