//! Listeners, cores, signals: from the start of the process to its end.
//!
//! One thread a core runs a runtime of its own with a copy of every listening socket; the thread
//! that called [`run`] minds signals, the admin listener and the clock.
//!
//! Called by `hashcache-cli`; hands every connection to `wire`, every request to `request`.
//!
//! ```text
//! Serving ──TERM──▶ Draining ──all done, or drain_time──▶ Closing (cache saved, log written)
//!                      └──────────TERM again─────────────────┘
//! ```
//!
//! Invariant: addresses are bound without SO_REUSEPORT, so a second instance is refused and does
//! not silently take half of the connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashcache::{Cache, Health, Reservation};
use hashcache_http::Pseudonym;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use crate::access_log::{AccessLog, RequestId};
use crate::admin::Admin;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::failure::Failure;
use crate::metrics::{
    DeviceFigures, EngineFigures, Exposition, Limit, Metrics, Reload, StoreState,
};
use crate::page::{self, PageContext, Reader};
use crate::request::{self, Connection};
use crate::settings::Settings;
use crate::upstream::dns::{NameServers, Names};
use crate::upstream::interfaces::OwnAddresses;
use crate::upstream::{self, Destinations};
use crate::wire::{self, Ending};
use crate::worker::{Common, Live, Worker};

/// Why the proxy could not start, or stopped out of order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An address could not be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The access log could not be opened.
    #[error("cannot write the access log")]
    AccessLog {
        /// What the system said.
        source: io::Error,
    },
    /// The proxy's name is no token.
    #[error("the name `{name}` cannot stand in a header field")]
    Name {
        /// The name.
        name: String,
    },
    /// Threads, signals or a runtime could not be had.
    #[error("the system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// What a client's connection is counted for in memory: buffers of ours and of hyper.
const CONNECTION_BYTES: u64 = 12 << 10;
/// How often the clock and the health of the store are looked at while draining.
const DRAIN_STEP: Duration = Duration::from_millis(50);

/// Serves until told to stop. `listening` is called once with the addresses really bound (and that
/// of the admin listener); `reload` gives the settings anew on SIGHUP.
///
/// # Errors
/// See [`RunError`]; nothing was served then.
pub fn run<E: std::fmt::Display>(
    settings: Settings,
    cache: Cache,
    state_path: Option<PathBuf>,
    listening: impl FnOnce(&[SocketAddr], Option<SocketAddr>),
    reload: impl Fn() -> Result<Settings, E>,
) -> Result<(), RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let name_error = |_| RunError::Name {
        name: settings.name.clone(),
    };
    let name = Pseudonym::new(&settings.name).map_err(name_error)?;
    let via = Pseudonym::new(&via_name(&settings.name)).map_err(name_error)?;
    let listeners: Vec<StdListener> = settings
        .listen
        .iter()
        .map(|address| bind(*address))
        .collect::<Result<_, _>>()?;
    let admin_listener = settings.admin.map(bind).transpose()?;
    let listen = listeners
        .iter()
        .filter_map(|it| it.local_addr().ok())
        .collect::<Vec<_>>();
    let log = AccessLog::start(&settings).map_err(|source| RunError::AccessLog { source })?;
    let log = Arc::new(log);
    let clock = Arc::new(Clock::start(state_path));
    let metrics = Metrics::new(settings.workers);
    let exposition = exposition(&metrics, &clock, &log, &cache);
    let own = OwnAddresses::new();
    let limits = Arc::new(settings.limits.clone());
    let names = Names::new(NameServers::System, settings.limits.dns_time);
    let shared = upstream::Shared::new(
        names,
        Destinations::new(&[], &[], own.clone()),
        own.clone(),
        limits,
    );
    let live = Live::new(&settings, 0, &own, shared);
    let common = Arc::new(Common {
        mode: settings.mode.clone(),
        name,
        via,
        listen: listen.clone(),
        clock: Arc::clone(&clock),
        collapse: Collapse::new(),
        own,
        exposition: exposition.clone(),
        live: ArcSwap::from_pointee(live),
    });
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("a runtime"))?;
    let _context = runtime.enter();
    let signals = Signals::new().map_err(system("signals"))?;
    let (stop, stopping) = watch::channel(Stage::Serving);
    let counts = Arc::new(Counts::default());
    let threads = (0..settings.workers.max(1))
        .map(|number| {
            let core = Core {
                common: Arc::clone(&common),
                cache: cache.clone(),
                log: log.worker(),
                metrics: metrics.worker(number),
                settings: settings.clone(),
                counts: Arc::clone(&counts),
                stopping: stopping.clone(),
            };
            let listeners = listeners
                .iter()
                .map(StdListener::try_clone)
                .collect::<Result<_, _>>();
            core.start(number, listeners.map_err(system("a listener's copy"))?)
        })
        .collect::<Result<Vec<_>, RunError>>()?;
    let admin = Admin::new(exposition);
    let admin_address = admin_listener.as_ref().and_then(|it| it.local_addr().ok());
    if let Some(listener) = admin_listener {
        let listener = TcpListener::from_std(listener).map_err(system("the admin listener"))?;
        runtime.spawn(Arc::clone(&admin).serve(listener));
    }
    runtime.spawn(Arc::clone(&clock).keep());
    listening(&listen, admin_address);
    let control = Control {
        common,
        metrics,
        log: Arc::clone(&log),
        settings,
        stop,
        counts,
        admin,
        cache,
    };
    runtime.block_on(control.mind(signals, reload, threads));
    if let Err(error) = clock.persist() {
        warn!(%error, "time not noted");
    }
    log.stop();
    Ok(())
}

