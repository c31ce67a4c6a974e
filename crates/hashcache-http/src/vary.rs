//! Vary: which requests a stored response answers (RFC 9111 4.1).
//!
//! `storable` selects a row when a response is stored, the proxy matches it against later
//! requests. A response without Vary has no row.
//!
//! Invariant: rows are equal only where the origin may be taken to answer alike. Values are brought
//! to one spelling where the field's definition gives several spellings one meaning; letter case
//! stays wherever a definition does not call it meaningless.
//! Cost: one allocation per field of the row.
//!
//! | field | one spelling |
//! |---|---|
//! | Accept-Encoding | the set of br, gzip, identity and zstd with q > 0 |
//! | Accept-Language | the tags by falling q, in lower case, then those with q = 0 |
//! | Accept, Accept-Charset | members without blanks, in lower case up to the first parameter |
//! | Authorization, Cookie, From, Proxy-Authorization, Referer, User-Agent | byte for byte |
//! | others | lines joined, no blanks around commas outside quotes |

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_ENCODING,
    COOKIE, FROM, HeaderMap, HeaderName, PROXY_AUTHORIZATION, REFERER, USER_AGENT, VARY,
};

use crate::fields::{Backslash, members, split, trim};

/// What a response's Vary says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vary {
    /// The answer does not depend on request fields.
    Nothing,
    /// It depends on these fields, in this order, each once.
    Fields(Vec<HeaderName>),
    /// It depends on more fields than a row holds.
    TooWide,
    /// It depends on what no later request can be compared with: `*`, or no list of names.
    Anything,
}

impl Vary {
    /// Reads the Vary lines of a response. A `*` among names counts like one alone.
    pub fn parse(response: &HeaderMap) -> Vary {
        let mut names = Vec::new();
        for member in members(response, &VARY) {
            match HeaderName::from_bytes(member) {
                Ok(name) if name == "*" => return Vary::Anything,
                Ok(name) if names.contains(&name) => {}
                // Reading on would take quadratic time on a field made for it.
                Ok(_) if names.len() == VARY_FIELDS_MAX => return Vary::TooWide,
                Ok(name) => names.push(name),
                Err(_) => return Vary::Anything,
            }
        }
        match names.is_empty() {
            true => Vary::Nothing,
            false => Vary::Fields(names),
        }
    }
}

/// The most fields a row may have.
pub const VARY_FIELDS_MAX: usize = 8;

/// The most bytes a row may take.
pub const VARY_ROW_BYTES_MAX: usize = 4096;

/// The request values a stored response was chosen by, in one spelling.
///
/// Bytes: the number of fields (1), then for each the length of its name (1), the name, 0 for
/// absent or 1 for present (1), the length of its value (2, little-endian), the value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VaryRow {
    bytes: Box<[u8]>,
}

impl VaryRow {
    /// The row of a request under these fields; `None` when it would exceed a bound.
    pub fn select(names: &[HeaderName], request: &HeaderMap) -> Option<VaryRow> {
        if names.len() > VARY_FIELDS_MAX {
            return None;
        }
        let mut bytes = vec![u8::try_from(names.len()).ok()?];
        for name in names {
            if is_too_long(name, request) {
                return None;
            }
            let value = normalised(name, request);
            bytes.push(u8::try_from(name.as_str().len()).ok()?);
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.push(u8::from(value.is_some()));
            let value = value.unwrap_or_default();
            bytes.extend_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(&value);
            if bytes.len() > VARY_ROW_BYTES_MAX {
                return None;
            }
        }
        Some(VaryRow {
            bytes: bytes.into_boxed_slice(),
        })
    }

    /// Whether a request would have selected this row.
    pub fn matches(&self, request: &HeaderMap) -> bool {
        let mut reader = RowReader::new(&self.bytes);
        std::iter::from_fn(|| reader.next_field()).all(|field| {
            let Ok(name) = HeaderName::from_bytes(field.name) else {
                return false;
            };
            !is_too_long(&name, request) && normalised(&name, request).as_deref() == field.value
        })
    }

