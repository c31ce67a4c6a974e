//! Routes: the next hops for a resource, and their order.
//!
//! `worker` has the [`Routes`] of the current configuration; `request`, `fetch` and `connect` get a
//! [`Route`] from them before they send a request, and try the hops in order (`fetch/ask`,
//! `connect`).
//!
//! Siblings are first if their digest has the resource. If no digest has it, a route may name peers
//! to query by UDP before the first hop is tried; `queries` sends these queries, and
//! [`Route::after`] puts the hops in the order that the replies suggest.
//!
//! Invariants: no I/O, no waiting, and no clock. A route has at least one hop, at most [`HOPS_MAX`]
//! besides [`SIBLINGS_MAX`] siblings or two members, and no hop twice. A request from a sibling is
//! never sent to a sibling. A request that has passed through many proxies uses no peer: this stops
//! a loop of proxies that hide their names in Via.
//! Cost: without peers, one comparison and no allocation except for the endpoint.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashcache_base::failure::Failure;
use hashcache_base::net::address::{ConnectPort, Purpose};
use hashcache_base::net::prefix::Prefix;
use hashcache_base::sort::sort_by_key;
use hashcache_http::{Authority, Exempt, Host, Origin, Scheme};
use hashcache_intercept::hosts::HostPattern;
use hashcache_peers::carp::Array;
use hashcache_peers::key::Key;
use hashcache_peers::members::Member;
use hashcache_peers::rendezvous::Members;
use hashcache_site::live::SiteRequest;
use hashcache_upstream::peer::learned::Verdict;
use hashcache_upstream::peer::{Peer, PeerHttps, PeerKind, PeerMisses, PeerSummary};
use hashcache_upstream::{AbsoluteForm, Endpoint, Wanted};
use http::HeaderMap;

use crate::members::MemberList;

/// Use of the origins directly, besides or instead of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Direct if no peer gives a response.
    #[default]
    Allow,
    /// Direct first; peers if the origin cannot be reached.
    Prefer,
    /// Never direct.
    Never,
}

/// How the first parent is chosen among several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerChoice {
    /// The first parent in the list that is up.
    #[default]
    First,
    /// Each parent in turn, by weight.
    RoundRobin,
    /// A fixed parent for each URL, by weight: highest random weight (rendezvous hashing).
    Rendezvous,
    /// A fixed parent for each URL, by the Cache Array Routing Protocol, as other proxies of the
    /// site compute it.
    Carp,
    /// The parent with the shortest connect time.
    Fastest,
}

/// Hosts to which a route applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteHost {
    /// A name, or all names below a domain.
    Name(HostPattern),
    /// Addresses.
    Network(Prefix),
}

impl RouteHost {
    fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Name(pattern), Host::Name(name)) => pattern.matches(name),
            (Self::Network(network), Host::V4(v4)) => network.contains(IpAddr::V4(*v4)),
            (Self::Network(network), Host::V6(v6)) => network.contains(IpAddr::V6(*v6)),
            (Self::Name(_), _) | (Self::Network(_), Host::Name(_)) => false,
        }
    }
}

/// A `[[route]]` table: how the resources that match it are fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSettings {
    /// Hosts; empty: all.
    pub hosts: Vec<RouteHost>,
    /// Ports; empty: all.
    pub ports: Vec<ConnectPort>,
    /// The scheme; `None`: all. A tunnel (CONNECT) counts as https.
    pub scheme: Option<Scheme>,
    /// Names of the peers that may be used, in this order; `None`: all.
    pub peers: Option<Vec<String>>,
    /// Use of origins without a peer.
    pub direct: Direct,
    /// Choice of the first peer.
    pub choice: PeerChoice,
}

impl RouteSettings {
    /// Returns true if peers may get requests for resources of `scheme`, which needs a gateway. Not
    /// every proxy is such a gateway, so peers are used only if the route is for that scheme, or if
    /// there is no other way.
    fn may_forward(&self, scheme: Scheme) -> bool {
        self.scheme == Some(scheme) || self.direct == Direct::Never
    }
}

/// The routes in the current configuration.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    peers: Vec<Arc<Peer>>,
    members: Option<MemberList>,
    rules: Vec<Rule>,
    has_stored_only_peer: bool,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Rule {
    settings: RouteSettings,
    parents: Vec<Arc<Peer>>,
    siblings: Vec<Sibling>,
    order: Order,
}

/// A sibling, with copies of the settings that each miss reads. To read the peer itself takes time,
/// because it is seldom in the processor's cache.
#[derive(Debug)]
struct Sibling {
    peer: Arc<Peer>,
    summary: PeerSummary,
    https: PeerHttps,
}

impl Sibling {
    fn new(peer: Arc<Peer>) -> Self {
        Self {
            summary: peer.settings.summary,
            https: peer.settings.https,
            peer,
        }
    }

    /// Returns true if the sibling's digest is valid for resources of this scheme.
    fn has_digest(&self, scheme: Scheme) -> bool {
        self.summary != PeerSummary::None && self.https.takes_url(scheme)
    }
}

/// Order of the peers in a rule.
#[derive(Debug)]
enum Order {
    Listed,
    RoundRobin,
    Rendezvous(Members),
    Carp(Array),
    Fastest,
}

impl Order {
    fn new(choice: PeerChoice, peers: &[Arc<Peer>]) -> Self {
        let members: Vec<_> = peers.iter().map(|peer| member(peer)).collect();
        // Without members there is nothing to order; the configuration check has validated names
        // and weights.
        match choice {
            PeerChoice::First => Self::Listed,
            PeerChoice::RoundRobin => Self::RoundRobin,
            PeerChoice::Rendezvous => Members::new(&members).map_or(Self::Listed, Self::Rendezvous),
            PeerChoice::Carp => Array::new(&members).map_or(Self::Listed, Self::Carp),
            PeerChoice::Fastest => Self::Fastest,
        }
    }
}

fn member(peer: &Peer) -> Member<'_> {
    Member {
        name: peer.name(),
        weight: peer.settings.weight,
    }
}

/// A resource to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteRequest<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) authority: &'a Authority,
    /// Path and query; empty for a tunnel.
    pub(crate) path: &'a str,
    pub(crate) purpose: Purpose,
    /// The connection carries another protocol than HTTP requests: CONNECT, WebSocket.
    pub(crate) is_tunnel: bool,
    /// Number of proxies in the Via field of the client's request.
    pub(crate) via_members: usize,
    pub(crate) siblings: Siblings,
}

