//! The public interface: open, get, put, remove.
//!
//! Joins the layers below. The only state of its own is which callers fetch what (`fetch_once`).
//! `read` serves a hit, `write` takes a put, `follow` reads along with a put in progress; `many`
//! looks up in batches; `scan` lists marks; `peek` and `walk` show operators what is stored.
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

/// An open cache. Clones share it; the last one dropped closes it.
#[derive(Clone)]
pub struct Cache {
    /// Every hit keeps its cache open. Were there one count of them, all processors would write to
    /// one cache line with every answer from memory, and two of them would answer little more than
    /// one. So each lane counts its own hits.
    inner: LaneArc<Inner>,
}

struct Inner {
    /// One a device.
    stripes: Vec<Arc<Stripe>>,
    shared: Arc<Shared>,
    writers: std::sync::Mutex<Vec<store::WriterThread>>,
    shared_fetches: fetch_once::SharedFetches,
    /// Held while a ban is put in force.
    bans: std::sync::Mutex<()>,
    /// Gives memory back to others until the cache is gone.
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
            // The ring first: what it has read may be answered by the pool.
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
    /// Opens the store of `config`, or makes one where there is none yet.
    ///
    /// Waits for the index for at most `config.open_patience`; what is not known by then is a miss
    /// until it is.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing on disk is changed then.
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

    /// Every reason for which [`Cache::open`] would fail with `config` that can be known without
    /// opening or making anything. A device that another process has open is no such reason: this
    /// is meant to be asked beside a store that is being served from.
    pub fn preflight(config: &Config) -> Vec<OpenError> {
        store::preflight(config)
    }

    /// Writes what is pending, saves the index and lets go of the device. Blocks until that is
    /// done. Other handles stay usable but store nothing any more.
    pub fn close(self) {
        self.inner.close();
    }

    /// A clone for what a lookup returns. Threads that look up at the same time count theirs
    /// in different places.
    fn of_this_thread(&self) -> Self {
        Self {
            inner: self.inner.of_this_thread(),
        }
    }

    /// The stripe that `key`, the hash of a name, belongs to. It has the object's spans too.
    fn stripe(&self, key: KeyHash) -> &Arc<Stripe> {
        &self.inner.stripes[self.shared().members.owner(key)]
    }

    /// What all stripes have in common.
    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    fn secret(&self) -> &Secret {
        &self.shared().secret
    }

    fn budget(&self) -> &Budget {
        &self.shared().budget
    }

    /// The part of it that pending writes may take.
    fn write_budget(&self) -> &Budget {
        &self.shared().write_budget
    }

