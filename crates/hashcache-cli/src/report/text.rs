//! A report as text for a terminal.

use std::fmt::Write as _;

use hashcache_proxy::{Counts, Kind};
use hashcache_settings::units::{about_size, show_percent};

use super::{Report, grouped, row_of};

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
                about_size(totals.served_bytes()),
                show_percent(saved, totals.served_bytes())
            ),
        ),
        (
            "requests",
            format!(
                "{}, of them {} hits ({})",
                grouped(requests),
                grouped(hits),
                show_percent(hits, requests)
            ),
        ),
        ("from origins", about_size(totals.origin_bytes)),
        ("tunnels", about_size(totals.of(Kind::Tunnel).bytes)),
        ("failed", grouped(totals.of(Kind::Failed).requests)),
        (
            "own pages",
            format!("{}, errors included", about_size(totals.own_page_bytes())),
        ),
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
            row(&mut text, name, &row_of(totals));
        }
    }
    for (section, lines) in &report.sections {
        if lines.is_empty() {
            let _ = writeln!(text, "\n{}", section.absence());
            continue;
        }
        heading(&mut text, section.word());
        for (name, counts) in &lines.named {
            row(&mut text, name, counts);
        }
        for (name, counts) in lines.unnamed() {
            row(&mut text, name, counts);
        }
    }
    text
}

fn heading(text: &mut String, name: &str) {
    let _ = writeln!(
        text,
        "\n{name:<NAME$} {:>11} {:>6} {:>11} {:>11}",
        "requests", "hits", "to clients", "saved"
    );
}

fn row(text: &mut String, name: &str, row: &Counts) {
    let _ = writeln!(
        text,
        "{name:<NAME$} {:>11} {:>6} {:>11} {:>11}",
        grouped(row.requests),
        show_percent(row.hits, row.requests),
        about_size(row.client_bytes),
        about_size(row.saved_bytes()),
    );
}

/// Width for the name column. The rows fit 80 columns unless a name is longer.
const NAME: usize = 36;
