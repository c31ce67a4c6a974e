//! The task that receives HTCP datagrams, for all cores.
//!
//! Run by `server` on the main thread; hands TST to `answer`, CLR to `purge` of `hashcache-store`
//! and responses to `queries`.
//!
//! Invariants: datagrams from addresses that are not a peer's are not even parsed. From a peer with
//! a key, only messages signed with that key are accepted. Only peers with the setting for it may
//! remove URLs, at most [`CLEARS_MAX`] a second each. No peer gets more than [`RATE_MAX`] replies a
//! second. An unsigned reply is never longer than the request, because it carries no fields. Memory
//! does not grow with the number of datagrams.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use hashcache::Cache;
use hashcache_base::share::Network;
use hashcache_base::task::spawn;
use hashcache_http::{Scheme, Target, cache_key, octet_text};
use hashcache_peers::htcp::auth::Ends;
use hashcache_peers::htcp::{
    Body, Cleared, DATAGRAM_BYTES_MAX, Detail, Failure, Message, Operation, Response, Specifier,
    datagram, parse,
};
use hashcache_peers::icp::Answer;
use hashcache_upstream::peer::Peer;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::answer::{Answerer, Begun};
use super::udp::{RATE_MAX, Rates};
use crate::client_access::ClientAccess;
use crate::metrics::{ClearResult, HtcpAnswer, HtcpIgnored};
use crate::queries::{Queries, REMEMBERED, check, message};
use crate::settings::Mode;
use crate::worker::Common;

/// Receives until the task is aborted. `is_ending` returns true if clients are no longer accepted.
pub(crate) async fn serve(
    (common, cache): (Arc<Common>, Cache),
    socket: UdpSocket,
    is_ending: impl Fn() -> bool,
) {
    let opened = socket.local_addr();
    let opened = opened.and_then(|at| Ok((at, tokio::net::UdpSocket::from_std(socket)?)));
    let (own, socket) = match opened {
        Ok(opened) => opened,
        Err(error) => return warn!(%error, "HTCP does not work"),
    };
    let mut receiver = Receiver {
        answerer: Answerer::new(Arc::clone(&common), cache.clone()),
        common,
        cache,
        own,
        rates: Rates::new(RATE_MAX),
        clears: Rates::new(CLEARS_MAX),
    };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX + 1].into_boxed_slice();
    let mut forgetting = interval(REMEMBERED / 2);
    forgetting.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            _ = forgetting.tick() => {
                receiver.common.queries.forget_old();
                continue;
            }
        };
        match received {
            Ok((length, from)) => {
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                receiver.take(&buffer[..length], from, is_ending()).await;
            }
            // The system reports an error of an earlier datagram here.
            Err(error) => {
                debug!(%error, "HTCP datagram not received");
                tokio::task::yield_now().await;
            }
        }
    }
}

struct Receiver {
    common: Arc<Common>,
    cache: Cache,
    answerer: Answerer,
    /// Our socket's address, which signatures cover.
    own: SocketAddr,
    rates: Rates,
    clears: Rates,
}

/// Destination and parameters for a reply to a request.
struct Asker {
    queries: Arc<Queries>,
    peer: Arc<Peer>,
    ends: Ends,
    minor: u8,
    transaction: u32,
}

