//! Hot objects: records served from memory, in slabs.
//!
//! A record is found by key in one of 16 maps. The bytes are in slabs, which `slab_streams` orders
//! and evicts; there the records of a page group are side by side.
//!
//! A record is copied into slabs first ([`Hot::copy`]), under no lock of the engine: the copy may
//! have to evict other records, and the kernel takes back their memory. Then the record is
//! published ([`Hot::insert`]).
//!
//! Invariants: a hot record is the newest committed record of that name. `stripe` removes it, under
//! the lock of the key's shard, before a newer record or a remove becomes visible. A record in a
//! map is also listed in the slab that holds the record's last bytes; when that slab is evicted,
//! the record leaves the map. The lock of a map is never held together with the lock of a stream of
//! slabs; the lock of a slab's list is taken under either. A map that a panic has left half changed
//! is dropped ([`Hot::mend`]).
//! Cost: one lock and one map lookup a hit, which write to no cache line of another lane; about
//! [`ENTRY_BYTES`] in addition to the bytes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::heap::Trimmer;
use super::pinned::{Pinned, PinnedRecords};
use super::recent_keys::RecentKeys;
use super::sharded_lock::{ReadLocked, ShardedLock, WriteLocked};
use super::slab::{Open, SLAB_BYTES};
use super::slab_streams::{Evicted, LockedStream, SecondChance, SlabStreams};
use super::stored::{Stored, Uses};
use super::uncounted::Uncounted;
use super::wakes;
use crate::address::LogPos;
use crate::format::Kind;
use crate::key::{KeyHash, KeyMap};
use crate::object::Storage;
use crate::record::Record;
use crate::stats::{BusyCounter, Counter};

const SHARDS: usize = 16;
/// Memory that a hot record takes in addition to the bytes: map entry, record, handles of the
/// pieces. Measured by the allocator's own counter, rounded up.
const ENTRY_BYTES: u64 = 512;
/// Number of dropped prefetched objects to remember, by key. Older drops tell little about the
/// memory that is available now.
const DROPPED_KEYS: usize = 4096;
/// A copy gives a second chance to this number of the oldest slabs, or to one in [`ROUNDS_PART`] of
/// all slabs if that is more. After that it evicts the oldest slab without looking at the contents.
const ROUNDS_MIN: usize = 32;
const ROUNDS_PART: usize = 16;
/// As [`ROUNDS_MIN`], for each slab that is evicted to free memory for other uses.
const ROUNDS_A_SLAB: usize = 16;

/// Why a record becomes hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A caller has requested or put the record.
    Wanted,
    /// A group read has loaded the record together with a requested record.
    Prefetched,
}

/// Map entry of a record.
struct HotObject {
    stored: Arc<Stored>,
    /// All records that end in the same slab.
    in_slab: PinnedRecords,
}

impl HotObject {
    fn pin(&self) -> Pinned {
        self.in_slab.pin(&self.stored)
    }
}

#[derive(Default)]
struct HotShard {
    map: KeyMap<HotObject>,
    /// This shard's part of [`Hot::bytes`].
    bytes: u64,
}

/// A record that was copied into slabs but is not in a map yet. If this is dropped, the copy is
/// never published.
pub(crate) struct Copied {
    stored: Arc<Stored>,
    /// All records that end in the same slab.
    in_slab: PinnedRecords,
}

impl Copied {
    pub(crate) fn record(&self) -> &Record {
        &self.stored.record
    }
}

fn shard(key: KeyHash) -> usize {
    // Bits that no map's buckets use: neither the lowest nor the seven highest.
    usize::from(key.to_bytes()[14] & 0xf)
}

/// Slabs get a second chance in the first `given` rounds.
fn chance(round: usize, given: usize) -> SecondChance {
    if round < given {
        SecondChance::Given
    } else {
        SecondChance::Denied
    }
}

/// The hot objects.
pub(crate) struct Hot {
    shards: ShardedLock<HotShard, SHARDS>,
    /// Number of lookups that were hits.
    hits: BusyCounter,
    /// Number of prefetched objects that were evicted before any lookup requested them, and the
    /// keys of the latest such objects.
    prefetched_dropped: Counter,
    recently_dropped: RecentKeys,
    slabs: SlabStreams,
    budget: Budget,
    bytes: AtomicU64,
}

