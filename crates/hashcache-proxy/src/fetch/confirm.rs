//! What a 304, or the answer to a HEAD, does to what is stored (RFC 9111 4.3.4, 4.3.5).
//!
//! Called by `fetch` with the stored response that the 304 speaks of, by `request` after a HEAD.
//!
//! Invariant: what the 304 forbids to store, or selects by other fields than before, does not stay
//! stored; its content was still confirmed for the request that asked.

use std::rc::Rc;

use hashcache::{Hit, Version};
use hashcache_http::{
    FactFlags, RequestDirectives, Storable, Target, UnixTime, Vary, confirmed_lifetime,
    for_its_client, freshen, is_keyed, storable,
};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::counters::ByteCount;
use super::spec::{FetchSpec, Fetched, Reply, SelectedResponse};
use super::variant::{add_row, change, change_as_of};
use crate::collapse::Leader;
use crate::store::StoredResponse;
use crate::upstream::UpstreamExchange;
use crate::worker::Worker;

/// Holds the answer to a HEAD against what is stored for GET (RFC 9111 4.3.5). If it speaks of the
/// same content, its fields take the place of the stored ones; if not, what is stored is over.
pub(crate) async fn head_came(
    worker: &Worker,
    (target, request): (&Target, &HeaderMap),
    selected: &SelectedResponse,
    head: &HeaderMap,
    times: Times,
) {
    if is_private(request) {
        return;
    }
    let name = &selected.place.name;
    let length = match head.get(CONTENT_LENGTH) {
        None => true,
        value => value == selected.hit.content_len().map(HeaderValue::from).as_ref(),
    };
    let same = |name: HeaderName| match head.get(&name) {
        None => true,
        value => value == selected.stored.fields.get(&name),
    };
    if !length || !same(ETAG) || !same(LAST_MODIFIED) {
        worker.cache.invalidate(name);
        return;
    }
    if !may_rewrite(worker, &selected.hit, &selected.stored, request) {
        return;
    }
    let (version, mut stays) = (selected.hit.version().to_u64(), true);
    let fresh = |stored: &mut StoredResponse| {
        stays = freshened(worker, (target, request), stored, head, times);
        stays
    };
    change(worker, name, Some(version), fresh).await;
    if !stays {
        worker.cache.invalidate(name);
    }
}

/// Whether the response to a request may rewrite what is stored. While that is fresh, a field
/// outside the key forbids it: nobody needs the update, and the origin may have copied that field
/// into it. An entry that is over is removed all the same: that costs others a fetch at most.
pub(super) fn may_rewrite(
    worker: &Worker,
    hit: &Hit,
    stored: &StoredResponse,
    request: &HeaderMap,
) -> bool {
    let needed = hit.is_made_stale()
        || stored.facts.flags.has(FactFlags::NO_CACHE)
        || !stored.facts.is_fresh(worker.common.now());
    needed || is_keyed(request, &stored.fields)
}

/// When a request was sent and its answer came.
pub(crate) type Times = (UnixTime, UnixTime);

/// Takes over the fields of a newer head for the same content. False when the response may not be
/// stored any more, or depends on other fields of requests than before.
pub(super) fn freshened(
    worker: &Worker,
    (target, request): (&Target, &HeaderMap),
    stored: &mut StoredResponse,
    newer: &HeaderMap,
    (request_time, response_time): Times,
) -> bool {
    let varied = Vary::parse(&stored.fields);
    freshen(&mut stored.fields, newer, response_time);
    let nobody = HeaderMap::new();
    let request = match is_private(request) {
        true => &nobody,
        false => request,
    };
    let exchange = hashcache_http::Exchange {
        target,
        method: &Method::GET,
        request,
        status: stored.facts.status,
        response: &stored.fields,
        request_time,
        response_time,
    };
    let live = worker.common.live();
    let options = &live.store;
    // The row stays that of the request it was stored for.
    match storable(&exchange, options) {
        Storable::Whole { mut facts, .. } => {
            let before = stored.facts.lifetime;
            facts.lifetime = confirmed_lifetime(&exchange, before, facts.lifetime, options);
            stored.facts = facts;
            Vary::parse(&stored.fields) == varied
        }
        Storable::Partial { .. } | Storable::No(_) => false,
    }
}

/// Whether the answer to a request may not change what others are told: it has credentials, or is
/// to leave no trace. Then a 304 counts for that request alone.
fn is_private(request: &HeaderMap) -> bool {
    request.contains_key(AUTHORIZATION) || RequestDirectives::parse(request).no_store
}

/// Has a 304 confirm a stored response, and answers with that. The question was asked after the
/// version `as_of` was drawn.
pub(super) async fn confirm(
    worker: &Rc<Worker>,
    spec: &FetchSpec,
    (selected, as_of): (SelectedResponse, Option<Version>),
    exchange: UpstreamExchange,
    times: Times,
    (leader, reply, byte_count): (Option<Leader>, Reply, &ByteCount),
) {
    let peer = exchange.peer;
    let bytes = exchange.response.body().origin_bytes();
    byte_count.set(byte_count.get() + bytes);
    worker.metrics.fetched(bytes, 0);
    let (head, body) = exchange.response.into_parts();
    drop(body);
    let mut selected = selected;
    let asked = (&spec.target, &spec.fields);
    let fresh =
        |stored: &mut StoredResponse| freshened(worker, asked, stored, &head.headers, times);
    let rewrites = may_rewrite(worker, &selected.hit, &selected.stored, &spec.fields);
    let stays = fresh(&mut selected.stored);
    let name = &selected.place.name;
    match stays {
        _ if is_private(&spec.fields) => {}
        // Those who wait look again, so it must be there when they are told.
        true => {
            if rewrites {
                let version = selected.hit.version().to_u64();
                change_as_of(worker, name, (Some(version), as_of), &fresh).await;
            }
            if let Some(row) = selected.new_row() {
                add_row(worker, &selected.place.key, row).await;
            }
        }
        false => worker.cache.invalidate(name),
    }
    if let Some(leader) = leader {
        leader.validated(&spec.endpoint.authority.to_string());
    }
    for_its_client(&mut selected.stored.fields, &head.headers);
    let selected = Box::new(selected);
    let _ = reply.send(Ok(Fetched::Confirmed { selected, peer }));
}
