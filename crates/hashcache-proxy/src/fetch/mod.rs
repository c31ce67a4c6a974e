//! A fetch: one request upstream whose answer is stored while any number of readers follow it.
//!
//! A task of its own, because the client that caused it may leave at any time and others may have
//! joined. It ends when the content is whole, when nobody is left to read it (unless it is nearly
//! done), or when upstream fails and cannot be resumed. `pump` moves the content; `piece` fetches a
//! stretch of a response of which other parts are stored.
//!
//! Called by `request`; calls `upstream` and writes to the engine.
//!
//! Invariants: the version is drawn before the request is sent, so an answer never outlives an
//! invalidation that came after the question; a response is committed only when its end was seen.

pub(crate) mod piece;
mod pump;

use std::cell::Cell as StdCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use hashcache::{Follower, Hit, Intent, Keep, Put, Writer};
use hashcache_http::{
    ByteRange, ContentRange, FactFlags, NotStored, RangeAnswer, ResponseDirectives, Storable,
    StoredFacts, Target, UnixTime, Upgrading, VaryRow, answer_range, ensure_date, fields_to_store,
    freshen, if_range_value, not_modified_confirms, parse_http_date, set_validators, storable,
    strip_request, strip_response,
};
use http::header::{
    ACCEPT_RANGES, AGE, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, HOST, IF_RANGE,
    RANGE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::pump::{RESUMES_MAX, Transfer};
use crate::collapse::{Flight, SharedResponse};
use crate::metrics::{Counted, Limit};
use crate::pieces::{Awaited, Claim, WholeOnly};
use crate::purge::labels_of;
use crate::related::Asked;
use crate::request::body::{Tally, Trailers};
use crate::store::StoredResponse;
use crate::upstream::{
    Endpoint, Exchange, Informational, RequestBody, ResponseBody, SendFailure, SendOptions,
};
use crate::worker::Worker;

/// What fits into this is no smaller in parts: it is fetched whole, and a careless origin's word
/// about a part of it answers nobody.
const PAGE: u64 = hashcache::PAGE as u64;

/// What is to be fetched, and for whom.
pub(crate) struct Order {
    pub(crate) client: IpAddr,
    pub(crate) target: Target,
    pub(crate) key: Vec<u8>,
    pub(crate) endpoint: Endpoint,
    /// The client's fields as they came.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    /// What is stored and to be confirmed.
    pub(crate) known: Option<Known>,
    /// Something is stored under this key, whether or not it is to be confirmed.
    pub(crate) replaces: Option<Hit>,
    pub(crate) extent: Extent,
    pub(crate) informational: Option<Informational>,
    /// Nobody waits for it, and it is fetched all the same.
    pub(crate) background: bool,
}

/// What is asked for of the content.
pub(crate) enum Extent {
    /// What the client asked for.
    AsAsked,
    /// This range instead, a stretch of whole pages around the client's.
    Around(HeaderValue),
    /// All of it, though the client wants a range.
    Whole,
}

/// A stored response that is being validated.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) hit: Hit,
    pub(crate) stored: StoredResponse,
}

/// What a fetch came to, for the request that caused it.
pub(crate) enum Fetched {
    /// It is being stored; read along.
    Stored {
        response: Response<()>,
        facts: StoredFacts,
        follower: Follower,
        length: Option<u64>,
        /// What of it the client wants, where the follower begins; `None`: all of it.
        part: Option<ByteRange>,
        /// Filled when the content has ended; for the client that caused the fetch.
        trailers: Trailers,
        peer: SocketAddr,
    },
    /// A part of it is being stored; more of it can be had.
    Begun {
        hit: Hit,
        stored: Box<StoredResponse>,
        awaited: Awaited,
        peer: SocketAddr,
    },
    /// It cannot be put together from parts: ask as the client did.
    NotInParts,
    /// It is not stored: pass it on.
    Passed {
        response: Response<ResponseBody>,
        why: NotStored,
        peer: SocketAddr,
    },
    /// What was stored is good again, with these fields.
    Confirmed {
        stored: StoredResponse,
        peer: SocketAddr,
    },
}

/// The answer to whoever ordered.
pub(crate) type Reply = oneshot::Sender<Result<Fetched, SendFailure>>;

