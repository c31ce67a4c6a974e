//! One client's HTTP/1.1 connection from its first byte to its last.
//!
//! Called by `server` for every connection. Runs hyper on a `stream` and handles the requests that
//! both leave in the `Cell`: deadlines, aborts, upgrades. Closes in such a way that the client can
//! read everything that was sent.
//!
//! Invariant: hyper's state is dropped only between two messages, so nothing is lost with it. Cost:
//! after [`PARK_AFTER`] an idle connection frees hyper's buffers (about 10 KiB) and builds them
//! again with the next request, in about a microsecond.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::cell::{Cell, WaitFor};
use super::ending::Ending;
use super::memory_hit::MemoryHits;
use super::socket::Socket;
use super::stream::{ClientSide, ClientStream, NARROW};
use crate::limits::Limits;
use crate::share::ShareReservation;

/// Serves `socket` until one side ends it. `service` is called once per request that `memory_hits`
/// does not answer, and must take the head from `cell`. When `stopping` becomes true (or its sender
/// is dropped), the current response is completed and the connection closed; a client that has not
/// asked for anything may still make one request. Dropping the future aborts the connection.
pub(crate) async fn serve_connection<S, B>(
    socket: impl Into<Socket>,
    limits: &Rc<Limits>,
    cell: &Rc<Cell>,
    memory_hits: Option<Rc<dyn MemoryHits>>,
    service: S,
    mut stopping: watch::Receiver<bool>,
) -> Ending
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + Unpin + 'static,
    B::Data: Buf,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let _told = EndNotifier(cell);
    let mut stream = ClientStream::new(socket.into(), limits.clone(), cell.clone(), memory_hits);
    let glance = stopping.clone();
    let stop = pin!(async move {
        // An error means that the sender was dropped, so the server has ended.
        let _ = stopping.wait_for(|&stop| stop).await;
    });
    let sleep = pin!(sleep_until(Instant::now()));
    let mut driver = Driver {
        cell,
        stop,
        glance,
        stopped: false,
        first_request: None,
        sleep,
        armed: false,
    };
    let ending = loop {
        let waited = poll_fn(|cx| {
            if driver.must_stop(cx) && !cell.signals.from_memory.get() && !driver.may_begin(cx) {
                return Poll::Ready(Some(Ending::Closed));
            }
            match stream.poll_needs_hyper(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(None),
                Poll::Ready(Err(_)) => Poll::Ready(Some(Ending::Broken)),
                Poll::Pending => driver.poll_deadlines(cx, ParkState::Parked).map(|late| {
                    Some(match late {
                        PassedDeadline::Write => Ending::SlowWrite,
                        PassedDeadline::Read(_) | PassedDeadline::Park => Ending::Idle,
                    })
                }),
            }
        });
        if let Some(ending) = waited.await {
            break ending;
        }

        let service = service_fn(|request| {
            // On the heap during the request: inline, hyper would keep the space between requests.
            let answer = Box::pin(service.call(request));
            async move { answer.await.map(|response| begin(response, cell)) }
        });
        let Some(memory) = HyperMemory::reserve(cell) else {
            break Ending::NoMemory;
        };
        let width = stream.widen();
        // On the heap, so that an idle connection stays small.
        let mut connection = Box::new(builder(limits, width).serve_connection(stream, service));
        let mut draining = false;
        let stretch = poll_fn(|cx| {
            // hyper would end a connection between two of its own exchanges at once.
            if driver.must_stop(cx)
                && !draining
                && !cell.signals.from_memory.get()
                && !driver.may_begin(cx)
            {
                draining = true;
                Pin::new(&mut *connection).graceful_shutdown();
            }
            driver.poll(cx, |cx| {
                Pin::new(&mut *connection).poll(cx).map(|done| done.is_ok())
            })
        })
        .await;
        let parts = connection.into_parts();
        stream = parts.io;
        drop(memory);
        match stretch {
            RunEnd::Parked if !draining => debug_assert!(parts.read_buf.is_empty()),
            RunEnd::Parked => break Ending::Closed,
            RunEnd::Over(ending) => break ending,
        }
    };
    end(stream, cell, ending).await
}