impl Hot {
    /// Hot objects that take the memory that `budget` leaves, at most `bytes_max`.
    pub(crate) fn new(budget: &Budget, bytes_max: u64) -> io::Result<Arc<Self>> {
        let hot = Arc::new(Self {
            shards: ShardedLock::new((0..SHARDS).map(|_| HotShard::default())),
            hits: BusyCounter::default(),
            prefetched_dropped: Counter::default(),
            recently_dropped: RecentKeys::new(DROPPED_KEYS),
            slabs: SlabStreams::new(budget, bytes_max)?,
            budget: budget.clone(),
            bytes: AtomicU64::new(0),
        });
        let reclaimed = Arc::downgrade(&hot);
        budget.reclaim_from(move |bytes| {
            if let Some(hot) = reclaimed.upgrade() {
                hot.shrink(bytes);
            }
        });
        Ok(hot)
    }

    fn read(&self, key: KeyHash) -> ReadLocked<'_, HotShard> {
        self.read_at(shard(key))
    }

    fn read_at(&self, n: usize) -> ReadLocked<'_, HotShard> {
        loop {
            let (shard, is_broken) = self.shards.read_anyway(n);
            if !is_broken {
                return shard;
            }
            drop(shard);
            drop(self.write_at(n));
        }
    }

    fn write(&self, key: KeyHash) -> WriteLocked<'_, HotShard> {
        self.write_at(shard(key))
    }

    /// Locks shard `n` for writing; drops the contents first if a panic may have left them half
    /// changed.
    fn write_at(&self, n: usize) -> WriteLocked<'_, HotShard> {
        let (mut shard, is_broken) = self.shards.write_anyway(n);
        if is_broken {
            self.mend(n, &mut shard);
        }
        shard
    }

    /// A thread has panicked while it changed shard `n`. The contents may be wrong, so all records
    /// are dropped. For hot objects this costs only another read from the device.
    #[cold]
    fn mend(&self, n: usize, shard: &mut WriteLocked<'_, HotShard>) {
        tracing::error!("a panic: some hot objects are dropped");
        let broken = std::mem::take(&mut **shard);
        self.bytes.fetch_sub(broken.bytes, Ordering::Relaxed);
        self.shards.mended(n, shard);
    }

    /// A slab from the same arena, for a writer.
    pub(super) fn slab(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.slabs.open_for_writer(reservation)
    }

    /// The record under `key`, if it is hot and satisfies `wanted`; counts a hit.
    pub(crate) fn hit(&self, key: KeyHash, wanted: impl FnOnce(&Record) -> bool) -> Option<Pinned> {
        let found = self.find(key, wanted)?;
        self.count_hit();
        Some(found)
    }

    /// As [`Hot::hit`], but does not count a hit.
    pub(crate) fn find(
        &self,
        key: KeyHash,
        wanted: impl FnOnce(&Record) -> bool,
    ) -> Option<Pinned> {
        let shard = self.read(key);
        let hot = shard.map.get(&key).filter(|it| wanted(&it.stored.record))?;
        hot.stored.uses.ask();
        Some(hot.pin())
    }

    /// As [`Hot::find`], but does not mark the record as requested either.
    pub(crate) fn look(
        &self,
        key: KeyHash,
        wanted: impl FnOnce(&Record) -> bool,
    ) -> Option<Pinned> {
        let shard = self.read(key);
        let hot = shard.map.get(&key).filter(|it| wanted(&it.stored.record))?;
        Some(hot.pin())
    }

    pub(crate) fn count_hit(&self) {
        self.hits.add(1);
    }

    /// Number of lookups that were hits.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.value()
    }

    /// Number of prefetched objects that were evicted before any lookup requested them.
    pub(crate) fn prefetched_dropped(&self) -> u64 {
        self.prefetched_dropped.value()
    }

    /// Returns true if the record under `key` was recently evicted before any lookup requested it.
    /// Forgets the key, so a second call returns false.
    pub(crate) fn dropped_before_use(&self, key: KeyHash) -> bool {
        self.recently_dropped.take(key.spread())
    }

    /// The record under `key`, if it is hot, and true if it was requested since the last call. Does
    /// not mark the record as requested.
    pub(crate) fn peek(&self, key: KeyHash) -> Option<(Pinned, bool)> {
        let shard = self.read(key);
        let hot = shard.map.get(&key)?;
        Some((hot.pin(), hot.stored.uses.take_used()))
    }

    /// Returns true if the record under `key` is hot. Does not mark the record as requested.
    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.read(key).map.contains_key(&key)
    }

    /// Removes the record under `key`.
    ///
    /// Called under the lock of the key's shard, so that no record can become hot meanwhile. Most
    /// objects that are put were not hot: a lookup first takes the lock in one lane, not in all
    /// lanes.
    pub(crate) fn remove(&self, key: KeyHash) {
        if !self.contains(key) {
            return;
        }
        let mut shard = self.write(key);
        let gone = self.take_out(&mut shard, key);
        drop(shard);
        drop(gone);
    }

    /// Removes the record under `key` from the map; the caller drops it without the lock.
    fn take_out(&self, shard: &mut HotShard, key: KeyHash) -> Option<HotObject> {
        let gone = shard.map.remove(&key)?;
        // A removed record is no reason to keep the slab.
        gone.stored.uses.take_asked_for();
        let bytes = size(&gone.stored.record);
        shard.bytes -= bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(gone)
    }

    /// Removes all records for which `gone` returns true, under one shard's lock at a time.
    pub(crate) fn remove_all(&self, gone: impl Fn(&Record) -> bool) {
        for n in 0..SHARDS {
            let keys: Vec<KeyHash> = {
                let shard = self.read_at(n);
                let is_gone = |(_, hot): &(&KeyHash, &HotObject)| gone(&hot.stored.record);
                let hot = shard.map.iter().filter(is_gone);
                hot.map(|(key, _)| *key).collect()
            };
            for key in keys {
                let mut shard = self.write(key);
                // Another record may have become hot under this key.
                let hot = shard.map.get(&key);
                if hot.is_some_and(|hot| gone(&hot.stored.record)) {
                    let removed = self.take_out(&mut shard, key);
                    drop(shard);
                    drop(removed);
                }
            }
        }
    }

    /// Copies `record`, which is stored at `at`, into slabs; returns `None` if there is no room.
    /// The caller must hold no lock of the engine: otherwise the memory of records that are dropped
    /// here would not be released before the caller unlocks.
    pub(crate) fn copy(&self, record: &Record, at: Option<LogPos>) -> Option<Copied> {
        self.copy_as(record, at, Storage::Disk)
    }

    /// As [`Hot::copy`], for a record that is kept in memory only.
    pub(crate) fn copy_unwritten(&self, record: &Record) -> Option<Copied> {
        self.copy_as(record, None, Storage::Memory)
    }

    fn copy_as(&self, record: &Record, at: Option<LogPos>, storage: Storage) -> Option<Copied> {
        debug_assert!(!wakes::holds_lock(), "copied under a lock");
        if size(record) > self.budget.limit() / 32 {
            return None;
        }
        let reservation = self.budget.reserve(entry_bytes(record))?;
        let n = self.slabs.stream_of(&record.fields);
        let room = |needed| self.stream_with_room(n, needed);
        let (pieces, in_slab) = copy_pieces(record, room)?;
        Some(copied(record, pieces, in_slab, (at, storage), reservation))
    }

    /// Publishes `copied` under the record's key. Called under the lock of the key's shard.
    pub(crate) fn insert(&self, copied: Copied, arrival: Arrival) -> Option<Pinned> {
        let Copied { stored, in_slab } = copied;
        let key = stored.record.fields.key;
        let bytes = size(&stored.record);
        if arrival == Arrival::Prefetched {
            stored.uses.prefetch();
        }
        let mut shard = self.write(key);
        // If the slab was evicted meanwhile, nothing would ever evict the record: drop the copy.
        if !in_slab.put(Arc::clone(&stored)) {
            return None;
        }
        let old = self.take_out(&mut shard, key);
        let hot = HotObject { stored, in_slab };
        let held = hot.pin();
        shard.map.insert(key, hot);
        shard.bytes += bytes;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        drop(shard);
        drop(old);
        Some(held)
    }

    /// Stream `n` with room for `needed` bytes in the slab that it fills. Evicts the oldest slabs
    /// if there may be no further slab.
    ///
    /// The memory of dropped records is released only when no lock is held; meanwhile another
    /// thread may have made room, or taken it.
    fn stream_with_room(&self, n: usize, needed: usize) -> Option<LockedStream<'_>> {
        let given = ROUNDS_MIN.max(self.slabs.count() / ROUNDS_PART);
        for round in 0..2 * given {
            if let Some(stream) = self.slabs.with_room(n, needed) {
                return Some(stream);
            }
            if self.slabs.count() == 0 {
                return None;
            }
            self.evict_oldest(chance(round, given));
        }
        self.slabs.with_room(n, needed)
    }

    /// Evicts the oldest slab, unless the slab was requested and gets a second chance.
    fn evict_oldest(&self, second: SecondChance) {
        let Evicted {
            mut records,
            asked_for,
            was_new,
        } = self.slabs.evict_oldest(second);
        for stored in &asked_for {
            self.keep(stored);
        }
        let shard_of = |stored: &Arc<Stored>| shard(stored.record.fields.key);
        records.sort_unstable_by_key(shard_of);
        let (mut prefetched, mut others) = (0, 0);
        for of_shard in records.chunk_by(|one, other| shard_of(one) == shard_of(other)) {
            let mut shard = self.write_at(shard_of(&of_shard[0]));
            for evicted in of_shard.iter().filter_map(|it| self.evict(&mut shard, it)) {
                if evicted.stored.uses.is_prefetched() {
                    prefetched += 1;
                    self.note_unused(&evicted);
                } else if was_new {
                    others += 1;
                    self.slabs.note_left(evicted.stored.record.fields.key);
                }
            }
        }
        if was_new {
            self.slabs.note_evicted(prefetched, others);
        }
        let is_any_kept = !asked_for.is_empty();
        drop((records, asked_for));
        // Only in this case: otherwise an empty slab for kept records would be evicted and opened
        // each time.
        if second == SecondChance::Given && is_any_kept {
            self.slabs.prepare();
        }
    }

    /// Copies a record from an evicted slab into the stream for kept records, if that stream has
    /// room.
    fn keep(&self, stored: &Arc<Stored>) {
        let record = &stored.record;
        if size(record) > SLAB_BYTES as u64 {
            return;
        }
        let Some(reservation) = self.budget.reserve_free(entry_bytes(record)) else {
            return;
        };
        let room = |needed| self.slabs.with_room(self.slabs.kept(), needed);
        let Some((pieces, in_slab)) = copy_pieces(record, room) else {
            return;
        };
        let place = (record.at, record.storage);
        let copy = copied(record, pieces, in_slab, place, reservation);
        stored.uses.hand_down_used(&copy.stored.uses);
        let mut shard = self.write(record.fields.key);
        let is_it = |hot: &&mut HotObject| Arc::ptr_eq(&hot.stored, stored);
        // Another record may now be under the same key, and the new slab may be evicted already.
        let Some(hot) = shard.map.get_mut(&record.fields.key).filter(is_it) else {
            return;
        };
        let Copied { stored, in_slab } = copy;
        if in_slab.put(Arc::clone(&stored)) {
            let old = std::mem::replace(hot, HotObject { stored, in_slab });
            drop(shard);
            drop(old);
        }
    }

    /// Removes `stored`, unless another record is now under the same key.
    fn evict(&self, shard: &mut HotShard, stored: &Arc<Stored>) -> Option<HotObject> {
        let key = stored.record.fields.key;
        let is_it = |hot: &HotObject| Arc::ptr_eq(&hot.stored, stored);
        if shard.map.get(&key).is_some_and(is_it) {
            self.take_out(shard, key)
        } else {
            None
        }
    }

    /// Counts a prefetched object that is evicted before any lookup has requested it.
    fn note_unused(&self, evicted: &HotObject) {
        let fields = &evicted.stored.record.fields;
        if fields.kind == Kind::Head {
            self.prefetched_dropped.add(1);
            self.recently_dropped.note(fields.key.spread());
        }
    }

    /// Releases about `bytes` bytes, the oldest slabs first.
    fn shrink(&self, bytes: u64) {
        let target = self.budget.used().saturating_sub(bytes);
        let slabs = usize::try_from(bytes).unwrap_or(usize::MAX) / SLAB_BYTES;
        self.shrink_until(slabs, || self.budget.used() <= target);
    }

    /// Evicts slabs, the oldest first, until `enough` returns true; the caller expects that to take
    /// about `slabs` slabs.
    fn shrink_until(&self, slabs: usize, enough: impl Fn() -> bool) {
        // In the first half of the rounds, slabs that were requested may stay. In the second half
        // they are evicted too, because the caller waits for memory.
        let half = slabs.max(2).saturating_mul(ROUNDS_A_SLAB);
        for round in 0..2 * half {
            if enough() {
                return;
            }
            // Evicted slabs may still have their pages.
            self.slabs.arena().release_resident(&enough);
            if enough() || self.slabs.count() == 0 {
                return;
            }
            self.evict_oldest(chance(round, half));
        }
    }

    /// Limits the slabs to `bytes` and evicts slabs above that limit.
    pub(super) fn keep_within(&self, bytes: u64) {
        let most = self.slabs.keep_within(bytes);
        let slabs = || self.slabs.count();
        self.shrink_until(slabs().saturating_sub(most), || slabs() <= most);
    }

    /// Returns true if the number of slabs is below the limit. The memory budget is not checked.
    pub(crate) fn may_grow(&self) -> bool {
        self.slabs.may_grow()
    }

    /// Bytes of the slabs that hot objects take.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.count() as u64 * SLAB_BYTES as u64
    }

    /// Trims the heap if that is worthwhile `now`. Hot objects do not grow into freed memory before
    /// it is trimmed.
    pub(super) fn trim_heap(&self, trimmer: &mut Trimmer, now: Duration) {
        let (high, used) = (self.slabs.heap_high(), self.slabs.others_bytes());
        trimmer.look(high, used, self.budget.limit(), now);
    }

    /// Sets aside in the budget what the process has `uncounted`.
    pub(super) fn count_in(&self, uncounted: &mut Uncounted, now: Duration) {
        uncounted.look(&self.budget, now);
    }

    /// Bytes that hot objects can release for other uses.
    pub(crate) fn reclaimable_bytes(&self) -> u64 {
        self.bytes() + self.slabs.arena().resident_bytes()
    }

    /// Bytes of content and metadata that are hot.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Bytes of a record in slabs.