/// Permission for siblings to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// Siblings may answer if they have the resource by their digest or by UDP reply, unless the
    /// client at this address is a sibling.
    Asked(Option<IpAddr>),
    /// The store of a sibling may not answer this kind of request.
    NotAsked,
}

/// Effect of a route on the turn of its first parent: used up, or left for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Taken,
    Left,
}

/// The next hops for a resource, in the order in which they are tried.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    first: Hop,
    rest: Vec<Hop>,
    /// Set if the request is to one of our sites; then the hops are the site's origins.
    site: Option<Arc<SiteRequest>>,
    /// Hops to query by UDP first: siblings, which are not among the hops yet, and parents, which
    /// are.
    queries: Vec<Hop>,
    /// Siblings with a digest that was never fetched; after the first fetch it may show that they
    /// have the resource.
    unlearned: Vec<Arc<Peer>>,
    /// The key hash of the URL, if it was looked up in a digest.
    key: Option<Key>,
}

/// The replies to a route's queries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replies {
    /// Numbers of the queries with the reply HIT, best first.
    pub(crate) hits: Vec<usize>,
    /// Numbers of the queries with the reply MISS, first reply first.
    pub(crate) misses: Vec<usize>,
    /// At least one reply did not arrive in time.
    pub(crate) timed_out: bool,
}

/// One way to fetch a resource.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    /// The server to connect to.
    pub(crate) endpoint: Endpoint,
    /// Set if the server is a peer: it gets the request with the absolute URL.
    pub(crate) absolute: Option<AbsoluteForm>,
    pub(crate) code: HierarchyCode,
    /// Peers were queried, and not all replied in time.
    pub(crate) timed_out: bool,
}

/// Reason for the choice of a next hop, by Squid's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HierarchyCode {
    Direct,
    FirstUpParent,
    RoundRobinParent,
    /// By a hash of the URL.
    Carp,
    ClosestParent,
    /// A sibling has the response, by the digest.
    CdSiblingHit,
    /// A sibling has the response, by the reply.
    SiblingHit,
    /// A parent has the response, by the reply.
    ParentHit,
    /// No peer has the response, and this parent sent the first MISS reply.
    FirstParentMiss,
}

impl HierarchyCode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "HIER_DIRECT",
            Self::FirstUpParent => "FIRSTUP_PARENT",
            Self::RoundRobinParent => "ROUNDROBIN_PARENT",
            Self::Carp => "CARP",
            Self::ClosestParent => "CLOSEST_PARENT",
            Self::CdSiblingHit => "CD_SIBLING_HIT",
            Self::SiblingHit => "SIBLING_HIT",
            Self::ParentHit => "PARENT_HIT",
            Self::FirstParentMiss => "FIRST_PARENT_MISS",
        }
    }

    /// As [`as_str`](Self::as_str), if replies to queries did not arrive in time.
    fn as_str_timed_out(self) -> &'static str {
        match self {
            Self::Direct => "TIMEOUT_HIER_DIRECT",
            Self::FirstUpParent => "TIMEOUT_FIRSTUP_PARENT",
            Self::RoundRobinParent => "TIMEOUT_ROUNDROBIN_PARENT",
            Self::CdSiblingHit => "TIMEOUT_CD_SIBLING_HIT",
            Self::SiblingHit => "TIMEOUT_SIBLING_HIT",
            Self::ParentHit => "TIMEOUT_PARENT_HIT",
            Self::FirstParentMiss => "TIMEOUT_FIRST_PARENT_MISS",
            Self::Carp => "TIMEOUT_CARP",
            Self::ClosestParent => "TIMEOUT_CLOSEST_PARENT",
        }
    }
}

/// The next hop that was tried, for logs.
#[derive(Clone, Debug)]
pub(crate) struct NextHop {
    /// `None`: there was no connection.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) peer: Option<Arc<Peer>>,
    code: HierarchyCode,
    timed_out: bool,
}

impl NextHop {
    /// The parent that makes the connections for forwarded ports, at `address`.
    pub(crate) fn of_parent(peer: &Arc<Peer>, address: SocketAddr) -> Self {
        Self {
            address: Some(address),
            peer: Some(Arc::clone(peer)),
            code: HierarchyCode::FirstUpParent,
            timed_out: false,
        }
    }

    /// Returns true if the hop is a member, which stores the response itself.
    pub(crate) fn is_member(&self) -> bool {
        let peer = self.peer.as_ref();
        peer.is_some_and(|peer| peer.settings.kind == PeerKind::Member)
    }

    /// Returns true if the hop is a sibling, which gives no information about the response time of
    /// the origin.
    pub(crate) fn is_sibling(&self) -> bool {
        matches!(
            self.code,
            HierarchyCode::SiblingHit | HierarchyCode::CdSiblingHit
        )
    }

    /// Reason for the choice of the hop, by Squid's names.
    pub(crate) fn code(&self) -> &'static str {
        if self.timed_out {
            self.code.as_str_timed_out()
        } else {
            self.code.as_str()
        }
    }
}

impl Hop {
    /// The peer that gets the request, or that makes the tunnel.
    pub(crate) fn peer(&self) -> Option<&Arc<Peer>> {
        let absolute = self.absolute.as_ref().map(|form| &form.peer);
        absolute.or(self.endpoint.through.as_ref())
    }

    pub(crate) fn at(&self, address: Option<SocketAddr>) -> NextHop {
        NextHop {
            address,
            peer: self.peer().cloned(),
            code: self.code,
            timed_out: self.timed_out,
        }
    }

    /// Returns true if the peer may only serve a stored response.
    pub(crate) fn wants_stored(&self) -> bool {
        let absolute = self.absolute.as_ref();
        absolute.is_some_and(|form| form.wanted == Wanted::Stored)
    }

    /// Returns true if the peer is a sibling that was chosen by a digest.
    pub(crate) fn is_by_digest(&self) -> bool {
        self.code == HierarchyCode::CdSiblingHit
    }

    /// Returns true if the server is believed to be up.
    pub(crate) fn is_up(&self) -> bool {
        self.peer().is_none_or(|peer| peer.health.is_up())
    }

    /// The member, if this hop leads to a member.
    pub(crate) fn member(&self) -> Option<&Arc<Peer>> {
        self.peer()
            .filter(|peer| peer.settings.kind == PeerKind::Member)
    }

