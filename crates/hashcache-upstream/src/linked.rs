//! Links to parents: makes the connection, and sends requests and tunnels on it.
//!
//! `server/links` in the proxy calls [`Upstream::open_link`] on a thread there and keeps the result
//! in the peer; all cores then send on that single connection, through [`ParentLink`].
//! `linked_requests` sends requests, `Upstream::connect` makes tunnels.
//!
//! Invariants: no byte of a request is sent before the parent has shown the pinned key and has
//! accepted our key: in TLS 1.3 the parent shows this only by the first bytes after the handshake.
//! If a core stops sending content, this is an error, never the end of a request.
//! Cost: the windows of the connection, reserved in the budget as long as the socket is open.

pub(crate) mod attempts;
pub(crate) mod framed;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hashcache::Reservation;
use hashcache_base::failure::{Failure, LinkFault};
use hashcache_base::limits::Limits;
use hashcache_base::share::{PIECE_BYTES, Share};
use hashcache_base::task::spawn_local;
use hashcache_base::tls::HTTP_2;
use hashcache_http::{Authority, HASHCACHE_LINK, HASHCACHE_TARGET, TARGET_EXPECTATION};
use hashcache_link::chunk_field::ChunkField;
use hashcache_link::content::{ContentSender, LinkContent, Piece};
use hashcache_link::counters::LinkCounters;
use hashcache_link::parent::{LinkStream, NewConnection, ParentLink, StreamUse};
use hashcache_link::tls::{is_not_pinned, is_refused};
use hashcache_link::turn_frames::TurnFrames;
use hashcache_link::turns::{SendTurn, Turns};
use hashcache_link::{PING_AFTER, PING_TIMEOUT, TURN_TIME, Windows};
use hashcache_wire::Pings;
use http::header::{EXPECT, HOST, HeaderValue, PROXY_AUTHORIZATION, VIA};
use http::{Method, Request, StatusCode, Uri, Version};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::Error as TlsError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use self::attempts::{Attempts, StreamFault};
use super::channel::{Channel, LinkTunnel};
use super::endpoint::Endpoint;
use super::flood::FloodGuard;
use super::http2::{LocalTasks, strip_for_http2};
use super::odd_target::OddTarget;
use super::permits::Permit;
use super::refused::NotSent;
use super::request_body::RequestBody;
use super::{Upstream, tls};
use crate::peer::Peer;

/// An open connection to a parent that has accepted us.
#[derive(Debug)]
pub struct OpenedLink {
    /// For the streams.
    pub connection: NewConnection,
    /// Must be polled for as long as the link is used.
    pub line: LinkLine,
}

/// The connection below the streams of a link. It is closed when all senders and streams are
/// dropped.
#[derive(Debug)]
pub struct LinkLine {
    /// Drives the connection until it is closed.
    driver: JoinHandle<Option<Failure>>,
    signals: Arc<Signals>,
}

/// Signals from the parent's bytes.
#[derive(Debug, Default)]
struct Signals {
    heard: AtomicBool,
    refused: AtomicBool,
    goes_away: AtomicBool,
    changed: Notify,
}

/// The reason why a connection takes no more requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// GOAWAY: the parent closes the connection after the requests in progress.
    GoesAway,
    /// The connection is closed.
    Broken(Failure),
}

impl LinkLine {
    /// Resolves when the connection takes no more requests. After GOAWAY, requests in progress
    /// continue.
    pub async fn ended(&mut self) -> LinkEnd {
        loop {
            let changed = self.signals.changed.notified();
            if self.signals.goes_away.load(Relaxed) {
                return LinkEnd::GoesAway;
            }
            tokio::select! {
                ended = &mut self.driver => {
                    if self.signals.goes_away.load(Relaxed) {
                        return LinkEnd::GoesAway;
                    }
                    let failure = ended.ok().flatten();
                    return LinkEnd::Broken(failure.unwrap_or(Failure::ConnectionTerminated));
                }
                () = changed => {}
            }
        }
    }
}

