//! Explains to which next hops the request would be sent, in which order.

use hashcache_base::failure::Failure;
use hashcache_base::net::address::Purpose;
use hashcache_http::{Scheme, Space, via_members};
use hashcache_upstream::peer::{Peer, PeerKind};
use serde_json::{Value, json};

use super::Asked;
use crate::route::{Hop, Route, RouteRequest, Siblings};
use crate::worker::{Common, route_request};

/// Returns the name of the other member that owns the URL, is up, and would get the request.
pub(super) fn owner(common: &Common, asked: &Asked<'_>) -> Option<String> {
    let hops = member_hops(common, asked);
    let first = hops.first().and_then(Hop::peer);
    first.map(|peer| peer.name().to_owned())
}

/// Returns the members that get the request first.
fn member_hops(common: &Common, asked: &Asked<'_>) -> Vec<Hop> {
    let request = route_request(asked.space, &asked.target, &asked.fields);
    match asked.space {
        Space::Mirror(_) => Vec::new(),
        Space::Own | Space::Site(_) => common.live().routes.member_hops(request, &asked.fields),
    }
}

/// Returns a fetch's hops, and with members also the member that owns the URL.
pub(super) fn of_fetch(common: &Common, asked: &Asked<'_>) -> Value {
    let has_members =
        common.live().routes.members().is_some() && !matches!(asked.space, Space::Mirror(_));
    let mut route = hops_of_fetch(common, asked);
    if has_members && let Some(route) = route.as_object_mut() {
        let owner = owner(common, asked);
        let owner = owner.unwrap_or_else(|| "this box".to_owned());
        route.insert("owner".to_owned(), json!(owner));
    }
    route
}

fn hops_of_fetch(common: &Common, asked: &Asked<'_>) -> Value {
    let live = common.live();
    let request = RouteRequest {
        siblings: Siblings::Asked(asked.question.client),
        ..route_request(asked.space, &asked.target, &asked.fields)
    };
    let members = member_hops(common, asked);
    let hop = |it: &Hop| hop(common, it);
    if let Some(site) = &asked.site {
        let origins = site.figures().map(|(origin, figures)| {
            json!({
                "to": origin.authority.to_string(),
                "kind": "origin",
                "up": !figures.is_out,
                "failing": figures.is_failing,
                "cut_off": common.is_origin_cut_off(&origin.authority),
            })
        });
        let hops: Vec<Value> = members.iter().map(hop).chain(origins).collect();
        let by = "the origins of the site, as `balance` orders them";
        return json!({"cut_off": are_cut_off(&hops), "hops": hops, "by": by});
    }
    match live.routes.preview(request) {
        Ok(route) => of_route(common, route.behind(members)),
        Err(failure) => refused(&failure),
    }
}

/// Returns a tunnel's hops.
pub(super) fn of_tunnel(common: &Common, asked: &Asked<'_>) -> Value {
    let request = RouteRequest {
        scheme: Scheme::Http,
        authority: &asked.target.authority,
        path: "",
        purpose: Purpose::Forward,
        is_tunnel: true,
        via_members: via_members(&asked.fields),
        siblings: Siblings::NotAsked,
    };
    match common.live().routes.preview(request) {
        Ok(route) => of_route(common, route),
        Err(failure) => refused(&failure),
    }
}

fn of_route(common: &Common, route: Route) -> Value {
    let queries: Vec<&str> = route.queries().map(|peer| peer.name()).collect();
    let hops: Vec<Value> = route.hops().map(|it| hop(common, it)).collect();
    // A response that a sibling has stored is fetched from the sibling also while the line is down.
    let asks_sibling = route
        .queries()
        .any(|peer| peer.settings.kind == PeerKind::Sibling);
    let is_cut_off = !asks_sibling && are_cut_off(&hops);
    let by = match hops.len() {
        _ if !queries.is_empty() => "peers are asked by ICP or HTCP first; their replies decide",
        1 if !route.has_peer() => "no peer is configured for it, so its origin is asked",
        _ if route.hops().any(|hop| hop.member().is_some()) => {
            "the member that owns the URL, then the hops for URLs of this box"
        }
        _ => "the first `[[route]]` that matches, or `parent`, `direct` and `peer_choice`",
    };
    json!({"hops": hops, "asks_first": queries, "by": by, "cut_off": is_cut_off})
}

/// Returns true if all hops are behind a line that counts as down.
fn are_cut_off(hops: &[Value]) -> bool {
    !hops.is_empty() && hops.iter().all(|hop| hop["cut_off"] == true)
}

fn hop(common: &Common, hop: &Hop) -> Value {
    let through = hop.endpoint.through.as_ref();
    let to = through.map_or(&hop.endpoint.authority, |peer| &peer.settings.url.authority);
    json!({
        "to": to.to_string(),
        "kind": hop.peer().map_or("origin", |peer| kind(peer)),
        "peer": hop.peer().map(|peer| peer.name()),
        "code": hop.at(None).code(),
        "up": hop.is_up(),
        "cut_off": common.is_cut_off(hop),
    })
}

fn kind(peer: &Peer) -> &'static str {
    match peer.settings.kind {
        PeerKind::Parent if peer.link.is_some() => "parent with a link",
        PeerKind::Parent => "parent",
        PeerKind::Sibling => "sibling",
        PeerKind::Member => "member",
    }
}

fn refused(failure: &Failure) -> Value {
    json!({"hops": [], "error": failure.slug(), "by": "`direct` and the peers of the route"})
}
