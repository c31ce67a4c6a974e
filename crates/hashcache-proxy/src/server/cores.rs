//! One core: a thread with a runtime of its own that accepts clients and serves them.
//!
//! Started by `server`; hands every connection to `wire`, every request to `request`.
//!
//! Invariant: a connection is counted, in all, by address and in memory, from its acceptance until
//! it or its tunnel ends; who is beyond a limit is told so and costs no more.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hashcache::{Cache, Reservation};
use http::StatusCode;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tracing::{debug, error, warn};

use super::{DRAIN_STEP, RunError, Stage};
use crate::access_log::{RequestId, WorkerLog};
use crate::failure::Failure;
use crate::metrics::{Limit, WorkerMetrics};
use crate::page::{self, PageContext, Reader};
use crate::request::{self, Connection};
use crate::settings::{Limits, Settings};
use crate::wire::{self, Ending};
use crate::worker::{Common, Worker};

/// What a client's connection at rest takes of memory: its task, which is 2 KiB, its state, up to
/// 4 KiB read ahead. What it takes beyond that while a request is under way, `wire` sets aside.
const CONNECTION_BYTES: u64 = 8 << 10;

/// What a core's thread starts with.
pub(super) struct Core {
    pub(super) common: Arc<Common>,
    pub(super) cache: Cache,
    pub(super) log: WorkerLog,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) settings: Settings,
    pub(super) counts: Arc<Counts>,
    pub(super) stopping: watch::Receiver<Stage>,
}

impl Core {
    pub(super) fn start(
        self,
        number: usize,
        listeners: Vec<StdListener>,
    ) -> Result<JoinHandle<()>, RunError> {
        std::thread::Builder::new()
            .name(format!("hc-core-{number}"))
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => runtime.block_on(self.serve(listeners)),
                    Err(error) => error!(%error, "core not started"),
                }
            })
            .map_err(|source| RunError::System {
                what: "a thread",
                source,
            })
    }

    async fn serve(self, listeners: Vec<StdListener>) {
        let worker = Worker::new(
            Arc::clone(&self.common),
            self.cache.clone(),
            &self.settings.limits,
            self.log.clone(),
            Arc::clone(&self.metrics),
        );
        let core = Rc::new(self);
        // Connections and listeners hold a sender each; when all are gone, the core is done.
        let (alive, mut done) = tokio::sync::mpsc::channel::<()>(1);
        for listener in listeners {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    let (core, worker, alive) =
                        (Rc::clone(&core), Rc::clone(&worker), alive.clone());
                    tokio::task::spawn_local(core.accept(listener, worker, alive));
                }
                Err(error) => error!(%error, "listener not taken over"),
            }
        }
        drop(alive);
        let mut stopping = core.stopping.clone();
        tokio::select! {
            _ = done.recv() => {}
            _ = stopping.wait_for(|stage| *stage == Stage::Over) => {
                // Tunnels take a moment to close and to write their lines.
                let _ = tokio::time::timeout(10 * DRAIN_STEP, done.recv()).await;
            }
        }
    }

    async fn accept(
        self: Rc<Self>,
        listener: TcpListener,
        worker: Rc<Worker>,
        alive: tokio::sync::mpsc::Sender<()>,
    ) {
        let mut stopping = self.stopping.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stage| *stage != Stage::Serving) => return,
            };
            match accepted {
                Ok((socket, client)) => {
                    // No block around it: that would take its size once more.
                    let core = Rc::clone(&self);
                    let connection =
                        core.connection(socket, client, Rc::clone(&worker), alive.clone());
                    tokio::task::spawn_local(connection);
                }
                // Out of files, or a client that left at once: neither is a reason to spin.
                Err(error) => {
                    warn!(%error, "connection not accepted");
                    tokio::time::sleep(DRAIN_STEP).await;
                }
            }
        }
    }

    async fn connection(
        self: Rc<Self>,
        socket: TcpStream,
        client: SocketAddr,
        worker: Rc<Worker>,
        _alive: tokio::sync::mpsc::Sender<()>,
    ) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let Ok(local) = socket.local_addr() else {
            return;
        };
        let _counted = match self
            .counts
            .admit(client.ip(), &self.settings.limits, &self.cache)
        {
            Ok(counted) => counted,
            Err(limit) => {
                worker.metrics.limit(limit);
                // Best effort: whoever cannot take it at once gets nothing.
                let _ = socket.try_write(&refusal(&self.common, client, limit));
                return;
            }
        };
        let _open = worker.metrics.connection();
        let cell = wire::Cell::within(&self.cache);
        let (stop, stopping) = watch::channel(false);
        let (over, drained) = watch::channel(false);
        let connection = Rc::new(Connection {
            denied: self.common.live().clients.check(client.ip()).err(),
            worker: Rc::clone(&worker),
            cell: Rc::clone(&cell),
            client,
            local,
            drained,
        });
        let service = {
            let connection = Rc::clone(&connection);
            service_fn(move |request| request::handle(Rc::clone(&connection), request))
        };
        let serving = wire::serve_connection(socket, &worker.limits, &cell, service, stopping);
        tokio::pin!(serving);
        let mut stage = self.stopping.clone();
        let ending = loop {
            tokio::select! {
                biased;
                ending = &mut serving => break ending,
                _ = stage.changed() => match *stage.borrow_and_update() {
                    Stage::Serving => {}
                    Stage::Draining => drop(stop.send_replace(true)),
                    Stage::Over => return,
                },
            }
        };
        drop(connection);
        match ending {
            Ending::Idle => worker.metrics.limit(Limit::IdleTime),
            Ending::SlowHead => worker.metrics.limit(Limit::HeadTime),
            Ending::NoMemory => worker.metrics.limit(Limit::Memory),
            Ending::SlowWrite => worker.metrics.limit(Limit::ProgressTime),
            Ending::Upgraded => self.follow_tunnel(over, stage).await,
            Ending::Closed | Ending::Broken | Ending::Aborted => {}
        }
    }

    /// Holds the connection's place until its tunnel ends, and tells the tunnel when to.
    async fn follow_tunnel(&self, over: watch::Sender<bool>, mut stage: watch::Receiver<Stage>) {
        tokio::select! {
            () = over.closed() => {}
            _ = stage.wait_for(|stage| *stage == Stage::Over) => {
                over.send_replace(true);
                over.closed().await;
            }
        }
    }
}