impl Upstream {
    /// Opens the connection for a link to `peer`; reserves a part of the budget for it.
    ///
    /// # Errors
    /// There is no connection, or either side does not accept the key of the other side.
    pub async fn open_link(&self, peer: &Peer, link: &ParentLink) -> Result<OpenedLink, Failure> {
        let to = Endpoint::of_peer(peer);
        let windows = match &self.memory {
            Some(cache) => cache.stats().memory_limit_bytes / BUDGET_PART,
            None => u64::MAX,
        };
        let windows = Windows::within(windows);
        let memory = self.reserve(None, u64::from(windows.connection) + BESIDE_BYTES);
        let memory = memory.map_err(|_| Failure::Link(LinkFault::Memory))?;
        let begun = Instant::now();
        let (socket, address) = self.connector.connect(&to, None, None).await?;
        peer.health.note_connect_time(begun.elapsed());
        hashcache_link::prepare(&socket);
        let limit = self.limits.connect_time;
        let begun = Instant::now();
        let accepting = async {
            let counted = CountedSocket {
                socket,
                counters: Arc::clone(&link.counters),
            };
            let name = tls::server_name(&to.authority.host)?;
            let connector = TlsConnector::from(Arc::clone(&link.config));
            let shaken = connector.connect(name, counted).await;
            let stream = shaken.map_err(|error| refused(&error))?;
            link.counters.note_round_trip(begun.elapsed());
            if stream.get_ref().1.alpn_protocol() != Some(HTTP_2) {
                return Err(Failure::Link(LinkFault::NoListener));
            }
            let signals = Arc::<Signals>::default();
            let turns = Turns::new(windows.connection);
            let io = LinkIo {
                stream,
                pings: Pings::of_client(),
                flood: FloodGuard::new(&limits_of_frames(&self.limits)),
                signals: Arc::clone(&signals),
                counters: Arc::clone(&link.counters),
                turn_frames: TurnFrames::of_client(&turns),
                _memory: memory,
            };
            let builder = builder(&self.limits, windows);
            let shaken = builder.handshake(TokioIo::new(io)).await;
            let ended = |_| Failure::Link(LinkFault::Ended);
            let (sender, mut connection) = shaken.map_err(ended)?;
            tokio::select! {
                // The error here is from hyper, which has lost the TLS error.
                _ = &mut connection => return Err(signals.fault()),
                () = signals.heard() => {}
            }
            // The first bytes are those settings.
            let streams = connection.current_max_send_streams();
            let driver = tokio::task::spawn_local(async move {
                // After GOAWAY it returns before the last streams and the socket are closed.
                let ended = connection.await;
                ended.err().map(|_| Failure::ConnectionTerminated)
            });
            Ok(OpenedLink {
                connection: NewConnection {
                    sender,
                    address,
                    streams,
                    turns,
                },
                line: LinkLine { driver, signals },
            })
        };
        let opened = timeout(limit, accepting).await;
        opened.unwrap_or(Err(Failure::ConnectTimeout(limit)))
    }

    /// Opens a tunnel to `to` through the parent at the other end of `link`.
    pub(super) async fn connect_linked(
        &self,
        (peer, link): (&Peer, &ParentLink),
        to: &Authority,
        via: &HeaderValue,
        options: (Option<Duration>, Option<&Share>),
    ) -> Result<(Channel, SocketAddr), Failure> {
        let to = TunnelTo {
            to,
            via,
            offer: None,
        };
        let (channel, address, _) = self.open_tunnel((peer, link), to, options).await?;
        Ok((channel, address))
    }

    /// As `connect_linked`, for a forwarded port: offers to code the stream in chunks. Returns the
    /// parent's answer; `None`: the parent ignores the offer, and the bytes pass unchanged.
    pub async fn connect_chunked(
        &self,
        (peer, link): (&Peer, &ParentLink),
        to: &Authority,
        offer: Option<ChunkField>,
        client: &Share,
    ) -> Result<(Channel, SocketAddr, Option<ChunkField>), Failure> {
        let to = TunnelTo {
            to,
            via: &self.via,
            offer,
        };
        let opened = self.open_tunnel((peer, link), to, (None, Some(client)));
        let opened = opened.await;
        super::note_tunnel(peer, &opened);
        opened
    }

