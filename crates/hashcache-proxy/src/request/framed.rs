//! Content for a child, in frames.
//!
//! A source of [`Body`](super::body::Body), made by `linked`. The frames themselves are written by
//! `hashcache_wan`.
//!
//! Invariants: content that arrives slowly waits at most [`FLUSH_TIME`] for more. If the source
//! fails, the frames stop without END, and the stream is reset.
//! Cost: 3 to 12 ms a MB, on the connection's thread, at most 64 KiB at a time; 8 ms at once at the
//! start of each 4 MiB stretch of a dictionary.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hashcache_base::failure::Failure;
use hashcache_base::share::{Allowance, ShareReservation};
use hashcache_link::counters::{LinkCounters, OUT};
use hashcache_link::dictionary::{DictionaryReader, StoredContent};
use hashcache_link::usage::{DictionaryKind, LinkUsage};
use hashcache_wan::digest::Digest;
use hashcache_wan::encode::Encoder;
use hashcache_wan::frame::{Dictionary, Head};
use hashcache_wan::memory::encoder_bytes;
use hashcache_wan::sent::SentObject;
use hashcache_wan::sketch::ASKED_BYTES;
use hashcache_wan::stats::Totals;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::named::{Named, Resemblance, Search};
use crate::fetch::counters::ByteCount;

/// The content of another body, in frames.
pub(super) struct Framed<B> {
    body: B,
    begun: Begun,
    /// `None` before the search for a dictionary is over, and after the last frame.
    encoder: Option<Encoder>,
    search: Option<Search>,
    /// Content that was taken for the search.
    collected: VecDeque<Bytes>,
    collected_bytes: usize,
    resemblance: Option<Resemblance>,
    dictionary: Option<DictionaryReader>,
    /// True if the source has sent all content while content was collected.
    has_ended: bool,
    failure: Option<Failure>,
    /// Content that the encoder has not taken yet.
    content: Bytes,
    /// True if the encoder has content that is in no frame yet.
    collects: bool,
    /// While it runs, the encoder waits for more content.
    flush: Option<Pin<Box<Sleep>>>,
    /// Time since which content or frames wait for more.
    held_since: Option<Instant>,
    frames: Vec<u8>,
    /// Sent after the frames: trailers or a failure.
    rest: Option<Result<Frame<Bytes>, Failure>>,
}

/// Input for the start of a transfer.
pub(super) struct Begun {
    /// Length of the content, bytes, if known.
    pub(super) length: Option<u64>,
    /// The dictionary that the child offers, if it is stored here too.
    pub(super) offered: Option<StoredContent>,
    /// Data to find a dictionary for the content, and to make the content a dictionary later.
    pub(super) resemblance: Option<Resemblance>,
    pub(super) allowance: Allowance,
    pub(super) memory: ShareReservation,
    pub(super) account: Account,
}

/// Counts a response's frames when the response is over, for any reason.
pub(super) struct Account {
    counters: Arc<LinkCounters>,
    host: Box<str>,
    received: ByteCount,
    totals: Totals,
    dictionary: Option<DictionaryKind>,
}

impl Account {
    pub(super) fn new(counters: Arc<LinkCounters>, host: Box<str>, received: ByteCount) -> Self {
        Self {
            counters,
            host,
            received,
            totals: Totals::default(),
            dictionary: None,
        }
    }

    /// Records the bytes sent so far. `drop` would be too late for this, because the log entry is
    /// written before the account is dropped.
    fn note(&mut self, totals: Totals) {
        self.totals = totals;
        let usage = LinkUsage::new(totals, self.dictionary);
        self.received.set_link(usage);
    }

    /// Records the encoding time since `begun`.
    fn worked(&self, begun: Instant) {
        self.counters.coding.worked(OUT, begun.elapsed());
    }

    /// Returns true if the disk has time to read this dictionary, for content of `length` bytes.
    fn is_worth_reading(&self, content: &StoredContent, length: Option<u64>) -> bool {
        let load = &self.counters.load;
        let is_worth = load.is_worth_reading(content.length, length, Instant::now().into_std());
        if !is_worth {
            self.counters.coding.shed();
        }
        is_worth
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let coding = &self.counters.coding;
        coding.carried(OUT, self.totals, self.dictionary);
        self.counters.sites.note(&self.host, self.totals);
    }
}

impl Begun {
    /// Reserves memory for a dictionary that was found later.
    fn reserve_for(&mut self, dictionary: &StoredContent) -> bool {
        let without = encoder_bytes(self.length, 0);
        let with = encoder_bytes(self.length, dictionary.length) + dictionary.reading_bytes();
        let more = with - without;
        let memory = self.allowance.reserve_bulk(more);
        let is_reserved = memory.is_some();
        memory.into_iter().for_each(|more| self.memory.join(more));
        is_reserved
    }
}

