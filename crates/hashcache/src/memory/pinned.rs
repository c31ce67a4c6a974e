//! Pinned records: a handle to a record counts its references in the lane of its thread.
//!
//! Were each record counted by itself, the processors that ask for it would write to one cache line
//! in turn. So references are counted once a lane ([`LaneArc`]): a hit writes to its own thread's
//! count only. Hot records are counted together, all that end in one slab ([`PinnedRecords`]). That
//! costs little more memory, because a handle to one of them keeps the whole slab anyway. A pending
//! record lies in no slab: it gets counts of its own ([`PinnedRecord`]) when it is asked for a
//! second time.
//!
//! Invariant: a record stays where it is until its owner and all handles to it are gone.
//! Cost: at most [`list_bytes`] for each slab, and [`pinned_record_bytes`] for each pending record.
#![expect(
    unsafe_code,
    reason = "a handle reaches its record in one step, not by way of the counts"
)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::slab::SLAB_BYTES;
use super::stored::Stored;
use crate::lanes::LaneArc;
use crate::record::Record;

/// Most records of one slab, so that the list is bounded where records are tiny or replaced over
/// and over.
pub(super) const RECORDS_MAX: usize = SLAB_BYTES / 256;

/// The hot records that end in one slab. Records are added, never taken out. Clones share the list.
#[derive(Clone)]
pub(super) struct PinnedRecords(LaneArc<Mutex<SlabRecords>>);

#[derive(Default)]
struct SlabRecords {
    records: Vec<Arc<Stored>>,
    /// The slab was evicted.
    is_closed: bool,
}

/// One record that lies in no slab, with counts of its own.
pub(crate) struct PinnedRecord {
    record: NonNull<Record>,
    owner: LaneArc<Owner>,
}

/// A record, and the memory its counts are accounted for by.
struct Owner {
    _record: Arc<Record>,
    _reservation: Reservation,
}

/// A handle to a record: as long as this lives, so do the record's bytes.
pub(crate) struct Pinned {
    record: NonNull<Record>,
    /// A reference, counted in one lane, to what owns the record.
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: a shared reference to a record and a count of references, both of which threads share.
unsafe impl Send for Pinned where Arc<Record>: Send {}
// SAFETY: as above.
unsafe impl Sync for Pinned where Arc<Record>: Sync {}
// SAFETY: as above.
unsafe impl Send for PinnedRecord where Arc<Record>: Send {}
// SAFETY: as above.
unsafe impl Sync for PinnedRecord where Arc<Record>: Sync {}

impl PinnedRecords {
    pub(super) fn new() -> Self {
        Self(LaneArc::new(Mutex::default()))
    }

    fn lock(&self) -> MutexGuard<'_, SlabRecords> {
        // A list is whole at any time, also after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `stored`, unless the list is closed; returns whether it did.
    pub(super) fn put(&self, stored: Arc<Stored>) -> bool {
        let mut list = self.lock();
        if !list.is_closed {
            list.records.push(stored);
        }
        !list.is_closed
    }

    /// The records that were asked for since the last call.
    pub(super) fn take_asked_for(&self) -> Vec<Arc<Stored>> {
        let list = self.lock();
        let asked_for = list.records.iter().filter(|it| it.uses.take_asked_for());
        asked_for.cloned().collect()
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// From now on no record is added; returns all of them.
    pub(super) fn close(&self) -> Vec<Arc<Stored>> {
        let mut list = self.lock();
        list.is_closed = true;
        list.records.clone()
    }

    /// A handle to `stored`, which was put into this list. Counted in this thread's lane.
    pub(super) fn pin(&self, stored: &Arc<Stored>) -> Pinned {
        Pinned {
            record: NonNull::from(&stored.record),
            owner: self.0.of_this_thread().into_any(),
        }
    }
}

impl PinnedRecord {
    /// Counts for `record`; `None` when `budget` has no room for them.
    pub(crate) fn new(record: &Arc<Record>, budget: &Budget) -> Option<Self> {
        let owner = Owner {
            _record: Arc::clone(record),
            _reservation: budget.reserve_free(pinned_record_bytes())?,
        };
        Some(Self {
            record: NonNull::from(&**record),
            owner: LaneArc::new(owner),
        })
    }

    /// A handle to the record. Counted in this thread's lane.
    pub(crate) fn pin(&self) -> Pinned {
        Pinned {
            record: self.record,
            owner: self.owner.of_this_thread().into_any(),
        }
    }
}

impl Pinned {
    /// A piece of the content, which keeps what this keeps. Its bytes are counted by themselves: a
    /// caller that clones them shares no count with other answers.
    pub(crate) fn content(&self, piece: usize) -> Bytes {
        Bytes::from_owner(PinnedPiece {
            pinned: self.clone(),
            piece,
        })
    }
}

impl Clone for Pinned {
    fn clone(&self) -> Self {
        Self {
            record: self.record,
            owner: Arc::clone(&self.owner),
        }
    }
}

impl Deref for Pinned {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: the record lies in an `Arc` that its owner holds. The owner lets go of nothing
        // while it lives, and it lives as long as any reference to it, of which this has one. A
        // record is not written after it was put there, except for its atomics.
        unsafe { self.record.as_ref() }
    }
}

/// See [`Pinned::content`].
struct PinnedPiece {
    pinned: Pinned,
    piece: usize,
}

impl AsRef<[u8]> for PinnedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.pinned.content[self.piece]
    }
}

/// Most memory that the list of a slab's records takes, without the records.
pub(super) fn list_bytes() -> u64 {
    (RECORDS_MAX * size_of::<Arc<Stored>>()) as u64 + LaneArc::<()>::counts_bytes()
}

/// Memory that the counts of a [`PinnedRecord`] take, without the record.
fn pinned_record_bytes() -> u64 {
    size_of::<Owner>() as u64 + LaneArc::<()>::counts_bytes()
}
