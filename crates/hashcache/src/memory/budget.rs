//! The one memory budget: code that wants to hold bytes reserves them first.
//!
//! When the budget is spent, hot objects are evicted to make room. If that is not enough, the
//! caller waits or continues without the memory. Content that a slow client may hold for long
//! ([`Class::Bulk`]) leaves a quarter to everything else, so a hit, a page or a small miss never
//! waits for slow transfers.
//!
//! Invariants: a release wakes waiters in the order in which they queued, and only waiters for
//! which there are enough free bytes; so does a slab that hot objects could give back. A refused
//! reservation releases nothing. Otherwise the waiters would wake each other for as long as the
//! budget is spent. Transfers take turns ([`Turn`]): a transfer that has just released memory does
//! not take it back before the waiters.
//! Cost: two atomic operations a reservation, four for bulk.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use super::wakes;

type Reclaim = Box<dyn Fn(u64) + Send + Sync>;

/// Evictions for a reservation of small memory, whose caller fails without it.
const RECLAIMS: usize = 8;

/// The purpose of a reservation, which decides how much of the budget it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Small memory, or memory that is released soon. May take the whole budget.
    Small,
    /// Content of transfers, which a slow client can hold without a time limit. May take three
    /// quarters of the limit.
    Bulk,
}

/// State of a caller that wants bulk memory: new, or after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The caller has not waited yet: callers that wait are served first.
    New,
    /// The caller was refused and has waited since.
    Waited,
}

struct Inner {
    limit: u64,
    /// Bytes of the limit that nobody may reserve now.
    aside: AtomicU64,
    used: AtomicU64,
    /// Bytes of `used` that are bulk.
    bulk: AtomicU64,
    /// Number of releases so far.
    releases: AtomicU64,
    waiting: Mutex<Queues>,
    /// Number of callers that wait for bulk memory.
    bulk_waiters: AtomicU64,
    /// Number of threads blocked in `reserve_blocking`. While it is 0, a release does not pay for
    /// waking threads.
    blocked: Mutex<usize>,
    released: Condvar,
    reclaim: OnceLock<Reclaim>,
}

/// The callers that wait, and for how many bytes each. The caller that has waited longest is first.
#[derive(Default)]
struct Queues {
    small: VecDeque<QueuedWait>,
    bulk: VecDeque<QueuedWait>,
    next_number: u64,
}

struct QueuedWait {
    number: u64,
    bytes: u64,
    waker: Waker,
}

/// Gives out reservations up to a limit.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

/// The reservations of a write. A small object has four: for the metadata and for the content, each
/// from the share for writes and from the whole budget.
pub(crate) type Reservations = SmallVec<[Reservation; 4]>;

