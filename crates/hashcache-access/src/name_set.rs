//! A large set of host names in little memory: 11 bytes a name.
//!
//! Filled when a list is read; searched by `rules`. The set holds keyed hashes of 63 bits instead
//! of the names, in a table with open addressing by cache lines. So nothing is sorted, and building
//! a set takes no more memory than the set. Two names with the same hash would count as the same
//! name: with a million names, a host that is in no list matches by mistake with a probability of 1
//! in 2^43. The key is drawn at the start, so that an attacker cannot search for such names. A
//! finite-state transducer (crate `fst`) would hold the names themselves in about as many bytes,
//! but needs them sorted first.
//!
//! Cost: a host and all domains above it are hashed in one pass over the name; each lookup is about
//! one cache miss.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;
use std::sync::LazyLock;

use hashcache_http::Host;

use super::name::PlainHost;

/// Which hosts an entry in a list matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only the host with this name.
    Host,
    /// The host with this name and every host below it.
    Below,
}

/// A set of host names.
#[derive(Debug, Default)]
pub struct NameSet {
    buckets: Box<[Bucket]>,
    names: usize,
    room: usize,
}

/// The hashes in one cache line, filled from the first slot on. The lowest bit is set for
/// [`Reach::Host`], and 0 is a free slot. If a bucket is full, further hashes are in the next
/// buckets.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket([u64; BUCKET]);

impl Bucket {
    fn is_full(&self) -> bool {
        self.0[BUCKET - 1] != 0
    }

    /// Returns true if the bucket has one of two values. All slots are compared, without a branch,
    /// so that the processor meanwhile reads the buckets for the next hashes.
    fn has(&self, one: u64, other: u64) -> bool {
        let is_either = |found, slot| found | (slot == one) | (slot == other);
        self.0.iter().copied().fold(false, is_either)
    }
}

impl NameSet {
    /// An empty set with room for this many names.
    pub fn with_room(room: usize) -> Self {
        Self {
            buckets: vec![Bucket::default(); buckets_for(room)].into(),
            names: 0,
            room,
        }
    }

    /// Memory for a set with room for this many names.
    pub fn bytes_for(room: usize) -> u64 {
        (buckets_for(room) * size_of::<Bucket>()) as u64
    }

    /// Number of different names in the set.
    pub fn count(&self) -> usize {
        self.names
    }

    /// Adds a host; returns false if there is no room. A name that was added only for itself may be
    /// added again with all hosts below it.
    pub fn insert(&mut self, host: &Host, reach: Reach) -> bool {
        let hash = match PlainHost::from_host(host) {
            PlainHost::Name(name) => hash_of_name(name),
            PlainHost::Address(address) => hash_of_address(address),
        };
        let is_full = self.names == self.room;
        let Some(slot) = self.slot_of(hash) else {
            return false;
        };
        match (*slot, reach) {
            (0, _) if is_full => return false,
            (0, reach) => {
                *slot = hash | u64::from(reach == Reach::Host);
                self.names += 1;
            }
            (_, Reach::Below) => *slot = hash,
            (_, Reach::Host) => {}
        }
        true
    }

    /// Returns true if the set contains the host, or a domain above it with all hosts below.
    pub fn contains(&self, host: &HostHashes) -> bool {
        host.own.iter().any(|&hash| self.has(hash, hash | 1))
            || host.parents().iter().any(|&hash| self.has(hash, hash))
    }

    /// Returns true if the set has one of two forms of a hash.
    fn has(&self, one: u64, other: u64) -> bool {
        let mut at = self.bucket_of(one);
        while let Some(bucket) = self.buckets.get(at) {
            if bucket.has(one, other) {
                return true;
            }
            if !bucket.is_full() {
                return false;
            }
            at = self.behind(at);
        }
        false
    }

