//! One run: four proxies of one variant, their clients, what was counted.
//!
//! Called by `mod` for each variant in turn. Processor time is that of the proxies alone, by the
//! kernel's account; datagrams are those of their namespaces; hits are counted in the access logs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOrigin};
use tokio::task::JoinSet;
use tokio::time::Instant;

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

    /// The configuration of a proxy about the others.
    fn configuration(self, own: usize) -> String {
        if self == Self::NoPeers {
            return String::new();
        }
        let mut text = format!("icp = \"{}:{ICP_PORT}\"\n", proxy_address(own));
        for other in (0..PROXIES).filter(|other| *other != own) {
            let address = proxy_address(other);
            text += &format!(
                "[[peer]]\nname = \"proxy{other}\"\nkind = \"sibling\"\n\
                 url = \"http://{address}:{HTTP_PORT}\"\nicp = {ICP_PORT}\n"
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
    /// From the first request to the last response.
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
}

impl Bench<'_> {
    /// Runs one variant with empty caches.
    pub async fn run(
        &self,
        campaign: &Campaign,
        variant: Variant,
        workload: &Workload,
    ) -> anyhow::Result<Outcome> {
        let mut proxies = vec![];
        for number in 0..PROXIES {
            proxies.push(self.start(campaign, variant, number)?);
        }
        let pids: Vec<u32> = proxies.iter().map(|proxy| proxy.process.pid()).collect();
        let sent = || {
            pids.iter()
                .map(|pid| datagrams(*pid))
                .sum::<anyhow::Result<u64>>()
        };
        let (datagrams_before, cpu_before) = (sent()?, cpu_ns(&pids)?);
        let begun = Instant::now();
        let times = self.load(&proxies, workload).await?;
        let took = begun.elapsed();
        let mut outcome = Outcome {
            requests: times.count() as u64,
            cpu_ns: cpu_ns(&pids)? - cpu_before,
            datagrams: sent()? - datagrams_before,
            times,
            took,
            ..Outcome::default()
        };
        for mut proxy in proxies {
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
        Ok(outcome)
    }

    fn start(&self, campaign: &Campaign, variant: Variant, number: usize) -> anyhow::Result<Proxy> {
        let configuration = campaign.folder().join(format!("proxy{number}.toml"));
        let log = campaign.folder().join(format!("proxy{number}.log"));
        fs::write(&configuration, variant.configuration(number))?;
        match fs::remove_file(&log) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let command = campaign.proxy()?.network(&self.network.proxy(number));
        let process = command
            .flag("config", configuration.display())
            .flag("name", format!("proxy{number}"))
            .flag("listen", format!("{}:{HTTP_PORT}", proxy_address(number)))
            .flag("allow-client", network::NETWORK)
            .flag("allow-destination", network::NETWORK)
            .flag("cache-size", CACHE_SIZE)
            .flag("memory", MEMORY)
            .without("access-log")
            .flag("access-log", log.display())
            .flag("log-format", "squid")
            .start()?;
        Ok(Proxy { process, log })
    }

    /// All requests of all clients; returns how long each took.
    async fn load(&self, proxies: &[Proxy], workload: &Workload) -> anyhow::Result<Durations> {
        let mut clients = JoinSet::new();
        for (number, proxy) in proxies.iter().enumerate() {
            for client in 0..self.clients {
                let paths = workload.paths(number, client);
                let urls: Vec<String> = paths.iter().map(|path| self.origin.url(path)).collect();
                let address = proxy.process.address();
                clients.spawn(async move {
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
        let mut all = vec![];
        while let Some(times) = clients.join_next().await {
            all.extend(times.context("a client panicked")??);
        }
        Ok(Durations::new(all))
    }
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
/// Each proxy is alone in its namespace, so that no port can be taken.
const HTTP_PORT: u16 = 3128;
const ICP_PORT: u16 = 3130;
/// Much longer than an answer takes, so that a proxy that hangs does not hang the campaign.
const ANSWER_TIME: Duration = Duration::from_secs(30);
