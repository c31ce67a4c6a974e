//! Key ranges that lookups skip on disk: removes that found no memory.
//!
//! A remove normally has an entry until the disk shows it. If removes arrive faster than the disk
//! can write, such entries would fill the memory, and a thread that handles requests must not wait
//! for the disk. So beyond the memory share for removes, a bit hides all names in a range of keys,
//! until the writer has cleared that range in the Disk Table. The cache then forgets more names
//! than necessary, but never returns a removed object.
//!
//! Part of a shard, under that shard's lock. Set by `stripe`, cleared by `writer` (Disk Table) or
//! when recovery is over (log).
//!
//! Invariant: a range is hidden from the remove until a pass that started later has cleared it and
//! the clearing is durable. Cost: at most 1 KiB a shard, while any range is hidden.

use std::ops::RangeInclusive;

use crate::key::{KeyHash, SHARDS};
use crate::object::Version;

/// Ranges in all shards, as a power of two. On 1 TB a range has 4 MiB, which the writer clears in
/// about a second; below 8 GiB a range has at most one set.
const RANGE_BITS: u32 = 18;
/// Ranges in a shard.
pub(crate) const RANGES: usize = (1 << RANGE_BITS) / SHARDS;
const WORDS: usize = RANGES / 64;

/// Keys with the same first [`RANGE_BITS`] bits. All are in the same shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange(u64);

impl KeyRange {
    pub(crate) fn from_key(key: KeyHash) -> Self {
        Self(key.high >> (64 - RANGE_BITS))
    }

    /// The range with this number in a shard.
    fn in_shard(shard: usize, number: usize) -> Self {
        Self((shard * RANGES + number) as u64)
    }

    pub(crate) fn has(self, key: KeyHash) -> bool {
        Self::from_key(key) == self
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

    /// The sets, out of `sets`, that may hold keys in this range. The first and the last set may
    /// also hold keys from the adjacent ranges.
    pub(crate) fn sets(self, sets: u64) -> RangeInclusive<u64> {
        let first = self.first();
        let last = KeyHash {
            high: first.high | (u64::MAX >> RANGE_BITS),
            low: u64::MAX,
        };
        first.set(sets)..=last.set(sets)
    }

    /// The range's number in the shard.
    fn number(self) -> usize {
        usize::try_from(self.0).unwrap_or(0) % RANGES
    }

    fn word(self) -> (usize, u64) {
        (self.number() / 64, 1 << (self.number() % 64))
    }
}

/// The shards in search order for the next range to clear, each with the lowest number to consider.
/// The search continues behind the last range. If it always started at the lowest range, ranges
/// that are hidden repeatedly would keep the writer from all higher ranges.
pub(crate) fn places_behind(last: Option<KeyRange>) -> impl Iterator<Item = (usize, usize)> {
    let (shard, number) = last.map_or((0, 0), |it| (it.shard(), it.number() + 1));
    let first_number = move |n: usize| if n == 0 { number } else { 0 };
    // The first shard a second time, for the lower numbers.
    (0..=SHARDS).map(move |n| ((shard + n) % SHARDS, first_number(n)))
}

/// A bit for each range in a shard; allocated only while a bit is set.
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

    /// The lowest number, `from` or higher, that is in this set and not in `others`.
    fn first(&self, from: usize, others: &Self) -> Option<usize> {
        let words = self.0.as_ref()?;
        (from / 64..WORDS).find_map(|n| {
            let others = others.0.as_ref().map_or(0, |words| words[n]);
            let numbers = if n == from / 64 {
                u64::MAX << (from % 64)
            } else {
                u64::MAX
            };
            let word = words[n] & !others & numbers;
            (word != 0).then(|| n * 64 + word.trailing_zeros() as usize)
        })
    }

