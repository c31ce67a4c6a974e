//! A channel to the destination of a CONNECT, by the first hop of its route that gives one.
//!
//! Called by `connect` for tunnels and by `intercepted` for hosts that are to be verified.

use std::net::IpAddr;

use http::HeaderValue;

use crate::failure::Failure;
use crate::fetch::{Others, Patience, is_final};
use crate::route::{NextHop, Route};
use crate::share::Share;
use crate::upstream::channel::Channel;
use crate::worker::Worker;

/// The destination of a CONNECT.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) route: Route,
    /// Members of Via for a peer that makes the tunnel, our own included.
    pub(crate) via: Option<HeaderValue>,
}

impl Destination {
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
            let others = Others::after(&self.route, number);
            if number > 0 && !hop.is_up() && others.is_any_up {
                // It went down while another one was waited for.
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

/// Whether another box of the list has this address. It takes what comes from our address for the
/// request of a member, so no client may speak to it through a tunnel.
fn is_member(worker: &Worker, address: IpAddr) -> bool {
    let live = worker.common.live();
    let members = live.routes.members();
    members.is_some_and(|members| members.have_address(address))
}
