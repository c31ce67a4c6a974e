//! A record in memory: the common form of pending, hot and freshly read objects.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::address::LogPos;
use crate::format::Fields;
use crate::object::Storage;

/// A head or a span with its bytes, which a writer, a slab or a read buffer owns.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) fields: Fields,
    pub(crate) name: Bytes,
    pub(crate) metadata: Bytes,
    /// Pieces of the content in order; none is empty.
    pub(crate) content: Vec<Bytes>,
    /// The record's position in the log, if it is stored there.
    pub(crate) at: Option<LogPos>,
    /// Where the newest version of the object is kept.
    pub(crate) storage: Storage,
    /// Result of the ban checks so far (`bans`).
    pub(crate) judged: AtomicU64,
}

impl Record {
    pub(crate) fn content_bytes(&self) -> usize {
        self.content.iter().map(Bytes::len).sum()
    }

    /// Copies the result of the ban checks to `copy`, because it holds for the copy too.
    pub(crate) fn hand_down_judged(&self, copy: &Self) {
        let judged = self.judged.load(Ordering::Relaxed);
        copy.judged.store(judged, Ordering::Relaxed);
    }

    /// The number of the piece that contains `offset`, counted from the start of this record's
    /// content, and the position in that piece; `None` beyond the end.
    pub(crate) fn piece_at(&self, offset: usize) -> Option<(usize, usize)> {
        let mut start = 0;
        for (n, piece) in self.content.iter().enumerate() {
            if offset < start + piece.len() {
                return Some((n, offset - start));
            }
            start += piece.len();
        }
        None
    }
}