/// The fields of a request as they go upstream; an error is the client's.
pub(crate) fn upstream_fields(
    worker: &Worker,
    target: &Target,
    mut fields: HeaderMap,
    version: Version,
    upgrading: Upgrading,
) -> HeaderMap {
    if strip_request(&mut fields, upgrading).is_err() {
        // `wire` refuses such requests; if one comes another way, its options are not followed.
        fields.remove(CONNECTION);
    }
    let host = Worker::host_field(&target.authority);
    if let Ok(host) = HeaderValue::from_str(&host) {
        fields.insert(HOST, host);
    }
    worker.common.via.append_via(&mut fields, version);
    fields
}

/// A GET of the target.
fn request(target: &Target, fields: HeaderMap) -> Option<Request<RequestBody>> {
    let mut request = Request::new(RequestBody::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = http::Uri::try_from(&*target.path_and_query).ok()?;
    *request.headers_mut() = fields;
    Some(request)
}

/// Fetches. `tally` counts what comes from upstream.
pub(crate) async fn fetch(
    worker: Rc<Worker>,
    mut order: Order,
    flight: Option<Flight>,
    reply: Reply,
    tally: Tally,
) {
    let intent = worker.cache.intend(&order.key).ok();
    let intent = match &order.replaces {
        Some(hit) => intent.map(|intent| intent.replacing(hit)),
        None => intent,
    };
    let asked = worker.common.now();
    let exchange = match ask(&worker, &order).await {
        Ok(exchange) => exchange,
        Err(failure) => {
            worker.metrics.fetched(failure.origin_bytes, 0);
            tally.set(failure.origin_bytes);
            worker.common.collapse.failed(&order.key, Instant::now());
            let _ = reply.send(Err(failure));
            return;
        }
    };
    let came = worker.common.now();
    tracing::trace!(
        peer = %exchange.peer,
        reused = exchange.reused,
        head_time = ?exchange.head_time,
        status = exchange.response.status().as_u16(),
        "response head"
    );
    let origin = order.endpoint.authority.to_string();
    worker.common.collapse.took(&origin, exchange.head_time);
    hint_clock(&worker, &origin, exchange.response.headers(), came);
    if let Some(known) = order.known.take()
        && exchange.response.status() == StatusCode::NOT_MODIFIED
    {
        if not_modified_confirms(&known.stored.fields, exchange.response.headers()) {
            confirm(
                &worker,
                &order,
                (known, intent.map(|intent| intent.version())),
                exchange,
                (asked, came),
                flight,
                reply,
                &tally,
            )
            .await;
        } else {
            // It speaks of another response than ours: ask once more, without conditions.
            drop(exchange);
            Box::pin(fetch(worker, order, flight, reply, tally)).await;
        }
        return;
    }
    let outcome = judge(&worker, &order, &exchange, intent, (asked, came));
    match outcome {
        Judged::Store(begun) => store(worker, order, exchange, *begun, flight, reply, tally).await,
        Judged::Part(part) => {
            store_part(&worker, &order, exchange, *part, flight, reply, &tally).await;
        }
        Judged::Small => {
            let bytes = exchange.response.body().origin_bytes();
            tally.set(tally.get() + bytes);
            worker.metrics.fetched(bytes, 0);
            drop(exchange);
            order.extent = Extent::Whole;
            Box::pin(fetch(worker, order, flight, reply, tally)).await;
        }
        Judged::NotInParts => {
            let bytes = exchange.response.body().origin_bytes();
            tally.set(tally.get() + bytes);
            worker.metrics.fetched(bytes, 0);
            if let Some(flight) = flight {
                flight.not_shared(&origin, Instant::now());
            }
            let _ = reply.send(Ok(Fetched::NotInParts));
        }
        Judged::Pass(why) => {
            if let Some(flight) = flight {
                flight.not_shared(&origin, Instant::now());
            }
            if is_withdrawn(why) && order.replaces.is_some() {
                worker.cache.invalidate(&order.key);
            }
            let peer = exchange.peer;
            let response = passed_on(exchange.response, came, Upgrading::No);
            let _ = reply.send(Ok(Fetched::Passed {
                response,
                why,
                peer,
            }));
        }
    }
}

/// Whether an answer that is not stored for this reason also says that what is stored must go.
fn is_withdrawn(why: NotStored) -> bool {
    matches!(
        why,
        NotStored::NoStore | NotStored::Private | NotStored::VaryAnything
    )
}

async fn ask(worker: &Rc<Worker>, order: &Order) -> Result<Exchange, SendFailure> {
    let mut fields = upstream_fields(
        worker,
        &order.target,
        order.fields.clone(),
        order.version,
        Upgrading::No,
    );
    if let Some(known) = &order.known {
        set_validators(&mut fields, &known.stored.facts, &known.stored.fields);
    }
    match &order.extent {
        Extent::AsAsked => {}
        Extent::Around(range) => {
            fields.remove(IF_RANGE);
            fields.insert(RANGE, range.clone());
        }
        Extent::Whole => {
            fields.remove(IF_RANGE);
            fields.remove(RANGE);
        }
    }
    let options = SendOptions {
        informational: order.informational.clone(),
    };
    let Some(request) = request(&order.target, fields) else {
        return Err(unsendable());
    };
    worker
        .upstream()
        .send(&order.endpoint, request, options)
        .await
}

fn unsendable() -> SendFailure {
    let reason = "the path cannot be sent on";
    let failure = crate::failure::Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    SendFailure {
        failure,
        peer: None,
        origin_bytes: 0,
    }
}

fn hint_clock(worker: &Worker, host: &str, fields: &HeaderMap, now: UnixTime) {
    if !fields.contains_key(AGE)
        && let Some(date) = fields
            .get(DATE)
            .and_then(|date| parse_http_date(date.as_bytes(), now))
    {
        worker.common.clock.hint(host, date.0);
    }
}

/// A response freed of what belongs to the connection it came by.
pub(crate) fn passed_on<B>(
    mut response: Response<B>,
    came: UnixTime,
    upgrading: Upgrading,
) -> Response<B> {
    let granted = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => upgrading,
        _ => Upgrading::No,
    };
    let fields = response.headers_mut();
    if strip_response(fields, granted).is_err() {
        fields.remove(CONNECTION);
        let _ = strip_response(fields, granted);
    }
    ensure_date(fields, came);
    response
}

