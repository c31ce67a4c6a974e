//! Checkpoints: the index and the state of the log, saved a part at a time while the cache is at
//! work.
//!
//! A checkpoint is fuzzy: rows are saved as they are when their part is written. So recovery
//! replays the log from the position noted *before* the first part; replaying what is there already
//! changes nothing.
//!
//! Two areas are written in turn. The order that makes one count: parts, sync, superblock with its
//! serial, sync. A disk that lies about syncs is found out by the MACs.
//!
//! Cost: 256 KiB a step, 6 bytes a slot in all with `log`, 7 where it is grouped or `log-lru`; at
//! most a tenth of the device's time.

use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::circular_log::Cursor;
use crate::format::{
    BLOCK, COUNT_MAX, Fieldreader, LAP_MAX, ORDINAL_MAX, PART_BODY, PART_BYTES, Part, Superblock,
};
use crate::geometry::{Geometry, IndexShape, checkpoint_parts, meta_parts};
use crate::index_file::{self, Edition};
use crate::key::SHARDS;
use crate::memory::AlignedBuf;
use crate::recover::is_over;
use crate::stripe::Stripe;

/// Words in front of the stamps: segment, lap, stamp, used, ordinal, next version, policy, since.
const META_WORDS: usize = 8;

/// After a part, others have the device for this many times as long as the part took.
const REST: u32 = 9;
/// Least rest while nothing else is written: a write that a cache has taken says little about how
/// long the device is busy with it.
const REST_MIN: Duration = Duration::from_millis(20);
/// Most rest. What takes that long has met a device that hung, which says nothing about its pace.
const REST_MAX: Duration = Duration::from_mins(1);

/// A checkpoint that is being written.
pub(crate) struct Checkpoint {
    serial: u64,
    begun: u64,
    next: u64,
    parts: u64,
    meta: Vec<u8>,
    buffer: AlignedBuf,
    /// Rows of the next part, where whole shards are written one after another.
    begun_part: Vec<u8>,
    /// For the rows saved last, where policies leave some of the index there.
    old: Option<AlignedBuf>,
    /// When the last part was written, and how long others have the device from then on.
    written_at: Duration,
    rest: Duration,
    /// The last part was left to others, who have not written it yet.
    is_away: bool,
}

/// Where a checkpoint says that replay begins, and what it knew of the log.
pub(crate) struct Restored {
    pub(crate) cursor: Cursor,
    pub(crate) stamps: Vec<u64>,
    /// Versions below this had been drawn when it began.
    pub(crate) next_version: u64,
    pub(crate) edition: Edition,
}

pub(crate) fn area(geometry: &Geometry, serial: u64) -> u64 {
    geometry.checkpoint_offset + (serial % 2) * geometry.checkpoint_bytes
}

impl Checkpoint {
    /// Notes where the log stands.
    pub(crate) fn begin(stripe: &Stripe, serial: u64, cursor: Cursor) -> Self {
        // The version first: a remove draws its own under the lock of its shard and forgets before
        // it lets go, so one that is older than this is seen by every part saved below.
        let next_version = stripe.draw_version().0;
        let stamps = stripe.log.stamps();
        let words = [
            cursor.segment,
            cursor.lap,
            cursor.stamp,
            u64::from(cursor.used),
            u64::from(cursor.ordinal),
            next_version,
            u64::from(stripe.index_id.policy.code()),
            stripe.index_id.since,
        ];
        let meta = words
            .iter()
            .chain(&stamps)
            .flat_map(|word| word.to_le_bytes())
            .collect();
        Self {
            serial,
            begun: next_version,
            next: 0,
            parts: checkpoint_parts(stripe.geometry.segments, &stripe.index),
            meta,
            buffer: AlignedBuf::zeroed(PART_BYTES),
            begun_part: Vec::new(),
            old: stripe
                .index
                .stays_on_disk()
                .then(|| AlignedBuf::zeroed(PART_BYTES)),
            written_at: Duration::ZERO,
            rest: Duration::ZERO,
            is_away: false,
        }
    }

