//! Vary: decides which requests a stored response answers (RFC 9111 4.1).
//!
//! `storable` selects a row when a response is stored; the proxy matches it against later requests.
//! A response without Vary has no row.
//!
//! Invariant: rows are equal only if the origin can be expected to send the same response. Values
//! are normalised if the definition of the field gives several spellings the same meaning; letter
//! case is kept unless the definition makes it insignificant.
//! Cost: one allocation per field in the row.
//!
//! | field | normalised value |
//! |---|---|
//! | Accept-Encoding | the set of br, gzip, identity and zstd with q > 0 |
//! | Accept-Language | the tags by falling q, in lower case, then those with q = 0 |
//! | Accept, Accept-Charset | members without blanks, in lower case up to the first parameter |
//! | Authorization, Cookie, From, Proxy-Authorization, Referer, User-Agent | byte for byte |
//! | others | lines joined, no blanks around commas outside quotes |
//!
//! Rows are matched against the request as the origin receives it. For most fields that is the
//! client's value. A field that proxies write, change or remove ([`is_rewritten`]) has a different
//! value at the origin than in the client's request, so a response that varies by it counts as
//! `Vary: *`. Host is written from the target, which is in the cache key, so it never distinguishes
//! two requests.

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CONNECTION,
    CONTENT_ENCODING, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, FROM, HOST, HeaderMap, HeaderName,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, MAX_FORWARDS,
    PROXY_AUTHORIZATION, RANGE, REFERER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT, VARY,
    VIA,
};

use crate::coding::{CODINGS, WeightedItem, coding_index, weighted};
use crate::fields::{Backslash, members, split, trim};
use crate::request_fields::compared_fields;

/// A parsed Vary field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vary {
    /// The response does not depend on request fields.
    Nothing,
    /// The response depends on these fields, in this order, without duplicates.
    Fields(Vec<HeaderName>),
    /// The response depends on more fields than a row holds.
    TooWide,
    /// No later request can be compared: `*`, a malformed list, or a field that proxies rewrite.
    Anything,
}

impl Vary {
    /// Parses the Vary lines of a response. A `*` among names counts as a single `*`.
    pub fn parse(response: &HeaderMap) -> Vary {
        let mut names = Vec::new();
        for member in members(response, &VARY) {
            match HeaderName::from_bytes(member) {
                Ok(name) if name == "*" || is_rewritten(&name) => return Vary::Anything,
                Ok(name) if names.contains(&name) => {}
                // To read more would take quadratic time on a crafted field.
                Ok(_) if names.len() == VARY_FIELDS_MAX => return Vary::TooWide,
                Ok(name) => names.push(name),
                Err(_) => return Vary::Anything,
            }
        }
        if names.is_empty() {
            Vary::Nothing
        } else {
            Vary::Fields(names)
        }
    }

    /// The named fields, if the response depends on no other field; otherwise none.
    pub fn into_names(self) -> Vec<HeaderName> {
        match self {
            Vary::Fields(names) => names,
            Vary::Nothing | Vary::TooWide | Vary::Anything => Vec::new(),
        }
    }
}

/// Returns true if an origin may receive a different value of this request field than the client
/// sent, because a proxy writes, changes or removes the field.
pub fn is_rewritten(name: &HeaderName) -> bool {
    REWRITTEN.contains(name)
}

/// Returns true if the Vary of a response names a field that proxies rewrite.
pub(crate) fn names_rewritten(response: &HeaderMap) -> bool {
    let names = members(response, &VARY).filter_map(|name| HeaderName::from_bytes(name).ok());
    names.into_iter().any(|name| is_rewritten(&name))
}

/// Maximum number of fields in a row.
pub const VARY_FIELDS_MAX: usize = 8;

/// Maximum size of a row in bytes.
pub const VARY_ROW_BYTES_MAX: usize = 4096;

/// The normalised request values that selected a stored response.
///
/// Bytes: the number of fields (1), then for each the length of the name (1), the name, 0 for
/// absent or 1 for present (1), the length of the value (2, little-endian), the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VaryRow {
    bytes: Box<[u8]>,
}

impl VaryRow {
    /// The row of a request for these fields; `None` if it would exceed a limit, or could match a
    /// request for which the origin would receive other values.
    pub fn select(names: &[HeaderName], request: &HeaderMap) -> Option<VaryRow> {
        let mut row = RowWriter::new(names.len())?;
        row.push_all(names, request)?;
        row.end()
    }

    /// A row that matches only requests with the same fields. In addition to `names` it has all
    /// fields except those for caches, connections and single requests (for example a trace
    /// identifier). `None` as for [`VaryRow::select`].
    ///
    /// For responses that an origin may have made because of any of these fields.
    pub fn select_all_fields(names: &[HeaderName], request: &HeaderMap) -> Option<VaryRow> {
        let mut row = RowWriter::new(names.len() + 1)?;
        row.push_all(names, request)?;
        let value = compared_fields(request, VARY_ROW_BYTES_MAX)?;
        row.push(ALL_FIELDS, Some(&value))?;
        row.end()
    }