    async fn open_tunnel(
        &self,
        (peer, link): (&Peer, &ParentLink),
        to: TunnelTo<'_>,
        (limit, client): (Option<Duration>, Option<&Share>),
    ) -> Result<(Channel, SocketAddr, Option<ChunkField>), Failure> {
        let memory = self.reserve(client, hashcache_link::TUNNEL_BYTES)?;
        let permit = self.tunnel_permit(peer, limit, client).await?;
        let wait = limit.unwrap_or(self.limits.connect_time);
        // As through other parents: the parent connects within `connect_time`. While no other hop
        // is left, the parent's answer may wait for a turn on the line.
        let limit = match limit {
            Some(_) => self.limits.connect_time,
            None => self.limits.connect_time * 2 + TURN_TIME,
        };
        let mut attempts = Attempts::default();
        let (response, stream) = loop {
            let stream = link.stream(StreamUse::Tunnel, client, wait).await?;
            let mut sender = stream.sender.clone();
            let mut request = tunnel_request(peer, to)?;
            stream.turn.add_to(request.headers_mut());
            let asking = sender.send_request(request);
            let Ok(answered) = timeout(limit, asking).await else {
                return Err(Failure::FirstByteTimeout(limit));
            };
            let error = match answered {
                Ok(response) => break (response, stream),
                Err(error) => error,
            };
            let fault = StreamFault::from_send_error(&error.into(), sender.is_closed());
            if fault == StreamFault::Broken {
                link.retire(stream.number);
            }
            drop((sender, stream));
            if !attempts.next(fault).await {
                return Err(match fault {
                    StreamFault::Refused => Failure::UpstreamLimit,
                    StreamFault::Broken | StreamFault::Failed => Failure::ConnectionTerminated,
                });
            }
        };
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            return Err(Failure::PeerStatus { status });
        }
        let answer = to
            .offer
            .and_then(|_| ChunkField::from_fields(response.headers()));
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|_| Failure::ConnectionTerminated)?;
        let address = stream.address;
        let mut tunnel = LinkTunnel::new(TokioIo::new(upgraded), stream, permit);
        if answer.is_none() {
            tunnel = tunnel.counted_in(&link.counters);
        }
        Ok((Channel::from(tunnel).holding(memory), address, answer))
    }

    /// Reserves memory for the content of `request`; `None` if the request has no content.
    pub(super) fn upload_memory(
        &self,
        request: &Request<RequestBody>,
        client: Option<&Share>,
    ) -> Result<Option<Reservation>, Failure> {
        if request.body().is_empty() {
            Ok(None)
        } else {
            self.reserve(client, UPLOAD_BYTES)
        }
    }

    /// Waits for permission for another tunnel over the link to `peer`.
    async fn tunnel_permit(
        &self,
        peer: &Peer,
        limit: Option<Duration>,
        client: Option<&Share>,
    ) -> Result<Permit, Failure> {
        let authority = &peer.settings.url.authority;
        let taking = self.link_tunnels.take(authority, client);
        let taken = timeout(limit.unwrap_or(self.limits.connect_time), taking).await;
        taken.unwrap_or(Err(Failure::UpstreamLimit))
    }
}

impl Signals {
    /// Waits for the first bytes of the parent, which show that it has accepted our key.
    async fn heard(&self) {
        loop {
            let changed = self.changed.notified();
            if self.heard.load(Relaxed) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the reason why the connection was closed before that.
    fn fault(&self) -> Failure {
        Failure::Link(if self.refused.load(Relaxed) {
            LinkFault::NotAccepted
        } else {
            LinkFault::Ended
        })
    }
}

/// Data for a tunnel request.
#[derive(Clone, Copy)]
struct TunnelTo<'a> {
    to: &'a Authority,
    via: &'a HeaderValue,
    /// Offer to code the stream in chunks.
    offer: Option<ChunkField>,
}

/// Builds the request for a tunnel.
fn tunnel_request(peer: &Peer, tunnel: TunnelTo<'_>) -> Result<Request<LinkContent>, Failure> {
    let TunnelTo { to, via, offer } = tunnel;
    let mut request = Request::new(LinkContent::default());
    *request.method_mut() = Method::CONNECT;
    *request.version_mut() = Version::HTTP_2;
    let authority = Uri::try_from(to.to_string());
    *request.uri_mut() = authority.map_err(|_| Failure::Internal("a host that is no URL"))?;
    let fields = request.headers_mut();
    fields.insert(VIA, via.clone());
    if let Some(authorization) = &peer.authorization {
        fields.insert(PROXY_AUTHORIZATION, authorization.clone());
    }
    if let Some(offer) = offer {
        fields.insert(HASHCACHE_LINK, offer.to_value());
    }
    Ok(request)
}

/// Limits on frames from a parent, which answers requests from many users.
fn limits_of_frames(limits: &Limits) -> Limits {
    Limits {
        frames: limits.frames.saturating_mul(hashcache_link::FRAMES_FACTOR),
        head_bytes: HEADS_FACTOR * limits.head_bytes,
        ..limits.clone()
    }
}

fn builder(limits: &Limits, windows: Windows) -> Builder<LocalTasks> {
    let mut builder = Builder::new(LocalTasks);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_send_buf_size(hashcache_link::SEND_BUFFER)
        // h2 closes the shared connection for a head that is too large to skip.
        .max_header_list_size(
            u32::try_from(2 * HEADS_FACTOR * limits.head_bytes).unwrap_or(u32::MAX),
        )
        // The parent allows this number; the first bytes contain it.
        .initial_max_send_streams(hashcache_link::STREAMS)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    builder
}

/// Returns the failure for a TLS handshake error.
fn refused(error: &io::Error) -> Failure {
    match tls_error(error) {
        Some(error) if is_not_pinned(error) => Failure::Link(LinkFault::OtherKey),
        Some(error) if is_refused(error) => Failure::Link(LinkFault::NotAccepted),
        // An alert about the version or ALPN, or no TLS at all: another service uses this port.
        Some(_) => Failure::Link(LinkFault::NoListener),
        None => Failure::Link(LinkFault::Ended),
    }
}

/// Returns the TLS error inside `error`.
fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|cause| cause.downcast_ref())
}

