//! A scan: the marks of the objects of one device, from the lists of its log.
//!
//! Called by `cache/scan`, one step at a time. First the pending records are looked through, shard
//! by shard, then the segments from the oldest to the one that is open by then. A line counts if
//! the index still points to its window: the object was neither replaced nor removed nor evicted.
//!
//! Invariant: a name that is stored all the time, under one mark, is given out, or it was reported
//! to an observer that was there before. The reason: a name's newest record moves only towards the
//! head of the log, as the scan does. Say that the scan reaches the segment where the record lay
//! when the scan began.
//! - The index points there: the line is given out.
//! - The index points elsewhere, to a place that the scan has still to visit: the line there
//!   decides.
//! - It points behind the segment that was open when the segments were begun. Then the record
//!   there was written after that, and was reported before the index pointed to it (`observers`).
//! - A newer record is pending: its mark is given out.
//!
//! Pending records are looked through before the open segment is noted. What leaves them earlier
//! lies in a segment that is visited, and what is added later was put after the observer came. The
//! writer sees the observer by then: it took the shard's lock, or that of the stamps, after the
//! scan had.
//! Cost: of a step, one piece of `disk/segment_lists`; of a line, one lock that readers share and a
//! row or two of the index. No record is read.

use std::sync::Arc;

use super::Stripe;
use crate::address::LogPos;
use crate::disk::circular_log::Cursor;
use crate::disk::{ListMemory, PieceEnd, SegmentLists};
use crate::format::{Kind, Listed, kind_number};
use crate::hour::Hour;
use crate::key::SHARDS;
use crate::memory::ReadLocked;
use crate::observers::MarkedObject;
use crate::shard::{Pending, Shard};
use crate::stats::Health;

/// What one step found.
pub(crate) struct ScannedPiece {
    pub(crate) objects: Vec<MarkedObject>,
    pub(crate) read_bytes: u64,
    /// Lists of a segment could not be read, all or some.
    pub(crate) is_unread: bool,
}

/// Progress of a scan of one device.
pub(crate) struct StripeScan {
    stage: Stage,
    memory: ListMemory,
}

enum Stage {
    /// From this shard on, pending records have to be looked through.
    Pending(usize),
    Segments(Segments),
    Over,
}

/// The segments of one turn of the log, from the oldest on.
pub(super) struct Segments {
    /// The one that was open when this was made, and its lap.
    open: (u64, u64),
    count: u64,
    /// How many have been begun. The open one is visited first and last: first for what it still
    /// holds of the lap before.
    begun: u64,
    lists: Option<SegmentLists>,
}

impl Segments {
    pub(super) fn of(stripe: &Stripe) -> Self {
        Self {
            open: stripe.log.open_segment(),
            count: stripe.medium.geometry.segments,
            begun: 0,
            lists: None,
        }
    }

    /// Those that were begun when the segment `open` was open, from the last of `begun` segments
    /// on; `None` if there cannot have been such ones.
    pub(super) fn resumed(stripe: &Stripe, open: (u64, u64), begun: u64) -> Option<Self> {
        let all = Self::of(stripe);
        let (segment, lap) = open;
        let (now, now_lap) = all.open;
        let is_past = segment < all.count && (lap, segment) <= (now_lap, now);
        (is_past && begun <= all.begun_max()).then_some(Self {
            open,
            begun: begun.saturating_sub(1),
            ..all
        })
    }

    pub(super) fn open(&self) -> (u64, u64) {
        self.open
    }

    /// How many have been begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// How many will have been begun at the end: the open one is begun twice.
    pub(super) fn begun_max(&self) -> u64 {
        self.count + 1
    }

    /// The number of the segment that is looked at next.
    pub(super) fn next_number(&self) -> Option<u64> {
        (self.begun <= self.count).then(|| (self.open.0 + self.begun) % self.count)
    }

    /// The next segment that holds anything of the lap it is visited for.
    pub(super) fn next(&mut self, stripe: &Stripe) -> Option<SegmentLists> {
        while let Some(segment) = self.next_number() {
            let (open, open_lap) = self.open;
            let lap = if segment < open || self.begun == self.count {
                Some(open_lap)
            } else {
                open_lap.checked_sub(1)
            };
            self.begun += 1;
            let stamp = lap.and_then(|lap| stamp(stripe, segment, lap));
            if let (Some(lap), Some(stamp)) = (lap, stamp) {
                let cursor = Cursor {
                    segment,
                    lap,
                    stamp,
                    used: 0,
                    ordinal: 0,
                };
                let is_open = stripe.log.open_segment() == (segment, lap);
                return Some(SegmentLists::new(cursor, is_open));
            }
        }
        None
    }
}

/// The stamp of a segment in a lap, as long as anything of that lap is left in it.
fn stamp(stripe: &Stripe, segment: u64, lap: u64) -> Option<u64> {
    let start = stripe.log.position(lap, segment, 0);
    stripe.log.place(start).map(|place| place.stamp)
}

