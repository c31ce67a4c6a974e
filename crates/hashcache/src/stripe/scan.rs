//! A scan: the marks of the objects on a device, from the segment lists of the log.
//!
//! Called by `cache/scan`, one step at a time. First the scan visits the pending records, shard by
//! shard, then the segments from the oldest to the segment that is open by then. A line counts if
//! the index still points to the window of the record: the object was neither replaced nor removed
//! nor evicted.
//!
//! Invariant: a name that is stored during the whole scan, under one mark, is returned, or it was
//! reported to an observer that was registered before. The reason: the newest record of a name
//! moves only towards the head of the log, as the scan does. Assume that the scan reaches the
//! segment that held the record when the scan started.
//! - The index points there: the line is returned.
//! - The index points elsewhere, to a place that the scan has still to visit: the line there
//!   decides.
//! - The index points behind the segment that was open when the segment stage started. Then the
//!   record there was written after that, and was reported before the index pointed to it
//!   (`observers`).
//! - A newer record is pending: the mark of that record is returned.
//!
//! Pending records are visited before the open segment is noted. A record that leaves the pending
//! map earlier is in a segment that is visited, and a record that is added later was put after the
//! observer was registered. The writer sees the observer by then: it took the shard lock, or the
//! stamp lock, after the scan had.
//! Cost: for a step, one piece of `disk/segment_lists`; for a line, one lock that readers share and
//! a row or two of the index. No record is read.

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

/// Result of one step.
pub(crate) struct ScannedPiece {
    pub(crate) objects: Vec<MarkedObject>,
    pub(crate) read_bytes: u64,
    /// True if some or all lists of a segment could not be read.
    pub(crate) is_unread: bool,
}

/// Progress of a scan on a device.
pub(crate) struct StripeScan {
    stage: Stage,
    memory: ListMemory,
}

enum Stage {
    /// The pending records of this shard and all later shards are still to be visited.
    Pending(usize),
    Segments(Segments),
    Over,
}

/// The segments in a log lap, starting with the oldest.
pub(super) struct Segments {
    /// The segment that was open when this was created, with its lap.
    open: (u64, u64),
    count: u64,
    /// How many segments were started. The open segment is visited first and last: first for the
    /// records that are left of the previous lap.
    begun: u64,
    lists: Option<SegmentLists>,
}

impl Segments {
    pub(super) fn from_stripe(stripe: &Stripe) -> Self {
        Self {
            open: stripe.log.open_segment(),
            count: stripe.medium.geometry.segments,
            begun: 0,
            lists: None,
        }
    }

    /// The segments as of the moment when segment `open` was open, starting with the last of the
    /// `begun` segments; `None` if there cannot have been such a moment.
    pub(super) fn resumed(stripe: &Stripe, open: (u64, u64), begun: u64) -> Option<Self> {
        let all = Self::from_stripe(stripe);
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

    /// How many segments were started.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// How many segments will have been started at the end: the open segment is started twice.
    pub(super) fn begun_max(&self) -> u64 {
        self.count + 1
    }

    /// The next segment to visit.
    pub(super) fn next_number(&self) -> Option<u64> {
        (self.begun <= self.count).then(|| (self.open.0 + self.begun) % self.count)
    }

    /// The next segment that still holds data from the lap for which it is visited.
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

/// The stamp of a segment in a lap, as long as any data from that lap is left in it.
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

    /// Continues until an object was found or a list was read; `None` at the end.
    pub(crate) fn step(&mut self, stripe: &Arc<Stripe>) -> Option<ScannedPiece> {
        loop {
            // Objects on a failed device do not count any more.
            if stripe.health() != Health::InService {
                self.stage = Stage::Over;
            }
            match &mut self.stage {
                Stage::Over => return None,
                Stage::Pending(SHARDS) => {
                    self.stage = Stage::Segments(Segments::from_stripe(stripe));
                }
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
    /// Reads the next piece of `lists`. Also returns true if there are more pieces.
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
            // The header of a batch that is being written looks torn, too.
            PieceEnd::Torn => !was_open,
            // After a crash a segment has no footer. The lists stop where the batches stop, unless
            // the next lap has started to overwrite them.
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

    /// The object of a `listed` line, if it is still stored.
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

    /// Position of a listed record, if the shard's index still points there and the record counts.
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

    /// The pending objects in a shard.
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

    /// The report to an observer or a scan for a record that is not in the lists yet.
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
