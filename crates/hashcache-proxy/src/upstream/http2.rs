//! Connections to origins in HTTP/2: one for each endpoint and core, shared by all requests there.
//!
//! `Upstream` asks for a [`Http2Stream`] on one, or puts a new one here. hyper holds back requests
//! beyond what the origin allows at once, in the order in which they came.
//!
//! Invariants: a connection serves one authority, even where its certificate names others. One that
//! was told to end (GOAWAY) takes no more requests and ends with those it has. What content may
//! wait in it is set aside out of the budget, or HTTP/1.1 is spoken. Cost: about 1 MiB of the
//! budget for each while it is open.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use http::header::{
    CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Scheme, Uri};
use http::{Request, Version};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::endpoint::Endpoint;
use super::meter::{Meter, MeteredIo};
use super::request_body::RequestBody;
use super::transport::Transport;
use crate::failure::Failure;
use crate::limits::Limits;

/// One connection.
pub(super) struct Http2Conn {
    sender: SendRequest<RequestBody>,
    meter: Meter,
    peer: SocketAddr,
    streams: Cell<usize>,
    rests_since: Cell<Instant>,
    /// Whether an answer has come on it.
    proven: Cell<bool>,
    _memory: Option<Reservation>,
}

/// A request's share of a connection.
pub(super) struct Http2Stream {
    pub(super) sender: SendRequest<RequestBody>,
    conn: Rc<Http2Conn>,
}

/// Those of one core.
#[derive(Default)]
pub(super) struct Http2Conns {
    open: RefCell<HashMap<Endpoint, Rc<Http2Conn>>>,
    /// Held by who connects, so that those who come meanwhile share what comes of it.
    opening: RefCell<HashMap<Endpoint, Rc<Mutex<()>>>>,
    /// Endpoints that speak HTTP/1.1 alone.
    plain: RefCell<HashSet<Endpoint>>,
}

impl Http2Conns {
    /// A stream on the connection to `to`, if there is one that takes requests and has not lain
    /// idle for `max_idle`.
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

    /// Takes no more requests for `to` on the connection there is.
    pub(super) fn forget(&self, to: &Endpoint) {
        self.open.borrow_mut().remove(to);
    }

    /// Takes no more requests for `to` on the connection of `stream`.
    fn retire(&self, to: &Endpoint, stream: &Http2Stream) {
        let mut open = self.open.borrow_mut();
        if open
            .get(to)
            .is_some_and(|conn| Rc::ptr_eq(conn, &stream.conn))
        {
            open.remove(to);
        }
    }

    /// Whether HTTP/1.1 is all that `to` speaks, as far as is known.
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

    /// What to hold while connecting to `to`.
    pub(super) fn opening(&self, to: &Endpoint) -> Rc<Mutex<()>> {
        let mut opening = self.opening.borrow_mut();
        opening.retain(|_, gate| Rc::strong_count(gate) > 1);
        Rc::clone(opening.entry(to.clone()).or_default())
    }

    /// Keeps a new connection and gives the first stream on it.
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

/// Lets a connection go that has had no stream for `idle_time`.
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
    /// Makes a connection of a channel that agreed on HTTP/2. hyper ends it when nothing sends on
    /// it any more and its streams are done.
    pub(super) async fn new(
        channel: Transport,
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
            // Its errors reach the requests they belong to.
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

    /// Memory for one; none unless half of the budget is free.
    pub(super) fn reserve(cache: &Cache) -> Option<Reservation> {
        cache.reserve_spare(TRUNK_BYTES)
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

    /// When bytes of any request on this connection were last sent.
    pub(super) fn last_sent(&self) -> Instant {
        self.conn.meter.last_sent()
    }

    /// Whether the connection had answered before; from now on it has.
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

/// Makes a request in HTTP/1.1 one in HTTP/2: the authority in its URL, and no fields of a
/// connection (RFC 9113, section 8.2.2).
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
    let fields = request.headers_mut();
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
struct LocalTasks;

impl<T: Future<Output = ()> + 'static> Executor<T> for LocalTasks {
    fn execute(&self, task: T) {
        spawn_local(task);
    }
}

/// What an origin did with a request that it did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nothing is known.
    No,
    /// It was not looked at (REFUSED_STREAM, GOAWAY): it may be sent again.
    Unseen,
    /// It is answered in HTTP/1.1 only.
    NeedsHttp1,
}

impl Refused {
    /// What `error` says of it (RFC 9113, sections 6.8 and 8.7).
    pub(super) fn of(error: &hyper::Error) -> Self {
        let cause = std::error::Error::source(error);
        let Some(error) = cause.and_then(|cause| cause.downcast_ref::<h2::Error>()) else {
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

const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 64 << 10;
/// Content that waits, and hyper's own buffers and tables.
const TRUNK_BYTES: u64 = (1 << 20) + (128 << 10);
/// Endpoints remembered to speak HTTP/1.1; beyond that all are tried anew.
const PLAIN_MAX: usize = 4096;
/// How often at most a connection is looked at that may be idle.
const SWEEP_STEP: Duration = Duration::from_secs(1);
