//! Requests for a range of what is not stored.
//!
//! Upstream is asked for the range rounded out to pages of 64 KiB, which begins an
//! incomplete object; the answer is then made from that, like any other. Who asks for ranges
//! of the same object meanwhile waits for this first answer and not for its content: what they
//! lack they fetch as pieces.
//!
//! Called by `miss` and `validate`. Invariant: an answer that cannot be put together from parts is
//! asked for again with exactly the client's own Range and not stored; for a while after that,
//! others do not even try.

use hashcache_http::{MethodKind, RangeSpec, RequestFacts, parse_range};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::transaction::{ClientRequest, Fetch, ForwardReason, Next, Transaction};
use crate::collapse::{CollapseMsg, Role, wait_for_message};
use crate::store::ObjectPlace;

const PAGE: u64 = hashcache::PAGE as u64;

/// The range to ask for, if this request may begin an object with it.
pub(super) fn wanted(transaction: &Transaction<'_>) -> Option<HeaderValue> {
    let (request, facts) = (&transaction.request, &transaction.facts);
    let plain = request.body.is_none()
        && transaction.tries < 2
        && !facts.has_condition
        && !facts.has_origin_condition
        && !facts.directives.no_store
        && !request.fields.contains_key(AUTHORIZATION);
    around(request, facts).filter(|_| plain)
}

/// Whole pages around the first range that a request asks for.
pub(super) fn around(request: &ClientRequest, facts: &RequestFacts) -> Option<HeaderValue> {
    if facts.method != MethodKind::Get || !facts.has_range {
        return None;
    }
    let first = parse_range(&request.fields)?.into_iter().next()?;
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

/// Joins the fetch of another request for the range, or says which one to begin.
pub(super) async fn miss(
    transaction: &mut Transaction<'_>,
    place: ObjectPlace,
    reason: ForwardReason,
    range: HeaderValue,
) -> Next {
    let collapse = &transaction.connection.worker.common.collapse;
    // A fetch of the whole brings this range too; an object of our own would take its place.
    let receiver = match collapse.under_way(&place.name) {
        Some(receiver) => receiver,
        None => {
            let mut ranges_key = place.name.clone();
            // No URL holds this byte.
            ranges_key.push(0);
            match collapse.join(&ranges_key, Instant::now()) {
                Role::Leader(leader) => {
                    return Next::Fetch(Fetch {
                        leader: Some(leader),
                        range: Some(range),
                        ..Fetch::alone(place, reason)
                    });
                }
                Role::Follower(receiver) => receiver,
                Role::Alone => return transaction.fetch_alone(place, reason),
            }
        }
    };
    match wait_for_message(receiver, transaction.wait_time()).await {
        CollapseMsg::Validated => Next::LookUp(place.key),
        CollapseMsg::Shared(shared) => match follow(transaction, &shared) {
            Some(answer) => Next::Answer(answer),
            None => transaction.fetch_alone(place, reason),
        },
        CollapseMsg::NotShared | CollapseMsg::Wait => transaction.fetch_alone(place, reason),
    }
}
