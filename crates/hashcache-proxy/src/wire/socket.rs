//! The client's socket: what every stream can do, and what only a TCP socket can.
//!
//! Called by `stream` and `serve`; a `Socket` is also what a tunnel gets when the framing ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(test)]
use tokio::io::DuplexStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection from a client.
#[derive(Debug)]
pub(crate) enum Socket {
    /// The real thing.
    Tcp(TcpStream),
    /// A pipe in memory, for tests.
    #[cfg(test)]
    Memory(DuplexStream),
}

impl Socket {
    /// Whether the drop of this socket is a RST, so that what was sent cannot pass for all there
    /// is.
    pub(super) fn reset_on_drop(&self, reset: bool) {
        match self {
            // Fails only on a socket that is broken already, which the client notices as well.
            Self::Tcp(socket) => {
                let linger = reset.then_some(Duration::ZERO);
                drop(socket2::SockRef::from(socket).set_linger(linger));
            }
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Small writes go out at once: a proxy's pauses must not add up with Nagle's.
    pub(super) fn prepare(&self) {
        match self {
            Self::Tcp(socket) => drop(socket.set_nodelay(true)),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Self {
        Self::Tcp(socket)
    }
}

#[cfg(test)]
impl From<DuplexStream> for Socket {
    fn from(pipe: DuplexStream) -> Self {
        Self::Memory(pipe)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, buf),
            #[cfg(test)]
            Self::Memory(pipe) => Pin::new(pipe).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, buf),
            #[cfg(test)]
            Self::Memory(pipe) => Pin::new(pipe).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            #[cfg(test)]
            Self::Memory(pipe) => Pin::new(pipe).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_write_vectored(),
            #[cfg(test)]
            Self::Memory(pipe) => pipe.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            #[cfg(test)]
            Self::Memory(pipe) => Pin::new(pipe).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            #[cfg(test)]
            Self::Memory(pipe) => Pin::new(pipe).poll_shutdown(cx),
        }
    }
}
