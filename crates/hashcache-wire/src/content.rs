//! The content of an HTTP/1.1 request.
//!
//! The service gets it with the request. Polling the content reads from the connection, so nothing
//! is read before the service wants it; at all other times `serve` owns the connection.
//!
//! Invariant: content is complete as the head declares, or it fails with an error.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::SizeHint;

use super::head::ContentFraming;
use super::stream::{ClientStream, ContentFrame};

/// A connection that `serve` and the content of the current request share; `None` after the
/// connection has closed.
pub(super) type SharedStream = Rc<RefCell<Option<ClientStream>>>;

/// The content of a request.
pub(super) struct ConnContent {
    /// `None` after the end of the content.
    stream: Option<SharedStream>,
    /// Request number: the connection may already have reached a later request.
    number: u64,
    /// The remaining bytes, if known.
    left: Option<u64>,
    /// The client waits for a 100.
    expects: bool,
}

impl ConnContent {
    /// No content.
    pub(super) fn none() -> Self {
        Self {
            stream: None,
            number: 0,
            left: Some(0),
            expects: false,
        }
    }

    /// The content of a request with this framing. `expects`: the client waits for a 100 before it
    /// sends content.
    pub(super) fn new(stream: &SharedStream, framing: ContentFraming, expects: bool) -> Self {
        let left = match framing {
            ContentFraming::None | ContentFraming::Length(0) => return Self::none(),
            ContentFraming::Length(length) => Some(length),
            ContentFraming::Chunked => None,
        };
        let number = stream.borrow().as_ref().map(ClientStream::request_number);
        Self {
            stream: Some(Rc::clone(stream)),
            number: number.unwrap_or_default(),
            left,
            expects,
        }
    }

    /// The next frame.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<ContentFrame>> {
        let Some(shared) = &self.stream else {
            return Poll::Ready(None);
        };
        let (polled, is_over) = {
            let mut stream = shared.borrow_mut();
            let Some(stream) = stream.as_mut() else {
                return Poll::Ready(Some(Err("the connection has ended".into())));
            };
            let polled = stream.poll_content(cx, self.number);
            if std::mem::take(&mut self.expects) && polled.is_pending() {
                stream.send_continue();
            }
            (polled, stream.is_content_over(self.number))
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            self.left = self.left.map(|left| left.saturating_sub(bytes));
        }
        if is_over {
            self.stream = None;
        }
        polled
    }

    /// Returns true if the last frame was returned.
    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match (&self.stream, self.left) {
            (None, _) => SizeHint::with_exact(0),
            (Some(_), Some(left)) => SizeHint::with_exact(left),
            (Some(_), None) => SizeHint::default(),
        }
    }
}

impl Drop for ConnContent {
    fn drop(&mut self) {
        // If the stream is already borrowed, the connection itself drops this content, and
        // continues without this call.
        if let Some(shared) = &self.stream
            && let Ok(mut stream) = shared.try_borrow_mut()
            && let Some(stream) = stream.as_mut()
        {
            stream.leave_content(self.number);
        }
    }
}
