//! Checkpoints: the index and the log state, saved a part at a time while the cache is in use.
//!
//! A checkpoint is fuzzy: rows are saved as they are when their part is written. So recovery
//! replays the log from the position noted *before* the first part; replaying entries that are
//! saved already changes nothing.
//!
//! Two areas are written in turn. The order that makes a checkpoint valid: parts, sync, superblock
//! with the checkpoint serial, sync. If a disk acknowledges syncs that it did not do, the MACs
//! detect it.
//!
//! Cost: 256 KiB a step, with `log` 4.9 bytes a slot in total on 1 TB, 5.9 if grouped, 0.4 more
//! with readmission; 6.4 with `log-lru`, 7 if grouped; at most a tenth of the device time.

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::index::CheckpointId;
use super::index_rows::{self, RowRange, area, pieces};
use crate::disk::circular_log::{Cursor, LogMap};
use crate::disk::{Index, Medium};
use crate::format::{
    COUNT_MAX, CheckpointPart, IO_BLOCK, LAP_MAX, LogState, ORDINAL_MAX, PART_BODY, PART_BYTES,
    Superblock,
};
use crate::geometry::{checkpoint_parts, meta_parts};
use crate::key::SHARDS;
use crate::memory::AlignedBuf;

/// After a part, other work has the device for this many times as long as the part took.
const REST: u32 = 9;
/// Shortest rest while nothing else is written: if a write cache has taken the write, the time that
/// the write took tells little about how long the device is busy with it.
const REST_MIN: Duration = Duration::from_millis(20);
/// Longest rest. A write that takes that long has met a device that hung, so it tells nothing about
/// the device speed.
const REST_MAX: Duration = Duration::from_secs(60);

/// A checkpoint that is being written.
pub(crate) struct Checkpoint {
    serial: u64,
    begun: u64,
    next: u64,
    parts: u64,
    meta: Vec<u8>,
    buffer: AlignedBuf,
    /// Rows for the next part, if whole shards are written one after another.
    begun_part: Vec<u8>,
    /// Buffer for the previously saved rows, if the policy keeps a part of the index on disk.
    old: Option<AlignedBuf>,
    /// When the last part was written, and how long other work has the device after that.
    written_at: Duration,
    rest: Duration,
    /// True if the last part was handed to the background write and is not written yet.
    is_away: bool,
}

/// Start of the replay according to a checkpoint, with the log state that was saved in it.
pub(crate) struct Restored {
    pub(crate) cursor: Cursor,
    pub(crate) stamps: Vec<u64>,
    /// Versions below this had been drawn when the checkpoint started.
    pub(crate) next_version: u64,
    pub(crate) checkpoint_id: CheckpointId,
}

impl Checkpoint {
    /// Starts a checkpoint: notes the state of the log.
    ///
    /// `next_version` was drawn before this call: a remove draws a version under the shard lock and
    /// forgets the key before it releases the lock, so every part that is saved later sees all
    /// removes with lower versions.
    pub(crate) fn begin(
        medium: &Medium,
        index: &Index,
        log: &LogMap,
        serial: u64,
        next_version: u64,
        cursor: Cursor,
    ) -> Self {
        let stamps = log.stamps();
        let state = LogState {
            segment: cursor.segment,
            lap: cursor.lap,
            stamp: cursor.stamp,
            bytes_used: u64::from(cursor.used),
            ordinal: u64::from(cursor.ordinal),
            begun: next_version,
            policy: u64::from(index.id.policy.code()),
            policy_since: index.id.since,
        };
        let mut meta = vec![0; LogState::BYTES];
        state.encode(&mut meta);
        meta.extend(stamps.iter().flat_map(|stamp| stamp.to_le_bytes()));
        Self {
            serial,
            begun: next_version,
            next: 0,
            parts: checkpoint_parts(medium.geometry.segments, &index.shape),
            meta,
            buffer: AlignedBuf::zeroed(PART_BYTES),
            begun_part: Vec::new(),
            old: index
                .shape
                .stays_on_disk()
                .then(|| AlignedBuf::zeroed(PART_BYTES)),
            written_at: Duration::ZERO,
            rest: Duration::ZERO,
            is_away: false,
        }
    }

