//! Followers of content that is being stored; they get content even if it is stored in pages.
//!
//! Made by `put`, read by `request` in the proxy. For content in pages, the engine has only the
//! stored form, so [`PageStream`] holds two pages as content: the partial page and the page before
//! it. A follower that keeps up reads these two. A follower that is further behind unpacks the
//! stored form, which the engine reads from memory or from the disk. Therefore a slow follower
//! takes no memory and does not slow down the others.
//!
//! Invariant: as in the engine, a follower's stream finishes with exactly one of "complete" and
//! [`ReadError::Aborted`].
//! Cost: one lock and one copy of at most 64 KiB per piece of a partial page.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use hashcache::{Follower, Paid, Payer, ReadError, Reservation, Stream};
use hashcache_wan::pages::PAGE_BYTES;

use super::content::Payers;
use super::unpack::{StoredPage, paid};

/// Position of a piece of content, for the page writer: the last piece, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsEnd {
    /// The content is complete.
    Yes,
    /// More content follows.
    No,
}

/// Makes followers of content that is being stored.
#[derive(Clone)]
pub enum ContentStream {
    /// Content that is stored as received.
    Plain(Arc<Stream>),
    /// Content that is stored in pages.
    Pages(Arc<PageStream>),
}

impl ContentStream {
    /// Returns true if the content is stored in pages.
    pub fn is_in_pages(&self) -> bool {
        matches!(self, Self::Pages(_))
    }

    /// Content bytes written so far.
    pub fn written(&self) -> u64 {
        match self {
            Self::Plain(stream) => stream.written(),
            Self::Pages(pages) => pages.lock().written,
        }
    }

    /// As [`Stream::follow`].
    pub fn follow(&self, offset: u64) -> Option<ContentFollower> {
        match self {
            Self::Plain(stream) => stream.follow(offset).map(ContentFollower::Plain),
            Self::Pages(pages) => {
                PageStream::follow_with(pages, offset, |stored| pages.stored.follow(stored))
            }
        }
    }
}

/// Reads content while it is being stored.
pub enum ContentFollower {
    /// Content that is stored as received.
    Plain(Follower),
    /// Content that is stored in pages.
    Pages(Box<PageFollower>),
}

impl ContentFollower {
    /// Returns true if the content is stored in pages.
    pub fn is_in_pages(&self) -> bool {
        matches!(self, Self::Pages(_))
    }

    /// As [`Follower::paid_by`].
    #[must_use]
    pub fn paid_by(self, payers: &Payers) -> Self {
        let stored = Arc::clone(&payers.stored);
        match self {
            Self::Plain(follower) => Self::Plain(follower.paid_by(stored)),
            Self::Pages(mut pages) => {
                pages.follower = pages.follower.paid_by(stored);
                pages.payer = Some(Arc::clone(&payers.pages));
                Self::Pages(pages)
            }
        }
    }

    /// As [`Follower::into_rest`]; content in pages is never available in one piece.
    #[expect(
        clippy::result_large_err,
        reason = "the error is the follower, given back"
    )]
    pub fn into_rest(self) -> Result<Bytes, Self> {
        match self {
            Self::Plain(follower) => follower.into_rest().map_err(Self::Plain),
            Self::Pages(_) => Err(self),
        }
    }

    /// As [`Follower::poll_next`]. Pending without a waker if a payer refuses.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReadError>>> {
        match self {
            Self::Plain(follower) => follower.poll_next(context),
            Self::Pages(pages) => pages.poll_next(context),
        }
    }
}

/// Write state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Complete,
    Aborted,
}

/// State shared by a page writer and the followers.
pub struct PageStream {
    /// The stream of the stored form.
    stored: Arc<Stream>,
    state: Mutex<PageState>,
    _memory: Reservation,
}

struct PageState {
    /// End offset for each written page's stored form.
    ends: Vec<u64>,
    /// Content behind the last full page.
    tail: Vec<u8>,
    /// The last full page and its number: the last page in `ends`, or the page after it.
    recent: Option<(usize, Bytes)>,
    /// Content so far, bytes.
    written: u64,
    end: End,
    waiting: Vec<Waker>,
}

