//! A client's HTTP/2 connection: hyper frames it; this module adds checks, limits and accounting.
//!
//! `server` in the proxy calls it instead of [`super::serve_connection`]. Each stream has a
//! separate [`Cell`], so the service sees one exchange at a time, as in HTTP/1.1. [`head`] refuses
//! the requests that `crate::head` would refuse. Below hyper, [`flow`] parses the frame heads: it
//! limits frames that cost the client nothing, and reserves memory for the data that they make us
//! hold.
//!
//! Invariants: a failed response is terminated by RST_STREAM, never by END_STREAM. A stream is
//! reset if the client reads nothing for `progress_time`, or if the client's content stops
//! arriving. A connection without streams lasts `idle_time`. Interim responses, which hyper cannot
//! send, are written between hyper's frames ([`interim`]). Cost: hyper's buffers and one task per
//! stream, except for responses from memory of up to 64 KiB that the client has room for
//! ([`memory_hit`]).

mod body;
pub(crate) mod fields;
mod flow;
pub mod frames;
mod head;
pub(crate) mod interim;
mod memory_hit;
mod pings;
mod tunnel;

use std::cell::RefCell;
use std::error::Error;
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use hashcache_base::limits::Limits;
use hashcache_base::share::{Allowance, ShareReservation};
use hashcache_link::counters::LinkCounters;
use hashcache_link::pieces::Pieces;
use hashcache_link::{PING_AFTER, PING_TIMEOUT, TUNNEL_BYTES, Windows};
use http::header::EXPECT;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use self::body::OutgoingBody;
use self::flow::{Flow, Framed, OpenStream, StreamProgress, StreamTurn};
use self::memory_hit::Content;
use self::tunnel::{StreamTunnel, TunnelContent};
use super::cell::{Cell, RequestHead, Upgraded};
use super::ending::Ending;
use super::head::{Refusal, refuse};
use super::linger::{LINGER, LINGER_TIME, linger};
use super::memory_hit::MemoryHits;
use super::socket::Socket;

pub use self::body::ClientBody;
pub use self::flow::link_bytes;
pub use self::frames::PREFACE;
pub use self::pings::Pings;

/// Kind of an HTTP/2 connection.
#[derive(Clone, Debug)]
pub enum Http2Kind {
    /// A client's connection.
    Client,
    /// A child's link: its streams may be tunnels, and PINGs keep it open.
    Link {
        /// Flow-control windows of the connection.
        windows: Windows,
        /// Counters for the link.
        counters: Arc<LinkCounters>,
    },
}

