//! The target of a request, and whether this proxy may be asked for it.
//!
//! Called by `request` before any other step. Invariant: the hop-by-hop fields are removed before
//! any field of the request is read.

use hashcache_http::{
    Authority, RequestTarget, Scheme, TargetError, Upgrading, asks_for_upgrade, parse_target,
    strip_request,
};
use http::header::{HOST, MAX_FORWARDS};
use http::{HeaderValue, Method, Request, StatusCode};

use super::own;
use super::transaction::Answer;
use crate::connect::intercepted::refusal;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::log_entry::LogEntryBuilder;
use crate::wire::{ClientBody, HeadInfo};

/// Parses the target of a request. All errors are the client's.
pub(super) fn parse(
    connection: &Connection,
    request: &Request<ClientBody>,
    info: &HeadInfo,
) -> Result<RequestTarget, Failure> {
    let (text, host) = target_and_host(request, info)?;
    let Some(intercepted) = &connection.intercepted else {
        return parse_target(request.method(), text, host, connection.scheme)
            .map_err(target_failure);
    };
    // HTTP/1.0 clients may omit Host; the CONNECT has named the host.
    let named = intercepted.host_field();
    let host = host.or(Some(&*named));
    let named = parse_target(request.method(), text, host, Scheme::Https);
    let named = named.map_err(target_failure)?;
    match refusal(intercepted, &named) {
        Some(failure) => Err(failure),
        None => Ok(named),
    }
}

/// The request target and the value of Host, if there is one.
pub(super) fn target_and_host<'a>(
    request: &'a Request<ClientBody>,
    info: &'a HeadInfo,
) -> Result<(&'a str, Option<&'a str>), Failure> {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    let text = std::str::from_utf8(&info.target).map_err(|_| refused("the target is not ASCII"))?;
    let host = request.headers().get(HOST).map(HeaderValue::to_str);
    let host = host.transpose().map_err(|_| refused("Host is not ASCII"))?;
    Ok((text, host))
}

pub(super) fn target_failure(error: TargetError) -> Failure {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    match error {
        TargetError::Scheme => Failure::NotImplemented("schemes other than http and https"),
        TargetError::NoHost => refused("the request has no host"),
        TargetError::Host => refused("the host is neither a valid name nor an IP address"),
        TargetError::Port => refused("the port is not a number from 1 to 65535"),
        TargetError::Userinfo => refused("the URL contains a user name"),
        TargetError::Fragment => refused("the request target contains a fragment"),
        _ => refused("the request target has a form that this method does not allow"),
    }
}

/// Clients of this proxy must not reach its admin pages through it, even if loopback is allowed as
/// a destination.
pub(super) fn not_admin(connection: &Connection, authority: &Authority) -> Result<(), Failure> {
    if !connection.worker.common.is_admin(authority) {
        return Ok(());
    }
    Err(Failure::Refused {
        status: StatusCode::MISDIRECTED_REQUEST,
        reason: "the admin pages cannot be reached through the proxy",
    })
}

/// Removes the hop-by-hop fields before any field is read. Fields that `Connection` names are not
/// sent upstream, so they must not select a variant, a range or a condition here either. Otherwise
/// a request with `Connection: Origin` would store a response for requests with that `Origin`,
/// which the origin has never seen.
pub(super) fn strip(request: &mut Request<ClientBody>) -> Result<(), Failure> {
    let upgrading = match asks_for_upgrade(request.method(), request.headers()) {
        true => Upgrading::Yes,
        false => Upgrading::No,
    };
    // `wire` has already refused such a request with the same status.
    strip_request(request.headers_mut(), upgrading).map_err(|_| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "Connection names an end-to-end field",
    })
}

/// Counts down Max-Forwards of OPTIONS and TRACE (RFC 9110 7.6.2); a response if it is 0.
pub(super) fn max_forwards(
    request: &mut Request<ClientBody>,
    log_entry: &mut LogEntryBuilder,
) -> Option<Answer> {
    if !matches!(*request.method(), Method::OPTIONS | Method::TRACE) {
        return None;
    }
    let value = request.headers().get(MAX_FORWARDS)?;
    let left = value
        .to_str()
        .ok()
        .and_then(|left| left.parse::<u32>().ok())?;
    if left == 0 {
        return Some(match *request.method() {
            Method::OPTIONS => Ok(own::options(log_entry)),
            _ => Err(Failure::NotImplemented("TRACE to this proxy")),
        });
    }
    request
        .headers_mut()
        .insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    None
}
