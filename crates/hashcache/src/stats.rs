//! Counters of the engine. A counter that every answer from memory increments exists once a lane
//! (`lanes`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lanes::Lanes;

/// A counter that any thread may add to.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter for answers from memory, which all processors may increment at the same time.
#[derive(Default)]
pub(crate) struct BusyCounter(Lanes<Counter>);

impl BusyCounter {
    pub(crate) fn add(&self, n: u64) {
        self.0.own().add(n);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.iter().map(Counter::value).sum()
    }
}

/// Counts since the cache was opened. (Hits of hot objects are counted in `memory/hot`.)
///
/// On separate cache lines, because the neighbouring fields are read for every answer.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) pending_hits: BusyCounter,
    pub(crate) misses: BusyCounter,
    pub(crate) joined_reads: BusyCounter,
    pub(crate) disk_hits: Counter,
    pub(crate) first_group_reads: Counter,
    pub(crate) repeated_group_reads: Counter,
    pub(crate) prefetched: Counter,
    pub(crate) prefetched_present: Counter,
    pub(crate) ungrouped_reads: Counter,
    pub(crate) lone_reads: Counter,
    pub(crate) member_reads: Counter,
    pub(crate) span_reads: Counter,
    pub(crate) rest_reads: Counter,
    pub(crate) row_reads: Counter,
    pub(crate) readmitted: Counter,
    pub(crate) false_reads: Counter,
    pub(crate) damaged: Counter,
    pub(crate) read_errors: Counter,
    pub(crate) no_memory: Counter,
    pub(crate) puts: Counter,
    pub(crate) puts_refused: Counter,
    pub(crate) removes: Counter,
    pub(crate) bans: Counter,
    pub(crate) reads: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) writes: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) syncs: Counter,
    pub(crate) batches: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) forgotten: Counter,
}

/// State of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The store works.
    InService,
    /// The index is still being read; an object that is not known yet is a miss.
    Recovering,
    /// All devices have failed: no read or write uses them any more.
    OutOfService,
}

/// A snapshot of the engine's figures; sizes in bytes, the rest counted since opening.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// State of the store.
    pub health: Health,
    /// Devices that the store was opened on.
    pub devices: u64,
    /// Number of those devices that have failed since and were taken out.
    pub devices_out: u64,
    /// Devices that io_uring reads; threads read the others.
    pub devices_uring: u64,
    /// Index entries in use: heads and spans; 0 for policies without an index.
    pub entries: u64,
    /// Index entries with a record that the log has not overwritten; the others are not swept yet.
    pub live_entries: u64,
    /// True if `entries` is exact, false if it is an estimate.
    pub entries_exact: bool,
    /// Entries evicted for lack of room in their rows before the log's head reached them.
    pub early_evictions: u64,
    /// Size of the store.
    pub device_bytes: u64,
    /// Size of the smallest device, bytes: all parts of an object are on the same device.
    pub device_bytes_min: u64,
    /// Size of the log.
    pub log_bytes: u64,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Slots: entries that the index has room for, or places in a Disk Table without an index.
    pub index_slots: u64,
    /// Content and metadata of hot objects.
    pub hot_bytes: u64,
    /// Pending bytes: accepted from callers, not on disk yet.
    pub pending_bytes: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Memory allowed.
    pub memory_limit_bytes: u64,
    /// Part of the allowed memory that nobody may reserve now, because the process has memory that
    /// no reservation counts ([`Config::whole_process`](crate::Config::whole_process)).
    pub memory_aside_bytes: u64,
    /// Lookups answered from hot objects.
    pub hot_hits: u64,
    /// Lookups answered from pending writes.
    pub pending_hits: u64,
    /// Lookups answered from the device.
    pub disk_hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Lookups that shared the read of another lookup.
    pub joined_reads: u64,
    /// Reads from the requested head to the end of its run: several records of a group, or a single
    /// record above 16 KiB.
    pub group_reads: u64,
    /// Group reads for an object that an earlier group read had loaded, and that left memory before
    /// any lookup requested it.
    pub repeated_group_reads: u64,
    /// Objects that group reads made hot without a lookup for them.
    pub prefetched: u64,
    /// Objects in group reads that were hot already.
    pub prefetched_present: u64,
    /// Objects that group reads made hot and that left memory before any lookup requested them.
    pub prefetched_dropped: u64,
    /// With `grouped`: reads of a single object because it is in no group.
    pub ungrouped_reads: u64,
    /// With `grouped`: reads of a single object because no other object in the same group follows
    /// it.
    pub lone_reads: u64,
    /// With `grouped`: reads of a single object in a run, because memory was short, the run was
    /// being read already, or the object was probably in another run.
    pub member_reads: u64,
    /// With `grouped`: reads of one span of an object.
    pub span_reads: u64,
    /// Further reads of a record that is longer than its first read.
    pub rest_reads: u64,
    /// Reads of rows in the index file, where positions are on disk (`log-lru`).
    pub row_reads: u64,
    /// Objects copied to the head of the log before it reached them (readmission).
    pub readmitted: u64,
    /// Reads that found a record of another name with an equal tag.
    pub false_reads: u64,
    /// Records that failed verification.
    pub damaged: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that were abandoned for lack of memory.
    pub no_memory: u64,
    /// Objects and spans accepted.
    pub puts: u64,
    /// Objects and spans refused for lack of memory.
    pub puts_refused: u64,
    /// Removes.
    pub removes: u64,
    /// Bans put in force by [`crate::Cache::remove_matching`].
    pub bans_made: u64,
    /// Bans in force now, on the device that has most bans; at most 4,096.
    pub bans: u64,
    /// Device calls: reads.
    pub reads: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Device calls: writes.
    pub writes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Device calls: syncs.
    pub syncs: u64,
    /// Batches written.
    pub batches: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Devices that forgot all older content at opening, because removes or purges on them could
    /// not be read; or much of it, because removes had used up their share of memory during
    /// recovery or when the store was closed.
    pub forgotten: u64,
}

impl Stats {
    /// Bits of memory that the index takes for each slot.
    pub fn index_bits_per_slot(&self) -> f64 {
        bits_each(self.index_bytes, self.index_slots)
    }

    /// Bits of memory that the index takes for each live entry; 0 without an index, or while it is
    /// empty.
    pub fn index_bits_per_object(&self) -> f64 {
        bits_each(self.index_bytes, self.live_entries)
    }
}

/// Bits for each of `count` entries in `bytes`; 0 without entries.
pub(crate) fn bits_each(bytes: u64, count: u64) -> f64 {
    if count == 0 {
        0.0
    } else {
        bytes as f64 * 8.0 / count as f64
    }
}
