//! Figures for the proxy itself, the engine and the process.

use std::sync::atomic::Ordering::Relaxed;

use hashcache_base::failure::Failure;
use hashcache_intercept::{Handshake, Reason};

use super::moment::Moment;
use super::table::{
    Figure,
    Values::{Maybe, Real, Truth, Whole, Words},
    counter, gauge,
};
use super::{CLASSES, Limit, StoreState};

/// Requests, connections and interceptions.
pub(super) static TRAFFIC: &[Figure] = &[
    counter(
        "hashcache_requests",
        "Requests by result",
        Words("result", |it| {
            it.sums(CLASSES.map(|(_, name)| name), |worker| &worker.requests)
        }),
    )
    .stats("requests"),
    counter(
        "hashcache_plain_hits",
        "Hits of plain requests that memory answered on the shortest way",
        Whole(|it| it.sum(|worker| &worker.plain_hits)),
    ),
    counter(
        "hashcache_client_bytes",
        "Bytes sent to clients, without tunnels",
        Whole(|it| it.sum(|worker| &worker.client_bytes)),
    )
    .stats("client_bytes"),
    counter(
        "hashcache_origin_body_bytes",
        "Bytes of content received from upstream",
        Whole(|it| it.sum(|worker| &worker.origin_body_bytes)),
    )
    .stats("origin_body_bytes"),
    counter(
        "hashcache_origin_bytes",
        "Bytes received from upstream with heads, without tunnels",
        Whole(|it| it.sum(|worker| &worker.origin_bytes)),
    )
    .stats("origin_bytes"),
    counter(
        "hashcache_tunnel_bytes",
        "Bytes sent to clients through tunnels",
        Whole(|it| it.sum(|worker| &worker.tunnel_bytes)),
    )
    .stats("tunnel_bytes"),
    counter(
        "hashcache_failures",
        "Failed requests by error",
        Words("error", |it| {
            it.sums(Failure::SLUGS, |worker| &worker.failures.0)
        }),
    ),
    counter(
        "hashcache_limit_hits",
        "Refusals because a limit was reached, by limit",
        Words("limit", |it| {
            it.sums(Limit::ALL.map(|(_, name)| name), |worker| &worker.limits)
        }),
    ),
    counter(
        "hashcache_purges",
        "Hard purges by kind",
        Words("kind", |it| purges(it, 0)),
    ),
    counter(
        "hashcache_soft_purges",
        "Soft purges by kind",
        Words("kind", |it| purges(it, 1)),
    ),
    gauge(
        "hashcache_purge_rules",
        "Purge bans in effect; at most 4096",
        Whole(|it| it.engine.rules),
    )
    .stats("purge_rules"),
    gauge(
        "hashcache_connections_open",
        "Open connections from clients",
        Whole(|it| it.open(|worker| &worker.connections)),
    )
    .stats("connections_open"),
    counter(
        "hashcache_connections",
        "Connections accepted from clients",
        Whole(|it| it.sum(|worker| &worker.connections.opened)),
    ),
    gauge(
        "hashcache_upstream_connections",
        "Open connections to origins by state, without tunnels",
        Words("state", |it| {
            vec![("busy", it.upstream.busy), ("idle", it.upstream.idle)]
        }),
    )
    .stats("upstream_connections"),
    gauge(
        "hashcache_tunnels_open",
        "Open tunnels",
        Whole(|it| it.open(|worker| &worker.tunnels)),
    )
    .stats("tunnels_open"),
    counter(
        "hashcache_tunnels",
        "Tunnels opened",
        Whole(|it| it.sum(|worker| &worker.tunnels.opened)),
    ),
    counter(
        "hashcache_intercepted",
        "TLS handshakes with clients of intercepted hosts, by result",
        Words("handshake", |it| {
            it.sums(Handshake::ALL.map(|(_, name)| name), |worker| {
                &worker.intercepted
            })
        }),
    )
    .stats("intercept.handshakes"),
    counter(
        "hashcache_not_intercepted",
        "Tunnels that were not intercepted, by reason",
        Words("reason", |it| {
            it.sums(Reason::ALL.map(|(_, name)| name), |worker| {
                &worker.not_intercepted
            })
        }),
    ),
    gauge(
        "hashcache_refusing_clients",
        "Clients that refuse the proxy's certificate for a host and get tunnels",
        Whole(|it| it.exposition.refusing_clients()),
    )
    .stats("intercept.refusing_clients"),
    gauge(
        "hashcache_verified_hosts",
        "Hosts whose certificate was verified within a week",
        Whole(|it| it.exposition.intercept_state.verified.count() as u64),
    )
    .stats("intercept.verified_hosts"),
    gauge(
        "hashcache_ca_expires_timestamp_seconds",
        "Expiry of the certificate authority in seconds since 1970",
        Maybe(|it| it.authority_ends()),
    ),
];

