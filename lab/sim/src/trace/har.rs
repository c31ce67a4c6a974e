//! HAR files (HTTP Archive 1.2), as browsers write them: one JSON value with the requests of some
//! page views. Only heads and sizes are used.
//!
//! A HAR file has no lines, so all of its entries are read at once. Invariant: of a file of at most
//! [`FILE_BYTES_MAX`] bytes at most [`ENTRIES_MAX`] entries are kept, each with the fields of
//! [`FieldName`] alone; contents are passed over.

use std::fmt;
use std::io::{self, BufReader, Cursor, Read};

use hashcache_http::{ResponseDirectives, Seconds};
use http::header::{CACHE_CONTROL, HeaderMap, HeaderValue};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::fields::{is_storable, micros_since_1970, number, seconds_east};
use super::{BYTE_ORDER_MARK, Damage, LINE_BYTES_MAX, Reason, Request};

/// Larger files are refused.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Files with more entries are refused. One entry without contents has a kilobyte or more, so a
/// file of [`FILE_BYTES_MAX`] that a browser wrote has fewer.
pub const ENTRIES_MAX: usize = 1 << 17;

/// Why a file is no HAR file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarError {
    /// Reading.
    #[error("cannot read")]
    Io(#[from] io::Error),
    /// The text.
    #[error("the text is no JSON of this form")]
    Json(#[source] serde_json::Error),
    /// The size.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// The number of entries.
    #[error("it has more than {ENTRIES_MAX} entries")]
    TooManyEntries,
}

/// A request of a view, and what is known of its response.
#[derive(Debug, Deserialize)]
pub struct Entry {
    /// The view that it belongs to.
    #[serde(rename = "pageref")]
    pub view: Option<String>,
    #[serde(rename = "startedDateTime")]
    started: Option<String>,
    /// The request.
    pub request: Head,
    /// Its response.
    pub response: Head,
}

/// The head of a request or of a response.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Head {
    /// The method, as `GET`.
    pub method: String,
    /// The URL.
    pub url: String,
    /// The status; 0: there was no response.
    pub status: i64,
    body_size: Option<i64>,
    content: Option<Content>,
    headers: Fields,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Content {
    size: Option<i64>,
}

/// The fields that are kept of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// Accept, of a request.
    Accept,
    /// Cache-Control, of a response.
    CacheControl,
    /// Referer, of a request.
    Referer,
    /// Sec-Fetch-Dest, of a request.
    SecFetchDest,
}

impl FieldName {
    fn from_name(name: &str) -> Option<Self> {
        let known = [
            ("accept", Self::Accept),
            ("cache-control", Self::CacheControl),
            ("referer", Self::Referer),
            ("sec-fetch-dest", Self::SecFetchDest),
        ];
        let found = known.iter().find(|(it, _)| name.eq_ignore_ascii_case(it));
        found.map(|(_, name)| *name)
    }
}

/// The first [`FIELDS_MAX`] fields with a [`FieldName`].
#[derive(Debug, Default)]
struct Fields(Vec<(FieldName, Box<str>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of fields")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Fields, A::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Field {
            name: String,
            value: String,
        }
        let mut kept = vec![];
        while let Some(Field { name, value }) = fields.next_element()? {
            if let Some(name) = FieldName::from_name(&name)
                && kept.len() < FIELDS_MAX
            {
                kept.push((name, value.into_boxed_str()));
            }
        }
        Ok(Fields(kept))
    }
}

/// The entries of a file, of which one more than [`ENTRIES_MAX`] are kept at most.
struct EntryList(Vec<Entry>);

impl<'de> Deserialize<'de> for EntryList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = EntryList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<EntryList, A::Error> {
        let mut kept = vec![];
        while kept.len() <= ENTRIES_MAX
            && let Some(entry) = entries.next_element()?
        {
            kept.push(entry);
        }
        while let Some(IgnoredAny) = entries.next_element()? {}
        Ok(EntryList(kept))
    }
}

impl Head {
    /// The value of the first field of this name.
    pub fn field(&self, name: FieldName) -> Option<&str> {
        self.fields(name).next()
    }

    fn fields(&self, name: FieldName) -> impl Iterator<Item = &str> {
        let fields = self.headers.0.iter();
        let named = fields.filter(move |(it, _)| *it == name);
        named.map(|(_, value)| &**value)
    }

