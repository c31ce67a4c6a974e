//! Replays requests through the engine: each is looked up, and what is missed is put.
//!
//! The store lies on one modelled disk whose content is in memory. Requests follow each other as
//! fast as the disk answers; the trace's own times only say what belongs to a page. The store
//! stands for one that fills the disk, so every seek takes the mean time. Requests whose response
//! may not be stored are looked up too, as a proxy would, and count as misses.
//!
//! A name is an object: a hit counts with the size of its request, whatever was stored. Memory is
//! what the index and the hot objects take together; buffers of reads and writes come on top.
//!
//! Invariants: the bytes of every hit are compared with what was put. Equal requests, settings and
//! seeds give equal reports.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hashcache::device::{DiskModel, MemoryDevice};
use hashcache::plan::{Accounting, Candidate, Design, DiskRates, Workload, predict};
use hashcache::{Cache, Config, OpenError, PolicyKind, Put, PutError, Rows, Stats};

use crate::content::Contents;
use crate::disks::Disks;
use crate::intervals::Intervals;
use crate::pages::Pages;
use crate::report::{DiskFigures, IndexFigures, Planned, Report, rate};
use crate::source::{Source, SourceError};
use crate::stats::share;
use crate::timed_store::{Time, TimedStore, Writes, name_secret, segment_bytes};
use crate::trace::Request;
use crate::view::{Access, Sizes, View};

/// What to replay through.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The engine's policy.
    pub policy: PolicyKind,
    /// Rows of `log`.
    pub rows: Rows,
    /// Whether the objects of a page are written and read together.
    pub grouped: bool,
    /// Share that memory holds, in 1/100; `None`: the engine's own.
    pub held_share: Option<u8>,
    /// Whether `log` keeps objects in use when its head reaches them.
    pub readmission: bool,
    /// Memory for the index and hot objects.
    pub memory_bytes: u64,
    /// Size of the store.
    pub disk_bytes: u64,
    /// Its disk.
    pub disk: DiskModel,
    /// Mean object size, which sizes the index.
    pub object_bytes: u32,
    /// Slots of the Disk Table.
    pub block_bytes: u32,
    /// Which requests count.
    pub view: View,
    /// Seed of contents, of the store's secret and of the disk.
    pub seed: u64,
}