    fn is_same_peer(&self, other: &Hop) -> bool {
        match (self.peer(), other.peer()) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Route {
    /// A route with the origin as the only hop.
    pub(crate) fn direct(endpoint: Endpoint) -> Self {
        let first = Hop {
            endpoint,
            absolute: None,
            code: HierarchyCode::Direct,
            timed_out: false,
        };
        Self {
            first,
            rest: Vec::new(),
            site: None,
            queries: Vec::new(),
            unlearned: Vec::new(),
            key: None,
        }
    }

    /// The key hash of the URL, if it was looked up in a peer's digest.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Siblings with a digest that nobody has tried to fetch. A short wait for it may save a fetch
    /// from the origin.
    pub(crate) fn unlearned(&self) -> &[Arc<Peer>] {
        &self.unlearned
    }

    /// The peers to query by UDP before the first hop is tried. A query is numbered by the position
    /// in this order.
    pub(crate) fn queries(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.queries.iter().filter_map(Hop::peer)
    }

    /// The route after the queries: first siblings that have the response, then the parent that has
    /// it or that replied first, then the other hops in the old order.
    pub(crate) fn after(self, replies: &Replies) -> Self {
        let queries = self.queries;
        let mut hops: Vec<Hop> = std::iter::once(self.first).chain(self.rest).collect();
        let is_parent = |hop: &&Hop| !hop.wants_stored();
        let hits: Vec<_> = replies
            .hits
            .iter()
            .filter_map(|n| queries.get(*n))
            .collect();
        let mut misses = replies.misses.iter().filter_map(|n| queries.get(*n));
        let parent_hit = hits.iter().copied().find(is_parent);
        let first_miss = misses.find(is_parent);
        let parent = match parent_hit {
            Some(hop) => Some((hop, HierarchyCode::ParentHit)),
            None => first_miss.map(|hop| (hop, HierarchyCode::FirstParentMiss)),
        };
        if let Some((parent, code)) = parent
            && let Some(at) = hops.iter().position(|hop| hop.is_same_peer(parent))
        {
            let hop = hops.remove(at);
            hops.insert(0, Hop { code, ..hop });
        }
        let siblings = hits.into_iter().filter(|hop| hop.wants_stored());
        let siblings = siblings.take(SIBLINGS_MAX);
        hops.splice(..0, siblings.cloned().collect::<Vec<_>>());
        for hop in &mut hops {
            hop.timed_out = replies.timed_out;
        }
        let first = hops.remove(0);
        Self {
            first,
            rest: hops,
            site: self.site,
            queries: Vec::new(),
            unlearned: Vec::new(),
            key: self.key,
        }
    }

    /// Members, then the origins of a site; `None` if there are none.
    pub(crate) fn of_site(
        site: Arc<SiteRequest>,
        members: Vec<Hop>,
        origins: Vec<Endpoint>,
    ) -> Option<Self> {
        let origins = origins.into_iter().map(|endpoint| Hop {
            endpoint,
            absolute: None,
            code: HierarchyCode::Direct,
            timed_out: false,
        });
        let mut hops = members.into_iter().chain(origins);
        Some(Self {
            first: hops.next()?,
            rest: hops.collect(),
            site: Some(site),
            queries: Vec::new(),
            unlearned: Vec::new(),
            key: None,
        })
    }

    /// The route with these members first. Members query other peers themselves, so no peer is
    /// queried by ICP before them.
    pub(crate) fn behind(self, members: Vec<Hop>) -> Self {
        let mut hops = members.into_iter();
        let Some(first) = hops.next() else {
            return self;
        };
        Self {
            first,
            rest: hops.chain([self.first]).chain(self.rest).collect(),
            site: self.site,
            queries: Vec::new(),
            unlearned: Vec::new(),
            key: self.key,
        }
    }

    /// The site request, if the request is to one of our sites.
    pub(crate) fn site(&self) -> Option<&Arc<SiteRequest>> {
        self.site.as_ref()
    }

    /// The request fields that the key or a trusted front proxy has already accounted for.
    pub(crate) fn exempt(&self) -> Exempt<'_> {
        let site = self.site.as_ref();
        site.map_or(Exempt::default(), |site| site.exempt())
    }

    /// The hop that is tried first.
    pub(crate) fn first(&self) -> &Hop {
        &self.first
    }

    pub(crate) fn hops(&self) -> impl Iterator<Item = &Hop> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Returns true if a hop is a parent that is reached by a link.
    pub(crate) fn has_link(&self) -> bool {
        let mut peers = self.hops().filter_map(Hop::peer);
        peers.any(|peer| peer.link.is_some())
    }

    /// Moves hop `number` to the front: it sent the head of a response, and more of that response
    /// must be fetched.
    pub(crate) fn beginning_with(mut self, number: usize) -> Self {
        if let Some(at) = number.checked_sub(1).filter(|at| *at < self.rest.len()) {
            let chosen = self.rest.remove(at);
            let before = std::mem::replace(&mut self.first, chosen);
            self.rest.insert(0, before);
        }
        self
    }

    /// A route with only the hop that leads to `endpoint`; `None` if no hop does.
    pub(crate) fn only(&self, endpoint: &Endpoint) -> Option<Self> {
        let hop = self.hops().find(|hop| hop.endpoint == *endpoint)?;
        Some(Self {
            first: hop.clone(),
            rest: Vec::new(),
            site: self.site.clone(),
            queries: Vec::new(),
            unlearned: Vec::new(),
            key: None,
        })
    }

    /// Moves the first hop to the end, because its response broke off again.
    pub(crate) fn with_first_last(mut self) -> Self {
        if !self.rest.is_empty() {
            let second = self.rest.remove(0);
            self.rest.push(std::mem::replace(&mut self.first, second));
        }
        self
    }

    /// Returns true if a peer is among the hops, or must be queried by UDP.
    pub(crate) fn has_peer(&self) -> bool {
        !self.queries.is_empty() || self.hops().any(|hop| hop.peer().is_some())
    }
}

impl Routes {
    /// Builds the routes from `settings`. The last route applies to all resources that no other
    /// route matches. Peers are found by name; a name that no peer has is ignored, because the
    /// settings have already been checked. The member with the name `us` is this box.
    pub(crate) fn new(peers: Vec<Arc<Peer>>, settings: &[RouteSettings], us: &str) -> Self {
        let members = MemberList::new(&peers, us);
        let is_us = |peer: &Arc<Peer>| peer.settings.kind == PeerKind::Member && peer.name() == us;
        let mut peers = peers;
        peers.retain(|peer| !is_us(peer));
        let rules = settings.iter().map(|settings| {
            let named = |name: &String| peers.iter().find(|peer| peer.name() == name).cloned();
            let chosen: Vec<_> = match &settings.peers {
                Some(names) => names.iter().filter_map(named).collect(),
                None => peers.clone(),
            };
            let chosen = chosen
                .into_iter()
                .filter(|peer| peer.settings.kind != PeerKind::Member);
            let is_sibling = |peer: &Arc<Peer>| peer.settings.kind == PeerKind::Sibling;
            let (siblings, parents): (Vec<_>, Vec<_>) = chosen.partition(is_sibling);
            Rule {
                settings: settings.clone(),
                order: Order::new(settings.choice, &parents),
                parents,
                siblings: siblings.into_iter().map(Sibling::new).collect(),
            }
        });
        let rules = rules.collect();
        let is_refused = |peer: &Arc<Peer>| peer.settings.misses == PeerMisses::Refused;
        Self {
            has_stored_only_peer: peers.iter().any(is_refused),
            peers,
            members,
            rules,
            turn: AtomicUsize::new(0),
        }
    }

