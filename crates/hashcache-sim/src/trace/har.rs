//! HAR files (HTTP Archive 1.2), as browsers write them: one JSON value with the requests of some
//! page views. Only heads and sizes are used.
//!
//! A HAR file has no lines, so it is read as a whole, up to [`FILE_BYTES_MAX`].

use std::io::{self, Read};

use serde::Deserialize;

use super::fields::{Date, is_storable, number, since_1970};
use super::{Damage, LINE_BYTES_MAX, Reason, Request};

/// Larger files are refused.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Why a file is no HAR file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarError {
    /// Reading.
    #[error("cannot read")]
    Io(#[from] io::Error),
    /// The text.
    #[error("the text is no JSON of this form")]
    Json(#[from] serde_json::Error),
    /// The size.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    TooLarge,
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

/// The head of a request or of a response, each with the fields that it has.
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
    headers: Vec<Field>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Content {
    size: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Field {
    name: String,
    value: String,
}

impl Head {
    /// The value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers.iter();
        let found = fields.find(|field| field.name.eq_ignore_ascii_case(name))?;
        Some(&found.value)
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
        let control = self.response.field("cache-control").unwrap_or_default();
        let refused = ["no-store", "no-cache", "private", "max-age=0"];
        let status = u16::try_from(self.response.status).unwrap_or(0);
        is_storable(self.request.method.as_bytes(), status)
            && !refused.iter().any(|word| control.contains(word))
    }

    fn request(&self) -> Result<Request<'_>, Reason> {
        if self.request.url.is_empty() {
            return Err(Reason::Name);
        }
        if self.request.url.len() > LINE_BYTES_MAX {
            return Err(Reason::TooLong);
        }
        let started = self.started.as_deref().unwrap_or_default();
        let referer = self.request.field("referer").unwrap_or_default();
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
        entries: Vec<Entry>,
    }
    let mut text = Vec::new();
    input.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(HarError::TooLarge);
    }
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    let file: File = serde_json::from_slice(text)?;
    Ok(file.log.entries)
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
fn time(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let (whole, mut rest) = text.split_at_checked(19)?;
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, byte)| whole[*at] != *byte) {
        return None;
    }
    let part = |from: usize, to: usize| number(&whole[from..to]);
    let date = Date {
        year: part(0, 4)?,
        month: part(5, 7)?,
        day: part(8, 10)?,
    };
    let seconds = part(11, 13)? * 3600 + part(14, 16)? * 60 + part(17, 19)?;
    let mut micros = 0;
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        let kept = &fraction[..digits.min(6)];
        micros = number(kept)? * 10u64.pow(6 - u32::try_from(kept.len()).ok()?);
        rest = &fraction[digits..];
    }
    let offset = match rest {
        b"" | b"Z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let seconds = number(&[*h1, *h2])? * 3600 + number(&[*m1, *m2])? * 60;
            let seconds = i64::try_from(seconds).ok()?;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    Some(since_1970(date, seconds, offset)? + micros)
}

#[cfg(test)]
mod tests {
    use super::*;

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
