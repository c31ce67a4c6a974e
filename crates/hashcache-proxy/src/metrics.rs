//! The proxy's counters: incremented by the workers, summed at each scrape.
//!
//! Each worker has a separate block, so counting is an uncontended relaxed addition. `exposition`
//! sums the blocks, and also reads the engine, the clock and the access log. To add a metric, add a
//! counter here and a row to one of the lists of figures: `figures`, `peers`, `origins`, `links`,
//! `quotas`. Called by `request`, `fetch`, `connect` and `server`; served by `admin`.
//!
//! Invariant: every request is counted once, by its log entry, and every fetched byte once, by the
//! fetch. Tunnel bytes are counted separately, because none of them could have been a hit.

mod exposition;
mod figures;
mod htcp;
mod icp;
pub(crate) mod links;
mod moment;
mod origins;
mod peers;
mod quotas;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_intercept::{Handshake, Reason};
use hashcache_store::purge;
use hashcache_upstream::peer::{Peer, PeerKind, PeerSummary};

pub(crate) use exposition::{Detail, Exposition, Live, Requests};
pub(crate) use htcp::{ClearResult, HtcpAnswer, HtcpCounts, HtcpIgnored, HtcpReply};
pub(crate) use icp::{IcpCounts, Unanswered};

use crate::access_log::{LogEntry, Outcome, OutcomeClass};

/// The process's counters.
#[derive(Debug)]
pub(crate) struct Metrics {
    workers: Box<[Arc<WorkerMetrics>]>,
    reload_failed: AtomicBool,
    /// The certificate authority's expiry, seconds since 1970; 0 without an authority.
    authority_ends: AtomicU64,
    purges: Arc<purge::PurgeCounts>,
    icp: Arc<IcpCounts>,
    htcp: Arc<HtcpCounts>,
    /// Peers of the configuration in effect; their counters are in `Peer`.
    peers: Mutex<Vec<Arc<Peer>>>,
}

impl Metrics {
    /// Counters for `workers` workers, at least one.
    pub(crate) fn new(workers: usize) -> Arc<Self> {
        let workers = (0..workers.max(1)).map(|_| Arc::default()).collect();
        Arc::new(Self {
            workers,
            reload_failed: AtomicBool::new(false),
            authority_ends: AtomicU64::new(0),
            purges: Arc::default(),
            icp: Arc::default(),
            htcp: Arc::default(),
            peers: Mutex::default(),
        })
    }

    /// Returns the purge counters; all workers share them, because purges are rare.
    pub(crate) fn purges(&self) -> &Arc<purge::PurgeCounts> {
        &self.purges
    }

    /// Returns the ICP counters; all workers share them.
    pub(crate) fn icp(&self) -> &Arc<IcpCounts> {
        &self.icp
    }

