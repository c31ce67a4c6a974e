//! Puts: a [`Writer`] takes bytes and makes records of them.
//!
//! Calls `stripe` with records to write, and `follow` with the content for followers.
//!
//! Invariant: lookups find the object when `commit` has returned, and not before, unless the caller
//! has requested that an incomplete object is kept.
//! Cost: no copy except the copy into the chunk; memory is reserved for all bytes of a write or for
//! none.

mod filler;
mod intent;
mod memory;
mod update;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

pub use intent::{Intent, Keep, Put};
use memory::{Refusal, Reserved, reserve, reserve_as, reserve_window};
pub(super) use update::update;
pub use update::{HourChange, Update};

use super::follow::{End, Follower, Stream};
use crate::address::LogPos;
use crate::bans::{LABEL_ANY, Label};
use crate::error::PutError;
use crate::format::{Fields, Kind, MAX_LABELS, record_bytes};
use crate::memory::RecordHandle;
use crate::memory::{Chunk, Class, Reservations};
use crate::object::{Cut, MAX_METADATA, PAGE, Storage, Version};
use crate::record::Record;
use crate::shard::Pending;
use crate::stripe::Accepted;

/// Size of the first chunk if the content length is not known.
const FIRST_CHUNK: usize = 4 << 10;

/// Content of unknown length counts as short up to this size, bytes.
const SHORT: u64 = 16 << 10;

/// A put in progress: write, then commit. If it is dropped before that, nothing is put.
pub struct Writer {
    intent: Intent,
    /// Only adds spans to an existing object.
    fills: bool,
    put: Put,
    /// `fresh_until` of the put, as it is stored in records.
    fresh_until: u16,
    cut: Cut,
    stream: Arc<Stream>,
    /// The chunk for the next bytes; never beyond the end of the span.
    chunk: Chunk,
    head_reservations: Reservations,
    reservations: Reservations,
    written: u64,
    revision: u32,
    bypassed: bool,
    /// True if the content before the bypass is stored.
    kept: bool,
    /// The refusal of the last write, if there was no memory for it.
    refused: Option<Refusal>,
}

