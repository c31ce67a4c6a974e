//! Fields and trailers of HTTP/2, on both sides.
//!
//! Called by `head` and `body` for messages of clients, and by `upstream` for those of origins. h2
//! has refused what has another meaning in its own frames: connection fields, upper-case letters,
//! misplaced pseudo-fields in a head. The rest would get another meaning in HTTP/1.1, where blanks
//! around a value are no part of it and where a name is a token.
//!
//! Invariant: a field that passes is the same field in HTTP/1.1.
//! Cost: two bytes of each value, and the names that are not registered.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, TRANSFER_ENCODING, UPGRADE};

/// Why a head or trailers with these fields are malformed (RFC 9113, 8.2.1 and 8.2.2); `None` if
/// they are not. A malformed message must not be forwarded (8.1.1).
pub(crate) fn malformed_field(fields: &HeaderMap) -> Option<&'static str> {
    fields.iter().find_map(|(name, value)| {
        let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        let value = value.as_bytes();
        if is_blank(value.first()) || is_blank(value.last()) {
            return Some("a field value begins or ends with a blank");
        }
        // `http` knows no other byte in a name that is not allowed there.
        if name.as_str().contains('"') {
            return Some("a field name is no token");
        }
        let is_of_connection = [CONNECTION, TRANSFER_ENCODING, UPGRADE].contains(name)
            || [KEEP_ALIVE, PROXY_CONNECTION].contains(name);
        is_of_connection.then_some("a field of the connection in HTTP/2")
    })
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn judged(name: &str, value: &'static str) -> bool {
        let name = HeaderName::from_lowercase(name.as_bytes()).unwrap();
        let field = (name, HeaderValue::from_static(value));
        malformed_field(&HeaderMap::from_iter([field])).is_some()
    }

    #[test]
    fn what_means_something_else_in_http_1_is_malformed() {
        for (name, value) in [
            ("x", " a"),
            ("x", "a\t"),
            ("x", " "),
            ("x\"y", "a"),
            ("connection", "close"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "x"),
        ] {
            assert!(judged(name, value), "{name}: {value:?}");
        }
        for (name, value) in [
            ("x", ""),
            ("x", "a b"),
            ("x!#$%&'*+-.^_`|~", "a"),
            ("te", "trailers"),
        ] {
            assert!(!judged(name, value), "{name}: {value:?}");
        }
    }
}