/// Bytes that are reserved until this is dropped.
pub struct Reservation {
    inner: Arc<Inner>,
    bytes: u64,
    class: Class,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit,
            aside: AtomicU64::new(0),
            used: AtomicU64::new(0),
            bulk: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            waiting: Mutex::default(),
            bulk_waiters: AtomicU64::new(0),
            blocked: Mutex::new(0),
            released: Condvar::new(),
            reclaim: OnceLock::new(),
        }))
    }

    /// Sets the function that gives memory back when the budget is spent. Only the first call
    /// counts.
    pub(crate) fn reclaim_from(&self, reclaim: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.0.reclaim.set(Box::new(reclaim));
    }

    /// The limit, with the bytes that are set aside.
    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that callers may reserve in total: the limit without the bytes that are set aside.
    pub(crate) fn reservable(&self) -> u64 {
        self.0.reservable()
    }

    /// Sets `bytes` of the limit aside, in place of the bytes that were set aside before, and
    /// evicts hot objects if more is reserved than the rest. The shares of the classes become
    /// smaller in proportion. Must not be called under a lock of the engine.
    pub(super) fn set_aside(&self, bytes: u64) {
        let before = self.0.aside.swap(bytes.min(self.0.limit), Ordering::AcqRel);
        if bytes < before {
            self.0.note_release();
        }
        let beyond = self.used().saturating_sub(self.reservable());
        if let Some(reclaim) = self.0.reclaim.get().filter(|_| beyond > 0) {
            reclaim(beyond);
        }
    }

    /// Number of bytes that are set aside.
    pub(crate) fn aside(&self) -> u64 {
        self.0.aside.load(Ordering::Relaxed)
    }

    /// Returns true if both handles refer to the same budget.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` if there is room, without evicting hot objects.
    pub(crate) fn reserve_free(&self, bytes: u64) -> Option<Reservation> {
        self.reserve_free_leaving(bytes, 0)
    }

    /// As [`Budget::reserve_free`], but only if `left` bytes stay free.
    pub(crate) fn reserve_free_leaving(&self, bytes: u64, left: u64) -> Option<Reservation> {
        let limit = self.reservable().saturating_sub(left);
        take(&self.0.used, bytes, limit).then(|| self.reservation(bytes))
    }

    /// Wakes callers that wait for memory, although none was released: the pages of resident slabs
    /// are released only when a caller reserves.
    pub(super) fn wake_waiters(&self) {
        self.0.note_release();
    }

    /// Reserves `bytes` and evicts hot objects if necessary. Under a lock of the engine it succeeds
    /// only if there is room already.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.reserve_reclaiming(bytes, RECLAIMS)
    }

    /// As [`Budget::reserve`], with at most `reclaims` evictions: between the eviction and the
    /// reservation other callers may take what was evicted.
    fn reserve_reclaiming(&self, bytes: u64, reclaims: usize) -> Option<Reservation> {
        if let Some(reservation) = self.reserve_free(bytes) {
            return Some(reservation);
        }
        // Memory of evicted objects is released only after the caller has released the lock: all
        // hot objects would be dropped for nothing.
        if wakes::holds_lock() {
            return None;
        }
        let reclaim = self.0.reclaim.get()?;
        for _ in 0..reclaims {
            let releases = self.releases();
            // Reclaim more than `bytes`, so that not every reservation at the limit pays for a
            // search.
            reclaim(bytes.saturating_add(self.0.limit / 64));
            let reservation = self
                .reserve_free(bytes)
                .or_else(|| self.reserve_beside_bulk(bytes));
            if reservation.is_some() || self.releases() == releases {
                return reservation;
            }
        }
        None
    }

    /// As [`Budget::reserve_free`], also from the bytes that were set aside while bulk memory was
    /// held that is now more than its share: such memory must not take the quarter for others.
    fn reserve_beside_bulk(&self, bytes: u64) -> Option<Reservation> {
        let bulk = self.0.bulk.load(Ordering::Acquire);
        let aside_max = self.0.limit.saturating_sub(bulk / 3 * 4);
        let limit = self.0.limit - self.aside().min(aside_max);
        take(&self.0.used, bytes, limit).then(|| self.reservation(bytes))
    }

    fn reservation(&self, bytes: u64) -> Reservation {
        Reservation {
            inner: Arc::clone(&self.0),
            bytes,
            class: Class::Small,
        }
    }

    /// As [`Budget::reserve`], for `class`. A bulk reservation that would exceed the bulk share
    /// fails without evicting hot objects.
    pub(crate) fn reserve_as(&self, class: Class, bytes: u64) -> Option<Reservation> {
        if class == Class::Small {
            return self.reserve(bytes);
        }
        if !take(&self.0.bulk, bytes, self.0.bulk_limit()) {
            return None;
        }
        // Transfers wait when they are refused, so they need not compete for what was evicted.
        let mut reservation = self.reserve_reclaiming(bytes, 1);
        match &mut reservation {
            Some(reservation) => reservation.class = Class::Bulk,
            None => {
                self.0.bulk.fetch_sub(bytes, Ordering::AcqRel);
            }
        }
        reservation
    }

    /// As [`Budget::reserve_as`], for a caller that reserves often, next to many others: with
    /// [`Turn::New`], a bulk reservation fails while other callers wait.
    pub(crate) fn reserve_in_turn(
        &self,
        class: Class,
        bytes: u64,
        turn: Turn,
    ) -> Option<Reservation> {
        let others = class == Class::Bulk
            && turn == Turn::New
            && self.0.bulk_waiters.load(Ordering::Acquire) > 0;
        if others {
            return None;
        }
        self.reserve_as(class, bytes)
    }

    /// [`Budget::reserve`] for a thread that may wait, up to `patience`.
    pub(crate) fn reserve_blocking(&self, bytes: u64, patience: Duration) -> Option<Reservation> {
        if let Some(reservation) = self.reserve(bytes) {
            return Some(reservation);
        }
        *self.0.blocked() += 1;
        let mut left = patience;
        let reservation = loop {
            let releases = self.releases();
            // Without the lock: reclaiming releases reservations, and a release takes this lock.
            let reservation = self.reserve(bytes);
            if reservation.is_some() || left.is_zero() {
                break reservation;
            }
            let guard = self.0.blocked();
            if self.releases() != releases {
                // Almost no time has passed, but subtract some, so that this loop terminates.
                left = left.saturating_sub(Duration::from_micros(50));
                continue;
            }
            let wait = left.min(Duration::from_millis(20));
            let waited = self.0.released.wait_timeout(guard, wait);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            left -= if timeout.timed_out() {
                wait
            } else {
                wait.min(Duration::from_micros(50))
            };
        };
        *self.0.blocked() -= 1;
        reservation
    }

    /// Number of releases so far; for [`Budget::room_since`].
    pub(crate) fn releases(&self) -> u64 {
        self.0.releases.load(Ordering::Acquire)
    }

    /// Resolves when another attempt to reserve `bytes` may succeed: when something was released
    /// after the count was `releases`, and later whenever there is room for the caller that has
    /// waited longest.
    pub(crate) fn room_since(&self, releases: u64, class: Class, bytes: u64) -> MemoryWait {
        MemoryWait {
            inner: Arc::clone(&self.0),
            releases,
            class,
            bytes,
            number: None,
        }
    }
}

