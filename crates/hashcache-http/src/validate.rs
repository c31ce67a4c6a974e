//! Validation: a client's preconditions against a stored response, our own conditional requests to
//! upstream, and the effect of a 304 on the stored fields (RFC 9111 3.2, 4.3; RFC 9110 13).
//!
//! The proxy calls `evaluate_conditions` before it serves a stored response, the other functions
//! before and after a validation.
//!
//! Invariant: fields that describe the stored bytes (length, coding, range, digests, entity tag)
//! are never taken from a 304, because the origin generated the 304 without those bytes. Cookies
//! are not taken either, because they are for a single client.
//! Cost: a comparison per entity tag in the request; freshening copies the 304's fields.
//!
//! If-Match and If-Unmodified-Since protect the origin's state. A cache may ignore them (RFC 9110
//! 13.1.1, 13.1.4), so a stored response answers the request if they hold for it
//! ([`origin_conditions_hold`]). The cache never answers 412: if they do not hold, the request is
//! forwarded, because only the origin knows if its state differs from the stored response.

use http::header::{
    AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
    ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, SET_COOKIE, TRANSFER_ENCODING,
};

use crate::cache_control::ResponseDirectives;
use crate::date::{UnixTime, http_date, parse_http_date};
use crate::digest::{DIGEST_FIELDS, OF_CONTENT};
use crate::entity_tag::EntityTag;
use crate::fields::{Backslash, Single, single, split_list};
use crate::hop::{fields_to_store, withhold};
use crate::stored_facts::StoredFacts;

/// Result of the client's preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionOutcome {
    /// The client has the response: answer 304.
    NotModified,
    /// Serve the response.
    Send,
}

/// Evaluates If-None-Match, or If-Modified-Since if the former is absent, for GET and HEAD (RFC
/// 9111 4.3.2).
///
/// Preconditions count only if the response would be a 2xx (RFC 9110 13.2.1). If Last-Modified is
/// not stored, Date is used, or the time of arrival.
pub fn evaluate_conditions(
    request: &HeaderMap,
    facts: &StoredFacts,
    stored: &HeaderMap,
    now: UnixTime,
) -> ConditionOutcome {
    if !facts.status.is_success() {
        return ConditionOutcome::Send;
    }
    let not_modified = if request.contains_key(IF_NONE_MATCH) {
        let etag = stored
            .get(ETAG)
            .map(|value| EntityTag::parse(value.as_bytes()));
        none_match_names(request, etag)
    } else {
        let since = match single(request, IF_MODIFIED_SINCE) {
            Single::One(value) => parse_http_date(value, now),
            Single::Absent | Single::Conflicting => None,
        };
        let changed = facts.last_modified.unwrap_or(facts.date);
        since.is_some_and(|since| changed <= since)
    };
    if not_modified {
        ConditionOutcome::NotModified
    } else {
        ConditionOutcome::Send
    }
}

/// Returns true if If-Match, or If-Unmodified-Since if the former is absent, holds for a stored
/// response (RFC 9110 13.2.2, steps 1 and 2). Then the stored response answers as the origin would
/// have when it sent the response. Software updaters send such conditions for the parts of a file
/// that must not change between requests.
///
/// Returns false for a stored error: preconditions count only if the response would be a 2xx (RFC
/// 9110 13.2.1). An If-Unmodified-Since that is not a date is ignored, as are two different dates;
/// without a stored Last-Modified a date does not hold, although an origin would ignore it.
pub fn origin_conditions_hold(
    request: &HeaderMap,
    facts: &StoredFacts,
    stored: &HeaderMap,
    now: UnixTime,
) -> bool {
    if !facts.status.is_success() {
        return false;
    }
    if request.contains_key(IF_MATCH) {
        let etag = stored
            .get(ETAG)
            .map(|value| EntityTag::parse(value.as_bytes()));
        return members(request, &IF_MATCH).any(|member| {
            let names = |etag: &EntityTag<'_>| etag.equals_strongly(&EntityTag::parse(member));
            member == b"*" || etag.as_ref().is_some_and(names)
        });
    }
    match single(request, IF_UNMODIFIED_SINCE) {
        Single::Absent | Single::Conflicting => true,
        Single::One(value) => parse_http_date(value, now)
            .is_none_or(|since| facts.last_modified.is_some_and(|changed| changed <= since)),
    }
}

/// The members of a list of entity tags, over all field lines.
fn members<'a>(request: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = request.get_all(name).iter();
    lines.flat_map(|line| split_list(line.as_bytes(), Backslash::Plain))
}

/// Returns true if If-None-Match contains the stored entity tag, or `*`.
fn none_match_names(request: &HeaderMap, etag: Option<EntityTag<'_>>) -> bool {
    members(request, &IF_NONE_MATCH).any(|member| {
        let names = |etag: EntityTag<'_>| etag.equals_weakly(&EntityTag::parse(member));
        member == b"*" || etag.is_some_and(names)
    })
}

/// Turns a request into a validation of the stored response (RFC 9111 4.3.1).
///
/// The client's own conditions and Range are removed: they are evaluated against the stored
/// response after the validation. If-None-Match carries the stored ETag byte for byte,
/// If-Modified-Since the stored Last-Modified; if both are missing, it carries the stored Date. A
/// response with none of the three is fetched again, unconditionally.
pub fn set_validators(request: &mut HeaderMap, facts: &StoredFacts, stored: &HeaderMap) {
    remove_conditions(request);
    if let Some(etag) = stored.get(ETAG) {
        request.insert(IF_NONE_MATCH, etag.clone());
    }
    if let Some(last_modified) = facts.last_modified {
        request.insert(IF_MODIFIED_SINCE, http_date(last_modified));
    } else if !facts.has_validator() && stored.contains_key(DATE) {
        request.insert(IF_MODIFIED_SINCE, http_date(facts.date));
    }
}

