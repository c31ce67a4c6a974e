//! Reads the lists of a segment of the log: from its footer, or from the headers of its batches.
//!
//! Called by `store/recover`, which replays the lists, by `store/check`, and by the writer for
//! readmission.
//!
//! Invariant: a list counts only if it was written by the lap that the cursor names. Where a header
//! cannot be read, [`Gap`]s say so: recovery must know what it does not know.
//! Cost: one read of a segment that is sealed, usually; otherwise a read for each 256 KiB of it,
//! and [`SEARCH_BYTES`] more where batches do not follow each other to the end.

use std::sync::atomic::Ordering;

use super::Medium;
use crate::disk::circular_log::Cursor;
use crate::format::{
    BATCH_HEADER, BatchHeader, FOOTER_TAIL, Footer, IO_BLOCK, Link, Listed, round_up,
};
use crate::memory::AlignedBuf;

/// A place in a segment where headers of batches do not verify, with other batches behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Number of the first batch that is missing, and where it begins.
    pub(crate) ordinal: u32,
    pub(crate) used: u32,
    /// Index in the lists of the first line behind the gap.
    pub(crate) line: usize,
    /// Where the last batch before the gap begins in the lists.
    pub(crate) last_batch: usize,
}

/// What the lists of a segment say.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) listed: Vec<Listed>,
    /// Where in `listed` the last batch begins that was walked to.
    pub(crate) last_batch: usize,
    pub(crate) used: u32,
    pub(crate) ordinal: u32,
    /// Whether the list is that of a footer.
    pub(crate) sealed: bool,
    pub(crate) gaps: Vec<Gap>,
    /// What the last header says of the log before it.
    pub(crate) link: Link,
}

impl Segment {
    /// From the footer if the segment was sealed, else from the batch headers, from `used` on.
    /// `batches`: how many the segment has, if that is known.
    pub(crate) fn read(
        medium: &Medium,
        cursor: Cursor,
        used: u32,
        ordinal: u32,
        batches: Option<u32>,
    ) -> Self {
        if let Some(footer) = footer(medium, cursor.segment, &mut |_| true)
            && footer.stamp == cursor.stamp
        {
            let last_batch = footer.list.len();
            return Self {
                listed: footer.list,
                last_batch,
                used: medium.geometry.segment_bytes,
                ordinal: batches.unwrap_or(ordinal),
                sealed: true,
                gaps: Vec::new(),
                link: Link::default(),
            };
        }
        Self::walk(medium, cursor, used, ordinal, batches)
    }

    /// From the batch headers, from `used` on. Behind a header that does not verify, the batches
    /// that follow are found by their stamp, unless all `batches` of the segment were found.
    pub(crate) fn walk(
        medium: &Medium,
        cursor: Cursor,
        used: u32,
        ordinal: u32,
        batches: Option<u32>,
    ) -> Self {
        let mut any_length = |_| true;
        let mut window = Window::insistent(medium, cursor.segment, WINDOW_BYTES, &mut any_length);
        let mut it = Self {
            listed: Vec::new(),
            last_batch: 0,
            used,
            ordinal,
            sealed: false,
            gaps: Vec::new(),
            link: Link::default(),
        };
        let has_more = |it: &Self| {
            u64::from(it.used) + (BATCH_HEADER as u64) < u64::from(medium.geometry.segment_bytes)
                && batches.is_none_or(|batches| it.ordinal < batches)
        };
        while has_more(&it) {
            let (used, ordinal) = (it.used, it.ordinal);
            let follows =
                |header: &BatchHeader| header.stamp == cursor.stamp && header.ordinal == ordinal;
            if let Some(header) = window.header_of(used, follows) {
                it.take(header, used);
                continue;
            }
            let is_later =
                |header: &BatchHeader| header.stamp == cursor.stamp && header.ordinal > ordinal;
            let Some((at, header)) = window.search(used, SEARCH_BYTES, is_later) else {
                break;
            };
            it.gaps.push(Gap {
                ordinal,
                used,
                line: it.listed.len(),
                last_batch: it.last_batch,
            });
            it.take(header, at);
        }
        it
    }

    fn take(&mut self, header: BatchHeader, at: u32) {
        self.used = at + header.batch_bytes;
        self.ordinal = header.ordinal + 1;
        // An end mark is no batch that was cut off.
        if !header.list.is_empty() {
            self.last_batch = self.listed.len();
        }
        self.link = header.link;
        self.listed.extend(header.list);
    }
}

/// The header of a segment's first batch.
pub(crate) fn first_header(medium: &Medium, segment: u64) -> Option<BatchHeader> {
    let mut any_length = |_| true;
    let header = Window::new(medium, segment, FIRST_WINDOW_BYTES, &mut any_length).header(0)?;
    (header.ordinal == 0 && header.device == medium.device_id).then_some(header)
}

/// How thoroughly an opening of a segment is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A segment that begins with zeros was never opened.
    Short,
    /// Also behind zeros.
    Thorough,
}

