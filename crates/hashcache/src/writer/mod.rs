//! The single thread that writes to a device: batches, slots, removes, checkpoints, superblocks.
//!
//! With a single writer no two writes race. If the order of two writes matters, the code in this
//! folder states it. Callers put work into the [`Queue`](crate::write_queue::Queue); only callers
//! of `remove` and `flush` wait for it.
//!
//! Invariant: an object is found on disk only after the write that holds it has returned.
//! Cost: a write for each batch (at most 4 MiB, or the records that are queued 250 ms after the
//! oldest commit).

mod background_write;
mod batch;
mod readmission;
mod removes;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use background_write::BackgroundWrite;
pub(crate) use readmission::Readmission;

use crate::completion::Promise;
use crate::disk::checkpoint::Checkpoint;
use crate::disk::circular_log::LogWriter;
use crate::disk::journal::Journal;
use crate::disk::table;
use crate::disk::write_superblock;
use crate::format::{COUNT_MAX, Family, PART_BYTES, Superblock};
use crate::hidden::KeyRange;
use crate::members::VERSIONS_RESERVED;
use crate::memory::AlignedBuf;
use crate::shard::Pending;
use crate::stats::Health;
use crate::stripe::Stripe;
use crate::write_queue::{Removal, RemovalDone, Take, Work};
use batch::Written;
use removes::{BansPass, RangePass};

/// Most bytes in a batch.
pub(crate) const BATCH_BYTES_MAX: usize = 4 << 20;
/// Smallest batch buffer that holds the largest record.
pub(crate) const BATCH_BYTES_MIN: usize = 512 << 10;
/// Writes are made durable after this many bytes even before the interval is over.
const SYNC_BYTES: u64 = 64 << 20;

/// A checkpoint starts when a shard has used this share, in 1/100, of the buffer for positions that
/// only a checkpoint can save.
const UNSAVED_BEGIN: usize = 50;
/// The checkpoint is completed before all other work when a shard has used this share.
const UNSAVED_MAX: usize = 75;

/// Reason why the writer thread stops.
enum Ended {
    Closed,
    /// The device failed; these removes were not made durable.
    Failed(Vec<Removal>),
}

/// Reason why the index could not be recovered.
#[derive(Debug)]
pub(crate) enum RecoverError {
    /// The store was closed in the meantime.
    Closed,
    /// The device failed to write.
    Device(io::Error),
}

impl From<io::Error> for RecoverError {
    fn from(error: io::Error) -> Self {
        Self::Device(error)
    }
}

/// The device of `stripe` has failed: the other devices continue without it. That makes `removals`
/// durable, and also the removes that were queued in the meantime: when the other devices have on
/// disk that this device has left, the objects on it do not count any more.
fn leave(stripe: &Stripe, mut removals: Vec<Removal>) {
    stripe.queue.leave();
    let in_force = stripe.shared.members.go_on();
    let (mut queued, done) = end_queue(stripe);
    removals.append(&mut queued);
    if in_force {
        removals.into_iter().for_each(Removal::tell);
        done.into_iter().for_each(RemovalDone::tell);
    }
}

/// Closes the queue of `stripe`. Returns the removes that were in it, and the callers of removes
/// that waited for room: these removes are then in force in memory.
fn end_queue(stripe: &Stripe) -> (Vec<Removal>, Vec<RemovalDone>) {
    let (removals, waiting) = stripe.queue.end();
    let mut done = Vec::new();
    for waiting in waiting {
        if let Some(its) = waiting.take_done() {
            // Hot objects outlive the device.
            stripe.remove(waiting.key);
            done.push(its);
        }
    }
    (removals, done)
}

