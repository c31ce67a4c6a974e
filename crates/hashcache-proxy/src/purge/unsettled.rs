//! Invalidations of each client that are not durable yet.
//!
//! Called by `purge` for unsafe requests and HTCP. The engine has room for some thousands of
//! removes that wait for the device, for all clients together; beyond that each one makes it forget
//! other objects, too.
//!
//! Invariant: a client with [`PER_CLIENT`] of them waits for its own oldest ones before its next
//! invalidation is put in force, and so before that response, so it cannot use up the room that
//! others need. Cost: a lock for each unsafe request that may have changed a stored response.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hashcache::Remove;

use crate::share::Network;

/// Invalidations that a client may have under way without waiting.
pub(super) const PER_CLIENT: usize = 64;
/// Invalidations of a peer by HTCP that may be under way: its messages cannot wait, and not all
/// peers send a message again that had no answer.
pub(super) const PER_PEER: usize = 1_024;
/// Requests of a client that wait. Further ones go on at once: a client that does not stay for its
/// responses must not fill memory with what waits.
const WAITING_MAX: usize = 1_024;
/// Clients that are remembered before those whose invalidations are all durable are forgotten.
const CLIENTS_KEPT: usize = 256;

/// The invalidations of a client.
#[derive(Default)]
struct OfClient {
    under_way: VecDeque<Remove>,
    /// Requests that wait for their turn.
    waiting: usize,
}

/// See the module's head.
#[derive(Clone, Default)]
pub(super) struct Unsettled(Arc<Mutex<HashMap<Network, OfClient>>>);

impl Unsettled {
    fn lock(&self) -> MutexGuard<'_, HashMap<Network, OfClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `client` has fewer than `most` invalidations under way.
    pub(super) fn has_turn(&self, client: Network, most: usize) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.poll_turn(client, most, &mut context).is_ready()
    }

    fn poll_turn(&self, client: Network, most: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut clients = self.lock();
        let Some(of_client) = clients.get_mut(&client) else {
            return Poll::Ready(());
        };
        forget_done(&mut of_client.under_way, context);
        match of_client.under_way.len() < most {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits until `client` has fewer than [`PER_CLIENT`] invalidations under way.
    pub(super) async fn turn(&self, client: Network) {
        if let Some(_place) = Place::take(self, client) {
            poll_fn(|context| self.poll_turn(client, PER_CLIENT, context)).await;
        }
    }

    /// Adds `removes` of `client`, which are in force.
    pub(super) fn add(&self, client: Network, removes: Vec<Remove>) {
        if removes.is_empty() {
            return;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut clients = self.lock();
        let of_client = clients.entry(client).or_default();
        of_client.under_way.extend(removes);
        forget_done(&mut of_client.under_way, &mut context);
        // So that clients that do not wait, because too many of their requests do, take no memory
        // without bound. A remove that is dropped is in force and becomes durable all the same.
        let too_many = of_client
            .under_way
            .len()
            .saturating_sub(PER_PEER + WAITING_MAX);
        of_client.under_way.drain(..too_many);
        if clients.len() > CLIENTS_KEPT {
            clients.retain(|_, of_client| {
                forget_done(&mut of_client.under_way, &mut context);
                of_client.waiting > 0 || !of_client.under_way.is_empty()
            });
        }
    }
}

/// Drops the removes at the front that are durable. `context` is woken when the next one is.
fn forget_done(removes: &mut VecDeque<Remove>, context: &mut Context<'_>) {
    while let Some(oldest) = removes.front_mut() {
        // Not durable, because the device has failed, is no reason to wait: it is in force.
        if Pin::new(oldest).poll(context).is_pending() {
            return;
        }
        removes.pop_front();
    }
}

/// The place of a request that waits for its turn.
struct Place<'a> {
    unsettled: &'a Unsettled,
    client: Network,
}

impl<'a> Place<'a> {
    fn take(unsettled: &'a Unsettled, client: Network) -> Option<Self> {
        let mut clients = unsettled.lock();
        let of_client = clients.get_mut(&client)?;
        if of_client.waiting == WAITING_MAX {
            return None;
        }
        of_client.waiting += 1;
        drop(clients);
        Some(Self { unsettled, client })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(of_client) = self.unsettled.lock().get_mut(&self.client) {
            of_client.waiting -= 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::IpAddr;
    use std::sync::Condvar;

    use hashcache::device::{Device, MemoryDevice};
    use hashcache::{Cache, Config, PolicyKind, Put};

    use super::*;

    /// A device that writes nothing while it is stopped.
    pub(crate) struct Stopped {
        inner: MemoryDevice,
        is_stopped: Mutex<bool>,
        changed: Condvar,
    }

    impl Stopped {
        pub(crate) fn new() -> Arc<Self> {
            Arc::new(Self {
                inner: MemoryDevice::new(16 << 20),
                is_stopped: Mutex::new(false),
                changed: Condvar::new(),
            })
        }

        pub(crate) fn stop(&self, is_stopped: bool) {
            *self.is_stopped.lock().unwrap() = is_stopped;
            self.changed.notify_all();
        }
    }

    impl Device for Stopped {
        fn len(&self) -> u64 {
            self.inner.len()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            self.inner.read_at(offset, buffer)
        }

        fn write_at(&self, offset: u64, buffer: &[u8]) -> std::io::Result<()> {
            let is_stopped = self.is_stopped.lock().unwrap();
            drop(self.changed.wait_while(is_stopped, |it| *it).unwrap());
            self.inner.write_at(offset, buffer)
        }

        fn sync(&self) -> std::io::Result<()> {
            self.inner.sync()
        }
    }

    #[test]
    fn a_client_waits_for_its_own_oldest_invalidations_only() {
        let device = Stopped::new();
        let cache = Cache::open(Config {
            policy: PolicyKind::Basic,
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::clone(&device) as _)
        })
        .unwrap();
        let name = |n: usize| format!("name {n}").into_bytes();
        for n in 0..2 * PER_CLIENT {
            cache.put(&name(n), Put::metadata("m"), b"content").unwrap();
        }
        assert!(cache.flush().wait());
        device.stop(true);
        let unsettled = Unsettled::default();
        let client = |n: u8| Network::of(IpAddr::from([10, 0, 0, n]));
        for n in 0..2 * PER_CLIENT {
            assert_eq!(unsettled.has_turn(client(1), PER_CLIENT), n < PER_CLIENT);
            unsettled.add(
                client(1),
                cache.invalidation(&name(n)).into_iter().collect(),
            );
            assert!(unsettled.has_turn(client(2), PER_CLIENT));
        }
        assert!(unsettled.has_turn(client(1), PER_PEER));
        assert!(!unsettled.has_turn(client(1), 2 * PER_CLIENT));
        let turn = std::pin::pin!(unsettled.turn(client(1)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.poll(&mut context).is_pending());
        let turns: Vec<_> = (0..WAITING_MAX - 1)
            .map(|_| Place::take(&unsettled, client(1)))
            .collect();
        assert!(turns.iter().all(Option::is_some));
        assert!(
            Place::take(&unsettled, client(1)).is_none(),
            "memory is bounded"
        );
        drop(turns);
        device.stop(false);
        cache.remove(&name(0)).wait().unwrap();
        assert!(cache.flush().wait());
        while !unsettled.has_turn(client(1), 1) {
            std::thread::yield_now();
        }
    }
}
