//! The public interface: open, get, put, remove.
//!
//! Joins the layers below. The only state here is the map of fetches in progress (`fetch_once`).
//! `read` serves a hit, `write` takes a put, `follow` reads a put in progress; `many` looks up in
//! batches; `scan` lists marks; `peek` and `walk` show operators which objects are stored.
//!
//! Called by embedders; calls `store` to open, `stripe` to look up and put, `write_queue` to
//! remove.
//! Cost: a hit in memory takes one lock and one map lookup.

mod fetch_once;
mod follow;
mod many;
mod peek;
mod read;
mod remove;
mod scan;
mod walk;
mod write;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use fetch_once::{Answer, FetchError, Fetched, GetOrFetch};
pub use follow::{Follower, Stream};
pub use read::{Hit, Paid, Payer, Reader};
pub use remove::Remove;
pub use scan::{Scan, ScanStep};
pub use walk::{Walk, WalkStep, WalkedObject};
pub use write::{HourChange, Intent, Keep, Put, Update, Writer};

use crate::bans;
use crate::bans::{Ban, Label};
use crate::completion::{Outcome, OutcomePart, parts};
use crate::config::Config;
use crate::error::{OpenError, PutError};
use crate::format::Family;
use crate::key::{KeyHash, Secret};
use crate::lanes::LaneArc;
use crate::memory::{Budget, Class, Hot, MemoryPressure, Reservation, marked};
use crate::object;
use crate::object::Version;
use crate::policy::LogPolicy;
use crate::shard::Found;
use crate::shard::LookupTarget;
use crate::shared::Shared;
use crate::stats::{BusyCounter, Counter, Counters, Health, Stats};
use crate::store;
use crate::stripe::{Deferred, Recalled, Stripe, StripeLookup};
use crate::write_queue::{Queue, Removal, RemovalDone, Removing};

/// An open cache. Clones share it; dropping the last clone closes it.
#[derive(Clone)]
pub struct Cache {
    /// Every hit keeps its cache open. With a single reference count, all processors would write to
    /// the same cache line for every answer from memory, and two processors would answer little
    /// more than one. Therefore each lane counts its own hits.
    inner: LaneArc<Inner>,
}

struct Inner {
    /// One stripe a device.
    stripes: Vec<Arc<Stripe>>,
    shared: Arc<Shared>,
    writers: std::sync::Mutex<Vec<store::WriterThread>>,
    shared_fetches: fetch_once::SharedFetches,
    /// Held while a ban is put in force.
    bans: std::sync::Mutex<()>,
    /// Gives memory back to other processes until the cache is dropped.
    _memory_pressure: MemoryPressure,
    closed: std::sync::atomic::AtomicBool,
}

impl Inner {
    fn close(&self) {
        self.closed
            .store(true, std::sync::atomic::Ordering::Release);
        let close = |stripe: &Arc<Stripe>| stripe.queue.close(stripe.medium.clock.monotone());
        self.stripes.iter().for_each(close);
        let writers = {
            let mut writers = self.writers.lock().expect("no holder of this lock panics");
            std::mem::take(&mut *writers)
        };
        let own = std::thread::current().id();
        let others = writers.into_iter().filter(|it| it.thread().id() != own);
        let closed = others.filter_map(|it| it.join().ok().flatten()).collect();
        store::tell_closed(&self.stripes, closed);
        for stripe in &self.stripes {
            // The ring first, because the pool may still answer its completed reads.
            if let Some(ring) = &stripe.ring {
                ring.close();
            }
            stripe.pool.close();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Cache {
    /// Opens the store of `config`, or creates it if there is none yet.
    ///
    /// Waits for the index for at most `config.open_patience`. After that, an object that is not
    /// known yet is a miss until it is.
    ///
    /// # Errors
    /// See [`OpenError`]; in that case nothing on disk is changed.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let store::OpenStore {
            shared,
            stripes,
            writers,
            memory_pressure,
        } = store::start(&config)?;
        let writers = std::sync::Mutex::new(writers);
        let closed = std::sync::atomic::AtomicBool::new(false);
        let inner = LaneArc::new(Inner {
            stripes,
            shared,
            writers,
            shared_fetches: fetch_once::SharedFetches::default(),
            bans: std::sync::Mutex::default(),
            _memory_pressure: memory_pressure,
            closed,
        });
        Ok(Self { inner })
    }

    /// Every reason for which [`Cache::open`] would fail with `config`, as far as it can be found
    /// without opening or creating anything. A device that another process has open is not
    /// reported, because this function is meant to run beside a store that is in use.
    pub fn preflight(config: &Config) -> Vec<OpenError> {
        store::preflight(config)
    }

    /// Writes pending objects, saves the index and releases the device. Blocks until that is done.
    /// Other handles stay usable but store nothing any more.
    pub fn close(self) {
        self.inner.close();
    }

    /// A clone for the result of a lookup. Threads that look up at the same time use different
    /// reference counts.
    fn of_this_thread(&self) -> Self {
        Self {
            inner: self.inner.of_this_thread(),
        }
    }

    /// The stripe for `key`, the hash of a name. It also has the object's spans.
    fn stripe(&self, key: KeyHash) -> &Arc<Stripe> {
        &self.inner.stripes[self.shared().members.owner(key)]
    }

    /// State that all stripes share.
    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    fn secret(&self) -> &Secret {
        &self.shared().secret
    }

    fn budget(&self) -> &Budget {
        &self.shared().budget
    }

    /// The part of the budget that pending writes may take.
    fn write_budget(&self) -> &Budget {
        &self.shared().write_budget
    }

    /// The first device, for tests of lower layers.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn first_stripe(&self) -> &Arc<Stripe> {
        &self.inner.stripes[0]
    }

