//! A walk: names and metadata of the objects on a device, a few at a time.
//!
//! Called by `cache/walk`. First the pending records, shard by shard; then the records in the log,
//! starting with the oldest segment, or the sets of the Disk Table, one after another. A record is
//! returned if a lookup of the name would find it: removed, replaced and evicted objects are left
//! out.
//!
//! Invariants: a step reads a segment list, a record or a set, and holds no more than that and the
//! list. A place ([`WalkPlace`]) from outside is checked before use.
//! Cost: a step takes one or two reads. An object costs a read in the log, and 1/ways in a table;
//! another read for each newer record that may have the same name, and for an index row on disk.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Stripe;
use super::scan::Segments;
use crate::address::{LogPos, SetId};
use crate::disk::circular_log::Cursor;
use crate::disk::{ListMemory, Medium, PieceEnd, Read, SegmentLists, table};
use crate::format::{Family, IO_BLOCK, Kind, Listed, kind_number};
use crate::key::{KeyHash, SHARDS};
use crate::memory::RecordHandle;
use crate::policy::Located;
use crate::shard::Pending;
use crate::stats::Health;
use crate::sync::atomic::Ordering;

/// How often a set is read again because a slot was written in the meantime. After that, an object
/// may be returned as it was when the step started.
const SET_TRIES_MAX: usize = 4;

/// Result of one step.
#[derive(Default)]
pub(crate) struct WalkedPiece {
    pub(crate) records: Vec<RecordHandle>,
    pub(crate) read_bytes: u64,
}

/// Where a walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkPlace {
    /// At the pending records of this shard.
    Pending(usize),
    /// In the log: the segment that was open when the walk of the log started, with its lap; how
    /// many segments were started; how many lines of the last segment were visited.
    Log {
        open: (u64, u64),
        begun: u64,
        line: u64,
    },
    /// At this set.
    Set(u64),
    /// Nowhere: the whole device was visited.
    Over,
}

/// Progress of a walk on a device.
pub(crate) struct StripeWalk {
    stage: Stage,
    memory: ListMemory,
}

enum Stage {
    Pending(usize),
    Log(LogWalk),
    Set(u64),
    Over,
}

/// Progress in the log.
struct LogWalk {
    segments: Segments,
    /// How many segments were started, also before this walk was resumed.
    begun: u64,
    /// Visited lines in the segment that was started last.
    line: u64,
    /// Lines of that segment that were read and not yet visited, and the segment.
    lines: VecDeque<Listed>,
    cursor: Option<Cursor>,
    /// Lists of that segment that were not read yet.
    lists: Option<SegmentLists>,
    /// Lines at the start of that segment that were visited before this walk was resumed.
    skip: u64,
}

impl LogWalk {
    fn new(segments: Segments, begun: u64, skip: u64) -> Self {
        Self {
            segments,
            begun,
            line: 0,
            lines: VecDeque::new(),
            cursor: None,
            lists: None,
            skip,
        }
    }

    fn place(&self) -> WalkPlace {
        let open = self.segments.open();
        let (begun, line) = if self.is_segment_over() {
            (self.begun + 1, 0)
        } else {
            (self.begun, self.line.saturating_add(self.skip))
        };
        if begun > self.segments.begun_max() {
            WalkPlace::Over
        } else {
            WalkPlace::Log { open, begun, line }
        }
    }
}

