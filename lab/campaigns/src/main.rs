//! `cargo campaign NAME`: long tests and measurements of the proxy and the engine.
//!
//! One module per campaign, each with its `Args` and a `run`; `campaign` has the parts that they
//! share. To add a campaign, add a `mod` line, a variant of `Command` with its help as doc comment,
//! and an arm in `Command::run`.

mod application;
mod campaign;
mod certificate;
mod cgroup;
mod checked_request;
mod conformance;
mod contestant;
mod cpu;
mod device_speed;
mod durations;
mod failures;
mod followers;
mod h2spec;
mod hostile;
mod index_memory;
mod layouts;
mod levels;
mod limits;
mod loop_mount;
mod median;
mod members;
mod memory_limit;
mod memory_pressure;
mod models;
mod namespace;
mod never_wrong;
mod object_load;
mod overhead;
mod paper_figure;
mod papers;
mod pictures;
mod proxy_process;
mod purges;
mod range_storm;
mod real_clients;
mod report;
mod restart;
mod rivals;
mod rivals_page;
mod server_disk;
mod slow_disk;
mod smuggling;
mod squid;
mod stopped;
mod transparent;
mod wan;

use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::runtime::{Builder, Runtime};

use campaign::{Campaign, Options};

/// Long tests and measurements of the proxy and the engine.
#[derive(Parser)]
#[command(name = "cargo campaign", bin_name = "cargo campaign")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Try curl, wget, git, apt and package tools through the proxy
    RealClients(real_clients::Args),
    /// Hold the memory of the proxy against what it was allowed
    MemoryLimit(memory_limit::Args),
    /// Let the proxy share a memory limit with others that want it
    MemoryPressure(memory_pressure::Args),
    /// Kill the proxy under load again and again and check every byte
    NeverWrong(never_wrong::Args),
    /// Let many clients share one fetch that is cut, slow or not to be shared
    Followers(followers::Args),
    /// Purge in every way, kill the proxy, and measure many purges on a slow disk
    Purges(purges::Args),
    /// Ask for random ranges of one object: each byte is to be fetched once
    RangeStorm(range_storm::Args),
    /// Hold HTTP/2 to clients against every case of h2spec
    H2spec(h2spec::Args),
    /// Attack the proxy with greedy clients and origins while an innocent client uses it
    Hostile(hostile::Args),
    /// Send requests and answers that have two meanings
    Smuggling(smuggling::Args),
    /// Let a real Squid and the proxy be each other's parent, sibling and child
    Squid(squid::Args),
    /// Log in to a Django application behind the proxy with Chromium
    Application(application::Args),
    /// Break peers and origins in every way, and see what clients notice
    Failures(failures::Args),
    /// Kill one of three boxes behind HAProxy under load and start it again
    Members(members::Args),
    /// Send connections of curl and Chromium to the proxy by netfilter, in network namespaces
    Transparent(transparent::Args),
    /// Measure a child and its parent over a slow link: bytes, time, kills, damage
    Wan(wan::Args),
    /// Run the public suite of HTTP caching tests in both modes
    Conformance(conformance::Args),
    /// Hold random operations on every policy against a map
    Models(models::ModelArgs),
    /// Have many threads do everything at once on every policy, contents checked
    Stress(models::StressArgs),
    /// Measure every policy on a modelled disk; writes a table and a picture to docs/
    PaperFigure(paper_figure::Args),
    /// Draw the three pictures of docs/RIVALS.md, from measurements and reports
    Pictures(pictures::Args),
    /// Hold quotas, bandwidth and request rates against what they say, in real time
    Limits(limits::Args),
    /// Compare processor time of a request with that of other caches
    Cpu(cpu::Args),
    /// Measure what each level of proxies adds to the time of a response
    Levels(levels::Args),
    /// Measure what proxies pay to ask each other: no peers, ICP, summaries
    Overhead(overhead::Args),
    /// Compare requests/s for pages on a slow disk with those of other caches
    SlowDisk(slow_disk::Args),
    /// Kill a cache and start it again: time until the first hit, and hits that are left
    Restart(restart::Args),
    /// Measure the memory that a stored object takes, ours and those of other caches
    IndexMemory(index_memory::Args),
    /// Measure all of this beside other caches; the full form writes docs/RIVALS.md
    Rivals(rivals_page::Args),
    /// Compare reads and writes of a device with those of fio
    DeviceSpeed(device_speed::Args),
    /// Replay requests through the layouts of WebCoSM on a file system whose disk is modelled
    Layouts(layouts::Args),
    /// Draw figures of the papers again, from measurements; writes docs/papers
    Papers(papers::Args),
    /// Replay one layout for `layouts`, which starts this in a process of its own
    #[command(hide = true)]
    ReplayLayout(layouts::ReplayLayout),
    /// Take memory for `memory-pressure`, which starts this in a process of its own
    #[command(hide = true)]
    Compete(memory_pressure::Compete),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("campaign: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let matches = Cli::command().get_matches();
    let name = matches.subcommand_name().context("no campaign")?;
    let Cli { command, options } = Cli::from_arg_matches(&matches)?;
    match &command {
        Command::Compete(args) => {
            args.take_memory();
            return Ok(());
        }
        Command::ReplayLayout(args) => return args.replay(),
        _ => {}
    }
    let mut campaign = Campaign::begin(name, &options)?;
    command.runtime()?.block_on(command.run(&mut campaign))?;
    campaign.finish()
}

