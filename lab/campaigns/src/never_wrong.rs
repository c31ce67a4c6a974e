//! `cargo campaign never-wrong`: the real proxy killed again and again under load.
//!
//! Plays `hashcache_testkit::scenario::never_wrong`: rounds of load, kill and restart with one
//! cache, then a fill at a steady rate with another.
//!
//! Invariant: the testkit defines the bars; this module starts and kills the process and reports
//! the results.

use anyhow::Context as _;
use hashcache_testkit::scenario::never_wrong::{self, Fill, Options};

use crate::campaign::Campaign;
use crate::proxy_process::Killed;

/// Arguments of `never-wrong`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the proxy is killed
    #[arg(long, default_value_t = 30)]
    kills: u32,
    /// How many objects there are
    #[arg(long, default_value_t = 20_000)]
    objects: u32,
    /// Seed of sizes, contents, choices and times
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
}

/// Plays the rounds and the fill.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let (options, fill) = args.sizes();
    let killed = |campaign: &Campaign| {
        let command = campaign.proxy()?;
        anyhow::Ok(Killed::new(
            command
                // A sparse file, far from full with all objects in it.
                .flag("cache-size", "8GiB")
                .flag("memory", "256MiB")
                .flag("policy", &args.policy),
        ))
    };
    let mut victim = killed(campaign)?;
    let rounds = never_wrong::play(&mut victim, &options, |line| eprintln!("campaign: {line}"));
    for verdict in rounds.await.context("the play itself failed")? {
        campaign.report.verdict("", &verdict);
    }
    // Deletes its cache before the next one is made: disks are small.
    drop(victim);
    if fill.seconds > 0 {
        let mut victim = killed(campaign)?;
        let filled = never_wrong::fill(&mut victim, &options, &fill).await;
        for verdict in filled.context("the play itself failed")? {
            campaign.report.verdict("", &verdict);
        }
    }
    Ok(())
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
