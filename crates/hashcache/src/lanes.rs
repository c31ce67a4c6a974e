//! Lanes: what every answer from memory must write to, once for a few threads each.
//!
//! A processor that writes to a cache line takes it from all others, and its way back takes longer
//! than the rest of the answer. So what is written on the way to an answer (counts, locks that
//! readers share) exists several times, and each thread uses its own.
//!
//! Invariant: a thread keeps its lane for life. Threads are spread: a new one takes the lane with
//! the fewest.
//! Cost: 128 bytes or more a lane, [`count`] of them.

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

/// Most lanes there are. More threads than that share them.
pub(crate) const LANES_MAX: usize = 16;

#[cfg(not(all(test, loom)))]
pub(crate) use seats::{count, own};

#[cfg(not(all(test, loom)))]
mod seats {
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
        SEAT.try_with(|seat| seat.lane).unwrap_or(0)
    }

    thread_local! {
        static SEAT: Seat = Seat::take();
    }

    /// Threads in each lane.
    static SEATED: Mutex<[usize; LANES_MAX]> = Mutex::new([0; LANES_MAX]);

    /// A thread's place in a lane.
    struct Seat {
        lane: usize,
    }

    impl Seat {
        fn take() -> Self {
            let mut seated = SEATED.lock().expect("no holder of this lock panics");
            let fewest = (0..count()).min_by_key(|lane| seated[*lane]);
            let lane = fewest.unwrap_or(0);
            seated[lane] += 1;
            Self { lane }
        }
    }

    impl Drop for Seat {
        fn drop(&mut self) {
            let mut seated = SEATED.lock().expect("no holder of this lock panics");
            seated[self.lane] -= 1;
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
            let seated = || {
                let lane = own();
                all.wait();
                assert_eq!(own(), lane);
                lane
            };
            let threads: Vec<_> = (0..count()).map(|_| scope.spawn(seated)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(lanes.iter().all(|lane| *lane < count()));
        lanes.sort_unstable();
        lanes.dedup();
        // Other tests have threads at the same time, which may end and leave their lanes meanwhile.
        assert!(lanes.len() > 1 || count() == 1, "all in lane {lanes:?}");
    }
}
