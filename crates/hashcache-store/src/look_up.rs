//! Looks a request up in the store: finds the variant that answers it, if any (RFC 9111 4.1).
//!
//! Called by `request` in the proxy as the first step, and again when the fetch of another request
//! has changed the stored response.
//!
//! Invariant: a variant is found in two cases only. Either the variant's own vary row matches the
//! request and the request accepts the content coding (an origin may negotiate the coding without
//! naming Accept-Encoding in Vary); or the table under the cache key records that upstream named
//! exactly this version for such requests. Cost: one lookup in the engine for a response without
//! Vary and for the first variant; two for the other variants.

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
        /// The response, without the content.
        stored: StoredResponse,
        /// The names in the store.
        place: ObjectPlace,
        /// Where the response head was found.
        from: HitSource,
    },
    /// Only other variants are stored. The variant for this request would be stored at `place`.
    VaryMiss {
        /// Where the variant for this request would be stored.
        place: ObjectPlace,
        /// The table of the stored variants.
        table: Option<VariantTable>,
    },
    /// Nothing is stored; the response would be stored at this place.
    Nothing(ObjectPlace),
}

/// Where a stored response's head was found.
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

/// As [`look_up`], but leaves no trace in the store ([`Cache::peek`]).
pub async fn peek(cache: &Cache, key: impl Into<Bytes>, fields: &HeaderMap) -> StoreLookup {
    find(|name| cache.peek(name), key.into(), fields).await
}

async fn find(get: impl Fn(&[u8]) -> Lookup, key: Bytes, fields: &HeaderMap) -> StoreLookup {
    let place = ObjectPlace::from_key(key);
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

/// Returns the variant that is stored under the key itself, whatever requests it answers; this is
/// the only response if the resource does not vary. Lookups for a request read this object too.
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

/// Returns true if a stored response answers requests with these fields: the vary row matches, and
/// the request accepts the content coding.
pub fn matches(stored: &StoredResponse, fields: &HeaderMap) -> bool {
    stored.row.as_ref().is_none_or(|row| row.matches(fields))
        && coding_fits(&stored.facts, &stored.fields, fields)
}

/// Returns true if a table row's object answers requests with the values in that row.
fn answers(row: &Variant, hit: &Hit, stored: &StoredResponse, fields: &HeaderMap) -> bool {
    let named = row.alias && row.version == hit.version().to_u64();
    named || matches(stored, fields)
}

/// Returns the stored response, unless content is missing that cannot be added. Missing content can
/// be added only with a strong validator, and only if the content is stored unpacked.
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
