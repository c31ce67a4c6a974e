//! What a core has: its own connections to origins, its end of the log, and what all cores share.
//!
//! Made by `server`, one a runtime; `request` and `fetch` find everything they need here.
//!
//! Invariant: what a reload may change lies in [`Live`] and is read anew by each request.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashcache::Cache;
use hashcache_http::{
    Authority, Host, Origin, Pseudonym, ReuseOptions, Scheme, Space, StoreOptions, UnixTime,
};

use crate::access_log::WorkerLog;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::metrics::{Exposition, WorkerMetrics};
use crate::purge::Purger;
use crate::related::Related;
use crate::settings::{Limits, Mode, Settings};
use crate::upstream::address::{Clients, ConnectPort, Prefix};
use crate::upstream::interfaces::OwnAddresses;
use crate::upstream::{self, Destinations, Upstream};

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
    pub(crate) collapse: Arc<Collapse>,
    pub(crate) purger: Purger,
    pub(crate) related: Related,
    pub(crate) own: OwnAddresses,
    pub(crate) exposition: Exposition,
    pub(crate) live: ArcSwap<Live>,
}

/// What a reload changes.
pub(crate) struct Live {
    /// Counts reloads.
    pub(crate) generation: u64,
    pub(crate) store: StoreOptions,
    pub(crate) reuse: ReuseOptions,
    pub(crate) max_object_size: u64,
    pub(crate) connect_ports: Vec<ConnectPort>,
    pub(crate) clients: Clients,
    /// Clients beside this machine that may purge.
    pub(crate) allow_purge: Vec<Prefix>,
    pub(crate) upstream: upstream::Shared,
}

impl Live {
    /// What `settings` say, with connections bounded by the counters of `upstream`.
    pub(crate) fn new(
        settings: &Settings,
        generation: u64,
        own: &OwnAddresses,
        upstream: upstream::Shared,
    ) -> Self {
        let destinations = Destinations::new(
            &settings.allow_destination,
            &settings.deny_destination,
            own.clone(),
        );
        Self {
            generation,
            store: StoreOptions {
                rules: settings.rules.clone(),
                ..StoreOptions::default()
            },
            reuse: ReuseOptions::default(),
            max_object_size: settings.max_object_size,
            connect_ports: settings.allow_connect_port.clone(),
            clients: Clients::new(&settings.allow_client, own.clone()),
            allow_purge: settings.allow_purge.clone(),
            upstream: upstream::Shared {
                destinations,
                ..upstream
            },
        }
    }
}

impl Common {
    pub(crate) fn live(&self) -> Guard<Arc<Live>> {
        self.live.load()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now().seconds())
    }

    /// Whether this client may purge: from this machine, unless more are allowed.
    pub(crate) fn may_purge(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback() || self.live().allow_purge.iter().any(|it| it.contains(client))
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
        let mut ports = self.listen.iter().map(SocketAddr::port);
        ports.any(|port| port == authority.port) && self.is_host(&authority.host)
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
    /// Validations under way that nobody waits for.
    pub(crate) background: Cell<u32>,
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
        let (background, upstream) = (Cell::new(0), RefCell::new(upstream));
        Rc::new(Self {
            common,
            cache,
            limits,
            log,
            metrics,
            background,
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

    /// The authority as it stands in a Host field.
    pub(crate) fn host_field(authority: &Authority) -> String {
        authority.display(Scheme::Http).to_string()
    }
}
