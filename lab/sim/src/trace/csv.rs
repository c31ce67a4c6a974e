//! Comma-separated values (RFC 4180) whose first line names the columns, in any order: `url`,
//! and where there are `time` (seconds), `client`, `bytes`, `group` and `cacheable` (0 or 1). Other
//! columns are passed over. A quoted field may have commas and doubled quotes, but no line feed.
//!
//! `hashcache sim generate` writes this form ([`Writer`]).

use std::io::{self, Write};
use std::ops::Range;

use super::fields::{micros, number};
use super::{BYTE_ORDER_MARK, Reason, Request};

/// Where the columns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Of each of [`NAMES`].
    at: [Option<usize>; NAMES.len()],
    /// Fields that a line must have.
    count: usize,
}

impl Columns {
    /// Reads the first line; `None` if no column has URLs.
    pub fn from_line(line: &[u8]) -> Option<Self> {
        let line = line.trim_ascii_end();
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let names: Vec<&[u8]> = line
            .split(|byte| *byte == b',')
            .map(|name| name.trim_ascii().trim_quotes())
            .collect();
        let place = |known: &[&str]| {
            let is_known = |name: &&[u8]| {
                known
                    .iter()
                    .any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
            };
            names.iter().position(is_known)
        };
        let at = NAMES.map(place);
        at[URL].map(|_| Self {
            at,
            count: names.len(),
        })
    }

    /// Reads a line. `scratch` takes its fields without their quotes.
    pub fn parse<'a>(&self, line: &[u8], scratch: &'a mut Vec<u8>) -> Result<Request<'a>, Reason> {
        scratch.clear();
        let mut fields: [Range<usize>; NAMES.len()] = std::array::from_fn(|_| 0..0);
        let (mut rest, mut found) = (Some(line), 0);
        while let Some(text) = rest {
            let from = scratch.len();
            rest = field(text, scratch)?;
            if let Some(column) = self.at.iter().position(|at| *at == Some(found)) {
                fields[column] = from..scratch.len();
            }
            found += 1;
        }
        if found != self.count {
            return Err(Reason::Fields { wanted: self.count });
        }
        let [url, time, client, bytes, group, cacheable] = fields.map(|range| &scratch[range]);
        if url.is_empty() {
            return Err(Reason::Name);
        }
        Ok(Request {
            time_us: match time {
                b"" => 0,
                text => micros(text).ok_or(Reason::Time)?,
            },
            client,
            name: url,
            bytes: match bytes {
                b"" => None,
                text => Some(number(text).ok_or(Reason::Size)?),
            },
            group,
            may_be_stored: match cacheable {
                b"" | b"1" => true,
                b"0" => false,
                _ => return Err(Reason::Cacheable),
            },
        })
    }
}

trait TrimQuotes {
    fn trim_quotes(&self) -> &Self;
}

impl TrimQuotes for [u8] {
    fn trim_quotes(&self) -> &Self {
        let inner = self
            .strip_prefix(b"\"")
            .and_then(|it| it.strip_suffix(b"\""));
        inner.unwrap_or(self)
    }
}

/// Appends the first field of `text` to `scratch`; what follows its comma, `None` after the last.
fn field<'a>(text: &'a [u8], scratch: &mut Vec<u8>) -> Result<Option<&'a [u8]>, Reason> {
    let Some(mut quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| *byte == b',');
        scratch.extend_from_slice(&text[..end.unwrap_or(text.len())]);
        return Ok(end.map(|at| &text[at + 1..]));
    };
    loop {
        let quote = quoted.iter().position(|byte| *byte == b'"');
        let at = quote.ok_or(Reason::Quotes)?;
        scratch.extend_from_slice(&quoted[..at]);
        match &quoted[at + 1..] {
            [b'"', rest @ ..] => {
                scratch.push(b'"');
                quoted = rest;
            }
            [b',', rest @ ..] => return Ok(Some(rest)),
            [] => return Ok(None),
            _ => return Err(Reason::Quotes),
        }
    }
}

/// Writes requests that `Columns` reads back.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Begins with the line of columns.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn new(mut output: W) -> io::Result<Self> {
        writeln!(output, "time,client,url,bytes,group,cacheable")?;
        Ok(Self { output })
    }

    /// Writes a request. Line feeds in its names, which no line can have, become spaces.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, request: &Request<'_>) -> io::Result<()> {
        let (seconds, micros) = (request.time_us / 1_000_000, request.time_us % 1_000_000);
        write!(self.output, "{seconds}.{micros:06},")?;
        self.write_text(request.client)?;
        self.output.write_all(b",")?;
        self.write_text(request.name)?;
        self.output.write_all(b",")?;
        if let Some(bytes) = request.bytes {
            write!(self.output, "{bytes}")?;
        }
        self.output.write_all(b",")?;
        self.write_text(request.group)?;
        writeln!(self.output, ",{}", u8::from(request.may_be_stored))
    }

    /// Writes out what is buffered, and returns the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }

    fn write_text(&mut self, text: &[u8]) -> io::Result<()> {
        let is_plain = |byte: &u8| !matches!(byte, b',' | b'"' | b'\r' | b'\n');
        if text.iter().all(is_plain) {
            return self.output.write_all(text);
        }
        let mut quoted = Vec::with_capacity(text.len() + 2);
        quoted.push(b'"');
        for byte in text {
            match byte {
                b'"' => quoted.extend_from_slice(b"\"\""),
                b'\n' => quoted.push(b' '),
                byte => quoted.push(*byte),
            }
        }
        quoted.push(b'"');
        self.output.write_all(&quoted)
    }
}

/// Names of the columns, in the order of [`Columns::parse`].
const NAMES: [&[&str]; 6] = [
    &["url", "name", "object", "key", "id", "obj_id"],
    &["time", "timestamp", "clock_time"],
    &["client", "user"],
    &["bytes", "size", "obj_size"],
    &["group", "referer", "page"],
    &["cacheable"],
];
const URL: usize = 0;
