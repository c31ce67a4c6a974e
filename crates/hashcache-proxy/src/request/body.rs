//! Sources of response content: memory, the store, a fetch in progress, or upstream.
//!
//! Invariant: a body that was not sent completely finishes with an error. `hashcache-wire` then
//! closes the connection, so no client takes a part for the whole.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hashcache::{Paid, ReadError, Reservation};
use hashcache_access::quota::{ContentFrom, RequestLimits, Throttle};
use hashcache_base::failure::Failure;
use hashcache_base::share::{Allowance, Network, ShareReservation};
use hashcache_site::encode::{Encoder, Verdict};
use hashcache_site::mirror::Rewriting;
use hashcache_store::content::{ContentReader, Payers};
use hashcache_store::follow::ContentFollower;
use hashcache_store::summary::DigestReader;
use hashcache_upstream::ResponseBody;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::assembly::Assembly;
use super::framed::{Begun, Framed};
use super::named::Search;
use crate::fetch::Rest;
use crate::fetch::counters::{ByteCount, Trailers};
use crate::metrics::{CountedBytes, STEP_BYTES, WorkerMetrics};
use crate::worker::Worker;

/// The content of a response.
pub(crate) struct Body {
    source: BodySource,
    /// Bytes left to send, if known.
    left: Option<u64>,
    sending: Option<SentCounter>,
    payment: Option<Payment>,
}

/// Charges content to the client's share when it is read: content read from disk, and content of
/// pages.
struct Payment {
    /// Set if the share had no room for the last read.
    refused: Arc<AtomicBool>,
    retry: Option<Pin<Box<Sleep>>>,
}

impl Payment {
    /// The payment, and the callbacks that are called before each read.
    fn from_allowance(allowance: &Allowance) -> (Self, Payers) {
        let refused = Arc::<AtomicBool>::default();
        let payment = Self {
            refused: Arc::clone(&refused),
            retry: None,
        };
        let (share, is_refused) = (allowance.share().clone(), Arc::clone(&refused));
        let stored = move |bytes| {
            let taken = share.take_for_reading(bytes);
            is_refused.store(taken.is_none(), Ordering::Relaxed);
            taken.map(|taken| Arc::new(taken) as Paid)
        };
        // Reads by the engine are already within the budget of the engine.
        let allowance = allowance.clone();
        let pages = move |bytes| {
            let taken = allowance.reserve(bytes);
            refused.store(taken.is_none(), Ordering::Relaxed);
            taken.map(|taken| Arc::new(taken) as Paid)
        };
        let payers = Payers {
            stored: Arc::new(stored),
            pages: Arc::new(pages),
        };
        (payment, payers)
    }

