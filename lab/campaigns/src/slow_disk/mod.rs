//! `cargo campaign slow-disk`: requests/s for web pages on a slow disk, ours and those of other
//! caches, in one run.
//!
//! The servers stand in front of the same origin, one after another, each alone with an ext4 file
//! system of its own on a loop device, and with so much memory that a fraction of the working set
//! fits, page cache included. HashCache has its cache in a file there. Browsers fill each server
//! until the working set is stored and visit pages for a while, with a fast disk; then reads and
//! writes are limited (cgroups of version 1: each server's own operations, and the same number of
//! writes again for the kernel, which does those of the page cache), and rounds are measured. With
//! `--disk` the loop device lies on a modelled disk instead, which takes its time from then on.
//!
//! The figures are the medians of the rounds. Operations are counted at the loop device. Hits are
//! the requests that did not reach the origin. All processes share the machine's processors: at
//! these rates the disk is the limit, not they. Needs root, and a file system that the loop device
//! can read past the page cache.
//!
//! A cache that has lost objects answers more requests, because the origin is faster than the disk:
//! rates can be compared only where hits are as many as were offered. So servers are filled no
//! faster than they can store.
//!
//! Limits: `log` grouped answers private pages at 12 times the rate of the best rival, at 10
//! times at least, and Polymix-4 at 3 times that of the best of Squid, Traffic Server and nginx.
//! With a HAR file, it takes at most 4 reads for a view of these pages.

mod browsers;
mod har;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache::device::DiskModel;
use hashcache_sim::disk_names;
use hashcache_testkit::ContentOrigin;
use hashcache_workload::{Shape, Sizes, Workload};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::campaign::Campaign;
use crate::contestant::{self, Contestant, Front, OURS, Room, Which};
use crate::median::median;
use crate::report::{Report, Verdict};
use crate::rivals::Kind;
use crate::server_disk::Figures;
use crate::stopped;
use browsers::{Browsers, Counts, Source};
use har::Har;

/// Arguments of `slow-disk`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the loads and servers with this word in "LOAD: SERVER", such as `private` or `grouped`;
    /// with several, those with any of them
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Rounds of each server and load
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds a round takes
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Reads a second that the disk does; as many writes; 0: as many as it can, without bars
    #[arg(long, default_value_t = 100)]
    operations: u32,
    /// Instead, a modelled disk in real time: `1999`, `hdd`, `ssd`, seeks per second, or figures;
    /// without bars
    #[arg(long, value_name = "DISK", conflicts_with = "operations",
          value_parser = disk_names::disk)]
    disk: Option<DiskModel>,
    /// Memory of each server, page cache included, MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..=65_536))]
    memory: u32,
    /// Working set, in multiples of the memory
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    working_set: u32,
    /// Browsers, each with up to six connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    browsers: u16,
    /// Requests a second with which servers are filled, at most
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    fill_rate: u64,
    /// Also visit copies of the pages of this HAR file, through our proxy alone
    #[arg(long, value_name = "FILE")]
    har: Option<PathBuf>,
    /// Seed of the pages and visits
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// Size of each store. It has room for the working set, for the objects with which it is filled
    /// beyond that, and for those that the rounds add; then twice as much, because the Disk Table
    /// of `set-mem` has a part of the room.
    fn store_mib(&self) -> u32 {
        self.memory * self.working_set * 3
    }

    fn working_set_bytes(&self) -> u64 {
        u64::from(self.memory * self.working_set) << 20
    }

    fn is_slow(&self) -> bool {
        self.operations > 0 || self.disk.is_some()
    }

    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| what.contains(word))
    }
}

/// Measures all servers with all loads.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    stopped::unless_told(measure_all(args, campaign)).await
}

