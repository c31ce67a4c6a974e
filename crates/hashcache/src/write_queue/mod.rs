//! Work for the writer thread: records, removes and flushes that wait for it.
//!
//! Called by `stripe` and `cache` to put work in, by `writer` to take it out.
//!
//! Invariant: every caller that waits for an answer gets an answer: a promise that is taken out and
//! not kept, or queued after the queue is closed, is dropped, which answers it. Nothing is dropped
//! under the lock. No batch has two records with the same key: the older record is dead before the
//! newer record is queued, and a batch is taken under one lock.
//! Cost: a lock for each record; the thread is woken once for each batch, and once more each time
//! that a group is held back for the next batch.

mod grouping;
mod removals;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use grouping::{BatchRecord, group_of, runs};
pub(crate) use removals::{Caller, NAME_BYTES, WaitingRemove, names_max};

use crate::completion::{Outcome, OutcomePart, Promise};
use crate::disk::circular_log::LogAlignment;
use crate::format::Removed;
use crate::key::KeyHash;
use crate::memory::Reservation;
use crate::shard::Pending;

use grouping::{HoldLimit, WaitingRecord};
use removals::{ALWAYS, Removals};

/// A remove that waits to be made durable.
pub(crate) struct Removal {
    pub(crate) what: Removing,
    /// Callers to notify when the remove is durable.
    pub(crate) done: Vec<RemovalDone>,
    /// Memory for the remove, held until it is done.
    pub(crate) reservation: Option<Reservation>,
}

impl Removal {
    /// A remove outside the limit: a name that replaces a pending record, or bans.
    pub(crate) fn uncounted(what: Removing, done: Option<RemovalDone>) -> Self {
        Self {
            what,
            done: done.into_iter().collect(),
            reservation: None,
        }
    }

    pub(crate) fn tell(self) {
        self.done.into_iter().for_each(RemovalDone::tell);
    }
}

/// The kind of a remove.
#[derive(Clone, Copy)]
pub(crate) enum Removing {
    /// A name.
    Name(Removed),
    /// A name of which memory knows that it is not in the Disk Table: the record that has taken the
    /// slot must be durable.
    Absent(Removed),
    /// Bans, which are in force in memory already.
    Bans {
        /// Pending records must be durable before the bans are: see `Stripe::remove_barred`.
        behind_pending: bool,
    },
}

/// How to report that a remove is done: on a single device, or on several devices. If it is
/// dropped, the caller learns that the remove is not durable.
pub(crate) enum RemovalDone {
    Promise(Promise<bool>),
    Part(OutcomePart),
}

impl RemovalDone {
    pub(crate) fn tell(self) {
        match self {
            Self::Promise(promise) => promise.set(true),
            Self::Part(part) => part.keep(),
        }
    }

    /// Returns true if a caller may still wait for it.
    fn is_awaited(&self) -> bool {
        match self {
            Self::Promise(promise) => promise.is_awaited(),
            Self::Part(part) => part.is_awaited(),
        }
    }
}

/// A record, the number of records that were queued before it, and the time when it was queued.
struct QueuedRecord {
    number: u64,
    since: Duration,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct QueueState {
    records: VecDeque<QueuedRecord>,
    /// Bytes of `records` on disk.
    bytes: usize,
    /// When the oldest record in `records` that is not held back was queued.
    since: Option<Duration>,
    /// The records that were held back when the last batch was taken, and until when.
    held_records: usize,
    held_bytes: usize,
    held_until: Option<Duration>,
    /// Records that were ever queued.
    come: u64,
    removals: Removals,
    flushes: Vec<OutcomePart>,
    /// Callers that wait for a batch now, whatever the delay.
    cuts: Vec<OutcomePart>,
    superblocks: Vec<Promise<bool>>,
    /// When the store was closed.
    closing_since: Option<Duration>,
    /// True if removes without room have hidden key ranges before recovery was over.
    hid_in_recovery: bool,
    /// `Some(true)` if recovery stops because the store was closed; `None` until that is decided.
    stops_recovery: Option<bool>,
    /// The device failed: only removes stay in the queue; other devices make them durable.
    leaving: bool,
    /// Nothing is taken out any more.
    ended: bool,
    /// The device has failed: the writer thread must look again.
    woken: bool,
    /// The writer thread waits and was not woken yet.
    asleep: bool,
}

/// See the module head.
pub(crate) struct Queue {
    waiting: Mutex<QueueState>,
    come: Condvar,
    batch_bytes: usize,
    batch_records: usize,
    delay: Option<Duration>,
    alignment: LogAlignment,
    grouped: bool,
}

/// Selection of records for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Records that need not wait for other members of their group.
    Due,
    /// Everything.
    All,
}

