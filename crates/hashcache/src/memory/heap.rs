//! The heap: has the allocator give back to the system what was freed.
//!
//! Called by `keeper`. Of a burst of pending writes glibc keeps all that is freed, because
//! something small that still lives lies behind it: 280 of 400 MiB, which no budget knows of.
//!
//! Cost: a walk over what is free, some milliseconds; so only after much was freed, and seldom.
#![expect(unsafe_code, reason = "the allocator is asked by a call of C")]

use std::time::Duration;

/// At most so often.
const TRIM_TIME: Duration = Duration::from_secs(1);
/// When so much of what the heap may hold was freed, in 1/100.
const FREED_SHARE: u64 = 5;

/// Notices when much was freed.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// Most that was in use since it was given back last, bytes.
    high: u64,
    gave: Option<Duration>,
}

impl Heap {
    /// Gives back what was freed if it is worth it `now`, when `used` bytes of at most `limit` are
    /// in use.
    pub(super) fn look(&mut self, used: u64, limit: u64, now: Duration) {
        if self.is_due(used, limit, now) {
            trim();
        }
    }

    fn is_due(&mut self, used: u64, limit: u64, now: Duration) -> bool {
        self.high = self.high.max(used);
        let recent = |gave| now.saturating_sub(gave) < TRIM_TIME;
        if self.high - used < limit / 100 * FREED_SHARE || self.gave.is_some_and(recent) {
            return false;
        }
        self.high = used;
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
        let mut heap = Heap::default();
        let at = Duration::from_millis;
        assert!(!heap.is_due(500, 1_000, at(0)));
        assert!(!heap.is_due(460, 1_000, at(100)));
        assert!(heap.is_due(450, 1_000, at(200)));
        assert!(!heap.is_due(300, 1_000, at(1_100)));
        assert!(heap.is_due(300, 1_000, at(1_200)));
        assert!(!heap.is_due(300, 1_000, at(9_000)));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_is_freed_between_pieces_that_live_goes_back_to_the_system() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let row = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kilobytes = row.unwrap().trim().trim_end_matches(" kB");
            kilobytes.parse::<u64>().unwrap() << 10
        };
        let before = resident();
        let mut pieces: Vec<Vec<u8>> = (0..5_000).map(|_| vec![1; 60_000]).collect();
        let between: Vec<Box<[u16; 64]>> = (0..5_000).map(|n| Box::new([n; 64])).collect();
        let filled = resident();
        // Other tests come and go meanwhile, but take less than that.
        assert!(filled > before + (200 << 20), "{before} {filled}");
        pieces.retain(|_| false);
        trim();
        let after = resident();
        assert!(after < before + (100 << 20), "{before} {filled} {after}");
        assert_eq!(between.len(), 5_000);
    }
}