impl PageState {
    /// Start of a page's stored form; if the page is not reached yet, the end of the stored form so
    /// far.
    fn start(&self, page: usize) -> u64 {
        match page.min(self.ends.len()) {
            0 => 0,
            page => self.ends[page - 1],
        }
    }
}

/// Content offset where a page starts.
fn start_of(page: usize) -> u64 {
    page as u64 * PAGE_BYTES as u64
}

fn page_at(offset: u64) -> usize {
    usize::try_from(offset / PAGE_BYTES as u64).unwrap_or(usize::MAX)
}

impl PageStream {
    /// Creates the shared state for content with the stored form `stored`.
    pub(super) fn new(stored: Arc<Stream>, memory: Reservation) -> Arc<Self> {
        let state = PageState {
            ends: Vec::new(),
            tail: Vec::new(),
            recent: None,
            written: 0,
            end: End::Open,
            waiting: Vec::new(),
        };
        Arc::new(Self {
            stored,
            state: Mutex::new(state),
            _memory: memory,
        })
    }

    fn lock(&self) -> MutexGuard<'_, PageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a follower that reads from `offset` on; `follow` makes the follower for the stored
    /// form.
    pub(super) fn follow_with(
        self: &Arc<Self>,
        offset: u64,
        follow: impl FnOnce(u64) -> Option<Follower>,
    ) -> Option<ContentFollower> {
        let stored = {
            let state = self.lock();
            state.start(page_at(offset))
        };
        Some(ContentFollower::Pages(Box::new(PageFollower {
            stream: Arc::clone(self),
            follower: follow(stored)?,
            page: StoredPage::default(),
            at: offset,
            payer: None,
            paid: None,
        })))
    }

