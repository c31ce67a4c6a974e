//! Puts: intents, writers, updates of metadata.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::follow::{End, Follower, Stream};
use super::{Cache, Hit, Lookup, Updated};
use crate::completion::{Outcome, promise};
use crate::error::PutError;
use crate::format::{Fields, Kind, record_bytes};
use crate::key::KeyHash;
use crate::memory::{Chunk, Reservation};
use crate::object::{Cut, MAX_METADATA, MAX_NAME, MAX_SPAN_PAGES, PAGE, Version};
use crate::policy::LogPos;
use crate::record::Record;
use crate::shard::{Begun, Pending};
use crate::stripe::Accepted;

/// What becomes of a put that is not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// It never happened.
    #[default]
    Whole,
    /// What came is kept as an incomplete object, findable from the first page on.
    Partial,
}

/// What is put beside the content.
#[derive(Clone, Debug)]
pub struct Put {
    /// Opaque to the engine, at most [`crate::MAX_METADATA`].
    pub metadata: Bytes,
    /// Length of the content, bytes, if known.
    pub length: Option<u64>,
    /// What becomes of it when it is not finished.
    pub keep: Keep,
    /// Any number the caller wants to find again beside the object.
    pub mark: u128,
    /// Objects of one group are asked for together; 0: no group.
    pub group: u64,
    /// Unix time after which the object is of no use, seconds; 0: never. Decides only what is kept
    /// longer, never an answer.
    pub useless_after: u64,
    /// Pages of 64 KiB in a span, 1 to [`crate::MAX_SPAN_PAGES`]: what is read, and filled in, at
    /// once.
    pub span_pages: u8,
}

impl Put {
    /// A put with this metadata and no wishes.
    pub fn metadata(metadata: impl Into<Bytes>) -> Self {
        Self {
            metadata: metadata.into(),
            length: None,
            keep: Keep::Whole,
            mark: 0,
            group: 0,
            useless_after: 0,
            span_pages: MAX_SPAN_PAGES,
        }
    }
}

/// A put that has begun: it has its version and gives way to whatever is put or removed after.
pub struct Intent {
    cache: Cache,
    name: Bytes,
    key: KeyHash,
    begun: Arc<Begun>,
    replaces: Option<LogPos>,
}

impl Intent {
    pub(super) fn new(cache: &Cache, name: &[u8]) -> Result<Self, PutError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(PutError::Name { length: name.len() });
        }
        let key = cache.stripe().secret.name(name);
        let mut shard = cache.stripe().shard(key);
        // Drawn under the lock: a put or remove that draws a higher version later finds this one.
        let begun = shard.begin(key, cache.stripe().draw_version(), false);
        drop(shard);
        Ok(Self::begun(cache, name, key, begun))
    }

    fn update(cache: &Cache, name: &[u8], version: Version) -> Self {
        let key = cache.stripe().secret.name(name);
        let begun = cache.stripe().shard(key).begin(key, version, true);
        Self::begun(cache, name, key, begun)
    }

    fn begun(cache: &Cache, name: &[u8], key: KeyHash, begun: Arc<Begun>) -> Self {
        let name = Bytes::copy_from_slice(name);
        Self {
            cache: cache.clone(),
            name,
            key,
            begun,
            replaces: None,
        }
    }

    /// The version the put will have.
    pub fn version(&self) -> Version {
        self.begun.version
    }

    /// Says that `hit` is what the put replaces, which gives its place in the index back at once.
    #[must_use]
    pub fn replacing(mut self, hit: &Hit) -> Self {
        if hit.head.fields.key == self.key {
            self.replaces = hit.head.at;
        }
        self
    }

    /// Begins to write.
    ///
    /// # Errors
    /// [`PutError::Metadata`] when there is too much of it, [`PutError::OutOfService`] without a
    /// store.
    pub fn writer(self, put: Put) -> Result<Writer, PutError> {
        if put.metadata.len() > MAX_METADATA {
            return Err(PutError::Metadata {
                length: put.metadata.len(),
            });
        }
        let stripe = self.cache.stripe();
        if stripe.health() == crate::stats::Health::OutOfService || self.cache.is_closed() {
            return Err(PutError::OutOfService);
        }
        let bytes = put.metadata.len() + self.name.len() + RECORD_OVERHEAD;
        let reservation = reserve(&self.cache, bytes).ok_or(PutError::Full)?;
        let cut = Cut {
            span_pages: put.span_pages.clamp(1, MAX_SPAN_PAGES),
        };
        let cache_releases = Releases::now(&self.cache);
        let stream = Stream::new(&self.cache, &self.name, self.version(), cut);
        Ok(Writer {
            intent: self,
            put,
            cut,
            stream,
            chunk: Chunk::Full,
            head_reservations: reservation.into(),
            reservations: Vec::new(),
            written: 0,
            revision: 0,
            bypassed: false,
            released: cache_releases,
        })
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        self.cache
            .stripe()
            .shard(self.key)
            .end(self.key, &self.begun);
    }
}

