//! HashCache-Basic: the disk is a hash table with one place for each object, memory holds nothing
//! (paper, section 3.1).
//!
//! The plainest of all: one read answers, one write stores, and two popular objects of one place
//! put each other out for ever.

use super::{Epoch, Located, LogPos, Policy, SetId};
use crate::key::KeyHash;

/// The index of a table of sets of one slot, which needs none.
pub(crate) struct Basic {
    sets: u64,
}

impl Basic {
    pub(crate) fn new(sets: u64) -> Self {
        Self { sets }
    }
}

impl Policy for Basic {
    fn locate(&self, key: KeyHash, _head: LogPos) -> Located {
        Located::Set(SetId(key.set(self.sets)), Epoch::ANY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Slot;
    use crate::key::Secret;

    #[test]
    fn a_name_has_one_place_and_asks_nothing_before_it_takes_it() {
        let mut basic = Basic::new(100);
        let key = Secret::from_bytes([1; 32]).name(b"a");
        assert_eq!(
            basic.locate(key, LogPos(0)),
            Located::Set(SetId(key.set(100)), Epoch::ANY)
        );
        assert!(!basic.wants_slots(key));
        assert_eq!(basic.claim(key, &[]), Slot(0));
    }
}
