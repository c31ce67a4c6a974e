//! `cargo campaign smuggling`: requests and answers with two meanings, against the real proxy.
//!
//! Plays the tables of `hashcache_testkit::scenario` in both modes of the proxy: every shape of a
//! request whole and cut in two, every fault of an origin to clients of HTTP/1.1 and 1.0, and every
//! answer that is one client's alone.
//!
//! Invariant: the bars are the testkit's; this file starts processes and tells what came out.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use hashcache_testkit::Origin;
use hashcache_testkit::scenario::Verdict;
use hashcache_testkit::scenario::origin_faults::{self, FAULTS};
use hashcache_testkit::scenario::shared_answers;
use hashcache_testkit::scenario::smuggling::{self, Cut, Place, SHAPES};

use crate::proxy_process::{BinaryArgs, ProxyCommand};
use crate::report::Report;
use crate::verdicts;

/// Arguments of `smuggling`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: BinaryArgs,
    /// Play against this forward proxy instead of starting ours
    #[arg(long, value_name = "ADDRESS")]
    proxy: Option<SocketAddr>,
    /// Tell about every shape, not only about those that failed
    #[arg(long)]
    all: bool,
    /// Write the report as JSON
    #[arg(long)]
    json: bool,
}

/// Plays all tables in both modes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let mut report = Report::new("smuggling", args.json);
    runtime.block_on(play(args, &mut report))?;
    report.finish()
}

async fn play(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("cannot make a directory for the caches")?;
    let binary = match args.proxy {
        Some(_) => None,
        None => Some(args.binary.binary()?),
    };
    for accelerates in [false, true] {
        if accelerates && binary.is_none() {
            continue;
        }
        let mode = if accelerates {
            "accelerator"
        } else {
            "forward"
        };
        for table in [Table::Shapes, Table::Faults, Table::Specials] {
            let origin = table.origin().await.context("cannot start an origin")?;
            let process = match &binary {
                Some(binary) => {
                    let cache = home.path().join(format!("{mode}-{table:?}"));
                    Some(command(binary, &cache, accelerates.then(|| origin.address())).start()?)
                }
                None => None,
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
            let verdicts = table.play(&place).await;
            tell(
                report,
                &format!("{mode}, {}", table.name()),
                &verdicts,
                args.all,
            );
            if let Some(mut process) = process {
                let ended = process.ended()?;
                report.check(
                    format!("{mode}, {}: the proxy still runs", table.name()),
                    ended.is_none() && !process.said().contains("panicked"),
                    ended.map_or_else(String::new, |status| status.to_string()),
                );
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

fn command(binary: &Path, cache: &Path, accelerated: Option<SocketAddr>) -> ProxyCommand {
    let command = ProxyCommand::new(binary, cache)
        .flag("cache-size", "256MiB")
        .flag("memory", "32MiB")
        .flag("policy", "log")
        .flag("allow-destination", "127.0.0.0/8")
        .flag("access-log", "none");
    match accelerated {
        Some(origin) => command.flag("accelerate", format!("http://{origin}")),
        None => command,
    }
}

/// One row for all that went well, one for each that did not.
fn tell(report: &mut Report, which: &str, played: &[Verdict], all: bool) {
    let well = played.iter().filter(|verdict| verdict.is_well()).count();
    let total = played.len();
    for verdict in played {
        if all || !verdict.is_well() {
            verdicts::tell(report, which, verdict);
        }
    }
    report.check(
        which.to_owned(),
        well == total,
        format!("{well} of {total} as they must be"),
    );
}
