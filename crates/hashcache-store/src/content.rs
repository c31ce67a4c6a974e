//! Reads a stored response's content as it was received, even if it is stored in pages.
//!
//! Called by `request` in the proxy and by `hashcache-link`, which see only content and offsets in
//! the content.
//!
//! Invariants: a page that does not decode is reported as missing content and never yields other
//! bytes; the object is then removed. Memory: one page's content and stored form, charged to the
//! payer. Cost: decoding a page takes 0.1 ms or less. A range decodes only the pages that it
//! touches.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hashcache::{Hit, Paid, Payer, ReadError, Reader};

use super::pages::{Page, PageTable};
use super::unpack::{StoredPage, paid};

/// The payers for memory while content is read.
#[derive(Clone)]
pub struct Payers {
    /// For stored bytes read from the disk.
    pub stored: Payer,
    /// For content decoded from pages.
    pub pages: Payer,
}

/// Memory in bytes for a page reader without a payer.
pub const PAGE_READER_BYTES: u64 = 128 << 10;

/// Reads a stored response's content.
pub enum ContentReader {
    /// Stored as received.
    Plain(Reader),
    /// Stored in pages.
    Pages(Box<PageReader>),
}

/// Reads content from pages.
pub struct PageReader {
    hit: Hit,
    table: PageTable,
    reader: Reader,
    page: Option<Page>,
    stored: StoredPage,
    at: u64,
    end: u64,
    payer: Option<Payer>,
    /// Reservation for the next page.
    paid: Option<Paid>,
}

impl ContentReader {
    /// Reads `range` of the content of `hit`; `pages` is the page table from the same metadata.
    pub fn new(hit: &Hit, pages: Option<&PageTable>, range: Range<u64>) -> Self {
        let Some(table) = pages else {
            return Self::Plain(hit.reader(range));
        };
        let end = range.end.min(table.content_len());
        let range = range.start.min(end)..end;
        Self::Pages(Box::new(PageReader {
            hit: hit.clone(),
            table: table.clone(),
            reader: hit.reader(table.stored_range(&range)),
            page: table.page_at(range.start).filter(|_| !range.is_empty()),
            stored: StoredPage::default(),
            at: range.start,
            end,
            payer: None,
            paid: None,
        }))
    }

    /// As [`Reader::paid_by`].
    #[must_use]
    pub fn paid_by(self, payers: &Payers) -> Self {
        let stored = Arc::clone(&payers.stored);
        match self {
            Self::Plain(reader) => Self::Plain(reader.paid_by(stored)),
            Self::Pages(mut pages) => {
                pages.reader = pages.reader.paid_by(stored);
                pages.payer = Some(Arc::clone(&payers.pages));
                Self::Pages(pages)
            }
        }
    }

    /// As [`Reader::offset`].
    pub fn offset(&self) -> u64 {
        match self {
            Self::Plain(reader) => reader.offset(),
            Self::Pages(pages) => pages.at,
        }
    }

    /// As [`Reader::poll_next`]; offsets in errors count content too, not stored bytes.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ReadError>>> {
        match self {
            Self::Plain(reader) => reader.poll_next(context),
            Self::Pages(pages) => pages.poll_next(context),
        }
    }

    /// Ready when the first bytes are available. Pending without a waker if the payer refuses.
    ///
    /// # Errors
    /// As [`Self::poll_next`].
    pub fn poll_begin(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Pages(pages) => pages.poll_stored(context).map_ok(drop),
        }
    }

    /// The next piece, for a reader without a payer.
    pub async fn next(&mut self) -> Option<Result<Bytes, ReadError>> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

impl PageReader {
    /// Collects the next page's stored form; `None` when the range is complete.
    fn poll_stored(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Page>, ReadError>> {
        let offset = self.at;
        let Some(page) = self.page.filter(|_| self.at < self.end) else {
            return Poll::Ready(Ok(None));
        };
        let bytes = usize::try_from(page.stored_bytes).unwrap_or(usize::MAX);
        let collected = self
            .stored
            .poll_collect(bytes, || self.reader.poll_next(context));
        Poll::Ready(match ready!(collected) {
            Ok(true) => Ok(Some(page)),
            Ok(false) | Err(_) => Err(ReadError::Missing { offset }),
        })
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, ReadError>>> {
        let page = match ready!(self.poll_stored(context)) {
            Ok(Some(page)) => page,
            Ok(None) => return Poll::Ready(None),
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        if let Some(payer) = self.payer.as_ref().filter(|_| self.paid.is_none()) {
            self.paid = payer(page.bytes as u64);
            if self.paid.is_none() {
                return Poll::Pending;
            }
        }
        let stored = usize::try_from(page.stored_bytes).unwrap_or(usize::MAX);
        let Some(content) = self.stored.take(stored, page.bytes) else {
            tracing::warn!(
                offset = self.at,
                "a stored page is damaged; the object is removed"
            );
            self.hit.invalidate();
            // Do not read anything behind the damaged page either.
            self.end = self.at;
            let offset = self.at;
            return Poll::Ready(Some(Err(ReadError::Missing { offset })));
        };
        let whole = paid(content.into(), self.paid.take());
        let from = usize::try_from(self.at - page.start()).unwrap_or(usize::MAX);
        let to = usize::try_from(self.end - page.start()).unwrap_or(usize::MAX);
        let piece = whole.slice(from..to.min(whole.len()));
        self.at += piece.len() as u64;
        self.page = self.table.after(&page);
        Poll::Ready(Some(Ok(piece)))
    }
}
