//! Slabs: 64 KiB pieces of a memory file, for hot objects and long writes.
//!
//! Slabs are not in the heap for this reason: objects of all sizes are stored and evicted for
//! months, and a heap that served them would grow holes that no budget counts. A slab is freed
//! whole.
//!
//! Invariant: bytes of a slab are written once, before any reader can see them. A slab is reused
//! only after the last reference is dropped. So no slab may be given to the kernel by reference
//! (sendfile, MSG_ZEROCOPY): a socket would send new bytes under an old response.
//!
//! Cost: some empty slabs keep their pages and their reservation for the next hot objects and
//! transfers ([`RESIDENT_PART`]): punching the pages out and faulting them in again takes longer
//! than copying the bytes of a slab. All others are punched, and these too when the budget is
//! short.
#![expect(
    unsafe_code,
    reason = "shared memory is mapped and written through raw pointers"
)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::budget::{Budget, Reservation};
use super::wakes;

/// Size of a slab, bytes.
pub(super) const SLAB_BYTES: usize = 64 << 10;
/// Of all slabs, this part may keep its pages while it is empty. A stored stream has about this
/// much in flight: the queue to the writer, and a batch.
const RESIDENT_PART: usize = 8;
/// Maximum number of empty slabs that keep their pages: 32 MiB.
const RESIDENT_MAX: usize = 512;
/// Hot objects leave 1/64 of the budget to other uses.
const HEADROOM: u64 = 64;

/// A memory file cut into slabs.
pub(super) struct Arena {
    file: std::os::fd::OwnedFd,
    base: NonNull<u8>,
    slabs: usize,
    free: Mutex<FreeSlabs>,
    /// Maximum number of slabs that keep their pages while they are empty.
    resident_max: AtomicUsize,
    /// Number of empty slabs with pages, for figures.
    resident: AtomicUsize,
}

/// The slabs without references.
#[derive(Default)]
struct FreeSlabs {
    /// Without pages.
    punched: Vec<u32>,
    /// Slabs with pages, and the reservations for them.
    resident: Vec<(u32, Reservation)>,
}

