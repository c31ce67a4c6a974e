//! Reads the lists in a log segment: from the footer, or from the batch headers.
//!
//! Called by `store/recover`, which replays the lists, by `store/check`, and by the writer for
//! readmission.
//!
//! Invariant: a list counts only if it was written in the lap that the cursor names. Headers that
//! cannot be read are reported as [`Gap`]s: recovery must know which lines are missing.
//! Cost: usually a single read for a sealed segment; otherwise a read for each 256 KiB, and
//! [`SEARCH_BYTES`] more if the batches are not contiguous up to the end.

use std::sync::atomic::Ordering;

use super::Medium;
use crate::disk::circular_log::Cursor;
use crate::format::{
    BATCH_HEADER, BatchHeader, FOOTER_TAIL, Footer, IO_BLOCK, Link, Listed, round_up,
};
use crate::memory::AlignedBuf;

/// A place in a segment where batch headers do not verify, with other batches behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Number and offset of the first missing batch.
    pub(crate) ordinal: u32,
    pub(crate) used: u32,
    /// Index in the lists where the lines behind the gap start.
    pub(crate) line: usize,
    /// Index in the lists where the last batch before the gap starts.
    pub(crate) last_batch: usize,
}

/// The lists in a segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) listed: Vec<Listed>,
    /// Index in `listed` where the last batch that was read starts.
    pub(crate) last_batch: usize,
    pub(crate) used: u32,
    pub(crate) ordinal: u32,
    /// True if the list was read from the footer.
    pub(crate) sealed: bool,
    pub(crate) gaps: Vec<Gap>,
    /// The link in the last header: the previous opening, and the point before which the log was
    /// durable.
    pub(crate) link: Link,
}

impl Segment {
    /// Reads the footer if the segment was sealed, otherwise the batch headers, starting at `used`.
    /// `batches`: the number of batches in the segment, if known.
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

    /// Reads the batch headers, starting at `used`. Behind a header that does not verify, later
    /// batches are found by their stamp, unless all `batches` of the segment were found.
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
        // An end mark is an empty batch, so it must not hide the last batch with records, which may
        // have been cut off.
        if !header.list.is_empty() {
            self.last_batch = self.listed.len();
        }
        self.link = header.link;
        self.listed.extend(header.list);
    }
}

/// Reads the first batch header in a segment.
pub(crate) fn first_header(medium: &Medium, segment: u64) -> Option<BatchHeader> {
    let mut any_length = |_| true;
    let header = Window::new(medium, segment, FIRST_WINDOW_BYTES, &mut any_length).header(0)?;
    (header.ordinal == 0 && header.device == medium.device_id).then_some(header)
}

/// How thoroughly to search for an opening of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A segment that starts with zeros counts as never opened.
    Short,
    /// Search behind zeros, too.
    Thorough,
}

/// The last opening of a segment: the lap, the stamp and the link. Read from the header of the
/// first batch; if that does not verify, from a later header, or from the footer.
pub(crate) fn last_opening(medium: &Medium, segment: u64, look: Look) -> Option<LastOpening> {
    let mut any_length = |_| true;
    let mut window = Window::insistent(medium, segment, FIRST_WINDOW_BYTES, &mut any_length);
    // Try twice, because a single wrong read must not lose stored objects.
    for _ in 0..2 {
        let is_first = |it: &BatchHeader| it.ordinal == 0 && it.device == medium.device_id;
        if let Some(header) = window.header(0).filter(is_first) {
            return Some(LastOpening::from_header(&header));
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
    // Older stamps are remains of the last lap behind the end of the log.
    let mut last: Option<LastOpening> = None;
    window.search(0, SEARCH_BYTES, |header| {
        if last.as_ref().is_none_or(|it| it.stamp < header.stamp) {
            last = Some(LastOpening::from_header(header));
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
    fn from_header(header: &BatchHeader) -> Self {
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

/// Reads the footer at the end of a segment, with any stamp. `permit` is called before each read
/// with the read length, and may refuse it.
pub(super) fn footer(
    medium: &Medium,
    segment: u64,
    permit: &mut dyn FnMut(usize) -> bool,
) -> Option<Footer> {
    let bytes = medium.geometry.segment_bytes as usize;
    let start = segment_offset(medium, segment);
    // Footers have similar lengths, so a single read is usually enough.
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
    // Only after the footer verified: otherwise bytes that claim to be a long footer would make all
    // later reads that long.
    medium
        .footer_bytes
        .store(claimed.min(bytes), Ordering::Relaxed);
    (footer.device == medium.device_id).then_some(footer)
}

/// Reads a segment piece by piece, because headers of small batches are close together.
pub(super) struct Window<'a> {
    medium: &'a Medium,
    /// Called before each read with the read length; false refuses the read.
    permit: &'a mut dyn FnMut(usize) -> bool,
    reads: usize,
    was_refused: bool,
    /// True if a failed read is repeated, and then repeated block by block.
    insists: bool,
    start: u64,
    segment_bytes: usize,
    window_bytes: usize,
    at: usize,
    bytes: AlignedBuf,
}

/// How far to search behind a header that does not verify: the longest batch has 4 MiB, and more
/// than one header may be damaged.
const SEARCH_BYTES: usize = 5 << 20;
/// Blocks that fail before the rest of a window counts as failed, too: a disk may try for seconds
/// to read each block.
const REFUSED_BLOCKS_MAX: usize = 8;
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Enough for the fixed part of a header; a scan over all segments reads only this from each
/// segment.
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

    /// As [`Window::new`], for recovery, which must not lose a batch if a block beside it is bad.
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

    /// Returns `length` bytes at `from`, or fewer at the end of the segment.
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

    /// Returns true if the device failed a read.
    pub(super) fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Returns true if the window contains the fixed part of a header at `at`.
    pub(super) fn has_header(&self, at: u32) -> bool {
        let end = at as usize + BATCH_HEADER;
        at as usize >= self.at && end <= self.at + self.bytes.len()
    }

    /// Returns true if the bytes at the cursor claim to be the next batch header.
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

    /// Returns the header at `at`, if it is `wanted` and the batch fits in this segment. Otherwise
    /// reads it a second time, because a single wrong read must not lose stored objects.
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

    /// Returns the first `wanted` header behind `from`, at most `most` bytes further on, with the
    /// offset. A header is authenticated by a MAC and contains the stamp from the segment opening:
    /// content that a client chose cannot look like a header.
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
                // Continue even behind many zeros: a record may contain them.
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

    /// Returns true if the first `length` bytes are zeros. False if they cannot be read.
    fn is_blank(&mut self, length: usize) -> bool {
        let is_blank = self
            .get(0, length)
            .is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        is_blank && !self.was_refused
    }
}
