//! HashCache-SetMemLRU: the `set-mem` table, with only the most recently used sets in memory
//! (paper, section 3.3).
//!
//! If a set is not in memory, it is read whole before a lookup or a put uses it. Then memory holds
//! the set, in the least recently used row. So nothing has to be saved, neither slot lists nor
//! checkpoints, and after every open memory holds no set.
//!
//! Invariant: for a held set, memory has the slot contents as they are on disk or are about to be
//! written. A set that was read while a slot in the shard was being written, or before, is not
//! loaded: meanwhile memory may have held, changed and dropped the set ([`Epoch`]).
//! Cost: one read for each set that is not held. Each held set takes 11 bits a slot, and the bits
//! in `held_sets`.

use std::ops::Range;

use super::held_sets::HeldSets;
use super::ranks::Ranks;
use super::{Epoch, Located, Occupant, SetId, Slot, TablePolicy, WAYS};
use crate::key::KeyHash;

/// One shard's sets.
pub(crate) struct SetMemLru {
    /// Number of sets in the whole table.
    sets: u64,
    /// First set in this shard.
    first: u64,
    held: HeldSets,
    ranks: Ranks,
    /// Increases by two with each slot change; odd while a claimed slot is being written.
    epoch: u64,
}

impl SetMemLru {
    /// For sets `first` to `first + here` in a table of `sets` sets; at most `rows` sets are held.
    pub(crate) fn new(sets: u64, first: u64, here: u64, rows: usize) -> Self {
        Self {
            sets,
            first,
            held: HeldSets::new(here, rows),
            ranks: Ranks::new(rows),
            epoch: 0,
        }
    }

    /// Memory in use, bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.held.bytes() + self.ranks.bytes()
    }

    /// Returns the set for `key`, and its number within the shard.
    fn place(&self, key: KeyHash) -> (SetId, u64) {
        let set = key.set(self.sets);
        debug_assert!(set >= self.first);
        (SetId(set), set.saturating_sub(self.first))
    }

    fn row(&self, key: KeyHash) -> Option<usize> {
        self.held.find(self.place(key).1)
    }

    /// Loads a set from its slots, unless two slots have equal tags.
    fn hold(&mut self, number: u64, slots: &[Option<Occupant>]) -> Option<usize> {
        if Ranks::surplus(slots).next().is_some() {
            return None;
        }
        let row = self.held.take(number);
        self.ranks.learn(row, slots);
        Some(row)
    }

    fn is_writing(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }
}

impl TablePolicy for SetMemLru {
    fn locate(&self, key: KeyHash) -> Located {
        let (set, number) = self.place(key);
        let Some(row) = self.held.find(number) else {
            return Located::Set(set, Epoch(self.epoch));
        };
        match self.ranks.find(row, key) {
            Some(slot) => Located::Slot(set, slot),
            None => Located::Nowhere,
        }
    }

    fn notes_look_ups(&self) -> bool {
        true
    }

    // Misses count as use too, because a held set saves a read on a miss as well.
    fn looked_for(&mut self, key: KeyHash) {
        if let Some(row) = self.row(key) {
            self.held.touch(row);
        }
    }

    fn wants_slots(&self, key: KeyHash) -> bool {
        self.row(key).is_none()
    }

    fn claim(&mut self, key: KeyHash, slots: &[Option<Occupant>]) -> Slot {
        let number = self.place(key).1;
        self.epoch |= 1;
        let held = self.held.find(number);
        match held.or_else(|| self.hold(number, slots)) {
            Some(row) => {
                self.held.touch(row);
                self.ranks.claim(row, key)
            }
            None => Slot(0),
        }
    }

    fn written(&mut self, _key: KeyHash) {
        self.epoch = (self.epoch | 1) + 1;
    }

    fn learn_set(&mut self, set: SetId, epoch: Epoch, slots: &[Option<Occupant>]) {
        let number = set.0.saturating_sub(self.first);
        let is_fresh = epoch.0 == self.epoch && !self.is_writing();
        if is_fresh && self.held.find(number).is_none() {
            self.hold(number, slots);
        }
    }

    fn used(&mut self, key: KeyHash) {
        if let Some(row) = self.row(key)
            && let Some(slot) = self.ranks.find(row, key)
        {
            self.ranks.touch(row, slot);
        }
    }

    // The tag stays until the slot on disk is cleared, as in `set_mem`.
    fn forget_all(&mut self, key: KeyHash) -> bool {
        self.row(key)
            .is_none_or(|row| self.ranks.find(row, key).is_some())
    }

    fn surplus(&self, slots: &[Option<Occupant>]) -> Vec<Slot> {
        Ranks::surplus(slots).collect()
    }

    fn vacated(&mut self, key: KeyHash, slot: Slot) {
        self.epoch += 2;
        if let Some(row) = self.row(key)
            && slot.0 < WAYS
        {
            self.ranks.vacate(row, slot);
        }
    }

    // After each open memory holds no set: nothing is saved, and recovery has nothing to update.
    // Sets are loaded when a lookup or put needs them, not in the background.

    fn unknown_set(&self, _from: u32) -> Option<(u32, SetId)> {
        None
    }

    fn claimed(&mut self, _key: KeyHash, _slot: Slot) {}

    fn unlearn(&mut self, _key: KeyHash) {}

    fn nothing_stored(&mut self) {}

    fn save(&mut self, _rows: Range<u32>, _out: &mut Vec<u8>) {}

