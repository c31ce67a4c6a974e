//! Responses from the store: a hit becomes a response here.
//!
//! Preconditions are evaluated first, then ranges (RFC 9110 13.2.2). Content that the response
//! needs and the store lacks is fetched before the head is sent: if the origin no longer has the
//! stored version, the response can still be made from the new version. If a later range is missing
//! in the same way, the response breaks off; it is never completed from another version. If the
//! origin does not support ranges, the whole object is fetched.
//!
//! Called by the loop in `request`.
//!
//! Cost of a complete hit: the stored fields are moved into the response without a copy, three
//! fields are added, the index is read once per span. Content is passed by reference.

use std::collections::VecDeque;
use std::ops::Range;

use hashcache::Hit;
use hashcache_access::quota::ContentFrom;
use hashcache_base::failure::Failure;
use hashcache_http::{
    ByteRange, CacheStatus, ConditionOutcome, ContentRange, EntityTag, Forward, Handling,
    MethodKind, NotStored, RangeAnswer, RequestFacts, Reuse, UnixTime, Upgrading, answer_range,
    evaluate_conditions, if_range_value, not_modified_fields, remove_content_digests,
};
use hashcache_store::content::ContentReader;
use hashcache_store::{HitSource, ObjectPlace, PageTable, StoredResponse};
use http::header::{AGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::time::Instant;

use super::assembly::{Assembly, BodyPart, MayAsk, Prepared, Unprepared};
use super::body::Body;
use super::own_fields::passed;
use super::stored_form::StoredForm;
use super::transaction::{ClientRequest, ForwardReason, Found, Next, Served, Transaction};
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::fetch::range_fetch::RangeFetchSpec;
use crate::fetch::{SHORT, passed_on};
use crate::reuse::reuse_stored;

/// Answers the request from a stored response that satisfies it.
pub(super) async fn answer(
    transaction: &mut Transaction<'_>,
    found: Box<Found>,
) -> Result<Next, Failure> {
    let Found {
        hit,
        stored,
        place,
        mut served,
    } = *found;
    served.received = stored.facts.received();
    let connection = transaction.connection;
    let worker = &connection.worker;
    let (request, facts) = (&transaction.request, &transaction.facts);
    let form = StoredForm::new(connection, (request, facts), &stored);
    let length = match form {
        StoredForm::Zstd => hit.content_len(),
        StoredForm::AsItCame | StoredForm::Content => stored.content_len(&hit),
    };
    let length = length.unwrap_or(0);
    let mut draft = draft(worker.common.now(), request, facts, length, form, &stored);
    if draft.status == stored.facts.status && !hit.is_complete() && length <= SHORT {
        // The stored length may be the length of a part: see `fetch::fields::whole_of_part`.
        return Ok(match facts.method {
            MethodKind::Get => anew_whole(transaction, hit, place),
            MethodKind::Head | MethodKind::Other => Next::Pass(Forward::Partial),
        });
    }
    let pages = stored.pages.clone();
    // The pages to decode, unless the client gets them as they are.
    let decoded = pages.as_ref().filter(|_| form != StoredForm::Zstd);
    let lacks = draft.ranges().any(|range| {
        let stored = decoded.map_or(range.clone(), |pages| pages.stored_range(&range));
        !hit.holes(stored).is_empty()
    });
    let in_one_piece = draft.parts.is_empty() || hit.whole_content().is_some();
    // The origin cannot supply a part of text stored in pages.
    let validator = if (in_one_piece && !lacks) || pages.is_some() {
        None
    } else {
        if_range_value(&stored.facts, &stored.fields)
    };
    // The index can list content that is gone or damaged on disk. If the origin can supply it, the
    // response need not break off, so it is assembled even though nothing seems to be missing.
    let mends = validator.is_some() && !facts.directives.only_if_cached;
    if !lacks
        && !mends
        && (hit.is_complete() || draft.parts.is_empty())
        && let Some(body) = body(&draft, &hit, decoded)
    {
        let mut body = body;
        // Start reading now, while another response is still possible.
        if decoded.is_some() && !in_one_piece {
            body = body.paid_by(&connection.allowance);
            if body.begin().await.is_err() {
                return Ok(anew_whole(transaction, hit, place));
            }
        }
        return Ok(Next::Answer(draft.with(
            connection,
            stored.fields,
            body,
            served,
        )));
    }
    if lacks && facts.directives.only_if_cached {
        return Err(Failure::NotCached);
    }
    if lacks && pages.is_some() {
        return Ok(anew_whole(transaction, hit, place));
    }
    let ranges = &worker.common.collapse.ranges;
    if lacks && transaction.tries == 0 && ranges.is_whole_only(&place.name, Instant::now()) {
        transaction.tries = 1;
        let reason = ForwardReason {
            replaces: Some(hit),
            ..ForwardReason::from_forward(Forward::Partial)
        };
        return Ok(Next::Miss(place, reason));
    }
    // Content that this request has started to fetch is already in transit.
    if lacks
        && transaction.awaited.is_none()
        && let Some(limits) = &request.limits
    {
        limits.check_quota()?;
    }
    let fields = stored.fields.clone();
    let spec = RangeFetchSpec {
        space: request.space,
        share: connection.allowance.share().clone(),
        ends: connection.ends(),
        target: request.target.clone(),
        name: place.name.clone(),
        route: request.site_route(worker, Some(&stored.fields)),
        fields: request.fields.clone(),
        version: request.version,
        validator,
        stored,
    };
    let parts = std::mem::take(&mut draft.parts);
    let byte_count = transaction.log_entry.byte_count();
    let mut assembly = Assembly::new(worker, spec, &hit, parts, byte_count);
    if transaction.awaited.is_some() {
        assembly.note_begun();
    }
    let may_ask = if facts.directives.only_if_cached {
        MayAsk::No
    } else {
        MayAsk::Yes
    };
    let prepared = assembly.prepare(may_ask).await;
    match prepared {
        Ok(Prepared::Stored) => {}
        Ok(prepared) => {
            if served.handling == Handling::Hit {
                transaction.log_entry.set_outcome(Outcome::Partial);
                served.handling = Handling::Forwarded(Forward::Partial);
            }
            served.stored = true;
            served.collapsed |= prepared == Prepared::Joined;
        }
        Err(unprepared) => return instead(transaction, hit, place, unprepared),
    }
    let from = match prepared {
        Ok(Prepared::Stored) => ContentFrom::Store,
        _ => ContentFrom::Origin,
    };
    let body = Body::assembled(assembly, draft.length, from);
    Ok(Next::Answer(draft.with(connection, fields, body, served)))
}

/// Handles text in pages that cannot be read or completed: fetches the whole content; the last
/// attempt forwards the request unchanged.
fn anew_whole(transaction: &mut Transaction<'_>, hit: Hit, place: ObjectPlace) -> Next {
    transaction.tries += 1;
    if transaction.tries >= TRIES_MAX {
        return Next::Pass(Forward::Partial);
    }
    let reason = ForwardReason {
        replaces: Some(hit),
        ..ForwardReason::from_forward(Forward::Partial)
    };
    Next::Miss(place, reason)
}

/// The step after a stored version could not be completed. Upstream already got a request: a
/// failing origin must not get repeated requests for the same client request.
fn instead(
    transaction: &mut Transaction<'_>,
    hit: Hit,
    place: ObjectPlace,
    unprepared: Unprepared,
) -> Result<Next, Failure> {
    Ok(match unprepared {
        Unprepared::VersionLost => anew(transaction, place),
        Unprepared::Unusable => Next::Pass(Forward::Partial),
        Unprepared::NotCached => return Err(Failure::NotCached),
        Unprepared::Failed(failed) => {
            transaction.log_entry.set_next_hop(failed.next_hop);
            return Err(failed.failure);
        }
        Unprepared::Answered(answered)
            if answers_any(answered.exchange.response.status()) || transaction.facts.has_range =>
        {
            let now = transaction.connection.worker.common.now();
            transaction.log_entry.set_outcome(Outcome::Partial);
            let response = passed_on(answered.exchange.response, now, Upgrading::No);
            let status = CacheStatus {
                detail: Some(NotStored::Status.as_str()),
                ..CacheStatus::from_handling(Handling::Forwarded(Forward::Partial))
            };
            passed(transaction, (response, None), answered.next_hop, status)
        }
        // The origin may fail at ranges only, and this request has no range.
        Unprepared::Answered(answered) => {
            let worker = &transaction.connection.worker;
            let bytes = answered.exchange.response.body().origin_bytes();
            worker.metrics.fetched(bytes, 0);
            transaction.log_entry.byte_count().add(bytes);
            let ranges = &worker.common.collapse.ranges;
            let client = transaction.connection.allowance.share().network();
            ranges.note_whole_only(&place.name, client, Instant::now());
            anew_whole(transaction, hit, place)
        }
    })
}

/// Returns true if an error is about the origin or the client rather than about the range.
fn answers_any(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// Handles a stored version that cannot be completed: looks up the object that is stored now; the
/// last attempt forwards the request unchanged.
fn anew(transaction: &mut Transaction<'_>, place: ObjectPlace) -> Next {
    transaction.tries += 1;
    if transaction.tries < TRIES_MAX {
        Next::LookUp(place.key)
    } else {
        Next::Pass(Forward::Partial)
    }
}

const TRIES_MAX: u8 = 3;

/// Decides how a stored response may be used. After a soft purge it is never fresh.
pub(super) fn reuse_hit(
    transaction: &Transaction<'_>,
    hit: &Hit,
    stored: &StoredResponse,
) -> Reuse {
    let (worker, request) = (&transaction.connection.worker, &transaction.request);
    let grace = request.site.as_ref().map(|it| it.site.spec.grace);
    let facts = transaction.facts_beside(stored);
    let asked = (&facts, grace);
    let place = (request.space, &request.target);
    let now = worker.common.now();
    reuse_stored(&worker.common, now, place, asked, (hit, &stored.facts))
}

/// A stored response that upstream has just confirmed (`upstream_status`), or could not confirm.
pub(super) fn found(
    connection: &Connection,
    (hit, stored, place): (Hit, StoredResponse, ObjectPlace),
    forward: Forward,
    upstream_status: Option<StatusCode>,
) -> Box<Found> {
    let now = connection.worker.common.now();
    let served = Served {
        handling: Handling::Forwarded(forward),
        upstream_status,
        ..Served::fresh(stored.facts.age(now), stored.facts.ttl(now))
    };
    Box::new(Found {
        hit,
        stored,
        place,
        served,
    })
}

/// A response without the content.
struct Draft {
    status: StatusCode,
    /// True if the response has the stored fields.
    has_stored_fields: bool,
    /// Fields that are added, or that replace stored fields of the same name.
    fields: HeaderMap,
    /// The content, in order.
    parts: VecDeque<BodyPart>,
    /// The length of the content, bytes.
    length: u64,
    /// True if the content is the complete stored content, which the stored digests describe.
    is_whole: bool,
    form: StoredForm,
}

impl Draft {
    /// A response with the stored fields.
    fn stored(status: StatusCode) -> Self {
        Self {
            has_stored_fields: true,
            ..Self::with_fields(status, HeaderMap::new())
        }
    }

    /// A response with only these fields.
    fn with_fields(status: StatusCode, fields: HeaderMap) -> Self {
        Self {
            status,
            has_stored_fields: false,
            fields,
            parts: VecDeque::new(),
            length: 0,
            is_whole: false,
            form: StoredForm::AsItCame,
        }
    }

    fn text(&mut self, text: String) {
        self.length += text.len() as u64;
        self.parts.push_back(BodyPart::Text(text.into()));
    }

    fn content(&mut self, range: Range<u64>) {
        self.length += range.end - range.start;
        self.parts.push_back(BodyPart::Content(range));
    }

    /// The ranges of the stored content that the response needs.
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.parts.iter().filter_map(|part| match part {
            BodyPart::Content(range) => Some(range.clone()),
            BodyPart::Text(_) => None,
        })
    }

    /// The response with this content; `stored` are the stored fields.
    fn with(
        self,
        connection: &Connection,
        stored: HeaderMap,
        body: Body,
        served: Served,
    ) -> Response<Body> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        if self.has_stored_fields {
            *fields = stored;
            self.form.apply(fields);
            if !self.is_whole {
                remove_content_digests(fields);
            }
        }
        fields.extend(self.fields);
        add_own(connection, fields, served);
        response
    }
}

