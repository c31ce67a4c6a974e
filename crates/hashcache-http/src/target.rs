//! What a request is about: scheme, host, port, path and query, each in one spelling.
//!
//! The proxy calls `parse_target` with a request line's target and Host; `cache_key`, `rules` and
//! `invalidate` take the result.
//!
//! Invariant: two spellings of one resource that must not differ (letter case of the host, default
//! port, forms of an IPv6 address) give equal targets; path and query stay byte for byte, because
//! `%2f` and `/`, `a?x&y` and `a?y&x` may be different resources.
//! Cost: two small allocations; none for a clone.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::authority::{Authority, Scheme, TargetError, split_scheme};

/// A resource: what a stored response is stored for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The scheme.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Path and query as they came; begins with `/`, or is `*` where the whole server is meant.
    pub path_and_query: Arc<str>,
}

impl Target {
    /// Reads a URL of one of the known schemes.
    pub fn parse_url(text: &str) -> Result<Target, TargetError> {
        let (scheme, rest) = split_scheme(text).ok_or(TargetError::Form)??;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = Authority::parse(authority, scheme)?;
        Target::new(scheme, authority, path)
    }

    /// A resource of an authority. An empty path becomes `/`, also before a query.
    pub fn new(scheme: Scheme, authority: Authority, path: &str) -> Result<Target, TargetError> {
        if path.contains('#') {
            return Err(TargetError::Fragment);
        }
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(TargetError::Path);
        }
        let path_and_query = match path.as_bytes().first() {
            Some(b'/') => path.into(),
            None => "/".into(),
            Some(b'?') => format!("/{path}").into(),
            Some(_) => return Err(TargetError::Path),
        };
        Ok(Target {
            scheme,
            authority,
            path_and_query,
        })
    }

    /// The path, without the query.
    pub fn path(&self) -> &str {
        let whole = &self.path_and_query;
        whole.split_once('?').map_or(whole, |(path, _)| path)
    }

    /// The query, without its question mark. An empty query is a query.
    pub fn query(&self) -> Option<&str> {
        self.path_and_query.split_once('?').map(|(_, query)| query)
    }

    /// Whether both are resources of one origin.
    pub fn same_origin(&self, other: &Target) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Target {
            scheme,
            authority,
            path_and_query,
        } = self;
        write!(
            f,
            "{scheme}://{}{path_and_query}",
            authority.display(*scheme)
        )
    }
}

/// What a request line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// A resource, named in absolute-form or in origin-form with Host.
    Resource(Target),
    /// A tunnel: CONNECT.
    Tunnel(Authority),
    /// A server as a whole: `OPTIONS *`.
    Server(Authority),
}

/// Reads a request's target (RFC 9112 3.2).
///
/// `host` is the value of the one Host field; `scheme` that of the connection the request came by,
/// which origin-form leaves unsaid. In absolute-form the target's own authority counts and Host is
/// not looked at: the caller replaces it with that authority (RFC 9112 3.2.2).
pub fn parse_target(
    method: &Method,
    target: &str,
    host: Option<&str>,
    scheme: Scheme,
) -> Result<RequestTarget, TargetError> {
    if *method == Method::CONNECT {
        return Authority::parse_with_port(target).map(RequestTarget::Tunnel);
    }
    if let Some(known) = split_scheme(target) {
        known?;
        let mut resource = Target::parse_url(target)?;
        // RFC 9112 3.2.4: `OPTIONS http://host` asks the server as a whole, as `OPTIONS *`.
        let names_path = target[target.find("://").map_or(0, |at| at + 3)..].contains(['/', '?']);
        if *method == Method::OPTIONS && !names_path {
            resource.path_and_query = "*".into();
        }
        return Ok(RequestTarget::Resource(resource));
    }
    let asterisk = target == "*" && *method == Method::OPTIONS;
    if !asterisk && !target.starts_with('/') {
        return Err(TargetError::Form);
    }
    let host = host.ok_or(TargetError::NoHost)?;
    let authority = Authority::parse(host, scheme)?;
    if asterisk {
        Ok(RequestTarget::Server(authority))
    } else {
        Target::new(scheme, authority, target).map(RequestTarget::Resource)
    }
}

#[cfg(test)]
mod tests;
