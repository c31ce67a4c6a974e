//! A fetch: one request upstream whose answer is stored while any number of readers follow it.
//!
//! A task of its own, because the client that caused it may leave at any time and others may have
//! joined. It ends when the content is whole, when nobody is left to read it (unless it is nearly
//! done), or when upstream fails and cannot be resumed. `judge` says what becomes of a response,
//! `variant` where it is stored, `confirm` what a 304 does; `pump` moves the content, `range_fetch`
//! fetches a stretch of a response of which other parts are stored.
//!
//! Called by `request`; calls `upstream` and writes to the engine.
//!
//! Invariants: the version is drawn before the request is sent, so an answer never outlives an
//! invalidation that came after the question; a response is committed only when its end was seen.

pub(crate) mod background;
pub(crate) mod confirm;
pub(crate) mod counters;
mod fields;
mod judge;
mod pump;
pub(crate) mod range_fetch;
mod sink;
mod spec;
pub(crate) mod variant;

pub(crate) use self::fields::{passed_on, upstream_fields};
pub(crate) use self::spec::{Extent, FetchSpec, Fetched, Reply, SelectedResponse, is_error};

use std::rc::Rc;

use hashcache_http::{
    ByteRange, ContentDigest, FactFlags, NotStored, OnError, RangeAnswer, Scheme, UnixTime,
    Upgrading, answer_range, not_modified_confirms, parse_http_date, set_validators,
};
use http::header::{AGE, DATE, ETAG, IF_RANGE, RANGE};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

use self::confirm::confirm;
use self::counters::{ByteCount, Trailers};
use self::fields::{request, strip_for_storing};
use self::judge::{BegunPut, BegunRangePut, StoreDecision, judge};
use self::pump::{RESUMES_MAX, Transfer};
use self::spec::is_withdrawn;
use self::variant::{Intents, add_row, chosen, plan_put};
use crate::collapse::{Leader, SharedResponse};
use crate::metrics::CountedBytes;
use crate::store::StoredResponse;
use crate::upstream::{Endpoint, SendFailure, SendOptions, UpstreamExchange};
use crate::worker::Worker;

/// Fetches. `byte_count` counts what comes from upstream.
pub(crate) async fn fetch(
    worker: Rc<Worker>,
    mut spec: FetchSpec,
    leader: Option<Leader>,
    reply: Reply,
    byte_count: ByteCount,
) {
    let intents = Intents::draw(&worker, &spec);
    let asked = worker.common.now();
    let mut exchange = match ask(&worker, &spec).await {
        Ok(exchange) => exchange,
        Err(failure) => {
            worker.metrics.fetched(failure.origin_bytes, 0);
            byte_count.set(failure.origin_bytes);
            worker
                .common
                .collapse
                .failed(&spec.place.name, Instant::now());
            let _ = reply.send(Err(failure));
            return;
        }
    };
    let came = worker.common.now();
    strip_for_storing(spec.space, exchange.response.headers_mut());
    tracing::trace!(
        peer = %exchange.peer,
        reused = exchange.reused,
        head_time = ?exchange.head_time,
        status = exchange.response.status().as_u16(),
        "response head"
    );
    let origin = spec.endpoint.authority.to_string();
    worker
        .common
        .collapse
        .note_head_time(&origin, exchange.head_time);
    hint_clock(&worker, &spec.endpoint, &exchange, came);
    let status = exchange.response.status();
    if status == StatusCode::NOT_MODIFIED && (spec.selected.is_some() || spec.choices.is_some()) {
        match spoken_of(&worker, &mut spec, exchange.response.headers()).await {
            Some(selected) => {
                let times = (asked, came);
                let tell = (leader, reply, &byte_count);
                let as_of = intents.drawn();
                confirm(&worker, &spec, (selected, as_of), exchange, times, tell).await;
            }
            None => {
                // It speaks of another response than ours: ask once more, without conditions.
                drop(exchange);
                Box::pin(fetch(worker, spec, leader, reply, byte_count)).await;
            }
        }
        return;
    }
    if is_error(status) {
        worker
            .common
            .collapse
            .failed(&spec.place.name, Instant::now());
    }
    let outcome = match is_error(status) && spec.on_error == OnError::ServeIfError {
        // What is known is worth more than this.
        true => StoreDecision::Pass(NotStored::Status),
        false => {
            let plan = plan_put(&worker, &spec, &exchange, intents, leader.is_some()).await;
            judge(&worker, &spec, &exchange, plan, (asked, came))
        }
    };
    match outcome {
        StoreDecision::Store(begun) => {
            store(worker, spec, exchange, *begun, leader, reply, byte_count).await;
        }
        StoreDecision::Part(part) => {
            store_part(&worker, &spec, exchange, *part, leader, reply, &byte_count).await;
        }
        StoreDecision::Small => {
            let bytes = exchange.response.body().origin_bytes();
            byte_count.set(byte_count.get() + bytes);
            worker.metrics.fetched(bytes, 0);
            drop(exchange);
            spec.extent = Extent::Whole;
            Box::pin(fetch(worker, spec, leader, reply, byte_count)).await;
        }
        StoreDecision::NotInParts => {
            let bytes = exchange.response.body().origin_bytes();
            byte_count.set(byte_count.get() + bytes);
            worker.metrics.fetched(bytes, 0);
            if let Some(leader) = leader {
                leader.not_shared(&origin, Instant::now());
            }
            let _ = reply.send(Ok(Fetched::NotInParts));
        }
        StoreDecision::Pass(reason) => {
            // An error instead of a validation says nothing about what the next one brings.
            let validated = spec.selected.is_some() && is_error(status);
            if let Some(leader) = leader.filter(|_| !validated) {
                leader.not_shared(&origin, Instant::now());
            }
            if is_withdrawn(reason) && spec.replaces.is_some() {
                worker.cache.invalidate(&spec.place.name);
            }
            let peer = exchange.peer;
            let response = passed_on(exchange.response, came, Upgrading::No);
            let _ = reply.send(Ok(Fetched::Passed {
                response,
                reason,
                peer,
            }));
        }
    }
}