fn size(record: &Record) -> u64 {
    (record.metadata.len() + record.content_bytes()) as u64
}

/// Bytes of a record outside slabs.
fn entry_bytes(record: &Record) -> u64 {
    ENTRY_BYTES + record.name.len() as u64
}

/// The metadata of a record in a slab, and the content in one or more slabs.
type Pieces = (Bytes, Vec<Bytes>);

/// Copies the bytes of `record` into a stream in which `room` finds enough bytes; also returns the
/// list of the records that end in the same slab.
fn copy_pieces<'a>(
    record: &Record,
    room: impl Fn(usize) -> Option<LockedStream<'a>>,
) -> Option<(Pieces, PinnedRecords)> {
    // Metadata is used whole, so it does not straddle slabs; content may.
    let mut stream = room(record.metadata.len().max(1))?;
    let metadata = if record.metadata.is_empty() {
        Bytes::new()
    } else {
        stream.append(&record.metadata)?.0
    };
    let mut content = Vec::with_capacity(2);
    for piece in &record.content {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            if !stream.has_room(1) {
                drop(stream);
                stream = room(1)?;
            }
            let (copy, later) = stream.append(rest)?;
            content.push(copy);
            rest = later;
        }
    }
    let in_slab = stream.end_record()?;
    Some(((metadata, content), in_slab))
}

fn copied(
    record: &Record,
    (metadata, content): Pieces,
    in_slab: PinnedRecords,
    (at, storage): (Option<LogPos>, Storage),
    reservation: Reservation,
) -> Copied {
    let stored = Stored {
        record: Record {
            fields: record.fields.clone(),
            name: record.name.clone(),
            metadata,
            content,
            at,
            storage,
            judged: AtomicU64::default(),
        },
        uses: Uses::default(),
        _reservation: reservation,
    };
    record.hand_down_judged(&stored.record);
    let stored = Arc::new(stored);
    Copied { stored, in_slab }
}

#[cfg(test)]
mod tests;
