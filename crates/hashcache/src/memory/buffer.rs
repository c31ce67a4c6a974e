//! Buffers aligned to 4 KiB, as direct I/O requires.
//!
//! A large buffer is a separate mapping: when the buffer is freed, the kernel has the memory back
//! at once, however fragmented the heap is. Buffers of the usual length are reused
//! ([`FreeBuffers`]).
//!
//! Cost: two system calls and a page fault per 4 KiB.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use super::budget::Reservation;
use super::mapping::Mapping;

/// Buffers of at least this size are mapped.
const MAPPED: usize = 16 << 10;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Sector([u8; 4096]);

/// Bytes aligned to 4 KiB.
pub struct AlignedBuf {
    memory: Memory,
    len: usize,
    /// Accounts for the memory for as long as the buffer holds it.
    reservation: Option<Reservation>,
    /// Receives the memory when this buffer is dropped; if `None`, the memory is freed.
    home: Option<Arc<FreeBuffers>>,
}

enum Memory {
    Heap(Box<[Sector]>),
    Mapped(Mapping),
    /// The memory was given back.
    Gone,
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
            reservation: None,
            home: None,
        }
    }

    /// As [`AlignedBuf::zeroed`], accounted for by `reservation` until the buffer is dropped.
    pub(crate) fn reserved(len: usize, reservation: Reservation) -> Self {
        let mut buffer = Self::zeroed(len);
        buffer.reservation = Some(reservation);
        buffer
    }

    /// The first `len` bytes of `mapping`, with old content. Dropping the buffer returns the
    /// mapping to `home`.
    pub(super) fn lent(
        mapping: Mapping,
        len: usize,
        reservation: Reservation,
        home: Arc<FreeBuffers>,
    ) -> Self {
        Self {
            memory: Memory::Mapped(mapping),
            len,
            reservation: Some(reservation),
            home: Some(home),
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let (Some(home), Some(reservation)) = (self.home.take(), self.reservation.take()) else {
            return;
        };
        if let Memory::Mapped(mapping) = std::mem::replace(&mut self.memory, Memory::Gone) {
            home.give(mapping, reservation);
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(sectors) => &bytemuck::cast_slice(sectors)[..self.len],
            Memory::Mapped(mapping) => &mapping.bytes()[..self.len],
            Memory::Gone => &[],
        }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(sectors) => &mut bytemuck::cast_slice_mut(sectors)[..self.len],
            Memory::Mapped(mapping) => &mut mapping.bytes_mut()[..self.len],
            Memory::Gone => &mut [],
        }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Memory of unused buffers, kept for later buffers with the same length.
pub(super) struct FreeBuffers {
    most: usize,
    kept: Mutex<Vec<(Mapping, Reservation)>>,
}

impl FreeBuffers {
    /// Keeps at most `most` buffers.
    pub(super) fn new(most: usize) -> Arc<Self> {
        let kept = Mutex::default();
        Arc::new(Self { most, kept })
    }

    pub(super) fn take(&self) -> Option<(Mapping, Reservation)> {
        self.lock().pop()
    }

    fn give(&self, mapping: Mapping, reservation: Reservation) {
        let mut kept = self.lock();
        if kept.len() < self.most {
            return kept.push((mapping, reservation));
        }
        drop(kept);
        // Unmap the memory first: dropping the reservation wakes callers that wait for memory.
        drop(mapping);
        drop(reservation);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Mapping, Reservation)>> {
        self.kept.lock().expect("no holder of this lock panics")
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
