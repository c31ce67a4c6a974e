//! Variants of a URL: where a response is stored, and which variant a 304 selects (RFC 9111 4.1,
//! 4.3.3).
//!
//! Called by `fetch`. The rules for the table are in `hashcache_http::VariantTable`.
//!
//! Invariants: a response is added only to a variant table that existed before the request was
//! sent, so that an invalidation since then covers it. Updates to the head stored under a name are
//! serialized.
//! Cost: for a response with Vary that is stored next to others, one lookup of the key; for a new
//! row, one rewritten head.

use std::rc::Rc;

use hashcache::{Hit, HourChange, Intent, Update, Updated, Version};
use hashcache_base::share::Network;
use hashcache_http::{Variant, VariantPlace, VariantTable, Vary, not_modified_confirms};
use hashcache_store::{ObjectPlace, StoredResponse};
use hashcache_upstream::UpstreamExchange;
use http::header::{ETAG, HeaderMap};

use super::mark::fresh_until;
use super::spec::{FetchSpec, SelectedResponse};
use crate::worker::Worker;

/// The intents of a fetch, drawn before the request was sent.
pub(super) struct Intents {
    /// For the object under the cache key.
    key: Option<Intent>,
    /// For the requested variant, if it is stored under another name.
    variant: Option<Intent>,
}

impl Intents {
    pub(super) fn draw(worker: &Worker, spec: &FetchSpec) -> Self {
        let place = &spec.place;
        let draw = |name: &[u8]| intend(worker, name, spec.replaces.as_ref());
        Self {
            key: draw(&place.key),
            variant: if place.is_under_key() {
                None
            } else {
                draw(&place.name)
            },
        }
    }
}

impl Intents {
    /// A version drawn before the request was sent, if there was one.
    pub(super) fn drawn(&self) -> Option<Version> {
        let any = self.key.as_ref().or(self.variant.as_ref());
        any.map(Intent::version)
    }
}

fn intend(worker: &Worker, name: &[u8], replaces: Option<&Hit>) -> Option<Intent> {
    let intent = worker.cache.intend(name).ok()?;
    Some(match replaces {
        Some(hit) => intent.replacing(hit),
        None => intent,
    })
}

/// The place where a response would be stored.
pub(super) struct PutPlan {
    pub(super) place: ObjectPlace,
    pub(super) intent: Option<Intent>,
    /// The variant table to store with the response, without the response's own row.
    table: Option<VariantTable>,
    /// The hash of the request's values, in that table or in the table under the key.
    values: u64,
    /// True if the response gets a row in the table under the key.
    beside: bool,
    client: Network,
}

/// A row for the table under a key.
pub(super) struct NewRow {
    nonce: u64,
    row: Variant,
}

impl PutPlan {
    fn under_key(place: ObjectPlace, intent: Option<Intent>, client: Network) -> Self {
        Self {
            place: ObjectPlace::from_key(place.key),
            intent,
            table: None,
            values: 0,
            beside: false,
            client,
        }
    }

    fn row(&self, fields: &HeaderMap, nonce: u64, place: VariantPlace) -> Option<Variant> {
        let etag = fields.get(ETAG).map(|etag| etag.as_bytes().into());
        Some(Variant {
            values: self.values,
            place,
            version: self.intent.as_ref()?.version().to_u64(),
            alias: false,
            client: self.client.tag(nonce),
            etag,
        })
    }

    /// The variant table in the metadata of a response with these fields.
    pub(super) fn table_with(&self, fields: &HeaderMap) -> Option<VariantTable> {
        let mut table = self.table.clone()?;
        table.set(self.row(fields, table.nonce(), VariantPlace::Here)?);
        Some(table)
    }

    /// The row of a response with these fields in the table under the key.
    pub(super) fn new_row(&self, fields: &HeaderMap) -> Option<NewRow> {
        let nonce = self.place.nonce.filter(|_| self.beside)?;
        let row = self.row(fields, nonce, VariantPlace::Derived(self.values))?;
        Some(NewRow { nonce, row })
    }
}

/// Decides where a response is stored: in a row of the table under the key if it fits into one,
/// otherwise under the key. `shared`: followers wait for this response; then nothing was stored
/// under the key a moment ago.
pub(super) async fn plan_put(
    worker: &Worker,
    spec: &FetchSpec,
    exchange: &UpstreamExchange,
    intents: Intents,
    shared: bool,
) -> PutPlan {
    let names = Vary::parse(exchange.response.headers()).into_names();
    let (place, client) = (spec.place.clone(), spec.share.network());
    let may_be_there = place.nonce.is_some() || (!names.is_empty() && !shared);
    let stored = if may_be_there {
        under_key(worker, spec, &intents).await
    } else {
        None
    };
    let Some((hit, first, table)) = stored else {
        let mut plan = PutPlan::under_key(place, intents.key, client);
        begin_table(worker, &mut plan, &names, spec);
        return plan;
    };
    let values = table.values(&spec.fields).filter(|_| table.covers(&names));
    let own = first.row.is_none_or(|row| row.matches(&spec.fields));
    let row = values.and_then(|values| table.find(values));
    let is_first = own && row.is_some_and(|row| row.place == VariantPlace::Here);
    match values {
        Some(values) if !is_first => {
            let seen = place.name.clone();
            let place = place.within(&table, VariantPlace::Derived(values));
            let intent = match intents.variant {
                Some(intent) if place.name == seen => Some(intent),
                _ => intend(worker, &place.name, spec.replaces.as_ref()),
            };
            PutPlan {
                place,
                intent,
                table: None,
                values,
                beside: true,
                client,
            }
        }
        // The response under the key is replaced. The new response becomes the first variant in the
        // table, unless it has no Vary, or a Vary that the table does not cover.
        values => {
            let intent = intents.key.map(|intent| intent.replacing(&hit));
            let mut plan = PutPlan::under_key(place, intent, client);
            match values {
                Some(values) if !names.is_empty() => {
                    (plan.table, plan.values) = (Some(table), values);
                }
                Some(_) => {}
                None => begin_table(worker, &mut plan, &table.widened(&names), spec),
            }
            plan
        }
    }
}

