//! Hot objects: records served from memory, in slabs.
//!
//! Each shard fills one slab after another and evicts the oldest slab, unless half of its records
//! were asked for since: then the slab gets another round (CLOCK with slabs as its unit).
//!
//! A record is copied into slabs first ([`Hot::copy`]), under no lock of the engine: room for it
//! may have to be made by evicting others, whose memory the kernel takes back. Then it is published
//! ([`Hot::insert`]).
//!
//! Invariants: a record here is the newest committed one of its name. `stripe` removes it, under
//! the lock of the key's shard, before a newer record or a remove becomes visible. A shard that a
//! panic has left half changed is dropped ([`Hot::mend`]).
//! Cost: one lock and one map lookup a hit, which write to no cache line of another lane; about
//! [`ENTRY_BYTES`] beside the bytes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::pinned::{Pinned, PinnedRecords, RECORDS_MAX, Stored, list_bytes};
use super::recent_keys::RecentKeys;
use super::sharded_lock::{ReadLocked, ShardedLock, WriteLocked};
use super::slab::{Arena, Open, SLAB_BYTES};
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
    asked_for: AtomicBool,
    /// The same since the log last came round to it ([`Hot::peek`]).
    used: AtomicBool,
    /// A group read has loaded it, and no lookup has asked for it yet.
    prefetched: AtomicBool,
}

impl HotObject {
    fn was_asked_for(&self) {
        // A store takes the cache line from other processors, even of what is there already.
        for flag in [&self.asked_for, &self.used] {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
        if self.prefetched.load(Ordering::Relaxed) {
            self.prefetched.store(false, Ordering::Relaxed);
        }
    }

    fn pin(&self) -> Pinned {
        self.in_slab.pin(&self.stored)
    }
}

#[derive(Default)]
struct HotShard {
    map: KeyMap<HotObject>,
    open: Option<Open>,
    /// Of each slab from the oldest to the one being filled, the records that end in it.
    by_slab: VecDeque<PinnedRecords>,
    /// Records that were copied to end in the last of them, whether they came to lie there or not.
    copied: usize,
    /// What of [`Hot::slabs`] and [`Hot::bytes`] is this shard's.
    slabs: usize,
    bytes: u64,
}

impl HotShard {
    /// Whether `needed` bytes of a record can be copied in without another slab.
    fn has_room(&self, needed: usize) -> bool {
        let room = self.open.as_ref().map_or(0, Open::room);
        !self.by_slab.is_empty() && self.copied < RECORDS_MAX && room >= needed
    }

    /// Copies as much of `bytes` as has room; returns the copy and what is left.
    fn append<'a>(&mut self, bytes: &'a [u8]) -> Option<(Bytes, &'a [u8])> {
        let open = self.open.as_mut()?;
        let (now, later) = bytes.split_at(bytes.len().min(open.room()));
        Some((open.append(now), later))
    }
}

