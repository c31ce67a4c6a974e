//! Each client's invalidations that are not durable yet.
//!
//! Called by `purge` for unsafe requests and HTCP. The engine has room for a few thousand removes
//! that wait for the device, for all clients together; beyond that, each remove makes the engine
//! forget other objects too.
//!
//! Invariant: a client with [`PER_CLIENT`] invalidations under way waits, for [`TURN_MAX`] at most,
//! until one of them is durable. Only after this wait is the next invalidation put in force and the
//! response sent. Therefore a client cannot use up the room that other clients need, and a device
//! that hangs does not block a request for ever. If the engine has no room, an invalidation counts
//! until there is room again. Cost: a lock for each unsafe request that may have changed a stored
//! response, and a check for each of the client's invalidations.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hashcache::Remove;
use hashcache_base::share::Network;

/// Invalidations that a client may have under way without waiting.
pub(super) const PER_CLIENT: usize = 64;
/// Invalidations by HTCP that a peer may have under way: HTCP messages cannot wait, and not all
/// peers repeat a message that got no answer.
pub(super) const PER_PEER: usize = 1_024;
/// Client requests that may wait. Further requests continue at once: a client that disconnects
/// before the responses must not fill memory with waiting requests.
const WAITING_MAX: usize = 1_024;
/// Longest wait for a turn. The response to an unsafe request must not wait for a device that
/// hangs; the invalidation is in force in memory anyway.
const TURN_MAX: Duration = Duration::from_secs(1);
/// How many clients are remembered before clients without pending invalidations are forgotten.
const CLIENTS_KEPT: usize = 256;

/// A client's invalidations.
#[derive(Default)]
struct OfClient {
    under_way: Vec<Remove>,
    /// Requests that wait for their turn.
    waiting: usize,
    /// Held by the next request in line. Only that request polls the removes; otherwise each remove
    /// that becomes durable would wake all waiting requests.
    line: Arc<tokio::sync::Mutex<()>>,
}

struct Clients {
    of_each: HashMap<Network, OfClient>,
    /// When there are this many clients, the clients without invalidations are forgotten.
    prune_at: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            of_each: HashMap::new(),
            prune_at: CLIENTS_KEPT,
        }
    }
}

impl Clients {
    /// Forgets clients without invalidations. Doubling `prune_at` spreads the cost over as many new
    /// clients as there are old clients.
    fn prune(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        self.of_each.retain(|_, of_client| {
            forget_done(&mut of_client.under_way, &mut context);
            of_client.waiting > 0 || !of_client.under_way.is_empty()
        });
        self.prune_at = CLIENTS_KEPT.max(2 * self.of_each.len());
    }
}

/// All clients' invalidations; see the module documentation.
#[derive(Clone, Default)]
pub(super) struct Unsettled(Arc<Mutex<Clients>>);

