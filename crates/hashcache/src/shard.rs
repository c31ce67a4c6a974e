//! A shard: one lock around a part of the index, what is pending, and who is at work on which name.
//!
//! Called by `stripe` and `writer`. The lock is held for look-ups and updates in memory only. Who
//! only looks shares it with others who do (`memory/sharded_lock`).
//!
//! Invariants, each kept under the lock: a pending record is the newest of its key; a read that
//! began before a newer put or a remove never makes its record hot and is never joined by a later
//! look-up; a put whose version was drawn before a newer put or a remove of the name never becomes
//! findable.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::address::LogPos;
use crate::completion::{Outcome, Promise, promise};
use crate::format::Kind;
use crate::key::{KeyHash, KeyMap};
use crate::memory::Kept;
use crate::memory::{Budget, Reservation, Stand};
use crate::object::Version;
use crate::policy::{Located, Policy};
use crate::record::Record;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A record that waits for its batch.
pub(crate) struct Pending {
    pub(crate) record: Kept,
    /// From its second hit on, if there is memory for it.
    stand: OnceLock<Stand>,
    /// Where an older version is known to lie.
    pub(crate) replaces: Option<LogPos>,
    /// It is no put but a copy of what lies there, made to be kept for longer.
    pub(crate) copies: Option<LogPos>,
    /// A newer put or a remove came: it need not be written, and must not be recorded.
    pub(crate) dead: AtomicBool,
    /// It was asked for while it waited.
    asked_for: AtomicBool,
    /// Bytes it will take on disk, without padding.
    pub(crate) record_bytes: usize,
    _reservations: Arc<Vec<Reservation>>,
}

impl Pending {
    /// A put, which gives back the place of what it `replaces`. The record takes `record_bytes` on
    /// disk, without padding.
    pub(crate) fn put(
        record: Kept,
        record_bytes: usize,
        replaces: Option<LogPos>,
        reservations: Arc<Vec<Reservation>>,
    ) -> Self {
        Self {
            record,
            stand: OnceLock::new(),
            replaces,
            copies: None,
            dead: AtomicBool::new(false),
            asked_for: AtomicBool::new(false),
            record_bytes,
            _reservations: reservations,
        }
    }

    /// A copy of what lies at `from`. Who holds the record has accounted for it.
    pub(crate) fn copy(record: Kept, record_bytes: usize, from: LogPos) -> Self {
        Self {
            copies: Some(from),
            ..Self::put(record, record_bytes, None, Arc::default())
        }
    }

    /// The record, for who asked for it.
    pub(crate) fn hit(&self, budget: &Budget) -> Kept {
        // A store takes the cache line from other processors, even of what is there.
        if !self.asked_for.load(Ordering::Relaxed) {
            self.asked_for.store(true, Ordering::Relaxed);
            return self.record.clone();
        }
        if let Kept::Alone(record) = &self.record
            && self.stand.get().is_none()
            && let Some(stand) = Stand::new(record, budget)
        {
            // Somebody else may have been faster.
            let _ = self.stand.set(stand);
        }
        let stand = self.stand.get();
        stand.map_or_else(|| self.record.clone(), |it| Kept::Held(it.hold()))
    }

    /// Whether it was ever a hit.
    pub(crate) fn was_asked_for(&self) -> bool {
        self.asked_for.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn supersede(&self) {
        self.dead.store(true, Ordering::Release);
    }

    fn age(&self) -> (Version, u32) {
        (self.record.fields.version, self.record.fields.revision)
    }
}

/// What a look-up on disk came to: the record, if it is there.
pub(crate) type Found = Option<Kept>;

/// A look-up on disk that others may join.
pub(crate) struct Reading {
    pub(crate) outcome: Outcome<Found>,
    /// A newer put or a remove came since it began.
    pub(crate) stale: AtomicBool,
    /// What it may have read was cleared since, because a rule has taken it away.
    pub(crate) gone: AtomicBool,
    /// What is still to be asked, by the first who waits for the outcome.
    pub(crate) question: Mutex<Option<Box<Question>>>,
}

impl Reading {
    /// The question, for who will ask it.
    pub(crate) fn take_question(&self) -> Option<Box<Question>> {
        self.lock_question().take()
    }

