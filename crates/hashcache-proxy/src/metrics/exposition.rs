//! The figures for readers: OpenMetrics for `/metrics`, JSON for `/stats`.
//!
//! Called by `admin`, and by `page` for the few facts on the landing page. All work is done at the
//! time of a request.
//!
//! Invariant: names and keys are part of the interface; they are added and never changed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::links::{self, LinkView};
use super::{
    CLASSES, DURATION_BOUNDS, EngineFigures, Limit, Metrics, Opened, PeerFigures, origins, quotas,
};
use crate::access_log::AccessLogger;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::intercept::{Handshake, InterceptState, Reason};
use crate::offline::{Line, Offline};
use crate::peer::learned::LearnedCounts;
use crate::quota::LimiterFigures;
use crate::site::live::LiveSites;
use crate::upstream::UpstreamFigures;

/// Reads the engine's figures; called at every scrape.
type AskEngine = dyn Fn() -> EngineFigures + Send + Sync;
/// Reads the numbers of connections to origins; called at every scrape.
type AskUpstream = dyn Fn() -> UpstreamFigures + Send + Sync;

/// The links; read at every scrape.
type AskLinks = dyn Fn() -> LinkView + Send + Sync;

/// The sites in effect; read at every scrape.
type AskSites = dyn Fn() -> Arc<LiveSites> + Send + Sync;

/// What clients have done under limits; read at every scrape.
type AskLimiter = dyn Fn() -> LimiterFigures + Send + Sync;

/// What a page of figures may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Clients and the sites that they ask too.
    Names,
    /// Sums alone.
    Figures,
}

/// The sources of all figures.
#[derive(Clone)]
pub(crate) struct Exposition {
    metrics: Arc<Metrics>,
    clock: Arc<Clock>,
    log: Arc<AccessLogger>,
    engine: Arc<AskEngine>,
    upstream: Arc<AskUpstream>,
    intercept_state: Arc<InterceptState>,
    sites: Option<Arc<AskSites>>,
    links: Option<Arc<AskLinks>>,
    limiter: Option<Arc<AskLimiter>>,
    line: Arc<Line>,
    start_seconds: u64,
}