/// Adds `bytes` to `taken` unless the sum would exceed `limit`.
fn take(taken: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
    taken
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
        .is_ok()
}

impl Reservation {
    /// Number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the bytes of `other`, a reservation from the same budget. They then belong to the class
    /// of this reservation.
    pub fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.inner, &other.inner));
        let bulk = &self.inner.bulk;
        match (self.class, other.class) {
            (Class::Bulk, Class::Small) => bulk.fetch_add(other.bytes, Ordering::AcqRel),
            (Class::Small, Class::Bulk) => bulk.fetch_sub(other.bytes, Ordering::AcqRel),
            (Class::Small, Class::Small) | (Class::Bulk, Class::Bulk) => 0,
        };
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Splits off at most `bytes` as a separate reservation.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            inner: Arc::clone(&self.inner),
            bytes,
            class: self.class,
        }
    }

    /// Returns this reservation as [`Class::Small`], no longer counted as bulk.
    pub(super) fn into_small(mut self) -> Self {
        if self.class == Class::Bulk {
            self.inner.bulk.fetch_sub(self.bytes, Ordering::AcqRel);
            self.class = Class::Small;
        }
        self
    }

    /// The budget of this reservation.
    pub(super) fn budget(&self) -> Budget {
        Budget(Arc::clone(&self.inner))
    }

    /// Returns true if this reservation is from `budget`.
    pub(crate) fn is_of(&self, budget: &Budget) -> bool {
        Arc::ptr_eq(&self.inner, &budget.0)
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} bytes)", self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.inner.release(self.bytes, self.class);
        }
    }
}

impl Inner {
    fn reservable(&self) -> u64 {
        self.limit - self.aside.load(Ordering::Relaxed)
    }

    fn bulk_limit(&self) -> u64 {
        self.reservable() / 4 * 3
    }

