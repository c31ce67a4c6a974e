//! Shelves: hot records that end in one slab, kept together for as long as anyone holds one.
//!
//! Were each record counted by itself, the processors that ask for it would write to one cache line
//! in turn. A shelf is counted in every lane: a hit writes to its thread's own. It keeps all of its
//! records, which costs little more, because who holds one of them holds the slab they lie in.
//!
//! Invariant: a record stays where it was put until the shelf and all that is held of it is gone.
//! Cost: at most [`bytes`] a shelf, whatever lies in it.
#![expect(
    unsafe_code,
    reason = "a record is reached in one step, not by way of what keeps it"
)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::budget::Reservation;
use super::slab::SLAB_BYTES;
use crate::lanes;
use crate::record::Record;

/// Most records on a shelf, so that it is bounded where records are tiny or replaced over and over.
const RECORDS_MAX: usize = SLAB_BYTES / 256;

/// A record on a shelf, and the memory it is accounted for by.
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) _reservation: Reservation,
}

/// Records are added, never taken out.
type Records = Mutex<Vec<Arc<Stored>>>;

/// Keeps the records, for the threads of one lane. Its own count has a cache line to itself.
#[repr(align(64))]
struct Keeper {
    records: Arc<Records>,
}

/// See the module's head. Clones are the same shelf.
#[derive(Clone)]
pub(super) struct Shelf {
    /// One a lane.
    keepers: Arc<[Arc<Keeper>]>,
}

/// A record that is held: as long as this lives, so do its bytes.
pub(crate) struct Held {
    record: NonNull<Record>,
    keeper: Arc<Keeper>,
}

// SAFETY: a shared reference to a record and a count of references, both of which threads share.
unsafe impl Send for Held where Arc<Record>: Send {}
// SAFETY: as above.
unsafe impl Sync for Held where Arc<Record>: Sync {}

impl Shelf {
    pub(super) fn new() -> Self {
        let records = Arc::new(Records::default());
        let keeper = |_| {
            let records = Arc::clone(&records);
            Arc::new(Keeper { records })
        };
        Self {
            keepers: (0..lanes::count()).map(keeper).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Stored>>> {
        let records = self.keepers[0].records.lock();
        records.expect("no holder of this lock panics")
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= RECORDS_MAX
    }

    pub(super) fn put(&self, stored: Arc<Stored>) {
        self.lock().push(stored);
    }

    pub(super) fn records(&self) -> Vec<Arc<Stored>> {
        self.lock().clone()
    }

    /// Holds `stored`, which was put on this shelf. Counted in this thread's lane.
    pub(super) fn hold(&self, stored: &Arc<Stored>) -> Held {
        Held {
            record: NonNull::from(&stored.record),
            keeper: Arc::clone(&self.keepers[lanes::own()]),
        }
    }
}

impl Held {
    /// A piece of the content, which keeps what this keeps. Its bytes are counted by themselves:
    /// who clones them shares nothing with other answers.
    pub(crate) fn content(&self, piece: usize) -> Bytes {
        Bytes::from_owner(Piece {
            held: self.clone(),
            piece,
        })
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Self {
            record: self.record,
            keeper: Arc::clone(&self.keeper),
        }
    }
}

impl Deref for Held {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: the record lies in an `Arc` that the shelf holds, which lets go of nothing while
        // a keeper lives, and this has one. Nobody writes a record that was put there, but
        // for its atomics.
        unsafe { self.record.as_ref() }
    }
}

/// See [`Held::content`].
struct Piece {
    held: Held,
    piece: usize,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.held.content[self.piece]
    }
}

/// What a shelf takes in memory at most, beside its records.
pub(super) fn bytes() -> u64 {
    let lane = 2 * align_of::<Keeper>() + size_of::<Arc<Keeper>>();
    (RECORDS_MAX * size_of::<Arc<Stored>>() + lanes::count() * lane) as u64
}