impl Exposition {
    /// Figures from these sources; the start time is now.
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        clock: Arc<Clock>,
        log: Arc<AccessLogger>,
        engine: impl Fn() -> EngineFigures + Send + Sync + 'static,
        upstream: impl Fn() -> UpstreamFigures + Send + Sync + 'static,
    ) -> Self {
        let start_seconds = clock.now().seconds();
        Self {
            metrics,
            clock,
            log,
            engine: Arc::new(engine),
            upstream: Arc::new(upstream),
            intercept_state: Arc::default(),
            sites: None,
            links: None,
            limiter: None,
            line: Arc::default(),
            start_seconds,
        }
    }

    /// The same with the results of interceptions.
    pub(crate) fn with_intercept_state(self, intercept_state: Arc<InterceptState>) -> Self {
        Self {
            intercept_state,
            ..self
        }
    }

    /// The same with the line to the Internet.
    pub(crate) fn with_line(self, line: Arc<Line>) -> Self {
        Self { line, ..self }
    }

    /// The same with the origins of sites.
    pub(crate) fn with_sites(
        self,
        sites: impl Fn() -> Arc<LiveSites> + Send + Sync + 'static,
    ) -> Self {
        Self {
            sites: Some(Arc::new(sites)),
            ..self
        }
    }

    /// The same with links.
    pub(crate) fn with_links(self, links: impl Fn() -> LinkView + Send + Sync + 'static) -> Self {
        Self {
            links: Some(Arc::new(links)),
            ..self
        }
    }

    /// The same with quotas and rates.
    pub(crate) fn with_limiter(
        self,
        limiter: impl Fn() -> LimiterFigures + Send + Sync + 'static,
    ) -> Self {
        Self {
            limiter: Some(Arc::new(limiter)),
            ..self
        }
    }

    /// How the line to the Internet is regarded.
    pub(crate) fn offline_mode(&self) -> Offline {
        self.line.regarded()
    }

    /// The object of `/-/links`.
    pub(crate) fn links(&self, detail: Detail) -> Value {
        let links = self.links.as_ref();
        let mut status = links.map_or(Value::Null, |links| links().status);
        if detail == Detail::Figures {
            for side in ["parents", "children"] {
                let links = status.get_mut(side).and_then(Value::as_array_mut);
                let links = links.into_iter().flatten();
                for link in links.filter_map(Value::as_object_mut) {
                    link.remove("sites");
                    link.remove("address");
                }
            }
        }
        status
    }

    /// The text of `/metrics`.
    pub(crate) fn openmetrics(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::with_capacity(16 << 10);
        text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// The object of `/stats`.
    pub(crate) fn stats(&self, detail: Detail) -> Value {
        let (engine, upstream) = (self.engine(), (self.upstream)());
        let requests: serde_json::Map<_, _> = CLASSES
            .iter()
            .map(|(_, name)| ((*name).to_owned(), self.class(name).into()))
            .collect();
        let lookup_reads = engine.lookup_reads.into_iter();
        let lookup_reads: serde_json::Map<_, _> = lookup_reads
            .map(|(cause, count)| (cause.to_owned(), count.into()))
            .collect();
        let now = self.clock.now().seconds();
        json!({
            "requests": requests,
            "client_bytes": self.metrics.sum(|worker| &worker.client_bytes),
            "origin_body_bytes": self.metrics.sum(|worker| &worker.origin_body_bytes),
            "origin_bytes": self.metrics.sum(|worker| &worker.origin_bytes),
            "tunnel_bytes": self.metrics.sum(|worker| &worker.tunnel_bytes),
            "objects": engine.objects,
            "objects_exact": engine.objects_exact,
            "index_bytes": engine.index_bytes,
            "index_bits_per_slot": bits_each(engine.index_bytes, engine.index_slots),
            "index_bits_per_object": bits_each(engine.index_bytes, engine.index_objects),
            "hot_bytes": engine.hot_bytes,
            "pending_bytes": engine.pending_bytes,
            "capacity_bytes": engine.capacity_bytes,
            "devices_out": engine.devices_out,
            "group_reads": engine.group_reads,
            "prefetched": engine.prefetched,
            "prefetched_present": engine.prefetched_present,
            "prefetched_dropped": engine.prefetched_dropped,
            "lookup_reads": lookup_reads,
            "false_reads": engine.false_reads,
            "readmitted": engine.readmitted,
            "forgotten": engine.forgotten,
            "devices_uring": engine.devices_uring,
            "purge_rules": engine.rules,
            "device": {
                "reads": engine.device.reads,
                "writes": engine.device.writes,
                "read_bytes": engine.device.read_bytes,
                "written_bytes": engine.device.written_bytes,
            },
            "store": engine.store.word(),
            "connections_open": self.open(|worker| &worker.connections),
            "upstream_connections": { "busy": upstream.busy, "idle": upstream.idle },
            "tunnels_open": self.open(|worker| &worker.tunnels),
            "intercept": self.intercept(detail),
            "links": self.links(detail),
            "access_log_dropped": self.log.figures().dropped,
            "clock_suspect": self.clock.suspect(),
            "offline": self.line.is_down(),
            "resident_bytes": resident_bytes(),
            "uptime_seconds": now.saturating_sub(self.start_seconds),
            "version": VERSION,
        })
    }

    /// Results of interceptions, and the latest programs that refuse our certificates.
    fn intercept(&self, detail: Detail) -> Value {
        let now = Instant::now();
        let (count, latest) = self.intercept_state.refusals.refusers(REFUSERS_SHOWN, now);
        let latest: Vec<Value> = latest
            .into_iter()
            .filter(|_| detail == Detail::Names)
            .map(|refuser| {
                json!({
                    "client": refuser.client.to_string(),
                    "host": refuser.host,
                    "seconds_left": refuser.left.as_secs(),
                })
            })
            .collect();
        let handshakes = Handshake::ALL.iter().enumerate();
        let handshakes: serde_json::Map<_, _> = handshakes
            .map(|(at, (_, name))| {
                let count = self.metrics.sum(|worker| &worker.intercepted[at]);
                ((*name).to_owned(), count.into())
            })
            .collect();
        json!({
            "handshakes": handshakes,
            "verified_hosts": self.intercept_state.verified.len(),
            "refusing_clients": count,
            "refusing": latest,
        })
    }

    /// The engine's current figures.
    pub(crate) fn engine(&self) -> EngineFigures {
        (self.engine)()
    }

    /// What the dashboard shows beside the history.
    pub(crate) fn live(&self) -> Live {
        let now = self.clock.now().seconds();
        Live {
            version: VERSION,
            uptime_seconds: now.saturating_sub(self.start_seconds),
            engine: self.engine(),
            clock_suspect: self.clock.suspect(),
            connections: self.open(|worker| &worker.connections),
            tunnels: self.open(|worker| &worker.tunnels),
            upstream: (self.upstream)(),
            peers: self.metrics.peer_figures(),
            links: self.links(Detail::Names),
            intercept: self.intercept(Detail::Names),
            is_offline: self.line.is_down(),
            offline_mode: self.offline_mode(),
            authority_seconds_left: match self.metrics.authority_ends.load(Relaxed) {
                0 => None,
                end => Some(end.saturating_sub(now)),
            },
            resident_bytes: resident_bytes(),
        }
    }

    /// Whether the clock is suspect now.
    pub(crate) fn clock_suspect(&self) -> bool {
        self.clock.suspect()
    }

    /// Requests in total, and hits.
    pub(crate) fn requests(&self) -> Requests {
        let all = CLASSES
            .iter()
            .map(|(_, name)| self.class(name))
            .fold(0, u64::wrapping_add);
        Requests {
            hits: self.class("hit"),
            all,
        }
    }

    fn class(&self, name: &str) -> u64 {
        let at = CLASSES
            .iter()
            .position(|(_, intercept_state)| *intercept_state == name);
        at.map_or(0, |at| self.metrics.sum(|worker| &worker.requests[at]))
    }

    fn open(&self, which: fn(&super::WorkerMetrics) -> &Opened) -> u64 {
        // Closed before opened: an item that is opened in between counts as open, and never as
        // minus one.
        let closed = self.metrics.sum(|worker| &which(worker).closed);
        self.metrics
            .sum(|worker| &which(worker).opened)
            .saturating_sub(closed)
    }
}

