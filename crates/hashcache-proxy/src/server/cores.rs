//! One core: a thread with a runtime that accepts clients and serves them.
//!
//! Started by `server`; hands every connection to `hashcache-wire` and every request to `request`.
//!
//! Invariant: a connection is counted in total, by address and in memory, from acceptance until the
//! connection or the tunnel in it closes. A connection beyond a limit gets at most an error page
//! and uses no further resources.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use hashcache::Cache;
use hashcache_base::failure::Failure;
use hashcache_base::share::{Allowance, GiveUp};
use hashcache_base::task::spawn_local;
use hashcache_http::Scheme;
use hashcache_link::forward::LinkForward;
use hashcache_upstream::announced::ClientEnds;
use hashcache_upstream::pinned::Pins;
use hashcache_wire::{Ending, Http2Kind, Protocol, Socket};
use http::StatusCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, error};

use super::connection_counts::{ConnectionCounts, connection_bytes};
use super::forward_listener::ForwardListener;
use super::link_listener::LinkListener;
use super::original_destination;
use super::probes::{probe_line, probe_peers};
use super::protocol::{NotServed, detect_protocol};
use super::proxy_protocol;
use super::site_checks::check_origins;
use super::stage::{DRAIN_STEP, RunError, Stage, accept_while_serving, is_too_late, stop_for};
use super::watchdog::Pulse;
use crate::access_log::{RequestId, WorkerLog};
use crate::client_access::ClientAccess;
use crate::connect::transparent;
use crate::connection::Connection;
use crate::history::History;
use crate::history::tally::Tally;
use crate::metrics::{Limit, WorkerMetrics};
use crate::page::{self, PageContext, PageReader};
use crate::request;
use crate::request::memory_hit::MemoryHits;
use crate::settings::{Speaks, Startup};
use crate::worker::{Common, Worker};

/// Input of a core's thread.
pub(super) struct Core {
    pub(super) common: Arc<Common>,
    pub(super) cache: Cache,
    pub(super) log: WorkerLog,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) history: Arc<History>,
    pub(super) settings: Startup,
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) stopping: watch::Receiver<Stage>,
    pub(super) pulse: Option<Pulse>,
}

