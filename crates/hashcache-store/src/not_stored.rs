//! The latest responses that were not stored, with the reason, for operators.
//!
//! `fetch` in the proxy notes each such response; `explain` in the proxy looks the reason up. Only
//! a URL hash is kept.
//!
//! Invariant: at most `ENTRIES_MAX` entries, some 64 KiB. Cost: a hash and a lock for each response
//! that is not stored.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashcache_http::{NotStored, UnixTime};
use lru::LruCache;

/// The latest responses that were not stored.
pub struct RecentlyNotStored {
    /// Keyed by the cache key's hash.
    entries: Mutex<LruCache<u64, (NotStored, UnixTime)>>,
    hasher: RandomState,
}

impl Default for RecentlyNotStored {
    fn default() -> Self {
        Self {
            entries: Mutex::new(LruCache::new(ENTRIES_MAX)),
            hasher: RandomState::new(),
        }
    }
}

impl RecentlyNotStored {
    /// Notes that the response for `key` was not stored.
    pub fn note(&self, key: &[u8], reason: NotStored, now: UnixTime) {
        let hash = self.hasher.hash_one(key);
        self.entries().put(hash, (reason, now));
    }

    /// Notes that a response for `key` is being stored.
    pub fn forget(&self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        self.entries().pop(&hash);
    }

    /// Returns why the last response for `key` was not stored, and when that response was noted.
    pub fn find(&self, key: &[u8]) -> Option<(NotStored, UnixTime)> {
        let hash = self.hasher.hash_one(key);
        self.entries().peek(&hash).copied()
    }

    fn entries(&self) -> MutexGuard<'_, LruCache<u64, (NotStored, UnixTime)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const ENTRIES_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not 0");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_reasons_are_known_until_a_response_is_stored() {
        let recent = RecentlyNotStored::default();
        recent.note(b"a", NotStored::NoStore, UnixTime(1));
        recent.note(b"a", NotStored::Private, UnixTime(2));
        assert_eq!(recent.find(b"a"), Some((NotStored::Private, UnixTime(2))));
        recent.forget(b"a");
        assert_eq!(recent.find(b"a"), None);
        for n in 0..=1024_u32 {
            recent.note(&n.to_le_bytes(), NotStored::NoStore, UnixTime(3));
        }
        assert_eq!(recent.find(&0_u32.to_le_bytes()), None);
        assert!(recent.find(&1_u32.to_le_bytes()).is_some());
    }
}
