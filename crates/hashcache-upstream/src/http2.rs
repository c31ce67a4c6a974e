//! HTTP/2 connections to origins, and their streams.
//!
//! `Upstream` takes a [`Http2Stream`] on a connection, or adds a new connection. `conns` keeps the
//! connections and chooses a connection for each request.
//!
//! Invariants: a connection serves a single authority, even if the certificate names others. After
//! a GOAWAY it takes no new requests and closes after the requests in progress. Memory for content
//! that waits for the reader is reserved in the budget with each stream, as much as the stream's
//! window; if there is none, HTTP/1.1 is used. Cost: 128 KiB of the budget per open connection, and
//! 256 KiB per stream.

mod conns;
mod sending;
mod wary;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use hashcache::{Cache, Reservation};
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_base::share::{self, Share, SpareMemory};
use hashcache_base::task::spawn_local;
use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Scheme, Uri};
use http::{Request, Version};
use hyper::rt::Executor;
use tokio::time::Instant;

use self::conns::{CONTENT_MAX, STREAMS_MAX};
use super::channel::Channel;
use super::endpoint::Endpoint;
use super::field_blocks::SmallFrames;
use super::meter::{Meter, MeteredIo};
use super::request_body::{BodyProgress, RequestBody};
use super::signals::{OriginSignals, SignalReader};
use super::transport::Transport;

pub(super) use self::conns::{Found, GivenUpGuard, Http2Conns, Sharing, Wanted, content_bytes};
pub(super) use self::sending::Http2Content;

/// A connection.
pub(super) struct Http2Conn {
    sender: SendRequest<Bytes>,
    meter: Meter,
    small: SmallFrames,
    peer: SocketAddr,
    sharing: Cell<Sharing>,
    signals: Arc<OriginSignals>,
    streams: Cell<usize>,
    /// Progress of requests with content that have no response yet.
    uploads: RefCell<Vec<Rc<BodyProgress>>>,
    rests_since: Cell<Instant>,
    /// True if a response has arrived on it.
    proven: Cell<bool>,
    /// True if several requests have used it.
    was_shared: Cell<bool>,
    _memory: Option<Reservation>,
}

/// A request's stream on a connection.
pub(super) struct Http2Stream {
    conn: Rc<Http2Conn>,
    upload: RefCell<Option<Rc<BodyProgress>>>,
    memory: Option<SpareMemory>,
}

/// Reserves memory for the bytes that a stream's window lets the origin send before they are read,
/// in the share of the client that makes the request, although other clients may read the same
/// response. `None`: see [`SpareMemory::reserve`].
pub(super) fn reserve_stream(cache: &Cache, client: Option<&Share>) -> Option<SpareMemory> {
    SpareMemory::reserve(cache, client, u64::from(STREAM_WINDOW))
}

impl Http2Conn {
    /// Makes a connection from a transport that has negotiated HTTP/2. h2 closes it when all
    /// senders are dropped and the streams are closed.
    pub(super) async fn new(
        channel: Transport<Channel>,
        peer: SocketAddr,
        limits: &Limits,
        sharing: Sharing,
        memory: Option<Reservation>,
    ) -> Result<Self, Failure> {
        let meter = Meter::new();
        let signals = OriginSignals::new();
        let small = SmallFrames::default();
        let reader = SignalReader::new(&signals);
        let limited = frame_limits(limits);
        let io = MeteredIo::new(channel, meter.clone(), &limited, reader, small.clone());
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Until the SETTINGS arrive, the origin may refuse a second stream.
            .initial_max_send_streams(1)
            .max_send_buffer_size(SEND_BUFFER)
            // h2 closes the shared connection for a head that is much larger than this, so the
            // limit on a response is checked above h2.
            .max_header_list_size(
                u32::try_from(HEADS_FACTOR * limits.head_bytes).unwrap_or(u32::MAX),
            );
        let (sender, connection) = builder
            .handshake(io)
            .await
            .map_err(|_| Failure::ConnectionTerminated)?;
        spawn_local(async move {
            // Connection errors are reported to the requests concerned.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            meter,
            small,
            peer,
            sharing: Cell::new(sharing),
            signals,
            streams: Cell::new(0),
            uploads: RefCell::default(),
            rests_since: Cell::new(Instant::now()),
            proven: Cell::new(false),
            was_shared: Cell::new(false),
            _memory: memory,
        })
    }

    /// Reserves memory for a connection; `None` unless half of the budget is free.
    pub(super) fn reserve(cache: &Cache) -> Option<Reservation> {
        cache.reserve_spare(HTTP2_CONN_BYTES)
    }

    /// Reserves memory for a connection with a stream, although memory is short: `client` needs it.
    pub(super) fn reserve_needed(cache: &Cache, client: Option<&Share>) -> Option<Reservation> {
        share::reserve_for(client, cache, HTTP2_CONN_BYTES + u64::from(STREAM_WINDOW))
    }

    /// Waits for the origin's SETTINGS, or for connection close.
    pub(super) async fn settled(&self) {
        self.signals.settled().await;
    }

    pub(super) fn sharing(&self) -> Sharing {
        self.sharing.get()
    }

    /// Returns true if the connection was closed for an error on either side.
    pub(super) fn has_error(&self) -> bool {
        self.signals.has_error()
    }

