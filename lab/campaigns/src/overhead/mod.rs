//! `cargo campaign overhead`: what it costs proxies to ask each other (Summary Cache, table 2).
//!
//! Four proxies with 30 clients each; 200 requests a client, one after another; sizes by a Pareto
//! distribution; an origin that waits 100 ms before each response (the paper: 1 s). Without peers,
//! with ICP, with summaries, several times; medians count. The first table is without overlap: no
//! proxy can help another, so that all is overhead. In the second one, all clients draw from one
//! catalogue.
//!
//! Each proxy is in a network namespace of its own (see `network`). All proxies run on one
//! processor and have one worker each, clients and origin run on another one: on two processors,
//! runs of one variant differ by a tenth, as the connections are spread differently. The processor
//! time of one variant also differs by a third from run to run on a virtual machine. So the
//! proxies without peers and those with summaries serve the same requests at the same time, and the
//! bar is for their ratio. The ratio of two identical variants still differs by 1.2 % from pair to
//! pair, so the median of 25 pairs is right to 0.3 %. What puts clients in step, or out of it, is
//! kept away (see `bench`): it changes the processor time of a request by several percent. The
//! figures of a loaded machine say little about latency.
//!
//! Limits: summaries take at most 1/50 of the datagrams of ICP and at most 2 % more processor
//! time than no peers; with overlap, they find as many remote hits as ICP, less one of 100
//! requests, and at most 1 % of misses ask another proxy in vain.

mod bench;
mod network;
mod workload;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{ContentOptions, ContentOrigin};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use crate::campaign::Campaign;
use crate::durations::millis;
use crate::report::{Report, Verdict};
use crate::squid::ours::{Abilities, Feature};
use bench::{Bench, Outcome, PROXIES, Variant};
use network::Network;
use workload::{CLIENTS_MAX, Overlap, Workload};

/// Arguments of `overhead`.
#[derive(clap::Args)]
pub struct Args {
    /// Clients of each proxy
    #[arg(long, default_value_t = 30)]
    clients: usize,
    /// Requests of each client
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// How often each variant runs. Runs whose processor time has no bar (ICP, overlap) are three
    /// at most
    #[arg(long, default_value_t = 25)]
    runs: usize,
    /// Processor of the proxies
    #[arg(long, default_value_t = 1)]
    proxy_processor: usize,
    /// Processor of clients and origin
    #[arg(long, default_value_t = 0)]
    load_processor: usize,
    /// How long the origin waits before each response, in milliseconds
    #[arg(long, default_value_t = 100)]
    origin_wait_ms: u64,
    /// Seed of the requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One run of a tenth of the requests and one hit ratio; only requests in vain have a bar
    #[arg(long)]
    short: bool,
}

impl Args {
    fn requests(&self) -> usize {
        if self.short {
            (self.requests / 10).max(1)
        } else {
            self.requests
        }
    }

    fn runs(&self) -> usize {
        if self.short { 1 } else { self.runs }
    }
}

/// Measures both tables.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(
        args.runs > 0 && args.requests > 0 && (1..=CLIENTS_MAX).contains(&args.clients),
        "at least one run, request and client are needed, and at most {CLIENTS_MAX} clients"
    );
    // First: to build a proxy may need the network.
    let lack = Abilities::from_binary(campaign.binary()?)?.lack(Feature::Summary);
    let network = Network::make(PROXIES)?;
    network.join_clients()?;
    run_on(args.load_processor)?;
    let origin = ContentOrigin::start_thread(ContentOptions {
        // A summary leaves out what is not fresh for long.
        max_age: 86_400,
        wait: Duration::from_millis(args.origin_wait_ms),
        address: network::client_address(),
        ..ContentOptions::default()
    })?;
    let bench = Bench {
        network: &network,
        origin: &origin,
        clients: args.clients,
        origin_wait: Duration::from_millis(args.origin_wait_ms),
        processor: args.proxy_processor,
    };
    let percents = if args.short { &[25][..] } else { &[25, 45][..] };
    let tables = percents.iter().map(|percent| (Overlap::None, *percent));
    for (overlap, again_percent) in tables.chain([(Overlap::Catalogue, 25)]) {
        let workload = Workload {
            seed: args.seed,
            again_percent,
            overlap,
            requests: args.requests(),
        };
        let table = match overlap {
            Overlap::None => format!("{again_percent} % again"),
            Overlap::Catalogue => "overlap".to_owned(),
        };
        let mut outcomes: [Vec<Outcome>; 3] = Default::default();
        let [no_peers, icp, summaries] = &mut outcomes;
        let runs = match overlap {
            Overlap::None => args.runs(),
            Overlap::Catalogue => args.runs().min(UNTIMED_RUNS_MAX),
        };
        for run in 0..runs {
            if run < UNTIMED_RUNS_MAX {
                let [outcome] = bench.run(campaign, [Variant::Icp], &workload).await?;
                icp.push(outcome);
            }
            if lack.is_some() {
                let [outcome] = bench.run(campaign, [Variant::NoPeers], &workload).await?;
                no_peers.push(outcome);
                continue;
            }
            // Neither is always started first.
            let (mut one, mut other) = (Variant::NoPeers, Variant::Summaries);
            if run % 2 == 1 {
                std::mem::swap(&mut one, &mut other);
            }
            let [first, second] = bench.run(campaign, [one, other], &workload).await?;
            let (without, with) = match one {
                Variant::NoPeers => (first, second),
                _ => (second, first),
            };
            no_peers.push(without);
            summaries.push(with);
        }
        let results = Results {
            table: &table,
            is_short: args.short,
            outcomes,
        };
        results.tell(&mut campaign.report);
        if let Some(lack) = &lack {
            let what = format!("{table}, summaries");
            campaign.report.skip(what, format!("not run: {lack}"));
            continue;
        }
        match overlap {
            Overlap::None => results.hold_overhead(&mut campaign.report),
            Overlap::Catalogue => results.hold_hits(&mut campaign.report),
        }
    }
    Ok(())
}