/// Memory for hyper and the service, while the connection has a hyper.
struct HyperMemory(#[expect(dead_code, reason = "held until dropped")] Option<ShareReservation>);

impl HyperMemory {
    /// When half of the budget is spent, connections do not keep this memory between two requests.
    /// Otherwise idle connections would keep active ones from being served.
    fn reserve(cell: &Cell) -> Option<Self> {
        let spare = cell.reserve_spare(ACTIVE_BYTES);
        cell.signals.short.set(spare.is_err());
        // Bulk memory first: a slow client holds it as long as its content.
        let memory = spare
            .or_else(|_| cell.reserve(ACTIVE_BYTES))
            .or_else(|_| cell.reserve_last(ACTIVE_BYTES));
        memory.ok().map(Self)
    }
}

/// hyper's settings. Its buffer needs to hold only what `stream` lets pass, and its timers stay
/// off, because `stream` has these limits.
fn builder(limits: &Limits, width: usize) -> http1::Builder {
    // hyper's minimum.
    const BUFFER_MIN: usize = 8 << 10;
    let mut builder = http1::Builder::new();
    builder
        .title_case_headers(true)
        .half_close(false)
        .header_read_timeout(None)
        .max_buf_size((limits.head_bytes + 1).max(BUFFER_MIN));
    if width > NARROW {
        // Makes hyper allocate for each request, so only if necessary.
        builder.max_headers(width);
    }
    builder
}

/// Notes how the response ends, and tracks its body.
fn begin<B: Body + Unpin>(mut response: Response<B>, cell: &Rc<Cell>) -> Response<TrackedBody<B>> {
    let asked = cell.answer();
    let status = response.status();
    // The version of this hop, not of the origin's (RFC 9112, section 2.3). With the origin's 1.0,
    // hyper would mark the end of content by closing, and content cut short would look whole.
    *response.version_mut() = Version::HTTP_11;
    if asked.connect && status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        // Request content that is still missing would be taken for the other protocol.
        cell.signals.tunnel.set(cell.signals.request_read.get());
    } else if cell.is_last() || cell.signals.stopping.get() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let bodiless =
        asked.head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let is_unbounded = !bodiless
        && !response.headers().contains_key(CONTENT_LENGTH)
        && response.body().size_hint().exact().is_none();
    let close_delimited = asked.http_10 && is_unbounded;
    cell.signals.close_delimited.set(close_delimited);
    response.map(|body| TrackedBody {
        body,
        failed: None,
        cell: cell.clone(),
        close_delimited,
        // hyper will use chunks.
        passes_trailers: is_unbounded && asked.takes_trailers,
        complete: false,
    })
}

/// The body of a response, tracked to its end.
struct TrackedBody<B: Body + Unpin> {
    body: B,
    /// The error that hyper gets next.
    failed: Option<Box<dyn Error + Send + Sync>>,
    cell: Rc<Cell>,
    close_delimited: bool,
    passes_trailers: bool,
    complete: bool,
}

impl<B> Body for TrackedBody<B>
where
    B: Body + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let this = self.get_mut();
        if this.complete {
            return Poll::Ready(None);
        }
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let frame = match frame.transpose() {
            Ok(frame) => frame,
            Err(error) => {
                // hyper drops what it has not written yet, which may be the head. It writes while
                // it waits for content.
                this.failed = Some(error.into());
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        };
        // hyper writes only trailers that Trailer announces, which an origin need not do, and which
        // HTTP/2 has no use for.
        if let Some(frame) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            if this.passes_trailers && !trailers.is_empty() {
                this.cell.set_trailers(trailers);
            }
            this.complete = true;
            return Poll::Ready(None);
        }
        this.complete |= frame.is_none();
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.complete || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body + Unpin> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        // hyper would end a failed response to HTTP/1.0 in the same way as a complete one.
        if self.close_delimited && !self.complete && !self.body.is_end_stream() {
            self.cell.abort();
        }
        self.cell.body_ended();
    }
}

/// Polls hyper, and handles deadlines and stops.
struct Driver<'a, Stop> {
    cell: &'a Cell,
    stop: Pin<&'a mut Stop>,
    /// Shows with one atomic read whether `stop` needs a poll.
    glance: watch::Receiver<bool>,
    stopped: bool,
    /// Runs from the stop on; until it fires, a first request may begin.
    first_request: Option<Pin<Box<Sleep>>>,
    /// The timer. It is reset only when it would fire too late or has fired: deadlines move with
    /// every request, mostly further away.
    sleep: Pin<&'a mut Sleep>,
    armed: bool,
}

