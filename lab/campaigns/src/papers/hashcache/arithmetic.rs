//! What needs no run: the bounds of the analysis, and the memory of indexes.

use anyhow::Context as _;
use hashcache::plan::{Accounting, Candidate, Design, DiskRates, Workload, predict};
use hashcache_sim::rival::Rival;
use serde_json::Value;

use super::super::figure::{Bar, Drawing, Drawn, Panel, Spread};
use super::super::lab::Lab;

pub fn table_7(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    lab.calculated("hashcache-table-7");
    let plan = lab.json(
        "hashcache plan --disk 60GB --memory 256MB --seeks 70 \
                         --json",
        &KEPT_OF_PLANS,
    )?;
    let disk = DiskRates::with_seeks(SATA_SEEKS);
    let published = |design: Design| {
        let workload = Workload {
            related: if design.candidate.is_log() && !design.grouped {
                1.0
            } else {
                5.0
            },
            ..Workload::default()
        };
        predict(&design, &workload, Accounting::Published, &disk).requests_per_s
    };
    let designs = [
        (Design::from_candidate(Candidate::Basic), Some(45.0)),
        (Design::from_candidate(Candidate::Set), Some(45.0)),
        (Design::from_candidate(Candidate::SetMem), Some(75.0)),
        (Design::from_candidate(Candidate::Log), None),
        (
            Design::from_candidate(Candidate::Log).grouped(),
            Some(275.0),
        ),
    ];
    let (mut of_paper, mut of_engine) = (vec![], vec![]);
    for (design, measured) in designs {
        let label = design.to_string();
        let row = policy(&plan, &label)?;
        let bar = |value: f64| Bar {
            label: label.clone(),
            value: Spread::one(value),
            paper: measured,
            is_ours: true,
        };
        of_paper.push(bar(published(design)));
        of_engine.push(bar(row["requests_per_s"].as_f64().context("no rate")?));
    }
    let off = |bars: &[Bar]| {
        let shares: Vec<f64> = bars
            .iter()
            .filter_map(|bar| Some(bar.value.median / bar.paper?))
            .collect();
        let shares = Spread::from_values(shares).expect("some policies have a number of the paper");
        format!("{:.2} to {:.2}", shares.least, shares.most)
    };
    let found = format!(
        "Calculated by the paper's accounting, the rates are {} times what the paper has \
         measured; by that of `hashcache plan`, which knows what the engine does, {} times.",
        off(&of_paper),
        off(&of_engine)
    );
    let panel = |name, title: &str, bars| Panel {
        name,
        title: title.to_owned(),
        unit: "requests/s; the paper's are measured",
        digits: 0,
        drawing: Drawing::Bars(bars),
    };
    Ok(Drawn {
        workload:
            "The paper's: 60 % hits, 80 % of the responses may be stored, pages of 5; a disk \
                   of 70 seeks/s."
                .to_owned(),
        runs: CALCULATED.to_owned(),
        panels: vec![
            panel(
                "published",
                "HashCache, Table 7: the paper's accounting",
                of_paper,
            ),
            panel(
                "engine",
                "HashCache, Table 7: the engine's accounting",
                of_engine,
            ),
        ],
        found: vec![found],
        reasons: vec![
            "The paper omits how it derives its bounds. docs/PAPER.md derives them; two of its \
             parameters were fitted to two other numbers of the paper. The paper's disk also wrote \
             the access log."
                .to_owned(),
        ],
    })
}

