//! Process memory that no reservation counts: memory of the program itself, and free pieces of the
//! heap between pieces that are in use.
//!
//! Called by `pressure` in a process that is a cache and nothing else ([`Config::whole_process`]).
//! It reserves the memory that it finds, so that hot objects leave room for it.
//!
//! Invariants: only memory that was found at several looks counts, because the heap gives freed
//! memory back within a second ([`HeapHigh`] covers that time). At most a quarter of the budget is
//! reserved: a memory leak must not take the whole budget.
//! Cost: one read of a file in `/proc` twice a second, some 10 µs.
//!
//! [`Config::whole_process`]: crate::Config::whole_process
//! [`HeapHigh`]: super::heap::HeapHigh

use std::fs::File;
use std::time::Duration;

use super::budget::{Budget, Reservation};
use super::system_memory::{read, value};

const LOOK_TIME: Duration = Duration::from_millis(500);
/// Number of looks that must agree.
const LOOKS: usize = 4;
const PART_MAX: u64 = 4;

/// See the module's head.
pub(super) struct Uncounted {
    status: Option<File>,
    looked: Option<Duration>,
    /// Uncounted bytes of the latest looks, the newest last.
    found: [u64; LOOKS],
    set_aside: Option<Reservation>,
}

impl Uncounted {
    /// Watches this process.
    pub(super) fn of_this_process() -> Self {
        Self {
            status: File::open("/proc/self/status").ok(),
            looked: None,
            found: [0; LOOKS],
            set_aside: None,
        }
    }

    /// Looks `now` if it is time; `counted` are the bytes that `budget` counts in the heap.
    pub(super) fn look(&mut self, budget: &Budget, counted: u64, now: Duration) {
        let is_recent = |looked| now.saturating_sub(looked) < LOOK_TIME;
        if self.looked.is_some_and(is_recent) {
            return;
        }
        self.looked = Some(now);
        let text = self.status.as_ref().and_then(read);
        let heap = text.and_then(|text| value(&text, "RssAnon:"));
        if let Some(heap) = heap {
            self.note(budget, heap.saturating_mul(1024), counted);
        }
    }

    fn note(&mut self, budget: &Budget, heap: u64, counted: u64) {
        let before = self.bytes();
        let uncounted = heap.saturating_sub(counted.saturating_sub(before));
        self.found.rotate_left(1);
        self.found[LOOKS - 1] = uncounted.min(budget.limit() / PART_MAX);
        let (least, most) = self
            .found
            .iter()
            .fold((u64::MAX, 0), |(least, most), found| {
                (least.min(*found), most.max(*found))
            });
        if before < least {
            let more = budget.reserve(least - before);
            match (&mut self.set_aside, more) {
                (Some(set_aside), Some(more)) => set_aside.join(more),
                (set_aside, Some(more)) => *set_aside = Some(more),
                // All memory is in use; the next look tries again.
                (_, None) => {}
            }
        } else if let Some(set_aside) = &mut self.set_aside {
            drop(set_aside.split(before.saturating_sub(most)));
        }
    }

    fn bytes(&self) -> u64 {
        self.set_aside.as_ref().map_or(0, Reservation::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_several_looks_find_is_set_aside_and_no_more() {
        let budget = Budget::new(64 * MIB);
        let held = budget.reserve(20 * MIB).unwrap();
        let mut uncounted = Uncounted::of_this_process();
        // Freed memory that the heap keeps for a moment.
        let heap = |uncounted: &mut Uncounted, mib: u64| {
            uncounted.note(&budget, mib * MIB, budget.used());
            uncounted.bytes() / MIB
        };
        let looks = [60, 31, 30, 32, 30, 30, 24, 24, 24, 24, 10, 10, 10, 10];
        let set_aside = looks.map(|mib| heap(&mut uncounted, mib));
        assert_eq!(set_aside, [0, 0, 0, 10, 10, 10, 10, 10, 10, 4, 4, 4, 4, 0]);
        assert_eq!(budget.used(), held.bytes());
        // Never more than a quarter.
        let most = [90; 5].map(|mib| heap(&mut uncounted, mib));
        assert_eq!(most[4], 16);
        drop(uncounted);
        assert_eq!(budget.used(), held.bytes());
    }

    #[test]
    fn looks_are_twice_a_second_and_see_this_process() {
        let budget = Budget::new(64 * MIB);
        let mut uncounted = Uncounted::of_this_process();
        for millis in [0, 100, 499, 500, 999, 1_000, 1_500] {
            uncounted.look(&budget, budget.used(), Duration::from_millis(millis));
            assert_eq!(uncounted.bytes() > 0, millis == 1_500, "{millis}");
        }
    }
}
