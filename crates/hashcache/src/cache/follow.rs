//! Followers: readers of a put that is still in progress.
//!
//! A follower reads one version, whichever version the name refers to meanwhile. The latest bytes
//! are in memory (the *window*); older bytes are read like any span. So a slow follower takes no
//! memory and does not slow the others down.
//!
//! Invariant: a follower finishes with exactly one of "complete" and [`ReadError::Aborted`]. The
//! point where a put was given up never looks like the end of the content.
//!
//! ```text
//! Open ──commit──▶ Complete     Open ──drop, keep──▶ Aborted
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use smallvec::SmallVec;

use super::Cache;
use super::read::{Payer, Spans, wait};
use crate::error::ReadError;
use crate::memory::{Marked, Reservation, Reservations, marked, wake};
use crate::object::{Cut, PAGE, Version};

/// State of a write: open, complete or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Complete,
    Aborted,
}

/// Content in memory, from `start` on.
#[derive(Default)]
struct Stretch {
    start: u64,
    pieces: VecDeque<Bytes>,
}

struct StreamState {
    /// The first page. Its record is written last, so until then the page is only here.
    head: Stretch,
    /// Content after the first page that is not stored yet.
    window: Stretch,
    length: u64,
    end: End,
    bypassed: bool,
    /// Position of each follower; `None` if that follower has left.
    followers: SmallVec<[Option<u64>; 2]>,
    waiting_followers: Vec<Waker>,
    waiting_writer: Option<Waker>,
    /// Memory for pieces that no pending record holds.
    held: Reservations,
    shared: SharedReservations,
}

/// Reservations that the stream shares with pending records; mostly the reservations of a head.
type SharedReservations = SmallVec<[Arc<Reservations>; 1]>;

/// State that the writer and the followers share.
pub struct Stream {
    cache: Cache,
    name: Bytes,
    version: Version,
    cut: Cut,
    state: Mutex<StreamState>,
}

impl Stream {
    /// A stream of the content from `offset` on, where a span starts.
    pub(super) fn new(
        cache: &Cache,
        name: &Bytes,
        version: Version,
        cut: Cut,
        offset: u64,
    ) -> Arc<Self> {
        let state = StreamState {
            head: Stretch::default(),
            window: Stretch {
                start: offset.max(PAGE as u64),
                pieces: VecDeque::new(),
            },
            length: offset,
            end: End::Open,
            bypassed: false,
            followers: SmallVec::new(),
            waiting_followers: Vec::new(),
            waiting_writer: None,
            held: Reservations::new(),
            shared: SharedReservations::new(),
        };
        let (cache, name) = (cache.clone(), name.clone());
        Arc::new(Self {
            cache,
            name,
            version,
            cut,
            state: Mutex::new(state),
        })
    }

