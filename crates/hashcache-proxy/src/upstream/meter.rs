//! The socket below hyper on the upstream side: counts bytes and notes when they last moved.
//!
//! `pool` wraps each connection in a `MeteredIo`; `Upstream` and `ResponseBody` read the `Meter`.
//! hyper reports a response only when its head is complete, so only this layer knows whether any
//! byte has arrived, which retries and timeouts depend on.
//!
//! It also limits hyper's buffers: hyper reads as much at once as it got before, and a reader that
//! stops leaves three such reads in memory. And it changes what hyper would not write or read: the
//! target of a request that `http::Uri` cannot hold, and response heads (`response_head`).
//!
//! Invariants: the response of an origin that answers early and closes is not lost: a failed write
//! is not reported, and the read returns the response or the error. Memory for reads is reserved in
//! the budget first.
//! Cost: one atomic store per read or write.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hashcache::{Cache, Reservation};
use hashcache_http::Scheme;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::channel::Channel;
use super::field_blocks::{FieldBlocks, SmallFrames};
use super::flood::FloodGuard;
use super::response_head::HeadRepair;
use super::signals::SignalReader;
use super::transport::Transport;
use crate::gateway::GATEWAY_BYTES;
use crate::limits::Limits;
use crate::share::{self, Share};

/// Counters of one connection. `Send` because a connection may be handed to the tunnel of an
/// upgrade; in fact it never leaves its core.
#[derive(Clone, Debug)]
pub(super) struct Meter(Arc<MeterState>);

#[derive(Debug)]
struct MeterState {
    opened: Instant,
    received: AtomicU64,
    sent: AtomicU64,
    last_sent_ms: AtomicU64,
    /// The next write is the first of a request that must not be lost.
    tests_end: AtomicBool,
    /// How much more memory the connection holds than a new one, bytes.
    extra_bytes: AtomicU64,
    /// Heads that were awaited, including the current one.
    heads: AtomicU64,
    /// A head is incomplete.
    in_head: AtomicBool,
    /// Whether there is a `target`.
    has_target: AtomicBool,
    /// The target to write in the next request line, instead of `/`.
    target: Mutex<Bytes>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self(Arc::new(MeterState {
            opened: Instant::now(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last_sent_ms: AtomicU64::new(0),
            tests_end: AtomicBool::new(false),
            extra_bytes: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            in_head: AtomicBool::new(false),
            has_target: AtomicBool::new(false),
            target: Mutex::default(),
        }))
    }

    /// The next request, whose target hyper writes as `/`, has this target; `None`: hyper's own.
    pub(super) fn set_target(&self, target: Option<Bytes>) {
        self.0.has_target.store(target.is_some(), Ordering::Relaxed);
        if let Some(target) = target {
            *self.0.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
        }
    }

    /// The beginning of a request up to the end of its target, and the number of bytes of
    /// `written` that it replaces; `None` if hyper's own bytes are right.
    ///
    /// # Errors
    /// `written` is not the beginning of the request that was expected.
    fn take_target(&self, written: &[u8]) -> io::Result<Option<(Bytes, usize)>> {
        if !self.0.has_target.swap(false, Ordering::Relaxed) {
            return Ok(None);
        }
        let mut target = self.0.target.lock().unwrap_or_else(PoisonError::into_inner);
        let target = std::mem::take(&mut *target);
        let method = written.iter().position(|&byte| byte == b' ');
        let method = method.map(|end| written.split_at(end));
        match method {
            Some((method, rest)) if rest.starts_with(b" / HTTP/") => {
                let line = [method, b" ", &target].concat();
                Ok(Some((line.into(), method.len() + 2)))
            }
            _ => Err(io::Error::other("another request line was expected")),
        }
    }

    /// Bytes received since the connection was opened.
    pub(super) fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Bytes that the socket has taken since the connection was opened.
    pub(super) fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Lets the next write fail if the other side has closed the connection by then. hyper notices
    /// the end of an idle connection only with the next event of its task.
    pub(super) fn test_end_before_write(&self) {
        self.0.tests_end.store(true, Ordering::Relaxed);
    }

    /// The last time at which bytes were sent, or the connection was opened.
    pub(super) fn last_sent(&self) -> Instant {
        self.0.opened + Duration::from_millis(self.0.last_sent_ms.load(Ordering::Relaxed))
    }

