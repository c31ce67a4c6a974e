//! Every reason for which a request fails or is refused, with a status and a name.
//!
//! One value serves the error page, the access log, `Proxy-Status` (RFC 9209) and the metrics, so
//! that the four never disagree. Made wherever a request can fail; read by `page`, `access_log` and
//! `request` in the proxy.
//!
//! Invariant: the status of a failure is never a success.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashcache_http::{ProxyError, ProxyStatus};
use http::{HeaderValue, StatusCode};

mod link;

pub use self::link::LinkFault;

/// An access rule that refuses a request, with the details for the error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDenial {
    /// The name or the number of the rule.
    pub rule: Box<str>,
    /// Why the rule refuses, in the operator's words.
    pub reason: Option<Box<str>>,
    /// The contact that the operator named for questions.
    pub contact: Option<Box<str>>,
}

/// A used-up quota, with the details for the error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaDenial {
    /// The limit's name.
    pub limit: Box<str>,
    /// Bytes in each period.
    pub bytes: u64,
    /// The name of the period: "day".
    pub period: &'static str,
    /// When the next period starts, on the local clock.
    pub ends: Box<str>,
    /// Time until then.
    pub wait: Duration,
    /// The contact that the operator named for questions.
    pub contact: Option<Box<str>>,
}

/// A limit on requests that was reached, with the details for the error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRateDenial {
    /// The limit's name.
    pub limit: Box<str>,
    /// Requests per second that the limit allows.
    pub per_second: u64,
    /// Time until the limit allows the next request.
    pub wait: Duration,
    /// The contact that the operator named for questions.
    pub contact: Option<Box<str>>,
}

