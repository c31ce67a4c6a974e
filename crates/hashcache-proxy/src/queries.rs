//! ICP queries to peers: which replies are believed, and how long they are waited for.
//!
//! `worker` has them for `fetch`, which asks before the first hop of a route, and for probes.
//!
//! One [`Queries`] for all cores: any core sends on the shared socket, and `peers` hands every
//! reply to [`Queries::heard`], which passes it on to the waiting core through a channel.
//!
//! Invariants: a reply counts only if its number, its sender and its URL are those of a query that
//! is remembered, and it counts once. Numbers cannot be predicted from earlier ones. At most
//! [`OUTSTANDING_MAX`] queries are remembered, each for [`REMEMBERED`]: longer than they are waited
//! for, so that late replies of a distant peer teach its round trip and do not look like a death.
//! Cost: one lock for a query and one for its reply.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::Target;
use hashcache_peers::icp::{Answer, Query, Reply};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::metrics::{IcpCounts, Unanswered};
use crate::peer::Peer;
use crate::route::{Replies, Route};

/// The queries of the process.
#[derive(Debug)]
pub(crate) struct Queries {
    socket: UdpSocket,
    is_v6: bool,
    numbers: RandomState,
    next: AtomicU64,
    outstanding: Mutex<HashMap<u32, Outstanding>>,
    pub(crate) counts: Arc<IcpCounts>,
}

/// A query that was sent.
#[derive(Debug)]
struct Outstanding {
    peer: Arc<Peer>,
    address: SocketAddr,
    url: Arc<str>,
    sent: Instant,
    /// The number of the query in its route.
    place: usize,
    reply: mpsc::Sender<(usize, Answer)>,
}

impl Queries {
    /// Queries that are sent on `socket`, which does not block.
    pub(crate) fn new(socket: UdpSocket, counts: Arc<IcpCounts>) -> Self {
        let is_v6 = socket.local_addr().is_ok_and(|address| address.is_ipv6());
        Self {
            socket,
            is_v6,
            numbers: RandomState::new(),
            next: AtomicU64::new(0),
            outstanding: Mutex::default(),
            counts,
        }
    }

    fn outstanding(&self) -> MutexGuard<'_, HashMap<u32, Outstanding>> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the peers of `route` that are to be asked about `target`, and puts its hops in the
    /// order of their replies. Ends at the first HIT, when all have answered, or at the deadline.
    pub(crate) async fn ask(&self, target: &Target, route: Route) -> Route {
        let peers: Vec<Arc<Peer>> = route.queries().cloned().collect();
        let (reply, mut replies) = mpsc::channel(peers.len().max(1));
        let url: Arc<str> = target.to_string().into();
        let sent = peers.iter().enumerate();
        let sent = sent.filter(|(place, peer)| self.send(peer, &url, (*place, &reply)));
        let mut waiting: Vec<usize> = sent.map(|(place, _)| place).collect();
        drop(reply);
        let limits = waiting
            .iter()
            .map(|place| peers[*place].round_trip.query_limit());
        let deadline = Instant::now() + limits.max().unwrap_or_default();
        let mut heard = Replies::default();
        while !waiting.is_empty() && heard.hits.is_empty() {
            let Ok(Some(reply)) = timeout_at(deadline, replies.recv()).await else {
                heard.timed_out = true;
                break;
            };
            note(&mut heard, &mut waiting, reply);
        }
        // Others that arrived at the same moment: a second sibling, if the first one errs.
        while let Ok(reply) = replies.try_recv() {
            note(&mut heard, &mut waiting, reply);
        }
        if heard.timed_out {
            for place in waiting {
                self.counts.timed_out();
                peers[place].note_no_reply();
            }
        }
        heard
            .hits
            .sort_by_key(|place| peers[*place].round_trip.smoothed());
        route.after(&heard)
    }

