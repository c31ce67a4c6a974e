//! Places for busy connections: so many per origin, so many in all, shared by the cores. One client
//! may have its share of either. Those that
//! lie idle are counted here too, for those who ask what there is.
//!
//! `Upstream` takes a place before it sends a request and gives it back with the last byte of the
//! response; a connection that lies idle holds none. Who waits is served in order of arrival.
//!
//! Invariant: a bound is known here exactly while somebody holds or waits for a place within it.
//! Cost: one short lock and two counters per request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashcache_http::Authority;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;
use crate::share::{Network, Share, ShareGuard};

/// The caps; one for the process.
#[derive(Clone, Debug)]
pub(crate) struct Permits(Arc<PermitCounts>);

#[derive(Debug)]
struct PermitCounts {
    all: Arc<Semaphore>,
    in_all: usize,
    idle: AtomicU64,
    per_origin: usize,
    /// What one client may have of either, percent.
    client_percent: u8,
    bounds: Mutex<HashMap<Bound, Arc<Semaphore>>>,
}

/// The right to keep one connection busy; given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _all: OwnedSemaphorePermit,
    _turns: Vec<BoundPermit>,
    _memory: Option<ShareGuard>,
}

/// What is bounded beside all places together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bound {
    ClientAtOrigin(Network, Authority),
    Client(Network),
    Origin(Authority),
}

/// One place of those that a bound allows.
#[derive(Debug)]
struct BoundPermit {
    // Fields drop in this order: the permit is back before the interest looks who is left.
    _permit: OwnedSemaphorePermit,
    _interest: BoundRef,
}

impl Permits {
    /// `per_origin` places for each authority, `in_all` for all of them together, of which one
    /// client may have so many percent.
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

    /// Waits for a place; the caller bounds the time.
    pub(crate) async fn take(
        &self,
        authority: &Authority,
        client: Option<&Share>,
    ) -> Result<Permit, Failure> {
        let memory = match client.map(|client| client.take(BUSY_BYTES)) {
            Some(None) => return Err(Failure::UpstreamLimit),
            taken => taken.flatten(),
        };
        let mut bounds = Vec::with_capacity(3);
        // From the narrowest to the widest: who waits for one of these must hold up nobody who does
        // not.
        if let Some(network) = client.map(Share::network) {
            bounds.push(Bound::ClientAtOrigin(network, authority.clone()));
            bounds.push(Bound::Client(network));
        }
        bounds.push(Bound::Origin(authority.clone()));
        let mut bound_permits = Vec::with_capacity(bounds.len());
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
        })
    }

    /// Connections busy now, and idle ones.
    pub(crate) fn figures(&self) -> UpstreamFigures {
        UpstreamFigures {
            busy: self.busy() as u64,
            idle: self.0.idle.load(Relaxed),
        }
    }

    /// Counts a connection as idle while the guard lives.
    pub(super) fn idle(&self) -> CountedIdle {
        self.0.idle.fetch_add(1, Relaxed);
        CountedIdle(Arc::clone(&self.0))
    }

    /// Connections busy now.
    pub(crate) fn busy(&self) -> usize {
        self.0.in_all - self.0.all.available_permits()
    }
}

/// One idle connection in the count.
#[derive(Debug)]
pub(super) struct CountedIdle(Arc<PermitCounts>);

impl Drop for CountedIdle {
    fn drop(&mut self) {
        self.0.idle.fetch_sub(1, Relaxed);
    }
}

/// Interest in a bound's semaphore; the last one to lose it removes the bound from the map.
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
        // Copies are made under this lock only, from the map's or from an interest's own: two left
        // means the map's and ours.
        if Arc::strong_count(&self.semaphore) == 2 {
            bounds.remove(&self.bound);
        }
    }
}

impl PermitCounts {
    fn bounds(&self) -> MutexGuard<'_, HashMap<Bound, Arc<Semaphore>>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places a bound allows.
    fn permits(&self, bound: &Bound) -> usize {
        let share = |permits: usize| {
            let permits = u128::try_from(permits).unwrap_or(u128::MAX);
            let share = permits.saturating_mul(self.client_percent.into()) / 100;
            usize::try_from(share).unwrap_or(usize::MAX).max(1)
        };
        match bound {
            Bound::Origin(_) => self.per_origin,
            Bound::Client(_) => share(self.in_all),
            Bound::ClientAtOrigin(..) => share(self.per_origin),
        }
    }
}

/// What a busy connection to an origin takes of its client's share of memory.
const BUSY_BYTES: u64 = 32 << 10;

/// Connections to origins, those of tunnels apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpstreamFigures {
    /// Being made or with a request under way; what `upstream` of the limits bounds.
    pub(crate) busy: u64,
    /// Kept for the next request.
    pub(crate) idle: u64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hashcache_http::Host;
    use tokio::time::timeout;

    use super::*;
    use crate::share::Shares;

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
