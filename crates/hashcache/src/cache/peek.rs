//! Lookups for operators: which object is stored under a name, and where, without side effects.
//!
//! Calls `stripe/peek`.

use bytes::Bytes;

use super::{Awaited, Cache, Hit, Lookup, PendingLookup};
use crate::completion::promise;
use crate::object;
use crate::shard::LookupTarget;

impl Cache {
    /// Looks up an object as [`Cache::get`] does, but without side effects: no count of hits and
    /// misses changes, the object does not move in any order of use, and a record that is read from
    /// disk does not become hot. Reading content through the hit has the usual side effects.
    pub fn peek(&self, name: &[u8]) -> Lookup {
        if name.is_empty() || name.len() > object::MAX_NAME {
            return Lookup::Miss;
        }
        let key = self.secret().name(name);
        let wanted = LookupTarget {
            key,
            name: Bytes::copy_from_slice(name),
            span: None,
            expect: 0,
        };
        let stripe = self.stripe(key);
        if let Some(known) = stripe.peek_memory(&wanted) {
            let hit = known.map(|record| Hit::new(self.of_this_thread(), record));
            return hit.map_or(Lookup::Miss, Lookup::Hit);
        }
        let (found, outcome) = promise();
        let on_disk = std::sync::Arc::clone(stripe);
        stripe.pool.run(move || found.set(on_disk.peek(&wanted)));
        Lookup::Pending(PendingLookup {
            cache: self.clone(),
            answer: Awaited::Asked(outcome),
        })
    }

    /// Number of devices of the cache.
    pub fn devices(&self) -> usize {
        self.inner.stripes.len()
    }

    /// The number of the device that stores, or would store, an object with this name, in the order
    /// of [`crate::Config`].
    pub fn device_of(&self, name: &[u8]) -> usize {
        self.shared().members.owner(self.secret().name(name))
    }
}
