//! State that a connection shares with the service: the current exchange.
//!
//! Each connection has a `Cell`, reference-counted within the connection's task; it never moves to
//! another thread. The service takes request heads from it, and uses it for everything that a
//! `Response` cannot express. `stream` and `serve` keep the exchange state in it.
//!
//! ```text
//!            head was read              service answers         body dropped, all flushed
//!   Resting ────────────────────▶ Asked ───────────────▶ Answering ───────────────────▶ Resting
//!                                   │ send_interim           │ Body ended: Flushing
//! ```
//!
//! In HTTP/1.1, a response from memory is `Flushing` from the start.
//!
//! Invariant: in `Asked`, the socket has accepted every byte of the previous response, so a 1xx
//! written then is between two messages.

use std::cell;
use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::share::{Allowance, ShareReservation, UnfinishedHead};
use http::{HeaderMap, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::head::{ContentFraming, Refusal, RequestForm};
use super::outgoing::Outgoing;
use super::socket::Socket;

/// The next request for the service.
#[derive(Clone, Debug)]
pub enum RequestHead {
    /// A request with exactly one meaning.
    Accepted(HeadInfo),
    /// A request with an invalid or ambiguous head: answer with the error page for this failure.
    /// The connection closes after it. The accompanying `Request` is a placeholder and must not be
    /// read.
    Refused(Failure),
}

/// Properties of a request that the `Request` does not contain, or not in the client's own bytes.
#[derive(Clone, Debug)]
pub struct HeadInfo {
    /// The request target as the client sent it: any bytes except blanks and controls; the
    /// `Request` has `/` instead.
    pub target: Bytes,
    /// Form of the target.
    pub form: RequestForm,
    /// HTTP/1.0, HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// Framing of the content, if any.
    pub content: ContentFraming,
    /// The time at which the first byte of the head was read.
    pub received: Instant,
}

/// Totals of an exchange, reported when the socket has accepted the last byte or never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeEnd {
    /// Bytes received from the client since the last exchange.
    pub(crate) bytes_read: u64,
    /// Bytes sent to the client, including heads, 1xx and framing.
    pub bytes_written: u64,
    /// True if the whole response was sent.
    pub complete: bool,
}

/// A client's connection after a 2xx to CONNECT or a 101.
#[derive(Debug)]
pub struct Upgraded {
    /// The socket, without any framing.
    pub socket: Socket,
    /// Bytes that the client has sent after the request: read these first.
    pub read: Bytes,
}

/// State of the exchange between a client and the service.
#[derive(Default)]
pub struct Cell {
    head: cell::RefCell<Option<RequestHead>>,
    exchange: cell::Cell<ExchangeState>,
    asked: cell::Cell<RequestTraits>,
    interim: cell::RefCell<Outgoing>,
    /// Sends an interim response on the stream; only in HTTP/2.
    interim_sender: cell::RefCell<Option<InterimSender>>,
    tunnel: cell::RefCell<Option<oneshot::Sender<Upgraded>>>,
    on_sent: cell::RefCell<Option<OnSent>>,
    body_failure: cell::RefCell<Option<Failure>>,
    waker: cell::RefCell<Option<Waker>>,
    traffic: cell::Cell<Traffic>,
    traffic_before: cell::Cell<Traffic>,
    /// The client's allowance; `None` if memory is not accounted.
    allowance: Option<Allowance>,
    /// Present while a request head is incomplete.
    unfinished: cell::RefCell<Option<UnfinishedHead>>,
    /// Memory for data that waits to be sent.
    sending: cell::RefCell<Option<ShareReservation>>,
    /// Flags and deadlines from `stream` to `serve`, and the other way round.
    pub(super) signals: CellSignals,
}

/// Sends an interim response; returns false if that is impossible.
pub(super) type InterimSender = Box<dyn Fn(StatusCode, &HeaderMap) -> bool>;

/// Called when an exchange is over.
pub type OnSent = Box<dyn FnOnce(ExchangeEnd)>;

/// State of the exchange; see the diagram at the top of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExchangeState {
    #[default]
    Resting,
    Asked,
    Answering,
    Flushing,
}

/// The head of an HTTP/2 request, and how to answer it.
pub(super) struct StreamHead {
    pub(super) head: RequestHead,
    pub(super) asked: RequestTraits,
    /// Approximate size on the wire, in bytes.
    pub(super) size: u64,
}

/// Properties of the request that decide how the response is framed and whether the connection
/// closes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestTraits {
    pub(super) http_10: bool,
    pub(super) head_only: bool,
    pub(super) connect: bool,
    /// HTTP/2: a 1xx is a HEADERS frame on a stream.
    pub(super) http_2: bool,
    /// The response must be the last on the connection, because the client requested it or the
    /// request was refused.
    pub(super) last: bool,
    /// HTTP/1.1: the client accepts trailers. In HTTP/2 every client does.
    pub(super) takes_trailers: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    read: u64,
    written: u64,
}

