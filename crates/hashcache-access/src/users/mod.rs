//! The proxy's users: names and passwords, and how many passwords are checked.
//!
//! `permission` in the proxy calls it if a rule needs the user of a request. A password check takes
//! from 1 ms (bcrypt with cost 4) to more than a second (cost 14). It runs on a separate thread,
//! and the result is kept for a while.
//!
//! Invariants: at most the number of checks given to [`UserChecks::new`] run at once, and client
//! networks take turns, so a guessing network makes another network wait for one check at a time.
//! Requests with the same login wait for the same check. At most `WAITING_MAX` logins from a client
//! network wait, and at most a quarter of the free places. Wrong passwords are counted for each
//! user at each address, for each address, network and user (see `failures`), also if the client
//! leaves before the answer. Passwords are not kept: a result is found by a keyed hash
//! (HMAC-SHA-256) over the name, the stored hash and the password, so it is invalid after a change
//! in the file.

mod basic;
mod failures;
mod htpasswd;
mod user_hashes;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::fair_permits::FairPermits;
use hashcache_base::share::Network;
use lru::LruCache;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

pub use basic::Login;
pub use user_hashes::UserHashes;
pub use user_hashes::UsersError;
pub use user_hashes::{FileUsers, users_of};

pub use self::failures::LoginSource;
use self::failures::{FailureKeys, Failures};

/// Password checks for all cores, with their results.
pub struct UserChecks {
    key: hmac::Key,
    permits: FairPermits<Network>,
    state: Mutex<CheckState>,
}

struct CheckState {
    right: LruCache<Tag, Instant>,
    wrong: LruCache<Tag, Instant>,
    failures: Failures,
    checking: HashMap<Tag, Checking>,
}

/// A login that is being checked, or waits for the check.
struct Checking {
    client: Network,
    /// Held by the request that runs the check; other requests with this login wait for it.
    gate: Arc<AsyncMutex<()>>,
    requests: usize,
}

/// The keyed hash of a login.
type Tag = [u8; 32];

/// Why a login was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// Too many logins wait, or there were too many wrong passwords.
    TooMany,
    /// The thread did not finish.
    Broken,
}