/// Two proxies that nobody named must not take each other's requests for their own.
fn via_name(name: &str) -> String {
    if name == UNNAMED {
        format!("{name}-{:08x}", fastrand::u32(..))
    } else {
        name.to_owned()
    }
}

/// The name of a proxy that was given none.
const UNNAMED: &str = "hashcache";

fn bind(address: SocketAddr) -> Result<StdListener, RunError> {
    let listen = || -> io::Result<StdListener> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        // Lets a new process have the address while old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    listen().map_err(|source| RunError::Listen { address, source })
}

fn exposition(
    metrics: &Arc<Metrics>,
    clock: &Arc<Clock>,
    log: &Arc<AccessLog>,
    cache: &Cache,
) -> Exposition {
    let cache = cache.clone();
    let figures = move || {
        let stats = cache.stats();
        EngineFigures {
            store: match stats.health {
                Health::InService => StoreState::Ready,
                Health::Recovering => StoreState::Opening,
                _ => StoreState::Degraded,
            },
            objects: stats.entries,
            objects_exact: stats.entries_exact,
            index_bytes: stats.index_bytes,
            hot_bytes: stats.hot_bytes,
            pending_bytes: stats.pending_bytes,
            capacity_bytes: stats.device_bytes,
            device: DeviceFigures {
                reads: stats.reads,
                writes: stats.writes,
                read_bytes: stats.read_bytes,
                written_bytes: stats.written_bytes,
            },
        }
    };
    Exposition::new(
        Arc::clone(metrics),
        Arc::clone(clock),
        Arc::clone(log),
        figures,
    )
}

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// No new connections; answers that have begun are finished.
    Draining,
    /// No more time.
    Over,
}

/// Connections there are, in all and by address.
#[derive(Default)]
struct Counts {
    all: AtomicUsize,
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
        limits: &crate::settings::Limits,
        cache: &Cache,
    ) -> Result<Counted, Limit> {
        let memory = cache.reserve(CONNECTION_BYTES).ok_or(Limit::Clients)?;
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

/// What a core's thread starts with.
struct Core {
    common: Arc<Common>,
    cache: Cache,
    log: crate::access_log::WorkerLog,
    metrics: Arc<crate::metrics::WorkerMetrics>,
    settings: Settings,
    counts: Arc<Counts>,
    stopping: watch::Receiver<Stage>,
}

impl Core {
    fn start(self, number: usize, listeners: Vec<StdListener>) -> Result<JoinHandle<()>, RunError> {
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
                    let connection =
                        Rc::clone(&self).connection(socket, client, Rc::clone(&worker));
                    let alive = alive.clone();
                    tokio::task::spawn_local(async move {
                        connection.await;
                        drop(alive);
                    });
                }
                // Out of files, or a client that left at once: neither is a reason to spin.
                Err(error) => {
                    warn!(%error, "connection not accepted");
                    tokio::time::sleep(DRAIN_STEP).await;
                }
            }
        }
    }

    async fn connection(self: Rc<Self>, socket: TcpStream, client: SocketAddr, worker: Rc<Worker>) {
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
                let _ = socket.try_write(&refusal(&self.common, client));
                return;
            }
        };
        let _open = worker.metrics.connection();
        let cell = wire::Cell::new();
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

