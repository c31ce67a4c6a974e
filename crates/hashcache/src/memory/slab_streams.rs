//! The slabs of the hot objects: which records lie side by side, and which slab is evicted next.
//!
//! Records are appended to a few streams, each of which fills one slab after another. The records
//! of a page group go to one stream, so that they lie side by side: if one object of a page is
//! missing, reading it costs as much as reading the page. Other records are spread by their keys.
//!
//! Most objects are asked for once and never again. So new records arrive in streams that may take
//! a quarter of the slabs, as soon as there is something better for the rest: the stream of what is
//! kept (S3-FIFO, with slabs as its unit and without counts of hits). Of the streams of new
//! records, the slab that was filled first is evicted. If more than half of its records were asked
//! for, it moves to what is kept as it is; else those that were asked for are copied there. A
//! record that is put or loaded again soon after its eviction is kept at once. Slabs of kept
//! records are evicted in the same way: kept records that were asked for again stay for another
//! round. The quarter grows, to three quarters at most, while it is too small for the pages that
//! clients are loading.
//!
//! Called by `hot`, which finds the records by their keys.
//!
//! Invariant: an evicted slab takes no further record. The lock of a stream is taken under no other
//! lock; under it, only the locks of a slab's list, of the arena and of the budget are taken.
//! Cost: one lock a record, under which it is copied; a look at each stream, at most
//! [`STREAMS_MAX`], for each slab that is evicted.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::heap::HeapHigh;
use super::pinned::{PinnedRecords, RECORDS_MAX, list_bytes};
use super::recent_keys::RecentKeys;
use super::slab::{Arena, Open, SLAB_BYTES};
use super::stored::Stored;
use super::wakes::{Marked, marked};
use crate::format::Fields;
use crate::key::KeyHash;

const STREAMS_MAX: usize = 16;
/// A stream keeps a slab open that is half empty on average: with so many slabs for each stream,
/// that is a thirty-second part of the memory.
const STREAM_SLABS: usize = 16;
/// New records may take this part of the slabs when others are kept.
const ARRIVALS_PART: usize = 4;
/// They may take one slab more each time a slab is evicted whose prefetched records no lookup has
/// asked for yet. So many evictions of other slabs undo that.
const WIDENING: usize = 8;
/// Evicted records that are remembered, for each slab.
const LEFT_PER_SLAB: usize = 8;
/// The memory for that.
const LEFT_BYTES: u64 = (LEFT_PER_SLAB * size_of::<u32>()) as u64;

/// See the module's head.
pub(super) struct SlabStreams {
    /// Those of new records, and last the one of what is kept.
    streams: Box<[Stream]>,
    /// Records that were new and have left before they were asked for again.
    left: RecentKeys,
    arena: Arc<Arena>,
    budget: Budget,
    heap_high: HeapHigh,
    /// Slabs of all streams.
    slabs: AtomicUsize,
    /// Those of them that are kept.
    kept: AtomicUsize,
    /// By how much the streams of new records may be larger than their part, in units of
    /// 1 / [`WIDENING`] of a slab.
    widened: AtomicUsize,
    /// How many there may be at all.
    slabs_most: usize,
    /// The same while other processes need memory.
    slabs_max: AtomicUsize,
    /// Number of the next slab that is begun, filled or kept: the smaller, the older.
    next_age: AtomicU64,
}

struct Stream {
    slabs: Mutex<StreamSlabs>,
    /// Age of its oldest slab; [`NO_SLAB`] without one.
    oldest: AtomicU64,
}

const NO_SLAB: u64 = u64::MAX;

/// Whole at any time, whatever has panicked: at worst the slab that is being filled has bytes that
/// belong to no record.
#[derive(Default)]
pub(super) struct StreamSlabs {
    filling: Option<FillingSlab>,
    /// What is filled after it.
    next: Option<FillingSlab>,
    /// From the oldest on.
    full: VecDeque<FullSlab>,
}

/// A stream, locked.
pub(super) type LockedStream<'a> = Marked<MutexGuard<'a, StreamSlabs>>;

