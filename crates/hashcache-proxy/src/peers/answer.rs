//! The reply to a peer's query: HIT if a plain GET of the URL would be answered from the store now
//! and for some time.
//!
//! Called by `udp`. Calls `store`.
//!
//! Invariants: memory alone decides about most misses; the disk is read for at most [`READS_MAX`]
//! queries at once, each for at most [`READ_TIME`], else the reply is MISS. Nothing is fetched.
//! Cost: one lookup. The read of a hit is not lost: the object is in memory when it is requested.

use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hashcache::Cache;
use hashcache_http::{RequestFacts, Reuse, Scheme, Seconds, Space, Target, cache_key, reuse};
use hashcache_peers::icp::Answer;
use http::{HeaderMap, Method};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::settings::Mode;
use crate::store::{StoreLookup, look_up};
use crate::worker::Common;

/// Answers queries.
pub(super) struct Answerer {
    common: Arc<Common>,
    cache: Cache,
    reads: Arc<Semaphore>,
}

/// A reply, or the disk must be read for it.
pub(super) enum Begun<F> {
    Answer(Answer),
    Reading(F),
}

impl Answerer {
    pub(super) fn new(common: Arc<Common>, cache: Cache) -> Self {
        Self {
            common,
            cache,
            reads: Arc::new(Semaphore::new(READS_MAX)),
        }
    }

    /// Begins to answer a query for `url`.
    pub(super) async fn begin(
        &self,
        url: &[u8],
    ) -> Begun<impl Future<Output = Answer> + Send + use<>> {
        let Some(target) = std::str::from_utf8(url)
            .ok()
            .and_then(|url| Target::parse_url(url).ok())
        else {
            return Begun::Answer(Answer::Err);
        };
        // What https URLs are stored is nobody's business on a line that others can read.
        let is_open = target.scheme == Scheme::Http && self.common.mode == Mode::Forward;
        let key = cache_key(Space::Own, &target).filter(|_| is_open);
        let Some(key) = key.filter(|key| self.cache.contains_hint(key)) else {
            return Begun::Answer(Answer::Miss);
        };
        let (common, cache) = (Arc::clone(&self.common), self.cache.clone());
        let mut reading = Box::pin(async move { of_store(&common, &cache, &key).await });
        let known = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = known {
            return Begun::Answer(answer);
        }
        let Ok(permit) = Arc::clone(&self.reads).try_acquire_owned() else {
            return Begun::Answer(Answer::Miss);
        };
        Begun::Reading(async move {
            let answer = timeout(READ_TIME, reading).await;
            drop(permit);
            answer.unwrap_or(Answer::Miss)
        })
    }
}

/// What the store says about a plain GET.
async fn of_store(common: &Common, cache: &Cache, key: &[u8]) -> Answer {
    let fields = HeaderMap::new();
    let StoreLookup::Found { hit, stored, .. } = look_up(cache, key, &fields).await else {
        return Answer::Miss;
    };
    let mut facts = RequestFacts::of(&Method::GET, &fields);
    facts.directives.min_fresh = Some(FRESH_FOR);
    let reuse = reuse(&facts, &stored.facts, common.now(), &common.live().reuse);
    let length = hit.content_len().unwrap_or(0);
    let is_whole = hit.is_complete() && hit.holes(0..length).is_empty();
    match reuse {
        Reuse::Fresh { .. } if is_whole && !hit.is_made_stale() => Answer::Hit,
        _ => Answer::Miss,
    }
}

/// How long the response must stay fresh: until the peer has fetched it and used it.
const FRESH_FOR: Seconds = Seconds::new(30);
/// Maximum number of queries that wait for the disk.
const READS_MAX: usize = 16;
/// How long a query waits for the disk: a peer does not wait much longer for its reply.
const READ_TIME: Duration = Duration::from_millis(30);
