//! The byte stream to a server: a socket, a tunnel through a peer or over a link, or a gateway.
//!
//! Made by `Upstream::connect`; `transport` puts TLS on it, and `connect` in the proxy relays the
//! bytes of tunnels over it.
//!
//! Invariant: bytes from the server that arrived together with the peer's answer to CONNECT are
//! read first.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hashcache::Reservation;
use hashcache_link::counters::{IN, LinkCounters, OUT};
use hashcache_link::parent::{LinkStream, StreamPlace};
use hashcache_link::pieces::Pieces;
use hashcache_link::turns::{ReadTurn, SendTurn};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::permits::Permit;
use super::transport::Transport;
use crate::gateway::{GatewayFailure, GatewayStream};

/// The byte stream to a server.
#[derive(Debug)]
pub struct Channel {
    end: FarEnd,
    /// Bytes from the server that were read with the peer's answer.
    begun: Bytes,
    /// Memory for TLS to the peer.
    _memory: Option<Reservation>,
}

#[derive(Debug)]
enum FarEnd {
    Socket(PeerSocket),
    Gateway(GatewayStream),
    Linked(Box<LinkTunnel>),
}

/// A tunnel over the link to a parent.
#[derive(Debug)]
pub(super) struct LinkTunnel {
    stream: Pieces<TokioIo<Upgraded>>,
    /// Counters for the bytes, if the bytes pass unchanged.
    opaque: Option<Arc<LinkCounters>>,
    reading: ReadTurn,
    sending: SendTurn,
    _held: (StreamPlace, Permit),
}

impl LinkTunnel {
    /// Releases the place of `on` and `permit` when the tunnel is dropped.
    pub(super) fn new(stream: TokioIo<Upgraded>, on: LinkStream, permit: Permit) -> Self {
        Self {
            stream: Pieces::new(stream),
            opaque: None,
            sending: on.sending(),
            reading: on.reading,
            _held: (on.place, permit),
        }
    }

    /// Counts the bytes of this tunnel in `counters`; they pass unchanged.
    pub(super) fn counted_in(self, counters: &Arc<LinkCounters>) -> Self {
        Self {
            opaque: Some(Arc::clone(counters)),
            ..self
        }
    }

    fn note(&self, direction: usize, bytes: usize) {
        if let Some(counters) = &self.opaque {
            counters.note_opaque(direction, bytes);
        }
    }
}

/// The connection to the server or to a peer.
pub(super) type PeerSocket = Transport<TcpStream>;

impl Channel {
    /// Makes a tunnel through a peer. `begun` has the first bytes, which were read already.
    pub(super) fn tunnel(socket: PeerSocket, begun: Bytes) -> Self {
        Self {
            end: FarEnd::Socket(socket),
            begun,
            _memory: None,
        }
    }

    /// Returns the reason why a gateway session closed, after it has closed; `None`: this is no
    /// gateway.
    pub(super) fn gateway_failure(&self) -> Option<GatewayFailure> {
        match &self.end {
            FarEnd::Socket(_) | FarEnd::Linked(_) => None,
            FarEnd::Gateway(stream) => Some(stream.failure()),
        }
    }

    /// Keeps `memory` until the channel is closed.
    pub(super) fn holding(self, memory: Option<Reservation>) -> Self {
        Self {
            _memory: memory,
            ..self
        }
    }

    /// Closes the channel so that the server does not take an incomplete stream for complete: with
    /// a reset of the socket, or without the end of TLS or of the tunnel.
    pub fn reset(self) {
        self.reset_on_drop();
    }

    /// Makes the channel close with a reset when it is dropped.
    pub(super) fn reset_on_drop(&self) {
        match &self.end {
            FarEnd::Socket(socket) => reset_on_drop(socket.socket()),
            // They are dropped without an end of stream.
            FarEnd::Gateway(_) | FarEnd::Linked(_) => {}
        }
    }

