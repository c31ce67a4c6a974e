//! `hashcache bench`: what the engine does on this machine, or would do on another disk.
//!
//! `workload` says what is asked for, `play` asks a store, `table` tells what came of it.
//! Invariant: nothing is left behind, and no cache that was there before is touched.

mod play;
mod table;
mod workload;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use hashcache::device::DiskModel;
use hashcache::{PolicyKind, Rows};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::fault::Fault;
use crate::settings::block;
use crate::units::{parse_size, show_size};
use play::{Candidate, Medium, Outcome, Plan};
use workload::Sizes;

/// What can be measured.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure each policy: fill a store, then send requests as in the paper
    #[command(after_help = ENGINE_HELP)]
    Engine(Box<EngineArgs>),
}

const ENGINE_HELP: &str = "\
60 % of the requests are hits and 80 % of the responses can be cached. Objects belong to pages, and
eight clients request the objects of a page in turn; with --grouped the store knows which objects
belong together. Reads and seeks are counted at the device, so an answer from memory costs none.
On a modelled disk (throttle:70 is 70 seeks per second, throttle:hdd-7200,
throttle:seek=8ms,rate=120MB/s), requests/s is the rate that disk would reach, on any machine. On
other devices it is the rate of one client that waits for each answer.";

/// What `hashcache bench engine` is asked.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// Policy to measure, or `all`
    #[arg(long, value_name = "POLICY", default_value = "all")]
    policy: String,
    /// Index rows of `log` in which a name may be, 1 or 2 [default: 2; with `all`, both]
    #[arg(long, value_name = "COUNT")]
    rows: Option<u8>,
    /// Write and read the objects of a page together (log, log-lru) [with `all`: both ways]
    #[arg(long)]
    grouped: bool,
    /// Objects per page; 1 means unrelated objects
    #[arg(long, value_name = "COUNT", default_value_t = 13,
          value_parser = clap::value_parser!(u64).range(1..=256))]
    related: u64,
    /// Objects that fit in the store
    #[arg(long, value_name = "COUNT", default_value_t = 50_000)]
    objects: u64,
    /// Requests to measure, once the store is full [default: the number of objects]
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Object sizes: `web` (log-normal, median 3 KB) or `fixed:SIZE`
    #[arg(long, value_name = "MODEL", default_value = "web")]
    size_model: String,
    /// Device of the store: `throttle:DISK` (a modelled disk), `memory` or `file`
    #[arg(long, value_name = "DEVICE", default_value = "throttle:70")]
    device: String,
    /// Directory for the file of `--device file` [default: the system's temporary directory]
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Slot size of the Disk Table [default: fits three quarters of the objects]
    #[arg(long, value_name = "SIZE")]
    block: Option<String>,
    /// Memory for hot objects and objects read together with them
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    hot: String,
    /// Seed of the random sizes and requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Measures what is asked for.
pub fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    let BenchCommand::Engine(args) = command;
    let candidates = candidates(args)?;
    let temporary = std::env::temp_dir();
    let sizes = sizes(&args.size_model)?;
    let plan = Plan {
        objects: within("--objects", args.objects)?,
        requests: within("--requests", args.requests.unwrap_or(args.objects))?,
        related: args.related,
        sizes,
        medium: medium(&args.device)?,
        directory: args.directory.as_deref().unwrap_or(&temporary),
        block_bytes: block_bytes(args, sizes)?,
        hot_bytes: parse_size(&args.hot).map_err(|fault| fault.at("--hot"))?,
        seed: args.seed,
    };
    let outcomes = play_all(&plan, &candidates)?;
    let text = if args.json {
        format!("{}\n", json_of(args, &plan, &outcomes))
    } else {
        format!("{}\n{}", headline(args, &plan), table::text(&outcomes))
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn play_all(plan: &Plan<'_>, candidates: &[Candidate]) -> anyhow::Result<Vec<Outcome>> {
    let bar = progress_bar(play::steps(plan) * candidates.len() as u64);
    let mut outcomes = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        bar.set_message(candidate.name());
        let done = play::steps(plan) * outcomes.len() as u64;
        outcomes.push(play::play(plan, *candidate, |n| {
            if n.is_multiple_of(PROGRESS_STEP) {
                bar.set_position(done + n);
            }
        })?);
    }
    bar.finish_and_clear();
    Ok(outcomes)
}

/// A bar on a terminal, nothing anywhere else.
fn progress_bar(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:12} {wide_bar} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style)
}

