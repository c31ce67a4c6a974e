//! A Bloom filter: the set of URLs that a cache holds, in 5 to 16 bits per URL, with false
//! positives.
//!
//! The proxy keeps a filter for itself and a filter for each peer that announces stored URLs. The
//! layout is the same as in Squid's cache digests, so the same filter serves Squid
//! ([`digest`](crate::digest)) and our own [updates](crate::update): 4 functions, each a 32-bit
//! word of the key modulo the number of bits; bit n has value 2^(n mod 8) in octet n div 8.
//!
//! Invariant: an inserted key is contained until an update clears one of the bits. Nothing else
//! removes an entry: to forget entries, the proxy builds a new filter.
//! Cost: a lookup reads 4 octets far from each other. The set bits are counted when they change, so
//! the fill is known without a scan.

use std::collections::TryReserveError;

use crate::key::{HASHES, Key};

/// Maximum number of bits, so that it fits into 32 bits: 256 MiB, for 214 million entries with 10
/// bits.
pub const BITS_MAX: u64 = 1 << 31;

/// Squid's default number of bits per entry: 9.2 % false positives.
pub const SQUID_BITS_PER_ENTRY: u8 = 5;

/// Bits per entry in our own filter: 1.2 % false positives.
pub const BITS_PER_ENTRY: u8 = 10;

/// Bits per entry while the filter is a small part of the memory: 0.24 % false positives. Each
/// false positive costs two proxies a request.
pub const SMALL_FILTER_BITS_PER_ENTRY: u8 = 16;

/// Size of a filter: entries and bits per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    capacity: u32,
    bits_per_entry: u8,
}

/// An invalid filter size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a Bloom filter of {capacity} × {bits_per_entry} bits: it has 1 to {BITS_MAX}")]
pub struct SizeError {
    /// Entries.
    pub capacity: u32,
    /// Bits per entry.
    pub bits_per_entry: u8,
}

impl Size {
    /// Bits for `capacity` entries, rounded up to whole octets. An error if there are none, or more
    /// than [`BITS_MAX`].
    pub fn new(capacity: u32, bits_per_entry: u8) -> Result<Size, SizeError> {
        let bits = u64::from(capacity) * u64::from(bits_per_entry);
        if (1..=BITS_MAX).contains(&bits) {
            Ok(Size {
                capacity,
                bits_per_entry,
            })
        } else {
            Err(SizeError {
                capacity,
                bits_per_entry,
            })
        }
    }

    /// Intended number of entries. More may be inserted, but then false positives increase.
    pub fn capacity(self) -> u32 {
        self.capacity
    }

    /// Bits per entry.
    pub fn bits_per_entry(self) -> u8 {
        self.bits_per_entry
    }

    /// Octets of the filter.
    pub fn octets(self) -> u32 {
        // At most 2^31 bits, so at most 2^28 octets.
        let bits = u64::from(self.capacity) * u64::from(self.bits_per_entry);
        u32::try_from(bits.div_ceil(8)).unwrap_or(u32::MAX)
    }

    /// Bits of the filter, at most [`BITS_MAX`].
    pub fn bits(self) -> u32 {
        self.octets().saturating_mul(8)
    }
}

/// The filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    size: Size,
    entries: u32,
    /// The number of octets equals `size.octets()`.
    octets: Vec<u8>,
    /// Number of set bits in `octets`.
    ones: u32,
}

/// The bits that an insertion set: at most [`HASHES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewBits {
    bits: [u32; HASHES],
    count: usize,
}

/// The new value of a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bit {
    /// 1.
    Set,
    /// 0.
    Clear,
}

impl Filter {
    /// A filter without entries; an error if there is no memory for it.
    pub fn empty(size: Size) -> Result<Filter, TryReserveError> {
        let mut octets = Vec::new();
        let length = size.octets() as usize;
        octets.try_reserve_exact(length)?;
        octets.resize(length, 0);
        Ok(Filter {
            size,
            entries: 0,
            octets,
            ones: 0,
        })
    }

    /// A received filter; `None` if the number of `octets` differs from the size.
    pub fn from_octets(size: Size, entries: u32, octets: Vec<u8>) -> Option<Filter> {
        let fits = octets.len() == size.octets() as usize;
        fits.then(|| Filter {
            size,
            entries,
            ones: octets.iter().map(|octet| octet.count_ones()).sum(),
            octets,
        })
    }

    /// Size of the filter.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Number of insertions; a key inserted twice counts twice.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The bits in wire format.
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// Inserts a key; returns the bits that were clear before, because an update must announce
    /// them.
    pub fn insert(&mut self, key: &Key) -> NewBits {
        self.entries = self.entries.saturating_add(1);
        let mut new = NewBits::default();
        for bit in self.places(key) {
            if self.put(bit, Bit::Set) {
                new.bits[new.count] = bit;
                new.count += 1;
            }
        }
        new
    }

    /// Returns true if the key may have been inserted; false if it certainly was not.
    pub fn contains(&self, key: &Key) -> bool {
        self.places(key).into_iter().all(|bit| self.is_set(bit))
    }

    /// Returns true if the bit is set; false for a bit outside the filter.
    pub fn is_set(&self, bit: u32) -> bool {
        let (index, mask) = place(bit);
        self.octets
            .get(index)
            .is_some_and(|octet| octet & mask != 0)
    }

    /// The value of a bit; clear for a bit outside the filter.
    pub fn value(&self, bit: u32) -> Bit {
        if self.is_set(bit) {
            Bit::Set
        } else {
            Bit::Clear
        }
    }

