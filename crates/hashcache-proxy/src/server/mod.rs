//! Listeners, cores, signals: from the start of the process to its end.
//!
//! Each core is a thread with a runtime and a copy of every listening socket. The thread that
//! called [`run`] handles signals, the admin listener and the clock.
//!
//! Called by `hashcache-cli`. [`run`] binds the sockets (`bind`), makes the state (`load`), starts
//! the cores (`cores`), and leaves the main thread to `control`, which handles signals; when the
//! process stops, it saves the state that the next process needs (`saved`).
//!
//! ```text
//! Serving ──TERM──▶ Draining ──all done, or drain_time──▶ Closing (cache saved, log written)
//!                      └──────────TERM again─────────────────┘
//! ```
//!
//! Invariant: sockets of a supervisor stay open between two processes, so connections wait in their
//! queues meanwhile.

mod authority_expiry;
mod bind;
mod connection_counts;
mod control;
mod cores;
mod forward_listener;
mod link_listener;
mod links;
mod list_refresh;
mod load;
mod named_files;
mod original_destination;
mod preflight;
mod probes;
mod protocol;
mod proxy_protocol;
mod saved;
mod site_checks;
mod stage;
mod supervisor;
mod udp_sockets;
mod warnings;
mod watchdog;

pub use self::bind::Listening;
pub use self::preflight::preflight;
pub use self::stage::RunError;
pub use self::supervisor::Supervisor;
pub use self::warnings::{Warning, warnings};

use std::fmt;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use hashcache::Cache;
use hashcache_base::task::spawn;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;

use self::bind::Bound;
use self::connection_counts::ConnectionCounts;
use self::control::{Control, UnixSignals};
use self::cores::{Core, CoreSockets, ListeningSocket};
use self::links::Links;
use self::load::{Loaded, load};
use self::stage::Stage;
use self::watchdog::Watchdog;
use crate::admin::Admin;
use crate::dashboard::{Buttons, Dashboard};
use crate::explain::Explainer;
use crate::inventory::Inventory;
use crate::peers;
use crate::settings::{ReloadedSettings, Settings, StateFiles};

/// Serves clients until a signal stops the process, on the sockets of `supervisor` where it has
/// passed them. `listening` is called once with the bound addresses; `reload` loads the settings
/// again on SIGHUP.
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
    let mut bound = Bound::bind(&settings, supervisor.sockets)?;
    let loaded = load(&settings, &cache, state, &bound.addresses)?;
    let common = Arc::clone(&loaded.common);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(refused("a runtime"))?;
    let _context = runtime.enter();
    let signals = UnixSignals::new().map_err(refused("signals"))?;
    let (stop, stopping) = watch::channel(Stage::Serving);
    let counts = Arc::new(ConnectionCounts::default());
    let notifier = Arc::new(supervisor.notifier);
    let mut watchdog = supervisor.watchdog.map(Watchdog::new);
    let for_cores = (&counts, &stopping, &mut watchdog);
    let threads = start_cores(&settings, &cache, &loaded, &mut bound, for_cores)?;
    let mut links = Links::new(&common, &cache);
    links
        .keep(common.live().routes.peers())
        .map_err(refused("a thread"))?;
    let admin = admin(&settings, &cache, &loaded);
    if let Some(listener) = bound.admin {
        let listener = TcpListener::from_std(listener).map_err(refused("the admin listener"))?;
        runtime.spawn(Arc::clone(&admin).serve(listener));
    }
    let mut udp = bound.udp;
    udp.serve((&common, &cache, &stopping))
        .map_err(refused("the UDP sockets"))?;
    let stage = stopping.clone();
    let is_ending = move || *stage.borrow() != Stage::Serving;
    spawn(peers::keep_summary(
        Arc::clone(&common),
        cache.clone(),
        is_ending,
    ));
    spawn(list_refresh::keep_lists(Arc::clone(&common), cache.clone()));
    spawn(authority_expiry::warn_before_expiry(Arc::clone(&common)));
    loaded.saved.keep();
    listening(&bound.addresses);
    let status = bound.addresses.to_string();
    notifier.ready(&status);
    if let Some(watchdog) = watchdog {
        spawn(watchdog.keep(Arc::clone(&notifier), stopping.clone()));
    }
    let control = Control {
        common,
        metrics: loaded.metrics,
        log: Arc::clone(&loaded.log),
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
    loaded.saved.persist();
    loaded.log.stop();
    Ok(())
}

