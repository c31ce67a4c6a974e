//! The client's socket: what every stream can do, and what only a TCP socket can.
//!
//! Called by `stream`, `http2` and `serve`; a `Socket` is also what a tunnel gets when the framing
//! ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hashcache::Reservation;
#[cfg(test)]
use tokio::io::DuplexStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A connection from a client.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Read from the channel already, by somebody who wanted to know what comes.
    begun: Bytes,
    /// What was set aside for that.
    begun_memory: Option<Reservation>,
    channel: SocketIo,
}

#[derive(Debug)]
enum SocketIo {
    /// The real thing.
    Tcp(TcpStream),
    /// The same through TLS, which may itself lie on a socket that was read from.
    Tls(Box<TlsStream<Socket>>),
    /// A pipe in memory, for tests.
    #[cfg(test)]
    Memory(DuplexStream),
}

impl Socket {
    /// The same socket with `bytes`, which were read from it, to be read again.
    pub(crate) fn begun_with(mut self, bytes: Bytes) -> Self {
        self.begun = match self.begun.is_empty() {
            true => bytes,
            // Somebody before us looked ahead too, and further.
            false => [bytes, self.begun].concat().into(),
        };
        self
    }

    /// The same socket, which holds `memory` until what was read before is read again.
    pub(crate) fn until_read(mut self, memory: Option<Reservation>) -> Self {
        self.begun_memory = memory;
        self
    }

    /// Whether the drop of this socket is a RST, so that what was sent cannot pass for all there
    /// is.
    pub(super) fn reset_on_drop(&self, reset: bool) {
        match &self.channel {
            // Fails only on a socket that is broken already, which the client notices as well.
            SocketIo::Tcp(socket) => {
                let linger = reset.then_some(Duration::ZERO);
                drop(socket2::SockRef::from(socket).set_linger(linger));
            }
            SocketIo::Tls(stream) => stream.get_ref().0.reset_on_drop(reset),
            #[cfg(test)]
            SocketIo::Memory(_) => {}
        }
    }

    /// Small writes go out at once: a proxy's pauses must not add up with Nagle's.
    pub(super) fn prepare(&self) {
        match &self.channel {
            SocketIo::Tcp(socket) => drop(socket.set_nodelay(true)),
            SocketIo::Tls(stream) => stream.get_ref().0.prepare(),
            #[cfg(test)]
            SocketIo::Memory(_) => {}
        }
    }
}

impl From<SocketIo> for Socket {
    fn from(channel: SocketIo) -> Self {
        Self {
            begun: Bytes::new(),
            begun_memory: None,
            channel,
        }
    }
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Self {
        SocketIo::Tcp(socket).into()
    }
}

impl From<TlsStream<Socket>> for Socket {
    fn from(stream: TlsStream<Socket>) -> Self {
        SocketIo::Tls(Box::new(stream)).into()
    }
}

#[cfg(test)]
impl From<DuplexStream> for Socket {
    fn from(pipe: DuplexStream) -> Self {
        SocketIo::Memory(pipe).into()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.begun.is_empty() {
            let fits = this.begun.len().min(buf.remaining());
            buf.put_slice(&this.begun[..fits]);
            this.begun.advance(fits);
            if this.begun.is_empty() {
                this.begun = Bytes::new();
                this.begun_memory = None;
            }
            return Poll::Ready(Ok(()));
        }
        match &mut this.channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_read(cx, buf),
            SocketIo::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_write(cx, buf),
            SocketIo::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            SocketIo::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.channel {
            SocketIo::Tcp(socket) => socket.is_write_vectored(),
            SocketIo::Tls(stream) => stream.is_write_vectored(),
            #[cfg(test)]
            SocketIo::Memory(pipe) => pipe.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            SocketIo::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            SocketIo::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn what_two_looked_at_is_read_in_the_order_it_came() {
        let (mut client, server) = duplex(64);
        client.write_all(b"and the rest").await.unwrap();
        drop(client);
        let socket = Socket::from(server).begun_with(Bytes::from_static(b"second, "));
        let mut socket = socket.begun_with(Bytes::from_static(b"first, "));
        let mut read = String::new();
        socket.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "first, second, and the rest");
    }
}
