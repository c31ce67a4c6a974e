//! Byte counters for a connection to an origin, and the socket below h2.
//!
//! Retries and timeouts depend on whether any byte has arrived, and on the time of the last write:
//! each connection has a [`Meter`] for that, which `http1` and `MeteredIo` update. `http2` wraps
//! the connections in a `MeteredIo`, which also reads and limits the frames that h2 does not
//! report.
//!
//! Invariant: bytes that an origin sent before it closed are not lost if a write fails: the write
//! error is not reported, and the read returns the bytes that wait in the socket, or the error.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use hashcache_base::limits::Limits;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::channel::Channel;
use super::field_blocks::{FieldBlocks, SmallFrames};
use super::flood::FloodGuard;
use super::signals::SignalReader;
use super::transport::Transport;

/// A connection's counters.
#[derive(Clone, Debug)]
pub(super) struct Meter(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    received: Cell<u64>,
    sent: Cell<u64>,
    last_sent: Cell<Instant>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self(Rc::new(Counts {
            received: Cell::new(0),
            sent: Cell::new(0),
            last_sent: Cell::new(Instant::now()),
        }))
    }

    /// Bytes received since the connection was opened.
    pub(super) fn received(&self) -> u64 {
        self.0.received.get()
    }

    /// Bytes that the socket has taken since the connection was opened.
    pub(super) fn sent(&self) -> u64 {
        self.0.sent.get()
    }

    /// Time when bytes were last written, or the connection was opened.
    pub(super) fn last_sent(&self) -> Instant {
        self.0.last_sent.get()
    }

    pub(super) fn note_received(&self, bytes: usize) {
        self.0.received.set(self.0.received.get() + bytes as u64);
    }

    pub(super) fn note_sent(&self, bytes: usize) {
        self.0.sent.set(self.0.sent.get() + bytes as u64);
        self.0.last_sent.set(Instant::now());
    }
}

/// The transport for an HTTP/2 connection.
pub(super) struct MeteredIo {
    stream: Transport<Channel>,
    meter: Meter,
    /// Limits frames that no request caused.
    flood: FloodGuard,
    /// Reads the origin's signals about the connection.
    signals: SignalReader,
    blocks: FieldBlocks,
    /// A write has failed; further writes are discarded.
    broken: bool,
}

impl MeteredIo {
    pub(super) fn new(
        stream: Transport<Channel>,
        meter: Meter,
        limits: &Limits,
        signals: SignalReader,
        small: SmallFrames,
    ) -> Self {
        Self {
            stream,
            meter,
            flood: FloodGuard::new(limits),
            signals,
            blocks: FieldBlocks::new(limits.head_bytes, small),
            broken: false,
        }
    }

    /// Checks that these bytes may be passed on.
    fn judge(&mut self, read: &[u8]) -> io::Result<()> {
        self.signals.read(read);
        if !self.flood.admits(read) {
            self.signals.note_error();
            let error = io::Error::new(io::ErrorKind::InvalidData, "too many frames");
            return Err(error);
        }
        Ok(())
    }

    /// Returns the result that h2 gets for a write of `length` bytes. For a failed write h2 would
    /// close the connection and drop the responses that wait in the socket. So the write is
    /// reported as successful, and the next read returns these responses or the true error.
    fn sent(&mut self, outcome: io::Result<usize>, length: usize) -> io::Result<usize> {
        match outcome {
            Ok(bytes) => {
                self.flood.sent(bytes);
                self.meter.note_sent(bytes);
                Ok(bytes)
            }
            Err(error) if hung_up(&error) => {
                self.broken = true;
                Ok(length)
            }
            Err(error) => Err(error),
        }
    }
}

fn hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl AsyncRead for MeteredIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.blocks.read(buffer, cx.waker()) {
                return Poll::Ready(Ok(()));
            }
            let room = buffer.remaining().min(READ_BYTES) as u64;
            let before = buffer.filled().len();
            // Unlike a buffer that is cut to this size, `Take` does not fill the buffer with zeros
            // first.
            let mut stream = (&mut self.stream).take(room);
            ready!(Pin::new(&mut stream).poll_read(cx, buffer))?;
            let read = &buffer.filled()[before..];
            if let Err(error) = self.judge(read) {
                buffer.set_filled(before);
                return Poll::Ready(Err(error));
            }
            let read = read.len();
            self.meter.note_received(read);
            // If h2 must not read any of these bytes yet (an incomplete field block), read on.
            if read == 0 || self.blocks.pass(buffer, before) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for MeteredIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.sent(outcome, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.broken {
            return Poll::Ready(Ok(length));
        }
        let outcome = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        Poll::Ready(self.sent(outcome, length))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Maximum bytes per read: h2 copies each frame out of the buffer.
const READ_BYTES: usize = 8 << 10;
