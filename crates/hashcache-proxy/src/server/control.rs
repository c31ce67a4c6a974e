//! Signals and their effects: reopened logs, a reload, the end of the process.
//!
//! Called by `server` on the main thread.
//!
//! Invariant: a reload applies everything that can be reloaded of a valid configuration, and
//! nothing of an invalid one.

use hashcache::Cache;
use hashcache_access::users::{UserHashes, UsersError};
use hashcache_base::clock::Clock;
use hashcache_base::clock::zone::Zone;
use hashcache_base::tls::identity::{FOR_FORWARD, FOR_SITES, Identity, IdentityError};
use hashcache_intercept::Interceptor;
use hashcache_link::children::LinkServer;
use hashcache_link::identity::{LinkIdentity, LinkIdentityError};
use hashcache_site::live::LiveSites;
use hashcache_upstream::peer::{CredentialsError, PROBE_DUE, Peer};
use hashcache_upstream::tls::Trust;
use hashcache_upstream::unreachable::UnreachableCache;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::connection_counts::ConnectionCounts;
use super::links::Links;
use super::list_refresh;
use super::stage::{DRAIN_STEP, OVER_TIME, RunError, Stage};
use super::supervisor::Notifier;
use super::udp_sockets::UdpSockets;
use super::warnings;
use crate::access_log::AccessLogger;
use crate::admin::Admin;
use crate::metrics::{Metrics, Reload};
use crate::route::Routes;
use crate::settings::{Mode, ReloadedSettings, Settings};
use crate::worker::{Common, LiveSettings};

/// The main thread, which handles signals while the cores serve clients.
pub(super) struct Control {
    pub(super) common: Arc<Common>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Arc<AccessLogger>,
    pub(super) settings: Settings,
    pub(super) stop: watch::Sender<Stage>,
    pub(super) counts: Arc<ConnectionCounts>,
    pub(super) admin: Arc<Admin>,
    pub(super) cache: Cache,
    pub(super) udp: UdpSockets,
    pub(super) links: Links,
    pub(super) stopping: watch::Receiver<Stage>,
    pub(super) notifier: Arc<Notifier>,
    /// What the supervisor shows while clients are served.
    pub(super) status: String,
}

