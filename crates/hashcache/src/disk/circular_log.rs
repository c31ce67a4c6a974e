//! The circular log: the head position, the lap that wrote each segment, and the single writer that
//! moves the head.
//!
//! The log is a ring of segments. Each segment is written once a lap, in batches. A segment is
//! opened with a *stamp* that was never used before; every record in the segment contains the stamp
//! under the MAC. So a record is genuine only if it was written in the lap that the index means,
//! and no place is ever written twice under the same stamp, not even after a crash (the next open
//! starts a new segment).
//!
//! [`LogMap`] is shared with readers, [`LogWriter`] belongs to `writer`.
//!
//! Invariant: the head moves before a batch is written, so a reader that finds `head - position <
//! capacity` *after* the read has read bytes that were not being overwritten.
//! Cost: a write for each batch, and another write for each segment.

use std::sync::RwLock;

use crate::address::LogPos;
use crate::format::{
    BatchHeader, DurablePoint, Footer, IO_BLOCK, LIST_ENTRY, Link, Listed, RecordAddress, round_up,
};
use crate::geometry::Geometry;
use crate::key::Secret;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Alignment in the log: records start at units, batches at device blocks.
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

    /// Bytes in the log for a record of `bytes` bytes.
    pub(crate) fn record(self, bytes: usize) -> usize {
        round_up(bytes, self.unit)
    }

    /// Bytes from the start of a batch with `count` records to the first record.
    pub(crate) fn header(self, count: usize) -> usize {
        round_up(BatchHeader::bytes(count), self.unit)
    }

    /// Bytes for a batch that is filled up to `filled`. Batches are aligned to the windows of the
    /// index (`policy/log`).
    pub(crate) fn batch_end(self, filled: usize) -> usize {
        round_up(filled, self.unit.max(IO_BLOCK))
    }

    /// Bytes for a batch of `count` records with `records` bytes in total.
    pub(crate) fn batch(self, count: usize, records: usize) -> usize {
        self.batch_end(self.header(count) + records)
    }

    /// `bytes` in units.
    pub(crate) fn units(self, bytes: usize) -> u64 {
        (bytes / self.unit) as u64
    }
}

/// Write position of the log: all data that a later open needs to continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) segment: u64,
    pub(crate) lap: u64,
    pub(crate) stamp: u64,
    /// Used bytes in the segment.
    pub(crate) used: u32,
    /// Number of the next batch within the segment.
    pub(crate) ordinal: u32,
}

#[derive(Clone, Debug)]
struct Stamps {
    /// Stamp of each segment's last opening; 0: never opened, or not known.
    of: Vec<u64>,
    open: u64,
    open_lap: u64,
    /// Stamp of the open segment in the last lap.
    overwritten: u64,
}

/// The log state that readers need.
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

    /// Position of the next batch.
    pub(crate) fn head(&self) -> LogPos {
        LogPos(self.head.load(Ordering::Acquire))
    }

    fn set_head(&self, head: LogPos) {
        self.head.store(head.0, Ordering::Release);
    }

    /// Returns true if the record that was written at `at` is still there.
    pub(crate) fn is_live(&self, at: LogPos) -> bool {
        let head = self.head().0;
        at.0 < head && head - at.0 < self.capacity
    }

    /// The device offset for `at`, and how many bytes there are to the segment end.
    pub(crate) fn device_range(&self, at: LogPos) -> (u64, u64) {
        let unit = at.0 % self.capacity;
        let left = self.segment_units - unit % self.segment_units;
        (
            self.log_offset + unit * self.unit_bytes,
            left * self.unit_bytes,
        )
    }

    /// The address that a record at `at` must prove; `None` if no record can be there.
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

    /// The position of a unit, given the lap and the segment.
    pub(crate) fn position(&self, lap: u64, segment: u64, unit: u64) -> LogPos {
        LogPos(lap * self.capacity + segment * self.segment_units + unit)
    }

    /// The segment that is being written, and the lap.
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

    /// The stamp of the oldest record that can still be read; `None` before the first record.
    /// Records of the last lap in the open segment can be read until the head has passed them.
    pub(crate) fn oldest_stamp(&self) -> Option<u64> {
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        let all = stamps.of.iter().chain([&stamps.overwritten]);
        all.copied().filter(|stamp| *stamp > 0).min()
    }

    /// Returns true if `segment` was ever written.
    pub(crate) fn was_opened(&self, segment: u64) -> bool {
        let stamps = self.stamps.read().expect("no holder of this lock panics");
        let of = usize::try_from(segment).ok();
        of.and_then(|n| stamps.of.get(n)).is_some_and(|of| *of != 0)
    }

    /// Skips `segment`: the log continues behind it, and the old content counts as overwritten.
    pub(crate) fn left_out(&self, segment: u64) {
        let mut stamps = self.stamps.write().expect("no holder of this lock panics");
        let of = usize::try_from(segment).ok();
        if let Some(of) = of.and_then(|n| stamps.of.get_mut(n)) {
            *of = 0;
        }
    }

    /// Restores the stamps from a checkpoint or a scan.
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

    /// Makes the segment of `cursor` the open segment. Recovery also calls this, for the segments
    /// that it finds.
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

