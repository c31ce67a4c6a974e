//! The slabs of the hot objects: which records lie side by side, and which slab is evicted next.
//!
//! Records are appended to a few streams, each of which fills one slab after another. The records
//! of a page group go to one stream, so that a page lies side by side and leaves memory as a whole.
//! If one object of a page is missing, reading it costs as much as reading the page. Other records
//! are spread by their keys.
//!
//! The slab that was filled first is evicted, whichever stream it is of, unless half of its records
//! were asked for since: then it gets another round (CLOCK with slabs as its unit). So a group may
//! take as much memory as all others together.
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
use super::pinned::{PinnedRecords, RECORDS_MAX, list_bytes};
use super::slab::{Arena, Open, SLAB_BYTES};
use super::stored::Stored;
use super::wakes::{Marked, marked};
use crate::format::Fields;

const STREAMS_MAX: usize = 16;
/// A stream keeps a slab open that is half empty on average: with so many slabs for each stream,
/// that is a thirty-second part of the memory.
const STREAM_SLABS: usize = 16;

/// See the module's head.
pub(super) struct SlabStreams {
    streams: Box<[Stream]>,
    arena: Arc<Arena>,
    budget: Budget,
    /// Slabs of all streams.
    slabs: AtomicUsize,
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

/// Whether a slab gets another round if half of its records were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecondChance {
    Given,
    Denied,
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

    /// Takes the oldest slab out and closes its list. With a second chance, a slab of which half
    /// was asked for gets the age `now` instead, and the one that is being filled stays open.
    fn evict_oldest(&mut self, chance: SecondChance, now: u64) -> Option<Vec<Arc<Stored>>> {
        let oldest = self.full.front().map(|it| &it.records);
        let records = oldest.or(self.filling.as_ref().map(|it| &it.records))?;
        let is_kept = chance == SecondChance::Given && records.take_asked_for();
        match (self.full.pop_front(), is_kept) {
            (Some(full), true) => self.full.push_back(FullSlab { age: now, ..full }),
            (Some(full), false) => return Some(full.records.close()),
            (None, true) => self.filling.iter_mut().for_each(|it| it.age = now),
            (None, false) => return self.filling.take().map(|it| it.records.close()),
        }
        None
    }

    fn age(&self) -> u64 {
        let full = self.full.front().map(|it| it.age);
        let age = full.or(self.filling.as_ref().map(|it| it.age));
        age.unwrap_or(NO_SLAB)
    }
}

impl SlabStreams {
    /// Slabs that take what `budget` leaves, at most `bytes_max`.
    pub(super) fn new(budget: &Budget, bytes_max: u64) -> io::Result<Self> {
        let slabs = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / SLAB_BYTES;
        let slabs_most = slabs(bytes_max);
        let all = slabs(budget.limit());
        let streams = streams_for(all.min(slabs_most));
        let stream = || Stream {
            slabs: Mutex::default(),
            oldest: AtomicU64::new(NO_SLAB),
        };
        Ok(Self {
            streams: (0..streams).map(|_| stream()).collect(),
            arena: Arena::new(all)?,
            budget: budget.clone(),
            slabs: AtomicUsize::new(0),
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

    /// The stream of the record with these `fields`.
    pub(super) fn stream_of(&self, fields: &Fields) -> usize {
        let [a, b, ..] = match fields.group {
            // Not those that choose the device: names of one host may share them.
            0 => fields.key.low.rotate_right(32).to_le_bytes(),
            // Callers may number groups.
            group => group.wrapping_mul(ODD).to_be_bytes(),
        };
        // Where there may be fewer slabs, fewer streams are filled.
        let streams = streams_for(self.slabs_max.load(Ordering::Relaxed)).min(self.streams.len());
        usize::from(u16::from_be_bytes([a, b])) % streams
    }

    /// Stream `n` with room for `needed` bytes in the slab that it fills, another one if need be;
    /// `None` when there may be no other slab.
    pub(super) fn with_room(&self, n: usize, needed: usize) -> Option<LockedStream<'_>> {
        let mut stream = self.lock(n);
        if stream.has_room(needed) {
            return Some(stream);
        }
        if !self.may_grow() {
            return None;
        }
        let begun = FillingSlab {
            open: self.arena.open(&self.budget, list_bytes())?,
            records: PinnedRecords::new(),
            copied: 0,
            age: self.age(),
        };
        self.slabs.fetch_add(1, Ordering::Relaxed);
        if let Some(filled) = stream.filling.replace(begun) {
            self.queue(&mut stream, filled.records);
        }
        self.note_oldest(n, &stream);
        Some(stream)
    }

    /// Takes the oldest slab of all streams out, unless it was asked for and gets a second chance.
    /// Returns its records, which the caller must forget; they are still found until then.
    pub(super) fn evict_oldest(&self, chance: SecondChance) -> Vec<Arc<Stored>> {
        let age = |stream: &Stream| stream.oldest.load(Ordering::Relaxed);
        let ages = self.streams.iter().map(age).enumerate();
        let Some((n, oldest)) = ages.min_by_key(|(_, age)| *age) else {
            return Vec::new();
        };
        let mut stream = self.lock(n);
        if stream.age() != oldest {
            // Another thread has just evicted that slab: the next one may be the youngest of all.
            return Vec::new();
        }
        let evicted = stream.evict_oldest(chance, self.age());
        if evicted.is_some() {
            self.slabs.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_oldest(n, &stream);
        evicted.unwrap_or_default()
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
