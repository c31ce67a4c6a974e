//! A stripe: the table and log of one device with everything in memory that belongs to them.
//!
//! `cache` asks it for records, `flush` writes for it, `recover` fills it. Here a look-up is
//! answered: hot, then pending, then the policy, then the disk.
//!
//! Invariant: bytes leave only after MAC, name, version and page checksums were verified, and the
//! head had not passed them when the read was complete.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use crate::circular_log::LogMap;
use crate::clock::Clock;
use crate::completion::{Outcome, promise};
use crate::config::Geometry;
use crate::device::Device;
use crate::disk_table;
use crate::flush::Queue;
use crate::format::{Family, Kind, Prelude};
use crate::io::Pool;
use crate::key::{KeyHash, Secret};
use crate::memory::{AlignedBuf, Budget, Hot};
use crate::object::Version;
use crate::policy::{Candidates, Located, LogPos, SetId};
use crate::record::Record;
use crate::shard::{Begun, Found, Pending, Reading, Shard};
use crate::stats::{Counters, Health};

/// First read of a record whose length is not known: 86 % of web objects are no longer.
const FIRST_READ: usize = 16 << 10;
/// How long a read waits for memory before it gives up and is a miss.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);
/// After this many refused reads in a row the device counts as failed.
const READ_ERRORS_MAX: u64 = 8;

const RECOVERING: u8 = 0;
const IN_SERVICE: u8 = 1;
const OUT_OF_SERVICE: u8 = 2;

/// See the module's head.
pub(crate) struct Stripe {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) device_id: u16,
    pub(crate) geometry: Geometry,
    pub(crate) secret: Secret,
    pub(crate) log: LogMap,
    pub(crate) budget: Budget,
    /// The part of it that pending writes may take.
    pub(crate) write_budget: Budget,
    pub(crate) hot: Arc<Hot>,
    pub(crate) queue: Queue,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    pub(crate) next_version: AtomicU64,
    shards: Vec<Mutex<Shard>>,
    health: AtomicU8,
    read_errors_in_row: AtomicU64,
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
    fn is(&self, record: &Record) -> bool {
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

/// An answer from memory, or the read that will give one.
pub(crate) enum Lookup {
    /// It is in memory.
    Found(Arc<Record>),
    /// Memory knows that it is not stored.
    Nothing,
    /// The disk is being asked.
    Asked(Outcome<Found>),
}

/// What became of a record that is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is found from now on.
    Yes,
    /// A newer put or a remove came first.
    Superseded,
    /// An update of metadata met another one, or the put it belongs to, still under way.
    Busy,
    /// The store has failed or is closed.
    OutOfService,
}

/// What one read of one place came to.
pub(crate) enum Read {
    /// A genuine record.
    Record(Box<Record>),
    /// What was there does not verify.
    Damaged,
    /// The log's head has passed it.
    Passed,
    /// The device refused, or there was no memory.
    Failed,
}

/// The parts a stripe is made of.
pub(crate) struct Parts {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) device_id: u16,
    pub(crate) geometry: Geometry,
    pub(crate) secret: Secret,
    pub(crate) budget: Budget,
    pub(crate) hot: Arc<Hot>,
    pub(crate) queue: Queue,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    pub(crate) next_version: u64,
    pub(crate) shards: Vec<Shard>,
}

