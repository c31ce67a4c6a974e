//! Best sizes for blocks and sets: the paper's Tables 5 and 6, computed from measurements.
//!
//! Invariant: the results are powers of two that a store can be created with.
//! Place in the paper: section 4, "parameter selection".

/// Share of objects up to a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeShare {
    /// The size, bytes.
    pub bytes: u32,
    /// Share of all objects, 0 to 1.
    pub share: f64,
}

/// Read speed for a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadCost {
    /// The size, bytes.
    pub bytes: u32,
    /// Random reads of this size per second.
    pub reads_per_s: f64,
}

/// Largest cost for a set read, relative to the smallest read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// 1.10: on a spinning disk a short transfer is small compared with a seek.
    Spinning,
    /// 1.25: flash has no seek that hides the transfer.
    Flash,
}

impl Tolerance {
    /// The tolerance for a device with this random read rate.
    pub fn from_reads_per_s(reads_per_s: f64) -> Self {
        if reads_per_s < SPINNING_READS_MAX {
            Self::Spinning
        } else {
            Self::Flash
        }
    }

    fn factor(self) -> f64 {
        match self {
            Self::Spinning => 1.10,
            Self::Flash => 1.25,
        }
    }
}

/// No spinning disk makes more random reads per second, no flash device fewer.
const SPINNING_READS_MAX: f64 = 500.0;
/// Smallest and largest block in a store; a set has at least [`WAYS_MIN`] blocks.
const BLOCK_BYTES_MIN: u32 = 8 << 10;
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// With fewer blocks in a set, names in the same set evict each other too often.
const WAYS_MIN: u32 = 8;
/// Share of objects that fit whole into a block.
const WHOLE_SHARE: f64 = 0.75;
/// The paper's choice, used without a measurement.
const SET_BYTES: u32 = 64 << 10;

/// The set size: the largest power of two that is read nearly as fast as the smallest measured
/// size. 64 KiB, the paper's choice, without measurements.
pub fn set_bytes(costs: &[ReadCost], tolerance: Tolerance) -> u32 {
    let Some(smallest) = costs.iter().min_by_key(|cost| cost.bytes) else {
        return SET_BYTES;
    };
    let slowest = smallest.reads_per_s / tolerance.factor();
    let mut sorted = costs.to_vec();
    sorted.sort_unstable_by_key(|cost| cost.bytes);
    // Stop at the first size that is too slow: a larger size that is fast again is noise.
    let cheap = sorted.iter().take_while(|cost| cost.reads_per_s >= slowest);
    let largest = cheap
        .map(|cost| cost.bytes)
        .filter(|bytes| bytes.is_power_of_two());
    largest
        .last()
        .unwrap_or(SET_BYTES)
        .max(WAYS_MIN * BLOCK_BYTES_MIN)
}

/// The block size for sets with `set_bytes`: the power of two nearest to the size that three
/// quarters of all objects do not exceed, but small enough for eight blocks in a set.
///
/// `shares` is a cumulative distribution ordered by size; between its points sizes are assumed to
/// grow evenly with the logarithm. 8 KiB if it is empty.
pub fn block_bytes(shares: &[SizeShare], set_bytes: u32) -> u32 {
    let most = (set_bytes / WAYS_MIN).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
    let Some(bits) = percentile_log2(shares) else {
        return BLOCK_BYTES_MIN;
    };
    let fits = |block: u32| f64::from(block).log2() + 0.5 < bits;
    let mut block = BLOCK_BYTES_MIN;
    while block < most && fits(block) {
        block *= 2;
    }
    block.min(most)
}

