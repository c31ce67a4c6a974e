//! Answers out of the store: here a hit becomes a response.
//!
//! Preconditions first, then ranges (RFC 9110 13.2.2).
//!
//! Cost: the stored fields are put into a map, four of ours are added; content is passed by
//! reference.

use std::collections::VecDeque;
use std::ops::Range;

use hashcache::Hit;
use hashcache_http::{
    ByteRange, CacheStatus, ConditionOutcome, ContentRange, Handling, MethodKind, RangeAnswer,
    RequestFacts, Seconds, UnixTime, answer_range, evaluate_conditions, not_modified_fields,
};
use http::header::{AGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};

use super::Connection;
use super::assembly::Part;
use super::body::Body;
use super::forward::Order;
use super::look_up::Source;
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
    /// What upstream sends for it is stored.
    pub(super) stored: bool,
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
            stored: false,
        }
    }

    fn status(&self) -> CacheStatus<'static> {
        CacheStatus {
            ttl: Some(self.ttl),
            upstream_status: self.upstream_status,
            collapsed: self.collapsed,
            stored: self.stored,
            ..CacheStatus::of(self.handling)
        }
    }
}

/// An answer without its content.
pub(super) struct Draft {
    pub(super) response: Response<()>,
    /// Its content, in order.
    pub(super) parts: VecDeque<Part>,
    /// The length of that, bytes.
    pub(super) length: u64,
}

impl Draft {
    fn new(status: StatusCode, fields: HeaderMap) -> Self {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        Self {
            response,
            parts: VecDeque::new(),
            length: 0,
        }
    }

    fn text(&mut self, text: String) {
        self.length += text.len() as u64;
        self.parts.push_back(Part::Text(text.into()));
    }

    fn content(&mut self, range: Range<u64>) {
        self.length += range.end - range.start;
        self.parts.push_back(Part::Content(range));
    }

    /// What of the stored content it needs.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Content(range) => Some(range.clone()),
            Part::Text(_) => None,
        })
    }

    /// The answer with this content.
    pub(super) fn with(
        self,
        connection: &Connection,
        body: Body,
        served: Served,
    ) -> Response<Body> {
        let mut response = self.response.map(|()| body);
        add_own(connection, response.headers_mut(), served);
        response
    }
}

/// What a stored response of `length` bytes comes to for a request that it satisfies.
pub(super) fn draft(
    now: UnixTime,
    order: &Order,
    facts: &RequestFacts,
    length: u64,
    stored: &StoredResponse,
) -> Draft {
    let StoredResponse {
        facts: known,
        fields,
        ..
    } = stored;
    if facts.has_condition
        && evaluate_conditions(&order.fields, known, fields, now) == ConditionOutcome::NotModified
    {
        return Draft::new(StatusCode::NOT_MODIFIED, not_modified_fields(fields));
    }
    let range = match facts.has_range && facts.method == MethodKind::Get {
        true => answer_range(&order.fields, known, fields, length, now),
        false => RangeAnswer::Whole,
    };
    match range {
        RangeAnswer::Parts(ranges) if is_frugal(&ranges, length) => {
            several(&ranges, length, fields)
        }
        RangeAnswer::Whole | RangeAnswer::Parts(_) => {
            let mut draft = Draft::new(known.status, fields.clone());
            if facts.method == MethodKind::Head {
                let fields = draft.response.headers_mut();
                fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
            } else {
                draft.content(0..length);
            }
            draft
        }
        RangeAnswer::Part(range) => {
            let mut draft = Draft::new(StatusCode::PARTIAL_CONTENT, fields.clone());
            let told = ContentRange::of(range, length).to_value();
            draft.response.headers_mut().insert(CONTENT_RANGE, told);
            draft.content(range.first..range.last + 1);
            draft
        }
        RangeAnswer::NotSatisfiable => {
            let mut draft = Draft::new(StatusCode::RANGE_NOT_SATISFIABLE, HeaderMap::new());
            let told = ContentRange::unsatisfied(length).to_value();
            draft.response.headers_mut().insert(CONTENT_RANGE, told);
            draft
        }
    }
}

/// Whether several ranges are worth parts of their own: those that overlap, or are more than all
/// there is, are a mistake or an attack, and are answered with the whole (RFC 9110 14.2). Two that
/// are apart are taken at their word, also where the heads of the parts outweigh a short whole:
/// who asks for two stretches of a small object does so for a reason, and the excess is bounded.
fn is_frugal(ranges: &[ByteRange], length: u64) -> bool {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.first);
    let apart = sorted.windows(2).all(|two| two[0].last < two[1].first);
    let heads = PART_HEAD_BYTES.saturating_mul(ranges.len() as u64);
    apart && (ranges.len() <= 2 || heads < length)
}

/// What the head of a part takes, bytes, more or less.
const PART_HEAD_BYTES: u64 = 128;

/// Several ranges as `multipart/byteranges` (RFC 9110 15.3.7.2).
fn several(ranges: &[ByteRange], length: u64, fields: &HeaderMap) -> Draft {
    let mut draft = Draft::new(StatusCode::PARTIAL_CONTENT, fields.clone());
    let boundary = format!("{:032x}", fastrand::u128(..));
    let kind = format!("multipart/byteranges; boundary={boundary}");
    let kind = HeaderValue::try_from(kind).expect("letters and digits");
    let each = draft.response.headers_mut().insert(CONTENT_TYPE, kind);
    let each = each.as_ref().and_then(|each| each.to_str().ok());
    let each = each.map_or_else(String::new, |each| format!("Content-Type: {each}\r\n"));
    let mut before = "";
    for range in ranges {
        let told = ContentRange::of(*range, length);
        draft.text(format!(
            "{before}--{boundary}\r\n{each}Content-Range: {told}\r\n\r\n"
        ));
        draft.content(range.first..range.last + 1);
        before = "\r\n";
    }
    draft.text(format!("\r\n--{boundary}--\r\n"));
    draft
}

/// The content of an answer that a hit has in one stretch and whole, as far as memory knows.
pub(super) fn body(draft: &Draft, hit: &Hit) -> Option<Body> {
    let mut ranges = draft.ranges();
    let body = match (ranges.next(), draft.parts.len()) {
        (None, 0) => Body::empty(),
        (Some(range), 1) => match hit.whole_content() {
            Some(content) if range.end - range.start == content.len() as u64 => Body::full(content),
            _ => Body::stored(hit.reader(range), draft.length),
        },
        _ => return None,
    };
    Some(body)
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
