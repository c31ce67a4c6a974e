//! Everything that keeps a request from being answered as asked, with its status and its name on
//! the wire.
//!
//! One value serves the error page, the access log, `Proxy-Status` (RFC 9209) and the metrics, so
//! that the four can never disagree. Made wherever a request can go wrong; read by `page`,
//! `access_log` and `request`.
//!
//! Invariant: the status of a failure is never a success, and what goes on the wire is a field.

use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

mod explain;

/// Why a request could not be answered as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request head was refused by `wire` or by the parse of its target.
    Refused {
        status: StatusCode,
        reason: &'static str,
    },
    /// The client's address is not on the list.
    ClientDenied { client: IpAddr },
    /// Too many connections from this address, or in all.
    ClientLimit,
    /// `CONNECT` to a port that is not allowed.
    ConnectPortDenied { port: u16 },
    /// The destination's address is not allowed.
    DestinationDenied { address: IpAddr },
    /// The request came back to us (`Via`, `CDN-Loop`).
    Loop,
    /// The name does not exist.
    NameNotFound,
    /// The name could not be looked up.
    NameError,
    /// The name could not be looked up in time.
    NameTimeout(Duration),
    /// No address of the destination could be reached.
    Unreachable,
    /// The destination refuses connections.
    ConnectionRefused,
    /// No connection in time.
    ConnectTimeout(Duration),
    /// The connection broke before the response head was complete.
    ConnectionTerminated,
    /// No first byte in time.
    FirstByteTimeout(Duration),
    /// No further byte in time.
    ReadTimeout(Duration),
    /// The origin broke off in the middle of a body.
    ResponseIncomplete,
    /// The origin sent what is not HTTP, or what has two meanings.
    ResponseMalformed(&'static str),
    /// Caps on upstream connections are reached and no place became free in time.
    UpstreamLimit,
    /// `Cache-Control: only-if-cached` and it is not stored.
    NotCached,
    /// The scheme or method is not one we serve.
    NotImplemented(&'static str),
    /// Something that should not happen here.
    Internal(&'static str),
}

impl Failure {
    /// Every word of `slug`, for counters.
    pub(crate) const SLUGS: [&'static str; 21] = [
        "refused",
        "client-denied",
        "client-limit",
        "connect-port-denied",
        "destination-denied",
        "loop",
        "name-not-found",
        "name-error",
        "name-timeout",
        "unreachable",
        "connection-refused",
        "connect-timeout",
        "connection-terminated",
        "first-byte-timeout",
        "read-timeout",
        "response-incomplete",
        "response-malformed",
        "upstream-limit",
        "not-cached",
        "not-implemented",
        "internal",
    ];

    /// The status of our own answer (RFC 9110, and RFC 9209 where it recommends one).
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            // A refusal with a status of success or of a redirect would be a lie.
            Self::Refused { status, .. }
                if status.is_client_error() || status.is_server_error() =>
            {
                *status
            }
            Self::Refused { .. } => StatusCode::BAD_REQUEST,
            Self::ClientDenied { .. }
            | Self::ConnectPortDenied { .. }
            | Self::DestinationDenied { .. } => StatusCode::FORBIDDEN,
            Self::ClientLimit | Self::UpstreamLimit => StatusCode::SERVICE_UNAVAILABLE,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::NameNotFound
            | Self::NameError
            | Self::Unreachable
            | Self::ConnectionRefused
            | Self::ConnectionTerminated
            | Self::ResponseIncomplete
            | Self::ResponseMalformed(_) => StatusCode::BAD_GATEWAY,
            Self::NameTimeout(_)
            | Self::ConnectTimeout(_)
            | Self::FirstByteTimeout(_)
            | Self::ReadTimeout(_)
            | Self::NotCached => StatusCode::GATEWAY_TIMEOUT,
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The error type of RFC 9209, section 2.3.
    pub(crate) fn error_type(&self) -> &'static str {
        match self {
            Self::Refused { status, .. } if status.is_server_error() => "proxy_internal_response",
            Self::Refused { .. } => "http_request_error",
            Self::ClientDenied { .. } | Self::ClientLimit | Self::ConnectPortDenied { .. } => {
                "http_request_denied"
            }
            Self::DestinationDenied { .. } => "destination_ip_prohibited",
            Self::Loop => "proxy_loop_detected",
            Self::NameNotFound | Self::NameError => "dns_error",
            Self::NameTimeout(_) => "dns_timeout",
            Self::Unreachable => "destination_ip_unroutable",
            Self::ConnectionRefused => "connection_refused",
            Self::ConnectTimeout(_) => "connection_timeout",
            Self::ConnectionTerminated => "connection_terminated",
            // Not `http_response_timeout`: that is about the whole response, this about silence.
            Self::FirstByteTimeout(_) | Self::ReadTimeout(_) => "connection_read_timeout",
            Self::ResponseIncomplete => "http_response_incomplete",
            Self::ResponseMalformed(_) => "http_protocol_error",
            Self::UpstreamLimit => "connection_limit_reached",
            // Answered without an attempt to reach the next hop, and nobody's error.
            Self::NotCached | Self::NotImplemented(_) => "proxy_internal_response",
            Self::Internal(_) => "proxy_internal_error",
        }
    }

    /// The whole field `Proxy-Status`, as said by the proxy called `name`.
    pub(crate) fn proxy_status(&self, name: &str) -> HeaderValue {
        let mut field = String::with_capacity(96);
        push_item(&mut field, name);
        field.push_str("; error=");
        field.push_str(self.error_type());
        match self {
            Self::NameNotFound => field.push_str("; rcode=\"NXDOMAIN\""),
            Self::Refused { .. } if self.error_type() == "http_request_error" => {
                let status = self.status();
                // Writing to a `String` cannot fail.
                let _ = write!(field, "; status-code={}", status.as_u16());
                if let Some(phrase) = status.canonical_reason() {
                    field.push_str("; status-phrase=");
                    push_string(&mut field, phrase);
                }
            }
            _ => {}
        }
        if let Self::Refused { reason, .. }
        | Self::ResponseMalformed(reason)
        | Self::NotImplemented(reason) = self
        {
            field.push_str("; details=");
            push_string(&mut field, reason);
        }
        HeaderValue::try_from(field).expect("only printable ASCII is ever pushed")
    }

    /// A constant word for logs and labels.
    pub(crate) fn slug(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::ClientDenied { .. } => "client-denied",
            Self::ClientLimit => "client-limit",
            Self::ConnectPortDenied { .. } => "connect-port-denied",
            Self::DestinationDenied { .. } => "destination-denied",
            Self::Loop => "loop",
            Self::NameNotFound => "name-not-found",
            Self::NameError => "name-error",
            Self::NameTimeout(_) => "name-timeout",
            Self::Unreachable => "unreachable",
            Self::ConnectionRefused => "connection-refused",
            Self::ConnectTimeout(_) => "connect-timeout",
            Self::ConnectionTerminated => "connection-terminated",
            Self::FirstByteTimeout(_) => "first-byte-timeout",
            Self::ReadTimeout(_) => "read-timeout",
            Self::ResponseIncomplete => "response-incomplete",
            Self::ResponseMalformed(_) => "response-malformed",
            Self::UpstreamLimit => "upstream-limit",
            Self::NotCached => "not-cached",
            Self::NotImplemented(_) => "not-implemented",
            Self::Internal(_) => "internal",
        }
    }

    /// When it makes sense to ask again, where we can say.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            // A connection becomes free within seconds; a crowd told "1" comes back as one.
            Self::ClientLimit | Self::UpstreamLimit => Some(Duration::from_secs(5)),
            _ => None,
        }
    }
}

