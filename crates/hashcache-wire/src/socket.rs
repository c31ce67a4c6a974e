//! The client's socket: operations for any stream, and some only for TCP sockets.
//!
//! `stream`, `http2` and `serve` call it; after an upgrade the tunnel gets the `Socket`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hashcache_base::share::ShareReservation;
#[cfg(test)]
use tokio::io::DuplexStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use hashcache_link::counters::LinkCounters;

/// A connection from a client.
#[derive(Debug)]
pub struct Socket {
    /// Bytes that were read for protocol detection and must be read again.
    begun: Bytes,
    /// Memory reserved for these bytes.
    begun_memory: Option<ShareReservation>,
    channel: SocketIo,
    /// Byte counters, if the connection is a link.
    counters: Option<Arc<LinkCounters>>,
}

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Unpin + std::fmt::Debug> ByteStream for T {}

#[derive(Debug)]
enum SocketIo {
    /// A TCP socket.
    Tcp(TcpStream),
    /// TLS, possibly on a socket with bytes already read.
    Tls(Box<TlsStream<Socket>>),
    /// A stream inside an HTTP/2 connection.
    Stream(Box<dyn ByteStream>),
    /// A pipe in memory, for tests.
    #[cfg(test)]
    Memory(DuplexStream),
}

impl Socket {
    /// Puts back `bytes`, so that the next reads return them again.
    pub fn begun_with(mut self, bytes: Bytes) -> Self {
        self.begun = if self.begun.is_empty() {
            bytes
        } else {
            // An earlier detection has already put back the bytes after these.
            [bytes, self.begun].concat().into()
        };
        self
    }

    /// Holds `memory` until the bytes that were put back are read again.
    pub fn until_read(mut self, memory: Option<ShareReservation>) -> Self {
        self.begun_memory = memory;
        self
    }

    /// A stream inside another connection.
    pub(super) fn of_stream(stream: impl ByteStream + 'static) -> Self {
        SocketIo::Stream(Box::new(stream)).into()
    }

    /// Counts the bytes from this call.
    pub(super) fn count_in(&mut self, counters: &Arc<LinkCounters>) {
        self.counters = Some(Arc::clone(counters));
    }

    /// Sets if dropping the socket sends a RST, so that a truncated response cannot be taken for a
    /// complete response.
    pub fn reset_on_drop(&self, reset: bool) {
        match &self.channel {
            // Fails only on a broken socket, which the client notices too.
            SocketIo::Tcp(socket) => {
                let linger = reset.then_some(Duration::ZERO);
                drop(socket2::SockRef::from(socket).set_linger(linger));
            }
            SocketIo::Tls(stream) => stream.get_ref().0.reset_on_drop(reset),
            SocketIo::Stream(_) => {}
            #[cfg(test)]
            SocketIo::Memory(_) => {}
        }
    }

    /// Sends small writes at once: the proxy's pauses must not add up with the delays of Nagle's
    /// algorithm.
    pub(super) fn prepare(&self) {
        match &self.channel {
            SocketIo::Tcp(socket) => drop(socket.set_nodelay(true)),
            SocketIo::Tls(stream) => stream.get_ref().0.prepare(),
            SocketIo::Stream(_) => {}
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
            counters: None,
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

impl Socket {
    /// Counts the written bytes, and the load on the link.
    fn note_written(&self, written: &Poll<io::Result<usize>>) {
        let Some(counters) = &self.counters else {
            return;
        };
        match written {
            Poll::Ready(Ok(written)) => {
                counters.sent(*written);
                counters.load.note_moved(*written);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => counters.load.note_waits(Instant::now().into_std()),
        }
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
        let before = buf.filled().len();
        let read = match &mut this.channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_read(cx, buf),
            SocketIo::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            SocketIo::Stream(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_read(cx, buf),
        };
        if let Some(counters) = &this.counters {
            counters.received(buf.filled().len() - before);
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_write(cx, buf),
            SocketIo::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            SocketIo::Stream(stream) => Pin::new(stream).poll_write(cx, buf),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_write(cx, buf),
        };
        this.note_written(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = match &mut this.channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            SocketIo::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            SocketIo::Stream(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_write_vectored(cx, bufs),
        };
        this.note_written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.channel {
            SocketIo::Tcp(socket) => socket.is_write_vectored(),
            SocketIo::Tls(stream) => stream.is_write_vectored(),
            SocketIo::Stream(stream) => stream.is_write_vectored(),
            #[cfg(test)]
            SocketIo::Memory(pipe) => pipe.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_flush(cx),
            SocketIo::Tls(stream) => Pin::new(stream).poll_flush(cx),
            SocketIo::Stream(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(test)]
            SocketIo::Memory(pipe) => Pin::new(pipe).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().channel {
            SocketIo::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            SocketIo::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            SocketIo::Stream(stream) => Pin::new(stream).poll_shutdown(cx),
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
