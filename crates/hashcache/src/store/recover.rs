//! Recovery: rebuilds the index and finds the log head, from the last checkpoint and the lists
//! written since.
//!
//! Lists (batch headers, footers) tell where records were put. Recovery does not check if a record
//! arrived: each record is verified when it is read. After a crash the log continues in a new
//! segment, under a new stamp.
//!
//! Called by the writer thread before it writes anything.
//!
//! Invariant: an acknowledged `remove` stays in force. With a checkpoint, the removes since its
//! start are applied to it and to the lists. Without a checkpoint, all removes in the ring are
//! applied, and no record older than the removes that the ring has forgotten is restored. If
//! removes or bans cannot be read, no record from before this open is restored, and a ban makes
//! this durable for later opens.
//! Cost: the checkpoint, plus the lists of at most a few hundred segments. If the store is closed
//! in the meantime, recovery stops after [`AFTER_CLOSE_MAX`], unless removes wait for recovery to
//! finish. Nothing is written then, and the next open recovers from the same state.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{LogPos, Slot};
use crate::bans::Ban;
use crate::disk::checkpoint::{self, Restored};
use crate::disk::circular_log::{Cursor, LEFT_OUT_IN_A_ROW_MAX};
use crate::disk::journal::JournalContent;
use crate::disk::{LastOpening, Look, Segment, last_opening};
use crate::format::{DurablePoint, KIND_SLOT, Listed, Removed};
use crate::key::{KeyHash, KeyMap, SHARDS};
use crate::memory::Reservation;
use crate::object::Version;
use crate::policy::LogPolicy;
use crate::store::device::PreGrowth;
use crate::stripe::Stripe;
use crate::writer::{DeviceWriter, RecoverError};
use openings::{BatchPlace, Opening, Openings};

/// How long recovery continues after the store was closed. It usually finishes sooner; then objects
/// that were put in the meantime are written, and the next open finds a store that was closed in
/// order.
const AFTER_CLOSE_MAX: Duration = Duration::from_secs(2);

/// Returns true if recovery must stop because the store was closed. Every loop over segments or
/// parts checks this. A recovery that stopped early knows only a part of the state, so nothing that
/// depends on it may be written: see [`go_on`].
fn is_over(stripe: &Stripe) -> bool {
    let now = stripe.medium.clock.monotone();
    stripe.queue.stops_recovery(now, AFTER_CLOSE_MAX)
}

/// Returns an error if a loop over segments or parts may have stopped early.
fn go_on(stripe: &Stripe) -> Result<(), RecoverError> {
    if is_over(stripe) {
        Err(RecoverError::Closed)
    } else {
        Ok(())
    }
}

/// Fills the shards and sets the log head and the cursor. If the store grows, it has grown when
/// this returns.
pub(crate) fn recover(
    writer: &mut DeviceWriter,
    pre_growth: Option<PreGrowth>,
) -> Result<(), RecoverError> {
    let stripe = Arc::clone(&writer.stripe);
    if let Some(pre_growth) = pre_growth {
        grow(writer, &pre_growth)?;
    } else if stripe.index.shape.stays_on_disk() {
        with_rows_on_disk(writer)?;
    } else {
        let basis = Basis::new(writer, &stripe)?;
        basis.replay(writer, &(0..SHARDS));
    }
    go_on(&stripe)?;
    let cursor = writer.log.cursor;
    stripe.version_was_drawn(cursor.stamp);
    tracing::debug!(segment = cursor.segment, lap = cursor.lap, "log recovered");
    Ok(())
}

