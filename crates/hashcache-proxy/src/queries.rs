//! Queries to peers by ICP and HTCP: accepts valid replies and limits how long a request waits for
//! them.
//!
//! `worker` has them for `fetch`, which queries peers before the first hop of a route, for
//! `request`, which passes a PURGE on, and for probes.
//!
//! All cores share one [`Queries`]: any core sends on the shared sockets, and `peers` hands every
//! reply to [`Queries::heard`] or [`Queries::heard_htcp`], which pass it on to the waiting core
//! through a channel.
//!
//! Invariants: a reply counts only if number, sender and URL (HTCP: the signature, if the peer has
//! a key) match a remembered query, and it counts once. Numbers cannot be predicted from earlier
//! numbers. At most [`OUTSTANDING_MAX`] queries are remembered, each for at least [`REMEMBERED`]:
//! longer than a request waits, so that late replies of a distant peer update the round trip and
//! are not taken for a dead peer. No https URL is ever sent.
//! Cost: one lock for a query and one for the reply.

mod htcp;
mod line;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::clock::Clock;
use hashcache_base::sort::sort_by_key;
use hashcache_base::task::spawn;
use hashcache_http::{Scheme, Target, octets};
use hashcache_peers::htcp::auth::Ends;
use hashcache_peers::htcp::{
    Body, Cleared, ClrReason, MINOR, Message, Operation, Response, Specifier,
};
use hashcache_peers::icp::{Answer, Query, Reply};
use hashcache_upstream::peer::Peer;
use http::HeaderMap;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use self::htcp::{check, message};
pub(crate) use self::line::Line;
use crate::metrics::{
    ClearResult, HtcpCounts, HtcpIgnored, HtcpReply, IcpCounts, Metrics, Unanswered,
};
use crate::route::{Replies, Route};

/// All queries in the process.
#[derive(Debug)]
pub(crate) struct Queries {
    /// The socket for ICP.
    pub(crate) icp: Line,
    /// The socket for HTCP.
    pub(crate) htcp: Line,
    clock: Arc<Clock>,
    numbers: RandomState,
    next: AtomicU64,
    outstanding: Mutex<HashMap<u32, Outstanding>>,
    clears: Arc<Semaphore>,
    pub(crate) counts: Arc<IcpCounts>,
    pub(crate) htcp_counts: Arc<HtcpCounts>,
}

/// A sent query.
#[derive(Debug)]
struct Outstanding {
    peer: Arc<Peer>,
    address: SocketAddr,
    url: Arc<[u8]>,
    asked: Asked,
    sent: Instant,
    /// The query's index in its route.
    place: usize,
    reply: ReplySender,
}

/// A query's kind and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// ICP query: does the peer have the response?
    Icp,
    /// HTCP TST: does the peer have the response?
    Tst,
    /// HTCP CLR: remove the response.
    Clr,
}

/// A peer's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replied {
    Hit,
    Miss,
    /// The peer neither has the response nor would fetch it, or refuses the query.
    Refused,
    Cleared(Cleared),
}

/// Sends a query's index in its route, and the reply.
type ReplySender = mpsc::Sender<(usize, Replied)>;

/// A query's subject: a resource.
#[derive(Debug)]
struct Subject {
    url: Arc<[u8]>,
    /// Request fields as lines, for HTCP.
    fields: Vec<u8>,
}

impl From<String> for Subject {
    fn from(url: String) -> Self {
        Self {
            // A peer identifies the resource by the URL's octets.
            url: octets(&url).into(),
            fields: Vec::new(),
        }
    }
}

impl Queries {
    /// Creates the queries without sockets; `server` opens them.
    pub(crate) fn new(clock: Arc<Clock>, metrics: &Metrics) -> Self {
        Self {
            icp: Line::default(),
            htcp: Line::default(),
            clock,
            numbers: RandomState::new(),
            next: AtomicU64::new(0),
            outstanding: Mutex::default(),
            clears: Arc::new(Semaphore::new(CLEARS_MAX)),
            counts: Arc::clone(metrics.icp()),
            htcp_counts: Arc::clone(metrics.htcp()),
        }
    }

