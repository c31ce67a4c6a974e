//! Hot objects: records served from memory, in slabs.
//!
//! A record is found by its key in one of 16 maps. Its bytes lie in slabs, which `slab_streams`
//! orders and evicts: there the records of a page group lie side by side.
//!
//! A record is copied into slabs first ([`Hot::copy`]), under no lock of the engine: room for it
//! may have to be made by evicting others, whose memory the kernel takes back. Then it is published
//! ([`Hot::insert`]).
//!
//! Invariants: a record here is the newest committed one of its name. `stripe` removes it, under
//! the lock of the key's shard, before a newer record or a remove becomes visible. A record in a
//! map is in the list of the slab in which it ends, and once that is evicted the record leaves the
//! map. The lock of a map is never held together with that of a stream of slabs; the lock of a
//! slab's list is taken under either. A map that a panic has left half changed is dropped
//! ([`Hot::mend`]).
//! Cost: one lock and one map lookup a hit, which write to no cache line of another lane; about
//! [`ENTRY_BYTES`] beside the bytes.

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
/// What a hot record takes beside its bytes: map entry, record, handles of its pieces. Measured by
/// the allocator's own count, rounded up.
const ENTRY_BYTES: u64 = 512;
/// Number of keys of dropped prefetched objects that are remembered. Older ones say little about
/// the memory that there is now.
const DROPPED_KEYS: usize = 4096;
/// One copy gives a second chance to so many of the oldest slabs at least, or to one in
/// [`ROUNDS_PART`] of all. Then it evicts the oldest whatever it holds.
const ROUNDS_MIN: usize = 32;
const ROUNDS_PART: usize = 16;
/// The same for each slab that is evicted for other uses of memory.
const ROUNDS_A_SLAB: usize = 16;

/// Why a record becomes hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A caller asks for it or has put it.
    Wanted,
    /// A group read has loaded it with another one.
    Prefetched,
}

/// What the map knows of a record.
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
    /// What of [`Hot::bytes`] is this shard's.
    bytes: u64,
}

/// A record in slabs that is not known yet. Dropped, it never will be.
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
    /// Lookups answered.
    hits: BusyCounter,
    /// Prefetched objects that were evicted before a lookup asked for them, and the latest of them.
    prefetched_dropped: Counter,
    recently_dropped: RecentKeys,
    slabs: SlabStreams,
    budget: Budget,
    bytes: AtomicU64,
}

impl Hot {
    /// Hot objects that take what `budget` leaves, at most `bytes_max`.
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