/// Serves `socket` until either side closes it. `service` is called with the stream's cell once per
/// request that `memory_hits` does not answer. When `stopping` becomes true (or its sender is
/// dropped), the connection accepts no more requests and closes after the requests in progress.
/// Dropping the future aborts the connection.
pub async fn serve_http2<S, F, B>(
    socket: impl Into<Socket>,
    (limits, kind): (&Rc<Limits>, &Http2Kind),
    allowance: Option<&Allowance>,
    memory_hits: Option<Rc<dyn MemoryHits>>,
    service: S,
    mut stopping: watch::Receiver<bool>,
) -> Ending
where
    S: Fn(Rc<Cell>, Request<ClientBody>) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let socket = socket.into();
    socket.prepare();
    let socket = Rc::new(RefCell::new(socket));
    let flow = Flow::new(Rc::clone(limits), allowance.cloned(), kind);
    let service = Rc::new(service);
    let answer = {
        let flow = Rc::clone(&flow);
        move |mut request: Request<Incoming>| -> Answering<B> {
            let stream = interim::take_stream(request.headers_mut());
            // Memory is reserved first, so that a refused stream costs nothing. The future is on
            // the heap, so that it is freed while a response waits for its client.
            let bytes = if flow.has_tunnels() && request.method() == Method::CONNECT {
                TUNNEL_BYTES.max(STREAM_BYTES)
            } else {
                STREAM_BYTES
            };
            let allowance = flow.allowance_for(request.headers());
            let bytes = bytes + head::fields_size(request.headers());
            match flow.pay(allowance.as_ref(), bytes) {
                Some(memory) => {
                    let flow = Rc::clone(&flow);
                    let hit = memory_hits.as_deref().and_then(|memory_hits| {
                        memory_hit::answer(memory_hits, flow.limits(), &request)
                    });
                    match hit {
                        Some((response, cell)) => {
                            flow.poll_next_at_once();
                            let response = response.map(Content::Memory);
                            Box::pin(begin_hit(flow, response, cell, memory))
                        }
                        None => Box::pin(exchange(
                            flow,
                            Rc::clone(&service),
                            request,
                            stream,
                            allowance,
                            memory,
                        )),
                    }
                }
                None => Box::pin(ready(Err(Reason::REFUSED_STREAM.into()))),
            }
        }
    };
    let framed = Framed::new(Rc::clone(&socket), Rc::clone(&flow));
    let mut connection = Box::new(
        builder(limits, kind, StreamExecutor(Rc::clone(&flow)))
            .serve_connection(framed, service_fn(answer)),
    );
    let mut stop = pin!(async move {
        // An error means that the sender was dropped, so the server has stopped.
        let _ = stopping.wait_for(|&stop| stop).await;
    });
    let mut leaving: Option<(Instant, Ending)> = None;
    let mut sleep = pin!(sleep_until(Instant::now()));
    let ending = poll_fn(|cx| {
        flow.set_waker(cx.waker());
        loop {
            if leaving.is_none() && stop.as_mut().poll(cx).is_ready() {
                leaving = Some((Instant::now(), Ending::Closed));
                Pin::new(&mut *connection).graceful_shutdown();
            }
            let done = Pin::new(&mut *connection).poll(cx);
            if flow.has_interim() {
                // hyper itself sees a socket error.
                let _ = flow.poll_interim(&mut socket.borrow_mut(), cx);
            }
            if let Some(failed) = flow.failed() {
                return Poll::Ready(failed);
            }
            flow.all_entered();
            flow.note_rest();
            if let Poll::Ready(done) = done {
                return Poll::Ready(match (leaving, done.is_ok()) {
                    (Some((_, why)), _) => why,
                    (None, true) => Ending::Closed,
                    (None, false) => Ending::Broken,
                });
            }
            // Do not wait forever for a client that does not confirm the shutdown.
            let last = leaving
                .filter(|_| flow.is_idle())
                .map(|(since, why)| (since.max(flow.rests_since()) + LINGER_TIME, why));
            let Some((until, why)) = last.or_else(|| flow.deadline()) else {
                return Poll::Pending;
            };
            if sleep.deadline() != until {
                sleep.as_mut().reset(until);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if why == Ending::Idle && leaving.is_none() {
                leaving = Some((Instant::now(), Ending::Idle));
                Pin::new(&mut *connection).graceful_shutdown();
                continue;
            }
            return Poll::Ready(why);
        }
    })
    .await;
    drop(connection);
    let Some(socket) = Rc::into_inner(socket).map(RefCell::into_inner) else {
        return ending;
    };
    match ending {
        Ending::SlowWrite => socket.reset_on_drop(true),
        _ => linger(socket, flow.peer(), &LINGER).await,
    }
    ending
}

fn builder(
    limits: &Limits,
    kind: &Http2Kind,
    streams: StreamExecutor,
) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    let (windows, send_buffer) = match kind {
        Http2Kind::Client => (CLIENT_WINDOWS, SEND_BUFFER),
        Http2Kind::Link { windows, .. } => {
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_AFTER)
                .keep_alive_timeout(PING_TIMEOUT);
            (*windows, hashcache_link::SEND_BUFFER)
        }
    };
    builder
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_send_buf_size(send_buffer)
        .max_concurrent_streams(u32::try_from(limits.streams).unwrap_or(u32::MAX))
        .max_header_list_size(u32::try_from(limits.head_bytes + MARK).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESETS_UNSEEN)
        .max_local_error_reset_streams(ERRORS_MAX);
    builder
}

/// A response in progress, or the reason for a reset.
type Answering<B> = Pin<Box<dyn Future<Output = Answered<B>>>>;