    /// Returns the time for signatures: now, seconds since 1970.
    pub(crate) fn now(&self) -> u32 {
        self.clock.now().seconds().try_into().unwrap_or(u32::MAX)
    }

    fn outstanding(&self) -> MutexGuard<'_, HashMap<u32, Outstanding>> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Queries the peers of `route` about `target` with the request fields `fields`, and sorts the
    /// hops by their replies. Returns at the first HIT, after all replies, or at the deadline.
    pub(crate) async fn ask(&self, target: &Target, fields: &HeaderMap, route: Route) -> Route {
        let peers: Vec<Arc<Peer>> = route.queries().cloned().collect();
        let (reply, mut replies) = mpsc::channel(peers.len().max(1));
        let subject = Subject {
            fields: htcp::test_fields(fields),
            ..target.to_string().into()
        };
        let sent = peers.iter().enumerate();
        let sent = sent.filter(|(place, peer)| self.query(peer, &subject, (*place, &reply)));
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
        // Take other replies that arrived at the same moment: a second sibling may help if the
        // first is wrong.
        while let Ok(reply) = replies.try_recv() {
            note(&mut heard, &mut waiting, reply);
        }
        if heard.timed_out {
            for place in waiting {
                let peer = &peers[place];
                self.count_no_reply(peer);
                // The distance of the other peers is not known yet: their probes, which wait
                // longer, decide if they answer.
                if peer.round_trip.smoothed().is_some() {
                    peer.note_no_reply();
                }
            }
        }
        sort_by_key(&mut heard.hits, |place| peers[*place].round_trip.smoothed());
        route.after(&heard)
    }

    /// Queries `peer` about the peer's own URL, to learn if it answers and how fast.
    pub(crate) async fn probe(&self, peer: &Arc<Peer>) {
        let (reply, mut replies) = mpsc::channel(1);
        let authority = &peer.settings.url.authority;
        let url = format!("http://{}/", authority.display(Scheme::Http));
        let is_sent = self.query(peer, &url.into(), (0, &reply));
        if !is_sent || timeout(PROBE_TIME, replies.recv()).await.is_err() {
            self.note_no_reply(peer);
        }
    }

    /// Returns true if the socket for queries to `peer` is open.
    pub(crate) fn can_ask(&self, peer: &Peer) -> bool {
        query_of(peer).is_some_and(|asked| self.line(asked).address().is_some())
    }

    /// Sends a CLR for `target`, which was purged here, to the `peers` that want it. A CLR is sent
    /// up to [`CLEAR_ATTEMPTS`] times until the peer answers; no caller waits for it.
    pub(crate) fn clear(self: &Arc<Self>, peers: &[Arc<Peer>], target: &Target) {
        let is_wanted = |peer: &&Arc<Peer>| {
            let htcp = peer.settings.htcp.as_ref();
            htcp.is_some_and(|htcp| htcp.sends_clear)
        };
        if target.scheme != Scheme::Http {
            return;
        }
        for peer in peers.iter().filter(is_wanted) {
            let Ok(permit) = Arc::clone(&self.clears).try_acquire_owned() else {
                self.htcp_counts.clear_sent(ClearResult::Unsent);
                continue;
            };
            let (queries, peer) = (Arc::clone(self), Arc::clone(peer));
            let subject = Subject::from(target.to_string());
            spawn(async move {
                let result = queries.clear_at(&peer, &subject).await;
                queries.htcp_counts.clear_sent(result);
                tracing::debug!(
                    peer = peer.name(),
                    ?result,
                    "peer was asked to forget a URL"
                );
                drop(permit);
            });
        }
    }

    async fn clear_at(&self, peer: &Arc<Peer>, subject: &Subject) -> ClearResult {
        let (reply, mut replies) = mpsc::channel(CLEAR_ATTEMPTS);
        for _ in 0..CLEAR_ATTEMPTS {
            if !self.send(peer, subject, Asked::Clr, (0, &reply)) {
                return ClearResult::Unsent;
            }
            if let Ok(Some((_, replied))) = timeout(CLEAR_TIME, replies.recv()).await {
                return match replied {
                    Replied::Cleared(Cleared::Gone) => ClearResult::Gone,
                    Replied::Cleared(Cleared::Absent) => ClearResult::Absent,
                    Replied::Cleared(Cleared::Kept) => ClearResult::Kept,
                    Replied::Hit | Replied::Miss | Replied::Refused => ClearResult::Refused,
                };
            }
        }
        ClearResult::NoReply
    }