/// State of the writer thread.
pub(crate) struct DeviceWriter {
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) log: LogWriter,
    pub(crate) journal: Journal,
    pub(crate) superblock: Superblock,
    pub(crate) sync_interval: Duration,
    /// True if the store had been closed in order.
    pub(crate) was_clean: bool,
    /// Present if records that are in use are to be kept.
    pub(crate) readmission: Option<Readmission>,
    /// Present if batches are built while the previous batch is being written.
    pub(crate) background: Option<BackgroundWrite>,
    under_way: Option<Written>,
    checkpoint: Option<Checkpoint>,
    /// Ordinal of the first journal block that was not yet written when the last checkpoint
    /// started.
    removes_before_checkpoint: u64,
    buffer: AlignedBuf,
    /// Buffer to read the set of a slot that is written: a put must not wait for memory that
    /// readers hold.
    set_buffer: AlignedBuf,
    unsynced_bytes: u64,
    synced_at: Duration,
    segments_since_checkpoint: u64,
    /// Until then other work has the device, as after each checkpoint part.
    next_checkpoint_at: Duration,
    /// Removes that were taken from the queue and are not durable yet.
    removals: Vec<Removal>,
    /// True if removes wait for a checkpoint, because the journal has no room for them before.
    removals_are_held: bool,
    /// Progress in the hidden key range that is being cleared, and the ranges that are cleared but
    /// not yet durably.
    range_pass: Option<RangePass>,
    cleared_ranges: Vec<KeyRange>,
    /// The last range that was started: the next range is behind it.
    last_range: Option<KeyRange>,
    /// Progress of the pass over the Disk Table for bans, if there is a pass.
    bans_pass: Option<BansPass>,
}

impl DeviceWriter {
    pub(crate) fn new(
        stripe: Arc<Stripe>,
        superblock: Superblock,
        buffer: AlignedBuf,
        sync_interval: Duration,
        was_clean: bool,
    ) -> Self {
        Self {
            log: LogWriter::new(&stripe.medium.geometry, stripe.medium.device_id),
            journal: Journal::new(&stripe.medium.geometry, stripe.medium.device_id),
            superblock,
            sync_interval,
            was_clean,
            readmission: None,
            background: None,
            under_way: None,
            checkpoint: None,
            removes_before_checkpoint: 0,
            buffer,
            set_buffer: AlignedBuf::zeroed(table::set_buffer_bytes(&stripe.medium.geometry)),
            unsynced_bytes: 0,
            synced_at: stripe.medium.clock.monotone(),
            segments_since_checkpoint: 0,
            next_checkpoint_at: Duration::ZERO,
            removals: Vec::new(),
            removals_are_held: false,
            range_pass: None,
            cleared_ranges: Vec::new(),
            last_range: None,
            bans_pass: None,
            stripe,
        }
    }

    /// Fills the index with `recover`, then writes until the queue is closed or the device fails.
    /// Returns the superblock if the store was closed in order.
    pub(crate) fn run(
        mut self,
        recover: impl FnOnce(&mut Self) -> Result<(), RecoverError>,
        recovered: Promise<bool>,
    ) -> Option<Superblock> {
        let stripe = Arc::clone(&self.stripe);
        let ended = catch_unwind(AssertUnwindSafe(move || {
            let ended = self.work(recover, recovered);
            (ended, self.superblock)
        }));
        if ended.is_err() {
            tracing::error!("the writing thread panicked");
        }
        // After this, no record of this device becomes hot or pending.
        stripe.end();
        match ended {
            Ok((Ended::Closed, superblock)) => {
                drop(end_queue(&stripe));
                return Some(superblock).filter(|it| it.clean);
            }
            Ok((Ended::Failed(removals), _)) => leave(&stripe, removals),
            Err(_) => leave(&stripe, Vec::new()),
        }
        None
    }

    fn work(
        &mut self,
        recover: impl FnOnce(&mut Self) -> Result<(), RecoverError>,
        recovered: Promise<bool>,
    ) -> Ended {
        let known = recover(self).and_then(|()| Ok(self.reserve_versions()?));
        match known {
            Ok(()) => {}
            Err(RecoverError::Closed) => {
                tracing::info!("closed before the index was recovered");
                return Ended::Closed;
            }
            Err(RecoverError::Device(error)) => self.stripe.fail("writing", &error),
        }
        self.stripe.recovered();
        self.stripe.learn_sets();
        recovered.set(true);
        loop {
            let stripe = Arc::clone(&self.stripe);
            let patience = match self.under_way {
                // Do not wait for work: there is a write to finish.
                Some(_) => Duration::ZERO,
                None => self.patience(),
            };
            let mut work = stripe
                .queue
                .next(|| stripe.medium.clock.monotone(), patience);
            if stripe.health() != Health::OutOfService {
                if let Err(error) = self.serve(&mut work) {
                    stripe.fail("writing", &error);
                } else if work.closing
                    && let Err(error) = self.close()
                {
                    stripe.fail("closing", &error);
                }
            }
            if stripe.health() == Health::OutOfService {
                self.give_up();
                // Dropping `work` notifies the callers of flush and cut that wait for this device.
                return Ended::Failed(std::mem::take(&mut self.removals));
            }
            if work.closing {
                return Ended::Closed;
            }
        }
    }