/// Why hyper was dropped.
enum RunEnd {
    /// Between two messages; another hyper follows.
    Parked,
    Over(Ending),
}

/// A deadline that has passed.
#[derive(Debug, PartialEq, Eq)]
enum PassedDeadline {
    Read(WaitFor),
    Write,
    /// Idle for long enough to be parked.
    Park,
}

/// Whether an idle connection is parked already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParkState {
    Running,
    Parked,
}

impl<Stop: Future> Driver<'_, Stop> {
    /// Whether the connection must stop.
    fn must_stop(&mut self, cx: &mut Context<'_>) -> bool {
        let moved = self.cell.set_waker(cx.waker());
        self.armed &= !moved;
        if !self.stopped && (moved || self.glance.has_changed().unwrap_or(true)) {
            self.glance.mark_unchanged();
            self.stopped = self.stop.as_mut().poll(cx).is_ready();
            self.cell.signals.stopping.set(self.stopped);
        }
        self.stopped
    }

    /// Whether a connection that must stop waits for its first request. The client cannot know
    /// that the server is stopping, and has most likely sent it already.
    fn may_begin(&mut self, cx: &mut Context<'_>) -> bool {
        if self.cell.signals.has_begun.get() {
            return false;
        }
        let first_request = self
            .first_request
            .get_or_insert_with(|| Box::pin(sleep(FIRST_REQUEST_TIME)));
        first_request.as_mut().poll(cx).is_pending()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut hyper: impl FnMut(&mut Context<'_>) -> Poll<bool>,
    ) -> Poll<RunEnd> {
        let signals = &self.cell.signals;
        let mut late = None;
        loop {
            let mut done = hyper(cx);
            if done == Poll::Ready(true) && self.cell.is_flushing() && !signals.tunnel.get() {
                // After a request that offered an upgrade, hyper finishes without flushing; polled
                // again, it flushes.
                done = hyper(cx);
            }
            // If hyper does not read, an expired read deadline has no effect on the body.
            signals.read_expired.set(false);
            let ending = match (done, &late) {
                (_, Some(PassedDeadline::Write)) => Some(Ending::SlowWrite),
                _ if signals.aborted.get() => Some(Ending::Aborted),
                (_, Some(PassedDeadline::Read(WaitFor::Request))) => Some(Ending::Idle),
                (_, Some(PassedDeadline::Read(WaitFor::Head))) => Some(Ending::SlowHead),
                (_, Some(PassedDeadline::Read(WaitFor::Response))) => Some(Ending::Broken),
                (Poll::Ready(true), _) if signals.tunnel.get() => Some(Ending::Upgraded),
                (Poll::Ready(true), _) => Some(Ending::Closed),
                (Poll::Ready(false), _) => Some(Ending::Broken),
                (Poll::Pending, _) => None,
            };
            if let Some(ending) = ending {
                return Poll::Ready(RunEnd::Over(ending));
            }
            if signals.too_wide.get() {
                return Poll::Ready(RunEnd::Parked);
            }
            if late == Some(PassedDeadline::Park) {
                // hyper reads a head only between two messages.
                if signals.at_rest.get() {
                    return Poll::Ready(RunEnd::Parked);
                }
                signals.unparkable.set(true);
            }
            let passed = ready!(self.poll_deadlines(cx, ParkState::Running));
            match passed {
                PassedDeadline::Park => signals.at_rest.set(false),
                PassedDeadline::Write => signals.write_expired.set(true),
                PassedDeadline::Read(_) => {
                    signals.read_expired.set(true);
                    signals.reading.set(None);
                }
            }
            late = Some(passed);
        }
    }

    /// Ready with the first deadline that has passed.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>, park: ParkState) -> Poll<PassedDeadline> {
        loop {
            let Some((until, late)) = self.next_deadline(park) else {
                return Poll::Pending;
            };
            let rings = self.sleep.deadline();
            if !self.armed || rings > until || (self.sleep.is_elapsed() && rings < until) {
                self.sleep.as_mut().reset(until);
                self.armed = true;
            } else if !self.sleep.is_elapsed() {
                return Poll::Pending;
            }
            ready!(self.sleep.as_mut().poll(cx));
            if self.sleep.deadline() >= until {
                return Poll::Ready(late);
            }
        }
    }

    fn next_deadline(&self, park: ParkState) -> Option<(Instant, PassedDeadline)> {
        let signals = &self.cell.signals;
        let read = signals.reading.get().map(|wait| {
            let after = match signals.short.get() {
                true => Duration::ZERO,
                false => PARK_AFTER,
            };
            let parks = wait.since + after;
            let resting = wait.why == WaitFor::Request && !signals.unparkable.get();
            if resting && park == ParkState::Running && parks < wait.until {
                (parks, PassedDeadline::Park)
            } else {
                (wait.until, PassedDeadline::Read(wait.why))
            }
        });
        let write = signals
            .writing
            .get()
            .map(|until| (until, PassedDeadline::Write));
        match (read, write) {
            (Some(read), Some(write)) => Some(if write.0 < read.0 { write } else { read }),
            (read, write) => read.or(write),
        }
    }
}

