//! Request content in both protocols, and response content in HTTP/2, with accounting and
//! deadlines.
//!
//! `http2` creates it for each stream, and `serve` for HTTP/1.1 requests, where `stream` reads the
//! content.

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hashcache_base::share::{PIECE_BYTES, Share, ShareGuard, ShareReservation};
use hashcache_link::turns::{ReadTurn, SendTurn};
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use super::super::cell::Cell;
use super::super::content::ConnContent;
use super::super::head::{Refusal, refuse};
use super::super::stream::ContentFrame;
use super::fields::malformed_field;
use super::flow::{ContentReader, Flow, StreamEntry, StreamProgress};
use super::head::fields_size;
use super::memory_hit::Pieces;

/// The content of a client's request.
pub struct ClientBody {
    source: ContentSource,
    /// Frames read before the service polled the content.
    gathered: VecDeque<Frame<Bytes>>,
    /// No frame follows after `gathered`.
    ended: bool,
    /// The error in the trailers, if they are malformed.
    malformed: Option<&'static str>,
    /// `None` in HTTP/1.1.
    watched: Option<WatchedContent>,
}

/// The source of request content.
enum ContentSource {
    Conn(ConnContent),
    Stream(Incoming),
}

impl ContentSource {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<ContentFrame>> {
        match self {
            Self::Conn(content) => content.poll_frame(cx),
            Self::Stream(incoming) => Pin::new(incoming).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Conn(content) => content.is_end_stream(),
            Self::Stream(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Conn(content) => content.size_hint(),
            Self::Stream(incoming) => incoming.size_hint(),
        }
    }
}

struct WatchedContent {
    reader: Option<ContentReader>,
    /// Only on a link.
    turn: Option<ReadTurn>,
    flow: Rc<Flow>,
    cell: Option<Rc<Cell>>,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// The client waits for a 100.
    expects: bool,
}

impl ClientBody {
    /// Content of an HTTP/1.1 request.
    pub(in super::super) fn plain(content: ConnContent) -> Self {
        Self {
            source: ContentSource::Conn(content),
            gathered: VecDeque::new(),
            ended: false,
            malformed: None,
            watched: None,
        }
    }

    /// Content of an HTTP/2 stream.
    pub(super) fn counted(incoming: Incoming, flow: Rc<Flow>) -> Self {
        let reader = (!incoming.is_end_stream()).then(|| flow.want_content());
        let watched = Some(WatchedContent {
            reader,
            turn: None,
            flow,
            cell: None,
            timer: None,
            waiting: false,
            expects: false,
        });
        Self {
            source: ContentSource::Stream(incoming),
            gathered: VecDeque::new(),
            ended: false,
            malformed: None,
            watched,
        }
    }

    /// From this call, acknowledges to the child the bytes that are read.
    pub(super) fn acknowledge(&mut self, turn: impl FnOnce() -> Option<ReadTurn>) {
        let watched = self.watched.as_mut();
        if let Some(watched) = watched.filter(|watched| watched.reader.is_some()) {
            watched.turn = turn();
        }
    }

