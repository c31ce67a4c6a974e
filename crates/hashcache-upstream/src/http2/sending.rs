//! A request on an HTTP/2 connection to an origin, and the response.
//!
//! Called by `exchange`. Calls h2 directly, because hyper drops interim responses in HTTP/2.
//!
//! Invariants: request content is polled only when the stream is open. A request that is dropped
//! before the response resets the stream, so that the origin stops working on it. No upload
//! outlives the exchange: the stream would stay open, and would count for the origin's limit. An
//! end of content that the origin has not sent is an error.
//! Cost: a task for content that does not fit in the h2 buffer at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use hashcache_base::failure::Failure;
use hashcache_base::task::spawn_local;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http::{Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::oneshot;

use super::super::field_blocks::{SmallReader, take_malformed};
use super::super::framing::content_length;
use super::super::refused::{NotSent, SendError};
use super::super::request_body::RequestBody;
use super::{GivenUpGuard, Http2Conn, Http2Stream};

impl Http2Stream {
    /// Sends `request` and waits for the response head; calls `informed` with each interim
    /// response. `given_up` is dropped with this future or with the content of the response.
    pub(in super::super) fn send<F: Fn(Response<()>)>(
        &self,
        request: Request<RequestBody>,
        given_up: Option<GivenUpGuard>,
        informed: F,
    ) -> impl Future<Output = Result<Response<Http2Content>, NotSent>> + use<F> {
        send(Rc::clone(&self.conn), request, given_up, informed)
    }
}

async fn send(
    conn: Rc<Http2Conn>,
    request: Request<RequestBody>,
    mut given_up: Option<GivenUpGuard>,
    informed: impl Fn(Response<()>),
) -> Result<Response<Http2Content>, NotSent> {
    let mut sender = conn.sender.clone();
    if poll_fn(|cx| sender.poll_ready(cx)).await.is_err() {
        given_up.iter_mut().for_each(GivenUpGuard::ends);
        return Err(NotSent {
            error: SendError::Unopened,
            unsent: Some(request),
        });
    }
    let failed = |error: h2::Error| NotSent {
        error: error.into(),
        unsent: None,
    };
    let (mut head, body) = request.into_parts();
    let progress = body.progress();
    announce_length(&head.method, &mut head.headers, &body);
    let is_end = body.is_end_stream();
    let sent = sender.send_request(Request::from_parts(head, ()), is_end);
    if sent.is_err() {
        given_up.iter_mut().for_each(GivenUpGuard::ends);
    }
    let (mut response, stream) = sent.map_err(failed)?;
    let mut reader = Reader {
        small: conn.small.reader(response.stream_id().as_u32()),
        given_up,
    };
    // The origin may have lowered the limit on streams meanwhile: h2 opens this stream later.
    let mut sent_before = None;
    let opening = poll_fn(|cx| {
        let polled = sender.poll_ready(cx);
        if polled.is_pending() {
            sent_before = Some(conn.meter.sent());
        }
        polled
    });
    let is_open = opening.await.is_ok();
    if !is_open && sent_before == Some(conn.meter.sent()) {
        reader.fails();
        return Err(NotSent {
            error: SendError::Unopened,
            unsent: None,
        });
    }
    drop(sender);
    if is_open {
        progress.note_opened();
    }
    let uploading = if is_end {
        None
    } else {
        Upload::begin(body, stream).await
    };
    let answered = poll_fn(|cx| poll_response(&mut response, &informed, cx)).await;
    if answered.is_err() {
        reader.fails();
    }
    let (mut head, incoming) = answered.map_err(failed)?.into_parts();
    if let Some(reason) = take_malformed(&mut head.headers) {
        reader.fails();
        return Err(NotSent {
            error: SendError::Malformed(reason),
            unsent: None,
        });
    }
    let content = Http2Content::new(incoming, &head.headers, uploading, reader);
    Ok(Response::from_parts(head, content))
}

/// Adds the content length, if it is known and not announced yet. Some origins refuse content
/// without a length, and a method that usually has content needs a length even without content (RFC
/// 9110, section 8.6).
fn announce_length(method: &Method, fields: &mut HeaderMap, body: &RequestBody) {
    let Some(length) = body.size_hint().exact() else {
        return;
    };
    let has_meaning = [Method::POST, Method::PUT, Method::PATCH].contains(method);
    if (length > 0 || has_meaning) && !fields.contains_key(CONTENT_LENGTH) {
        fields.insert(CONTENT_LENGTH, length.into());
    }
}

fn poll_response(
    response: &mut ResponseFuture,
    informed: &impl Fn(Response<()>),
    cx: &mut Context<'_>,
) -> Poll<Result<Response<RecvStream>, h2::Error>> {
    // Interim responses first: the other call drops the interim responses that it finds.
    while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
        informed(interim);
    }
    Pin::new(response).poll(cx)
}

/// Request content on the way into a stream.
struct Upload {
    body: RequestBody,
    stream: SendStream<Bytes>,
    /// Content that waits for the origin's window; true for the last part.
    waiting: Option<(Bytes, bool)>,
    /// Ready when the exchange has dropped the `Uploading`.
    cancelled: oneshot::Receiver<()>,
}

/// The exchange's handle on an upload. Dropping it resets the stream, unless all content was sent.
#[derive(Debug)]
struct Uploading {
    _cancel: oneshot::Sender<()>,
}

