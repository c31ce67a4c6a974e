//! Memory mappings with one owner: when the owner drops a mapping, the kernel has the memory back,
//! however fragmented the heap is.
//!
//! Called by `buffer`, `buffer_pool`, `huge_buffers` and `index`.
//!
//! Invariant: bytes that were never written are zero and take no memory. A huge page takes all of
//! the memory at once.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

use std::io;
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of a huge page if small pages are 4 KiB, bytes.
pub(super) const HUGE_PAGE: usize = 2 << 20;

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
    /// An anonymous mapping of `len` bytes.
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

    /// An anonymous mapping of [`HUGE_PAGE`] bytes: one huge page if the kernel has one, otherwise
    /// small pages.
    ///
    /// # Errors
    /// The system has no more mappings to give.
    pub(super) fn huge_page() -> io::Result<Self> {
        let mut mapping = Self::anonymous(2 * HUGE_PAGE)?;
        let base = mapping.base.as_ptr();
        let before = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // `mapping` owns the rest at every step, so the rest is unmapped even if the next call
        // fails.
        if before > 0 {
            // SAFETY: the first bytes of the mapping, which nothing refers to.
            unsafe { rustix::mm::munmap(base.cast(), before)? };
            // SAFETY: `before` is less than the mapping's length.
            mapping.base = unsafe { mapping.base.add(before) };
            mapping.len -= before;
        }
        if mapping.len > HUGE_PAGE {
            // SAFETY: within the mapping.
            let behind = unsafe { mapping.base.add(HUGE_PAGE) };
            // SAFETY: the last bytes of the mapping, which nothing refers to.
            unsafe { rustix::mm::munmap(behind.as_ptr().cast(), mapping.len - HUGE_PAGE)? };
            mapping.len = HUGE_PAGE;
        }
        // A kernel without huge pages refuses the advice; the mapping works all the same.
        // SAFETY: the advice changes no byte.
        let _ = unsafe {
            rustix::mm::madvise(
                mapping.base.as_ptr().cast(),
                HUGE_PAGE,
                Advice::LinuxHugepage,
            )
        };
        Ok(mapping)
    }

    /// Maps `len` bytes from a memory file called `name`; `/proc/self/smaps` lists it under that
    /// name.
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
