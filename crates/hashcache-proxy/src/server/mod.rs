//! Listeners, cores, signals: from the start of the process to its end.
//!
//! Each core is a thread with a runtime of its own and a copy of every listening socket. The thread
//! that called [`run`] handles signals, the admin listener and the clock.
//!
//! Called by `hashcache-cli`; calls `cores` for one core and `control` for signals.
//!
//! ```text
//! Serving ──TERM──▶ Draining ──all done, or drain_time──▶ Closing (cache saved, log written)
//!                      └──────────TERM again─────────────────┘
//! ```
//!
//! Invariant: addresses are bound without SO_REUSEPORT, so a second instance fails to start instead
//! of silently taking half of the connections. Sockets of a supervisor stay open between two
//! processes, and connections wait in their queues meanwhile.

mod authority_expiry;
mod connection_counts;
mod control;
mod cores;
mod forward_listener;
mod link_listener;
mod links;
mod list_refresh;
mod original_destination;
mod preflight;
mod probes;
mod protocol;
mod proxy_protocol;
mod site_checks;
mod stage;
mod supervisor;
mod udp_sockets;
mod warnings;
mod watchdog;

pub use self::preflight::preflight;
pub use self::stage::RunError;
pub use self::supervisor::Supervisor;
pub use self::warnings::{Warning, warnings};

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashcache::{Cache, Health, Stats};
use hashcache_access::lists::Lists;
use hashcache_access::quota::Limiter;
use hashcache_access::users::UserChecks;
use hashcache_base::clock::Clock;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::share::Shares;
use hashcache_base::task::spawn;
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_http::Pseudonym;
use hashcache_intercept::InterceptState;
use hashcache_link::chunk_tables::ChunkTables;
use hashcache_site::live::LiveSites;
use hashcache_store::collapse::Collapse;
use hashcache_store::not_stored::RecentlyNotStored;
use hashcache_store::page_groups::PageGroups;
use hashcache_store::purge::Purger;
use hashcache_upstream::Destinations;
use hashcache_upstream::dns::{DnsCache, NameServers};
use hashcache_upstream::tls::Trust;
use hashcache_upstream::unreachable::UnreachableCache;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tracing::warn;

use self::connection_counts::ConnectionCounts;
use self::control::{
    Control, UnixSignals, account, identity, interceptor, link_identity, link_server, load_routes,
    users, zone,
};
use self::cores::{Core, CoreSockets, ListeningSocket};
use self::links::Links;
use self::stage::Stage;
use self::udp_sockets::UdpSockets;
use self::watchdog::Watchdog;
use crate::access_log::AccessLogger;
use crate::admin::Admin;
use crate::dashboard::{Buttons, Dashboard};
use crate::explain::Explainer;
use crate::history::History;
use crate::history::name::Persons;
use crate::inventory::Inventory;
use crate::metrics::{DeviceFigures, EngineFigures, Exposition, Metrics, StoreState};
use crate::peers;
use crate::queries::Queries;
use crate::settings::{Listen, ReloadedSettings, Settings, StateFiles};
use crate::worker::{Common, LiveSettings};

/// The addresses that [`run`] has bound.
#[derive(Clone, Debug)]
pub struct Listening {
    /// For clients.
    pub clients: Vec<SocketAddr>,
    /// For monitors and purges.
    pub admin: Option<SocketAddr>,
    /// For the links of children.
    pub link: Option<SocketAddr>,
    /// Forwarded ports, in the order of the settings.
    pub forwards: Vec<SocketAddr>,
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("serving")?;
        let clients = self.clients.iter().map(|at| ("on", at));
        let admin = self.admin.iter().map(|at| ("admin on", at));
        let link = self.link.iter().map(|at| ("link on", at));
        let forwards = self.forwards.iter().map(|at| ("forwarding", at));
        let all = clients.chain(admin).chain(link).chain(forwards);
        for (number, (what, address)) in all.enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma} {what} {address}")?;
        }
        Ok(())
    }
}

