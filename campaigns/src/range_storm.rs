//! `cargo campaign range-storm`: many clients, random ranges of one large object, each byte fetched
//! once.
//!
//! Plays `hashcache_testkit::scenario::range_storm` against the real proxy: with a strong entity
//! tag that stays, with one that changes midway, and with a weak one.
//!
//! Invariant: the bars are the testkit's; each storm has a proxy and a cache of its own.

use anyhow::Context as _;
use hashcache_testkit::scenario::range_storm::{Storm, Tag, play};

use crate::proxy_process::{BinaryArgs, ProxyCommand};
use crate::report::Report;
use crate::verdicts;

/// Arguments of `range-storm`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// Clients at once
    #[arg(long, default_value_t = 50)]
    clients: u64,
    /// Ranges that each client asks for: one storm for each number
    #[arg(long, value_delimiter = ',', default_values_t = [40, 400])]
    ranges: Vec<u64>,
    /// Size of the object, mebibytes
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
}

/// Plays all storms.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let binary = args.binary.binary()?;
    let mut report = Report::new("range-storm", args.json);
    let least = args.ranges.iter().copied().min().unwrap_or(0);
    let strong = args.ranges.iter().map(|ranges| (Tag::Strong, *ranges));
    for (tag, ranges) in strong.chain([(Tag::Changing, least), (Tag::Weak, least)]) {
        let home = tempfile::tempdir().context("cannot make a directory for the cache")?;
        let command = ProxyCommand::new(&binary, &home.path().join("cache"))
            .flag("config", "/dev/null")
            .flag("cache-size", "4GiB")
            // By default what is more than an eighth of the cache is not stored.
            .flag("max-object-size", "2GiB")
            .flag("memory", "64MiB")
            .flag("allow-destination", "127.0.0.0/8")
            .flag("access-log", "none");
        let mut process = command.start()?;
        let verdict = runtime.block_on(play(Storm {
            proxy: process.address(),
            clients: args.clients,
            ranges,
            object_bytes: args.mebibytes << 20,
            range_bytes: 1 << 20,
            tag,
        }));
        verdicts::tell(&mut report, "", &verdict);
        let ended = process.ended()?;
        report.check(
            "the proxy still runs",
            ended.is_none() && !process.said().contains("panicked"),
            ended.map_or_else(String::new, |status| status.to_string()),
        );
    }
    report.finish()
}
