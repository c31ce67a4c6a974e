//! The socket below hyper on the upstream side: counts bytes and notes when they last moved.
//!
//! `pool` wraps each connection in a `MeteredIo`; `Upstream` and `ResponseBody` read the `Meter`.
//! hyper tells its caller of a response only when the head is complete, so "has anything come at
//! all?", on which retries and time-outs hang, can be asked nowhere else.
//!
//! It also bounds what hyper buffers of what is read: hyper reads as much at once as it was given
//! before, and one answer's reader that stops leaves three such reads in memory.
//!
//! Invariants: an origin that answers early and closes is heard: a failed write is not reported,
//! the read side says what became of the connection. What reads may leave in memory is set aside
//! out of the budget first. Cost: one atomic store per read or write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_http::Scheme;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::flood::FloodGuard;
use super::transport::Transport;
use crate::limits::Limits;
use crate::share::{self, Share};

/// What one connection has carried so far. `Send` because a connection may be handed over to the
/// tunnel of an upgrade; it never leaves its core in fact.
#[derive(Clone, Debug)]
pub(super) struct Meter(Arc<MeterState>);

#[derive(Debug)]
struct MeterState {
    opened: Instant,
    received: AtomicU64,
    last_sent_ms: AtomicU64,
    /// Whether more is held than by a connection that has just been opened.
    wide: AtomicBool,
    /// Heads that were waited for, the one under way included.
    heads: AtomicU64,
    /// A head has not come whole.
    in_head: AtomicBool,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self(Arc::new(MeterState {
            opened: Instant::now(),
            received: AtomicU64::new(0),
            last_sent_ms: AtomicU64::new(0),
            wide: AtomicBool::new(false),
            heads: AtomicU64::new(0),
            in_head: AtomicBool::new(false),
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

    /// Whether the connection holds more memory than one that has just been opened.
    pub(super) fn is_wide(&self) -> bool {
        self.0.wide.load(Ordering::Relaxed)
    }

    /// From now on what comes is a head.
    pub(super) fn head_begins(&self) {
        self.0.heads.fetch_add(1, Ordering::Relaxed);
        self.0.in_head.store(true, Ordering::Relaxed);
    }

    /// The head has come whole, or never will.
    pub(super) fn head_ends(&self) {
        self.0.in_head.store(false, Ordering::Relaxed);
    }

    pub(super) fn note_received(&self, bytes: usize) {
        self.0
            .received
            .fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn note_sent(&self) {
        let elapsed_ms = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_sent_ms.store(elapsed_ms, Ordering::Relaxed);
    }
}

/// Memory for what is read and not passed on yet.
pub(super) struct ReadMemory {
    cache: Cache,
    held: Reservation,
    /// What the last head took beyond what every connection has for one.
    head: Option<Reservation>,
    /// Its size so far, and which one it is.
    head_bytes: u64,
    head_number: u64,
}

impl ReadMemory {
    /// For a connection that reads as little at once as can be, opened for `client`; `None` when
    /// there is none.
    pub(super) fn narrow(cache: &Cache, scheme: Scheme, client: Option<&Share>) -> Option<Self> {
        let below = match scheme {
            Scheme::Http => 0,
            Scheme::Https => TLS_BYTES,
        };
        let bytes = BESIDE_BYTES + below + buffered(READ_MIN);
        let held = share::reserve_for(client, cache, bytes)?;
        Some(Self {
            cache: cache.clone(),
            held,
            head: None,
            head_bytes: 0,
            head_number: 0,
        })
    }

    /// Sets aside what a head needs of which `read` bytes more have come: they are in hyper's
    /// buffer, which is up to twice as large, and stay there as long as its fields are used; and
    /// they are copied when the response is stored.
    fn head_grows(&mut self, number: u64, read: usize) -> bool {
        if number != self.head_number {
            (self.head, self.head_bytes, self.head_number) = (None, 0, number);
        }
        self.head_bytes += read as u64;
        // What comes with the last read is content: an answer of one read has nothing to wait for.
        let beyond = self.head_bytes.saturating_sub(READ_MIN as u64);
        let wanted = (HEAD_COPIES * beyond).next_multiple_of(HEAD_GRAIN);
        let held = self.head.as_ref().map_or(0, Reservation::bytes);
        let Some(more) = wanted.checked_sub(held).filter(|more| *more > 0) else {
            return true;
        };
        let cache = &self.cache;
        let more = cache.reserve_bulk(more).or_else(|| cache.reserve(more));
        match (&mut self.head, more) {
            (_, None) => return false,
            (Some(head), Some(more)) => head.join(more),
            (head, more) => *head = more,
        }
        true
    }

    /// Sets aside what reads of `to` bytes need beyond those of `from`, if memory is not short.
    fn widen(&mut self, from: usize, to: usize) -> bool {
        let more = self.cache.reserve_spare(buffered(to) - buffered(from));
        match more {
            Some(more) => {
                self.held.join(more);
                true
            }
            None => false,
        }
    }
}

/// What hyper keeps of reads of this size: one in its buffer, one under way to the reader, one that
/// the reader has not let go of.
fn buffered(read: usize) -> u64 {
    3 * read as u64
}

/// A socket with its meter.
pub(super) struct MeteredIo {
    stream: Transport,
    meter: Meter,
    /// Most that is read at once, bytes.
    read_max: usize,
    /// None where nobody counts.
    memory: Option<ReadMemory>,
    /// In HTTP/2.
    flood: Option<FloodGuard>,
    /// A write failed; what is written from now on goes nowhere.
    broken: bool,
}

impl MeteredIo {
    pub(super) fn new(stream: Transport, meter: Meter, memory: Option<ReadMemory>) -> Self {
        Self {
            stream,
            meter,
            read_max: READ_MIN,
            memory,
            flood: None,
            broken: false,
        }
    }

    /// The same for HTTP/2, where an origin can send much that nobody asked for.
    pub(super) fn watched(mut self, limits: &Limits) -> Self {
        self.flood = Some(FloodGuard::new(limits));
        self
    }

    /// Whether what was read may be passed on.
    fn judge(&mut self, read: &[u8]) -> io::Result<()> {
        if let Some(flood) = &mut self.flood
            && !flood.admits(read)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too many frames",
            ));
        }
        let counts = &self.meter.0;
        if let Some(memory) = &mut self.memory
            && counts.in_head.load(Ordering::Relaxed)
        {
            if !memory.head_grows(counts.heads.load(Ordering::Relaxed), read.len()) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            if memory.head.is_some() {
                counts.wide.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whoever fills its reads gets larger ones, which cost fewer calls for the same bytes.
    fn grow(&mut self, read: usize) {
        // What a head takes is set aside apart.
        let in_head = self.meter.0.in_head.load(Ordering::Relaxed);
        if read < self.read_max || self.read_max >= READ_MAX || in_head {
            return;
        }
        let wider = self.read_max * 2 + 1;
        if let Some(memory) = &mut self.memory
            && memory.widen(self.read_max, wider)
        {
            self.read_max = wider;
            self.meter.0.wide.store(true, Ordering::Relaxed);
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
                if let Some(flood) = &mut self.flood {
                    flood.sent(bytes);
                }
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

impl AsyncRead for MeteredIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(self.read_max);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        self.judge(part.filled())?;
        buffer.advance(read);
        self.meter.note_received(read);
        self.grow(read);
        Poll::Ready(Ok(()))
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

/// Reads of a new connection, bytes. One less than a power of two, as all that follow from it: of a
/// read that fills its buffer hyper concludes that it needs one twice as large.
const READ_MIN: usize = (8 << 10) - 1;
/// The largest reads.
const READ_MAX: usize = (64 << 10) - 1;
/// What a connection takes beside: hyper's state, a task, the head of the answer.
const BESIDE_BYTES: u64 = 8 << 10;
/// How many times its size a head takes: see `head_grows`, and what buffers that grow leave in the
/// heap.
const HEAD_COPIES: u64 = 6;
/// By how much memory for heads grows.
const HEAD_GRAIN: u64 = 16 << 10;
/// What TLS takes below it: its state, a record on its way in and one on its way out.
const TLS_BYTES: u64 = 40 << 10;

#[cfg(test)]
mod tests {
    use hashcache::Config;
    use hashcache::device::MemoryDevice;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn cache() -> Cache {
        let config = Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
        };
        Cache::open(config).unwrap()
    }

    /// The largest of the reads in which content comes that is there already.
    async fn largest_read(memory: Option<ReadMemory>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let mut metered = MeteredIo::new(Transport::Plain(stream.unwrap()), Meter::new(), memory);
        let mut origin = accepted.unwrap().0;
        let sending = tokio::spawn(async move { origin.write_all(&[1; 4 << 20]).await });
        let (mut all, mut largest) = (0, 0);
        let mut page = vec![0; 256 << 10];
        while all < 4 << 20 {
            let read = metered.read(&mut page).await.unwrap();
            assert!(read > 0);
            all += read;
            largest = largest.max(read);
        }
        sending.await.unwrap().unwrap();
        assert_eq!(metered.meter.is_wide(), largest > READ_MIN);
        largest
    }

    #[tokio::test]
    async fn reads_grow_only_with_memory_that_is_set_aside_and_comes_back() {
        let cache = cache();
        let before = cache.stats().memory_used_bytes;
        let roomy = largest_read(ReadMemory::narrow(&cache, Scheme::Http, None)).await;
        assert!(roomy > READ_MIN && roomy <= READ_MAX, "{roomy}");
        assert_eq!(cache.stats().memory_used_bytes, before);
        let limit = cache.stats().memory_limit_bytes;
        let _held = cache.reserve(limit / 8 * 5).unwrap();
        assert!(largest_read(ReadMemory::narrow(&cache, Scheme::Http, None)).await <= READ_MIN);
        assert!(largest_read(None).await <= READ_MIN);
    }

    #[test]
    fn without_memory_there_is_no_connection() {
        let cache = cache();
        let mut held = Vec::new();
        while let Some(reservation) = cache.reserve(16 << 10) {
            held.push(reservation);
        }
        assert!(ReadMemory::narrow(&cache, Scheme::Http, None).is_none());
        drop(held);
        assert!(ReadMemory::narrow(&cache, Scheme::Http, None).is_some());
    }

    /// What is set aside after so many bytes of a head have been read, and how the reads ended.
    async fn reading_a_head(
        cache: &Cache,
        bytes: usize,
    ) -> (u64, io::Result<()>, MeteredIo, Meter) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let before = cache.stats().memory_used_bytes;
        let (meter, memory) = (Meter::new(), ReadMemory::narrow(cache, Scheme::Http, None));
        let mut metered = MeteredIo::new(Transport::Plain(stream.unwrap()), meter.clone(), memory);
        let narrow = cache.stats().memory_used_bytes - before;
        meter.head_begins();
        let mut origin = accepted.unwrap().0;
        origin.write_all(&vec![b'a'; bytes]).await.unwrap();
        let (mut left, mut page) = (bytes, vec![0; 64 << 10]);
        let mut outcome = Ok(());
        while left > 0 && outcome.is_ok() {
            let read = metered.read(&mut page).await;
            outcome = read.map(|read| left -= read);
        }
        let held = cache.stats().memory_used_bytes - before - narrow;
        (held, outcome, metered, meter)
    }

    #[tokio::test]
    async fn a_large_head_is_on_the_books_until_the_next_request() {
        let cache = cache();
        let (held, outcome, mut metered, meter) = reading_a_head(&cache, 57 << 10).await;
        outcome.unwrap();
        assert!(held >= HEAD_COPIES * (49 << 10), "{held}");
        assert!(meter.is_wide(), "few such connections lie idle");
        meter.head_ends();
        let before = cache.stats().memory_used_bytes;
        meter.head_begins();
        metered.judge(b"HTTP/1.1 200 OK").unwrap();
        assert_eq!(before - cache.stats().memory_used_bytes, held);
        let (small, outcome, ..) = reading_a_head(&cache, 6000).await;
        outcome.unwrap();
        assert_eq!(small, 0, "every connection has that much");
    }

    #[tokio::test]
    async fn a_head_for_which_there_is_no_memory_ends_the_connection() {
        let cache = cache();
        let mut held = Vec::new();
        while let Some(reservation) = cache.reserve(16 << 10) {
            held.push(reservation);
        }
        // Enough for a connection that has read nothing.
        held.truncate(held.len() - 3);
        let (_, outcome, ..) = reading_a_head(&cache, 57 << 10).await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
