//! A token bucket that is fair to the clients who wait at it.
//!
//! Called by `throttle` for bytes, and by `limiter` for requests. A taker may take when there is
//! something in the bucket, and may take more than there is: the next one waits until that is paid
//! back. So a bucket gives `rate * time + burst` over any time, and no more than one taking beyond.
//!
//! Fairness: clients that wait get their turns one after another, however many of their transfers
//! wait; the transfers of one client follow each other too. Only the first in the queue has a
//! timer; it wakes the next.
//!
//! Invariant: there is no clock here. Time is an argument, and one that goes back changes nothing.
//! Cost: one lock for each taking.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::settings::Rate;
use crate::share::Network;

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Bucket(Mutex<BucketState>);

#[derive(Debug)]
struct BucketState {
    rate: Rate,
    /// Billionths of a byte or request, so that no fraction is lost; negative: a debt.
    balance: i128,
    at: Instant,
    /// Clients that wait, in the order of their turns.
    turns: VecDeque<Network>,
    /// The transfers of each of these clients, in their order.
    waiting: HashMap<Network, VecDeque<Waiter>>,
    next_number: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
}

/// The answer to a taker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It has what it asked for.
    Yes,
    /// It is the first in the queue, and should ask again at this moment.
    At(Instant),
    /// Others are before it; it will be woken.
    InQueue,
}

/// A place in the queue of a bucket; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    bucket: Arc<Bucket>,
    client: Network,
    number: u64,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        Self(Mutex::new(BucketState {
            rate,
            balance: billionths(rate.burst),
            at: now,
            turns: VecDeque::new(),
            waiting: HashMap::new(),
            next_number: 0,
        }))
    }

    /// From `now` on it has this rate: a reload may have changed it.
    pub(crate) fn set_rate(&self, rate: Rate, now: Instant) {
        let mut state = self.lock();
        if state.rate != rate {
            state.fill(now);
            state.rate = rate;
            state.balance = state.balance.min(billionths(rate.burst));
        }
    }

    /// How much a transfer takes at once: little, so that others do not wait for long, but no
    /// tiny pieces.
    pub(crate) fn quantum(&self) -> u64 {
        (self.lock().rate.per_second / QUANTA_PER_SECOND).clamp(QUANTUM_MIN, QUANTUM_MAX)
    }

    /// Takes one if there is one.
    ///
    /// # Errors
    /// There is none; how long to wait for one.
    pub(crate) fn take_one(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.lock();
        state.fill(now);
        let missing = billionths(1) - state.balance;
        if missing > 0 {
            return Err(state.time_for(missing));
        }
        state.balance -= billionths(1);
        Ok(())
    }

    /// Takes `amount` for a transfer of `client` when it is its turn. `ticket` is its place in the
    /// queue from one call to the next.
    pub(crate) fn take(
        self: &Arc<Self>,
        amount: u64,
        (client, ticket): (Network, &mut Option<Ticket>),
        waker: &Waker,
        now: Instant,
    ) -> Taken {
        let mut state = self.lock();
        state.fill(now);
        if ticket.is_none() {
            if state.turns.is_empty() && state.balance > 0 {
                state.balance -= billionths(amount);
                return Taken::Yes;
            }
            let number = state.enter(client, waker.clone());
            *ticket = Some(Ticket {
                bucket: Arc::clone(self),
                client,
                number,
            });
        }
        let number = ticket.as_ref().map_or(0, |ticket| ticket.number);
        if !state.is_first(client, number) {
            state.keep_waker(client, number, waker);
            return Taken::InQueue;
        }
        if state.balance <= 0 {
            let time = state.time_for(1 - state.balance);
            state.keep_waker(client, number, waker);
            return Taken::At(now + time);
        }
        state.balance -= billionths(amount);
        let next = state.leave(client, number);
        drop(state);
        wake(next);
        // It is in no queue any more.
        *ticket = None;
        Taken::Yes
    }

    /// Takes back what was taken and not used.
    pub(crate) fn give_back(&self, amount: u64) {
        let mut state = self.lock();
        let most = billionths(state.rate.burst);
        state.balance = (state.balance + billionths(amount)).min(most);
        let first = state.first_waker();
        drop(state);
        wake(first);
    }

    fn lock(&self) -> MutexGuard<'_, BucketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BucketState {
    /// Adds what has come in since the last time.
    fn fill(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        // A time of centuries times the largest rate is far below the limit of the type.
        let came = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX >> 64);
        let came = came.saturating_mul(i128::from(self.rate.per_second));
        let most = billionths(self.rate.burst);
        self.balance = self.balance.saturating_add(came).min(most);
    }

    /// How long it takes until `missing` billionths have come in.
    fn time_for(&self, missing: i128) -> Duration {
        let rate = i128::from(self.rate.per_second.max(1));
        let nanoseconds = missing.max(0).saturating_add(rate - 1) / rate;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn enter(&mut self, client: Network, waker: Waker) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let waiters = self.waiting.entry(client).or_default();
        if waiters.is_empty() {
            self.turns.push_back(client);
        }
        waiters.push_back(Waiter { number, waker });
        number
    }

    fn is_first(&self, client: Network, number: u64) -> bool {
        let first = self.turns.front().and_then(|first| self.waiting.get(first));
        let first = first.and_then(VecDeque::front);
        self.turns.front() == Some(&client) && first.is_some_and(|it| it.number == number)
    }

    fn keep_waker(&mut self, client: Network, number: u64, waker: &Waker) {
        let mut waiters = self.waiting.get_mut(&client).into_iter().flatten();
        if let Some(waiter) = waiters.find(|waiter| waiter.number == number) {
            waiter.waker.clone_from(waker);
        }
    }

    /// Removes a waiter, if it waits. If it was the first, the next client has its turn; its waker
    /// is returned.
    fn leave(&mut self, client: Network, number: u64) -> Option<Waker> {
        let was_first = self.is_first(client, number);
        let waiters = self.waiting.get_mut(&client)?;
        waiters.retain(|waiter| waiter.number != number);
        if waiters.is_empty() {
            self.waiting.remove(&client);
            self.turns.retain(|it| *it != client);
        } else if was_first {
            self.turns.rotate_left(1);
        }
        if was_first { self.first_waker() } else { None }
    }

    fn first_waker(&self) -> Option<Waker> {
        let first = self.waiting.get(self.turns.front()?)?.front()?;
        Some(first.waker.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let next = self.bucket.lock().leave(self.client, self.number);
        wake(next);
    }
}

