//! The bytes of a connection in HTTP/2 on their way to and from hyper, and what is known by them.
//!
//! Made by `http2`, which acts on what is found here; hyper reads and writes through [`Framed`].
//!
//! Invariant: a frame that costs its sender next to nothing (PING, SETTINGS, PRIORITY, RST_STREAM,
//! WINDOW_UPDATE, CONTINUATION, content without content) is paid out of [`Budget`], which grows
//! with time and with what was sent to the client. Cost: nine bytes looked at a frame, one copy of
//! what is read.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::ending::Ending;
use super::super::socket::Socket;
use super::super::stream::ClientSide;
use super::frames::{Budget, Frames, Seen};
use crate::limits::Limits;
use crate::share::{Allowance, ShareReservation, UnfinishedHead};

/// What is known about one connection.
pub(super) struct Flow {
    limits: Rc<Limits>,
    allowance: Option<Allowance>,
    waker: RefCell<Option<Waker>>,
    /// Streams whose answer is not out.
    open: Cell<usize>,
    tables: H2Tables,
    /// The stream that hyper is about to run is refused.
    refused: Cell<bool>,
    rests_since: Cell<Instant>,
    /// The preface or a head has begun to come and is not complete.
    head_since: Cell<Option<Instant>>,
    /// Since when the socket takes nothing.
    writes_since: Cell<Option<Instant>>,
    failed: Cell<Option<Ending>>,
    eof: Cell<bool>,
    frames: RefCell<Frames>,
    budget: RefCell<Budget>,
    unread: RefCell<UnreadContent>,
    progress: RefCell<Option<Rc<StreamProgress>>>,
    /// While the preface or a head is not complete.
    unfinished: RefCell<Option<UnfinishedHead>>,
}

/// What the task of a stream and the body it sends tell each other.
#[derive(Debug, Default)]
pub(super) struct StreamProgress {
    /// hyper has a piece of the answer and has not come for the next.
    pub(super) waits_since: Cell<Option<Instant>>,
    /// The stream's entry in the tables of h2.
    pub(super) entry: Arc<StreamEntry>,
}

/// The tables in which h2 keeps streams, received heads and frames to be sent. They grow to the
/// largest number of streams that were there at once, and shrink only with the connection.
#[derive(Default)]
struct H2Tables {
    /// Heads of requests that have come since h2 and hyper were last done with all of them.
    coming: Cell<usize>,
    /// Streams that hyper has taken over, with those of `ended`.
    used: Cell<usize>,
    /// Streams whose task and content are gone. Their last frames may wait for the socket.
    ended: Arc<AtomicUsize>,
    /// Entries beyond [`ENTRIES_FREE`] for which memory was set aside.
    paid: Cell<usize>,
    memory: RefCell<Option<ShareReservation>>,
}

/// A stream that h2 has an entry for: held by its task and by its content that h2 has not sent.
#[derive(Debug, Default)]
pub(super) struct StreamEntry(Arc<AtomicUsize>);

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Content of requests that has come and was not read.
#[derive(Default)]
struct UnreadContent {
    /// Requests whose content is wanted.
    readers: usize,
    bytes: u64,
    memory: Option<ShareReservation>,
    reserved: u64,
}

