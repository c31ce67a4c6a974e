//! Reads the lists of hosts away from the thread that handles signals: a large list takes seconds
//! on a small machine.
//!
//! Called by `server` at a reload, and started by it for a look at the files once a minute. The
//! threads are none of the runtime, so the end of the process waits for no list.

use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_access::ListSettings;
use hashcache_access::lists::{ListError, Lists, Look};
use tokio::sync::oneshot;
use tracing::warn;

use crate::worker::Common;

/// Looks at the files once a minute, and reads what has changed, until the process ends.
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

/// The lists of new settings; of those in effect, what has not changed is kept. `None`: there is no
/// thread for it.
pub(super) async fn load(
    settings: &[ListSettings],
    common: &Common,
    cache: &Cache,
) -> Option<Result<Lists, ListError>> {
    let known = Arc::clone(&common.live().lists);
    let (settings, cache) = (settings.to_vec(), cache.clone());
    beside(move || Lists::load(&settings, &cache, &known)).await
}

/// Runs `read` on a thread of its own, which goes on if nobody waits for it any more.
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