impl<B: Body<Data = Bytes, Error = Failure> + Unpin> Framed<B> {
    /// Frames for `body`; `search` looks for a dictionary by content.
    pub(super) fn new(body: B, begun: Begun, search: Option<Search>) -> Self {
        let mut framed = Self {
            body,
            begun,
            encoder: None,
            dictionary: None,
            search,
            collected: VecDeque::new(),
            collected_bytes: 0,
            resemblance: None,
            content: Bytes::new(),
            collects: false,
            flush: None,
            held_since: None,
            frames: Vec::new(),
            rest: None,
            has_ended: false,
            failure: None,
        };
        framed.resemblance = framed.begun.resemblance.take();
        if framed.search.is_none() {
            framed.begin_frames(None);
        }
        framed
    }

    /// Starts the frames, with the dictionary that was found.
    fn begin_frames(&mut self, named: Option<Named>) {
        self.search = None;
        let named = named.filter(|named| {
            self.begun
                .account
                .is_worth_reading(&named.content, self.begun.length)
                && self.begun.reserve_for(&named.content)
        });
        let (dictionary, content) = match named {
            Some(Named { key, content }) => {
                let dictionary = Dictionary::Named {
                    key,
                    digest: content.digest,
                    length: content.length,
                };
                (dictionary, Some(content))
            }
            None => match self.begun.offered.take().filter(|content| {
                let length = self.begun.length;
                self.begun.account.is_worth_reading(content, length)
            }) {
                Some(content) => (Dictionary::Offered, Some(content)),
                None => (Dictionary::None, None),
            },
        };
        let kind = match &dictionary {
            Dictionary::None => None,
            Dictionary::Offered => Some(DictionaryKind::Offered),
            Dictionary::Named { .. } => Some(DictionaryKind::Named),
        };
        let account = &mut self.begun.account;
        account.dictionary = kind;
        if let Some(kind) = kind {
            account.counters.coding.dictionary(kind, true);
        }
        let offered = content.as_ref().map_or(0, |content| content.length);
        let head = Head {
            length: self.begun.length,
            version: 0,
            dictionary,
        };
        self.encoder = Some(Encoder::new(head, offered));
        let counters = &self.begun.account.counters;
        self.dictionary =
            content.map(|content| DictionaryReader::new(content, Arc::clone(counters)));
    }

