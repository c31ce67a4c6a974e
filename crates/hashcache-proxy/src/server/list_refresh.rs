//! Keeps the lists of hosts up to date with their files.
//!
//! Started by `server`. Reading runs on a thread of its own: a large list takes seconds on a small
//! machine.

use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use tracing::warn;

use crate::lists::Look;
use crate::worker::Common;

/// Looks at the files once a minute, and reads what has changed, until the process ends.
pub(super) async fn keep_lists(common: Arc<Common>, cache: Cache) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let lists = Arc::clone(&common.live().lists);
        let (cache, look) = (cache.clone(), Look::Minute(common.now()));
        let reading = tokio::task::spawn_blocking(move || {
            lists.refresh(&cache, look);
        });
        if reading.await.is_err() {
            warn!("lists not read again");
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_mins(1);