    /// Reserves more versions if recovery found versions that were drawn beyond the limit in the
    /// superblock (a superblock was lost).
    fn reserve_versions(&mut self) -> io::Result<()> {
        let next = self.stripe.next_version();
        if next < self.superblock.next_version {
            return Ok(());
        }
        self.superblock.next_version = next
            .checked_add(VERSIONS_RESERVED)
            .filter(|it| *it < COUNT_MAX)
            .ok_or_else(|| io::Error::other("all versions of the store were given out"))?;
        self.write_superblock(false)
    }

    /// How long the thread may wait for work before a checkpoint, a pass or a sync is due.
    fn patience(&self) -> Duration {
        let clock = &self.stripe.medium.clock;
        if clock.is_manual() {
            return Duration::from_secs(24 * 3600);
        }
        let now = clock.monotone();
        let mut patience = Duration::from_secs(60);
        if let Some(checkpoint) = &self.checkpoint {
            patience = patience.min(checkpoint.due_in(now, self.removals_are_held));
        } else if self.removals_are_held {
            // The removes need another checkpoint.
            patience = patience.min(self.next_checkpoint_at.saturating_sub(now));
        }
        if let Some(pass) = &self.bans_pass {
            patience = patience.min(pass.due_in(now));
        }
        if self.unsynced_bytes > 0 {
            patience = patience.min((self.synced_at + self.sync_interval).saturating_sub(now));
        }
        patience
    }

    /// A round: some removes, a batch (for a flush: all queued records), and a checkpoint part if
    /// it is due. Rounds are short, so that under any load no caller waits for more than a batch.
    fn serve(&mut self, work: &mut Work) -> io::Result<()> {
        if !work.is_a_batch() {
            self.wait_for_write()?;
        }
        let all = work.closing || !work.flushes.is_empty();
        // With a manual clock, a checkpoint that the removes wait for may never become due: write
        // all at once.
        let is_manual = self.stripe.medium.clock.is_manual();
        if work.closing {
            self.clear_or_bar_hidden()?;
        }
        if work.removals_due {
            self.write_removals(work.closing || is_manual)?;
        }
        self.tell_members(&mut work.superblocks)?;
        let mut wrote = false;
        if all {
            wrote = self.write_pending_below(work.come)?;
        } else if work.batch_due || !work.cuts.is_empty() {
            (wrote, _) = self.write_next_batch(Take::Due)?;
        }
        let due = self.synced_at + self.sync_interval <= self.stripe.medium.clock.monotone();
        if self.unsynced_bytes > 0 && (all || due || self.unsynced_bytes >= SYNC_BYTES) {
            self.sync()?;
        }
        if self.unsynced_bytes == 0 {
            self.mark_end()?;
        }
        if !(work.flushes.is_empty() && work.cuts.is_empty()) {
            self.wait_for_write()?;
        }
        // With a manual clock, callers also wait for a checkpoint that is due.
        if !is_manual {
            work.answer();
        }
        self.outlive_bans()?;
        self.pace_checkpoint(wrote)?;
        if self.unsynced_bytes == 0 {
            // A complete checkpoint has made the last batch durable, and there may be no other work
            // for a minute.
            self.mark_end()?;
        }
        work.answer();
        Ok(())
    }

    /// Writes all records with numbers below `come`, which were queued before this call. Returns
    /// true if there were any.
    fn write_pending_below(&mut self, come: u64) -> io::Result<bool> {
        let mut wrote_any = false;
        loop {
            let (wrote, taken_below) = self.write_next_batch(Take::All)?;
            wrote_any |= wrote;
            if taken_below >= come {
                return Ok(wrote_any);
            }
        }
    }

    /// Writes the next batch. Returns true if there was a batch, and the number below which all
    /// records were taken.
    fn write_next_batch(&mut self, take: Take) -> io::Result<(bool, u64)> {
        let (batch, taken_below) = self.take_batch(take);
        let any = !batch.is_empty();
        if any {
            self.save_what_is_full()?;
            self.write_batch(batch)?;
            self.readmit()?;
        }
        Ok((any, taken_below))
    }

    /// Writes the pending records, in place of the thread.
    #[cfg(all(test, loom))]
    pub(crate) fn write_pending(&mut self) {
        let (batch, _) = self.take_batch(Take::All);
        self.write_batch(batch).unwrap();
    }

