//! Validation: what is stored and stale, or not to be used unasked, is put to upstream (RFC 9111
//! 4.3).
//!
//! Called by the loop in `request` for a stored response that may not be served as it is. A GET is
//! made conditional; a HEAD goes as it came, and what it brings is compared with what is stored.
//!
//! Invariant: a stored response stands in for an error only where `reuse` said so.

use hashcache::Hit;
use hashcache_http::{Forward, MethodKind, OnError};
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::hit::found;
use super::miss::{again, begin, fetch_spec, fetched};
use super::own_fields::outcome_of;
use super::transaction::{Next, Transaction};
use super::{pass, range_miss};
use crate::access_log::Outcome;
use crate::collapse::{CollapseMsg, Role, wait_for_message};
use crate::failure::Failure;
use crate::fetch::background::revalidate_in_background;
use crate::fetch::{self, Fetched, SelectedResponse, is_error};
use crate::store::{ObjectPlace, StoredResponse};

/// Asks upstream whether a stored response is still good.
pub(super) async fn validate(
    transaction: &mut Transaction<'_>,
    selected: SelectedResponse,
    (forward, on_error): (Forward, OnError),
) -> Result<Next, Failure> {
    let is_get = transaction.facts.method == MethodKind::Get;
    if transaction.facts.method == MethodKind::Head {
        return head(transaction, selected, (forward, on_error)).await;
    }
    let place = selected.place.clone();
    let collapse = &transaction.connection.worker.common.collapse;
    let shares = is_get && !transaction.request.fields.contains_key(AUTHORIZATION);
    let leader = match shares.then(|| collapse.join(&place.name, Instant::now())) {
        Some(Role::Leader(leader)) => Some(leader),
        // A client that insists on the origin's answer asks itself.
        Some(Role::Follower(receiver)) if forward == Forward::Stale => {
            match wait_for_message(receiver, transaction.wait_time()).await {
                CollapseMsg::Shared(shared) if transaction.may_share() => {
                    if let Some(answer) = follow(transaction, &shared) {
                        return Ok(Next::Answer(answer));
                    }
                }
                CollapseMsg::Validated => return Ok(again(transaction, place, forward).await),
                _ => {}
            }
            None
        }
        _ => None,
    };
    transaction.log_entry.set_outcome(outcome_of(forward));
    let replaces = Some(selected.hit.clone());
    let range = range_miss::around(&transaction.request, &transaction.facts);
    let spec = fetch::FetchSpec {
        selected: Some(selected.clone()),
        on_error,
        ..fetch_spec(transaction, place.clone(), replaces, range)
    };
    match begin(transaction, spec, leader).await {
        Ok(came) if on_error == OnError::ServeIfError && is_failure(&came) => {
            Ok(stale(transaction, forward, selected))
        }
        Ok(came) => Ok(fetched(transaction, place, came, forward)),
        Err(failure) if on_error != OnError::Fail => {
            transaction.log_entry.set_error(&failure);
            Ok(stale(transaction, forward, selected))
        }
        Err(failure) => Err(failure),
    }
}

/// The stored response, because upstream failed.
fn stale(transaction: &mut Transaction<'_>, forward: Forward, selected: SelectedResponse) -> Next {
    transaction.log_entry.set_outcome(Outcome::StaleIfError);
    let SelectedResponse {
        hit, stored, place, ..
    } = selected;
    let connection = transaction.connection;
    Next::Serve(found(connection, (hit, stored, place), forward, None))
}

fn is_failure(fetched: &Fetched) -> bool {
    matches!(fetched, Fetched::Passed { response, .. } if is_error(response.status()))
}

/// Sends a HEAD upstream; `pass` compares its answer with what is stored.
async fn head(
    transaction: &mut Transaction<'_>,
    selected: SelectedResponse,
    (forward, on_error): (Forward, OnError),
) -> Result<Next, Failure> {
    let answer = pass::pass(transaction.without_body(), forward).await;
    match answer {
        Err(failure) if on_error != OnError::Fail => transaction.log_entry.set_error(&failure),
        Ok(response) if on_error == OnError::ServeIfError && is_error(response.status()) => {}
        answer => return answer.map(Next::Answer),
    }
    Ok(stale(transaction, forward, selected))
}

/// Has a stale response validated that is served meanwhile.
pub(super) fn revalidate(
    transaction: &Transaction<'_>,
    place: &ObjectPlace,
    hit: &Hit,
    stored: &StoredResponse,
) {
    let selected = SelectedResponse {
        hit: hit.clone(),
        stored: stored.clone(),
        place: place.clone(),
        alias: None,
    };
    let replaces = Some(hit.clone());
    let spec = fetch::FetchSpec {
        informational: None,
        background: true,
        selected: Some(selected),
        // What may be served for a while yet does not give way to an error.
        on_error: OnError::ServeIfError,
        ..fetch_spec(transaction, place.clone(), replaces, None)
    };
    revalidate_in_background(&transaction.connection.worker, spec);
}