    /// Ready when it is time to try the share again; pending while nothing was refused.
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

/// Pause before a refused read tries the client's share again.
const RETRY_TIME: Duration = Duration::from_millis(50);

/// The pause between the control block of a digest and the filter: a busy Squid reads the block in
/// this time.
const BEFORE_FILTER: Duration = Duration::from_millis(200);

/// Counts a long response while it is being sent.
struct SentCounter {
    metrics: Arc<WorkerMetrics>,
    /// Bytes counted already; the log entry counts the rest when the response is complete.
    counted: ByteCount,
    /// Bytes not counted yet.
    bytes: u64,
}

enum BodySource {
    Memory(Option<Bytes>),
    /// The complete content of a response that was fetched for this request or for another request.
    Fetched(Option<Bytes>, Option<Trailers>),
    Stored(Box<ContentReader>),
    Following(Box<ContentFollower>, Option<Trailers>),
    Passed(Box<ForwardedBody>),
    Assembled(Assembled, ContentFrom),
    Rewritten(Box<Rewritten>),
    Encoded(Box<Encoded>),
    Digest(Box<DigestBody>),
    Framed(Box<Framed<Body>>),
    Slowed(Box<Slowed>),
}

/// An assembly, and the future that is polled for the next bytes.
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

/// Another body, rewritten while it is sent.
struct Rewritten {
    body: Body,
    rewriting: Rewriting,
    /// The first bytes, read before the head was sent.
    first: Option<Bytes>,
    /// The other body is complete.
    has_ended: bool,
    _memory: Reservation,
}

impl Rewritten {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextBytes> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            match self.rewriting.next_output() {
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
                // Trailers may describe the original bytes (digests, for example), which are not
                // sent.
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

/// Another body, encoded while it is sent.
struct Encoded {
    body: Body,
    encoder: Encoder,
    worker: Rc<Worker>,
    client: Network,
    /// Runs while the client has used more than its share of encoding.
    wait: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
    _memory: ShareReservation,
}

impl Encoded {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextBytes> {
        let failed = |_| Failure::Internal("content could not be encoded");
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(context));
                self.wait = None;
            }
            if let Some(bytes) = self.encoder.next_output().map_err(failed)? {
                return Poll::Ready(Some(Ok(bytes)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            let now = Instant::now();
            if let Verdict::After(time) = self.worker.encode_budget.borrow().ask(self.client, now) {
                self.wait = Some(Box::pin(sleep(time)));
                continue;
            }
            match http_body::Body::poll_frame(Pin::new(&mut self.body), context) {
                // Content that arrives slowly must not wait in the encoder.
                Poll::Pending => {
                    return match self.encoder.flush().map_err(failed)? {
                        Some(bytes) => Poll::Ready(Some(Ok(bytes))),
                        None => Poll::Pending,
                    };
                }
                // Trailers may describe the identity form, so they are not sent.
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        let mut budget = self.worker.encode_budget.borrow_mut();
                        budget.spend(self.client, data.len() as u64, now);
                        self.encoder.take(data);
                    }
                }
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(Err(failure))),
                Poll::Ready(None) => {
                    self.has_ended = true;
                    let rest = self.encoder.finish().map_err(failed)?;
                    return Poll::Ready(rest.map(Ok));
                }
            }
        }
    }
}

/// The proxy's digest. The filter follows the control block after a pause, in separate TCP
/// segments: from a segment that holds both, Squid reads the filter at wrong offsets and finds few
/// URLs in it (Squid bug 5510, in all versions since 2002).
struct DigestBody {
    reader: DigestReader,
    /// Runs between the control block and the filter.
    pause: Option<Pin<Box<Sleep>>>,
    has_begun: bool,
}

impl DigestBody {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextBytes> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            self.pause = Some(Box::pin(sleep(BEFORE_FILTER)));
        }
        let over = |_| Failure::Internal("the digest was replaced while it was sent");
        Poll::Ready(self.reader.next().map(|piece| piece.map_err(over)))
    }
}

/// Another body, slowed down by the client's limits.
struct Slowed {
    body: Body,
    throttle: Throttle,
    /// Bytes that were read and may not be sent yet: the rest of one piece.
    rest: Bytes,
}

