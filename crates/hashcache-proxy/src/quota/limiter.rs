//! All limits of the process: who has used how much, and what a request may still use.
//!
//! One [`Limiter`] for the process. `permission` asks it for the [`RequestLimits`] of a request
//! whose rule names limits; other requests never get here. `server` writes the usage to a file.
//!
//! Invariants: what a client or user has used is known by the limit's name, so it outlives a
//! reload. At most [`SUBJECTS_MAX`] clients and users are remembered, those that were here last,
//! in memory that is reserved. The file is at most [`PERSIST_EVERY`] old.
//! Cost: one lock and one hash for each limit of a request; one lock for each piece of content.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use lru::LruCache;
use tracing::warn;

use super::period::local_text;
use super::request_limits::{LimitPlan, RequestLimits, Shared, SubjectState};
use super::settings::{LimitPer, LimitSettings};
use super::usage::{FILE_BYTES_MAX, SUBJECTS_MAX, Subject, SubjectKey, Usage, decode, encode};
use crate::clock::Clock;
use crate::share::Network;
use crate::state_file::{Link, open_regular, replace};

/// Who has used how much.
pub(crate) struct Limiter {
    shared: Arc<Shared>,
    cache: Cache,
    subjects: Mutex<Subjects>,
    path: Option<PathBuf>,
}

/// Clients and users, those that were here last in front.
#[derive(Debug)]
struct Subjects {
    by_key: LruCache<SubjectKey, Arc<SubjectState>>,
    memory: Vec<Reservation>,
}

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) client: Network,
    pub(crate) user: Option<&'a str>,
}

/// What a person has left of one limit, for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) limit: LimitSettings,
    /// Bytes that were used of the quota, and when it begins anew.
    pub(crate) used: Option<(u64, String)>,
}

impl Limiter {
    /// Loads the file at `path`, and keeps the usage there from then on.
    pub(crate) fn load(path: Option<PathBuf>, clock: Arc<Clock>, cache: &Cache) -> Arc<Self> {
        let limiter = Self {
            shared: Arc::new(Shared {
                clock,
                is_changed: AtomicBool::new(false),
            }),
            cache: cache.clone(),
            subjects: Mutex::new(Subjects {
                by_key: LruCache::unbounded(),
                memory: Vec::new(),
            }),
            path,
        };
        let known = limiter.path.as_deref().map(read).unwrap_or_default();
        let now = limiter.shared.clock.now().seconds();
        for (key, usage) in known {
            if usage.period.contains(now) {
                *limiter.subject(key).usage() = usage;
            }
        }
        Arc::new(limiter)
    }

    /// The limits with these numbers (one bit each) for a request of `sender`.
    pub(crate) fn of_request(
        &self,
        plan: &Arc<LimitPlan>,
        numbers: u64,
        sender: Sender<'_>,
    ) -> RequestLimits {
        let unix = self.shared.clock.now().seconds();
        let used = plan.numbered(numbers).map(|(number, limit)| {
            let state = self.subject(key(limit, sender));
            if let Some(quota) = &limit.quota {
                state.usage().adjust(unix, quota, &plan.zone);
            }
            (number, state)
        });
        let shared = Arc::clone(&self.shared);
        RequestLimits::new(shared, Arc::clone(plan), sender.client, used.collect())
    }

    /// What `sender` has left of the limits with these numbers.
    pub(crate) fn standings(
        &self,
        plan: &LimitPlan,
        numbers: u64,
        sender: Sender<'_>,
    ) -> Vec<Standing> {
        let unix = self.shared.clock.now().seconds();
        let standings = plan.numbered(numbers).map(|(_, limit)| {
            let known = self.lock().by_key.peek(&key(limit, sender)).cloned();
            let used = limit.quota.map(|quota| {
                let mut usage = known.map(|state| *state.usage()).unwrap_or_default();
                usage.adjust(unix, &quota, &plan.zone);
                (usage.bytes, local_text(usage.period.ends, &plan.zone))
            });
            let limit = limit.clone();
            Standing { limit, used }
        });
        standings.collect()
    }

