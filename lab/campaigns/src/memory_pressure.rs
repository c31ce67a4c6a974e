//! `cargo campaign memory-pressure`: does a proxy return memory before the kernel kills a process?
//!
//! A proxy with as many hot objects as it may have shares a cgroup with a competitor. The
//! competitor allocates memory at a given rate, or as fast as it can, holds it, and exits. Clients
//! request hot objects all the time and check every response.
//!
//! Limits: hot objects take at most 70 % of the limit, no process is killed, and within half a
//! minute after the competitor has exited, at least 90 % of the hot bytes are back.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Client, ContentOptions, ContentOrigin};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::campaign::Campaign;
use crate::cgroup::{Cgroup, enter};
use crate::memory_limit::{fetch, mib};
use crate::proxy_process::ProxyProcess;

/// Arguments of `memory-pressure`.
#[derive(clap::Args)]
pub struct Args {
    /// Limit of the group, MiB
    #[arg(long, default_value_t = 512)]
    limit: u64,
    /// The proxy's `--memory`, MiB
    #[arg(long, default_value_t = 400)]
    memory: u64,
    /// Memory that the competitor takes, MiB
    #[arg(long, default_value_t = 300)]
    take: u64,
    /// Rates at which it takes memory, MB/s; 0 is as fast as it can
    #[arg(long, value_delimiter = ',', default_values_t = [30, 100, 1000, 0])]
    rates: Vec<u64>,
    /// Rounds at each rate
    #[arg(long, default_value_t = 20)]
    rounds: u64,
}

/// Arguments of `compete`, the process that takes memory.
#[derive(clap::Args)]
pub struct Compete {
    /// MiB to take
    take: u64,
    /// MB/s; 0 is as fast as it can
    rate: u64,
}

impl Compete {
    /// Allocates memory page by page, holds it, and frees it.
    pub fn take_memory(&self) {
        let mut taken: Vec<Vec<u8>> = Vec::new();
        let begun = Instant::now();
        for step in 1..=self.take {
            taken.push(vec![1; 1 << 20]);
            // A byte a microsecond is a megabyte a second.
            if let Some(due) = (step << 20).checked_div(self.rate) {
                std::thread::sleep(Duration::from_micros(due).saturating_sub(begun.elapsed()));
            }
        }
        std::thread::sleep(HOLD_TIME);
        std::hint::black_box(&taken);
    }
}

/// Runs all rounds at all rates.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    let group = Cgroup::memory()?;
    group.limit(args.limit << 20)?;
    let command = campaign.proxy()?;
    let mut proxy = command
        .flag("cache-size", "2GiB")
        .flag("memory", format!("{}MiB", args.memory))
        .cgroup(group.directory())
        .start()?;
    let stop = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let load = Load {
            proxy: proxy.address(),
            origin: origin.address(),
            objects: (args.memory << 20) / OBJECT_BYTES,
            stop: Arc::clone(&stop),
            answers: Arc::clone(&answers),
        };
        clients.spawn(async move { load.run(number).await });
    }
    let report = &mut campaign.report;
    let full = steady(&proxy, Duration::from_secs(3 * 60)).await?;
    report.tell("hot before the first round", mib(full));
    let mut most = full;
    for rate in &args.rates {
        let outcome = at_rate(args, *rate, &group, &mut proxy, full, &mut most).await;
        let shown = match rate {
            0 => "as fast as can be".to_owned(),
            rate => format!("at {rate} MB/s"),
        };
        report.outcome(format!("{} rounds {shown}", args.rounds), outcome);
    }
    stop.store(true, Relaxed);
    let mut wrong = None;
    while let Some(done) = clients.join_next().await {
        wrong = wrong.or(done?.err());
    }
    report.outcome(
        "hits all the while",
        match wrong {
            Some(error) => Err(error),
            None => Ok(format!("{} right", answers.load(Relaxed))),
        },
    );
    let bar = (args.limit << 20) / 100 * 70;
    report.figures(
        "hot at most",
        (most <= bar).into(),
        format!("{}, bar {} (70 % of the limit)", mib(most), mib(bar)),
        json!({ "most": most, "bar": bar }),
    );
    let status = proxy.terminate()?;
    report.check("a clean end", status.success(), status.to_string());
    Ok(())
}

