//! The proxy's access log, read line by line while it is written.
//!
//! Used by all parts to compare what a client received with what the proxy logged. Invariant: a
//! line that is not a JSON object with our keys is an error and is never skipped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

/// One request or tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The method.
    pub method: String,
    /// Host and port asked for.
    pub authority: String,
    /// Path and query.
    pub target: String,
    /// The status sent.
    pub status: u64,
    /// The outcome, in the words of RFC 9211 where it has one.
    pub outcome: String,
    /// Bytes sent to the client, heads included.
    pub client_bytes: u64,
    /// Bytes received from upstream, heads included.
    pub origin_bytes: u64,
    /// The error, if any.
    pub error: Option<String>,
}

impl Line {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let value: Value = serde_json::from_str(line)
            .with_context(|| format!("a line of the access log is no JSON: {line}"))?;
        let text = |key: &str| {
            let text = value[key].as_str().map(str::to_owned);
            text.with_context(|| format!("no text `{key}` in {line}"))
        };
        let number = |key: &str| {
            let number = value[key].as_u64();
            number.with_context(|| format!("no number `{key}` in {line}"))
        };
        Ok(Self {
            method: text("http.request.method")?,
            authority: text("url.authority")?,
            target: text("url.original")?,
            status: number("http.response.status_code")?,
            outcome: text("hashcache.outcome")?,
            client_bytes: number("http.response.bytes")?,
            origin_bytes: number("hashcache.origin_bytes")?,
            error: value["error.code"].as_str().map(str::to_owned),
        })
    }

    /// Whether it is a tunnel that was established.
    pub fn is_tunnel(&self) -> bool {
        self.method == "CONNECT" && (200..300).contains(&self.status)
    }
}

/// Bytes to clients and from origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Lines.
    pub count: usize,
    /// Bytes sent to clients.
    pub client_bytes: u64,
    /// Bytes received from origins.
    pub origin_bytes: u64,
}

impl Sums {
    /// Of these lines.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Self {
        lines.into_iter().fold(Self::default(), |sums, line| Self {
            count: sums.count + 1,
            client_bytes: sums.client_bytes + line.client_bytes,
            origin_bytes: sums.origin_bytes + line.origin_bytes,
        })
    }

    /// The part of 1,000 bytes sent to clients that was not received from origins; 0 if no bytes
    /// were sent.
    pub fn cached_per_mille(&self) -> u64 {
        let cached = self.client_bytes.saturating_sub(self.origin_bytes);
        (cached.saturating_mul(1000))
            .checked_div(self.client_bytes)
            .unwrap_or(0)
    }
}

/// A log that a proxy writes.
#[derive(Debug)]
pub struct AccessLog {
    path: PathBuf,
    read: usize,
}

impl AccessLog {
    /// The log at `path`, from its beginning.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// All lines since the last call. Waits until the log stops growing: a line is written a moment
    /// after its client has received the response.
    pub async fn next(&mut self) -> anyhow::Result<Vec<Line>> {
        let mut size = self.size();
        let mut quiet = Duration::ZERO;
        while quiet < QUIET_TIME {
            tokio::time::sleep(LOOK_TIME).await;
            let now = self.size();
            quiet = if now == size {
                quiet + LOOK_TIME
            } else {
                Duration::ZERO
            };
            size = now;
        }
        let text =
            fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let text = String::from_utf8(text).context("the access log is no text")?;
        let fresh = text.get(self.read..).context("the access log shrank")?;
        self.read = text.len();
        fresh.lines().map(Line::parse).collect()
    }

    fn size(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }
}

/// Several times as long as the proxy may buffer a line.
const QUIET_TIME: Duration = Duration::from_millis(500);
const LOOK_TIME: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_our_keys_is_read_and_another_is_refused() {
        let line = r#"{"http.request.method":"GET","url.authority":"a.example","url.original":"/x",
            "http.response.status_code":206,"hashcache.outcome":"partial",
            "http.response.bytes":12,"hashcache.origin_bytes":3}"#;
        let read = Line::parse(line).unwrap();
        assert_eq!(
            (read.status, read.client_bytes, read.origin_bytes),
            (206, 12, 3)
        );
        assert_eq!((read.outcome.as_str(), read.error), ("partial", None));
        assert!(Line::parse("GET / 200").is_err());
        assert!(Line::parse("{\"http.request.method\":\"GET\"}").is_err());
    }

    #[test]
    fn the_share_from_the_cache_is_what_did_not_come_from_origins() {
        let line = |client_bytes, origin_bytes| Line {
            client_bytes,
            origin_bytes,
            ..Line::default()
        };
        let sums = Sums::of(&[line(900, 0), line(100, 110)]);
        assert_eq!((sums.count, sums.cached_per_mille()), (2, 890));
        assert_eq!(Sums::of(&[line(10, 11)]).cached_per_mille(), 0);
        assert_eq!(Sums::default().cached_per_mille(), 0);
    }
}
