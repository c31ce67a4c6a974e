//! A channel to the destination of a CONNECT, by the first hop of its route that gives one.
//!
//! Called by `connect` for tunnels and by `intercepted` for hosts that are to be verified.

use std::time::Duration;

use http::HeaderValue;

use crate::failure::Failure;
use crate::fetch::is_final;
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
        let mut hops = self.route.hops().peekable();
        let mut failed = Failure::NoRoute;
        while let Some(hop) = hops.next() {
            let limit = hops.peek().map(|_| HURRIED_CONNECT);
            let upstream = worker.upstream();
            let via = self.via.as_ref();
            let connected = upstream.connect(&hop.endpoint, via, limit, Some(client));
            match connected.await {
                Ok((channel, address)) => return Ok((channel, hop.at(Some(address)))),
                Err(failure) if is_final(&failure) => return Err(failure),
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }
}

/// Limit on connecting while another hop is left.
const HURRIED_CONNECT: Duration = Duration::from_secs(3);
