//! `cargo campaign pictures`: the three pictures of docs/RIVALS.md.
//!
//! - `docs/memory.svg`: what `hashcache plan` says that the index of a terabyte takes, beside the
//!   figures of docs/RIVALS.md for other caches.
//! - `docs/slow-disk.svg`: requests a second on a slow disk, from reports that `cargo campaign
//!   slow-disk --json` has written.
//! - `docs/processor-time.svg`: processor time of a request, from reports of `cargo campaign cpu
//!   --json`.
//!
//! The reports take half an hour and more to measure, so this campaign reads them.
//!
//! Invariant: a figure in a picture is one that these commands print, or one of docs/RIVALS.md.

pub mod bars;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::campaign::Campaign;
use crate::report::Report;
use crate::root;
use bars::{Bar, Chart, Frame, Section};

/// Arguments of `pictures`.
#[derive(clap::Args)]
pub struct Args {
    /// Report of `cargo campaign slow-disk --json`, or several; without one, docs/slow-disk.svg
    /// stays as it is
    #[arg(long, value_name = "FILE")]
    slow_disk: Vec<PathBuf>,
    /// Report of `cargo campaign cpu --json`, or several; without one, docs/processor-time.svg
    /// stays as it is
    #[arg(long, value_name = "FILE")]
    cpu: Vec<PathBuf>,
}

/// Draws the pictures.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let binary = campaign.binary()?.to_owned();
    let report = &mut campaign.report;
    let plan = json_of(&binary, &["plan", "--disk", "1TB", "--memory", "1GB"])?;
    draw(report, "docs/memory.svg", memory(&plan))?;
    from_reports(report, "docs/slow-disk.svg", &args.slow_disk, slow_disk)?;
    from_reports(report, "docs/processor-time.svg", &args.cpu, processor_time)
}

/// Draws the picture that `chart` makes of the rows of some reports, if there are any.
fn from_reports(
    report: &mut Report,
    file: &str,
    paths: &[PathBuf],
    chart: fn(&[Value]) -> Option<Chart>,
) -> anyhow::Result<()> {
    if paths.is_empty() {
        report.skip(file, "no report was given");
        return Ok(());
    }
    let mut rows = vec![];
    for path in paths {
        rows.extend(rows_of(path)?);
    }
    draw(report, file, chart(&rows))
}

fn draw(report: &mut Report, file: &str, chart: Option<Chart>) -> anyhow::Result<()> {
    let chart = chart.with_context(|| format!("{file}: a figure is missing"))?;
    for section in &chart.sections {
        for Bar { label, shown, .. } in &section.bars {
            report.tell(format!("{}: {label}", section.heading), shown);
        }
    }
    fs::write(root().join(file), chart.svg()).with_context(|| format!("cannot write {file}"))
}

fn json_of(binary: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    let output = Command::new(binary)
        .args(arguments)
        .arg("--json")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run hashcache")?;
    let line = arguments.join(" ");
    ensure!(
        output.status.success(),
        "hashcache {line}: {}",
        output.status
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("{line}: no JSON"))
}

// -- memory ------------------------------------------------------------------------------------

/// Index memory for a terabyte of objects of 8 KiB.
fn memory(plan: &Value) -> Option<Chart> {
    let objects = plan["objects"].as_f64()?;
    let megabytes = |bytes: f64| format!("{:.0} MB", bytes / 1e6);
    let mut ours = vec![];
    for policy in plan["policies"].as_array()? {
        let found = policy["objects_found"].as_f64()?;
        let bytes = policy["index_bytes"].as_f64()?;
        ours.push(Bar {
            label: format!("HashCache, {}", policy["name"].as_str()?),
            value: bytes,
            shown: format!("{}, finds {:.0} million", megabytes(bytes), found / 1e6),
            is_ours: true,
            mark: None,
        });
    }
    let others = MEASURED_BYTES.map(|(label, bytes)| Bar {
        label: label.to_owned(),
        value: objects * bytes,
        shown: format!("{:.1} GB", objects * bytes / 1e9),
        is_ours: false,
        mark: None,
    });
    ours.extend(others);
    Some(Chart {
        title: "Memory for the index of 1 TB".to_owned(),
        notes: vec![
            format!("Room for {:.0} million objects of 8 KiB. ", objects / 1e6)
                + "HashCache: by `hashcache plan`, and how many",
            "objects its index finds. Others: measured bytes for each object, times their number."
                .to_owned(),
        ],
        sections: vec![Section {
            heading: String::new(),
            bars: ours,
        }],
        frame: Frame::WIDE,
    })
}

/// Bytes of memory per object, as in docs/RIVALS.md; Squid's rock: per slot, whether or not it
/// is used or not (docs/PAPER.md), because few of its objects stay while it is filled.
const MEASURED_BYTES: [(&str, f64); 4] = [
    ("Traffic Server 9.2", 30.3),
    ("nginx 1.22", 128.8),
    ("Squid 5.7, rock", 127.0),
    ("Squid 5.7, aufs", 193.8),
];

// -- slow disk ---------------------------------------------------------------------------------

