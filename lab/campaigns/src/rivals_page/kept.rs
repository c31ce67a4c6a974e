//! Reports of parts, kept as files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::machine::{self, Version};
use super::parts::{Form, Part};
use crate::campaign::Campaign;

/// The report of a part, and what it was measured with.
#[derive(Debug)]
pub struct Kept {
    value: Value,
}

impl Kept {
    /// The kept report of this part, if it has the same command and rivals, and this version.
    pub fn read(
        folder: &Path,
        part: Part,
        form: Form,
        version: Option<&Version>,
    ) -> anyhow::Result<Option<Self>> {
        let file = folder.join(file_name(part, form));
        let Ok(text) = fs::read(&file) else {
            return Ok(None);
        };
        let value: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is no report; delete it", file.display()))?;
        let is_version =
            |version: &Version| version.is_committed && value["version"] == json!(version.text);
        let is_same = version.is_none_or(is_version)
            && value["command"] == json!(part.words(form))
            && value["programs"] == programs();
        Ok(is_same.then_some(Self { value }))
    }

    /// Measures a part and keeps its report.
    pub fn measure(
        folder: &Path,
        part: Part,
        form: Form,
        version: &Version,
        campaign: &Campaign,
    ) -> anyhow::Result<Self> {
        let words = part.words(form);
        eprintln!("campaign: {}", words.join(" "));
        let output = Command::new(std::env::current_exe()?)
            .arg("--json")
            .arg("--binary")
            .arg(campaign.binary()?)
            .arg("--directory")
            .arg(campaign.folder())
            .args(&words)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start the campaign")?;
        // It fails if a bar was not met: that is for the page to tell.
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
            bail!(
                "`{}` ended with {} and no report",
                words.join(" "),
                output.status
            );
        };
        let value = json!({
            "command": words,
            "version": version.text,
            "measured": machine::today(),
            "machine": machine::machine(),
            "programs": programs(),
            "report": report,
        });
        let file = folder.join(file_name(part, form));
        fs::write(&file, format!("{value:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { value })
    }

    /// All of it.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// A text of it.
    pub fn text(&self, name: &str) -> &str {
        self.value[name].as_str().unwrap_or("not known")
    }

    pub fn command(&self) -> String {
        let words = self.value["command"].as_array().into_iter().flatten();
        let quoted = words.filter_map(Value::as_str).map(|word| {
            if word.contains(' ') {
                format!("\"{word}\"")
            } else {
                word.to_owned()
            }
        });
        quoted.collect::<Vec<_>>().join(" ")
    }

    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let rows = self.value["report"]["rows"].as_array();
        rows.into_iter().flatten().map(Row::new)
    }

    #[cfg(test)]
    pub fn from_value(value: Value) -> Self {
        Self { value }
    }
}

/// The rivals with their versions.
fn programs() -> Value {
    json!(machine::programs().map(|it| json!([it.name, it.version])))
}

fn file_name(part: Part, form: Form) -> String {
    format!("{}-{}.json", part.name(), form.word())
}

/// A row of a report.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub what: &'a str,
    /// What was asked for; empty where a campaign has one load.
    pub load: &'a str,
    /// The server; something else in rows that compare.
    pub server: &'a str,
    pub detail: &'a str,
    verdict: &'a str,
    figures: &'a Value,
}

impl<'a> Row<'a> {
    fn new(row: &'a Value) -> Self {
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let what = text("what");
        let (load, server) = what.split_once(": ").unwrap_or(("", what));
        Self {
            what,
            load,
            server,
            detail: text("detail"),
            verdict: text("verdict"),
            figures: &row["figures"],
        }
    }

    pub fn is_skipped(&self) -> bool {
        self.verdict == "skipped"
    }

    pub fn is_ours(&self) -> bool {
        self.server.starts_with("hashcache")
    }

    /// Whether it is a server that was measured: rows that compare two have none of these.
    pub fn has_figures(&self) -> bool {
        let names = ["cpu_ns", "first_hit_ms", "tenths_of_bytes_each"];
        names.iter().any(|name| self.figures.get(name).is_some())
    }

    pub fn figure(&self, name: &str) -> Option<i64> {
        self.figures[name].as_i64()
    }

    /// Least and largest of the rounds that have a figure.
    pub fn range(&self, name: &str) -> Option<(i64, i64)> {
        let all = self.figures[name].as_array()?.iter();
        let all: Vec<i64> = all.filter_map(Value::as_i64).collect();
        Some((*all.iter().min()?, *all.iter().max()?))
    }

    /// How many rounds have no figure, and how many there are.
    pub fn without(&self, name: &str) -> (usize, usize) {
        let all = self.figures[name].as_array().map_or(&[][..], Vec::as_slice);
        (all.iter().filter(|it| it.is_null()).count(), all.len())
    }

    /// Wrong answers, and missing or cut ones; `None` where they were not counted, as by `cpu`.
    pub fn wrong(&self) -> Option<u64> {
        let count = |name: &str| self.figures[name].as_u64();
        count("wrong").or(count("faults"))
    }
}
