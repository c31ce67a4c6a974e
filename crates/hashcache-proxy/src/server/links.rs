//! Keeps the links to parents open: one thread, one connection per parent.
//!
//! Started by `server` if the configuration has a parent with a pin; `control` passes the new peers
//! on at a reload. Requests of all cores use the connection (`linked` of `hashcache-upstream`).
//!
//! Invariants: the thread stops after the cores, so a core that stops does not close the link for
//! the other cores. After a failed attempt the thread waits, longer each time, but less while
//! requests need the link. A connection that takes no more requests is replaced at once; open
//! requests continue.
//! Cost: a thread; nothing without such parents.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_base::failure::Failure;
use hashcache_base::task::spawn_local;
use hashcache_link::counters::LinkCounters;
use hashcache_link::parent::{ParentLink, advice};
use hashcache_link::{SLOW_START_ADVICE, slow_start_after_idle};
use hashcache_upstream::Upstream;
use hashcache_upstream::linked::{LinkEnd, OpenedLink};
use hashcache_upstream::peer::{Peer, PeerKind};
use serde_json::{Value, json};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::metrics::links::{LinkFigure, LinkView};
use crate::worker::Common;

/// Handle for the thread that keeps links open, if it was started.
pub(super) struct Links {
    common: Arc<Common>,
    cache: Cache,
    peers: Option<watch::Sender<Vec<Arc<Peer>>>>,
}

impl Links {
    pub(super) fn new(common: &Arc<Common>, cache: &Cache) -> Self {
        Self {
            common: Arc::clone(common),
            cache: cache.clone(),
            peers: None,
        }
    }

    /// Keeps the links to the `peers` that have a link, and closes all other links.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn keep(&mut self, peers: &[Arc<Peer>]) -> std::io::Result<()> {
        let linked = peers.iter().filter(|peer| peer.link.is_some());
        let linked: Vec<_> = linked.cloned().collect();
        if let Some(peers) = &self.peers {
            peers.send_replace(linked);
            return Ok(());
        }
        if linked.is_empty() {
            return Ok(());
        }
        if slow_start_after_idle() {
            warn!("{SLOW_START_ADVICE}");
        }
        let (sender, peers) = watch::channel(linked);
        let (common, cache) = (Arc::clone(&self.common), self.cache.clone());
        std::thread::Builder::new()
            .name("hc-link".to_owned())
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => runtime.block_on(supervise(common, cache, peers)),
                    Err(error) => error!(%error, "links not started"),
                }
            })?;
        self.peers = Some(sender);
        Ok(())
    }
}

/// Returns the links' states for operators and monitoring.
pub(super) fn view(common: &Common) -> LinkView {
    let live = common.live();
    let linked = || {
        let peers = live.routes.peers().iter();
        peers.filter_map(|peer| Some((peer, peer.link.as_ref()?)))
    };
    let parents = linked().map(|(peer, link)| {
        let mut shown = link.to_json();
        shown["name"] = json!(peer.name());
        shown["url"] = json!(peer.settings.url.to_string());
        shown
    });
    let parents: Value = parents.collect();
    let unlinked = live
        .routes
        .peers()
        .iter()
        .filter(|peer| peer.link.is_none() && peer.settings.kind == PeerKind::Parent);
    let unlinked =
        unlinked.map(|peer| json!({ "name": peer.name(), "url": peer.settings.url.to_string() }));
    let unlinked: Value = unlinked.collect();
    let pins = live.link.as_ref().map_or(&[][..], |link| &link.children);
    let has_links = linked().next().is_some() || !pins.is_empty();
    let is_slow = has_links && slow_start_after_idle();
    let figure = |name, is_up, counters: &LinkCounters| LinkFigure {
        name,
        is_up,
        round_trip: counters.round_trip(),
        bytes: counters.bytes(),
        contents: counters.contents(),
        coding: counters.coding.figures(),
    };
    let of_parents =
        linked().map(|(peer, link)| figure(peer.name().to_owned(), link.is_up(), &link.counters));
    let children = common.children.seen().into_iter();
    let of_children =
        children.map(|(pin, is_up, counters)| figure(pin.to_string(), is_up, &counters));
    LinkView {
        figures: of_parents.chain(of_children).collect(),
        status: json!({
            "parents": parents,
            "unlinked_parents": unlinked,
            "children": common.children.to_json(pins),
            "warning": is_slow.then_some(SLOW_START_ADVICE),
        }),
    }
}

