//! `cargo campaign purges`: what was purged never answers again, and many purges cost little.
//!
//! Plays `hashcache_testkit::scenario::purges` against the real proxy, which is killed the moment
//! it has answered; then runs the test of `crates/hashcache-cli/tests/it` that measures hits on a
//! disk of 100 seeks a second while 10,000 purges a minute come.
//!
//! Invariant: the bars are the testkit's and the test's; this file starts and kills, and tells what
//! came out.

use std::process::Command;

use anyhow::{Context as _, bail};
use hashcache_testkit::scenario::purges::{self, Options};

use crate::never_wrong::Killed;
use crate::proxy_process::{BinaryArgs, ProxyCommand};
use crate::report::Report;
use crate::{root, verdicts};

/// Arguments of `purges`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// Objects of each part
    #[arg(long, default_value_t = 60)]
    objects: usize,
    /// How often the proxy is killed for each kind of purge
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// Policies, all by default
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// How long each run on the slow disk is, seconds; 0 leaves them out
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
}

/// Those that find what was put into a store with room.
const POLICIES: [&str; 4] = ["log", "log-lru", "set-mem", "set"];

/// Plays all.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new("purges", args.json);
    let binary = args.binary.binary()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let policies = match &args.policy[..] {
        [] => POLICIES.map(str::to_owned).to_vec(),
        some => some.to_vec(),
    };
    let options = Options {
        objects: args.objects,
        kills: args.kills,
    };
    for policy in policies {
        let home = tempfile::tempdir().context("cannot make a directory for the cache")?;
        let command = ProxyCommand::new(&binary, &home.path().join("cache"))
            .flag("cache-size", "1GiB")
            .flag("memory", "64MiB")
            .flag("policy", &policy)
            .flag("allow-destination", "127.0.0.0/8")
            .flag("access-log", "none");
        let mut killed = Killed::new(command);
        let played = runtime.block_on(purges::play(&mut killed, &options));
        for verdict in played.map_err(anyhow::Error::msg)? {
            verdicts::tell(&mut report, &policy, &verdict);
        }
    }
    if args.seconds > 0 {
        report.outcome(
            "10,000 purges a minute on 100 seeks a second",
            slow_disk(args.seconds),
        );
    }
    report.finish()
}

/// Runs the test; what it measured.
fn slow_disk(seconds: u64) -> anyhow::Result<String> {
    let test =
        "proxy_purges::ten_thousand_purges_a_minute_take_a_tenth_of_a_disk_of_a_hundred_seeks";
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root())
        .args([
            "test",
            "--release",
            "--locked",
            "-p",
            "hashcache-cli",
            "--test",
            "it",
        ])
        .args(["--", "--exact", test, "--nocapture"])
        .env("HASHCACHE_TEST_SECONDS", seconds.to_string())
        .output()
        .context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    // A name that no test has would pass.
    if !output.status.success() || !said.contains("1 passed") {
        bail!("{said}{complaint}");
    }
    let figures = said.lines().find(|line| line.contains("times as long"));
    Ok(figures.unwrap_or_default().to_owned())
}