impl Writer {
    /// The version the object will have.
    pub fn version(&self) -> Version {
        self.intent.version()
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns true if the written content is still going to be stored.
    pub fn is_stored(&self) -> bool {
        !self.bypassed
    }

    /// Where the content is stored.
    pub fn storage(&self) -> Storage {
        self.put.storage
    }

    /// Passes later content to followers only: it will not be stored. The content before this call
    /// is kept as an incomplete object, as with [`Writer::keep`].
    pub fn bypass(&mut self) {
        if self.bypassed {
            return;
        }
        let mut held = std::mem::take(&mut self.reservations);
        if self.cut.span_at(self.written) == 0 {
            self.head_reservations.append(&mut held);
        }
        if self.may_keep() {
            let head = self.first_page();
            self.kept = self.put_head(true, head) == Accepted::Yes;
        }
        self.bypassed = true;
        held.append(&mut self.head_reservations);
        // The share for writes is only for content that is still going to be written.
        let share = self.intent.cache.write_budget();
        held.retain(|it| !it.is_of(share));
        // Now and not with the next bytes: the writer may have to wait for memory first, and many
        // waiting writers would hold memory that their readers no longer need, and block each
        // other.
        self.stream.bypass(held);
    }

    /// Returns true if the content so far may be kept although it is not complete.
    fn may_keep(&self) -> bool {
        !self.fills && !self.is_for_memory() && self.put.keep != Keep::Whole && self.written > 0
    }

    /// Returns true if the object is kept only in memory.
    fn is_for_memory(&self) -> bool {
        self.put.storage == Storage::Memory
    }

    /// A follower that reads this put from `offset` on.
    pub fn follow(&self, offset: u64) -> Follower {
        self.stream.follow_anyway(offset)
    }

    /// A handle that can make followers where the writer cannot be reached, until the write is
    /// over.
    pub fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.stream)
    }

    /// Ready when the writer is at most `ahead` bytes beyond its fastest follower (its slowest,
    /// once it stores no more, because then the content is only in memory).
    pub fn poll_room(&self, context: &mut Context<'_>, ahead: u64) -> Poll<()> {
        self.stream.poll_room(context, ahead)
    }

    /// Resolves when another attempt may succeed after a write was refused with [`PutError::Full`]:
    /// when memory was released since and it is this writer's turn. At once if none was refused.
    pub fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut waiting = self.refused.as_ref().map(Refusal::over);
        std::future::poll_fn(move |context| match &mut waiting {
            Some(waiting) => std::pin::Pin::new(waiting).poll(context),
            None => Poll::Ready(()),
        })
    }

    /// Adds content. Never blocks.
    ///
    /// # Errors
    /// [`PutError::Full`] if there is no memory for it: nothing was added, and the caller may try
    /// again later or [`Writer::bypass`]. [`PutError::Length`] beyond the announced length.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PutError> {
        let written = self.written + bytes.len() as u64;
        if let Some(announced) = self.put.length
            && written > announced
        {
            return Err(PutError::Length { written, announced });
        }
        let waited = self.refused.take();
        let mut reserved = match self.reserve_for(bytes.len(), waited.as_ref()) {
            Ok(reserved) => reserved,
            Err(refusal) => {
                self.refused = Some(refusal);
                return Err(PutError::Full);
            }
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.chunk.room() == 0 {
                let size = self.chunk_size(self.written, rest.len());
                let reserved = reserved.as_mut().expect("reserved for all of it");
                let reserved = reserved.split(size);
                let hot = self.intent.cache.hot();
                let (chunk, whole) = Chunk::new(size, reserved.whole, hot);
                self.chunk = chunk;
                self.reservations
                    .extend(reserved.share.into_iter().chain(whole));
            }
            let (now, later) = rest.split_at(rest.len().min(self.chunk.room()));
            let piece = self.chunk.append(now);
            rest = later;
            self.written += now.len() as u64;
            self.stream.push(piece);
            let span = self.cut.span_at(self.written - 1);
            if self.bypassed {
                self.stream.hold(std::mem::take(&mut self.reservations));
            } else if self.written == self.cut.bounds(span).end {
                self.end_span(span);
            }
        }
        Ok(())
    }

    /// Reserves memory for all chunks that `bytes` more bytes need, or for none. `None`: the
    /// current chunk has room for them.
    fn reserve_for(
        &self,
        bytes: usize,
        waited: Option<&Refusal>,
    ) -> Result<Option<Reserved>, Refusal> {
        let (mut at, mut room) = (self.written, self.chunk.room());
        let (mut left, mut all) = (bytes, 0);
        loop {
            let now = left.min(room);
            left -= now;
            at += now as u64;
            if left == 0 {
                break;
            }
            room = self.chunk_size(at, left);
            all += room;
        }
        if all == 0 {
            return Ok(None);
        }
        // All at once: if memory were reserved bit by bit and the last bit were refused, the rest
        // would have to be released and would wake other callers for nothing.
        let cache = &self.intent.cache;
        let reserved = if self.bypassed {
            reserve_window(cache, self.class(), all, waited)?
        } else {
            reserve_as(cache, self.class(), all, waited)?
        };
        Ok(Some(reserved))
    }

    /// Content that is long, or may become long, shares the bulk memory, because its readers decide
    /// how long they hold it.
    fn class(&self) -> Class {
        let short = match self.put.length {
            Some(length) => length <= PAGE as u64,
            None => self.written < SHORT,
        };
        if short { Class::Small } else { Class::Bulk }
    }

    /// Size of the chunk that starts at `at`, if `coming` bytes are available already.
    fn chunk_size(&self, at: u64, coming: usize) -> usize {
        let span_left = self.cut.bounds(self.cut.span_at(at)).end - at;
        let expected = match self.put.length {
            Some(length) => length - at,
            // Doubles with the bytes so far: small objects of unknown length stay small.
            None => (coming as u64).max(at).max(FIRST_CHUNK as u64),
        };
        usize::try_from(expected.min(span_left).min(PAGE as u64)).unwrap_or(PAGE)
    }

    /// Queues the span that is complete now.
    fn end_span(&mut self, span: u32) {
        self.chunk = Chunk::Full;
        if span == 0 && !self.fills {
            self.head_reservations.append(&mut self.reservations);
            if self.is_for_memory() {
                // Content after this page would need separate records.
                if self.put.length != Some(self.written) {
                    self.bypass();
                }
                return;
            }
            if self.put.keep == Keep::Partial && self.put.length != Some(self.written) {
                self.put_head(true, Arc::default());
            }
            return;
        }
        let reservations = Arc::new(std::mem::take(&mut self.reservations));
        let pieces = match span {
            0 => self.stream.head(),
            _ => self.stream.pieces(self.cut.bounds(span).start),
        };
        let key = self
            .intent
            .cache
            .secret()
            .span(&self.intent.name, self.version(), span);
        let fields = Fields {
            kind: Kind::Span,
            key,
            span,
            labels: Vec::new(),
            ..self.fields()
        };
        let pending = pending(
            fields,
            &self.intent.name,
            Bytes::new(),
            pieces,
            None,
            reservations,
        );
        if self.intent.stripe.put_span(&pending) == Accepted::Yes {
            self.stream.stored_to(self.written);
        } else {
            self.bypass();
        }
    }

    fn fields(&self) -> Fields {
        Fields {
            kind: Kind::Head,
            key: self.intent.key,
            version: self.version(),
            revision: self.revision,
            confirmed: self.version(),
            span: 0,
            incomplete: false,
            total: self.put.length,
            span_pages: self.cut.span_pages,
            mark: self.put.mark,
            group: self.put.group,
            useless_after: self.put.useless_after,
            fresh_until: self.fresh_until,
            labels: labels(&self.put.labels),
        }
    }

    /// Makes the object findable. `reservations` are for the first page; none while the writer
    /// continues and holds the page itself.
    fn put_head(&mut self, incomplete: bool, reservations: Arc<Reservations>) -> Accepted {
        let total = if incomplete {
            self.put.length
        } else {
            Some(self.written)
        };
        let fields = Fields {
            incomplete,
            total,
            ..self.fields()
        };
        self.revision += 1;
        let metadata = self.put.metadata.clone();
        let head = pending(
            fields,
            &self.intent.name,
            metadata,
            self.stream.head(),
            self.intent.replaces.take(),
            reservations,
        );
        match self.put.storage {
            Storage::Disk => self.intent.stripe.put_head(&head, &self.intent.token),
            Storage::Memory => self.intent.stripe.put_hot(&head.record, &self.intent.token),
        }
    }

    /// Finishes the put: after this, lookups find the object.
    ///
    /// # Errors
    /// The object is not stored; followers have still seen all of it, unless the length is wrong.
    pub fn commit(mut self) -> Result<Version, PutError> {
        self.end_put(Ok(()))
    }

    /// As [`Writer::commit`], with metadata that is only known now: for example a digest of the
    /// content. It replaces the put's metadata, which readers of an incomplete object see until
    /// then.
    ///
    /// Takes more memory only if it is longer than the metadata of the put. So a put with metadata
    /// that is at least as long as the final metadata is not refused here. A
    /// [`Hit::filler`](super::Hit::filler) writes no metadata and finishes as with
    /// [`Writer::commit`].
    ///
    /// # Errors
    /// As [`Writer::commit`]; [`PutError::Metadata`] if the metadata is too long, and
    /// [`PutError::Full`] without memory for it.
    pub fn commit_with(mut self, metadata: impl Into<Bytes>) -> Result<Version, PutError> {
        let replaced = self.replace_metadata(metadata.into());
        self.end_put(replaced)
    }

    fn replace_metadata(&mut self, metadata: Bytes) -> Result<(), PutError> {
        if self.fills || self.bypassed {
            return Ok(());
        }
        let length = metadata.len();
        if length > MAX_METADATA {
            return Err(PutError::Metadata { length });
        }
        let more = length.saturating_sub(self.put.metadata.len());
        if more > 0 {
            let reserved = reserve(&self.intent.cache, more).ok_or(PutError::Full)?;
            self.head_reservations
                .append(&mut Reservations::from(reserved));
        }
        self.put.metadata = metadata;
        Ok(())
    }

    /// Finishes the put, and stores it if `fit` is `Ok`. Otherwise followers still see a complete
    /// object.
    fn end_put(&mut self, fit: Result<(), PutError>) -> Result<Version, PutError> {
        if self.fills {
            return Ok(self.end_fill());
        }
        if let Some(announced) = self.put.length
            && announced != self.written
        {
            return Err(PutError::Length {
                written: self.written,
                announced,
            });
        }
        if let Err(error) = fit {
            self.stream.end(End::Complete);
            return Err(error);
        }
        let span = self.cut.span_at(self.written);
        if !self.bypassed && span > 0 && self.written > self.cut.bounds(span).start {
            self.end_span(span);
        }
        let accepted = (!self.bypassed).then(|| {
            self.head_reservations.append(&mut self.reservations);
            let reservations = self.first_page();
            self.put_head(false, reservations)
        });
        self.stream.end(End::Complete);
        match accepted {
            Some(Accepted::Yes) => Ok(self.version()),
            Some(Accepted::OutOfService) => Err(PutError::OutOfService),
            Some(Accepted::NoRoom) => Err(PutError::Full),
            Some(_) => Err(PutError::Superseded),
            None => Err(PutError::Bypassed),
        }
    }

    /// The reservations for metadata and first page, shared between the record and the stream.
    fn first_page(&mut self) -> Arc<Reservations> {
        let reservations = Arc::new(std::mem::take(&mut self.head_reservations));
        self.stream.share(&reservations);
        reservations
    }

    /// Gives the put up but keeps the content so far as an incomplete object, unless the put has
    /// [`Keep::Whole`]. Followers see it aborted. Returns true if some content is kept.
    pub fn keep(mut self) -> bool {
        if self.bypassed || !self.may_keep() {
            return self.kept;
        }
        self.head_reservations.append(&mut self.reservations);
        let reservations = self.first_page();
        self.put_head(true, reservations) == Accepted::Yes
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Followers still hold the content that was written last.
        self.head_reservations.append(&mut self.reservations);
        if !self.head_reservations.is_empty() {
            self.first_page();
        }
        // No effect after `commit`, because a stream reaches its end only once.
        self.stream.end(End::Aborted);
    }
}

/// As many labels as a record has room for. If there are too many, the last is `LABEL_ANY`, which a
/// removal by any label matches.
fn labels(labels: &[Label]) -> Vec<u64> {
    let mut words: Vec<u64> = labels.iter().map(|label| label.0).collect();
    words.sort_unstable();
    words.dedup();
    if words.len() > MAX_LABELS {
        words.truncate(MAX_LABELS - 1);
        words.push(LABEL_ANY);
    }
    words
}

fn pending(
    fields: Fields,
    name: &Bytes,
    metadata: Bytes,
    content: Vec<Bytes>,
    replaces: Option<LogPos>,
    reservations: Arc<Reservations>,
) -> Arc<Pending> {
    let content_bytes = content.iter().map(Bytes::len).sum();
    let record_bytes = record_bytes(
        name.len(),
        fields.label_words(),
        metadata.len(),
        content_bytes,
    );
    let record = RecordHandle::alone(Record {
        fields,
        name: name.clone(),
        metadata,
        content,
        at: None,
        storage: Storage::Disk,
        judged: std::sync::atomic::AtomicU64::default(),
    });
    Arc::new(Pending::put(record, record_bytes, replaces, reservations))
}
