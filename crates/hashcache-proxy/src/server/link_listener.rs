//! Accepts children on the link listener of one core.
//!
//! Started by `cores`. Hands a child's connection to the HTTP/2 server, so the requests are handled
//! like all other requests. A child needs no `allow_client`: a pinned key entitles it to be served.
//!
//! Invariants: no byte of a connection without a pinned key is read as a request. Connections in
//! their handshake count in no limit of clients, so strangers cannot use up the connections of a
//! child; they have a separate limit (`hashcache_link::children`). If a reload removes a child's
//! pin, the child loses the connection, with all responses and tunnels. All memory that a child
//! holds counts as the memory of a single client, whatever address it has. The memory that a
//! child's connection always needs is reserved before it is served, so an accepted link never
//! closes for lack of memory; only streams are refused then.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_base::limits::Limits;
use hashcache_base::share::{Allowance, Network};
use hashcache_base::task::spawn_local;
use hashcache_http::Scheme;
use hashcache_link::children::Entered;
use hashcache_link::pin::Pin;
use hashcache_link::{STREAMS, TURN_TIME, Windows};
use hashcache_upstream::pinned::Pins;
use hashcache_wire::{
    self, HTTP_2_BYTES, Http2Kind, Protocol, Socket, TLS_BYTES, link_bytes, link_handshake,
};
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::stage::{Stage, accept_while_serving, stop_for};
use crate::client_access::ClientAccess;
use crate::connection::{Connection, LinkedChild, ServeInside};
use crate::worker::Worker;

/// A core's state for accepting children.
#[derive(Clone)]
pub(super) struct LinkListener {
    pub(super) worker: Rc<Worker>,
    pub(super) cache: Cache,
    pub(super) stopping: watch::Receiver<Stage>,
    pub(super) serve_inside: ServeInside,
}

impl LinkListener {
    /// Accepts children until the process stops.
    pub(super) async fn accept(self, listener: TcpListener, alive: mpsc::Sender<()>) {
        let stopping = self.stopping.clone();
        let share = self.worker.common.shares.memory_max();
        let limits = Rc::new(limits(&self.worker.limits, share));
        let serve = |socket, client| {
            let connection =
                self.clone()
                    .connection(socket, client, Rc::clone(&limits), alive.clone());
            spawn_local(connection);
        };
        accept_while_serving(listener, stopping, "a child", serve).await;
    }