    /// The row as bytes, to be kept with the response.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads a row back; `None` when the bytes are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<VaryRow> {
        if bytes.len() > VARY_ROW_BYTES_MAX {
            return None;
        }
        let mut reader = RowReader::new(bytes);
        while let Some(field) = reader.next_field() {
            HeaderName::from_bytes(field.name).ok()?;
        }
        let row = || VaryRow {
            bytes: bytes.into(),
        };
        reader.is_at_end().then(row)
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

/// Whether a response has a coding that the Accept-Encoding row does not tell apart.
///
/// The row forgets codings other than its four. A client that sent `deflate` alone shares its row
/// with one that sent nothing acceptable but `identity`; content in `deflate` would reach both.
pub(crate) fn coding_escapes_row(
    names: &[HeaderName],
    request: &HeaderMap,
    response: &HeaderMap,
) -> bool {
    names.contains(&ACCEPT_ENCODING)
        && request.contains_key(ACCEPT_ENCODING)
        && members(response, &CONTENT_ENCODING).any(|coding| coding_index(coding).is_none())
}

/// Whether a field is longer than a row. Such a value is not brought to its one spelling, which
/// takes time for every byte of it: no response is stored for it, and none that is answers it.
fn is_too_long(name: &HeaderName, request: &HeaderMap) -> bool {
    let lines = request.get_all(name).iter();
    lines.map(|line| line.len()).sum::<usize>() > VARY_ROW_BYTES_MAX
}

/// A request field's value in one spelling; `None` when it is absent.
fn normalised(name: &HeaderName, request: &HeaderMap) -> Option<Vec<u8>> {
    if !request.contains_key(name) {
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

/// The codings of [`CODINGS`] with q > 0; `None` when a weight cannot be read.
///
/// The unread value then serves as it stands; it holds a `;`, so it equals no set.
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
        // Without a word against it, content as it is will do (RFC 9110 12.5.3).
        (None, None) => CODINGS[at] == "identity",
    };
    let names = (0..CODINGS.len())
        .filter(|&at| accepted(at))
        .map(|at| CODINGS[at]);
    Some(names.collect::<Vec<_>>().join(",").into_bytes())
}

fn coding_index(name: &[u8]) -> Option<usize> {
    let name = if name.eq_ignore_ascii_case(b"x-gzip") {
        b"gzip"
    } else {
        name
    };
    let is = |coding: &str| coding.as_bytes().eq_ignore_ascii_case(name);
    CODINGS.iter().position(|coding| is(coding))
}

/// Language tags by falling weight, those of equal weight as listed; unwanted ones last, marked.
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

struct WeightedItem<'a> {
    item: &'a [u8],
    /// Thousandths.
    weight: u16,
}

/// `item [ ";" "q=" qvalue ]`
fn weighted(member: &[u8]) -> Option<WeightedItem<'_>> {
    let mut parts = member.split(|&b| b == b';');
    let item = trim(parts.next()?);
    let weight = match parts.next() {
        None => 1000,
        Some(parameter) => {
            let parameter = trim(parameter);
            let value = parameter
                .strip_prefix(b"q=")
                .or_else(|| parameter.strip_prefix(b"Q="))?;
            qvalue(value)?
        }
    };
    parts
        .next()
        .is_none()
        .then_some(WeightedItem { item, weight })
}

/// `0`, `0.5`, `1.000`, in thousandths.
fn qvalue(text: &[u8]) -> Option<u16> {
    let (&whole, rest) = text.split_first()?;
    let decimals = match rest {
        [] => &[][..],
        [b'.', decimals @ ..] if decimals.len() <= 3 => decimals,
        _ => return None,
    };
    let digit = |b: u8| b.is_ascii_digit().then(|| u16::from(b - b'0'));
    let mut weight = digit(whole)?;
    for place in 0..3 {
        weight = weight * 10 + decimals.get(place).map_or(Some(0), |&b| digit(b))?;
    }
    (weight <= 1000).then_some(weight)
}

/// The codings that are told apart, sorted.
const CODINGS: [&str; 4] = ["br", "gzip", "identity", "zstd"];

/// Fields whose every byte may count.
const BYTE_FOR_BYTE: [HeaderName; 6] = [
    AUTHORIZATION,
    COOKIE,
    FROM,
    PROXY_AUTHORIZATION,
    REFERER,
    USER_AGENT,
];

#[cfg(test)]
mod tests;