    fn note_no_reply(&self, peer: &Peer) {
        self.count_no_reply(peer);
        peer.note_no_reply();
    }

    fn count_no_reply(&self, peer: &Peer) {
        match query_of(peer) {
            Some(Asked::Icp) => self.counts.timed_out(),
            _ => self.htcp_counts.timed_out(),
        }
    }

    fn line(&self, asked: Asked) -> &Line {
        match asked {
            Asked::Icp => &self.icp,
            Asked::Tst | Asked::Clr => &self.htcp,
        }
    }

    /// Queries `peer` for the response; returns true if the query was sent.
    fn query(&self, peer: &Arc<Peer>, subject: &Subject, reply: (usize, &ReplySender)) -> bool {
        let Some(asked) = query_of(peer) else {
            return false;
        };
        let sent = self.send(peer, subject, asked, reply);
        match asked {
            _ if !sent => {}
            Asked::Icp => self.counts.asked(),
            Asked::Tst | Asked::Clr => self.htcp_counts.asked(),
        }
        sent
    }

    /// Sends a message that wants a reply; returns true if it was sent.
    fn send(
        &self,
        peer: &Arc<Peer>,
        subject: &Subject,
        asked: Asked,
        (place, reply): (usize, &ReplySender),
    ) -> bool {
        let line = self.line(asked);
        let port = match asked {
            Asked::Icp => peer.settings.icp,
            Asked::Tst | Asked::Clr => peer.settings.htcp.as_ref().map(|htcp| htcp.port),
        };
        let address = peer.address(|address| line.reaches(address));
        let (Some(address), Some(port)) = (address, port) else {
            return false;
        };
        let (address, number) = (SocketAddr::new(address, port), self.number());
        let Some(datagram) = self.datagram(peer, subject, asked, (address, number)) else {
            return false;
        };
        let query_sent = Outstanding {
            peer: Arc::clone(peer),
            address,
            url: Arc::clone(&subject.url),
            asked,
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
        let sent = line.send(&datagram, address);
        if !sent {
            self.outstanding().remove(&number);
        }
        sent
    }

    /// Encodes a message; `None` if it would be too long.
    fn datagram(
        &self,
        peer: &Peer,
        subject: &Subject,
        asked: Asked,
        (to, number): (SocketAddr, u32),
    ) -> Option<Vec<u8>> {
        let url = &subject.url[..];
        let operation = match asked {
            Asked::Icp => return Some(Query::new(number, url).ok()?.to_datagram()),
            Asked::Tst => Operation::Tst(Specifier::get(url, &subject.fields)),
            Asked::Clr => Operation::Clr {
                reason: ClrReason::Unspecified,
                specifier: Specifier::get(url, b""),
            },
        };
        let body = Body::Request {
            operation,
            wants_response: true,
        };
        let ends = Ends {
            source: self.htcp.address()?,
            destination: to,
        };
        message(peer, (MINOR, number), &body, ends, self.now()).ok()
    }

    /// Returns a number for a query: a keyed hash of a counter, so that a forger cannot compute it
    /// from earlier numbers.
    fn number(&self) -> u32 {
        let hash = self.numbers.hash_one(self.next.fetch_add(1, Relaxed));
        let [_, _, _, _, number @ ..] = hash.to_le_bytes();
        u32::from_le_bytes(number)
    }

    /// Sends an update of our summary to a peer, from the ICP socket; returns true if it was sent.
    pub(crate) fn send_update(&self, peer: &Peer, datagram: &[u8]) -> bool {
        let address = peer.address(|address| self.icp.reaches(address));
        let (Some(address), Some(port)) = (address, peer.settings.icp) else {
            return false;
        };
        self.icp.send(datagram, SocketAddr::new(address, port))
    }

    /// Handles an ICP reply from `from`.
    pub(crate) fn heard(&self, reply: &Reply<'_>, from: SocketAddr) {
        let is_answer = |asked: &Outstanding| {
            asked.asked == Asked::Icp && asked.address == from && *asked.url == *reply.url()
        };
        let Some(asked) = self.take(reply.number(), is_answer) else {
            self.counts.ignored(Unanswered::Unasked);
            return;
        };
        self.counts.received(reply.answer());
        asked.take_reply(match reply.answer() {
            Answer::Hit => Replied::Hit,
            Answer::Miss => Replied::Miss,
            Answer::Err | Answer::Denied | Answer::MissNoFetch => Replied::Refused,
        });
    }

    /// Handles an HTCP response from `from` to `to`.
    pub(crate) fn heard_htcp(&self, message: &Message<'_>, (from, to): (SocketAddr, SocketAddr)) {
        let Body::Response(response) = message.body else {
            return;
        };
        let mut is_signed = true;
        let asked = self.take(message.transaction, |asked| {
            let is_from = asked.address == from && asked.is_answered_by(&response);
            // A forger must not be able to finish a query.
            is_signed = !is_from || check(&asked.peer, message, (from, to), self.now()).is_ok();
            is_from && is_signed
        });
        let Some(asked) = asked else {
            self.htcp_counts.ignored(if is_signed {
                HtcpIgnored::Unasked
            } else {
                HtcpIgnored::Signature
            });
            return;
        };
        let (replied, count) = match response {
            Response::Present(_) => (Replied::Hit, HtcpReply::Hit),
            Response::Absent { .. } => (Replied::Miss, HtcpReply::Miss),
            Response::Clr(cleared) => return asked.take_reply(Replied::Cleared(cleared)),
            Response::Refused { .. } | Response::Nop => (Replied::Refused, HtcpReply::Refused),
        };
        if asked.asked == Asked::Tst {
            self.htcp_counts.received(count);
        }
        asked.take_reply(replied);
    }

    /// Removes and returns the query with this number, if the reply answers it.
    fn take(
        &self,
        number: u32,
        is_answered: impl FnOnce(&Outstanding) -> bool,
    ) -> Option<Outstanding> {
        let mut outstanding = self.outstanding();
        let is_answered = outstanding.get(&number).is_some_and(is_answered);
        is_answered.then(|| outstanding.remove(&number)).flatten()
    }

    /// Removes queries that expect no reply any more.
    pub(crate) fn forget_old(&self) {
        let now = Instant::now();
        let is_recent = |asked: &Outstanding| now.duration_since(asked.sent) < REMEMBERED;
        self.outstanding().retain(|_, asked| is_recent(asked));
    }
}

impl Outstanding {
    /// Returns true if an HTCP response has the kind that the query expects.
    fn is_answered_by(&self, response: &Response<'_>) -> bool {
        matches!(
            (self.asked, response),
            (
                Asked::Tst,
                Response::Present(_) | Response::Absent { .. } | Response::Refused { .. }
            ) | (Asked::Clr, Response::Clr(_) | Response::Refused { .. })
        )
    }

