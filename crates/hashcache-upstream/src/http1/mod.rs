//! An HTTP/1.1 connection to an origin or a peer.
//!
//! `pool` keeps it while it is idle; `exchange` sends a request on it and gets the head of the
//! response, `response_body` the content. The task that waits for the response also reads the
//! connection: there is no task between. Only a request with content has an extra task, which sends
//! the content while the response may already arrive.
//!
//! ```text
//!   send ──▶ request ──▶ socket ──▶ repair ──▶ head ──▶ interim responses, Response
//!     └─────▶ upload ──────▶┘  └────▶ chunks ──▶ content ──▶ ResponseBody
//! ```
//!
//! Invariants: the response of an origin that answers early and closes is not lost: a failed write
//! stops the sending, and reading continues to the response or to the error. A byte that arrives
//! without a request closes the connection. Memory for reads is reserved first (`memory`).
//! Cost: a buffer while a response is read, and none while the connection is idle; a single
//! allocation for the head, which the values share, and the map of the fields.

mod chunks;
mod content;
mod head;
mod memory;
mod repair;
mod request;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, BufMut as _, BytesMut};
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_base::share::Share;
use hashcache_base::task::spawn_local;
use hashcache_http::keeps_connection;
use hashcache_wire::Outgoing;
use http::HeaderMap;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::task::{AbortHandle, coop};

use self::head::HeadLimits;
use self::repair::HeadRepair;
use self::request::{SentFraming, write_head};
use super::channel::Channel;
use super::meter::Meter;
use super::request_body::RequestBody;
use super::transport::Transport;

pub(super) use self::content::Http1Content;
pub(super) use self::memory::{READ_MAX, ReadMemory, buffered};

/// A connection; a clone is a handle to the same connection.
#[derive(Clone)]
pub(super) struct Http1Conn(Rc<RefCell<Conn>>);

/// A connection's state.
struct Conn {
    stream: Transport<Channel>,
    meter: Meter,
    memory: ReadMemory,
    head_limits: HeadLimits,
    /// Bytes that were read and not taken yet.
    read: BytesMut,
    repair: HeadRepair,
    /// A write has failed.
    is_broken: bool,
    /// Set when the server's bytes are over: a clean or a broken end.
    end: Option<ReadEnd>,
    /// Both sides keep the connection after the current response.
    is_kept: bool,
    /// The upload task for the request content, if there is one.
    upload: Upload,
}

/// Upload state for a request's content.
#[derive(Default)]
enum Upload {
    #[default]
    Done,
    /// `Waker` of the task that waits for the response.
    Running(AbortHandle, Option<Waker>),
    /// The client's content broke off.
    Failed,
}

/// Clean or broken end of the bytes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// With a FIN, in TLS with close_notify.
    Clean,
    Broken,
}

/// A read's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadFor {
    Head,
    Content,
}

thread_local! {
    /// The read buffer of the last response of this thread, which the next response reuses: this
    /// saves a 12 KiB allocation for each response.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
}

/// A request to send.
pub(super) enum SentRequest<'a> {
    /// The request has content, which an upload task takes.
    Given(Box<Request<RequestBody>>),
    /// The request has no content, and the caller may need it for another attempt.
    Kept(&'a Request<RequestBody>),
}

impl SentRequest<'_> {
    fn head(&self) -> &Request<RequestBody> {
        match self {
            Self::Given(request) => request,
            Self::Kept(request) => request,
        }
    }
}

impl Http1Conn {
    /// Makes a connection on a connected stream.
    pub(super) fn new(
        stream: Transport<Channel>,
        meter: Meter,
        memory: ReadMemory,
        limits: &Limits,
    ) -> Self {
        Self(Rc::new(RefCell::new(Conn {
            stream,
            meter,
            memory,
            head_limits: HeadLimits {
                bytes: limits.head_bytes,
                fields: limits.head_fields,
            },
            read: BytesMut::new(),
            repair: HeadRepair::default(),
            is_broken: false,
            end: None,
            is_kept: true,
            upload: Upload::Done,
        })))
    }

