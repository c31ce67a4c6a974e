//! `cargo campaign never-wrong`: the real proxy killed again and again under load.
//!
//! Plays `hashcache_testkit::scenario::never_wrong`: rounds of load, kill and restart with one
//! cache, then a fill at a steady rate with another.
//!
//! Invariant: the bars are the testkit's; this file starts and kills the process and tells what
//! came out.

use std::net::SocketAddr;

use anyhow::Context as _;
use hashcache_testkit::scenario::never_wrong::{self, Fill, Options, Victim};

use crate::proxy_process::{BinaryArgs, ProxyCommand, ProxyProcess};
use crate::report::Report;
use crate::verdicts;

/// Arguments of `never-wrong`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// How often the proxy is killed
    #[arg(long, default_value_t = 30)]
    kills: u32,
    /// How many objects there are
    #[arg(long, default_value_t = 20_000)]
    objects: u32,
    /// Where sizes, contents, choices and moments come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How objects are placed on disk
    #[arg(long, default_value = "log")]
    policy: String,
    /// Requests a second while the cache is filled
    #[arg(long, default_value_t = 4000)]
    fill_rate: u32,
    /// How long the cache is filled, seconds; 0 leaves it out
    #[arg(long, default_value_t = 15)]
    fill_seconds: u32,
    /// Three kills, two thousand objects, a fill of two seconds
    #[arg(long)]
    short: bool,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
}

/// Plays the rounds and the fill.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let binary = args.binary.binary()?;
    let home = tempfile::tempdir().context("cannot make a directory for the caches")?;
    let (options, fill) = args.sizes();
    let command = |cache: &str| {
        ProxyCommand::new(&binary, &home.path().join(cache))
            // A file with holes; far from full with all objects in it.
            .flag("cache-size", "8GiB")
            .flag("memory", "256MiB")
            .flag("policy", &args.policy)
            .flag("allow-destination", "127.0.0.0/8")
            .flag("access-log", "none")
    };
    let mut report = Report::new("never-wrong", args.json);
    let mut killed = Killed::new(command("rounds"));
    let rounds = never_wrong::play(&mut killed, &options, |line| eprintln!("xtask: {line}"));
    for verdict in runtime.block_on(rounds).context("the play itself failed")? {
        verdicts::tell(&mut report, "", &verdict);
    }
    if fill.seconds > 0 {
        // Only now: two caches at once are nobody's case, and disks are small.
        std::fs::remove_file(home.path().join("rounds")).context("cannot remove a cache")?;
        let mut killed = Killed::new(command("fill"));
        let filled = never_wrong::fill(&mut killed, &options, &fill);
        for verdict in runtime.block_on(filled).context("the play itself failed")? {
            verdicts::tell(&mut report, "", &verdict);
        }
    }
    report.finish()
}

impl Args {
    fn sizes(&self) -> (Options, Fill) {
        if self.short {
            let options = Options {
                seed: self.seed,
                ..Options::short()
            };
            return (
                options,
                Fill {
                    rate: 1000,
                    seconds: 2,
                },
            );
        }
        let options = Options {
            kills: self.kills,
            objects: self.objects,
            seed: self.seed,
            ..Options::default()
        };
        let fill = Fill {
            rate: self.fill_rate,
            seconds: self.fill_seconds,
        };
        (options, fill)
    }
}

/// The proxy as something to kill.
pub struct Killed {
    command: ProxyCommand,
    process: Option<ProxyProcess>,
}

impl Killed {
    /// A proxy that is not started yet.
    pub fn new(command: ProxyCommand) -> Self {
        Self {
            command,
            process: None,
        }
    }
}

impl Victim for Killed {
    fn start(&mut self) -> Result<SocketAddr, String> {
        let process = self.command.start().map_err(|error| format!("{error:#}"))?;
        let address = process.address();
        self.process = Some(process);
        // Clients know one address; the next one must come up there.
        self.command = self.command.clone().at(address);
        Ok(address)
    }

    fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            let said = process.said();
            if said.contains("panicked") {
                eprintln!("xtask: the proxy said {said:?}");
            }
            // Fails only when it has ended by itself, which the next start tells.
            let _ = process.kill();
        }
    }
}
