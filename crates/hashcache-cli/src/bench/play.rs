//! One run of the bench: a store of one policy, filled past its end, then asked.
//!
//! One request after another, as fast as the store answers. On a modelled disk time is what the
//! disk would have been at work: it is what everyone waits for. The store in small stands for one
//! that fills the disk, so every seek takes the mean. What is put is written when the
//! batch's time is over by that same clock, so that what comes out does not depend on the machine.
//! (It does depend a little on where names hash to, which no two stores have in common.)
//!
//! Invariant: every answer is compared with what was stored.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hashcache::device::{
    Device, DiskModel, FileDevice, FileError, MemoryDevice, Pace, ThrottleDevice, ThrottleFigures,
};
use hashcache::{Cache, Clock, Config, PolicyKind, Put, PutError, Rows, Stats};

use super::workload::{Request, Sizes, Workload, fill_step, name};
use crate::fault::Fault;
use crate::units::show_size;

/// A policy in one of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub policy: PolicyKind,
    pub rows: Rows,
    pub grouped: bool,
}

impl Candidate {
    /// As the tables name it.
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

/// Where bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Medium {
    /// A disk that is modelled, on memory.
    Modelled(DiskModel),
    /// Memory.
    Memory,
    /// A file that is gone when the run is over.
    File,
}

/// What is to be played.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub objects: u64,
    pub requests: u64,
    /// Objects of a page.
    pub related: u64,
    pub sizes: Sizes,
    pub medium: Medium,
    pub directory: &'a Path,
    pub block_bytes: u32,
    pub hot_bytes: u64,
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub candidate: Candidate,
    pub stats: Stats,
    /// Index memory that is resident, bytes, by the kernel's account; `None` where parts of it are
    /// too small to have mappings of their own.
    pub resident_bytes: Option<u64>,
    pub requests: u64,
    /// Requests for what was stored once.
    pub offered: u64,
    pub hits: Side,
    pub misses: Side,
    pub puts: Side,
    /// Hits that memory answered.
    pub from_memory: u64,
    /// Bytes that were put, and that were written for it.
    pub put_bytes: u64,
    pub written_bytes: u64,
    pub false_reads: u64,
    pub time: Duration,
}

/// Requests of one kind and what they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    pub count: u64,
    pub reads: u64,
    pub seeks: u64,
}

impl Side {
    fn add(&mut self, before: ThrottleFigures, after: ThrottleFigures) {
        self.reads += after.reads - before.reads;
        self.seeks += after.seeks - before.seeks;
    }
}

/// A store under test.
struct Stage {
    cache: Cache,
    disk: Arc<ThrottleDevice>,
    started: Option<Instant>,
    workload: Workload,
    /// What was put and not written: since when, and how much.
    waiting: Option<(Duration, usize)>,
    put_bytes: u64,
    puts: Side,
}

