//! Responses from memory in HTTP/2, which are complete before hyper polls the stream.
//!
//! `http2` calls it for each request before the service; a request answered from memory never
//! reaches the service. Content of up to 64 KiB needs no task if the client has room for it:
//! `StreamExecutor` polls the stream at once, and h2 then has the whole response.
//!
//! Invariants: as in `crate::memory_hit`. The authority is only in `:authority`; requests that also
//! have a Host field take the usual path, which compares the two. Memory for the stream was
//! reserved as for every other stream. The client is charged for all content until the last piece
//! is with hyper, and by [`OutgoingBody`] for the pieces that hyper and h2 hold.
//! Cost: the head is a map of fields; the values are copied from the metadata.
//!
//! [`OutgoingBody`]: super::body::OutgoingBody

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hashcache_base::limits::Limits;
use hashcache_base::share::{PIECE_BYTES, ShareGuard};
use hashcache_http::plain_text;
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::super::cell::Cell;
use super::super::head::RequestForm;
use super::super::memory_hit::{MemoryHits, PlainRequest, RequestFields, ResponseHead};
use super::fields::well_formed_size;

/// The response to `request` if it is in memory, and the state of the stream.
pub(super) fn answer(
    memory_hits: &dyn MemoryHits,
    limits: &Limits,
    request: &Request<Incoming>,
) -> Option<(Response<MemoryContent>, Rc<Cell>)> {
    let (uri, fields) = (request.uri(), request.headers());
    let is_plain = request.method() == Method::GET
        && request.body().is_end_stream()
        && fields.len() <= limits.head_fields;
    let authority = uri.authority().filter(|_| is_plain)?.as_str();
    let path = plain_text(uri.path_and_query()?.as_str().as_bytes())?;
    if path.len() > limits.target_bytes || !path.starts_with('/') {
        return None;
    }
    let scheme = uri.scheme_str()?;
    // The usual path refuses malformed requests.
    let fields_size = well_formed_size(fields)?;
    let plain = PlainRequest {
        target: &format!("{scheme}://{authority}{path}"),
        form: RequestForm::Absolute,
        authority: Some(authority),
        fields: RequestFields::Map(fields),
        received: Instant::now(),
    };
    let mut head = HeaderMap::new();
    let answered = memory_hits.answer(&plain, &mut ResponseHead::Fields(&mut head, 0))?;
    let size = fields_size + path.len() as u64;
    let cell = Cell::of_memory_hit(size, answered.on_sent);
    let mut response = Response::new(MemoryContent::new(answered.content, answered.charge));
    *response.headers_mut() = head;
    Some((response, cell))
}

/// Content in memory, in pieces.
pub(super) struct MemoryContent {
    pieces: VecDeque<Bytes>,
    charge: Option<ShareGuard>,
}

impl MemoryContent {
    fn new(pieces: Vec<Bytes>, charge: Option<ShareGuard>) -> Self {
        let pieces = pieces.into();
        Self { pieces, charge }
    }

    /// The next pieces, together at most [`PIECE_BYTES`], because that is the amount charged at
    /// once.
    fn next(&mut self) -> Option<Pieces> {
        let mut pieces = Pieces::from(self.pieces.pop_front()?);
        while let Some(next) = self.pieces.front()
            && (pieces.left + next.len()) as u64 <= PIECE_BYTES
        {
            pieces.left += next.len();
            pieces.rest.extend(self.pieces.pop_front());
        }
        if self.pieces.is_empty() {
            self.charge = None;
        }
        // `chunk` may be empty only if nothing is left.
        pieces.advance(0);
        Some(pieces)
    }