    fn hot(&self) -> &Arc<Hot> {
        &self.shared().hot
    }

    /// Counters for events that belong to no particular device.
    fn counters(&self) -> &Counters {
        &self.shared().counters
    }

    /// A version that is higher than all versions drawn before, in this run or another.
    pub fn next_version(&self) -> Version {
        self.shared().members.draw_version()
    }

    /// Looks up an object. Costs no disk access if memory knows the answer; the disk is read when
    /// the answer is first waited for, see [`PendingLookup`].
    ///
    /// The answer can be awaited, waited for by blocking ([`Lookup::wait`]) or matched:
    ///
    /// ```
    /// # use hashcache::{Cache, Config, Put};
    /// async fn content_type(cache: &Cache, name: &[u8]) -> Option<Vec<u8>> {
    ///     let hit = cache.get(name).await?;
    ///     Some(hit.metadata().to_vec())
    /// }
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # let device = hashcache::device::MemoryDevice::new(16 << 20);
    /// # let mut config = Config::on_device(std::sync::Arc::new(device));
    /// # config.memory_bytes = 16 << 20;
    /// # let cache = Cache::open(config).unwrap();
    /// # cache.put(b"page", Put::metadata(&b"text/html"[..]), b"content").unwrap();
    /// # let answer = pin!(content_type(&cache, b"page"));
    /// # let answer = answer.poll(&mut Context::from_waker(Waker::noop()));
    /// # assert_eq!(answer, Poll::Ready(Some(b"text/html".to_vec())));
    /// ```
    pub fn get(&self, name: &[u8]) -> Lookup {
        if name.is_empty() || name.len() > object::MAX_NAME {
            return Lookup::Miss;
        }
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        match stripe.recall_head(key, name) {
            Recalled::Found(record) => {
                return Lookup::Hit(Hit::new(self.of_this_thread(), record));
            }
            Recalled::Nothing => return Lookup::Miss,
            Recalled::Unsure => {}
        }
        let name = Bytes::copy_from_slice(name);
        let wanted = LookupTarget {
            key,
            name,
            span: None,
            expect: 0,
        };
        match stripe.lookup(wanted) {
            StripeLookup::Found(record) => Lookup::Hit(Hit::new(self.of_this_thread(), record)),
            StripeLookup::Nothing => Lookup::Miss,
            StripeLookup::Asked(outcome) => Lookup::Pending(PendingLookup {
                cache: self.clone(),
                answer: Awaited::Asked(outcome),
            }),
            StripeLookup::Deferred(deferred) => Lookup::Pending(PendingLookup {
                cache: self.clone(),
                answer: Awaited::Deferred(deferred),
            }),
        }
    }

    /// The object, if its head is hot. The content may be on disk: see [`Hit::content_in_memory`],
    /// which also counts the hit. Never reads the disk and starts no read. Callers that have a
    /// shorter path for answers from memory call this first, and [`Cache::get`] after `None`.
    pub fn get_hot(&self, name: &[u8]) -> Option<Hit> {
        if name.is_empty() || name.len() > object::MAX_NAME {
            return None;
        }
        let key = self.secret().name(name);
        let record = self.stripe(key).hot_head_uncounted(key, name)?;
        Some(Hit::new(self.of_this_thread(), record))
    }