    pub(crate) fn edition(&self) -> Edition {
        Edition {
            serial: self.serial,
            begun: self.begun,
        }
    }

    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// How long the next part has to wait at `now`: behind a batch, or while nothing else is
    /// written.
    pub(crate) fn due_in(&self, now: Duration, behind_batch: bool) -> Duration {
        let rest = if behind_batch {
            self.rest
        } else {
            self.rest.max(REST_MIN)
        };
        (self.written_at + rest).saturating_sub(now)
    }

    /// Writes the next part.
    pub(crate) fn write_part(&mut self, stripe: &Stripe) -> io::Result<()> {
        let begun_at = stripe.clock.monotone();
        let body = self.next_body(stripe);
        self.write_body(stripe, &body)?;
        let now = stripe.clock.monotone();
        self.rest_from(now, now.saturating_sub(begun_at));
        Ok(())
    }

    /// Until when others have the device.
    pub(crate) fn rests_until(&self) -> Duration {
        self.written_at + self.rest
    }

    /// A part was written by `now`, and it `took` so long.
    fn rest_from(&mut self, now: Duration, took: Duration) {
        self.written_at = now;
        self.rest = took.saturating_mul(REST).min(REST_MAX);
    }

    /// Writes all that are left.
    pub(crate) fn write_parts(&mut self, stripe: &Stripe) -> io::Result<()> {
        while !self.is_whole() {
            self.write_part(stripe)?;
        }
        Ok(())
    }

    /// The same until it `is_over`.
    pub(crate) fn write_parts_unless(
        &mut self,
        stripe: &Stripe,
        is_over: impl Fn(&Stripe) -> bool,
    ) -> io::Result<()> {
        while !self.is_whole() && !is_over(stripe) {
            self.write_part(stripe)?;
        }
        Ok(())
    }

    /// Puts the next part into `out` for others to write ([`Self::others_wrote`]): where it goes.
    pub(crate) fn put_part(&mut self, stripe: &Stripe, out: &mut [u8]) -> u64 {
        let body = self.next_body(stripe);
        let (part, at) = self.part(stripe, &body);
        part.encode(out, &stripe.secret);
        self.next += 1;
        self.is_away = true;
        at
    }

    /// What was left to others was written by `now`, and it `took` so long; a part, if one was.
    pub(crate) fn others_wrote(&mut self, now: Duration, took: Duration) {
        if std::mem::take(&mut self.is_away) {
            self.rest_from(now, took);
        }
    }

    /// Whether there is no part left to write.
    pub(crate) fn is_whole(&self) -> bool {
        self.next >= self.parts
    }

    fn next_body(&mut self, stripe: &Stripe) -> Vec<u8> {
        let meta_parts = meta_parts(stripe.geometry.segments);
        if self.next < meta_parts {
            let from = usize::try_from(self.next).unwrap_or(0) * PART_BODY;
            self.meta[from..self.meta.len().min(from + PART_BODY)].to_vec()
        } else {
            self.rows_body(stripe, self.next - meta_parts)
        }
    }

    /// Writes the rows of `shards`, behind those of the shards before them, for a policy that
    /// leaves positions on disk but has those of these shards in memory ([`Policy::widen`]). Ends
    /// early when recovery is over.
    ///
    /// [`Policy::widen`]: crate::policy::Policy::widen
    pub(crate) fn write_shards(&mut self, stripe: &Stripe, shards: Range<usize>) -> io::Result<()> {
        while self.next < meta_parts(stripe.geometry.segments) {
            self.write_part(stripe)?;
        }
        let rows_per_part = usize::try_from(stripe.index.rows_per_part()).unwrap_or(usize::MAX);
        let full = rows_per_part.saturating_mul(stripe.index.saved_row_bytes());
        let mut body = std::mem::take(&mut self.begun_part);
        for shard in shards.clone() {
            if is_over(stripe) {
                return Ok(());
            }
            for row in 0..stripe.index.shard_rows {
                index_file::save_row(stripe, shard, row, self.edition(), &[], &mut body);
                if body.len() == full {
                    self.write_body(stripe, &body)?;
                    body.clear();
                }
            }
        }
        if shards.end == SHARDS && !body.is_empty() {
            self.write_body(stripe, &body)?;
        } else {
            self.begun_part = body;
        }
        Ok(())
    }