impl Core {
    pub(super) fn start(
        self,
        number: usize,
        sockets: CoreSockets,
    ) -> Result<JoinHandle<()>, RunError> {
        std::thread::Builder::new()
            .name(format!("hc-core-{number}"))
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => runtime.block_on(self.serve(number, sockets)),
                    Err(error) => error!(%error, "worker not started"),
                }
            })
            .map_err(|source| RunError::System {
                what: "a thread",
                source,
            })
    }

    async fn serve(mut self, number: usize, sockets: CoreSockets) {
        let CoreSockets {
            clients,
            link,
            forwards,
        } = sockets;
        let tally = Tally::new(Arc::clone(&self.history));
        spawn_local(Rc::clone(&tally).keep());
        let worker = Worker::new(
            Arc::clone(&self.common),
            self.cache.clone(),
            &self.settings.limits,
            self.log.clone(),
            (Arc::clone(&self.metrics), tally),
        );
        if number == 0 {
            spawn_local(probe_peers(Rc::clone(&worker)));
            spawn_local(check_origins(Rc::clone(&worker)));
            spawn_local(probe_line(Rc::clone(&worker)));
        }
        if let Some(pulse) = self.pulse.take() {
            spawn_local(pulse.answer());
        }
        let core = Rc::new(self);
        // Each connection and listener holds a sender. When the last sender is dropped, the core
        // can stop.
        let (alive, mut done) = tokio::sync::mpsc::channel::<()>(1);
        for ListeningSocket { listener, speaks } in clients {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    let (core, worker, alive) =
                        (Rc::clone(&core), Rc::clone(&worker), alive.clone());
                    spawn_local(core.accept(listener, speaks, worker, alive));
                }
                Err(error) => error!(%error, "listener not opened"),
            }
        }
        if let Some(listener) = link {
            let children = LinkListener {
                worker: Rc::clone(&worker),
                cache: core.cache.clone(),
                stopping: core.stopping.clone(),
                serve_inside,
            };
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    spawn_local(children.accept(listener, alive.clone()));
                }
                Err(error) => error!(%error, "link listener not opened"),
            }
        }
        for (listener, forward) in forwards {
            let forwarding = ForwardListener {
                worker: Rc::clone(&worker),
                cache: core.cache.clone(),
                counts: Arc::clone(&core.counts),
                stopping: core.stopping.clone(),
                forward: Rc::new(forward),
            };
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    spawn_local(forwarding.accept(listener, alive.clone()));
                }
                Err(error) => error!(%error, "forwarded port not opened"),
            }
        }
        drop(alive);
        let mut stopping = core.stopping.clone();
        tokio::select! {
            _ = done.recv() => {}
            _ = stopping.wait_for(|stage| *stage == Stage::Over) => {
                // Tunnels need a moment to close and to write their log lines.
                let _ = timeout(10 * DRAIN_STEP, done.recv()).await;
            }
        }
    }

    async fn accept(
        self: Rc<Self>,
        listener: TcpListener,
        speaks: Speaks,
        worker: Rc<Worker>,
        alive: tokio::sync::mpsc::Sender<()>,
    ) {
        let stopping = self.stopping.clone();
        let serve = |socket, client| {
            // Not an async block, because a block would add the size of the connection's future
            // once more.
            let core = Rc::clone(&self);
            let addr = ClientAddr { client, speaks };
            let connection = core.connection(socket, addr, Rc::clone(&worker), alive.clone());
            spawn_local(connection);
        };
        accept_while_serving(listener, stopping, "a client", serve).await;
    }

    async fn connection(
        self: Rc<Self>,
        mut socket: TcpStream,
        ClientAddr { client, speaks }: ClientAddr,
        worker: Rc<Worker>,
        _alive: tokio::sync::mpsc::Sender<()>,
    ) {
        let Ok(local) = socket.local_addr() else {
            return;
        };
        let ends = ClientEnds { client, local };
        let ends = if self.is_balancer(client.ip(), speaks) {
            match Box::pin(self.told_ends(&mut socket, ends)).await {
                Ok(ends) => ends,
                Err(NotTold::Late) => return worker.metrics.limit(Limit::HeadTime),
                Err(NotTold::Refused(limit)) => {
                    worker.metrics.limit(limit);
                    if speaks != Speaks::Tls {
                        let _ = socket.try_write(&refusal(&self.common, client, limit));
                    }
                    return;
                }
                Err(NotTold::Broken(error)) => {
                    return debug!(%client, %error, "load balancer not served");
                }
            }
        } else {
            ends
        };
        let ClientEnds { client, local } = ends;
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let destination = match destination(&socket, speaks) {
            Ok(destination) => destination,
            Err(error) => return debug!(%client, %error, "original destination not known"),
        };
        let tls_destination = destination.filter(|to| to.port() == Scheme::Https.default_port());
        let share = self.common.shares.of(client.ip());
        let allowance = Allowance::new(share, self.cache.clone());
        let bytes = connection_bytes(speaks, self.settings.mode);
        let counted = match self.counts.admit(&allowance, bytes, &self.settings.limits) {
            Ok(counted) => counted,
            Err(limit) => {
                worker.metrics.limit(limit);
                // Best effort: a client that cannot receive the page at once gets none.
                if speaks != Speaks::Tls && tls_destination.is_none() {
                    let _ = socket.try_write(&refusal(&self.common, client, limit));
                }
                return;
            }
        };
        // Before the first request arrives, a connection counts as a slow head.
        let first = allowance.begin_head(counted.bytes);
        let _open = worker.metrics.connection();
        let mut stage = self.stopping.clone();
        let identity = match speaks {
            Speaks::Tls => self.common.live().identity.clone(),
            Speaks::Http | Speaks::H2c | Speaks::Transparent(_) => None,
        };
        let settled = match speaks {
            Speaks::Http | Speaks::Transparent(_) => Ok((Socket::from(socket), Protocol::Http1)),
            Speaks::H2c | Speaks::Tls => {
                // On the heap, because the future is large and short-lived.
                let limit = worker.limits.head_time;
                let settling = Box::pin(detect_protocol(socket, speaks, identity, limit));
                tokio::select! {
                    settled = settling => settled,
                    _ = allowance.given_up() => return worker.metrics.limit(Limit::HeadTime),
                    () = is_too_late(stage.clone()) => return,
                }
            }
        };
        let (socket, protocol) = match settled {
            Ok(settled) => settled,
            Err(NotServed::Late) => return worker.metrics.limit(Limit::HeadTime),
            Err(NotServed::Broken(error)) => {
                return debug!(client = %client, %error, "connection not served");
            }
        };
        let Some((stop, stopping)) = stop_for(&mut stage) else {
            return;
        };
        let (over, drained) = watch::channel(false);
        let connection = Connection {
            access: Rc::new(ClientAccess::new(client.ip(), &self.common.live())),
            worker: Rc::clone(&worker),
            cell: hashcache_wire::Cell::within(&allowance, counted.bytes),
            allowance: match protocol {
                Protocol::Http1 => allowance.clone(),
                Protocol::Http2 => allowance.of_stream(),
            },
            scheme: match speaks {
                Speaks::Http | Speaks::H2c | Speaks::Transparent(_) => Scheme::Http,
                Speaks::Tls => Scheme::Https,
            },
            client,
            local,
            destination,
            intercepted: None,
            child: None,
            pins: Pins::default(),
            stopping: stopping.clone(),
            drained,
            serve_inside,
        };
        drop(first);
        let ending = if let Some(destination) = tls_destination {
            let serving = transparent::serve(Rc::new(connection), socket, destination);
            spawn_local(serving);
            Ending::Upgraded
        } else {
            let serving = serve(socket, protocol, connection, stopping);
            tokio::pin!(serving);
            loop {
                tokio::select! {
                    biased;
                    // Polled first, so that a request which arrives after the stop is marked as the
                    // last request.
                    _ = stage.changed() => match *stage.borrow_and_update() {
                        Stage::Serving => {}
                        Stage::Draining => drop(stop.send_replace(true)),
                        Stage::Over => return,
                    },
                    ending = &mut serving => break ending,
                    why = allowance.given_up() => {
                        note_given_up(&worker, why);
                        match why {
                            GiveUp::Head => return,
                            GiveUp::Rest => drop(stop.send_replace(true)),
                        }
                    }
                }
            }
        };
        match ending {
            Ending::Upgraded => {
                let mut following = pin!(follow_tunnel(&stop, &over, stage));
                loop {
                    tokio::select! {
                        () = &mut following => break,
                        // An intercepted connection was given up.
                        why = allowance.given_up() => {
                            note_given_up(&worker, why);
                            match why {
                                GiveUp::Rest => drop(stop.send_replace(true)),
                                GiveUp::Head => {
                                    over.send_replace(true);
                                    break over.closed().await;
                                }
                            }
                        }
                    }
                }
            }
            _ => worker.count_ending(ending),
        }
    }

    /// Returns the client and local addresses that a load balancer sends, or `ends` for the
    /// balancer's own connections. Until they have arrived, the connection counts as a slow head of
    /// the balancer.
    async fn told_ends(
        &self,
        socket: &mut TcpStream,
        ends: ClientEnds,
    ) -> Result<ClientEnds, NotTold> {
        let limits = &self.settings.limits;
        let share = self.common.shares.of(ends.client.ip());
        let balancer = Allowance::new(share, self.cache.clone());
        let counted = self.counts.admit_unnamed(&balancer, limits);
        let counted = counted.map_err(NotTold::Refused)?;
        let _head = balancer.begin_head(counted.bytes);
        let mut stage = self.stopping.clone();
        tokio::select! {
            read = timeout(limits.head_time, proxy_protocol::read(socket)) => match read {
                Ok(Ok(told)) => Ok(told.unwrap_or(ends)),
                Ok(Err(error)) => Err(NotTold::Broken(error)),
                Err(_) => Err(NotTold::Late),
            },
            _ = balancer.given_up() => Err(NotTold::Late),
            _ = stage.wait_for(|stage| *stage == Stage::Over) => Err(NotTold::Broken(
                io::ErrorKind::ConnectionAborted.into(),
            )),
        }
    }

    /// Returns true if connections from this address must start with a header that names the
    /// client.
    fn is_balancer(&self, address: IpAddr, speaks: Speaks) -> bool {
        let is_direct = !matches!(speaks, Speaks::Transparent(_));
        let live = self.common.live();
        let mut balancers = live.settings.proxy_protocol_from.iter();
        is_direct && balancers.any(|network| network.contains(address))
    }
}