impl Receiver {
    async fn take(&mut self, datagram: &[u8], from: SocketAddr, is_ending: bool) {
        let queries = Arc::clone(&self.common.queries);
        let counts = &queries.htcp_counts;
        let Some(peer) = peer_of(&self.common, from) else {
            return counts.ignored(HtcpIgnored::Stranger);
        };
        let message = match parse(datagram) {
            Ok(message) => message,
            Err(ignored) => {
                debug!(peer = peer.name(), %ignored, "HTCP datagram ignored");
                return counts.ignored(ignored.into());
            }
        };
        let Body::Request {
            operation,
            wants_response,
        } = message.body
        else {
            return queries.heard_htcp(&message, (from, self.own));
        };
        if !self.rates.admits(from.ip(), Instant::now()) {
            return counts.ignored(HtcpIgnored::Rate);
        }
        let asker = Asker {
            queries: Arc::clone(&queries),
            peer,
            ends: Ends {
                source: self.own,
                destination: from,
            },
            minor: message.minor,
            transaction: message.transaction,
        };
        let refusal = self.refusal(&asker, &message, from);
        match operation {
            Operation::Clr { specifier, .. } => {
                let result = match refusal {
                    Some(_) => ClearResult::Refused,
                    None => self.clear(&asker.peer, &specifier, from.ip()),
                };
                counts.cleared(result);
                if wants_response {
                    let failure = refusal.unwrap_or(Failure::Disallowed);
                    asker.report(result, operation.opcode(), failure);
                }
            }
            _ if !wants_response => counts.ignored(HtcpIgnored::Unanswerable),
            operation => match (refusal, operation) {
                (Some(failure), _) => asker.refuse(operation.opcode(), failure),
                (None, Operation::Nop) => asker.reply(&Response::Nop, HtcpAnswer::Nop),
                (None, Operation::Tst(_)) if is_ending => asker.answer(Answer::Miss),
                (None, Operation::Tst(specifier)) => self.test(asker, &specifier).await,
                (None, _) => asker.refuse(operation.opcode(), Failure::NotImplemented),
            },
        }
    }

    /// Returns the reason to refuse a message, independent of the operation.
    fn refusal(&self, asker: &Asker, message: &Message<'_>, from: SocketAddr) -> Option<Failure> {
        let Asker { queries, peer, .. } = asker;
        if let Err(error) = check(peer, message, (from, self.own), queries.now()) {
            debug!(peer = peer.name(), %error, "HTCP message refused");
            return Some(error.failure());
        }
        let live = self.common.live();
        if ClientAccess::new(from.ip(), &live).refused(&live).is_some() {
            // Requests of this peer would be refused.
            debug!(
                peer = peer.name(),
                "HTCP message of a peer that is no client"
            );
            return Some(Failure::Disallowed);
        }
        None
    }

    async fn test(&self, asker: Asker, specifier: &Specifier<'_>) {
        let is_get = matches!(specifier.method, b"GET" | b"HEAD");
        let Some(fields) = fields(specifier.request_fields).filter(|_| is_get) else {
            return asker.answer(Answer::Miss);
        };
        let from = asker.ends.destination.ip();
        // Squid sends no fields, whatever fields the request has.
        let fields = (!fields.is_empty()).then_some(fields);
        match self.answerer.begin((from, specifier.uri), fields).await {
            Begun::Answer(answer) => asker.answer(answer),
            Begun::Reading(reading) => {
                spawn(async move { asker.answer(reading.await) });
            }
        }
    }

    /// Removes a CLR's URL, if the peer may do so: at once, and durably within a second.
    fn clear(&mut self, peer: &Peer, specifier: &Specifier<'_>, from: IpAddr) -> ClearResult {
        let htcp = peer.settings.htcp.as_ref();
        if !htcp.is_some_and(|htcp| htcp.obeys_clear) {
            return ClearResult::Refused;
        }
        if !self.clears.admits(from, Instant::now()) {
            return ClearResult::Rate;
        }
        let target = Target::parse_url(&octet_text(specifier.uri)).ok();
        // Stored https URLs are confidential, so an unencrypted reply must not reveal them.
        let is_open =
            |target: &Target| target.scheme == Scheme::Http && self.common.mode == Mode::Forward;
        let Some(target) = target.filter(is_open) else {
            return ClearResult::Refused;
        };
        let key = cache_key(self.common.space(), &target);
        let was_stored = key.is_some_and(|key| self.cache.contains_hint(&key));
        // Also if it was not stored, so that no new request joins a fetch that is running now.
        let client = Network::containing(from);
        if !self.common.purger.invalidate_for_peer(client, target) {
            return ClearResult::Rate;
        }
        if was_stored {
            ClearResult::Gone
        } else {
            ClearResult::Absent
        }
    }
}

impl Asker {
    /// Answers a TST.
    fn answer(&self, answer: Answer) {
        match answer {
            Answer::Hit => {
                let response = Response::Present(Detail::default());
                self.reply(&response, HtcpAnswer::Hit);
            }
            Answer::Miss | Answer::MissNoFetch | Answer::Err | Answer::Denied => {
                let response = Response::Absent { cache_fields: b"" };
                self.reply(&response, HtcpAnswer::Miss);
            }
        }
    }

