//! The freshness lifetime of a response in a shared cache (RFC 9111 4.2, 5.3, RFC 8246).
//!
//! `storable` computes the lifetime once per response; the stored facts keep the result.
//!
//! Invariant: an invalid explicit lifetime is zero and never replaced by a guess: a heuristic
//! applies only if the origin states nothing at all.
//! Cost: one lookup in the rules, two in the site lifetimes if there are any, and at most three
//! dates parsed.
//!
//! The first that applies decides: an `immutable` rule (unless the origin forbids it), s-maxage,
//! max-age, Expires minus Date, the lifetime of a rule, the default of the site, a heuristic for
//! content, the negative lifetime for errors. A site limit shortens all of them. Any lifetime that
//! the origin does not state is assumed only if `guess` allows it.

use http::header::{CONTENT_TYPE, EXPIRES, HeaderMap, LAST_MODIFIED, SET_COOKIE};
use http::{Method, StatusCode};

use crate::cache_control::ResponseDirectives;
use crate::date::{Seconds, UnixTime, parse_http_date};
use crate::exchange::Exchange;
use crate::fields::{Single, single, trim};
use crate::guess::{Basis, is_content, may_assume};
use crate::options::StoreOptions;
use crate::request_fields::FieldKinds;
use crate::rules::{Matched, RuleAction, RuleAuthor};

/// A lifetime and the source it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Length; zero means stale from the start.
    pub seconds: Seconds,
    /// The source of the lifetime.
    pub source: LifetimeSource,
}

/// Source of a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeSource {
    /// No source gives the response a lifetime; it is stale from the start.
    None,
    /// `s-maxage`
    SMaxage,
    /// `max-age`
    MaxAge,
    /// Expires minus Date.
    Expires,
    /// A rule's lifetime.
    Rule,
    /// A rule with `immutable`.
    Immutable,
    /// A percentage of the time since Last-Modified.
    Heuristic,
    /// The negative lifetime, for 404 and 410, and for other errors with a Last-Modified.
    Negative,
}

/// The lifetime of a response. `date` is the response's Date, or the time of arrival if it has
/// none.
pub fn lifetime(
    exchange: &Exchange<'_>,
    directives: &ResponseDirectives,
    date: UnixTime,
    options: &StoreOptions,
) -> Lifetime {
    let kinds = exchange.kinds(&options.harmless);
    lifetime_of(exchange, kinds, directives, date, options)
}

/// As [`lifetime`], with the kinds of the request fields already known.
pub(crate) fn lifetime_of(
    exchange: &Exchange<'_>,
    kinds: FieldKinds,
    directives: &ResponseDirectives,
    date: UnixTime,
    options: &StoreOptions,
) -> Lifetime {
    let unlimited = unlimited(exchange, kinds, directives, date, options);
    limited(exchange, unlimited, options)
}

/// Shortens a lifetime to the operator's limit for the site. A cache may always use a response for
/// a shorter time than the origin allows.
fn limited(exchange: &Exchange<'_>, lifetime: Lifetime, options: &StoreOptions) -> Lifetime {
    let max = options.sites.max_for(exchange.target);
    let seconds = max.map_or(lifetime.seconds, |max| lifetime.seconds.min(max));
    of(seconds, lifetime.source)
}