    /// Dropped pieces release memory, which wakes callers that wait for it: not under the lock.
    fn lock(&self) -> Marked<MutexGuard<'_, StreamState>> {
        marked(self.state.lock().expect("no holder of this lock panics"))
    }

    /// A follower that reads from `offset` on; `None` if the write was given up, or if it is not
    /// stored and the content at `offset` was already read and dropped.
    pub fn follow(self: &Arc<Self>, offset: u64) -> Option<Follower> {
        let state = self.lock();
        let gone = state.end == End::Aborted || state.bypassed && !state.reaches_back_to(offset);
        if gone {
            return None;
        }
        Some(self.entered(state, offset))
    }

    /// Adds a follower. It may be ahead of all others, and then the writer has room: a writer that
    /// waits for a slow reader must not wait for that reader any longer.
    fn entered(
        self: &Arc<Self>,
        mut state: Marked<MutexGuard<'_, StreamState>>,
        offset: u64,
    ) -> Follower {
        let place = state.enter(offset);
        let waiting_writer = state.waiting_writer.take();
        drop(state);
        wake(waiting_writer);
        Follower::new(self, place, offset)
    }

    /// Number of content bytes written so far.
    pub fn written(&self) -> u64 {
        self.lock().length
    }

    /// As [`Stream::follow`], for a write that continues: lost content is an error when it is read.
    pub(super) fn follow_anyway(self: &Arc<Self>, offset: u64) -> Follower {
        self.entered(self.lock(), offset)
    }

    /// Number of current followers.
    pub fn followers(&self) -> usize {
        self.lock().followers.iter().flatten().count()
    }

    pub(super) fn push(&self, piece: Bytes) {
        let mut state = self.lock();
        state.length += piece.len() as u64;
        let part = if state.length <= PAGE as u64 {
            StretchKind::Head
        } else {
            StretchKind::Window
        };
        state.stretch(part).pieces.push_back(piece);
        let mut to_merge = state.stretch(part).to_merge();
        while let Some(bytes) = to_merge {
            drop(state);
            // Without the lock, because hot objects may have to make room. No other thread adds
            // pieces.
            let reservation = self.cache.budget().reserve(bytes);
            state = self.lock();
            to_merge = reservation.and_then(|it| state.stretch(part).merge(it));
        }
        let released = state.trim();
        let wakers = std::mem::take(&mut state.waiting_followers);
        drop(state);
        drop(released);
        wake(wakers);
    }

    /// Content below `offset` can be read from the store.
    pub(super) fn stored_to(&self, offset: u64) {
        let mut state = self.lock();
        if !state.bypassed {
            state.window.drop_below(offset);
        }
    }

    /// Stops storing: content written after this call is only in this stream. `reservations`
    /// account for the content before it.
    pub(super) fn bypass(&self, reservations: Reservations) {
        self.lock().bypassed = true;
        self.hold(reservations);
    }

    /// Keeps the reservations for pieces that only the window holds.
    pub(super) fn hold(&self, mut reservations: Reservations) {
        let mut state = self.lock();
        state.held.append(&mut reservations);
        let released = state.trim();
        drop(state);
        drop(released);
    }

    /// The first page, as far as it is written.
    pub(super) fn head(&self) -> Vec<Bytes> {
        self.lock().head.pieces.iter().cloned().collect()
    }

    /// Content from `offset` on, which the window still holds.
    pub(super) fn pieces(&self, offset: u64) -> Vec<Bytes> {
        self.lock().window.from(offset).collect()
    }

    pub(super) fn share(&self, reservations: &Arc<Reservations>) {
        self.lock().shared.push(Arc::clone(reservations));
    }

    pub(super) fn end(&self, end: End) {
        let wakers = {
            let mut state = self.lock();
            if state.end != End::Open {
                return;
            }
            state.end = end;
            std::mem::take(&mut state.waiting_followers)
        };
        wake(wakers);
    }

    pub(super) fn poll_room(&self, context: &mut Context<'_>, ahead: u64) -> Poll<()> {
        let mut state = self.lock();
        let positions = state.followers.iter().flatten();
        let reader = if state.bypassed {
            positions.min()
        } else {
            positions.max()
        };
        if reader.is_none_or(|reader| state.length.saturating_sub(*reader) <= ahead) {
            return Poll::Ready(());
        }
        let before = state.waiting_writer.replace(context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Stretch {
    fn drop_below(&mut self, offset: u64) {
        while let Some(first) = self.pieces.front() {
            let end = self.start + first.len() as u64;
            if end > offset {
                break;
            }
            self.start = end;
            self.pieces.pop_front();
        }
    }

    /// Pieces from `offset` on.
    fn from(&self, offset: u64) -> impl Iterator<Item = Bytes> {
        let mut start = self.start;
        self.pieces.iter().filter_map(move |piece| {
            let skip = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX);
            start += piece.len() as u64;
            (skip < piece.len()).then(|| piece.slice(skip..))
        })
    }
}

/// Selects a stretch of the written content.
#[derive(Clone, Copy)]
enum StretchKind {
    Head,
    Window,
}

impl StreamState {
    fn stretch(&mut self, part: StretchKind) -> &mut Stretch {
        match part {
            StretchKind::Head => &mut self.head,
            StretchKind::Window => &mut self.window,
        }
    }

    /// Adds a follower at `offset`; returns the index of its entry.
    fn enter(&mut self, offset: u64) -> usize {
        let place = self.followers.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.followers.push(None);
            self.followers.len() - 1
        });
        self.followers[place] = Some(offset);
        place
    }

    /// For a bypassed write, drops the content that no follower needs any more. Returns memory to
    /// be released without the lock.
    #[must_use]
    fn trim(&mut self) -> (Reservations, SharedReservations) {
        if !self.bypassed {
            return <_>::default();
        }
        let slowest = self.followers.iter().flatten().min().copied();
        let slowest = slowest.unwrap_or(self.length);
        self.head.drop_below(slowest);
        self.window.drop_below(slowest);
        if !self.head.pieces.is_empty() {
            return <_>::default();
        }
        let held = if self.window.pieces.is_empty() {
            std::mem::take(&mut self.held)
        } else {
            Reservations::new()
        };
        (held, std::mem::take(&mut self.shared))
    }

    /// Returns true if all written content from `offset` on is in memory.
    fn reaches_back_to(&self, offset: u64) -> bool {
        let first_page = self.window.start <= PAGE as u64;
        offset >= self.window.start || first_page && offset >= self.head.start
    }

    /// The piece at `at`, if it is in memory.
    fn piece(&self, at: u64) -> Option<Bytes> {
        let stretch = if at < PAGE as u64 {
            &self.head
        } else {
            &self.window
        };
        if at >= stretch.start {
            stretch.from(at).next()
        } else {
            None
        }
    }
}

