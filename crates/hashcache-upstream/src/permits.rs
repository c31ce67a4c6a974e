//! Permits for busy connections: a limit per origin and a total limit, shared by the cores. One
//! client may use its share of either limit, and one client of a child half of the child's share.
//! Idle connections are counted here too, for the metrics; idle connections on which clients have
//! logged in have separate limits and shares, also for the memory of buffers that have grown.
//!
//! `Upstream` takes a permit before it sends a request and returns it with the last byte of the
//! response; an idle connection has none. Permits are granted in order of arrival.
//!
//! Invariant: a limit is in the map exactly while a permit within it is held or awaited.
//! Cost: a short lock and two counters per request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashcache_base::failure::Failure;
use hashcache_base::share::{Network, Share, ShareGuard};
use hashcache_http::Authority;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limits; one for the process.
#[derive(Clone, Debug)]
pub struct Permits(Arc<PermitCounts>);

#[derive(Debug)]
struct PermitCounts {
    all: Arc<Semaphore>,
    in_all: usize,
    idle: AtomicU64,
    per_origin: usize,
    /// One client's share of each limit, percent.
    client_percent: u8,
    bounds: Mutex<HashMap<Bound, Arc<Semaphore>>>,
}

/// Permission to keep a connection busy; returned when dropped.
#[derive(Debug)]
pub struct Permit {
    _all: OwnedSemaphorePermit,
    _turns: Vec<BoundPermit>,
    _memory: Option<ShareGuard>,
    client: Option<Network>,
}

impl Permit {
    /// The client that made the request on the connection.
    pub(super) fn client(&self) -> Option<Network> {
        self.client
    }
}

/// Permission to keep an idle connection for the client that has logged in on it.
#[derive(Debug)]
pub(super) struct PinnedPermit {
    _turns: Vec<BoundPermit>,
    _idle: CountedIdle,
}

/// The limits besides the total limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bound {
    /// See [`Network::ChildClient`].
    ChildClientAtOrigin(Network, Authority),
    ChildClient(Network),
    ClientAtOrigin(Network, Authority),
    Client(Network),
    Origin(Authority),
    /// Idle connections on which a client has logged in.
    PinnedOf(Network),
    Pinned,
    /// KiB of their buffers, beyond the buffers of new connections.
    PinnedKibOf(Network),
    PinnedKib,
}

/// A permit within a limit.
#[derive(Debug)]
struct BoundPermit {
    // Fields drop in this order: the permit must be returned before the reference checks whether it
    // is the last reference.
    _permit: OwnedSemaphorePermit,
    _interest: BoundRef,
}

