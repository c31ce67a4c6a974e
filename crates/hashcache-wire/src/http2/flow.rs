//! The bytes of an HTTP/2 connection between socket and hyper, and the accounting based on them.
//!
//! `http2` creates it and acts on the results; hyper reads and writes through [`Framed`].
//!
//! Invariant: a frame that costs the sender almost nothing (PING, SETTINGS, PRIORITY, RST_STREAM,
//! WINDOW_UPDATE, CONTINUATION, empty DATA) is paid for from [`Budget`], which grows with time and
//! with the bytes sent to the client. Cost: nine bytes examined per frame, one copy of the input.
//!
//! The link of a child must not be closed when the share of the child is full, because the link has
//! the requests of many users. Therefore the memory that the child's frames can occupy is bounded
//! and reserved before the link is served ([`link_bytes`]), and heads on a link are not registered
//! as unfinished heads, because those may be evicted.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use hashcache_base::limits::Limits;
use hashcache_base::share::{Allowance, ShareReservation, UnfinishedHead};
use hashcache_http::LinkTurn;
use hashcache_link::counters::{self, LinkCounters, OpenTunnel};
use hashcache_link::turn_frames::TurnFrames;
use hashcache_link::turns::{ReadTurn, SendTurn, Turns};
use hashcache_link::{TUNNELS, Windows};
use http::{HeaderMap, StatusCode};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::ending::Ending;
use super::super::socket::Socket;
use super::super::stream::ClientSide;
use super::Http2Kind;
use super::frames::{Budget, FRAME_HEAD, Frames, Seen};
use super::interim::{InterimQueue, Marker};
use super::pings::Pings;

/// State of a connection.
pub(super) struct Flow {
    limits: Rc<Limits>,
    allowance: Option<Allowance>,
    waker: RefCell<Option<Waker>>,
    /// Streams without a complete response.
    open: Cell<usize>,
    tables: H2Tables,
    /// The next stream that hyper starts already has a reset or a response.
    polled_at_once: Cell<bool>,
    rests_since: Cell<Instant>,
    /// The last idle time reported to the register of connections; `None`: busy.
    noted_rest: Cell<Option<Instant>>,
    /// Time since which the preface or a head is incomplete.
    head_since: Cell<Option<Instant>>,
    /// Time since which the socket accepts no bytes.
    writes_since: Cell<Option<Instant>>,
    failed: Cell<Option<Ending>>,
    eof: Cell<bool>,
    frames: RefCell<Frames>,
    /// Written frames.
    written: RefCell<Frames>,
    /// Adds the stream number to each request head; not on a link.
    marker: RefCell<Option<Marker>>,
    interim: RefCell<InterimQueue>,
    budget: RefCell<Budget>,
    unread: RefCell<UnreadContent>,
    progress: RefCell<Option<Rc<StreamProgress>>>,
    /// Present while the preface or a head is incomplete.
    unfinished: RefCell<Option<UnfinishedHead>>,
    /// Set on a child's link.
    link: Option<LinkFlow>,
}

/// Accounting for a link.
struct LinkFlow {
    counters: Arc<LinkCounters>,
    pings: RefCell<Pings>,
    turns: Arc<Turns>,
    turn_frames: RefCell<TurnFrames>,
}

impl LinkFlow {
    fn new(counters: &Arc<LinkCounters>, windows: Windows) -> Self {
        let turns = Turns::new(windows.connection);
        Self {
            counters: Arc::clone(counters),
            pings: RefCell::new(Pings::of_server()),
            turn_frames: RefCell::new(TurnFrames::of_server(&turns)),
            turns,
        }
    }

    fn note_sent(&self, bytes: &[u8]) {
        self.pings.borrow_mut().note_sent(bytes);
        self.turn_frames.borrow_mut().note_sent(bytes);
    }
}

/// The position of a request among the other requests on a link.
pub(super) struct StreamTurn {
    turns: Arc<Turns>,
    turn: LinkTurn,
}

impl StreamTurn {
    /// For content from the child.
    pub(super) fn read(&self) -> ReadTurn {
        self.turns.read(self.turn)
    }

    /// For content to the child.
    pub(super) fn send(&self) -> SendTurn {
        self.turns.send(self.turn)
    }
}

/// State shared by a stream's task and the response body.
#[derive(Debug, Default)]
pub(super) struct StreamProgress {
    /// Time since which hyper holds a response buffer without polling for the next buffer.
    pub(super) waits_since: Cell<Option<Instant>>,
    /// The stream's entry in the h2 tables.
    pub(super) entry: Arc<StreamEntry>,
}