/// The work that is due.
pub(crate) struct Work {
    /// A round of removes is due.
    pub(crate) removals_due: bool,
    pub(crate) flushes: Vec<OutcomePart>,
    pub(crate) cuts: Vec<OutcomePart>,
    /// Callers that wait for a superblock with the current state.
    pub(crate) superblocks: Vec<Promise<bool>>,
    pub(crate) batch_due: bool,
    pub(crate) closing: bool,
    /// Number of records that were queued so far when this was taken out.
    pub(crate) come: u64,
}

impl Work {
    /// Returns true if a batch is the only work.
    pub(crate) fn is_a_batch(&self) -> bool {
        self.batch_due
            && !self.closing
            && !self.removals_due
            && self.flushes.is_empty()
            && self.cuts.is_empty()
            && self.superblocks.is_empty()
    }

    /// Notifies the callers of a flush or a cut that the batch is written.
    pub(crate) fn answer(&mut self) {
        for done in self.flushes.drain(..).chain(self.cuts.drain(..)) {
            done.keep();
        }
    }
}

impl Queue {
    /// A queue for batches of at most `batch_bytes` and `batch_records`, written at most `delay`
    /// after their first record was queued; without a delay, only when a caller requests it.
    /// `grouped`: records that are requested together are put side by side. At most `names_max`
    /// removes of names wait.
    pub(crate) fn new(
        batch_bytes: usize,
        batch_records: usize,
        names_max: usize,
        delay: Option<Duration>,
        alignment: LogAlignment,
        grouped: bool,
    ) -> Self {
        let waiting = Mutex::new(QueueState {
            removals: Removals::of_at_most(names_max),
            ..QueueState::default()
        });
        Self {
            waiting,
            come: Condvar::new(),
            batch_bytes,
            batch_records,
            delay,
            alignment,
            grouped,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Queues `pending` for the writer; drops it if the queue is closed.
    pub(crate) fn push(&self, pending: Arc<Pending>, now: Duration) {
        let mut waiting = self.lock();
        if waiting.leaving || waiting.ended {
            drop(waiting);
            return;
        }
        waiting.bytes += self.alignment.record(pending.record_bytes);
        let (number, since) = (waiting.come, now);
        waiting.records.push_back(QueuedRecord {
            number,
            since,
            pending,
        });
        waiting.come += 1;
        let first = waiting.since.is_none();
        waiting.since.get_or_insert(now);
        let full = self.is_full(&waiting);
        // In between, the writer sleeps until the delay is over: it need not be woken for each
        // record. If it is awake, it checks the queue before it sleeps, and `notify_one` would be a
        // useless system call.
        let wake = (first || full) && std::mem::take(&mut waiting.asleep);
        drop(waiting);
        if wake {
            self.come.notify_one();
        }
    }

    /// Returns true if there is room for the remove of `key`, with the memory that was `reserved`
    /// for it. In this case [`Queue::push_removal`] or [`Queue::needs_no_removal`] must be called.
    /// Also true after the queue is closed, when the remove is dropped.
    pub(crate) fn lets_in(
        &self,
        key: KeyHash,
        caller: Caller,
        reserved: Option<&Reservation>,
    ) -> bool {
        let mut waiting = self.lock();
        let is_over = waiting.ended;
        waiting.removals.let_in(key, caller, reserved.is_some()) || is_over
    }

    /// Cancels the last accepted remove: the name need not be removed.
    pub(crate) fn needs_no_removal(&self) {
        self.lock().removals.stays_out();
        // The writer may have no other work that would notify them.
        self.tell_half_of_removals();
    }

    /// Adds a remove for which there is no room. False after the queue is closed: there will never
    /// be room.
    pub(crate) fn waits_for_room(&self, waiting: &Arc<WaitingRemove>) -> bool {
        let mut state = self.lock();
        if state.ended {
            return false;
        }
        state.removals.waits_for_room(waiting);
        drop(state);
        self.come.notify_one();
        true
    }

    /// Resolves when half of the names that are now queued are durable: for callers with removes
    /// that are in force but found no room.
    pub(crate) fn half_of_removals(&self) -> Outcome<bool> {
        let mut state = self.lock();
        if state.ended {
            Outcome::ready(false)
        } else {
            state.removals.half()
        }
    }

    /// Lets callers of [`Queue::half_of_removals`] continue, if it is time. Called by the writer
    /// after each round.
    pub(crate) fn tell_half_of_removals(&self) {
        let promise = self.lock().removals.take_half();
        // Not under the lock, because it runs wakers.
        promise.into_iter().for_each(|it| it.set(true));
    }

    /// Requests that the writer clears hidden key ranges ([`crate::hidden`]).
    pub(crate) fn clear_hidden(&self) {
        let mut waiting = self.lock();
        let is_over = waiting.ended;
        let is_new = !std::mem::replace(&mut waiting.removals.any_hidden, !is_over);
        drop(waiting);
        if is_new {
            self.come.notify_one();
        }
    }

    /// Takes the request to clear key ranges; true if there was a request. The caller looks for the
    /// ranges, and calls [`Queue::clear_hidden`] if there are more than it clears.
    pub(crate) fn takes_hidden(&self) -> bool {
        std::mem::take(&mut self.lock().removals.any_hidden)
    }

    /// The caller of a remove that waits for room has gone.
    pub(crate) fn gives_up(&self) {
        self.lock().removals.gives_up();
    }

    /// The next remove that waited for room and now has it, with memory from `reserve`. It counts
    /// as accepted.
    pub(crate) fn next_without_room(
        &self,
        reserve: impl FnOnce() -> Option<Reservation>,
    ) -> Option<(Arc<WaitingRemove>, Option<Reservation>)> {
        let waiting = self.lock().removals.next_without_room()?;
        let reserved = reserve();
        let mut state = self.lock();
        if reserved.is_none() && state.removals.count() > ALWAYS {
            state.removals.waits_on(&waiting);
            return None;
        }
        drop(state);
        Some((waiting, reserved))
    }

    /// Queues an accepted remove of a name to be made durable.
    pub(crate) fn push_removal(&self, removal: Removal, caller: Caller) {
        let mut waiting = self.lock();
        waiting.removals.stays_out();
        self.push_removals_to(waiting, vec![removal], caller);
    }

    /// Queues `removals`, which are outside the limit, to be made durable together.
    pub(crate) fn push_removals(&self, removals: Vec<Removal>) {
        self.push_removals_to(self.lock(), removals, Caller::Waits);
    }

    fn push_removals_to(
        &self,
        mut waiting: MutexGuard<'_, QueueState>,
        removals: Vec<Removal>,
        caller: Caller,
    ) {
        if waiting.ended {
            // Dropped promises wake callers, which must not happen under the lock.
            drop(waiting);
            return;
        }
        for mut removal in removals {
            let reservation = removal.reservation.take();
            waiting.removals.push(removal, caller, reservation);
        }
        drop(waiting);
        self.come.notify_one();
    }

    /// Takes out at most `most` removes, first the removes with a waiting caller.
    pub(crate) fn take_removals(&self, most: usize) -> Vec<Removal> {
        let mut waiting = self.lock();
        waiting.removals.take(most)
    }

    pub(crate) fn push_flush(&self, done: OutcomePart) {
        self.push_request(|waiting| waiting.flushes.push(done));
    }

    /// Requests a batch now, with all records except those that wait for other members of their
    /// group.
    pub(crate) fn push_cut(&self, done: OutcomePart) {
        self.push_request(|waiting| waiting.cuts.push(done));
    }

    /// Requests that the superblock is written in the current state, and made durable.
    pub(crate) fn push_superblock(&self, done: Promise<bool>) {
        self.push_request(|waiting| waiting.superblocks.push(done));
    }

    fn push_request(&self, push: impl FnOnce(&mut QueueState)) {
        let mut waiting = self.lock();
        if waiting.leaving || waiting.ended {
            // The promise is dropped with `push`, which outlives the lock.
            drop(waiting);
            return;
        }
        push(&mut waiting);
        drop(waiting);
        self.come.notify_one();
    }

    /// Requests that the writer thread writes the queued work and stops.
    pub(crate) fn close(&self, now: Duration) {
        self.lock().closing_since.get_or_insert(now);
        self.come.notify_one();
    }

    /// Notes that key ranges were hidden before recovery is over, so recovery must finish.
    pub(crate) fn hid_in_recovery(&self) {
        self.lock().hid_in_recovery = true;
    }

    /// Returns true if recovery must stop, because the store was closed `patience` ago. Recovery
    /// continues to the end if a remove waits for it: the client of an invalidation has received
    /// the response, and after the next open nothing else would know the remove.
    ///
    /// The first decision stays, because a loop that has stopped has left something out.
    pub(crate) fn stops_recovery(&self, now: Duration, patience: Duration) -> bool {
        let mut waiting = self.lock();
        let since = waiting.closing_since;
        if since.is_none_or(|since| now.saturating_sub(since) < patience) {
            return false;
        }
        let awaited = !waiting.removals.is_empty() || waiting.hid_in_recovery;
        *waiting.stops_recovery.get_or_insert(!awaited)
    }

    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.come.notify_one();
    }

    /// Puts `removals` back in front of the queued removes: there is no room for them before `due`.
    pub(super) fn put_back(&self, removals: Vec<Removal>, due: Duration) {
        let mut waiting = self.lock();
        waiting.removals.put_back(removals);
        waiting.removals.due = due;
    }

    /// Makes the next removes wait until `due`.
    pub(crate) fn rest_from_removals(&self, due: Duration) {
        self.lock().removals.due = due;
    }

    /// The number of records that were queued so far, and the number below which all were taken.
    pub(crate) fn come_and_taken(&self) -> (u64, u64) {
        let waiting = self.lock();
        // Records stay in the order in which they were queued.
        let oldest = waiting.records.front().map(|record| record.number);
        (waiting.come, oldest.unwrap_or(waiting.come))
    }

    /// Drops records and requests that are queued now or later, but keeps removes.
    pub(crate) fn leave(&self) {
        let leaving = QueueState {
            leaving: true,
            ..QueueState::default()
        };
        let left = {
            let mut waiting = self.lock();
            let mut left = std::mem::replace(&mut *waiting, leaving);
            waiting.removals = std::mem::take(&mut left.removals);
            waiting.closing_since = left.closing_since;
            left
        };
        drop(left);
    }

    /// Closes the queue: drops records and requests that are queued now or later. Returns the
    /// queued removes, and the removes that waited for room: these may not be in force yet.
    pub(crate) fn end(&self) -> (Vec<Removal>, Vec<Arc<WaitingRemove>>) {
        let ended = QueueState {
            ended: true,
            ..QueueState::default()
        };
        let mut left = {
            let mut waiting = self.lock();
            std::mem::replace(&mut *waiting, ended)
        };
        left.removals.take_all()
    }

    /// Disk bytes of the queued records.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn is_full(&self, waiting: &QueueState) -> bool {
        waiting.bytes - waiting.held_bytes >= self.batch_bytes
            || waiting.records.len() - waiting.held_records >= self.batch_records
    }

