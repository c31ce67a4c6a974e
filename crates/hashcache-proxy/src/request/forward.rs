//! Requests that go upstream: misses, validations, and what is only passed on.

use std::rc::Rc;
use std::sync::Arc;

use hashcache::Hit;
use hashcache_http::{
    CacheStatus, Forward, Handling, MethodKind, NotStored, OnError, RequestFacts, Reuse, Target,
    Upgrading, asks_for_upgrade, invalidated, is_unsafe, reuse,
};
use http::header::{AGE, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::body::Body;
use super::note::Note;
use super::{Answer, Connection, connect, endpoint, hit, invalidate};
use crate::access_log::Outcome;
use crate::collapse::{Flight, Part, SharedResponse, Told, listen};
use crate::failure::Failure;
use crate::fetch::{self, Fetched, Known};
use crate::store::StoredResponse;
use crate::upstream::{Informational, RequestBody, SendFailure, SendOptions};
use crate::wire::{Content, HeadInfo};

/// What a client asked for.
pub(super) struct Order {
    pub(super) target: Target,
    pub(super) method: Method,
    /// As they came.
    pub(super) fields: HeaderMap,
    pub(super) version: Version,
    body: Option<Incoming>,
}

impl Order {
    pub(super) fn new(
        _connection: &Connection,
        target: Target,
        request: Request<Incoming>,
        info: &HeadInfo,
    ) -> Self {
        let (head, body) = request.into_parts();
        Self {
            target,
            method: head.method,
            fields: head.headers,
            version: info.version,
            body: (info.content != Content::None).then_some(body),
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
    let Order {
        target,
        method,
        fields,
        version,
        body,
    } = order;
    let upgrading = match asks_for_upgrade(&method, &fields) {
        true => Upgrading::Yes,
        false => Upgrading::No,
    };
    let fields = fetch::upstream_fields(worker, &target, fields, version, upgrading);
    let mut request = Request::new(match body {
        Some(body) => RequestBody::streamed(body),
        None => RequestBody::empty(),
    });
    *request.method_mut() = method.clone();
    let refused = |_| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "the path cannot be sent on",
    };
    // `OPTIONS *` for another server came as `OPTIONS http://host`; it goes on with its path.
    *request.uri_mut() = http::Uri::try_from(&*target.path_and_query).map_err(refused)?;
    *request.headers_mut() = fields;
    let options = SendOptions {
        informational: informational(connection),
    };
    let to = endpoint(connection, &target);
    let sent = worker.upstream().send(&to, request, options).await;
    let exchange = sent.map_err(|failed| {
        connection
            .cell
            .body_failure()
            .unwrap_or_else(|| send_failed(connection, note, failed))
    })?;
    note.upstream(Some(exchange.peer));
    let response = fetch::passed_on(exchange.response, worker.common.now(), upgrading);
    if let Some(upgrade) = exchange.upgrade {
        connect::upgrade(connection, upgrade, note);
    }
    if is_unsafe(&method) {
        let status = response.status();
        invalidate(
            connection,
            &invalidated(&method, &target, status, response.headers()),
        );
    }
    let (mut head, body) = response.into_parts();
    add_own(
        connection,
        &mut head.headers,
        CacheStatus::of(Handling::Forwarded(forward)),
    );
    let body = Body::passed(body, note.tally(), Arc::clone(&worker.metrics));
    Ok(Response::from_parts(head, body))
}

fn send_failed(connection: &Connection, note: &mut Note, failed: SendFailure) -> Failure {
    note.upstream(failed.peer);
    connection.worker.metrics.fetched(failed.origin_bytes, 0);
    failed.failure
}

/// Via and Cache-Status of a response from upstream.
fn add_own(connection: &Connection, fields: &mut HeaderMap, status: CacheStatus<'_>) {
    let common = &connection.worker.common;
    common.via.append_via(fields, Version::HTTP_11);
    status.append(&common.name, fields);
}

fn outcome_of(forward: Forward) -> Outcome {
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
fn may_share(order: &Order, facts: &RequestFacts) -> bool {
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
    key: Vec<u8>,
    facts: &RequestFacts,
    forward: Forward,
    replaces: Option<Hit>,
    note: &mut Note,
) -> Answer {
    if facts.directives.only_if_cached {
        return Err(Failure::NotCached);
    }
    if !may_share(&order, facts) {
        return pass_or_store(connection, order, key, forward, replaces, note).await;
    }
    let collapse = &connection.worker.common.collapse;
    match collapse.join(&key, Instant::now()) {
        Part::Leader(flight) => {
            lead(
                connection,
                order,
                key,
                forward,
                replaces,
                Some(flight),
                note,
            )
            .await
        }
        Part::Alone => lead(connection, order, key, forward, replaces, None, note).await,
        Part::Follower(told) => {
            let patience = collapse.patience(&order.target.authority.to_string());
            match listen(told, patience).await {
                Told::Shared(shared) => match follow(connection, &order, facts, &shared, note) {
                    Some(answer) => answer,
                    None => lead(connection, order, key, forward, replaces, None, note).await,
                },
                Told::Again => again(connection, order, key, facts, forward, note).await,
                Told::Alone | Told::Wait => {
                    lead(connection, order, key, forward, replaces, None, note).await
                }
            }
        }
    }
}

/// Fetches a request that may not share: it is stored all the same if its answer may be.
pub(super) async fn pass_or_store(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    forward: Forward,
    replaces: Option<Hit>,
    note: &mut Note,
) -> Answer {
    let plain = order.method == Method::GET && order.body.is_none();
    if !plain {
        return pass(connection, order, forward, note).await;
    }
    lead(connection, order, key, forward, replaces, None, note).await
}

fn fetch_order(
    connection: &Connection,
    order: &Order,
    key: Vec<u8>,
    known: Option<Known>,
    replaces: Option<Hit>,
) -> fetch::Order {
    fetch::Order {
        endpoint: endpoint(connection, &order.target),
        target: order.target.clone(),
        key,
        fields: order.fields.clone(),
        version: order.version,
        known,
        replaces,
        informational: informational(connection),
        background: false,
    }
}

/// Begins a fetch in a task of its own and waits for what it comes to.
async fn begin(
    connection: &Rc<Connection>,
    order: fetch::Order,
    flight: Option<Flight>,
    note: &mut Note,
) -> Result<Fetched, Failure> {
    let (reply, answer) = oneshot::channel();
    let worker = Rc::clone(&connection.worker);
    tokio::task::spawn_local(fetch::fetch(worker, order, flight, reply, note.tally()));
    match answer.await {
        Ok(Ok(fetched)) => Ok(fetched),
        Ok(Err(failed)) => {
            note.upstream(failed.peer);
            Err(failed.failure)
        }
        Err(_) => Err(Failure::Internal("a fetch ended without an answer")),
    }
}

/// Fetches as the leader of a flight, or alone.
async fn lead(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    forward: Forward,
    replaces: Option<Hit>,
    flight: Option<Flight>,
    note: &mut Note,
) -> Answer {
    if order.method == Method::HEAD {
        return pass(connection, order, forward, note).await;
    }
    note.outcome(outcome_of(forward));
    let fetched = fetch_order(connection, &order, key, None, replaces);
    let fetched = begin(connection, fetched, flight, note).await?;
    Ok(fetched_answer(connection, fetched, forward, note))
}

/// A response from upstream, stored or not.
fn fetched_answer(
    connection: &Connection,
    fetched: Fetched,
    forward: Forward,
    note: &mut Note,
) -> Response<Body> {
    let mut status = CacheStatus::of(Handling::Forwarded(forward));
    match fetched {
        Fetched::Stored {
            response,
            facts,
            follower,
            length,
            peer,
        } => {
            note.upstream(Some(peer));
            let now = connection.worker.common.now();
            status.stored = true;
            status.ttl = Some(facts.ttl(now));
            let (mut head, ()) = response.into_parts();
            add_own(connection, &mut head.headers, status);
            Response::from_parts(head, Body::following(follower, length))
        }
        Fetched::Passed {
            response,
            why,
            peer,
        } => {
            note.upstream(Some(peer));
            status.detail = Some(detail(why));
            let (mut head, body) = response.into_parts();
            add_own(connection, &mut head.headers, status);
            let metrics = Arc::clone(&connection.worker.metrics);
            Response::from_parts(head, Body::passed(body, note.tally(), metrics))
        }
        // Only a validation can be confirmed, and `validate` has looked after that.
        Fetched::Confirmed { .. } => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}

fn detail(why: NotStored) -> &'static str {
    why.as_str()
}

/// Reads along with another request's fetch, if its response answers this one too.
fn follow(
    connection: &Connection,
    order: &Order,
    facts: &RequestFacts,
    shared: &SharedResponse,
    note: &mut Note,
) -> Option<Answer> {
    let stored = &shared.stored;
    if stored
        .row
        .as_ref()
        .is_some_and(|row| !row.matches(&order.fields))
    {
        return None;
    }
    let common = &connection.worker.common;
    let Reuse::Fresh { age, ttl } = reuse(facts, &stored.facts, common.now(), &common.live().reuse)
    else {
        return None;
    };
    let follower = shared.stream.follow(0)?;
    note.outcome(Outcome::Collapsed);
    let mut response = Response::new(Body::following(follower, shared.length));
    *response.status_mut() = stored.facts.status;
    *response.headers_mut() = stored.fields.clone();
    let fields = response.headers_mut();
    fields.insert(AGE, HeaderValue::from(age.get()));
    let status = CacheStatus {
        ttl: Some(ttl),
        collapsed: true,
        ..CacheStatus::of(Handling::Forwarded(Forward::UriMiss))
    };
    add_own(connection, fields, status);
    Some(Ok(response))
}

/// Looks once more after another request's validation; if that does not help, goes alone.
async fn again(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    facts: &RequestFacts,
    forward: Forward,
    note: &mut Note,
) -> Answer {
    let found = super::look_up(connection, &key, &order.fields).await;
    if let super::LookedUp::Found { hit, stored, .. } = found {
        let common = &connection.worker.common;
        let decision = reuse(facts, &stored.facts, common.now(), &common.live().reuse);
        if let Reuse::Fresh { age, ttl } = decision {
            note.outcome(Outcome::Collapsed);
            let served = hit::Served {
                collapsed: true,
                ..hit::Served::fresh(age, ttl)
            };
            return hit::answer(connection, &order, facts, &hit, stored, served);
        }
    }
    lead(connection, order, key, forward, None, None, note).await
}

/// Asks upstream whether a stored response is still good.
#[expect(
    clippy::too_many_arguments,
    reason = "what is known of a request before it goes upstream"
)]
pub(super) async fn validate(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    facts: &RequestFacts,
    forward: Forward,
    known: Known,
    on_error: OnError,
    note: &mut Note,
) -> Answer {
    let collapse = &connection.worker.common.collapse;
    let shares = facts.method == MethodKind::Get && !order.fields.contains_key(AUTHORIZATION);
    let flight = match shares.then(|| collapse.join(&key, Instant::now())) {
        Some(Part::Leader(flight)) => Some(flight),
        // A client that insists on the origin's answer asks itself.
        Some(Part::Follower(told)) if forward == Forward::Stale => {
            let patience = collapse.patience(&order.target.authority.to_string());
            match listen(told, patience).await {
                Told::Shared(shared) if may_share(&order, facts) => {
                    if let Some(answer) = follow(connection, &order, facts, &shared, note) {
                        return answer;
                    }
                }
                Told::Again => return again(connection, order, key, facts, forward, note).await,
                _ => {}
            }
            None
        }
        _ => None,
    };
    note.outcome(outcome_of(forward));
    let replaces = Some(known.hit.clone());
    let fetched = fetch_order(connection, &order, key, Some(known.clone()), replaces);
    let fetched = begin(connection, fetched, flight, note).await;
    match fetched {
        Ok(Fetched::Confirmed { stored, peer }) => {
            note.upstream(Some(peer));
            confirmed(connection, &order, facts, &known.hit, stored, forward, note)
        }
        Ok(fetched) if on_error == OnError::ServeIfError && is_error(&fetched) => {
            note.outcome(Outcome::StaleIfError);
            stand_in(connection, &order, facts, &known, forward)
        }
        Ok(fetched) => Ok(fetched_answer(connection, fetched, forward, note)),
        Err(failure) if on_error != OnError::Fail => {
            note.outcome(Outcome::StaleIfError);
            note.mention(&failure);
            stand_in(connection, &order, facts, &known, forward)
        }
        Err(failure) => Err(failure),
    }
}

fn is_error(fetched: &Fetched) -> bool {
    let status = match fetched {
        Fetched::Stored { response, .. } => response.status(),
        Fetched::Passed { response, .. } => response.status(),
        Fetched::Confirmed { .. } => return false,
    };
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// The stored response, which upstream has just confirmed.
fn confirmed(
    connection: &Connection,
    order: &Order,
    facts: &RequestFacts,
    hit: &Hit,
    stored: StoredResponse,
    forward: Forward,
    note: &mut Note,
) -> Answer {
    note.outcome(Outcome::Revalidated);
    let now = connection.worker.common.now();
    let served = hit::Served {
        age: stored.facts.age(now),
        ttl: stored.facts.ttl(now),
        handling: Handling::Forwarded(forward),
        upstream_status: Some(StatusCode::NOT_MODIFIED),
        collapsed: false,
    };
    hit::answer(connection, order, facts, hit, stored, served)
}

/// The stored response, because upstream failed.
fn stand_in(
    connection: &Connection,
    order: &Order,
    facts: &RequestFacts,
    known: &Known,
    forward: Forward,
) -> Answer {
    let now = connection.worker.common.now();
    let stored = known.stored.clone();
    let served = hit::Served {
        age: stored.facts.age(now),
        ttl: stored.facts.ttl(now),
        handling: Handling::Forwarded(forward),
        upstream_status: None,
        collapsed: false,
    };
    hit::answer(connection, order, facts, &known.hit, stored, served)
}

/// Has a stale response validated that is served meanwhile.
pub(super) fn revalidate(
    connection: &Rc<Connection>,
    order: &Order,
    key: &[u8],
    hit: &Hit,
    stored: &StoredResponse,
) {
    let known = Known {
        hit: hit.clone(),
        stored: stored.clone(),
    };
    let replaces = Some(hit.clone());
    let order = fetch::Order {
        informational: None,
        background: true,
        ..fetch_order(connection, order, key.to_vec(), Some(known), replaces)
    };
    fetch::revalidate_in_background(&connection.worker, order);
}
