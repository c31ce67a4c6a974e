//! Counts of wrong passwords, which decide when no more passwords are checked.
//!
//! Invariants: after the first [`BOTH_FREE`] failures, a user's password is checked only once a
//! second from the same address. So an address cannot fill the user's count by itself, and it locks
//! the user out at no other address. The counts of an address, a network and a user are much
//! looser: they limit guesses with many names and from many addresses. The count of a user locks
//! nobody out: while it is over the limit, each network gets one guess in [`GUESS_EVERY`]. So the
//! guessing network pays, and the right password is checked at once from any other network. The
//! counts of a network and of a user do not apply if the user has logged in there lately, because a
//! machine that changes its address in an IPv6 /64 can fill the count of the network. Every count
//! decreases by one failure a second, and does not grow further when it is over the limit. Memory
//! is bounded: the least recently used entries are removed.

use std::num::NonZeroUsize;
use std::time::Duration;

use hashcache_base::share::Network;
use lru::LruCache;
use ring::hmac;
use tokio::time::Instant;

use super::Tag;

/// Wrong passwords that were not forgotten yet.
pub(super) struct Failures {
    /// When all failures of a key will be forgotten: each failure adds a second.
    forgotten_at: LruCache<FailureKey, Instant>,
    /// The last time a network sent a wrong password for a user.
    guessed_at: LruCache<FailureKey, Instant>,
    /// The last time a user logged in with a right password, at an address and in a network.
    logged_in_at: LruCache<FailureKey, Instant>,
}

/// The key of a count.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FailureKey {
    client: Option<Network>,
    user: Option<Tag>,
}

/// The source of a login.
#[derive(Clone, Copy, Debug)]
pub struct LoginSource {
    /// The client, as shares count it.
    pub network: Network,
    /// The client's address, or the child.
    pub address: Network,
}

/// The counts in which a login takes part.
pub(super) struct FailureKeys {
    of_both: FailureKey,
    of_address: FailureKey,
    of_network: FailureKey,
    of_user: FailureKey,
    /// The user at the network: for logins, and for guesses while the user has many failures.
    at_network: FailureKey,
}

impl FailureKeys {
    /// Names are hashed with `key`, because clients choose the names and names have any length.
    pub(super) fn new(key: &hmac::Key, from: LoginSource, user: &str) -> Self {
        let mut tag = Tag::default();
        tag.copy_from_slice(hmac::sign(key, user.as_bytes()).as_ref());
        let of = |client, user| FailureKey { client, user };
        let (address, network, user) = (Some(from.address), Some(from.network), Some(tag));
        Self {
            of_both: of(address, user),
            of_address: of(address, None),
            of_network: of(network, None),
            of_user: of(None, user),
            at_network: of(network, user),
        }
    }

    /// Each count once, with the limit.
    fn counts(&self) -> impl Iterator<Item = (FailureKey, u32)> {
        let network = (self.of_network != self.of_address).then_some((self.of_network, LOOSE_FREE));
        let others = [
            (self.of_both, BOTH_FREE),
            (self.of_address, LOOSE_FREE),
            (self.of_user, LOOSE_FREE),
        ];
        others.into_iter().chain(network)
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            forgotten_at: LruCache::new(KEYS_MAX),
            guessed_at: LruCache::new(KEYS_MAX),
            logged_in_at: LruCache::new(KEYS_MAX),
        }
    }
}

impl Failures {
    /// Counts a wrong password.
    pub(super) fn note(&mut self, keys: &FailureKeys) {
        let now = Instant::now();
        self.guessed_at.put(keys.at_network, now);
        for (key, free) in keys.counts() {
            let begun = self.forgotten_at.get(&key).map_or(now, |at| (*at).max(now));
            // A user that is exempt from a count may fail any number of times, so the count is
            // capped.
            let at_most = now + FORGET_EVERY * (free + 1);
            self.forgotten_at
                .put(key, (begun + FORGET_EVERY).min(at_most));
        }
    }

    /// Notes a right password.
    pub(super) fn note_login(&mut self, keys: &FailureKeys) {
        let now = Instant::now();
        self.logged_in_at.put(keys.at_network, now);
        self.logged_in_at.put(keys.of_both, now);
    }

    /// Returns true if a count exceeds the number of free failures, and applies to this login (see
    /// the module's head for the exemptions).
    pub(super) fn are_too_many(&self, keys: &FailureKeys) -> bool {
        let now = Instant::now();
        let is_known = |key: FailureKey| {
            let logged_in_at = self.logged_in_at.peek(&key);
            logged_in_at.is_some_and(|at| now.duration_since(*at) < KNOWN_TIME)
        };
        let is_known_address = is_known(keys.of_both);
        let is_known_network = is_known_address || is_known(keys.at_network);
        keys.counts().any(|(key, free)| {
            let at = self.forgotten_at.peek(&key);
            let is_over = at.is_some_and(|at| at.duration_since(now) > FORGET_EVERY * free);
            let guessed_at = self.guessed_at.peek(&keys.at_network);
            let is_first = || guessed_at.is_none_or(|at| now.duration_since(*at) >= GUESS_EVERY);
            let is_spared = key == keys.of_user && (is_known_network || is_first())
                || key == keys.of_network && key != keys.of_address && is_known_address;
            is_over && !is_spared
        })
    }
}

/// One failure is forgotten each second.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Free failures: for a user at one address; for an address, a network or a user.
const BOTH_FREE: u32 = 10;
const LOOSE_FREE: u32 = 100;
/// If a user has many failures, a network that has guessed waits this long before the next password
/// is checked. This is the longest wait for a user in a network from which an attacker guesses.
const GUESS_EVERY: Duration = Duration::from_secs(30);
/// How long an address or a network is known for a user: long enough for a holiday.
const KNOWN_TIME: Duration = Duration::from_secs(14 * 24 * 3600);
/// Most counts, and most logins.
const KEYS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
