//! The state of one core: its connections to origins, its access log buffer, and the state that all
//! cores share.
//!
//! Made by `server`, one per runtime; used by `request` and `fetch`.
//!
//! Invariant: settings that a reload may change are in [`LiveSettings`], and each request reads
//! them anew.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashcache::{Cache, Reservation};
use hashcache_access::lists::Lists;
use hashcache_access::quota::{LimitPlan, Limiter};
use hashcache_access::users::{UserChecks, UserHashes};
use hashcache_access::{TimedRules, WeekMinute};
use hashcache_base::clock::Clock;
use hashcache_base::clock::zone::Zone;
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_base::net::address::{Clients, Purpose, check_port};
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::net::own_domain::AllowedDestination;
use hashcache_base::share::{Share, Shares};
use hashcache_base::tls::identity::Identity;
use hashcache_http::{
    Authority, CDN_CACHE_CONTROL, Host, Origin, Pseudonym, ReuseOptions, Scheme, Space,
    StoreOptions, Target, UnixTime, via_members,
};
use hashcache_intercept::{InterceptState, Interceptor};
use hashcache_link::children::{Children, LinkServer};
use hashcache_link::chunk_tables::ChunkTables;
use hashcache_link::pin::Pin;
use hashcache_site::encode::EncodeBudget;
use hashcache_site::live::LiveSites;
use hashcache_site::mirror::Mirrors;
use hashcache_store::collapse::{Collapse, WaitTimes};
use hashcache_store::not_stored::RecentlyNotStored;
use hashcache_store::page_groups::PageGroups;
use hashcache_store::purge::Purger;
use hashcache_store::summary::Summary;
use hashcache_upstream::offline::Chosen;
use hashcache_upstream::{Destinations, Upstream};
use hashcache_wan::pages::Packer;
use hashcache_wire::Ending;
use http::HeaderMap;

use crate::access_log::WorkerLog;
use crate::history::tally::Tally;
use crate::metrics::{Exposition, Limit, WorkerMetrics};
use crate::queries::Queries;
use crate::route::{Hop, Route, RouteRequest, Routes, Siblings, literal_address};
use crate::settings::{Mode, Reloadable, Settings};

/// State that all cores share and no reload changes.
pub(crate) struct Common {
    pub(crate) mode: Mode,
    /// The proxy's name in Cache-Status and Proxy-Status.
    pub(crate) name: Pseudonym,
    /// The proxy's name in Via, which identifies requests that have already passed through it.
    pub(crate) via: Pseudonym,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
    /// The children on the link listener.
    pub(crate) children: Arc<Children>,
    /// What the other boxes of links have of chunks.
    pub(crate) chunks: Arc<ChunkTables>,
    pub(crate) clock: Arc<Clock>,
    /// Results of earlier interceptions, by host and client.
    pub(crate) intercept: Arc<InterceptState>,
    pub(crate) collapse: Arc<Collapse>,
    /// Why the latest responses that may not be stored are not.
    pub(crate) not_stored: RecentlyNotStored,
    pub(crate) purger: Purger,
    pub(crate) page_groups: PageGroups,
    pub(crate) shares: Arc<Shares>,
    /// The usage of quotas and rates, by client and user.
    pub(crate) limiter: Arc<Limiter>,
    /// Checks of passwords.
    pub(crate) user_checks: Arc<UserChecks>,
    pub(crate) own: OwnAddresses,
    pub(crate) exposition: Exposition,
    /// Queries to peers by ICP and HTCP.
    pub(crate) queries: Arc<Queries>,
    /// What is stored here, for peers.
    pub(crate) summary: Arc<Summary>,
    pub(crate) live: ArcSwap<LiveSettings>,
}

/// The reloadable settings, and the lookup structures built from them.
pub(crate) struct LiveSettings {
    /// Number of reloads.
    pub(crate) generation: u64,
    pub(crate) settings: Reloadable,
    pub(crate) store: StoreOptions,
    pub(crate) reuse: ReuseOptions,
    /// The clients that are served where no access rule matches.
    pub(crate) clients: Clients,
    /// The limits that the access rules name.
    pub(crate) limits: Arc<LimitPlan>,
    /// The lists that the access rules name.
    pub(crate) lists: Arc<Lists>,
    /// The users whose passwords are known, if there are any.
    pub(crate) users: Option<Arc<UserHashes>>,
    /// For rules with times of the week.
    pub(crate) zone: Zone,
    pub(crate) mirrors: Mirrors,
    pub(crate) upstream: hashcache_upstream::UpstreamShared,
    /// Which next hops are asked for which resources.
    pub(crate) routes: Routes,
    /// The sites of a reverse proxy.
    pub(crate) sites: Arc<LiveSites>,
    /// Certificates for clients that connect with TLS.
    pub(crate) identity: Option<Identity>,
    /// Ends TLS of intercepted hosts.
    pub(crate) intercept: Option<Arc<Interceptor>>,
    /// The keys of children, and ours.
    pub(crate) link: Option<Arc<LinkServer>>,
}

