//! `hashcache bench`: measures the engine on this machine or on a modelled disk.
//!
//! `play` sends the requests of `hashcache_workload` to a store, `table` prints the results.
//! Invariant: every bench file is deleted at the end, and no existing cache is touched.

mod play;
mod table;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum as _};
use hashcache::device::DiskModel;
use hashcache::{PolicyKind, Rows};
use hashcache_workload::{Shape, Sizes};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use hashcache_settings::fault::Fault;
use hashcache_settings::units::{parse_size, show_size};
use hashcache_settings::{PlaceBy, block};
use play::{Candidate, Medium, Outcome, Plan};

/// Subcommands under `hashcache bench`.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure each policy: fill a store, then send requests as in the paper
    #[command(after_help = ENGINE_HELP)]
    Engine(Box<EngineArgs>),
}

const ENGINE_HELP: &str = "\
About 60 % of the requests are for stored objects, and 80 % of the responses can be cached. Clients
take turns, one request each. With --grouped the store knows which objects belong to a page.
A run measures twice: with a working set of a quarter of the store (seeks, requests/s, hits `fit`)
and with a working set as large as the store (hits `full`: what the policy loses shows here).
Reads and seeks are counted at the device, so a hit in memory costs none. On a modelled disk
(throttle:70 is 70 seeks per second, throttle:hdd-7200, throttle:seek=8ms,rate=120MB/s) requests/s
is the rate that disk would reach, on any machine; a sync takes no time there. With --devices each
name lies on one of the disks, which work at the same time. A disk waits while no client asks for
what it has. A client waits for its answer before it sends the next request, so use more clients
with more disks. On other devices requests/s is the rate of one client that waits for each answer.
Equal seeds give equal requests and an equal secret of the store. Counts are then equal, too, but
for some in 10,000 where threads of the store read (objects above 64 KiB, log-lru).";

/// Arguments for `hashcache bench engine`.
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
    /// Objects and requests
    #[arg(long, value_enum, value_name = "WORKLOAD", default_value = "polymix")]
    workload: Shape,
    /// Objects per page of the workload `pages`; 1 means unrelated objects [default: 13]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=256))]
    related: Option<u64>,
    /// Clients that take turns
    #[arg(long, value_name = "COUNT", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Objects that fit in the store
    #[arg(long, value_name = "COUNT", default_value_t = 50_000)]
    objects: u64,
    /// Requests of each of the two measurements [default: the number of objects]
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Object sizes: `web` (log-normal, median 3 KB), `types` (those of Polymix-4) or `fixed:SIZE`
    /// [default: `web` for `pages`, else `types`]
    #[arg(long, value_name = "MODEL")]
    size_model: Option<String>,
    /// Device of the store: `throttle:DISK` (a modelled disk), `memory` or `file`
    #[arg(long, value_name = "DEVICE", default_value = "throttle:70")]
    device: String,
    /// Modelled disks that the store lies on, 1 to 16, each with its share of the objects
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..=16))]
    devices: u8,
    /// Choose the disk for an object by its name, or by the host in it (workload `pages`)
    #[arg(long, value_enum, value_name = "WHAT", default_value = "name")]
    placement: PlaceBy,
    /// Hosts that the objects of a page have, with `--placement host` [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=256))]
    hosts: Option<u64>,
    /// Directory for the file of `--device file` [default: the system's temporary directory]
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Slot size of the Disk Table [default: 8KiB, or a size that fits objects of a fixed size]
    #[arg(long, value_name = "SIZE")]
    block: Option<String>,
    /// Memory for hot objects and objects read together with them
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    hot: String,
    /// Share that memory holds, 1 to 100: of the positions with `log-lru` (in steps of an eighth),
    /// of the sets with `set-mem-lru` [default: 50 and 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    held_share: Option<u8>,
    /// Seed of sizes, requests and the store's secret; each further run uses the next number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs per policy; prints the median and the range of all runs
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(command: &BenchCommand) -> anyhow::Result<ExitCode> {
    let BenchCommand::Engine(args) = command;
    let candidates = candidates(args)?;
    let temporary = std::env::temp_dir();
    let sizes = sizes(args)?;
    if args.related.is_some() && args.workload != Shape::Pages {
        let fault = Fault::new("--related: works only with the workload `pages`");
        return Err(fault.hint("use `--workload pages`").into());
    }
    if args.placement == PlaceBy::Host && args.workload != Shape::Pages {
        let fault = Fault::new("--placement: `host` works only with the workload `pages`");
        return Err(fault.hint("use `--workload pages`").into());
    }
    if args.hosts.is_some() && args.placement != PlaceBy::Host {
        let fault = Fault::new("--hosts: works only where the host chooses the disk");
        return Err(fault.hint("use `--placement host`").into());
    }
    let medium = medium(&args.device)?;
    let devices = devices(args, medium)?;
    check_held_share(args, &candidates)?;
    let plan = Plan {
        objects: within("--objects", args.objects, OBJECTS_MIN * devices as u64)?,
        requests: within("--requests", args.requests.unwrap_or(args.objects), 1_000)?,
        shape: args.workload,
        related: args.related.unwrap_or(PAGE_OBJECTS),
        place_by: args.placement,
        hosts: args.hosts.unwrap_or(1),
        clients: args.clients.into(),
        sizes,
        medium,
        devices,
        directory: args.directory.as_deref().unwrap_or(&temporary),
        block_bytes: block_bytes(args, sizes)?,
        hot_bytes: parse_size(&args.hot).map_err(|fault| fault.at("--hot"))?,
        held_share: args.held_share,
        seed: args.seed,
    };
    let outcomes = play_all(&plan, &candidates, args.runs)?;
    let text = if args.json {
        format!("{}\n", json_of(args, &plan, &outcomes))
    } else {
        format!("{}\n{}", headline(args, &plan), table::text(&outcomes))
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Plays all runs of each candidate, in the order of the candidates.
fn play_all(
    plan: &Plan<'_>,
    candidates: &[Candidate],
    runs: u32,
) -> anyhow::Result<Vec<Vec<Outcome>>> {
    let all = candidates.len() as u64 * u64::from(runs);
    let bar = progress_bar(play::steps(plan) * all);
    let mut done = 0;
    let mut outcomes = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        bar.set_message(candidate.name());
        let mut of_candidate = Vec::new();
        for run in 0..u64::from(runs) {
            let seed = plan.seed.wrapping_add(run);
            let plan = Plan {
                seed,
                ..plan.clone()
            };
            of_candidate.push(play::play(&plan, *candidate, |n| {
                if n.is_multiple_of(PROGRESS_STEP) {
                    bar.set_position(done + n);
                }
            })?);
            done += play::steps(&plan);
        }
        outcomes.push(of_candidate);
    }
    bar.finish_and_clear();
    Ok(outcomes)
}

/// Shows a progress bar if standard error is a terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:12} {wide_bar} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(steps).with_style(style)
}