/// See [`Cell::signals`].
#[derive(Default)]
pub(super) struct CellSignals {
    /// The end of the current response is marked by closing the connection.
    pub(super) close_delimited: cell::Cell<bool>,
    /// The service switched protocols.
    pub(super) tunnel: cell::Cell<bool>,
    /// The whole request was read: the next bytes belong to another request or to the new protocol.
    pub(super) request_read: cell::Cell<bool>,
    /// The connection closes after the current response.
    pub(super) stopping: cell::Cell<bool>,
    /// A request has arrived.
    pub(super) has_begun: cell::Cell<bool>,
    /// The bytes that the connection waits for, and the deadline.
    pub(super) reading: cell::Cell<Option<Wait>>,
    /// The deadline for the socket to accept a byte.
    pub(super) writing: cell::Cell<Option<Instant>>,
}

/// A wait for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) why: WaitFor,
    pub(super) until: Instant,
}

/// The bytes that the client is expected to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// The first byte of a head.
    Request,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// None: the client has closed its side, and may have disconnected.
    Response,
}

/// Methods for the service.
impl Cell {
    /// State of a new connection without memory accounting.
    #[cfg(test)]
    pub(crate) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// State of a new connection with `allowance`, which holds `bytes` before the first request.
    pub fn within(allowance: &Allowance, bytes: u64) -> Rc<Self> {
        let unfinished = allowance.begin_head(bytes);
        Rc::new(Self {
            allowance: Some(allowance.clone()),
            unfinished: cell::RefCell::new(Some(unfinished)),
            ..Self::default()
        })
    }

    /// State of a child's connection: the connection has no head, and each stream has a separate
    /// cell.
    pub fn of_link(allowance: &Allowance) -> Rc<Self> {
        Rc::new(Self {
            allowance: Some(allowance.clone()),
            ..Self::default()
        })
    }

    /// The allowance of the client that the stream belongs to; `None` if memory is not accounted.
    pub fn allowance(&self) -> Option<&Allowance> {
        self.allowance.as_ref()
    }

    /// State of an HTTP/2 stream after its head has arrived.
    pub(super) fn of_stream(allowance: Option<Allowance>, head: StreamHead) -> Rc<Self> {
        let cell = Self {
            allowance,
            ..Self::default()
        };
        cell.traffic.set(Traffic {
            read: head.size,
            written: 0,
        });
        cell.ask(head.head, head.asked);
        Rc::new(cell)
    }

    /// State of an HTTP/2 stream with a response from memory; `size` as in [`StreamHead`].
    pub(super) fn of_memory_hit(size: u64, on_sent: OnSent) -> Rc<Self> {
        let cell = Self {
            on_sent: cell::RefCell::new(Some(on_sent)),
            ..Self::default()
        };
        cell.traffic.set(Traffic {
            read: size,
            written: 0,
        });
        cell.asked.set(RequestTraits {
            http_2: true,
            ..RequestTraits::default()
        });
        cell.exchange.set(ExchangeState::Asked);
        Rc::new(cell)
    }

    /// Records that the connection is idle from `now`, and may be closed to make room for another.
    pub(super) fn rest(&self, now: Instant) {
        if let Some(allowance) = &self.allowance {
            allowance.rest(now);
        }
    }

    /// Records that the request head is complete.
    fn begin_request(&self) {
        if let Some(allowance) = &self.allowance {
            allowance.end_rest();
            allowance.end_head();
        }
    }

    pub(super) fn end_rest(&self) {
        if let Some(allowance) = &self.allowance {
            allowance.end_rest();
        }
    }

    /// Reserves memory for the buffered part of a response besides its content, until it is sent;
    /// returns false if no memory is available.
    pub fn hold_until_sent(&self, bytes: usize) -> bool {
        let held = self.reserve(bytes);
        held.map(|held| *self.sending.borrow_mut() = held).is_ok()
    }

    /// The head of the request that the service was called for; must be called once per request.
    pub fn next_head(&self) -> RequestHead {
        let none = || RequestHead::Refused(Failure::Internal("a request was called for twice"));
        self.head.take().unwrap_or_else(none)
    }

    /// Makes the response to the current request the last on the connection. Has no effect in
    /// HTTP/2.
    pub fn end_with_this(&self) {
        self.asked.set(RequestTraits {
            last: true,
            ..self.asked.get()
        });
    }

