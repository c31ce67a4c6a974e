//! What a replay tells, of the engine and of models of other caches alike.

use std::time::Duration;

use serde::Serialize;

use crate::disks::Count;
use crate::intervals::Interval;
use crate::stats::share;

/// Figures of a replay. JSON has the same names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Requests that count.
    pub requests: u64,
    /// Those that do not, because their size is not known.
    pub without_size: u64,
    /// Requests whose response may not be stored.
    pub uncacheable: u64,
    /// Octets of all responses.
    pub bytes: u64,
    /// Hits that memory answered.
    pub memory_hits: u64,
    /// Hits that the disk answered.
    pub disk_hits: u64,
    /// Octets of both.
    pub hit_bytes: u64,
    /// Both by the requests.
    pub hit_ratio: f64,
    /// Their octets by those of all.
    pub byte_hit_ratio: f64,
    /// Objects put.
    pub puts: u64,
    /// Objects not put because their name is longer than the engine takes.
    pub names_too_long: u64,
    /// Objects not put because they are larger than an eighth of the store.
    pub objects_too_large: u64,
    /// What the disk did.
    pub disk: DiskFigures,
    /// What each kind of request took of it.
    pub costs: Costs,
    /// Requests that the disk would answer in a second.
    pub requests_per_s: f64,
    /// The index.
    pub index: IndexFigures,
    /// The same requests by the arithmetic of `hashcache plan`; `None` for models of other caches.
    pub plan: Option<Planned>,
    /// The figures of each stretch of the log.
    pub intervals: Vec<Interval>,
}

/// What the disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DiskFigures {
    /// Read requests.
    pub reads: u64,
    /// Octets read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Octets written.
    pub written_bytes: u64,
    /// Requests that did not begin where the last one had ended.
    pub seeks: u64,
    /// How long it would have been at work.
    pub seconds: f64,
}

/// Reads and seeks of lookups that hit on disk, of lookups that missed, and of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Of hits on disk.
    pub hits: Count,
    /// Of misses.
    pub misses: Count,
    /// Of puts and of all that is written beside them.
    pub puts: Count,
}

/// Memory of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IndexFigures {
    /// All of it, bytes.
    pub bytes: u64,
    /// Objects that it has room for.
    pub slots: u64,
    /// Objects in it at the end; 0 without an index.
    pub objects: u64,
    /// Memory for each slot.
    pub bits_per_slot: f64,
}

/// What `hashcache plan` says of the requests that memory did not answer, beside what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Planned {
    /// Seeks of a hit.
    pub seeks_per_hit: f64,
    /// Seeks of a miss.
    pub seeks_per_miss: f64,
    /// Seeks of a put, with its share of the batch.
    pub seeks_per_put: f64,
    /// Requests that reach the disk, answered in a second.
    pub requests_per_s: f64,
    /// The same, measured.
    pub measured_requests_per_s: f64,
    /// The measured one by the planned one.
    pub measured_to_planned: f64,
    /// All requests, answered in a second, when memory answers as many as it did: the planned rate,
    /// divided by the share that reaches the disk; `None` if none does.
    pub with_memory_requests_per_s: Option<f64>,
    /// The same of a cache without memory for objects, whose disk has all hits.
    pub without_memory_requests_per_s: f64,
}

impl Report {
    /// The figures so far, for `intervals`. The disk has served so many reads and writes.
    pub(crate) fn totals(&self, (reads, writes): (u64, u64)) -> Interval {
        Interval {
            requests: self.requests,
            hits: self.memory_hits + self.disk_hits,
            bytes: self.bytes,
            hit_bytes: self.hit_bytes,
            reads,
            writes,
        }
    }

    /// The report with its ratios, where the disk was busy for so long.
    pub fn with_ratios(mut self, busy: Duration) -> Self {
        let hits = self.memory_hits + self.disk_hits;
        self.hit_ratio = share(hits, self.requests);
        self.byte_hit_ratio = share(self.hit_bytes, self.bytes);
        self.disk.seconds = busy.as_secs_f64();
        self.requests_per_s = rate(self.requests, busy);
        self
    }
}

/// So many in a second; 0 if it took no time.
pub fn rate(requests: u64, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        requests as f64 / time.as_secs_f64()
    }
}