/// The present state of the proxy, for the dashboard.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) version: &'static str,
    pub(crate) uptime_seconds: u64,
    pub(crate) engine: EngineFigures,
    pub(crate) clock_suspect: bool,
    /// Open connections of clients.
    pub(crate) connections: u64,
    /// Open tunnels.
    pub(crate) tunnels: u64,
    pub(crate) upstream: UpstreamFigures,
    pub(crate) peers: Vec<PeerFigures>,
    /// As in `/-/links`.
    pub(crate) links: Value,
    /// As in `/stats`.
    pub(crate) intercept: Value,
    /// Whether the line counts as down.
    pub(crate) is_offline: bool,
    pub(crate) offline_mode: Offline,
    /// Of the certificate authority; `None` without interception.
    pub(crate) authority_seconds_left: Option<u64>,
    /// Of the process, according to the kernel.
    pub(crate) resident_bytes: Option<u64>,
}

/// Number of requests, and of those served from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Answered from the store.
    pub(crate) hits: u64,
    /// All that were counted.
    pub(crate) all: u64,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition")
            .field("metrics", &self.metrics)
            .finish_non_exhaustive()
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (metrics, engine, log) = (&self.metrics, self.engine(), self.log.figures());
        let mut page = Page(encoder);

        page.info(
            "hashcache_build",
            "Version of HashCache",
            &[("version", VERSION)],
        )?;
        let names = CLASSES.iter().map(|(_, name)| (*name, self.class(name)));
        page.family("hashcache_requests", "Requests by result", "result", names)?;
        page.counter(
            "hashcache_plain_hits",
            "Hits of plain requests that memory answered on the shortest way",
            metrics.sum(|worker| &worker.plain_hits),
        )?;
        page.counter(
            "hashcache_client_bytes",
            "Bytes sent to clients, without tunnels",
            metrics.sum(|worker| &worker.client_bytes),
        )?;
        page.counter(
            "hashcache_origin_body_bytes",
            "Bytes of content received from upstream",
            metrics.sum(|worker| &worker.origin_body_bytes),
        )?;
        page.counter(
            "hashcache_origin_bytes",
            "Bytes received from upstream with heads, without tunnels",
            metrics.sum(|worker| &worker.origin_bytes),
        )?;
        page.counter(
            "hashcache_tunnel_bytes",
            "Bytes sent to clients through tunnels",
            metrics.sum(|worker| &worker.tunnel_bytes),
        )?;
        self.encode_durations(&mut page)?;
        let failures = Failure::SLUGS.iter().enumerate();
        let failures =
            failures.map(|(at, slug)| (*slug, metrics.sum(|worker| &worker.failures.0[at])));
        page.family(
            "hashcache_failures",
            "Failed requests by error",
            "error",
            failures,
        )?;
        let limits = Limit::ALL.iter().enumerate();
        let limits =
            limits.map(|(at, (_, name))| (*name, metrics.sum(|worker| &worker.limits[at])));
        page.family(
            "hashcache_limit_hits",
            "Refusals because a limit was reached, by limit",
            "limit",
            limits,
        )?;
        let purges = |at: usize| {
            metrics
                .purges()
                .each()
                .map(move |(name, counts)| (name, counts[at]))
        };
        page.family("hashcache_purges", "Hard purges by kind", "kind", purges(0))?;
        page.family(
            "hashcache_soft_purges",
            "Soft purges by kind",
            "kind",
            purges(1),
        )?;
        page.gauge(
            "hashcache_purge_rules",
            "Purge bans in effect; at most 4096",
            engine.rules,
        )?;
        page.gauge(
            "hashcache_connections_open",
            "Open connections from clients",
            self.open(|worker| &worker.connections),
        )?;
        page.counter(
            "hashcache_connections",
            "Connections accepted from clients",
            metrics.sum(|worker| &worker.connections.opened),
        )?;
        let upstream = (self.upstream)();
        page.gauges(
            "hashcache_upstream_connections",
            "Open connections to origins by state, without tunnels",
            "state",
            [("busy", upstream.busy), ("idle", upstream.idle)],
        )?;
        page.gauge(
            "hashcache_tunnels_open",
            "Open tunnels",
            self.open(|worker| &worker.tunnels),
        )?;
        page.counter(
            "hashcache_tunnels",
            "Tunnels opened",
            metrics.sum(|worker| &worker.tunnels.opened),
        )?;

        self.encode_intercept(&mut page)?;
        self.encode_icp(&mut page)?;
        if let Some(sites) = &self.sites {
            origins::encode(&mut page.0, &sites())?;
        }
        self.encode_htcp(&mut page)?;
        self.encode_summaries(&mut page)?;
        if let Some(view) = &self.links {
            links::encode(&mut page.0, &view().figures)?;
        }
        if let Some(figures) = &self.limiter {
            quotas::encode(&mut page.0, &figures())?;
        }

        page.gauge("hashcache_objects", "Stored objects", engine.objects)?;
        page.gauge(
            "hashcache_objects_exact",
            "1 if hashcache_objects is a count, 0 if it is an estimate",
            u64::from(engine.objects_exact),
        )?;
        page.gauge(
            "hashcache_index_bytes",
            "Bytes of memory for the index",
            engine.index_bytes,
        )?;
        page.gauge(
            "hashcache_index_bits_per_slot",
            "Bits of index memory per slot",
            bits_each(engine.index_bytes, engine.index_slots),
        )?;
        page.gauge(
            "hashcache_index_bits_per_object",
            "Bits of index memory per object in the index",
            bits_each(engine.index_bytes, engine.index_objects),
        )?;
        page.gauge(
            "hashcache_hot_bytes",
            "Bytes of memory for hot objects",
            engine.hot_bytes,
        )?;
        page.gauge(
            "hashcache_pending_bytes",
            "Bytes of memory for objects that are not on disk yet",
            engine.pending_bytes,
        )?;
        page.gauge(
            "hashcache_capacity_bytes",
            "Size of the cache in bytes, over all devices",
            engine.capacity_bytes,
        )?;
        page.gauge(
            "hashcache_store_degraded",
            "1 if a device failed and is out of service",
            u64::from(engine.store == super::StoreState::Degraded),
        )?;
        page.gauge(
            "hashcache_devices_out",
            "Devices that failed and are out of service",
            engine.devices_out,
        )?;
        page.gauge(
            "hashcache_devices_uring",
            "Devices read by io_uring instead of threads",
            engine.devices_uring,
        )?;
        page.counter(
            "hashcache_group_reads",
            "Reads of several records of a page group, or of one of more than 16 KiB",
            engine.group_reads,
        )?;
        page.counter(
            "hashcache_prefetched",
            "Objects made hot by such reads",
            engine.prefetched,
        )?;
        page.counter(
            "hashcache_prefetched_present",
            "Objects that such reads met and that were in memory already",
            engine.prefetched_present,
        )?;
        page.counter(
            "hashcache_prefetched_dropped",
            "Objects made hot by such reads that left memory before they were requested",
            engine.prefetched_dropped,
        )?;
        page.family(
            "hashcache_lookup_reads",
            "Reads of devices for lookups of grouped stores, by cause; rest and row in all stores",
            "cause",
            engine.lookup_reads.into_iter(),
        )?;
        page.counter(
            "hashcache_false_reads",
            "Lookups that read the record of another name, because it has an equal tag",
            engine.false_reads,
        )?;
        page.counter(
            "hashcache_readmitted",
            "Objects kept when the log overwrote its oldest part",
            engine.readmitted,
        )?;
        page.counter(
            "hashcache_forgotten",
            "Devices that forgot older objects because removes could not be read or had no room",
            engine.forgotten,
        )?;
        page.counter(
            "hashcache_device_reads",
            "Reads from devices",
            engine.device.reads,
        )?;
        page.counter(
            "hashcache_device_writes",
            "Writes to devices",
            engine.device.writes,
        )?;
        page.counter(
            "hashcache_device_read_bytes",
            "Bytes read from devices",
            engine.device.read_bytes,
        )?;
        page.counter(
            "hashcache_device_written_bytes",
            "Bytes written to devices",
            engine.device.written_bytes,
        )?;

        page.counter(
            "hashcache_access_log_lines",
            "Lines written to the access log",
            log.written,
        )?;
        page.counter(
            "hashcache_access_log_dropped",
            "Lines dropped from the access log",
            log.dropped,
        )?;
        page.counter(
            "hashcache_access_log_failures",
            "Failed writes to the access log",
            log.failures,
        )?;
        page.gauge(
            "hashcache_access_log_stopped",
            "1 if the access log has stopped after a failed write",
            u64::from(log.stopped),
        )?;
        page.gauge(
            "hashcache_config_reload_success",
            "1 if the last configuration reload succeeded",
            u64::from(!metrics.reload_failed.load(Relaxed)),
        )?;
        page.gauge(
            "hashcache_clock_suspect",
            "1 if the proxy's clock may be wrong",
            u64::from(self.clock.suspect()),
        )?;
        page.gauge(
            "hashcache_offline",
            "1 while the line to the Internet counts as down",
            u64::from(self.line.is_down()),
        )?;
        if let Some(bytes) = resident_bytes() {
            page.gauge(
                "process_resident_memory_bytes",
                "Resident memory of the process in bytes",
                bytes,
            )?;
        }
        page.gauge(
            "process_start_time_seconds",
            "Start time of the process in seconds since 1970",
            self.start_seconds,
        )
    }
}