/// Recovers a policy that keeps positions on disk. The positions that a replay displaces would
/// overflow the buffer for unsaved positions many times, so during the replay all positions are in
/// memory, and a checkpoint saves them.
fn with_rows_on_disk(writer: &mut DeviceWriter) -> Result<(), RecoverError> {
    let stripe = Arc::clone(&writer.stripe);
    let most = (!writer.was_clean).then(|| Widened::all(&stripe)).flatten();
    let basis = Basis::new(writer, &stripe)?;
    // Nothing was written since the checkpoint, so no position is displaced.
    let is_all = |it: &Restored| writer.was_clean && it.cursor.stamp != 0;
    if basis.restored.as_ref().is_some_and(is_all) {
        basis.replay(writer, &(0..SHARDS));
        return Ok(());
    }
    let all_are_loaded = most.is_some();
    made_anew(writer, most, |writer, shards| {
        if let Some(restored) = basis.restored.as_ref().filter(|_| !all_are_loaded) {
            let (medium, index) = (&writer.stripe.medium, &writer.stripe.index);
            let serial = restored.checkpoint_id.serial;
            checkpoint::load_shards(medium, index, serial, shards.clone());
        }
        basis.replay(writer, shards);
        writer.log.was_written()
    })
}

/// Shards that have all positions in memory.
struct Widened {
    shards: Range<usize>,
    _reservation: Option<Reservation>,
}

impl Widened {
    fn all(stripe: &Stripe) -> Option<Self> {
        let bytes = stripe.index.shape.widened_bytes() * SHARDS as u64;
        let reservation = stripe.medium.budget.reserve_free(bytes)?;
        Some(Self::new(stripe, 0..SHARDS, Some(reservation)))
    }

    /// Widens as many shards as there is memory for, starting at `first`, but at least one.
    fn from(stripe: &Stripe, first: usize) -> Self {
        let mut count = SHARDS - first;
        while count > 1 {
            let bytes = stripe.index.shape.widened_bytes() * count as u64;
            if let Some(reservation) = stripe.medium.budget.reserve_free(bytes) {
                return Self::new(stripe, first..first + count, Some(reservation));
            }
            count = count.div_ceil(2);
        }
        let reservation = stripe
            .medium
            .budget
            .reserve_free(stripe.index.shape.widened_bytes());
        Self::new(stripe, first..first + 1, reservation)
    }

    fn new(stripe: &Stripe, shards: Range<usize>, reservation: Option<Reservation>) -> Self {
        for n in shards.clone() {
            if let Some(log) = stripe.shard_at(n).policy.log_mut() {
                log.widen();
            }
        }
        Self {
            shards,
            _reservation: reservation,
        }
    }

    fn narrow(self, stripe: &Stripe) {
        for n in self.shards {
            if let Some(log) = stripe.shard_at(n).policy.log_mut() {
                log.narrow();
            }
        }
    }
}

/// Fills all shards with `fill`, as many at a time as there is memory for, and saves them in a
/// checkpoint, unless `fill` returns that there is nothing to save.
fn made_anew(
    writer: &mut DeviceWriter,
    mut widened: Option<Widened>,
    mut fill: impl FnMut(&mut DeviceWriter, &Range<usize>) -> bool,
) -> Result<(), RecoverError> {
    let stripe = Arc::clone(&writer.stripe);
    let stays_on_disk = stripe.index.shape.stays_on_disk();
    let is_over = || is_over(&stripe);
    let (mut checkpoint, mut first) = (None, 0);
    while first < SHARDS {
        let some = match widened.take() {
            Some(all) => all,
            None if stays_on_disk => Widened::from(&stripe, first),
            None => Widened::new(&stripe, 0..SHARDS, None),
        };
        let shards = some.shards.clone();
        first = shards.end;
        let any_to_save = fill(writer, &shards);
        go_on(&stripe)?;
        if any_to_save {
            let checkpoint = checkpoint.get_or_insert_with(|| writer.new_checkpoint());
            // A remove from before the start of the checkpoint counts as known to the checkpoint.
            stripe.forget_removing(shards.clone());
            if stays_on_disk {
                checkpoint.write_shards(&stripe.medium, &stripe.index, shards, is_over)?;
            } else {
                checkpoint.write_parts_unless(&stripe.medium, &stripe.index, is_over)?;
            }
            // If the store was closed, the checkpoint is not whole, so it must not be published.
            go_on(&stripe)?;
        }
        some.narrow(&stripe);
    }
    match checkpoint {
        Some(checkpoint) => Ok(writer.complete_checkpoint(&checkpoint, false)?),
        None => Ok(()),
    }
}

