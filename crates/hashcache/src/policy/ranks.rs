//! Sets in memory: a tag and a rank for each slot, 11 bits a slot (paper, section 3.3).
//!
//! Called by `set_mem` and `set_mem_lru`, which map a set to a row.
//!
//! Invariants: ranks in a known row are a permutation, 0 is the most recently used slot; a row with
//! only zeros is not known. A row never has the same tag twice: a put takes the slot with an equal
//! tag, which could hold an older version. So a set never holds two versions of a name.

use super::{Occupant, Packed, Slot, WAYS};
use crate::key::KeyHash;

const TAG_BITS: u32 = 8;
const RANK_BITS: u32 = 3;
/// 8 bits for the tag, 3 for the rank.
pub(crate) const SLOT_BITS: u32 = TAG_BITS + RANK_BITS;

const TAG: u64 = (1 << TAG_BITS) - 1;

/// Rows of eight slots.
pub(crate) struct Ranks {
    rows: usize,
    packed: Packed,
}

impl Ranks {
    /// `rows` rows; no row is known.
    pub(crate) fn new(rows: usize) -> Self {
        Self {
            rows,
            packed: Packed::new(rows * WAYS, SLOT_BITS),
        }
    }

    pub(crate) fn packed(&self) -> &Packed {
        &self.packed
    }

    pub(crate) fn packed_mut(&mut self) -> &mut Packed {
        &mut self.packed
    }

    /// The tag for `key`; it is never 0, because tag 0 means an empty slot.
    fn tag_of(key: KeyHash) -> u64 {
        u64::from(key.tag(TAG_BITS))
    }

    fn tag(&self, row: usize, way: usize) -> u64 {
        self.packed.entry(row * WAYS + way) & TAG
    }

    fn rank(&self, row: usize, way: usize) -> usize {
        usize::try_from(self.packed.entry(row * WAYS + way) >> TAG_BITS).unwrap_or(0)
    }

    fn store(&mut self, row: usize, way: usize, tag: u64, rank: usize) {
        self.packed
            .store(row * WAYS + way, tag | (rank as u64) << TAG_BITS);
    }

    /// Returns true if memory knows the slot contents in `row`.
    pub(crate) fn is_known(&self, row: usize) -> bool {
        let seen = (0..WAYS).fold(0u8, |seen, way| seen | 1 << self.rank(row, way));
        seen == u8::MAX
    }

    /// Returns the slot with `key`'s tag. The slot may hold another name with an equal tag.
    pub(crate) fn find(&self, row: usize, key: KeyHash) -> Option<Slot> {
        let tag = Self::tag_of(key);
        (0..WAYS).find(|way| self.tag(row, *way) == tag).map(Slot)
    }

    /// Takes a slot for `key`: the slot with an equal tag, else an empty slot, else the least
    /// recently used slot.
    pub(crate) fn claim(&mut self, row: usize, key: KeyHash) -> Slot {
        let empty = || (0..WAYS).find(|way| self.tag(row, *way) == 0).map(Slot);
        let last = || (0..WAYS).max_by_key(|way| self.rank(row, *way)).map(Slot);
        let slot = self
            .find(row, key)
            .or_else(empty)
            .or_else(last)
            .unwrap_or(Slot(0));
        self.put(row, slot, key);
        slot
    }

    /// Stores `key`'s tag in `slot` and makes it the most recently used slot.
    pub(crate) fn put(&mut self, row: usize, slot: Slot, key: KeyHash) {
        if let Some(other) = self.find(row, key) {
            self.vacate(row, other);
        }
        let rank = self.rank(row, slot.0);
        self.store(row, slot.0, Self::tag_of(key), rank);
        self.touch(row, slot);
    }