    fn borrow(&self) -> Ref<'_, Conn> {
        self.0.borrow()
    }

    fn borrow_mut(&self) -> RefMut<'_, Conn> {
        self.0.borrow_mut()
    }

    /// Called when the response is complete. Returns true if the connection takes another request;
    /// in this case it releases the buffer, which an idle connection does not need.
    pub(super) fn rest(&self) -> bool {
        let mut conn = self.borrow_mut();
        let is_kept = conn.is_resting();
        if is_kept {
            let read = std::mem::take(&mut conn.read);
            conn.memory.leave_share();
            if conn.memory.extra_bytes() == 0 {
                SPARE.set(read);
            }
        }
        is_kept
    }

    /// Returns true if an idle connection still takes a request: the server has neither closed it
    /// nor sent unrequested bytes. No system call if nothing has arrived.
    pub(super) fn is_open(&self) -> bool {
        let mut conn = self.borrow_mut();
        conn.is_resting() && conn.is_silent()
    }

    /// Returns true if the server has closed the connection, as the kernel knows. Used for a
    /// request that must not be lost.
    pub(super) fn has_ended(&self) -> bool {
        self.borrow().stream.socket().has_ended()
    }

    /// Memory that is held beyond the memory of a new connection, bytes.
    pub(super) fn extra_bytes(&self) -> u64 {
        self.borrow().memory.extra_bytes()
    }

    /// Returns true if the last request was sent completely.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.borrow().upload, Upload::Done)
    }

    /// Stops the upload of content that the server does not want.
    pub(super) fn stop_upload(&self) {
        if let Upload::Running(task, _) = &self.borrow().upload {
            task.abort();
        }
    }

    /// Sends `request` of `client`, with `target` instead of the URI if there is one, and waits for
    /// the response head. Calls `interim` for each interim response before.
    pub(super) async fn send(
        &self,
        request: SentRequest<'_>,
        target: Option<&[u8]>,
        client: Option<&Share>,
        mut interim: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<Response<()>, Failure> {
        let (outgoing, framing) = self.borrow_mut().begin(request.head(), target, client);
        let mut unsent = None;
        match request {
            SentRequest::Given(request) => {
                let upload = upload(self.clone(), request.into_body(), outgoing, framing);
                let task = spawn_local(upload);
                self.borrow_mut().upload = Upload::Running(task.abort_handle(), None);
            }
            SentRequest::Kept(_) => unsent = Some(outgoing),
        }
        poll_fn(|cx| {
            let mut conn = self.borrow_mut();
            // The server may answer before it has taken a large head completely.
            if let Some(outgoing) = &mut unsent
                && conn.poll_write(cx, outgoing).is_ready()
            {
                unsent = None;
            }
            let polled = conn.poll_head(cx, &mut interim);
            conn.is_kept &= polled.is_pending() || unsent.is_none();
            polled
        })
        .await
    }
}

impl Conn {
    /// Writes the head of `request` of `client`.
    fn begin(
        &mut self,
        request: &Request<RequestBody>,
        target: Option<&[u8]>,
        client: Option<&Share>,
    ) -> (Outgoing, SentFraming) {
        let mut outgoing = Outgoing::new();
        let framing = write_head(&mut outgoing, request, target);
        self.is_kept = keeps_connection(request.version(), request.headers());
        self.repair = HeadRepair::default();
        self.memory.begin_head(client);
        (outgoing, framing)
    }