/// The log skips at most this many segments in a row: recovery does not look behind more.
pub(crate) const LEFT_OUT_IN_A_ROW_MAX: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No segment was ever opened.
    Fresh,
    /// The cursor's segment takes more batches.
    Open,
    /// The cursor's segment takes no more batches: the last run stopped in it without closing the
    /// store, and no place is written twice under the same stamp; or it was skipped.
    Ended,
}

/// The single writer of the log.
pub(crate) struct LogWriter {
    pub(crate) cursor: Cursor,
    phase: Phase,
    segments: u64,
    segment_bytes: u32,
    alignment: LogAlignment,
    device: u16,
    list_bytes_max: usize,
    /// The list for the footer of the open segment.
    listed: Vec<Listed>,
    /// The link that batch headers carry: the previous opening, and the point before which the log
    /// was durable.
    link: Link,
    /// True if the last batch in the open segment is an end mark.
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

    /// Continues in the segment of `cursor`; the records in `listed` are durable in it. `link` is
    /// the link to the previous segment, from the headers in this segment.
    pub(crate) fn resume(&mut self, cursor: Cursor, listed: Vec<Listed>, link: Link) {
        self.cursor = cursor;
        self.phase = Phase::Open;
        self.listed = listed;
        self.link = link;
        self.synced();
        self.is_marked = true;
    }

    /// Continues in the segment after `cursor`, in which the last run stopped without closing the
    /// store. The log was `durable` up to there.
    pub(crate) fn resume_behind(&mut self, cursor: Cursor, durable: Option<DurablePoint>) {
        self.cursor = cursor;
        self.phase = Phase::Ended;
        self.listed.clear();
        self.link.durable = durable;
        self.is_marked = true;
    }

    /// Notes that all batches so far are durable.
    pub(crate) fn synced(&mut self) {
        if self.was_written() {
            self.link.durable = Some(DurablePoint {
                openings_back: 0,
                batches: self.cursor.ordinal,
            });
        }
    }

    /// Writes an end mark to the start of `out`: a batch without records, behind the last batch in
    /// the open segment. Returns the offset in the log, and the size. `None` if there is a mark
    /// already, or if the last batch is not durable.
    ///
    /// The mark states that the batch before it is durable. Without the mark, a damaged last header
    /// would look like a write that a crash has torn.
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

    /// End mark size in bytes.
    pub(crate) fn mark_bytes(&self) -> usize {
        self.alignment.batch(0, 0)
    }

    /// Returns true if the log was ever written.
    pub(crate) fn was_written(&self) -> bool {
        self.phase != Phase::Fresh
    }

    /// Returns true if a batch of `count` records with `records` bytes in total still fits in front
    /// of the footer, which grows with the batch, and in front of an end mark.
    pub(crate) fn fits(&self, count: usize, records: usize) -> bool {
        let footer = Footer::bytes(self.listed.len() + count);
        let left = (self.segment_bytes - self.cursor.used) as usize;
        let listable = (self.listed.len() + count) * LIST_ENTRY <= self.list_bytes_max;
        self.phase == Phase::Open
            && listable
            && self.alignment.batch(count, records) + self.mark_bytes() + footer <= left
    }

    /// Writes the footer of the open segment to `out`. Returns the offset in the log, and the size.
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

    /// The next segment, and the lap.
    pub(crate) fn following(&self) -> (u64, u64) {
        let fresh = self.phase == Phase::Fresh;
        let segment = if fresh {
            0
        } else {
            (self.cursor.segment + 1) % self.segments
        };
        (segment, self.cursor.lap + u64::from(!fresh && segment == 0))
    }

    /// Skips the next segment. The open segment takes no more batches.
    pub(crate) fn leave_out(&mut self) {
        let (segment, lap) = self.following();
        (self.cursor.segment, self.cursor.lap) = (segment, lap);
        self.phase = Phase::Ended;
        self.listed.clear();
    }

    /// Moves to the next segment and opens it with `stamp`.
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

    /// Bytes from the segment start to the first record in a batch with `count` records.
    pub(crate) fn first_record(&self, count: usize) -> usize {
        self.cursor.used as usize + self.alignment.header(count)
    }

    /// Byte offset in the log for the next batch.
    pub(crate) fn batch_offset(&self) -> u64 {
        self.cursor.segment * u64::from(self.segment_bytes) + u64::from(self.cursor.used)
    }

    /// Writes the header of a batch with `batch_bytes` bytes and advances behind the batch.
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

    /// Most bytes for the footer list in memory.
    pub(crate) fn list_bytes_max(geometry: &Geometry) -> u64 {
        // Three units are the smallest record that a web response makes. With smaller records a
        // segment is sealed before it is full.
        Self::list_entries_max(geometry) * LIST_ENTRY as u64
    }

    /// Most records that a segment, and therefore a batch, can list.
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
                // The segment being overwritten keeps its old stamp for records behind the head.
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
