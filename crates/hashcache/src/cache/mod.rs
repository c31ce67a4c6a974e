//! The public face: open, get, put, remove.
//!
//! Joins what lies below and holds no state of its own but who fetches what (`fetch_once`). `read`
//! follows a hit, `write` a put, `follow` a put that is still under way; `many` looks up in
//! batches, `file` makes files of objects.

mod fetch_once;
mod file;
mod follow;
mod many;
mod read;
mod write;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use fetch_once::{Answer, FetchError, Fetched, GetOrFetch};
pub use file::{CachedFile, OpenFile};
pub use follow::{Follower, Stream};
pub use read::{Hit, Reader};
pub use write::{Intent, Keep, Put, Writer};

use crate::completion::{Outcome, promise};
use crate::config::Config;
use crate::error::{OpenError, PutError, RemoveError};
use crate::flush::Removal;
use crate::format::{Family, Removed};
use crate::key::KeyHash;
use crate::memory::{Class, Reservation};
use crate::object::Version;
use crate::shard::Found;
use crate::stats::{Health, Stats};
use crate::stripe::{self, Stripe, Wanted};
use crate::{object, open};

/// An open cache. Clones share it; the last one dropped closes it.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    stripe: Arc<Stripe>,
    scribe: std::sync::Mutex<Option<std::thread::JoinHandle<()>>>,
    flights: fetch_once::Flights,
    closed: std::sync::atomic::AtomicBool,
}

impl Inner {
    fn close(&self) {
        self.closed
            .store(true, std::sync::atomic::Ordering::Release);
        self.stripe.queue.close();
        let scribe = self
            .scribe
            .lock()
            .expect("no holder of this lock panics")
            .take();
        if let Some(scribe) = scribe
            && scribe.thread().id() != std::thread::current().id()
        {
            let _ = scribe.join();
        }
        self.stripe.pool.close();
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
        let (stripe, scribe) = open::start(&config)?;
        let scribe = std::sync::Mutex::new(Some(scribe));
        let closed = std::sync::atomic::AtomicBool::new(false);
        Ok(Self {
            inner: Arc::new(Inner {
                stripe,
                scribe,
                flights: fetch_once::Flights::default(),
                closed,
            }),
        })
    }

    /// Writes what is pending, saves the index and lets go of the device. Blocks until that is
    /// done. Other handles stay usable but store nothing any more.
    pub fn close(self) {
        self.inner.close();
    }

    fn stripe(&self) -> &Arc<Stripe> {
        &self.inner.stripe
    }

    /// A version that is higher than all given out before, in this run or another.
    pub fn next_version(&self) -> Version {
        self.stripe().draw_version()
    }

    /// Looks for an object. Costs no disk access when memory knows the answer.
    pub fn get(&self, name: &[u8]) -> Lookup {
        if name.is_empty() || name.len() > object::MAX_NAME {
            return Lookup::Miss;
        }
        let key = self.stripe().secret.name(name);
        if let Some(record) = self.stripe().hot_head(key, name) {
            return Lookup::Hit(Hit::new(self.clone(), record));
        }
        let name = Bytes::copy_from_slice(name);
        let wanted = Wanted {
            key,
            name,
            span: None,
            expect: 0,
        };
        match self.stripe().lookup(wanted) {
            stripe::Lookup::Found(record) => Lookup::Hit(Hit::new(self.clone(), record)),
            stripe::Lookup::Nothing => Lookup::Miss,
            stripe::Lookup::Asked(outcome) => Lookup::Pending(PendingLookup {
                cache: self.clone(),
                outcome,
            }),
        }
    }

    /// Whether the object may be stored, from memory alone. A policy without an index says yes.
    pub fn contains_hint(&self, name: &[u8]) -> bool {
        self.stripe().contains_hint(self.stripe().secret.name(name))
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
        write::update_metadata(self, name, expected, metadata)
    }

    /// Removes an object. From the call on no version put before is served; the future resolves
    /// when that will hold even after a power cut.
    pub fn remove(&self, name: &[u8]) -> Remove {
        let key = self.stripe().secret.name(name);
        let (version, _) = self.forget(key);
        Remove {
            outcome: self.remove_durably(key, version),
        }
    }

    /// Like [`Cache::remove`], for a caller who does not wait: costs no write when memory says that
    /// the object is not stored. What the index has lost may then come back after a crash.
    pub fn invalidate(&self, name: &[u8]) {
        let key = self.stripe().secret.name(name);
        let (version, known) = self.forget(key);
        if known {
            drop(self.remove_durably(key, version));
        }
    }

    /// From now on nothing put under `key` before is found. Returns the version of the remove and
    /// whether anything may have been there.
    fn forget(&self, key: KeyHash) -> (Version, bool) {
        let stripe = self.stripe();
        let (version, known) = stripe.remove(key);
        stripe.counters.removes.add(1);
        (version, known)
    }

