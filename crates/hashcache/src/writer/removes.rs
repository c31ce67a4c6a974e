//! Removes: by name and by bans; and when a ban may be forgotten.
//!
//! Called by `writer` before each batch; calls `disk/journal` and `disk/table`.
//!
//! Invariant: a caller that waits for a remove gets the answer when the remove is durable, and not
//! before. A ban is forgotten when no record older than it can be read any more: in the log when
//! the head has wrapped, in the Disk Table when a pass over all sets has cleared the objects that
//! bans hide.
//! Cost: in the log, a write and a sync for all queued removes of names; in the Disk Table a read
//! and a write for each remove, in rounds of [`ROUND`], and a sync for each round. One more write
//! for all bans. Then the writer leaves the device to other work for nine times as long as that
//! took (three times in the Disk Table). So any rate of removes takes a tenth of the device time (a
//! quarter), and a remove in the log waits for a second at most. It waits longer only if removes of
//! names are so fast that the journal is full before a checkpoint is complete; the checkpoint takes
//! a tenth of the device time, too.

use std::io;
use std::time::Duration;

use super::DeviceWriter;
use crate::address::SetId;
use crate::bans::{Ban, Effect};
use crate::disk::table;
use crate::format::{BanLine, Family, Removed};
use crate::hidden::{KeyRange, places_behind};
use crate::key::KeyHash;
use crate::object::Version;
use crate::write_queue::{Caller, NAME_BYTES, Removal, Removing};

/// After removes were written, other work has the device for this many times as long as it took.
const REST: u32 = 9;
/// As [`REST`], in the Disk Table, where a name costs a read, and a round has few names.
const TABLE_REST: u32 = 3;
/// Longest wait of a put or a flush for a round in the Disk Table, plus a name, and a set of a
/// hidden range if there is any.
const ROUND: Duration = Duration::from_millis(10);
/// Sets of hidden ranges that closing a store waits for: a few seconds on a slow disk.
const CLOSING_SETS: u64 = 256;
/// Names in a round in the log: 25 blocks of the journal.
const NAMES_AT_ONCE: usize = 4_096;
/// Shorter work is not followed by a rest: it delays no other work noticeably.
const SHORT: Duration = Duration::from_millis(2);
/// Longest rest: an invalidation must become durable within a second.
const REST_MAX: Duration = Duration::from_millis(750);

/// How long a soft ban is kept if it can be forgotten only when the objects that it made stale are
/// removed: an object that was not requested for a day is not worth confirming.
const SOFT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Longest pause between two sets of a pass. It is short because closing the store waits for it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A pass over the Disk Table that clears the objects that bans have removed.
pub(super) struct BansPass {
    next: SetId,
    /// Bans up to these versions can be forgotten when all sets are done.
    gone_upto: Version,
    stale_upto: Version,
    due: Duration,
}

/// A key range that is being cleared, because removes without memory have hidden it.
pub(super) struct RangePass {
    range: KeyRange,
    /// Older versions than this are cleared.
    below: Version,
    /// The next set, and the last set.
    next: SetId,
    last: SetId,
}

fn is_bans(removal: &Removal) -> bool {
    matches!(removal.what, Removing::Bans { .. })
}

impl BansPass {
    pub(super) fn due_in(&self, now: Duration) -> Duration {
        self.due.saturating_sub(now)
    }
}

impl DeviceWriter {
    /// Makes queued removes durable: a round of them, or `all`.
    pub(super) fn write_removals(&mut self, all: bool) -> io::Result<()> {
        loop {
            self.write_some_removals(all)?;
            self.stripe.queue.tell_half_of_removals();
            let any_left = || self.range_pass.is_some() || self.any_hidden();
            if !all || self.removals_are_held || !(any_left() || self.take_removals(1)) {
                return Ok(());
            }
        }
    }

    /// Queues removes that waited for room, as many as there is room for.
    fn let_in(&self) {
        let stripe = &self.stripe;
        let reserve = || stripe.medium.budget.reserve(NAME_BYTES);
        while let Some((waiting, reservation)) = stripe.queue.next_without_room(reserve) {
            let Some(done) = waiting.take_done() else {
                stripe.queue.needs_no_removal();
                continue;
            };
            let key = waiting.key;
            let (version, known) = match waiting.version {
                Some(version) => (version, true),
                None => stripe.remove(key),
            };
            let removed = Removed { key, version };
            let is_log = stripe.medium.geometry.family == Family::Log;
            let removal = Removal {
                what: if known || is_log {
                    Removing::Name(removed)
                } else {
                    Removing::Absent(removed)
                },
                done: vec![done],
                reservation,
            };
            stripe.queue.push_removal(removal, Caller::Waits);
        }
    }

