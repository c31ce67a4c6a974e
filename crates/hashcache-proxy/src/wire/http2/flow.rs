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
use std::task::{Context, Poll, Waker, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::ending::Ending;
use super::super::socket::Socket;
use super::super::stream::Peer;
use super::frames::{Budget, Frames, Seen};
use crate::limits::Limits;
use crate::share::{Allowance, Held, UnfinishedHead};

/// What is known about one connection.
pub(super) struct Flow {
    limits: Rc<Limits>,
    allowance: Option<Allowance>,
    waker: RefCell<Option<Waker>>,
    /// Streams whose answer is not out.
    open: Cell<usize>,
    rests_since: Cell<Instant>,
    /// The preface or a head has begun to come and is not complete.
    head_since: Cell<Option<Instant>>,
    /// Since when the socket takes nothing.
    writes_since: Cell<Option<Instant>>,
    failed: Cell<Option<Ending>>,
    eof: Cell<bool>,
    frames: RefCell<Frames>,
    budget: RefCell<Budget>,
    unread: RefCell<Unread>,
    turn: RefCell<Option<Rc<Turn>>>,
    /// While the preface or a head is not complete.
    unfinished: RefCell<Option<UnfinishedHead>>,
}

/// What the task of a stream and the body it sends tell each other.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// hyper has a piece of the answer and has not come for the next.
    pub(super) waits_since: Cell<Option<Instant>>,
}

/// Content of requests that has come and was not read.
#[derive(Default)]
struct Unread {
    /// Requests whose content is wanted.
    wanted: usize,
    bytes: u64,
    memory: Option<Held>,
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
            rests_since: Cell::new(now),
            head_since: Cell::new(Some(now)),
            writes_since: Cell::new(None),
            failed: Cell::new(None),
            eof: Cell::new(false),
            frames: RefCell::new(Frames::of_client()),
            budget: RefCell::new(Budget::new(most, now)),
            unread: RefCell::default(),
            turn: RefCell::default(),
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
    pub(super) fn pay(&self, bytes: u64) -> Option<Option<Held>> {
        let Some(allowance) = &self.allowance else {
            return Some(None);
        };
        // Streams must not take all of the share: then none of them could send a piece.
        let room = allowance.share().take(bytes + PIECE_BYTES).map(drop);
        let paid = room.and_then(|()| {
            allowance
                .reserve_bulk(bytes)
                .or_else(|| allowance.reserve(bytes))
        });
        if paid.is_none() && !self.budget.borrow_mut().pay(1, Instant::now()) {
            self.failed.set(Some(Ending::Flood));
            self.wake();
        }
        paid.map(Some)
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
    pub(super) fn open(self: &Rc<Self>) -> Open {
        self.open.set(self.open.get() + 1);
        Open(Rc::clone(self))
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

    pub(super) fn peer(&self) -> Peer {
        match self.eof.get() {
            true => Peer::Finished,
            false => Peer::MaySend,
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

    /// Polls a stream with `turn` to be found by [`Flow::turn`].
    pub(super) fn with_turn<T>(&self, turn: &Rc<Turn>, poll: impl FnOnce() -> T) -> T {
        *self.turn.borrow_mut() = Some(Rc::clone(turn));
        let polled = poll();
        *self.turn.borrow_mut() = None;
        polled
    }

    /// That of the stream being polled.
    pub(super) fn turn(&self) -> Rc<Turn> {
        self.turn.borrow().clone().unwrap_or_default()
    }

    /// The content of a request is wanted, until the guard goes.
    pub(super) fn want_content(self: &Rc<Self>) -> Wanted {
        self.unread.borrow_mut().wanted += 1;
        Wanted(Rc::clone(self))
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
        if seen.content > 0 && !self.hold(seen.content) {
            self.failed.set(Some(Ending::NoMemory));
        }
    }

    /// Sets memory aside for content that has come.
    fn hold(&self, bytes: u64) -> bool {
        let mut unread = self.unread.borrow_mut();
        if unread.wanted == 0 {
            // Nobody reads it, so hyper keeps none of it.
            unread.bytes = 0;
        }
        unread.bytes += bytes;
        let Some(allowance) = &self.allowance else {
            return true;
        };
        if unread.bytes <= unread.reserved {
            return true;
        }
        let more = (unread.bytes - unread.reserved).next_multiple_of(GRAIN);
        let memory = allowance
            .reserve_bulk(more)
            .or_else(|| allowance.reserve(more));
        let Some(memory) = memory else {
            return false;
        };
        unread.reserved += more;
        match &mut unread.memory {
            Some(held) => held.join(memory),
            held => *held = Some(memory),
        }
        true
    }
}

/// A stream in the count.
pub(super) struct Open(Rc<Flow>);

impl Drop for Open {
    fn drop(&mut self) {
        let flow = &self.0;
        flow.open.set(flow.open.get() - 1);
        flow.rests_since.set(Instant::now());
        flow.wake();
    }
}

/// A request whose content is read as it comes.
pub(super) struct Wanted(Rc<Flow>);

impl Wanted {
    /// So much was read.
    pub(super) fn read(&self, bytes: usize) {
        let mut unread = self.0.unread.borrow_mut();
        unread.bytes = unread.bytes.saturating_sub(bytes as u64);
        unread.give_back();
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        let mut unread = self.0.unread.borrow_mut();
        unread.wanted -= 1;
        if unread.wanted == 0 {
            unread.bytes = 0;
        }
        unread.give_back();
    }
}

impl Unread {
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

/// By how much memory for unread content grows.
const GRAIN: u64 = 64 << 10;

/// The largest piece of an answer.
pub(super) const PIECE_BYTES: u64 = 64 << 10;