impl StripeWalk {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Pending(0),
            memory: ListMemory::default(),
        }
    }

    /// A walk that continues at `place`; `None` if this device has no such place.
    pub(crate) fn at(stripe: &Stripe, place: WalkPlace) -> Option<Self> {
        let geometry = &stripe.medium.geometry;
        let stage = match place {
            WalkPlace::Pending(shard) if shard <= SHARDS => Stage::Pending(shard),
            WalkPlace::Set(set) if set <= geometry.sets => Stage::Set(set),
            WalkPlace::Over => Stage::Over,
            WalkPlace::Log { open, begun, line } => {
                let segments = Segments::resumed(stripe, open, begun)?;
                Stage::Log(LogWalk::new(segments, begun, line))
            }
            WalkPlace::Pending(_) | WalkPlace::Set(_) => return None,
        };
        Some(Self {
            stage,
            memory: ListMemory::default(),
        })
    }

    /// Where the next step starts.
    pub(crate) fn place(&self) -> WalkPlace {
        match &self.stage {
            Stage::Pending(shard) => WalkPlace::Pending(*shard),
            Stage::Log(log) => log.place(),
            Stage::Set(set) => WalkPlace::Set(*set),
            Stage::Over => WalkPlace::Over,
        }
    }

    /// Share of the device that was visited, in 1/1000.
    pub(crate) fn done_permille(&self, stripe: &Stripe) -> u64 {
        let (done, all) = match &self.stage {
            Stage::Pending(_) => (0, 1),
            Stage::Log(log) => (log.begun.saturating_sub(1), log.segments.begun_max()),
            Stage::Set(set) => (*set, stripe.medium.geometry.sets),
            Stage::Over => (1, 1),
        };
        1000 * done / all.max(1)
    }

    /// Continues until a record was found or bytes were read; `None` at the end.
    pub(crate) fn step(&mut self, stripe: &Arc<Stripe>) -> Option<WalkedPiece> {
        loop {
            // Objects on a failed device do not count any more.
            if stripe.health() != Health::InService {
                self.stage = Stage::Over;
            }
            match &mut self.stage {
                Stage::Over => return None,
                Stage::Pending(SHARDS) => self.stage = after_pending(stripe),
                Stage::Pending(shard) => {
                    let records = stripe.pending_heads(*shard);
                    *shard += 1;
                    if !records.is_empty() {
                        return Some(WalkedPiece {
                            records,
                            read_bytes: 0,
                        });
                    }
                }
                Stage::Log(log) => match log.step(stripe, &mut self.memory) {
                    Some(piece) => return Some(piece),
                    None => self.stage = Stage::Over,
                },
                Stage::Set(set) if *set == stripe.medium.geometry.sets => self.stage = Stage::Over,
                Stage::Set(set) => {
                    let piece = stripe.heads_of_set(SetId(*set));
                    *set += 1;
                    return Some(piece);
                }
            }
        }
    }
}

fn after_pending(stripe: &Stripe) -> Stage {
    match stripe.medium.geometry.family {
        Family::Table => Stage::Set(0),
        Family::Log => Stage::Log(LogWalk::new(Segments::from_stripe(stripe), 0, 0)),
    }
}

impl LogWalk {
    /// Visits lines up to the first line with a record that counts, or to the end of a list; `None`
    /// at the end of the log. A step of a resumed walk passes the lines that were visited before,
    /// so the next resumed walk does not start in the same place.
    fn step(&mut self, stripe: &Arc<Stripe>, memory: &mut ListMemory) -> Option<WalkedPiece> {
        let mut read_bytes = 0;
        loop {
            let before = self.line;
            while let (Some(cursor), Some(listed)) = (self.cursor, self.lines.pop_front()) {
                self.line += 1;
                if let Some(mut piece) = stripe.listed_head(cursor, &listed) {
                    piece.read_bytes += read_bytes;
                    return Some(piece);
                }
            }
            if self.line > before || (read_bytes > 0 && self.is_segment_over()) {
                return Some(WalkedPiece {
                    records: Vec::new(),
                    read_bytes,
                });
            }
            read_bytes += self.read_list(stripe, memory)?;
        }
    }

    /// Returns true if all lines of the current segment were visited.
    fn is_segment_over(&self) -> bool {
        self.cursor.is_some() && self.lines.is_empty() && self.lists.is_none()
    }

    /// Reads the next list. Returns the bytes read; `None` at the end of the log.
    fn read_list(&mut self, stripe: &Arc<Stripe>, memory: &mut ListMemory) -> Option<u64> {
        let mut lists = match self.lists.take() {
            Some(lists) => lists,
            None => self.begin_segment(stripe)?,
        };
        let piece = lists.next(&stripe.medium, memory);
        let cursor = lists.cursor();
        let mut lines = VecDeque::from(piece.listed);
        let skipped = usize::try_from(self.skip).map_or(lines.len(), |it| it.min(lines.len()));
        lines.drain(..skipped);
        self.skip -= skipped as u64;
        self.line += skipped as u64;
        (self.lines, self.cursor) = (lines, Some(cursor));
        self.lists = Some(lists).filter(|_| piece.end == PieceEnd::More);
        Some(piece.read_bytes)
    }

    /// Returns the lists of the next segment. Visited lines are skipped only in the segment in
    /// which they were visited.
    fn begin_segment(&mut self, stripe: &Stripe) -> Option<SegmentLists> {
        let is_first = self.cursor.is_none();
        let expected = self.segments.next_number();
        let lists = self.segments.next(stripe)?;
        if !is_first || expected != Some(lists.cursor().segment) {
            self.skip = 0;
        }
        (self.begun, self.line) = (self.segments.begun(), 0);
        Some(lists)
    }
}

