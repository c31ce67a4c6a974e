//! After a crash, loads the sets that are not in memory: one at a time, in disk order, with lower
//! priority than all other reads.
//!
//! Called when recovery is over. A set that is looked up or written in the meantime is learned by
//! that read.
//!
//! Cost: a read for each set, and a pause as long as the read, so that other reads have half of the
//! device time.

use std::sync::Arc;
use std::time::Duration;

use super::Stripe;
use crate::disk::table;
use crate::key::SHARDS;
use crate::policy::Epoch;
use crate::stats::Health;

/// Longest pause. It is short because closing the store waits for it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The next set to load: a shard, and a row in it.
#[derive(Clone, Copy, Default)]
struct Progress {
    shard: usize,
    row: u32,
}

impl Stripe {
    /// Starts to learn all unknown sets.
    pub(crate) fn learn_sets(self: &Arc<Self>) {
        if self.index.id.policy.kind.keeps_lists() {
            self.learn_from(Progress::default());
        }
    }

    /// Loads a single set in each job, so that a closed pool drops the next job.
    fn learn_from(self: &Arc<Self>, progress: Progress) {
        let stripe = Arc::clone(self);
        self.pool.run(move || {
            if stripe.health() != Health::InService {
                return;
            }
            let begun = stripe.medium.clock.monotone();
            if let Some(next) = stripe.learn_one(progress) {
                let took = stripe.medium.clock.monotone().saturating_sub(begun);
                std::thread::sleep(took.min(PAUSE_MAX));
                stripe.learn_from(next);
            }
        });
    }

    /// Learns the first unknown set at or after `progress`. Returns where to continue, `None` at
    /// the end.
    fn learn_one(&self, mut progress: Progress) -> Option<Progress> {
        while progress.shard < SHARDS {
            let view = self.view_at(progress.shard);
            let unknown = view.policy.table()?.unknown_set(progress.row);
            drop(view);
            if let Some((row, set)) = unknown {
                if let Some(read) = table::read_set(&self.medium, set)
                    && read.is_sound
                {
                    let occupants = table::occupied(&self.medium, &read.filled);
                    let mut shard = self.shard_at(progress.shard);
                    if let Some(table) = shard.policy.table_mut() {
                        table.learn_set(set, Epoch::ANY, &occupants);
                    }
                }
                let row = row + 1;
                return Some(Progress { row, ..progress });
            }
            progress = Progress {
                shard: progress.shard + 1,
                row: 0,
            };
        }
        None
    }
}