async fn measure_all(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let origin = contestant::origin()?;
    let mut measured = 0;
    for load in Load::ALL {
        let mut medians = vec![];
        for which in Which::ALL {
            let what = format!("{}: {}", load.name(), which.name());
            if !args.wants(&what) || !load.takes(which, args) {
                continue;
            }
            measured += 1;
            if !which.is_installed() {
                campaign.report.skip(what, "not run: not installed");
                continue;
            }
            match measure(args, load, which, campaign, &origin).await {
                Ok(outcome) => {
                    outcome.tell(&what, which, &mut campaign.report);
                    medians.push((which, outcome.median()));
                }
                Err(error) if matches!(which, Which::Ours { .. }) => {
                    return Err(error.context(what));
                }
                Err(error) => campaign.report.skip(what, format!("not run: {error:#}")),
            }
        }
        let bars = match (args.operations, args.disk) {
            (0, _) | (_, Some(_)) => &[],
            _ => load.bars(),
        };
        compare(load, bars, &medians, &mut campaign.report);
    }
    ensure!(measured > 0, "no load and server with that word");
    Ok(())
}

/// What browsers visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Pages of 13 objects that no other page has.
    Private,
    /// Pages and single objects of Polymix-4.
    Polymix,
    /// The same with images that several pages share.
    Shared,
    /// Copies of the pages of a HAR file.
    Har,
}

impl Load {
    const ALL: [Self; 4] = [Self::Private, Self::Polymix, Self::Shared, Self::Har];

    fn name(self) -> &'static str {
        match self {
            Self::Private => "private pages",
            Self::Polymix => "Polymix-4",
            Self::Shared => "shared members",
            Self::Har => "real pages",
        }
    }

    /// Whether this server is measured.
    fn takes(self, which: Which, args: &Args) -> bool {
        self != Self::Har || args.har.is_some() && matches!(which, Which::Ours { .. })
    }

    fn front(self) -> Front {
        match self {
            Self::Private | Self::Polymix | Self::Shared => Front::Site,
            Self::Har => Front::Proxy,
        }
    }

    /// What browsers visit, and the number of requests that fill a server with the working set.
    fn source(self, args: &Args) -> anyhow::Result<(Source, u64)> {
        let (shape, sizes) = match self {
            Self::Private => (Shape::Pages, Sizes::Web),
            Self::Polymix => (Shape::Polymix, Sizes::ByType),
            Self::Shared => (Shape::Shared, Sizes::ByType),
            Self::Har => {
                let mut har = Har::read(args.har.as_deref().context("no HAR file")?)?;
                let requests = har.set_working_set(args.working_set_bytes());
                return Ok((Source::Har(har), requests));
            }
        };
        let clients = args.browsers.into();
        let workload = || Workload::new(args.seed, shape, sizes, PAGE_OBJECTS, clients);
        let object_bytes = workload().sample_record_bytes();
        let objects = args.working_set_bytes() / u64::from(object_bytes);
        let mut workload = workload();
        workload.set_working_set(objects);
        Ok((Source::Workload(workload), objects))
    }

    /// What our rate must be, in times the best rate of the rivals that count.
    fn bars(self) -> &'static [u64] {
        match self {
            Self::Private => &[10, 12],
            Self::Polymix => &[3],
            Self::Shared | Self::Har => &[],
        }
    }

    /// Whether the bars are held against this server.
    fn counts(self, which: Which) -> bool {
        match which {
            Which::Ours { .. } => false,
            Which::Rival(Kind::VarnishFile) => self != Self::Polymix,
            Which::Rival(_) => true,
        }
    }
}