    /// Whether Cache-Control, as far as it can be read, lets a shared cache store the response and
    /// serve it again without asking.
    fn may_be_served_again(&self) -> bool {
        let mut fields = HeaderMap::new();
        for value in self.fields(FieldName::CacheControl) {
            // Browsers write several lines of one name as one value with line feeds.
            let Ok(value) = HeaderValue::try_from(value.replace('\n', ",")) else {
                return false;
            };
            fields.append(CACHE_CONTROL, value);
        }
        let control = ResponseDirectives::parse(&fields);
        let lifetime = control.s_maxage.or(control.max_age);
        !control.no_store
            && !control.no_cache.is_response()
            && !control.private.is_response()
            && lifetime.is_none_or(|lifetime| lifetime > Seconds::ZERO)
    }
}

impl Entry {
    /// Octets of the content as sent, or as it is if that is not known (-1).
    pub fn bytes(&self) -> Option<u64> {
        let content = self.response.content.as_ref();
        let sizes = [self.response.body_size, content.and_then(|it| it.size)];
        let mut known = sizes.into_iter().flatten();
        known.find_map(|size| u64::try_from(size).ok())
    }

    /// Whether the response may be stored, as far as method, status and Cache-Control say.
    pub fn may_be_stored(&self) -> bool {
        let status = u16::try_from(self.response.status).unwrap_or(0);
        is_storable(self.request.method.as_bytes(), status) && self.response.may_be_served_again()
    }

    fn request(&self) -> Result<Request<'_>, Reason> {
        if self.request.url.is_empty() {
            return Err(Reason::Name);
        }
        if self.request.url.len() > LINE_BYTES_MAX {
            return Err(Reason::TooLong);
        }
        let started = self.started.as_deref().unwrap_or_default();
        let referer = self.request.field(FieldName::Referer).unwrap_or_default();
        Ok(Request {
            time_us: time(started.as_bytes()).ok_or(Reason::Time)?,
            client: b"",
            name: self.request.url.as_bytes(),
            bytes: self.bytes(),
            group: referer.as_bytes(),
            may_be_stored: self.may_be_stored(),
        })
    }
}

/// Reads the entries of a file, in its order.
///
/// # Errors
/// See [`HarError`].
pub fn read(input: impl Read) -> Result<Vec<Entry>, HarError> {
    #[derive(Deserialize)]
    struct File {
        log: Log,
    }
    #[derive(Deserialize)]
    struct Log {
        entries: EntryList,
    }
    let mut input = input.take(FILE_BYTES_MAX + 1);
    let mut head = Vec::new();
    let mark = BYTE_ORDER_MARK.len() as u64;
    (&mut input).take(mark).read_to_end(&mut head)?;
    if head == BYTE_ORDER_MARK {
        head.clear();
    }
    let text = BufReader::new(Cursor::new(head).chain(&mut input));
    let file: Result<File, serde_json::Error> = serde_json::from_reader(text);
    if input.limit() == 0 {
        return Err(HarError::TooLarge);
    }
    match file {
        Ok(file) if file.log.entries.0.len() > ENTRIES_MAX => Err(HarError::TooManyEntries),
        Ok(file) => Ok(file.log.entries.0),
        Err(error) if error.is_io() => Err(HarError::Io(error.into())),
        Err(error) => Err(HarError::Json(error)),
    }
}

/// Entries that become requests, one after another.
pub(super) struct Entries {
    rest: std::vec::IntoIter<Entry>,
    current: Option<Entry>,
    number: u64,
}

impl Entries {
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        Self {
            rest: entries.into_iter(),
            current: None,
            number: 0,
        }
    }

    /// The next request, or what is wrong with the entry.
    pub(super) fn next_request(&mut self) -> Option<Result<Request<'_>, Damage>> {
        self.current = self.rest.next();
        self.number += 1;
        let line = self.number;
        let request = self.current.as_ref()?.request();
        Some(request.map_err(|reason| Damage { line, reason }))
    }
}

