//! A token bucket that is fair to the waiting clients.
//!
//! `throttle` calls it for bytes, and `limiter` for requests. A transfer may take if the bucket is
//! not empty, and may take more than the bucket holds: the next transfer waits until the debt is
//! paid back. So a bucket gives `rate * time + burst` over any time, and at most one further take.
//!
//! Fairness: waiting clients get their turns in order, however many transfers each has in the
//! queue; the transfers of a client also follow each other. The first waiter has a timer, and wakes
//! the next. If the first waiter does not poll (its client does not read, so no more content is
//! requested), other waiters notice and remove it from the queue, with all transfers of its client.
//!
//! Invariant: the bucket reads no clock; the caller passes the current time. A time earlier than
//! the last one changes nothing.
//! Cost: one lock for each take.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use hashcache_base::share::Network;
use tokio::time::Instant;

use super::settings::Rate;

/// A token bucket.
#[derive(Debug)]
pub struct Bucket(Mutex<BucketState>);

#[derive(Debug)]
struct BucketState {
    rate: Rate,
    /// Billionths of a byte or request, so that no fraction is lost; negative: a debt.
    balance: i128,
    at: Instant,
    /// Waiting clients, in the order of their turns.
    turns: VecDeque<Network>,
    /// The waiting transfers of each client, in order.
    waiting: HashMap<Network, VecDeque<Waiter>>,
    /// When other waiters first saw that the first waiter could take.
    due_since: Option<Instant>,
    next_number: u64,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
}

/// The result of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The amount was taken.
    Yes,
    /// The transfer is in the queue, and should poll again at this moment, or earlier if it is
    /// woken.
    Not {
        /// The moment.
        again: Instant,
    },
}

/// A place in a bucket's queue; given up when dropped.
#[derive(Debug)]
pub struct Ticket {
    bucket: Arc<Bucket>,
    client: Network,
    number: u64,
}

impl Bucket {
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self(Mutex::new(BucketState {
            rate,
            balance: billionths(rate.burst),
            at: now,
            turns: VecDeque::new(),
            waiting: HashMap::new(),
            due_since: None,
            next_number: 0,
        }))
    }

    /// Sets the rate from `now` on: a reload may have changed it.
    pub fn set_rate(&self, rate: Rate, now: Instant) {
        let mut state = self.lock();
        if state.rate != rate {
            state.fill(now);
            state.rate = rate;
            state.balance = state.balance.min(billionths(rate.burst));
        }
    }

    /// How much a transfer takes at once: little, so that others do not wait for long, but no tiny
    /// pieces.
    pub fn quantum(&self) -> u64 {
        (self.lock().rate.per_second / QUANTA_PER_SECOND).clamp(QUANTUM_MIN, QUANTUM_MAX)
    }

    /// Takes one token, if there is one.
    ///
    /// # Errors
    /// The bucket is empty; the error is the time until a token is there.
    pub fn take_one(&self, now: Instant) -> Result<(), Duration> {
        let mut state = self.lock();
        state.fill(now);
        let missing = billionths(1) - state.balance;
        if missing > 0 {
            return Err(state.time_for(missing));
        }
        state.balance -= billionths(1);
        Ok(())
    }

    /// Takes `amount` for a transfer of `client` when it is the transfer's turn. `ticket` is the
    /// place in the queue from one call to the next.
    pub fn take(
        self: &Arc<Self>,
        amount: u64,
        (client, ticket): (Network, &mut Option<Ticket>),
        waker: &Waker,
        now: Instant,
    ) -> Taken {
        let mut state = self.lock();
        state.fill(now);
        if ticket.is_none() && state.turns.is_empty() && state.balance > 0 {
            state.balance -= billionths(amount);
            return Taken::Yes;
        }
        let known = ticket.as_ref().map(|ticket| ticket.number);
        let known = known.filter(|number| state.keep_waker(client, *number, waker));
        let number = known.unwrap_or_else(|| state.enter(client, waker.clone()));
        let mut woken = state.put_out_late(number, now);
        let taken = if !state.is_first(client, number) {
            let look = if state.balance > 0 { LATE } else { LOOK };
            Taken::Not { again: now + look }
        } else if state.balance <= 0 {
            let again = now + state.time_for(1 - state.balance);
            Taken::Not { again }
        } else {
            state.balance -= billionths(amount);
            woken.extend(state.leave(client, number));
            Taken::Yes
        };
        drop(state);
        wake(woken);
        match (taken, ticket.as_mut()) {
            // The transfer has left the queue.
            (Taken::Yes, _) => *ticket = None,
            (Taken::Not { .. }, Some(ticket)) => ticket.number = number,
            (Taken::Not { .. }, None) => {
                *ticket = Some(Ticket {
                    bucket: Arc::clone(self),
                    client,
                    number,
                });
            }
        }
        taken
    }

    /// Returns an unused amount to the bucket.
    pub fn give_back(&self, amount: u64) {
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
    /// Adds the tokens since the last call.
    fn fill(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        // A time of centuries times the largest rate is far below the limit of the type.
        let came = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX >> 64);
        let came = came.saturating_mul(i128::from(self.rate.per_second));
        let most = billionths(self.rate.burst);
        self.balance = self.balance.saturating_add(came).min(most);
    }

    /// The time until `missing` billionths have been added.
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

    /// The first waiter in the queue.
    fn first(&self) -> Option<(Network, &Waiter)> {
        let client = self.turns.front()?;
        Some((*client, self.waiting.get(client)?.front()?))
    }

    fn is_first(&self, client: Network, number: u64) -> bool {
        let first = self.first().map(|(client, waiter)| (client, waiter.number));
        first == Some((client, number))
    }

    /// Stores the waker of a waiting transfer; returns false if it does not wait.
    fn keep_waker(&mut self, client: Network, number: u64, waker: &Waker) -> bool {
        let mut waiters = self.waiting.get_mut(&client).into_iter().flatten();
        let waiter = waiters.find(|waiter| waiter.number == number);
        waiter
            .map(|waiter| waiter.waker.clone_from(waker))
            .is_some()
    }

    /// If the first waiter could have taken for [`LATE`], removes it from the queue, and with it
    /// the other transfers of its client: most likely none of them polls, and each would delay the
    /// other clients for as long. The waiter with the number `here` is polling, so it is not late.
    /// Returns the wakers of the removed waiters, which enter again if they do poll, and of the new
    /// first waiter.
    fn put_out_late(&mut self, here: u64, now: Instant) -> Vec<Waker> {
        let first = self.first().map(|(client, waiter)| (client, waiter.number));
        let Some((client, _)) = first.filter(|(_, number)| *number != here && self.balance > 0)
        else {
            self.due_since = None;
            return Vec::new();
        };
        let since = *self.due_since.get_or_insert(now);
        if now.saturating_duration_since(since) < LATE {
            return Vec::new();
        }
        self.due_since = None;
        self.turns.pop_front();
        let mut out = self.waiting.remove(&client).unwrap_or_default();
        if let Some(at) = out.iter().position(|waiter| waiter.number == here)
            && let Some(stays) = out.remove(at)
        {
            self.waiting.insert(client, VecDeque::from([stays]));
            self.turns.push_back(client);
        }
        let out = out.into_iter().map(|waiter| waiter.waker);
        out.chain(self.first_waker()).collect()
    }

    /// Removes a waiter, if it is in the queue. If it was the first, the next client has its turn,
    /// and the waker for that turn is returned.
    fn leave(&mut self, client: Network, number: u64) -> Option<Waker> {
        let was_first = self.is_first(client, number);
        if was_first {
            self.due_since = None;
        }
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
        self.first().map(|(_, waiter)| waiter.waker.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let next = self.bucket.lock().leave(self.client, self.number);
        wake(next);
    }
}

