//! Hits and their content.
//!
//! A hit holds one version of an object. The lookup has read the first span; a [`Reader`] looks up
//! further spans by name, version and number as the caller reads on.
//!
//! Invariant: all content that a reader returns is from the version of the hit. If the log has
//! overwritten content meanwhile, the read fails with an error, and never returns other bytes.

use std::any::Any;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::Cache;
use crate::completion::Outcome;
use crate::error::ReadError;
use crate::key::KeyHash;
use crate::memory::RecordHandle;
use crate::object::{Cut, PAGE, Storage, Version};
use crate::shard::Found;
use crate::shard::LookupTarget;
use crate::stripe::{Hint, StripeLookup};

/// An object that was found. Holds the head in memory; further content is read on demand.
#[derive(Clone)]
pub struct Hit {
    pub(super) cache: Cache,
    pub(super) head: RecordHandle,
}

impl Hit {
    pub(super) fn new(cache: Cache, head: RecordHandle) -> Self {
        Self { cache, head }
    }

    /// The metadata that was put with the content.
    pub fn metadata(&self) -> &Bytes {
        &self.head.metadata
    }

    /// The version, which identifies the put of the name.
    pub fn version(&self) -> Version {
        self.head.fields.version
    }

    /// Number of metadata updates since that put.
    pub fn revision(&self) -> u32 {
        self.head.fields.revision
    }

    /// Length of the whole content, bytes, if known.
    pub fn content_len(&self) -> Option<u64> {
        self.head.fields.total
    }

    /// Returns true if all content was stored when the head was written. Parts of it may have been
    /// lost since.
    pub fn is_complete(&self) -> bool {
        !self.head.fields.incomplete
    }

    /// Returns true if a ban made the object stale ([`crate::Ban::softly`]) and it was not
    /// confirmed since ([`Cache::confirm_metadata`]). Checked at each call.
    pub fn is_made_stale(&self) -> bool {
        let stripe = self.cache.stripe(self.head.fields.key);
        stripe.bans.judge(&self.head).stale
    }

    /// Removes the object stored under the name of this hit, as [`Cache::invalidate`], because the
    /// caller has found that the content is wrong.
    pub fn invalidate(&self) {
        self.cache.invalidate(&self.head.name);
    }

    /// Where the object is kept.
    pub fn storage(&self) -> Storage {
        self.head.storage
    }

    /// The caller's mark.
    pub fn mark(&self) -> u128 {
        self.head.fields.mark
    }

    /// The content, if it is in memory in one piece.
    pub fn whole_content(&self) -> Option<Bytes> {
        if self.head.fields.total != Some(self.head.content_bytes() as u64) {
            return None;
        }
        match &self.head.content[..] {
            [] => Some(Bytes::new()),
            [_one] => Some(self.head.content(0)),
            _ => None,
        }
    }

    /// The whole content, if all of it is in memory, in at most `pieces_max` pieces; in that case
    /// counts a hit. Never reads the disk. An empty list means that there is no content.
    pub fn content_in_memory(&self, pieces_max: usize) -> Option<Vec<Bytes>> {
        let total = self.content_len()?;
        let head = &self.head;
        let pieces = head.content.len();
        if pieces > pieces_max || total > (pieces_max * PAGE) as u64 {
            return None;
        }
        let mut content: Vec<Bytes> = (0..pieces).map(|n| head.content(n)).collect();
        let mut at = head.content_bytes() as u64;
        let stripe = self.cache.stripe(head.fields.key);
        while at < total {
            let span = self.cut().span_at(at);
            if span == 0 || self.cut().bounds(span).start != at {
                return None;
            }
            let key = self.span_key(span);
            let record = stripe.hot_span(key, &head.name, (self.version(), span))?;
            if content.len() + record.content.len() > pieces_max || record.content.is_empty() {
                return None;
            }
            content.extend((0..record.content.len()).map(|n| record.content(n)));
            at += record.content_bytes() as u64;
        }
        let is_whole = at == total;
        is_whole.then(|| {
            stripe.shared.hot.count_hit();
            content
        })
    }

    /// Reads the content in `range`; beyond the end of the content there is nothing.
    pub fn reader(&self, range: Range<u64>) -> Reader {
        let end = range.end.min(self.head.fields.total.unwrap_or(u64::MAX));
        Reader {
            spans: Spans::new(&self.cache, &self.head.name, self.version(), self.cut()),
            head: self.head.clone(),
            at: range.start,
            end,
        }
    }

