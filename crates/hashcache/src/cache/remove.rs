//! Removes of names: how they are admitted to the queue, and which event their callers wait for.
//!
//! Called by `cache`; calls `stripe` and `write_queue`.
//!
//! Invariants: names that wait to be removed have a share of memory (`write_queue/removals`), so
//! that callers that remove faster than the device can write do not fill the memory. No call
//! blocks, because the callers may be threads that serve requests. A caller that waits for a remove
//! learns when it is durable, or that it never will be. If no caller waits and there is no room,
//! the name is removed without a queue entry. In the log it is forgotten in memory, as if the index
//! did not know it. In the Disk Table, and before recovery is over, lookups skip a range of keys
//! (`hidden`); at the end of recovery a log then forgets all names in the same index shard. A
//! caller that may wait learns when half of the names that took the room are durable.
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
use crate::stripe::Stripe;
use crate::write_queue::{Caller, NAME_BYTES, Removal, RemovalDone, Removing, WaitingRemove};

/// A remove that is being made durable.
pub struct Remove {
    outcome: Outcome<bool>,
    /// Set if there was no room for the remove.
    _without_room: Option<WithoutRoom>,
}

/// A remove that the writer admits when there is room, as long as the caller holds this.
struct WithoutRoom {
    stripe: Arc<Stripe>,
    waiting: Arc<WaitingRemove>,
}

fn is_table(stripe: &Stripe) -> bool {
    stripe.medium.geometry.family == Family::Table
}

/// Room for the remove of `key`: `Some` with the memory for it.
fn room(stripe: &Stripe, key: KeyHash, caller: Caller) -> Option<Option<Reservation>> {
    // Before any lock, because hot objects may have to be evicted to make room.
    let reserved = stripe.medium.budget.reserve(NAME_BYTES);
    let has_room = stripe.queue.lets_in(key, caller, reserved.as_ref());
    has_room.then_some(reserved)
}

/// Removes `key`, which was admitted, and queues the remove.
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
        (false, Caller::Nobody) if !is_table(stripe) || done.is_none() => {
            stripe.queue.needs_no_removal();
            done.into_iter().for_each(RemovalDone::tell);
            return;
        }
        (false, _) => Removing::Absent(removed),
    };
    let removal = Removal {
        what,
        done: done.into_iter().collect(),
        reservation,
    };
    stripe.queue.push_removal(removal, caller);
}

/// Removes `key` for a caller that does not wait.
pub(super) fn invalidate(stripe: &Stripe, key: KeyHash) {
    if stripe.remove_absent(key) {
        return;
    }
    match room(stripe, key, Caller::Nobody) {
        Some(reserved) => let_in(stripe, key, Caller::Nobody, reserved, None),
        None => remove_without_room(stripe, key),
    }
}

fn remove_without_room(stripe: &Stripe, key: KeyHash) {
    stripe.medium.counters.no_memory.add(1);
    stripe.remove_with_range(key);
}

/// Returns true if a name can be forgotten in memory without an entry that makes lookups skip it.
fn forgets_at_once(stripe: &Stripe) -> bool {
    !is_table(stripe) && stripe.health() != Health::Recovering
}

/// Removes `key` for a caller that may wait; `None` if there is nothing to wait for.
pub(super) fn invalidation(stripe: &Stripe, key: KeyHash) -> Option<Remove> {
    if stripe.remove_absent(key) {
        return None;
    }
    // A quarter of the room stays free for callers that cannot wait.
    let Some(reserved) = room(stripe, key, Caller::Waits) else {
        // The caller answers a client before the remove is durable, so put it in force now.
        remove_without_room(stripe, key);
        // Return a future to wait for, not `None`: callers that limit their clients by these waits
        // would not limit them just when the room is used up.
        return Some(Remove::queued(stripe.queue.half_of_removals()));
    };
    let (done, outcome) = promise();
    let done = Some(RemovalDone::Promise(done));
    // Explicit removes go first; this remove is only a consequence of other requests.
    let_in(stripe, key, Caller::Nobody, reserved, done);
    Some(Remove::queued(outcome))
}

impl Remove {
    /// A remove of `key`, queued if there is room for it.
    pub(super) fn new(stripe: &Arc<Stripe>, key: KeyHash) -> Self {
        let (done, outcome) = promise();
        let done = RemovalDone::Promise(done);
        if let Some(reserved) = room(stripe, key, Caller::Waits) {
            let_in(stripe, key, Caller::Waits, reserved, Some(done));
            return Self::queued(outcome);
        }
        let version = forgets_at_once(stripe).then(|| stripe.remove(key).0);
        let waiting = Arc::new(WaitingRemove::new(key, version, done));
        if !stripe.queue.waits_for_room(&waiting) {
            // The device has failed, but the entries in memory must be removed all the same.
            stripe.remove(key);
            drop(waiting.take_done());
        }
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
    /// If the device fails.
    pub fn wait(self) -> Result<(), RemoveError> {
        // Wait on a clone: `self`, and with it the place in the queue, is dropped when there is an
        // answer.
        if self.outcome.clone().wait() {
            Ok(())
        } else {
            Err(RemoveError)
        }
    }
}

impl Drop for WithoutRoom {
    fn drop(&mut self) {
        // `None`: the writer has admitted the remove.
        let Some(done) = self.waiting.take_done() else {
            return;
        };
        drop(done);
        self.stripe.queue.gives_up();
        match self.waiting.version {
            // The name is forgotten in memory already.
            Some(_) => self.stripe.medium.counters.no_memory.add(1),
            None => remove_without_room(&self.stripe, self.waiting.key),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;
    use crate::{Cache, Config, PolicyKind};

    #[test]
    fn an_invalidation_of_a_name_that_went_meanwhile_is_no_failure() {
        for policy in PolicyKind::ALL {
            let cache = Cache::open(Config {
                policy,
                memory_bytes: 16 << 20,
                ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
            })
            .unwrap();
            let key = cache.secret().name(b"never stored");
            let stripe = cache.first_stripe();
            let (done, outcome) = promise();
            let reserved = room(stripe, key, Caller::Waits).unwrap();
            let done = Some(RemovalDone::Promise(done));
            let_in(stripe, key, Caller::Nobody, reserved, done);
            assert!(outcome.wait(), "{policy:?}");
        }
    }
}