    /// Returns true if the row is from [`VaryRow::select_all_fields`].
    pub fn is_of_all_fields(&self) -> bool {
        let mut reader = RowReader::new(&self.bytes);
        std::iter::from_fn(|| reader.next_field()).any(|field| field.name == ALL_FIELDS)
    }

    /// Returns true if a request would have selected this row.
    pub fn matches(&self, request: &HeaderMap) -> bool {
        let mut reader = RowReader::new(&self.bytes);
        std::iter::from_fn(|| reader.next_field()).all(|field| {
            if field.name == ALL_FIELDS {
                return compared_fields(request, VARY_ROW_BYTES_MAX).as_deref() == field.value;
            }
            let Ok(name) = HeaderName::from_bytes(field.name) else {
                return false;
            };
            // A store from an earlier version may contain such a row.
            !is_rewritten(&name)
                && !is_too_long(&name, request)
                && normalised(&name, request).as_deref() == field.value
        })
    }

    /// Returns true if the row compares this field.
    pub fn names(&self, name: &HeaderName) -> bool {
        let mut reader = RowReader::new(&self.bytes);
        let is_it = |field: RowField<'_>| field.name == name.as_str().as_bytes();
        std::iter::from_fn(|| reader.next_field()).any(is_it)
    }

    /// The encoded row, to be stored with the response.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes a row; `None` if the bytes are not a valid row.
    pub fn from_bytes(bytes: &[u8]) -> Option<VaryRow> {
        if bytes.len() > VARY_ROW_BYTES_MAX {
            return None;
        }
        let mut reader = RowReader::new(bytes);
        while let Some(field) = reader.next_field() {
            if field.name != ALL_FIELDS {
                HeaderName::from_bytes(field.name).ok()?;
            }
        }
        let row = || VaryRow {
            bytes: bytes.into(),
        };
        reader.is_at_end().then(row)
    }
}

/// Builds a row.
struct RowWriter {
    bytes: Vec<u8>,
}

impl RowWriter {
    fn new(fields: usize) -> Option<RowWriter> {
        let count = u8::try_from(fields).ok()?;
        (fields <= VARY_FIELDS_MAX).then(|| RowWriter { bytes: vec![count] })
    }

    fn push_all(&mut self, names: &[HeaderName], request: &HeaderMap) -> Option<()> {
        for name in names {
            if is_rewritten(name) || is_too_long(name, request) {
                return None;
            }
            let value = normalised(name, request);
            self.push(name.as_str().as_bytes(), value.as_deref())?;
        }
        Some(())
    }

    fn push(&mut self, name: &[u8], value: Option<&[u8]>) -> Option<()> {
        self.bytes.push(u8::try_from(name.len()).ok()?);
        self.bytes.extend_from_slice(name);
        self.bytes.push(u8::from(value.is_some()));
        let value = value.unwrap_or_default();
        let length = u16::try_from(value.len()).ok()?;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(value);
        (self.bytes.len() <= VARY_ROW_BYTES_MAX).then_some(())
    }

    fn end(self) -> Option<VaryRow> {
        let bytes = self.bytes.into_boxed_slice();
        Some(VaryRow { bytes })
    }
}

struct RowField<'a> {
    name: &'a [u8],
    value: Option<&'a [u8]>,
}

struct RowReader<'a> {
    rest: &'a [u8],
    fields_left: u8,
    damaged: bool,
}

impl<'a> RowReader<'a> {
    fn new(bytes: &'a [u8]) -> RowReader<'a> {
        match bytes.split_first() {
            Some((&fields_left, rest)) if usize::from(fields_left) <= VARY_FIELDS_MAX => {
                RowReader {
                    rest,
                    fields_left,
                    damaged: false,
                }
            }
            _ => RowReader {
                rest: &[],
                fields_left: 0,
                damaged: true,
            },
        }
    }

    fn next_field(&mut self) -> Option<RowField<'a>> {
        self.fields_left = self.fields_left.checked_sub(1)?;
        let field = self.take_field();
        if field.is_none() {
            self.damaged = true;
            self.fields_left = 0;
        }
        field
    }

