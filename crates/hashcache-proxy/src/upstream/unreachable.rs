//! Origins that could not be reached: for a while nobody waits for them again.
//!
//! `connect` asks before it connects and tells what came of it. With the line down, every answer
//! that has to be validated would else wait out the time for connecting first, each client anew
//! (Harvest calls it negative caching). Who is asked for after that while is tried by one client;
//! the others are still told at once, until he has heard or gone.
//!
//! Invariants: only silence and missing routes are remembered, and only if somebody waited for
//! that: a refused connection is told within a round trip, by somebody who may listen in a moment;
//! what is denied is a matter of rules. A verdict grows longer only when the one who tried again
//! failed: of many who fail at the same time each has met the same.
//! Cost: one short lock a connection. At most [`ORIGINS`] are kept. All of them are scanned when a
//! new one finds no room; that happens only after a connection attempt has taken a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::Authority;
use tokio::time::Instant;

use super::address::Purpose;
use super::endpoint::Endpoint;
use crate::failure::Failure;

/// What could not be reached lately; one for the process.
#[derive(Clone, Debug)]
pub(crate) struct UnreachableCache {
    table: Arc<Mutex<HashMap<OriginKey, UnreachableEntry>>>,
    /// How long a first verdict holds; nothing is remembered if this is zero.
    first: Duration,
}

/// Who was asked for, and by whose choice: that decides which of its addresses are tried.
type OriginKey = (Authority, Purpose);

#[derive(Clone, Debug)]
struct UnreachableEntry {
    failure: Failure,
    until: Instant,
    /// How long it held; the next one holds twice as long.
    lifetime: Duration,
}

/// Leave to try an origin. Dropped before its end, it was none.
#[must_use]
pub(super) struct TryPermit {
    unreachable: UnreachableCache,
    origin: OriginKey,
    begun: Instant,
    /// There is a verdict, which stands for all others meanwhile.
    again: bool,
    ended: bool,
}

impl UnreachableCache {
    /// An empty table, whose first verdict on an origin holds for `first`.
    pub(crate) fn new(first: Duration) -> Self {
        Self {
            table: Arc::default(),
            first,
        }
    }

    /// Whether `to` may be tried. Whoever is told so after a verdict has `time` to do it; until
    /// then the verdict stands for all others.
    ///
    /// # Errors
    /// What was met the last time.
    pub(super) fn may_try(&self, to: &Endpoint, time: Duration) -> Result<TryPermit, Failure> {
        let origin = (to.authority.clone(), to.purpose);
        let now = Instant::now();
        let again = match self.table().get_mut(&origin) {
            Some(entry) if now < entry.until => return Err(entry.failure.clone()),
            Some(entry) => {
                entry.until = now + time;
                true
            }
            None => false,
        };
        Ok(TryPermit {
            unreachable: self.clone(),
            origin,
            begun: now,
            again,
            ended: false,
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<OriginKey, UnreachableEntry>> {
        // A panic under the lock would leave at worst one odd verdict, which expires.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TryPermit {
    /// What came of it.
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
        if !table.contains_key(&self.origin) && table.len() >= ORIGINS {
            table.retain(|_, entry| now < entry.until);
            let soonest = table.iter().min_by_key(|(_, entry)| entry.until);
            let soonest = soonest.map(|(origin, _)| origin.clone());
            if let Some(soonest) = soonest.filter(|_| table.len() >= ORIGINS) {
                table.remove(&soonest);
            }
        }
        let entry = UnreachableEntry {
            failure: failure.clone(),
            until: now + lifetime,
            lifetime,
        };
        table.insert(self.origin.clone(), entry);
    }
}

impl Drop for TryPermit {
    fn drop(&mut self) {
        // Whoever tried has gone before he heard: the next one may.
        if self.again
            && !self.ended
            && let Some(entry) = self.unreachable.table().get_mut(&self.origin)
        {
            entry.until = Instant::now();
        }
    }
}

/// However often an origin is tried in vain, it is tried again after so long.
const LIFETIME_MAX: Duration = Duration::from_mins(5);
/// What fails sooner is told as soon the next time.
const WAITED_MIN: Duration = Duration::from_secs(1);
/// Origins remembered at once; beyond that those go whose verdicts end first.
const ORIGINS: usize = 1024;

#[cfg(test)]
mod tests {
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
        }
    }

    /// What is said to somebody who would try, and does not.
    fn told(unreachable: &UnreachableCache, to: &Endpoint) -> Result<(), Failure> {
        unreachable.may_try(to, TRY).map(drop)
    }

    fn end(try_permit: TryPermit, failure: Failure) {
        try_permit.end(&Err::<(), _>(failure));
    }

    async fn fails(unreachable: &UnreachableCache, to: &Endpoint) {
        let try_permit = unreachable.may_try(to, TRY).unwrap();
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
        // One tries; if nothing is heard of that, another may.
        let slow = unreachable.may_try(&to, TRY).unwrap();
        assert_eq!(told(&unreachable, &to), refusal);
        advance(TRY).await;
        unreachable.may_try(&to, TRY).unwrap().end(&Ok(()));
        drop(slow);
        fails(&unreachable, &to).await;
        advance(FIRST).await;
        assert_eq!(told(&unreachable, &to), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_fail_at_the_same_time_are_one() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        let all: Vec<TryPermit> = (0..6)
            .map(|_| unreachable.may_try(&to, TRY).unwrap())
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
        let gone = unreachable.may_try(&to, TRY).unwrap();
        assert_eq!(told(&unreachable, &to), Err(Failure::Unreachable));
        drop(gone);
        fails(&unreachable, &to).await;
        // And that it failed again counts.
        advance(FIRST).await;
        assert_eq!(told(&unreachable, &to), Err(Failure::Unreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_and_missing_routes_that_were_waited_for_are_remembered() {
        let (unreachable, to) = (UnreachableCache::new(FIRST), origin(1));
        for failure in [Failure::ConnectionRefused, Failure::NameNotFound] {
            let try_permit = unreachable.may_try(&to, TRY).unwrap();
            advance(TRY).await;
            end(try_permit, failure);
            assert_eq!(told(&unreachable, &to), Ok(()));
        }
        end(unreachable.may_try(&to, TRY).unwrap(), Failure::Unreachable);
        assert_eq!(told(&unreachable, &to), Ok(()));
        let off = UnreachableCache::new(Duration::ZERO);
        fails(&off, &to).await;
        assert_eq!(told(&off, &to), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_so_many_the_first_to_end_makes_room() {
        let unreachable = UnreachableCache::new(FIRST);
        let trials: Vec<TryPermit> = (0..ORIGINS + 10)
            .map(|n| unreachable.may_try(&origin(n), TRY).unwrap())
            .collect();
        advance(TRY).await;
        for try_permit in trials {
            advance(Duration::from_millis(1)).await;
            end(try_permit, Failure::Unreachable);
        }
        assert_eq!(unreachable.table().len(), ORIGINS);
        assert_eq!(told(&unreachable, &origin(9)), Ok(()));
        let refusal = Err(Failure::Unreachable);
        assert_eq!(told(&unreachable, &origin(10)), refusal);
        assert_eq!(told(&unreachable, &origin(ORIGINS + 9)), refusal);
        // Those whose time is over go first of all.
        advance(FIRST).await;
        fails(&unreachable, &origin(ORIGINS + 10)).await;
        assert_eq!(unreachable.table().len(), 1);
    }
}