/// The response to a request that a stored response satisfies; in this form it has `length` bytes.
fn draft(
    now: UnixTime,
    request: &ClientRequest,
    facts: &RequestFacts,
    length: u64,
    form: StoredForm,
    stored: &StoredResponse,
) -> Draft {
    let mut draft = plain_draft(now, request, facts, length, stored);
    if draft.has_stored_fields {
        draft.form = form;
    } else if draft.status == StatusCode::NOT_MODIFIED {
        form.apply_to_not_modified(&mut draft.fields);
    }
    draft
}

/// As [`draft`], but without regard to the form.
fn plain_draft(
    now: UnixTime,
    request: &ClientRequest,
    facts: &RequestFacts,
    length: u64,
    stored: &StoredResponse,
) -> Draft {
    let StoredResponse {
        facts: stored_facts,
        fields,
        ..
    } = stored;
    if facts.has_condition
        && evaluate_conditions(&request.fields, stored_facts, fields, now)
            == ConditionOutcome::NotModified
    {
        return Draft::with_fields(StatusCode::NOT_MODIFIED, not_modified_fields(fields));
    }
    let is_range = facts.has_range
        && facts.method == MethodKind::Get
        && !(is_one_page(stored) && has_if_range_date(&request.fields));
    let range = if is_range {
        answer_range(&request.fields, stored_facts, fields, length, now)
    } else {
        RangeAnswer::Whole
    };
    match range {
        RangeAnswer::Parts(ranges) if is_frugal(&ranges, length) => {
            several(&ranges, length, fields)
        }
        RangeAnswer::Whole | RangeAnswer::Parts(_) => {
            let mut draft = Draft::stored(stored_facts.status);
            if facts.method == MethodKind::Head {
                draft
                    .fields
                    .insert(CONTENT_LENGTH, HeaderValue::from(length));
            } else {
                draft.content(0..length);
                draft.is_whole = true;
            }
            draft
        }
        RangeAnswer::Part(range) => {
            let mut draft = Draft::stored(StatusCode::PARTIAL_CONTENT);
            let content_range = ContentRange::new(range, length).to_value();
            draft.fields.insert(CONTENT_RANGE, content_range);
            draft.content(range.first..range.last + 1);
            draft
        }
        RangeAnswer::NotSatisfiable => {
            let mut draft = Draft::with_fields(StatusCode::RANGE_NOT_SATISFIABLE, HeaderMap::new());
            let content_range = ContentRange::unsatisfied(length).to_value();
            draft.fields.insert(CONTENT_RANGE, content_range);
            draft
        }
    }
}

