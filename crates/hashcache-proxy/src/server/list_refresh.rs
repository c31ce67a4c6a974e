//! Reads the lists of hosts on a separate thread and not on the thread that handles signals,
//! because a large list takes seconds on a small machine.
//!
//! `server` calls it at a reload, and runs it as a task that checks the files once a minute. The
//! threads do not belong to the runtime, so the process can stop without waiting for a list.

use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_access::ListSettings;
use hashcache_access::lists::{ListError, Lists, Look};
use tokio::sync::oneshot;
use tracing::warn;

use crate::worker::Common;

/// Checks the files once a minute and reads the changed files, until the process stops.
pub(super) async fn keep_lists(common: Arc<Common>, cache: Cache) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let lists = Arc::clone(&common.live().lists);
        let (cache, look) = (cache.clone(), Look::Minute(common.now()));
        if beside(move || lists.refresh(&cache, look)).await.is_none() {
            warn!("lists not read again");
        }
    }
}

/// Loads the lists of new settings; unchanged lists are kept from the settings in effect. `None` if
/// no thread can be started.
pub(super) async fn load(
    settings: &[ListSettings],
    common: &Common,
    cache: &Cache,
) -> Option<Result<Lists, ListError>> {
    let known = Arc::clone(&common.live().lists);
    let (settings, cache) = (settings.to_vec(), cache.clone());
    beside(move || Lists::load(&settings, &cache, &known)).await
}

/// Runs `read` on a separate thread. If the caller stops waiting, the thread still finishes.
async fn beside<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("lists".to_owned());
    thread.spawn(move || drop(sender.send(read()))).ok()?;
    receiver.await.ok()
}

const LOOK_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn nobody_has_to_wait_for_a_list_to_its_end() {
        let (hold, held) = mpsc::channel::<()>();
        let (ended, ended_signal) = mpsc::channel::<()>();
        let reading = beside(move || {
            let _ = held.recv();
            drop(ended);
        });
        let other = async { 1 };
        tokio::select! {
            biased;
            _ = reading => panic!("it is held"),
            _ = other => {}
        }
        drop(hold);
        assert!(ended_signal.recv().is_err());
        assert_eq!(beside(|| 7).await, Some(7));
    }
}
