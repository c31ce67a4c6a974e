//! The content of a response as it arrives on its connection.
//!
//! Read by `ResponseBody`: hyper has it in HTTP/1.1 and on links, h2 in HTTP/2 to an origin.
//!
//! Invariant: an error is a `Failure` that says whether the content is damaged or incomplete.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http2::Http2Content;
use crate::failure::Failure;

/// The content of a response.
#[derive(Debug)]
pub(super) enum WireContent {
    Hyper(Incoming),
    Http2(Http2Content),
}

impl WireContent {
    /// The next frame.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self {
            Self::Hyper(incoming) => {
                let polled = Pin::new(incoming).poll_frame(cx);
                polled.map_err(|error| broken(&error))
            }
            Self::Http2(content) => content.poll_frame(cx),
        }
    }

    /// Whether the last frame was returned.
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(incoming) => incoming.is_end_stream(),
            Self::Http2(content) => content.is_end_stream(),
        }
    }

    /// Sends no more content of the request in HTTP/2, because its exchange is over. In HTTP/1.1
    /// the end of the connection does the same.
    pub(super) fn end_upload(&mut self) {
        if let Self::Http2(content) = self {
            content.end_upload();
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(incoming) => incoming.size_hint(),
            Self::Http2(content) => content.size_hint(),
        }
    }
}

impl From<Incoming> for WireContent {
    fn from(incoming: Incoming) -> Self {
        Self::Hyper(incoming)
    }
}

impl From<Http2Content> for WireContent {
    fn from(content: Http2Content) -> Self {
        Self::Http2(content)
    }
}

/// Distinguishes invalid chunks from missing bytes.
fn broken(error: &hyper::Error) -> Failure {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return match io.kind() {
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => {
                    Failure::ResponseMalformed("chunks are damaged")
                }
                _ => Failure::ResponseIncomplete,
            };
        }
        cause = error.source();
    }
    Failure::ResponseIncomplete
}
