//! The usage of all limits, by client and user, and the limits of a request.
//!
//! There is one [`Limiter`] per process. `permission` in the proxy gets the [`RequestLimits`] for a
//! request from it if the rule for the request names limits; other requests never get here.
//! `server` in the proxy writes the usage to a file.
//!
//! Invariants: usage is stored by the limit's name, so it survives a reload. About [`SUBJECTS_MAX`]
//! clients and users are remembered, in reserved memory. If there is no room, the clients and users
//! with the least usage are forgotten, and a new client starts with the most usage that was
//! forgotten, because it may be that client. So nobody gets a new quota within the same period.
//! (This is the counter table of Metwally, Agrawal and El Abbadi, "Efficient computation of
//! frequent and top-k elements in data streams", ICDT 2005, with many evictions at once.) The file
//! is at most [`PERSIST_EVERY`] old.
//! Cost: one lock and one hash for each limit of a request; one lock for each piece of content.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_base::clock::Clock;
use hashcache_base::share::Network;
use hashcache_base::sort::sort_by_key;
use hashcache_base::state_file::{Link, open_regular, replace};
use lru::LruCache;
use tracing::warn;

use super::period::local_text;
use super::request_limits::{LimitCounts, LimitPlan, RequestLimits, Shared, SubjectState, Used};
use super::settings::{LimitPer, LimitSettings};
use super::usage::{FILE_BYTES_MAX, LimitHash, RECORDS_MAX, Subject, SubjectKey, Usage};
use super::usage::{decode, encode};

/// The usage of all limits, by client and user.
pub struct Limiter {
    shared: Arc<Shared>,
    cache: Cache,
    subjects: Mutex<Subjects>,
    /// By limit name, for limits in this configuration and in earlier ones.
    counts: Mutex<BTreeMap<Box<str>, Arc<LimitCounts>>>,
    save_failures: AtomicU64,
    path: Option<PathBuf>,
    /// Held while the file is written: a reload and the shutdown write it too.
    saving: Mutex<()>,
}

/// Clients and users, the most recent in front.
#[derive(Debug)]
struct Subjects {
    by_key: LruCache<SubjectKey, Arc<SubjectState>>,
    /// For each limit, the most usage of a forgotten client or user.
    forgotten: HashMap<LimitHash, Usage>,
    forgotten_count: u64,
    memory: Vec<Reservation>,
}

/// Figures for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimiterFigures {
    /// Clients and users that are remembered, over all limits.
    pub subjects: u64,
    /// Clients and users that were forgotten.
    pub forgotten: u64,
    /// How often the usage could not be saved.
    pub save_failures: u64,
    /// Figures for each limit that has applied to a request.
    pub limits: Vec<LimitFigures>,
}

/// Figures for one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitFigures {
    /// The name of the limit.
    pub name: Box<str>,
    /// Bytes that were counted in quotas.
    pub bytes: u64,
    /// Refusals because a quota was used up.
    pub quota_refusals: u64,
    /// Refusals because there were too many requests.
    pub request_refusals: u64,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// The client that sent the request.
    pub client: Network,
    /// The logged-in user.
    pub user: Option<&'a str>,
}

/// The state of a limit for a user or client, for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The limit.
    pub limit: LimitSettings,
    /// Bytes that were used in the quota, and when the next period starts.
    pub used: Option<(u64, String)>,
}

impl Limiter {
    /// Loads the file at `path`, and later saves the usage there.
    pub fn load(path: Option<PathBuf>, clock: Arc<Clock>, cache: &Cache) -> Arc<Self> {
        let limiter = Self {
            shared: Arc::new(Shared {
                clock,
                is_changed: AtomicBool::new(false),
            }),
            cache: cache.clone(),
            subjects: Mutex::new(Subjects {
                by_key: LruCache::unbounded(),
                forgotten: HashMap::new(),
                forgotten_count: 0,
                memory: Vec::new(),
            }),
            counts: Mutex::default(),
            save_failures: AtomicU64::new(0),
            path,
            saving: Mutex::default(),
        };
        let known = limiter.path.as_deref().map(read).unwrap_or_default();
        let now = limiter.shared.clock.now().seconds();
        for (key, usage) in known {
            if usage.current_bytes(now) == 0 {
                continue;
            }
            if key.is_of_forgotten() {
                limiter.lock().note_forgotten(key.limit, usage);
            } else {
                *limiter.subject(key).usage() = usage;
            }
        }
        Arc::new(limiter)
    }

