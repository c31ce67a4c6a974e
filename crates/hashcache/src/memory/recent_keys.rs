//! The latest keys of hot objects that left memory before a lookup asked for them.
//!
//! Called by `hot` when it evicts such an object, and by a group read, which learns from it whether
//! it repeats an earlier one.
//!
//! Invariant: none that a reader may rely on. A key may be lost to a later one, or seem to be there
//! because another one has an equal tag (one in 2^32).
//! Cost: 16 KiB in all.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::key::KeyHash;

/// Some thousand: what is older tells little about the memory that there is now.
const PLACES: usize = 4096;

/// See the module's head.
pub(super) struct RecentKeys(Box<[AtomicU32]>);

impl RecentKeys {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU32::new(EMPTY)).collect())
    }

    pub(super) fn note(&self, key: KeyHash) {
        let (place, tag) = place_and_tag(key);
        self.0[place].store(tag, Ordering::Relaxed);
    }

    /// Whether `key` was noted. It no longer is after this.
    pub(super) fn take(&self, key: KeyHash) -> bool {
        let (place, tag) = place_and_tag(key);
        let place = &self.0[place];
        let is_there = place.load(Ordering::Relaxed) == tag;
        if is_there {
            place.store(EMPTY, Ordering::Relaxed);
        }
        is_there
    }
}

const EMPTY: u32 = 0;

fn place_and_tag(key: KeyHash) -> (usize, u32) {
    // Without the bits that choose the device: names of one host may share them.
    let [a, b, .., c, d, e, f] = key.to_bytes();
    let place = usize::from(u16::from_le_bytes([a, b])) % PLACES;
    (place, u32::from_le_bytes([c, d, e, f]).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;

    #[test]
    fn a_key_is_there_once_after_it_was_noted() {
        let secret = Secret::from_bytes([1; 32]);
        let keys: Vec<KeyHash> = (0..8_u32).map(|n| secret.name(&n.to_le_bytes())).collect();
        let recent = RecentKeys::new();
        recent.note(keys[0]);
        assert!(keys[1..].iter().all(|key| !recent.take(*key)));
        assert!(recent.take(keys[0]) && !recent.take(keys[0]));
    }
}
