//! The rules for the host of a request: by its name, by the domains above it, or by its address.
//!
//! Rules for names are found by the keyed hashes with which lists are asked too (`name_set`), so a
//! name is hashed once a request. Two names of one hash would be one name: with a thousand names in
//! rules, a host that is in none is found with a probability of 1 in 2^51.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use hashcache_http::Host;

use super::destination::Destination;
use super::name::PlainHost;
use super::name_set::{HostHashes, hash_of_name};
use super::rule_set::RuleSet;
use super::settings::AccessRule;
use crate::upstream::address::embedded;
use crate::upstream::nat64::Nat64;
use crate::upstream::prefix::Prefix;

/// Rules by their destinations.
#[derive(Debug, Default)]
pub(super) struct HostRules {
    /// Rules for any destination.
    anywhere: RuleSet,
    /// Rules for a host or for a domain, by the hash of its name.
    names: HashMap<u64, NameRules, BuildHasherDefault<IsHash>>,
    networks: Vec<(Prefix, usize)>,
    /// Translators of this network, which put IPv4 addresses into IPv6 addresses.
    nat64: Box<[Nat64]>,
}

/// Rules for a host, and for the hosts below a domain.
#[derive(Debug, Default)]
struct NameRules {
    exact: Vec<usize>,
    below: Vec<usize>,
}

impl HostRules {
    pub(super) fn new(rules: &[AccessRule], nat64: &[Nat64]) -> Self {
        let mut made = Self {
            anywhere: RuleSet::of(rules, |rule| rule.destinations.is_none()),
            nat64: nat64.into(),
            ..Self::default()
        };
        for (number, rule) in rules.iter().enumerate() {
            for destination in rule.destinations.iter().flatten() {
                match destination {
                    Destination::Host(name) => made.of_name(name).exact.push(number),
                    Destination::Below(name) => made.of_name(name).below.push(number),
                    Destination::Network(network) => made.networks.push((*network, number)),
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
    pub(super) fn hashes(&self, host: &Host) -> HostHashes {
        match PlainHost::of(host) {
            PlainHost::Name(name) => HostHashes::of_name(name),
            PlainHost::Address(address) => HostHashes::of_addresses(self.forms(address)),
        }
    }

    /// The rules whose destinations include `host`, which has these hashes.
    pub(super) fn at(&self, host: &Host, hashes: &HostHashes) -> RuleSet {
        let mut rules = self.anywhere.clone();
        match PlainHost::of(host) {
            PlainHost::Name(_) if self.names.is_empty() => {}
            PlainHost::Name(_) => {
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
                let forms = self.forms(address);
                let has = |network: &Prefix| forms.iter().any(|form| network.contains(*form));
                let matched = self.networks.iter().filter(|(network, _)| has(network));
                rules.extend(matched.map(|&(_, number)| number));
            }
        }
        rules
    }

    /// An address, and the one that it embeds; twice the same if it embeds none.
    fn forms(&self, address: IpAddr) -> [IpAddr; 2] {
        [address, embedded(address, &self.nat64)]
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
