//! The circular log: where its head is, which lap wrote each segment, and the one writer that moves
//! it.
//!
//! The log is a ring of segments, each written once a lap, in batches. A segment is opened with a
//! *stamp* that was never used before; every record in it carries the stamp under its MAC. So a
//! record is genuine only if it was written by the lap that the index means, and no place is ever
//! written twice under one stamp, not even after a crash (the next opening starts a new segment).
//!
//! [`LogMap`] is shared with readers, [`LogWriter`] belongs to `writer`.
//!
//! Invariant: the head moves before a batch is written, so a reader that finds `head - position <
//! capacity` *after* its read has read bytes that were not being overwritten.
//! Cost: one write a batch, one more a segment.

use std::sync::RwLock;

use crate::address::LogPos;
use crate::format::{
    BatchHeader, DurablePoint, Footer, IO_BLOCK, LIST_ENTRY, Link, Listed, RecordAddress, round_up,
};
use crate::geometry::Geometry;
use crate::key::Secret;
use crate::sync::atomic::{AtomicU64, Ordering};

/// In what steps the log is filled: records begin at units, batches at blocks of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogAlignment {
    unit: usize,
}

impl LogAlignment {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self {
            unit: geometry.unit_bytes as usize,
        }
    }

    /// Bytes a record of `bytes` bytes takes.
    pub(crate) fn record(self, bytes: usize) -> usize {
        round_up(bytes, self.unit)
    }

    /// Bytes from the start of a batch of `count` records to the first of them.
    pub(crate) fn header(self, count: usize) -> usize {
        round_up(BatchHeader::bytes(count), self.unit)
    }

    /// Bytes a batch takes that is filled up to `filled`. Batches end where windows of the index do
    /// (`policy/log`).
    pub(crate) fn batch_end(self, filled: usize) -> usize {
        round_up(filled, self.unit.max(IO_BLOCK))
    }

    /// Bytes a batch of `count` records of together `records` bytes takes.
    pub(crate) fn batch(self, count: usize, records: usize) -> usize {
        self.batch_end(self.header(count) + records)
    }

    /// `bytes` in units.
    pub(crate) fn units(self, bytes: usize) -> u64 {
        (bytes / self.unit) as u64
    }
}

/// Where the log is being written: all a later opening needs to go on from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) segment: u64,
    pub(crate) lap: u64,
    pub(crate) stamp: u64,
    /// Bytes of the segment that are used.
    pub(crate) used: u32,
    /// Number of the next batch within the segment.
    pub(crate) ordinal: u32,
}

#[derive(Clone, Debug)]
struct Stamps {
    /// Stamp of each segment's last opening; 0: never, or not known.
    of: Vec<u64>,
    open: u64,
    open_lap: u64,
    /// Stamp the open segment had one lap ago.
    overwritten: u64,
}

/// What readers need to know of the log.
pub(crate) struct LogMap {
    log_offset: u64,
    alignment: LogAlignment,
    unit_bytes: u64,
    segment_units: u64,
    capacity: u64,
    device: u16,
    head: AtomicU64,
    stamps: RwLock<Stamps>,
}

impl LogMap {
    pub(crate) fn new(geometry: &Geometry, device: u16) -> Self {
        let segments = usize::try_from(geometry.segments).expect("at most 2^32 units in all");
        Self {
            log_offset: geometry.log_offset,
            alignment: LogAlignment::new(geometry),
            unit_bytes: u64::from(geometry.unit_bytes),
            segment_units: geometry.segment_units(),
            capacity: geometry.capacity(),
            device,
            head: AtomicU64::new(0),
            stamps: RwLock::new(Stamps {
                of: vec![0; segments],
                open: 0,
                open_lap: 0,
                overwritten: 0,
            }),
        }
    }

    pub(crate) fn alignment(&self) -> LogAlignment {
        self.alignment
    }

    /// Where the next batch will lie.
    pub(crate) fn head(&self) -> LogPos {
        LogPos(self.head.load(Ordering::Acquire))
    }

    fn set_head(&self, head: LogPos) {
        self.head.store(head.0, Ordering::Release);
    }

    /// Whether what was written at `at` is still there.
    pub(crate) fn is_live(&self, at: LogPos) -> bool {
        let head = self.head().0;
        at.0 < head && head - at.0 < self.capacity
    }

    /// Where on the device `at` lies, and how many bytes there are to the end of its segment.
    pub(crate) fn device_range(&self, at: LogPos) -> (u64, u64) {
        let unit = at.0 % self.capacity;
        let left = self.segment_units - unit % self.segment_units;
        (
            self.log_offset + unit * self.unit_bytes,
            left * self.unit_bytes,
        )
    }

