//! Requests that no stored response answers: they follow the fetch of another request, or start a
//! fetch.
//!
//! Called by the loop in `request`; `validate` fetches with the same functions. [`fetched`] turns
//! the result of a fetch into the next step.

use std::rc::Rc;

use hashcache::Hit;
use hashcache_base::failure::Failure;
use hashcache_base::share;
use hashcache_base::task::spawn_local;
use hashcache_http::{CacheStatus, Forward, Handling, OnError, Reuse, Seconds, UnixTime};
use hashcache_store::collapse::{Followed, Leader, Requester, Role, Succession};
use hashcache_store::{ObjectPlace, StoreLookup, StoredResponse, look_up};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::follow::{follow, following, may_follow_stale};
use super::hit::{found, reuse_hit};
use super::own_fields::{add_own, offer_login, outcome_of, passed};
use super::page_object::note_object;
use super::range_miss;
use super::stored_form::note_pages;
use super::transaction::{Fetch, ForwardReason, Found, Next, Served, Transaction};
use crate::access_log::Outcome;
use crate::fetch::{self, Cause, Extent, FetchTask, Fetched, SelectedResponse};
use crate::metrics::Limit;

/// Follows the fetch of another request, or returns the fetch to start.
///
/// # Errors
/// Only stored responses are wanted; or the fetch that it waited for has failed, as its own would.
pub(super) async fn miss(
    transaction: &mut Transaction<'_>,
    place: ObjectPlace,
    reason: ForwardReason,
) -> Result<Next, Failure> {
    if transaction.facts.directives.only_if_cached {
        return Err(Failure::NotCached);
    }
    if let Some(range) = range_miss::wanted(transaction) {
        return range_miss::miss(transaction, place, reason, range).await;
    }
    if !transaction.may_share() {
        return Ok(transaction.fetch_alone(place, reason));
    }
    let collapse = &transaction.connection.worker.common.collapse;
    let lead = |leader, place, reason| {
        Next::Fetch(Fetch {
            leader: Some(leader),
            ..Fetch::alone(place, reason)
        })
    };
    let follower = match collapse.join(&place.name, transaction.requester(), Instant::now()) {
        Role::Leader(leader) => return Ok(lead(leader, place, reason)),
        Role::Alone => return Ok(Next::Fetch(Fetch::alone(place, reason))),
        Role::Follower(follower) => follower,
    };
    let since = transaction.connection.worker.common.now();
    let times = transaction.wait_times();
    let fields = &transaction.request.fields;
    Ok(
        match follower.wait(times, Succession::Allowed, fields).await {
            Followed::Shared(shared) => match follow(transaction, &shared, since) {
                Some(answer) => Next::Answer(answer),
                None => Next::Fetch(Fetch::alone(place, reason)),
            },
            Followed::Validated(requester) => {
                again(transaction, place, reason.forward, (since, requester)).await
            }
            Followed::Failed(failure) => return Err(failure),
            Followed::Leader(leader) => lead(leader, place, reason),
            Followed::Alone => Next::Fetch(Fetch::alone(place, reason)),
        },
    )
}

/// Looks up again after another request's validation, for which this request has waited since the
/// time `since`. If that does not help, fetches alone.
pub(super) async fn again(
    transaction: &mut Transaction<'_>,
    place: ObjectPlace,
    forward: Forward,
    (since, requester): (UnixTime, Requester),
) -> Next {
    let connection = transaction.connection;
    let found = look_up(
        &connection.worker.cache,
        place.key.clone(),
        &transaction.request.fields,
    )
    .await;
    if let StoreLookup::Found {
        hit, stored, place, ..
    } = found
        && let Some((age, ttl)) = usable_by_follower(transaction, &hit, &stored, since, requester)
    {
        transaction.log_entry.set_outcome(Outcome::Collapsed);
        let served = Served {
            collapsed: true,
            ..Served::fresh(age, ttl)
        };
        return Next::Serve(Box::new(Found {
            hit,
            stored,
            place,
            served,
        }));
    }
    Next::Fetch(Fetch::alone(place, ForwardReason::from_forward(forward)))
}

/// The age and the remaining lifetime of a stored response, if a request that has waited for its
/// validation since the time `since` may use it.
fn usable_by_follower(
    transaction: &Transaction<'_>,
    hit: &Hit,
    stored: &StoredResponse,
    since: UnixTime,
    requester: Requester,
) -> Option<(Seconds, i64)> {
    let decision = reuse_hit(transaction, hit, stored);
    if let Reuse::Fresh { age, ttl } = decision {
        return Some((age, ttl));
    }
    let validated_meanwhile = stored.facts.response_time >= since;
    (validated_meanwhile && may_follow_stale(transaction, decision, &stored.facts, requester)).then(
        || {
            let now = transaction.connection.worker.common.now();
            (stored.facts.age(now), stored.facts.ttl(now))
        },
    )
}

/// Fetches, for all waiting requests or for this request only.
pub(super) async fn fetch(
    transaction: &mut Transaction<'_>,
    Fetch {
        place,
        reason,
        leader,
        range,
    }: Fetch,
) -> Result<Next, Failure> {
    let ForwardReason {
        forward,
        replaces,
        choices,
    } = reason;
    transaction.log_entry.set_outcome(outcome_of(forward));
    let mut spec = fetch_spec(transaction, place.clone(), (replaces, None), range);
    spec.choices = choices;
    let answer = begin(transaction, spec, leader).await?;
    Ok(fetched(transaction, place, answer, forward))
}