/// Fills one server and measures its rounds.
async fn measure(
    args: &Args,
    load: Load,
    which: Which,
    campaign: &Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<Outcome> {
    // Each server has its own folder, so the files of a failed start disturb no other.
    let folder = tempfile::tempdir_in(campaign.folder())?;
    let place = (origin.address(), folder.path());
    let room = Room {
        model: args.disk,
        ..Room::divided(which, args.memory, args.store_mib())
    };
    let contestant = Contestant::start((which, load.front()), room, campaign, place)?;
    let outcome = play(args, load, &contestant, origin).await;
    drop(contestant);
    folder.close()?;
    outcome
}

async fn play(
    args: &Args,
    load: Load,
    contestant: &Contestant,
    origin: &ContentOrigin,
) -> anyhow::Result<Outcome> {
    let (source, requests) = load.source(args)?;
    let (server, number) = (contestant.address()?, args.browsers.into());
    let browsers = Browsers::start(server, source, number, args.fill_rate);
    browsers.send(requests + requests / FILL_PART).await?;
    browsers.revisit();
    browsers.send(requests / WARM_PART).await?;
    if args.is_slow() {
        contestant.slow_disk(args.operations)?;
    }
    sleep(SETTLE_TIME).await;
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        let before = Snapshot::take(&browsers, contestant, origin)?;
        sleep(Duration::from_secs(args.seconds)).await;
        browsers.check_faults()?;
        let after = Snapshot::take(&browsers, contestant, origin)?;
        rounds.push(Round::between(&before, &after)?);
    }
    let (faults, first_fault) = browsers.faults();
    Ok(Outcome {
        rounds,
        faults,
        first_fault,
    })
}

/// All counters at one time.
struct Snapshot {
    at: Instant,
    browsers: Counts,
    origin_requests: u64,
    disk: Figures,
    engine_reads: Option<u64>,
    cpu_ns: u64,
}

impl Snapshot {
    fn take(
        browsers: &Browsers,
        contestant: &Contestant,
        origin: &ContentOrigin,
    ) -> anyhow::Result<Self> {
        let engine = contestant.engine()?;
        Ok(Self {
            at: Instant::now(),
            browsers: browsers.counts(),
            origin_requests: origin.counts().requests,
            disk: contestant.disk().figures()?,
            // The kernel makes several operations of the disk of a long one: each has at most 128
            // stretches of memory here.
            engine_reads: engine.and_then(|it| it["device"]["reads"].as_u64()),
            cpu_ns: contestant.cpu_ns()?,
        })
    }
}

/// What one round showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    per_second: u64,
    /// Of 1000 requests: hits, and requests for objects that were stored before.
    hits: u64,
    offered: u64,
    /// Operations of the disk for 1000 requests.
    reads: u64,
    writes: u64,
    /// KiB of a read.
    read_kib: u64,
    /// Reads for 1000 visits.
    visit_reads: u64,
    /// The same as our engine counts them; 0 for others.
    visit_engine_reads: u64,
    /// Processor time of the server for a request.
    cpu_ns: u64,
}

impl Round {
    fn between(before: &Snapshot, after: &Snapshot) -> anyhow::Result<Self> {
        let requests = after.browsers.requests - before.browsers.requests;
        ensure!(requests > 0, "it answered nothing in a round");
        let millis = u64::try_from((after.at - before.at).as_millis())?;
        let disk = after.disk.since(before.disk);
        let missed = after.origin_requests - before.origin_requests;
        let again = after.browsers.again - before.browsers.again;
        let visits = after.browsers.visits - before.browsers.visits;
        let engine_reads = after.engine_reads.zip(before.engine_reads);
        let engine_reads = engine_reads.map_or(0, |(after, before)| after - before);
        let of_thousand = |count: u64| count * 1000 / requests;
        let cpu_ns = after.cpu_ns.checked_sub(before.cpu_ns);
        Ok(Self {
            per_second: requests * 1000 / millis.max(1),
            hits: of_thousand(requests.saturating_sub(missed)),
            offered: of_thousand(again),
            reads: of_thousand(disk.reads),
            writes: of_thousand(disk.writes),
            read_kib: (disk.read_bytes >> 10) / disk.reads.max(1),
            visit_reads: disk.reads * 1000 / visits.max(1),
            visit_engine_reads: engine_reads * 1000 / visits.max(1),
            cpu_ns: cpu_ns.context("a process of it has ended")? / requests,
        })
    }
}

/// All rounds of a server.
#[derive(Debug)]
struct Outcome {
    rounds: Vec<Round>,
    faults: u64,
    first_fault: Option<String>,
}

