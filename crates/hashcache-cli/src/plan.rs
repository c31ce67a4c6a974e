//! `hashcache plan`: compares the costs and benefits of all policies on a disk, and recommends a
//! design.
//!
//! The engine does the arithmetic (`hashcache::plan`); this module parses flags and prints the
//! result. Invariant: lines have at most 80 columns; the keys in `--json` do not change.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hashcache::plan::{
    Candidate, Design, DiskRates, Layout, MEMORY_LEFT_MIN, ReadCost, Row, Rows, SizeShare,
    Tolerance, Wanted, Workload, block_bytes, pick, plan, set_bytes,
};
use hashcache::{Clock, MeasureError, Probe, ProbeError};
use hashcache_settings::fault::Fault;
use hashcache_settings::units::{about_size, brief_size, parse_size, show_size};
use serde_json::{Value, json};

use crate::open_fault::{Purpose, cannot_open};

/// Duration of a disk measurement.
const PROBE_TIME: Duration = Duration::from_secs(10);
/// The paper's disks make 65 to 95 seeks a second, today's disks about this number.
const SEEKS_PER_S: f64 = 90.0;
/// Range for the mean object size: every object takes at least one unit.
const OBJECT_BYTES: std::ops::RangeInclusive<u64> = 512..=1 << 30;

/// Arguments for `hashcache plan`.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// Size of the disk, or of the part for the cache
    #[arg(long, value_name = "SIZE")]
    disk: String,
    /// Memory for the index and hot objects
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: String,
    /// Mean object size
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    object_size: String,
    /// Random reads per second of the disk [default: 90, a hard disk]
    #[arg(long, value_name = "COUNT", conflicts_with = "probe")]
    seeks: Option<f64>,
    /// Measure the disk for ten seconds: a directory on it, or a cache that is not in use
    #[arg(long, value_name = "PATH")]
    probe: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Input, measurement and result.
struct Plan {
    wanted: Wanted,
    probe: Option<Probe>,
    set_bytes: u32,
    rows: Vec<Row>,
}

/// Prints the plan.
pub fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let plan = planned(args)?;
    let text = if args.json {
        format!("{}\n", json_of(&plan))
    } else {
        text_of(&plan)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn planned(args: &PlanArgs) -> Result<Plan, Fault> {
    let size = |flag: &str, text: &str| parse_size(text).map_err(|fault| fault.at(flag));
    let disk_bytes = size("--disk", &args.disk)?;
    let memory_bytes = size("--memory", &args.memory)?;
    let object_bytes = size("--object-size", &args.object_size)?;
    let object_bytes = u32::try_from(object_bytes)
        .ok()
        .filter(|_| OBJECT_BYTES.contains(&object_bytes))
        .ok_or_else(|| {
            let what = format!("--object-size: {} is not an object size", args.object_size);
            Fault::new(what).hint("use a size from 512 bytes to 1GiB")
        })?;
    let seeks = args.seeks.unwrap_or(SEEKS_PER_S);
    if !(seeks.is_finite() && seeks >= 1.0) {
        return Err(Fault::new(format!(
            "--seeks: {seeks} is not a number of reads per second"
        ))
        .hint("hard disks have 70 to 200; `--probe PATH` measures the disk"));
    }
    let probe = match &args.probe {
        Some(path) => Some(measured(path, disk_bytes)?),
        None => None,
    };
    let set_bytes = probe.as_ref().map_or(
        set_bytes(&[], Tolerance::from_reads_per_s(seeks)),
        Probe::set_bytes,
    );
    // Three quarters of web objects are no larger than the mean (paper, Table 5).
    let shares = [SizeShare {
        bytes: object_bytes,
        share: 0.75,
    }];
    let wanted = Wanted {
        disk_bytes,
        memory_bytes,
        disk: probe
            .as_ref()
            .map_or(DiskRates::with_seeks(seeks), Probe::rates),
        workload: Workload {
            object_bytes,
            ..Workload::default()
        },
        block_bytes: block_bytes(&shares, set_bytes),
    };
    Ok(Plan {
        wanted,
        probe,
        set_bytes,
        rows: plan(&wanted),
    })
}

fn measured(path: &Path, disk_bytes: u64) -> Result<Probe, Fault> {
    hashcache::measure(path, disk_bytes, PROBE_TIME, &Clock::system()).map_err(|error| {
        if let MeasureError::Open(error) = &error {
            return cannot_open(path, Purpose::Look, error);
        }
        let mut what = format!("cannot measure {}: {error}", path.display());
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            let _ = write!(what, ": {inner}");
            cause = inner.source();
        }
        let fault = Fault::new(what);
        match error {
            MeasureError::Probe(ProbeError::NothingWritten { .. }) => fault
                .hint("give a directory on that disk: the measurement uses a temporary file there"),
            _ => fault,
        }
    })
}

