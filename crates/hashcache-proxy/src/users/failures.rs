//! Counts of wrong passwords, which say when no more passwords are checked.
//!
//! Invariants: one client network gets one check a second of a user's password after the first
//! [`BOTH_FREE`] failures, so it alone cannot fill the count of that user, and locks the user out
//! for no other network. The counts of a network and of a user are much looser: they are for
//! guesses with many names and from many networks. Every count forgets one failure a second.
//! Memory is bounded: the counts that were used longest ago are dropped.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use ring::hmac;
use tokio::time::Instant;

use super::Tag;
use crate::share::Network;

/// Wrong passwords that were not forgotten yet.
pub(super) struct Failures {
    /// When all failures of a key will be forgotten: each adds a second.
    forgotten_at: LruCache<FailureKey, Instant>,
}

/// What a failure is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FailureKey {
    client: Option<Network>,
    user: Option<Tag>,
}

/// The counts that a login has part in, each with the failures that cost nothing.
pub(super) struct FailureKeys([(FailureKey, u32); 3]);

impl FailureKeys {
    /// Names are hashed with `key`: they are of any length, and clients choose them.
    pub(super) fn new(key: &hmac::Key, client: Network, user: &str) -> Self {
        let mut tag = Tag::default();
        tag.copy_from_slice(hmac::sign(key, user.as_bytes()).as_ref());
        let (client, user) = (Some(client), Some(tag));
        let of_both = FailureKey { client, user };
        let of_client = FailureKey { client, user: None };
        let of_user = FailureKey { client: None, user };
        Self([
            (of_both, BOTH_FREE),
            (of_client, LOOSE_FREE),
            (of_user, LOOSE_FREE),
        ])
    }
}

impl Default for Failures {
    fn default() -> Self {
        let forgotten_at = LruCache::new(KEYS_MAX);
        Self { forgotten_at }
    }
}

impl Failures {
    /// Counts a wrong password.
    pub(super) fn note(&mut self, FailureKeys(keys): FailureKeys) {
        let now = Instant::now();
        for (key, _) in keys {
            let begun = self.forgotten_at.get(&key).map_or(now, |at| (*at).max(now));
            self.forgotten_at.put(key, begun + FORGET_EVERY);
        }
    }

    /// Whether one of the counts has more failures than cost nothing.
    pub(super) fn are_too_many(&self, FailureKeys(keys): &FailureKeys) -> bool {
        let now = Instant::now();
        keys.iter().any(|(key, free)| {
            let at = self.forgotten_at.peek(key);
            at.is_some_and(|at| at.duration_since(now) > FORGET_EVERY * *free)
        })
    }
}

/// One failure is forgotten each second.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Failures that cost nothing: of a user at one network; of a network, or of a user.
const BOTH_FREE: u32 = 10;
const LOOSE_FREE: u32 = 100;
const KEYS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
