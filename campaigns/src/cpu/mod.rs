//! `cargo campaign cpu`: processor time of a hit in memory, ours and nginx's, in one run.
//!
//! Both stand in front of the same origin with one worker each, log every request in the combined
//! format, and answer the same keep-alive connections. Rounds alternate and the median counts, so
//! that other load of the machine affects both. The processor time is that of the process with all
//! its threads, by the kernel's account, divided by the number of requests.
//!
//! The bar is at 1 KiB: at most 1.5 times nginx's.
//!
//! With `--before FILE`, an earlier build takes nginx's place, and there are more loads: see
//! `paired`. With `--sites NUMBER`, one proxy has one site and the other has so many: see `sites`.

mod nginx;
mod paired;
mod sites;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOptions, ContentOrigin, content};
use nix::errno::Errno;
use nix::time::ClockId;
use nix::unistd::Pid;
use serde_json::json;

use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;
use crate::report::{Report, Verdict};
use nginx::{Nginx, VARIANTS};

/// Arguments of `cpu`.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with this binary, an earlier build, instead of nginx
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// With --before: only the loads with this word in their name: hit, disk, miss, download
    #[arg(long, value_name = "WORD", requires = "before")]
    only: Option<String>,
    /// Compare a proxy with this many sites and one with one site, instead of nginx
    #[arg(long, value_name = "NUMBER", conflicts_with = "before")]
    sites: Option<u16>,
    /// Rounds of each server and size
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds a round takes
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Processors of the servers, as `taskset` takes them
    #[arg(long, default_value = "1")]
    server_processors: String,
    /// Processors of the load
    #[arg(long, default_value = "0")]
    load_processors: String,
}

/// Measures all sizes; the first one has the bar.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round is needed");
    let rival = match (&args.before, args.sites) {
        (Some(_), _) => "curl",
        (None, Some(_)) => "wrk",
        (None, None) => "nginx",
    };
    for program in [rival, "wrk", "taskset"] {
        let found = Command::new("which").arg(program).output()?;
        ensure!(found.status.success(), "{program} is not installed");
    }
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    if let Some(before) = &args.before {
        return paired::run(args, before, campaign, &origin);
    }
    if let Some(sites) = args.sites {
        return sites::run(args, sites, campaign, &origin).await;
    }
    let ours = Contender {
        name: "hashcache",
        server: Server::Ours(ours(args, campaign, &origin)?),
    };
    let mut contenders = vec![ours];
    for variant in VARIANTS {
        let nginx = Nginx::start(
            &args.server_processors,
            campaign.folder(),
            origin.address(),
            &variant,
        )?;
        contenders.push(Contender {
            name: variant.name,
            server: Server::Nginx(nginx),
        });
    }
    for size in SIZES {
        measure(args, &contenders, &origin, size, &mut campaign.report).await?;
    }
    Ok(())
}