/// Serves until a signal stops it, on the sockets of `supervisor` where it has them. `listening` is
/// called once with the bound addresses; `reload` returns the settings anew on SIGHUP.
///
/// # Errors
///
/// See [`RunError`]; no client was served then.
pub fn run<E: fmt::Display>(
    settings: Settings,
    cache: Cache,
    state: StateFiles,
    supervisor: Supervisor,
    listening: impl FnOnce(&Listening),
    reload: impl Fn() -> Result<ReloadedSettings, E>,
) -> Result<(), RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let (name, via) = pseudonyms(&settings.startup.name)?;
    let Supervisor {
        mut sockets,
        notifier,
        watchdog,
    } = supervisor;
    sockets.prepare(&listens(&settings))?;
    let mut bind = |listen: Listen| match sockets.take(listen.address) {
        Some(passed) => Ok(passed),
        None => bind(listen),
    };
    let listeners: Vec<StdListener> = settings
        .startup
        .listen
        .iter()
        .map(|listen| bind(*listen))
        .collect::<Result<_, _>>()?;
    let admin_listener = settings
        .startup
        .admin
        .map(|at| bind(at.into()))
        .transpose()?;
    let link_listener = settings.startup.link_listen.map(|at| bind(at.into()));
    let link_listener = link_listener.transpose()?;
    let forwards = settings.startup.link_forward.iter();
    let forwards = forwards.map(|forward| bind(forward.listen.into()));
    let forwards: Vec<StdListener> = forwards.collect::<Result<_, _>>()?;
    let forwarding = forwards.iter().filter_map(|it| it.local_addr().ok());
    let forwarding: Vec<SocketAddr> = forwarding.collect();
    let link_address = link_listener.as_ref().and_then(|it| it.local_addr().ok());
    let mut udp = UdpSockets::bind(&settings)?;
    let admin_address = admin_listener.as_ref().and_then(|it| it.local_addr().ok());
    let listen = listeners
        .iter()
        .filter_map(|it| it.local_addr().ok())
        .collect::<Vec<_>>();
    let clock = Arc::new(Clock::start(state.clock));
    let log = AccessLogger::start(&settings, &clock).map_err(|source| RunError::AccessLog {
        place: settings.startup.access_log.to_string(),
        source,
    })?;
    let log = Arc::new(log);
    let metrics = Metrics::new(settings.startup.workers);
    let persons = match settings.startup.log_anonymize {
        true => Persons::LeftOut,
        false => Persons::Named,
    };
    let history = History::start(
        state.history,
        persons,
        (&cache, settings.startup.workers),
        (&clock, &metrics),
    );
    let identity = identity(&settings, &clock)?;
    let interceptor = interceptor(&settings, &clock)?;
    account(interceptor.as_deref(), &cache, &metrics);
    let verified = Arc::new(VerifiedHosts::load(state.verified));
    let intercept_state = Arc::new(InterceptState {
        verified: Arc::clone(&verified),
        ..InterceptState::default()
    });
    let trust = Trust::load(&settings.reloadable.upstream_ca, Arc::clone(&clock))?;
    let own = OwnAddresses::of_this_machine();
    let limits = Arc::new(settings.startup.limits.clone());
    let names = DnsCache::new(NameServers::System, settings.startup.limits.dns_time);
    let shared = hashcache_upstream::UpstreamShared::new(
        names,
        Destinations::new(&[], &[], own.clone()),
        own.clone(),
        trust,
        limits,
        via.chain(&http::HeaderMap::new(), http::Version::HTTP_11),
    );
    let shared = hashcache_upstream::UpstreamShared {
        verified: Arc::clone(&verified),
        unreachable: UnreachableCache::new(settings.reloadable.unreachable_lifetime),
        listeners: (listen.iter().copied())
            .chain(admin_address)
            .chain(link_address)
            .chain(forwarding.iter().copied())
            .collect(),
        ..shared
    };
    let line = Arc::clone(&shared.line);
    line.regard(settings.reloadable.offline);
    let exposition = exposition(&metrics, &clock, &log, &cache, &shared);
    let exposition = exposition.with_intercept_state(Arc::clone(&intercept_state));
    let exposition = exposition.with_line(Arc::clone(&line));
    let link_identity = link_identity(&settings)?;
    let routes = load_routes(&settings, &[], link_identity.as_ref())?;
    let link = link_server(&settings, link_identity.as_ref(), &clock);
    let sites = Arc::new(LiveSites::new(&settings.reloadable.sites, None));
    metrics.set_peers(routes.peers());
    let hops = (routes, sites);
    let shown = (identity, interceptor, link);
    let zone = zone(&settings)?;
    let lists = Lists::load(&settings.reloadable.lists, &cache, &Lists::default())?;
    let access = (Arc::new(lists), users(&settings, &cache)?, zone);
    warnings::log(&settings);
    let limiter = Limiter::load(state.quotas, Arc::clone(&clock), &cache);
    let live = LiveSettings::new(&settings, 0, &own, shared, hops, shown, access);
    // Pages of a site that any host leads to carry other names in Referer.
    let site = settings
        .reloadable
        .sites
        .all()
        .iter()
        .find(|site| site.hosts.is_empty());
    let site = site.and_then(|site| site.origins.first());
    let site = site.map(|origin| origin.url.clone());
    let queries = Arc::new(Queries::new(Arc::clone(&clock), &metrics));
    let collapse = Collapse::new();
    let space = Common::space_of(&settings.startup.mode);
    let purger = Purger::new(&cache, &collapse, space, metrics.purges());
    // Half of the processors at most; requests are served on the others.
    let user_checks =
        UserChecks::new(settings.startup.workers / 2).map_err(system("random numbers"))?;
    let common = Arc::new(Common {
        mode: settings.startup.mode,
        page_groups: PageGroups::new(settings.startup.group_by, site),
        name,
        via,
        listen: (listen.iter().copied())
            .chain(link_address)
            .chain(forwarding.iter().copied())
            .collect(),
        admin: admin_address,
        children: Arc::default(),
        chunks: Arc::new(ChunkTables::load(state.chunks, &live.pins(), &cache)),
        clock: Arc::clone(&clock),
        intercept: intercept_state,
        shares: Shares::new(
            cache.stats().memory_limit_bytes,
            settings.startup.limits.client_share,
        ),
        limiter: Arc::clone(&limiter),
        user_checks: Arc::new(user_checks),
        collapse,
        not_stored: RecentlyNotStored::default(),
        purger,
        own,
        exposition: exposition.clone(),
        queries,
        summary: Arc::default(),
        live: ArcSwap::from_pointee(live),
    });
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("a runtime"))?;
    let _context = runtime.enter();
    let signals = UnixSignals::new().map_err(system("signals"))?;
    let (stop, stopping) = watch::channel(Stage::Serving);
    let counts = Arc::new(ConnectionCounts::default());
    let notifier = Arc::new(notifier);
    let mut watchdog = watchdog.map(Watchdog::new);
    let threads = (0..settings.startup.workers.max(1))
        .map(|number| {
            let core = Core {
                common: Arc::clone(&common),
                cache: cache.clone(),
                log: log.worker(),
                metrics: metrics.worker(number),
                history: Arc::clone(&history),
                settings: settings.startup.clone(),
                counts: Arc::clone(&counts),
                stopping: stopping.clone(),
                pulse: watchdog.as_mut().map(Watchdog::pulse),
            };
            let sockets =
                listeners
                    .iter()
                    .zip(&settings.startup.listen)
                    .map(|(listener, listen)| {
                        let listener = listener.try_clone()?;
                        let speaks = settings.speaks(listen);
                        Ok(ListeningSocket { listener, speaks })
                    });
            let sockets = sockets.collect::<Result<_, _>>();
            let sockets = sockets.map_err(system("a listener's copy"))?;
            let link = link_listener.as_ref().map(StdListener::try_clone);
            let link = link.transpose().map_err(system("a listener's copy"))?;
            let copies = forwards.iter().zip(&settings.startup.link_forward);
            let forwards =
                copies.map(|(listener, forward)| Ok((listener.try_clone()?, forward.clone())));
            let forwards = forwards.collect::<Result<_, _>>();
            let sockets = CoreSockets {
                clients: sockets,
                link,
                forwards: forwards.map_err(system("a listener's copy"))?,
            };
            core.start(number, sockets)
        })
        .collect::<Result<Vec<_>, RunError>>()?;
    // The cores have copies, which they close when a drain begins. With this copy open, clients
    // would wait in its queue then instead of being refused.
    drop((listeners, link_listener, forwards));
    let mut links = Links::new(&common, &cache);
    links
        .keep(common.live().routes.peers())
        .map_err(system("a thread"))?;
    let exposition = exposition.with_sites({
        let common = Arc::clone(&common);
        move || Arc::clone(&common.live().sites)
    });
    let exposition = exposition.with_links({
        let common = Arc::clone(&common);
        move || links::view(&common)
    });
    let exposition = exposition.with_limiter({
        let limiter = Arc::clone(&limiter);
        move || limiter.figures()
    });
    let buttons = match settings.startup.admin_token_file {
        Some(_) => Buttons::Shown,
        None => Buttons::Hidden,
    };
    let dashboard = Dashboard::new(exposition.clone(), Arc::clone(&history), buttons);
    let admin = Admin::new(
        (exposition, dashboard),
        line,
        common.purger.clone(),
        {
            let common = Arc::clone(&common);
            Arc::new(move || {
                let sites = Arc::clone(&common.live().sites);
                common.is_reverse().then_some(sites)
            })
        },
        settings.startup.admin_token_file.clone(),
        (
            Explainer::new(Arc::clone(&common), cache.clone()),
            Inventory::new(Arc::clone(&common), cache.clone()),
        ),
    );
    if let Some(listener) = admin_listener {
        let listener = TcpListener::from_std(listener).map_err(system("the admin listener"))?;
        runtime.spawn(Arc::clone(&admin).serve(listener));
    }
    udp.serve((&common, &cache, &stopping))
        .map_err(system("the UDP sockets"))?;
    {
        let (shared, stage) = (Arc::clone(&common), stopping.clone());
        let is_ending = move || *stage.borrow() != Stage::Serving;
        spawn(peers::keep_summary(shared, cache.clone(), is_ending));
    }
    spawn(list_refresh::keep_lists(Arc::clone(&common), cache.clone()));
    spawn(Arc::clone(&clock).keep());
    spawn(Arc::clone(&verified).keep());
    spawn(Arc::clone(&history).keep());
    spawn(Arc::clone(&limiter).keep());
    spawn(authority_expiry::warn_before_expiry(Arc::clone(&common)));
    let bound = Listening {
        clients: listen,
        admin: admin_address,
        link: link_address,
        forwards: forwarding,
    };
    listening(&bound);
    let status = bound.to_string();
    notifier.ready(&status);
    if let Some(watchdog) = watchdog {
        spawn(watchdog.keep(Arc::clone(&notifier), stopping.clone()));
    }
    let chunks = Arc::clone(&common.chunks);
    spawn(Arc::clone(&chunks).keep());
    let control = Control {
        common,
        metrics,
        log: Arc::clone(&log),
        settings,
        stop,
        counts,
        admin,
        cache,
        udp,
        links,
        stopping,
        notifier,
        status,
    };
    runtime.block_on(control.run(signals, reload, threads));
    if let Err(error) = clock.persist() {
        warn!(%error, "time not saved");
    }
    if let Err(error) = verified.persist() {
        warn!(%error, "verified hosts not saved");
    }
    if let Err(error) = history.persist() {
        warn!(%error, "history not saved");
    }
    if let Err(error) = limiter.persist() {
        warn!(%error, "usage of quotas not saved");
    }
    if let Err(error) = chunks.persist() {
        warn!(%error, "tables of chunks not saved");
    }
    log.stop();
    Ok(())
}