fn unlimited(
    exchange: &Exchange<'_>,
    kinds: FieldKinds,
    directives: &ResponseDirectives,
    date: UnixTime,
    options: &StoreOptions,
) -> Lifetime {
    let may_assume = |basis| may_assume(basis, exchange, kinds);
    let explicit = explicit_lifetime(exchange.response, directives, date, exchange.response_time);
    let rule = match explicit {
        Some(_) => options.rules.find_immutable(exchange.target),
        None => options.rules.find(exchange.target),
    };
    // A `heuristic` rule gives no lifetime by itself, so no permission is needed.
    let gives_none = |rule: &Matched| matches!(rule.action, RuleAction::Heuristic(_));
    let rule = rule.filter(|rule| gives_none(rule) || may_assume(basis_of(rule.author)));
    let immutable = rule.filter(|rule| rule.action == RuleAction::Immutable);
    if immutable.is_some_and(|rule| immutable_applies(exchange, directives, explicit, rule.author))
    {
        let stated = explicit.map_or(Seconds::ZERO, |lifetime| lifetime.seconds);
        return of(options.immutable.max(stated), LifetimeSource::Immutable);
    }
    if let Some(explicit) = explicit {
        return explicit;
    }
    if !(directives.public || is_heuristically_cacheable(exchange.status)) {
        return of(Seconds::ZERO, LifetimeSource::None);
    }
    let is_error = exchange.status.is_client_error() || exchange.status.is_server_error();
    let heuristic = match rule.map(|rule| rule.action) {
        // A lifetime rule is for content: it does not apply to errors without `public`.
        Some(RuleAction::Lifetime(seconds)) if !is_error || directives.public => {
            return of(seconds, LifetimeSource::Rule);
        }
        Some(RuleAction::Heuristic(heuristic)) => heuristic,
        Some(RuleAction::Lifetime(_) | RuleAction::Immutable) | None => options.heuristic,
    };
    let is_ruled = rule.is_some_and(|rule| rule.author == RuleAuthor::Operator);
    if !is_ruled
        && may_assume(Basis::SiteDefault)
        && let Some(seconds) = options.sites.default_for(exchange, kinds)
    {
        return of(seconds, LifetimeSource::Rule);
    }
    let changed = last_modified(exchange.response, exchange.response_time);
    let changed = changed.filter(|changed| *changed <= date);
    if is_content(exchange.status, directives) {
        return match changed {
            Some(changed) if may_assume(Basis::LastModified) => {
                let guess = date.since(changed).percent(heuristic.percent);
                of(guess.min(heuristic.max), LifetimeSource::Heuristic)
            }
            _ => of(Seconds::ZERO, LifetimeSource::None),
        };
    }
    let gone = matches!(exchange.status, StatusCode::NOT_FOUND | StatusCode::GONE);
    // An error with a Last-Modified is a page of the origin, not a momentary failure.
    if is_error && (gone || changed.is_some()) && may_assume(Basis::Negative) {
        return of(options.negative, LifetimeSource::Negative);
    }
    of(Seconds::ZERO, LifetimeSource::None)
}

fn basis_of(author: RuleAuthor) -> Basis {
    match author {
        RuleAuthor::Operator => Basis::OperatorRule,
        RuleAuthor::Shipped => Basis::ShippedRule,
    }
}

/// The lifetime of a response after a successful validation, given the previous lifetime.
///
/// With `adaptive` a heuristic lifetime doubles each time, from [`ADAPTIVE_FIRST`] up to the
/// maximum for heuristics (Chankhunthod et al., A Hierarchical Internet Object Cache, 1996, section
/// 4: binary exponential backoff). A lifetime that the origin states is never extended, and nothing
/// is extended where no heuristic is allowed.
pub fn confirmed_lifetime(
    exchange: &Exchange<'_>,
    before: Lifetime,
    now: Lifetime,
    options: &StoreOptions,
) -> Lifetime {
    let kinds = exchange.kinds(&options.harmless);
    confirmed_lifetime_of((exchange, kinds), before, now, options)
}