/// Has this thread, and those that it starts from now on, run on one processor.
fn run_on(processor: usize) -> anyhow::Result<()> {
    ensure!(
        processor < CpuSet::MAX_CPU,
        "there is no processor {processor}"
    );
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {processor}"))
}

/// All runs of a table.
struct Results<'a> {
    table: &'a str,
    is_short: bool,
    /// In the order of [`Variant::ALL`].
    outcomes: [Vec<Outcome>; 3],
}

impl Results<'_> {
    fn of(&self, variant: Variant) -> &[Outcome] {
        &self.outcomes[variant as usize]
    }

    fn figure(&self, variant: Variant, figure: impl Fn(&Outcome) -> u64) -> Spread {
        Spread::from_samples(self.of(variant).iter().map(figure).collect())
    }

    /// A row for each variant that ran.
    fn tell(&self, report: &mut Report) {
        for variant in Variant::ALL {
            let Some(first) = self.of(variant).first() else {
                continue;
            };
            let of = |figure: fn(&Outcome) -> u64| self.figure(variant, figure);
            let datagrams = of(|it| it.datagrams);
            let cpu = of(|it| it.cpu_ns / 1_000_000);
            let latency = of(|it| u64::try_from(it.times.mean().as_micros()).unwrap_or(u64::MAX));
            let median = of(|it| u64::try_from(it.times.median().as_micros()).unwrap_or(u64::MAX));
            let hits = of(|it| per_mille(it.hits, it.requests));
            let remote = of(|it| per_mille(it.remote_hits, it.requests));
            let in_vain = of(|it| it.false_hits);
            report.figures(
                format!("{}, {}", self.table, variant.word()),
                Verdict::Told,
                format!(
                    "{} datagrams ({} to {}), {} ms processor time ({} to {}), mean latency {} ms \
                     ({} to {}), hits {}, remote hits {}, {} in vain; {} requests, {} runs",
                    datagrams.median,
                    datagrams.least,
                    datagrams.most,
                    cpu.median,
                    cpu.least,
                    cpu.most,
                    millis(Duration::from_micros(latency.median)),
                    millis(Duration::from_micros(latency.least)),
                    millis(Duration::from_micros(latency.most)),
                    percent(hits.median),
                    percent(remote.median),
                    in_vain.median,
                    first.requests,
                    self.of(variant).len(),
                ),
                json!({
                    "datagrams": datagrams.all,
                    "cpu_ms": cpu.all,
                    "latency_mean_us": latency.all,
                    "latency_median_us": median.all,
                    "hits_per_mille": hits.all,
                    "remote_hits_per_mille": remote.all,
                    "false_hits": in_vain.all,
                    "seconds": of(|it| it.took.as_secs()).all,
                    "requests": first.requests,
                }),
            );
        }
    }

    /// The bars of the overhead.
    fn hold_overhead(&self, report: &mut Report) {
        let [icp, summaries] = [Variant::Icp, Variant::Summaries]
            .map(|variant| self.figure(variant, |it| it.datagrams).median);
        report.figures(
            format!("{}: datagrams of summaries", self.table),
            self.unless_short(icp > 0 && summaries * DATAGRAMS_SHARE <= icp),
            format!("{summaries}, bar 1/{DATAGRAMS_SHARE} of {icp} of ICP"),
            json!({ "summaries": summaries, "icp": icp }),
        );
        // They ran in pairs, at the same time.
        let pairs = self
            .of(Variant::NoPeers)
            .iter()
            .zip(self.of(Variant::Summaries));
        let ratios = pairs.map(|(without, with)| with.cpu_ns * 1000 / without.cpu_ns.max(1));
        let ratio = Spread::from_samples(ratios.collect());
        let held = ratio.median <= CPU_PER_MILLE_MAX;
        report.figures(
            format!("{}: processor time of summaries", self.table),
            self.unless_short(held),
            format!(
                "{} of that without peers ({} to {}), bar {}",
                percent(ratio.median),
                percent(ratio.least),
                percent(ratio.most),
                percent(CPU_PER_MILLE_MAX)
            ),
            json!({ "per_mille": ratio.all }),
        );
    }

    /// The bars of what is found.
    fn hold_hits(&self, report: &mut Report) {
        let [icp, summaries] = [Variant::Icp, Variant::Summaries].map(|variant| {
            let remote = self.figure(variant, |it| per_mille(it.remote_hits, it.requests));
            remote.median
        });
        let held = icp > 0 && summaries + REMOTE_HITS_LESS >= icp;
        report.figures(
            format!("{}: remote hits of summaries", self.table),
            self.unless_short(held),
            format!(
                "{} of requests, bar {} of ICP less {}",
                percent(summaries),
                percent(icp),
                percent(REMOTE_HITS_LESS)
            ),
            json!({ "summaries_per_mille": summaries, "icp_per_mille": icp }),
        );
        let in_vain = self.figure(Variant::Summaries, |it| {
            per_mille(it.false_hits, it.misses())
        });
        report.figures(
            format!("{}: summaries in vain", self.table),
            (in_vain.median <= FALSE_HITS_MAX).into(),
            format!(
                "{} of misses, bar {}",
                percent(in_vain.median),
                percent(FALSE_HITS_MAX)
            ),
            json!({ "per_mille": in_vain.all }),
        );
    }

    /// Few requests say nothing about time, and the first fetches of digests are a large part of
    /// their cost.
    fn unless_short(&self, held: bool) -> Verdict {
        if self.is_short {
            Verdict::Told
        } else {
            held.into()
        }
    }
}

