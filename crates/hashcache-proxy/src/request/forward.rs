//! Requests that go upstream: misses, and what is only passed on. Validations: `validate`.

use std::rc::Rc;
use std::sync::Arc;

use hashcache::Hit;
use hashcache_http::{
    CacheStatus, Forward, Handling, MethodKind, OnError, RequestFacts, Space, Target, Upgrading,
    VariantTable, asks_for_upgrade, cache_key, grants_other_protocol, invalidated,
    invalidated_groups, is_unsafe,
};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::body::Body;
use super::follow::{follow, following};
use super::look_up::{LookedUp, look_up};
use super::note::Note;
use super::validate::{again, found};
use super::{Answer, Connection, connect, endpoint, hit, partial, ranged};
use crate::access_log::Outcome;
use crate::collapse::{Flight, Part, Told, listen};
use crate::failure::Failure;
use crate::fetch::confirm::{self, Times};
use crate::fetch::{self, Extent, Fetched, Known};
use crate::metrics::Limit;
use crate::share;
use crate::store::Place;
use crate::upstream::{Informational, RequestBody, SendFailure, SendOptions};
use crate::wire::{ClientBody, Content, HeadInfo};

/// What a client asked for.
pub(super) struct Order {
    /// Whose resource it is.
    pub(super) space: Space,
    pub(super) target: Target,
    pub(super) method: Method,
    /// As they came, without those of the connection.
    pub(super) fields: HeaderMap,
    pub(super) version: Version,
    pub(super) body: Option<ClientBody>,
    /// Whether there is content: its framing is no longer among the fields.
    pub(super) has_content: bool,
    /// Times that what was stored for it could not be completed.
    pub(super) tries: u8,
}

impl Order {
    pub(super) fn new(
        space: Space,
        target: Target,
        request: Request<ClientBody>,
        info: &HeadInfo,
    ) -> Self {
        let (head, body) = request.into_parts();
        Self {
            space,
            target,
            method: head.method,
            fields: head.headers,
            version: info.version,
            body: (info.content != Content::None).then_some(body),
            has_content: !matches!(info.content, Content::None | Content::Length(0)),
            tries: 0,
        }
    }

    /// What the rules need to know of it.
    pub(super) fn facts(&self) -> RequestFacts {
        RequestFacts {
            has_content: self.has_content,
            ..RequestFacts::of(&self.method, &self.fields)
        }
    }

    /// The same without content, for another try.
    pub(super) fn without_body(&self) -> Self {
        Self {
            space: self.space,
            target: self.target.clone(),
            method: self.method.clone(),
            fields: self.fields.clone(),
            version: self.version,
            body: None,
            has_content: self.has_content,
            tries: self.tries,
        }
    }
}

/// Why a request goes upstream, and what is known of what is stored.
pub(super) struct Why {
    pub(super) forward: Forward,
    /// What lies where the answer would.
    pub(super) replaces: Option<Hit>,
    /// The variants that are stored.
    pub(super) choices: Option<VariantTable>,
}

impl Why {
    pub(super) fn of(forward: Forward) -> Self {
        Self {
            forward,
            replaces: None,
            choices: None,
        }
    }
}

/// Passes interim responses on to the client.
fn informational(connection: &Connection) -> Option<Informational> {
    let cell = Rc::clone(&connection.cell);
    Some(Rc::new(move |status, fields: HeaderMap| {
        cell.send_interim(status, &fields);
    }))
}

/// Sends a request upstream and its answer back; nothing is stored.
pub(super) async fn pass(
    connection: &Rc<Connection>,
    order: Order,
    forward: Forward,
    note: &mut Note,
) -> Answer {
    let worker = &connection.worker;
    note.outcome(outcome_of(forward));
    let to = endpoint(&order);
    let Order {
        space,
        target,
        method,
        fields,
        version,
        body,
        has_content,
        tries: _,
    } = order;
    let upgrading = match asks_for_upgrade(&method, &fields) {
        true => Upgrading::Yes,
        false => Upgrading::No,
    };
    let wanted = (method == Method::HEAD && !has_content).then(|| fields.clone());
    let fields = fetch::upstream_fields(worker, &target, fields, version, upgrading);
    let mut request = Request::new(match body {
        Some(body) => RequestBody::streamed(body),
        None => RequestBody::empty(),
    });
    *request.method_mut() = method.clone();
    let refused = |_| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "the path cannot be forwarded",
    };
    *request.uri_mut() = http::Uri::try_from(&*target.path_and_query).map_err(refused)?;
    *request.headers_mut() = fields;
    let options = SendOptions {
        informational: informational(connection),
        client: Some(connection.allowance.share().clone()),
    };
    let asked = worker.common.now();
    let sent = worker.upstream().send(&to, request, options).await;
    let exchange = sent.map_err(|failed| {
        connection
            .cell
            .body_failure()
            .unwrap_or_else(|| send_failed(connection, note, failed))
    })?;
    note.upstream(Some(exchange.peer));
    if exchange.upgrade.is_some() && !grants_other_protocol(exchange.response.headers()) {
        return Err(Failure::ResponseMalformed(
            "101 to a protocol that was not offered",
        ));
    }
    let response = fetch::passed_on(exchange.response, worker.common.now(), upgrading);
    if let Some(upgrade) = exchange.upgrade {
        connect::upgrade(connection, upgrade, note);
    }
    if is_unsafe(&method) {
        let (status, fields) = (response.status(), response.headers());
        let targets = invalidated(&method, &target, status, fields);
        let groups = invalidated_groups(&method, status, fields);
        let purger = worker.common.purger.within(space);
        purger.invalidate(&targets, &groups);
    }
    let (mut head, body) = response.into_parts();
    if let Some(fields) = wanted.filter(|_| head.status == StatusCode::OK) {
        let times = (asked, worker.common.now());
        let asked = (&target, &fields);
        head_came(connection, space, asked, &head.headers, times).await;
    }
    add_own(
        connection,
        &mut head.headers,
        CacheStatus::of(Handling::Forwarded(forward)),
    );
    let body = Body::passed(body, note.tally(), Arc::clone(&worker.metrics));
    Ok(Response::from_parts(head, body))
}

