//! Targeted cache control: fields for a certain kind of cache (RFC 9213).
//!
//! `storable` reads the directives of a response through this module. The caller decides which
//! fields target this cache: `CDN-Cache-Control` in front of an origin, none elsewhere.
//!
//! Invariants: the first targeted field that is a valid dictionary (RFC 9651 3.2) and not empty is
//! used alone, without Cache-Control and Expires; an invalid field counts as absent (RFC 9213 2.1,
//! 2.2). A directive with a value of the wrong type is read in the safer way, as in
//! `cache_control`.
//! Cost: one pass over the field.

use std::borrow::Cow;

use http::header::{HeaderMap, HeaderName};

use crate::cache_control::{DirectiveValue, ResponseDirectives};
use crate::structured::{Item, dictionary};

/// The targeted field for caches that an origin has placed in front of itself.
pub const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

impl ResponseDirectives {
    /// The directives for a cache that is addressed by `targets`, in order of priority: from the
    /// first usable target, otherwise from Cache-Control.
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

/// Directives with a list of field names as value.
const NAMES_FIELDS: [&str; 2] = ["no-cache", "private"];
