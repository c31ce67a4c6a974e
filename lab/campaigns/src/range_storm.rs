//! `cargo campaign range-storm`: many clients request random ranges of one large object; each byte
//! is fetched once.
//!
//! Plays `hashcache_testkit::scenario::range_storm` against the real proxy: with a strong entity
//! tag that stays, with one that changes midway, and with a weak one.
//!
//! Invariant: the testkit defines the bars; each storm has a proxy and a cache of its own.

use hashcache_testkit::scenario::range_storm::{Storm, Tag, play};

use crate::campaign::Campaign;

/// Arguments of `range-storm`.
#[derive(clap::Args)]
pub struct Args {
    /// Clients at once
    #[arg(long, default_value_t = 50)]
    clients: u64,
    /// Ranges that each client asks for: one storm for each number
    #[arg(long, value_delimiter = ',', default_values_t = [40, 400])]
    ranges: Vec<u64>,
    /// Size of the object, mebibytes
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
}

/// Plays all storms.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let least = args.ranges.iter().copied().min().unwrap_or(0);
    let strong = args.ranges.iter().map(|ranges| (Tag::Strong, *ranges));
    for (tag, ranges) in strong.chain([(Tag::Changing, least), (Tag::Weak, least)]) {
        let command = campaign.proxy()?;
        let command = command
            .flag("cache-size", "4GiB")
            // By default an object larger than an eighth of the cache is not stored.
            .flag("max-object-size", "2GiB")
            .flag("memory", "64MiB");
        let mut process = command.start()?;
        let verdict = play(Storm {
            proxy: process.address(),
            clients: args.clients,
            ranges,
            object_bytes: args.mebibytes << 20,
            range_bytes: 1 << 20,
            tag,
        })
        .await;
        campaign.report.verdict("", &verdict);
        campaign.check_running("", &mut process)?;
    }
    Ok(())
}
