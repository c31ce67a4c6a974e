//! What can be wrong with a rule of the configuration.
//!
//! Called by `rules` for each rule while it compiles them.

use super::rule_set::RULES_MAX;
use super::settings::{AccessAction, AccessRule, AccessSettings};

/// Why rules could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessRuleError {
    /// There are too many.
    #[error("more than {RULES_MAX} rules, {LISTS_MAX} lists or {LIMITS_MAX} limits")]
    TooMany,
    /// A list of a rule is empty.
    #[error("`{condition}` is empty: the rule would match nothing")]
    Empty {
        /// The name of the condition.
        condition: &'static str,
    },
    /// A rule names a network that there is not.
    #[error("there is no network called `{name}`")]
    UnknownNetwork {
        /// The name.
        name: String,
    },
    /// A rule names a group that there is not.
    #[error("there is no group called `{name}`")]
    UnknownGroup {
        /// The name.
        name: String,
    },
    /// A rule names a list that there is not.
    #[error("there is no list called `{name}`")]
    UnknownList {
        /// The name.
        name: String,
    },
    /// A rule names a limit that there is not.
    #[error("there is no limit called `{name}`")]
    UnknownLimit {
        /// The name.
        name: String,
    },
    /// The action needs limits, and the rule names none.
    #[error("`limits` must name a limit")]
    NoLimits,
    /// The action knows no limits.
    #[error("`limits` goes with the actions `limit`, `tunnel` and `no-cache`")]
    LimitsOutOfPlace,
    /// Two rules have one name.
    #[error("two rules are called `{name}`")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// An earlier rule matches all that it could match.
    #[error("the rule can never match: `{earlier}` before it has no conditions")]
    Unreachable {
        /// The label of the earlier rule.
        earlier: String,
    },
}

/// The fault of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRuleFault {
    /// The number of the rule, from 0.
    pub rule: usize,
    /// What is wrong with it.
    pub error: AccessRuleError,
}

/// The faults of `rule` that do not depend on which clients it has.
pub(super) fn faults_of(
    rule: &AccessRule,
    earlier: &[AccessRule],
    settings: &AccessSettings,
) -> impl Iterator<Item = AccessRuleError> {
    let empty = empty_conditions(rule);
    let unknown = unknown_groups(rule, settings);
    let limits = limits_out_of_place(rule);
    empty
        .chain(unknown)
        .chain(limits)
        .chain(name_twice(earlier, rule))
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

fn empty_conditions(rule: &AccessRule) -> impl Iterator<Item = AccessRuleError> {
    let conditions = [
        ("clients", rule.clients.as_ref().map(Vec::len)),
        ("users", rule.users.as_ref().map(Vec::len)),
        ("groups", rule.groups.as_ref().map(Vec::len)),
        ("destinations", rule.destinations.as_ref().map(Vec::len)),
        ("lists", rule.lists.as_ref().map(Vec::len)),
        ("ports", rule.ports.as_ref().map(Vec::len)),
        ("methods", rule.methods.as_ref().map(Vec::len)),
        ("times", rule.times.as_ref().map(Vec::len)),
    ];
    let empty = conditions
        .into_iter()
        .filter(|(_, length)| *length == Some(0));
    empty.map(|(condition, _)| AccessRuleError::Empty { condition })
}

fn unknown_groups(
    rule: &AccessRule,
    settings: &AccessSettings,
) -> impl Iterator<Item = AccessRuleError> {
    let groups = rule.groups.iter().flatten();
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
