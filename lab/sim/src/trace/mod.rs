//! Requests of a trace: a file in one of the formats that proxies, servers, browsers and simulators
//! write.
//!
//! `input` unpacks, `lines` cuts the input into lines of bytes, and one file per format says what a
//! line means. Each line is read once and forgotten: memory does not grow with the
//! trace, except for HAR, which is one JSON value: `har` says what is kept of it.
//!
//! Invariant: whatever the input has, reading does not panic and a line above [`LINE_BYTES_MAX`] is
//! not kept. A line that says no request is [`Damage`], with its number.

mod bu;
mod common_log;
mod csv;
mod fields;
pub mod har;
mod input;
mod json_log;
mod lines;
mod oracle;
mod squid;

use std::fmt;
use std::io::{self, Cursor, Read as _};

pub use csv::Writer;
use input::unpacked;
use lines::{Line, Lines};

/// Longest line that is read, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// One request: what a line of a trace says. Names are bytes: URLs in old logs have spaces, control
/// characters and any octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// When it was made, microseconds since whatever the trace counts from; 0 if it does not say.
    pub time_us: u64,
    /// Who made it; empty if the trace does not say.
    pub client: &'a [u8],
    /// What is requested, mostly an URL.
    pub name: &'a [u8],
    /// Octets of the response; `None` if the trace does not say, as of what was validated or was
    /// answered by the client's own cache.
    pub bytes: Option<u64>,
    /// The page that it belongs to, as the trace names it; empty: none is known.
    pub group: &'a [u8],
    /// Whether a cache may store the response, as far as method and status say.
    pub may_be_stored: bool,
}

/// How requests are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Squid's native access log
    Squid,
    /// The common or combined log of Apache and nginx
    Combined,
    /// The trace of Boston University's browsers, 1994 and 1995, as one file
    Bu,
    /// The access log of this proxy as JSON, one object per line
    Json,
    /// HAR 1.2, as browsers write it
    Har,
    /// Comma-separated values; the first line names the columns, of which `url` must be one
    Csv,
    /// libCacheSim's `oracleGeneral`: binary records of 24 bytes
    Oracle,
}

impl Format {
    /// All there are. Formats with more structure come first: the first that fits is taken.
    pub const ALL: [Self; 7] = [
        Self::Json,
        Self::Har,
        Self::Squid,
        Self::Bu,
        Self::Combined,
        Self::Csv,
        Self::Oracle,
    ];

    /// What the first bytes of a trace are written in, if they tell.
    fn from_head(head: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.fits(head))
    }

    fn fits(self, head: &[u8]) -> bool {
        let mut lines = head.split(|byte| *byte == b'\n').take(LINES_LOOKED_AT);
        let mut scratch = Vec::new();
        match self {
            Self::Har => {
                let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
                text.trim_ascii_start().first() == Some(&b'{')
            }
            Self::Csv => lines
                .next()
                .is_some_and(|line| csv::Columns::from_line(line).is_some()),
            Self::Oracle => oracle::fits(head),
            Self::Json => lines.any(|line| json_log::parse(line, &mut scratch).is_ok()),
            Self::Squid => lines.any(|line| squid::parse(line).is_ok()),
            Self::Bu => lines.any(|line| bu::parse(line).is_ok()),
            Self::Combined => lines.any(|line| common_log::parse(line, &mut scratch).is_ok()),
        }
    }
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Longer than [`LINE_BYTES_MAX`].
    #[error("longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The line was cut off, or is of another format.
    #[error("it does not have the {wanted} fields of the format")]
    Fields {
        /// Fields that the format has.
        wanted: usize,
    },
    /// A quoted field has no end, or text follows it.
    #[error("a quote is not closed, or not followed by a separator")]
    Quotes,
    /// The line is no JSON object with the keys of the format.
    #[error("it is no JSON object with the keys of the format")]
    Json,
    /// The time is no time.
    #[error("the time cannot be read")]
    Time,
    /// The size is no number.
    #[error("the size cannot be read")]
    Size,
    /// The status is no number of three digits.
    #[error("the status cannot be read")]
    Status,
    /// Method, URL and protocol are not there.
    #[error("the request line has no method and URL")]
    RequestLine,
    /// No name.
    #[error("the name is empty")]
    Name,
    /// A column that says yes or no says something else.
    #[error("the column `cacheable` is neither 0 nor 1")]
    Cacheable,
    /// The end of a file is not the end of a record.
    #[error("the file ends within a record")]
    Cut,
}

