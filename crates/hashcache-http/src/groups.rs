//! Cache groups (RFC 9875), and the labels that origins set on their responses for purges.
//!
//! The proxy stores responses with both, and after an unsafe method asks this module for the groups
//! to invalidate.
//!
//! Invariant: an invalid value names no group. The caller ensures that an origin can name only its
//! own groups.
//! Cost: one pass over fields that few responses have.

use http::header::{HeaderMap, HeaderName};
use http::{Method, StatusCode};

use crate::invalidate::is_unsafe;
use crate::structured;

/// `Cache-Groups`.
pub const CACHE_GROUPS: HeaderName = HeaderName::from_static("cache-groups");
/// `Cache-Group-Invalidation`.
pub const CACHE_GROUP_INVALIDATION: HeaderName =
    HeaderName::from_static("cache-group-invalidation");
/// The fields that carry labels, separated by blanks.
pub const LABEL_FIELDS: [HeaderName; 2] = [
    HeaderName::from_static("surrogate-key"),
    HeaderName::from_static("xkey"),
];

/// Maximum number of labels read from a response: a head with 64 KiB could have 16,000.
const MEMBERS_MAX: usize = 1024;

/// The groups in `Cache-Groups`, at most the first sixty-four (RFC 9875, section 2, requires at
/// least 32).
pub fn cache_groups(fields: &HeaderMap) -> Vec<Vec<u8>> {
    strings(fields, &CACHE_GROUPS)
}

/// The groups that a response invalidates: none if the method is safe or the status is an error
/// (RFC 9875, section 3).
pub fn invalidated_groups(
    method: &Method,
    status: StatusCode,
    response: &HeaderMap,
) -> Vec<Vec<u8>> {
    if !is_unsafe(method) || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    strings(response, &CACHE_GROUP_INVALIDATION)
}

/// The labels in `Surrogate-Key` and `xkey`.
pub fn labels(fields: &HeaderMap) -> Vec<Vec<u8>> {
    let of_field = |name| words(fields, &name);
    let all = LABEL_FIELDS.into_iter().flat_map(of_field);
    all.take(MEMBERS_MAX).collect()
}

/// The words in a field, over all lines.
pub fn words<'a>(
    fields: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Vec<u8>> + use<'a> {
    let lines = fields.get_all(name).iter();
    let words = lines.flat_map(|line| line.as_bytes().split(|byte| b" \t,".contains(byte)));
    words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec)
}

/// The members of a list of strings; empty if any member is not a string. Parameters are ignored.
fn strings(fields: &HeaderMap, name: &HeaderName) -> Vec<Vec<u8>> {
    let strings = structured::strings(fields, name).unwrap_or_default();
    strings.into_iter().map(String::into_bytes).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn fields(name: HeaderName, lines: &[&'static str]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for line in lines {
            fields.append(name.clone(), HeaderValue::from_static(line));
        }
        fields
    }

    fn groups(lines: &[&'static str]) -> Vec<String> {
        let groups = cache_groups(&fields(CACHE_GROUPS, lines));
        groups
            .into_iter()
            .map(|it| String::from_utf8(it).unwrap())
            .collect()
    }

    #[test]
    fn groups_are_the_strings_of_the_list_over_all_lines() {
        assert_eq!(
            groups(&[r#""scripts", "a b""#, r#""c,d"; x=1, "q\"uote""#]),
            ["scripts", "a b", "c,d", "q\"uote"]
        );
        assert_eq!(groups(&[]), [""; 0]);
    }

    #[test]
    fn a_list_with_anything_but_strings_has_none() {
        for line in [
            "token",
            r#""a", b"#,
            r#""open"#,
            "(\"a\")",
            "1",
            r#""a" x"#,
            "\"a\tb\\",
        ] {
            assert_eq!(groups(&[line]), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_response_to_a_safe_method_or_an_error_invalidates_no_group() {
        let response = fields(CACHE_GROUP_INVALIDATION, &[r#""a", "b""#]);
        let of = |method, status| {
            let status = StatusCode::from_u16(status).unwrap();
            invalidated_groups(&method, status, &response).len()
        };
        assert_eq!(of(Method::POST, 200), 2);
        assert_eq!(of(Method::DELETE, 303), 2);
        assert_eq!(of(Method::GET, 200), 0);
        assert_eq!(of(Method::POST, 404), 0);
    }

    #[test]
    fn as_many_groups_of_32_characters_as_a_cache_must_know_are_known() {
        let all: Vec<_> = (0..32).map(|n| format!("\"{n:032}\"")).collect();
        let mut fields = HeaderMap::new();
        fields.insert(CACHE_GROUPS, all.join(", ").parse().unwrap());
        assert_eq!(cache_groups(&fields).len(), 32);
    }

    #[test]
    fn labels_are_words() {
        let mut all = fields(LABEL_FIELDS[0].clone(), &["a  b/1", "c"]);
        all.append(LABEL_FIELDS[1].clone(), HeaderValue::from_static("d, e"));
        assert_eq!(labels(&all), [&b"a"[..], b"b/1", b"c", b"d", b"e"]);
    }
}
