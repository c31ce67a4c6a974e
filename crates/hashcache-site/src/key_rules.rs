//! A site's cache key rules: which parts of a request select a stored response, and which requests
//! bypass the store.
//!
//! Called once per request to a site, before the lookup. Pure.
//!
//! The query that remains after the rules is also sent to the origin. Otherwise an origin that
//! repeats its URL in a page would send a client's parameters to all other clients.
//!
//! Invariants: parameters are dropped and sorted, never decoded: `a=%31` and `a=1` may be different
//! resources. Parameters with equal names keep their order. Two requests with different values in
//! the chosen cookies or fields never share a key.
//! Cost: nothing without rules; otherwise one pass over the query and the Cookie fields.

use std::borrow::Cow;

use hashcache_http::{Crosses, Globs};
use http::header::COOKIE;
use http::{HeaderMap, HeaderName};

/// Cache key rules, ready for use.
#[derive(Clone, Debug, Default)]
pub struct KeyRules {
    spec: KeyRulesSpec,
    fields: Vec<HeaderName>,
    drop_query: NameSet,
    bypass_cookies: NameSet,
}

impl PartialEq for KeyRules {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Eq for KeyRules {}

/// Cache key rules as the operator wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRulesSpec {
    /// Patterns for parameters that are dropped from the query, such as `utm_*`.
    pub drop_query: Vec<String>,
    /// True if the remaining parameters are sorted by name.
    pub sort_query: bool,
    /// Cookies with values that are part of the key.
    pub cookies: Vec<String>,
    /// Request fields with values that are part of the key.
    pub fields: Vec<String>,
    /// Patterns for cookies; requests with such cookies bypass the store.
    pub bypass_cookies: Vec<String>,
}

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRuleError {
    /// Not a pattern.
    #[error("`{pattern}` is not a pattern: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The fault.
        reason: String,
    },
    /// Not a cookie name.
    #[error("`{name}` is not the name of a cookie")]
    Cookie {
        /// The name.
        name: String,
    },
    /// Not a field name.
    #[error("`{name}` is not the name of a field")]
    FieldName {
        /// The name.
        name: String,
    },
    /// A field that must not be part of the key.
    #[error("`{name}` cannot be part of the cache key")]
    Field {
        /// The name.
        name: HeaderName,
    },
}

/// Patterns for names; `*` stands for any number of characters.
#[derive(Clone, Debug, Default)]
struct NameSet(Option<Globs>);

impl NameSet {
    fn new(patterns: &[String]) -> Result<Self, KeyRuleError> {
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        let mut names = Globs::new();
        for pattern in patterns {
            let wrong = |reason: String| KeyRuleError::Pattern {
                pattern: pattern.clone(),
                reason,
            };
            if pattern.is_empty() {
                return Err(wrong("it is empty".to_owned()));
            }
            names
                .push(pattern, Crosses::Star)
                .map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Self(Some(names)))
    }

    fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.is_match(name))
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl KeyRules {
    /// Checks the rules and compiles their patterns.
    ///
    /// # Errors
    /// See [`KeyRuleError`].
    pub fn new(spec: &KeyRulesSpec) -> Result<Self, KeyRuleError> {
        let is_bad = |name: &&String| name.is_empty() || name.contains(['=', ';', ' ', ',', '*']);
        if let Some(name) = spec.cookies.iter().find(is_bad) {
            let name = name.clone();
            return Err(KeyRuleError::Cookie { name });
        }
        let mut fields = Vec::new();
        for name in &spec.fields {
            match name.parse() {
                Err(_) => return Err(KeyRuleError::FieldName { name: name.clone() }),
                Ok(name) if NEVER_IN_KEY.contains(&name) => {
                    return Err(KeyRuleError::Field { name });
                }
                Ok(name) => fields.push(name),
            }
        }
        Ok(Self {
            spec: spec.clone(),
            fields,
            drop_query: NameSet::new(&spec.drop_query)?,
            bypass_cookies: NameSet::new(&spec.bypass_cookies)?,
        })
    }

    /// The path and query for the lookup and for the origin.
    pub fn path_and_query<'a>(&self, original: &'a str) -> Cow<'a, str> {
        let Some((path, query)) = original.split_once('?') else {
            return original.into();
        };
        if query.is_empty() || (self.drop_query.is_empty() && !self.spec.sort_query) {
            return original.into();
        }
        let name = |parameter: &'a str| parameter.split('=').next().unwrap_or_default();
        let mut kept: Vec<&str> = query
            .split('&')
            .filter(|parameter| !self.drop_query.has(name(parameter)))
            .collect();
        if self.spec.sort_query {
            kept.sort_by_key(|parameter| name(parameter));
        }
        let kept = kept.join("&");
        if kept.is_empty() {
            // A bare `?` would be a third spelling of the path.
            path.into()
        } else {
            format!("{path}?{kept}").into()
        }
    }

    /// Returns true if cookies or fields are part of the key.
    pub(crate) fn has_parts(&self) -> bool {
        !self.spec.cookies.is_empty() || !self.fields.is_empty()
    }

    /// Returns true if cookies are part of the key, and the fields that are part of it.
    pub fn parts(&self) -> (bool, &[HeaderName]) {
        (!self.spec.cookies.is_empty(), &self.fields)
    }

    /// The part of the key from the chosen cookies and fields in a request; empty without such
    /// rules.
    ///
    /// Each part starts with a zero byte, which no URL contains, and each value carries a length,
    /// so no value can look like two parts.
    pub(crate) fn suffix(&self, request: &HeaderMap) -> Vec<u8> {
        let mut suffix = Vec::new();
        for name in &self.spec.cookies {
            let values = cookies(request).filter(|(it, _)| *it == name.as_bytes());
            push(&mut suffix, values.map(|(_, value)| value));
        }
        for name in &self.fields {
            let values = request.get_all(name).iter();
            push(&mut suffix, values.map(|value| value.as_bytes()));
        }
        suffix
    }

    /// Returns true if a cookie in the request makes it bypass the store.
    pub fn is_bypass(&self, request: &HeaderMap) -> bool {
        !self.bypass_cookies.is_empty()
            && cookies(request).any(|(name, _)| {
                // A name that is not UTF-8 matches no pattern.
                std::str::from_utf8(name).is_ok_and(|name| self.bypass_cookies.has(name))
            })
    }
}

/// Appends a part to a suffix: a zero byte, then each value with its length.
fn push<'a>(suffix: &mut Vec<u8>, values: impl Iterator<Item = &'a [u8]>) {
    suffix.push(0);
    for value in values {
        suffix.extend_from_slice(format!("{}:", value.len()).as_bytes());
        suffix.extend_from_slice(value);
    }
}

/// The cookies in a request: names and values (RFC 6265, section 5.4).
fn cookies(request: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = request.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
    pairs.map(<[u8]>::trim_ascii).filter_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
    })
}