/// Runs the rounds at one rate; reports the fewest hot bytes and the longest recovery.
async fn at_rate(
    args: &Args,
    rate: u64,
    group: &Cgroup,
    proxy: &mut ProxyProcess,
    full: u64,
    most: &mut u64,
) -> anyhow::Result<String> {
    let (mut least, mut longest) = (u64::MAX, Duration::ZERO);
    for round in 1..=args.rounds {
        let told = || format!("round {round}");
        let mut competitor = competitor(args, rate, group.directory())?;
        let status = loop {
            if let Some(status) = competitor.try_wait()? {
                break status;
            }
            ensure!(proxy.ended()?.is_none(), "round {round}: the proxy is gone");
            let hot = hot(proxy)?;
            (least, *most) = (least.min(hot), hot.max(*most));
            tokio::time::sleep(LOOK_TIME).await;
        };
        let killed = group.count("memory.oom_control", "oom_kill ")?;
        ensure!(
            status.success() && killed == 0,
            "round {round}: the competitor ended with {status}, {killed} were killed"
        );
        let gone = Instant::now();
        while hot(proxy).with_context(told)? < full / 10 * 9 {
            ensure!(
                gone.elapsed() < GROW_TIME,
                "round {round}: {} hot after {GROW_TIME:?}, {} before",
                mib(hot(proxy)?),
                mib(full)
            );
            tokio::time::sleep(LOOK_TIME).await;
        }
        longest = longest.max(gone.elapsed());
    }
    Ok(format!(
        "none killed; hot down to {} and back within {:.1} s",
        mib(least),
        longest.as_secs_f64()
    ))
}

/// Waits until the hot bytes stop growing.
async fn steady(proxy: &ProxyProcess, patience: Duration) -> anyhow::Result<u64> {
    let begun = Instant::now();
    let mut before = 0;
    loop {
        tokio::time::sleep(STEADY_TIME).await;
        let now = hot(proxy)?;
        if now > 0 && now <= before + before / 50 {
            return Ok(now);
        }
        ensure!(begun.elapsed() < patience, "still growing at {}", mib(now));
        before = now;
    }
}

fn hot(proxy: &ProxyProcess) -> anyhow::Result<u64> {
    let stats = proxy.stats()?;
    stats["hot_bytes"].as_u64().context("no `hot_bytes`")
}

/// Starts the competitor in the group.
fn competitor(args: &Args, rate: u64, group: &Path) -> anyhow::Result<std::process::Child> {
    let [shell, words @ ..] = enter(group);
    Command::new(shell)
        .args(words)
        .arg(std::env::current_exe()?)
        .args(["compete", &args.take.to_string(), &rate.to_string()])
        .spawn()
        .context("cannot start a competitor")
}

/// A client that requests one object after the other, again and again.
struct Load {
    proxy: std::net::SocketAddr,
    origin: std::net::SocketAddr,
    objects: u64,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Load {
    async fn run(&self, number: u64) -> anyhow::Result<()> {
        let mut client = Client::connect(self.proxy).await?;
        let mut at = number * self.objects / CLIENTS;
        while !self.stop.load(Relaxed) {
            let target = format!("/hot/{}?size={OBJECT_BYTES}", at % self.objects);
            let url = format!("http://{}{target}", self.origin);
            fetch(&mut client, &url, &target)
                .await
                .with_context(|| target.clone())?;
            self.answers.fetch_add(1, Relaxed);
            at += 1;
        }
        Ok(())
    }
}

const HOLD_TIME: Duration = Duration::from_millis(500);
const LOOK_TIME: Duration = Duration::from_millis(20);
const STEADY_TIME: Duration = Duration::from_secs(3);
const GROW_TIME: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 4;
/// Small enough for one record and one page, so that many objects stay in memory as they were
/// written.
const OBJECT_BYTES: u64 = 60_000;