    /// The peer at `address`, if it is a peer that may be recognised by address.
    pub(crate) fn peer_at(&self, address: IpAddr) -> Option<&Arc<Peer>> {
        let mut recognised = self.peers.iter().filter(|peer| peer.is_recognised());
        recognised.find(|peer| peer.has_address(address))
    }

    /// Returns true if the client is itself a sibling, so siblings must not be used.
    fn is_from_sibling(&self, request: RouteRequest<'_>) -> bool {
        let Siblings::Asked(Some(client)) = request.siblings else {
            return false;
        };
        let peer = self.peer_at(client);
        peer.is_some_and(|peer| peer.settings.kind == PeerKind::Sibling)
    }

    /// Returns true if a peer may only get stored responses.
    pub(crate) fn has_stored_only_peer(&self) -> bool {
        self.has_stored_only_peer
    }

    /// The boxes of this site, if there are others.
    pub(crate) fn members(&self) -> Option<&MemberList> {
        self.members.as_ref()
    }

    /// The members to try before any other hop: the owner of the URL, unless that is this box.
    /// There are none for a tunnel, for an https URL that a member does not fetch, and for a
    /// request that arrived from a member or through many proxies.
    pub(crate) fn member_hops(&self, request: RouteRequest<'_>, fields: &HeaderMap) -> Vec<Hop> {
        let Some(members) = &self.members else {
            return Vec::new();
        };
        if request.is_tunnel || request.via_members >= VIA_MEMBERS_MAX || members.are_in_via(fields)
        {
            return Vec::new();
        }
        let owners = self.owners(request).into_iter();
        owners.map(|peer| member_hop(request, peer)).collect()
    }

    /// Returns true if another member that is up must store the resource.
    pub(crate) fn is_of_member(&self, request: RouteRequest<'_>) -> bool {
        !self.owners(request).is_empty()
    }

    /// The members that store the resource and can fetch it, without this box.
    fn owners(&self, request: RouteRequest<'_>) -> Vec<Arc<Peer>> {
        let Some(members) = &self.members else {
            return Vec::new();
        };
        // In front of a site the URL is a name of the site, so every box fetches it.
        let is_fetched = |peer: &Arc<Peer>| match request.purpose {
            Purpose::Configured => true,
            _ => peer.takes_url(request.scheme),
        };
        let owners = members.owners(&request.url()).into_iter();
        owners.filter(is_fetched).collect()
    }

    /// All peers except this box.
    pub(crate) fn peers(&self) -> &[Arc<Peer>] {
        &self.peers
    }

    /// The hops for a resource.
    ///
    /// # Errors
    /// The resource may be fetched only through peers, and no peer may be used.
    pub(crate) fn plan(&self, request: RouteRequest<'_>) -> Result<Route, Failure> {
        self.planned(request, Turn::Taken)
    }

    /// The hops that a request would have now. Does not take a turn of `round-robin`.
    ///
    /// # Errors
    /// As [`Routes::plan`].
    pub(crate) fn preview(&self, request: RouteRequest<'_>) -> Result<Route, Failure> {
        self.planned(request, Turn::Left)
    }

    fn planned(&self, request: RouteRequest<'_>, turn: Turn) -> Result<Route, Failure> {
        let direct = Route::direct(Endpoint {
            authority: request.authority.clone(),
            purpose: request.purpose,
            scheme: request.scheme,
            through: None,
        });
        let rule = self.rules.iter().find(|rule| rule.matches(request));
        let Some(rule) = rule.filter(|_| !self.peers.is_empty()) else {
            return Ok(direct);
        };
        if request.scheme.needs_gateway() && !rule.settings.may_forward(request.scheme) {
            return Ok(direct);
        }
        let may_ask = request.via_members < VIA_MEMBERS_MAX;
        let parents = self.in_order(rule, request, turn);
        if !may_ask || (parents.is_empty() && rule.siblings.is_empty()) {
            return match rule.settings.direct {
                Direct::Never if may_ask => Err(Failure::NoRoute),
                Direct::Never => Err(Failure::Loop),
                Direct::Allow | Direct::Prefer => Ok(direct),
            };
        }
        let (mut up, down): (Vec<_>, Vec<_>) = parents
            .into_iter()
            .map(|peer| rule.hop(request, peer))
            .partition(|hop| hop.peer().is_some_and(|peer| peer.health.is_up()));
        // Leave room for the direct hop, which must not be cut off.
        up.truncate(HOPS_MAX - 1);
        let mut lookups = rule.lookups(request, &up);
        // The client is checked after the digests: most misses are in no digest, and comparing the
        // client's address with the addresses of all peers takes longer than the digest lookup.
        if !lookups.is_empty() && self.is_from_sibling(request) {
            lookups = Lookups::default();
        }
        let is_direct_alone = up.is_empty()
            && down.is_empty()
            && lookups.hits.is_empty()
            && rule.settings.direct != Direct::Never;
        if is_direct_alone {
            // The origin is the only hop known so far.
            return Ok(Route {
                queries: lookups.queries,
                unlearned: lookups.unlearned,
                key: lookups.key,
                ..direct
            });
        }
        let mut hops = match rule.settings.direct {
            Direct::Allow => [up, vec![direct.first], down].concat(),
            Direct::Prefer => [vec![direct.first], up, down].concat(),
            Direct::Never => [up, down].concat(),
        };
        if hops.is_empty() {
            // There are only siblings, and they do not fetch.
            return Err(Failure::NoRoute);
        }
        hops.truncate(HOPS_MAX);
        hops.splice(..0, lookups.hits);
        let first = hops.remove(0);
        Ok(Route {
            first,
            rest: hops,
            site: None,
            queries: lookups.queries,
            unlearned: lookups.unlearned,
            key: lookups.key,
        })
    }

