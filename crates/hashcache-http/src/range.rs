//! Byte ranges: Range, If-Range and Content-Range (RFC 9110 13.1.5, 14).
//!
//! The proxy calls `answer_range` when a stored response answers a request with Range, and
//! `parse_content_range` for a 206 from upstream.
//!
//! Invariant: every range that is returned is within the content, `first <= last < length`.
//! Cost: linear in the field; at most [`RANGES_MAX`] ranges are kept.

use std::fmt;

use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_RANGE, LAST_MODIFIED, RANGE,
};

use crate::date::{UnixTime, parse_http_date};
use crate::entity_tag::EntityTag;
use crate::fields::{Single, digits, single, trim};
use crate::stored_facts::{FactFlags, StoredFacts};

/// A range of bytes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// The number of bytes, capped at 2^64 - 1.
    pub fn length(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

/// A range as requested in Range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeSpec {
    /// `first-last`
    Between(ByteRange),
    /// `first-`
    From(u64),
    /// `-length`
    Last(u64),
}

impl RangeSpec {
    /// The requested range in content with this length; `None` if it is outside the content.
    pub fn resolve(self, length: u64) -> Option<ByteRange> {
        let end = length.checked_sub(1)?;
        match self {
            RangeSpec::Between(range) => {
                let last = range.last.min(end);
                (range.first <= end).then_some(ByteRange {
                    first: range.first,
                    last,
                })
            }
            RangeSpec::From(first) => (first <= end).then_some(ByteRange { first, last: end }),
            RangeSpec::Last(0) => None,
            RangeSpec::Last(count) => Some(ByteRange {
                first: length.saturating_sub(count),
                last: end,
            }),
        }
    }
}

/// Maximum number of ranges in a request; a Range with more is ignored.
pub const RANGES_MAX: usize = 16;

/// Parses Range. `None` if the field is absent or must be ignored: another unit, malformed, too
/// many ranges.
pub fn parse_range(request: &HeaderMap) -> Option<Vec<RangeSpec>> {
    let Single::One(value) = single(request, RANGE) else {
        return None;
    };
    let equals = value.iter().position(|&b| b == b'=')?;
    if !value[..equals].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut specs = Vec::new();
    for text in value[equals + 1..].split(|&b| b == b',').map(trim) {
        if text.is_empty() {
            continue;
        }
        if specs.len() == RANGES_MAX {
            return None;
        }
        specs.push(range_spec(text)?);
    }
    (!specs.is_empty()).then_some(specs)
}

fn range_spec(text: &[u8]) -> Option<RangeSpec> {
    let dash = text.iter().position(|&b| b == b'-')?;
    let (first, last) = (&text[..dash], &text[dash + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, _) => digits(last).map(RangeSpec::Last),
        (false, true) => digits(first).map(RangeSpec::From),
        (false, false) => byte_range(first, last).map(RangeSpec::Between),
    }
}

fn byte_range(first: &[u8], last: &[u8]) -> Option<ByteRange> {
    let (first, last) = (digits(first)?, digits(last)?);
    (first <= last).then_some(ByteRange { first, last })
}

/// The part of a complete stored response to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeAnswer {
    /// The whole response, with the stored status.
    Whole,
    /// 206 with this range.
    Part(ByteRange),
    /// 206 with these ranges as `multipart/byteranges`; the whole response is also allowed.
    Parts(Vec<ByteRange>),
    /// 416: no range is within the content.
    NotSatisfiable,
}

