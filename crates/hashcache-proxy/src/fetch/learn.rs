//! Fetches the cache digest of a peer.
//!
//! Called by `server` when a digest is due, and by a fetch that needs a digest for the first time.
//!
//! Invariants: a digest takes at most [`OCTETS_MAX`] of memory, reserved before the content is
//! read. A digest is refused if it is cut off, too long or not in Squid's format, or if the filter
//! is so full that too many URLs match by chance.
//! Cost: one request, of at most [`LEARN_TIME`].

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::task::spawn_local;
use hashcache_http::parse_http_date;
use hashcache_peers::digest::{BLOCK_BYTES, ControlBlock, PATH};
use hashcache_peers::filter::Filter;
use hashcache_upstream::peer::learned::{Begun, Learning, Received, position};
use hashcache_upstream::peer::{Peer, PeerSummary};
use hashcache_upstream::{Endpoint, RequestBody, ResponseBody, SendOptions};
use http::header::{ACCEPT, CONTENT_LENGTH, ETAG, EXPIRES, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use crate::route::Route;
use crate::worker::Worker;

/// Fetches the digest of `peer`, unless another task does.
pub(crate) async fn learn(worker: Rc<Worker>, peer: Arc<Peer>) {
    let Some(begun) = peer.learned.begin() else {
        return;
    };
    let fetching = timeout(LEARN_TIME, fetch_digest(&worker, &peer, begun));
    let learning = match fetching.await {
        Ok(learning) => learning,
        Err(_) => Learning::Failed,
    };
    if let Learning::New(received, _) = &learning {
        let entries = received.filter.entries();
        info!(peer = peer.name(), entries, "digest of a peer fetched");
    }
    peer.learned.end(learning, Instant::now());
}

/// Fetches digests that `route` could use, and waits a short time for them.
pub(super) async fn learn_first(worker: &Rc<Worker>, route: &Route) {
    let waiting = async {
        for peer in route.unlearned() {
            spawn_local(learn(Rc::clone(worker), Arc::clone(peer)));
        }
        for peer in route.unlearned() {
            peer.learned.tried().await;
        }
    };
    // After that, this request continues without them.
    let _ = timeout(FIRST_TIME, waiting).await;
}

async fn fetch_digest(worker: &Rc<Worker>, peer: &Peer, begun: Begun) -> Learning {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = http::Uri::from_static(PATH);
    let fields = request.headers_mut();
    fields.insert(
        ACCEPT,
        HeaderValue::from_static(hashcache_peers::digest::CONTENT_TYPE),
    );
    if let Some(tag) = begun.entity_tag {
        fields.insert(IF_NONE_MATCH, tag);
    }
    let upstream = worker.upstream();
    let options = SendOptions::default();
    let endpoint = Endpoint::of_peer(peer);
    let sent = upstream.try_send(&endpoint, request, &options).await;
    let mut exchange = match sent {
        Ok(exchange) => exchange,
        Err(unanswered) => {
            let failure = &unanswered.failed.failure;
            debug!(peer = peer.name(), %failure, "digest of a peer not fetched");
            peer.note_failure(failure);
            return Learning::Failed;
        }
    };
    peer.note_success();
    let fresh = fresh_for(worker, exchange.response.headers());
    let learning = match exchange.response.status() {
        StatusCode::OK => received(worker, peer, &mut exchange.response).await,
        StatusCode::NOT_MODIFIED => Ok(None),
        status => Err(Unused::Status(status)),
    };
    match learning {
        Ok(Some(received)) => Learning::New(received, fresh),
        Ok(None) => Learning::Same(fresh),
        Err(Unused::CutOff) => Learning::Failed,
        Err(reason) => {
            debug!(peer = peer.name(), ?reason, "digest of a peer refused");
            Learning::Refused
        }
    }
}

/// Reason why the response is not used; for the log.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by Debug")]
enum Unused {
    Status(StatusCode),
    Format(hashcache_peers::digest::Refused),
    TooLarge(u32),
    TooFull(f64),
    NoMemory,
    Length,
    CutOff,
}

async fn received(
    worker: &Worker,
    peer: &Peer,
    response: &mut http::Response<ResponseBody>,
) -> Result<Option<Received>, Unused> {
    let entity_tag = response.headers().get(ETAG).cloned();
    let length = response.headers().get(CONTENT_LENGTH).cloned();
    let mut content = Content {
        body: response.body_mut(),
        left: Bytes::new(),
    };
    let mut block = Vec::new();
    content.read(&mut block, BLOCK_BYTES).await?;
    let block = ControlBlock::parse(&block).map_err(Unused::Format)?;
    let octets = block.size.octets();
    let said = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if said.is_some_and(|said| said != BLOCK_BYTES as u64 + u64::from(octets)) {
        return Err(Unused::Length);
    }
    if octets > OCTETS_MAX {
        return Err(Unused::TooLarge(octets));
    }
    let memory = worker.cache.reserve_bulk(octets.into());
    let memory = memory.ok_or(Unused::NoMemory)?;
    let mut filter = Vec::new();
    let room = filter.try_reserve_exact(octets as usize);
    room.map_err(|_| Unused::NoMemory)?;
    content.read(&mut filter, octets as usize).await?;
    if content.has_more().await? {
        return Err(Unused::Length);
    }
    let filter = Filter::from_octets(block.size, block.entries, filter).ok_or(Unused::Length)?;
    let share = filter.false_positive_share();
    if share > FALSE_MAX {
        return Err(Unused::TooFull(share));
    }
    let position = match peer.settings.summary {
        PeerSummary::Updates => entity_tag.as_ref().and_then(position),
        PeerSummary::None | PeerSummary::Digest => None,
    };
    Ok(Some(Received {
        filter,
        memory,
        position,
        entity_tag,
    }))
}

/// The content of a response, read in pieces that need not match the received frames.
struct Content<'a> {
    body: &'a mut ResponseBody,
    left: Bytes,
}

