//! What the two sides of hyper must know of each other: `stream` below it, the service above it.
//!
//! One `Cell` a connection, shared by reference count within the connection's task; nothing in it
//! crosses a thread. The service takes heads from it and asks it for what hyper cannot do; `stream`
//! and `serve` keep the state of the exchange in it.
//!
//! ```text
//!            head given to hyper        service answers         body dropped, all flushed
//!   Resting ────────────────────▶ Asked ───────────────▶ Answering ───────────────────▶ Resting
//!                                   │ send_interim           │ Body ended: Flushing
//! ```
//!
//! Invariant: in `RequestTraits`, every byte of the previous answer has been accepted by the
//! socket; a 1xx written then stands between two messages.

use std::cell;
use std::rc::Rc;
use std::task::Waker;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::head::{ContentFraming, Refusal, RequestForm};
use super::socket::Socket;
use crate::failure::Failure;
use crate::share::{Allowance, ShareReservation, UnfinishedHead};

/// What the service is to answer next.
#[derive(Clone, Debug)]
pub(crate) enum RequestHead {
    /// A request with exactly one meaning.
    Accepted(HeadInfo),
    /// One without: answer with this failure's page. The connection closes after it; the `Request`
    /// that came with it stands for nothing and must not be looked at.
    Refused(Failure),
}

/// What hyper's `Request` does not say about a request, or not as the client did.
#[derive(Clone, Debug)]
pub(crate) struct HeadInfo {
    /// The request target as the client sent it, UTF-8; the `Request` has `/` in its place.
    pub(crate) target: Bytes,
    /// Its form.
    pub(crate) form: RequestForm,
    /// HTTP/1.0, HTTP/1.1 or HTTP/2.
    pub(crate) version: Version,
    /// Whether content follows, and how it is framed.
    pub(crate) content: ContentFraming,
    /// When the first byte of the head was read.
    pub(crate) received: Instant,
}

/// What one exchange took, told when its last byte was accepted by the socket or never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeEnd {
    /// Bytes from the client since the last exchange.
    pub(crate) bytes_read: u64,
    /// Bytes to the client: heads, 1xx and framing included.
    pub(crate) bytes_written: u64,
    /// Whether the whole answer went out.
    pub(crate) complete: bool,
}

/// A client's connection after a 2xx to CONNECT or a 101.
#[derive(Debug)]
pub(crate) struct Upgraded {
    /// The socket, without any framing.
    pub(crate) socket: Socket,
    /// What the client had sent beyond the request: read this first.
    pub(crate) read: Bytes,
}

/// State of the exchange between one client and the service.
#[derive(Default)]
pub(crate) struct Cell {
    head: cell::RefCell<Option<RequestHead>>,
    exchange: cell::Cell<ExchangeState>,
    asked: cell::Cell<RequestTraits>,
    interim: cell::RefCell<BytesMut>,
    tunnel: cell::RefCell<Option<oneshot::Sender<Upgraded>>>,
    on_sent: cell::RefCell<Option<OnSent>>,
    body_failure: cell::RefCell<Option<Failure>>,
    waker: cell::RefCell<Option<Waker>>,
    traffic: cell::Cell<Traffic>,
    traffic_before: cell::Cell<Traffic>,
    /// What the client may take; none where nobody counts.
    allowance: Option<Allowance>,
    /// While the head of a request has begun and is not complete.
    unfinished: cell::RefCell<Option<UnfinishedHead>>,
    /// Memory for what waits to be sent, until it is.
    sending: cell::RefCell<Option<ShareReservation>>,
    /// Flags and deadlines that `stream` sets and `serve` acts on, or the other way round.
    pub(super) signals: CellSignals,
}

type OnSent = Box<dyn FnOnce(ExchangeEnd)>;

/// Where the exchange stands; drawn in the module's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExchangeState {
    #[default]
    Resting,
    Asked,
    Answering,
    Flushing,
}

/// The head of a stream's request, and how it is to be answered.
pub(super) struct StreamHead {
    pub(super) head: RequestHead,
    pub(super) asked: RequestTraits,
    /// About what it took on the wire, bytes.
    pub(super) size: u64,
}

/// What was asked, as far as it decides how an answer ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestTraits {
    pub(super) http_10: bool,
    pub(super) head_only: bool,
    pub(super) connect: bool,
    /// In HTTP/2, where nobody can send 1xx for us.
    pub(super) http_2: bool,
    /// The answer must be the last: the request was refused.
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    read: u64,
    written: u64,
}

