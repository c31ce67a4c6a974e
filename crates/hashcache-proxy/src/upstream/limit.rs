//! Places for busy connections: so many per origin, so many in all, shared by the cores. Those that
//! lie idle are counted here too, for those who ask what there is.
//!
//! `Upstream` takes a place before it sends a request and gives it back with the last byte of the
//! response; a connection that lies idle holds none. Who waits is served in order of arrival.
//!
//! Invariant: an origin is known here exactly while somebody holds or waits for a place.
//! Cost: one short lock and two counters per request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashcache_http::Authority;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;
use crate::metrics::UpstreamFigures;

/// The caps; one for the process.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: Arc<Semaphore>,
    in_all: usize,
    idle: AtomicU64,
    per_origin: usize,
    origins: Mutex<HashMap<Authority, Arc<Semaphore>>>,
}

/// The right to keep one connection busy; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    // Fields drop in this order: both permits are back before the share looks who is left.
    _all: OwnedSemaphorePermit,
    _origin: OwnedSemaphorePermit,
    _share: Share,
}

impl Places {
    /// `per_origin` places for each authority, `in_all` for all of them together.
    pub(crate) fn new(per_origin: usize, in_all: usize) -> Self {
        let in_all = in_all.min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            all: Arc::new(Semaphore::new(in_all)),
            in_all,
            idle: AtomicU64::new(0),
            per_origin: per_origin.min(Semaphore::MAX_PERMITS),
            origins: Mutex::default(),
        }))
    }

    /// Waits for a place; the caller bounds the time.
    pub(crate) async fn take(&self, authority: &Authority) -> Result<Place, Failure> {
        let share = Share::new(&self.0, authority);
        // The origin's place first: who waits for a busy origin must not hold up the others.
        let closed = |_| Failure::Internal("places are closed");
        let origin = Arc::clone(&share.semaphore)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let all = Arc::clone(&self.0.all)
            .acquire_owned()
            .await
            .map_err(closed)?;
        Ok(Place {
            _all: all,
            _origin: origin,
            _share: share,
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
pub(super) struct CountedIdle(Arc<Shared>);

impl Drop for CountedIdle {
    fn drop(&mut self) {
        self.0.idle.fetch_sub(1, Relaxed);
    }
}

/// Interest in an origin's semaphore; the last one to lose it removes the origin from the map.
#[derive(Debug)]
struct Share {
    shared: Arc<Shared>,
    authority: Authority,
    semaphore: Arc<Semaphore>,
}

impl Share {
    fn new(shared: &Arc<Shared>, authority: &Authority) -> Self {
        let semaphore = {
            let mut origins = shared.origins();
            let of_origin = origins
                .entry(authority.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(shared.per_origin)));
            Arc::clone(of_origin)
        };
        Self {
            shared: Arc::clone(shared),
            authority: authority.clone(),
            semaphore,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut origins = self.shared.origins();
        // Copies are made under this lock only, from the map's or from a share's own: two left
        // means the map's and ours.
        if Arc::strong_count(&self.semaphore) == 2 {
            origins.remove(&self.authority);
        }
    }
}

impl Shared {
    fn origins(&self) -> MutexGuard<'_, HashMap<Authority, Arc<Semaphore>>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hashcache_http::Host;
    use tokio::time::timeout;

    use super::*;

    fn authority(name: &str) -> Authority {
        Authority {
            host: Host::Name(name.into()),
            port: 80,
        }
    }

    async fn full(places: &Places, name: &str) -> bool {
        timeout(Duration::from_secs(1), places.take(&authority(name)))
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_has_its_own_cap_below_the_common_one() {
        let places = Places::new(2, 3);
        let first = places.take(&authority("a.test")).await.unwrap();
        let _second = places.take(&authority("a.test")).await.unwrap();
        assert!(full(&places, "a.test").await);
        let _third = places.take(&authority("b.test")).await.unwrap();
        assert_eq!(places.busy(), 3);
        assert!(full(&places, "c.test").await);
        drop(first);
        assert!(!full(&places, "c.test").await);
        assert!(!full(&places, "a.test").await);
    }

    #[tokio::test(start_paused = true)]
    async fn origins_are_forgotten_with_their_last_place() {
        let places = Places::new(1, 1);
        let held = places.take(&authority("a.test")).await.unwrap();
        assert!(full(&places, "a.test").await);
        assert!(full(&places, "b.test").await); // gave up while it held its origin's place
        assert_eq!(places.0.origins().len(), 1);
        drop(held);
        assert!(places.0.origins().is_empty());
        assert_eq!(places.busy(), 0);
    }
}