    /// Returns true if the other side has closed an idle connection or sent unrequested bytes.
    pub(super) fn has_ended(&self) -> bool {
        let FarEnd::Socket(socket) = &self.end else {
            return false;
        };
        let mut byte = [MaybeUninit::uninit()];
        match socket2::SockRef::from(socket.socket()).peek(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the address of the server; `None` if a peer is in between, or for a gateway.
    pub(super) fn server_address(&self) -> Option<SocketAddr> {
        match &self.end {
            FarEnd::Socket(PeerSocket::Plain(socket)) => socket.peer_addr().ok(),
            FarEnd::Socket(PeerSocket::Tls(_)) | FarEnd::Gateway(_) | FarEnd::Linked(_) => None,
        }
    }
}

/// Makes the kernel send a RST when the socket is dropped.
fn reset_on_drop(socket: &TcpStream) {
    // This fails only on a broken socket, which the server notices as well.
    drop(socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)));
}

impl From<TcpStream> for Channel {
    fn from(socket: TcpStream) -> Self {
        Self {
            end: FarEnd::Socket(PeerSocket::Plain(socket)),
            begun: Bytes::new(),
            _memory: None,
        }
    }
}

impl From<GatewayStream> for Channel {
    fn from(stream: GatewayStream) -> Self {
        Self {
            end: FarEnd::Gateway(stream),
            begun: Bytes::new(),
            _memory: None,
        }
    }
}

impl From<LinkTunnel> for Channel {
    fn from(tunnel: LinkTunnel) -> Self {
        Self {
            end: FarEnd::Linked(Box::new(tunnel)),
            begun: Bytes::new(),
            _memory: None,
        }
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.begun.is_empty() {
            let taken = this.begun.len().min(buffer.remaining());
            buffer.put_slice(&this.begun[..taken]);
            this.begun.advance(taken);
            return Poll::Ready(Ok(()));
        }
        match &mut this.end {
            FarEnd::Socket(socket) => Pin::new(socket).poll_read(cx, buffer),
            FarEnd::Gateway(stream) => Pin::new(stream).poll_read(cx, buffer),
            FarEnd::Linked(tunnel) => {
                let before = buffer.filled().len();
                let read = Pin::new(&mut tunnel.stream).poll_read(cx, buffer);
                let bytes = buffer.filled().len() - before;
                tunnel.reading.read(bytes);
                tunnel.note(IN, bytes);
                read
            }
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().end {
            FarEnd::Socket(socket) => Pin::new(socket).poll_write(cx, bytes),
            FarEnd::Gateway(stream) => Pin::new(stream).poll_write(cx, bytes),
            FarEnd::Linked(tunnel) => {
                ready!(tunnel.sending.poll(cx));
                let piece = &bytes[..bytes.len().min(tunnel.sending.piece_max())];
                let written = Pin::new(&mut tunnel.stream).poll_write(cx, piece);
                if let Poll::Ready(Ok(bytes)) = written {
                    tunnel.sending.sent(bytes);
                    tunnel.note(OUT, bytes);
                }
                written
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.end {
            FarEnd::Socket(socket) => Pin::new(socket).poll_write_vectored(cx, parts),
            FarEnd::Gateway(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            // See `is_write_vectored`.
            FarEnd::Linked(_) => {
                let first = parts.iter().find(|part| !part.is_empty());
                self.poll_write(cx, first.map_or(&[], |part| part))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.end {
            FarEnd::Socket(socket) => socket.is_write_vectored(),
            FarEnd::Gateway(stream) => stream.is_write_vectored(),
            FarEnd::Linked(_) => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().end {
            FarEnd::Socket(socket) => Pin::new(socket).poll_flush(cx),
            FarEnd::Gateway(stream) => Pin::new(stream).poll_flush(cx),
            FarEnd::Linked(tunnel) => Pin::new(&mut tunnel.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().end {
            FarEnd::Socket(socket) => Pin::new(socket).poll_shutdown(cx),
            FarEnd::Gateway(stream) => Pin::new(stream).poll_shutdown(cx),
            FarEnd::Linked(tunnel) => Pin::new(&mut tunnel.stream).poll_shutdown(cx),
        }
    }
}
