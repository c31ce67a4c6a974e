//! The keyed checksum of a page, 32 bits.
//!
//! A universal hash and not a CRC, because clients and origins choose content. After a power cut a
//! page may be a mixture of two writes. CRC32C has no key and is linear: an attacker who chooses
//! the content in the first write can give the mixture the other page's checksum. Nor would a
//! secret start value help, because two messages with equal length and equal CRC have equal CRC
//! under any start value. `docs/FORMAT.md` has the bound for this hash and its proof, and describes
//! the attacker's knowledge.
//!
//! Three levels: NH (the hash in UMAC) over each 1 KiB block, NH over the results, and a
//! multilinear hash over that to 32 bits. A single level with a 64 KiB key would push content out
//! of the processor's cache. Polynomials would need no key material, but have to wait for each
//! product; the products in NH do not depend on each other.
//! Called by `key`, for `format/record`.
//!
//! Invariant: the key words have no other use, and no checksum is given out.
//! Cost: a multiplication for 16 bytes, without special instructions: 8 KiB take about as long as
//! CRC32C with special instructions.

use crate::object::PAGE;

/// Bytes per block on the first level; chosen so that both levels have equally long keys.
const BLOCK: usize = 1 << 10;
/// Bytes per multiplication.
const PIECE: usize = 16;

/// The key of page checksums, drawn from the store's secret.
pub(super) struct PageKey {
    /// First level: for the pieces in a block.
    block: [[u64; 2]; BLOCK / PIECE],
    /// Second level: for the block digests of a page.
    page: [[u64; 2]; PAGE / BLOCK],
    /// Third level: a summand, then a factor for each digest word and another for the length.
    last: [u64; 6],
}

impl PageKey {
    /// `word` returns the key words, by number, starting at 0.
    pub(super) fn new(word: impl Fn(u64) -> u64) -> Self {
        let mut count = 0;
        let mut next = || {
            count += 1;
            word(count - 1)
        };
        Self {
            block: std::array::from_fn(|_| [next(), next()]),
            page: std::array::from_fn(|_| [next(), next()]),
            last: std::array::from_fn(|_| next()),
        }
    }

    /// All page checksums in `bytes`, in order.
    pub(super) fn checksums(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        bytes.chunks(PAGE).map(|page| self.checksum(page))
    }

    /// Checksum for at most a page.
    fn checksum(&self, page: &[u8]) -> u32 {
        let digests = page.chunks(BLOCK).map(|block| self.block_digest(block));
        let digest = digests.zip(&self.page).fold(0, |sum: u128, (digest, key)| {
            sum.wrapping_add(product(digest.to_le_bytes(), *key))
        });
        let length = u32::try_from(page.len()).expect("a page has 64 KiB at most");
        let words: [[u8; 4]; 4] = bytemuck::cast(digest.to_le_bytes());
        let words = words.map(u32::from_le_bytes).into_iter().chain([length]);
        let [start, factors @ ..] = self.last;
        let sum = words.zip(factors).fold(start, |sum, (word, factor)| {
            sum.wrapping_add(factor.wrapping_mul(u64::from(word)))
        });
        // The low bits of a sum of products do not depend on the factors' high bits.
        (sum >> 32) as u32
    }

    /// NH over a block. An incomplete last piece is padded with zeros. The length in the third
    /// level distinguishes padding from zeros in the content.
    fn block_digest(&self, block: &[u8]) -> u128 {
        let (pieces, rest) = block.as_chunks::<PIECE>();
        let whole = pieces.iter().zip(&self.block);
        let sum = whole.fold(0, |sum: u128, (piece, key)| {
            sum.wrapping_add(product(*piece, *key))
        });
        match self.block.get(pieces.len()) {
            Some(key) if !rest.is_empty() => {
                let mut last = [0; PIECE];
                last[..rest.len()].copy_from_slice(rest);
                sum.wrapping_add(product(last, *key))
            }
            _ => sum,
        }
    }
}

