//! A shard: one lock around a part of the index, the pending records, the reads in flight and the
//! puts in progress of the names in it.
//!
//! Called by `stripe` and `writer`. The lock is held for lookups and updates in memory only, never
//! during I/O. Readers share it (`memory/sharded_lock`).
//!
//! Invariants, each kept under the lock: a pending record is the newest of its key. A read that
//! started before a newer put or a remove never makes the record hot, and later lookups never join
//! it. A put is never found if the version was drawn before a newer put or a remove of the name.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::address::LogPos;
use crate::completion::{Outcome, Promise, promise};
use crate::format::Kind;
use crate::hidden::HiddenRanges;
use crate::key::{KeyHash, KeyMap};
use crate::memory::RecordHandle;
use crate::memory::{Budget, PinnedRecord, Reservations};
use crate::object::Version;
use crate::policy::{Located, ShardPolicy};
use crate::record::Record;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// A record that waits for its batch.
pub(crate) struct Pending {
    pub(crate) record: RecordHandle,
    /// Separate reference counts, from the second hit on, if there is memory for them.
    pinned: OnceLock<PinnedRecord>,
    /// Position of an older version, if known.
    pub(crate) replaces: Option<LogPos>,
    /// Set for a readmission: this is no put but a copy of the record at that position.
    pub(crate) copies: Option<LogPos>,
    /// Set when a newer put or a remove has superseded the record: it need not be written, and must
    /// not be recorded.
    pub(crate) dead: AtomicBool,
    /// Set when a lookup found the record while it waited.
    asked_for: AtomicBool,
    /// Bytes of the record on disk, without padding.
    pub(crate) record_bytes: usize,
    _reservations: Arc<Reservations>,
}

impl Pending {
    /// A put, which frees the place of the record that it `replaces`. The record takes
    /// `record_bytes` on disk, without padding.
    pub(crate) fn put(
        record: RecordHandle,
        record_bytes: usize,
        replaces: Option<LogPos>,
        reservations: Arc<Reservations>,
    ) -> Self {
        Self {
            record,
            pinned: OnceLock::new(),
            replaces,
            copies: None,
            dead: AtomicBool::new(false),
            asked_for: AtomicBool::new(false),
            record_bytes,
            _reservations: reservations,
        }
    }

    /// A copy of the record at `from`. The handle's owner has accounted for its memory.
    pub(crate) fn copy(record: RecordHandle, record_bytes: usize, from: LogPos) -> Self {
        Self {
            copies: Some(from),
            ..Self::put(record, record_bytes, None, Arc::default())
        }
    }

    /// A handle to the record, for a lookup.
    pub(crate) fn hit(&self, budget: &Budget) -> RecordHandle {
        // A store takes the cache line from other processors, even if the value stays the same.
        if !self.asked_for.load(Ordering::Relaxed) {
            self.asked_for.store(true, Ordering::Relaxed);
            return self.record.clone();
        }
        if let RecordHandle::Alone(record) = &self.record
            && self.pinned.get().is_none()
            && let Some(pinned) = PinnedRecord::new(record, budget)
        {
            // If another thread was faster, its counters are used.
            let _ = self.pinned.set(pinned);
        }
        let pinned = self.pinned.get();
        pinned.map_or_else(|| self.record.clone(), |it| RecordHandle::Pinned(it.pin()))
    }

    /// Returns true if a lookup has found the record while it was pending.
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

/// Result of a lookup on disk: the record, if it is stored.
pub(crate) type Found = Option<RecordHandle>;

/// A lookup on disk, in progress or about to start, that other lookups may join.
pub(crate) struct InFlightRead {
    pub(crate) outcome: Outcome<Found>,
    /// Set if there was a newer put or a remove since the read started.
    pub(crate) stale: AtomicBool,
    /// Set if the slot that the read may have used was cleared since, or a pass for bans has
    /// visited the set.
    pub(crate) gone: AtomicBool,
    /// The request, while no thread reads for it yet: the first thread that waits for the outcome
    /// takes it.
    pub(crate) request: Mutex<Option<Box<ReadRequest>>>,
}

impl InFlightRead {
    /// Takes the request out: the caller that receives it must have it read.
    pub(crate) fn take_request(&self) -> Option<Box<ReadRequest>> {
        self.lock_request().take()
    }