/// Appends segments to the log and builds an index with the new size.
///
/// The data on the device stays as it is until a single superblock describes the new layout: before
/// that, only the space behind the old end is written. Log positions stay the same, because laps
/// and segments do. The new index is built from records that are in the lists and also in the old
/// index; so removed and evicted objects stay gone, however old they are.
fn grow(writer: &mut DeviceWriter, pre_growth: &PreGrowth) -> Result<(), RecoverError> {
    let stripe = Arc::clone(&writer.stripe);
    writer.stripe = Arc::clone(&pre_growth.stripe);
    let old = Widened::new(&pre_growth.stripe, 0..SHARDS, None);
    let basis = Basis::new(writer, &stripe);
    if let Ok(basis) = &basis {
        basis.replay(writer, &old.shards);
    }
    // In any case, because other threads wait for this stripe.
    writer.stripe = Arc::clone(&stripe);
    basis?;
    // Before anything is derived from the old log.
    go_on(&stripe)?;
    let (cursor, stamps) = (writer.log.cursor, pre_growth.stripe.log.stamps());
    stripe.medium.geometry.describe_in(&mut writer.superblock);
    made_anew(writer, None, |_, shards| {
        let known = Replay {
            pre_growth: Some(&pre_growth.stripe),
            ..Replay::new(&stripe, shards.clone())
        };
        known.scan(Openings::all(&stripe).as_ref());
        stripe.log.restore(stamps.clone(), cursor);
        true
    })?;
    // Write the second superblock, too (`made_anew` has written the first): if the only updated
    // superblock were lost, the next open would search for the log end in the old ring.
    writer.write_superblock(false)?;
    let bytes = stripe.medium.geometry.device_bytes;
    tracing::info!(
        bytes,
        segments = stripe.medium.geometry.segments,
        "store has grown"
    );
    Ok(())
}

/// The state to which the lists are applied, and the limits on which records count.
struct Basis {
    restored: Option<Restored>,
    removed: Vec<Removed>,
    newest: KeyMap<Version>,
    /// Records with lower versions are not restored.
    floor: Version,
    /// The store was closed in order, and nothing was written since the restored checkpoint.
    is_clean: bool,
    /// Searched only once, even if the lists are replayed several times.
    openings: OnceCell<Option<Openings>>,
}

impl Basis {
    /// Reads the journal and loads a checkpoint, if there is a whole checkpoint. After this call
    /// the bans in the journal are in force in `served`.
    ///
    /// # Errors
    /// If the device fails to write, or if the store was closed in the meantime.
    fn new(writer: &mut DeviceWriter, served: &Stripe) -> Result<Self, RecoverError> {
        let stripe = Arc::clone(&writer.stripe);
        let serial = writer.superblock.checkpoint_serial;
        let forgotten_below = writer.superblock.removes_forgotten_below;
        let journalled =
            writer
                .journal
                .read(&stripe.medium, serial, forgotten_below, writer.was_clean);
        let JournalContent {
            removed,
            bans,
            lost,
        } = journalled;
        for ban in &bans {
            served.version_was_drawn(ban.version);
        }
        // Before any object that they match can be found.
        served.bans.add(&bans, &served.medium.budget);
        // If the index file belonged to an older checkpoint, the next checkpoint would overwrite
        // it.
        let older = if stripe.index.shape.stays_on_disk() {
            0
        } else {
            serial.saturating_sub(1)
        };
        let usable = |serial| {
            let restored =
                checkpoint::load(&stripe.medium, &stripe.index, serial, || is_over(&stripe))?;
            if !still_there(&stripe, &restored) {
                checkpoint::forget(&stripe.index);
                return None;
            }
            Some(restored)
        };
        let restored = usable(serial).or_else(|| usable(older));
        // Before anything is derived from a missing checkpoint.
        go_on(&stripe)?;
        // Records from before the device joined, or joined again, belong to other devices now.
        let since = stripe.shared.members.since(stripe.medium.device_id);
        let mut floor = since.max(if restored.is_some() {
            0
        } else {
            forgotten_below
        });
        let newest_restored = restored.as_ref().map(|it| it.checkpoint_id.serial) == Some(serial);
        // An older checkpoint lacks the records that were written since, however the store was
        // closed.
        let is_clean = writer.was_clean && (newest_restored || restored.is_none());
        let held_below = match newest_restored {
            // Nothing was removed after the checkpoint.
            true if writer.was_clean => u64::MAX,
            true => writer.superblock.removes_held_below,
            false => 0,
        };
        if lost.bans || lost.removes_below > held_below {
            floor = forget_all(writer, served)?;
        } else if writer.journal.has_one_set_of_bans() {
            writer.write_bans(&served.bans.lines())?;
        }
        for removed in &removed {
            stripe.version_was_drawn(removed.version.0);
        }
        Ok(Self {
            restored,
            newest: newest(&removed),
            removed,
            floor: Version(floor),
            is_clean,
            openings: OnceCell::new(),
        })
    }

