//! Checks of fields and trailers in HTTP/2, for both sides.
//!
//! `head` and `body` call it for client messages, and `hashcache-upstream` for origin messages. h2
//! has already rejected everything that changes the meaning within HTTP/2: connection fields,
//! upper-case letters, misplaced pseudo-fields in a head. The remaining cases would change the
//! meaning in HTTP/1.1, where blanks around a value are not part of it and a name must be a token.
//!
//! Invariant: a field that passes is the same field in HTTP/1.1.
//! Cost: two bytes of each value, and the names that are not registered.

use http::header::{CONNECTION, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue};

/// The reason why a head or trailers with these fields are malformed (RFC 9113, 8.2.1 and 8.2.2);
/// `None` if they are not. A malformed message must not be forwarded (8.1.1).
pub fn malformed_field(fields: &HeaderMap) -> Option<&'static str> {
    fields.iter().find_map(malformation)
}

/// The uncompressed size of the fields as defined in RFC 9113 (section 6.5.2); `None` if any field
/// is malformed. A single pass does both, because each hit in memory needs both.
pub(super) fn well_formed_size(fields: &HeaderMap) -> Option<u64> {
    let mut size = 0;
    for field in fields {
        if malformation(field).is_some() {
            return None;
        }
        size += field_size(field);
    }
    Some(size as u64)
}

/// The uncompressed size of a field.
pub(super) fn field_size((name, value): (&HeaderName, &HeaderValue)) -> usize {
    name.as_str().len() + value.len() + 32
}

fn malformation((name, value): (&HeaderName, &HeaderValue)) -> Option<&'static str> {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let value = value.as_bytes();
    if is_blank(value.first()) || is_blank(value.last()) {
        return Some("a field value begins or ends with a blank");
    }
    // The only byte that `http` allows in a name although it is not a token byte.
    if name.as_str().contains('"') {
        return Some("a field name is no token");
    }
    let is_of_connection = [CONNECTION, TRANSFER_ENCODING, UPGRADE].contains(name)
        || [KEEP_ALIVE, PROXY_CONNECTION].contains(name);
    is_of_connection.then_some("a field of the connection in HTTP/2")
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, value: &'static str) -> bool {
        let name = HeaderName::from_lowercase(name.as_bytes()).unwrap();
        let field = (name, HeaderValue::from_static(value));
        let fields = HeaderMap::from_iter([field]);
        let size = well_formed_size(&fields);
        assert!(
            size.is_none_or(|size| size == fields.iter().map(field_size).sum::<usize>() as u64)
        );
        assert_eq!(size.is_none(), malformed_field(&fields).is_some());
        size.is_none()
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
