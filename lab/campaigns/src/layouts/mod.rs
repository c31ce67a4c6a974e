//! `cargo campaign layouts`: requests per second of each layout of WebCoSM, as their Table 2, on a
//! file system whose disk is modelled.
//!
//! Each measurement has an empty file system on a modelled disk of its own, and a process of its
//! own in a memory group, whose page cache is limited by that. The disk takes no time; it adds up
//! how long it would have been at work (module `modelled_disk` of `hashcache-layouts`).
//!
//! Invariant: all layouts get the same operations, and every content that is read is compared with
//! what was put.

mod disk;
mod queue;
mod replay;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hashcache::Clock;
use hashcache::device::{DiskModel, Pace};
use hashcache_layouts::modelled_disk::ModelledDisk;
use hashcache_layouts::{Kind, Object, Settings};
use hashcache_sim::disk_names;
use rustix::process::geteuid;
use serde_json::json;
use tokio::time::Instant;

use crate::campaign::Campaign;
use crate::cgroup::Cgroup;
use crate::loop_mount;
use crate::median::{median, median_f64};
use crate::report::Verdict;
use disk::{Disk, FileSystem};
use queue::Load;
pub use replay::ReplayLayout;
use replay::{Job, Outcome, Workload};

/// Arguments of `layouts`.
#[derive(clap::Args)]
pub struct Args {
    /// Disks: `1999`, `hdd`, `ssd`, `hdd-5400`, or seeks per second
    #[arg(long, value_delimiter = ',', default_value = "1999,ssd")]
    disk: Vec<String>,
    /// File systems
    #[arg(long, value_delimiter = ',', default_value = "ufs,ext4")]
    file_system: Vec<FileSystem>,
    /// Workloads
    #[arg(long, value_delimiter = ',', default_value = "dec")]
    workload: Vec<Workload>,
    /// Layouts, by their names in the paper; all by default
    #[arg(long, value_delimiter = ',')]
    layout: Vec<Kind>,
    /// Runs of each, with seeds that follow each other; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Seed of the first run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests that are measured, after the cache was filled
    #[arg(long, default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    requests: u32,
    /// MiB of the cache on disk
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    capacity: u64,
    /// Watermark above which objects are deleted, in 1/100 of the cache on disk
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(2..=95))]
    high: u64,
    /// MiB that the process may take, page cache included [default: a quarter of the cache on disk,
    /// at least 32]
    #[arg(long, value_parser = clap::value_parser!(u64).range(4..=65_536))]
    page_cache: Option<u64>,
    /// KiB above which BUDDY gives an object a file of its own [default: 128]
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=1_048_576))]
    threshold: Option<u32>,
    /// Locality buffers of STREAM-LOC and LAZY-READS-LOC [default: 128]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    buffers: Option<u32>,
    /// Reads that LAZY-READS and LAZY-READS-LOC collect [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Clients of `--workload dec` [default: 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Option<u32>,
    /// Also report response times when requests arrive at these rates, a second each
    #[arg(long, value_delimiter = ',', value_name = "RATES",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    load: Vec<u32>,
    /// File of `--workload trace`, in any format that `hashcache sim` reads
    #[arg(long, value_name = "FILE", required_if_eq("workload", "trace"))]
    trace: Option<PathBuf>,
    /// Only try whether each layout returns what was put, with few requests of `dec`
    #[arg(long, conflicts_with_all = [
        "disk", "file_system", "workload", "layout", "runs", "trace", "load",
    ])]
    short: bool,
}

impl Args {
    /// The layouts that are measured.
    fn layouts(&self) -> Vec<Kind> {
        let is_wanted = |kind: &Kind| self.layout.is_empty() || self.layout.contains(kind);
        Kind::ALL.into_iter().filter(is_wanted).collect()
    }

    /// Refuses flags that would have no effect.
    fn check(&self) -> anyhow::Result<()> {
        let layouts = self.layouts();
        let has_layout = |kinds: &[Kind]| layouts.iter().any(|kind| kinds.contains(kind));
        let has_workload = |workload| self.workload.contains(&workload);
        let buffered = [Kind::StreamLoc, Kind::LazyReadsLoc];
        let collecting = [Kind::LazyReads, Kind::LazyReadsLoc];
        for (flag, is_given, is_used) in [
            (
                "--trace",
                self.trace.is_some(),
                has_workload(Workload::Trace),
            ),
            (
                "--clients",
                self.clients.is_some(),
                has_workload(Workload::Dec),
            ),
            (
                "--threshold",
                self.threshold.is_some(),
                has_layout(&[Kind::Buddy]),
            ),
            ("--buffers", self.buffers.is_some(), has_layout(&buffered)),
            ("--batch", self.batch.is_some(), has_layout(&collecting)),
        ] {
            ensure!(
                is_used || !is_given,
                "{flag} has no effect on these workloads and layouts"
            );
        }
        Ok(())
    }
}

