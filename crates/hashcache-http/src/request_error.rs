//! Errors that a client can cause on purpose with fields outside the cache key.
//!
//! If such an error were stored, it would answer every request for the URL. The attack is known as
//! CPDoS (Nguyen, Lo Iacono and Federrath, "Your Cache Has Fallen", 2019): a head larger than the
//! origin accepts, a method overridden by a field, a precondition that must fail.
//!
//! Called by `storable`. Invariant: an error is stored only if the request had only small fields,
//! and no field that is known to make an origin fail. Overrides (`request_fields`) are refused
//! earlier, for any status. Cost: one pass over the names of the request fields, only for errors.

use http::StatusCode;
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HeaderMap,
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, ORIGIN,
    RANGE,
};

/// Returns true if an error may apply only to this request: to fields, a size or a rate that other
/// requests do not have.
pub(crate) fn speaks_of_request(status: StatusCode, request: &HeaderMap) -> bool {
    if !(status.is_client_error() || status.is_server_error()) {
        return false;
    }
    let has_odd_bytes = || request.values().any(|value| !value.as_bytes().is_ascii());
    if ABOUT_THE_REQUEST.contains(&status.as_u16()) || has_odd_bytes() {
        return true;
    }
    let has = |name: &HeaderName| request.contains_key(name);
    // An absent resource is absent for other requests too, if the origin states it (`freshness`
    // assumes it only for requests with the same fields).
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
        return false;
    }
    let sizes = request
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    SPECIAL_WISHES.iter().any(has) || request.len() > FIELDS_MAX || sizes.sum::<usize>() > BYTES_MAX
}

/// Statuses that blame the request, the sender or the rate: 401, 403 (a filter in front of the
/// origin), 406 to 408, 411 to 413, 415 to 418, 421, 425, 426, 428, 429 and 431. Not 414: it blames
/// the URL, which is in the cache key (RFC 9110 15.5.15 lets it be stored even without a lifetime).
const ABOUT_THE_REQUEST: [u16; 18] = [
    401, 403, 406, 407, 408, 411, 412, 413, 415, 416, 417, 418, 421, 425, 426, 428, 429, 431,
];

/// Request fields that can make an origin refuse this request and no other.
const SPECIAL_WISHES: [HeaderName; 15] = [
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    COOKIE,
    EXPECT,
    FORWARDED,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    ORIGIN,
    RANGE,
    HeaderName::from_static("x-host"),
    HeaderName::from_static("x-original-host"),
];

/// Half of the smallest head that a common server rejects (4 KiB, uWSGI). A browser sends less.
const BYTES_MAX: usize = 2 << 10;

/// More fields than any browser sends, fewer than any common server rejects (100, Apache httpd).
const FIELDS_MAX: usize = 64;
