//! The byte stream to a server: a socket, a tunnel through a peer, or a gateway.
//!
//! Made by `Upstream::connect`; `transport` puts TLS on it, `connect` makes tunnels of it.
//!
//! Invariant: bytes that the server sent together with the peer's answer to CONNECT are read first.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use hashcache::Reservation;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::transport::Transport;
use crate::gateway::{GatewayFailure, GatewayStream};

/// The byte stream to a server.
#[derive(Debug)]
pub(crate) struct Channel {
    link: Link,
    /// Bytes of the server that were read with the peer's answer.
    begun: Bytes,
    /// Memory for TLS to the peer.
    _memory: Option<Reservation>,
}

#[derive(Debug)]
enum Link {
    Socket(PeerSocket),
    Gateway(GatewayStream),
}

/// The connection to the server itself, or to a peer.
pub(super) type PeerSocket = Transport<TcpStream>;

impl Channel {
    /// A tunnel through a peer, whose first bytes were read already.
    pub(super) fn tunnel(socket: PeerSocket, begun: Bytes) -> Self {
        Self {
            link: Link::Socket(socket),
            begun,
            _memory: None,
        }
    }

    /// Why the session of a gateway ended, once it has; `None`: this is no gateway.
    pub(super) fn gateway_failure(&self) -> Option<GatewayFailure> {
        match &self.link {
            Link::Socket(_) => None,
            Link::Gateway(stream) => Some(stream.failure()),
        }
    }

    /// The same; `memory` is given back when the channel is closed.
    pub(super) fn holding(self, memory: Option<Reservation>) -> Self {
        Self {
            _memory: memory,
            ..self
        }
    }

    /// The address of the server; `None` if a peer is between.
    pub(super) fn server_address(&self) -> Option<SocketAddr> {
        match &self.link {
            Link::Socket(PeerSocket::Plain(socket)) => socket.peer_addr().ok(),
            Link::Socket(PeerSocket::Tls(_)) | Link::Gateway(_) => None,
        }
    }
}

impl From<TcpStream> for Channel {
    fn from(socket: TcpStream) -> Self {
        Self {
            link: Link::Socket(PeerSocket::Plain(socket)),
            begun: Bytes::new(),
            _memory: None,
        }
    }
}

impl From<GatewayStream> for Channel {
    fn from(stream: GatewayStream) -> Self {
        Self {
            link: Link::Gateway(stream),
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
        match &mut this.link {
            Link::Socket(socket) => Pin::new(socket).poll_read(cx, buffer),
            Link::Gateway(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            Link::Socket(socket) => Pin::new(socket).poll_write(cx, bytes),
            Link::Gateway(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().link {
            Link::Socket(socket) => Pin::new(socket).poll_write_vectored(cx, parts),
            Link::Gateway(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.link {
            Link::Socket(socket) => socket.is_write_vectored(),
            Link::Gateway(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            Link::Socket(socket) => Pin::new(socket).poll_flush(cx),
            Link::Gateway(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().link {
            Link::Socket(socket) => Pin::new(socket).poll_shutdown(cx),
            Link::Gateway(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