    /// Applies the lists to `shards` and sets the log head and the cursor.
    fn replay(&self, writer: &mut DeviceWriter, shards: &Range<usize>) {
        let stripe = Arc::clone(&writer.stripe);
        let replay = Replay {
            removed: Some(&self.newest),
            floor: self.floor,
            ..Replay::new(&stripe, shards.clone())
        };
        match &self.restored {
            Some(restored) => self.index_from_checkpoint(writer, &replay, restored),
            None => self.index_from_scan(writer, &replay),
        }
        if !self.is_clean {
            replay.unlearn_last_batches();
        }
        if replay.any_lost.get() {
            // Save the result: which records are forgotten must not depend on how well the lists
            // can be read at the next open.
            writer.save_index_soon();
        }
    }

    fn index_from_checkpoint(
        &self,
        writer: &mut DeviceWriter,
        replay: &Replay<'_>,
        restored: &Restored,
    ) {
        let stripe = replay.stripe;
        let cursor = restored.cursor;
        stripe.log.restore(restored.stamps.clone(), cursor);
        stripe.version_was_drawn(restored.next_version);
        if restored.next_version <= replay.floor.0 {
            let shards = replay.shards.clone();
            shards.for_each(|n| stripe.shard_at(n).policy.clear());
        }
        let is_later = |it: &&Removed| {
            it.version.0 >= restored.next_version && replay.shards.contains(&it.key.shard())
        };
        for removed in self.removed.iter().filter(is_later) {
            stripe.forget(&mut stripe.shard(removed.key), removed.key);
        }
        if cursor.stamp == 0 {
            // The log was empty when this checkpoint started. Its rows may have entries that were
            // written later, in any lap; the scan records every entry that counts.
            for mut shard in replay.shards.clone().map(|n| stripe.shard_at(n)) {
                if let Some(log) = shard.policy.log_mut() {
                    log.clear();
                }
            }
            return self.index_from_scan(writer, replay);
        }
        if self.is_clean {
            return go_on_at(writer, cursor);
        }
        let openings = self
            .openings
            .get_or_init(|| Some(Openings::since(stripe, cursor)));
        if let Some(openings) = openings {
            let end = replay.run(openings);
            replay.sweep_all();
            writer.log.resume_behind(end.cursor, end.durable);
        }
    }

    /// Recovers the index without a checkpoint.
    fn index_from_scan(&self, writer: &mut DeviceWriter, replay: &Replay<'_>) {
        let openings = self.openings.get_or_init(|| Openings::all(replay.stripe));
        if let Some(end) = replay.scan(openings.as_ref()) {
            writer.log.resume_behind(end.cursor, end.durable);
        }
    }
}

/// Removes or bans cannot be read any more, so it is unknown which objects they removed. Therefore
/// everything from before this open is forgotten, in this and all later opens. Returns the version
/// below which records are forgotten.
fn forget_all(writer: &mut DeviceWriter, served: &Stripe) -> io::Result<u64> {
    let below = served.shared.members.first_version();
    let device = writer.stripe.medium.device_id;
    tracing::error!(
        device,
        "removes or purges cannot be read: all older objects are forgotten"
    );
    served.medium.counters.forgotten.add(1);
    served
        .bans
        .add(&[Ban::everything(below)], &served.medium.budget);
    // Before the ring is overwritten: a block that cannot be read now may be blank next time.
    writer.write_bans(&served.bans.lines())?;
    Ok(below)
}

