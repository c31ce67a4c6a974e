//! The target of a request: scheme, host, port, path and query, each in its canonical spelling.
//!
//! The proxy calls `parse_target` with the target in the request line and Host; `cache_key`,
//! `rules` and `invalidate` take the result.
//!
//! Invariant: equivalent spellings of a URL (letter case of the host, default port, forms of an
//! IPv6 address) give equal targets; path and query stay byte for byte, because `%2f` and `/`, or
//! `a?x&y` and `a?y&x`, may be different resources.
//! Cost: two small allocations; none for a clone.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::authority::{Authority, Scheme, TargetError, split_scheme};

/// A target URI; responses are stored for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The scheme.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Path and query as received; starts with `/`, or is `*` for the whole server.
    pub path_and_query: Arc<str>,
}

impl Target {
    /// Parses a URL with a known scheme.
    pub fn parse_url(text: &str) -> Result<Target, TargetError> {
        let (scheme, rest) = split_scheme(text).ok_or(TargetError::Form)??;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = Authority::parse(authority, scheme)?;
        Target::new(scheme, authority, path)
    }

    /// A target with this authority. An empty path becomes `/`, also before a query.
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

    /// The query, without the question mark. An empty query counts as a query.
    pub fn query(&self) -> Option<&str> {
        self.path_and_query.split_once('?').map(|(_, query)| query)
    }

    /// Returns true if both targets have the same origin.
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

/// A parsed request target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// A URI in absolute-form, or in origin-form with Host.
    Resource(Target),
    /// A tunnel: CONNECT.
    Tunnel(Authority),
    /// A server as a whole: `OPTIONS *`.
    Server(Authority),
}

/// Parses a request target (RFC 9112 3.2).
///
/// `host` is the value of the single Host field. `scheme` is from the client's connection, because
/// origin-form does not contain it. In absolute-form the authority in the target counts and Host is
/// ignored: the caller replaces Host with that authority (RFC 9112 3.2.2).
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
        // RFC 9112 3.2.4: `OPTIONS http://host` is for the whole server, as `OPTIONS *`.
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