    pub(crate) fn checkpoint_id(&self) -> CheckpointId {
        CheckpointId {
            serial: self.serial,
            begun: self.begun,
        }
    }

    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// How long the next part has to wait at `now`: directly behind a batch, or while nothing else
    /// is written.
    pub(crate) fn due_in(&self, now: Duration, behind_batch: bool) -> Duration {
        let rest = if behind_batch {
            self.rest
        } else {
            self.rest.max(REST_MIN)
        };
        (self.written_at + rest).saturating_sub(now)
    }

    /// Writes the next part.
    pub(crate) fn write_part(&mut self, medium: &Medium, index: &Index) -> io::Result<()> {
        let begun_at = medium.clock.monotone();
        let body = self.next_body(medium, index);
        self.write_body(medium, &body)?;
        let now = medium.clock.monotone();
        self.rest_from(now, now.saturating_sub(begun_at));
        Ok(())
    }

    /// Until when other work has the device.
    pub(crate) fn rests_until(&self) -> Duration {
        self.written_at + self.rest
    }

    /// Sets the rest after a part that was written by `now` and `took` this long.
    fn rest_from(&mut self, now: Duration, took: Duration) {
        self.written_at = now;
        self.rest = took.saturating_mul(REST).min(REST_MAX);
    }

    /// Writes all remaining parts.
    pub(crate) fn write_parts(&mut self, medium: &Medium, index: &Index) -> io::Result<()> {
        while !self.is_whole() {
            self.write_part(medium, index)?;
        }
        Ok(())
    }

    /// As [`Self::write_parts`], but stops when `is_over` returns true.
    pub(crate) fn write_parts_unless(
        &mut self,
        medium: &Medium,
        index: &Index,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        while !self.is_whole() && !is_over() {
            self.write_part(medium, index)?;
        }
        Ok(())
    }

    /// Puts the next part into `out` for another thread to write ([`Self::others_wrote`]). Returns
    /// the offset of the part.
    pub(crate) fn put_part(&mut self, medium: &Medium, index: &Index, out: &mut [u8]) -> u64 {
        let body = self.next_body(medium, index);
        let (part, at) = self.part(medium, &body);
        part.encode(out, &medium.secret);
        self.next += 1;
        self.is_away = true;
        at
    }

    /// The background write was done by `now`, and `took` this long. If it had a part, the rest
    /// starts now.
    pub(crate) fn others_wrote(&mut self, now: Duration, took: Duration) {
        if std::mem::take(&mut self.is_away) {
            self.rest_from(now, took);
        }
    }

    /// Returns true if no part is left to write.
    pub(crate) fn is_whole(&self) -> bool {
        self.next >= self.parts
    }

    fn next_body(&mut self, medium: &Medium, index: &Index) -> Vec<u8> {
        let meta_parts = meta_parts(medium.geometry.segments);
        if self.next < meta_parts {
            let from = usize::try_from(self.next).unwrap_or(0) * PART_BODY;
            self.meta[from..self.meta.len().min(from + PART_BODY)].to_vec()
        } else {
            self.rows_body(medium, index, self.next - meta_parts)
        }
    }

    /// Writes the rows of `shards`, behind the rows of the shards before them, for a policy that
    /// keeps positions on disk but has the positions of these shards in memory
    /// ([`LogPolicy::widen`]). Stops early if `is_over` returns true.
    ///
    /// [`LogPolicy::widen`]: crate::policy::LogPolicy::widen
    pub(crate) fn write_shards(
        &mut self,
        medium: &Medium,
        index: &Index,
        shards: Range<usize>,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        while self.next < meta_parts(medium.geometry.segments) {
            self.write_part(medium, index)?;
        }
        let rows_per_part = usize::try_from(index.shape.rows_per_part()).unwrap_or(usize::MAX);
        let full = rows_per_part.saturating_mul(index.shape.saved_row_bytes());
        let mut body = std::mem::take(&mut self.begun_part);
        for shard in shards.clone() {
            if is_over() {
                return Ok(());
            }
            for row in 0..index.shape.shard_rows {
                index_rows::save_row(
                    medium,
                    index,
                    shard,
                    row,
                    self.checkpoint_id(),
                    &[],
                    &mut body,
                );
                if body.len() == full {
                    self.write_body(medium, &body)?;
                    body.clear();
                }
            }
        }
        if shards.end == SHARDS && !body.is_empty() {
            self.write_body(medium, &body)?;
        } else {
            self.begun_part = body;
        }
        Ok(())
    }

