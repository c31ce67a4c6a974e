//! Cache-Control and Pragma: directives of requests and responses (RFC 9111 5.2, 5861, 8246).
//!
//! Called by `storable` once per response, by `reuse` once per request that carries the field.
//!
//! Invariant: a value that cannot be parsed is read in the safer way. A restricting directive
//! (`no-store`, `private`, `no-cache`, …) counts with any value; a permitting directive (`public`,
//! `immutable`, …) counts only in the specified form.
//! Cost: one pass over the field lines; nothing is allocated without field names in quotes.
//!
//! | oddity | reading |
//! |---|---|
//! | lifetime given twice | the first counts, also when malformed (RFC 9111 4.2.1) |
//! | permission to serve stale given twice | the smaller |
//! | request's `max-age` twice; `min-fresh` twice | the smaller; the larger |
//! | `max-age=abc`, `5.5`, `-1`, `'5'`, none, blanks around `=` | 0: stale at once |
//! | `max-age="5"` | 5 (RFC 9111 5.2: both forms are to be accepted) |
//! | larger than 2^31 | 2^31 |
//! | malformed permission to serve stale | no permission |
//! | malformed `min-fresh` | more than any response can offer |
//! | `no-cache=""`, `private="…` | as without field names |

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, PRAGMA};

use crate::date::{Seconds, delta_seconds};
use crate::fields::{Backslash, is_token, members, split_list, trim, unquote};

/// Cache-Control directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// Lifetime in any cache.
    pub max_age: Option<Seconds>,
    /// Lifetime in a shared cache; implies `proxy-revalidate`.
    pub s_maxage: Option<Seconds>,
    /// Not to be used without validation: the whole response, or certain fields.
    pub no_cache: Scope,
    /// Not to be stored.
    pub no_store: bool,
    /// Not to be stored by a shared cache: the whole response, or certain fields.
    pub private: Scope,
    /// May be stored, even if it otherwise might not.
    pub public: bool,
    /// Must not be served stale.
    pub must_revalidate: bool,
    /// Must not be served stale by a shared cache.
    pub proxy_revalidate: bool,
    /// To be stored only by a cache that understands the status code.
    pub must_understand: bool,
    /// Content is not to be transformed.
    pub no_transform: bool,
    /// The response does not change while it is fresh (RFC 8246).
    pub immutable: bool,
    /// How long past the lifetime the response may be served during a revalidation (RFC 5861).
    pub stale_while_revalidate: Option<Seconds>,
    /// How long past the lifetime the response may be served instead of an error (RFC 5861).
    pub stale_if_error: Option<Seconds>,
    /// The directives are from a targeted field (RFC 9213), for example CDN-Cache-Control: Expires
    /// is then ignored.
    pub targeted: bool,
}

/// The scope of a directive that may carry field names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    Nothing,
    /// Only these fields of the response.
    Fields(Vec<HeaderName>),
    /// The whole response.
    Response,
}

impl Scope {
    /// Returns true if the directive applies to the whole response.
    pub fn is_response(&self) -> bool {
        *self == Scope::Response
    }

    /// The fields that the directive names.
    pub fn fields(&self) -> &[HeaderName] {
        match self {
            Scope::Fields(names) => names,
            Scope::Nothing | Scope::Response => &[],
        }
    }

    /// Adds another occurrence of the directive to the scope.
    fn add(&mut self, value: &DirectiveValue<'_>) {
        let listed = match value {
            DirectiveValue::Text(text) => field_names(text),
            DirectiveValue::None | DirectiveValue::Malformed => None,
        };
        match (&mut *self, listed) {
            (Scope::Fields(names), Some(more)) => names.extend(more),
            (Scope::Nothing, Some(names)) => *self = Scope::Fields(names),
            _ => *self = Scope::Response,
        }
    }
}

/// Parses a list of field names; `None` if the list is empty or contains anything else.
fn field_names(text: &[u8]) -> Option<Vec<HeaderName>> {
    let parse = |name| HeaderName::from_bytes(name).ok();
    let names: Option<Vec<_>> = split_list(text, Backslash::Plain).map(parse).collect();
    names.filter(|names| !names.is_empty())
}

impl ResponseDirectives {
    /// Parses the Cache-Control lines of a response.
    pub fn parse(fields: &HeaderMap) -> ResponseDirectives {
        let mut out = ResponseDirectives::default();
        for Directive { name, value } in directives(fields) {
            out.add(name, &value);
        }
        out
    }

    /// Adds a directive.
    pub(crate) fn add(&mut self, name: &[u8], value: &DirectiveValue<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("max-age") {
            self.max_age.get_or_insert(value.lifetime());
        } else if is("s-maxage") {
            self.s_maxage.get_or_insert(value.lifetime());
        } else if is("no-cache") {
            self.no_cache.add(value);
        } else if is("no-store") {
            self.no_store = true;
        } else if is("private") {
            self.private.add(value);
        } else if is("public") {
            self.public |= value.is_none();
        } else if is("must-revalidate") {
            self.must_revalidate = true;
        } else if is("proxy-revalidate") {
            self.proxy_revalidate = true;
        } else if is("must-understand") {
            self.must_understand |= value.is_none();
        } else if is("no-transform") {
            self.no_transform = true;
        } else if is("immutable") {
            self.immutable |= value.is_none();
        } else if is("stale-while-revalidate") {
            smaller(&mut self.stale_while_revalidate, value.lifetime());
        } else if is("stale-if-error") {
            smaller(&mut self.stale_if_error, value.lifetime());
        }
    }