impl Stripe {
    /// The record of a listed head, if a lookup would find it and it counts.
    fn listed_head(&self, cursor: Cursor, listed: &Listed) -> Option<WalkedPiece> {
        if listed.kind != kind_number(Kind::Head) {
            return None;
        }
        let key = listed.key;
        let shard = self.view(key);
        if let Some(pending) = shard.pending.get(&key) {
            return self.pending_head(pending).map(|record| WalkedPiece {
                records: vec![record],
                read_bytes: 0,
            });
        }
        let at = self.stored_at(shard, cursor, listed)?;
        let newer = self.newer_windows(key, at)?;
        let Read::Record(record) = self.read_exactly(at, key, 0) else {
            return None;
        };
        let mut read_bytes = record.content_bytes() + record.metadata.len() + record.name.len();
        // Another name with an equal tag, or a newer version of this name.
        for window in &newer {
            read_bytes += IO_BLOCK;
            match self.read_window(*window, key, 0) {
                Read::Record(other) if other.name == record.name => return None,
                Read::Record(_) | Read::Other | Read::Passed => {}
                Read::Damaged | Read::Refused | Read::Failed => return None,
            }
        }
        let is_found = newer.is_empty() || self.still_points_to(key, self.window(at));
        (is_found && self.is_in_force(&record)).then(|| WalkedPiece {
            records: vec![RecordHandle::alone(*record)],
            read_bytes: read_bytes as u64,
        })
    }

    /// The windows that a lookup of `key` reads before the window of `at`; `None` if a lookup does
    /// not read the window of `at`.
    fn newer_windows(&self, key: KeyHash, at: LogPos) -> Option<Vec<LogPos>> {
        let shard = self.view(key);
        let located = self.locate(&shard, key);
        drop(shard);
        let located = match located {
            Located::Displaced(row) => {
                let (shard, saved) = self.saved_row(key, row, Medium::read_bytes)?;
                self.locate_in_row(&shard, key, &saved)
            }
            located => located,
        };
        let Located::Log(candidates) = located else {
            return None;
        };
        let all = candidates.as_slice();
        let own = all.iter().position(|it| *it == self.window(at))?;
        Some(all[..own].to_vec())
    }

    /// Returns the records in a set that count.
    fn heads_of_set(&self, set: SetId) -> WalkedPiece {
        // A record that leaves the pending map while the set is read may be missed in both places,
        // so the set is read again.
        for _ in 0..SET_TRIES_MAX {
            let before = self.slots_written.load(Ordering::Acquire);
            let piece = self.heads_of_set_once(set);
            if self.slots_written.load(Ordering::Acquire) == before {
                return piece;
            }
        }
        self.heads_of_set_once(set)
    }

    fn heads_of_set_once(&self, set: SetId) -> WalkedPiece {
        let mut piece = WalkedPiece {
            read_bytes: self.medium.geometry.set_bytes(),
            ..WalkedPiece::default()
        };
        let Some(read) = table::read_set(&self.medium, set) else {
            return piece;
        };
        for slot in &read.filled {
            let key = slot.occupant.key;
            let shard = self.view(key);
            if let Some(pending) = shard.pending.get(&key) {
                piece.records.extend(self.pending_head(pending));
                continue;
            }
            let is_newer = |it: &table::Filled| {
                it.occupant.key == key && it.occupant.version > slot.occupant.version
            };
            let is_found = match self.locate(&shard, key) {
                Located::Slot(_, known) => known == slot.slot,
                Located::Set(..) => !read.filled.iter().any(is_newer),
                Located::Nowhere | Located::Log(_) | Located::Displaced(_) => false,
            };
            drop(shard);
            if !is_found {
                continue;
            }
            if let Read::Record(record) = table::read_record(&self.medium, &self.log, slot)
                && record.fields.kind == Kind::Head
                && self.is_in_force(&record)
            {
                piece.records.push(RecordHandle::alone(*record));
            }
        }
        piece
    }

    /// The pending heads in a shard.
    fn pending_heads(&self, shard: usize) -> Vec<RecordHandle> {
        let shard = self.view_at(shard);
        let pending = shard.pending.values();
        pending.filter_map(|it| self.pending_head(it)).collect()
    }

    /// The record in a pending head that counts.
    fn pending_head(&self, pending: &Pending) -> Option<RecordHandle> {
        let record = &pending.record;
        let counts =
            record.fields.kind == Kind::Head && !pending.is_dead() && !self.bans.judge(record).gone;
        counts.then(|| record.clone())
    }
}