/// For logs: a phrase of this level only.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, reason } => {
                write!(f, "request refused with {}: {reason}", status.as_u16())
            }
            Self::ClientDenied { client } => write!(f, "client {client} is not allowed"),
            Self::ClientLimit => f.write_str("too many connections from clients"),
            Self::ConnectPortDenied { port } => write!(f, "CONNECT to port {port} is not allowed"),
            Self::DestinationDenied { address } => {
                write!(f, "destination {address} is not allowed")
            }
            Self::Loop => f.write_str("the request came back to us"),
            Self::NameNotFound => f.write_str("the name does not exist"),
            Self::NameError => f.write_str("the name could not be looked up"),
            Self::NameTimeout(waited) => write!(f, "no answer to a name lookup in {waited:?}"),
            Self::Unreachable => f.write_str("no address of the destination can be reached"),
            Self::ConnectionRefused => f.write_str("the destination refuses connections"),
            Self::ConnectTimeout(waited) => write!(f, "no connection in {waited:?}"),
            Self::ConnectionTerminated => f.write_str("the connection broke before the response"),
            Self::FirstByteTimeout(waited) => write!(f, "no first byte in {waited:?}"),
            Self::ReadTimeout(waited) => write!(f, "no further byte in {waited:?}"),
            Self::ResponseIncomplete => f.write_str("the response broke off in its body"),
            Self::ResponseMalformed(reason) => write!(f, "the response is malformed: {reason}"),
            Self::UpstreamLimit => f.write_str("all upstream connections are busy"),
            Self::NotCached => f.write_str("only a stored response was wanted and there is none"),
            Self::NotImplemented(what) => write!(f, "not implemented: {what}"),
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Our name as a structured field item: a token if it is one, else a string (RFC 8941, 3.3).
fn push_item(field: &mut String, name: &str) {
    let token = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&b));
    if token {
        field.push_str(name);
    } else {
        push_string(field, name);
    }
}

/// A structured field string: printable ASCII, quotes and backslashes escaped, the rest as `?`.
fn push_string(field: &mut String, text: &str) {
    field.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => field.extend(['\\', c]),
            ' '..='~' => field.push(c),
            _ => field.push('?'),
        }
    }
    field.push('"');
}