impl Outcome {
    /// The median of each figure by itself.
    fn median(&self) -> Round {
        let median = |figure: fn(&Round) -> u64| median(&self.rounds, figure);
        Round {
            per_second: median(|round| round.per_second),
            hits: median(|round| round.hits),
            offered: median(|round| round.offered),
            reads: median(|round| round.reads),
            writes: median(|round| round.writes),
            read_kib: median(|round| round.read_kib),
            visit_reads: median(|round| round.visit_reads),
            visit_engine_reads: median(|round| round.visit_engine_reads),
            cpu_ns: median(|round| round.cpu_ns),
        }
    }

    fn tell(&self, what: &str, which: Which, report: &mut Report) {
        let median = self.median();
        let rates = || self.rounds.iter().map(|round| round.per_second);
        let mut detail = format!(
            "{} requests/s ({} to {}), hits {} of {} offered, {} reads of {} KiB and {} writes a \
             request, {} reads a visit, {} µs of processor time a request",
            median.per_second,
            rates().min().unwrap_or_default(),
            rates().max().unwrap_or_default(),
            thousandths(median.hits),
            thousandths(median.offered),
            thousandths(median.reads),
            median.read_kib,
            thousandths(median.writes),
            thousandths(median.visit_reads),
            median.cpu_ns / 1000,
        );
        if matches!(which, Which::Ours { .. }) {
            let reads = thousandths(median.visit_engine_reads);
            detail += &format!(" ({reads} by the engine's count)");
        }
        if let Some(first) = &self.first_fault {
            detail += &format!("; {} faults, first: {first}", self.faults);
        }
        let verdict = match which {
            Which::Ours { .. } => (self.faults == 0).into(),
            Which::Rival(_) => Verdict::Told,
        };
        let figures = json!({
            "requests_per_second": median.per_second,
            "rounds_requests_per_second": rates().collect::<Vec<u64>>(),
            "hits_per_mille": median.hits,
            "offered_per_mille": median.offered,
            "reads_per_mille": median.reads,
            "read_kib": median.read_kib,
            "writes_per_mille": median.writes,
            "visit_reads_per_mille": median.visit_reads,
            "visit_engine_reads_per_mille": median.visit_engine_reads,
            "cpu_ns": median.cpu_ns,
            "faults": self.faults,
        });
        report.figures(what, verdict, detail, figures);
    }
}

/// Holds our rate against the best of the rivals that count.
fn compare(load: Load, bars: &[u64], medians: &[(Which, Round)], report: &mut Report) {
    let Some((_, ours)) = medians.iter().find(|(which, _)| *which == OURS) else {
        return;
    };
    if load == Load::Har {
        let reads = thousandths(ours.visit_reads);
        let held = ours.visit_reads <= VISIT_READS_MAX * 1000;
        let detail = format!("{reads}, bar {VISIT_READS_MAX}");
        return report.check("real pages: reads a visit", held, detail);
    }
    let rivals = medians.iter().filter(|(which, _)| load.counts(*which));
    let best = rivals.max_by_key(|(_, round)| round.per_second);
    let what = format!("{}: requests/s", load.name());
    let Some((which, best)) = best else {
        return report.skip(what, "no server to compare with");
    };
    let percent = ours.per_second * 100 / best.per_second.max(1);
    let times = format!("{}.{:02}", percent / 100, percent % 100);
    let detail = format!("{times} times those of {}", which.name());
    let figures = json!({ "percent": percent, "of": which.name() });
    if bars.is_empty() {
        return report.figures(what, Verdict::Told, detail, figures);
    }
    for bar in bars {
        report.figures(
            format!("{what}, bar {bar}"),
            (percent >= bar * 100).into(),
            detail.clone(),
            figures.clone(),
        );
    }
}

fn thousandths(count: u64) -> String {
    format!("{}.{:03}", count / 1000, count % 1000)
}

