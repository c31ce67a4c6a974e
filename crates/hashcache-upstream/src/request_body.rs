//! Request content on the way to an origin.
//!
//! Made by `request` and `fetch` in the proxy, polled by the connection that writes it. The content
//! can be held back until the origin sends `100 Continue`, and it shows `Upstream` whether the
//! client or the origin is silent.
//!
//! Invariant: while held, the client's content is not polled, so the client gets no signal to send
//! it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::framing::filter_trailers;
use super::kept_content::{ContentStream, KeptContent, Recall};

pub(crate) use super::kept_content::ContentError;

/// Request content.
pub struct RequestBody {
    content: RequestContent,
    progress: Rc<BodyProgress>,
}

enum RequestContent {
    Empty,
    Stream(ContentStream),
    Kept(KeptContent),
}

/// The state that `Upstream` shares with a body that the connection owns.
#[derive(Debug, Default)]
pub(super) struct BodyProgress {
    held: Cell<bool>,
    /// The hold was released without a 100.
    held_in_vain: Cell<bool>,
    /// A 100 has arrived, in time or late.
    continued: Cell<bool>,
    /// Time when the head was passed to the connection. `None`: in HTTP/2 the stream is not open
    /// yet.
    opened: Cell<Option<Instant>>,
    /// Time when head or content was last passed to the connection.
    last_sent: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
    /// The connection wants more and the client has sent nothing yet.
    starved: Cell<bool>,
    /// The connection has all content.
    ended: Cell<bool>,
    /// The content broke off, on the client's side.
    failed: Cell<bool>,
    /// Content length, if it is known.
    length: Option<u64>,
    /// Bytes that the connection has taken.
    polled: Cell<u64>,
    /// The length that was announced, if any.
    announced: Cell<Option<u64>>,
}

impl RequestBody {
    /// Makes a body without content.
    pub fn empty() -> Self {
        let progress = BodyProgress {
            ended: Cell::new(true),
            ..BodyProgress::default()
        };
        Self {
            content: RequestContent::Empty,
            progress: Rc::new(progress),
        }
    }

    /// Makes a body with content that arrives while it is polled, such as content from a client;
    /// the trailers are filtered.
    pub fn streamed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<ContentError>,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let progress = BodyProgress {
            length: body.size_hint().exact(),
            ..BodyProgress::default()
        };
        let body = http_body_util::BodyExt::map_err(body, Into::into);
        Self {
            content: RequestContent::Stream(Box::pin(body)),
            progress: Rc::new(progress),
        }
    }

    /// Makes a body with content that was kept for this attempt.
    pub(super) fn kept(content: KeptContent) -> Self {
        let progress = BodyProgress {
            length: content.size_hint().exact(),
            ended: Cell::new(content.is_end_stream()),
            ..BodyProgress::default()
        };
        Self {
            content: RequestContent::Kept(content),
            progress: Rc::new(progress),
        }
    }

    /// Starts to keep the content, so that it can be sent again; `keep` converts the stream.
    /// `None`: there is no content, or `keep` has no memory.
    pub(super) fn keep(
        &mut self,
        keep: impl FnOnce(ContentStream) -> Result<KeptContent, ContentStream>,
    ) -> Option<Recall> {
        let content = std::mem::replace(&mut self.content, RequestContent::Empty);
        self.content = match content {
            RequestContent::Stream(stream) => match keep(stream) {
                Ok(kept) => RequestContent::Kept(kept),
                Err(stream) => RequestContent::Stream(stream),
            },
            other => other,
        };
        match &self.content {
            RequestContent::Kept(kept) => Some(kept.recall()),
            RequestContent::Empty | RequestContent::Stream(_) => None,
        }
    }

    /// Returns true if there is no content, so that the request may be sent again.
    pub fn is_empty(&self) -> bool {
        matches!(self.content, RequestContent::Empty)
    }

    /// Notes that content was passed to the connection.
    pub(super) fn note_sent(&self) {
        self.progress.last_sent.set(Some(Instant::now()));
    }

    pub(super) fn progress(&self) -> Rc<BodyProgress> {
        Rc::clone(&self.progress)
    }
}

impl BodyProgress {
    /// Clears the state of an earlier connection, which sent nothing of the request.
    pub(super) fn begin(&self) {
        self.opened.set(None);
        self.last_sent.set(None);
        self.held_in_vain.set(false);
        self.continued.set(false);
    }

