//! Request content that is kept until the origin answers, so that it can be sent again if the
//! origin has not processed the request.
//!
//! Made by `attempt` for requests on connections that other requests use or have used: in HTTP/2 an
//! origin can refuse a request after a part of the content was sent (REFUSED_STREAM, GOAWAY). The
//! connection polls the content through `RequestBody`, and drops it with the refused request; the
//! stream of the client's content survives here.
//!
//! Invariant: each attempt sends all content from the first byte, or there is no further attempt:
//! content that does not fit is passed on and no longer kept.
//! Cost: references to the parts, memory for at most `KEPT_MAX` bytes of them, and a copy of parts
//! below 1 KiB, which would keep larger buffers alive.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hashcache_base::share::SpareMemory;
use http::header::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// An error in a client's content.
pub(crate) type ContentError = Box<dyn StdError + Send + Sync>;

/// Content that arrives while it is polled.
pub(super) type ContentStream = Pin<Box<dyn Body<Data = Bytes, Error = ContentError>>>;

/// The content as polled in an attempt.
pub(super) struct KeptContent {
    kept: Rc<RefCell<Kept>>,
    attempt: u32,
}

/// The right to send the content once more. If it is dropped without use, the content is no longer
/// kept.
pub(super) struct Recall(Option<Rc<RefCell<Kept>>>);

struct Kept {
    stream: ContentStream,
    parts: Vec<Part>,
    /// The part that the current attempt sends next.
    next: usize,
    bytes: usize,
    /// Maximum number of bytes to keep; `None`: nothing is kept any more.
    room: Option<usize>,
    attempt: u32,
    /// The stream is complete.
    has_end: bool,
    memory: Option<SpareMemory>,
}

#[derive(Clone)]
enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// Number of bytes to keep for content with this size.
pub(super) fn kept_bytes(size: &SizeHint) -> usize {
    let length = size.exact().and_then(|length| usize::try_from(length).ok());
    length.map_or(KEPT_MAX, |length| length.min(KEPT_MAX))
}

impl KeptContent {
    /// Keeps up to `room` bytes of `stream`.
    pub(super) fn new(stream: ContentStream, room: usize, memory: Option<SpareMemory>) -> Self {
        let kept = Kept {
            stream,
            parts: Vec::new(),
            next: 0,
            bytes: 0,
            room: Some(room),
            attempt: 0,
            has_end: false,
            memory,
        };
        Self {
            kept: Rc::new(RefCell::new(kept)),
            attempt: 0,
        }
    }

    pub(super) fn recall(&self) -> Recall {
        Recall(Some(Rc::clone(&self.kept)))
    }

    /// Polls the next frame for this attempt.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        let mut kept = self.kept.borrow_mut();
        if kept.attempt != self.attempt {
            return Poll::Ready(Some(Err("the request was sent again".into())));
        }
        if let Some(part) = kept.parts.get(kept.next) {
            let frame = part.clone().into_frame();
            kept.next += 1;
            kept.forget_sent();
            return Poll::Ready(Some(Ok(frame)));
        }
        if kept.has_end {
            return Poll::Ready(None);
        }
        let polled = kept.stream.as_mut().poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => kept.keep(frame),
            Poll::Ready(None) => kept.has_end = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    /// Returns true if all content was polled.
    pub(super) fn is_end_stream(&self) -> bool {
        let kept = self.kept.borrow();
        kept.next == kept.parts.len() && (kept.has_end || kept.stream.is_end_stream())
    }

    /// The size of the content that is left for this attempt.
    pub(super) fn size_hint(&self) -> SizeHint {
        let kept = self.kept.borrow();
        let left = kept.parts[kept.next..]
            .iter()
            .map(Part::bytes)
            .sum::<usize>() as u64;
        let mut size = kept.stream.size_hint();
        if let Some(upper) = size.upper() {
            size.set_upper(upper.saturating_add(left));
        }
        size.set_lower(size.lower().saturating_add(left));
        size
    }
}

impl Recall {
    /// Returns the content from the first byte; `None` if some of it was not kept. Another poll of
    /// the previous attempt's content returns an error.
    pub(super) fn again(mut self) -> Option<KeptContent> {
        let kept = self.0.take()?;
        let attempt = {
            let mut kept = kept.borrow_mut();
            kept.room?;
            kept.next = 0;
            kept.attempt += 1;
            kept.attempt
        };
        Some(KeptContent { kept, attempt })
    }
}

impl Drop for Recall {
    fn drop(&mut self) {
        if let Some(kept) = &self.0 {
            let mut kept = kept.borrow_mut();
            kept.room = None;
            kept.forget_sent();
        }
    }
}