/// A request on the way over a link.
#[derive(Debug)]
pub(super) struct LinkedStream {
    pub(super) stream: LinkStream,
    /// Memory for content.
    _memory: Option<Reservation>,
    /// Time when the request, or content of it, was last sent.
    last_sent: Rc<Cell<Instant>>,
    /// Dropping the sender stops the upload, and so resets the stream if content is missing.
    upload: Option<oneshot::Sender<()>>,
}

impl LinkedStream {
    pub(super) fn new(stream: LinkStream, memory: Option<Reservation>) -> Self {
        Self {
            stream,
            _memory: memory,
            last_sent: Rc::new(Cell::new(Instant::now())),
            upload: None,
        }
    }

    /// Time when bytes of this request were last sent.
    pub(super) fn last_sent(&self) -> Instant {
        self.last_sent.get()
    }

    /// Sends `request`, which has the whole URL. If no byte of it was sent, the error has the
    /// request.
    pub(super) fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<http::Response<Incoming>, NotSent>> + 'static + use<> {
        self.last_sent.set(Instant::now());
        let (mut head, body) = request.into_parts();
        head.version = Version::HTTP_2;
        let host = head.headers.remove(HOST);
        strip_for_http2(&mut head.headers);
        // hyper drops interim responses in HTTP/2, so content cannot wait for a 100.
        head.headers.remove(EXPECT);
        // A client's own field with this name must not choose the resource.
        head.headers.remove(HASHCACHE_TARGET);
        if let Some(odd) = head.extensions.get::<OddTarget>()
            && let Ok(octets) = HeaderValue::from_bytes(odd.as_bytes())
        {
            head.headers.insert(HASHCACHE_TARGET, octets);
            // A parent that does not know the field answers 417 instead of the resource at `/`.
            head.headers.insert(EXPECT, TARGET_EXPECTATION);
        }
        let (content, returned) = if body.is_empty() {
            (LinkContent::default(), None)
        } else {
            let (content, sender) = LinkContent::streamed();
            let (give_back, returned) = oneshot::channel();
            let (upload, exchange) = oneshot::channel();
            self.upload = Some(upload);
            let last_sent = Rc::clone(&self.last_sent);
            let turn = self.stream.sending();
            let feeding = feed(body, turn, sender, give_back, last_sent);
            spawn_local(async move {
                // Content may be held for good, or the client may send nothing more: the stream
                // would then stay open on a link that all clients share.
                tokio::select! {
                    biased;
                    _ = exchange => {}
                    () = feeding => {}
                }
            });
            (content, Some(returned))
        };
        let sending = self
            .stream
            .sender
            .try_send_request(Request::from_parts(head, content));
        async move {
            let mut error = match sending.await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let unsent = match error.take_message() {
                Some(unsent) => {
                    let (mut head, content) = unsent.into_parts();
                    head.headers.extend(host.map(|host| (HOST, host)));
                    head.headers.remove(HASHCACHE_TARGET);
                    head.headers.remove(EXPECT);
                    drop(content);
                    let body = match returned {
                        None => Some(RequestBody::empty()),
                        Some(returned) => returned.await.ok(),
                    };
                    body.map(|body| Request::from_parts(head, body))
                }
                None => None,
            };
            Err(NotSent {
                error: error.into_error().into(),
                unsent,
            })
        }
    }
}