type Answered<B> = Result<Response<OutgoingBody<Content<B>>>, h2::Error>;

/// Handles a request and sends the response.
async fn exchange<S, F, B>(
    flow: Rc<Flow>,
    service: Rc<S>,
    mut request: Request<Incoming>,
    stream: Option<u32>,
    allowance: Option<Allowance>,
    memory: Option<ShareReservation>,
) -> Answered<B>
where
    S: Fn(Rc<Cell>, Request<ClientBody>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + Unpin,
{
    let is_tunnel = flow.has_tunnels() && request.method() == Method::CONNECT;
    let upgrade = is_tunnel.then(|| hyper::upgrade::on(&mut request));
    let (mut parts, content) = request.into_parts();
    let progress = flow.progress();
    let turn = flow.turn(&parts.headers);
    let mut content = ClientBody::counted(content, Rc::clone(&flow));
    if !is_tunnel {
        content.acknowledge(|| turn.as_ref().map(StreamTurn::read));
    }
    // The content of a GET has no meaning, so the response can wait until the content is read. An
    // error in the content is then found while an error response is still possible.
    let expects = parts.headers.contains_key(EXPECT);
    let waits = parts.method.is_safe() && !expects;
    let stopped = waits && content.gather().await.is_err();
    let mut judged = if is_tunnel {
        head::judge_tunnel(&mut parts, flow.limits())
    } else {
        let sender = if flow.has_tunnels() {
            head::Sender::Child
        } else {
            head::Sender::Client
        };
        head::judge(&mut parts, &content, (sender, flow.limits()))
    };
    let counted = is_tunnel.then(|| flow.begin_tunnel()).flatten();
    if is_tunnel && counted.is_none() {
        judged.head = RequestHead::Refused(TOO_MANY_TUNNELS.into());
    }
    if stopped {
        judged.head = RequestHead::Refused(content.refusal().into());
    }
    let share = allowance.as_ref().map(|it| it.share().clone());
    let cell = Cell::of_stream(allowance, judged);
    content.tell(&cell, expects);
    let interim = stream.map(|stream| InterimStream::begin(&flow, &cell, stream));
    let response = service(Rc::clone(&cell), Request::from_parts(parts, content)).await;
    if let Some(interim) = interim {
        interim.end();
    }
    let mut memory = memory;
    let upgrade = upgrade.zip(counted).zip(cell.take_tunnel());
    let content = TunnelContent::from_fields(response.headers());
    if let Some(((upgrade, counted), tunnel)) = upgrade {
        let (reader, open, memory) = (flow.want_content(), flow.open(), memory.take());
        let turns = turn.as_ref().map(|turn| (turn.read(), turn.send()));
        spawn_local(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let stream = StreamTunnel {
                io: Pieces::new(TokioIo::new(upgraded)),
                reader,
                content,
                _open: open,
                counted,
                turns,
                _memory: memory,
            };
            // An error means that the service has dropped the tunnel.
            let _ = tunnel.send(Upgraded {
                socket: Socket::of_stream(stream),
                read: Bytes::new(),
            });
        });
    }
    let response = response.map(Content::Service);
    let is_tunnel_now = is_tunnel && response.status() == StatusCode::OK;
    let sending = turn.filter(|_| !is_tunnel_now).map(|turn| turn.send());
    let outgoing = OutgoingBody::begin(response, cell, progress, memory, share);
    Ok(outgoing.map(|body| body.in_turn(sending)))
}

/// A stream with a request in progress, which may get interim responses.
struct InterimStream {
    flow: Rc<Flow>,
    cell: Rc<Cell>,
    stream: u32,
    has_ended: bool,
}

impl InterimStream {
    fn begin(flow: &Rc<Flow>, cell: &Rc<Cell>, stream: u32) -> Self {
        let to = Rc::downgrade(flow);
        cell.set_interim_sender(Box::new(move |status, fields| {
            to.upgrade()
                .is_some_and(|flow| flow.queue_interim(stream, status, fields))
        }));
        Self {
            flow: Rc::clone(flow),
            cell: Rc::clone(cell),
            stream,
            has_ended: false,
        }
    }

