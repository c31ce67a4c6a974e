//! Memory mappings with one owner: the memory is back with the system when the owner drops it,
//! whatever lies in the heap.
//!
//! Called by `buffer` and `index`.
//!
//! Invariant: bytes that were never written are zero and take no memory.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

use std::io;
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Bytes with a single owner, like a `Box<[u8]>`.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only this value points to the mapping.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes without a name.
    ///
    /// # Errors
    /// The system has no more mappings to give.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let any = std::ptr::null_mut();
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches nothing that
        // is there already.
        let base = unsafe { rustix::mm::mmap_anonymous(any, len, READ_WRITE, MapFlags::PRIVATE)? };
        Self::at(base.cast(), len)
    }

    /// `len` bytes of a memory file called `name`, as which `/proc/self/smaps` lists them.
    ///
    /// # Errors
    /// The system has no more files or mappings to give.
    pub(super) fn named(name: &str, len: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let any = std::ptr::null_mut();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping of our own file at an address the kernel chooses; the descriptor
        // is closed on return, so the file cannot be shortened.
        let base = unsafe { rustix::mm::mmap(any, len, READ_WRITE, flags, &file, 0)? };
        Self::at(base.cast(), len)
    }

    fn at(base: *mut u8, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { base, len })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were mapped at `base`, are zero or were written through `bytes_mut`,
        // and stay mapped as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; no reference to it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
