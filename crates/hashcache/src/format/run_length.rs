//! Run lengths in 8 bits, for the lists in the log and the entries in the index.
//!
//! A web page takes up to 2 MiB today, and most pages take much less. So lengths up to 512 KiB are
//! exact to 4 KiB, the block that a disk reads at once; longer lengths are exact to 12 KiB.

use super::IO_BLOCK;

/// The longest run that a code can express, bytes: 2,036 KiB.
pub(crate) const RUN_BYTES_MAX: usize = (EXACT + (u8::MAX as usize - EXACT) * STEP) * IO_BLOCK;

/// Up to this code, the code is the length in blocks; each further code adds [`STEP`] blocks.
const EXACT: usize = 128;
const STEP: usize = 3;

/// Encodes a run of `bytes` bytes: the shortest length that is at least `bytes`, or the longest
/// possible length.
pub(crate) fn run_code(bytes: usize) -> u8 {
    let blocks = bytes.div_ceil(IO_BLOCK);
    let code = match blocks.checked_sub(EXACT) {
        Some(more) => EXACT + more.div_ceil(STEP),
        None => blocks,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Decodes `code` to a length in bytes; 0: there is no run.
pub(crate) fn run_bytes(code: u8) -> u64 {
    let code = usize::from(code);
    let blocks = code.min(EXACT) + code.saturating_sub(EXACT) * STEP;
    (blocks * IO_BLOCK) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_tells_of_no_fewer_bytes_and_of_less_than_a_step_more() {
        assert_eq!((run_code(0), run_bytes(0)), (0, 0));
        assert_eq!((run_code(1), run_bytes(1)), (1, 4096));
        let ends = (1..=u8::MAX).map(|code| usize::try_from(run_bytes(code)).unwrap());
        for bytes in ends.flat_map(|end| [end - 1, end, end + 1]) {
            let told = usize::try_from(run_bytes(run_code(bytes))).unwrap();
            let step = if bytes <= EXACT * IO_BLOCK { 1 } else { STEP };
            if bytes <= RUN_BYTES_MAX {
                assert!((bytes..bytes + step * IO_BLOCK).contains(&told), "{bytes}");
            } else {
                assert_eq!(told, RUN_BYTES_MAX);
            }
        }
        assert_eq!(run_bytes(u8::MAX), 2036 << 10);
    }

    #[test]
    fn a_longer_run_has_no_smaller_code() {
        // Entries keep the larger of two codes.
        let codes: Vec<u8> = (0..RUN_BYTES_MAX / 512)
            .map(|n| run_code(n * 512))
            .collect();
        assert!(codes.is_sorted());
    }
}