/// Connections there are, in all and by address.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) all: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection in the counts, until dropped.
struct Counted {
    counts: Arc<Counts>,
    address: IpAddr,
    _memory: Reservation,
}

impl Counts {
    /// Counts a connection, unless a limit forbids it.
    fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: &Limits,
        cache: &Cache,
    ) -> Result<Counted, Limit> {
        let memory = cache.reserve(CONNECTION_BYTES).ok_or(Limit::Memory)?;
        let mut by_address = self
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.all.load(Ordering::Relaxed) >= limits.clients {
            return Err(Limit::Clients);
        }
        let count = by_address.entry(address).or_insert(0);
        if *count >= limits.clients_per_address {
            return Err(Limit::ClientsPerAddress);
        }
        *count += 1;
        self.all.fetch_add(1, Ordering::Relaxed);
        Ok(Counted {
            counts: Arc::clone(self),
            address,
            _memory: memory,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counts = &self.counts;
        counts.all.fetch_sub(1, Ordering::Relaxed);
        let mut by_address = counts
            .by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

/// What clients beyond a limit get instead of a connection.
fn refusal(common: &Common, client: SocketAddr, limit: Limit) -> Vec<u8> {
    let context = PageContext {
        name: common.name.as_str(),
        host: None,
        request_id: RequestId::fresh(),
        reader: Reader::Program,
    };
    let failure = match limit {
        Limit::Memory => Failure::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "no memory for another connection",
        },
        _ => Failure::ClientLimit,
    };
    let page = page::failure(&failure, &context);
    debug!(%client, id = %context.request_id, "client beyond a limit");
    let mut out = format!("HTTP/1.1 {}\r\nconnection: close\r\n", page.status()).into_bytes();
    for (name, value) in page.headers() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("content-length: {}\r\n\r\n", page.body().len()).as_bytes());
    out.extend_from_slice(page.body());
    out
}
