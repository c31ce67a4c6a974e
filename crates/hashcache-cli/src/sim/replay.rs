//! `hashcache sim replay`: replays a log through the engine, through models of other caches, or
//! through the two levels of WebCoSM.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use hashcache::device::DiskModel;
use hashcache::{OpenError, PolicyKind, Rows};
use hashcache_settings::block;
use hashcache_settings::fault::Fault;
use hashcache_settings::units::{about_size, parse_size, show_size};
use hashcache_sim::curves::{self, Curves};
use hashcache_sim::disk_names;
use hashcache_sim::replay::{self, ReplayError};
use hashcache_sim::report::Report;
use hashcache_sim::rival::{self, Rival};
use hashcache_sim::two_level::{self, Table};
use serde_json::json;

use super::input::{Input, InputArgs};
use crate::machine::memory_available;

pub const HELP: &str = "\
Each request is looked up, and what is missed is put, through the engine itself on a modelled disk
whose content is in memory. The bytes of every hit are compared with what was put. Requests follow
each other as fast as the disk answers; seeks take the mean time of the disk, as if the store filled
it. requests/s is the rate that this disk would reach. Equal logs and flags give equal results.
`squid` and `tiger` are models of the caches that the HashCache paper compares with: 560 and 232
bits of index for each object, all in memory, which therefore bounds the objects on disk.
`--two-level` instead counts what a memory cache and a disk cache behind it do (WebCoSM, Table 1).
--device-model: 1999 (9 ms, 4.7 MB/s), hdd, ssd, hdd-5400, seeks per second, or figures such as
seek=8.5ms,rpm=7200,rate=120MB/s.";

/// Arguments for `hashcache sim replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Which cache
    #[arg(long, value_enum, value_name = "INDEX", default_value = "engine")]
    index: Index,
    /// Policy of the engine, or `all` [default: log]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Memory for the index and hot objects
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: String,
    /// Size of the cache on disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    disk_size: String,
    /// Disk
    #[arg(long, value_name = "DISK", default_value = "hdd")]
    device_model: String,
    /// Write and read the objects of a page together (log, log-lru)
    #[arg(long)]
    grouped: bool,
    /// Index rows of `log` in which a name may be, 1 or 2 [default: 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=2))]
    rows: Option<u8>,
    /// Share that memory holds, 1 to 100: of the positions with `log-lru`, of the sets with
    /// `set-mem-lru` [default: 50 and 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    held_share: Option<u8>,
    /// Keep objects that are in use when the log's head reaches them (log)
    #[arg(long)]
    readmission: bool,
    /// Mean object size, which sizes the index
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    object_size: String,
    /// Slot size of the Disk Table [default: 8KiB]
    #[arg(long, value_name = "SIZE")]
    block: Option<String>,
    /// Memory cache, then disk cache, both of least recently used objects: count the hits of each
    #[arg(long, conflicts_with_all = ["index", "policy", "grouped", "rows", "held_share",
                                      "readmission", "block"])]
    two_level: bool,
    /// Seed of contents, of the store's secret and of the disk
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Draw hits, bytes of hits, and reads and writes of the disk over the log
    #[arg(long, value_name = "FILE", conflicts_with = "two_level")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which cache answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Index {
    /// The engine, with --policy
    Engine,
    /// A model of Squid: a file for each object
    Squid,
    /// A model of Tiger: a log, all of the index in memory
    Tiger,
}

impl Index {
    fn rival(self) -> Option<Rival> {
        match self {
            Self::Engine => None,
            Self::Squid => Some(Rival::Squid),
            Self::Tiger => Some(Rival::Tiger),
        }
    }
}

/// Sizes and disk, parsed from their flags.
struct Parsed {
    memory_bytes: u64,
    disk_bytes: u64,
    object_bytes: u32,
    block_bytes: u32,
    disk: DiskModel,
}

