//! Fetches a range for a response that has other ranges already stored.
//!
//! The request to upstream has Range and If-Range. The bytes of a 206 are added to the stored
//! version only if the 206 repeats the stored validator, the complete length and the requested
//! range; then the origin itself confirms that they belong to that version (RFC 9110 15.3.7). A 200
//! with the same validator and length is from an origin that ignores Range: the bytes before the
//! range are skipped, and the key is remembered as an object to fetch whole.
//!
//! The request accepts only the content coding of the stored response, whatever the client accepts,
//! because some origins give all codings of a resource the same strong entity tag.
//!
//! After any other successful response the stored version is out of date: it is removed, if it is
//! still stored, and the next request starts a new version. An error of the origin does not affect
//! the stored response; it answers the request that started the fetch, which does not try again.
//!
//! A 206 confirms the stored response as a 304 would: if the Date is later, the new fields replace
//! the stored fields (RFC 9111 3.4). If it forbids storing (`no-store`, `private`), the stored
//! ranges are removed too.
//!
//! Called by `request` for a claim of `in_flight_ranges` in `hashcache-store`.
//!
//! Invariant: bytes are written only after the response has passed this check.

use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use hashcache::Hit;
use hashcache_base::failure::Failure;
use hashcache_base::share::Share;
use hashcache_http::{
    Exempt, NotStored, Space, Storable, Target, UnixTime, accept_stored_coding, continues_stored,
    parse_content_range, parse_http_date, storable,
};
use hashcache_link::coding::{LinkCoding, StoredHere};
use hashcache_store::StoredResponse;
use hashcache_store::in_flight_ranges::{RangeClaim, RangeGuard};
use hashcache_upstream::announced::ClientEnds;
use hashcache_upstream::{ResponseBody, SendOptions, UpstreamExchange};
use http::header::{DATE, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ask::{Answered, AskFailure, ask};
use super::confirm::{freshened, may_rewrite};
use super::counters::ByteCount;
use super::fields::{part_fields, request, strip_for_storing};
use super::sink::{BYPASS_AHEAD, NEARLY_DONE, take};
use super::spec::is_withdrawn;
use super::variant::change;
use crate::metrics::CountedBytes;
use crate::route::Route;
use crate::worker::Worker;

/// The stored response with the missing range, and the client that pays for the fetch.
pub(crate) struct RangeFetchSpec {
    /// The key space of the resource.
    pub(crate) space: Space,
    pub(crate) target: Target,
    /// The name under which the object is stored.
    pub(crate) name: Bytes,
    /// The next hops for the request; `Ok(None)`: not planned yet.
    pub(crate) route: Result<Option<Route>, Failure>,
    /// The client's share, which limits the connections.
    pub(crate) share: Share,
    /// Both addresses of the client connection.
    pub(crate) ends: ClientEnds,
    /// The client's fields as received.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    pub(crate) stored: StoredResponse,
    /// For If-Range; without it missing bytes cannot be fetched.
    pub(crate) validator: Option<HeaderValue>,
}

/// Meaning of an upstream response for a range.
enum PartCheck {
    /// The content starts this many bytes before the range.
    Matches(u64),
    /// The stored version is out of date.
    Gone,
    /// An error or a redirect, which is no successful response to any request for the resource.
    Refused,
    /// The response does not show whether the stored version is still valid.
    Unknown,
}

/// Reason why a fetch gives no content, for the request that started it.
pub(crate) enum NoRange {
    /// This response also answers the client's request.
    Answered(Box<Answered>),
    /// The request to upstream failed.
    Failed(AskFailure),
    /// The response has no part of the stored version, and does not answer the client's request.
    Unusable,
}

/// Returns the reason to the request that started the fetch, if it has not sent a head yet.
pub(crate) type RangeReply = Option<oneshot::Sender<NoRange>>;

/// Fetches a range. Followers see the progress through the range's guard and stream.
pub(crate) async fn fetch_range(
    worker: Rc<Worker>,
    spec: Rc<RangeFetchSpec>,
    claim: RangeClaim,
    byte_count: ByteCount,
    reply: RangeReply,
) {
    let RangeClaim { hit, writer, guard } = claim;
    let Some(request) = part_request(&worker, &spec, &guard) else {
        return;
    };
    let asked = worker.common.now();
    let options = SendOptions {
        client: Some(spec.share.clone()),
        ends: Some(spec.ends),
        link: LinkCoding::new(&spec.fields, StoredHere::Yes),
        ..SendOptions::default()
    };
    let route = match spec.route.clone() {
        Ok(Some(route)) => Ok(route),
        Ok(None) => worker.route_to(spec.space, &spec.target, &spec.fields),
        Err(failure) => Err(failure),
    };
    let sent = match route {
        Ok(route) => ask(&worker, &route, request, &options).await,
        Err(failure) => Err(failure.into()),
    };
    let mut answered = match sent {
        Ok(answered) => {
            byte_count.set_free(answered.is_stored_nearby());
            answered
        }
        Err(failed) => {
            worker.metrics.fetched(failed.origin_bytes, 0);
            // The flag of an earlier attempt does not apply to this failure.
            byte_count.set_free(false);
            byte_count.add(failed.origin_bytes);
            tell(reply, NoRange::Failed(failed));
            return;
        }
    };
    let exchange = &mut answered.exchange;
    strip_for_storing(spec.space, exchange.response.headers_mut());
    match judge(&worker, &spec, &hit, &guard, exchange, asked) {
        PartCheck::Matches(skip) => {
            // Before followers are informed: requests that arrive after that must find the new
            // fields.
            freshen_stored(&worker, &spec, &hit, exchange.response.headers(), asked).await;
            guard.note_arriving();
            let body = answered.exchange.response.into_body();
            pump(&worker, writer, guard, body, skip, &byte_count).await;
        }
        PartCheck::Refused => {
            // Before the guard wakes the request that waits for the reply.
            let unread = tell(reply, NoRange::Answered(answered));
            if let Some(NoRange::Answered(answered)) = unread {
                count_unused(&worker, &answered, &byte_count);
            }
            guard.note_refused();
        }
        judged => {
            count_unused(&worker, &answered, &byte_count);
            drop(answered);
            if matches!(judged, PartCheck::Gone) {
                end_version(&worker, &spec.name, &hit).await;
                guard.note_gone();
            } else {
                tell(reply, NoRange::Unusable);
                guard.note_refused();
            }
            // Dropping the guard wakes the followers, which look again; the removal above must be
            // done by then.
            drop(guard);
        }
    }
}

/// Sends the reason; returns it if nobody waits for it.
fn tell(reply: RangeReply, why: NoRange) -> Option<NoRange> {
    match reply {
        Some(reply) => reply.send(why).err(),
        None => Some(why),
    }
}

/// Counts a response without reading the content.
fn count_unused(worker: &Worker, answered: &Answered, byte_count: &ByteCount) {
    let bytes = answered.exchange.response.body().origin_bytes();
    worker.metrics.fetched(bytes, 0);
    byte_count.add(bytes);
}

fn part_request(
    worker: &Worker,
    spec: &RangeFetchSpec,
    guard: &RangeGuard,
) -> Option<http::Request<hashcache_upstream::RequestBody>> {
    let validator = spec.validator.clone()?;
    let last = guard.end().checked_sub(1)?;
    let mut fields = part_fields(worker, &spec.target, &spec.fields, spec.version);
    let range = HeaderValue::try_from(format!("bytes={}-{last}", guard.start()));
    fields.insert(RANGE, range.ok()?);
    fields.insert(IF_RANGE, validator);
    accept_stored_coding(&mut fields, &spec.stored.fields);
    Some(request(&spec.target, fields))
}

fn judge(
    worker: &Worker,
    spec: &RangeFetchSpec,
    hit: &Hit,
    guard: &RangeGuard,
    exchange: &UpstreamExchange,
    request_time: UnixTime,
) -> PartCheck {
    let response: &Response<_> = &exchange.response;
    match response.status() {
        StatusCode::PARTIAL_CONTENT | StatusCode::OK => {}
        StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::NOT_FOUND | StatusCode::GONE => {
            return PartCheck::Gone;
        }
        status if !status.is_success() => return PartCheck::Refused,
        _ => return PartCheck::Unknown,
    }
    let route = spec.route.as_ref().ok().and_then(Option::as_ref);
    let judged = storable(
        &hashcache_http::Exchange {
            target: &spec.target,
            method: &Method::GET,
            request: &spec.fields,
            exempt: route.map_or(Exempt::default(), Route::exempt),
            status: response.status(),
            response: response.headers(),
            request_time,
            response_time: worker.common.now(),
        },
        &worker.common.live().store,
    );
    match judged {
        Storable::No(reason) if is_withdrawn(reason) || reason == NotStored::ContentRange => {
            return PartCheck::Gone;
        }
        // This 200 is certainly not the stored response.
        Storable::No(_) if response.status() == StatusCode::OK => return PartCheck::Gone,
        Storable::No(_) => return PartCheck::Unknown,
        Storable::Whole { .. } | Storable::Partial { .. } => {}
    }
    if response.status() == StatusCode::OK {
        let length = http_body::Body::size_hint(response.body()).exact();
        let same = length.is_some()
            && length == hit.content_len()
            && continues_stored(&spec.stored.fields, response.headers());
        if !same {
            return PartCheck::Gone;
        }
        let ranges = &worker.common.collapse.ranges;
        ranges.note_whole_only(&spec.name, spec.share.network(), Instant::now());
        return PartCheck::Matches(guard.start());
    }
    let content_range = parse_content_range(response.headers());
    let Some((range, length)) = content_range.and_then(|it| it.range.zip(it.complete)) else {
        return PartCheck::Unknown;
    };
    if Some(length) != hit.content_len()
        || !continues_stored(&spec.stored.fields, response.headers())
    {
        return PartCheck::Gone;
    }
    // An origin may send more or less than the requested range, but the requested start must be in
    // it.
    match guard.start().checked_sub(range.first) {
        Some(skip) if range.last >= guard.start() => PartCheck::Matches(skip),
        _ => PartCheck::Unknown,
    }
}

/// The hit stored under a name, if it still has the version of `hit`.
async fn stored_still(worker: &Worker, name: &[u8], hit: &Hit) -> Option<Hit> {
    let found = hashcache_store::find(&worker.cache, name).await;
    found.filter(|found| found.version() == hit.version())
}

/// Removes the version of `hit` from the store, unless another version has replaced it.
pub(crate) async fn end_version(worker: &Worker, name: &[u8], hit: &Hit) {
    if stored_still(worker, name, hit).await.is_some() {
        tracing::debug!(version = hit.version().to_u64(), "stored version is over");
        worker.cache.invalidate(name);
    }
}

/// Updates the stored fields from a newer 206. Cost: one write of the stored fields, at most once a
/// second per object, because Date has a resolution of one second.
async fn freshen_stored(
    worker: &Worker,
    spec: &RangeFetchSpec,
    hit: &Hit,
    part: &HeaderMap,
    request_time: UnixTime,
) {
    let response_time = worker.common.now();
    let date = part.get(DATE);
    let date = date.and_then(|date| parse_http_date(date.as_bytes(), response_time));
    let date = date.unwrap_or(response_time);
    if date <= spec.stored.facts.date || !may_rewrite(worker, hit, &spec.stored, &spec.fields) {
        return;
    }
    let version = hit.version().to_u64();
    let newer = |stored: &mut StoredResponse| {
        let times = (request_time, response_time);
        date > stored.facts.date && freshened(worker, &spec.target, stored, part, times)
    };
    change(worker, &spec.name, Some(version), newer).await;
}

/// Writes the content of a 206 into the store, after skipping the first `skip` bytes.
pub(super) async fn pump(
    worker: &Worker,
    mut writer: hashcache::Writer,
    guard: RangeGuard,
    mut body: ResponseBody,
    mut skip: u64,
    byte_count: &ByteCount,
) {
    let (mut counted, mut in_metrics) = (0, CountedBytes::default());
    loop {
        let left = guard.end().saturating_sub(writer.written());
        let wanted = guard.stream().followers() > 0 || (writer.is_stored() && left <= NEARLY_DONE);
        if left == 0 || !wanted {
            break;
        }
        let ahead = if writer.is_stored() {
            worker.limits.read_ahead
        } else {
            BYPASS_AHEAD
        };
        poll_fn(|context| writer.poll_room(context, ahead)).await;
        let frame = body.frame().await;
        byte_count.advance(&mut counted, body.origin_bytes());
        let Some(Ok(frame)) = frame else {
            break;
        };
        let Ok(mut data) = frame.into_data() else {
            continue;
        };
        let before = data.len().min(usize::try_from(skip).unwrap_or(usize::MAX));
        skip -= before as u64;
        let _ = data.split_to(before);
        let left = guard.end().saturating_sub(writer.written());
        data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        if !take(worker, &mut writer, &data).await {
            break;
        }
        let content = writer.written() - guard.start();
        worker
            .metrics
            .fetching(&mut in_metrics, body.origin_bytes(), content);
    }
    byte_count.note_link(body.link_usage());
    let content = writer.written() - guard.start();
    let metrics = &worker.metrics;
    metrics.fetched_rest(&mut in_metrics, body.origin_bytes(), content);
    // The followers continue with another claim, even if the range is incomplete.
    if writer.written() >= guard.end() {
        let _ = writer.commit();
    } else {
        drop(writer);
    }
    drop(guard);
}
