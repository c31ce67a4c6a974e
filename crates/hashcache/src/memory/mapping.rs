//! Memory mappings with one owner: the memory is back with the system when the owner drops it,
//! whatever lies in the heap.
//!
//! Called by `buffer`, `buffer_pool`, `huge_buffers` and `index`.
//!
//! Invariant: bytes that were never written are zero and take no memory. A huge page takes all of
//! its memory at once.
#![expect(unsafe_code, reason = "memory is mapped and unmapped")]

use std::io;
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of a huge page with small pages of 4 KiB, bytes.
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

    /// [`HUGE_PAGE`] bytes without a name: one page if the kernel has one to give, else many.
    ///
    /// # Errors
    /// The system has no more mappings to give.
    pub(super) fn huge_page() -> io::Result<Self> {
        let mut mapping = Self::anonymous(2 * HUGE_PAGE)?;
        let base = mapping.base.as_ptr();
        let before = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // What is left of the mapping is its owner's at every step, also when the next one fails.
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
        // A kernel that has no huge pages refuses the advice, and the mapping is as good as any.
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
