//! Makes the allocator give freed memory back to the system.
//!
//! Called by `pressure`. After a burst of pending writes glibc keeps all freed memory, because
//! something small and alive lies behind it: 280 of 400 MiB, which no budget knows of.
//!
//! Cost: a walk over the free lists, some milliseconds; so only after much was freed, and seldom.
#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator is asked by a call of C")
)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// At most so often.
const TRIM_TIME: Duration = Duration::from_secs(1);
/// When so much of what the heap may hold was freed, in 1/100.
const FREED_SHARE: u64 = 5;

/// What the heap has of the system, as far as the budget tells: the most that was in use since
/// freed memory was given back last.
#[derive(Debug, Default)]
pub(super) struct HeapHigh(AtomicU64);

impl HeapHigh {
    /// How much was freed and not given back, bytes, when `used` bytes of at most `limit` are in
    /// use; 0 if it is not worth giving back. Until then the memory is no one else's.
    pub(super) fn freed(&self, used: u64, limit: u64) -> u64 {
        let high = self.0.fetch_max(used, Relaxed).max(used);
        Some(high - used)
            .filter(|freed| *freed >= limit / 100 * FREED_SHARE)
            .unwrap_or(0)
    }
}

/// Gives freed memory back, and remembers when.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    gave: Option<Duration>,
}

impl Trimmer {
    /// Gives back what was freed if it is worth it `now`, when `used` bytes of at most `limit` are
    /// in use.
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

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: takes no pointer and may be called at any time by any thread; it gives back whole
    // pages that lie within freed pieces and touches nothing else.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Others give back by themselves, or cannot be asked.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

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

    /// Whether the kernel has a page for this address, of our own memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn is_resident(address: usize) -> bool {
        let mut resident = 0_u8;
        // SAFETY: looks at no memory but `resident`, which has a byte for the one page; of an
        // address where there is nothing it says so.
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
        // The memory of all tests together says nothing: tests begin and end meanwhile.
        let middles: Vec<usize> = pieces
            .iter()
            .map(|piece| piece.as_ptr().addr() + 30_000)
            .collect();
        let resident = || middles.iter().filter(|it| is_resident(**it)).count();
        assert_eq!(resident(), 5_000);
        pieces.retain(|_| false);
        trim();
        // Others may have been given some of it.
        assert!(resident() < 2_500, "{}", resident());
        assert_eq!(between.len(), 5_000);
    }
}