    fn write_body(&mut self, medium: &Medium, body: &[u8]) -> io::Result<()> {
        let (part, at) = self.part(medium, body);
        part.encode(&mut self.buffer, &medium.secret);
        medium.write(at, &self.buffer)?;
        self.next += 1;
        Ok(())
    }

    /// The next part, with the offset.
    fn part<'a>(&self, medium: &Medium, body: &'a [u8]) -> (CheckpointPart<'a>, u64) {
        let part = CheckpointPart {
            device: medium.device_id,
            serial: self.serial,
            number: self.next,
            begun: self.begun,
            body,
        };
        let at = area(&medium.geometry, self.serial) + self.next * PART_BYTES as u64;
        (part, at)
    }

    fn rows_body(&mut self, medium: &Medium, index: &Index, part: u64) -> Vec<u8> {
        let checkpoint_id = self.checkpoint_id();
        let Some(buffer) = &mut self.old else {
            return rows_body(index, part);
        };
        let meta_parts = meta_parts(medium.geometry.segments);
        let old = index.file.checkpoint_id().and_then(|old| {
            let saved = read_part(medium, old.serial, meta_parts + part, buffer)?;
            (saved.begun == old.begun).then_some(saved.body)
        });
        let pieces = pieces(&index.shape, part);
        index_rows::rows_body(
            medium,
            index,
            pieces,
            checkpoint_id,
            old.unwrap_or_default(),
        )
    }
}

fn rows_body(index: &Index, part: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(PART_BODY);
    for RowRange { shard, first, last } in pieces(&index.shape, part) {
        let mut shard = index.shard_at(shard);
        shard.policy.save(first..last, &[], &mut body);
    }
    body
}

/// Loads checkpoint `serial` into the shards; `None`, and nothing is loaded, if the checkpoint is
/// not whole or `is_over` returns true in the meantime.
///
/// A checkpoint with a missing part cannot be used: a newer version of a name could be in the
/// missing part and an older version in another part.
pub(crate) fn load(
    medium: &Medium,
    index: &Index,
    serial: u64,
    is_over: impl Fn() -> bool,
) -> Option<Restored> {
    let mut any = false;
    let restored = read(medium, index, serial, is_over, |part, body| {
        any = true;
        restore_rows(index, part, body, 0..SHARDS)
    });
    match &restored {
        Some(restored) => index.file.publish(Some(restored.checkpoint_id)),
        None if any => forget(index),
        None => {}
    }
    restored
}

/// Loads the rows for `shards` from checkpoint `serial`, which was found whole before. If they
/// cannot be read again, these shards are cleared: the rows from [`load`] lack displaced positions.
pub(crate) fn load_shards(medium: &Medium, index: &Index, serial: u64, shards: Range<usize>) {
    if read_shards(medium, index, serial, &shards).is_none() {
        shards.for_each(|n| index.shard_at(n).policy.clear());
    }
}

fn read_shards(medium: &Medium, index: &Index, serial: u64, shards: &Range<usize>) -> Option<()> {
    let metas = meta_parts(medium.geometry.segments);
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let parts = checkpoint_parts(medium.geometry.segments, &index.shape);
    let wanted =
        |part: &u64| pieces(&index.shape, *part).any(|piece| shards.contains(&piece.shard));
    for part in (0..parts - metas).filter(wanted) {
        let saved = read_part(medium, serial, metas + part, &mut buffer)?;
        restore_rows(index, part, saved.body, shards.clone())?;
    }
    Some(())
}

/// Clears the index, both in memory and on disk.
pub(crate) fn forget(index: &Index) {
    index.file.publish(None);
    index.shards().for_each(|mut shard| shard.policy.clear());
}

/// Counts the parts in the last checkpoint that do not verify, whichever policy wrote it.
pub(crate) fn parts_damaged(medium: &Medium, superblock: &Superblock) -> u64 {
    let serial = superblock.checkpoint_serial;
    let room = medium.geometry.checkpoint_bytes / PART_BYTES as u64;
    let parts = match serial {
        0 => 0,
        _ => superblock.checkpoint_parts.min(room),
    };
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let damaged = |number: &u64| read_part(medium, serial, *number, &mut buffer).is_none();
    (0..parts).filter(damaged).count() as u64
}