    pub(crate) fn lock_question(&self) -> MutexGuard<'_, Option<Box<Question>>> {
        self.question.lock().expect("no holder of this lock panics")
    }
}

/// What a look-up wants.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: KeyHash,
    pub(crate) name: Bytes,
    /// `None`: the head, whatever its version.
    pub(crate) span: Option<(Version, u32)>,
    /// Content expected, bytes; 0 when not known.
    pub(crate) expect: usize,
}

impl Wanted {
    pub(crate) fn is(&self, record: &Record) -> bool {
        let right_part = match self.span {
            None => record.fields.kind == Kind::Head,
            Some((version, span)) => {
                record.fields.kind == Kind::Span
                    && record.fields.version == version
                    && record.fields.span == span
            }
        };
        right_part && record.fields.key == self.key && record.name == self.name
    }
}

/// A look-up that the disk has to answer. Others who want the same wait for its outcome.
pub(crate) struct Question {
    pub(crate) wanted: Wanted,
    pub(crate) located: Located,
    /// It has waited for a run that was being read.
    pub(crate) has_waited: bool,
    pub(crate) reading: Arc<Reading>,
    pub(crate) promise: Promise<Found>,
}

impl Question {
    pub(crate) fn new(shard: &mut Shard, wanted: Wanted, located: Located) -> Self {
        let (promise, outcome) = promise();
        let reading = Arc::new(Reading {
            outcome,
            stale: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            question: Mutex::new(None),
        });
        shard.reading.insert(wanted.key, Arc::clone(&reading));
        Self {
            wanted,
            located,
            has_waited: false,
            reading,
            promise,
        }
    }

    pub(crate) fn outcome(&self) -> Outcome<Found> {
        self.reading.outcome.clone()
    }
}

/// A put, or an update of metadata, that has begun: its version is drawn, its name known.
pub(crate) struct Begun {
    pub(crate) version: Version,
    pub(crate) is_update: bool,
    /// A newer put or a remove came.
    pub(crate) superseded: AtomicBool,
    /// Another update of the same version came.
    outrun: AtomicBool,
}

/// What has begun under the names of a shard. It has a lock of its own: who begins or ends a put
/// keeps nobody from looking.
///
/// Versions are drawn under it. Who draws a higher one before taking it finds what has the lower.
#[derive(Default)]
pub(crate) struct Beginnings(Mutex<KeyMap<Vec<Arc<Begun>>>>);

impl Beginnings {
    fn lock(&self) -> MutexGuard<'_, KeyMap<Vec<Arc<Begun>>>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// A put or an update begins, of the version that is `drawn`.
    pub(crate) fn begin(
        &self,
        key: KeyHash,
        is_update: bool,
        drawn: impl FnOnce() -> Version,
    ) -> Arc<Begun> {
        let mut of_keys = self.lock();
        let begun = Arc::new(Begun {
            version: drawn(),
            is_update,
            superseded: AtomicBool::new(false),
            outrun: AtomicBool::new(false),
        });
        of_keys.entry(key).or_default().push(Arc::clone(&begun));
        begun
    }

    pub(crate) fn end(&self, key: KeyHash, begun: &Arc<Begun>) {
        let mut of_keys = self.lock();
        if let Some(all) = of_keys.get_mut(&key) {
            all.retain(|other| !Arc::ptr_eq(other, begun));
            if all.is_empty() {
                of_keys.remove(&key);
            }
        }
    }

    /// The lowest version of a put, or of an object whose metadata are updated, that is under way.
    pub(crate) fn oldest(&self) -> Option<Version> {
        let of_keys = self.lock();
        let all = of_keys.values().flatten();
        all.map(|begun| begun.version).min()
    }
}

