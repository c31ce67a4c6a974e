//! Where the bytes of an answer come from: memory, the store, a fetch in progress, or upstream.
//!
//! Invariant: a body ends with an error unless all of it was given; hyper then breaks the
//! connection off, so that no client takes a part for the whole.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hashcache::{Follower, ReadError, Reader};
use http_body::{Frame, SizeHint};

use crate::failure::Failure;
use crate::metrics::WorkerMetrics;
use crate::upstream::ResponseBody;

/// Bytes received from upstream on behalf of a request, counted while they come.
pub(crate) type Tally = Rc<Cell<u64>>;

/// The content of an answer.
pub(crate) struct Body {
    source: Source,
    /// Bytes still to come, if known.
    left: Option<u64>,
}

enum Source {
    Memory(Option<Bytes>),
    Stored(Box<Reader>),
    Following(Box<Follower>),
    Passed(Box<Passed>),
}

struct Passed {
    body: ResponseBody,
    tally: Tally,
    content: u64,
    metrics: std::sync::Arc<WorkerMetrics>,
}

impl Body {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// These bytes.
    pub(crate) fn full(bytes: Bytes) -> Self {
        let left = Some(bytes.len() as u64);
        Self {
            source: Source::Memory(Some(bytes).filter(|bytes| !bytes.is_empty())),
            left,
        }
    }

    /// `length` bytes out of the store.
    pub(crate) fn stored(reader: Reader, length: u64) -> Self {
        Self {
            source: Source::Stored(Box::new(reader)),
            left: Some(length),
        }
    }

    /// A response that is being fetched and stored.
    pub(crate) fn following(follower: Follower, length: Option<u64>) -> Self {
        Self {
            source: Source::Following(Box::new(follower)),
            left: length,
        }
    }

    /// A response that is only passed on.
    pub(crate) fn passed(
        body: ResponseBody,
        tally: Tally,
        metrics: std::sync::Arc<WorkerMetrics>,
    ) -> Self {
        let left = http_body::Body::size_hint(&body).exact();
        let passed = Passed {
            body,
            tally,
            content: 0,
            metrics,
        };
        Self {
            source: Source::Passed(Box::new(passed)),
            left,
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        let all = self.body.origin_bytes();
        self.tally.set(all);
        self.metrics.fetched(all, self.content);
    }
}

fn failure(error: ReadError) -> Failure {
    match error {
        ReadError::Aborted { .. } => Failure::ResponseIncomplete,
        _ => Failure::Internal("stored content has gone while it was sent"),
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = self.get_mut();
        let piece = match &mut this.source {
            Source::Memory(bytes) => return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Source::Passed(passed) => {
                let frame = Pin::new(&mut passed.body).poll_frame(context);
                if let Poll::Ready(Some(Ok(frame))) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    passed.content += data.len() as u64;
                }
                return frame;
            }
            Source::Stored(reader) => reader.poll_next(context),
            Source::Following(follower) => follower.poll_next(context),
        };
        let Poll::Ready(piece) = piece else {
            return Poll::Pending;
        };
        match piece {
            Some(Ok(bytes)) => {
                if let Some(left) = &mut this.left {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(failure(error)))),
            // The store's length and the announced one come from one record, so this is a bug.
            None if this.left.is_some_and(|left| left > 0) => Poll::Ready(Some(Err(
                Failure::Internal("content is shorter than announced"),
            ))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Memory(bytes) => bytes.is_none(),
            Source::Passed(passed) => passed.body.is_end_stream(),
            Source::Stored(_) | Source::Following(_) => self.left == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Passed(passed) => passed.body.size_hint(),
            _ => self
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
