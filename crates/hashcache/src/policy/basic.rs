//! HashCache-Basic: the disk is a hash table with a place for each object; memory holds no index
//! (paper, section 3.1).
//!
//! This is the simplest policy: a lookup is a single read and a put a single write. Two popular
//! objects with the same place evict each other for ever.

use std::ops::Range;

use super::{Epoch, Located, Occupant, SetId, Slot, TablePolicy};
use crate::key::KeyHash;

/// The policy for a table with a single slot in each set. No index is needed in memory.
pub(crate) struct Basic {
    sets: u64,
}

impl Basic {
    pub(crate) fn new(sets: u64) -> Self {
        Self { sets }
    }
}

impl TablePolicy for Basic {
    fn locate(&self, key: KeyHash) -> Located {
        Located::Set(SetId(key.set(self.sets)), Epoch::ANY)
    }

    fn wants_slots(&self, _key: KeyHash) -> bool {
        false
    }

    fn claim(&mut self, _key: KeyHash, _slots: &[Option<Occupant>]) -> Slot {
        Slot(0)
    }

    // Only reading the slot shows if the key is stored.
    fn forget_all(&mut self, _key: KeyHash) -> bool {
        true
    }

    // Memory holds no index, so the other methods have nothing to do.

    fn notes_look_ups(&self) -> bool {
        false
    }

    fn looked_for(&mut self, _key: KeyHash) {}

    fn written(&mut self, _key: KeyHash) {}

    fn surplus(&self, _slots: &[Option<Occupant>]) -> Vec<Slot> {
        Vec::new()
    }

    fn vacated(&mut self, _key: KeyHash, _slot: Slot) {}

    fn used(&mut self, _key: KeyHash) {}

    fn unknown_set(&self, _from: u32) -> Option<(u32, SetId)> {
        None
    }

    fn learn_set(&mut self, _set: SetId, _epoch: Epoch, _slots: &[Option<Occupant>]) {}

    fn claimed(&mut self, _key: KeyHash, _slot: Slot) {}

    fn unlearn(&mut self, _key: KeyHash) {}

    fn nothing_stored(&mut self) {}

    fn save(&mut self, _rows: Range<u32>, _out: &mut Vec<u8>) {}

    fn restore(&mut self, _first: u32, _bytes: &[u8]) {}

    fn entries(&self) -> u64 {
        0
    }

    fn clear(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;

    #[test]
    fn a_name_has_one_place_and_asks_nothing_before_it_takes_it() {
        let mut basic = Basic::new(100);
        let key = Secret::from_bytes([1; 32]).name(b"a");
        assert_eq!(
            basic.locate(key),
            Located::Set(SetId(key.set(100)), Epoch::ANY)
        );
        assert!(!basic.wants_slots(key));
        assert_eq!(basic.claim(key, &[]), Slot(0));
    }
}
