//! The rules for the port of a request.

use hashcache_base::net::address::ConnectPort;

use super::entry::Entry;
use super::rule_set::RuleSet;

/// The rules that may match a port: a set for each range between two bounds in rules.
#[derive(Debug, Default)]
pub(super) struct PortRules {
    /// The first port of each range, in order; the first range starts at 0.
    starts: Box<[u16]>,
    sets: Box<[RuleSet]>,
}

impl PortRules {
    pub(super) fn new(entries: &[Entry<'_>]) -> Self {
        let all = entries
            .iter()
            .flat_map(|it| it.conditions.ports.iter().flatten());
        let bounds = all.flat_map(|ports| [Some(ports.first()), ports.last().checked_add(1)]);
        let mut starts: Vec<u16> = bounds.flatten().chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let set = |&port: &u16| {
            let is_for = |ports: &Vec<ConnectPort>| ports.iter().any(|it| it.contains(port));
            RuleSet::from_entries(entries, |it| {
                it.conditions.ports.as_ref().is_none_or(is_for)
            })
        };
        let sets = starts.iter().map(set).collect();
        let starts = starts.into();
        Self { starts, sets }
    }

    /// The rules and exceptions that a request to this port may match.
    pub(super) fn at(&self, port: u16) -> &RuleSet {
        let after = self.starts.partition_point(|start| *start <= port);
        // Without rules there are no sets, and any set will do.
        after
            .checked_sub(1)
            .map_or(&RuleSet::ALL, |at| &self.sets[at])
    }
}