/// Selects the part of a stored response with `length` bytes that answers a GET with these fields.
///
/// Range counts only for a stored 200, and only if If-Range, when present, matches; preconditions
/// are evaluated first.
pub fn answer_range(
    request: &HeaderMap,
    facts: &StoredFacts,
    stored: &HeaderMap,
    length: u64,
    now: UnixTime,
) -> RangeAnswer {
    if facts.status != StatusCode::OK || !if_range_holds(request, facts, stored, now) {
        return RangeAnswer::Whole;
    }
    let Some(specs) = parse_range(request) else {
        return RangeAnswer::Whole;
    };
    let found: Vec<_> = specs
        .iter()
        .filter_map(|spec| spec.resolve(length))
        .collect();
    match found[..] {
        // A suffix range of empty content cannot be expressed in Content-Range.
        [] if length == 0
            && specs
                .iter()
                .any(|spec| matches!(spec, RangeSpec::Last(1..))) =>
        {
            RangeAnswer::Whole
        }
        [] => RangeAnswer::NotSatisfiable,
        [range] => RangeAnswer::Part(range),
        _ => RangeAnswer::Parts(found),
    }
}

/// Returns true if If-Range is absent or names the stored response by a strong validator: the
/// strong entity tag, or Last-Modified if Date is later (RFC 9110 8.8.2.2).
pub fn if_range_holds(
    request: &HeaderMap,
    facts: &StoredFacts,
    stored: &HeaderMap,
    now: UnixTime,
) -> bool {
    let value = match single(request, IF_RANGE) {
        Single::Absent => return true,
        Single::Conflicting => return false,
        Single::One(value) => value,
    };
    let tag = EntityTag::parse(value);
    if tag.is_well_formed() {
        let etag = stored
            .get(ETAG)
            .map(|value| EntityTag::parse(value.as_bytes()));
        return etag.is_some_and(|etag| etag.equals_strongly(&tag));
    }
    let strong_date = facts.last_modified.filter(|&changed| changed < facts.date);
    strong_date.is_some() && parse_http_date(value, now) == strong_date
}

/// The If-Range value in a request for more of a stored response: the strong entity tag; if there
/// is no entity tag, Last-Modified, but only if Date is at least a minute later. `None` if parts
/// must not be combined (RFC 9110 13.1.5, RFC 9111 3.4).
///
/// RFC 9110 8.8.2.2 requires only a second. But a response without Date gets the arrival time as
/// Date here, and the origin's clock may be some seconds behind, so we require the minute from RFC
/// 7232.
pub fn if_range_value(facts: &StoredFacts, stored: &HeaderMap) -> Option<HeaderValue> {
    if let Some(tag) = stored.get(ETAG) {
        return facts.flags.has(FactFlags::STRONG_ETAG).then(|| tag.clone());
    }
    let changed = facts.last_modified?;
    let settled = changed.0.saturating_add(SETTLED_SECONDS) <= facts.date.0;
    stored.get(LAST_MODIFIED).filter(|_| settled).cloned()
}

const SETTLED_SECONDS: u64 = 60;

