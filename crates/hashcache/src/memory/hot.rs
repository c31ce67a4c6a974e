//! Hot objects: records served from memory, in slabs.
//!
//! Each shard fills one slab after another and lets the oldest go, unless half of what lies in it
//! was asked for since: then it gets another round (CLOCK at the grain of a slab).
//!
//! Invariant: a record here is the newest committed one of its name; `cache` removes it, under the
//! lock of the key's shard, before it lets a newer one or a remove be seen.
//! Cost: one lock and one map look-up a hit, which write to nothing that another lane's threads
//! write to; about [`ENTRY_BYTES`] beside the bytes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::pinned::{Held, Shelf, Stored};
use super::sharded_lock::{ReadLocked, WideLocks, WriteLocked};
use super::slab::{Arena, Open, SLAB_BYTES};
use crate::address::LogPos;
use crate::key::{KeyHash, KeyMap};
use crate::record::Record;
use crate::stats::BusyCounter;

const SHARDS: usize = 16;
/// What a hot record takes beside its bytes: map entry, record, handles of its pieces. Measured by
/// the allocator's own count, rounded up.
const ENTRY_BYTES: u64 = 512;

/// What the map knows of a record.
struct HotObject {
    stored: Arc<Stored>,
    shelf: Shelf,
    asked_for: AtomicBool,
    /// The same since the log last came round to it ([`Hot::peek`]).
    used: AtomicBool,
}

impl HotObject {
    fn was_asked_for(&self) {
        // A store takes the cache line from other processors, even of what is there already.
        for flag in [&self.asked_for, &self.used] {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    fn hold(&self) -> Held {
        self.shelf.hold(&self.stored)
    }
}

#[derive(Default)]
struct Shard {
    map: KeyMap<HotObject>,
    open: Option<Open>,
    /// Of each slab from the oldest to the one being filled, the records that end in it.
    shelves: VecDeque<Shelf>,
}

fn shard(key: KeyHash) -> usize {
    // Bits that no map's buckets use: neither the lowest nor the seven highest.
    usize::from(key.to_bytes()[14] & 0xf)
}

/// The hot objects.
pub(crate) struct Hot {
    shards: WideLocks<Shard, SHARDS>,
    /// Look-ups answered.
    hits: BusyCounter,
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
            shards: WideLocks::new((0..SHARDS).map(|_| Shard::default())),
            hits: BusyCounter::default(),
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

    fn read(&self, key: KeyHash) -> ReadLocked<'_, Shard> {
        self.shards.read(shard(key))
    }

    fn write(&self, key: KeyHash) -> WriteLocked<'_, Shard> {
        self.shards.write(shard(key))
    }

    /// A slab for a writer, of the same arena.
    pub(super) fn slab(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.arena.open_reserved(reservation)
    }

    /// The record under `key`, if it is hot and is what is `wanted`: a hit.
    pub(crate) fn hit(&self, key: KeyHash, wanted: impl FnOnce(&Record) -> bool) -> Option<Held> {
        let shard = self.read(key);
        let hot = shard.map.get(&key).filter(|it| wanted(&it.stored.record))?;
        hot.was_asked_for();
        self.hits.add(1);
        Some(hot.hold())
    }