#[cfg(test)]
impl Failure {
    /// One of each variant, for tests.
    pub(crate) fn each() -> Vec<Failure> {
        let second = Duration::from_secs(1);
        vec![
            Failure::Refused {
                status: StatusCode::BAD_REQUEST,
                reason: "two lengths",
            },
            Failure::ClientDenied {
                client: IpAddr::from([192, 0, 2, 1]),
            },
            Failure::ClientLimit,
            Failure::ConnectPortDenied { port: 25 },
            Failure::DestinationDenied {
                address: IpAddr::from([127, 0, 0, 1]),
            },
            Failure::Loop,
            Failure::NameNotFound,
            Failure::NameError,
            Failure::NameTimeout(second),
            Failure::Unreachable,
            Failure::ConnectionRefused,
            Failure::ConnectTimeout(second),
            Failure::ConnectionTerminated,
            Failure::FirstByteTimeout(second),
            Failure::ReadTimeout(second),
            Failure::ResponseIncomplete,
            Failure::ResponseMalformed("two lengths"),
            Failure::UpstreamLimit,
            Failure::NotCached,
            Failure::NotImplemented("the scheme gopher"),
            Failure::Internal("a task died"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9209, section 2.3, those we may use.
    const REGISTERED: [&str; 32] = [
        "dns_timeout",
        "dns_error",
        "destination_not_found",
        "destination_unavailable",
        "destination_ip_prohibited",
        "destination_ip_unroutable",
        "connection_refused",
        "connection_terminated",
        "connection_timeout",
        "connection_read_timeout",
        "connection_write_timeout",
        "connection_limit_reached",
        "tls_protocol_error",
        "tls_certificate_error",
        "tls_alert_received",
        "http_request_error",
        "http_request_denied",
        "http_response_incomplete",
        "http_response_header_section_size",
        "http_response_header_size",
        "http_response_body_size",
        "http_response_trailer_section_size",
        "http_response_trailer_size",
        "http_response_transfer_coding",
        "http_response_content_coding",
        "http_response_timeout",
        "http_upgrade_failed",
        "http_protocol_error",
        "proxy_internal_response",
        "proxy_internal_error",
        "proxy_configuration_error",
        "proxy_loop_detected",
    ];

    #[test]
    fn every_failure_has_an_error_status_and_a_registered_error_type() {
        for failure in Failure::each() {
            let status = failure.status();
            assert!(
                status.is_client_error() || status.is_server_error(),
                "{failure:?}"
            );
            assert!(REGISTERED.contains(&failure.error_type()), "{failure:?}");
        }
    }

    #[test]
    fn every_failure_has_a_slug_of_its_own_and_all_are_listed() {
        let slugs: Vec<_> = Failure::each().iter().map(Failure::slug).collect();
        assert_eq!(slugs, Failure::SLUGS);
        let distinct: std::collections::BTreeSet<_> = slugs.iter().collect();
        assert_eq!(distinct.len(), slugs.len());
    }

    #[test]
    fn a_refusal_is_never_told_as_a_success() {
        let failure = Failure::Refused {
            status: StatusCode::OK,
            reason: "a bug",
        };
        assert_eq!(failure.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn statuses_are_those_of_the_rfcs() {
        let status = |failure: Failure| failure.status().as_u16();
        assert_eq!(
            status(Failure::DestinationDenied {
                address: [10, 0, 0, 1].into()
            }),
            403
        );
        assert_eq!(status(Failure::NotCached), 504);
        assert_eq!(status(Failure::Loop), 508);
        assert_eq!(status(Failure::NameNotFound), 502);
        assert_eq!(status(Failure::ConnectTimeout(Duration::ZERO)), 504);
        assert_eq!(status(Failure::UpstreamLimit), 503);
        assert_eq!(status(Failure::NotImplemented("x")), 501);
    }

    #[test]
    fn limits_say_when_to_come_back() {
        for failure in Failure::each() {
            let unavailable = failure.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(failure.retry_after().is_some(), unavailable, "{failure:?}");
        }
    }

    #[test]
    fn proxy_status_carries_the_parameters_of_its_error_type() {
        assert_eq!(
            Failure::NameNotFound.proxy_status("hashcache"),
            "hashcache; error=dns_error; rcode=\"NXDOMAIN\""
        );
        assert_eq!(
            Failure::Refused {
                status: StatusCode::BAD_REQUEST,
                reason: "a \"quoted\" Host"
            }
            .proxy_status("hashcache"),
            "hashcache; error=http_request_error; status-code=400; \
             status-phrase=\"Bad Request\"; details=\"a \\\"quoted\\\" Host\""
        );
    }

    #[test]
    fn a_name_that_is_no_token_is_sent_as_a_string() {
        assert_eq!(
            Failure::Loop.proxy_status("box.lan:3128"),
            "box.lan:3128; error=proxy_loop_detected"
        );
        assert_eq!(
            Failure::Loop.proxy_status("école 1\r\n"),
            "\"?cole 1??\"; error=proxy_loop_detected"
        );
        assert_eq!(
            Failure::Loop.proxy_status(""),
            "\"\"; error=proxy_loop_detected"
        );
    }
}
