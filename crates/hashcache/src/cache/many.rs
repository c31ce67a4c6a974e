//! Lookups in batches.
//!
//! A batch reads each device in the order of log positions, not in the order of the names, so the
//! arm of a hard disk crosses the platter once instead of moving back and forth (LAZY-READS in the
//! WebCoSM paper; the engine's threads take reads in the order they are queued).
//!
//! Cost over single lookups: a second index lookup for each name that is not hot, and a sort.

use super::{Cache, Lookup};
use crate::disk::index_rows;
use crate::disk::table;
use crate::object::MAX_NAME;
use crate::policy::Located;

/// Device and offset where a lookup reads first; `None` if memory answers.
type DeviceOffset = Option<(u16, u64)>;

impl Cache {
    /// Looks up many objects. The answers are in the order of `names`, the reads are queued in the
    /// order of positions. All of them are in progress when this returns; a name that is given
    /// twice is read once.
    ///
    /// Heads that were read stay in memory until their [`Lookup`]s are dropped: a batch of n names
    /// can hold n × 128 KiB.
    pub fn get_many(&self, names: &[&[u8]]) -> Vec<Lookup> {
        let mut order: Vec<(DeviceOffset, usize)> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (self.device_offset(name), n))
            .collect();
        order.sort_unstable();
        let mut answers: Vec<Lookup> = names.iter().map(|_| Lookup::Miss).collect();
        for (_, n) in order {
            answers[n] = self.get(names[n]);
            if let Lookup::Pending(pending) = &mut answers[n] {
                pending.begin();
            }
        }
        answers
    }

    /// The position that a lookup of `name` would read. The object may have moved before the
    /// lookup: the order is then not the best, but the answer is still right.
    fn device_offset(&self, name: &[u8]) -> DeviceOffset {
        if name.is_empty() || name.len() > MAX_NAME {
            return None;
        }
        let key = self.secret().name(name);
        let stripe = self.stripe(key);
        if stripe.shared.hot.contains(key) {
            return None;
        }
        let located = stripe.view(key).policy.locate(key, stripe.log.head());
        let offset = match located {
            Located::Nowhere => return None,
            Located::Log(candidates) => stripe.log.device_range(*candidates.as_slice().first()?).0,
            Located::Displaced(row) => {
                let row = stripe.index.shape.row_number(key.shard(), row);
                index_rows::row_offset(
                    &stripe.medium,
                    &stripe.index,
                    stripe.index.file.checkpoint_id()?,
                    row,
                )
            }
            Located::Set(set, _) | Located::Slot(set, _) => table::range(&stripe.medium, set).0,
        };
        Some((stripe.medium.device_id, offset))
    }
}