enum Judged {
    Store(Box<Begun>),
    Part(Box<BegunPart>),
    /// Not worth being put together: fetch it whole.
    Small,
    NotInParts,
    Pass(NotStored),
}

/// A put that has begun.
struct Begun {
    writer: Writer,
    stored: StoredResponse,
    length: Option<u64>,
    came: UnixTime,
}

/// An object of which a part has come.
struct BegunPart {
    hit: Hit,
    stored: StoredResponse,
    claim: Claim,
    awaited: Awaited,
    /// Bytes of the content that lie before the claim.
    skip: u64,
}

fn judge(
    worker: &Worker,
    order: &Order,
    exchange: &Exchange,
    intent: Option<Intent>,
    (request_time, response_time): (UnixTime, UnixTime),
) -> Judged {
    let live = worker.common.live();
    let pieces = &worker.common.collapse.pieces;
    let response = &exchange.response;
    let judged = storable(
        &hashcache_http::Exchange {
            target: &order.target,
            method: &Method::GET,
            request: &order.fields,
            status: response.status(),
            response: response.headers(),
            request_time,
            response_time,
        },
        &live.store,
    );
    let (facts, row) = match judged {
        Storable::Whole { facts, row } => (facts, row),
        Storable::Partial { facts, row, range } => {
            pieces.note_whole_only(&order.key, WholeOnly::No, Instant::now());
            match order.extent {
                // Only what we have chosen ourselves begins and ends where it can be stored.
                Extent::AsAsked => return Judged::Pass(NotStored::ContentRange),
                Extent::Around(_) if range.complete.is_some_and(|length| length <= PAGE) => {
                    return Judged::Small;
                }
                Extent::Around(_) => {}
                Extent::Whole => return Judged::NotInParts,
            }
            let stored = stored_part(response.headers(), facts, row, response_time);
            let labels = labels_of(
                &worker.cache,
                worker.common.space(),
                &order.target,
                response.headers(),
            );
            let put = Put {
                labels,
                ..Put::metadata(bytes::Bytes::new())
            };
            let part = intent.and_then(|intent| {
                begin_part(worker, intent, stored, range, live.max_object_size, put)
            });
            return match part {
                Some(part) => Judged::Part(Box::new(part)),
                None => Judged::NotInParts,
            };
        }
        Storable::No(_)
            if !matches!(order.extent, Extent::AsAsked)
                && response.status() == StatusCode::PARTIAL_CONTENT =>
        {
            return Judged::NotInParts;
        }
        Storable::No(why) => return Judged::Pass(why),
    };
    let length = http_body::Body::size_hint(response.body()).exact();
    if length.is_some_and(|length| length > live.max_object_size) {
        worker.metrics.limit(Limit::MaxObjectSize);
        return Judged::Pass(NotStored::TooLarge);
    }
    let directives = ResponseDirectives::parse(response.headers());
    let mut fields = fields_to_store(response.headers(), &directives);
    ensure_date(&mut fields, response_time);
    let stored = StoredResponse { facts, row, fields };
    if matches!(order.extent, Extent::Around(_)) && facts.status == StatusCode::OK {
        pieces.note_whole_only(&order.key, WholeOnly::Yes, Instant::now());
    }
    let in_parts = length.is_some()
        && facts.status == StatusCode::OK
        && !pieces.comes_whole_only(&order.key, Instant::now())
        && if_range_value(&stored.facts, &stored.fields).is_some()
        && !refuses_ranges(response.headers());
    let asked = Asked {
        client: order.client,
        target: &order.target,
        fields: &order.fields,
    };
    let related = &worker.common.related;
    let group = related.group(&asked, response.headers(), Instant::now());
    let put = stored.encode().map(|metadata| Put {
        length,
        group,
        keep: match in_parts {
            true => Keep::AtEnd,
            false => Keep::Whole,
        },
        labels: labels_of(
            &worker.cache,
            worker.common.space(),
            &order.target,
            response.headers(),
        ),
        ..Put::metadata(metadata)
    });
    match intent
        .zip(put)
        .and_then(|(intent, put)| intent.writer(put).ok())
    {
        Some(writer) => Judged::Store(Box::new(Begun {
            writer,
            stored,
            length,
            came: response_time,
        })),
        None => Judged::Pass(NotStored::NoUse),
    }
}

