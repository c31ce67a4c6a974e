//! A client's HTTP/1.1 connection from the first byte to the last.
//!
//! `server` in the proxy calls it for every connection. It reads requests from a `stream`, calls
//! the service, and writes the response (`answer`); it handles deadlines, aborts and upgrades. It
//! closes a connection in such a way that the client can read everything that was sent.
//!
//! Invariant: a single request at a time; the next is read after the previous response was sent.
//! Cost: an idle connection has no buffer, and budget memory only while a request is served.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::limits::Limits;
use hashcache_base::share::ShareReservation;
use http::{Request, Response};
use http_body::Body;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::answer::Answer;
use super::cell::{Cell, WaitFor};
use super::content::{ConnContent, SharedStream};
use super::ending::Ending;
use super::http2::ClientBody;
use super::linger::{LINGER, LINGER_TIME, Linger, linger};
use super::memory_hit::MemoryHits;
use super::socket::Socket;
use super::stream::{ClientStream, NextRequest};

/// Serves `socket` until either side closes it. `service` is called once per request that
/// `memory_hits` does not answer, and must take the head from `cell`. When `stopping` becomes true
/// (or its sender is dropped), the current response is completed and the connection closed; a
/// client that has not yet sent a request may still make a single request. Dropping the future
/// aborts the connection.
pub async fn serve_connection<S, F, B>(
    socket: impl Into<Socket>,
    limits: &Rc<Limits>,
    cell: &Rc<Cell>,
    memory_hits: Option<Rc<dyn MemoryHits>>,
    service: S,
    mut stopping: watch::Receiver<bool>,
) -> Ending
where
    S: Fn(Request<ClientBody>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin + 'static,
{
    let _told = EndNotifier(cell);
    let stream = ClientStream::new(socket.into(), limits.clone(), cell.clone(), memory_hits);
    let stream: SharedStream = Rc::new(Some(stream).into());
    let _closed = CloseOnDrop(&stream);
    let glance = stopping.clone();
    let stop = pin!(async move {
        // An error means that the sender was dropped, so the server has stopped.
        let _ = stopping.wait_for(|&stop| stop).await;
    });
    let sleep = pin!(sleep_until(Instant::now()));
    let mut driver = Driver {
        cell,
        stream: &stream,
        stop,
        glance,
        stopped: false,
        first_request: None,
        sleep,
        armed: false,
    };
    let ending = loop {
        let next = match poll_fn(|cx| driver.poll_next(cx)).await {
            Ok(next) => next,
            Err(ending) => break ending,
        };
        let Some(memory) = reserve_active(cell) else {
            break Ending::NoMemory;
        };
        let content = ConnContent::new(&stream, next.content, next.expects);
        let request = next.request.map(|()| ClientBody::plain(content));
        let mut exchange = Exchange::Asked(Box::pin(service(request)));
        let ended =
            poll_fn(|cx| driver.poll_exchange(cx, |cx| exchange.poll(cx, cell, &stream))).await;
        drop((exchange, memory));
        if let Err(ending) = ended {
            break ending;
        }
    };
    let stream = stream.borrow_mut().take();
    match stream {
        Some(stream) => end(stream, cell, ending).await,
        None => ending,
    }
}

/// Reserves memory for a request and the response.
///
/// When half of the budget is used, it is taken from memory that no other connection has reserved,
/// because idle connections must not keep active connections from being served.
fn reserve_active(cell: &Cell) -> Option<Option<ShareReservation>> {
    // Bulk memory first, because a slow client holds it as long as the content.
    let memory = cell
        .reserve_spare(ACTIVE_BYTES)
        .or_else(|_| cell.reserve(ACTIVE_BYTES))
        .or_else(|_| cell.reserve_last(ACTIVE_BYTES));
    memory.ok()
}

/// A request being served. On the heap, so that an idle connection stays small.
enum Exchange<F, B> {
    Asked(Pin<Box<F>>),
    Answering(Box<Answer<B>>),
    Finishing { is_kept: bool },
}

impl<F, B> Exchange<F, B>
where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    /// Continues the exchange. After an error the connection closes.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        cell: &Cell,
        stream: &SharedStream,
    ) -> Poll<Result<(), Ending>> {
        loop {
            *self = match self {
                Self::Asked(answering) => match answering.as_mut().poll(cx) {
                    Poll::Ready(response) => {
                        Self::Answering(Box::new(Answer::begin(response, cell)))
                    }
                    Poll::Pending => return poll_beside(cx, stream),
                },
                Self::Answering(answer) => match answer.poll(cx, stream) {
                    Poll::Ready(written) => {
                        written?;
                        let is_kept = answer.is_kept;
                        cell.body_ended();
                        Self::Finishing { is_kept }
                    }
                    Poll::Pending => return poll_beside(cx, stream),
                },
                Self::Finishing { is_kept } => return poll_end(cx, cell, stream, *is_kept),
            };
        }
    }
}

/// Work while the connection waits for the response or the client: sends interim responses, and
/// detects a client that disconnects.
fn poll_beside(cx: &mut Context<'_>, stream: &SharedStream) -> Poll<Result<(), Ending>> {
    let mut stream = stream.borrow_mut();
    let stream = stream.as_mut().ok_or(Ending::Broken)?;
    if let Poll::Ready(Err(_)) = stream.poll_interim(cx) {
        return Poll::Ready(Err(Ending::Broken));
    }
    stream.poll_ahead(cx).map(|_| Err(Ending::Broken))
}

