//! Buffers aligned to 4 KiB, as direct I/O asks for.
//!
//! A buffer of some size is a mapping of its own: given back, it is gone, whatever else lies in the
//! heap.
//! Cost: two system calls and a page fault per 4 KiB, little beside the read that fills it.

use std::ops::{Deref, DerefMut};

use super::budget::Reservation;
use super::mapping::Mapping;

/// Buffers from this size on are mapped.
const MAPPED: usize = 16 << 10;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Sector([u8; 4096]);

/// Bytes aligned to 4 KiB.
pub struct AlignedBuf {
    memory: Memory,
    len: usize,
    /// Keeps the memory on the books for as long as it is held.
    _reservation: Option<Reservation>,
}

enum Memory {
    Heap(Box<[Sector]>),
    Mapped(Mapping),
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mapped = if len >= MAPPED {
            Mapping::anonymous(len).ok()
        } else {
            None
        };
        let memory = match mapped {
            Some(mapping) => Memory::Mapped(mapping),
            None => Memory::Heap(bytemuck::zeroed_slice_box(
                len.div_ceil(size_of::<Sector>()),
            )),
        };
        Self {
            memory,
            len,
            _reservation: None,
        }
    }

    /// The same, accounted for by `reservation` until it is dropped.
    pub(crate) fn reserved(len: usize, reservation: Reservation) -> Self {
        Self {
            _reservation: Some(reservation),
            ..Self::zeroed(len)
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(sectors) => &bytemuck::cast_slice(sectors)[..self.len],
            Memory::Mapped(mapping) => &mapping.bytes()[..self.len],
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(sectors) => &mut bytemuck::cast_slice_mut(sectors)[..self.len],
            Memory::Mapped(mapping) => &mut mapping.bytes_mut()[..self.len],
        }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zero_and_has_the_length_asked_for() {
        for len in [0, 1, 4096, 5000, MAPPED, MAPPED + 1, 1 << 20] {
            let mut buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().align_offset(4096), 0);
            assert!(buffer.iter().all(|byte| *byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }
}
