//! Response content as it arrives on the connection.
//!
//! Read by `ResponseBody`: `http1` provides the content in HTTP/1.1, h2 in HTTP/2 to an origin, and
//! hyper on links.
//!
//! Invariant: an error is a `Failure`, which tells damaged content from incomplete content.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hashcache_base::failure::Failure;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::Http1Content;
use super::http2::Http2Content;

/// Response content.
#[derive(Debug)]
pub(super) enum WireContent {
    Http1(Http1Content),
    Http2(Box<Http2Content>),
    Linked(Incoming),
}

impl WireContent {
    /// Polls the next frame.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self {
            Self::Http1(content) => content.poll_frame(cx),
            Self::Http2(content) => content.poll_frame(cx),
            Self::Linked(incoming) => {
                let polled = Pin::new(incoming).poll_frame(cx);
                polled.map_err(|_| Failure::ResponseIncomplete)
            }
        }
    }

    /// Returns true if the last frame was returned.
    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(content) => content.is_end_stream(),
            Self::Http2(content) => content.is_end_stream(),
            Self::Linked(incoming) => incoming.is_end_stream(),
        }
    }

    /// Called when the exchange is over: releases the connection in HTTP/1.1, and stops the request
    /// content in HTTP/2.
    pub(super) fn end(&mut self) {
        match self {
            Self::Http1(content) => content.close(),
            Self::Http2(content) => content.end_upload(),
            Self::Linked(_) => {}
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(content) => content.size_hint(),
            Self::Http2(content) => content.size_hint(),
            Self::Linked(incoming) => incoming.size_hint(),
        }
    }
}

impl From<Incoming> for WireContent {
    fn from(incoming: Incoming) -> Self {
        Self::Linked(incoming)
    }
}

impl From<Http1Content> for WireContent {
    fn from(content: Http1Content) -> Self {
        Self::Http1(content)
    }
}

impl From<Http2Content> for WireContent {
    fn from(content: Http2Content) -> Self {
        Self::Http2(Box::new(content))
    }
}
