//! Arrays of entries packed to the bit: an entry of 11 bits takes 11 bits, not two bytes.
//!
//! Invariant: entry `n` takes bits `n * bits` to `(n + 1) * bits`, lowest first. A row (eight
//! entries) therefore takes as many whole bytes as an entry has bits, and rows can be saved
//! separately.
//! Cost: an unaligned load for a read; a load and a store for a write.

use std::ops::Range;

use crate::memory::IndexMemory;

/// An entry may start at any bit of a byte and must still fit into eight bytes: 64 - 7 bits.
const BITS_MAX: u32 = 57;
const WORD: usize = 8;

/// Reads entry `n` in `bytes`, packed to `bits` bits; a padding word must follow the last entry.
pub(super) fn load(bytes: &[u8], n: usize, bits: u32) -> u64 {
    let (at, shift) = place(n, bits);
    word(bytes, at) >> shift & mask(bits)
}

/// Writes an entry for [`load`].
pub(super) fn store(bytes: &mut [u8], n: usize, bits: u32, entry: u64) {
    debug_assert!(entry <= mask(bits));
    let (at, shift) = place(n, bits);
    let word = word(bytes, at) & !(mask(bits) << shift) | entry << shift;
    bytes[at..at + WORD].copy_from_slice(&word.to_le_bytes());
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

fn place(n: usize, bits: u32) -> (usize, u32) {
    let bit = n * bits as usize;
    (bit / 8, u32::try_from(bit % 8).expect("below 8"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at..at + WORD]);
    u64::from_le_bytes(word)
}

/// An array of small integers.
pub(crate) struct Packed {
    bits: u32,
    /// Followed by a padding word, so that the last entry can be loaded as a word too.
    bytes: IndexMemory,
}

impl Packed {
    /// `count` entries of `bits` bits (at most 57), all 0.
    pub(crate) fn new(count: usize, bits: u32) -> Self {
        assert!((1..=BITS_MAX).contains(&bits));
        let bytes = (count * bits as usize).div_ceil(8) + WORD;
        Self {
            bits,
            bytes: IndexMemory::zeroed(bytes),
        }
    }

    pub(crate) fn entry(&self, n: usize) -> u64 {
        load(&self.bytes, n, self.bits)
    }

    pub(crate) fn store(&mut self, n: usize, entry: u64) {
        store(&mut self.bytes, n, self.bits, entry);
    }

    /// The bytes of entries that start and finish at whole bytes.
    fn range(&self, entries: Range<usize>) -> Range<usize> {
        let bits = self.bits as usize;
        debug_assert!((entries.start * bits).is_multiple_of(8));
        entries.start * bits / 8..(entries.end * bits).div_ceil(8)
    }

    /// Appends the bytes of `entries`, a multiple of eight, to `out`.
    pub(crate) fn save(&self, entries: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.range(entries)]);
    }

    /// Loads entries, starting at `first`, a multiple of eight, as written by [`Packed::save`].
    pub(crate) fn restore(&mut self, first: usize, bytes: &[u8]) {
        let at = self.range(first..first).start;
        let end = self.bytes.len() - WORD;
        if let Some(to) = self.bytes[..end].get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// Memory in use including the padding, bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Sets all entries to 0 by allocating new zeroed memory: pages that were never touched take no
    /// memory, but pages overwritten with zeros do.
    pub(crate) fn clear(&mut self) {
        self.bytes = IndexMemory::zeroed(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_keeps_entries_apart() {
        for bits in 1..=BITS_MAX {
            let mut random = fastrand::Rng::with_seed(u64::from(bits));
            let mut packed = Packed::new(64, bits);
            let mut plain = [0u64; 64];
            for _ in 0..1000 {
                let (n, entry) = (random.usize(..64), random.u64(..=mask(bits)));
                packed.store(n, entry);
                plain[n] = entry;
                assert!(
                    plain
                        .iter()
                        .enumerate()
                        .all(|(n, it)| packed.entry(n) == *it)
                );
            }
        }
    }

    #[test]
    fn eight_entries_are_as_many_bytes_as_an_entry_has_bits() {
        for bits in [11, 42, 43, 47, 51, 54] {
            let mut out = Vec::new();
            Packed::new(80, bits).save(8..16, &mut out);
            assert_eq!(out.len(), bits as usize);
        }
    }

    #[test]
    fn saved_rows_come_back_in_their_places() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut packed, mut restored) = (Packed::new(64, 11), Packed::new(64, 11));
        (0..64).for_each(|n| packed.store(n, random.u64(..1 << 11)));
        for first in [40, 0] {
            let mut bytes = Vec::new();
            packed.save(first..first + 8, &mut bytes);
            restored.restore(first, &bytes);
        }
        for n in 0..64 {
            let saved = (40..48).contains(&n) || n < 8;
            assert_eq!(restored.entry(n), if saved { packed.entry(n) } else { 0 });
        }
    }
}
