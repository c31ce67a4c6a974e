//! Cache-Status (RFC 9211): how a request was answered, for debugging.
//!
//! The proxy fills a `CacheStatus` for each response; logs and metrics use the same words.
//!
//! Invariant: the value is one well-formed Structured Fields member, whatever the detail holds.
//! Cost: one allocation of about 60 bytes.

use std::fmt::Write;

use http::StatusCode;
use http::header::{CACHE_STATUS, HeaderMap, HeaderValue};

use crate::structured::is_list;
use crate::via::Pseudonym;

/// Why a request was forwarded (RFC 9211 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// The cache was not to handle it.
    Bypass,
    /// Its method is always forwarded.
    Method,
    /// Nothing is stored for its URI.
    UriMiss,
    /// The stored variants were selected by other request fields.
    VaryMiss,
    /// Nothing stored can answer it, for another reason.
    Miss,
    /// A fresh response is stored, but the request does not want it.
    Request,
    /// The stored response is stale.
    Stale,
    /// Only a part of it is stored.
    Partial,
}

impl Forward {
    /// The word of RFC 9211.
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

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// Served from the store.
    Hit,
    /// Forwarded.
    Forwarded(Forward),
}

/// The parameters of our member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// From the store or from upstream.
    pub handling: Handling,
    /// The status upstream sent, where it differs from the one passed on.
    pub upstream_status: Option<StatusCode>,
    /// The lifetime that is left; negative when stale.
    pub ttl: Option<i64>,
    /// Whether the response was stored.
    pub stored: bool,
    /// Whether it was shared with other requests.
    pub collapsed: bool,
    /// More, such as [`NotStored::as_str`](crate::NotStored::as_str).
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Only how it was answered.
    pub fn of(handling: Handling) -> CacheStatus<'static> {
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

    /// Adds our member after those of caches nearer to the origin.
    pub fn append(&self, us: &Pseudonym, response: &mut HeaderMap) {
        response.append(CACHE_STATUS, self.to_value(us));
    }
}

/// Removes the Cache-Status of other caches if it is no list of RFC 9211: whoever parses the field
/// would lose our member with it (RFC 9651 4.2).
pub fn remove_broken_cache_status(response: &mut HeaderMap) {
    if response.contains_key(CACHE_STATUS) && !is_list(response, &CACHE_STATUS) {
        response.remove(CACHE_STATUS);
    }
}

/// Writes text as a Structured Fields token where it is one, else as a string.
pub(crate) fn push_item(out: &mut String, text: &str) {
    let token_byte = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b);
    let starts_token = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*');
    if starts_token && text.bytes().all(token_byte) {
        out.push_str(text);
    } else {
        push_string(out, text);
    }
}

/// Writes text as a Structured Fields string: printable ASCII in quotes, all else as `?`.
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
            ..CacheStatus::of(Handling::Hit)
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
            ..CacheStatus::of(Handling::Hit)
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
            CacheStatus::of(Handling::Hit).append(&us(), &mut fields);
            assert!(is_list(&fields, &CACHE_STATUS), "{lines:?}");
        }
    }

    #[test]
    fn our_member_comes_last() {
        let mut fields = HeaderMap::new();
        fields.insert(CACHE_STATUS, HeaderValue::from_static("origin; hit"));
        let miss = CacheStatus::of(Handling::Forwarded(Forward::UriMiss));
        miss.append(&us(), &mut fields);
        let lines: Vec<_> = fields.get_all(CACHE_STATUS).iter().collect();
        assert_eq!(lines, ["origin; hit", "hashcache; fwd=uri-miss"]);
    }
}
