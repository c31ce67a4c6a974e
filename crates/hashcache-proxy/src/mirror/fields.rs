//! Fields of requests to a mirror and of its responses.
//!
//! A response whose links are renamed is another one than the origin's: it has an entity tag of its
//! own, no length that is known beforehand, no digest, and no ranges; Last-Modified goes too, for
//! what a mirror makes of a response changes with the settings, and only the tag shows it.
//!
//! | field | to upstream | to the client |
//! |---|---|---|
//! | ETag, If-None-Match | `"x", W/"x"` | `W/"x-m0123456789abcdef"` |
//! | Accept-Encoding, Content-Encoding | `gzip` | none |
//! | Accept | one spelling for each of two wishes | |
//! | Range, If-Range, If-Modified-Since | none | `Accept-Ranges: none` |
//! | Location | | renamed, of every response of a mirror |
//!
//! Called by `request::mirrored`. Invariant: a 304 goes to a client only if what it has was made of
//! the same response in the same way.

use hashcache_http::EntityTag;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, COOKIE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    LAST_MODIFIED, LOCATION, RANGE, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TRAILER, UPGRADE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::MirrorKind;
use super::content::ContentCoding;
use super::links::Links;
use crate::failure::Failure;

/// Takes out of a request what is meant for this host and not for the registry.
pub(crate) fn take_out_of_request(request: &mut HeaderMap) {
    request.remove(COOKIE);
    // cargo offers HTTP/2 in clear with every request; taken up, nothing of it could be stored.
    request.remove(UPGRADE);
}

/// Makes a request for a response with links one that all clients of a kind ask alike, in a coding
/// we can read.
pub(crate) fn ask_plainly(kind: MirrorKind, request: &mut HeaderMap) {
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
        MirrorKind::Pypi => "text/html",
        MirrorKind::Npm if accepts(NPM_SHORT) => NPM_SHORT_FIRST,
        MirrorKind::Npm => "application/json",
        MirrorKind::Crates | MirrorKind::Apt => return,
    };
    request.insert(ACCEPT, HeaderValue::from_static(accept));
}

fn essence(member: &str) -> &str {
    member.split(';').next().unwrap_or_default().trim()
}

/// Whether a member of Accept has the weight 0.
fn is_refused(member: &str) -> bool {
    let mut parameters = member.split(';').skip(1).map(str::trim);
    parameters.any(|parameter| {
        let weight = parameter
            .strip_prefix("q=")
            .or(parameter.strip_prefix("Q="));
        weight.is_some_and(|weight| weight.parse() == Ok(0.0_f32))
    })
}

/// Turns a client's conditions on what we made into conditions on what we made it of. Those on what
/// was made otherwise can name nothing there is now, and go.
pub(crate) fn translate_conditions(links: &Links, request: &mut HeaderMap) {
    // Ours have no Last-Modified, so this one is of something else.
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
                // Whether the original was weak is not known any more, and some origins compare
                // bytes.
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

/// What stands in quotes in a list of entity tags. Commas are part of a tag, so the quotes count.
fn opaque_tags(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b'"').skip(1).step_by(2)
}

fn suffix(links: &Links) -> String {
    format!("-m{:016x}", links.fingerprint())
}

/// How the content of a response is coded.
///
/// # Errors
/// In a coding that we cannot read: it was not asked for, and the client did not ask for it either.
pub(crate) fn coding(response: &HeaderMap) -> Result<ContentCoding, Failure> {
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

/// Whether the links of a response are renamed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkRewriting {
    /// It passes as it is.
    Plain,
    /// They are.
    Renamed,
}

/// Makes the fields of a response those of the mirror's.
pub(crate) fn rewrite_fields(links: &Links, dressing: LinkRewriting, response: &mut HeaderMap) {
    for name in ABOUT_THEIR_HOST {
        response.remove(name);
    }
    // Theirs, under our name: it may not act as a page of ours.
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

/// The tag of what is made of a response with this one.
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
/// With what indexes have that know no JSON.
const PYPI_JSON_FIRST: &str = "application/vnd.pypi.simple.v1+json, \
    application/vnd.pypi.simple.v1+html; q=0.2, text/html; q=0.1";
const NPM_SHORT: &str = "application/vnd.npm.install-v1+json";
const NPM_SHORT_FIRST: &str = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8";

/// By these a host speaks of itself, which here would be us.
const ABOUT_THEIR_HOST: [HeaderName; 6] = [
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    HeaderName::from_static("alt-svc"),
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
];

/// They describe bytes that are no longer sent.
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
