//! What a request costs in seeks, and so how many requests a disk answers.
//!
//! A disk that makes t seeks a second answers t / s requests if each takes s of them on average:
//!
//! ```text
//! s = hits × seeks(hit) + (1 − hits) × seeks(miss) + puts × seeks(put) + writes of batches
//! ```
//!
//! Two accountings fill this in: the paper's, whose results are lower bounds, and the engine's,
//! which counts what the code does. `docs/PAPER.md` derives both and holds them against the paper's
//! measurements. Hot objects in memory are left out of both, as in the paper.
//!
//! Cost: arithmetic. Place in the paper: section 3.8, Table 4.

use super::design::{Candidate, Design};

/// How fast a disk is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRates {
    /// Random reads of an object's size, or writes, in a second.
    pub seeks_per_s: f64,
    /// Bytes written in a second when they lie in a row.
    pub write_bytes_per_s: f64,
}

/// What an old disk writes in a row; newer ones more, which changes little.
const WRITE_BYTES_PER_S: f64 = 60e6;

impl DiskRates {
    /// A spinning disk of so many seeks a second.
    pub fn with_seeks(seeks_per_s: f64) -> Self {
        Self {
            seeks_per_s,
            write_bytes_per_s: WRITE_BYTES_PER_S,
        }
    }
}

/// What is asked of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Share of requests that are hits (the paper's chr).
    pub hit_ratio: f64,
    /// Share of all requests that may be stored; hits are among them. (The paper's cbr is the share
    /// of *misses*: 80 % of all with 60 % hits are half of the misses.)
    pub cacheable: f64,
    /// Objects that are asked for together, a page and what it shows (the paper's rel).
    pub related: f64,
    /// Mean size of an object with its head, bytes.
    pub object_bytes: u32,
    /// What the last doubling of the cache added to the hits, as a share of them: hits on that half
    /// of the stored objects that was used longest ago. Hit ratios grow with the logarithm of the
    /// size, so each halving costs as much again.
    pub cold_hits: f64,
}

impl Default for Workload {
    /// The paper's: Polymix-4, 60 % hits, 80 % cacheable, pages of five.
    fn default() -> Self {
        Self {
            hit_ratio: 0.6,
            cacheable: 0.8,
            related: 5.0,
            object_bytes: 8 << 10,
            cold_hits: 0.05,
        }
    }
}

impl Workload {
    /// Objects stored for each request: what may be stored and is not a hit.
    pub fn puts(&self) -> f64 {
        (self.cacheable - self.hit_ratio).max(0.0)
    }
}

/// How seeks are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// As published: every object lies in two places, the second one shared by those related; a
    /// group is written by itself; no false reads. All policies group their log unless `related`
    /// is 1.
    Published,
    /// As the engine does it: only what is larger than a block has a second place, batches are
    /// written by the clock, tags collide.
    Engine,
}

/// Seeks of each kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seeks {
    /// For a hit.
    pub per_hit: f64,
    /// For a miss, without what storing its answer costs.
    pub per_miss: f64,
    /// For a put, without what batches cost.
    pub per_put: f64,
    /// Log records a put leaves to a batch.
    pub batched_per_put: f64,
    /// Places written for each batch.
    pub per_batch: f64,
}

/// What a disk would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seeks of each kind of operation.
    pub seeks: Seeks,
    /// Requests answered in a second, one disk; infinite if none ever needs the disk.
    pub requests_per_s: f64,
    /// Objects in a batch at that rate; 1 for policies without batches.
    pub objects_per_write: f64,
}

impl Prediction {
    /// Seeks of a put, including its share of the seeks of its batch.
    pub fn seeks_per_put(&self) -> f64 {
        let batches = self.seeks.batched_per_put / self.objects_per_write.max(1.0);
        self.seeks.per_put + batches * self.seeks.per_batch
    }

    /// Seeks for a request of average kind on `disk`.
    pub fn seeks_per_request(&self, disk: &DiskRates) -> f64 {
        disk.seeks_per_s / self.requests_per_s
    }
}

/// Share of web records larger than a block of 8 KiB: their rest lies in the log.
const TAIL_SHARE: f64 = 0.27;
/// A page is asked for in two steps: itself, and what it shows once the client has read it. So a
/// group takes two reads, however many members it has.
const READS_PER_GROUP: f64 = 2.0;
/// A batch is cut so long after its first object was committed.
const BATCH_DELAY_S: f64 = 0.25;
/// Bytes of a batch that is cut because it is full.
const BATCH_BYTES: f64 = 4_194_304.0;