/// Logarithm of the size that a share [`WHOLE_SHARE`] of all objects does not exceed.
fn percentile_log2(shares: &[SizeShare]) -> Option<f64> {
    let log2 = |at: &SizeShare| f64::from(at.bytes.max(1)).log2();
    let above = shares.iter().position(|at| at.share >= WHOLE_SHARE);
    match above {
        None => shares.last().map(log2),
        Some(0) => shares.first().map(log2),
        Some(n) => {
            let (low, high) = (&shares[n - 1], &shares[n]);
            let part = (WHOLE_SHARE - low.share) / (high.share - low.share);
            Some(log2(low) + part * (log2(high) - log2(low)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;

    fn shares(points: &[(u32, f64)]) -> Vec<SizeShare> {
        let share = |&(bytes, share): &(u32, f64)| SizeShare { bytes, share };
        points.iter().map(share).collect()
    }

    /// Seek, half a turn, transfer: what Table 6 measures on disks.
    fn disk(seek_ms: f64, bytes_per_s: f64) -> Vec<ReadCost> {
        (2..10)
            .map(|n| {
                let bytes = KIB << n;
                let seconds = seek_ms / 1e3 + f64::from(bytes) / bytes_per_s;
                ReadCost {
                    bytes,
                    reads_per_s: 1.0 / seconds,
                }
            })
            .collect()
    }

    #[test]
    fn disks_of_the_papers_time_get_sets_of_64_kib() {
        // 65 to 75 seeks a second and 50 to 80 MB/s in a row: rates fall sharply beyond 64 KiB.
        for (seek_ms, bytes_per_s) in [(15.3, 50e6), (14.3, 60e6), (13.3, 80e6)] {
            let costs = disk(seek_ms, bytes_per_s);
            assert_eq!(set_bytes(&costs, Tolerance::Spinning), 64 * KIB);
        }
    }

    #[test]
    fn a_disk_of_today_gets_larger_sets() {
        assert_eq!(
            set_bytes(&disk(13.0, 200e6), Tolerance::Spinning),
            256 * KIB
        );
    }

    #[test]
    fn a_size_that_is_too_slow_ends_the_search() {
        let mut costs = disk(14.3, 60e6);
        costs[3].reads_per_s = 1.0;
        assert_eq!(set_bytes(&costs, Tolerance::Spinning), 64 * KIB);
        costs.retain(|cost| cost.bytes <= 32 * KIB);
        assert_eq!(set_bytes(&costs, Tolerance::Spinning), 64 * KIB);
        assert_eq!(set_bytes(&[], Tolerance::Spinning), 64 * KIB);
    }

    #[test]
    fn objects_of_the_papers_cache_get_blocks_of_8_kib_and_sets_of_8() {
        // Table 5 as the text tells it: nearly 75 % below 8 KB, 87.2 % below 16 KB.
        let codeen = shares(&[(8 * KIB, 0.745), (16 * KIB, 0.872)]);
        let block = block_bytes(&codeen, 64 * KIB);
        assert_eq!((block, 64 * KIB / block), (8 * KIB, 8));
        // With our heads 73 % of web records.
        let ours = shares(&[(4 * KIB, 0.55), (8 * KIB, 0.73), (16 * KIB, 0.86)]);
        assert_eq!(block_bytes(&ours, 64 * KIB), 8 * KIB);
    }

    #[test]
    fn larger_objects_get_larger_blocks_as_long_as_eight_fit_a_set() {
        let large = shares(&[(8 * KIB, 0.2), (64 * KIB, 0.8)]);
        assert_eq!(block_bytes(&large, 1024 * KIB), 64 * KIB);
        assert_eq!(block_bytes(&large, 256 * KIB), 32 * KIB);
        assert_eq!(block_bytes(&large, 64 * KIB), 8 * KIB);
    }

    #[test]
    fn a_distribution_that_says_nothing_gets_the_smallest_block() {
        assert_eq!(block_bytes(&[], 64 * KIB), 8 * KIB);
        assert_eq!(block_bytes(&shares(&[(512, 1.0)]), 64 * KIB), 8 * KIB);
    }

    #[test]
    fn what_spins_is_told_from_flash_by_its_reads() {
        assert_eq!(Tolerance::from_reads_per_s(160.0), Tolerance::Spinning);
        assert_eq!(Tolerance::from_reads_per_s(8_000.0), Tolerance::Flash);
    }
}