    /// Sends a 1xx before the response to the current request. Returns true if it will be sent. It
    /// is not sent to HTTP/1.0 clients, nor after the response has started, nor while the client
    /// does not read earlier 1xx responses. 100 is never sent from here, because it is sent when
    /// the request content is first polled, and the client would get it twice. 101 is a final
    /// response, not an interim response.
    pub fn send_interim(&self, status: StatusCode, fields: &HeaderMap) -> bool {
        if self.asked.get().http_2 {
            let is_other = matches!(
                status,
                StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS
            );
            return status.is_informational() && !is_other && self.send_on_stream(status, fields);
        }
        let mut interim = self.interim.borrow_mut();
        let in_time = self.exchange.get() == ExchangeState::Asked;
        if !in_time
            || self.asked.get().http_10
            || !status.is_informational()
            || matches!(
                status,
                StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS
            )
        {
            return false;
        }
        let before = interim.text.len();
        write_interim(&mut interim, status, fields);
        if interim.text.len() > INTERIM_MAX {
            interim.text.truncate(before);
            return false;
        }
        drop(interim);
        self.wake();
        true
    }

    /// Queues a 100: the service wants content that the client holds back until then.
    pub(super) fn ask_for_content(&self) {
        if self.exchange.get() == ExchangeState::Asked {
            write_interim(
                &mut self.interim.borrow_mut(),
                StatusCode::CONTINUE,
                &HeaderMap::new(),
            );
            self.wake();
        }
    }

    /// Sends a 100 on an HTTP/2 stream, because the service wants the content.
    pub(super) fn send_continue(&self) {
        self.send_on_stream(StatusCode::CONTINUE, &HeaderMap::new());
    }

    fn send_on_stream(&self, status: StatusCode, fields: &HeaderMap) -> bool {
        let is_asked = self.exchange.get() == ExchangeState::Asked;
        let sender = self.interim_sender.borrow();
        is_asked && sender.as_ref().is_some_and(|send| send(status, fields))
    }

    pub(super) fn set_interim_sender(&self, sender: InterimSender) {
        *self.interim_sender.borrow_mut() = Some(sender);
    }

    pub(super) fn clear_interim_sender(&self) {
        *self.interim_sender.borrow_mut() = None;
    }

    /// The failure of the request body, if the client caused it; answer with this failure.
    pub fn body_failure(&self) -> Option<Failure> {
        self.body_failure.borrow().clone()
    }

    /// Resolves to the client's socket when the response has been flushed; must be called before a
    /// 2xx to CONNECT or a 101 is returned. An error means that the client disconnected before.
    pub fn upgraded(&self) -> oneshot::Receiver<Upgraded> {
        let (sender, receiver) = oneshot::channel();
        *self.tunnel.borrow_mut() = Some(sender);
        receiver
    }

    /// Sets a callback, called once when the response to the current request was sent or can never
    /// be.
    pub fn on_sent(&self, told: impl FnOnce(ExchangeEnd) + 'static) {
        *self.on_sent.borrow_mut() = Some(Box::new(told));
    }
}

