//! Our own summary: a Bloom filter over the stored objects, for peers.
//!
//! `peers/summary` in the proxy builds the filter and keeps it up to date; `request/digest` serves
//! it. The engine's threads report written objects to [`Summary::note`], which only queues.
//!
//! Bits are never cleared individually, because the engine does not report evicted objects. Instead
//! a new filter is built from a scan, beside the old filter, and then replaces it.
//!
//! Invariants: an entity tag never stands for two contents. After all updates up to the serial
//! number, a copy of the filter equals this filter, or has more bits, which later updates name. A
//! filter's memory is reserved.
//! Cost: one push for each written object; one lock and a copy of 16 KiB for each digest piece.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Event, Hour, MarkedObject, Reservation};
use hashcache_http::UnixTime;
use hashcache_peers::digest::{BLOCK_BYTES, ControlBlock};
use hashcache_peers::filter::{Bit, Filter};
use hashcache_peers::key::{HASHES, Key};
use hashcache_peers::update::{Changes, Position, differences};
use tokio::time::Instant;

/// The filter, and the reports that are not yet in the filter.
#[derive(Debug, Default)]
pub struct Summary {
    queue: Mutex<Queue>,
    state: Mutex<State>,
    /// How often updates were made since the last request with only-if-cached, which most likely
    /// came from a peer.
    updates_since_use: AtomicU32,
}

/// Reports from the engine.
#[derive(Debug, Default)]
struct Queue {
    marks: Vec<u128>,
    /// Reports were dropped because there was no room.
    has_overflowed: bool,
    /// The devices that have reported, with the log size in bytes.
    logs: Vec<(u16, u64)>,
    /// Bytes overwritten in all logs since the last build started.
    reclaimed_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Live>,
    building: Option<(Filter, Reservation)>,
}

/// The filter that is served.
#[derive(Debug)]
struct Live {
    filter: Filter,
    _memory: Reservation,
    /// Position of the last update that was made.
    position: Position,
    /// Bits have changed since the last update.
    is_dirty: bool,
    modified: UnixTime,
    /// The changed bits, if peers get updates. Allocated once, with the maximum capacity.
    pending: Vec<u32>,
    /// When the first bit was set in `pending`.
    pending_since: Option<Instant>,
    /// How many objects set the pending bits.
    pending_objects: u32,
    /// Updates that wait to be sent, each with a bit count.
    outgoing: VecDeque<(usize, Vec<u8>)>,
}

/// A fixed filter state, as served under an entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// All updates up to this position are included.
    pub position: Position,
    /// When the filter last changed.
    pub modified: UnixTime,
    block: ControlBlock,
}

/// Filter updates to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// Some peers get updates.
    Sent,
    /// No peer gets updates.
    NotSent,
}

/// Condition for sending pending bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// New objects, in thousandths of the filter's entries.
    pub permille: u16,
}

impl Summary {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an engine report. This never blocks for long, because the engine's writers must not
    /// wait.
    pub fn note(&self, event: Event<'_>, now: UnixTime) {
        let mut queue = self.queue();
        match event {
            Event::Recorded { objects, .. } => {
                let room = QUEUE_MAX - queue.marks.len();
                let fresh = objects.iter().filter(|object| is_announced(object, now));
                let before = queue.marks.len();
                queue
                    .marks
                    .extend(fresh.map(|object| object.mark).take(room));
                queue.has_overflowed |= queue.marks.len() - before == room;
            }
            Event::Reclaimed {
                device,
                segment_bytes,
                log_bytes,
            } => {
                queue.reclaimed_bytes += segment_bytes;
                match queue.logs.iter_mut().find(|(of, _)| *of == device) {
                    Some((_, bytes)) => *bytes = log_bytes,
                    None => queue.logs.push((device, log_bytes)),
                }
            }
            _ => {}
        }
    }