/// Engine figures.
pub(super) static ENGINE: &[Figure] = &[
    gauge(
        "hashcache_objects",
        "Stored objects",
        Whole(|it| it.engine.objects),
    )
    .stats("objects"),
    gauge(
        "hashcache_objects_exact",
        "1 if hashcache_objects is a count, 0 if it is an estimate",
        Truth(|it| it.engine.objects_exact),
    )
    .stats("objects_exact"),
    gauge(
        "hashcache_index_bytes",
        "Bytes of memory for the index",
        Whole(|it| it.engine.index_bytes),
    )
    .stats("index_bytes"),
    gauge(
        "hashcache_index_bits_per_slot",
        "Bits of index memory per slot",
        Real(|it| bits_each(it.engine.index_bytes, it.engine.index_slots)),
    )
    .stats("index_bits_per_slot"),
    gauge(
        "hashcache_index_bits_per_object",
        "Bits of index memory per object in the index",
        Real(|it| bits_each(it.engine.index_bytes, it.engine.index_objects)),
    )
    .stats("index_bits_per_object"),
    gauge(
        "hashcache_hot_bytes",
        "Bytes of memory for hot objects",
        Whole(|it| it.engine.hot_bytes),
    )
    .stats("hot_bytes"),
    gauge(
        "hashcache_pending_bytes",
        "Bytes of memory for objects that are not on disk yet",
        Whole(|it| it.engine.pending_bytes),
    )
    .stats("pending_bytes"),
    gauge(
        "hashcache_memory_aside_bytes",
        "Bytes of `memory` that the program has beside the cache, for which hot objects leave room",
        Whole(|it| it.engine.memory_aside_bytes),
    )
    .stats("memory_aside_bytes"),
    gauge(
        "hashcache_capacity_bytes",
        "Size of the cache in bytes, over all devices",
        Whole(|it| it.engine.capacity_bytes),
    )
    .stats("capacity_bytes"),
    gauge(
        "hashcache_store_degraded",
        "1 if a device failed and is out of service",
        Truth(|it| it.engine.store == StoreState::Degraded),
    ),
    gauge(
        "hashcache_devices_out",
        "Devices that failed and are out of service",
        Whole(|it| it.engine.devices_out),
    )
    .stats("devices_out"),
    gauge(
        "hashcache_devices_uring",
        "Devices read by io_uring instead of threads",
        Whole(|it| it.engine.devices_uring),
    )
    .stats("devices_uring"),
    counter(
        "hashcache_group_reads",
        "Reads of several records of a page group, or of one of more than 16 KiB",
        Whole(|it| it.engine.group_reads),
    )
    .stats("group_reads"),
    counter(
        "hashcache_prefetched",
        "Objects made hot by such reads",
        Whole(|it| it.engine.prefetched),
    )
    .stats("prefetched"),
    counter(
        "hashcache_prefetched_present",
        "Objects that such reads met and that were in memory already",
        Whole(|it| it.engine.prefetched_present),
    )
    .stats("prefetched_present"),
    counter(
        "hashcache_prefetched_dropped",
        "Objects made hot by such reads that left memory before they were requested",
        Whole(|it| it.engine.prefetched_dropped),
    )
    .stats("prefetched_dropped"),
    counter(
        "hashcache_lookup_reads",
        "Reads of devices for lookups of grouped stores, by cause; rest and row in all stores",
        Words("cause", |it| it.engine.lookup_reads.to_vec()),
    )
    .stats("lookup_reads"),
    counter(
        "hashcache_false_reads",
        "Lookups that read the record of another name, because it has an equal tag",
        Whole(|it| it.engine.false_reads),
    )
    .stats("false_reads"),
    counter(
        "hashcache_readmitted",
        "Objects kept when the log overwrote its oldest part",
        Whole(|it| it.engine.readmitted),
    )
    .stats("readmitted"),
    counter(
        "hashcache_forgotten",
        "Devices that forgot older objects because removes could not be read or had no room",
        Whole(|it| it.engine.forgotten),
    )
    .stats("forgotten"),
    counter(
        "hashcache_device_reads",
        "Reads from devices",
        Whole(|it| it.engine.device.reads),
    )
    .stats("device.reads"),
    counter(
        "hashcache_device_writes",
        "Writes to devices",
        Whole(|it| it.engine.device.writes),
    )
    .stats("device.writes"),
    counter(
        "hashcache_device_read_bytes",
        "Bytes read from devices",
        Whole(|it| it.engine.device.read_bytes),
    )
    .stats("device.read_bytes"),
    counter(
        "hashcache_device_written_bytes",
        "Bytes written to devices",
        Whole(|it| it.engine.device.written_bytes),
    )
    .stats("device.written_bytes"),
];