impl UserChecks {
    /// At most `threads` checks run at once.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(threads: usize) -> Result<Self, std::io::Error> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| std::io::Error::other("no random numbers"))?;
        Ok(Self {
            key,
            permits: FairPermits::new(threads),
            state: Mutex::new(CheckState {
                right: LruCache::new(RESULTS_MAX),
                wrong: LruCache::new(RESULTS_MAX),
                failures: Failures::default(),
                checking: HashMap::new(),
            }),
        })
    }

    /// Returns true if `login` has the right password for a user.
    ///
    /// # Errors
    /// The login was not checked.
    pub async fn check(
        self: &Arc<Self>,
        users: &UserHashes,
        from: LoginSource,
        login: Login,
    ) -> Result<bool, Unchecked> {
        let Some((hash, is_user)) = users.hash_for(&login.user) else {
            return Ok(false);
        };
        let tag = self.tag(&login, hash);
        // A removed user may have had this hash; then a right result may still be stored.
        let result = || self.result(&tag).map(|is_right| is_right && is_user);
        if let Some(result) = result() {
            return Ok(result);
        }
        let failure_keys = FailureKeys::new(&self.key, from, &login.user);
        let turn = self.enter(from.network, tag, &failure_keys)?;
        let gate = Arc::clone(&turn.gate).lock_owned().await;
        // Another request with this login may have finished the check meanwhile.
        if let Some(result) = result() {
            return Ok(result);
        }
        let permit = self.permits.acquire(from.network).await;
        // Logins that waited before this login may have been wrong: a burst must not pass the
        // limits.
        if self.state().failures.are_too_many(&failure_keys) {
            return Err(Unchecked::TooMany);
        }
        let (hash, user_count) = (hash.to_owned(), users.count());
        let checking = tokio::task::spawn_blocking(move || {
            let is_right = bcrypt::verify(&login.password, &hash).unwrap_or(false) && is_user;
            if is_right {
                turn.checks.note_right(tag, failure_keys, user_count);
            } else {
                turn.checks.note_wrong(tag, failure_keys);
            }
            // The turn last: new requests then find the result.
            drop((permit, gate, turn));
            is_right
        });
        checking.await.map_err(|_| Unchecked::Broken)
    }

    fn tag(&self, login: &Login, hash: &str) -> Tag {
        let mut context = hmac::Context::with_key(&self.key);
        // No part contains a zero byte.
        for part in [
            login.user.as_bytes(),
            b"\0",
            hash.as_bytes(),
            b"\0",
            &login.password,
        ] {
            context.update(part);
        }
        let mut tag = Tag::default();
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    fn result(&self, tag: &Tag) -> Option<bool> {
        let mut state = self.state();
        let now = Instant::now();
        let is_new = |since: Option<&Instant>, lifetime| {
            since.is_some_and(|since| now.duration_since(*since) < lifetime)
        };
        if is_new(state.right.get(tag), RIGHT_LIFETIME) {
            return Some(true);
        }
        is_new(state.wrong.get(tag), WRONG_LIFETIME).then_some(false)
    }

    /// Notes a right login. There is room for each of `users`: otherwise their logins would
    /// displace each other, and every request would need a new check.
    fn note_right(&self, tag: Tag, keys: FailureKeys, users: usize) {
        let mut state = self.state();
        let places = NonZeroUsize::new(users).map_or(RESULTS_MAX, |it| it.max(RESULTS_MAX));
        state.right.resize(places);
        state.right.put(tag, Instant::now());
        state.failures.note_login(&keys);
    }

    fn note_wrong(&self, tag: Tag, keys: FailureKeys) {
        let mut state = self.state();
        state.wrong.put(tag, Instant::now());
        state.failures.note(&keys);
    }

    /// Counts a request that waits for a check or runs it, until the result is dropped. A request
    /// with a login that is being checked costs no check, so it may always wait.
    fn enter(
        self: &Arc<Self>,
        client: Network,
        tag: Tag,
        keys: &FailureKeys,
    ) -> Result<Turn, Unchecked> {
        let mut state = self.state();
        if !state.checking.contains_key(&tag) {
            let waiting = state.checking.values();
            let of_client = waiting.filter(|it| it.client == client).count();
            let left = ALL_WAITING_MAX.saturating_sub(state.checking.len());
            if of_client >= WAITING_MAX.min(left.div_ceil(4)) || state.failures.are_too_many(keys) {
                return Err(Unchecked::TooMany);
            }
        }
        let checking = state.checking.entry(tag).or_insert_with(|| Checking {
            client,
            gate: Arc::default(),
            requests: 0,
        });
        checking.requests += 1;
        Ok(Turn {
            checks: Arc::clone(self),
            gate: Arc::clone(&checking.gate),
            tag,
        })
    }

    fn state(&self) -> MutexGuard<'_, CheckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for a login check, or runs it.
struct Turn {
    checks: Arc<UserChecks>,
    gate: Arc<AsyncMutex<()>>,
    tag: Tag,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.checks.state();
        if let Some(checking) = state.checking.get_mut(&self.tag) {
            checking.requests -= 1;
            if checking.requests == 0 {
                state.checking.remove(&self.tag);
            }
        }
    }
}

/// How long a right password is believed, and a wrong password refused, without another check.
const RIGHT_LIFETIME: Duration = Duration::from_secs(600);
const WRONG_LIFETIME: Duration = Duration::from_secs(30);
/// Wrong logins with a kept result; also right logins, unless there are more users.
const RESULTS_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// Logins that wait or are checked, for a client network and for all: a class behind one address
/// logs in at once.
const WAITING_MAX: usize = 32;
const ALL_WAITING_MAX: usize = 256;

#[cfg(test)]
mod tests;
