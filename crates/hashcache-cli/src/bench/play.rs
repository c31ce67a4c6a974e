//! One bench run: fills a store with a policy until the log wraps, then measures it twice.
//!
//! The first measurement has a working set that fits every store (a quarter of the log's capacity),
//! as in the paper: it gives seeks and requests per second at equal hit ratios. The second
//! measurement has a working set as large as the store, so a policy that loses objects loses hits:
//! it gives only the hit ratio.
//!
//! A request follows as soon as the store has answered the previous request. Modelled disks have
//! their own clock (`hashcache_sim::disks`). The small store stands for a store that fills the
//! disk, so every seek takes the mean time. The same clock decides when batches are written, and
//! the store's secret follows from the seed, so the result depends neither on the machine nor on
//! chance (`ENGINE_HELP` has the exceptions).
//!
//! Invariant: the content of every hit is compared with the stored content.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hashcache::device::{Device, DiskModel, FileDevice, FileError, MemoryDevice};
use hashcache::{Config, PolicyKind, Put, Rows, Stats};
use hashcache_settings::PlaceBy;
use hashcache_settings::fault::Fault;
use hashcache_settings::units::show_size;
use hashcache_sim::disks::{Count, Disks};
use hashcache_sim::timed_store::{Time, TimedStore, name_secret, segment_bytes};
use hashcache_workload::{Kind, Request, Shape, Sizes, Workload, scheme_and_host};

use crate::machine::memory_available;

/// A policy in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub policy: PolicyKind,
    pub rows: Rows,
    pub grouped: bool,
}

impl Candidate {
    /// The name in the tables.
    pub fn name(self) -> String {
        let name = self.policy.name();
        match (self.rows, self.grouped) {
            (Rows::Two, false) => name.to_owned(),
            (Rows::One, false) => format!("{name} one-row"),
            (Rows::Two, true) => format!("{name} grouped"),
            (Rows::One, true) => format!("{name} one grouped"),
        }
    }
}

/// The store's device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Medium {
    /// A modelled disk, with its contents in memory.
    Modelled(DiskModel),
    /// Memory.
    Memory,
    /// A file that is deleted at the end.
    File,
}

/// Measurement parameters.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub objects: u64,
    /// Requests in each measurement.
    pub requests: u64,
    pub shape: Shape,
    /// Objects on a page in [`Shape::Pages`].
    pub related: u64,
    pub place_by: PlaceBy,
    /// Hosts on a page, if they determine the disk.
    pub hosts: u64,
    pub clients: usize,
    pub sizes: Sizes,
    pub medium: Medium,
    /// Number of disks in the store.
    pub devices: usize,
    pub directory: &'a Path,
    pub block_bytes: u32,
    pub hot_bytes: u64,
    /// Share of positions or sets that memory holds, in 1/100; `None`: the engine's default.
    pub held_share: Option<u8>,
    pub seed: u64,
}

/// Counts for a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub candidate: Candidate,
    /// Store statistics after the first measurement.
    pub stats: Stats,
    /// Resident index memory in bytes, according to the kernel; `None` if parts of the index are
    /// too small to have mappings of their own.
    pub resident_bytes: Option<u64>,
    pub requests: u64,
    /// Requests for objects that were stored before.
    pub offered: u64,
    /// Hits and offered hits in the second measurement.
    pub full_hits: u64,
    pub full_offered: u64,
    pub hits: Side,
    pub misses: Side,
    pub puts: Side,
    /// Hits that memory answered.
    pub from_memory: u64,
    /// Bytes of the objects that were put, and bytes that were written for them.
    pub put_bytes: u64,
    pub written_bytes: u64,
    pub false_reads: u64,
    pub time: Duration,
    /// Mean busy time of the modelled disks.
    pub busy: Option<Duration>,
}

/// Counts for requests of one kind: requests, reads and seeks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    pub count: u64,
    pub reads: u64,
    pub seeks: u64,
}

impl Side {
    fn add(&mut self, count: Count) {
        self.reads += count.reads;
        self.seeks += count.seeks;
    }
}

/// A store under test.
struct Stage {
    store: TimedStore,
    workload: Workload,
    is_modelled: bool,
}