pub fn figure_8(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    lab.calculated("hashcache-figure-8");
    let plan = lab.json(
        "hashcache plan --disk 1TB --memory 2GiB --json",
        &KEPT_OF_PLANS,
    )?;
    let mut bars = vec![];
    for name in ["set-mem", "log-lru", "log", "log grouped"] {
        let bytes = policy(&plan, name)?["largest_disk_bytes"].as_f64();
        bars.push(Bar {
            label: name.to_owned(),
            value: Spread::one(bytes.context("no largest disk")? / 1e12),
            paper: None,
            is_ours: true,
        });
    }
    let object_bytes = plan["object_bytes"].as_f64().context("no object size")?;
    for rival in [Rival::Squid, Rival::Tiger] {
        let objects = (2_u64 << 30) as f64 * 8.0 / rival.entry_bits() as f64;
        bars.push(Bar {
            label: rival.name().to_owned(),
            value: Spread::one(objects * object_bytes / 1e12),
            paper: None,
            is_ours: false,
        });
    }
    let of = |name: &str| {
        let bar = bars.iter().find(|bar| bar.label == name);
        bar.map_or(f64::NAN, |bar| bar.value.median)
    };
    let found = format!(
        "2 GiB index {:.1} TB with `log` and {:.1} TB with `set-mem`, but {:.2} TB with Tiger's \
         entries and {:.2} TB with Squid's. `basic` and `set` have no index, so any disk will do.",
        of("log"),
        of("set-mem"),
        of("tiger"),
        of("squid")
    );
    Ok(Drawn {
        workload: "Objects of 8 KiB on a full disk.".to_owned(),
        runs: CALCULATED.to_owned(),
        panels: vec![Panel {
            name: "",
            title: "HashCache, Figure 8: what 2 GiB can index".to_owned(),
            unit: "TB",
            digits: 2,
            drawing: Drawing::Bars(bars),
        }],
        found: vec![found],
        reasons: vec![
            "We lack the cells of the figure; its text agrees. An entry of `log` is shorter than \
             the paper's (39 instead of 47 bits on 1 TB), and `set-mem` has slots for two thirds \
             of the objects, because the rest of the disk is the log. Squid and Tiger are taken \
             at 560 and 232 bits for each object (the authors' slides)."
                .to_owned(),
        ],
    })
}

pub fn figure_5(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    lab.calculated("hashcache-figure-5");
    let designs = [
        (
            "basic, set, 60 GB",
            Design::from_candidate(Candidate::Set),
            60 * GB,
        ),
        (
            "set-mem, 60 GB",
            Design::from_candidate(Candidate::SetMem),
            60 * GB,
        ),
        (
            "log, 60 GB",
            Design::from_candidate(Candidate::Log),
            60 * GB,
        ),
        (
            "log grouped, 60 GB",
            Design::from_candidate(Candidate::Log).grouped(),
            60 * GB,
        ),
    ];
    let rivals = [(Rival::Tiger, 18 * GB), (Rival::Squid, 18 * GB)];
    let bars = memory_bars(&designs, &rivals)?;
    let (fastest, squid) = (bars[3].value.median, bars[5].value.median);
    let found = format!(
        "With 18 GB Squid's index takes {squid:.0} MB, {:.1} times as much as `log` grouped with \
         60 GB ({fastest:.0} MB), and {:.0} % of the machine's 256 MB.",
        squid / fastest,
        squid / 2.56
    );
    let title = "HashCache, Figure 5: memory at the low end";
    Ok(memory_drawn(title, bars, found, RESOURCES))
}

pub fn figure_7(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    lab.calculated("hashcache-figure-7");
    let designs = [
        (
            "log, 90 GB",
            Design::from_candidate(Candidate::Log),
            90 * GB,
        ),
        (
            "log grouped, 90 GB",
            Design::from_candidate(Candidate::Log).grouped(),
            90 * GB,
        ),
    ];
    let bars = memory_bars(
        &designs,
        &[(Rival::Tiger, 90 * GB), (Rival::Squid, 90 * GB)],
    )?;
    let share = |n: usize| bars[n].value.median / 35.0;
    let found = format!(
        "The index of five disks of 18 GB takes {:.1} % of 3.5 GB with `log` grouped, {:.1} % with \
         Tiger's entries and {:.1} % with Squid's.",
        share(1),
        share(2),
        share(3)
    );
    let title = "HashCache, Figure 7: memory at the high end";
    Ok(memory_drawn(title, bars, found, RESOURCES))
}

