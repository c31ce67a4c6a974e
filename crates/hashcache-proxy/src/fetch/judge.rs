//! Decides about a response: store it whole or as a range, forward it, or send the request again.
//!
//! Called by `fetch` when the head of a response has arrived; calls `hashcache_http::storable` and
//! starts the put.
//!
//! Invariant: a put starts only for responses that the rules allow to be stored, at the place that
//! `variant` chooses.

use std::sync::Once;

use bytes::Bytes;
use hashcache::{Hit, Keep, Put, PutError, Reservation, Storage};
use hashcache_base::share::reserve_for;
use hashcache_http::{
    ContentRange, NotStored, ResponseDirectives, Storable, StoredFacts, UnixTime, VaryRow,
    covers_whole, ensure_date, fields_to_store, if_range_value, remove_content_digests, storable,
};
use hashcache_site::encode::{LENGTH_MIN, is_plain_text};
use hashcache_store::in_flight_ranges::{AwaitedRange, RangeClaim};
use hashcache_store::page_groups::PageRequest;
use hashcache_store::purge::labels_of;
use hashcache_store::put::{ContentWriter, page_memory};
use hashcache_store::{ObjectPlace, PACKED_BYTES_MAX, PageTable, StoredResponse};
use hashcache_upstream::UpstreamExchange;
use hashcache_wan::pages::{PACKER_BYTES, Packer};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::Instant;
use tracing::info;

use super::fields::WasPart;
use super::mark::{fresh_until, mark};
use super::spec::{Extent, FetchSpec, SHORT};
use super::variant::{NewRow, PutPlan};
use crate::metrics::Limit;
use crate::route::Route;
use crate::worker::{LiveSettings, Worker};

const PAGE: u64 = hashcache::PAGE as u64;

/// The decision about a response.
pub(super) enum StoreDecision {
    Store(Box<BegunPut>),
    Part(Box<BegunRangePut>),
    /// Too small for ranges, or perhaps longer than the origin states: fetch it whole.
    Small,
    NotInParts,
    Pass(NotStored),
}

/// The started put of a whole response.
pub(super) struct BegunPut {
    pub(super) writer: ContentWriter,
    pub(super) stored: StoredResponse,
    /// The metadata as it was put.
    pub(super) metadata: Bytes,
    pub(super) length: Option<u64>,
    pub(super) response_time: UnixTime,
    pub(super) row: Option<NewRow>,
}

/// The started put of an incomplete object, with the first range.
pub(super) struct BegunRangePut {
    pub(super) hit: Hit,
    pub(super) stored: StoredResponse,
    pub(super) claim: RangeClaim,
    pub(super) awaited: AwaitedRange,
    /// Bytes of the content before the claimed range, which must be skipped.
    pub(super) skip: u64,
    pub(super) row: Option<NewRow>,
    pub(super) place: ObjectPlace,
}

/// A response when the head has arrived.
pub(super) struct Arrived<'a> {
    pub(super) worker: &'a Worker,
    pub(super) spec: &'a FetchSpec,
    pub(super) exchange: &'a UpstreamExchange,
    /// Where the response would be stored. A response that another member stores is kept here only
    /// in memory, and only whole.
    pub(super) storage: Storage,
    /// Times at which the request was sent, and this response received.
    pub(super) times: (UnixTime, UnixTime),
}

/// Decides about a response, from the head; `plan` gives the place where it would be stored.
pub(super) fn judge(arrived: &Arrived<'_>, plan: PutPlan) -> StoreDecision {
    let (spec, response) = (arrived.spec, &arrived.exchange.response);
    let live = arrived.worker.common.live();
    let judged = storable(
        &hashcache_http::Exchange {
            target: &spec.target,
            method: &Method::GET,
            request: &spec.fields,
            exempt: spec.exempt(),
            status: response.status(),
            response: response.headers(),
            request_time: arrived.times.0,
            response_time: arrived.times.1,
        },
        &live.store,
    );
    let received = response.version();
    match judged {
        Storable::Whole { facts, row } => {
            begin_whole(arrived, &live, plan, facts.received_in(received), row)
        }
        Storable::Partial { facts, row, range } => {
            let facts = facts.received_in(received);
            let ranges = &arrived.worker.common.collapse.ranges;
            ranges.note_range(&plan.place.name);
            match not_as_part(arrived, &facts, &range) {
                Some(decision) => decision,
                None => begin_part(arrived, &live, plan, facts, row, range),
            }
        }
        Storable::No(_)
            if !matches!(spec.extent, Extent::AsAsked)
                && response.status() == StatusCode::PARTIAL_CONTENT =>
        {
            StoreDecision::NotInParts
        }
        Storable::No(reason) => StoreDecision::Pass(reason),
    }
}

