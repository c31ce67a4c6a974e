//! The rules for the host of a request: by its name, by the domains above it, or by its address.
//!
//! Rules for names are found by the keyed hashes with which lists are asked too (`name_set`), so a
//! name is hashed once a request. Two names of one hash would be one name: with a thousand names in
//! rules, a host that is in none is found with a probability of 1 in 2^51.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use hashcache_base::net::address::{embedded, translated};
use hashcache_base::net::nat64::Nat64;
use hashcache_base::net::prefix::Prefix;
use hashcache_http::Host;

use super::destination::Destination;
use super::entry::{Entry, InDoubt};
use super::name::PlainHost;
use super::name_set::{HostHashes, hash_of_name};
use super::rule_set::RuleSet;

/// Rules by their destinations.
#[derive(Debug, Default)]
pub(super) struct HostRules {
    /// Rules for any destination.
    anywhere: RuleSet,
    /// Rules for a host or for a domain, by the hash of its name.
    names: HashMap<u64, NameRules, BuildHasherDefault<IsHash>>,
    networks: Vec<NetworkRule>,
    /// Translators of this network, which put IPv4 addresses into IPv6 addresses.
    nat64: Box<[Nat64]>,
}

/// Rules for a host, and for the hosts below a domain.
#[derive(Debug, Default)]
struct NameRules {
    exact: Vec<usize>,
    below: Vec<usize>,
}

/// A rule for hosts that are named by an address.
#[derive(Debug)]
struct NetworkRule {
    network: Prefix,
    rule: usize,
    takes: Embedded,
}

/// The IPv4 addresses as which a rule takes an IPv6 address, besides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Embedded {
    /// Where a connection to it ends: behind a translator (NAT64). An IPv4-mapped address is the
    /// IPv4 address itself.
    Certain,
    /// Every one that it may embed.
    Possible,
}

impl Embedded {
    /// The addresses that an entry takes. A rule that serves, or an exception of one that denies,
    /// is for what the operator knows: anyone may have a server whose address seems to embed an
    /// address of the operator's (ISATAP, 6to4).
    pub(super) fn of(in_doubt: InDoubt) -> Self {
        match in_doubt {
            InDoubt::Matches => Self::Possible,
            InDoubt::DoesNotMatch => Self::Certain,
        }
    }
}

/// The hashes of the host of a request.
pub(super) struct RequestHashes {
    /// For rules that take [`Embedded::Possible`].
    pub(super) all: HostHashes,
    /// For rules that take [`Embedded::Certain`], if those are fewer.
    pub(super) certain: Option<HostHashes>,
}

impl HostRules {
    pub(super) fn new(entries: &[Entry<'_>], nat64: &[Nat64]) -> Self {
        let mut made = Self {
            anywhere: RuleSet::of(entries, |it| it.conditions.destinations.is_none()),
            nat64: nat64.into(),
            ..Self::default()
        };
        for (number, entry) in entries.iter().enumerate() {
            for destination in entry.conditions.destinations.iter().flatten() {
                match destination {
                    Destination::Host(name) => made.of_name(name).exact.push(number),
                    Destination::Below(name) => made.of_name(name).below.push(number),
                    Destination::Network(network) => made.networks.push(NetworkRule {
                        network: *network,
                        rule: number,
                        takes: Embedded::of(entry.in_doubt),
                    }),
                }
            }
        }
        made
    }

    fn of_name(&mut self, name: &str) -> &mut NameRules {
        self.names.entry(hash_of_name(name)).or_default()
    }

    /// The hashes of a host, for [`HostRules::at`] and for lists. An IPv6 address that embeds an
    /// IPv4 address has that one's too: the connection may end there.
    pub(super) fn hashes(&self, host: &Host) -> RequestHashes {
        match PlainHost::of(host) {
            PlainHost::Name(name) => RequestHashes {
                all: HostHashes::of_name(name),
                certain: None,
            },
            PlainHost::Address(address) => {
                let forms = |takes| self.forms(address, takes);
                let (all, certain) = (forms(Embedded::Possible), forms(Embedded::Certain));
                RequestHashes {
                    all: HostHashes::of_addresses(all),
                    certain: (all != certain).then(|| HostHashes::of_addresses(certain)),
                }
            }
        }
    }

    /// The rules whose destinations include `host`, which has these hashes.
    pub(super) fn at(&self, host: &Host, hashes: &RequestHashes) -> RuleSet {
        let mut rules = self.anywhere.clone();
        match PlainHost::of(host) {
            PlainHost::Name(_) if self.names.is_empty() => {}
            PlainHost::Name(_) => {
                let hashes = &hashes.all;
                for hash in hashes.with_parents() {
                    if let Some(found) = self.names.get(&hash) {
                        rules.extend(found.below.iter().copied());
                    }
                }
                if let Some(found) = self.names.get(&hashes.own()) {
                    rules.extend(found.exact.iter().copied());
                }
            }
            PlainHost::Address(address) => {
                let certain = self.forms(address, Embedded::Certain);
                let possible = self.forms(address, Embedded::Possible);
                let has = |it: &&NetworkRule| {
                    let forms = match it.takes {
                        Embedded::Certain => certain,
                        Embedded::Possible => possible,
                    };
                    forms.iter().any(|form| it.network.contains(*form))
                };
                rules.extend(self.networks.iter().filter(has).map(|it| it.rule));
            }
        }
        rules
    }

    /// An address, and the one that it embeds; twice the same if it embeds none.
    fn forms(&self, address: IpAddr, takes: Embedded) -> [IpAddr; 2] {
        let inner = match takes {
            Embedded::Certain => translated(address, &self.nat64).unwrap_or(address),
            Embedded::Possible => embedded(address, &self.nat64),
        };
        [address, inner]
    }
}

/// The hash of a key that is a hash already.
#[derive(Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn write(&mut self, bytes: &[u8]) {
        // Keys are `u64`, which come by `write_u64`.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