/// Methods for `stream` and `serve`.
impl Cell {
    /// Reserves memory that a client may hold for a long time; an error if none is available.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Option<ShareReservation>, NoMemory> {
        self.reserve_by(|allowance| allowance.reserve_bulk(wide(bytes)))
    }

    /// As [`Self::reserve`], but only while half of the budget is free.
    pub(super) fn reserve_spare(&self, bytes: usize) -> Result<Option<ShareReservation>, NoMemory> {
        self.reserve_by(|allowance| allowance.reserve_spare(wide(bytes)))
    }

    /// As [`Self::reserve`], but as long as any memory is free.
    pub(super) fn reserve_last(&self, bytes: usize) -> Result<Option<ShareReservation>, NoMemory> {
        self.reserve_by(|allowance| allowance.reserve(wide(bytes)))
    }

    fn reserve_by(
        &self,
        reserve: impl FnOnce(&Allowance) -> Option<ShareReservation>,
    ) -> Result<Option<ShareReservation>, NoMemory> {
        match &self.allowance {
            Some(allowance) => reserve(allowance).map(Some).ok_or(NoMemory),
            None => Ok(None),
        }
    }

    /// Stops registering heads for this connection, because HTTP/2 registers them itself.
    pub fn leave_heads(&self) {
        *self.unfinished.borrow_mut() = None;
    }

    /// Registers an incomplete head that holds `bytes`.
    pub(super) fn begin_head(&self, bytes: usize) {
        let Some(allowance) = &self.allowance else {
            return;
        };
        let mut unfinished = self.unfinished.borrow_mut();
        let bytes = HEAD_BESIDE + wide(bytes);
        if unfinished.as_ref().is_some_and(|it| it.bytes() >= bytes) {
            return;
        }
        *unfinished = None;
        *unfinished = Some(allowance.begin_head(bytes));
    }

    /// Starts an exchange: a head was read.
    pub(super) fn ask(&self, head: RequestHead, asked: RequestTraits) {
        debug_assert_eq!(self.exchange.get(), ExchangeState::Resting);
        *self.head.borrow_mut() = Some(head);
        *self.body_failure.borrow_mut() = None;
        self.asked.set(asked);
        self.exchange.set(ExchangeState::Asked);
        *self.unfinished.borrow_mut() = None;
        self.begin_request();
        self.signals.has_begun.set(true);
        self.signals.reading.set(None);
    }

    /// Starts an exchange: a response from memory is about to be written.
    pub(super) fn answer_from_memory(&self, on_sent: OnSent) {
        debug_assert_eq!(self.exchange.get(), ExchangeState::Resting);
        *self.on_sent.borrow_mut() = Some(on_sent);
        self.exchange.set(ExchangeState::Flushing);
        *self.unfinished.borrow_mut() = None;
        self.begin_request();
        self.signals.has_begun.set(true);
        self.signals.reading.set(None);
    }

    /// The service has returned a response.
    pub(super) fn answer(&self) -> RequestTraits {
        self.exchange.set(ExchangeState::Answering);
        self.asked.get()
    }

    /// Returns true if the response must be the last on this connection.
    pub(super) fn is_last(&self) -> bool {
        self.asked.get().last || self.body_failure.borrow().is_some()
    }

    /// The response content is complete.
    pub(super) fn body_ended(&self) {
        self.exchange.set(ExchangeState::Flushing);
    }

    /// All bytes are written, so a response with complete content is sent.
    pub(super) fn flushed(&self) {
        if self.exchange.get() != ExchangeState::Flushing {
            return;
        }
        self.exchange.set(ExchangeState::Resting);
        *self.sending.borrow_mut() = None;
        self.signals.close_delimited.set(false);
        self.tell_sent(true);
    }

    /// Returns true if the response to the last head was sent.
    pub(super) fn is_resting(&self) -> bool {
        self.exchange.get() == ExchangeState::Resting
    }

    /// The connection has closed.
    pub(super) fn ended(&self) {
        if !self.is_resting() {
            self.tell_sent(false);
        }
    }

    fn tell_sent(&self, complete: bool) {
        let (now, before) = (
            self.traffic.get(),
            self.traffic_before.replace(self.traffic.get()),
        );
        if let Some(told) = self.on_sent.take() {
            told(ExchangeEnd {
                bytes_read: now.read - before.read,
                bytes_written: now.written - before.written,
                complete,
            });
        }
    }

    pub(super) fn fail_body(&self, refusal: Refusal) {
        *self.body_failure.borrow_mut() = Some(refusal.into());
    }

    /// The interim responses waiting to be written.
    pub(super) fn interim(&self) -> cell::RefMut<'_, Outgoing> {
        self.interim.borrow_mut()
    }

    pub(super) fn take_tunnel(&self) -> Option<oneshot::Sender<Upgraded>> {
        self.tunnel.take()
    }

    pub(super) fn count_read(&self, bytes: usize) {
        let Traffic { read, written } = self.traffic.get();
        self.traffic.set(Traffic {
            read: read + wide(bytes),
            written,
        });
    }

    pub(super) fn count_written(&self, bytes: usize) {
        let Traffic { read, written } = self.traffic.get();
        self.traffic.set(Traffic {
            read,
            written: written + wide(bytes),
        });
    }

    /// Stores the waker; returns true if it belongs to a different task than the stored waker.
    pub(super) fn set_waker(&self, waker: &Waker) -> bool {
        let mut slot = self.waker.borrow_mut();
        if slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return false;
        }
        *slot = Some(waker.clone());
        true
    }

    /// Wakes the connection's task, unless `waker` belongs to that task.
    pub(super) fn wake_from(&self, waker: &Waker) {
        let slot = self.waker.borrow();
        if let Some(own) = slot.as_ref().filter(|own| !own.will_wake(waker)) {
            own.wake_by_ref();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            status: refusal.status,
            reason: refusal.reason,
        }
    }
}

/// Writes a 1xx head.
fn write_interim(out: &mut Outgoing, status: StatusCode, fields: &HeaderMap) {
    out.text.extend_from_slice(b"HTTP/1.1 ");
    out.text.extend_from_slice(status.as_str().as_bytes());
    out.text.push(b' ');
    let reason = status.canonical_reason().unwrap_or_default();
    out.text.extend_from_slice(reason.as_bytes());
    out.text.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        out.push_field(name.as_str().as_bytes(), value.as_bytes());
    }
    out.text.extend_from_slice(b"\r\n");
}

/// The memory budget is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// The minimum memory of a connection with an unfinished head, besides the head.
const HEAD_BESIDE: u64 = 8 << 10;

/// Maximum size of waiting 1xx responses: the size of a head that we accept ourselves.
const INTERIM_MAX: usize = 64 << 10;

pub(super) fn wide(size: usize) -> u64 {
    u64::try_from(size).expect("usize is no wider than 64 bits")
}
