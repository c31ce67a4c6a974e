//! A hot record, the reservation for its memory, and the flags that describe how it was used.
//!
//! Made by `hot`; listed by slab in `pinned`.
//!
//! Cost: a hit writes to a flag only if that changes the flag. Even a store of the same value takes
//! the cache line from other processors.

use std::sync::atomic::{AtomicBool, Ordering};

use super::budget::Reservation;
use crate::record::Record;

/// See the module's head.
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) uses: Uses,
    pub(super) _reservation: Reservation,
}

/// How a record was used since it became hot.
#[derive(Default)]
pub(super) struct Uses {
    /// Requested again since the slab was last the oldest.
    asked_for: AtomicBool,
    /// Requested since the log's write position last passed the record.
    used: AtomicBool,
    /// A group read has loaded the record, and no lookup has requested it yet.
    prefetched: AtomicBool,
}

impl Uses {
    /// Notes that a lookup requests the record. The first lookup of a prefetched record only
    /// confirms the prefetch; a second lookup is a reason to keep the record.
    pub(super) fn ask(&self) {
        set(&self.used, true);
        if self.is_prefetched() {
            self.prefetched.store(false, Ordering::Relaxed);
        } else {
            set(&self.asked_for, true);
        }
    }

    /// Notes that the record was prefetched: no lookup has requested it.
    pub(super) fn prefetch(&self) {
        set(&self.prefetched, true);
    }

    /// Returns true if the record was prefetched and no lookup has requested it.
    pub(super) fn is_prefetched(&self) -> bool {
        self.prefetched.load(Ordering::Relaxed)
    }

    /// Returns true if the record was requested again since the last call.
    pub(super) fn take_asked_for(&self) -> bool {
        self.asked_for.swap(false, Ordering::Relaxed)
    }

    /// Copies the `used` flag to a copy of the record.
    pub(super) fn hand_down_used(&self, copy: &Self) {
        set(&copy.used, self.used.load(Ordering::Relaxed));
    }

    /// Returns true if the record was used since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

fn set(flag: &AtomicBool, value: bool) {
    if flag.load(Ordering::Relaxed) != value {
        flag.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lookup_of_a_prefetched_record_is_no_reason_to_keep_it() {
        let uses = Uses::default();
        uses.prefetch();
        uses.ask();
        assert!(!uses.take_asked_for() && !uses.is_prefetched());
        assert!(uses.take_used());
        uses.ask();
        assert!(uses.take_asked_for());
        let wanted = Uses::default();
        wanted.ask();
        assert!(wanted.take_asked_for());
    }
}
