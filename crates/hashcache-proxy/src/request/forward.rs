//! Requests that go upstream: misses, validations, and what is only passed on.

use std::rc::Rc;
use std::sync::Arc;

use hashcache::{Follower, Hit};
use hashcache_http::{
    ByteRange, CacheStatus, ContentRange, Forward, Handling, MethodKind, NotStored, OnError,
    RangeAnswer, RequestFacts, Reuse, Target, Upgrading, answer_range, asks_for_upgrade,
    invalidated, invalidated_groups, is_unsafe, reuse,
};
use http::header::{AGE, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::body::Body;
use super::note::Note;
use super::{Answer, Connection, connect, endpoint, hit, partial, ranged};
use crate::access_log::Outcome;
use crate::collapse::{Flight, Part, SharedResponse, Told, listen};
use crate::failure::Failure;
use crate::fetch::{self, Extent, Fetched, Known};
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
    pub(super) body: Option<Incoming>,
    /// Times that what was stored for it could not be completed.
    pub(super) tries: u8,
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
            tries: 0,
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
        tries: _,
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
        let (status, fields) = (response.status(), response.headers());
        let targets = invalidated(&method, &target, status, fields);
        let groups = invalidated_groups(&method, status, fields);
        worker.common.purger.invalidate(&targets, &groups);
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
    if let Some(range) = ranged::wanted(&order, facts) {
        let miss = ranged::miss(
            connection,
            order,
            key,
            facts,
            (forward, replaces),
            range,
            note,
        );
        return Box::pin(miss).await;
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
    range: Option<HeaderValue>,
) -> fetch::Order {
    fetch::Order {
        client: connection.client.ip(),
        endpoint: endpoint(connection, &order.target),
        target: order.target.clone(),
        key,
        fields: order.fields.clone(),
        version: order.version,
        known,
        replaces,
        extent: range.map_or(Extent::AsAsked, Extent::Around),
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
    lead_range(
        connection,
        order,
        key,
        (forward, replaces),
        flight,
        None,
        note,
    )
    .await
}

/// The same for a range around the one the client wants.
pub(super) async fn lead_range(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
    (forward, replaces): (Forward, Option<Hit>),
    flight: Option<Flight>,
    range: Option<HeaderValue>,
    note: &mut Note,
) -> Answer {
    note.outcome(outcome_of(forward));
    let fetched = fetch_order(connection, &order, key.clone(), None, replaces, range);
    let fetched = begin(connection, fetched, flight, note).await?;
    fetched_answer(connection, order, key, fetched, forward, note).await
}

/// A response from upstream, stored or not.
async fn fetched_answer(
    connection: &Rc<Connection>,
    order: Order,
    key: Vec<u8>,
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
            let facts = RequestFacts::of(&order.method, &order.fields);
            let found = partial::Found {
                hit: &hit,
                stored: *stored,
                served,
            };
            let answer = partial::answer(connection, order, key, &facts, found, note).await;
            // Only now: until the answer has a follower of its own, this one keeps the fetch going.
            drop(awaited);
            answer
        }
        Fetched::NotInParts => {
            Box::pin(pass_or_store(connection, order, key, forward, None, note)).await
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
            let body = Body::passed(body, note.tally(), metrics);
            Ok(Response::from_parts(head, body))
        }
        // Only a validation can be confirmed, and `validate` has looked after that.
        Fetched::Confirmed { .. } => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(response)
        }
    }
}

/// A response of `length` bytes that is being stored, or the part of it that the follower begins
/// with.
fn following(
    response: Response<Follower>,
    part: Option<ByteRange>,
    length: Option<u64>,
) -> Response<Body> {
    let Some((part, whole)) = part.zip(length) else {
        return response.map(|follower| Body::following(follower, length));
    };
    let mut response = response.map(|follower| Body::following(follower, Some(part.length())));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let fields = response.headers_mut();
    fields.insert(CONTENT_LENGTH, HeaderValue::from(part.length()));
    fields.insert(CONTENT_RANGE, ContentRange::of(part, whole).to_value());
    response
}

