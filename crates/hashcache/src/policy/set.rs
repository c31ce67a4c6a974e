//! HashCache-Set: the disk is an N-way set-associative hash table; memory holds no index (paper,
//! section 3.2).
//!
//! A lookup reads the whole set, because several adjacent blocks cost little more than a single
//! block. There is no memory for ranks, so a set evicts its oldest version.

use std::ops::Range;

use super::{Epoch, Located, Occupant, SetId, Slot, TablePolicy};
use crate::key::KeyHash;

/// The policy for a Disk Table without an index in memory.
pub(crate) struct Set {
    sets: u64,
}

impl Set {
    pub(crate) fn new(sets: u64) -> Self {
        Self { sets }
    }
}

impl TablePolicy for Set {
    fn locate(&self, key: KeyHash) -> Located {
        Located::Set(SetId(key.set(self.sets)), Epoch::ANY)
    }

    fn wants_slots(&self, _key: KeyHash) -> bool {
        true
    }

    fn claim(&mut self, key: KeyHash, slots: &[Option<Occupant>]) -> Slot {
        let same = |slot: &Option<Occupant>| slot.is_some_and(|occupant| occupant.key == key);
        let position = slots
            .iter()
            .position(same)
            .or_else(|| slots.iter().position(Option::is_none));
        let oldest = || {
            let version = |n: &usize| slots[*n].map(|occupant| occupant.version);
            (0..slots.len()).min_by_key(version)
        };
        Slot(position.or_else(oldest).unwrap_or(0))
    }

    // Only reading the set shows if the key is stored.
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
    use crate::object::Version;

    #[test]
    fn a_put_goes_to_its_own_slot_then_an_empty_one_then_the_oldest() {
        let secret = Secret::from_bytes([1; 32]);
        let key = |n: u8| secret.name(&[n]);
        let held = |n: u8, version| {
            Some(Occupant {
                key: key(n),
                version: Version(version),
            })
        };
        let mut set = Set::new(10);
        let mut slots = [held(1, 9), None, held(3, 7)];
        assert_eq!(set.claim(key(3), &slots), Slot(2));
        assert_eq!(set.claim(key(4), &slots), Slot(1));
        slots[1] = held(2, 8);
        assert_eq!(set.claim(key(4), &slots), Slot(2));
    }
}
