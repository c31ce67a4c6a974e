//! Answers from a stored response, all or part of which may have to be fetched.
//!
//! What a hit lacks for an answer is asked for before the answer's head is sent: an origin that no
//! longer has the stored version is noticed in time to answer from the new one. When a later piece
//! fails in this way, the answer breaks off; it is never finished from another version.
//!
//! What is missing of an object whose origin does not know ranges is fetched by fetching all of it.
//!
//! Called by `request` for every hit. Cost, when nothing is missing: a look at the index a span.

use std::rc::Rc;

use hashcache::Hit;
use hashcache_http::{Forward, Handling, RequestFacts, if_range_value};
use tokio::time::Instant;

use super::assembly::{Assembly, Prepared};
use super::body::Body;
use super::forward::{self, Order, Why};
use super::hit::{self, Served};
use super::note::Note;
use super::{Answer, Connection, endpoint};
use crate::access_log::Outcome;
use crate::failure::Failure;
use crate::fetch::piece::Whole;
use crate::store::{Place, StoredResponse};

/// A stored response that satisfies a request, and what is known of its use.
pub(super) struct Found<'a> {
    pub(super) hit: &'a Hit,
    pub(super) stored: StoredResponse,
    pub(super) served: Served,
}

/// The answer to a request that a stored response satisfies.
pub(super) async fn answer(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    facts: &RequestFacts,
    found: Found<'_>,
    note: &mut Note,
) -> Answer {
    let Found {
        hit,
        stored,
        mut served,
    } = found;
    let worker = &connection.worker;
    let length = hit.content_len().unwrap_or(0);
    let draft = hit::draft(worker.common.now(), &order, facts, length, &stored);
    let lacks = draft.ranges().any(|range| !hit.holes(range).is_empty());
    let in_one_piece = draft.parts.is_empty() || hit.whole_content().is_some();
    let validator = match in_one_piece && !lacks {
        true => None,
        false => if_range_value(&stored.facts, &stored.fields),
    };
    // What memory takes for stored can turn out to be gone or damaged when it is read. Where the
    // origin can be asked for it, the answer need not break off.
    let mends = validator.is_some() && !facts.directives.only_if_cached;
    if !lacks
        && !mends
        && (hit.is_complete() || draft.parts.is_empty())
        && let Some(body) = hit::body(&draft, hit)
    {
        return Ok(draft.with(connection, body, served));
    }
    if lacks && facts.directives.only_if_cached {
        return Err(Failure::NotCached);
    }
    let pieces = &worker.common.collapse.pieces;
    if lacks && order.tries == 0 && pieces.comes_whole_only(&place.name, Instant::now()) {
        let order = Order { tries: 1, ..order };
        let why = Why {
            replaces: Some(hit.clone()),
            ..Why::of(Forward::Partial)
        };
        let miss = forward::miss(connection, order, place, facts, why, note);
        return Box::pin(miss).await;
    }
    let whole = Whole {
        space: order.space,
        share: connection.allowance.share().clone(),
        target: order.target.clone(),
        name: place.name.clone(),
        endpoint: endpoint(&order),
        fields: order.fields.clone(),
        version: order.version,
        validator,
        stored,
    };
    let mut draft = draft;
    let parts = std::mem::take(&mut draft.parts);
    let mut assembly = Assembly::new(worker, whole, hit, parts, note.tally());
    match assembly.prepare().await {
        Ok(Prepared::Stored) => {}
        Ok(prepared) => {
            if served.handling == Handling::Hit {
                note.outcome(Outcome::Partial);
                served.handling = Handling::Forwarded(Forward::Partial);
            }
            served.stored = true;
            served.collapsed |= prepared == Prepared::Joined;
        }
        Err(_) => return Box::pin(anew(connection, order, place, facts, note)).await,
    }
    let body = Body::assembled(assembly, draft.length);
    Ok(draft.with(connection, body, served))
}

/// What was stored cannot be completed: asks for what there is now, and the last time as the client
/// did.
async fn anew(
    connection: &Rc<Connection>,
    mut order: Order,
    place: Place,
    facts: &RequestFacts,
    note: &mut Note,
) -> Answer {
    order.tries += 1;
    if order.tries >= TRIES_MAX {
        return forward::pass(connection, order, Forward::Partial, note).await;
    }
    super::look_up_and_decide(connection, order, place.key, facts, note).await
}

const TRIES_MAX: u8 = 3;