/// What `design` makes of `disk` under `workload`.
pub fn predict(
    design: &Design,
    workload: &Workload,
    accounting: Accounting,
    disk: &DiskRates,
) -> Prediction {
    let seeks = match accounting {
        Accounting::Published => published(design, workload),
        Accounting::Engine => engine(design, workload),
    };
    let (hits, puts) = (workload.hit_ratio, workload.puts());
    let reads = hits * seeks.per_hit + (1.0 - hits) * seeks.per_miss + puts * seeks.per_put;
    let batched = puts * seeks.batched_per_put;
    let rates = match accounting {
        Accounting::Published => (disk.seeks_per_s / reads, 1.0),
        Accounting::Engine => {
            // Bytes written keep the disk from seeking, too.
            let object_bytes = f64::from(workload.object_bytes);
            let seconds = batched * object_bytes / disk.write_bytes_per_s;
            let reads = reads + seconds * disk.seeks_per_s;
            with_batches(reads, batched, seeks.per_batch, object_bytes, disk)
        }
    };
    Prediction {
        seeks,
        requests_per_s: rates.0,
        objects_per_write: rates.1,
    }
}

/// The paper's counting. Every object has a first block and a rest. In the Disk Table the first
/// block lies where its hash says and is a seek of its own; the rest lies in the log, beside that
/// of the objects related to it. In the log both are shared by those related, and so is the write.
fn published(design: &Design, workload: &Workload) -> Seeks {
    let related = workload.related.max(1.0);
    let cold = displaced_hits(design, workload);
    let (per_hit, per_put) = if design.candidate.is_log() {
        ((2.0 + cold) / related, 1.0 / related)
    } else {
        (1.0 + 1.0 / related, 1.0)
    };
    Seeks {
        per_hit,
        per_miss: misses_unheld(design),
        per_put,
        batched_per_put: 0.0,
        per_batch: 0.0,
    }
}

/// The engine's counting, after the table at the head of `policy`.
fn engine(design: &Design, workload: &Workload) -> Seeks {
    let (unheld, in_vain) = (misses_unheld(design), design.false_reads());
    let cold = displaced_hits(design, workload);
    let group = if design.grouped {
        workload.related.max(READS_PER_GROUP) / READS_PER_GROUP
    } else {
        1.0
    };
    if design.candidate.is_log() {
        let merges = design.candidate == Candidate::LogLru;
        Seeks {
            // A displaced position is one read more, of the row of each object by itself.
            per_hit: 1.0 / group + cold,
            // Some of the entries met in vain have their position on disk.
            per_miss: in_vain * (2.0 - design.held),
            per_put: 0.0,
            batched_per_put: 1.0,
            // Displaced positions are merged by the million: one index write a batch is far more.
            per_batch: if merges { 2.0 } else { 1.0 },
        }
    } else {
        Seeks {
            per_hit: 1.0 + TAIL_SHARE / group,
            per_miss: unheld + (1.0 - unheld) * in_vain,
            // `set` reads the set again to choose a slot. `basic` has one slot to choose from;
            // `set-mem` chooses in memory, and `set-mem-lru` has the set from the miss before.
            per_put: match design.candidate {
                Candidate::Set => 2.0,
                _ => 1.0,
            },
            batched_per_put: TAIL_SHARE,
            per_batch: 1.0,
        }
    }
}

/// Share of look-ups whose set is not in memory and must be read. Names spread evenly over sets, so
/// it is hardly less than the share of sets.
fn misses_unheld(design: &Design) -> f64 {
    match design.candidate {
        Candidate::Basic | Candidate::Set => 1.0,
        Candidate::SetMemLru => 1.0 - design.held,
        Candidate::SetMem | Candidate::Log | Candidate::LogLru => 0.0,
    }
}

/// Share of hits whose position lies on disk: memory holds those of the objects used last.
fn displaced_hits(design: &Design, workload: &Workload) -> f64 {
    if design.candidate != Candidate::LogLru || design.held >= 1.0 {
        return 0.0;
    }
    (workload.cold_hits * -design.held.log2()).min(1.0)
}

/// Requests a second, and objects in a batch, when log records wait for company.
///
/// Records that arrive λ a second are written in batches begun by the first and cut d later, so
/// every d + 1/λ: λ / (1 + λd) batches a second. With λ = c·rr and k places a batch,
/// `a·rr + k·c·rr / (1 + c·d·rr) = t`, which is a quadratic in rr.
fn with_batches(a: f64, c: f64, k: f64, object_bytes: f64, disk: &DiskRates) -> (f64, f64) {
    let (t, d) = (disk.seeks_per_s, BATCH_DELAY_S);
    let square = a * c * d;
    let linear = a + k * c - t * c * d;
    let rate = if square > 0.0 {
        ((linear * linear + 4.0 * square * t).sqrt() - linear) / (2.0 * square)
    } else if linear > 0.0 {
        t / linear
    } else {
        f64::INFINITY
    };
    let objects = 1.0 + c * d * rate;
    let most = (BATCH_BYTES / object_bytes.max(1.0)).max(1.0);
    if objects <= most {
        (rate, objects)
    } else {
        // Batches are full before their time is over.
        (t / (a + k * c / most), most)
    }
}

#[cfg(test)]
mod tests;