    pub(crate) fn lock_request(&self) -> MutexGuard<'_, Option<Box<ReadRequest>>> {
        self.request.lock().expect("no holder of this lock panics")
    }
}

/// The record that a lookup wants.
#[derive(Clone, Debug)]
pub(crate) struct LookupTarget {
    pub(crate) key: KeyHash,
    pub(crate) name: Bytes,
    /// `None`: the head, in any version.
    pub(crate) span: Option<(Version, u32)>,
    /// Content expected, bytes; 0 if not known.
    pub(crate) expect: usize,
}

impl LookupTarget {
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

/// A lookup that must read the disk. Other lookups for the same record wait for the outcome.
pub(crate) struct ReadRequest {
    pub(crate) wanted: LookupTarget,
    pub(crate) located: Located,
    /// Number of times that this request has waited for a run that was being read.
    pub(crate) waits: u32,
    pub(crate) in_flight: Arc<InFlightRead>,
    pub(crate) promise: Promise<Found>,
}

impl ReadRequest {
    pub(crate) fn new(shard: &mut Shard, wanted: LookupTarget, located: Located) -> Self {
        let (promise, outcome) = promise();
        let in_flight = Arc::new(InFlightRead {
            outcome,
            stale: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            request: Mutex::new(None),
        });
        shard.in_flight.insert(wanted.key, Arc::clone(&in_flight));
        Self {
            wanted,
            located,
            waits: 0,
            in_flight,
            promise,
        }
    }

    pub(crate) fn outcome(&self) -> Outcome<Found> {
        self.in_flight.outcome.clone()
    }
}

/// A put, or an update of metadata, in progress. The version is drawn and the name is known.
pub(crate) struct PutToken {
    pub(crate) version: Version,
    pub(crate) is_update: bool,
    /// Set if there was a newer put or a remove.
    pub(crate) superseded: AtomicBool,
    /// Set if there was another update of the same version.
    outrun: AtomicBool,
}

/// The puts and updates in progress under the names of a shard. They have a separate lock, so that
/// a thread that starts or finishes a put does not make lookups wait.
///
/// Versions are drawn under this lock. So a remove that draws a version before it takes the lock
/// finds every put with a lower version here.
#[derive(Default)]
pub(crate) struct PutsInProgress(Mutex<KeyMap<PutsOfKey>>);

/// The puts in progress for a key. Two clients seldom put the same name at the same time.
type PutsOfKey = SmallVec<[Arc<PutToken>; 1]>;

impl PutsInProgress {
    fn lock(&self) -> MutexGuard<'_, KeyMap<PutsOfKey>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Registers a put or an update, with the version that `drawn` returns.
    pub(crate) fn begin(
        &self,
        key: KeyHash,
        is_update: bool,
        drawn: impl FnOnce() -> Version,
    ) -> Arc<PutToken> {
        let mut of_keys = self.lock();
        let token = Arc::new(PutToken {
            version: drawn(),
            is_update,
            superseded: AtomicBool::new(false),
            outrun: AtomicBool::new(false),
        });
        of_keys.entry(key).or_default().push(Arc::clone(&token));
        token
    }

    pub(crate) fn end(&self, key: KeyHash, token: &Arc<PutToken>) {
        let mut of_keys = self.lock();
        if let Some(all) = of_keys.get_mut(&key) {
            all.retain(|other| !Arc::ptr_eq(other, token));
            if all.is_empty() {
                of_keys.remove(&key);
            }
        }
    }

    /// The lowest version among the puts in progress and the objects with a metadata update in
    /// progress.
    pub(crate) fn oldest(&self) -> Option<Version> {
        let of_keys = self.lock();
        let all = of_keys.values().flatten();
        all.map(|token| token.version).min()
    }
}

/// The state that the lock of a shard guards.
pub(crate) struct Shard {
    pub(crate) policy: ShardPolicy,
    pub(crate) pending: KeyMap<Arc<Pending>>,
    pub(crate) in_flight: KeyMap<Arc<InFlightRead>>,
    pub(crate) puts: Arc<PutsInProgress>,
    /// Removes that the Disk Table does not show yet: no older version may be found.
    pub(crate) removing: KeyMap<Version>,
    /// Removes for which `removing` had no memory.
    pub(crate) hidden: HiddenRanges,
}

impl Shard {
    pub(crate) fn new(policy: ShardPolicy) -> Self {
        Self {
            policy,
            pending: KeyMap::default(),
            in_flight: KeyMap::default(),
            puts: Arc::default(),
            removing: KeyMap::default(),
            hidden: HiddenRanges::default(),
        }
    }

