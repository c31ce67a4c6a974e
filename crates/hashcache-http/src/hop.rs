//! Hop-by-hop fields, and fields that are not stored (RFC 9110 7.6.1, RFC 9111 3.1).
//!
//! The proxy strips each request before it reads the fields, and each response before it decides
//! about, stores or forwards it: a field that the next hop does not see must not select a stored
//! response either.
//!
//! Invariant: the fields that Connection names are removed. A Connection that names a field needed
//! for framing, routing, access or caching is refused.
//! Cost: one removal by name per field.

use http::header::{
    AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, DATE, ETAG, EXPIRES, HOST, HeaderMap, HeaderName, HeaderValue,
    LAST_MODIFIED, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VARY, VIA,
};
use http::{Method, Version};
use thiserror::Error;

use crate::cache_control::{ResponseDirectives, Scope};
use crate::fields::{members, trim};

/// Connection names a field that framing, routing, access or caching depends on: answer 400, do not
/// store.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Connection names {0}")]
pub struct ForbiddenOption(pub HeaderName);

/// Treatment of the Upgrade field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrading {
    /// The field is dropped.
    No,
    /// The field is forwarded: in a request that offers an upgrade, or in the 101 that accepts it.
    Yes,
}

/// The fields that Connection names, without `Keep-Alive`, which is always removed; invalid names
/// are ignored.
pub fn connection_options(fields: &HeaderMap) -> Result<Vec<HeaderName>, ForbiddenOption> {
    let mut options = Vec::new();
    for member in members(fields, &CONNECTION) {
        // Skipped early, because most origins name it and each name unknown to `http` costs an
        // allocation.
        if member.eq_ignore_ascii_case(b"keep-alive") {
            continue;
        }
        let Ok(name) = HeaderName::from_bytes(member) else {
            continue;
        };
        if NEVER_AN_OPTION.contains(&name) {
            return Err(ForbiddenOption(name));
        }
        options.push(name);
    }
    Ok(options)
}

/// Returns true if Connection has `option`, in any letter case.
pub fn has_connection_option(fields: &HeaderMap, option: &str) -> bool {
    members(fields, &CONNECTION).any(|member| member.eq_ignore_ascii_case(option.as_bytes()))
}

/// Returns true if the sender of a message with these fields keeps the connection open (RFC 9112,
/// section 9.3).
pub fn keeps_connection(version: Version, fields: &HeaderMap) -> bool {
    let is_kept = version != Version::HTTP_10 || has_connection_option(fields, "keep-alive");
    is_kept && !has_connection_option(fields, "close")
}

/// Returns true if Connection names no response field that storing depends on. A response that
/// states a lifetime, variants, cookies or content, and withdraws the statement with Connection, is
/// ambiguous and therefore not stored.
pub fn connection_spares_storing(response: &HeaderMap) -> bool {
    connection_options(response).is_ok_and(|options| {
        options.iter().all(|name| {
            let directives = name.as_str().ends_with("cache-control");
            !directives && !STORING_RESTS_ON.contains(name)
        })
    })
}

/// Removes the hop-by-hop fields from a request, and the credentials for this proxy.
///
/// `TE: trailers` and, for an upgrade, Upgrade are forwarded; Connection then names them, as the
/// next hop requires (RFC 9110 7.8, 10.1.4). An offer of HTTP itself in another form is never
/// forwarded, at any position in the list: see [`asks_for_upgrade`].
pub fn strip_request(fields: &mut HeaderMap, upgrading: Upgrading) -> Result<(), ForbiddenOption> {
    let options = connection_options(fields)?;
    let is_trailers = |member: &[u8]| member.eq_ignore_ascii_case(b"trailers");
    let trailers = members(fields, &TE).any(is_trailers);
    let upgrade = match upgrading {
        Upgrading::Yes => offered(fields),
        Upgrading::No => None,
    };
    strip(fields, options);
    fields.remove(PROXY_AUTHORIZATION);
    let connection = match (&upgrade, trailers) {
        (Some(_), true) => Some("upgrade, te"),
        (Some(_), false) => Some("upgrade"),
        (None, true) => Some("te"),
        (None, false) => None,
    };
    if let Some(connection) = connection {
        fields.insert(CONNECTION, HeaderValue::from_static(connection));
    }
    if trailers {
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        fields.insert(UPGRADE, upgrade);
    }
    Ok(())
}

/// Removes the hop-by-hop fields from a response. A Content-Length together with a
/// Transfer-Encoding is removed too, because the coding framed the content and the length may be
/// wrong.
pub fn strip_response(fields: &mut HeaderMap, upgrading: Upgrading) -> Result<(), ForbiddenOption> {
    let options = connection_options(fields)?;
    let upgrade = match upgrading {
        Upgrading::Yes => fields.get(UPGRADE).cloned(),
        Upgrading::No => None,
    };
    if fields.contains_key(TRANSFER_ENCODING) {
        fields.remove(CONTENT_LENGTH);
    }
    strip(fields, options);
    if let Some(upgrade) = upgrade {
        fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(UPGRADE, upgrade);
    }
    Ok(())
}

