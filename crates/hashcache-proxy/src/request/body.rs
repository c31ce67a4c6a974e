//! Where the bytes of an answer come from: memory, the store, a fetch in progress, or upstream.
//!
//! Invariant: a body ends with an error unless all of it was given; hyper then breaks the
//! connection off, so that no client takes a part for the whole.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, Paid, Payer, ReadError, Reader, Reservation};
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::assembly::Assembly;
use crate::failure::Failure;
use crate::fetch::counters::{ByteCount, Trailers};
use crate::metrics::{CountedBytes, STEP_BYTES, WorkerMetrics};
use crate::mirror::Rewriting;
use crate::share::Share;
use crate::upstream::ResponseBody;

/// The content of an answer.
pub(crate) struct Body {
    source: BodySource,
    /// Bytes still to come, if known.
    left: Option<u64>,
    sending: Option<SentCounter>,
    payment: Option<Payment>,
}

/// What is read from disk for an answer is in the share of its client.
struct Payment {
    /// The share had no room for the last read.
    refused: Arc<AtomicBool>,
    retry: Option<Pin<Box<Sleep>>>,
}

impl Payment {
    /// With what pays for the reads.
    fn of(share: Share) -> (Self, Payer) {
        let refused = Arc::<AtomicBool>::default();
        let payment = Self {
            refused: Arc::clone(&refused),
            retry: None,
        };
        let payer = move |bytes| {
            let taken = share.take_for_reading(bytes);
            refused.store(taken.is_none(), Ordering::Relaxed);
            taken.map(|taken| Arc::new(taken) as Paid)
        };
        (payment, Arc::new(payer))
    }

    /// Ready when it is time to ask for room again; never while nothing was refused.
    fn poll_retry(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.refused.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let retry = self
            .retry
            .get_or_insert_with(|| Box::pin(sleep(RETRY_TIME)));
        ready!(retry.as_mut().poll(context));
        self.retry = None;
        Poll::Ready(())
    }
}

/// How often an answer looks for room in its client's share.
const RETRY_TIME: Duration = Duration::from_millis(50);

/// Has a long answer counted on its way to the client.
struct SentCounter {
    metrics: Arc<WorkerMetrics>,
    /// What was counted, for who counts the rest at the end.
    counted: ByteCount,
    /// What was not yet.
    bytes: u64,
}

enum BodySource {
    Memory(Option<Bytes>),
    Stored(Box<Reader>),
    Following(Box<Follower>, Option<Trailers>),
    Passed(Box<ForwardedBody>),
    Assembled(Assembled),
    Rewritten(Box<Rewritten>),
}

/// An assembly, and what it waits for while it is polled.
enum Assembled {
    Idle(Box<Assembly>),
    Busy(Pin<Box<dyn Future<Output = (Box<Assembly>, NextBytes)>>>),
    Gone,
}

type NextBytes = Option<Result<Bytes, Failure>>;

impl Assembled {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextBytes> {
        if let Self::Idle(_) = self
            && let Self::Idle(mut assembly) = std::mem::replace(self, Self::Gone)
        {
            *self = Self::Busy(Box::pin(async move {
                let piece = assembly.next().await;
                (assembly, piece)
            }));
        }
        let Self::Busy(busy) = self else {
            return Poll::Ready(None);
        };
        let Poll::Ready((assembly, piece)) = busy.as_mut().poll(context) else {
            return Poll::Pending;
        };
        *self = Self::Idle(assembly);
        Poll::Ready(piece)
    }
}

/// Another body, rewritten as it is sent.
struct Rewritten {
    body: Body,
    rewriting: Rewriting,
    /// What came before the head was sent.
    first: Option<Bytes>,
    /// There was all of it.
    has_ended: bool,
    _memory: Reservation,
}

