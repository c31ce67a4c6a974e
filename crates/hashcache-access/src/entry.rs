//! The conditions of all rules and exceptions, in one numbered list.
//!
//! Rules and exceptions have the same kind of conditions, so a single set of bits
//! ([`RuleSet`](super::rule_set::RuleSet)) holds the result for both. The rules are first, with
//! their own numbers; then follow the exceptions to the first rule, to the second, and so on.

use super::settings::{AccessAction, AccessConditions, AccessRule};

/// The conditions of a rule or of an exception.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) conditions: &'a AccessConditions,
    pub(super) in_doubt: InDoubt,
}

/// The result for an entry in case of doubt: the user cannot be known, or an address only seems to
/// embed another address. In doubt, a rule that denies applies, and any other rule does not. Limits
/// also apply if an exception is about users and the user cannot be known (`Decision::limited_by`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InDoubt {
    /// A rule that denies, or an exception to any other rule.
    Matches,
    /// Any other rule, or an exception to a rule that denies.
    DoesNotMatch,
}

/// The entries for all rules, then the entries for all exceptions.
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