    /// The parts of `range` that are not stored, as far as memory knows: rounded out to spans, in
    /// order. A part that is not in the list can still turn out missing when it is read.
    ///
    /// An upstream can announce a length of 2^60, and that must not cost time. So after 4,096
    /// missing spans the rest counts as missing, and after 4,096 spans that memory knows nothing
    /// about (policies without an index) the rest counts as stored. The first hole is exact, as
    /// long as memory knows all spans before it.
    pub fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let total = self.head.fields.total.unwrap_or(u64::MAX);
        let end = range.end.min(total);
        let mut holes: Vec<Range<u64>> = Vec::new();
        let (mut missing, mut unknown) = (0, 0);
        let mut at = range.start;
        while at < end {
            let span = self.cut().span_at(at);
            let bounds = self.cut().bounds(span);
            // After the last span that has a number nothing can be stored.
            let is_past_all = bounds.end <= at;
            if missing == HOLE_SPANS_MAX || is_past_all {
                add_hole(&mut holes, at..end);
                break;
            }
            match self.span_hint(span, bounds.end.min(end)) {
                Hint::Stored => {}
                Hint::Unknown if unknown == UNKNOWN_SPANS_MAX => break,
                Hint::Unknown => unknown += 1,
                Hint::Missing => {
                    missing += 1;
                    add_hole(&mut holes, bounds.start..bounds.end.min(total));
                }
            }
            at = bounds.end;
        }
        holes
    }

    /// Returns true if memory knows for each span in `range` that it is stored or missing. Policies
    /// without an index do not know: there [`Hit::holes`] treats a span as stored, and only a read
    /// can tell. After 4,096 spans nothing is looked at.
    pub fn is_known(&self, range: Range<u64>) -> bool {
        let end = range.end.min(self.head.fields.total.unwrap_or(u64::MAX));
        let mut at = range.start;
        for _ in 0..HOLE_SPANS_MAX {
            if at >= end {
                break;
            }
            let span = self.cut().span_at(at);
            let bounds = self.cut().bounds(span);
            if self.span_hint(span, bounds.end.min(end)) == Hint::Unknown {
                return false;
            }
            // After the last span that has a number nothing can be stored.
            at = bounds.end.max(at + 1);
        }
        true
    }

    /// Returns whether memory knows that a span is stored or missing, if content up to `stop` is
    /// wanted.
    fn span_hint(&self, span: u32, stop: u64) -> Hint {
        match span {
            0 if stop <= self.head.content_bytes() as u64 => Hint::Stored,
            // The part that the head of an incomplete object lacks was filled in as a normal span.
            0 if self.is_complete() => Hint::Missing,
            _ => {
                let stripe = self.cache.stripe(self.head.fields.key);
                stripe.hint(self.span_key(span))
            }
        }
    }

    pub(super) fn cut(&self) -> Cut {
        Cut {
            span_pages: self.head.fields.span_pages,
        }
    }

    pub(super) fn span_key(&self, span: u32) -> KeyHash {
        self.cache
            .secret()
            .span(&self.head.name, self.version(), span)
    }
}

/// See [`Hit::holes`].
const HOLE_SPANS_MAX: u32 = 4096;
const UNKNOWN_SPANS_MAX: u32 = 4096;

/// Adds `hole`, which is after all others, to them.
fn add_hole(holes: &mut Vec<Range<u64>>, hole: Range<u64>) {
    match holes.last_mut().filter(|last| last.end >= hole.start) {
        Some(last) => last.end = hole.end,
        None => holes.push(hole),
    }
}

/// Reserves memory for the given number of content bytes before they are read from disk; `None` if
/// there is no room.
pub type Payer = Arc<dyn Fn(u64) -> Option<Paid> + Send + Sync>;
/// Memory that a [`Payer`] has reserved, until the last clone is dropped.
pub type Paid = Arc<dyn Any + Send + Sync>;

/// Content of a hit, in pieces.
pub struct Reader {
    spans: Spans,
    head: RecordHandle,
    at: u64,
    end: u64,
}