    /// Takes the next batch: the records that still fit into the open segment, or a full batch if
    /// none fits.
    fn take_batch(&self, take: Take) -> (Vec<Arc<Pending>>, u64) {
        let is_log = self.stripe.medium.geometry.family == Family::Log;
        let now = self.stripe.medium.clock.monotone();
        self.stripe.queue.take_batch(take, now, |count, bytes| {
            is_log && self.log.fits(count, bytes)
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.wait_for_write()?;
        self.stripe.medium.sync()?;
        self.log.synced();
        self.unsynced_bytes = 0;
        self.synced_at = self.stripe.medium.clock.monotone();
        Ok(())
    }

    /// Writes an end mark behind the last batch, which is durable, if an index depends on lists. No
    /// caller waits for the mark itself: it matters only if that batch is damaged later.
    fn mark_end(&mut self) -> io::Result<()> {
        let is_log = self.stripe.medium.geometry.family == Family::Log;
        if !is_log && !self.stripe.index.id.policy.kind.keeps_lists() {
            return Ok(());
        }
        let stripe = Arc::clone(&self.stripe);
        if let Some((at, bytes)) = self.log.end_mark(&mut self.buffer, &stripe.medium.secret) {
            stripe.log.opened(self.log.cursor);
            let at = stripe.medium.geometry.log_offset + at;
            stripe.medium.write(at, &self.buffer[..bytes])?;
        }
        Ok(())
    }

    /// Drops all queued records and other work, because the device has failed.
    fn give_up(&mut self) {
        self.drop_under_way();
        self.stripe.abandon();
        while !self.take_batch(Take::All).0.is_empty() {}
        self.checkpoint = None;
        self.unsynced_bytes = 0;
    }

    // -- checkpoints and superblocks -----------------------------------------------------------

    /// Segments after which the index is saved. Recovery reads this many footers, and the footers
    /// of the segments that are written while the index is being saved.
    fn checkpoint_segments(&self) -> u64 {
        (self.stripe.medium.geometry.segments / 8).clamp(2, 200)
    }

    /// Writes a part at a time between batches, so that other work has nine tenths of the device
    /// time.
    fn pace_checkpoint(&mut self, behind_batch: bool) -> io::Result<()> {
        let is_time = self.segments_since_checkpoint >= self.checkpoint_segments()
            || self.unsaved() >= UNSAVED_BEGIN
            || self.removals_are_held
            || self.journal_wants_checkpoint();
        let now = self.stripe.medium.clock.monotone();
        if self.checkpoint.is_none() && is_time && self.next_checkpoint_at <= now {
            self.wait_for_write()?;
            self.begin_checkpoint();
        }
        let is_behind = behind_batch || self.removals_are_held;
        let is_due = |it: &Checkpoint| it.due_in(now, is_behind).is_zero();
        if self.checkpoint.as_ref().is_some_and(is_due) {
            self.step_checkpoint()
        } else {
            Ok(())
        }
    }

    /// Writes the next part, or queues it as a side write while a batch is in flight. The records
    /// of that batch need not be in the part: the replay starts before them.
    fn step_checkpoint(&mut self) -> io::Result<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Ok(());
        };
        match &mut self.background {
            Some(background) if self.under_way.is_some() => {
                if let Some(side_buffer) = background.side_buffer() {
                    let out = &mut side_buffer[..PART_BYTES];
                    let at = checkpoint.put_part(&self.stripe.medium, &self.stripe.index, out);
                    background.queue_side_write(at, PART_BYTES);
                }
            }
            _ => checkpoint.write_part(&self.stripe.medium, &self.stripe.index)?,
        }
        if checkpoint.is_whole() {
            self.complete_checkpoint(&checkpoint, false)
        } else {
            self.checkpoint = Some(checkpoint);
            Ok(())
        }
    }

    /// Use of the buffer for positions that wait for a checkpoint, in 1/100, in the fullest shard.
    fn unsaved(&self) -> usize {
        if !self.stripe.index.shape.stays_on_disk() {
            return 0;
        }
        let shards = self.stripe.views();
        let unsaved = shards.filter_map(|shard| Some(shard.policy.log()?.unsaved()));
        unsaved.max().unwrap_or(0)
    }