/// One product in NH: the sums wrap at 64 bits, the product has 128.
fn product(piece: [u8; PIECE], key: [u64; 2]) -> u128 {
    let [low, high]: [[u8; 8]; 2] = bytemuck::cast(piece);
    let factor = |word, key: u64| u128::from(u64::from_le_bytes(word).wrapping_add(key));
    factor(low, key[0]) * factor(high, key[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> PageKey {
        // SplitMix64.
        PageKey::new(|n| {
            let mut word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ word >> 31
        })
    }

    fn random_bytes(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
        (0..length).map(|_| random.u8(..)).collect()
    }

    fn checksum(bytes: &[u8]) -> u32 {
        let key = key();
        let mut sums = key.checksums(bytes);
        let sum = sums.next().unwrap();
        assert!(sums.next().is_none(), "more than a page");
        sum
    }

    /// `docs/FORMAT.md`, word for word.
    fn as_documented(key: &PageKey, page: &[u8]) -> u32 {
        let nh = |bytes: &[u8], key: &[[u64; 2]]| {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(16), 0);
            let mut sum = 0_u128;
            for (n, piece) in padded.chunks(16).enumerate() {
                let word = |at: usize| u64::from_le_bytes(piece[at..at + 8].try_into().unwrap());
                let a = (u128::from(word(0)) + u128::from(key[n][0])) % (1 << 64);
                let b = (u128::from(word(8)) + u128::from(key[n][1])) % (1 << 64);
                sum = sum.wrapping_add(a * b);
            }
            sum
        };
        let mut digests = Vec::new();
        for block in page.chunks(1024) {
            digests.extend_from_slice(&nh(block, &key.block).to_le_bytes());
        }
        let digest = nh(&digests, &key.page);
        let mut words: Vec<u128> = (0..4).map(|n| (digest >> (32 * n)) % (1 << 32)).collect();
        words.push(page.len() as u128);
        let products = words.iter().zip(&key.last[1..]);
        let sum: u128 = products.map(|(word, key)| word * u128::from(*key)).sum();
        let sum = (sum + u128::from(key.last[0])) % (1 << 64);
        u32::try_from(sum >> 32).unwrap()
    }

    #[test]
    fn a_page_has_the_checksum_that_the_document_describes() {
        let key = key();
        let mut random = fastrand::Rng::with_seed(1);
        let lengths = [1, 15, 16, 17, 1023, 1024, 1025, 8192, PAGE - 1, PAGE];
        for length in lengths.into_iter().chain((0..100).map(|n| n * 37 + 1)) {
            let page = random_bytes(&mut random, length);
            assert_eq!(checksum(&page), as_documented(&key, &page), "{length}");
        }
        // Sums that wrap.
        let page = vec![0xff; PAGE];
        assert_eq!(checksum(&page), as_documented(&key, &page));
    }

    #[test]
    fn the_checksum_of_known_bytes_never_changes() {
        let page: Vec<u8> = (0..5000_u32).map(|n| n.to_le_bytes()[0]).collect();
        assert_eq!(checksum(&page), 3_844_116_983);
        assert_eq!(checksum(b"a"), 240_970_594);
    }

    #[test]
    fn each_page_has_a_checksum_of_its_own() {
        let mut random = fastrand::Rng::with_seed(2);
        let bytes = random_bytes(&mut random, 2 * PAGE + 5);
        let pages = [&bytes[..PAGE], &bytes[PAGE..2 * PAGE], &bytes[2 * PAGE..]];
        let sums: Vec<u32> = key().checksums(&bytes).collect();
        assert_eq!(sums, pages.map(checksum));
        assert_eq!(key().checksums(&[]).count(), 0);
    }

    #[test]
    fn no_flipped_bit_and_no_zero_behind_the_end_goes_unnoticed() {
        let mut random = fastrand::Rng::with_seed(3);
        let page = random_bytes(&mut random, 2100);
        let sum = checksum(&page);
        for bit in 0..page.len() * 8 {
            let mut bad = page.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&bad), sum, "bit {bit}");
        }
        let zeros: std::collections::HashSet<u32> =
            (1..3000).map(|length| checksum(&vec![0; length])).collect();
        assert_eq!(zeros.len(), 2999);
    }

    #[test]
    fn bytes_with_one_crc32c_have_different_checksums() {
        // CRC32C is linear, so its polynomial can be added anywhere.
        let polynomial = ((0x82f6_3b78_u64 << 1) | 1).to_le_bytes();
        let mut random = fastrand::Rng::with_seed(4);
        let page = random_bytes(&mut random, 8192);
        for at in 0..page.len() - 5 {
            let mut forged = page.clone();
            for (byte, add) in forged[at..].iter_mut().zip(&polynomial[..5]) {
                *byte ^= add;
            }
            assert_eq!(crc32c::crc32c(&forged), crc32c::crc32c(&page));
            assert_ne!(checksum(&forged), checksum(&page), "{at}");
        }
    }
}
