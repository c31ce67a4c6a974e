//! `hashcache check`: every record verified. Exit status 1 when something is wrong.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use hashcache::{CheckReport, Config};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::NOT_WELL;
use crate::open_fault::cannot_open;
use crate::units::show_size;

/// Verifies the cache at `path`.
pub fn run(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let bar = progress_bar();
    let report = hashcache::check(&Config::new(path), |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| cannot_open(path, &error))?;
    let text = if as_json {
        format!("{}\n", json_of(&report))
    } else {
        text_of(path, &report)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if report.damaged == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

/// A bar on a terminal, nothing anywhere else.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("checking {wide_bar} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1).with_style(style)
}

fn json_of(report: &CheckReport) -> serde_json::Value {
    json!({
        "records": report.records,
        "bytes": report.bytes,
        "damaged": report.damaged,
        "cut_off": report.cut_off,
        "areas": report.areas,
    })
}

fn text_of(path: &Path, report: &CheckReport) -> String {
    let mut text = format!(
        "{}: {} records verified, {}\n",
        path.display(),
        report.records,
        show_size(report.bytes)
    );
    if report.cut_off > 0 {
        text += &format!(
            "{} more were being written when a run ended; they count as never written\n",
            report.cut_off
        );
    }
    match report.damaged {
        0 => text += "all well\n",
        damaged => {
            text += &format!(
                "{damaged} records are damaged; they are never served, and go when the log comes \
                 round to them\n"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_with_what_it_means() {
        let report = CheckReport::default();
        assert!(text_of(Path::new("c.img"), &report).ends_with("all well\n"));
        let mut report = CheckReport::default();
        report.damaged = 2;
        assert!(text_of(Path::new("c.img"), &report).contains("2 records are damaged"));
        assert_eq!(json_of(&report)["damaged"], 2);
    }
}