/// The decision about a 206 that is not stored as a part.
fn not_as_part(
    arrived: &Arrived<'_>,
    facts: &StoredFacts,
    range: &ContentRange,
) -> Option<StoreDecision> {
    let (spec, fields) = (arrived.spec, arrived.exchange.response.headers());
    match spec.extent {
        // The client's own range does not start and end at page boundaries; the proxy's range does.
        Extent::AsAsked => return Some(StoreDecision::Pass(NotStored::ContentRange)),
        Extent::Whole => return Some(StoreDecision::NotInParts),
        Extent::Around(_) => {}
    }
    // A 206 that may be cut is stored as a part, which answers ranges only.
    let is_too_short = range.complete.is_some_and(|length| length <= SHORT)
        && (covers_whole(range).is_none() || if_range_value(facts, fields).is_none());
    // Parts that together are longer than a page answer for the whole content, so the origin must
    // confirm that length in a response to a request without a range.
    let may_be_cut =
        covers_whole(range).is_some_and(|length| length > SHORT && spec.may_be_cut(length));
    if is_too_short || may_be_cut {
        return Some(StoreDecision::Small);
    }
    (arrived.storage == Storage::Memory).then_some(StoreDecision::NotInParts)
}

/// Starts the put of a whole response.
fn begin_whole(
    arrived: &Arrived<'_>,
    live: &LiveSettings,
    plan: PutPlan,
    facts: StoredFacts,
    row: Option<VaryRow>,
) -> StoreDecision {
    let &Arrived {
        worker,
        spec,
        storage,
        times: (_, response_time),
        ..
    } = arrived;
    let response = &arrived.exchange.response;
    let length = http_body::Body::size_hint(response.body()).exact();
    let most = live.settings.max_object_size;
    if let Some(length) = length.filter(|length| *length > most) {
        note_too_large(worker, length, most);
        return StoreDecision::Pass(NotStored::TooLarge);
    }
    let directives = ResponseDirectives::for_targets(response.headers(), &live.store.targets);
    let mut fields = fields_to_store(response.headers(), &directives);
    ensure_date(&mut fields, response_time);
    let digest = live
        .keeps_digests()
        .then_some(hashcache_store::UNKNOWN_DIGEST);
    let mut stored = StoredResponse {
        facts,
        row,
        table: plan.table_with(&fields),
        fields,
        digest,
        pages: None,
    };
    let memory = announce_pages(arrived, live, &mut stored, length);
    note_range_support(arrived, &plan, &facts);
    let in_parts = length.is_some() && memory.is_none() && may_have_parts(arrived, &plan, &stored);
    let labels = labels_of(&worker.cache, spec.space, &spec.target, response.headers());
    let asked = PageRequest {
        client: spec.ends.client.ip(),
        target: &spec.target,
        fields: &spec.fields,
    };
    let page_groups = &worker.common.page_groups;
    let group = page_groups.group(&asked, spec.noted_group, response.headers(), Instant::now());
    let announced = (&facts, response.headers());
    let place = (spec.space, &spec.target);
    let route = spec.route.as_ref().ok().and_then(Option::as_ref);
    let known = (route.and_then(Route::key), response_time);
    let mark = mark(place, &spec.fields, announced, known);
    let Some(metadata) = stored.encode() else {
        return StoreDecision::Pass(NotStored::HeadTooLong);
    };
    stored.pages = None;
    let row = plan.new_row(&stored.fields);
    let put = Put {
        // With pages, the stored length is known only after the last byte.
        length: length.filter(|_| memory.is_none()),
        group,
        mark,
        storage,
        fresh_until: fresh_until(&facts, response_time),
        keep: if in_parts { Keep::AtEnd } else { Keep::Whole },
        labels,
        ..Put::metadata(metadata.clone())
    };
    // Without an intent, the name does not fit into the store.
    let writer = match plan.intent.map(|intent| intent.writer(put)) {
        Some(Ok(writer)) => writer,
        Some(Err(error)) => return StoreDecision::Pass(reason_of(error)),
        None => return StoreDecision::Pass(NotStored::HeadTooLong),
    };
    StoreDecision::Store(Box::new(BegunPut {
        writer: match memory {
            Some(memory) => ContentWriter::in_pages(writer, memory),
            None => ContentWriter::Plain(Box::new(writer)),
        },
        stored,
        metadata,
        length,
        response_time,
        row,
    }))
}

