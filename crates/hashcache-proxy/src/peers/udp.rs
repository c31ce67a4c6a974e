//! The task that receives ICP datagrams, for all cores.
//!
//! Run by `server` on the main thread; hands queries to `answer` and replies to `queries`.
//!
//! Invariants: a datagram is parsed only if it is from the address of a peer. No peer gets more
//! than [`RATE_MAX`] replies a second. Memory does not grow with the number of datagrams.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_base::task::spawn;
use hashcache_peers::icp::{self, Answer, Ignored, Message, Query};
use hashcache_peers::update;
use hashcache_upstream::peer::{Peer, PeerMisses, PeerSummary};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::answer::{Answerer, Begun};
use crate::client_access::ClientAccess;
use crate::metrics::Unanswered;
use crate::queries::{Queries, REMEMBERED};
use crate::worker::Common;

/// Returns a socket that is bound to `address`.
///
/// # Errors
/// The address is in use, or is not an address of this host.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let kind = socket2::Type::DGRAM;
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Receives until the task is aborted. `is_ending` returns true if clients are no longer accepted.
pub(crate) async fn serve(
    (common, cache): (Arc<Common>, Cache),
    socket: UdpSocket,
    is_ending: impl Fn() -> bool,
) {
    let queries = Arc::clone(&common.queries);
    let socket = match tokio::net::UdpSocket::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return warn!(%error, "ICP does not work"),
    };
    let answerer = Answerer::new(Arc::clone(&common), cache);
    let mut rates = Rates::new(RATE_MAX);
    let mut buffer = vec![0; icp::DATAGRAM_BYTES_MAX + 1].into_boxed_slice();
    let mut forgetting = interval(REMEMBERED / 2);
    forgetting.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            _ = forgetting.tick() => {
                queries.forget_old();
                continue;
            }
        };
        let (length, from) = match received {
            Ok(received) => received,
            // The system reports an error of an earlier datagram here.
            Err(error) => {
                debug!(%error, "ICP datagram not received");
                tokio::task::yield_now().await;
                continue;
            }
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let peer = peer_of(&common, from);
        let Some(peer) = peer else {
            queries.counts.ignored(Unanswered::Stranger);
            continue;
        };
        match icp::parse(&buffer[..length]) {
            Ok(Message::Query(_)) if !rates.admits(from.ip(), Instant::now()) => {
                queries.counts.ignored(Unanswered::Rate);
            }
            Ok(Message::Query(query)) => {
                let is_ending = is_ending();
                let answer = early_answer(&common, &peer, from.ip(), is_ending);
                let begun = match answer {
                    Some(answer) => Begun::Answer(answer),
                    None => answerer.begin((from.ip(), query.url()), None).await,
                };
                match begun {
                    Begun::Answer(answer) => reply(&queries, &peer, query, (from, answer)),
                    Begun::Reading(reading) => {
                        let (queries, url) = (Arc::clone(&queries), query.url().to_vec());
                        let number = query.number();
                        spawn(async move {
                            let answer = reading.await;
                            if let Ok(query) = Query::new(number, &url) {
                                reply(&queries, &peer, query, (from, answer));
                            }
                        });
                    }
                }
            }
            Ok(Message::Reply(reply)) => queries.heard(&reply, from),
            Err(Ignored::Opcode(update::OPCODE))
                if peer.settings.summary == PeerSummary::Updates =>
            {
                match update::parse(&buffer[..length]) {
                    Ok(update) => peer.learned.take_update(&update, Instant::now()),
                    Err(refused) => {
                        debug!(peer = peer.name(), %refused, "update ignored");
                        queries.counts.ignored(Unanswered::Malformed);
                    }
                }
            }
            Err(ignored) => {
                debug!(peer = peer.name(), %ignored, "ICP datagram ignored");
                queries.counts.ignored(ignored.into());
            }
        }
    }
}

/// Returns the peer that sent a datagram. If several peers share an address, the port decides.
fn peer_of(common: &Common, from: SocketAddr) -> Option<Arc<Peer>> {
    let live = common.live();
    let speaks = |peer: &&Arc<Peer>| peer.settings.icp.is_some() && peer.has_address(from.ip());
    let mut peers = live.routes.peers().iter().filter(speaks);
    let first = peers.next()?;
    let is_port = |peer: &&Arc<Peer>| peer.settings.icp == Some(from.port());
    let mut all = std::iter::once(first).chain(peers);
    Some(Arc::clone(all.find(is_port).unwrap_or(first)))
}

/// Returns the reply, if it does not depend on the URL.
fn early_answer(common: &Common, peer: &Peer, from: IpAddr, is_ending: bool) -> Option<Answer> {
    let live = common.live();
    if ClientAccess::new(from, &live).refused(&live).is_some() {
        // Requests of this peer would be refused.
        debug!(peer = peer.name(), "ICP query of a peer that is no client");
        return Some(Answer::Denied);
    }
    is_ending.then_some(Answer::MissNoFetch)
}

fn reply(queries: &Queries, peer: &Peer, query: Query<'_>, (to, answer): (SocketAddr, Answer)) {
    let answer = match answer {
        Answer::Miss if peer.settings.misses == PeerMisses::Refused => Answer::MissNoFetch,
        answer => answer,
    };
    if queries.icp.send(&query.reply(answer).to_datagram(), to) {
        queries.counts.sent(answer);
    }
}

/// Messages from each address in the current second. Only addresses of peers are counted, so there
/// are few.
#[derive(Debug)]
pub(super) struct Rates {
    per_second: u32,
    of: HashMap<IpAddr, (Instant, u32)>,
}

impl Rates {
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            per_second,
            of: HashMap::new(),
        }
    }

    /// Counts a message; returns true if it may be answered.
    pub(super) fn admits(&mut self, from: IpAddr, now: Instant) -> bool {
        if self.of.len() > ADDRESSES_MAX {
            // Reloads have changed the peers many times.
            self.of.clear();
        }
        let (begun, count) = self.of.entry(from).or_insert((now, 0));
        if now.duration_since(*begun) >= Duration::from_secs(1) {
            (*begun, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= self.per_second
    }
}

/// Maximum replies to one peer in a second, per protocol.
pub(super) const RATE_MAX: u32 = 1000;
/// Maximum addresses with a rate.
const ADDRESSES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_gets_a_thousand_replies_a_second() {
        let mut rates = Rates::new(RATE_MAX);
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let now = Instant::now();
        let admitted = (0..1500).filter(|_| rates.admits(one, now)).count();
        assert_eq!(admitted, 1000);
        assert!(rates.admits(other, now));
        assert!(rates.admits(one, now + Duration::from_secs(1)));
    }
}