    /// Look-ups that were hits.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.value()
    }

    /// The record under `key`, if it is hot, and whether it was asked for since the last call. Does
    /// not count as asking for it.
    pub(crate) fn peek(&self, key: KeyHash) -> Option<(Held, bool)> {
        let shard = self.read(key);
        let hot = shard.map.get(&key)?;
        let used = hot.used.swap(false, Ordering::Relaxed);
        Some((hot.hold(), used))
    }

    /// Whether the record under `key` is hot. Does not count as asking for it.
    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.read(key).map.contains_key(&key)
    }

    /// Forgets the record under `key`.
    ///
    /// Called under the lock of the key's shard, so that what is not there does not come meanwhile:
    /// of most objects that are put there is nothing to forget, and to look is to take one lane's
    /// lock instead of all.
    pub(crate) fn remove(&self, key: KeyHash) {
        if !self.contains(key) {
            return;
        }
        let gone = self.write(key).map.remove(&key);
        self.count_out(gone.as_ref());
    }

    /// Forgets all records that are `gone`, under one shard's lock at a time.
    pub(crate) fn remove_all(&self, gone: impl Fn(&Record) -> bool) {
        for n in 0..SHARDS {
            let keys: Vec<KeyHash> = {
                let shard = self.shards.read(n);
                let is_gone = |(_, hot): &(&KeyHash, &HotObject)| gone(&hot.stored.record);
                let hot = shard.map.iter().filter(is_gone);
                hot.map(|(key, _)| *key).collect()
            };
            for key in keys {
                let mut shard = self.write(key);
                // Another record may have come under this key.
                if shard
                    .map
                    .get(&key)
                    .is_some_and(|hot| gone(&hot.stored.record))
                {
                    let removed = shard.map.remove(&key);
                    drop(shard);
                    self.count_out(removed.as_ref());
                }
            }
        }
    }

    /// Copies `record`, which lies `at`, into slabs; it may find no room. Called under the lock of
    /// the key's shard.
    pub(crate) fn insert(&self, record: &Record, at: Option<LogPos>) -> Option<Held> {
        let key = record.fields.key;
        let bytes = record.metadata.len() + record.content_bytes();
        if bytes as u64 > self.budget.limit() / 32 {
            return None;
        }
        let reservation = self
            .budget
            .reserve(ENTRY_BYTES + record.name.len() as u64)?;
        let mut shard = self.write(key);
        let (metadata, content) = self.copy(&mut shard, record)?;
        let stored = Stored {
            record: Record {
                fields: record.fields.clone(),
                name: record.name.clone(),
                metadata,
                content,
                at,
                judged: AtomicU64::default(),
            },
            _reservation: reservation,
        };
        let hot = HotObject {
            stored: Arc::new(stored),
            shelf: shard.shelves.back()?.clone(),
            asked_for: AtomicBool::new(false),
            used: AtomicBool::new(false),
        };
        // Last, because making room may have let go of the slab in which it begins: a record that
        // is on no shelf would never be let go of.
        hot.shelf.put(Arc::clone(&hot.stored));
        let held = hot.hold();
        let old = shard.map.insert(key, hot);
        drop(shard);
        self.count_out(old.as_ref());
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Some(held)
    }

    fn copy(&self, shard: &mut Shard, record: &Record) -> Option<(Bytes, Vec<Bytes>)> {
        // Metadata is used whole, so it does not straddle slabs; content may.
        let full = |shard: &Shard| shard.shelves.back().is_none_or(Shelf::is_full);
        let room = |shard: &Shard| shard.open.as_ref().map_or(0, Open::room);
        if full(shard) || room(shard) < record.metadata.len().max(1) {
            self.next_slab(shard)?;
        }
        let open = shard.open.as_mut()?;
        let metadata = match record.metadata.is_empty() {
            true => Bytes::new(),
            false => open.append(&record.metadata),
        };
        let mut content = Vec::with_capacity(2);
        for piece in &record.content {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                if shard.open.as_ref().is_none_or(|open| open.room() == 0) {
                    self.next_slab(shard)?;
                }
                let open = shard.open.as_mut()?;
                let (now, later) = rest.split_at(rest.len().min(open.room()));
                content.push(open.append(now));
                rest = later;
            }
        }
        Some((metadata, content))
    }

    /// Begins another slab, at the cost of this shard's oldest ones when the budget is spent.
    fn next_slab(&self, shard: &mut Shard) -> Option<()> {
        let once = shard.shelves.len();
        let mut tries = 2 * once;
        shard.open = loop {
            let most = self.slabs_max.load(Ordering::Relaxed);
            let may_grow = self.slabs.load(Ordering::Relaxed) < most;
            match may_grow.then(|| self.arena.open(&self.budget)).flatten() {
                Some(open) => break Some(open),
                None if tries == 0 => return None,
                None => {
                    self.evict_oldest(shard, tries > once);
                    tries -= 1;
                }
            }
        };
        shard.shelves.push_back(Shelf::new());
        self.slabs.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    /// Lets the oldest slab go, unless it was asked for and that counts.
    fn evict_oldest(&self, shard: &mut Shard, asked_counts: bool) {
        let Some(shelf) = shard.shelves.pop_front() else {
            return;
        };
        if shard.shelves.is_empty() {
            shard.open = None;
        }
        let records = shelf.records();
        // What came after it under the same name is on a shelf of its own.
        let own = |stored: &Arc<Stored>| {
            let hot = shard.map.get(&stored.record.fields.key);
            hot.filter(|hot| Arc::ptr_eq(&hot.stored, stored))
        };
        let asked = |hot: &&HotObject| hot.asked_for.swap(false, Ordering::Relaxed);
        let asked_for = records.iter().filter_map(own).filter(asked).count();
        if asked_counts && 2 * asked_for > records.len() && !shard.shelves.is_empty() {
            // Behind the newest full slab: the last one is still being filled.
            let behind = shard.shelves.len() - 1;
            shard.shelves.insert(behind, shelf);
            return;
        }
        self.slabs.fetch_sub(1, Ordering::Relaxed);
        for stored in &records {
            let key = stored.record.fields.key;
            let is_it = |hot: &HotObject| Arc::ptr_eq(&hot.stored, stored);
            if shard.map.get(&key).is_some_and(is_it) {
                let gone = shard.map.remove(&key);
                self.count_out(gone.as_ref());
            }
        }
    }

    fn count_out(&self, gone: Option<&HotObject>) {
        if let Some(HotObject { stored, .. }) = gone {
            let bytes = stored.record.metadata.len() + stored.record.content_bytes();
            self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
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
        let rounds = SHARDS.max(slabs).saturating_mul(4);
        for round in 0..rounds {
            if enough() || self.slabs.load(Ordering::Relaxed) == 0 {
                return;
            }
            let victim = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            // The caller may hold a hot shard's lock (an insert that reserves); skipping it is
            // enough.
            if let Some(mut shard) = self.shards.try_write(victim) {
                // Where all was asked for, looking for more that was not would keep the caller.
                self.evict_oldest(&mut shard, round < rounds / 2);
            }
        }
    }

    /// From now on takes no more than `bytes` for slabs, and lets go of what is beyond.
    pub(super) fn keep_within(&self, bytes: u64) {
        let most = usize::try_from(bytes / SLAB_BYTES as u64).unwrap_or(usize::MAX);
        let most = most.min(self.slabs_most);
        self.slabs_max.store(most, Ordering::Relaxed);
        let slabs = || self.slabs.load(Ordering::Relaxed);
        self.shrink_until(slabs().saturating_sub(most), || slabs() <= most);
    }

    /// Bytes that slabs of hot objects take.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slabs.load(Ordering::Relaxed) as u64 * SLAB_BYTES as u64
    }

    /// Bytes of the budget that others take, mostly of the heap.
    pub(super) fn others_bytes(&self) -> u64 {
        self.budget.used().saturating_sub(self.slab_bytes())
    }

    /// Bytes of content and metadata that are hot.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pinned::Stand;
    use super::*;
    use crate::format::{Fields, Kind};
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
            labels: Vec::new(),
        };
        let fill = n.to_le_bytes()[0];
        Record {
            fields,
            name: Bytes::copy_from_slice(&name),
            metadata: Bytes::from(vec![!fill; 100]),
            content: vec![Bytes::from(vec![fill; content_bytes])],
            at: None,
            judged: AtomicU64::default(),
        }
    }

    #[test]
    fn what_is_hot_is_what_was_inserted_and_the_budget_holds() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        for n in 0..20_000 {
            hot.insert(&record(n, random.usize(1..60_000)), None);
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
            hot.insert(&record(n, 8_000), None);
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
                hot.insert(&record(n, 8_000), None);
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
        hot.insert(&favourite, None);
        let mut lost = 0;
        for n in 1..20_000 {
            hot.insert(&record(n, 8_000), None);
            if hot.hit(favourite.fields.key, |_| true).is_none() {
                lost += 1;
                hot.insert(&favourite, None);
            }
        }
        assert!(lost < 400, "lost {lost} times");
    }

    #[test]
    fn what_is_held_outlives_its_slab_and_then_all_memory_comes_back() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let held = hot.insert(&record(7, 5_000), None).unwrap();
        let piece = held.content(0);
        hot.keep_within(0);
        assert!(hot.hit(held.fields.key, |_| true).is_none());
        hot.keep_within(4 << 20);
        for n in 100..1_000 {
            hot.insert(&record(n, 8_000), None);
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
        hot.insert(&again, None);
        for n in 1..2_000 {
            hot.insert(&record(n, 8_000), None);
        }
        hot.insert(&again, None);
        hot.keep_within(8 << 20);
        assert!(hot.hit(again.fields.key, |_| true).is_some());
        assert!(hot.hit(record(1, 0).fields.key, |_| true).is_none());
    }

    #[test]
    fn a_record_on_a_stand_outlives_it_and_then_its_memory_comes_back() {
        let budget = Budget::new(1 << 20);
        let record = Arc::new(record(7, 5_000));
        let stand = Stand::new(&record, &budget).unwrap();
        let used = budget.used();
        assert!(used > 0);
        let held: Vec<_> = std::thread::scope(|scope| {
            let holds = || stand.hold();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(holds)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        drop((stand, record));
        assert!(held.iter().all(|it| it.content(0).iter().all(|b| *b == 7)));
        let piece = held[0].content(0);
        assert_eq!(budget.used(), used);
        drop(held);
        assert!(piece.len() == 5_000 && piece[0] == 7);
        drop(piece);
        assert_eq!(budget.used(), 0);
        let full = Budget::new(100);
        assert!(Stand::new(&Arc::new(self::record(8, 1)), &full).is_none());
    }

    #[test]
    fn a_removed_object_is_gone() {
        let budget = Budget::new(4 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        let record = record(1, 10);
        hot.insert(&record, None);
        assert!(hot.hit(record.fields.key, |_| true).is_some());
        hot.remove(record.fields.key);
        assert!(hot.hit(record.fields.key, |_| true).is_none());
        assert_eq!(hot.bytes(), 0);
    }
}