impl Permits {
    /// Allows at most `per_origin` connections for each authority and `in_all` in total; one client
    /// gets `client_percent` of either.
    pub(crate) fn new(per_origin: usize, in_all: usize, client_percent: u8) -> Self {
        let in_all = in_all.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(PermitCounts {
            all: Arc::new(Semaphore::new(in_all)),
            in_all,
            idle: AtomicU64::new(0),
            per_origin: per_origin.min(Semaphore::MAX_PERMITS),
            client_percent,
            bounds: Mutex::default(),
        }))
    }

    /// Waits for a permit; the caller limits the time.
    pub(crate) async fn take(
        &self,
        authority: &Authority,
        client: Option<&Share>,
    ) -> Result<Permit, Failure> {
        let memory = match client.map(|client| client.take(BUSY_BYTES)) {
            Some(None) => return Err(Failure::UpstreamLimit),
            taken => taken.flatten(),
        };
        let network = client.map(Share::network);
        let of_client = network.map(Network::without_client);
        let of_child = network.filter(|_| network != of_client);
        // From the narrowest to the widest limit: a request that waits for a narrow one must not
        // hold a wide limit.
        let bounds = [
            of_child.map(|child| Bound::ChildClientAtOrigin(child, authority.clone())),
            of_child.map(Bound::ChildClient),
            of_client.map(|client| Bound::ClientAtOrigin(client, authority.clone())),
            of_client.map(Bound::Client),
            Some(Bound::Origin(authority.clone())),
        ];
        let bounds = bounds.into_iter().flatten();
        let mut bound_permits = Vec::with_capacity(3);
        let closed = |_| Failure::Internal("places are closed");
        for bound in bounds {
            let bound_ref = BoundRef::new(&self.0, bound);
            let semaphore = Arc::clone(&bound_ref.semaphore);
            let permit = semaphore.acquire_owned().await.map_err(closed)?;
            bound_permits.push(BoundPermit {
                _permit: permit,
                _interest: bound_ref,
            });
        }
        let all = Arc::clone(&self.0.all)
            .acquire_owned()
            .await
            .map_err(closed)?;
        Ok(Permit {
            _all: all,
            _turns: bound_permits,
            _memory: memory,
            client: network,
        })
    }

    /// Returns permission to keep a connection for `client` with buffers grown by `extra` bytes, if
    /// the limits allow another connection now. As many connections may be kept as may be busy; a
    /// client gets the same share of both.
    pub(super) fn pinned(&self, client: Network, extra: u64) -> Option<PinnedPermit> {
        let take = |(bound, permits)| {
            let interest = BoundRef::new(&self.0, bound);
            let permit = Arc::clone(&interest.semaphore).try_acquire_many_owned(permits);
            Some(BoundPermit {
                _permit: permit.ok()?,
                _interest: interest,
            })
        };
        let kib = u32::try_from(extra.div_ceil(1 << 10)).ok()?;
        let mut bounds = Vec::with_capacity(6);
        // A client of a child gets a part of the child's share.
        let child = client.without_client();
        let networks = [Some(client), (child != client).then_some(child)];
        for network in networks.into_iter().flatten() {
            bounds.push((Bound::PinnedOf(network), 1));
            bounds.push((Bound::PinnedKibOf(network), kib));
        }
        bounds.extend([(Bound::Pinned, 1), (Bound::PinnedKib, kib)]);
        bounds.retain(|(_, permits)| *permits > 0);
        let turns = bounds.into_iter().map(take);
        Some(PinnedPermit {
            _turns: turns.collect::<Option<_>>()?,
            _idle: self.idle(),
        })
    }

    /// Returns the numbers of busy and idle connections.
    pub fn figures(&self) -> UpstreamFigures {
        UpstreamFigures {
            busy: self.busy() as u64,
            idle: self.0.idle.load(Relaxed),
        }
    }

    /// Counts a connection as idle until the guard is dropped.
    pub(super) fn idle(&self) -> CountedIdle {
        self.0.idle.fetch_add(1, Relaxed);
        CountedIdle(Arc::clone(&self.0))
    }

    /// Number of busy connections.
    pub(crate) fn busy(&self) -> usize {
        self.0.in_all - self.0.all.available_permits()
    }
}

/// An idle connection in the count.
#[derive(Debug)]
pub(super) struct CountedIdle(Arc<PermitCounts>);

impl Drop for CountedIdle {
    fn drop(&mut self) {
        self.0.idle.fetch_sub(1, Relaxed);
    }
}

/// A reference to a limit's semaphore; the last reference removes the limit from the map.
#[derive(Debug)]
struct BoundRef {
    shared: Arc<PermitCounts>,
    bound: Bound,
    semaphore: Arc<Semaphore>,
}

impl BoundRef {
    fn new(shared: &Arc<PermitCounts>, bound: Bound) -> Self {
        let semaphore = {
            let mut bounds = shared.bounds();
            let known = bounds
                .entry(bound.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(shared.permits(&bound))));
            Arc::clone(known)
        };
        Self {
            shared: Arc::clone(shared),
            bound,
            semaphore,
        }
    }
}

impl Drop for BoundRef {
    fn drop(&mut self) {
        let mut bounds = self.shared.bounds();
        // Semaphores are cloned only under this lock, from the map's reference or from a
        // `BoundRef`. A count of two means the map's reference and ours.
        if Arc::strong_count(&self.semaphore) == 2 {
            bounds.remove(&self.bound);
        }
    }
}

