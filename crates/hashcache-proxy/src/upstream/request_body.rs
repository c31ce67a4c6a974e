//! The content of a request on its way to an origin.
//!
//! Made by `request` and `fetch`, polled by hyper's client. It can be held back until the origin
//! says `100 Continue`, and it tells `Upstream` whether a silence is the client's fault or the
//! origin's.
//!
//! Invariant: while held, the client's content is not polled, so the client is not told to send it.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::framing::filter_trailers;

/// What went wrong with content that a client sends.
pub(crate) type ContentError = Box<dyn StdError + Send + Sync>;

/// The content of a request.
pub(crate) struct RequestBody {
    content: RequestContent,
    progress: Rc<BodyProgress>,
}

enum RequestContent {
    Empty,
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = ContentError>>>),
}

/// What `Upstream` keeps of a body that hyper owns.
#[derive(Debug, Default)]
pub(super) struct BodyProgress {
    held: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// The client was asked for more and has nothing yet.
    starved: Cell<bool>,
    /// The last frame has gone to hyper.
    ended: Cell<bool>,
}

impl RequestBody {
    /// No content.
    pub(crate) fn empty() -> Self {
        let progress = BodyProgress {
            ended: Cell::new(true),
            ..BodyProgress::default()
        };
        Self {
            content: RequestContent::Empty,
            progress: Rc::new(progress),
        }
    }

    /// Content that comes as it is polled, such as a client's; its trailers are filtered.
    pub(crate) fn streamed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<ContentError>,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let body = http_body_util::BodyExt::map_err(body, Into::into);
        Self {
            content: RequestContent::Stream(Box::pin(body)),
            progress: Rc::default(),
        }
    }

    /// Whether there is none, so that the request may be sent again.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.content, RequestContent::Empty)
    }

    pub(super) fn progress(&self) -> Rc<BodyProgress> {
        Rc::clone(&self.progress)
    }
}

impl BodyProgress {
    /// Holds the content back: before the request is sent until a 100 comes, and for good once the
    /// origin has answered with an error.
    pub(super) fn hold(&self) {
        self.held.set(true);
    }

    /// Lets held content go.
    pub(super) fn let_go(&self) {
        self.held.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Whether all of the content has been taken.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether the origin could take more than the client gives.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = ContentError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        let this = self.get_mut();
        if this.progress.is_held() {
            this.progress.waker.replace(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let RequestContent::Stream(stream) = &mut this.content else {
            return Poll::Ready(None);
        };
        let frame = stream.as_mut().poll_frame(cx);
        this.progress.starved.set(frame.is_pending());
        if frame.is_ready() && (matches!(frame, Poll::Ready(None)) || stream.is_end_stream()) {
            this.progress.ended.set(true);
        }
        frame.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                filter_trailers(trailers);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            RequestContent::Empty => true,
            RequestContent::Stream(stream) => !self.progress.is_held() && stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            RequestContent::Empty => SizeHint::with_exact(0),
            RequestContent::Stream(stream) => stream.size_hint(),
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("empty", &self.is_empty())
            .field("watch", &self.progress)
            .finish()
    }
}
