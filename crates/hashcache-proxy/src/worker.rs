//! What a core has: its own connections to origins, its end of the log, and what all cores share.
//!
//! Made by `server`, one a runtime; `request` and `fetch` find everything they need here.
//!
//! Invariant: what a reload may change lies in [`LiveSettings`] and is read anew by each request.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use hashcache::Cache;
use hashcache_http::{
    Authority, CDN_CACHE_CONTROL, Host, Origin, Pseudonym, ReuseOptions, Scheme, Space,
    StoreOptions, Target, UnixTime,
};

use crate::access_log::WorkerLog;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::intercept::{InterceptState, Interceptor};
use crate::limits::Limits;
use crate::metrics::{Exposition, Limit, WorkerMetrics};
use crate::mirror::Mirrors;
use crate::page_groups::PageGroups;
use crate::purge::Purger;
use crate::settings::{CollapseWait, Fail, Mode, Settings};
use crate::share::Shares;
use crate::tls::identity::Identity;
use crate::upstream::address::{Clients, ConnectPort};
use crate::upstream::interfaces::OwnAddresses;
use crate::upstream::prefix::Prefix;
use crate::upstream::{self, Destinations, Upstream};
use crate::wire::Ending;

/// What all cores share and no reload changes.
pub(crate) struct Common {
    pub(crate) mode: Mode,
    /// In Cache-Status and Proxy-Status.
    pub(crate) name: Pseudonym,
    /// In Via, by which we know our own requests when they come back.
    pub(crate) via: Pseudonym,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) clock: Arc<Clock>,
    /// What is known of hosts and clients whose TLS may end here.
    pub(crate) intercept: Arc<InterceptState>,
    pub(crate) collapse: Arc<Collapse>,
    pub(crate) purger: Purger,
    pub(crate) page_groups: PageGroups,
    pub(crate) shares: Arc<Shares>,
    pub(crate) own: OwnAddresses,
    pub(crate) exposition: Exposition,
    pub(crate) live: ArcSwap<LiveSettings>,
}

/// What a reload changes.
pub(crate) struct LiveSettings {
    /// Counts reloads.
    pub(crate) generation: u64,
    pub(crate) store: StoreOptions,
    pub(crate) reuse: ReuseOptions,
    pub(crate) max_object_size: u64,
    pub(crate) connect_ports: Vec<ConnectPort>,
    pub(crate) ports: Vec<ConnectPort>,
    pub(crate) clients: Clients,
    pub(crate) public_url: Option<Origin>,
    pub(crate) mirrors: Mirrors,
    pub(crate) fail: Fail,
    /// How long a request waits for the same one that is under way.
    pub(crate) collapse_wait: CollapseWait,
    /// Clients that may purge; see [`Common::may_purge`] for none.
    pub(crate) allow_purge: Vec<Prefix>,
    pub(crate) upstream: upstream::UpstreamShared,
    /// What is shown to clients that speak TLS.
    pub(crate) identity: Option<Identity>,
    /// Who ends TLS that is for others.
    pub(crate) intercept: Option<Arc<Interceptor>>,
}

impl LiveSettings {
    /// What `settings` say, with connections bounded by the counters of `upstream`.
    pub(crate) fn new(
        settings: &Settings,
        generation: u64,
        own: &OwnAddresses,
        upstream: upstream::UpstreamShared,
        (identity, intercept): (Option<Identity>, Option<Arc<Interceptor>>),
    ) -> Self {
        let destinations = Destinations::new(
            &settings.allow_destination,
            &settings.deny_destination,
            own.clone(),
        );
        let destinations = destinations.behind(&settings.nat64_prefix);
        Self {
            generation,
            store: StoreOptions {
                rules: settings.rules.clone(),
                negative: settings.negative_lifetime,
                adaptive: settings.adaptive_lifetime,
                set_cookie: settings.set_cookie,
                targets: match settings.mode {
                    Mode::Forward => Vec::new(),
                    // The origin has put us there.
                    Mode::Accelerate { .. } => vec![CDN_CACHE_CONTROL],
                },
                ..StoreOptions::default()
            },
            reuse: ReuseOptions {
                client_reload: settings.client_reload,
                ..ReuseOptions::default()
            },
            max_object_size: settings.max_object_size,
            connect_ports: settings.allow_connect_port.clone(),
            ports: settings.allow_port.clone(),
            clients: Clients::new(&settings.allow_client, own.clone()),
            public_url: settings.public_url.clone(),
            mirrors: Mirrors::new(&settings.mirrors),
            fail: settings.fail,
            collapse_wait: settings.collapse_wait,
            allow_purge: settings.allow_purge.clone(),
            upstream: upstream::UpstreamShared {
                destinations,
                ..upstream
            },
            identity,
            intercept,
        }
    }
}

impl Worker {
    /// How long a request to `origin` waits for the same one that is under way.
    pub(crate) fn wait_time(&self, origin: &Authority) -> Duration {
        let (collapse, wait) = (&self.common.collapse, self.common.live().collapse_wait);
        collapse.wait_time(&origin.to_string(), wait, self.limits.first_byte_time)
    }
}

