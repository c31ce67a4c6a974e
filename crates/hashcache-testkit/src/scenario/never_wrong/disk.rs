//! Determines if the disk keeps up with the load, from the metrics of the proxy's admin listener.
//!
//! The rounds and the fill use it: a kill loses objects that were not written yet, so a run in
//! which the disk stalls for seconds before a kill proves nothing about the proxy.
//!
//! Invariant: without metrics the disk counts as fast, so no loss is excused.
//! Cost: one request for the metrics every [`LOOK_PAUSE`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Client;

/// Samples the pending bytes of the proxy; stops when dropped.
pub(super) struct DiskWatch(Option<Watching>);

struct Watching {
    /// For each batch, a time shortly before the writing thread took it from the pending objects.
    takes: Arc<Mutex<Vec<Instant>>>,
    task: JoinHandle<()>,
}

impl DiskWatch {
    /// Samples the proxy with this admin listener.
    pub(super) fn start(admin: Option<SocketAddr>) -> Self {
        let Some(admin) = admin else {
            return Self(None);
        };
        let takes = Arc::new(Mutex::default());
        let task = tokio::spawn(watch(admin, Arc::clone(&takes)));
        Self(Some(Watching { takes, task }))
    }

    /// Returns true if all objects that were pending `time` ago are on disk now. The writing thread
    /// takes the next batch when the batch before is written, so the second take since then shows
    /// that the first is on disk.
    pub(super) fn has_written_what_waited(&self, time: Duration) -> bool {
        let Some(watching) = &self.0 else {
            return true;
        };
        let takes = watching
            .takes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        takes.iter().filter(|take| take.elapsed() < time).count() >= 2
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        if let Some(watching) = &self.0 {
            watching.task.abort();
        }
    }
}

/// Records each decrease of the pending bytes.
async fn watch(admin: SocketAddr, takes: Arc<Mutex<Vec<Instant>>>) {
    let (mut before, mut client) = ((Instant::now(), 0), None);
    loop {
        let asked = Instant::now();
        let looked = timeout(LOOK_TIME, pending_bytes(admin, &mut client)).await;
        match looked.ok().flatten() {
            Some(pending) => {
                let (asked_before, pending_before) = before;
                if pending < pending_before {
                    let mut takes = takes.lock().unwrap_or_else(PoisonError::into_inner);
                    takes.push(asked_before);
                }
                before = (asked, pending);
            }
            None => client = None,
        }
        sleep(LOOK_PAUSE).await;
    }
}

/// Object bytes that wait to be written.
async fn pending_bytes(admin: SocketAddr, client: &mut Option<Client>) -> Option<u64> {
    let mut connection = match client.take() {
        Some(connection) => connection,
        None => Client::connect(admin).await.ok()?,
    };
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {admin}\r\n\r\n");
    connection.send(request.as_bytes()).await.ok()?;
    let response = connection.read_response("GET").await.ok()?;
    *client = Some(connection);
    let text = String::from_utf8_lossy(&response.body);
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("hashcache_pending_bytes "))?;
    value.parse().ok()
}

const LOOK_PAUSE: Duration = Duration::from_millis(30);
/// Far longer than an idle machine needs.
const LOOK_TIME: Duration = Duration::from_secs(5);
