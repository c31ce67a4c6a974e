//! Finds the next hops for a request, by the current routes, and checks that they can be reached at
//! all.
//!
//! Called by `request` and `fetch` before anything is sent upstream.
//!
//! Invariant: a host that is an address which clients may not reach is refused here, because
//! otherwise a peer would fetch from it in their place.

use hashcache_base::failure::Failure;
use hashcache_base::net::address::{Purpose, check_port};
use hashcache_base::share::Share;
use hashcache_http::{Authority, Space, Target, via_members};
use hashcache_upstream::offline::Chosen;
use http::HeaderMap;

use super::{Common, Worker};
use crate::route::{Hop, Route, RouteRequest, Siblings, literal_address};

impl Common {
    /// Returns true if a member that is up, and not this box, must store the resource.
    pub(crate) fn is_of_member(&self, space: Space, target: &Target) -> bool {
        let live = self.live();
        let has_members = live.routes.members().is_some() && !matches!(space, Space::Mirror(_));
        let request = || route_request(space, target, &HeaderMap::new());
        has_members && live.routes.is_of_member(request())
    }

    /// Returns true if `hop` is behind a line that counts as down. Siblings that serve only stored
    /// responses are not behind it, nor are boxes of the same site and origins in the operator's
    /// own network.
    pub(crate) fn is_cut_off(&self, hop: &Hop) -> bool {
        match hop.peer() {
            Some(_) => {
                let is_near = hop.wants_stored() || hop.member().is_some();
                self.live().upstream.line.is_down() && !is_near
            }
            None => self.is_origin_cut_off(&hop.endpoint.authority),
        }
    }

    /// As [`is_cut_off`](Self::is_cut_off), for an origin that is reached without a peer.
    pub(crate) fn is_origin_cut_off(&self, origin: &Authority) -> bool {
        let upstream = &self.live().upstream;
        upstream.line.is_down() && !upstream.destinations.is_inside(&origin.host)
    }
}

impl Worker {
    /// The next hops for a request with these fields.
    ///
    /// # Errors
    /// As [`Worker::route`].
    pub(crate) fn route_to(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Result<Route, Failure> {
        self.route_of_fetch(space, target, fields, Siblings::NotAsked)
    }

    /// As [`route_to`](Self::route_to), without members.
    pub(crate) fn route_past_members(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Result<Route, Failure> {
        self.route(route_request(space, target, fields))
    }

    /// The members that get the request before the route's own hops: see `Routes::member_hops`.
    pub(crate) fn member_hops(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Vec<Hop> {
        // Each box has its own keys and links for a mirror.
        if matches!(space, Space::Mirror(_)) {
            return Vec::new();
        }
        let request = route_request(space, target, fields);
        self.common.live().routes.member_hops(request, fields)
    }

    /// The next hops for a fetch, which may include siblings.
    pub(crate) fn route_of_fetch(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
        siblings: Siblings,
    ) -> Result<Route, Failure> {
        let request = RouteRequest {
            siblings,
            ..route_request(space, target, fields)
        };
        let members = self.member_hops(space, target, fields);
        if !members.is_empty() {
            self.check_literal(request)?;
        }
        Ok(self.route(request)?.behind(members))
    }

    /// The next hops for a request that changes to another protocol, such as WebSocket. A peer that
    /// does not know the protocol would not forward the request, so the peer makes a tunnel.
    pub(crate) fn route_for_upgrade(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Result<Route, Failure> {
        self.route(RouteRequest {
            is_tunnel: true,
            ..route_request(space, target, fields)
        })
    }

    /// The next hops for a request that only `server` may answer, whatever name the request has. A
    /// peer would look the name up, so the peer makes a tunnel.
    pub(crate) fn route_to_server(
        &self,
        target: &Target,
        server: &Authority,
        fields: &HeaderMap,
    ) -> Result<Route, Failure> {
        check_port(
            &self.common.live().settings.allow_port,
            target.scheme,
            server.port,
        )?;
        self.route(RouteRequest {
            authority: server,
            is_tunnel: true,
            ..route_request(Space::Own, target, fields)
        })
    }

    /// The next hops for a resource.
    ///
    /// # Errors
    /// No hop may be used, or the resource is at an address that clients may not reach and that
    /// therefore no peer may fetch from either.
    pub(crate) fn route(&self, request: RouteRequest<'_>) -> Result<Route, Failure> {
        let route = self.common.live().routes.plan(request)?;
        if route.has_peer() {
            self.check_literal(request)?;
        }
        Ok(route)
    }

    /// Returns `Ok` if `hop` may be used while the line counts as down. If it may not, and `client`
    /// wants an origin there, a connection to this origin may later show that the line is back.
    ///
    /// # Errors
    /// The hop is cut off.
    pub(crate) fn check_line(&self, hop: &Hop, client: Option<&Share>) -> Result<(), Failure> {
        if !self.common.is_cut_off(hop) {
            return Ok(());
        }
        let endpoint = &hop.endpoint;
        if hop.peer().is_none() && endpoint.purpose == Purpose::Forward {
            self.common.live().upstream.line.note_refused(&Chosen {
                origin: endpoint.authority.clone(),
                client: client.map(Share::network),
            });
        }
        Err(Failure::Offline)
    }

    /// Refuses a host that is an address which clients may not reach.
    fn check_literal(&self, request: RouteRequest<'_>) -> Result<(), Failure> {
        let Some(address) = literal_address(&request.authority.host) else {
            return Ok(());
        };
        let live = self.common.live();
        live.upstream.destinations.check(address, request.purpose)
    }
}

/// The route request for a resource, on behalf of a client request with these fields.
pub(crate) fn route_request<'a>(
    space: Space,
    target: &'a Target,
    fields: &HeaderMap,
) -> RouteRequest<'a> {
    RouteRequest {
        scheme: target.scheme,
        authority: &target.authority,
        path: &target.path_and_query,
        purpose: match space {
            Space::Site(_) | Space::Mirror(_) => Purpose::Configured,
            Space::Own => Purpose::Forward,
        },
        is_tunnel: false,
        via_members: via_members(fields),
        siblings: Siblings::NotAsked,
    }
}
