//! Rates per second, from two views of the figures.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::view::View;
use crate::history::counts::Totals;

/// A moment's figures, and the change since the previous moment.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) view: Arc<View>,
    pub(super) rates: Rates,
    /// Requests per second at the latest moments, the oldest first.
    pub(super) course: Vec<f64>,
}

impl Moment {
    /// Returns the moment for `view`, after `earlier`.
    pub(super) fn after(earlier: Option<&Self>, view: View) -> Self {
        let earlier = earlier.filter(|it| view.taken - it.view.taken <= GAP_MAX);
        let Some(earlier) = earlier else {
            return Self {
                rates: Rates::recent(&view),
                view: Arc::new(view),
                course: Vec::new(),
            };
        };
        let rates = Rates::between(&earlier.view, &view);
        let kept = earlier.course.len().saturating_sub(COURSE - 1);
        let mut course = earlier.course[kept..].to_vec();
        course.push(rates.requests);
        Self {
            rates,
            view: Arc::new(view),
            course,
        }
    }
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) client_bytes: f64,
    pub(super) origin_bytes: f64,
    /// Device rates; `None` if not known.
    pub(super) device: Option<DeviceRates>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceRates {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
}

impl Rates {
    pub(super) fn to_json(self) -> Value {
        let mut rates = json!({
            "requests": self.requests,
            "client_bytes": self.client_bytes,
            "origin_bytes": self.origin_bytes,
        });
        if let Some(device) = self.device {
            rates["reads"] = device.reads.into();
            rates["read_bytes"] = device.read_bytes.into();
            rates["writes"] = device.writes.into();
            rates["written_bytes"] = device.written_bytes.into();
        }
        rates
    }

    /// Returns the rates for the last minute.
    fn recent(view: &View) -> Self {
        let (totals, time) = &view.overview.recent;
        Self::new(totals, time.as_secs_f64())
    }

    /// Returns the rates between two moments.
    fn between(earlier: &View, view: &View) -> Self {
        let seconds = (view.taken - earlier.taken).as_secs_f64();
        let before = &earlier.overview.since_start;
        let (old, new) = (&earlier.live.engine.device, &view.live.engine.device);
        let each = |old: u64, new: u64| per_second(new.saturating_sub(old), seconds);
        Self {
            device: Some(DeviceRates {
                reads: each(old.reads, new.reads),
                writes: each(old.writes, new.writes),
                read_bytes: each(old.read_bytes, new.read_bytes),
                written_bytes: each(old.written_bytes, new.written_bytes),
            }),
            ..Self::new(&view.overview.since_start.since(before), seconds)
        }
    }

    fn new(totals: &Totals, seconds: f64) -> Self {
        Self {
            requests: per_second(totals.requests(), seconds),
            client_bytes: per_second(totals.client_bytes, seconds),
            origin_bytes: per_second(totals.origin_bytes, seconds),
            device: None,
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

/// If the previous moment is older, rates for the last minute are shown.
const GAP_MAX: Duration = Duration::from_secs(10);
/// Number of moments in `course`.
const COURSE: usize = 90;
