//! A record in memory: what pending, hot and freshly read objects have in common.

use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use crate::address::LogPos;
use crate::format::Fields;

/// A head or a span with its bytes, whoever owns them: a writer, a slab or a read buffer.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) fields: Fields,
    pub(crate) name: Bytes,
    pub(crate) metadata: Bytes,
    /// Pieces of the content in order; none is empty.
    pub(crate) content: Vec<Bytes>,
    /// Where in the log it lies, if it does.
    pub(crate) at: Option<LogPos>,
    /// No rule up to this version says anything of it.
    pub(crate) judged: AtomicU64,
}

impl Record {
    pub(crate) fn content_bytes(&self) -> usize {
        self.content.iter().map(Bytes::len).sum()
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
