//! Permits for a scarce resource that all clients use, such as threads: a fair queue.
//!
//! Used by `users` in `hashcache-access` for password checks and by `dns` in `hashcache-upstream`
//! for system lookups.
//!
//! Invariants: no owner has more than half of the permits (but at least one), so if there are two
//! permits or more, a permit is left to other owners. Waiting owners get permits in turn, however
//! many requests each has in the queue: a request from an owner with none in progress waits for at
//! most one request from each other owner. A cancelled request leaves the queue.
//! Cost: one lock and a few map entries per request; no state is kept for owners without requests.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Permits for all owners; `K` identifies the owner, such as a client network.
#[derive(Debug)]
pub struct FairPermits<K: Clone + Eq + Hash>(Arc<Mutex<Queue<K>>>);

#[derive(Debug)]
struct Queue<K> {
    free: usize,
    /// Permits that an owner may have.
    share: usize,
    owners: HashMap<K, Owner>,
    /// Owners with waiting requests, in the order of their turns.
    turns: VecDeque<K>,
}

#[derive(Debug, Default)]
struct Owner {
    held: usize,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// Permission to use the resource; returned when dropped.
#[derive(Debug)]
pub struct FairPermit<K: Clone + Eq + Hash> {
    queue: Arc<Mutex<Queue<K>>>,
    owner: K,
}

impl<K: Clone + Eq + Hash> FairPermits<K> {
    /// A queue with `permits` permits; an owner may have half of them, at least one.
    pub fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            free: permits.max(1),
            share: (permits / 2).max(1),
            owners: HashMap::new(),
            turns: VecDeque::new(),
        })))
    }

    /// Waits for a permit for `owner`.
    pub async fn acquire(&self, owner: K) -> FairPermit<K> {
        let waiting = {
            let mut queue = lock(&self.0);
            let (given, waiting) = oneshot::channel();
            let entry = queue.owners.entry(owner.clone()).or_default();
            entry.waiting.push_back(given);
            if entry.waiting.len() == 1 {
                queue.turns.push_back(owner.clone());
            }
            queue.give();
            waiting
        };
        // The permit is taken where it is given. Here it only becomes a guard, also if this future
        // is dropped before it is polled again.
        let mut waiting = Waiting {
            queue: Arc::clone(&self.0),
            owner: Some(owner),
            given: waiting,
        };
        // An error is impossible: the queue keeps the sender until it gives a permit.
        let _ = (&mut waiting.given).await;
        FairPermit {
            queue: Arc::clone(&self.0),
            owner: waiting.owner.take().expect("taken once"),
        }
    }

    /// Number of free permits.
    #[cfg(any(test, feature = "testing"))]
    pub fn free(&self) -> usize {
        lock(&self.0).free
    }
}

impl<K: Clone + Eq + Hash> Clone for FairPermits<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A request in the queue.
struct Waiting<K: Clone + Eq + Hash> {
    queue: Arc<Mutex<Queue<K>>>,
    /// `None`: the permit has become a guard.
    owner: Option<K>,
    given: oneshot::Receiver<()>,
}

impl<K: Clone + Eq + Hash> Drop for Waiting<K> {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else {
            return;
        };
        let mut queue = lock(&self.queue);
        self.given.close();
        match self.given.try_recv() {
            // The permit was given at this moment.
            Ok(()) => queue.give_back(&owner),
            Err(_) => queue.leave(&owner),
        }
    }
}