impl StripeScan {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Pending(0),
            memory: ListMemory::default(),
        }
    }

    /// Goes on until something was found or read; `None` at the end.
    pub(crate) fn step(&mut self, stripe: &Arc<Stripe>) -> Option<ScannedPiece> {
        loop {
            // A device that has failed holds nothing any more.
            if stripe.health() != Health::InService {
                self.stage = Stage::Over;
            }
            match &mut self.stage {
                Stage::Over => return None,
                Stage::Pending(SHARDS) => self.stage = Stage::Segments(Segments::of(stripe)),
                Stage::Pending(shard) => {
                    let objects = stripe.pending_objects(*shard);
                    *shard += 1;
                    if !objects.is_empty() {
                        return Some(ScannedPiece {
                            objects,
                            read_bytes: 0,
                            is_unread: false,
                        });
                    }
                }
                Stage::Segments(segments) => {
                    let lists = segments.lists.take().or_else(|| segments.next(stripe));
                    let Some(mut lists) = lists else {
                        self.stage = Stage::Over;
                        continue;
                    };
                    let (piece, has_more) = stripe.scan_piece(&mut lists, &mut self.memory);
                    segments.lists = Some(lists).filter(|_| has_more);
                    return Some(piece);
                }
            }
        }
    }
}

impl Stripe {
    /// Reads the next piece of `lists`. Also returns whether there are more.
    fn scan_piece(
        &self,
        lists: &mut SegmentLists,
        memory: &mut ListMemory,
    ) -> (ScannedPiece, bool) {
        let (segment, lap) = (lists.cursor().segment, lists.cursor().lap);
        let was_open = self.log.open_segment() == (segment, lap);
        let piece = lists.next(&self.medium, memory);
        let now = self.medium.clock.unix_millis();
        let cursor = lists.cursor();
        let lines = piece.listed.iter();
        let objects = lines.filter_map(|listed| self.listed_object(cursor, listed, now));
        let objects: Vec<MarkedObject> = objects.collect();
        let is_unread = match piece.end {
            PieceEnd::More | PieceEnd::Sealed => false,
            PieceEnd::Refused => true,
            // The header of a batch that is being written looks so too.
            PieceEnd::Torn => !was_open,
            // After a crash a segment has no footer. Its lists end where its batches end, unless
            // the next lap has begun to overwrite them.
            PieceEnd::Walked(used) => {
                let is_reclaimed = self.log.open_segment() == (segment, lap + 1);
                let is_left = stamp(self, segment, lap).is_some();
                is_left && (is_reclaimed || used == 0 && !was_open)
            }
        };
        let piece_read = ScannedPiece {
            objects,
            read_bytes: piece.read_bytes,
            is_unread,
        };
        (piece_read, piece.end == PieceEnd::More)
    }

    /// What `listed` says of an object that is still stored.
    fn listed_object(&self, cursor: Cursor, listed: &Listed, now: u64) -> Option<MarkedObject> {
        if listed.kind != kind_number(Kind::Head) || listed.mark == 0 {
            return None;
        }
        let shard = self.view(listed.key);
        if let Some(pending) = shard.pending.get(&listed.key) {
            return self.pending_object(pending, now);
        }
        self.stored_at(shard, cursor, listed)?;
        Some(MarkedObject {
            mark: listed.mark,
            fresh_until: Hour::from_stored(listed.fresh_until, now),
            head_bytes: self.log.alignment().record(1) as u64 * u64::from(listed.length),
        })
    }

    /// Where a listed record lies, if its shard's index still points there and it counts.
    pub(super) fn stored_at(
        &self,
        shard: ReadLocked<'_, Shard>,
        cursor: Cursor,
        listed: &Listed,
    ) -> Option<LogPos> {
        let unit = u64::from(listed.offset);
        let at = self.log.position(cursor.lap, cursor.segment, unit);
        let is_stored = self.health() == Health::InService
            && !shard.is_removing(listed.key)
            && self.log.is_live(at)
            && shard
                .policy
                .log()?
                .points_to(listed.key, at, self.log.head());
        drop(shard);
        let counts = is_stored
            && self.counts(listed.key, listed.version)
            && !self.bans.take_all(listed.version);
        counts.then_some(at)
    }

    /// The pending objects of a shard.
    fn pending_objects(&self, shard: usize) -> Vec<MarkedObject> {
        let shard = self.view_at(shard);
        if shard.pending.is_empty() {
            return Vec::new();
        }
        let now = self.medium.clock.unix_millis();
        let pending = shard.pending.values();
        pending
            .filter_map(|pending| self.pending_object(pending, now))
            .collect()
    }

    /// What an observer or a scan is to know of a record that is not in the lists yet.
    pub(crate) fn pending_object(&self, pending: &Pending, now: u64) -> Option<MarkedObject> {
        let fields = &pending.record.fields;
        let mark = fields.listed_mark();
        if fields.kind != Kind::Head || mark == 0 || pending.is_dead() {
            return None;
        }
        (!self.bans.judge(&pending.record).gone).then(|| MarkedObject {
            mark,
            fresh_until: Hour::from_stored(fields.fresh_until, now),
            head_bytes: self.log.alignment().record(pending.record_bytes) as u64,
        })
    }
}