/// A record in slabs that is not known yet. Dropped, it never will be.
pub(crate) struct Copied {
    stored: Arc<Stored>,
    /// Of the slab in which it ends.
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

/// The hot objects.
pub(crate) struct Hot {
    shards: ShardedLock<HotShard, SHARDS>,
    /// Lookups answered.
    hits: BusyCounter,
    /// Prefetched objects that were evicted before a lookup asked for them, and the latest of them.
    prefetched_dropped: Counter,
    recently_dropped: RecentKeys,
    arena: Arc<Arena>,
    budget: Budget,
    next_victim: AtomicUsize,
    /// Slabs of all shards.
    slabs: AtomicUsize,
    /// How many there may be at all.
    slabs_most: usize,
    /// And for the sake of others on this machine.
    slabs_max: AtomicUsize,
    bytes: AtomicU64,
}

impl Hot {
    /// Hot objects that take what `budget` leaves, at most `bytes_max`.
    pub(crate) fn new(budget: &Budget, bytes_max: u64) -> io::Result<Arc<Self>> {
        let slabs = usize::try_from(budget.limit()).unwrap_or(usize::MAX) / SLAB_BYTES;
        let slabs_most = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SLAB_BYTES;
        let hot = Arc::new(Self {
            shards: ShardedLock::new((0..SHARDS).map(|_| HotShard::default())),
            hits: BusyCounter::default(),
            prefetched_dropped: Counter::default(),
            recently_dropped: RecentKeys::new(),
            arena: Arena::new(slabs)?,
            budget: budget.clone(),
            next_victim: AtomicUsize::new(0),
            slabs: AtomicUsize::new(0),
            slabs_most,
            slabs_max: AtomicUsize::new(slabs_most),
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

    fn write_at(&self, n: usize) -> WriteLocked<'_, HotShard> {
        self.whole(n, self.shards.write_anyway(n))
    }

    fn try_write_at(&self, n: usize) -> Option<WriteLocked<'_, HotShard>> {
        Some(self.whole(n, self.shards.try_write_anyway(n)?))
    }

    /// Shard `n`, without what a panic may have left half changed.
    fn whole<'a>(
        &self,
        n: usize,
        (mut shard, is_broken): (WriteLocked<'a, HotShard>, bool),
    ) -> WriteLocked<'a, HotShard> {
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
        self.slabs.fetch_sub(broken.slabs, Ordering::Relaxed);
        self.bytes.fetch_sub(broken.bytes, Ordering::Relaxed);
        self.shards.mended(n, shard);
    }

    /// A slab for a writer, of the same arena.
    pub(super) fn slab(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.arena.open_reserved(reservation)
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
        hot.was_asked_for();
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
        self.recently_dropped.take(key)
    }

