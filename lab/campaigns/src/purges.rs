//! `cargo campaign purges`: a purged object is never served again, and many purges cost little.
//!
//! Plays `hashcache_testkit::scenario::purges` against the real proxy, which is killed right after
//! its response to a purge. Then runs the test of `crates/hashcache-cli/tests/it` that measures
//! hits on a disk of 100 seeks a second with 10,000 purges a minute.
//!
//! Invariant: the testkit and that test define the bars; this module starts and kills processes,
//! and reports the results.

use anyhow::{Context as _, anyhow, bail};
use hashcache_testkit::scenario::purges::{self, Options};

use crate::campaign::Campaign;
use crate::cargo;
use crate::proxy_process::Killed;

/// Arguments of `purges`.
#[derive(clap::Args)]
pub struct Args {
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
}

/// Policies that find every object that was put into a store with room.
const POLICIES: [&str; 4] = ["log", "log-lru", "set-mem", "set"];

/// Plays all.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let policies = match &args.policy[..] {
        [] => POLICIES.map(str::to_owned).to_vec(),
        some => some.to_vec(),
    };
    let options = Options {
        objects: args.objects,
        kills: args.kills,
    };
    for policy in policies {
        let command = campaign.proxy()?;
        let command = command
            .flag("cache-size", "1GiB")
            .flag("memory", "64MiB")
            .flag("policy", &policy);
        let played = purges::play(&mut Killed::new(command), &options).await;
        for verdict in played.map_err(|error| anyhow!(error))? {
            campaign.report.verdict(&policy, &verdict);
        }
    }
    if args.seconds > 0 {
        campaign.report.outcome(
            "10,000 purges a minute on 100 seeks a second",
            slow_disk(args.seconds),
        );
    }
    Ok(())
}

/// Runs the test; returns its figures.
fn slow_disk(seconds: u64) -> anyhow::Result<String> {
    let test =
        "proxy_purges::ten_thousand_purges_a_minute_take_a_tenth_of_a_disk_of_a_hundred_seeks";
    let output = cargo()
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
    // `cargo test` with an unknown test name would succeed.
    if !output.status.success() || !said.contains("1 passed") {
        bail!("{said}{complaint}");
    }
    let figures = said.lines().find(|line| line.contains("times as long"));
    Ok(figures.unwrap_or_default().to_owned())
}
