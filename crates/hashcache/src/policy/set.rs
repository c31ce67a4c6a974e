//! HashCache-Set: the disk is an N-way set-associative hash table, memory holds nothing (paper,
//! section 3.2).
//!
//! A look-up reads the whole set: neighbouring blocks cost little more than one. With no memory for
//! ranks, a set evicts its oldest version.

use super::{Epoch, Located, LogPos, Occupant, Policy, SetId, Slot};
use crate::key::KeyHash;

/// The index of a Disk Table that has none.
pub(crate) struct Set {
    sets: u64,
}

impl Set {
    pub(crate) fn new(sets: u64) -> Self {
        Self { sets }
    }
}

impl Policy for Set {
    fn locate(&self, key: KeyHash, _head: LogPos) -> Located {
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
