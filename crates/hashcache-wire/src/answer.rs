//! Sends a response to a client over HTTP/1.1.
//!
//! `serve` creates an `Answer` from the service's response.
//!
//! Invariant: a response that was not sent completely never looks complete to the client: the
//! connection closes before the end that the framing states, or with a RST if it has none.
//! Cost: head and first content in a single call, if the content is ready.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hashcache_http::{UnixTime, has_connection_option, http_date};
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderValue, TRAILER, TRANSFER_ENCODING,
};
use http::{Response, StatusCode};
use http_body::Body;
use hyper::ext::ReasonPhrase;

use super::cell::{Cell, RequestTraits};
use super::content::SharedStream;
use super::ending::Ending;
use super::outgoing::Outgoing;

/// A response in the process of being written.
pub(super) struct Answer<B> {
    body: B,
    outgoing: Outgoing,
    framing: AnswerFraming,
    passes_trailers: bool,
    /// The connection stays open after the response.
    pub(super) is_kept: bool,
    state: AnswerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerState {
    Content,
    /// All content is in `outgoing`, or written.
    Complete,
    /// The response is truncated after the bytes in `outgoing`.
    Broken,
}

/// How the client finds the end of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerFraming {
    /// By Content-Length, or there is no content: the number of remaining bytes.
    Length(u64),
    Chunked,
    UntilClose,
}

impl<B: Body<Data = Bytes> + Unpin> Answer<B> {
    /// Starts to write `response`, which depends on the request traits in `cell`.
    pub(super) fn begin(response: Response<B>, cell: &Cell) -> Self {
        let asked = cell.answer();
        let (head, body) = response.into_parts();
        let status = head.status;
        let is_switch =
            status == StatusCode::SWITCHING_PROTOCOLS || asked.connect && status.is_success();
        if is_switch {
            // Request content that is not yet read would be taken for bytes of the new protocol.
            cell.signals.tunnel.set(cell.signals.request_read.get());
        }
        let framing = AnswerFraming::new(&head.headers, status, asked, &body);
        let is_unbounded = framing == AnswerFraming::UntilClose;
        cell.signals.close_delimited.set(is_unbounded);
        let is_last = is_switch
            || is_unbounded
            || cell.is_last()
            || cell.signals.stopping.get()
            || has_connection_option(&head.headers, "close");
        let reason = head.extensions.get::<ReasonPhrase>();
        let mut outgoing = Outgoing::new();
        let sizes = head.headers.iter();
        let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + LINE_BYTES);
        // Exact, not doubled: a slow client keeps a large head in memory.
        let bytes = OWN_BYTES + sizes.sum::<usize>();
        outgoing.text.reserve_exact(bytes);
        write_status(&mut outgoing, status, asked, reason);
        let length = match framing {
            AnswerFraming::Length(_) => head.headers.get(CONTENT_LENGTH),
            AnswerFraming::Chunked | AnswerFraming::UntilClose => None,
        };
        for (name, value) in &head.headers {
            let is_left_out = match *name {
                CONTENT_LENGTH => true,
                CONNECTION => !is_switch && is_last,
                TRANSFER_ENCODING => true,
                TRAILER => framing != AnswerFraming::Chunked,
                _ => false,
            };
            if !is_left_out {
                outgoing.push_field(name.as_str().as_bytes(), value.as_bytes());
            }
        }
        if !is_switch {
            if is_last {
                outgoing.push_field(b"connection", b"close");
            } else if asked.http_10 && !has_connection_option(&head.headers, "keep-alive") {
                outgoing.push_field(b"connection", b"keep-alive");
            }
        }
        push_length(&mut outgoing, framing, length, status, asked, &body);
        if !head.headers.contains_key(DATE) {
            push_date(&mut outgoing);
        }
        outgoing.text.extend_from_slice(b"\r\n");
        let is_over = framing == AnswerFraming::Length(0);
        Self {
            body,
            outgoing,
            framing,
            passes_trailers: asked.takes_trailers,
            is_kept: !is_last,
            state: if is_over {
                AnswerState::Complete
            } else {
                AnswerState::Content
            },
        }
    }

    /// Writes the response. Ready when it is completely written, or can never be.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &SharedStream,
    ) -> Poll<Result<(), Ending>> {
        loop {
            // The first content is written together with the head, if it is ready.
            let waits = self.state == AnswerState::Content && self.poll_content(cx).is_pending();
            let mut stream = stream.borrow_mut();
            let stream = stream.as_mut().ok_or(Ending::Broken)?;
            let written = ready!(stream.poll_write(cx, &mut self.outgoing));
            written.map_err(|_| Ending::Broken)?;
            let is_content = self.state == AnswerState::Content;
            if waits || !is_content {
                let flushed = ready!(stream.poll_flush(cx));
                flushed.map_err(|_| Ending::Broken)?;
            }
            match self.state {
                AnswerState::Content if waits => return Poll::Pending,
                AnswerState::Content => {}
                AnswerState::Complete => return Poll::Ready(Ok(())),
                AnswerState::Broken => {
                    return Poll::Ready(Err(Ending::Broken));
                }
            }
        }
    }

    /// Appends the next content to `outgoing`. Pending if no content is ready.
    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.outgoing.has_content() {
            return Poll::Ready(());
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(frame.into_data()),
            Some(Err(_)) => {
                self.state = AnswerState::Broken;
                return Poll::Ready(());
            }
            None => None,
        };
        let (data, trailers) = match frame {
            Some(Ok(data)) if data.is_empty() => return Poll::Ready(()),
            Some(Ok(data)) => (Some(data), None),
            Some(Err(frame)) => (None, frame.into_trailers().ok()),
            None => (None, None),
        };
        let is_last = data.is_none() || self.body.is_end_stream();
        match &mut self.framing {
            AnswerFraming::Length(left) => {
                let bytes = data.as_ref().map_or(0, Bytes::len) as u64;
                match left.checked_sub(bytes) {
                    Some(rest) => *left = rest,
                    // The client would take bytes beyond the length for the next response.
                    None => {
                        self.state = AnswerState::Broken;
                        return Poll::Ready(());
                    }
                }
                self.outgoing.push_data(data.unwrap_or_default());
                if *left == 0 {
                    self.state = AnswerState::Complete;
                } else if is_last {
                    self.state = AnswerState::Broken;
                }
            }
            AnswerFraming::UntilClose => {
                self.outgoing.push_data(data.unwrap_or_default());
                if is_last {
                    self.state = AnswerState::Complete;
                }
            }
            AnswerFraming::Chunked => {
                if let Some(data) = data {
                    self.outgoing.push_chunk(data);
                }
                if is_last {
                    let trailers = trailers.filter(|_| self.passes_trailers);
                    self.outgoing.end_chunks(trailers.as_ref());
                    self.state = AnswerState::Complete;
                }
            }
        }
        Poll::Ready(())
    }
}