/// What shows who we are to clients, to those of intercepted hosts, and to children.
type Shown = (
    Option<Identity>,
    Option<Arc<Interceptor>>,
    Option<Arc<LinkServer>>,
);

impl LiveSettings {
    /// The access rules whose times include this Unix time.
    pub(crate) fn rules_at(&self, unix: u64) -> TimedRules {
        self.settings.access.at(self.week_minute(unix))
    }

    /// Realm of the login challenge (RFC 9110, 11.5).
    pub(crate) fn realm(&self) -> Arc<str> {
        self.settings.login_realm.as_str().into()
    }

    /// The minute of the local week at this Unix time.
    pub(crate) fn week_minute(&self, unix: u64) -> WeekMinute {
        let local = self.zone.local(i64::try_from(unix).unwrap_or(i64::MAX));
        WeekMinute::of_local(local)
    }

    /// The pins of all boxes at the other ends of links.
    pub(crate) fn pins(&self) -> Vec<Pin> {
        let parents = self.routes.peers().iter();
        let parents = parents.filter_map(|peer| Some(peer.link.as_ref()?.pin()));
        let children = self.link.iter().flat_map(|link| link.children.iter());
        parents.chain(children.copied()).collect()
    }

    /// Whether the digests of content are stored: one end of a link offers content by them.
    pub(crate) fn keeps_digests(&self) -> bool {
        let mut peers = self.routes.peers().iter();
        self.link.is_some() || peers.any(|peer| peer.link.is_some())
    }

    /// The parts of `settings` that can be reloaded; connections stay bounded by the counters of
    /// `upstream`.
    pub(crate) fn new(
        settings: &Settings,
        generation: u64,
        own: &OwnAddresses,
        upstream: hashcache_upstream::UpstreamShared,
        (routes, sites): (Routes, Arc<LiveSites>),
        (identity, intercept, link): Shown,
        (lists, users, zone): (Arc<Lists>, Option<Arc<UserHashes>>, Zone),
    ) -> Self {
        let (mode, settings) = (settings.startup.mode, &settings.reloadable);
        let (mut networks, mut domains) = (Vec::new(), Vec::new());
        for allowed in &settings.allow_destination {
            match allowed {
                AllowedDestination::Network(network) => networks.push(*network),
                AllowedDestination::Domain(domain) => domains.push(domain.clone()),
            }
        }
        let destinations = Destinations::new(&networks, &settings.deny_destination, own.clone());
        let destinations = destinations
            .with_domains(&domains)
            .behind(&settings.nat64_prefix);
        Self {
            generation,
            settings: settings.clone(),
            store: StoreOptions {
                rules: settings.rules.clone(),
                sites: settings.sites.lifetimes(),
                negative: settings.negative_lifetime,
                adaptive: settings.adaptive_lifetime,
                set_cookie: settings.set_cookie,
                harmless: settings.harmless_fields.clone(),
                targets: match mode {
                    Mode::Forward => Vec::new(),
                    // In front of a site the proxy acts for the origin, so CDN-Cache-Control
                    // applies to it.
                    Mode::Reverse => vec![CDN_CACHE_CONTROL],
                },
                ..StoreOptions::default()
            },
            reuse: ReuseOptions {
                client_reload: settings.client_reload,
                ..ReuseOptions::default()
            },
            clients: Clients::new(&settings.allow_client, own.clone()),
            limits: Arc::new(LimitPlan {
                limits: settings.access_limits.clone(),
                zone: zone.clone(),
                contact: settings.access.contact().map(Box::from),
            }),
            lists,
            users,
            zone,
            mirrors: Mirrors::new(&settings.mirrors),
            upstream: hashcache_upstream::UpstreamShared {
                destinations,
                announced: settings.proxy_protocol_to.clone().into(),
                ..upstream
            },
            routes,
            sites,
            identity,
            intercept,
            link,
        }
    }
}

impl Worker {
    /// How long a request to `origin` waits for another request's fetch of the same key.
    pub(crate) fn wait_times(&self, origin: &Authority) -> WaitTimes {
        let (collapse, wait) = (
            &self.common.collapse,
            self.common.live().settings.collapse_wait,
        );
        collapse.wait_times(origin, wait, self.limits.first_byte_time)
    }
}

