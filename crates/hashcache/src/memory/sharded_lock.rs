//! Locks that any number of readers take without contending for a cache line.
//!
//! With an ordinary lock readers share the lock, but each reader writes to the same cache line to
//! register. On two processors that costs as much as the second processor adds. Here a reader takes
//! only the lock of the current lane, and a writer takes the locks of all lanes, always in the same
//! order, so two writers never deadlock.
//!
//! Invariant: a writer holds the lock in every lane; a reader holds it in one. So a reader and a
//! writer never hold a value at the same time. `cargo xtask loom` tries all orders (`models`).
//! Cost: to read, one lock; to write, [`lanes::count`] locks.
#![expect(
    unsafe_code,
    reason = "what several locks guard together lies outside of all of them"
)]

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::wakes::Locked;
use crate::lanes::{LANES_MAX, Lanes};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(all(test, loom))]
use loom::cell::{ConstPtr, MutPtr, UnsafeCell};
#[cfg(not(all(test, loom)))]
use plain::{ConstPtr, MutPtr, UnsafeCell};

/// `N` values, each with a lock.
pub(crate) struct ShardedLock<T, const N: usize> {
    lanes: Lanes<[RwLock<()>; N]>,
    values: Box<[Value<T>]>,
}

/// Each value has separate cache lines: otherwise a write would evict the neighbouring values from
/// the caches of their readers.
#[repr(align(128))]
struct Value<T>(UnsafeCell<T>);

// SAFETY: a `&T` is given only to holders of a lock in one lane, a `&mut T` only to holders of the
// lock in all lanes, which excludes every other; so this is as shareable as an `RwLock<T>`.
unsafe impl<T: Send + Sync, const N: usize> Sync for ShardedLock<T, N> {}
// SAFETY: it owns its values, and nothing in it belongs to a thread.
unsafe impl<T: Send, const N: usize> Send for ShardedLock<T, N> {}

impl<T, const N: usize> ShardedLock<T, N> {
    /// Exactly `N` values.
    pub(crate) fn new(values: impl IntoIterator<Item = T>) -> Self {
        let values: Box<[_]> = values
            .into_iter()
            .map(|it| Value(UnsafeCell::new(it)))
            .collect();
        assert_eq!(values.len(), N);
        Self {
            lanes: Lanes::new(|| std::array::from_fn(|_| RwLock::new(()))),
            values,
        }
    }

    /// Waits until no thread writes value `n`. Also returns true if a thread has panicked while it
    /// wrote the value: then the value may be half changed.
    pub(crate) fn read_anyway(&self, n: usize) -> (ReadLocked<'_, T>, bool) {
        let (lock, is_broken) = anyway(self.lanes.own()[n].read());
        let locked = ReadLocked {
            value: self.values[n].0.get(),
            _lock: lock,
            _locked: Locked::new(),
        };
        (locked, is_broken)
    }

    /// Waits until no thread reads or writes value `n`. Also returns true if the value may be half
    /// changed.
    pub(crate) fn write_anyway(&self, n: usize) -> (WriteLocked<'_, T>, bool) {
        let mut locks = [const { None }; LANES_MAX];
        let mut is_broken = false;
        for (held, lane) in locks.iter_mut().zip(self.lanes.iter()) {
            let (lock, is_poisoned) = anyway(lane[n].write());
            *held = Some(lock);
            is_broken |= is_poisoned;
        }
        (self.written(n, locks), is_broken)
    }

    fn written<'a>(
        &'a self,
        n: usize,
        locks: [Option<RwLockWriteGuard<'a, ()>>; LANES_MAX],
    ) -> WriteLocked<'a, T> {
        WriteLocked {
            value: self.values[n].0.get_mut(),
            _locks: locks,
            _locked: Locked::new(),
        }
    }

    /// Declares that value `n`, which the caller has locked with `_locked`, is whole again.
    pub(crate) fn mended(&self, n: usize, _locked: &mut WriteLocked<'_, T>) {
        // Loom's locks are never poisoned: a model in which a thread panics has failed.
        #[cfg(not(all(test, loom)))]
        self.lanes.iter().for_each(|lane| lane[n].clear_poison());
        #[cfg(all(test, loom))]
        let _ = n;
    }
}