    fn write_body(&mut self, stripe: &Stripe, body: &[u8]) -> io::Result<()> {
        let (part, at) = self.part(stripe, body);
        part.encode(&mut self.buffer, &stripe.secret);
        stripe.write(at, &self.buffer)?;
        self.next += 1;
        Ok(())
    }

    /// The next part, and where it goes.
    fn part<'a>(&self, stripe: &Stripe, body: &'a [u8]) -> (Part<'a>, u64) {
        let part = Part {
            device: stripe.device_id,
            serial: self.serial,
            number: self.next,
            begun: self.begun,
            body,
        };
        let at = area(&stripe.geometry, self.serial) + self.next * PART_BYTES as u64;
        (part, at)
    }

    fn rows_body(&mut self, stripe: &Stripe, part: u64) -> Vec<u8> {
        let edition = self.edition();
        let Some(buffer) = &mut self.old else {
            return rows_body(stripe, part);
        };
        let meta_parts = meta_parts(stripe.geometry.segments);
        let old = stripe.index_file.edition().and_then(|old| {
            let saved = read_part(stripe, old.serial, meta_parts + part, buffer)?;
            (saved.begun == old.begun).then_some(saved.body)
        });
        let pieces = pieces(&stripe.index, part);
        index_file::rows_body(stripe, pieces, edition, old.unwrap_or_default())
    }
}

/// Rows `first` to `last` of a shard.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) shard: usize,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// The pieces of shards that a part of rows is made of.
fn pieces(index: &IndexShape, part: u64) -> impl Iterator<Item = Piece> + use<> {
    let rows = u64::from(index.shard_rows).max(1);
    let from = part * index.rows_per_part();
    let to = (from + index.rows_per_part()).min(index.rows());
    (from / rows..to.div_ceil(rows)).map(move |shard| {
        let narrow = |row: u64| u32::try_from(row).unwrap_or(u32::MAX);
        let first = from.saturating_sub(shard * rows);
        let last = (to - shard * rows).min(rows);
        Piece {
            shard: usize::try_from(shard).unwrap_or(usize::MAX),
            first: narrow(first),
            last: narrow(last),
        }
    })
}

fn rows_body(stripe: &Stripe, part: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity(PART_BODY);
    for Piece { shard, first, last } in pieces(&stripe.index, part) {
        let mut shard = stripe.shard_at(shard);
        shard.policy.save(first..last, &[], &mut body);
    }
    body
}

/// Loads checkpoint `serial` into the shards; `None`, and nothing loaded, when it is not whole.
///
/// One part less would not do: a newer version of a name could lie in it and an older one in
/// another.
pub(crate) fn load(stripe: &Stripe, serial: u64) -> Option<Restored> {
    let mut any = false;
    let restored = read(stripe, serial, |part, body| {
        any = true;
        restore_rows(stripe, part, body, 0..SHARDS)
    });
    match &restored {
        Some(restored) => stripe.index_file.publish(Some(restored.edition)),
        None if any => forget(stripe),
        None => {}
    }
    restored
}

/// Takes the rows of `shards` from checkpoint `serial`, which was found whole before.
pub(crate) fn load_shards(stripe: &Stripe, serial: u64, shards: Range<usize>) -> Option<()> {
    let metas = meta_parts(stripe.geometry.segments);
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let parts = checkpoint_parts(stripe.geometry.segments, &stripe.index);
    let wanted =
        |part: &u64| pieces(&stripe.index, *part).any(|piece| shards.contains(&piece.shard));
    for part in (0..parts - metas).filter(wanted) {
        let saved = read_part(stripe, serial, metas + part, &mut buffer)?;
        restore_rows(stripe, part, saved.body, shards.clone())?;
    }
    Some(())
}

/// Nothing is known, neither in memory nor on disk.
pub(crate) fn forget(stripe: &Stripe) {
    stripe.index_file.publish(None);
    stripe.shards().for_each(|mut shard| shard.policy.clear());
}

