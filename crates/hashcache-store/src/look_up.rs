//! Looking a request up in the store: which variant answers it, if any (RFC 9111 4.1).
//!
//! Called by `request` of the proxy as its first step, and again when another request's fetch has
//! changed the stored response.
//!
//! Invariant: a variant is found only if its own vary row matches the request and the request
//! accepts its content coding (an origin may negotiate it without saying so in Vary), or if the
//! table under the cache key says that upstream named this very version for such requests. Cost:
//! one lookup in the engine for a response without Vary and for the first variant; two for the
//! other variants.

use bytes::Bytes;
use hashcache::{Cache, Hit, Lookup};
use hashcache_http::{Variant, VariantPlace, VariantTable, coding_fits, if_range_value};
use http::HeaderMap;

use super::{ObjectPlace, StoredResponse};

/// Result of looking a request up in the store.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once or twice; a box would be an allocation a hit"
)]
pub enum StoreLookup {
    /// A response is stored for this request.
    Found {
        /// The object.
        hit: Hit,
        /// The response, without its content.
        stored: StoredResponse,
        /// Its names in the store.
        place: ObjectPlace,
        /// Where its head was.
        from: HitSource,
    },
    /// Only other variants are stored. The variant for this request would be stored at `place`.
    VaryMiss {
        /// Where the variant for this request would be.
        place: ObjectPlace,
        /// The variants that there are.
        table: Option<VariantTable>,
    },
    /// Nothing is stored, and would be here.
    Nothing(ObjectPlace),
}

/// Where the head of a stored response was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitSource {
    /// In memory: no read was needed.
    Memory,
    /// On the disk.
    Disk,
}

/// Finds the stored response that answers a request with these fields.
pub async fn look_up(cache: &Cache, key: impl Into<Bytes>, fields: &HeaderMap) -> StoreLookup {
    find(|name| cache.get(name), key.into(), fields).await
}

/// The same without a trace in the store ([`Cache::peek`]).
pub async fn peek(cache: &Cache, key: impl Into<Bytes>, fields: &HeaderMap) -> StoreLookup {
    find(|name| cache.peek(name), key.into(), fields).await
}

async fn find(get: impl Fn(&[u8]) -> Lookup, key: Bytes, fields: &HeaderMap) -> StoreLookup {
    let place = ObjectPlace::of(key);
    let Some((hit, mut stored, from)) = read(get(&place.key)).await else {
        return StoreLookup::Nothing(place);
    };
    let Some(table) = stored.table.take() else {
        return if matches(&stored, fields) {
            usable(hit, stored, place, from)
        } else {
            StoreLookup::VaryMiss { place, table: None }
        };
    };
    let Some(values) = table.values(fields) else {
        return StoreLookup::VaryMiss { place, table: None };
    };
    let row = table.find(values);
    let at = row.map_or(VariantPlace::Derived(values), |row| row.place);
    let found = match (row, at) {
        (Some(row), VariantPlace::Here) => {
            answers(row, &hit, &stored, fields).then_some((hit, stored, from))
        }
        (Some(row), VariantPlace::Derived(_)) => {
            let name = place.clone().within(&table, at).name;
            let read = read(get(&name)).await;
            read.filter(|(hit, stored, _)| answers(row, hit, stored, fields))
        }
        (None, _) => None,
    };
    if let Some((hit, stored, from)) = found {
        return usable(hit, stored, place.within(&table, at), from);
    }
    let place = place.within(&table, VariantPlace::Derived(values));
    StoreLookup::VaryMiss {
        place,
        table: Some(table),
    }
}

/// The variant that is stored under the key itself, whatever requests it answers; the only response
/// if it does not vary. Lookups for a request read it too.
pub async fn first_variant(cache: &Cache, key: &[u8]) -> Option<(Hit, StoredResponse)> {
    let (hit, stored, _) = read(cache.get(key)).await?;
    Some((hit, stored))
}

async fn read(lookup: Lookup) -> Option<(Hit, StoredResponse, HitSource)> {
    let (found, from) = match lookup {
        Lookup::Hit(hit) => (Some(hit), HitSource::Memory),
        Lookup::Miss => (None, HitSource::Memory),
        Lookup::Pending(pending) => (pending.await, HitSource::Disk),
    };
    let hit = found?;
    let stored = StoredResponse::decode(hit.metadata())?;
    hit.content_len()?;
    Some((hit, stored, from))
}

/// Whether a stored response is one for requests with these fields: its vary row matches, and they
/// accept its content coding.
pub fn matches(stored: &StoredResponse, fields: &HeaderMap) -> bool {
    stored.row.as_ref().is_none_or(|row| row.matches(fields))
        && coding_fits(&stored.facts, &stored.fields, fields)
}

/// Whether the object of a table row answers requests with the values of that row.
fn answers(row: &Variant, hit: &Hit, stored: &StoredResponse, fields: &HeaderMap) -> bool {
    let named = row.alias && row.version == hit.version().to_u64();
    named || matches(stored, fields)
}

/// The stored response, unless content is missing that cannot be added: adding needs a strong
/// validator, and content that is stored as it came.
fn usable(hit: Hit, stored: StoredResponse, place: ObjectPlace, from: HitSource) -> StoreLookup {
    let length = hit.content_len().unwrap_or(0);
    let is_fixed =
        stored.pages.is_some() || if_range_value(&stored.facts, &stored.fields).is_none();
    if is_fixed && !(hit.is_complete() && hit.holes(0..length).is_empty()) {
        return StoreLookup::Nothing(place);
    }
    StoreLookup::Found {
        hit,
        stored,
        place,
        from,
    }
}
