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
use crate::settings::{Limits, Mode, Settings};
use crate::upstream::address::{Clients, ConnectPort};
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
    pub(crate) clock: Arc<Clock>,
    pub(crate) collapse: Arc<Collapse>,
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

    /// Under which part of the key space the resources of this process lie.
    pub(crate) fn space(&self) -> Space {
        match self.mode {
            Mode::Forward => Space::Own,
            Mode::Accelerate { .. } => Space::Site(0),
        }
    }

    /// The origin we stand in front of, if we do.
    pub(crate) fn accelerated(&self) -> Option<&Origin> {
        match &self.mode {
            Mode::Forward => None,
            Mode::Accelerate { origin } => Some(origin),
        }
    }

    /// Whether a request to `authority` is one to this proxy itself, not to be forwarded.
    pub(crate) fn is_us(&self, authority: &Authority) -> bool {
        let ports = || {
            self.listen
                .iter()
                .any(|address| address.port() == authority.port)
        };
        let ours = |address: IpAddr| ports() && self.own.holds(address);
        match &authority.host {
            Host::Name(name) => {
                ports() && (**name == *"localhost" || name.eq_ignore_ascii_case(self.name.as_str()))
            }
            Host::V4(address) => ours(IpAddr::V4(*address)),
            Host::V6(address) => ours(IpAddr::V6(*address)),
        }
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
        let upstream = (live.generation, Rc::new(Upstream::new(&live.upstream)));
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
            *upstream = (live.generation, Rc::new(Upstream::new(&live.upstream)));
        }
        Rc::clone(&upstream.1)
    }

    /// The authority as it stands in a Host field.
    pub(crate) fn host_field(authority: &Authority) -> String {
        authority.display(Scheme::Http).to_string()
    }
}
