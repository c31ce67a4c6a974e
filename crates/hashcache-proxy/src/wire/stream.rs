//! The stream that hyper reads from and writes to.
//!
//! Made and taken back by `serve`; called by hyper, and by `serve` while there is no hyper. Input
//! passes from the socket through `inbound` to hyper; hyper's output passes straight through, after
//! any waiting 1xx of the `Cell`. Responses from memory are written here.
//!
//! Invariant: hyper gets the next head only after the previous response was sent (`Resting` in the
//! `Cell`). Until then at most one read is buffered here, and nothing more is read. Cost: input is
//! read into a buffer of the thread and copied to hyper's. A connection owns memory only for bytes
//! that hyper cannot take yet; beyond [`HELD_FREE`] that memory is reserved.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use hashcache_http::plain_text;
use http::{StatusCode, Version};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::cell::{Cell, HeadInfo, NoMemory, RequestHead, RequestTraits, Upgraded, Wait, WaitFor};
use super::head::{CheckedHead, ContentFraming, HeadLimits, Refusal, RequestForm, refuse, single};
use super::inbound::{HeadStep, Inbound};
use super::memory_hit::{self, MemoryHits, PlainRequest, RequestFields, ResponseHead, Sending};
use super::socket::Socket;
use crate::limits::Limits;
use crate::share::ShareReservation;

/// One client's connection, as hyper sees it.
pub(super) struct ClientStream {
    socket: Socket,
    cell: Rc<Cell>,
    limits: Rc<Limits>,
    inbound: Inbound,
    /// Answers requests without hyper, if it can.
    memory_hits: Option<Rc<dyn MemoryHits>>,
    /// The response that is being written without hyper.
    sending: Option<Sending>,
    /// Input that hyper does not have yet.
    held: BytesMut,
    /// The reservation for `held`.
    held_memory: Option<ShareReservation>,
    /// The reservation for the head of the current request.
    head_memory: Option<ShareReservation>,
    /// `held` is the beginning of a head without its end.
    starved: bool,
    /// A head that did not fit into hyper's buffer.
    given: BytesMut,
    /// The last bytes that hyper has written, while trailers are to follow the last chunk.
    ending: BytesMut,
    /// The time at which the first byte of the current head was read.
    received: Option<Instant>,
    /// The number of fields for which hyper was built.
    width: usize,
    /// The client has closed its side.
    eof: bool,
    /// The socket accepts no more output.
    write_failed: bool,
    /// The socket resets when dropped.
    armed: bool,
}

impl ClientStream {
    pub(super) fn new(
        socket: Socket,
        limits: Rc<Limits>,
        cell: Rc<Cell>,
        memory_hits: Option<Rc<dyn MemoryHits>>,
    ) -> Self {
        let head = HeadLimits {
            bytes: limits.head_bytes,
            fields: limits.head_fields.min(WIDE),
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
            given: BytesMut::new(),
            ending: BytesMut::new(),
            received: None,
            width: NARROW,
            eof: false,
            write_failed: false,
            armed: false,
        }
    }

    /// The number of fields that a head may have with the next hyper.
    pub(super) fn widen(&mut self) -> usize {
        if self.cell.signals.too_wide.replace(false) {
            self.width = self.limits.head_fields.clamp(NARROW, WIDE);
        }
        self.width
    }