    /// Takes at most `most` removes out of the queue. Returns true if there are any to write.
    fn take_removals(&mut self, most: usize) -> bool {
        self.let_in();
        let mut taken = self.stripe.queue.take_removals(most);
        self.removals.append(&mut taken);
        !self.removals.is_empty()
    }

    /// Writes a round of removes. If each name costs a read, other work waits no longer than
    /// [`ROUND`].
    fn write_some_removals(&mut self, all: bool) -> io::Result<()> {
        let begun = self.stripe.medium.clock.monotone();
        match self.stripe.medium.geometry.family {
            Family::Log => {
                self.take_removals(NAMES_AT_ONCE);
                self.write_behind_pending()?;
                let names = self.names();
                let written = self.journal_names(&names, all)?;
                if written < names.len() {
                    self.hold_back(written);
                }
            }
            Family::Table => {
                // Starts at the first remove, because all removes that were taken are reported as
                // durable below.
                let mut cleared = 0;
                loop {
                    let took = self.stripe.medium.clock.monotone().saturating_sub(begun);
                    if cleared == self.removals.len() && took < ROUND {
                        self.take_removals(1);
                    }
                    let Some(removal) = self.removals.get(cleared) else {
                        break;
                    };
                    self.clear_name(removal.what)?;
                    cleared += 1;
                }
                self.clear_hidden(begun)?;
                self.write_behind_pending()?;
            }
        }
        if self.removals.is_empty() && self.cleared_ranges.is_empty() && self.range_pass.is_none() {
            return Ok(());
        }
        if self.removals.iter().any(is_bans) {
            let lines = self.stripe.bans.lines();
            self.write_bans(&lines)?;
        }
        // Even if nothing was cleared, a slot that another record has taken may still have to be
        // made durable.
        if self.unsynced_bytes > 0 || self.stripe.medium.geometry.family == Family::Log {
            self.sync()?;
        }
        let mut any_waiting = false;
        for range in self.cleared_ranges.drain(..) {
            let mut shard = self.stripe.shard_at(range.shard());
            shard.hidden.end(range);
            any_waiting |= shard.hidden.any_waiting();
        }
        if any_waiting {
            // `next_range` skips a range that is hidden again before the pass over it is done, and
            // has cleared the flag for it.
            self.stripe.queue.clear_hidden();
        }
        let now = self.stripe.medium.clock.monotone();
        let took = now.saturating_sub(begun);
        let is_manual = self.stripe.medium.clock.is_manual();
        if took > SHORT && !self.removals_are_held && !is_manual {
            let times = match self.stripe.medium.geometry.family {
                Family::Log => REST,
                Family::Table => TABLE_REST,
            };
            let rest = took.saturating_mul(times).min(REST_MAX);
            self.stripe.queue.rest_from_removals(now + rest);
        }
        for removal in std::mem::take(&mut self.removals) {
            self.tell(removal);
        }
        Ok(())
    }

    /// Clears the slots of a removed name.
    fn clear_name(&mut self, what: Removing) -> io::Result<()> {
        let Removing::Name(removed) = what else {
            return Ok(());
        };
        let stripe = &self.stripe;
        let set = SetId(removed.key.set(stripe.medium.geometry.sets));
        let (medium, index) = (&stripe.medium, &stripe.index);
        self.unsynced_bytes += table::clear(medium, index, &mut self.set_buffer, &removed, set)?;
        Ok(())
    }

    /// Clears key ranges that removes without memory have hidden, set by set, until the round is
    /// over. At least a set in each round, because names may arrive without pause.
    fn clear_hidden(&mut self, begun: Duration) -> io::Result<()> {
        loop {
            let Some(mut pass) = self.range_pass.take().or_else(|| self.next_range()) else {
                return Ok(());
            };
            let stripe = &self.stripe;
            let (medium, index) = (&stripe.medium, &stripe.index);
            let range = (pass.range, pass.below);
            self.unsynced_bytes +=
                table::clear_range(medium, index, &mut self.set_buffer, range, pass.next)?;
            if pass.next < pass.last {
                pass.next.0 += 1;
                self.range_pass = Some(pass);
            } else {
                self.cleared_ranges.push(pass.range);
            }
            if self.stripe.medium.clock.monotone().saturating_sub(begun) >= ROUND {
                break;
            }
        }
        if self.range_pass.is_some() {
            self.stripe.queue.clear_hidden();
        }
        Ok(())
    }

