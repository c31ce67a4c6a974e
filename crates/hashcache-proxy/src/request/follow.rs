//! Follows the fetch of another request.
//!
//! Called by `miss` and `range_miss` when a leader's response may be shared.
//!
//! Invariant: a follower could have had the response from the store: the vary row matches the
//! request, the request accepts the content coding, and the response is fresh. The response may be
//! stale on arrival if neither request is specific to a client ([`may_follow_stale`]).

use hashcache_http::{
    ByteRange, CacheStatus, ContentRange, FactFlags, Forward, Handling, RangeAnswer, Reuse,
    StoredFacts, UnixTime, answer_range, remove_content_digests, reuse,
};
use hashcache_store::collapse::{Requester, SharedResponse};
use hashcache_store::follow::ContentFollower;
use hashcache_store::matches;
use http::header::{AGE, CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderValue, Response, StatusCode};

use super::body::Body;
use super::own_fields::{add_own, offer_login};
use super::stored_form::note_pages;
use super::transaction::Transaction;
use crate::access_log::Outcome;

/// A range request follows a fetch only if the range starts at most this far ahead of the fetched
/// bytes.
const PART_AHEAD: u64 = 4 << 20;

/// Follows the fetch of another request, if the response to it answers this request too.
///
/// `since` is the time from which on this request has waited.
pub(super) fn follow(
    transaction: &mut Transaction<'_>,
    shared: &SharedResponse,
    since: UnixTime,
) -> Option<Response<Body>> {
    let connection = transaction.connection;
    let stored = &shared.stored;
    let (request, facts) = (&transaction.request, &transaction.facts_beside(stored));
    if !matches(stored, &request.fields) {
        return None;
    }
    let common = &connection.worker.common;
    let now = common.now();
    let (age, ttl) = match reuse(facts, &stored.facts, now, &common.live().reuse) {
        Reuse::Fresh { age, ttl } => (age, ttl),
        // A transfer may take hours, and requests join it until it is over.
        _ if stored.facts.response_time < since => return None,
        decision => may_follow_stale(transaction, decision, &stored.facts, shared.requester)
            .then(|| (stored.facts.age(now), stored.facts.ttl(now)))?,
    };
    let part = match shared.length.filter(|_| facts.has_range) {
        Some(length) => {
            match answer_range(
                &request.fields,
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
    transaction.log_entry.set_outcome(Outcome::Collapsed);
    let mut response = Response::new(follower);
    *response.status_mut() = stored.facts.status;
    *response.headers_mut() = stored.fields.clone();
    let fields = response.headers_mut();
    fields.insert(AGE, HeaderValue::from(age.get()));
    let status = CacheStatus {
        ttl: Some(ttl),
        collapsed: true,
        ..CacheStatus::from_handling(Handling::Forwarded(Forward::UriMiss))
    };
    if shared.stream.is_in_pages() {
        note_pages(connection, request, fields);
    }
    add_own(connection, (fields, stored.facts.received()), status);
    offer_login(connection, request.is_one_client(connection), fields);
    Some(following(response, part, shared.length))
}

/// Returns true if a follower may use a response that is stale on arrival, as `decision` shows.
///
/// The origin has made the response, or confirmed it, while this request waited, so the leader's
/// request stood for this request too (RFC 9111, section 4, collapsed requests). Without this rule,
/// each follower of a page with `max-age=0` would send its own request as soon as the leader has an
/// answer. Neither request may have a field that identifies a client: an origin that states no
/// lifetime may have answered a logged-in user. `no-cache` demands a validation for each request
/// (section 5.2.2.4), and a client that demands the origin's answer gets it.
pub(super) fn may_follow_stale(
    transaction: &Transaction<'_>,
    decision: Reuse,
    stored: &StoredFacts,
    leader: Requester,
) -> bool {
    let is_only_stale = matches!(
        decision,
        Reuse::Stale { .. }
            | Reuse::Validate {
                forward: Forward::Stale,
                ..
            }
    );
    is_only_stale
        && !stored.flags.has(FactFlags::NO_CACHE)
        && leader == Requester::Anybody
        && transaction.requester() == Requester::Anybody
}

/// A response of `length` bytes that is being stored, or the range in it at which the follower
/// starts.
pub(super) fn following(
    response: Response<ContentFollower>,
    part: Option<ByteRange>,
    length: Option<u64>,
) -> Response<Body> {
    let Some((part, whole)) = part.zip(length) else {
        return response.map(|follower| Body::following(follower, length));
    };
    let mut response = response.map(|follower| Body::following(follower, Some(part.length())));
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    let fields = response.headers_mut();
    remove_content_digests(fields);
    fields.insert(CONTENT_LENGTH, HeaderValue::from(part.length()));
    fields.insert(CONTENT_RANGE, ContentRange::new(part, whole).to_value());
    response
}