/// Returns the original destination of the client's connection, on a listener for such connections.
fn destination(socket: &TcpStream, speaks: Speaks) -> io::Result<Option<SocketAddr>> {
    match speaks {
        Speaks::Transparent(diversion) => original_destination::of(socket, diversion).map(Some),
        Speaks::Http | Speaks::H2c | Speaks::Tls => Ok(None),
    }
}

/// Keeps the connection counted until the tunnel closes. Passes the stages of the process on to the
/// tunnel and to the server of the requests inside it.
async fn follow_tunnel(
    stop: &watch::Sender<bool>,
    over: &watch::Sender<bool>,
    mut stage: watch::Receiver<Stage>,
) {
    loop {
        // Copied, because a borrowed value would block the sender of the next stage.
        let now = *stage.borrow_and_update();
        match now {
            Stage::Serving => {}
            Stage::Draining => drop(stop.send_replace(true)),
            Stage::Over => {
                over.send_replace(true);
                return over.closed().await;
            }
        }
        tokio::select! {
            () = over.closed() => return,
            changed = stage.changed() => if changed.is_err() {
                return over.closed().await;
            },
        }
    }
}

/// Serves a byte stream in either protocol; its requests belong to `connection`.
async fn serve(
    socket: Socket,
    protocol: Protocol,
    connection: Connection,
    stopping: watch::Receiver<bool>,
) -> Ending {
    let worker = Rc::clone(&connection.worker);
    match protocol {
        Protocol::Http1 => {
            let cell = Rc::clone(&connection.cell);
            let connection = Rc::new(connection);
            let memory_hits = MemoryHits::for_connection(&connection);
            let service = move |request| request::handle(Rc::clone(&connection), Box::new(request));
            let limits = &worker.limits;
            // On the heap, because otherwise each enclosing future would contain this size again.
            Box::pin(hashcache_wire::serve_connection(
                socket,
                limits,
                &cell,
                memory_hits,
                service,
                stopping,
            ))
            .await
        }
        Protocol::Http2 => {
            // Use the allowance of the connection: allowances of single streams cannot mark the
            // connection as idle.
            let allowance = connection.cell.allowance().cloned();
            let allowance = allowance.unwrap_or_else(|| connection.allowance.clone());
            let child = connection.child.clone();
            // The HTTP/2 server registers request heads itself.
            connection.cell.leave_heads();
            let connection = Rc::new(connection);
            let memory_hits = MemoryHits::for_connection(&connection);
            let service = move |cell: Rc<hashcache_wire::Cell>, request| {
                let mut stream = Connection::clone(&connection);
                // On a link each client of the child has a separate allowance.
                if let Some(allowance) = cell.allowance().filter(|_| stream.child.is_some()) {
                    stream.allowance = allowance.clone();
                }
                stream.cell = cell;
                request::handle(Rc::new(stream), Box::new(request))
            };
            let allowance = Some(&allowance);
            let (limits, kind) = match &child {
                Some(child) => (&child.limits, &child.kind),
                None => (&worker.limits, &Http2Kind::Client),
            };
            Box::pin(hashcache_wire::serve_http2(
                socket,
                (limits, kind),
                allowance,
                memory_hits,
                service,
                stopping,
            ))
            .await
        }
    }
}