/// The stored response that a 304 speaks of. What was asked about is not asked about again.
async fn spoken_of(
    worker: &Rc<Worker>,
    spec: &mut FetchSpec,
    not_modified: &HeaderMap,
) -> Option<SelectedResponse> {
    let (selected, choices) = (spec.selected.take(), spec.choices.take());
    if let Some(selected) = selected {
        let confirms = not_modified_confirms(&selected.stored.fields, not_modified);
        return confirms.then_some(selected);
    }
    chosen(worker, spec, &choices?, not_modified).await
}

async fn ask(worker: &Rc<Worker>, spec: &FetchSpec) -> Result<UpstreamExchange, SendFailure> {
    let mut fields = upstream_fields(
        worker,
        &spec.target,
        spec.fields.clone(),
        spec.version,
        Upgrading::No,
    );
    if let Some(selected) = &spec.selected {
        set_validators(&mut fields, &selected.stored.facts, &selected.stored.fields);
    } else if let Some(choices) = &spec.choices {
        choices.set_choices(&mut fields);
    }
    match &spec.extent {
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
        informational: spec.informational.clone(),
        client: Some(spec.share.clone()),
    };
    let Some(request) = request(&spec.target, fields) else {
        return Err(unsendable());
    };
    worker
        .upstream()
        .send(&spec.endpoint, request, options)
        .await
}

fn unsendable() -> SendFailure {
    let reason = "the path cannot be forwarded";
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

fn hint_clock(worker: &Worker, to: &Endpoint, exchange: &UpstreamExchange, now: UnixTime) {
    let fields = exchange.response.headers();
    // A plain response proves nothing: anyone on the line, or any page that names hosts, makes it.
    if to.scheme == Scheme::Https
        && !fields.contains_key(AGE)
        && let Some(date) = fields
            .get(DATE)
            .and_then(|date| parse_http_date(date.as_bytes(), now))
    {
        let (host, peer) = (&to.authority.host, exchange.peer.ip());
        worker.common.clock.hint(host, peer, date.0);
    }
}

async fn store_part(
    worker: &Rc<Worker>,
    spec: &FetchSpec,
    exchange: UpstreamExchange,
    part: BegunRangePut,
    leader: Option<Leader>,
    reply: Reply,
    byte_count: &ByteCount,
) {
    let BegunRangePut {
        hit,
        stored,
        claim,
        awaited,
        skip,
        row,
        place,
    } = part;
    claim.guard.note_arriving();
    if let Some(row) = row {
        add_row(worker, &place.key, row).await;
    }
    if let Some(leader) = leader {
        leader.validated(&spec.endpoint.authority.to_string());
    }
    let peer = exchange.peer;
    let _ = reply.send(Ok(Fetched::Begun {
        hit,
        stored: Box::new(stored),
        place,
        awaited,
        peer,
    }));
    let body = exchange.response.into_body();
    range_fetch::pump(worker, claim.writer, claim.guard, body, skip, byte_count).await;
}

/// What of a whole response the client asked for, if that is one range of it.
fn wanted_part(
    spec: &FetchSpec,
    stored: &StoredResponse,
    length: Option<u64>,
    now: UnixTime,
) -> Option<ByteRange> {
    match answer_range(&spec.fields, &stored.facts, &stored.fields, length?, now) {
        RangeAnswer::Part(range) => Some(range),
        RangeAnswer::Whole | RangeAnswer::Parts(_) | RangeAnswer::NotSatisfiable => None,
    }
}

async fn store(
    worker: Rc<Worker>,
    spec: FetchSpec,
    exchange: UpstreamExchange,
    begun: BegunPut,
    leader: Option<Leader>,
    reply: Reply,
    byte_count: ByteCount,
) {
    let BegunPut {
        writer,
        stored,
        length,
        came,
        row,
    } = begun;
    // Before anyone is told: who asks after this answer finds it on its way.
    if let Some(row) = row {
        add_row(&worker, &spec.place.key, row).await;
    }
    // Before anyone is told: with a follower there is someone to fetch for.
    let part = wanted_part(&spec, &stored, length, came);
    let follower = writer.follow(part.map_or(0, |part| part.first));
    let peer = exchange.peer;
    let (head, body) = passed_on(exchange.response, came, Upgrading::No).into_parts();
    let facts = stored.facts;
    let etag = stored.fields.get(ETAG).cloned();
    let digest = ContentDigest::promised(&stored.fields).filter(|_| facts.status == StatusCode::OK);
    let can_resume = facts.flags.has(FactFlags::STRONG_ETAG) && facts.status == StatusCode::OK;
    if let Some(leader) = &leader {
        let shared = SharedResponse {
            stored,
            length,
            ignores_range: !matches!(spec.extent, Extent::AsAsked),
            stream: writer.stream(),
        };
        leader.share(&spec.endpoint.authority.to_string(), shared);
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
        counted: CountedBytes::default(),
        digest,
        trailers,
        worker,
        spec,
        byte_count,
    };
    transfer.run(writer, body).await;
    drop(leader);
}
