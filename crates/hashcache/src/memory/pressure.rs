//! Memory pressure: a thread that shrinks the hot objects when other programs need memory, makes
//! the heap give freed memory back, and sets aside the memory that the process uses uncounted.
//!
//! The thread watches memory usage, not the kernel's pressure figures: by the time the kernel
//! reports pressure, a program that allocates at full speed has reached the limit, and the kernel
//! kills a process. The thread starts with the cache and is joined when the cache is dropped.
//!
//! Cost: a read of the kernel's figures, as seldom as the fastest competitor allows: twice a second
//! while gigabytes are free, every 2 ms when the limit is near.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::budget::Budget;
use super::heap::Trimmer;
use super::hot::Hot;
use super::system_memory::{Headroom, SystemMemory};
use super::uncounted::{ProcessMemory, Uncounted};
use crate::clock::Clock;

/// The fastest rate at which a competitor can take memory, bytes/s: two cores that write to fresh
/// pages.
const FASTEST: u64 = 4 << 30;
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// The memory that other processes will take in this time, at their last rate, is given back ahead:
/// releasing memory takes time, and the kernel does not wait for it.
const AHEAD: Duration = Duration::from_millis(100);
/// Time after memory was given back before hot objects start to grow again.
const CALM: Duration = Duration::from_secs(2);
/// Time in which hot objects grow from nothing to their full limit.
const GROW_TIME: Duration = Duration::from_secs(10);

/// Describes the process that contains the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// The process is only the cache: all memory of the process counts.
    IsCache(ProcessMemory),
    /// A program that uses a cache among other things.
    HasCache,
}

/// The thread. It stops when this is dropped.
pub(crate) struct MemoryPressure {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    told: Condvar,
}