    /// How much more memory the connection holds than a new one, bytes.
    pub(super) fn extra_bytes(&self) -> u64 {
        self.0.extra_bytes.load(Ordering::Relaxed)
    }

    /// The bytes from now on belong to a head.
    pub(super) fn head_begins(&self) {
        self.0.heads.fetch_add(1, Ordering::Relaxed);
        self.0.in_head.store(true, Ordering::Relaxed);
    }

    /// The head is complete, or will never be.
    pub(super) fn head_ends(&self) {
        self.0.in_head.store(false, Ordering::Relaxed);
    }

    pub(super) fn note_received(&self, bytes: usize) {
        self.0
            .received
            .fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn note_sent(&self, bytes: usize) {
        self.0.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        let elapsed_ms = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_sent_ms.store(elapsed_ms, Ordering::Relaxed);
    }
}

/// Memory for bytes that were read and not passed on yet.
pub(super) struct ReadMemory {
    cache: Cache,
    held: Reservation,
    /// What of that is for larger reads than those of a new connection.
    widened: u64,
    /// What the last head took beyond the amount that every connection has for heads.
    head: Option<Reservation>,
    /// Its size so far, and its number.
    head_bytes: u64,
    head_number: u64,
}

impl ReadMemory {
    /// For a connection with the smallest reads, opened for `client`; `None` if there is no memory.
    pub(super) fn narrow(cache: &Cache, scheme: Scheme, client: Option<&Share>) -> Option<Self> {
        let below = match scheme {
            Scheme::Http => 0,
            Scheme::Https => TLS_BYTES,
            Scheme::Ftp | Scheme::Gopher => GATEWAY_BYTES,
        };
        let bytes = BESIDE_BYTES + below + buffered(READ_MIN);
        let held = share::reserve_for(client, cache, bytes)?;
        Some(Self {
            cache: cache.clone(),
            held,
            widened: 0,
            head: None,
            head_bytes: 0,
            head_number: 0,
        })
    }

    /// What is held beyond the memory of a new connection, bytes.
    fn extra_bytes(&self) -> u64 {
        let head = self.head.as_ref().map_or(0, Reservation::bytes);
        self.widened + head
    }

    /// Reserves memory for a head of which `bytes` more have arrived. They are in hyper's buffer,
    /// which may be twice as large, for as long as its fields are used, and they are copied when
    /// the response is stored.
    fn head_grows(&mut self, number: u64, bytes: usize) -> bool {
        if number != self.head_number {
            (self.head, self.head_bytes, self.head_number) = (None, 0, number);
        }
        self.head_bytes += bytes as u64;
        // Every connection has memory for this much.
        let beyond = self.head_bytes.saturating_sub(READ_MIN as u64);
        let wanted = (RECEIVED_COPIES * beyond).next_multiple_of(HEAD_GRAIN);
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

    /// Reserves the additional memory for reads of `to` bytes instead of `from`, if memory is not
    /// short.
    fn widen(&mut self, from: usize, to: usize) -> bool {
        let more = self.cache.reserve_spare(buffered(to) - buffered(from));
        match more {
            Some(more) => {
                self.widened += more.bytes();
                self.held.join(more);
                true
            }
            None => false,
        }
    }
}

/// Buffers that hyper keeps of reads of this size: one for reading, one on the way to the reader,
/// and one that the reader still holds.
pub(super) const fn buffered(read: usize) -> u64 {
    3 * read as u64
}

/// A socket with its meter.
pub(super) struct MeteredIo {
    stream: Transport<Channel>,
    meter: Meter,
    /// Maximum size of a read, bytes.
    read_max: usize,
    /// `None` without accounting.
    memory: Option<ReadMemory>,
    /// HTTP/2 only.
    flood: Option<FloodGuard>,
    /// HTTP/2 only.
    signals: Option<SignalReader>,
    /// HTTP/2 only.
    blocks: Option<FieldBlocks>,
    /// A write has failed; further writes are discarded.
    broken: bool,
    /// The beginning of a request line that hyper believes to be written.
    lead: Bytes,
    repair: HeadRepair,
    /// The number of the head that it repairs.
    repaired: u64,
}

impl MeteredIo {
    pub(super) fn new(
        stream: Transport<Channel>,
        meter: Meter,
        memory: Option<ReadMemory>,
    ) -> Self {
        Self {
            stream,
            meter,
            read_max: READ_MIN,
            memory,
            flood: None,
            signals: None,
            blocks: None,
            broken: false,
            lead: Bytes::new(),
            repair: HeadRepair::default(),
            repaired: 0,
        }
    }

