//! Decides if a stored response answers a request (RFC 9111 4, 4.2.4, 5.2.1, RFC 5861, RFC 8246).
//!
//! The proxy calls it for every lookup that found a response; this is the hot path for a hit.
//!
//! Invariant: a stale response is served only if RFC 9111 4.2.4 allows it: never against
//! `no-cache`, `must-revalidate`, `proxy-revalidate` or `s-maxage`.
//! Cost: some additions and comparisons; no field of the stored response is parsed, and in the
//! request only Cache-Control, if present.
//!
//! Before the call, the caller matches the Vary row if the facts have the flag `VARIES`; no match
//! is [`Forward::VaryMiss`]. After [`Reuse::Fresh`] it evaluates the request's preconditions
//! (`validate`) and Range (`range`), in this order.

use http::Method;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, HeaderMap, HeaderName, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_UNMODIFIED_SINCE, PRAGMA, RANGE,
};

use crate::cache_control::RequestDirectives;
use crate::cache_status::Forward;
use crate::coding::accepts_coding;
use crate::date::{Seconds, UnixTime};
use crate::request_fields::{Exempt, has_override, overrides};
use crate::storable::has_content;
use crate::stored_facts::{FactFlags, StoredFacts};
use crate::vary::VaryRow;

/// The properties of a request that the rules need, parsed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Directives from Cache-Control or Pragma.
    pub directives: RequestDirectives,
    /// Method, as far as a cache distinguishes it.
    pub method: MethodKind,
    /// The request has a precondition that a cache can evaluate: If-None-Match, If-Modified-Since.
    pub has_condition: bool,
    /// The request has a precondition about the origin's state: If-Match, If-Unmodified-Since. The
    /// caller clears the flag if [`origin_conditions_hold`](crate::origin_conditions_hold) for the
    /// stored response.
    pub has_origin_condition: bool,
    /// The request has a Range.
    pub has_range: bool,
    /// The request has content.
    pub has_content: bool,
    /// The request has a field by which some origins use another host, path, scheme or method. A
    /// stored response answers it only if it varies by all such fields: [`answers_overrides`].
    pub has_override: bool,
}

/// A method, as far as a cache distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// Responses are stored and reused.
    Get,
    /// Answered from the stored response to GET.
    Head,
    /// Never answered from the cache.
    Other,
}

impl RequestFacts {
    /// A GET without any field that the rules read.
    pub const PLAIN_GET: RequestFacts = RequestFacts {
        directives: RequestDirectives::NONE,
        method: MethodKind::Get,
        has_condition: false,
        has_origin_condition: false,
        has_range: false,
        has_content: false,
        has_override: false,
    };

    /// Reads the facts from a request.
    pub fn new(method: &Method, fields: &HeaderMap) -> RequestFacts {
        RequestFacts::with_exempt(method, fields, Exempt::default())
    }

    /// Reads the facts from a request to a site, where the key or a front proxy covers some fields.
    pub fn with_exempt(method: &Method, fields: &HeaderMap, exempt: Exempt<'_>) -> RequestFacts {
        let has = |name| fields.contains_key(name);
        let directives = if has(CACHE_CONTROL) || has(PRAGMA) {
            RequestDirectives::parse(fields)
        } else {
            RequestDirectives::default()
        };
        let method = match *method {
            Method::GET => MethodKind::Get,
            Method::HEAD => MethodKind::Head,
            _ => MethodKind::Other,
        };
        RequestFacts {
            directives,
            method,
            has_condition: has(IF_NONE_MATCH) || has(IF_MODIFIED_SINCE),
            has_origin_condition: has(IF_MATCH) || has(IF_UNMODIFIED_SINCE),
            has_range: has(RANGE),
            has_content: has_content(fields),
            has_override: has_override(fields, exempt),
        }
    }

    /// Returns `Ok` if the store may be searched, otherwise the reason for forwarding the request.
    pub fn lookup(&self) -> Result<(), Forward> {
        match self.method {
            MethodKind::Other => Err(Forward::Method),
            _ if self.has_content => Err(Forward::Bypass),
            MethodKind::Get | MethodKind::Head => Ok(()),
        }
    }
}