    /// What a record at `at` must say of its place; `None` when no record can be there.
    pub(crate) fn place(&self, at: LogPos) -> Option<RecordAddress> {
        let (lap, unit) = (at.0 / self.capacity, at.0 % self.capacity);
        let segment = unit / self.segment_units;
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        let of = *stamps.of.get(usize::try_from(segment).ok()?)?;
        let this_lap = lap == stamps.open_lap && segment <= stamps.open;
        let last_lap = lap + 1 == stamps.open_lap && segment > stamps.open;
        let stamp = if this_lap || last_lap {
            of
        } else if lap + 1 == stamps.open_lap && segment == stamps.open {
            stamps.overwritten
        } else {
            return None;
        };
        let place = unit % self.segment_units;
        (stamp != 0).then_some(RecordAddress {
            device: self.device,
            stamp,
            place,
        })
    }

    /// The position of a unit of a segment in a lap.
    pub(crate) fn position(&self, lap: u64, segment: u64, unit: u64) -> LogPos {
        LogPos(lap * self.capacity + segment * self.segment_units + unit)
    }

    /// The segment that is being written, and its lap.
    pub(crate) fn open_segment(&self) -> (u64, u64) {
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        (stamps.open, stamps.open_lap)
    }

    /// Stamps of all segments, for the checkpoint.
    pub(crate) fn stamps(&self) -> Vec<u64> {
        self.stamps
            .read()
            .expect("no holder of this lock panics")
            .of
            .clone()
    }

    /// The stamp of the oldest record that can still be read; `None` before the first one. What the
    /// open segment held in the last lap can be until the head has passed it.
    pub(crate) fn oldest_stamp(&self) -> Option<u64> {
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        let all = stamps.of.iter().chain([&stamps.overwritten]);
        all.copied().filter(|stamp| *stamp > 0).min()
    }

    /// Whether anything was ever written to `segment`.
    pub(crate) fn was_opened(&self, segment: u64) -> bool {
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        let of = usize::try_from(segment).ok();
        of.and_then(|n| stamps.of.get(n)).is_some_and(|of| *of != 0)
    }

    /// The log continues behind `segment`, whose old content counts as overwritten.
    pub(crate) fn left_out(&self, segment: u64) {
        let mut stamps = self.stamps.write().expect("no holder of this lock panics");
        let of = usize::try_from(segment).ok();
        if let Some(of) = of.and_then(|n| stamps.of.get_mut(n)) {
            *of = 0;
        }
    }

    /// Takes over stamps from a checkpoint or a scan.
    pub(crate) fn restore(&self, of: Vec<u64>, cursor: Cursor) {
        let mut stamps = self.stamps.write().expect("no holder of this lock panics");
        let segments = stamps.of.len();
        stamps.of = of;
        stamps.of.resize(segments, 0);
        stamps.open = cursor.segment;
        stamps.open_lap = cursor.lap;
        stamps.overwritten = 0;
        drop(stamps);
        self.set_head(self.position_of(cursor));
    }

    fn position_of(&self, cursor: Cursor) -> LogPos {
        self.position(
            cursor.lap,
            cursor.segment,
            u64::from(cursor.used) / self.unit_bytes,
        )
    }

    /// The segment of `cursor` is open from now on. Also used by recovery, for segments it finds.
    pub(crate) fn opened(&self, cursor: Cursor) {
        {
            let mut stamps = self.stamps.write().expect("no holder of this lock panics");
            let segment = usize::try_from(cursor.segment).unwrap_or(usize::MAX);
            if let Some(of) = stamps.of.get(segment).copied() {
                if of != cursor.stamp {
                    stamps.overwritten = of;
                }
                stamps.of[segment] = cursor.stamp;
                stamps.open = cursor.segment;
                stamps.open_lap = cursor.lap;
            }
        }
        self.set_head(self.position_of(cursor));
    }
}

/// So many segments in a row the log leaves out at most: recovery looks behind no more.
pub(crate) const LEFT_OUT_IN_A_ROW_MAX: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No segment was ever opened.
    Fresh,
    /// The cursor's segment takes more batches.
    Open,
    /// It does not: it ended in a crash, and no place is written twice under one stamp.
    Ended,
}

/// The one writer of the log.
pub(crate) struct LogWriter {
    pub(crate) cursor: Cursor,
    phase: Phase,
    segments: u64,
    segment_bytes: u32,
    alignment: LogAlignment,
    device: u16,
    list_bytes_max: usize,
    /// What the open segment holds, for its footer.
    listed: Vec<Listed>,
    /// What headers say of the log before them.
    link: Link,
    /// Whether the last batch of the open segment is an end mark.
    is_marked: bool,
}

impl LogWriter {
    pub(crate) fn new(geometry: &Geometry, device: u16) -> Self {
        Self {
            cursor: Cursor::default(),
            phase: Phase::Fresh,
            segments: geometry.segments,
            segment_bytes: geometry.segment_bytes,
            alignment: LogAlignment::new(geometry),
            device,
            list_bytes_max: usize::try_from(Self::list_bytes_max(geometry)).unwrap_or(usize::MAX),
            listed: Vec::new(),
            link: Link::default(),
            is_marked: true,
        }
    }