impl Flow {
    pub(super) fn new(limits: Rc<Limits>, allowance: Option<Allowance>) -> Rc<Self> {
        let now = Instant::now();
        let most = limits.frames as u64;
        let unfinished = allowance.as_ref().map(|it| it.begin_head(HEAD_BESIDE));
        Rc::new(Self {
            limits,
            allowance,
            waker: RefCell::default(),
            open: Cell::new(0),
            tables: H2Tables::default(),
            refused: Cell::new(false),
            rests_since: Cell::new(now),
            head_since: Cell::new(Some(now)),
            writes_since: Cell::new(None),
            failed: Cell::new(None),
            eof: Cell::new(false),
            frames: RefCell::new(Frames::of_client()),
            budget: RefCell::new(Budget::new(most, now)),
            unread: RefCell::default(),
            progress: RefCell::default(),
            unfinished: RefCell::new(unfinished),
        })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn allowance(&self) -> Option<Allowance> {
        self.allowance.clone()
    }

    /// Memory for a stream that holds `bytes`; `None` when there is none. A client that asks again
    /// and again pays for it as for other frames that cost nothing.
    pub(super) fn pay(&self, bytes: u64) -> Option<Option<ShareReservation>> {
        let Some(allowance) = &self.allowance else {
            return Some(None);
        };
        let room = allowance.share().has_room_beside_content(bytes);
        let paid = room.then_some(()).and_then(|()| {
            allowance
                .reserve_bulk(bytes)
                .or_else(|| allowance.reserve(bytes))
        });
        self.refused.set(paid.is_none());
        if paid.is_none() && !self.budget.borrow_mut().pay(1, Instant::now()) {
            self.failed.set(Some(Ending::Flood));
            self.wake();
        }
        paid.map(Some)
    }

    /// Whether the last stream that asked for memory got none; told once.
    pub(super) fn take_refused(&self) -> bool {
        self.refused.take()
    }

    /// hyper has taken over a stream, which has an entry in the tables of h2 as long as what this
    /// returns.
    pub(super) fn enter(&self) -> Arc<StreamEntry> {
        let tables = &self.tables;
        tables.coming.set(tables.coming.get().saturating_sub(1));
        tables.used.set(tables.used.get() + 1);
        Arc::new(StreamEntry(Arc::clone(&tables.ended)))
    }

    /// hyper has taken over all streams that it could; h2 has refused the others.
    pub(super) fn all_entered(&self) {
        self.tables.coming.set(0);
    }

    /// Sets memory aside for tables of h2 that have room for `heads` more; false if there is none.
    fn pay_for_tables(&self, heads: usize) -> bool {
        let tables = &self.tables;
        tables.coming.set(tables.coming.get() + heads);
        // Beyond that h2 refuses them itself.
        let most = self.limits.streams.saturating_add(RESETS_KEPT);
        let entries = (tables.used.get() + tables.coming.get()).min(most);
        let paid = tables.paid.get();
        if entries <= ENTRIES_FREE + paid {
            return true;
        }
        // The tables double.
        let entries = entries.next_power_of_two() - ENTRIES_FREE;
        let memory = self.set_aside((entries - paid) as u64 * ENTRY_BYTES);
        let Some(memory) = memory else {
            return false;
        };
        join(&mut tables.memory.borrow_mut(), memory);
        tables.paid.set(entries);
        true
    }

    /// All that h2 had to send is with the socket.
    fn flushed(&self) {
        let ended = self.tables.ended.swap(0, Ordering::Relaxed);
        self.tables.used.set(self.tables.used.get() - ended);
    }

    /// Memory in the client's share; nothing where memory is not counted.
    fn set_aside(&self, bytes: u64) -> Option<Option<ShareReservation>> {
        let Some(allowance) = &self.allowance else {
            return Some(None);
        };
        allowance
            .reserve_bulk(bytes)
            .or_else(|| allowance.reserve(bytes))
            .map(Some)
    }

    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut slot = self.waker.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Counts a stream as open until the guard goes.
    pub(super) fn open(self: &Rc<Self>) -> OpenStream {
        self.open.set(self.open.get() + 1);
        OpenStream(Rc::clone(self))
    }

    pub(super) fn is_resting(&self) -> bool {
        self.open.get() == 0
    }

    pub(super) fn rests_since(&self) -> Instant {
        self.rests_since.get()
    }

    /// Why the connection must end, if it must.
    pub(super) fn failed(&self) -> Option<Ending> {
        self.failed.get()
    }

    pub(super) fn peer(&self) -> ClientSide {
        match self.eof.get() {
            true => ClientSide::Finished,
            false => ClientSide::MaySend,
        }
    }

    /// When the connection ends unless something happens before, and why.
    pub(super) fn deadline(&self) -> Option<(Instant, Ending)> {
        let limits = &self.limits;
        let write = self.writes_since.get();
        let write = write.map(|since| (since + limits.progress_time, Ending::SlowWrite));
        let head = self.head_since.get();
        let head = head.map(|since| (since + limits.head_time, Ending::SlowHead));
        let idle = self
            .is_resting()
            .then(|| (self.rests_since.get() + limits.idle_time, Ending::Idle));
        [write, head, idle]
            .into_iter()
            .flatten()
            .min_by_key(|(until, _)| *until)
    }

    /// Polls a stream with `progress` to be found by [`Flow::progress`].
    pub(super) fn with_progress<T>(
        &self,
        progress: &Rc<StreamProgress>,
        poll: impl FnOnce() -> T,
    ) -> T {
        *self.progress.borrow_mut() = Some(Rc::clone(progress));
        let polled = poll();
        *self.progress.borrow_mut() = None;
        polled
    }

    /// That of the stream being polled.
    pub(super) fn progress(&self) -> Rc<StreamProgress> {
        self.progress.borrow().clone().unwrap_or_default()
    }

    /// The content of a request is wanted, until the guard goes.
    pub(super) fn want_content(self: &Rc<Self>) -> ContentReader {
        self.unread.borrow_mut().readers += 1;
        ContentReader(Rc::clone(self))
    }

    fn came(&self, bytes: &[u8]) {
        let now = Instant::now();
        let mut frames = self.frames.borrow_mut();
        let mut seen = Seen::default();
        frames.advance(bytes, |frame| seen.add(frame));
        if frames.is_in_head() {
            self.head_since.set(self.head_since.get().or(Some(now)));
            let mut unfinished = self.unfinished.borrow_mut();
            if let (None, Some(allowance)) = (&*unfinished, &self.allowance) {
                *unfinished = Some(allowance.begin_head(HEAD_BESIDE));
            }
        } else {
            self.head_since.set(None);
            *self.unfinished.borrow_mut() = None;
        }
        if !self.budget.borrow_mut().pay(seen.cheap, now) {
            self.failed.set(Some(Ending::Flood));
        }
        let heads = usize::try_from(seen.heads).unwrap_or(usize::MAX);
        if heads > 0 && !self.pay_for_tables(heads) || seen.content > 0 && !self.hold(seen.content)
        {
            self.failed.set(Some(Ending::NoMemory));
        }
    }

    /// Sets memory aside for content that has come.
    fn hold(&self, bytes: u64) -> bool {
        let mut unread = self.unread.borrow_mut();
        if unread.readers == 0 {
            // Nobody reads it, so hyper keeps none of it.
            unread.bytes = 0;
        }
        unread.bytes += bytes;
        if unread.bytes <= unread.reserved {
            return true;
        }
        let more = (unread.bytes - unread.reserved).next_multiple_of(GRAIN);
        let Some(memory) = self.set_aside(more) else {
            return false;
        };
        unread.reserved += more;
        join(&mut unread.memory, memory);
        true
    }
}

/// Adds `more` to what is held.
fn join(held: &mut Option<ShareReservation>, more: Option<ShareReservation>) {
    match (held, more) {
        (Some(held), Some(more)) => held.join(more),
        (held @ None, more) => *held = more,
        (Some(_), None) => {}
    }
}

/// A stream in the count.
pub(super) struct OpenStream(Rc<Flow>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        let flow = &self.0;
        flow.open.set(flow.open.get() - 1);
        flow.rests_since.set(Instant::now());
        flow.wake();
    }
}

