//! Huge pages (2 MiB) as buffers for long reads. A disk command takes a limited number of memory
//! segments, often 128. A read of more than 512 KiB into small pages, which are not contiguous,
//! therefore takes two commands or more.
//!
//! Called by `disk/medium` for runs of page groups. The records are copied out of the buffer at
//! once, but with `log-lru` up to 16 rows are read meanwhile.
//!
//! Invariants: buffers in use take at most 1/8 of the budget, for all devices in a store together,
//! and buffers that are kept for the next read at most 1/32. All are reserved. Their old content is
//! not wiped: a buffer leaves the engine only after a read has filled it.
//! Cost: one short lock a buffer. The first use of a new buffer may wait until the kernel has
//! assembled 2 MiB.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::budget::Budget;
use super::buffer::{AlignedBuf, FreeBuffers};
use super::mapping::{HUGE_PAGE, Mapping};

/// Buffers in use are at most this share of the budget. On a slow disk many threads read at once,
/// and with 1/32 too few threads had a buffer (docs/decisions/page-groups.md).
const USED_SHARE: u64 = 8;
/// Unused buffers are at most this share of the budget.
const KEPT_SHARE: u64 = 32;
/// Reads of at most this length take one command in any case.
const SHORTEST: usize = 512 << 10;

/// See the module's head.
pub(crate) struct HugeBuffers {
    free: Arc<FreeBuffers>,
    used_max: usize,
}

impl HugeBuffers {
    /// Buffers from `budget`, which `pools` pools share.
    pub(crate) fn new(budget: &Budget, pools: NonZeroU64) -> Self {
        let most = |share: u64| {
            let most = budget.limit() / share / pools / HUGE_PAGE as u64;
            usize::try_from(most).unwrap_or(0)
        };
        Self {
            free: FreeBuffers::new(most(KEPT_SHARE)),
            used_max: most(USED_SHARE),
        }
    }

    /// A buffer of `len` bytes. `None` if `len` is too short or too long, if enough buffers are in
    /// use, or if there is no memory for a new buffer.
    pub(crate) fn take(&self, len: usize, budget: &Budget) -> Option<AlignedBuf> {
        if len <= SHORTEST || len > HUGE_PAGE {
            return None;
        }
        // Count the buffer before reserving the memory: making room may take long, and other
        // threads call this function meanwhile.
        let home = Arc::clone(&self.free);
        if self.used() > self.used_max {
            return None;
        }
        let (mapping, reservation) = match self.free.take() {
            Some(kept) => kept,
            None => {
                let reservation = budget.reserve(HUGE_PAGE as u64)?;
                (Mapping::huge_page().ok()?, reservation)
            }
        };
        Some(AlignedBuf::lent(mapping, len, reservation, home))
    }

    /// Number of buffers in use or being made. Each holds a handle to `free`.
    fn used(&self) -> usize {
        Arc::strong_count(&self.free) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const LEN: usize = SHORTEST + 1;

    #[test]
    fn a_buffer_is_aligned_as_a_huge_page_and_used_again() {
        let budget = Budget::new(64 << 20);
        let buffers = HugeBuffers::new(&budget, NonZeroU64::MIN);
        let take = |len| buffers.take(len, &budget);
        let mut first = take(LEN).unwrap();
        assert_eq!(first.as_ptr().align_offset(HUGE_PAGE), 0);
        assert_eq!(first.len(), LEN);
        first.fill(1);
        let at = first.as_ptr();
        let others: Vec<_> = (0..3).map(|_| take(LEN).unwrap()).collect();
        assert_eq!(budget.used(), budget.limit() / USED_SHARE);
        assert!(take(LEN).is_none());
        drop((first, others));
        assert_eq!(budget.used(), budget.limit() / KEPT_SHARE);
        let again = take(HUGE_PAGE).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, HUGE_PAGE));
        drop((again, buffers));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn callers_at_the_same_time_have_no_more_buffers_than_the_share() {
        let budget = Budget::new(64 << 20);
        let buffers = HugeBuffers::new(&budget, NonZeroU64::MIN);
        for _ in 0..100 {
            let together = Barrier::new(8);
            let take = || {
                together.wait();
                let buffer = buffers.take(LEN, &budget);
                together.wait();
                buffer.is_some()
            };
            let taken: usize = std::thread::scope(|scope| {
                let callers: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
                callers
                    .into_iter()
                    .map(|it| usize::from(it.join().unwrap()))
                    .sum()
            });
            assert!(taken <= buffers.used_max, "{taken}");
        }
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn other_lengths_and_small_or_full_budgets_have_none() {
        let budget = Budget::new(64 << 20);
        let buffers = HugeBuffers::new(&budget, NonZeroU64::MIN);
        assert!(buffers.take(SHORTEST, &budget).is_none());
        assert!(buffers.take(HUGE_PAGE + 1, &budget).is_none());
        let all = budget.reserve(budget.limit()).unwrap();
        assert!(buffers.take(LEN, &budget).is_none());
        drop(all);
        assert!(buffers.take(LEN, &budget).is_some());
        let five = NonZeroU64::new(5).unwrap();
        let of_five_devices = HugeBuffers::new(&budget, five);
        assert!(of_five_devices.take(LEN, &budget).is_none());
    }
}
