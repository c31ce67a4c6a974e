//! `hashcache check`: verifies every record. Exit status 1 means that the cache has faults.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use hashcache::{CheckReport, Config, OpenError};
use hashcache_settings::fault;
use hashcache_settings::units::about_size;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::open_fault::{Purpose, cannot_open};
use crate::output::{NOT_WELL, tell};

/// Verifies the cache at `path`.
pub fn run(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let bar = progress_bar();
    let report = hashcache::check(&Config::new(path), |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            let fault = cannot_open(path, Purpose::Look, &error);
            // A damaged store is a result of the check, not a failure of the command.
            return match error {
                OpenError::Short { .. } | OpenError::Damaged { .. } => {
                    tell(&fault::render(&fault.into()));
                    Ok(ExitCode::from(NOT_WELL))
                }
                _ => Err(fault.into()),
            };
        }
    };
    let text = if as_json {
        format!("{}\n", json_of(&report))
    } else {
        text_of(path, &report)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if report.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

/// Shows a progress bar if standard error is a terminal.
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
        "superblocks_damaged": copies_damaged(report),
        "journal_blocks_damaged": report.journal_blocks_damaged,
        "checkpoint_parts_damaged": report.checkpoint_parts_damaged,
    })
}

fn text_of(path: &Path, report: &CheckReport) -> String {
    let mut text = format!(
        "{}: {} records verified, {}\n",
        path.display(),
        report.records,
        match report.bytes {
            bytes @ 0..1000 => format!("{bytes} bytes"),
            bytes => about_size(bytes),
        }
    );
    if report.cut_off > 0 {
        text += &format!(
            "{} more were partly written when a process stopped; they count as never written\n",
            report.cut_off
        );
    }
    for copy in copies_damaged(report) {
        text += &format!("superblock {copy} is damaged; the other copy is in use\n");
    }
    if report.journal_blocks_damaged > 0 {
        text += &format!(
            "{} blocks of the remove journal are damaged; the next start forgets all older \
             objects, unless a checkpoint has what these blocks had\n",
            report.journal_blocks_damaged
        );
    }
    if report.checkpoint_parts_damaged > 0 {
        text += &format!(
            "{} parts of the checkpoint are damaged; the next start reads the log instead\n",
            report.checkpoint_parts_damaged
        );
    }
    if report.damaged > 0 {
        text += &format!(
            "{} records are damaged; they are never served, and the log will overwrite them\n",
            report.damaged
        );
    }
    if report.is_well() {
        text += "no damage\n";
    }
    text
}

/// Names of the damaged superblock copies.
fn copies_damaged(report: &CheckReport) -> Vec<&'static str> {
    let copies = ["A", "B"].into_iter().zip(report.superblocks_damaged);
    copies
        .filter_map(|(name, damaged)| damaged.then_some(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_with_what_it_means() {
        let report = CheckReport::default();
        assert_eq!(
            text_of(Path::new("c.img"), &report),
            "c.img: 0 records verified, 0 bytes\nno damage\n"
        );
        let mut report = CheckReport::default();
        report.damaged = 2;
        assert!(text_of(Path::new("c.img"), &report).contains("2 records are damaged"));
        assert_eq!(json_of(&report)["damaged"], 2);
        assert!(!text_of(Path::new("c.img"), &report).contains("no damage"));
    }

    #[test]
    fn damage_in_front_of_the_records_is_named_and_all_is_not_well() {
        let mut report = CheckReport::default();
        report.bytes = 12_100_000;
        report.superblocks_damaged = [false, true];
        report.journal_blocks_damaged = 3;
        report.checkpoint_parts_damaged = 4;
        let text = text_of(Path::new("c.img"), &report);
        assert!(
            text.starts_with("c.img: 0 records verified, 12.1MB\n"),
            "{text}"
        );
        for told in [
            "superblock B",
            "3 blocks of the remove",
            "4 parts of the check",
        ] {
            assert!(text.contains(told), "{text}");
        }
        assert!(
            !text.contains("superblock A") && !text.contains("no damage"),
            "{text}"
        );
    }
}