impl Control {
    pub(super) async fn run<E: std::fmt::Display>(
        mut self,
        mut signals: UnixSignals,
        reload: impl Fn() -> Result<ReloadedSettings, E>,
        threads: Vec<JoinHandle<()>>,
    ) {
        loop {
            tokio::select! {
                () = signals.stop.recv() => break,
                _ = signals.hup.recv() => {
                    self.notifier.reloading();
                    self.log.reopen();
                    let reloading = self.reload(reload());
                    let outcome = tokio::select! {
                        outcome = reloading => outcome,
                        () = signals.stop.recv() => break,
                    };
                    self.notifier.ready(&status_after(&self.status, outcome));
                }
                _ = signals.usr1.recv() => self.log.reopen(),
                // With USR2 nginx starts its new version. By default the signal ends the process,
                // which nobody who sends it wants.
                _ = signals.usr2.recv() => warn!("signal USR2 has no effect"),
            }
        }
        let connections = self.counts.all.load(Ordering::Relaxed);
        info!(connections, "stopping");
        let status = format!("waiting for {connections} connections");
        self.notifier.stopping(&status);
        self.admin.drain();
        self.stop.send_replace(Stage::Draining);
        let deadline = tokio::time::sleep(self.settings.startup.limits.drain_time);
        tokio::pin!(deadline);
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::select! {
                () = &mut deadline => break,
                () = signals.stop.recv() => break,
                () = tokio::time::sleep(DRAIN_STEP) => {}
            }
        }
        self.stop.send_replace(Stage::Over);
        join(threads).await;
        self.cache.close();
        info!("stopped");
    }

    /// Applies the settings that can change without a restart, and logs the others. Waits for lists
    /// of hosts only, before anything is applied: so a signal to stop can end it then.
    async fn reload<E: std::fmt::Display>(
        &mut self,
        settings: Result<ReloadedSettings, E>,
    ) -> Reload {
        let ReloadedSettings {
            settings,
            mut restart,
        } = match settings {
            Ok(reloaded) => reloaded,
            Err(error) => {
                self.metrics.config_reloaded(Reload::Kept);
                error!("configuration not reloaded, the old one stays in effect: {error:#}");
                return Reload::Kept;
            }
        };
        for name in needs_restart(&self.settings, &settings) {
            if !restart.contains(&name) {
                restart.push(name);
            }
        }
        // Listeners, threads and the mode stay as they are, and so do the settings that they were
        // made of.
        let settings = Settings {
            startup: self.settings.startup.clone(),
            ..settings
        };
        let clock = &self.common.clock;
        let read = || {
            let identity = identity(&settings, clock).map_err(|error| one_line(&error))?;
            let interceptor = interceptor(&settings, clock).map_err(|error| one_line(&error))?;
            let trust = Trust::load(&settings.reloadable.upstream_ca, Arc::clone(clock));
            let trust = trust.map_err(|error| one_line(&error))?;
            let known = self.common.live.load();
            let link = link_identity(&settings).map_err(|error| one_line(&error))?;
            let routes = load_routes(&settings, known.routes.peers(), link.as_ref());
            let routes = routes.map_err(|error| one_line(&error))?;
            let link = link_server(&settings, link.as_ref(), clock);
            let zone = zone(&settings).map_err(|error| one_line(&error))?;
            let users = users(&settings, &self.cache).map_err(|error| one_line(&error))?;
            Ok::<_, String>(((identity, interceptor, link), trust, routes, (users, zone)))
        };
        let read = match read() {
            Ok(read) => {
                let lists =
                    list_refresh::load(&settings.reloadable.lists, &self.common, &self.cache).await;
                match lists {
                    Some(Ok(lists)) => Ok((read, lists)),
                    Some(Err(error)) => Err(one_line(&error)),
                    None => Err("no thread for lists".to_owned()),
                }
            }
            Err(error) => Err(error),
        };
        let ((shown, trust, routes, (users, zone)), lists) = match read {
            Ok(read) => read,
            Err(error) => {
                self.metrics.config_reloaded(Reload::Kept);
                error!("configuration not reloaded, the old one stays in effect: {error}");
                return Reload::Kept;
            }
        };
        warnings::log(&settings);
        let (mut identity, interceptor, link) = shown;
        let access = (Arc::new(lists), users, zone);
        let old = self.common.live.load_full();
        // Whether a listener accepts TLS is decided at the start.
        let settled = identity.is_some() == old.identity.is_some();
        if !settled {
            identity.clone_from(&old.identity);
        }
        let upstream = hashcache_upstream::UpstreamShared {
            trust,
            // An operator who reloads may just have repaired the network.
            unreachable: UnreachableCache::new(settings.reloadable.unreachable_lifetime),
            ..old.upstream.clone()
        };
        if settings.reloadable.offline != self.settings.reloadable.offline {
            upstream.line.regard(settings.reloadable.offline);
        }
        let own = &self.common.own;
        account(interceptor.as_deref(), &self.cache, &self.metrics);
        let shown = (identity, interceptor, link);
        let sites = LiveSites::new(&settings.reloadable.sites, Some(&old.sites));
        let hops = (routes, Arc::new(sites));
        let generation = old.generation + 1;
        let live = LiveSettings::new(&settings, generation, own, upstream, hops, shown, access);
        self.metrics.set_peers(live.routes.peers());
        if let Err(error) = self.links.keep(live.routes.peers()) {
            error!(%error, "no thread for links");
        }
        let children = live.link.as_ref().map(|link| link.children.clone());
        self.common.live.store(Arc::new(live));
        PROBE_DUE.notify_waiters();
        // After that: a child that is being accepted now looks at the new pins.
        let children = children.unwrap_or_default();
        self.common.children.keep_only(&children);
        self.common.chunks.keep_only(&self.common.live().pins());
        let shared = (&self.common, &self.cache, &self.stopping);
        restart.extend(self.udp.reload(&settings, shared));
        if !restart.is_empty() {
            warn!(
                settings = restart.join(", "),
                "changed settings need a restart"
            );
        }
        let old = std::mem::replace(&mut self.settings.reloadable, settings.reloadable);
        if !settled {
            // The next reload must report `tls_cert` again.
            self.settings.reloadable.tls = old.tls;
        }
        if let Err(error) = self.common.limiter.persist() {
            warn!(%error, "usage of quotas not saved");
        }
        self.metrics.config_reloaded(Reload::Taken);
        info!("configuration reloaded");
        Reload::Taken
    }
}

/// What the supervisor shows after a reload. It has no way to be told that a reload failed.
fn status_after(status: &str, reload: Reload) -> String {
    match reload {
        Reload::Taken => status.to_owned(),
        Reload::Kept => format!("{status}; last reload refused, see the log"),
    }
}

/// An error with its cause, in one line.
fn one_line(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Waits for the cores to end, for the rest of the time. A core that is stuck ends with the
/// process.
async fn join(threads: Vec<JoinHandle<()>>) {
    let all = async {
        while threads.iter().any(|thread| !thread.is_finished()) {
            tokio::time::sleep(DRAIN_STEP).await;
        }
    };
    let in_time = tokio::time::timeout(OVER_TIME, all).await;
    if in_time.is_err() {
        warn!("a worker did not stop in time");
    }
    for thread in threads {
        if thread.is_finished() && thread.join().is_err() {
            error!("a worker panicked");
        }
    }
}

/// Keys whose change switches the mode, or TLS on listeners, and therefore needs a restart. The
/// caller of [`run`](super::run) reports other changes of [`Startup`](crate::settings::Startup).
fn needs_restart(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let had_tls = !old.reloadable.tls.is_empty();
    let differs = [
        ("accelerate", old.startup.mode != new.startup.mode),
        ("tls_cert", had_tls == new.reloadable.tls.is_empty()),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(name, _)| name).collect()
}

/// The signals that the process handles.
pub(super) struct UnixSignals {
    stop: StopSignals,
    hup: Signal,
    usr1: Signal,
    usr2: Signal,
}

/// The signals that end the process: service managers send TERM, terminals INT, and operators who
/// know nginx QUIT.
struct StopSignals {
    term: Signal,
    int: Signal,
    quit: Signal,
}

impl StopSignals {
    /// Waits for the next one.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}

impl UnixSignals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            stop: StopSignals {
                term: signal(SignalKind::terminate())?,
                int: signal(SignalKind::interrupt())?,
                quit: signal(SignalKind::quit())?,
            },
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }
}

