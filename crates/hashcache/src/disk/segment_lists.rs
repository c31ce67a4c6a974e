//! The lists in a segment, read in bounded pieces while the store is in use.
//!
//! Called by `stripe/scan` and `stripe/walk`. Recovery, which has the device to itself, reads whole
//! segments at once (`segment`).
//!
//! Invariant: no read and no buffer is larger than the longest list that a segment can have,
//! whatever the bytes on the device claim.
//! Cost: a piece is a footer read (two reads if the footer is longer than the last footer), or one
//! or two reads of 256 KiB if there is no footer.

use super::Medium;
use super::circular_log::{Cursor, LogWriter};
use super::segment::{WINDOW_BYTES, Window, footer};
use crate::format::{BATCH_HEADER, Footer, Listed};
use crate::memory::Reservation;

/// A list exists three times: as it was read, decoded, and in the form for the caller. Together
/// these take three times the bytes on the device.
const FORMS: usize = 3;

/// Memory for lists. It grows to the longest list so far: if it were released and reserved again
/// for each piece, it would evict hot objects each time.
#[derive(Default)]
pub(crate) struct ListMemory {
    reserved: Vec<Reservation>,
    bytes: usize,
}

impl ListMemory {
    fn has_room(&mut self, medium: &Medium, bytes: usize) -> bool {
        let missing = bytes.saturating_mul(FORMS).saturating_sub(self.bytes);
        if missing == 0 {
            return true;
        }
        let Some(reservation) = medium.budget.reserve(missing as u64) else {
            medium.counters.no_memory.add(1);
            return false;
        };
        self.reserved.push(reservation);
        self.bytes += missing;
        true
    }
}

/// What follows a piece of the lists: more lists, or the reason why they end here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceEnd {
    /// More lists.
    More,
    /// Nothing: the piece was the footer, which lists the whole segment.
    Sealed,
    /// No more lists for this opening of the segment. The value is the listed length in bytes.
    Walked(u32),
    /// The next batch header, which does not verify.
    Torn,
    /// The read failed, or there was no memory.
    Refused,
}

/// A stretch of the lists in a segment.
pub(crate) struct Piece {
    pub(crate) listed: Vec<Listed>,
    pub(crate) read_bytes: u64,
    pub(crate) end: PieceEnd,
}

/// See the module head.
pub(crate) struct SegmentLists {
    cursor: Cursor,
    /// The footer was looked for, or there cannot be a footer.
    walks: bool,
}

impl SegmentLists {
    /// The lists for the opening of a segment that `cursor` names.
    pub(crate) fn new(cursor: Cursor, is_open: bool) -> Self {
        Self {
            cursor,
            walks: is_open,
        }
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(crate) fn next(&mut self, medium: &Medium, memory: &mut ListMemory) -> Piece {
        let lines = LogWriter::list_entries_max(&medium.geometry);
        let longest = Footer::bytes(usize::try_from(lines).unwrap_or(usize::MAX));
        let (mut read_bytes, mut was_refused) = (0, false);
        let mut permit = |bytes: usize| {
            if bytes > longest.max(WINDOW_BYTES) {
                // A longer claim cannot be a list.
                return false;
            }
            was_refused = !memory.has_room(medium, bytes);
            read_bytes += bytes as u64;
            !was_refused
        };
        let (listed, end) = if std::mem::replace(&mut self.walks, true) {
            self.walk(medium, &mut permit)
        } else {
            match footer(medium, self.cursor.segment, &mut permit) {
                Some(footer) if footer.stamp == self.cursor.stamp => {
                    (footer.list, PieceEnd::Sealed)
                }
                _ => (Vec::new(), PieceEnd::More),
            }
        };
        Piece {
            listed,
            read_bytes,
            end: if was_refused { PieceEnd::Refused } else { end },
        }
    }

    /// The lists of the batches at the cursor with headers close to each other.
    fn walk(
        &mut self,
        medium: &Medium,
        permit: &mut dyn FnMut(usize) -> bool,
    ) -> (Vec<Listed>, PieceEnd) {
        let cursor = &mut self.cursor;
        let mut window = Window::new(medium, cursor.segment, WINDOW_BYTES, permit);
        let mut listed = Vec::new();
        while let Some(header) = window.header(cursor.used) {
            let left = medium.geometry.segment_bytes - cursor.used;
            let follows = header.stamp == cursor.stamp
                && header.ordinal == cursor.ordinal
                && header.device == medium.device_id
                && header.batch_bytes <= left;
            if !follows {
                return (listed, PieceEnd::Walked(cursor.used));
            }
            cursor.used += header.batch_bytes;
            cursor.ordinal += 1;
            listed.extend(header.list);
            if left as usize - (header.batch_bytes as usize) < BATCH_HEADER {
                return (listed, PieceEnd::Walked(cursor.used));
            }
            if !window.has_header(cursor.used) || window.reads() > 1 {
                return (listed, PieceEnd::More);
            }
        }
        let end = match () {
            () if window.was_refused() => PieceEnd::Refused,
            () if window.claims(*cursor) => PieceEnd::Torn,
            () => PieceEnd::Walked(cursor.used),
        };
        (listed, end)
    }
}