/// The last opening of a segment: its lap, stamp and link. From the header of its first batch; if
/// that does not verify, from a later one, or from the footer.
pub(crate) fn last_opening(medium: &Medium, segment: u64, look: Look) -> Option<LastOpening> {
    let mut any_length = |_| true;
    let mut window = Window::insistent(medium, segment, FIRST_WINDOW_BYTES, &mut any_length);
    // A second time, because one wrong read must not cost what was stored.
    for _ in 0..2 {
        let is_first = |it: &BatchHeader| it.ordinal == 0 && it.device == medium.device_id;
        if let Some(header) = window.header(0).filter(is_first) {
            return Some(LastOpening::of(&header));
        }
        if window.is_blank(FIRST_WINDOW_BYTES) {
            if look == Look::Short {
                return None;
            }
            break;
        }
        window.bytes = AlignedBuf::zeroed(0);
    }
    window.window_bytes = WINDOW_BYTES;
    window.bytes = AlignedBuf::zeroed(0);
    // Older ones are what the last lap left behind the end.
    let mut last: Option<LastOpening> = None;
    window.search(0, SEARCH_BYTES, |header| {
        if last.as_ref().is_none_or(|it| it.stamp < header.stamp) {
            last = Some(LastOpening::of(header));
        }
        false
    });
    let of_footer = |footer: Footer| LastOpening {
        lap: footer.lap,
        stamp: footer.stamp,
        link: Link::default(),
    };
    let footer = footer(medium, segment, &mut |_| true).map(of_footer);
    last.into_iter().chain(footer).max_by_key(|it| it.stamp)
}

/// See [`last_opening`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastOpening {
    pub(crate) lap: u64,
    pub(crate) stamp: u64,
    pub(crate) link: Link,
}

impl LastOpening {
    fn of(header: &BatchHeader) -> Self {
        Self {
            lap: header.lap,
            stamp: header.stamp,
            link: header.link,
        }
    }
}

fn segment_offset(medium: &Medium, segment: u64) -> u64 {
    medium.geometry.log_offset + segment * u64::from(medium.geometry.segment_bytes)
}

/// The footer at the end of a segment, whatever its stamp. `permit` is asked before each read, with
/// its length.
pub(super) fn footer(
    medium: &Medium,
    segment: u64,
    permit: &mut dyn FnMut(usize) -> bool,
) -> Option<Footer> {
    let bytes = medium.geometry.segment_bytes as usize;
    let start = segment_offset(medium, segment);
    // About as long as the last: one read does, mostly.
    let guess = medium.footer_bytes.load(Ordering::Relaxed);
    let guess = round_up(guess + guess / 16, IO_BLOCK);
    let guess = guess.max(64 << 10).min(bytes);
    let mut end = permit(guess).then(|| AlignedBuf::zeroed(guess))?;
    medium.fill(start + (bytes - end.len()) as u64, &mut end)?;
    let claimed = Footer::claimed_bytes(&end, bytes)?;
    if claimed > end.len() {
        let claimed = claimed.min(bytes);
        end = permit(claimed).then(|| AlignedBuf::zeroed(claimed))?;
        medium.fill(start + (bytes - end.len()) as u64, &mut end)?;
    }
    debug_assert!(end.len() >= FOOTER_TAIL);
    let footer = Footer::decode(&end, &medium.secret)?;
    // Not before it verified: bytes that claim to be a long footer would make all reads as long.
    medium
        .footer_bytes
        .store(claimed.min(bytes), Ordering::Relaxed);
    (footer.device == medium.device_id).then_some(footer)
}

/// Reads a segment piece by piece: headers of small batches lie close together.
pub(super) struct Window<'a> {
    medium: &'a Medium,
    /// Asked before each read, with its length.
    permit: &'a mut dyn FnMut(usize) -> bool,
    reads: usize,
    was_refused: bool,
    /// Whether what the device refuses is read again, and then block by block.
    insists: bool,
    start: u64,
    segment_bytes: usize,
    window_bytes: usize,
    at: usize,
    bytes: AlignedBuf,
}

/// How far behind a header that does not verify the next one is looked for: the longest batch has
/// 4 MiB, and more than one header may be damaged.
const SEARCH_BYTES: usize = 5 << 20;
/// Blocks that a device refuses before the rest of a window counts as refused too: a disk may try
/// for seconds to read each of them.
const REFUSED_BLOCKS_MAX: usize = 8;
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Enough for the fixed part of a header; a scan of all segments reads no more of each.
const FIRST_WINDOW_BYTES: usize = 4 << 10;

impl<'a> Window<'a> {
    pub(super) fn new(
        medium: &'a Medium,
        segment: u64,
        window_bytes: usize,
        permit: &'a mut dyn FnMut(usize) -> bool,
    ) -> Self {
        let segment_bytes = medium.geometry.segment_bytes as usize;
        let start = segment_offset(medium, segment);
        let bytes = AlignedBuf::zeroed(0);
        Self {
            medium,
            permit,
            reads: 0,
            was_refused: false,
            insists: false,
            start,
            segment_bytes,
            window_bytes,
            at: 0,
            bytes,
        }
    }