impl Slowed {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        // Read first, so that a body without data to send takes no allowance from others, and the
        // end of the content is not delayed.
        while self.rest.is_empty() {
            let frame = http_body::Body::poll_frame(Pin::new(&mut self.body), context);
            match ready!(frame) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let room = ready!(self.throttle.poll_room(context))?;
        let piece = self.rest.split_to(room.min(self.rest.len()));
        if self.rest.is_empty() {
            // An empty slice would keep the memory of the piece.
            self.rest = Bytes::new();
        }
        self.throttle.spend(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

struct ForwardedBody {
    body: ResponseBody,
    /// Fetches the missing part if the content breaks off.
    rest: Option<Rc<Rest>>,
    /// Resolves to the body with the missing part.
    resuming: Option<Resuming>,
    /// Bytes of content that are received again after resuming.
    skip: usize,
    /// Bytes received before resuming.
    earlier: u64,
    byte_count: ByteCount,
    /// Bytes of the response that are in `byte_count`.
    received: u64,
    content: u64,
    counted: CountedBytes,
    metrics: Arc<WorkerMetrics>,
}

impl Body {
    /// No content.
    pub(crate) fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// Content in memory.
    pub(crate) fn full(bytes: Bytes) -> Self {
        let left = Some(bytes.len() as u64);
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self::new(BodySource::Memory(bytes), left)
    }

    /// The `length` bytes of the proxy's cache digest.
    pub(super) fn digest(reader: DigestReader, length: u64) -> Self {
        let digest = DigestBody {
            reader,
            pause: None,
            has_begun: false,
        };
        Self::new(BodySource::Digest(Box::new(digest)), Some(length))
    }

    /// `length` bytes from the store.
    pub(crate) fn stored(reader: ContentReader, length: u64) -> Self {
        Self::new(BodySource::Stored(Box::new(reader)), Some(length))
    }

    /// `length` bytes that are assembled while they are sent; `from` is the origin if some bytes
    /// are known to be missing in the store.
    pub(super) fn assembled(assembly: Assembly, length: u64, from: ContentFrom) -> Self {
        let assembly = Assembled::Idle(Box::new(assembly));
        Self::new(BodySource::Assembled(assembly, from), Some(length))
    }

    /// The content of `body`, rewritten; the new length is known only after the last byte. Waits
    /// for the first bytes, so that an early error can still become an error page.
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
        Ok(Self::new(BodySource::Rewritten(Box::new(rewritten)), None))
    }

    /// Encodes the content while it is sent; the new length is known only after the last byte.
    pub(super) fn encoded(
        self,
        encoder: Encoder,
        (worker, client): (Rc<Worker>, Network),
        memory: ShareReservation,
    ) -> Self {
        let encoded = Encoded {
            body: self,
            encoder,
            worker,
            client,
            wait: None,
            has_ended: false,
            _memory: memory,
        };
        Self::new(BodySource::Encoded(Box::new(encoded)), None)
    }

    /// Sends the content in frames, for a child; `search` looks for a dictionary.
    pub(super) fn framed(self, begun: Begun, search: Option<Search>) -> Self {
        let framed = Framed::new(self, begun, search);
        Self::new(BodySource::Framed(Box::new(framed)), None)
    }

    /// A response that is being fetched and stored: `length` bytes from the follower's offset.
    pub(crate) fn following(follower: ContentFollower, length: Option<u64>) -> Self {
        let source = match follower.into_rest() {
            // Short content is mostly complete by now, and needs no follower that waits for it.
            Ok(rest) => BodySource::Fetched(Some(rest).filter(|rest| !rest.is_empty()), None),
            Err(follower) => BodySource::Following(Box::new(follower), None),
        };
        Self::new(source, length)
    }

    /// Adds the trailers that follow the content.
    pub(crate) fn with_trailers(mut self, of: Trailers) -> Self {
        if let BodySource::Following(_, trailers) | BodySource::Fetched(_, trailers) =
            &mut self.source
        {
            *trailers = Some(of);
        }
        self
    }

    /// Slows the body down to the limits of the client.
    pub(super) fn within(self, limits: &RequestLimits) -> Self {
        let from = self.comes_from();
        if http_body::Body::is_end_stream(&self) {
            return self;
        }
        let Some(throttle) = Throttle::new(limits, from) else {
            return self;
        };
        let slowed = Slowed {
            body: self,
            throttle,
            rest: Bytes::new(),
        };
        Self::new(BodySource::Slowed(Box::new(slowed)), None)
    }

    /// Returns the source of the content: the store, or an origin while the content is sent.
    fn comes_from(&self) -> ContentFrom {
        match &self.source {
            BodySource::Memory(_) | BodySource::Stored(_) | BodySource::Digest(_) => {
                ContentFrom::Store
            }
            BodySource::Fetched(..) | BodySource::Following(..) | BodySource::Passed(_) => {
                ContentFrom::Origin
            }
            BodySource::Assembled(_, from) => *from,
            BodySource::Rewritten(rewritten) => rewritten.body.comes_from(),
            BodySource::Encoded(encoded) => encoded.body.comes_from(),
            BodySource::Slowed(slowed) => slowed.body.comes_from(),
            // Frames are for children, which have no limits here.
            BodySource::Framed(_) => ContentFrom::Store,
        }
    }

    /// Counts the content while it is sent, if it is long; the count is written to `counted`.
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

    fn new(source: BodySource, left: Option<u64>) -> Self {
        Self {
            source,
            left,
            sending: None,
            payment: None,
        }
    }

    /// Charges reads to the client.
    pub(super) fn paid_by(mut self, allowance: &Allowance) -> Self {
        let pay = |payment: &mut Option<Payment>| {
            let (payment_of, payers) = Payment::from_allowance(allowance);
            *payment = Some(payment_of);
            payers
        };
        self.source = match self.source {
            BodySource::Stored(reader) => {
                let payers = pay(&mut self.payment);
                BodySource::Stored(Box::new(reader.paid_by(&payers)))
            }
            BodySource::Following(follower, trailers) => {
                let payers = pay(&mut self.payment);
                BodySource::Following(Box::new(follower.paid_by(&payers)), trailers)
            }
            BodySource::Assembled(Assembled::Idle(mut assembly), from) => {
                assembly.pay_by(pay(&mut self.payment));
                BodySource::Assembled(Assembled::Idle(assembly), from)
            }
            BodySource::Rewritten(mut rewritten) => {
                // The inner body retries by itself when the client's share has no room.
                let body = std::mem::replace(&mut rewritten.body, Self::empty());
                rewritten.body = body.paid_by(allowance);
                BodySource::Rewritten(rewritten)
            }
            BodySource::Encoded(mut encoded) => {
                let body = std::mem::replace(&mut encoded.body, Self::empty());
                encoded.body = body.paid_by(allowance);
                BodySource::Encoded(encoded)
            }
            BodySource::Slowed(mut slowed) => {
                let body = std::mem::replace(&mut slowed.body, Self::empty());
                slowed.body = body.paid_by(allowance);
                BodySource::Slowed(slowed)
            }
            BodySource::Framed(framed) => {
                let framed = framed.with_body(|body| body.paid_by(allowance));
                BodySource::Framed(Box::new(framed))
            }
            other @ (BodySource::Memory(_)
            | BodySource::Fetched(..)
            | BodySource::Passed(_)
            | BodySource::Assembled(..)
            | BodySource::Digest(_)) => other,
        };
        self
    }

    /// Waits until the first bytes can be sent, if they are read from pages: after an error here,
    /// another response can still be sent.
    pub(super) async fn begin(&mut self) -> Result<(), ReadError> {
        poll_fn(|context| {
            let BodySource::Stored(reader) = &mut self.source else {
                return Poll::Ready(Ok(()));
            };
            loop {
                if let Some(payment) = &self.payment {
                    payment.refused.store(false, Ordering::Relaxed);
                }
                let polled = reader.poll_begin(context);
                let retry = |payment: &mut Payment| payment.poll_retry(context).is_ready();
                if polled.is_ready() || !self.payment.as_mut().is_some_and(retry) {
                    return polled;
                }
            }
        })
        .await
    }

    /// A response that is forwarded without being stored.
    pub(crate) fn passed(
        body: ResponseBody,
        byte_count: ByteCount,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let left = http_body::Body::size_hint(&body).exact();
        let passed = ForwardedBody {
            body,
            rest: None,
            resuming: None,
            skip: 0,
            earlier: 0,
            byte_count,
            received: 0,
            content: 0,
            counted: CountedBytes::default(),
            metrics,
        };
        Self::new(BodySource::Passed(Box::new(passed)), left)
    }
}

type Resuming = Pin<Box<dyn Future<Output = Option<ResponseBody>>>>;

impl Body {
    /// If forwarded content breaks off, fetches the missing part with `rest`.
    pub(crate) fn resumed_by(mut self, rest: Option<Rc<Rest>>) -> Self {
        if let BodySource::Passed(passed) = &mut self.source {
            passed.rest = rest;
        }
        self
    }
}

impl ForwardedBody {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        loop {
            if let Some(resuming) = &mut self.resuming {
                let rest = ready!(resuming.as_mut().poll(context));
                self.resuming = None;
                match rest {
                    Some(rest) => {
                        self.earlier += self.body.origin_bytes();
                        self.body = rest;
                        self.skip = usize::from(self.content > 0);
                    }
                    // The body returns its failure once more.
                    None => self.rest = None,
                }
            }
            let mut frame = ready!(http_body::Body::poll_frame(
                Pin::new(&mut self.body),
                context
            ));
            if let (Some(Err(Failure::ResponseIncomplete)), Some(rest)) = (&frame, &self.rest) {
                self.resuming = Some(Box::pin(Rc::clone(rest).after(self.content)));
                continue;
            }
            let all = self.earlier + self.body.origin_bytes();
            if let Some(Ok(got)) = &mut frame
                && let Some(data) = got.data_mut()
            {
                let skipped = self.skip.min(data.len());
                self.skip -= skipped;
                data.advance(skipped);
                self.content += data.len() as u64;
                self.byte_count.advance(&mut self.received, all);
                let metrics = &self.metrics;
                metrics.fetching(&mut self.counted, all, self.content);
                if data.is_empty() && skipped > 0 {
                    continue;
                }
            }
            return Poll::Ready(frame);
        }
    }
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        let all = self.earlier + self.body.origin_bytes();
        self.byte_count.advance(&mut self.received, all);
        self.byte_count.note_link(self.body.link_usage());
        let content = self.content;
        self.metrics.fetched_rest(&mut self.counted, all, content);
    }
}

