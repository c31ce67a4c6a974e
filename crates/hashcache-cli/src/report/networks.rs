//! Network names, from `[networks]` in the configuration.
//!
//! The history counts networks with fixed sizes (IPv4 /24, IPv6 /48), because names may change. A
//! name stands for all networks that it covers.

use std::collections::BTreeMap;

use hashcache_proxy::{Counts, HistoryName, Prefix, Table};

/// Networks with their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks {
    named: Vec<(Prefix, String)>,
}

impl Networks {
    pub(super) fn new(networks: BTreeMap<String, Vec<Prefix>>) -> Self {
        let named = networks.into_iter().flat_map(|(name, prefixes)| {
            let named = move |prefix| (prefix, name.clone());
            prefixes.into_iter().map(named)
        });
        Self {
            named: named.collect(),
        }
    }

    /// Sums the counts for each name.
    pub(super) fn name(&self, table: &Table<HistoryName>) -> Named {
        let (lines, rest) = table.top(usize::MAX);
        let mut named: BTreeMap<String, Counts> = BTreeMap::new();
        for (network, counts) in lines {
            let name = self.name_of(network.as_str());
            named.entry(name.to_owned()).or_default().add(&counts);
        }
        Named { named, rest }
    }

    /// Returns the name of the smallest network that covers `network`, otherwise the address.
    fn name_of<'a>(&'a self, network: &'a str) -> &'a str {
        let Ok(prefix) = network.parse::<Prefix>() else {
            return network;
        };
        let covering = self.named.iter().filter(|(it, _)| it.covers(&prefix));
        let smallest = covering.max_by_key(|(it, _)| it.bits());
        smallest.map_or(network, |(_, name)| name)
    }
}

/// Counts for each network name.
#[derive(Clone, Debug)]
pub(super) struct Named {
    named: BTreeMap<String, Counts>,
    rest: Counts,
}

impl Named {
    /// Returns the `most` largest lines, and the sum of the rest.
    pub(super) fn top(self, most: usize) -> (Vec<(String, Counts)>, Counts) {
        let (mut lines, mut rest) = (Vec::from_iter(self.named), self.rest);
        lines.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.client_bytes, counts.requests)));
        for (_, counts) in lines.drain(most.min(lines.len())..) {
            rest.add(&counts);
        }
        (lines, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_name_of_the_smallest_one_around_it() {
        let parsed = |words: &[&str]| words.iter().map(|it| it.parse().unwrap()).collect();
        let networks = Networks::new(BTreeMap::from([
            ("school".to_owned(), parsed(&["10.1.0.0/16", "fd00:1::/32"])),
            ("pupils".to_owned(), parsed(&["10.1.4.0/22"])),
            ("kitchen".to_owned(), parsed(&["10.1.9.128/25"])),
        ]));
        for (network, name) in [
            ("10.1.5.0/24", "pupils"),
            ("10.1.8.0/24", "school"),
            ("fd00:1:2::/48", "school"),
            ("10.2.0.0/24", "10.2.0.0/24"),
            // Smaller than the networks that the history counts.
            ("10.1.9.0/24", "school"),
            ("-", "-"),
        ] {
            assert_eq!(networks.name_of(network), name, "{network}");
        }
    }
}
