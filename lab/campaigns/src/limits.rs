//! `cargo campaign limits`: quotas and rates of the real proxy, in real time.
//!
//! Clients under limits of each kind at once, for a minute by default: bandwidth of hits, a
//! bandwidth that two clients share, requests per second, and quotas. In the middle the proxy is
//! killed (SIGKILL) and started again.
//!
//! Limits: bandwidth, request rate and quota are right within 2 %, before and after the kill; a
//! client with one transfer and one with eight get equal parts within 5 %; the kill loses what was
//! used in [`LOST_SECONDS_MAX`] seconds at most.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Client, Origin, Script};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::campaign::Campaign;
use crate::proxy_process::ProxyCommand;
use crate::report::{Report, show_bytes};

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
        args.seconds >= 20,
        "in less than 20 s, bursts hide the rates"
    );
    let origin = Origin::start(|request| match request.target() {
        path if path.starts_with("/stored") => {
            Script::response(200, &[("Cache-Control", "max-age=3600")], [7; PIECE])
        }
        path if path.starts_with("/long") => {
            Script::response(200, &[("Cache-Control", "no-store")], vec![7; LONG])
        }
        _ => Script::response(200, &[("Cache-Control", "no-store")], [7; PIECE]),
    })
    .await?;
    let time = Duration::from_secs(args.seconds) / 2;
    // The paced client has two thirds of it before the kill.
    let kept = of(time, PACE) / 2 * 3;
    let paced = campaign.folder().join("paced.toml");
    let plain = campaign.folder().join("plain.toml");
    std::fs::write(&paced, configuration(kept, "[\"kept\", \"pace\"]"))?;
    std::fs::write(&plain, configuration(kept, "[\"kept\"]"))?;
    let command = campaign.proxy()?.flag("cache-size", "64MiB");
    let with = |config: &Path| -> ProxyCommand { command.clone().flag("config", config.display()) };
    let process = with(&paced).start()?;
    let bench = Bench {
        proxy: process.address(),
        origin: origin.address(),
        time,
    };
    let (rates, quota, before) = tokio::join!(
        bench.rates(),
        bench.quota(QUOTA_CLIENT),
        bench.ask(KEPT_CLIENT, "/paced")
    );
    process.kill()?;
    let process = with(&plain).start()?;
    let bench = Bench {
        proxy: process.address(),
        ..bench
    };
    let (rates_after, again, after) = tokio::join!(
        bench.rates(),
        bench.quota(QUOTA_CLIENT),
        bench.quota(KEPT_CLIENT)
    );
    let report = &mut campaign.report;
    rates?.check("before the kill", report);
    rates_after?.check("after the kill", report);
    let moved = quota?;
    report.check("quota", is_close(moved, QUOTA, 2), told(moved, QUOTA));
    let again = again?;
    let text = format!("{} after the kill", show_bytes(again));
    // It was used up in the first seconds. In a short run that may have been just before.
    let is_kept = again == 0 || time.as_secs() <= LOST_SECONDS_MAX;
    report.check("a used-up quota after a kill", is_kept, text);
    let (before, after) = (before?, after?);
    let lost = (before + after).saturating_sub(kept);
    let text = format!(
        "{} before the kill, {} after it, of {}: {} lost, the use of {} s",
        show_bytes(before),
        show_bytes(after),
        show_bytes(kept),
        show_bytes(lost),
        lost.div_ceil(PACE)
    );
    let is_spent = before + after >= kept - kept / 50;
    let most = LOST_SECONDS_MAX * PACE + kept / 50;
    report.check("quota over a kill", is_spent && lost <= most, text);
    Ok(())
}

/// What clients got under rates.
struct Rates {
    time: Duration,
    hits: u64,
    one: u64,
    eight: u64,
    requests: u64,
}