    /// Stores the peers of the configuration in effect.
    pub(crate) fn set_peers(&self, peers: &[Arc<Peer>]) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers.to_vec();
    }

    /// Returns all peers' states.
    fn peer_figures(&self) -> Vec<PeerFigures> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = peers.iter().map(|peer| PeerFigures {
            name: peer.name().to_owned(),
            kind: match peer.settings.kind {
                PeerKind::Parent => "parent",
                PeerKind::Sibling => "sibling",
                PeerKind::Member => "member",
            },
            is_up: peer.health.is_up(),
        });
        figures.collect()
    }

    /// Returns the peers that exchange summaries.
    fn summary_peers(&self) -> Vec<Arc<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let with_summary = |peer: &&Arc<Peer>| peer.settings.summary != PeerSummary::None;
        peers.iter().filter(with_summary).cloned().collect()
    }

    /// Returns the HTCP counters; all workers share them.
    pub(crate) fn htcp(&self) -> &Arc<HtcpCounts> {
        &self.htcp
    }

    /// Returns a worker's block; events without a worker are counted in the block for worker 0.
    pub(crate) fn worker(&self, number: usize) -> Arc<WorkerMetrics> {
        Arc::clone(&self.workers[number % self.workers.len()])
    }

    /// Stores the latest configuration reload's result.
    pub(crate) fn config_reloaded(&self, result: Reload) {
        self.reload_failed.store(result == Reload::Kept, Relaxed);
    }

    /// Stores the expiry of the certificate authority (seconds since 1970), if there is an
    /// authority.
    pub(crate) fn authority_ends(&self, end: Option<u64>) {
        self.authority_ends.store(end.unwrap_or(0), Relaxed);
    }

    /// Returns the bytes sent to clients and the bytes received from upstream, both without
    /// tunnels.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (
            self.sum(|worker| &worker.client_bytes),
            self.sum(|worker| &worker.origin_bytes),
        )
    }

    fn sum(&self, count: impl Fn(&WorkerMetrics) -> &AtomicU64) -> u64 {
        self.workers
            .iter()
            .map(|worker| count(worker).load(Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

/// A peer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerFigures {
    pub(crate) name: String,
    /// The kind as in the configuration.
    pub(crate) kind: &'static str,
    pub(crate) is_up: bool,
}

/// Result of a configuration reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The new configuration is in effect.
    Taken,
    /// The new configuration is invalid; the old one stays in effect.
    Kept,
}

/// One counter for each word of [`Failure::SLUGS`].
#[derive(Debug)]
struct FailureCounts([AtomicU64; Failure::SLUGS.len()]);

impl Default for FailureCounts {
    // The standard library implements `Default` only for arrays of up to 32 elements.
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// A worker's counters; aligned so that two workers never write to the same cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerMetrics {
    requests: [AtomicU64; CLASSES.len()],
    client_bytes: AtomicU64,
    origin_bytes: AtomicU64,
    origin_body_bytes: AtomicU64,
    tunnel_bytes: AtomicU64,
    /// Requests by duration: one counter per bound and one for longer requests.
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_ns: AtomicU64,
    failures: FailureCounts,
    limits: [AtomicU64; Limit::ALL.len()],
    intercepted: [AtomicU64; Handshake::ALL.len()],
    not_intercepted: [AtomicU64; Reason::ALL.len()],
    false_hits: AtomicU64,
    plain_hits: AtomicU64,
    connections: Opened,
    tunnels: Opened,
}

impl WorkerMetrics {
    /// Counts a request or a tunnel by its log entry.
    pub(crate) fn record(&self, entry: &LogEntry<'_>) {
        self.record_rest(entry, 0);
    }

    /// As [`record`](Self::record), if `counted` bytes to the client were counted before.
    pub(crate) fn record_rest(&self, entry: &LogEntry<'_>, counted: u64) {
        if let Some(error) = entry.error
            && let Some(at) = Failure::SLUGS.iter().position(|slug| *slug == error)
        {
            self.failures.0[at].fetch_add(1, Relaxed);
        }
        if entry.outcome == Outcome::Tunnel {
            self.tunnel_bytes.fetch_add(entry.client_bytes, Relaxed);
            return;
        }
        let rest = entry.client_bytes.saturating_sub(counted);
        self.client_bytes.fetch_add(rest, Relaxed);
        let Some(class) = entry.class() else { return };
        self.requests[class as usize].fetch_add(1, Relaxed);
        let bucket = DURATION_BOUNDS.partition_point(|bound| *bound < entry.duration);
        self.durations[bucket].fetch_add(1, Relaxed);
        let ns = u64::try_from(entry.duration.as_nanos()).unwrap_or(u64::MAX);
        self.duration_ns.fetch_add(ns, Relaxed);
    }

    /// Counts a sibling that promised a hit but did not deliver the response.
    pub(crate) fn false_hit(&self) {
        self.false_hits.fetch_add(1, Relaxed);
    }

    /// Counts a plain request that was answered from memory before it was parsed completely.
    pub(crate) fn plain_hit(&self) {
        self.plain_hits.fetch_add(1, Relaxed);
    }

    /// Counts bytes received from upstream; `body` of `all` are content.
    pub(crate) fn fetched(&self, all: u64, body: u64) {
        self.origin_bytes.fetch_add(all, Relaxed);
        self.origin_body_bytes.fetch_add(body, Relaxed);
    }

    /// Counts a transfer in progress, which has reached `all` and `body` bytes. Counts in steps, so
    /// most reads update no counter.
    pub(crate) fn fetching(&self, counted: &mut CountedBytes, all: u64, body: u64) {
        if all.saturating_sub(counted.all) >= STEP_BYTES {
            self.fetched_rest(counted, all, body);
        }
    }

    /// Counts the rest of a transfer.
    pub(crate) fn fetched_rest(&self, counted: &mut CountedBytes, all: u64, body: u64) {
        self.fetched(
            all.saturating_sub(counted.all),
            body.saturating_sub(counted.body),
        );
        *counted = CountedBytes { all, body };
    }

    /// Counts bytes sent to a client; true if `bytes` were enough for a step.
    pub(crate) fn sending(&self, bytes: u64) -> bool {
        let enough = bytes >= STEP_BYTES;
        if enough {
            self.client_bytes.fetch_add(bytes, Relaxed);
        }
        enough
    }

    /// Counts a limit that was reached.
    pub(crate) fn limit(&self, limit: Limit) {
        self.limits[limit as usize].fetch_add(1, Relaxed);
    }

    /// Counts a handshake for an intercepted host.
    pub(crate) fn intercepted(&self, handshake: Handshake) {
        self.intercepted[handshake as usize].fetch_add(1, Relaxed);
    }

    /// Counts a tunnel to a host that might have been intercepted, by the reason why it was not.
    pub(crate) fn not_intercepted(&self, reason: Reason) {
        self.not_intercepted[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts a client's connection as open while the guard lives.
    pub(crate) fn connection(self: &Arc<Self>) -> OpenGauge {
        OpenGauge::new(self, |worker| &worker.connections)
    }

    /// Counts a tunnel as open while the guard lives.
    pub(crate) fn tunnel(self: &Arc<Self>) -> OpenGauge {
        OpenGauge::new(self, |worker| &worker.tunnels)
    }
}

/// Bytes of a transfer from upstream that were counted already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedBytes {
    all: u64,
    body: u64,
}

/// Minimum step in which a transfer in progress is counted.
pub(crate) const STEP_BYTES: u64 = 64 << 10;

/// Number of opened items, and number of closed items.
#[derive(Debug, Default)]
struct Opened {
    opened: AtomicU64,
    closed: AtomicU64,
}

/// Counts an item as open until the guard is dropped.
#[derive(Debug)]
pub(crate) struct OpenGauge {
    worker: Arc<WorkerMetrics>,
    which: fn(&WorkerMetrics) -> &Opened,
}

impl OpenGauge {
    fn new(worker: &Arc<WorkerMetrics>, which: fn(&WorkerMetrics) -> &Opened) -> Self {
        which(worker).opened.fetch_add(1, Relaxed);
        Self {
            worker: Arc::clone(worker),
            which,
        }
    }
}

impl Drop for OpenGauge {
    fn drop(&mut self) {
        (self.which)(&self.worker).closed.fetch_add(1, Relaxed);
    }
}

/// The limits at which refusals are counted, most of them of
/// [`Limits`](hashcache_base::limits::Limits). The other limits have counters elsewhere (failures
/// by error, responses by status) or refuse nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Clients,
    ClientsPerAddress,
    ClientShare,
    Memory,
    Frames,
    HeadTime,
    IdleTime,
    ProgressTime,
    MaxObjectSize,
}

impl Limit {
    /// All limits with their names, in numerical order. The names are those of the settings.
    const ALL: [(Self, &'static str); 9] = [
        (Self::Clients, "clients"),
        (Self::ClientsPerAddress, "clients_per_address"),
        (Self::ClientShare, "client_share"),
        (Self::Memory, "memory"),
        (Self::Frames, "frames"),
        (Self::HeadTime, "head_time"),
        (Self::IdleTime, "idle_time"),
        (Self::ProgressTime, "progress_time"),
        (Self::MaxObjectSize, "max_object_size"),
    ];
}

/// Figures of the engine, named as in `/stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineFigures {
    /// State of the store.
    pub(crate) store: StoreState,
    /// Number of objects.
    pub(crate) objects: u64,
    /// True if `objects` was counted, false if it was estimated.
    pub(crate) objects_exact: bool,
    /// Memory of the index.
    pub(crate) index_bytes: u64,
    /// Number of objects that the index has room for.
    pub(crate) index_slots: u64,
    /// Objects in the index that still exist; 0 without an index.
    pub(crate) index_objects: u64,
    /// Memory of hot objects.
    pub(crate) hot_bytes: u64,
    /// Memory of pending records.
    pub(crate) pending_bytes: u64,
    /// Memory in use.
    pub(crate) memory_used_bytes: u64,
    /// Memory limit.
    pub(crate) memory_limit_bytes: u64,
    /// Memory of the process that nothing counts.
    pub(crate) memory_aside_bytes: u64,
    /// Capacity of all devices.
    pub(crate) capacity_bytes: u64,
    /// Devices of the store.
    pub(crate) devices: u64,
    /// Bans in force.
    pub(crate) rules: u64,
    /// Devices that failed and were taken out.
    pub(crate) devices_out: u64,
    /// Reads that also loaded other objects of the same page group.
    pub(crate) group_reads: u64,
    /// Objects loaded by these reads.
    pub(crate) prefetched: u64,
    /// Objects in these reads that were in memory already.
    pub(crate) prefetched_present: u64,
    /// Objects loaded by these reads that left memory before a request for them.
    pub(crate) prefetched_dropped: u64,
    /// Reads for lookups, by cause.
    pub(crate) lookup_reads: [(&'static str, u64); 8],
    /// Lookups that read a record with another name, because its tag is equal.
    pub(crate) false_reads: u64,
    /// Objects kept for another lap of the log.
    pub(crate) readmitted: u64,
    /// Devices that forgot older objects when the store was opened.
    pub(crate) forgotten: u64,
    /// Devices that are read with io_uring.
    pub(crate) devices_uring: u64,
    /// Traffic of all devices.
    pub(crate) device: DeviceFigures,
}

/// Traffic of the devices since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFigures {
    /// Reads submitted.
    pub(crate) reads: u64,
    /// Writes submitted.
    pub(crate) writes: u64,
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Bytes written.
    pub(crate) written_bytes: u64,
}

/// State of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// There is no store; all requests are forwarded.
    #[default]
    Absent,
    /// The store is being opened; all requests are forwarded meanwhile.
    Opening,
    /// The store works.
    Ready,
    /// A device failed and was taken out.
    Degraded,
}

impl StoreState {
    /// Returns the word in `/-/ready` and `/stats`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Opening => "opening",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
        }
    }
}

/// The classes with their names, in numerical order.
const CLASSES: [(OutcomeClass, &str); 7] = [
    (OutcomeClass::Hit, "hit"),
    (OutcomeClass::Miss, "miss"),
    (OutcomeClass::Revalidated, "revalidated"),
    (OutcomeClass::Collapsed, "collapsed"),
    (OutcomeClass::Bypass, "bypass"),
    (OutcomeClass::Error, "error"),
    (OutcomeClass::Negative, "negative"),
];

/// Upper bounds of the duration buckets, from a hit in memory to a download; a disk seek is in the
/// middle.
const DURATION_BOUNDS: [Duration; 14] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

#[cfg(test)]
mod tests;
