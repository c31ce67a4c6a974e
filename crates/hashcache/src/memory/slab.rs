//! Slabs: 64 KiB pieces of a memory file, for hot objects and long writes.
//!
//! Why not the heap: objects of all sizes are stored and evicted for months, and a heap that served
//! them would grow holes that no budget knows of. A slab is freed whole.
//!
//! Invariant: bytes of a slab are written once, before any reader can see them. A slab is used
//! again only after its last reference is gone and its pages were punched out of the file: a socket
//! that still holds a page of it (sendfile) keeps the old bytes and never sees new ones.
#![expect(
    unsafe_code,
    reason = "shared memory is mapped and written through raw pointers"
)]

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::budget::{Budget, Reservation};
use super::wakes;

/// Size of a slab, bytes.
pub(super) const SLAB_BYTES: usize = 64 << 10;

/// A memory file cut into slabs.
pub(super) struct Arena {
    file: std::os::fd::OwnedFd,
    base: NonNull<u8>,
    slabs: usize,
    free: Mutex<Vec<u32>>,
}

// SAFETY: `base` points to a shared mapping that lives as long as the arena. It is only read
// through `Slice`s, whose bytes no one writes any more, and only written through the one `Open` of
// a slab, at bytes no `Slice` covers yet.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Room for `slabs` slabs. Takes address space only; the kernel adds pages when they are
    /// written.
    pub(super) fn new(slabs: usize) -> io::Result<Arc<Self>> {
        let file = rustix::fs::memfd_create("hashcache-hot", MemfdFlags::CLOEXEC)?;
        let bytes = slabs.max(1) * SLAB_BYTES;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // SAFETY: a fresh mapping of our own file at an address the kernel chooses; nothing else
        // refers to that memory, and the file is never truncated below its size.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        let count = u32::try_from(slabs.max(1)).map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            file,
            base,
            slabs: slabs.max(1),
            free: Mutex::new((0..count).rev().collect()),
        }))
    }

    /// An empty slab, if the arena has one and the budget has room for it and for `beside`: bytes
    /// that its owner needs to keep track of it.
    pub(super) fn open(self: &Arc<Self>, budget: &Budget, beside: u64) -> Option<Open> {
        let reservation = budget.reserve_free(SLAB_BYTES as u64 + beside)?;
        self.open_reserved(reservation).ok()
    }

    /// An empty slab that is accounted for by `reservation`, which is given back if there is none.
    pub(super) fn open_reserved(
        self: &Arc<Self>,
        reservation: Reservation,
    ) -> Result<Open, Reservation> {
        let Some(index) = self.free().pop() else {
            return Err(reservation);
        };
        let slab = Slab {
            arena: Arc::clone(self),
            index,
            reservation: Some(reservation),
        };
        Ok(Open {
            slab: Arc::new(slab),
            filled: 0,
        })
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // A list of numbers is whole at any time, whatever has panicked.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no slab, hence no slice, outlives the arena.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.slabs * SLAB_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}

struct Slab {
    arena: Arc<Arena>,
    index: u32,
    /// Until it is dropped.
    reservation: Option<Reservation>,
}

impl Slab {
    fn offset(&self) -> usize {
        self.index as usize * SLAB_BYTES
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let emptied = Emptied {
            arena: Arc::clone(&self.arena),
            index: self.index,
            _reservation: self.reservation.take(),
        };
        wakes::without_lock(move || emptied.give_back());
    }
}

/// A slab that nothing refers to any more. Until it is given back it is not free, and its memory
/// stays accounted for.
struct Emptied {
    arena: Arc<Arena>,
    index: u32,
    _reservation: Option<Reservation>,
}

impl Emptied {
    /// Punches the pages out of the file; then the slab is free. A system call, so not under a lock
    /// ([`wakes`]).
    fn give_back(self) {
        debug_assert!(!wakes::holds_lock(), "a system call under a lock");
        let punched = rustix::fs::fallocate(
            &self.arena.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            u64::from(self.index) * SLAB_BYTES as u64,
            SLAB_BYTES as u64,
        );
        // A slab that could not be punched is not used again: new bytes under an old page would be
        // a lie, a lost slab is only memory.
        if punched.is_ok() {
            self.arena.free().push(self.index);
        }
    }
}

/// A slab that is being filled; there is one handle to it.
pub(crate) struct Open {
    slab: Arc<Slab>,
    filled: usize,
}

impl Open {
    /// Bytes that still fit.
    pub(super) fn room(&self) -> usize {
        SLAB_BYTES - self.filled
    }

    /// Copies `bytes` in; they must fit.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Bytes {
        assert!(bytes.len() <= self.room());
        let at = self.slab.offset() + self.filled;
        // SAFETY: `at..at + len` lies within this slab, hence within the mapping; no slice covers
        // it yet because slices are made below only for bytes under `filled`, and `&mut self` is
        // the only handle that can append.
        unsafe {
            let to = self.slab.arena.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.filled += bytes.len();
        Bytes::from_owner(Slice {
            slab: Arc::clone(&self.slab),
            at,
            len: bytes.len(),
        })
    }
}

/// Filled bytes of a slab.
struct Slice {
    slab: Arc<Slab>,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range was filled before this slice was made, lies within the mapping, and is
        // not written again while `slab` is alive.
        unsafe { std::slice::from_raw_parts(self.slab.arena.base.as_ptr().add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_reused_only_after_its_last_slice_is_gone() {
        let budget = Budget::new(1 << 20);
        let arena = Arena::new(1).unwrap();
        let mut open = arena.open(&budget, 0).unwrap();
        let slice = open.append(b"old bytes");
        assert!(arena.open(&budget, 0).is_none());
        drop(open);
        assert!(arena.open(&budget, 0).is_none());
        assert_eq!(slice, &b"old bytes"[..]);
        drop(slice);
        assert_eq!(budget.used(), 0);
        let mut again = arena.open(&budget, 0).unwrap();
        assert_eq!(again.append(&[0; 3]), &[0; 3][..]);
    }

    #[test]
    fn a_spent_budget_gives_no_slab() {
        let budget = Budget::new(SLAB_BYTES as u64);
        let arena = Arena::new(8).unwrap();
        let _first = arena.open(&budget, 0).unwrap();
        assert!(arena.open(&budget, 0).is_none());
    }
}
