//! Fields of one connection, and fields that are not stored (RFC 9110 7.6.1, RFC 9111 3.1).
//!
//! The proxy strips each request before it goes upstream and each response before it is stored or
//! passed on.
//!
//! Invariant: what Connection names goes with it, and a Connection that would take away a field on
//! which framing, routing, access or caching rest is refused.
//! Cost: one removal by name per field.

use http::Method;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use thiserror::Error;

use crate::cache_control::{ResponseDirectives, Scope};
use crate::fields::members;

/// Connection names a field that is not a connection's own: answer 400, do not store.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Connection names {0}")]
pub struct ForbiddenOption(pub HeaderName);

/// Whether an Upgrade goes on to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrading {
    /// No: the field is dropped.
    No,
    /// Yes: a request that asks for it, or the 101 that grants it.
    Yes,
}

/// The fields that Connection names. What cannot be a field name names none.
pub fn connection_options(fields: &HeaderMap) -> Result<Vec<HeaderName>, ForbiddenOption> {
    let mut options = Vec::new();
    for member in members(fields, &CONNECTION) {
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

/// Takes from a request what belongs to the client's connection, and its credentials for us.
///
/// `TE: trailers` and, when upgrading, Upgrade go on; Connection then names them, as the next hop
/// requires (RFC 9110 7.8, 10.1.4).
pub fn strip_request(fields: &mut HeaderMap, upgrading: Upgrading) -> Result<(), ForbiddenOption> {
    let options = connection_options(fields)?;
    let is_trailers = |member: &[u8]| member.eq_ignore_ascii_case(b"trailers");
    let trailers = members(fields, &TE).any(is_trailers);
    let upgrade = upgrade_to_keep(fields, upgrading);
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

/// Takes from a response what belongs to the upstream connection. A Content-Length beside a
/// Transfer-Encoding goes too: the coding framed the content, the length may lie.
pub fn strip_response(fields: &mut HeaderMap, upgrading: Upgrading) -> Result<(), ForbiddenOption> {
    let options = connection_options(fields)?;
    let upgrade = upgrade_to_keep(fields, upgrading);
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

fn upgrade_to_keep(fields: &HeaderMap, upgrading: Upgrading) -> Option<HeaderValue> {
    match upgrading {
        Upgrading::Yes => fields.get(UPGRADE).cloned(),
        Upgrading::No => None,
    }
}

fn strip(fields: &mut HeaderMap, options: Vec<HeaderName>) {
    for name in options.iter().chain(&HOP_BY_HOP) {
        fields.remove(name);
    }
}

/// The fields of a response that are stored: all but those of the connection, those for this proxy
/// or its client, and those that `no-cache="…"` and `private="…"` keep for the first client
/// (RFC 9111 3.1, 5.2.2.4, 5.2.2.7).
///
/// Each unwanted name is removed, rather than each field compared with all unwanted names: an
/// origin may send thousands of them.
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
    withhold(&mut stored, directives);
    stored
}

/// Removes the fields that `no-cache="…"` and `private="…"` name.
pub(crate) fn withhold(stored: &mut HeaderMap, directives: &ResponseDirectives) {
    let scopes = [&directives.no_cache, &directives.private];
    for name in scopes.into_iter().flat_map(Scope::fields) {
        stored.remove(name);
    }
}

/// Whether a request may be answered by upgrading its connection. An offer of `h2c` alone does not
/// count: some clients make it with every request, it is no longer part of HTTP/2 (RFC 9113,
/// section 3.1), and whoever is taken at it could not be answered from the store.
pub fn asks_for_upgrade(method: &Method, fields: &HeaderMap) -> bool {
    let is_upgrade = |member: &[u8]| member.eq_ignore_ascii_case(b"upgrade");
    let is_other = |member: &[u8]| !member.eq_ignore_ascii_case(b"h2c");
    *method == Method::GET
        && members(fields, &UPGRADE).any(is_other)
        && members(fields, &CONNECTION).any(is_upgrade)
}

const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
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

/// Fields that framing, routing, access and caching rest on.
const NEVER_AN_OPTION: [HeaderName; 6] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_LENGTH,
    COOKIE,
    HOST,
    VIA,
];

#[cfg(test)]
mod tests;
