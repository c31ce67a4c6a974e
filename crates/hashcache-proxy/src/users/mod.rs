//! Users of the proxy: names and passwords, checked without giving the processor away.
//!
//! Called by `request` if a rule needs the user of a request. A check of a password takes 50 ms and
//! more, by design. It runs on threads of its own, and its result is kept for a while.
//!
//! Invariants: at most [`UserChecks::new`]'s number of checks run at once, and at most
//! [`WAITING_MAX`] of one client wait. A client with wrong passwords gets one check a second after
//! the first [`FAILURES_FREE`], however many connections it has, also if it leaves before the
//! answer. Passwords are not kept: a result is found by a keyed hash (HMAC-SHA-256) of the name,
//! the stored hash and the password, so a changed file ends it.

mod basic;
mod htpasswd;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub(crate) use basic::Login;
pub use htpasswd::UsersError;
pub(crate) use htpasswd::{UserHashes, read_file};

use crate::share::Network;

/// Checks of passwords for all cores, with their results.
pub(crate) struct UserChecks {
    key: hmac::Key,
    permits: Arc<Semaphore>,
    state: Mutex<CheckState>,
}

struct CheckState {
    right: LruCache<Tag, Instant>,
    wrong: LruCache<Tag, Instant>,
    failures: LruCache<Network, Failures>,
    waiting: HashMap<Network, usize>,
}

/// The keyed hash of a login.
type Tag = [u8; 32];

/// Wrong passwords of a client that were not forgotten yet.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    since: Instant,
}

/// Why a login was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchecked {
    /// Too many checks of this client wait, or it had too many wrong passwords.
    TooMany,
    /// The thread did not finish.
    Broken,
}

impl UserChecks {
    /// At most `threads` checks run at once.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(threads: usize) -> Result<Self, std::io::Error> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| std::io::Error::other("no random numbers"))?;
        Ok(Self {
            key,
            permits: Arc::new(Semaphore::new(threads.max(1))),
            state: Mutex::new(CheckState {
                right: LruCache::new(RESULTS_MAX),
                wrong: LruCache::new(RESULTS_MAX),
                failures: LruCache::new(RESULTS_MAX),
                waiting: HashMap::new(),
            }),
        })
    }

    /// Whether the password of `login` is that of a user.
    ///
    /// # Errors
    /// The login was not checked.
    pub(crate) async fn check(
        self: &Arc<Self>,
        users: &UserHashes,
        client: Network,
        login: Login,
    ) -> Result<bool, Unchecked> {
        let Some((hash, is_user)) = users.hash_for(&login.user) else {
            return Ok(false);
        };
        let tag = self.tag(&login, hash);
        if let Some(result) = self.result(&tag) {
            return Ok(result);
        }
        let _waiting = self.enter(client)?;
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| Unchecked::Broken)?;
        // Another connection of the client may have had it checked meanwhile.
        if let Some(result) = self.result(&tag) {
            return Ok(result);
        }
        let (checks, hash) = (Arc::clone(self), hash.to_owned());
        let checking = tokio::task::spawn_blocking(move || {
            let is_right = bcrypt::verify(&login.password, &hash).unwrap_or(false) && is_user;
            checks.note(client, tag, is_right);
            drop(permit);
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

    fn note(&self, client: Network, tag: Tag, is_right: bool) {
        let mut state = self.state();
        let now = Instant::now();
        if is_right {
            state.right.put(tag, now);
            return;
        }
        state.wrong.put(tag, now);
        let failures = state.failures.get(&client).map_or(0, |it| it.left(now));
        let (count, since) = (failures.saturating_add(1), now);
        state.failures.put(client, Failures { count, since });
    }

    /// Counts a check that waits or runs, until the result is dropped.
    fn enter(self: &Arc<Self>, client: Network) -> Result<Waiting, Unchecked> {
        let mut state = self.state();
        let failures = state
            .failures
            .get(&client)
            .map_or(0, |it| it.left(Instant::now()));
        let all: usize = state.waiting.values().sum();
        let waiting = state.waiting.entry(client).or_default();
        if failures > FAILURES_FREE || *waiting >= WAITING_MAX || all >= ALL_WAITING_MAX {
            if *waiting == 0 {
                state.waiting.remove(&client);
            }
            return Err(Unchecked::TooMany);
        }
        *waiting += 1;
        let checks = Arc::clone(self);
        Ok(Waiting { checks, client })
    }

    fn state(&self) -> MutexGuard<'_, CheckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// One failure is forgotten each second.
    fn left(&self, now: Instant) -> u32 {
        let forgotten = now.duration_since(self.since).as_secs();
        self.count
            .saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

/// A check that waits or runs.
struct Waiting {
    checks: Arc<UserChecks>,
    client: Network,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.checks.state();
        if let Some(waiting) = state.waiting.get_mut(&self.client) {
            *waiting -= 1;
            if *waiting == 0 {
                state.waiting.remove(&self.client);
            }
        }
    }
}

/// How long a right password is believed, and a wrong one refused, without another check.
const RIGHT_LIFETIME: Duration = Duration::from_mins(10);
const WRONG_LIFETIME: Duration = Duration::from_secs(30);
/// Results of each kind, and clients with failures.
const RESULTS_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// Checks of one client, and of all, that wait or run: a class behind one address logs in at once.
const WAITING_MAX: usize = 32;
const ALL_WAITING_MAX: usize = 256;
/// Wrong passwords that cost a client nothing.
const FAILURES_FREE: u32 = 10;

#[cfg(test)]
mod tests;