/// Sends request content to the link's thread, frame by frame on demand. If no content is wanted,
/// gives it back.
async fn feed(
    mut body: RequestBody,
    turn: SendTurn,
    sender: ContentSender,
    give_back: oneshot::Sender<RequestBody>,
    last_sent: Rc<Cell<Instant>>,
) {
    let ContentSender { pieces, wanted } = sender;
    if wanted.await.is_err() {
        // The receiver may be gone.
        let _ = give_back.send(body);
        return;
    }
    // The rest of the last frame, if a turn had no room for the whole frame.
    let mut rest = Bytes::new();
    // An error of `reserve` means that the exchange is over.
    while let Ok(permit) = pieces.reserve().await {
        let next = poll_fn(|cx| {
            ready!(turn.poll(cx));
            if rest.is_empty() {
                Pin::new(&mut body).poll_frame(cx)
            } else {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut rest)))))
            }
        });
        let next = tokio::select! {
            next = next => next,
            () = pieces.closed() => return,
        };
        match next {
            Some(Ok(mut frame)) => {
                last_sent.set(Instant::now());
                if let Some(data) = frame.data_mut() {
                    rest = data.split_off(data.len().min(turn.piece_max()));
                    turn.sent(data.len());
                }
                permit.send(Piece::Frame(frame));
            }
            Some(Err(error)) => return permit.send(Piece::Failed(error)),
            None => return permit.send(Piece::End),
        }
    }
}

/// A socket with byte counters.
#[derive(Debug)]
struct CountedSocket {
    socket: TcpStream,
    counters: Arc<LinkCounters>,
}

impl AsyncRead for CountedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        let received = buffer.filled().len() - before;
        self.counters.received(received);
        let load = &self.counters.load;
        if read.is_pending() {
            load.note_waits(Instant::now().into_std());
        } else {
            load.note_moved(received);
        }
        read
    }
}

impl AsyncWrite for CountedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        written.map_ok(|bytes| {
            self.counters.sent(bytes);
            bytes
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        written.map_ok(|bytes| {
            self.counters.sent(bytes);
            bytes
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The link frames between TLS and hyper.
#[derive(Debug)]
struct LinkIo<S> {
    stream: S,
    pings: Pings,
    flood: FloodGuard,
    signals: Arc<Signals>,
    counters: Arc<LinkCounters>,
    turn_frames: TurnFrames,
    /// For the windows, and for TLS: dropped with the socket.
    _memory: Option<Reservation>,
}

impl<S: AsyncRead + Unpin> AsyncRead for LinkIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &result
            && tls_error(error).is_some_and(is_refused)
        {
            this.signals.refused.store(true, Relaxed);
        }
        let read = &buffer.filled()[before..];
        if read.is_empty() {
            return result;
        }
        if !this.flood.admits(read) {
            let flood = io::Error::new(io::ErrorKind::InvalidData, "too many frames");
            return Poll::Ready(Err(flood));
        }
        this.turn_frames.note_received(read);
        let heard = this.pings.note_received(read);
        if let Some(round_trip) = heard.round_trip {
            this.counters.note_round_trip(round_trip);
        }
        let signals = &this.signals;
        let is_first = !signals.heard.swap(true, Relaxed);
        if heard.goes_away {
            signals.goes_away.store(true, Relaxed);
        }
        if is_first || heard.goes_away {
            signals.changed.notify_one();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> LinkIo<S> {
    fn note_sent(&mut self, bytes: &[u8]) {
        self.flood.sent(bytes.len());
        self.pings.note_sent(bytes);
        self.turn_frames.note_sent(bytes);
    }

    /// Writes the frames that are unknown to hyper.
    fn poll_write_own(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.turn_frames.poll_write_own(&mut self.stream, cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LinkIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_own(cx))?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = written {
            self.note_sent(&bytes[..written]);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_own(cx))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        if let Poll::Ready(Ok(written)) = written {
            let mut left = written;
            for part in parts {
                let taken = left.min(part.len());
                self.note_sent(&part[..taken]);
                left -= taken;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_own(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A parent may accept larger heads than this box, and adds more fields.
const HEADS_FACTOR: usize = 2;
/// A link's windows take at most this part of the budget.
const BUDGET_PART: u64 = 8;
/// Memory for a link beside the windows: TLS, hyper's state and tables.
const BESIDE_BYTES: u64 = 256 << 10;
/// Memory for the request content on the way: a frame from the client waits for the thread of the
/// link, and another frame is with the bytes that h2 holds for the socket.
const UPLOAD_BYTES: u64 = 2 * PIECE_BYTES + hashcache_link::SEND_BUFFER as u64;

#[cfg(test)]
mod tests;
