//! Probes of peers that are down, the addresses of peers, and their digests; probes of a line that
//! is down.
//!
//! Two tasks, on the first core. A peer that is up is not probed: requests show whether it answers.
//!
//! Cost: two wake-ups a second while a peer is down, in doubt or never heard, or its digest is
//! awaited; one in two seconds with other peers, one in five seconds without.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::task::spawn_local;
use hashcache_upstream::peer::{PROBE_DUE, Peer};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use crate::fetch::learn::learn;
use crate::worker::Worker;

/// Probes peers until the core ends.
pub(super) async fn probe_peers(worker: Rc<Worker>) {
    let mut looked_up = None;
    loop {
        let generation = worker.common.live().generation;
        let is_due = |(at, of): (Instant, u64)| of != generation || at.elapsed() >= ADDRESSES_TIME;
        if looked_up.is_none_or(is_due) {
            looked_up = Some((Instant::now(), generation));
            look_up_addresses(&worker);
        }
        let peers = worker.common.live().routes.peers().to_vec();
        // Before the state is looked at, so that no change after that is missed.
        let probe_due = PROBE_DUE.notified();
        tokio::pin!(probe_due);
        probe_due.as_mut().enable();
        let soon = Instant::now() + PAUSE;
        tokio::select! {
            () = sleep(pause(&worker, &peers)) => {}
            () = probe_due => sleep_until(soon).await,
        }
        for peer in peers {
            if peer.health.take_probe(Instant::now()) {
                let (worker, peer) = (Rc::clone(&worker), Arc::clone(&peer));
                // Each in a task of its own: one that hangs must not delay the others.
                spawn_local(async move { worker.upstream().probe(&peer).await });
            }
            if peer.learned.is_due(Instant::now()) && peer.health.is_up() {
                spawn_local(learn(Rc::clone(&worker), Arc::clone(&peer)));
            }
            let queries = &worker.common.queries;
            let health = &peer.query_health;
            // A peer that was never heard is asked before a request has to wait for it.
            let is_new = peer.round_trip.smoothed().is_none() && health.is_up();
            if queries.can_ask(&peer) && (is_new || health.take_probe(Instant::now())) {
                let (queries, peer) = (Arc::clone(queries), Arc::clone(&peer));
                spawn_local(async move { queries.probe(&peer).await });
            }
        }
    }
}

/// While it is in question whether the line is up, tries origins until the core ends: those that
/// clients want, then those that were reached, one in a second, then all of them again.
pub(super) async fn probe_line(worker: Rc<Worker>) {
    loop {
        sleep(LINE_PAUSE).await;
        let line = Arc::clone(&worker.common.live().upstream.line);
        let Some(probes) = line.probes() else {
            continue;
        };
        let mut reached = None;
        for probe in probes {
            if worker.upstream().reaches(&probe.origin).await {
                reached = Some(probe);
                break;
            }
            sleep(LINE_STEP).await;
        }
        line.note_probes(reached.as_ref());
    }
}

/// The time until these peers are looked at again.
fn pause(worker: &Worker, peers: &[Arc<Peer>]) -> Duration {
    let queries = &worker.common.queries;
    let is_settled = |peer: &Arc<Peer>| {
        let is_heard = peer.round_trip.smoothed().is_some() || !queries.can_ask(peer);
        let is_healthy = peer.health.is_settled() && peer.query_health.is_up();
        is_healthy && is_heard && !peer.learned.is_awaited()
    };
    match peers {
        [] => PAUSE_WITHOUT_PEERS,
        _ if peers.iter().all(is_settled) => PAUSE_SETTLED,
        _ => PAUSE,
    }
}

/// Looks up the addresses of peers that are recognised by them, as members are in front of a site.
fn look_up_addresses(worker: &Rc<Worker>) {
    let peers = worker.common.live().routes.peers().to_vec();
    for peer in peers
        .into_iter()
        .filter(|peer| peer.is_recognised() || peer.is_member())
    {
        let worker = Rc::clone(worker);
        spawn_local(async move {
            match worker.upstream().addresses(&peer).await {
                Ok(addresses) => peer.set_addresses(&addresses),
                // The old addresses stay: a broken resolver is no reason to shut a peer out.
                Err(failure) => debug!(peer = peer.name(), %failure, "no address of the peer"),
            }
        });
    }
}

/// Between two rounds of probes of the line.
const LINE_PAUSE: Duration = Duration::from_secs(5);
/// Between two of these probes.
const LINE_STEP: Duration = Duration::from_secs(1);
/// The addresses of peers are looked up again after this time; the DNS cache knows how long they
/// stay valid.
const ADDRESSES_TIME: Duration = Duration::from_secs(30);
/// While a peer is down, in doubt or was never heard, or its digest is awaited.
const PAUSE: Duration = Duration::from_millis(500);
/// With all peers up and their digests there, unless a peer comes in doubt meanwhile.
const PAUSE_SETTLED: Duration = Duration::from_secs(2);
/// A reload may bring peers.
const PAUSE_WITHOUT_PEERS: Duration = Duration::from_secs(5);