impl Upload {
    /// Starts to send `body`; `None` if all of it was sent at once.
    async fn begin(body: RequestBody, stream: SendStream<Bytes>) -> Option<Uploading> {
        let (cancel, cancelled) = oneshot::channel();
        let mut upload = Self {
            body,
            stream,
            waiting: None,
            cancelled,
        };
        // Most content is short, so no task is needed for it.
        if poll_fn(|cx| Poll::Ready(Pin::new(&mut upload).poll(cx)))
            .await
            .is_ready()
        {
            return None;
        }
        spawn_local(upload);
        Some(Uploading { _cancel: cancel })
    }

    /// Ready when all content was sent, or no more will be sent. An error also belongs to the
    /// response, which reports it.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            // Also registers for a reset while this waits for content or for the window.
            if self.stream.poll_reset(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if let Some((data, is_end)) = &mut self.waiting {
                self.stream.reserve_capacity(data.len());
                while self.stream.capacity() == 0 {
                    if ready!(self.stream.poll_capacity(cx)).transpose()?.is_none() {
                        return Poll::Ready(Ok(()));
                    }
                }
                // h2 would take all data and keep the rest until the window opens. Then a reset of
                // the stream by `cancelled` would be too late, because this upload is already over;
                // and the timeout for the response could not see that the origin reads.
                let part = data.split_to(self.stream.capacity().min(data.len()));
                let is_last = data.is_empty() && *is_end;
                if data.is_empty() {
                    self.waiting = None;
                }
                self.stream.send_data(part, is_last)?;
                self.body.note_sent();
                if is_last {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // Content first, window afterwards: a window that is reserved for a client that sends
            // nothing would be missing in other streams of the connection.
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                self.body.note_sent();
                return Poll::Ready(self.stream.send_data(Bytes::new(), true));
            };
            let Ok(frame) = frame else {
                self.stream.send_reset(Reason::CANCEL);
                return Poll::Ready(Ok(()));
            };
            let frame = match frame.into_data() {
                Ok(data) => {
                    let is_end = self.body.is_end_stream();
                    if !data.is_empty() {
                        self.waiting = Some((data, is_end));
                    } else if is_end {
                        self.body.note_sent();
                        return Poll::Ready(self.stream.send_data(data, true));
                    }
                    continue;
                }
                Err(frame) => frame,
            };
            if let Ok(trailers) = frame.into_trailers() {
                self.body.note_sent();
                return Poll::Ready(self.stream.send_trailers(trailers));
            }
        }
    }
}

impl Future for Upload {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // Before the content and the window: content may be held for good, and an origin that has
        // answered may never open the window.
        if Pin::new(&mut this.cancelled).poll(cx).is_ready() {
            this.stream.send_reset(Reason::CANCEL);
            return Poll::Ready(());
        }
        this.poll_send(cx).map(drop)
    }
}

/// A stream reader's records: short frames, and responses that were given up.
#[derive(Debug)]
struct Reader {
    small: SmallReader,
    given_up: Option<GivenUpGuard>,
}

impl Reader {
    /// Called when the response is unusable, so that dropping it does not count as given up by the
    /// client.
    fn fails(&mut self) {
        if let Some(given_up) = &mut self.given_up {
            given_up.ends();
        }
    }

    /// Called when the response was read completely.
    fn ends(&mut self) {
        self.small.ends();
        self.fails();
    }
}

/// Response content in HTTP/2.
#[derive(Debug)]
pub(in super::super) struct Http2Content {
    incoming: RecvStream,
    /// Bytes that are missing from the announced length.
    left: Option<u64>,
    /// Only trailers may follow.
    has_data_end: bool,
    /// `None`: all request content was sent, or no more will be sent.
    uploading: Option<Uploading>,
    reader: Reader,
}

impl Http2Content {
    fn new(
        incoming: RecvStream,
        fields: &HeaderMap,
        uploading: Option<Uploading>,
        reader: Reader,
    ) -> Self {
        let left = match content_length(fields) {
            None if incoming.is_end_stream() => Some(0),
            announced => announced,
        };
        Self {
            incoming,
            left,
            has_data_end: false,
            uploading,
            reader,
        }
    }

    /// Sends no more request content, because the exchange is over.
    pub(in super::super) fn end_upload(&mut self) {
        self.uploading = None;
    }

    /// Polls the next frame. `None` without `is_end_stream` is a reset by which the origin may have
    /// stopped the request content (RFC 9113, section 8.1).
    pub(in super::super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if !self.has_data_end {
            match ready!(self.incoming.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Releasing fails only for more bytes than were received.
                    let _ = self.incoming.flow_control().release_capacity(data.len());
                    self.reader.small.note_read(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    self.reader.fails();
                    return Poll::Ready(match error.reason() {
                        Some(Reason::NO_ERROR | Reason::CANCEL) => None,
                        _ => Some(Err(Failure::ResponseIncomplete)),
                    });
                }
                None => self.has_data_end = true,
            }
        }
        let Ok(trailers) = ready!(self.incoming.poll_trailers(cx)) else {
            self.reader.fails();
            return Poll::Ready(Some(Err(Failure::ResponseIncomplete)));
        };
        Poll::Ready(
            trailers.map(|mut trailers| match take_malformed(&mut trailers) {
                Some(reason) => Err(Failure::ResponseMalformed(reason)),
                None => Ok(Frame::trailers(trailers)),
            }),
        )
    }

    pub(in super::super) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(in super::super) fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for Http2Content {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.reader.ends();
        } else if self.left == Some(0) {
            // All content was read; the end of the stream has not arrived yet.
            self.reader.fails();
        }
    }
}