    /// Continues in the segment of `cursor`, of which `listed` was written and is durable. `link`
    /// is what the headers in it say of the segment before.
    pub(crate) fn resume(&mut self, cursor: Cursor, listed: Vec<Listed>, link: Link) {
        self.cursor = cursor;
        self.phase = Phase::Open;
        self.listed = listed;
        self.link = link;
        self.synced();
        self.is_marked = true;
    }

    /// Continues in the segment behind that of `cursor`, in which the last run ended without being
    /// closed. The log was `durable` up to there.
    pub(crate) fn resume_behind(&mut self, cursor: Cursor, durable: Option<DurablePoint>) {
        self.cursor = cursor;
        self.phase = Phase::Ended;
        self.listed.clear();
        self.link.durable = durable;
        self.is_marked = true;
    }

    /// All batches so far are durable.
    pub(crate) fn synced(&mut self) {
        if self.was_written() {
            self.link.durable = Some(DurablePoint {
                openings_back: 0,
                batches: self.cursor.ordinal,
            });
        }
    }

    /// Writes an end mark to the start of `out`: a batch without records, behind the last batch of
    /// the open segment. Returns its offset from the start of the log, and its size. `None` if
    /// there is a mark already, or if the last batch is not durable.
    ///
    /// The mark says that the batch before it is durable. Without it, a damaged header of the last
    /// batch would look like a write that a crash has torn.
    pub(crate) fn end_mark(&mut self, out: &mut [u8], secret: &Secret) -> Option<(u64, usize)> {
        let is_durable = self.link.durable.is_some_and(|it| {
            it.openings_back == 0 && it.batches == self.cursor.ordinal && it.batches > 0
        });
        let bytes = self.mark_bytes();
        let end = self.cursor.used as usize + bytes + Footer::bytes(self.listed.len());
        let has_room = end <= self.segment_bytes as usize;
        if self.phase != Phase::Open || self.is_marked || !is_durable || !has_room {
            return None;
        }
        out[..bytes].fill(0);
        let at = self.batch_offset();
        self.seal_batch(out, bytes, Vec::new(), secret);
        self.is_marked = true;
        Some((at, bytes))
    }

    /// Bytes of an end mark.
    pub(crate) fn mark_bytes(&self) -> usize {
        self.alignment.batch(0, 0)
    }

    /// Whether anything was ever written.
    pub(crate) fn was_written(&self) -> bool {
        self.phase != Phase::Fresh
    }

    /// Whether a batch of `count` records of together `records` bytes still fits in front of the
    /// footer, which it makes longer, and in front of an end mark.
    pub(crate) fn fits(&self, count: usize, records: usize) -> bool {
        let footer = Footer::bytes(self.listed.len() + count);
        let left = (self.segment_bytes - self.cursor.used) as usize;
        let listable = (self.listed.len() + count) * LIST_ENTRY <= self.list_bytes_max;
        self.phase == Phase::Open
            && listable
            && self.alignment.batch(count, records) + self.mark_bytes() + footer <= left
    }

    /// Writes the open segment's footer to `out`. Returns its offset from the start of the log, and
    /// its size.
    pub(crate) fn footer(&mut self, out: &mut [u8], secret: &Secret) -> Option<(u64, usize)> {
        if self.phase != Phase::Open {
            return None;
        }
        let bytes = Footer::bytes(self.listed.len());
        let out = out.get_mut(..bytes)?;
        let footer = Footer {
            device: self.device,
            stamp: self.cursor.stamp,
            lap: self.cursor.lap,
            list: std::mem::take(&mut self.listed),
        };
        footer.encode(out, secret);
        self.listed = footer.list;
        let at = self.cursor.segment * u64::from(self.segment_bytes)
            + (self.segment_bytes as usize - bytes) as u64;
        Some((at, bytes))
    }

    /// The segment after this one, and its lap.
    pub(crate) fn following(&self) -> (u64, u64) {
        let fresh = self.phase == Phase::Fresh;
        let segment = if fresh {
            0
        } else {
            (self.cursor.segment + 1) % self.segments
        };
        (segment, self.cursor.lap + u64::from(!fresh && segment == 0))
    }

    /// Leaves the segment after this one out. What was open is over.
    pub(crate) fn leave_out(&mut self) {
        let (segment, lap) = self.following();
        (self.cursor.segment, self.cursor.lap) = (segment, lap);
        self.phase = Phase::Ended;
        self.listed.clear();
    }

