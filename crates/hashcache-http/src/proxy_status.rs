//! Proxy-Status (RFC 9209): the error, on responses that the proxy generates itself.
//!
//! The proxy calls it for each error page.
//!
//! Invariant: each error has the name and the status from RFC 9209 section 2.3.
//! Cost: one allocation.

use std::fmt::Write as _;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};

use crate::cache_status::{into_value, push_item, push_string};

/// The field name; `http` has no constant for it.
pub const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

macro_rules! proxy_errors {
    ($($variant:ident $word:literal $status:ident $doc:literal)*) => {
        /// Why the origin did not answer a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProxyError {
            $(#[doc = $doc] $variant,)*
        }

        impl ProxyError {
            /// All errors, in the order of RFC 9209 section 2.3.
            pub const ALL: &[ProxyError] = &[$(ProxyError::$variant),*];

            /// The error type in RFC 9209.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ProxyError::$variant => $word,)*
                }
            }

            /// The status of our response.
            pub const fn status(self) -> StatusCode {
                match self {
                    $(ProxyError::$variant => StatusCode::$status,)*
                }
            }
        }
    };
}

proxy_errors! {
    DnsTimeout "dns_timeout" GATEWAY_TIMEOUT "No answer from DNS in time."
    DnsError "dns_error" BAD_GATEWAY "DNS answered with an error."
    DestinationNotFound "destination_not_found" INTERNAL_SERVER_ERROR
        "Nothing tells where to send the request."
    DestinationUnavailable "destination_unavailable" SERVICE_UNAVAILABLE
        "The next hop is known to be out of service."
    DestinationIpProhibited "destination_ip_prohibited" BAD_GATEWAY
        "The next hop's address is one we may not connect to."
    DestinationIpUnroutable "destination_ip_unroutable" BAD_GATEWAY
        "No route to the next hop."
    ConnectionRefused "connection_refused" BAD_GATEWAY "The next hop refused the connection."
    ConnectionTerminated "connection_terminated" BAD_GATEWAY
        "The next hop closed the connection before its answer was whole."
    ConnectionTimeout "connection_timeout" GATEWAY_TIMEOUT "No connection in time."
    ConnectionReadTimeout "connection_read_timeout" GATEWAY_TIMEOUT
        "The next hop sent nothing in time."
    ConnectionWriteTimeout "connection_write_timeout" GATEWAY_TIMEOUT
        "The next hop took nothing in time."
    ConnectionLimitReached "connection_limit_reached" SERVICE_UNAVAILABLE
        "As many connections as we allow ourselves are busy."
    TlsProtocolError "tls_protocol_error" BAD_GATEWAY "The TLS handshake failed."
    TlsCertificateError "tls_certificate_error" BAD_GATEWAY
        "The next hop's certificate was not accepted."
    TlsAlertReceived "tls_alert_received" BAD_GATEWAY "The next hop sent a TLS alert."
    HttpRequestError "http_request_error" BAD_REQUEST "The request is not well-formed."
    HttpRequestDenied "http_request_denied" FORBIDDEN "The client may not ask for this."
    HttpResponseIncomplete "http_response_incomplete" BAD_GATEWAY
        "The next hop's answer ended too early."
    HttpResponseHeaderSectionSize "http_response_header_section_size" BAD_GATEWAY
        "The next hop's field section is too large."
    HttpResponseHeaderSize "http_response_header_size" BAD_GATEWAY
        "A field line of the next hop is too large."
    HttpResponseBodySize "http_response_body_size" BAD_GATEWAY
        "The next hop's content is too large."
    HttpResponseTrailerSectionSize "http_response_trailer_section_size" BAD_GATEWAY
        "The next hop's trailer section is too large."
    HttpResponseTrailerSize "http_response_trailer_size" BAD_GATEWAY
        "A trailer line of the next hop is too large."
    HttpResponseTransferCoding "http_response_transfer_coding" BAD_GATEWAY
        "The next hop's transfer coding cannot be decoded."
    HttpResponseContentCoding "http_response_content_coding" BAD_GATEWAY
        "The next hop's content coding cannot be decoded."
    HttpResponseTimeout "http_response_timeout" GATEWAY_TIMEOUT
        "The next hop's answer was not whole in time."
    HttpUpgradeFailed "http_upgrade_failed" BAD_GATEWAY "The next hop did not upgrade."
    HttpProtocolError "http_protocol_error" BAD_GATEWAY "The next hop does not speak HTTP."
    ProxyInternalResponse "proxy_internal_response" INTERNAL_SERVER_ERROR
        "The proxy made this answer itself."
    ProxyInternalError "proxy_internal_error" INTERNAL_SERVER_ERROR
        "The proxy failed for a reason of its own."
    ProxyConfigurationError "proxy_configuration_error" INTERNAL_SERVER_ERROR
        "The proxy's configuration does not allow an answer."
    ProxyLoopDetected "proxy_loop_detected" BAD_GATEWAY "The request has been here before."
}

