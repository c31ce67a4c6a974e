//! Probes peers that are down, looks up the addresses of peers and fetches their digests; probes a
//! line that is down.
//!
//! Two tasks on the first core. A peer that is up is not probed, because requests show whether it
//! answers.
//!
//! Cost: two wake-ups a second while a peer is down, in doubt or never heard, or its digest is
//! awaited; otherwise one in two seconds with peers, and one in five seconds without peers.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache_base::task::spawn_local;
use hashcache_upstream::peer::{PROBE_DUE, Peer};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use crate::fetch::learn::learn;
use crate::worker::Worker;

/// Probes peers until the core stops.
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
        // Subscribe before the state is read, so that no later change is missed.
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
                // Each probe is a separate task, because a probe that hangs must not delay the
                // others.
                spawn_local(async move { worker.upstream().probe(&peer).await });
            }
            if peer.learned.is_due(Instant::now()) && peer.health.is_up() {
                spawn_local(learn(Rc::clone(&worker), Arc::clone(&peer)));
            }
            let queries = &worker.common.queries;
            let health = &peer.query_health;
            // Query a new peer now, so that the first request does not have to wait for the peer.
            let is_new = peer.round_trip.smoothed().is_none() && health.is_up();
            if queries.can_ask(&peer) && (is_new || health.take_probe(Instant::now())) {
                let (queries, peer) = (Arc::clone(queries), Arc::clone(&peer));
                spawn_local(async move { queries.probe(&peer).await });
            }
        }
    }
}

/// Probes origins until the core stops, while it is in doubt whether the line is up: first the
/// origins that clients want, then the origins that were reached, one a second; then the next round
/// starts.
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

/// Returns the time until these peers are checked again.
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

/// Looks up the addresses of peers that are recognised by address, as members in front of a site
/// are.
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

/// Pause between two rounds of probes of the line.
const LINE_PAUSE: Duration = Duration::from_secs(5);
/// Pause between two probes of a round.
const LINE_STEP: Duration = Duration::from_secs(1);
/// Interval between look-ups of the addresses of peers; the DNS cache knows how long they are
/// valid.
const ADDRESSES_TIME: Duration = Duration::from_secs(30);
/// Pause while a peer is down, in doubt or was never heard, or its digest is awaited.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause while all peers are up and their digests are there, unless a peer gets in doubt meanwhile.
const PAUSE_SETTLED: Duration = Duration::from_secs(2);
/// Pause without peers; a reload may add peers.
const PAUSE_WITHOUT_PEERS: Duration = Duration::from_secs(5);