fn refuses_ranges(response: &HeaderMap) -> bool {
    response
        .get(ACCEPT_RANGES)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"none"))
}

/// The response of which a 206 holds a part, as an incomplete 200 (RFC 9111 3.3).
fn stored_part(
    response: &HeaderMap,
    facts: StoredFacts,
    row: Option<VaryRow>,
    came: UnixTime,
) -> StoredResponse {
    let directives = ResponseDirectives::parse(response);
    let mut fields = fields_to_store(response, &directives);
    fields.remove(CONTENT_RANGE);
    fields.remove(CONTENT_LENGTH);
    ensure_date(&mut fields, came);
    let facts = StoredFacts {
        status: StatusCode::OK,
        ..facts
    };
    StoredResponse { facts, row, fields }
}

/// Begins an object with the part that `range` tells; `None` when parts of it cannot be combined.
fn begin_part(
    worker: &Worker,
    intent: Intent,
    stored: StoredResponse,
    range: ContentRange,
    max_object_size: u64,
    put: Put,
) -> Option<BegunPart> {
    let (range, length) = range.range.zip(range.complete)?;
    if_range_value(&stored.facts, &stored.fields)?;
    if length > max_object_size {
        worker.metrics.limit(Limit::MaxObjectSize);
        return None;
    }
    let start = range.first.checked_next_multiple_of(PAGE)?;
    let end = match range.last + 1 == length {
        true => length,
        false => (range.last + 1) / PAGE * PAGE,
    };
    if start >= end {
        return None;
    }
    let put = Put {
        length: Some(length),
        span_pages: 1,
        metadata: stored.encode()?,
        ..put
    };
    let hit = intent.incomplete(put).ok()?;
    let pieces = &worker.common.collapse.pieces;
    let (claim, awaited) = pieces.begin(&hit, start..end).ok()?;
    let skip = start - range.first;
    Some(BegunPart {
        hit,
        stored,
        claim,
        awaited,
        skip,
    })
}

async fn store_part(
    worker: &Rc<Worker>,
    order: &Order,
    exchange: Exchange,
    part: BegunPart,
    flight: Option<Flight>,
    reply: Reply,
    tally: &Tally,
) {
    let BegunPart {
        hit,
        stored,
        claim,
        awaited,
        skip,
    } = part;
    claim.ticket.comes();
    if let Some(flight) = flight {
        flight.again(&order.endpoint.authority.to_string());
    }
    let peer = exchange.peer;
    let _ = reply.send(Ok(Fetched::Begun {
        hit,
        stored: Box::new(stored),
        awaited,
        peer,
    }));
    let body = exchange.response.into_body();
    piece::pump(worker, claim.writer, claim.ticket, body, skip, tally).await;
}

