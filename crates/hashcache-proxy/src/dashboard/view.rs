//! Snapshot for the dashboard.
//!
//! Made by `Dashboard` at most once a second; read by `page` and `json`.

use hashcache_base::sort::sort_by_key;
use tokio::time::Instant;

use super::Buttons;
use crate::history::Overview;
use crate::history::counts::{Counts, Table};
use crate::history::name::Name;
use crate::metrics::Live;

/// Snapshot for the dashboard.
#[derive(Debug)]
pub(super) struct View {
    pub(super) taken: Instant,
    pub(super) live: Live,
    pub(super) overview: Overview,
    pub(super) buttons: Buttons,
}

/// Returns the memory by purpose, and the free memory.
///
/// The index is not in the memory that the engine's limit and use are about.
pub(super) fn memory(view: &View) -> [(&'static str, u64); 6] {
    let engine = &view.live.engine;
    let used = engine.memory_used_bytes;
    let stored = engine.hot_bytes.saturating_add(engine.pending_bytes);
    let free = engine
        .memory_limit_bytes
        .saturating_sub(engine.memory_aside_bytes);
    [
        ("index", engine.index_bytes),
        ("hot objects", engine.hot_bytes),
        ("pending writes", engine.pending_bytes),
        ("connections and transfers", used.saturating_sub(stored)),
        ("program", engine.memory_aside_bytes),
        ("free", free.saturating_sub(used)),
    ]
}

/// Returns sites with origin failures, most failures first.
pub(super) fn failing(sites: &Table<Name>) -> Vec<(Name, Counts)> {
    let (mut lines, _) = sites.top(usize::MAX);
    lines.retain(|(_, counts)| counts.failures > 0);
    sort_by_key(&mut lines, |(_, counts)| std::cmp::Reverse(counts.failures));
    lines.truncate(SHOWN_ORIGINS);
    lines
}

/// Returns sites with some answered requests, the slowest origin first.
pub(super) fn slowest(sites: &Table<Name>) -> Vec<(Name, Counts)> {
    let (mut lines, _) = sites.top(usize::MAX);
    lines.retain(|(_, counts)| counts.answered >= ANSWERED_MIN);
    sort_by_key(&mut lines, |(_, counts)| {
        std::cmp::Reverse(mean_wait_us(counts))
    });
    lines.truncate(SHOWN_ORIGINS);
    lines
}

/// Returns the mean time to the first byte, microseconds.
pub(super) fn mean_wait_us(counts: &Counts) -> u64 {
    counts.wait_us.checked_div(counts.answered).unwrap_or(0)
}

/// Maximum lines in tables for sites and clients.
pub(super) const SHOWN: usize = 10;
/// Maximum lines in tables for origins.
const SHOWN_ORIGINS: usize = 6;
/// A mean of fewer answers is not meaningful.
const ANSWERED_MIN: u64 = 3;
