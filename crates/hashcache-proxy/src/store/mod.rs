//! Stored responses: a response as an object of the engine, and back.
//!
//! The content is the object's content. Everything else is its metadata, laid out so that a hit
//! reads numbers instead of parsing fields:
//!
//! ```text
//! layout 1 | facts 48 | row length 2 | vary row | table length 2 | variant table | fields
//! field: name length 2 | name | value length 2 | value
//! ```
//!
//! The numbers are lengths in bytes; the layout byte is [`LAYOUT`].
//!
//! The first response of a URL with Vary is stored under the cache key and holds the variant table;
//! the others are stored under names derived from the key ([`ObjectPlace`]).
//!
//! Called by `request` and `fetch`.
//!
//! Invariant: metadata that does not decode is a miss; it never becomes a response. Cost: one pass
//! over the fields; values are slices of the metadata, not copies.

mod look_up;
mod place;

use std::ops::Range;

use bytes::Bytes;
use hashcache::{Cache, Hit, Lookup};
use hashcache_http::{FACTS_BYTES, StoredFacts, VariantTable, VaryRow};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) use self::look_up::{HitSource, StoreLookup, first_variant, look_up};
pub(crate) use self::place::ObjectPlace;

/// The metadata layout of this build, the only one that it reads.
const LAYOUT: u8 = 2;

/// The object of this name, from memory or from the disk.
pub(crate) async fn find(cache: &Cache, name: &[u8]) -> Option<Hit> {
    match cache.get(name) {
        Lookup::Hit(hit) => Some(hit),
        Lookup::Miss => None,
        Lookup::Pending(pending) => pending.await,
    }
}

/// A stored response without its content.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    /// The numbers that the caching rules need.
    pub(crate) facts: StoredFacts,
    /// The request fields that selected this variant.
    pub(crate) row: Option<VaryRow>,
    /// The other variants; only in the object under the cache key.
    pub(crate) table: Option<VariantTable>,
    /// Its fields, without the hop-by-hop fields.
    pub(crate) fields: HeaderMap,
}

impl StoredResponse {
    /// The metadata; `None` if it is larger than the engine accepts.
    pub(crate) fn encode(&self) -> Option<Bytes> {
        let mut out = Vec::with_capacity(512);
        out.push(LAYOUT);
        out.extend_from_slice(&self.facts.to_bytes());
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

    /// Decodes metadata; `None` if it is not of this layout.
    pub(crate) fn decode(metadata: &Bytes) -> Option<Self> {
        if metadata.first() != Some(&LAYOUT) {
            return None;
        }
        let facts = StoredFacts::from_bytes(metadata.get(1..1 + FACTS_BYTES)?)?;
        let mut rest = 1 + FACTS_BYTES..metadata.len();
        let row = match &metadata[take(metadata, &mut rest)?] {
            [] => None,
            row => Some(VaryRow::from_bytes(row)?),
        };
        let table = match &metadata[take(metadata, &mut rest)?] {
            [] => None,
            table => Some(VariantTable::from_bytes(table)?),
        };
        // Our own fields and those of a site's rules fit as well: a map that grows is hashed anew.
        let mut fields = HeaderMap::with_capacity(16);
        while !rest.is_empty() {
            let name = take(metadata, &mut rest)?;
            let name = HeaderName::from_bytes(&metadata[name]).ok()?;
            let value = metadata.slice(take(metadata, &mut rest)?);
            fields.append(name, HeaderValue::from_maybe_shared(value).ok()?);
        }
        Some(Self {
            facts,
            row,
            table,
            fields,
        })
    }
}

fn push(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend_from_slice(&u16::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
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
mod tests {
    use hashcache_http::{
        Exchange, Storable, StoreOptions, Target, UnixTime, Variant, VariantPlace, storable,
    };
    use http::{Method, StatusCode};

    use super::*;

    fn sample() -> StoredResponse {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("cache-control", "max-age=60"),
            ("vary", "accept-language"),
            ("x-two", "1"),
            ("x-two", "2"),
            ("etag", "\"a\""),
        ] {
            fields.append(name, HeaderValue::from_static(value));
        }
        let mut request = HeaderMap::new();
        request.insert("accept-language", HeaderValue::from_static("sw, fr"));
        let exchange = Exchange {
            target: &Target::parse_url("http://h/").unwrap(),
            method: &Method::GET,
            request: &request,
            status: StatusCode::OK,
            response: &fields,
            request_time: UnixTime(1),
            response_time: UnixTime(2),
        };
        let Storable::Whole { facts, row } = storable(&exchange, &StoreOptions::default()) else {
            panic!("it is storable")
        };
        let mut table = VariantTable::new(7, &[http::header::ACCEPT_LANGUAGE]);
        table.set(Variant {
            values: 1,
            place: VariantPlace::Here,
            version: 2,
            alias: false,
            client: 0,
            etag: Some((*b"\"a\"").into()),
        });
        StoredResponse {
            facts,
            row,
            table: Some(table),
            fields,
        }
    }

    #[test]
    fn a_response_comes_back_as_it_was_stored() {
        let response = sample();
        let back = StoredResponse::decode(&response.encode().unwrap()).unwrap();
        assert_eq!(back.facts, response.facts);
        assert_eq!(back.row, response.row);
        assert_eq!(back.table, response.table);
        assert_eq!(back.fields, response.fields);
        assert!(back.row.is_some());
    }

    #[test]
    fn metadata_that_was_cut_or_altered_never_panics() {
        let whole = sample().encode().unwrap();
        for length in 0..whole.len() {
            let _ = StoredResponse::decode(&whole.slice(..length));
        }
        for at in 0..whole.len() {
            let mut bad = whole.to_vec();
            bad[at] ^= 0xff;
            let _ = StoredResponse::decode(&bad.into());
        }
        assert!(StoredResponse::decode(&Bytes::new()).is_none());
    }

    #[test]
    fn a_head_too_large_for_the_engine_is_not_stored() {
        let mut response = sample();
        response
            .fields
            .insert("x", HeaderValue::from_str(&"v".repeat(66_000)).unwrap());
        assert!(response.encode().is_none());
    }
}