    fn waiting(&self) -> MutexGuard<'_, Queues> {
        // A panic cannot leave the queues half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocked(&self) -> MutexGuard<'_, usize> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, bytes: u64, class: Class) {
        if class == Class::Bulk {
            self.bulk.fetch_sub(bytes, Ordering::AcqRel);
        }
        self.used.fetch_sub(bytes, Ordering::AcqRel);
        self.note_release();
    }

    fn note_release(&self) {
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.wake_fitting();
        if *self.blocked() > 0 {
            self.released.notify_all();
        }
    }

    fn count_bulk(&self, waiting: &Queues) {
        let waiters = waiting.bulk.len() as u64;
        self.bulk_waiters.store(waiters, Ordering::Release);
    }

    /// Wakes the waiting callers for which there are enough free bytes. It wakes at least one
    /// caller of each class, because hot objects may make room for it; a bulk caller only if it
    /// fits in the bulk share.
    fn wake_fitting(&self) {
        let mut woken = Vec::new();
        {
            let mut waiting = self.waiting();
            let room =
                |taken: &AtomicU64, limit: u64| limit.saturating_sub(taken.load(Ordering::Acquire));
            let mut free = room(&self.used, self.reservable());
            while let Some(waiter) = next(&mut waiting.small, woken.is_empty(), free) {
                free = free.saturating_sub(waiter.bytes);
                woken.push(waiter.waker);
            }
            // Above the bulk share hot objects are not evicted: a caller that does not fit keeps
            // the same place in the queue.
            let mut share = room(&self.bulk, self.bulk_limit());
            let mut first = true;
            while let Some(waiter) = pop_front_if(&mut waiting.bulk, |waiter| {
                waiter.bytes <= share && (first || waiter.bytes <= free)
            }) {
                first = false;
                free = free.saturating_sub(waiter.bytes);
                share -= waiter.bytes;
                woken.push(waiter.waker);
            }
            self.count_bulk(&waiting);
        }
        wakes::wake(woken);
    }
}

/// Removes the caller that has waited longest if it fits in `free` bytes, or in any case with
/// `anyway`.
fn next(queue: &mut VecDeque<QueuedWait>, anyway: bool, free: u64) -> Option<QueuedWait> {
    pop_front_if(queue, |waiter| anyway || waiter.bytes <= free)
}

/// `VecDeque::pop_front_if`, which is newer than the oldest compiler that we support.
fn pop_front_if(
    queue: &mut VecDeque<QueuedWait>,
    test: impl FnOnce(&QueuedWait) -> bool,
) -> Option<QueuedWait> {
    if queue.front().is_some_and(test) {
        queue.pop_front()
    } else {
        None
    }
}

impl Queues {
    fn of(&mut self, class: Class) -> &mut VecDeque<QueuedWait> {
        match class {
            Class::Small => &mut self.small,
            Class::Bulk => &mut self.bulk,
        }
    }
}

/// See [`Budget::room_since`].
pub(crate) struct MemoryWait {
    inner: Arc<Inner>,
    releases: u64,
    class: Class,
    bytes: u64,
    /// The number in the queue, from the first poll to the last.
    number: Option<u64>,
}