    /// Makes `slot` the most recently used.
    pub(crate) fn touch(&mut self, row: usize, slot: Slot) {
        let own = self.rank(row, slot.0);
        for way in 0..WAYS {
            let rank = self.rank(row, way);
            if rank < own {
                self.store(row, way, self.tag(row, way), rank + 1);
            }
        }
        self.store(row, slot.0, self.tag(row, slot.0), 0);
    }

    /// Marks `slot` as empty.
    pub(crate) fn vacate(&mut self, row: usize, slot: Slot) {
        self.store(row, slot.0, 0, self.rank(row, slot.0));
    }

    /// Loads the slot contents; the initial ranks follow the versions. Does nothing if two slots
    /// have equal tags: memory could name only one, and the object in the other slot would be found
    /// again later, instead of a newer version.
    pub(crate) fn learn(&mut self, row: usize, slots: &[Option<Occupant>]) {
        if Self::surplus(slots).next().is_some() {
            return;
        }
        self.empty(row);
        // Uses an array, not a `Vec`, because this is called under a shard's lock.
        let mut held = [None; WAYS];
        for (place, filled) in held.iter_mut().zip(Self::held(slots)) {
            *place = Some(filled);
        }
        held.sort_unstable_by_key(|filled| filled.map(|(_, occupant)| occupant.version));
        for (slot, occupant) in held.into_iter().flatten() {
            self.put(row, slot, occupant.key);
        }
    }

