//! Load shedding: skips a dictionary that costs more time on the disk than it saves on the link.
//!
//! Both sides decide before they read a dictionary: the child before it offers a dictionary, the
//! parent before it names one. The side with the busy disk uses no dictionary, so no message is
//! needed (Wanax, section 3.4).
//!
//! Invariant: pure functions; the caller measures.
//! Cost: none.

use std::time::Duration;

/// The disk and the link as the caller measured them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Mean time for which a read occupies the disk.
    pub(crate) read_time: Duration,
    /// Link rate while the link is busy.
    pub(crate) link_bytes_per_second: u64,
}

/// Returns true if reading a dictionary takes less time than sending the bytes that it saves.
///
/// `reads` is how many reads are needed for the dictionary ([`reads`]); `saved_bytes` is the
/// expected saving against zstd without a dictionary ([`expected_saving`]).
pub(crate) fn is_worth_reading(load: Load, reads: u64, saved_bytes: u64) -> bool {
    let rate = load.link_bytes_per_second;
    if rate == 0 {
        // Nothing is measured yet: assume a slow link, because this code is made for slow links.
        return true;
    }
    let on_disk = load.read_time.as_nanos().saturating_mul(u128::from(reads));
    let on_link = u128::from(saved_bytes) * 1_000_000_000 / u128::from(rate);
    on_disk <= on_link
}

/// Engine reads for this many object bytes: one per 256 KiB span.
pub(crate) fn reads(dictionary_bytes: u64) -> u64 {
    dictionary_bytes.div_ceil(SPAN_BYTES)
}

/// Expected saving by a dictionary for `content_bytes`, against zstd without a dictionary, until
/// something better is known: 19 % for text, measured over the release sets.
pub fn expected_saving(content_bytes: u64) -> u64 {
    content_bytes / 100 * 19
}

const SPAN_BYTES: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn load(milliseconds: u64, megabits: u64) -> Load {
        Load {
            read_time: Duration::from_millis(milliseconds),
            link_bytes_per_second: megabits * MB / 8,
        }
    }

    /// Whether 1 MB of dictionary is read for 1 MB of content.
    fn is_read(load: Load) -> bool {
        is_worth_reading(load, reads(MB), expected_saving(MB))
    }

    #[test]
    fn an_idle_disk_of_a_hundred_reads_a_second_helps_up_to_38_megabits() {
        assert!(is_read(load(10, 1)) && is_read(load(10, 37)));
        assert!(!is_read(load(10, 39)) && !is_read(load(10, 1_000)));
    }

    #[test]
    fn the_slower_the_disk_the_slower_the_link_has_to_be() {
        assert!(is_read(load(100, 3)) && !is_read(load(100, 4)));
        assert!(is_read(load(1_000, 0)), "nothing is known of the link");
    }

    #[test]
    fn no_number_overflows() {
        let most = Load {
            read_time: Duration::MAX,
            link_bytes_per_second: u64::MAX,
        };
        assert!(!is_worth_reading(most, u64::MAX, u64::MAX));
        let least = Load {
            read_time: Duration::ZERO,
            link_bytes_per_second: 1,
        };
        assert!(is_worth_reading(least, u64::MAX, 0));
    }
}