    /// Returns true if records of `key` on disk must be ignored, because the disk does not show a
    /// remove yet.
    pub(crate) fn is_removing(&self, key: KeyHash) -> bool {
        self.removing.contains_key(&key) || self.hidden.hides(key)
    }

    /// Returns true if the update of `token` may proceed: no other update of this version came
    /// since it started, and the put of this version is over (a put would overwrite the update). In
    /// that case other updates in progress must not proceed, because the metadata that they have
    /// read has changed.
    pub(crate) fn outruns(&mut self, key: KeyHash, token: &Arc<PutToken>) -> bool {
        let all = self.puts.lock();
        let of_version = |other: &&Arc<PutToken>| other.version == token.version;
        let others = || all.get(&key).into_iter().flatten().filter(of_version);
        if token.outrun.load(Ordering::Acquire) || others().any(|other| !other.is_update) {
            return false;
        }
        for other in others().filter(|other| !Arc::ptr_eq(other, token)) {
            other.outrun.store(true, Ordering::Release);
        }
        true
    }

    /// After this call no version of `key` older than `version` is found, kept or put. Returns the
    /// record that this drops, to be dropped without the lock.
    #[must_use]
    pub(crate) fn supersede(&mut self, key: KeyHash, version: Version) -> Option<Arc<Pending>> {
        for token in self.puts.lock().get(&key).into_iter().flatten() {
            if token.version < version {
                token.superseded.store(true, Ordering::Release);
            }
        }
        if let Some(in_flight) = self.in_flight.remove(&key) {
            in_flight.stale.store(true, Ordering::Release);
        }
        let older = |pending: &Arc<Pending>| pending.record.fields.version < version;
        if !self.pending.get(&key).is_some_and(older) {
            return None;
        }
        let dropped = self.pending.remove(&key)?;
        dropped.supersede();
        Some(dropped)
    }

    /// Marks a read of `key` as outdated, because the slot for `key` is cleared, or because a ban
    /// on it will be forgotten.
    pub(crate) fn cleared(&mut self, key: KeyHash) {
        if let Some(in_flight) = self.in_flight.remove(&key) {
            in_flight.gone.store(true, Ordering::Release);
        }
    }

    /// Removes `in_flight`, which is over, so that later lookups do not join it.
    pub(crate) fn end_read(&mut self, key: KeyHash, in_flight: &Arc<InFlightRead>) {
        let current = self
            .in_flight
            .get(&key)
            .is_some_and(|it| Arc::ptr_eq(it, in_flight));
        if current {
            self.in_flight.remove(&key);
        }
    }

    /// Makes `pending` the record of its key, unless a newer record is pending. Returns the record
    /// that it replaces, to be dropped without the lock.
    pub(crate) fn put(&mut self, pending: Arc<Pending>) -> Result<Option<Arc<Pending>>, ()> {
        let key = pending.record.fields.key;
        if self
            .pending
            .get(&key)
            .is_some_and(|other| other.age() > pending.age())
        {
            return Err(());
        }
        if let Some(in_flight) = self.in_flight.remove(&key) {
            in_flight.stale.store(true, Ordering::Release);
        }
        let old = self.pending.insert(key, pending);
        if let Some(old) = &old {
            old.supersede();
        }
        Ok(old)
    }

    /// Removes `pending` after it was written. Returns false if it was superseded meanwhile.
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

    /// Drops all pending records, because the writer will not write any more. Returns them, to be
    /// dropped without the lock.
    #[must_use]
    pub(crate) fn abandon(&mut self) -> Vec<Arc<Pending>> {
        let dropped: Vec<_> = self.pending.drain().map(|(_, pending)| pending).collect();
        for pending in &dropped {
            pending.supersede();
        }
        dropped
    }
}
