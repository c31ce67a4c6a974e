//! Decides if a response may be stored (RFC 9111 3, 3.5, 5.2.2), and computes the stored facts.
//!
//! The proxy calls [`storable`] once when the head of a response has arrived; `confirmed` calls it
//! again after a 304 has freshened the stored fields.
//!
//! Invariant: a response is stored only if every rule of RFC 9111 section 3 for a shared cache
//! allows it; each refusal has a name.
//! Cost: one pass over Cache-Control, a few lookups by name.

use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HeaderMap, SET_COOKIE,
    TRANSFER_ENCODING,
};
use http::{Method, StatusCode};

use crate::age::{Arrival, age_field};
use crate::cache_control::{RequestDirectives, ResponseDirectives};
use crate::coding::is_for_any_client;
use crate::connection_login::{is_of_login, logs_in_connection};
use crate::date::{Seconds, UnixTime, parse_http_date};
use crate::entity_tag::EntityTag;
use crate::exchange::Exchange;
use crate::fields::{Single, single};
use crate::freshness::{
    Lifetime, LifetimeSource, is_heuristically_cacheable, last_modified, lifetime_of,
};
use crate::guess::may_be_personal;
use crate::hop::connection_spares_storing;
use crate::options::{SetCookie, StoreOptions};
use crate::range::{ContentRange, parse_content_range};
use crate::request_error::speaks_of_request;
use crate::request_fields::FieldKinds;
use crate::rules::Matched;
use crate::stored_facts::{FactFlags, StoredFacts};
use crate::vary::{Vary, VaryRow, coding_escapes_row, names_rewritten};

/// How a response may be stored, if at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storable {
    /// The content is the whole representation.
    Whole {
        /// The facts that hits need.
        facts: StoredFacts,
        /// The Vary row, if the response varies.
        row: Option<VaryRow>,
    },
    /// The content is a single range (206). It must not be stored as if it were the whole.
    Partial {
        /// The facts that hits need.
        facts: StoredFacts,
        /// The Vary row, if the response varies.
        row: Option<VaryRow>,
        /// The range of the content.
        range: ContentRange,
    },
    /// The response must not be stored.
    No(NotStored),
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotStored {
    /// The method is not GET.
    Method,
    /// The request had content, which may have shaped the response.
    RequestContent,
    /// The request has `no-store`.
    RequestNoStore,
    /// The response has `no-store`.
    NoStore,
    /// The response has `private`.
    Private,
    /// The request had credentials, and the response does not allow sharing.
    Authorization,
    /// The response is part of a connection-based login.
    ConnectionLogin,
    /// The response sets a cookie, and neither the origin nor a rule allows sharing.
    SetCookie,
    /// The request has a field by which some origins use another host, path, scheme or method, and
    /// Vary does not name it.
    Override,
    /// The request has a field that is not known to be harmless, and the origin does not explicitly
    /// allow storing.
    RequestField,
    /// `Vary: *`, or a Vary that is not a list.
    VaryAnything,
    /// Vary names a field that proxies rewrite.
    VaryRewritten,
    /// More fields, or more bytes, than a Vary row holds.
    VaryTooWide,
    /// A content coding that the Accept-Encoding row does not distinguish.
    VaryCoding,
    /// Connection names a field that storing depends on.
    Connection,
    /// An informational status, 304, or an error that may apply only to this request.
    Status,
    /// `must-understand`, with a status that is not understood.
    StatusNotUnderstood,
    /// 206 without a single valid Content-Range.
    ContentRange,
    /// Neither an explicit lifetime nor a status that may be stored without one.
    NoLifetime,
    /// Larger than the operator's limit for stored responses.
    TooLarge,
    /// Stale on arrival and without a validator, so no request could ever use it.
    NoUse,
    /// The head is longer than the store takes.
    HeadTooLong,
    /// No memory was free for writes that wait for the disk: too much at once, or a slow disk.
    NoMemory,
    /// All disks have failed.
    OutOfService,
    /// The content did not have the digest that was announced.
    OtherDigest,
}