    /// Returns true if the object may be stored, using only memory. A policy without an index
    /// returns true.
    pub fn contains_hint(&self, name: &[u8]) -> bool {
        let key = self.secret().name(name);
        self.stripe(key).contains_hint(key)
    }

    /// Declares that a put of `name` starts, and draws its version, so that an object that is put
    /// or removed after this call is newer. Call it when the work for the content starts, for
    /// example before sending the request for it.
    pub fn intend(&self, name: &[u8]) -> Result<Intent, PutError> {
        Intent::new(self, name)
    }

    /// Puts a whole object.
    ///
    /// # Errors
    /// [`PutError::Full`] if there is no memory for more pending writes; the object is then not
    /// put.
    pub fn put(&self, name: &[u8], put: Put, content: &[u8]) -> Result<Version, PutError> {
        let length = content.len() as u64;
        let mut writer = self.intend(name)?.writer(Put {
            length: Some(length),
            ..put
        })?;
        writer.write(content)?;
        writer.commit()
    }

    /// Gives an object new metadata, if it still has the version `expected`. The content is not
    /// changed: at most its first page is written again.
    pub fn update_metadata(
        &self,
        name: &[u8],
        expected: Version,
        metadata: Bytes,
    ) -> Outcome<Updated> {
        self.update(name, expected, Update::metadata(metadata))
    }

    /// As [`Cache::update_metadata`], for a caller that has validated the object: it was right as
    /// of `confirmed`, a version drawn ([`Cache::next_version`]) before validation started. An
    /// earlier soft ban no longer makes the object stale.
    pub fn confirm_metadata(
        &self,
        name: &[u8],
        expected: Version,
        confirmed: Version,
        metadata: Bytes,
    ) -> Outcome<Updated> {
        let update = Update {
            confirmed: Some(confirmed),
            ..Update::metadata(metadata)
        };
        self.update(name, expected, update)
    }

    /// As [`Cache::update_metadata`], with all fields that an update can change. The mark and the
    /// other fields of the put stay.
    pub fn update(&self, name: &[u8], expected: Version, update: Update) -> Outcome<Updated> {
        write::update(self, name, expected, update)
    }

    /// A label, to put objects with and to remove them by.
    pub fn label(&self, label: &[u8]) -> Label {
        Label(self.secret().label(label))
    }

    /// Removes all objects that one of `bans` matches, or makes them stale. After the call, no
    /// matching object is served (as fresh) if it was put, or its put was started, before the call;
    /// later puts are not affected. The future resolves when that holds even after a power failure.
    ///
    /// Costs two writes of at most 132 KiB for all calls that wait, however many objects are
    /// stored, and a remove for each object with a matching label, if that object is not on disk
    /// yet. There are at most 4,096 bans (fewer in stores below 256 MiB: 127 for each 4 MiB); above
    /// that, bans become wider, see [`Ban::within`].
    pub fn remove_matching(&self, bans: &[Ban]) -> Remove {
        let inner = &*self.inner;
        // Before the lock, because hot objects may have to make room.
        let reserve = |_: &_| bans::reserve(bans.len(), self.budget());
        let mut reserved: Vec<_> = inner.stripes.iter().map(reserve).collect();
        // One call at a time, so that bans reach each device in the order of their versions.
        let turn = marked(inner.bans.lock().expect("no holder of this lock panics"));
        let version = self.next_version();
        let lines: Vec<_> = bans
            .iter()
            .map(|it| it.line(self.secret(), version))
            .collect();
        self.counters().bans.add(lines.len() as u64);
        // Skip devices that have failed and are left out: nothing stored on them counts.
        let live = |(n, _): &(usize, _)| inner.shared.members.is_live(*n);
        let stripes = inner.stripes.iter().enumerate().filter(live);
        let stripes: Vec<_> = stripes.map(|(_, stripe)| stripe).collect();
        for (stripe, reserved) in stripes.iter().zip(reserved.drain(..)) {
            stripe.bans.add_with(&lines, reserved);
        }
        drop(turn);
        let (parts, outcome) = parts(stripes.len());
        for (stripe, part) in stripes.into_iter().zip(parts) {
            let (removed, behind_pending) = stripe.remove_barred();
            // A name takes less memory than the pending record that it replaces.
            let name = |removed| Removal::uncounted(Removing::Name(removed), None);
            // After the names, so the names are durable when the bans are.
            let bans = Removal::uncounted(
                Removing::Bans { behind_pending },
                Some(RemovalDone::Part(part)),
            );
            // All in one call, so that one sync can cover tens of thousands.
            let names = removed.into_iter().map(name);
            stripe.queue.push_removals(names.chain([bans]).collect());
        }
        Remove::queued(outcome)
    }