    /// When the next batch is due: at once if there are enough records for a batch.
    fn batch_due_at(&self, waiting: &QueueState) -> Option<Duration> {
        let delay = self.delay?;
        if self.is_full(waiting) {
            return Some(Duration::ZERO);
        }
        let by_delay = waiting.since.map(|since| since + delay);
        by_delay.into_iter().chain(waiting.held_until).min()
    }

    /// Waits for work, at most for `patience`.
    pub(crate) fn next(&self, now: impl Fn() -> Duration, patience: Duration) -> Work {
        let mut waiting = self.lock();
        let mut waited = false;
        loop {
            let due_in = self
                .batch_due_at(&waiting)
                .map(|due| due.saturating_sub(now()));
            let batch_due = due_in.is_some_and(|due| due.is_zero());
            let removals_in =
                (!waiting.removals.is_empty()).then(|| waiting.removals.due.saturating_sub(now()));
            // A flush does not wait for removes without a waiting caller.
            let removals_due = removals_in.is_some_and(|due| due.is_zero())
                || (waiting.closing_since.is_some() && !waiting.removals.is_empty())
                || (!waiting.flushes.is_empty() && waiting.removals.any_waited_for());
            let any = batch_due
                || removals_due
                || !waiting.flushes.is_empty()
                || !waiting.cuts.is_empty()
                || !waiting.superblocks.is_empty()
                || waiting.closing_since.is_some()
                || std::mem::take(&mut waiting.woken);
            if any || waited {
                return Work {
                    removals_due,
                    flushes: std::mem::take(&mut waiting.flushes),
                    cuts: std::mem::take(&mut waiting.cuts),
                    superblocks: std::mem::take(&mut waiting.superblocks),
                    batch_due,
                    closing: waiting.closing_since.is_some(),
                    come: waiting.come,
                };
            }
            let due_in = due_in.into_iter().chain(removals_in).min();
            let wait = due_in.map_or(patience, |due| due.min(patience));
            waiting.asleep = true;
            let (guard, timeout) = self
                .come
                .wait_timeout(waiting, wait)
                .expect("no holder of this lock panics");
            waiting = guard;
            waiting.asleep = false;
            waited = timeout.timed_out() && wait == patience;
        }
    }

