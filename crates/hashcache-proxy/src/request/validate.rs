//! Validation: what is stored and stale, or not to be used unasked, is put to upstream (RFC 9111
//! 4.3).
//!
//! Called by `request` for a stored response that may not be served as it is. A GET is made
//! conditional; a HEAD goes as it came, and what it brings is held against what is stored.
//!
//! Invariant: a stored response stands in for an error only where `reuse` said so.

use std::rc::Rc;

use hashcache::Hit;
use hashcache_http::{Forward, Handling, MethodKind, OnError, RequestFacts, Reuse};
use http::StatusCode;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::forward::{
    self, Order, Why, begin, fetch_order, fetched_answer, lead, may_share, outcome_of,
};
use super::look_up::{LookedUp, look_up};
use super::note::Note;
use super::{Answer, Connection, hit, partial, ranged, reuse_hit};
use crate::access_log::Outcome;
use crate::collapse::{Part, Told, listen};
use crate::fetch::background::revalidate_in_background;
use crate::fetch::{self, Fetched, Known, is_error};
use crate::store::{Place, StoredResponse};

/// Looks once more after another request's validation; if that does not help, goes alone.
pub(super) async fn again(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    facts: &RequestFacts,
    why: Why,
    note: &mut Note,
) -> Answer {
    let found = look_up(connection, &place.key, &order.fields).await;
    if let LookedUp::Found {
        hit, stored, place, ..
    } = found
    {
        let decision = reuse_hit(connection, facts, &hit, &stored);
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
            return partial::answer(connection, order, place, facts, found, note).await;
        }
    }
    lead(connection, order, place, Why::of(why.forward), None, note).await
}

/// Asks upstream whether a stored response is still good.
pub(super) async fn validate(
    connection: &Rc<Connection>,
    order: Order,
    facts: &RequestFacts,
    (forward, on_error): (Forward, OnError),
    known: Known,
    note: &mut Note,
) -> Answer {
    if facts.method == MethodKind::Head {
        return head(connection, order, facts, (forward, on_error), known, note).await;
    }
    let place = known.place.clone();
    let collapse = &connection.worker.common.collapse;
    let shares = facts.method == MethodKind::Get && !order.fields.contains_key(AUTHORIZATION);
    let flight = match shares.then(|| collapse.join(&place.name, Instant::now())) {
        Some(Part::Leader(flight)) => Some(flight),
        // A client that insists on the origin's answer asks itself.
        Some(Part::Follower(told)) if forward == Forward::Stale => {
            let patience = connection.worker.patience(&order.target.authority);
            match listen(told, patience).await {
                Told::Shared(shared) if may_share(&order, facts) => {
                    if let Some(answer) = follow(connection, &order, facts, &shared, note) {
                        return answer;
                    }
                }
                Told::Again => {
                    return again(connection, order, place, facts, Why::of(forward), note).await;
                }
                _ => {}
            }
            None
        }
        _ => None,
    };
    note.outcome(outcome_of(forward));
    let replaces = Some(known.hit.clone());
    let range = ranged::around(&order, facts);
    let fetched = fetch::Order {
        known: Some(known.clone()),
        on_error,
        ..fetch_order(connection, &order, place.clone(), replaces, range)
    };
    let fetched = begin(connection, fetched, flight, note).await;
    match fetched {
        Ok(fetched) if on_error == OnError::ServeIfError && is_failure(&fetched) => {
            stale(connection, order, facts, forward, known, note).await
        }
        Ok(fetched) => fetched_answer(connection, order, place, fetched, forward, note).await,
        Err(failure) if on_error != OnError::Fail => {
            note.mention(&failure);
            stale(connection, order, facts, forward, known, note).await
        }
        Err(failure) => Err(failure),
    }
}

/// The stored response, because upstream failed.
async fn stale(
    connection: &Rc<Connection>,
    order: Order,
    facts: &RequestFacts,
    forward: Forward,
    known: Known,
    note: &mut Note,
) -> Answer {
    note.outcome(Outcome::StaleIfError);
    let Known {
        hit, stored, place, ..
    } = known;
    let found = found(connection, &hit, stored, forward, None);
    partial::answer(connection, order, place, facts, found, note).await
}

fn is_failure(fetched: &Fetched) -> bool {
    matches!(fetched, Fetched::Passed { response, .. } if is_error(response.status()))
}

/// A HEAD upstream; `forward::pass` holds its answer against what is stored.
async fn head(
    connection: &Rc<Connection>,
    order: Order,
    facts: &RequestFacts,
    (forward, on_error): (Forward, OnError),
    known: Known,
    note: &mut Note,
) -> Answer {
    let asked = order.without_body();
    let answer = forward::pass(connection, asked, forward, note).await;
    match &answer {
        Err(failure) if on_error != OnError::Fail => note.mention(failure),
        Ok(response) if on_error == OnError::ServeIfError && is_error(response.status()) => {}
        _ => return answer,
    }
    stale(connection, order, facts, forward, known, note).await
}

/// The stored response, which upstream has just confirmed (`upstream_status`) or could not.
pub(super) fn found<'a>(
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
    place: &Place,
    hit: &Hit,
    stored: &StoredResponse,
) {
    let known = Known {
        hit: hit.clone(),
        stored: stored.clone(),
        place: place.clone(),
        alias: None,
    };
    let replaces = Some(hit.clone());
    let order = fetch::Order {
        informational: None,
        background: true,
        known: Some(known),
        // What may be served for a while yet does not give way to an error.
        on_error: OnError::ServeIfError,
        ..fetch_order(connection, order, place.clone(), replaces, None)
    };
    revalidate_in_background(&connection.worker, order);
}