    fn take_reply(&self, replied: Replied) {
        self.peer.note_reply(self.sent.elapsed());
        // Fails if no task waits for the query any more.
        let _ = self.reply.try_send((self.place, replied));
    }
}

/// Returns the protocol for a query to a peer: HTCP if the peer has both, because HTCP carries
/// request fields.
fn query_of(peer: &Peer) -> Option<Asked> {
    match (&peer.settings.htcp, peer.settings.icp) {
        (Some(_), _) => Some(Asked::Tst),
        (None, Some(_)) => Some(Asked::Icp),
        (None, None) => None,
    }
}

fn note(heard: &mut Replies, waiting: &mut Vec<usize>, (place, replied): (usize, Replied)) {
    waiting.retain(|each| *each != place);
    match replied {
        Replied::Hit => heard.hits.push(place),
        Replied::Miss => heard.misses.push(place),
        Replied::Refused | Replied::Cleared(_) => {}
    }
}

/// Maximum remembered queries: about 1 MiB.
const OUTSTANDING_MAX: usize = 4096;
/// Minimum time that a query is remembered; the maximum is half as long again.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(4);
/// Time limit for the reply to a probe.
const PROBE_TIME: Duration = Duration::from_secs(2);
/// Maximum CLRs to a peer until it answers.
const CLEAR_ATTEMPTS: usize = 3;
/// Time limit for the reply to a CLR.
const CLEAR_TIME: Duration = Duration::from_millis(700);
/// Maximum CLRs in progress.
const CLEARS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use hashcache_base::net::address::Purpose;
    use hashcache_upstream::peer::{
        Credentials, HtcpPeer, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary,
    };

