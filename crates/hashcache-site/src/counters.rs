//! Counters for the origins of a site, for `/metrics`.
//!
//! `live` counts here, `metrics` in the proxy reads. An origin keeps its counters over a reload,
//! even if the site has changed.
//!
//! Cost: a few relaxed additions per forwarded request; none per hit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The counters for an origin of a site.
#[derive(Debug, Default)]
pub(crate) struct OriginCounters {
    requests: AtomicU64,
    failures: AtomicU64,
    outs: AtomicU64,
    responses: AtomicU64,
    response_ns: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginFigures {
    /// Requests sent to the origin, including failed requests.
    pub requests: u64,
    /// Requests that count as failures for the origin's health.
    pub failures: u64,
    /// How often the origin was put out of service.
    pub outs: u64,
    /// True if the origin is out of service now.
    pub is_out: bool,
    /// True if the last request failed or the response was a server error.
    pub is_failing: bool,
    /// Response heads received.
    pub responses: u64,
    /// The sum of the times from a request to the response head.
    pub response_time: Duration,
}

impl OriginFigures {
    /// The sum of two origins' figures.
    pub fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.wrapping_add(other.requests),
            failures: self.failures.wrapping_add(other.failures),
            outs: self.outs.wrapping_add(other.outs),
            is_out: self.is_out || other.is_out,
            is_failing: self.is_failing || other.is_failing,
            responses: self.responses.wrapping_add(other.responses),
            response_time: self.response_time.saturating_add(other.response_time),
        }
    }
}

impl OriginCounters {
    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(super) fn failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    pub(super) fn out(&self) {
        self.outs.fetch_add(1, Relaxed);
    }

    pub(super) fn response(&self, time: Duration) {
        self.responses.fetch_add(1, Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.response_ns.fetch_add(ns, Relaxed);
    }

    /// The counters now. The flags are true if the origin is out of service, and if it is failing.
    pub(super) fn figures(&self, (is_out, is_failing): (bool, bool)) -> OriginFigures {
        OriginFigures {
            requests: self.requests.load(Relaxed),
            failures: self.failures.load(Relaxed),
            outs: self.outs.load(Relaxed),
            is_out,
            is_failing,
            responses: self.responses.load(Relaxed),
            response_time: Duration::from_nanos(self.response_ns.load(Relaxed)),
        }
    }
}