/// Has the answer to a HEAD confirm or end what is stored.
async fn head_came(
    connection: &Connection,
    space: Space,
    asked: (&Target, &HeaderMap),
    head: &HeaderMap,
    times: Times,
) {
    let Some(key) = cache_key(space, asked.0) else {
        return;
    };
    let found = look_up(connection, &key, asked.1).await;
    if let LookedUp::Found {
        hit, stored, place, ..
    } = found
    {
        let known = Known {
            hit,
            stored,
            place,
            alias: None,
        };
        confirm::head_came(&connection.worker, asked, &known, head, times).await;
    }
}

fn send_failed(connection: &Connection, note: &mut Note, failed: SendFailure) -> Failure {
    note.upstream(failed.peer);
    connection.worker.metrics.fetched(failed.origin_bytes, 0);
    failed.failure
}

/// Via and Cache-Status of a response from upstream.
pub(super) fn add_own(connection: &Connection, fields: &mut HeaderMap, status: CacheStatus<'_>) {
    let common = &connection.worker.common;
    common.via.append_via(fields, Version::HTTP_11);
    status.append(&common.name, fields);
}

pub(super) fn outcome_of(forward: Forward) -> Outcome {
    match forward {
        Forward::Bypass => Outcome::Bypass,
        Forward::Method => Outcome::Method,
        Forward::VaryMiss => Outcome::VaryMiss,
        Forward::Request => Outcome::Request,
        Forward::Stale => Outcome::Stale,
        Forward::Partial => Outcome::Partial,
        Forward::UriMiss | Forward::Miss => Outcome::Miss,
    }
}

/// Whether a request may share the fetch of another, or share its own.
pub(super) fn may_share(order: &Order, facts: &RequestFacts) -> bool {
    facts.method == MethodKind::Get
        && !facts.has_range
        && !facts.has_condition
        && !facts.has_origin_condition
        && !facts.directives.no_store
        && !order.fields.contains_key(AUTHORIZATION)
}

/// Nothing stored answers the request.
pub(super) async fn miss(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    facts: &RequestFacts,
    why: Why,
    note: &mut Note,
) -> Answer {
    if facts.directives.only_if_cached {
        return Err(Failure::NotCached);
    }
    if let Some(range) = ranged::wanted(&order, facts) {
        let miss = ranged::miss(connection, order, place, facts, why, range, note);
        return Box::pin(miss).await;
    }
    if !may_share(&order, facts) {
        return pass_or_store(connection, order, place, why, note).await;
    }
    let collapse = &connection.worker.common.collapse;
    match collapse.join(&place.name, Instant::now()) {
        Part::Leader(flight) => lead(connection, order, place, why, Some(flight), note).await,
        Part::Alone => lead(connection, order, place, why, None, note).await,
        Part::Follower(told) => {
            let patience = connection.worker.patience(&order.target.authority);
            match listen(told, patience).await {
                Told::Shared(shared) => match follow(connection, &order, facts, &shared, note) {
                    Some(answer) => answer,
                    None => lead(connection, order, place, why, None, note).await,
                },
                Told::Again => again(connection, order, place, facts, why, note).await,
                Told::Alone | Told::Wait => lead(connection, order, place, why, None, note).await,
            }
        }
    }
}

/// Fetches a request that may not share: it is stored all the same if its answer may be.
pub(super) async fn pass_or_store(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    why: Why,
    note: &mut Note,
) -> Answer {
    let plain = order.method == Method::GET && order.body.is_none();
    if !plain {
        return pass(connection, order, why.forward, note).await;
    }
    lead(connection, order, place, why, None, note).await
}

pub(super) fn fetch_order(
    connection: &Connection,
    order: &Order,
    place: Place,
    replaces: Option<Hit>,
    range: Option<HeaderValue>,
) -> fetch::Order {
    fetch::Order {
        client: connection.client.ip(),
        share: connection.allowance.share().clone(),
        space: order.space,
        endpoint: endpoint(order),
        target: order.target.clone(),
        place,
        fields: order.fields.clone(),
        version: order.version,
        known: None,
        choices: None,
        on_error: OnError::Fail,
        replaces,
        extent: range.map_or(Extent::AsAsked, Extent::Around),
        informational: informational(connection),
        background: false,
    }
}