fn is_one_page(stored: &StoredResponse) -> bool {
    stored.pages.as_ref().is_some_and(PageTable::is_one_page)
}

/// Returns true if the request has If-Range with a date. If clients may have the coded form, a date
/// does not show to which form their part belongs.
fn has_if_range_date(request: &HeaderMap) -> bool {
    let value = request.get(IF_RANGE);
    value.is_some_and(|value| !EntityTag::parse(value.as_bytes()).is_well_formed())
}

/// Returns true if several ranges are sent as `multipart/byteranges`. Overlapping ranges, and
/// ranges that add up to more than the content, are a mistake or an attack: they get the whole
/// content (RFC 9110 14.2). Two separate ranges are always accepted, even if the part headers are
/// longer than a short object: a client has a reason to request two ranges of it, and the overhead
/// is bounded.
fn is_frugal(ranges: &[ByteRange], length: u64) -> bool {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.first);
    let apart = sorted.windows(2).all(|two| two[0].last < two[1].first);
    let heads = PART_HEAD_BYTES.saturating_mul(ranges.len() as u64);
    apart && (ranges.len() <= 2 || heads < length)
}

/// Approximate size of a part header, bytes.
const PART_HEAD_BYTES: u64 = 128;

/// Several ranges as `multipart/byteranges` (RFC 9110 15.3.7.2).
fn several(ranges: &[ByteRange], length: u64, fields: &HeaderMap) -> Draft {
    let mut draft = Draft::stored(StatusCode::PARTIAL_CONTENT);
    let boundary = format!("{:032x}", fastrand::u128(..));
    let kind = format!("multipart/byteranges; boundary={boundary}");
    let kind = HeaderValue::try_from(kind).expect("letters and digits");
    draft.fields.insert(CONTENT_TYPE, kind);
    let each = fields.get(CONTENT_TYPE).and_then(|each| each.to_str().ok());
    let each = each.map_or_else(String::new, |each| format!("Content-Type: {each}\r\n"));
    let mut before = "";
    for range in ranges {
        let content_range = ContentRange::new(*range, length);
        draft.text(format!(
            "{before}--{boundary}\r\n{each}Content-Range: {content_range}\r\n\r\n"
        ));
        draft.content(range.first..range.last + 1);
        before = "\r\n";
    }
    draft.text(format!("\r\n--{boundary}--\r\n"));
    draft
}