impl PermitCounts {
    fn bounds(&self) -> MutexGuard<'_, HashMap<Bound, Arc<Semaphore>>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of permits of a limit.
    fn permits(&self, bound: &Bound) -> usize {
        let share = |permits: usize| {
            let permits = u128::try_from(permits).unwrap_or(u128::MAX);
            let share = permits.saturating_mul(self.client_percent.into()) / 100;
            usize::try_from(share).unwrap_or(usize::MAX).max(1)
        };
        let of_client = |network: Network, permits| match network {
            // All clients of a child share the part of a single client, so no client may use all of
            // it.
            Network::ChildClient(..) => share(permits).div_ceil(2),
            Network::Address(_) | Network::Child(_) => share(permits),
        };
        match bound {
            Bound::Origin(_) => self.per_origin,
            Bound::PinnedOf(network) => of_client(*network, self.in_all),
            Bound::PinnedKibOf(network) => of_client(*network, PINNED_EXTRA_KIB),
            Bound::PinnedKib => PINNED_EXTRA_KIB,
            Bound::Client(_) => share(self.in_all),
            Bound::Pinned => self.in_all,
            Bound::ClientAtOrigin(..) => share(self.per_origin),
            Bound::ChildClient(_) => share(self.in_all).div_ceil(2),
            Bound::ChildClientAtOrigin(..) => share(self.per_origin).div_ceil(2),
        }
    }
}

/// Memory of a busy connection in the client's share, and of an idle connection kept for the
/// client.
pub(super) const BUSY_BYTES: u64 = 32 << 10;
/// Maximum memory of grown buffers of the connections on which clients have logged in: 64
/// connections with the largest reads (`http1::READ_MAX`); one client has 16 of them by default.
const PINNED_EXTRA_KIB: usize = 64 * 128;