/// The contents of the lock.
pub(crate) struct Shard {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) pending: KeyMap<Arc<Pending>>,
    pub(crate) reading: KeyMap<Arc<Reading>>,
    pub(crate) begun: Arc<Beginnings>,
    /// Removes that the Disk Table does not show yet: no older version is to be found.
    pub(crate) removing: KeyMap<Version>,
}

impl Shard {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            pending: KeyMap::default(),
            reading: KeyMap::default(),
            begun: Arc::default(),
            removing: KeyMap::default(),
        }
    }

    /// Whether the update `begun` may go on: no other update of this version came since it began,
    /// and the put of this version is not under way any more (it would go over the update). If so,
    /// others that have begun may not: what they would change is no longer what they have read.
    pub(crate) fn outruns(&mut self, key: KeyHash, begun: &Arc<Begun>) -> bool {
        let all = self.begun.lock();
        let of_version = |other: &&Arc<Begun>| other.version == begun.version;
        let others = || all.get(&key).into_iter().flatten().filter(of_version);
        if begun.outrun.load(Ordering::Acquire) || others().any(|other| !other.is_update) {
            return false;
        }
        for other in others().filter(|other| !Arc::ptr_eq(other, begun)) {
            other.outrun.store(true, Ordering::Release);
        }
        true
    }

    /// From now on nothing of `key` older than `version` may be found, kept or put. What this drops
    /// is returned, to be let go of without the lock.
    #[must_use]
    pub(crate) fn supersede(&mut self, key: KeyHash, version: Version) -> Option<Arc<Pending>> {
        for begun in self.begun.lock().get(&key).into_iter().flatten() {
            if begun.version < version {
                begun.superseded.store(true, Ordering::Release);
            }
        }
        if let Some(reading) = self.reading.remove(&key) {
            reading.stale.store(true, Ordering::Release);
        }
        let older = |pending: &Arc<Pending>| pending.record.fields.version < version;
        if !self.pending.get(&key).is_some_and(older) {
            return None;
        }
        let dropped = self.pending.remove(&key)?;
        dropped.supersede();
        Some(dropped)
    }

    /// The slot of `key` is cleared, for a rule that will be forgotten.
    pub(crate) fn cleared(&mut self, key: KeyHash) {
        if let Some(reading) = self.reading.remove(&key) {
            reading.gone.store(true, Ordering::Release);
        }
    }

    /// `reading` is over: later look-ups do not join it.
    pub(crate) fn end_reading(&mut self, key: KeyHash, reading: &Arc<Reading>) {
        let current = self
            .reading
            .get(&key)
            .is_some_and(|it| Arc::ptr_eq(it, reading));
        if current {
            self.reading.remove(&key);
        }
    }

    /// Makes `pending` the record of its key, unless a newer one is there. Returns what it
    /// replaces, to be let go of without the lock.
    pub(crate) fn put(&mut self, pending: Arc<Pending>) -> Result<Option<Arc<Pending>>, ()> {
        let key = pending.record.fields.key;
        if self
            .pending
            .get(&key)
            .is_some_and(|other| other.age() > pending.age())
        {
            return Err(());
        }
        if let Some(reading) = self.reading.remove(&key) {
            reading.stale.store(true, Ordering::Release);
        }
        let old = self.pending.insert(key, pending);
        if let Some(old) = &old {
            old.supersede();
        }
        Ok(old)
    }

    /// Takes `pending` out after it was written, unless it died meanwhile.
    pub(crate) fn written(&mut self, pending: &Arc<Pending>) -> bool {
        let key = pending.record.fields.key;
        let current = self
            .pending
            .get(&key)
            .is_some_and(|other| Arc::ptr_eq(other, pending));
        if current {
            self.pending.remove(&key);
        }
        current && !pending.is_dead()
    }

    /// Nothing will be written any more: all that was pending, to be let go of without the lock.
    #[must_use]
    pub(crate) fn abandon(&mut self) -> Vec<Arc<Pending>> {
        let dropped: Vec<_> = self.pending.drain().map(|(_, pending)| pending).collect();
        for pending in &dropped {
            pending.supersede();
        }
        dropped
    }
}
