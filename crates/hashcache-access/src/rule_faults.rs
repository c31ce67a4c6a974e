//! Faults in the configured rules.
//!
//! `rules` calls it for each rule while it compiles them.

use super::rule_set::RULES_MAX;
use super::settings::{AccessAction, AccessConditions, AccessRule, AccessSettings};

/// Why rules could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessRuleError {
    /// There are too many rules and exceptions, lists or limits.
    #[error("more than {RULES_MAX} rules and exceptions, {LISTS_MAX} lists or {LIMITS_MAX} limits")]
    TooMany,
    /// A condition's list of values is empty.
    #[error("`{condition}` is empty, so it matches nothing")]
    Empty {
        /// The name of the condition.
        condition: &'static str,
    },
    /// A rule names an unknown network.
    #[error("there is no network called `{name}`")]
    UnknownNetwork {
        /// The name.
        name: String,
    },
    /// A rule names an unknown group.
    #[error("there is no group called `{name}`")]
    UnknownGroup {
        /// The name.
        name: String,
    },
    /// A rule names an unknown list.
    #[error("there is no list called `{name}`")]
    UnknownList {
        /// The name.
        name: String,
    },
    /// A rule names an unknown limit.
    #[error("there is no limit called `{name}`")]
    UnknownLimit {
        /// The name.
        name: String,
    },
    /// The action needs limits, and the rule names none.
    #[error("`limits` must name a limit")]
    NoLimits,
    /// The action takes no limits.
    #[error("`limits` goes with the actions `limit`, `tunnel` and `no-cache`")]
    LimitsOutOfPlace,
    /// Two rules have the same name.
    #[error("two rules are called `{name}`")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// An exception matches all requests of the rule.
    #[error("the rule can never match: the exception has all of its requests")]
    ExceptsAll,
    /// An earlier rule matches all requests that this rule could match.
    #[error("the rule can never match: `{earlier}` before it has no conditions")]
    Unreachable {
        /// The label of the earlier rule.
        earlier: String,
    },
}

/// A fault in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRuleFault {
    /// The number of the rule, from 0.
    pub rule: usize,
    /// The number of the wrong exception, from 0; `None`: the rule itself is wrong.
    pub exception: Option<usize>,
    /// The error.
    pub error: AccessRuleError,
}

/// The faults in `rule` itself that do not depend on conditions.
pub(super) fn faults_of(
    rule: &AccessRule,
    earlier: &[AccessRule],
) -> impl Iterator<Item = AccessRuleError> {
    let limits = limits_out_of_place(rule);
    limits.into_iter().chain(name_twice(earlier, rule))
}

/// The faults in conditions that do not depend on the clients they name.
pub(super) fn faults_of_conditions(
    conditions: &AccessConditions,
    settings: &AccessSettings,
) -> impl Iterator<Item = AccessRuleError> {
    empty_conditions(conditions).chain(unknown_groups(conditions, settings))
}

fn limits_out_of_place(rule: &AccessRule) -> Option<AccessRuleError> {
    match (rule.action, rule.limits.as_deref()) {
        (AccessAction::Limit, None) | (_, Some([])) => Some(AccessRuleError::NoLimits),
        (AccessAction::Allow | AccessAction::Deny, Some(_)) => {
            Some(AccessRuleError::LimitsOutOfPlace)
        }
        _ => None,
    }
}

fn empty_conditions(given: &AccessConditions) -> impl Iterator<Item = AccessRuleError> {
    let conditions = [
        ("clients", given.clients.as_ref().map(Vec::len)),
        ("users", given.users.as_ref().map(Vec::len)),
        ("groups", given.groups.as_ref().map(Vec::len)),
        ("destinations", given.destinations.as_ref().map(Vec::len)),
        ("lists", given.lists.as_ref().map(Vec::len)),
        ("ports", given.ports.as_ref().map(Vec::len)),
        ("methods", given.methods.as_ref().map(Vec::len)),
        ("times", given.times.as_ref().map(Vec::len)),
    ];
    let empty = conditions
        .into_iter()
        .filter(|(_, length)| *length == Some(0));
    empty.map(|(condition, _)| AccessRuleError::Empty { condition })
}

fn unknown_groups(
    conditions: &AccessConditions,
    settings: &AccessSettings,
) -> impl Iterator<Item = AccessRuleError> {
    let groups = conditions.groups.iter().flatten();
    let unknown = groups.filter(|name| !settings.groups.contains_key(*name));
    unknown.map(|name| AccessRuleError::UnknownGroup { name: name.clone() })
}

fn name_twice(earlier: &[AccessRule], rule: &AccessRule) -> Option<AccessRuleError> {
    let name = rule.name.as_ref()?;
    let is_twice = earlier.iter().any(|it| it.name.as_ref() == Some(name));
    is_twice.then(|| AccessRuleError::NameTwice { name: name.clone() })
}

/// Most lists: one bit each.
pub(super) const LISTS_MAX: usize = 64;
/// Most limits: one bit each.
pub(super) const LIMITS_MAX: usize = 64;
