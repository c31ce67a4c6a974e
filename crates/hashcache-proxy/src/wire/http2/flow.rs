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

use hashcache::{Cache, Reservation};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::serve::Ending;
use super::super::socket::Socket;
use super::super::stream::Peer;
use crate::settings::Limits;

/// What is known about one connection.
pub(super) struct Flow {
    limits: Rc<Limits>,
    cache: Option<Cache>,
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
    memory: Option<Reservation>,
    reserved: u64,
}

impl Flow {
    pub(super) fn new(limits: Rc<Limits>, cache: Option<Cache>) -> Rc<Self> {
        let now = Instant::now();
        let most = limits.frames as u64;
        Rc::new(Self {
            limits,
            cache,
            waker: RefCell::default(),
            open: Cell::new(0),
            rests_since: Cell::new(now),
            head_since: Cell::new(Some(now)),
            writes_since: Cell::new(None),
            failed: Cell::new(None),
            eof: Cell::new(false),
            frames: RefCell::default(),
            budget: RefCell::new(Budget::new(most, now)),
            unread: RefCell::default(),
            turn: RefCell::default(),
        })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn cache(&self) -> Option<Cache> {
        self.cache.clone()
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
        let seen = frames.advance(bytes);
        if frames.is_in_head() {
            self.head_since.set(self.head_since.get().or(Some(now)));
        } else {
            self.head_since.set(None);
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
        let Some(cache) = &self.cache else {
            return true;
        };
        if unread.bytes <= unread.reserved {
            return true;
        }
        let more = (unread.bytes - unread.reserved).next_multiple_of(GRAIN);
        let memory = cache.reserve_bulk(more).or_else(|| cache.reserve(more));
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

/// Where in the frames of a client its bytes are.
#[derive(Debug)]
struct Frames {
    /// Bytes of the preface that are to come.
    preface: usize,
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Bytes of the frame's payload that are to come.
    payload: usize,
    block: Block,
}

/// How far a block of fields has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    None,
    /// More frames of it follow.
    Open,
    /// The frame under way is its last.
    Ends,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            preface: PREFACE.len(),
            head: [0; FRAME_HEAD],
            have: 0,
            payload: 0,
            block: Block::None,
        }
    }
}

/// What some bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Frames that cost their sender next to nothing.
    cheap: u64,
    /// Bytes of content, padding included.
    content: u64,
}

impl Frames {
    fn advance(&mut self, mut bytes: &[u8]) -> Seen {
        let mut seen = Seen::default();
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            let payload = self.payload.min(bytes.len());
            self.payload -= payload;
            bytes = &bytes[payload..];
            if self.payload == 0 && self.block == Block::Ends && self.have == 0 {
                self.block = Block::None;
            }
            let head = (FRAME_HEAD - self.have).min(bytes.len());
            if self.payload > 0 || head == 0 {
                continue;
            }
            self.head[self.have..self.have + head].copy_from_slice(&bytes[..head]);
            self.have += head;
            bytes = &bytes[head..];
            if self.have == FRAME_HEAD {
                self.have = 0;
                self.begin(&mut seen);
            }
        }
        seen
    }

    /// The head of a frame is there.
    fn begin(&mut self, seen: &mut Seen) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let ends_head = flags & 4 != 0;
        match kind {
            DATA => {
                seen.content += self.payload as u64;
                let ends_stream = flags & 1 != 0;
                seen.cheap += u64::from(self.payload == 0 && !ends_stream);
            }
            HEADERS => {}
            _ => seen.cheap += 1,
        }
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block = match (ends_head, self.payload) {
                (true, 0) => Block::None,
                (true, _) => Block::Ends,
                (false, _) => Block::Open,
            };
        }
    }

    fn is_in_head(&self) -> bool {
        self.preface > 0
            || (self.block != Block::None && (self.payload > 0 || self.block == Block::Open))
    }
}

/// What a client may have us do for nothing.
#[derive(Debug)]
struct Budget {
    most: u64,
    left: u64,
    since: Instant,
    /// Bytes sent to the client that were not counted yet.
    sent: u64,
}

impl Budget {
    fn new(most: u64, now: Instant) -> Self {
        Self {
            most,
            left: most,
            since: now,
            sent: 0,
        }
    }

    /// Whether `frames` more are paid for.
    fn pay(&mut self, frames: u64, now: Instant) -> bool {
        let seconds = now.duration_since(self.since).as_secs();
        self.since += std::time::Duration::from_secs(seconds);
        // Who takes much content confirms it in many small steps.
        let by_time = seconds.saturating_mul(self.most.div_ceil(CHEAP_SECONDS));
        let earned = by_time.saturating_add(self.sent / BYTES_PER_CHEAP);
        self.sent %= BYTES_PER_CHEAP;
        self.left = self.left.saturating_add(earned).min(self.most);
        let paid = self.left.checked_sub(frames);
        self.left = paid.unwrap_or(0);
        paid.is_some()
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
                self.flow.budget.borrow_mut().sent += *written as u64;
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

/// What a client in HTTP/2 sends first (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const PAGE_BYTES: usize = 16 << 10;
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// By how much memory for unread content grows.
const GRAIN: u64 = 64 << 10;

/// In how many seconds the budget fills.
const CHEAP_SECONDS: u64 = 16;
/// Content for which one more is paid: some clients confirm every 4 KiB, and twice.
const BYTES_PER_CHEAP: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = length_bytes[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(FRAME_HEAD + length, 0xff);
        frame
    }

    #[test]
    fn frames_are_told_apart_however_they_are_cut() {
        let mut bytes = PREFACE.to_vec();
        for (length, kind, flags) in [
            (0, 4, 0), // SETTINGS
            (300, HEADERS, 4),
            (1000, DATA, 0),
            (0, DATA, 0), // for nothing
            (0, DATA, 1), // the end
            (8, 6, 0),    // PING
            (70, HEADERS, 0),
            (5, CONTINUATION, 4),
            (4, 3, 0), // RST_STREAM
        ] {
            bytes.extend(frame(length, kind, flags));
        }
        for step in [1, 2, 7, 64, bytes.len()] {
            let mut frames = Frames::default();
            let mut all = Seen::default();
            for part in bytes.chunks(step) {
                let seen = frames.advance(part);
                all.cheap += seen.cheap;
                all.content += seen.content;
            }
            let expected = Seen {
                cheap: 5,
                content: 1000,
            };
            assert_eq!(all, expected, "cut every {step} bytes");
            assert!(!frames.is_in_head());
        }
    }

    #[test]
    fn a_head_is_under_way_until_its_last_byte() {
        let mut frames = Frames::default();
        assert!(frames.is_in_head(), "the preface is missing");
        frames.advance(PREFACE);
        assert!(!frames.is_in_head());
        let head = frame(20, HEADERS, 4);
        frames.advance(&head[..head.len() - 1]);
        assert!(frames.is_in_head());
        frames.advance(&head[head.len() - 1..]);
        assert!(!frames.is_in_head());
        frames.advance(&frame(20, HEADERS, 0));
        assert!(frames.is_in_head(), "no END_HEADERS yet");
        frames.advance(&frame(20, CONTINUATION, 4));
        assert!(!frames.is_in_head());
    }

    #[tokio::test(start_paused = true)]
    async fn cheap_frames_are_bounded_and_earned_by_time_and_content() {
        let mut budget = Budget::new(160, Instant::now());
        assert!(budget.pay(160, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(budget.pay(20, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
        budget.sent = 10 * BYTES_PER_CHEAP;
        assert!(budget.pay(10, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
    }
}
