//! One run: four proxies of each of some variants, their clients, what was counted.
//!
//! Called by `mod`. Variants of one run serve the same requests at the same time, each on its own
//! ports, so that what slows the processor down slows both. Processor time is that of the proxies
//! alone, by the kernel's account; datagrams are those of their namespaces; hits are counted in the
//! access logs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOrigin};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::network::{self, Network, datagrams, proxy_address};
use super::workload::Workload;
use crate::campaign::Campaign;
use crate::cpu::cpu_ns;
use crate::durations::Durations;
use crate::proxy_process::ProxyProcess;
use crate::squid::log::Line;

/// How the proxies ask each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    NoPeers,
    Icp,
    Summaries,
}

impl Variant {
    pub const ALL: [Self; 3] = [Self::NoPeers, Self::Icp, Self::Summaries];

    /// Its name in the report.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoPeers => "no peers",
            Self::Icp => "ICP",
            Self::Summaries => "summaries",
        }
    }

    /// Where its proxies listen. Each proxy of a variant is in a namespace of its own.
    fn http_port(self) -> u16 {
        match self {
            Self::NoPeers => 3129,
            Self::Icp | Self::Summaries => 3128,
        }
    }

    /// The configuration of a proxy about the others.
    fn configuration(self, own: usize) -> String {
        if self == Self::NoPeers {
            return String::new();
        }
        let mut text = format!("icp = \"{}:{ICP_PORT}\"\n", proxy_address(own));
        let http_port = self.http_port();
        for other in (0..PROXIES).filter(|other| *other != own) {
            let address = proxy_address(other);
            text += &format!(
                "[[peer]]\nname = \"proxy{other}\"\nkind = \"sibling\"\n\
                 url = \"http://{address}:{http_port}\"\nicp = {ICP_PORT}\n"
            );
            if self == Self::Summaries {
                text += "summary = true\n";
            }
        }
        text
    }
}

/// What a run showed, of all proxies together.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub requests: u64,
    /// From the proxy's own cache.
    pub hits: u64,
    /// From the cache of another proxy.
    pub remote_hits: u64,
    /// Requests to another proxy that did not have the object.
    pub false_hits: u64,
    /// Datagrams received and sent.
    pub datagrams: u64,
    /// Processor time of the proxies.
    pub cpu_ns: u64,
    /// How long clients waited.
    pub times: Durations,
    /// From the first request that is timed to the last response.
    pub took: Duration,
}

impl Outcome {
    /// Requests that the proxy's own cache did not answer.
    pub fn misses(&self) -> u64 {
        self.requests - self.hits
    }
}

/// What all runs share.
pub struct Bench<'a> {
    pub network: &'a Network,
    pub origin: &'a ContentOrigin,
    /// Of each proxy.
    pub clients: usize,
    /// Before each response of the origin.
    pub origin_wait: Duration,
    /// That of the proxies.
    pub processor: usize,
}