/// Returns true if the origin has sent trailers.
fn has_trailers(trailers: Option<&Trailers>) -> bool {
    trailers.is_some_and(|trailers| trailers.borrow().is_some())
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
            BodySource::Passed(passed) => return passed.poll_frame(context),
            BodySource::Rewritten(rewritten) => {
                let piece = rewritten.poll_next(context);
                return piece.map(|piece| piece.map(|piece| piece.map(Frame::data)));
            }
            BodySource::Encoded(encoded) => {
                let piece = encoded.poll_next(context);
                return piece.map(|piece| piece.map(|piece| piece.map(Frame::data)));
            }
            BodySource::Framed(framed) => return framed.poll_next(context),
            BodySource::Slowed(slowed) => return slowed.poll_next(context),
            BodySource::Digest(digest) => {
                let piece = digest.poll_next(context);
                return piece.map(|piece| piece.map(|piece| piece.map(Frame::data)));
            }
            BodySource::Stored(reader) => reader.poll_next(context),
            BodySource::Fetched(bytes, _) => Poll::Ready(bytes.take().map(Ok)),
            BodySource::Following(..) if self.left == Some(0) => return Poll::Ready(None),
            BodySource::Following(follower, _) => follower.poll_next(context),
            BodySource::Assembled(assembled, _) => match assembled.poll_next(context) {
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
                    // A follower does not know the range: it continues to the last byte of the
                    // object.
                    bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(failure(error)))),
            // The stored length and the announced length are from the same record, so this is a
            // bug.
            None if self.left.is_some_and(|left| left > 0) => Poll::Ready(Some(Err(
                Failure::Internal("content is shorter than announced"),
            ))),
            None => {
                let trailers = match &self.source {
                    BodySource::Following(_, Some(trailers))
                    | BodySource::Fetched(_, Some(trailers)) => trailers.take(),
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
            if let Some(payment) = &this.payment {
                payment.refused.store(false, Ordering::Relaxed);
            }
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
                sending.counted.add(std::mem::take(&mut sending.bytes));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Memory(bytes) => bytes.is_none(),
            BodySource::Fetched(bytes, trailers) => {
                bytes.is_none() && self.left.unwrap_or(0) == 0 && !has_trailers(trailers.as_ref())
            }
            BodySource::Passed(passed) => passed.body.is_end_stream(),
            // A rewriter may still add bytes after the last input.
            BodySource::Rewritten(_) | BodySource::Encoded(_) | BodySource::Digest(_) => false,
            BodySource::Framed(framed) => framed.has_given_all(),
            BodySource::Slowed(slowed) => {
                slowed.rest.is_empty() && http_body::Body::is_end_stream(&slowed.body)
            }
            BodySource::Stored(_) | BodySource::Following(..) | BodySource::Assembled(..) => {
                self.left == Some(0)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Passed(passed) => passed.body.size_hint(),
            BodySource::Slowed(slowed) => {
                let left = http_body::Body::size_hint(&slowed.body).exact();
                let left = left.map(|left| left + slowed.rest.len() as u64);
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
            _ => self
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