/// The fetch for a request, with the usual settings; `stored` are the fields of the response to
/// validate.
pub(super) fn fetch_spec(
    transaction: &Transaction<'_>,
    place: ObjectPlace,
    (replaces, stored): (Option<Hit>, Option<&HeaderMap>),
    range: Option<HeaderValue>,
) -> Box<fetch::FetchSpec> {
    let (connection, request) = (transaction.connection, &transaction.request);
    Box::new(fetch::FetchSpec {
        ends: connection.ends(),
        share: connection.allowance.share().clone(),
        space: request.space,
        route: request.site_route(&connection.worker, stored),
        siblings: transaction.siblings(),
        target: request.target.clone(),
        place,
        fields: request.fields.clone(),
        version: request.version,
        noted_group: request.noted_group,
        selected: None,
        choices: None,
        on_error: OnError::Fail,
        replaces,
        extent: range.map_or(Extent::AsAsked, Extent::Around),
        informational: Some(transaction.informational()),
        pinning: request.pinning(connection),
        cause: match &request.linked {
            Some(linked) if linked.follows_hint() => Cause::RequestByHint,
            _ => Cause::Request,
        },
    })
}

/// Starts a fetch in a separate task and waits for the result. It is a task, because followers may
/// need the fetch after this request's client has left.
pub(super) async fn begin(
    transaction: &mut Transaction<'_>,
    spec: Box<fetch::FetchSpec>,
    leader: Option<Leader>,
) -> Result<Fetched, Failure> {
    let (connection, log_entry) = (transaction.connection, &mut *transaction.log_entry);
    let (reply, answer) = oneshot::channel();
    let worker = Rc::clone(&connection.worker);
    let client = Some(connection.allowance.share());
    let Some(memory) = share::reserve_for(client, &worker.cache, FETCH_BYTES) else {
        worker.metrics.limit(Limit::Memory);
        return Err(NO_MEMORY);
    };
    let task = FetchTask {
        worker,
        spec,
        leader,
        reply,
        byte_count: log_entry.byte_count(),
    };
    let fetching = Box::pin(task.run());
    let size = size_of_val(&*fetching) as u64;
    debug_assert!(size <= FETCH_BYTES, "{size} bytes");
    spawn_local(async move {
        fetching.await;
        drop(memory);
    });
    match answer.await {
        Ok(Ok(fetched)) => Ok(fetched),
        Ok(Err(failed)) => {
            log_entry.set_next_hop(failed.next_hop);
            Err(failed.failure)
        }
        Err(_) => Err(Failure::Internal("a fetch ended without a response")),
    }
}

/// The next step after a fetch, for stored and other responses.
pub(super) fn fetched(
    transaction: &mut Transaction<'_>,
    place: ObjectPlace,
    fetched: Fetched,
    forward: Forward,
) -> Next {
    let connection = transaction.connection;
    let log_entry = &mut *transaction.log_entry;
    let mut status = CacheStatus::from_handling(Handling::Forwarded(forward));
    match fetched {
        Fetched::Stored {
            response,
            facts,
            is_stored,
            follower,
            length,
            part,
            trailers,
            next_hop,
        } => {
            log_entry.set_next_hop(Some(next_hop));
            let now = connection.worker.common.now();
            status.stored = is_stored;
            status.ttl = Some(facts.ttl(now));
            let (mut head, ()) = response.into_parts();
            let request = &transaction.request;
            if is_stored && request.linked.is_none() && head.status == StatusCode::OK {
                let (of, stored) = ((request.space, &request.target), (&head.headers, length));
                note_object(connection, of, &request.fields, stored);
            }
            if follower.is_in_pages() {
                note_pages(connection, &transaction.request, &mut head.headers);
            }
            add_own(connection, (&mut head.headers, head.version), status);
            let is_one_client = transaction.request.is_one_client(connection);
            offer_login(connection, is_one_client, &mut head.headers);
            let answer = following(Response::from_parts(head, follower), part, length);
            Next::Answer(answer.map(|body| match part {
                Some(_) => body,
                None => body.with_trailers(trailers),
            }))
        }
        Fetched::Begun {
            hit,
            stored,
            place,
            awaited,
            next_hop,
        } => {
            log_entry.set_next_hop(Some(next_hop));
            let now = connection.worker.common.now();
            let served = Served {
                handling: Handling::Forwarded(forward),
                stored: true,
                ..Served::fresh(stored.facts.age(now), stored.facts.ttl(now))
            };
            // Keeps the fetch running until the response has its own follower.
            transaction.awaited = Some(awaited);
            Next::Serve(Box::new(Found {
                hit,
                stored: *stored,
                place,
                served,
            }))
        }
        Fetched::NotInParts => transaction.fetch_alone(place, ForwardReason::from_forward(forward)),
        Fetched::Passed {
            response,
            reason,
            next_hop,
            rest,
        } => {
            status.detail = Some(reason.as_str());
            passed(transaction, (*response, rest), next_hop, status)
        }
        Fetched::Confirmed { selected, next_hop } => {
            log_entry.set_next_hop(Some(next_hop));
            log_entry.set_outcome(Outcome::Revalidated);
            let SelectedResponse {
                hit, stored, place, ..
            } = *selected;
            let status = Some(StatusCode::NOT_MODIFIED);
            Next::Serve(found(connection, (hit, stored, place), forward, status))
        }
    }
}

/// Memory of a fetch without the connection and the content: the future, and the future of the
/// request while it is sent.
const FETCH_BYTES: u64 = 24 << 10;

const NO_MEMORY: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for a request to the origin",
};