/// Returns true if the stored response was selected by all overrides in the request, so that it may
/// answer the request; `row` is the stored Vary row, if any.
pub fn answers_overrides(request: &HeaderMap, exempt: Exempt<'_>, row: Option<&VaryRow>) -> bool {
    let is_named = |name: &HeaderName| row.is_some_and(|row| row.names(name));
    overrides(request, exempt).all(is_named)
}

/// Returns true if the content coding allows a stored response for the client of `request`: the
/// response has no coding, or a coding that the request accepts, or a coding that was not
/// negotiated.
pub fn coding_fits(facts: &StoredFacts, stored: &HeaderMap, request: &HeaderMap) -> bool {
    facts.flags.has(FactFlags::ANY_CODING)
        || !stored.contains_key(CONTENT_ENCODING)
        || accepts_coding(request, stored)
}

/// How to use a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Serve the response.
    Fresh {
        /// Value for the Age field.
        age: Seconds,
        /// Remaining lifetime.
        ttl: i64,
    },
    /// Serve the response although it is stale.
    Stale {
        /// Value for the Age field.
        age: Seconds,
        /// Remaining lifetime: zero or negative.
        ttl: i64,
        /// The party that permits a stale response.
        allowed_by: StaleAllowance,
    },
    /// Validate it upstream, and do not serve it before.
    Validate {
        /// Reason.
        forward: Forward,
        /// Use of the stored response if upstream fails.
        on_error: OnError,
    },
    /// Forward the request unchanged: this response cannot answer it.
    Miss {
        /// Reason.
        forward: Forward,
    },
    /// The request forbids forwarding (`only-if-cached`): answer 504.
    Unsatisfiable,
}

/// The party that permits a stale response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleAllowance {
    /// The client: `max-stale`.
    Client,
    /// The origin: `stale-while-revalidate`. A validation must be started in the background.
    WhileRevalidating,
}

/// Use of a stored response after a failed validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Do not serve it: forward the error, or answer 504.
    Fail,
    /// Serve it if upstream cannot be reached or closes early; a 5xx response is forwarded (RFC
    /// 9111 4.2.4: a disconnected cache).
    ServeIfUnreachable,
    /// Serve it also in place of a 500, 502, 503 or 504 response (RFC 5861 4).
    ServeIfError,
}

/// Settings for the reuse rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseOptions {
    /// The effect of a client's reload.
    pub client_reload: ClientReload,
    /// How long past the lifetime a response may be served while upstream cannot be reached, if the
    /// origin does not state it.
    pub disconnected: Seconds,
    /// How long past the lifetime a response may be served in place of an error, if the origin does
    /// not state it.
    pub stale_if_error: Seconds,
    /// How long past the lifetime a response may be served during a validation, if the origin does
    /// not state it.
    pub stale_while_revalidate: Seconds,
}

impl Default for ReuseOptions {
    /// A reload causes a validation; without upstream, an old response is better than none.
    fn default() -> ReuseOptions {
        ReuseOptions {
            client_reload: ClientReload::Validate,
            disconnected: Seconds::MAX,
            stale_if_error: Seconds::ZERO,
            stale_while_revalidate: Seconds::ZERO,
        }
    }
}

/// The effect of a client's `no-cache`, `max-age=0` or `Pragma: no-cache` on a fresh response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientReload {
    /// Validate the response.
    #[default]
    Validate,
    /// Serve the response if it arrived or was validated within this time: for metered lines.
    IgnoreWithin(Seconds),
}

/// Decides how to use a stored response after its Vary row has matched the request.
pub fn reuse(
    request: &RequestFacts,
    stored: &StoredFacts,
    now: UnixTime,
    options: &ReuseOptions,
) -> Reuse {
    let decision = decide(request, stored, now, options);
    match decision {
        Reuse::Validate { .. } | Reuse::Miss { .. } if request.directives.only_if_cached => {
            Reuse::Unsatisfiable
        }
        _ => decision,
    }
}