/// Reads checkpoint `serial` and passes each part with rows to `rows`.
fn read(
    medium: &Medium,
    index: &Index,
    serial: u64,
    is_over: impl Fn() -> bool,
    mut rows: impl FnMut(u64, &[u8]) -> Option<()>,
) -> Option<Restored> {
    if serial == 0 {
        return None;
    }
    let geometry = &medium.geometry;
    let (metas, parts) = (
        meta_parts(geometry.segments),
        checkpoint_parts(geometry.segments, &index.shape),
    );
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let mut meta = Vec::new();
    let mut begun = None;
    for number in 0..parts {
        if is_over() {
            return None;
        }
        let part = read_part(medium, serial, number, &mut buffer)?;
        // A part with another `begun` is a remnant of an earlier checkpoint with this serial that
        // was given up.
        if *begun.get_or_insert(part.begun) != part.begun {
            return None;
        }
        if number < metas {
            meta.extend_from_slice(part.body);
        } else {
            rows(number - metas, part.body)?;
        }
    }
    let state = LogState::decode(&meta)?;
    let (stamps, rest) = meta[LogState::BYTES..].as_chunks();
    if stamps.len() as u64 != geometry.segments || !rest.is_empty() {
        return None;
    }
    let cursor = Cursor {
        segment: state.segment,
        lap: state.lap,
        stamp: state.stamp,
        used: u32::try_from(state.bytes_used).ok()?,
        ordinal: u32::try_from(state.ordinal).ok()?,
    };
    // The checkpoint may be from another policy, or from the time before another policy used the
    // store and wrote no lists.
    let own =
        state.policy == u64::from(index.id.policy.code()) && state.policy_since == index.id.since;
    let sound = own
        && cursor.segment < geometry.segments
        && cursor.used <= geometry.segment_bytes
        && u64::from(cursor.used)
            .is_multiple_of(u64::from(geometry.unit_bytes).max(IO_BLOCK as u64))
        && cursor.ordinal < ORDINAL_MAX
        && cursor.stamp < COUNT_MAX
        && cursor.lap < LAP_MAX
        && state.begun < COUNT_MAX;
    sound.then(|| Restored {
        cursor,
        stamps: stamps
            .iter()
            .map(|stamp| u64::from_le_bytes(*stamp))
            .collect(),
        next_version: state.begun,
        checkpoint_id: CheckpointId {
            serial,
            begun: begun.unwrap_or(0),
        },
    })
}

/// Restores the rows for `shards` from a part.
fn restore_rows(index: &Index, part: u64, mut body: &[u8], shards: Range<usize>) -> Option<()> {
    let (row_bytes, stored) = (index.shape.row_bytes, index.shape.saved_row_bytes());
    for RowRange { shard, first, last } in pieces(&index.shape, part) {
        let bytes = (last - first) as usize * stored;
        let (rows, rest) = body.split_at_checked(bytes)?;
        body = rest;
        if !shards.contains(&shard) {
            continue;
        }
        let mut shard = index.shard_at(shard);
        if stored == row_bytes {
            shard.policy.restore(first, rows);
        } else {
            for (row, bytes) in (first..last).zip(rows.chunks_exact(stored)) {
                shard.policy.restore(row, &bytes[..row_bytes]);
            }
        }
    }
    Some(())
}

fn read_part<'a>(
    medium: &Medium,
    serial: u64,
    number: u64,
    buffer: &'a mut AlignedBuf,
) -> Option<CheckpointPart<'a>> {
    let at = area(&medium.geometry, serial) + number * PART_BYTES as u64;
    // Read a second time if needed, because a single wrong read must not lose a checkpoint.
    let is_sound = |buffer: &AlignedBuf| CheckpointPart::decode(buffer, &medium.secret).is_some();
    if medium.fill(at, buffer).is_none() || !is_sound(buffer) {
        medium.fill(at, buffer)?;
    }
    let part = CheckpointPart::decode(buffer, &medium.secret)?;
    let right = part.serial == serial && part.number == number && part.device == medium.device_id;
    right.then_some(part)
}
