//! The process that replays requests through one layout: `cargo campaign replay-layout JOB`.
//!
//! `layouts` starts one for each measurement, because the kernel limits page cache by process. It
//! joins the memory group when the requests of a trace are in memory, fills the cache until a
//! stream of its size has been written once, then measures. Its standard output is one [`Outcome`].

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache::device::ThrottleFigures;
use hashcache_layouts::modelled_disk::FiguresFile;
use hashcache_layouts::{
    Counts, Kind, Marks, Numbering, Replay, ReplaySettings, Request, Settings, Shape, Source,
    Surroundings,
};
use hashcache_sim::trace::Trace;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::queue::{Load, Service};
use crate::cgroup;

/// Arguments of `replay-layout`.
#[derive(clap::Args)]
pub struct ReplayLayout {
    /// What to replay, as JSON
    job: String,
}

/// What to replay, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub layout: String,
    pub workload: Workload,
    /// The file of [`Workload::Trace`].
    pub trace: Option<PathBuf>,
    pub seed: u64,
    /// Clients whose requests come in turn.
    pub clients: usize,
    /// Requests that are measured, if the trace has as many.
    pub measured: usize,
    /// Bytes of the cache on disk.
    pub capacity: u64,
    /// High and low watermark, in 1/100 of it.
    pub watermarks: (u64, u64),
    /// Bytes of the cache in memory.
    pub memory: u64,
    /// Larger objects are not stored.
    pub object_max: u64,
    /// Bytes that may be written between two syncs.
    pub unsynced_max: u64,
    /// `BUDDY`: larger objects have files of their own.
    pub threshold: u64,
    /// Layouts with a file for each object have ext4 do what UFS did.
    pub like_ufs: bool,
    /// Locality buffers.
    pub buffers: usize,
    /// Reads that LAZY-READS collects.
    pub batch: usize,
    /// Rates at which requests arrive, a second each.
    pub loads: Vec<f64>,
    pub root: PathBuf,
    pub figures_file: PathBuf,
    pub cgroup: PathBuf,
}

/// Which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Workload {
    /// Those of the paper's Table 3: exp(5 KB), 40 % repeats by zipf(0.6), 4 servers
    Table3,
    /// Pages in the proportions of the paper's Table 1: 32 % hits in memory, 4 % reads, 64 % writes
    Dec,
    /// Those of the file that `--trace` names which say a size
    Trace,
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests before the measurement.
    pub warm_up: u64,
    pub requests: u64,
    pub memory_hits: u64,
    pub object_reads: u64,
    pub object_writes: u64,
    pub object_deletes: u64,
    pub object_read_bytes: u64,
    pub object_written_bytes: u64,
    /// Of the disk.
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub seeks: u64,
    pub busy_ns: u64,
    /// Of this process, in the kernel too.
    pub processor_ns: u64,
    /// Mean length of a piece of free space in a stream at the end.
    pub mean_free_bytes: Option<u64>,
    /// The same during the whole replay: requests so far, and bytes.
    pub free: Vec<(u64, u64)>,
    pub distances: Option<ReadDistances>,
    pub loads: Vec<Load>,
}

/// How far apart in a stream reads are that follow each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadDistances {
    /// Reads of the whole replay that had one before them.
    pub reads: u64,
    /// Slots, and the reads that were no further from the one before.
    pub within: Vec<(u64, u64)>,
}

impl Outcome {
    /// Requests per second of time in which the disk is at work.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / (self.busy_ns as f64 / 1e9)
    }
}

impl ReplayLayout {
    /// Replays, and prints what was measured.
    pub fn replay(&self) -> anyhow::Result<()> {
        let job: Job = serde_json::from_str(&self.job).context("no job")?;
        let outcome = job.replay()?;
        println!("{}", serde_json::to_string(&outcome)?);
        Ok(())
    }
}

impl Job {
    fn replay(&self) -> anyhow::Result<Outcome> {
        let mut requests = self.requests()?;
        cgroup::join(&self.cgroup)?;
        let disk = Disk {
            figures: FiguresFile::open(&self.figures_file)?,
            root: File::open(&self.root)?,
        };
        let kind: Kind = self.layout.parse().map_err(anyhow::Error::msg)?;
        let mut replay = Replay::new(kind, &self.root, &self.sizes(), self.settings(), disk)?;
        let mut free = vec![];
        let mut sample = |replay: &Replay<Disk>| {
            let requests = replay.counts().requests;
            if requests.is_multiple_of(self.measured.div_ceil(FREE_SAMPLES) as u64)
                && let Some(bytes) = replay.mean_free_bytes()
            {
                free.push((requests, bytes));
            }
        };
        while replay.counts().written_bytes < self.capacity || replay.counts().deletes == 0 {
            let request = requests
                .next()
                .context("the trace does not fill the cache")?;
            replay.request(request)?;
            sample(&replay);
        }
        replay.finish()?;
        let before = State::now(&replay, &self.figures_file)?;
        let mut services = Services::new(!self.loads.is_empty(), &before);
        let mut figures = FiguresFile::open(&self.figures_file)?;
        for request in requests.take(self.measured) {
            let bytes = request.bytes;
            replay.request(request)?;
            services.note(bytes, &replay.counts(), &mut figures)?;
            sample(&replay);
        }
        replay.finish()?;
        ensure!(
            replay.counts().requests > before.counts.requests,
            "the trace ends when the cache is full: nothing is left to be measured"
        );
        let after = State::now(&replay, &self.figures_file)?;
        let distances = replay.distances();
        let within: Vec<(u64, u64)> = distances.within().collect();
        let loads = self.loads.iter();
        let loads = loads.map(|rate| Load::new(&services.noted, *rate, ORIGIN_S, self.seed));
        Ok(Outcome {
            mean_free_bytes: replay.mean_free_bytes(),
            free,
            distances: (distances.reads() > 0).then_some(ReadDistances {
                reads: distances.reads(),
                within,
            }),
            loads: loads.collect(),
            ..after.since(&before)?
        })
    }