fn json_of(plan: &Plan) -> Value {
    let Wanted {
        disk_bytes,
        memory_bytes,
        disk,
        workload,
        block_bytes,
    } = plan.wanted;
    json!({
        "disk_bytes": disk_bytes,
        "memory_bytes": memory_bytes,
        "object_bytes": workload.object_bytes,
        "objects": disk_bytes / u64::from(workload.object_bytes),
        "seeks_per_s": disk.seeks_per_s,
        "write_bytes_per_s": disk.write_bytes_per_s,
        "workload": {
            "hit_ratio": workload.hit_ratio,
            "cacheable": workload.cacheable,
            "related": workload.related,
        },
        "probe": plan.probe.as_ref().map(json_of_probe),
        "set_bytes": plan.set_bytes,
        "block_bytes": block_bytes,
        "policies": plan.rows.iter().map(json_of_row).collect::<Vec<_>>(),
        "pick": pick(&plan.rows).map(|row| row.design.to_string()),
    })
}

fn json_of_probe(probe: &Probe) -> Value {
    let cost = |cost: &ReadCost| json!({ "bytes": cost.bytes, "reads_per_s": cost.reads_per_s });
    json!({
        "reads_per_s": probe.reads_per_s,
        "reads_per_s_depth_8": probe.reads_per_s_deep,
        "write_bytes_per_s": probe.write_bytes_per_s,
        "extents": probe.extents,
        "reads": probe.read_costs.iter().map(cost).collect::<Vec<_>>(),
    })
}

fn json_of_row(row: &Row) -> Value {
    let (design, prediction) = (&row.design, &row.prediction);
    let layout = row.layout.as_ref();
    // A policy without an index has no tags, so no false reads.
    let has_index = layout.is_some_and(|layout| layout.index_bytes > 0);
    json!({
        "name": design.to_string(),
        "policy": design.candidate.name(),
        "grouped": design.grouped,
        "rows": if design.rows == Rows::Two { 2 } else { 1 },
        "ways": design.ways,
        "tag_bits": design.tag_bits,
        "held": design.held,
        "slots": layout.map(|it| it.slots),
        "objects_found": layout.map(Layout::objects_found),
        "bits_per_slot": layout.map(Layout::bits_per_slot),
        "bits_per_object": layout.map(Layout::bits_per_object),
        "reach": layout.map(|it| it.reach),
        "false_reads_per_miss": has_index.then(|| design.false_reads()),
        "index_bytes": layout.map(|it| it.index_bytes),
        "fits": row.fits,
        "largest_disk_bytes": row.largest_disk_bytes,
        "seeks_per_hit": prediction.seeks.per_hit,
        "seeks_per_miss": prediction.seeks.per_miss,
        "seeks_per_put": prediction.seeks_per_put(),
        "objects_per_write": prediction.objects_per_write,
        "requests_per_s": prediction.requests_per_s,
    })
}

