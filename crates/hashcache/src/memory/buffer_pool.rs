//! Buffers that are kept for the next read. A read from a fast device takes less time than the
//! kernel needs to map memory, to zero it, and to unmap it on all processors.
//!
//! Called by `disk/medium` for reads with the usual lengths; a read with any other length gets a
//! new mapping.
//!
//! Invariants: kept buffers stay reserved, and the kept buffers of a length are at most 1/32 of the
//! budget, for all devices in a store together. Their old content is not wiped: a buffer leaves the
//! engine only after a read has filled it.
//! Cost: one short lock a buffer. A mapping for each read costs 11 µs more processor time for reads
//! of 16 KiB, and a page fault for each 4 KiB.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::budget::{Budget, Reservation};
use super::buffer::{AlignedBuf, FreeBuffers};
use super::mapping::Mapping;

/// Maximum number of kept buffers for each length: as many reads as keep a fast device busy.
const KEPT_MAX: u64 = 32;
/// For each length, the kept buffers in all pools take at most 1/32 of the budget.
const SHARE: u64 = 32;

/// Pool of buffers in a few lengths.
pub(crate) struct BufferPool {
    lengths: Vec<OneLength>,
}

/// Buffers with the same length. They serve reads that fill more than a third of the buffer and for
/// which no shorter length is enough.
struct OneLength {
    bytes: usize,
    free: Arc<FreeBuffers>,
}

impl BufferPool {
    /// A pool for reads of up to each of the `lengths`, from `budget`, which `pools` pools share.
    pub(crate) fn new(
        lengths: impl IntoIterator<Item = usize>,
        budget: &Budget,
        pools: NonZeroU64,
    ) -> Self {
        let share = budget.limit() / SHARE / pools;
        let of_length = |bytes: usize| {
            let most = (share / bytes.max(1) as u64).min(KEPT_MAX);
            let free = FreeBuffers::new(usize::try_from(most).unwrap_or(0));
            OneLength { bytes, free }
        };
        let lengths = lengths.into_iter().map(of_length).collect();
        Self { lengths }
    }

    /// Bytes to reserve for a buffer of `len` bytes.
    pub(crate) fn bytes_for(&self, len: usize) -> u64 {
        self.fitting(len).map_or(len, |fitting| fitting.bytes) as u64
    }

    /// The buffers for a read of `len` bytes, if that is a usual length.
    fn fitting(&self, len: usize) -> Option<&OneLength> {
        let fits = |it: &&OneLength| len <= it.bytes && len > it.bytes / 3;
        self.lengths.iter().find(fits)
    }

    /// Takes a used buffer from the pool, if there is one for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Option<AlignedBuf> {
        let free = &self.fitting(len)?.free;
        let (mapping, reservation) = free.take()?;
        let home = Arc::clone(free);
        Some(AlignedBuf::lent(mapping, len, reservation, home))
    }

    /// A new buffer of `len` bytes. The caller has reserved [`BufferPool::bytes_for`] bytes for it.
    pub(crate) fn make(&self, len: usize, reservation: Reservation) -> AlignedBuf {
        if let Some(fitting) = self.fitting(len)
            && let Ok(mapping) = Mapping::anonymous(fitting.bytes)
        {
            let home = Arc::clone(&fitting.free);
            return AlignedBuf::lent(mapping, len, reservation, home);
        }
        AlignedBuf::reserved(len, reservation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 16 << 10;

    #[test]
    fn a_buffer_is_used_again_and_stays_on_the_books() {
        let budget = Budget::new(64 << 20);
        let pool = BufferPool::new([LEN], &budget, NonZeroU64::MIN);
        assert!(pool.take(LEN).is_none());
        let set_aside = |len| budget.reserve(pool.bytes_for(len)).unwrap();
        let first = pool.make(LEN, set_aside(LEN));
        let at = first.as_ptr();
        drop(first);
        assert_eq!(budget.used(), LEN as u64);
        let again = pool.take(LEN - 512).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, LEN - 512));
        assert_eq!(budget.used(), LEN as u64);
        assert!(pool.take(LEN).is_none());
    }

    #[test]
    fn other_lengths_are_not_kept_nor_is_more_than_a_share_of_the_budget() {
        let budget = Budget::new(SHARE * LEN as u64);
        let pool = BufferPool::new([LEN], &budget, NonZeroU64::MIN);
        for len in [512, LEN / 3, LEN + 1] {
            assert_eq!(pool.bytes_for(len), len as u64);
            let reservation = budget.reserve(len as u64).unwrap();
            drop(pool.make(len, reservation));
            assert_eq!(budget.used(), 0);
        }
        let make = |_| pool.make(LEN, budget.reserve(LEN as u64).unwrap());
        let two = NonZeroU64::new(2).unwrap();
        let half = BufferPool::new([LEN], &budget, two);
        drop(half.make(LEN, budget.reserve(LEN as u64).unwrap()));
        assert_eq!(budget.used(), 0);
        drop((0..3).map(make).collect::<Vec<_>>());
        assert_eq!(budget.used(), LEN as u64);
        drop(pool);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn each_length_has_buffers_of_its_own() {
        const LONG: usize = 80 << 10;
        let budget = Budget::new(64 << 20);
        let pool = BufferPool::new([LEN, LONG], &budget, NonZeroU64::MIN);
        for (len, bytes) in [
            (LEN, LEN),
            (LEN + 1, LEN + 1),
            (LONG / 3 + 1, LONG),
            (LONG, LONG),
        ] {
            assert_eq!(pool.bytes_for(len), bytes as u64);
        }
        let long = pool.make(66_048, budget.reserve(LONG as u64).unwrap());
        let at = long.as_ptr();
        drop(long);
        assert!(pool.take(LEN).is_none());
        let again = pool.take(LONG).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (at, LONG));
    }
}
