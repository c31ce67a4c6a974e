//! What the store has for a request: which variant, if any (RFC 9111 4.1).
//!
//! Called by `request` first of all, and again when somebody else's fetch has changed what is
//! stored.
//!
//! Invariant: a variant is found only if its own row matches the request, or the table under the
//! key says that upstream named this very version for such requests.
//! Cost: one look-up of the engine, for what does not vary and for the first variant; two for the
//! others.

use hashcache::{Hit, Lookup};
use hashcache_http::{Variant, VariantPlace, VariantTable, if_range_value};
use http::HeaderMap;

use crate::connection::Connection;
use crate::store::{ObjectPlace, StoredResponse};

/// What the store has for a request.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once or twice; a box would be an allocation a hit"
)]
pub(super) enum StoreLookup {
    Found {
        hit: Hit,
        stored: StoredResponse,
        place: ObjectPlace,
        from: HitSource,
    },
    /// Other variants alone. What the request asks for would lie at `place`.
    VaryMiss {
        place: ObjectPlace,
        table: Option<VariantTable>,
    },
    Nothing(ObjectPlace),
}

/// Where the head of a stored response was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitSource {
    Memory,
    Disk,
}

/// Looks for what answers a request with these fields.
pub(super) async fn look_up(
    connection: &Connection,
    key: &[u8],
    fields: &HeaderMap,
) -> StoreLookup {
    let place = ObjectPlace::of(key.to_vec());
    let Some((hit, mut stored, from)) = read(connection, key).await else {
        return StoreLookup::Nothing(place);
    };
    let Some(table) = stored.table.take() else {
        return match matches(&stored, fields) {
            true => usable(hit, stored, place, from),
            false => StoreLookup::VaryMiss { place, table: None },
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
            let read = read(connection, &name).await;
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

async fn read(connection: &Connection, name: &[u8]) -> Option<(Hit, StoredResponse, HitSource)> {
    let (found, from) = match connection.worker.cache.get(name) {
        Lookup::Hit(hit) => (Some(hit), HitSource::Memory),
        Lookup::Miss => (None, HitSource::Memory),
        Lookup::Pending(pending) => (pending.await, HitSource::Disk),
    };
    let hit = found?;
    let stored = StoredResponse::decode(hit.metadata())?;
    hit.content_len()?;
    Some((hit, stored, from))
}

fn matches(stored: &StoredResponse, fields: &HeaderMap) -> bool {
    stored.row.as_ref().is_none_or(|row| row.matches(fields))
}

/// Whether the object of a row answers requests with the row's values.
fn answers(row: &Variant, hit: &Hit, stored: &StoredResponse, fields: &HeaderMap) -> bool {
    let named = row.alias && row.version == hit.version().to_u64();
    named || matches(stored, fields)
}

/// What is found, unless some of it is missing and cannot be added: that needs a strong validator.
fn usable(hit: Hit, stored: StoredResponse, place: ObjectPlace, from: HitSource) -> StoreLookup {
    let length = hit.content_len().unwrap_or(0);
    if if_range_value(&stored.facts, &stored.fields).is_none()
        && !(hit.is_complete() && hit.holes(0..length).is_empty())
    {
        return StoreLookup::Nothing(place);
    }
    StoreLookup::Found {
        hit,
        stored,
        place,
        from,
    }
}