impl NotStored {
    /// A token for the `detail` of Cache-Status and for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            NotStored::Method => "method",
            NotStored::RequestContent => "request-content",
            NotStored::RequestNoStore => "request-no-store",
            NotStored::NoStore => "no-store",
            NotStored::Private => "private",
            NotStored::Authorization => "authorization",
            NotStored::ConnectionLogin => "connection-login",
            NotStored::SetCookie => "set-cookie",
            NotStored::Override => "override-field",
            NotStored::RequestField => "request-field",
            NotStored::VaryAnything => "vary-any",
            NotStored::VaryRewritten => "vary-rewritten",
            NotStored::VaryTooWide => "vary-too-wide",
            NotStored::VaryCoding => "vary-coding",
            NotStored::Connection => "connection",
            NotStored::Status => "status",
            NotStored::StatusNotUnderstood => "must-understand",
            NotStored::ContentRange => "content-range",
            NotStored::NoLifetime => "no-lifetime",
            NotStored::TooLarge => "too-large",
            NotStored::NoUse => "no-use",
            NotStored::HeadTooLong => "head-too-long",
            NotStored::NoMemory => "no-memory",
            NotStored::OutOfService => "out-of-service",
            NotStored::OtherDigest => "other-digest",
        }
    }
}

/// Decides if a response may be stored, and computes the facts to store.
pub fn storable(exchange: &Exchange<'_>, options: &StoreOptions) -> Storable {
    storable_for(exchange, exchange.kinds(&options.harmless), options)
}

/// As [`storable`], with the kinds of the request fields already known.
pub(crate) fn storable_for(
    exchange: &Exchange<'_>,
    kinds: FieldKinds,
    options: &StoreOptions,
) -> Storable {
    match allowed(exchange, kinds, options) {
        Ok(storable) => storable,
        Err(reason) => Storable::No(reason),
    }
}

fn allowed(
    exchange: &Exchange<'_>,
    kinds: FieldKinds,
    options: &StoreOptions,
) -> Result<Storable, NotStored> {
    let directives = ResponseDirectives::for_targets(exchange.response, &options.targets);
    request_allows(exchange)?;
    status_allows(exchange.status, &directives)?;
    if kinds.has(FieldKinds::OVERRIDE) {
        return Err(NotStored::Override);
    }
    if speaks_of_request(exchange.status, exchange.request) {
        return Err(NotStored::Status);
    }
    directives_allow(kinds, &directives)?;
    // A response on a user's logged-in connection is for that user, whatever its directives are: an
    // origin that sends `public` assumes a login in each request.
    if logs_in_connection(exchange.request) || is_of_login(exchange.status, exchange.response) {
        return Err(NotStored::ConnectionLogin);
    }
    cookie_allows(exchange, &directives, options)?;
    if !connection_spares_storing(exchange.response) {
        return Err(NotStored::Connection);
    }
    let row = vary_row(exchange)?;
    let range = match exchange.status {
        StatusCode::PARTIAL_CONTENT => Some(only_range(exchange.response)?),
        _ => None,
    };
    let mut facts = facts(exchange, kinds, &directives, options);
    lifetime_allows(exchange.status, &directives, kinds, &facts)?;
    let row = match facts.lifetime.source {
        LifetimeSource::Negative => Some(negative_row(exchange)?),
        _ => row,
    };
    facts.flags = facts.flags.with(FactFlags::VARIES, row.is_some());
    Ok(match range {
        Some(range) => Storable::Partial { facts, row, range },
        None => Storable::Whole { facts, row },
    })
}