/// The variant table under the key, if it existed when these intents were drawn. A purge since then
/// would have removed it, and the response must not outlive that purge.
async fn under_key(
    worker: &Worker,
    spec: &FetchSpec,
    intents: &Intents,
) -> Option<(Hit, StoredResponse, VariantTable)> {
    let hit = hashcache_store::find(&worker.cache, &spec.place.key).await?;
    let mut stored = StoredResponse::decode(hit.metadata())?;
    let table = stored.table.take()?;
    let drawn = intents.key.as_ref()?.version();
    let was_there = spec.place.nonce == Some(table.nonce()) || hit.version() < drawn;
    was_there.then_some((hit, stored, table))
}

fn begin_table(worker: &Worker, plan: &mut PutPlan, names: &[http::HeaderName], spec: &FetchSpec) {
    let Some(intent) = plan.intent.as_ref().filter(|_| !names.is_empty()) else {
        return;
    };
    let nonce = worker.common.collapse.nonce(intent.version().to_u64());
    let table = VariantTable::new(nonce, names);
    let values = table.values(&spec.fields);
    (plan.table, plan.values) = (values.map(|_| table), values.unwrap_or(0));
}

/// Changes the head stored under `name` if it still has this version. `None` if it has not, if
/// `change` returns false, or if the store refuses.
pub(super) async fn change(
    worker: &Worker,
    name: &[u8],
    version: Option<u64>,
    change: impl FnOnce(&mut StoredResponse) -> bool,
) -> Option<StoredResponse> {
    change_as_of(worker, name, version, None, change).await
}

/// As [`change`], after a request to upstream that was sent since `as_of` was drawn: invalidations
/// before `as_of` no longer make the response stale.
pub(super) async fn change_as_of(
    worker: &Worker,
    name: &[u8],
    version: Option<u64>,
    as_of: Option<Version>,
    change: impl FnOnce(&mut StoredResponse) -> bool,
) -> Option<StoredResponse> {
    let _alone = worker.common.collapse.head(name).await;
    let hit = hashcache_store::find(&worker.cache, name).await?;
    if version.is_some_and(|version| version != hit.version().to_u64()) {
        return None;
    }
    let mut stored = StoredResponse::decode(hit.metadata())?;
    if !change(&mut stored) {
        return None;
    }
    let update = Update {
        confirmed: as_of,
        fresh_until: HourChange::Set(fresh_until(&stored.facts, worker.common.now())),
        ..Update::metadata(stored.encode()?)
    };
    let updated = worker.cache.update(name, hit.version(), update);
    matches!(updated.await, Updated::Done).then_some(stored)
}

/// Adds a row to the table under a key, if it is still the table for which the row was made.
pub(super) async fn add_row(worker: &Worker, key: &[u8], new: NewRow) {
    let added = change(worker, key, None, |first| {
        let table = first.table.as_mut();
        let table = table.filter(|table| table.nonce() == new.nonce);
        table.map(|table| table.set(new.row)).is_some()
    });
    if added.await.is_none() {
        tracing::debug!("no row for another variant: what lay under the key is gone");
    }
}

/// The rows with objects that still exist, as far as the index knows.
pub(crate) fn with_objects(
    worker: &Worker,
    place: &ObjectPlace,
    mut table: VariantTable,
) -> VariantTable {
    let names = table.clone();
    table.retain(|row| {
        let at = place.clone().within(&names, row.place);
        worker.cache.contains_hint(&at.name)
    });
    table
}

/// The stored variant that a 304 selects, after a request that named all variants.
pub(super) async fn chosen(
    worker: &Rc<Worker>,
    spec: &FetchSpec,
    choices: &VariantTable,
    not_modified: &HeaderMap,
) -> Option<Box<SelectedResponse>> {
    let row = choices.chosen(not_modified.get(ETAG))?;
    let place = spec.place.clone().within(choices, row.place);
    let found = hashcache_store::find(&worker.cache, &place.name).await;
    let found = found.filter(|hit| hit.version().to_u64() == row.version && hit.is_complete());
    let stored = found.and_then(|hit| Some((StoredResponse::decode(hit.metadata())?, hit)));
    let Some((stored, hit)) = stored else {
        let forget = |first: &mut StoredResponse| {
            let table = first.table.as_mut();
            let table = table.filter(|table| table.nonce() == choices.nonce());
            table.map(|table| table.forget(row.place)).is_some()
        };
        change(worker, &place.key, None, forget).await;
        return None;
    };
    if !not_modified_confirms(&stored.fields, not_modified) {
        return None;
    }
    let alias = Variant {
        values: choices.values(&spec.fields)?,
        alias: true,
        client: spec.share.network().tag(choices.nonce()),
        ..row.clone()
    };
    Some(Box::new(SelectedResponse {
        hit,
        stored,
        place,
        alias: Some(alias),
    }))
}

impl SelectedResponse {
    /// The row with which this response answers requests like the request that confirmed it.
    pub(super) fn new_row(&self) -> Option<NewRow> {
        let (nonce, row) = (self.place.nonce?, self.alias.clone()?);
        Some(NewRow { nonce, row })
    }
}
