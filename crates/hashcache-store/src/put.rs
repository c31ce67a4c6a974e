//! Writes a response's content into the store: as received, or in pages.
//!
//! Called by `fetch` in the proxy. A [`PageWriter`] collects a page of content and packs it; the
//! engine gets only the stored form. Followers get the content itself: see `follow`.
//!
//! Invariants: content in pages is committed with the page table or not at all. No part is kept as
//! an incomplete object, because the origin serves ranges of the content, not of the stored form,
//! and therefore cannot fill the holes.
//! Memory: three pages for each content in pages, reserved before the first byte.
//! Cost: 3 to 5 ms per MB, on the fetch's thread, at most 64 KiB at a time.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hashcache::{PutError, Reservation, Storage, Version, Writer};
use hashcache_wan::digest::Digest;
use hashcache_wan::pages::{PAGE_BYTES, Packer, STORED_PAGE_BYTES_MAX};

use super::finished;
use super::follow::{ContentFollower, ContentStream, IsEnd, PageStream};
use super::pages::{PACKED_BYTES_MAX, PageTable};

/// Writes a response's content into the store.
pub enum ContentWriter {
    /// As received.
    Plain(Box<Writer>),
    /// In pages, which may be packed.
    Pages(Box<PageWriter>),
}

/// Writes content in pages.
pub struct PageWriter {
    writer: Writer,
    stream: Followed,
    /// Content so far, bytes.
    written: u64,
    /// The last packed page's stored form.
    stored: Vec<u8>,
    _memory: Reservation,
}

/// Memory in bytes for writing one content in pages; `length` is the content length, if known. The
/// first number is for the page that is being packed, the second for the pages that followers read.
pub fn page_memory(length: Option<u64>) -> (u64, u64) {
    let page = length.unwrap_or(u64::MAX).min(PAGE_BYTES as u64) + 512;
    (page, 2 * page)
}

impl ContentWriter {
    /// Stores content in pages with `writer`; the reservations are for the two numbers of
    /// [`page_memory`].
    pub fn in_pages(writer: Writer, (own, shared): (Reservation, Reservation)) -> Self {
        let stream = PageStream::new(writer.stream(), shared);
        Self::Pages(Box::new(PageWriter {
            writer,
            stream: Followed(stream),
            written: 0,
            stored: Vec::new(),
            _memory: own,
        }))
    }

    fn writer(&self) -> &Writer {
        match self {
            Self::Plain(writer) => writer,
            Self::Pages(pages) => &pages.writer,
        }
    }

    /// Content written so far, bytes.
    pub fn written(&self) -> u64 {
        match self {
            Self::Plain(writer) => writer.written(),
            Self::Pages(pages) => pages.written,
        }
    }

    /// As [`Writer::is_stored`].
    pub fn is_stored(&self) -> bool {
        self.writer().is_stored()
    }

    /// As [`Writer::poll_room`]; for content in pages, `ahead` counts stored bytes.
    pub fn poll_room(&self, context: &mut Context<'_>, ahead: u64) -> Poll<()> {
        match self {
            Self::Plain(writer) => writer.poll_room(context, ahead),
            // A follower that has all content so far may still be at the start of the page that is
            // being written, and nothing would wake it.
            Self::Pages(pages) => pages.writer.poll_room(context, ahead.max(AHEAD_MIN)),
        }
    }

    /// The current number of followers.
    pub fn followers(&self) -> usize {
        self.writer().stream().followers()
    }

    /// As [`Writer::follow`].
    pub fn follow(&self, offset: u64) -> ContentFollower {
        match self {
            Self::Plain(writer) => ContentFollower::Plain(writer.follow(offset)),
            Self::Pages(pages) => {
                let follow = |stored| Some(pages.writer.follow(stored));
                let follower = PageStream::follow_with(&pages.stream.0, offset, follow);
                follower.expect("a writer always makes a follower")
            }
        }
    }

