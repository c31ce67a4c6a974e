//! Wakers: they are other people's code, and run only when this thread holds no shard.
//!
//! Memory that comes back wakes those who wait for it. It also comes back where a hot object is let
//! go of to make room for another, under the lock of a shard. A waker that enters the cache there
//! would wait for the lock that its own thread holds, for ever.
//!
//! Called by `budget` to wake, and by `sharded_lock` when a value is locked and let go of.
//!
//! Invariant: what is left to be woken is woken when the thread lets go of the last value it
//! writes.
//! Cost: a counter of the thread's own for each lock that is taken to write.

use std::cell::{Cell, RefCell};
use std::task::Waker;

/// Present for as long as a value is locked. Behind the locks in a guard: it is dropped after them.
pub(super) struct Locked(());

#[derive(Default)]
struct Left {
    /// Values that this thread has locked.
    locked: Cell<usize>,
    wakers: RefCell<Vec<Waker>>,
}

#[cfg(not(all(test, loom)))]
std::thread_local! {
    static LEFT: Left = Left::default();
}

// Threads of a model share one of the system's.
#[cfg(all(test, loom))]
loom::thread_local! {
    static LEFT: Left = Left::default();
}

impl Locked {
    pub(super) fn new() -> Self {
        // A thread that ends has nobody to wake later: then it wakes at once.
        let _ = LEFT.try_with(|left| left.locked.set(left.locked.get() + 1));
        Self(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let wakers = LEFT.try_with(|left| {
            left.locked.set(left.locked.get().saturating_sub(1));
            match left.locked.get() {
                0 => std::mem::take(&mut *left.wakers.borrow_mut()),
                _ => Vec::new(),
            }
        });
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Wakes all of `wakers`, now or as soon as this thread holds no value.
pub(super) fn wake(mut wakers: Vec<Waker>) {
    if wakers.is_empty() {
        return;
    }
    let _ = LEFT.try_with(|left| {
        if left.locked.get() > 0 {
            left.wakers.borrow_mut().append(&mut wakers);
        }
    });
    wakers.into_iter().for_each(Waker::wake);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::super::budget::{Budget, Class};
    use super::super::sharded_lock::WideLocks;
    use super::*;

    /// Counts how often it is woken while the value is free.
    struct Tries {
        locks: Arc<WideLocks<u8, 2>>,
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
            locks: Arc::new(WideLocks::new([0, 0])),
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
}