    /// Asks `peer` about a URL of its own, to learn whether it answers and how fast.
    pub(crate) async fn probe(&self, peer: &Arc<Peer>) {
        let (reply, mut replies) = mpsc::channel(1);
        let url = format!("{}/", peer.settings.url).into();
        let is_sent = self.send(peer, &url, (0, &reply));
        let deadline = Instant::now() + PROBE_TIME;
        if !is_sent || timeout_at(deadline, replies.recv()).await.is_err() {
            self.counts.timed_out();
            peer.note_no_reply();
        }
    }

    /// Sends one query; whether it was sent.
    fn send(
        &self,
        peer: &Arc<Peer>,
        url: &Arc<str>,
        (place, reply): (usize, &mpsc::Sender<(usize, Answer)>),
    ) -> bool {
        let can_reach = |address: IpAddr| address.is_ipv4() || self.is_v6;
        let Some(address) = peer.icp_address(can_reach) else {
            return false;
        };
        let number = self.number();
        let Ok(query) = Query::new(number, url.as_bytes()) else {
            return false;
        };
        let query_sent = Outstanding {
            peer: Arc::clone(peer),
            address,
            url: Arc::clone(url),
            sent: Instant::now(),
            place,
            reply: reply.clone(),
        };
        {
            let mut outstanding = self.outstanding();
            if outstanding.len() >= OUTSTANDING_MAX || outstanding.contains_key(&number) {
                return false;
            }
            outstanding.insert(number, query_sent);
        }
        let sent = self.send_to(&query.to_datagram(), address);
        match sent {
            true => self.counts.asked(),
            false => drop(self.outstanding().remove(&number)),
        }
        sent
    }

    /// A number for a query: a keyed hash of a counter, so that a forger cannot work it out from
    /// earlier ones.
    fn number(&self) -> u32 {
        let hash = self.numbers.hash_one(self.next.fetch_add(1, Relaxed));
        let [_, _, _, _, number @ ..] = hash.to_le_bytes();
        u32::from_le_bytes(number)
    }

    /// Sends a datagram, unless the system has no room for it now.
    pub(crate) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> bool {
        let to = match to.ip() {
            IpAddr::V4(v4) if self.is_v6 => {
                let mapped: Ipv6Addr = v4.to_ipv6_mapped();
                SocketAddr::new(mapped.into(), to.port())
            }
            _ => to,
        };
        self.socket.send_to(datagram, to).is_ok()
    }

    /// Sends an update of our summary to a peer; whether it was sent.
    pub(crate) fn send_update(&self, peer: &Peer, datagram: &[u8]) -> bool {
        let can_reach = |address: IpAddr| address.is_ipv4() || self.is_v6;
        let address = peer.icp_address(can_reach);
        address.is_some_and(|address| self.send_to(datagram, address))
    }

    /// Takes a reply that `from` has sent.
    pub(crate) fn heard(&self, reply: &Reply<'_>, from: SocketAddr) {
        let mut outstanding = self.outstanding();
        let is_answer = outstanding
            .get(&reply.number())
            .is_some_and(|asked| asked.address == from && asked.url.as_bytes() == reply.url());
        let asked = match is_answer {
            true => outstanding.remove(&reply.number()),
            false => None,
        };
        drop(outstanding);
        let Some(asked) = asked else {
            self.counts.ignored(Unanswered::Unasked);
            return;
        };
        self.counts.received(reply.answer());
        asked.peer.note_reply(asked.sent.elapsed());
        // It fails if the query is no longer waited for.
        let _ = asked.reply.try_send((asked.place, reply.answer()));
    }

    /// Forgets queries that no reply is expected for any more.
    pub(crate) fn forget_old(&self) {
        let now = Instant::now();
        let is_recent = |asked: &Outstanding| now.duration_since(asked.sent) < REMEMBERED;
        self.outstanding().retain(|_, asked| is_recent(asked));
    }
}

fn note(heard: &mut Replies, waiting: &mut Vec<usize>, (place, answer): (usize, Answer)) {
    waiting.retain(|each| *each != place);
    match answer {
        Answer::Hit => heard.hits.push(place),
        Answer::Miss => heard.misses.push(place),
        Answer::Err | Answer::Denied | Answer::MissNoFetch => {}
    }
}