struct FillingSlab {
    open: Open,
    records: PinnedRecords,
    /// Records that were copied to end in it, whether they came to lie there or not.
    copied: usize,
    age: u64,
}

struct FullSlab {
    records: PinnedRecords,
    age: u64,
}

/// Whether a slab gets another round if more than half of its records were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondChance {
    Given,
    Denied,
}

/// What becomes of the oldest slab of a stream.
enum Oldest {
    /// It is of no further use.
    Evicted(Evicted),
    /// More than half of it was asked for.
    Kept(PinnedRecords),
    /// The same, but it is still being filled.
    StaysOpen,
}

/// The records of an evicted slab, which the caller must forget; they are still found until then.
#[derive(Default)]
pub(super) struct Evicted {
    pub(super) records: Vec<Arc<Stored>>,
    /// Those of them that were asked for.
    pub(super) asked_for: Vec<Arc<Stored>>,
    /// They were new: nothing of the slab had been kept before.
    pub(super) was_new: bool,
}

impl StreamSlabs {
    /// Whether `needed` bytes of a record can be appended without another slab.
    pub(super) fn has_room(&self, needed: usize) -> bool {
        let filling = self.filling.as_ref();
        filling.is_some_and(|it| it.copied < RECORDS_MAX && it.open.room() >= needed)
    }

    /// Copies as much of `bytes` as has room; returns the copy and what is left.
    pub(super) fn append<'a>(&mut self, bytes: &'a [u8]) -> Option<(Bytes, &'a [u8])> {
        let open = &mut self.filling.as_mut()?.open;
        let (now, later) = bytes.split_at(bytes.len().min(open.room()));
        Some((open.append(now), later))
    }

    /// The list of the records that end where the last bytes were appended, for one more.
    pub(super) fn end_record(&mut self) -> Option<PinnedRecords> {
        let filling = self.filling.as_mut()?;
        filling.copied += 1;
        Some(filling.records.clone())
    }

    /// Takes the oldest slab out, unless it is being filled and gets a second chance: then its age
    /// becomes `now`.
    fn take_oldest(&mut self, chance: SecondChance, now: u64) -> Option<Oldest> {
        if self.filling.is_none() {
            self.filling = self.next.take();
        }
        let oldest = self.full.front().map(|it| &it.records);
        let records = oldest
            .or(self.filling.as_ref().map(|it| &it.records))?
            .clone();
        let asked_for = records.take_asked_for();
        let is_kept = chance == SecondChance::Given && 2 * asked_for.len() > records.len();
        if self.full.pop_front().is_none() {
            if is_kept {
                self.filling.iter_mut().for_each(|it| it.age = now);
                return Some(Oldest::StaysOpen);
            }
            self.filling = None;
        }
        if is_kept {
            return Some(Oldest::Kept(records));
        }
        let asked_for = match chance {
            SecondChance::Given => asked_for,
            SecondChance::Denied => Vec::new(),
        };
        Some(Oldest::Evicted(Evicted {
            records: records.close(),
            asked_for,
            was_new: false,
        }))
    }

    fn age(&self) -> u64 {
        let full = self.full.front().map(|it| it.age);
        let open = self.filling.as_ref().or(self.next.as_ref());
        full.or(open.map(|it| it.age)).unwrap_or(NO_SLAB)
    }
}