/// One table: all layouts in the same circumstances.
#[derive(Clone, Copy)]
struct Circumstances<'a> {
    disk: &'a str,
    model: DiskModel,
    file_system: FileSystem,
    workload: Workload,
}

/// Measures all, and holds the order on the disk of the paper against that of its Table 2.
pub fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    args.check()?;
    let what = "layouts on a modelled disk";
    if !geteuid().is_root() {
        campaign.report.skip(what, "needs root");
        return Ok(());
    }
    if let Some(path) = NEEDED.into_iter().find(|path| !Path::new(path).exists()) {
        campaign.report.skip(what, format!("no {path} here"));
        return Ok(());
    }
    for (program, words) in [("losetup", "--find"), ("mkfs.ext4", "-V")] {
        if let Err(error) = loop_mount::run(program, &[words]) {
            campaign.report.skip(what, format!("{error:#}"));
            return Ok(());
        }
    }
    if args.short {
        return try_all(args, campaign);
    }
    for &workload in &args.workload {
        for disk in &args.disk {
            for &file_system in &args.file_system {
                let circumstances = Circumstances {
                    disk,
                    model: disk_names::disk(disk)?,
                    file_system,
                    workload,
                };
                circumstances.table(args, campaign)?;
            }
        }
    }
    Ok(())
}

/// Reads here and there on a disk that takes its time.
fn try_real_time(campaign: &mut Campaign) -> anyhow::Result<()> {
    let folder = tempfile::tempdir_in(campaign.folder())?;
    let (model, pace) = (disk_names::disk("1999")?, Pace::Real(Clock::system()));
    let disk = ModelledDisk::mount(folder.path(), REAL_BYTES, model, pace, 0)?;
    let file = File::open(disk.disk())?;
    let begun = Instant::now();
    for read in 0..REAL_READS {
        file.read_exact_at(
            &mut [0; 4096],
            read * 7919 % REAL_READS * (REAL_BYTES / REAL_READS),
        )?;
    }
    let (waited, figures) = (begun.elapsed(), disk.figures());
    let detail = format!(
        "{waited:?} for {:?} in {} seeks",
        figures.busy, figures.seeks
    );
    let what = "a program waits as long as the disk is at work";
    let held = waited >= figures.busy && figures.reads == REAL_READS;
    campaign.report.check(what, held, detail);
    Ok(())
}

/// One small run of each layout, in which each content that is read is compared.
fn try_all(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    try_real_time(campaign)?;
    let circumstances = Circumstances {
        disk: "ssd",
        model: disk_names::disk("ssd")?,
        file_system: FileSystem::Ext4,
        workload: Workload::Dec,
    };
    for kind in Kind::ALL {
        let outcome = circumstances.measure(args, campaign, kind, args.seed)?;
        let what = format!("{kind}: the disk does what the layout asks for");
        let detail = format!(
            "{} objects read, {} written, {} seeks in {} ms",
            outcome.object_reads,
            outcome.object_writes,
            outcome.seeks,
            outcome.busy_ns / 1_000_000
        );
        // Objects that are written fill the page cache several times.
        let written = outcome.written_bytes >= outcome.object_written_bytes / 2;
        let worked = outcome.object_reads > 0 && outcome.busy_ns > 0;
        campaign.report.check(what, written && worked, detail);
    }
    Ok(())
}

