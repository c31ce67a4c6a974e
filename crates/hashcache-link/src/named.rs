//! Dictionaries that a parent names: the child's lookup, and the rate at which it finds them.
//!
//! `fetch` in the proxy makes the lookup, because it knows the store; `linked/framed` in
//! `hashcache-upstream` does the lookup when a response names a dictionary, and notes the result in
//! the link.
//!
//! Invariant: a parent that names missing dictionaries costs one round trip for at most
//! `MISSED_MAX` in `WINDOW` responses; beyond that it may name no dictionary for `PAUSE`.
//! Cost: one lock per named dictionary.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_wan::digest::Digest;
use tokio::time::Instant;

use super::dictionary::StoredContent;

/// Finds stored content by the key and the digest that a parent names.
#[derive(Clone)]
pub struct NamedLookup(Rc<dyn Fn(Box<[u8]>, Digest) -> Finding>);

type Finding = Pin<Box<dyn Future<Output = Option<StoredContent>>>>;

impl NamedLookup {
    /// Makes a lookup that calls `find`.
    pub fn new(find: impl Fn(Box<[u8]>, Digest) -> Finding + 'static) -> Self {
        Self(Rc::new(find))
    }

    /// Returns the content if it is stored here with this digest.
    pub async fn find(&self, key: Box<[u8]>, digest: Digest) -> Option<StoredContent> {
        (self.0)(key, digest).await
    }
}

impl fmt::Debug for NamedLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLookup").finish_non_exhaustive()
    }
}

/// Counts how often the dictionaries that a parent has named were found.
#[derive(Debug, Default)]
pub struct NamedResults(Mutex<Results>);

#[derive(Debug, Default)]
struct Results {
    named: u32,
    missed: u32,
    paused_until: Option<Instant>,
}

impl NamedResults {
    fn results(&self) -> MutexGuard<'_, Results> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the parent may name dictionaries.
    pub fn may_name(&self, now: Instant) -> bool {
        self.results().paused_until.is_none_or(|until| until <= now)
    }

    /// Notes a lookup result.
    pub fn note(&self, was_found: bool, now: Instant) {
        let mut results = self.results();
        results.named += 1;
        results.missed += u32::from(!was_found);
        if results.missed > MISSED_MAX {
            tracing::info!("dictionaries that the parent names are not here; it may name none now");
            results.paused_until = Some(now + PAUSE);
        }
        if results.missed > MISSED_MAX || results.named == WINDOW {
            (results.named, results.missed) = (0, 0);
        }
    }
}

/// How many lookups are judged together.
const WINDOW: u32 = 256;
/// Accepted misses in a window: one in sixteen.
const MISSED_MAX: u32 = WINDOW / 16;
const PAUSE: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_that_is_wrong_too_often_may_name_nothing_for_a_while() {
        let (results, now) = (NamedResults::default(), Instant::now());
        // One miss in sixteen, for ever.
        for number in 0..4 * WINDOW {
            results.note(number % 16 != 0, now);
            assert!(results.may_name(now));
        }
        for _ in 0..=MISSED_MAX {
            assert!(results.may_name(now));
            results.note(false, now);
        }
        assert!(!results.may_name(now) && results.may_name(now + PAUSE));
    }
}