/// Returns true if the log still has the segment where the replay of a checkpoint starts. If not,
/// the log has wrapped since, and only a scan finds the head.
fn still_there(stripe: &Stripe, restored: &Restored) -> bool {
    let cursor = restored.cursor;
    if cursor.stamp == 0 {
        return true;
    }
    // The segment may have been skipped since: then a later segment was opened in a later lap. A
    // header with a lower stamp is older, whatever its lap.
    let is_passed = |(next, opening): (Cursor, LastOpening)| {
        opening.stamp > cursor.stamp && opening.lap > next.lap
    };
    last_opening(&stripe.medium, cursor.segment, Look::Thorough)
        .is_some_and(|it| it.stamp == cursor.stamp)
        && !next_openings(stripe, cursor, Look::Short).any(is_passed)
}

fn newest(removed: &[Removed]) -> KeyMap<Version> {
    let mut map = KeyMap::default();
    for removed in removed {
        let version = map.entry(removed.key).or_insert(removed.version);
        *version = removed.version.max(*version);
    }
    map
}

/// Continues the log at `cursor`, where it was closed in order.
fn go_on_at(writer: &mut DeviceWriter, cursor: Cursor) {
    let segment = Segment::walk(&writer.stripe.medium, cursor, 0, 0, Some(cursor.ordinal));
    let is_whole =
        segment.gaps.is_empty() && (segment.used, segment.ordinal) == (cursor.used, cursor.ordinal);
    if is_whole {
        writer.log.resume(cursor, segment.listed, segment.link);
    } else {
        // Otherwise the footer would lack lines, and a later recovery would treat it as the
        // complete list.
        let durable = DurablePoint {
            openings_back: 0,
            batches: cursor.ordinal,
        };
        writer.log.resume_behind(cursor, Some(durable));
    }
}

/// The last openings of the segments after `last`, nearest first, as far as the log may have
/// skipped segments. Each opening is paired with the cursor that it would have if its segment was
/// opened next: `lap` in the cursor is the expected lap, `lap` in the opening is the lap on disk.
/// `nearest` is how thoroughly to search for the nearest opening.
fn next_openings(
    stripe: &Stripe,
    last: Cursor,
    nearest: Look,
) -> impl Iterator<Item = (Cursor, LastOpening)> {
    let segments = stripe.medium.geometry.segments;
    let most = (LEFT_OUT_IN_A_ROW_MAX + 1).min(segments - 1);
    (1..=most).filter_map(move |step| {
        let segment = (last.segment + step) % segments;
        let look = if step == 1 { nearest } else { Look::Short };
        let opening = last_opening(&stripe.medium, segment, look)?;
        let next = Cursor {
            segment,
            lap: last.lap + u64::from(segment < last.segment),
            stamp: opening.stamp,
            used: 0,
            ordinal: 0,
        };
        Some((next, opening))
    })
}

struct Replay<'a> {
    stripe: &'a Stripe,
    /// Shards to fill; all others are left unchanged.
    shards: Range<usize>,
    removed: Option<&'a KeyMap<Version>>,
    /// Records with lower versions are not restored.
    floor: Version,
    /// If present, only records that this stripe knows count.
    pre_growth: Option<&'a Stripe>,
    /// Slots in the lists of the last two batches.
    last_batches: RefCell<VecDeque<(u32, Vec<KeyHash>)>>,
    /// True if lists were lost.
    any_lost: Cell<bool>,
}

/// The end of the log.
#[derive(Clone, Copy, Debug, Default)]
struct LogEnd {
    cursor: Cursor,
    place: BatchPlace,
    /// The place before which all batches are durable.
    durable: Option<DurablePoint>,
}

impl<'a> Replay<'a> {
    /// A replay of all records in the lists of `stripe`.
    fn new(stripe: &'a Stripe, shards: Range<usize>) -> Self {
        Self {
            stripe,
            shards,
            removed: None,
            floor: Version(0),
            pre_growth: None,
            last_batches: RefCell::default(),
            any_lost: Cell::new(false),
        }
    }

