//! Run lengths in fewer than 8 bits, for entries that have no room for 8.
//!
//! 3 exponent bits above the mantissa bits: exact while the mantissa and one more bit can hold the
//! length, then rounded up. A run that was rounded once does not change when it is rounded again,
//! so checkpoints never make it longer. If the length is too long, a read fetches more bytes than
//! needed; it has no other effect.

/// Decodes `code` to a run length, as a `format::run_code`.
pub(super) fn lengthen(code: u8, mantissa_bits: u32) -> u8 {
    let (exponent, mantissa) = (code >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
    if exponent == 0 {
        return mantissa;
    }
    let run = u32::from(mantissa | 1 << mantissa_bits) << (exponent - 1);
    u8::try_from(run).unwrap_or(u8::MAX)
}

/// The code of the shortest run length that is at least `run`.
pub(super) fn shorten(run: u8, mantissa_bits: u32) -> u8 {
    let first = 1 << mantissa_bits;
    let mut shift = (8 - run.leading_zeros()).saturating_sub(mantissa_bits + 1);
    let mut mantissa = u32::from(run).div_ceil(1 << shift);
    if mantissa == 2 * first {
        (shift, mantissa) = (shift + 1, first);
    }
    let code = match mantissa.checked_sub(first) {
        Some(rest) => (shift + 1) << mantissa_bits | rest,
        None => mantissa,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_that_is_not_below_is_told() {
        for mantissa_bits in [2, 3] {
            let codes = 1_u16 << (mantissa_bits + 3);
            let exact = 2 << mantissa_bits;
            for run in 0..=u8::MAX {
                let code = shorten(run, mantissa_bits);
                let told = lengthen(code, mantissa_bits);
                assert!(u16::from(code) < codes && told >= run, "{told} for {run}");
                assert!(run > exact || told == run, "{told} for {run}");
                let below = code.checked_sub(1).map(|it| lengthen(it, mantissa_bits));
                assert!(below.is_none_or(|below| below < run), "{told} for {run}");
                assert_eq!(shorten(told, mantissa_bits), code);
            }
        }
    }
}
