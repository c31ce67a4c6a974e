//! A client connection: the socket, the bytes read from it, and the bytes waiting to be written.
//!
//! `serve` creates it, and uses it between two requests and while it writes a response; the request
//! content (`content`) reads from it too. Input passes through `inbound`. Responses from memory are
//! written here.
//!
//! Invariant: the next head is parsed only after the previous response was sent (`Resting` in the
//! `Cell`). Until then at most one read is buffered here, and nothing more is read. Cost: input is
//! read into a buffer of the thread. A connection owns memory only for input not yet taken; beyond
//! [`HELD_FREE`] that memory is reserved.

use std::cell::RefCell;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use hashcache_base::limits::Limits;
use hashcache_base::share::ShareReservation;
use hashcache_http::{keeps_connection, plain_text};
use http::header::{EXPECT, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use http_body::Frame;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::cell::{Cell, HeadInfo, NoMemory, RequestHead, RequestTraits, Upgraded, Wait, WaitFor};
use super::head::{
    CheckedHead, ContentFraming, HeadLimits, Refusal, RequestForm, refuse, single, trim,
};
use super::inbound::{HeadStep, Inbound};
use super::memory_hit::{self, MemoryHits, PlainRequest, RequestFields, ResponseHead, Sending};
use super::outgoing::Outgoing;
use super::socket::Socket;

/// The connection with a client.
pub(super) struct ClientStream {
    socket: Socket,
    cell: Rc<Cell>,
    limits: Rc<Limits>,
    inbound: Inbound,
    /// Answers requests without the service, if possible.
    memory_hits: Option<Rc<dyn MemoryHits>>,
    /// The response from memory that is being written.
    sending: Option<Sending>,
    /// Input not yet taken.
    held: BytesMut,
    /// Reservation for `held`.
    held_memory: Option<ShareReservation>,
    /// Reservation for the head of the current request.
    head_memory: Option<ShareReservation>,
    /// `held` is an incomplete head.
    starved: bool,
    /// The time at which the first byte of the current head was read.
    received: Option<Instant>,
    /// The task that waits for request content.
    reader: Option<Waker>,
    /// Number of requests so far, which is also the number of the current request.
    requests: u64,
    /// An interim response was written but not flushed.
    flushes_interim: bool,
    /// The client has closed its side.
    eof: bool,
    /// The socket accepts no more output.
    write_failed: bool,
    /// The socket sends a RST when dropped.
    resets: bool,
}

/// A request with content that may not have been read.
pub(super) struct NextRequest {
    pub(super) request: Request<()>,
    pub(super) content: ContentFraming,
    /// The client waits for a 100 before it sends content.
    pub(super) expects: bool,
}

/// A part of the request content.
pub(super) type ContentFrame = Result<Frame<Bytes>, Box<dyn Error + Send + Sync>>;

impl ClientStream {
    pub(super) fn new(
        socket: Socket,
        limits: Rc<Limits>,
        cell: Rc<Cell>,
        memory_hits: Option<Rc<dyn MemoryHits>>,
    ) -> Self {
        let head = HeadLimits {
            bytes: limits.head_bytes,
            fields: limits.head_fields.min(FIELDS_MAX),
            target: limits.target_bytes,
        };
        socket.prepare();
        Self {
            socket,
            cell,
            inbound: Inbound::new(head, limits.chunk_extension_bytes),
            limits,
            memory_hits,
            sending: None,
            held: BytesMut::new(),
            held_memory: None,
            head_memory: None,
            starved: false,
            received: None,
            reader: None,
            requests: 0,
            flushes_interim: false,
            eof: false,
            write_failed: false,
            resets: false,
        }
    }

    // -- between two requests ---------------------------------------------------------------------

    /// The next request for the service; requests before it that are in memory are answered here.
    /// `None`: no more requests.
    ///
    /// # Errors
    /// The client's input cannot be read, or the response in progress failed.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<NextRequest>>> {
        loop {
            ready!(self.poll_send(cx))?;
            if self.inbound.is_stopped() {
                return Poll::Ready(Ok(None));
            }
            if !self.held.is_empty() && !self.starved {
                self.received.get_or_insert_with(Instant::now);
                let mut held = std::mem::take(&mut self.held);
                let (taken, next) = self.take_head(&held);
                held.advance(taken);
                release(&mut held);
                self.held = held;
                if self.held.is_empty() {
                    self.held_memory = None;
                }
                match next {
                    Some(next) => return Poll::Ready(Ok(Some(next))),
                    None => continue,
                }
            }
            if self.eof {
                return Poll::Ready(Ok(None));
            }
            // Bytes after a head then need no reservation while the connection is idle.
            let room = if self.held.is_empty() {
                HELD_FREE
            } else {
                HEAD_READ
            };
            let polled = self.poll_page(cx, room, |this, read| {
                if !this.held.is_empty() || read.is_empty() {
                    return this.hold(read).map(|()| None);
                }
                let (taken, next) = this.take_head(read);
                this.hold(&read[taken..])?;
                Ok(next)
            });
            match polled {
                Poll::Ready(Ok(Ok(None))) => {}
                Poll::Ready(Ok(Ok(Some(next)))) => return Poll::Ready(Ok(Some(next))),
                Poll::Ready(Ok(Err(NoMemory))) if self.cell.is_resting() => {
                    return Poll::Ready(Ok(Some(self.refuse_for_memory())));
                }
                Poll::Ready(Ok(Err(NoMemory))) => {
                    return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.wait_for_head();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Nothing to read: records the bytes that the connection waits for.
    fn wait_for_head(&mut self) {
        if self.held.is_empty() {
            self.wait_for(WaitFor::Request);
        } else {
            self.wait_for(WaitFor::Head);
            self.cell.begin_head(self.held.len());
        }
    }

    /// Takes the head at the start of `input`. Returns the number of bytes taken, and the request
    /// unless it was answered from memory.
    fn take_head(&mut self, input: &[u8]) -> (usize, Option<NextRequest>) {
        match self.inbound.head(input) {
            HeadStep::Partial => {
                self.starved = true;
                (0, None)
            }
            HeadStep::Accepted {
                start,
                taken,
                checked,
            } => {
                let head = &input[start..taken];
                if self.begin_response(head, &checked) {
                    return (taken, None);
                }
                if self.keep_head_memory(head.len()).is_err() {
                    self.inbound.stop();
                    return (input.len(), Some(self.refuse(NO_MEMORY, input)));
                }
                match self.accept(head, &checked) {
                    Some(next) => (taken, Some(next)),
                    None => {
                        self.inbound.stop();
                        let refusal = refuse(StatusCode::BAD_REQUEST, "malformed field");
                        (input.len(), Some(self.refuse(refusal, input)))
                    }
                }
            }
            HeadStep::Refused(refusal) => (input.len(), Some(self.refuse(refusal, input))),
        }
    }

    /// The request with this head; `None` if `http` cannot represent it, which `check` should have
    /// detected.
    fn accept(&mut self, head: &[u8], checked: &CheckedHead) -> Option<NextRequest> {
        let lines = &head[checked.target.end + VERSION_BYTES..];
        let fields = if checked.has_repetitions {
            let lines = single(lines, checked.form, checked.content);
            fields_of(lines.into(), checked.fields)?
        } else {
            fields_of(Bytes::copy_from_slice(lines), checked.fields)?
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(&head[checked.method.clone()]).ok()?;
        *request.version_mut() = checked.version;
        let http_10 = checked.version == Version::HTTP_10;
        let keeps = keeps_connection(checked.version, &fields);
        let expects = !http_10 && fields.contains_key(EXPECT);
        *request.headers_mut() = fields;
        let info = HeadInfo {
            target: Bytes::copy_from_slice(&head[checked.target.clone()]),
            form: checked.form,
            version: checked.version,
            content: checked.content,
            received: self.received.take().unwrap_or_else(Instant::now),
        };
        let asked = RequestTraits {
            http_10,
            head_only: request.method() == Method::HEAD,
            connect: checked.form == RequestForm::Authority,
            http_2: false,
            last: !keeps,
            takes_trailers: checked.takes_trailers,
        };
        self.requests += 1;
        self.cell.ask(RequestHead::Accepted(info), asked);
        self.note_body();
        Some(NextRequest {
            request,
            content: checked.content,
            expects,
        })
    }

    /// The request for a refused head. Nothing more is read.
    fn refuse(&mut self, refusal: Refusal, input: &[u8]) -> NextRequest {
        // The method and the version decide how the error page may be sent, so they are taken from
        // the request as far as it can be parsed: no content after HEAD, no HTTP/1.1 to an HTTP/1.0
        // client.
        let begin = input.iter().position(|byte| !b"\r\n".contains(byte));
        let input = &input[begin.unwrap_or(0)..];
        let line = input
            .split(|&byte| byte == b'\r' || byte == b'\n')
            .next()
            .unwrap_or_default();
        let head_only = line.starts_with(b"HEAD ");
        let asked = RequestTraits {
            http_10: line.ends_with(b" HTTP/1.0"),
            head_only,
            connect: false,
            http_2: false,
            last: true,
            takes_trailers: false,
        };
        self.received = None;
        self.requests += 1;
        self.cell.ask(RequestHead::Refused(refusal.into()), asked);
        self.cell.signals.request_read.set(true);
        let mut request = Request::new(());
        if head_only {
            *request.method_mut() = Method::HEAD;
        }
        NextRequest {
            request,
            content: ContentFraming::None,
            expects: false,
        }
    }

    /// Refuses a client because there is no memory for the request head.
    fn refuse_for_memory(&mut self) -> NextRequest {
        let held = std::mem::take(&mut self.held);
        self.held_memory = None;
        self.starved = false;
        self.inbound.stop();
        self.refuse(NO_MEMORY, &held)
    }

    /// Reserves memory for a head until the request is answered, because the fields share a copy of
    /// the head.
    fn keep_head_memory(&mut self, length: usize) -> Result<(), NoMemory> {
        if length > HELD_FREE {
            self.head_memory = self.cell.reserve(2 * length)?;
        }
        Ok(())
    }

    // -- responses from memory --------------------------------------------------------------------

    /// Starts the response to this request if it is in memory.
    fn begin_response(&mut self, head: &[u8], checked: &CheckedHead) -> bool {
        let Some(memory_hits) = &self.memory_hits else {
            return false;
        };
        if head.len() > HELD_FREE {
            // The log would keep copies of the fields, and no memory is reserved for them.
            return false;
        }
        let is_plain = checked.version == Version::HTTP_11
            && checked.content == ContentFraming::None
            && &head[checked.method.clone()] == b"GET"
            && !self.cell.signals.stopping.get();
        let lines = head.get(checked.target.end + VERSION_BYTES..);
        // Targets that are not UTF-8 are rare, and take the usual path.
        let target = plain_text(&head[checked.target.clone()]);
        let (true, Some(lines), Some(target)) = (is_plain, lines, target) else {
            return false;
        };
        let request = PlainRequest {
            target,
            form: checked.form,
            authority: None,
            fields: RequestFields::Lines(lines),
            received: *self.received.get_or_insert_with(Instant::now),
        };
        let mut buffer = memory_hit::take_buffer();
        let head = &mut ResponseHead::Text(&mut buffer);
        let Some(response) = memory_hits.answer(&request, head) else {
            memory_hit::put_back(buffer);
            return false;
        };
        self.received = None;
        self.cell.answer_from_memory(response.on_sent);
        self.sending = Some(Sending::new(buffer, response.content, response.charge));
        true
    }

    /// Writes the rest of a response from memory, if there is one. If the connection must stop
    /// after it, the driver is polled before anything else is read.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(mut sending) = self.sending.take() else {
            return Poll::Ready(Ok(()));
        };
        let polled = self.poll_send_rest(cx, &mut sending);
        if polled.is_pending() {
            self.sending = Some(sending);
            return Poll::Pending;
        }
        ready!(polled)?;
        self.cell.flushed();
        if self.cell.signals.stopping.get() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send_rest(
        &mut self,
        cx: &mut Context<'_>,
        sending: &mut Sending,
    ) -> Poll<io::Result<()>> {
        loop {
            let socket = Pin::new(&mut self.socket);
            let written = sending.write(|slices| socket.poll_write_vectored(cx, slices));
            let Some(written) = written else {
                return self.poll_flush(cx);
            };
            match ready!(self.wrote(written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => sending.advance(written),
            }
        }
    }

    // -- while a request is answered --------------------------------------------------------------

    /// Reads ahead while the service has a request with complete content, and detects if the client
    /// has disconnected. Never ready without an error.
    ///
    /// The end of the input is not an error: a client that has sent its last request may close its
    /// side and wait for the response (`nc -N`, old HTTP libraries). A client that has disconnected
    /// answers the first bytes of the response with a RST.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.inbound.wants_head() {
            return Poll::Pending;
        }
        if self.held.is_empty() && !self.eof {
            let polled = self.poll_page(cx, HELD_FREE, |this, read| this.hold(read));
            match polled {
                Poll::Ready(Ok(Ok(()))) => {}
                Poll::Ready(Ok(Err(NoMemory))) => {
                    return Poll::Ready(io::ErrorKind::OutOfMemory.into());
                }
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.eof {
            self.wait_for(WaitFor::Response);
        }
        Poll::Pending
    }

    /// The number of the current request.
    pub(super) fn request_number(&self) -> u64 {
        self.requests
    }

    /// Returns true if the content of request `number` is complete, and no trailers follow.
    pub(super) fn is_content_over(&self, number: u64) -> bool {
        number != self.requests || (self.inbound.wants_head() && !self.inbound.has_trailers())
    }

    /// The content of request `number` is no longer read, so the deadline is removed.
    pub(super) fn leave_content(&mut self, number: u64) {
        let reading = &self.cell.signals.reading;
        let waits = reading.get().is_some_and(|wait| wait.why == WaitFor::Body);
        if waits && number == self.requests {
            reading.set(None);
            self.reader = None;
        }
    }

    /// The next content frame of request `number`.
    pub(super) fn poll_content(
        &mut self,
        cx: &mut Context<'_>,
        number: u64,
    ) -> Poll<Option<ContentFrame>> {
        if number != self.requests {
            return Poll::Ready(Some(Err("the request is over".into())));
        }
        loop {
            if self.inbound.wants_head() {
                let lines = self.inbound.take_trailers();
                if lines.is_empty() {
                    return Poll::Ready(None);
                }
                let count = lines.iter().filter(|byte| **byte == b'\n').count();
                let frame = fields_of(lines.into(), count).map(Frame::trailers);
                return Poll::Ready(Some(frame.ok_or_else(|| "malformed trailers".into())));
            }
            if self.inbound.is_stopped() {
                return Poll::Ready(Some(Err("the content cannot be read".into())));
            }
            let read = if !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                self.held_memory = None;
                self.take_content_of_page(&held)
            } else if self.eof {
                return Poll::Ready(Some(Err("the content ends early".into())));
            } else {
                match self.poll_page(cx, CONTENT_READ, Self::take_content_of_page) {
                    Poll::Ready(Ok(read)) => read,
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                    Poll::Pending => {
                        if self.cell.signals.reading.get().is_none() {
                            self.wait_for(WaitFor::Body);
                            // The connection's task has the timer.
                            self.cell.wake_from(cx.waker());
                        }
                        self.reader = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
            };
            self.reader = None;
            if self.inbound.wants_head() {
                // The connection's task now waits for the client.
                self.cell.wake_from(cx.waker());
            }
            match read {
                Ok(content) if content.is_empty() => {}
                Ok(content) => return Poll::Ready(Some(Ok(Frame::data(content)))),
                Err(refusal) => {
                    self.cell.fail_body(refusal);
                    return Poll::Ready(Some(Err(refusal.reason.into())));
                }
            }
        }
    }

    /// Takes content from the bytes read, and holds the bytes after it.
    fn take_content_of_page(&mut self, read: &[u8]) -> Result<Bytes, Refusal> {
        let (taken, content) = self.take_content(read)?;
        if self.hold(&read[taken..]).is_err() {
            // The bytes after this point are lost.
            self.inbound.stop();
            self.note_body();
            return Err(NO_MEMORY);
        }
        Ok(content)
    }

    /// Takes content from the start of `input`. Returns the number of bytes taken, and their
    /// content.
    fn take_content(&mut self, input: &[u8]) -> Result<(usize, Bytes), Refusal> {
        let mut content = BytesMut::new();
        let taken = self.inbound.body(input, |bytes| {
            if content.is_empty() {
                content.reserve(input.len());
            }
            content.extend_from_slice(bytes);
        });
        self.cell.signals.reading.set(None);
        self.note_body();
        let taken = taken.map_err(|reason| refuse(StatusCode::BAD_REQUEST, reason))?;
        Ok((taken, content.freeze()))
    }

    /// The client has sent no content for too long: the reader of the content gets an error.
    pub(super) fn end_content(&mut self) {
        self.cell.signals.reading.set(None);
        self.inbound.stop();
        let reason = "request content stopped arriving";
        self.cell.fail_body(refuse(StatusCode::BAD_REQUEST, reason));
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Queues a 100 for content that the client holds back, unless some content has arrived. It is
    /// sent if the response has not started.
    pub(super) fn send_continue(&self) {
        if self.held.is_empty() {
            self.cell.ask_for_content();
        }
    }

    /// Writes all of `outgoing`, after any waiting interim responses.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        outgoing: &mut Outgoing,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_interim(cx))?;
        if self.cell.signals.close_delimited.get() && !self.resets {
            // Until the last byte is written, the connection must close with a RST: the client
            // would take a FIN for the end of the content. This holds even if this process is
            // killed.
            self.resets = true;
            self.socket.reset_on_drop(true);
        }
        self.poll_write_all(cx, outgoing)
    }

    fn poll_write_all(
        &mut self,
        cx: &mut Context<'_>,
        outgoing: &mut Outgoing,
    ) -> Poll<io::Result<()>> {
        while !outgoing.is_empty() {
            let parts = outgoing.parts();
            let written = Pin::new(&mut self.socket).poll_write_vectored(cx, &parts);
            match ready!(self.wrote(written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => outgoing.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Flushes the socket after the last byte of a response, which completes the exchange.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        self.head_memory = None;
        // A task that still reads the request content must not get the content skipped below.
        self.requests += 1;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        if std::mem::take(&mut self.resets) {
            self.socket.reset_on_drop(false);
        }
        self.cell.flushed();
        Poll::Ready(Ok(()))
    }

    /// Drops content that has arrived but was not read. Returns true if the content is complete, so
    /// that the connection can take another request.
    pub(super) fn skip_content(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.inbound.wants_head() && !self.inbound.is_stopped() {
            let held = std::mem::take(&mut self.held);
            self.held_memory = None;
            let skipped = if held.is_empty() {
                let polled = self.poll_page(cx, CONTENT_READ, Self::take_content_of_page);
                matches!(polled, Poll::Ready(Ok(Ok(_))))
            } else {
                self.take_content_of_page(&held).is_ok()
            };
            if !skipped {
                return false;
            }
        }
        self.inbound.take_trailers();
        self.inbound.wants_head()
    }

    /// Returns true if a close-delimited response is in progress: then an early close must send a
    /// RST.
    pub(super) fn must_reset(&self) -> bool {
        self.resets
    }

    fn note_body(&self) {
        self.cell
            .signals
            .request_read
            .set(self.inbound.wants_head());
    }

    // -- the end of the connection ----------------------------------------------------------------

    /// The socket, and the input not yet taken.
    pub(super) fn into_upgraded(self) -> Upgraded {
        Upgraded {
            socket: self.socket,
            read: self.held.freeze(),
        }
    }

    /// Returns true if a response from memory is being written.
    pub(super) fn is_answering(&self) -> bool {
        self.sending.is_some()
    }

    /// Missing bytes of the current request content.
    pub(super) fn content_left(&self) -> Option<u64> {
        self.inbound.content_left()
    }

    /// The socket, to be closed; `None` if a graceful close is useless.
    pub(super) fn into_closing(self) -> Option<(Socket, ClientSide)> {
        let peer = if self.eof {
            ClientSide::Finished
        } else {
            ClientSide::MaySend
        };
        (!self.write_failed).then_some((self.socket, peer))
    }

    /// Makes the connection close with a RST.
    pub(super) fn reset_on_drop(&self) {
        self.socket.reset_on_drop(true);
    }

    // -- reading and writing ----------------------------------------------------------------------

    /// Reads at most `room` bytes once into the thread's buffer, and calls `take` with them. At the
    /// end of the input it calls `take` with no bytes and sets `eof`.
    fn poll_page<T>(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: impl FnOnce(&mut Self, &[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let mut page = PAGE.take();
        page.resize(PAGE_BYTES, 0);
        let mut buffer = ReadBuf::new(&mut page[..room.min(PAGE_BYTES)]);
        let result = Pin::new(&mut self.socket)
            .poll_read(cx, &mut buffer)
            .map_ok(|()| {
                let read = buffer.filled();
                self.eof = read.is_empty();
                self.starved &= self.eof;
                self.cell.count_read(read.len());
                take(self, read)
            });
        PAGE.set(page);
        result
    }

    /// Appends `read` to the held input, in reserved memory.
    fn hold(&mut self, read: &[u8]) -> Result<(), NoMemory> {
        let length = self.held.len() + read.len();
        if length > self.held.capacity() {
            // Exact, not doubled, so that the reservation equals the capacity.
            let capacity = length.next_multiple_of(HELD_FREE);
            if capacity > HELD_FREE {
                let more = self.cell.reserve(capacity)?;
                self.held_memory = more;
            }
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.held);
            self.held = larger;
        }
        self.held.extend_from_slice(read);
        Ok(())
    }

    /// Starts to wait for the client, unless it is already waiting.
    fn wait_for(&mut self, why: WaitFor) {
        let signals = &self.cell.signals;
        if signals.reading.get().is_some_and(|wait| wait.why == why) {
            return;
        }
        let now = Instant::now();
        let time = match why {
            WaitFor::Request => self.limits.idle_time,
            WaitFor::Head => self.limits.head_time,
            WaitFor::Body => self.limits.progress_time,
            // An origin may take `first_byte_time` for a head, and `progress_time` for the content.
            WaitFor::Response => self.limits.first_byte_time + self.limits.progress_time,
        };
        // The time for a head starts with the first byte.
        let since = if why == WaitFor::Head {
            *self.received.get_or_insert(now)
        } else {
            now
        };
        signals.reading.set(Some(Wait {
            why,
            until: since + time,
        }));
        match why {
            // Idle only without held input, because pipelined input may be the next request.
            WaitFor::Request if self.held.is_empty() => self.cell.rest(since),
            _ => self.cell.end_rest(),
        }
    }

    /// Writes and flushes the waiting interim responses.
    pub(super) fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let cell = Rc::clone(&self.cell);
        let mut interim = cell.interim();
        if !interim.is_empty() {
            self.flushes_interim = true;
            ready!(self.poll_write_all(cx, &mut interim))?;
        }
        if self.flushes_interim {
            ready!(self.poll_flush(cx))?;
            self.flushes_interim = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Counts the bytes of a write, and sets or removes the deadline for the next.
    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let signals = &self.cell.signals;
        match &result {
            Poll::Ready(Ok(written)) => {
                self.cell.count_written(*written);
                signals.writing.set(None);
            }
            Poll::Ready(Err(_)) => self.write_failed = true,
            Poll::Pending if signals.writing.get().is_none() => {
                signals
                    .writing
                    .set(Some(Instant::now() + self.limits.progress_time));
            }
            Poll::Pending => {}
        }
        if self.eof && matches!(&result, Poll::Ready(Ok(1..))) {
            // The client is still connected; otherwise the next write fails.
            self.cell.signals.reading.set(None);
            self.wait_for(WaitFor::Response);
        }
        result
    }

    /// Flushes the socket. TLS accepts up to 64 KiB before the client does, so a flush has a
    /// deadline as a write has. Progress within a flush is not visible: the client must accept all
    /// of it in time.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.wrote(flushed.map_ok(|()| 0)))?;
        Poll::Ready(Ok(()))
    }
}

/// The fields in `lines`, which were checked and may include the final empty line.
fn fields_of(lines: Bytes, count: usize) -> Option<HeaderMap> {
    let mut fields = HeaderMap::with_capacity(count);
    let mut at = 0;
    while let Some(end) = lines[at..].iter().position(|&byte| byte == b'\r') {
        if end == 0 {
            break;
        }
        let line = lines.slice(at..at + end);
        let colon = line.iter().position(|&byte| byte == b':')?;
        let value = trim(&line[colon + 1..]);
        let value = line.slice_ref(value);
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_maybe_shared(value).ok()?;
        fields.try_append(name, value).ok()?;
        at += end + 2;
    }
    Some(fields)
}

/// State of the client when the connection closes: it may still be sending, or it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientSide {
    MaySend,
    Finished,
}

/// Frees the memory of an empty buffer.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

thread_local! {
    /// The read buffer shared by this thread's sockets; bytes to keep are copied before the next
    /// read.
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PAGE_BYTES: usize = 32 << 10;

/// Bytes per read while a head is incomplete.
const HEAD_READ: usize = 16 << 10;

/// Bytes per read of content.
const CONTENT_READ: usize = 16 << 10;

/// Bytes that a connection may hold without a reservation, and the step size for larger
/// reservations; also the maximum that is read ahead.
const HELD_FREE: usize = 4 << 10;

const NO_MEMORY: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for the request head",
};

/// Length of ` HTTP/1.1` and the CRLF, after a request target.
const VERSION_BYTES: usize = 11;

/// Maximum number of fields in a head; far below what the field map can hold.
const FIELDS_MAX: usize = 4096;