/// Rounds of all contenders with one size.
async fn measure(
    args: &Args,
    contenders: &[Contender],
    origin: &ContentOrigin,
    size: u64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let target = format!("/hit?size={size}");
    for contender in contenders.iter() {
        contender.warm(&target, size).await?;
    }
    let mut rounds = vec![vec![]; contenders.len()];
    for _ in 0..args.rounds {
        for (contender, done) in contenders.iter().zip(&mut rounds) {
            let before = origin.counts().requests;
            done.push(contender.round(args, &target)?);
            let asked = origin.counts().requests - before;
            ensure!(
                asked == 0,
                "{}: {asked} requests were no hits",
                contender.name
            );
        }
    }
    let medians: Vec<u64> = rounds
        .iter()
        .map(|done| median(done, |round| round.cpu_ns))
        .collect();
    for ((contender, done), cpu_ns) in contenders.iter().zip(&rounds).zip(&medians) {
        let all: Vec<u64> = done.iter().map(|round| round.cpu_ns).collect();
        let rate = median(done, |round| round.per_second);
        report.figures(
            format!("{size} B, {}", contender.name),
            Verdict::Told,
            format!(
                "{} µs a hit ({} to {}), {rate} hits/s",
                micros(*cpu_ns),
                micros(all.iter().copied().min().unwrap_or(0)),
                micros(all.iter().copied().max().unwrap_or(0)),
            ),
            json!({ "cpu_ns": cpu_ns, "rounds_cpu_ns": all, "hits_per_second": rate }),
        );
    }
    // The first nginx variant is the one of the bar.
    let (ours, rivals) = medians.split_first().context("nobody ran")?;
    let percent_of = |rival: u64| ours * 100 / rival.max(1);
    let percent = percent_of(rivals[0]);
    let percent_of_best = rivals.iter().copied().map(percent_of).max().unwrap_or(0);
    let ratio = |percent: u64| format!("{}.{:02}", percent / 100, percent % 100);
    let has_bar = size == SIZES[0];
    report.figures(
        format!("{size} B, hashcache to nginx"),
        if has_bar {
            (percent <= PERCENT_MAX).into()
        } else {
            Verdict::Told
        },
        format!(
            "{}{} ({} to the best nginx of these)",
            ratio(percent),
            if has_bar {
                format!(", bar {}", ratio(PERCENT_MAX))
            } else {
                String::new()
            },
            ratio(percent_of_best),
        ),
        json!({ "percent": percent, "percent_of_best": percent_of_best }),
    );
    Ok(())
}

/// A server under load.
#[derive(Debug)]
struct Contender {
    name: &'static str,
    server: Server,
}

#[derive(Debug)]
enum Server {
    Ours(ProxyProcess),
    Nginx(Nginx),
}

/// What one round showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// Processor time of a hit.
    cpu_ns: u64,
    per_second: u64,
}

impl Contender {
    fn address(&self) -> SocketAddr {
        match &self.server {
            Server::Ours(proxy) => proxy.address(),
            Server::Nginx(nginx) => nginx.address(),
        }
    }

    /// Requests the object a few times: it must be correct, and stored afterwards.
    async fn warm(&self, target: &str, size: u64) -> anyhow::Result<()> {
        let expected = content::body_for(ContentOptions::default().seed, target, 0, size);
        let mut client = Client::connect(self.address()).await?;
        for _ in 0..20 {
            let response = client.get(target, &[]).await?;
            let right = content::verify(&expected, 0, &response.body).is_ok()
                && response.body.len() as u64 == size;
            ensure!(
                response.status == 200 && response.end == BodyEnd::Complete && right,
                "{} answers {target} with {} and {} bytes",
                self.name,
                response.status,
                response.body.len()
            );
        }
        Ok(())
    }

    fn round(&self, args: &Args, target: &str) -> anyhow::Result<Round> {
        let pids = match &self.server {
            Server::Ours(proxy) => vec![proxy.pid()],
            Server::Nginx(nginx) => nginx.pids()?,
        };
        let before = cpu_ns(&pids)?;
        let output = Command::new("taskset")
            .args(["-c", &args.load_processors, "wrk", "-t1", "-c32"])
            .arg(format!("-d{}s", args.seconds))
            .arg(format!("http://{}{target}", self.address()))
            .output()
            .context("cannot run wrk")?;
        let taken = cpu_ns(&pids)?.saturating_sub(before);
        let said = String::from_utf8_lossy(&output.stdout);
        let load = Load::read(&said).with_context(|| format!("{}: {said}", self.name))?;
        let cpu_ns = taken / load.requests.max(1);
        Ok(Round {
            cpu_ns,
            per_second: load.per_second,
        })
    }
}

/// The output of wrk for one round.
#[derive(Debug, PartialEq, Eq)]
struct Load {
    requests: u64,
    per_second: u64,
}