/// Number of pieces that are merged at once.
const MERGED: usize = 16;

/// Merges the last pieces if they are many and small: an upstream that sends byte by byte must not
/// cost a handle for each byte. Every byte is copied once a level, and there are at most four
/// levels.
impl Stretch {
    /// Index of the first piece to merge, and the total bytes of the pieces to merge.
    fn small_ones(&self) -> Option<(usize, usize)> {
        let from = self.pieces.len().checked_sub(MERGED)?;
        let last = || self.pieces.range(from..).map(Bytes::len);
        let (total, longest) = (last().sum::<usize>(), last().max().unwrap_or(0));
        let are_small = total <= PAGE / 2 && longest * MERGED <= total * 2;
        are_small.then_some((from, total))
    }

    /// Memory that merging takes, if it is time to merge.
    fn to_merge(&self) -> Option<u64> {
        self.small_ones().map(|(_, total)| total as u64)
    }

    /// Merges, if `reservation` still matches the pieces. Returns the memory that the next merge
    /// takes.
    fn merge(&mut self, reservation: Reservation) -> Option<u64> {
        let (from, total) = self.small_ones()?;
        if total as u64 != reservation.bytes() {
            return None;
        }
        let mut bytes = Vec::with_capacity(total);
        // The pieces' own reservations are dropped with them.
        for piece in self.pieces.drain(from..) {
            bytes.extend_from_slice(&piece);
        }
        self.pieces.push_back(Bytes::from_owner(Merged {
            bytes,
            _reservation: reservation,
        }));
        self.to_merge()
    }
}

/// Bytes of several pieces, with the memory reserved for them.
struct Merged {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Merged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a put while it is being written.
pub struct Follower {
    stream: Arc<Stream>,
    spans: Spans,
    place: usize,
    at: u64,
}

impl Follower {
    /// `place` is the index of this follower's entry in the stream.
    fn new(stream: &Arc<Stream>, place: usize, offset: u64) -> Self {
        let spans = Spans::new(&stream.cache, &stream.name, stream.version, stream.cut);
        Self {
            stream: Arc::clone(stream),
            spans,
            place,
            at: offset,
        }
    }

