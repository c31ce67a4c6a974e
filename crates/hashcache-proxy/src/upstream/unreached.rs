//! Origins that could not be reached: for a while nobody waits for them again.
//!
//! `connect` asks before it connects and tells what came of it. With the line down, every answer
//! that has to be validated would else wait out the time for connecting first, each client anew
//! (Harvest calls it negative caching). Who is asked for after that while is tried by one client;
//! the others are still told at once.
//!
//! Invariant: only silence and missing routes are remembered. A refused connection is told within
//! a round trip, by somebody who may listen in a moment; what is denied is a matter of rules.
//! Cost: one short lock a connection; at most [`AUTHORITIES`] are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::Authority;
use tokio::time::Instant;

use crate::failure::Failure;

/// What could not be reached lately; one for the process.
#[derive(Clone, Debug)]
pub(crate) struct Unreached {
    table: Arc<Mutex<HashMap<Authority, Verdict>>>,
    /// How long a first verdict holds; nothing is remembered if this is zero.
    first: Duration,
}

#[derive(Clone, Debug)]
struct Verdict {
    failure: Failure,
    until: Instant,
    /// How long it held; the next one holds twice as long.
    lifetime: Duration,
}

impl Unreached {
    /// An empty table, whose first verdict on an origin holds for `first`.
    pub(crate) fn new(first: Duration) -> Self {
        Self {
            table: Arc::default(),
            first,
        }
    }

    /// Whether `authority` may be tried. Whoever is told so after a verdict has `time` to do it;
    /// until then the verdict stands for all others.
    ///
    /// # Errors
    /// What was met the last time.
    pub(super) fn may_try(&self, authority: &Authority, time: Duration) -> Result<(), Failure> {
        let now = Instant::now();
        match self.table().get_mut(authority) {
            Some(verdict) if now < verdict.until => Err(verdict.failure.clone()),
            Some(verdict) => {
                verdict.until = now + time;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// What came of trying.
    pub(super) fn note<T>(&self, authority: &Authority, outcome: &Result<T, Failure>) {
        let failure = match outcome {
            Err(failure @ (Failure::Unreachable | Failure::ConnectTimeout(_))) => failure,
            Ok(_) | Err(_) => {
                self.table().remove(authority);
                return;
            }
        };
        if self.first.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut table = self.table();
        if !table.contains_key(authority) && table.len() >= AUTHORITIES {
            table.retain(|_, verdict| now < verdict.until);
            if table.len() >= AUTHORITIES {
                return;
            }
        }
        let before = table.get(authority).map(|verdict| verdict.lifetime);
        let lifetime = match before {
            Some(before) => (before * 2).min(LIFETIME_MAX.max(self.first)),
            None => self.first,
        };
        let verdict = Verdict {
            failure: failure.clone(),
            until: now + lifetime,
            lifetime,
        };
        table.insert(authority.clone(), verdict);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Authority, Verdict>> {
        // A panic under the lock would leave at worst one odd verdict, which expires.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However often an origin is tried in vain, it is tried again after so long.
const LIFETIME_MAX: Duration = Duration::from_mins(5);
/// Origins remembered at once.
const AUTHORITIES: usize = 1024;

#[cfg(test)]
mod tests {
    use hashcache_http::Host;
    use tokio::time::advance;

    use super::*;

    const FIRST: Duration = Duration::from_secs(10);
    const TRY: Duration = Duration::from_secs(3);

    fn authority(n: usize) -> Authority {
        Authority {
            host: Host::Name(format!("{n}.test").into()),
            port: 80,
        }
    }

    fn fails(unreached: &Unreached, authority: &Authority) {
        assert_eq!(unreached.may_try(authority, TRY), Ok(()));
        unreached.note(authority, &Err::<(), _>(Failure::Unreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_in_vain_is_tried_again_by_one_after_twice_as_long_each_time() {
        let (unreached, origin) = (Unreached::new(FIRST), authority(1));
        let refusal = Err(Failure::Unreachable);
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            fails(&unreached, &origin);
            advance(Duration::from_secs(seconds) - TRY / 2).await;
            assert_eq!(unreached.may_try(&origin, TRY), refusal, "{seconds}");
            assert_eq!(unreached.may_try(&authority(2), TRY), Ok(()));
            advance(TRY / 2).await;
        }
        // One tries; if nothing is heard of that, another may.
        assert_eq!(unreached.may_try(&origin, TRY), Ok(()));
        assert_eq!(unreached.may_try(&origin, TRY), refusal);
        advance(TRY).await;
        assert_eq!(unreached.may_try(&origin, TRY), Ok(()));
        unreached.note(&origin, &Ok(()));
        fails(&unreached, &origin);
        advance(FIRST).await;
        assert_eq!(unreached.may_try(&origin, TRY), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_and_missing_routes_are_remembered() {
        let (unreached, origin) = (Unreached::new(FIRST), authority(1));
        for failure in [Failure::ConnectionRefused, Failure::NameNotFound] {
            unreached.note(&origin, &Err::<(), _>(failure));
            assert_eq!(unreached.may_try(&origin, TRY), Ok(()));
        }
        let timeout = Failure::ConnectTimeout(TRY);
        unreached.note(&origin, &Err::<(), _>(timeout.clone()));
        assert_eq!(unreached.may_try(&origin, TRY), Err(timeout));
        let off = Unreached::new(Duration::ZERO);
        fails(&off, &origin);
        assert_eq!(off.may_try(&origin, TRY), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_remembered_and_no_more() {
        let unreached = Unreached::new(FIRST);
        (0..AUTHORITIES + 10).for_each(|n| fails(&unreached, &authority(n)));
        assert_eq!(unreached.table().len(), AUTHORITIES);
        advance(FIRST).await;
        fails(&unreached, &authority(AUTHORITIES));
        assert_eq!(unreached.table().len(), 1);
    }
}