/// The names of the proxy `name` in `Cache-Status` and in `Via`.
fn pseudonyms(name: &str) -> Result<(Pseudonym, Pseudonym), RunError> {
    let pseudonym = |text: &str| {
        let name = name.to_owned();
        Pseudonym::new(text).map_err(|_| RunError::Name { name })
    };
    Ok((pseudonym(name)?, pseudonym(&via_name(name))?))
}

/// A random suffix: two proxies without a configured name must not take each other's requests for
/// loops.
fn via_name(name: &str) -> String {
    if name == UNNAMED {
        format!("{name}-{:08x}", fastrand::u32(..))
    } else {
        name.to_owned()
    }
}

/// The name of a proxy without a configured name.
const UNNAMED: &str = "hashcache";

/// The TCP listeners of `settings`.
fn listens(settings: &Settings) -> Vec<Listen> {
    let forwards = settings
        .startup
        .link_forward
        .iter()
        .map(|forward| forward.listen);
    let others = settings
        .startup
        .admin
        .into_iter()
        .chain(settings.startup.link_listen);
    let others = forwards.chain(others).map(Listen::from);
    settings
        .startup
        .listen
        .iter()
        .copied()
        .chain(others)
        .collect()
}

fn bind(listen: Listen) -> Result<StdListener, RunError> {
    let address = listen.address;
    let bound = || -> io::Result<StdListener> {
        let socket = socket(listen)?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    bound().map_err(|source| RunError::Listen { address, source })
}

/// A socket that is bound to the address of `listen` and accepts no connections yet.
fn socket(listen: Listen) -> io::Result<socket2::Socket> {
    let address = listen.address;
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        None,
    )?;
    // Allows a new process to bind the address while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if listen.is_tproxy() {
        original_destination::set_transparent(&socket, address)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn exposition(
    metrics: &Arc<Metrics>,
    clock: &Arc<Clock>,
    log: &Arc<AccessLogger>,
    cache: &Cache,
    upstream: &hashcache_upstream::UpstreamShared,
) -> Exposition {
    let (cache, permits) = (cache.clone(), upstream.permits.clone());
    let figures = move || {
        let stats = cache.stats();
        EngineFigures {
            store: match stats.health {
                Health::InService if stats.devices_out == 0 => StoreState::Ready,
                Health::Recovering => StoreState::Opening,
                _ => StoreState::Degraded,
            },
            objects: stats.entries,
            objects_exact: stats.entries_exact,
            index_bytes: stats.index_bytes,
            index_slots: stats.index_slots,
            index_objects: stats.live_entries,
            hot_bytes: stats.hot_bytes,
            pending_bytes: stats.pending_bytes,
            memory_used_bytes: stats.memory_used_bytes,
            memory_limit_bytes: stats.memory_limit_bytes,
            capacity_bytes: stats.device_bytes,
            devices: stats.devices,
            rules: stats.bans,
            devices_out: stats.devices_out,
            group_reads: stats.group_reads,
            prefetched: stats.prefetched,
            prefetched_present: stats.prefetched_present,
            prefetched_dropped: stats.prefetched_dropped,
            lookup_reads: lookup_reads(&stats),
            false_reads: stats.false_reads,
            readmitted: stats.readmitted,
            forgotten: stats.forgotten,
            devices_uring: stats.devices_uring,
            device: DeviceFigures {
                reads: stats.reads,
                writes: stats.writes,
                read_bytes: stats.read_bytes,
                written_bytes: stats.written_bytes,
            },
        }
    };
    Exposition::new(
        Arc::clone(metrics),
        Arc::clone(clock),
        Arc::clone(log),
        figures,
        move || permits.figures(),
    )
}

/// Reads of the engine for lookups that have a cause, each under one.
fn lookup_reads(stats: &Stats) -> [(&'static str, u64); 8] {
    let first = stats.group_reads - stats.repeated_group_reads;
    [
        ("group", first),
        ("group_again", stats.repeated_group_reads),
        ("no_group", stats.ungrouped_reads),
        ("alone", stats.lone_reads),
        ("short_of_memory", stats.member_reads),
        ("span", stats.span_reads),
        ("rest", stats.rest_reads),
        ("row", stats.row_reads),
    ]
}
