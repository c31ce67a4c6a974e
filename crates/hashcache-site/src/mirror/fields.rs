//! Fields in mirror requests and responses.
//!
//! A response with rewritten links is another representation than the origin's: it has a different
//! entity tag, no length known in advance, no digest, and no ranges. Last-Modified is removed too,
//! because the rewritten response also depends on the settings, and only the tag reflects that.
//!
//! | field | to upstream | to the client |
//! |---|---|---|
//! | ETag, If-None-Match | `"x", W/"x"` | `W/"x-m0123456789abcdef"` |
//! | Accept-Encoding, Content-Encoding | `gzip` | none |
//! | Accept | one spelling for each of two wishes | |
//! | Range, If-Range, If-Modified-Since | none | `Accept-Ranges: none` |
//! | Location | | rewritten, in every response of a mirror |
//!
//! Called by `request/mirrored` in the proxy. Invariant: a client gets a 304 only if its copy was
//! made from the same response in the same way.

use hashcache_base::failure::Failure;
use hashcache_http::EntityTag;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, COOKIE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    LAST_MODIFIED, LOCATION, RANGE, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TRAILER, UPGRADE, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::MirrorKind;
use super::content::ContentCoding;
use super::links::Links;

/// Removes request fields that are meant for this host and not for the registry.
pub fn take_out_of_request(request: &mut HeaderMap) {
    request.remove(COOKIE);
    // cargo offers h2c with every request; if that were accepted, nothing could be stored.
    request.remove(UPGRADE);
}

/// Normalises a request for a response with links: equal for all clients of the same kind, in a
/// coding that we can decode.
pub fn ask_plainly(kind: MirrorKind, request: &mut HeaderMap) {
    request.remove(RANGE);
    request.remove(IF_RANGE);
    request.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let accepted: Vec<String> = request
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|member| !is_refused(member))
        .map(|member| essence(member).to_ascii_lowercase())
        .collect();
    let accepts = |essence: &str| accepted.iter().any(|accepted| accepted == essence);
    let accept = match kind {
        MirrorKind::Pypi if accepts(PYPI_JSON) => PYPI_JSON_FIRST,
        MirrorKind::Pypi => PYPI_HTML,
        MirrorKind::Npm if accepts(NPM_SHORT) => NPM_SHORT_FIRST,
        MirrorKind::Npm => NPM_LONG,
        MirrorKind::Crates | MirrorKind::Apt => return,
    };
    request.insert(ACCEPT, HeaderValue::from_static(accept));
}

/// Adds Accept to the Vary of a registry's response if [`ask_plainly`] requested one of two forms:
/// some registries negotiate the form without a Vary. The Vary of a 304 replaces the stored Vary; a
/// 304 without Vary leaves it.
pub fn note_negotiation(request: &HeaderMap, status: StatusCode, response: &mut HeaderMap) {
    let is_negotiated = request
        .get(ACCEPT)
        .is_some_and(|accept| NEGOTIATED.iter().any(|it| accept == *it));
    let keeps_vary = status == StatusCode::NOT_MODIFIED && !response.contains_key(VARY);
    let lines = response.get_all(VARY).iter();
    let mut names = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    let is_named = names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"accept"));
    if is_negotiated && !keeps_vary && !is_named {
        response.append(VARY, HeaderValue::from_static("accept"));
    }
}

fn essence(member: &str) -> &str {
    member.split(';').next().unwrap_or_default().trim()
}

/// Returns true if a member in Accept has the weight 0.
fn is_refused(member: &str) -> bool {
    let mut parameters = member.split(';').skip(1).map(str::trim);
    parameters.any(|parameter| {
        let weight = parameter
            .strip_prefix("q=")
            .or(parameter.strip_prefix("Q="));
        weight.is_some_and(|weight| weight.parse() == Ok(0.0_f32))
    })
}

