//! Cache-Status (RFC 9211): how the proxy answered a request, for debugging.
//!
//! The proxy fills a `CacheStatus` for each response; logs and metrics use the same terms.
//!
//! Invariant: the value is a single well-formed Structured Fields member, for any text in `detail`.
//! Cost: one allocation of about 60 bytes.

use std::fmt::Write;

use http::StatusCode;
use http::header::{CACHE_STATUS, HeaderMap, HeaderValue};

use crate::structured::is_list;
use crate::via::Pseudonym;

/// Why a request was forwarded (RFC 9211 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// The cache was configured not to handle the request.
    Bypass,
    /// The request method is always forwarded.
    Method,
    /// No response is stored for the URI.
    UriMiss,
    /// The stored variants were selected by other request fields.
    VaryMiss,
    /// No stored response can answer the request, for another reason.
    Miss,
    /// A fresh response is stored, but the request does not allow its use.
    Request,
    /// The stored response is stale.
    Stale,
    /// Only a part of the response is stored.
    Partial,
}

impl Forward {
    /// The value in RFC 9211.
    pub const fn as_str(self) -> &'static str {
        match self {
            Forward::Bypass => "bypass",
            Forward::Method => "method",
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Miss => "miss",
            Forward::Request => "request",
            Forward::Stale => "stale",
            Forward::Partial => "partial",
        }
    }
}

/// How the proxy answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// Served from the store.
    Hit,
    /// Forwarded to upstream.
    Forwarded(Forward),
}

/// The parameters of our list member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// Hit, or the reason for forwarding.
    pub handling: Handling,
    /// The status from upstream, if it differs from the status that the client gets.
    pub upstream_status: Option<StatusCode>,
    /// The remaining lifetime; negative if stale.
    pub ttl: Option<i64>,
    /// True if the response was stored.
    pub stored: bool,
    /// True if the request was collapsed with others.
    pub collapsed: bool,
    /// More details, such as [`NotStored::as_str`](crate::NotStored::as_str).
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// A status with only `hit` or `fwd`.
    pub fn from_handling(handling: Handling) -> CacheStatus<'static> {
        CacheStatus {
            handling,
            upstream_status: None,
            ttl: None,
            stored: false,
            collapsed: false,
            detail: None,
        }
    }

    /// The field value, such as `hashcache; fwd=stale; fwd-status=304; ttl=60; stored`.
    pub fn to_value(&self, us: &Pseudonym) -> HeaderValue {
        let mut out = String::with_capacity(96);
        push_item(&mut out, us.as_str());
        match self.handling {
            Handling::Hit => out.push_str("; hit"),
            Handling::Forwarded(forward) => {
                out.push_str("; fwd=");
                out.push_str(forward.as_str());
            }
        }
        if let Some(status) = self.upstream_status {
            out.push_str("; fwd-status=");
            out.push_str(status.as_str());
        }
        if let Some(ttl) = self.ttl {
            // Structured Fields allow fifteen digits; a lifetime has ten.
            let ttl = ttl.clamp(-999_999_999_999_999, 999_999_999_999_999);
            write!(out, "; ttl={ttl}").expect("a String takes all that is written");
        }
        if self.stored {
            out.push_str("; stored");
        }
        if self.collapsed {
            out.push_str("; collapsed");
        }
        if let Some(detail) = self.detail {
            out.push_str("; detail=");
            push_item(&mut out, detail);
        }
        into_value(out)
    }

    /// Appends our member after the members that caches nearer to the origin have added.
    pub fn append(&self, us: &Pseudonym, response: &mut HeaderMap) {
        response.append(CACHE_STATUS, self.to_value(us));
    }
}

/// Removes the Cache-Status field of other caches if it is not a list as RFC 9211 requires: a
/// recipient that parses the combined field would otherwise lose our member too (RFC 9651 4.2).
pub fn remove_broken_cache_status(response: &mut HeaderMap) {
    if response.contains_key(CACHE_STATUS) && !is_list(response, &CACHE_STATUS) {
        response.remove(CACHE_STATUS);
    }
}

/// Writes text as a Structured Fields token if possible, otherwise as a string.
pub(crate) fn push_item(out: &mut String, text: &str) {
    let token_byte = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b);
    let starts_token = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*');
    if starts_token && text.bytes().all(token_byte) {
        out.push_str(text);
    } else {
        push_string(out, text);
    }
}

/// Writes text as a Structured Fields string: printable ASCII in quotes, any other character as
/// `?`.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out.push('"');
}

pub(crate) fn into_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("items hold printable ASCII only")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us() -> Pseudonym {
        Pseudonym::new("hashcache").unwrap()
    }

    #[test]
    fn a_hit_says_how_long_it_stays_fresh() {
        let status = CacheStatus {
            ttl: Some(376),
            ..CacheStatus::from_handling(Handling::Hit)
        };
        assert_eq!(status.to_value(&us()), "hashcache; hit; ttl=376");
        let stale = CacheStatus {
            ttl: Some(-5),
            ..status
        };
        assert_eq!(stale.to_value(&us()), "hashcache; hit; ttl=-5");
    }

    #[test]
    fn a_forwarded_request_says_all_it_knows() {
        let status = CacheStatus {
            handling: Handling::Forwarded(Forward::Stale),
            upstream_status: Some(StatusCode::NOT_MODIFIED),
            ttl: Some(60),
            stored: true,
            collapsed: true,
            detail: Some("set-cookie"),
        };
        assert_eq!(
            status.to_value(&us()),
            "hashcache; fwd=stale; fwd-status=304; ttl=60; stored; collapsed; detail=set-cookie"
        );
    }

    #[test]
    fn details_and_names_that_are_no_tokens_are_quoted() {
        let detail = Some("no \"x\"\\\r\nä");
        let status = CacheStatus {
            detail,
            ..CacheStatus::from_handling(Handling::Hit)
        };
        let us = Pseudonym::new("1cache").unwrap();
        assert_eq!(
            status.to_value(&us),
            r#""1cache"; hit; detail="no \"x\"\\???""#
        );
    }

    #[test]
    fn what_others_say_stays_only_if_it_can_be_parsed_with_ours() {
        for (lines, stays) in [
            (&["origin; hit"][..], true),
            (&["a; fwd=miss, \"b c\"; ttl=-1", "d"], true),
            (&["HIT from cache:80"], false),
            (&["a; hit", "b="], false),
            (&[""], false),
            (&["a,"], false),
            (&["a", " "], false),
            (&["\"a"], false),
            (&["a; Hit"], false),
        ] {
            let mut fields = HeaderMap::new();
            for line in lines {
                fields.append(CACHE_STATUS, HeaderValue::from_static(line));
            }
            remove_broken_cache_status(&mut fields);
            assert_eq!(fields.contains_key(CACHE_STATUS), stays, "{lines:?}");
            CacheStatus::from_handling(Handling::Hit).append(&us(), &mut fields);
            assert!(is_list(&fields, &CACHE_STATUS), "{lines:?}");
        }
    }

    #[test]
    fn our_member_comes_last() {
        let mut fields = HeaderMap::new();
        fields.insert(CACHE_STATUS, HeaderValue::from_static("origin; hit"));
        let miss = CacheStatus::from_handling(Handling::Forwarded(Forward::UriMiss));
        miss.append(&us(), &mut fields);
        let lines: Vec<_> = fields.get_all(CACHE_STATUS).iter().collect();
        assert_eq!(lines, ["origin; hit", "hashcache; fwd=uri-miss"]);
    }
}
