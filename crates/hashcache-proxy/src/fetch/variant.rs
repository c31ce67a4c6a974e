//! Which of several variants of a URL a response is: where it is stored, and what a 304 that
//! names one of them means (RFC 9111 4.1, 4.3.3).
//!
//! Called by `fetch`. The rules of the table are `hashcache_http::VariantTable`'s.
//!
//! Invariants: a response is stored beside others only in a table that was there when it was asked
//! for, so that none outlives an invalidation that came after the question; heads are changed one
//! at a time for each name. Cost: a look-up of the key for each response with Vary that is stored
//! beside others, and one rewritten head for each new row.

use std::rc::Rc;

use hashcache::{Hit, Intent, Updated, Version};
use hashcache_http::{Variant, VariantPlace, VariantTable, Vary, not_modified_confirms};
use http::header::{ETAG, HeaderMap};

use super::spec::{FetchSpec, SelectedResponse};
use crate::share::Network;
use crate::store::{self, ObjectPlace, StoredResponse};
use crate::upstream::UpstreamExchange;
use crate::worker::Worker;

/// The intents of a fetch, drawn before its request was sent.
pub(super) struct Intents {
    /// For what lies under the key.
    key: Option<Intent>,
    /// For the variant that was asked about, if that lies elsewhere.
    variant: Option<Intent>,
}

impl Intents {
    pub(super) fn draw(worker: &Worker, spec: &FetchSpec) -> Self {
        let place = &spec.place;
        let draw = |name: &[u8]| intend(worker, name, spec.replaces.as_ref());
        Self {
            key: draw(&place.key),
            variant: match place.is_under_key() {
                true => None,
                false => draw(&place.name),
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

/// Where a response is stored, should it be.
pub(super) struct PutPlan {
    pub(super) place: ObjectPlace,
    pub(super) intent: Option<Intent>,
    /// The table to be stored with it, without its own row.
    table: Option<VariantTable>,
    /// The hash of the request's values, in that table or the one under the key.
    values: u64,
    /// Whether it takes a row in the table under the key.
    beside: bool,
    client: Network,
}

/// A row to be added to the table under a key.
pub(super) struct NewRow {
    nonce: u64,
    row: Variant,
}

impl PutPlan {
    fn under_key(place: ObjectPlace, intent: Option<Intent>, client: Network) -> Self {
        Self {
            place: ObjectPlace::of(place.key),
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

    /// The table for the metadata of a response with these fields.
    pub(super) fn table_with(&self, fields: &HeaderMap) -> Option<VariantTable> {
        let mut table = self.table.clone()?;
        table.set(self.row(fields, table.nonce(), VariantPlace::Here)?);
        Some(table)
    }

    /// The row that a response with these fields takes in the table under the key.
    pub(super) fn new_row(&self, fields: &HeaderMap) -> Option<NewRow> {
        let nonce = self.place.nonce.filter(|_| self.beside)?;
        let row = self.row(fields, nonce, VariantPlace::Derived(self.values))?;
        Some(NewRow { nonce, row })
    }
}

/// Decides where the response is to be stored: under the key, where no table is that it could be
/// beside, else in a row of that. `shared`: others wait for this response; then nothing was there
/// a moment ago.
pub(super) async fn plan_put(
    worker: &Worker,
    spec: &FetchSpec,
    exchange: &UpstreamExchange,
    intents: Intents,
    shared: bool,
) -> PutPlan {
    let names = match Vary::parse(exchange.response.headers()) {
        Vary::Fields(names) => names,
        Vary::Nothing | Vary::TooWide | Vary::Anything => Vec::new(),
    };
    let (place, client) = (spec.place.clone(), spec.share.network());
    let may_be_there = place.nonce.is_some() || (!names.is_empty() && !shared);
    let stored = match may_be_there {
        true => under_key(worker, spec, &intents).await,
        false => None,
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
        // What lies under the key is replaced. It goes on as the first of its variants, unless it
        // does not vary any more, or by more than the table tells apart.
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

/// The table under the key, if a response to a question asked by these intents may be put beside
/// what is there: it was there when they were drawn. A purge since then would have taken it away.
async fn under_key(
    worker: &Worker,
    spec: &FetchSpec,
    intents: &Intents,
) -> Option<(Hit, StoredResponse, VariantTable)> {
    let hit = store::find(&worker.cache, &spec.place.key).await?;
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

/// Changes the head stored under `name`, if it is still this version; `None` when it is not, or
/// `change` says no, or the store refuses.
pub(super) async fn change(
    worker: &Worker,
    name: &[u8],
    version: Option<u64>,
    change: impl FnOnce(&mut StoredResponse) -> bool,
) -> Option<StoredResponse> {
    change_as_of(worker, name, (version, None), change).await
}

/// The same for who has asked upstream since `as_of` was drawn: what made it stale before that does
/// so no more.
pub(super) async fn change_as_of(
    worker: &Worker,
    name: &[u8],
    (version, as_of): (Option<u64>, Option<Version>),
    change: impl FnOnce(&mut StoredResponse) -> bool,
) -> Option<StoredResponse> {
    let _alone = worker.common.collapse.head(name).await;
    let hit = store::find(&worker.cache, name).await?;
    if version.is_some_and(|version| version != hit.version().to_u64()) {
        return None;
    }
    let mut stored = StoredResponse::decode(hit.metadata())?;
    if !change(&mut stored) {
        return None;
    }
    let metadata = stored.encode()?;
    let (cache, version) = (&worker.cache, hit.version());
    let updated = match as_of {
        Some(as_of) => cache.confirm_metadata(name, version, as_of, metadata),
        None => cache.update_metadata(name, version, metadata),
    };
    matches!(updated.await, Updated::Done).then_some(stored)
}

/// Adds a row to the table under a key, if that is still the one the row is meant for.
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

/// The rows whose objects are still there, as far as memory knows.
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

/// The stored response that a 304 to a question about all variants has named.
pub(super) async fn chosen(
    worker: &Rc<Worker>,
    spec: &FetchSpec,
    choices: &VariantTable,
    not_modified: &HeaderMap,
) -> Option<SelectedResponse> {
    let row = choices.chosen(not_modified.get(ETAG))?;
    let place = spec.place.clone().within(choices, row.place);
    let found = store::find(&worker.cache, &place.name).await;
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
    Some(SelectedResponse {
        hit,
        stored,
        place,
        alias: Some(alias),
    })
}

impl SelectedResponse {
    /// The row by which this response answers requests like the one that confirmed it.
    pub(super) fn new_row(&self) -> Option<NewRow> {
        let (nonce, row) = (self.place.nonce?, self.alias.clone()?);
        Some(NewRow { nonce, row })
    }
}