/// The content as a single contiguous range that the hit has completely, as far as the index knows.
fn body(draft: &Draft, hit: &Hit, pages: Option<&PageTable>) -> Option<Body> {
    let mut ranges = draft.ranges();
    let body = match (ranges.next(), draft.parts.len()) {
        (None, 0) => Body::empty(),
        (Some(range), 1) => match hit.whole_content() {
            Some(content) if pages.is_none() && range.end - range.start == content.len() as u64 => {
                Body::full(content)
            }
            _ => Body::stored(ContentReader::new(hit, pages, range), draft.length),
        },
        _ => return None,
    };
    Some(body)
}

/// Adds Age, Via and Cache-Status to a response from the store.
fn add_own(connection: &Connection, fields: &mut HeaderMap, served: Served) {
    let common = &connection.worker.common;
    fields.insert(AGE, HeaderValue::from(served.age.get()));
    common.via.append_via(fields, served.received);
    served.status().append(&common.name, fields);
}

/// The outcome that is logged for a hit.
pub(super) fn outcome(status: StatusCode, from: HitSource) -> Outcome {
    match from {
        _ if status.is_client_error() || status.is_server_error() => Outcome::NegativeHit,
        HitSource::Memory => Outcome::MemoryHit,
        HitSource::Disk => Outcome::Hit,
    }
}
