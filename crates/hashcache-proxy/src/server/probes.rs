//! Probes of peers that are down, the addresses of peers, and their digests.
//!
//! One task, on the first core. A peer that is up is not probed: requests show whether it answers.
//!
//! Cost: two wake-ups a second with peers, one every five seconds without.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
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
        let pause = match peers.is_empty() {
            true => PAUSE_WITHOUT_PEERS,
            false => PAUSE,
        };
        sleep(pause).await;
        for peer in peers {
            if peer.health.take_probe(Instant::now()) {
                let (worker, peer) = (Rc::clone(&worker), Arc::clone(&peer));
                // Each in a task of its own: one that hangs must not delay the others.
                tokio::task::spawn_local(async move { worker.upstream().probe(&peer).await });
            }
            if peer.learned.is_due(Instant::now()) && peer.health.is_up() {
                tokio::task::spawn_local(learn(Rc::clone(&worker), Arc::clone(&peer)));
            }
            let queries = &worker.common.queries;
            let health = &peer.query_health;
            // A peer that was never heard is asked before a request has to wait for it.
            let is_new = peer.round_trip.smoothed().is_none() && health.is_up();
            if queries.can_ask(&peer) && (is_new || health.take_probe(Instant::now())) {
                let (queries, peer) = (Arc::clone(queries), Arc::clone(&peer));
                tokio::task::spawn_local(async move { queries.probe(&peer).await });
            }
        }
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
        tokio::task::spawn_local(async move {
            match worker.upstream().addresses(&peer).await {
                Ok(addresses) => peer.set_addresses(&addresses),
                // The old addresses stay: a broken resolver is no reason to shut a peer out.
                Err(failure) => debug!(peer = peer.name(), %failure, "no address of the peer"),
            }
        });
    }
}

/// The addresses of peers are looked up again after this time; the DNS cache knows how long they
/// stay valid.
const ADDRESSES_TIME: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
/// A reload may bring peers.
const PAUSE_WITHOUT_PEERS: Duration = Duration::from_secs(5);
