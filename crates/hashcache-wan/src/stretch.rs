//! Which part of a dictionary a segment of the content needs.
//!
//! A dictionary is an older object of up to 64 MiB. It is read in stretches of 4 MiB: from 1 MiB
//! before the place of the segment to 1 MiB behind it. Content that moved by more than that is not
//! found. Reading is the caller's business: `encode` and `decode` say which bytes they lack
//! ([`Range`]), and the caller passes them on piece by piece, from a `Hit` of the engine for
//! example.
//!
//! Invariant: both ends use the bytes that STRETCH names, so only the sender calls [`for_segment`].
//! Cost: consecutive stretches overlap by half, and what overlaps is kept. So a dictionary that is
//! as long as the content is read once, in four spans of 256 KiB per MB.

use std::ops::Range;

use crate::limits::{SEGMENT_BYTES_MAX, STRETCH_BYTES_MAX};

/// The stretch of a dictionary of `length` bytes for the segment that begins at `at`.
pub(crate) fn for_segment(length: u64, at: u64) -> Range<u64> {
    let margin = (STRETCH_BYTES_MAX - SEGMENT_BYTES_MAX) / 2;
    let last = length.saturating_sub(STRETCH_BYTES_MAX);
    let start = at.saturating_sub(margin).min(last);
    start..length.min(start + STRETCH_BYTES_MAX)
}

/// Bytes of a dictionary that are read for content of `content` bytes.
pub(crate) fn bytes_read(length: u64, content: u64) -> u64 {
    let last = content.saturating_sub(1) / SEGMENT_BYTES_MAX * SEGMENT_BYTES_MAX;
    for_segment(length, last).end
}

/// The stretch that is held, or is being collected.
#[derive(Debug, Default)]
pub(crate) struct Held {
    wanted: Range<u64>,
    /// From the beginning of `wanted`.
    bytes: Vec<u8>,
    /// Whether zstd has them.
    lent: bool,
}

impl Held {
    /// Wants another stretch. Keeps what it has of it.
    pub(crate) fn want(&mut self, range: Range<u64>) {
        let have = self.wanted.start..self.wanted.start + self.bytes.len() as u64;
        if have.contains(&range.start) {
            self.bytes.drain(..to_usize(range.start - have.start));
        } else {
            self.bytes.clear();
        }
        let length = to_usize(range.end - range.start);
        self.bytes.truncate(length);
        // Exactly: a vector that doubles would hold up to twice the limit.
        self.bytes.reserve_exact(length - self.bytes.len());
        self.wanted = range;
    }

    /// What is missing.
    pub(crate) fn missing(&self) -> Option<Range<u64>> {
        let from = self.wanted.start + self.bytes.len() as u64;
        (!self.lent && from < self.wanted.end).then_some(from..self.wanted.end)
    }

    /// Adds what follows; takes no more than is missing.
    pub(crate) fn give(&mut self, bytes: &[u8]) {
        let room = self
            .missing()
            .map_or(0, |range| to_usize(range.end - range.start));
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Which bytes it is.
    pub(crate) fn range(&self) -> Range<u64> {
        self.wanted.clone()
    }

    /// The bytes, which are complete, to lend them to zstd; [`Held::put_back`] returns them.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.lent = true;
        std::mem::take(&mut self.bytes)
    }

    /// Memory of the bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn put_back(&mut self, bytes: Vec<u8>) {
        self.lent = false;
        self.bytes = bytes;
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("at most STRETCH_BYTES_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_stretch_lies_around_the_place_of_its_segment_and_within_the_dictionary() {
        assert_eq!(for_segment(100, 0), 0..100);
        assert_eq!(for_segment(4 * MIB, 6 * MIB), 0..4 * MIB);
        assert_eq!(for_segment(20 * MIB, 0), 0..4 * MIB);
        assert_eq!(for_segment(20 * MIB, 2 * MIB), MIB..5 * MIB);
        assert_eq!(for_segment(20 * MIB, 18 * MIB), 16 * MIB..20 * MIB);
        assert_eq!(for_segment(20 * MIB, 60 * MIB), 16 * MIB..20 * MIB);
    }

    #[test]
    fn a_dictionary_is_read_once_from_its_start_on() {
        for length in [1, MIB, 5 * MIB, 11 * MIB + 7, 64 * MIB] {
            let mut held = Held::default();
            let mut read = 0;
            for at in (0..length).step_by(2 << 20) {
                held.want(for_segment(length, at));
                if let Some(missing) = held.missing() {
                    assert_eq!(missing.start, read);
                    read = missing.end;
                    held.give(&vec![0; to_usize(missing.end - missing.start)]);
                }
                assert_eq!(held.missing(), None);
                assert_eq!(read, bytes_read(length, at + 1));
            }
            assert_eq!(read, length);
        }
    }

    #[test]
    fn what_is_held_is_what_the_dictionary_has_there() {
        let mut random = fastrand::Rng::with_seed(7);
        let dictionary: Vec<u8> = (0..500).map(|_| random.u8(..)).collect();
        let mut held = Held::default();
        for _ in 0..2_000 {
            let start = random.u64(..500);
            let end = random.u64(start + 1..501);
            held.want(start..end);
            while let Some(missing) = held.missing() {
                let missing = to_usize(missing.start)..to_usize(missing.end);
                let piece = random.usize(..=missing.len());
                held.give(&dictionary[missing.start..missing.start + piece]);
            }
            held.give(b"too much");
            let bytes = held.take();
            assert_eq!(bytes, dictionary[to_usize(start)..to_usize(end)]);
            held.put_back(bytes);
        }
    }
}