    /// Removes an object. After the call no version put before it is served; the future resolves
    /// when that holds even after a power failure.
    ///
    /// Removes that are not durable yet take memory, at most a sixteenth of the budget. If that is
    /// used up, the future waits in a queue; until then policies with a Disk Table serve older
    /// versions. If the future is dropped before that, the object is removed as
    /// [`Cache::invalidate`] does.
    pub fn remove(&self, name: &[u8]) -> Remove {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        Remove::new(stripe, key)
    }

    /// As [`Cache::remove`], for a caller that does not wait: costs no write if memory knows that
    /// the object is not stored. An object that the index has lost may then return after a crash.
    ///
    /// Never blocks. If removes have used up their share of memory, the object may return after a
    /// crash, and policies with a Disk Table also forget the objects in a range of keys: one of
    /// 262,144 ranges, or one set if a store has fewer. Policies with a log forget 1/64 of all
    /// objects instead, but only before recovery is over. So a caller that has many names to remove
    /// and can wait uses [`Cache::remove`].
    pub fn invalidate(&self, name: &[u8]) {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        remove::invalidate(stripe, key);
    }

    /// As [`Cache::invalidate`], for a caller that may wait until the remove is durable. `None` if
    /// there is nothing to wait for: memory knows that the object is not stored. If removes have
    /// used up three quarters of their share of memory, the future resolves when half of them are
    /// durable, and the object may return after a crash: a caller that waits then leaves room to
    /// others.
    pub fn invalidation(&self, name: &[u8]) -> Option<Remove> {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        remove::invalidation(stripe, key)
    }

    /// Number of bans in force, on the device that has most bans: at most [`crate::MAX_BANS`].
    pub fn bans(&self) -> usize {
        let counts = self.inner.stripes.iter().map(|it| it.bans.count());
        counts.max().unwrap_or(0)
    }

    /// Number of bans in force for each entry in `prefixes`: the bans within it
    /// ([`crate::Ban::within`]), on the device that has most. Looks at all bans.
    pub fn bans_within(&self, prefixes: &[&[u8]]) -> Vec<usize> {
        let mut most = vec![0; prefixes.len()];
        for stripe in &self.inner.stripes {
            let counts = stripe.bans.count_within(prefixes);
            most.iter_mut()
                .zip(counts)
                .for_each(|(most, count)| *most = count.max(*most));
        }
        most
    }

    /// Number of bans that are possible before they become wider, on the device that takes fewest:
    /// see [`Cache::remove_matching`].
    pub fn bans_max(&self) -> usize {
        let most = self.inner.stripes.iter().map(|it| it.bans.most());
        most.min().unwrap_or(0)
    }

    /// Writes all pending objects and makes them durable. The outcome is true if that worked.
    pub fn flush(&self) -> Outcome<bool> {
        self.write(Queue::push_flush)
    }

    /// Writes a batch with the objects that are pending now, as when the batch delay is over:
    /// records that wait for others of their page group keep waiting, and nothing is made durable.
    /// For callers with a manual clock, because the engine's threads cannot sleep by it.
    pub fn cut_batch(&self) -> Outcome<bool> {
        self.write(Queue::push_cut)
    }

    fn write(&self, push: fn(&Queue, OutcomePart)) -> Outcome<bool> {
        let in_service = |it: &&Arc<Stripe>| it.health() != Health::OutOfService;
        let stripes: Vec<_> = self.inner.stripes.iter().filter(in_service).collect();
        let ask = |stripes: &[&Arc<Stripe>]| {
            let (parts, outcome) = parts(stripes.len());
            for (stripe, part) in stripes.iter().zip(parts) {
                push(&stripe.queue, part);
            }
            outcome
        };
        if stripes.is_empty() {
            Outcome::ready(false)
        } else if self.shared().clock.is_manual() {
            // In a simulation one device after the other: all devices copy written records to the
            // same memory, and the order decides which objects leave it.
            let ask_one = |all_good: bool, stripe| ask(&[stripe]).wait() && all_good;
            Outcome::ready(stripes.iter().copied().fold(true, ask_one))
        } else {
            ask(&stripes)
        }
    }

