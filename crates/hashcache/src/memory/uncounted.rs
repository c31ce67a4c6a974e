//! Process memory that no reservation counts: memory of the program itself, and free pieces of the
//! heap between pieces that are in use.
//!
//! Called by `pressure` in a process that is a cache and nothing else ([`Config::whole_process`]).
//! This module sets the memory that it finds aside in the budget, so that hot objects leave room
//! for it.
//!
//! Invariants: only memory that was found at several looks counts, because the heap gives freed
//! memory back within a second ([`HeapHigh`] covers that time). At most a quarter of the budget is
//! set aside, and never so much that the cache could not work: a memory leak must not take the
//! whole budget. The part grows slowly, so that an error of one look evicts few hot objects.
//! Cost: one read of a file in `/proc` twice a second, some 10 µs; a trim of the heap before the
//! part grows, at most once in ten seconds.
//!
//! [`Config::whole_process`]: crate::Config::whole_process
//! [`HeapHigh`]: super::heap::HeapHigh

use std::fs::File;
use std::time::Duration;

use super::budget::Budget;
use super::heap::trim;
use super::system_memory::{read, value};

const LOOK_TIME: Duration = Duration::from_millis(500);
/// Number of looks that must agree.
const LOOKS: usize = 4;
/// At most 1/`PART_MAX` of the budget is set aside.
const PART_MAX: u64 = 4;
/// At each look at most 1/`STEP_PART` of the budget more is set aside.
const STEP_PART: u64 = 64;
/// Less than 1/`WORTH_PART` of the budget is not worth a trim.
const WORTH_PART: u64 = 4 * STEP_PART;
/// Code without reservations frees memory too (reloaded lists), so a trim may find much. This is
/// the least time between two such trims.
const TRIM_TIME: Duration = Duration::from_secs(10);

/// The memory of a process that is a cache, as the cache plans it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Memory outside the budget that the cache has for its whole life (index, batches), bytes.
    pub(crate) fixed_bytes: u64,
    /// The cache needs this part of the budget to work, bytes.
    pub(crate) content_bytes_min: u64,
}

/// See the module's head.
pub(super) struct Uncounted {
    status: Option<File>,
    memory: ProcessMemory,
    /// The share for writes, two thirds of the budget; it shrinks with the budget.
    write_budget: Budget,
    looked: Option<Duration>,
    trimmed: Option<Duration>,
    /// Uncounted bytes of the latest looks, the newest last.
    found: [u64; LOOKS],
}

impl Uncounted {
    /// Watches this process.
    pub(super) fn of_this_process(memory: ProcessMemory, write_budget: Budget) -> Self {
        Self {
            status: File::open("/proc/self/status").ok(),
            memory,
            write_budget,
            looked: None,
            trimmed: None,
            found: [0; LOOKS],
        }
    }

    /// Looks `now` if it is time, and sets the uncounted memory aside in `budget`.
    pub(super) fn look(&mut self, budget: &Budget, now: Duration) {
        let is_recent = |looked| now.saturating_sub(looked) < LOOK_TIME;
        if self.looked.is_some_and(is_recent) {
            return;
        }
        self.looked = Some(now);
        let text = self.status.as_ref().and_then(read);
        // The memory file of the slabs is mapped, so its pages are `RssShmem`.
        let resident = text.and_then(|text| {
            let kib = value(&text, "RssAnon:")? + value(&text, "RssShmem:")?;
            Some(kib.saturating_mul(1024))
        });
        if let Some(resident) = resident {
            self.note(budget, resident, now);
            self.write_budget.set_aside(budget.aside() / 3 * 2);
        }
    }

    fn note(&mut self, budget: &Budget, resident: u64, now: Duration) {
        let counted = self.memory.fixed_bytes + budget.used();
        let spare = budget.limit().saturating_sub(self.memory.content_bytes_min);
        let part_max = (budget.limit() / PART_MAX).min(spare);
        self.found.rotate_left(1);
        self.found[LOOKS - 1] = resident.saturating_sub(counted).min(part_max);
        let (least, most) = self
            .found
            .iter()
            .fold((u64::MAX, 0), |(least, most), found| {
                (least.min(*found), most.max(*found))
            });
        let before = budget.aside();
        if before > most {
            budget.set_aside(most);
        } else if before + budget.limit() / WORTH_PART < least {
            let is_recent = |trimmed| now.saturating_sub(trimmed) < TRIM_TIME;
            if self.trimmed.is_some_and(is_recent) {
                budget.set_aside(least.min(before + budget.limit() / STEP_PART));
            } else {
                self.trimmed = Some(now);
                self.found = [before; LOOKS];
                trim();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MEMORY: ProcessMemory = ProcessMemory {
        fixed_bytes: 8 * MIB,
        content_bytes_min: 4 * MIB,
    };

    /// Bytes set aside after looks that found so many MiB in the process, each half a second later.
    fn aside<const N: usize>(
        budget: &Budget,
        uncounted: &mut Uncounted,
        looks: [u64; N],
    ) -> [u64; N] {
        let start = uncounted.looked.unwrap_or_default();
        let mut time = start;
        looks.map(|mib| {
            time += LOOK_TIME;
            uncounted.looked = Some(time);
            uncounted.note(budget, mib * MIB, time);
            budget.aside() / MIB
        })
    }

    #[test]
    fn what_several_looks_find_is_set_aside_in_steps_and_no_more() {
        let budget = Budget::new(64 * MIB);
        let _held = budget.reserve(20 * MIB).unwrap();
        let mut uncounted = Uncounted::of_this_process(MEMORY, Budget::new(0));
        // Freed memory that the heap keeps for a moment; then the first trim.
        let first = aside(&budget, &mut uncounted, [60, 31, 30, 32, 30, 30]);
        assert_eq!(first, [0; 6]);
        let grown = aside(&budget, &mut uncounted, [31; 6]);
        assert_eq!(grown, [0, 1, 2, 3, 3, 3]);
        let less = aside(
            &budget,
            &mut uncounted,
            [29, 29, 29, 29, 30, 10, 10, 10, 10],
        );
        assert_eq!(less, [3, 3, 3, 1, 1, 1, 1, 1, 0]);
        // Never more than a quarter.
        let most = aside(&budget, &mut uncounted, [90; 40]);
        assert_eq!(most[39], 16);
        assert_eq!(budget.used(), 20 * MIB);
    }

    #[test]
    fn the_memory_that_the_cache_needs_stays() {
        let budget = Budget::new(5 * MIB);
        let mut uncounted = Uncounted::of_this_process(MEMORY, Budget::new(0));
        let most = aside(&budget, &mut uncounted, [90; 60]);
        assert_eq!((most[59], budget.reservable()), (1, 4 * MIB));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn looks_are_twice_a_second_and_see_this_process() {
        let budget = Budget::new(64 * MIB);
        let memory = ProcessMemory {
            fixed_bytes: 0,
            ..MEMORY
        };
        let write_budget = Budget::new(42 * MIB);
        let mut uncounted = Uncounted::of_this_process(memory, write_budget.clone());
        uncounted.trimmed = Some(Duration::ZERO);
        for millis in [0, 100, 499, 500, 999, 1_000, 1_500] {
            uncounted.look(&budget, Duration::from_millis(millis));
            assert_eq!(budget.aside() > 0, millis == 1_500, "{millis}");
            assert_eq!(write_budget.aside(), budget.aside() / 3 * 2);
        }
    }
}
