//! HTTP/2 connections to origins, and their streams.
//!
//! `Upstream` takes a [`Http2Stream`] of a connection, or adds a new connection. `conns` keeps the
//! connections and chooses one for each request.
//!
//! Invariants: a connection serves one authority, even if its certificate names others. After a
//! GOAWAY it takes no new requests and ends with those in progress. Memory for content that waits
//! for its reader is reserved in the budget with each stream, as much as the stream's window; if
//! there is none, HTTP/1.1 is used. Cost: 128 KiB of the budget per open connection, and 256 KiB
//! per stream.

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

/// One connection.
pub(super) struct Http2Conn {
    sender: SendRequest<Bytes>,
    meter: Meter,
    small: SmallFrames,
    peer: SocketAddr,
    sharing: Cell<Sharing>,
    signals: Arc<OriginSignals>,
    streams: Cell<usize>,
    /// Requests with content whose responses have not begun.
    uploads: RefCell<Vec<Rc<BodyProgress>>>,
    rests_since: Cell<Instant>,
    /// Whether a response has arrived on it.
    proven: Cell<bool>,
    /// Whether more than one request has used it.
    was_shared: Cell<bool>,
    _memory: Option<Reservation>,
}

/// One request's stream on a connection.
pub(super) struct Http2Stream {
    conn: Rc<Http2Conn>,
    upload: RefCell<Option<Rc<BodyProgress>>>,
    memory: Option<SpareMemory>,
}

/// Memory for what a stream's window lets the origin send before it is read, in the share of the
/// client that makes the request, although others may read along. `None`: see
/// [`SpareMemory::reserve`].
pub(super) fn reserve_stream(cache: &Cache, client: Option<&Share>) -> Option<SpareMemory> {
    SpareMemory::reserve(cache, client, u64::from(STREAM_WINDOW))
}

impl Http2Conn {
    /// Makes a connection from a transport that has negotiated HTTP/2. h2 ends it when all senders
    /// are dropped and its streams have ended.
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
            // h2 ends the connection of all for a head that is much larger than this, so the limit
            // on one response is checked above it.
            .max_header_list_size(
                u32::try_from(HEADS_FACTOR * limits.head_bytes).unwrap_or(u32::MAX),
            );
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

    /// Memory for a connection; `None` unless half of the budget is free.
    pub(super) fn reserve(cache: &Cache) -> Option<Reservation> {
        cache.reserve_spare(HTTP2_CONN_BYTES)
    }

    /// Memory for a connection with one stream, although memory is short: `client` needs it.
    pub(super) fn reserve_needed(cache: &Cache, client: Option<&Share>) -> Option<Reservation> {
        share::reserve_for(client, cache, HTTP2_CONN_BYTES + u64::from(STREAM_WINDOW))
    }

    /// Waits for the origin's SETTINGS, or for the end of the connection.
    pub(super) async fn settled(&self) {
        self.signals.settled().await;
    }

    pub(super) fn sharing(&self) -> Sharing {
        self.sharing.get()
    }

    /// Whether the connection has ended because of an error of one side.
    pub(super) fn has_error(&self) -> bool {
        self.signals.has_error()
    }

    /// Whether more than one request has used the connection, so that its end may have another
    /// cause than each of them.
    pub(super) fn was_shared(&self) -> bool {
        self.was_shared.get()
    }

    /// Whether a new request may be sent on it.
    pub(super) fn takes_requests(&self) -> bool {
        !self.signals.takes_no_more()
    }

    fn was_idle_for(&self, time: Duration) -> bool {
        self.streams.get() == 0 && self.rests_since.get().elapsed() >= time
    }

    /// Whether there is room for one more stream, on which `content` bytes are to be sent.
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

    /// The same; `memory` is given back with the stream.
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

    /// Notes that h2 has ended the connection because of what the origin sent.
    pub(super) fn note_error(&self) {
        self.conn.signals.note_error();
    }

    /// Notes that the request has content, of which `progress` is.
    pub(super) fn begin_upload(&self, progress: &Rc<BodyProgress>) {
        self.conn.uploads.borrow_mut().push(Rc::clone(progress));
        self.upload.replace(Some(Rc::clone(progress)));
    }

    /// Whether the connection had answered before; sets the flag. The origin has accepted what was
    /// sent of the request's content, unless more of it follows.
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

/// The size of fields as HTTP/2 counts it for limits on heads (RFC 9113, section 6.5.2).
pub(super) fn head_bytes(fields: &HeaderMap) -> usize {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    sizes.sum()
}

/// The limits on frames of an origin, which answers requests of many clients: a large head is
/// refused for its own request, and must not end the connection.
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

/// Removes the fields of a connection, which HTTP/2 does not allow (RFC 9113, section 8.2.2).
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

/// What an origin may send of a response before it is read, bytes.
const STREAM_WINDOW: u32 = 256 << 10;
/// The windows of all streams: a stream that is not read takes nothing of the others' windows.
const CONNECTION_WINDOW: u32 = 8 << 20;
const _: () = assert!(CONNECTION_WINDOW as usize == STREAMS_MAX * STREAM_WINDOW as usize);
const SEND_BUFFER: usize = 64 << 10;
/// Memory for the buffers and tables of h2, and for TLS.
const HTTP2_CONN_BYTES: u64 = 128 << 10;
/// What each field counts besides its name and value.
const FIELD_BYTES: usize = 32;
/// How much larger than the limit a response head may be before the connection ends for it.
const HEADS_FACTOR: usize = 4;
/// The failure of a handshake in which only HTTP/1.1 was offered, if the origin takes HTTP/2 only.
pub(super) const NEEDED: Failure = Failure::TlsAlert("NoApplicationProtocol");