    /// The segment after this one, to be opened with `stamp`.
    pub(crate) fn next_segment(&mut self, stamp: u64) -> Cursor {
        let (segment, lap) = self.following();
        self.link = Link {
            previous: self.cursor.stamp,
            previous_batches: self.cursor.ordinal,
            durable: match self.phase {
                // Nothing was written that could be lost.
                Phase::Fresh => Some(DurablePoint::default()),
                Phase::Open | Phase::Ended => self.link.durable.map(|it| DurablePoint {
                    openings_back: it.openings_back.saturating_add(1),
                    ..it
                }),
            },
        };
        self.is_marked = false;
        self.cursor = Cursor {
            segment,
            lap,
            stamp,
            used: 0,
            ordinal: 0,
        };
        self.phase = Phase::Open;
        self.listed.clear();
        self.cursor
    }

    /// Bytes from the start of the segment to the first record of a batch of `count`.
    pub(crate) fn first_record(&self, count: usize) -> usize {
        self.cursor.used as usize + self.alignment.header(count)
    }

    /// Where a batch begins, from the start of the log, bytes.
    pub(crate) fn batch_offset(&self) -> u64 {
        self.cursor.segment * u64::from(self.segment_bytes) + u64::from(self.cursor.used)
    }

    /// Writes the header of a batch of `batch_bytes` bytes and moves on behind it.
    pub(crate) fn seal_batch(
        &mut self,
        out: &mut [u8],
        batch_bytes: usize,
        list: Vec<Listed>,
        secret: &Secret,
    ) {
        let batch_bytes = u32::try_from(batch_bytes).expect("a batch has at most 4 MiB");
        let header = BatchHeader {
            device: self.device,
            stamp: self.cursor.stamp,
            lap: self.cursor.lap,
            ordinal: self.cursor.ordinal,
            batch_bytes,
            link: self.link,
            list,
        };
        self.is_marked = false;
        header.encode(out, secret);
        self.listed.extend_from_slice(&header.list);
        self.cursor.used += batch_bytes;
        self.cursor.ordinal += 1;
    }

    /// Memory the list for the footer can take at most, bytes.
    pub(crate) fn list_bytes_max(geometry: &Geometry) -> u64 {
        // Three units are the smallest record that a web response makes. With smaller ones a
        // segment is sealed before it is full.
        Self::list_entries_max(geometry) * LIST_ENTRY as u64
    }

    /// Records that a segment, hence a batch, can list.
    pub(crate) fn list_entries_max(geometry: &Geometry) -> u64 {
        geometry.segment_units() / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn geometry() -> Geometry {
        let config = Config {
            segment_bytes: Some(1 << 20),
            ..Config::new("x")
        };
        Geometry::plan(&config, 16 << 20).unwrap()
    }

    #[test]
    fn a_place_is_known_for_one_lap_and_never_with_the_wrong_stamp() {
        let geometry = geometry();
        let map = LogMap::new(&geometry, 0);
        let mut writer = LogWriter::new(&geometry, 0);
        let units = geometry.segment_units();
        for stamp in 1..=3 * geometry.segments {
            map.opened(writer.next_segment(stamp));
            let head = map.head().0;
            assert_eq!(head, (stamp - 1) * units);
            for back in 0..stamp {
                let at = LogPos((stamp - 1 - back) * units + 5);
                let known = map.place(at).map(|place| place.stamp);
                // The segment being overwritten keeps its old stamp for what lies behind the head.
                let expected = (back <= geometry.segments).then_some(stamp - back);
                assert_eq!(known, expected, "stamp {stamp} back {back}");
            }
        }
    }

    #[test]
    fn batches_and_segments_end_where_windows_do() {
        for size in [64 << 20, 1 << 40, 3 << 40, 40 << 40_u64] {
            let geometry = Geometry::plan(&Config::new("x"), size).unwrap();
            let (windows, unit) = (geometry.windows(), u64::from(geometry.unit_bytes));
            assert!(geometry.segment_units().is_multiple_of(windows.units));
            assert_eq!(windows.count * windows.units, geometry.capacity());
            let alignment = LogAlignment::new(&geometry);
            for filled in (1..300_000).step_by(777) {
                let units = alignment.batch_end(filled) as u64 / unit;
                assert!(units.is_multiple_of(windows.units), "{size}: {filled}");
            }
        }
    }

    #[test]
    fn what_the_head_has_passed_is_not_live() {
        let geometry = geometry();
        let map = LogMap::new(&geometry, 0);
        let cursor = Cursor {
            segment: 2,
            lap: 1,
            stamp: 9,
            used: 4096,
            ordinal: 1,
        };
        map.opened(cursor);
        let head = map.head().0;
        assert!(map.is_live(LogPos(head - 1)));
        assert!(!map.is_live(LogPos(head)));
        assert!(map.is_live(LogPos(head - geometry.capacity() + 1)));
        assert!(!map.is_live(LogPos(head - geometry.capacity())));
    }
}
