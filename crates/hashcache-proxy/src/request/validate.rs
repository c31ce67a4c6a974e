//! Validation of stored responses that are stale, or that must not be used without a request to
//! upstream (RFC 9111 4.3).
//!
//! Called by the loop in `request` for a stored response that may not be served as it is. A GET
//! becomes conditional. A HEAD is forwarded unchanged, and the response is compared with the stored
//! response.
//!
//! Invariant: a stored response replaces an error only where `reuse` allows it.

use hashcache::Hit;
use hashcache_base::failure::Failure;
use hashcache_http::{FactFlags, Forward, MethodKind, OnError};
use hashcache_store::collapse::{Followed, Role, Succession};
use hashcache_store::{ObjectPlace, StoredResponse};
use hashcache_upstream::pinned::Pinning;
use http::StatusCode;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::hit::found;
use super::miss::{again, begin, fetch_spec, fetched};
use super::own_fields::outcome_of;
use super::transaction::{Found, Next, Served, Transaction};
use super::{pass, range_miss};
use crate::access_log::Outcome;
use crate::fetch::background::revalidate_in_background;
use crate::fetch::{Cause, Fetched, SelectedResponse, is_error};

/// Validates a stored response at upstream.
pub(super) async fn validate(
    transaction: &mut Transaction<'_>,
    selected: Box<SelectedResponse>,
    (forward, on_error): (Forward, OnError),
) -> Result<Next, Failure> {
    let is_get = transaction.facts.method == MethodKind::Get;
    if transaction.facts.method == MethodKind::Head {
        return head(transaction, selected, forward, on_error).await;
    }
    let place = selected.place.clone();
    let collapse = &transaction.connection.worker.common.collapse;
    // The response to a request with `no-store` is not stored, so nobody else can use it.
    let shares = is_get
        && !transaction.facts.directives.no_store
        && !transaction.request.fields.contains_key(AUTHORIZATION);
    // RFC 9111, section 5.2.2.4: each request needs a separate validation, so waiting for another
    // request's validation would be useless.
    let is_no_cache = selected.stored.facts.flags.has(FactFlags::NO_CACHE);
    let since = transaction.connection.worker.common.now();
    let leader =
        match shares.then(|| collapse.join(&place.name, transaction.requester(), Instant::now())) {
            Some(Role::Leader(leader)) => Some(leader),
            // A client that insists on the origin's answer (`no-cache`) sends its own request.
            Some(Role::Follower(follower)) if forward == Forward::Stale && !is_no_cache => {
                let times = transaction.wait_times();
                let fields = &transaction.request.fields;
                match follower.wait(times, Succession::Allowed, fields).await {
                    Followed::Shared(shared) if transaction.may_share() => {
                        if let Some(answer) = follow(transaction, &shared, since) {
                            return Ok(Next::Answer(answer));
                        }
                        None
                    }
                    Followed::Validated(requester) => {
                        return Ok(again(transaction, place, forward, (since, requester)).await);
                    }
                    Followed::Failed(failure) if may_replace(on_error, &failure) => {
                        transaction.log_entry.set_error(&failure);
                        return Ok(stale(transaction, forward, selected));
                    }
                    Followed::Failed(failure) => return Err(failure),
                    Followed::Leader(leader) => Some(leader),
                    Followed::Shared(_) | Followed::Alone => None,
                }
            }
            _ => None,
        };
    transaction.log_entry.set_outcome(outcome_of(forward));
    let replaces = Some(selected.hit.clone());
    let stored_fields = selected.stored.fields.clone();
    let range = range_miss::around(&transaction.request, &transaction.facts);
    let stored_fields = (replaces, Some(&stored_fields));
    let mut spec = fetch_spec(transaction, place.clone(), stored_fields, range);
    spec.selected = Some(selected.clone());
    spec.on_error = on_error;
    match begin(transaction, spec, leader).await {
        Ok(answer) if on_error == OnError::ServeIfError && is_failure(&answer) => {
            Ok(stale(transaction, forward, selected))
        }
        Ok(answer) => Ok(fetched(transaction, place, answer, forward)),
        Err(failure) if on_error != OnError::Fail => {
            transaction.log_entry.set_error(&failure);
            Ok(stale(transaction, forward, selected))
        }
        Err(failure) => Err(failure),
    }
}

/// Returns true if the stored response may be served although the leader's request has failed in
/// this way.
fn may_replace(on_error: OnError, failure: &Failure) -> bool {
    match on_error {
        OnError::Fail => false,
        OnError::ServeIfError => match failure {
            Failure::OriginStatus { status } => StatusCode::from_u16(*status).is_ok_and(is_error),
            _ => true,
        },
        OnError::ServeIfUnreachable => !matches!(failure, Failure::OriginStatus { .. }),
    }
}

/// Serves the stored response, because upstream failed.
fn stale(
    transaction: &mut Transaction<'_>,
    forward: Forward,
    selected: Box<SelectedResponse>,
) -> Next {
    transaction.log_entry.set_outcome(Outcome::StaleIfError);
    let SelectedResponse {
        hit, stored, place, ..
    } = *selected;
    let connection = transaction.connection;
    Next::Serve(found(connection, (hit, stored, place), forward, None))
}

/// Serves the stored response without a validation, because a quota is used up.
pub(super) fn without_origin(
    transaction: &mut Transaction<'_>,
    SelectedResponse {
        hit, stored, place, ..
    }: SelectedResponse,
) -> Next {
    transaction.log_entry.set_outcome(Outcome::StaleHit);
    let now = transaction.connection.worker.common.now();
    let served = Served::fresh(stored.facts.age(now), stored.facts.ttl(now));
    Next::Serve(Box::new(Found {
        hit,
        stored,
        place,
        served,
    }))
}

fn is_failure(fetched: &Fetched) -> bool {
    matches!(fetched, Fetched::Passed { response, .. } if is_error(response.status()))
}

/// Forwards a HEAD; `pass` compares the response with the stored response.
async fn head(
    transaction: &mut Transaction<'_>,
    selected: Box<SelectedResponse>,
    forward: Forward,
    on_error: OnError,
) -> Result<Next, Failure> {
    let answer = pass::pass(transaction.without_body(), forward).await;
    match answer {
        Err(failure) if on_error != OnError::Fail => transaction.log_entry.set_error(&failure),
        Ok(response) if on_error == OnError::ServeIfError && is_error(response.status()) => {}
        answer => return answer.map(Next::Answer),
    }
    Ok(stale(transaction, forward, selected))
}

/// Validates a stale response in the background while it is served.
pub(super) fn revalidate(
    transaction: &Transaction<'_>,
    place: &ObjectPlace,
    hit: &Hit,
    stored: &StoredResponse,
) {
    let selected = Box::new(SelectedResponse {
        hit: hit.clone(),
        stored: stored.clone(),
        place: place.clone(),
        alias: None,
    });
    let replaces = Some(hit.clone());
    let of_stored = (replaces, Some(&stored.fields));
    let mut spec = fetch_spec(transaction, place.clone(), of_stored, None);
    spec.informational = None;
    spec.pinning = Pinning::None;
    spec.cause = Cause::Revalidation;
    spec.selected = Some(selected);
    // A response that may be served stale is worth more than an error.
    spec.on_error = OnError::ServeIfError;
    let limits = transaction.request.limits.as_ref();
    revalidate_in_background(&transaction.connection.worker, spec, limits);
}