/// Hands the socket to the tunnel, or closes it.
async fn end(stream: ClientStream, cell: &Cell, ending: Ending) -> Ending {
    match ending {
        Ending::Upgraded => {
            cell.end_rest();
            if let Some(tunnel) = cell.take_tunnel() {
                // If the receiver was dropped, the socket closes here.
                let _ = tunnel.send(stream.into_upgraded());
            }
        }
        Ending::Aborted | Ending::SlowWrite => stream.reset_on_drop(),
        Ending::Closed | Ending::Broken | Ending::Idle | Ending::SlowHead | Ending::Flood => {
            let answered = matches!(ending, Ending::Closed | Ending::Broken);
            let content = stream.content_left().filter(|_| answered);
            let bounds = content.map_or(LINGER, Linger::for_content);
            if let Some((socket, peer)) = stream.into_closing() {
                linger(socket, peer, &bounds).await;
            }
        }
        Ending::NoMemory => {
            if let Some((mut socket, peer)) = stream.into_closing() {
                // The socket's buffer is empty, so this fits into it.
                let _ = timeout(LINGER_TIME, socket.write_all(NO_MEMORY)).await;
                linger(socket, peer, &LINGER).await;
            }
        }
    }
    ending
}

/// Closes so that the client can read everything that was sent. Closing with unread input would
/// send a RST, and many clients then drop data that they have not read yet (RFC 9112, 9.6).
pub(super) async fn linger(mut socket: Socket, peer: ClientSide, bounds: &Linger) {
    if socket.shutdown().await.is_err() || peer == ClientSide::Finished {
        return;
    }
    let drain = async {
        let mut page = vec![0; 4 << 10];
        let mut left = bounds.bytes;
        while left > 0 {
            match timeout(LINGER_TIME, socket.read(&mut page)).await {
                Ok(Ok(0) | Err(_)) | Err(_) => return,
                Ok(Ok(read)) => left = left.saturating_sub(read as u64),
            }
        }
    };
    let _ = timeout(bounds.time, drain).await;
}

/// How much input is read and dropped before a connection closes; at most [`LINGER_TIME`] without
/// input.
pub(super) struct Linger {
    bytes: u64,
    time: Duration,
}

impl Linger {
    /// For a request that was answered before all of its content arrived (RFC 9112, 9.3): many
    /// clients read the response only after they have sent everything. It costs one buffer and one
    /// of the client's connections.
    fn for_content(left: u64) -> Self {
        Self {
            bytes: left.saturating_add(LINGER.bytes),
            time: Duration::from_secs(30),
        }
    }
}

/// For input that a client may have sent before it saw the end.
pub(super) const LINGER: Linger = Linger {
    bytes: 64 << 10,
    time: LINGER_TIME,
};

/// Completes the exchange when the connection ends before it, so that its entry is logged.
struct EndNotifier<'a>(&'a Cell);

impl Drop for EndNotifier<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// Long enough for the next request of a page, short compared to `idle_time`.
pub(super) const PARK_AFTER: Duration = Duration::from_secs(2);

/// Additional memory of a connection while it has a hyper: hyper's state, its two buffers of 8 KiB,
/// and the future of a response, 10 KiB. Measured with `size_of_val`, rounded up.
const ACTIVE_BYTES: usize = 28 << 10;
/// How long a new connection may take to begin its first request when the server stops: some round
/// trips of a slow line.
pub(crate) const FIRST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// The response when there is no memory for hyper.
const NO_MEMORY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Retry-After: 5\r\nContent-Length: 0\r\n\r\n";

pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);