/// A line that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its number, from 1; of binary records and of entries, theirs.
    pub line: u64,
    /// What is wrong with it.
    pub reason: Reason,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.reason)
    }
}

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The input.
    #[error("cannot read")]
    Io(#[from] io::Error),
    /// The input has no bytes.
    #[error("it is empty")]
    Empty,
    /// The first lines are of no known format.
    #[error("the format is not recognised from the first lines")]
    Unknown,
    /// The first line of a CSV file names no column of URLs.
    #[error("the first line names no column `url`")]
    Columns,
    /// A HAR file that is none.
    #[error("this is no HAR file")]
    Har(#[from] har::HarError),
}

/// A trace that is being read.
pub struct Trace {
    lines: Lines,
    parser: Parser,
    format: Format,
    /// Bytes of fields that a line does not have as such.
    scratch: Vec<u8>,
}

enum Parser {
    Squid,
    Combined,
    Json,
    Bu,
    Csv(csv::Columns),
    Oracle,
    Har(Box<har::Entries>),
}

impl Trace {
    /// Reads `input`, which may be packed by gzip or zstd. `format`: `None` recognises it from the
    /// first lines.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn open(
        input: Box<dyn io::Read + Send>,
        format: Option<Format>,
    ) -> Result<Self, TraceError> {
        let mut input = unpacked(input)?;
        let mut head = Vec::new();
        (&mut input).take(HEAD_BYTES).read_to_end(&mut head)?;
        if head.is_empty() {
            return Err(TraceError::Empty);
        }
        let format = match format {
            Some(format) => format,
            None => Format::from_head(&head).ok_or(TraceError::Unknown)?,
        };
        let mut lines = Lines::new(Box::new(Cursor::new(head).chain(input)));
        let parser = match format {
            Format::Squid => Parser::Squid,
            Format::Combined => Parser::Combined,
            Format::Json => Parser::Json,
            Format::Bu => Parser::Bu,
            Format::Oracle => Parser::Oracle,
            Format::Csv => Parser::Csv(match lines.next_line()? {
                Some(Line {
                    bytes: Ok(first), ..
                }) => csv::Columns::from_line(first).ok_or(TraceError::Columns)?,
                _ => return Err(TraceError::Columns),
            }),
            Format::Har => {
                let entries = har::read(lines.into_input())?;
                lines = Lines::new(Box::new(io::empty()));
                Parser::Har(Box::new(har::Entries::new(entries)))
            }
        };
        Ok(Self {
            lines,
            parser,
            format,
            scratch: Vec::new(),
        })
    }

    /// The format that it is read as.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The next request, or what is wrong with the next line; `None` at the end. After damage the
    /// next line follows.
    ///
    /// # Errors
    /// The input cannot be read.
    #[expect(
        clippy::should_implement_trait,
        reason = "a request borrows the line it is read from"
    )]
    pub fn next(&mut self) -> io::Result<Option<Result<Request<'_>, Damage>>> {
        let Self {
            lines,
            parser,
            scratch,
            ..
        } = self;
        if let Parser::Har(entries) = parser {
            return Ok(entries.next_request());
        }
        let line = match parser {
            Parser::Oracle => lines.next_record(oracle::RECORD_BYTES)?,
            _ => lines.next_line()?,
        };
        Ok(line.map(|line| {
            let parsed = line.bytes.and_then(|bytes| match parser {
                Parser::Squid => squid::parse(bytes),
                Parser::Json => json_log::parse(bytes, scratch),
                Parser::Bu => bu::parse(bytes),
                Parser::Combined => common_log::parse(bytes, scratch),
                Parser::Csv(columns) => columns.parse(bytes, scratch),
                Parser::Oracle => oracle::parse(bytes, scratch),
                Parser::Har(_) => unreachable!("has no lines"),
            });
            let damage = |reason| Damage {
                line: line.number,
                reason,
            };
            parsed.map_err(damage)
        }))
    }
}

/// UTF-8's, which some programs write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Bytes from which the format is recognised.
const HEAD_BYTES: u64 = 256 << 10;
/// Lines of them: the first ones may be damaged.
const LINES_LOOKED_AT: usize = 20;

#[cfg(test)]
mod tests;
