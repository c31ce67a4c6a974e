//! A large set of host names in little memory: 11 bytes a name.
//!
//! Filled when a list is read; asked by `rules`. The set holds keyed hashes of 63 bits and not the
//! names, in a table with open addressing. So nothing is sorted, and building a set takes no more
//! memory than the set. Two names of one hash would be one name: with a million names, a host that
//! is in no list is found with a probability of 1 in 2^43. The key is drawn at the start, so that
//! no one can look for such names. A finite-state transducer (crate `fst`) would hold the names
//! themselves in about as many bytes, but needs them sorted first.
//!
//! Cost: a lookup of a host and of all domains above it is one hash and about one cache miss each.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::LazyLock;

use hashcache_http::Host;

use super::name::{PlainHost, with_parents};

/// Which hosts an entry of a list stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The host of this name alone.
    Host,
    /// It and every host below it.
    Below,
}

/// A set of host names.
#[derive(Debug, Default)]
pub struct NameSet {
    /// Hashes; their lowest bit is set for [`Reach::Host`]. 0 is a free slot.
    slots: Box<[u64]>,
    names: usize,
    room: usize,
}

impl NameSet {
    /// An empty set with room for this many names.
    pub fn with_room(room: usize) -> Self {
        Self {
            slots: vec![0; slots_for(room)].into(),
            names: 0,
            room,
        }
    }

    /// Memory of a set with room for this many names.
    pub fn bytes_for(room: usize) -> u64 {
        slots_for(room) as u64 * 8
    }

    /// Different names in the set.
    pub fn len(&self) -> usize {
        self.names
    }

    /// Adds a host; `false`: there is no room. A name that is there for itself may be added again
    /// with all hosts below it.
    pub fn insert(&mut self, host: &Host, reach: Reach) -> bool {
        let hash = match PlainHost::of(host) {
            PlainHost::Name(name) => hash_of(name),
            PlainHost::Address(address) => hash_of(&address.to_string()),
        };
        let Some(at) = self.slot_of(hash) else {
            return false;
        };
        match (self.slots[at], reach) {
            (0, _) if self.names == self.room => return false,
            (0, reach) => {
                self.names += 1;
                self.slots[at] = hash | u64::from(reach == Reach::Host);
            }
            (_, Reach::Below) => self.slots[at] = hash,
            (_, Reach::Host) => {}
        }
        true
    }

    /// Whether a host is in the set, or a domain above it with all hosts below.
    pub fn contains(&self, host: &HostHashes) -> bool {
        let found = |hash: u64| self.slot_of(hash).map_or(0, |at| self.slots[at]);
        let (own, parents) = host.hashes.split_at(host.count.min(1));
        let parents = &parents[..host.count - own.len()];
        own.iter().any(|&hash| found(hash) != 0) || parents.iter().any(|&hash| found(hash) == hash)
    }

    /// The slot with this hash, else the free one where it would be; `None`: there are no slots.
    fn slot_of(&self, hash: u64) -> Option<usize> {
        let slots = self.slots.len();
        let scaled = (u128::from(hash) * slots as u128) >> 64;
        let mut at = usize::try_from(scaled).ok()?;
        // More slots than names, so there is a free one.
        while *self.slots.get(at)? != 0 && self.slots[at] & !1 != hash {
            at = if at + 1 == slots { 0 } else { at + 1 };
        }
        Some(at)
    }
}

/// The hashes of a host and of all domains above it.
#[derive(Debug)]
pub struct HostHashes {
    hashes: [u64; LABELS_MAX],
    count: usize,
}

impl HostHashes {
    /// Those of `host`. An address has nothing above it.
    pub fn of(host: &Host) -> Self {
        let mut hashes = [0; LABELS_MAX];
        let mut count = 0;
        let mut push = |text: &str| {
            hashes[count] = hash_of(text);
            count += 1;
        };
        match PlainHost::of(host) {
            PlainHost::Name(name) => with_parents(name).take(LABELS_MAX).for_each(push),
            PlainHost::Address(address) => push(&address.to_string()),
        }
        Self { hashes, count }
    }
}

/// A hash with the lowest bit 0, never 0.
fn hash_of(text: &str) -> u64 {
    (KEY.hash_one(text) & !1).max(2)
}

/// A third more slots than names.
fn slots_for(room: usize) -> usize {
    room.saturating_add(room / 3).saturating_add(1)
}

/// One for the process: all sets share the hashes of a host.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Most labels of a host: it has up to 255 bytes.
const LABELS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn has(set: &NameSet, text: &str) -> bool {
        set.contains(&HostHashes::of(&host(text)))
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
        assert_eq!(set.len(), 3);
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
        assert_eq!(set.len(), names);
        let missed = (0..names)
            .filter(|&n| !set.contains(&HostHashes::of(&name(n))))
            .count();
        let false_hits = names..names + 100_000;
        let false_hits = false_hits
            .filter(|&n| set.contains(&HostHashes::of(&name(n))))
            .count();
        assert_eq!((missed, false_hits), (0, 0));
    }
}