fn request_allows(exchange: &Exchange<'_>) -> Result<(), NotStored> {
    if *exchange.method != Method::GET {
        return Err(NotStored::Method);
    }
    if has_content(exchange.request) {
        return Err(NotStored::RequestContent);
    }
    if RequestDirectives::parse(exchange.request).no_store {
        return Err(NotStored::RequestNoStore);
    }
    Ok(())
}

/// Returns true if a request announces content: a length other than zero, or a transfer coding.
pub(crate) fn has_content(request: &HeaderMap) -> bool {
    request.contains_key(TRANSFER_ENCODING)
        || request
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}

fn status_allows(status: StatusCode, directives: &ResponseDirectives) -> Result<(), NotStored> {
    if status.is_informational() || status == StatusCode::NOT_MODIFIED {
        return Err(NotStored::Status);
    }
    if directives.must_understand && !is_understood(status) {
        return Err(NotStored::StatusNotUnderstood);
    }
    Ok(())
}

/// Final statuses that this crate implements the rules for; needed for `must-understand`.
fn is_understood(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200..=206 | 300..=303 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 500..=505
    )
}

fn directives_allow(kinds: FieldKinds, directives: &ResponseDirectives) -> Result<(), NotStored> {
    // RFC 9111 5.2.2.3: if `must-understand` is present, `no-store` is only for caches that do not
    // know `must-understand`.
    if directives.no_store && !directives.must_understand {
        return Err(NotStored::NoStore);
    }
    if directives.private.is_response() {
        return Err(NotStored::Private);
    }
    if kinds.has(FieldKinds::ANY_AUTHORIZATION) && !allows_sharing(directives) {
        return Err(NotStored::Authorization);
    }
    Ok(())
}

/// Returns true if a response to a request with Authorization may be stored (RFC 9111 3.5).
pub(crate) fn allows_sharing(directives: &ResponseDirectives) -> bool {
    directives.public || directives.must_revalidate || directives.s_maxage.is_some()
}

/// Checks if a response that sets a cookie may be stored. It is then stored with the field, because
/// a cache must not omit it (RFC 9111 3.1).
fn cookie_allows(
    exchange: &Exchange<'_>,
    directives: &ResponseDirectives,
    options: &StoreOptions,
) -> Result<(), NotStored> {
    if options.set_cookie == SetCookie::Rfc || !exchange.response.contains_key(SET_COOKIE) {
        return Ok(());
    }
    let rule = || options.rules.find(exchange.target);
    let for_all =
        directives.public || directives.s_maxage.is_some() || rule().is_some_and(Matched::is_leave);
    for_all.then_some(()).ok_or(NotStored::SetCookie)
}

fn vary_row(exchange: &Exchange<'_>) -> Result<Option<VaryRow>, NotStored> {
    match Vary::parse(exchange.response) {
        Vary::Nothing => Ok(None),
        Vary::Anything if names_rewritten(exchange.response) => Err(NotStored::VaryRewritten),
        Vary::Anything => Err(NotStored::VaryAnything),
        Vary::TooWide => Err(NotStored::VaryTooWide),
        Vary::Fields(names) => {
            if coding_escapes_row(&names, exchange.request, exchange.response) {
                return Err(NotStored::VaryCoding);
            }
            let row = VaryRow::select(&names, exchange.request);
            row.map(Some).ok_or(NotStored::VaryTooWide)
        }
    }
}

/// The row for an error with an assumed lifetime. Any request field may be the reason for the
/// error, so it answers only requests with the same fields.
fn negative_row(exchange: &Exchange<'_>) -> Result<VaryRow, NotStored> {
    let names = Vary::parse(exchange.response).into_names();
    let row = VaryRow::select_all_fields(&names, exchange.request);
    row.ok_or(NotStored::VaryTooWide)
}

/// Returns true if the content of a 206 is several ranges, each with a separate head.
pub fn is_multipart(response: &HeaderMap) -> bool {
    response.get(CONTENT_TYPE).is_some_and(|value| {
        let start = value.as_bytes().get(..MULTIPART.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(MULTIPART))
    })
}