/// Process figures.
pub(super) static PROCESS: &[Figure] = &[
    counter(
        "hashcache_access_log_lines",
        "Lines written to the access log",
        Whole(|it| it.log.written),
    ),
    counter(
        "hashcache_access_log_dropped",
        "Lines dropped from the access log",
        Whole(|it| it.log.dropped),
    )
    .stats("access_log_dropped"),
    counter(
        "hashcache_access_log_failures",
        "Failed writes to the access log",
        Whole(|it| it.log.failures),
    ),
    gauge(
        "hashcache_access_log_stopped",
        "1 if the access log has stopped after a failed write",
        Truth(|it| it.log.stopped),
    ),
    gauge(
        "hashcache_config_reload_success",
        "1 if the last configuration reload succeeded",
        Truth(|it| !it.exposition.metrics.reload_failed.load(Relaxed)),
    ),
    gauge(
        "hashcache_clock_suspect",
        "1 if the proxy's clock may be wrong",
        Truth(|it| it.exposition.clock.suspect()),
    )
    .stats("clock_suspect"),
    gauge(
        "hashcache_offline",
        "1 while the line to the Internet counts as down",
        Truth(|it| it.exposition.line.is_down()),
    )
    .stats("offline"),
    gauge(
        "process_resident_memory_bytes",
        "Resident memory of the process in bytes",
        Maybe(|_| resident_bytes()),
    )
    .stats("resident_bytes"),
    gauge(
        "process_start_time_seconds",
        "Start time of the process in seconds since 1970",
        Whole(|it| it.exposition.start_seconds),
    ),
];

/// Returns the purges by kind: hard purges (0) or soft purges (1).
fn purges(moment: &Moment<'_>, at: usize) -> Vec<(&'static str, u64)> {
    let purges = moment.exposition.metrics.purges();
    purges
        .each()
        .map(|(name, counts)| (name, counts[at]))
        .collect()
}

/// Returns the bits per item; 0 without items.
fn bits_each(bytes: u64, count: u64) -> f64 {
    if count == 0 {
        0.0
    } else {
        bytes as f64 * 8.0 / count as f64
    }
}

/// Returns this process's resident memory according to the kernel, if known.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