impl Reader {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if content is lost. The pieces read before stay right.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReadError>>> {
        if self.at >= self.end {
            return Poll::Ready(None);
        }
        let in_head = usize::try_from(self.at)
            .ok()
            .filter(|at| *at < self.head.content_bytes());
        let span = self.spans.cut.span_at(self.at);
        let piece = if let Some(at) = in_head {
            self.head.piece(at)
        } else if span == 0 && !self.head.fields.incomplete {
            Bytes::new()
        } else {
            match self.spans.poll_piece(context, self.at, self.end) {
                Poll::Ready(piece) => piece.unwrap_or_default(),
                Poll::Pending => return Poll::Pending,
            }
        };
        if piece.is_empty() {
            let offset = self.at;
            if self.head.fields.total.is_none() && !self.head.fields.incomplete {
                return Poll::Ready(None);
            }
            return Poll::Ready(Some(Err(ReadError::Missing { offset })));
        }
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let piece = piece.slice(..piece.len().min(left));
        self.at += piece.len() as u64;
        Poll::Ready(Some(Ok(piece)))
    }

    /// Calls `payer` before content is read from disk. The memory that it reserves is held as long
    /// as any piece of that content. If it refuses, [`Reader::poll_next`] is pending and no waker
    /// is called: the caller polls again when there may be room.
    #[must_use]
    pub fn paid_by(mut self, payer: Payer) -> Self {
        self.spans.payer = Some(payer);
        self
    }

    /// Offset of the next piece.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// The rest, in one piece. Blocks.
    ///
    /// # Errors
    /// As [`Reader::poll_next`].
    pub fn read_to_vec(mut self) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while let Some(piece) = wait(|context| self.poll_next(context)) {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }
}

/// Blocks while content is read from disk. A read stops at the end of a piece, after 64 KiB or
/// less.
///
/// Not together with [`Reader::paid_by`]: a read would wait forever if the payer refuses.
impl io::Read for Reader {
    /// # Errors
    /// With a [`ReadError`] inside if content is lost.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let Some(piece) = wait(|context| self.poll_next(context)) else {
            return Ok(0);
        };
        let piece = piece.map_err(io::Error::other)?;
        let length = piece.len().min(buffer.len());
        buffer[..length].copy_from_slice(&piece[..length]);
        // The rest of the piece is still in memory: the next read takes it from there.
        self.at -= (piece.len() - length) as u64;
        Ok(length)
    }
}

/// The stream is over after the first error: content after lost content is not returned.
#[cfg(feature = "stream")]
impl futures_core::Stream for Reader {
    type Item = Result<Bytes, ReadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reader = self.get_mut();
        let piece = Self::poll_next(reader, context);
        if matches!(piece, Poll::Ready(Some(Err(_)))) {
            reader.end = reader.at;
        }
        piece
    }
}

/// Blocks until `poll` is ready.
pub(super) fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

/// Reads the spans of one version in order and looks up the next spans ahead.
pub(super) struct Spans {
    cache: Cache,
    /// Key hash of the name.
    key: KeyHash,
    name: Bytes,
    version: Version,
    pub(super) cut: Cut,
    current: Option<(u32, RecordHandle, Option<Paid>)>,
    /// In order; spans of one run are looked up together.
    asked: Vec<SpanLookup>,
    pub(super) payer: Option<Payer>,
}

/// A span that is being looked up.
struct SpanLookup {
    span: u32,
    outcome: Outcome<Found>,
    /// Held for the whole run, because its spans share a buffer.
    paid: Option<Paid>,
}

/// Why spans are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The first span is the next to be sent.
    Now,
    /// So that the spans are in memory when they are needed.
    Ahead,
}

/// A piece of a span, with the memory reserved for the whole buffer.
struct PaidPiece {
    piece: Bytes,
    _paid: Paid,
}

impl AsRef<[u8]> for PaidPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Spans {
    pub(super) fn new(cache: &Cache, name: &Bytes, version: Version, cut: Cut) -> Self {
        let (cache, name) = (cache.clone(), name.clone());
        Self {
            key: cache.secret().name(&name),
            cache,
            name,
            version,
            cut,
            current: None,
            asked: Vec::new(),
            payer: None,
        }
    }

