//! Fetches objects that a parent's hints name, if they are not stored here, or not fresh.
//!
//! Called by `fetch` for each response of a parent that names other objects.
//!
//! Invariants: a hint causes nothing that the client of the page could not cause: the target has
//! the page's origin, and the request has no cookies. No fetch starts while the client of the page
//! has used up that client's share of memory, and at most [`HINTED_MAX`] run at once. If the head
//! shows that the content is long or of unknown length, the fetch is given up.
//! Cost: one task with one lookup in the store, and the memory of a fetch, per hint.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use hashcache_base::share;
use hashcache_base::task::spawn_local;
use hashcache_http::{HintUse, OnError, RequestFacts, Reuse, Space, cache_key, reuse};
use hashcache_link::counters::LinkCounters;
use hashcache_link::hints::Hints;
use hashcache_store::collapse::{Background, BackgroundBound, Role};
use hashcache_store::{ObjectPlace, StoreLookup, look_up};
use hashcache_upstream::pinned::Pinning;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue,
    REFERER, USER_AGENT,
};
use http::{Method, Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::counters::ByteCount;
use super::{Cause, Extent, FetchSpec, FetchTask, SelectedResponse, requester};
use crate::route::Siblings;
use crate::worker::Worker;

/// Fetches the objects that the hints name for the page of `spec`, each in a separate task.
pub(super) fn follow(worker: &Rc<Worker>, spec: &FetchSpec, hints: &Hints) {
    // A parent may send names although none were requested.
    if spec.hints(worker) != HintUse::Wanted || worker.common.is_reverse() {
        return;
    }
    for target in hints.related.targets(&spec.target) {
        let key = cache_key(Space::Own, &target);
        // So a parent names nothing that the client of the page could not request, and the checks
        // of that client's request are valid for this request too.
        let Some(key) = key
            .map(Bytes::from)
            .filter(|_| target.same_origin(&spec.target))
        else {
            continue;
        };
        let collapse = &worker.common.collapse;
        let of = (spec.share.network(), &target.authority);
        let Some(counted) = collapse.in_background(Background::Hint, of, HINTED_MAX) else {
            return;
        };
        let Some(memory) = share::reserve_for(Some(&spec.share), &worker.cache, FETCH_BYTES) else {
            return;
        };
        let fetching = FetchSpec {
            ends: spec.ends,
            share: spec.share.clone(),
            space: Space::Own,
            place: ObjectPlace::from_key(key.clone()),
            route: Ok(None),
            siblings: Siblings::NotAsked,
            fields: fields_for(spec),
            target,
            version: spec.version,
            noted_group: None,
            selected: None,
            choices: None,
            on_error: OnError::Fail,
            replaces: None,
            extent: Extent::AsAsked,
            informational: None,
            pinning: Pinning::None,
            cause: Cause::Hint,
        };
        let (worker, counters) = (Rc::clone(worker), Arc::clone(&hints.counters));
        spawn_local(async move {
            if let Some(fetching) = lacking(&worker, key, fetching).await {
                run(worker, Box::new(fetching), &counters).await;
            }
            drop((counted, memory));
        });
    }
}

/// Returns true if the response to a hinted request is worth the bytes.
pub(super) fn is_wanted<B>(response: &Response<B>) -> bool {
    let length = response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    response.status() == StatusCode::NOT_MODIFIED
        || length.is_some_and(|length| length <= HINTED_BYTES_MAX)
}

/// The fields of a request for a page's object, as a browser would send them, but without cookies.
fn fields_for(spec: &FetchSpec) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for name in HINTED_FIELDS {
        if let Some(value) = spec.fields.get(&name) {
            fields.insert(name, value.clone());
        }
    }
    fields.insert(ACCEPT, HeaderValue::from_static("*/*"));
    if let Ok(page) = HeaderValue::try_from(spec.target.to_string()) {
        fields.insert(REFERER, page);
    }
    fields
}

/// The fetch that is needed for a request with the fields of `spec`; `None` if a stored response
/// answers it.
async fn lacking(worker: &Worker, key: Bytes, spec: FetchSpec) -> Option<FetchSpec> {
    match look_up(&worker.cache, key, &spec.fields).await {
        StoreLookup::Nothing(place) | StoreLookup::VaryMiss { place, .. } => {
            Some(FetchSpec { place, ..spec })
        }
        StoreLookup::Found {
            hit, stored, place, ..
        } => {
            let facts = RequestFacts::new(&Method::GET, &spec.fields);
            let options = worker.common.live().reuse;
            let reuse = reuse(&facts, &stored.facts, worker.common.now(), &options);
            match reuse {
                Reuse::Fresh { .. } | Reuse::Stale { .. } if !hit.is_made_stale() => None,
                Reuse::Unsatisfiable => None,
                Reuse::Miss { .. } => Some(FetchSpec {
                    place,
                    replaces: Some(hit),
                    ..spec
                }),
                _ => Some(FetchSpec {
                    place: place.clone(),
                    replaces: Some(hit.clone()),
                    selected: Some(Box::new(SelectedResponse {
                        hit,
                        stored,
                        place,
                        alias: None,
                    })),
                    on_error: OnError::ServeIfError,
                    ..spec
                }),
            }
        }
    }
}

/// Runs the fetch, unless another request already fetches the resource.
async fn run(worker: Rc<Worker>, spec: Box<FetchSpec>, counters: &LinkCounters) {
    let (now, collapse) = (Instant::now(), &worker.common.collapse);
    if collapse.failed_lately(&spec.place.name, now) {
        return;
    }
    let Role::Leader(leader) = collapse.join(&spec.place.name, requester(&spec.fields), now) else {
        return;
    };
    counters.coding.hint_followed();
    let (reply, _) = oneshot::channel();
    let task = FetchTask {
        worker,
        spec,
        leader: Some(leader),
        reply,
        byte_count: ByteCount::default(),
    };
    Box::pin(task.run()).await;
}

/// Fields that are copied from the page request into a request for the page's objects.
pub(crate) const HINTED_FIELDS: [HeaderName; 3] = [ACCEPT_ENCODING, ACCEPT_LANGUAGE, USER_AGENT];
/// The longest object that is named and fetched, bytes: a parent names more than a client may need.
pub(crate) const HINTED_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of fetches because of hints, on all cores. A page may have as many as
/// [`RELATED_MAX`].
///
/// [`RELATED_MAX`]: hashcache_http::RELATED_MAX
const HINTED_MAX: BackgroundBound = BackgroundBound {
    all: 64,
    of_one: 32,
};
/// Memory of a fetch without the connection and the content.
const FETCH_BYTES: u64 = 24 << 10;