/// The tables in which h2 keeps streams, received heads and frames to send. They grow with the
/// largest number of concurrent streams, and are freed only when the connection closes.
#[derive(Default)]
struct H2Tables {
    /// Request heads that h2 has received and hyper has not yet processed.
    coming: Cell<usize>,
    /// Streams that hyper has started, including `ended`.
    used: Cell<usize>,
    /// Streams with task and content dropped. Their last frames may still wait for the socket.
    ended: Arc<AtomicUsize>,
    /// Entries beyond [`ENTRIES_FREE`] with reserved memory.
    paid: Cell<usize>,
    memory: RefCell<Option<ShareReservation>>,
}

/// The entry of a stream in h2, held by the task of the stream and by the unsent content.
#[derive(Debug, Default)]
pub(super) struct StreamEntry(Arc<AtomicUsize>);

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Request content that was received but not yet read.
#[derive(Default)]
struct UnreadContent {
    /// Number of requests with a reader for their content.
    readers: usize,
    bytes: u64,
    memory: Option<ShareReservation>,
    reserved: u64,
}

impl Flow {
    pub(super) fn new(
        limits: Rc<Limits>,
        allowance: Option<Allowance>,
        kind: &Http2Kind,
    ) -> Rc<Self> {
        let now = Instant::now();
        let most = limits.frames as u64;
        let link = match kind {
            Http2Kind::Client => None,
            Http2Kind::Link { counters, windows } => Some(LinkFlow::new(counters, *windows)),
        };
        let unfinished = allowance.as_ref().filter(|_| link.is_none());
        let unfinished = unfinished.map(|it| it.begin_head(HEAD_BESIDE));
        Rc::new(Self {
            limits,
            allowance,
            waker: RefCell::default(),
            open: Cell::new(0),
            tables: H2Tables::default(),
            polled_at_once: Cell::new(false),
            rests_since: Cell::new(now),
            noted_rest: Cell::new(None),
            head_since: Cell::new(Some(now)),
            writes_since: Cell::new(None),
            failed: Cell::new(None),
            eof: Cell::new(false),
            written: RefCell::new(Frames::of_server()),
            marker: RefCell::new(link.is_none().then(Marker::new)),
            interim: RefCell::default(),
            frames: RefCell::new(Frames::of_client()),
            budget: RefCell::new(Budget::new(most, now)),
            unread: RefCell::default(),
            progress: RefCell::default(),
            unfinished: RefCell::new(unfinished),
            link,
        })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The allowance for a stream with this request: on a link, the allowance of the child's
    /// client.
    pub(super) fn allowance_for(&self, request: &HeaderMap) -> Option<Allowance> {
        let allowance = self.allowance.as_ref()?;
        match &self.link {
            None => Some(allowance.clone()),
            Some(_) => {
                let client = LinkTurn::from_fields(request).map_or(0, |turn| turn.client);
                Some(allowance.of_client(client))
            }
        }
    }

    pub(super) fn allowance(&self) -> Option<Allowance> {
        self.allowance.clone()
    }

    /// The turn of a request on a link.
    pub(super) fn turn(&self, request: &HeaderMap) -> Option<StreamTurn> {
        let turns = Arc::clone(&self.link.as_ref()?.turns);
        let turn = LinkTurn::from_fields(request)?;
        Some(StreamTurn { turns, turn })
    }

    /// Reserves `bytes` for a stream from `allowance`; `None` if no memory is available. A client
    /// that keeps retrying is charged as for other frames that cost it nothing.
    pub(super) fn pay(
        &self,
        allowance: Option<&Allowance>,
        bytes: u64,
    ) -> Option<Option<ShareReservation>> {
        let Some(allowance) = allowance else {
            return Some(None);
        };
        let room = allowance.share().has_room_beside_content(bytes);
        let paid = room.then_some(()).and_then(|()| {
            allowance
                .reserve_bulk(bytes)
                .or_else(|| allowance.reserve(bytes))
        });
        self.polled_at_once.set(paid.is_none());
        if paid.is_none() && !self.budget.borrow_mut().pay(1, Instant::now()) {
            self.failed.set(Some(Ending::Flood));
            self.wake();
        }
        paid.map(Some)
    }

    /// Records that the next stream that hyper starts already has a response.
    pub(super) fn poll_next_at_once(&self) {
        self.polled_at_once.set(true);
    }

    /// Returns true if the last stream got no memory, or already has a response; resets the flag.
    pub(super) fn take_polled_at_once(&self) -> bool {
        self.polled_at_once.take()
    }

    /// hyper has started a stream; h2 has an entry for it until the returned guard is dropped.
    pub(super) fn enter(&self) -> Arc<StreamEntry> {
        let tables = &self.tables;
        tables.coming.set(tables.coming.get().saturating_sub(1));
        tables.used.set(tables.used.get() + 1);
        Arc::new(StreamEntry(Arc::clone(&tables.ended)))
    }

    /// hyper has started all streams that it could; h2 has refused the rest.
    pub(super) fn all_entered(&self) {
        self.tables.coming.set(0);
    }

    /// Reserves memory for `heads` more entries in the h2 tables; returns false if none is
    /// available.
    fn pay_for_tables(&self, heads: usize) -> bool {
        let tables = &self.tables;
        tables.coming.set(tables.coming.get() + heads);
        if self.link.is_some() {
            // `link_bytes` already includes it.
            return true;
        }
        // h2 itself refuses streams beyond this number.
        let most = self.limits.streams.saturating_add(RESETS_KEPT);
        let entries = (tables.used.get() + tables.coming.get()).min(most);
        let paid = tables.paid.get();
        if entries <= ENTRIES_FREE + paid {
            return true;
        }
        // The capacity of the tables doubles.
        let entries = entries.next_power_of_two() - ENTRIES_FREE;
        let memory = self.set_aside((entries - paid) as u64 * ENTRY_BYTES);
        let Some(memory) = memory else {
            return false;
        };
        join(&mut tables.memory.borrow_mut(), memory);
        tables.paid.set(entries);
        true
    }

    /// The socket has accepted all frames from h2.
    fn flushed(&self) {
        let ended = self.tables.ended.swap(0, Ordering::Relaxed);
        self.tables.used.set(self.tables.used.get() - ended);
    }

    /// Reserves memory in the client's share; `Some(None)` without accounting.
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

    /// Queues an interim response for `stream`; returns false if it cannot be sent.
    pub(super) fn queue_interim(
        &self,
        stream: u32,
        status: StatusCode,
        fields: &HeaderMap,
    ) -> bool {
        let has_table = |marker: &Marker| !marker.has_small_table();
        let may = self.marker.borrow().as_ref().is_some_and(has_table);
        let queued = may && self.interim.borrow_mut().push(stream, status, fields);
        if queued {
            self.wake();
        }
        queued
    }

    pub(super) fn forget_interim(&self, stream: u32) {
        self.interim.borrow_mut().forget(stream);
    }

    pub(super) fn has_interim(&self) -> bool {
        !self.interim.borrow().is_empty()
    }

    /// Writes interim responses if h2 is between two frames. Ready when h2 may write.
    pub(super) fn poll_interim(
        &self,
        socket: &mut Socket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut interim = self.interim.borrow_mut();
        if !interim.is_within_frame() && !self.written.borrow().is_between() {
            return Poll::Ready(Ok(()));
        }
        while let Some(bytes) = interim.next() {
            match ready!(Pin::new(&mut *socket).poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => interim.advance(written),
            }
        }
        Pin::new(socket).poll_flush(cx)
    }

    /// Returns true if streams may be tunnels.
    pub(super) fn has_tunnels(&self) -> bool {
        self.link.is_some()
    }

    /// Counts a child's tunnel until the result is dropped; `None` if the child has the maximum
    /// number. This count is needed because h2 does not count a stream that the child has reset,
    /// although its tunnel may still exist.
    pub(super) fn begin_tunnel(&self) -> Option<OpenTunnel> {
        self.link.as_ref()?.counters.begin_tunnel(TUNNELS)
    }

    /// Counts a stream as open until the guard is dropped.
    pub(super) fn open(self: &Rc<Self>) -> OpenStream {
        self.open.set(self.open.get() + 1);
        let link = self.link.as_ref();
        OpenStream {
            flow: Rc::clone(self),
            _counted: link.map(|link| link.counters.begin_stream()),
        }
    }

    /// The allowance of a client; `None` on a child's link, because a link is never evicted.
    fn client_allowance(&self) -> Option<&Allowance> {
        self.allowance.as_ref().filter(|_| self.link.is_none())
    }

    pub(super) fn is_resting(&self) -> bool {
        self.open.get() == 0
    }

    /// Returns true if nothing is in progress: no stream, no unwritten byte, no partial head.
    /// `open` is not sufficient, because it counts a stream only until hyper has the whole body,
    /// while h2 may still hold 64 KiB of it.
    pub(super) fn is_idle(&self) -> bool {
        let is_written = self.tables.used.get() == 0 && self.writes_since.get().is_none();
        self.is_resting() && is_written && self.head_since.get().is_none()
    }

    /// Reports to the register of connections if the connection is idle, and since when. Must be
    /// called after each poll, because streams finish before their bytes are written.
    pub(super) fn note_rest(&self) {
        let Some(allowance) = self.client_allowance() else {
            return;
        };
        let rest = self.is_idle().then(|| self.rests_since.get());
        match (self.noted_rest.replace(rest), rest) {
            (before, Some(since)) if before != rest => allowance.rest(since),
            (Some(_), None) => allowance.end_rest(),
            _ => {}
        }
    }

    pub(super) fn rests_since(&self) -> Instant {
        self.rests_since.get()
    }

    /// The reason for closing the connection, if any.
    pub(super) fn failed(&self) -> Option<Ending> {
        self.failed.get()
    }

    pub(super) fn peer(&self) -> ClientSide {
        if self.eof.get() {
            ClientSide::Finished
        } else {
            ClientSide::MaySend
        }
    }

    /// The time at which the connection closes if nothing happens before, and the reason.
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

    /// Polls a stream while [`Flow::progress`] returns its `progress`.
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

    /// The progress of the stream being polled.
    pub(super) fn progress(&self) -> Rc<StreamProgress> {
        self.progress.borrow().clone().unwrap_or_default()
    }

    /// Marks a request's content as being read until the guard is dropped.
    pub(super) fn want_content(self: &Rc<Self>) -> ContentReader {
        self.unread.borrow_mut().readers += 1;
        ContentReader(Rc::clone(self))
    }

    /// Returns true if hyper must first process the heads that it already has.
    fn has_heads_waiting(&self) -> bool {
        self.link.is_some() && self.tables.coming.get() >= HEADS_WAITING
    }

    /// Accounts for received bytes. Returns how many of them may be passed to hyper now: on a link,
    /// only up to the head that makes [`HEADS_WAITING`]; otherwise all.
    fn note_read(&self, bytes: &[u8]) -> usize {
        let now = Instant::now();
        let mut frames = self.frames.borrow_mut();
        let mut seen = Seen::default();
        let most = match self.link {
            Some(_) => HEADS_WAITING as u64,
            None => u64::MAX,
        };
        let read = frames.advance_while(bytes, |frame| {
            seen.add(frame);
            seen.heads < most
        });
        if let Some(link) = &self.link {
            let mut turn_frames = link.turn_frames.borrow_mut();
            turn_frames.note_received(&bytes[..read]);
        }
        if let Some(link) = &self.link
            && let Some(round_trip) = link
                .pings
                .borrow_mut()
                .note_received(&bytes[..read])
                .round_trip
        {
            link.counters.note_round_trip(round_trip);
        }
        if frames.is_in_head() {
            self.head_since.set(self.head_since.get().or(Some(now)));
            let mut unfinished = self.unfinished.borrow_mut();
            // Registered only if no stream is open: to evict this head would cut the open streams.
            // `head_time` bounds it too.
            let allowance = self.client_allowance().filter(|_| self.is_resting());
            if let (None, Some(allowance)) = (&*unfinished, allowance) {
                *unfinished = Some(allowance.begin_head(HEAD_BESIDE));
            }
        } else {
            self.head_since.set(None);
            if self.unfinished.take().is_some()
                && let Some(allowance) = self.client_allowance()
            {
                allowance.end_head();
            }
        }
        if !self.budget.borrow_mut().pay(seen.cheap, now) {
            self.failed.set(Some(Ending::Flood));
        }
        let heads = usize::try_from(seen.heads).unwrap_or(usize::MAX);
        if heads > 0 && !self.pay_for_tables(heads) || seen.content > 0 && !self.hold(seen.content)
        {
            self.failed.set(Some(Ending::NoMemory));
        }
        read
    }

    /// Reserves memory for received content.
    fn hold(&self, bytes: u64) -> bool {
        if self.link.is_some() {
            // `link_bytes` already includes it.
            return true;
        }
        let mut unread = self.unread.borrow_mut();
        if unread.readers == 0 {
            // No request reads content, so hyper drops it.
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

/// Adds `more` to the reservation.
fn join(held: &mut Option<ShareReservation>, more: Option<ShareReservation>) {
    match (held, more) {
        (Some(held), Some(more)) => held.join(more),
        (held @ None, more) => *held = more,
        (Some(_), None) => {}
    }
}

/// An open stream in the count.
pub(super) struct OpenStream {
    flow: Rc<Flow>,
    _counted: Option<counters::OpenStream>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let flow = &self.flow;
        flow.open.set(flow.open.get() - 1);
        flow.rests_since.set(Instant::now());
        flow.wake();
    }
}

/// A request with a reader for its content.
pub(super) struct ContentReader(Rc<Flow>);

impl ContentReader {
    /// Records that `bytes` were read.
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

/// Memory that a child's frames can occupy besides its streams: content received but not yet read,
/// the h2 tables with all streams in use, and heads that hyper has not yet processed.
pub fn link_bytes(limits: &Limits, windows: Windows) -> u64 {
    let entries = limits.streams + RESETS_KEPT + HEADS_WAITING;
    let entries = entries.next_power_of_two() as u64;
    let heads = (HEADS_WAITING * limits.head_bytes) as u64;
    u64::from(windows.connection) + entries * ENTRY_BYTES + heads
}

/// The socket for hyper. `http2` closes it.
pub(super) struct Framed {
    socket: Rc<RefCell<Socket>>,
    flow: Rc<Flow>,
    /// Bytes that were read but not passed to hyper, because it must first process heads.
    rest: Vec<u8>,
    /// Marked bytes that hyper had no room for.
    marked: Vec<u8>,
}

impl Framed {
    pub(super) fn new(socket: Rc<RefCell<Socket>>, flow: Rc<Flow>) -> Self {
        Self {
            socket,
            flow,
            rest: Vec::new(),
            marked: Vec::new(),
        }
    }

    /// Passes these bytes to hyper, with a stream number added at the end of each head.
    fn give(flow: &Flow, marked: &mut Vec<u8>, bytes: &[u8], out: &mut ReadBufCursor<'_>) {
        let mut marker = flow.marker.borrow_mut();
        let Some(marker) = &mut *marker else {
            out.put_slice(bytes);
            return;
        };
        marker.mark(bytes, |part| {
            let room = if marked.is_empty() {
                part.len().min(out.remaining())
            } else {
                0
            };
            out.put_slice(&part[..room]);
            marked.extend_from_slice(&part[room..]);
        });
    }

    /// Reads from the socket and passes to hyper as many bytes as allowed. Returns the number of
    /// bytes read, even if hyper gets none; 0 is the end of the connection.
    fn poll_socket(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut page = PAGE.take();
        page.resize(PAGE_BYTES, 0);
        let room = out.remaining().min(PAGE_BYTES);
        let mut buffer = ReadBuf::new(&mut page[..room]);
        let result = Pin::new(&mut *self.socket.borrow_mut())
            .poll_read(cx, &mut buffer)
            .map_ok(|()| {
                let read = buffer.filled();
                self.flow.eof.set(read.is_empty());
                let given = self.flow.note_read(read);
                Self::give(&self.flow, &mut self.marked, &read[..given], out);
                self.rest.extend_from_slice(&read[given..]);
                read.len()
            });
        PAGE.set(page);
        result
    }

    /// How many of `length` bytes h2 may write now: if interim responses wait, only up to the end
    /// of the current frame.
    fn poll_before_write(&self, cx: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        if !self.flow.has_interim() {
            return Poll::Ready(Ok(length));
        }
        let polled = self.flow.poll_interim(&mut self.socket.borrow_mut(), cx);
        ready!(self.wrote(polled.map_ok(|()| 0)))?;
        // If some still wait, h2 is within a frame, or between two frames of the same head.
        let left = self.flow.written.borrow().left();
        Poll::Ready(Ok(match (self.flow.has_interim(), left) {
            (false, _) => length,
            (true, 0) => length.min(FRAME_HEAD),
            (true, left) => length.min(left),
        }))
    }

    /// Records written bytes.
    fn note_written(&self, bytes: &[u8]) {
        if self.flow.link.is_none() {
            self.flow.written.borrow_mut().advance(bytes, |_| ());
        }
    }

    /// Passes to hyper as much of `rest` as allowed.
    fn give_rest(&mut self, out: &mut ReadBufCursor<'_>) {
        let room = out.remaining().min(self.rest.len());
        let given = self.flow.note_read(&self.rest[..room]);
        out.put_slice(&self.rest[..given]);
        self.rest.drain(..given);
    }

    /// Writes the frames of a link that hyper does not create.
    fn poll_write_own(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(link) = &self.flow.link else {
            return Poll::Ready(Ok(()));
        };
        let socket = &mut *self.socket.borrow_mut();
        let written = link.turn_frames.borrow_mut().poll_write_own(socket, cx);
        // Only the deadline is updated: these bytes earn the child no frames.
        self.wrote(written.map_ok(|()| 0)).map_ok(|_| ())
    }

    /// Accounts for a write.
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
        let this = self.get_mut();
        if this.flow.failed.get().is_some() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !this.marked.is_empty() {
            let room = out.remaining().min(this.marked.len());
            out.put_slice(&this.marked[..room]);
            this.marked.drain(..room);
            return Poll::Ready(Ok(()));
        }
        if this.flow.has_heads_waiting() {
            // hyper processes the heads as soon as there is nothing to read.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let room = out.remaining();
        loop {
            let result = if this.rest.is_empty() {
                this.poll_socket(cx, &mut out)
            } else {
                this.give_rest(&mut out);
                Poll::Ready(Ok(0))
            };
            if this.flow.failed.get().is_some() {
                // Fails before h2 processes these bytes.
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            // `Marker` keeps a partial frame head, and trailers with padding, until they are
            // complete. If it kept all bytes of a read, more bytes are needed, because hyper takes
            // a read without bytes for the end of the connection. The loop terminates because a
            // kept frame has at most 16 KiB, and the socket registers the waker when it has no more
            // bytes.
            match ready!(result)? {
                read if read > 0 && out.remaining() == room => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl Write for Framed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_own(cx))?;
        let length = ready!(self.poll_before_write(cx, bytes.len()))?;
        let bytes = &bytes[..length];
        let result = Pin::new(&mut *self.socket.borrow_mut()).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = &result {
            self.note_written(&bytes[..*written]);
        }
        if let (Some(link), Poll::Ready(Ok(written))) = (&self.flow.link, &result) {
            link.note_sent(&bytes[..*written]);
        }
        self.wrote(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_own(cx))?;
        let all: usize = parts.iter().map(|part| part.len()).sum();
        if ready!(self.poll_before_write(cx, all))? < all {
            // Writes only up to the end of a frame.
            let first = parts.iter().find(|part| !part.is_empty());
            return self.poll_write(cx, first.map_or(&[], |part| part));
        }
        let result = Pin::new(&mut *self.socket.borrow_mut()).poll_write_vectored(cx, parts);
        if let Poll::Ready(Ok(written)) = &result {
            let mut left = *written;
            for part in parts {
                let taken = left.min(part.len());
                self.note_written(&part[..taken]);
                left -= taken;
            }
        }
        if let (Some(link), Poll::Ready(Ok(written))) = (&self.flow.link, &result) {
            let mut left = *written;
            for part in parts {
                let taken = left.min(part.len());
                link.note_sent(&part[..taken]);
                left -= taken;
            }
        }
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_own(cx))?;
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
    /// The read buffer shared by this thread's sockets; never held across an await.
    static PAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const PAGE_BYTES: usize = 16 << 10;

/// Memory of an HTTP/2 connection with an unfinished head, including h2's copy of the head.
const HEAD_BESIDE: u64 = 64 << 10;

/// Maximum number of heads on a link that hyper gets before it has processed the earlier heads: 16
/// KiB may hold a thousand, and h2 may decode each to `head_bytes`. This also limits the streams
/// that were reset before we have seen them, so users who cancel requests at once do not close the
/// link; only the frame budget bounds them.
const HEADS_WAITING: usize = 4;

/// Streams that h2 remembers for a second after a reset.
const RESETS_KEPT: usize = 50;
/// Entries in the h2 tables that are charged to the connection itself.
const ENTRIES_FREE: usize = 8;
/// Memory of an entry: stream 328 bytes, received head 248, frame to send 312, and a place in an
/// index.
pub(super) const ENTRY_BYTES: u64 = 1 << 10;

/// The step size for reserving memory for unread content.
const GRAIN: u64 = 64 << 10;
