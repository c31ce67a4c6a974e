//! The latest keys of hot objects that were evicted before any lookup requested them.
//!
//! Called by `hot` when it evicts such an object, and by a group read, which learns from it if it
//! repeats an earlier group read.
//!
//! Invariant: none that a reader may rely on. A later key may overwrite a key, and a key may seem
//! to be present because another key has an equal tag (one in 2^32).
//! Cost: 4 bytes a key.

use std::sync::atomic::{AtomicU32, Ordering};

/// See the module's head.
pub(super) struct RecentKeys(Box<[AtomicU32]>);

impl RecentKeys {
    /// Room for about `keys` keys.
    pub(super) fn new(keys: usize) -> Self {
        Self((0..keys.max(1)).map(|_| AtomicU32::new(EMPTY)).collect())
    }

    fn place_and_tag(&self, key: [u8; 8]) -> (&AtomicU32, u32) {
        let [a, b, c, d, e, f, g, h] = key;
        let place = u32::from_be_bytes([a, b, c, d]) as usize % self.0.len();
        (&self.0[place], u32::from_be_bytes([e, f, g, h]).max(1))
    }

    pub(super) fn note(&self, key: [u8; 8]) {
        let (place, tag) = self.place_and_tag(key);
        place.store(tag, Ordering::Relaxed);
    }

    /// Returns true if `key` was noted.
    pub(super) fn contains(&self, key: [u8; 8]) -> bool {
        let (place, tag) = self.place_and_tag(key);
        place.load(Ordering::Relaxed) == tag
    }

    /// Returns true if `key` was noted, and forgets it.
    pub(super) fn take(&self, key: [u8; 8]) -> bool {
        let (place, tag) = self.place_and_tag(key);
        let is_there = place.load(Ordering::Relaxed) == tag;
        if is_there {
            place.store(EMPTY, Ordering::Relaxed);
        }
        is_there
    }
}

const EMPTY: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Secret;

    #[test]
    fn a_key_is_there_once_after_it_was_noted() {
        let secret = Secret::from_bytes([1; 32]);
        let keys: Vec<_> = (0..8_u32)
            .map(|n| secret.name(&n.to_le_bytes()).spread())
            .collect();
        let recent = RecentKeys::new(4096);
        recent.note(keys[0]);
        assert!(keys[1..].iter().all(|key| !recent.take(*key)));
        assert!(recent.contains(keys[0]));
        assert!(recent.take(keys[0]) && !recent.take(keys[0]));
    }
}