/// Replays the log and prints the result.
pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let parsed = parse(args)?;
    check_index(args)?;
    let mut stdout = std::io::stdout();
    if args.two_level {
        stdout.write_all(two_level(args, &parsed)?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let runs = replay_all(args, &parsed)?;
    let text = if args.json {
        format!("{}\n", json_of(args, &parsed, &runs)?)
    } else {
        text_of(args, &parsed, &runs)
    };
    stdout.write_all(text.as_bytes())?;
    if let Some(path) = &args.svg {
        let cannot = || format!("--svg: cannot write {}", path.display());
        fs::write(path, picture(args, &parsed, &runs)).with_context(cannot)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn parse(args: &ReplayArgs) -> Result<Parsed, Fault> {
    let size = |flag: &str, text: &str| parse_size(text).map_err(|fault| fault.at(flag));
    let object_bytes = size("--object-size", &args.object_size)?;
    let object_bytes = u32::try_from(object_bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| {
            Fault::new(format!(
                "--object-size: {} is not a mean size",
                args.object_size
            ))
            .hint("use 1 byte to 4GB")
        })?;
    let disk = disk_names::disk(&args.device_model);
    Ok(Parsed {
        memory_bytes: size("--memory", &args.memory)?,
        disk_bytes: size("--disk-size", &args.disk_size)?,
        object_bytes,
        block_bytes: block(args.block.as_deref().unwrap_or("8KiB"))
            .map_err(|fault| fault.at("--block"))?,
        disk: disk.map_err(|error| {
            Fault::new(format!("--device-model: {error}")).hint("or use `1999`, `hdd` or `ssd`")
        })?,
    })
}

/// Refuses the engine's flags for a model of another cache, which has none of these settings.
fn check_index(args: &ReplayArgs) -> Result<(), Fault> {
    let given = [
        ("--policy", args.policy.is_some()),
        ("--grouped", args.grouped),
        ("--rows", args.rows.is_some()),
        ("--held-share", args.held_share.is_some()),
        ("--readmission", args.readmission),
        ("--block", args.block.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) if args.index != Index::Engine => {
            let fault = Fault::new(format!("{flag}: has no effect on models of other caches"));
            Err(fault.hint("leave it out, or use `--index engine`"))
        }
        _ => Ok(()),
    }
}

/// Fails early if the picture cannot be written: a replay can take hours.
fn check_picture(args: &ReplayArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.svg {
        let opened = File::options().create(true).append(true).open(path);
        opened.with_context(|| format!("--svg: cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns a report for each policy or model, with the name.
fn replay_all(args: &ReplayArgs, parsed: &Parsed) -> anyhow::Result<Vec<(String, Report)>> {
    let Some(rival) = args.index.rival() else {
        let policies = policies(args)?;
        check_memory(parsed)?;
        check_picture(args)?;
        let mut input = args.input.open(policies.len() as u64)?;
        let mut runs = vec![];
        for policy in policies {
            let report = replay_engine(args, parsed, policy, &mut input)?;
            runs.push((name(args, policy), report));
        }
        return Ok(runs);
    };
    check_picture(args)?;
    let mut input = args.input.open(1)?;
    let settings = rival::Settings {
        rival,
        memory_bytes: parsed.memory_bytes,
        disk_bytes: parsed.disk_bytes,
        disk: parsed.disk,
        view: args.input.view,
    };
    let report = rival::replay(&mut input.files, &settings)?;
    Ok(vec![(rival.name().to_owned(), report)])
}

/// Checks the memory: this machine holds the content of the modelled disk and the hot objects in
/// memory.
fn check_memory(parsed: &Parsed) -> Result<(), Fault> {
    let needed = parsed.disk_bytes.saturating_add(parsed.memory_bytes);
    match memory_available() {
        Some(available) if needed > available => {
            let fault = Fault::new(format!(
                "--disk-size, --memory: {} and {} do not fit the {} of free memory of this machine",
                show_size(parsed.disk_bytes),
                show_size(parsed.memory_bytes),
                about_size(available),
            ));
            Err(fault.hint("use smaller sizes: a replay keeps the content of its disk in memory"))
        }
        _ => Ok(()),
    }
}

fn policies(args: &ReplayArgs) -> Result<Vec<PolicyKind>, Fault> {
    let groups = |policy: &PolicyKind| matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
    let named = args.policy.as_deref().unwrap_or("log");
    let policies = match named.parse::<PolicyKind>() {
        Ok(policy) => vec![policy],
        Err(_) if named == "all" => PolicyKind::ALL.to_vec(),
        Err(error) => return Err(Fault::new(format!("--policy: {error}")).hint("or use `all`")),
    };
    if args.grouped && !policies.iter().any(groups) {
        let fault = Fault::new("--grouped: works only with `log` and `log-lru`");
        return Err(fault.hint("use `--policy log` or `--policy log-lru`"));
    }
    Ok(policies)
}

fn is_grouped(args: &ReplayArgs, policy: PolicyKind) -> bool {
    args.grouped && matches!(policy, PolicyKind::Log | PolicyKind::LogLru)
}

fn name(args: &ReplayArgs, policy: PolicyKind) -> String {
    let grouped = if is_grouped(args, policy) {
        " grouped"
    } else {
        ""
    };
    format!("{}{grouped}", policy.name())
}

fn replay_engine(
    args: &ReplayArgs,
    parsed: &Parsed,
    policy: PolicyKind,
    input: &mut Input,
) -> anyhow::Result<Report> {
    let settings = replay::Settings {
        policy,
        rows: match args.rows {
            Some(1) => Rows::One,
            _ => Rows::Two,
        },
        grouped: is_grouped(args, policy),
        held_share: args.held_share,
        readmission: args.readmission && policy == PolicyKind::Log,
        memory_bytes: parsed.memory_bytes,
        disk_bytes: parsed.disk_bytes,
        disk: parsed.disk,
        object_bytes: parsed.object_bytes,
        block_bytes: parsed.block_bytes,
        view: args.input.view,
        seed: args.seed,
    };
    let replayed = replay::replay(&mut input.files, &settings);
    replayed.map_err(|error| match fault_of(&error, args, policy) {
        Some(fault) => fault.into(),
        None => error.into(),
    })
}

/// The fault in the flags, if the flags caused the error of a replay.
fn fault_of(error: &ReplayError, args: &ReplayArgs, policy: PolicyKind) -> Option<Fault> {
    Some(match error {
        ReplayError::Memory {
            index_bytes,
            memory_bytes,
        } => {
            let what = format!(
                "--memory: the index of `{}` takes {}, but there are {}",
                policy.name(),
                show_size(*index_bytes),
                show_size(*memory_bytes),
            );
            Fault::new(what).hint("use more memory, or `--policy set`, which has no index")
        }
        // A disk without room for the superblocks is not recognised as a disk for a new store.
        ReplayError::Open(OpenError::TooSmall { .. } | OpenError::Foreign { .. }) => {
            let what = format!("--disk-size: {} is too small for a cache", args.disk_size);
            Fault::new(what).hint("use `--disk-size 32MiB` or more")
        }
        ReplayError::Wrong { .. } => Fault::new(error.to_string())
            .hint("this is a serious bug in HashCache: please report it"),
        _ => return None,
    })
}

fn json_of(
    args: &ReplayArgs,
    parsed: &Parsed,
    runs: &[(String, Report)],
) -> anyhow::Result<serde_json::Value> {
    let runs: Result<Vec<serde_json::Value>, serde_json::Error> = runs
        .iter()
        .map(|(name, report)| {
            let mut run = serde_json::to_value(report)?;
            run["name"] = json!(name);
            Ok(run)
        })
        .collect();
    Ok(json!({
        "view": args.input.view.name(),
        "memory_bytes": parsed.memory_bytes,
        "disk_bytes": parsed.disk_bytes,
        "device_model": parsed.disk.to_string(),
        "object_bytes": parsed.object_bytes,
        "block_bytes": parsed.block_bytes,
        "seed": args.seed,
        "runs": runs?,
    }))
}

fn text_of(args: &ReplayArgs, parsed: &Parsed, runs: &[(String, Report)]) -> String {
    let Some((_, first)) = runs.first() else {
        return String::new();
    };
    let mut text = format!(
        "{} requests of {} (view `{}`); {} without a size left out, {} not to be stored\n\
         memory {}, disk {}, {:.0} seeks/s\n\n",
        first.requests,
        about_size(first.bytes),
        args.input.view.name(),
        first.without_size,
        first.uncacheable,
        about_size(parsed.memory_bytes),
        about_size(parsed.disk_bytes),
        seeks_per_s(parsed),
    );
    let heads = [
        [
            "", "bits", "hits", "bytes", "hits in", "reads", "writes", "seeks", "requests", "by",
        ],
        [
            "", "/slot", "%", "hit %", "memory %", "/hit", "/put", "/request", "/s", "plan",
        ],
    ];
    for head in heads {
        text += &line(&head.map(str::to_owned));
    }
    for (name, report) in runs {
        text += &line(&cells(name, report));
    }
    for (name, report) in runs {
        let (long, large) = (report.names_too_long, report.objects_too_large);
        if long + large > 0 {
            text += &format!(
                "\n{name}: not stored: {long} with too long a name, {large} larger than an eighth \
                 of the disk"
            );
        }
    }
    if let Some(rival) = args.index.rival() {
        let full = rival.index_bytes(parsed.disk_bytes, parsed.object_bytes.into());
        text += &format!(
            "\n{}: with objects of {} the index of a full disk takes {}\n",
            rival.name(),
            show_size(parsed.object_bytes.into()),
            about_size(full),
        );
    }
    text.trim_end().to_owned() + "\n"
}

fn picture(args: &ReplayArgs, parsed: &Parsed, runs: &[(String, Report)]) -> String {
    let first = runs.first().map(|(_, report)| report);
    let title = format!("Replay of {}", args.input.names());
    let each = first.and_then(|report| report.intervals.first());
    let notes = [format!(
        "memory {}, disk {} of {:.0} seeks/s; a point stands for {} of {} requests",
        about_size(parsed.memory_bytes),
        about_size(parsed.disk_bytes),
        seeks_per_s(parsed),
        each.map_or(0, |interval| interval.requests),
        first.map_or(0, |report| report.requests),
    )];
    let curves = runs.iter().map(|(name, report)| Curves {
        name,
        intervals: &report.intervals,
    });
    curves::svg(&title, &notes, &curves.collect::<Vec<_>>())
}

fn seeks_per_s(parsed: &Parsed) -> f64 {
    1.0 / parsed.disk.random_read(16 << 10).as_secs_f64()
}

fn cells(name: &str, report: &Report) -> [String; 10] {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let each = |part: u64, whole: u64| format!("{:.2}", part as f64 / whole.max(1) as f64);
    let in_memory = report.memory_hits as f64 / report.requests.max(1) as f64;
    [
        name.to_owned(),
        format!("{:.1}", report.index.bits_per_slot),
        percent(report.hit_ratio),
        percent(report.byte_hit_ratio),
        percent(in_memory),
        each(report.costs.hits.reads, report.disk_hits),
        each(report.disk.writes, report.puts),
        each(report.disk.seeks, report.requests),
        format!("{:.0}", report.requests_per_s),
        report.plan.map_or("-".to_owned(), |plan| {
            format!("{:.2}", plan.measured_to_planned)
        }),
    ]
}

fn line(cells: &[String; 10]) -> String {
    let [
        name,
        bits,
        hits,
        bytes,
        memory,
        reads,
        writes,
        seeks,
        rate,
        plan,
    ] = cells;
    let line = format!(
        "{name:<15} {bits:>5} {hits:>5} {bytes:>5} {memory:>8} {reads:>5} {writes:>6} \
         {seeks:>8} {rate:>8} {plan:>4}"
    );
    format!("{}\n", line.trim_end())
}

fn two_level(args: &ReplayArgs, parsed: &Parsed) -> anyhow::Result<String> {
    let mut input = args.input.open(1)?;
    let sizes = (parsed.memory_bytes, parsed.disk_bytes);
    let table = two_level::replay(&mut input.files, args.input.view, sizes)?;
    if args.json {
        return Ok(format!("{}\n", serde_json::to_string(&table)?));
    }
    Ok(two_level_text(&table))
}

fn two_level_text(table: &Table) -> String {
    let row = |name: &str, count: u64, rest: String| {
        let share = count as f64 / table.requests.max(1) as f64 * 100.0;
        format!("{name:<16} {count:>12} {share:>5.1} %{rest}\n")
    };
    let bytes = |bytes| format!("  {}", about_size(bytes));
    [
        row("URL reads", table.reads, bytes(table.read_bytes)),
        row("URL writes", table.writes, bytes(table.written_bytes)),
        row("hits in memory", table.memory_hits, String::new()),
        row("requests", table.requests, String::new()),
        row("URL deletes", table.deletes, String::new()),
    ]
    .concat()
}
