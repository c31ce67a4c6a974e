//! One client's connection in HTTP/2: hyper frames it, and this looks after what hyper does not.
//!
//! Called by `server` in the place of [`super::serve_connection`]. Each stream has a [`Cell`] of
//! its own, so the service sees one exchange at a time, as it does in HTTP/1.1; [`head`] refuses
//! what `wire::head` would. Below hyper, [`flow`] reads the frames' heads as they pass: what a
//! client may send for nothing is bounded there, and what it may make us hold is set aside.
//!
//! Invariants: an answer that breaks ends in RST_STREAM, never in END_STREAM. A stream whose client
//! takes nothing for `progress_time` is reset, and so is one whose content stops coming; a
//! connection without streams lasts `idle_time`. Interim responses are not sent: hyper has no way
//! to, and 1xx is nobody's due. Cost: beside hyper's buffers one task a stream.

mod body;
mod flow;
pub(crate) mod frames;
mod head;

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::header::EXPECT;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use self::body::OutgoingBody;
use self::flow::{Flow, Framed, OpenStream, StreamProgress};
use super::cell::{Cell, RequestHead};
use super::ending::Ending;
use super::serve::{LINGER, LINGER_TIME, linger};
use super::socket::Socket;
use crate::limits::Limits;
use crate::share::{Allowance, ShareReservation};

pub(crate) use self::body::ClientBody;
pub(crate) use self::frames::PREFACE;

/// Serves `socket` until one side is done. `service` is called once a request, with the stream's
/// own cell. When `stopping` becomes true (or its sender goes), no more requests are taken, and the
/// connection ends with those under way. Dropping the future breaks the connection off.
pub(crate) async fn serve_http2<S, F, B>(
    socket: impl Into<Socket>,
    limits: &Rc<Limits>,
    allowance: Option<&Allowance>,
    service: S,
    mut stopping: watch::Receiver<bool>,
) -> Ending
where
    S: Fn(Rc<Cell>, Request<ClientBody>) -> F + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let socket = socket.into();
    socket.prepare();
    let socket = Rc::new(RefCell::new(socket));
    let flow = Flow::new(Rc::clone(limits), allowance.cloned());
    let service = Rc::new(service);
    let answer = {
        let flow = Rc::clone(&flow);
        move |request: Request<Incoming>| -> Answering<B> {
            // Before anything is made for it: a stream that cannot be paid for costs nothing. And
            // on the heap, so that an answer that waits for its client holds no future any more.
            match flow.pay(STREAM_BYTES + head::fields_size(request.headers())) {
                Some(memory) => {
                    let (flow, service) = (Rc::clone(&flow), Rc::clone(&service));
                    Box::pin(exchange(flow, service, request, memory))
                }
                None => Box::pin(ready(Err(Reason::REFUSED_STREAM.into()))),
            }
        }
    };
    let framed = Framed::new(Rc::clone(&socket), Rc::clone(&flow));
    let mut connection = Box::new(
        builder(limits, StreamExecutor(Rc::clone(&flow)))
            .serve_connection(framed, service_fn(answer)),
    );
    let mut stop = pin!(async move {
        // An error means that the sender has gone, and the server with it.
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
            if let Some(failed) = flow.failed() {
                return Poll::Ready(failed);
            }
            flow.all_entered();
            if let Poll::Ready(done) = done {
                return Poll::Ready(match (leaving, done.is_ok()) {
                    (Some((_, why)), _) => why,
                    (None, true) => Ending::Closed,
                    (None, false) => Ending::Broken,
                });
            }
            // A client that does not confirm the end is not waited for.
            let last = leaving
                .filter(|_| flow.is_resting())
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
        Ending::SlowWrite | Ending::Aborted => socket.reset_on_drop(true),
        _ => linger(socket, flow.peer(), &LINGER).await,
    }
    ending
}

fn builder(limits: &Limits, streams: StreamExecutor) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_streams(u32::try_from(limits.streams).unwrap_or(u32::MAX))
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESETS_UNSEEN)
        .max_local_error_reset_streams(ERRORS_MAX);
    builder
}

/// An answer under way, or the reason of a reset.
type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<OutgoingBody<B>>, h2::Error>>>>;

/// One request and its answer.
async fn exchange<S, F, B>(
    flow: Rc<Flow>,
    service: Rc<S>,
    request: Request<Incoming>,
    memory: Option<ShareReservation>,
) -> Result<Response<OutgoingBody<B>>, h2::Error>
where
    S: Fn(Rc<Cell>, Request<ClientBody>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes> + Unpin,
{
    let (mut parts, content) = request.into_parts();
    let progress = flow.progress();
    let mut content = ClientBody::counted(content, Rc::clone(&flow));
    // Content of a GET has no meaning, so its answer need not begin before it has ended; and what
    // is wrong with the stream comes to light while there is an answer that it can have.
    let waits = parts.method.is_safe() && !parts.headers.contains_key(EXPECT);
    let stopped = waits && content.gather().await.is_err();
    let mut judged = head::judge(&mut parts, &content, flow.limits());
    if stopped {
        judged.head = RequestHead::Refused(body::STOPPED.into());
    }
    let allowance = flow.allowance();
    let share = allowance.as_ref().map(|it| it.share().clone());
    let cell = Cell::of_stream(allowance, judged);
    content.tell(&cell);
    let Ok(response) = service(Rc::clone(&cell), Request::from_parts(parts, content)).await;
    Ok(OutgoingBody::begin(response, cell, progress, memory, share))
}

/// Runs streams as tasks, each with its own deadline.
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
        if flow.take_refused() {
            // Its reset is ready. As a task of its own it would wait behind those of other
            // connections: 20,000 refused requests at once took 25 MiB for that.
            let mut stream = Box::pin(stream);
            let mut cx = Context::from_waker(Waker::noop());
            if stream.as_mut().poll(&mut cx).is_pending() {
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

/// Ready when the client of a stream has taken nothing for `time`; what ends then ends in a reset.
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

/// Content of one stream that a client may send before it is read.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of all streams of a connection. What of it is used is set aside while it is.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What hyper takes of one answer ahead of the client.
const SEND_BUFFER: usize = 64 << 10;
/// Requests taken back before they were looked at (CVE-2023-44487).
const RESETS_UNSEEN: usize = 20;
/// Streams that we had to reset before the connection is given up.
const ERRORS_MAX: usize = 256;
/// What a stream takes beside its content: its task with the future of an answer, its fields.
const STREAM_BYTES: u64 = 24 << 10;

#[cfg(test)]
mod tests;
