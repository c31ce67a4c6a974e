//! Stored content that both sides of a link have: the prefix for encoding or decoding.
//!
//! Used by `request/framed` in the proxy at the parent and `unframe` in `hashcache-upstream` at the
//! child.
//!
//! Invariants: only complete objects of a shared cache are dictionaries, and only under the digest
//! that was stored with them. The hit pins the version: another version's content is never read.
//! Cost: one engine read per 256 KiB, and only for the stretches that are needed.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Cache, Hit};
use hashcache_store::content::{ContentReader, PAGE_READER_BYTES};
use hashcache_store::{PageTable, StoredResponse};
use hashcache_wan::digest::Digest;
use hashcache_wan::limits::DICTIONARY_BYTES_MAX;
use tokio::time::Instant;

use super::counters::LinkCounters;

/// A stored object and the content digest.
#[derive(Clone)]
pub struct StoredContent {
    hit: Hit,
    /// The page table, if the content is stored in pages.
    pages: Option<PageTable>,
    /// SHA-256 of the content.
    pub digest: Digest,
    /// Content length, bytes.
    pub length: u64,
}

impl StoredContent {
    /// Returns the content of `hit`, if it may be a dictionary; `stored` is the decoded metadata.
    pub fn new(hit: &Hit, stored: &StoredResponse) -> Option<Self> {
        Self::with(hit, stored.digest?, stored.pages.clone())
    }

    /// Returns the content that was kept under this digest.
    pub fn kept(hit: &Hit, digest: Digest) -> Option<Self> {
        let pages = if hit.metadata().is_empty() {
            None
        } else {
            Some(PageTable::decode(hit.metadata())?.0)
        };
        Self::with(hit, digest, pages)
    }

    fn with(hit: &Hit, digest: Digest, pages: Option<PageTable>) -> Option<Self> {
        let stored = hit.content_len()?;
        let length = pages.as_ref().map_or(stored, PageTable::content_len);
        let is_whole = hit.is_complete() && hit.holes(0..stored).is_empty();
        let fits = (DICTIONARY_BYTES_MIN..=DICTIONARY_BYTES_MAX).contains(&length);
        (is_whole && fits).then(|| Self {
            hit: hit.clone(),
            pages,
            digest,
            length,
        })
    }

    /// Finds the content stored under `name`, if it has this digest.
    pub async fn find(cache: &Cache, name: &[u8], digest: Digest) -> Option<Self> {
        let hit = hashcache_store::find(cache, name).await?;
        let stored = StoredResponse::decode(hit.metadata())?;
        (stored.digest == Some(digest)).then(|| Self::new(&hit, &stored))?
    }

    /// Reads the content from `offset` on.
    fn reader(&self, offset: u64) -> ContentReader {
        ContentReader::new(&self.hit, self.pages.as_ref(), offset..self.length)
    }

    /// Memory for reading the content, bytes, besides the bytes returned.
    pub fn reading_bytes(&self) -> u64 {
        match &self.pages {
            Some(_) => PAGE_READER_BYTES,
            None => 0,
        }
    }

    /// The content in stored form: metadata for [`Self::kept`], the length and a reader.
    pub fn to_keep(&self) -> Option<(Bytes, u64, ContentReader)> {
        let mut metadata = Vec::new();
        self.pages
            .iter()
            .for_each(|pages| pages.encode(&mut metadata));
        let length = self.hit.content_len()?;
        let reader = ContentReader::Plain(self.hit.reader(0..length));
        Some((metadata.into(), length, reader))
    }
}

impl std::fmt::Debug for StoredContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredContent")
            .field("digest", &self.digest)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// Reads dictionary stretches.
pub struct DictionaryReader {
    content: StoredContent,
    counters: Arc<LinkCounters>,
    /// Start time of a read that is pending.
    waits_since: Option<Instant>,
    reader: Option<ContentReader>,
}

impl DictionaryReader {
    /// Reads `content`, and counts the read times in `counters`.
    pub fn new(content: StoredContent, counters: Arc<LinkCounters>) -> Self {
        Self {
            content,
            counters,
            waits_since: None,
            reader: None,
        }
    }

    /// Bytes from the start of `wanted`; `None`: the bytes are gone.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        wanted: Range<u64>,
    ) -> Poll<Option<Bytes>> {
        let is_there = |reader: &ContentReader| reader.offset() == wanted.start;
        let mut reader = match self.reader.take().filter(is_there) {
            Some(reader) => reader,
            None => self.content.reader(wanted.start),
        };
        let polled = reader.poll_next(context);
        self.reader = Some(reader);
        let now = Instant::now();
        if polled.is_pending() {
            self.waits_since.get_or_insert(now);
        }
        let piece = ready!(polled);
        let waited = self.waits_since.take();
        if waited.is_some() || wanted.start.is_multiple_of(SPAN_BYTES) {
            let took = waited.map_or(Duration::ZERO, |since| now - since);
            self.counters.load.note_read(took, now.into_std());
        }
        Poll::Ready(piece.and_then(Result::ok).filter(|piece| !piece.is_empty()))
    }
}

/// Bytes that a single engine read returns.
const SPAN_BYTES: u64 = 256 << 10;
/// A shorter dictionary saves nothing, bytes.
pub const DICTIONARY_BYTES_MIN: u64 = 512;
