//! Rows of a report out of what a scenario of the testkit saw.
//!
//! Used by the commands that play scenarios. Invariant: a verdict with a fault is a row that
//! failed.

use hashcache_testkit::scenario::Verdict;
use serde_json::{Map, Value, json};

use crate::report::Report;

/// A row for one part of a scenario; `which` says where it was played, if that needs saying.
pub fn tell(report: &mut Report, which: &str, verdict: &Verdict) {
    let name = if which.is_empty() {
        verdict.name.clone()
    } else {
        format!("{which}: {}", verdict.name)
    };
    let seen = std::slice::from_ref(&verdict.seen);
    let detail = [seen, &verdict.faults[..]].concat().join("\n        ");
    let figures = verdict.figures.iter();
    let figures: Map<String, Value> = figures
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    report.figures(name, verdict.is_well().into(), detail, figures.into());
}