/// Measures `candidate`; `progress` is called with the number of completed steps.
pub fn play(
    plan: &Plan<'_>,
    candidate: Candidate,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Outcome> {
    let mut stage = Stage::new(plan, candidate)?;
    let fill = fill_objects(plan);
    for n in 0..fill {
        let request = stage.workload.fill();
        stage.put(request)?;
        stage.store.write_due();
        progress(n);
    }
    stage.store.flush();
    stage.store.start();
    let store = &mut stage.store;
    let begin = (store.cache().stats(), store.disks().total(), store.now());
    store.take_writes();
    let (mut hits, mut misses) = (Side::default(), Side::default());
    let (mut offered, mut from_memory) = (0, 0);
    for n in 0..plan.requests {
        let request = stage.workload.request();
        offered += u64::from(request.kind == Kind::Again);
        let (hit, count) = stage.get(request)?;
        let side = if hit { &mut hits } else { &mut misses };
        side.count += 1;
        side.add(count);
        from_memory += u64::from(hit && count.reads == 0);
        if !hit && request.kind != Kind::Uncacheable {
            stage.put(request)?;
        }
        stage.store.write_due();
        progress(fill + n);
    }
    let store = &mut stage.store;
    store.flush();
    let (stats, end) = (store.cache().stats(), store.now());
    let writes = store.take_writes();
    let total = store.disks().total();
    let written_bytes = total.written_bytes - begin.1.written_bytes;
    let busy = (total.busy - begin.1.busy) / store.disks().count();
    let busy = stage.is_modelled.then_some(busy);
    let (full_hits, full_offered) =
        stage.full_hits(plan, |n| progress(fill + plan.requests + n))?;
    Ok(Outcome {
        candidate,
        resident_bytes: resident_bytes().filter(|bytes| *bytes >= stats.index_bytes / 2),
        requests: plan.requests,
        offered,
        full_hits,
        full_offered,
        hits,
        misses,
        puts: Side {
            count: writes.puts,
            reads: writes.work.reads,
            seeks: writes.work.seeks,
        },
        from_memory,
        put_bytes: writes.bytes,
        written_bytes,
        false_reads: stats.false_reads - begin.0.false_reads,
        time: end - begin.2,
        busy,
        stats,
    })
}

/// Number of steps in [`play`].
pub fn steps(plan: &Plan<'_>) -> u64 {
    fill_objects(plan) + 2 * plan.requests
}

/// One and a half times the capacity: the log has wrapped and sets are full.
fn fill_objects(plan: &Plan<'_>) -> u64 {
    plan.objects * 3 / 2
}

impl Stage {
    fn new(plan: &Plan<'_>, candidate: Candidate) -> anyhow::Result<Self> {
        let workload = || {
            let (shape, sizes) = (plan.shape, plan.sizes);
            let workload = Workload::new(plan.seed, shape, sizes, plan.related, plan.clients);
            match plan.place_by {
                PlaceBy::Name => workload,
                PlaceBy::Host => workload.with_hosts_in_names(plan.related, plan.hosts),
            }
        };
        let object_bytes = workload().sample_record_bytes();
        let mut workload = workload();
        workload.set_working_set(plan.objects / WORKING_SET_PART);
        let size = store_bytes(plan.objects.div_ceil(plan.devices as u64), object_bytes);
        let (model, modelled) = match plan.medium {
            Medium::Modelled(model) => (model.spread(), true),
            // Only the counts of reads and writes are used here, not the time.
            Medium::Memory | Medium::File => (DiskModel::HDD_7200, false),
        };
        let disks = Disks::new(devices(plan, size)?, model, plan.seed, plan.clients);
        let time = if modelled {
            Time::OfDisks
        } else {
            Time::Since(wall_clock())
        };
        let total_bytes = size.saturating_mul(plan.devices as u64);
        let config = Config {
            memory_bytes: (MEMORY_BYTES + total_bytes / 64)
                .saturating_add(plan.hot_bytes.saturating_mul(2)),
            hot_bytes_max: plan.hot_bytes,
            policy: candidate.policy,
            rows: candidate.rows,
            grouped: candidate.grouped,
            placement: plan.place_by.rule(scheme_and_host),
            held_share: plan.held_share,
            object_bytes,
            block_bytes: Some(plan.block_bytes),
            segment_bytes: Some(segment_bytes(size)),
            name_secret: Some(name_secret(plan.seed)),
            ..Config::on_devices(Vec::new())
        };
        let store = TimedStore::open(config, disks, time);
        Ok(Self {
            store: store.context("cannot make a store for the bench")?,
            workload,
            is_modelled: modelled,
        })
    }

    /// Second measurement: hits, and requests that would hit if no object were lost.
    fn full_hits(
        &mut self,
        plan: &Plan<'_>,
        mut progress: impl FnMut(u64),
    ) -> anyhow::Result<(u64, u64)> {
        self.workload.set_working_set(plan.objects);
        let (mut hits, mut offered) = (0, 0);
        for n in 0..plan.requests {
            let request = self.workload.request();
            offered += u64::from(request.kind == Kind::Again);
            if self.get(request)?.0 {
                hits += 1;
            } else if request.kind != Kind::Uncacheable {
                self.put(request)?;
            }
            self.store.write_due();
            progress(n);
        }
        Ok((hits, offered))
    }

    /// Looks the object up: returns true if it was a hit, and the disk work.
    fn get(&mut self, request: Request) -> anyhow::Result<(bool, Count)> {
        let hit = self.look_up(request)?;
        Ok((hit, self.store.answered()))
    }

    fn look_up(&self, request: Request) -> anyhow::Result<bool> {
        let object = request.object;
        let name = self.workload.name(object);
        let Some(hit) = self.store.cache().get(name.as_bytes()).wait() else {
            return Ok(false);
        };
        if request.kind == Kind::Uncacheable {
            return Err(wrong(&name).into());
        }
        // The end of a large object may have been overwritten.
        let Ok(content) = hit.reader(0..u64::MAX).read_to_vec() else {
            return Ok(false);
        };
        let right = hit.metadata() == &self.workload.metadata(object)[..]
            && content == self.workload.content(object);
        if right {
            Ok(true)
        } else {
            Err(wrong(&name).into())
        }
    }

    fn put(&mut self, request: Request) -> anyhow::Result<()> {
        let Request { object, group, .. } = request;
        let name = self.workload.name(object);
        let put = Put {
            group,
            ..Put::metadata(self.workload.metadata(object))
        };
        let content = self.workload.content(object);
        let done = self.store.put(name.as_bytes(), put, content);
        done.context("cannot put")
    }
}

fn wrong(name: &str) -> Fault {
    Fault::new(format!("the store returned wrong bytes for {name}"))
        .hint("this is a serious bug in HashCache: please report it")
}

/// The store's devices, each with `size` bytes.
fn devices(plan: &Plan<'_>, size: u64) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    if plan.medium == Medium::File {
        return Ok(vec![file(plan, size)?]);
    }
    let all = size.saturating_mul(plan.devices as u64);
    if memory_available().is_some_and(|available| all > available) {
        let fault = Fault::new(format!("a store of {} does not fit", show_size(all)));
        return Err(fault
            .hint("use fewer `--objects`, or `--device file`")
            .into());
    }
    let size = usize::try_from(size).context("more memory than can be addressed")?;
    let device = |_| Arc::new(MemoryDevice::new(size)) as Arc<dyn Device>;
    Ok((0..plan.devices).map(device).collect())
}