#[expect(
    clippy::too_many_arguments,
    reason = "the end of a fetch gathers all it began with"
)]
async fn confirm(
    worker: &Rc<Worker>,
    order: &Order,
    (known, asked_as_of): (Known, Option<hashcache::Version>),
    exchange: Exchange,
    (request_time, response_time): (UnixTime, UnixTime),
    flight: Option<Flight>,
    reply: Reply,
    tally: &Tally,
) {
    let Known { hit, mut stored } = known;
    let peer = exchange.peer;
    let bytes = exchange.response.body().origin_bytes();
    tally.set(bytes);
    worker.metrics.fetched(bytes, 0);
    freshen(
        &mut stored.fields,
        exchange.response.headers(),
        response_time,
    );
    drop(exchange);
    let judged = storable(
        &hashcache_http::Exchange {
            target: &order.target,
            method: &Method::GET,
            request: &order.fields,
            status: stored.facts.status,
            response: &stored.fields,
            request_time,
            response_time,
        },
        &worker.common.live().store,
    );
    match judged {
        Storable::Whole { facts, row } => {
            stored.facts = facts;
            stored.row = row;
            if let Some(metadata) = stored.encode() {
                // Those who wait look again, so it must be there when they are told.
                let (cache, key, version) = (&worker.cache, &order.key, hit.version());
                match asked_as_of {
                    Some(as_of) => cache.confirm_metadata(key, version, as_of, metadata).await,
                    None => cache.update_metadata(key, version, metadata).await,
                };
            }
        }
        Storable::Partial { .. } | Storable::No(_) => worker.cache.invalidate(&order.key),
    }
    if let Some(flight) = flight {
        flight.again(&order.endpoint.authority.to_string());
    }
    let _ = reply.send(Ok(Fetched::Confirmed { stored, peer }));
}

/// What of a whole response the client asked for, if that is one range of it.
fn wanted_part(
    order: &Order,
    stored: &StoredResponse,
    length: Option<u64>,
    now: UnixTime,
) -> Option<ByteRange> {
    match answer_range(&order.fields, &stored.facts, &stored.fields, length?, now) {
        RangeAnswer::Part(range) => Some(range),
        RangeAnswer::Whole | RangeAnswer::Parts(_) | RangeAnswer::NotSatisfiable => None,
    }
}

async fn store(
    worker: Rc<Worker>,
    order: Order,
    exchange: Exchange,
    begun: Begun,
    flight: Option<Flight>,
    reply: Reply,
    tally: Tally,
) {
    let Begun {
        writer,
        stored,
        length,
        came,
    } = begun;
    // Before anyone is told: with a follower there is someone to fetch for.
    let part = wanted_part(&order, &stored, length, came);
    let follower = writer.follow(part.map_or(0, |part| part.first));
    let peer = exchange.peer;
    let (head, body) = passed_on(exchange.response, came, Upgrading::No).into_parts();
    let facts = stored.facts;
    let etag = stored.fields.get(ETAG).cloned();
    let can_resume = facts.flags.has(FactFlags::STRONG_ETAG) && facts.status == StatusCode::OK;
    if let Some(flight) = &flight {
        let shared = SharedResponse {
            stored,
            length,
            ignores_range: !matches!(order.extent, Extent::AsAsked),
            stream: writer.stream(),
        };
        flight.share(&order.endpoint.authority.to_string(), shared);
    }
    let response = Response::from_parts(head, ());
    let trailers = Trailers::default();
    let sent = reply.send(Ok(Fetched::Stored {
        response,
        facts,
        follower,
        length,
        part,
        trailers: Rc::clone(&trailers),
        peer,
    }));
    // The follower that nobody took went with the reply.
    drop(sent);
    let mut transfer = Transfer {
        etag: etag.filter(|_| can_resume),
        resumes_left: RESUMES_MAX,
        skip: 0,
        length,
        earlier_bytes: 0,
        counted: Counted::default(),
        trailers,
        worker,
        order,
        tally,
    };
    transfer.run(writer, body).await;
    drop(flight);
}

/// A tally that starts at nothing.
pub(crate) fn tally() -> Tally {
    Rc::new(StdCell::new(0))
}

/// Begins a validation that nobody waits for, unless one is under way or failed a moment ago.
pub(crate) fn revalidate_in_background(worker: &Rc<Worker>, order: Order) {
    let now = Instant::now();
    let collapse = &worker.common.collapse;
    if collapse.failed_lately(&order.key, now) || worker.background.get() >= BACKGROUND_MAX {
        return;
    }
    let crate::collapse::Part::Leader(flight) = collapse.join(&order.key, now) else {
        return;
    };
    let (reply, _) = oneshot::channel();
    let worker = Rc::clone(worker);
    worker.background.set(worker.background.get() + 1);
    tokio::task::spawn_local(async move {
        let counter = Rc::clone(&worker);
        fetch(worker, order, Some(flight), reply, tally()).await;
        counter.background.set(counter.background.get() - 1);
    });
}

/// Validations without a client at once, on one core.
const BACKGROUND_MAX: u32 = 16;