/// Handles the end of a written response.
fn poll_end(
    cx: &mut Context<'_>,
    cell: &Cell,
    stream: &SharedStream,
    is_kept: bool,
) -> Poll<Result<(), Ending>> {
    let mut stream = stream.borrow_mut();
    let stream = stream.as_mut().ok_or(Ending::Broken)?;
    ready!(stream.poll_finish(cx)).map_err(|_| Ending::Broken)?;
    Poll::Ready(if cell.signals.tunnel.get() {
        Err(Ending::Upgraded)
    } else if is_kept && stream.skip_content(cx) {
        Ok(())
    } else {
        Err(Ending::Closed)
    })
}

/// Handles deadlines and stop requests for a connection.
struct Driver<'a, Stop> {
    cell: &'a Cell,
    stream: &'a SharedStream,
    stop: Pin<&'a mut Stop>,
    /// Receiver that shows, with a single atomic read, if `stop` needs a poll.
    glance: watch::Receiver<bool>,
    stopped: bool,
    /// Started when the connection must stop; until it fires, a first request is still accepted.
    first_request: Option<Pin<Box<Sleep>>>,
    /// The timer. It is reset only if it would fire too late or has fired, because deadlines move
    /// with every request, mostly further away.
    sleep: Pin<&'a mut Sleep>,
    armed: bool,
}

/// A passed deadline.
#[derive(Debug, PartialEq, Eq)]
enum PassedDeadline {
    Read(WaitFor),
    Write,
}

impl<Stop: Future> Driver<'_, Stop> {
    /// Returns true if the connection must stop.
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

    /// Returns true if a connection that must stop waits for a first request. The client cannot
    /// know that the server is stopping, and has most likely already sent the request.
    fn may_begin(&mut self, cx: &mut Context<'_>) -> bool {
        if self.cell.signals.has_begun.get() {
            return false;
        }
        let first_request = self
            .first_request
            .get_or_insert_with(|| Box::pin(sleep(FIRST_REQUEST_TIME)));
        first_request.as_mut().poll(cx).is_pending()
    }

    /// The next request for the service, or the reason for closing the connection.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<NextRequest, Ending>> {
        let is_answering = |stream: &ClientStream| stream.is_answering();
        if self.must_stop(cx)
            && !self.stream.borrow().as_ref().is_some_and(is_answering)
            && !self.may_begin(cx)
        {
            return Poll::Ready(Err(Ending::Closed));
        }
        let polled = match self.stream.borrow_mut().as_mut() {
            Some(stream) => stream.poll_next(cx),
            None => return Poll::Ready(Err(Ending::Broken)),
        };
        match polled {
            Poll::Ready(Ok(Some(request))) => return Poll::Ready(Ok(request)),
            Poll::Ready(Ok(None)) => return Poll::Ready(Err(Ending::Closed)),
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Ending::Broken)),
            Poll::Pending => {}
        }
        let late = ready!(self.poll_deadlines(cx));
        Poll::Ready(Err(match late {
            PassedDeadline::Write => Ending::SlowWrite,
            PassedDeadline::Read(WaitFor::Head) => Ending::SlowHead,
            PassedDeadline::Read(_) => Ending::Idle,
        }))
    }

    /// Polls an exchange until it is complete. After an error the connection closes.
    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<(), Ending>>,
    ) -> Poll<Result<(), Ending>> {
        loop {
            self.must_stop(cx);
            let polled = poll(cx);
            if polled.is_ready() {
                return polled;
            }
            match ready!(self.poll_deadlines(cx)) {
                PassedDeadline::Write => return Poll::Ready(Err(Ending::SlowWrite)),
                PassedDeadline::Read(WaitFor::Body) => {
                    if let Some(stream) = self.stream.borrow_mut().as_mut() {
                        stream.end_content();
                    }
                }
                PassedDeadline::Read(_) => return Poll::Ready(Err(Ending::Broken)),
            }
        }
    }

    /// Ready with the first passed deadline.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<PassedDeadline> {
        loop {
            let Some((until, late)) = self.next_deadline() else {
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

    fn next_deadline(&self) -> Option<(Instant, PassedDeadline)> {
        let signals = &self.cell.signals;
        let read = signals.reading.get();
        let read = read.map(|wait| (wait.until, PassedDeadline::Read(wait.why)));
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

/// Passes the socket to the tunnel, or closes it.
async fn end(stream: ClientStream, cell: &Cell, ending: Ending) -> Ending {
    if stream.must_reset() {
        stream.reset_on_drop();
        return ending;
    }
    match ending {
        Ending::Upgraded => {
            cell.end_rest();
            if let Some(tunnel) = cell.take_tunnel() {
                // If the receiver was dropped, the socket closes here.
                let _ = tunnel.send(stream.into_upgraded());
            }
        }
        Ending::SlowWrite => stream.reset_on_drop(),
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
                // The socket's buffer is empty, so this response fits into it.
                let _ = timeout(LINGER_TIME, socket.write_all(NO_MEMORY)).await;
                linger(socket, peer, &LINGER).await;
            }
        }
    }
    ending
}

/// Closes the connection even if the request content is still referenced.
struct CloseOnDrop<'a>(&'a SharedStream);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Completes the exchange if the connection closes earlier, so that it is still logged.
struct EndNotifier<'a>(&'a Cell);

impl Drop for EndNotifier<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// Memory of a connection while a request is served: the response future, 10 KiB, the request
/// content read so far, and the bytes waiting to be written. Measured with `size_of_val`, rounded
/// up.
const ACTIVE_BYTES: usize = 28 << 10;
/// How long a new connection may take to start the first request when the server stops: some round
/// trips on a slow line.
pub const FIRST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// The response if there is no memory to serve a request.
const NO_MEMORY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Retry-After: 5\r\nContent-Length: 0\r\n\r\n";
