//! State that all cores share: values fixed at the start, process-wide tables, and a pointer to the
//! current settings.
//!
//! Made by `server/load`; used everywhere.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashcache_access::quota::Limiter;
use hashcache_access::users::UserChecks;
use hashcache_base::clock::Clock;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::share::Shares;
use hashcache_http::{Authority, Host, Origin, Pseudonym, Scheme, Space, UnixTime};
use hashcache_intercept::InterceptState;
use hashcache_link::children::Children;
use hashcache_link::chunk_tables::ChunkTables;
use hashcache_link::pin::Pin;
use hashcache_store::collapse::Collapse;
use hashcache_store::not_stored::RecentlyNotStored;
use hashcache_store::page_groups::PageGroups;
use hashcache_store::purge::Purger;
use hashcache_store::summary::Summary;

use super::LiveSettings;
use crate::metrics::Exposition;
use crate::queries::Queries;
use crate::route::literal_address;
use crate::settings::Mode;

/// State that all cores share and that a reload does not change.
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
    /// Tables of the chunks that the boxes behind links have.
    pub(crate) chunks: Arc<ChunkTables>,
    pub(crate) clock: Arc<Clock>,
    /// Results of earlier interceptions, by host and client.
    pub(crate) intercept: Arc<InterceptState>,
    pub(crate) collapse: Arc<Collapse>,
    /// Reasons why the latest uncacheable responses were not stored.
    pub(crate) not_stored: RecentlyNotStored,
    pub(crate) purger: Purger,
    pub(crate) page_groups: PageGroups,
    pub(crate) shares: Arc<Shares>,
    /// Usage of quotas and rates, by client and user.
    pub(crate) limiter: Arc<Limiter>,
    /// Password checks.
    pub(crate) user_checks: Arc<UserChecks>,
    pub(crate) own: OwnAddresses,
    pub(crate) exposition: Exposition,
    /// Queries to peers by ICP and HTCP.
    pub(crate) queries: Arc<Queries>,
    /// Digest of the stored objects, for peers.
    pub(crate) summary: Arc<Summary>,
    pub(crate) live: ArcSwap<LiveSettings>,
}

impl Common {
    pub(crate) fn live(&self) -> Guard<Arc<LiveSettings>> {
        self.live.load()
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime(self.clock.now().seconds())
    }

    /// Returns true if this client may purge in `space`: by the operator's list. If the list is
    /// empty, only clients on this machine may purge, and nobody in front of a site.
    pub(crate) fn may_purge(&self, client: IpAddr, space: Space) -> bool {
        let client = client.to_canonical();
        let live = self.live();
        match &live.settings.allow_purge[..] {
            // If this machine connects to its own name, the client address is the address of that
            // name.
            [] => self.is_own_address(client) && !matches!(space, Space::Site(_)),
            allowed => allowed.iter().any(|it| it.contains(client)),
        }
    }

    /// Returns true if a child has the key with this pin. A reload may remove the child.
    pub(crate) fn is_child(&self, pin: &Pin) -> bool {
        let live = self.live();
        let link = live.link.as_ref();
        link.is_some_and(|link| link.children.contains(pin))
    }

    /// The key space for resources of this process.
    pub(crate) fn space(&self) -> Space {
        Self::space_of(&self.mode)
    }

    /// As [`space`](Self::space), for use before the process has started.
    pub(crate) fn space_of(mode: &Mode) -> Space {
        match mode {
            Mode::Forward => Space::Own,
            // The host is part of the cache key, so the number has no meaning. It is 1 because keys
            // with number 0 had the URL of the single origin.
            Mode::Reverse => Space::Site(1),
        }
    }

    /// Returns true in a reverse proxy.
    pub(crate) fn is_reverse(&self) -> bool {
        self.mode == Mode::Reverse
    }

    /// Returns true if `authority` is the admin listener, to which not all clients of the proxy
    /// have access.
    pub(crate) fn is_admin(&self, authority: &Authority) -> bool {
        let Some(admin) = self.admin else {
            return false;
        };
        authority.port == admin.port() && self.is_host(&authority.host)
    }

    /// Returns true if a request to `authority` is for this proxy itself, so it must not be
    /// forwarded.
    pub(crate) fn is_us(&self, authority: &Authority) -> bool {
        if self.is_public(authority) {
            return true;
        }
        let mut ports = self.listen.iter().map(SocketAddr::port);
        ports.any(|port| port == authority.port) && self.is_host(&authority.host)
    }

    /// Returns true if `authority` is the public URL that the operator configured.
    fn is_public(&self, authority: &Authority) -> bool {
        let live = self.live();
        live.settings.public_url.as_ref().is_some_and(|url| {
            let Authority { host, port } = &url.authority;
            // A TLS terminator in front of this proxy sends Host without a port when it means port
            // 443.
            let is_port = authority.port == *port
                || (authority.port == Scheme::Http.default_port()
                    && *port == url.scheme.default_port());
            is_port && authority.host == *host
        })
    }

    /// The URL of this proxy for a client that speaks `scheme` with it and that named the proxy as
    /// `authority` in its request.
    pub(crate) fn base(&self, authority: &Authority, scheme: Scheme) -> Origin {
        let public = self.live().settings.public_url.clone();
        public.unwrap_or_else(|| Origin {
            scheme,
            authority: authority.clone(),
        })
    }

    /// Returns true if `host` is this machine.
    fn is_host(&self, host: &Host) -> bool {
        let is_named = |name: &str| {
            let name = name.strip_suffix('.').unwrap_or(name);
            name.eq_ignore_ascii_case(self.name.as_str())
        };
        literal_address(host).is_some_and(|address| self.is_own_address(address))
            || matches!(host, Host::Name(name) if is_named(name))
    }

    /// Returns true if `address` belongs to this machine.
    pub(crate) fn is_own_address(&self, address: IpAddr) -> bool {
        self.own.is_this_host(address)
    }
}