    fn restore(&mut self, _first: u32, _bytes: &[u8]) {}

    fn entries(&self) -> u64 {
        self.ranks.in_use()
    }

    fn clear(&mut self) {
        self.epoch += 2;
        self.held.clear();
        self.ranks.packed_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{SHARDS, Secret};
    use crate::object::Version;

    const SETS: u64 = 64 * 40;

    /// The policy of shard 0, with `rows` sets held at most.
    fn policy(rows: usize) -> SetMemLru {
        SetMemLru::new(SETS, 0, SETS / SHARDS as u64, rows)
    }

    /// Keys of shard 0, no two in one set.
    fn keys(count: usize) -> Vec<KeyHash> {
        let secret = Secret::from_bytes([1; 32]);
        let mut seen = std::collections::HashSet::new();
        (0u64..)
            .map(|n| secret.name(&n.to_le_bytes()))
            .filter(|key| key.shard() == 0 && seen.insert(key.set(SETS)))
            .take(count)
            .collect()
    }

    fn epoch(policy: &SetMemLru, key: KeyHash) -> Epoch {
        match policy.locate(key) {
            Located::Set(_, epoch) => epoch,
            located => panic!("{located:?}"),
        }
    }

    fn held(policy: &SetMemLru, key: KeyHash) -> bool {
        !matches!(policy.locate(key), Located::Set(..))
    }

    fn put(policy: &mut SetMemLru, key: KeyHash, slots: &[Option<Occupant>]) -> Slot {
        let slot = policy.claim(key, slots);
        policy.written(key);
        slot
    }

    fn occupied(key: KeyHash, version: u64) -> Option<Occupant> {
        let version = Version(version);
        Some(Occupant { key, version })
    }

    #[test]
    fn a_set_is_held_once_it_was_read_until_others_were_used_since() {
        let (keys, mut policy) = (keys(3), policy(2));
        for key in &keys {
            let epoch = epoch(&policy, *key);
            let set = SetId(key.set(SETS));
            let slots = [None, occupied(*key, 1), None];
            policy.learn_set(set, epoch, &slots);
            let located = policy.locate(*key);
            assert_eq!(located, Located::Slot(set, Slot(1)));
        }
        assert!(!held(&policy, keys[0]));
        assert!(held(&policy, keys[1]) && held(&policy, keys[2]));
    }

    #[test]
    fn a_look_up_counts_as_use_be_it_a_miss_or_not() {
        let (keys, mut policy) = (keys(3), policy(2));
        for key in &keys[..2] {
            put(&mut policy, *key, &[None; WAYS]);
        }
        assert!(policy.notes_look_ups());
        policy.looked_for(keys[0]);
        put(&mut policy, keys[2], &[None; WAYS]);
        assert!(held(&policy, keys[0]) && !held(&policy, keys[1]));
        policy.looked_for(keys[1]);
        assert!(!held(&policy, keys[1]));
    }

    #[test]
    fn what_was_read_before_a_put_is_not_taken_over_once_the_set_was_given_away() {
        let (keys, mut policy) = (keys(2), policy(1));
        let set = SetId(keys[0].set(SETS));
        let nothing = [None; WAYS];
        let before = epoch(&policy, keys[0]);
        assert_eq!(put(&mut policy, keys[0], &nothing), Slot(0));
        put(&mut policy, keys[1], &nothing);
        assert!(!held(&policy, keys[0]));
        policy.learn_set(set, before, &nothing);
        assert!(!held(&policy, keys[0]), "taken for empty");
        let now = epoch(&policy, keys[0]);
        policy.learn_set(set, now, &[occupied(keys[0], 1)]);
        assert!(held(&policy, keys[0]));
    }

    #[test]
    fn nothing_is_taken_over_while_a_slot_is_being_written() {
        let (keys, mut policy) = (keys(2), policy(1));
        let set = SetId(keys[0].set(SETS));
        policy.claim(keys[0], &[None; WAYS]);
        // The row is reused while the slot is still being written to disk.
        policy.held.take(policy.place(keys[1]).1);
        let during = epoch(&policy, keys[0]);
        policy.learn_set(set, during, &[None; WAYS]);
        assert!(!held(&policy, keys[0]));
        policy.written(keys[0]);
        policy.learn_set(set, during, &[None; WAYS]);
        assert!(!held(&policy, keys[0]));
    }

    #[test]
    fn what_was_read_before_a_slot_was_cleared_is_not_taken_over() {
        let (keys, mut policy) = (keys(1), policy(1));
        let before = epoch(&policy, keys[0]);
        policy.vacated(keys[0], Slot(0));
        let set = SetId(keys[0].set(SETS));
        policy.learn_set(set, before, &[occupied(keys[0], 1)]);
        assert!(!held(&policy, keys[0]));
    }

    #[test]
    fn a_set_with_two_versions_of_a_name_is_held_only_when_the_older_is_gone() {
        let (keys, mut policy) = (keys(1), policy(1));
        let set = SetId(keys[0].set(SETS));
        let mut slots = [occupied(keys[0], 7), occupied(keys[0], 9)];
        let now = epoch(&policy, keys[0]);
        policy.learn_set(set, now, &slots);
        assert!(!held(&policy, keys[0]));
        assert_eq!(policy.surplus(&slots), [Slot(0)]);
        policy.vacated(keys[0], Slot(0));
        slots[0] = None;
        assert_eq!(put(&mut policy, keys[0], &slots), Slot(1));
        assert_eq!(policy.entries(), 1);
    }
}