    /// The next range to clear, if any is hidden.
    fn next_range(&mut self) -> Option<RangePass> {
        let stripe = &self.stripe;
        // Take the flag before the look: a range that is hidden later sets the flag again.
        if !stripe.queue.takes_hidden() {
            return None;
        }
        let begin = |(n, from)| stripe.shard_at(n).hidden.begin(n, from);
        let waiting = |(n, _): &(usize, usize)| stripe.view_at(*n).hidden.any_waiting();
        let mut places = places_behind(self.last_range).filter(waiting);
        let (range, below) = places.find_map(begin)?;
        stripe.queue.clear_hidden();
        let sets = range.sets(stripe.medium.geometry.sets);
        self.last_range = Some(range);
        Some(RangePass {
            range,
            below,
            next: SetId(*sets.start()),
            last: SetId(*sets.end()),
        })
    }

    fn any_hidden(&self) -> bool {
        let is_table = self.stripe.medium.geometry.family == Family::Table;
        is_table && self.stripe.views().any(|shard| shard.hidden.any_waiting())
    }

    /// Handles hidden ranges before the store is closed: the next open does not know which ranges
    /// were hidden. If they cannot be cleared quickly, a ban removes all older objects.
    pub(super) fn clear_or_bar_hidden(&mut self) -> io::Result<()> {
        if self.stripe.medium.geometry.family == Family::Log {
            return Ok(());
        }
        let ranges: u64 = self.stripe.views().map(|it| it.hidden.count()).sum();
        let first = KeyRange::from_key(KeyHash { high: 0, low: 0 });
        let sets = first.sets(self.stripe.medium.geometry.sets);
        let sets_of_each = sets.end() - sets.start() + 1;
        if ranges.saturating_mul(sets_of_each) <= CLOSING_SETS {
            return Ok(());
        }
        let below = self.stripe.views().filter_map(|it| it.hidden.below()).max();
        let Some(below) = below else { return Ok(()) };
        tracing::warn!(
            ranges,
            "too many removes to be written: all older objects are forgotten"
        );
        self.stripe.medium.counters.forgotten.add(1);
        self.stripe
            .bans
            .add(&[Ban::everything(below.0)], &self.stripe.medium.budget);
        let lines = self.stripe.bans.lines();
        self.write_bans(&lines)?;
        self.sync()?;
        // The ban hides these ranges now, but not the names that were removed since.
        self.range_pass = None;
        self.stripe.queue.takes_hidden();
        let mut any_waiting = false;
        for mut shard in self.stripe.shards() {
            shard.hidden.are_barred(below);
            any_waiting |= shard.hidden.any_waiting();
        }
        if any_waiting {
            self.stripe.queue.clear_hidden();
        }
        Ok(())
    }

    /// Writes the pending records before bans that must not be durable before them.
    fn write_behind_pending(&mut self) -> io::Result<()> {
        let behind_pending = |removal: &Removal| match removal.what {
            Removing::Name(_) | Removing::Absent(_) => false,
            Removing::Bans { behind_pending } => behind_pending,
        };
        if self.removals.iter().any(behind_pending) {
            let (come, _) = self.stripe.queue.come_and_taken();
            self.write_pending_below(come)?;
            self.wait_for_write()?;
        }
        Ok(())
    }

    /// The names among the removes to be written.
    fn names(&self) -> Vec<Removed> {
        let name = |removal: &Removal| match removal.what {
            Removing::Name(removed) | Removing::Absent(removed) => Some(removed),
            Removing::Bans { .. } => None,
        };
        self.removals.iter().filter_map(name).collect()
    }

    fn tell(&self, removal: Removal) {
        if let Removing::Name(removed) | Removing::Absent(removed) = removal.what {
            let mut shard = self.stripe.shard(removed.key);
            if shard.removing.get(&removed.key) == Some(&removed.version) {
                shard.removing.remove(&removed.key);
            }
        }
        removal.tell();
    }

    /// Writes `removed` to the journal: `all` of them, or as many as there is room for without
    /// waiting for a checkpoint. Returns how many.
    fn journal_names(&mut self, removed: &[Removed], all: bool) -> io::Result<usize> {
        let mut written = 0;
        for some in removed.chunks(self.journal.removes_at_once()) {
            if let Some(below) = self.journal.forgets(some.len()) {
                if !all && self.journal_needs_checkpoint() {
                    break;
                }
                self.forget_removes(below)?;
            }
            self.journal.write(&self.stripe.medium, some)?;
            written += some.len();
        }
        Ok(written)
    }

    fn journal_needs_checkpoint(&self) -> bool {
        let completed = self.superblock.checkpoint_serial;
        self.journal.needs_checkpoint(completed)
    }

    pub(super) fn journal_wants_checkpoint(&self) -> bool {
        let completed = self.superblock.checkpoint_serial;
        self.journal.wants_checkpoint(completed)
    }