    /// The record under `key`, if it is hot, and whether it was asked for since the last call. Does
    /// not count as asking for it.
    pub(crate) fn peek(&self, key: KeyHash) -> Option<(Pinned, bool)> {
        let shard = self.read(key);
        let hot = shard.map.get(&key)?;
        let used = hot.used.swap(false, Ordering::Relaxed);
        Some((hot.pin(), used))
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
        let record = &gone.stored.record;
        let bytes = (record.metadata.len() + record.content_bytes()) as u64;
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
        let key = record.fields.key;
        let bytes = record.metadata.len() + record.content_bytes();
        if bytes as u64 > self.budget.limit() / 32 {
            return None;
        }
        let reservation = self
            .budget
            .reserve(ENTRY_BYTES + record.name.len() as u64)?;
        // Metadata is used whole, so it does not straddle slabs; content may.
        let mut shard = self.with_room(self.write(key), key, record.metadata.len().max(1))?;
        let metadata = match record.metadata.is_empty() {
            true => Bytes::new(),
            false => shard.append(&record.metadata)?.0,
        };
        let mut content = Vec::with_capacity(2);
        for piece in &record.content {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                shard = self.with_room(shard, key, 1)?;
                let (copy, later) = shard.append(rest)?;
                content.push(copy);
                rest = later;
            }
        }
        shard.copied += 1;
        let in_slab = shard.by_slab.back()?.clone();
        drop(shard);
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
            _reservation: reservation,
        };
        record.hand_down_judged(&stored.record);
        let stored = Arc::new(stored);
        Some(Copied { stored, in_slab })
    }

    /// Makes `copied` the record of its key. Called under the lock of the key's shard.
    pub(crate) fn insert(&self, copied: Copied, arrival: Arrival) -> Option<Pinned> {
        let Copied { stored, in_slab } = copied;
        let key = stored.record.fields.key;
        let bytes = (stored.record.metadata.len() + stored.record.content_bytes()) as u64;
        let mut shard = self.write(key);
        // If its slab was evicted meanwhile, the record would never be evicted: drop the copy.
        if !shard.by_slab.iter().rev().any(|other| other.is(&in_slab)) {
            return None;
        }
        let old = self.take_out(&mut shard, key);
        let hot = HotObject {
            stored,
            in_slab,
            asked_for: AtomicBool::new(false),
            used: AtomicBool::new(false),
            prefetched: AtomicBool::new(arrival == Arrival::Prefetched),
        };
        hot.in_slab.put(Arc::clone(&hot.stored));
        let held = hot.pin();
        shard.map.insert(key, hot);
        shard.bytes += bytes;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        drop(shard);
        drop(old);
        Some(held)
    }

    /// The shard of `key` with room for `needed` bytes in its open slab. Begins another slab if
    /// there is none, at the cost of this shard's oldest ones when the budget is spent.
    ///
    /// The memory of dropped records is released only when the shard is unlocked, so it is unlocked
    /// for that; meanwhile another thread may have made room, or taken it.
    fn with_room<'a>(
        &'a self,
        mut shard: WriteLocked<'a, HotShard>,
        key: KeyHash,
        needed: usize,
    ) -> Option<WriteLocked<'a, HotShard>> {
        let once = shard.by_slab.len();
        let mut tries = 2 * once;
        while !shard.has_room(needed) {
            let most = self.slabs_max.load(Ordering::Relaxed);
            let may_grow = self.slabs.load(Ordering::Relaxed) < most;
            let open = || self.arena.open(&self.budget, list_bytes());
            if let Some(open) = may_grow.then(open).flatten() {
                shard.open = Some(open);
                shard.by_slab.push_back(PinnedRecords::new());
                shard.copied = 0;
                shard.slabs += 1;
                self.slabs.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if tries == 0 {
                return None;
            }
            self.evict_oldest(&mut shard, tries > once);
            tries -= 1;
            drop(shard);
            shard = self.write(key);
        }
        Some(shard)
    }

    /// Lets the oldest slab go, unless it was asked for and that counts.
    fn evict_oldest(&self, shard: &mut HotShard, asked_counts: bool) {
        let Some(oldest) = shard.by_slab.pop_front() else {
            return;
        };
        if shard.by_slab.is_empty() {
            shard.open = None;
        }
        let records = oldest.records();
        // What came after it under the same name is in the list of its own slab.
        let own = |stored: &Arc<Stored>| {
            let hot = shard.map.get(&stored.record.fields.key);
            hot.filter(|hot| Arc::ptr_eq(&hot.stored, stored))
        };
        let asked = |hot: &&HotObject| hot.asked_for.swap(false, Ordering::Relaxed);
        let asked_for = records.iter().filter_map(own).filter(asked).count();
        if asked_counts && 2 * asked_for > records.len() && !shard.by_slab.is_empty() {
            // Behind the newest full slab: the last one is still being filled.
            let behind = shard.by_slab.len() - 1;
            shard.by_slab.insert(behind, oldest);
            return;
        }
        shard.slabs -= 1;
        self.slabs.fetch_sub(1, Ordering::Relaxed);
        for stored in &records {
            let key = stored.record.fields.key;
            let is_it = |hot: &HotObject| Arc::ptr_eq(&hot.stored, stored);
            if shard.map.get(&key).is_some_and(is_it)
                && let Some(evicted) = self.take_out(shard, key)
            {
                self.note_if_unused(&evicted);
            }
        }
    }

    fn note_if_unused(&self, evicted: &HotObject) {
        let fields = &evicted.stored.record.fields;
        if fields.kind == Kind::Head && evicted.prefetched.load(Ordering::Relaxed) {
            self.prefetched_dropped.add(1);
            self.recently_dropped.note(fields.key);
        }
    }

    /// Lets go of about `bytes` bytes, the oldest slab of each shard in turn.
    fn shrink(&self, bytes: u64) {
        let target = self.budget.used().saturating_sub(bytes);
        let slabs = usize::try_from(bytes).unwrap_or(usize::MAX) / SLAB_BYTES;
        self.shrink_until(slabs, || self.budget.used() <= target);
    }

    /// Lets go of slabs, the oldest of each shard in turn, until it is `enough`, which takes about
    /// as many as `slabs`.
    fn shrink_until(&self, slabs: usize, enough: impl Fn() -> bool) {
        // All of them may be in one shard, and in the first half of the rounds have been asked for.
        let rounds = slabs.max(2).saturating_mul(2 * SHARDS);
        for round in 0..rounds {
            if enough() {
                return;
            }
            // Evicted slabs may still have their pages.
            self.arena.release_resident();
            if enough() || self.slabs.load(Ordering::Relaxed) == 0 {
                return;
            }
            let victim = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // What others are using is skipped: there are enough.
            if let Some(mut shard) = self.try_write_at(victim) {
                // In the second half of the rounds, slabs that were asked for are evicted too: the
                // caller waits for memory.
                self.evict_oldest(&mut shard, round < rounds / 2);
            }
        }
    }

    /// From now on takes no more than `bytes` for slabs, and lets go of what is beyond.
    pub(super) fn keep_within(&self, bytes: u64) {
        let most = usize::try_from(bytes / SLAB_BYTES as u64).unwrap_or(usize::MAX);
        let most = most.min(self.slabs_most);
        self.slabs_max.store(most, Ordering::Relaxed);
        self.arena.keep_within(most);
        let slabs = || self.slabs.load(Ordering::Relaxed);
        self.shrink_until(slabs().saturating_sub(most), || slabs() <= most);
    }

    /// Bytes that slabs of hot objects take.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.load(Ordering::Relaxed) as u64 * SLAB_BYTES as u64
    }

    /// Bytes of the budget that others take, mostly of the heap.
    pub(super) fn others_bytes(&self) -> u64 {
        let slabs = self.slab_bytes() + self.arena.resident_bytes();
        self.budget.used().saturating_sub(slabs)
    }

    /// Bytes that hot objects would give to others.
    pub(crate) fn reclaimable_bytes(&self) -> u64 {
        self.bytes() + self.arena.resident_bytes()
    }

    /// Bytes of content and metadata that are hot.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pinned::PinnedRecord;
    use super::*;
    use crate::format::Fields;
    use crate::key::Secret;
    use crate::object::Version;

    fn record(n: u32, content_bytes: usize) -> Record {
        let name = n.to_le_bytes();
        let fields = Fields {
            kind: Kind::Head,
            key: Secret::from_bytes([1; 32]).name(&name),
            version: Version(1),
            revision: 0,
            confirmed: Version(1),
            span: 0,
            incomplete: false,
            total: Some(content_bytes as u64),
            span_pages: 4,
            mark: 0,
            group: 0,
            useless_after: 0,
            fresh_until: 0,
            labels: Vec::new(),
        };
        let fill = n.to_le_bytes()[0];
        Record {
            fields,
            name: Bytes::copy_from_slice(&name),
            metadata: Bytes::from(vec![!fill; 100]),
            content: vec![Bytes::from(vec![fill; content_bytes])],
            at: None,
            storage: Storage::Disk,
            judged: AtomicU64::default(),
        }
    }

    fn insert(hot: &Hot, record: &Record) -> Option<Pinned> {
        hot.insert(hot.copy(record, None)?, Arrival::Wanted)
    }

    #[test]
    fn what_is_hot_is_what_was_inserted_and_the_budget_holds() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for n in 0..20_000 {
            insert(&hot, &record(n, random.usize(1..60_000)));
            assert!(budget.used() <= budget.limit());
            let asked = random.u32(n.saturating_sub(50)..=n);
            if let Some(found) = hot.hit(record(asked, 0).fields.key, |_| true) {
                let fill = asked.to_le_bytes()[0];
                assert!(
                    found
                        .content
                        .iter()
                        .all(|piece| piece.iter().all(|b| *b == fill))
                );
                assert!(found.metadata.iter().all(|b| *b == !fill));
                assert_eq!(found.content_bytes() as u64, found.fields.total.unwrap());
            }
        }
        assert!(hot.bytes() > 1 << 20);
    }

    #[test]
    fn hot_objects_make_room_for_others_down_to_nothing() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        for n in 0..2_000 {
            insert(&hot, &record(n, 8_000));
        }
        let mut held = Vec::new();
        while let Some(reservation) = budget.reserve(64 << 10) {
            held.push(reservation);
        }
        assert!(held.len() >= 60, "{} of 64", held.len());
    }

    #[test]
    fn no_more_is_hot_than_others_leave() {
        let budget = Budget::new(16 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let fill = |from: u32| {
            for n in from..from + 2_000 {
                insert(&hot, &record(n, 8_000));
            }
        };
        fill(0);
        assert!(hot.slab_bytes() > 12 << 20, "{}", hot.slab_bytes());
        let used = budget.used();
        hot.keep_within(4 << 20);
        assert!(hot.slab_bytes() <= 4 << 20);
        assert!(used - budget.used() >= 8 << 20);
        fill(10_000);
        assert!(hot.slab_bytes() <= 4 << 20);
        assert!(hot.bytes() >= 2 << 20, "{}", hot.bytes());
        hot.keep_within(16 << 20);
        fill(20_000);
        assert!(hot.slab_bytes() > 12 << 20, "{}", hot.slab_bytes());
        hot.keep_within(0);
        assert_eq!((hot.slab_bytes(), hot.bytes()), (0, 0));
    }

    #[test]
    fn an_object_asked_for_again_and_again_stays() {
        let budget = Budget::new(8 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let favourite = record(0, 1_000);
        insert(&hot, &favourite);
        let mut lost = 0;
        for n in 1..20_000 {
            insert(&hot, &record(n, 8_000));
            if hot.hit(favourite.fields.key, |_| true).is_none() {
                lost += 1;
                insert(&hot, &favourite);
            }
        }
        assert!(lost < 400, "lost {lost} times");
    }

    #[test]
    fn what_is_held_outlives_its_slab_and_then_all_memory_comes_back() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let held = insert(&hot, &record(7, 5_000)).unwrap();
        let piece = held.content(0);
        hot.keep_within(0);
        assert!(hot.hit(held.fields.key, |_| true).is_none());
        hot.keep_within(4 << 20);
        for n in 100..1_000 {
            insert(&hot, &record(n, 8_000));
        }
        assert!(held.metadata.iter().all(|b| *b == !7));
        drop(held);
        assert!(piece.len() == 5_000 && piece.iter().all(|b| *b == 7));
        hot.keep_within(0);
        assert!(budget.used() > 64 << 10);
        drop(piece);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_came_later_under_its_name_stays_when_a_slab_goes() {
        let budget = Budget::new(64 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let again = record(0, 1_000);
        insert(&hot, &again);
        for n in 1..2_000 {
            insert(&hot, &record(n, 8_000));
        }
        insert(&hot, &again);
        hot.keep_within(8 << 20);
        assert!(hot.hit(again.fields.key, |_| true).is_some());
        assert!(hot.hit(record(1, 0).fields.key, |_| true).is_none());
    }

    #[test]
    fn a_pinned_record_outlives_its_owner_and_then_its_memory_comes_back() {
        let budget = Budget::new(1 << 20);
        let record = Arc::new(record(7, 5_000));
        let pinned = PinnedRecord::new(&record, &budget).unwrap();
        let used = budget.used();
        assert!(used > 0);
        let held: Vec<_> = std::thread::scope(|scope| {
            let holds = || pinned.pin();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(holds)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        drop((pinned, record));
        assert!(held.iter().all(|it| it.content(0).iter().all(|b| *b == 7)));
        let piece = held[0].content(0);
        assert_eq!(budget.used(), used);
        drop(held);
        assert!(piece.len() == 5_000 && piece[0] == 7);
        drop(piece);
        assert_eq!(budget.used(), 0);
        let full = Budget::new(100);
        assert!(PinnedRecord::new(&Arc::new(self::record(8, 1)), &full).is_none());
    }

    #[test]
    fn what_a_panic_left_half_changed_is_dropped_and_the_rest_is_served() {
        let budget = Budget::new(16 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let records: Vec<Record> = (0..200).map(|n| record(n, 2_000)).collect();
        for record in &records {
            insert(&hot, record).unwrap();
        }
        let held = hot.peek(records[7].fields.key).unwrap().0;
        let broken = shard(records[7].fields.key);
        // The first call is under the lock of a reader, which stays whole.
        let calls = AtomicUsize::new(0);
        let panics = || {
            hot.remove_all(|record| {
                let is_it = record.fields.key == records[7].fields.key;
                let calls = calls.fetch_add(usize::from(is_it), Ordering::Relaxed);
                assert!(!is_it || calls == 0, "on purpose");
                is_it
            });
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        let is_broken = |it: &&Record| shard(it.fields.key) == broken;
        for record in &records {
            let hit = hot.hit(record.fields.key, |_| true);
            assert_eq!(hit.is_none(), is_broken(&record));
        }
        let left = records.iter().filter(|it| !is_broken(it)).count() as u64;
        assert_eq!(hot.bytes(), left * 2_100);
        // What is held stays, and the shard is used again.
        assert!(held.content(0).iter().all(|byte| *byte == 7));
        for record in records.iter().filter(is_broken) {
            assert!(insert(&hot, record).is_some());
            assert!(hot.contains(record.fields.key));
        }
        assert_eq!(hot.bytes(), 200 * 2_100);
        hot.keep_within(0);
        assert_eq!((hot.bytes(), hot.slab_bytes()), (0, 0));
        drop(held);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_copy_that_is_not_made_known_leaves_nothing() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let copied = hot.copy(&record(1, 1_000), None).unwrap();
        assert!(!hot.contains(record(1, 0).fields.key));
        drop(copied);
        // One whose slab was let go of meanwhile is not made known: nothing would let go of it.
        let copied = hot.copy(&record(2, 1_000), None).unwrap();
        hot.keep_within(0);
        assert!(hot.insert(copied, Arrival::Wanted).is_none());
        assert_eq!((hot.bytes(), hot.slab_bytes(), budget.used()), (0, 0, 0));
    }

    #[test]
    fn threads_that_copy_into_one_shard_at_once_lose_no_memory() {
        let budget = Budget::new(2 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (hot, budget) = (&hot, &budget);
                scope.spawn(move || {
                    for n in 0..2_000 {
                        let own = record(thread * 10_000 + n, 3_000 + n as usize % 20_000);
                        if let Some(held) = insert(hot, &own) {
                            let fill = n.wrapping_add(thread * 10_000).to_le_bytes()[0];
                            assert!((0..held.content.len()).all(|piece| {
                                held.content(piece).iter().all(|byte| *byte == fill)
                            }));
                        }
                        assert!(budget.used() <= budget.limit());
                    }
                });
            }
        });
        hot.keep_within(0);
        assert_eq!((hot.bytes(), hot.slab_bytes(), budget.used()), (0, 0, 0));
    }

    #[test]
    fn all_slabs_are_let_go_of_if_they_are_in_one_shard() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let records = (0..).map(|n| record(n, 30_000));
        let mut of_one = records.filter(|record| shard(record.fields.key) == 3);
        while hot.slab_bytes() < 20 * SLAB_BYTES as u64 {
            let record = of_one.next().unwrap();
            insert(&hot, &record);
            hot.hit(record.fields.key, |_| true);
        }
        hot.keep_within(0);
        assert_eq!((hot.bytes(), hot.slab_bytes(), budget.used()), (0, 0, 0));
    }

    #[test]
    fn what_was_prefetched_and_evicted_without_a_lookup_is_told_once() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let prefetch = |n| {
            let copied = hot.copy(&record(n, 8_000), None).unwrap();
            hot.insert(copied, Arrival::Prefetched).unwrap();
        };
        (0..100).for_each(prefetch);
        for n in 0..50 {
            assert!(hot.hit(record(n, 0).fields.key, |_| true).is_some());
        }
        hot.keep_within(0);
        assert_eq!(hot.prefetched_dropped(), 50);
        let told = || (0..100).filter(|n| hot.dropped_before_use(record(*n, 0).fields.key));
        let first: Vec<u32> = told().collect();
        // Two of them may have one place in the table.
        assert!(first.len() >= 48 && first[0] >= 50, "{first:?}");
        assert_eq!(told().count(), 0);
    }

    #[test]
    fn a_removed_object_is_gone() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let record = record(1, 10);
        insert(&hot, &record);
        assert!(hot.hit(record.fields.key, |_| true).is_some());
        hot.remove(record.fields.key);
        assert!(hot.hit(record.fields.key, |_| true).is_none());
        assert_eq!(hot.bytes(), 0);
    }
}