/// Translates a client's conditions on the rewritten response into conditions on the original. Tags
/// from other rewritings match nothing and are removed.
pub fn translate_conditions(links: &Links, request: &mut HeaderMap) {
    // Our responses have no Last-Modified, so this date belongs to another response.
    request.remove(IF_MODIFIED_SINCE);
    let mut upstream: Vec<u8> = Vec::new();
    let mut add = |tag: &[u8]| {
        if !upstream.is_empty() {
            upstream.extend_from_slice(b", ");
        }
        upstream.extend_from_slice(tag);
    };
    let suffix = suffix(links);
    for line in request.get_all(IF_NONE_MATCH) {
        if line.as_bytes().trim_ascii() == b"*" {
            add(b"*");
            continue;
        }
        for opaque in opaque_tags(line.as_bytes()) {
            if let Some(original) = opaque.strip_suffix(suffix.as_bytes()) {
                // The rewritten tag does not show if the original tag was weak, and some origins
                // compare the bytes of the tags, so both forms are sent.
                add(&[b"\"", original, b"\""].concat());
                add(&[b"W/\"", original, b"\""].concat());
            }
        }
    }
    request.remove(IF_NONE_MATCH);
    if !upstream.is_empty()
        && let Ok(upstream) = HeaderValue::from_bytes(&upstream)
    {
        request.insert(IF_NONE_MATCH, upstream);
    }
}

/// The quoted parts in a list of entity tags. Tags may contain commas, so the quotes decide.
fn opaque_tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b'"').skip(1).step_by(2)
}

fn suffix(links: &Links) -> String {
    format!("-m{:016x}", links.fingerprint())
}

/// The content coding of a response.
///
/// # Errors
/// A coding that we cannot decode: neither we nor the client requested it.
pub fn coding(response: &HeaderMap) -> Result<ContentCoding, Failure> {
    let mut coding = ContentCoding::Identity;
    for value in response.get_all(CONTENT_ENCODING) {
        for name in value.as_bytes().split(|&byte| byte == b',') {
            coding = match name.trim_ascii().to_ascii_lowercase().as_slice() {
                b"" | b"identity" => coding,
                b"gzip" | b"x-gzip" if coding == ContentCoding::Identity => ContentCoding::Gzip,
                _ => {
                    let reason = "a content coding that was not requested";
                    return Err(Failure::ResponseMalformed(reason));
                }
            };
        }
    }
    Ok(coding)
}

/// How the links in a response are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRewriting {
    /// The response passes unchanged.
    Plain,
    /// The links are rewritten.
    Renamed,
}

/// Changes the response fields for the mirror.
pub fn rewrite_fields(links: &Links, dressing: LinkRewriting, response: &mut HeaderMap) {
    for name in ABOUT_THEIR_HOST {
        response.remove(name);
    }
    // Registry content under our name: it must not act as our own page.
    response.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; sandbox allow-downloads"),
    );
    response.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let location = response.get(LOCATION).and_then(|value| value.to_str().ok());
    if let Some(renamed) = location.and_then(|location| links.rename(location))
        && let Ok(renamed) = HeaderValue::from_str(&renamed)
    {
        response.insert(LOCATION, renamed);
    }
    if dressing == LinkRewriting::Plain {
        return;
    }
    let etag = response.remove(ETAG);
    if let Some(etag) = etag.and_then(|etag| own_tag(links, &etag)) {
        response.insert(ETAG, etag);
    }
    for name in ABOUT_THEIR_BYTES {
        response.remove(name);
    }
    response.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
}

/// The tag for the rewritten form of a response with this tag.
fn own_tag(links: &Links, etag: &HeaderValue) -> Option<HeaderValue> {
    EntityTag::parse(etag.as_bytes())
        .is_well_formed()
        .then_some(())?;
    let original = opaque_tags(etag.as_bytes()).next()?;
    let suffix = suffix(links);
    let own = [b"W/\"", original, suffix.as_bytes(), b"\""].concat();
    HeaderValue::from_bytes(&own).ok()
}

const PYPI_JSON: &str = "application/vnd.pypi.simple.v1+json";
/// With fallbacks for indexes without JSON.
const PYPI_JSON_FIRST: &str = "application/vnd.pypi.simple.v1+json, \
    application/vnd.pypi.simple.v1+html; q=0.2, text/html; q=0.1";
const NPM_SHORT: &str = "application/vnd.npm.install-v1+json";
const NPM_SHORT_FIRST: &str = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8";

const PYPI_HTML: &str = "text/html";
const NPM_LONG: &str = "application/json";

/// The values of Accept with which indexes are requested.
const NEGOTIATED: [&str; 4] = [PYPI_JSON_FIRST, PYPI_HTML, NPM_SHORT_FIRST, NPM_LONG];

/// Fields with which a host describes itself. In a mirror's response, that host would be us.
const ABOUT_THEIR_HOST: [HeaderName; 6] = [
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
];

/// Fields that describe the original bytes.
const ABOUT_THEIR_BYTES: [HeaderName; 9] = [
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_RANGE,
    LAST_MODIFIED,
    TRAILER,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("content-digest"),
];

#[cfg(test)]
mod tests;