const PAGE_OBJECTS: u64 = 13;
const VISIT_READS_MAX: u64 = 4;
/// The working set is the newest pages whose visits have ended, and types are drawn by chance, so
/// more than it is filled.
const FILL_PART: u64 = 4;
/// Visits until memory has what is visited often, in parts of the working set's objects.
const WARM_PART: u64 = 2;
/// Requests that are under way when the disk becomes slow are answered.
const SETTLE_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Result<Args, clap::Error> {
        let line = ["slow-disk"].iter().chain(words);
        Line::try_parse_from(line).map(|line| line.args)
    }

    fn at(per_second: u64) -> Round {
        Round {
            per_second,
            ..Round::default()
        }
    }

    fn holds(load: Load, medians: &[(Which, Round)]) -> bool {
        let mut report = Report::new("test", false);
        compare(load, load.bars(), medians, &mut report);
        report.finish().is_ok()
    }

    #[test]
    fn a_word_selects_loads_and_servers() {
        let all = args(&[]).unwrap();
        assert!(all.wants("private pages: nginx, threads"));
        let some = args(&["--only", "private"]).unwrap();
        assert!(some.wants("private pages: nginx, threads"));
        assert!(!some.wants("Polymix-4: nginx, threads"));
        let more = args(&["--only", "private", "--only", "Polymix"]).unwrap();
        assert!(more.wants("Polymix-4: nginx, threads"));
        assert!(args(&["--rounds", "0"]).is_err());
        assert!(args(&["--memory", "8"]).is_err());
    }

    #[test]
    fn names_of_servers_differ() {
        let mut names = Which::ALL.map(Which::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Which::ALL.len());
    }

    #[test]
    fn the_bar_is_held_against_the_best_rival_that_counts() {
        let rival = |kind, rate| (Which::Rival(kind), at(rate));
        for (ours, held) in [(1200, true), (1199, false)] {
            let medians = [
                (OURS, at(ours)),
                rival(Kind::SquidAufs, 80),
                rival(Kind::VarnishFile, 100),
            ];
            assert_eq!(holds(Load::Private, &medians), held, "{ours}");
        }
        // Varnish does not count for Polymix-4.
        let medians = [
            (OURS, at(300)),
            rival(Kind::NginxThreads, 100),
            rival(Kind::VarnishFile, 200),
        ];
        assert!(holds(Load::Polymix, &medians));
        assert!(holds(
            Load::Shared,
            &[(OURS, at(1)), rival(Kind::SquidAufs, 80)]
        ));
    }

    #[test]
    fn a_round_is_what_happened_between_two_looks() {
        let start = Instant::now();
        let look = |requests, seconds, origin_requests, reads| Snapshot {
            at: start + Duration::from_secs(seconds),
            browsers: Counts {
                visits: requests / 10,
                requests,
                again: requests / 2,
            },
            origin_requests,
            disk: Figures {
                reads,
                read_bytes: reads * 8192,
                ..Figures::default()
            },
            engine_reads: Some(reads / 2),
            cpu_ns: requests * 7000,
        };
        let (before, after) = (look(100, 0, 40, 10), look(1100, 10, 440, 110));
        let expected = Round {
            per_second: 100,
            hits: 600,
            offered: 500,
            reads: 100,
            writes: 0,
            read_kib: 8,
            visit_reads: 1000,
            visit_engine_reads: 500,
            cpu_ns: 7000,
        };
        assert_eq!(Round::between(&before, &after).unwrap(), expected);
        assert!(Round::between(&before, &before).is_err());
    }

    #[test]
    fn the_median_is_of_each_figure_by_itself() {
        let round = |per_second, reads| Round {
            reads,
            ..at(per_second)
        };
        let outcome = Outcome {
            rounds: vec![round(3, 10), round(1, 30), round(2, 20)],
            faults: 0,
            first_fault: None,
        };
        let median = outcome.median();
        assert_eq!((median.per_second, median.reads), (2, 20));
    }
}
