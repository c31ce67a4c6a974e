//! The rules for a request's host: by name, by the domains above it, or by address.
//!
//! Rules for names are found by the same keyed hashes as lists (`name_set`), so a name is hashed
//! once per request. Two names with the same hash would count as the same name: with a thousand
//! names in rules, a host without a rule matches by mistake with a probability of 1 in 2^51.

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

/// Rules by destination.
#[derive(Debug, Default)]
pub(super) struct HostRules {
    /// Rules for any destination.
    anywhere: RuleSet,
    /// Rules for a host or for a domain, by the hash of the name.
    names: HashMap<u64, NameRules, BuildHasherDefault<IsHash>>,
    networks: Vec<NetworkRule>,
    /// Translators in this network, which put IPv4 addresses into IPv6 addresses.
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

/// The embedded IPv4 addresses that a rule compares, in addition to the IPv6 address itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Embedded {
    /// Only an address that a connection really reaches: behind a translator (NAT64). An
    /// IPv4-mapped address is the IPv4 address itself.
    Certain,
    /// Every address that may be embedded.
    Possible,
}

impl Embedded {
    /// The embedded addresses that an entry compares. A rule that serves, or an exception to a rule
    /// that denies, is for hosts that the operator knows: anyone may have a server with an address
    /// that seems to embed an address of the operator (ISATAP, 6to4).
    pub(super) fn from_in_doubt(in_doubt: InDoubt) -> Self {
        match in_doubt {
            InDoubt::Matches => Self::Possible,
            InDoubt::DoesNotMatch => Self::Certain,
        }
    }
}

/// The hashes of a request's host.
pub(super) struct RequestHashes {
    /// For rules with [`Embedded::Possible`].
    pub(super) all: HostHashes,
    /// For rules with [`Embedded::Certain`], if these hashes are fewer.
    pub(super) certain: Option<HostHashes>,
}

impl HostRules {
    pub(super) fn new(entries: &[Entry<'_>], nat64: &[Nat64]) -> Self {
        let mut made = Self {
            anywhere: RuleSet::from_entries(entries, |it| it.conditions.destinations.is_none()),
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
                        takes: Embedded::from_in_doubt(entry.in_doubt),
                    }),
                }
            }
        }
        made
    }

    fn of_name(&mut self, name: &str) -> &mut NameRules {
        self.names.entry(hash_of_name(name)).or_default()
    }

    /// The hashes of a host, for [`HostRules::at`] and for lists. For an IPv6 address that embeds
    /// an IPv4 address, the hash of the IPv4 address is included, because the connection may reach
    /// that address.
    pub(super) fn hashes(&self, host: &Host) -> RequestHashes {
        match PlainHost::from_host(host) {
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

    /// The rules with destinations that include `host`, which has these hashes.
    pub(super) fn at(&self, host: &Host, hashes: &RequestHashes) -> RuleSet {
        let mut rules = self.anywhere.clone();
        match PlainHost::from_host(host) {
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

    /// An address and the embedded address; the same address twice if nothing is embedded.
    fn forms(&self, address: IpAddr, takes: Embedded) -> [IpAddr; 2] {
        let inner = match takes {
            Embedded::Certain => translated(address, &self.nat64).unwrap_or(address),
            Embedded::Possible => embedded(address, &self.nat64),
        };
        [address, inner]
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn write(&mut self, bytes: &[u8]) {
        // Keys are `u64`, which are hashed by `write_u64`.
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
