//! The fetch of a piece: a stretch of a response of which other parts are stored.
//!
//! Upstream is asked with Range and If-Range. What comes is added to the stored version only if
//! it is a 206 that repeats the stored validator, the complete length and the range that was asked
//! for; then the bytes are those of that version by the origin's own word (RFC 9110 15.3.7). A 200
//! that repeats validator and length comes from an origin that ignores ranges: what lies before the
//! piece is passed over, and the key is remembered as one to be fetched whole.
//!
//! Anything else says that the stored version is over: it is taken out of the store, if it is still
//! there, and the next request begins a new one. An error of the origin says nothing about what is
//! stored.
//!
//! A part vouches for the stored response as a 304 would: when its Date is later, its fields take
//! the place of the stored ones (RFC 9111 3.4). What forbids storing (`no-store`, `private`) takes
//! the rest out as well.
//!
//! Called by `request` for a claim of `in_flight_ranges`. Invariant: bytes reach a filler only
//! after that judgement.

use std::future::poll_fn;
use std::rc::Rc;

use hashcache::Hit;
use hashcache_http::{
    NotStored, Space, Storable, Target, UnixTime, continues_stored, parse_content_range,
    parse_http_date, storable,
};
use http::header::{DATE, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use tokio::time::Instant;

use super::confirm::{freshened, may_rewrite};
use super::counters::ByteCount;
use super::fields::{part_fields, request, strip_for_storing};
use super::sink::{BYPASS_AHEAD, NEARLY_DONE, take};
use super::spec::is_withdrawn;
use super::variant::change;
use crate::in_flight_ranges::{RangeClaim, RangeGuard, WholeOnly};
use crate::metrics::CountedBytes;
use crate::share::Share;
use crate::store::{self, StoredResponse};
use crate::upstream::{Endpoint, ResponseBody, SendOptions, UpstreamExchange};
use crate::worker::Worker;

/// Of which response a piece is, and for whom it is fetched.
pub(crate) struct RangeFetchSpec {
    /// Whose resource it is.
    pub(crate) space: Space,
    pub(crate) target: Target,
    /// The name of the object.
    pub(crate) name: Vec<u8>,
    pub(crate) endpoint: Endpoint,
    /// Out of whose share its pieces take connections.
    pub(crate) share: Share,
    /// The client's fields as they came.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    pub(crate) stored: StoredResponse,
    /// For If-Range; without it what is missing cannot be had.
    pub(crate) validator: Option<HeaderValue>,
}

/// What upstream's answer means for a piece.
enum PartCheck {
    /// The content begins this many bytes before the piece.
    Matches(u64),
    /// What is stored is over.
    Gone,
    /// Nothing is known.
    Unknown,
}

/// Fetches a piece. Those who wait for it learn how it goes by its ticket and its stream.
pub(crate) async fn fetch_range(
    worker: Rc<Worker>,
    spec: Rc<RangeFetchSpec>,
    claim: RangeClaim,
    byte_count: ByteCount,
) {
    let RangeClaim { hit, writer, guard } = claim;
    let Some(request) = ask(&worker, &spec, &guard) else {
        return;
    };
    let asked = worker.common.now();
    let upstream = worker.upstream();
    let options = SendOptions {
        client: Some(spec.share.clone()),
        ..SendOptions::default()
    };
    let sent = upstream.send(&spec.endpoint, request, options).await;
    let mut exchange = match sent {
        Ok(exchange) => exchange,
        Err(failed) => {
            worker.metrics.fetched(failed.origin_bytes, 0);
            byte_count.set(byte_count.get() + failed.origin_bytes);
            return;
        }
    };
    strip_for_storing(spec.space, exchange.response.headers_mut());
    match judge(&worker, &spec, &hit, &guard, &exchange, asked) {
        PartCheck::Matches(skip) => {
            // Before anyone is told: who asks after this answer finds the new fields.
            freshen_stored(&worker, &spec, &hit, exchange.response.headers(), asked).await;
            guard.note_arriving();
            let body = exchange.response.into_body();
            pump(&worker, writer, guard, body, skip, &byte_count).await;
        }
        judged => {
            let bytes = exchange.response.body().origin_bytes();
            worker.metrics.fetched(bytes, 0);
            byte_count.set(byte_count.get() + bytes);
            drop(exchange);
            if matches!(judged, PartCheck::Gone) {
                end_version(&worker, &spec.name, &hit).await;
                guard.note_gone();
            }
            // Only now do those who wait look again.
            drop(guard);
        }
    }
}

fn ask(
    worker: &Worker,
    spec: &RangeFetchSpec,
    guard: &RangeGuard,
) -> Option<http::Request<crate::upstream::RequestBody>> {
    let validator = spec.validator.clone()?;
    let last = guard.end().checked_sub(1)?;
    let mut fields = part_fields(worker, &spec.target, &spec.fields, spec.version);
    let range = HeaderValue::try_from(format!("bytes={}-{last}", guard.start()));
    fields.insert(RANGE, range.ok()?);
    fields.insert(IF_RANGE, validator);
    request(&spec.target, fields)
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
        _ => return PartCheck::Unknown,
    }
    let judged = storable(
        &hashcache_http::Exchange {
            target: &spec.target,
            method: &Method::GET,
            request: &spec.fields,
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
        // Whatever it is, what is stored is no longer sent for this.
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
        ranges.note_whole_only(&spec.name, WholeOnly::Yes, Instant::now());
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
    // An origin may send more or less than was asked for, but it must begin where we do.
    match guard.start().checked_sub(range.first) {
        Some(skip) if range.last >= guard.start() => PartCheck::Matches(skip),
        _ => PartCheck::Unknown,
    }
}

/// What is stored under a name, if it is still the version of `hit`.
async fn stored_still(worker: &Worker, name: &[u8], hit: &Hit) -> Option<Hit> {
    let found = store::find(&worker.cache, name).await;
    found.filter(|found| found.version() == hit.version())
}

/// Takes the version of `hit` out of the store, unless another has taken its place.
async fn end_version(worker: &Worker, name: &[u8], hit: &Hit) {
    if stored_still(worker, name, hit).await.is_some() {
        tracing::debug!(version = hit.version().to_u64(), "stored version is over");
        worker.cache.invalidate(name);
    }
}

/// Takes over the fields of a part that is newer than what is stored. Cost: a write of the stored
/// fields, for one object once a second at most, because that is how finely Date counts.
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
    let asked = (&spec.target, &spec.fields);
    let version = hit.version().to_u64();
    let newer = |stored: &mut StoredResponse| {
        let times = (request_time, response_time);
        date > stored.facts.date && freshened(worker, asked, stored, part, times)
    };
    change(worker, &spec.name, Some(version), newer).await;
}

/// Writes the content of a 206 into the store: `skip` bytes of it lie before the piece.
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
        let ahead = match writer.is_stored() {
            true => worker.limits.read_ahead,
            false => BYPASS_AHEAD,
        };
        poll_fn(|context| writer.poll_room(context, ahead)).await;
        let frame = body.frame().await;
        let came = body.origin_bytes();
        byte_count.set(byte_count.get() + (came - counted));
        counted = came;
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
        worker.metrics.fetching(&mut in_metrics, came, content);
    }
    let content = writer.written() - guard.start();
    let metrics = &worker.metrics;
    metrics.fetched_rest(&mut in_metrics, body.origin_bytes(), content);
    // Those who follow go on from here, whether or not all of it came: by another claim.
    if writer.written() >= guard.end() {
        let _ = writer.commit();
    } else {
        drop(writer);
    }
    drop(guard);
}
