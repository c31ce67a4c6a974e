//! Outputs the figures: OpenMetrics for `/metrics`, JSON for `/stats`.
//!
//! Called by `admin`, and by `page` for the few figures on the landing page. All work is done at
//! the time of a request.
//!
//! Invariant: names and keys are part of the interface; new ones may be added, but an existing one
//! never changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hashcache_access::quota::LimiterFigures;
use hashcache_base::clock::Clock;
use hashcache_intercept::InterceptState;
use hashcache_site::live::LiveSites;
use hashcache_upstream::UpstreamFigures;
use hashcache_upstream::offline::{Line, Offline};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::figures::{self, resident_bytes};
use super::links::{self, LinkView};
use super::moment::Moment;
use super::table::{self, Figure};
use super::{
    CLASSES, DURATION_BOUNDS, EngineFigures, Limit, Metrics, Opened, PeerFigures, origins, peers,
    quotas,
};
use crate::access_log::AccessLogger;

/// Reads the engine's figures; called at every scrape.
type AskEngine = dyn Fn() -> EngineFigures + Send + Sync;
/// Reads how many connections to origins exist; called at every scrape.
type AskUpstream = dyn Fn() -> UpstreamFigures + Send + Sync;

/// Reads the links; called at every scrape.
type AskLinks = dyn Fn() -> LinkView + Send + Sync;

/// Returns the sites in effect; called at every scrape.
type AskSites = dyn Fn() -> Arc<LiveSites> + Send + Sync;

/// Reads how quotas and rates are used; called at every scrape.
type AskLimiter = dyn Fn() -> LimiterFigures + Send + Sync;

/// Level of detail on a page with figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Also names: clients and the sites that they request.
    Names,
    /// Only sums.
    Figures,
}

/// Sources for all figures.
#[derive(Clone)]
pub(crate) struct Exposition {
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<Clock>,
    pub(super) log: Arc<AccessLogger>,
    engine: Arc<AskEngine>,
    pub(super) upstream: Arc<AskUpstream>,
    pub(super) intercept_state: Arc<InterceptState>,
    pub(super) sites: Option<Arc<AskSites>>,
    pub(super) links: Option<Arc<AskLinks>>,
    pub(super) limiter: Option<Arc<AskLimiter>>,
    pub(super) line: Arc<Line>,
    pub(super) start_seconds: u64,
}

impl Exposition {
    /// Creates an exposition from these sources; the start time is now.
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

    /// Adds the interception results.
    pub(crate) fn with_intercept_state(self, intercept_state: Arc<InterceptState>) -> Self {
        Self {
            intercept_state,
            ..self
        }
    }

    /// Adds the line to the Internet.
    pub(crate) fn with_line(self, line: Arc<Line>) -> Self {
        Self { line, ..self }
    }

    /// Adds the sites' origins.
    pub(crate) fn with_sites(
        self,
        sites: impl Fn() -> Arc<LiveSites> + Send + Sync + 'static,
    ) -> Self {
        Self {
            sites: Some(Arc::new(sites)),
            ..self
        }
    }

    /// Adds the links.
    pub(crate) fn with_links(self, links: impl Fn() -> LinkView + Send + Sync + 'static) -> Self {
        Self {
            links: Some(Arc::new(links)),
            ..self
        }
    }

    /// Adds quotas and rates.
    pub(crate) fn with_limiter(
        self,
        limiter: impl Fn() -> LimiterFigures + Send + Sync + 'static,
    ) -> Self {
        Self {
            limiter: Some(Arc::new(limiter)),
            ..self
        }
    }

    /// Returns the setting for the line: up, down, or detected.
    pub(crate) fn offline_mode(&self) -> Offline {
        self.line.regarded()
    }

    /// Returns the object for `/-/links`.
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

