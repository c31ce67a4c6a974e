//! Chunks: memory that a writer fills piece by piece while followers read the bytes written so far.
//!
//! A chunk of a whole page is a slab, so that a long transfer leaves no holes in the heap. A
//! smaller chunk is in the heap, because a slab would stay mostly empty.

use bytes::{Bytes, BytesMut};

use super::budget::Reservation;
use super::hot::Hot;
use super::slab::{Open, SLAB_BYTES};

/// Memory that is filled once, from the start.
pub(crate) enum Chunk {
    /// No room at all.
    Full,
    /// Part of the heap. It never grows, because no more bytes are appended than there is room.
    Heap(BytesMut),
    /// A slab.
    Slab(Open),
}

impl Chunk {
    /// A chunk of `size` bytes, accounted for by `reservation`. Returns the reservation to the
    /// caller if the chunk does not hold it.
    pub(crate) fn new(
        size: usize,
        reservation: Reservation,
        hot: &Hot,
    ) -> (Self, Option<Reservation>) {
        if size != SLAB_BYTES {
            return (Self::Heap(BytesMut::with_capacity(size)), Some(reservation));
        }
        match hot.slab(reservation) {
            Ok(slab) => (Self::Slab(slab), None),
            Err(reservation) => (Self::Heap(BytesMut::with_capacity(size)), Some(reservation)),
        }
    }

    /// Number of bytes that still fit.
    pub(crate) fn room(&self) -> usize {
        match self {
            Self::Full => 0,
            // The capacity that remains after each `split`.
            Self::Heap(bytes) => bytes.capacity(),
            Self::Slab(slab) => slab.room(),
        }
    }

    /// Copies `bytes`, which must fit, into the chunk. Returns a handle to the copy.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Bytes {
        assert!(bytes.len() <= self.room());
        match self {
            Self::Full => Bytes::new(),
            Self::Heap(chunk) => {
                chunk.extend_from_slice(bytes);
                chunk.split().freeze()
            }
            Self::Slab(slab) => slab.append(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Budget;

    #[test]
    fn a_page_lies_in_a_slab_and_less_in_the_heap() {
        let budget = Budget::new(1 << 20);
        let hot = Hot::new(&budget, u64::MAX).unwrap();
        for (size, in_slab) in [(SLAB_BYTES, true), (100, false)] {
            let before = budget.used();
            let reservation = budget.reserve(size as u64).unwrap();
            let (mut chunk, back) = Chunk::new(size, reservation, &hot);
            assert_eq!(matches!(chunk, Chunk::Slab(_)), in_slab);
            assert_eq!(back.is_none(), in_slab);
            assert_eq!(chunk.room(), size);
            let first = chunk.append(b"one");
            let second = chunk.append(b"two");
            assert_eq!((&first[..], &second[..]), (&b"one"[..], &b"two"[..]));
            assert_eq!(chunk.room(), size - 6);
            drop((chunk, back));
            // The memory of a slab that is still read is still reserved.
            assert_eq!(budget.used() > before, in_slab);
            drop((first, second));
            // An empty slab keeps its pages.
            assert_eq!(budget.used(), SLAB_BYTES as u64);
        }
    }
}