/// A request whose content is read as it comes.
pub(super) struct ContentReader(Rc<Flow>);

impl ContentReader {
    /// So much was read.
    pub(super) fn read(&self, bytes: usize) {
        let mut unread = self.0.unread.borrow_mut();
        unread.bytes = unread.bytes.saturating_sub(bytes as u64);
        unread.give_back();
    }
}

impl Drop for ContentReader {
    fn drop(&mut self) {
        let mut unread = self.0.unread.borrow_mut();
        unread.readers -= 1;
        if unread.readers == 0 {
            unread.bytes = 0;
        }
        unread.give_back();
    }
}

impl UnreadContent {
    fn give_back(&mut self) {
        if self.bytes == 0 {
            self.memory = None;
            self.reserved = 0;
        }
    }
}

/// The socket as hyper sees it. Closing is left to `http2`.
pub(super) struct Framed {
    socket: Rc<RefCell<Socket>>,
    flow: Rc<Flow>,
}

impl Framed {
    pub(super) fn new(socket: Rc<RefCell<Socket>>, flow: Rc<Flow>) -> Self {
        Self { socket, flow }
    }

    /// Keeps the books on one write.
    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let since = &self.flow.writes_since;
        match &result {
            Poll::Ready(Ok(written)) => {
                self.flow.budget.borrow_mut().earn(*written as u64);
                since.set(None);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => since.set(since.get().or_else(|| Some(Instant::now()))),
        }
        result
    }
}

impl Read for Framed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.flow.failed.get().is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut page = PAGE.take();
        page.resize(PAGE_BYTES, 0);
        let room = out.remaining().min(PAGE_BYTES);
        let mut buffer = ReadBuf::new(&mut page[..room]);
        let result = Pin::new(&mut *self.socket.borrow_mut())
            .poll_read(cx, &mut buffer)
            .map_ok(|()| {
                let read = buffer.filled();
                self.flow.eof.set(read.is_empty());
                self.flow.came(read);
                out.put_slice(read);
            });
        PAGE.set(page);
        if self.flow.failed.get().is_some() {
            // Before h2 makes anything of it.
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        result
    }
}

impl Write for Framed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut *self.socket.borrow_mut()).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut *self.socket.borrow_mut()).poll_write_vectored(cx, parts);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.socket.borrow_mut()).poll_flush(cx);
        ready!(self.wrote(flushed.map_ok(|()| 0)))?;
        self.flow.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

thread_local! {
    /// Where this thread's sockets are read to; never held across a wait.
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PAGE_BYTES: usize = 16 << 10;

/// What a connection in HTTP/2 holds with a head that is not complete, h2's copy of it included.
const HEAD_BESIDE: u64 = 64 << 10;

/// Streams that h2 remembers for a second after it has reset them.
const RESETS_KEPT: usize = 50;
/// Entries of the tables of h2 that the connection itself is charged for.
const ENTRIES_FREE: usize = 8;
/// What an entry takes: of the streams 328 bytes, of the received heads 248, of the frames to be
/// sent 312, and a place in an index.
pub(super) const ENTRY_BYTES: u64 = 1 << 10;

/// By how much memory for unread content grows.
const GRAIN: u64 = 64 << 10;