    /// Writes the file if there is anything new.
    pub(crate) fn persist(&self) -> io::Result<()> {
        let Some(path) = self.path.as_deref() else {
            return Ok(());
        };
        if !self.shared.is_changed.swap(false, Relaxed) {
            return Ok(());
        }
        let written = replace(path, &encode(&self.records()));
        if written.is_err() {
            self.shared.is_changed.store(true, Relaxed);
        }
        written
    }

    /// Writes the file several times a minute if there is anything new; never ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(PERSIST_EVERY).await;
            let limiter = Arc::clone(&self);
            let kept = tokio::task::spawn_blocking(move || limiter.persist()).await;
            let error = match kept {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(error) => Some(io::Error::other(error)),
            };
            // Once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, is_failing) {
                warn!(%error, "usage of quotas not saved");
            }
            is_failing = error.is_some();
        }
    }

    /// What was used in periods that are not over, those that were here last at the end: so a file
    /// keeps the order.
    fn records(&self) -> Vec<(SubjectKey, Usage)> {
        let now = self.shared.clock.now().seconds();
        let states: Vec<_> = {
            let subjects = self.lock();
            let states = subjects.by_key.iter().rev();
            states
                .map(|(key, state)| (*key, Arc::clone(state)))
                .collect()
        };
        let usages = states.into_iter().map(|(key, state)| (key, *state.usage()));
        let is_left = |(_, usage): &(_, Usage)| usage.bytes > 0 && usage.period.contains(now);
        usages.filter(is_left).collect()
    }

    fn subject(&self, key: SubjectKey) -> Arc<SubjectState> {
        self.lock().get(key, &self.cache)
    }

    fn lock(&self) -> MutexGuard<'_, Subjects> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subjects {
    fn get(&mut self, key: SubjectKey, cache: &Cache) -> Arc<SubjectState> {
        if let Some(state) = self.by_key.get(&key) {
            return Arc::clone(state);
        }
        if !self.has_room(cache) {
            self.by_key.pop_lru();
        }
        let state = Arc::<SubjectState>::default();
        self.by_key.put(key, Arc::clone(&state));
        state
    }

    /// Whether one more is remembered without forgetting another. The first ones are even if the
    /// budget has no room: the limits of all clients together are among them.
    fn has_room(&mut self, cache: &Cache) -> bool {
        let count = self.by_key.len();
        if count < self.memory.len() * SUBJECTS_STEP {
            return true;
        }
        if count >= SUBJECTS_MAX {
            return false;
        }
        let step = u64::try_from(SUBJECTS_STEP).unwrap_or(u64::MAX);
        match cache.reserve(step * SUBJECT_BYTES) {
            Some(memory) => self.memory.push(memory),
            None => return count < SUBJECTS_STEP,
        }
        true
    }
}

fn key(limit: &LimitSettings, sender: Sender<'_>) -> SubjectKey {
    let client = Subject::Client(sender.client);
    let subject = match limit.per {
        LimitPer::All => Subject::All,
        LimitPer::Client => client,
        LimitPer::User => sender.user.map_or(client, Subject::User),
    };
    SubjectKey::new(&limit.name, subject)
}

/// The usage in the file at `path`; none if there is no such file.
fn read(path: &Path) -> Vec<(SubjectKey, Usage)> {
    let mut bytes = Vec::new();
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    let read = open_regular(path, Link::Refused);
    let read = read.and_then(|file| file.take(most).read_to_end(&mut bytes));
    match read {
        Ok(_) => {
            let (records, is_damaged) = decode(&bytes);
            if is_damaged {
                let (path, left) = (path.display(), records.len());
                warn!(%path, left, "usage of quotas is damaged; what is right is taken");
            }
            records
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            warn!(%error, path = %path.display(), "usage of quotas not loaded");
            Vec::new()
        }
    }
}

/// Shorter than the minute that a killed process may lose, by the time of a slow disk.
const PERSIST_EVERY: Duration = Duration::from_secs(20);
/// Memory for subjects is reserved for so many at once.
const SUBJECTS_STEP: usize = 128;
/// The state of a subject with three buckets, its key twice, and its places in a map and a list.
const SUBJECT_BYTES: u64 = 1 << 10;

#[cfg(test)]
mod tests;