impl Command {
    /// Campaigns that measure the proxy under a steady load generate it on one thread, so that the
    /// proxy has the other processors.
    fn runtime(&self) -> anyhow::Result<Runtime> {
        let mut builder = match self {
            Self::RealClients(_)
            | Self::MemoryLimit(_)
            | Self::MemoryPressure(_)
            | Self::NeverWrong(_)
            | Self::Levels(_)
            // Their thread enters a network namespace, and other threads would not.
            | Self::Overhead(_)
            | Self::Transparent(_)
            | Self::Cpu(_) => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        builder
            .enable_all()
            .build()
            .context("cannot start a runtime")
    }

    async fn run(&self, campaign: &mut Campaign) -> anyhow::Result<()> {
        match self {
            Self::RealClients(args) => real_clients::run(args, campaign).await,
            Self::MemoryLimit(args) => memory_limit::run(args, campaign).await,
            Self::MemoryPressure(args) => memory_pressure::run(args, campaign).await,
            Self::NeverWrong(args) => never_wrong::run(args, campaign).await,
            Self::Followers(args) => followers::run(args, campaign).await,
            Self::Purges(args) => purges::run(args, campaign).await,
            Self::RangeStorm(args) => range_storm::run(args, campaign).await,
            Self::H2spec(args) => h2spec::run(args, campaign).await,
            Self::Hostile(args) => hostile::run(args, campaign).await,
            Self::Smuggling(args) => smuggling::run(args, campaign).await,
            Self::Squid(args) => squid::run(args, campaign).await,
            Self::Application(args) => application::run(args, campaign).await,
            Self::Failures(args) => failures::run(args, campaign).await,
            Self::Members(args) => members::run(args, campaign).await,
            Self::Transparent(args) => transparent::run(args, campaign).await,
            Self::Wan(args) => wan::run(args, campaign).await,
            Self::Conformance(args) => conformance::run(args, campaign),
            Self::Models(args) => models::models(args, campaign),
            Self::Stress(args) => models::stress(args, campaign),
            Self::PaperFigure(args) => paper_figure::run(args, campaign),
            Self::Pictures(args) => pictures::run(args, campaign),
            Self::Cpu(args) => cpu::run(args, campaign).await,
            Self::Limits(args) => limits::run(args, campaign).await,
            Self::Levels(args) => levels::run(args, campaign).await,
            Self::Overhead(args) => overhead::run(args, campaign).await,
            Self::SlowDisk(args) => slow_disk::run(args, campaign).await,
            Self::Restart(args) => restart::run(args, campaign).await,
            Self::IndexMemory(args) => index_memory::run(args, campaign).await,
            Self::Rivals(args) => rivals_page::run(args, campaign),
            Self::DeviceSpeed(args) => device_speed::run(args, campaign),
            Self::Layouts(args) => layouts::run(args, campaign),
            Self::Papers(args) => papers::run(args, campaign),
            Self::Compete(_) | Self::ReplayLayout(_) => {
                unreachable!("they run before a campaign begins")
            }
        }
    }
}

/// The root of the product's workspace, independent of the current directory.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().nth(2);
    root.expect("campaigns lies in lab, which lies in the root")
        .to_owned()
}

/// The cargo that started us, to be run in the root of the product's workspace.
fn cargo() -> process::Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = process::Command::new(program);
    command.current_dir(root());
    command
}
