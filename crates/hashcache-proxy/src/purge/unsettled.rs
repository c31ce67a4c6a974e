//! Invalidations of each client that are not durable yet.
//!
//! Called by `purge` after unsafe requests. The engine has room for some thousands of removes that
//! wait for the device, for all clients together.
//!
//! Invariant: a client with more than [`PER_CLIENT`] of them waits for its own oldest ones before
//! it gets a response, so it cannot use up the room that others need. Cost: a lock for each unsafe
//! request that may have changed a stored response.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use hashcache::Remove;

use crate::share::Network;

/// Invalidations that a client may have under way without waiting.
const PER_CLIENT: usize = 64;
/// Clients that are remembered before those whose invalidations are all durable are forgotten.
const CLIENTS_KEPT: usize = 256;

/// See the module's head.
#[derive(Clone, Default)]
pub(super) struct Unsettled(Arc<Mutex<HashMap<Network, VecDeque<Remove>>>>);

impl Unsettled {
    /// Adds `removes` of `client`, and waits for its oldest ones if it has too many.
    pub(super) async fn add(&self, client: Network, removes: Vec<Remove>) {
        for remove in self.too_many(client, removes) {
            // Not durable is no reason to keep the client waiting: it is in force.
            let _ = remove.await;
        }
    }

    /// The oldest removes of `client` beyond its number.
    fn too_many(&self, client: Network, removes: Vec<Remove>) -> Vec<Remove> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = clients.entry(client).or_default();
        of_client.extend(removes);
        forget_done(of_client);
        let too_many = of_client.len().saturating_sub(PER_CLIENT);
        let oldest = of_client.drain(..too_many).collect();
        if of_client.is_empty() {
            clients.remove(&client);
        }
        if clients.len() > CLIENTS_KEPT {
            clients.retain(|_, of_client| {
                forget_done(of_client);
                !of_client.is_empty()
            });
        }
        oldest
    }
}

/// Drops the removes at the front that are durable.
fn forget_done(removes: &mut VecDeque<Remove>) {
    let mut context = Context::from_waker(Waker::noop());
    while let Some(oldest) = removes.front_mut() {
        if Pin::new(oldest).poll(&mut context).is_pending() {
            return;
        }
        removes.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hashcache::{Cache, Config, PolicyKind};

    use super::*;

    #[test]
    fn a_client_waits_for_its_own_oldest_invalidations_only() {
        let device = Arc::new(hashcache::device::MemoryDevice::new(16 << 20));
        let cache = Cache::open(Config {
            policy: PolicyKind::Basic,
            memory_bytes: 16 << 20,
            ..Config::on_device(device)
        })
        .unwrap();
        let unsettled = Unsettled::default();
        let client = |n: u8| Network::of(IpAddr::from([10, 0, 0, n]));
        let removes = |count: usize| {
            let name = |n: usize| format!("name {n}").into_bytes();
            (0..count)
                .filter_map(|n| cache.invalidation(&name(n)))
                .collect::<Vec<_>>()
        };
        for _ in 0..9 {
            let waited_for = unsettled.too_many(client(1), removes(PER_CLIENT)).len();
            let left = unsettled
                .0
                .lock()
                .unwrap()
                .get(&client(1))
                .map_or(0, VecDeque::len);
            assert!(left <= PER_CLIENT && waited_for + left <= 2 * PER_CLIENT);
            assert_eq!(unsettled.too_many(client(2), removes(1)).len(), 0);
        }
    }
}