/// The reason for operators if the engine does not take a response.
pub(super) fn reason_of(error: PutError) -> NotStored {
    match error {
        PutError::Name { .. } | PutError::Metadata { .. } => NotStored::HeadTooLong,
        PutError::OutOfService => NotStored::OutOfService,
        _ => NotStored::NoMemory,
    }
}

/// Announces the page table in the metadata of text that the box at one end of a link may offer,
/// and reserves memory to pack it; `None`: the content is stored as it arrives.
fn announce_pages(
    arrived: &Arrived<'_>,
    live: &LiveSettings,
    stored: &mut StoredResponse,
    length: Option<u64>,
) -> Option<(Reservation, Reservation)> {
    // A response that another member stores is kept in memory for a short time only.
    let is_packed = live.keeps_digests()
        && arrived.storage == Storage::Disk
        && length.is_none_or(|length| (LENGTH_MIN..=PACKED_BYTES_MAX).contains(&length))
        && is_plain_text(stored.facts.status, arrived.exchange.response.headers());
    if !is_packed {
        return None;
    }
    let memory = memory_for_pages(arrived.worker, arrived.spec, length)?;
    // The longest table that may follow must have room beside long fields.
    let longest = length.unwrap_or(PACKED_BYTES_MAX);
    stored.pages = Some(PageTable::announced(Some(longest)));
    if stored.encode().is_none() {
        stored.pages = None;
        return None;
    }
    stored.pages = Some(PageTable::announced(length));
    Some(memory)
}

/// Records whether the origin serves ranges of this object, by a response to a request for a range.
fn note_range_support(arrived: &Arrived<'_>, plan: &PutPlan, facts: &StoredFacts) {
    let (response, spec) = (&arrived.exchange.response, arrived.spec);
    let (ranges, name) = (&arrived.worker.common.collapse.ranges, &plan.place.name);
    if response.extensions().get::<WasPart>().is_some() {
        ranges.note_range(name);
    } else if matches!(spec.extent, Extent::Around(_)) && facts.status == StatusCode::OK {
        ranges.note_whole_only(name, spec.share.network(), Instant::now());
    }
}

/// Returns true if an incomplete object may be kept if the client leaves: then the rest can be
/// fetched by ranges.
fn may_have_parts(arrived: &Arrived<'_>, plan: &PutPlan, stored: &StoredResponse) -> bool {
    let response = &arrived.exchange.response;
    let (ranges, name) = (&arrived.worker.common.collapse.ranges, &plan.place.name);
    stored.facts.status == StatusCode::OK
        && !ranges.is_whole_only(name, Instant::now())
        && if_range_value(&stored.facts, &stored.fields).is_some()
        && !refuses_ranges(response.headers())
}