impl Exposition {
    fn encode_intercept(&self, page: &mut Page<'_>) -> fmt::Result {
        let metrics = &self.metrics;
        let handshakes = Handshake::ALL.iter().enumerate();
        page.family(
            "hashcache_intercepted",
            "TLS handshakes with clients of intercepted hosts, by result",
            "handshake",
            handshakes.map(|(at, (_, name))| (*name, metrics.sum(|it| &it.intercepted[at]))),
        )?;
        let reasons = Reason::ALL.iter().enumerate();
        page.family(
            "hashcache_not_intercepted",
            "Tunnels that were not intercepted, by reason",
            "reason",
            reasons.map(|(at, (_, name))| (*name, metrics.sum(|it| &it.not_intercepted[at]))),
        )?;
        let (refusing, _) = self.intercept_state.refusals.refusers(0, Instant::now());
        page.gauge(
            "hashcache_refusing_clients",
            "Clients that refuse the proxy's certificate for a host and get tunnels",
            refusing as u64,
        )?;
        page.gauge(
            "hashcache_verified_hosts",
            "Hosts whose certificate was verified within a week",
            self.intercept_state.verified.len() as u64,
        )?;
        match metrics.authority_ends.load(Relaxed) {
            0 => Ok(()),
            end => page.gauge(
                "hashcache_ca_expires_timestamp_seconds",
                "Expiry of the certificate authority in seconds since 1970",
                end,
            ),
        }
    }