/// A file that is deleted when the process exits.
fn file(plan: &Plan<'_>, size: u64) -> anyhow::Result<Arc<dyn Device>> {
    let file = format!("hashcache-bench-{}.img", std::process::id());
    let path = plan.directory.join(file);
    // `create_new`: never a file that another user has placed under the guessed name.
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    made.with_context(|| format!("cannot create {}", path.display()))?;
    let device = FileDevice::open(&path, Some(size)).map_err(|error| {
        let why = match error {
            FileError::Locked => "another process has it".to_owned(),
            FileError::Io(error) => error.to_string(),
        };
        Fault::new(format!("cannot make {}: {why}", path.display()))
    })?;
    // The file has no name any more, so the system deletes it however this process exits.
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Arc::new(device))
}

/// Size of a store for `objects` objects, including the store's own structures.
fn store_bytes(objects: u64, object_bytes: u32) -> u64 {
    let content = objects.saturating_mul(object_bytes.into());
    (content + content / 50 + STORE_REST_BYTES) / BLOCK_BYTES * BLOCK_BYTES
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn wall_clock() -> Instant {
    Instant::now()
}

/// Resident bytes of all memory mappings that hold a store's index.
fn resident_bytes() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut is_index, mut found, mut kib) = (false, false, 0);
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(rest) if is_index => {
                kib += rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
            }
            // The head of a mapping starts with an address, other lines with a word and a colon.
            _ if !line
                .split(' ')
                .next()
                .is_some_and(|word| word.ends_with(':')) =>
            {
                is_index = line.contains("hashcache-index");
                found |= is_index;
            }
            _ => {}
        }
    }
    found.then_some(kib << 10)
}

/// Working set for the first measurement: the log's capacity divided by this number. A Disk Table
/// has fewer slots, in sets that fill unevenly.
const WORKING_SET_PART: u64 = 4;
/// Memory besides the index, which is less than 1/64 of the store.
const MEMORY_BYTES: u64 = 128 << 20;
const STORE_REST_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 4096;