impl<K: Clone + Eq + Hash> Drop for FairPermit<K> {
    fn drop(&mut self) {
        lock(&self.queue).give_back(&self.owner);
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Gives free permits to owners in turn.
    fn give(&mut self) {
        let mut passed_over = 0;
        while self.free > 0 && passed_over < self.turns.len() {
            let Some(owner) = self.turns.pop_front() else {
                return;
            };
            let Some(entry) = self.owners.get_mut(&owner) else {
                continue;
            };
            if entry.held >= self.share {
                passed_over += 1;
                self.turns.push_back(owner);
                continue;
            }
            let given = entry.waiting.pop_front().map(|it| it.send(()));
            if given == Some(Ok(())) {
                entry.held += 1;
                self.free -= 1;
                passed_over = 0;
            }
            if !entry.waiting.is_empty() {
                self.turns.push_back(owner);
            } else if entry.held == 0 {
                self.owners.remove(&owner);
            }
        }
    }

    fn give_back(&mut self, owner: &K) {
        self.free += 1;
        if let Some(entry) = self.owners.get_mut(owner) {
            entry.held -= 1;
        }
        self.forget_unused(owner);
        self.give();
    }

    /// Removes a cancelled request of `owner` from the queue.
    fn leave(&mut self, owner: &K) {
        if let Some(entry) = self.owners.get_mut(owner) {
            entry.waiting.retain(|it| !it.is_closed());
            if entry.waiting.is_empty() {
                self.turns.retain(|it| it != owner);
            }
        }
        self.forget_unused(owner);
    }

    fn forget_unused(&mut self, owner: &K) {
        let entry = self.owners.get(owner);
        if entry.is_some_and(|entry| entry.held == 0 && entry.waiting.is_empty()) {
            self.owners.remove(owner);
        }
    }
}

fn lock<K>(queue: &Mutex<Queue<K>>) -> MutexGuard<'_, Queue<K>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    type Acquiring<'a> = Pin<Box<dyn Future<Output = FairPermit<u8>> + 'a>>;

    fn acquiring(permits: &FairPermits<u8>, owner: u8) -> Acquiring<'_> {
        let mut acquiring: Acquiring<'_> = Box::pin(permits.acquire(owner));
        assert!(polled(&mut acquiring).is_none() || permits.free() > 0);
        acquiring
    }

    fn polled(acquiring: &mut Acquiring<'_>) -> Option<FairPermit<u8>> {
        let mut cx = Context::from_waker(Waker::noop());
        match acquiring.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(permit) => Some(permit),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn one_owner_has_half_of_the_permits_and_others_the_rest() {
        let permits = FairPermits::new(4);
        let held = [permits.acquire(1).await, permits.acquire(1).await];
        let mut third = acquiring_without_check(&permits, 1);
        assert!(polled(&mut third).is_none());
        let others = [permits.acquire(2).await, permits.acquire(3).await];
        drop(others);
        assert!(polled(&mut third).is_none(), "free, and not for this owner");
        drop(held);
        assert!(polled(&mut third).is_some());
        drop(third);
        assert_eq!(permits.free(), 4);
        assert!(lock(&permits.0).owners.is_empty());
    }

    fn acquiring_without_check(permits: &FairPermits<u8>, owner: u8) -> Acquiring<'_> {
        Box::pin(permits.acquire(owner))
    }

    #[tokio::test]
    async fn an_owner_with_many_requests_lets_another_one_go_next() {
        let permits = FairPermits::new(1);
        let first = permits.acquire(1).await;
        let mut greedy: Vec<_> = (0..100).map(|_| acquiring(&permits, 1)).collect();
        let mut other = acquiring(&permits, 2);
        drop(first);
        let second = polled(&mut greedy[0]).expect("it was the first to wait");
        assert!(polled(&mut other).is_none());
        drop(second);
        assert!(polled(&mut greedy[1]).is_none());
        assert!(polled(&mut other).is_some());
    }

    #[tokio::test]
    async fn requests_that_are_given_up_take_no_permit() {
        let permits = FairPermits::new(2);
        let held = [permits.acquire(1).await, permits.acquire(2).await];
        let mut waiting: Vec<_> = (0..10).map(|n| acquiring(&permits, n)).collect();
        drop(waiting.split_off(5));
        drop(held);
        // Some of these were given a permit and not polled.
        drop(waiting);
        assert_eq!(permits.free(), 2);
        let queue = lock(&permits.0);
        assert!(queue.owners.is_empty() && queue.turns.is_empty());
    }
}