/// As [`serve`], as a function pointer for `connect`.
fn serve_inside(
    socket: Socket,
    protocol: Protocol,
    inside: Connection,
    stopping: watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = Ending>>> {
    Box::pin(serve(socket, protocol, inside, stopping))
}

/// The listening sockets of one core.
pub(super) struct CoreSockets {
    pub(super) clients: Vec<ListeningSocket>,
    /// Link listener, for children.
    pub(super) link: Option<StdListener>,
    pub(super) forwards: Vec<(StdListener, LinkForward)>,
}

/// A listening socket and its protocol.
pub(super) struct ListeningSocket {
    pub(super) listener: StdListener,
    pub(super) speaks: Speaks,
}

/// Reason why a load balancer has not sent the addresses of a connection.
enum NotTold {
    /// A limit on connections is reached.
    Refused(Limit),
    Late,
    Broken(io::Error),
}

/// The address of the client and the protocol of the listener.
struct ClientAddr {
    client: SocketAddr,
    speaks: Speaks,
}

/// Counts a connection that was closed to make room for other connections.
fn note_given_up(worker: &Worker, why: GiveUp) {
    worker.metrics.limit(match why {
        GiveUp::Head => Limit::HeadTime,
        GiveUp::Rest => Limit::IdleTime,
    });
}

/// Returns the error page for a client beyond a limit.
fn refusal(common: &Common, client: SocketAddr, limit: Limit) -> Vec<u8> {
    let context = PageContext {
        name: common.name.as_str(),
        deployment: common.via.as_str(),
        host: None,
        request_id: RequestId::fresh(),
        reader: PageReader::Program,
    };
    let failure = match limit {
        Limit::Memory => Failure::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "no memory for another connection",
        },
        _ => Failure::ClientLimit,
    };
    let page = page::failure(&failure, &context);
    debug!(%client, id = %context.request_id, "client exceeded a limit");
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
