//! Makes the allocator give freed memory back to the kernel.
//!
//! Called by `pressure`. After a burst of pending writes glibc keeps all freed memory, because a
//! small live allocation is above it in the heap: 280 of 400 MiB, which no budget counts.
//!
//! Cost: a walk over the free lists, some milliseconds. Therefore it runs only after much was
//! freed, and seldom.
#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator is asked by a call of C")
)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Minimum time between two trims.
const TRIM_TIME: Duration = Duration::from_secs(1);
/// Share of the limit, in 1/100, that must have been freed before a trim.
const FREED_SHARE: u64 = 5;

/// Memory that the heap has from the kernel, estimated from the budget: the largest number of used
/// bytes since the last trim.
#[derive(Debug, Default)]
pub(super) struct HeapHigh(AtomicU64);

impl HeapHigh {
    /// Bytes that were freed but not given back, when `used` bytes of at most `limit` are in use; 0
    /// if a trim is not worthwhile. Until a trim, nothing outside the heap can use that memory.
    pub(super) fn freed(&self, used: u64, limit: u64) -> u64 {
        let high = self.0.fetch_max(used, Relaxed).max(used);
        Some(high - used)
            .filter(|freed| *freed >= limit / 100 * FREED_SHARE)
            .unwrap_or(0)
    }
}

/// Gives freed memory back, and records the time.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    gave: Option<Duration>,
}

impl Trimmer {
    /// Trims the heap if that is worthwhile `now`, when `used` bytes of at most `limit` are in use.
    pub(super) fn look(&mut self, high: &HeapHigh, used: u64, limit: u64, now: Duration) {
        if self.is_due(high, used, limit, now) {
            trim();
            high.0.store(used, Relaxed);
        }
    }

    fn is_due(&mut self, high: &HeapHigh, used: u64, limit: u64, now: Duration) -> bool {
        let is_recent = |gave| now.saturating_sub(gave) < TRIM_TIME;
        if high.freed(used, limit) == 0 || self.gave.is_some_and(is_recent) {
            return false;
        }
        self.gave = Some(now);
        true
    }
}

/// Gives the kernel whole pages inside freed pieces of the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn trim() {
    // SAFETY: takes no pointer and may be called at any time by any thread; it gives back whole
    // pages inside freed pieces and touches nothing else.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators give memory back by themselves, or have no such call.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_that_was_freed_is_given_back_and_not_too_often() {
        let (mut trimmer, high) = (Trimmer::default(), HeapHigh::default());
        let mut is_due = |used, at| {
            let is_due = trimmer.is_due(&high, used, 1_000, Duration::from_millis(at));
            if is_due {
                high.0.store(used, Relaxed);
            }
            is_due
        };
        assert!(!is_due(500, 0));
        assert!(!is_due(460, 100));
        assert!(is_due(450, 200));
        assert!(!is_due(300, 1_100));
        assert_eq!(high.freed(300, 1_000), 150);
        assert!(is_due(300, 1_200));
        assert_eq!(high.freed(300, 1_000), 0);
        assert!(!is_due(300, 9_000));
    }

    /// Returns true if the kernel has a page at this address of our own memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn is_resident(address: usize) -> bool {
        let mut resident = 0_u8;
        // SAFETY: looks at no memory but `resident`, which has a byte for the one page; for an
        // unmapped address it returns an error.
        let told = unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap();
            libc::mincore(
                (address & !(page - 1)) as *mut libc::c_void,
                page,
                &raw mut resident,
            )
        };
        told == 0 && resident & 1 == 1
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_is_freed_between_pieces_that_live_goes_back_to_the_system() {
        let mut pieces: Vec<Vec<u8>> = (0..5_000).map(|_| vec![1; 60_000]).collect();
        let between: Vec<Box<[u16; 64]>> = (0..5_000).map(|n| Box::new([n; 64])).collect();
        // The memory of the whole process is useless here, because other tests start and finish
        // meanwhile.
        let middles: Vec<usize> = pieces
            .iter()
            .map(|piece| piece.as_ptr().addr() + 30_000)
            .collect();
        let resident = || middles.iter().filter(|it| is_resident(**it)).count();
        assert_eq!(resident(), 5_000);
        pieces.retain(|_| false);
        trim();
        // Other tests may have received some of it.
        assert!(resident() < 2_500, "{}", resident());
        assert_eq!(between.len(), 5_000);
    }
}