/// Why a replay ends early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The requests.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The store.
    #[error("cannot make a store for the replay")]
    Open(#[from] OpenError),
    /// The index alone is larger than the memory.
    #[error("the index takes {index_bytes} bytes, but the memory has only {memory_bytes}")]
    Memory {
        /// Memory of the index.
        index_bytes: u64,
        /// What was allowed.
        memory_bytes: u64,
    },
    /// A put that must succeed did not.
    #[error("cannot put")]
    Put(#[from] PutError),
    /// A hit whose bytes are not those that were put.
    #[error("the store returned wrong bytes for {name}")]
    Wrong {
        /// The object's name.
        name: String,
    },
}

/// Replays all requests of `source`.
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(source: &mut dyn Source, settings: &Settings) -> Result<Report, ReplayError> {
    let sizes = Sizes::new(settings.view, source)?;
    let mut player = Player::new(settings)?;
    let mut failed = None;
    source.read(&mut |request| {
        let Some(access) = sizes.access(request) else {
            player.report.without_size += 1;
            return ControlFlow::Continue(());
        };
        match player.play(request, access) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    match failed {
        Some(error) => Err(error),
        None => Ok(player.finish()),
    }
}

struct Player<'a> {
    settings: &'a Settings,
    store: TimedStore,
    contents: Contents,
    pages: Pages,
    /// Content of the object that is put or compared.
    content: Vec<u8>,
    report: Report,
    intervals: Intervals,
}

/// How a lookup ended.
enum Answer {
    Hit,
    Miss,
}

impl<'a> Player<'a> {
    fn new(settings: &'a Settings) -> Result<Self, ReplayError> {
        let index_bytes = index_bytes(settings)?;
        let hot_bytes = settings.memory_bytes.checked_sub(index_bytes);
        let hot_bytes = hot_bytes.ok_or(ReplayError::Memory {
            index_bytes,
            memory_bytes: settings.memory_bytes,
        })?;
        let store = TimedStore::open(config(settings, hot_bytes), disks(settings), Time::OfDisks)?;
        Ok(Self {
            settings,
            store,
            contents: Contents::new(settings.seed),
            pages: Pages::default(),
            content: Vec::new(),
            report: Report::default(),
            intervals: Intervals::default(),
        })
    }

    fn play(&mut self, request: &Request<'_>, access: Access) -> Result<(), ReplayError> {
        let answer = self.look_up(request.name, access.object)?;
        let count = self.store.answered();
        let report = &mut self.report;
        report.requests += 1;
        report.bytes = report.bytes.saturating_add(access.bytes);
        report.uncacheable += u64::from(!request.may_be_stored);
        match answer {
            Answer::Hit if request.may_be_stored => {
                report.hit_bytes = report.hit_bytes.saturating_add(access.bytes);
                if count.reads == 0 {
                    report.memory_hits += 1;
                } else {
                    report.disk_hits += 1;
                    report.costs.hits += count;
                }
            }
            Answer::Hit | Answer::Miss => report.costs.misses += count,
        }
        let group = self.pages.group(request);
        if request.may_be_stored && matches!(answer, Answer::Miss) {
            self.put(request.name, access, group)?;
        }
        self.store.write_due();
        let (report, store) = (&self.report, &self.store);
        self.intervals.note(report.requests, || {
            let figures = store.disks().total();
            report.totals((figures.reads, figures.writes))
        });
        Ok(())
    }

    fn look_up(&mut self, name: &[u8], object: u64) -> Result<Answer, ReplayError> {
        let Some(hit) = self.store.cache().get(name).wait() else {
            return Ok(Answer::Miss);
        };
        // The end of a large object may have been overwritten.
        let Ok(content) = hit.reader(0..u64::MAX).read_to_vec() else {
            return Ok(Answer::Miss);
        };
        let stored = Contents::length_in(object, hit.metadata());
        let is_right = stored == Some(content.len() as u64) && {
            self.contents
                .write(object, content.len(), &mut self.content);
            self.content == content
        };
        if is_right {
            Ok(Answer::Hit)
        } else {
            let name = String::from_utf8_lossy(name).into_owned();
            Err(ReplayError::Wrong { name })
        }
    }

    fn put(&mut self, name: &[u8], access: Access, group: u64) -> Result<(), ReplayError> {
        let bytes = match usize::try_from(access.bytes) {
            Ok(bytes) if access.bytes <= self.settings.disk_bytes / OBJECT_PART_MAX => bytes,
            _ => {
                self.report.objects_too_large += 1;
                return Ok(());
            }
        };
        self.contents.write(access.object, bytes, &mut self.content);
        let put = Put {
            group: if self.settings.grouped { group } else { 0 },
            ..Put::metadata(Contents::metadata(access.object, access.bytes))
        };
        match self.store.put(name, put, &self.content) {
            Err(PutError::Name { .. }) => self.report.names_too_long += 1,
            done => done?,
        }
        Ok(())
    }

    fn finish(mut self) -> Report {
        self.store.flush();
        let writes = self.store.take_writes();
        let figures = self.store.disks().total();
        let stats = self.store.cache().stats();
        let mut report = self.report;
        let totals = report.totals((figures.reads, figures.writes));
        report.intervals = self.intervals.finish(totals);
        report.puts = writes.puts;
        report.costs.puts = writes.work;
        report.disk = DiskFigures {
            reads: figures.reads,
            read_bytes: figures.read_bytes,
            writes: figures.writes,
            written_bytes: figures.written_bytes,
            seeks: figures.seeks,
            seconds: 0.0,
        };
        report.index = IndexFigures {
            bytes: stats.index_bytes,
            slots: stats.index_slots,
            objects: stats.live_entries,
            bits_per_slot: stats.index_bits_per_slot(),
        };
        report.plan = Some(planned(self.settings, &report, &writes, figures.busy));
        report.with_ratios(figures.busy)
    }
}

/// What the index takes, which is only known of a store that is there.
fn index_bytes(settings: &Settings) -> Result<u64, ReplayError> {
    let devices = disks(settings).devices();
    let cache = Cache::open(Config {
        devices,
        ..config(settings, 0)
    })?;
    let Stats { index_bytes, .. } = cache.stats();
    cache.close();
    Ok(index_bytes)
}

fn disks(settings: &Settings) -> Disks {
    let bytes = usize::try_from(settings.disk_bytes).unwrap_or(usize::MAX);
    let device = Arc::new(MemoryDevice::new(bytes));
    Disks::new(vec![device], settings.disk.spread(), settings.seed, 1)
}

fn config(settings: &Settings, hot_bytes: u64) -> Config {
    Config {
        memory_bytes: (BUFFER_BYTES + settings.disk_bytes / 64)
            .saturating_add(hot_bytes.saturating_mul(2)),
        hot_bytes_max: hot_bytes,
        policy: settings.policy,
        rows: settings.rows,
        grouped: settings.grouped,
        held_share: settings.held_share,
        readmission: settings.readmission,
        object_bytes: settings.object_bytes,
        block_bytes: Some(settings.block_bytes),
        segment_bytes: Some(segment_bytes(settings.disk_bytes)),
        name_secret: Some(name_secret(settings.seed)),
        ..Config::on_devices(Vec::new())
    }
}

fn planned(settings: &Settings, report: &Report, writes: &Writes, busy: Duration) -> Planned {
    let reached = report.requests - report.memory_hits;
    // Of so many requests, so many hit on disk.
    let workload = |requests: u64, hits: u64| {
        let hit_ratio = share(hits, requests);
        Workload {
            hit_ratio,
            cacheable: hit_ratio + share(writes.puts, requests),
            related: 1.0,
            object_bytes: u32::try_from(writes.bytes / writes.puts.max(1)).unwrap_or(u32::MAX),
            ..Workload::default()
        }
    };
    let (outer, inner) = settings.disk.transfer_rates();
    let rates = DiskRates {
        seeks_per_s: 1.0 / settings.disk.random_read(SEEK_READ_BYTES).as_secs_f64(),
        write_bytes_per_s: (outer + inner) as f64 / 2.0,
    };
    let plan = |requests, hits| {
        let workload = workload(requests, hits);
        predict(&design(settings), &workload, Accounting::Engine, &rates)
    };
    let hits = report.memory_hits + report.disk_hits;
    let without_memory = plan(report.requests, hits).requests_per_s;
    let plan = plan(reached, report.disk_hits);
    let measured = rate(reached, busy);
    let reaching = share(reached, report.requests);
    Planned {
        seeks_per_hit: plan.seeks.per_hit,
        seeks_per_miss: plan.seeks.per_miss,
        seeks_per_put: plan.seeks_per_put(),
        requests_per_s: plan.requests_per_s,
        measured_requests_per_s: measured,
        measured_to_planned: measured / plan.requests_per_s,
        with_memory_requests_per_s: (reached > 0).then_some(plan.requests_per_s / reaching),
        without_memory_requests_per_s: without_memory,
    }
}

fn design(settings: &Settings) -> Design {
    let candidate = match settings.policy {
        PolicyKind::Basic => Candidate::Basic,
        PolicyKind::Set => Candidate::Set,
        PolicyKind::SetMem => Candidate::SetMem,
        PolicyKind::SetMemLru => Candidate::SetMemLru,
        PolicyKind::LogLru => Candidate::LogLru,
        _ => Candidate::Log,
    };
    let design = match settings.rows {
        Rows::One if candidate == Candidate::Log => Design::published(candidate),
        _ => Design::from_candidate(candidate),
    };
    let design = match settings.held_share {
        Some(share) => design.holding(f64::from(share) / 100.0),
        None => design,
    };
    if settings.grouped {
        design.grouped()
    } else {
        design
    }
}

/// Objects larger than this part of the store are not put: it would have room for a few only.
pub const OBJECT_PART_MAX: u64 = 8;
/// Beside the index, which is less than one part in 64 of the store.
const BUFFER_BYTES: u64 = 128 << 20;
/// The size of read that a disk's seeks per second are stated for.
const SEEK_READ_BYTES: u64 = 16 << 10;

#[cfg(test)]
mod tests;
