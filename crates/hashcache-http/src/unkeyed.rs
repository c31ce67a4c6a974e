//! Checks that a request has only fields that the cache key covers (RFC 9111 4, 4.1).
//!
//! A client may cause the validation of a fresh response at any time (`no-cache`), and a forwarded
//! HEAD may update it (RFC 9111 4.3.4, 4.3.5). Some origins copy request fields into the response
//! although no `Vary` names them (`X-Forwarded-Host` into `Link` or `Location`). An attacker could
//! then send such a field to all clients at any time. Therefore, if a request has such a field, a
//! fresh stored response is not updated, and the new response is only for this client. A stale
//! response is updated all the same, because otherwise it could never become fresh again.
//!
//! The proxy calls it before it updates stored fields. Cost: the names of the request fields, once
//! per validation.

use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, MAX_FORWARDS, PRAGMA, RANGE, TE, VIA,
};

use crate::vary::Vary;

/// Returns true if every request field is named in the `Vary` of the stored response, or is known
/// not to select a representation.
pub fn is_keyed(request: &HeaderMap, stored: &HeaderMap) -> bool {
    let varied = match Vary::parse(stored) {
        Vary::Nothing => Vec::new(),
        Vary::Fields(names) => names,
        Vary::TooWide | Vary::Anything => return false,
    };
    let held = |name: &HeaderName| varied.contains(name) || SELECT_NOTHING.contains(name);
    request.keys().all(held)
}

/// Fields that are part of the key, or about caches, connections, or the part of a representation
/// to send, but do not select a representation.
const SELECT_NOTHING: [HeaderName; 12] = [
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    MAX_FORWARDS,
    PRAGMA,
    RANGE,
    TE,
    VIA,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        fields
    }

    #[test]
    fn a_field_that_vary_does_not_name_is_outside_the_key() {
        let plain = fields(&[]);
        let varied = fields(&[("vary", "Origin, accept-language")]);
        let reload = [
            ("host", "h"),
            ("cache-control", "no-cache"),
            ("pragma", "no-cache"),
        ];
        assert!(is_keyed(&fields(&reload), &plain));
        for name in [
            "origin",
            "cookie",
            "user-agent",
            "x-forwarded-host",
            "accept-language",
        ] {
            let request = fields(&[&reload[..], &[(name, "x")]].concat());
            assert!(!is_keyed(&request, &plain), "{name}");
            let named = matches!(name, "origin" | "accept-language");
            assert_eq!(is_keyed(&request, &varied), named, "{name}");
        }
        assert!(!is_keyed(&plain, &fields(&[("vary", "*")])));
    }
}
