//! `Hashcache-Related`: other objects of a page. A parent names them to the child, so that the
//! child can request them before its client does.
//!
//! A list of strings (RFC 9651): URLs, or paths on the page's own origin, the most useful first.
//!
//! The proxy adds and removes the field on both sides of a link; like
//! [`Hashcache-Link`](crate::HASHCACHE_LINK) it is never forwarded.
//!
//! Invariant: a name that is not a URL is skipped and does not affect the other names.
//! Cost: one pass over the field, at most [`RELATED_MAX`] names.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::structured;
use crate::target::Target;

/// `Hashcache-Related`.
pub const HASHCACHE_RELATED: HeaderName = HeaderName::from_static("hashcache-related");

/// Names of other objects, as received.
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

    /// The targets, for the page with the URL `page`.
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

/// The field value for a page and its other objects, of which only the first [`RELATED_MAX`] count;
/// `None` if no object can be named.
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

/// Maximum size of the generated field in bytes: a longer field would delay the page, and a head
/// takes memory.
pub const RELATED_BYTES_MAX: usize = 3 << 10;
/// Maximum number of objects in a field.
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
        // More names than the maximum are ignored.
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