pub fn figure_9(lab: &mut Lab<'_>) -> anyhow::Result<Drawn> {
    lab.calculated("hashcache-figure-9");
    let lru = Design::from_candidate(Candidate::LogLru).holding(0.75);
    let log = Design::from_candidate(Candidate::Log);
    let designs = [
        (
            "set-mem, 1 TB",
            Design::from_candidate(Candidate::SetMem),
            1000 * GB,
        ),
        (
            "set-mem, 2 TB",
            Design::from_candidate(Candidate::SetMem),
            2000 * GB,
        ),
        ("log-lru grouped, 1 TB", lru.grouped(), 1000 * GB),
        ("log-lru grouped, 2 TB", lru.grouped(), 2000 * GB),
        ("log grouped, 1 TB", log.grouped(), 1000 * GB),
        ("log grouped, 2 TB", log.grouped(), 2000 * GB),
    ];
    let bars = memory_bars(&designs, &[])?;
    let share = |n: usize| bars[n].value.median / 20.0;
    let found = format!(
        "Of 2 GB, the index of 2 TB takes {:.0} % with `log` grouped, {:.0} % with `log-lru` \
         grouped (six of eight positions in memory) and {:.0} % with `set-mem`; that of 1 TB \
         {:.0}, {:.0} and {:.0} %.",
        share(5),
        share(3),
        share(1),
        share(4),
        share(2),
        share(0)
    );
    let title = "HashCache, Figure 9: memory of 1 TB and 2 TB";
    let reasons = "\
The paper's shares are of all memory of the proxy, ours of the index alone. Its drives hold 50 GB \
of data each; ours is calculated for full ones.";
    Ok(memory_drawn(title, bars, found, reasons))
}

/// Index memory of a design on a disk, bytes.
fn index_bytes(design: Design, disk_bytes: u64) -> anyhow::Result<f64> {
    let layout = design.layout(disk_bytes, OBJECT_BYTES, OBJECT_BYTES);
    let layout = layout.context("no store of this size")?;
    Ok(layout.index_bytes as f64)
}

/// Bars of the memory that indexes take on disks, in MB.
fn memory_bars(
    designs: &[(&str, Design, u64)],
    rivals: &[(Rival, u64)],
) -> anyhow::Result<Vec<Bar>> {
    let mut bars = vec![];
    for (label, design, disk) in designs {
        bars.push(Bar {
            label: (*label).to_owned(),
            value: Spread::one(index_bytes(*design, *disk)? / 1e6),
            paper: None,
            is_ours: true,
        });
    }
    for (rival, disk) in rivals {
        let bytes = rival.index_bytes(*disk, OBJECT_BYTES.into());
        bars.push(Bar {
            label: format!("{}, {} GB", rival.name(), disk / GB),
            value: Spread::one(bytes as f64 / 1e6),
            paper: None,
            is_ours: false,
        });
    }
    Ok(bars)
}

fn memory_drawn(title: &str, bars: Vec<Bar>, found: String, reasons: &str) -> Drawn {
    Drawn {
        workload: "Objects of 8 KiB on full disks.".to_owned(),
        runs: CALCULATED.to_owned(),
        panels: vec![Panel {
            name: "",
            title: title.to_owned(),
            unit: "MB of memory for the index",
            digits: 1,
            drawing: Drawing::Bars(bars),
        }],
        found: vec![found],
        reasons: vec![reasons.to_owned()],
    }
}

fn policy<'a>(plan: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    let policies = plan["policies"].as_array().context("no policies")?;
    let found = policies.iter().find(|policy| policy["name"] == name);
    found.with_context(|| format!("no policy {name}"))
}

const KEPT_OF_PLANS: [&str; 5] = [
    "policies",
    "name",
    "requests_per_s",
    "largest_disk_bytes",
    "object_bytes",
];
const SATA_SEEKS: f64 = 70.0;
const OBJECT_BYTES: u32 = 8 << 10;
const GB: u64 = 1_000_000_000;
const CALCULATED: &str = "Calculated: no run, no seed.";
const RESOURCES: &str = "\
The paper has the memory of whole programs; this is the memory of their indexes, calculated for \
full disks, Squid's and Tiger's from their bits for each object (the authors' slides). Use of the \
disk is not drawn: a modelled disk is busy all the time, because requests follow each other at \
once. Processor time is not drawn either: the paper's processor is not modelled.";
