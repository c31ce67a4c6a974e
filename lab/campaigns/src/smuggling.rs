//! `cargo campaign smuggling`: ambiguous requests and responses, against the real proxy.
//!
//! Plays the tables of `hashcache_testkit::scenario` in both modes of the proxy: every form of a
//! request, whole and cut in two; every fault of an origin, to clients of HTTP/1.1 and 1.0; and
//! every response that belongs to one client alone.
//!
//! Invariant: the testkit defines the bars; this module starts processes and reports the results.

use std::net::SocketAddr;

use anyhow::Context as _;
use hashcache_testkit::Origin;
use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::origin_faults::{self, FAULTS};
use hashcache_testkit::scenario::shared_answers;
use hashcache_testkit::scenario::smuggling::{self, Cut, Place, SHAPES};

use crate::campaign::Campaign;
use crate::proxy_process::ProxyCommand;

/// Arguments of `smuggling`.
#[derive(clap::Args)]
pub struct Args {
    /// Play against this forward proxy instead of starting ours
    #[arg(long, value_name = "ADDRESS")]
    proxy: Option<SocketAddr>,
    /// Report every form, not only failures
    #[arg(long)]
    all: bool,
}

/// Plays all tables in both modes.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    for accelerates in [false, true] {
        if accelerates && args.proxy.is_some() {
            continue;
        }
        let mode = if accelerates {
            "accelerator"
        } else {
            "forward"
        };
        for table in [Table::Shapes, Table::Faults, Table::Specials] {
            let origin = table.origin().await.context("cannot start an origin")?;
            let accelerated = accelerates.then(|| origin.address());
            let process = match args.proxy {
                Some(_) => None,
                None => Some(command(campaign, accelerated)?.start()?),
            };
            let proxy = process
                .as_ref()
                .map(|process| process.address())
                .or(args.proxy);
            let place = Place {
                proxy: proxy.context("no proxy")?,
                accelerates,
                origin: &origin,
            };
            let which = format!("{mode}, {}", table.name());
            tell(campaign, &which, &table.play(&place).await, args.all);
            if let Some(mut process) = process {
                campaign.check_running(&which, &mut process)?;
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Table {
    Shapes,
    Faults,
    Specials,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Shapes => "requests",
            Self::Faults => "answers",
            Self::Specials => "answers that are one client's",
        }
    }

    async fn origin(self) -> std::io::Result<Origin> {
        match self {
            Self::Shapes => smuggling::echo_origin().await,
            Self::Faults => origin_faults::faulty_origin(FAULTS).await,
            Self::Specials => shared_answers::start_origin().await,
        }
    }

    async fn play(self, place: &Place<'_>) -> Vec<Verdict> {
        match self {
            Self::Shapes => {
                let cuts = [Cut::Whole, Cut::At(30), Cut::At(60)];
                smuggling::play_all(place, SHAPES, &cuts).await
            }
            Self::Faults => origin_faults::play_all(place, FAULTS).await,
            Self::Specials => shared_answers::play_all(place).await,
        }
    }
}

fn command(campaign: &Campaign, accelerated: Option<SocketAddr>) -> anyhow::Result<ProxyCommand> {
    let command = campaign.proxy()?;
    let command = command
        .flag("cache-size", "256MiB")
        .flag("memory", "32MiB")
        .flag("policy", "log");
    Ok(match accelerated {
        Some(origin) => command.flag("accelerate", format!("http://{origin}")),
        None => command,
    })
}

/// Adds one row for all parts that passed and one for each that failed.
fn tell(campaign: &mut Campaign, which: &str, played: &[Verdict], all: bool) {
    let well = played.iter().filter(|verdict| verdict.is_well()).count();
    let total = played.len();
    for verdict in played {
        if all || !verdict.is_well() {
            campaign.report.verdict(which, verdict);
        }
    }
    let detail = format!("{well} of {total} as they must be");
    campaign.report.check(which, well == total, detail);
}
