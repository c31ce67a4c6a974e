//! Buffers aligned to 4 KiB, as direct I/O asks for.

use std::ops::{Deref, DerefMut};

use super::budget::Reservation;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Sector([u8; 4096]);

/// Bytes aligned to 4 KiB.
pub struct AlignedBuf {
    sectors: Box<[Sector]>,
    len: usize,
    /// Keeps the memory on the books for as long as it is held.
    _reservation: Option<Reservation>,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let sectors = bytemuck::zeroed_slice_box(len.div_ceil(size_of::<Sector>()));
        Self { sectors, len, _reservation: None }
    }

    /// The same, accounted for by `reservation` until it is dropped.
    pub(crate) fn reserved(len: usize, reservation: Reservation) -> Self {
        Self { _reservation: Some(reservation), ..Self::zeroed(len) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.sectors)[..self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.sectors)[..self.len]
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
    fn a_buffer_is_aligned_and_has_the_length_asked_for() {
        for len in [0, 1, 4096, 5000, 1 << 20] {
            let buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().align_offset(4096), 0);
        }
    }
}