    /// The same for HTTP/2, with limits on frames that no request caused, a reader of what the
    /// origin says about the connection, and the counts of content that is not read.
    pub(super) fn watched(
        mut self,
        limits: &Limits,
        signals: SignalReader,
        small: SmallFrames,
    ) -> Self {
        self.flood = Some(FloodGuard::new(limits));
        self.signals = Some(signals);
        self.blocks = Some(FieldBlocks::new(limits.head_bytes, small));
        self
    }

    /// Closes the connection so that the server does not take the bytes so far for all.
    pub(super) fn reset(self) {
        self.stream.into_socket().reset();
    }

    /// Fails if the first bytes of a request would be lost, as its meter was asked to find out.
    fn test_end(&self) -> io::Result<()> {
        let tests_end = &self.meter.0.tests_end;
        if tests_end.load(Ordering::Relaxed)
            && tests_end.swap(false, Ordering::Relaxed)
            && self.stream.socket().has_ended()
        {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Whether these bytes may be passed on, of which the first `head_bytes` belong to a head.
    fn judge(&mut self, read: &[u8], head_bytes: usize) -> io::Result<()> {
        if let Some(signals) = &mut self.signals {
            signals.read(read);
        }
        if let Some(flood) = &mut self.flood
            && !flood.admits(read)
        {
            if let Some(signals) = &self.signals {
                signals.note_error();
            }
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too many frames",
            ));
        }
        let counts = &self.meter.0;
        if let Some(memory) = &mut self.memory
            && head_bytes > 0
        {
            if !memory.head_grows(counts.heads.load(Ordering::Relaxed), head_bytes) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            counts
                .extra_bytes
                .store(memory.extra_bytes(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Repairs the head that these bytes may belong to. Returns how many of them belong to it; in
    /// HTTP/2, where any stream may have a head, all of them.
    fn repair(&mut self, read: &mut [u8]) -> usize {
        let counts = &self.meter.0;
        if !counts.in_head.load(Ordering::Relaxed) {
            return 0;
        }
        if self.flood.is_some() {
            return read.len();
        }
        let number = counts.heads.load(Ordering::Relaxed);
        if number != self.repaired {
            (self.repair, self.repaired) = (HeadRepair::default(), number);
        }
        self.repair.repair(read)
    }

    /// Writes the beginning of a request line that hyper believes to be written. Ready when it may
    /// write more.
    fn poll_lead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.lead.is_empty() && !self.broken {
            let written = Pin::new(&mut self.stream).poll_write(cx, &self.lead);
            let length = self.lead.len();
            match self.sent(std::task::ready!(written), length)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.lead.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// A connection that fills its reads with content gets larger ones, which need fewer calls for
    /// the same bytes. A head that fills them is rare, and has memory of its own.
    fn grow(&mut self, read: usize, head_bytes: usize) {
        if read < self.read_max || self.read_max >= READ_MAX || read == head_bytes {
            return;
        }
        let wider = self.read_max * 2 + 1;
        if let Some(memory) = &mut self.memory
            && memory.widen(self.read_max, wider)
        {
            self.read_max = wider;
            let extra = memory.extra_bytes();
            self.meter.0.extra_bytes.store(extra, Ordering::Relaxed);
        }
    }

    /// The result that hyper gets for a write of `length` bytes.
    ///
    /// An origin may answer 413 and close while we are still sending. hyper would take the failed
    /// write for the end of the exchange and drop the response that waits in the socket. So the
    /// write is reported as successful, and the read that follows at once returns the response or
    /// the true error.
    fn sent(&mut self, outcome: io::Result<usize>, length: usize) -> io::Result<usize> {
        match outcome {
            Ok(bytes) => {
                if let Some(flood) = &mut self.flood {
                    flood.sent(bytes);
                }
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
            if let Some(blocks) = &mut self.blocks
                && blocks.read(buffer, cx.waker())
            {
                return Poll::Ready(Ok(()));
            }
            let room = buffer.remaining().min(self.read_max) as u64;
            let before = buffer.filled().len();
            // Unlike a buffer that is cut to this room, `Take` does not fill it with zeros first.
            let mut stream = (&mut self.stream).take(room);
            std::task::ready!(Pin::new(&mut stream).poll_read(cx, buffer))?;
            let head_bytes = self.repair(&mut buffer.filled_mut()[before..]);
            let read = &buffer.filled()[before..];
            if let Err(error) = self.judge(read, head_bytes) {
                buffer.set_filled(before);
                return Poll::Ready(Err(error));
            }
            let read = read.len();
            self.meter.note_received(read);
            self.grow(read, head_bytes);
            // A part of a field block is read again when the rest has arrived.
            if let Some(blocks) = &mut self.blocks
                && read > 0
                && !blocks.pass(buffer, before)
            {
                continue;
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for MeteredIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_lead(cx))?;
        if let Some((lead, length)) = self.meter.take_target(bytes)? {
            self.lead = lead;
            return Poll::Ready(Ok(length));
        }
        if self.broken {
            return Poll::Ready(Ok(bytes.len()));
        }
        self.test_end()?;
        let outcome = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.sent(outcome, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_lead(cx))?;
        let first = parts.iter().find(|part| !part.is_empty());
        if let Some((lead, length)) = self.meter.take_target(first.map_or(&[], |part| part))? {
            self.lead = lead;
            return Poll::Ready(Ok(length));
        }
        let length = parts.iter().map(|part| part.len()).sum();
        if self.broken {
            return Poll::Ready(Ok(length));
        }
        self.test_end()?;
        let outcome = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        Poll::Ready(self.sent(outcome, length))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_lead(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Size of the reads of a new connection, bytes. One less than a power of two, like all sizes
/// derived from it: when a read fills its buffer, hyper doubles the buffer.
const READ_MIN: usize = (8 << 10) - 1;
/// Maximum size of a read.
pub(super) const READ_MAX: usize = (64 << 10) - 1;
/// Other memory of a connection: hyper's state, a task, the head of the response.
const BESIDE_BYTES: u64 = 8 << 10;
/// Memory of a head from upstream, as a multiple of its size: hyper's buffer, the metadata and the
/// buffer of the response each may be twice as large, and growing buffers leave holes in the heap.
/// With 2,500 clients and `--memory 64MiB`, resident memory peaked at 93 MiB with 8 copies and at
/// 80 with 10.
const RECEIVED_COPIES: u64 = 10;
/// The step in which memory for heads grows.
const HEAD_GRAIN: u64 = 16 << 10;
/// Memory of TLS below it: its state, one received record and one to send.
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

    /// The size of the largest read when content is already waiting.
    async fn largest_read(memory: Option<ReadMemory>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let mut metered = MeteredIo::new(
            Transport::Plain(stream.unwrap().into()),
            Meter::new(),
            memory,
        );
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
        assert_eq!(metered.meter.extra_bytes() > 0, largest > READ_MIN);
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

    /// The reservation after this many bytes of a head were read, and the result of the reads.
    async fn reading_a_head(
        cache: &Cache,
        bytes: usize,
    ) -> (u64, io::Result<()>, MeteredIo, Meter) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        let before = cache.stats().memory_used_bytes;
        let (meter, memory) = (Meter::new(), ReadMemory::narrow(cache, Scheme::Http, None));
        let mut metered = MeteredIo::new(
            Transport::Plain(stream.unwrap().into()),
            meter.clone(),
            memory,
        );
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
        assert!(held >= RECEIVED_COPIES * (49 << 10), "{held}");
        assert!(meter.extra_bytes() > 0, "few such connections lie idle");
        meter.head_ends();
        let before = cache.stats().memory_used_bytes;
        meter.head_begins();
        metered.judge(b"HTTP/1.1 200 OK", 15).unwrap();
        assert_eq!(before - cache.stats().memory_used_bytes, held);
        let (small, outcome, ..) = reading_a_head(&cache, 6000).await;
        outcome.unwrap();
        assert_eq!(small, 0, "every connection has that much");
    }

    #[tokio::test]
    async fn content_behind_a_head_makes_reads_grow_and_takes_no_memory_for_heads() {
        let cache = cache();
        let (_, _, mut metered, _) = reading_a_head(&cache, 0).await;
        let mut read = vec![b'x'; READ_MIN];
        read[..19].copy_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        let head_bytes = metered.repair(&mut read);
        assert_eq!(head_bytes, 19);
        metered.judge(&read, head_bytes).unwrap();
        metered.grow(read.len(), head_bytes);
        assert!(metered.read_max > READ_MIN);
        let extra = metered.meter.extra_bytes();
        assert_eq!(extra, buffered(metered.read_max) - buffered(READ_MIN));
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