impl Circumstances<'_> {
    fn table(&self, args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
        let layouts = args.layouts();
        let is_whole = layouts.len() == Kind::ALL.len();
        if is_whole {
            self.tell_file_costs(args, campaign)?;
        }
        let mut medians = vec![];
        for kind in layouts {
            let mut outcomes = vec![];
            for run in 0..args.runs {
                let seed = args.seed.wrapping_add(u64::from(run));
                outcomes.push(self.measure(args, campaign, kind, seed)?);
            }
            medians.push((kind, self.tell(campaign, kind, &outcomes)));
        }
        if is_whole {
            self.hold_against_paper(campaign, &medians);
        }
        Ok(())
    }

    fn name(&self) -> String {
        let (workload, file_system) = (self.workload.name(), self.file_system.name());
        format!("{workload} {} {file_system}", self.disk)
    }

    /// Reports the disk's time for the creation and the deletion of an empty file, as in the
    /// paper's Figure 2: so many files are made in one directory, then deleted in the same order.
    fn tell_file_costs(&self, args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
        let folder = tempfile::tempdir_in(campaign.folder())?;
        let disk = self.disk(args, folder.path(), args.seed)?;
        let settings = Settings {
            like_ufs: self.file_system == FileSystem::Ufs,
            ..Settings::new(args.capacity << 20)
        };
        let mut layout = Kind::Simple.open(disk.root(), &settings)?;
        let of_each = |before: Duration| {
            let busy = disk.modelled().figures().busy - before;
            busy.as_secs_f64() * 1e3 / EMPTY_FILES as f64
        };
        let before = disk.modelled().figures().busy;
        for number in 0..EMPTY_FILES {
            layout.put(Object { number, server: 0 }, &[])?;
        }
        let created = of_each(before);
        let before = disk.modelled().figures().busy;
        for number in 0..EMPTY_FILES {
            layout.remove(number, &mut |_, _| Ok(()))?;
        }
        let deleted = of_each(before);
        campaign.report.tell(
            format!("{}: an empty file", self.name()),
            format!(
                "{created:.1} ms to create, {deleted:.1} ms to delete; in the paper more than 20, \
                 and 10 to 20"
            ),
        );
        Ok(())
    }

    /// An empty file system on a modelled disk.
    fn disk(&self, args: &Args, folder: &Path, seed: u64) -> anyhow::Result<Disk> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits of it will do")]
        Disk::make(
            folder,
            (args.capacity << 20) / 10 * FILE_SYSTEM_TENTHS + DIRECTORIES_BYTES,
            self.model,
            seed as u32,
            self.file_system,
        )
    }

    fn measure(
        &self,
        args: &Args,
        campaign: &Campaign,
        kind: Kind,
        seed: u64,
    ) -> anyhow::Result<Outcome> {
        let capacity = args.capacity << 20;
        let folder = tempfile::tempdir_in(campaign.folder())?;
        let disk = self.disk(args, folder.path(), seed)?;
        let group = Cgroup::memory()?;
        let page_cache = args.page_cache.unwrap_or((args.capacity / 4).max(32)) << 20;
        group.limit(page_cache)?;
        let paper = Settings::new(capacity);
        let job = Job {
            layout: kind.name().to_owned(),
            workload: self.workload,
            trace: args.trace.clone(),
            seed,
            clients: args.clients.unwrap_or(100) as usize,
            measured: args.requests as usize,
            capacity,
            watermarks: (args.high, args.high - MARKS_DISTANCE.min(args.high - 1)),
            memory: capacity / 4,
            object_max: capacity / 64,
            unsynced_max: page_cache / 8,
            threshold: args
                .threshold
                .map_or(paper.threshold_bytes, |kib| u64::from(kib) << 10),
            like_ufs: self.file_system == FileSystem::Ufs,
            buffers: args.buffers.map_or(paper.buffers, |count| count as usize),
            batch: args.batch.map_or(paper.batch, |count| count as usize),
            loads: args.load.iter().map(|rate| f64::from(*rate)).collect(),
            root: disk.root().to_owned(),
            figures_file: disk.modelled().figures_file(),
            cgroup: group.directory().to_owned(),
        };
        play(&job).with_context(|| format!("{}: {kind}", self.name()))
    }

    /// Reports the medians of all figures; that of requests per second.
    fn tell(&self, campaign: &mut Campaign, kind: Kind, outcomes: &[Outcome]) -> f64 {
        let mut rates: Vec<f64> = outcomes.iter().map(Outcome::requests_per_second).collect();
        rates.sort_by(f64::total_cmp);
        let rate = median_f64(&rates, |rate| *rate);
        let per_request = |figure: fn(&Outcome) -> u64| {
            let requests = median(outcomes, |outcome| outcome.requests);
            median(outcomes, figure) as f64 / requests as f64
        };
        let reads = per_request(|outcome| outcome.reads);
        let writes = per_request(|outcome| outcome.writes);
        let seeks = per_request(|outcome| outcome.seeks);
        let processor = per_request(|outcome| outcome.processor_ns) / 1000.0;
        let detail = format!(
            "{rate:.0} requests/s ({:.0} to {:.0}); a request: {reads:.3} reads, {writes:.3} \
             writes, {seeks:.3} seeks, {processor:.0} µs of processor time",
            rates[0],
            rates[rates.len() - 1],
        );
        let figures = json!({
            "workload": self.workload.name(),
            "disk": self.disk,
            "model": self.model.to_string(),
            "file_system": self.file_system.name(),
            "mkfs": self.file_system.features(),
            "mount": self.file_system.mount_options(),
            "layout": kind.name(),
            "requests_per_second": rate,
            "published": kind.published(),
            "runs": outcomes,
        });
        let what = format!("{}: {kind}", self.name());
        campaign
            .report
            .figures(what, Verdict::Told, detail, figures);
        self.tell_loads(campaign, kind, outcomes);
        rate
    }

    /// Reports the medians of what clients notice at each rate of requests.
    fn tell_loads(&self, campaign: &mut Campaign, kind: Kind, outcomes: &[Outcome]) {
        let loads = outcomes.first().map_or(&[][..], |outcome| &outcome.loads);
        for (n, load) in loads.iter().enumerate() {
            let of = |figure: fn(&Load) -> f64| median_f64(outcomes, |it| figure(&it.loads[n]));
            let what = format!("{}: {kind}, {:.0} requests/s", self.name(), load.offered);
            let detail = format!(
                "{:.0} answered a second, in {:.0} ms on average; {:.0} kB/s from origin servers",
                of(|load| load.throughput),
                of(|load| load.response_ms),
                of(|load| load.fetched_bytes_per_s) / 1e3,
            );
            campaign.report.tell(what, detail);
        }
    }

    /// The order of Table 2, and that the best layout serves ten times as much as `SQUID`.
    fn hold_against_paper(&self, campaign: &mut Campaign, rates: &[(Kind, f64)]) {
        let rate_of = |kind| {
            let found = rates.iter().find(|(it, _)| *it == kind);
            found.map_or(0.0, |(_, rate)| *rate)
        };
        for pair in Kind::ALL.windows(2) {
            let (slower, faster) = (rate_of(pair[0]), rate_of(pair[1]));
            let what = format!("{}: {} before {}", self.name(), pair[0], pair[1]);
            let detail = format!(
                "{:.2} times as fast; in the paper {:.2}",
                faster / slower,
                f64::from(pair[1].published()) / f64::from(pair[0].published())
            );
            self.hold(campaign, what, slower < faster, detail);
        }
        let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let times = best / rate_of(Kind::Squid);
        let what = format!("{}: the best is 10 times as fast as SQUID", self.name());
        let detail = format!("{times:.1} times; in the paper 18.3");
        self.hold(campaign, what, times >= 10.0, detail);
    }

    /// A row with a bar where disk, file system and requests are as in the paper; else one without.
    fn hold(&self, campaign: &mut Campaign, what: String, held: bool, detail: String) {
        let is_as_in_the_paper = self.disk == "1999"
            && self.file_system == FileSystem::Ufs
            && self.workload == Workload::Dec;
        if is_as_in_the_paper {
            campaign.report.check(what, held, detail);
        } else {
            let order = if held { "as in the paper" } else { "not so" };
            campaign.report.tell(what, format!("{order}: {detail}"));
        }
    }
}