    /// Returns true if the filter must be rebuilt: 1/16 of the logs was overwritten (1/4 while
    /// peers do not use the filter), the filter has more objects than it was made for, or reports
    /// were lost.
    pub fn is_outdated(&self) -> bool {
        let queue = self.queue();
        let log_bytes: u64 = queue.logs.iter().map(|(_, bytes)| bytes).sum();
        let builds_per_lap = if self.is_used() {
            BUILDS_PER_LAP
        } else {
            BUILDS_PER_LAP_UNUSED
        };
        let is_rewritten =
            queue.reclaimed_bytes > 0 && queue.reclaimed_bytes >= log_bytes / builds_per_lap;
        let is_outdated = queue.has_overflowed || is_rewritten;
        drop(queue);
        let state = self.state();
        let is_overfull = |live: &Live| live.filter.fill() > fill_max(&live.filter);
        is_outdated || state.live.as_ref().is_none_or(is_overfull)
    }

    /// Starts to build a new filter from a scan and from all later engine reports.
    pub fn begin_build(&self, filter: Filter, memory: Reservation) {
        self.state().building = Some((filter, memory));
        let mut queue = self.queue();
        queue.has_overflowed = false;
        queue.reclaimed_bytes = 0;
    }

    /// Adds scanned objects to the filter that is being built.
    pub fn add_scanned(&self, objects: &[MarkedObject], now: UnixTime) {
        for objects in objects.chunks(INSERTS_MAX) {
            let mut state = self.state();
            let Some((filter, _)) = &mut state.building else {
                return;
            };
            for object in objects.iter().filter(|object| is_announced(object, now)) {
                filter.insert(&key(object.mark));
            }
        }
    }

    /// Gives up the filter that is being built.
    pub fn abandon_build(&self) {
        self.state().building = None;
    }

    /// Replaces the served filter by the new filter. The epoch continues if the old filter has the
    /// same size and peers can get the differences as updates.
    pub fn end_build(&self, updates: Updates, now: UnixTime) {
        let mut state = self.state();
        let Some((filter, memory)) = state.building.take() else {
            return;
        };
        let before = state.live.take();
        let known = before.as_ref().map(|live| live.position.epoch);
        let told = before.and_then(|live| live.told_of(&filter, updates));
        state.live = Some(match told {
            Some(live) => Live {
                filter,
                _memory: memory,
                ..live
            },
            None => Live::new(filter, memory, known, now),
        });
    }

    /// Starts a new epoch, because peers that get updates for the first time do not know earlier
    /// changes.
    pub fn begin_epoch(&self, now: UnixTime) {
        if let Some(live) = &mut self.state().live {
            live.begin_epoch(now);
        }
    }

    /// Drops the filter, because no peer wants it.
    pub fn turn_off(&self) {
        *self.state() = State::default();
        *self.queue() = Queue::default();
        self.note_use();
    }

    /// The filter's entries and bits.
    pub fn size(&self) -> Option<(u32, u32)> {
        let state = self.state();
        let filter = &state.live.as_ref()?.filter;
        Some((filter.entries(), filter.size().bits()))
    }

    /// Capacity for `entries` entries: unchanged if the old capacity is about right.
    pub fn capacity_for(&self, entries: u64) -> u32 {
        let state = self.state();
        let before = state.live.as_ref();
        let before = before.map(|live| live.filter.size().capacity());
        let fits = |capacity: &u32| {
            let capacity = u64::from(*capacity);
            entries <= capacity && (capacity / 4 <= entries || capacity <= CAPACITY_MIN.into())
        };
        let is_overfull = |live: &Live| live.filter.fill() > fill_max(&live.filter);
        let may_stay = !state.live.as_ref().is_some_and(is_overfull);
        match before.filter(fits).filter(|_| may_stay) {
            Some(same) => same,
            None => {
                // Some entries are for more than one object, and more entries will follow.
                let wanted = entries.saturating_add(entries / 2);
                u32::try_from(wanted)
                    .unwrap_or(u32::MAX)
                    .max(CAPACITY_MIN)
                    .max(
                        before
                            .filter(|_| !may_stay)
                            .map_or(0, |it| it.saturating_mul(2)),
                    )
            }
        }
    }