/// The range of a 206. Several ranges are sent as `multipart/byteranges` without Content-Range.
fn only_range(response: &HeaderMap) -> Result<ContentRange, NotStored> {
    match parse_content_range(response) {
        Some(range) if !is_multipart(response) && range.range.is_some() => Ok(range),
        _ => Err(NotStored::ContentRange),
    }
}

fn facts(
    exchange: &Exchange<'_>,
    kinds: FieldKinds,
    directives: &ResponseDirectives,
    options: &StoreOptions,
) -> StoredFacts {
    let Exchange {
        request,
        response,
        request_time,
        response_time,
        ..
    } = *exchange;
    let date = response_date(response, response_time);
    let arrival = Arrival {
        age_value: age_field(response),
        date,
        request_time,
        response_time,
    };
    let lifetime = lifetime_of(exchange, kinds, directives, date, options);
    let is_personal = lifetime.source == LifetimeSource::None && may_be_personal(exchange, kinds);
    let immutable = directives.immutable || lifetime.source == LifetimeSource::Immutable;
    let etag = response
        .get(ETAG)
        .map(|value| EntityTag::parse(value.as_bytes()));
    let flags = FactFlags::default()
        .with(
            FactFlags::NO_CACHE,
            directives.no_cache.is_response() || is_personal,
        )
        .with(FactFlags::PERSONAL, is_personal)
        .with(
            FactFlags::ANY_CODING,
            response.contains_key(CONTENT_ENCODING) && is_for_any_client(request, response),
        )
        .with(FactFlags::NEVER_STALE, directives.forbids_stale())
        .with(FactFlags::IMMUTABLE, immutable)
        .with(FactFlags::ETAG, etag.is_some())
        .with(
            FactFlags::STRONG_ETAG,
            etag.is_some_and(|etag| etag.is_strong()),
        )
        .with(FactFlags::NO_TRANSFORM, directives.no_transform);
    StoredFacts {
        status: exchange.status,
        lifetime,
        initial_age: arrival.initial_age(),
        response_time,
        date,
        last_modified: last_modified(response, response_time),
        stale_while_revalidate: directives.stale_while_revalidate.unwrap_or(Seconds::ZERO),
        stale_if_error: directives.stale_if_error.unwrap_or(Seconds::ZERO),
        flags,
        asked_with: Some(kinds),
    }
}

/// The Date of a response, or the arrival time if Date is missing or malformed.
pub(crate) fn response_date(response: &HeaderMap, response_time: UnixTime) -> UnixTime {
    let date = match single(response, DATE) {
        Single::One(value) => parse_http_date(value, response_time),
        Single::Absent | Single::Conflicting => None,
    };
    date.unwrap_or(response_time)
}

/// Checks the last condition of RFC 9111 section 3, and that some request could use the stored
/// response.
fn lifetime_allows(
    status: StatusCode,
    directives: &ResponseDirectives,
    kinds: FieldKinds,
    facts: &StoredFacts,
) -> Result<(), NotStored> {
    let Lifetime { source, .. } = facts.lifetime;
    let stated = source != LifetimeSource::None || directives.public;
    // Refused even with a validator, because the stored response could be served while the origin
    // cannot be reached.
    if !stated && kinds.has(FieldKinds::UNKNOWN) {
        return Err(NotStored::RequestField);
    }
    if !stated && !is_heuristically_cacheable(status) {
        return Err(NotStored::NoLifetime);
    }
    let usable = facts.is_fresh(facts.response_time) && !facts.flags.has(FactFlags::NO_CACHE);
    let usable_stale =
        facts.stale_while_revalidate > Seconds::ZERO || facts.stale_if_error > Seconds::ZERO;
    if !usable && !usable_stale && !facts.has_validator() {
        return Err(NotStored::NoUse);
    }
    Ok(())
}

const MULTIPART: &[u8] = b"multipart/byteranges";