    fn encode_icp(&self, page: &mut Page<'_>) -> fmt::Result {
        let icp = self.metrics.icp();
        page.counter(
            "hashcache_icp_queries",
            "ICP queries sent to peers",
            icp.queries(),
        )?;
        page.counter(
            "hashcache_icp_timeouts",
            "ICP queries that got no reply in time",
            icp.timeouts(),
        )?;
        page.family(
            "hashcache_icp_replies",
            "ICP replies of peers to our queries, by reply",
            "reply",
            icp.replies_received(),
        )?;
        page.family(
            "hashcache_icp_answers",
            "ICP replies sent to peers, by reply",
            "reply",
            icp.replies_sent(),
        )?;
        page.family(
            "hashcache_icp_ignored",
            "ICP datagrams that got no reply, by reason",
            "reason",
            icp.datagrams_ignored(),
        )?;
        page.counter(
            "hashcache_peer_false_hits",
            "Responses that siblings had by ICP, HTCP or their digest, and then did not give",
            self.metrics.sum(|worker| &worker.false_hits),
        )
    }

    fn encode_summaries(&self, page: &mut Page<'_>) -> fmt::Result {
        let peers = self.metrics.summary_peers();
        let now = Instant::now();
        let known: Vec<_> = peers
            .iter()
            .filter_map(|peer| Some((peer.name(), peer.learned.size_and_age(now)?)))
            .collect();
        page.by_peer(
            "hashcache_peer_digest_entries",
            "Objects in the cache digest of the peer",
            MetricType::Gauge,
            known
                .iter()
                .map(|(name, (entries, _))| (*name, u64::from(*entries))),
        )?;
        page.by_peer(
            "hashcache_peer_digest_age_seconds",
            "Seconds since the cache digest of the peer was fetched or found unchanged",
            MetricType::Gauge,
            known.iter().map(|(name, (_, age))| (*name, age.as_secs())),
        )?;
        let counted = |count: fn(LearnedCounts) -> u64| {
            let peers = peers.iter();
            peers.map(move |peer| (peer.name(), count(peer.learned.counts())))
        };
        page.by_peer(
            "hashcache_peer_digest_false_hits",
            "Requests to the peer whose response it had by its digest, and did not give",
            MetricType::Counter,
            counted(|it| it.false_hits),
        )?;
        page.by_peer(
            "hashcache_peer_updates_sent",
            "Updates of our summary sent to the peer",
            MetricType::Counter,
            counted(|it| it.updates_sent),
        )?;
        page.by_peer(
            "hashcache_peer_updates_received",
            "Updates of the peer's summary that were applied",
            MetricType::Counter,
            counted(|it| it.updates_received),
        )?;
        page.by_peer(
            "hashcache_peer_updates_missed",
            "Updates of the peer's summary that came after a gap, so that its digest is fetched",
            MetricType::Counter,
            counted(|it| it.updates_missed),
        )
    }