    /// Returns true if [`Cache::close`] has started. A remove that returned before that holds after
    /// the next opening, if the device works; a later remove may not, so its caller must check this
    /// afterwards.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Reserves memory from the cache's budget, for data that the embedder holds for the cache.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.budget().reserve(bytes)
    }

    /// As [`Cache::reserve`], for memory that a slow or hostile peer may make the embedder hold for
    /// a long time: such memory and the content of transfers together take at most three quarters
    /// of the budget.
    pub fn reserve_bulk(&self, bytes: u64) -> Option<Reservation> {
        self.budget().reserve_as(Class::Bulk, bytes)
    }

    /// As [`Cache::reserve_bulk`], for memory that only makes the embedder faster: `None` as soon
    /// as half of the budget is used by memory that hot objects cannot give back.
    pub fn reserve_spare(&self, bytes: u64) -> Option<Reservation> {
        let roomy = self.shared().available_bytes() > self.budget().reservable() / 2;
        roomy.then(|| self.reserve_bulk(bytes)).flatten()
    }

    /// Returns the state of the store. A store that has lost only some of its devices is in
    /// service.
    pub fn health(&self) -> Health {
        let stripes = || self.inner.stripes.iter().map(|stripe| stripe.health());
        match stripes().find(|it| *it == Health::Recovering) {
            Some(recovering) => recovering,
            None if stripes().all(|it| it == Health::OutOfService) => Health::OutOfService,
            None => Health::InService,
        }
    }

    /// Amounts that are stored and counts of events. Costs a walk over the index.
    pub fn stats(&self) -> Stats {
        let stripes = &self.inner.stripes;
        let (mut entries, mut early_evictions) = (0, 0);
        for shard in stripes.iter().flat_map(|stripe| stripe.views()) {
            entries += shard.policy.entries();
            let log = shard.policy.log();
            early_evictions += log.map_or(0, LogPolicy::early_evictions);
        }
        let sum = |of: fn(&Stripe) -> u64| stripes.iter().map(|stripe| of(stripe)).sum::<u64>();
        let counters = || {
            let of_stripes = stripes.iter().map(|it| &it.medium.counters);
            of_stripes.chain([&self.shared().counters])
        };
        let count =
            |of: fn(&Counters) -> &Counter| counters().map(|it| of(it).value()).sum::<u64>();
        let busy =
            |of: fn(&Counters) -> &BusyCounter| counters().map(|it| of(it).value()).sum::<u64>();
        let repeated_group_reads = count(|it| &it.repeated_group_reads);
        Stats {
            health: self.health(),
            devices: stripes.len() as u64,
            devices_out: sum(|it| u64::from(it.health() == Health::OutOfService)),
            devices_uring: sum(|it| u64::from(it.ring.is_some())),
            entries,
            live_entries: sum(|it| it.live_entries()),
            entries_exact: stripes
                .iter()
                .all(|it| it.medium.geometry.family == Family::Log),
            early_evictions,
            device_bytes: sum(|it| it.medium.geometry.device_bytes),
            device_bytes_min: stripes
                .iter()
                .map(|it| it.medium.geometry.device_bytes)
                .min()
                .unwrap_or(0),
            log_bytes: sum(|it| {
                it.medium.geometry.segments * u64::from(it.medium.geometry.segment_bytes)
            }),
            index_bytes: sum(|it| it.index.shape.bytes()),
            index_slots: sum(|it| it.medium.geometry.slots()),
            hot_bytes: self.hot().bytes(),
            pending_bytes: sum(|it| it.queue.bytes() as u64),
            memory_used_bytes: self.budget().used(),
            memory_limit_bytes: self.budget().limit(),
            memory_aside_bytes: self.budget().aside(),
            hot_hits: self.hot().hits(),
            pending_hits: busy(|it| &it.pending_hits),
            disk_hits: count(|it| &it.disk_hits),
            misses: busy(|it| &it.misses),
            joined_reads: busy(|it| &it.joined_reads),
            group_reads: repeated_group_reads + count(|it| &it.first_group_reads),
            repeated_group_reads,
            prefetched: count(|it| &it.prefetched),
            prefetched_present: count(|it| &it.prefetched_present),
            ungrouped_reads: count(|it| &it.ungrouped_reads),
            lone_reads: count(|it| &it.lone_reads),
            member_reads: count(|it| &it.member_reads),
            span_reads: count(|it| &it.span_reads),
            rest_reads: count(|it| &it.rest_reads),
            row_reads: count(|it| &it.row_reads),
            prefetched_dropped: self.hot().prefetched_dropped(),
            readmitted: count(|it| &it.readmitted),
            false_reads: count(|it| &it.false_reads),
            damaged: count(|it| &it.damaged),
            read_errors: count(|it| &it.read_errors),
            no_memory: count(|it| &it.no_memory),
            puts: count(|it| &it.puts),
            puts_refused: count(|it| &it.puts_refused),
            removes: count(|it| &it.removes),
            bans_made: count(|it| &it.bans),
            bans: self.bans() as u64,
            reads: count(|it| &it.reads),
            read_bytes: count(|it| &it.read_bytes),
            writes: count(|it| &it.writes),
            written_bytes: count(|it| &it.written_bytes),
            syncs: count(|it| &it.syncs),
            batches: count(|it| &it.batches),
            checkpoints: count(|it| &it.checkpoints),
            forgotten: count(|it| &it.forgotten),
        }
    }
}

