//! Recently unreachable origins: negative caching of connection failures.
//!
//! `connect` calls this module before it connects, and reports the result. Without this, while the
//! line is down, every validation would wait for the connect timeout, for each client again
//! (Harvest calls it negative caching). When an entry expires, a single client tries again; the
//! other clients still fail at once until that client has a result or has left.
//!
//! Invariants: only timeouts and missing routes are remembered, and only after a wait: a refused
//! connection is reported within a round trip, by a host that may listen again in a moment, and
//! denied destinations are a matter of access rules. An entry's lifetime grows only if the single
//! retry has failed: many clients that fail at the same time have seen the same outage.
//! Cost: a short lock per connection. At most `ORIGINS` entries. A new entry in a full table scans
//! all entries, but only after a connection attempt that took a second; clients with more than
//! their share of the entries lose some.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::fair_table::FairTable;
use hashcache_base::net::address::Purpose;
use hashcache_base::share::Network;
use hashcache_http::Authority;
use tokio::time::Instant;

use super::endpoint::Endpoint;

/// Recently unreachable origins; one for the process.
#[derive(Clone, Debug)]
pub struct UnreachableCache {
    table: Arc<Mutex<FairTable<OriginKey, UnreachableEntry>>>,
    /// Lifetime of a first entry; nothing is remembered if it is zero.
    first: Duration,
}

/// The authority and the party that chose it, which decides about the addresses that are tried.
type OriginKey = (Authority, Purpose);

#[derive(Clone, Debug)]
struct UnreachableEntry {
    failure: Failure,
    until: Instant,
    /// The entry's lifetime; the next lifetime is twice as long.
    lifetime: Duration,
}

/// Permission to try an origin. If it is dropped before `end`, the attempt does not count.
#[must_use]
pub(super) struct TryPermit {
    unreachable: UnreachableCache,
    origin: OriginKey,
    client: Option<Network>,
    begun: Instant,
    /// There is an entry, which applies to all other requests meanwhile.
    again: bool,
    ended: bool,
}

impl UnreachableCache {
    /// Makes an empty cache; first entries have the lifetime `first`.
    pub fn new(first: Duration) -> Self {
        Self {
            table: Arc::new(Mutex::new(FairTable::new(ORIGINS))),
            first,
        }
    }

    /// Permits an attempt on `to` for `client`. After an entry has expired, a single caller has
    /// `time` to try again; the entry applies to all other callers until then.
    ///
    /// # Errors
    /// The last attempt's failure.
    pub(super) fn may_try(
        &self,
        to: &Endpoint,
        client: Option<Network>,
        time: Duration,
    ) -> Result<TryPermit, Failure> {
        let origin = (to.authority.clone(), to.purpose);
        let now = Instant::now();
        let mut table = self.table();
        // A refused request changes nothing, so that the entry does not look younger in the table.
        if let Some(entry) = table.get(&origin)
            && now < entry.until
        {
            return Err(entry.failure.clone());
        }
        let mut entry = table.get_mut(&origin);
        if let Some(entry) = &mut entry {
            entry.until = now + time;
        }
        let again = entry.is_some();
        drop(table);
        Ok(TryPermit {
            unreachable: self.clone(),
            origin,
            client,
            begun: now,
            again,
            ended: false,
        })
    }

    fn table(&self) -> MutexGuard<'_, FairTable<OriginKey, UnreachableEntry>> {
        // A panic under the lock would leave at worst one odd entry, which expires.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TryPermit {
    /// Reports the attempt's result.
    pub(super) fn end<T>(mut self, outcome: &Result<T, Failure>) {
        self.ended = true;
        let mut table = self.unreachable.table();
        let waited = self.begun.elapsed() >= WAITED_MIN;
        let failure = match outcome {
            Err(failure @ (Failure::Unreachable | Failure::ConnectTimeout(_))) if waited => failure,
            Ok(_) | Err(_) => {
                table.remove(&self.origin);
                return;
            }
        };
        let first = self.unreachable.first;
        if first.is_zero() {
            return;
        }
        let now = Instant::now();
        let lifetime = match table.get(&self.origin) {
            Some(before) if self.again => (before.lifetime * 2).min(LIFETIME_MAX.max(first)),
            Some(before) if now < before.until => return,
            Some(before) => before.lifetime,
            None => first,
        };
        let entry = UnreachableEntry {
            failure: failure.clone(),
            until: now + lifetime,
            lifetime,
        };
        let is_over = |entry: &UnreachableEntry| entry.until <= now;
        table.insert_unless_over(self.origin.clone(), entry, self.client, is_over);
    }
}

impl Drop for TryPermit {
    fn drop(&mut self) {
        // The client that tried has left before the result, so the next client may try.
        if self.again
            && !self.ended
            && let Some(entry) = self.unreachable.table().get_mut(&self.origin)
        {
            entry.until = Instant::now();
        }
    }
}

