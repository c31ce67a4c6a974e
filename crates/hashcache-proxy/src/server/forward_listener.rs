//! Accepts connections on a forwarded port of one core and carries them over the link to a parent.
//!
//! Started by `cores` for each `link_forward`. The parent connects to the destination, by the
//! parent's own rules for tunnels. The stream is coded in chunks (`connect/chunked`), or passes
//! unchanged if the parent cannot code or memory is short.
//!
//! Invariants: bytes leave this host only over a link. A connection counts as a client connection,
//! in total, by address and in memory, and a client that may not use the proxy may not use
//! forwarded ports either. If the connection cannot be made, the client's connection is reset,
//! because programs must not take a failure for a normal close.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use hashcache::Cache;
use hashcache_access::RequestUser;
use hashcache_base::failure::Failure;
use hashcache_base::share::Allowance;
use hashcache_base::sort::sort_by_key;
use hashcache_base::task::spawn_local;
use hashcache_link::chunk_field::ChunkField;
use hashcache_link::forward::LinkForward;
use hashcache_link::parent::ParentLink;
use hashcache_upstream::channel::Channel;
use hashcache_upstream::peer::Peer;
use hashcache_wire::Socket;
use http::Method;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::connection_counts::{CONNECTION_BYTES, ConnectionCounts};
use super::stage::{Stage, accept_while_serving};
use crate::client_access::ClientAccess;
use crate::connect::chunked::{self, ChunkPair, Ended, Moved};
use crate::connect::tunnel::{self, Carried};
use crate::log_entry::TunnelEntryBuilder;
use crate::route::NextHop;
use crate::worker::Worker;

/// State of a core for one forwarded port.
#[derive(Clone)]
pub(super) struct ForwardListener {
    pub(super) worker: Rc<Worker>,
    pub(super) cache: Cache,
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) stopping: watch::Receiver<Stage>,
    pub(super) forward: Rc<LinkForward>,
}

/// A connection that a parent has opened.
struct Opened {
    channel: Channel,
    next_hop: NextHop,
    /// `None` if bytes pass unchanged.
    pair: Option<ChunkPair>,
}

impl ForwardListener {
    /// Accepts connections until the process stops.
    pub(super) async fn accept(self, listener: TcpListener, alive: mpsc::Sender<()>) {
        let stopping = self.stopping.clone();
        let serve = |socket, client| {
            spawn_local(self.clone().serve(socket, client, alive.clone()));
        };
        accept_while_serving(listener, stopping, "a forwarded port", serve).await;
    }

    async fn serve(self, socket: TcpStream, client: SocketAddr, _alive: mpsc::Sender<()>) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let worker = Rc::clone(&self.worker);
        let common = &worker.common;
        // Fails only on a broken socket. Bytes that a program sends must leave at once.
        drop(socket.set_nodelay(true));
        let socket = Socket::from(socket);
        // Reset, unless the connection closes normally.
        socket.reset_on_drop(true);
        let permitted = {
            let live = common.live();
            let access = ClientAccess::new(client.ip(), &live);
            let request = (
                RequestUser::Unknowable,
                Method::CONNECT.as_str(),
                &self.forward.to,
            );
            access.permit(&worker, &live, request)
        };
        if let Err(failure) = permitted {
            return debug!(%client, %failure, "client of a forwarded port refused");
        }
        let allowance = Allowance::new(common.shares.of(client.ip()), self.cache.clone());
        let limits = &worker.limits;
        let _counted = match self.counts.admit(&allowance, CONNECTION_BYTES, limits) {
            Ok(counted) => counted,
            Err(limit) => return worker.metrics.limit(limit),
        };
        let _open = worker.metrics.connection();
        let authority = self.forward.to.to_string();
        let mut log_entry = TunnelEntryBuilder::of_forward(&worker, client, authority);
        let mut stopping = self.stopping.clone();
        // On the heap, because the futures are large.
        let opening = Box::pin(self.open(&allowance));
        let opened = tokio::select! {
            opened = opening => opened,
            _ = stopping.wait_for(|stage| *stage == Stage::Over) => return,
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                let to = &self.forward.to;
                debug!(%client, %to, %failure, "no connection for a forwarded port");
                return log_entry.failed(&worker, &failure);
            }
        };
        socket.reset_on_drop(false);
        log_entry.set_next_hop(opened.next_hop);
        let _tunnel = worker.metrics.tunnel();
        let stop = async move {
            let _ = stopping.wait_for(|stage| *stage == Stage::Over).await;
        };
        let idle_time = limits.tunnel_idle_time;
        let mut reported = 0;
        let mut report = |to_client: u64| {
            log_entry.write(&worker, to_client - reported, false);
            reported = to_client;
        };
        let (to_client, broke) = match opened.pair {
            Some(pair) => {
                let progress = |moved: Moved| report(moved.to_near);
                let running = chunked::run(socket, opened.channel, pair, idle_time, stop, progress);
                let (moved, ended) = Box::pin(running).await;
                (moved.to_near, ended == Ended::Broke)
            }
            None => {
                let progress = |carried: Carried| report(carried.to_client);
                let running = tunnel::run(socket, opened.channel, idle_time, stop, progress);
                let (carried, ended) = Box::pin(running).await;
                (carried.to_client, ended.is_broken())
            }
        };
        log_entry.write(&worker, to_client - reported, broke);
    }

    /// Opens the connection through a parent.
    async fn open(&self, allowance: &Allowance) -> Result<Opened, Failure> {
        let live = self.worker.common.live.load_full();
        let linked = live.routes.peers().iter();
        let linked = linked.filter_map(|peer| Some((peer, peer.link.as_ref()?)));
        let mut parents: Vec<_> = linked.collect();
        // Connected parents first, otherwise in the order of the configuration.
        sort_by_key(&mut parents, |(_, link)| !link.is_up());
        let mut failed = Failure::NoRoute;
        for (peer, link) in parents {
            match self.open_by((peer, link), allowance).await {
                Ok(opened) => return Ok(opened),
                // The parent has answered with a refusal: do not try to get the same connection
                // from another parent.
                Err(failure @ Failure::PeerStatus { .. }) => return Err(failure),
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }

    async fn open_by(
        &self,
        (peer, link): (&Arc<Peer>, &ParentLink),
        allowance: &Allowance,
    ) -> Result<Opened, Failure> {
        let common = &self.worker.common;
        let reserved = chunked::reserve(allowance, common.shares.memory_max());
        let offer = reserved.as_ref().map(|(own, _)| ChunkField {
            window: own.receive,
            key: None,
        });
        let upstream = self.worker.upstream();
        let asking =
            upstream.connect_chunked((peer, link), &self.forward.to, offer, allowance.share());
        let (channel, address, answer) = asking.await?;
        let pair = match reserved.zip(answer) {
            Some(((own, memory), answer)) => {
                let key = answer.key.ok_or(Failure::ConnectionTerminated)?;
                Some(ChunkPair {
                    key,
                    windows: chunked::agreed(own, &answer),
                    known: common.chunks.of(link.pin(), key, &self.cache),
                    cache: self.cache.clone(),
                    counters: Arc::clone(&link.counters),
                    _memory: memory,
                })
            }
            None => None,
        };
        Ok(Opened {
            channel,
            next_hop: NextHop::of_parent(peer, address),
            pair,
        })
    }
}
