//! The reason why a request has no response, and the consequence for the request.
//!
//! Used by `exchange`, and by `linked` for links. The errors of h2 have the meanings that RFC 9113
//! gives them.
//!
//! Invariant: a request counts as unseen only if the origin did nothing for it according to RFC
//! 9113.

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

/// The reason why a request has no response.
#[derive(Debug)]
pub(super) enum SendError {
    Http1(Failure),
    Http2(h2::Error),
    Linked(hyper::Error),
    /// The response is malformed, for this reason.
    Malformed(&'static str),
    /// The connection was closed before the request's stream was opened.
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

    /// Returns true if the error concerns the connection, and not only a stream.
    pub(super) fn is_of_connection(&self) -> bool {
        match (self.of_http_2(), self) {
            (Some(error), _) => error.is_go_away() || error.is_io(),
            // hyper unwraps socket errors.
            (None, Self::Linked(error)) => {
                std::error::Error::source(error).is_some_and(|cause| cause.is::<io::Error>())
            }
            (None, Self::Http2(_) | Self::Malformed(_)) => false,
            (None, Self::Http1(_) | Self::Unopened) => true,
        }
    }

    /// Returns true if h2 has closed the connection because of bytes from the origin.
    pub(super) fn is_protocol_error(&self) -> bool {
        let is_error = |error: &h2::Error| error.reason() != Some(h2::Reason::NO_ERROR);
        self.of_http_2()
            .is_some_and(|error| error.is_go_away() && error.is_library() && is_error(error))
    }

    /// Returns true if h2 has found the response invalid, or the head larger than the limit.
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

/// How an origin treated a request that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Unknown.
    No,
    /// Not processed (REFUSED_STREAM, GOAWAY), or never written: the request may be sent again,
    /// whatever the method.
    Unseen,
    /// The origin answers the request only in HTTP/1.1.
    NeedsHttp1,
}

impl Refused {
    /// Returns the meaning of `error` (RFC 9113, sections 6.8 and 8.7).
    pub(super) fn from_error(error: &SendError) -> Self {
        let error = match (error, error.of_http_2()) {
            (SendError::Unopened, _) => return Self::Unseen,
            (_, None) => return Self::No,
            (_, Some(error)) => error,
        };
        match error.reason() {
            Some(h2::Reason::HTTP_1_1_REQUIRED) if error.is_remote() => Self::NeedsHttp1,
            Some(h2::Reason::REFUSED_STREAM) if error.is_remote() => Self::Unseen,
            // h2 gives the error of a GOAWAY only to streams above the last stream in it, and to
            // streams that were not opened yet. The origin does not process them, whatever error it
            // names.
            _ if error.is_go_away() && error.is_remote() => Self::Unseen,
            _ => Self::No,
        }
    }
}
