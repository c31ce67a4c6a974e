//! `Hashcache-Related`: other objects of a page, which a parent names to its child, so that the
//! child asks for them before its client does.
//!
//! A list of strings (RFC 9651): URLs, or paths of the page's own origin, the most useful first.
//!
//! The proxy adds and removes the field at the ends of a link; like
//! [`Hashcache-Link`](crate::HASHCACHE_LINK) it is never forwarded.
//!
//! Invariant: a name that is no URL counts for nothing, and says nothing about the others.
//! Cost: one pass over the field, at most [`RELATED_MAX`] names.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::structured;
use crate::target::Target;

/// `Hashcache-Related`.
pub const HASHCACHE_RELATED: HeaderName = HeaderName::from_static("hashcache-related");

/// Names of other objects, as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related(Vec<String>);

impl Related {
    /// Removes the field from a response; `None` if it names nothing.
    pub fn take(fields: &mut HeaderMap) -> Option<Self> {
        if !fields.contains_key(HASHCACHE_RELATED) {
            return None;
        }
        let names = structured::strings(fields, &HASHCACHE_RELATED);
        fields.remove(HASHCACHE_RELATED);
        let mut names = names?;
        names.truncate(RELATED_MAX);
        (!names.is_empty()).then_some(Self(names))
    }

    /// The objects, for the page with the URL `page`.
    pub fn targets(&self, page: &Target) -> impl Iterator<Item = Target> {
        self.0.iter().filter_map(|name| {
            let target = if name.starts_with('/') {
                Target::new(page.scheme, page.authority.clone(), name)
            } else {
                Target::parse_url(name)
            };
            target.ok()
        })
    }
}

/// The value of the field for a page and its other objects, of which the first [`RELATED_MAX`]
/// count; `None` if there is no object that can be named.
pub fn related_value<'a>(
    page: &Target,
    others: impl IntoIterator<Item = &'a Target>,
) -> Option<HeaderValue> {
    let (mut names, mut bytes) = (vec![], 0);
    for other in others.into_iter().take(RELATED_MAX) {
        let url = if other.same_origin(page) {
            other.path_and_query.to_string()
        } else {
            other.to_string()
        };
        if url.bytes().all(|byte| byte.is_ascii_graphic()) {
            let escaped = url.replace('\\', "\\\\").replace('"', "\\\"");
            bytes += escaped.len() + 4;
            if bytes > RELATED_BYTES_MAX {
                break;
            }
            names.push(format!("\"{escaped}\""));
        }
    }
    if names.is_empty() {
        None
    } else {
        HeaderValue::try_from(names.join(", ")).ok()
    }
}

/// Longer fields are not made, bytes: they delay the page, and a head needs memory.
pub const RELATED_BYTES_MAX: usize = 3 << 10;
/// Objects that one field names at most.
pub const RELATED_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Target {
        Target::parse_url(text).unwrap()
    }

    fn taken(value: &'static str) -> Option<Related> {
        let mut fields = HeaderMap::new();
        fields.insert(HASHCACHE_RELATED, HeaderValue::from_static(value));
        let taken = Related::take(&mut fields);
        assert!(fields.is_empty());
        taken
    }

    #[test]
    fn what_is_named_is_read_again() {
        let page = url("https://a.example/page?x");
        let others = [
            url("https://a.example/s.css"),
            url("https://a.example/q?a=\"b\\c\""),
            url("http://a.example/other-scheme"),
            url("https://cdn.example:8443/lib.js"),
        ];
        let mut fields = HeaderMap::new();
        fields.insert(HASHCACHE_RELATED, related_value(&page, &others).unwrap());
        let related = Related::take(&mut fields).unwrap();
        assert!(related.targets(&page).eq(others));
        assert!(fields.is_empty());
    }

    #[test]
    fn so_many_are_named_and_no_more() {
        let page = url("http://a.example/");
        let others: Vec<Target> = (0..RELATED_MAX + 3)
            .map(|n| url(&format!("http://a.example/{n}")))
            .collect();
        let mut fields = HeaderMap::new();
        fields.insert(HASHCACHE_RELATED, related_value(&page, &others).unwrap());
        let related = Related::take(&mut fields).unwrap();
        assert!(related.targets(&page).eq(others[..RELATED_MAX].to_vec()));
        // A parent that names more is not believed further.
        let all: Vec<String> = others.iter().map(|it| format!("\"{it}\"")).collect();
        fields.insert(
            HASHCACHE_RELATED,
            HeaderValue::try_from(all.join(",")).unwrap(),
        );
        let related = Related::take(&mut fields).unwrap();
        assert_eq!(related.targets(&page).count(), RELATED_MAX);
    }

    #[test]
    fn a_field_is_short_however_long_the_urls_are() {
        let page = url("http://a.example/");
        let others: Vec<Target> = (0..RELATED_MAX)
            .map(|n| url(&format!("http://a.example/{n}{}", "x".repeat(900))))
            .collect();
        let value = related_value(&page, &others).unwrap();
        assert!((2_000..=RELATED_BYTES_MAX).contains(&value.len()));
    }

    #[test]
    fn names_that_are_no_urls_count_for_nothing() {
        let page = url("http://a.example/");
        assert_eq!(related_value(&page, &[]), None);
        let related = taken("\"ftp:x\", \"\", \"/a b\", \"a\", \"/#\", \"/right\"").unwrap();
        let named: Vec<String> = related.targets(&page).map(|it| it.to_string()).collect();
        assert_eq!(named, ["http://a.example/right"]);
        for value in ["", "/a", "1", "\"a", "\"/a\", 1"] {
            assert_eq!(taken(value), None, "{value}");
        }
    }
}