/// Wakes without holding a lock: what is woken may ask at once.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn billionths(amount: u64) -> i128 {
    i128::from(amount) * 1_000_000_000
}

/// A transfer takes a sixteenth of a second's bytes at once, within bounds: a page of the store is
/// the largest piece that a body gives.
const QUANTA_PER_SECOND: u64 = 16;
const QUANTUM_MIN: u64 = 1 << 10;
const QUANTUM_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn bucket(per_second: u64, burst: u64) -> (Arc<Bucket>, Instant) {
        let now = Instant::now();
        (Arc::new(Bucket::new(Rate { per_second, burst }, now)), now)
    }

    fn client(last: u8) -> Network {
        Network::of([192, 0, 2, last].into())
    }

    /// Runs transfers of these clients for `time`; returns the bytes of each.
    fn run(bucket: &Arc<Bucket>, start: Instant, clients: &[u8], time: Duration) -> Vec<u64> {
        let amount = bucket.quantum();
        let mut tickets: Vec<Option<Ticket>> = clients.iter().map(|_| None).collect();
        let mut bytes = vec![0; clients.len()];
        let mut now = start;
        while now < start + time {
            let mut next = None;
            for (at, last) in clients.iter().enumerate() {
                let place = (client(*last), &mut tickets[at]);
                match bucket.take(amount, place, Waker::noop(), now) {
                    Taken::Yes => {
                        bytes[at] += amount;
                        next = Some(now);
                    }
                    Taken::At(then) => next = next.or(Some(then)),
                    Taken::InQueue => {}
                }
            }
            now = next.expect("one of them is the first").max(now);
        }
        bytes
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        for (rate, burst) in [
            (3, 1),
            (1000, 5000),
            (100 * KIB, 10 * KIB),
            (1 << 34, 1 << 30),
        ] {
            let (bucket, start) = bucket(rate, burst);
            let time = Duration::from_secs(600).min(Duration::from_secs((1 << 36) / rate));
            let given: u64 = run(&bucket, start, &[1], time).iter().sum();
            let due = burst + rate * time.as_secs();
            let most = due + bucket.quantum();
            assert!((due..=most).contains(&given), "{rate}: {given} of {due}");
        }
    }

    #[test]
    fn a_client_with_many_transfers_gets_no_more_than_another() {
        let (bucket, start) = bucket(64 * KIB, KIB);
        // Twenty transfers of client 1, one of client 2 and two of client 3.
        let mut clients = vec![1; 20];
        clients.extend([2, 3, 3]);
        let bytes = run(&bucket, start, &clients, Duration::from_secs(60));
        let of = |wanted: u8| -> u64 {
            let all = clients.iter().zip(&bytes);
            all.filter(|(it, _)| **it == wanted).map(|(_, it)| it).sum()
        };
        let third = 60 * 64 * KIB / 3;
        for last in 1..=3 {
            let difference = of(last).abs_diff(third);
            assert!(difference < third / 50, "client {last}: {}", of(last));
        }
        // The transfers of one client are equal too.
        assert!(bytes[0].abs_diff(bytes[19]) <= bucket.quantum());
    }

    #[test]
    fn a_waiter_that_leaves_lets_the_next_one_come() {
        let (bucket, now) = bucket(KIB, 1);
        let (mut first, mut second) = (None, None);
        let take = |last, ticket: &mut _, now| {
            bucket.take(KIB, (client(last), ticket), Waker::noop(), now)
        };
        assert_eq!(take(1, &mut first, now), Taken::Yes);
        assert!(matches!(take(1, &mut first, now), Taken::At(_)));
        assert_eq!(take(2, &mut second, now), Taken::InQueue);
        drop(first);
        let later = now + Duration::from_secs(1);
        assert_eq!(take(2, &mut second, later), Taken::Yes);
        let state = bucket.lock();
        assert!(state.turns.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn what_is_given_back_can_be_taken_and_a_burst_is_the_most() {
        let (bucket, now) = bucket(KIB, 2 * KIB);
        let mut ticket = None;
        let mut take = || bucket.take(4 * KIB, (client(1), &mut ticket), Waker::noop(), now);
        assert_eq!(take(), Taken::Yes);
        bucket.give_back(3 * KIB);
        assert_eq!(take(), Taken::Yes);
        assert_eq!(take(), Taken::At(now + Duration::from_nanos(3_000_000_001)));
        bucket.give_back(1000 * KIB);
        assert_eq!(take(), Taken::Yes);
        assert!(matches!(take(), Taken::At(_)));
    }

    #[test]
    fn requests_beyond_a_rate_are_told_when_to_come_back() {
        let (bucket, now) = bucket(2, 3);
        for _ in 0..3 {
            assert_eq!(bucket.take_one(now), Ok(()));
        }
        let half = Duration::from_millis(500);
        assert_eq!(bucket.take_one(now), Err(half));
        assert_eq!(bucket.take_one(now + half), Ok(()));
        assert_eq!(bucket.take_one(now + half), Err(half));
        // A clock that goes back gives nothing.
        assert_eq!(bucket.take_one(now), Err(half));
    }

    #[test]
    fn a_reload_changes_the_rate_from_then_on() {
        let (bucket, now) = bucket(1, 1);
        assert_eq!(bucket.take_one(now), Ok(()));
        let rate = Rate {
            per_second: 10,
            burst: 1,
        };
        bucket.set_rate(rate, now);
        let wait = Duration::from_millis(100);
        assert_eq!(bucket.take_one(now), Err(wait));
        assert_eq!(bucket.take_one(now + wait), Ok(()));
    }
}