    /// Answers a CLR.
    fn report(&self, result: ClearResult, opcode: u8, failure: Failure) {
        let cleared = match result {
            ClearResult::Gone => Cleared::Gone,
            ClearResult::Absent => Cleared::Absent,
            ClearResult::Kept => Cleared::Kept,
            ClearResult::Refused => return self.refuse(opcode, failure),
            // Without a reply the peer tries again.
            ClearResult::Rate | ClearResult::NoReply | ClearResult::Unsent => return,
        };
        self.reply(&Response::Clr(cleared), HtcpAnswer::Clear);
    }

    /// Refuses a message. A reply to a message with a failed authentication is not signed either:
    /// the address may be forged, and a signature would make the reply longer than the request.
    fn refuse(&self, opcode: u8, failure: Failure) {
        let body = Body::Response(Response::Refused { opcode, failure });
        let numbers = (self.minor, self.transaction);
        match failure {
            Failure::AuthenticationRequired | Failure::AuthenticationUnsatisfactory => {
                let unsigned = datagram(numbers.0, numbers.1, &body, None);
                self.send(unsigned.ok(), HtcpAnswer::Unauthenticated);
            }
            Failure::NotImplemented => self.send(self.signed(&body), HtcpAnswer::NotImplemented),
            _ => self.send(self.signed(&body), HtcpAnswer::Disallowed),
        }
    }

    fn reply(&self, response: &Response<'_>, answer: HtcpAnswer) {
        self.send(self.signed(&Body::Response(*response)), answer);
    }

    /// Returns a datagram, signed if the peer has a key.
    fn signed(&self, body: &Body<'_>) -> Option<Vec<u8>> {
        let numbers = (self.minor, self.transaction);
        message(&self.peer, numbers, body, self.ends, self.queries.now()).ok()
    }

    fn send(&self, datagram: Option<Vec<u8>>, answer: HtcpAnswer) {
        let to = self.ends.destination;
        if datagram.is_some_and(|datagram| self.queries.htcp.send(&datagram, to)) {
            self.queries.htcp_counts.sent(answer);
        }
    }
}

/// Returns the peer that sent a datagram. If several peers share an address, the port decides.
fn peer_of(common: &Common, from: SocketAddr) -> Option<Arc<Peer>> {
    let live = common.live();
    let port = |peer: &Arc<Peer>| peer.settings.htcp.as_ref().map(|htcp| htcp.port);
    let speaks = |peer: &&Arc<Peer>| port(peer).is_some() && peer.has_address(from.ip());
    let mut peers = live.routes.peers().iter().filter(speaks);
    let first = peers.next()?;
    let mut all = std::iter::once(first).chain(peers);
    let same = all.find(|peer| port(peer) == Some(from.port()));
    Some(Arc::clone(same.unwrap_or(first)))
}

/// Parses a TST's request fields; `None` if they are malformed.
fn fields(lines: &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    if lines.is_empty() {
        return Some(fields);
    }
    let lines = [lines, b"\r\n"].concat();
    let mut parsed = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let Ok(httparse::Status::Complete((length, parsed))) =
        httparse::parse_headers(&lines, &mut parsed)
    else {
        return None;
    };
    for field in parsed {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        fields.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    (length == lines.len()).then_some(fields)
}

/// Maximum CLR requests from one peer that are obeyed in a second.
const CLEARS_MAX: u32 = 100;
/// Maximum request fields in a TST.
const FIELDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_fields_are_lines_or_the_query_is_a_miss() {
        assert_eq!(fields(b"").unwrap().len(), 0);
        let two = fields(b"Accept: a/b\r\nAccept-Language: de\r\n").unwrap();
        assert_eq!((two["accept"].as_bytes(), two.len()), (&b"a/b"[..], 2));
        let many = "a: b\r\n".repeat(FIELDS_MAX + 1);
        let wrong = ["no field\r\n", "a: b\r\n\r\nc: d\r\n", "\0: x\r\n", &many];
        for wrong in wrong {
            assert!(fields(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }
}
