//! Memory of the index, which anyone can hold us to: each part of some size is a mapping of a
//! memory file called `hashcache-index`, and `/proc/self/smaps` says how much of it there is.
//!
//! Called by `policy/packed`. Why not the heap: there the index could not be told from the rest,
//! and what an operator sees of a process would be an argument, not a measurement. Names for
//! anonymous mappings would do as well, but many kernels are built without them.
//!
//! Invariant: bytes that were never written are zero and take no memory.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Parts from this size on are mapped: of smaller ones too much would be lost to whole pages.
const MAPPED: usize = 64 << 10;
/// What the file is called, and so the mapping.
const NAME: &str = "hashcache-index";

/// A part of an index.
pub(crate) enum IndexMemory {
    Heap(Box<[u8]>),
    Mapped(Mapping),
}

impl IndexMemory {
    /// `len` zero bytes.
    pub(crate) fn zeroed(len: usize) -> Self {
        if len < MAPPED {
            return Self::Heap(vec![0; len].into());
        }
        match Mapping::new(len) {
            Ok(mapping) => Self::Mapped(mapping),
            Err(_) => handle_alloc_error(Layout::array::<u8>(len).unwrap_or(Layout::new::<u8>())),
        }
    }
}

impl Deref for IndexMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapping) => mapping.bytes(),
        }
    }
}

impl DerefMut for IndexMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapping) => mapping.bytes_mut(),
        }
    }
}

/// A memory file of one owner, mapped whole; nobody else ever had a descriptor of it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only this value points to the mapping, like a `Box<[u8]>`.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        // SAFETY: a fresh mapping of our own file at an address the kernel chooses; the descriptor
        // is closed on return, so nobody can shorten the file.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { base, len })
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
    fn memory_of_any_size_is_zero_and_keeps_what_is_written() {
        for len in [0, 1, 100, MAPPED - 1, MAPPED, MAPPED + 1, 3 << 20] {
            let mut memory = IndexMemory::zeroed(len);
            assert_eq!(memory.len(), len);
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|byte| *byte == 7));
        }
    }
}