    fn requests(&self) -> anyhow::Result<Box<dyn Iterator<Item = Request>>> {
        let shape = match self.workload {
            Workload::Table3 => Shape::Table3,
            Workload::Dec => Shape::Dec,
            Workload::Trace => {
                let path = self.trace.as_ref().context("--trace names no file")?;
                return Ok(Box::new(read_trace(path)?.into_iter()));
            }
        };
        let mut source = Source::new(shape, self.seed, self.clients);
        Ok(Box::new(std::iter::repeat_with(move || source.request())))
    }

    fn sizes(&self) -> Settings {
        Settings {
            threshold_bytes: self.threshold,
            like_ufs: self.like_ufs,
            buffers: self.buffers,
            batch: self.batch,
            ..Settings::new(self.capacity)
        }
    }

    fn settings(&self) -> ReplaySettings {
        let (high, low) = self.watermarks;
        ReplaySettings {
            memory_bytes: self.memory,
            marks: Marks {
                high: self.capacity / 100 * high,
                low: self.capacity / 100 * low,
                object_max: self.object_max,
            },
            unsynced_max: self.unsynced_max,
        }
    }
}

impl Workload {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table3 => "table3",
            Self::Dec => "dec",
            Self::Trace => "trace",
        }
    }
}

/// The requests of a trace that say a size. They are kept in memory, because reading the file
/// meanwhile would take page cache.
fn read_trace(path: &Path) -> anyhow::Result<Vec<Request>> {
    let unreadable = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(unreadable)?;
    let mut trace = Trace::open(Box::new(file), None).with_context(unreadable)?;
    let mut numbering = Numbering::default();
    let mut requests = vec![];
    while let Some(step) = trace.next().with_context(unreadable)? {
        if let Ok(request) = step
            && let Some(bytes) = request.bytes
        {
            requests.push(numbering.request(request.name, bytes));
        }
    }
    Ok(requests)
}

/// What each measured request took of the disk, if that is wanted.
struct Services {
    is_wanted: bool,
    counts: Counts,
    busy: Duration,
    noted: Vec<Service>,
}

impl Services {
    fn new(is_wanted: bool, before: &State) -> Self {
        Self {
            is_wanted,
            counts: before.counts,
            busy: before.disk.busy,
            noted: vec![],
        }
    }

    /// Notes the request that was just served, for so many bytes.
    fn note(
        &mut self,
        bytes: u64,
        counts: &Counts,
        figures: &mut FiguresFile,
    ) -> anyhow::Result<()> {
        if !self.is_wanted {
            return Ok(());
        }
        let (before, busy) = (
            std::mem::replace(&mut self.counts, *counts),
            figures.read()?.busy,
        );
        let took = busy - std::mem::replace(&mut self.busy, busy);
        let is_miss = counts.memory_hits == before.memory_hits && counts.reads == before.reads;
        self.noted.push(Service {
            disk_ns: u64::try_from(took.as_nanos())?,
            fetched_bytes: is_miss.then_some(bytes),
        });
        Ok(())
    }
}

struct Disk {
    figures: FiguresFile,
    /// The directory in which the layout has its files.
    root: File,
}

impl Surroundings for Disk {
    fn now(&mut self) -> io::Result<Duration> {
        Ok(self.figures.read()?.busy)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}

/// All counts at one moment.
struct State {
    counts: Counts,
    disk: ThrottleFigures,
    processor: Duration,
}

impl State {
    fn now(replay: &Replay<Disk>, figures: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            counts: replay.counts(),
            disk: FiguresFile::open(figures)?.read()?,
            processor: Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?,
        })
    }

    fn since(&self, before: &Self) -> anyhow::Result<Outcome> {
        let (counts, earlier) = (&self.counts, &before.counts);
        let (disk, disk_before) = (&self.disk, &before.disk);
        let nanos = |time: Duration| u64::try_from(time.as_nanos());
        Ok(Outcome {
            warm_up: earlier.requests,
            requests: counts.requests - earlier.requests,
            memory_hits: counts.memory_hits - earlier.memory_hits,
            object_reads: counts.reads - earlier.reads,
            object_writes: counts.writes - earlier.writes,
            object_deletes: counts.deletes - earlier.deletes,
            object_read_bytes: counts.read_bytes - earlier.read_bytes,
            object_written_bytes: counts.written_bytes - earlier.written_bytes,
            reads: disk.reads - disk_before.reads,
            read_bytes: disk.read_bytes - disk_before.read_bytes,
            writes: disk.writes - disk_before.writes,
            written_bytes: disk.written_bytes - disk_before.written_bytes,
            seeks: disk.seeks - disk_before.seeks,
            busy_ns: nanos(disk.busy - disk_before.busy)?,
            processor_ns: nanos(self.processor - before.processor)?,
            ..Outcome::default()
        })
    }
}

/// About so many samples of free space in as many requests as are measured.
const FREE_SAMPLES: usize = 20;
/// How long an origin server takes: WebCoSM, Table 3.
const ORIGIN_S: f64 = 1.0;
