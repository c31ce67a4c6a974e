//! Makes the state that all cores share from the settings, the cache and the state files of an
//! earlier process.
//!
//! Called by `server` at the start, after the sockets are bound, because the addresses are part of
//! the state.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hashcache::{Cache, Health, Stats};
use hashcache_access::lists::Lists;
use hashcache_access::quota::Limiter;
use hashcache_access::users::UserChecks;
use hashcache_base::clock::Clock;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::share::Shares;
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_http::Pseudonym;
use hashcache_intercept::InterceptState;
use hashcache_link::chunk_tables::ChunkTables;
use hashcache_site::live::LiveSites;
use hashcache_store::collapse::Collapse;
use hashcache_store::not_stored::RecentlyNotStored;
use hashcache_store::page_groups::PageGroups;
use hashcache_store::purge::Purger;
use hashcache_upstream::dns::{DnsCache, NameServers};
use hashcache_upstream::unreachable::UnreachableCache;
use hashcache_upstream::{Destinations, UpstreamShared};

use super::bind::Listening;
use super::named_files::{self, account};
use super::saved::Saved;
use super::stage::RunError;
use super::warnings;
use crate::access_log::AccessLogger;
use crate::history::History;
use crate::history::name::Persons;
use crate::metrics::{DeviceFigures, EngineFigures, Exposition, Metrics, StoreState};
use crate::queries::Queries;
use crate::settings::{Settings, StateFiles};
use crate::worker::{Common, LiveSettings};

/// The process's state before the first client is served.
pub(super) struct Loaded {
    pub(super) common: Arc<Common>,
    pub(super) log: Arc<AccessLogger>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) saved: Saved,
}

/// Loads the process's state.
///
/// # Errors
/// A file that the settings name cannot be read or is not valid.
pub(super) fn load(
    settings: &Settings,
    cache: &Cache,
    state: StateFiles,
    bound: &Listening,
) -> Result<Loaded, RunError> {
    let (startup, reloadable) = (&settings.startup, &settings.reloadable);
    let (name, via) = pseudonyms(&startup.name)?;
    let clock = Arc::new(Clock::start(state.clock));
    let log = AccessLogger::start(settings, &clock).map_err(|source| RunError::AccessLog {
        place: startup.access_log.to_string(),
        source,
    })?;
    let log = Arc::new(log);
    let metrics = Metrics::new(startup.workers);
    let persons = if startup.log_anonymize {
        Persons::LeftOut
    } else {
        Persons::Named
    };
    let history = History::start(
        state.history,
        persons,
        (cache, startup.workers),
        (&clock, &metrics),
    );
    let files = named_files::read(settings, &[], &clock, cache)?;
    let lists = Lists::load(&reloadable.lists, cache, &Lists::default())?;
    let verified = Arc::new(VerifiedHosts::load(state.verified));
    let intercept = Arc::new(InterceptState {
        verified: Arc::clone(&verified),
        ..InterceptState::default()
    });
    let own = OwnAddresses::of_this_machine();
    account(files.intercept.as_deref(), cache, &metrics);
    metrics.set_peers(files.routes.peers());
    let upstream = UpstreamShared::new(
        DnsCache::new(NameServers::System, startup.limits.dns_time),
        Destinations::new(&[], &[], own.clone()),
        own.clone(),
        files.trust.clone(),
        Arc::new(startup.limits.clone()),
        via.chain(&http::HeaderMap::new(), http::Version::HTTP_11),
    );
    let upstream = UpstreamShared {
        verified: Arc::clone(&verified),
        unreachable: UnreachableCache::new(reloadable.unreachable_lifetime),
        listeners: bound.all().collect(),
        ..upstream
    };
    upstream.line.regard(reloadable.offline);
    let exposition = exposition(&metrics, &clock, &log, cache, &upstream)
        .with_intercept_state(Arc::clone(&intercept))
        .with_line(Arc::clone(&upstream.line));
    warnings::log(settings);
    let limiter = Limiter::load(state.quotas, Arc::clone(&clock), cache);
    let sites = LiveSites::new(&reloadable.sites, None);
    let live = LiveSettings::new(settings, 0, &own, upstream, files, sites, lists);
    let chunks = Arc::new(ChunkTables::load(state.chunks, &live.pins(), cache));
    // If a site serves any host, its pages have other names in Referer.
    let mut all = reloadable.sites.all().iter();
    let site = all.find(|site| site.hosts.is_empty());
    let site = site.and_then(|site| Some(site.origins.first()?.url.clone()));
    let queries = Arc::new(Queries::new(Arc::clone(&clock), &metrics));
    let collapse = Collapse::new();
    let space = Common::space_of(&startup.mode);
    let purger = Purger::new(cache, &collapse, space, metrics.purges());
    // Password checks use at most half of the processors; requests are served on the others.
    let user_checks = UserChecks::new(startup.workers / 2);
    let user_checks = user_checks.map_err(|source| RunError::System {
        what: "random numbers",
        source,
    })?;
    let shares = Shares::new(
        cache.stats().memory_limit_bytes,
        startup.limits.client_share,
    );
    let saved = Saved {
        clock: Arc::clone(&clock),
        verified,
        history,
        limiter: Arc::clone(&limiter),
        chunks: Arc::clone(&chunks),
    };
    let common = Common {
        mode: startup.mode,
        page_groups: PageGroups::new(startup.group_by, site),
        name,
        via,
        listen: bound.for_requests().collect(),
        admin: bound.admin,
        children: Arc::default(),
        chunks,
        clock,
        intercept,
        shares,
        limiter,
        user_checks: Arc::new(user_checks),
        collapse,
        not_stored: RecentlyNotStored::default(),
        purger,
        own,
        exposition,
        queries,
        summary: Arc::default(),
        live: ArcSwap::from_pointee(live),
    };
    Ok(Loaded {
        common: Arc::new(common),
        log,
        metrics,
        saved,
    })
}

/// Returns the pseudonyms for the proxy `name` in `Cache-Status` and in `Via`.
pub(super) fn pseudonyms(name: &str) -> Result<(Pseudonym, Pseudonym), RunError> {
    let pseudonym = |text: &str| {
        let name = name.to_owned();
        Pseudonym::new(text).map_err(|_| RunError::Name { name })
    };
    Ok((pseudonym(name)?, pseudonym(&via_name(name))?))
}

/// Adds a random suffix to the default name: two proxies without a configured name must not mistake
/// each other's requests for loops.
fn via_name(name: &str) -> String {
    if name == UNNAMED {
        format!("{name}-{:08x}", fastrand::u32(..))
    } else {
        name.to_owned()
    }
}

/// Name for a proxy without a configured name.
const UNNAMED: &str = "hashcache";

fn exposition(
    metrics: &Arc<Metrics>,
    clock: &Arc<Clock>,
    log: &Arc<AccessLogger>,
    cache: &Cache,
    upstream: &UpstreamShared,
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
            memory_aside_bytes: stats.memory_aside_bytes,
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

/// Returns the engine's reads for lookups by cause; each read counts under a single cause.
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
