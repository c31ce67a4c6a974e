//! `cargo campaign squid`: our proxy and a real Squid as each other's parent, sibling and child.
//!
//! Needs an installed Squid (Debian's package `squid`) and names it when it is missing. An origin
//! of ours, a Squid with a generated configuration and our proxy run on loopback; what one of them
//! knows is fetched through the other. `child` has the cases in which Squid asks, `parent` and
//! `script` those in which it is asked, `rings` those in which each asks the other,
//! `clear` those in which one tells the other to forget a URL.
//!
//! Invariant: content is compared byte by byte, the origin counts its requests, and the access logs
//! of both programs say of each request what happened, in Squid's own codes.

mod child;
mod clear;
mod datagrams;
mod digest;
pub mod log;
pub mod ours;
mod parent;
pub mod process;
mod rings;
mod script;
mod site;

use std::path::PathBuf;
use std::time::Duration;

use crate::campaign::Campaign;
use ours::Abilities;
use process::Installed;
use site::Site;

/// Arguments of `squid`.
#[derive(clap::Args)]
pub struct Args {
    /// The program Squid [default: the installed one]
    #[arg(long, value_name = "FILE")]
    squid: Option<PathBuf>,
    /// Fewer objects in each case
    #[arg(long)]
    short: bool,
    /// Play only the cases with these words in their name: "by ICP", "Squid as child", …
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
}

/// Plays all cases.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    // First: to build a proxy takes minutes.
    let installed = Installed::find(args.squid.as_deref())?;
    campaign.report.tell("Squid", &installed.version);
    let mut bench = Bench {
        abilities: Abilities::from_binary(campaign.binary()?)?,
        installed,
        site: Site::start(args.short).await?,
        only: args.only.clone(),
        campaign,
    };
    child::run(&mut bench).await?;
    script::run(&mut bench).await?;
    parent::run(&mut bench).await?;
    clear::run(&mut bench).await?;
    rings::run(&mut bench).await?;
    let complaints = bench.site.complaints();
    let report = &mut bench.campaign.report;
    report.check(
        "no request has two meanings",
        complaints.is_empty(),
        complaints.join("; "),
    );
    Ok(())
}

/// What all cases share.
struct Bench<'a> {
    installed: Installed,
    abilities: Abilities,
    site: Site,
    only: Option<String>,
    campaign: &'a mut Campaign,
}

impl Bench<'_> {
    fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|words| case.contains(words))
    }
}

/// Much longer than anything takes, and than Squid waits for an answer by UDP.
const ANSWER_TIME: Duration = Duration::from_secs(20);
