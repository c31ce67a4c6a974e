//! A value that is made by one thread while any number of tasks or threads wait for it.
//!
//! Needs no async runtime: a plain `Future` for tasks, [`Outcome::wait`] for threads. Used for
//! reads from disk, removes and flushes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::memory::wake;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

struct OutcomeState<T> {
    value: Option<T>,
    wakers: Vec<Waker>,
    /// Number of blocked threads: if it is 0, no system call is made to wake them.
    blocked: usize,
}

impl<T> OutcomeState<T> {
    fn new(value: Option<T>) -> Mutex<Self> {
        Mutex::new(Self {
            value,
            wakers: Vec::new(),
            blocked: 0,
        })
    }
}

struct OutcomeCell<T> {
    state: Mutex<OutcomeState<T>>,
    set: Condvar,
}

impl<T> OutcomeCell<T> {
    fn lock(&self) -> MutexGuard<'_, OutcomeState<T>> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// The side that makes the value. If the promise is dropped without a value, the value is the
/// default: no caller waits forever.
pub(crate) struct Promise<T: Default>(Arc<OutcomeCell<T>>);

/// The side that waits; may be cloned.
pub struct Outcome<T>(Arc<OutcomeCell<T>>);

pub(crate) fn promise<T: Default + Clone>() -> (Promise<T>, Outcome<T>) {
    let shared = Arc::new(OutcomeCell {
        state: OutcomeState::new(None),
        set: Condvar::new(),
    });
    (Promise(Arc::clone(&shared)), Outcome(shared))
}

impl<T: Default> Promise<T> {
    pub(crate) fn set(self, value: T) {
        self.fulfil(value);
    }

    /// Returns true if the other side still exists.
    pub(crate) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn fulfil(&self, value: T) {
        let (wakers, blocked) = {
            let mut state = self.0.lock();
            if state.value.is_some() {
                return;
            }
            state.value = Some(value);
            (std::mem::take(&mut state.wakers), state.blocked)
        };
        if blocked > 0 {
            self.0.set.notify_all();
        }
        wake(wakers);
    }
}

impl<T: Default> Drop for Promise<T> {
    fn drop(&mut self) {
        self.fulfil(T::default());
    }
}

/// Part of an outcome that several promises share. The outcome is good if all parts are kept.
pub(crate) struct OutcomePart {
    whole: Arc<AllParts>,
    kept: bool,
}

struct AllParts {
    promise: Option<Promise<bool>>,
    broken: AtomicBool,
}

/// `count` parts, and their common outcome.
pub(crate) fn parts(count: usize) -> (Vec<OutcomePart>, Outcome<bool>) {
    let (promise, outcome) = promise();
    let whole = Arc::new(AllParts {
        promise: Some(promise),
        broken: AtomicBool::new(false),
    });
    let part = |_| OutcomePart {
        whole: Arc::clone(&whole),
        kept: false,
    };
    ((0..count).map(part).collect(), outcome)
}

impl OutcomePart {
    /// Returns true if the outcome still exists.
    pub(crate) fn is_awaited(&self) -> bool {
        self.whole.promise.as_ref().is_some_and(Promise::is_awaited)
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for OutcomePart {
    fn drop(&mut self) {
        if !self.kept {
            self.whole.broken.store(true, Ordering::Release);
        }
    }
}

impl Drop for AllParts {
    fn drop(&mut self) {
        if let Some(promise) = self.promise.take() {
            promise.set(!self.broken.load(Ordering::Acquire));
        }
    }
}

impl<T: Clone> Outcome<T> {
    /// An outcome that is known already.
    pub(crate) fn ready(value: T) -> Self {
        Self(Arc::new(OutcomeCell {
            state: OutcomeState::new(Some(value)),
            set: Condvar::new(),
        }))
    }

    /// Blocks until the value is available.
    pub fn wait(&self) -> T {
        let mut state = self.0.lock();
        loop {
            if let Some(value) = &state.value {
                return value.clone();
            }
            state.blocked += 1;
            state = self
                .0
                .set
                .wait(state)
                .expect("no holder of this lock panics");
            state.blocked -= 1;
        }
    }

    /// Blocks until the value is available, at most for `patience`. (Loom has no time.)
    #[cfg(not(all(test, loom)))]
    pub(crate) fn wait_for(&self, patience: std::time::Duration) -> Option<T> {
        let mut state = self.0.lock();
        state.blocked += 1;
        let missing = |state: &mut OutcomeState<T>| state.value.is_none();
        let (mut state, _) = self
            .0
            .set
            .wait_timeout_while(state, patience, missing)
            .expect("no holder of this lock panics");
        state.blocked -= 1;
        state.value.clone()
    }
}

#[cfg(all(test, loom))]
impl<T: Clone> Outcome<T> {
    pub(crate) fn wait_for(&self, _patience: std::time::Duration) -> Option<T> {
        Some(self.wait())
    }
}

impl<T> Clone for Outcome<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone> Future for Outcome<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        if let Some(value) = &state.value {
            return Poll::Ready(value.clone());
        }
        // A task that is polled several times registers once.
        if !state
            .wakers
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_waiter_gets_the_value() {
        let (promise, outcome) = promise::<u32>();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    let outcome = outcome.clone();
                    scope.spawn(move || outcome.wait())
                })
                .collect();
            promise.set(7);
            assert!(
                waiters
                    .into_iter()
                    .all(|waiter| waiter.join().unwrap() == 7)
            );
        });
    }

    #[test]
    fn parts_are_good_only_when_all_are_kept() {
        let (all, outcome) = parts(3);
        for part in all {
            assert!(outcome.wait_for(std::time::Duration::ZERO).is_none());
            part.keep();
        }
        assert!(outcome.wait());
        let (mut all, outcome) = parts(2);
        drop(all.pop());
        all.pop().unwrap().keep();
        assert!(!outcome.wait());
    }

    #[test]
    fn a_broken_promise_leaves_nobody_waiting() {
        let (promise, outcome) = promise::<Option<u32>>();
        drop(promise);
        assert_eq!(outcome.wait(), None);
    }
}