    /// Takes the oldest records, as many as fit into a batch and are `welcome` (number and bytes).
    /// Also returns the number below which all were taken. Dead records are dropped. The first
    /// record is always taken.
    pub(crate) fn take_batch(
        &self,
        take: Take,
        now: Duration,
        welcome: impl Fn(usize, usize) -> bool,
    ) -> (Vec<Arc<Pending>>, u64) {
        if !self.grouped {
            return self.take_oldest(welcome);
        }
        let mut waiting = self.lock();
        let mut dead = Vec::new();
        // However many records wait while the disk is behind, callers wait for this lock only as
        // long as it takes to plan a few batches.
        let mut oldest = self.take_planned(&mut waiting, &mut dead);
        let room = match take {
            Take::Due => HoldLimit {
                bytes: self.batch_bytes,
                records: self.batch_records,
            },
            Take::All => HoldLimit::NONE,
        };
        let waits: Vec<WaitingRecord> = oldest.iter().map(|it| self.waits(it)).collect();
        let plan = grouping::plan(&waits, now, room);
        let due: usize = plan.due.iter().map(Vec::len).sum();
        let mut taken = self.cut(&waits, &plan.due, welcome);
        grouping::order_groups(&waits, &mut taken);
        let bytes: usize = taken.iter().map(|n| waits[*n].bytes).sum();
        let batch: Vec<Arc<Pending>> = taken
            .iter()
            .map(|n| Arc::clone(&oldest[*n].pending))
            .collect();
        let mut is_taken = vec![false; waits.len()];
        taken.iter().for_each(|n| is_taken[*n] = true);
        let any_unplanned = !waiting.records.is_empty();
        while let Some(record) = oldest.pop() {
            if !is_taken[oldest.len()] {
                waiting.records.push_front(record);
            }
        }
        waiting.bytes -= bytes;
        waiting.held_bytes = plan.held_bytes;
        waiting.held_records = plan.held_records;
        waiting.held_until = plan.held_until;
        if taken.len() == due && !any_unplanned {
            waiting.since = None;
        }
        let oldest = waiting.records.front().map(|record| record.number);
        let done = oldest.unwrap_or(waiting.come);
        drop(waiting);
        drop(dead);
        (batch, done)
    }

