//! The meaning of hyper's errors for a request in HTTP/2.
//!
//! Used by `exchange`, and by `linked` for links.
//!
//! Invariant: a request counts as unseen only if RFC 9113 says that the origin did nothing for it.

use std::io;

/// What an origin did with a request that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refused {
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
    pub(in super::super) fn of(error: &hyper::Error) -> Self {
        let Some(error) = h2_error(error) else {
            return Self::No;
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

/// Whether `error` is that of the connection, and not of one stream alone.
pub(in super::super) fn is_of_connection(error: &hyper::Error) -> bool {
    match h2_error(error) {
        Some(error) => error.is_go_away() || error.is_io(),
        // hyper unwraps errors of the socket.
        None => std::error::Error::source(error).is_some_and(|cause| cause.is::<io::Error>()),
    }
}

/// Whether h2 has ended the connection because of what the origin sent.
pub(in super::super) fn is_protocol_error(error: &hyper::Error) -> bool {
    let is_error = |error: &h2::Error| error.reason() != Some(h2::Reason::NO_ERROR);
    h2_error(error).is_some_and(|error| error.is_go_away() && error.is_library() && is_error(error))
}

/// Whether h2 has found the response invalid, or its head larger than the limit.
pub(in super::super) fn is_invalid(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_reset() && error.is_library())
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}