/// Removes the hop-by-hop fields, and the fields only for proxies, from an interim response.
/// Content-Length is removed too, because an interim response has no content.
pub fn strip_interim(fields: &mut HeaderMap) {
    let options: Vec<_> = members(fields, &CONNECTION)
        .filter_map(|member| HeaderName::from_bytes(member).ok())
        .collect();
    strip(fields, options);
    for name in FOR_PROXIES.iter().chain(&[CONTENT_LENGTH]) {
        fields.remove(name);
    }
}

/// The protocols that a request offers, without the protocols that must not be forwarded.
fn offered(fields: &HeaderMap) -> Option<HeaderValue> {
    let offers: Vec<_> = members(fields, &UPGRADE)
        .filter(|it| is_other(it))
        .collect();
    if offers.is_empty() {
        return None;
    }
    HeaderValue::from_bytes(&offers.join(&b", "[..])).ok()
}

/// Returns true if a protocol is neither HTTP nor a wrapper for HTTP.
fn is_other(protocol: &[u8]) -> bool {
    let name = protocol.split(|&byte| byte == b'/').next();
    let name = trim(name.unwrap_or_default());
    let is = |known: &&[u8]| known.eq_ignore_ascii_case(name);
    !NEVER_OFFERED.iter().any(is)
}

fn strip(fields: &mut HeaderMap, options: Vec<HeaderName>) {
    for name in options.iter().chain(&HOP_BY_HOP) {
        fields.remove(name);
    }
}

/// The fields of a response that are stored. Removed are the fields of the connection, the proxy
/// authentication fields, which are only for this proxy or its client, and the fields that
/// `no-cache="…"` and `private="…"` restrict to the first client (RFC 9111 3.1, 5.2.2.4, 5.2.2.7).
///
/// Each unwanted name is removed separately. Comparing each field with all unwanted names would be
/// slower, because an origin may name thousands of them.
pub fn fields_to_store(response: &HeaderMap, directives: &ResponseDirectives) -> HeaderMap {
    let mut stored = response.clone();
    for option in members(response, &CONNECTION) {
        if let Ok(name) = HeaderName::from_bytes(option) {
            stored.remove(name);
        }
    }
    for name in HOP_BY_HOP.iter().chain(&FOR_PROXIES) {
        stored.remove(name);
    }
    // Trailers are not stored.
    stored.remove(TRAILER);
    withhold(&mut stored, directives);
    stored
}

/// Removes the fields named in `no-cache="…"` and `private="…"`.
pub(crate) fn withhold(stored: &mut HeaderMap, directives: &ResponseDirectives) {
    let scopes = [&directives.no_cache, &directives.private];
    for name in scopes.into_iter().flat_map(Scope::fields) {
        stored.remove(name);
    }
}

/// Returns true if a request may be answered by an upgrade of the connection. An offer of `h2c`
/// does not count: some clients send it with every request, and it is no longer part of HTTP/2 (RFC
/// 9113, section 3.1). After a 101 to `h2c`, or to TLS, the proxy could not check the requests,
/// which might be for hosts other than the accelerated sites.
pub fn asks_for_upgrade(method: &Method, fields: &HeaderMap) -> bool {
    let is_upgrade = |member: &[u8]| member.eq_ignore_ascii_case(b"upgrade");
    *method == Method::GET
        && members(fields, &UPGRADE).any(is_other)
        && members(fields, &CONNECTION).any(is_upgrade)
}

/// Returns true if a 101 switches only to protocols that the proxy forwards in an offer.
pub fn grants_other_protocol(response: &HeaderMap) -> bool {
    let mut protocols = members(response, &UPGRADE).peekable();
    protocols.peek().is_some() && protocols.all(is_other)
}

/// Other forms of HTTP, and wrappers for HTTP.
const NEVER_OFFERED: [&[u8]; 5] = [b"h2c", b"h2", b"h3", b"http", b"tls"];

const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    // Only sent together with an offer of h2c (RFC 7540 3.2.1).
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

const FOR_PROXIES: [HeaderName; 3] = [
    PROXY_AUTHENTICATE,
    HeaderName::from_static("proxy-authentication-info"),
    PROXY_AUTHORIZATION,
];

/// Fields that framing, routing, access and caching depend on.
const NEVER_AN_OPTION: [HeaderName; 6] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_LENGTH,
    COOKIE,
    HOST,
    VIA,
];

/// Response fields that decide if, how long and for which clients the response is stored, or that
/// describe the content.
const STORING_RESTS_ON: [HeaderName; 10] = [
    AGE,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    CONTENT_TYPE,
    DATE,
    ETAG,
    EXPIRES,
    LAST_MODIFIED,
    SET_COOKIE,
    VARY,
];

#[cfg(test)]
mod tests;
