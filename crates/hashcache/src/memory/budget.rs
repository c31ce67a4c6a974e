//! The one memory budget: code that wants to hold bytes reserves them first.
//!
//! When the budget is spent, hot objects make room. If that is not enough, the caller waits or does
//! without. Content that a slow client may hold for long ([`Class::Bulk`]) leaves a quarter to
//! everything else, so a hit, a page or a small miss never waits for slow transfers.
//!
//! Invariants: a release wakes waiters in the order in which they queued, and only those whose
//! bytes fit; so does a slab that hot objects could give back. A refused reservation releases
//! nothing. Otherwise the waiters would wake each other for as long as the budget is spent.
//! Transfers take turns ([`Turn`]): a transfer that has just released memory does not take it back
//! before the waiters.
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

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// What is small, or given back soon. May take all there is.
    Small,
    /// Content of transfers, which a slow client can hold for as long as it likes. May take three
    /// quarters of the limit.
    Bulk,
}

/// Whether a caller that wants memory for bulk has had to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has not: callers that wait are served first.
    New,
    /// It was refused and has waited since.
    Waited,
}

struct Inner {
    limit: u64,
    used: AtomicU64,
    /// What of `used` is bulk.
    bulk: AtomicU64,
    /// How often something was released.
    releases: AtomicU64,
    waiting: Mutex<Queues>,
    /// Number of callers that wait for bulk memory.
    bulk_waiters: AtomicU64,
    /// Number of callers blocked in `reserve_blocking`, so that a release costs nothing without
    /// any.
    blocked: Mutex<usize>,
    released: Condvar,
    reclaim: OnceLock<Reclaim>,
}

/// The callers that wait, and for how much, longest first.
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

/// Hands out reservations up to a limit.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Inner>);

/// The reservations of a write. A small object has four: for its metadata and for its content, each
/// from the share for writes and from the whole budget.
pub(crate) type Reservations = SmallVec<[Reservation; 4]>;

/// Bytes set aside until this is dropped.
pub struct Reservation {
    inner: Arc<Inner>,
    bytes: u64,
    class: Class,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Inner {
            limit,
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

    /// Sets what gives memory back when the budget is spent. Only the first call counts.
    pub(crate) fn reclaim_from(&self, reclaim: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.0.reclaim.set(Box::new(reclaim));
    }

    pub(crate) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Whether this is the same budget.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Sets `bytes` aside if there is room, without evicting hot objects to make some.
    pub(crate) fn reserve_free(&self, bytes: u64) -> Option<Reservation> {
        self.reserve_free_leaving(bytes, 0)
    }

    /// The same if `left` bytes stay free.
    pub(crate) fn reserve_free_leaving(&self, bytes: u64, left: u64) -> Option<Reservation> {
        let limit = self.0.limit.saturating_sub(left);
        take(&self.0.used, bytes, limit).then(|| Reservation {
            inner: Arc::clone(&self.0),
            bytes,
            class: Class::Small,
        })
    }

    /// Wakes callers that wait for memory, although none was released: resident slabs are released
    /// when a caller reserves.
    pub(super) fn wake_waiters(&self) {
        self.0.note_release();
    }

    /// Sets `bytes` aside, at the cost of hot objects if need be; under a lock of the engine only
    /// if there is room.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        if let Some(reservation) = self.reserve_free(bytes) {
            return Some(reservation);
        }
        // No memory would be released before the caller's lock is: all hot objects would be dropped
        // in vain.
        if wakes::holds_lock() {
            return None;
        }
        let reclaim = self.0.reclaim.get()?;
        // Some more than asked for, so that not every reservation at the limit pays for a search.
        reclaim(bytes.saturating_add(self.0.limit / 64));
        self.reserve_free(bytes)
    }

    /// The same for what `class` says. Beyond the share of bulk no hot object is asked for room.
    pub(crate) fn reserve_as(&self, class: Class, bytes: u64) -> Option<Reservation> {
        if class == Class::Small {
            return self.reserve(bytes);
        }
        if !take(&self.0.bulk, bytes, self.0.bulk_limit()) {
            return None;
        }
        let mut reservation = self.reserve(bytes);
        match &mut reservation {
            Some(reservation) => reservation.class = Class::Bulk,
            None => {
                self.0.bulk.fetch_sub(bytes, Ordering::AcqRel);
            }
        }
        reservation
    }

    /// The same for one of many callers that want more again and again.
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
            // Without the lock: what makes room releases reservations, which takes it.
            let reservation = self.reserve(bytes);
            if reservation.is_some() || left.is_zero() {
                break reservation;
            }
            let guard = self.0.blocked();
            if self.releases() != releases {
                // Next to nothing of the patience is spent; but some, so that this ends.
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

    /// How often something was released; for [`Budget::room_since`].
    pub(crate) fn releases(&self) -> u64 {
        self.0.releases.load(Ordering::Acquire)
    }

    /// Resolves when it is worth trying again to set `bytes` aside: when something was released
    /// since there had been `releases`, and later whenever there is room for the caller that has
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

/// Adds `bytes` to what is taken unless that would exceed `limit`.
fn take(taken: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
    taken
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
        .is_ok()
}

impl Reservation {
    /// Bytes set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over what `other` has set aside out of the same budget; what this was for, that
    /// is for too.
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

    /// Part of this as one of its own; no more than there is.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            inner: Arc::clone(&self.inner),
            bytes,
            class: self.class,
        }
    }

    /// The same bytes, no longer counted as bulk.
    pub(super) fn into_small(mut self) -> Self {
        if self.class == Class::Bulk {
            self.inner.bulk.fetch_sub(self.bytes, Ordering::AcqRel);
            self.class = Class::Small;
        }
        self
    }

    /// The budget that this is out of.
    pub(super) fn budget(&self) -> Budget {
        Budget(Arc::clone(&self.inner))
    }

    /// Whether this is out of `budget`.
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
    fn bulk_limit(&self) -> u64 {
        self.limit / 4 * 3
    }

    fn waiting(&self) -> MutexGuard<'_, Queues> {
        // The queues are whole at any time, whatever has panicked.
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

    /// Wakes the waiting callers that fit into what is free; at least one of each class, for which
    /// hot objects may have to make room.
    fn wake_fitting(&self) {
        let mut woken = Vec::new();
        {
            let mut waiting = self.waiting();
            let room =
                |taken: &AtomicU64, limit: u64| limit.saturating_sub(taken.load(Ordering::Acquire));
            let mut free = room(&self.used, self.limit);
            while let Some(waiter) = next(&mut waiting.small, woken.is_empty(), free) {
                free = free.saturating_sub(waiter.bytes);
                woken.push(waiter.waker);
            }
            // Beyond the share of bulk no hot object makes room: a caller that does not fit keeps
            // its place in the queue.
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

/// The caller that has waited longest, if there is room for it or it is to be tried all the same.
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
    /// Its number in the queue, from the first poll to the last.
    number: Option<u64>,
}

impl Future for MemoryWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // Made and dropped without the lock, for a waker is other people's code.
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
        // Behind the callers that wait already, even if something was released meanwhile: otherwise
        // a caller that asks often enough would never wait, and the others for ever.
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
        // A release takes the lock after it has counted itself: none is missed.
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
        // It was woken and gave up at the same time, or has held up the others: the next one shall
        // have its turn.
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

    /// Counts how often it is woken.
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
        // One that gives up leaves its turn to the next.
        drop(waiting.remove(0));
        assert!(woken().eq((0..50).map(|at| u64::from(at < 2))));
        // One that gives up before its turn is passed over.
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
