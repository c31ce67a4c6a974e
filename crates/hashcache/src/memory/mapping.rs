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
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of a huge page, bytes: the same on all processors that matter (x86-64, and arm64 with pages
/// of 4 KiB).
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

    /// [`HUGE_PAGE`] bytes without a name: one page, if the kernel has one to give. Otherwise
    /// they are 512 small pages, and a long read into them takes more than one command of the disk.
    ///
    /// # Errors
    /// The system has no more mappings to give.
    pub(super) fn huge_page() -> io::Result<Self> {
        let mapping = Self::anonymous(2 * HUGE_PAGE)?;
        let base = mapping.base.as_ptr();
        std::mem::forget(mapping);
        let before = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: the two pieces lie in the mapping made above, which nothing refers to; what is
        // left between them is the returned value's.
        unsafe {
            let kept = base.add(before);
            if before > 0 {
                rustix::mm::munmap(base.cast(), before)?;
            }
            if before < HUGE_PAGE {
                rustix::mm::munmap(kept.add(HUGE_PAGE).cast(), HUGE_PAGE - before)?;
            }
            // A kernel without huge pages refuses this, and the mapping is as good as any.
            let _ = rustix::mm::madvise(kept.cast(), HUGE_PAGE, Advice::LinuxHugepage);
            Self::at(kept, HUGE_PAGE)
        }
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
