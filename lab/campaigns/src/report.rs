//! The report of a campaign: rows that passed, failed or only inform, as text or as JSON.
//!
//! Used by the commands that check the proxy against a bar. A run takes minutes, so each row is
//! printed at once; on standard error when standard output has the JSON.
//!
//! Invariant: a run in which a row failed ends with a failure.

use std::fmt;

use anyhow::bail;
use hashcache_testkit::scenario;
use serde_json::{Map, Value, json};

/// The rows of a run.
#[derive(Debug)]
pub struct Report {
    command: String,
    json: bool,
    rows: Vec<Row>,
}

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bar was met.
    Passed,
    /// The bar was not met.
    Failed,
    /// It could not be tried here; the row says why.
    Skipped,
    /// A figure without a bar.
    Told,
}

#[derive(Debug)]
struct Row {
    what: String,
    verdict: Verdict,
    detail: String,
    figures: Value,
}

impl Report {
    /// Begins the report of `command`.
    pub fn new(command: &str, json: bool) -> Self {
        Self {
            command: command.to_owned(),
            json,
            rows: vec![],
        }
    }

    /// A row with a bar.
    pub fn check(&mut self, what: impl Into<String>, held: bool, detail: impl Into<String>) {
        self.figures(what, held.into(), detail, Value::Null);
    }

    /// A row for an attempt that succeeded or failed with an error.
    pub fn outcome(&mut self, what: impl Into<String>, outcome: anyhow::Result<String>) {
        match outcome {
            Ok(detail) => self.check(what, true, detail),
            Err(error) => self.check(what, false, format!("{error:#}")),
        }
    }

    /// A row for something that cannot be tried here.
    pub fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.figures(what, Verdict::Skipped, why, Value::Null);
    }

    /// A row without a bar.
    pub fn tell(&mut self, what: impl Into<String>, detail: impl Into<String>) {
        self.figures(what, Verdict::Told, detail, Value::Null);
    }

    /// A row with additional figures in the JSON.
    pub fn figures(
        &mut self,
        what: impl Into<String>,
        verdict: Verdict,
        detail: impl Into<String>,
        figures: Value,
    ) {
        let row = Row {
            what: what.into(),
            verdict,
            detail: detail.into(),
            figures,
        };
        if self.json {
            eprintln!("{row}");
        } else {
            println!("{row}");
        }
        self.rows.push(row);
    }

    /// A row for one part of a scenario, which failed if it has a fault. `which` says where it was
    /// played, if that is not obvious.
    pub fn verdict(&mut self, which: &str, verdict: &scenario::Verdict) {
        let name = match which {
            "" => verdict.name.clone(),
            which => format!("{which}: {}", verdict.name),
        };
        let seen = std::slice::from_ref(&verdict.seen);
        let detail = [seen, &verdict.faults[..]].concat().join("\n        ");
        let figures = verdict.figures.iter();
        let figures: Map<String, Value> = figures
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        self.figures(name, verdict.is_well().into(), detail, figures.into());
    }

    /// Ends the run; the error names the failed rows.
    pub fn finish(self) -> anyhow::Result<()> {
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| row.verdict == Verdict::Failed)
            .map(|row| row.what.as_str())
            .collect();
        let count = |verdict| {
            self.rows
                .iter()
                .filter(|row| row.verdict == verdict)
                .count()
        };
        if self.json {
            let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
            let all = json!({ "command": self.command, "passed": failed.is_empty(), "rows": rows });
            println!("{all:#}");
        } else {
            println!(
                "{}: {} passed, {} failed, {} skipped",
                self.command,
                count(Verdict::Passed),
                failed.len(),
                count(Verdict::Skipped)
            );
        }
        if !failed.is_empty() {
            bail!("{} failed: {}", self.command, failed.join("; "));
        }
        Ok(())
    }
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "verdict": self.verdict.word(),
            "detail": self.detail,
            "figures": self.figures,
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            verdict,
            detail,
            ..
        } = self;
        write!(f, "{:<7} {what:<WHAT_COLUMNS$}  {detail}", verdict.word())
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
            Self::Told => "-",
        }
    }
}

impl From<bool> for Verdict {
    fn from(held: bool) -> Self {
        if held { Self::Passed } else { Self::Failed }
    }
}

/// A number of bytes in a readable unit.
pub fn show_bytes(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut tenths, mut unit) = (bytes / 100, 0);
    while tenths >= 10_000 {
        tenths /= 1000;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
}

const WHAT_COLUMNS: usize = 46;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_row_fails_the_run() {
        let mut report = Report::new("test", false);
        report.check("good", true, "");
        report.skip("not here", "why");
        report.tell("figure", "1");
        let mut other = Report::new("test", false);
        other.outcome("bad", Err(anyhow::anyhow!("broken")));
        assert!(report.finish().is_ok());
        assert!(other.finish().unwrap_err().to_string().contains("bad"));
    }

    #[test]
    fn bytes_are_shown_with_their_unit() {
        assert_eq!(show_bytes(999), "999 B");
        assert_eq!(show_bytes(1000), "1.0 kB");
        assert_eq!(show_bytes(52_428_800), "52.4 MB");
        assert_eq!(show_bytes(u64::MAX), "18.4 EB");
    }
}