    /// As [`Queue::take_batch`], if no record waits for a group: visits only the records that it
    /// takes, however many records wait while the disk is behind.
    fn take_oldest(&self, welcome: impl Fn(usize, usize) -> bool) -> (Vec<Arc<Pending>>, u64) {
        let mut waiting = self.lock();
        let (mut batch, mut dead, mut bytes) = (Vec::new(), Vec::new(), 0);
        // If not even the first record is welcome, the batch moves to a place with room for all
        // records.
        let mut any = false;
        while let Some(record) = waiting.records.pop_front() {
            let size = self.alignment.record(record.pending.record_bytes);
            let is_dead = record.pending.is_dead();
            if !is_dead {
                let (count, sum) = (batch.len() + 1, bytes + size);
                let welcome = welcome(count, sum);
                if batch.is_empty() {
                    any = welcome;
                } else if !self.fits(count, sum) || (any && !welcome) {
                    waiting.records.push_front(record);
                    break;
                }
                bytes = sum;
            }
            waiting.bytes -= size;
            if is_dead {
                dead.push(record.pending);
            } else {
                batch.push(record.pending);
            }
        }
        let oldest = waiting.records.front().map(|record| record.number);
        if oldest.is_none() {
            waiting.since = None;
        }
        let done = oldest.unwrap_or(waiting.come);
        drop(waiting);
        drop(dead);
        (batch, done)
    }