/// Removes If-Modified-Since if it has more than one date: it is not a condition then (RFC 9110
/// 13.1.3), neither here nor for an origin that would pick one of the dates. Repetitions of the
/// same date become a single line.
pub fn settle_modified_since(request: &mut HeaderMap) {
    if request.get_all(IF_MODIFIED_SINCE).iter().nth(1).is_none() {
        return;
    }
    let date = match single(request, IF_MODIFIED_SINCE) {
        Single::One(date) => HeaderValue::from_bytes(date).ok(),
        Single::Absent | Single::Conflicting => None,
    };
    request.remove(IF_MODIFIED_SINCE);
    if let Some(date) = date {
        request.insert(IF_MODIFIED_SINCE, date);
    }
}

/// Returns true if the client itself has set a condition that an origin answers with 412.
pub fn has_strict_condition(request: &HeaderMap) -> bool {
    request.contains_key(IF_MATCH) || request.contains_key(IF_UNMODIFIED_SINCE)
}

/// Removes the client's own conditions and Range from a request.
pub(crate) fn remove_conditions(request: &mut HeaderMap) {
    for name in [IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_RANGE, RANGE] {
        request.remove(name);
    }
}

/// Returns true if a 304 for a request made by [`set_validators`] refers to the stored response
/// (RFC 9111 4.3.4). If not, the 304 must neither freshen the stored response nor cause it to be
/// served, and the resource is fetched again without conditions.
///
/// A 304 without validators confirms the validators in the request: RFC 9110 15.4.5 even advises to
/// omit Last-Modified.
pub fn not_modified_confirms(stored: &HeaderMap, not_modified: &HeaderMap) -> bool {
    if let Some(etag) = not_modified.get(ETAG) {
        // Deliberately a weak comparison. nginx weakens the tag of content that it compresses, but
        // not the tag in the 304; with a strong comparison such content would be fetched whole at
        // each validation. The request carried the stored tag, so the origin has recognised it.
        let etag = EntityTag::parse(etag.as_bytes());
        let stored = stored
            .get(ETAG)
            .map(|value| EntityTag::parse(value.as_bytes()));
        return stored.is_some_and(|stored| stored.equals_weakly(&etag));
    }
    match not_modified.get(LAST_MODIFIED) {
        Some(value) => stored
            .get(LAST_MODIFIED)
            .is_none_or(|stored| stored == value),
        None => true,
    }
}

/// Freshens stored fields from a 304 (RFC 9111 3.2, 4.3.4): each field in it replaces the stored
/// fields with that name, except for fields that describe the stored bytes or belong to the
/// connection, and for Set-Cookie: see [`for_its_client`].
///
/// After this the Age of the 304 counts, or none. Date is set if the 304 has none. Fields named in
/// the new `no-cache="…"` and `private="…"` are withheld, as in a new response. The caller then
/// calls [`storable`](crate::storable) again with the stored status and these fields, because a 304
/// may carry `no-store`.
pub fn freshen(stored: &mut HeaderMap, not_modified: &HeaderMap, response_time: UnixTime) {
    stored.remove(AGE);
    stored.insert(DATE, http_date(response_time));
    let update = fields_to_store(not_modified, &ResponseDirectives::default());
    for name in update.keys() {
        if NEVER_TAKEN.contains(name) || DIGEST_FIELDS.contains(name) {
            continue;
        }
        stored.remove(name);
        for value in update.get_all(name) {
            stored.append(name.clone(), value.clone());
        }
    }
    let directives = ResponseDirectives::parse(stored);
    withhold(stored, &directives);
}

/// Copies the cookies of a 304 into the response to the client that caused it. They must not be
/// added to the stored response.
pub fn for_its_client(response: &mut HeaderMap, not_modified: &HeaderMap) {
    if !not_modified.contains_key(SET_COOKIE) {
        return;
    }
    response.remove(SET_COOKIE);
    for cookie in not_modified.get_all(SET_COOKIE) {
        response.append(SET_COOKIE, cookie.clone());
    }
}

/// Sets Date to the arrival time if the response has none (RFC 9110 6.6.1).
pub fn ensure_date(response: &mut HeaderMap, response_time: UnixTime) {
    if !response.contains_key(DATE) {
        response.insert(DATE, http_date(response_time));
    }
}

/// The fields of a 304 generated from a stored response (RFC 9110 15.4.5): all fields except those
/// that describe content, because the client already has it.
pub fn not_modified_fields(stored: &HeaderMap) -> HeaderMap {
    let mut out = stored.clone();
    for name in CONTENT_FIELDS.into_iter().chain(OF_CONTENT) {
        out.remove(name);
    }
    if out.contains_key(ETAG) {
        out.remove(LAST_MODIFIED);
    }
    out
}

/// Never taken from a 304: fields that describe the stored bytes, and cookies, which are for the
/// client with the validated request. Tags are compared weakly ([`not_modified_confirms`]): if the
/// strong tag in the 304 for compressed content were taken, those bytes would get the tag of the
/// identity form, and parts of both forms would be combined.
const NEVER_TAKEN: [HeaderName; 6] = [
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    ETAG,
    SET_COOKIE,
    TRANSFER_ENCODING,
];

/// Omitted in a 304.
const CONTENT_FIELDS: [HeaderName; 5] = [
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
];

#[cfg(test)]
mod tests;
