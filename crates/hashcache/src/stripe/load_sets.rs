//! Learning what sets hold that memory does not know after a crash: one by one, in the order they
//! lie in, behind all other reads.
//!
//! Called when recovery is over. A set that is asked for or written to meanwhile is learned by
//! that.
//!
//! Cost: one read a set, and as long a pause, so that others have half of the device.

use std::sync::Arc;
use std::time::Duration;

use super::Stripe;
use crate::disk::table;
use crate::key::SHARDS;
use crate::policy::Epoch;
use crate::stats::Health;

/// Longest pause: closing the store waits for it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// How far the learning has come: shard, row in it.
#[derive(Clone, Copy, Default)]
struct Place {
    shard: usize,
    row: u32,
}

impl Stripe {
    /// Begins to learn all sets that are not known.
    pub(crate) fn learn_sets(self: &Arc<Self>) {
        if self.index.id.policy.kind.keeps_lists() {
            self.learn_from(Place::default());
        }
    }

    /// One set a job: a pool that is closed drops the next one.
    fn learn_from(self: &Arc<Self>, place: Place) {
        let stripe = Arc::clone(self);
        self.pool.run(move || {
            if stripe.health() != Health::InService {
                return;
            }
            let begun = stripe.medium.clock.monotone();
            if let Some(next) = stripe.learn_one(place) {
                let took = stripe.medium.clock.monotone().saturating_sub(begun);
                std::thread::sleep(took.min(PAUSE_MAX));
                stripe.learn_from(next);
            }
        });
    }

    /// Learns the first unknown set from `place` on. Returns where to go on, `None` at the end.
    fn learn_one(&self, mut place: Place) -> Option<Place> {
        while place.shard < SHARDS {
            let unknown = self.view_at(place.shard).policy.unknown_set(place.row);
            if let Some((row, set)) = unknown {
                if let Some(slots) = table::read_set(&self.medium, set) {
                    let occupants = table::occupied(&self.medium, &slots);
                    let mut shard = self.shard_at(place.shard);
                    shard.policy.learn_set(set, Epoch::ANY, &occupants);
                }
                let row = row + 1;
                return Some(Place { row, ..place });
            }
            place = Place {
                shard: place.shard + 1,
                row: 0,
            };
        }
        None
    }
}