/// Makes a request for a part accept only the content coding of the stored response: some origins
/// send the same strong entity tag for every coding and no `Vary`, and a part in another coding
/// does not fit the stored bytes (RFC 9110 8.8.3.3 forbids such a tag).
pub fn accept_stored_coding(request: &mut HeaderMap, stored: &HeaderMap) {
    request.remove(ACCEPT_ENCODING);
    for coding in stored.get_all(CONTENT_ENCODING) {
        request.append(ACCEPT_ENCODING, coding.clone());
    }
    if !request.contains_key(ACCEPT_ENCODING) {
        request.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
}

/// Returns true if a 206 for a request with [`if_range_value`] and [`accept_stored_coding`] holds a
/// part of the stored response: it repeats the validator, as a 206 must (RFC 9110 15.3.7), it has
/// the stored content coding, and its other fields do not show that the bytes have another meaning.
///
/// A 206 does not prove that the origin honoured If-Range: an origin that does not know the field
/// also answers 206. A 206 may omit Content-Encoding (RFC 9110 15.3.7), but a part without the
/// field can also be an identity part of content that is stored coded, and nothing else would show
/// it.
pub fn continues_stored(stored: &HeaderMap, partial: &HeaderMap) -> bool {
    let same = |name: &HeaderName| stored.get_all(name).iter().eq(partial.get_all(name).iter());
    let agrees = |name: &HeaderName| !partial.contains_key(name) || same(name);
    let same_validator = match stored.get(ETAG) {
        Some(tag) => match (partial.get(ETAG), EntityTag::parse(tag.as_bytes())) {
            (Some(found), tag) => tag.equals_strongly(&EntityTag::parse(found.as_bytes())),
            (None, _) => false,
        },
        None => {
            let changed = stored.get(LAST_MODIFIED);
            changed.is_some() && partial.get(LAST_MODIFIED) == changed
        }
    };
    same_validator && same(&CONTENT_ENCODING) && ABOUT_REPRESENTATION.iter().all(agrees)
}

/// Fields of a 206 that describe the whole representation, besides the validators and the coding.
/// If a value differs, the part belongs to another representation.
const ABOUT_REPRESENTATION: [HeaderName; 4] = [
    CONTENT_TYPE,
    CONTENT_LANGUAGE,
    CONTENT_LOCATION,
    HeaderName::from_static("repr-digest"),
];

/// The complete length, if the range of a 206 is the whole representation: then the content equals
/// that of a 200 (RFC 9110 15.3.7.3).
pub fn covers_whole(range: &ContentRange) -> Option<u64> {
    let length = range.complete?;
    let part = range.range?;
    (part.first == 0 && part.length() == length).then_some(length)
}

/// The value of Content-Range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The enclosed range; `None` in a 416.
    pub range: Option<ByteRange>,
    /// The complete length, if known.
    pub complete: Option<u64>,
}

impl ContentRange {
    /// A range in content with a known length.
    pub fn new(range: ByteRange, complete: u64) -> ContentRange {
        ContentRange {
            range: Some(range),
            complete: Some(complete),
        }
    }

    /// The Content-Range of a 416 for content with this length.
    pub fn unsatisfied(complete: u64) -> ContentRange {
        ContentRange {
            range: None,
            complete: Some(complete),
        }
    }

    /// The field value.
    pub fn to_value(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("letters, digits and punctuation only")
    }
}

/// `bytes 0-4/10`, `bytes 0-4/*`, `bytes */10`
impl fmt::Display for ContentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some(ByteRange { first, last }) => write!(f, "bytes {first}-{last}/")?,
            None => f.write_str("bytes */")?,
        }
        match self.complete {
            Some(complete) => complete.fmt(f),
            None => f.write_str("*"),
        }
    }
}

/// Parses Content-Range; `None` if it is absent, malformed, in another unit, or contradicts itself.
/// A number too large for 64 bits is malformed: here the number is an offset, so it cannot be
/// capped.
pub fn parse_content_range(response: &HeaderMap) -> Option<ContentRange> {
    let Single::One(value) = single(response, CONTENT_RANGE) else {
        return None;
    };
    let unit_end = value.iter().position(|&b| b == b' ')?;
    if !value[..unit_end].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let rest = trim(&value[unit_end..]);
    let slash = rest.iter().position(|&b| b == b'/')?;
    let (range, complete) = (&rest[..slash], &rest[slash + 1..]);
    let complete = match complete {
        b"*" => None,
        number => Some(exact(number)?),
    };
    if range == b"*" {
        complete?;
        return Some(ContentRange {
            range: None,
            complete,
        });
    }
    let dash = range.iter().position(|&b| b == b'-')?;
    let (first, last) = (exact(&range[..dash])?, exact(&range[dash + 1..])?);
    let within = complete.is_none_or(|complete| last < complete);
    let range = Some(ByteRange { first, last });
    (first <= last && within).then_some(ContentRange { range, complete })
}

fn exact(number: &[u8]) -> Option<u64> {
    digits(number).filter(|&n| n < u64::MAX)
}

#[cfg(test)]
mod tests;
