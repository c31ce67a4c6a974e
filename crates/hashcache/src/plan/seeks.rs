//! Predicts the seeks for a request, and from them a disk's requests per second.
//!
//! A disk that makes t seeks a second serves t / s requests if each takes s seeks on average:
//!
//! ```text
//! s = hits × seeks(hit) + (1 − hits) × seeks(miss) + puts × seeks(put) + writes of batches
//! ```
//!
//! Two accountings fill this in: the paper's accounting, with lower bounds as results, and the
//! engine's accounting, which counts seeks in the real code. `docs/PAPER.md` derives both and
//! compares them with the paper's measurements. Both ignore hot objects in memory, as the paper
//! does.
//!
//! Cost: arithmetic. Place in the paper: section 3.8, Table 4.

use super::design::{Candidate, Design};

/// Disk speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRates {
    /// Object-sized random reads, or writes, per second.
    pub seeks_per_s: f64,
    /// Sequential write rate, bytes per second.
    pub write_bytes_per_s: f64,
}

/// An old disk's sequential write rate; newer disks write faster, which changes little.
const WRITE_BYTES_PER_S: f64 = 60e6;

impl DiskRates {
    /// A spinning disk with the given seek rate.
    pub fn with_seeks(seeks_per_s: f64) -> Self {
        Self {
            seeks_per_s,
            write_bytes_per_s: WRITE_BYTES_PER_S,
        }
    }
}

/// Expected requests to a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Share of requests that are hits (the paper's chr).
    pub hit_ratio: f64,
    /// Requests that may be stored, as a share of all, including hits. (The paper's cbr is the
    /// share of *misses*: 80 % of all with 60 % hits are half the misses.)
    pub cacheable: f64,
    /// Objects that are requested together, a page and the objects in it (the paper's rel).
    pub related: f64,
    /// Mean object size with the head, bytes.
    pub object_bytes: u32,
    /// Share of hits on the less recently used half of all objects: the hits that the last doubling
    /// of the cache added. Hit ratios grow with the logarithm of the size, so each halving costs as
    /// many hits again.
    pub cold_hits: f64,
}

impl Default for Workload {
    /// The paper's workload: Polymix-4, 60 % hits, 80 % cacheable, pages of five.
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
    /// Stored objects per request: cacheable requests that are no hits.
    pub fn puts(&self) -> f64 {
        (self.cacheable - self.hit_ratio).max(0.0)
    }
}

/// Method for counting seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// As published: every object has two places, and related objects share the second; a group is
    /// written by itself; no false reads. All policies group their log unless `related` is 1.
    Published,
    /// As in the engine: only objects larger than a block have a second place, batches are written
    /// by the clock, tags collide.
    Engine,
}

/// Seeks of each kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seeks {
    /// Seeks for a hit.
    pub per_hit: f64,
    /// Seeks for a miss, without storing the response.
    pub per_miss: f64,
    /// Seeks for a put, without batches.
    pub per_put: f64,
    /// Log records per put that are written in a batch.
    pub batched_per_put: f64,
    /// Places written for each batch.
    pub per_batch: f64,
}

/// A disk's predicted speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seeks of each kind of operation.
    pub seeks: Seeks,
    /// Requests per second on one disk; infinite if no request needs the disk.
    pub requests_per_s: f64,
    /// Objects in a batch at that rate; 1 for policies without batches.
    pub objects_per_write: f64,
}

impl Prediction {
    /// Seeks for a put, including a share of the batch's seeks.
    pub fn seeks_per_put(&self) -> f64 {
        let batches = self.seeks.batched_per_put / self.objects_per_write.max(1.0);
        self.seeks.per_put + batches * self.seeks.per_batch
    }

    /// Mean seeks for a request on `disk`.
    pub fn seeks_per_request(&self, disk: &DiskRates) -> f64 {
        disk.seeks_per_s / self.requests_per_s
    }
}

/// Share of web records above 8 KiB, a block: the rest is in the log.
const TAIL_SHARE: f64 = 0.27;
/// A page is requested in two steps: first the page, and then the other members, once the client
/// has read the page. So a group takes two reads, however many members it has.
const READS_PER_GROUP: f64 = 2.0;
/// A batch is closed this long after the first object was committed.
const BATCH_DELAY_S: f64 = 0.25;
/// Batch size at which a batch is closed as full.
const BATCH_BYTES: f64 = 4_194_304.0;

/// Predicts how fast `design` is on `disk` under `workload`.
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
            // Writing bytes also keeps the disk from seeking.
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
/// block is at the place given by the hash and costs a separate seek; the rest is in the log, next
/// to related objects. In the log both parts are shared by related objects, and so is the write.
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

/// The engine's counting, following the table in `policy`.
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
            // A displaced position is one more read, separately for each object's row.
            per_hit: 1.0 / group + cold,
            // Some false matches have their position on disk.
            per_miss: in_vain * (2.0 - design.held),
            per_put: 0.0,
            batched_per_put: 1.0,
            // Displaced positions are merged by the million, so one index write per batch is a
            // generous estimate.
            per_batch: if merges { 2.0 } else { 1.0 },
        }
    } else {
        Seeks {
            per_hit: 1.0 + TAIL_SHARE / group,
            per_miss: unheld + (1.0 - unheld) * in_vain,
            // `set` reads the set again to choose a slot. `basic` has only one slot, `set-mem`
            // chooses in memory, and `set-mem-lru` has the set from the miss before.
            per_put: match design.candidate {
                Candidate::Set => 2.0,
                _ => 1.0,
            },
            batched_per_put: TAIL_SHARE,
            per_batch: 1.0,
        }
    }
}

/// Share of lookups for a set that is not in memory and must be read. Names are evenly distributed
/// over sets, so it is hardly less than the share of sets not held.
fn misses_unheld(design: &Design) -> f64 {
    match design.candidate {
        Candidate::Basic | Candidate::Set => 1.0,
        Candidate::SetMemLru => 1.0 - design.held,
        Candidate::SetMem | Candidate::Log | Candidate::LogLru => 0.0,
    }
}

/// Share of hits with a position on disk: memory holds recently used positions.
fn displaced_hits(design: &Design, workload: &Workload) -> f64 {
    if design.candidate != Candidate::LogLru || design.held >= 1.0 {
        return 0.0;
    }
    (workload.cold_hits * -design.held.log2()).min(1.0)
}

/// Requests per second, and objects in a batch, if log records wait for others.
///
/// Records that arrive λ a second are written in batches that start with the first record and close
/// d later, so every d + 1/λ: λ / (1 + λd) batches a second. With λ = c·rr and k places a batch,
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