    /// The parents of `rule` in the order of the rule's choice, each once.
    fn in_order(&self, rule: &Rule, request: RouteRequest<'_>, turn: Turn) -> Vec<Arc<Peer>> {
        let mut peers = rule.parents.clone();
        let chosen = |order: Vec<usize>| {
            order
                .iter()
                .map(|&at| Arc::clone(&rule.parents[at]))
                .collect()
        };
        match &rule.order {
            Order::Listed => {}
            Order::RoundRobin => {
                peers.rotate_left(self.next_in_turn(&rule.parents, turn));
            }
            Order::Rendezvous(members) => return chosen(members.order(request.url().as_bytes())),
            Order::Carp(array) => return chosen(array.order(request.url().as_bytes())),
            // A peer without any connection so far is tried, so that the connect time becomes
            // known.
            Order::Fastest => sort_by_key(&mut peers, |peer| peer.health.connect_time()),
        }
        peers
    }

    /// Index of the peer in `peers` that has the next turn, by weight.
    fn next_in_turn(&self, peers: &[Arc<Peer>], turn: Turn) -> usize {
        let weights: usize = peers.iter().map(|peer| peer.settings.weight as usize).sum();
        let count = match turn {
            Turn::Taken => self.turn.fetch_add(1, Ordering::Relaxed),
            Turn::Left => self.turn.load(Ordering::Relaxed),
        };
        let mut turn = count % weights.max(1);
        let first = peers.iter().position(|peer| {
            let weight = peer.settings.weight as usize;
            let is_first = turn < weight;
            turn = turn.saturating_sub(weight);
            is_first
        });
        first.unwrap_or(0)
    }
}

impl RouteRequest<'_> {
    /// The URL to hash. For a tunnel only host and port are known.
    fn url(&self) -> String {
        // Long enough for most hosts, so there is only one allocation.
        let mut url = String::with_capacity(self.path.len() + 64);
        url.push_str(self.scheme.as_str());
        url.push_str("://");
        // Writing to a string cannot fail.
        let _ = write!(url, "{}", self.authority.display(self.scheme));
        url.push_str(self.path);
        url
    }
}

impl Rule {
    fn matches(&self, request: RouteRequest<'_>) -> bool {
        let RouteRequest {
            scheme, authority, ..
        } = request;
        let scheme = if request.is_tunnel {
            Scheme::Https
        } else {
            scheme
        };
        let (hosts, ports) = (&self.settings.hosts, &self.settings.ports);
        self.settings.scheme.is_none_or(|wanted| wanted == scheme)
            && (hosts.is_empty() || hosts.iter().any(|host| host.matches(&authority.host)))
            && (ports.is_empty() || ports.iter().any(|port| port.contains(authority.port)))
    }

    fn hop(&self, request: RouteRequest<'_>, peer: Arc<Peer>) -> Hop {
        let code = match self.settings.choice {
            PeerChoice::First => HierarchyCode::FirstUpParent,
            PeerChoice::RoundRobin => HierarchyCode::RoundRobinParent,
            PeerChoice::Rendezvous | PeerChoice::Carp => HierarchyCode::Carp,
            PeerChoice::Fastest => HierarchyCode::ClosestParent,
        };
        let (scheme, authority) = (request.scheme, request.authority.clone());
        if !request.is_tunnel && peer.takes_url(scheme) {
            let origin = Origin { scheme, authority };
            return Hop {
                endpoint: Endpoint::of_peer(&peer),
                absolute: Some(AbsoluteForm {
                    peer,
                    origin,
                    wanted: Wanted::Fetched,
                }),
                code,
                timed_out: false,
            };
        }
        let endpoint = Endpoint {
            authority,
            purpose: request.purpose,
            scheme,
            through: Some(peer),
        };
        Hop {
            endpoint,
            absolute: None,
            code,
            timed_out: false,
        }
    }

    /// Returns true if a sibling's store may answer the request.
    fn asks_siblings(&self, request: RouteRequest<'_>) -> bool {
        matches!(request.siblings, Siblings::Asked(_))
            && request.purpose == Purpose::Forward
            && !request.is_tunnel
            && self.settings.direct != Direct::Prefer
    }

    /// Finds the siblings that have the resource by their digests, and the peers to query by UDP:
    /// siblings without a known answer, and parents if there is a choice among them.
    ///
    /// A sibling that may not see https URLs is not used for them. UDP queries are sent in clear,
    /// so they are for http URLs only. Only peers that reply are waited for.
    fn lookups(&self, request: RouteRequest<'_>, parents: &[Hop]) -> Lookups {
        let mut lookups = Lookups::default();
        if !self.asks_siblings(request) {
            return lookups;
        }
        let answers = |peer: &Arc<Peer>| {
            peer.is_queried() && peer.query_health.is_up() && peer.health.is_up()
        };
        // Most URLs are in no digest of a sibling, so only the URL is allocated for them.
        let mut hits = Vec::new();
        let mut queried = Vec::new();
        for sibling in &self.siblings {
            let peer = &sibling.peer;
            let is_settled = sibling.has_digest(request.scheme) && {
                let key = lookups
                    .key
                    .get_or_insert_with(|| Key::of_get(request.url().as_bytes()));
                // A sibling that sends summary updates is not queried in another way either.
                let sends_updates = sibling.summary == PeerSummary::Updates;
                match peer.learned.verdict(key) {
                    // The sibling was looked up by digest, so it is not queried in another way.
                    Verdict::No | Verdict::Paused => true,
                    _ if !peer.health.is_up() => false,
                    Verdict::Yes => {
                        hits.push(peer);
                        true
                    }
                    Verdict::NeverTried => {
                        lookups.unlearned.push(Arc::clone(peer));
                        sends_updates
                    }
                    // The sibling has just started, so it has few objects. ICP queries meanwhile
                    // would cost more messages than summaries do in an hour.
                    Verdict::BeingMade => sends_updates,
                    Verdict::Unknown => false,
                }
            };
            if !is_settled && answers(peer) {
                queried.push(peer);
            }
        }
        if !hits.is_empty() {
            let time = |peer: &Peer| {
                let round_trip = peer.round_trip.smoothed();
                round_trip.unwrap_or_else(|| peer.health.connect_time())
            };
            sort_by_key(&mut hits, |peer| time(peer));
            let code = HierarchyCode::CdSiblingHit;
            let hits = hits.into_iter().take(SIBLINGS_MAX);
            lookups.hits = hits.map(|peer| sibling_hop(request, peer, code)).collect();
            return lookups;
        }
        if request.scheme != Scheme::Http {
            return lookups;
        }
        let code = HierarchyCode::SiblingHit;
        let siblings = queried
            .into_iter()
            .map(|peer| sibling_hop(request, peer, code));
        // A parent that a hash chose, or the only parent, gets the HTTP request whatever it
        // replies.
        let is_chosen = matches!(self.order, Order::Rendezvous(_) | Order::Carp(_));
        let parents = if is_chosen || parents.len() == 1 {
            &[]
        } else {
            parents
        };
        let parents = parents.iter().filter(|hop| hop.peer().is_some_and(answers));
        let queries = siblings.chain(parents.cloned());
        lookups.queries = queries.take(QUERIES_MAX).collect();
        lookups
    }
}