    /// Notes that the head is passed to the connection now.
    pub(super) fn note_opened(&self) {
        let now = Some(Instant::now());
        self.opened.set(now);
        self.last_sent.set(now);
    }

    /// Time when the head was passed to the connection.
    pub(super) fn opened(&self) -> Option<Instant> {
        self.opened.get()
    }

    /// Time when head or content was last passed to the connection.
    pub(super) fn last_sent(&self) -> Option<Instant> {
        self.last_sent.get()
    }

    /// Holds the content back: before the request is sent until a 100 arrives, and for good after
    /// an error response.
    pub(super) fn hold(&self) {
        self.held.set(true);
    }

    /// Sets the number of bytes that are sent. The end mark may arrive later: in HTTP/2 a client
    /// may send it in a separate frame.
    pub(super) fn announce(&self, length: u64) {
        self.announced.set(Some(length));
    }

    /// Releases held content.
    pub(super) fn let_go(&self) {
        self.held.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Releases held content, after a 100.
    pub(super) fn note_continue(&self) {
        self.continued.set(true);
        self.let_go();
    }

    /// Releases held content, because the origin sends no 100.
    pub(super) fn hold_ends_in_vain(&self) {
        self.held_in_vain.set(true);
        self.let_go();
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.get()
    }

    pub(super) fn was_held_in_vain(&self) -> bool {
        self.held_in_vain.get()
    }

    /// Returns true if a 100 has arrived, even after the hold was over.
    pub(super) fn has_continued(&self) -> bool {
        self.continued.get()
    }

    /// Returns true if the connection has taken all content.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Returns true if the client's content broke off.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Returns the bytes that the connection has taken or will take, at most `most`.
    pub(super) fn bytes(&self, most: u64) -> u64 {
        let polled = self.polled.get();
        let bytes = if self.is_ended() {
            polled
        } else {
            self.length.unwrap_or(most)
        };
        bytes.min(most)
    }

    fn wake_by(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    fn note(&self, frame: &Poll<Option<Result<Frame<Bytes>, ContentError>>>) {
        match frame {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let polled = self.polled.get() + bytes;
                self.polled.set(polled);
                if self.announced.get().is_some_and(|length| polled >= length) {
                    self.ended.set(true);
                }
            }
            Poll::Ready(Some(Err(_))) => self.failed.set(true),
            Poll::Ready(None) | Poll::Pending => {}
        }
    }

    /// Returns true if the connection waits for the client's content.
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
        let progress = &this.progress;
        // For `let_go`, which is not called by the content.
        progress.wake_by(cx.waker());
        if progress.is_held() {
            return Poll::Pending;
        }
        let (frame, is_end) = match &mut this.content {
            RequestContent::Empty => return Poll::Ready(None),
            RequestContent::Stream(stream) => {
                (stream.as_mut().poll_frame(cx), stream.is_end_stream())
            }
            RequestContent::Kept(kept) => (kept.poll_frame(cx), kept.is_end_stream()),
        };
        progress.starved.set(frame.is_pending());
        if frame.is_ready() && (matches!(frame, Poll::Ready(None)) || is_end) {
            progress.ended.set(true);
        }
        progress.note(&frame);
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
            RequestContent::Kept(kept) => !self.progress.is_held() && kept.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            RequestContent::Empty => SizeHint::with_exact(0),
            RequestContent::Stream(stream) => stream.size_hint(),
            RequestContent::Kept(kept) => kept.size_hint(),
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

#[cfg(test)]
mod tests {
    use super::super::kept_content::tests::Parts;
    use super::*;

    #[test]
    fn content_of_an_announced_length_has_ended_with_its_last_byte() {
        let mut context = Context::from_waker(Waker::noop());
        for (announced, ended) in [(None, false), (Some(4), false), (Some(3), true)] {
            let mut body = RequestBody::streamed(Parts::new(&[b"ab", b"c"], false));
            let progress = body.progress();
            if let Some(length) = announced {
                progress.announce(length);
            }
            assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
            assert!(!progress.is_ended());
            assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
            assert_eq!(progress.is_ended(), ended, "{announced:?}");
        }
    }
}
