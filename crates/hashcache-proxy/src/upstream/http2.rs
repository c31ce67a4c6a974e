//! HTTP/2 connections to origins: one per endpoint and core, shared by all requests to the
//! endpoint.
//!
//! `Upstream` takes a [`Http2Stream`] of a connection, or adds a new connection. hyper queues
//! requests beyond the origin's stream limit, in order of arrival.
//!
//! Invariants: a connection serves one authority, even if its certificate names others. After a
//! GOAWAY it takes no new requests and ends with those in progress. Memory for waiting content is
//! reserved in the budget; if there is none, HTTP/1.1 is used. Cost: about 1 MiB of the budget per
//! open connection.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use http::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Scheme, Uri};
use http::{Request, Version};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::channel::Channel;
use super::endpoint::Endpoint;
use super::meter::{Meter, MeteredIo};
use super::request_body::RequestBody;
use super::transport::Transport;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::task::spawn_local;

/// One connection.
pub(super) struct Http2Conn {
    sender: SendRequest<RequestBody>,
    meter: Meter,
    peer: SocketAddr,
    streams: Cell<usize>,
    rests_since: Cell<Instant>,
    /// Whether a response has arrived on it.
    proven: Cell<bool>,
    _memory: Option<Reservation>,
}

/// One request's stream on a connection.
pub(super) struct Http2Stream {
    pub(super) sender: SendRequest<RequestBody>,
    conn: Rc<Http2Conn>,
}

/// The HTTP/2 connections of one core.
#[derive(Default)]
pub(super) struct Http2Conns {
    open: RefCell<HashMap<Endpoint, Rc<Http2Conn>>>,
    /// Locked while connecting, so that concurrent requests share the new connection.
    opening: RefCell<HashMap<Endpoint, Rc<Mutex<()>>>>,
    /// Endpoints that support HTTP/1.1 only.
    plain: RefCell<HashSet<Endpoint>>,
}

impl Http2Conns {
    /// A stream on the connection to `to`, if it accepts requests and was not idle for `max_idle`.
    pub(super) fn stream(&self, to: &Endpoint, max_idle: Duration) -> Option<Http2Stream> {
        let mut open = self.open.borrow_mut();
        let conn = open.get(to)?;
        let idle = conn.streams.get() == 0 && conn.rests_since.get().elapsed() >= max_idle;
        if idle || conn.sender.is_closed() {
            open.remove(to);
            return None;
        }
        Some(Http2Stream::new(Rc::clone(conn)))
    }

    /// Uses the current connection to `to` for no more requests.
    pub(super) fn forget(&self, to: &Endpoint) {
        self.open.borrow_mut().remove(to);
    }

    /// Uses the connection of `stream` for no more requests to `to`.
    fn retire(&self, to: &Endpoint, stream: &Http2Stream) {
        let mut open = self.open.borrow_mut();
        if open
            .get(to)
            .is_some_and(|conn| Rc::ptr_eq(conn, &stream.conn))
        {
            open.remove(to);
        }
    }

    /// Whether `to` is known to support HTTP/1.1 only.
    pub(super) fn is_plain(&self, to: &Endpoint) -> bool {
        self.plain.borrow().contains(to)
    }

    pub(super) fn note_plain(&self, to: &Endpoint) {
        let mut plain = self.plain.borrow_mut();
        if plain.len() >= PLAIN_MAX {
            plain.clear();
        }
        plain.insert(to.clone());
    }

    /// The lock to hold while connecting to `to`.
    pub(super) fn opening(&self, to: &Endpoint) -> Rc<Mutex<()>> {
        let mut opening = self.opening.borrow_mut();
        opening.retain(|_, gate| Rc::strong_count(gate) > 1);
        Rc::clone(opening.entry(to.clone()).or_default())
    }

    /// Adds a new connection and returns its first stream.
    pub(super) fn keep(
        self: &Rc<Self>,
        to: &Endpoint,
        conn: Http2Conn,
        idle_time: Duration,
    ) -> Http2Stream {
        let conn = Rc::new(conn);
        let stream = Http2Stream::new(Rc::clone(&conn));
        spawn_local(sweep(
            Rc::downgrade(self),
            to.clone(),
            Rc::downgrade(&conn),
            idle_time,
        ));
        self.open.borrow_mut().insert(to.clone(), conn);
        stream
    }

    /// Connections kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.open.borrow().len()
    }
}

/// Closes a connection that had no stream for `idle_time`.
async fn sweep(
    http2_conns: Weak<Http2Conns>,
    to: Endpoint,
    conn: Weak<Http2Conn>,
    idle_time: Duration,
) {
    loop {
        let Some(until) = conn.upgrade().map(|it| it.rests_since.get() + idle_time) else {
            return;
        };
        sleep_until(until.max(Instant::now() + SWEEP_STEP)).await;
        let (Some(http2_conns), Some(conn)) = (http2_conns.upgrade(), conn.upgrade()) else {
            return;
        };
        let idle = conn.streams.get() == 0 && conn.rests_since.get().elapsed() >= idle_time;
        if idle || conn.sender.is_closed() {
            http2_conns.retire(&to, &Http2Stream::new(conn));
            return;
        }
    }
}