/// What a pending record takes beside its bytes.
const RECORD_OVERHEAD: usize = 512;
/// First chunk of content whose length is not known.
const FIRST_CHUNK: usize = 4 << 10;

/// Sets memory aside for a pending write, out of the share for writes and out of the whole.
fn reserve(cache: &Cache, bytes: usize) -> Option<Reserved> {
    let stripe = cache.stripe();
    let share = stripe.write_budget.reserve_free(bytes as u64);
    let whole = share
        .is_some()
        .then(|| stripe.budget.reserve(bytes as u64))
        .flatten();
    if whole.is_none() {
        stripe.counters.puts_refused.add(1);
    }
    Some(Reserved {
        share: Some(share?),
        whole: whole?,
    })
}

/// The same for what is passed on only: the share for writes is for what the disk is to take, and
/// may be spent just because the disk takes nothing.
fn reserve_window(cache: &Cache, bytes: usize) -> Option<Reserved> {
    Some(Reserved {
        share: None,
        whole: cache.stripe().budget.reserve(bytes as u64)?,
    })
}

/// Memory set aside out of both budgets.
struct Reserved {
    share: Option<Reservation>,
    whole: Reservation,
}

impl From<Reserved> for Vec<Reservation> {
    fn from(reserved: Reserved) -> Self {
        reserved.share.into_iter().chain([reserved.whole]).collect()
    }
}

/// How often memory had been released, in the share for writes and in the whole.
#[derive(Clone, Copy)]
struct Releases {
    share: u64,
    whole: u64,
}

impl Releases {
    fn now(cache: &Cache) -> Self {
        let stripe = cache.stripe();
        Self {
            share: stripe.write_budget.releases(),
            whole: stripe.budget.releases(),
        }
    }
}

/// A put in progress: write, then commit. Dropped before that, it never happened.
pub struct Writer {
    intent: Intent,
    put: Put,
    cut: Cut,
    stream: Arc<Stream>,
    /// Where the next bytes go; never beyond the end of the span.
    chunk: Chunk,
    head_reservations: Vec<Reservation>,
    reservations: Vec<Reservation>,
    written: u64,
    revision: u32,
    bypassed: bool,
    /// Before the last write that was tried.
    released: Releases,
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

    /// Whether what is written is still going to be stored.
    pub fn is_stored(&self) -> bool {
        !self.bypassed
    }

    /// From now on passes content to followers only: it will not be stored.
    pub fn bypass(&mut self) {
        if !self.bypassed {
            self.bypassed = true;
            self.stream.bypass();
        }
    }

    /// Someone who reads what is being written, from `offset` on.
    pub fn follow(&self, offset: u64) -> Follower {
        Follower::new(&self.stream, offset)
    }

    /// A handle that can make followers where the writer cannot be reached, until the write ends.
    pub fn stream(&self) -> Arc<Stream> {
        Arc::clone(&self.stream)
    }

    /// Ready when the writer is at most `ahead` bytes beyond its fastest follower (its slowest,
    /// once it stores no more, because then memory is all there is).
    pub fn poll_room(&self, context: &mut Context<'_>, ahead: u64) -> Poll<()> {
        self.stream.poll_room(context, ahead)
    }

