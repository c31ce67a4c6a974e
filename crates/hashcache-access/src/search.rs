//! The rules that match a request, in order, and the exceptions that it meets.
//!
//! Called by `rules`. Invariant: a list is searched once for the same hashes, however many rules
//! and exceptions name it, and only if they match in everything else.

use super::host_rules::{Embedded, RequestHashes};
use super::name_set::HostHashes;
use super::rule_set::RuleSet;

/// The rules and exceptions with the same lists.
#[derive(Debug)]
pub(super) struct ListUnion {
    /// One bit for each list; 0: any host.
    lists: u64,
    takes: Embedded,
    rules: RuleSet,
}

/// All unions of lists, and the number of the union for each rule and exception.
#[derive(Debug, Default)]
pub(super) struct ListUnions {
    unions: Vec<ListUnion>,
    of: Vec<usize>,
}

impl ListUnions {
    /// Adds the next rule or exception.
    pub(super) fn push(&mut self, lists: u64, takes: Embedded) {
        let is_it = |union: &ListUnion| (union.lists, union.takes) == (lists, takes);
        let known = self.unions.iter().position(is_it);
        let union = known.unwrap_or_else(|| {
            let rules = RuleSet::default();
            self.unions.push(ListUnion {
                lists,
                takes,
                rules,
            });
            self.unions.len() - 1
        });
        self.unions[union].rules.insert(self.of.len());
        self.of.push(union);
    }

    fn of(&self, number: usize) -> &ListUnion {
        &self.unions[self.of[number]]
    }
}

/// The lists that were searched, one bit for each list: with and without the host.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    with: u64,
    without: u64,
}

/// The rules and exceptions that a request may match.
pub(super) struct Search<'a, F> {
    unions: &'a ListUnions,
    /// Rules that were not returned yet, and exceptions.
    left: RuleSet,
    hashes: &'a RequestHashes,
    /// Callback that returns true if the list with that number contains the host.
    has: F,
    all: Asked,
    certain: Asked,
}

impl<'a, F: Fn(usize, &HostHashes) -> bool> Search<'a, F> {
    /// Starts with rules and exceptions that match in everything but their lists.
    pub(super) fn new(
        unions: &'a ListUnions,
        left: RuleSet,
        hashes: &'a RequestHashes,
        has: F,
    ) -> Self {
        Self {
            unions,
            left,
            hashes,
            has,
            all: Asked::default(),
            certain: Asked::default(),
        }
    }

    /// The next matching rule, out of `rule_count` rules. Exceptions are not considered.
    pub(super) fn next_rule(&mut self, rule_count: usize) -> Option<usize> {
        loop {
            let number = self.left.first().filter(|number| *number < rule_count)?;
            if self.is_listed(number) {
                self.left.remove(number);
                return Some(number);
            }
        }
    }

    /// True if the request meets exception `number`.
    pub(super) fn meets(&mut self, number: usize) -> bool {
        self.left.contains(number) && self.is_listed(number)
    }

    /// Returns true if a list of this entry contains the host. Otherwise all entries with the same
    /// lists are removed.
    fn is_listed(&mut self, number: usize) -> bool {
        let union = self.unions.of(number);
        let (hashes, asked) = match (union.takes, &self.hashes.certain) {
            (Embedded::Certain, Some(certain)) => (certain, &mut self.certain),
            _ => (&self.hashes.all, &mut self.all),
        };
        if union.lists == 0 || union.lists & asked.with != 0 {
            return true;
        }
        let mut unasked = union.lists & !asked.without;
        while unasked != 0 {
            let list = unasked.trailing_zeros();
            if (self.has)(list as usize, hashes) {
                asked.with |= 1 << list;
                return true;
            }
            asked.without |= 1 << list;
            unasked &= unasked - 1;
        }
        self.left.remove_all(&union.rules);
        false
    }
}
