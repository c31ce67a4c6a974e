//! Requests for a range of what is not stored.
//!
//! Upstream is asked for the range rounded out to pages of 64 KiB, which begins an
//! incomplete object; the answer is then made from that, like any other. Who asks for ranges
//! of the same object meanwhile waits for this first answer and not for its content: what they
//! lack they fetch as pieces.
//!
//! Called by `forward`. Invariant: an answer that cannot be put together from parts is asked for
//! again with exactly the client's own Range and not stored; for a while after that, others do not
//! even try.

use std::rc::Rc;

use hashcache_http::{MethodKind, RangeSpec, RequestFacts, parse_range};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::forward::{self, Order, Why};
use super::note::Note;
use super::{Answer, Connection};
use crate::collapse::{Part, Told, listen};
use crate::store::Place;

const PAGE: u64 = hashcache::PAGE as u64;

/// The range to ask for, if this request may begin an object with it.
pub(super) fn wanted(order: &Order, facts: &RequestFacts) -> Option<HeaderValue> {
    let plain = order.body.is_none()
        && order.tries < 2
        && !facts.has_condition
        && !facts.has_origin_condition
        && !facts.directives.no_store
        && !order.fields.contains_key(AUTHORIZATION);
    around(order, facts).filter(|_| plain)
}

/// Whole pages around the first range that a request asks for.
pub(super) fn around(order: &Order, facts: &RequestFacts) -> Option<HeaderValue> {
    if facts.method != MethodKind::Get || !facts.has_range {
        return None;
    }
    let first = parse_range(&order.fields)?.into_iter().next()?;
    let range = match first {
        RangeSpec::Between(range) => {
            let last = (range.last / PAGE).saturating_add(1).saturating_mul(PAGE) - 1;
            format!("bytes={}-{last}", range.first / PAGE * PAGE)
        }
        RangeSpec::From(first) => format!("bytes={}-", first / PAGE * PAGE),
        RangeSpec::Last(0) => return None,
        // Where the last page begins is not known yet: a page more is enough in any case.
        RangeSpec::Last(count) => format!("bytes=-{}", count.saturating_add(PAGE - 1)),
    };
    HeaderValue::try_from(range).ok()
}

/// Nothing stored answers a request for a range.
pub(super) async fn miss(
    connection: &Rc<Connection>,
    order: Order,
    place: Place,
    facts: &RequestFacts,
    why: Why,
    range: HeaderValue,
    note: &mut Note,
) -> Answer {
    let collapse = &connection.worker.common.collapse;
    let patience = connection.worker.patience(&order.target.authority);
    // A fetch of the whole brings this range too; an object of our own would take its place.
    if let Some(told) = collapse.under_way(&place.name) {
        match listen(told, patience).await {
            Told::Shared(shared) => {
                if let Some(answer) = follow(connection, &order, facts, &shared, note) {
                    return answer;
                }
            }
            Told::Again => {
                return super::look_up_and_decide(connection, order, place.key, facts, note).await;
            }
            Told::Alone | Told::Wait => {}
        }
        return forward::pass_or_store(connection, order, place, why, note).await;
    }
    let mut ranges_key = place.name.clone();
    // No URL holds this byte.
    ranges_key.push(0);
    match collapse.join(&ranges_key, Instant::now()) {
        Part::Leader(flight) => {
            let flight = Some(flight);
            forward::lead_range(connection, order, place, why, flight, Some(range), note).await
        }
        Part::Follower(told) => match listen(told, patience).await {
            Told::Again => {
                super::look_up_and_decide(connection, order, place.key, facts, note).await
            }
            Told::Shared(shared) => match follow(connection, &order, facts, &shared, note) {
                Some(answer) => answer,
                None => forward::pass_or_store(connection, order, place, why, note).await,
            },
            Told::Alone | Told::Wait => {
                forward::pass_or_store(connection, order, place, why, note).await
            }
        },
        Part::Alone => forward::pass_or_store(connection, order, place, why, note).await,
    }
}