impl Common {
    pub(crate) fn live(&self) -> Guard<Arc<LiveSettings>> {
        self.live.load()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now().seconds())
    }

    /// Whether this client may purge in `space`: by the operator's list; if that is empty, only
    /// clients on this machine, and none in front of a site.
    pub(crate) fn may_purge(&self, client: IpAddr, space: Space) -> bool {
        let client = client.to_canonical();
        let live = self.live();
        match &live.settings.allow_purge[..] {
            // A connection of this machine to its own name comes from the address of that name.
            [] => self.is_own_address(client) && !matches!(space, Space::Site(_)),
            allowed => allowed.iter().any(|it| it.contains(client)),
        }
    }

    /// Whether the key with this pin is one of a child. A reload may remove it.
    pub(crate) fn is_child(&self, pin: &Pin) -> bool {
        let live = self.live();
        let link = live.link.as_ref();
        link.is_some_and(|link| link.children.contains(pin))
    }

    /// The key space of this process's resources.
    pub(crate) fn space(&self) -> Space {
        Self::space_of(&self.mode)
    }

    /// The same before the process has begun.
    pub(crate) fn space_of(mode: &Mode) -> Space {
        match mode {
            Mode::Forward => Space::Own,
            // The host is part of the key, so the number says nothing; the keys of number 0 had the
            // URL of the one origin.
            Mode::Reverse => Space::Site(1),
        }
    }

    /// Whether this is a reverse proxy.
    pub(crate) fn is_reverse(&self) -> bool {
        self.mode == Mode::Reverse
    }

    /// Whether a member that is up is to store the resource, and not this box.
    pub(crate) fn is_of_member(&self, space: Space, target: &Target) -> bool {
        let live = self.live();
        let has_members = live.routes.members().is_some() && !matches!(space, Space::Mirror(_));
        let request = || route_request(space, target, &HeaderMap::new());
        has_members && live.routes.is_of_member(request())
    }

    /// Whether `authority` is the admin listener, which is not for all clients of the proxy.
    pub(crate) fn is_admin(&self, authority: &Authority) -> bool {
        let Some(admin) = self.admin else {
            return false;
        };
        authority.port == admin.port() && self.is_host(&authority.host)
    }

    /// Whether a request to `authority` is for this proxy itself, so it must not be forwarded.
    pub(crate) fn is_us(&self, authority: &Authority) -> bool {
        if self.is_public(authority) {
            return true;
        }
        let mut ports = self.listen.iter().map(SocketAddr::port);
        ports.any(|port| port == authority.port) && self.is_host(&authority.host)
    }

    /// Whether this is the public URL that the operator configured.
    fn is_public(&self, authority: &Authority) -> bool {
        let live = self.live();
        live.settings.public_url.as_ref().is_some_and(|url| {
            let Authority { host, port } = &url.authority;
            // A TLS terminator in front of us sends Host without a port when it means port 443.
            let is_port = authority.port == *port
                || (authority.port == Scheme::Http.default_port()
                    && *port == url.scheme.default_port());
            is_port && authority.host == *host
        })
    }

    /// The URL of this proxy for a client whose request names `authority`, one of ours, and that
    /// speaks `scheme` with us.
    pub(crate) fn base(&self, authority: &Authority, scheme: Scheme) -> Origin {
        let public = self.live().settings.public_url.clone();
        public.unwrap_or_else(|| Origin {
            scheme,
            authority: authority.clone(),
        })
    }

    /// Whether `host` is this machine.
    fn is_host(&self, host: &Host) -> bool {
        let is_named = |name: &str| {
            let name = name.strip_suffix('.').unwrap_or(name);
            name.eq_ignore_ascii_case(self.name.as_str())
        };
        literal_address(host).is_some_and(|address| self.is_own_address(address))
            || matches!(host, Host::Name(name) if is_named(name))
    }

    /// Whether `hop` lies behind a line that counts as down. Neighbours that are asked for what
    /// they have stored do not, nor do boxes of the same site and origins in the operator's own
    /// network.
    pub(crate) fn is_cut_off(&self, hop: &Hop) -> bool {
        match hop.peer() {
            Some(_) => {
                let is_near = hop.wants_stored() || hop.member().is_some();
                self.live().upstream.line.is_down() && !is_near
            }
            None => self.is_origin_cut_off(&hop.endpoint.authority),
        }
    }

    /// The same of an origin that is asked without a peer.
    pub(crate) fn is_origin_cut_off(&self, origin: &Authority) -> bool {
        let upstream = &self.live().upstream;
        upstream.line.is_down() && !upstream.destinations.is_inside(&origin.host)
    }

    /// Whether `address` is one of this machine.
    pub(crate) fn is_own_address(&self, address: IpAddr) -> bool {
        self.own.is_this_host(address)
    }
}

/// The request for the next hops of a resource, on behalf of a request with these fields.
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