    /// Answers what memory can answer. Ready when hyper is needed: there is input for it, or the
    /// input has ended.
    ///
    /// # Errors
    /// The response that was being written failed.
    pub(super) fn poll_needs_hyper(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(cx))?;
            if !self.held.is_empty() {
                let mut held = std::mem::take(&mut self.held);
                let taken = self.answer_from_memory(&held);
                held.advance(taken);
                release(&mut held);
                self.held = held;
                if taken > 0 {
                    continue;
                }
                return Poll::Ready(Ok(()));
            }
            self.held_memory = None;
            if self.eof {
                return Poll::Ready(Ok(()));
            }
            self.wait_for(WaitFor::Request);
            match self.poll_first(cx) {
                Poll::Ready(Ok(())) => {}
                // hyper gets the same error, and ends.
                Poll::Ready(Err(_)) => self.eof = true,
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Begins the response to the head at the start of `input` if memory has it. Returns the length
    /// of that head; 0 if hyper is to have it.
    fn answer_from_memory(&mut self, input: &[u8]) -> usize {
        let before = self.inbound.clone();
        if let HeadStep::Accepted {
            start,
            taken,
            checked,
        } = self.inbound.head(input)
            && self.begin_response(&input[start..taken], &checked)
        {
            return taken;
        }
        self.inbound = before;
        0
    }

    /// Begins the response to this request if memory has it.
    fn begin_response(&mut self, head: &[u8], checked: &CheckedHead) -> bool {
        let Some(memory_hits) = &self.memory_hits else {
            return false;
        };
        if head.len() > HELD_FREE {
            // The log would keep copies of its fields, for which no memory was reserved.
            return false;
        }
        let is_plain = checked.version == Version::HTTP_11
            && checked.content == ContentFraming::None
            && &head[checked.method.clone()] == b"GET"
            && !self.cell.signals.stopping.get();
        let lines = head.get(checked.target.end + VERSION_BYTES..);
        // Targets in other bytes than UTF-8 are rare, and take the usual way.
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

    /// Writes what is left of a response from memory, if there is one. If the connection is to stop
    /// after it, the driver gets its turn before anything else is read.
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
                return self.poll_flush_socket(cx);
            };
            match ready!(self.wrote(written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => sending.advance(written),
            }
        }
    }

    /// The socket, and the input that hyper does not have yet.
    pub(super) fn into_upgraded(self) -> Upgraded {
        Upgraded {
            socket: self.socket,
            read: self.held.freeze(),
        }
    }

    /// How much content of the current request is missing.
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

    /// The connection will end with a RST.
    pub(super) fn reset_on_drop(&self) {
        self.socket.reset_on_drop(true);
    }

    /// Gives hyper what it may have of `input`: a head, or a part of a body.
    fn give(&mut self, input: &[u8], out: &mut ReadBufCursor<'_>) -> io::Result<FedBytes> {
        if !self.inbound.wants_head() {
            let before = out.remaining();
            // Taking only what fits guarantees that no more than that is passed on.
            let input = &input[..input.len().min(before)];
            let taken = self.inbound.body(input, |bytes| out.put_slice(bytes));
            self.cell.signals.reading.set(None);
            self.note_body();
            return match taken {
                Ok(taken) => Ok(FedBytes {
                    taken,
                    any: out.remaining() < before,
                }),
                Err(reason) => {
                    self.cell.fail_body(refuse(StatusCode::BAD_REQUEST, reason));
                    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
                }
            };
        }
        let before = self.inbound.clone();
        let step = self.inbound.head(input);
        if let HeadStep::Accepted {
            start,
            taken,
            checked,
        } = &step
            && self.begin_response(&input[*start..*taken], checked)
        {
            return Ok(FedBytes {
                taken: *taken,
                any: false,
            });
        }
        match step {
            HeadStep::Partial => {
                self.starved = true;
                Ok(FedBytes {
                    taken: 0,
                    any: false,
                })
            }
            HeadStep::Accepted { checked, .. } if checked.fields > self.width => {
                // This hyper would refuse the head; `serve` builds one that accepts it.
                self.inbound = before;
                self.cell.signals.too_wide.set(true);
                Ok(FedBytes {
                    taken: 0,
                    any: false,
                })
            }
            HeadStep::Accepted {
                start,
                taken,
                checked,
            } => {
                let head = &input[start..taken];
                if self.keep_head_memory(head.len()).is_err() {
                    self.inbound.stop();
                    self.refuse(NO_MEMORY, input, out);
                    let taken = input.len();
                    return Ok(FedBytes { taken, any: true });
                }
                self.accept(head, &checked, out);
                Ok(FedBytes { taken, any: true })
            }
            HeadStep::Refused(refusal) => {
                self.refuse(refusal, input, out);
                Ok(FedBytes {
                    taken: input.len(),
                    any: true,
                })
            }
        }
    }