    fn held(slots: &[Option<Occupant>]) -> impl Iterator<Item = (Slot, Occupant)> + use<'_> {
        let filled = |(way, occupant): (usize, &Option<Occupant>)| Some((Slot(way), (*occupant)?));
        slots.iter().enumerate().take(WAYS).filter_map(filled)
    }

    /// The slots that have the same tag as a slot with a newer version.
    pub(crate) fn surplus(slots: &[Option<Occupant>]) -> impl Iterator<Item = Slot> + use<'_> {
        let older = move |(slot, occupant): (Slot, Occupant)| {
            let tag = Self::tag_of(occupant.key);
            let newer = |(other, it): (Slot, Occupant)| {
                other != slot
                    && Self::tag_of(it.key) == tag
                    && (it.version, other.0) > (occupant.version, slot.0)
            };
            Self::held(slots).any(newer).then_some(slot)
        };
        Self::held(slots).filter_map(older)
    }

    /// Marks `row` as known and empty.
    pub(crate) fn empty(&mut self, row: usize) {
        (0..WAYS).for_each(|way| self.store(row, way, 0, way));
    }

    /// Marks `row` as unknown.
    pub(crate) fn unlearn(&mut self, row: usize) {
        (0..WAYS).for_each(|way| self.store(row, way, 0, 0));
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.packed.bytes()
    }

    /// Slots in use.
    pub(crate) fn in_use(&self) -> u64 {
        let used = |n: &usize| self.packed.entry(*n) & TAG != 0;
        (0..self.rows * WAYS).filter(used).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;
    use crate::object::Version;

    fn key(n: u64) -> KeyHash {
        Secret::from_bytes([1; 32]).name(&n.to_le_bytes())
    }

    /// Keys with tags that are all different.
    fn keys(count: usize) -> Vec<KeyHash> {
        let mut seen = std::collections::HashSet::new();
        (0..)
            .map(key)
            .filter(|key| seen.insert(Ranks::tag_of(*key)))
            .take(count)
            .collect()
    }

    fn ranks_of(ranks: &Ranks, row: usize) -> Vec<usize> {
        (0..WAYS).map(|way| ranks.rank(row, way)).collect()
    }

    #[test]
    fn a_slot_has_11_bits() {
        assert_eq!(SLOT_BITS, 11);
    }

    #[test]
    fn a_row_is_unknown_until_it_was_learned_and_its_neighbours_stay_unknown() {
        let mut ranks = Ranks::new(3);
        assert!((0..3).all(|row| !ranks.is_known(row)));
        ranks.learn(1, &[None; WAYS]);
        assert_eq!(
            [0, 1, 2].map(|row| ranks.is_known(row)),
            [false, true, false]
        );
        ranks.unlearn(1);
        assert!(!ranks.is_known(1));
    }

    #[test]
    fn the_least_used_slot_makes_room_and_what_was_touched_stays() {
        let keys = keys(10);
        let mut ranks = Ranks::new(1);
        ranks.empty(0);
        for key in &keys[..8] {
            ranks.claim(0, *key);
        }
        let first = ranks.find(0, keys[0]).unwrap();
        ranks.touch(0, first);
        let second = ranks.find(0, keys[1]).unwrap();
        assert_eq!(ranks.claim(0, keys[8]), second);
        assert_eq!(ranks.find(0, keys[1]), None);
        assert_eq!(ranks.find(0, keys[0]), Some(first));
    }

    #[test]
    fn a_put_takes_the_slot_of_its_older_version() {
        let keys = keys(5);
        let mut ranks = Ranks::new(1);
        ranks.empty(0);
        let slots: Vec<Slot> = keys.iter().map(|key| ranks.claim(0, *key)).collect();
        assert_eq!(ranks.claim(0, keys[2]), slots[2]);
        assert_eq!(ranks.in_use(), 5);
    }

    #[test]
    fn ranks_stay_a_permutation_and_tags_stay_single_whatever_happens() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut ranks = Ranks::new(2);
        ranks.empty(0);
        ranks.empty(1);
        for _ in 0..20_000 {
            let (row, key) = (random.usize(..2), key(random.u64(..600)));
            match random.u8(..4) {
                0 => ranks.vacate(row, Slot(random.usize(..WAYS))),
                1 => ranks.put(row, Slot(random.usize(..WAYS)), key),
                _ => {
                    ranks.claim(row, key);
                }
            }
            if let Some(slot) = ranks.find(row, key) {
                ranks.touch(row, slot);
                assert_eq!(ranks.rank(row, slot.0), 0);
            }
            let mut all = ranks_of(&ranks, row);
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
            let mut tags: Vec<u64> = (0..WAYS).map(|way| ranks.tag(row, way)).collect();
            tags.retain(|tag| *tag != 0);
            tags.sort_unstable();
            assert!(tags.windows(2).all(|two| two[0] != two[1]));
        }
    }

    #[test]
    fn a_set_with_two_versions_of_a_name_is_not_learned_before_the_older_is_gone() {
        let keys = keys(2);
        let held = |n: usize, version| {
            Some(Occupant {
                key: keys[n],
                version: Version(version),
            })
        };
        let mut slots = [None; WAYS];
        (slots[1], slots[4], slots[6]) = (held(0, 9), held(0, 7), held(1, 8));
        let mut ranks = Ranks::new(1);
        assert!(Ranks::surplus(&slots).eq([Slot(4)]));
        ranks.learn(0, &slots);
        assert!(!ranks.is_known(0));
        slots[4] = None;
        ranks.learn(0, &slots);
        assert_eq!(ranks.find(0, keys[0]), Some(Slot(1)));
        assert_eq!(ranks.in_use(), 2);
        assert_eq!([1, 6].map(|way| ranks.rank(0, way)), [0, 1]);
    }

    #[test]
    fn one_miss_in_32_meets_an_equal_tag() {
        let mut random = fastrand::Rng::with_seed(8);
        let rows = 4_000;
        let mut ranks = Ranks::new(rows);
        for row in 0..rows {
            ranks.empty(row);
            while (0..WAYS).any(|way| ranks.tag(row, way) == 0) {
                ranks.claim(row, key(random.u64(..)));
            }
        }
        let asked = 200_000;
        let met = (0..asked).filter(|_| {
            let row = random.usize(..rows);
            ranks.find(row, key(random.u64(..))).is_some()
        });
        let share = met.count() as f64 / f64::from(asked);
        assert!((0.028..0.034).contains(&share), "{share}");
    }
}
