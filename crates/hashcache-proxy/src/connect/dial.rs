//! Opens a channel to the destination of a CONNECT, by the first hop in the route that gives a
//! channel.
//!
//! Called by `connect` for tunnels, by `intercepted` for hosts that must be verified, and by both
//! `intercepted` and `transparent` for tunnels that start without a channel.

use std::net::IpAddr;
use std::rc::Rc;

use hashcache_access::quota::RequestLimits;
use hashcache_base::failure::Failure;
use hashcache_base::net::address::Purpose;
use hashcache_base::share::Share;
use hashcache_http::{Authority, Scheme, via_members};
use hashcache_upstream::channel::Channel;
use hashcache_wire::Socket;
use http::{HeaderMap, HeaderValue, Version};

use super::metered::Metered;
use super::tunnel;
use crate::connection::Connection;
use crate::fetch::{Others, Patience, is_final};
use crate::log_entry::TunnelEntryBuilder;
use crate::route::{NextHop, Route, RouteRequest, Siblings};
use crate::worker::Worker;

/// The destination of a CONNECT.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) route: Route,
    /// Via members for a peer that makes the tunnel, our own included.
    pub(crate) via: Option<HeaderValue>,
}

impl Destination {
    /// The destination `authority` for a client that sent these fields.
    ///
    /// # Errors
    /// As [`Worker::route`].
    pub(super) fn new(
        worker: &Worker,
        authority: &Authority,
        (fields, version): (&HeaderMap, Version),
    ) -> Result<Self, Failure> {
        let route = worker.route(RouteRequest {
            // The protocol inside the tunnel is not known here.
            scheme: Scheme::Http,
            authority,
            path: "",
            purpose: Purpose::Forward,
            is_tunnel: true,
            via_members: via_members(fields),
            siblings: Siblings::NotAsked,
        })?;
        let via = route
            .has_peer()
            .then(|| worker.common.via.chain(fields, version));
        Ok(Self { route, via })
    }

    /// Connects.
    ///
    /// # Errors
    /// The failure of the last hop.
    pub(super) async fn dial(
        &self,
        worker: &Worker,
        client: &Share,
    ) -> Result<(Channel, NextHop), Failure> {
        let mut failed = Failure::NoRoute;
        let mut patience = Patience::new(&worker.limits);
        for (number, hop) in self.route.hops().enumerate() {
            if let Err(offline) = worker.check_line(hop, Some(client)) {
                failed = offline;
                continue;
            }
            let others = Others::after(&self.route, number);
            if number > 0 && !hop.is_up() && others.is_any_up {
                // The peer went down while another hop was tried.
                continue;
            }
            let limit = others.connect_time(hop);
            let upstream = worker.upstream();
            let via = self.via.as_ref();
            let connecting = upstream.connect(&hop.endpoint, via, limit, Some(client));
            let connected = match hop.peer().filter(|_| others.is_any_up) {
                Some(peer) => {
                    let waited = patience.wait(peer, &others.peers, connecting).await;
                    waited.unwrap_or_else(Err)
                }
                None => connecting.await,
            };
            match connected {
                Ok((_, address)) if hop.peer().is_none() && is_member(worker, address.ip()) => {
                    return Err(Failure::DestinationDenied {
                        address: address.ip(),
                    });
                }
                Ok((channel, address)) => return Ok((channel, hop.at(Some(address)))),
                Err(failure) if is_final(&failure) => return Err(failure),
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }
}

/// Forwards bytes both ways until the tunnel closes, within the limits; connects to the upstream
/// first if necessary. If the client's quota is used up, or the upstream cannot be reached, the
/// client gets a reset: it has no other sign that something failed.
pub(super) async fn carry(
    connection: &Rc<Connection>,
    (client, upstream): (Socket, Option<Channel>),
    (to, limits): (&Destination, Option<RequestLimits>),
    mut log_entry: TunnelEntryBuilder,
) {
    let worker = &connection.worker;
    let checked = limits.as_ref().map(RequestLimits::check_quota);
    if let Some(Err(failure)) = checked {
        client.reset_on_drop(true);
        return log_entry.failed(worker, &failure);
    }
    let upstream = match upstream {
        Some(upstream) => upstream,
        None => {
            client.reset_on_drop(true);
            let mut drained = connection.drained.clone();
            let connected = tokio::select! {
                connected = to.dial(worker, connection.allowance.share()) => connected,
                _ = drained.wait_for(|drained| *drained) => {
                    return log_entry.write(worker, 0, true);
                }
            };
            match connected {
                Ok((upstream, next_hop)) => {
                    client.reset_on_drop(false);
                    log_entry.set_next_hop(next_hop);
                    upstream
                }
                Err(failure) => return log_entry.failed(worker, &failure),
            }
        }
    };
    let open = worker.metrics.tunnel();
    let upstream = Metered::new(upstream, limits);
    tunnel::carry(connection, log_entry, client, upstream, open).await;
}

/// Returns true if another member has this address. A member treats a request from our address as a
/// member request, so no client may reach it through a tunnel.
fn is_member(worker: &Worker, address: IpAddr) -> bool {
    let live = worker.common.live();
    let members = live.routes.members();
    members.is_some_and(|members| members.have_address(address))
}