    fn accept(&mut self, head: &[u8], checked: &CheckedHead, out: &mut ReadBufCursor<'_>) {
        let method = &head[checked.method.clone()];
        let info = HeadInfo {
            target: Bytes::copy_from_slice(&head[checked.target.clone()]),
            form: checked.form,
            version: checked.version,
            content: checked.content,
            received: self.received.take().unwrap_or_else(Instant::now),
        };
        let asked = RequestTraits {
            http_10: checked.version == Version::HTTP_10,
            head_only: method == b"HEAD",
            connect: checked.form == RequestForm::Authority,
            http_2: false,
            last: false,
            takes_trailers: checked.takes_trailers,
        };
        self.cell.ask(RequestHead::Accepted(info), asked);
        self.note_body();
        let lines = &head[checked.target.end + VERSION_BYTES..];
        let version: &[u8] = match checked.version {
            Version::HTTP_10 => b" HTTP/1.0\r\n",
            _ => b" HTTP/1.1\r\n",
        };
        match checked.has_repetitions {
            false => self.put(&[method, b" /", version, lines], out),
            true => {
                let lines = single(lines, checked.form, checked.content);
                self.put(&[method, b" /", version, &lines], out);
            }
        }
    }

    /// Calls the service for a head that hyper never sees, when it is its turn; then stops reading.
    fn refuse(&mut self, refusal: Refusal, input: &[u8], out: &mut ReadBufCursor<'_>) {
        // The method and the version decide how the page may be sent, so they are taken from the
        // request as far as it can be parsed: hyper must not send content after HEAD, nor HTTP/1.1
        // to an HTTP/1.0 client.
        let begin = input.iter().position(|byte| !b"\r\n".contains(byte));
        let input = &input[begin.unwrap_or(0)..];
        let line = input
            .split(|&byte| byte == b'\r' || byte == b'\n')
            .next()
            .unwrap_or_default();
        let head_only = line.starts_with(b"HEAD ");
        let http_10 = line.ends_with(b" HTTP/1.0");
        let asked = RequestTraits {
            http_10,
            head_only,
            connect: false,
            http_2: false,
            last: true,
            takes_trailers: false,
        };
        self.received = None;
        self.cell.ask(RequestHead::Refused(refusal.into()), asked);
        self.cell.signals.request_read.set(true);
        let method: &[u8] = if head_only { b"HEAD" } else { b"GET" };
        let version: &[u8] = if http_10 { b"0" } else { b"1" };
        self.put(
            &[
                method,
                b" / HTTP/1.",
                version,
                b"\r\nConnection: close\r\n\r\n",
            ],
            out,
        );
    }

    fn note_body(&self) {
        self.cell
            .signals
            .request_read
            .set(self.inbound.wants_head());
    }

    fn put(&mut self, parts: &[&[u8]], out: &mut ReadBufCursor<'_>) {
        if parts.iter().map(|part| part.len()).sum::<usize>() <= out.remaining() {
            parts.iter().for_each(|part| out.put_slice(part));
        } else {
            parts
                .iter()
                .for_each(|part| self.given.extend_from_slice(part));
            self.put_given(out);
        }
    }

    fn put_given(&mut self, out: &mut ReadBufCursor<'_>) {
        let fits = self.given.len().min(out.remaining());
        out.put_slice(&self.given[..fits]);
        self.given.advance(fits);
        release(&mut self.given);
    }

    /// Reserves memory for a head until its request is answered: hyper has it in its buffer, and
    /// before that there is a copy on the way.
    fn keep_head_memory(&mut self, length: usize) -> Result<(), NoMemory> {
        if length > HELD_FREE {
            self.head_memory = self.cell.reserve(2 * length)?;
        }
        Ok(())
    }

