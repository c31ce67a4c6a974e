//! Delays work that must not run under a lock: wakers, which are foreign code, and the system calls
//! that give slabs back.
//!
//! A release of memory wakes the callers that wait for it. Memory is also released where a record
//! is dropped under a lock of the engine. A waker that called the cache there would wait forever
//! for the lock that its own thread holds. A hole punched there would make all other threads wait
//! for the kernel.
//!
//! Called by `sharded_lock` and [`marked`] when a lock is taken and released; by `budget`,
//! `completion` and `cache` to wake, and by `slab` to give slabs back.
//!
//! Invariant: delayed work is done when the thread releases its last lock. While a thread holds a
//! lock, the budget evicts nothing to make room for that thread ([`holds_lock`]): memory that is
//! dropped then would not be released before the lock is.
//! Cost: a thread-local counter for each lock that is taken.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::task::Waker;

/// Exists as long as a lock is held. In a guard it is declared after the lock, so that it is
/// dropped after the lock.
pub(super) struct Locked(());

/// Number of locks that this thread holds, and a flag for delayed work. The type has no destructor,
/// so that reading it costs no more than a thread-local read.
struct HeldLocks {
    locks: Cell<usize>,
    is_any_left: Cell<bool>,
}

#[derive(Default)]
struct DelayedWork {
    wakers: Vec<Waker>,
    work: Vec<Box<dyn FnOnce()>>,
}

#[cfg(not(all(test, loom)))]
std::thread_local! {
    static HELD: HeldLocks = const {
        HeldLocks {
            locks: Cell::new(0),
            is_any_left: Cell::new(false),
        }
    };
    static LEFT: RefCell<DelayedWork> = const {
        RefCell::new(DelayedWork {
            wakers: Vec::new(),
            work: Vec::new(),
        })
    };
}

// Threads in a loom model share a system thread.
#[cfg(all(test, loom))]
loom::thread_local! {
    static HELD: HeldLocks = HeldLocks {
        locks: Cell::new(0),
        is_any_left: Cell::new(false),
    };
    static LEFT: RefCell<DelayedWork> = RefCell::default();
}

/// Returns true if this thread holds a lock under which nothing may be woken or given back.
pub(super) fn holds_lock() -> bool {
    HELD.try_with(|held| held.locks.get() > 0).unwrap_or(false)
}

impl Locked {
    pub(super) fn new() -> Self {
        let _ = HELD.try_with(|held| held.locks.set(held.locks.get() + 1));
        Self(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let is_due = HELD.try_with(|held| {
            held.locks.set(held.locks.get().saturating_sub(1));
            held.locks.get() == 0 && held.is_any_left.replace(false)
        });
        if is_due.unwrap_or(false) {
            let left = LEFT.try_with(RefCell::take).unwrap_or_default();
            // Give memory back first, so that a woken caller finds it.
            left.work.into_iter().for_each(|work| work());
            left.wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Returns true if work must be delayed. A thread that is about to terminate has no list of delayed
/// work any more, and does the work at once.
fn is_for_later() -> bool {
    holds_lock() && LEFT.try_with(|_| ()).is_ok()
}

/// Adds delayed work with `list`.
fn leave(list: impl FnOnce(&mut DelayedWork)) {
    let _ = LEFT.try_with(|left| list(&mut left.borrow_mut()));
    let _ = HELD.try_with(|held| held.is_any_left.set(true));
}

/// Wakes all `wakers`, now or as soon as this thread holds no lock.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    let wakers = wakers.into_iter();
    if is_for_later() {
        leave(|left| left.wakers.extend(wakers));
    } else {
        wakers.for_each(Waker::wake);
    }
}

/// Does `work`, now or as soon as this thread holds no lock; before it wakes anything.
pub(super) fn without_lock(work: impl FnOnce() + 'static) {
    if is_for_later() {
        leave(|left| left.work.push(Box::new(work)));
    } else {
        work();
    }
}

/// A guard of an ordinary lock under which memory may be dropped.
pub(crate) struct Marked<G> {
    guard: G,
    // Declared after the guard, as above.
    _locked: Locked,
}

/// Marks the lock of `guard` as a lock under which nothing is woken or given back.
pub(crate) fn marked<G>(guard: G) -> Marked<G> {
    Marked {
        guard,
        _locked: Locked::new(),
    }
}

impl<G: Deref> Deref for Marked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Marked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::super::budget::{Budget, Class};
    use super::super::sharded_lock::ShardedLock;
    use super::super::slab::Arena;
    use super::*;

    /// Counts the wakes while the value is not locked.
    struct Tries {
        locks: Arc<ShardedLock<u8, 2>>,
        free: AtomicUsize,
    }

    impl Wake for Tries {
        fn wake(self: Arc<Self>) {
            let is_free = self.locks.try_write(0).is_some();
            self.free.fetch_add(usize::from(is_free), Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_for_memory_is_woken_when_no_shard_is_locked_any_more() {
        let tries = Arc::new(Tries {
            locks: Arc::new(ShardedLock::new([0, 0])),
            free: AtomicUsize::new(0),
        });
        let waker = Waker::from(Arc::clone(&tries));
        let budget = Budget::new(100);
        let held = budget.reserve(100).unwrap();
        let mut waiting = Box::pin(budget.room_since(budget.releases(), Class::Small, 10));
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let (other, own) = (tries.locks.write(1), tries.locks.write(0));
        drop(held);
        drop(other);
        assert_eq!(
            Arc::strong_count(&tries),
            3,
            "somebody was woken under the lock"
        );
        drop(own);
        assert_eq!(tries.free.load(Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn who_waits_for_memory_is_not_woken_under_a_lock_that_is_held_to_read() {
        let tries = Arc::new(Tries {
            locks: Arc::new(ShardedLock::new([0, 0])),
            free: AtomicUsize::new(0),
        });
        let waker = Waker::from(Arc::clone(&tries));
        let budget = Budget::new(100);
        let held = budget.reserve(100).unwrap();
        let mut waiting = Box::pin(budget.room_since(budget.releases(), Class::Small, 10));
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let own = tries.locks.read(0);
        drop(held);
        drop(own);
        assert_eq!(tries.free.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_slab_is_given_back_when_the_thread_holds_no_lock_and_not_before() {
        let locks = ShardedLock::<u8, 2>::new([0, 0]);
        let other = std::sync::Mutex::new(());
        let budget = Budget::new(1 << 20);
        let arena = Arena::new(1).unwrap();
        let slice = || arena.open(&budget, 0, 0).unwrap().append(b"bytes");
        let is_given_back = || arena.open(&budget, 0, 0).is_some();
        let held = slice();
        let (writer, reader) = (locks.write(0), locks.read(1));
        let marked = marked(other.lock().unwrap());
        drop(held);
        assert!(budget.used() > 0, "off the books before it is free");
        drop((writer, reader));
        assert!(arena.open(&budget, 0, 0).is_none());
        drop(marked);
        assert_eq!(budget.used(), 0);
        assert!(is_given_back());
        // At once if no lock is held.
        drop(slice());
        assert!(is_given_back());
    }

    #[test]
    fn under_a_lock_no_hot_object_makes_room() {
        let locks = ShardedLock::<u8, 1>::new([0]);
        let budget = Budget::new(100);
        let hot = Arc::new(std::sync::Mutex::new(budget.reserve(80)));
        budget.reclaim_from(move |_| drop(hot.lock().unwrap().take()));
        let locked = locks.read(0);
        assert!(budget.reserve(50).is_none());
        assert!(budget.reserve(20).is_some());
        drop(locked);
        assert!(budget.reserve(50).is_some());
    }
}
