//! Answers out of the store: here a hit becomes a response.
//!
//! Preconditions first, then ranges (RFC 9110 13.2.2).
//!
//! Cost: the stored fields are put into a map, four of ours are added; content is passed by
//! reference.

use hashcache::Hit;
use hashcache_http::{
    CacheStatus, ConditionOutcome, ContentRange, Handling, MethodKind, RangeAnswer, RequestFacts,
    Seconds, answer_range, evaluate_conditions, not_modified_fields,
};
use http::header::{AGE, CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};

use super::body::Body;
use super::forward::Order;
use super::{Answer, Connection, Source};
use crate::access_log::Outcome;
use crate::store::StoredResponse;

/// How old a stored response is when it is served, and why.
#[derive(Clone, Copy)]
pub(super) struct Served {
    pub(super) age: Seconds,
    pub(super) handling: Handling,
    pub(super) ttl: i64,
    pub(super) upstream_status: Option<StatusCode>,
    pub(super) collapsed: bool,
}

impl Served {
    /// Without asking anyone.
    pub(super) fn fresh(age: Seconds, ttl: i64) -> Self {
        let handling = Handling::Hit;
        Self {
            age,
            handling,
            ttl,
            upstream_status: None,
            collapsed: false,
        }
    }

    fn status(&self) -> CacheStatus<'static> {
        CacheStatus {
            ttl: Some(self.ttl),
            upstream_status: self.upstream_status,
            collapsed: self.collapsed,
            ..CacheStatus::of(self.handling)
        }
    }
}

/// The answer to a request that a stored response satisfies.
pub(super) fn answer(
    connection: &Connection,
    order: &Order,
    facts: &RequestFacts,
    hit: &Hit,
    stored: StoredResponse,
    served: Served,
) -> Answer {
    let now = connection.worker.common.now();
    let length = hit.content_len().unwrap_or(0);
    let StoredResponse {
        facts: known,
        fields,
        ..
    } = stored;
    if facts.has_condition
        && evaluate_conditions(&order.fields, &known, &fields, now) == ConditionOutcome::NotModified
    {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.headers_mut() = not_modified_fields(&fields);
        add_own(connection, response.headers_mut(), served);
        return Ok(response);
    }
    let range = match facts.has_range && facts.method == MethodKind::Get {
        true => answer_range(&order.fields, &known, &fields, length, now),
        false => RangeAnswer::Whole,
    };
    let mut response = match range {
        // More than one range is answered with all of it, which RFC 9110 14.2 leaves to us.
        RangeAnswer::Whole | RangeAnswer::Parts(_) => {
            let mut response = whole(facts.method, hit, fields, length);
            *response.status_mut() = known.status;
            response
        }
        RangeAnswer::Part(range) => {
            let reader = hit.reader(range.first..range.last + 1);
            let mut response = Response::new(Body::stored(reader, range.length()));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            *response.headers_mut() = fields;
            let told = ContentRange::of(range, length).to_value();
            response.headers_mut().insert(CONTENT_RANGE, told);
            response
        }
        RangeAnswer::NotSatisfiable => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            let told = ContentRange::unsatisfied(length).to_value();
            response.headers_mut().insert(CONTENT_RANGE, told);
            response
        }
    };
    add_own(connection, response.headers_mut(), served);
    Ok(response)
}

fn whole(method: MethodKind, hit: &Hit, mut fields: HeaderMap, length: u64) -> Response<Body> {
    let body = if method == MethodKind::Head {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
        Body::empty()
    } else {
        match hit.whole_content() {
            Some(content) => Body::full(content),
            None => Body::stored(hit.reader(0..length), length),
        }
    };
    let mut response = Response::new(body);
    *response.headers_mut() = fields;
    response
}

/// Age, Via and Cache-Status of a response out of the store.
fn add_own(connection: &Connection, fields: &mut HeaderMap, served: Served) {
    let common = &connection.worker.common;
    fields.insert(AGE, HeaderValue::from(served.age.get()));
    common.via.append_via(fields, Version::HTTP_11);
    served.status().append(&common.name, fields);
}

/// In which words a hit goes to the log.
pub(super) fn outcome(status: StatusCode, from: Source) -> Outcome {
    match from {
        _ if status.is_client_error() || status.is_server_error() => Outcome::NegativeHit,
        Source::Memory => Outcome::MemoryHit,
        Source::Disk => Outcome::Hit,
    }
}