    /// Makes all removes except the first `written` names wait for a checkpoint, which is written
    /// in the background. If the checkpoint were written at once, it would block all other work on
    /// the device: with removes of made-up names at full speed, a client could leave the device no
    /// time for anything else.
    fn hold_back(&mut self, written: usize) {
        self.removals_are_held = true;
        let mut names = 0;
        let (written, held) = std::mem::take(&mut self.removals)
            .into_iter()
            .partition(|removal| {
                names += usize::from(!is_bans(removal));
                !is_bans(removal) && names <= written
            });
        self.removals = written;
        self.stripe.queue.put_back(held, Duration::MAX);
    }

    /// Lets removes continue after a complete checkpoint, if there is room in the journal again.
    pub(super) fn let_removals_go_on(&mut self) {
        if self.removals_are_held && !self.journal_needs_checkpoint() {
            self.removals_are_held = false;
            let now = self.stripe.medium.clock.monotone();
            self.stripe.queue.rest_from_removals(now);
        }
    }

    /// Makes the bans in `lines`, which are all bans in force, durable.
    pub(crate) fn write_bans(&mut self, lines: &[BanLine]) -> io::Result<()> {
        // A store from before bans may have removes in the area for bans.
        let displaced = self.journal.take_displaced();
        if !displaced.is_empty() {
            self.journal_names(&displaced, true)?;
            self.sync()?;
        }
        self.journal.write_bans(&self.stripe.medium, lines)
    }

    /// Prepares the journal ring to overwrite removes below `below`: they must be in two
    /// checkpoints, and an open without a checkpoint must not restore older records.
    fn forget_removes(&mut self, below: u64) -> io::Result<()> {
        while self.journal_needs_checkpoint() {
            self.run_checkpoint()?;
        }
        self.superblock.removes_forgotten_below = below;
        self.journal.forgot(below);
        self.write_superblock(false)
    }

    // -- forgetting bans -------------------------------------------------------------------------

    /// Advances the bans, if any, towards the stage in which they are forgotten.
    pub(super) fn outlive_bans(&mut self) -> io::Result<()> {
        if self.stripe.bans.is_empty() {
            self.bans_pass = None;
            return Ok(());
        }
        let unsettled = self.stripe.bans.any_unsettled();
        if unsettled {
            // Records that were taken out of the queue must be written, not in flight.
            self.wait_for_write()?;
        }
        let stripe = &self.stripe;
        let now = stripe.medium.clock.monotone();
        if unsettled {
            // In this order: a put that finishes later has queued its record before it finishes.
            let begun = stripe.oldest_begun();
            let (come, taken) = stripe.queue.come_and_taken();
            let open = (self.log.cursor.stamp, now);
            stripe.bans.settle(begun, come, taken, open);
        }
        match stripe.medium.geometry.family {
            Family::Log => {
                if let Some(oldest) = stripe.log.oldest_stamp()
                    && stripe.bans.any_outlived(oldest)
                {
                    stripe.let_go_of_barred();
                    stripe.bans.forget_outlived(oldest);
                }
                Ok(())
            }
            Family::Table => self.pass_over_table(now),
        }
    }

    /// Clears the slots in the next set that bans have removed.
    fn pass_over_table(&mut self, now: Duration) -> io::Result<()> {
        let stripe = std::sync::Arc::clone(&self.stripe);
        let mut pass = match self.bans_pass.take() {
            Some(pass) => pass,
            None => BansPass {
                next: SetId(0),
                gone_upto: stripe.bans.settled(Effect::Gone, Some(now)),
                stale_upto: stripe
                    .bans
                    .settled(Effect::Stale, now.checked_sub(SOFT_FOR)),
                due: now,
            },
        };
        if pass.gone_upto.max(pass.stale_upto).0 == 0 {
            return Ok(());
        }
        if pass.due > now {
            self.bans_pass = Some(pass);
            return Ok(());
        }
        let cleared = table::clear_barred(
            &stripe.medium,
            &stripe.index,
            &stripe.bans,
            &mut self.set_buffer,
            pass.next,
            pass.stale_upto,
        )?;
        self.unsynced_bytes += cleared;
        pass.next.0 += 1;
        if pass.next.0 < stripe.medium.geometry.sets {
            let after = stripe.medium.clock.monotone();
            pass.due = after + after.saturating_sub(now).min(PAUSE_MAX);
            self.bans_pass = Some(pass);
            return Ok(());
        }
        // The cleared slots must be on disk before the bans are forgotten.
        self.sync()?;
        stripe.let_go_of_barred();
        stripe.bans.forget(pass.gone_upto, pass.stale_upto);
        Ok(())
    }
}
