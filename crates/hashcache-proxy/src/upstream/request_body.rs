//! The content of a request on its way to an origin.
//!
//! Made by `request` and `fetch`, polled by hyper's client. It can be held back until the origin
//! sends `100 Continue`, and it shows `Upstream` whether the client or the origin is silent.
//!
//! Invariant: while held, the client's content is not polled, so the client is not asked to send
//! it.

use std::cell::{Cell, RefCell};
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::framing::filter_trailers;

/// The error of a client's content.
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

/// The state that `Upstream` shares with a body owned by hyper.
#[derive(Debug, Default)]
pub(super) struct BodyProgress {
    held: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// hyper polled for more and the client has sent nothing yet.
    starved: Cell<bool>,
    /// hyper has the last frame.
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

    /// Content that arrives while it is polled, such as a client's; its trailers are filtered.
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

    /// Whether there is no content, so that the request may be sent again.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.content, RequestContent::Empty)
    }

    pub(super) fn progress(&self) -> Rc<BodyProgress> {
        Rc::clone(&self.progress)
    }
}

impl BodyProgress {
    /// Holds the content back: before the request is sent until a 100 arrives, and for good after
    /// an error response.
    pub(super) fn hold(&self) {
        self.held.set(true);
    }

    /// Releases held content.
    pub(super) fn let_go(&self) {
        self.held.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Whether hyper has taken all of the content.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Whether hyper waits for the client's content.
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
