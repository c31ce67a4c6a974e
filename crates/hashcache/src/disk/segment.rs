//! Reads the lists of a segment of the log: from its footer, or from the headers of its batches.
//!
//! Called by `store/recover`, which replays the lists, by `store/check`, and by the writer for
//! readmission.
//!
//! Invariant: a list counts only if it was written by the lap that the cursor names.
//! Cost: one read of a segment that is sealed, usually; otherwise a read for each 256 KiB of it.

use std::sync::atomic::Ordering;

use super::Medium;
use crate::disk::circular_log::Cursor;
use crate::format::{BATCH_HEADER, BatchHeader, FOOTER_TAIL, Footer, IO_BLOCK, Listed, round_up};
use crate::memory::AlignedBuf;

/// What the lists of a segment say.
pub(crate) struct Segment {
    pub(crate) listed: Vec<Listed>,
    /// Where in `listed` the last batch begins that was walked to.
    pub(crate) last_batch: usize,
    pub(crate) used: u32,
    pub(crate) ordinal: u32,
    /// Whether the list is that of a footer.
    pub(crate) sealed: bool,
}

impl Segment {
    /// From the footer if the segment was sealed, else from the batch headers.
    pub(crate) fn read(medium: &Medium, cursor: Cursor, used: u32, ordinal: u32) -> Self {
        if let Some(footer) = footer(medium, cursor.segment, &mut |_| true)
            && footer.stamp == cursor.stamp
        {
            let used = medium.geometry.segment_bytes;
            let last_batch = footer.list.len();
            return Self {
                listed: footer.list,
                last_batch,
                used,
                ordinal,
                sealed: true,
            };
        }
        Self::walk(medium, cursor.segment, Some(cursor.stamp), used, ordinal)
    }

    /// From the batch headers, from `used` on, as far as they follow each other.
    pub(crate) fn walk(
        medium: &Medium,
        segment: u64,
        stamp: Option<u64>,
        mut used: u32,
        mut ordinal: u32,
    ) -> Self {
        let mut any_length = |_| true;
        let mut window = Window::new(medium, segment, WINDOW_BYTES, &mut any_length);
        let (mut listed, mut last_batch) = (Vec::new(), 0);
        while let Some(header) = window.header(used) {
            let follows = stamp.is_none_or(|stamp| stamp == header.stamp)
                && header.ordinal == ordinal
                && header.device == medium.device_id
                && header.batch_bytes <= medium.geometry.segment_bytes - used;
            if !follows {
                break;
            }
            used += header.batch_bytes;
            ordinal += 1;
            last_batch = listed.len();
            listed.extend(header.list);
        }
        Self {
            listed,
            last_batch,
            used,
            ordinal,
            sealed: false,
        }
    }
}

/// The header of a segment's first batch.
pub(crate) fn first_header(medium: &Medium, segment: u64) -> Option<BatchHeader> {
    let mut any_length = |_| true;
    let header = Window::new(medium, segment, FIRST_WINDOW_BYTES, &mut any_length).header(0)?;
    (header.ordinal == 0 && header.device == medium.device_id).then_some(header)
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
    start: u64,
    segment_bytes: usize,
    window_bytes: usize,
    at: usize,
    bytes: AlignedBuf,
}

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
            start,
            segment_bytes,
            window_bytes,
            at: 0,
            bytes,
        }
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
            if self
                .medium
                .fill(self.start + from as u64, &mut self.bytes)
                .is_none()
            {
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
}
