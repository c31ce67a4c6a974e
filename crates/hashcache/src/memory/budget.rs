//! The one budget of memory: whoever wants to hold bytes reserves them first.
//!
//! When it is spent, hot objects make room; when that is not enough, the caller waits or goes
//! without.
//! Cost: two atomic operations a reservation.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Reclaim = Box<dyn Fn(u64) + Send + Sync>;

struct Inner {
    limit: u64,
    used: AtomicU64,
    /// How often something was released.
    releases: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
    /// Number of callers blocked in `reserve_blocking`, so that a release costs nothing without
    /// any.
    blocked: Mutex<usize>,
    released: Condvar,
    reclaim: OnceLock<Reclaim>,
}

/// Hands out reservations up to a limit.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

/// Bytes set aside until this is dropped.
pub struct Reservation {
    inner: Arc<Inner>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit,
            used: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            waiting: Mutex::default(),
            blocked: Mutex::new(0),
            released: Condvar::new(),
            reclaim: OnceLock::new(),
        }))
    }

    /// Who is asked to give back memory when the budget is spent. Only the first call counts.
    pub(crate) fn reclaim_from(&self, reclaim: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.0.reclaim.set(Box::new(reclaim));
    }

    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Sets `bytes` aside if there is room, without asking anybody to make some.
    pub(crate) fn reserve_free(&self, bytes: u64) -> Option<Reservation> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.0.limit);
        let taken = self
            .0
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits);
        taken.is_ok().then(|| Reservation {
            inner: Arc::clone(&self.0),
            bytes,
        })
    }

    /// Sets `bytes` aside, at the cost of hot objects if need be.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        if let Some(reservation) = self.reserve_free(bytes) {
            return Some(reservation);
        }
        let reclaim = self.0.reclaim.get()?;
        // Some more than asked for, so that not every reservation at the limit pays for a search.
        reclaim(bytes.saturating_add(self.0.limit / 64));
        self.reserve_free(bytes)
    }

    /// The same for a thread that may wait, up to `patience`.
    pub(crate) fn reserve_blocking(&self, bytes: u64, patience: Duration) -> Option<Reservation> {
        if let Some(reservation) = self.reserve(bytes) {
            return Some(reservation);
        }
        let blocked = || {
            self.0
                .blocked
                .lock()
                .expect("no holder of this lock panics")
        };
        *blocked() += 1;
        let mut left = patience;
        let reservation = loop {
            let releases = self.releases();
            // Without the lock: what makes room releases reservations, which takes it.
            let reservation = self.reserve(bytes);
            if reservation.is_some() || left.is_zero() {
                break reservation;
            }
            let guard = blocked();
            if self.releases() != releases {
                // Next to nothing of the patience is spent; but some, so that this ends.
                left = left.saturating_sub(Duration::from_micros(50));
                continue;
            }
            let wait = left.min(Duration::from_millis(20));
            let waited = self.0.released.wait_timeout(guard, wait);
            let (guard, timeout) = waited.expect("no holder of this lock panics");
            drop(guard);
            left -= if timeout.timed_out() {
                wait
            } else {
                wait.min(Duration::from_micros(50))
            };
        };
        *blocked() -= 1;
        reservation
    }

    /// How often something was released; for [`Budget::released_since`].
    pub(crate) fn releases(&self) -> u64 {
        self.0.releases.load(Ordering::Acquire)
    }

    /// Resolves when something was released since there had been `releases`.
    pub(crate) fn released_since(&self, releases: u64) -> Waiting {
        Waiting {
            inner: Arc::clone(&self.0),
            releases,
        }
    }
}

impl Reservation {
    /// Bytes set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.inner.release(self.bytes);
        }
    }
}

impl Inner {
    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        self.releases.fetch_add(1, Ordering::AcqRel);
        let waiting = {
            let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
            std::mem::take(&mut *waiting)
        };
        for waker in waiting {
            waker.wake();
        }
        if *self.blocked.lock().expect("no holder of this lock panics") > 0 {
            self.released.notify_all();
        }
    }
}

/// See [`Budget::released_since`].
pub(crate) struct Waiting {
    inner: Arc<Inner>,
    releases: u64,
}

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self
            .inner
            .waiting
            .lock()
            .expect("no holder of this lock panics");
        // Under the lock that a release takes after it has counted itself: none is missed.
        if self.inner.releases.load(Ordering::Acquire) != self.releases {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_limit_is_out() {
        let budget = Budget::new(100);
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        let second = budget.reserve(40).unwrap();
        assert!(budget.reserve(1).is_none());
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 40);
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_can_be_reclaimed_is_reclaimed_before_a_caller_goes_without() {
        let budget = Budget::new(100);
        let hot = Arc::new(Mutex::new(Some(budget.reserve(80).unwrap())));
        budget.reclaim_from(move |_| drop(hot.lock().unwrap().take()));
        assert!(budget.reserve(50).is_some());
    }

    #[test]
    fn a_blocked_caller_gets_what_is_reclaimed_for_it() {
        let budget = Budget::new(100);
        let spent = budget.reserve(90).unwrap();
        let hot = Arc::new(Mutex::new(vec![budget.reserve(10).unwrap()]));
        let calls = AtomicU64::new(0);
        // The first time there is nothing to reclaim, the second time, under way to wait, there is.
        budget.reclaim_from(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) > 0 {
                drop(hot.lock().unwrap().pop());
            }
        });
        assert!(
            budget
                .reserve_blocking(10, Duration::from_secs(60))
                .is_some()
        );
        drop(spent);
    }

    #[test]
    fn a_release_before_the_wait_for_it_is_not_missed() {
        let budget = Budget::new(10);
        let all = budget.reserve(10).unwrap();
        let before = budget.releases();
        assert!(budget.reserve(1).is_none());
        drop(all);
        let mut released = budget.released_since(before);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut released).poll(&mut context).is_ready());
    }

    #[test]
    fn a_blocked_caller_goes_on_when_memory_is_released() {
        let budget = Budget::new(10);
        let all = budget.reserve(10).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                budget
                    .reserve_blocking(10, Duration::from_secs(60))
                    .is_some()
            });
            drop(all);
            assert!(waiter.join().unwrap());
        });
        let _all = budget.reserve(10).unwrap();
        assert!(
            budget
                .reserve_blocking(1, Duration::from_millis(1))
                .is_none()
        );
    }
}