    /// Writes all of `outgoing`. A server that has closed may have answered before: nothing more is
    /// sent, and the reader finds the answer or the error.
    fn poll_write(&mut self, cx: &mut Context<'_>, outgoing: &mut Outgoing) -> Poll<()> {
        while !outgoing.is_empty() && !self.is_broken {
            let parts = outgoing.parts();
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write_vectored(cx, &parts)) {
                Ok(0) | Err(_) => self.is_broken = true,
                Ok(written) => {
                    self.meter.note_sent(written);
                    outgoing.advance(written);
                }
            }
        }
        if self.is_broken {
            outgoing.clear();
        } else if ready!(Pin::new(&mut self.stream).poll_flush(cx)).is_err() {
            self.is_broken = true;
        }
        Poll::Ready(())
    }

    /// Reads the response head.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        interim: &mut impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<Response<()>, Failure>> {
        loop {
            while self.repair.take_ended() {
                let head = head::take(&mut self.read, self.head_limits)?;
                let status = head.status();
                if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                    interim(status, head.into_parts().0.headers);
                    continue;
                }
                self.is_kept &= keeps_connection(head.version(), head.headers());
                return Poll::Ready(Ok(head));
            }
            head::check_begun(&self.read, self.head_limits)?;
            match ready!(self.poll_fill(cx, ReadFor::Head)) {
                Ok(1..) => {}
                Ok(0) | Err(_) if matches!(self.upload, Upload::Failed) => {
                    // The client's content was incomplete; the origin is not at fault.
                    return Poll::Ready(Err(Failure::Refused {
                        status: StatusCode::BAD_REQUEST,
                        reason: "the request content ended early",
                    }));
                }
                // The origin is not at fault.
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return Poll::Ready(Err(Failure::UpstreamLimit));
                }
                Ok(0) | Err(_) => return Poll::Ready(Err(Failure::ConnectionTerminated)),
            }
        }
    }

    /// Reads once; 0 is the end. Returns an error if the rest of the request will never be sent,
    /// because the response may never be complete in that case.
    fn poll_fill(&mut self, cx: &mut Context<'_>, what: ReadFor) -> Poll<io::Result<usize>> {
        match self.end {
            None => {}
            Some(ReadEnd::Clean) => return Poll::Ready(Ok(0)),
            Some(ReadEnd::Broken) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        match &mut self.upload {
            Upload::Failed => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Upload::Running(_, Some(waker)) => waker.clone_from(cx.waker()),
            Upload::Running(_, waker) => *waker = Some(cx.waker().clone()),
            Upload::Done => {}
        }
        let (before, room) = (self.read.len(), self.memory.read_max());
        if before == 0 {
            if self.read.capacity() == 0 && self.memory.extra_bytes() == 0 {
                self.read = SPARE.take();
            }
            // Reuses the spare buffer, unless the content of the last response is still being sent.
            self.read.reserve(room);
        } else if self.read.capacity() - before < room / 4 {
            // Buffers of large heads have one size, because many sizes leave holes in the heap.
            let bytes = match what {
                ReadFor::Head => before.max(self.head_limits.bytes) + room,
                ReadFor::Content => before + room,
            };
            if what == ReadFor::Head && !self.memory.head_moves(bytes) {
                self.end = Some(ReadEnd::Broken);
                return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
            }
            let mut larger = BytesMut::with_capacity(bytes);
            larger.extend_from_slice(&self.read);
            self.read = larger;
        }
        let room = room.min(self.read.capacity() - before);
        let mut buffer = (&mut self.read).limit(room);
        let filled = pin!(self.stream.read_buf(&mut buffer)).poll(cx);
        let bytes = match ready!(filled) {
            Ok(bytes @ 1..) => bytes,
            end => {
                self.end = Some(match end {
                    Ok(_) => ReadEnd::Clean,
                    Err(_) => ReadEnd::Broken,
                });
                return Poll::Ready(end);
            }
        };
        self.meter.note_received(bytes);
        let mut head_bytes = 0;
        if what == ReadFor::Head {
            head_bytes = self.repair.repair(&mut self.read[before..]);
            if head_bytes > 0 && !self.memory.head_grows(head_bytes) {
                self.end = Some(ReadEnd::Broken);
                return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
            }
        }
        // A head that fills a read is rare, and has separate memory.
        if bytes == self.memory.read_max() && bytes > head_bytes {
            self.memory.widen();
        }
        Poll::Ready(Ok(bytes))
    }

    /// Returns true if the last exchange is over, and both sides allow another exchange.
    fn is_resting(&self) -> bool {
        let is_open = self.is_kept && !self.is_broken && self.end.is_none();
        is_open && self.read.is_empty() && matches!(self.upload, Upload::Done)
    }

    /// Returns true if nothing has arrived.
    fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        // If the task has used the coop budget, a plain read would always be pending.
        let read = pin!(coop::unconstrained(self.stream.read(&mut byte))).poll(&mut context);
        if read.is_ready() {
            self.end = Some(ReadEnd::Broken);
        }
        read.is_pending()
    }
}