/// Plays `plan` with `candidate`; `progress` is told how much of it is done.
pub fn play(
    plan: &Plan<'_>,
    candidate: Candidate,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<Outcome> {
    let mut stage = Stage::new(plan, candidate)?;
    let fill = fill_objects(plan);
    for n in 0..fill {
        let object = stage.workload.fill();
        stage.put(object)?;
        stage.write_what_is_due();
        progress(n);
    }
    stage.flush();
    let begin = (stage.cache.stats(), stage.disk.figures(), stage.now());
    (stage.put_bytes, stage.puts) = (0, Side::default());
    let (mut hits, mut misses) = (Side::default(), Side::default());
    let (mut offered, mut from_memory) = (0, 0);
    for n in 0..plan.requests {
        let request = stage.workload.request();
        offered += u64::from(matches!(request, Request::Again(_)));
        let before = stage.disk.figures();
        let hit = stage.get(request)?;
        let after = stage.disk.figures();
        let side = if hit { &mut hits } else { &mut misses };
        side.count += 1;
        side.add(before, after);
        from_memory += u64::from(hit && after.reads == before.reads);
        match request {
            Request::Again(object) | Request::New(object) if !hit => stage.put(object)?,
            _ => {}
        }
        stage.write_what_is_due();
        progress(fill + n);
    }
    stage.flush();
    let stats = stage.cache.stats();
    Ok(Outcome {
        candidate,
        resident_bytes: resident_bytes().filter(|bytes| *bytes >= stats.index_bytes / 2),
        requests: plan.requests,
        offered,
        hits,
        misses,
        puts: stage.puts,
        from_memory,
        put_bytes: stage.put_bytes,
        written_bytes: stage.disk.figures().written_bytes - begin.1.written_bytes,
        false_reads: stats.false_reads - begin.0.false_reads,
        time: stage.now() - begin.2,
        stats,
    })
}

/// Steps that [`play`] tells of.
pub fn steps(plan: &Plan<'_>) -> u64 {
    fill_objects(plan) + plan.requests
}

/// Half as many again as there is room for: the log comes round, sets are full.
fn fill_objects(plan: &Plan<'_>) -> u64 {
    (plan.objects * 3 / 2).next_multiple_of(fill_step(plan.related))
}

impl Stage {
    fn new(plan: &Plan<'_>, candidate: Candidate) -> anyhow::Result<Self> {
        let workload = Workload::new(
            plan.seed,
            plan.sizes,
            plan.related,
            plan.objects / WINDOW_PART,
        );
        let object_bytes = workload.record_bytes();
        let size = store_bytes(plan.objects, object_bytes);
        let inner = device(plan, size)?;
        let (model, modelled) = match plan.medium {
            Medium::Modelled(model) => (model.spread(), true),
            // Only what is asked of it is counted.
            Medium::Memory | Medium::File => (DiskModel::HDD_7200, false),
        };
        let seed = u32::try_from(plan.seed % (1 << 32)).expect("below 2^32");
        let disk = Arc::new(ThrottleDevice::new(inner, model, Pace::Modelled, seed));
        let clock = if modelled {
            let disk = Arc::clone(&disk);
            Clock::new(move || disk.busy(), || Duration::ZERO)
        } else {
            Clock::system()
        };
        let config = Config {
            memory_bytes: (MEMORY_BYTES + size / 64)
                .saturating_add(plan.hot_bytes.saturating_mul(2)),
            hot_bytes_max: plan.hot_bytes,
            policy: candidate.policy,
            rows: candidate.rows,
            grouped: candidate.grouped,
            object_bytes,
            block_bytes: Some(plan.block_bytes),
            // Batches are cut here.
            batch_delay: Duration::from_secs(3600),
            segment_bytes: Some(segment_bytes(size)),
            clock,
            ..Config::on_device(Arc::clone(&disk) as Arc<dyn Device>)
        };
        let cache = Cache::open(config).context("cannot make a store for the bench")?;
        Ok(Self {
            cache,
            disk,
            started: (!modelled).then(wall_clock),
            workload,
            waiting: None,
            put_bytes: 0,
            puts: Side::default(),
        })
    }

    /// Time since the run began, by the clock that counts.
    fn now(&self) -> Duration {
        match self.started {
            Some(started) => started.elapsed(),
            None => self.disk.busy(),
        }
    }

    /// Asks; whether it was a hit.
    fn get(&self, request: Request) -> anyhow::Result<bool> {
        let Some(hit) = self.cache.get(name(request).as_bytes()).wait() else {
            return Ok(false);
        };
        let (Request::Again(object) | Request::New(object)) = request else {
            return Err(wrong(request).into());
        };
        // Of a large object the rest may be gone.
        let Ok(content) = hit.reader(0..u64::MAX).read_to_vec() else {
            return Ok(false);
        };
        let right = hit.metadata() == &self.workload.metadata(object)[..]
            && content == self.workload.content(object);
        if right {
            Ok(true)
        } else {
            Err(wrong(request).into())
        }
    }

    fn put(&mut self, object: u64) -> anyhow::Result<()> {
        let name = name(Request::New(object));
        let metadata = self.workload.metadata(object);
        let content = self.workload.content(object);
        let bytes = name.len() + metadata.len() + content.len();
        let group = self.workload.group(object);
        let put = || {
            let put = Put {
                group,
                ..Put::metadata(metadata.clone())
            };
            self.cache.put(name.as_bytes(), put, content)
        };
        match put() {
            Err(PutError::Full) => {
                self.cache.flush().wait();
                put()
            }
            done => done,
        }
        .context("cannot put")?;
        self.put_bytes += bytes as u64;
        self.puts.count += 1;
        let now = self.now();
        let (_, waiting) = self.waiting.get_or_insert((now, 0));
        *waiting += bytes;
        Ok(())
    }

    /// Cuts the batch when its time is over or it is large.
    fn write_what_is_due(&mut self) {
        let due = |(since, bytes)| self.now() >= since + BATCH_DELAY || bytes >= BATCH_BYTES;
        if self.waiting.is_some_and(due) {
            self.write(Cache::cut_batch);
        }
    }

    fn flush(&mut self) {
        self.write(Cache::flush);
    }

    fn write(&mut self, write: fn(&Cache) -> hashcache::Outcome<bool>) {
        let before = self.disk.figures();
        write(&self.cache).wait();
        self.puts.add(before, self.disk.figures());
        self.waiting = None;
    }
}

fn wrong(request: Request) -> Fault {
    Fault::new(format!("{} was answered with wrong bytes", name(request)))
        .hint("this is a serious bug in HashCache: please report it")
}

fn device(plan: &Plan<'_>, size: u64) -> anyhow::Result<Arc<dyn Device>> {
    if plan.medium != Medium::File {
        if memory_available().is_some_and(|available| size > available) {
            let fault = Fault::new(format!("a store of {} does not fit", show_size(size)));
            return Err(fault
                .hint("use fewer `--objects`, or `--device file`")
                .into());
        }
        let size = usize::try_from(size).context("more memory than can be addressed")?;
        return Ok(Arc::new(MemoryDevice::new(size)));
    }
    let file = format!("hashcache-bench-{}.img", std::process::id());
    let path = plan.directory.join(file);
    // Ours, and nobody's who guessed the name.
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    made.with_context(|| format!("cannot create {}", path.display()))?;
    let device = FileDevice::open(&path, Some(size)).map_err(|error| {
        let why = match error {
            FileError::Locked => "another process has it".to_owned(),
            FileError::Io(error) => error.to_string(),
        };
        Fault::new(format!("cannot make {}: {why}", path.display()))
    })?;
    // From now on it has no name, and is gone however this ends.
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Arc::new(device))
}

