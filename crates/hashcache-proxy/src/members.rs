//! Members: the boxes of a site, each of which stores its own part of the URLs.
//!
//! Every box has the same list, itself included. Weighted rendezvous hashing
//! (`hashcache_peers::rendezvous`) gives an order of the boxes for each URL, and the first box is
//! the owner. A box that is not the owner sends the request to the owner as to a parent and keeps
//! the response only in memory (`fetch::judge`), for [`COPY_TIME`] at most (`reuse`).
//!
//! Made by `route` from the peers in the configuration; `worker` looks up the owners for each
//! request that is sent upstream.
//!
//! Invariants: a request whose Via names a member from our list is never sent to a member.
//! Therefore lists that disagree cost a hop for each box that does not know the boxes before it,
//! but never make a loop, because every box knows itself. The order stops at this box: no member
//! after it gets the request.
//! Cost: an MD5 and a logarithm for each member and request; the same for a hit on disk if the
//! response was fetched more than [`COPY_TIME`] ago.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hashcache_http::via_names;
use hashcache_peers::members::Member;
use hashcache_peers::rendezvous;
use http::HeaderMap;

use hashcache_upstream::peer::{Peer, PeerKind};

/// The members in the current configuration.
#[derive(Debug)]
pub(crate) struct MemberList {
    /// In the order of the list; `None` is this box.
    boxes: Vec<Option<Arc<Peer>>>,
    order: rendezvous::Members,
    names: Vec<String>,
}

/// Time for which a response that another member stores is served from memory without a request to
/// that member. Purges by the admin listener and unsafe requests at other boxes take effect here
/// after this time.
pub(crate) const COPY_TIME: Duration = Duration::from_secs(10);

impl MemberList {
    /// The members among `peers`; `None` if there are none besides the box with the name `us`.
    pub(crate) fn new(peers: &[Arc<Peer>], us: &str) -> Option<Self> {
        let is_member = |peer: &&Arc<Peer>| peer.settings.kind == PeerKind::Member;
        let all: Vec<_> = peers.iter().filter(is_member).collect();
        let member = |peer: &&Arc<Peer>| (peer.name().to_owned(), peer.settings.weight);
        let named: Vec<(String, u32)> = all.iter().map(member).collect();
        let members: Vec<_> = named
            .iter()
            .map(|(name, weight)| Member {
                name,
                weight: *weight,
            })
            .collect();
        // The configuration has already checked names and weights.
        let order = rendezvous::Members::new(&members).ok()?;
        let other = |peer: &&Arc<Peer>| (peer.name() != us).then(|| Arc::clone(peer));
        let boxes: Vec<_> = all.iter().map(other).collect();
        let has_others = boxes.iter().flatten().next().is_some();
        has_others.then(|| Self {
            boxes,
            order,
            names: named.into_iter().map(|(name, _)| name).collect(),
        })
    }

    /// The members that get the request for `url`: they are up and precede this box; at most two.
    /// If there are none, this box is the owner, or stands in for it.
    pub(crate) fn owners(&self, url: &str) -> Vec<Arc<Peer>> {
        let order = self.order.order(url.as_bytes());
        let order = order.into_iter().map(|at| self.boxes[at].as_ref());
        let before_us = order.map_while(|member| member);
        let up = before_us.filter(|peer| peer.health.is_up());
        up.take(OWNERS_MAX).cloned().collect()
    }

    /// Returns true if a request has passed through a member: then this box must answer it.
    pub(crate) fn are_in_via(&self, request: &HeaderMap) -> bool {
        via_names(request).any(|name| {
            let mut names = self.names.iter();
            names.any(|member| member.as_bytes().eq_ignore_ascii_case(name))
        })
    }

    /// Returns true if another box sent this request from `address`. Any client can write Via, so
    /// the address must belong to a box too.
    pub(crate) fn have_sent(&self, address: IpAddr, request: &HeaderMap) -> bool {
        self.have_address(address) && self.are_in_via(request)
    }

    /// Returns true if `address` belongs to another box.
    pub(crate) fn have_address(&self, address: IpAddr) -> bool {
        self.others().any(|member| member.has_address(address))
    }

    /// The other boxes.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.boxes.iter().flatten()
    }
}

/// Maximum number of members that get a request for the same resource: the owner, and the next
/// member if the owner does not answer.
const OWNERS_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hashcache_upstream::peer::{
        Credentials, PeerFailure, PeerHttps, PeerMisses, PeerSettings, PeerSummary,
    };
    use http::HeaderValue;
    use http::header::VIA;
    use tokio::time::Instant;

    use super::*;

    fn list() -> Vec<Arc<Peer>> {
        let peer = |name: &str| {
            let settings = PeerSettings {
                name: name.into(),
                kind: PeerKind::Member,
                url: format!("http://{name}.test:3128").parse().unwrap(),
                credentials: Credentials::None,
                https: PeerHttps::Tunnel,
                icp: None,
                htcp: None,
                summary: PeerSummary::None,
                misses: PeerMisses::Fetched,
                weight: 1,
                pin: None,
            };
            Arc::new(settings.load(None).unwrap())
        };
        ["a", "b", "c"].map(peer).to_vec()
    }

    fn urls() -> impl Iterator<Item = String> {
        (0..300).map(|n| format!("http://x.test/{n}"))
    }

    /// Which box answers for each URL when a client asks each box.
    fn answering(at: &str, list: &[Arc<Peer>]) -> BTreeMap<String, String> {
        let members = MemberList::new(list, at).unwrap();
        let of = |url: &String| members.owners(url).first().map(|it| it.name().to_owned());
        let owner = |url: String| (url.clone(), of(&url).unwrap_or_else(|| at.to_owned()));
        urls().map(owner).collect()
    }

    #[test]
    fn all_boxes_agree_on_the_owner_of_each_url() {
        let owners = answering("a", &list());
        assert_eq!(owners, answering("b", &list()));
        assert_eq!(owners, answering("c", &list()));
        for name in ["a", "b", "c"] {
            let own = owners.values().filter(|owner| *owner == name).count();
            assert!((60..140).contains(&own), "{name}: {own}");
        }
    }

    #[test]
    fn the_urls_of_a_box_that_is_down_go_to_the_next_one_and_no_others_move() {
        let before = answering("a", &list());
        let list = list();
        list[1].health.failed(PeerFailure::Refused, Instant::now());
        let after = answering("a", &list);
        assert_eq!(after, answering("c", &list));
        for (url, owner) in &before {
            match owner.as_str() {
                "b" => assert_ne!(after[url], "b"),
                _ => assert_eq!(after[url], *owner),
            }
        }
        assert!(after.values().any(|owner| owner == "c"));
    }

    #[test]
    fn a_request_of_a_member_is_known_by_its_name_in_via() {
        let members = MemberList::new(&list(), "a").unwrap();
        let seen = |via: &'static str| {
            members.are_in_via(&HeaderMap::from_iter([(
                VIA,
                HeaderValue::from_static(via),
            )]))
        };
        assert!(seen("1.1 b") && seen("1.0 x, 2 C") && seen("1.1 b, 1.1 x"));
        assert!(!seen("1.1 d") && !seen("1.1 x (b)"));
        assert!(!members.are_in_via(&HeaderMap::new()));
    }

    #[test]
    fn a_box_alone_has_no_members_to_ask() {
        assert!(MemberList::new(&list()[..1], "a").is_none());
        assert!(MemberList::new(&[], "a").is_none());
    }
}