fn detail(why: NotStored) -> &'static str {
    why.as_str()
}

/// How far ahead of a fetch a part may begin that is waited for.
const PART_AHEAD: u64 = 4 << 20;

/// Reads along with another request's fetch, if its response answers this one too.
pub(super) fn follow(
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
    let part = match shared.length.filter(|_| facts.has_range) {
        Some(length) => {
            match answer_range(
                &order.fields,
                &stored.facts,
                &stored.fields,
                length,
                common.now(),
            ) {
                RangeAnswer::Part(part) => Some(part),
                RangeAnswer::Whole => None,
                RangeAnswer::Parts(_) | RangeAnswer::NotSatisfiable => return None,
            }
        }
        None => None,
    };
    let start = part.map_or(0, |part| part.first);
    if !shared.ignores_range && start > shared.stream.written().saturating_add(PART_AHEAD) {
        return None;
    }
    let follower = shared.stream.follow(start)?;
    note.outcome(Outcome::Collapsed);
    let mut response = Response::new(follower);
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
    Some(Ok(following(response, part, shared.length)))
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
        let decision = super::reuse_hit(connection, facts, &hit, &stored);
        if let Reuse::Fresh { age, ttl } = decision {
            note.outcome(Outcome::Collapsed);
            let served = hit::Served {
                collapsed: true,
                ..hit::Served::fresh(age, ttl)
            };
            let found = partial::Found {
                hit: &hit,
                stored,
                served,
            };
            return partial::answer(connection, order, key, facts, found, note).await;
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
    let range = ranged::around(&order, facts);
    let asked = Some(known.clone());
    let fetched = fetch_order(connection, &order, key.clone(), asked, replaces, range);
    let fetched = begin(connection, fetched, flight, note).await;
    let Known { hit, stored: old } = &known;
    match fetched {
        Ok(Fetched::Confirmed { stored, peer }) => {
            note.upstream(Some(peer));
            note.outcome(Outcome::Revalidated);
            let upstream_status = Some(StatusCode::NOT_MODIFIED);
            let found = found(connection, hit, stored, forward, upstream_status);
            partial::answer(connection, order, key, facts, found, note).await
        }
        Ok(fetched) if on_error == OnError::ServeIfError && is_error(&fetched) => {
            note.outcome(Outcome::StaleIfError);
            let found = found(connection, hit, old.clone(), forward, None);
            partial::answer(connection, order, key, facts, found, note).await
        }
        Ok(fetched) => fetched_answer(connection, order, key, fetched, forward, note).await,
        Err(failure) if on_error != OnError::Fail => {
            note.outcome(Outcome::StaleIfError);
            note.mention(&failure);
            let found = found(connection, hit, old.clone(), forward, None);
            partial::answer(connection, order, key, facts, found, note).await
        }
        Err(failure) => Err(failure),
    }
}

fn is_error(fetched: &Fetched) -> bool {
    let status = match fetched {
        Fetched::Stored { response, .. } => response.status(),
        Fetched::Passed { response, .. } => response.status(),
        Fetched::Confirmed { .. } | Fetched::Begun { .. } | Fetched::NotInParts => return false,
    };
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// The stored response, which upstream has just confirmed (`upstream_status`) or could not.
fn found<'a>(
    connection: &Connection,
    hit: &'a Hit,
    stored: StoredResponse,
    forward: Forward,
    upstream_status: Option<StatusCode>,
) -> partial::Found<'a> {
    let now = connection.worker.common.now();
    let served = hit::Served {
        handling: Handling::Forwarded(forward),
        upstream_status,
        ..hit::Served::fresh(stored.facts.age(now), stored.facts.ttl(now))
    };
    partial::Found {
        hit,
        stored,
        served,
    }
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
        ..fetch_order(connection, order, key.to_vec(), Some(known), replaces, None)
    };
    fetch::revalidate_in_background(&connection.worker, order);
}