    /// Adds content up to the end of the page; returns how many bytes it took.
    pub(super) fn fill(&self, content: &[u8]) -> usize {
        let (taken, waiting) = {
            let mut state = self.lock();
            let taken = content.len().min(PAGE_BYTES - state.tail.len());
            if state.tail.capacity() < state.tail.len() + taken {
                // Doubled by hand, so that the capacity never exceeds a page.
                let wanted = (2 * state.tail.capacity()).max(state.tail.len() + taken);
                let more = wanted.min(PAGE_BYTES) - state.tail.len();
                state.tail.reserve_exact(more);
            }
            state.tail.extend_from_slice(&content[..taken]);
            state.written += taken as u64;
            if state.tail.len() == PAGE_BYTES {
                state.seal();
            }
            (taken, std::mem::take(&mut state.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        taken
    }

    /// The page that must be packed now, if there is any.
    pub(super) fn page(&self, end: IsEnd) -> Option<Bytes> {
        let mut state = self.lock();
        if end == IsEnd::Yes && !state.tail.is_empty() {
            state.seal();
        }
        let next = state.ends.len();
        let recent = state.recent.as_ref();
        recent.and_then(|(number, page)| (*number == next).then(|| page.clone()))
    }

    /// Notes that the next page's stored form is written, up to `end`.
    pub(super) fn end_page(&self, end: u64) {
        self.lock().ends.push(end);
    }

    /// End offset for each page's stored form.
    pub(super) fn ends(&self) -> Vec<u64> {
        self.lock().ends.clone()
    }

    /// Notes that all content and all pages were written.
    pub(super) fn complete(&self) {
        self.finish(End::Complete);
    }

    /// Notes that the write was given up.
    pub(super) fn abort(&self) {
        self.finish(End::Aborted);
    }

    fn finish(&self, end: End) {
        let waiting = {
            let mut state = self.lock();
            if state.end == End::Open {
                state.end = end;
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl PageState {
    fn seal(&mut self) {
        let page = std::mem::take(&mut self.tail);
        self.recent = Some((self.ends.len(), page.into()));
    }
}

/// Reads content in pages while it is being stored.
pub struct PageFollower {
    stream: Arc<PageStream>,
    /// Follower for the stored form: never behind the page that this follower is reading.
    follower: Follower,
    page: StoredPage,
    at: u64,
    payer: Option<Payer>,
    /// Reservation for the next piece.
    paid: Option<Paid>,
}

/// Where the next piece is taken from.
enum Source {
    /// Content in memory.
    Piece(Bytes),
    /// Content to decode from a page's stored form.
    Stored {
        stored: std::ops::Range<u64>,
        bytes: usize,
    },
}

impl PageFollower {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, ReadError>>> {
        // Skip even if this follower waits for content far ahead: the writer must not wait for it.
        self.skip();
        // Reserve memory before looking at the content, because looking may copy it.
        if let Some(payer) = self.payer.as_ref().filter(|_| self.paid.is_none())
            && self.has_next(context)
        {
            self.paid = payer(PAGE_BYTES as u64);
            if self.paid.is_none() {
                return Poll::Pending;
            }
        }
        let source = match ready!(self.poll_source(context)) {
            Ok(Some(source)) => source,
            Ok(None) => return Poll::Ready(None),
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        let content = match source {
            Source::Piece(piece) => piece,
            Source::Stored { stored, bytes } => {
                match self.poll_page(context, stored, bytes) {
                    Poll::Ready(Ok(content)) => content,
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                    Poll::Pending => {
                        // Another response to this client may need this memory so that this
                        // follower's data can arrive.
                        self.paid = None;
                        return Poll::Pending;
                    }
                }
            }
        };
        self.at += content.len() as u64;
        self.skip();
        Poll::Ready(Some(Ok(paid(content, self.paid.take()))))
    }

    /// Returns true if there is more content now; otherwise registers the waker.
    fn has_next(&self, context: &mut Context<'_>) -> bool {
        let mut state = self.stream.lock();
        let has = self.at < state.written;
        if !has {
            wait(&mut state, context);
        }
        has
    }

    fn poll_source(&self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, ReadError>> {
        let number = page_at(self.at);
        let within = usize::try_from(self.at - start_of(number)).unwrap_or(usize::MAX);
        let mut state = self.stream.lock();
        if self.at >= state.written {
            return match state.end {
                End::Complete => Poll::Ready(Ok(None)),
                End::Aborted => {
                    let offset = state.written;
                    Poll::Ready(Err(ReadError::Aborted { offset }))
                }
                End::Open => {
                    wait(&mut state, context);
                    Poll::Pending
                }
            };
        }
        if let Some((recent, page)) = &state.recent
            && *recent == number
        {
            let piece = page.slice(within.min(page.len())..);
            return Poll::Ready(Ok(Some(Source::Piece(piece))));
        }
        if let Some(end) = state.ends.get(number) {
            let stored = state.start(number)..*end;
            // The last page, which may be shorter, is `recent`, so a page here is always full.
            let bytes = PAGE_BYTES;
            return Poll::Ready(Ok(Some(Source::Stored { stored, bytes })));
        }
        let piece = state.tail.get(within..).unwrap_or_default();
        Poll::Ready(Ok(Some(Source::Piece(Bytes::copy_from_slice(piece)))))
    }

    /// Decodes the rest of a page from the stored form.
    fn poll_page(
        &mut self,
        context: &mut Context<'_>,
        stored: std::ops::Range<u64>,
        bytes: usize,
    ) -> Poll<Result<Bytes, ReadError>> {
        let offset = self.at;
        if self.page.seek(stored.start) {
            self.follower.skip_to(stored.start);
        }
        let length = usize::try_from(stored.end - stored.start).unwrap_or(usize::MAX);
        let collected = self
            .page
            .poll_collect(length, || self.follower.poll_next(context));
        match ready!(collected) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Poll::Ready(Err(ReadError::Missing { offset })),
        }
        let within = usize::try_from(self.at % PAGE_BYTES as u64).unwrap_or(0);
        let content = self.page.take(length, bytes).map(Bytes::from);
        let rest = content.map(|content| content.slice(within..));
        Poll::Ready(rest.ok_or(ReadError::Missing { offset }))
    }

    /// Tells the writer how far this follower has read.
    fn skip(&mut self) {
        let start = self.stream.lock().start(page_at(self.at));
        if self.page.seek(start) {
            self.follower.skip_to(start);
        }
    }
}

fn wait(state: &mut PageState, context: &Context<'_>) {
    let known = |waker: &Waker| waker.will_wake(context.waker());
    if !state.waiting.iter().any(known) {
        state.waiting.push(context.waker().clone());
    }
}
