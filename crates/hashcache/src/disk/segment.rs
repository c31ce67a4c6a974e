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
        if let Some(footer) = footer(medium, cursor.segment)
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
        let mut window = Window::new(medium, segment, WINDOW_BYTES);
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
    let header = Window::new(medium, segment, FIRST_WINDOW_BYTES).header(0)?;
    (header.ordinal == 0 && header.device == medium.device_id).then_some(header)
}

fn segment_offset(medium: &Medium, segment: u64) -> u64 {
    medium.geometry.log_offset + segment * u64::from(medium.geometry.segment_bytes)
}

fn footer(medium: &Medium, segment: u64) -> Option<Footer> {
    let bytes = medium.geometry.segment_bytes as usize;
    let start = segment_offset(medium, segment);
    // About as long as the last: one read does, mostly.
    let guess = medium.footer_bytes.load(Ordering::Relaxed);
    let guess = round_up(guess + guess / 16, IO_BLOCK);
    let mut end = AlignedBuf::zeroed(guess.max(64 << 10).min(bytes));
    medium.fill(start + (bytes - end.len()) as u64, &mut end)?;
    let claimed = Footer::claimed_bytes(&end, bytes)?;
    medium
        .footer_bytes
        .store(claimed.min(bytes), Ordering::Relaxed);
    if claimed > end.len() {
        end = AlignedBuf::zeroed(claimed.min(bytes));
        medium.fill(start + (bytes - end.len()) as u64, &mut end)?;
    }
    debug_assert!(end.len() >= FOOTER_TAIL);
    let footer = Footer::decode(&end, &medium.secret)?;
    (footer.device == medium.device_id).then_some(footer)
}

/// Reads a segment piece by piece: headers of small batches lie close together.
struct Window<'a> {
    medium: &'a Medium,
    start: u64,
    segment_bytes: usize,
    window_bytes: usize,
    at: usize,
    bytes: AlignedBuf,
}

const WINDOW_BYTES: usize = 256 << 10;
/// Enough for the fixed part of a header; a scan of all segments reads no more of each.
const FIRST_WINDOW_BYTES: usize = 4 << 10;

impl<'a> Window<'a> {
    fn new(medium: &'a Medium, segment: u64, window_bytes: usize) -> Self {
        let segment_bytes = medium.geometry.segment_bytes as usize;
        let start = segment_offset(medium, segment);
        let bytes = AlignedBuf::zeroed(0);
        Self {
            medium,
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
            self.bytes = AlignedBuf::zeroed(size);
            self.at = from;
            if self
                .medium
                .fill(self.start + from as u64, &mut self.bytes)
                .is_none()
            {
                self.bytes = AlignedBuf::zeroed(0);
                return None;
            }
        }
        self.bytes.get(from - self.at..to - self.at)
    }

    fn header(&mut self, at: u32) -> Option<BatchHeader> {
        let at = usize::try_from(at).ok()?;
        let claimed = BatchHeader::claimed_bytes(self.get(at, BATCH_HEADER)?)?;
        let secret = self.medium.secret.clone();
        BatchHeader::decode(self.get(at, claimed)?, &secret)
    }
}