    /// The piece at `at`, which is in a separate span, to the end of that memory piece; `None` if
    /// it is not stored. Nothing from `end` on is read ahead.
    pub(super) fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
        at: u64,
        end: u64,
    ) -> Poll<Option<Bytes>> {
        let span = self.cut.span_at(at);
        let start = self.cut.bounds(span).start;
        if self
            .current
            .as_ref()
            .is_none_or(|(current, ..)| *current != span)
        {
            self.current = None;
            if !self.asked.iter().any(|asked| asked.span == span) {
                self.asked.clear();
                if !self.ask(span, end, Need::Now) {
                    return Poll::Pending;
                }
            }
            let Some(asked) = self.asked.iter_mut().find(|asked| asked.span == span) else {
                return Poll::Ready(None);
            };
            let Poll::Ready(found) = Pin::new(&mut asked.outcome).poll(context) else {
                return Poll::Pending;
            };
            let paid = asked.paid.clone();
            self.asked.retain(|asked| asked.span > span);
            let Some(record) = found else {
                return Poll::Ready(None);
            };
            self.current = Some((span, record, paid));
            self.ask_ahead(span.saturating_add(1), end);
        }
        let Some((_, record, paid)) = &self.current else {
            return Poll::Ready(None);
        };
        let piece = record.piece(usize::try_from(at - start).unwrap_or(usize::MAX));
        if piece.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match paid.clone() {
            Some(_paid) => Bytes::from_owner(PaidPiece { piece, _paid }),
            None => piece,
        }))
    }

    /// Looks up `span`, and the spans that directly follow it on disk. Returns false if there is no
    /// room for it.
    fn ask(&mut self, span: u32, end: u64, need: Need) -> bool {
        let stripe = self.cache.stripe(self.key);
        let most = usize::try_from(stripe.spans_at_once() / self.cut.span_bytes()).unwrap_or(0);
        let behind = (span..u32::MAX)
            .take(most)
            .skip(1)
            .take_while(|behind| self.cut.bounds(*behind).start < end)
            .map(|behind| self.wanted(behind, end));
        let first = self.wanted(span, end);
        let mut behind: Vec<LookupTarget> = behind.collect();
        let is_hot = self.payer.is_some() && stripe.shared.hot.contains(first.key);
        if is_hot {
            // Nothing is read, so nothing is paid.
            behind.clear();
        }
        let all = std::iter::once(&first).chain(&behind);
        let lengths: Vec<u64> = all.map(|wanted| wanted.expect as u64).collect();
        let pay = |spans: usize| match &self.payer {
            Some(payer) if !is_hot => payer(lengths.iter().take(spans).sum()).map(Some),
            _ => Some(None),
        };
        let mut paid = match (pay(1 + behind.len()), need) {
            (Some(paid), _) => paid,
            (None, Need::Ahead) => return false,
            (None, Need::Now) => {
                behind.clear();
                match pay(1) {
                    Some(paid) => paid,
                    None => return false,
                }
            }
        };
        let spans = 1 + behind.len();
        let lookups = stripe.lookup_run(first, behind.into_iter());
        if lookups.len() < spans && paid.is_some() {
            // The run is shorter. Release the memory reserved for it before reserving again.
            drop(paid.take());
            paid = pay(lookups.len()).flatten();
        }
        for (span, lookup) in (span..=u32::MAX).zip(lookups) {
            let paid = paid.clone();
            let (outcome, paid) = match lookup {
                // In memory anyway.
                StripeLookup::Found(record) => (Outcome::ready(Some(record)), None),
                StripeLookup::Nothing => (Outcome::ready(None), None),
                StripeLookup::Asked(outcome) => (outcome, paid),
                StripeLookup::Deferred(deferred) => (deferred.begin(), paid),
            };
            self.asked.push(SpanLookup {
                span,
                outcome,
                paid,
            });
        }
        true
    }

    /// The lookup target for a span when content up to `end` is wanted.
    fn wanted(&self, span: u32, end: u64) -> LookupTarget {
        let bounds = self.cut.bounds(span);
        let expect = usize::try_from(bounds.end.min(end.max(bounds.start)) - bounds.start);
        let secret = self.cache.secret();
        LookupTarget {
            key: secret.span(&self.name, self.version, span),
            name: self.name.clone(),
            span: Some((self.version, span)),
            expect: expect.unwrap_or(0),
        }
    }

    /// Looks up the next span while this span is sent, as long as memory is not short.
    fn ask_ahead(&mut self, span: u32, end: u64) {
        let stripe = self.cache.stripe(self.key);
        let roomy = stripe.shared.available_bytes() > stripe.medium.budget.reservable() / 8;
        let asked = self.asked.iter().any(|asked| asked.span == span);
        if roomy && !asked && self.cut.bounds(span).start < end {
            self.ask(span, end, Need::Ahead);
        }
    }
}