    use super::*;
    use crate::route::{RouteRequest, RouteSettings, Routes, Siblings};

    fn queries() -> Queries {
        let queries = Queries::new(Arc::new(Clock::start(None)), &Metrics::new(1));
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        queries.icp.open(socket()).unwrap();
        queries.htcp.open(socket()).unwrap();
        queries
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
            htcp: None,
            summary: PeerSummary::None,
            misses: PeerMisses::Fetched,
            weight: 1,
            pin: None,
        };
        (Arc::new(settings.load(None).unwrap()), socket)
    }

    fn sent(queries: &Queries, peer: &Arc<Peer>) -> mpsc::Receiver<(usize, Replied)> {
        let (reply, replies) = mpsc::channel(1);
        let subject = Subject::from("http://x.test/".to_owned());
        assert!(queries.query(peer, &subject, (3, &reply)));
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
        assert_eq!(replies.try_recv().unwrap(), (3, Replied::Hit));
        assert_eq!(peer.round_trip.smoothed(), Some(Duration::from_millis(80)));
        assert_eq!(peer.round_trip.query_limit(), Duration::from_millis(170));
        queries.heard(&reply(asked, url), from);
        assert!(replies.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_urls_are_being_forgotten_at_peers() {
        let queries = Arc::new(queries());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (peer, _) = peer();
        let mut settings = peer.settings.clone();
        settings.htcp = Some(HtcpPeer {
            port: socket.local_addr().unwrap().port(),
            key_file: None,
            obeys_clear: false,
            sends_clear: true,
        });
        let peers = [Arc::new(settings.load(None).unwrap())];
        for n in 0..2 * CLEARS_MAX {
            queries.clear(&peers, &target(&format!("http://h/{n}")));
        }
        assert_eq!(queries.clears.available_permits(), 0);
        let unsent = queries.htcp_counts.clears_sent();
        let unsent = unsent.filter(|(result, _)| *result == "unsent");
        assert_eq!(
            unsent.map(|(_, count)| count).sum::<u64>(),
            CLEARS_MAX as u64
        );
    }

    fn target(url: &str) -> Target {
        Target::parse_url(url).unwrap()
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

    #[tokio::test(start_paused = true)]
    async fn a_peer_of_unknown_distance_is_not_called_dead_after_three_deadlines() {
        let (queries, (peer, socket)) = (queries(), peer());
        peer.set_addresses(&[socket.local_addr().unwrap().ip()]);
        let target = Target::parse_url("http://x.test/").unwrap();
        let ask = async || {
            let routes = Routes::new(vec![Arc::clone(&peer)], &[RouteSettings::default()], "us");
            let route = routes.plan(RouteRequest {
                scheme: target.scheme,
                authority: &target.authority,
                path: "/",
                purpose: Purpose::Forward,
                is_tunnel: false,
                via_members: 0,
                siblings: Siblings::Asked(None),
            });
            queries
                .ask(&target, &HeaderMap::new(), route.unwrap())
                .await;
        };
        for _ in 0..6 {
            ask().await;
        }
        assert!(peer.query_health.is_up());
        peer.note_reply(Duration::from_millis(700));
        for _ in 0..3 {
            ask().await;
        }
        assert!(!peer.query_health.is_up());
    }

    #[tokio::test]
    async fn the_number_of_queries_that_are_remembered_is_bounded() {
        let (queries, (peer, _socket)) = (queries(), peer());
        let (reply, _replies) = mpsc::channel(1);
        let subject = Subject::from("http://x.test/".to_owned());
        for _ in 0..OUTSTANDING_MAX + 10 {
            // The system may have no room for some of them.
            let _ = queries.query(&peer, &subject, (0, &reply));
        }
        assert!(queries.outstanding().len() <= OUTSTANDING_MAX);
        let long = format!("http://x.test/{}", "y".repeat(20_000));
        assert!(!queries.query(&peer, &long.into(), (0, &reply)));
    }
}