    /// Shard `n`, without what a panic may have left half changed.
    fn write_at(&self, n: usize) -> WriteLocked<'_, HotShard> {
        let (mut shard, is_broken) = self.shards.write_anyway(n);
        if is_broken {
            self.mend(n, &mut shard);
        }
        shard
    }

    /// A thread has panicked while it changed shard `n`: what it says may be wrong, so all in it is
    /// dropped. Of hot objects that costs no more than reading them again.
    #[cold]
    fn mend(&self, n: usize, shard: &mut WriteLocked<'_, HotShard>) {
        tracing::error!("a panic: some hot objects are dropped");
        let broken = std::mem::take(&mut **shard);
        self.bytes.fetch_sub(broken.bytes, Ordering::Relaxed);
        self.shards.mended(n, shard);
    }

    /// A slab for a writer, of the same arena.
    pub(super) fn slab(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.slabs.open_for_writer(reservation)
    }

    /// The record under `key`, if it is hot and is what is `wanted`: a hit.
    pub(crate) fn hit(&self, key: KeyHash, wanted: impl FnOnce(&Record) -> bool) -> Option<Pinned> {
        let found = self.find(key, wanted)?;
        self.count_hit();
        Some(found)
    }

    /// The same without counting it as a hit.
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

    /// The same, and it does not count as asking for it either.
    pub(crate) fn look(
        &self,
        key: KeyHash,
        wanted: impl FnOnce(&Record) -> bool,
    ) -> Option<Pinned> {
        let shard = self.read(key);
        let hot = shard.map.get(&key).filter(|it| wanted(&it.stored.record))?;
        Some(hot.pin())
    }

    /// Counts a hit.
    pub(crate) fn count_hit(&self) {
        self.hits.add(1);
    }

    /// Lookups that were hits.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.value()
    }

    /// Prefetched objects that were evicted before a lookup asked for them.
    pub(crate) fn prefetched_dropped(&self) -> u64 {
        self.prefetched_dropped.value()
    }

    /// Whether the record under `key` was such an object lately. Says so once.
    pub(crate) fn dropped_before_use(&self, key: KeyHash) -> bool {
        self.recently_dropped.take(key.spread())
    }

    /// The record under `key`, if it is hot, and whether it was asked for since the last call. Does
    /// not count as asking for it.
    pub(crate) fn peek(&self, key: KeyHash) -> Option<(Pinned, bool)> {
        let shard = self.read(key);
        let hot = shard.map.get(&key)?;
        Some((hot.pin(), hot.stored.uses.take_used()))
    }

    /// Whether the record under `key` is hot. Does not count as asking for it.
    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.read(key).map.contains_key(&key)
    }

    /// Forgets the record under `key`.
    ///
    /// Called under the lock of the key's shard, so that no record can become hot meanwhile. Most
    /// objects that are put were not hot; a look takes the lock in one lane instead of all.
    pub(crate) fn remove(&self, key: KeyHash) {
        if !self.contains(key) {
            return;
        }
        let mut shard = self.write(key);
        let gone = self.take_out(&mut shard, key);
        drop(shard);
        drop(gone);
    }

    /// Takes out the record under `key`, to be let go of without the lock.
    fn take_out(&self, shard: &mut HotShard, key: KeyHash) -> Option<HotObject> {
        let gone = shard.map.remove(&key)?;
        // It is no longer a reason to keep its slab.
        gone.stored.uses.take_asked_for();
        let bytes = size(&gone.stored.record);
        shard.bytes -= bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Some(gone)
    }

    /// Forgets all records that are `gone`, under one shard's lock at a time.
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

    /// Copies `record`, which lies `at`, into slabs; it may find no room. The caller holds no lock
    /// of the engine: with one, no memory that this drops would be released before it is unlocked.
    pub(crate) fn copy(&self, record: &Record, at: Option<LogPos>) -> Option<Copied> {
        self.copy_as(record, at, Storage::Disk)
    }

    /// The same for a record that is kept here alone.
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

    /// Makes `copied` the record of its key. Called under the lock of the key's shard.
    pub(crate) fn insert(&self, copied: Copied, arrival: Arrival) -> Option<Pinned> {
        let Copied { stored, in_slab } = copied;
        let key = stored.record.fields.key;
        let bytes = size(&stored.record);
        if arrival == Arrival::Prefetched {
            stored.uses.prefetch();
        }
        let mut shard = self.write(key);
        // If its slab was evicted meanwhile, the record would never be evicted: drop the copy.
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

    /// Stream `n` with room for `needed` bytes in the slab that it fills, at the cost of the oldest
    /// slabs when there may be no other.
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

    /// Lets the oldest slab go, unless it was asked for and gets a second chance.
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
        // Only then: an empty slab of kept records would be evicted and opened again and again.
        if second == SecondChance::Given && is_any_kept {
            self.slabs.prepare();
        }
    }

    /// Copies a record of an evicted slab into the stream of kept records, if that has room.
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
        // Another record may have come under its key, and the new slab may be evicted already.
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

    /// Takes `stored` out, unless another record has come under its key.
    fn evict(&self, shard: &mut HotShard, stored: &Arc<Stored>) -> Option<HotObject> {
        let key = stored.record.fields.key;
        let is_it = |hot: &HotObject| Arc::ptr_eq(&hot.stored, stored);
        if shard.map.get(&key).is_some_and(is_it) {
            self.take_out(shard, key)
        } else {
            None
        }
    }

    /// Notes a prefetched object that leaves before a lookup has asked for it.
    fn note_unused(&self, evicted: &HotObject) {
        let fields = &evicted.stored.record.fields;
        if fields.kind == Kind::Head {
            self.prefetched_dropped.add(1);
            self.recently_dropped.note(fields.key.spread());
        }
    }

    /// Lets go of about `bytes` bytes, the oldest slabs first.
    fn shrink(&self, bytes: u64) {
        let target = self.budget.used().saturating_sub(bytes);
        let slabs = usize::try_from(bytes).unwrap_or(usize::MAX) / SLAB_BYTES;
        self.shrink_until(slabs, || self.budget.used() <= target);
    }

    /// Lets go of slabs, the oldest first, until it is `enough`, which takes about as many as
    /// `slabs`.
    fn shrink_until(&self, slabs: usize, enough: impl Fn() -> bool) {
        // In the first half of the rounds, slabs that were asked for may stay. In the second half
        // they are evicted too: the caller waits for memory.
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

    /// From now on takes no more than `bytes` for slabs, and lets go of what is beyond.
    pub(super) fn keep_within(&self, bytes: u64) {
        let most = self.slabs.keep_within(bytes);
        let slabs = || self.slabs.count();
        self.shrink_until(slabs().saturating_sub(most), || slabs() <= most);
    }

    /// Whether hot objects may take more memory than they have, as far as they decide it.
    pub(crate) fn may_grow(&self) -> bool {
        self.slabs.may_grow()
    }

    /// Bytes that slabs of hot objects take.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.count() as u64 * SLAB_BYTES as u64
    }

    /// Has the heap give back what was freed if it is worth it `now`. Hot objects do not grow into
    /// that memory before.
    pub(super) fn trim_heap(&self, trimmer: &mut Trimmer, now: Duration) {
        let (high, used) = (self.slabs.heap_high(), self.slabs.others_bytes());
        trimmer.look(high, used, self.budget.limit(), now);
    }

    /// Sets aside what the process has and the budget does not count.
    pub(super) fn count_in(&self, uncounted: &mut Uncounted, now: Duration) {
        uncounted.look(&self.budget, self.slabs.others_bytes(), now);
    }

    /// Bytes that hot objects would give to others.
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

/// Bytes that it takes beside them.
fn entry_bytes(record: &Record) -> u64 {
    ENTRY_BYTES + record.name.len() as u64
}

/// The metadata of a record in a slab, and its content in one or more.
type Pieces = (Bytes, Vec<Bytes>);

/// Copies the bytes of `record` into the stream in which `room` finds so many bytes; also returns
/// the list of the records that end where it ends.
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