    /// Puts the queued reports into the filters; returns the report count.
    pub fn absorb(&self, updates: Updates, now: UnixTime) -> usize {
        let mut count = 0;
        while count < QUEUE_MAX {
            let marks = {
                let queued = &mut self.queue().marks;
                let from = queued.len().saturating_sub(INSERTS_MAX);
                // `split_off` would allocate memory for the whole queue's capacity.
                queued.drain(from..).collect::<Vec<_>>()
            };
            if marks.is_empty() {
                break;
            }
            count += marks.len();
            let mut state = self.state();
            let State { live, building } = &mut *state;
            for mark in marks {
                let key = key(mark);
                if let Some((filter, _)) = building {
                    filter.insert(&key);
                }
                if let Some(live) = live {
                    live.insert(&key, updates);
                }
            }
            if let Some(live) = live
                && live.queued() > bits_max(live.octets())
            {
                live.begin_epoch(now);
            }
        }
        count
    }

    /// Notes that a peer requested a stored response, so our summary is useful to this peer.
    pub fn note_use(&self) {
        self.updates_since_use.store(0, Ordering::Relaxed);
    }

    /// Returns true if peers use the summary: only a few times were updates made since the last
    /// peer request for a stored response.
    pub fn is_used(&self) -> bool {
        self.updates_since_use.load(Ordering::Relaxed) < UNUSED_MAX
    }

    /// Makes updates from the pending bits in three cases: there are enough of them and peers use
    /// the summary; they have waited for a minute; or there are too many. Bits are collected
    /// because each datagram wakes the receiver, and several datagrams in a row cost little more
    /// than a single datagram.
    pub fn make_updates(&self, threshold: Threshold, now: (Instant, UnixTime)) {
        let mut state = self.state();
        let Some(live) = &mut state.live else { return };
        let Some(since) = live.pending_since else {
            return;
        };
        let entries = u64::from(live.filter.entries());
        let are_many =
            u64::from(live.pending_objects) * 1000 >= entries * u64::from(threshold.permille);
        let waited = now.0.saturating_duration_since(since);
        let is_used = self.is_used();
        let is_late = waited >= UPDATE_TIME;
        let are_too_many = live.pending.len() >= bits_due(live.octets());
        if !(are_many && is_used || is_late || are_too_many) {
            return;
        }
        // Counting stops at the limit; larger values make no difference.
        if is_used {
            self.updates_since_use.fetch_add(1, Ordering::Relaxed);
        }
        live.cut(now.1);
    }

    /// Returns true if updates wait to be sent.
    pub fn has_updates(&self) -> bool {
        let state = self.state();
        state
            .live
            .as_ref()
            .is_some_and(|live| !live.outgoing.is_empty())
    }

    /// The next update for the peers.
    pub fn next_update(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        let (_, update) = state.live.as_mut()?.outgoing.pop_front()?;
        Some(update)
    }

    /// The current filter state, under a new entity tag if it has changed; `None` while there is no
    /// filter yet.
    pub fn edition(&self, now: UnixTime) -> Option<Edition> {
        let mut state = self.state();
        let live = state.live.as_mut()?;
        if live.is_dirty {
            live.cut(now);
        }
        Some(Edition {
            position: live.position,
            modified: live.modified,
            block: ControlBlock::from_filter(&live.filter),
        })
    }

    /// At most [`PIECE_BYTES`] of an epoch's filter; `None` if the epoch is over.
    fn piece(&self, epoch: u32, offset: usize) -> Option<Bytes> {
        let state = self.state();
        let live = state.live.as_ref();
        let live = live.filter(|live| live.position.epoch == epoch)?;
        let octets = live.filter.octets();
        let end = octets.len().min(offset + PIECE_BYTES);
        octets.get(offset..end).map(Bytes::copy_from_slice)
    }
}

impl Live {
    fn new(filter: Filter, memory: Reservation, known: Option<u32>, now: UnixTime) -> Self {
        let mut live = Self {
            filter,
            _memory: memory,
            position: Position {
                epoch: known.unwrap_or_default(),
                serial: 0,
            },
            is_dirty: false,
            modified: now,
            pending: Vec::new(),
            pending_since: None,
            pending_objects: 0,
            outgoing: VecDeque::new(),
        };
        live.begin_epoch(now);
        live
    }