/// Reserves memory for content that is stored in pages; `None`: it is stored as it arrives.
fn memory_for_pages(
    worker: &Worker,
    spec: &FetchSpec,
    length: Option<u64>,
) -> Option<(Reservation, Reservation)> {
    let reserve = |bytes| reserve_for(Some(&spec.share), &worker.cache, bytes);
    let (own, shared) = page_memory(length);
    let memory = (reserve(own)?, reserve(shared)?);
    let mut packer = worker.packer.borrow_mut();
    if packer.is_none() {
        *packer = Some((Packer::new()?, worker.cache.reserve(PACKER_BYTES)?));
    }
    Some(memory)
}

fn refuses_ranges(response: &HeaderMap) -> bool {
    response
        .get(ACCEPT_RANGES)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"none"))
}

/// The stored form of a 206: an incomplete 200 (RFC 9111 3.3).
fn stored_part(
    response: &HeaderMap,
    facts: StoredFacts,
    targets: &[HeaderName],
    row: Option<VaryRow>,
    plan: &PutPlan,
    response_time: UnixTime,
) -> StoredResponse {
    let directives = ResponseDirectives::for_targets(response, targets);
    let mut fields = fields_to_store(response, &directives);
    fields.remove(CONTENT_RANGE);
    fields.remove(CONTENT_LENGTH);
    remove_content_digests(&mut fields);
    ensure_date(&mut fields, response_time);
    let facts = StoredFacts {
        status: StatusCode::OK,
        ..facts
    };
    StoredResponse {
        facts,
        row,
        table: plan.table_with(&fields),
        fields,
        digest: None,
        pages: None,
    }
}

/// Counts an object that is larger than `max_object_size`. The log names the first such object,
/// because otherwise an operator who waits for hits on large files would look for the reason
/// elsewhere.
pub(super) fn note_too_large(worker: &Worker, length: u64, max_object_size: u64) {
    static LOGGED: Once = Once::new();
    worker.metrics.limit(Limit::MaxObjectSize);
    LOGGED.call_once(|| {
        info!(
            length,
            max_object_size, "an object is larger than `max_object_size`, and is not stored"
        );
    });
}

/// Starts an incomplete object with the range that a 206 contains.
fn begin_part(
    arrived: &Arrived<'_>,
    live: &LiveSettings,
    plan: PutPlan,
    facts: StoredFacts,
    row: Option<VaryRow>,
    range: ContentRange,
) -> StoreDecision {
    let (worker, spec) = (arrived.worker, arrived.spec);
    let fields = arrived.exchange.response.headers();
    let targets = &live.store.targets;
    let stored = stored_part(fields, facts, targets, row, &plan, arrived.times.1);
    // No mark: the object is not complete.
    let put = Put {
        labels: labels_of(&worker.cache, spec.space, &spec.target, fields),
        ..Put::metadata(Bytes::new())
    };
    let most = live.settings.max_object_size;
    match combinable(worker, plan, stored, range, most, put) {
        Some(part) => StoreDecision::Part(Box::new(part)),
        None => StoreDecision::NotInParts,
    }
}

/// The put of an incomplete object; `None` if the ranges cannot be combined.
fn combinable(
    worker: &Worker,
    plan: PutPlan,
    stored: StoredResponse,
    range: ContentRange,
    max_object_size: u64,
    put: Put,
) -> Option<BegunRangePut> {
    let (range, length) = range.range.zip(range.complete)?;
    if_range_value(&stored.facts, &stored.fields)?;
    if length > max_object_size {
        note_too_large(worker, length, max_object_size);
        return None;
    }
    let start = range.first.checked_next_multiple_of(PAGE)?;
    let end = if range.last + 1 == length {
        length
    } else {
        (range.last + 1) / PAGE * PAGE
    };
    if start >= end {
        return None;
    }
    let put = Put {
        length: Some(length),
        span_pages: 1,
        metadata: stored.encode()?,
        ..put
    };
    let row = plan.new_row(&stored.fields);
    let hit = plan.intent?.incomplete(put).ok()?;
    let ranges = &worker.common.collapse.ranges;
    let (claim, awaited) = ranges.begin(&hit, start..end).ok()?;
    let skip = start - range.first;
    Some(BegunRangePut {
        hit,
        stored,
        claim,
        awaited,
        skip,
        row,
        place: plan.place,
    })
}