/// As [`confirmed_lifetime`], with the field kinds of the first request, which the content answers.
pub(crate) fn confirmed_lifetime_of(
    (exchange, kinds): (&Exchange<'_>, FieldKinds),
    before: Lifetime,
    now: Lifetime,
    options: &StoreOptions,
) -> Lifetime {
    let guessed = |lifetime: Lifetime| {
        matches!(
            lifetime.source,
            LifetimeSource::None | LifetimeSource::Heuristic
        )
    };
    let directives = ResponseDirectives::for_targets(exchange.response, &options.targets);
    let may = options.adaptive
        && guessed(before)
        && guessed(now)
        && is_content(exchange.status, &directives)
        && may_assume(Basis::LastModified, exchange, kinds);
    if !may {
        return now;
    }
    let doubled = before.seconds.plus(before.seconds).max(ADAPTIVE_FIRST);
    let seconds = doubled.min(options.heuristic.max).max(now.seconds);
    limited(exchange, of(seconds, LifetimeSource::Heuristic), options)
}

/// The first lifetime for a confirmed response without a previous lifetime.
pub const ADAPTIVE_FIRST: Seconds = Seconds::new(60);

fn of(seconds: Seconds, source: LifetimeSource) -> Lifetime {
    Lifetime { seconds, source }
}

/// The lifetime that the origin states. With targeted directives Expires is ignored (RFC 9213 2.2).
/// Several different Expires lines are invalid.
fn explicit_lifetime(
    response: &HeaderMap,
    directives: &ResponseDirectives,
    date: UnixTime,
    now: UnixTime,
) -> Option<Lifetime> {
    if let Some(seconds) = directives.s_maxage {
        return Some(of(seconds, LifetimeSource::SMaxage));
    }
    if let Some(seconds) = directives.max_age {
        return Some(of(seconds, LifetimeSource::MaxAge));
    }
    if directives.targeted {
        return None;
    }
    let expires = match single(response, EXPIRES) {
        Single::Absent => return None,
        Single::One(value) if is_in_gmt(value) => parse_http_date(value, now),
        Single::One(_) | Single::Conflicting => None,
    };
    let seconds = expires.map_or(Seconds::ZERO, |expires| expires.since(date));
    Some(of(seconds, LifetimeSource::Expires))
}

/// Returns true if a date names GMT, or has no zone, like asctime dates. With any other zone, even
/// `UTC`, an expiry date is invalid and therefore in the past (RFC 9111 4.2); elsewhere `UTC` is
/// read as GMT.
fn is_in_gmt(date: &[u8]) -> bool {
    let zone = date.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    zone.eq_ignore_ascii_case(b"GMT") || zone.iter().all(u8::is_ascii_digit)
}

/// Returns true if a rule may make this response immutable.
///
/// The rule's author knows that the file name is derived from the content, so the rule extends the
/// origin's lifetime. But the rule does not override an origin that explicitly excludes this, by a
/// lifetime of zero, `no-cache`, or a directive that forbids stale responses (RFC 9111 4.2.4). A
/// URL with a query is excluded, because the query may select content that the path does not name.
///
/// The shipped rules know file names, but not sites, so they need more checks: see
/// [`is_shared_file`].
fn immutable_applies(
    exchange: &Exchange<'_>,
    directives: &ResponseDirectives,
    explicit: Option<Lifetime>,
    author: RuleAuthor,
) -> bool {
    let content = matches!(
        exchange.status,
        StatusCode::OK | StatusCode::PARTIAL_CONTENT
    );
    *exchange.method == Method::GET
        && content
        && exchange.target.query().is_none()
        && !directives.no_cache.is_response()
        && !directives.forbids_stale()
        && explicit.is_none_or(|lifetime| lifetime.seconds > Seconds::ZERO)
        && (author == RuleAuthor::Operator || is_shared_file(exchange))
}

/// Returns true if a response may be the file that the name suggests, the same for all clients. The
/// name is not enough, because an account page may have any name: a response that sets a cookie, or
/// is a page or data rather than a file, may be made for a single client. [`may_assume`] has
/// already checked the request.
fn is_shared_file(exchange: &Exchange<'_>) -> bool {
    exchange.status == StatusCode::OK
        && !exchange.response.contains_key(SET_COOKIE)
        && !is_page_or_data(exchange.response)
}

/// Returns true for HTML and JSON, in any spelling; each Content-Type line counts.
fn is_page_or_data(response: &HeaderMap) -> bool {
    response.get_all(CONTENT_TYPE).iter().any(|value| {
        let kind = value.as_bytes().to_ascii_lowercase();
        let kind = kind.split(|&byte| matches!(byte, b';' | b',')).next();
        let kind = trim(kind.unwrap_or_default());
        kind.ends_with(b"html") || kind.ends_with(b"html+xml") || kind.ends_with(b"json")
    })
}

/// Returns true if responses with this status may be stored and given a heuristic lifetime without
/// explicit permission from the origin (RFC 9110 15.1).
pub fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// The Last-Modified date, if it can be parsed.
pub(crate) fn last_modified(fields: &HeaderMap, now: UnixTime) -> Option<UnixTime> {
    match single(fields, LAST_MODIFIED) {
        Single::One(value) => parse_http_date(value, now),
        Single::Absent | Single::Conflicting => None,
    }
}
