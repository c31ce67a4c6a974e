//! Whether the disk keeps up with the load, by the figures of the proxy's admin listener.
//!
//! Used by the rounds and the fill: a kill takes what was not written yet, so a disk that stands
//! still for seconds before a kill says nothing about the proxy.
//!
//! Invariant: without figures the disk counts as fast, so nothing is excused.
//! Cost: one request for figures every [`LOOK_PAUSE`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::Client;

/// Looks at what waits to be written; ends when dropped.
pub(super) struct DiskWatch(Option<Watching>);

struct Watching {
    /// A time shortly before each batch was taken out of what waits.
    takes: Arc<Mutex<Vec<Instant>>>,
    task: JoinHandle<()>,
}

impl DiskWatch {
    /// Watches the proxy with this admin listener.
    pub(super) fn start(admin: Option<SocketAddr>) -> Self {
        let Some(admin) = admin else {
            return Self(None);
        };
        let takes = Arc::new(Mutex::default());
        let task = tokio::spawn(watch(admin, Arc::clone(&takes)));
        Self(Some(Watching { takes, task }))
    }

    /// Whether what waited `time` ago is on disk now. The writing thread takes the next batch when
    /// the one before is written, so the second take since then shows that the first is on disk.
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

/// Notes each time that less waits than before.
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

/// Bytes of objects that wait to be written.
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
/// Longer than an idle machine needs by far.
const LOOK_TIME: Duration = Duration::from_secs(5);
