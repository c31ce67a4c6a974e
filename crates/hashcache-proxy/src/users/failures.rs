//! Counts of wrong passwords, which say when no more passwords are checked.
//!
//! Invariants: one client network gets one check a second of a user's password after the first
//! [`BOTH_FREE`] failures, so it alone cannot fill the count of that user, and locks the user out
//! for no other network. The counts of a network and of a user are much looser: they are for
//! guesses with many names and from many networks. The count of a user says nothing about a network
//! from which the user has logged in lately, because guesses from two other networks can fill it.
//! Every count forgets one failure a second. Memory is bounded: what was used longest ago is
//! dropped.

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
    /// When a user had a right password checked at a network last.
    logged_in_at: LruCache<FailureKey, Instant>,
}

/// What a failure is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FailureKey {
    client: Option<Network>,
    user: Option<Tag>,
}

/// The counts that a login has part in.
pub(super) struct FailureKeys {
    of_both: FailureKey,
    of_client: FailureKey,
    of_user: FailureKey,
}

impl FailureKeys {
    /// Names are hashed with `key`: they are of any length, and clients choose them.
    pub(super) fn new(key: &hmac::Key, client: Network, user: &str) -> Self {
        let mut tag = Tag::default();
        tag.copy_from_slice(hmac::sign(key, user.as_bytes()).as_ref());
        let (client, user) = (Some(client), Some(tag));
        Self {
            of_both: FailureKey { client, user },
            of_client: FailureKey { client, user: None },
            of_user: FailureKey { client: None, user },
        }
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            forgotten_at: LruCache::new(KEYS_MAX),
            logged_in_at: LruCache::new(KEYS_MAX),
        }
    }
}

impl Failures {
    /// Counts a wrong password.
    pub(super) fn note(&mut self, keys: FailureKeys) {
        let now = Instant::now();
        for key in [keys.of_both, keys.of_client, keys.of_user] {
            let begun = self.forgotten_at.get(&key).map_or(now, |at| (*at).max(now));
            self.forgotten_at.put(key, begun + FORGET_EVERY);
        }
    }

    /// Notes a right password.
    pub(super) fn note_login(&mut self, keys: FailureKeys) {
        self.logged_in_at.put(keys.of_both, Instant::now());
    }

    /// Whether one of the counts has more failures than cost nothing.
    pub(super) fn are_too_many(&self, keys: &FailureKeys) -> bool {
        let now = Instant::now();
        let is_over = |key: FailureKey, free: u32| {
            let at = self.forgotten_at.peek(&key);
            at.is_some_and(|at| at.duration_since(now) > FORGET_EVERY * free)
        };
        let logged_in_at = self.logged_in_at.peek(&keys.of_both);
        let is_known = logged_in_at.is_some_and(|at| now.duration_since(*at) < KNOWN_TIME);
        is_over(keys.of_both, BOTH_FREE)
            || is_over(keys.of_client, LOOSE_FREE)
            || (!is_known && is_over(keys.of_user, LOOSE_FREE))
    }
}

/// One failure is forgotten each second.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Failures that cost nothing: of a user at one network; of a network, or of a user.
const BOTH_FREE: u32 = 10;
const LOOSE_FREE: u32 = 100;
/// How long a network is known as one from which a user logs in: over a holiday.
const KNOWN_TIME: Duration = Duration::from_secs(14 * 24 * 3600);
/// Most counts, and most logins.
const KEYS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
