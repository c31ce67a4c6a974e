//! The stream hyper reads from and writes to.
//!
//! Made and taken back by `serve`; called by hyper. Reading goes socket → `inbound` → hyper;
//! writing goes straight through, after any 1xx that waits in the `Cell`.
//!
//! Invariant: the next head is given to hyper only when the answer before it is out (`Cell`'s
//! `Resting`). Until then one read's worth of bytes is kept here, and nothing more is read. Cost:
//! reads go to a buffer of the thread and from there to hyper's; a connection owns memory only for
//! bytes that hyper cannot have yet, and beyond [`HELD_FREE`] only what it has set aside for them.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{StatusCode, Version};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::cell::{Cell, HeadInfo, NoMemory, RequestHead, RequestTraits, Upgraded, Wait, WaitFor};
use super::head::{CheckedHead, HeadLimits, Refusal, RequestForm, refuse};
use super::inbound::{HeadStep, Inbound};
use super::socket::Socket;
use crate::limits::Limits;
use crate::share::ShareReservation;

/// One client's connection, as hyper sees it.
pub(super) struct ClientStream {
    socket: Socket,
    cell: Rc<Cell>,
    limits: Rc<Limits>,
    inbound: Inbound,
    /// Read from the socket, not yet given on.
    held: BytesMut,
    /// What is set aside for `held`.
    held_memory: Option<ShareReservation>,
    /// What is set aside for the head of the request that is being answered.
    head_memory: Option<ShareReservation>,
    /// `held` is the beginning of a head and not the end of it.
    starved: bool,
    /// A head that did not fit into hyper's buffer.
    given: BytesMut,
    /// When the first byte of the head under way was read.
    received: Option<Instant>,
    /// Fields that hyper has been built for.
    width: usize,
    /// The client has sent all it will.
    eof: bool,
    /// The socket takes nothing more.
    write_failed: bool,
    /// The socket resets when dropped.
    armed: bool,
}