impl Rewritten {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextBytes> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            match self.rewriting.next() {
                Ok(None) => {}
                piece => return Poll::Ready(piece.transpose()),
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let frame = http_body::Body::poll_frame(Pin::new(&mut self.body), context);
            let Poll::Ready(frame) = frame else {
                return Poll::Pending;
            };
            match frame {
                // Trailers speak of bytes that are not sent.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rewriting.take(data);
                    }
                }
                Some(Err(failure)) => return Poll::Ready(Some(Err(failure))),
                None => {
                    self.has_ended = true;
                    return Poll::Ready(self.rewriting.finish().transpose());
                }
            }
        }
    }
}

struct ForwardedBody {
    body: ResponseBody,
    byte_count: ByteCount,
    content: u64,
    counted: CountedBytes,
    metrics: Arc<WorkerMetrics>,
}

impl Body {
    /// Nothing.
    pub(crate) fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// These bytes.
    pub(crate) fn full(bytes: Bytes) -> Self {
        let left = Some(bytes.len() as u64);
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self::of(BodySource::Memory(bytes), left)
    }

    /// `length` bytes out of the store.
    pub(crate) fn stored(reader: Reader, length: u64) -> Self {
        Self::of(BodySource::Stored(Box::new(reader)), Some(length))
    }

    /// `length` bytes, put together as they are sent.
    pub(super) fn assembled(assembly: Assembly, length: u64) -> Self {
        let assembly = Assembled::Idle(Box::new(assembly));
        Self::of(BodySource::Assembled(assembly), Some(length))
    }

    /// The content of `body`, rewritten; its length shows when it has been. Waits for the first of
    /// it, so that what is wrong from the beginning can still be told by a page of ours.
    pub(super) async fn rewritten(
        body: Body,
        rewriting: Rewriting,
        memory: Reservation,
    ) -> Result<Self, Failure> {
        let mut rewritten = Rewritten {
            body,
            rewriting,
            first: None,
            has_ended: false,
            _memory: memory,
        };
        let first = poll_fn(|context| rewritten.poll_next(context)).await;
        rewritten.first = first.transpose()?;
        Ok(Self::of(BodySource::Rewritten(Box::new(rewritten)), None))
    }

    /// A response that is being fetched and stored: `length` bytes from where the follower is.
    pub(crate) fn following(follower: Follower, length: Option<u64>) -> Self {
        Self::of(BodySource::Following(Box::new(follower), None), length)
    }

    /// The same, with what is passed on after the content.
    pub(crate) fn with_trailers(mut self, of: Trailers) -> Self {
        if let BodySource::Following(_, trailers) = &mut self.source {
            *trailers = Some(of);
        }
        self
    }

    /// The same, counted while it is sent if it is long; `counted` is told how much.
    pub(super) fn counted(mut self, metrics: &Arc<WorkerMetrics>, counted: &ByteCount) -> Self {
        let length = http_body::Body::size_hint(&self).exact();
        self.sending = length
            .is_none_or(|length| length >= STEP_BYTES)
            .then(|| SentCounter {
                metrics: Arc::clone(metrics),
                counted: Rc::clone(counted),
                bytes: 0,
            });
        self
    }

    fn of(source: BodySource, left: Option<u64>) -> Self {
        Self {
            source,
            left,
            sending: None,
            payment: None,
        }
    }

    /// The same, with what is read from disk in the share of a client.
    pub(super) fn paid_by(mut self, share: &Share) -> Self {
        let (payment, payer) = Payment::of(share.clone());
        self.source = match self.source {
            BodySource::Stored(reader) => BodySource::Stored(Box::new(reader.paid_by(payer))),
            BodySource::Following(follower, trailers) => {
                BodySource::Following(Box::new(follower.paid_by(payer)), trailers)
            }
            BodySource::Assembled(Assembled::Idle(mut assembly)) => {
                assembly.pay_by(payer);
                BodySource::Assembled(Assembled::Idle(assembly))
            }
            BodySource::Rewritten(mut rewritten) => {
                // The body within looks for room by itself.
                let body = std::mem::replace(&mut rewritten.body, Self::empty());
                rewritten.body = body.paid_by(share);
                self.source = BodySource::Rewritten(rewritten);
                return self;
            }
            other @ (BodySource::Memory(_) | BodySource::Passed(_) | BodySource::Assembled(_)) => {
                self.source = other;
                return self;
            }
        };
        self.payment = Some(payment);
        self
    }