impl Load {
    /// An error if any request failed.
    fn read(said: &str) -> anyhow::Result<Self> {
        for bad in ["Non-2xx", "Socket errors"] {
            if let Some(line) = said.lines().find(|line| line.contains(bad)) {
                bail!("requests failed: {}", line.trim());
            }
        }
        let total = said.lines().find(|line| line.contains(" requests in "));
        let requests = total
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .context("wrk does not say how many requests")?;
        let rate = said
            .lines()
            .find_map(|line| line.strip_prefix("Requests/sec:"));
        let per_second = rate
            .and_then(|rate| rate.trim().split('.').next()?.parse().ok())
            .context("wrk does not say how many a second")?;
        Ok(Self {
            requests,
            per_second,
        })
    }
}

fn ours(args: &Args, campaign: &Campaign, origin: &ContentOrigin) -> anyhow::Result<ProxyProcess> {
    let log = campaign.folder().join("hashcache.log");
    let command = campaign.proxy()?;
    command
        .flag("cache-size", "1GiB")
        .flag("accelerate", format!("http://{}", origin.address()))
        .flag("workers", 1)
        .without("access-log")
        .flag("access-log", log.display())
        .flag("log-format", "combined")
        .processors(&args.server_processors)
        .start()
}

/// Processor time of these processes so far, in nanoseconds, as the scheduler counts it, with that
/// of threads that have ended. A process that has ended counts nothing.
pub fn cpu_ns(pids: &[u32]) -> anyhow::Result<u64> {
    let mut time = Duration::ZERO;
    for pid in pids {
        let of_process = || {
            let pid = Pid::from_raw(i32::try_from(*pid).map_err(|_| Errno::ESRCH)?);
            ClockId::pid_cpu_clock_id(pid)?.now()
        };
        // nginx's cache loader ends after a minute.
        match of_process() {
            Ok(taken) => time += Duration::from(taken),
            Err(Errno::ESRCH | Errno::EINVAL) => {}
            Err(error) => bail!("no processor time of process {pid}: {error}"),
        }
    }
    Ok(u64::try_from(time.as_nanos())?)
}

fn median(rounds: &[Round], figure: impl Fn(&Round) -> u64) -> u64 {
    let mut figures: Vec<u64> = rounds.iter().map(figure).collect();
    figures.sort_unstable();
    figures[figures.len() / 2]
}

fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

/// The first has the bar.
const SIZES: [u64; 3] = [1 << 10, 8 << 10, 100 << 10];
const PERCENT_MAX: u64 = 150;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_has_that_of_threads_that_have_ended() {
        let own = [std::process::id()];
        let before = cpu_ns(&own).unwrap();
        let taken = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
        let time = Duration::from_millis(20);
        std::thread::spawn(move || while taken() < time {})
            .join()
            .unwrap();
        let taken = Duration::from_nanos(cpu_ns(&own).unwrap() - before);
        assert!(taken >= time, "{taken:?}");
        // No process has this number.
        assert_eq!(cpu_ns(&[1 << 22]).unwrap(), 0);
    }

    #[test]
    fn a_round_with_failed_requests_does_not_count() {
        let good = "  2 threads\n  1234 requests in 3.00s, 5MB read\nRequests/sec:    411.33\n";
        let read = Load::read(good).unwrap();
        assert_eq!((read.requests, read.per_second), (1234, 411));
        let bad = format!("{good}  Non-2xx or 3xx responses: 7\n");
        assert!(
            Load::read(&bad)
                .unwrap_err()
                .to_string()
                .contains("responses: 7")
        );
        assert!(Load::read("").is_err());
    }

    #[test]
    fn the_median_is_of_each_figure_by_itself() {
        let rounds =
            [(3, 10), (1, 30), (2, 20)].map(|(cpu_ns, per_second)| Round { cpu_ns, per_second });
        assert_eq!(median(&rounds, |round| round.cpu_ns), 2);
        assert_eq!(median(&rounds, |round| round.per_second), 20);
        assert_eq!(micros(12_345), "12.34");
    }
}