    /// Replays all segments, in the order in which they were written. Returns the end of the log,
    /// if there is any log.
    fn scan(&self, openings: Option<&Openings>) -> Option<LogEnd> {
        let stripe = self.stripe;
        // If the lists go back to the very first segment, they name all stored objects.
        let is_all = openings.is_none_or(Openings::begins_with_first);
        if stripe.index.id.since == 0 && is_all {
            for mut shard in stripe.shards() {
                if let Some(table) = shard.policy.table_mut() {
                    table.nothing_stored();
                }
            }
        }
        let end = self.run(openings?);
        (!is_over(stripe)).then_some(end)
    }

    /// Replays `openings`, in order. Returns the end of the log.
    fn run(&self, openings: &Openings) -> LogEnd {
        let mut end = LogEnd::default();
        for opening in openings.list() {
            if is_over(self.stripe) {
                break;
            }
            if opening.missing > 0 {
                if !openings.is_lost((opening.number - opening.missing, 0)) {
                    break;
                }
                self.forget_older();
            }
            let (cursor, goes_on) = self.segment(opening, openings);
            let place = (opening.number, cursor.ordinal);
            end = LogEnd {
                cursor,
                place,
                durable: openings.durable_before(place),
            };
            if !goes_on {
                break;
            }
        }
        if openings.goes_on_behind(end.place) {
            self.forget_older();
        }
        end
    }

    /// Durable lists were lost: they may have named any object, so no older record counts any more.
    fn forget_older(&self) {
        for n in self.shards.clone() {
            self.stripe.shard_at(n).policy.clear();
        }
        // Report this once, not for each part of the shards.
        if self.shards.start == 0 && !self.any_lost.replace(true) {
            let device = self.stripe.medium.device_id;
            tracing::error!(
                device,
                "lists of the log cannot be read: all older objects are forgotten"
            );
            self.stripe.medium.counters.forgotten.add(1);
        }
    }

    /// Sweeps all rows, as the writer would have done part by part. After a list that cannot be
    /// read, rows may also have entries for windows that the log has still to write (`policy/log`).
    fn sweep_all(&self) {
        let head = self.stripe.log.head();
        for mut shard in self.shards.clone().map(|n| self.stripe.shard_at(n)) {
            if let Some(log) = shard.policy.log_mut() {
                log.sweep(0..log.rows(), head);
            }
        }
    }

    /// Adds the records of a segment to the index. Returns where the segment stops, and true if the
    /// log continues behind it.
    fn segment(&self, opening: &Opening, openings: &Openings) -> (Cursor, bool) {
        let stripe = self.stripe;
        let lists = openings.lists(stripe, opening);
        let (mut used, mut ordinal) = (lists.used, lists.ordinal);
        let mut lines = &lists.listed[..];
        // Before this line, lists may be missing.
        let mut first_line = None;
        let mut goes_on = true;
        for gap in &lists.gaps {
            if openings.is_lost((opening.number, gap.ordinal)) {
                first_line = Some(gap.line);
            } else {
                lines = &lists.listed[..gap.line];
                (used, ordinal) = (gap.used, gap.ordinal);
                goes_on = false;
                break;
            }
        }
        if goes_on && opening.batches.is_some_and(|it| ordinal < it) {
            if openings.is_lost((opening.number, ordinal)) {
                first_line = Some(lines.len());
            } else {
                goes_on = false;
            }
        }
        let end = Cursor {
            used,
            ordinal,
            ..opening.cursor
        };
        stripe.log.opened(end);
        if first_line.is_some() {
            self.forget_older();
        }
        // A footer also lists records that are in the checkpoint.
        let from = opening.cursor.used / stripe.medium.geometry.unit_bytes;
        let new = lines.partition_point(|listed| listed.offset < from);
        let windows = stripe.index.shape.windows;
        let window_of = |listed: &Listed| u64::from(listed.offset) / windows.units;
        let lines = &lines[new.max(first_line.unwrap_or(0))..];
        for in_window in lines.chunk_by(|one, other| window_of(one) == window_of(other)) {
            self.window(opening.cursor, in_window);
        }
        (end, goes_on)
    }