    fn encode_htcp(&self, page: &mut Page<'_>) -> fmt::Result {
        let htcp = self.metrics.htcp();
        page.counter(
            "hashcache_htcp_queries",
            "HTCP queries (TST) sent to peers",
            htcp.queries(),
        )?;
        page.counter(
            "hashcache_htcp_timeouts",
            "HTCP queries that got no reply in time",
            htcp.timeouts(),
        )?;
        page.family(
            "hashcache_htcp_replies",
            "HTCP replies of peers to our queries, by reply",
            "reply",
            htcp.replies_received(),
        )?;
        page.family(
            "hashcache_htcp_answers",
            "HTCP replies sent to peers, by reply",
            "reply",
            htcp.replies_sent(),
        )?;
        page.family(
            "hashcache_htcp_ignored",
            "HTCP datagrams that had no effect and got no reply, by reason",
            "reason",
            htcp.datagrams_ignored(),
        )?;
        page.family(
            "hashcache_htcp_clears",
            "CLR requests of peers, by result",
            "result",
            htcp.clears_received(),
        )?;
        page.family(
            "hashcache_htcp_clears_sent",
            "CLR requests sent to peers after a PURGE, by result",
            "result",
            htcp.clears_sent(),
        )
    }

    fn encode_durations(&self, page: &mut Page<'_>) -> fmt::Result {
        let bounds = DURATION_BOUNDS.iter().map(std::time::Duration::as_secs_f64);
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .enumerate()
            .map(|(at, bound)| (bound, self.metrics.sum(|worker| &worker.durations[at])))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let ns = self.metrics.sum(|worker| &worker.duration_ns);
        let sum = std::time::Duration::from_nanos(ns).as_secs_f64();
        page.0
            .encode_descriptor(
                "hashcache_request_duration_seconds",
                "Seconds from the first byte of a request to the last byte of its response",
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// The encoder with a method for each kind of metric.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    fn by_peer<'a>(
        &mut self,
        name: &str,
        help: &str,
        metric_type: MetricType,
        values: impl Iterator<Item = (&'a str, u64)>,
    ) -> fmt::Result {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut family = self.0.encode_descriptor(name, help, None, metric_type)?;
        for (peer, value) in values {
            let labels = [("peer", peer)];
            let mut line = family.encode_family(&labels)?;
            match metric_type {
                MetricType::Counter => line.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
                _ => line.encode_gauge(&value)?,
            }
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (word, value) in values {
            family
                .encode_family(&[(label, word)])?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    fn info(&mut self, name: &str, help: &str, labels: &impl EncodeLabelSet) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Info)?
            .encode_info(labels)
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in values {
            family
                .encode_family(&[(label, value)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

/// Bits per item; 0 without items.
fn bits_each(bytes: u64, count: u64) -> f64 {
    if count == 0 {
        0.0
    } else {
        bytes as f64 * 8.0 / count as f64
    }
}

/// Our resident memory according to the kernel, if known.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Keeps the page small, whatever clients do.
const REFUSERS_SHOWN: usize = 64;

const VERSION: &str = env!("CARGO_PKG_VERSION");
