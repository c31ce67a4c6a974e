//! Selects the part of a dictionary for a segment of the content.
//!
//! A dictionary is an older object of up to 64 MiB. It is read in 4 MiB stretches: from 1 MiB
//! before the segment's position to 1 MiB behind the segment. Content that moved by more than that
//! is not found. The caller does the reading: `encode` and `decode` return the missing range
//! ([`Range`]), and the caller gives these bytes piece by piece, for example from an engine `Hit`.
//!
//! Invariant: both sides use the bytes that STRETCH names, so only the sender calls
//! [`for_segment`].
//! Cost: consecutive stretches overlap by half, and the overlap is kept. So a dictionary that is as
//! long as the content is read only once, in four 256 KiB spans per MB.

use std::ops::Range;

use crate::limits::{SEGMENT_BYTES_MAX, STRETCH_BYTES_MAX};

/// The stretch for the segment that starts at `at`; the dictionary has `length` bytes.
pub(crate) fn for_segment(length: u64, at: u64) -> Range<u64> {
    let margin = (STRETCH_BYTES_MAX - SEGMENT_BYTES_MAX) / 2;
    let last = length.saturating_sub(STRETCH_BYTES_MAX);
    let start = at.saturating_sub(margin).min(last);
    start..length.min(start + STRETCH_BYTES_MAX)
}

/// Dictionary bytes that are read for content of `content` bytes.
pub(crate) fn bytes_read(length: u64, content: u64) -> u64 {
    let last = content.saturating_sub(1) / SEGMENT_BYTES_MAX * SEGMENT_BYTES_MAX;
    for_segment(length, last).end
}

/// The current stretch, complete or being collected.
#[derive(Debug, Default)]
pub(crate) struct Held {
    wanted: Range<u64>,
    /// Bytes from the start of `wanted`.
    bytes: Vec<u8>,
    /// True if zstd has the bytes.
    lent: bool,
}

impl Held {
    /// Wants another stretch. Keeps the bytes that overlap.
    pub(crate) fn want(&mut self, range: Range<u64>) {
        let have = self.wanted.start..self.wanted.start + self.bytes.len() as u64;
        if have.contains(&range.start) {
            self.bytes.drain(..to_usize(range.start - have.start));
        } else {
            self.bytes.clear();
        }
        let length = to_usize(range.end - range.start);
        self.bytes.truncate(length);
        // Exactly, because a vector that doubles would hold up to twice the limit.
        self.bytes.reserve_exact(length - self.bytes.len());
        self.wanted = range;
    }

    /// The missing bytes.
    pub(crate) fn missing(&self) -> Option<Range<u64>> {
        let from = self.wanted.start + self.bytes.len() as u64;
        (!self.lent && from < self.wanted.end).then_some(from..self.wanted.end)
    }

    /// Adds the next bytes; takes no more than are missing.
    pub(crate) fn give(&mut self, bytes: &[u8]) {
        let room = self
            .missing()
            .map_or(0, |range| to_usize(range.end - range.start));
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// The range of the stretch.
    pub(crate) fn range(&self) -> Range<u64> {
        self.wanted.clone()
    }

    /// Lends the complete bytes to zstd; [`Held::put_back`] returns them.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.lent = true;
        std::mem::take(&mut self.bytes)
    }

    /// Memory for the bytes.
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