/// Sends the rest of a request.
async fn upload(
    conn: Http1Conn,
    mut body: RequestBody,
    mut outgoing: Outgoing,
    mut framing: SentFraming,
) {
    // Content that is available already is sent together with the head.
    let mut is_complete = poll_fn(|cx| {
        Poll::Ready(
            match poll_part(&mut body, cx, &mut outgoing, &mut framing) {
                Poll::Ready(done) => done,
                Poll::Pending => Ok(false),
            },
        )
    })
    .await;
    while let Ok(complete) = is_complete {
        poll_fn(|cx| conn.borrow_mut().poll_write(cx, &mut outgoing)).await;
        if complete || conn.borrow().is_broken {
            break;
        }
        is_complete = poll_fn(|cx| poll_part(&mut body, cx, &mut outgoing, &mut framing)).await;
    }
    let end = match is_complete {
        Ok(_) => Upload::Done,
        Err(BrokenOff) => Upload::Failed,
    };
    let was = std::mem::replace(&mut conn.borrow_mut().upload, end);
    if let Upload::Running(_, Some(waker)) = was {
        waker.wake();
    }
}

/// The client's content stopped before the announced end.
struct BrokenOff;

/// Appends the next part of `body` to `outgoing`. Returns true after the last part.
fn poll_part(
    body: &mut RequestBody,
    cx: &mut Context<'_>,
    outgoing: &mut Outgoing,
    framing: &mut SentFraming,
) -> Poll<Result<bool, BrokenOff>> {
    loop {
        let frame = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(frame) => Some(frame.map_err(|_| BrokenOff)?),
            None => None,
        };
        let (data, trailers) = match frame.map(http_body::Frame::into_data) {
            Some(Ok(data)) if data.is_empty() => continue,
            Some(Ok(data)) => (Some(data), None),
            Some(Err(frame)) => (None, frame.into_trailers().ok()),
            None => (None, None),
        };
        return Poll::Ready(match (framing, data) {
            (SentFraming::Empty, _) => Ok(true),
            (SentFraming::Length(left), Some(mut data)) => {
                // Bytes beyond the announced length would be the next request.
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                outgoing.push_data(data);
                Ok(*left == 0)
            }
            (SentFraming::Length(left), None) if *left == 0 => Ok(true),
            (SentFraming::Length(_), None) => Err(BrokenOff),
            (SentFraming::Chunked, Some(data)) => {
                outgoing.push_chunk(data);
                let is_last = body.is_end_stream();
                if is_last {
                    outgoing.end_chunks(None);
                }
                Ok(is_last)
            }
            (SentFraming::Chunked, None) => {
                outgoing.end_chunks(trailers.as_ref());
                Ok(true)
            }
        });
    }
}

/// A connection that has changed to another protocol (RFC 9110, section 7.8).
#[derive(Debug)]
pub struct Switched(Http1Conn);

impl Switched {
    /// The connection after a 101.
    pub(super) fn new(conn: Http1Conn) -> Self {
        Self(conn)
    }

    /// Closes the connection so that the server does not take an incomplete stream for a complete
    /// stream.
    pub fn reset(self) {
        self.0.borrow().stream.socket().reset_on_drop();
    }
}

impl AsyncRead for Switched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut conn = self.0.borrow_mut();
        if !conn.read.is_empty() {
            let here = conn.read.len().min(buffer.remaining());
            buffer.put_slice(&conn.read[..here]);
            conn.read.advance(here);
            return Poll::Ready(Ok(()));
        }
        conn.read = BytesMut::new();
        let before = buffer.filled().len();
        let read = Pin::new(&mut conn.stream).poll_read(cx, buffer);
        conn.meter.note_received(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Switched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_shutdown(cx)
    }
}

impl fmt::Debug for Http1Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1Conn").finish_non_exhaustive()
    }
}