    fn remove_durably(&self, key: KeyHash, version: Version) -> Outcome<bool> {
        let (done, outcome) = promise();
        let removed = Removed { key, version };
        self.stripe().queue.push_removal(Removal { removed, done });
        outcome
    }

    /// Writes everything pending and makes it durable. The outcome says whether that worked.
    pub fn flush(&self) -> Outcome<bool> {
        let (done, outcome) = promise();
        self.stripe().queue.push_flush(done);
        outcome
    }

    fn is_closed(&self) -> bool {
        self.inner.closed.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Sets memory aside out of the cache's budget, for what its users hold on its behalf.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.stripe().budget.reserve(bytes)
    }

    /// The same for what a slow or hostile peer may make its user hold for long: of this and of the
    /// content of transfers there is never more than three quarters of the budget.
    pub fn reserve_bulk(&self, bytes: u64) -> Option<Reservation> {
        self.stripe().budget.reserve_as(Class::Bulk, bytes)
    }

    /// The same for what only makes its user faster: `None` as soon as half of the budget is spent
    /// on what hot objects cannot give back.
    pub fn reserve_spare(&self, bytes: u64) -> Option<Reservation> {
        let stripe = self.stripe();
        let roomy = stripe.available_bytes() > stripe.budget.limit() / 2;
        roomy.then(|| self.reserve_bulk(bytes)).flatten()
    }

    /// Whether the store takes part.
    pub fn health(&self) -> Health {
        self.stripe().health()
    }

    /// What is stored and what happened. Costs a walk over the index.
    pub fn stats(&self) -> Stats {
        let stripe = self.stripe();
        let (mut entries, mut early_evictions) = (0, 0);
        for shard in stripe.shards() {
            entries += shard.policy.entries();
            early_evictions += shard.policy.early_evictions();
        }
        let counters = &stripe.counters;
        Stats {
            health: stripe.health(),
            entries,
            entries_exact: stripe.geometry.family == Family::Log,
            early_evictions,
            device_bytes: stripe.geometry.device_bytes,
            log_bytes: stripe.geometry.segments * u64::from(stripe.geometry.segment_bytes),
            index_bytes: stripe.index.bytes(),
            hot_bytes: stripe.hot.bytes(),
            pending_bytes: stripe.queue.bytes() as u64,
            memory_used_bytes: stripe.budget.used(),
            memory_limit_bytes: stripe.budget.limit(),
            hot_hits: counters.hot_hits.value(),
            pending_hits: counters.pending_hits.value(),
            disk_hits: counters.disk_hits.value(),
            misses: counters.misses.value(),
            joined_reads: counters.joined_reads.value(),
            group_reads: counters.group_reads.value(),
            prefetched: counters.prefetched.value(),
            readmitted: counters.readmitted.value(),
            false_reads: counters.false_reads.value(),
            damaged: counters.damaged.value(),
            read_errors: counters.read_errors.value(),
            no_memory: counters.no_memory.value(),
            puts: counters.puts.value(),
            puts_refused: counters.puts_refused.value(),
            removes: counters.removes.value(),
            reads: counters.reads.value(),
            read_bytes: counters.read_bytes.value(),
            writes: counters.writes.value(),
            written_bytes: counters.written_bytes.value(),
            syncs: counters.syncs.value(),
            batches: counters.batches.value(),
            checkpoints: counters.checkpoints.value(),
        }
    }
}

/// What a look-up found without waiting.
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

/// A look-up that waits for the disk; `None` is a miss. Dropping it abandons nothing but the wait.
pub struct PendingLookup {
    cache: Cache,
    outcome: Outcome<Found>,
}

impl PendingLookup {
    /// Blocks until the answer is there.
    pub fn wait(self) -> Option<Hit> {
        let record = self.outcome.wait()?;
        Some(Hit::new(self.cache, record))
    }
}

impl Future for PendingLookup {
    type Output = Option<Hit>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Hit>> {
        let found = Pin::new(&mut self.outcome).poll(context);
        found.map(|found| Some(Hit::new(self.cache.clone(), found?)))
    }
}

/// A remove that is in force and becomes durable.
pub struct Remove {
    outcome: Outcome<bool>,
}

impl Remove {
    /// Blocks until the remove is durable.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(self) -> Result<(), RemoveError> {
        if self.outcome.wait() {
            Ok(())
        } else {
            Err(RemoveError)
        }
    }
}

impl Future for Remove {
    type Output = Result<(), RemoveError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = Pin::new(&mut self.outcome).poll(context);
        done.map(|done| if done { Ok(()) } else { Err(RemoveError) })
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
