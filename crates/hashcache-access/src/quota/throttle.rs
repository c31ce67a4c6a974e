//! Slows content down: a response, or the bytes in a tunnel.
//!
//! Made by `request/body` and `connect/metered` in the proxy for requests with limits on bandwidth
//! or with a quota; they call it before they move a piece.
//!
//! Invariant: at most one piece waits in it, as for a client that reads slowly, so a slow transfer
//! holds no more memory than any other. Tokens that were taken from a bucket and not used are
//! returned. Cost: one lock for each bucket and piece.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hashcache_base::failure::Failure;
use hashcache_base::share::Network;
use tokio::time::{Instant, Sleep, sleep_until};

use super::bucket::{Bucket, Taken, Ticket};
use super::request_limits::{ContentFrom, RequestLimits};

/// Slows one transfer down.
#[derive(Debug)]
pub struct Throttle {
    limits: RequestLimits,
    client: Network,
    from: ContentFrom,
    steps: Vec<Step>,
    /// The next step, and how much each step in this round takes.
    next: usize,
    amount: u64,
    /// Bytes that may be moved now.
    room: u64,
    /// Bytes that may still be moved although a quota is used up.
    grace: u64,
    ticket: Option<Ticket>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A bucket from which the transfer takes.
#[derive(Debug)]
struct Step {
    bucket: Arc<Bucket>,
    /// The bucket counts only while the quota at this index is used up.
    quota: Option<usize>,
    /// Bytes that were taken and not used.
    held: u64,
}

impl Step {
    fn counts(&self, limits: &RequestLimits) -> bool {
        self.quota.is_none_or(|quota| limits.is_used_up(quota))
    }
}

impl Throttle {
    /// A throttle for content with this source; `None` if no limit applies.
    pub fn new(limits: &RequestLimits, from: ContentFrom) -> Option<Self> {
        let steps = limits.buckets(from).into_iter();
        let steps = steps.map(|(bucket, quota)| Step {
            bucket,
            quota,
            held: 0,
        });
        let steps: Vec<Step> = steps.collect();
        let can_refuse = from == ContentFrom::Origin && limits.can_refuse();
        (can_refuse || !steps.is_empty()).then(|| Self {
            client: limits.client(),
            limits: limits.clone(),
            from,
            steps,
            next: 0,
            amount: 0,
            room: 0,
            grace: GRACE,
            ticket: None,
            timer: None,
        })
    }

    /// Ready with the number of bytes that may be moved now, at least one.
    ///
    /// # Errors
    /// The quota is used up, and so is the grace of this transfer or of all transfers.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        if self.room == 0 {
            ready!(self.poll_round(context))?;
        }
        Poll::Ready(Ok(usize::try_from(self.room).unwrap_or(usize::MAX)))
    }

    /// Notes that `bytes` were moved.
    pub fn spend(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.room = self.room.saturating_sub(bytes);
        for step in &mut self.steps {
            step.held = step.held.saturating_sub(bytes);
        }
    }

    fn check_quota(&mut self) -> Result<(), Failure> {
        if let Err(failure) = self.limits.check_transfer(0) {
            if self.grace == 0 {
                return Err(failure);
            }
            self.limits.check_transfer(GRACE_OF_ALL)?;
            self.grace = self.grace.saturating_sub(UNSLOWED);
        }
        Ok(())
    }

    /// Takes the same amount from each bucket in order. No bucket is locked meanwhile, so two
    /// transfers cannot wait for each other.
    fn poll_round(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if self.next == 0 && self.ticket.is_none() {
            if self.from == ContentFrom::Origin {
                self.check_quota()?;
            }
            let counting = self.steps.iter().filter(|step| step.counts(&self.limits));
            let quanta = counting.map(|step| step.bucket.quantum());
            self.amount = quanta.min().unwrap_or(UNSLOWED);
        }
        while let Some(step) = self.steps.get(self.next) {
            // A transfer that already waits keeps waiting, even if the quota changes meanwhile.
            if self.ticket.is_some() || step.counts(&self.limits) {
                let bucket = Arc::clone(&step.bucket);
                ready!(self.poll_take(context, &bucket));
                self.steps[self.next].held += self.amount;
            }
            self.next += 1;
        }
        self.next = 0;
        self.room = self.amount;
        Poll::Ready(Ok(()))
    }

    fn poll_take(&mut self, context: &mut Context<'_>, bucket: &Arc<Bucket>) -> Poll<()> {
        loop {
            let place = (self.client, &mut self.ticket);
            let now = Instant::now();
            match bucket.take(self.amount, place, context.waker(), now) {
                Taken::Yes => {
                    self.timer = None;
                    return Poll::Ready(());
                }
                Taken::Not { again: moment } => {
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(sleep_until(moment)));
                    if timer.deadline() != moment {
                        timer.as_mut().reset(moment);
                    }
                    ready!(timer.as_mut().poll(context));
                }
            }
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // First, so that returned bytes are available to another transfer.
        self.ticket = None;
        for step in &self.steps {
            if step.held > 0 {
                step.bucket.give_back(step.held);
            }
        }
    }
}

/// Most bytes that are moved between two checks of a quota.
const UNSLOWED: u64 = 64 << 10;
/// Bytes that a transfer may still move when the quota is used up: many of them have been fetched
/// ahead and are paid for, and a page that has started should arrive completely.
const GRACE: u64 = 1 << 20;
/// If the usage exceeds the quota by this much, every transfer is stopped: a client can have
/// thousands of transfers.
const GRACE_OF_ALL: u64 = 8 << 20;
