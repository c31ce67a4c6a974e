//! Cache groups: responses that become invalid together (RFC 9875).
//!
//! The field is kept with the stored response like any other; who purges by group reads it here.
//!
//! Invariant: a field that is no list of strings counts as absent (RFC 9875 2.1).
//! Cost: one pass over the field.

use http::header::{HeaderMap, HeaderName};

use crate::structured::strings;

/// The groups a response says it belongs to, in its own order; none when the field is malformed.
/// Parameters mean nothing. Groups beyond the sixty-fourth are left out: RFC 9875 asks for at
/// least 32.
pub fn cache_groups(fields: &HeaderMap) -> Vec<String> {
    strings(fields, &CACHE_GROUPS).unwrap_or_default()
}

const CACHE_GROUPS: HeaderName = HeaderName::from_static("cache-groups");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_a_list_of_strings() {
        let groups = |text: &str| {
            let mut fields = HeaderMap::new();
            fields.insert(CACHE_GROUPS, text.parse().unwrap());
            cache_groups(&fields)
        };
        assert_eq!(groups("\"a\", \"b c\";x=1"), ["a", "b c"]);
        for invalid in ["", "a", "\"a\",", "\"a\" \"b\"", "1", "(\"a\")"] {
            assert_eq!(groups(invalid), [""; 0], "{invalid}");
        }
        let many = vec!["\"g\""; 70].join(", ");
        assert_eq!(groups(&many).len(), 64);
        assert_eq!(cache_groups(&HeaderMap::new()), [""; 0]);
    }
}
