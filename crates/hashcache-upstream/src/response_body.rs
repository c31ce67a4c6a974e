//! Response content from an origin.
//!
//! A part of an `UpstreamExchange`; read by `fetch` in the proxy or by a client connection. It
//! holds the connection and the permit until the last byte, then returns both.
//!
//! Invariant: incomplete content always gives a `Failure`, never a clean end. If the close of the
//! connection delimits the content, a clean end means a clean FIN; in HTTP/2 it means END_STREAM.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_link::usage::LinkUsage;
use hashcache_wan::digest::Digest;
use hashcache_wire::malformed_field;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::endpoint::Endpoint;
use super::framing::{Framing, filter_trailers};
use super::incoming::WireContent;
use super::permits::Permit;
use super::pinned::ConnHome;
use super::pool::{Pool, UpstreamConn};
use super::request_body::BodyProgress;
use super::unframe::Unframing;

/// Response content.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: WireContent,
    framing: Framing,
    /// Boxed, because a future reserves space for each variable that the content moves through.
    busy: Option<Box<BusyConn>>,
    between_bytes_time: Duration,
    /// Runs while waiting for the origin; kept from one wait to the next.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Content bytes so far.
    content: u64,
    /// Bytes received for this response, set when the connection was returned.
    received: u64,
    failure: Option<Failure>,
    /// The content arrives in frames.
    is_framed: bool,
    /// Reads these frames.
    frames: Option<Box<Unframing>>,
    /// Dropped with the content.
    held: Option<Box<dyn std::fmt::Debug>>,
}

/// A busy connection.
#[derive(Debug)]
pub(super) struct BusyConn {
    pub(super) conn: UpstreamConn,
    pub(super) to: Endpoint,
    pub(super) pool: Rc<Pool>,
    pub(super) home: ConnHome,
    pub(super) permit: Permit,
    /// Bytes that the connection had received before this exchange.
    pub(super) received_before: u64,
    /// Progress in sending the request content.
    pub(super) progress: Rc<BodyProgress>,
    /// True if the bytes after this response certainly belong to the next response.
    pub(super) trusted: bool,
}

impl BusyConn {
    pub(super) fn received(&self) -> u64 {
        self.conn.meter.received() - self.received_before
    }
}

impl ResponseBody {
    pub(super) fn new(
        incoming: WireContent,
        framing: Framing,
        busy: BusyConn,
        between_bytes_time: Duration,
    ) -> Self {
        let mut body = Self {
            busy: Some(Box::new(busy)),
            ..Self::without_conn(incoming, framing, between_bytes_time)
        };
        if body.incoming.is_end_stream() {
            body.complete();
        }
        body
    }

    /// Makes the body of a head after which the connection is no longer HTTP.
    pub(super) fn none(incoming: WireContent) -> Self {
        Self::without_conn(incoming, Framing::Empty, Duration::ZERO)
    }

    fn without_conn(incoming: WireContent, framing: Framing, between_bytes_time: Duration) -> Self {
        Self {
            incoming,
            framing,
            busy: None,
            between_bytes_time,
            timer: None,
            waiting: false,
            content: 0,
            received: 0,
            failure: None,
            is_framed: false,
            frames: None,
            held: None,
        }
    }

    /// Sets `is_framed`: the response declares that the content is frames.
    pub(super) fn framed(mut self, is_framed: bool) -> Self {
        self.is_framed = is_framed;
        self
    }

    /// Returns true if the content arrives in frames.
    pub fn is_framed(&self) -> bool {
        self.is_framed
    }

    /// Returns the digest of the content, if it arrived in frames and is complete.
    pub fn content_digest(&self) -> Option<Digest> {
        self.frames.as_ref().and_then(|frames| frames.digest())
    }

    /// Returns counters for the link frames so far, if the content arrives in them.
    pub fn link_usage(&self) -> Option<LinkUsage> {
        self.frames.as_ref().map(|frames| frames.usage())
    }

    /// Makes `frames` the reader of the content.
    pub(super) fn read_frames(&mut self, frames: Unframing) {
        self.frames = Some(Box::new(frames));
    }

    /// Keeps `value` until the content is dropped.
    pub fn hold(&mut self, value: impl std::fmt::Debug + 'static) {
        self.held = Some(Box::new(value));
    }

    /// Returns true if the connection may outlast this content, according to the framing.
    pub(crate) fn may_leave_connection(&self) -> bool {
        let is_trusted = |busy: &BusyConn| busy.trusted;
        self.framing != Framing::UntilClose && self.busy.as_deref().is_none_or(is_trusted)
    }

