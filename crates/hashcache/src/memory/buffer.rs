//! Buffers aligned to 4 KiB, as direct I/O asks for.
//!
//! A buffer of some size is a mapping of its own: given back, it is gone, whatever else lies in the
//! heap.
//! Cost: two system calls and a page fault per 4 KiB, little beside the read that fills it.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::budget::Reservation;

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
            Mapping::new(len)
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

/// Anonymous memory of one owner.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is private memory that only this value points to, like a `Box<[u8]>`.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `None` when the system has no more mappings to give.
    fn new(len: usize) -> Option<Self> {
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches nothing that
        // is there already.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        Some(Self {
            base: NonNull::new(base.ok()?.cast())?,
            len,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were mapped at `base`, are zero or were written through `bytes_mut`,
        // and stay mapped as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no reference to it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
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
