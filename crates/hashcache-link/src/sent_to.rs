//! Objects that a parent has sent to a child, found by content.
//!
//! `children` keeps one table per pin. `request/framed` in the proxy looks for a dictionary after
//! it has seen a response's start, and enters a response after it has sent the whole response.
//!
//! Invariants: only responses that a shared cache may store are entered, and a response finds only
//! responses from the same origin. The table is lost at a restart, which only costs bytes on the
//! link.
//! Cost: the table, reserved in the budget; one lock for each lookup.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashcache::{Cache, Reservation};
use hashcache_wan::sent::{Sent, SentObject, Wanted};
use hashcache_wan::sketch::Sketch;

/// The objects that were most recently sent to a child.
pub struct SentTo {
    sent: Mutex<Sent>,
    _memory: Reservation,
}

impl SentTo {
    /// Creates a table for one of `children` children; `None` without memory for the table.
    pub(crate) fn within(cache: &Cache, children: usize) -> Option<Self> {
        let budget = cache.stats().memory_limit_bytes;
        let bytes = (budget / BUDGET_PART).min(budget / ALL_PART / children.max(1) as u64);
        let memory = cache.reserve(bytes)?;
        let sent = Sent::new(usize::try_from(bytes).ok()?, fastrand::u64(..));
        Some(Self {
            sent: Mutex::new(sent),
            _memory: memory,
        })
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the object that is probably most similar to the `wanted` object.
    pub fn find(&self, sketch: &Sketch, wanted: &Wanted<'_>) -> Option<SentObject> {
        self.sent().find(sketch, wanted).cloned()
    }

    /// Enters an object that was sent.
    pub fn enter(&self, object: SentObject, sketch: &Sketch) {
        if object.length >= ENTERED_MIN {
            self.sent().insert(object, sketch);
        }
    }

    /// Forgets an object that is no longer stored here.
    pub fn forget(&self, key: &[u8]) {
        self.sent().forget(key);
    }
}

impl std::fmt::Debug for SentTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SentTo({} objects)", self.sent().len())
    }
}

/// Largest budget part for a table: 1 MiB of 64, for 4,600 objects.
const BUDGET_PART: u64 = 64;
/// Largest part for all tables together.
const ALL_PART: u64 = 32;
/// Shorter objects are not entered, bytes.
const ENTERED_MIN: u64 = 4 << 10;