    /// Appends `read` to the held input, in reserved memory.
    fn hold(&mut self, read: &[u8]) -> Result<(), NoMemory> {
        let length = self.held.len() + read.len();
        if length > self.held.capacity() {
            // Not doubled, so that the reservation equals the capacity.
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

    /// Refuses a client whose head needs memory that is not there.
    fn no_memory(&mut self, out: &mut ReadBufCursor<'_>) -> io::Result<bool> {
        if !self.inbound.wants_head() || !self.cell.is_resting() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let held = std::mem::take(&mut self.held);
        self.held_memory = None;
        self.starved = false;
        self.inbound.stop();
        self.refuse(NO_MEMORY, &held, out);
        Ok(true)
    }

    /// Gives hyper what it may have of the held input; true if that is anything.
    fn give_held(&mut self, out: &mut ReadBufCursor<'_>) -> io::Result<bool> {
        let mut held = std::mem::take(&mut self.held);
        let given = self.give(&held, out);
        held.advance(given.as_ref().map_or(0, |given| given.taken));
        release(&mut held);
        self.held = held;
        if self.held.is_empty() {
            self.held_memory = None;
        }
        given.map(|given| given.any)
    }

    /// Reads once, and gives hyper what it may have of it; true if that is anything.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<bool>> {
        let room = if self.inbound.wants_head() {
            HEAD_READ
        } else {
            out.remaining()
        };
        self.poll_page(cx, room, |this, read| {
            if !this.held.is_empty() {
                return match this.hold(read) {
                    Ok(()) => Ok(false),
                    Err(NoMemory) => this.no_memory(out),
                };
            }
            let given = this.give(read, out)?;
            match this.hold(&read[given.taken..]) {
                Ok(()) => Ok(given.any),
                Err(NoMemory) => this.no_memory(out),
            }
        })
    }

    /// Reads once while there is no input; what memory does not answer is held.
    fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_page(cx, HELD_FREE, |this, read| {
            let taken = match read {
                [] => 0,
                read => this.answer_from_memory(read),
            };
            let held = this.hold(&read[taken..]);
            held.map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
        })
    }