impl Stripe {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            log: LogMap::new(&parts.geometry, parts.device_id),
            device: parts.device,
            device_id: parts.device_id,
            geometry: parts.geometry,
            secret: parts.secret,
            write_budget: Budget::new(parts.budget.limit() / 2),
            budget: parts.budget,
            hot: parts.hot,
            queue: parts.queue,
            counters: Counters::default(),
            clock: parts.clock,
            pool: parts.pool,
            next_version: AtomicU64::new(parts.next_version),
            shards: parts.shards.into_iter().map(Mutex::new).collect(),
            health: AtomicU8::new(RECOVERING),
            read_errors_in_row: AtomicU64::new(0),
        }
    }

    pub(crate) fn shard(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        self.shards[key.shard()]
            .lock()
            .expect("no holder of this lock panics")
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards
            .iter()
            .map(|shard| shard.lock().expect("no holder of this lock panics"))
    }

    pub(crate) fn draw_version(&self) -> Version {
        Version(self.next_version.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.next_version.load(Ordering::Relaxed)
    }

    /// Recovery found `version` given out.
    pub(crate) fn version_was_drawn(&self, version: u64) {
        self.next_version
            .fetch_max(version.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn health(&self) -> Health {
        match self.health.load(Ordering::Acquire) {
            RECOVERING => Health::Recovering,
            IN_SERVICE => Health::InService,
            _ => Health::OutOfService,
        }
    }

    /// The index is known. What was removed while it was not is forgotten now.
    pub(crate) fn recovered(&self) {
        for mut shard in self.shards() {
            let removing: Vec<KeyHash> = shard.removing.keys().copied().collect();
            for key in removing {
                self.forget(&mut shard, key);
            }
        }
        let from = RECOVERING;
        let _ = self
            .health
            .compare_exchange(from, IN_SERVICE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes the store out; what is in memory is still served.
    pub(crate) fn fail(&self, what: &'static str, error: &std::io::Error) {
        if self.health.swap(OUT_OF_SERVICE, Ordering::AcqRel) != OUT_OF_SERVICE {
            tracing::error!(%error, what, "store taken out of service");
            self.queue.wake();
        }
    }

    /// Drops all pending records.
    pub(crate) fn abandon(&self) {
        let mut dropped = Vec::new();
        for mut shard in self.shards() {
            dropped.append(&mut shard.abandon());
        }
    }

    /// Nothing is read or written any more; what is hot is still served.
    pub(crate) fn end(&self) {
        self.health.store(OUT_OF_SERVICE, Ordering::Release);
        self.abandon();
    }

    /// Forgets all that could be `key`; whether there was any.
    pub(crate) fn forget(&self, shard: &mut Shard, key: KeyHash) -> bool {
        shard.policy.forget_all(key, self.log.head())
    }

    /// Takes `key` away as of a version that this draws: from now on no older one is found. Also
    /// says whether anything may have been there.
    pub(crate) fn remove(&self, key: KeyHash) -> (Version, bool) {
        let mut shard = self.shard(key);
        // Drawn and forgotten under one lock: a checkpoint that begins later sees it gone.
        let version = self.draw_version();
        let dropped = shard.supersede(key, version);
        self.hot.remove(key);
        // Both: a pending record may have an older version on disk.
        let known = self.forget(&mut shard, key) | dropped.is_some();
        // What the policy cannot forget is masked until the remove is on disk. (The index of the
        // log family is not known yet during recovery, `recovered` forgets again.)
        let masked = match self.health() {
            Health::InService => self.geometry.family == Family::Table,
            Health::Recovering => true,
            Health::OutOfService => false,
        };
        if masked {
            shard.removing.insert(key, version);
        }
        drop(shard);
        drop(dropped);
        (version, known || masked)
    }

    /// The head of `name`, if it is hot: the shortest way an answer can take.
    pub(crate) fn hot_head(&self, key: KeyHash, name: &[u8]) -> Option<Arc<Record>> {
        let record = self.hot.get(key)?;
        let right = record.fields.kind == Kind::Head && record.name == name;
        right.then(|| {
            self.counters.hot_hits.add(1);
            record
        })
    }

    /// Answers from memory what memory can answer, and has the disk asked otherwise.
    pub(crate) fn lookup(self: &Arc<Self>, wanted: Wanted) -> Lookup {
        let mut shard = self.shard(wanted.key);
        // Under the lock, even if the caller has looked without it: meanwhile the record may have
        // moved from pending to hot.
        if let Some(record) = self.hot.get(wanted.key)
            && wanted.is(&record)
        {
            self.counters.hot_hits.add(1);
            return Lookup::Found(record);
        }
        if let Some(pending) = shard.pending.get(&wanted.key) {
            if wanted.is(&pending.record) {
                pending.asked_for.store(true, Ordering::Relaxed);
                self.counters.pending_hits.add(1);
                return Lookup::Found(Arc::clone(&pending.record));
            }
            return Lookup::Nothing;
        }
        if let Some(reading) = shard.reading.get(&wanted.key) {
            self.counters.joined_reads.add(1);
            return Lookup::Asked(reading.outcome.clone());
        }
        let located = match self.health() {
            Health::InService => shard.policy.locate(wanted.key, self.log.head()),
            _ => Located::Nowhere,
        };
        if located == Located::Nowhere || shard.removing.contains_key(&wanted.key) {
            self.counters.misses.add(1);
            return Lookup::Nothing;
        }
        let (promise, outcome) = promise();
        let reading = Arc::new(Reading {
            outcome: outcome.clone(),
            stale: AtomicBool::new(false),
        });
        shard.reading.insert(wanted.key, Arc::clone(&reading));
        drop(shard);
        let stripe = Arc::clone(self);
        self.pool.run(move || {
            let found = stripe.find(&wanted, located);
            promise.set(stripe.found(&wanted, found, &reading));
        });
        Lookup::Asked(outcome)
    }

    /// Makes `pending` the newest record of its name and has it written, unless something came
    /// first.
    pub(crate) fn put_head(&self, pending: &Arc<Pending>, begun: &Arc<Begun>) -> Accepted {
        let fields = &pending.record.fields;
        let mut shard = self.shard(fields.key);
        if self.health() == Health::OutOfService {
            return Accepted::OutOfService;
        }
        if begun.superseded.load(Ordering::Acquire) {
            return Accepted::Superseded;
        }
        if begun.is_update && !shard.outruns(fields.key, begun) {
            return Accepted::Busy;
        }
        let older = shard.supersede(fields.key, fields.version);
        let Ok(other) = shard.put(Arc::clone(pending)) else {
            return Accepted::Superseded;
        };
        self.hot.remove(fields.key);
        drop(shard);
        drop((older, other));
        self.push(pending);
        Accepted::Yes
    }

    /// Has a span written. Until then it is served from memory.
    pub(crate) fn put_span(&self, pending: &Arc<Pending>) -> Accepted {
        let key = pending.record.fields.key;
        let mut shard = self.shard(key);
        if self.health() == Health::OutOfService {
            return Accepted::OutOfService;
        }
        let Ok(other) = shard.put(Arc::clone(pending)) else {
            return Accepted::Superseded;
        };
        self.hot.remove(key);
        drop(shard);
        drop(other);
        self.push(pending);
        Accepted::Yes
    }

    fn push(&self, pending: &Arc<Pending>) {
        self.counters.puts.add(1);
        self.queue.push(Arc::clone(pending), self.clock.monotone());
    }

    /// Drops entries the head has passed from the rows that belong to `segment`: every row once a
    /// lap.
    pub(crate) fn sweep(&self, segment: u64) {
        let segments = self.geometry.segments;
        for mut shard in self.shards() {
            let rows = u64::from(shard.policy.rows());
            let row = |part: u64| u32::try_from(rows * part / segments).unwrap_or(u32::MAX);
            shard
                .policy
                .sweep(row(segment)..row(segment + 1), self.log.head());
        }
    }

    /// Whether the index knows of `key`; an equal tag may make it say yes in vain.
    pub(crate) fn contains_hint(&self, key: KeyHash) -> bool {
        let shard = self.shard(key);
        shard.pending.contains_key(&key)
            || (self.health() == Health::InService
                && !shard.removing.contains_key(&key)
                && shard.policy.locate(key, self.log.head()) != Located::Nowhere)
    }

    /// The end of a look-up on disk: makes the record hot if it is still the newest.
    fn found(&self, wanted: &Wanted, found: Option<Record>, reading: &Arc<Reading>) -> Found {
        let mut shard = self.shard(wanted.key);
        let current = shard
            .reading
            .get(&wanted.key)
            .is_some_and(|it| Arc::ptr_eq(it, reading));
        if current {
            shard.reading.remove(&wanted.key);
        }
        let Some(record) = found else {
            self.counters.misses.add(1);
            return None;
        };
        self.counters.disk_hits.add(1);
        if !reading.stale.load(Ordering::Acquire) {
            if let Some(at) = record.at {
                shard.policy.touch(wanted.key, at, self.log.head());
            }
            // A span of a large object is not worth the small ones it would push out.
            let whole = record.fields.total.unwrap_or(u64::MAX);
            if whole <= self.budget.limit() / 64
                && let Some(hot) = self.hot.insert(&record, record.at)
            {
                return Some(hot);
            }
        }
        Some(Arc::new(record))
    }

    fn find(&self, wanted: &Wanted, located: Located) -> Option<Record> {
        match located {
            Located::Nowhere => None,
            Located::Log(candidates) => self.find_in_log(wanted, &candidates),
            Located::Set(set) => self.find_in_table(wanted, set),
        }
    }

    fn find_in_log(&self, wanted: &Wanted, candidates: &Candidates) -> Option<Record> {
        for at in candidates.as_slice() {
            match self.read_log(*at, wanted.expect) {
                Read::Record(record) if wanted.is(&record) => return Some(*record),
                // Compare names even when the tag matches: one miss in 32 meets an equal tag, and
                // serving it would be a lie.
                Read::Record(_) => self.counters.false_reads.add(1),
                Read::Passed => {}
                Read::Damaged => {
                    // It could have been the newest version of this name: an older one must not
                    // be served in its stead, so all that could be one are forgotten.
                    self.counters.damaged.add(1);
                    self.forget_candidates(wanted.key, candidates);
                    return None;
                }
                Read::Failed => return None,
            }
        }
        None
    }

    fn forget_candidates(&self, key: KeyHash, candidates: &Candidates) {
        let mut shard = self.shard(key);
        for at in candidates.as_slice() {
            shard.policy.forget(key, *at, self.log.head());
        }
    }

    fn find_in_table(&self, wanted: &Wanted, set: SetId) -> Option<Record> {
        let slots = disk_table::read_set(self, set)?;
        let own = slots.iter().filter(|slot| slot.occupant.key == wanted.key);
        let slot = own.max_by_key(|slot| slot.occupant.version)?;
        match disk_table::read_record(self, slot) {
            Read::Record(record) => Some(*record).filter(|record| wanted.is(record)),
            Read::Damaged => {
                self.counters.damaged.add(1);
                None
            }
            Read::Passed | Read::Failed => None,
        }
    }

    /// Reads and verifies the record at a position of the log.
    pub(crate) fn read_log(&self, at: LogPos, expect: usize) -> Read {
        let Some(place) = self.log.place(at) else {
            return Read::Passed;
        };
        let (offset, left) = self.log.device_range(at);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let first = if expect == 0 {
            FIRST_READ
        } else {
            expect + 2048
        };
        let Some(mut bytes) = self.read_bytes(offset, first.min(left)) else {
            return Read::Failed;
        };
        let bad = || {
            if self.log.is_live(at) {
                Read::Damaged
            } else {
                Read::Passed
            }
        };
        let Some(prelude) = Prelude::decode(&bytes, &self.secret, place) else {
            return bad();
        };
        let whole = prelude.record_bytes();
        if whole > left {
            return bad();
        }
        if whole > bytes.len() {
            let Some(rest) = self.read_rest(offset, &bytes, whole) else {
                return Read::Failed;
            };
            bytes = rest;
        }
        let Some((metadata, content)) = prelude.body(&bytes) else {
            return bad();
        };
        if !self.log.is_live(at) {
            return Read::Passed;
        }
        Read::Record(Box::new(Record {
            fields: prelude.fields,
            name: prelude.name,
            metadata,
            content: if content.is_empty() {
                Vec::new()
            } else {
                vec![content]
            },
            at: Some(at),
        }))
    }

    /// At least `length` bytes from `offset` on; `None` when the device or the memory refuses.
    pub(crate) fn read_bytes(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer(span)?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// The first `whole` bytes from `offset` on, of which `first` are there already.
    fn read_rest(&self, offset: u64, first: &Bytes, whole: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, whole);
        let mut buffer = self.buffer(span)?;
        // What was read ends on a boundary of the device, so the rest begins on one.
        let there = skip + first.len();
        buffer[skip..there].copy_from_slice(first);
        self.fill(start + there as u64, &mut buffer[there..])?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// A read widened to the device's alignment: where it starts, bytes to skip, bytes in all.
    fn widen(&self, offset: u64, length: usize) -> (u64, usize, usize) {
        let alignment = self.device.alignment();
        let skip = usize::try_from(offset % alignment as u64).unwrap_or(0);
        (
            offset - skip as u64,
            skip,
            crate::format::round_up(skip + length, alignment),
        )
    }

    fn buffer(&self, bytes: usize) -> Option<AlignedBuf> {
        let reservation = self.budget.reserve_blocking(bytes as u64, MEMORY_PATIENCE);
        if reservation.is_none() {
            self.counters.no_memory.add(1);
        }
        Some(AlignedBuf::reserved(bytes, reservation?))
    }

    /// Reads, counting, and takes the store out when the device keeps refusing.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.counters.reads.add(1);
        self.counters.read_bytes.add(buffer.len() as u64);
        match self.device.read_at(offset, buffer) {
            Ok(()) => {
                self.read_errors_in_row.store(0, Ordering::Relaxed);
                Some(())
            }
            Err(error) => {
                self.counters.read_errors.add(1);
                let row = self.read_errors_in_row.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!(%error, offset, "read refused by the device");
                if row >= READ_ERRORS_MAX {
                    self.fail("reading", &error);
                }
                None
            }
        }
    }

    /// Writes, counting. The caller decides what an error means.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.counters.writes.add(1);
        self.counters.written_bytes.add(bytes.len() as u64);
        self.device.write_at(offset, bytes)
    }

    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.counters.syncs.add(1);
        self.device.sync()
    }
}