/// Connections to origins, without tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamFigures {
    /// Opening, or with a request in progress; limited by `upstream` of the limits.
    pub busy: u64,
    /// Kept for the next request.
    pub idle: u64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hashcache_base::share::Shares;
    use hashcache_http::Host;
    use tokio::time::timeout;

    use super::*;
    use crate::http1::{READ_MAX, buffered};

    fn authority(name: &str) -> Authority {
        Authority {
            host: Host::Name(name.into()),
            port: 80,
        }
    }

    async fn full(permits: &Permits, name: &str) -> bool {
        timeout(Duration::from_secs(1), permits.take(&authority(name), None))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_has_its_own_cap_below_the_common_one() {
        let permits = Permits::new(2, 3, 100);
        let first = permits.take(&authority("a.test"), None).await.unwrap();
        let _second = permits.take(&authority("a.test"), None).await.unwrap();
        assert!(full(&permits, "a.test").await);
        let _third = permits.take(&authority("b.test"), None).await.unwrap();
        assert_eq!(permits.busy(), 3);
        assert!(full(&permits, "c.test").await);
        drop(first);
        assert!(!full(&permits, "c.test").await);
        assert!(!full(&permits, "a.test").await);
    }

    #[tokio::test(start_paused = true)]
    async fn origins_are_forgotten_with_their_last_place() {
        let permits = Permits::new(1, 1, 100);
        let held = permits.take(&authority("a.test"), None).await.unwrap();
        assert!(full(&permits, "a.test").await);
        assert!(full(&permits, "b.test").await); // gave up while it held its origin's place
        assert_eq!(permits.0.bounds().len(), 1);
        drop(held);
        assert!(permits.0.bounds().is_empty());
        assert_eq!(permits.busy(), 0);
    }

    #[tokio::test]
    async fn one_client_leaves_places_for_the_logins_of_others() {
        let permits = Permits::new(4, 8, 50);
        let client = |address: &str| Network::containing(address.parse().unwrap());
        let (greedy, other) = (client("192.0.2.1"), client("192.0.2.2"));
        let held: Vec<_> = std::iter::from_fn(|| permits.pinned(greedy, 0)).collect();
        assert_eq!(held.len(), 4);
        let others: Vec<_> = std::iter::from_fn(|| permits.pinned(other, 0)).collect();
        assert_eq!((others.len(), permits.figures().idle), (4, 8));
        assert!(permits.pinned(client("192.0.2.3"), 0).is_none(), "of all");
        drop((held, others));
        assert!(permits.0.bounds().is_empty());
        assert!(permits.pinned(greedy, 0).is_some());
    }

    #[tokio::test]
    async fn a_client_of_a_child_leaves_places_for_the_logins_of_the_others() {
        let permits = Permits::new(4, 16, 50);
        let client = |number| Network::ChildClient(7, number);
        let all = |network| std::iter::from_fn(|| permits.pinned(network, 0)).collect::<Vec<_>>();
        let (greedy, other) = (all(client(1)), all(client(2)));
        assert_eq!((greedy.len(), other.len()), (4, 4));
        assert!(
            all(client(3)).is_empty(),
            "the child has what one client gets"
        );
        assert_eq!(all(Network::containing([192, 0, 2, 1].into())).len(), 8);
        drop((greedy, other));
        assert!(permits.0.bounds().is_empty());
    }

    #[tokio::test]
    async fn grown_buffers_of_idle_logins_have_a_limit_of_which_one_client_has_its_share() {
        let permits = Permits::new(1 << 10, 1 << 10, 25);
        let extra = buffered(READ_MAX);
        let greedy = Network::containing([192, 0, 2, 1].into());
        let held: Vec<_> = std::iter::from_fn(|| permits.pinned(greedy, extra)).collect();
        assert!((15..=16).contains(&held.len()), "{}", held.len());
        assert!(
            permits.pinned(greedy, 0).is_some(),
            "one that has not grown"
        );
        let mut all = held.len();
        let mut others = Vec::new();
        for n in 2..9 {
            let client = Network::containing([192, 0, 2, n].into());
            let more = std::iter::from_fn(|| permits.pinned(client, extra));
            others.extend(more);
        }
        all += others.len();
        assert!((60..=64).contains(&all), "{all}");
        drop((held, others));
        assert!(permits.0.bounds().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_of_a_child_leaves_places_to_the_others_of_that_child() {
        let permits = Permits::new(8, 16, 50);
        let child = Shares::new(1 << 30, 100).of_network(Network::Child(7));
        let taken = async |name: &str, number: u32, most: usize| {
            let (authority, client) = (authority(name), child.of_client(number));
            let mut held = Vec::new();
            while held.len() < most {
                let taking = permits.take(&authority, Some(&client));
                match timeout(Duration::from_secs(1), taking).await {
                    Ok(permit) => held.push(permit.unwrap()),
                    Err(_) => break,
                }
            }
            held
        };
        let greedy = taken("a.test", 1, 99).await;
        assert_eq!(greedy.len(), 2, "half of the child's at this origin");
        let elsewhere = taken("b.test", 1, 99).await;
        assert_eq!(elsewhere.len(), 2, "half of the child's in all");
        let other = taken("a.test", 2, 99).await;
        assert_eq!(other.len(), 2);
        // Numbers give the child no more than one client gets.
        assert!(taken("a.test", 3, 1).await.is_empty());
        drop((greedy, elsewhere, other));
        assert!(permits.0.bounds().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_leaves_places_to_others_at_each_origin_and_in_all() {
        let permits = Permits::new(4, 8, 50);
        let shares = Shares::new(1 << 30, 100);
        let client = |address: &str| shares.of(address.parse().unwrap());
        let (greedy, other) = (client("2001:db8::1"), client("192.0.2.2"));
        let same = client("2001:db8::2");
        let is_refused = async |name: &str, client: &Share| {
            let authority = authority(name);
            let taking = permits.take(&authority, Some(client));
            timeout(Duration::from_secs(1), taking).await.is_err()
        };
        let mut held = Vec::new();
        for name in ["a.test", "a.test", "b.test", "b.test"] {
            held.push(permits.take(&authority(name), Some(&greedy)).await.unwrap());
        }
        assert!(is_refused("a.test", &greedy).await, "half of an origin's");
        assert!(is_refused("c.test", &greedy).await, "half of all");
        assert!(is_refused("c.test", &same).await, "the same network");
        for name in ["a.test", "a.test", "c.test", "c.test"] {
            held.push(permits.take(&authority(name), Some(&other)).await.unwrap());
        }
        drop(held);
        assert!(permits.0.bounds().is_empty());
        assert!(!is_refused("a.test", &same).await);
    }
}