    /// Reads the content completely, or up to [`GATHERED_MAX`], before the service polls it; an
    /// error if the content stops arriving.
    pub(super) async fn gather(&mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut bytes = 0;
        while !self.ended && bytes < GATHERED_MAX {
            match poll_fn(|cx| self.poll_more(cx)).await {
                Some(frame) => {
                    let frame = frame?;
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    bytes += length;
                    if length > 0 || frame.is_trailers() {
                        self.gathered.push_back(frame);
                    }
                    self.ended = self.source.is_end_stream();
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    /// The refusal for content that [`Self::gather`] could not read.
    pub(super) fn refusal(&self) -> Refusal {
        let malformed = |reason| refuse(StatusCode::BAD_REQUEST, reason);
        self.malformed.map_or(STOPPED, malformed)
    }

    /// Reports to `cell` the bytes read so far and all later bytes. `expects`: the client waits for
    /// a 100 before it sends content.
    pub(super) fn tell(&mut self, cell: &Rc<Cell>, expects: bool) {
        let lengths = self
            .gathered
            .iter()
            .filter_map(Frame::data_ref)
            .map(Bytes::len);
        cell.count_read(lengths.sum());
        if let Some(watched) = &mut self.watched {
            watched.cell = Some(Rc::clone(cell));
            watched.expects = expects;
        }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Option<ContentFrame>> {
        let polled = self.source.poll_frame(cx);
        if polled.is_pending()
            && let Some(watched) = &mut self.watched
            && std::mem::take(&mut watched.expects)
            && let Some(cell) = &watched.cell
        {
            cell.send_continue();
        }
        if let Some(watched) = &mut self.watched {
            match &polled {
                Poll::Ready(Some(Ok(frame))) => {
                    watched.read(Some(frame));
                    let malformed = frame.trailers_ref().and_then(malformed_field);
                    if let Some(reason) = malformed {
                        self.malformed = malformed;
                        if let Some(cell) = &watched.cell {
                            cell.fail_body(refuse(StatusCode::BAD_REQUEST, reason));
                        }
                        return Poll::Ready(Some(Err(reason.into())));
                    }
                }
                Poll::Ready(_) => watched.read(None),
                Poll::Pending if watched.poll_late(cx).is_ready() => {
                    if let Some(cell) = &watched.cell {
                        cell.fail_body(STOPPED);
                    }
                    return Poll::Ready(Some(Err(STOPPED.reason.into())));
                }
                Poll::Pending => {}
            }
        }
        polled
    }
}

impl WatchedContent {
    fn read(&mut self, frame: Option<&Frame<Bytes>>) {
        self.waiting = false;
        match frame.and_then(Frame::data_ref) {
            Some(data) => {
                if let Some(cell) = &self.cell {
                    cell.count_read(data.len());
                }
                if let Some(reader) = &self.reader {
                    reader.read(data.len());
                }
                if let Some(turn) = &self.turn {
                    turn.read(data.len());
                }
            }
            None => (self.reader, self.turn) = (None, None),
        }
    }

    /// Ready when no content has arrived for `progress_time`.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.flow.limits().progress_time;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(time)));
        if !std::mem::replace(&mut self.waiting, true) {
            timer.as_mut().reset(Instant::now() + time);
        }
        timer.as_mut().poll(cx)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ContentFrame>> {
        let this = self.get_mut();
        if let Some(frame) = this.gathered.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        this.poll_more(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.gathered.is_empty() && (self.ended || self.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.gathered.is_empty() && !self.ended {
            return self.source.size_hint();
        }
        let lengths = self
            .gathered
            .iter()
            .filter_map(Frame::data_ref)
            .map(Bytes::len);
        let gathered = lengths.sum::<usize>() as u64;
        if self.ended {
            SizeHint::with_exact(gathered)
        } else {
            SizeHint::default()
        }
    }
}

/// Response content that hyper polls.
pub(super) struct OutgoingBody<B: Body> {
    body: B,
    cell: Rc<Cell>,
    progress: Rc<StreamProgress>,
    /// The response has no content, even if the service has returned some.
    bodiless: bool,
    complete: bool,
    broken: bool,
    _memory: Option<ShareReservation>,
    pages: NextPiece,
    /// Only on a link.
    turn: Option<SendTurn>,
    /// The rest of the service's last buffer, because the turn had no room for it.
    rest: Option<Pieces>,
}

impl<B: Body<Data = Pieces> + Unpin> OutgoingBody<B> {
    /// Records in `cell` that the response starts.
    pub(super) fn begin(
        mut response: Response<B>,
        cell: Rc<Cell>,
        progress: Rc<StreamProgress>,
        memory: Option<ShareReservation>,
        share: Option<Share>,
    ) -> Response<Self> {
        let asked = cell.answer();
        let status = response.status();
        let bodiless =
            asked.head_only || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let length = response.body().size_hint().exact();
        if let Some(length) = length.filter(|length| asked.head_only && *length > 0) {
            let fields: &mut HeaderMap = response.headers_mut();
            fields
                .entry(CONTENT_LENGTH)
                .or_insert(HeaderValue::from(length));
        }
        let size = fields_size(response.headers());
        cell.count_written(usize::try_from(size).unwrap_or(usize::MAX));
        response.map(|body| Self {
            body,
            cell,
            progress,
            bodiless,
            complete: bodiless,
            broken: false,
            _memory: memory,
            pages: NextPiece::new(share, length),
            turn: None,
            rest: None,
        })
    }

    /// Makes the content wait for its turn on a link.
    pub(super) fn in_turn(mut self, turn: Option<SendTurn>) -> Self {
        self.turn = turn;
        self
    }
}

impl<B: Body<Data = Pieces> + Unpin> Body for OutgoingBody<B> {
    type Data = QueuedData;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<QueuedData>, B::Error>>> {
        let this = self.get_mut();
        if this.bodiless {
            return Poll::Ready(None);
        }
        let is_turn = match &this.turn {
            Some(turn) => turn.poll(cx).is_ready(),
            None => true,
        };
        // The rest of a buffer is already charged.
        if !is_turn || (this.rest.is_none() && this.pages.poll_take(cx).is_pending()) {
            // Frames of other streams, which the client has not read, take up its share (on a link:
            // it is not this stream's turn). So this stream waits for the client.
            let since = this.progress.waits_since.get();
            this.progress
                .waits_since
                .set(since.or(Some(Instant::now())));
            return Poll::Pending;
        }
        let mut polled = match this.rest.take() {
            Some(rest) => Poll::Ready(Some(Ok(Frame::data(rest)))),
            None => Pin::new(&mut this.body).poll_frame(cx),
        };
        if let (Poll::Ready(Some(Ok(frame))), Some(turn)) = (&mut polled, &this.turn)
            && let Some(data) = frame.data_mut()
            && data.remaining() > turn.piece_max()
        {
            let first = data.split_to(turn.piece_max());
            this.rest = Some(std::mem::replace(data, first));
        }
        if !matches!(&polled, Poll::Ready(Some(Ok(_)))) {
            this.pages.give_back();
        }
        // hyper polls again when the client has room for more.
        let waits = matches!(&polled, Poll::Ready(Some(Ok(_))));
        let since = waits.then(Instant::now);
        this.progress.waits_since.set(since);
        match &polled {
            Poll::Ready(None) => this.complete = true,
            Poll::Ready(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(0, Pieces::remaining);
                if let Some(turn) = &this.turn {
                    turn.sent(data);
                }
                this.cell.count_written(FRAME_HEAD + data);
            }
            Poll::Ready(Some(Err(_))) => this.broken = true,
            Poll::Pending => {}
        }
        polled.map_ok(|frame| {
            frame.map_data(|pieces| QueuedData {
                pieces,
                // Attached to the last part, because h2 releases the parts in order.
                _taken: this.pages.taken.take_if(|_| this.rest.is_none()),
                _entry: Arc::clone(&this.progress.entry),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.bodiless || (self.rest.is_none() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(0, Pieces::remaining) as u64;
        if self.bodiless {
            return SizeHint::with_exact(0);
        }
        let of_body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl<B: Body> Drop for OutgoingBody<B> {
    fn drop(&mut self) {
        self.progress.waits_since.set(None);
        let has_given_all = self.rest.is_none() && self.body.is_end_stream();
        if !self.broken && (self.complete || has_given_all) {
            self.cell.body_ended();
            self.cell.flushed();
        } else {
            self.cell.ended();
        }
    }
}

/// A buffer of response content, charged to the client's share for as long as h2 holds it, even
/// after the stream's task has finished.
pub(super) struct QueuedData {
    pieces: Pieces,
    _taken: Option<ShareGuard>,
    _entry: Arc<StreamEntry>,
}

impl Buf for QueuedData {
    fn remaining(&self) -> usize {
        self.pieces.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.pieces.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.pieces.advance(count);
    }
}

/// The next buffer of a response, to be charged to the client's share. The store has already
/// reserved its memory in the budget.
struct NextPiece {
    share: Option<Share>,
    /// Maximum size of the buffer.
    bytes: u64,
    taken: Option<ShareGuard>,
    retry: Option<Pin<Box<Sleep>>>,
}

impl NextPiece {
    fn new(share: Option<Share>, length: Option<u64>) -> Self {
        let bytes = length.unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        Self {
            share: share.filter(|_| bytes > PIECE_FREE),
            bytes,
            taken: None,
            retry: None,
        }
    }

    /// Ready when the share has room for a buffer.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(share) = self.share.as_ref().filter(|_| self.taken.is_none()) else {
            return Poll::Ready(());
        };
        loop {
            self.taken = share.take(self.bytes);
            if self.taken.is_some() {
                self.retry = None;
                return Poll::Ready(());
            }
            let retry = self
                .retry
                .get_or_insert_with(|| Box::pin(sleep(RETRY_TIME)));
            ready!(retry.as_mut().poll(cx));
            self.retry = None;
        }
    }

    fn give_back(&mut self) {
        self.taken = None;
    }
}

/// The refusal if request content stops arriving.
const STOPPED: Refusal = refuse(StatusCode::BAD_REQUEST, "request content stopped arriving");

/// Maximum content read ahead, in bytes; one more frame may be added.
const GATHERED_MAX: usize = 8 << 10;

/// Response bytes that a stream may hold without charging its client's share.
const PIECE_FREE: u64 = 4 << 10;
/// Delay before a stream tries the client's share again.
const RETRY_TIME: Duration = Duration::from_millis(50);

/// Size of a frame head, which is counted as written with each buffer.
const FRAME_HEAD: usize = 9;
