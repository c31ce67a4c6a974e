//! The slabs of the hot objects: which records are side by side, and which slab is evicted next.
//!
//! Records are appended to a few streams, and each stream fills one slab after another. All records
//! in a page group are appended to the same stream, so that they are side by side: if an object on
//! a page is missing, reading it costs as much as reading the page. Other records are spread by
//! their keys.
//!
//! Most objects are requested once and never again. Therefore the streams of new records may take a
//! quarter of the slabs, as soon as there are better records for the rest: the stream of kept
//! records (S3-FIFO, with slabs as the unit and without hit counts). Among the streams of new
//! records, the slab that was filled first is evicted. If more than half of the records in it were
//! requested again, the whole slab moves to the kept stream; otherwise only the requested records
//! are copied there. A record that is put or loaded again soon after its eviction is kept at once.
//! Slabs of kept records are evicted in the same way: kept records that were requested again stay
//! for another round. The quarter grows, to at most three quarters, while it is too small for the
//! pages that clients are loading.
//!
//! Called by `hot`, which finds the records by their keys.
//!
//! Invariant: an evicted slab takes no further record. The lock of a stream is taken under no other
//! lock; under it, only the locks for a slab's list, the arena and the budget are taken.
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
/// Each stream keeps a slab open that is half empty on average: with 16 slabs for each stream, that
/// is a thirty-second part of the memory.
const STREAM_SLABS: usize = 16;
/// New records may take this part of the slabs when other records are kept.
const ARRIVALS_PART: usize = 4;
/// Each evicted slab with prefetched records that no lookup has requested yet allows the streams of
/// new records another slab. 8 evictions of other slabs undo that.
const WIDENING: usize = 8;
/// Number of evicted keys that are remembered for each slab.
const LEFT_PER_SLAB: usize = 8;
/// Memory for the remembered keys of a slab.
const LEFT_BYTES: u64 = (LEFT_PER_SLAB * size_of::<u32>()) as u64;

/// See the module's head.
pub(super) struct SlabStreams {
    /// The streams of new records; the last stream holds the kept records.
    streams: Box<[Stream]>,
    /// New records that were evicted before they were requested again.
    left: RecentKeys,
    arena: Arc<Arena>,
    budget: Budget,
    heap_high: HeapHigh,
    /// Number of slabs in all streams.
    slabs: AtomicUsize,
    /// Number of slabs in the kept stream.
    kept: AtomicUsize,
    /// By how much the streams of new records may be larger than their part, in units of 1 /
    /// [`WIDENING`] of a slab.
    widened: AtomicUsize,
    /// Maximum number of slabs.
    slabs_most: usize,
    /// Maximum number of slabs while other processes need memory.
    slabs_max: AtomicUsize,
    /// Number of the next slab that is opened, filled or kept: a smaller number is older.
    next_age: AtomicU64,
}

struct Stream {
    slabs: Mutex<StreamSlabs>,
    /// Age of the oldest slab; [`NO_SLAB`] if the stream is empty.
    oldest: AtomicU64,
}

const NO_SLAB: u64 = u64::MAX;

/// Slabs of a stream. A panic cannot leave them half changed: at worst the slab that is being
/// filled has bytes that belong to no record.
#[derive(Default)]
pub(super) struct StreamSlabs {
    filling: Option<FillingSlab>,
    /// The slab that is filled after `filling`.
    next: Option<FillingSlab>,
    /// From the oldest on.
    full: VecDeque<FullSlab>,
}

/// A stream, locked.
pub(super) type LockedStream<'a> = Marked<MutexGuard<'a, StreamSlabs>>;

struct FillingSlab {
    open: Open,
    records: PinnedRecords,
    /// Number of records that were copied to end in this slab, including copies that were never
    /// published.
    copied: usize,
    age: u64,
}

struct FullSlab {
    records: PinnedRecords,
    age: u64,
}

/// The second chance of a slab: if more than half of the records in it were requested, the slab
/// stays for another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondChance {
    Given,
    Denied,
}

/// Result of evicting the oldest slab in a stream.
enum Oldest {
    /// The slab was evicted.
    Evicted(Evicted),
    /// More than half of the records were requested: the slab is kept.
    Kept(PinnedRecords),
    /// As `Kept`, but the slab is still being filled.
    StaysOpen,
}

/// The records of an evicted slab, which the caller must remove; lookups find them until then.
#[derive(Default)]
pub(super) struct Evicted {
    pub(super) records: Vec<Arc<Stored>>,
    /// The records among them that were requested.
    pub(super) asked_for: Vec<Arc<Stored>>,
    /// The slab was in a stream of new records, not in the kept stream.
    pub(super) was_new: bool,
}

impl StreamSlabs {
    /// Returns true if `needed` bytes of a record can be appended without another slab.
    pub(super) fn has_room(&self, needed: usize) -> bool {
        let filling = self.filling.as_ref();
        filling.is_some_and(|it| it.copied < RECORDS_MAX && it.open.room() >= needed)
    }