impl MemoryPressure {
    /// Watches over `hot`, which may take up to `limit` bytes within the memory budget. The share
    /// for writes shrinks with the budget.
    ///
    /// # Errors
    /// The system could not start a thread.
    pub(crate) fn start(
        hot: &Arc<Hot>,
        limit: u64,
        write_budget: &Budget,
        clock: &Clock,
        process: Process,
    ) -> std::io::Result<Self> {
        let stop = Arc::<Stop>::default();
        let (hot, stopped) = (Arc::downgrade(hot), Arc::clone(&stop));
        let (clock, write_budget) = (clock.clone(), write_budget.clone());
        let uncounted = match process {
            Process::IsCache(memory) => Some(Uncounted::of_this_process(memory, write_budget)),
            Process::HasCache => None,
        };
        let thread = std::thread::Builder::new()
            .name("hc-memory".into())
            .spawn(move || watch(&hot, Share::all(limit), &clock, uncounted, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for MemoryPressure {
    fn drop(&mut self) {
        *self
            .stop
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.told.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn watch(
    hot: &Weak<Hot>,
    mut share: Share,
    clock: &Clock,
    mut uncounted: Option<Uncounted>,
    stop: &Stop,
) {
    let system_memory = SystemMemory::of_this_process();
    let mut trimmer = Trimmer::default();
    let mut wait = Duration::ZERO;
    loop {
        let stopped = stop.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = stop.told.wait_timeout_while(stopped, wait, |stop| !*stop);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let Some(hot) = hot.upgrade() else { return };
        let (taken, now) = (hot.slab_bytes(), clock.monotone());
        wait = LOOK_MAX;
        if let Some(room) = system_memory.room(taken) {
            wait = share.look(room, taken, now);
            hot.keep_within(share.ceiling);
        }
        hot.trim_heap(&mut trimmer, now);
        if let Some(uncounted) = &mut uncounted {
            hot.count_in(uncounted, now);
        }
    }
}

/// Limit for the hot objects.
#[derive(Debug)]
struct Share {
    limit: u64,
    ceiling: u64,
    looked: Duration,
    /// Headroom and bytes in the slabs of hot objects at the last look.
    before: Option<(Headroom, u64)>,
    /// Time at which memory was last given back.
    gave: Option<Duration>,
}

impl Share {
    fn all(limit: u64) -> Self {
        Self {
            limit,
            ceiling: limit,
            looked: Duration::ZERO,
            before: None,
            gave: None,
        }
    }

    /// Sets the ceiling from the `room` found `now`, when the slabs of hot objects take `taken`
    /// bytes. Returns the time until the next look.
    fn look(&mut self, room: Headroom, taken: u64, now: Duration) -> Duration {
        let since = now.saturating_sub(self.looked);
        self.looked = now;
        let before = self.before.replace((room, taken));
        let coming = before.map_or(0, |before| coming(before, (room, taken), since));
        let left = room.to_stay.saturating_sub(coming);
        if left < 0 {
            if !self.is_recent(now) {
                tracing::info!(hot = taken, "memory is short: hot objects were dropped");
            }
            self.gave = Some(now);
            self.ceiling = taken.saturating_sub(left.unsigned_abs());
            return LOOK_MIN;
        }
        let grown = if self.is_recent(now) {
            self.ceiling
        } else {
            self.ceiling.saturating_add(growth(self.limit, since))
        };
        let most = taken.saturating_add(room.to_grow.max(0).unsigned_abs());
        // Hot objects keep the memory that they have taken already.
        self.ceiling = grown.min(most).min(self.limit);
        let to_mark = u128::from(room.to_stay.unsigned_abs()) * 1_000_000 / u128::from(FASTEST);
        Duration::from_micros(u64::try_from(to_mark).unwrap_or(u64::MAX)).clamp(LOOK_MIN, LOOK_MAX)
    }

    /// Returns true if memory was given back less than [`CALM`] ago.
    fn is_recent(&self, now: Duration) -> bool {
        self.gave
            .is_some_and(|gave| now.saturating_sub(gave) < CALM)
    }
}

/// Bytes that other processes will take in the next `AHEAD`, if they continue at the rate between
/// two looks that are `since` apart.
fn coming((before, had): (Headroom, u64), (room, taken): (Headroom, u64), since: Duration) -> i64 {
    let lost = i128::from(before.to_stay) - i128::from(room.to_stay);
    let by_others = lost - (i128::from(taken) - i128::from(had));
    let time = i128::try_from(since.max(LOOK_MIN).as_micros()).unwrap_or(i128::MAX);
    let ahead = i128::try_from(AHEAD.as_micros()).unwrap_or(0);
    i64::try_from(by_others.max(0) * ahead / time).unwrap_or(i64::MAX)
}

/// Bytes by which hot objects with a limit of `limit` bytes grow in `time`.
fn growth(limit: u64, time: Duration) -> u64 {
    let all = u128::from(limit) * time.as_micros() / GROW_TIME.as_micros();
    u64::try_from(all).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(to_stay_mib: i64, to_grow_mib: i64) -> Headroom {
        let mib = i64::try_from(MIB).unwrap();
        Headroom {
            to_stay: to_stay_mib * mib,
            to_grow: to_grow_mib * mib,
        }
    }

    #[test]
    fn where_there_is_room_there_is_no_ceiling_and_hardly_a_look() {
        let mut share = Share::all(100 * MIB);
        let wait = share.look(room(20_000, 15_000), 0, Duration::ZERO);
        assert_eq!((share.ceiling, wait), (100 * MIB, LOOK_MAX));
    }

    #[test]
    fn what_is_too_much_is_given_back_and_taken_again_when_it_is_calm() {
        let mut share = Share::all(100 * MIB);
        let at = Duration::from_secs;
        let wait = share.look(room(-30, -60), 90 * MIB, at(1));
        assert_eq!((share.ceiling, wait), (60 * MIB, LOOK_MIN));
        // No growth at once, though there is room again.
        share.look(room(300, 200), 60 * MIB, at(2));
        assert_eq!(share.ceiling, 60 * MIB);
        share.look(room(300, 200), 60 * MIB, at(4));
        assert_eq!(share.ceiling, 80 * MIB);
        share.look(room(300, 200), 80 * MIB, at(30));
        assert_eq!(share.ceiling, 100 * MIB);
    }

    #[test]
    fn between_the_two_marks_what_is_taken_stays_and_no_more_comes() {
        let mut share = Share::all(100 * MIB);
        share.look(room(10, -20), 50 * MIB, Duration::from_secs(1));
        assert_eq!(share.ceiling, 50 * MIB);
        share.look(room(10, 5), 50 * MIB, Duration::from_secs(60));
        assert_eq!(share.ceiling, 55 * MIB);
    }

    #[test]
    fn the_nearer_the_mark_the_sooner_the_next_look() {
        let mut share = Share::all(100 * MIB);
        let wait = share.look(room(400, 300), 0, Duration::ZERO);
        assert_eq!(wait.as_millis(), 97);
        assert_eq!(share.look(room(1, 0), 0, Duration::ZERO), LOOK_MIN);
    }

    #[test]
    fn what_others_are_about_to_take_is_given_back_ahead() {
        let at = Duration::from_millis;
        let mut share = Share::all(100 * MIB);
        share.look(room(60, 30), 90 * MIB, at(1000));
        // 10 MiB in 10 ms: 100 more until it would be too late, and 50 are left.
        share.look(room(50, 20), 90 * MIB, at(1010));
        assert_eq!(share.ceiling, 40 * MIB);
        // Memory that was given back was not taken by other processes.
        let mut share = Share::all(100 * MIB);
        share.look(room(10, 5), 40 * MIB, at(1000));
        share.look(room(5, 0), 45 * MIB, at(1010));
        assert_eq!(share.ceiling, 45 * MIB);
    }

    #[test]
    fn more_than_all_can_be_asked_back() {
        let mut share = Share::all(100 * MIB);
        share.look(room(-300, -300), 90 * MIB, Duration::from_secs(1));
        assert_eq!(share.ceiling, 0);
    }
}
