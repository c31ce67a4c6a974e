//! Targeted cache control: fields that speak to one kind of cache (RFC 9213).
//!
//! `storable` reads the directives of a response through it. Which fields speak to this cache is
//! the caller's to say: `CDN-Cache-Control` where it stands in front of an origin, none elsewhere.
//!
//! Invariants: the first such field that is a valid dictionary (RFC 9651 3.2) and not empty counts
//! alone, and Cache-Control and Expires do not; one that is not valid counts as absent (RFC 9213
//! 2.1, 2.2). Of a directive with a value of another type than it takes, the careful reading
//! counts, as in `cache_control`.
//! Cost: one pass over the field.

use std::borrow::Cow;

use http::header::{HeaderMap, HeaderName};

use crate::cache_control::{DirectiveValue, ResponseDirectives};
use crate::structured::{Item, dictionary};

/// The targeted field of caches that an origin has put in front of itself.
pub const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

impl ResponseDirectives {
    /// The directives that count for a cache that `targets` speak to, the first one first: those of
    /// the first usable target, else of Cache-Control.
    pub fn for_targets(fields: &HeaderMap, targets: &[HeaderName]) -> ResponseDirectives {
        let targeted = targets.iter().find_map(|target| read(fields, target));
        targeted.unwrap_or_else(|| ResponseDirectives::parse(fields))
    }
}

fn read(fields: &HeaderMap, target: &HeaderName) -> Option<ResponseDirectives> {
    let members = dictionary(fields, target)?;
    if members.is_empty() {
        return None;
    }
    let mut out = ResponseDirectives {
        targeted: true,
        ..ResponseDirectives::default()
    };
    for (name, item) in &members {
        let digits;
        let value = match item {
            Item::Boolean(true) => DirectiveValue::None,
            Item::Boolean(false) => continue,
            Item::Integer(number) => {
                digits = number.to_string();
                DirectiveValue::Text(Cow::Borrowed(digits.as_bytes()))
            }
            Item::Text(text) if NAMES_FIELDS.contains(&name.as_str()) => {
                DirectiveValue::Text(Cow::Borrowed(text))
            }
            Item::Text(_) | Item::Bytes(_) | Item::Other => DirectiveValue::Malformed,
        };
        out.add(name.as_bytes(), &value);
    }
    Some(out)
}

/// Directives whose value is a list of field names.
const NAMES_FIELDS: [&str; 2] = ["no-cache", "private"];