/// The state of one core.
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) cache: Cache,
    pub(crate) limits: Rc<Limits>,
    pub(crate) log: WorkerLog,
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// What the history does not have yet.
    pub(crate) tally: Rc<Tally>,
    /// How much content may be encoded.
    pub(crate) encode_budget: RefCell<EncodeBudget>,
    /// A replaced version is being copied.
    pub(crate) keeps_replaced: Cell<bool>,
    /// Packs text that is stored, with the memory set aside for it; made when it is needed.
    pub(crate) packer: RefCell<Option<(Packer, Reservation)>>,
    upstream: RefCell<(u64, Rc<Upstream>)>,
    timed_rules: RefCell<Option<TimedRulesNow>>,
}

/// The access rules of one minute.
struct TimedRulesNow {
    generation: u64,
    unix_minute: u64,
    rules: Rc<TimedRules>,
}

impl Worker {
    pub(crate) fn new(
        common: Arc<Common>,
        cache: Cache,
        limits: &Limits,
        log: WorkerLog,
        (metrics, tally): (Arc<WorkerMetrics>, Rc<Tally>),
    ) -> Rc<Self> {
        let live = common.live();
        let upstream = (
            live.generation,
            Rc::new(Upstream::new(&live.upstream).within(&cache)),
        );
        drop(live);
        let limits = Rc::new(limits.clone());
        let upstream = RefCell::new(upstream);
        Rc::new(Self {
            common,
            cache,
            limits,
            log,
            metrics,
            tally,
            encode_budget: RefCell::default(),
            keeps_replaced: Cell::new(false),
            packer: RefCell::default(),
            upstream,
            timed_rules: RefCell::default(),
        })
    }

    /// The connections to origins; new ones after a reload.
    pub(crate) fn upstream(&self) -> Rc<Upstream> {
        let live = self.common.live();
        let mut upstream = self.upstream.borrow_mut();
        if upstream.0 != live.generation {
            *upstream = (
                live.generation,
                Rc::new(Upstream::new(&live.upstream).within(&self.cache)),
            );
        }
        Rc::clone(&upstream.1)
    }

    /// The access rules whose times include now.
    pub(crate) fn timed_rules(&self, live: &LiveSettings) -> Rc<TimedRules> {
        let generation = live.generation;
        let unix = match live.settings.access.has_times() {
            true => self.common.clock.now().seconds(),
            false => 0,
        };
        let unix_minute = unix / 60;
        let mut known = self.timed_rules.borrow_mut();
        let is_now = |known: &&TimedRulesNow| {
            (known.generation, known.unix_minute) == (generation, unix_minute)
        };
        if let Some(known) = known.as_ref().filter(is_now) {
            return Rc::clone(&known.rules);
        }
        let rules = Rc::new(live.rules_at(unix));
        *known = Some(TimedRulesNow {
            generation,
            unix_minute,
            rules: Rc::clone(&rules),
        });
        rules
    }

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

    /// The same without members.
    ///
    /// # Errors
    /// As [`Worker::route`].
    pub(crate) fn route_past_members(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Result<Route, Failure> {
        self.route(route_request(space, target, fields))
    }

    /// The members to ask for a resource before its route: see `Routes::member_hops`.
    pub(crate) fn member_hops(
        &self,
        space: Space,
        target: &Target,
        fields: &HeaderMap,
    ) -> Vec<Hop> {
        // A mirror has keys and links of its own on each box.
        if matches!(space, Space::Mirror(_)) {
            return Vec::new();
        }
        let request = route_request(space, target, fields);
        self.common.live().routes.member_hops(request, fields)
    }

    /// The next hops of a fetch, which may ask siblings.
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

    /// The same for a request that changes to another protocol, such as WebSocket: a peer that does
    /// not know the protocol would not forward the request, so it makes a tunnel.
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

    /// The next hops for a request that only `server` may answer, whatever name it has. A peer
    /// would look the name up, so it makes a tunnel.
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
    /// No hop may be used, or the resource is at an address that clients may not reach, which a
    /// peer must not be asked for either.
    pub(crate) fn route(&self, request: RouteRequest<'_>) -> Result<Route, Failure> {
        let route = self.common.live().routes.plan(request)?;
        if route.has_peer() {
            self.check_literal(request)?;
        }
        Ok(route)
    }

    /// Whether `hop` may be asked while the line counts as down. If not, and `client` wants an
    /// origin there, this origin may show that the line is back.
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

    /// Counts the limit that ended a connection, if a limit did.
    pub(crate) fn count_ending(&self, ending: Ending) {
        let metrics = &self.metrics;
        match ending {
            Ending::Idle => metrics.limit(Limit::IdleTime),
            Ending::SlowHead => metrics.limit(Limit::HeadTime),
            Ending::Flood => metrics.limit(Limit::Frames),
            Ending::NoMemory => metrics.limit(Limit::Memory),
            Ending::SlowWrite => metrics.limit(Limit::ProgressTime),
            Ending::Upgraded | Ending::Closed | Ending::Broken => {}
        }
    }
}