impl Http2Conn {
    /// Makes a connection from a transport that has negotiated HTTP/2. hyper ends it when all
    /// senders are dropped and its streams have ended.
    pub(super) async fn new(
        channel: Transport<Channel>,
        peer: SocketAddr,
        limits: &Limits,
        memory: Option<Reservation>,
    ) -> Result<Self, Failure> {
        let meter = Meter::new();
        let io = TokioIo::new(MeteredIo::new(channel, meter.clone(), None).watched(limits));
        let mut builder = Builder::new(LocalTasks);
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX));
        let (sender, connection) = builder
            .handshake(io)
            .await
            .map_err(|_| Failure::ConnectionTerminated)?;
        spawn_local(async move {
            // Its errors are reported to the requests concerned.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            meter,
            peer,
            streams: Cell::new(0),
            rests_since: Cell::new(Instant::now()),
            proven: Cell::new(false),
            _memory: memory,
        })
    }

    /// Memory for a connection; `None` unless half of the budget is free.
    pub(super) fn reserve(cache: &Cache) -> Option<Reservation> {
        cache.reserve_spare(HTTP2_CONN_BYTES)
    }
}

impl Http2Stream {
    fn new(conn: Rc<Http2Conn>) -> Self {
        conn.streams.set(conn.streams.get() + 1);
        let sender = conn.sender.clone();
        Self { sender, conn }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.conn.peer
    }

    /// The last time at which bytes of any request on this connection were sent.
    pub(super) fn last_sent(&self) -> Instant {
        self.conn.meter.last_sent()
    }

    /// Whether the connection had answered before; sets the flag.
    pub(super) fn answered(&self) -> bool {
        self.conn.proven.replace(true)
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.conn.streams.set(self.conn.streams.get() - 1);
        self.conn.rests_since.set(Instant::now());
    }
}

impl fmt::Debug for Http2Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("peer", &self.conn.peer)
            .finish_non_exhaustive()
    }
}

/// Converts an HTTP/1.1 request to HTTP/2: the authority is in the URL, and connection fields are
/// removed (RFC 9113, section 8.2.2).
pub(super) fn convert(request: &mut Request<RequestBody>, to: &Endpoint) {
    let host = request.headers_mut().remove(HOST);
    let authority = host
        .and_then(|host| host.to_str().ok().map(str::to_owned))
        .unwrap_or_else(|| to.authority.display(to.scheme).to_string());
    let path = request.uri().path_and_query().cloned();
    let url = Uri::builder().scheme(Scheme::HTTPS).authority(authority);
    let url = match path {
        Some(path) => url.path_and_query(path),
        None => url.path_and_query("/"),
    };
    if let Ok(url) = url.build() {
        *request.uri_mut() = url;
    }
    *request.version_mut() = Version::HTTP_2;
    strip_for_http2(request.headers_mut());
}

/// Removes the fields of a connection, which HTTP/2 does not allow (RFC 9113, section 8.2.2).
pub(super) fn strip_for_http2(fields: &mut HeaderMap) {
    let trailers = HeaderValue::from_static("trailers");
    let te_trailers = fields.get_all(TE).iter().all(|value| value == trailers);
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE, EXPECT] {
        fields.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        fields.remove(HeaderName::from_static(name));
    }
    if !te_trailers {
        fields.remove(TE);
    }
}

/// Runs hyper's tasks on this core.
#[derive(Clone)]
pub(super) struct LocalTasks;

impl<T: Future<Output = ()> + 'static> Executor<T> for LocalTasks {
    fn execute(&self, task: T) {
        spawn_local(task);
    }
}

/// What an origin did with a request that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Unknown.
    No,
    /// Not processed (REFUSED_STREAM, GOAWAY): it may be sent again.
    Unseen,
    /// The origin answers it in HTTP/1.1 only.
    NeedsHttp1,
}

impl Refused {
    /// The meaning of `error` (RFC 9113, sections 6.8 and 8.7).
    pub(super) fn of(error: &hyper::Error) -> Self {
        let Some(error) = h2_error(error) else {
            return Self::No;
        };
        match error.reason() {
            Some(h2::Reason::HTTP_1_1_REQUIRED) if error.is_remote() => Self::NeedsHttp1,
            Some(h2::Reason::REFUSED_STREAM) if error.is_remote() => Self::Unseen,
            Some(h2::Reason::NO_ERROR) if error.is_go_away() && error.is_remote() => Self::Unseen,
            _ => Self::No,
        }
    }
}

/// Whether `error` is that of the connection, and not of one stream alone.
pub(super) fn is_of_connection(error: &hyper::Error) -> bool {
    match h2_error(error) {
        Some(error) => error.is_go_away() || error.is_io(),
        // hyper unwraps errors of the socket.
        None => std::error::Error::source(error).is_some_and(|cause| cause.is::<io::Error>()),
    }
}

/// Whether h2 has found the response invalid, or its head larger than the limit.
pub(super) fn is_invalid(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|error| error.is_reset() && error.is_library())
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 64 << 10;
/// Memory for waiting content, and for hyper's own buffers and tables.
const HTTP2_CONN_BYTES: u64 = (1 << 20) + (128 << 10);
/// Maximum number of HTTP/1.1-only endpoints remembered; when full, the list is cleared.
const PLAIN_MAX: usize = 4096;
/// Minimum time between two checks of a connection that may be idle.
const SWEEP_STEP: Duration = Duration::from_secs(1);