    /// The slot with this hash, otherwise the free slot for it; `None`: there are no slots.
    fn slot_of(&mut self, hash: u64) -> Option<&mut u64> {
        let mut at = self.bucket_of(hash);
        // There are more slots than names, so there is a free slot.
        let place = loop {
            let slots = &self.buckets.get(at)?.0;
            let is_it = |slot: &u64| *slot == 0 || *slot & !1 == hash;
            if let Some(place) = slots.iter().position(is_it) {
                break place;
            }
            at = self.behind(at);
        };
        self.buckets.get_mut(at)?.0.get_mut(place)
    }

    /// The first bucket to search for a hash.
    fn bucket_of(&self, hash: u64) -> usize {
        let scaled = (u128::from(hash) * self.buckets.len() as u128) >> 64;
        usize::try_from(scaled).expect("less than the number of buckets")
    }

    fn behind(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() {
            0
        } else {
            at + 1
        }
    }
}

/// The hashes of a host and of all domains above it.
#[derive(Debug)]
pub struct HostHashes {
    /// The hashes of the host: an address may have two forms; for a name, both are the same.
    own: [u64; 2],
    /// The hashes of the domains above it, the highest first.
    parents: [u64; LABELS_MAX],
    count: usize,
}

impl HostHashes {
    /// Hashes a name.
    pub fn of_name(name: &str) -> Self {
        let mut all = Self {
            own: [0; 2],
            parents: [0; LABELS_MAX],
            count: 0,
        };
        let mut labels = name.rsplit('.').peekable();
        let mut hasher = KEY.build_hasher();
        while let Some(label) = labels.next() {
            write_label(&mut hasher, label);
            let hash = fit(hasher.finish());
            match labels.peek() {
                None => all.own = [hash; 2],
                // A longer name is no host, and has at least these domains above it.
                Some(_) if all.count == LABELS_MAX => {}
                Some(_) => {
                    all.parents[all.count] = hash;
                    all.count += 1;
                }
            }
        }
        all
    }

    /// Hashes an address in two forms. An address has no domains above it.
    pub fn of_addresses(forms: [IpAddr; 2]) -> Self {
        Self {
            own: forms.map(hash_of_address),
            parents: [0; LABELS_MAX],
            count: 0,
        }
    }

    /// The hash of the host itself.
    pub(super) fn own(&self) -> u64 {
        self.own[0]
    }

    /// The hashes of the domains above the host.
    fn parents(&self) -> &[u64] {
        &self.parents[..self.count]
    }

    /// The hash of the host, then the hashes of the domains above it.
    pub(super) fn with_parents(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.own()).chain(self.parents().iter().copied())
    }
}

/// Hashes a name. Labels are hashed from the last to the first, so that a domain's hash is a step
/// towards the hashes of the hosts below it.
pub(super) fn hash_of_name(name: &str) -> u64 {
    let mut hasher = KEY.build_hasher();
    for label in name.rsplit('.') {
        write_label(&mut hasher, label);
    }
    fit(hasher.finish())
}

fn write_label(hasher: &mut impl std::hash::Hasher, label: &str) {
    hasher.write(label.as_bytes());
    hasher.write_u8(b'.');
}

fn hash_of_address(address: IpAddr) -> u64 {
    fit(KEY.hash_one(address))
}

/// A hash with the lowest bit 0, never 0.
fn fit(hash: u64) -> u64 {
    (hash & !1).max(2)
}

/// Number of buckets, with a third more slots than names.
fn buckets_for(room: usize) -> usize {
    let slots = room.saturating_add(room / 3).saturating_add(1);
    slots.div_ceil(BUCKET)
}

/// Hashes in a bucket.
const BUCKET: usize = 8;

