//! One client's connection from its first byte to its last.
//!
//! Called by `server` for every connection; runs hyper on a `stream` and acts on what the two leave
//! in the `Cell`: deadlines, aborts, upgrades. Closes so that the client gets all that was sent.
//!
//! Invariant: hyper's state is thrown away only between two messages, so that nothing is lost with
//! it. Cost: a connection that rests for [`PARK_AFTER`] gives back hyper's buffers (about 10 KiB)
//! and builds them anew with the next request, about a microsecond.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::cell::{Cell, WaitFor};
use super::ending::Ending;
use super::socket::Socket;
use super::stream::{ClientSide, ClientStream, NARROW};
use crate::limits::Limits;
use crate::share::ShareReservation;

/// Serves `socket` until one side is done. `service` is called once a request and must take the
/// request's head from `cell`. When `stopping` becomes true (or its sender goes), the current
/// answer is finished and the connection closed. Dropping the future breaks the connection off.
pub(crate) async fn serve_connection<S, B>(
    socket: impl Into<Socket>,
    limits: &Rc<Limits>,
    cell: &Rc<Cell>,
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
    let mut stream = ClientStream::new(socket.into(), limits.clone(), cell.clone());
    let glance = stopping.clone();
    let stop = pin!(async move {
        // An error means that the sender has gone, and the server with it.
        let _ = stopping.wait_for(|&stop| stop).await;
    });
    let sleep = pin!(sleep_until(Instant::now()));
    let mut driver = Driver {
        cell,
        stop,
        glance,
        stopped: false,
        sleep,
        armed: false,
    };
    let ending = loop {
        let waited = poll_fn(|cx| {
            if driver.must_stop(cx) {
                return Poll::Ready(Some(Ending::Closed));
            }
            match stream.poll_needs_hyper(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => driver.poll_deadlines(cx, ParkState::Parked).map(|late| {
                    debug_assert_eq!(late, PassedDeadline::Read(WaitFor::Request));
                    Some(Ending::Idle)
                }),
            }
        });
        if let Some(ending) = waited.await {
            break ending;
        }

        let service = service_fn(|request| {
            // On the heap for as long as it takes: hyper keeps room for it between requests.
            let answer = Box::pin(service.call(request));
            async move { answer.await.map(|response| begin(response, cell)) }
        });
        let Some(memory) = HyperMemory::reserve(cell) else {
            break Ending::NoMemory;
        };
        let width = stream.widen();
        // On the heap, so that a connection at rest is as small as what it needs then.
        let mut connection = Box::new(builder(limits, width).serve_connection(stream, service));
        let mut draining = false;
        let stretch = poll_fn(|cx| {
            if driver.must_stop(cx) && !draining {
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

/// Memory for hyper and what it calls, while there is a hyper.
struct HyperMemory(#[expect(dead_code, reason = "held until dropped")] Option<ShareReservation>);

impl HyperMemory {
    /// As soon as half of the budget is spent, a connection does not keep this between two
    /// requests: else those that rest would keep those that ask from being served.
    fn reserve(cell: &Cell) -> Option<Self> {
        let spare = cell.reserve_spare(ACTIVE_BYTES);
        cell.signals.short.set(spare.is_err());
        // Of bulk's share first: a slow client holds it as long as it holds its content.
        let memory = spare
            .or_else(|_| cell.reserve(ACTIVE_BYTES))
            .or_else(|_| cell.reserve_last(ACTIVE_BYTES));
        memory.ok().map(Self)
    }
}

/// hyper's part. What `stream` bounds, hyper need not: its buffer must only hold what `stream` lets
/// pass, and its timers stay off.
fn builder(limits: &Limits, width: usize) -> http1::Builder {
    // The smallest size hyper takes.
    const BUFFER_MIN: usize = 8 << 10;
    let mut builder = http1::Builder::new();
    builder
        .title_case_headers(true)
        .half_close(false)
        .header_read_timeout(None)
        .max_buf_size((limits.head_bytes + 1).max(BUFFER_MIN));
    if width > NARROW {
        // Makes hyper allocate for each request, so not before it is needed.
        builder.max_headers(width);
    }
    builder
}

/// Notes what kind of answer this is, and follows its body.
fn begin<B: Body + Unpin>(mut response: Response<B>, cell: &Rc<Cell>) -> Response<TrackedBody<B>> {
    let asked = cell.answer();
    let status = response.status();
    if asked.connect && status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        // Content that is still to come would be taken for the other protocol.
        cell.signals.tunnel.set(cell.signals.request_read.get());
    } else if cell.is_last() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let bodiless =
        asked.head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let close_delimited = asked.http_10
        && !bodiless
        && !response.headers().contains_key(CONTENT_LENGTH)
        && response.body().size_hint().exact().is_none();
    cell.signals.close_delimited.set(close_delimited);
    response.map(|body| TrackedBody {
        body,
        cell: cell.clone(),
        close_delimited,
        complete: false,
    })
}

/// An answer's body, followed to its end.
struct TrackedBody<B: Body + Unpin> {
    body: B,
    cell: Rc<Cell>,
    close_delimited: bool,
    complete: bool,
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        this.complete |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body + Unpin> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        // hyper would end an answer to HTTP/1.0 that broke off as it ends a whole one.
        if self.close_delimited && !self.complete && !self.body.is_end_stream() {
            self.cell.abort();
        }
        self.cell.body_ended();
    }
}

/// Polls hyper, and looks after what hyper does not.
struct Driver<'a, Stop> {
    cell: &'a Cell,
    stop: Pin<&'a mut Stop>,
    /// Tells for a glance at an atomic whether `stop` is worth a poll.
    glance: watch::Receiver<bool>,
    stopped: bool,
    /// The timer. It is set anew only when it would ring late, or has rung: deadlines move with
    /// every request, and mostly away.
    sleep: Pin<&'a mut Sleep>,
    armed: bool,
}

/// How one hyper came to its end.
enum RunEnd {
    /// Between two messages, to go on with another.
    Parked,
    Over(Ending),
}

/// A deadline that has passed.
#[derive(Debug, PartialEq, Eq)]
enum PassedDeadline {
    Read(WaitFor),
    Write,
    /// At rest for long enough to be parked.
    Park,
}

/// Whether a connection at rest is parked already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParkState {
    Running,
    Parked,
}

impl<Stop: Future> Driver<'_, Stop> {
    /// Whether we were told to stop.
    fn must_stop(&mut self, cx: &mut Context<'_>) -> bool {
        let moved = self.cell.set_waker(cx.waker());
        self.armed &= !moved;
        if !self.stopped && (moved || self.glance.has_changed().unwrap_or(true)) {
            self.glance.mark_unchanged();
            self.stopped = self.stop.as_mut().poll(cx).is_ready();
        }
        self.stopped
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
                // After a request that offered an upgrade, hyper is done without having flushed;
                // asked again, it flushes.
                done = hyper(cx);
            }
            // Not taken up if hyper does not read: then it is of no consequence for a body.
            signals.read_expired.set(false);
            let ending = match (done, &late) {
                (_, Some(PassedDeadline::Write)) => Some(Ending::SlowWrite),
                _ if signals.aborted.get() => Some(Ending::Aborted),
                (_, Some(PassedDeadline::Read(WaitFor::Request))) => Some(Ending::Idle),
                (_, Some(PassedDeadline::Read(WaitFor::Head))) => Some(Ending::SlowHead),
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
                // hyper asks for a head when it is between two messages, and only then.
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

/// Gives the socket to the tunnel, or closes it.
async fn end(stream: ClientStream, cell: &Cell, ending: Ending) -> Ending {
    match ending {
        Ending::Upgraded => {
            if let Some(tunnel) = cell.take_tunnel() {
                // Whoever asked for the socket may have gone; then it closes here.
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
                // Nothing of this connection's is in the socket's buffer, so it fits.
                let _ = timeout(LINGER_TIME, socket.write_all(NO_MEMORY)).await;
                linger(socket, peer, &LINGER).await;
            }
        }
    }
    ending
}

/// Closes so that the client can read all that was sent: closing with input unread is answered with
/// a RST, which makes many clients throw away what they have not read yet (RFC 9112, 9.6).
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

/// How much is read and thrown away before a connection closes; in silence, [`LINGER_TIME`].
pub(super) struct Linger {
    bytes: u64,
    time: Duration,
}

impl Linger {
    /// For a request that was answered before all of its content came (RFC 9112, 9.3): many clients
    /// read only when they have sent it. It costs the page it is read into, and a place among the
    /// client's connections.
    fn for_content(left: u64) -> Self {
        Self {
            bytes: left.saturating_add(LINGER.bytes),
            time: Duration::from_secs(30),
        }
    }
}

/// What a client may have sent on before it saw the end.
pub(super) const LINGER: Linger = Linger {
    bytes: 64 << 10,
    time: LINGER_TIME,
};

/// Tells whoever waits for the end of an exchange when the connection ends before it.
struct EndNotifier<'a>(&'a Cell);

impl Drop for EndNotifier<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// Long enough for a page's next request, short beside `idle_time`.
pub(super) const PARK_AFTER: Duration = Duration::from_secs(2);

/// What a connection takes beyond one at rest while it has a hyper: hyper's state, its two buffers
/// of 8 KiB, and the future of an answer, 10 KiB. Counted by `size_of_val`, rounded up.
const ACTIVE_BYTES: usize = 28 << 10;

/// Said when that cannot be had.
const NO_MEMORY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Retry-After: 5\r\nContent-Length: 0\r\n\r\n";

pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);