    /// The first device, for tests of what lies behind it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn first_stripe(&self) -> &Arc<Stripe> {
        &self.inner.stripes[0]
    }

    fn hot(&self) -> &Arc<Hot> {
        &self.shared().hot
    }

    /// For what happens on no device in particular.
    fn counters(&self) -> &Counters {
        &self.shared().counters
    }

    /// A version that is higher than all given out before, in this run or another.
    pub fn next_version(&self) -> Version {
        self.shared().members.draw_version()
    }

    /// Looks up an object. Costs no disk access when memory knows the answer; the disk is read
    /// when the answer is first waited for, see [`PendingLookup`].
    ///
    /// The answer can be awaited, blocked for ([`Lookup::wait`]) or matched:
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

    /// The object if its head is hot. Its content may lie on disk: see [`Hit::content_in_memory`],
    /// which also counts the hit. Never reads the disk and begins no read. Callers that have a
    /// shorter path for answers from memory ask this first, and [`Cache::get`] after `None`.
    pub fn get_hot(&self, name: &[u8]) -> Option<Hit> {
        if name.is_empty() || name.len() > object::MAX_NAME {
            return None;
        }
        let key = self.secret().name(name);
        let record = self.stripe(key).hot_head_uncounted(key, name)?;
        Some(Hit::new(self.of_this_thread(), record))
    }

    /// Whether the object may be stored, from memory alone. A policy without an index says yes.
    pub fn contains_hint(&self, name: &[u8]) -> bool {
        let key = self.secret().name(name);
        self.stripe(key).contains_hint(key)
    }

    /// Says that a put of `name` begins: draws its version, so that what is put or removed from now
    /// on is newer. Call it when the work for the content begins, such as sending the request for
    /// it.
    pub fn intend(&self, name: &[u8]) -> Result<Intent, PutError> {
        Intent::new(self, name)
    }

    /// Puts an object whole.
    ///
    /// # Errors
    /// [`PutError::Full`] when there is no memory for more pending writes; the object is then not
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

    /// Gives an object new metadata, if it still has the version `expected`. Its content is not
    /// touched: at most its first page is written again.
    pub fn update_metadata(
        &self,
        name: &[u8],
        expected: Version,
        metadata: Bytes,
    ) -> Outcome<Updated> {
        self.update(name, expected, Update::metadata(metadata))
    }

    /// The same for a caller that has validated the object: as of `confirmed`, a version drawn
    /// ([`Cache::next_version`]) before validation began, it is right. A soft ban from before that
    /// no longer makes it stale.
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

    /// The same with all that an update can change. The mark and what else was put beside the
    /// content stay.
    pub fn update(&self, name: &[u8], expected: Version, update: Update) -> Outcome<Updated> {
        write::update(self, name, expected, update)
    }

    /// A label, to put objects with and to remove them by.
    pub fn label(&self, label: &[u8]) -> Label {
        Label(self.secret().label(label))
    }

    /// Removes all objects that one of `bans` matches, or makes them stale. From the call on none
    /// that was put, or whose put had begun, is served (as fresh); what is put from now on is not
    /// concerned. The future resolves when that will hold even after a power cut.
    ///
    /// Costs two writes of at most 132 KiB for all that wait, whatever is stored, and a remove for
    /// each object with one of the labels that is not on disk yet. There are at most
    /// 4,096 bans (fewer in stores below 256 MiB: 127 for each 4 MiB); more become wider ones, see
    /// [`Ban::within`].
    pub fn remove_matching(&self, bans: &[Ban]) -> Remove {
        let inner = &*self.inner;
        // Before the lock: hot objects may have to make room.
        let reserve = |_: &_| bans::reserve(bans.len(), self.budget());
        let mut reserved: Vec<_> = inner.stripes.iter().map(reserve).collect();
        // One at a time, so that bans reach each device in the order of their versions.
        let turn = marked(inner.bans.lock().expect("no holder of this lock panics"));
        let version = self.next_version();
        let lines: Vec<_> = bans
            .iter()
            .map(|it| it.line(self.secret(), version))
            .collect();
        self.counters().bans.add(lines.len() as u64);
        // Those of devices that have failed and are left out hold nothing that counts.
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
            // A name takes less than the pending record whose place it takes.
            let name = |removed| Removal::uncounted(Removing::Name(removed), None);
            // Behind those, so they are durable when this is.
            let bans = Removal::uncounted(
                Removing::Bans { behind_pending },
                Some(RemovalDone::Part(part)),
            );
            // Together, so that there may be tens of thousands for one sync.
            let names = removed.into_iter().map(name);
            stripe.queue.push_removals(names.chain([bans]).collect());
        }
        Remove::queued(outcome)
    }

    /// Removes an object. From the call on no version put before is served; the future resolves
    /// when that will hold even after a power cut.
    ///
    /// Removes that are not durable yet take memory, at most a sixteenth of the budget. If that is
    /// used up, the future waits for its turn; policies of the Disk Table serve older versions
    /// until then. A future that is dropped before its turn removes as [`Cache::invalidate`] does.
    pub fn remove(&self, name: &[u8]) -> Remove {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        Remove::new(stripe, key)
    }

    /// Like [`Cache::remove`], for a caller that does not wait: costs no write when memory says
    /// that the object is not stored. An object that the index has lost may then return after a
    /// crash.
    ///
    /// Never blocks. When removes have used up their share of memory, the object may return after
    /// a crash, and policies of the Disk Table also forget the objects of a range of keys: one of
    /// 262,144 ranges, or one set if a store has fewer. Policies of the log forget 1/64 of all
    /// objects instead, but only before recovery is over. So a caller that has many names to remove
    /// and can wait uses [`Cache::remove`].
    pub fn invalidate(&self, name: &[u8]) {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        remove::invalidate(stripe, key);
    }

    /// Like [`Cache::invalidate`], for a caller that may want to know when it is durable. `None` if
    /// there is nothing to wait for: memory says that the object is not stored. If removes have
    /// used up three quarters of their share of memory, the future resolves when half of them are
    /// durable, and the object may return after a crash: a caller that waits then leaves room to
    /// others.
    pub fn invalidation(&self, name: &[u8]) -> Option<Remove> {
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        stripe.medium.counters.removes.add(1);
        remove::invalidation(stripe, key)
    }

    /// Bans in force, on the device that has most: [`crate::MAX_BANS`] at the most.
    pub fn bans(&self) -> usize {
        let counts = self.inner.stripes.iter().map(|it| it.bans.count());
        counts.max().unwrap_or(0)
    }

    /// Bans in force within each of `prefixes` ([`crate::Ban::within`]), on the device that has
    /// most. Looks at all bans.
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

    /// Bans there can be before they become wider, on the device that takes fewest: see
    /// [`Cache::remove_matching`].
    pub fn bans_max(&self) -> usize {
        let most = self.inner.stripes.iter().map(|it| it.bans.most());
        most.min().unwrap_or(0)
    }

    /// Writes everything pending and makes it durable. The outcome says whether that worked.
    pub fn flush(&self) -> Outcome<bool> {
        self.write(Queue::push_flush)
    }

    /// Writes a batch of what is pending now, as the delay does when it is over: records that wait
    /// for others of their page group keep waiting, and nothing is made durable for it. For callers
    /// with a clock of their own, by which no thread of the engine can sleep.
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
            // In a simulation one device after the other: all of them copy what they write to the
            // same memory, and which objects leave it depends on the order.
            let ask_one = |all_good: bool, stripe| ask(&[stripe]).wait() && all_good;
            Outcome::ready(stripes.iter().copied().fold(true, ask_one))
        } else {
            ask(&stripes)
        }
    }

    /// Whether [`Cache::close`] has begun. A remove that returned before that holds after the next
    /// opening, if the device works; a later one may not, so its caller must check this afterwards.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Sets memory aside out of the cache's budget, for what its users hold on its behalf.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.budget().reserve(bytes)
    }

    /// The same for what a slow or hostile peer may make its user hold for long: of this and of the
    /// content of transfers there is never more than three quarters of the budget.
    pub fn reserve_bulk(&self, bytes: u64) -> Option<Reservation> {
        self.budget().reserve_as(Class::Bulk, bytes)
    }

    /// The same for what only makes its user faster: `None` as soon as half of the budget is spent
    /// on what hot objects cannot give back.
    pub fn reserve_spare(&self, bytes: u64) -> Option<Reservation> {
        let roomy = self.shared().available_bytes() > self.budget().limit() / 2;
        roomy.then(|| self.reserve_bulk(bytes)).flatten()
    }

    /// Whether the store takes part. One that has lost some of its devices does.
    pub fn health(&self) -> Health {
        let stripes = || self.inner.stripes.iter().map(|stripe| stripe.health());
        match stripes().find(|it| *it == Health::Recovering) {
            Some(recovering) => recovering,
            None if stripes().all(|it| it == Health::OutOfService) => Health::OutOfService,
            None => Health::InService,
        }
    }

    /// What is stored and what happened. Costs a walk over the index.
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

/// What a lookup found without waiting.
pub enum Lookup {
    /// The object; its head is in memory.
    Hit(Hit),
    /// It is not stored.
    Miss,
    /// The disk is being asked.
    Pending(PendingLookup),
}

impl Lookup {
    /// Blocks until the answer is there.
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

/// What `cache.get(name).await` waits for; `None` is a miss. What memory answered is ready at the
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
    /// Only while one of the others takes its place.
    Neither,
}

impl PendingLookup {
    /// Blocks until the answer is there.
    pub fn wait(self) -> Option<Hit> {
        let record = match self.answer {
            Awaited::Asked(outcome) => outcome.wait(),
            Awaited::Deferred(deferred) => deferred.wait(),
            Awaited::Neither => None,
        };
        Some(Hit::new(self.cache, record?))
    }

    /// Has the disk asked now, by the engine.
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

/// What became of an update of metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updated {
    /// The object has the new metadata.
    Done,
    /// It is not stored any more, or has another version: nothing was changed.
    #[default]
    Gone,
    /// The metadata is too long, there was no memory, or another update or the put itself is under
    /// way: nothing was changed.
    Refused,
}

#[cfg(all(test, not(loom)))]
mod tests;
