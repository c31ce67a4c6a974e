//! Access logs in Squid's form, which Squid and our proxy write.
//!
//! Used by all cases, to compare what a child and its parent say of one request, and by `overhead`,
//! to count hits. Invariant: a line
//! that does not have Squid's ten fields is an error and is never skipped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// One request or tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The address of the client.
    pub client: String,
    /// `TCP_MISS` and the like.
    pub code: String,
    pub status: u16,
    pub method: String,
    pub url: String,
    /// `FIRSTUP_PARENT` and the like; with `TIMEOUT_` before it if a query had no answer.
    pub hierarchy: String,
    /// Whom it was fetched from.
    pub from: String,
}

impl Line {
    /// Parses a line of a log.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, client, result, _, method, url, _, from, _] = fields[..] else {
            bail!("not Squid's form of an access log: {line:?}");
        };
        let pair = |text: &str| {
            let pair = text.split_once('/');
            let (left, right) = pair.with_context(|| format!("no `/` in {text:?}: {line:?}"))?;
            anyhow::Ok((left.to_owned(), right.to_owned()))
        };
        let ((code, status), (hierarchy, from)) = (pair(result)?, pair(from)?);
        Ok(Self {
            client: client.to_owned(),
            code,
            status: status
                .parse()
                .with_context(|| format!("no status: {line:?}"))?,
            method: method.to_owned(),
            url: url.to_owned(),
            hierarchy,
            from,
        })
    }

    /// Whether it is about a query by ICP or HTCP.
    fn is_query(&self) -> bool {
        self.code.starts_with("UDP_")
    }

    /// Checks status, code and hierarchy; each is one of those with `|` between them.
    pub fn expect(&self, status: u16, codes: &str, hierarchies: &str) -> anyhow::Result<()> {
        let holds = self.status == status
            && codes.split('|').any(|code| code == self.code)
            && hierarchies.split('|').any(|code| code == self.hierarchy);
        ensure!(holds, "{self:?}, not {status} {codes} {hierarchies}");
        Ok(())
    }
}

/// A log that a proxy writes.
#[derive(Debug)]
pub struct Log(PathBuf);

impl Log {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The lines about requests for this URL, without queries, which must be so many. Waits for
    /// them: a line is written a moment after its client has the response.
    pub async fn about<const COUNT: usize>(&self, url: &str) -> anyhow::Result<[Line; COUNT]> {
        self.lines_that(url, |_| true).await
    }

    /// The same without requests for what is stored that found nothing. A digest of a few bits an
    /// object says yes to some URLs that it does not have, so a sibling may ask in vain.
    pub async fn served<const COUNT: usize>(&self, url: &str) -> anyhow::Result<[Line; COUNT]> {
        let in_vain = |line: &Line| line.status == 504 && line.hierarchy == "HIER_NONE";
        self.lines_that(url, |line| !in_vain(line)).await
    }

    async fn lines_that<const COUNT: usize>(
        &self,
        url: &str,
        counts: impl Fn(&Line) -> bool,
    ) -> anyhow::Result<[Line; COUNT]> {
        let mut lines = vec![];
        for _ in 0..LOOKS {
            lines = self.lines()?;
            lines.retain(|line| line.url == url && !line.is_query() && counts(line));
            if lines.len() >= COUNT {
                break;
            }
            tokio::time::sleep(LOOK_TIME).await;
        }
        lines.try_into().map_err(|lines: Vec<Line>| {
            let path = self.0.display();
            anyhow::anyhow!(
                "{} lines about {url} in {path}, not {COUNT}: {lines:?}",
                lines.len()
            )
        })
    }

    /// How many lines about this URL there are now.
    pub fn count(&self, url: &str) -> anyhow::Result<usize> {
        Ok(self.lines()?.iter().filter(|line| line.url == url).count())
    }

    fn lines(&self) -> anyhow::Result<Vec<Line>> {
        let path = self.0.display();
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            text => text.with_context(|| format!("cannot read {path}"))?,
        };
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(Line::parse).collect()
    }
}

const LOOKS: u32 = 250;
const LOOK_TIME: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_programs_are_read_and_others_refused() {
        let squid = "1795448865.467     14 127.0.0.1 TCP_MISS/200 1010 GET http://a.test/x - \
                     FIRSTUP_PARENT/127.0.1.2 text/html";
        let line = Line::parse(squid).unwrap();
        assert!(line.expect(200, "TCP_MISS", "FIRSTUP_PARENT").is_ok());
        assert!(
            line.expect(200, "TCP_HIT|TCP_MISS", "FIRSTUP_PARENT|X")
                .is_ok()
        );
        assert!(line.expect(504, "TCP_MISS", "FIRSTUP_PARENT").is_err());
        assert!(line.expect(200, "TCP_HIT", "FIRSTUP_PARENT").is_err());
        assert!(
            line.expect(200, "TCP_MISS", "TIMEOUT_FIRSTUP_PARENT")
                .is_err()
        );
        let ours = "1795297622.357    234 192.0.2.7 TCP_HIT/200 5120 GET http://a.test/x - \
                    HIER_NONE/- text/html";
        let line = Line::parse(ours).unwrap();
        assert_eq!(
            (line.hierarchy.as_str(), line.from.as_str()),
            ("HIER_NONE", "-")
        );
        assert!(Line::parse(&format!("{ours} x")).is_err());
        assert!(Line::parse("192.0.2.7 - - [x] \"GET / HTTP/1.1\" 200 5").is_err());
    }
}
