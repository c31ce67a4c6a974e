//! A tunnel inside an HTTP/2 connection (RFC 9113, section 8.5): a child's CONNECT on a link.
//!
//! `http2` starts it when the service has answered 200; the tunnel gets it as a `Socket`.
//!
//! Invariants: a child has at most [`TUNNELS`] tunnels, over all its connections. The connection
//! counts the stream as open until the tunnel is dropped, and received bytes as unread until the
//! tunnel has read them.
//!
//! [`TUNNELS`]: hashcache_link::TUNNELS

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hashcache_base::share::ShareReservation;
use hashcache_http::HASHCACHE_LINK;
use hashcache_link::counters::{IN, OUT, OpenTunnel};
use hashcache_link::pieces::Pieces;
use hashcache_link::turns::{ReadTurn, SendTurn};
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::flow::{ContentReader, OpenStream};

/// How the bytes in a tunnel are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelContent {
    /// The bytes pass unchanged.
    Opaque,
    /// `connect/chunked` in the proxy encodes and counts the bytes.
    Chunks,
}

impl TunnelContent {
    /// The kind of tunnel for a response with these fields.
    pub(super) fn from_fields(fields: &HeaderMap) -> Self {
        if fields.contains_key(HASHCACHE_LINK) {
            Self::Chunks
        } else {
            Self::Opaque
        }
    }
}

/// The bytes of a single stream.
pub(super) struct StreamTunnel {
    pub(super) io: Pieces<TokioIo<Upgraded>>,
    pub(super) reader: ContentReader,
    pub(super) content: TunnelContent,
    pub(super) _open: OpenStream,
    pub(super) counted: OpenTunnel,
    /// `None`: the child does not number its requests.
    pub(super) turns: Option<(ReadTurn, SendTurn)>,
    pub(super) _memory: Option<ShareReservation>,
}

impl StreamTunnel {
    fn note(&self, direction: usize, bytes: usize) {
        if self.content == TunnelContent::Opaque {
            self.counted.note_opaque(direction, bytes);
        }
    }
}

impl AsyncRead for StreamTunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        self.reader.read(bytes);
        if let Some((reading, _)) = &self.turns {
            reading.read(bytes);
        }
        self.note(IN, bytes);
        read
    }
}

impl AsyncWrite for StreamTunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut piece = bytes;
        if let Some((_, sending)) = &self.turns {
            ready!(sending.poll(cx));
            piece = &bytes[..bytes.len().min(sending.piece_max())];
        }
        let written = Pin::new(&mut self.io).poll_write(cx, piece);
        if let Poll::Ready(Ok(bytes)) = written {
            if let Some((_, sending)) = &self.turns {
                sending.sent(bytes);
            }
            self.note(OUT, bytes);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl fmt::Debug for StreamTunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTunnel").finish_non_exhaustive()
    }
}