/// The hop to a member.
fn member_hop(request: RouteRequest<'_>, peer: Arc<Peer>) -> Hop {
    let (scheme, authority) = (request.scheme, request.authority.clone());
    Hop {
        endpoint: Endpoint::of_peer(&peer),
        absolute: Some(AbsoluteForm {
            peer,
            origin: Origin { scheme, authority },
            wanted: Wanted::Fetched,
        }),
        code: HierarchyCode::Carp,
        timed_out: false,
    }
}

/// Results of the lookups before the first hop is tried.
#[derive(Debug, Default)]
struct Lookups {
    /// The best siblings that have the resource by their digests.
    hits: Vec<Hop>,
    /// The hops to query by UDP.
    queries: Vec<Hop>,
    unlearned: Vec<Arc<Peer>>,
    /// The key hash of the URL, if a digest was looked up.
    key: Option<Key>,
}

impl Lookups {
    fn is_empty(&self) -> bool {
        self.hits.is_empty() && self.queries.is_empty() && self.unlearned.is_empty()
    }
}

/// The hop to a sibling, for stored responses only.
fn sibling_hop(request: RouteRequest<'_>, peer: &Arc<Peer>, code: HierarchyCode) -> Hop {
    let (scheme, authority) = (request.scheme, request.authority.clone());
    Hop {
        endpoint: Endpoint::of_peer(peer),
        absolute: Some(AbsoluteForm {
            peer: Arc::clone(peer),
            origin: Origin { scheme, authority },
            wanted: Wanted::Stored,
        }),
        code,
        timed_out: false,
    }
}

/// The address that a host means without a name lookup. It must be an allowed address before a peer
/// gets a request for it. For other names the peer decides.
pub(crate) fn literal_address(host: &Host) -> Option<IpAddr> {
    match host {
        Host::V4(address) => Some(IpAddr::V4(*address)),
        Host::V6(address) => Some(IpAddr::V6(*address)),
        Host::Name(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            let is_local = name == "localhost" || name.ends_with(".localhost");
            is_local.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
        }
    }
}