    fn fits(&self, records: usize, bytes: usize) -> bool {
        self.alignment.batch(records, bytes) <= self.batch_bytes && records <= self.batch_records
    }

    /// Takes out the oldest records, enough for [`PLANNED_BATCHES`] batches, because a batch may be
    /// held back. Moves dead records to `dead`.
    fn take_planned(
        &self,
        waiting: &mut QueueState,
        dead: &mut Vec<Arc<Pending>>,
    ) -> Vec<QueuedRecord> {
        let (mut planned, mut bytes) = (Vec::new(), 0);
        while bytes < PLANNED_BATCHES * self.batch_bytes
            && planned.len() < PLANNED_BATCHES * self.batch_records
            && let Some(record) = waiting.records.pop_front()
        {
            let size = self.alignment.record(record.pending.record_bytes);
            if record.pending.is_dead() {
                waiting.bytes -= size;
                dead.push(record.pending);
            } else {
                bytes += size;
                planned.push(record);
            }
        }
        planned
    }

    fn waits(&self, record: &QueuedRecord) -> WaitingRecord {
        let fields = &record.pending.record.fields;
        WaitingRecord {
            group: group_of(&record.pending),
            kind: fields.kind,
            version: fields.version,
            total: fields.total,
            since: record.since,
            bytes: self.alignment.record(record.pending.record_bytes),
        }
    }