/// A figure of several runs.
struct Spread {
    median: u64,
    least: u64,
    most: u64,
    /// In the order of the runs.
    all: Vec<u64>,
}

impl Spread {
    /// All zero without runs.
    fn from_samples(all: Vec<u64>) -> Self {
        let mut sorted = all.clone();
        sorted.sort_unstable();
        Self {
            median: sorted.get(sorted.len() / 2).copied().unwrap_or(0),
            least: sorted.first().copied().unwrap_or(0),
            most: sorted.last().copied().unwrap_or(0),
            all,
        }
    }
}

fn per_mille(part: u64, of: u64) -> u64 {
    part * 1000 / of.max(1)
}

fn percent(per_mille: u64) -> String {
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

const UNTIMED_RUNS_MAX: usize = 3;
const DATAGRAMS_SHARE: u64 = 50;
const CPU_PER_MILLE_MAX: u64 = 1_020;
/// In 1/1000 of the requests.
const REMOTE_HITS_LESS: u64 = 10;
/// In 1/1000 of the misses.
const FALSE_HITS_MAX: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn results(figures: [(u64, u64, u64, u64); 3]) -> Results<'static> {
        let outcome = |(datagrams, cpu_ns, remote_hits, false_hits)| {
            vec![Outcome {
                requests: 1_000,
                hits: 200,
                remote_hits,
                false_hits,
                datagrams,
                cpu_ns,
                ..Outcome::default()
            }]
        };
        Results {
            table: "table",
            is_short: false,
            outcomes: figures.map(outcome),
        }
    }

    fn holds(hold: impl Fn(&mut Report)) -> bool {
        let mut report = Report::new("test", false);
        hold(&mut report);
        report.finish().is_ok()
    }

    #[test]
    fn overhead_has_a_bar_for_datagrams_and_one_for_processor_time() {
        for (summaries, cpu, held) in [(100, 1_020, true), (101, 1_000, false), (100, 1_021, false)]
        {
            let results = results([
                (0, 1_000, 0, 0),
                (5_000, 1_200, 0, 0),
                (summaries, cpu, 0, 0),
            ]);
            let seen = holds(|report| results.hold_overhead(report));
            assert_eq!(seen, held, "{summaries} {cpu}");
        }
        let silent = results([(0, 1_000, 0, 0), (0, 1_000, 0, 0), (0, 1_000, 0, 0)]);
        assert!(
            !holds(|report| silent.hold_overhead(report)),
            "ICP is silent"
        );
    }

    #[test]
    fn remote_hits_may_be_a_point_less_and_one_miss_of_100_may_ask_in_vain() {
        for (remote, in_vain, held) in [(190, 8, true), (189, 8, false), (190, 9, false)] {
            let results = results([(0, 1, 0, 0), (1, 1, 200, 0), (1, 1, remote, in_vain)]);
            let seen = holds(|report| results.hold_hits(report));
            assert_eq!(seen, held, "{remote} {in_vain}");
        }
    }
}