/// Why a request failed or was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// `hashcache-wire` refused the request head, or the target could not be parsed.
    Refused {
        /// The response status, an error.
        status: StatusCode,
        /// The reason, for the person at the client; shown on the error page.
        reason: &'static str,
    },
    /// A forward proxy got a resource's path without the host, as a web server would.
    OriginForm,
    /// The client's address is not on the list.
    ClientDenied {
        /// The client's address.
        client: IpAddr,
    },
    /// A rule needs the user, and the client has sent no right login.
    LoginNeeded {
        /// The realm, which the browser shows (RFC 9110, section 11.5).
        realm: Arc<str>,
    },
    /// A rule needs the user, but a login cannot be requested, because the client does not know
    /// that it speaks to a proxy.
    LoginImpossible,
    /// No password is checked for this client now: too many checks are in progress, or too many
    /// passwords were wrong.
    TooManyLogins,
    /// An access rule refuses the request.
    RuleDenied(Box<RuleDenial>),
    /// A quota is used up.
    QuotaUsed(Box<QuotaDenial>),
    /// More requests per second than a limit allows.
    TooManyRequests(Box<RequestRateDenial>),
    /// Too many connections from this address, or in all.
    ClientLimit,
    /// `CONNECT` to a port that is not allowed.
    ConnectPortDenied {
        /// The tunnel's port.
        port: u16,
    },
    /// A resource at a port that is not allowed.
    PortDenied {
        /// The resource's port.
        port: u16,
    },
    /// The destination's address is not allowed.
    DestinationDenied {
        /// The destination's address.
        address: IpAddr,
    },
    /// The request has passed through this proxy before (`Via`).
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
    /// The origin's certificate was not accepted.
    TlsCertificate(&'static str),
    /// The origin aborted the handshake with an alert.
    TlsAlert(&'static str),
    /// The handshake failed for another reason.
    TlsProtocol(&'static str),
    /// The connection was closed before the response head was complete.
    ConnectionTerminated,
    /// No first byte in time.
    FirstByteTimeout(Duration),
    /// No further byte in time.
    ReadTimeout(Duration),
    /// The origin's connection was closed in the middle of a body.
    ResponseIncomplete,
    /// The origin sent a message that is not HTTP, or that is ambiguous.
    ResponseMalformed(&'static str),
    /// The limits on upstream connections are reached and no connection became free in time.
    UpstreamLimit,
    /// `Cache-Control: only-if-cached` and no stored response.
    NotCached,
    /// This request waited for another request for the same resource, and the origin answered that
    /// request with an error.
    OriginStatus {
        /// Status of the origin's response.
        status: u16,
    },
    /// A peer did not make a tunnel, or requires credentials that we do not have.
    PeerStatus {
        /// Status of the peer's response.
        status: u16,
    },
    /// An FTP server refused a command that a transfer needs, or closed the connection.
    FtpReply {
        /// The reply (RFC 959, section 4.2).
        code: u16,
    },
    /// The resource may only be fetched through peers, and no peer is available.
    NoRoute,
    /// The line to the Internet counts as down, so no request was sent.
    Offline,
    /// A scheme or method that this proxy does not support.
    NotImplemented(&'static str),
    /// There is no link to a parent that can only be used through a link.
    Link(LinkFault),
    /// An internal error.
    Internal(&'static str),
}

impl Failure {
    /// Every return value of `slug`, for counters.
    pub const SLUGS: [&'static str; 38] = [
        "refused",
        "origin-form",
        "client-denied",
        "login-needed",
        "login-impossible",
        "too-many-logins",
        "rule-denied",
        "quota-used",
        "too-many-requests",
        "client-limit",
        "connect-port-denied",
        "port-denied",
        "destination-denied",
        "loop",
        "name-not-found",
        "name-error",
        "name-timeout",
        "unreachable",
        "connection-refused",
        "connect-timeout",
        "tls-certificate",
        "tls-alert",
        "tls-protocol",
        "connection-terminated",
        "first-byte-timeout",
        "read-timeout",
        "response-incomplete",
        "response-malformed",
        "upstream-limit",
        "not-cached",
        "origin-status",
        "peer-status",
        "ftp-reply",
        "no-route",
        "offline",
        "not-implemented",
        "link",
        "internal",
    ];

    /// The status of our own response: the status in RFC 9209, unless RFC 9110 (for loops RFC 5842)
    /// has a more precise status.
    pub fn status(&self) -> StatusCode {
        match self {
            // A refusal must not look like a success or a redirect.
            Self::Refused { status, .. }
                if status.is_client_error() || status.is_server_error() =>
            {
                *status
            }
            Self::Refused { .. } | Self::OriginForm => StatusCode::BAD_REQUEST,
            Self::ClientLimit => StatusCode::SERVICE_UNAVAILABLE,
            Self::LoginNeeded { .. } => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            Self::TooManyLogins | Self::QuotaUsed(_) | Self::TooManyRequests(_) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::DestinationDenied { .. } | Self::LoginImpossible => StatusCode::FORBIDDEN,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::NotCached | Self::Offline => StatusCode::GATEWAY_TIMEOUT,
            // A 5xx status of the origin is passed on; any other status becomes a 502.
            Self::OriginStatus { status } => StatusCode::from_u16(*status)
                .ok()
                .filter(StatusCode::is_server_error)
                .unwrap_or(StatusCode::BAD_GATEWAY),
            Self::PeerStatus { .. } | Self::FtpReply { .. } | Self::NoRoute | Self::Link(_) => {
                StatusCode::BAD_GATEWAY
            }
            Self::NotImplemented(_) => StatusCode::NOT_IMPLEMENTED,
            _ => self.error().status(),
        }
    }

    /// The error type of RFC 9209, section 2.3.
    pub fn error(&self) -> ProxyError {
        match self {
            Self::Refused { status, .. } if status.is_server_error() => {
                ProxyError::ProxyInternalResponse
            }
            Self::Refused { .. } | Self::OriginForm => ProxyError::HttpRequestError,
            Self::ClientDenied { .. }
            | Self::RuleDenied(_)
            | Self::LoginNeeded { .. }
            | Self::LoginImpossible
            | Self::TooManyLogins
            | Self::QuotaUsed(_)
            | Self::TooManyRequests(_)
            | Self::ClientLimit
            | Self::ConnectPortDenied { .. }
            | Self::PortDenied { .. } => ProxyError::HttpRequestDenied,
            Self::DestinationDenied { .. } => ProxyError::DestinationIpProhibited,
            Self::Loop => ProxyError::ProxyLoopDetected,
            Self::NameNotFound | Self::NameError => ProxyError::DnsError,
            Self::NameTimeout(_) => ProxyError::DnsTimeout,
            Self::Unreachable => ProxyError::DestinationIpUnroutable,
            Self::ConnectionRefused => ProxyError::ConnectionRefused,
            Self::ConnectTimeout(_) => ProxyError::ConnectionTimeout,
            Self::TlsCertificate(_) => ProxyError::TlsCertificateError,
            Self::TlsAlert(_) => ProxyError::TlsAlertReceived,
            Self::TlsProtocol(_) => ProxyError::TlsProtocolError,
            Self::ConnectionTerminated => ProxyError::ConnectionTerminated,
            // Not `http_response_timeout`: that type means the whole response, but this limit is on
            // silence.
            Self::FirstByteTimeout(_) | Self::ReadTimeout(_) => ProxyError::ConnectionReadTimeout,
            Self::ResponseIncomplete => ProxyError::HttpResponseIncomplete,
            Self::ResponseMalformed(_) => ProxyError::HttpProtocolError,
            Self::UpstreamLimit => ProxyError::ConnectionLimitReached,
            Self::OriginStatus { .. }
            | Self::PeerStatus { .. }
            | Self::FtpReply { .. }
            | Self::NoRoute
            | Self::Offline
            | Self::Link(_) => ProxyError::DestinationUnavailable,
            // Answered without an attempt to reach the next hop, so no other party made an error.
            Self::NotCached | Self::NotImplemented(_) => ProxyError::ProxyInternalResponse,
            Self::Internal(_) => ProxyError::ProxyInternalError,
        }
    }

    /// The field `Proxy-Status` from the proxy `name`.
    pub fn proxy_status(&self, name: &str) -> HeaderValue {
        let error = self.error();
        let status = ProxyStatus {
            rcode: matches!(self, Self::NameNotFound).then_some("NXDOMAIN"),
            status: (error == ProxyError::HttpRequestError).then(|| self.status()),
            details: match self {
                Self::Refused { reason, .. }
                | Self::ResponseMalformed(reason)
                | Self::TlsCertificate(reason)
                | Self::TlsAlert(reason)
                | Self::TlsProtocol(reason)
                | Self::NotImplemented(reason) => Some(reason),
                Self::Link(fault) => Some(fault.as_str()),
                _ => None,
            },
            ..ProxyStatus::from_error(error)
        };
        status.to_value(name)
    }

    /// A constant word for logs and metric labels.
    pub fn slug(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::OriginForm => "origin-form",
            Self::ClientDenied { .. } => "client-denied",
            Self::RuleDenied(_) => "rule-denied",
            Self::QuotaUsed(_) => "quota-used",
            Self::TooManyRequests(_) => "too-many-requests",
            Self::LoginNeeded { .. } => "login-needed",
            Self::LoginImpossible => "login-impossible",
            Self::TooManyLogins => "too-many-logins",
            Self::ClientLimit => "client-limit",
            Self::ConnectPortDenied { .. } => "connect-port-denied",
            Self::PortDenied { .. } => "port-denied",
            Self::DestinationDenied { .. } => "destination-denied",
            Self::Loop => "loop",
            Self::NameNotFound => "name-not-found",
            Self::NameError => "name-error",
            Self::NameTimeout(_) => "name-timeout",
            Self::Unreachable => "unreachable",
            Self::ConnectionRefused => "connection-refused",
            Self::ConnectTimeout(_) => "connect-timeout",
            Self::TlsCertificate(_) => "tls-certificate",
            Self::TlsAlert(_) => "tls-alert",
            Self::TlsProtocol(_) => "tls-protocol",
            Self::ConnectionTerminated => "connection-terminated",
            Self::FirstByteTimeout(_) => "first-byte-timeout",
            Self::ReadTimeout(_) => "read-timeout",
            Self::ResponseIncomplete => "response-incomplete",
            Self::ResponseMalformed(_) => "response-malformed",
            Self::UpstreamLimit => "upstream-limit",
            Self::NotCached => "not-cached",
            Self::OriginStatus { .. } => "origin-status",
            Self::PeerStatus { .. } => "peer-status",
            Self::FtpReply { .. } => "ftp-reply",
            Self::NoRoute => "no-route",
            Self::Offline => "offline",
            Self::NotImplemented(_) => "not-implemented",
            Self::Link(_) => "link",
            Self::Internal(_) => "internal",
        }
    }

    /// Returns true if an operator's rule forbids the request.
    pub fn is_denial(&self) -> bool {
        matches!(
            self,
            Self::ClientDenied { .. }
                | Self::RuleDenied(_)
                | Self::LoginNeeded { .. }
                | Self::LoginImpossible
                | Self::TooManyLogins
                | Self::QuotaUsed(_)
                | Self::TooManyRequests(_)
                | Self::ConnectPortDenied { .. }
                | Self::PortDenied { .. }
                | Self::DestinationDenied { .. }
        )
    }

    /// Returns true if the request's fields can be the cause of the failure: the next hop has read
    /// the request and answered it, or has closed the connection.
    pub fn may_be_of_fields(&self) -> bool {
        matches!(
            self,
            Self::ConnectionTerminated
                | Self::ResponseMalformed(_)
                | Self::OriginStatus { .. }
                | Self::PeerStatus { .. }
        )
    }

    /// Returns true if the next hop or the path to it has failed, so that another request for the
    /// same resource would fail too. Failures by limits and rules of this proxy concern only the
    /// client.
    pub fn is_of_next_hop(&self) -> bool {
        match self {
            Self::NameNotFound
            | Self::NameError
            | Self::NameTimeout(_)
            | Self::Unreachable
            | Self::ConnectionRefused
            | Self::ConnectTimeout(_)
            | Self::TlsCertificate(_)
            | Self::TlsAlert(_)
            | Self::TlsProtocol(_)
            | Self::ConnectionTerminated
            | Self::FirstByteTimeout(_)
            | Self::ReadTimeout(_)
            | Self::ResponseMalformed(_)
            | Self::OriginStatus { .. }
            | Self::PeerStatus { .. }
            | Self::FtpReply { .. }
            | Self::Offline => true,
            Self::Refused { .. }
            | Self::OriginForm
            | Self::ClientDenied { .. }
            | Self::LoginNeeded { .. }
            | Self::LoginImpossible
            | Self::TooManyLogins
            | Self::RuleDenied(_)
            | Self::QuotaUsed(_)
            | Self::TooManyRequests(_)
            | Self::ClientLimit
            | Self::ConnectPortDenied { .. }
            | Self::PortDenied { .. }
            | Self::DestinationDenied { .. }
            | Self::Loop
            | Self::ResponseIncomplete
            | Self::UpstreamLimit
            | Self::NotCached
            | Self::NoRoute
            | Self::NotImplemented(_)
            | Self::Link(_)
            | Self::Internal(_) => false,
        }
    }

    /// The field that requests a login from the client (RFC 7617), if the login is missing.
    pub fn challenge(&self) -> Option<HeaderValue> {
        let Self::LoginNeeded { realm } = self else {
            return None;
        };
        // The realm is checked in the settings.
        HeaderValue::try_from(format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")).ok()
    }

    /// When a client should try again, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            // A connection becomes free within seconds. Not 1 s: many clients that all wait for 1 s
            // would return together.
            Self::ClientLimit | Self::UpstreamLimit | Self::TooManyLogins => {
                Some(Duration::from_secs(5))
            }
            // The origin's own `Retry-After` is only for the client that sent the answered request.
            Self::OriginStatus { status: 503 } => Some(Duration::from_secs(5)),
            Self::QuotaUsed(denial) => Some(whole_seconds(denial.wait)),
            Self::TooManyRequests(denial) => Some(whole_seconds(denial.wait)),
            _ => None,
        }
    }
}

/// A time to wait in the form of `Retry-After`: whole seconds, rounded up, at least one.
fn whole_seconds(wait: Duration) -> Duration {
    let begun = u64::from(wait.subsec_nanos() > 0);
    Duration::from_secs(wait.as_secs().saturating_add(begun).max(1))
}

/// For logs: a phrase for this level only.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, reason } => {
                write!(f, "request refused with {}: {reason}", status.as_u16())
            }
            Self::OriginForm => f.write_str("a request to a proxy has only a path"),
            Self::ClientDenied { client } => write!(f, "client {client} is not allowed"),
            Self::LoginNeeded { .. } => f.write_str("a login is needed"),
            Self::LoginImpossible => f.write_str("a login is needed, and cannot be asked for"),
            Self::TooManyLogins => f.write_str("too many logins are being checked"),
            Self::RuleDenied(denial) => write!(f, "{} does not allow it", denial.rule),
            Self::QuotaUsed(denial) => write!(f, "the quota {} is used up", denial.limit),
            Self::TooManyRequests(denial) => {
                write!(f, "more requests than {} allows", denial.limit)
            }
            Self::ClientLimit => f.write_str("too many connections from clients"),
            Self::ConnectPortDenied { port } => write!(f, "CONNECT to port {port} is not allowed"),
            Self::PortDenied { port } => write!(f, "port {port} is not allowed"),
            Self::DestinationDenied { address } => {
                write!(f, "destination {address} is not allowed")
            }
            Self::Loop => f.write_str("the request is in a loop"),
            Self::NameNotFound => f.write_str("the name does not exist"),
            Self::NameError => f.write_str("the name lookup failed"),
            Self::NameTimeout(waited) => write!(f, "no answer to a name lookup in {waited:?}"),
            Self::Unreachable => f.write_str("no address of the destination can be reached"),
            Self::ConnectionRefused => f.write_str("the destination refuses connections"),
            Self::ConnectTimeout(waited) => write!(f, "no connection in {waited:?}"),
            Self::TlsCertificate(why) => write!(f, "the origin's certificate is {why}"),
            Self::TlsAlert(alert) => write!(f, "the origin ended the TLS handshake: {alert}"),
            Self::TlsProtocol(why) => write!(f, "the TLS handshake failed: {why}"),
            Self::ConnectionTerminated => {
                f.write_str("the connection was closed before the response")
            }
            Self::FirstByteTimeout(waited) => write!(f, "no first byte in {waited:?}"),
            Self::ReadTimeout(waited) => write!(f, "no further byte in {waited:?}"),
            Self::ResponseIncomplete => {
                f.write_str("the connection was closed in the middle of the response")
            }
            Self::ResponseMalformed(reason) => write!(f, "the response is malformed: {reason}"),
            Self::UpstreamLimit => f.write_str("all upstream connections are busy"),
            Self::NotCached => {
                f.write_str("the request was for a stored response only, and there is none")
            }
            Self::OriginStatus { status } => {
                write!(f, "the origin answered the same request with {status}")
            }
            Self::PeerStatus { status } => write!(f, "the peer answered with {status}"),
            Self::FtpReply { code } => write!(f, "the FTP server answered with {code}"),
            Self::NoRoute => f.write_str("no peer can be asked, and direct connections are off"),
            Self::Offline => f.write_str("the line to the Internet counts as down"),
            Self::NotImplemented(what) => write!(f, "not supported: {what}"),
            Self::Link(fault) => f.write_str(fault.as_str()),
            Self::Internal(what) => write!(f, "internal error: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(any(test, feature = "testing"))]
impl Failure {
    /// An example of each variant, for tests.
    pub fn each() -> Vec<Failure> {
        let second = Duration::from_secs(1);
        vec![
            Failure::Refused {
                status: StatusCode::BAD_REQUEST,
                reason: "two lengths",
            },
            Failure::OriginForm,
            Failure::ClientDenied {
                client: IpAddr::from([192, 0, 2, 1]),
            },
            Failure::LoginNeeded {
                realm: "proxy".into(),
            },
            Failure::LoginImpossible,
            Failure::TooManyLogins,
            Failure::RuleDenied(Box::new(RuleDenial {
                rule: "rule 1".into(),
                reason: None,
                contact: None,
            })),
            Failure::QuotaUsed(Box::new(QuotaDenial {
                limit: "pupil".into(),
                bytes: 1 << 30,
                period: "day",
                ends: "Saturday 28 November, 00:00".into(),
                wait: second,
                contact: None,
            })),
            Failure::TooManyRequests(Box::new(RequestRateDenial {
                limit: "pupil".into(),
                per_second: 20,
                wait: second,
                contact: None,
            })),
            Failure::ClientLimit,
            Failure::ConnectPortDenied { port: 25 },
            Failure::PortDenied { port: 25 },
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
            Failure::TlsCertificate("expired"),
            Failure::TlsAlert("UnrecognisedName"),
            Failure::TlsProtocol("the bytes received are no TLS"),
            Failure::ConnectionTerminated,
            Failure::FirstByteTimeout(second),
            Failure::ReadTimeout(second),
            Failure::ResponseIncomplete,
            Failure::ResponseMalformed("two lengths"),
            Failure::UpstreamLimit,
            Failure::NotCached,
            Failure::OriginStatus { status: 503 },
            Failure::PeerStatus { status: 407 },
            Failure::FtpReply { code: 421 },
            Failure::NoRoute,
            Failure::Offline,
            Failure::NotImplemented("the scheme gopher"),
            Failure::Link(LinkFault::OtherKey),
            Failure::Internal("a task died"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_an_error_status() {
        for failure in Failure::each() {
            let status = failure.status();
            assert!(
                status.is_client_error() || status.is_server_error(),
                "{failure:?}"
            );
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
        assert_eq!(
            status(Failure::ClientDenied {
                client: [10, 0, 0, 1].into()
            }),
            403
        );
        assert_eq!(status(Failure::ConnectPortDenied { port: 25 }), 403);
        assert_eq!(status(Failure::ClientLimit), 503);
        assert_eq!(status(Failure::NotCached), 504);
        assert_eq!(status(Failure::NameTimeout(Duration::ZERO)), 504);
        assert_eq!(status(Failure::ReadTimeout(Duration::ZERO)), 504);
        assert_eq!(status(Failure::ResponseIncomplete), 502);
        assert_eq!(status(Failure::Internal("x")), 500);
        assert_eq!(status(Failure::Loop), 508);
        assert_eq!(status(Failure::NameNotFound), 502);
        assert_eq!(status(Failure::ConnectTimeout(Duration::ZERO)), 504);
        assert_eq!(status(Failure::UpstreamLimit), 503);
        assert_eq!(status(Failure::NotImplemented("x")), 501);
    }

    #[test]
    fn limits_say_when_to_come_back() {
        for failure in Failure::each() {
            let is_limit = matches!(
                failure.status(),
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
            );
            assert_eq!(failure.retry_after().is_some(), is_limit, "{failure:?}");
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
}