#[cfg(test)]
impl<T, const N: usize> ShardedLock<T, N> {
    pub(crate) fn read(&self, n: usize) -> ReadLocked<'_, T> {
        self.read_anyway(n).0
    }

    pub(crate) fn write(&self, n: usize) -> WriteLocked<'_, T> {
        self.write_anyway(n).0
    }

    /// As [`Self::write`], but returns `None` if another thread reads or writes value `n` now.
    pub(crate) fn try_write(&self, n: usize) -> Option<WriteLocked<'_, T>> {
        let mut locks = [const { None }; LANES_MAX];
        for (held, lane) in locks.iter_mut().zip(self.lanes.iter()) {
            *held = Some(lane[n].try_write().ok()?);
        }
        Some(self.written(n, locks))
    }
}

/// The guard, and true if the lock is poisoned.
fn anyway<G>(locked: Result<G, PoisonError<G>>) -> (G, bool) {
    match locked {
        Ok(guard) => (guard, false),
        Err(poisoned) => (poisoned.into_inner(), true),
    }
}

/// A value that is locked for reading.
pub(crate) struct ReadLocked<'a, T> {
    // Declared before the lock, because fields are dropped in the order of declaration.
    value: ConstPtr<T>,
    _lock: RwLockReadGuard<'a, ()>,
    // After the guard: work that must not be done under the lock is done when this is dropped.
    _locked: Locked,
}

impl<T> Deref for ReadLocked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as `'a`, and it is not written while this lane's lock is
        // held.
        unsafe { self.value.deref() }
    }
}

/// A value that is locked for writing.
pub(crate) struct WriteLocked<'a, T> {
    // Before the locks, as above.
    value: MutPtr<T>,
    _locks: [Option<RwLockWriteGuard<'a, ()>>; LANES_MAX],
    // Behind the guards, as above.
    _locked: Locked,
}

impl<T> Deref for WriteLocked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as `'a`, and the lock is held in all lanes.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for WriteLocked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { self.value.deref() }
    }
}

/// A cell with the interface of loom's cell, without the checks.
#[cfg(not(all(test, loom)))]
mod plain {
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);
    pub(super) struct ConstPtr<T>(*const T);
    pub(super) struct MutPtr<T>(*mut T);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn get(&self) -> ConstPtr<T> {
            ConstPtr(self.0.get())
        }

        pub(super) fn get_mut(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }
    }

    impl<T> ConstPtr<T> {
        /// SAFETY: the caller ensures that the value is not written meanwhile.
        pub(super) unsafe fn deref(&self) -> &T {
            // SAFETY: as the caller ensures.
            unsafe { &*self.0 }
        }
    }

    impl<T> MutPtr<T> {
        /// SAFETY: the caller ensures that this is the only reference.
        #[expect(clippy::mut_from_ref, reason = "the face of loom's own type")]
        pub(super) unsafe fn deref(&self) -> &mut T {
            // SAFETY: as the caller ensures.
            unsafe { &mut *self.0 }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_reader_sees_what_one_writer_wrote_whole() {
        let locks = ShardedLock::<[u64; 8], 2>::new([[0; 8], [0; 8]]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..2_000 {
                        if n % 8 == 0 {
                            locks.write(1).iter_mut().for_each(|it| *it += 1);
                        }
                        let seen = *locks.read(1);
                        assert!(seen.iter().all(|it| *it == seen[0]), "{seen:?}");
                    }
                });
            }
        });
        assert_eq!((locks.read(0)[0], locks.read(1)[0]), (0, 1_000));
    }

    #[test]
    fn what_is_read_or_written_is_not_tried() {
        let locks = ShardedLock::<u8, 2>::new([1, 2]);
        let reader = locks.read(0);
        assert!(locks.try_write(0).is_none());
        // The locks that it had taken in other lanes are released.
        assert_eq!(*locks.read(0), 1);
        drop(reader);
        let writer = locks.try_write(0).unwrap();
        assert!(locks.try_write(0).is_none());
        assert_eq!(*locks.try_write(1).unwrap(), 2);
        drop(writer);
        assert!(locks.try_write(0).is_some());
    }
}
