//! The effect of a 304, or of the response to a HEAD, on the stored response (RFC 9111 4.3.4,
//! 4.3.5).
//!
//! Called by `fetch` with the stored response that the 304 selects, and by `request` after a HEAD.
//!
//! Invariant: if the 304 forbids storing, or changes Vary, the response does not stay stored. The
//! content is still valid for the request that caused the validation.

use hashcache::{Hit, Storage, Version};
use hashcache_http::{
    Confirmation, FactFlags, LifetimeSource, RequestDirectives, Target, UnixTime, Vary, VaryRow,
    confirmed, for_its_client, is_keyed,
};
use hashcache_store::StoredResponse;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::FetchTask;
use super::ask::Answered;
use super::spec::{Fetched, SelectedResponse, requester};
use super::variant::{add_row, change, change_as_of};
use crate::worker::Worker;

/// Compares the response to a HEAD with the stored response to GET (RFC 9111 4.3.5). If both
/// describe the same content, the new fields replace the stored ones; if not, the stored response
/// is invalidated.
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
        value => {
            let stored = selected.stored.content_len(&selected.hit);
            value == stored.map(HeaderValue::from).as_ref()
        }
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
        stays = freshened(worker, target, stored, head, times);
        stays
    };
    change(worker, name, Some(version), fresh).await;
    if !stays {
        worker.cache.invalidate(name);
    }
}

/// Returns true if the response to `request` may update the stored fields. While the stored
/// response is fresh, a request with a field outside the cache key may not: no client needs the
/// update, and the origin may have copied that field into its response (cache poisoning).
/// Invalidation is always allowed, because it costs at most one fetch.
pub(super) fn may_rewrite(
    worker: &Worker,
    hit: &Hit,
    stored: &StoredResponse,
    request: &HeaderMap,
) -> bool {
    let needed = hit.is_made_stale()
        || hit.storage() == Storage::Memory
        || stored.facts.flags.has(FactFlags::NO_CACHE)
        || !stored.facts.is_fresh(worker.common.now());
    needed || is_keyed(request, &stored.fields)
}

/// The times at which a request was sent and the response received.
pub(crate) type Times = (UnixTime, UnixTime);

/// Updates the stored fields from a newer head for the same content. Returns false if the response
/// may no longer be stored, or if Vary has changed.
///
/// The fields of the request that caused the update do not count: the content belongs to an earlier
/// request, and the field kinds of that request are in the facts of the stored response.
pub(super) fn freshened(
    worker: &Worker,
    target: &Target,
    stored: &mut StoredResponse,
    newer: &HeaderMap,
    (request_time, response_time): Times,
) -> bool {
    let confirmation = Confirmation {
        target,
        newer,
        request_time,
        response_time,
    };
    let live = worker.common.live();
    let facts = (&stored.facts, &mut stored.fields);
    let Some(facts) = confirmed(&confirmation, facts, &live.store) else {
        return false;
    };
    stored.facts = facts;
    // The update may have given an error a negative lifetime. Then it needs a row that it lacks.
    let is_of_one = facts.lifetime.source == LifetimeSource::Negative;
    !is_of_one || stored.row.as_ref().is_some_and(VaryRow::is_of_all_fields)
}

/// Returns true if the request has credentials or `no-store`. Then a 304 counts for this request
/// only and must not change the responses to others.
fn is_private(request: &HeaderMap) -> bool {
    request.contains_key(AUTHORIZATION) || RequestDirectives::parse(request).no_store
}

impl FetchTask {
    /// Confirms the stored response by a 304 and answers with it. `as_of` was drawn before the
    /// request was sent upstream.
    pub(super) async fn confirm(
        self,
        (mut selected, as_of): (Box<SelectedResponse>, Option<Version>),
        answered: Box<Answered>,
        times: Times,
    ) {
        self.count(&answered.exchange.response);
        let (worker, spec) = (&self.worker, &self.spec);
        let next_hop = answered.next_hop;
        let (head, body) = answered.exchange.response.into_parts();
        drop(body);
        let fresh = |stored: &mut StoredResponse| {
            freshened(worker, &spec.target, stored, &head.headers, times)
        };
        // By the stored `Vary`, before the `Vary` of the 304 replaces it, because an override could
        // choose the new value. If requests with other fields stored the response, it belongs to
        // them, whatever `Vary` names.
        let varied = if selected.alias.is_some() {
            Vec::new()
        } else {
            Vary::parse(&selected.stored.fields).into_names()
        };
        let may_override = spec.may_override(worker, &varied);
        let rewrites = may_rewrite(worker, &selected.hit, &selected.stored, &spec.fields);
        let stays = fresh(&mut selected.stored);
        let name = &selected.place.name;
        let is_private = is_private(&spec.fields) || may_override;
        if !is_private && !stays {
            worker.cache.invalidate(name);
        } else if !is_private {
            // The update must be stored before the followers are informed, because they look it up.
            if rewrites {
                let version = selected.hit.version().to_u64();
                change_as_of(worker, name, Some(version), as_of, &fresh).await;
            }
            if let Some(row) = selected.new_row() {
                add_row(worker, &selected.place.key, row).await;
            }
        }
        if let Some(leader) = self.leader {
            let (from, requester) = (spec.client_and_origin(), requester(&spec.fields));
            if may_override {
                // A follower with such a field fetches for itself at once. The outcome gives no
                // information about the key.
                leader.for_one(requester);
            } else if is_private {
                // A leader that is dropped hands over to a follower.
                drop(leader);
            } else if stays {
                leader.validated(from, requester);
            } else {
                // Nothing is left in the store for the followers to look up.
                leader.not_shared(from, requester, Instant::now());
            }
        }
        for_its_client(&mut selected.stored.fields, &head.headers);
        let _ = self
            .reply
            .send(Ok(Fetched::Confirmed { selected, next_hop }));
    }
}