    /// Resolves when memory was released since a write was refused with [`PutError::Full`].
    pub fn released(&self) -> impl Future<Output = ()> + Send + 'static {
        let stripe = self.intent.cache.stripe();
        let mut share = stripe.write_budget.released_since(self.released.share);
        let mut whole = stripe.budget.released_since(self.released.whole);
        std::future::poll_fn(move |context| {
            let either = Pin::new(&mut share).poll(context).is_ready()
                | Pin::new(&mut whole).poll(context).is_ready();
            if either {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    /// Adds content. Never blocks.
    ///
    /// # Errors
    /// [`PutError::Full`] when there is no memory for it: nothing was added, and the caller may try
    /// again later or [`Writer::bypass`]. [`PutError::Length`] beyond the announced length.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PutError> {
        let written = self.written + bytes.len() as u64;
        if let Some(announced) = self.put.length
            && written > announced
        {
            return Err(PutError::Length { written, announced });
        }
        self.released = Releases::now(&self.intent.cache);
        let mut reserved = self.reserve_for(bytes.len())?;
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.chunk.room() == 0 {
                let (size, reserved) = reserved.next().expect("reserved for all of it");
                let hot = &self.intent.cache.stripe().hot;
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

    /// Sets aside memory for all chunks that `bytes` more bytes need, or for none.
    fn reserve_for(&self, bytes: usize) -> Result<std::vec::IntoIter<(usize, Reserved)>, PutError> {
        let mut chunks = Vec::new();
        let (mut at, mut room) = (self.written, self.chunk.room());
        let mut left = bytes;
        loop {
            let now = left.min(room);
            left -= now;
            at += now as u64;
            if left == 0 {
                return Ok(chunks.into_iter());
            }
            room = self.chunk_size(at, left);
            let cache = &self.intent.cache;
            let reserved = if self.bypassed {
                reserve_window(cache, room)
            } else {
                reserve(cache, room)
            };
            chunks.push((room, reserved.ok_or(PutError::Full)?));
        }
    }

    /// Size of the chunk that begins at `at`, for which `coming` bytes are there already.
    fn chunk_size(&self, at: u64, coming: usize) -> usize {
        let span_left = self.cut.bounds(self.cut.span_at(at)).end - at;
        let expected = match self.put.length {
            Some(length) => length - at,
            // Doubles with what came: small objects of unknown length stay small.
            None => (coming as u64).max(at).max(FIRST_CHUNK as u64),
        };
        usize::try_from(expected.min(span_left).min(PAGE as u64)).unwrap_or(PAGE)
    }

    /// Passes the span on that ends here.
    fn end_span(&mut self, span: u32) {
        self.chunk = Chunk::Full;
        if span == 0 {
            self.head_reservations.append(&mut self.reservations);
            if self.put.keep == Keep::Partial && self.put.length != Some(self.written) {
                self.put_head(true, Arc::default());
            }
            return;
        }
        let reservations = Arc::new(std::mem::take(&mut self.reservations));
        let pieces = self.stream.pieces(self.cut.bounds(span).start);
        let key = self
            .intent
            .cache
            .stripe()
            .secret
            .span(&self.intent.name, self.version(), span);
        let fields = Fields {
            kind: Kind::Span,
            key,
            span,
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
        if self.intent.cache.stripe().put_span(&pending) == Accepted::Yes {
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
            span: 0,
            incomplete: false,
            total: self.put.length,
            span_pages: self.cut.span_pages,
            mark: self.put.mark,
            group: self.put.group,
            useless_after: self.put.useless_after,
            labels: Vec::new(),
        }
    }

    /// Makes the object findable. `reservations` are for the first page; none while the writer goes
    /// on and holds the page itself.
    fn put_head(&mut self, incomplete: bool, reservations: Arc<Vec<Reservation>>) -> Accepted {
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
        self.intent
            .cache
            .stripe()
            .put_head(&head, &self.intent.begun)
    }

    /// Ends the put: from now on the object is found.
    ///
    /// # Errors
    /// The object is not stored then; followers still have seen all of it, unless the length is
    /// wrong.
    pub fn commit(mut self) -> Result<Version, PutError> {
        if let Some(announced) = self.put.length
            && announced != self.written
        {
            return Err(PutError::Length {
                written: self.written,
                announced,
            });
        }
        let span = self.cut.span_at(self.written);
        if !self.bypassed && span > 0 && self.written > self.cut.bounds(span).start {
            self.end_span(span);
        }
        let accepted = (!self.bypassed).then(|| {
            let reservations = self.first_page();
            self.put_head(false, reservations)
        });
        self.stream.end(End::Complete);
        match accepted {
            Some(Accepted::Yes) => Ok(self.version()),
            Some(Accepted::OutOfService) => Err(PutError::OutOfService),
            Some(_) => Err(PutError::Superseded),
            None => Err(PutError::Bypassed),
        }
    }

    /// What is set aside for metadata and first page, shared between the record and the stream.
    fn first_page(&mut self) -> Arc<Vec<Reservation>> {
        self.head_reservations.append(&mut self.reservations);
        let reservations = Arc::new(std::mem::take(&mut self.head_reservations));
        self.stream.share(&reservations);
        reservations
    }

    /// Gives the put up but keeps what came as an incomplete object, if it was put with
    /// [`Keep::Partial`]. Followers see it aborted.
    pub fn keep(mut self) -> bool {
        if self.put.keep != Keep::Partial || self.bypassed || self.written == 0 {
            return false;
        }
        let reservations = self.first_page();
        self.put_head(true, reservations) == Accepted::Yes
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Followers still hold what was written last.
        self.first_page();
        // After `commit` this changes nothing: a stream ends once.
        self.stream.end(End::Aborted);
    }
}

fn pending(
    fields: Fields,
    name: &Bytes,
    metadata: Bytes,
    content: Vec<Bytes>,
    replaces: Option<LogPos>,
    reservations: Arc<Vec<Reservation>>,
) -> Arc<Pending> {
    let content_bytes = content.iter().map(Bytes::len).sum();
    let record_bytes = record_bytes(
        name.len(),
        fields.labels.len(),
        metadata.len(),
        content_bytes,
    );
    Arc::new(Pending {
        record: Arc::new(Record {
            fields,
            name: name.clone(),
            metadata,
            content,
            at: None,
        }),
        replaces,
        dead: AtomicBool::new(false),
        asked_for: AtomicBool::new(false),
        record_bytes,
        _reservations: reservations,
    })
}

/// Stores one span of an object that is there already.
pub(super) fn fill(
    cache: &Cache,
    head: &Record,
    key: KeyHash,
    span: u32,
    content: &[u8],
) -> Result<(), PutError> {
    let reservations =
        Vec::from(reserve(cache, content.len() + RECORD_OVERHEAD).ok_or(PutError::Full)?);
    let fields = Fields {
        kind: Kind::Span,
        key,
        span,
        ..head.fields.clone()
    };
    let content = vec![Bytes::copy_from_slice(content)];
    let reservations = Arc::new(reservations);
    let pending = pending(
        fields,
        &head.name,
        Bytes::new(),
        content,
        None,
        reservations,
    );
    match cache.stripe().put_span(&pending) {
        Accepted::Yes => Ok(()),
        Accepted::OutOfService => Err(PutError::OutOfService),
        Accepted::Superseded | Accepted::Busy => Err(PutError::Superseded),
    }
}

/// See [`Cache::update_metadata`].
pub(super) fn update_metadata(
    cache: &Cache,
    name: &[u8],
    expected: Version,
    metadata: Bytes,
) -> Outcome<Updated> {
    if metadata.len() > MAX_METADATA {
        return Outcome::ready(Updated::Refused);
    }
    if name.is_empty() || name.len() > MAX_NAME {
        return Outcome::ready(Updated::Gone);
    }
    // Begun before the look-up: a newer put that the look-up does not see supersedes this.
    let intent = Intent::update(cache, name, expected);
    match cache.get(name) {
        Lookup::Hit(hit) => Outcome::ready(apply(&intent, &hit, metadata)),
        Lookup::Miss => Outcome::ready(Updated::Gone),
        Lookup::Pending(lookup) => {
            let (done, outcome) = promise();
            cache.stripe().pool.run(move || {
                let found = lookup.wait();
                done.set(found.map_or(Updated::Gone, |hit| apply(&intent, &hit, metadata)));
            });
            outcome
        }
    }
}

fn apply(intent: &Intent, hit: &Hit, metadata: Bytes) -> Updated {
    let old = &hit.head;
    if old.fields.version != intent.version() || intent.begun.superseded.load(Ordering::Acquire) {
        return Updated::Gone;
    }
    // The content lies in memory already, held by whoever holds it; only the metadata is new.
    let Some(reservations) = reserve(&intent.cache, metadata.len() + RECORD_OVERHEAD) else {
        return Updated::Refused;
    };
    let revision = old.fields.revision.saturating_add(1);
    let fields = Fields {
        revision,
        ..old.fields.clone()
    };
    let (content, reservations) = (old.content.clone(), Arc::new(reservations.into()));
    let head = pending(fields, &old.name, metadata, content, old.at, reservations);
    match intent.cache.stripe().put_head(&head, &intent.begun) {
        Accepted::Yes => Updated::Done,
        Accepted::Busy => Updated::Refused,
        Accepted::Superseded | Accepted::OutOfService => Updated::Gone,
    }
}
