//! What keeps an open cache open, counted in several places.
//!
//! Every hit keeps its cache open. Were there one count of them, all processors would write to one
//! cache line with every answer from memory, and two of them would answer little more than one.
//! `cache` holds the first, and hands out those of threads.
//!
//! Invariant: the cache closes when the last hold is gone, whichever it is.
//! Cost: two atomic operations a hit, in the lane of the thread.

use std::sync::Arc;

use super::Inner;
use crate::lanes;

/// Keeps the cache open. On cache lines of its own (processors fetch them in pairs).
#[repr(align(128))]
pub(super) struct Hold {
    pub(super) inner: Arc<Inner>,
    /// One a lane; none in one that is such itself.
    of_lanes: Vec<Arc<Hold>>,
}

impl Hold {
    /// One for handles of the cache, with others for what each lane's threads look up.
    pub(super) fn with_one_for_each_lane(inner: Arc<Inner>) -> Arc<Self> {
        let of_lane = |_| {
            let (inner, of_lanes) = (Arc::clone(&inner), Vec::new());
            Arc::new(Self { inner, of_lanes })
        };
        let of_lanes = (0..lanes::count()).map(of_lane).collect();
        Arc::new(Self { inner, of_lanes })
    }

    /// The one that this thread counts in.
    pub(super) fn of_this_thread(self: &Arc<Self>) -> Arc<Self> {
        let own = self.of_lanes.get(lanes::own());
        Arc::clone(own.unwrap_or(self))
    }
}
