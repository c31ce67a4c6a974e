//! The socket below hyper on the upstream side: counts bytes and notes when they last moved.
//!
//! `pool` wraps each connection in a `Metered`; `Upstream` and `ResponseBody` read the `Meter`.
//! hyper tells its caller of a response only when the head is complete, so "has anything come at
//! all?", on which retries and time-outs hang, can be asked nowhere else.
//!
//! Invariant: an origin that answers early and closes is heard: a failed write is not reported, the
//! read side says what became of the connection. Cost: one atomic store per read or write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What one connection has carried so far. `Send` because a connection may be handed over to the
/// tunnel of an upgrade; it never leaves its core in fact.
#[derive(Clone, Debug)]
pub(super) struct Meter(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    opened: Instant,
    received: AtomicU64,
    last_sent_ms: AtomicU64,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self(Arc::new(Counts {
            opened: Instant::now(),
            received: AtomicU64::new(0),
            last_sent_ms: AtomicU64::new(0),
        }))
    }

    /// Bytes received since the connection was opened.
    pub(super) fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// When bytes were last sent; the opening, if none were.
    pub(super) fn last_sent(&self) -> Instant {
        self.0.opened + Duration::from_millis(self.0.last_sent_ms.load(Ordering::Relaxed))
    }

    fn note_received(&self, bytes: usize) {
        self.0
            .received
            .fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn note_sent(&self) {
        let elapsed_ms = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_sent_ms.store(elapsed_ms, Ordering::Relaxed);
    }
}

/// A socket with its meter.
#[derive(Debug)]
pub(super) struct Metered {
    stream: TcpStream,
    meter: Meter,
    /// A write failed; what is written from now on goes nowhere.
    broken: bool,
}

impl Metered {
    pub(super) fn new(stream: TcpStream, meter: Meter) -> Self {
        Self {
            stream,
            meter,
            broken: false,
        }
    }

    /// What hyper is told of a write of `length` bytes.
    ///
    /// An origin may answer 413 and close while we still send. hyper would take the failed write
    /// for the end of the exchange and drop the answer that waits in the socket; so the write is
    /// said to have gone well, and the read, which follows at once, gives the answer or the true
    /// error.
    fn sent(&mut self, outcome: io::Result<usize>, length: usize) -> io::Result<usize> {
        match outcome {
            Ok(bytes) => {
                self.meter.note_sent();
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

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Ok(())) = outcome {
            self.meter.note_received(buffer.filled().len() - before);
        }
        outcome
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
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
        let outcome = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
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
