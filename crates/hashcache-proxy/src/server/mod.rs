//! Listeners, cores, signals: from the start of the process to its end.
//!
//! One thread a core runs a runtime of its own with a copy of every listening socket; the thread
//! that called [`run`] minds signals, the admin listener and the clock.
//!
//! Called by `hashcache-cli`; calls `cores` for what one core does, `control` for what signals do.
//!
//! ```text
//! Serving ──TERM──▶ Draining ──all done, or drain_time──▶ Closing (cache saved, log written)
//!                      └──────────TERM again─────────────────┘
//! ```
//!
//! Invariant: addresses are bound without SO_REUSEPORT, so a second instance is refused and does
//! not silently take half of the connections.

mod control;
mod cores;
pub(crate) mod identity;
mod protocol;

pub use self::identity::IdentityError;

pub(crate) use self::cores::{INTERCEPTED_BYTES, count_ending, serve};
pub(crate) use self::protocol::{Protocol, shake};

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashcache::{Cache, Health};
use hashcache_http::Pseudonym;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tracing::warn;

use self::control::{Control, Signals};
use self::cores::{Core, Counts, Door};
use self::identity::Identity;
use crate::access_log::AccessLog;
use crate::admin::Admin;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::intercept::verified::Verified;
use crate::intercept::{Interceptor, Known, expiry};
use crate::metrics::{DeviceFigures, EngineFigures, Exposition, Metrics, StoreState};
use crate::purge::Purger;
use crate::related::Related;
use crate::settings::{Mode, Settings, StateFiles};
use crate::share::Shares;
use crate::upstream::dns::{NameServers, Names};
use crate::upstream::interfaces::OwnAddresses;
use crate::upstream::tls::{AuthoritiesError, Trust};
use crate::upstream::unreached::Unreached;
use crate::upstream::{self, Destinations};
use crate::worker::{Common, Live};

/// Why the proxy could not start, or stopped out of order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An address could not be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The access log could not be opened.
    #[error("cannot write the access log to {place}")]
    AccessLog {
        /// The file, or standard output.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The proxy's name is no token.
    #[error("the name `{name}` is not valid in a header field")]
    Name {
        /// The name.
        name: String,
    },
    /// Our own certificates could not be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Certificates of authorities could not be read.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// Threads, signals or a runtime could not be had.
    #[error("the system refused {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// How long cores may take to end when there is no more time; then the process ends without them.
const OVER_TIME: Duration = Duration::from_secs(2);

/// How often the clock and the health of the store are looked at while draining.
const DRAIN_STEP: Duration = Duration::from_millis(50);

/// Serves until told to stop. `listening` is called once with the addresses really bound (and that
/// of the admin listener); `reload` gives the settings anew on SIGHUP.
///
/// # Errors
/// See [`RunError`]; nothing was served then.
pub fn run<E: std::fmt::Display>(
    settings: Settings,
    cache: Cache,
    state: StateFiles,
    listening: impl FnOnce(&[SocketAddr], Option<SocketAddr>),
    reload: impl Fn() -> Result<Settings, E>,
) -> Result<(), RunError> {
    let system = |what| move |source| RunError::System { what, source };
    let name_error = |_| RunError::Name {
        name: settings.name.clone(),
    };
    let name = Pseudonym::new(&settings.name).map_err(name_error)?;
    let via = Pseudonym::new(&via_name(&settings.name)).map_err(name_error)?;
    let listeners: Vec<StdListener> = settings
        .listen
        .iter()
        .map(|listen| bind(listen.address))
        .collect::<Result<_, _>>()?;
    let admin_listener = settings.admin.map(bind).transpose()?;
    let admin_address = admin_listener.as_ref().and_then(|it| it.local_addr().ok());
    let listen = listeners
        .iter()
        .filter_map(|it| it.local_addr().ok())
        .collect::<Vec<_>>();
    let log = AccessLog::start(&settings).map_err(|source| RunError::AccessLog {
        place: settings.access_log.to_string(),
        source,
    })?;
    let log = Arc::new(log);
    let clock = Arc::new(Clock::start(state.clock));
    let metrics = Metrics::new(settings.workers);
    let identity = Identity::load(&settings.tls, &clock)?;
    let interceptor = interceptor(&settings, &clock)?;
    account(interceptor.as_deref(), &cache, &metrics);
    let verified = Arc::new(Verified::load(state.verified));
    let known = Arc::new(Known {
        verified: Arc::clone(&verified),
        ..Known::default()
    });
    let trust = Trust::load(&settings.upstream_ca, Arc::clone(&clock))?;
    let own = OwnAddresses::new();
    let limits = Arc::new(settings.limits.clone());
    let names = Names::new(NameServers::System, settings.limits.dns_time);
    let shared = upstream::Shared::new(
        names,
        Destinations::new(&[], &[], own.clone()),
        own.clone(),
        trust,
        limits,
    );
    let shared = upstream::Shared {
        verified: Arc::clone(&verified),
        unreached: Unreached::new(settings.unreachable_lifetime),
        ..shared
    };
    let exposition = exposition(&metrics, &clock, &log, &cache, &shared);
    let exposition = exposition.with_known(Arc::clone(&known));
    let live = Live::new(&settings, 0, &own, shared, (identity, interceptor));
    let site = match &settings.mode {
        Mode::Forward => None,
        Mode::Accelerate { origin, .. } => Some(origin.clone()),
    };
    let collapse = Collapse::new();
    let space = Common::space_of(&settings.mode);
    let purger = Purger::new(&cache, &collapse, space, metrics.purges());
    let common = Arc::new(Common {
        mode: settings.mode.clone(),
        related: Related::new(settings.group_by, site),
        name,
        via,
        listen: listen.clone(),
        admin: admin_address,
        clock: Arc::clone(&clock),
        intercept: known,
        shares: Shares::new(
            cache.stats().memory_limit_bytes,
            settings.limits.client_share,
        ),
        collapse,
        purger,
        own,
        exposition: exposition.clone(),
        live: ArcSwap::from_pointee(live),
    });
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("a runtime"))?;
    let _context = runtime.enter();
    let signals = Signals::new().map_err(system("signals"))?;
    let (stop, stopping) = watch::channel(Stage::Serving);
    let counts = Arc::new(Counts::default());
    let threads = (0..settings.workers.max(1))
        .map(|number| {
            let core = Core {
                common: Arc::clone(&common),
                cache: cache.clone(),
                log: log.worker(),
                metrics: metrics.worker(number),
                settings: settings.clone(),
                counts: Arc::clone(&counts),
                stopping: stopping.clone(),
            };
            let doors = listeners
                .iter()
                .zip(&settings.listen)
                .map(|(listener, listen)| {
                    let listener = listener.try_clone()?;
                    let speaks = settings.speaks(listen);
                    Ok(Door { listener, speaks })
                });
            let doors = doors.collect::<Result<_, _>>();
            core.start(number, doors.map_err(system("a listener's copy"))?)
        })
        .collect::<Result<Vec<_>, RunError>>()?;
    // The cores have copies, which they close when a drain begins: from then on clients are refused
    // and do not wait for somebody who will not come.
    drop(listeners);
    let admin = Admin::new(
        exposition,
        common.purger.clone(),
        settings.mode.clone(),
        settings.admin_token_file.clone(),
    );
    if let Some(listener) = admin_listener {
        let listener = TcpListener::from_std(listener).map_err(system("the admin listener"))?;
        runtime.spawn(Arc::clone(&admin).serve(listener));
    }
    runtime.spawn(Arc::clone(&clock).keep());
    runtime.spawn(Arc::clone(&verified).keep());
    runtime.spawn(expiry::mind(Arc::clone(&common)));
    listening(&listen, admin_address);
    let control = Control {
        common,
        metrics,
        log: Arc::clone(&log),
        settings,
        stop,
        counts,
        admin,
        cache,
    };
    runtime.block_on(control.mind(signals, reload, threads));
    if let Err(error) = clock.persist() {
        warn!(%error, "time not saved");
    }
    if let Err(error) = verified.persist() {
        warn!(%error, "verified hosts not saved");
    }
    log.stop();
    Ok(())
}