/// One key for the process, so a host's hashes are valid in all sets.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Most labels in a host, which has up to 255 bytes.
const LABELS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn hashes(host: &Host) -> HostHashes {
        match PlainHost::from_host(host) {
            PlainHost::Name(name) => HostHashes::of_name(name),
            PlainHost::Address(address) => HostHashes::of_addresses([address; 2]),
        }
    }

    fn has(set: &NameSet, text: &str) -> bool {
        set.contains(&hashes(&host(text)))
    }

    #[test]
    fn a_domain_is_found_by_the_hosts_below_it_and_a_host_alone() {
        let mut set = NameSet::with_room(4);
        assert!(set.insert(&host("ads.example"), Reach::Below));
        assert!(set.insert(&host("one.example"), Reach::Host));
        assert!(set.insert(&host("192.0.2.1"), Reach::Below));
        for (text, found) in [
            ("ads.example", true),
            ("ads.example.", true),
            ("a.b.ads.example", true),
            ("bads.example", false),
            ("example", false),
            ("one.example", true),
            ("x.one.example", false),
            ("192.0.2.1", true),
            ("[::ffff:192.0.2.1]", true),
            ("192.0.2.2", false),
        ] {
            assert_eq!(has(&set, text), found, "{text}");
        }
        // Added again, with all hosts below, and then for itself.
        assert!(set.insert(&host("one.example"), Reach::Below));
        assert!(set.insert(&host("one.example"), Reach::Host));
        assert!(has(&set, "x.one.example"));
        assert_eq!(set.count(), 3);
    }

    #[test]
    fn an_address_is_found_in_both_forms() {
        let mut set = NameSet::with_room(1);
        assert!(set.insert(&host("192.0.2.1"), Reach::Host));
        let inner = IpAddr::from([192, 0, 2, 1]);
        let outer: IpAddr = "64:ff9b::192.0.2.1".parse().unwrap();
        assert!(set.contains(&HostHashes::of_addresses([outer, inner])));
        assert!(!set.contains(&HostHashes::of_addresses([outer; 2])));
    }

    #[test]
    fn labels_are_whole() {
        let all = |name| HostHashes::of_name(name).with_parents().collect::<Vec<_>>();
        let names = ["a.bc.d", "d", "bc.d"].map(hash_of_name);
        assert_eq!(all("a.bc.d"), names);
        let others = [
            "ab.c.d", "abc.d", "a.b.c.d", "c.d", "b.d", "a.bcd", "d.bc.a",
        ];
        for other in others.map(hash_of_name) {
            assert!(!names.contains(&other));
        }
    }

    #[test]
    fn a_full_set_takes_no_other_name_and_still_answers() {
        let mut set = NameSet::with_room(3);
        for name in ["a", "b", "c"] {
            assert!(set.insert(&host(name), Reach::Host));
        }
        assert!(!set.insert(&host("d"), Reach::Host));
        assert!(set.insert(&host("a"), Reach::Host));
        assert!(!has(&set, "d") && has(&set, "c"));
        let mut none = NameSet::with_room(0);
        assert!(!none.insert(&host("a"), Reach::Host) && !has(&none, "a"));
        assert!(!has(&NameSet::default(), "a"));
    }

    #[test]
    fn names_of_every_length_are_looked_up() {
        let name = ["x"; 127].join(".");
        let mut set = NameSet::with_room(1);
        set.insert(&host("x"), Reach::Below);
        assert!(has(&set, &name));
    }

    #[test]
    fn a_million_names_take_11_mib_and_are_all_found() {
        let names = 1_000_000;
        assert!(NameSet::bytes_for(names) < 11 << 20);
        let mut set = NameSet::with_room(names);
        let name = |n: usize| Host::Name(format!("host{n}.example").into());
        for n in 0..names {
            assert!(set.insert(&name(n), Reach::Below));
        }
        assert_eq!(set.count(), names);
        let missed = (0..names)
            .filter(|&n| !set.contains(&hashes(&name(n))))
            .count();
        let false_hits = names..names + 100_000;
        let false_hits = false_hits
            .filter(|&n| set.contains(&hashes(&name(n))))
            .count();
        assert_eq!((missed, false_hits), (0, 0));
    }
}
