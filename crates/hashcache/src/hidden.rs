//! Ranges of keys that lookups do not look for on disk: removes for which there was no memory.
//!
//! A remove normally has an entry of its own until the disk shows it. Removes that come faster than
//! the disk can write would fill memory with such entries, and a thread that handles requests must
//! not wait for the disk. So beyond the share of removes, a bit hides all names of a range of keys,
//! until the writer has cleared that range in the Disk Table. The cache forgets more than the name
//! then, but answers with nothing that was removed.
//!
//! Part of a shard, under its lock. Set by `stripe`, cleared by `writer` (Disk Table) or at the end
//! of recovery (log).
//!
//! Invariant: a range is hidden from the remove on until a pass that began later has cleared it and
//! that is durable. Cost: 1 KiB a shard at most, while any range is hidden.

use std::ops::RangeInclusive;

use crate::key::{KeyHash, SHARDS};
use crate::object::Version;

/// Ranges of all shards, as a power of two. A range of a store of 1 TB has 4 MiB, which take the
/// writer about a second; one of a store below 8 GiB has a set at most.
const RANGE_BITS: u32 = 18;
/// Ranges of a shard.
pub(crate) const RANGES: usize = (1 << RANGE_BITS) / SHARDS;
const WORDS: usize = RANGES / 64;

/// Keys that begin with the same [`RANGE_BITS`] bits. All are in the same shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange(u64);

impl KeyRange {
    pub(crate) fn of(key: KeyHash) -> Self {
        Self(key.high >> (64 - RANGE_BITS))
    }

    /// The range of this number in a shard.
    fn in_shard(shard: usize, number: usize) -> Self {
        Self((shard * RANGES + number) as u64)
    }

    pub(crate) fn has(self, key: KeyHash) -> bool {
        Self::of(key) == self
    }

    pub(crate) fn shard(self) -> usize {
        self.first().shard()
    }

    fn first(self) -> KeyHash {
        KeyHash {
            high: self.0 << (64 - RANGE_BITS),
            low: 0,
        }
    }

    /// The sets, of `sets` in all, that may hold its keys. The first and the last may hold those of
    /// its neighbours too.
    pub(crate) fn sets(self, sets: u64) -> RangeInclusive<u64> {
        let first = self.first();
        let last = KeyHash {
            high: first.high | (u64::MAX >> RANGE_BITS),
            low: u64::MAX,
        };
        first.set(sets)..=last.set(sets)
    }

    fn word(self) -> (usize, u64) {
        let number = usize::try_from(self.0).unwrap_or(0) % RANGES;
        (number / 64, 1 << (number % 64))
    }
}

/// A bit for each range of a shard; takes memory only while there is any.
#[derive(Default)]
struct Bits(Option<Box<[u64; WORDS]>>);

impl Bits {
    fn has(&self, range: KeyRange) -> bool {
        let (word, bit) = range.word();
        self.0.as_ref().is_some_and(|words| words[word] & bit != 0)
    }

    fn add(&mut self, range: KeyRange) {
        let (word, bit) = range.word();
        self.0.get_or_insert_with(|| Box::new([0; WORDS]))[word] |= bit;
    }

    fn remove(&mut self, range: KeyRange) {
        let (word, bit) = range.word();
        if let Some(words) = &mut self.0 {
            words[word] &= !bit;
            if words.iter().all(|word| *word == 0) {
                self.0 = None;
            }
        }
    }

    fn first(&self) -> Option<usize> {
        let words = self.0.as_ref()?;
        let word = words.iter().position(|word| *word != 0)?;
        Some(word * 64 + words[word].trailing_zeros() as usize)
    }

    fn count(&self) -> u64 {
        let words = self.0.iter().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The hidden ranges of a shard.
#[derive(Default)]
pub(crate) struct HiddenRanges {
    /// Those that the writer has still to clear, and those that it is clearing.
    waiting: Bits,
    clearing: Bits,
    /// Records below this version are to be cleared.
    below: Option<Version>,
}

impl HiddenRanges {
    /// No record of `range` below `version` is to be found.
    pub(crate) fn hide(&mut self, range: KeyRange, version: Version) {
        self.waiting.add(range);
        self.below = self.below.max(Some(version));
    }

    pub(crate) fn hides(&self, key: KeyHash) -> bool {
        let range = KeyRange::of(key);
        self.waiting.has(range) || self.clearing.has(range)
    }

    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting.0.is_some()
    }

    pub(crate) fn any(&self) -> bool {
        self.any_waiting() || self.clearing.0.is_some()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.waiting.count() + self.clearing.count()
    }

    /// Below this version records of hidden ranges are to be cleared; `None` if none is hidden.
    pub(crate) fn below(&self) -> Option<Version> {
        self.below.filter(|_| self.any())
    }

    /// Begins to clear a range of this shard, if any is hidden: which, and up to which version. If
    /// it is hidden again meanwhile, it stays so for another pass.
    pub(crate) fn begin(&mut self, shard: usize) -> Option<(KeyRange, Version)> {
        let range = KeyRange::in_shard(shard, self.waiting.first()?);
        self.waiting.remove(range);
        self.clearing.add(range);
        Some((range, self.below?))
    }

    /// `range` is cleared, durably.
    pub(crate) fn end(&mut self, range: KeyRange) {
        self.clearing.remove(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_is_hidden_again_while_it_is_cleared_stays_hidden() {
        let key = KeyHash {
            high: 7 << 40,
            low: 1,
        };
        let range = KeyRange::of(key);
        let mut hidden = HiddenRanges::default();
        hidden.hide(range, Version(3));
        assert_eq!(hidden.begin(range.shard()), Some((range, Version(3))));
        hidden.hide(range, Version(8));
        hidden.end(range);
        assert!(hidden.hides(key) && hidden.any_waiting());
        assert_eq!(hidden.begin(range.shard()), Some((range, Version(8))));
        assert!(hidden.hides(key) && !hidden.any_waiting());
        hidden.end(range);
        assert!(!hidden.hides(key) && !hidden.any());
        assert!(hidden.waiting.0.is_none() && hidden.clearing.0.is_none());
    }

    #[test]
    fn the_sets_of_a_range_hold_all_its_keys_however_many_sets_there_are() {
        let mut random = fastrand::Rng::with_seed(7);
        for sets in [64, 1_000, 1 << 18, 12_345_678] {
            for _ in 0..10_000 {
                let high = random.u64(..);
                let key = KeyHash { high, low: 0 };
                let range = KeyRange::of(key);
                assert!(range.has(key) && range.shard() == key.shard());
                assert!(range.sets(sets).contains(&key.set(sets)));
            }
        }
    }
}