/// `2016-05-29T16:43:56.384+00:00`, as microseconds since 1970; 0 for no text at all.
pub(super) fn time(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let (whole, mut rest) = text.split_at_checked(19)?;
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, byte)| whole[*at] != *byte) {
        return None;
    }
    let part = |from: usize, to: usize| number(&whole[from..to]);
    let date = [part(0, 4)?, part(5, 7)?, part(8, 10)?];
    let clock = [part(11, 13)?, part(14, 16)?, part(17, 19)?];
    let mut micros = 0;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        let kept = &fraction[..digits.min(6)];
        micros = number(kept)? * 10u64.pow(6 - u32::try_from(kept.len()).ok()?);
        rest = &fraction[digits..];
    }
    let east = match rest {
        b"" | b"Z" => 0,
        [sign, h1, h2, b':', m1, m2] => seconds_east(*sign, &[*h1, *h2], &[*m1, *m2])?,
        _ => return None,
    };
    micros_since_1970(date, clock, east)?.checked_add(micros)
}

/// Fields that are kept of a head.
const FIELDS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(control: &[&str]) -> Head {
        let field = |value: &&str| json!({ "name": "Cache-Control", "value": value });
        let headers: Vec<serde_json::Value> = control.iter().map(field).collect();
        serde_json::from_value(json!({ "status": 200, "headers": headers })).unwrap()
    }

    #[test]
    fn cache_control_is_read_as_the_proxy_reads_it() {
        let served: [&[&str]; 7] = [
            &[],
            &["public, max-age=05"],
            &["private=\"set-cookie\", max-age=9"],
            &["x-no-store=1"],
            &["ext=\"no-store, private\""],
            &["max-age=0, s-maxage=9"],
            &["max-age=00009"],
        ];
        for control in served {
            assert!(response(control).may_be_served_again(), "{control:?}");
        }
        let refused: [&[&str]; 7] = [
            &["No-Store"],
            &["max-age=9", "PRIVATE"],
            &["max-age=9\nno-cache"],
            &["max-age=00"],
            &["s-maxage=0, max-age=9"],
            &["max-age=x"],
            &["max-age=9\u{1}"],
        ];
        for control in refused {
            assert!(!response(control).may_be_served_again(), "{control:?}");
        }
    }

    #[test]
    fn only_the_first_known_fields_of_a_head_are_kept() {
        let field = |name: &str, value: &str| json!({ "name": name, "value": value });
        let mut headers = vec![
            field("Cookie", "much"),
            field("ACCEPT", "image/png"),
            field("Sec-Fetch-Dest", "image"),
        ];
        headers.extend((0..100).map(|n| field("referer", &n.to_string())));
        let head: Head = serde_json::from_value(json!({ "headers": headers })).unwrap();
        assert_eq!(head.headers.0.len(), FIELDS_MAX);
        assert_eq!(head.field(FieldName::Accept), Some("image/png"));
        assert_eq!(head.field(FieldName::SecFetchDest), Some("image"));
        assert_eq!(head.field(FieldName::Referer), Some("0"));
        assert_eq!(head.field(FieldName::CacheControl), None);
    }

    const BEGIN: &str = "{\"log\":{\"entries\":[";
    const ENTRY: &str = "{\"request\":{},\"response\":{}}";

    #[test]
    fn a_file_with_more_entries_or_bytes_than_the_bounds_is_refused() {
        let of = |entries: usize| {
            let list = vec![ENTRY; entries].join(",");
            read(format!("{BEGIN}{list}]}}}}").as_bytes())
        };
        assert_eq!(of(ENTRIES_MAX).unwrap().len(), ENTRIES_MAX);
        let many = of(ENTRIES_MAX + 1).unwrap_err();
        assert_eq!(many.to_string(), "it has more than 131072 entries");
        let endless = BEGIN.as_bytes().chain(io::repeat(b' '));
        assert!(matches!(read(endless), Err(HarError::TooLarge)));
        let text = format!("{BEGIN}{ENTRY}]}}}}");
        let blank = io::repeat(b' ').take(FILE_BYTES_MAX - text.len() as u64);
        assert_eq!(read(text.as_bytes().chain(blank)).unwrap().len(), 1);
    }

    #[test]
    fn times_of_browsers_are_read() {
        assert_eq!(time(b"1970-01-02T00:00:01.5Z"), Some(86_401_500_000));
        assert_eq!(time(b"1970-01-02T02:00:01+02:00"), Some(86_401_000_000));
        assert_eq!(time(b""), Some(0));
        for text in [
            "1970",
            "1970-01-02 00:00:01",
            "1970-01-02T00:00:01.Z",
            "1970-01-02T00:00:01x",
        ] {
            assert_eq!(time(text.as_bytes()), None, "{text}");
        }
    }
}
