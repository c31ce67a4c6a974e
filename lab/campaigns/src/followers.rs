//! `cargo campaign followers`: many clients and one fetch, against the real proxy.
//!
//! Plays `hashcache_testkit::scenario::followers`: an origin that breaks off, is slow or offers
//! nothing to resume by; clients that leave or hardly read.
//!
//! Invariant: the testkit defines the bars; this module starts the process, with the default
//! limits, and reports the results.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use hashcache_testkit::scenario::followers::{Part, Play};

use crate::campaign::Campaign;

/// Arguments of `followers`.
#[derive(clap::Args)]
pub struct Args {
    /// Play against this forward proxy instead of starting ours
    #[arg(long, value_name = "ADDRESS")]
    proxy: Option<SocketAddr>,
    /// Clients at once
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Size of the large object, megabytes
    #[arg(long, default_value_t = 50)]
    megabytes: u64,
    /// Play only the parts with this word in their name: Cut, Chunks, Leave, Slow, …
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
}

/// Plays all parts.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let process = match args.proxy {
        Some(_) => None,
        None => {
            let command = campaign.proxy()?;
            let command = command
                .flag("cache-size", "8GiB")
                .flag("memory", format!("{MEMORY_MIB}MiB"))
                .flag("policy", "log");
            Some(command.start()?)
        }
    };
    let proxy = process
        .as_ref()
        .map(|process| process.address())
        .or(args.proxy);
    let play = Play {
        proxy: proxy.context("no proxy")?,
        pid: process.as_ref().map(|process| process.pid()),
        memory_bytes: MEMORY_MIB << 20,
        clients: args.clients,
        object_bytes: args.megabytes * 1_000_000,
        cut_clients: CUT_CLIENTS,
        cut_bytes: CUT_BYTES,
        first_answer: Duration::ZERO,
    };
    let wanted = |part: &&Part| match &args.only {
        Some(word) => format!("{part:?}").contains(word.as_str()),
        None => true,
    };
    for part in Part::all(&play).iter().filter(wanted) {
        campaign.report.verdict("", &part.play(&play).await);
    }
    if let Some(mut process) = process {
        campaign.check_running("", &mut process)?;
    }
    Ok(())
}

const MEMORY_MIB: u64 = 64;
const CUT_CLIENTS: usize = 10;
const CUT_BYTES: u64 = 3_000_000;