impl Common {
    pub(crate) fn live(&self) -> Guard<Arc<LiveSettings>> {
        self.live.load()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now().seconds())
    }

    /// Whether this client may purge in `space`: as the operator says; if nothing is said, from
    /// this machine, but not in front of a site.
    pub(crate) fn may_purge(&self, client: IpAddr, space: Space) -> bool {
        let client = client.to_canonical();
        let live = self.live();
        match &live.allow_purge[..] {
            [] => client.is_loopback() && !matches!(space, Space::Site(_)),
            allowed => allowed.iter().any(|it| it.contains(client)),
        }
    }

    /// Under which part of the key space the resources of this process lie.
    pub(crate) fn space(&self) -> Space {
        Self::space_of(&self.mode)
    }

    /// The same before the process has begun.
    pub(crate) fn space_of(mode: &Mode) -> Space {
        match mode {
            Mode::Forward => Space::Own,
            Mode::Accelerate { .. } => Space::Site(0),
        }
    }

    /// The origin we stand in front of, if we do.
    pub(crate) fn accelerated(&self) -> Option<&Origin> {
        match &self.mode {
            Mode::Forward => None,
            Mode::Accelerate { origin, .. } => Some(origin),
        }
    }

    /// Whether the site we stand in front of goes by this name.
    pub(crate) fn is_site(&self, host: &Host) -> bool {
        match &self.mode {
            Mode::Forward => false,
            Mode::Accelerate { hosts, .. } => hosts.is_empty() || hosts.contains(host),
        }
    }

    /// Whether `authority` is where figures are served, which are not for all who use a proxy.
    pub(crate) fn is_admin(&self, authority: &Authority) -> bool {
        let Some(admin) = self.admin else {
            return false;
        };
        authority.port == admin.port() && self.is_host(&authority.host)
    }

    /// Whether a request to `authority` is one to this proxy itself, not to be forwarded.
    pub(crate) fn is_us(&self, authority: &Authority) -> bool {
        if self.is_public(authority) {
            return true;
        }
        let mut ports = self.listen.iter().map(SocketAddr::port);
        ports.any(|port| port == authority.port) && self.is_host(&authority.host)
    }

    /// Whether this is what the operator says clients know us by.
    fn is_public(&self, authority: &Authority) -> bool {
        let live = self.live();
        live.public_url.as_ref().is_some_and(|url| {
            let Authority { host, port } = &url.authority;
            // Who ends TLS before us passes on a Host without a port, meaning that of https.
            let is_port = authority.port == *port
                || (authority.port == Scheme::Http.default_port()
                    && *port == url.scheme.default_port());
            is_port && authority.host == *host
        })
    }

    /// Under which URL a client reaches us whose request names `authority`, one of ours.
    pub(crate) fn base(&self, authority: &Authority) -> Origin {
        let public = self.live().public_url.clone();
        public.unwrap_or_else(|| Origin {
            scheme: Scheme::Http,
            authority: authority.clone(),
        })
    }

    /// Whether this is the machine we run on.
    fn is_host(&self, host: &Host) -> bool {
        match host {
            Host::Name(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                name == "localhost" || name.eq_ignore_ascii_case(self.name.as_str())
            }
            Host::V4(address) => self.is_address(IpAddr::V4(*address)),
            Host::V6(address) => self.is_address(IpAddr::V6(*address)),
        }
    }

    fn is_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        // All of 127/8 leads here, and so does 0.0.0.0, though no interface has them.
        address.is_loopback() || address.is_unspecified() || self.own.holds(address)
    }
}

/// What one core has.
pub(crate) struct Worker {
    pub(crate) common: Arc<Common>,
    pub(crate) cache: Cache,
    pub(crate) limits: Rc<Limits>,
    pub(crate) log: WorkerLog,
    pub(crate) metrics: Arc<WorkerMetrics>,
    upstream: RefCell<(u64, Rc<Upstream>)>,
}

impl Worker {
    pub(crate) fn new(
        common: Arc<Common>,
        cache: Cache,
        limits: &Limits,
        log: WorkerLog,
        metrics: Arc<WorkerMetrics>,
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
            upstream,
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

    /// Counts the limit that ended a connection, if one did.
    pub(crate) fn count_ending(&self, ending: Ending) {
        let metrics = &self.metrics;
        match ending {
            Ending::Idle => metrics.limit(Limit::IdleTime),
            Ending::SlowHead => metrics.limit(Limit::HeadTime),
            Ending::Flood => metrics.limit(Limit::Frames),
            Ending::NoMemory => metrics.limit(Limit::Memory),
            Ending::SlowWrite => metrics.limit(Limit::ProgressTime),
            Ending::Upgraded | Ending::Closed | Ending::Broken | Ending::Aborted => {}
        }
    }

    /// The authority of `target` as it stands in a Host field.
    pub(crate) fn host_field(target: &Target) -> String {
        target.authority.display(target.scheme).to_string()
    }
}
