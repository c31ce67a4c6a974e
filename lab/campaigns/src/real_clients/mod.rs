//! `cargo campaign real-clients`: common tools through our proxy, with only its address in their
//! environment.
//!
//! Package tools use the sources that this machine is configured with, as their own configuration
//! names them: the code names no host. The state of the tools is not touched: lists, caches and
//! homes are in a temporary directory. Downloads use origins of ours with known content.
//!
//! Limit: every fetch is correct, and every second fetch is served from the cache.

pub mod access_log;
mod apt;
mod conditional;
mod downloads;
mod git;
pub mod intercept;
mod mirrors;
pub mod tool;
mod tunnels;

use std::path::PathBuf;

use anyhow::Context as _;
use hashcache_testkit::{ContentOptions, ContentOrigin};

use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;
use crate::report::Report;
use access_log::{AccessLog, Line};
use tool::Tool;

/// Arguments of `real-clients`.
#[derive(clap::Args)]
pub struct Args {
    /// Try only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Try only tools whose TLS the proxy intercepts
    #[arg(long, conflicts_with = "only")]
    intercept: bool,
    /// Destinations to allow: package sources with private addresses need it
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allow_destination: Vec<String>,
}

/// Parts that can be tried alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// apt-get, twice
    Apt,
    /// Package tools through CONNECT
    Tunnels,
    /// git over HTTP
    Git,
    /// Package tools through mirrors
    Mirrors,
    /// curl and wget
    Downloads,
    /// Tools and a browser through a proxy that ends their TLS
    Intercept,
}

/// Tries all tools and reports the result of each.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let binary = campaign.binary()?.to_owned();
    let content = ContentOrigin::start_thread(ContentOptions::default())?;
    let directory = campaign.folder().canonicalize()?;
    let log_path = directory.join("access.log");
    let command = campaign.proxy()?;
    let mut command = command
        .flag("cache-size", "8GiB")
        .without("access-log")
        .flag("access-log", log_path.display())
        .flag("log-format", "json")
        .flag("allow-connect-port", "443")
        .flag("allow-connect-port", content.address().port());
    for prefix in &args.allow_destination {
        command = command.flag("allow-destination", prefix);
    }
    let mut bench = Bench {
        proxy: command.start()?,
        log: AccessLog::new(log_path),
        directory,
        report: &mut campaign.report,
    };
    let wanted = |part| {
        if args.intercept {
            part == Part::Intercept
        } else {
            args.only.is_empty() || args.only.contains(&part)
        }
    };
    if wanted(Part::Downloads) {
        downloads::run(&mut bench, &content).await?;
    }
    if wanted(Part::Git) {
        git::run(&mut bench).await?;
    }
    if wanted(Part::Tunnels) {
        tunnels::run(&mut bench, &content).await?;
    }
    if wanted(Part::Mirrors) {
        mirrors::run(&mut bench, &binary).await?;
    }
    if wanted(Part::Intercept) {
        intercept::run(&mut bench, &binary).await?;
    }
    if wanted(Part::Apt) {
        apt::run(&mut bench).await?;
    }
    let stats = bench.proxy.stats().map(|stats| stats.to_string());
    bench.report.outcome("the proxy tells its figures", stats);
    let ended = bench.proxy.ended()?;
    let alive = match ended {
        None => "it still runs".to_owned(),
        Some(status) => format!("it ended with {status}; it said: {}", bench.proxy.said()),
    };
    bench
        .report
        .check("the proxy outlives its clients", ended.is_none(), alive);
    Ok(())
}

/// Shared by all parts.
#[derive(Debug)]
struct Bench<'a> {
    proxy: ProxyProcess,
    log: AccessLog,
    directory: PathBuf,
    report: &'a mut Report,
}

impl Bench<'_> {
    /// A program that finds the proxy by its environment alone.
    fn tool(&self, program: &str) -> Tool {
        let url = self.proxy.url();
        let names = ["http_proxy", "https_proxy", "HTTPS_PROXY"];
        let tool = Tool::new(program)
            .without("no_proxy")
            .without("NO_PROXY")
            .without("ALL_PROXY")
            .without("all_proxy");
        names
            .into_iter()
            .fold(tool, |tool, name| tool.variable(name, &url))
    }

    /// An empty directory of this name; an existing one is deleted first.
    fn empty(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// The lines logged since the last call.
    async fn logged(&mut self) -> anyhow::Result<Vec<Line>> {
        self.log.next().await
    }
}
