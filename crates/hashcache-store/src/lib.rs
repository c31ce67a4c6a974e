//! Stored responses: a response as an object of the engine, and back.
//!
//! The content is the object's content. Everything else is its metadata, laid out so that a hit
//! reads numbers instead of parsing fields:
//!
//! ```text
//! layout 1 | facts 48 | digest 32 | page table | row length 2 | vary row | table length 2 |
//! variant table | fields
//!
//! field: name length 2 | name | value length 2 | value
//! ```
//!
//! The numbers are lengths in bytes. The layout byte is `WITH_PAGES`; or `WITH_DIGEST`: then
//! there is no page table ([`PageTable`]); or `PLAIN`: then there is no digest either. The digest
//! is the SHA-256 of the content, which boxes with a link store; it is zero until the content is
//! complete, and if it is not known. With a page table, the object's content is the stored form of
//! pages, and [`StoredResponse::content_len`] is the length of the response's content.
//!
//! The first response of a URL with Vary is stored under the cache key and holds the variant table;
//! the others are stored under names derived from the key ([`ObjectPlace`]).
//!
//! `look_up` finds a stored response, `put` stores one and `follow` reads it meanwhile. The other
//! modules are about all stored responses: `collapse` and `in_flight_ranges` (one fetch for many
//! clients), `page_groups` (which responses lie side by side), `purge` (what is removed), `summary`
//! (what peers are told), `not_stored` (why a response is not here).
//!
//! Called by `request` and `fetch` of the proxy, and by `hashcache-link` for its dictionaries.
//!
//! Invariant: metadata that does not decode is a miss; it never becomes a response. Cost: one pass
//! over the fields; values are slices of the metadata, not copies.

pub mod collapse;
pub mod content;
pub mod follow;
pub mod in_flight_ranges;
mod look_up;
pub mod not_stored;
pub mod page_groups;
mod pages;
mod place;
pub mod purge;
pub mod put;
pub mod summary;
mod unpack;

use std::ops::Range;

use bytes::Bytes;
use hashcache::{Cache, Hit, Lookup};
use hashcache_http::{FACTS_BYTES, StoredFacts, VariantTable, VaryRow};
use hashcache_wan::digest::Digest;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue};

pub use self::look_up::{HitSource, StoreLookup, first_variant, look_up, matches, peek};
pub use self::pages::{PACKED_BYTES_MAX, PageTable};
pub use self::place::ObjectPlace;

/// The metadata layouts of this build, the only ones that it reads.
const PLAIN: u8 = 2;
const WITH_DIGEST: u8 = 3;
const WITH_PAGES: u8 = 4;

/// Where the digest lies in metadata.
const DIGEST: Range<usize> = 1 + FACTS_BYTES..1 + FACTS_BYTES + 32;

/// The digest of content that is not complete.
pub const UNKNOWN_DIGEST: Digest = Digest([0; 32]);

/// Metadata as it was put, with what is known when the content is complete: its digest, and the
/// page table if it was announced. `None`: there is nothing to add, or no place for it.
pub(crate) fn finished(
    metadata: &[u8],
    digest: Option<Digest>,
    pages: Option<&PageTable>,
) -> Option<Bytes> {
    let announced = Sections::of(metadata)?;
    let has_pages = announced.pages.is_some();
    if has_pages != pages.is_some() || (digest.is_none() && !has_pages) {
        return None;
    }
    let place = announced.digest?;
    let mut out = metadata[..place.end].to_vec();
    out[place].copy_from_slice(&digest.unwrap_or(UNKNOWN_DIGEST).0);
    pages.into_iter().for_each(|pages| pages.encode(&mut out));
    out.extend_from_slice(&metadata[announced.rest..]);
    (out.len() <= hashcache::MAX_METADATA).then(|| out.into())
}

/// The name under which a parent keeps content of an origin ([`origin_key`]) that another version
/// has replaced: a child finds it by its digest, but not that of another origin. No cache key
/// begins in this way.
///
/// [`origin_key`]: hashcache_http::origin_key
pub fn kept_name(origin: &[u8], digest: Digest) -> Vec<u8> {
    [b"\0v", &digest.0[..], origin].concat()
}