impl Unsettled {
    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if `client` has fewer than `most` invalidations under way.
    pub(super) fn has_turn(&self, client: Network, most: usize) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.poll_turn(client, most, &mut context).is_ready()
    }

    fn poll_turn(&self, client: Network, most: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut clients = self.lock();
        let Some(of_client) = clients.of_each.get_mut(&client) else {
            return Poll::Ready(());
        };
        forget_done(&mut of_client.under_way, context);
        if of_client.under_way.len() < most {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Waits until `client` has fewer than [`PER_CLIENT`] invalidations under way, for [`TURN_MAX`]
    /// at most.
    pub(super) async fn turn(&self, client: Network) {
        let Some(place) = Place::take(self, client) else {
            return;
        };
        let turn = async {
            let _first = place.line.lock().await;
            poll_fn(|context| self.poll_turn(client, PER_CLIENT, context)).await;
        };
        // On timeout the request continues without a turn.
        let _ = tokio::time::timeout(TURN_MAX, turn).await;
    }

    /// Adds `removes` by `client`, which are in force.
    pub(super) fn add(&self, client: Network, removes: Vec<Remove>) {
        if removes.is_empty() {
            return;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut clients = self.lock();
        if clients.of_each.len() >= clients.prune_at {
            clients.prune();
        }
        let of_client = clients.of_each.entry(client).or_default();
        of_client.under_way.extend(removes);
        forget_done(&mut of_client.under_way, &mut context);
        // If too many client requests wait, further requests do not wait; this bounds the memory
        // for their removes. A dropped remove stays in force and becomes durable anyway.
        let too_many = of_client
            .under_way
            .len()
            .saturating_sub(PER_PEER + WAITING_MAX);
        of_client.under_way.drain(..too_many);
    }
}

/// Drops the removes that are durable, in any order, because a device that hangs must not make the
/// finished removes on other devices count. `context` is woken when another remove is durable.
fn forget_done(removes: &mut Vec<Remove>, context: &mut Context<'_>) {
    // A remove that cannot become durable because the device has failed is done too: it is in
    // force.
    removes.retain_mut(|remove| Pin::new(remove).poll(context).is_pending());
}

/// The place for a request that waits in line.
struct Place<'a> {
    unsettled: &'a Unsettled,
    client: Network,
    line: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> Place<'a> {
    fn take(unsettled: &'a Unsettled, client: Network) -> Option<Self> {
        let mut clients = unsettled.lock();
        let of_client = clients.of_each.get_mut(&client)?;
        if of_client.waiting == WAITING_MAX {
            return None;
        }
        of_client.waiting += 1;
        let line = Arc::clone(&of_client.line);
        drop(clients);
        Some(Self {
            unsettled,
            client,
            line,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(of_client) = self.unsettled.lock().of_each.get_mut(&self.client) {
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
            // A test that fails drops the store, which waits for its writes.
            let longest = Duration::from_secs(60);
            let woken = self
                .changed
                .wait_timeout_while(is_stopped, longest, |it| *it);
            drop(woken.unwrap());
            self.inner.write_at(offset, buffer)
        }

        fn sync(&self) -> std::io::Result<()> {
            self.inner.sync()
        }
    }

    fn paused_runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    }

    fn client(n: u8) -> Network {
        Network::containing(IpAddr::from([10, 0, 0, n]))
    }

    fn name(n: usize) -> Vec<u8> {
        format!("name {n}").into_bytes()
    }

    /// A store of `stored` objects whose device has stopped.
    fn stopped(stored: usize) -> (Arc<Stopped>, Cache) {
        let device = Stopped::new();
        let cache = Cache::open(Config {
            // `set` has no index, so every name counts as stored; its sets have room for all.
            policy: PolicyKind::Set,
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::clone(&device) as _)
        })
        .unwrap();
        for n in 0..stored {
            cache.put(&name(n), Put::metadata("m"), b"content").unwrap();
        }
        assert!(cache.flush().wait());
        device.stop(true);
        (device, cache)
    }

    fn invalidation(cache: &Cache, n: usize) -> Vec<Remove> {
        cache.invalidation(&name(n)).into_iter().collect()
    }

    #[test]
    fn a_request_waits_a_second_at_most_for_its_turn() {
        let (device, cache) = stopped(PER_CLIENT);
        let unsettled = Unsettled::default();
        for n in 0..PER_CLIENT {
            unsettled.add(client(1), invalidation(&cache, n));
        }
        paused_runtime().block_on(async {
            let begun = tokio::time::Instant::now();
            // The second waits in line behind the first.
            tokio::join!(unsettled.turn(client(1)), unsettled.turn(client(1)));
            assert_eq!(begun.elapsed().as_secs(), TURN_MAX.as_secs());
        });
        assert!(!unsettled.has_turn(client(1), PER_CLIENT));
        device.stop(false);
        paused_runtime().block_on(async {
            assert!(cache.flush().wait());
            cache.remove(&name(0)).wait().unwrap();
        });
    }

    #[test]
    fn invalidations_of_a_device_that_hangs_do_not_make_durable_ones_of_others_count() {
        let (hanging, first) = stopped(1);
        let (device, second) = stopped(PER_CLIENT);
        let unsettled = Unsettled::default();
        unsettled.add(client(1), invalidation(&first, 0));
        for n in 1..PER_CLIENT {
            unsettled.add(client(1), invalidation(&second, n));
        }
        assert!(!unsettled.has_turn(client(1), PER_CLIENT));
        let mut turn = std::pin::pin!(unsettled.turn(client(1)));
        let runtime = paused_runtime();
        let _entered = runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        assert!(turn.as_mut().poll(&mut context).is_pending());
        device.stop(false);
        while !unsettled.has_turn(client(1), 2) {
            std::thread::yield_now();
        }
        assert!(turn.as_mut().poll(&mut context).is_ready());
        hanging.stop(false);
    }

    #[test]
    fn a_client_waits_although_the_room_for_removes_is_used_up() {
        let (device, cache) = stopped(PER_CLIENT);
        let mut n = 0;
        let mut others = Vec::new();
        while cache.stats().no_memory == 0 {
            others.push(cache.invalidation(&name(n)));
            n += 1;
        }
        let unsettled = Unsettled::default();
        for m in n..n + PER_CLIENT {
            assert!(unsettled.has_turn(client(1), PER_CLIENT));
            unsettled.add(client(1), invalidation(&cache, m));
        }
        assert!(!unsettled.has_turn(client(1), PER_CLIENT));
        device.stop(false);
        while !unsettled.has_turn(client(1), 1) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn clients_are_looked_at_again_only_when_their_number_has_doubled() {
        let (device, cache) = stopped(1);
        let unsettled = Unsettled::default();
        let add = |n: usize| {
            let [.., high, low] = n.to_be_bytes();
            let client = Network::containing(IpAddr::from([10, 0, high, low]));
            unsettled.add(client, invalidation(&cache, n));
            let clients = unsettled.lock();
            (clients.of_each.len(), clients.prune_at)
        };
        for n in 0..CLIENTS_KEPT {
            assert_eq!(add(n), (n + 1, CLIENTS_KEPT));
        }
        for n in CLIENTS_KEPT..2 * CLIENTS_KEPT {
            assert_eq!(add(n), (n + 1, 2 * CLIENTS_KEPT));
        }
        device.stop(false);
        let is_done = |of_client: &mut OfClient| {
            let mut context = Context::from_waker(Waker::noop());
            forget_done(&mut of_client.under_way, &mut context);
            of_client.under_way.is_empty()
        };
        while !unsettled.lock().of_each.values_mut().all(is_done) {
            std::thread::yield_now();
        }
        assert_eq!(add(2 * CLIENTS_KEPT), (1, CLIENTS_KEPT));
    }

    #[test]
    fn a_client_waits_for_its_own_oldest_invalidations_only() {
        let (device, cache) = stopped(2 * PER_CLIENT);
        let unsettled = Unsettled::default();
        for n in 0..2 * PER_CLIENT {
            assert_eq!(unsettled.has_turn(client(1), PER_CLIENT), n < PER_CLIENT);
            unsettled.add(client(1), invalidation(&cache, n));
            assert!(unsettled.has_turn(client(2), PER_CLIENT));
        }
        assert!(unsettled.has_turn(client(1), PER_PEER));
        assert!(!unsettled.has_turn(client(1), 2 * PER_CLIENT));
        let runtime = paused_runtime();
        let _entered = runtime.enter();
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
