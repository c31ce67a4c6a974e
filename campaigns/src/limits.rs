//! `cargo campaign limits`: quotas and rates of the real proxy, in real time.
//!
//! Five clients at once, each under a limit of its own kind, for a minute by default: bandwidth of
//! hits, a bandwidth that two clients share, requests per second, a quota, and a quota over a
//! process that is killed.
//!
//! The bars: bandwidth, request rate and quota are right within 2 %; two clients with one and with
//! eight transfers get equal parts within 5 %; a kill loses what was used in a minute at most.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Client, Origin, Script};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::campaign::Campaign;
use crate::proxy_process::ProxyCommand;
use crate::report::show_bytes;

/// Arguments of `limits`.
#[derive(clap::Args)]
pub struct Args {
    /// How long the clients ask, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Measures all limits.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(
        args.seconds >= 10,
        "in less than 10 s, bursts hide the rates"
    );
    let origin = Origin::start(|request| match request.target() {
        path if path.starts_with("/stored") => {
            Script::response(200, &[("Cache-Control", "max-age=3600")], [7; PIECE])
        }
        _ => Script::response(200, &[("Cache-Control", "no-store")], [7; PIECE]),
    })
    .await?;
    let paced = campaign.folder().join("paced.toml");
    let plain = campaign.folder().join("plain.toml");
    std::fs::write(&paced, configuration("[\"kept\", \"pace\"]"))?;
    std::fs::write(&plain, configuration("[\"kept\"]"))?;
    let command = campaign.proxy()?.flag("cache-size", "64MiB");
    let with = |config: &Path| -> ProxyCommand { command.clone().flag("config", config.display()) };
    let process = with(&paced).start()?;
    let bench = Bench {
        proxy: process.address(),
        origin: origin.address(),
        time: Duration::from_secs(args.seconds),
    };
    let (hits, shared, requests, quota, kept) = tokio::join!(
        bench.hits(),
        bench.shared(),
        bench.requests(),
        bench.quota(QUOTA_CLIENT),
        bench.paced(),
    );
    let report = &mut campaign.report;
    let (moved, time) = hits?;
    let due = of(time, HITS_RATE) + HITS_RATE;
    report.check(
        "bandwidth of hits",
        is_close(moved, due, 2),
        told(moved, due),
    );
    let (one, eight, time) = shared?;
    let due = of(time, SHARED_RATE) + SHARED_RATE;
    let all = one + eight;
    report.check(
        "bandwidth of two clients",
        is_close(all, due, 2),
        told(all, due),
    );
    let parts = format!(
        "{} by one transfer, {} by eight",
        show_bytes(one),
        show_bytes(eight)
    );
    report.check("equal parts", is_close(one, all / 2, 5), parts);
    let (served, time) = requests?;
    let due = of(time, REQUEST_RATE) + REQUEST_RATE;
    let text = format!("{served} of {due}");
    report.check("requests per second", is_close(served, due, 2), text);
    let moved = quota?;
    report.check("quota", is_close(moved, QUOTA, 2), told(moved, QUOTA));
    let before = kept?;
    process.kill()?;
    let process = with(&plain).start()?;
    let bench = Bench {
        proxy: process.address(),
        ..bench
    };
    let after = bench.quota(KEPT_CLIENT).await?;
    let lost = (before + after).saturating_sub(KEPT);
    let text = format!(
        "{} before the kill, {} after it, of {}: {} lost",
        show_bytes(before),
        show_bytes(after),
        show_bytes(KEPT),
        show_bytes(lost)
    );
    let least = before + after >= KEPT - KEPT / 50;
    let most = of(Duration::from_secs(60), PACE) + KEPT / 50;
    report.check("quota over a kill", least && lost <= most, text);
    let again = bench.quota(QUOTA_CLIENT).await?;
    let text = format!("{} after the kill", show_bytes(again));
    // It was used up at the beginning, so long before the kill.
    report.check("a used-up quota after a kill", again == 0, text);
    Ok(())
}