    async fn connection(
        self,
        socket: TcpStream,
        client: SocketAddr,
        limits: Rc<Limits>,
        _alive: mpsc::Sender<()>,
    ) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let common = Arc::clone(&self.worker.common);
        let Ok(local) = socket.local_addr() else {
            return;
        };
        let mut stage = self.stopping.clone();
        // On the heap, because the future is large and short-lived.
        let shaking = Box::pin(self.shake(socket, client, limits));
        let shaken = tokio::select! {
            shaken = shaking => shaken,
            _ = stage.wait_for(|stage| *stage == Stage::Over) => return,
        };
        let Accepted {
            socket,
            entered,
            allowance,
            child,
        } = match shaken {
            Ok(accepted) => accepted,
            Err(error) => {
                return info!(%client, %error, "connection to the link listener refused");
            }
        };
        let pin = child.pin;
        if !common.is_child(&pin) {
            // The handshake started before a reload.
            return info!(%client, %pin, "child refused: its pin was removed");
        }
        let Some((stop, stopping)) = stop_for(&mut stage) else {
            return;
        };
        let (_over, drained) = watch::channel(false);
        let connection = Connection {
            access: Rc::new(ClientAccess::new(client.ip(), &self.worker.common.live())),
            worker: Rc::clone(&self.worker),
            cell: hashcache_wire::Cell::of_link(&allowance),
            allowance,
            scheme: Scheme::Https,
            client,
            local,
            destination: None,
            intercepted: None,
            child: Some(Rc::new(child)),
            pins: Pins::of_link(),
            stopping: stopping.clone(),
            drained,
            serve_inside: self.serve_inside,
        };
        info!(%client, %pin, "child connected");
        let _open = self.worker.metrics.connection();
        let mut serving = (self.serve_inside)(socket, Protocol::Http2, connection, stopping);
        let ending = loop {
            tokio::select! {
                biased;
                ending = &mut serving => break ending,
                // The streams and tunnels of the old connection are closed too.
                () = entered.displaced() => {
                    if common.is_child(&pin) {
                        info!(%client, %pin, "child connected again; the old connection ends");
                    } else {
                        warn!(%client, %pin, "the pin of a child was removed; it has to go");
                    }
                    return;
                }
                _ = stage.changed() => match *stage.borrow_and_update() {
                    Stage::Serving => {}
                    Stage::Draining => drop(stop.send_replace(true)),
                    Stage::Over => return,
                },
            }
        };
        info!(%client, %pin, "child disconnected");
        self.worker.count_ending(ending);
    }

    /// Performs the handshake with a connection that is not authenticated yet.
    async fn shake(
        &self,
        socket: TcpStream,
        client: SocketAddr,
        limits: Rc<Limits>,
    ) -> io::Result<Accepted> {
        let common = &self.worker.common;
        let children = &common.children;
        let stranger = children.enter_stranger(client.ip());
        // Not reserved in the share of this address: strangers may have the same address as a
        // child.
        let memory = self.cache.reserve(CONNECTION_BYTES);
        let handshake_memory = memory.ok_or(io::ErrorKind::OutOfMemory)?;
        let server = common.live().link.clone();
        let server = server.ok_or(io::ErrorKind::NotFound)?;
        hashcache_link::prepare(&socket);
        let acceptor = TlsAcceptor::from(Arc::clone(&server.config));
        let entering = |certificate: &CertificateDer<'static>| {
            let pin = Pin::from_certificate(certificate).ok_or(io::ErrorKind::PermissionDenied)?;
            let (entered, counters) = children.enter_child(pin, client, common.now());
            Ok(((pin, entered), counters))
        };
        let shaking = link_handshake(socket.into(), acceptor, entering);
        let limit = self.worker.limits.head_time;
        let (socket, (pin, entered), counters) = tokio::select! {
            shaken = timeout(limit, shaking) => {
                shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?
            }
            () = stranger.displaced() => {
                debug!(%client, "too many connections in their handshake");
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        };
        let windows = Windows::within(common.shares.memory_max() / WINDOWS_PART);
        let share = common.shares.of_network(Network::Child(pin.number()));
        let allowance = Allowance::new(share, self.cache.clone());
        let memory = allowance.reserve(link_bytes(&limits, windows));
        let memory = memory.ok_or_else(|| io::Error::other("no memory for a link"))?;
        Ok(Accepted {
            socket,
            entered,
            allowance,
            child: LinkedChild::new(
                pin,
                limits,
                Http2Kind::Link { windows, counters },
                children.sent_to(pin, &self.cache, server.children.len()),
                (handshake_memory, memory),
            ),
        })
    }
}

/// A child's connection after the handshake.
struct Accepted {
    socket: Socket,
    entered: Entered,
    allowance: Allowance,
    child: LinkedChild,
}

/// Limits for a child's connection, which stays open and carries the requests of many users. A
/// child may hold `share` bytes.
fn limits(limits: &Limits, share: u64) -> Limits {
    let streams = usize::try_from(share / STREAM_SHARE).unwrap_or(usize::MAX);
    Limits {
        streams: streams.min(STREAMS).max(limits.streams),
        // On a slow line the second half of a head may arrive late.
        head_time: limits.head_time + TURN_TIME,
        frames: limits.frames.saturating_mul(hashcache_link::FRAMES_FACTOR),
        idle_time: FOREVER,
        progress_time: limits.progress_time + TURN_TIME,
        ..limits.clone()
    }
}

/// Memory of a child's connection, without streams.
const CONNECTION_BYTES: u64 = (8 << 10) + TLS_BYTES + HTTP_2_BYTES;
/// Unread content of a child may take 1/`WINDOWS_PART` of the child's share. A child reconnects
/// after a break before the break is noticed here, so there must be room for two connections.
const WINDOWS_PART: u64 = 8;
/// Bytes of a child's share per stream: the tables of h2 then take up to an eighth of the share. A
/// share of 16 MiB allows about 1,000 streams.
const STREAM_SHARE: u64 = 16 << 10;
const FOREVER: Duration = Duration::from_secs(24 * 365 * 10 * 3600);