    fn take_field(&mut self) -> Option<RowField<'a>> {
        let name_length = self.take(1)?[0];
        let name = self.take(usize::from(name_length))?;
        let present = self.take(1)?[0];
        let value_length: [u8; 2] = self.take(2)?.try_into().ok()?;
        let value = self.take(usize::from(u16::from_le_bytes(value_length)))?;
        match present {
            0 if value.is_empty() => Some(RowField { name, value: None }),
            1 => Some(RowField {
                name,
                value: Some(value),
            }),
            _ => None,
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn is_at_end(&self) -> bool {
        !self.damaged && self.rest.is_empty()
    }
}

/// Returns true if a response has a coding that the Accept-Encoding row does not distinguish.
///
/// The row drops codings other than its four. A client that sent only `deflate` shares the row with
/// a client that accepts only `identity`; content in `deflate` would be sent to both.
pub(crate) fn coding_escapes_row(
    names: &[HeaderName],
    request: &HeaderMap,
    response: &HeaderMap,
) -> bool {
    names.contains(&ACCEPT_ENCODING)
        && request.contains_key(ACCEPT_ENCODING)
        && members(response, &CONTENT_ENCODING).any(|coding| coding_index(coding).is_none())
}

/// Returns true if a field is longer than a row. Such a value is not normalised, because that takes
/// time for every byte: no response is stored for it, and no stored response answers it.
fn is_too_long(name: &HeaderName, request: &HeaderMap) -> bool {
    let lines = request.get_all(name).iter();
    lines.map(|line| line.len()).sum::<usize>() > VARY_ROW_BYTES_MAX
}

/// The normalised value of a request field; `None` if it is absent.
fn normalised(name: &HeaderName, request: &HeaderMap) -> Option<Vec<u8>> {
    if *name == HOST || !request.contains_key(name) {
        return None;
    }
    if *name == ACCEPT_ENCODING {
        return Some(accepted_codings(request).unwrap_or_else(|| list(name, request)));
    }
    if *name == ACCEPT_LANGUAGE {
        return Some(ordered_languages(request).unwrap_or_else(|| list(name, request)));
    }
    if *name == ACCEPT || *name == ACCEPT_CHARSET {
        return Some(media_ranges(name, request));
    }
    let lines = request
        .get_all(name)
        .iter()
        .map(|line| trim(line.as_bytes()));
    if BYTE_FOR_BYTE.contains(name) {
        return Some(lines.collect::<Vec<_>>().join(&b", "[..]));
    }
    Some(list(name, request))
}

fn list(name: &HeaderName, request: &HeaderMap) -> Vec<u8> {
    members(request, name).collect::<Vec<_>>().join(&b","[..])
}

fn media_ranges(name: &HeaderName, request: &HeaderMap) -> Vec<u8> {
    let one = |member| {
        let mut parts = split(member, b';', Backslash::Escapes).map(<[u8]>::to_vec);
        let mut out = parts.next().unwrap_or_default();
        out.make_ascii_lowercase();
        parts.fold(out, |mut out, parameter| {
            out.push(b';');
            out.extend_from_slice(&parameter);
            out
        })
    };
    members(request, name)
        .map(one)
        .collect::<Vec<_>>()
        .join(&b","[..])
}

/// The codings in [`CODINGS`] with q > 0; `None` if a weight is malformed.
///
/// The unparsed value is then used unchanged; it contains a `;`, so it never equals a set.
fn accepted_codings(request: &HeaderMap) -> Option<Vec<u8>> {
    let mut listed = [None; CODINGS.len()];
    let mut others = None;
    for member in members(request, &ACCEPT_ENCODING) {
        let WeightedItem { item, weight } = weighted(member)?;
        let accepted = weight > 0;
        if item == b"*" {
            others = Some(accepted);
        } else if let Some(at) = coding_index(item) {
            listed[at] = Some(accepted);
        }
    }
    let accepted = |at: usize| match (listed[at], others) {
        (Some(stated), _) | (None, Some(stated)) => stated,
        // Content without a coding is acceptable unless the field excludes it (RFC 9110 12.5.3).
        (None, None) => CODINGS[at] == "identity",
    };
    let names = (0..CODINGS.len())
        .filter(|&at| accepted(at))
        .map(|at| CODINGS[at]);
    Some(names.collect::<Vec<_>>().join(",").into_bytes())
}

/// Language tags by falling weight, tags with equal weight in the order listed; unwanted tags last,
/// marked.
fn ordered_languages(request: &HeaderMap) -> Option<Vec<u8>> {
    let parsed: Option<Vec<_>> = members(request, &ACCEPT_LANGUAGE).map(weighted).collect();
    let mut languages = parsed?;
    languages.sort_by_key(|language| std::cmp::Reverse(language.weight));
    let spelled = languages.iter().map(|language| {
        let mut tag = language.item.to_ascii_lowercase();
        if language.weight == 0 {
            tag.insert(0, b'!');
        }
        tag
    });
    Some(spelled.collect::<Vec<_>>().join(&b","[..]))
}

/// Fields in which every byte may be significant.
const BYTE_FOR_BYTE: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    FROM,
    PROXY_AUTHORIZATION,
    REFERER,
    USER_AGENT,
];

/// The name under which a row holds all fields of a request. A field name never contains a colon,
/// so a version that does not know this entry rejects the row.
const ALL_FIELDS: &[u8] = b":fields";

/// Fields that reach the origin with a different value than the client sent: fields that this proxy
/// adds to (Via, Forwarded, X-Forwarded-For, CDN-Loop), fields that it replaces for a validation or
/// a range, fields of the connection, and the proxy's own credentials for a parent.
const REWRITTEN: [HeaderName; 23] = [
    HeaderName::from_static("cdn-loop"),
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    FORWARDED,
    HeaderName::from_static("hashcache-link"),
    HeaderName::from_static("http2-settings"),
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    HeaderName::from_static("keep-alive"),
    MAX_FORWARDS,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    RANGE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
];

#[cfg(test)]
mod tests;