/// Requests a second of each server, a section for each load.
fn slow_disk(rows: &[Value]) -> Option<Chart> {
    let bar = |row: &Value| {
        let (load, name) = row["what"].as_str()?.split_once(": ")?;
        let rate = row["figures"]["requests_per_second"].as_u64()?;
        #[expect(clippy::cast_precision_loss, reason = "the length of a bar")]
        let bar = Bar {
            label: name.to_owned(),
            value: rate as f64,
            shown: format!("{rate} requests/s"),
            is_ours: name.starts_with("hashcache"),
            mark: None,
        };
        Some((load.to_owned(), bar))
    };
    let sections = sections(rows.iter().filter_map(bar));
    let chart = Chart {
        title: "Requests a second on a slow disk".to_owned(),
        notes: vec![
            "By `cargo campaign slow-disk`: 100 reads and 100 writes a second, 256 MiB of memory"
                .to_owned(),
            "with the page cache, browsers that load whole pages; medians of rounds.".to_owned(),
        ],
        sections,
        frame: Frame::WIDE,
    };
    (!chart.sections.is_empty()).then_some(chart)
}

/// Bars under their headings, in the order in which these come first.
fn sections(bars: impl Iterator<Item = (String, Bar)>) -> Vec<Section> {
    let mut sections: Vec<Section> = vec![];
    for (heading, bar) in bars {
        match sections.iter_mut().find(|it| it.heading == heading) {
            Some(section) => section.bars.push(bar),
            None => sections.push(Section {
                heading,
                bars: vec![bar],
            }),
        }
    }
    sections
}

// -- processor time ----------------------------------------------------------------------------

/// The rows of a report.
fn rows_of(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Value = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no report", path.display()))?;
    let rows = report["rows"].as_array().cloned();
    rows.with_context(|| format!("{} has no rows", path.display()))
}

/// Processor time of a request of each program, a section for each kind of requests.
fn processor_time(rows: &[Value]) -> Option<Chart> {
    let bar = |row: &Value| {
        let (kind, name) = row["what"].as_str()?.split_once(WITHOUT_LOG)?;
        let ns = row["figures"]["cpu_ns"].as_f64()?;
        let bar = Bar {
            label: name.to_owned(),
            value: ns / 1e3,
            shown: format!("{:.1} µs", ns / 1e3),
            is_ours: name == "hashcache",
            mark: None,
        };
        Some((kind.to_owned(), bar))
    };
    let sections = sections(rows.iter().filter_map(bar));
    let chart = Chart {
        title: "Processor time of a request, without an access log".to_owned(),
        notes: vec![
            "By `cargo campaign cpu`: one worker each, all in front of the same origin on one"
                .to_owned(),
            "machine with 2 cores; medians of rounds in turn. Less is better.".to_owned(),
        ],
        sections,
        frame: Frame::WIDE,
    };
    (!chart.sections.is_empty()).then_some(chart)
}

/// Between the kind of requests and the program in a row of `cpu`.
const WITHOUT_LOG: &str = ", no log: ";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_picture_of_memory_has_every_policy_and_every_other_cache() {
        let plan = json!({ "objects": 122_000_000, "policies": [
            { "name": "set", "objects_found": 61_000_000, "index_bytes": 0 },
            { "name": "log", "objects_found": 117_000_000, "index_bytes": 754_000_000 },
        ] });
        let chart = memory(&plan).unwrap();
        let bars = &chart.sections[0].bars;
        assert_eq!(bars.len(), 2 + MEASURED_BYTES.len());
        assert_eq!(bars[1].shown, "754 MB, finds 117 million");
        assert_eq!(
            (bars[5].shown.as_str(), bars[5].is_ours),
            ("23.6 GB", false)
        );
        assert!(memory(&json!({ "objects": 1, "policies": [{}] })).is_none());
    }

    #[test]
    fn servers_stand_under_their_load() {
        let row = |what: &str, rate: u64| {
            let figures = json!({ "requests_per_second": rate });
            json!({ "what": what, "figures": figures })
        };
        let rows = [
            row("private pages: hashcache, log grouped", 6_262),
            row("private pages: nginx, threads", 407),
            json!({ "what": "private pages: requests/s, bar 12", "figures": { "percent": 1538 } }),
            row("Polymix-4: Squid, aufs", 86),
        ];
        let sections = slow_disk(&rows).unwrap().sections;
        assert_eq!(sections.len(), 2);
        assert_eq!(sections[0].heading, "private pages");
        assert_eq!(sections[0].bars[0].label, "hashcache, log grouped");
        assert_eq!(sections[0].bars[1].shown, "407 requests/s");
        assert!(sections[0].bars[0].is_ours && !sections[1].bars[0].is_ours);
        assert!(slow_disk(&[]).is_none());
    }

    #[test]
    fn only_figures_without_a_log_are_drawn() {
        let row = |what: &str, ns: u64| json!({ "what": what, "figures": { "cpu_ns": ns } });
        let rows = [
            row("hit in memory, 1024 B, no log: hashcache", 17_000),
            row("hit in memory, 1024 B, combined log: hashcache", 19_000),
            json!({ "what": "hit in memory, 1024 B, no log: processor time", "figures": null }),
            row("miss, 8192 B, no log: nginx", 90_000),
            row("hit in memory, 1024 B, no log: nginx, sendfile", 31_000),
        ];
        let sections = processor_time(&rows).unwrap().sections;
        assert_eq!(sections.len(), 2);
        assert_eq!(sections[0].heading, "hit in memory, 1024 B");
        assert_eq!(sections[0].bars.len(), 2);
        assert_eq!(sections[0].bars[1].label, "nginx, sendfile");
        assert!(sections[0].bars[0].is_ours && !sections[0].bars[1].is_ours);
        assert!(processor_time(&[]).is_none());
    }
}