/// Wakes without holding a lock: a woken task may call at once.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

fn billionths(amount: u64) -> i128 {
    i128::from(amount) * 1_000_000_000
}

/// A transfer takes a sixteenth of a second's bytes at once, within bounds: a page of the store is
/// the largest piece that a body gives.
const QUANTA_PER_SECOND: u64 = 16;
const QUANTUM_MIN: u64 = 1 << 10;
const QUANTUM_MAX: u64 = 64 << 10;
/// Time after which a waiter that was not woken checks if the first waiter is late; the time is
/// [`LATE`] if the first waiter could take.
const LOOK: Duration = Duration::from_secs(1);
/// How late the first waiter may be: far more than a busy thread needs until it polls.
const LATE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    const NANOSECOND: Duration = Duration::from_nanos(1);
    /// In which a bucket of that rate gets a kibibyte.
    const KIB_TIME: Duration = Duration::from_secs(1);

    fn not(again: Instant) -> Taken {
        Taken::Not { again }
    }

    fn bucket(per_second: u64, burst: u64) -> (Arc<Bucket>, Instant) {
        let now = Instant::now();
        (Arc::new(Bucket::new(Rate { per_second, burst }, now)), now)
    }

    fn client(last: u8) -> Network {
        Network::containing([192, 0, 2, last].into())
    }

    /// Runs transfers of these clients for `time`; returns the bytes of each.
    fn run(bucket: &Arc<Bucket>, start: Instant, clients: &[u8], time: Duration) -> Vec<u64> {
        let amount = bucket.quantum();
        let mut tickets: Vec<Option<Ticket>> = clients.iter().map(|_| None).collect();
        let mut bytes = vec![0; clients.len()];
        let mut now = start;
        while now < start + time {
            let mut next: Option<Instant> = None;
            for (at, last) in clients.iter().enumerate() {
                let place = (client(*last), &mut tickets[at]);
                match bucket.take(amount, place, Waker::noop(), now) {
                    Taken::Yes => {
                        bytes[at] += amount;
                        next = Some(now);
                    }
                    Taken::Not { again } => {
                        next = Some(next.map_or(again, |next| next.min(again)));
                    }
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
        assert_ne!(take(1, &mut first, now), Taken::Yes);
        assert_eq!(take(2, &mut second, now), not(now + LOOK));
        drop(first);
        let later = now + Duration::from_secs(1);
        assert_eq!(take(2, &mut second, later), Taken::Yes);
        let state = bucket.lock();
        assert!(state.turns.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn one_that_does_not_come_when_it_is_its_turn_holds_nobody_up_for_long() {
        let (bucket, now) = bucket(KIB, 1);
        let mut tickets = [None, None, None];
        let mut take = |last: u8, now| {
            let ticket = &mut tickets[usize::from(last)];
            bucket.take(KIB, (client(last), ticket), Waker::noop(), now)
        };
        assert_eq!(take(0, now), Taken::Yes);
        for last in 0..3 {
            assert_ne!(take(last, now), Taken::Yes);
        }
        // The bucket has enough from here on, and the first waiter does not poll.
        let mut now = now + Duration::from_secs(10);
        assert_eq!(take(1, now), not(now + LATE));
        now += LATE - NANOSECOND;
        assert_eq!(take(2, now), not(now + LATE));
        now += NANOSECOND;
        assert_eq!(take(2, now), not(now + LATE));
        assert_eq!(take(1, now), Taken::Yes);
        assert_eq!(take(2, now + KIB_TIME), Taken::Yes);
        // The transfer polls too late, and waits like a new transfer.
        assert_ne!(take(1, now + KIB_TIME), Taken::Yes);
        assert_ne!(take(0, now + KIB_TIME), Taken::Yes);
        assert_eq!(take(1, now + 2 * KIB_TIME), Taken::Yes);
        assert_eq!(take(0, now + 3 * KIB_TIME), Taken::Yes);
        let state = bucket.lock();
        assert!(state.turns.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn all_that_do_not_come_of_one_client_hold_the_others_up_once() {
        let (bucket, now) = bucket(KIB, 1);
        let take = |last, ticket: &mut _, now| {
            bucket.take(KIB, (client(last), ticket), Waker::noop(), now)
        };
        let mut stalled: Vec<Option<Ticket>> = (0..50).map(|_| None).collect();
        assert_eq!(take(1, &mut stalled[0], now), Taken::Yes);
        for ticket in &mut stalled {
            assert_ne!(take(1, ticket, now), Taken::Yes);
        }
        let mut other = None;
        let mut now = now + Duration::from_secs(10);
        assert_eq!(take(2, &mut other, now), not(now + LATE));
        now += LATE;
        for _ in 0..10 {
            assert_eq!(take(2, &mut other, now), Taken::Yes);
            now += KIB_TIME;
        }
        // One of them comes after all, and the others leave.
        assert_eq!(take(1, &mut stalled[7], now), Taken::Yes);
        drop(stalled);
        let state = bucket.lock();
        assert!(state.turns.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn one_that_is_here_stays_when_the_others_of_its_client_do_not_come() {
        let (bucket, now) = bucket(KIB, 1);
        let take = |last, ticket: &mut _, now| {
            bucket.take(KIB, (client(last), ticket), Waker::noop(), now)
        };
        let (mut stalled, mut here, mut other) = (None, None, None);
        assert_eq!(take(1, &mut stalled, now), Taken::Yes);
        assert_ne!(take(1, &mut stalled, now), Taken::Yes);
        assert_ne!(take(1, &mut here, now), Taken::Yes);
        assert_ne!(take(2, &mut other, now), Taken::Yes);
        let now = now + Duration::from_secs(10);
        assert_eq!(take(1, &mut here, now), not(now + LATE));
        // The next client has its turn before it.
        assert_eq!(take(1, &mut here, now + LATE), not(now + 2 * LATE));
        assert_eq!(take(2, &mut other, now + LATE), Taken::Yes);
        assert_eq!(take(1, &mut here, now + LATE + KIB_TIME), Taken::Yes);
    }

    #[test]
    fn what_is_given_back_can_be_taken_and_a_burst_is_the_most() {
        let (bucket, now) = bucket(KIB, 2 * KIB);
        let mut ticket = None;
        let mut take = || bucket.take(4 * KIB, (client(1), &mut ticket), Waker::noop(), now);
        assert_eq!(take(), Taken::Yes);
        bucket.give_back(3 * KIB);
        assert_eq!(take(), Taken::Yes);
        assert_eq!(take(), not(now + Duration::from_nanos(3_000_000_001)));
        bucket.give_back(1000 * KIB);
        assert_eq!(take(), Taken::Yes);
        assert_ne!(take(), Taken::Yes);
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
