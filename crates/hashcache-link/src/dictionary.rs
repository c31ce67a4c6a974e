//! Stored content that both ends of a link have: the prefix of what is coded or decoded.
//!
//! Used by `request/framed` of the proxy at the parent and `unframe` of `hashcache-upstream` at the
//! child.
//!
//! Invariants: only complete objects of a shared cache are dictionaries, and only under the digest
//! that was stored with them. The hit pins the version: content of another one is never read.
//! Cost: one read of the engine per 256 KiB, and only for the stretches that are wanted.

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

/// A stored object and the digest of its content.
#[derive(Clone)]
pub struct StoredContent {
    hit: Hit,
    /// If it is stored in pages.
    pages: Option<PageTable>,
    /// The SHA-256 of its content.
    pub digest: Digest,
    /// Its length, bytes.
    pub length: u64,
}

impl StoredContent {
    /// The content of `hit`, if it may be a dictionary; `stored` is its metadata.
    pub fn of(hit: &Hit, stored: &StoredResponse) -> Option<Self> {
        Self::with(hit, stored.digest?, stored.pages.clone())
    }

    /// The content that was kept under this digest.
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

    /// The content stored under `name`, if its digest is this one.
    pub async fn find(cache: &Cache, name: &[u8], digest: Digest) -> Option<Self> {
        let hit = hashcache_store::find(cache, name).await?;
        let stored = StoredResponse::decode(hit.metadata())?;
        (stored.digest == Some(digest)).then(|| Self::of(&hit, &stored))?
    }

    /// Reads it from `offset` on.
    fn reader(&self, offset: u64) -> ContentReader {
        ContentReader::new(&self.hit, self.pages.as_ref(), offset..self.length)
    }

    /// Memory of reading it, bytes, beside what is given out.
    pub fn reading_bytes(&self) -> u64 {
        match &self.pages {
            Some(_) => PAGE_READER_BYTES,
            None => 0,
        }
    }

    /// It as it is stored: metadata for [`Self::kept`], the length and a reader.
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

/// Reads stretches of a dictionary.
pub struct DictionaryReader {
    content: StoredContent,
    counters: Arc<LinkCounters>,
    /// Since when a read is waited for.
    waits_since: Option<Instant>,
    reader: Option<ContentReader>,
}

impl DictionaryReader {
    /// Reads `content`, and counts in `counters` what became of it.
    pub fn new(content: StoredContent, counters: Arc<LinkCounters>) -> Self {
        Self {
            content,
            counters,
            waits_since: None,
            reader: None,
        }
    }

    /// Bytes from the beginning of `wanted`; `None`: they are gone.
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

/// What one read of the engine brings, bytes.
const SPAN_BYTES: u64 = 256 << 10;
/// A shorter dictionary saves nothing, bytes.
pub const DICTIONARY_BYTES_MIN: u64 = 512;