/// Starts a thread for each core, with copies of all sockets. The original sockets in `bound` are
/// closed then: a core closes the copies when a drain starts, and if another copy stayed open,
/// clients would wait in the accept queue instead of being refused.
fn start_cores(
    settings: &Settings,
    cache: &Cache,
    loaded: &Loaded,
    bound: &mut Bound,
    (counts, stopping, watchdog): (
        &Arc<ConnectionCounts>,
        &watch::Receiver<Stage>,
        &mut Option<Watchdog>,
    ),
) -> Result<Vec<JoinHandle<()>>, RunError> {
    let clients = std::mem::take(&mut bound.clients);
    let link = bound.link.take();
    let forwards = std::mem::take(&mut bound.forwards);
    let copies = || -> io::Result<CoreSockets> {
        let clients = clients.iter().zip(&settings.startup.listen);
        let forwards = forwards.iter().zip(&settings.startup.link_forward);
        Ok(CoreSockets {
            clients: clients
                .map(|(listener, listen)| {
                    let speaks = settings.speaks(listen);
                    let listener = listener.try_clone()?;
                    Ok(ListeningSocket { listener, speaks })
                })
                .collect::<io::Result<_>>()?,
            link: link.as_ref().map(StdListener::try_clone).transpose()?,
            forwards: forwards
                .map(|(listener, forward)| Ok((listener.try_clone()?, forward.clone())))
                .collect::<io::Result<_>>()?,
        })
    };
    let start = |number| {
        let core = Core {
            common: Arc::clone(&loaded.common),
            cache: cache.clone(),
            log: loaded.log.worker(),
            metrics: loaded.metrics.worker(number),
            history: Arc::clone(&loaded.saved.history),
            settings: settings.startup.clone(),
            counts: Arc::clone(counts),
            stopping: stopping.clone(),
            pulse: watchdog.as_mut().map(Watchdog::pulse),
        };
        core.start(number, copies().map_err(refused("a listener's copy"))?)
    };
    (0..settings.startup.workers.max(1)).map(start).collect()
}

/// Makes the server of the admin listener.
fn admin(settings: &Settings, cache: &Cache, loaded: &Loaded) -> Arc<Admin> {
    let common = &loaded.common;
    let shared = || Arc::clone(common);
    let (of_sites, of_links, limiter) = (shared(), shared(), Arc::clone(&common.limiter));
    let exposition = common.exposition.clone();
    let exposition = exposition
        .with_sites(move || Arc::clone(&of_sites.live().sites))
        .with_links(move || links::view(&of_links))
        .with_limiter(move || limiter.figures());
    let buttons = match settings.startup.admin_token_file {
        Some(_) => Buttons::Shown,
        None => Buttons::Hidden,
    };
    let history = Arc::clone(&loaded.saved.history);
    let dashboard = Dashboard::new(exposition.clone(), history, buttons);
    let sites = shared();
    let purged_sites = move || {
        let live = Arc::clone(&sites.live().sites);
        sites.is_reverse().then_some(live)
    };
    Admin::new(
        (exposition, dashboard),
        Arc::clone(&common.live().upstream.line),
        common.purger.clone(),
        Arc::new(purged_sites),
        settings.startup.admin_token_file.clone(),
        (
            Explainer::new(shared(), cache.clone()),
            Inventory::new(shared(), cache.clone()),
        ),
    )
}

/// Returns a function that makes the error for a resource that the system refuses.
fn refused(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}