/// Maximum entry lifetime.
const LIFETIME_MAX: Duration = Duration::from_secs(5 * 60);
/// A failure that takes less time than this is not remembered.
const WAITED_MIN: Duration = Duration::from_secs(1);
/// Maximum number of entries.
const ORIGINS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hashcache_http::{Host, Scheme};
    use tokio::time::advance;

    use super::*;

    const FIRST: Duration = Duration::from_secs(10);
    const TRY: Duration = Duration::from_secs(3);

    fn origin(n: usize) -> Endpoint {
        Endpoint {
            authority: Authority {
                host: Host::Name(format!("{n}.test").into()),
                port: 80,
            },
            purpose: Purpose::Forward,
            scheme: Scheme::Http,
            through: None,
        }
    }

    /// The failure for a request that is not allowed to try.
    fn told(unreachable: &UnreachableCache, to: &Endpoint) -> Result<(), Failure> {
        unreachable.may_try(to, None, TRY).map(drop)
    }

    fn end(try_permit: TryPermit, failure: Failure) {
        try_permit.end(&Err::<(), _>(failure));
    }

    async fn fails(unreachable: &UnreachableCache, to: &Endpoint) {
        let try_permit = unreachable.may_try(to, None, TRY).unwrap();
        advance(TRY / 2).await;
        end(try_permit, Failure::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_in_vain_is_tried_again_by_one_after_twice_as_long_each_time() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        let refusal = Err(Failure::Unreachable);
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            fails(&unreachable, &to).await;
            advance(Duration::from_secs(seconds) - TRY / 2).await;
            assert_eq!(told(&unreachable, &to), refusal, "{seconds}");
            assert_eq!(told(&unreachable, &origin(2)), Ok(()));
            let other = Endpoint {
                purpose: Purpose::Configured,
                ..to.clone()
            };
            assert_eq!(told(&unreachable, &other), Ok(()));
            advance(TRY / 2).await;
        }
        // One request tries; if there is no result, another may.
        let slow = unreachable.may_try(&to, None, TRY).unwrap();
        assert_eq!(told(&unreachable, &to), refusal);
        advance(TRY).await;
        unreachable.may_try(&to, None, TRY).unwrap().end(&Ok(()));
        drop(slow);
        fails(&unreachable, &to).await;
        advance(FIRST).await;
        assert_eq!(told(&unreachable, &to), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_fail_at_the_same_time_are_one() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        let all: Vec<TryPermit> = (0..6)
            .map(|_| unreachable.may_try(&to, None, TRY).unwrap())
            .collect();
        advance(TRY).await;
        for try_permit in all {
            end(try_permit, Failure::ConnectTimeout(TRY));
        }
        advance(FIRST - TRY).await;
        assert_eq!(told(&unreachable, &to), Err(Failure::ConnectTimeout(TRY)));
        advance(TRY).await;
        assert_eq!(told(&unreachable, &to), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_tries_again_and_goes_leaves_it_to_the_next() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        fails(&unreachable, &to).await;
        advance(FIRST).await;
        let gone = unreachable.may_try(&to, None, TRY).unwrap();
        assert_eq!(told(&unreachable, &to), Err(Failure::Unreachable));
        drop(gone);
        fails(&unreachable, &to).await;
        // A repeated failure counts.
        advance(FIRST).await;
        assert_eq!(told(&unreachable, &to), Err(Failure::Unreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_and_missing_routes_that_were_waited_for_are_remembered() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        for failure in [Failure::ConnectionRefused, Failure::NameNotFound] {
            let try_permit = unreachable.may_try(&to, None, TRY).unwrap();
            advance(TRY).await;
            end(try_permit, failure);
            assert_eq!(told(&unreachable, &to), Ok(()));
        }
        end(
            unreachable.may_try(&to, None, TRY).unwrap(),
            Failure::Unreachable,
        );
        assert_eq!(told(&unreachable, &to), Ok(()));
        let off = UnreachableCache::new(Duration::ZERO);
        fails(&off, &to).await;
        assert_eq!(told(&off, &to), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_tries_many_origins_makes_room_by_its_own() {
        let unreachable = UnreachableCache::new(FIRST);
        let client = |n| Some(Network::containing(IpAddr::from([192, 0, 2, n])));
        let trials: Vec<TryPermit> = (0..ORIGINS + 10)
            .map(|n| {
                let client = if n == 0 { client(1) } else { client(2) };
                unreachable.may_try(&origin(n), client, TRY).unwrap()
            })
            .collect();
        advance(TRY).await;
        for try_permit in trials {
            end(try_permit, Failure::Unreachable);
        }
        assert!(unreachable.table().len() <= ORIGINS);
        let refusal = Err(Failure::Unreachable);
        assert_eq!(told(&unreachable, &origin(0)), refusal);
        assert_eq!(told(&unreachable, &origin(1)), Ok(()));
        assert_eq!(told(&unreachable, &origin(ORIGINS + 9)), refusal);
        // Expired entries are dropped first.
        advance(FIRST).await;
        let trials: Vec<TryPermit> = (0..ORIGINS)
            .map(|n| {
                let to = origin(2 * ORIGINS + n);
                unreachable.may_try(&to, client(3), TRY).unwrap()
            })
            .collect();
        advance(TRY).await;
        for try_permit in trials {
            end(try_permit, Failure::Unreachable);
        }
        assert_eq!(unreachable.table().len(), ORIGINS);
        assert_eq!(told(&unreachable, &origin(2 * ORIGINS)), refusal);
    }
}