    /// Frees room before a batch, without pauses: a position that finds no room would be forgotten.
    fn save_what_is_full(&mut self) -> io::Result<()> {
        // The checkpoint in progress may lack the newest positions; the next checkpoint has them.
        for _ in 0..2 {
            if self.unsaved() < UNSAVED_MAX {
                break;
            }
            self.wait_for_write()?;
            if self.checkpoint.is_none() {
                self.begin_checkpoint();
            }
            while self.checkpoint.is_some() {
                self.step_checkpoint()?;
            }
        }
        Ok(())
    }

    /// Starts the next checkpoint now.
    pub(crate) fn new_checkpoint(&mut self) -> Checkpoint {
        let serial = self.superblock.checkpoint_serial + 1;
        self.journal.checkpoint_began(serial);
        self.removes_before_checkpoint = self.journal.next_ordinal();
        // Drawn before the first shard is saved: recovery applies every remove with a higher
        // version again, so it does not matter if a shard was saved before or after the remove.
        let next_version = self.stripe.draw_version().0;
        let stripe = &self.stripe;
        Checkpoint::begin(
            &stripe.medium,
            &stripe.index,
            &stripe.log,
            serial,
            next_version,
            self.log.cursor,
        )
    }

    /// Lets the next checkpoint start as soon as the thread looks for work.
    pub(crate) fn save_index_soon(&mut self) {
        self.segments_since_checkpoint = self.checkpoint_segments();
    }

    fn begin_checkpoint(&mut self) {
        self.segments_since_checkpoint = 0;
        if self.stripe.index.shape.stays_on_disk() {
            for mut shard in self.stripe.shards() {
                if let Some(log) = shard.policy.log_mut() {
                    log.save_begins();
                }
            }
        }
        self.checkpoint = Some(self.new_checkpoint());
    }

    pub(crate) fn complete_checkpoint(
        &mut self,
        checkpoint: &Checkpoint,
        clean: bool,
    ) -> io::Result<()> {
        self.next_checkpoint_at = checkpoint.rests_until();
        self.sync()?;
        self.superblock.checkpoint_serial = checkpoint.checkpoint_id().serial;
        self.superblock.checkpoint_parts = checkpoint.parts();
        self.superblock.removes_held_below = self.removes_before_checkpoint;
        self.stripe.medium.counters.checkpoints.add(1);
        self.write_superblock(clean)?;
        self.let_removals_go_on();
        if self.stripe.index.shape.stays_on_disk() {
            // Publish first: a shard may drop a position only when readers look into the new
            // checkpoint.
            self.stripe
                .index
                .file
                .publish(Some(checkpoint.checkpoint_id()));
            for mut shard in self.stripe.shards() {
                if let Some(log) = shard.policy.log_mut() {
                    log.save_counts();
                }
            }
        }
        Ok(())
    }

    /// Writes a whole checkpoint at once, for a caller that waits for it.
    fn run_checkpoint(&mut self) -> io::Result<()> {
        self.wait_for_write()?;
        self.checkpoint = None;
        self.begin_checkpoint();
        while self.checkpoint.is_some() {
            self.step_checkpoint()?;
        }
        Ok(())
    }

    /// Writes all data to disk, saves the index, and marks the superblock clean.
    fn close(&mut self) -> io::Result<()> {
        self.wait_for_write()?;
        self.checkpoint = None;
        self.begin_checkpoint();
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Ok(());
        };
        checkpoint.write_parts(&self.stripe.medium, &self.stripe.index)?;
        self.complete_checkpoint(&checkpoint, true)
    }

    /// Writes the member devices to both superblock copies. If only one copy had them and were
    /// lost, a device that has failed would count again.
    fn tell_members(&mut self, asked: &mut Vec<Promise<bool>>) -> io::Result<()> {
        if asked.is_empty() {
            return Ok(());
        }
        for _ in 0..2 {
            self.write_superblock(false)?;
        }
        for done in asked.drain(..) {
            done.set(true);
        }
        Ok(())
    }

    pub(crate) fn write_superblock(&mut self, clean: bool) -> io::Result<()> {
        self.superblock.clean = clean;
        self.superblock.history = self.stripe.shared.members.history();
        self.superblock.heard = self.stripe.shared.members.heard();
        self.superblock.wall_clock = self.stripe.medium.clock.unix_millis();
        self.stripe.medium.counters.writes.add(1);
        self.stripe.medium.counters.syncs.add(1);
        write_superblock(&*self.stripe.medium.device, &mut self.superblock)?;
        let members = &self.stripe.shared.members;
        members.superblock_is_durable(self.superblock.device, self.superblock.serial);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