/// Whether metadata has a place for a digest.
pub fn announces_digest(metadata: &[u8]) -> bool {
    matches!(metadata.first(), Some(&(WITH_DIGEST | WITH_PAGES)))
}

/// Where the parts of metadata lie.
struct Sections {
    digest: Option<Range<usize>>,
    pages: Option<Range<usize>>,
    /// Where the vary row begins.
    rest: usize,
}

impl Sections {
    /// `None` if the layout is unknown.
    fn of(metadata: &[u8]) -> Option<Self> {
        let mut sections = Self {
            digest: None,
            pages: None,
            rest: DIGEST.start,
        };
        let layout = *metadata.first()?;
        if !matches!(layout, PLAIN | WITH_DIGEST | WITH_PAGES) {
            return None;
        }
        if layout != PLAIN {
            (sections.digest, sections.rest) = (Some(DIGEST), DIGEST.end);
        }
        if layout == WITH_PAGES {
            let bytes = PageTable::bytes(metadata.get(DIGEST.end..)?)?;
            sections.rest = DIGEST.end + bytes;
            sections.pages = Some(DIGEST.end..sections.rest);
        }
        (sections.rest <= metadata.len()).then_some(sections)
    }

    /// The digest, if it is known.
    fn digest(&self, metadata: &[u8]) -> Option<Digest> {
        let digest = metadata.get(self.digest.clone()?)?.try_into().ok()?;
        Some(Digest(digest)).filter(|digest| *digest != UNKNOWN_DIGEST)
    }
}

/// The object of this name, from memory or from the disk.
pub async fn find(cache: &Cache, name: &[u8]) -> Option<Hit> {
    match cache.get(name) {
        Lookup::Hit(hit) => Some(hit),
        Lookup::Miss => None,
        Lookup::Pending(pending) => pending.await,
    }
}

/// A stored response without its content.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The numbers that the caching rules need.
    pub facts: StoredFacts,
    /// The request fields that selected this variant.
    pub row: Option<VaryRow>,
    /// The other variants; only in the object under the cache key.
    pub table: Option<VariantTable>,
    /// Its fields, without the hop-by-hop fields.
    pub fields: HeaderMap,
    /// SHA-256 of its content.
    pub digest: Option<Digest>,
    /// Where the pages of its content lie; `None`: it is stored as it came.
    pub pages: Option<PageTable>,
}

impl StoredResponse {
    /// Length of the content, bytes, if known; `hit` is where it is stored.
    pub fn content_len(&self, hit: &Hit) -> Option<u64> {
        match &self.pages {
            Some(pages) => Some(pages.content_len()),
            None => hit.content_len(),
        }
    }

    /// The metadata; `None` if it is larger than the engine accepts.
    pub fn encode(&self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(512);
        let (layout, digest) = match (&self.pages, self.digest) {
            (Some(_), digest) => (WITH_PAGES, digest.or(Some(UNKNOWN_DIGEST))),
            (None, Some(digest)) => (WITH_DIGEST, Some(digest)),
            (None, None) => (PLAIN, None),
        };
        out.push(layout);
        out.extend_from_slice(&self.facts.to_bytes());
        out.extend(digest.iter().flat_map(|digest| digest.0));
        self.pages.iter().for_each(|pages| pages.encode(&mut out));
        push(&mut out, self.row.as_ref().map_or(&[], VaryRow::as_bytes))?;
        let table = self.table.as_ref().map(VariantTable::to_bytes);
        push(&mut out, table.as_deref().unwrap_or_default())?;
        // The engine knows the length; a stored field could contradict it.
        for (name, value) in self
            .fields
            .iter()
            .filter(|(name, _)| **name != CONTENT_LENGTH)
        {
            push(&mut out, name.as_str().as_bytes())?;
            push(&mut out, value.as_bytes())?;
        }
        (out.len() <= hashcache::MAX_METADATA).then(|| out.into())
    }

    /// The stored fields, also of a put whose table of pages is not complete.
    pub fn decode_fields(metadata: &Bytes) -> Option<HeaderMap> {
        let sections = Sections::of(metadata)?;
        let mut rest = sections.rest..metadata.len();
        let (_row, _table) = (take(metadata, &mut rest)?, take(metadata, &mut rest)?);
        decode_fields(metadata, rest)
    }