impl Future for MemoryWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // Clone and drop wakers without the lock, because a waker is foreign code.
        let waker = context.waker().clone();
        let mut waiting = this.inner.waiting();
        if let Some(number) = this.number {
            let mut there = waiting.of(this.class).iter_mut();
            if let Some(waiter) = there.find(|waiter| waiter.number == number) {
                let before = std::mem::replace(&mut waiter.waker, waker);
                drop(waiting);
                drop(before);
                return Poll::Pending;
            }
            drop(waiting);
            this.number = None;
            return Poll::Ready(());
        }
        // Queue behind the callers that wait already, even if something was released meanwhile:
        // otherwise a caller that retries often enough would never wait, and the others would wait
        // forever.
        let number = waiting.next_number;
        waiting.next_number += 1;
        let waiter = QueuedWait {
            number,
            bytes: this.bytes,
            waker,
        };
        waiting.of(this.class).push_back(waiter);
        this.inner.count_bulk(&waiting);
        drop(waiting);
        // A release takes the lock after it has incremented the counter, so no release is missed.
        if this.inner.releases.load(Ordering::Acquire) != this.releases {
            this.inner.wake_fitting();
            let mut waiting = this.inner.waiting();
            let mut there = waiting.of(this.class).iter();
            if there.all(|waiter| waiter.number != number) {
                return Poll::Ready(());
            }
        }
        this.number = Some(number);
        Poll::Pending
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut waiting = self.inner.waiting();
        let queue = waiting.of(self.class);
        let place = queue.iter().position(|waiter| waiter.number == number);
        let gone = place.and_then(|place| queue.remove(place));
        self.inner.count_bulk(&waiting);
        drop(waiting);
        drop(gone);
        if let Some(place) = place
            && (self.class == Class::Small || place > 0)
        {
            return;
        }
        // This caller was woken and gave up at the same time, or it was the first bulk caller and
        // blocked the queue: let the next caller try.
        self.inner.wake_fitting();
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
    fn a_caller_gets_memory_although_others_take_what_is_reclaimed_for_it() {
        let budget = Budget::new(100);
        let hot = Mutex::new(
            (0..10)
                .map(|_| budget.reserve(10).unwrap())
                .collect::<Vec<_>>(),
        );
        let (others, weak) = (Mutex::new(Vec::new()), Budget(Arc::clone(&budget.0)));
        budget.reclaim_from(move |_| {
            drop(hot.lock().unwrap().pop());
            let mut others = others.lock().unwrap();
            if others.len() < 2 {
                others.push(weak.reserve_free(10));
            }
        });
        assert!(budget.reserve_as(Class::Bulk, 10).is_none());
        assert!(budget.reserve(10).is_some());
    }

    #[test]
    fn a_blocked_caller_gets_what_is_reclaimed_for_it() {
        let budget = Budget::new(100);
        let spent = budget.reserve(90).unwrap();
        let hot = Arc::new(Mutex::new(vec![budget.reserve(10).unwrap()]));
        let calls = AtomicU64::new(0);
        // In the first call there is nothing to reclaim; in the second call, just before the wait,
        // there is.
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
    fn a_transfer_does_not_take_again_what_another_waits_for() {
        let budget = Budget::new(100);
        let held = budget.reserve_as(Class::Bulk, 75).unwrap();
        let asked = budget.releases();
        assert!(budget.reserve_in_turn(Class::Bulk, 40, Turn::New).is_none());
        let mut waits = Box::pin(budget.room_since(asked, Class::Bulk, 40));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let mut held = held;
        drop(held.split(30));
        // 30 are free: not enough for the caller that waits, nor for the new one.
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(budget.reserve_in_turn(Class::Bulk, 20, Turn::New).is_none());
        assert!(
            budget
                .reserve_in_turn(Class::Small, 20, Turn::New)
                .is_some()
        );
        drop(held.split(20));
        assert!(waits.as_mut().poll(&mut context).is_ready());
        let own = budget.reserve_in_turn(Class::Bulk, 40, Turn::Waited);
        assert!(own.is_some());
        assert!(budget.reserve_in_turn(Class::Bulk, 10, Turn::New).is_some());
    }

    #[test]
    fn a_release_before_the_wait_for_it_is_not_missed() {
        let budget = Budget::new(10);
        let all = budget.reserve(10).unwrap();
        let before = budget.releases();
        assert!(budget.reserve(1).is_none());
        drop(all);
        let mut released = budget.room_since(before, Class::Small, 1);
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

    #[test]
    fn bulk_leaves_a_quarter_to_what_is_small() {
        let budget = Budget::new(100);
        let bulk = budget.reserve_as(Class::Bulk, 75).unwrap();
        assert!(budget.reserve_as(Class::Bulk, 1).is_none());
        let small = budget.reserve_as(Class::Small, 25).unwrap();
        drop(bulk);
        assert!(budget.reserve_as(Class::Bulk, 76).is_none());
        assert!(budget.reserve_as(Class::Bulk, 75).is_some());
        drop(small);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_set_aside_is_reserved_by_nobody_and_bulk_still_leaves_a_quarter() {
        let budget = Budget::new(100);
        budget.reclaim_from(|_| {});
        let bulk = budget.reserve_as(Class::Bulk, 75).unwrap();
        budget.set_aside(20);
        assert!(budget.reserve_as(Class::Bulk, 1).is_none());
        // Bulk memory from before has more than its share; the rest is still for others.
        let small = budget.reserve(25).unwrap();
        assert!(budget.reserve(1).is_none());
        drop((bulk, small));
        assert!(budget.reserve_as(Class::Bulk, 61).is_none());
        let _bulk = budget.reserve_as(Class::Bulk, 60).unwrap();
        let _small = budget.reserve(20).unwrap();
        let mut waiting = Box::pin(budget.room_since(budget.releases(), Class::Small, 10));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        budget.set_aside(0);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert!(budget.reserve(20).is_some());
        // More than the limit.
        budget.set_aside(200);
        assert_eq!((budget.aside(), budget.reservable()), (100, 0));
    }

    #[test]
    fn hot_objects_make_room_for_what_is_set_aside_and_no_more() {
        let budget = Budget::new(100);
        let held = budget.reserve(40).unwrap();
        let hot = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..5 {
            hot.lock().unwrap().push(budget.reserve(10).unwrap());
        }
        let evicted = Arc::clone(&hot);
        budget.reclaim_from(move |bytes| {
            for _ in 0..bytes.div_ceil(10) {
                let _ = evicted.lock().unwrap().pop();
            }
        });
        budget.set_aside(10);
        assert_eq!(budget.used(), 90);
        budget.set_aside(25);
        assert_eq!((budget.used(), hot.lock().unwrap().len()), (70, 3));
        drop(held);
    }

    #[test]
    fn a_part_of_a_reservation_comes_back_by_itself() {
        let budget = Budget::new(100);
        let mut whole = budget.reserve_as(Class::Bulk, 75).unwrap();
        let part = whole.split(30);
        assert_eq!((whole.bytes(), part.bytes()), (45, 30));
        drop(whole);
        assert_eq!(budget.used(), 30);
        assert!(budget.reserve_as(Class::Bulk, 45).is_some());
        drop(part);
        assert!(budget.reserve_as(Class::Bulk, 75).is_some());
    }

    /// Counts the wakes.
    #[derive(Default)]
    struct Count(AtomicU64);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_release_wakes_the_first_of_those_who_wait_and_no_more_than_fit() {
        let budget = Budget::new(100);
        let mut held: Vec<_> = (0..10).map(|_| budget.reserve(10).unwrap()).collect();
        let counts: Vec<_> = (0..50).map(|_| Arc::<Count>::default()).collect();
        let wait = |count: &Arc<Count>| {
            let mut waiting = budget.room_since(budget.releases(), Class::Small, 10);
            let waker = Waker::from(Arc::clone(count));
            let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            waiting
        };
        let mut waiting: Vec<_> = counts.iter().map(wait).collect();
        let woken = || counts.iter().map(|it| it.0.load(Ordering::Relaxed));
        held.pop();
        assert!(woken().eq((0..50).map(|at| u64::from(at < 1))));
        // A woken caller that gives up passes the turn to the next caller.
        drop(waiting.remove(0));
        assert!(woken().eq((0..50).map(|at| u64::from(at < 2))));
        // A caller that gives up before its turn is skipped.
        drop(waiting.remove(1));
        held.pop();
        assert!(woken().eq((0..50).map(|at| u64::from(at < 5 && at != 2))));
    }

    #[test]
    fn who_was_refused_bulk_is_not_woken_by_others_who_are_refused() {
        let budget = Budget::new(100);
        let _bulk = budget.reserve_as(Class::Bulk, 75).unwrap();
        let _small = budget.reserve(20).unwrap();
        let count = Arc::<Count>::default();
        let mut waiting = budget.room_since(budget.releases(), Class::Bulk, 10);
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut waiting).poll(&mut context).is_pending());
        for _ in 0..10 {
            assert!(budget.reserve_as(Class::Bulk, 10).is_none());
            assert!(budget.reserve(10).is_none());
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }
}