/// The routes of `settings`, with the credentials of their peers read. A peer of `known` whose
/// settings are the same stays, with what is known about its health.
pub(super) fn load_routes(
    settings: &Settings,
    known: &[Arc<Peer>],
    link: Option<&LinkIdentity>,
) -> Result<Routes, CredentialsError> {
    let peers = settings.reloadable.peers.iter().map(|settings| {
        let peer = settings.load(link)?;
        let same = known.iter().find(|known| ***known == peer).cloned();
        Ok(same.unwrap_or_else(|| Arc::new(peer)))
    });
    Ok(Routes::new(
        peers.collect::<Result<_, _>>()?,
        &settings.reloadable.routes,
        &settings.startup.name,
    ))
}

/// The key of this box for links, if it has one side of a link.
pub(super) fn link_identity(
    settings: &Settings,
) -> Result<Option<LinkIdentity>, LinkIdentityError> {
    let has_parent = settings
        .reloadable
        .peers
        .iter()
        .any(|peer| peer.pin.is_some());
    if settings.startup.link_listen.is_none() && !has_parent {
        return Ok(None);
    }
    LinkIdentity::find(settings.reloadable.link_dir.as_deref()).map(Some)
}

/// The certificates for clients, with the protocols that they may speak.
pub(super) fn identity(
    settings: &Settings,
    clock: &Arc<Clock>,
) -> Result<Option<Identity>, IdentityError> {
    let protocols = match settings.startup.mode {
        Mode::Forward => &FOR_FORWARD[..],
        Mode::Reverse => &FOR_SITES[..],
    };
    Identity::load(&settings.reloadable.tls, protocols, clock)
}

/// The users of the files in `settings`, if there are files.
pub(super) fn users(
    settings: &Settings,
    cache: &Cache,
) -> Result<Option<Arc<UserHashes>>, UsersError> {
    match settings.reloadable.htpasswd.is_empty() {
        true => Ok(None),
        false => UserHashes::load(&settings.reloadable.htpasswd, cache)
            .map(Arc::new)
            .map(Some),
    }
}

/// The time zone of the system, if a rule has times or a quota has days.
pub(super) fn zone(settings: &Settings) -> Result<Zone, RunError> {
    match settings.needs_zone() {
        true => Zone::of_system().map_err(RunError::Zone),
        false => Ok(Zone::default()),
    }
}

/// The listener for children in `settings`, if there is one.
pub(super) fn link_server(
    settings: &Settings,
    identity: Option<&LinkIdentity>,
    clock: &Arc<Clock>,
) -> Option<Arc<LinkServer>> {
    let identity = identity.filter(|_| settings.startup.link_listen.is_some())?;
    Some(Arc::new(LinkServer {
        config: hashcache_link::tls::of_parent(
            &identity.key,
            &settings.reloadable.link_children,
            clock,
        ),
        children: settings.reloadable.link_children.clone(),
        names: identity.names.clone(),
    }))
}

/// The interceptor for the hosts in `settings`, if interception is on.
pub(super) fn interceptor(
    settings: &Settings,
    clock: &Arc<Clock>,
) -> Result<Option<Arc<Interceptor>>, IdentityError> {
    let intercept = settings.reloadable.intercept.as_ref();
    let made = intercept.map(|intercept| Interceptor::new(intercept, clock).map(Arc::new));
    made.transpose().map_err(IdentityError::Tickets)
}

/// Counts the certificates of `interceptor` in the memory budget, and exports the expiry of its
/// authority.
pub(super) fn account(interceptor: Option<&Interceptor>, cache: &Cache, metrics: &Metrics) {
    let authority = interceptor.map(|it| &it.authority);
    metrics.authority_ends(authority.map(|it| it.not_after_seconds()));
    if let Some(authority) = authority {
        authority.count_in(cache);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_core_that_does_not_end_does_not_keep_the_process() {
        let (hold, held) = mpsc::channel::<()>();
        let (ended, ended_signal) = mpsc::channel::<()>();
        let stuck = std::thread::spawn(move || {
            let _ = held.recv();
            drop(ended);
        });
        join(vec![stuck, std::thread::spawn(|| ())]).await;
        drop(hold);
        assert!(ended_signal.recv().is_err());
    }
}