    /// Reads once, into the held input.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_page(cx, HELD_FREE, |this, read| {
            let held = this.hold(read);
            held.map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
        })
    }

    /// Reads at most `room` bytes once into the thread's buffer, and calls `take` with them. At the
    /// end of the input it calls `take` with no bytes and sets `eof`.
    fn poll_page<T>(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: impl FnOnce(&mut Self, &[u8]) -> io::Result<T>,
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
        result.map(|taken| taken?)
    }

    /// Begins to wait for the client, unless it is waiting already.
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
            // An origin may take this time for a head, and so may its content.
            WaitFor::Response => self.limits.first_byte_time + self.limits.progress_time,
        };
        let since = if why == WaitFor::Head {
            *self.received.get_or_insert(now)
        } else {
            now
        };
        signals.reading.set(Some(Wait {
            why,
            since,
            until: since + time,
        }));
        match why {
            // Pipelined input may be the next request.
            WaitFor::Request if self.held.is_empty() => self.cell.rest(since),
            _ => self.cell.end_rest(),
        }
    }

    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.cell.has_interim() {
            let socket = Pin::new(&mut self.socket);
            let mut pending = false;
            let written = self
                .cell
                .write_interim(|bytes| match socket.poll_write(cx, bytes) {
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        pending = true;
                        Ok(0)
                    }
                });
            let result = if pending {
                Poll::Pending
            } else {
                Poll::Ready(written)
            };
            if ready!(self.wrote(result))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what hyper gives, except the last two bytes so far: those of the last chunk are the
    /// empty line that trailers stand before.
    fn poll_write_ending(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(length) = bytes
            .len()
            .checked_sub(EMPTY_LINE.len())
            .filter(|it| *it > 0)
        else {
            ready!(self.poll_ending(cx, EMPTY_LINE.len()))?;
            self.ending.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        };
        loop {
            let kept = self.ending.len();
            let parts = [IoSlice::new(&self.ending), IoSlice::new(&bytes[..length])];
            let result = Pin::new(&mut self.socket).poll_write_vectored(cx, &parts);
            let written = ready!(self.wrote(result))?;
            self.ending.advance(written.min(kept));
            match written.checked_sub(kept) {
                // hyper would take 0 for the end of the connection.
                Some(0) | None if written > 0 => {}
                written => return Poll::Ready(Ok(written.unwrap_or(0))),
            }
        }
    }

    /// Writes what was kept back, except the last `kept` bytes.
    fn poll_ending(&mut self, cx: &mut Context<'_>, kept: usize) -> Poll<io::Result<()>> {
        while self.ending.len() > kept {
            let written = self.ending.len() - kept;
            let result = Pin::new(&mut self.socket).poll_write(cx, &self.ending[..written]);
            match ready!(self.wrote(result))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.ending.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the trailers when hyper has written everything before them.
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cell.signals.trailers.get() {
            ready!(self.poll_ending(cx, EMPTY_LINE.len()))?;
            let lines = self.cell.take_trailers();
            if self.ending[..] == *EMPTY_LINE {
                self.ending.clear();
                self.ending.extend_from_slice(&lines);
                self.ending.extend_from_slice(EMPTY_LINE);
            }
        }
        ready!(self.poll_ending(cx, 0))?;
        release(&mut self.ending);
        Poll::Ready(Ok(()))
    }

    /// Accounts for one write.
    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let signals = &self.cell.signals;
        match &result {
            Poll::Ready(Ok(written)) => {
                self.cell.count_written(*written);
                signals.writing.set(None);
            }
            Poll::Ready(Err(_)) => self.write_failed = true,
            Poll::Pending if signals.write_expired.get() => {
                // The client will never get the rest of the response, so it must see that the
                // connection broke.
                signals.aborted.set(true);
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Poll::Pending if signals.writing.get().is_none() => {
                signals
                    .writing
                    .set(Some(Instant::now() + self.limits.progress_time));
            }
            Poll::Pending => {}
        }
        if self.eof && matches!(&result, Poll::Ready(Ok(1..))) {
            // The client is there, or the next write fails.
            self.cell.signals.reading.set(None);
            self.wait_for(WaitFor::Response);
        }
        result
    }

    /// Flushes the socket. TLS takes up to 64 KiB before the client does, so this has a deadline as
    /// a write has. Progress within it is not seen: the client must take all of that in time.
    fn poll_flush_socket(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        ready!(self.wrote(flushed.map_ok(|()| 0)))?;
        Poll::Ready(Ok(()))
    }

    /// Steps before every write of hyper's.
    fn poll_before_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cell.signals.aborted.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        ready!(self.poll_interim(cx))?;
        if self.cell.signals.close_delimited.get() && !self.armed {
            // From here to the last byte, any end of the connection must be a RST: a FIN would be
            // taken for the end of the content. This holds even if this process is killed.
            self.armed = true;
            self.socket.reset_on_drop(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl Read for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.given.is_empty() {
                this.put_given(&mut out);
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_send(cx))?;
            if this.inbound.is_stopped() || this.cell.signals.tunnel.get() {
                // Either the page for a refused request is being sent and the connection closes
                // after it, or the next bytes are for the tunnel.
                return Poll::Pending;
            }
            let wants_head = this.inbound.wants_head();
            if wants_head && !this.cell.is_resting() {
                // hyper checks whether the client is still there. Pipelined input waits for its
                // turn. So does the end of the input: a client that has sent its last request may
                // close its side and wait for the response (`nc -N`, old HTTP libraries). One that
                // has left answers the first bytes of the response with a RST.
                if this.held.is_empty() && !this.eof {
                    ready!(this.poll_ahead(cx))?;
                }
                if this.eof {
                    this.wait_for(WaitFor::Response);
                }
                return Poll::Pending;
            }
            if wants_head && this.cell.signals.too_wide.get() {
                return Poll::Pending;
            } else if !this.held.is_empty() && !this.starved {
                if wants_head {
                    this.received.get_or_insert_with(Instant::now);
                }
                if this.give_held(&mut out)? {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            if this.eof || this.expired()? {
                return Poll::Ready(Ok(()));
            }
            match this.poll_fill(cx, &mut out) {
                Poll::Ready(Ok(true)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(false)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.rest();
                    return Poll::Pending;
                }
            }
        }
    }
}

impl ClientStream {
    /// Nothing to read: notes what the connection waits for.
    fn rest(&mut self) {
        if !self.inbound.wants_head() {
            self.wait_for(WaitFor::Body);
        } else if self.held.is_empty() {
            self.wait_for(WaitFor::Request);
            self.cell.signals.at_rest.set(true);
        } else {
            self.wait_for(WaitFor::Head);
            self.cell.begin_head(self.held.len());
        }
    }

    /// Whether the read deadline has passed: true ends the connection as if the client had closed
    /// it; an error ends the body.
    fn expired(&mut self) -> io::Result<bool> {
        let signals = &self.cell.signals;
        if !signals.read_expired.replace(false) {
            return Ok(false);
        }
        let between_requests = self.inbound.wants_head();
        self.inbound.stop();
        if between_requests {
            return Ok(true);
        }
        self.cell.fail_body(refuse(
            StatusCode::BAD_REQUEST,
            "request content stopped arriving",
        ));
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Write for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.cell.signals.write_partial.set(true);
        ready!(this.poll_before_write(cx))?;
        if this.cell.signals.trailers.get() {
            return this.poll_write_ending(cx, buf);
        }
        let result = Pin::new(&mut this.socket).poll_write(cx, buf);
        this.wrote(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.cell.signals.write_partial.set(true);
        ready!(this.poll_before_write(cx))?;
        if this.cell.signals.trailers.get() {
            let first = bufs.iter().find(|part| !part.is_empty());
            return this.poll_write_ending(cx, first.map_or(&[], |part| part));
        }
        let result = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        this.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// hyper calls this when it has nothing more to write: the only sign that a response was sent.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        if this.cell.signals.from_memory.get() {
            // This response is not hyper's: `poll_send` completes it, or it has failed.
            return Poll::Ready(Ok(()));
        }
        if this.cell.signals.trailers.get() || !this.ending.is_empty() {
            ready!(this.poll_trailers(cx))?;
        }
        ready!(this.poll_flush_socket(cx))?;
        if this.cell.flushed() {
            this.head_memory = None;
            if std::mem::take(&mut this.armed) {
                this.socket.reset_on_drop(false);
            }
            // Behind a CONNECT or a 101 the bytes belong to another protocol.
            if this.inbound.wants_head() && !this.cell.signals.tunnel.get() {
                this.wait_for(WaitFor::Request);
            }
            if !this.held.is_empty() || this.eof {
                // hyper does not poll again by itself after it was refused a read.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Left to `serve`, which lingers before it closes.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Whether the client may still be sending when we close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientSide {
    MaySend,
    Finished,
}

/// Result of giving input to hyper.
struct FedBytes {
    taken: usize,
    /// Whether hyper got any bytes.
    any: bool,
}

/// Frees the memory of an empty buffer.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

thread_local! {
    /// The read buffer of this thread's sockets; bytes to keep are copied out before the next read.
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PAGE_BYTES: usize = 32 << 10;

/// Bytes per read while heads are expected.
const HEAD_READ: usize = 16 << 10;

/// Bytes that a connection may hold without a reservation, and the step of reservations beyond
/// that; also the maximum that is read ahead.
const HELD_FREE: usize = 4 << 10;

const NO_MEMORY: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for the request head",
};

/// The end of a chunked body, behind its trailers.
const EMPTY_LINE: &[u8; 2] = b"\r\n";

/// Length of ` HTTP/1.1` and the line's end, behind a request target.
const VERSION_BYTES: usize = 11;

/// Up to this number of fields hyper's arrays are on its stack, above on the heap.
pub(super) const NARROW: usize = 100;

/// Maximum number of fields in a head; far below what the field map can hold.
const WIDE: usize = 4096;