impl Content<'_> {
    /// Appends `count` octets to `to`.
    async fn read(&mut self, to: &mut Vec<u8>, count: usize) -> Result<(), Unused> {
        let end = to.len() + count;
        while to.len() < end {
            if !self.has_more().await? {
                return Err(Unused::Length);
            }
            let piece = self.left.split_to(self.left.len().min(end - to.len()));
            to.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Returns true if there are more octets; waits for them.
    async fn has_more(&mut self) -> Result<bool, Unused> {
        while self.left.is_empty() {
            match self.body.frame().await {
                None => return Ok(false),
                Some(Err(_)) => return Err(Unused::CutOff),
                Some(Ok(frame)) => self.left = frame.into_data().unwrap_or_default(),
            }
        }
        Ok(true)
    }
}

/// The time until Expires; zero if it is over or not stated.
fn fresh_for(worker: &Worker, fields: &HeaderMap) -> Duration {
    let now = worker.common.now();
    let expires = fields.get(EXPIRES);
    let expires = expires.and_then(|expires| parse_http_date(expires.as_bytes(), now));
    let left = expires.map_or(0, |expires| expires.0.saturating_sub(now.0));
    Duration::from_secs(left).min(FRESH_MAX)
}

/// Maximum size of a digest. At 10 bits an object, 13 million objects.
const OCTETS_MAX: u32 = 16 << 20;
/// Timeout of a fetch: 16 MiB at 250 kbit/s.
const LEARN_TIME: Duration = Duration::from_secs(10 * 60);
/// Time that a request waits for a peer's first digest.
const FIRST_TIME: Duration = Duration::from_millis(500);
/// A filter with a larger share of expected false positives is refused.
const FALSE_MAX: f64 = 0.25;
/// Upper limit for the lifetime that a peer states.
const FRESH_MAX: Duration = Duration::from_secs(24 * 60 * 60);