    /// Sets or clears a bit; returns true if that changed it. A bit outside the filter is ignored.
    pub fn put(&mut self, bit: u32, value: Bit) -> bool {
        let (index, mask) = place(bit);
        let Some(octet) = self.octets.get_mut(index) else {
            return false;
        };
        let is_set = *octet & mask != 0;
        match (value, is_set) {
            (Bit::Set, false) => {
                *octet |= mask;
                self.ones += 1;
                true
            }
            (Bit::Clear, true) => {
                *octet &= !mask;
                self.ones -= 1;
                true
            }
            (Bit::Set, true) | (Bit::Clear, false) => false,
        }
    }

    /// The fraction of set bits, 0 to 1.
    pub fn fill(&self) -> f64 {
        f64::from(self.ones) / f64::from(self.size.bits())
    }

    /// The expected fraction of keys that are contained although they were not inserted, 0 to 1:
    /// all four bits are set with the probability fill⁴. A peer with a nearly full filter announces
    /// everything; the caller should then ignore the filter.
    pub fn false_positive_share(&self) -> f64 {
        self.fill().powi(4)
    }

    fn places(&self, key: &Key) -> [u32; HASHES] {
        let bits = self.size.bits();
        // The divisor is never 0, because every size has at least one bit.
        key.words().map(|word| word % bits)
    }
}

impl NewBits {
    /// The bit numbers.
    pub fn as_slice(&self) -> &[u32] {
        self.bits.get(..self.count).unwrap_or_default()
    }
}

/// The index of the octet that holds a bit, and the mask for the bit.
fn place(bit: u32) -> (usize, u8) {
    ((bit / 8) as usize, 1 << (bit % 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        Key::of_get(format!("http://example.com/{n}").as_bytes())
    }

    fn filter(capacity: u32, bits_per_entry: u8) -> Filter {
        Filter::empty(Size::new(capacity, bits_per_entry).unwrap()).unwrap()
    }

    #[test]
    fn a_size_is_rounded_up_to_octets() {
        let octets = |capacity, bits| Size::new(capacity, bits).unwrap().octets();
        assert_eq!(octets(98, 5), 62);
        assert_eq!(octets(100, 5), 63);
        assert_eq!(octets(1, 1), 1);
        assert_eq!(Size::new(100, 5).unwrap().bits(), 504);
    }

    #[test]
    fn a_size_is_between_1_and_2_to_the_31_bits() {
        assert!(Size::new(0, 5).is_err());
        assert!(Size::new(5, 0).is_err());
        assert!(Size::new(u32::MAX, 255).is_err());
        assert!(Size::new((1 << 31) + 1, 1).is_err());
        let largest = Size::new(1 << 31, 1).unwrap();
        assert_eq!(u64::from(largest.bits()), BITS_MAX);
        assert_eq!(largest.octets(), 1 << 28);
    }

    #[test]
    fn bits_lie_where_squid_puts_them() {
        // A filter with 80 bits: word mod 80; bit n in octet n / 8, the least significant first.
        let mut filter = filter(8, 10);
        let words: [u32; 4] = [3, 80 + 8, 160 + 79, u32::MAX];
        let mut octets = [0; 16];
        for (octet, of_word) in octets
            .iter_mut()
            .zip(words.iter().flat_map(|it| it.to_be_bytes()))
        {
            *octet = of_word;
        }
        let new = filter.insert(&Key::from_octets(octets));
        assert_eq!(new.as_slice(), [3, 8, 79, u32::MAX % 80]);
        assert_eq!(u32::MAX % 80, 15);
        assert_eq!(filter.octets(), [8, 0x81, 0, 0, 0, 0, 0, 0, 0, 0x80]);
    }

    #[test]
    fn only_bits_that_were_clear_are_new() {
        let mut filter = filter(1000, 10);
        assert_eq!(filter.insert(&key(1)).as_slice().len(), 4);
        assert_eq!(filter.insert(&key(1)), NewBits::default());
        assert_eq!(filter.entries(), 2);
        // All words are equal, so a single bit is set.
        assert_eq!(
            filter.insert(&Key::from_octets([7; 16])).as_slice().len(),
            1
        );
    }

    #[test]
    fn the_fill_counts_what_is_set() {
        let mut filter = filter(100, 5);
        for n in 0..100 {
            filter.insert(&key(n));
        }
        filter.put(1, Bit::Clear);
        filter.put(2, Bit::Set);
        let ones: u32 = filter.octets().iter().map(|it| it.count_ones()).sum();
        assert!((filter.fill() - f64::from(ones) / 504.0).abs() < 1e-12);
        let received = Filter::from_octets(filter.size(), 100, filter.octets().to_vec());
        assert_eq!(received, Some(filter));
    }

    #[test]
    fn a_bit_beyond_the_end_is_clear_and_stays_so() {
        let mut filter = filter(8, 1);
        assert!(!filter.put(8, Bit::Set));
        assert!(!filter.is_set(8));
        assert!(!filter.put(u32::MAX, Bit::Set));
        assert!(filter.fill() < f64::EPSILON);
    }

    #[test]
    fn octets_that_do_not_fit_the_size_make_no_filter() {
        let size = Size::new(10, 8).unwrap();
        assert!(Filter::from_octets(size, 0, vec![0; 9]).is_none());
        assert!(Filter::from_octets(size, 0, vec![0; 11]).is_none());
        assert!(Filter::from_octets(size, 0, vec![0; 10]).is_some());
    }
}