    /// Returns true if several requests have used the connection, so that another request may be
    /// the cause if it closes.
    pub(super) fn was_shared(&self) -> bool {
        self.was_shared.get()
    }

    /// Returns true if a new request may be sent on it.
    pub(super) fn takes_requests(&self) -> bool {
        !self.signals.takes_no_more()
    }

    fn was_idle_for(&self, time: Duration) -> bool {
        self.streams.get() == 0 && self.rests_since.get().elapsed() >= time
    }

    /// Returns true if there is room for one more stream with `content` bytes to send.
    fn has_room(&self, content: u64) -> bool {
        let streams = self.streams.get();
        let most = match (self.sharing(), self.signals.is_settled()) {
            (Sharing::Shared, true) => self.signals.streams_max().min(STREAMS_MAX),
            (Sharing::Shared, false) | (Sharing::Alone, _) => 1,
        };
        let waiting = || {
            let uploads = self.uploads.borrow();
            let bytes = uploads.iter().map(|upload| upload.bytes(CONTENT_MAX));
            bytes.sum::<u64>()
        };
        streams < most && (content == 0 || streams == 0 || waiting() + content <= CONTENT_MAX)
    }
}

impl Http2Stream {
    fn new(conn: Rc<Http2Conn>) -> Self {
        let before = conn.streams.replace(conn.streams.get() + 1);
        if before > 0 || conn.proven.get() {
            conn.was_shared.set(true);
        }
        Self {
            conn,
            upload: RefCell::new(None),
            memory: None,
        }
    }

    /// Keeps `memory` until the stream is dropped.
    pub(super) fn holding(mut self, memory: Option<SpareMemory>) -> Self {
        self.memory = memory;
        self
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.conn.peer
    }

    pub(super) fn conn(&self) -> &Rc<Http2Conn> {
        &self.conn
    }

    /// Notes that h2 has closed the connection because of bytes from the origin.
    pub(super) fn note_error(&self) {
        self.conn.signals.note_error();
    }

    /// Notes that the request has content, with this `progress`.
    pub(super) fn begin_upload(&self, progress: &Rc<BodyProgress>) {
        self.conn.uploads.borrow_mut().push(Rc::clone(progress));
        self.upload.replace(Some(Rc::clone(progress)));
    }

    /// Returns true if the connection had answered before; sets the flag. The origin has accepted
    /// the request content that was sent, unless more of it follows.
    pub(super) fn answered(&self) -> bool {
        let is_ended = |upload: &Rc<BodyProgress>| upload.is_ended();
        if self.upload.borrow().as_ref().is_some_and(is_ended) {
            self.end_upload();
        }
        self.conn.proven.replace(true)
    }

    fn end_upload(&self) {
        if let Some(upload) = self.upload.take() {
            let mut uploads = self.conn.uploads.borrow_mut();
            uploads.retain(|known| !Rc::ptr_eq(known, &upload));
        }
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.end_upload();
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

/// Returns the size of fields as HTTP/2 counts it for limits on heads (RFC 9113, section 6.5.2).
pub(super) fn head_bytes(fields: &HeaderMap) -> usize {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    sizes.sum()
}

/// Returns the limits on frames of an origin that answers requests of many clients: a large head is
/// refused for the request concerned, and must not close the connection.
fn frame_limits(limits: &Limits) -> Limits {
    Limits {
        head_bytes: HEADS_FACTOR * limits.head_bytes,
        ..limits.clone()
    }
}

/// Converts an HTTP/1.1 request to HTTP/2: the authority is in the URL, and connection fields are
/// removed (RFC 9113, section 8.2.2).
pub(super) fn convert(request: &mut Request<RequestBody>, to: &Endpoint) {
    let host = request.headers_mut().remove(HOST);
    let authority = host
        .and_then(|host| host.to_str().ok().map(str::to_owned))
        .unwrap_or_else(|| to.authority.host_field(to.scheme));
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

/// Removes the connection fields, which HTTP/2 does not allow (RFC 9113, section 8.2.2).
pub(super) fn strip_for_http2(fields: &mut HeaderMap) {
    let trailers = HeaderValue::from_static("trailers");
    let te_trailers = fields.get_all(TE).iter().all(|value| value == trailers);
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
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

/// Maximum bytes of a response that an origin may send before they are read.
const STREAM_WINDOW: u32 = 256 << 10;
/// All stream windows together: a stream that is not read takes nothing from the windows of other
/// streams.
const CONNECTION_WINDOW: u32 = 8 << 20;
const _: () = assert!(CONNECTION_WINDOW as usize == STREAMS_MAX * STREAM_WINDOW as usize);
const SEND_BUFFER: usize = 64 << 10;
/// Memory for h2 buffers and tables, and for TLS.
const HTTP2_CONN_BYTES: u64 = 128 << 10;
/// Bytes that each field counts in addition to name and value.
const FIELD_BYTES: usize = 32;
/// Factor by which a response head may exceed the limit before the connection is closed for it.
const HEADS_FACTOR: usize = 4;
/// The handshake failure if we have offered only HTTP/1.1, and the origin takes only HTTP/2.
pub(super) const NEEDED: Failure = Failure::TlsAlert("NoApplicationProtocol");