impl SlabStreams {
    /// Slabs that take what `budget` leaves, at most `bytes_max`.
    pub(super) fn new(budget: &Budget, bytes_max: u64) -> io::Result<Self> {
        let slabs = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / SLAB_BYTES;
        let slabs_most = slabs(bytes_max);
        let all = slabs(budget.limit());
        let streams = streams_for(all.min(slabs_most)) + 1;
        let stream = || Stream {
            slabs: Mutex::default(),
            oldest: AtomicU64::new(NO_SLAB),
        };
        let arena = Arena::new(all)?;
        arena.keep_within(all.min(slabs_most));
        Ok(Self {
            streams: (0..streams).map(|_| stream()).collect(),
            left: RecentKeys::new(LEFT_PER_SLAB * all.min(slabs_most)),
            arena,
            heap_high: HeapHigh::default(),
            budget: budget.clone(),
            slabs: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            widened: AtomicUsize::new(0),
            slabs_most,
            slabs_max: AtomicUsize::new(slabs_most),
            next_age: AtomicU64::new(0),
        })
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Slabs of all streams.
    pub(super) fn count(&self) -> usize {
        self.slabs.load(Ordering::Relaxed)
    }

    /// Whether there may be another slab, if the budget has room for it.
    pub(super) fn may_grow(&self) -> bool {
        self.count() < self.slabs_max.load(Ordering::Relaxed)
    }

    /// From now on there are no more than fit into `bytes`, as soon as those beyond are evicted;
    /// returns how many.
    pub(super) fn keep_within(&self, bytes: u64) -> usize {
        let most = usize::try_from(bytes / SLAB_BYTES as u64).unwrap_or(usize::MAX);
        let most = most.min(self.slabs_most);
        self.slabs_max.store(most, Ordering::Relaxed);
        self.arena.keep_within(most);
        most
    }

    /// A slab for a writer, of the same arena.
    pub(super) fn open_for_writer(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.arena.open_reserved(reservation)
    }

    /// The stream of the record with these `fields`, which has just arrived.
    pub(super) fn stream_of(&self, fields: &Fields) -> usize {
        if self.left.contains(fields.key.spread()) {
            return self.kept();
        }
        let [a, b, ..] = match fields.group {
            0 => fields.key.spread(),
            // Callers may number groups.
            group => group.wrapping_mul(ODD).to_be_bytes(),
        };
        // Where there may be fewer slabs, fewer streams are filled.
        let streams = streams_for(self.slabs_max.load(Ordering::Relaxed)).min(self.kept());
        usize::from(u16::from_be_bytes([a, b])) % streams
    }

    /// The stream of what is kept.
    pub(super) fn kept(&self) -> usize {
        self.streams.len() - 1
    }

    /// Stream `n` with room for `needed` bytes in the slab that it fills, another one if need be;
    /// `None` when there may be no other slab.
    pub(super) fn with_room(&self, n: usize, needed: usize) -> Option<LockedStream<'_>> {
        let mut stream = self.lock(n);
        if stream.has_room(needed) {
            return Some(stream);
        }
        let begun = match stream.next.take() {
            Some(next) => next,
            None => self.begin(n)?,
        };
        if let Some(filled) = stream.filling.replace(begun) {
            self.queue(&mut stream, filled.records);
        }
        self.note_oldest(n, &stream);
        Some(stream)
    }

    /// An empty slab for stream `n`.
    fn begin(&self, n: usize) -> Option<FillingSlab> {
        if !self.may_grow() {
            return None;
        }
        // Memory that others have freed may still be the heap's.
        let freed = self
            .heap_high
            .freed(self.others_bytes(), self.budget.limit());
        let beside = list_bytes() + LEFT_BYTES;
        let begun = FillingSlab {
            open: self.arena.open(&self.budget, beside, freed)?,
            records: PinnedRecords::new(),
            copied: 0,
            age: self.age(),
        };
        self.slabs.fetch_add(1, Ordering::Relaxed);
        if n == self.kept() {
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
        Some(begun)
    }

    /// Bytes of the budget that others take, mostly of the heap.
    pub(super) fn others_bytes(&self) -> u64 {
        let slabs = self.count() as u64 * SLAB_BYTES as u64 + self.arena.resident_bytes();
        self.budget.used().saturating_sub(slabs)
    }

    /// What the heap has of the system.
    pub(super) fn heap_high(&self) -> &HeapHigh {
        &self.heap_high
    }

    /// Opens the next slab for kept records ahead of time: while a slab is being evicted there is
    /// no room to open one.
    pub(super) fn prepare(&self) {
        let n = self.kept();
        let mut stream = self.lock(n);
        if stream.next.is_none() {
            stream.next = self.begin(n);
            self.note_oldest(n, &stream);
        }
    }

    /// Takes the oldest slab out, unless it was asked for and gets a second chance.
    pub(super) fn evict_oldest(&self, chance: SecondChance) -> Evicted {
        let Some((n, oldest)) = self.oldest() else {
            return Evicted::default();
        };
        let taken = {
            let mut stream = self.lock(n);
            if stream.age() != oldest {
                // Another thread has just evicted that slab: the next may be the youngest of all.
                return Evicted::default();
            }
            let taken = stream.take_oldest(chance, self.age());
            self.note_oldest(n, &stream);
            taken
        };
        match taken {
            None | Some(Oldest::StaysOpen) => Evicted::default(),
            Some(Oldest::Kept(records)) => {
                self.keep(n, records);
                Evicted::default()
            }
            Some(Oldest::Evicted(mut evicted)) => {
                self.slabs.fetch_sub(1, Ordering::Relaxed);
                if n == self.kept() {
                    self.kept.fetch_sub(1, Ordering::Relaxed);
                } else {
                    evicted.was_new = true;
                }
                evicted
            }
        }
    }

    /// How often a slab was looked at to evict it, for tests: each look takes a number.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.next_age.load(Ordering::Relaxed)
    }

