//! The conditions of all rules and exceptions, in one numbered list.
//!
//! Both have the same conditions, so one set of bits ([`RuleSet`](super::rule_set::RuleSet)) says
//! which of them a request meets. The rules come first, with their own numbers; then the exceptions
//! of the first rule, of the second, and so on.

use super::settings::{AccessAction, AccessConditions, AccessRule};

/// The conditions of a rule or of an exception.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) conditions: &'a AccessConditions,
    pub(super) in_doubt: InDoubt,
}

/// Whether an entry matches where that is not certain: the user cannot be known, or an address only
/// seems to embed another one. So a rule that denies holds in doubt, and any other does not. Limits
/// hold too where an exception is about users who cannot be known (`Decision::limited_by`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InDoubt {
    /// A rule that denies, or an exception of any other rule.
    Matches,
    /// Any other rule, or an exception of a rule that denies.
    DoesNotMatch,
}

/// The entries of all rules, then those of all exceptions.
pub(super) fn entries(rules: &[AccessRule]) -> Vec<Entry<'_>> {
    let of_rules = rules.iter().map(|rule| Entry {
        conditions: &rule.conditions,
        in_doubt: match rule.action {
            AccessAction::Deny => InDoubt::Matches,
            _ => InDoubt::DoesNotMatch,
        },
    });
    let of_exceptions = rules.iter().flat_map(|rule| {
        rule.except.iter().map(|conditions| Entry {
            conditions,
            in_doubt: match rule.action {
                AccessAction::Deny => InDoubt::DoesNotMatch,
                _ => InDoubt::Matches,
            },
        })
    });
    of_rules.chain(of_exceptions).collect()
}