/// Begins a fetch in a task of its own and waits for what it comes to.
pub(super) async fn begin(
    connection: &Rc<Connection>,
    order: fetch::Order,
    flight: Option<Flight>,
    note: &mut Note,
) -> Result<Fetched, Failure> {
    let (reply, answer) = oneshot::channel();
    let worker = Rc::clone(&connection.worker);
    let client = Some(connection.allowance.share());
    let Some(memory) = share::reserve_for(client, &worker.cache, FETCH_BYTES) else {
        worker.metrics.limit(Limit::Memory);
        return Err(NO_MEMORY);
    };
    let fetching = Box::pin(fetch::fetch(worker, order, flight, reply, note.tally()));
    let size = size_of_val(&*fetching) as u64;
    debug_assert!(size <= FETCH_BYTES, "{size} bytes");
    tokio::task::spawn_local(async move {
        fetching.await;
        drop(memory);
    });
    match answer.await {
        Ok(Ok(fetched)) => Ok(fetched),
        Ok(Err(failed)) => {
            note.upstream(failed.peer);
            Err(failed.failure)
        }
        Err(_) => Err(Failure::Internal("a fetch ended without a response")),
    }
}

/// Fetches as the leader of a flight, or alone.
pub(super) async fn lead(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    why: Why,
    flight: Option<Flight>,
    note: &mut Note,
) -> Answer {
    if order.method == Method::HEAD {
        return pass(connection, order, why.forward, note).await;
    }
    lead_range(connection, order, place, why, flight, None, note).await
}

/// The same for a range around the one the client wants.
pub(super) async fn lead_range(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    why: Why,
    flight: Option<Flight>,
    range: Option<HeaderValue>,
    note: &mut Note,
) -> Answer {
    let Why {
        forward,
        replaces,
        choices,
    } = why;
    note.outcome(outcome_of(forward));
    let fetched = fetch::Order {
        choices,
        ..fetch_order(connection, &order, place.clone(), replaces, range)
    };
    let fetched = begin(connection, fetched, flight, note).await?;
    fetched_answer(connection, order, place, fetched, forward, note).await
}

/// A response from upstream, stored or not.
pub(super) async fn fetched_answer(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    fetched: Fetched,
    forward: Forward,
    note: &mut Note,
) -> Answer {
    let mut status = CacheStatus::of(Handling::Forwarded(forward));
    match fetched {
        Fetched::Stored {
            response,
            facts,
            follower,
            length,
            part,
            trailers,
            peer,
        } => {
            note.upstream(Some(peer));
            let now = connection.worker.common.now();
            status.stored = true;
            status.ttl = Some(facts.ttl(now));
            let (mut head, ()) = response.into_parts();
            add_own(connection, &mut head.headers, status);
            let answer = following(Response::from_parts(head, follower), part, length);
            Ok(answer.map(|body| match part {
                Some(_) => body,
                None => body.with_trailers(trailers),
            }))
        }
        Fetched::Begun {
            hit,
            stored,
            place,
            awaited,
            peer,
        } => {
            note.upstream(Some(peer));
            let now = connection.worker.common.now();
            let served = hit::Served {
                handling: Handling::Forwarded(forward),
                stored: true,
                ..hit::Served::fresh(stored.facts.age(now), stored.facts.ttl(now))
            };
            let facts = order.facts();
            let found = partial::Found {
                hit: &hit,
                stored: *stored,
                served,
            };
            let answer = partial::answer(connection, order, place, &facts, found, note).await;
            // Only now: until the answer has a follower of its own, this one keeps the fetch going.
            drop(awaited);
            answer
        }
        Fetched::NotInParts => {
            let why = Why::of(forward);
            Box::pin(pass_or_store(connection, order, place, why, note)).await
        }
        Fetched::Passed {
            response,
            why,
            peer,
        } => {
            note.upstream(Some(peer));
            status.detail = Some(why.as_str());
            let (mut head, body) = response.into_parts();
            add_own(connection, &mut head.headers, status);
            let metrics = Arc::clone(&connection.worker.metrics);
            let body = Body::passed(body, note.tally(), metrics);
            Ok(Response::from_parts(head, body))
        }
        Fetched::Confirmed { known, peer } => {
            note.upstream(Some(peer));
            note.outcome(Outcome::Revalidated);
            let Known {
                hit, stored, place, ..
            } = *known;
            let found = found(
                connection,
                &hit,
                stored,
                forward,
                Some(StatusCode::NOT_MODIFIED),
            );
            let facts = order.facts();
            partial::answer(connection, order, place, &facts, found, note).await
        }
    }
}

/// What a fetch takes beside its connection and its content: its future.
const FETCH_BYTES: u64 = 16 << 10;

const NO_MEMORY: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for a request to the origin",
};
