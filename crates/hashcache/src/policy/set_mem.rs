//! HashCache-SetMem: a set-associative table on disk, with all tags and ranks in memory (paper,
//! section 3.3).
//!
//! 3.1 % of misses find an equal tag and cost a read, other misses cost none. A hit reads only its
//! own block; a put writes its block and reads nothing. A set that is not in memory yet (after a
//! crash) is read when a lookup or put first needs it.

use std::ops::Range;

use super::ranks::Ranks;
use super::{Epoch, Located, Occupant, SetId, Slot, TablePolicy, WAYS};
use crate::key::KeyHash;

/// One shard's sets.
pub(crate) struct SetMem {
    /// Number of sets in the whole table.
    sets: u64,
    /// First set in this shard.
    first: u64,
    here: u32,
    ranks: Ranks,
}

impl SetMem {
    /// Sets `first` to `first + here` in a table of `sets` sets; no set is in memory yet.
    pub(crate) fn new(sets: u64, first: u64, here: u32) -> Self {
        Self {
            sets,
            first,
            here,
            ranks: Ranks::new(here as usize),
        }
    }

    fn row(&self, key: KeyHash) -> (SetId, usize) {
        let set = key.set(self.sets);
        debug_assert!((self.first..self.first + u64::from(self.here)).contains(&set));
        (SetId(set), usize::try_from(set - self.first).unwrap_or(0))
    }
}

impl TablePolicy for SetMem {
    fn locate(&self, key: KeyHash) -> Located {
        let (set, row) = self.row(key);
        if !self.ranks.is_known(row) {
            return Located::Set(set, Epoch::ANY);
        }
        match self.ranks.find(row, key) {
            Some(slot) => Located::Slot(set, slot),
            None => Located::Nowhere,
        }
    }

    fn notes_look_ups(&self) -> bool {
        false
    }

    // Only hits change ranks: memory holds all sets, so lookups change no order.
    fn looked_for(&mut self, _key: KeyHash) {}

    fn wants_slots(&self, key: KeyHash) -> bool {
        !self.ranks.is_known(self.row(key).1)
    }

    fn claim(&mut self, key: KeyHash, slots: &[Option<Occupant>]) -> Slot {
        let (set, row) = self.row(key);
        self.learn_set(set, Epoch::ANY, slots);
        self.ranks.claim(row, key)
    }

    // `claim` has already updated the ranks.
    fn written(&mut self, _key: KeyHash) {}

    fn unknown_set(&self, from: u32) -> Option<(u32, SetId)> {
        let row = (from..self.here).find(|row| !self.ranks.is_known(*row as usize))?;
        Some((row, SetId(self.first + u64::from(row))))
    }

    // Every put loads its set before it writes to it. So a reader that finds the set still unknown
    // has read the current content, at any epoch.
    fn learn_set(&mut self, set: SetId, _epoch: Epoch, slots: &[Option<Occupant>]) {
        let row = usize::try_from(set.0.saturating_sub(self.first)).unwrap_or(usize::MAX);
        if row < self.here as usize && !self.ranks.is_known(row) {
            self.ranks.learn(row, slots);
        }
    }

    fn claimed(&mut self, key: KeyHash, slot: Slot) {
        let (_, row) = self.row(key);
        if self.ranks.is_known(row) && slot.0 < WAYS {
            self.ranks.put(row, slot, key);
        }
    }

    fn unlearn(&mut self, key: KeyHash) {
        let (_, row) = self.row(key);
        self.ranks.unlearn(row);
    }

    fn nothing_stored(&mut self) {
        (0..self.here as usize).for_each(|row| self.ranks.empty(row));
    }

    fn used(&mut self, key: KeyHash) {
        let (_, row) = self.row(key);
        if self.ranks.is_known(row)
            && let Some(slot) = self.ranks.find(row, key)
        {
            self.ranks.touch(row, slot);
        }
    }

    // The tag stays until the slot on disk is cleared. If memory treated the slot as empty earlier,
    // the old version in it could be found again later.
    fn forget_all(&mut self, key: KeyHash) -> bool {
        let (_, row) = self.row(key);
        !self.ranks.is_known(row) || self.ranks.find(row, key).is_some()
    }

    fn surplus(&self, slots: &[Option<Occupant>]) -> Vec<Slot> {
        Ranks::surplus(slots).collect()
    }

    fn vacated(&mut self, key: KeyHash, slot: Slot) {
        let (_, row) = self.row(key);
        if self.ranks.is_known(row) && slot.0 < WAYS {
            self.ranks.vacate(row, slot);
        }
    }

    fn save(&mut self, rows: Range<u32>, out: &mut Vec<u8>) {
        let entries = rows.start as usize * WAYS..rows.end as usize * WAYS;
        self.ranks.packed().save(entries, out);
    }

    fn restore(&mut self, first: u32, bytes: &[u8]) {
        self.ranks
            .packed_mut()
            .restore(first as usize * WAYS, bytes);
    }

    fn entries(&self) -> u64 {
        self.ranks.in_use()
    }

    fn clear(&mut self) {
        self.ranks.packed_mut().clear();
    }
}