    /// Selects the records in `due` that fill a batch. A group is not cut if it fits into the next
    /// batch whole, unless it is so large that too much of a segment could stay empty for it.
    fn cut(
        &self,
        waits: &[WaitingRecord],
        due: &[Vec<usize>],
        welcome: impl Fn(usize, usize) -> bool,
    ) -> Vec<usize> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        // If not even the first record is welcome, the batch moves to a place with room for all
        // records.
        let mut any = false;
        for members in due {
            let whole: usize = members.iter().map(|n| waits[*n].bytes).sum();
            let small = whole <= self.batch_bytes / GROUP_SHARE
                && members.len() <= self.batch_records / GROUP_SHARE;
            let pieces = if small {
                members.chunks(members.len())
            } else {
                members.chunks(1)
            };
            for piece in pieces {
                let count = taken.len() + piece.len();
                let sum = bytes + piece.iter().map(|n| waits[*n].bytes).sum::<usize>();
                let welcome = welcome(count, sum);
                if taken.is_empty() {
                    any = welcome;
                } else if !self.fits(count, sum) || (any && !welcome) {
                    return taken;
                }
                taken.extend_from_slice(piece);
                bytes = sum;
            }
        }
        taken
    }
}

/// How many batches are planned at a time, if records wait for their group. A group with a member
/// that was queued later than that is written in two runs.
const PLANNED_BATCHES: usize = 3;
/// A group larger than 1/4 of a batch may be cut.
const GROUP_SHARE: usize = 4;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::config::Config;
    use crate::format::{Fields, Kind};
    use crate::geometry::Geometry;
    use crate::key::Secret;
    use crate::memory::RecordHandle;
    use crate::object::Version;

    const DELAY: Duration = Duration::from_millis(250);

    fn queue(batch_bytes: usize, grouped: bool) -> Queue {
        let geometry = Geometry::plan(&Config::new("x"), 64 << 20).unwrap();
        Queue::new(
            batch_bytes,
            1_000,
            usize::MAX,
            Some(DELAY),
            LogAlignment::new(&geometry),
            grouped,
        )
    }

    /// A record of `number`, 1,024 bytes on disk.
    fn pending(number: u64, group: u64) -> Arc<Pending> {
        let name = Bytes::copy_from_slice(&number.to_le_bytes());
        let fields = Fields {
            kind: Kind::Head,
            key: Secret::from_bytes([1; 32]).name(&name),
            version: Version(number),
            revision: 0,
            confirmed: Version(number),
            span: 0,
            incomplete: false,
            total: Some(0),
            span_pages: 4,
            mark: 0,
            group,
            useless_after: 0,
            fresh_until: 0,
            labels: Vec::new(),
        };
        let record = RecordHandle::alone(crate::record::Record {
            fields,
            name,
            metadata: Bytes::new(),
            content: Vec::new(),
            at: None,
            storage: crate::object::Storage::Disk,
            judged: std::sync::atomic::AtomicU64::default(),
        });
        Arc::new(Pending::put(record, 1_000, None, Arc::default()))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn push(queue: &Queue, groups: &[u64], now: Duration) {
        for group in groups {
            let number = queue.lock().come;
            queue.push(pending(number, *group), now);
        }
    }

    fn take(queue: &Queue, take: Take, now: Duration) -> (Vec<u64>, u64) {
        let (batch, below) = queue.take_batch(take, now, |_, _| true);
        let numbers = batch.iter().map(|it| it.record.fields.version.0);
        (numbers.collect(), below)
    }

    #[test]
    fn without_groups_records_go_in_the_order_they_came() {
        let queue = queue(5_000, false);
        push(&queue, &[7, 8, 7, 8, 7], ms(0));
        assert_eq!(take(&queue, Take::Due, ms(250)), (vec![0, 1, 2], 3));
        assert_eq!(take(&queue, Take::Due, ms(250)), (vec![3, 4], 5));
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn an_open_group_stays_behind_and_is_due_when_it_closes() {
        let queue = queue(100_000, true);
        push(&queue, &[7, 0, 7, 8], ms(0));
        push(&queue, &[7], ms(100));
        assert_eq!(take(&queue, Take::Due, ms(250)), (vec![1], 0));
        // The writer sleeps until then, unless more is queued.
        let waiting = queue.lock();
        assert_eq!((waiting.since, waiting.held_until), (None, Some(ms(2_000))));
        drop(waiting);
        push(&queue, &[8], ms(300));
        assert_eq!(queue.lock().since, Some(ms(300)));
        assert_eq!(take(&queue, Take::Due, ms(550)), (vec![], 0));
        assert_eq!(queue.lock().held_until, Some(ms(2_100)));
        assert_eq!(take(&queue, Take::Due, ms(2_100)), (vec![0, 2, 4], 3));
        assert_eq!(take(&queue, Take::Due, ms(2_300)), (vec![3, 5], 6));
        assert!(queue.lock().held_until.is_none());
    }

    #[test]
    fn what_is_held_back_does_not_make_the_queue_full_and_is_bounded_by_a_batch() {
        let queue = queue(10_000, true);
        push(&queue, &[1, 2, 3, 4, 5, 6, 7, 8], ms(0));
        assert_eq!(take(&queue, Take::Due, ms(1)).0, [0; 0]);
        push(&queue, &[11, 12, 13, 14, 15, 16, 17, 18], ms(2));
        assert!(!queue.is_full(&queue.lock()));
        push(&queue, &[19], ms(2));
        push(&queue, &[20], ms(2));
        assert!(queue.is_full(&queue.lock()));
        // Nine of 18 may stay; the others are taken, as many as fit into a batch.
        let (batch, below) = take(&queue, Take::Due, ms(3));
        assert_eq!(batch, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!((below, queue.lock().held_records), (7, 9));
        assert_eq!(queue.lock().since, Some(ms(2)));
    }

    #[test]
    fn everything_below_the_number_told_was_taken_whatever_comes_meanwhile() {
        let queue = queue(4_096, true);
        push(&queue, &[7, 0, 8], ms(0));
        // These were queued after the records that a flush waits for, and are taken before them.
        push(&queue, &[7, 7], ms(1));
        let (batch, below) = take(&queue, Take::All, ms(2));
        assert_eq!((batch, below), (vec![0, 3, 4], 1));
        assert_eq!(take(&queue, Take::All, ms(2)), (vec![1, 2], 5));
    }

    #[test]
    fn a_batch_is_planned_among_the_oldest_records_however_many_wait() {
        let queue = queue(4_096, true);
        push(&queue, &[7], ms(0));
        push(&queue, &[0; 2_000], ms(0));
        push(&queue, &[7], ms(0));
        let mut records = Vec::new();
        for _ in 0..1_000 {
            let (mut batch, below) = take(&queue, Take::All, ms(1));
            records.append(&mut batch);
            if below == 2_002 {
                break;
            }
            assert_eq!(queue.lock().since, Some(ms(0)), "what is left stays due");
        }
        // The last member of the group was queued too late to be beside the first.
        assert!(records.is_sorted() && records.len() == 2_002);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_group_is_not_cut_where_a_batch_ends() {
        let queue = queue(20_480, true);
        let ungrouped = [0; 16];
        push(&queue, &ungrouped, ms(0));
        push(&queue, &[7, 7, 7, 7], ms(0));
        let (batch, below) = take(&queue, Take::All, ms(0));
        assert_eq!((batch.len(), below), (16, 16));
        assert_eq!(take(&queue, Take::All, ms(0)).0, [16, 17, 18, 19]);
    }

    #[test]
    fn the_dead_are_dropped_and_their_bytes_with_them() {
        let queue = queue(100_000, true);
        push(&queue, &[7, 7, 0], ms(0));
        assert_eq!(take(&queue, Take::Due, ms(1)).0, [2]);
        let dead = Arc::clone(&queue.lock().records[0].pending);
        dead.dead.store(true, std::sync::atomic::Ordering::Release);
        assert_eq!(take(&queue, Take::Due, ms(2)).0, [0; 0]);
        assert_eq!((queue.bytes(), queue.lock().held_bytes), (1_024, 1_024));
        assert_eq!(take(&queue, Take::All, ms(2)), (vec![1], 3));
        assert_eq!(queue.bytes(), 0);
    }
}
