//! Work for the writing thread: records, removes and flushes that wait for it.
//!
//! Called by `stripe` and `cache` to put work in, by `flush` to take it out.
//!
//! Invariant: whoever waits for an answer gets one: a promise that is taken out and not kept, or
//! comes after the end, is dropped, which answers it. Nothing is dropped under the lock.
//! Cost: one lock a record; the thread is woken once a batch.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::circular_log::Grain;
use crate::completion::{Part, Promise};
use crate::format::Removed;
use crate::shard::Pending;

/// A remove that waits to be made durable.
pub(crate) struct Removal {
    pub(crate) removed: Removed,
    pub(crate) done: Promise<bool>,
}

#[derive(Default)]
struct Waiting {
    records: VecDeque<Arc<Pending>>,
    /// Bytes of `records` on disk.
    bytes: usize,
    /// When the oldest of `records` came.
    since: Option<Duration>,
    /// Records that ever came, and that were ever taken.
    come: u64,
    taken: u64,
    removals: Vec<Removal>,
    flushes: Vec<Part>,
    superblocks: Vec<Promise<bool>>,
    closing: bool,
    /// Nothing is taken out any more but removes, which others will make good.
    leaving: bool,
    /// Nothing is taken out any more.
    ended: bool,
    /// The device has failed: look again.
    woken: bool,
}

/// See the module's head.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    come: Condvar,
    batch_bytes: usize,
    batch_records: usize,
    delay: Duration,
    grain: Grain,
}

/// What there is to do now.
pub(super) struct Work {
    pub(super) removals: Vec<Removal>,
    pub(super) flushes: Vec<Part>,
    /// Those who wait for the superblock to say what holds now.
    pub(super) superblocks: Vec<Promise<bool>>,
    pub(super) batch_due: bool,
    pub(super) closing: bool,
    /// Records that had come when this was taken out.
    pub(super) come: u64,
}

impl Queue {
    /// Batches of at most `batch_bytes` and `batch_records`, written at most `delay` after the
    /// first of their records came.
    pub(crate) fn new(
        batch_bytes: usize,
        batch_records: usize,
        delay: Duration,
        grain: Grain,
    ) -> Self {
        let (waiting, come) = (Mutex::default(), Condvar::new());
        Self {
            waiting,
            come,
            batch_bytes,
            batch_records,
            delay,
            grain,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Has `pending` written; after the end it is dropped.
    pub(crate) fn push(&self, pending: Arc<Pending>, now: Duration) {
        let mut waiting = self.lock();
        if waiting.leaving || waiting.ended {
            drop(waiting);
            return;
        }
        waiting.bytes += self.grain.record(pending.record_bytes);
        waiting.records.push_back(pending);
        waiting.come += 1;
        let first = waiting.since.is_none();
        waiting.since.get_or_insert(now);
        let full = self.is_full(&waiting);
        drop(waiting);
        // In between, the writer sleeps until the delay is over: it need not be woken per record.
        if first || full {
            self.come.notify_one();
        }
    }

    pub(crate) fn push_removal(&self, removal: Removal) {
        let mut waiting = self.lock();
        if waiting.ended {
            drop(waiting);
            return;
        }
        waiting.removals.push(removal);
        drop(waiting);
        self.come.notify_one();
    }

    pub(crate) fn push_flush(&self, done: Part) {
        self.push_request(|waiting| waiting.flushes.push(done));
    }

    /// Has the superblock written as it is now, and made durable.
    pub(crate) fn push_superblock(&self, done: Promise<bool>) {
        self.push_request(|waiting| waiting.superblocks.push(done));
    }

    fn push_request(&self, push: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        if waiting.leaving || waiting.ended {
            // The promise goes with `push`, which outlives the lock.
            drop(waiting);
            return;
        }
        push(&mut waiting);
        drop(waiting);
        self.come.notify_one();
    }

    /// Asks the writing thread to write what is there and to end.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.come.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.come.notify_one();
    }

    /// Drops what waits and whatever comes from now on, but keeps removes.
    pub(super) fn leave(&self) {
        let leaving = Waiting {
            leaving: true,
            ..Waiting::default()
        };
        let left = {
            let mut waiting = self.lock();
            let mut left = std::mem::replace(&mut *waiting, leaving);
            waiting.removals = std::mem::take(&mut left.removals);
            waiting.closing = left.closing;
            left
        };
        drop(left);
    }

    /// Drops what waits and whatever comes from now on. Returns the removes that were waiting.
    pub(super) fn end(&self) -> Vec<Removal> {
        let ended = Waiting {
            ended: true,
            ..Waiting::default()
        };
        let mut left = {
            let mut waiting = self.lock();
            std::mem::replace(&mut *waiting, ended)
        };
        std::mem::take(&mut left.removals)
    }

    /// Bytes on disk of the records that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn is_full(&self, waiting: &Waiting) -> bool {
        waiting.bytes >= self.batch_bytes || waiting.records.len() >= self.batch_records
    }

    /// Waits for work, at most for `patience`.
    pub(super) fn next(&self, now: impl Fn() -> Duration, patience: Duration) -> Work {
        let mut waiting = self.lock();
        let mut waited = false;
        loop {
            let due_in = waiting
                .since
                .map(|since| (since + self.delay).saturating_sub(now()));
            let batch_due = due_in.is_some_and(|due| due.is_zero()) || self.is_full(&waiting);
            let any = batch_due
                || !waiting.removals.is_empty()
                || !waiting.flushes.is_empty()
                || !waiting.superblocks.is_empty()
                || waiting.closing
                || std::mem::take(&mut waiting.woken);
            if any || waited {
                return Work {
                    removals: std::mem::take(&mut waiting.removals),
                    flushes: std::mem::take(&mut waiting.flushes),
                    superblocks: std::mem::take(&mut waiting.superblocks),
                    batch_due,
                    closing: waiting.closing,
                    come: waiting.come,
                };
            }
            let wait = due_in.map_or(patience, |due| due.min(patience));
            let (guard, timeout) = self
                .come
                .wait_timeout(waiting, wait)
                .expect("no holder of this lock panics");
            waiting = guard;
            waited = timeout.timed_out() && wait == patience;
        }
    }

    /// The oldest records, as many as fit into a batch and are `welcome` (number and bytes), and
    /// how many were ever taken. Dead ones are dropped on the way. The first is always taken.
    pub(super) fn take_batch(
        &self,
        welcome: impl Fn(usize, usize) -> bool,
    ) -> (Vec<Arc<Pending>>, u64) {
        let mut waiting = self.lock();
        let (mut batch, mut dead) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        // Not even one: where the batch goes there is room for all.
        let mut any = false;
        while let Some(next) = waiting.records.front() {
            let size = self.grain.record(next.record_bytes);
            let batch_bytes = self.grain.batch(batch.len() + 1, bytes + size);
            let welcome = welcome(batch.len() + 1, bytes + size);
            let fits = batch_bytes <= self.batch_bytes && batch.len() < self.batch_records;
            if !next.is_dead() {
                if batch.is_empty() {
                    any = welcome;
                } else if !fits || (any && !welcome) {
                    break;
                }
            }
            waiting.bytes -= size;
            waiting.taken += 1;
            let Some(next) = waiting.records.pop_front() else {
                break;
            };
            if next.is_dead() {
                dead.push(next);
            } else {
                bytes += size;
                batch.push(next);
            }
        }
        if waiting.records.is_empty() {
            waiting.since = None;
        }
        let taken = waiting.taken;
        drop(waiting);
        drop(dead);
        (batch, taken)
    }
}
