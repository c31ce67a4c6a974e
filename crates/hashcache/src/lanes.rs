//! Lanes: copies of the state that every answer from memory writes to, one copy for a few threads.
//!
//! A processor that writes to a cache line invalidates it for all other processors, and loading it
//! again takes longer than the rest of the answer. Therefore state that is written for each answer
//! (counters, locks that readers share) exists several times, and each thread uses the copy in the
//! thread's lane.
//!
//! Invariant: a thread keeps its lane until it exits. Threads are spread: a new thread takes the
//! lane with the fewest threads.
//! Cost: 128 bytes or more a lane; there are [`count`] lanes.

use std::ops::Deref;
use std::sync::Arc;

/// One `T` for each lane.
pub(crate) struct Lanes<T>(Box<[Lane<T>]>);

/// Each lane has separate cache lines; processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Lane<T>(T);

impl<T> Lanes<T> {
    pub(crate) fn new(make: impl Fn() -> T) -> Self {
        Self((0..count()).map(|_| Lane(make())).collect())
    }

    /// The `T` of this thread's lane.
    pub(crate) fn own(&self) -> &T {
        &self.0[own()].0
    }

    /// The values of all lanes, always in the same order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lane| &lane.0)
    }
}

impl<T: Default> Default for Lanes<T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

/// An `Arc` with one reference count for each lane, so that threads in different lanes that clone
/// and drop handles write to different cache lines. The value lives until the last handle of any
/// lane is dropped.
///
/// A clone uses the same counter as the original: [`LaneArc::of_this_thread`] returns a handle that
/// counts in the lane of the calling thread.
pub(crate) struct LaneArc<T>(Arc<LaneCount<T>>);

/// The target of the handles that share a counter. Aligned so that the counter, which the `Arc`
/// puts before this value, has a cache line to itself: handles in other lanes only read the fields
/// here.
#[repr(align(64))]
struct LaneCount<T> {
    value: Arc<T>,
    /// A handle for each lane; empty in those handles themselves.
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

    /// A handle that counts in the lane of this thread. A handle that belongs to a lane already is
    /// only cloned.
    pub(crate) fn of_this_thread(&self) -> Self {
        self.0.of_lanes.get(own()).unwrap_or(self).clone()
    }

    /// This handle, for an owner that does not need to know the type of the value.
    pub(crate) fn into_any(self) -> Arc<dyn Send + Sync>
    where
        T: Send + Sync + 'static,
    {
        self.0
    }

    /// Memory of the counters, without the value.
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

/// Maximum number of lanes. More threads than that share lanes.
pub(crate) const LANES_MAX: usize = 16;

#[cfg(not(all(test, loom)))]
pub(crate) use threads::{count, own};

#[cfg(not(all(test, loom)))]
mod threads {
    use std::sync::{Mutex, OnceLock};

    use super::LANES_MAX;

    /// Number of lanes: two for each processor, because engine threads that seldom answer take
    /// lanes too.
    pub(crate) fn count() -> usize {
        static COUNT: OnceLock<usize> = OnceLock::new();
        *COUNT.get_or_init(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            (2 * processors).min(LANES_MAX)
        })
    }

    /// The lane of this thread, below [`count`].
    pub(crate) fn own() -> usize {
        // A thread that is exiting has given its lane back, and may use any.
        OWN.try_with(|own| own.lane).unwrap_or(0)
    }

    thread_local! {
        static OWN: OwnLane = OwnLane::take();
    }

    /// Number of threads in each lane.
    static THREADS: Mutex<[usize; LANES_MAX]> = Mutex::new([0; LANES_MAX]);

    /// The lane of a thread, given back when the thread exits.
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

/// A loom model has two lanes, and a thread sets its own lane.
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

    /// Sets the lane of this thread.
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
        // Other tests run threads at the same time, which may exit and leave their lanes meanwhile.
        assert!(lanes.len() > 1 || count() == 1, "all in lane {lanes:?}");
    }
}