/// Replays in a process of its own.
fn play(job: &Job) -> anyhow::Result<Outcome> {
    let output = Command::new(std::env::current_exe()?)
        .arg("replay-layout")
        .arg(serde_json::to_string(job)?)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the replay ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the replay did not print its figures")
}

/// As many as the paper's Figure 2 has.
const EMPTY_FILES: u64 = 64;
const NEEDED: [&str; 3] = ["/dev/fuse", "/dev/loop-control", "/sys/fs/cgroup/memory"];
const REAL_BYTES: u64 = 64 << 20;
/// A prime, so that the reads go everywhere.
const REAL_READS: u64 = 31;
/// Size of the file system in tenths of the cache on disk: files take up to 4 KiB more than their
/// contents, and an inode.
const FILE_SYSTEM_TENTHS: u64 = 16;
/// For the directories of `SQUID`, which have a block each, and a journal.
const DIRECTORIES_BYTES: u64 = 64 << 20;
/// Between the watermarks, in 1/100 of the cache on disk.
const MARKS_DISTANCE: u64 = 2;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn checked(words: &str) -> anyhow::Result<()> {
        let words = ["layouts"].into_iter().chain(words.split_whitespace());
        Command::try_parse_from(words)?.args.check()
    }

    #[test]
    fn numbers_out_of_range_and_a_workload_without_its_trace_are_refused() {
        for words in [
            "--runs 0",
            "--requests 0",
            "--page-cache 17592186044416",
            "--threshold 18014398509481984",
            "--buffers 0",
            "--batch 0",
            "--clients 0",
            "--workload dec,trace",
        ] {
            let error = checked(words).unwrap_err().to_string();
            let flag = if words.contains("trace") {
                "--trace"
            } else {
                words
            };
            let flag = flag.split(' ').next().unwrap();
            assert!(error.contains(flag), "{words}: {error}");
        }
    }

    #[test]
    fn flags_without_effect_are_refused() {
        for words in [
            "--trace FILE",
            "--workload table3 --clients 5",
            "--layout SIMPLE,STREAM-LOC --threshold 5",
            "--layout BUDDY --buffers 5",
            "--layout STREAM-LOC --batch 5",
            "--short --runs 2",
            "--short --layout SIMPLE",
            "--short --disk ssd",
        ] {
            assert!(checked(words).is_err(), "{words}");
        }
        for words in [
            "",
            "--short --capacity 8 --requests 1000",
            "--workload table3,dec --clients 5",
            "--workload trace --trace FILE",
            "--layout buddy,lazy-reads-loc --threshold 5 --buffers 5 --batch 5",
        ] {
            checked(words).unwrap();
        }
    }
}