/// Result of a lookup without waiting.
pub enum Lookup {
    /// The object; its head is in memory.
    Hit(Hit),
    /// The object is not stored.
    Miss,
    /// The disk must be read.
    Pending(PendingLookup),
}

impl Lookup {
    /// Blocks until the answer is available.
    pub fn wait(self) -> Option<Hit> {
        match self {
            Self::Hit(hit) => Some(hit),
            Self::Miss => None,
            Self::Pending(pending) => pending.wait(),
        }
    }
}

impl IntoFuture for Lookup {
    type Output = Option<Hit>;
    type IntoFuture = LookupFuture;

    fn into_future(self) -> LookupFuture {
        LookupFuture(self)
    }
}

/// The future of `cache.get(name).await`; `None` is a miss. An answer from memory is ready at the
/// first poll.
#[must_use = "a future does nothing until it is polled"]
pub struct LookupFuture(Lookup);

impl Future for LookupFuture {
    type Output = Option<Hit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Hit>> {
        if let Lookup::Pending(pending) = &mut self.0 {
            return Pin::new(pending).poll(context);
        }
        Poll::Ready(std::mem::replace(&mut self.0, Lookup::Miss).wait())
    }
}

/// A lookup that waits for the disk; `None` is a miss. The disk is read when the answer is first
/// waited for: by the thread that blocks in [`PendingLookup::wait`], otherwise by the engine.
/// Dropping it abandons the wait, not the read.
pub struct PendingLookup {
    cache: Cache,
    answer: Awaited,
}

enum Awaited {
    Asked(Outcome<Found>),
    Deferred(Deferred),
    /// Only while the value is being replaced.
    Neither,
}

impl PendingLookup {
    /// Blocks until the answer is available.
    pub fn wait(self) -> Option<Hit> {
        let record = match self.answer {
            Awaited::Asked(outcome) => outcome.wait(),
            Awaited::Deferred(deferred) => deferred.wait(),
            Awaited::Neither => None,
        };
        Some(Hit::new(self.cache, record?))
    }

    /// Makes the engine read the disk now.
    fn begin(&mut self) {
        if !matches!(self.answer, Awaited::Deferred(_)) {
            return;
        }
        let deferred = std::mem::replace(&mut self.answer, Awaited::Neither);
        if let Awaited::Deferred(deferred) = deferred {
            self.answer = Awaited::Asked(deferred.begin());
        }
    }
}

impl Future for PendingLookup {
    type Output = Option<Hit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Hit>> {
        self.begin();
        let Awaited::Asked(outcome) = &mut self.answer else {
            return Poll::Ready(None);
        };
        let found = Pin::new(outcome).poll(context);
        found.map(|found| Some(Hit::new(self.cache.clone(), found?)))
    }
}

/// Result of a metadata update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updated {
    /// The object has the new metadata.
    Done,
    /// The object is not stored any more, or has another version: nothing was changed.
    #[default]
    Gone,
    /// The metadata is too long, there was no memory, or another update or the put itself is in
    /// progress: nothing was changed.
    Refused,
}

#[cfg(all(test, not(loom)))]
mod tests;