/// Maximum number of queries that are remembered: about 1 MiB.
const OUTSTANDING_MAX: usize = 4096;
/// How long a query is remembered at least.
const REMEMBERED: Duration = Duration::from_secs(4);
/// How long the reply to a probe is waited for.
const PROBE_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Credentials, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary};

    fn queries() -> Queries {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Queries::new(socket, Arc::default())
    }

    /// A peer, and its socket.
    fn peer() -> (Arc<Peer>, UdpSocket) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let settings = PeerSettings {
            name: "a".into(),
            kind: PeerKind::Sibling,
            url: "http://127.0.0.1:3128".parse().unwrap(),
            credentials: Credentials::None,
            https: PeerHttps::Tunnel,
            icp: Some(socket.local_addr().unwrap().port()),
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight: 1,
        };
        (Arc::new(settings.load().unwrap()), socket)
    }

    fn sent(queries: &Queries, peer: &Arc<Peer>) -> mpsc::Receiver<(usize, Answer)> {
        let (reply, replies) = mpsc::channel(1);
        assert!(queries.send(peer, &"http://x.test/".into(), (3, &reply)));
        replies
    }

    fn number(queries: &Queries) -> u32 {
        *queries.outstanding().keys().next().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_counts_once_and_only_from_the_peer_that_was_asked() {
        let (queries, (peer, socket)) = (queries(), peer());
        let mut replies = sent(&queries, &peer);
        let asked = number(&queries);
        let from = socket.local_addr().unwrap();
        let reply = |number, url| Reply::new(Answer::Hit, number, url).unwrap();
        let url = &b"http://x.test/"[..];
        let elsewhere = SocketAddr::new(from.ip(), from.port() ^ 1);
        queries.heard(&reply(asked ^ 1, url), from);
        queries.heard(&reply(asked, b"http://y.test/"), from);
        queries.heard(&reply(asked, url), elsewhere);
        assert!(replies.try_recv().is_err());
        assert_eq!(peer.round_trip.smoothed(), None);
        tokio::time::advance(Duration::from_millis(80)).await;
        queries.heard(&reply(asked, url), from);
        assert_eq!(replies.try_recv().unwrap(), (3, Answer::Hit));
        assert_eq!(peer.round_trip.smoothed(), Some(Duration::from_millis(80)));
        assert_eq!(peer.round_trip.query_limit(), Duration::from_millis(170));
        queries.heard(&reply(asked, url), from);
        assert!(replies.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_reply_teaches_the_round_trip_and_a_query_is_forgotten_at_last() {
        let (queries, (peer, socket)) = (queries(), peer());
        drop(sent(&queries, &peer));
        let asked = number(&queries);
        tokio::time::advance(Duration::from_millis(700)).await;
        queries.forget_old();
        let reply = Reply::new(Answer::Miss, asked, b"http://x.test/").unwrap();
        queries.heard(&reply, socket.local_addr().unwrap());
        assert_eq!(peer.round_trip.smoothed(), Some(Duration::from_millis(700)));
        drop(sent(&queries, &peer));
        tokio::time::advance(REMEMBERED).await;
        queries.forget_old();
        assert!(queries.outstanding().is_empty());
    }

    #[tokio::test]
    async fn the_number_of_queries_that_are_remembered_is_bounded() {
        let (queries, (peer, _socket)) = (queries(), peer());
        let (reply, _replies) = mpsc::channel(1);
        let url: Arc<str> = "http://x.test/".into();
        for _ in 0..OUTSTANDING_MAX + 10 {
            // The system may have no room for some of them.
            let _ = queries.send(&peer, &url, (0, &reply));
        }
        assert!(queries.outstanding().len() <= OUTSTANDING_MAX);
        let long = format!("http://x.test/{}", "y".repeat(20_000));
        assert!(!queries.send(&peer, &long.into(), (0, &reply)));
    }
}
