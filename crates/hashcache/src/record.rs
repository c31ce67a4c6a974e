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
    /// Where in the log it lies, if it does.
    pub(crate) at: Option<LogPos>,
    /// Where the newest version of its object is kept.
    pub(crate) storage: Storage,
    /// What bans have said of it (`bans`).
    pub(crate) judged: AtomicU64,
}

impl Record {
    pub(crate) fn content_bytes(&self) -> usize {
        self.content.iter().map(Bytes::len).sum()
    }

    /// What bans have said of this is true of a copy too.
    pub(crate) fn hand_down_judged(&self, copy: &Self) {
        let judged = self.judged.load(Ordering::Relaxed);
        copy.judged.store(judged, Ordering::Relaxed);
    }

    /// Which piece of content lies at `offset` from the start of this record's content, and where
    /// in the piece that is; `None` beyond the end.
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