/// See [`Cell::signals`].
#[derive(Default)]
pub(super) struct CellSignals {
    /// The connection shall end in a RST.
    pub(super) aborted: cell::Cell<bool>,
    /// An answer whose end is the end of the connection is under way.
    pub(super) close_delimited: cell::Cell<bool>,
    /// The service switched protocols.
    pub(super) tunnel: cell::Cell<bool>,
    /// The whole request has come: what follows is another, or the other protocol.
    pub(super) request_read: cell::Cell<bool>,
    /// hyper has been told of bytes that the socket has not accepted yet.
    pub(super) write_partial: cell::Cell<bool>,
    /// Someone keeps hyper from coming to rest: parking was tried.
    pub(super) unparkable: cell::Cell<bool>,
    /// Memory is short: nothing is kept between two requests.
    pub(super) short: cell::Cell<bool>,
    /// hyper asked for a head, and there is not one byte of it.
    pub(super) at_rest: cell::Cell<bool>,
    /// The head that waits has more fields than hyper was built for.
    pub(super) too_wide: cell::Cell<bool>,
    /// What the client is waited for, and how long.
    pub(super) reading: cell::Cell<Option<Wait>>,
    /// Until when the socket must accept a byte.
    pub(super) writing: cell::Cell<Option<Instant>>,
    /// The deadlines above have passed and were not acted on yet.
    pub(super) read_expired: cell::Cell<bool>,
    pub(super) write_expired: cell::Cell<bool>,
}

/// Waiting for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) why: WaitFor,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

/// What for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// The first byte of a head.
    Request,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
}

/// For the service.
impl Cell {
    /// State of a new connection whose memory nobody counts.
    #[cfg(test)]
    pub(crate) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// State of a new connection that may take what `allowance` gives, and holds `bytes` before its
    /// first request.
    pub(crate) fn within(allowance: &Allowance, bytes: u64) -> Rc<Self> {
        let unfinished = allowance.begin_head(bytes);
        Rc::new(Self {
            allowance: Some(allowance.clone()),
            unfinished: cell::RefCell::new(Some(unfinished)),
            ..Self::default()
        })
    }

    /// State of one stream of HTTP/2, whose head is there.
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

    /// Sets memory aside for what an answer makes wait beside its content, until it is sent; false
    /// if there is none.
    pub(crate) fn hold_until_sent(&self, bytes: usize) -> bool {
        let held = self.reserve(bytes);
        held.map(|held| *self.sending.borrow_mut() = held).is_ok()
    }

    /// The head of the request the service was just called with; to be called once a request.
    pub(crate) fn next_head(&self) -> RequestHead {
        let none = || RequestHead::Refused(Failure::Internal("a request was called for twice"));
        self.head.take().unwrap_or_else(none)
    }

    /// Sends a 1xx before the answer to the current request. Returns whether it will be sent: not
    /// to HTTP/1.0 and HTTP/2 clients, not once the answer has begun, not while the client does not
    /// take what it was sent before. 100 is never sent from here: hyper sends it when the request's
    /// body is first polled, and would send it again. 101 is an answer, not an interim response.
    pub(crate) fn send_interim(&self, status: StatusCode, fields: &HeaderMap) -> bool {
        let mut interim = self.interim.borrow_mut();
        let in_time =
            self.exchange.get() == ExchangeState::Asked && !self.signals.write_partial.get();
        if !in_time
            || self.asked.get().http_10
            || self.asked.get().http_2
            || !status.is_informational()
            || matches!(
                status,
                StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS
            )
        {
            return false;
        }
        let before = interim.len();
        write_interim(&mut interim, status, fields);
        if interim.len() > INTERIM_MAX {
            interim.truncate(before);
            return false;
        }
        drop(interim);
        self.wake();
        true
    }

    /// Ends the connection with a RST: for an answer that broke and whose end is the end of the
    /// connection. A body that fails or is dropped before its end does so by itself.
    pub(crate) fn abort(&self) {
        self.signals.aborted.set(true);
        self.wake();
    }

    /// Why reading the request's body failed, if the client is to blame; answer with this.
    pub(crate) fn body_failure(&self) -> Option<Failure> {
        self.body_failure.borrow().clone()
    }

    /// To be called before a 2xx to CONNECT or a 101 is returned: resolves to the client's socket
    /// when that answer has been flushed. An error means that the client left before.
    pub(crate) fn upgraded(&self) -> oneshot::Receiver<Upgraded> {
        let (sender, receiver) = oneshot::channel();
        *self.tunnel.borrow_mut() = Some(sender);
        receiver
    }