fn text_of(plan: &Plan) -> String {
    let Wanted {
        disk_bytes,
        memory_bytes,
        disk,
        workload,
        ..
    } = plan.wanted;
    let mut text = format!(
        "disk {}, memory {}, {} objects of {}\n\
         {:.0} seeks a second{}; {:.0} % hits, {:.0} % cacheable, pages of {}\n\n",
        brief_size(disk_bytes),
        brief_size(memory_bytes),
        disk_bytes / u64::from(workload.object_bytes),
        show_size(workload.object_bytes.into()),
        disk.seeks_per_s,
        if plan.probe.is_some() {
            ", measured"
        } else {
            ""
        },
        workload.hit_ratio * 100.0,
        workload.cacheable * 100.0,
        workload.related,
    );
    if let Some(probe) = &plan.probe {
        let _ = writeln!(text, "{}\n", line_of_probe(probe));
    }
    let words = |words: [&'static str; 9]| line_of(words.map(String::from));
    text += &words([
        "", "", "objects", "", "index", "bits", "largest", "seeks", "requests",
    ]);
    let last = [
        "", "policy", "found", "reach", "memory", "/slot", "disk", "/put", "/s",
    ];
    text += &format!("{}  fits\n", words(last).trim_end());
    let picked = pick(&plan.rows);
    for row in &plan.rows {
        let is_picked = picked.is_some_and(|picked| picked.design == row.design);
        let fits = if row.fits { "yes" } else { "no" };
        text += &format!("{}  {fits}\n", line_of(cells_of(row, is_picked)).trim_end());
    }
    text += &closing(plan, picked);
    text
}

fn line_of_probe(probe: &Probe) -> String {
    let written = probe
        .write_bytes_per_s
        .map(|rate| format!("; {:.0}MB written", rate / 1e6));
    format!(
        "in a second {:.0} reads of 16KiB singly, {:.0} eight at once{}",
        probe.reads_per_s,
        probe.reads_per_s_deep,
        written.unwrap_or_default(),
    )
}

fn cells_of(row: &Row, is_picked: bool) -> [String; 9] {
    let cell = |told: fn(&Layout) -> String| row.layout.as_ref().map_or("-".to_owned(), told);
    let largest = match row.layout {
        Some(layout) if layout.index_bytes == 0 => "any".to_owned(),
        _ => row.largest_disk_bytes.map_or("-".to_owned(), about_size),
    };
    [
        if is_picked { ">" } else { "" }.to_owned(),
        row.design.to_string(),
        cell(|it| about_count(it.objects_found())),
        cell(|it| format!("{:.0} %", it.reach * 100.0)),
        cell(|it| about_size(it.index_bytes)),
        cell(|it| format!("{:.1}", it.bits_per_slot())),
        largest,
        format!("{:.2}", row.prediction.seeks_per_put()),
        format!("{:.0}", row.prediction.requests_per_s),
    ]
}

fn line_of(cells: [String; 9]) -> String {
    let [mark, name, objects, reach, index, slot, largest, put, rate] = cells;
    let line = format!(
        "{mark:<1} {name:<15} {objects:>8} {reach:>5} {index:>7} {slot:>6} {largest:>8} {put:>5} \
         {rate:>8}"
    );
    format!("{}\n", line.trim_end())
}

fn closing(plan: &Plan, picked: Option<&Row>) -> String {
    let Wanted {
        disk_bytes,
        memory_bytes,
        workload,
        block_bytes,
        ..
    } = plan.wanted;
    let mut text = format!(
        "\nobjects found: how many of the newest {} a lookup finds; that many fill the\n\
         \x20 disk, and reach is the share. basic, set, set-mem and set-mem-lru have a slot\n\
         \x20 for each object and the rest of the larger ones in a log.\n\
         index memory: of a store of this size. Compare this, not bits/slot: in small\n\
         \x20 stores log-lru takes more memory than log.\n\
         largest disk: the index of that store fills all of {}\n",
        about_count(disk_bytes / u64::from(workload.object_bytes)),
        brief_size(memory_bytes),
    );
    let _ = writeln!(
        text,
        "Disk Table: slots of {}, {} in a set",
        show_size(block_bytes.into()),
        plan.set_bytes / block_bytes,
    );
    match picked {
        Some(row) => {
            let _ = writeln!(text, "\n> take {}", flags_of(&row.design, &plan.wanted));
        }
        None => {
            let least = show_size(MEMORY_LEFT_MIN);
            let reason = if plan.rows.iter().any(|row| row.layout.is_some()) {
                format!("at least {least} of memory is needed")
            } else {
                "a store cannot have this size".to_owned()
            };
            let _ = writeln!(text, "\nno policy fits: {reason}");
        }
    }
    text
}

/// The flags with which `hashcache proxy` uses this design.
fn flags_of(design: &Design, wanted: &Wanted) -> String {
    let mut flags = format!("--policy {}", design.candidate.name());
    if design.candidate == Candidate::Log && design.rows == Rows::One {
        flags += " --rows one";
    }
    if design.grouped {
        flags += " --grouped";
    }
    let usual = WEB_OBJECT_BYTES;
    let (object, block) = (wanted.workload.object_bytes, wanted.block_bytes);
    if design.candidate.is_log() && object != usual {
        flags += &format!(" --object-size {}", show_size(object.into()));
    }
    if !design.candidate.is_log() && block != usual {
        flags += &format!(" --block {}", show_size(block.into()));
    }
    flags
}

/// The proxy's default for the mean object size and for the slot size.
const WEB_OBJECT_BYTES: u32 = 8 << 10;

/// Formats `count` with about three digits.
fn about_count(count: u64) -> String {
    let text = about_size(count);
    text.strip_suffix('B').unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(disk: &str, memory: &str) -> PlanArgs {
        PlanArgs {
            disk: disk.into(),
            memory: memory.into(),
            object_size: "8KiB".into(),
            seeks: None,
            probe: None,
            json: false,
        }
    }

    #[test]
    fn what_is_advised_is_what_the_proxy_takes() {
        let wanted = planned(&args("1TB", "256MB")).unwrap().wanted;
        let flags = |design: Design| flags_of(&design, &wanted);
        let of = Design::from_candidate;
        assert_eq!(flags(of(Candidate::SetMem)), "--policy set-mem");
        assert_eq!(flags(of(Candidate::Log)), "--policy log");
        let one_row = Design::published(Candidate::Log);
        assert_eq!(flags(one_row), "--policy log --rows one");
        let grouped = of(Candidate::LogLru).grouped();
        assert_eq!(flags(grouped), "--policy log-lru --grouped");
    }

    #[test]
    fn every_line_fits_80_columns_and_the_table_is_aligned() {
        for (disk, memory) in [("1TB", "256MB"), ("16TiB", "1GiB"), ("64GB", "1KiB")] {
            let text = text_of(&planned(&args(disk, memory)).unwrap());
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
            let table = text.lines().skip(3).take_while(|line| !line.is_empty());
            let ends: Vec<_> = table.skip(2).map(|line| line.find(" %")).collect();
            assert!(ends.len() > 6 && ends.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn what_was_measured_is_told_in_a_line_of_its_own() {
        let mut plan = planned(&args("1TB", "256MB")).unwrap();
        plan.probe = Some(Probe {
            reads_per_s: 100_000.0,
            reads_per_s_deep: 500_000.0,
            write_bytes_per_s: Some(9e9),
            read_costs: vec![],
            extents: 256,
        });
        let text = text_of(&plan);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let line = "in a second 100000 reads of 16KiB singly, 500000 eight at once; 9000MB written";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn exactly_the_pick_is_marked_and_it_can_be_asked_for() {
        let text = text_of(&planned(&args("1TB", "2GB")).unwrap());
        let marked: Vec<&str> = text.lines().filter(|line| line.starts_with('>')).collect();
        assert_eq!(marked.len(), 2, "{text}");
        assert!(marked[0].starts_with("> log "), "{text}");
        assert_eq!(marked[1], "> take --policy log --grouped");
    }

    #[test]
    fn the_recommended_flags_name_a_slot_or_object_size_other_than_the_default() {
        let mut wanted = planned(&args("100GB", "2GB")).unwrap().wanted;
        // A disk that was measured may get larger slots.
        wanted.block_bytes = 32 << 10;
        wanted.workload.object_bytes = 2 << 10;
        let flags = |candidate| flags_of(&Design::from_candidate(candidate), &wanted);
        assert_eq!(flags(Candidate::Set), "--policy set --block 32KiB");
        let log = "--policy log --object-size 2KiB";
        assert_eq!(flags(Candidate::Log), log);
    }

    #[test]
    fn a_plan_for_a_disk_too_small_for_a_store_says_that_no_policy_fits() {
        let text = text_of(&planned(&args("1MiB", "256MB")).unwrap());
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.contains("no policy fits"), "{text}");
    }

    #[test]
    fn json_has_every_policy_and_the_pick() {
        let value = json_of(&planned(&args("1TB", "256MB")).unwrap());
        let policies = value["policies"].as_array().unwrap();
        let names: Vec<&str> = policies
            .iter()
            .filter_map(|policy| policy["name"].as_str())
            .collect();
        for name in ["basic", "set", "set-mem", "set-mem-lru", "log", "log-lru"] {
            assert!(names.contains(&name), "{names:?}");
        }
        let set_mem = policies.iter().find(|policy| policy["name"] == "set-mem");
        let set_mem = set_mem.unwrap();
        assert_eq!(set_mem["bits_per_slot"], 11.0);
        assert_eq!(set_mem["fits"], true);
        assert!(names.contains(&value["pick"].as_str().unwrap()));
        assert_eq!(value["block_bytes"], 8192);
        assert_eq!(value["set_bytes"], 65536);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_flag_that_said_it() {
        let refused = |change: fn(&mut PlanArgs)| {
            let mut args = args("1TB", "256MB");
            change(&mut args);
            planned(&args).err().unwrap().what
        };
        assert!(refused(|args| args.disk = "big".into()).starts_with("--disk: "));
        assert!(refused(|args| args.memory = "-1".into()).starts_with("--memory: "));
        assert!(refused(|args| args.object_size = "0".into()).starts_with("--object-size: "));
        assert!(refused(|args| args.object_size = "9GiB".into()).starts_with("--object-size: "));
        for seeks in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut args = args("1TB", "256MB");
            args.seeks = Some(seeks);
            assert!(planned(&args).err().unwrap().what.starts_with("--seeks: "));
        }
    }

    #[test]
    fn sizes_are_told_in_three_digits() {
        for (bytes, text) in [
            (0, "0"),
            (999, "999B"),
            (1000, "1.00KB"),
            (999_949, "1.00MB"),
            (12_345_678, "12.3MB"),
            (2_990_000_000_000, "2.99TB"),
            (u64::MAX, "18.4EB"),
        ] {
            assert_eq!(about_size(bytes), text);
        }
        for (bytes, text) in [
            (64 << 20, "64MiB"),
            (256_000_000, "256MB"),
            (1_000_000_000_000, "1TB"),
            (40_000_000_000, "40GB"),
            (1_050_000_000_001, "1.05TB"),
        ] {
            assert_eq!(brief_size(bytes), text);
        }
    }
}
