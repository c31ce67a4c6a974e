//! State that outlives the process: the time, verified hosts, the history, the usage of quotas,
//! chunk tables.
//!
//! Made by `load`. `server` saves it periodically and when the process stops.

use std::sync::Arc;

use hashcache_access::quota::Limiter;
use hashcache_base::clock::Clock;
use hashcache_base::task::spawn;
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_link::chunk_tables::ChunkTables;
use tracing::warn;

use crate::history::History;

/// State files that are loaded at the start and written while the process runs.
pub(super) struct Saved {
    pub(super) clock: Arc<Clock>,
    pub(super) verified: Arc<VerifiedHosts>,
    pub(super) history: Arc<History>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) chunks: Arc<ChunkTables>,
}

impl Saved {
    /// Starts the tasks that save each state file periodically. Call it within a runtime.
    pub(super) fn keep(&self) {
        spawn(Arc::clone(&self.clock).keep());
        spawn(Arc::clone(&self.verified).keep());
        spawn(Arc::clone(&self.history).keep());
        spawn(Arc::clone(&self.limiter).keep());
        spawn(Arc::clone(&self.chunks).keep());
    }

    /// Saves each state file now. Errors are only logged, because the process stops anyway.
    pub(super) fn persist(&self) {
        if let Err(error) = self.clock.persist() {
            warn!(%error, "time not saved");
        }
        if let Err(error) = self.verified.persist() {
            warn!(%error, "verified hosts not saved");
        }
        if let Err(error) = self.history.persist() {
            warn!(%error, "history not saved");
        }
        if let Err(error) = self.limiter.persist() {
            warn!(%error, "usage of quotas not saved");
        }
        if let Err(error) = self.chunks.persist() {
            warn!(%error, "tables of chunks not saved");
        }
    }
}