    /// Has `told` called once, when the answer to the current request is out or can never be.
    pub(crate) fn on_sent(&self, told: impl FnOnce(ExchangeEnd) + 'static) {
        *self.on_sent.borrow_mut() = Some(Box::new(told));
    }
}

/// For `stream` and `serve`.
impl Cell {
    /// Sets memory aside for something a client may hold for long; an error when there is none.
    pub(super) fn reserve(&self, bytes: usize) -> Result<Option<ShareReservation>, NoMemory> {
        self.reserve_by(|allowance| allowance.reserve_bulk(wide(bytes)))
    }

    /// The same while half of the budget is free.
    pub(super) fn reserve_spare(&self, bytes: usize) -> Result<Option<ShareReservation>, NoMemory> {
        self.reserve_by(|allowance| allowance.reserve_spare(wide(bytes)))
    }

    /// The same as long as anything is free.
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

    /// Registers no heads of this connection, for another does.
    pub(crate) fn leave_heads(&self) {
        *self.unfinished.borrow_mut() = None;
    }

    /// Registers that a head has begun which is not complete, and holds `bytes`.
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

    /// hyper gets a head.
    pub(super) fn ask(&self, head: RequestHead, asked: RequestTraits) {
        debug_assert_eq!(self.exchange.get(), ExchangeState::Resting);
        *self.head.borrow_mut() = Some(head);
        *self.body_failure.borrow_mut() = None;
        self.asked.set(asked);
        self.exchange.set(ExchangeState::Asked);
        *self.unfinished.borrow_mut() = None;
        self.signals.reading.set(None);
        self.signals.at_rest.set(false);
        self.signals.unparkable.set(false);
    }

    /// The service answered.
    pub(super) fn answer(&self) -> RequestTraits {
        self.exchange.set(ExchangeState::Answering);
        self.asked.get()
    }

    /// Whether the answer must be the last on this connection.
    pub(super) fn is_last(&self) -> bool {
        self.asked.get().last || self.body_failure.borrow().is_some()
    }

    /// hyper has let go of the answer's body.
    pub(super) fn body_ended(&self) {
        self.exchange.set(ExchangeState::Flushing);
    }

    /// hyper has nothing more to write; true if this completes an answer.
    pub(super) fn flushed(&self) -> bool {
        self.signals.write_partial.set(false);
        if self.exchange.get() != ExchangeState::Flushing {
            return false;
        }
        self.exchange.set(ExchangeState::Resting);
        *self.sending.borrow_mut() = None;
        self.signals.close_delimited.set(false);
        self.tell_sent(true);
        true
    }

    /// Whether the answer to the last head is out.
    pub(super) fn is_resting(&self) -> bool {
        self.exchange.get() == ExchangeState::Resting
    }

    /// Whether hyper was told the whole answer but has not written it all.
    pub(super) fn is_flushing(&self) -> bool {
        self.exchange.get() == ExchangeState::Flushing
    }

    /// The connection is over.
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

    pub(super) fn has_interim(&self) -> bool {
        !self.interim.borrow().is_empty()
    }

    /// Gives the 1xx that wait to `write`, which says how many bytes went out.
    pub(super) fn write_interim<E>(
        &self,
        write: impl FnOnce(&[u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut interim = self.interim.borrow_mut();
        let written = write(&interim)?;
        interim.advance(written);
        if interim.is_empty() {
            *interim = BytesMut::new();
        }
        Ok(written)
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

    /// Remembers the task to wake; true if it is another than before.
    pub(super) fn set_waker(&self, waker: &Waker) -> bool {
        let mut slot = self.waker.borrow_mut();
        if slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return false;
        }
        *slot = Some(waker.clone());
        true
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

/// A 1xx head with its names in title case, as hyper writes the heads that follow it.
fn write_interim(out: &mut BytesMut, status: StatusCode, fields: &HeaderMap) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        let mut upper = true;
        for byte in name.as_str().bytes() {
            out.extend_from_slice(&[if upper {
                byte.to_ascii_uppercase()
            } else {
                byte
            }]);
            upper = byte == b'-';
        }
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// The budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// What a connection with an unfinished head holds beside it, at the least.
const HEAD_BESIDE: u64 = 8 << 10;

/// What may wait to be written of 1xx responses: one head of the size we accept ourselves.
const INTERIM_MAX: usize = 64 << 10;

pub(super) fn wide(size: usize) -> u64 {
    u64::try_from(size).expect("usize is no wider than 64 bits")
}