impl AnswerFraming {
    fn new(fields: &HeaderMap, status: StatusCode, asked: RequestTraits, body: &impl Body) -> Self {
        if !has_content(status, asked) || body.is_end_stream() {
            return Self::Length(0);
        }
        let told = || fields.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        // Trailers need chunks (RFC 9112, section 7.1.2). An HTTP/2 origin may send trailers after
        // content with a stated length.
        let has_trailers = asked.takes_trailers && fields.contains_key(TRAILER);
        match body.size_hint().exact().or_else(told) {
            Some(length) if !has_trailers => Self::Length(length),
            _ if asked.http_10 => Self::UntilClose,
            _ => Self::Chunked,
        }
    }
}

/// Returns true if a response may have content (RFC 9112, section 6.3).
fn has_content(status: StatusCode, asked: RequestTraits) -> bool {
    !asked.head_only && may_have_length(status, asked) && status != StatusCode::NOT_MODIFIED
}

/// Returns true if a response may have a Content-Length, for its own content or for the content
/// that GET would return (RFC 9110, section 8.6).
fn may_have_length(status: StatusCode, asked: RequestTraits) -> bool {
    let is_tunnel = asked.connect && status.is_success();
    !is_tunnel && !status.is_informational() && status != StatusCode::NO_CONTENT
}

fn write_status(
    outgoing: &mut Outgoing,
    status: StatusCode,
    asked: RequestTraits,
    reason: Option<&ReasonPhrase>,
) {
    let text = &mut outgoing.text;
    // The version of this hop, not the origin's version (RFC 9112, section 2.3).
    text.extend_from_slice(if asked.http_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    text.extend_from_slice(status.as_str().as_bytes());
    text.push(b' ');
    let reason = reason.map(ReasonPhrase::as_bytes);
    let canonical = || status.canonical_reason().unwrap_or("<none>").as_bytes();
    text.extend_from_slice(reason.unwrap_or_else(canonical));
    text.extend_from_slice(b"\r\n");
}

/// Appends the field that frames the content. `told` is the Content-Length of the response that the
/// service returned.
fn push_length(
    outgoing: &mut Outgoing,
    framing: AnswerFraming,
    told: Option<&HeaderValue>,
    status: StatusCode,
    asked: RequestTraits,
    body: &impl Body,
) {
    let mut digits = itoa::Buffer::new();
    match framing {
        AnswerFraming::Chunked => outgoing.push_field(b"transfer-encoding", b"chunked"),
        AnswerFraming::UntilClose => {}
        AnswerFraming::Length(_) if !may_have_length(status, asked) => {}
        AnswerFraming::Length(length) if has_content(status, asked) => {
            outgoing.push_field(b"content-length", digits.format(length).as_bytes());
        }
        AnswerFraming::Length(_) if !asked.head_only => {}
        // The length of the content that GET would return.
        AnswerFraming::Length(_) => {
            let known = body.size_hint().exact().filter(|length| *length > 0);
            match (told, known) {
                (Some(told), _) => outgoing.push_field(b"content-length", told.as_bytes()),
                (None, Some(length)) => {
                    outgoing.push_field(b"content-length", digits.format(length).as_bytes());
                }
                (None, None) => {}
            }
        }
    }
}

/// Appends Date, which every response needs (RFC 9110, section 6.6.1).
#[expect(
    clippy::disallowed_methods,
    reason = "the date of a message says what the clock of this machine says"
)]
fn push_date(outgoing: &mut Outgoing) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = UnixTime(now.map_or(0, |since| since.as_secs()));
    DATE_NOW.with_borrow_mut(|known| {
        let value = match known {
            Some((second, value)) if *second == now => value,
            _ => &mut known.insert((now, http_date(now))).1,
        };
        outgoing.push_field(b"date", value.as_bytes());
    });
}

/// Bytes of a field line besides name and value.
const LINE_BYTES: usize = 4;
/// Maximum bytes of the status line, of the fields that are added here, and of the empty line.
const OWN_BYTES: usize = 256;

thread_local! {
    /// The current second as time and as Date value.
    static DATE_NOW: RefCell<Option<(UnixTime, HeaderValue)>> = const { RefCell::new(None) };
}
