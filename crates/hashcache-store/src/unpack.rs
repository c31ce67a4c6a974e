//! Decodes one page from the stored form, which arrives in pieces.
//!
//! Used by readers and followers.
//!
//! Invariant: content is given out only after the whole page has been verified.
//! Cost: a copy of the stored form if it does not arrive in one piece. One zstd context for each
//! thread, 0.1 MiB, however many responses it serves.

use std::cell::RefCell;
use std::task::{Poll, ready};

use bytes::{Buf as _, Bytes};
use hashcache::{Paid, ReadError};
use hashcache_wan::pages::Unpacker;

/// Stored bytes that have arrived and are not decoded yet.
#[derive(Debug, Default)]
pub(super) struct StoredPage {
    /// Offset where these bytes start in the content's stored form.
    offset: u64,
    /// The start of a page that did not arrive in one piece.
    collected: Vec<u8>,
    rest: Bytes,
}

impl StoredPage {
    /// Drops all bytes before `offset`. Returns true if nothing is left: then the next piece must
    /// start at `offset`.
    pub(super) fn seek(&mut self, offset: u64) -> bool {
        let skip = usize::try_from(offset.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        if skip > 0 {
            let collected = std::mem::take(&mut self.collected).len();
            let rest = skip.saturating_sub(collected).min(self.rest.len());
            self.rest.advance(rest);
            if self.rest.is_empty() {
                self.rest = Bytes::new();
            }
            self.offset = offset;
        }
        self.collected.is_empty() && self.rest.is_empty()
    }

    /// Takes pieces from `next` until `bytes` have arrived. May be called again until
    /// [`Self::take`].
    ///
    /// # Errors
    /// Errors from `next`. `Ok(false)`: there are no more pieces, and too few bytes have arrived.
    pub(super) fn poll_collect(
        &mut self,
        bytes: usize,
        mut next: impl FnMut() -> Poll<Option<Result<Bytes, ReadError>>>,
    ) -> Poll<Result<bool, ReadError>> {
        loop {
            if self.collected.is_empty() && self.rest.len() >= bytes
                || self.collected.len() >= bytes
            {
                return Poll::Ready(Ok(true));
            }
            if self.rest.is_empty() {
                match ready!(next()) {
                    Some(Ok(piece)) => self.rest = piece,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Ok(false)),
                }
                continue;
            }
            let now = self.rest.len().min(bytes - self.collected.len());
            if self.collected.is_empty() {
                self.collected.reserve_exact(bytes);
            }
            self.collected.extend_from_slice(&self.rest[..now]);
            self.rest.advance(now);
        }
    }

    /// Decodes the page from the `stored` bytes that were collected; `None`: the page is damaged.
    pub(super) fn take(&mut self, stored: usize, bytes: usize) -> Option<Vec<u8>> {
        self.offset += stored as u64;
        if self.collected.is_empty() {
            let page = self.rest.split_to(stored.min(self.rest.len()));
            return unpack(&page, bytes);
        }
        let page = std::mem::take(&mut self.collected);
        unpack(&page, bytes)
    }
}

fn unpack(stored: &[u8], bytes: usize) -> Option<Vec<u8>> {
    UNPACKER.with(|unpacker| {
        let mut unpacker = unpacker.borrow_mut();
        if unpacker.is_none() {
            *unpacker = Unpacker::new();
        }
        unpacker.as_mut()?.unpack(stored, bytes)
    })
}

thread_local! {
    static UNPACKER: RefCell<Option<Unpacker>> = const { RefCell::new(None) };
}

/// Content of a page, with the reservation for this memory.
pub(super) struct PaidContent {
    pub(super) content: Bytes,
    pub(super) _paid: Paid,
}

impl AsRef<[u8]> for PaidContent {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

/// Returns the content as a piece that holds the reservation for this memory, if there is any.
pub(super) fn paid(content: Bytes, paid: Option<Paid>) -> Bytes {
    match paid {
        Some(_paid) => Bytes::from_owner(PaidContent { content, _paid }),
        None => content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of `size` bytes in which `content` arrives, from `at` on.
    fn pieces(
        content: &[u8],
        size: usize,
        at: usize,
    ) -> impl FnMut() -> Poll<Option<Result<Bytes, ReadError>>> {
        let mut rest = Bytes::copy_from_slice(&content[at..]);
        move || {
            let piece = rest.split_to(size.min(rest.len()));
            Poll::Ready((!piece.is_empty()).then_some(Ok(piece)))
        }
    }

    #[test]
    fn pages_are_found_however_their_bytes_come_and_whatever_is_skipped() {
        let mut packer = hashcache_wan::pages::Packer::new().unwrap();
        let (mut all, mut ends, mut stored) = (Vec::new(), vec![0], Vec::new());
        for number in 0..6u8 {
            packer.pack(&[number; 1000], &mut stored).unwrap();
            all.extend_from_slice(&stored);
            ends.push(all.len());
        }
        for size in 1..all.len() + 1 {
            for skipped in 0..64 {
                let (mut page, mut next) = (StoredPage::default(), pieces(&all, size, 0));
                let is_read = |number: usize| skipped >> number & 1 == 0;
                for number in (0..6).filter(|number| is_read(*number)) {
                    let (start, length) = (ends[number], ends[number + 1] - ends[number]);
                    if page.seek(start as u64) {
                        next = pieces(&all, size, start);
                    }
                    assert_eq!(page.poll_collect(length, &mut next), Poll::Ready(Ok(true)));
                    let content = page.take(length, 1000);
                    assert_eq!(content, Some(vec![u8::try_from(number).unwrap(); 1000]));
                }
            }
        }
        let (mut page, mut next) = (StoredPage::default(), pieces(&all, 7, 0));
        let short = page.poll_collect(all.len() + 1, &mut next);
        assert_eq!(short, Poll::Ready(Ok(false)));
    }
}