/// What this machine has to spare, bytes; `None` where that is not told.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let row = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = row.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// A store for so many objects, with what it needs for itself.
fn store_bytes(objects: u64, object_bytes: u32) -> u64 {
    let content = objects.saturating_mul(object_bytes.into());
    (content + content / 50 + STORE_REST_BYTES) / BLOCK_BYTES * BLOCK_BYTES
}

/// Small beside the store, as segments are beside a disk: a segment that is opened is lost first.
fn segment_bytes(size: u64) -> u32 {
    let wanted = (size / 256).next_power_of_two().clamp(1 << 20, 16 << 20);
    u32::try_from(wanted).expect("at most 16 MiB")
}

#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn wall_clock() -> Instant {
    Instant::now()
}

/// Resident bytes of all that is mapped as the index of a store.
fn resident_bytes() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut is_index, mut found, mut kib) = (false, false, 0);
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(rest) if is_index => {
                kib += rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
            }
            // Heads of mappings begin with an address, other lines with a word and a colon.
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

/// The newest quarter of what there is room for is asked for again: the working set fits.
const WINDOW_PART: u64 = 4;
/// As the engine's own.
const BATCH_DELAY: Duration = Duration::from_millis(250);
const BATCH_BYTES: usize = 3 << 20;
/// Beside the index, which is less than one part in 64 of the store.
const MEMORY_BYTES: u64 = 128 << 20;
const STORE_REST_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 4096;
