//! Models of the two caches that the paper compares with, by what its text says of their designs.
//! They have no bytes: a model knows which objects are where, and counts.
//!
//! - *Squid:* 560 bits of index for each object (the authors' slides, "Index Element Sizes"), least
//!   recently used objects are evicted, a file for each object on a file system. "Multiple seeks":
//!   here a hit reads the inode and the content, a put writes the content and, in the file system's
//!   journal, what names it, and an eviction writes the journal. This count is ours; the paper
//!   states none. It takes directories to be in memory.
//! - *Tiger:* 232 bits, one log on disk whose head overwrites the oldest objects, "one seek for
//!   hit", and writes that are collected to batches.
//!
//! Both have all of the index in memory, so a miss costs no read. What the index does not take of
//! the memory holds hot objects. When the index has all memory, the entry of the object that was
//! not used for longest is dropped, and the object with it: that is how memory bounds their disks.
//!
//! Cost: about 150 bytes of memory for each object. Place in the paper: section 2, Figures 3, 4
//! and 8.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use hashcache::device::DiskModel;

use crate::intervals::Intervals;
use crate::lru::Lru;
use crate::replay::OBJECT_PART_MAX;
use crate::report::{IndexFigures, Report};
use crate::source::{Source, SourceError};
use crate::trace::Request;
use crate::view::{Access, Sizes, View};

/// Which cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// A file for each object.
    Squid,
    /// A log.
    Tiger,
}

impl Rival {
    /// Its one spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Squid => "squid",
            Self::Tiger => "tiger",
        }
    }

    /// Memory of the index for each object.
    pub fn entry_bits(self) -> u64 {
        match self {
            Self::Squid => 560,
            Self::Tiger => 232,
        }
    }

    /// Memory of the index for a disk that is full of objects of this mean size: Figure 8.
    pub fn index_bytes(self, disk_bytes: u64, object_bytes: u64) -> u64 {
        self.memory_of(disk_bytes / object_bytes.max(1))
    }

    fn memory_of(self, objects: u64) -> u64 {
        objects.saturating_mul(self.entry_bits()) / 8
    }
}

/// What to replay through.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The model.
    pub rival: Rival,
    /// Memory for the index and hot objects.
    pub memory_bytes: u64,
    /// Size of the disk.
    pub disk_bytes: u64,
    /// Which disk.
    pub disk: DiskModel,
    /// Which requests count.
    pub view: View,
}

/// Replays all requests of `source`.
///
/// # Errors
/// Those of the source.
pub fn replay(source: &mut dyn Source, settings: &Settings) -> Result<Report, SourceError> {
    let sizes = Sizes::new(settings.view, source)?;
    let mut model = Model::new(settings);
    source.read(&mut |request| {
        match sizes.access(request) {
            Some(access) => {
                model.play(request, access);
                model.note();
            }
            None => model.report.without_size += 1,
        }
        ControlFlow::Continue(())
    })?;
    Ok(model.finish())
}

struct Model<'a> {
    settings: &'a Settings,
    /// Objects on disk, in the order of their last use.
    disk: Lru,
    /// Objects in the order in which they were written to the log, with the start of each record.
    log: VecDeque<(u64, u64)>,
    /// Start of the last record of each object in the log.
    written_at: HashMap<u64, u64>,
    /// Bytes ever written to the log.
    head: u64,
    /// Bytes that wait for their batch.
    waiting: u64,
    hot: Lru,
    busy: Duration,
    report: Report,
    intervals: Intervals,
}

