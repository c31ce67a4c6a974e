//! Invalidation by unsafe requests (RFC 9111 4.4).
//!
//! The proxy calls [`invalidated`] with the response to any unsafe request, and invalidates the
//! returned targets.
//!
//! Invariant: only targets with the same origin are returned; otherwise a server could purge the
//! stored responses of other origins.
//! Cost: nothing for safe methods; otherwise at most two references are resolved.

use http::header::{CONTENT_LOCATION, HeaderMap, LOCATION};
use http::{Method, StatusCode};

use crate::authority::Scheme;
use crate::fields::{Single, single};
use crate::target::Target;
use crate::target_octets::octet_text;

/// Returns true if a method may change the target. An unknown method counts as unsafe.
pub fn is_unsafe(method: &Method) -> bool {
    !SAFE.contains(&method.as_str())
}

/// The methods that the registry of HTTP methods lists as safe (RFC 9110 16.1.1).
const SAFE: [&str; 8] = [
    "GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY",
];

/// The targets whose stored responses must be invalidated. The list is empty if the method is safe
/// or the status is an error; otherwise it is the target itself, and the URIs in Location and
/// Content-Location if they have the same origin.
pub fn invalidated(
    method: &Method,
    target: &Target,
    status: StatusCode,
    response: &HeaderMap,
) -> Vec<Target> {
    if !is_unsafe(method) || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    let mut targets = vec![target.clone()];
    for name in [LOCATION, CONTENT_LOCATION] {
        let Single::One(value) = single(response, name) else {
            continue;
        };
        if let Some(named) = resolve(target, &octet_text(value))
            && named.same_origin(target)
            && !targets.contains(&named)
        {
            targets.push(named);
        }
    }
    targets
}

/// Resolves a URI reference against a target (RFC 3986 5.2), without the fragment. `None` if the
/// result is not an `http` or `https` URI.
pub fn resolve(base: &Target, reference: &str) -> Option<Target> {
    let reference = reference
        .split_once('#')
        .map_or(reference, |(before, _)| before);
    if let Some(rest) = after_scheme(reference) {
        let (scheme, rest) = rest;
        return with_authority(scheme?, rest.strip_prefix("//")?);
    }
    if let Some(rest) = reference.strip_prefix("//") {
        return with_authority(base.scheme, rest);
    }
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let (path, query) = if path.is_empty() {
        (base.path().to_owned(), query.or(base.query()))
    } else if path.starts_with('/') {
        (without_dot_segments(path), query)
    } else {
        let directory_end = base.path().rfind('/').map_or(0, |slash| slash + 1);
        let merged = format!("{}{path}", &base.path()[..directory_end]);
        (without_dot_segments(&merged), query)
    };
    Target::new(base.scheme, base.authority.clone(), &joined(path, query)).ok()
}

/// Splits at the first colon into scheme and rest; `None` if the part before it is not a scheme.
/// The inner scheme is `None` if it is neither `http` nor `https`.
fn after_scheme(reference: &str) -> Option<(Option<Scheme>, &str)> {
    let (name, rest) = reference.split_once(':')?;
    let scheme_byte = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let is_scheme = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if !is_scheme || !name.bytes().all(scheme_byte) {
        return None;
    }
    let known = [Scheme::Http, Scheme::Https];
    let scheme = known
        .into_iter()
        .find(|scheme| scheme.as_str().eq_ignore_ascii_case(name));
    Some((scheme, rest))
}

fn with_authority(scheme: Scheme, rest: &str) -> Option<Target> {
    let named = Target::parse_url(&format!("{scheme}://{rest}")).ok()?;
    let whole = joined(without_dot_segments(named.path()), named.query());
    Target::new(scheme, named.authority, &whole).ok()
}

fn joined(path: String, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    }
}

/// Removes `.` and `..` from an absolute path (RFC 3986 5.2.4).
fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests;
