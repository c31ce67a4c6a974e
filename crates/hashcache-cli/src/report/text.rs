//! A report as text for a terminal.

use std::fmt::Write as _;

use hashcache_proxy::{Counts, Kind, Totals};

use super::{Lines, Report, grouped, percent};
use crate::units::about_size;

pub(super) fn render(report: &Report) -> String {
    let totals = &report.totals;
    let (requests, hits) = (totals.requests(), totals.hits());
    let saved = totals.saved_bytes();
    let mut text = format!(
        "HashCache, {}\n{}\n\n",
        report.period.words(),
        report.span()
    );
    let facts = [
        (
            "saved",
            format!(
                "{} of {} ({})",
                about_size(saved),
                about_size(totals.client_bytes),
                percent(saved, totals.client_bytes)
            ),
        ),
        (
            "requests",
            format!(
                "{}, of them {} hits ({})",
                grouped(requests),
                grouped(hits),
                percent(hits, requests)
            ),
        ),
        ("from origins", about_size(totals.origin_bytes)),
        ("tunnels", about_size(totals.of(Kind::Tunnel).bytes)),
        ("failed", grouped(totals.of(Kind::Failed).requests)),
    ];
    for (name, fact) in facts {
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(text, "{name:<14}{fact}");
    }
    if report.damaged > 0 {
        let _ = writeln!(text, "{:<14}{} hours, left out", "damaged", report.damaged);
    }
    if !report.steps.is_empty() {
        heading(&mut text, "begin");
        for (name, totals) in &report.steps {
            row(&mut text, name, &Row::of_totals(totals));
        }
    }
    for (name, lines) in [("site", &report.sites), ("client", &report.clients)] {
        if lines.named.is_empty() && !lines.has_rest() {
            continue;
        }
        heading(&mut text, name);
        table(&mut text, lines);
    }
    text
}

fn table(text: &mut String, lines: &Lines) {
    for (name, counts) in &lines.named {
        row(text, name.as_str(), &Row::of_counts(counts));
    }
    if lines.has_rest() {
        row(text, "(others)", &Row::of_counts(&lines.rest));
    }
}

/// The figures of one row.
struct Row {
    requests: u64,
    hits: u64,
    client_bytes: u64,
    saved_bytes: u64,
}

impl Row {
    fn of_totals(totals: &Totals) -> Self {
        Self {
            requests: totals.requests(),
            hits: totals.hits(),
            client_bytes: totals.client_bytes,
            saved_bytes: totals.saved_bytes(),
        }
    }

    fn of_counts(counts: &Counts) -> Self {
        Self {
            requests: counts.requests,
            hits: counts.hits,
            client_bytes: counts.client_bytes,
            saved_bytes: counts.saved_bytes(),
        }
    }
}

fn heading(text: &mut String, name: &str) {
    let _ = writeln!(
        text,
        "\n{name:<NAME$} {:>11} {:>6} {:>11} {:>11}",
        "requests", "hits", "to clients", "saved"
    );
}

fn row(text: &mut String, name: &str, row: &Row) {
    let _ = writeln!(
        text,
        "{name:<NAME$} {:>11} {:>6} {:>11} {:>11}",
        grouped(row.requests),
        percent(row.hits, row.requests),
        about_size(row.client_bytes),
        about_size(row.saved_bytes),
    );
}

/// Width of the column of names. The rows fit 80 columns unless a name is longer.
const NAME: usize = 36;
