//! Random inputs by seed, and the seed of the one that failed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;

/// Runs `check` once for each seed below `count`; says which one failed.
pub(crate) fn for_each_seed(count: u64, check: impl Fn(&mut Rng)) {
    for seed in 0..count {
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&mut Rng::with_seed(seed))));
        if let Err(panic) = outcome {
            eprintln!("failed with seed {seed}");
            resume_unwind(panic);
        }
    }
}

/// Up to `longest` octets; none is 0.
pub(crate) fn text(rng: &mut Rng, longest: usize) -> Vec<u8> {
    (0..rng.usize(..=longest)).map(|_| rng.u8(1..)).collect()
}

/// Changes a few octets of a datagram, or its length, by what parsers most often get wrong.
pub(crate) fn mutate(rng: &mut Rng, datagram: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(..=datagram.len());
        match rng.u8(..6) {
            0 => datagram.truncate(at),
            1 => datagram.insert(at, rng.u8(..)),
            _ => {
                let Some(octet) = datagram.get_mut(at) else {
                    continue;
                };
                *octet = match rng.u8(..4) {
                    0 => 0,
                    1 => 0xff,
                    2 => *octet ^ (1 << rng.u8(..8)),
                    _ => rng.u8(..),
                };
            }
        }
    }
}

/// Writes the datagram's length where its format has it, so that mutations get past that check.
pub(crate) fn mend_length(datagram: &mut [u8], offset: usize) {
    let length = u16::try_from(datagram.len()).unwrap();
    if let Some(field) = datagram.get_mut(offset..offset + 2) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}