/// The configuration; the last client has these limits.
fn configuration(kept: &str) -> String {
    format!(
        "
        [[limit]]
        name = \"hits\"
        bandwidth = \"{HITS_RATE}\"
        [[limit]]
        name = \"line\"
        per = \"all\"
        bandwidth = \"{SHARED_RATE}\"
        [[limit]]
        name = \"calm\"
        requests = {REQUEST_RATE}
        [[limit]]
        name = \"day\"
        quota = \"{QUOTA}\"
        every = \"month\"
        [[limit]]
        name = \"kept\"
        quota = \"{KEPT}\"
        every = \"month\"
        [[limit]]
        name = \"pace\"
        bandwidth = \"{PACE}\"
        [[access]]
        action = \"limit\"
        limits = [\"hits\"]
        clients = [\"{HITS_CLIENT}\"]
        [[access]]
        action = \"limit\"
        limits = [\"line\"]
        clients = [\"{ONE_CLIENT}\", \"{EIGHT_CLIENT}\"]
        [[access]]
        action = \"limit\"
        limits = [\"calm\"]
        clients = [\"{CALM_CLIENT}\"]
        [[access]]
        action = \"limit\"
        limits = [\"day\"]
        clients = [\"{QUOTA_CLIENT}\"]
        [[access]]
        action = \"limit\"
        limits = {kept}
        clients = [\"{KEPT_CLIENT}\"]
        "
    )
}

/// A proxy under load.
#[derive(Clone, Copy)]
struct Bench {
    proxy: SocketAddr,
    origin: SocketAddr,
    time: Duration,
}

impl Bench {
    /// Bytes of hits in memory, and the time that they took.
    async fn hits(&self) -> anyhow::Result<(u64, Duration)> {
        self.ask(HITS_CLIENT, "/stored/hits").await
    }

    /// Bytes of a client with one transfer and of one with eight.
    async fn shared(&self) -> anyhow::Result<(u64, u64, Duration)> {
        let bench = *self;
        let transfers = (0..8).map(|_| async move { bench.ask(EIGHT_CLIENT, "/eight").await });
        let transfers: JoinSet<_> = transfers.collect();
        let (one, eight) = tokio::join!(self.ask(ONE_CLIENT, "/one"), transfers.join_all());
        let (one, time) = one?;
        let mut moved = 0;
        for transfer in eight {
            moved += transfer?.0;
        }
        Ok((one, moved, time))
    }

    /// Requests that were served.
    async fn requests(&self) -> anyhow::Result<(u64, Duration)> {
        let mut client = self.client(CALM_CLIENT).await?;
        let url = self.url("/stored/calm");
        let (start, mut served) = (Instant::now(), 0);
        while start.elapsed() < self.time {
            let status = client.get(&url, &[]).await?.status;
            served += u64::from(status == 200);
            ensure!(matches!(status, 200 | 429), "status {status}");
            if status == 429 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok((served, start.elapsed()))
    }

    /// Bytes until the quota is used up.
    async fn quota(&self, client: &str) -> anyhow::Result<u64> {
        let mut client = self.client(client).await?;
        let url = self.url("/quota");
        let mut moved = 0;
        for _ in 0..=2 * KEPT / PIECE as u64 {
            // The last one may be cut.
            let Ok(response) = client.get(&url, &[]).await else {
                return Ok(moved);
            };
            if response.status == 429 {
                return Ok(moved);
            }
            moved += response.body.len() as u64;
        }
        anyhow::bail!("the quota never ended")
    }

    /// Bytes of a client that goes on to the end.
    async fn paced(&self) -> anyhow::Result<u64> {
        let (moved, _) = self.ask(KEPT_CLIENT, "/paced").await?;
        Ok(moved)
    }

    /// Asks for one resource again and again.
    async fn ask(&self, client: &str, path: &str) -> anyhow::Result<(u64, Duration)> {
        let mut client = self.client(client).await?;
        let url = self.url(path);
        let (start, mut moved) = (Instant::now(), 0);
        while start.elapsed() < self.time {
            let response = client.get(&url, &[]).await?;
            ensure!(response.status == 200, "status {}", response.status);
            moved += response.body.len() as u64;
        }
        Ok((moved, start.elapsed()))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.origin)
    }

    async fn client(&self, from: &str) -> anyhow::Result<Client> {
        let from: IpAddr = from.parse()?;
        let client = Client::connect_from(from, self.proxy).await;
        client.context("cannot connect to the proxy")
    }
}

/// What a rate gives in this time.
fn of(time: Duration, per_second: u64) -> u64 {
    let thousandths = u128::from(per_second) * time.as_millis();
    u64::try_from(thousandths / 1000).unwrap_or(u64::MAX)
}

fn is_close(moved: u64, due: u64, percent: u64) -> bool {
    moved.abs_diff(due) * 100 <= due * percent
}

fn told(moved: u64, due: u64) -> String {
    let permille = i128::from(moved) * 1000 / i128::from(due.max(1)) - 1000;
    format!(
        "{} of {}, {:+}.{} %",
        show_bytes(moved),
        show_bytes(due),
        permille / 10,
        permille.abs() % 10
    )
}

/// Bytes of a response.
const PIECE: usize = 128 << 10;

const HITS_CLIENT: &str = "127.0.0.2";
const ONE_CLIENT: &str = "127.0.0.3";
const EIGHT_CLIENT: &str = "127.0.0.4";
const CALM_CLIENT: &str = "127.0.0.5";
const QUOTA_CLIENT: &str = "127.0.0.6";
const KEPT_CLIENT: &str = "127.0.0.7";

const HITS_RATE: u64 = 2 << 20;
const SHARED_RATE: u64 = 4 << 20;
const REQUEST_RATE: u64 = 50;
const QUOTA: u64 = 64 << 20;
const KEPT: u64 = 160 << 20;
const PACE: u64 = 1 << 20;