    /// Adds the records of a window to the index in the order of their batch: first the records
    /// that count, and then the others, so that no entry leads to a record that does not count.
    fn window(&self, cursor: Cursor, in_window: &[Listed]) {
        for listed in in_window {
            self.stripe.version_was_drawn(listed.version.0);
            if listed.kind == KIND_SLOT && self.shards.contains(&listed.key.shard()) {
                self.slot(listed);
            }
            if self.counts(cursor, listed) {
                self.record(cursor, listed);
            }
        }
        for listed in in_window {
            if is_record(listed) && !self.counts(cursor, listed) {
                self.leave_out(cursor, listed);
            }
        }
    }

    /// Notes the slot in `listed`, which was about to be written, and the batch.
    fn slot(&self, listed: &Listed) {
        let mut shard = self.stripe.shard(listed.key);
        let slot = usize::try_from(listed.length).unwrap_or(usize::MAX);
        if let Some(table) = shard.policy.table_mut() {
            table.claimed(listed.key, Slot(slot));
        }
        drop(shard);
        let mut last = self.last_batches.borrow_mut();
        // Slots of a batch are listed with the offset of that batch.
        if last.back().is_none_or(|(place, _)| *place != listed.offset) {
            last.push_back((listed.offset, Vec::new()));
            if last.len() > 2 {
                last.pop_front();
            }
        }
        if let Some((_, keys)) = last.back_mut() {
            keys.push(listed.key);
        }
    }

    /// Unlearns the slots of the last two batches, because they may or may not have been written: a
    /// batch is listed only after all slots of the second-last batch are durable.
    fn unlearn_last_batches(&self) {
        for key in self.last_batches.borrow().iter().flat_map(|(_, keys)| keys) {
            if let Some(table) = self.stripe.shard(*key).policy.table_mut() {
                table.unlearn(*key);
            }
        }
    }

    /// Returns true if the record in `listed` counts. It need not be compared with other records in
    /// the same window: no batch has two records with the same key (`write_queue`).
    fn counts(&self, cursor: Cursor, listed: &Listed) -> bool {
        let removed = self.removed.and_then(|removed| removed.get(&listed.key));
        let is_removed = removed.is_some_and(|below| listed.version < *below);
        let is_known = |pre_growth: &Stripe| {
            pre_growth.indexes(listed.key, position(pre_growth, cursor, listed))
        };
        is_record(listed)
            && !is_removed
            && listed.version >= self.floor
            && self.pre_growth.is_none_or(is_known)
    }

    fn record(&self, cursor: Cursor, listed: &Listed) {
        self.in_log(listed, |log, head| {
            // Passing the same position as the replaced position makes a replay idempotent.
            let at = position(self.stripe, cursor, listed);
            log.record(listed.key, at, Some(at), head);
            if listed.run > 0 {
                log.set_run(listed.key, at, listed.run, head);
            }
        });
    }

    fn leave_out(&self, cursor: Cursor, listed: &Listed) {
        self.in_log(listed, |log, head| {
            log.leave_out(listed.key, position(self.stripe, cursor, listed), head);
        });
    }

    /// Calls `change` with the log index for the key of `listed`, if that shard is to be filled.
    fn in_log(&self, listed: &Listed, change: impl FnOnce(&mut dyn LogPolicy, LogPos)) {
        if !self.shards.contains(&listed.key.shard()) {
            return;
        }
        let mut shard = self.stripe.shard(listed.key);
        if let Some(log) = shard.policy.log_mut() {
            change(log, self.stripe.log.head());
        }
    }
}

/// Returns true if `listed` names a record in the log.
fn is_record(listed: &Listed) -> bool {
    listed.kind == 1 || listed.kind == 2
}

/// The log position in `stripe` that `listed` names, in the segment of `cursor`.
fn position(stripe: &Stripe, cursor: Cursor, listed: &Listed) -> LogPos {
    let unit = u64::from(listed.offset);
    stripe.log.position(cursor.lap, cursor.segment, unit)
}

mod openings;
#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod tests;
