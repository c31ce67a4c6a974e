//! Lanes: copies of the state that every answer from memory writes to, one copy for a few threads.
//!
//! A processor that writes to a cache line invalidates it for all others, and loading it again
//! takes longer than the rest of the answer. So what is written on the way to an answer (counts,
//! locks that readers share) exists several times, and each thread uses its own.
//!
//! Invariant: a thread keeps its lane until it ends. Threads are spread: a new one takes the lane
//! with the fewest.
//! Cost: 128 bytes or more a lane, [`count`] of them.

use std::ops::Deref;
use std::sync::Arc;

/// One of each, for each lane.
pub(crate) struct Lanes<T>(Box<[Lane<T>]>);

/// On cache lines of its own; processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Lane<T>(T);

impl<T> Lanes<T> {
    pub(crate) fn new(make: impl Fn() -> T) -> Self {
        Self((0..count()).map(|_| Lane(make())).collect())
    }

    /// That of this thread.
    pub(crate) fn own(&self) -> &T {
        &self.0[own()].0
    }

    /// All, always in the same order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lane| &lane.0)
    }
}

impl<T: Default> Default for Lanes<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

/// An `Arc` whose references are counted once a lane, so that threads of different lanes that clone
/// and drop handles write to different cache lines. The value lives until the last handle of any
/// lane is gone.
///
/// A clone counts where its original does: [`LaneArc::of_this_thread`] gives a handle that counts
/// in the lane of the calling thread.
pub(crate) struct LaneArc<T>(Arc<LaneCount<T>>);

/// The target of the handles that count in one place. Aligned so that the count, which the `Arc`
/// puts before it, has a cache line to itself: handles in other lanes only read what lies beside
/// it.
#[repr(align(64))]
struct LaneCount<T> {
    value: Arc<T>,
    /// One handle for each lane; none in those handles themselves.
    of_lanes: Box<[LaneArc<T>]>,
}

impl<T> LaneArc<T> {
    pub(crate) fn new(value: T) -> Self {
        let value = Arc::new(value);
        let of_lane = |_| {
            let (value, of_lanes) = (Arc::clone(&value), Box::default());
            Self(Arc::new(LaneCount { value, of_lanes }))
        };
        let of_lanes = (0..count()).map(of_lane).collect();
        Self(Arc::new(LaneCount { value, of_lanes }))
    }

    /// A handle that counts in the lane of this thread; a clone where this is of a lane itself.
    pub(crate) fn of_this_thread(&self) -> Self {
        self.0.of_lanes.get(own()).unwrap_or(self).clone()
    }

    /// This handle, for an owner that need not know the value's type.
    pub(crate) fn into_any(self) -> Arc<dyn Send + Sync>
    where
        T: Send + Sync + 'static,
    {
        self.0
    }

    /// What the counts take in memory, beside the value.
    pub(crate) fn counts_bytes() -> u64 {
        let one = 2 * align_of::<LaneCount<T>>() + size_of::<Self>();
        ((count() + 1) * one) as u64
    }
}

impl<T> Clone for LaneArc<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for LaneArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

/// Most lanes there are. More threads than that share them.
pub(crate) const LANES_MAX: usize = 16;

#[cfg(not(all(test, loom)))]
pub(crate) use threads::{count, own};

#[cfg(not(all(test, loom)))]
mod threads {
    use std::sync::{Mutex, OnceLock};

    use super::LANES_MAX;

    /// How many lanes there are: two for each processor, because threads of ours that seldom answer
    /// take theirs too.
    pub(crate) fn count() -> usize {
        static COUNT: OnceLock<usize> = OnceLock::new();
        *COUNT.get_or_init(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            (2 * processors).min(LANES_MAX)
        })
    }

    /// The lane of this thread, below [`count`].
    pub(crate) fn own() -> usize {
        // A thread that is ending has given its lane back, and may use any.
        OWN.try_with(|own| own.lane).unwrap_or(0)
    }

    thread_local! {
        static OWN: OwnLane = OwnLane::take();
    }

    /// Threads in each lane.
    static THREADS: Mutex<[usize; LANES_MAX]> = Mutex::new([0; LANES_MAX]);

    /// The lane of a thread, given back when the thread ends.
    struct OwnLane {
        lane: usize,
    }

    impl OwnLane {
        fn take() -> Self {
            let mut threads = THREADS.lock().expect("no holder of this lock panics");
            let fewest = (0..count()).min_by_key(|lane| threads[*lane]);
            let lane = fewest.unwrap_or(0);
            threads[lane] += 1;
            Self { lane }
        }
    }

    impl Drop for OwnLane {
        fn drop(&mut self) {
            let mut threads = THREADS.lock().expect("no holder of this lock panics");
            threads[self.lane] -= 1;
        }
    }
}

#[cfg(all(test, loom))]
pub(crate) use model::{count, own, take};

/// In a model there are two lanes, and a thread says which is its own.
#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;

    loom::thread_local! {
        static LANE: Cell<usize> = Cell::new(0);
    }

    pub(crate) fn count() -> usize {
        2
    }

    pub(crate) fn own() -> usize {
        LANE.with(Cell::get)
    }

    /// From now on `lane` is that of this thread.
    pub(crate) fn take(lane: usize) {
        LANE.with(|own| own.set(lane));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_thread_keeps_its_lane_and_threads_at_the_same_time_spread_over_all() {
        let all = Barrier::new(count());
        let mut lanes: Vec<usize> = std::thread::scope(|scope| {
            let lane_of_thread = || {
                let lane = own();
                all.wait();
                assert_eq!(own(), lane);
                lane
            };
            let threads: Vec<_> = (0..count()).map(|_| scope.spawn(lane_of_thread)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(lanes.iter().all(|lane| *lane < count()));
        lanes.sort_unstable();
        lanes.dedup();
        // Other tests have threads at the same time, which may end and leave their lanes meanwhile.
        assert!(lanes.len() > 1 || count() == 1, "all in lane {lanes:?}");
    }
}
