//! The content of a response on its way into the store: as it arrives, or in pages.
//!
//! Called by `fetch` of the proxy. A [`PageWriter`] collects a page of content and packs it; the
//! engine gets the stored form alone. Followers get content: see `follow`.
//!
//! Invariants: content in pages is committed with its page table or not at all, and no part of it
//! is kept as an incomplete object, because the origin could not fill its holes.
//! Memory: three pages for each content in pages, set aside before it begins.
//! Cost: 3 to 5 ms a MB, on the thread of the fetch, at most 64 KiB at a time.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hashcache::{PutError, Reservation, Version, Writer};
use hashcache_wan::digest::Digest;
use hashcache_wan::pages::{PAGE_BYTES, Packer, STORED_PAGE_BYTES_MAX};

use super::finished;
use super::follow::{ContentFollower, ContentStream, IsEnd, PageStream};
use super::pages::{PACKED_BYTES_MAX, PageTable};

/// Writes the content of a response into the store.
pub enum ContentWriter {
    /// As it is.
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
    /// The stored form of the page that was packed last.
    stored: Vec<u8>,
    _memory: Reservation,
}

/// Memory of a content in pages while it is written, bytes; `length` is that of the content, if
/// known. The first part is for the page that is packed, the second for what followers read.
pub fn page_memory(length: Option<u64>) -> (u64, u64) {
    let page = length.unwrap_or(u64::MAX).min(PAGE_BYTES as u64) + 512;
    (page, 2 * page)
}

impl ContentWriter {
    /// Content that `writer` stores in pages; the memory is that of [`page_memory`].
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

    /// As [`Writer::poll_room`]; in pages, `ahead` counts their stored form.
    pub fn poll_room(&self, context: &mut Context<'_>, ahead: u64) -> Poll<()> {
        match self {
            Self::Plain(writer) => writer.poll_room(context, ahead),
            // A follower that has all content may still be at the start of a page that is written
            // now, and nothing would wake it.
            Self::Pages(pages) => pages.writer.poll_room(context, ahead.max(AHEAD_MIN)),
        }
    }

    /// Followers there are now.
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

    /// As [`Writer::commit_with`]: `metadata` as it was put, with what is known now.
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
    /// Adds content up to the end of the page, and says how much.
    pub fn fill(&mut self, content: &[u8]) -> usize {
        let taken = self.stream.0.fill(content);
        self.written += taken as u64;
        taken
    }

    /// Packs the page if it is full, or what there is of it if the content ends here. Then its
    /// stored form must be written ([`Self::parts`]) and noted ([`Self::note_stored`]).
    /// `Ok(false)`: it is not full.
    ///
    /// Content that is too long for a page table is passed on to followers and not stored.
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

    /// The engine's writer, and the stored form of the page that was packed.
    pub fn parts(&mut self) -> (&mut Writer, &[u8]) {
        (&mut self.writer, &self.stored)
    }

    /// The stored form of the page was written.
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
        // All pages are written: followers get the whole content even if it is not stored.
        stream.complete();
        committed
    }
}

/// Two pages, stored bytes.
const AHEAD_MIN: u64 = 2 * STORED_PAGE_BYTES_MAX as u64;

/// The followers of content whose write was given up must hear of it.
struct Followed(Arc<PageStream>);

impl Drop for Followed {
    fn drop(&mut self) {
        // After `complete` this changes nothing.
        self.0.abort();
    }
}
