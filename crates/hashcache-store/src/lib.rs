//! Stored responses: encodes a response as an engine object, and decodes the object.
//!
//! The response content is the object's content. Everything else is stored as metadata, in a layout
//! that gives a hit numbers instead of fields to parse:
//!
//! ```text
//! layout 1 | facts 48 | digest 32 | page table | row length 2 | vary row | table length 2 |
//! variant table | fields
//!
//! field: name length 2 | name | value length 2 | value
//! ```
//!
//! The numbers are lengths in bytes. There are three layout bytes: `WITH_PAGES`; `WITH_DIGEST`,
//! which has no page table ([`PageTable`]); and `PLAIN`, which has no digest either. The digest is
//! the SHA-256 of the content, which boxes with a link store; the digest is zero while the content
//! is incomplete or if the digest is unknown. With a page table, the object's content is the stored
//! form of pages, so the length of the response content is [`StoredResponse::content_len`].
//!
//! The first response for a URL with Vary is stored under the cache key and holds the variant
//! table; the other variants are stored under names derived from the key ([`ObjectPlace`]).
//!
//! `look_up` finds a stored response, `put` stores a response, and `follow` reads it while it is
//! being stored. The other modules work on all stored responses: `collapse` and `in_flight_ranges`
//! (one fetch for many clients), `page_groups` (which responses are stored side by side), `purge`
//! (removal), `summary` (the digest for peers), `not_stored` (why a response was not stored).
//!
//! Called by `request` and `fetch` in the proxy, and by `hashcache-link` for the dictionaries.
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

/// The metadata layouts. This build reads no others.
const PLAIN: u8 = 2;
const WITH_DIGEST: u8 = 3;
const WITH_PAGES: u8 = 4;

/// Digest position in the metadata.
const DIGEST: Range<usize> = 1 + FACTS_BYTES..1 + FACTS_BYTES + 32;

/// The digest for incomplete content.
pub const UNKNOWN_DIGEST: Digest = Digest([0; 32]);

/// Returns the `metadata` of a put, completed after the content is complete: with the digest, and
/// with the page table if the put announced a table. `None`: there is nothing to add, or no place
/// for it.
pub(crate) fn finished(
    metadata: &[u8],
    digest: Option<Digest>,
    pages: Option<&PageTable>,
) -> Option<Bytes> {
    let announced = Sections::from_metadata(metadata)?;
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

/// The name under which a parent keeps content that a newer version has replaced. The digest is in
/// the name, so a child can still use that content as a dictionary. The origin ([`origin_key`]) is
/// in it too, so that a digest never finds content from another origin. No cache key starts with
/// these bytes.
///
/// [`origin_key`]: hashcache_http::origin_key
pub fn kept_name(origin: &[u8], digest: Digest) -> Vec<u8> {
    [b"\0v", &digest.0[..], origin].concat()
}

/// Returns true if the metadata has a place for a digest.
pub fn announces_digest(metadata: &[u8]) -> bool {
    matches!(metadata.first(), Some(&(WITH_DIGEST | WITH_PAGES)))
}

/// Section positions in the metadata.
struct Sections {
    digest: Option<Range<usize>>,
    pages: Option<Range<usize>>,
    /// Start of the vary row.
    rest: usize,
}

impl Sections {
    /// Locates the sections; `None` if the layout is unknown.
    fn from_metadata(metadata: &[u8]) -> Option<Self> {
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

/// Finds the object `name` in memory or on the disk.
pub async fn find(cache: &Cache, name: &[u8]) -> Option<Hit> {
    match cache.get(name) {
        Lookup::Hit(hit) => Some(hit),
        Lookup::Miss => None,
        Lookup::Pending(pending) => pending.await,
    }
}

/// A stored response without the content.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The numbers that the caching rules need.
    pub facts: StoredFacts,
    /// The request fields that selected this variant.
    pub row: Option<VaryRow>,
    /// The other variants; only in the object under the cache key.
    pub table: Option<VariantTable>,
    /// The stored fields, without the hop-by-hop fields.
    pub fields: HeaderMap,
    /// SHA-256 of the content.
    pub digest: Option<Digest>,
    /// The content's page table; `None`: the content is stored unpacked, as it was received.
    pub pages: Option<PageTable>,
}

impl StoredResponse {
    /// Content length in bytes, if known; `hit` is the object that holds the content.
    pub fn content_len(&self, hit: &Hit) -> Option<u64> {
        match &self.pages {
            Some(pages) => Some(pages.content_len()),
            None => hit.content_len(),
        }
    }

    /// Encodes the metadata; `None` if it is larger than the engine accepts.
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

    /// Decodes only the stored fields. This also works for a put with an incomplete page table.
    pub fn decode_fields(metadata: &Bytes) -> Option<HeaderMap> {
        let sections = Sections::from_metadata(metadata)?;
        let mut rest = sections.rest..metadata.len();
        let (_row, _table) = (take(metadata, &mut rest)?, take(metadata, &mut rest)?);
        decode_fields(metadata, rest)
    }

    /// Decodes metadata; `None` if the layout is unknown or the metadata is damaged.
    pub fn decode(metadata: &Bytes) -> Option<Self> {
        let sections = Sections::from_metadata(metadata)?;
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

/// A stored response that does not vary, borrowed from the metadata: nothing is copied.
pub struct StoredView<'a> {
    /// The numbers that the caching rules need.
    pub facts: StoredFacts,
    /// True if the content is stored in pages.
    pub is_in_pages: bool,
    /// True if the content is stored in a single page.
    pub is_one_page: bool,
    metadata: &'a [u8],
    fields: Range<usize>,
}

impl<'a> StoredView<'a> {
    /// Reads metadata; `None` if the layout is unknown, or if the response is one of several
    /// variants.
    pub fn from_metadata(metadata: &'a [u8]) -> Option<Self> {
        let sections = Sections::from_metadata(metadata)?;
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

/// A stored field's name and value.
pub(crate) type FieldView<'a> = (&'a [u8], &'a [u8]);

/// Metadata that does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

fn push(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend_from_slice(&u16::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

/// Decodes the stored fields, which fill the remaining metadata.
fn decode_fields(metadata: &Bytes, mut rest: Range<usize>) -> Option<HeaderMap> {
    // Our own fields and the fields from a site's rules fit as well: a map that grows is hashed
    // anew.
    let mut fields = HeaderMap::with_capacity(16);
    while !rest.is_empty() {
        let name = take(metadata, &mut rest)?;
        let name = HeaderName::from_bytes(&metadata[name]).ok()?;
        let value = metadata.slice(take(metadata, &mut rest)?);
        fields.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(fields)
}

/// Returns where the length-prefixed byte string at the start of `rest` is, and moves `rest` behind
/// it.
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