    /// A record has left memory before it was asked for again.
    pub(super) fn note_left(&self, key: KeyHash) {
        self.left.note(key.spread());
    }

    /// A slab of new records was evicted. No lookup had asked for this many records of it that were
    /// prefetched; the others were asked for once.
    pub(super) fn note_evicted(&self, prefetched: usize, others: usize) {
        let widened = self.widened.load(Ordering::Relaxed);
        let widened = if prefetched > others / 2 {
            // Clients that never ask for what was prefetched leave a quarter to what is kept.
            (widened + WIDENING).min(WIDENING * self.count() / 2)
        } else {
            widened.saturating_sub(1)
        };
        self.widened.store(widened, Ordering::Relaxed);
    }

    /// The stream whose oldest slab is to be evicted, and the age of that slab.
    fn oldest(&self) -> Option<(usize, u64)> {
        let age = |n: usize| (n, self.streams[n].oldest.load(Ordering::Relaxed));
        let (slabs, kept) = (self.count(), self.kept.load(Ordering::Relaxed));
        let arrived = slabs.saturating_sub(kept);
        let arrivals = (0..self.kept()).map(age).min_by_key(|(_, age)| *age);
        let of_kept = age(self.kept());
        let is_there = |(_, age): &(usize, u64)| *age != NO_SLAB;
        let arrivals = arrivals.filter(is_there);
        let widened = self.widened.load(Ordering::Relaxed) / WIDENING;
        if arrived > (slabs / ARRIVALS_PART).max(self.kept()) + widened {
            arrivals.or(Some(of_kept).filter(is_there))
        } else {
            Some(of_kept).filter(is_there).or(arrivals)
        }
    }

    /// Moves a slab, which was taken out of stream `n`, to what is kept.
    fn keep(&self, n: usize, records: PinnedRecords) {
        if n != self.kept() {
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
        let mut stream = self.lock(self.kept());
        self.queue(&mut stream, records);
        self.note_oldest(self.kept(), &stream);
    }

    fn queue(&self, stream: &mut StreamSlabs, records: PinnedRecords) {
        let age = self.age();
        stream.full.push_back(FullSlab { records, age });
    }

    fn age(&self) -> u64 {
        self.next_age.fetch_add(1, Ordering::Relaxed)
    }

    fn note_oldest(&self, n: usize, stream: &StreamSlabs) {
        let oldest = &self.streams[n].oldest;
        oldest.store(stream.age(), Ordering::Relaxed);
    }

    fn lock(&self, n: usize) -> LockedStream<'_> {
        let lock = self.streams[n].slabs.lock();
        marked(lock.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Streams for so many slabs.
fn streams_for(slabs: usize) -> usize {
    (slabs / STREAM_SLABS).clamp(1, STREAMS_MAX)
}

/// Spreads numbers over the highest bits (Knuth's multiplicative hashing).
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