    /// Decodes metadata; `None` if it is not of this layout.
    pub fn decode(metadata: &Bytes) -> Option<Self> {
        let sections = Sections::of(metadata)?;
        let digest = sections.digest(metadata);
        let pages = match &sections.pages {
            Some(pages) => Some(PageTable::decode(&metadata.slice(pages.clone()))?.0),
            None => None,
        };
        let mut rest = sections.rest..metadata.len();
        let facts = StoredFacts::from_bytes(metadata.get(1..1 + FACTS_BYTES)?)?;
        let row = match &metadata[take(metadata, &mut rest)?] {
            [] => None,
            row => Some(VaryRow::from_bytes(row)?),
        };
        let table = match &metadata[take(metadata, &mut rest)?] {
            [] => None,
            table => Some(VariantTable::from_bytes(table)?),
        };
        let fields = decode_fields(metadata, rest)?;
        Some(Self {
            facts,
            row,
            table,
            fields,
            digest,
            pages,
        })
    }
}

/// A stored response that does not vary, as it lies in metadata: nothing is copied.
pub struct StoredView<'a> {
    /// What the caching rules need of it.
    pub facts: StoredFacts,
    /// Whether its content lies in pages.
    pub is_in_pages: bool,
    /// Whether it lies in one page.
    pub is_one_page: bool,
    metadata: &'a [u8],
    fields: Range<usize>,
}

impl<'a> StoredView<'a> {
    /// Reads metadata; `None` if it is not of this layout, or if the response is one of several
    /// variants.
    pub fn of(metadata: &'a [u8]) -> Option<Self> {
        let sections = Sections::of(metadata)?;
        let mut fields = sections.rest..metadata.len();
        let facts = StoredFacts::from_bytes(metadata.get(1..1 + FACTS_BYTES)?)?;
        let (row, table) = (take(metadata, &mut fields)?, take(metadata, &mut fields)?);
        let varies = !row.is_empty() || !table.is_empty();
        (!varies).then_some(Self {
            facts,
            is_in_pages: sections.pages.is_some(),
            is_one_page: sections
                .pages
                .is_some_and(|table| PageTable::is_of_one_page(table.len())),
            metadata,
            fields,
        })
    }

    /// The next field in the order of [`StoredResponse::fields`]. `Ok(None)`: there are no more.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub fn next_field(&mut self) -> Result<Option<FieldView<'a>>, Damaged> {
        if self.fields.is_empty() {
            return Ok(None);
        }
        let mut next = || Some(&self.metadata[take(self.metadata, &mut self.fields)?]);
        match (next(), next()) {
            (Some(name), Some(value)) if !name.is_empty() => Ok(Some((name, value))),
            _ => Err(Damaged),
        }
    }
}

/// Name and value of a stored field.
pub(crate) type FieldView<'a> = (&'a [u8], &'a [u8]);

/// Metadata that does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

fn push(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend_from_slice(&u16::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

/// The stored fields, which are what is left of the metadata.
fn decode_fields(metadata: &Bytes, mut rest: Range<usize>) -> Option<HeaderMap> {
    // Our own fields and those of a site's rules fit as well: a map that grows is hashed anew.
    let mut fields = HeaderMap::with_capacity(16);
    while !rest.is_empty() {
        let name = take(metadata, &mut rest)?;
        let name = HeaderName::from_bytes(&metadata[name]).ok()?;
        let value = metadata.slice(take(metadata, &mut rest)?);
        fields.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(fields)
}

/// The place of a length-prefixed byte string at the start of `rest`, which then begins after it.
fn take(metadata: &[u8], rest: &mut Range<usize>) -> Option<Range<usize>> {
    let bytes = &metadata[rest.clone()];
    let length = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
    let start = rest.start + 2;
    let end = start + usize::from(length);
    if end > rest.end {
        return None;
    }
    rest.start = end;
    Some(start..end)
}

#[cfg(test)]
mod metadata_tests;
#[cfg(test)]
mod tests;
