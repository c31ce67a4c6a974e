//! What keeps an open cache open, counted in several places.
//!
//! Every hit keeps its cache open. Were there one count of them, all processors would write to one
//! cache line with every answer from memory, and two of them would answer little more than one.
//! `cache` holds the first, and hands out those of threads.
//!
//! Invariant: the cache closes when the last hold is gone, whichever it is.
//! Cost: two atomic operations a hit, on a line that few threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Inner;

/// Keeps the cache open. On cache lines of its own (processors fetch them in pairs).
#[repr(align(128))]
pub(super) struct Hold {
    pub(super) inner: Arc<Inner>,
    /// Those of threads; none in one that is such itself.
    of_threads: Vec<Arc<Hold>>,
}

/// Places to count in. More threads than that share them.
const PLACES: usize = 16;

impl Hold {
    /// One for handles of the cache, with others for what each thread looks up.
    pub(super) fn with_one_for_each_thread(inner: Arc<Inner>) -> Arc<Self> {
        let of_thread = |_| {
            let (inner, of_threads) = (Arc::clone(&inner), Vec::new());
            Arc::new(Self { inner, of_threads })
        };
        let of_threads = (0..PLACES).map(of_thread).collect();
        Arc::new(Self { inner, of_threads })
    }

    /// The one that this thread counts in.
    pub(super) fn of_this_thread(self: &Arc<Self>) -> Arc<Self> {
        let own = self.of_threads.get(PLACE.with(|place| *place));
        Arc::clone(own.unwrap_or(self))
    }
}

/// Threads so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PLACE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % PLACES;
}