// SAFETY: `base` points to a shared mapping that lives as long as the arena. It is only read
// through `Slice`s, which cover bytes that are not written any more, and only written through the
// single `Open` of a slab, at bytes no `Slice` covers yet.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Room for `slabs` slabs. Takes only address space; the kernel adds pages when they are
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
        let resident_max = AtomicUsize::new(resident_of(slabs));
        let count = u32::try_from(slabs.max(1)).map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            file,
            base,
            slabs: slabs.max(1),
            resident_max,
            resident: AtomicUsize::new(0),
            free: Mutex::new(FreeSlabs {
                punched: (0..count).rev().collect(),
                resident: Vec::new(),
            }),
        }))
    }

    /// An empty slab for hot objects, if the arena has one and the budget has room for the slab,
    /// for `beside` (bytes that the owner needs to keep track of the slab), and for `spared` more
    /// bytes.
    pub(super) fn open(
        self: &Arc<Self>,
        budget: &Budget,
        beside: u64,
        spared: u64,
    ) -> Option<Open> {
        let bytes = SLAB_BYTES as u64 + beside;
        // Requests take and release memory all the time. If hot objects took all remaining memory,
        // each request would make them give a slab back.
        let left = budget.limit() / HEADROOM + spared;
        let Some((index, mut reservation)) = self.take_resident() else {
            let reservation = budget.reserve_free_leaving(bytes, left)?;
            let index = self.free().punched.pop()?;
            return Some(self.open_at(index, reservation));
        };
        // A transfer's slab had no `beside` bytes. The reservation of an empty slab counts the 64
        // KiB already, so the headroom does not apply to them.
        let missing = bytes.saturating_sub(reservation.bytes());
        if missing > 0 {
            let Some(more) = budget.reserve_free(missing) else {
                // `keep` might punch the slab, a system call, and the caller holds a lock.
                let mut free = self.free();
                free.resident.push((index, reservation));
                self.resident.store(free.resident.len(), Ordering::Relaxed);
                drop(free);
                budget.wake_waiters();
                return None;
            };
            reservation.join(more);
        }
        Some(self.open_at(index, reservation))
    }

    /// An empty slab that is accounted for by `reservation`. Returns the reservation if there is no
    /// slab.
    pub(super) fn open_reserved(
        self: &Arc<Self>,
        reservation: Reservation,
    ) -> Result<Open, Reservation> {
        // The reservation of a resident slab is released, because `reservation` replaces it.
        let resident = self.take_resident().map(|(index, _)| index);
        match resident.or_else(|| self.free().punched.pop()) {
            Some(index) => Ok(self.open_at(index, reservation)),
            None => Err(reservation),
        }
    }

    fn take_resident(&self) -> Option<(u32, Reservation)> {
        let mut free = self.free();
        let resident = free.resident.pop();
        self.resident.store(free.resident.len(), Ordering::Relaxed);
        resident
    }

    fn open_at(self: &Arc<Self>, index: u32, reservation: Reservation) -> Open {
        let slab = Slab {
            arena: Arc::clone(self),
            index,
            reservation: Some(reservation),
        };
        Open {
            slab: Arc::new(slab),
            filled: 0,
        }
    }

    /// Limits the resident slabs, given that hot objects use at most `slabs` slabs. Makes system
    /// calls.
    pub(super) fn keep_within(&self, slabs: usize) {
        let resident_max = resident_of(slabs);
        self.resident_max.store(resident_max, Ordering::Relaxed);
        self.release_beyond(resident_max);
    }

    /// Bytes of slabs that keep their pages while they are empty.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed) as u64 * SLAB_BYTES as u64
    }

    /// Gives the pages of resident slabs back until `enough` returns true. Makes system calls.
    pub(super) fn release_resident(&self, enough: impl Fn() -> bool) {
        while !enough() {
            let Some((index, reservation)) = self.take_resident() else {
                return;
            };
            self.punch(index);
            drop(reservation);
        }
    }

    fn release_beyond(&self, kept: usize) {
        let beyond = {
            let mut free = self.free();
            let kept = kept.min(free.resident.len());
            let beyond = free.resident.split_off(kept);
            self.resident.store(kept, Ordering::Relaxed);
            beyond
        };
        for (index, reservation) in beyond {
            self.punch(index);
            drop(reservation);
        }
    }

    /// Punches a slab's pages out of the file; then the slab is free.
    fn punch(&self, index: u32) {
        debug_assert!(!wakes::holds_lock(), "a system call under a lock");
        let punched = rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            u64::from(index) * SLAB_BYTES as u64,
            SLAB_BYTES as u64,
        );
        // If the punch failed, no reservation counts the pages of the slab: do not use the slab
        // again.
        if punched.is_ok() {
            self.free().punched.push(index);
        }
    }

    /// Frees a slab: with its pages while few slabs keep theirs, otherwise without.
    fn keep(&self, index: u32, reservation: Reservation) {
        let budget = reservation.budget();
        // Callers that wait for the bulk share must not wait for idle slabs.
        let reservation = reservation.into_small();
        let mut free = self.free();
        if free.resident.len() < self.resident_max.load(Ordering::Relaxed) {
            free.resident.push((index, reservation));
            self.resident.store(free.resident.len(), Ordering::Relaxed);
            drop(free);
            budget.wake_waiters();
        } else {
            drop(free);
            self.punch(index);
            drop(reservation);
        }
    }

    fn free(&self) -> MutexGuard<'_, FreeSlabs> {
        // A panic cannot leave the lists half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn resident_of(slabs: usize) -> usize {
    (slabs / RESIDENT_PART).min(RESIDENT_MAX)
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
    /// `Some` until the slab is dropped.
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
            reservation: self.reservation.take(),
        };
        wakes::without_lock(move || emptied.give_back());
    }
}

/// A slab without references. Until it is given back it is not free, and the memory stays accounted
/// for.
struct Emptied {
    arena: Arc<Arena>,
    index: u32,
    reservation: Option<Reservation>,
}

impl Emptied {
    /// May make a system call, so the caller must hold no lock ([`wakes`]).
    fn give_back(mut self) {
        match self.reservation.take() {
            Some(reservation) => self.arena.keep(self.index, reservation),
            None => self.arena.punch(self.index),
        }
    }
}

/// A slab that is being filled. There is exactly one handle to it.
pub(crate) struct Open {
    slab: Arc<Slab>,
    filled: usize,
}

impl Open {
    /// Number of bytes that still fit.
    pub(super) fn room(&self) -> usize {
        SLAB_BYTES - self.filled
    }

