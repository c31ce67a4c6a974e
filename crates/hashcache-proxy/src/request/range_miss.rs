//! Requests for a range of an object that is not stored.
//!
//! The request to upstream has the range, rounded out to pages of 64 KiB. The response starts an
//! incomplete object, and the client is answered from that object like from any other. Requests for
//! other ranges of the same object wait for the head of this first response, not for the content;
//! each of them then fetches the ranges that it lacks.
//!
//! Called by `miss` and `validate`.
//!
//! If-Match and If-Unmodified-Since are sent along: only the origin knows whether they hold, and a
//! 412 is for this client only. If-Range is evaluated against the stored response afterwards.
//!
//! Invariant: if the response cannot be combined with other ranges, the request is sent again with
//! exactly the client's own Range and is not stored. For a while after that, other requests skip
//! the attempt.

use hashcache_base::failure::Failure;
use hashcache_http::{MethodKind, RangeSpec, RequestFacts, parse_range};
use hashcache_store::ObjectPlace;
use hashcache_store::collapse::{Followed, Leader, Role, Succession};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::follow::follow;
use super::transaction::{ClientRequest, Fetch, ForwardReason, Next, Transaction};

const PAGE: u64 = hashcache::PAGE as u64;

/// The range to request from upstream, if this request may start an object with it.
pub(super) fn wanted(transaction: &Transaction<'_>) -> Option<HeaderValue> {
    let (request, facts) = (&transaction.request, &transaction.facts);
    let plain = request.body.is_none()
        && transaction.tries < 2
        && !facts.has_condition
        && !facts.directives.no_store
        && !facts.has_override
        && !request.fields.contains_key(AUTHORIZATION);
    around(request, facts).filter(|_| plain)
}

/// The first range of a request, rounded out to whole pages.
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
        // The length is unknown, and so is the start of the last page: one more page is always
        // enough.
        RangeSpec::Last(count) => format!("bytes=-{}", count.saturating_add(PAGE - 1)),
    };
    HeaderValue::try_from(range).ok()
}

/// Follows the fetch of another request for the range, or returns the fetch to start.
///
/// # Errors
/// The fetch that this request waited for has failed, as a new fetch would.
pub(super) async fn miss(
    transaction: &mut Transaction<'_>,
    place: ObjectPlace,
    reason: ForwardReason,
    range: HeaderValue,
) -> Result<Next, Failure> {
    let collapse = &transaction.connection.worker.common.collapse;
    // A fetch of the whole object includes this range. An object started here would replace it.
    let (follower, succession) = match collapse.under_way(&place.name) {
        Some(follower) => (follower, Succession::Never),
        None => {
            // No URL contains a zero byte, so no other object can have this key.
            let ranges_key = [&place.name[..], &[0]].concat().into();
            match collapse.join(&ranges_key, transaction.requester(), Instant::now()) {
                Role::Leader(leader) => return Ok(leading(leader, place, reason, range)),
                Role::Follower(follower) => (follower, Succession::Allowed),
                Role::Alone => return Ok(transaction.fetch_alone(place, reason)),
            }
        }
    };
    let since = transaction.connection.worker.common.now();
    let (times, fields) = (transaction.wait_times(), &transaction.request.fields);
    let followed = follower.wait(times, succession, fields).await;
    Ok(match followed {
        Followed::Validated(_) => Next::LookUp(place.key),
        Followed::Shared(shared) => match follow(transaction, &shared, since) {
            Some(answer) => Next::Answer(answer),
            None => transaction.fetch_alone(place, reason),
        },
        Followed::Failed(failure) => return Err(failure),
        Followed::Leader(leader) => leading(leader, place, reason, range),
        Followed::Alone => transaction.fetch_alone(place, reason),
    })
}

/// The fetch for `range`, for all requests that wait for it.
fn leading(leader: Leader, place: ObjectPlace, reason: ForwardReason, range: HeaderValue) -> Next {
    Next::Fetch(Fetch {
        leader: Some(leader),
        range: Some(range),
        ..Fetch::alone(place, reason)
    })
}