    /// Returns true if a shared cache must never serve the response stale.
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.s_maxage.is_some()
    }
}

/// Directives of a request: from Cache-Control, or from Pragma if there is no Cache-Control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// The client accepts no response older than this.
    pub max_age: Option<Seconds>,
    /// The client accepts a response that is stale by at most this time.
    pub max_stale: Option<Seconds>,
    /// The client accepts only a response that stays fresh for at least this time.
    pub min_fresh: Option<Seconds>,
    /// The client accepts no stored response without validation.
    pub no_cache: bool,
    /// Neither the request nor the response may be stored.
    pub no_store: bool,
    /// Content is not to be transformed.
    pub no_transform: bool,
    /// The client accepts only a stored response.
    pub only_if_cached: bool,
    /// How long past the lifetime a response may be served instead of an error (RFC 5861).
    pub stale_if_error: Option<Seconds>,
}

impl RequestDirectives {
    /// Directives of a request without Cache-Control and Pragma.
    pub const NONE: RequestDirectives = RequestDirectives {
        max_age: None,
        max_stale: None,
        min_fresh: None,
        no_cache: false,
        no_store: false,
        no_transform: false,
        only_if_cached: false,
        stale_if_error: None,
    };

    /// Parses the Cache-Control lines of a request; if there are none, `Pragma: no-cache`.
    pub fn parse(fields: &HeaderMap) -> RequestDirectives {
        let mut out = RequestDirectives::default();
        if !fields.contains_key(CACHE_CONTROL) {
            if fields.contains_key(PRAGMA) {
                let no_cache = |member: &[u8]| member.eq_ignore_ascii_case(b"no-cache");
                out.no_cache = members(fields, &PRAGMA).any(no_cache);
            }
            return out;
        }
        for Directive { name, value } in directives(fields) {
            out.add(name, &value);
        }
        out
    }

    fn add(&mut self, name: &[u8], value: &DirectiveValue<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("max-age") {
            smaller(&mut self.max_age, value.lifetime());
        } else if is("max-stale") {
            let allowed = match value {
                DirectiveValue::None => Seconds::MAX,
                _ => value.lifetime(),
            };
            smaller(&mut self.max_stale, allowed);
        } else if is("min-fresh") {
            let wanted = value.seconds().unwrap_or(Seconds::MAX);
            self.min_fresh = self.min_fresh.max(Some(wanted));
        } else if is("no-cache") {
            self.no_cache = true;
        } else if is("no-store") {
            self.no_store = true;
        } else if is("no-transform") {
            self.no_transform = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        } else if is("stale-if-error") {
            smaller(&mut self.stale_if_error, value.lifetime());
        }
    }
}

fn smaller(slot: &mut Option<Seconds>, value: Seconds) {
    *slot = Some(slot.map_or(value, |before| before.min(value)));
}

struct Directive<'a> {
    name: &'a [u8],
    value: DirectiveValue<'a>,
}

/// The part after a directive's `=`.
pub(crate) enum DirectiveValue<'a> {
    None,
    /// A token, or the content of a quoted string.
    Text(Cow<'a, [u8]>),
    Malformed,
}

impl DirectiveValue<'_> {
    fn is_none(&self) -> bool {
        matches!(self, DirectiveValue::None)
    }

    fn seconds(&self) -> Option<Seconds> {
        match self {
            DirectiveValue::Text(text) => delta_seconds(text),
            DirectiveValue::None | DirectiveValue::Malformed => None,
        }
    }

    /// The seconds of a lifetime or permission; zero if the value cannot be parsed.
    fn lifetime(&self) -> Seconds {
        self.seconds().unwrap_or(Seconds::ZERO)
    }
}

fn directives(fields: &HeaderMap) -> impl Iterator<Item = Directive<'_>> {
    members(fields, &CACHE_CONTROL).map(directive)
}

/// `token [ "=" ( token / quoted-string ) ]`. Spaces around the `=` make the value malformed, but
/// not the name: `no-store =x` still forbids storing, and `max-age = 5` still counts as a lifetime.
fn directive(member: &[u8]) -> Directive<'_> {
    let Some(equals) = member.iter().position(|&b| b == b'=') else {
        return Directive {
            name: member,
            value: DirectiveValue::None,
        };
    };
    let (name, text) = (&member[..equals], &member[equals + 1..]);
    let value = if trim(name).len() != name.len() {
        DirectiveValue::Malformed
    } else if is_token(text) {
        DirectiveValue::Text(Cow::Borrowed(text))
    } else {
        unquote(text).map_or(DirectiveValue::Malformed, DirectiveValue::Text)
    };
    Directive {
        name: trim(name),
        value,
    }
}

#[cfg(test)]
mod tests;