    /// Returns the text for `/metrics`.
    pub(crate) fn openmetrics(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::with_capacity(16 << 10);
        text::encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Returns the object for `/stats`.
    pub(crate) fn stats(&self, detail: Detail) -> Value {
        let moment = Moment::new(self);
        let mut stats = Map::new();
        for figure in figures() {
            figure.write_to(&mut stats, &moment);
        }
        let now = self.clock.now().seconds();
        let others = [
            ("store", moment.engine.store.word().into()),
            ("intercept.refusing", self.refusing(detail)),
            ("links", self.links(detail)),
            (
                "uptime_seconds",
                now.saturating_sub(self.start_seconds).into(),
            ),
            ("version", VERSION.into()),
        ];
        for (path, value) in others {
            table::insert(&mut stats, path, value);
        }
        Value::Object(stats)
    }

    /// Returns how many clients refuse the proxy's certificate for a host.
    pub(super) fn refusing_clients(&self) -> u64 {
        let (count, _) = self.intercept_state.refusals.refusers(0, Instant::now());
        count as u64
    }

    /// Returns the latest client programs that refuse the proxy's certificates.
    fn refusing(&self, detail: Detail) -> Value {
        let now = Instant::now();
        let (_, latest) = self.intercept_state.refusals.refusers(REFUSERS_SHOWN, now);
        let latest = latest.into_iter().filter(|_| detail == Detail::Names);
        let latest = latest.map(|refuser| {
            json!({
                "client": refuser.client.to_string(),
                "host": refuser.host,
                "seconds_left": refuser.left.as_secs(),
            })
        });
        latest.collect()
    }

    /// Returns the interception results, as in `/stats`.
    fn intercept(&self, detail: Detail) -> Value {
        let (moment, mut stats) = (Moment::new(self), Map::new());
        let figures = figures().filter(|figure| figure.is_below("intercept."));
        figures.for_each(|figure| figure.write_to(&mut stats, &moment));
        table::insert(&mut stats, "intercept.refusing", self.refusing(detail));
        stats.remove("intercept").unwrap_or_default()
    }

    /// Returns the engine's current figures.
    pub(crate) fn engine(&self) -> EngineFigures {
        (self.engine)()
    }

    /// Returns the figures that the dashboard shows beside the history.
    pub(crate) fn live(&self) -> Live {
        let now = self.clock.now().seconds();
        Live {
            version: VERSION,
            uptime_seconds: now.saturating_sub(self.start_seconds),
            engine: self.engine(),
            clock_suspect: self.clock.suspect(),
            connections: self.open(|worker| &worker.connections),
            tunnels: self.open(|worker| &worker.tunnels),
            too_large: self
                .metrics
                .sum(|worker| &worker.limits[Limit::MaxObjectSize as usize]),
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

    /// Returns true if the clock is suspect now.
    pub(crate) fn clock_suspect(&self) -> bool {
        self.clock.suspect()
    }

    /// Counts all requests, and hits.
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

    pub(super) fn open(&self, which: fn(&super::WorkerMetrics) -> &Opened) -> u64 {
        // Read closed before opened, so that an item that is opened in between counts as open, and
        // the result is never negative.
        let closed = self.metrics.sum(|worker| &which(worker).closed);
        self.metrics
            .sum(|worker| &which(worker).opened)
            .saturating_sub(closed)
    }
}

/// The proxy's current state, for the dashboard.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) version: &'static str,
    pub(crate) uptime_seconds: u64,
    pub(crate) engine: EngineFigures,
    pub(crate) clock_suspect: bool,
    /// Open client connections.
    pub(crate) connections: u64,
    /// Open tunnels.
    pub(crate) tunnels: u64,
    /// Responses that were not stored because they are larger than `max_object_size`.
    pub(crate) too_large: u64,
    pub(crate) upstream: UpstreamFigures,
    pub(crate) peers: Vec<PeerFigures>,
    /// As in `/-/links`.
    pub(crate) links: Value,
    /// As in `/stats`.
    pub(crate) intercept: Value,
    /// True while the line counts as down.
    pub(crate) is_offline: bool,
    pub(crate) offline_mode: Offline,
    /// Time until the certificate authority expires; `None` without interception.
    pub(crate) authority_seconds_left: Option<u64>,
    /// The process's resident memory, according to the kernel.
    pub(crate) resident_bytes: Option<u64>,
}

/// Count of all requests, and count of requests that were served from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Answered from the store.
    pub(crate) hits: u64,
    /// All counted requests.
    pub(crate) all: u64,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition")
            .field("metrics", &self.metrics)
            .finish_non_exhaustive()
    }
}

/// All figures, in the order of `/metrics`.
fn figures() -> impl Iterator<Item = &'static Figure> {
    let all = [
        figures::TRAFFIC,
        peers::ICP,
        origins::FIGURES,
        peers::HTCP,
        peers::DIGESTS,
        links::FIGURES,
        quotas::FIGURES,
        figures::ENGINE,
        figures::PROCESS,
    ];
    all.into_iter().flatten()
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let moment = Moment::new(self);
        encoder
            .encode_descriptor(
                "hashcache_build",
                "Version of HashCache",
                None,
                MetricType::Info,
            )?
            .encode_info(&[("version", VERSION)])?;
        self.encode_durations(&mut encoder)?;
        figures().try_for_each(|figure| figure.encode(&mut encoder, &moment))
    }
}

impl Exposition {
    fn encode_durations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let bounds = DURATION_BOUNDS.iter().map(std::time::Duration::as_secs_f64);
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .enumerate()
            .map(|(at, bound)| (bound, self.metrics.sum(|worker| &worker.durations[at])))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let ns = self.metrics.sum(|worker| &worker.duration_ns);
        let sum = std::time::Duration::from_nanos(ns).as_secs_f64();
        encoder
            .encode_descriptor(
                "hashcache_request_duration_seconds",
                "Seconds from the first byte of a request to the last byte of its response",
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// Maximum refusing clients on the page, so that it stays small whatever clients do.
const REFUSERS_SHOWN: usize = 64;

const VERSION: &str = env!("CARGO_PKG_VERSION");