    /// Starts a new epoch, and announces it by an empty update: peers then fetch the whole digest.
    fn begin_epoch(&mut self, now: UnixTime) {
        let before = self.position.epoch;
        while self.position.epoch == before {
            self.position.epoch = fastrand::u32(1..);
        }
        self.position.serial = 0;
        self.pending = Vec::new();
        self.pending_since = None;
        self.pending_objects = 0;
        self.is_dirty = false;
        self.modified = later(self.modified, now);
        let mut nothing = Changes::new(self.filter.size(), Vec::new(), |_| Bit::Clear);
        let nothing = nothing.datagram(self.position);
        self.outgoing = VecDeque::from([(0, nothing)]);
    }

    /// Continues the epoch, with all changes from the old filter to `new` as pending bits. `None`
    /// if the changes cannot be sent to peers as updates.
    fn told_of(mut self, new: &Filter, updates: Updates) -> Option<Self> {
        match updates {
            Updates::NotSent if self.filter.size() == new.size() => {}
            Updates::NotSent => return None,
            // The comparison would hold the lock for too long.
            Updates::Sent if new.octets().len() > COMPARED_MAX => return None,
            Updates::Sent => {
                let room = bits_max(self.octets()).checked_sub(self.queued())?;
                self.begin_list();
                let mut changed = differences(&self.filter, new)?.map(|flip| flip.bit);
                self.pending.extend(changed.by_ref().take(room));
                if changed.next().is_some() {
                    return None;
                }
                drop(changed);
                self.note_pending();
            }
        }
        self.is_dirty = true;
        Some(self)
    }

    fn insert(&mut self, key: &Key, updates: Updates) {
        let new = self.filter.insert(key);
        if new.as_slice().is_empty() {
            return;
        }
        self.is_dirty = true;
        if updates == Updates::Sent {
            self.begin_list();
            self.pending.extend_from_slice(new.as_slice());
            self.note_pending();
            self.pending_objects += 1;
        }
    }

    /// Allocates the pending-bit list if it is missing.
    fn begin_list(&mut self) {
        if self.pending.capacity() == 0 {
            self.pending = Vec::with_capacity(list_max(self.octets()));
        }
    }

    fn note_pending(&mut self) {
        if !self.pending.is_empty() {
            self.pending_since.get_or_insert_with(Instant::now);
        }
    }

    fn octets(&self) -> u32 {
        self.filter.size().octets()
    }

    /// How many bits were not sent yet.
    fn queued(&self) -> usize {
        self.pending.len() + self.outgoing.iter().map(|(bits, _)| bits).sum::<usize>()
    }

    /// Makes updates from all pending bits, and moves the filter to the last update's position.
    fn cut(&mut self, now: UnixTime) {
        let pending = std::mem::take(&mut self.pending);
        let value_of = |bit| self.filter.value(bit);
        let mut changes = Changes::new(self.filter.size(), pending, value_of);
        // At least one update, even without changes: peers must not miss the number.
        loop {
            self.position = self.position.next();
            let before = changes.left();
            let update = changes.datagram(self.position);
            self.outgoing.push_back((before - changes.left(), update));
            if changes.left() == 0 {
                break;
            }
        }
        self.pending_since = None;
        self.pending_objects = 0;
        self.is_dirty = false;
        self.modified = later(self.modified, now);
    }
}

/// Returns `now`, but at least a second after `before`: Last-Modified counts seconds.
fn later(before: UnixTime, now: UnixTime) -> UnixTime {
    UnixTime(now.0.max(before.0 + 1))
}

impl Edition {
    /// Digest length in bytes.
    pub fn length(&self) -> u64 {
        BLOCK_BYTES as u64 + u64::from(self.block.size.octets())
    }
}

/// A digest body that is being sent. Bits that are set during the transfer may be included.
#[derive(Debug)]
pub struct DigestReader {
    summary: Arc<Summary>,
    edition: Edition,
    /// Filter octets already sent; `None`: the control block was not sent yet.
    offset: Option<usize>,
}

/// Error: a filter from another epoch has replaced this filter while the digest was being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochOver;