impl<'a> Model<'a> {
    fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            disk: Lru::new(settings.disk_bytes),
            log: VecDeque::new(),
            written_at: HashMap::new(),
            head: 0,
            waiting: 0,
            hot: Lru::new(settings.memory_bytes),
            busy: Duration::ZERO,
            report: Report::default(),
            intervals: Intervals::default(),
        }
    }

    fn play(&mut self, request: &Request<'_>, Access { object, bytes }: Access) {
        self.report.requests += 1;
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        if !request.may_be_stored {
            self.report.uncacheable += 1;
            return;
        }
        let is_hot = self.hot.touch(object).is_some();
        match self.disk.touch(object) {
            Some(_) if is_hot => {
                self.report.memory_hits += 1;
                self.report.hit_bytes = self.report.hit_bytes.saturating_add(bytes);
            }
            Some(stored) => {
                self.report.disk_hits += 1;
                self.report.hit_bytes = self.report.hit_bytes.saturating_add(bytes);
                self.read(stored);
                self.hot.insert(object, stored, |_, _| ());
            }
            None if bytes > self.settings.disk_bytes / OBJECT_PART_MAX => {
                self.report.objects_too_large += 1;
            }
            None => self.put(object, bytes),
        }
    }

    fn note(&mut self) {
        let report = &self.report;
        let totals = || report.totals((report.disk.reads, report.disk.writes));
        self.intervals.note(report.requests, totals);
    }

    fn read(&mut self, bytes: u64) {
        let before = self.report.disk.seeks;
        if self.settings.rival == Rival::Squid {
            self.access(METADATA_BYTES, false);
        }
        self.access(bytes, false);
        let costs = &mut self.report.costs.hits;
        costs.seeks += self.report.disk.seeks - before;
        costs.reads += self.report.disk.seeks - before;
    }

    fn put(&mut self, object: u64, bytes: u64) {
        let before = self.report.disk.seeks;
        match self.settings.rival {
            Rival::Squid => self.put_file(object, bytes),
            Rival::Tiger => self.put_in_log(object, bytes),
        }
        self.report.puts += 1;
        self.bound_index();
        self.hot.insert(object, bytes, |_, _| ());
        self.report.costs.puts.seeks += self.report.disk.seeks - before;
    }

    fn put_file(&mut self, object: u64, bytes: u64) {
        let mut evicted = vec![];
        self.disk
            .insert(object, bytes, |object, _| evicted.push(object));
        for object in evicted {
            self.forget(object);
            self.access(METADATA_BYTES, true);
        }
        self.access(METADATA_BYTES, true);
        self.access(bytes, true);
    }

    fn put_in_log(&mut self, object: u64, bytes: u64) {
        self.log.push_back((object, self.head));
        self.written_at.insert(object, self.head);
        self.head = self.head.saturating_add(bytes);
        // A record whose beginning is overwritten is lost. Its object may have been dropped and
        // written again since.
        while let Some((oldest, start)) = self.log.front().copied() {
            if start.saturating_add(self.settings.disk_bytes) >= self.head {
                break;
            }
            self.log.pop_front();
            if self.written_at.get(&oldest) == Some(&start) {
                self.forget(oldest);
                self.disk.remove(oldest);
            }
        }
        self.disk.insert(object, bytes, |_, _| ());
        self.waiting = self.waiting.saturating_add(bytes);
        if self.waiting >= BATCH_BYTES {
            let batch = std::mem::take(&mut self.waiting);
            self.access(batch, true);
        }
    }

    /// `object` is on disk no more.
    fn forget(&mut self, object: u64) {
        self.written_at.remove(&object);
        self.hot.remove(object);
    }

    /// Drops objects until the index fits the memory, and leaves the rest to hot objects.
    fn bound_index(&mut self) {
        let rival = self.settings.rival;
        let memory_bytes = self.settings.memory_bytes;
        while rival.memory_of(self.disk.objects()) > memory_bytes {
            let Some((oldest, _)) = self.disk.pop_oldest() else {
                break;
            };
            self.forget(oldest);
            if rival == Rival::Squid {
                self.access(METADATA_BYTES, true);
            }
        }
        let index_bytes = rival.memory_of(self.disk.objects());
        self.hot
            .set_bytes_max(memory_bytes.saturating_sub(index_bytes));
    }

    /// One access anywhere on the disk.
    fn access(&mut self, bytes: u64, is_write: bool) {
        let disk = &mut self.report.disk;
        let (count, sum) = if is_write {
            (&mut disk.writes, &mut disk.written_bytes)
        } else {
            (&mut disk.reads, &mut disk.read_bytes)
        };
        *count += 1;
        *sum = sum.saturating_add(bytes);
        disk.seeks += 1;
        let taken = self.settings.disk.random_read(bytes);
        self.busy = self.busy.saturating_add(taken);
    }

    fn finish(mut self) -> Report {
        if self.waiting > 0 {
            self.access(self.waiting, true);
        }
        let (rival, objects) = (self.settings.rival, self.disk.objects());
        self.report.index = IndexFigures {
            bytes: rival.memory_of(objects),
            slots: objects,
            objects,
            bits_per_slot: rival.entry_bits() as f64,
        };
        let disk = &self.report.disk;
        let totals = self.report.totals((disk.reads, disk.writes));
        self.report.intervals = self.intervals.finish(totals);
        self.report.with_ratios(self.busy)
    }
}

/// What a file system reads or writes of a file beside its content.
const METADATA_BYTES: u64 = 4 << 10;
/// As the engine's.
const BATCH_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