/// Whether checkpoint `serial` is whole.
pub(crate) fn is_whole(stripe: &Stripe, serial: u64) -> bool {
    read(stripe, serial, |_, _| Some(())).is_some()
}

/// Parts of the last checkpoint that do not verify, whichever policy wrote it.
pub(crate) fn parts_damaged(stripe: &Stripe, superblock: &Superblock) -> u64 {
    let serial = superblock.checkpoint_serial;
    let room = stripe.geometry.checkpoint_bytes / PART_BYTES as u64;
    let parts = match serial {
        0 => 0,
        _ => superblock.checkpoint_parts.min(room),
    };
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let damaged = |number: &u64| read_part(stripe, serial, *number, &mut buffer).is_none();
    (0..parts).filter(damaged).count() as u64
}

/// Reads checkpoint `serial` and passes its parts of rows on.
fn read(
    stripe: &Stripe,
    serial: u64,
    mut rows: impl FnMut(u64, &[u8]) -> Option<()>,
) -> Option<Restored> {
    if serial == 0 {
        return None;
    }
    let geometry = &stripe.geometry;
    let (metas, parts) = (
        meta_parts(geometry.segments),
        checkpoint_parts(geometry.segments, &stripe.index),
    );
    let mut buffer = AlignedBuf::zeroed(PART_BYTES);
    let mut meta = Vec::new();
    let mut begun = None;
    for number in 0..parts {
        if is_over(stripe) {
            return None;
        }
        let part = read_part(stripe, serial, number, &mut buffer)?;
        // A part that was left by another checkpoint of this serial, begun and given up, does not
        // fit.
        if *begun.get_or_insert(part.begun) != part.begun {
            return None;
        }
        if number < metas {
            meta.extend_from_slice(part.body);
        } else {
            rows(number - metas, part.body)?;
        }
    }
    let segments = usize::try_from(geometry.segments).ok()?;
    if meta.len() != (META_WORDS + segments) * 8 {
        return None;
    }
    let field = Fieldreader(&meta);
    let word = |n: usize| field.u64(8 * n);
    let cursor = Cursor {
        segment: word(0),
        lap: word(1),
        stamp: word(2),
        used: u32::try_from(word(3)).ok()?,
        ordinal: u32::try_from(word(4)).ok()?,
    };
    // Of another policy, or from before another policy had the store and wrote no lists.
    let own =
        word(6) == u64::from(stripe.index_id.policy.code()) && word(7) == stripe.index_id.since;
    let sound = own
        && cursor.segment < geometry.segments
        && cursor.used <= geometry.segment_bytes
        && u64::from(cursor.used).is_multiple_of(u64::from(geometry.unit_bytes).max(BLOCK as u64))
        && cursor.ordinal < ORDINAL_MAX
        && cursor.stamp < COUNT_MAX
        && cursor.lap < LAP_MAX
        && word(5) < COUNT_MAX;
    sound.then(|| Restored {
        cursor,
        stamps: (META_WORDS..META_WORDS + segments).map(word).collect(),
        next_version: word(5),
        edition: Edition {
            serial,
            begun: begun.unwrap_or(0),
        },
    })
}

/// Takes the rows of `shards` that a part has.
fn restore_rows(stripe: &Stripe, part: u64, mut body: &[u8], shards: Range<usize>) -> Option<()> {
    let (row_bytes, stored) = (stripe.index.row_bytes, stripe.index.saved_row_bytes());
    for Piece { shard, first, last } in pieces(&stripe.index, part) {
        let bytes = (last - first) as usize * stored;
        let (rows, rest) = body.split_at_checked(bytes)?;
        body = rest;
        if !shards.contains(&shard) {
            continue;
        }
        let mut shard = stripe.shard_at(shard);
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
    stripe: &Stripe,
    serial: u64,
    number: u64,
    buffer: &'a mut AlignedBuf,
) -> Option<Part<'a>> {
    let at = area(&stripe.geometry, serial) + number * PART_BYTES as u64;
    stripe.fill(at, buffer)?;
    let part = Part::decode(buffer, &stripe.secret)?;
    let right = part.serial == serial && part.number == number && part.device == stripe.device_id;
    right.then_some(part)
}