    /// Copies as much of `bytes` as fits; returns the copy and the rest.
    pub(super) fn append<'a>(&mut self, bytes: &'a [u8]) -> Option<(Bytes, &'a [u8])> {
        let open = &mut self.filling.as_mut()?.open;
        let (now, later) = bytes.split_at(bytes.len().min(open.room()));
        Some((open.append(now), later))
    }

    /// The list for the slab that holds the last appended bytes; counts another record there.
    pub(super) fn end_record(&mut self) -> Option<PinnedRecords> {
        let filling = self.filling.as_mut()?;
        filling.copied += 1;
        Some(filling.records.clone())
    }

    /// Removes the oldest slab, unless it is being filled and gets a second chance: then its age
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
    /// Slabs that take the memory that `budget` leaves, at most `bytes_max`.
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

    /// Number of slabs in all streams.
    pub(super) fn count(&self) -> usize {
        self.slabs.load(Ordering::Relaxed)
    }

    /// Returns true if there may be another slab, provided that the budget has room for it.
    pub(super) fn may_grow(&self) -> bool {
        self.count() < self.slabs_max.load(Ordering::Relaxed)
    }

    /// Limits the slabs to as many as fit into `bytes`, and returns that number. The caller evicts
    /// the slabs above it.
    pub(super) fn keep_within(&self, bytes: u64) -> usize {
        let most = usize::try_from(bytes / SLAB_BYTES as u64).unwrap_or(usize::MAX);
        let most = most.min(self.slabs_most);
        self.slabs_max.store(most, Ordering::Relaxed);
        self.arena.keep_within(most);
        most
    }

    /// A slab from the same arena, for a writer.
    pub(super) fn open_for_writer(&self, reservation: Reservation) -> Result<Open, Reservation> {
        self.arena.open_reserved(reservation)
    }

    /// The stream for the new record with these `fields`.
    pub(super) fn stream_of(&self, fields: &Fields) -> usize {
        if self.left.contains(fields.key.spread()) {
            return self.kept();
        }
        let [a, b, ..] = match fields.group {
            0 => fields.key.spread(),
            // Callers may use consecutive numbers for groups.
            group => group.wrapping_mul(ODD).to_be_bytes(),
        };
        // If the maximum number of slabs is lowered, fewer streams are filled.
        let streams = streams_for(self.slabs_max.load(Ordering::Relaxed)).min(self.kept());
        usize::from(u16::from_be_bytes([a, b])) % streams
    }

    /// The stream of kept records.
    pub(super) fn kept(&self) -> usize {
        self.streams.len() - 1
    }

    /// Stream `n` with room for `needed` bytes in the slab that it fills, in a new slab if
    /// necessary; `None` if there may be no further slab.
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
        // The allocator may still hold memory that other code has freed.
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

    /// Bytes of the budget that are reserved outside the hot objects, mostly heap memory.
    pub(super) fn others_bytes(&self) -> u64 {
        let slabs = self.count() as u64 * SLAB_BYTES as u64 + self.arena.resident_bytes();
        self.budget.used().saturating_sub(slabs)
    }

    /// Estimate of the memory that the heap has from the kernel.
    pub(super) fn heap_high(&self) -> &HeapHigh {
        &self.heap_high
    }

    /// Opens the next slab for kept records ahead of time: while a slab is being evicted there is
    /// no room to open another.
    pub(super) fn prepare(&self) {
        let n = self.kept();
        let mut stream = self.lock(n);
        if stream.next.is_none() {
            stream.next = self.begin(n);
            self.note_oldest(n, &stream);
        }
    }

    /// Removes the oldest slab, unless the slab was requested and gets a second chance.
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

    /// Number of slabs that were looked at for eviction, for tests: each look takes a number.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.next_age.load(Ordering::Relaxed)
    }

    /// Notes a record that was evicted before it was requested again.
    pub(super) fn note_left(&self, key: KeyHash) {
        self.left.note(key.spread());
    }

    /// Notes that a slab of new records was evicted, with `prefetched` prefetched records that no
    /// lookup had requested and with `others` records that were requested once.
    pub(super) fn note_evicted(&self, prefetched: usize, others: usize) {
        let widened = self.widened.load(Ordering::Relaxed);
        let widened = if prefetched > others / 2 {
            // If clients never request the prefetched records, a quarter is still left to the kept
            // records.
            (widened + WIDENING).min(WIDENING * self.count() / 2)
        } else {
            widened.saturating_sub(1)
        };
        self.widened.store(widened, Ordering::Relaxed);
    }

    /// The stream with the slab to evict next, and the age of that slab.
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

    /// Moves a slab that was removed from stream `n` to the kept stream.
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

/// Number of streams for `slabs` slabs.
fn streams_for(slabs: usize) -> usize {
    (slabs / STREAM_SLABS).clamp(1, STREAMS_MAX)
}

/// Spreads numbers over the highest bits (Knuth's multiplicative hashing).
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
