//! A record and what keeps it in memory.

use std::ops::Deref;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::pinned::Held;
use crate::record::Record;

/// A record and what keeps it in memory.
#[derive(Clone)]
pub(crate) enum Kept {
    /// Nothing but who holds it.
    Alone(Arc<Record>),
    /// It was hot, or on a stand, when it was found.
    Held(Held),
}

impl Kept {
    pub(crate) fn alone(record: Record) -> Self {
        Self::Alone(Arc::new(record))
    }

    /// Piece `n` of the content.
    pub(crate) fn content(&self, n: usize) -> Bytes {
        match self {
            Self::Alone(record) => record.content[n].clone(),
            Self::Held(held) => held.content(n),
        }
    }

    /// The piece of content at `offset` from the start of this record's content, to the end of the
    /// piece; empty beyond the end.
    pub(crate) fn piece(&self, offset: usize) -> Bytes {
        let Some((n, from)) = self.piece_at(offset) else {
            return Bytes::new();
        };
        let mut piece = self.content(n);
        piece.advance(from);
        piece
    }
}

impl Deref for Kept {
    type Target = Record;

    fn deref(&self) -> &Record {
        match self {
            Self::Alone(record) => record,
            Self::Held(held) => held,
        }
    }
}