/// The candidates to measure. With `--policy all` they include `log` in its published form and with
/// groups, for comparison.
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

fn sizes(args: &EngineArgs) -> Result<Sizes, Fault> {
    let text = match (args.size_model.as_deref(), args.workload) {
        (Some("web"), _) | (None, Shape::Pages) => return Ok(Sizes::Web),
        (Some("types"), Shape::Pages) => {
            let fault = Fault::new("--size-model: objects of the workload `pages` have no types");
            return Err(fault.hint("use `web`, or another workload"));
        }
        (Some("types") | None, _) => return Ok(Sizes::ByType),
        (Some(text), _) => text,
    };
    let Some(size) = text.strip_prefix("fixed:") else {
        let what = format!("--size-model: `{text}` is unknown");
        return Err(Fault::new(what).hint("use `web`, `types`, or `fixed:8KiB`"));
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

fn devices(args: &EngineArgs, medium: Medium) -> Result<usize, Fault> {
    let is_modelled = matches!(medium, Medium::Modelled(_));
    if args.devices > 1 && !is_modelled {
        let what = format!(
            "--devices: works only with modelled disks, not `{}`",
            args.device
        );
        return Err(Fault::new(what).hint("use `--device throttle:70`"));
    }
    Ok(args.devices.into())
}

fn check_held_share(args: &EngineArgs, candidates: &[Candidate]) -> Result<(), Fault> {
    let holds = |it: &Candidate| matches!(it.policy, PolicyKind::SetMemLru | PolicyKind::LogLru);
    if args.held_share.is_none() || candidates.iter().any(holds) {
        return Ok(());
    }
    let what = format!(
        "--held-share: `{}` holds all that it has in memory",
        args.policy
    );
    Err(Fault::new(what).hint("use `--policy log-lru` or `--policy set-mem-lru`"))
}

/// The slot size: for web objects the size in the paper, in which three quarters fit; for objects
/// with a fixed size, a size that fits all.
fn block_bytes(args: &EngineArgs, sizes: Sizes) -> Result<u32, Fault> {
    if let Some(size) = &args.block {
        return block(size).map_err(|fault| fault.at("--block"));
    }
    Ok(match sizes {
        Sizes::Web | Sizes::ByType => 8 << 10,
        Sizes::Fixed(bytes) => (bytes + HEAD_BYTES)
            .next_power_of_two()
            .clamp(2 << 10, 1 << 20),
    })
}

fn within(flag: &str, count: u64, least: u64) -> Result<u64, Fault> {
    if (least..=COUNT_MAX).contains(&count) {
        return Ok(count);
    }
    let fault = Fault::new(format!("{flag}: {count} is out of range"));
    Err(fault.hint(format!("use {least} to {COUNT_MAX}")))
}

fn headline(args: &EngineArgs, plan: &Plan<'_>) -> String {
    let workload = args.workload.to_possible_value();
    let name = workload.as_ref().map_or("", |value| value.get_name());
    let sizes = match plan.sizes {
        Sizes::Web => "sizes `web`".to_owned(),
        Sizes::ByType => "sizes by type".to_owned(),
        Sizes::Fixed(bytes) => format!("all of {}", show_size(bytes.into())),
    };
    let disk = match plan.medium {
        Medium::Modelled(model) if plan.devices > 1 => {
            format!("{} disks, each with {}", plan.devices, modelled(model))
        }
        Medium::Modelled(model) => modelled(model),
        Medium::Memory => "memory".to_owned(),
        Medium::File => "a file".to_owned(),
    };
    format!(
        "workload {name}: {} objects, {sizes}; {} requests, {} clients, {} run{}\n\
         device: {disk}; slots of {}\n",
        plan.objects,
        plan.requests,
        plan.clients,
        args.runs,
        if args.runs == 1 { "" } else { "s" },
        show_size(plan.block_bytes.into()),
    )
}

/// Formats the disk figures that determine the result.
fn modelled(model: DiskModel) -> String {
    let (outer, inner) = model.transfer_rates();
    let seeks = 1.0 / model.random_read(SEEK_READ_BYTES).as_secs_f64();
    format!(
        "{seeks:.0} seeks/s, transfer {} to {} MB/s, syncs free",
        outer / 1_000_000,
        inner / 1_000_000,
    )
}

fn json_of(args: &EngineArgs, plan: &Plan<'_>, outcomes: &[Vec<Outcome>]) -> serde_json::Value {
    let workload = args.workload.to_possible_value();
    let placement = args.placement.to_possible_value();
    let model = match plan.medium {
        Medium::Modelled(model) => Some(model),
        Medium::Memory | Medium::File => None,
    };
    json!({
        "workload": workload.as_ref().map(|value| value.get_name()),
        "objects": plan.objects,
        "requests": plan.requests,
        "clients": plan.clients,
        "related": (plan.shape == Shape::Pages).then_some(plan.related),
        "size_model": match plan.sizes {
            Sizes::Web => "web".to_owned(),
            Sizes::ByType => "types".to_owned(),
            Sizes::Fixed(bytes) => format!("fixed:{bytes}"),
        },
        "device": args.device,
        "devices": plan.devices,
        "placement": placement.as_ref().map(|value| value.get_name()),
        "hosts": (args.placement == PlaceBy::Host).then_some(plan.hosts),
        "outer_bytes_per_s": model.map(|model| model.transfer_rates().0),
        "inner_bytes_per_s": model.map(|model| model.transfer_rates().1),
        "sync_seconds": model.map(|_| 0.0),
        "block_bytes": plan.block_bytes,
        "hot_bytes": plan.hot_bytes,
        "held_share": plan.held_share,
        "seed": plan.seed,
        "runs": args.runs,
        "policies": table::json(outcomes),
    })
}

/// Read size for which a disk's seeks per second are stated.
const SEEK_READ_BYTES: u64 = 16 << 10;
const PAGE_OBJECTS: u64 = 13;
/// Requests between two steps for the progress bar, which need not move for each request.
const PROGRESS_STEP: u64 = 256;
/// Least number of objects: a Disk Table's store needs room for ten segments.
const OBJECTS_MIN: u64 = 3_000;
const COUNT_MAX: u64 = 1_000_000_000;
const FIXED_BYTES: std::ops::RangeInclusive<u32> = 1..=1 << 20;
/// Header, name and metadata of a bench object.
const HEAD_BYTES: u32 = 256;