    /// The same for recovery, which must not lose a batch because of a bad block beside it.
    fn insistent(
        medium: &'a Medium,
        segment: u64,
        window_bytes: usize,
        permit: &'a mut dyn FnMut(usize) -> bool,
    ) -> Self {
        Self {
            insists: true,
            ..Self::new(medium, segment, window_bytes, permit)
        }
    }

    /// Fills `self.bytes` from the device.
    fn fill(&mut self, from: usize) -> Option<()> {
        let at = self.start + from as u64;
        let whole = self.medium.fill(at, &mut self.bytes);
        if whole.is_some() || !self.insists {
            return whole;
        }
        if self.medium.fill(at, &mut self.bytes).is_some() {
            return Some(());
        }
        let mut refused = 0;
        for (n, block) in self.bytes.chunks_mut(IO_BLOCK).enumerate() {
            let at = at + (n * IO_BLOCK) as u64;
            if refused == REFUSED_BLOCKS_MAX || self.medium.fill(at, block).is_none() {
                block.fill(0);
                self.was_refused = true;
                refused = (refused + 1).min(REFUSED_BLOCKS_MAX);
            }
        }
        Some(())
    }

    /// `length` bytes at `from`, or as many as the segment has.
    fn get(&mut self, from: usize, length: usize) -> Option<&[u8]> {
        let to = (from + length).min(self.segment_bytes);
        if from < self.at || to > self.at + self.bytes.len() {
            let wanted = round_up(length.max(self.window_bytes), IO_BLOCK);
            let size = wanted.min(self.segment_bytes.checked_sub(from)?);
            if !(self.permit)(size) {
                self.bytes = AlignedBuf::zeroed(0);
                return None;
            }
            self.bytes = AlignedBuf::zeroed(size);
            self.at = from;
            self.reads += 1;
            if self.fill(from).is_none() {
                self.bytes = AlignedBuf::zeroed(0);
                self.was_refused = true;
                return None;
            }
        }
        self.bytes.get(from - self.at..to - self.at)
    }

    pub(super) fn reads(&self) -> usize {
        self.reads
    }

    /// Whether the device refused a read.
    pub(super) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Whether the fixed part of a header at `at` is in the window.
    pub(super) fn has_header(&self, at: u32) -> bool {
        let end = at as usize + BATCH_HEADER;
        at as usize >= self.at && end <= self.at + self.bytes.len()
    }

    /// Whether the bytes at the cursor say that they are the batch that follows.
    pub(super) fn claims(&self, cursor: Cursor) -> bool {
        let at = (cursor.used as usize).checked_sub(self.at);
        let bytes = at.and_then(|at| self.bytes.get(at..));
        bytes.is_some_and(|bytes| BatchHeader::claims(bytes, cursor.stamp, cursor.ordinal))
    }

    pub(super) fn header(&mut self, at: u32) -> Option<BatchHeader> {
        let at = usize::try_from(at).ok()?;
        let claimed = BatchHeader::claimed_bytes(self.get(at, BATCH_HEADER)?)?;
        let secret = self.medium.secret.clone();
        BatchHeader::decode(self.get(at, claimed)?, &secret)
    }

    /// The header at `at`, if it is `wanted` and of a batch that lies in this segment. Read a
    /// second time if not: one wrong read must not cost what was stored.
    fn header_of(&mut self, at: u32, wanted: impl Fn(&BatchHeader) -> bool) -> Option<BatchHeader> {
        let counts = |window: &Self, header: &BatchHeader| {
            let end = at as usize + header.batch_bytes as usize;
            header.device == window.medium.device_id
                && end <= window.segment_bytes
                && wanted(header)
        };
        for _ in 0..2 {
            if let Some(header) = self.header(at).filter(|it| counts(self, it)) {
                return Some(header);
            }
            self.bytes = AlignedBuf::zeroed(0);
        }
        None
    }

    /// The first header behind `from` that is `wanted`, at most `most` bytes further on, and where
    /// it lies. A header proves itself by its MAC, and says in which opening of the segment it was
    /// written: content that a client chose cannot look like one.
    fn search(
        &mut self,
        from: u32,
        most: usize,
        mut wanted: impl FnMut(&BatchHeader) -> bool,
    ) -> Option<(u32, BatchHeader)> {
        let step = IO_BLOCK.max(self.medium.geometry.unit_bytes as usize);
        let end = (from as usize + most).min(self.segment_bytes);
        for at in (from as usize..end).step_by(step).skip(1) {
            let is_likely = self
                .get(at, BATCH_HEADER)
                .is_some_and(BatchHeader::is_likely);
            let Some(place) = u32::try_from(at).ok().filter(|_| is_likely) else {
                // Also behind zeros, however many: they may be the content of a record.
                continue;
            };
            if let Some(header) = self.header(place)
                && header.device == self.medium.device_id
                && at + header.batch_bytes as usize <= self.segment_bytes
                && wanted(&header)
            {
                return Some((place, header));
            }
        }
        None
    }

    /// Whether the first `length` bytes are zeros. Not if they cannot be read.
    fn is_blank(&mut self, length: usize) -> bool {
        let is_blank = self
            .get(0, length)
            .is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        is_blank && !self.was_refused
    }
}