    /// As [`Writer::stream`].
    pub fn stream(&self) -> ContentStream {
        match self {
            Self::Plain(writer) => ContentStream::Plain(writer.stream()),
            Self::Pages(pages) => ContentStream::Pages(Arc::clone(&pages.stream.0)),
        }
    }

    /// As [`Writer::commit_with`]: commits `metadata` as it was put, completed with the digest and
    /// the page table.
    ///
    /// # Errors
    /// As [`Writer::commit_with`].
    pub fn commit(self, metadata: &Bytes, digest: Option<Digest>) -> Result<Version, PutError> {
        match self {
            Self::Plain(writer) => match finished(metadata, digest, None) {
                Some(metadata) => writer.commit_with(metadata),
                None => writer.commit(),
            },
            Self::Pages(pages) => pages.commit(metadata, digest),
        }
    }

    /// As [`Writer::storage`].
    pub fn storage(&self) -> Storage {
        self.writer().storage()
    }

    /// Returns true if the content has left the store because it is too long for a page table.
    pub fn is_too_long(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Pages(pages) => pages.written > PACKED_BYTES_MAX,
        }
    }

    /// As [`Writer::bypass`].
    pub fn bypass(&mut self) {
        match self {
            Self::Plain(writer) => writer.bypass(),
            Self::Pages(pages) => pages.writer.bypass(),
        }
    }

    /// As [`Writer::keep`].
    pub fn keep(self) -> bool {
        match self {
            Self::Plain(writer) => writer.keep(),
            Self::Pages(_) => false,
        }
    }
}

impl PageWriter {
    /// Adds content up to the end of the page; returns how many bytes it took.
    pub fn fill(&mut self, content: &[u8]) -> usize {
        let taken = self.stream.0.fill(content);
        self.written += taken as u64;
        taken
    }

    /// Packs the page if it is full, or the partial last page if the content is complete. The
    /// caller must then write the stored form ([`Self::parts`]) and note it
    /// ([`Self::note_stored`]). `Ok(false)`: the page is not full yet.
    ///
    /// Content that is too long for a page table is passed on to followers but not stored.
    ///
    /// # Errors
    /// zstd has no memory.
    pub fn pack(&mut self, packer: &mut Packer, end: IsEnd) -> Result<bool, &'static str> {
        let Some(content) = self.stream.0.page(end) else {
            return Ok(false);
        };
        if self.written > PACKED_BYTES_MAX {
            self.writer.bypass();
        }
        packer.pack(&content, &mut self.stored)?;
        Ok(true)
    }

    /// The writer of the engine, and the stored form of the packed page.
    pub fn parts(&mut self) -> (&mut Writer, &[u8]) {
        (&mut self.writer, &self.stored)
    }

    /// Notes that the page's stored form was written.
    pub fn note_stored(&mut self) {
        self.stream.0.end_page(self.writer.written());
    }

    fn commit(self, metadata: &Bytes, digest: Option<Digest>) -> Result<Version, PutError> {
        let stream = &self.stream.0;
        if !self.writer.is_stored() {
            let ended = self.writer.commit();
            stream.complete();
            return ended;
        }
        let table = PageTable::new(self.written, &stream.ends());
        let length = metadata.len();
        let committed = match finished(metadata, digest, Some(&table)) {
            Some(metadata) => self.writer.commit_with(metadata),
            None => Err(PutError::Metadata { length }),
        };
        // All pages are written: followers get the whole content even if the commit fails.
        stream.complete();
        committed
    }
}

/// Two pages, in stored bytes.
const AHEAD_MIN: u64 = 2 * STORED_PAGE_BYTES_MAX as u64;

/// Informs followers when the write is given up: dropping this aborts the stream.
struct Followed(Arc<PageStream>);

impl Drop for Followed {
    fn drop(&mut self) {
        // After `complete` this changes nothing.
        self.0.abort();
    }
}
