//! A handle to a record, which keeps the record in memory.
//!
//! Returned by lookups. Invariant: the bytes of the record stay where they are as long as any
//! handle lives, also when the object is evicted or removed.

use std::ops::Deref;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::pinned::Pinned;
use crate::record::Record;

/// A handle to a record, which keeps the record in memory.
#[derive(Clone)]
pub(crate) enum RecordHandle {
    /// The record is in no slab: only the handles keep it.
    Alone(Arc<Record>),
    /// The record was hot, or pinned, when it was found.
    Pinned(Pinned),
}

impl RecordHandle {
    pub(crate) fn alone(record: Record) -> Self {
        Self::Alone(Arc::new(record))
    }

    /// Piece `n` of the content.
    pub(crate) fn content(&self, n: usize) -> Bytes {
        match self {
            Self::Alone(record) => record.content[n].clone(),
            Self::Pinned(pinned) => pinned.content(n),
        }
    }

    /// The content at `offset`, counted from the start of this record's content, up to the end of
    /// that piece; empty beyond the end.
    pub(crate) fn piece(&self, offset: usize) -> Bytes {
        let Some((n, from)) = self.piece_at(offset) else {
            return Bytes::new();
        };
        let mut piece = self.content(n);
        piece.advance(from);
        piece
    }
}

impl Deref for RecordHandle {
    type Target = Record;

    fn deref(&self) -> &Record {
        match self {
            Self::Alone(record) => record,
            Self::Pinned(pinned) => pinned,
        }
    }
}