impl Bench<'_> {
    /// Runs these variants at the same time, with empty caches. At most one of them has peers: its
    /// datagrams are all those of the namespaces.
    pub async fn run<const N: usize>(
        &self,
        campaign: &Campaign,
        variants: [Variant; N],
        workload: &Workload,
    ) -> anyhow::Result<[Outcome; N]> {
        let mut groups: [Vec<Proxy>; N] = std::array::from_fn(|_| vec![]);
        for number in 0..PROXIES {
            for (group, variant) in groups.iter_mut().zip(variants) {
                group.push(self.start(campaign, variant, number)?);
            }
        }
        let before = self.counts(&groups)?;
        let mut loads = JoinSet::new();
        for (at, group) in groups.iter().enumerate() {
            let load = self.load(group, workload);
            loads.spawn(async move { (at, load.await) });
        }
        let mut outcomes: [Outcome; N] = std::array::from_fn(|_| Outcome::default());
        while let Some(load) = loads.join_next().await {
            let (at, load) = load.context("the load panicked")?;
            (outcomes[at].times, outcomes[at].took) = load?;
        }
        let after = self.counts(&groups)?;
        for (at, group) in groups.into_iter().enumerate() {
            let outcome = &mut outcomes[at];
            outcome.requests = outcome.times.count() as u64;
            outcome.cpu_ns = after.cpu_ns[at] - before.cpu_ns[at];
            if variants[at] != Variant::NoPeers {
                outcome.datagrams = after.datagrams - before.datagrams;
            }
            for mut proxy in group {
                let ended = proxy.process.ended()?;
                let said = proxy.process.said();
                ensure!(
                    ended.is_none() && !said.contains("panicked"),
                    "a proxy ended ({ended:?}) or panicked: {said}"
                );
                // The log is complete when the proxy has ended.
                proxy.process.terminate()?;
                outcome.count(&proxy.log)?;
            }
        }
        Ok(outcomes)
    }

    /// What is counted before and after the load.
    fn counts<const N: usize>(&self, groups: &[Vec<Proxy>; N]) -> anyhow::Result<Counts<N>> {
        let mut counts = Counts {
            cpu_ns: [0; N],
            datagrams: 0,
        };
        for (cpu, group) in counts.cpu_ns.iter_mut().zip(groups) {
            let pids: Vec<u32> = group.iter().map(|proxy| proxy.process.pid()).collect();
            *cpu = cpu_ns(&pids)?;
        }
        // All groups are in the same namespaces.
        for proxy in &groups[0] {
            counts.datagrams += datagrams(proxy.process.pid())?;
        }
        Ok(counts)
    }

    fn start(&self, campaign: &Campaign, variant: Variant, number: usize) -> anyhow::Result<Proxy> {
        let name = format!("{variant:?}{number}");
        let configuration = campaign.folder().join(format!("{name}.toml"));
        let log = campaign.folder().join(format!("{name}.log"));
        fs::write(&configuration, variant.configuration(number))?;
        match fs::remove_file(&log) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let command = campaign.proxy()?.inside(self.network.proxy(number));
        let http_port = variant.http_port();
        let process = command
            .flag("config", configuration.display())
            .flag("name", format!("proxy{number}"))
            .flag("listen", format!("{}:{http_port}", proxy_address(number)))
            .flag("allow-client", network::NETWORK)
            .flag("allow-destination", network::NETWORK)
            .flag("cache-size", CACHE_SIZE)
            .flag("memory", MEMORY)
            .flag("workers", 1)
            .processors(&self.processor.to_string())
            .without("access-log")
            .flag("access-log", log.display())
            .flag("log-format", "squid")
            .start()?;
        Ok(Proxy { process, log })
    }

    /// All requests of all clients of a group; returns how long each took, and all of them.
    ///
    /// The clients of a proxy begin at different times, spread over a wait of the origin. Those
    /// that begin together stay together, and are served in one turn of the proxy's loop, which is
    /// cheaper. For the same reason each proxy gets one request before, by which it fetches the
    /// digests of its siblings: all clients would wait for that.
    fn load(
        &self,
        proxies: &[Proxy],
        workload: &Workload,
    ) -> impl Future<Output = anyhow::Result<(Durations, Duration)>> + Send + 'static {
        let mut all_clients = vec![];
        for (number, proxy) in proxies.iter().enumerate() {
            for client in 0..self.clients {
                let paths = workload.paths(number, client);
                let urls: Vec<String> = paths.iter().map(|path| self.origin.url(path)).collect();
                let address = proxy.process.address();
                let begins = self
                    .origin_wait
                    .mul_f64(client as f64 / self.clients as f64);
                all_clients.push(async move {
                    sleep(begins).await;
                    let mut connection = Client::connect(address).await?;
                    let mut times = Vec::with_capacity(urls.len());
                    for url in &urls {
                        let begun = Instant::now();
                        let asked = tokio::time::timeout(ANSWER_TIME, connection.get(url, &[]));
                        let response = asked.await.with_context(|| format!("no answer: {url}"))?;
                        let response = response.with_context(|| url.clone())?;
                        times.push(begun.elapsed());
                        ensure!(
                            response.status == 200
                                && response.end == BodyEnd::Complete
                                && url.ends_with(&format!("size={}", response.body.len())),
                            "{url}: status {}, {} bytes",
                            response.status,
                            response.body.len()
                        );
                    }
                    anyhow::Ok(times)
                });
            }
        }
        let first = proxies.iter().enumerate().map(|(number, proxy)| {
            let url = self.origin.url(&format!("/first/{number}?size=1"));
            (proxy.process.address(), url)
        });
        let first: Vec<_> = first.collect();
        async move {
            for (address, url) in first {
                let mut connection = Client::connect(address).await?;
                let asked = tokio::time::timeout(ANSWER_TIME, connection.get(&url, &[]));
                let status = asked.await.context("no answer")??.status;
                ensure!(status == 200, "{url}: status {status}");
            }
            sleep(LEARNING_TIME).await;
            let begun = Instant::now();
            let mut clients: JoinSet<_> = all_clients.into_iter().collect();
            let mut all = vec![];
            while let Some(times) = clients.join_next().await {
                all.extend(times.context("a client panicked")??);
            }
            Ok((Durations::new(all), begun.elapsed()))
        }
    }
}

struct Counts<const N: usize> {
    /// Of each group of proxies.
    cpu_ns: [u64; N],
    datagrams: u64,
}

struct Proxy {
    process: ProxyProcess,
    log: PathBuf,
}

impl Outcome {
    /// Adds the hits in the access log of a proxy.
    fn count(&mut self, log: &Path) -> anyhow::Result<()> {
        let text =
            fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
        let clients = network::client_address().to_string();
        for line in text.lines() {
            let line = Line::parse(line)?;
            if line.code.starts_with("UDP_") {
                continue;
            }
            // Others than clients are the other proxies.
            match line.client == clients {
                true if line.hierarchy.ends_with("SIBLING_HIT") => self.remote_hits += 1,
                true if line.code.contains("HIT") => self.hits += 1,
                false if line.status == 504 => self.false_hits += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// As in the paper.
pub const PROXIES: usize = 4;
const CACHE_SIZE: &str = "75MB";
const MEMORY: &str = "64MiB";
/// Only one proxy of a namespace has peers, so that the port cannot be taken.
const ICP_PORT: u16 = 3130;
/// Between the first request and the others; more than it takes to fetch all digests.
const LEARNING_TIME: Duration = Duration::from_secs(1);
/// Much longer than an answer takes, so that a proxy that hangs does not hang the campaign.
const ANSWER_TIME: Duration = Duration::from_secs(30);