    /// Collects content until it suffices for a dictionary search, and searches.
    fn poll_search(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (Some(search), Some(resemblance)) = (&mut self.search, &mut self.resemblance) else {
            self.begin_frames(None);
            return Poll::Ready(());
        };
        while self.collected_bytes < ASKED_BYTES && !self.has_ended && self.failure.is_none() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => {
                    ready!(search.poll_patience(context));
                    break;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        resemblance.sketcher.push(&data);
                        self.collected_bytes += data.len();
                        // A copy, for which `begun.memory` pays: the piece itself may keep a page
                        // in memory.
                        self.collected.push_back(Bytes::copy_from_slice(&data));
                    }
                    Err(trailers) => self.rest = Some(Ok(trailers)),
                },
                Poll::Ready(Some(Err(failure))) => self.failure = Some(failure),
                Poll::Ready(None) => self.has_ended = true,
            }
        }
        let named = ready!(search.poll_find(resemblance, context));
        self.begin_frames(named);
        Poll::Ready(())
    }

    /// The next frame of the source; collected content is first.
    fn poll_source(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if let Some(data) = self.collected.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(resemblance) = &mut self.resemblance
            && let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            resemblance.sketcher.push(data);
        }
        Poll::Ready(frame)
    }

    /// Enters the content in the table of sent objects, so that it can be a dictionary.
    fn enter(&mut self, digest: Digest, length: u64) {
        if let Some(resemblance) = self.resemblance.take() {
            let object = SentObject {
                key: resemblance.key,
                digest,
                length,
            };
            let sketch = resemblance.sketcher.sketch();
            resemblance.sent.enter(object, &sketch);
        }
    }

    /// Replaces the source.
    pub(super) fn with_body(mut self, with: impl FnOnce(B) -> B) -> Self {
        self.body = with(self.body);
        self
    }

    /// The next frames, or the trailers after them.
    ///
    /// Short frames are sent together while more content arrives: a TLS record and its HTTP/2 frame
    /// add 31 bytes, as much as a block of a release that hardly changed.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let mut coded = 0;
        loop {
            if self.frames.len() >= SENT_BYTES {
                return self.take_frames();
            }
            if self.search.is_some() {
                ready!(self.poll_search(context));
                continue;
            }
            let Some(encoder) = &mut self.encoder else {
                if !self.frames.is_empty() {
                    return self.take_frames();
                }
                return Poll::Ready(self.rest.take());
            };
            if let Some(wanted) = encoder.wants() {
                let piece = match &mut self.dictionary {
                    Some(dictionary) => dictionary.poll_read(context, wanted),
                    None => Poll::Ready(None),
                };
                if piece.is_pending() && !self.frames.is_empty() {
                    return self.take_frames();
                }
                match ready!(piece) {
                    Some(piece) => encoder.give(&piece),
                    None => encoder.give_up_dictionary(),
                }
                continue;
            }
            if !self.content.is_empty() {
                if coded >= TURN_BYTES {
                    // Give other requests on this core their turn.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let piece = &self.content[..self.content.len().min(PIECE_BYTES)];
                let begun = Instant::now();
                let pushed = encoder.push(piece, &mut self.frames);
                self.begun.account.worked(begun);
                match pushed {
                    Ok(taken) => {
                        coded += taken;
                        self.content.advance(taken);
                    }
                    Err(error) => return self.fail(&error),
                }
                self.collects = true;
                continue;
            }
            let polled = self.poll_source(context);
            let Some(encoder) = &mut self.encoder else {
                continue;
            };
            match polled {
                Poll::Pending => {
                    if !self.collects && self.frames.is_empty() {
                        return Poll::Pending;
                    }
                    let since = *self.held_since.get_or_insert_with(Instant::now);
                    let flush = self.flush.get_or_insert_with(|| {
                        let left = HELD_TIME.saturating_sub(since.elapsed());
                        Box::pin(sleep(left.min(FLUSH_TIME)))
                    });
                    if flush.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    if std::mem::take(&mut self.collects) {
                        let begun = Instant::now();
                        let flushed = encoder.flush(&mut self.frames);
                        self.begun.account.worked(begun);
                        if let Err(error) = flushed {
                            return self.fail(&error);
                        }
                    }
                    (self.flush, self.held_since) = (None, None);
                    if !self.frames.is_empty() {
                        return self.take_frames();
                    }
                }
                Poll::Ready(Some(Ok(frame))) => {
                    self.flush = None;
                    match frame.into_data() {
                        Ok(data) => self.content = data,
                        Err(trailers) => self.rest = Some(Ok(trailers)),
                    }
                }
                Poll::Ready(Some(Err(failure))) => {
                    // The child may use the content before the failure.
                    let flushed = encoder.flush(&mut self.frames);
                    self.begun.account.note(encoder.totals());
                    if let (Ok(()), Some(encoder)) = (flushed, self.encoder.take()) {
                        encoder.abort(SOURCE_FAILED, &mut self.frames);
                    }
                    self.rest = Some(Err(failure));
                }
                Poll::Ready(None) => {
                    let Some(encoder) = self.encoder.take() else {
                        continue;
                    };
                    let begun = Instant::now();
                    let finished = encoder.finish(&mut self.frames);
                    self.begun.account.worked(begun);
                    match finished {
                        Ok((digest, totals)) => {
                            self.begun.account.note(totals);
                            self.enter(digest, totals.content_bytes);
                        }
                        Err(error) => return self.fail(&error),
                    }
                }
            }
        }
    }

    /// Returns true if END, or the frame in place of END, was the last frame. Then the stream is
    /// closed with it, and no empty HTTP/2 frame with a TLS record follows.
    pub(super) fn has_given_all(&self) -> bool {
        let is_begun = self.search.is_none();
        is_begun && self.encoder.is_none() && self.frames.is_empty() && self.rest.is_none()
    }

    fn take_frames(&mut self) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let frames = std::mem::take(&mut self.frames);
        (self.flush, self.held_since) = (None, None);
        if let Some(encoder) = &self.encoder {
            self.begun.account.note(encoder.totals());
        }
        Poll::Ready(Some(Ok(Frame::data(frames.into()))))
    }

    fn fail(
        &mut self,
        error: &hashcache_wan::error::EncodeError,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        tracing::warn!(%error, "content for a child could not be coded");
        self.encoder = None;
        let failure = Failure::Internal("content could not be coded for the link");
        Poll::Ready(Some(Err(failure)))
    }
}

/// Content that is coded in one step, bytes: 1 ms or less within a stretch.
const PIECE_BYTES: usize = 64 << 10;
/// Frames that are sent without waiting for more, bytes: a TLS record.
const SENT_BYTES: usize = 16 << 10;
/// Content that is coded before other requests have their turn, bytes.
const TURN_BYTES: usize = 256 << 10;
/// Maximum time that content waits, if more content arrives meanwhile.
const HELD_TIME: Duration = Duration::from_millis(100);
/// Time that content waits for more before it is sent.
const FLUSH_TIME: Duration = Duration::from_millis(20);
/// The reason code in ABORT.
const SOURCE_FAILED: u8 = 1;