/// Maximum number of hops in a route.
const HOPS_MAX: usize = 6;
/// Maximum number of siblings that get an HTTP request for the same resource.
const SIBLINGS_MAX: usize = 2;
/// Maximum number of peers that are queried by UDP for the same resource.
const QUERIES_MAX: usize = 16;
/// From this number of proxies in Via on, no peer is used.
const VIA_MEMBERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use hashcache_peers::filter::{Filter, Size};
    use hashcache_upstream::peer::learned::{Learning, Received};
    use hashcache_upstream::peer::{
        Credentials, PeerFailure, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary,
    };

    use super::*;

    fn peer(name: &str, weight: u32, https: PeerHttps) -> Arc<Peer> {
        let settings = PeerSettings {
            name: name.into(),
            kind: PeerKind::Parent,
            url: format!("http://{name}.test:3128").parse().unwrap(),
            credentials: Credentials::None,
            https,
            icp: None,
            htcp: None,
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight,
            pin: None,
        };
        Arc::new(settings.load(None).unwrap())
    }

    fn ask(routes: &Routes, url: &str, via_members: usize) -> Result<Vec<String>, Failure> {
        let origin: Origin = url.parse().unwrap();
        let route = routes.plan(RouteRequest {
            scheme: origin.scheme,
            authority: &origin.authority,
            path: "/",
            purpose: Purpose::Forward,
            is_tunnel: false,
            via_members,
            siblings: Siblings::Asked(None),
        })?;
        let shown = route.hops().map(|hop| match (&hop.absolute, hop.peer()) {
            (Some(_), Some(peer)) => format!("url:{}", peer.name()),
            (None, Some(peer)) => format!("tunnel:{}", peer.name()),
            _ => "direct".to_owned(),
        });
        Ok(shown.collect())
    }

    fn routes(rules: &[RouteSettings]) -> Routes {
        let peers = vec![
            peer("a", 1, PeerHttps::Tunnel),
            peer("b", 2, PeerHttps::Fetch),
        ];
        Routes::new(peers, rules, "us")
    }

    fn with(direct: Direct) -> RouteSettings {
        RouteSettings {
            direct,
            ..RouteSettings::default()
        }
    }

    #[test]
    fn direct_stands_after_before_or_not_among_the_peers() {
        let asked = |direct| ask(&routes(&[with(direct)]), "http://x.test", 0).unwrap();
        assert_eq!(asked(Direct::Allow), ["url:a", "url:b", "direct"]);
        assert_eq!(asked(Direct::Prefer), ["direct", "url:a", "url:b"]);
        assert_eq!(asked(Direct::Never), ["url:a", "url:b"]);
        let secure = ask(&routes(&[with(Direct::Never)]), "https://x.test", 0);
        assert_eq!(secure.unwrap(), ["tunnel:a", "url:b"]);
    }

    #[test]
    fn a_peer_that_is_down_is_asked_last() {
        let routes = routes(&[with(Direct::Allow)]);
        let now = tokio::time::Instant::now();
        routes.peers()[0].health.failed(PeerFailure::Refused, now);
        let asked = ask(&routes, "http://x.test", 0).unwrap();
        assert_eq!(asked, ["url:b", "direct", "url:a"]);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let local = RouteSettings {
            hosts: vec![
                RouteHost::Name("*.corp.test".parse().unwrap()),
                RouteHost::Name("intranet".parse().unwrap()),
                RouteHost::Network("10.0.0.0/8".parse().unwrap()),
            ],
            peers: Some(vec![]),
            ..RouteSettings::default()
        };
        let ports = RouteSettings {
            ports: vec!["8000-8999".parse().unwrap()],
            peers: Some(vec!["b".into()]),
            direct: Direct::Never,
            ..RouteSettings::default()
        };
        let routes = routes(&[local, ports, with(Direct::Never)]);
        for host in ["http://a.corp.test", "http://intranet", "http://10.0.0.1"] {
            assert_eq!(ask(&routes, host, 0).unwrap(), ["direct"], "{host}");
        }
        let at_port = ask(&routes, "http://corp.test:8080", 0).unwrap();
        assert_eq!(at_port, ["url:b"]);
        assert_eq!(ask(&routes, "http://corp.test", 0).unwrap().len(), 2);
    }

    #[test]
    fn a_request_that_has_passed_many_proxies_uses_no_peer() {
        let many = ask(&routes(&[with(Direct::Allow)]), "http://x.test", 8);
        assert_eq!(many.unwrap(), ["direct"]);
        let never = ask(&routes(&[with(Direct::Never)]), "http://x.test", 8);
        assert_eq!(never, Err(Failure::Loop));
        let nobody = RouteSettings {
            peers: Some(vec![]),
            ..with(Direct::Never)
        };
        let nobody = ask(&routes(&[nobody]), "http://x.test", 0);
        assert_eq!(nobody, Err(Failure::NoRoute));
    }

    #[test]
    fn round_robin_follows_the_weights() {
        let routes = routes(&[RouteSettings {
            choice: PeerChoice::RoundRobin,
            ..with(Direct::Never)
        }]);
        let firsts: Vec<_> = (0..6)
            .map(|_| ask(&routes, "http://x.test", 0).unwrap().remove(0))
            .collect();
        let of_b = firsts.iter().filter(|first| *first == "url:b").count();
        assert_eq!((firsts.len(), of_b), (6, 4), "{firsts:?}");
    }

    #[test]
    fn a_hash_gives_each_url_one_parent_by_weight_and_another_if_that_is_down() {
        for choice in [PeerChoice::Rendezvous, PeerChoice::Carp] {
            let routes = routes(&[RouteSettings {
                choice,
                ..with(Direct::Never)
            }]);
            let first = |n: usize| {
                let url = format!("http://host{n}.test");
                ask(&routes, &url, 0).unwrap().remove(0)
            };
            let before: Vec<_> = (0..300).map(first).collect();
            assert_eq!(before, (0..300).map(first).collect::<Vec<_>>());
            let of_b = before.iter().filter(|first| *first == "url:b").count();
            assert!((160..240).contains(&of_b), "{choice:?}: {of_b}");
            let now = tokio::time::Instant::now();
            routes.peers()[0].health.failed(PeerFailure::Refused, now);
            assert!((0..300).all(|n| first(n) == "url:b"));
        }
    }

    #[test]
    fn the_parent_with_the_shortest_connect_time_is_asked_first() {
        let routes = routes(&[RouteSettings {
            choice: PeerChoice::Fastest,
            ..with(Direct::Never)
        }]);
        let first = || ask(&routes, "http://x.test", 0).unwrap().remove(0);
        let ms = std::time::Duration::from_millis;
        routes.peers()[0].health.note_connect_time(ms(80));
        assert_eq!(first(), "url:b", "its time is not known yet");
        routes.peers()[1].health.note_connect_time(ms(100));
        assert_eq!(first(), "url:a");
        for _ in 0..20 {
            routes.peers()[0].health.note_connect_time(ms(200));
        }
        assert_eq!(first(), "url:b");
    }

    #[test]
    fn a_route_can_begin_with_the_hop_that_answered() {
        let routes = routes(&[with(Direct::Allow)]);
        let origin: Origin = "http://x.test".parse().unwrap();
        let plan = || {
            routes.plan(RouteRequest {
                scheme: origin.scheme,
                authority: &origin.authority,
                path: "/",
                purpose: Purpose::Forward,
                is_tunnel: false,
                via_members: 0,
                siblings: Siblings::Asked(None),
            })
        };
        for number in 0..5 {
            let route = plan().unwrap().beginning_with(number);
            let names: Vec<_> = route
                .hops()
                .map(|hop| hop.peer().map_or("-", |peer| peer.name()).to_owned())
                .collect();
            let wanted = match number {
                1 => ["b", "a", "-"],
                2 => ["-", "a", "b"],
                _ => ["a", "b", "-"],
            };
            assert_eq!(names, wanted);
        }
    }

    #[test]
    fn addresses_and_localhost_need_no_lookup() {
        let address = |host: &str| literal_address(&Host::parse(host).unwrap());
        assert!(address("10.0.0.1").is_some() && address("[::1]").is_some());
        assert!(address("localhost.").unwrap().is_loopback());
        assert!(address("a.localhost").unwrap().is_loopback());
        assert_eq!(address("localhost.test"), None);
    }

    fn with_icp(name: &str, kind: PeerKind) -> Arc<Peer> {
        let settings = PeerSettings {
            kind,
            icp: Some(3130),
            summary: PeerSummary::None,
            ..peer(name, 1, PeerHttps::Tunnel).settings.clone()
        };
        Arc::new(settings.load(None).unwrap())
    }

    fn family() -> Vec<Arc<Peer>> {
        vec![
            with_icp("s1", PeerKind::Sibling),
            with_icp("p1", PeerKind::Parent),
            with_icp("s2", PeerKind::Sibling),
            with_icp("p2", PeerKind::Parent),
            with_icp("s3", PeerKind::Sibling),
        ]
    }

    const FIRST_SIBLING: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn planned(direct: Direct, url: &str, siblings: Siblings) -> Route {
        let origin: Origin = url.parse().unwrap();
        let peers = family();
        peers[0].set_addresses(&[FIRST_SIBLING]);
        let routes = Routes::new(peers, &[with(direct)], "us");
        let request = RouteRequest {
            scheme: origin.scheme,
            authority: &origin.authority,
            path: "/",
            purpose: Purpose::Forward,
            is_tunnel: false,
            via_members: 0,
            siblings,
        };
        routes.plan(request).unwrap()
    }

    fn shown(route: &Route) -> Vec<String> {
        let hops = route.hops().map(|hop| {
            let name = hop.peer().map_or("direct", |peer| peer.name());
            format!("{name}:{}", hop.at(None).code())
        });
        hops.collect()
    }

    #[test]
    fn siblings_are_asked_about_http_urls_only_and_not_for_requests_of_siblings() {
        let asked = |direct, url, siblings| {
            let route = planned(direct, url, siblings);
            assert!(route.hops().all(|hop| !hop.wants_stored()));
            let names = route.queries().map(|peer| peer.name().to_owned());
            names.collect::<Vec<_>>()
        };
        let all = ["s1", "s2", "s3", "p1", "p2"];
        let other = Siblings::Asked(Some(IpAddr::from([192, 0, 2, 9])));
        assert_eq!(asked(Direct::Allow, "http://x.test", other), all);
        assert_eq!(
            asked(Direct::Never, "http://x.test", Siblings::Asked(None)),
            all
        );
        for (direct, url, siblings) in [
            (Direct::Prefer, "http://x.test", Siblings::Asked(None)),
            (Direct::Allow, "https://x.test", Siblings::Asked(None)),
            (Direct::Allow, "http://x.test", Siblings::NotAsked),
            (
                Direct::Allow,
                "http://x.test",
                Siblings::Asked(Some(FIRST_SIBLING)),
            ),
        ] {
            assert!(asked(direct, url, siblings).is_empty(), "{direct:?} {url}");
        }
    }

    #[test]
    fn replies_put_at_most_two_siblings_and_one_parent_first() {
        let after = |hits: &[usize], misses: &[usize], timed_out| {
            let route = planned(Direct::Allow, "http://x.test", Siblings::Asked(None));
            shown(&route.after(&Replies {
                hits: hits.to_vec(),
                misses: misses.to_vec(),
                timed_out,
            }))
        };
        let parents = [
            "p1:FIRSTUP_PARENT",
            "p2:FIRSTUP_PARENT",
            "direct:HIER_DIRECT",
        ];
        assert_eq!(after(&[], &[], false), parents);
        assert_eq!(
            after(&[2, 1, 0], &[4, 3], false)[..3],
            ["s3:SIBLING_HIT", "s2:SIBLING_HIT", "p2:FIRST_PARENT_MISS"]
        );
        assert_eq!(
            after(&[4], &[3], true),
            [
                "p2:TIMEOUT_PARENT_HIT",
                "p1:TIMEOUT_FIRSTUP_PARENT",
                "direct:TIMEOUT_HIER_DIRECT"
            ]
        );
        // A sibling's MISS is no reason to ask it, and does not hide that of a parent.
        assert_eq!(after(&[], &[0], false), parents);
        assert_eq!(after(&[], &[0, 4], false)[0], "p2:FIRST_PARENT_MISS");
    }

    #[test]
    fn a_peer_that_does_not_answer_queries_is_not_waited_for() {
        let peers = family();
        let now = tokio::time::Instant::now();
        for peer in &peers[..2] {
            for _ in 0..3 {
                peer.query_health.failed(PeerFailure::Other, now);
            }
        }
        peers[2].health.failed(PeerFailure::Refused, now);
        let routes = Routes::new(peers, &[with(Direct::Allow)], "us");
        let origin: Origin = "http://x.test".parse().unwrap();
        let route = routes.plan(RouteRequest {
            scheme: origin.scheme,
            authority: &origin.authority,
            path: "/",
            purpose: Purpose::Forward,
            is_tunnel: false,
            via_members: 0,
            siblings: Siblings::Asked(None),
        });
        let route = route.unwrap();
        let names: Vec<_> = route.queries().map(|peer| peer.name()).collect();
        assert_eq!(names, ["s3", "p2"]);
        // Parents are asked by HTTP all the same.
        assert_eq!(shown(&route)[0], "p1:FIRSTUP_PARENT");
    }

    /// A sibling of which a digest was fetched that has these URLs.
    fn with_digest(name: &str, urls: &[&str]) -> Arc<Peer> {
        let settings = PeerSettings {
            summary: PeerSummary::Digest,
            ..with_icp(name, PeerKind::Sibling).settings.clone()
        };
        let peer = settings.load(None).unwrap();
        let mut filter = Filter::empty(Size::new(100, 10).unwrap()).unwrap();
        for url in urls {
            filter.insert(&Key::of_get(url.as_bytes()));
        }
        let device = hashcache::device::MemoryDevice::new(16 << 20);
        let mut config = hashcache::Config::on_device(Arc::new(device));
        config.memory_bytes = 16 << 20;
        let received = Received {
            filter,
            memory: hashcache::Cache::open(config).unwrap().reserve(1).unwrap(),
            position: None,
            entity_tag: None,
        };
        assert!(peer.learned.begin().is_some());
        let learning = Learning::New(received, std::time::Duration::ZERO);
        peer.learned.end(learning, tokio::time::Instant::now());
        Arc::new(peer)
    }

    #[test]
    fn two_siblings_with_the_url_in_their_digest_come_first_and_none_without_it_is_queried() {
        let url = "http://x.test/";
        let peers = vec![
            with_digest("d1", &[]),
            with_digest("d2", &[url]),
            with_icp("s1", PeerKind::Sibling),
            with_icp("p1", PeerKind::Parent),
            with_digest("d3", &[url, "https://x.test/"]),
            with_digest("d4", &[url]),
        ];
        let routes = Routes::new(peers, &[with(Direct::Allow)], "us");
        let plan = |url: &str, path: &str, siblings| {
            let origin: Origin = url.parse().unwrap();
            let request = RouteRequest {
                scheme: origin.scheme,
                authority: &origin.authority,
                path,
                purpose: Purpose::Forward,
                is_tunnel: false,
                via_members: 0,
                siblings,
            };
            routes.plan(request).unwrap()
        };
        let route = plan("http://x.test", "/", Siblings::Asked(None));
        assert_eq!(
            shown(&route)[..3],
            [
                "d2:CD_SIBLING_HIT",
                "d3:CD_SIBLING_HIT",
                "p1:FIRSTUP_PARENT"
            ]
        );
        assert_eq!(route.queries().count(), 0);
        // Nobody has it: only the sibling without a digest is asked by ICP.
        let route = plan("http://x.test", "/other", Siblings::Asked(None));
        let names: Vec<_> = route.queries().map(|peer| peer.name()).collect();
        assert_eq!(names, ["s1"]);
        assert_eq!(shown(&route)[0], "p1:FIRSTUP_PARENT");
        // Not to be seen by others on the line to that sibling, nor asked for a sibling.
        for (url, siblings) in [
            ("https://x.test", Siblings::Asked(None)),
            ("http://x.test", Siblings::NotAsked),
        ] {
            let route = plan(url, "/", siblings);
            assert!(route.hops().all(|hop| !hop.wants_stored()), "{url}");
        }
    }

    #[test]
    fn siblings_alone_do_not_replace_a_way_to_the_origin() {
        let routes = Routes::new(family()[..1].to_vec(), &[with(Direct::Never)], "us");
        assert_eq!(ask(&routes, "http://x.test", 0), Err(Failure::NoRoute));
    }
}