impl DigestReader {
    /// Reads `edition` of `summary`.
    pub fn new(summary: Arc<Summary>, edition: Edition) -> Self {
        Self {
            summary,
            edition,
            offset: None,
        }
    }
}

impl Iterator for DigestReader {
    type Item = Result<Bytes, EpochOver>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(offset) = &mut self.offset else {
            self.offset = Some(0);
            return Some(Ok(Bytes::copy_from_slice(&self.edition.block.octets())));
        };
        if *offset >= self.edition.block.size.octets() as usize {
            return None;
        }
        let epoch = self.edition.position.epoch;
        let piece = self.summary.piece(epoch, *offset);
        *offset += piece.as_ref().map_or(0, Bytes::len);
        Some(piece.ok_or(EpochOver))
    }
}

fn key(mark: u128) -> Key {
    Key::from_octets(mark.to_be_bytes())
}

/// Returns true if the object may still be fresh for [`FRESH_MIN`], as a new object must be to be
/// announced. The engine stores only the last full hour, so the object may be fresh until that hour
/// is over.
fn is_announced(object: &MarkedObject, now: UnixTime) -> bool {
    let end = |hour: Hour| hour.to_unix_seconds().saturating_add(3600);
    object
        .fresh_until
        .is_some_and(|hour| end(hour) >= now.0.saturating_add(FRESH_MIN))
}

/// Fraction of set bits above which a filter has more entries than it was made for.
fn fill_max(filter: &Filter) -> f64 {
    let bits = f64::from(filter.size().bits_per_entry());
    1.1 * (1.0 - (-4.0 / bits).exp())
}

/// With this many pending bits, updates are made even if peers do not use them. The limit is a
/// quarter of the filter's octets, so the bit list is in proportion to the filter.
fn bits_due(octets: u32) -> usize {
    (octets as usize / 4).clamp(BITS_DUE_MIN, BITS_DUE_MAX)
}

/// With more unsent bits than this, a new epoch starts, so that peers fetch the whole digest.
fn bits_max(octets: u32) -> usize {
    bits_due(octets) / 2 * 3
}

/// Maximum list length: the limit is checked only after each [`INSERTS_MAX`] objects.
fn list_max(octets: u32) -> usize {
    bits_max(octets) + INSERTS_MAX * HASHES
}

/// Memory in bytes for a filter of `octets` octets, with the queued reports and unsent updates.
pub fn memory_bytes(octets: u32) -> u64 {
    let reports = (QUEUE_MAX + INSERTS_MAX) * size_of::<u128>();
    let bits = list_max(octets) * size_of::<u32>();
    u64::from(octets) + (reports + bits) as u64
}

/// Maximum queued reports: for 1/4 second, or a second if there are few reports.
const QUEUE_MAX: usize = 1 << 12;
/// Insertions under one lock.
const INSERTS_MAX: usize = 1024;
/// Limits for [`bits_due`].
const BITS_DUE_MIN: usize = 1 << 13;
const BITS_DUE_MAX: usize = 1 << 15;
/// Filters up to this many octets are compared with the filter that replaces them.
const COMPARED_MAX: usize = 4 << 20;
/// Longest time before a bit is sent in an update, if few bits have changed or peers do not use the
/// summary.
const UPDATE_TIME: Duration = Duration::from_secs(60);
/// Peers do not use the summary if no peer has requested a stored response while updates were made
/// this many times.
const UNUSED_MAX: u32 = 4;
/// Rebuilds of the filter in the time in which the log is overwritten once.
const BUILDS_PER_LAP: u64 = 16;
/// As [`BUILDS_PER_LAP`], while peers do not use the filter.
const BUILDS_PER_LAP_UNUSED: u64 = 4;
/// Minimum remaining lifetime of an announced object, seconds.
const FRESH_MIN: u64 = 600;
/// Minimum capacity in entries: 32 KiB with the most bits per entry. A larger filter is rebuilt
/// less often while a store fills, and after each rebuild every peer fetches the filter.
const CAPACITY_MIN: u32 = 1 << 14;
/// Maximum size for a piece of the body.
const PIECE_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
