//! Pinned records: a handle to a record counts a reference in the lane of the current thread.
//!
//! If each record had one counter, the processors that look it up would write to the same cache
//! line in turn. Therefore references are counted once a lane ([`LaneArc`]): a hit writes only to
//! the counter of its own thread. All hot records that end in the same slab share their counters
//! ([`PinnedRecords`]). That costs little more memory, because a handle to any such record keeps
//! the whole slab anyway. A pending record is in no slab: it gets separate counters
//! ([`PinnedRecord`]) at the second lookup.
//!
//! Invariant: a record stays at the same address until the owner and all handles are gone.
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

/// Maximum number of records in a slab. It bounds the list if records are tiny or replaced over and
/// over.
pub(super) const RECORDS_MAX: usize = SLAB_BYTES / 256;

/// The hot records that end in one slab. Records are added, never removed. Clones share the list.
#[derive(Clone)]
pub(super) struct PinnedRecords(LaneArc<Mutex<SlabRecords>>);

#[derive(Default)]
struct SlabRecords {
    records: Vec<Arc<Stored>>,
    /// The slab was evicted.
    is_closed: bool,
}

/// One record that is in no slab, with separate counters.
pub(crate) struct PinnedRecord {
    record: NonNull<Record>,
    owner: LaneArc<Owner>,
}

/// A record, and the reservation for the memory of the counters.
struct Owner {
    _record: Arc<Record>,
    _reservation: Reservation,
}

/// A handle to a record: the bytes of the record live at least as long as the handle.
pub(crate) struct Pinned {
    record: NonNull<Record>,
    /// A reference, counted in one lane, to the owner of the record.
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

    /// Adds `stored`, unless the list is closed. Returns true if it was added.
    pub(super) fn put(&self, stored: Arc<Stored>) -> bool {
        let mut list = self.lock();
        if !list.is_closed {
            list.records.push(stored);
        }
        !list.is_closed
    }

    /// The records that were requested since the last call.
    pub(super) fn take_asked_for(&self) -> Vec<Arc<Stored>> {
        let list = self.lock();
        let asked_for = list.records.iter().filter(|it| it.uses.take_asked_for());
        asked_for.cloned().collect()
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Closes the list, so that no record can be added; returns all records.
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
    /// Counters for `record`; `None` if `budget` has no room for them.
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
    /// A piece of the content. It keeps the record alive, as this handle does. Each returned value
    /// has a separate reference count: a caller that clones it shares no counter with other
    /// responses.
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
        // SAFETY: the record is in an `Arc` that its owner holds. The owner drops nothing while it
        // lives, and it lives as long as any reference to it, and this handle has such a reference.
        // A record is not written after it was put there, except for its atomics.
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

/// Maximum memory for the list of a slab's records, without the records.
pub(super) fn list_bytes() -> u64 {
    (RECORDS_MAX * size_of::<Arc<Stored>>()) as u64 + LaneArc::<()>::counts_bytes()
}

/// Memory that the counters of a [`PinnedRecord`] take, without the record.
fn pinned_record_bytes() -> u64 {
    size_of::<Owner>() as u64 + LaneArc::<()>::counts_bytes()
}