/// What to measure; `log` in its published form and with groups as well, to be compared.
fn candidates(args: &EngineArgs) -> Result<Vec<Candidate>, Fault> {
    let rows = match args.rows {
        None => None,
        Some(1) => Some(Rows::One),
        Some(2) => Some(Rows::Two),
        Some(other) => {
            return Err(Fault::new(format!("--rows: {other} is not 1 or 2")));
        }
    };
    let all = args.policy == "all";
    let policies = match args.policy.parse::<PolicyKind>() {
        Ok(policy) => vec![policy],
        Err(_) if all => PolicyKind::ALL.to_vec(),
        Err(error) => return Err(Fault::new(format!("--policy: {error}")).hint("or use `all`")),
    };
    let groups = |policy: &PolicyKind| matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
    if args.grouped && !policies.iter().any(groups) {
        let fault = Fault::new("--grouped: works only with `log` and `log-lru`");
        return Err(fault.hint("use `--policy log` or `--policy log-lru`"));
    }
    let forms = |policy: PolicyKind| match rows {
        _ if !groups(&policy) => vec![(Rows::Two, false)],
        _ if policy == PolicyKind::LogLru && all => vec![(Rows::Two, false), (Rows::Two, true)],
        _ if policy == PolicyKind::LogLru => vec![(Rows::Two, args.grouped)],
        None if all => vec![(Rows::One, false), (Rows::Two, false), (Rows::Two, true)],
        Some(rows) if all => vec![(rows, false), (rows, true)],
        rows => vec![(rows.unwrap_or_default(), args.grouped)],
    };
    let candidate = |policy| {
        let forms = forms(policy).into_iter();
        forms.map(move |(rows, grouped)| Candidate {
            policy,
            rows,
            grouped,
        })
    };
    Ok(policies.into_iter().flat_map(candidate).collect())
}

fn sizes(text: &str) -> Result<Sizes, Fault> {
    if text == "web" {
        return Ok(Sizes::Web);
    }
    let Some(size) = text.strip_prefix("fixed:") else {
        let what = format!("--size-model: `{text}` is unknown");
        return Err(Fault::new(what).hint("use `web`, or `fixed:8KiB`"));
    };
    let bytes = parse_size(size).map_err(|fault| fault.at("--size-model"))?;
    let fits = u32::try_from(bytes)
        .ok()
        .filter(|bytes| FIXED_BYTES.contains(bytes));
    fits.map(Sizes::Fixed).ok_or_else(|| {
        Fault::new(format!(
            "--size-model: {size} is not an object size for this benchmark"
        ))
        .hint("use 1 byte to 1MiB")
    })
}

fn medium(text: &str) -> Result<Medium, Fault> {
    match text {
        "memory" => return Ok(Medium::Memory),
        "file" => return Ok(Medium::File),
        _ => {}
    }
    let Some(disk) = text.strip_prefix("throttle:") else {
        let what = format!("--device: `{text}` is unknown");
        return Err(Fault::new(what).hint("use `throttle:70`, `memory` or `file`"));
    };
    let model: Result<DiskModel, _> = disk.parse();
    model
        .map(Medium::Modelled)
        .map_err(|error| Fault::new(format!("--device: {error}")))
}

/// What three quarters of web objects fit in, or all of one size.
fn block_bytes(args: &EngineArgs, sizes: Sizes) -> Result<u32, Fault> {
    if let Some(size) = &args.block {
        return block(size).map_err(|fault| fault.at("--block"));
    }
    Ok(match sizes {
        Sizes::Web => 8 << 10,
        Sizes::Fixed(bytes) => (bytes + HEAD_BYTES)
            .next_power_of_two()
            .clamp(2 << 10, 1 << 20),
    })
}

fn within(flag: &str, count: u64) -> Result<u64, Fault> {
    if COUNTS.contains(&count) {
        return Ok(count);
    }
    Err(Fault::new(format!("{flag}: {count} is out of range")).hint("use 1000 to 1000000000"))
}

fn headline(args: &EngineArgs, plan: &Plan<'_>) -> String {
    format!(
        "{} objects ({}; pages of {}), {} requests, {}, blocks of {}\n",
        plan.objects,
        args.size_model,
        plan.related,
        plan.requests,
        args.device,
        show_size(plan.block_bytes.into()),
    )
}

fn json_of(args: &EngineArgs, plan: &Plan<'_>, outcomes: &[Outcome]) -> serde_json::Value {
    json!({
        "objects": plan.objects,
        "requests": plan.requests,
        "related": plan.related,
        "size_model": args.size_model,
        "device": args.device,
        "block_bytes": plan.block_bytes,
        "hot_bytes": plan.hot_bytes,
        "seed": plan.seed,
        "policies": table::json(outcomes),
    })
}

/// A bar need not move for each request.
const PROGRESS_STEP: u64 = 256;
const COUNTS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000;
const FIXED_BYTES: std::ops::RangeInclusive<u32> = 1..=1 << 20;
/// Header, name and metadata of an object of the bench.
const HEAD_BYTES: u32 = 256;
