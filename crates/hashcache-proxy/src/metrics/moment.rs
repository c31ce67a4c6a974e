//! Snapshot of all metric sources, for one page.
//!
//! Made by `exposition` for each page. Data that only some pages need is read on first use.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashcache_access::quota::LimiterFigures;
use hashcache_upstream::UpstreamFigures;
use hashcache_upstream::peer::Peer;

use super::exposition::Exposition;
use super::links::LinkFigure;
use super::origins::{self, ShownOrigin};
use super::{EngineFigures, Opened, WorkerMetrics};
use crate::access_log::LogFigures;

/// Snapshot of all metric sources, for one page.
pub(super) struct Moment<'a> {
    pub(super) exposition: &'a Exposition,
    pub(super) engine: EngineFigures,
    pub(super) upstream: UpstreamFigures,
    pub(super) log: LogFigures,
    origins: OnceCell<Vec<ShownOrigin>>,
    summary_peers: OnceCell<Vec<Arc<Peer>>>,
    links: OnceCell<Vec<LinkFigure>>,
    limiter: OnceCell<LimiterFigures>,
}

impl<'a> Moment<'a> {
    pub(super) fn new(exposition: &'a Exposition) -> Self {
        Self {
            exposition,
            engine: exposition.engine(),
            upstream: (exposition.upstream)(),
            log: exposition.log.figures(),
            origins: OnceCell::new(),
            summary_peers: OnceCell::new(),
            links: OnceCell::new(),
            limiter: OnceCell::new(),
        }
    }

    /// Sums a counter over all workers.
    pub(super) fn sum(&self, count: impl Fn(&WorkerMetrics) -> &AtomicU64) -> u64 {
        self.exposition.metrics.sum(count)
    }

    /// Sums the counters for `names` over all workers.
    pub(super) fn sums(
        &self,
        names: impl IntoIterator<Item = &'static str>,
        counters: impl Fn(&WorkerMetrics) -> &[AtomicU64],
    ) -> Vec<(&'static str, u64)> {
        let names = names.into_iter().enumerate();
        let sum = |at| self.sum(|worker| &counters(worker)[at]);
        names.map(|(at, name)| (name, sum(at))).collect()
    }

    /// Returns the open connections or tunnels, over all workers.
    pub(super) fn open(&self, which: fn(&WorkerMetrics) -> &Opened) -> u64 {
        self.exposition.open(which)
    }

    /// Returns the sites' origins.
    pub(super) fn origins(&self) -> &[ShownOrigin] {
        self.origins.get_or_init(|| {
            let sites = self.exposition.sites.as_ref();
            sites.map_or_else(Vec::new, |sites| origins::shown(&sites()))
        })
    }

    /// Returns the peers that exchange summaries.
    pub(super) fn summary_peers(&self) -> &[Arc<Peer>] {
        let metrics = &self.exposition.metrics;
        self.summary_peers.get_or_init(|| metrics.summary_peers())
    }

    pub(super) fn links(&self) -> &[LinkFigure] {
        self.links.get_or_init(|| {
            let links = self.exposition.links.as_ref();
            links.map_or_else(Vec::new, |links| links().figures)
        })
    }

    /// Returns quotas and rates; `None` while no limit was named.
    pub(super) fn limiter(&self) -> Option<&LimiterFigures> {
        let figures = self.limiter.get_or_init(|| {
            let limiter = self.exposition.limiter.as_ref();
            limiter.map_or_else(LimiterFigures::default, |limiter| limiter())
        });
        Some(figures).filter(|figures| !figures.limits.is_empty())
    }

    /// Returns the certificate authority's expiry, seconds since 1970.
    pub(super) fn authority_ends(&self) -> Option<u64> {
        let end = self.exposition.metrics.authority_ends.load(Relaxed);
        Some(end).filter(|end| *end > 0)
    }
}