/// The parameters for a request that the origin did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyStatus<'a> {
    /// The error.
    pub error: ProxyError,
    /// The DNS response code; only for `dns_error`.
    pub rcode: Option<&'a str>,
    /// The status of our response; only for `http_request_error`.
    pub status: Option<StatusCode>,
    /// Further text, for debugging.
    pub details: Option<&'a str>,
}

impl ProxyStatus<'_> {
    /// An error without parameters.
    pub const fn from_error(error: ProxyError) -> Self {
        ProxyStatus {
            error,
            rcode: None,
            status: None,
            details: None,
        }
    }

    /// The field value, such as `hashcache; error=dns_error; rcode="NXDOMAIN"`, for the proxy with
    /// the name `us`.
    pub fn to_value(&self, us: &str) -> HeaderValue {
        let mut out = String::with_capacity(96);
        push_item(&mut out, us);
        out.push_str("; error=");
        out.push_str(self.error.as_str());
        push_parameter(&mut out, "rcode", self.rcode);
        if let Some(status) = self.status {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "; status-code={}", status.as_u16());
            push_parameter(&mut out, "status-phrase", status.canonical_reason());
        }
        push_parameter(&mut out, "details", self.details);
        into_value(out)
    }
}

/// Writes a string parameter, if there is a value.
fn push_parameter(out: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        out.push_str("; ");
        out.push_str(name);
        out.push('=');
        push_string(out, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_named_with_its_parameters_in_quotes() {
        let unknown_name = ProxyStatus {
            rcode: Some("NXDOMAIN"),
            ..ProxyStatus::from_error(ProxyError::DnsError)
        };
        let value = unknown_name.to_value("hashcache");
        assert_eq!(value, "hashcache; error=dns_error; rcode=\"NXDOMAIN\"");
        let refused = ProxyStatus {
            status: Some(StatusCode::BAD_REQUEST),
            details: Some("a \"quoted\" Host"),
            ..ProxyStatus::from_error(ProxyError::HttpRequestError)
        };
        assert_eq!(
            refused.to_value("hashcache"),
            "hashcache; error=http_request_error; status-code=400; \
             status-phrase=\"Bad Request\"; details=\"a \\\"quoted\\\" Host\""
        );
        let value = ProxyStatus::from_error(ProxyError::ProxyLoopDetected).to_value("hashcache");
        assert_eq!(value, "hashcache; error=proxy_loop_detected");
    }

    #[test]
    fn a_name_that_is_no_token_is_sent_as_a_string() {
        let status = ProxyStatus::from_error(ProxyError::ProxyLoopDetected);
        for (name, item) in [
            ("box.lan:3128", "box.lan:3128"),
            ("école 1\r\n", "\"?cole 1??\""),
            ("", "\"\""),
        ] {
            let expected = format!("{item}; error=proxy_loop_detected");
            assert_eq!(status.to_value(name), expected);
        }
    }

    #[test]
    fn every_error_has_a_word_of_its_own_and_an_error_status() {
        for (at, error) in ProxyError::ALL.iter().enumerate() {
            let status = error.status();
            assert!(status.is_client_error() || status.is_server_error());
            let others = &ProxyError::ALL[at + 1..];
            assert!(others.iter().all(|other| other.as_str() != error.as_str()));
        }
    }
}
