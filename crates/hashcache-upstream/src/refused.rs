//! Why a request has no response, and what that means for it.
//!
//! Used by `exchange`, and by `linked` for links. The errors of h2 have the meanings that RFC 9113
//! gives them.
//!
//! Invariant: a request counts as unseen only if RFC 9113 says that the origin did nothing for it.

use std::io;

use hashcache_base::failure::Failure;
use http::Request;

use super::request_body::RequestBody;

/// A request without a response.
pub(super) struct NotSent {
    pub(super) error: SendError,
    /// The request, if no byte of it was sent.
    pub(super) unsent: Option<Request<RequestBody>>,
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum SendError {
    Http1(Failure),
    Http2(h2::Error),
    Linked(hyper::Error),
    /// The response is malformed, for this reason.
    Malformed(&'static str),
    /// The connection has ended before the request's stream was opened.
    Unopened,
}

impl SendError {
    fn of_http_2(&self) -> Option<&h2::Error> {
        match self {
            Self::Linked(error) => {
                std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
            }
            Self::Http2(error) => Some(error),
            Self::Http1(_) | Self::Malformed(_) | Self::Unopened => None,
        }
    }

    /// Whether the error is that of the connection, and not of one stream alone.
    pub(super) fn is_of_connection(&self) -> bool {
        match (self.of_http_2(), self) {
            (Some(error), _) => error.is_go_away() || error.is_io(),
            // hyper unwraps errors of the socket.
            (None, Self::Linked(error)) => {
                std::error::Error::source(error).is_some_and(|cause| cause.is::<io::Error>())
            }
            (None, Self::Http2(_) | Self::Malformed(_)) => false,
            (None, Self::Http1(_) | Self::Unopened) => true,
        }
    }

    /// Whether h2 has ended the connection because of what the origin sent.
    pub(super) fn is_protocol_error(&self) -> bool {
        let is_error = |error: &h2::Error| error.reason() != Some(h2::Reason::NO_ERROR);
        self.of_http_2()
            .is_some_and(|error| error.is_go_away() && error.is_library() && is_error(error))
    }

    /// Whether h2 has found the response invalid, or its head larger than the limit.
    pub(super) fn is_invalid(&self) -> bool {
        self.of_http_2()
            .is_some_and(|error| error.is_reset() && error.is_library())
    }
}

impl From<hyper::Error> for SendError {
    fn from(error: hyper::Error) -> Self {
        Self::Linked(error)
    }
}

impl From<Failure> for NotSent {
    fn from(failure: Failure) -> Self {
        Self {
            error: SendError::Http1(failure),
            unsent: None,
        }
    }
}

impl From<h2::Error> for SendError {
    fn from(error: h2::Error) -> Self {
        Self::Http2(error)
    }
}

/// What an origin did with a request that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Unknown.
    No,
    /// Not processed (REFUSED_STREAM, GOAWAY), or never written: it may be sent again,
    /// whatever its method.
    Unseen,
    /// The origin answers it in HTTP/1.1 only.
    NeedsHttp1,
}

impl Refused {
    /// The meaning of `error` (RFC 9113, sections 6.8 and 8.7).
    pub(super) fn of(error: &SendError) -> Self {
        let error = match (error, error.of_http_2()) {
            (SendError::Unopened, _) => return Self::Unseen,
            (_, None) => return Self::No,
            (_, Some(error)) => error,
        };
        match error.reason() {
            Some(h2::Reason::HTTP_1_1_REQUIRED) if error.is_remote() => Self::NeedsHttp1,
            Some(h2::Reason::REFUSED_STREAM) if error.is_remote() => Self::Unseen,
            // h2 gives the error of a GOAWAY only to streams above its last one, and to those that
            // were not opened yet. The origin does not process them, whatever error it names.
            _ if error.is_go_away() && error.is_remote() => Self::Unseen,
            _ => Self::No,
        }
    }
}