    /// The limits with these numbers (one bit each) for a request from `sender`.
    pub fn of_request(
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
            Used {
                number,
                state,
                counts: self.counts(&limit.name),
            }
        });
        let shared = Arc::clone(&self.shared);
        RequestLimits::new(shared, Arc::clone(plan), sender.client, used.collect())
    }

    /// The standing of `sender` in the limits with these numbers.
    pub fn standings(&self, plan: &LimitPlan, numbers: u64, sender: Sender<'_>) -> Vec<Standing> {
        let unix = self.shared.clock.now().seconds();
        let standings = plan.numbered(numbers).map(|(_, limit)| {
            let usage = self.lock().peek(key(limit, sender));
            let used = limit.quota.map(|quota| {
                let mut usage = usage;
                usage.adjust(unix, &quota, &plan.zone);
                (usage.bytes, local_text(usage.period.ends, &plan.zone))
            });
            let limit = limit.clone();
            Standing { limit, used }
        });
        standings.collect()
    }

    /// Writes the file if there is anything new.
    pub fn persist(&self) -> io::Result<()> {
        let Some(path) = self.path.as_deref() else {
            return Ok(());
        };
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.shared.is_changed.swap(false, Relaxed) {
            return Ok(());
        }
        let written = replace(path, &encode(&self.records()));
        if written.is_err() {
            self.save_failures.fetch_add(1, Relaxed);
            self.shared.is_changed.store(true, Relaxed);
        }
        written
    }

    /// Writes the file several times a minute if there is anything new; never returns.
    pub async fn keep(self: Arc<Self>) {
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
            // Logged once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, is_failing) {
                warn!(%error, "usage of quotas not saved");
            }
            is_failing = error.is_some();
        }
    }

    /// The usage in periods that are not over, the most recent subjects last, so that the file
    /// keeps the order.
    fn records(&self) -> Vec<(SubjectKey, Usage)> {
        let now = self.shared.clock.now().seconds();
        let subjects = self.lock();
        let forgotten = subjects.forgotten.iter();
        let forgotten = forgotten.map(|(limit, usage)| (SubjectKey::of_forgotten(*limit), *usage));
        let known = subjects.by_key.iter().rev();
        let known = known.map(|(key, state)| (*key, *state.usage()));
        let all = forgotten.chain(known);
        let current = all.filter(|(_, usage)| usage.current_bytes(now) > 0);
        current.take(RECORDS_MAX).collect()
    }

    /// Figures over all clients and users.
    pub fn figures(&self) -> LimiterFigures {
        let (subjects, forgotten) = {
            let subjects = self.lock();
            (subjects.by_key.len(), subjects.forgotten_count)
        };
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = counts.iter().map(|(name, counts)| LimitFigures {
            name: name.clone(),
            bytes: counts.bytes.load(Relaxed),
            quota_refusals: counts.quota_refusals.load(Relaxed),
            request_refusals: counts.request_refusals.load(Relaxed),
        });
        LimiterFigures {
            subjects: u64::try_from(subjects).unwrap_or(u64::MAX),
            forgotten,
            save_failures: self.save_failures.load(Relaxed),
            limits: limits.collect(),
        }
    }

    fn counts(&self, name: &str) -> Arc<LimitCounts> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = counts.get(name) {
            return Arc::clone(known);
        }
        Arc::clone(counts.entry(name.into()).or_default())
    }

    fn subject(&self, key: SubjectKey) -> Arc<SubjectState> {
        let now = self.shared.clock.now().seconds();
        self.lock().get(key, (&self.cache, now))
    }

    fn lock(&self) -> MutexGuard<'_, Subjects> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subjects {
    fn get(&mut self, key: SubjectKey, (cache, now): (&Cache, u64)) -> Arc<SubjectState> {
        if let Some(state) = self.by_key.get(&key) {
            return Arc::clone(state);
        }
        if !self.has_room(cache) {
            self.forget(now);
        }
        let state = Arc::new(SubjectState::with_usage(self.peek(key)));
        self.by_key.put(key, Arc::clone(&state));
        state
    }

    /// The usage of a subject; if it is not remembered, the usage that it may have had.
    fn peek(&self, key: SubjectKey) -> Usage {
        let known = self.by_key.peek(&key).map(|state| *state.usage());
        known
            .or_else(|| self.forgotten.get(&key.limit).copied())
            .unwrap_or_default()
    }

    /// Forgets a part of the subjects without a request in progress: a request in progress counts
    /// in the state that is here. The subjects with the least usage are forgotten first; if their
    /// usage is equal, the least recent first.
    fn forget(&mut self, now: u64) {
        let mut idle: Vec<(u64, SubjectKey)> = Vec::with_capacity(self.by_key.len());
        for (key, state) in self.by_key.iter().rev() {
            if Arc::strong_count(state) == 1 {
                idle.push((state.usage().current_bytes(now), *key));
            }
        }
        sort_by_key(&mut idle, |(bytes, _)| *bytes);
        idle.truncate((self.by_key.len() / FORGOTTEN_PART).max(1));
        self.forgotten
            .retain(|_, usage| usage.current_bytes(now) > 0);
        for (bytes, key) in idle {
            let state = self.by_key.pop(&key);
            self.forgotten_count += 1;
            if let Some(state) = state.filter(|_| bytes > 0) {
                let usage = *state.usage();
                self.note_forgotten(key.limit, usage);
            }
        }
    }

    fn note_forgotten(&mut self, limit: LimitHash, usage: Usage) {
        self.forgotten.entry(limit).or_default().raise_to(usage);
    }

    /// Returns true if another subject can be remembered without forgetting any. The first
    /// `SUBJECTS_STEP` subjects are remembered even if the budget has no room: the limits for all
    /// clients together are among them.
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

/// How often the file is written: a killed process may lose a minute of usage, and a slow disk
/// needs the rest of that minute for the write.
const PERSIST_EVERY: Duration = Duration::from_secs(20);
/// Most clients and users, over all limits, that are remembered, unless more have requests in
/// progress at once.
const SUBJECTS_MAX: usize = 16 << 10;
/// This part of the subjects is forgotten at once, so that a pass over all subjects makes room for
/// many new subjects.
const FORGOTTEN_PART: usize = 8;
/// Memory is reserved for this many subjects at once.
const SUBJECTS_STEP: usize = 128;
/// The state of a subject with three buckets, its key twice, and its places in a map and a list.
const SUBJECT_BYTES: u64 = 1 << 10;

#[cfg(test)]
mod tests;