    /// The way in which the end of this content is marked.
    #[cfg(test)]
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Bytes received from the origin for this response so far, including the head.
    pub fn origin_bytes(&self) -> u64 {
        self.busy
            .as_ref()
            .map_or(self.received, |busy| busy.received())
    }

    /// Returns true if the content is complete. If connection close delimits it, the origin has
    /// closed cleanly.
    pub fn is_complete(&self) -> bool {
        let is_checked = |frames: &Unframing| frames.digest().is_some();
        self.busy.is_none()
            && self.failure.is_none()
            && self.frames.as_deref().is_none_or(is_checked)
    }

    /// Returns the next frame; `None` after the last frame of complete content.
    pub async fn frame(&mut self) -> Option<Result<Frame<Bytes>, Failure>> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await
    }

    /// Called when the content is complete: returns the permit, and the connection may serve the
    /// next request.
    fn complete(&mut self) {
        self.timer = None;
        let Some(busy) = self.busy.take() else {
            return;
        };
        let busy = *busy;
        self.received = busy.received();
        let client = busy.permit.client();
        drop(busy.permit);
        // In HTTP/2 the rest would hold the stream, and the client's content, until the origin
        // resets it.
        self.incoming.end();
        // If the origin answered early, it does not want the rest of the request, and content that
        // was held for a 100 must not follow a final response: such a connection is closed.
        if busy.trusted && busy.progress.is_ended() {
            busy.home.put(&busy.pool, busy.to, busy.conn, client);
        }
    }

    /// Returns true if the server has not sent this end. In HTTP/2 a reset with NO_ERROR also
    /// appears as an end: such a reset stops the request content after a complete response (RFC
    /// 9113, section 8.1), so END_STREAM precedes it. Without END_STREAM, only content with an
    /// announced length is known to be whole.
    fn lacks_its_end(&self) -> bool {
        let is_http_1 = self.busy.as_ref().is_some_and(|busy| busy.conn.is_http_1());
        match self.framing {
            Framing::Empty => false,
            Framing::Length(length) => self.content < length,
            // `http1` has seen the last chunk, or connection close.
            Framing::Chunked | Framing::UntilClose => !is_http_1 && !self.incoming.is_end_stream(),
        }
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        self.timer = None;
        self.failure = Some(failure.clone());
        self.incoming.end();
        if let Some(busy) = self.busy.take() {
            self.received = busy.received();
        }
        Poll::Ready(Some(Err(failure)))
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.between_bytes_time;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        // The timer runs only while we wait: a slow reader is not the origin's fault.
        if !std::mem::replace(&mut self.waiting, true) {
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx)
    }
}

impl ResponseBody {
    /// Polls the connection: the content, or the frames.
    pub(super) fn poll_wire(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = self;
        if this.busy.is_none() {
            // Polled again after the end; a failure is returned again.
            return Poll::Ready(this.failure.clone().map(Err));
        }
        match this.incoming.poll_frame(cx) {
            Poll::Pending => {
                ready!(this.poll_timer(cx));
                let limit = this.between_bytes_time;
                this.fail(Failure::ReadTimeout(limit))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                this.waiting = false;
                this.content += frame.data_ref().map_or(0, |data| data.len() as u64);
                if let Some((busy, data)) = this.busy.as_ref().zip(frame.data_ref()) {
                    busy.conn.note_content(data.len());
                    busy.conn.note_read(data.len());
                }
                if let Some(trailers) = frame.trailers_mut() {
                    let is_http_1 = this.busy.as_ref().is_some_and(|busy| busy.conn.is_http_1());
                    if !is_http_1 && let Some(reason) = malformed_field(trailers) {
                        return this.fail(Failure::ResponseMalformed(reason));
                    }
                    filter_trailers(trailers);
                }
                if this.incoming.is_end_stream() {
                    this.complete();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(failure))) => this.fail(failure),
            Poll::Ready(None) if this.lacks_its_end() => this.fail(Failure::ResponseIncomplete),
            Poll::Ready(None) => {
                this.complete();
                Poll::Ready(None)
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = self.get_mut();
        let Some(mut frames) = this.frames.take() else {
            return this.poll_wire(cx);
        };
        let polled = match &this.failure {
            Some(failure) => Poll::Ready(Some(Err(failure.clone()))),
            None => frames.poll_content(cx, |cx| this.poll_wire(cx)),
        };
        this.frames = Some(frames);
        match polled {
            Poll::Ready(Some(Err(failure))) => this.fail(failure),
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_complete()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.frames {
            Some(frames) => frames
                .left()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            None => self.incoming.size_hint(),
        }
    }
}