    /// As [`Reader::paid_by`](super::Reader::paid_by), for content that the follower reads from
    /// disk.
    #[must_use]
    pub fn paid_by(mut self, payer: Payer) -> Self {
        self.spans.payer = Some(payer);
        self
    }

    /// Offset of the next piece.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns true if the next piece is not written yet, so that this follower waits for the
    /// writer and not for the disk or for memory.
    pub fn waits_for_writer(&self) -> bool {
        self.at >= self.stream.written()
    }

    /// Continues at `offset` without reading the content before it. A smaller offset changes
    /// nothing.
    pub fn skip_to(&mut self, offset: u64) {
        if offset > self.at {
            self.at = offset;
            self.moved(Some(offset));
        }
    }

    /// The next piece; `None` after the last piece of a write that was committed.
    ///
    /// # Errors
    /// [`ReadError::Aborted`] if the write was given up, [`ReadError::Missing`] if this follower
    /// was too slow and the store has lost the content that it wanted next.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReadError>>> {
        let piece = {
            let mut state = self.stream.lock();
            // Do not read ahead beyond the stored content: the lookup would be a miss.
            let stored = state.window.start;
            match state.piece(self.at) {
                Some(piece) => Ok(piece),
                None if self.at >= state.length => match state.end {
                    End::Complete => return Poll::Ready(None),
                    End::Aborted => {
                        let offset = state.length;
                        return Poll::Ready(Some(Err(ReadError::Aborted { offset })));
                    }
                    End::Open => {
                        let known = |waker: &Waker| waker.will_wake(context.waker());
                        if !state.waiting_followers.iter().any(known) {
                            state.waiting_followers.push(context.waker().clone());
                        }
                        return Poll::Pending;
                    }
                },
                None => Err(stored),
            }
        };
        let piece = match piece {
            Ok(piece) => piece,
            Err(stored) => match self.spans.poll_piece(context, self.at, stored) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(piece)) => piece,
                Poll::Ready(None) => {
                    return Poll::Ready(Some(Err(ReadError::Missing { offset: self.at })));
                }
            },
        };
        self.at += piece.len() as u64;
        self.moved(Some(self.at));
        Poll::Ready(Some(Ok(piece)))
    }

    /// All content from [`Follower::offset`] on, without waiting, if the write is committed and
    /// this content is one piece in memory. The piece keeps the memory that is reserved for it.
    /// Cost: one allocation.
    ///
    /// # Errors
    /// This follower, which has to be polled for the content.
    #[expect(
        clippy::result_large_err,
        reason = "the error is the follower, given back"
    )]
    pub fn into_rest(self) -> Result<Bytes, Self> {
        let rest = {
            let state = self.stream.lock();
            match state.end {
                End::Complete if self.at == state.length => Some(Bytes::new()),
                End::Complete => {
                    let piece = state.piece(self.at);
                    piece.filter(|piece| self.at + piece.len() as u64 == state.length)
                }
                End::Open | End::Aborted => None,
            }
        };
        match rest {
            Some(rest) if rest.is_empty() => Ok(rest),
            Some(rest) => Ok(Bytes::from_owner(Followed {
                bytes: rest,
                _follower: self,
            })),
            None => Err(self),
        }
    }

    /// The rest, in one piece. Blocks until the write is over.
    ///
    /// # Errors
    /// As [`Follower::poll_next`].
    pub fn read_to_vec(mut self) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::new();
        while let Some(piece) = wait(|context| self.poll_next(context)) {
            all.extend_from_slice(&piece?);
        }
        Ok(all)
    }

    fn moved(&self, to: Option<u64>) {
        let (released, waker) = {
            let mut state = self.stream.lock();
            state.followers[self.place] = to;
            (state.trim(), state.waiting_writer.take())
        };
        drop(released);
        wake(waker);
    }
}

/// Bytes of a write, with the follower that holds their memory.
struct Followed {
    bytes: Bytes,
    _follower: Follower,
}

impl AsRef<[u8]> for Followed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.moved(None);
    }
}