impl Kept {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let part = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) if data.len() < COPIED_MAX => Part::Data(Bytes::copy_from_slice(data)),
            (Some(data), _) => Part::Data(data.clone()),
            (None, Some(trailers)) => Part::Trailers(trailers.clone()),
            (None, None) => return,
        };
        self.bytes += part.bytes();
        match self.room {
            Some(room) if self.bytes <= room && self.parts.len() < PARTS_MAX => {
                self.parts.push(part);
                self.next += 1;
            }
            _ => {
                self.room = None;
                self.forget_sent();
            }
        }
    }

    /// Drops parts that are not needed again.
    fn forget_sent(&mut self) {
        if self.room.is_none() {
            self.parts.drain(..self.next);
            self.next = 0;
            if self.parts.is_empty() {
                self.memory = None;
            }
        }
    }
}

impl Part {
    fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }

    /// Content bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }
}

/// Maximum content bytes that are kept for a request. h2 polls one frame more than fits into the
/// window of the stream, which is 64 KiB unless the origin announces another size. An origin that
/// processes the request lets more than that arrive, and can no longer refuse the request.
const KEPT_MAX: usize = 256 << 10;
/// Maximum number of kept parts, for content that arrives in small parts.
const PARTS_MAX: usize = 1024;
/// Parts smaller than this are copied: they may be a small piece of a large buffer.
const COPIED_MAX: usize = 1 << 10;

#[cfg(test)]
pub(super) mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Content in these parts.
    pub(in super::super) struct Parts {
        parts: VecDeque<&'static [u8]>,
        /// True if the end has arrived with the parts; otherwise it never arrives.
        has_end: bool,
    }

    impl Parts {
        pub(in super::super) fn new(parts: &[&'static [u8]], has_end: bool) -> Self {
            let parts = parts.iter().copied().collect();
            Self { parts, has_end }
        }
    }

    impl Body for Parts {
        type Data = Bytes;
        type Error = ContentError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
            match self.parts.pop_front() {
                Some(part) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(part))))),
                None if self.has_end => Poll::Ready(None),
                None => Poll::Pending,
            }
        }

        fn is_end_stream(&self) -> bool {
            self.has_end && self.parts.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let bytes = self.parts.iter().map(|part| part.len() as u64).sum();
            if self.has_end {
                SizeHint::with_exact(bytes)
            } else {
                SizeHint::default()
            }
        }
    }

    fn content(parts: &[&'static [u8]], room: usize) -> KeptContent {
        KeptContent::new(Box::pin(Parts::new(parts, true)), room, None)
    }

    fn next(content: &mut KeptContent) -> Vec<u8> {
        let mut cx = Context::from_waker(Waker::noop());
        match content.poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap().to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn all(mut content: KeptContent) -> (Vec<u8>, u64) {
        let size = content.size_hint().exact().unwrap();
        (all_frames(&mut content), size)
    }

    fn all_frames(content: &mut KeptContent) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !content.is_end_stream() {
            bytes.extend(next(content));
        }
        bytes
    }

    #[test]
    fn content_is_sent_again_from_its_first_byte_wherever_the_attempt_ended() {
        for polled in 0..=3 {
            let mut first = content(&[b"ab", b"c", b"def"], 6);
            let recall = first.recall();
            for _ in 0..polled {
                next(&mut first);
            }
            let mut second = recall.again().unwrap();
            assert_eq!(next(&mut second), b"ab");
            let third = second.recall().again().unwrap();
            assert_eq!(all(third), (b"abcdef".to_vec(), 6));
            // The attempts before end with errors, whatever h2 still does with them.
            let mut cx = Context::from_waker(Waker::noop());
            for mut earlier in [first, second] {
                let polled = earlier.poll_frame(&mut cx);
                assert!(matches!(polled, Poll::Ready(Some(Err(_)))));
            }
        }
    }

    #[test]
    fn content_that_was_not_kept_as_a_whole_is_not_sent_again() {
        let mut first = content(&[b"ab", b"c", b"def"], 3);
        let recall = first.recall();
        next(&mut first);
        next(&mut first);
        let mut second = recall.again().unwrap();
        let recall = second.recall();
        assert_eq!(all_frames(&mut second), b"abcdef");
        assert!(recall.again().is_none());
    }

    #[test]
    fn an_answer_ends_the_keeping_and_loses_no_part_of_the_attempt() {
        let mut first = content(&[b"ab", b"c", b"def"], 6);
        let recall = first.recall();
        next(&mut first);
        next(&mut first);
        let mut second = recall.again().unwrap();
        let recall = second.recall();
        assert_eq!(next(&mut second), b"ab");
        drop(recall);
        assert_eq!(all(second), (b"cdef".to_vec(), 4));
    }
}
