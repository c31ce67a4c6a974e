//! What the process knows that the next one shall know too: the time, verified hosts, the history,
//! the usage of quotas, tables of chunks.
//!
//! Made by `load`; `server` has it saved from time to time, and at the end.

use std::io;
use std::sync::Arc;

use hashcache_access::quota::Limiter;
use hashcache_base::clock::Clock;
use hashcache_base::task::spawn;
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_link::chunk_tables::ChunkTables;
use tracing::warn;

use crate::history::History;

/// See the module's head.
pub(super) struct Saved {
    pub(super) clock: Arc<Clock>,
    pub(super) verified: Arc<VerifiedHosts>,
    pub(super) history: Arc<History>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) chunks: Arc<ChunkTables>,
}

impl Saved {
    /// Saves all of it from time to time. Called within a runtime.
    pub(super) fn keep(&self) {
        spawn(Arc::clone(&self.clock).keep());
        spawn(Arc::clone(&self.verified).keep());
        spawn(Arc::clone(&self.history).keep());
        spawn(Arc::clone(&self.limiter).keep());
        spawn(Arc::clone(&self.chunks).keep());
    }

    /// Saves all of it now.
    pub(super) fn persist(&self) {
        warn_unless_saved("the time", self.clock.persist());
        warn_unless_saved("the verified hosts", self.verified.persist());
        warn_unless_saved("the history", self.history.persist());
        warn_unless_saved("the usage of quotas", self.limiter.persist());
        warn_unless_saved("the tables of chunks", self.chunks.persist());
    }
}

fn warn_unless_saved(what: &str, saved: io::Result<()>) {
    if let Err(error) = saved {
        warn!(%error, what, "not saved");
    }
}