    fn count(&self) -> u64 {
        let words = self.0.iter().flat_map(|words| words.iter());
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

/// A shard's hidden ranges.
#[derive(Default)]
pub(crate) struct HiddenRanges {
    /// Ranges still to be cleared by the writer, and ranges that it is clearing.
    waiting: Bits,
    clearing: Bits,
    /// Records below this version must be cleared.
    below: Option<Version>,
}

impl HiddenRanges {
    /// Hides all records in `range` below `version`.
    pub(crate) fn hide(&mut self, range: KeyRange, version: Version) {
        self.waiting.add(range);
        self.below = self.below.max(Some(version));
    }

    pub(crate) fn hides(&self, key: KeyHash) -> bool {
        let range = KeyRange::from_key(key);
        self.waiting.has(range) || self.clearing.has(range)
    }

    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting.0.is_some()
    }

    pub(crate) fn any(&self) -> bool {
        self.any_waiting() || self.clearing.0.is_some()
    }

    /// Number of hidden ranges.
    pub(crate) fn count(&self) -> u64 {
        self.waiting.count() + self.clearing.count()
    }

    /// Records in hidden ranges must be cleared below this version; `None` if no range is hidden.
    pub(crate) fn below(&self) -> Option<Version> {
        self.below.filter(|_| self.any())
    }

    /// Starts to clear a hidden range in this shard, with the number `from` or higher. Returns the
    /// range and the version below which it must be cleared; `None` if there is no such range. If
    /// the range is hidden again meanwhile, it stays hidden for another pass. That pass starts
    /// after the first `end`: two passes would share a bit, so the first `end` would unhide records
    /// that the second pass must still clear.
    pub(crate) fn begin(&mut self, shard: usize, from: usize) -> Option<(KeyRange, Version)> {
        let range = KeyRange::in_shard(shard, self.waiting.first(from, &self.clearing)?);
        self.waiting.remove(range);
        self.clearing.add(range);
        Some((range, self.below?))
    }

    /// `range` is cleared, and that is durable.
    pub(crate) fn end(&mut self, range: KeyRange) {
        self.clearing.remove(range);
    }

    /// No range is being cleared any more, and a durable ban hides all records below `version`.
    /// Ranges stay hidden only if a remove has drawn a later version.
    pub(crate) fn are_barred(&mut self, version: Version) {
        if self.below <= Some(version) {
            *self = Self::default();
        } else if let Some(words) = self.clearing.0.take() {
            let waiting = self.waiting.0.get_or_insert_with(|| Box::new([0; WORDS]));
            for (word, clearing) in waiting.iter_mut().zip(words.iter()) {
                *word |= clearing;
            }
        }
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
        let range = KeyRange::from_key(key);
        let mut hidden = HiddenRanges::default();
        hidden.hide(range, Version(3));
        assert_eq!(hidden.begin(range.shard(), 0), Some((range, Version(3))));
        hidden.hide(range, Version(8));
        assert_eq!(hidden.begin(range.shard(), 0), None, "its pass is not over");
        hidden.end(range);
        assert!(hidden.hides(key) && hidden.any_waiting());
        assert_eq!(hidden.begin(range.shard(), 0), Some((range, Version(8))));
        assert!(hidden.hides(key) && !hidden.any_waiting());
        hidden.end(range);
        assert!(!hidden.hides(key) && !hidden.any());
        assert!(hidden.waiting.0.is_none() && hidden.clearing.0.is_none());
    }

    #[test]
    fn every_range_is_cleared_in_its_turn_although_lower_ones_are_hidden_again() {
        let all: Vec<_> = [(0, 0), (0, 63), (0, 64), (5, 7), (SHARDS - 1, RANGES - 1)]
            .into_iter()
            .map(|(shard, number)| KeyRange::in_shard(shard, number))
            .collect();
        let mut shards: Vec<_> = (0..SHARDS).map(|_| HiddenRanges::default()).collect();
        let mut last = None;
        for n in 0..3 * all.len() {
            for range in &all {
                shards[range.shard()].hide(*range, Version(1));
            }
            let begun =
                places_behind(last).find_map(|(shard, from)| shards[shard].begin(shard, from));
            last = begun.map(|(range, _)| range);
            assert_eq!(last, Some(all[n % all.len()]));
            shards[all[n % all.len()].shard()].end(all[n % all.len()]);
        }
    }

    #[test]
    fn a_ban_unhides_no_range_that_a_later_remove_has_hidden() {
        let key = |n: u64| KeyHash {
            high: n << 46,
            low: 1,
        };
        let (first, second) = (KeyRange::from_key(key(1)), KeyRange::from_key(key(2)));
        assert_eq!(first.shard(), second.shard());
        let mut hidden = HiddenRanges::default();
        hidden.hide(first, Version(3));
        hidden.begin(first.shard(), 0).unwrap();
        hidden.hide(second, Version(5));
        hidden.are_barred(Version(4));
        assert!(hidden.hides(key(1)) && hidden.hides(key(2)));
        assert_eq!(hidden.begin(first.shard(), 0), Some((first, Version(5))));
        hidden.are_barred(Version(5));
        assert!(!hidden.any());
    }

    #[test]
    fn the_sets_of_a_range_hold_all_its_keys_however_many_sets_there_are() {
        let mut random = fastrand::Rng::with_seed(7);
        for sets in [64, 1_000, 1 << 18, 12_345_678] {
            for _ in 0..10_000 {
                let high = random.u64(..);
                let key = KeyHash { high, low: 0 };
                let range = KeyRange::from_key(key);
                assert!(range.has(key) && range.shard() == key.shard());
                assert!(range.sets(sets).contains(&key.set(sets)));
            }
        }
    }
}