    /// Copies `bytes`, which must fit, into the slab.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Bytes {
        assert!(bytes.len() <= self.room());
        let at = self.slab.offset() + self.filled;
        // SAFETY: `at..at + len` is within this slab, hence within the mapping; no slice covers it
        // yet because slices are made below only for bytes under `filled`, and `&mut self` is the
        // only handle that can append.
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
        // SAFETY: the range was filled before this slice was made, is within the mapping, and is
        // not written again while `slab` is alive.
        unsafe { std::slice::from_raw_parts(self.slab.arena.base.as_ptr().add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Class;
    use super::*;

    #[test]
    fn a_slab_is_reused_only_after_its_last_slice_is_gone() {
        let budget = Budget::new(1 << 20);
        let arena = Arena::new(1).unwrap();
        let mut open = arena.open(&budget, 0, 0).unwrap();
        let slice = open.append(b"old bytes");
        assert!(arena.open(&budget, 0, 0).is_none());
        drop(open);
        assert!(arena.open(&budget, 0, 0).is_none());
        assert_eq!(slice, &b"old bytes"[..]);
        drop(slice);
        assert_eq!(budget.used(), 0);
        let mut again = arena.open(&budget, 0, 0).unwrap();
        assert_eq!(again.append(&[0; 3]), &[0; 3][..]);
    }

    #[test]
    fn slabs_that_keep_their_pages_are_released_for_others() {
        let budget = Budget::new(16 << 20);
        let arena = Arena::new(100).unwrap();
        let open: Vec<_> = (0..100)
            .map(|_| arena.open(&budget, 0, 0).unwrap())
            .collect();
        drop(open);
        let resident = 100 / RESIDENT_PART;
        assert_eq!(budget.used(), (resident * SLAB_BYTES) as u64);
        let mut again = arena.open(&budget, 0, 0).unwrap();
        assert_eq!(budget.used(), (resident * SLAB_BYTES) as u64);
        assert_eq!(again.append(&[1; 3]), &[1; 3][..]);
        drop(again);
        // A writer has separate reservations, which its slabs keep while they are empty.
        let of_writer = |_| budget.reserve(SLAB_BYTES as u64).unwrap();
        let written: Vec<_> = (0..100)
            .map(of_writer)
            .map(|reservation| arena.open_reserved(reservation).unwrap())
            .collect();
        assert_eq!(budget.used(), 100 * SLAB_BYTES as u64);
        drop(written);
        assert_eq!(budget.used(), (resident * SLAB_BYTES) as u64);
        arena.release_resident(|| budget.used() == SLAB_BYTES as u64);
        assert_eq!(budget.used(), SLAB_BYTES as u64);
    }

    #[test]
    fn a_slab_of_a_transfer_is_small_while_it_is_empty_and_pays_for_a_hot_one() {
        let budget = Budget::new(16 << 20);
        let arena = Arena::new(100).unwrap();
        let bulk = budget.reserve_as(Class::Bulk, SLAB_BYTES as u64).unwrap();
        drop(arena.open_reserved(bulk).unwrap());
        assert_eq!(budget.used(), SLAB_BYTES as u64);
        // The whole bulk share is free.
        let share = budget.limit() / 4 * 3;
        assert!(budget.reserve_as(Class::Bulk, share).is_some());
        let open = arena.open(&budget, 1000, 0).unwrap();
        assert_eq!(budget.used(), SLAB_BYTES as u64 + 1000);
        drop(open);
        let _rest = budget.reserve_free(budget.limit() - budget.used());
        assert!(
            arena.open(&budget, 2000, 0).is_none(),
            "no memory beside it"
        );
        assert_eq!(arena.resident_bytes(), SLAB_BYTES as u64, "it is kept");
    }

    #[test]
    fn an_empty_slab_is_opened_whatever_else_the_budget_has() {
        let budget = Budget::new(16 << 20);
        let arena = Arena::new(100).unwrap();
        drop(arena.open(&budget, 0, 0).unwrap());
        let rest = budget.limit() - budget.used();
        let _rest = budget
            .reserve_free(rest - budget.limit() / HEADROOM / 2)
            .unwrap();
        let _open = arena
            .open(&budget, 0, 0)
            .expect("its memory is counted already");
        assert!(
            arena.open(&budget, 0, 0).is_none(),
            "the headroom is for others"
        );
    }

    #[test]
    fn a_spent_budget_gives_no_slab() {
        let budget = Budget::new(SLAB_BYTES as u64 * 3 / 2);
        let arena = Arena::new(8).unwrap();
        let _first = arena.open(&budget, 0, 0).unwrap();
        assert!(arena.open(&budget, 0, 0).is_none());
    }
}