/// Fields that are in the key already, select a part of a response, or differ with each request.
const NEVER_IN_KEY: [HeaderName; 9] = [
    http::header::HOST,
    http::header::RANGE,
    http::header::IF_RANGE,
    http::header::IF_NONE_MATCH,
    http::header::IF_MODIFIED_SINCE,
    http::header::CONNECTION,
    http::header::CONTENT_LENGTH,
    http::header::VIA,
    COOKIE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(change: impl FnOnce(&mut KeyRulesSpec)) -> KeyRules {
        let mut spec = KeyRulesSpec::default();
        change(&mut spec);
        KeyRules::new(&spec).unwrap()
    }

    fn request(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(*name, value.parse().unwrap());
        }
        fields
    }

    #[test]
    fn parameters_are_dropped_by_pattern() {
        let rules = rules(|spec| spec.drop_query = vec!["utm_*".into(), "fbclid".into()]);
        for (asked, kept) in [
            ("/a?utm_source=x&b=1&utm_medium=y", "/a?b=1"),
            ("/a?fbclid=1", "/a"),
            ("/a?fbclid", "/a"),
            ("/a?b=utm_source", "/a?b=utm_source"),
            ("/a?xutm_source=1", "/a?xutm_source=1"),
            ("/a?UTM_source=1", "/a?UTM_source=1"),
            ("/a?", "/a?"),
            ("/utm_x", "/utm_x"),
            ("/a?b=1&&utm_a=1", "/a?b=1&"),
            ("/a?b=1?utm_a=1", "/a?b=1?utm_a=1"),
        ] {
            assert_eq!(rules.path_and_query(asked), kept);
        }
    }

    #[test]
    fn the_query_is_sorted_by_name_and_equal_names_keep_their_order() {
        let rules = rules(|spec| spec.sort_query = true);
        assert_eq!(
            rules.path_and_query("/a?c=1&a=2&b=3&a=1"),
            "/a?a=2&a=1&b=3&c=1"
        );
        assert_eq!(rules.path_and_query("/a?b&a"), "/a?a&b");
        assert_eq!(rules.path_and_query("/a?b=%31&a=%26"), "/a?a=%26&b=%31");
    }

    #[test]
    fn without_rules_the_query_is_untouched_and_not_copied() {
        let rules = rules(|_| {});
        let same = rules.path_and_query("/a?utm_source=1&b&a");
        assert!(matches!(same, Cow::Borrowed("/a?utm_source=1&b&a")));
        assert!(rules.suffix(&request(&[("cookie", "a=1")])).is_empty());
    }

    #[test]
    fn chosen_cookies_and_fields_separate_keys() {
        let rules = rules(|spec| {
            spec.cookies = vec!["lang".into(), "theme".into()];
            spec.fields = vec!["X-Country".into()];
        });
        let of = |lines: &[(&'static str, &str)]| rules.suffix(&request(lines));
        let distinct = [
            of(&[]),
            of(&[("cookie", "lang=")]),
            of(&[("cookie", "lang=de")]),
            of(&[("cookie", "theme=de")]),
            of(&[("cookie", "lang=de; lang=en")]),
            of(&[("cookie", "lang=de; theme=dark")]),
            of(&[("x-country", "de")]),
            of(&[("cookie", "lang=de"), ("x-country", "de")]),
            of(&[("x-country", "d"), ("x-country", "e")]),
        ];
        for (at, one) in distinct.iter().enumerate() {
            assert!(distinct[at + 1..].iter().all(|other| one != other), "{at}");
        }
        assert_eq!(
            of(&[("cookie", "id=9; lang=de"), ("accept", "x")]),
            of(&[("cookie", "lang=de ;id=8")])
        );
        assert_eq!(
            of(&[("cookie", "lang=de"), ("cookie", "theme=dark")]),
            of(&[("cookie", "theme=dark; lang=de")])
        );
    }

    #[test]
    fn a_cookie_that_matches_makes_the_request_bypass() {
        let rules = rules(|spec| spec.bypass_cookies = vec!["wp_logged_in_*".into(), "sid".into()]);
        let bypasses = |cookie| rules.is_bypass(&request(&[("cookie", cookie)]));
        assert!(bypasses("a=1; wp_logged_in_7=x"));
        assert!(bypasses("sid="));
        assert!(!bypasses("sidx=1; a=sid"));
        assert!(!bypasses("sid"));
        assert!(!rules.is_bypass(&request(&[])));
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let with = |spec: KeyRulesSpec| KeyRules::new(&spec).unwrap_err().to_string();
        let error = with(KeyRulesSpec {
            drop_query: vec!["a[".into()],
            ..KeyRulesSpec::default()
        });
        assert!(error.starts_with("`a[` is not a pattern: "), "{error}");
        let error = with(KeyRulesSpec {
            cookies: vec!["a=b".into()],
            ..KeyRulesSpec::default()
        });
        assert_eq!(error, "`a=b` is not the name of a cookie");
        let error = with(KeyRulesSpec {
            fields: vec!["Cookie".into()],
            ..KeyRulesSpec::default()
        });
        assert_eq!(error, "`cookie` cannot be part of the cache key");
    }
}