    /// The response starts: waiting interim responses are sent before it.
    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for InterimStream {
    fn drop(&mut self) {
        self.cell.clear_interim_sender();
        if !self.has_ended {
            // The stream was reset; a frame on it could make the client close the connection.
            self.flow.forget_interim(self.stream);
        }
    }
}

/// Starts a response from memory when the stream is polled, because the progress is known only
/// then.
async fn begin_hit<B: Body<Data = Bytes> + Unpin>(
    flow: Rc<Flow>,
    response: Response<Content<B>>,
    cell: Rc<Cell>,
    memory: Option<ShareReservation>,
) -> Answered<B> {
    let share = flow.allowance().map(|it| it.share().clone());
    let progress = flow.progress();
    Ok(OutgoingBody::begin(response, cell, progress, memory, share))
}

const TOO_MANY_TUNNELS: Refusal = refuse(
    StatusCode::SERVICE_UNAVAILABLE,
    "the child has too many tunnels",
);

/// Runs streams as tasks, each with a separate deadline. Streams that need not wait are polled at
/// once.
#[derive(Clone)]
struct StreamExecutor(Rc<Flow>);

impl<T> Executor<T> for StreamExecutor
where
    T: Future<Output = ()> + 'static,
{
    fn execute(&self, stream: T) {
        let flow = &self.0;
        let open = flow.open();
        let progress = Rc::new(StreamProgress {
            entry: flow.enter(),
            ..StreamProgress::default()
        });
        if flow.take_polled_at_once() {
            // The reset or the response is ready. As a task it would wait behind the tasks of other
            // connections: 20,000 refused requests at once took 25 MiB in that way.
            let mut stream = Box::pin(stream);
            let mut cx = Context::from_waker(Waker::noop());
            let poll = || stream.as_mut().poll(&mut cx);
            if flow.with_progress(&progress, poll).is_pending() {
                self.spawn(stream, open, progress);
            }
        } else {
            self.spawn(stream, open, progress);
        }
    }
}

impl StreamExecutor {
    fn spawn(
        &self,
        stream: impl Future<Output = ()> + 'static,
        open: OpenStream,
        progress: Rc<StreamProgress>,
    ) {
        let flow = Rc::clone(&self.0);
        spawn_local(async move {
            let mut stream = pin!(stream);
            let mut sleep = pin!(sleep_until(Instant::now()));
            poll_fn(|cx| {
                let done = flow.with_progress(&progress, || stream.as_mut().poll(cx));
                if done.is_ready() {
                    return Poll::Ready(());
                }
                poll_stalled(cx, &progress, flow.limits().progress_time, sleep.as_mut())
            })
            .await;
            drop(open);
        });
    }
}

/// Ready when the client of a stream has read nothing for `time`; the stream is then reset.
fn poll_stalled(
    cx: &mut Context<'_>,
    progress: &StreamProgress,
    time: Duration,
    mut sleep: Pin<&mut tokio::time::Sleep>,
) -> Poll<()> {
    let Some(since) = progress.waits_since.get() else {
        return Poll::Pending;
    };
    if sleep.deadline() != since + time {
        sleep.as_mut().reset(since + time);
    }
    sleep.poll(cx)
}

/// Unread content that a client may send. Memory is reserved only while it is used.
const CLIENT_WINDOWS: Windows = Windows {
    stream: 256 << 10,
    connection: 1 << 20,
};
/// Maximum bytes that the stream mark adds to a head.
const MARK: usize = 64;
/// Bytes of a response that hyper buffers ahead of the client.
const SEND_BUFFER: usize = 64 << 10;
/// Streams that a client may reset before we have seen them (CVE-2023-44487).
const RESETS_UNSEEN: usize = 20;
/// Streams that we may reset before the connection is closed.
const ERRORS_MAX: usize = 256;
/// Memory of a stream besides its content: the task with the response future, and the fields.
const STREAM_BYTES: u64 = 24 << 10;

#[cfg(test)]
mod tests;