impl ClientStream {
    pub(super) fn new(socket: Socket, limits: Rc<Limits>, cell: Rc<Cell>) -> Self {
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
            held: BytesMut::new(),
            held_memory: None,
            head_memory: None,
            starved: false,
            given: BytesMut::new(),
            received: None,
            width: NARROW,
            eof: false,
            write_failed: false,
            armed: false,
        }
    }

    /// How many fields a head may have for the next hyper this stream is given to.
    pub(super) fn widen(&mut self) -> usize {
        if self.cell.signals.too_wide.replace(false) {
            self.width = self.limits.head_fields.clamp(NARROW, WIDE);
        }
        self.width
    }

    /// Ready when hyper is needed: there is something to give it, or it is to be told of the end.
    pub(super) fn poll_needs_hyper(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.held.is_empty() && !self.eof {
            self.wait_for(WaitFor::Request);
            match self.poll_ahead(cx) {
                Poll::Ready(Ok(())) => {}
                // hyper meets it again, and ends.
                Poll::Ready(Err(_)) => self.eof = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// The socket, and what was read from it and not given on.
    pub(super) fn into_upgraded(self) -> Upgraded {
        Upgraded {
            socket: self.socket,
            read: self.held.freeze(),
        }
    }

    /// How much content of the request under way may still come.
    pub(super) fn content_left(&self) -> Option<u64> {
        self.inbound.content_left()
    }

    /// The socket, to be closed; `None` if there is no use in closing it gently.
    pub(super) fn into_closing(self) -> Option<(Socket, ClientSide)> {
        let peer = if self.eof {
            ClientSide::Finished
        } else {
            ClientSide::MaySend
        };
        (!self.write_failed).then_some((self.socket, peer))
    }

    /// Makes the end of the connection a RST.
    pub(super) fn reset_on_drop(&self) {
        self.socket.reset_on_drop(true);
    }

    /// Gives hyper what it may have of `input`: a head, or part of a body.
    fn give(&mut self, input: &[u8], out: &mut ReadBufCursor<'_>) -> io::Result<FedBytes> {
        if !self.inbound.wants_head() {
            let before = out.remaining();
            // Taking no more than fits makes it impossible to pass more than fits.
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
        match self.inbound.head(input) {
            HeadStep::Partial => {
                self.starved = true;
                Ok(FedBytes {
                    taken: 0,
                    any: false,
                })
            }
            HeadStep::Accepted { checked, .. } if checked.fields > self.width => {
                // This hyper would refuse it: `serve` builds one that does not.
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
        };
        self.cell.ask(RequestHead::Accepted(info), asked);
        self.note_body();
        self.put(&[method, b" /", &head[checked.target.end..]], out);
    }

    /// Has the service called for a head that hyper never sees, in its turn; then reads no more.
    fn refuse(&mut self, refusal: Refusal, input: &[u8], out: &mut ReadBufCursor<'_>) {
        // The two things that decide how the page may be sent are taken from the request as far as
        // it can be read: hyper must not send content after HEAD, nor HTTP/1.1 to HTTP/1.0.
        let input = input.strip_prefix(b"\r\n").unwrap_or(input);
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

    /// Sets memory aside for a head until its request is answered: hyper has it in its buffer, and
    /// before that a copy that is on its way there.
    fn keep_head_memory(&mut self, length: usize) -> Result<(), NoMemory> {
        if length > HELD_FREE {
            self.head_memory = self.cell.reserve(2 * length)?;
        }
        Ok(())
    }

    /// Keeps `read` behind what is held, in memory that is set aside.
    fn hold(&mut self, read: &[u8]) -> Result<(), NoMemory> {
        let length = self.held.len() + read.len();
        if length > self.held.capacity() {
            // Not doubled: what is set aside shall be what is used.
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

    /// What becomes of a client for whose head there is no memory.
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

    /// Gives hyper what it may have of what is held; true if that is anything.
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

    /// Reads once, for later.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_page(cx, HELD_FREE, |this, read| {
            let held = this.hold(read);
            held.map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
        })
    }

    /// Reads once at most `room` bytes into the thread's page, and has `take` look at them. At the
    /// end of the input these are none, and `eof` is set.
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

    /// Notes since when and until when the client is waited for, unless that is noted already.
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

    /// Keeps the books on one write.
    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let signals = &self.cell.signals;
        match &result {
            Poll::Ready(Ok(written)) => {
                self.cell.count_written(*written);
                signals.writing.set(None);
            }
            Poll::Ready(Err(_)) => self.write_failed = true,
            Poll::Pending if signals.write_expired.get() => {
                // Whatever the client has not taken yet it will never: let it see a break.
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
        result
    }

    /// What comes before every write of hyper's.
    fn poll_before_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cell.signals.aborted.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        ready!(self.poll_interim(cx))?;
        if self.cell.signals.close_delimited.get() && !self.armed {
            // From here to the last byte, whatever ends the connection resets it: a FIN would be
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
            if this.inbound.is_stopped() || this.cell.signals.tunnel.get() {
                // Either the page for a refused request is under way, and closing comes after it;
                // or what comes now is for the tunnel.
                return Poll::Pending;
            }
            let wants_head = this.inbound.wants_head();
            if wants_head && !this.cell.is_resting() {
                // hyper looks whether the client is still there. What was sent ahead waits for its
                // turn, and hides the end behind it until then.
                if this.held.is_empty() && !this.eof {
                    ready!(this.poll_ahead(cx))?;
                }
                if this.held.is_empty() && this.eof {
                    return Poll::Ready(Ok(()));
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
    /// Nothing to read: notes what is waited for.
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

    /// Whether time is up for the client: true ends the connection as if it had, an error breaks
    /// off the body.
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
        let result = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
        this.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// hyper calls this when it has nothing more to write: the one sign that an answer is out.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_interim(cx))?;
        ready!(Pin::new(&mut this.socket).poll_flush(cx))?;
        if this.cell.flushed() {
            this.head_memory = None;
            if std::mem::take(&mut this.armed) {
                this.socket.reset_on_drop(false);
            }
            if this.inbound.wants_head() {
                this.wait_for(WaitFor::Request);
            }
            if !this.held.is_empty() || this.eof {
                // hyper does not ask again for what it was refused before.
                cx.waker().wake_by_ref();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Left to `serve`, which closes lingering.
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

/// What became of some input.
struct FedBytes {
    taken: usize,
    /// Whether hyper got anything.
    any: bool,
}

/// An empty buffer gives its memory back.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}

thread_local! {
    /// Where this thread's sockets are read to; what stays is copied out before the next read.
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PAGE_BYTES: usize = 32 << 10;

/// Read at once while heads are expected.
const HEAD_READ: usize = 16 << 10;

/// Bytes that a connection may hold without setting anything aside, and the grain of what it sets
/// aside for more; also the most that is read ahead of its turn.
const HELD_FREE: usize = 4 << 10;

const NO_MEMORY: Refusal = Refusal {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for the request head",
};

/// hyper's arrays of fields lie on its stack up to this number, and on the heap above.
pub(super) const NARROW: usize = 100;

/// More fields than this no request has; keeps far from what the map of fields can hold.
const WIDE: usize = 4096;