impl Rates {
    fn check(&self, when: &str, report: &mut Report) {
        let due = of(self.time, HITS_RATE) + HITS_RATE;
        let row = format!("bandwidth of hits, {when}");
        report.check(row, is_close(self.hits, due, 2), told(self.hits, due));
        let all = self.one + self.eight;
        let due = of(self.time, SHARED_RATE) + SHARED_RATE;
        let row = format!("bandwidth of two clients, {when}");
        report.check(row, is_close(all, due, 2), told(all, due));
        let parts = format!(
            "{} by one transfer, {} by eight",
            show_bytes(self.one),
            show_bytes(self.eight)
        );
        let row = format!("equal parts, {when}");
        report.check(row, is_close(self.one, all / 2, 5), parts);
        let (served, due) = (self.requests, of(self.time, REQUEST_RATE) + REQUEST_RATE);
        let row = format!("requests per second, {when}");
        report.check(row, is_close(served, due, 2), format!("{served} of {due}"));
    }
}

/// The configuration; the last client has these limits.
fn configuration(kept_bytes: u64, kept: &str) -> String {
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
        quota = \"{kept_bytes}\"
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
    /// Clients under all kinds of rates, at once.
    async fn rates(&self) -> anyhow::Result<Rates> {
        let hits = self.ask(HITS_CLIENT, "/stored/hits");
        let (hits, shared, requests) = tokio::join!(hits, self.shared(), self.requests());
        let (one, eight) = shared?;
        Ok(Rates {
            time: self.time,
            hits: hits?,
            one,
            eight,
            requests: requests?,
        })
    }

    /// Bytes of a client with one transfer and of one with eight.
    async fn shared(&self) -> anyhow::Result<(u64, u64)> {
        let bench = *self;
        let transfers = (0..8).map(|_| async move { bench.ask(EIGHT_CLIENT, "/long/eight").await });
        let transfers: JoinSet<_> = transfers.collect();
        let one = self.ask(ONE_CLIENT, "/long/one");
        let (one, eight) = tokio::join!(one, transfers.join_all());
        let mut moved = 0;
        for transfer in eight {
            moved += transfer?;
        }
        Ok((one?, moved))
    }

    /// Requests that were served.
    async fn requests(&self) -> anyhow::Result<u64> {
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
        Ok(served)
    }

    /// Bytes until the quota is used up.
    async fn quota(&self, client: &str) -> anyhow::Result<u64> {
        let mut client = self.client(client).await?;
        let url = self.url("/quota");
        let (start, mut moved) = (Instant::now(), 0);
        while start.elapsed() < self.time {
            // The last one may be cut.
            let Ok(response) = client.get(&url, &[]).await else {
                return Ok(moved);
            };
            if response.status == 429 {
                return Ok(moved);
            }
            moved += response.body.len() as u64;
        }
        anyhow::bail!("the quota did not end in time")
    }

    /// Asks for one resource again and again until the time is over; counts each byte of content.
    async fn ask(&self, client: &str, path: &str) -> anyhow::Result<u64> {
        let mut client = self.client(client).await?;
        let url = self.url(path);
        let end = Instant::now() + self.time;
        let mut moved = 0;
        loop {
            let response = async {
                client.request("GET", &url, &[]).await?;
                let count = |part: &[u8]| moved += part.len() as u64;
                client.read_response_to("GET", count).await
            };
            let Ok(response) = timeout_at(end, response).await else {
                return Ok(moved);
            };
            let status = response?.status;
            ensure!(status == 200, "status {status}");
        }
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
    let permille = u128::from(moved.abs_diff(due)) * 1000 / u128::from(due.max(1));
    format!(
        "{} of {}, {}{}.{} %",
        show_bytes(moved),
        show_bytes(due),
        if moved < due { '-' } else { '+' },
        permille / 10,
        permille % 10
    )
}

/// Bytes of a response.
const PIECE: usize = 128 << 10;
/// Bytes of a long response: a client that waits for the next one has no turn meanwhile.
const LONG: usize = 8 << 20;

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
const PACE: u64 = 1 << 20;
/// The file with the usage is written every 20 s; 5 s are for a slow disk.
const LOST_SECONDS_MAX: u64 = 25;
