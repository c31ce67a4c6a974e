//! Removes of names: how they are let into the queue, and what their callers wait for.
//!
//! Called by `cache`; calls `stripe` and `write_queue`.
//!
//! Invariants: names that wait to be removed have a share of memory (`write_queue/removals`), so
//! that callers that remove faster than the device can write fill no memory. A caller that waits
//! for a remove learns when it is durable, or that it never will be. If nobody waits and there is
//! no room: in the log the name is forgotten in memory only, as when the index does not know it; in
//! the Disk Table, where lookups have to skip the name until its slot is cleared, the thread waits.
//! Cost: two locks, and a reservation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::completion::{Outcome, promise};
use crate::error::RemoveError;
use crate::format::{Family, Removed};
use crate::key::KeyHash;
use crate::memory::Reservation;
use crate::stats::Health;
use crate::stripe::{Hint, Stripe};
use crate::write_queue::{Caller, NAME_BYTES, Removal, RemovalDone, Removing, WaitingRemove};

/// A remove that becomes durable.
pub struct Remove {
    outcome: Outcome<bool>,
    /// Set where there was no room for it.
    _without_room: Option<WithoutRoom>,
}

/// A remove that the writer lets in when there is room, as long as its caller holds this.
struct WithoutRoom {
    stripe: Arc<Stripe>,
    waiting: Arc<WaitingRemove>,
}

fn is_table(stripe: &Stripe) -> bool {
    stripe.medium.geometry.family == Family::Table
}

/// Room for the remove of `key`: `Some` with the memory for it.
fn room(stripe: &Stripe, key: KeyHash, caller: Caller) -> Option<Option<Reservation>> {
    // Before any lock: hot objects may have to make room.
    let reserved = stripe.medium.budget.reserve(NAME_BYTES);
    let has_room = stripe.queue.lets_in(key, caller, reserved.as_ref());
    has_room.then_some(reserved)
}

/// Removes `key`, which was let in, and queues the remove.
fn let_in(
    stripe: &Stripe,
    key: KeyHash,
    caller: Caller,
    reservation: Option<Reservation>,
    done: Option<RemovalDone>,
) {
    let (version, known) = stripe.remove(key);
    let removed = Removed { key, version };
    let what = match (known, caller) {
        (true, _) => Removing::Name(removed),
        // In the log any name may have records that the index does not know.
        (false, Caller::Waits) if !is_table(stripe) => Removing::Name(removed),
        (false, Caller::Waits) => Removing::Absent(removed),
        (false, Caller::Nobody) => return stripe.queue.needs_no_removal(),
    };
    let removal = Removal {
        what,
        done: done.into_iter().collect(),
        reservation,
    };
    stripe.queue.push_removal(removal, caller);
}

/// Removes `key` as soon as there is room, for which this thread waits.
fn let_in_blocking(stripe: &Stripe, key: KeyHash) {
    loop {
        if let Some(reserved) = room(stripe, key, Caller::Nobody) {
            return let_in(stripe, key, Caller::Nobody, reserved, None);
        }
        stripe.queue.wait_for_room();
    }
}

/// Removes `key` for a caller that does not wait.
pub(super) fn invalidate(stripe: &Arc<Stripe>, key: KeyHash) {
    // Memory cannot say before recovery is over.
    let may_be_stored = stripe.hint(key) != Hint::Missing || stripe.health() == Health::Recovering;
    if !may_be_stored {
        // Puts in progress give way all the same.
        let (version, known) = stripe.remove(key);
        if known {
            // It was put meanwhile. One name beyond the share, for each thread at most.
            let removed = Removed { key, version };
            let removal = Removal::uncounted(Removing::Name(removed), None);
            stripe.queue.push_removals(vec![removal]);
        }
        return;
    }
    if forgets_at_once(stripe) {
        match room(stripe, key, Caller::Nobody) {
            Some(reserved) => let_in(stripe, key, Caller::Nobody, reserved, None),
            None => {
                stripe.medium.counters.no_memory.add(1);
                stripe.remove(key);
            }
        }
    } else {
        let_in_blocking(stripe, key);
    }
}

/// Whether a name is forgotten without an entry for lookups to skip it.
fn forgets_at_once(stripe: &Stripe) -> bool {
    !is_table(stripe) && stripe.health() != Health::Recovering
}

/// Removes `key` for a caller that may wait; `None` if it is not stored.
pub(super) fn invalidation(stripe: &Arc<Stripe>, key: KeyHash) -> Option<Remove> {
    if stripe.hint(key) == Hint::Missing && stripe.health() != Health::Recovering {
        invalidate(stripe, key);
        return None;
    }
    // Whoever asks for a removal goes first: this is a consequence of other requests.
    Some(Remove::new(stripe, key, Caller::Nobody))
}

impl Remove {
    /// A remove of `key`, queued if there is room for it, in the order of removes of `caller`.
    pub(super) fn new(stripe: &Arc<Stripe>, key: KeyHash, caller: Caller) -> Self {
        let (done, outcome) = promise();
        let done = RemovalDone::Promise(done);
        if let Some(reserved) = room(stripe, key, Caller::Waits) {
            let_in(stripe, key, caller, reserved, Some(done));
            return Self::queued(outcome);
        }
        let version = forgets_at_once(stripe).then(|| stripe.remove(key).0);
        let waiting = Arc::new(WaitingRemove::new(key, version, done));
        stripe.queue.waits_for_room(&waiting);
        Self {
            outcome,
            _without_room: Some(WithoutRoom {
                stripe: Arc::clone(stripe),
                waiting,
            }),
        }
    }

    pub(super) fn queued(outcome: Outcome<bool>) -> Self {
        Self {
            outcome,
            _without_room: None,
        }
    }

    /// Blocks until the remove is durable.
    ///
    /// # Errors
    /// When the device fails.
    pub fn wait(self) -> Result<(), RemoveError> {
        // A copy: this is dropped, and so gives up its place, when there is an answer.
        if self.outcome.clone().wait() {
            Ok(())
        } else {
            Err(RemoveError)
        }
    }
}

impl Drop for WithoutRoom {
    fn drop(&mut self) {
        // `None`: the writer has let it in.
        let Some(done) = self.waiting.take_done() else {
            return;
        };
        drop(done);
        self.stripe.queue.gives_up();
        match self.waiting.version {
            Some(_) => self.stripe.medium.counters.no_memory.add(1),
            None => let_in_blocking(&self.stripe, self.waiting.key),
        }
    }
}

impl Future for Remove {
    type Output = Result<(), RemoveError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = Pin::new(&mut self.outcome).poll(context);
        done.map(|done| if done { Ok(()) } else { Err(RemoveError) })
    }
}