    fn left(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// Consecutive content for a single DATA frame, if the client has room for it.
pub(super) struct Pieces {
    first: Bytes,
    rest: VecDeque<Bytes>,
    /// Total bytes.
    left: usize,
}

impl From<Bytes> for Pieces {
    fn from(first: Bytes) -> Self {
        let left = first.len();
        Self {
            first,
            rest: VecDeque::new(),
            left,
        }
    }
}

impl Pieces {
    /// Removes and returns the first `count` bytes.
    pub(super) fn split_to(&mut self, count: usize) -> Self {
        let mut taken = Self::from(self.first.split_to(count.min(self.first.len())));
        while taken.left < count
            && let Some(mut next) = self.rest.pop_front()
        {
            let part = next.split_to((count - taken.left).min(next.len()));
            taken.left += part.len();
            taken.rest.push_back(part);
            if !next.is_empty() {
                self.rest.push_front(next);
            }
        }
        self.left -= taken.left;
        // `chunk` may be empty only if nothing is left.
        self.advance(0);
        taken.advance(0);
        taken
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = std::iter::once(&self.first).chain(&self.rest);
        let mut filled = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        self.left -= count;
        while count >= self.first.len()
            && let Some(next) = self.rest.pop_front()
        {
            count -= self.first.len();
            self.first = next;
        }
        self.first.advance(count);
    }
}

/// Response content, from the service or from memory.
pub(super) enum Content<B> {
    Service(B),
    Memory(MemoryContent),
}

impl<B: Body<Data = Bytes> + Unpin> Body for Content<B> {
    type Data = Pieces;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Pieces>, B::Error>>> {
        match self.get_mut() {
            Self::Service(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map_ok(|frame| frame.map_data(Pieces::from))
            }
            Self::Memory(content) => Poll::Ready(content.next().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service(body) => body.is_end_stream(),
            Self::Memory(content) => content.left() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Service(body) => body.size_hint(),
            Self::Memory(content) => SizeHint::with_exact(content.left()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(pieces: &[&'static str]) -> MemoryContent {
        let pieces = pieces.iter().map(|piece| Bytes::from(*piece));
        MemoryContent::new(pieces.collect(), None)
    }

    #[test]
    fn pieces_are_whole_however_they_are_cut() {
        for step in 1..9 {
            let mut pieces = content(&["", "ab", "", "c", "defgh"]).next().unwrap();
            let mut read: Vec<u8> = Vec::new();
            while pieces.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 4];
                let filled = pieces.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..filled].iter().flat_map(|it| it.to_vec()).collect();
                assert_eq!(all.len(), pieces.remaining());
                assert!(!pieces.chunk().is_empty());
                let now = step.min(all.len());
                read.extend(&all[..now]);
                pieces.advance(now);
            }
            assert_eq!(read, b"abcdefgh", "{step}");
        }
    }

    #[test]
    fn a_part_of_pieces_and_the_rest_of_them_are_all_of_their_bytes() {
        for count in 0..12 {
            let mut rest = content(&["", "ab", "", "c", "defgh"]).next().unwrap();
            let mut part = rest.split_to(count);
            assert_eq!(
                (part.remaining(), rest.remaining()),
                (count.min(8), 8 - count.min(8))
            );
            let mut read: Vec<u8> = Vec::new();
            for pieces in [&mut part, &mut rest] {
                while pieces.has_remaining() {
                    read.extend(pieces.chunk());
                    pieces.advance(pieces.chunk().len());
                }
            }
            assert_eq!(read, b"abcdefgh", "{count}");
        }
    }

    #[test]
    fn no_more_is_given_at_once_than_is_charged() {
        let piece = Bytes::from(vec![7; 40 << 10]);
        let pieces = vec![piece.clone(), piece.slice(..100), piece];
        let mut content = MemoryContent::new(pieces, None);
        assert_eq!(content.left(), 2 * (40 << 10) + 100);
        let sizes = std::iter::from_fn(|| content.next()).map(|it| it.remaining());
        assert_eq!(sizes.collect::<Vec<_>>(), [(40 << 10) + 100, 40 << 10]);
        assert_eq!(content.left(), 0);
    }
}
