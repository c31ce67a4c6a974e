//! SHA-256 (FIPS 180-4), for the digests of RFC 9530.
//!
//! Called by `digest`. Written out here because nothing else of the workspace needs a cryptographic
//! hash of content: 90 lines against four more crates.
//!
//! Invariant: the constants are computed from their definition, the fractional parts of roots of
//! the first primes, and held against the published digests by the tests.
//! Cost: a few hundred megabytes a second; no allocation.

/// A hash that is being fed.
#[derive(Clone, Debug)]
pub(crate) struct Sha256 {
    state: [u32; 8],
    block: [u8; BLOCK],
    /// Bytes taken so far; those of the block are the last of them.
    length: u64,
}

const BLOCK: usize = 64;

impl Sha256 {
    pub(crate) fn new() -> Sha256 {
        let (state, block, length) = (INITIAL, [0; BLOCK], 0);
        Sha256 {
            state,
            block,
            length,
        }
    }

    fn filled(&self) -> usize {
        usize::try_from(self.length % BLOCK as u64).expect("less than a block")
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let filled = self.filled();
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - filled));
            self.block[filled..filled + now.len()].copy_from_slice(now);
            self.length += now.len() as u64;
            if filled + now.len() == BLOCK {
                compress(&mut self.state, &self.block);
            }
            bytes = later;
        }
    }

    pub(crate) fn finish(mut self) -> [u8; 32] {
        let bits = self.length.wrapping_mul(8);
        self.update(&[0x80]);
        while self.filled() != BLOCK - 8 {
            self.update(&[0]);
        }
        self.update(&bits.to_be_bytes());
        let mut out = [0; 32];
        for (place, word) in out.chunks_exact_mut(4).zip(self.state) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

fn compress(state: &mut [u32; 8], block: &[u8; BLOCK]) {
    let mut schedule = [0; 64];
    for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (one, other) = (schedule[at - 15], schedule[at - 2]);
        let one = one.rotate_right(7) ^ one.rotate_right(18) ^ (one >> 3);
        let other = other.rotate_right(17) ^ other.rotate_right(19) ^ (other >> 10);
        let before = schedule[at - 16].wrapping_add(schedule[at - 7]);
        schedule[at] = before.wrapping_add(one).wrapping_add(other);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, constant) in schedule.iter().zip(ROUNDS) {
        let mixed = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let chosen = (e & f) ^ (!e & g);
        let first = h.wrapping_add(mixed).wrapping_add(chosen);
        let first = first.wrapping_add(constant).wrapping_add(*word);
        let mixed = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = mixed.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
    }
    for (word, new) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(new);
    }
}

/// Which root.
#[derive(Clone, Copy)]
enum Root {
    Square,
    Cube,
}

/// The first 32 bits of the fractional parts of the roots of the first primes.
const fn roots<const COUNT: usize>(root: Root) -> [u32; COUNT] {
    let mut out = [0; COUNT];
    let (mut found, mut candidate) = (0, 2);
    while found < COUNT {
        let mut divisor = 2;
        while candidate % divisor != 0 {
            divisor += 1;
        }
        if divisor == candidate {
            out[found] = fraction(candidate, root);
            found += 1;
        }
        candidate += 1;
    }
    out
}

/// The first 32 bits of the fractional part of a root: the root of the number shifted up, by
/// bisection, without what stands before the point.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the integral part is to be cut off"
)]
const fn fraction(number: u128, root: Root) -> u32 {
    let (mut low, mut high) = (0_u128, 1_u128 << 38);
    while high - low > 1 {
        let middle = (low + high) / 2;
        let fits = match root {
            Root::Square => middle * middle <= number << 64,
            Root::Cube => middle * middle * middle <= number << 96,
        };
        if fits {
            low = middle;
        } else {
            high = middle;
        }
    }
    low as u32
}

const INITIAL: [u32; 8] = roots(Root::Square);
const ROUNDS: [u32; 64] = roots(Root::Cube);

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(content: &[u8], step: usize) -> String {
        let mut hash = Sha256::new();
        content.chunks(step).for_each(|bytes| hash.update(bytes));
        let digest = hash.finish();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_digests_are_the_published_ones() {
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        for (content, digest) in [
            (
                &b""[..],
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                b"abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                long,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                &[b'a'; 1_000_000],
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
            ),
        ] {
            for step in [1, 63, 64, 65, 1 << 20] {
                assert_eq!(hex(content, step), digest, "{step}");
            }
        }
    }
}
