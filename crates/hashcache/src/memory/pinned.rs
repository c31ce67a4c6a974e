//! Shelves: hot records that end in one slab, kept together for as long as anyone holds one; and
//! stands, for one record each.
//!
//! Were each record counted by itself, the processors that ask for it would write to one cache line
//! in turn. A shelf is counted in every lane: a hit writes to its thread's own. It keeps all of its
//! records, which costs little more, because who holds one of them holds the slab they lie in. What
//! is pending shares its memory with nobody: it gets a stand of its own, once it is asked for a
//! second time.
//!
//! Invariant: a record stays where it was put until the shelf and all that is held of it is gone.
//! Cost: at most [`bytes`] a shelf, whatever lies in it; [`stand_bytes`] a stand.
#![expect(
    unsafe_code,
    reason = "a record is reached in one step, not by way of what keeps it"
)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::budget::{Budget, Reservation};
use super::slab::SLAB_BYTES;
use crate::lanes;
use crate::record::Record;

/// Most records on a shelf, so that it is bounded where records are tiny or replaced over and over.
pub(super) const RECORDS_MAX: usize = SLAB_BYTES / 256;

/// A record on a shelf, and the memory it is accounted for by.
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) _reservation: Reservation,
}

/// Records are added, never taken out.
type Records = Mutex<Vec<Arc<Stored>>>;

/// Keeps what is shared by all lanes, for the threads of one. Its own count has a cache line to
/// itself.
#[repr(align(64))]
struct Keeper<T> {
    kept: Arc<T>,
}

/// One a lane, all of which keep `kept`.
fn keepers<T>(kept: &Arc<T>) -> impl Iterator<Item = Arc<Keeper<T>>> {
    (0..lanes::count()).map(|_| {
        let kept = Arc::clone(kept);
        Arc::new(Keeper { kept })
    })
}

/// See the module's head. Clones are the same shelf.
#[derive(Clone)]
pub(super) struct Shelf {
    /// One a lane.
    keepers: Arc<[Arc<Keeper<Records>>]>,
}

/// A shelf for one record, which lies elsewhere.
pub(crate) struct Stand {
    record: NonNull<Record>,
    /// One a lane.
    keepers: Box<[Arc<Keeper<OnStand>>]>,
}

/// A record, and the memory its stand is accounted for by.
struct OnStand {
    _record: Arc<Record>,
    _reservation: Reservation,
}

/// A record that is held: as long as this lives, so do its bytes.
pub(crate) struct Held {
    record: NonNull<Record>,
    /// A [`Keeper`].
    keeper: Arc<dyn Send + Sync>,
}

// SAFETY: a shared reference to a record and a count of references, both of which threads share.
unsafe impl Send for Held where Arc<Record>: Send {}
// SAFETY: as above.
unsafe impl Sync for Held where Arc<Record>: Sync {}
// SAFETY: as above.
unsafe impl Send for Stand where Arc<Record>: Send {}
// SAFETY: as above.
unsafe impl Sync for Stand where Arc<Record>: Sync {}

impl Shelf {
    pub(super) fn new() -> Self {
        Self {
            keepers: keepers(&Arc::new(Records::default())).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Stored>>> {
        let records = self.keepers[0].kept.lock();
        // A list is whole at any time, whatever has panicked.
        records.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `other` is this shelf.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.keepers, &other.keepers)
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
            keeper: own(&self.keepers),
        }
    }
}

impl Stand {
    /// One for `record`; `None` when `budget` has no room for it.
    pub(crate) fn new(record: &Arc<Record>, budget: &Budget) -> Option<Self> {
        let on_stand = Arc::new(OnStand {
            _record: Arc::clone(record),
            _reservation: budget.reserve_free(stand_bytes())?,
        });
        Some(Self {
            record: NonNull::from(&**record),
            keepers: keepers(&on_stand).collect(),
        })
    }

    /// Holds the record. Counted in this thread's lane.
    pub(crate) fn hold(&self) -> Held {
        Held {
            record: self.record,
            keeper: own(&self.keepers),
        }
    }
}

/// That of this thread's lane.
fn own<T: Send + Sync + 'static>(keepers: &[Arc<Keeper<T>>]) -> Arc<dyn Send + Sync> {
    let own: &Arc<Keeper<T>> = &keepers[lanes::own()];
    Arc::<Keeper<T>>::clone(own)
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
        // SAFETY: the record lies in an `Arc` that the shelf or stand holds, which lets go of
        // nothing while a keeper lives, and this has one. Nobody writes a record that was put
        // there, but for its atomics.
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
    (RECORDS_MAX * size_of::<Arc<Stored>>()) as u64 + keepers_bytes()
}

/// What a stand takes in memory, beside its record.
fn stand_bytes() -> u64 {
    size_of::<OnStand>() as u64 + keepers_bytes()
}

fn keepers_bytes() -> u64 {
    let keeper = 2 * align_of::<Keeper<()>>() + size_of::<Arc<Keeper<()>>>();
    (lanes::count() * keeper) as u64
}
