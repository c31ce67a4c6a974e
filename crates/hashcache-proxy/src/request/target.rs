//! What a request is about: its target, and whether it may be asked for here.
//!
//! Called by `request` before anything else. Invariant: fields that belong to the client's
//! connection are gone before anything is read from a request.

use hashcache_http::{
    Authority, RequestTarget, Scheme, Target, TargetError, Upgrading, asks_for_upgrade,
    parse_target, strip_request,
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

/// What the request is about. Errors are the client's.
pub(super) fn parse(
    connection: &Connection,
    request: &Request<ClientBody>,
    info: &HeadInfo,
) -> Result<RequestTarget, Failure> {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    let text = std::str::from_utf8(&info.target).map_err(|_| refused("the target is not ASCII"))?;
    let host = request.headers().get(HOST).map(HeaderValue::to_str);
    let host = host.transpose().map_err(|_| refused("Host is not ASCII"))?;
    if let Some(origin) = connection.worker.common.accelerated() {
        if *request.method() == Method::CONNECT {
            return Err(Failure::NotImplemented("CONNECT to an accelerated site"));
        }
        // One site: its resources are named by the path, by whichever of its names they are asked
        // for.
        let named = parse_target(request.method(), text, host.or(Some("_")), origin.scheme);
        let named = named.map_err(target_failure)?;
        if let RequestTarget::Resource(Target { authority, .. }) = &named
            && !connection.worker.common.is_site(&authority.host)
        {
            return Err(Failure::Refused {
                status: StatusCode::MISDIRECTED_REQUEST,
                reason: "this proxy does not serve a site of this name",
            });
        }
        return Ok(match named {
            RequestTarget::Resource(named) => RequestTarget::Resource(Target {
                scheme: origin.scheme,
                authority: origin.authority.clone(),
                path_and_query: named.path_and_query,
            }),
            other => other,
        });
    }
    let Some(intercepted) = &connection.intercepted else {
        return parse_target(request.method(), text, host, connection.scheme)
            .map_err(target_failure);
    };
    // HTTP/1.0 need not say what the CONNECT has said.
    let named = intercepted.host_field();
    let host = host.or(Some(&*named));
    let named = parse_target(request.method(), text, host, Scheme::Https);
    let named = named.map_err(target_failure)?;
    match refusal(intercepted, &named) {
        Some(failure) => Err(failure),
        None => Ok(named),
    }
}

fn target_failure(error: TargetError) -> Failure {
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

/// Whoever may use this proxy must not come to its figures by it, even where loopback is allowed as
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

/// Takes out what belongs to the client's connection, before anything is read from the fields: what
/// `Connection` names does not go upstream, so it may not select a variant, a range, a condition or
/// anything else here. A response to `Connection: Origin` would otherwise be stored for requests
/// with that `Origin`, which the origin has never seen.
pub(super) fn strip(request: &mut Request<ClientBody>) -> Result<(), Failure> {
    let upgrading = match asks_for_upgrade(request.method(), request.headers()) {
        true => Upgrading::Yes,
        false => Upgrading::No,
    };
    // `wire` has refused such a request already, with the same status.
    strip_request(request.headers_mut(), upgrading).map_err(|_| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason: "Connection names an end-to-end field",
    })
}

/// OPTIONS and TRACE count the proxies they may pass (RFC 9110 7.6.2).
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
