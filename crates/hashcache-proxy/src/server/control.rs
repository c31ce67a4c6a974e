//! Handles signals: reopens logs, reloads the configuration, stops the process.
//!
//! Called by `server` on the main thread.
//!
//! Invariant: a reload applies everything that can be reloaded of a valid configuration, and
//! nothing of an invalid one.

use hashcache::Cache;
use hashcache_access::lists::Lists;
use hashcache_site::live::LiveSites;
use hashcache_upstream::UpstreamShared;
use hashcache_upstream::peer::PROBE_DUE;
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
use super::named_files::{self, account};
use super::stage::{DRAIN_STEP, OVER_TIME, Stage};
use super::supervisor::Notifier;
use super::udp_sockets::UdpSockets;
use super::warnings;
use crate::access_log::AccessLogger;
use crate::admin::Admin;
use crate::metrics::{Metrics, Reload};
use crate::settings::{ReloadedSettings, Settings};
use crate::worker::{Common, LiveSettings, NamedFiles};

/// State of the main thread, which handles signals while the cores serve clients.
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
    /// Status line that the supervisor shows while clients are served.
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
                // nginx starts a new version of itself on USR2. The default action of the signal
                // would terminate the process, which a sender of USR2 does not want.
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

    /// Applies the settings that can change without a restart, and logs the others. Waits only
    /// while lists of hosts are read, which is before any setting is applied, so a stop signal can
    /// cancel it safely there.
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
        // Listeners, threads and the mode do not change, so the settings from which they were made
        // stay too.
        let settings = Settings {
            startup: self.settings.startup.clone(),
            ..settings
        };
        let read = match self.read(&settings).await {
            Ok(read) => read,
            Err(error) => {
                self.metrics.config_reloaded(Reload::Kept);
                error!("configuration not reloaded, the old one stays in effect: {error}");
                return Reload::Kept;
            }
        };
        let (mut files, lists) = read;
        warnings::log(&settings);
        let old = self.common.live.load_full();
        // A listener accepts TLS or not from the start, so a reload can neither add nor remove TLS.
        let settled = files.identity.is_some() == old.identity.is_some();
        if !settled {
            files.identity.clone_from(&old.identity);
        }
        let upstream = UpstreamShared {
            // Forget unreachable hosts: the operator may just have repaired the network.
            unreachable: UnreachableCache::new(settings.reloadable.unreachable_lifetime),
            ..old.upstream.clone()
        };
        if settings.reloadable.offline != self.settings.reloadable.offline {
            upstream.line.regard(settings.reloadable.offline);
        }
        let own = &self.common.own;
        account(files.intercept.as_deref(), &self.cache, &self.metrics);
        let sites = LiveSites::new(&settings.reloadable.sites, Some(&old.sites));
        let generation = old.generation + 1;
        let live = LiveSettings::new(&settings, generation, own, upstream, files, sites, lists);
        self.metrics.set_peers(live.routes.peers());
        if let Err(error) = self.links.keep(live.routes.peers()) {
            error!(%error, "no thread for links");
        }
        let children = live.link.as_ref().map(|link| link.children.clone());
        self.common.live.store(Arc::new(live));
        PROBE_DUE.notify_waiters();
        // Remove children after the new pins are stored: a child that is being accepted now checks
        // the new pins.
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

    /// Reads the files that the new `settings` name.
    ///
    /// # Errors
    /// Describes in one line why a file cannot be read.
    async fn read(&self, settings: &Settings) -> Result<(NamedFiles, Lists), String> {
        let files = {
            let known = self.common.live();
            let (peers, clock) = (known.routes.peers(), &self.common.clock);
            named_files::read(settings, peers, clock, &self.cache)
        };
        let files = files.map_err(|error| one_line(&error))?;
        let lists = &settings.reloadable.lists;
        match list_refresh::load(lists, &self.common, &self.cache).await {
            Some(Ok(lists)) => Ok((files, lists)),
            Some(Err(error)) => Err(one_line(&error)),
            None => Err("no thread for lists".to_owned()),
        }
    }
}

/// Returns the status line for the supervisor after a reload. The protocol has no message for a
/// failed reload, so the status line reports it.
fn status_after(status: &str, reload: Reload) -> String {
    match reload {
        Reload::Taken => status.to_owned(),
        Reload::Kept => format!("{status}; last reload refused, see the log"),
    }
}

/// Returns an error and the cause in one line.
fn one_line(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Waits at most [`OVER_TIME`] until the cores have stopped. A stuck core is abandoned and
/// terminates with the process.
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

/// Returns the keys whose change switches the mode, or TLS on listeners, and therefore needs a
/// restart. The caller of [`run`](super::run) reports other changes of
/// [`Startup`](crate::settings::Startup).
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

/// Signals that stop the process: service managers send TERM, terminals INT, and operators used to
/// nginx QUIT.
struct StopSignals {
    term: Signal,
    int: Signal,
    quit: Signal,
}

impl StopSignals {
    /// Waits for the next stop signal.
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
