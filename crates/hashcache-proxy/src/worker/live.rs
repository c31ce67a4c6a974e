//! The settings that a reload replaces as a whole, with the structures that are built from them.
//!
//! Made by `server` at the start and by each reload.
//!
//! Invariant: this state never changes, so a request that has read it once sees a consistent set of
//! settings.

use std::sync::Arc;

use hashcache_access::lists::Lists;
use hashcache_access::quota::LimitPlan;
use hashcache_access::users::UserHashes;
use hashcache_access::{TimedRules, WeekMinute};
use hashcache_base::clock::zone::Zone;
use hashcache_base::net::address::Clients;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::net::own_domain::AllowedDestination;
use hashcache_base::tls::identity::Identity;
use hashcache_http::{CDN_CACHE_CONTROL, ReuseOptions, StoreOptions};
use hashcache_intercept::Interceptor;
use hashcache_link::children::LinkServer;
use hashcache_link::pin::Pin;
use hashcache_site::live::LiveSites;
use hashcache_site::mirror::Mirrors;
use hashcache_upstream::tls::Trust;
use hashcache_upstream::{Destinations, UpstreamShared};

use crate::route::Routes;
use crate::settings::{Mode, Reloadable, Settings};

/// The reloadable settings, and the lookup structures built from them.
pub(crate) struct LiveSettings {
    /// Number of reloads.
    pub(crate) generation: u64,
    pub(crate) settings: Reloadable,
    pub(crate) store: StoreOptions,
    pub(crate) reuse: ReuseOptions,
    /// The clients that are served if no access rule matches.
    pub(crate) clients: Clients,
    /// The limits that the access rules name.
    pub(crate) limits: Arc<LimitPlan>,
    /// The lists that the access rules name.
    pub(crate) lists: Arc<Lists>,
    /// The users whose passwords are known, if there are any.
    pub(crate) users: Option<Arc<UserHashes>>,
    /// Time zone for rules with times of the week.
    pub(crate) zone: Zone,
    pub(crate) mirrors: Mirrors,
    pub(crate) upstream: UpstreamShared,
    /// The next hops for each resource.
    pub(crate) routes: Routes,
    /// The sites of a reverse proxy.
    pub(crate) sites: Arc<LiveSites>,
    /// Certificates for clients that connect with TLS.
    pub(crate) identity: Option<Identity>,
    /// Terminates TLS for intercepted hosts.
    pub(crate) intercept: Option<Arc<Interceptor>>,
    /// Keys of the children, and our own key.
    pub(crate) link: Option<Arc<LinkServer>>,
}

/// Contents of the files that the settings name by a path.
pub(crate) struct NamedFiles {
    pub(crate) identity: Option<Identity>,
    pub(crate) intercept: Option<Arc<Interceptor>>,
    /// Certificate authorities that may sign origin certificates.
    pub(crate) trust: Trust,
    /// Routes, with the credentials of the peers.
    pub(crate) routes: Routes,
    pub(crate) link: Option<Arc<LinkServer>>,
    pub(crate) zone: Zone,
    pub(crate) users: Option<Arc<UserHashes>>,
}

impl LiveSettings {
    /// The access rules that apply at this Unix time.
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

    /// Returns true if content digests are stored, because one end of a link offers content by
    /// digest.
    pub(crate) fn keeps_digests(&self) -> bool {
        let mut peers = self.routes.peers().iter();
        self.link.is_some() || peers.any(|peer| peer.link.is_some())
    }

    /// The reloadable parts of `settings`. Connections stay bounded by the counters in `upstream`.
    pub(crate) fn new(
        settings: &Settings,
        generation: u64,
        own: &OwnAddresses,
        upstream: UpstreamShared,
        files: NamedFiles,
        sites: LiveSites,
        lists: Lists,
    ) -> Self {
        let NamedFiles {
            identity,
            intercept,
            trust,
            routes,
            link,
            zone,
            users,
        } = files;
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
                    // In front of a site the proxy acts for the origin, so it applies
                    // CDN-Cache-Control.
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
            lists: Arc::new(lists),
            users,
            zone,
            mirrors: Mirrors::new(&settings.mirrors),
            upstream: UpstreamShared {
                trust,
                destinations,
                announced: settings.proxy_protocol_to.clone().into(),
                ..upstream
            },
            routes,
            sites: Arc::new(sites),
            identity,
            intercept,
            link,
        }
    }
}