/// What clients beyond a limit get instead of a connection.
fn refusal(common: &Common, client: SocketAddr) -> Vec<u8> {
    let context = PageContext {
        name: common.name.as_str(),
        host: None,
        request_id: RequestId::fresh(),
        reader: Reader::Program,
    };
    let page = page::failure(&Failure::ClientLimit, &context);
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

/// The signals we answer to.
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr1: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
        })
    }
}

/// The thread that minds the others.
struct Control {
    common: Arc<Common>,
    metrics: Arc<Metrics>,
    log: Arc<AccessLog>,
    settings: Settings,
    stop: watch::Sender<Stage>,
    counts: Arc<Counts>,
    admin: Arc<Admin>,
    cache: Cache,
}

impl Control {
    async fn mind<E: std::fmt::Display>(
        mut self,
        mut signals: Signals,
        reload: impl Fn() -> Result<Settings, E>,
        threads: Vec<JoinHandle<()>>,
    ) {
        loop {
            tokio::select! {
                _ = signals.term.recv() => break,
                _ = signals.int.recv() => break,
                _ = signals.hup.recv() => {
                    self.log.reopen();
                    self.reload(reload());
                }
                _ = signals.usr1.recv() => self.log.reopen(),
            }
        }
        info!(
            connections = self.counts.all.load(Ordering::Relaxed),
            "stopping"
        );
        self.admin.drain();
        self.stop.send_replace(Stage::Draining);
        let deadline = tokio::time::sleep(self.settings.limits.drain_time);
        tokio::pin!(deadline);
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::select! {
                () = &mut deadline => break,
                _ = signals.term.recv() => break,
                _ = signals.int.recv() => break,
                () = tokio::time::sleep(DRAIN_STEP) => {}
            }
        }
        self.stop.send_replace(Stage::Over);
        for thread in threads {
            if thread.join().is_err() {
                error!("a core ended in a panic");
            }
        }
        self.cache.close();
        info!("stopped");
    }

    /// Takes over what can change while we serve, and says what cannot.
    fn reload<E: std::fmt::Display>(&mut self, settings: Result<Settings, E>) {
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => {
                self.metrics.config_reloaded(Reload::Kept);
                error!("configuration not reloaded, the old one holds: {error:#}");
                return;
            }
        };
        let old = self.common.live.load_full();
        let live = Live::new(
            &settings,
            old.generation + 1,
            &self.common.own,
            old.upstream.clone(),
        );
        self.common.live.store(Arc::new(live));
        let restart = needs_restart(&self.settings, &settings);
        if !restart.is_empty() {
            warn!(
                settings = restart.join(", "),
                "changed settings need a restart"
            );
        }
        // Those that need a restart stay as they are, so that the next reload names them again.
        self.settings = Settings {
            rules: settings.rules,
            allow_client: settings.allow_client,
            allow_destination: settings.allow_destination,
            deny_destination: settings.deny_destination,
            allow_connect_port: settings.allow_connect_port,
            max_object_size: settings.max_object_size,
            ..self.settings.clone()
        };
        self.metrics.config_reloaded(Reload::Taken);
        info!("configuration reloaded");
    }
}

/// Names of the settings that differ and that only a restart changes.
fn needs_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let differs = [
        ("accelerate", old.mode != new.mode),
        ("listen", old.listen != new.listen),
        ("admin", old.admin != new.admin),
        ("name", old.name != new.name),
        ("access_log", old.access_log != new.access_log),
        ("log_format", old.log_format != new.log_format),
        (
            "log_strip_query",
            old.log_strip_query != new.log_strip_query,
        ),
        ("workers", old.workers != new.workers),
        ("limits", old.limits != new.limits),
    ];
    differs
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| name)
        .collect()
}