    /// A response that is only passed on.
    pub(crate) fn passed(
        body: ResponseBody,
        byte_count: ByteCount,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let left = http_body::Body::size_hint(&body).exact();
        let passed = ForwardedBody {
            body,
            byte_count,
            content: 0,
            counted: CountedBytes::default(),
            metrics,
        };
        Self::of(BodySource::Passed(Box::new(passed)), left)
    }
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        let all = self.body.origin_bytes();
        self.byte_count.set(all);
        let content = self.content;
        self.metrics.fetched_rest(&mut self.counted, all, content);
    }
}

fn failure(error: ReadError) -> Failure {
    match error {
        ReadError::Aborted { .. } => Failure::ResponseIncomplete,
        _ => Failure::Internal("stored content was overwritten while it was sent"),
    }
}

impl Body {
    fn poll_source(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let piece = match &mut self.source {
            BodySource::Memory(bytes) => {
                return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b))));
            }
            BodySource::Passed(passed) => {
                let frame = http_body::Body::poll_frame(Pin::new(&mut passed.body), context);
                if let Poll::Ready(Some(Ok(frame))) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    passed.content += data.len() as u64;
                    let (all, content) = (passed.body.origin_bytes(), passed.content);
                    let metrics = &passed.metrics;
                    metrics.fetching(&mut passed.counted, all, content);
                }
                return frame;
            }
            BodySource::Rewritten(rewritten) => {
                let piece = rewritten.poll_next(context);
                return piece.map(|piece| piece.map(|piece| piece.map(Frame::data)));
            }
            BodySource::Stored(reader) => reader.poll_next(context),
            BodySource::Following(..) if self.left == Some(0) => return Poll::Ready(None),
            BodySource::Following(follower, _) => follower.poll_next(context),
            BodySource::Assembled(assembled) => match assembled.poll_next(context) {
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(Err(failure))),
                Poll::Ready(Some(Ok(bytes))) => Poll::Ready(Some(Ok(bytes))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            },
        };
        let Poll::Ready(piece) = piece else {
            return Poll::Pending;
        };
        match piece {
            Some(Ok(mut bytes)) => {
                if let Some(left) = &mut self.left {
                    // A follower of the whole goes on where a range ends.
                    bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(failure(error)))),
            // The store's length and the announced one come from one record, so this is a bug.
            None if self.left.is_some_and(|left| left > 0) => Poll::Ready(Some(Err(
                Failure::Internal("content is shorter than announced"),
            ))),
            None => {
                let trailers = match &self.source {
                    BodySource::Following(_, Some(trailers)) => trailers.take(),
                    _ => None,
                };
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
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
        let polled = loop {
            let polled = this.poll_source(context);
            let retry = |payment: &mut Payment| payment.poll_retry(context).is_ready();
            if polled.is_ready() || !this.payment.as_mut().is_some_and(retry) {
                break polled;
            }
        };
        if let Some(sending) = &mut this.sending
            && let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            sending.bytes += data.len() as u64;
            if sending.metrics.sending(sending.bytes) {
                let counted = sending.counted.get() + std::mem::take(&mut sending.bytes);
                sending.counted.set(counted);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Memory(bytes) => bytes.is_none(),
            BodySource::Passed(passed) => passed.body.is_end_stream(),
            // Only the last poll tells.
            BodySource::Rewritten(_) => false,
            BodySource::Stored(_) | BodySource::Following(..) | BodySource::Assembled(_) => {
                self.left == Some(0)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Passed(passed) => passed.body.size_hint(),
            _ => self
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