/// Runs a task for each link until the sender is dropped.
async fn supervise(common: Arc<Common>, cache: Cache, mut peers: watch::Receiver<Vec<Arc<Peer>>>) {
    let mut kept: HashMap<*const Peer, AbortHandle> = HashMap::new();
    loop {
        let wanted = peers.borrow_and_update().clone();
        let is_wanted = |kept: &*const Peer| wanted.iter().any(|it| Arc::as_ptr(it) == *kept);
        kept.retain(|peer, task| {
            let stays = is_wanted(peer);
            if !stays {
                task.abort();
            }
            stays
        });
        for peer in wanted {
            let Some(link) = peer.link.clone() else {
                continue;
            };
            kept.entry(Arc::as_ptr(&peer)).or_insert_with(|| {
                let keeping = keep(Arc::clone(&common), cache.clone(), peer, link);
                spawn_local(keeping).abort_handle()
            });
        }
        if peers.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps a link open.
async fn keep(common: Arc<Common>, cache: Cache, peer: Arc<Peer>, link: Arc<ParentLink>) {
    let mut failures = 0_usize;
    loop {
        let upstream = Upstream::new(&common.live().upstream).within(&cache);
        let opened = match upstream.open_link(&peer, &link).await {
            Ok(opened) => opened,
            Err(failure) => {
                note_failure(&peer, &link, failure, failures);
                failures += 1;
                link.pause(pause(failures)).await;
                continue;
            }
        };
        let OpenedLink {
            connection,
            mut line,
        } = opened;
        let address = connection.address;
        let number = link.opened(connection, common.now());
        let begun = Instant::now();
        info!(peer = peer.name(), %address, "link is up");
        // A peer that is down needs two successes to be up again.
        peer.note_success();
        peer.note_success();
        let end = tokio::select! {
            end = line.ended() => end,
            // A request found the link broken before the last stream was closed.
            () = link.retired(number) => LinkEnd::Broken(Failure::ConnectionTerminated),
        };
        link.retire(number);
        match &end {
            LinkEnd::GoesAway => info!(peer = peer.name(), "the parent ends the connection"),
            LinkEnd::Broken(failure) => {
                warn!(peer = peer.name(), %failure, "link is down");
            }
        }
        // Reconnect at once after a break. But a parent that accepts and closes at once must not be
        // connected to without a pause for ever.
        failures = if begun.elapsed() < SHORT_LIVED {
            failures + 1
        } else {
            0
        };
        if failures > RECONNECTS_AT_ONCE {
            let failure = match end {
                LinkEnd::GoesAway => Failure::ConnectionTerminated,
                LinkEnd::Broken(failure) => failure,
            };
            link.failed(failure);
            link.pause(pause(failures)).await;
        }
    }
}

fn note_failure(peer: &Peer, link: &ParentLink, failure: Failure, failures: usize) {
    // Only the first failure in a row is logged, because a line may be down for days.
    if failures == 0 {
        let advice = advice(&failure);
        warn!(peer = peer.name(), %failure, advice, "no link to the parent");
    }
    peer.note_failure(&failure);
    link.failed(failure);
}

/// Returns the pause after this number of failures in a row.
fn pause(failures: usize) -> Duration {
    let pause = PAUSES[failures.saturating_sub(1).min(PAUSES.len() - 1)];
    // Jitter: boxes that lost their parent at the same moment must not all reconnect together.
    pause.mul_f64(0.8 + 0.4 * fastrand::f64())
}

/// The first pause is short, because a restarted parent is back within a fraction of a second, and
/// interrupted transfers wait for it (`RESUME_PAUSE` of `fetch/pump.rs`).
const PAUSES: [Duration; 6] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
];
/// Short-lived connections in a row that are replaced without a pause.
const RECONNECTS_AT_ONCE: usize = 3;
/// A connection that was open for less than this counts as a failed attempt.
const SHORT_LIVED: Duration = Duration::from_secs(10);
