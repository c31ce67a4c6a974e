//! The reply to a peer's query: HIT if a plain GET of the URL would be answered from the store now
//! and for some time, and if the access rules let the peer have the response.
//!
//! A query by ICP, or by HTCP from Squid, contains no request fields. For such a query a response
//! with `Vary: Accept-Encoding` and nothing else is a HIT whichever variant is stored: clients send
//! few values, so the request that follows is mostly for that variant; otherwise it costs a 504.
//! For other fields a guess would mostly be wrong, so only the variant of a request without these
//! fields is a HIT.
//!
//! Called by `udp` and `htcp`. Calls `hashcache-store`.
//!
//! Invariants: most misses are decided from memory; the disk is read for at most [`READS_MAX`]
//! queries at once, [`READS_OF_PEER_MAX`] of one peer, each for at most [`READ_TIME`], otherwise
//! the reply is MISS. Nothing is fetched.
//! Cost: one lookup. The read of a hit is not wasted: the object is in memory when the request for
//! it arrives.

use std::collections::HashMap;
use std::future::{Future as _, poll_fn};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use hashcache::{Cache, Hit};
use hashcache_access::AccessAction;
use hashcache_http::{
    Authority, RequestFacts, Reuse, Scheme, Seconds, Space, Target, Vary, cache_key, octet_text,
    reuse,
};
use hashcache_peers::icp::Answer;
use hashcache_store::{StoreLookup, StoredResponse, first_variant, look_up};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, Method};
use tokio::time::timeout;

use crate::client_access::ClientAccess;
use crate::settings::Mode;
use crate::worker::Common;

/// Answers queries.
pub(super) struct Answerer {
    common: Arc<Common>,
    cache: Cache,
    reads: Reads,
}

/// A reply, or a disk read that decides it.
pub(super) enum Begun<F> {
    Answer(Answer),
    Reading(F),
}

impl Answerer {
    pub(super) fn new(common: Arc<Common>, cache: Cache) -> Self {
        Self {
            common,
            cache,
            reads: Reads::default(),
        }
    }

    /// Starts to answer a query for `url` from the peer at `from`, with the fields of the request
    /// that would follow, if they are known.
    pub(super) async fn begin(
        &self,
        (from, url): (IpAddr, &[u8]),
        fields: Option<HeaderMap>,
    ) -> Begun<impl Future<Output = Answer> + Send + use<>> {
        let url = octet_text(url);
        let Ok(target) = Target::parse_url(&url) else {
            return Begun::Answer(Answer::Err);
        };
        match self.permitted(from, &target.authority) {
            AccessAction::Deny => return Begun::Answer(Answer::Denied),
            // The request would not be answered from the store.
            AccessAction::NoCache => return Begun::Answer(Answer::Miss),
            AccessAction::Allow | AccessAction::Tunnel | AccessAction::Limit => {}
        }
        // Stored https URLs are confidential, and ICP and HTCP datagrams are readable on the
        // network.
        let is_open = target.scheme == Scheme::Http && self.common.mode == Mode::Forward;
        let key = cache_key(Space::Own, &target).filter(|_| is_open);
        let Some(key) = key.filter(|key| self.cache.contains_hint(key)) else {
            return Begun::Answer(Answer::Miss);
        };
        let (common, cache) = (Arc::clone(&self.common), self.cache.clone());
        let mut reading = Box::pin(async move {
            if of_store(&common, &cache, &key, fields).await {
                Answer::Hit
            } else {
                Answer::Miss
            }
        });
        let known = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = known {
            return Begun::Answer(answer);
        }
        let Some(permit) = self.reads.take(from) else {
            return Begun::Answer(Answer::Miss);
        };
        Begun::Reading(async move {
            let answer = timeout(READ_TIME, reading).await;
            drop(permit);
            answer.unwrap_or(Answer::Miss)
        })
    }

    /// Returns the action of the access rules for the GET that would follow a query from the peer
    /// at `from`.
    fn permitted(&self, from: IpAddr, authority: &Authority) -> AccessAction {
        let access = ClientAccess::new(from, &self.common.live());
        access.of_query(&self.common, authority)
    }
}

/// Returns true if the store can answer a GET with these fields.
async fn of_store(common: &Common, cache: &Cache, key: &[u8], fields: Option<HeaderMap>) -> bool {
    let is_known = fields.is_some();
    let fields = fields.unwrap_or_default();
    let mut facts = RequestFacts::new(&Method::GET, &fields);
    if facts.lookup().is_err() || facts.has_override {
        return false;
    }
    facts.directives.min_fresh = Some(FRESH_FOR);
    let is_good = |hit: &Hit, stored: &StoredResponse| {
        let reuse = reuse(&facts, &stored.facts, common.now(), &common.live().reuse);
        let length = hit.content_len().unwrap_or(0);
        let is_whole = hit.is_complete() && hit.holes(0..length).is_empty();
        matches!(reuse, Reuse::Fresh { .. }) && is_whole && !hit.is_made_stale()
    };
    if let StoreLookup::Found { hit, stored, .. } = look_up(cache, key.to_vec(), &fields).await
        && is_good(&hit, &stored)
    {
        return true;
    }
    if is_known {
        return false;
    }
    // From memory: the lookup above has read it.
    let first = first_variant(cache, key).await;
    first.is_some_and(|(hit, stored)| is_by_encoding(&stored) && is_good(&hit, &stored))
}

/// Returns true if only Accept-Encoding selects the response, with or without Vary.
fn is_by_encoding(stored: &StoredResponse) -> bool {
    match Vary::parse(&stored.fields) {
        Vary::Fields(names) => names == [ACCEPT_ENCODING],
        Vary::Nothing => stored.row.is_none() && stored.fields.contains_key(CONTENT_ENCODING),
        Vary::TooWide | Vary::Anything => false,
    }
}

/// Queries that wait for the disk, by the peer's address.
#[derive(Clone, Default)]
struct Reads(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Permission to wait for the disk; released when dropped.
struct ReadPermit {
    reads: Reads,
    from: IpAddr,
}

impl Reads {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permission for another query from the peer at `from`.
    fn take(&self, from: IpAddr) -> Option<ReadPermit> {
        let mut counts = self.counts();
        let of_peer = counts.get(&from).copied().unwrap_or(0);
        if of_peer >= READS_OF_PEER_MAX || counts.values().sum::<usize>() >= READS_MAX {
            return None;
        }
        counts.insert(from, of_peer + 1);
        let reads = self.clone();
        Some(ReadPermit { reads, from })
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let mut counts = self.reads.counts();
        if let Some(of_peer) = counts.get_mut(&self.from) {
            *of_peer -= 1;
            if *of_peer == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// How long the response must stay fresh, so that the peer can fetch and use it.
const FRESH_FOR: Seconds = Seconds::new(30);
/// Maximum queries that wait for the disk.
const READS_MAX: usize = 16;
/// Maximum reads for one peer's queries.
const READS_OF_PEER_MAX: usize = 8;
/// How long a query waits for the disk: a peer does not wait much longer for the reply.
const READ_TIME: Duration = Duration::from_millis(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queries_of_one_peer_leave_reads_to_those_of_others() {
        let reads = Reads::default();
        let all = |last: u8| {
            let from = [192, 0, 2, last].into();
            std::iter::from_fn(|| reads.take(from)).collect::<Vec<_>>()
        };
        let (greedy, other) = (all(1), all(2));
        assert_eq!((greedy.len(), other.len()), (8, 8));
        assert!(all(3).is_empty());
        drop((greedy, other));
        assert!(reads.counts().is_empty());
    }
}
