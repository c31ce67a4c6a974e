//! A fetch: one request upstream whose answer is stored while any number of readers follow it.
//!
//! A task of its own, because the client that caused it may leave at any time and others may have
//! joined. It ends when the content is whole, when nobody is left to read it (unless it is nearly
//! done), or when upstream fails and cannot be resumed.
//!
//! Called by `request`; calls `upstream` and writes to the engine.
//!
//! Invariants: the version is drawn before the request is sent, so an answer never outlives an
//! invalidation that came after the question; a response is committed only when its end was seen.

use std::cell::Cell as StdCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, Hit, Intent, Keep, Put, PutError, Writer};
use hashcache_http::{
    EntityTag, FactFlags, NotStored, ResponseDirectives, Storable, StoredFacts, Target, UnixTime,
    Upgrading, ensure_date, fields_to_store, freshen, not_modified_confirms, parse_content_range,
    parse_http_date, set_validators, storable, strip_request, strip_response,
};
use http::header::{
    AGE, CONNECTION, DATE, ETAG, EXPECT, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::collapse::{Flight, SharedResponse};
use crate::metrics::Limit;
use crate::request::body::Tally;
use crate::store::StoredResponse;
use crate::upstream::{
    Endpoint, Exchange, Informational, RequestBody, ResponseBody, SendFailure, SendOptions,
};
use crate::worker::Worker;

/// What is to be fetched, and for whom.
pub(crate) struct Order {
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
    pub(crate) informational: Option<Informational>,
    /// Nobody waits for it, and it is fetched all the same.
    pub(crate) background: bool,
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
        peer: SocketAddr,
    },
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
                known,
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
        Judged::Pass(why) => {
            if let Some(flight) = flight {
                flight.not_shared(Instant::now());
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
    Pass(NotStored),
}

/// A put that has begun.
struct Begun {
    writer: Writer,
    stored: StoredResponse,
    length: Option<u64>,
    came: UnixTime,
}

fn judge(
    worker: &Worker,
    order: &Order,
    exchange: &Exchange,
    intent: Option<Intent>,
    (request_time, response_time): (UnixTime, UnixTime),
) -> Judged {
    let live = worker.common.live();
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
        // Parts are stored when they can be put together.
        Storable::Partial { .. } => return Judged::Pass(NotStored::ContentRange),
        Storable::No(why) => return Judged::Pass(why),
    };
    let length = http_body::Body::size_hint(response.body()).exact();
    if length.is_some_and(|length| length > live.max_object_size) {
        worker.metrics.limit(Limit::MaxObjectSize);
        return Judged::Pass(NotStored::NoUse);
    }
    let directives = ResponseDirectives::parse(response.headers());
    let mut fields = fields_to_store(response.headers(), &directives);
    ensure_date(&mut fields, response_time);
    let stored = StoredResponse { facts, row, fields };
    let put = stored.encode().map(|metadata| Put {
        length,
        ..put(metadata)
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

fn put(metadata: Bytes) -> Put {
    Put {
        keep: Keep::Whole,
        ..Put::metadata(metadata)
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the end of a fetch gathers all it began with"
)]
async fn confirm(
    worker: &Rc<Worker>,
    order: &Order,
    known: Known,
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
                worker
                    .cache
                    .update_metadata(&order.key, hit.version(), metadata)
                    .await;
            }
        }
        Storable::Partial { .. } | Storable::No(_) => worker.cache.invalidate(&order.key),
    }
    if let Some(flight) = flight {
        flight.again();
    }
    let _ = reply.send(Ok(Fetched::Confirmed { stored, peer }));
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
    let follower = writer.follow(0);
    let peer = exchange.peer;
    let (head, body) = passed_on(exchange.response, came, Upgrading::No).into_parts();
    let facts = stored.facts;
    let etag = stored.fields.get(ETAG).cloned();
    let can_resume = facts.flags.has(FactFlags::STRONG_ETAG) && facts.status == StatusCode::OK;
    if let Some(flight) = &flight {
        flight.share(SharedResponse {
            stored,
            length,
            stream: writer.stream(),
        });
    }
    let response = Response::from_parts(head, ());
    let sent = reply.send(Ok(Fetched::Stored {
        response,
        facts,
        follower,
        length,
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
        worker,
        order,
        tally,
    };
    transfer.run(writer, body).await;
    drop(flight);
}

/// Times a broken fetch is taken up again.
const RESUMES_MAX: u32 = 3;
/// Pause before that, times the number of the attempt.
const RESUME_PAUSE: Duration = Duration::from_millis(100);
/// How long a fetch waits for the disk before its object goes by without being stored.
const STORE_PATIENCE: Duration = Duration::from_secs(1);
/// How far a fetch that is not stored runs beyond its slowest reader.
const BYPASS_AHEAD: u64 = 256 << 10;
/// A fetch without readers goes on if no more than this remains.
const NEARLY_DONE: u64 = 1 << 20;

/// The transfer of a response's content into the store.
struct Transfer {
    worker: Rc<Worker>,
    order: Order,
    tally: Tally,
    length: Option<u64>,
    /// The strong entity tag, by which a broken transfer can be taken up again.
    etag: Option<HeaderValue>,
    resumes_left: u32,
    /// Bytes that come again after the transfer was taken up.
    skip: u64,
    /// Bytes from upstream by connections before this one.
    earlier_bytes: u64,
}

impl Transfer {
    async fn run(&mut self, mut writer: Writer, mut body: ResponseBody) {
        loop {
            if !self.is_wanted(&writer) {
                break;
            }
            let ahead = match writer.is_stored() {
                true => self.worker.limits.read_ahead,
                false => BYPASS_AHEAD,
            };
            poll_fn(|context| writer.poll_room(context, ahead)).await;
            let frame = body.frame().await;
            self.tally.set(self.earlier_bytes + body.origin_bytes());
            match frame {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let data = self.unskipped(&data);
                    if !self.take(&mut writer, data).await {
                        break;
                    }
                }
                None if body.is_complete() && self.is_whole(&writer) => {
                    self.count(&body, writer.written());
                    // An error here is a newer answer or a store that is gone; readers have it all.
                    if let Err(error) = writer.commit() {
                        tracing::debug!(%error, "response not stored");
                    }
                    return;
                }
                Some(Err(_)) | None => match self.resume(&writer, body.origin_bytes()).await {
                    Some(rest) => body = rest,
                    None => break,
                },
            }
        }
        self.count(&body, writer.written());
    }

    /// What of `data` was not there before the transfer was taken up again.
    fn unskipped<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let skip = data
            .len()
            .min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skip as u64;
        &data[skip..]
    }

    /// Whether all that is known to be coming has come.
    fn is_whole(&self, writer: &Writer) -> bool {
        self.length.is_none_or(|length| length == writer.written())
    }

    fn count(&self, body: &ResponseBody, content: u64) {
        self.worker
            .metrics
            .fetched(self.earlier_bytes + body.origin_bytes(), content);
    }

    /// Whether the rest is worth fetching.
    fn is_wanted(&self, writer: &Writer) -> bool {
        if self.order.background || writer.stream().followers() > 0 {
            return true;
        }
        let Some(length) = self.length else {
            return false;
        };
        let left = length.saturating_sub(writer.written());
        writer.is_stored() && (left <= NEARLY_DONE || left <= length / 10)
    }

    /// Writes `data`; false when the fetch must end.
    async fn take(&self, writer: &mut Writer, data: &[u8]) -> bool {
        let since = Instant::now();
        loop {
            match writer.write(data) {
                Ok(()) => return true,
                Err(PutError::Full) => {}
                Err(_) => return false,
            }
            let waited = since.elapsed();
            if waited >= STORE_PATIENCE && writer.is_stored() {
                writer.bypass();
                continue;
            }
            if waited >= self.worker.limits.progress_time {
                return false;
            }
            let patience = match writer.is_stored() {
                true => STORE_PATIENCE.saturating_sub(waited),
                false => Duration::from_millis(100),
            };
            let _ = timeout(patience, writer.released()).await;
        }
    }

    /// Asks for the rest of a transfer that broke, if it can be told that it is the same content.
    async fn resume(&mut self, writer: &Writer, bytes: u64) -> Option<ResponseBody> {
        let etag = self.etag.clone()?;
        self.earlier_bytes += bytes;
        while self.resumes_left > 0 {
            let attempt = RESUMES_MAX - self.resumes_left + 1;
            self.resumes_left -= 1;
            tokio::time::sleep(RESUME_PAUSE * attempt).await;
            let written = writer.written();
            if let Some((body, length)) = self.rest(written, &etag).await {
                tracing::debug!(offset = written, "broken fetch taken up again");
                self.length = Some(length);
                self.skip = written - first_again(written);
                return Some(body);
            }
        }
        self.earlier_bytes -= bytes;
        None
    }

    /// What follows on `written` bytes, and how many there are in all.
    async fn rest(&self, written: u64, etag: &HeaderValue) -> Option<(ResponseBody, u64)> {
        let order = &self.order;
        let client = order.fields.clone();
        let mut fields = upstream_fields(
            &self.worker,
            &order.target,
            client,
            order.version,
            Upgrading::No,
        );
        for name in [
            EXPECT,
            IF_NONE_MATCH,
            IF_MODIFIED_SINCE,
            IF_MATCH,
            IF_UNMODIFIED_SINCE,
        ] {
            fields.remove(name);
        }
        let first = first_again(written);
        let range = HeaderValue::try_from(format!("bytes={first}-"));
        fields.insert(RANGE, range.ok()?);
        fields.insert(IF_RANGE, etag.clone());
        let request = request(&order.target, fields)?;
        let upstream = self.worker.upstream();
        let sent = upstream
            .send(&order.endpoint, request, SendOptions::default())
            .await;
        let response = sent.ok()?.response;
        let told = parse_content_range(response.headers())?;
        let (range, length) = (told.range?, told.complete?);
        let strong = |value: &HeaderValue| EntityTag::parse(value.as_bytes()).is_strong();
        let tag = response.headers().get(ETAG);
        let same = response.status() == StatusCode::PARTIAL_CONTENT
            && range.first == first
            && range.last + 1 == length
            && self.length.is_none_or(|known| known == length)
            && tag.is_none_or(|found| found == etag && strong(found));
        same.then(|| (response.into_body(), length))
    }
}

/// Where the rest of `written` bytes is asked for from: one byte back, so that there is something
/// to ask for even if only the end was not seen, and If-Range is always put to the test.
fn first_again(written: u64) -> u64 {
    written.saturating_sub(1)
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
