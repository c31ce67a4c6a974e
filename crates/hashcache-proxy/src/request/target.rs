//! Parses the target of a request, and checks that this proxy may serve it.
//!
//! Called by `request` before any other step. For an ftp URL, the user name and the password become
//! the field Authorization, so that they are neither part of a key nor of a log, and a response to
//! them is not for other clients.
//!
//! Invariant: the hop-by-hop fields are removed before any field of the request is read.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hashcache_base::failure::Failure;
use hashcache_http::{
    Authority, RequestTarget, Scheme, Target, TargetError, Upgrading, asks_for_upgrade,
    keeps_login, octet_text, parse_target, settle_modified_since, strip_request,
};
use hashcache_upstream::gateway::{self, decode};
use hashcache_upstream::pinned::KeptLogin;
use hashcache_wire::{ClientBody, ContentFraming, HeadInfo};
use http::header::{AUTHORIZATION, CONNECTION, HOST, MAX_FORWARDS, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Version};

use super::own;
use super::transaction::Answer;
use crate::connect::intercepted::refusal;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;

/// Parses the target of a request. All errors are client errors.
pub(super) fn parse(
    connection: &Connection,
    request: &mut Request<ClientBody>,
    info: &HeadInfo,
) -> Result<RequestTarget, Failure> {
    let (text, host) = target_and_host(request, info)?;
    let text = &*text;
    // HTTP/1.0 clients may omit Host; the connection has named the server.
    let server = connection.plain_destination().map(Authority::from);
    let server = server.map(|server| server.display(Scheme::Http).to_string());
    let host = host.or(server.as_deref());
    let Some(intercepted) = &connection.intercepted else {
        let (text, login) = without_login(text);
        let named = parse_target(request.method(), &text, host, connection.scheme);
        let named = named.map_err(target_failure)?;
        if let Some(login) = login {
            let fields = request.headers_mut();
            fields.entry(AUTHORIZATION).or_insert(login);
        }
        return Ok(named);
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

/// An ftp URL in the canonical spelling, with the user name and the password as the field
/// Authorization. Files are sent as they are, so `;type=i` (which curl adds) has no effect.
fn without_login(url: &str) -> (Cow<'_, str>, Option<HeaderValue>) {
    let plain = (Cow::Borrowed(url), None);
    let Some((scheme, rest)) = url.split_once("://") else {
        return plain;
    };
    if !scheme.eq_ignore_ascii_case(Scheme::Ftp.as_str()) {
        return plain;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = match path.len().checked_sub(TYPE_IMAGE.len()) {
        Some(at) if path.as_bytes()[at..].eq_ignore_ascii_case(TYPE_IMAGE) => &path[..at],
        _ => path,
    };
    let Some((login, authority)) = authority.rsplit_once('@') else {
        return (format!("ftp://{authority}{path}").into(), None);
    };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let login = [&decode(user)[..], b":", &decode(password)].concat();
    let value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(login))).ok();
    (format!("ftp://{authority}{path}").into(), value)
}

/// Returns `Ok` if a gateway may fetch the resource; other schemes are not checked.
pub(super) fn may_use_gateway(
    connection: &Connection,
    request: &mut Request<ClientBody>,
    target: &Target,
    info: &HeadInfo,
) -> Result<(), Failure> {
    if !target.scheme.needs_gateway() {
        return Ok(());
    }
    if !connection
        .worker
        .common
        .live()
        .settings
        .gateways
        .contains(&target.scheme)
    {
        return Err(Failure::NotImplemented(match target.scheme {
            Scheme::Ftp => "ftp URLs; the operator of this proxy can allow them by --gateways ftp",
            _ => "gopher URLs; the operator of this proxy can allow them by --gateways gopher",
        }));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Failure::NotImplemented(
            "other methods than GET and HEAD for this scheme",
        ));
    }
    if info.content != ContentFraming::None {
        return Err(Failure::Refused {
            status: StatusCode::BAD_REQUEST,
            reason: "a request for this scheme has no content",
        });
    }
    gateway::check(target)?;
    // There is no other protocol to change to.
    let fields = request.headers_mut();
    fields.remove(UPGRADE);
    fields.remove(CONNECTION);
    Ok(())
}

/// The request target as text, and the value of Host, if there is one.
pub(super) fn target_and_host<'a>(
    request: &'a Request<ClientBody>,
    info: &'a HeadInfo,
) -> Result<(Cow<'a, str>, Option<&'a str>), Failure> {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    let host = request.headers().get(HOST).map(HeaderValue::to_str);
    let host = host.transpose().map_err(|_| refused("Host is not ASCII"))?;
    Ok((octet_text(&info.target), host))
}

pub(super) fn target_failure(error: TargetError) -> Failure {
    let refused = |reason| Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    };
    match error {
        TargetError::Scheme => Failure::NotImplemented("this scheme"),
        TargetError::NoHost => refused("the request has no host"),
        TargetError::Host => refused("the host is neither a valid name nor an IP address"),
        TargetError::Port => refused("the port is not a number from 1 to 65535"),
        TargetError::Userinfo => refused("the URL contains a user name"),
        TargetError::Fragment => refused("the request target contains a fragment"),
        _ => refused("the request target has a form that this method does not allow"),
    }
}

/// Refuses the admin pages: clients must not reach them through the proxy, even if loopback is
/// allowed as a destination.
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
pub(super) fn strip(request: &mut Request<ClientBody>, info: &HeadInfo) -> Result<(), Failure> {
    // A server must ignore an Upgrade in HTTP/1.0 (RFC 9110, 7.8): the client would not understand
    // the 101.
    let may_upgrade = info.version != Version::HTTP_10;
    let upgrading = if may_upgrade && asks_for_upgrade(request.method(), request.headers()) {
        Upgrading::Yes
    } else {
        Upgrading::No
    };
    if keeps_login(request.headers()) {
        request.extensions_mut().insert(KeptLogin);
    }
    settle_modified_since(request.headers_mut());
    // `hashcache-wire` has already refused such a request with the same status.
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
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // A number beyond any path that a request can take is as good as the largest number.
    let left = digits.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    });
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

/// The transfer type for files in ftp URLs, if no other type is given (RFC 1738, section 3.2.2).
const TYPE_IMAGE: &[u8] = b";type=i";

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(url: &str) -> (String, Option<String>) {
        let (plain, login) = without_login(url);
        let login = login.map(|login| {
            let text = login.to_str().unwrap().strip_prefix("Basic ").unwrap();
            String::from_utf8(BASE64.decode(text).unwrap()).unwrap()
        });
        (plain.into_owned(), login)
    }

    #[test]
    fn the_login_of_an_ftp_url_becomes_a_field() {
        let with = |url: &str, login: &str| (url.to_owned(), Some(login.to_owned()));
        let url = "FTP://u%40x:p%3a%2f@h:2121/a;type=I";
        assert_eq!(taken(url), with("ftp://h:2121/a", "u@x:p:/"));
        assert_eq!(taken("ftp://u@h"), with("ftp://h", "u:"));
        assert_eq!(taken("ftp://a@b:c@h/"), with("ftp://h/", "a@b:c"));
        for url in [
            "http://u:p@h/;type=i",
            "gopher://u:p@h/",
            "/x://y@z",
            "ftp://h/x;type=a",
        ] {
            assert_eq!(taken(url), (url.to_owned(), None));
        }
        assert_eq!(taken("ftp://h/a@b"), ("ftp://h/a@b".to_owned(), None));
    }
}