fn decide(
    request: &RequestFacts,
    stored: &StoredFacts,
    now: UnixTime,
    options: &ReuseOptions,
) -> Reuse {
    if let Err(forward) = request.lookup() {
        return Reuse::Miss { forward };
    }
    // The preconditions are false for the stored response, so only the origin can evaluate them for
    // its current state. RFC 9110 13.1.1 allows a cache to ignore them, but then a client that
    // fetches a file in parts could mix bytes from two versions.
    if request.has_origin_condition {
        return Reuse::Miss {
            forward: Forward::Request,
        };
    }
    let (age, ttl) = (stored.age(now), stored.ttl(now));
    let validate = |forward| Reuse::Validate {
        forward,
        on_error: on_error(request, stored, now, options),
    };
    if stored.flags.has(FactFlags::NO_CACHE) {
        return validate(Forward::Stale);
    }
    if stored.is_fresh(now) {
        return if client_accepts_fresh(request, stored, now, options) {
            Reuse::Fresh { age, ttl }
        } else {
            validate(Forward::Request)
        };
    }
    match stale_allowance(&request.directives, stored, now, options) {
        Some(allowed_by) => Reuse::Stale {
            age,
            ttl,
            allowed_by,
        },
        None => validate(Forward::Stale),
    }
}

fn client_accepts_fresh(
    request: &RequestFacts,
    stored: &StoredFacts,
    now: UnixTime,
    options: &ReuseOptions,
) -> bool {
    let wanted = &request.directives;
    let stays_fresh = wanted
        .min_fresh
        .is_none_or(|least| stored.ttl(now) >= i64::from(least.get()));
    if !stays_fresh {
        return false;
    }
    let reload = wanted.no_cache || wanted.max_age == Some(Seconds::ZERO);
    if let (true, ClientReload::IgnoreWithin(span)) = (reload, options.client_reload)
        && now.since(stored.response_time) <= span
    {
        return true;
    }
    // A response that arrived in this second has age 0, yet `max-age=0` demands a validation.
    let young = |most| stored.age(now) <= most && most > Seconds::ZERO;
    // RFC 8246 2: an immutable response is not validated while fresh unless the client insists.
    // `no-cache` insists; every plain reload sends `max-age=0`.
    let immutable = stored.flags.has(FactFlags::IMMUTABLE);
    !wanted.no_cache && (immutable || wanted.max_age.is_none_or(young))
}

/// The permission, if any, to serve a stale response without validation.
fn stale_allowance(
    wanted: &RequestDirectives,
    stored: &StoredFacts,
    now: UnixTime,
    options: &ReuseOptions,
) -> Option<StaleAllowance> {
    // A response time in the future gives no age to compare with a limit.
    let ageless = stored.response_time > now;
    let client_insists = wanted.no_cache || wanted.min_fresh.is_some();
    let too_old = wanted.max_age.is_some_and(|most| stored.age(now) > most);
    if ageless || client_insists || too_old || stored.flags.has(FactFlags::NEVER_STALE) {
        return None;
    }
    let late = lateness(stored, now);
    if wanted.max_stale.is_some_and(|most| late <= most) {
        return Some(StaleAllowance::Client);
    }
    let window = match stored.stale_while_revalidate {
        Seconds::ZERO => options.stale_while_revalidate,
        stated => stated,
    };
    (late < window).then_some(StaleAllowance::WhileRevalidating)
}

fn on_error(
    request: &RequestFacts,
    stored: &StoredFacts,
    now: UnixTime,
    options: &ReuseOptions,
) -> OnError {
    let never_stale = stored.flags.has(FactFlags::NEVER_STALE) && !stored.is_fresh(now);
    if never_stale || stored.flags.has(FactFlags::NO_CACHE) {
        return OnError::Fail;
    }
    let late = lateness(stored, now);
    let window = request.directives.stale_if_error.unwrap_or(Seconds::ZERO);
    let window = window.max(match stored.stale_if_error {
        Seconds::ZERO => options.stale_if_error,
        stated => stated,
    });
    if window > Seconds::ZERO && late <= window {
        OnError::ServeIfError
    } else if late <= options.disconnected {
        OnError::ServeIfUnreachable
    } else {
        OnError::Fail
    }
}

/// How long a response has been stale.
fn lateness(stored: &StoredFacts, now: UnixTime) -> Seconds {
    stored.age(now).beyond(stored.lifetime.seconds)
}