/// Who ends TLS for the hosts in `settings`, if anybody does.
fn interceptor(
    settings: &Settings,
    clock: &Arc<Clock>,
) -> Result<Option<Arc<Interceptor>>, IdentityError> {
    let intercept = settings.intercept.as_ref();
    let made = intercept.map(|intercept| Interceptor::new(intercept, clock).map(Arc::new));
    made.transpose().map_err(IdentityError::Tickets)
}

/// Has what `interceptor` keeps count in the budget, and operators be told when its authority ends.
fn account(interceptor: Option<&Interceptor>, cache: &Cache, metrics: &Metrics) {
    let authority = interceptor.map(|it| &it.authority);
    metrics.authority_ends(authority.map(|it| it.not_after_seconds()));
    if let Some(authority) = authority {
        authority.count_in(cache);
    }
}

/// Two proxies that nobody named must not take each other's requests for their own.
fn via_name(name: &str) -> String {
    if name == UNNAMED {
        format!("{name}-{:08x}", fastrand::u32(..))
    } else {
        name.to_owned()
    }
}

/// The name of a proxy that was given none.
const UNNAMED: &str = "hashcache";

fn bind(address: SocketAddr) -> Result<StdListener, RunError> {
    let listen = || -> io::Result<StdListener> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            None,
        )?;
        // Lets a new process have the address while old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    listen().map_err(|source| RunError::Listen { address, source })
}

fn exposition(
    metrics: &Arc<Metrics>,
    clock: &Arc<Clock>,
    log: &Arc<AccessLog>,
    cache: &Cache,
    upstream: &upstream::Shared,
) -> Exposition {
    let (cache, places) = (cache.clone(), upstream.places.clone());
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
            capacity_bytes: stats.device_bytes,
            rules: stats.rules,
            devices_out: stats.devices_out,
            group_reads: stats.group_reads,
            prefetched: stats.prefetched,
            readmitted: stats.readmitted,
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
        move || places.figures(),
    )
}

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// No new connections; answers that have begun are finished.
    Draining,
    /// No more time.
    Over,
}
