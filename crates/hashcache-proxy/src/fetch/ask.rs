//! Sends a request along the hops of a route, and returns the first response that a hop gives.
//!
//! Called for every request to upstream: by `fetch`, by `range_fetch`, by `pump` for the rest of a
//! broken transfer, and by `request` for requests with responses that are not stored.
//!
//! A sibling without the response costs a failed hop and nothing else: the status of its answer, in
//! particular a 504, is neither passed on nor stored.
//!
//! Invariants: a request that may have had an effect is sent to one hop only: further hops are
//! tried for safe methods without content, and for requests if no byte was sent. A client never
//! gets a peer's 407, because the credentials are the proxy's own.
//! Cost: with one hop, one call; with several, a copy of the fields for each attempt except the
//! last.

use std::sync::Arc;
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_http::{PROXY_STATUS, Vary, via_names};
use hashcache_site::health::Outcome;
use hashcache_site::live::{Busy, LiveSite, SiteRequest};
use hashcache_upstream::peer::Peer;
use hashcache_upstream::{
    RequestBody, SendFailure, SendOptions, Unanswered, UpstreamExchange, copy_of,
};
use http::header::{CACHE_CONTROL, CACHE_STATUS, COOKIE, PROXY_AUTHENTICATE, REFERER};
use http::{HeaderMap, HeaderName, Request, StatusCode};
use tokio::time::{Instant, timeout};

use super::patience::{Patience, while_in_service};
use crate::route::{Hop, NextHop, Route};
use crate::worker::Worker;

/// A response, and the hop that gave it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) exchange: UpstreamExchange,
    pub(crate) next_hop: NextHop,
    /// Number of the hop in the route.
    pub(crate) hop: usize,
}

impl Answered {
    /// Returns true if the response is from the store of another cache of this site, so that it did
    /// not use the line: from a sibling, or from a member that marks it as a hit.
    pub(crate) fn is_stored_nearby(&self) -> bool {
        if !self.next_hop.is_member() {
            return self.next_hop.is_sibling();
        }
        let name = self.next_hop.peer.as_ref().map(|peer| peer.name());
        name.is_some_and(|name| is_hit_of(name, self.exchange.response.headers()))
    }
}

/// Returns true if the last cache in Cache-Status is `name`, and it marks the response as a hit.
fn is_hit_of(name: &str, fields: &HeaderMap) -> bool {
    let mut lines = fields.get_all(CACHE_STATUS).iter();
    let last = lines.next_back().and_then(|line| line.to_str().ok());
    let last = last
        .and_then(|line| line.rsplit(',').next())
        .unwrap_or_default();
    let mut said = last.split(';').map(str::trim);
    let is_its_own = said
        .next()
        .is_some_and(|by| by.trim_matches('"').eq_ignore_ascii_case(name));
    is_its_own && said.any(|said| said == "hit")
}

/// No hop gave a response.
#[derive(Clone, Debug)]
pub(crate) struct AskFailure {
    pub(crate) failure: Failure,
    /// The last hop that was tried.
    pub(crate) next_hop: Option<NextHop>,
    /// Bytes received from all hops.
    pub(crate) origin_bytes: u64,
}

impl From<Failure> for AskFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            next_hop: None,
            origin_bytes: 0,
        }
    }
}

/// Sends `request` by `route`.
pub(crate) async fn ask(
    worker: &Worker,
    route: &Route,
    request: Request<RequestBody>,
    options: &SendOptions,
) -> Result<Box<Answered>, AskFailure> {
    let mut hops = route.hops().enumerate().peekable();
    // A login belongs to the hop at which it started.
    let is_repeatable =
        request.body().is_empty() && request.method().is_safe() && !options.pinning.is_login();
    let site = route.site();
    // A member gets other fields than an origin.
    let has_member = route.hops().any(|hop| hop.member().is_some());
    let received = (site.is_some() && has_member).then(|| request.headers().clone());
    let mut request = request;
    if let (Some(site), None) = (site, &received) {
        site.prepare(request.headers_mut());
    }
    let path = site.map(|_| request.uri().path().to_owned());
    let mut next = Some(request);
    let mut origins = 0;
    let mut asking = Asking::default();
    let mut patience = Patience::new(&worker.limits);
    let mut before: Option<&Hop> = None;
    while let (Some((number, hop)), Some(mut request)) = (hops.next(), next.take()) {
        let is_last = hops.peek().is_none();
        if let Err(failure) = worker.check_line(hop, options.client.as_ref()) {
            asking.failed = Some(failure.into());
            next = Some(request);
            continue;
        }
        let others = Others::after(route, number);
        if before.is_some() && !hop.is_up() && others.is_any_up {
            // The hop went down while another hop was tried.
            next = Some(request);
            continue;
        }
        if let (Some(site), Some(received)) = (site, &received) {
            *request.headers_mut() = received.clone();
            match hop.member() {
                Some(_) => site.prepare_for_member(request.headers_mut()),
                None => site.prepare(request.headers_mut()),
            }
        }
        let origin_of = site.filter(|_| hop.member().is_none());
        if let Some(site) = origin_of {
            let is_retry = origins > 0;
            if is_retry && before.is_some_and(|before| !site.site.may_retry(&before.endpoint)) {
                break;
            }
            origins += 1;
            site.set_host(&hop.endpoint, request.headers_mut());
        }
        before = Some(hop);
        let busy = origin_of.and_then(|site| site.begin(&hop.endpoint));
        // A sibling does not get these fields, because it may have the response to a request
        // without them.
        let withheld =
            [COOKIE, REFERER].map(|name| request.headers().contains_key(&name).then_some(name));
        let copy = (is_repeatable && !is_last).then(|| copy_of(&request));
        let mut options = options_for(hop, &others, options);
        // A kept response has a permit; waiting for another permit could block both.
        options.permit_time = asking.kept.as_ref().map(|_| Duration::ZERO);
        let others = Some(&others).filter(|others| copy.is_some() && others.is_any_up);
        let upstream = worker.upstream();
        // Boxed, because otherwise every transfer would keep room for this future until it is over.
        let sending = Box::pin(upstream.try_send(&hop.endpoint, request, &options));
        let mut sent = wait_for(
            sending,
            hop,
            others,
            site.map(|site| &**site),
            &mut patience,
        )
        .await;
        if let Some(site) = site {
            let path = path.as_deref().unwrap_or_default();
            note_of_site(worker, site, path, hop, busy, &mut sent);
        }
        note_sibling(worker, hop, &sent, &withheld);
        match asking.judge(hop, (number, site.is_some()), sent, &withheld) {
            Judged::Answer(answered) => return Ok(answered),
            Judged::Final => break,
            Judged::Failed(unsent) => next = copy.or(unsent.map(|request| *request)),
        }
    }
    asking.end()
}

/// The options for a request to this hop.
fn options_for(hop: &Hop, others: &Others, options: &SendOptions) -> SendOptions {
    SendOptions {
        absolute: hop.absolute.clone(),
        connect_time: match hop.peer() {
            Some(sibling) if hop.wants_stored() => Some(sibling.connect_limit()),
            _ if hop.member().is_some() => Some(MEMBER_CONNECT),
            _ => others.connect_time(hop),
        },
        ..options.clone()
    }
}

/// Waits for the response of `hop`: a short time for a sibling; for another hop, as long as it is
/// expected to answer if there are `others` that could answer instead.
async fn wait_for(
    sending: impl Future<Output = Result<UpstreamExchange, Unanswered>>,
    hop: &Hop,
    others: Option<&Others>,
    site: Option<&SiteRequest>,
    patience: &mut Patience,
) -> Result<UpstreamExchange, Unanswered> {
    let late = |failure: Failure| Err(SendFailure::from(failure).into());
    let waited = match (hop.peer(), others, site) {
        (Some(sibling), _, _) if hop.wants_stored() => {
            let limit = sibling.connect_limit() + sibling.head_limit();
            let waited = timeout(limit, sending).await;
            return waited.unwrap_or_else(|_| late(Failure::FirstByteTimeout(limit)));
        }
        (Some(peer), Some(others), _) => patience.wait(peer, &others.peers, sending).await,
        (None, Some(_), Some(site)) => {
            let is_in_service = || site.site.is_in_service(&hop.endpoint);
            while_in_service(sending, Duration::MAX, || {}, is_in_service).await
        }
        _ => return sending.await,
    };
    waited.unwrap_or_else(late)
}

/// Records the outcome of a site's hop, and marks the response. A member has already marked it,
/// except for the cookies.
fn note_of_site(
    worker: &Worker,
    site: &SiteRequest,
    path: &str,
    hop: &Hop,
    busy: Option<Busy>,
    sent: &mut Result<UpstreamExchange, Unanswered>,
) {
    if hop.member().is_some() {
        if let Ok(exchange) = sent {
            let targets = &worker.common.live().store.targets;
            site.mark_cookies((path, &mut exchange.response), targets);
        }
        return;
    }
    let outcome = match sent {
        Ok(exchange) => {
            let outcome = Outcome::from_status(exchange.response.status());
            if let Some(busy) = &busy {
                busy.note_response();
            }
            let targets = &worker.common.live().store.targets;
            site.mark(&hop.endpoint, (path, &mut exchange.response), targets);
            exchange.response.body_mut().hold(busy);
            Some(outcome)
        }
        Err(unanswered) => LiveSite::outcome_of(&unanswered.failed.failure),
    };
    if let Some(outcome) = outcome {
        site.site.note(&hop.endpoint, outcome);
    }
}

/// Records whether a sibling had the stored response that it was expected to have.
fn note_sibling(
    worker: &Worker,
    hop: &Hop,
    sent: &Result<UpstreamExchange, Unanswered>,
    withheld: &Withheld,
) {
    let Some(sibling) = hop.peer().filter(|_| hop.wants_stored()) else {
        return;
    };
    let had_it = is_usable(sent, withheld);
    if !had_it {
        worker.metrics.false_hit();
    }
    // A sibling that does not answer gives no information about the digest.
    if hop.is_by_digest() && sent.is_ok() {
        sibling.learned.note_result(had_it, Instant::now());
    }
}

/// Results of the hops tried so far.
#[derive(Default)]
struct Asking {
    /// An error from a peer, or from an origin of a site: the response if no other hop gives one.
    kept: Option<Box<Answered>>,
    failed: Option<AskFailure>,
    origin_bytes: u64,
}

/// The result of one hop.
enum Judged {
    Answer(Box<Answered>),
    /// The failure forbids further hops.
    Final,
    /// The request, if no byte of it was sent.
    Failed(Option<Box<Request<RequestBody>>>),
}

impl Asking {
    fn judge(
        &mut self,
        hop: &Hop,
        (number, of_site): (usize, bool),
        sent: Result<UpstreamExchange, Unanswered>,
        withheld: &Withheld,
    ) -> Judged {
        let asked_peer = hop.absolute.as_ref().map(|form| &form.peer);
        let exchange = match sent {
            Ok(exchange) => exchange,
            Err(Unanswered { failed, unsent }) => {
                if let Some(peer) = asked_peer {
                    peer.note_failure(&failed.failure);
                }
                let is_final = is_final(&failed.failure);
                self.note(hop, failed);
                return if is_final {
                    Judged::Final
                } else {
                    Judged::Failed(unsent)
                };
            }
        };
        let status = exchange.response.status();
        let is_usable = match hop.member() {
            Some(member) => !is_refusal(member, status, exchange.response.headers()),
            None => !hop.wants_stored() || gives_response(&exchange, withheld),
        };
        let mut answered = Box::new(Answered {
            next_hop: hop.at(Some(exchange.peer)),
            exchange,
            hop: number,
        });
        let Some(peer) = asked_peer else {
            if of_site && is_gateway_error(status) {
                self.kept.get_or_insert(answered);
                return Judged::Failed(None);
            }
            return Judged::Answer(answered);
        };
        peer.note_success();
        if !is_usable {
            let failed = SendFailure {
                failure: Failure::PeerStatus {
                    status: status.as_u16(),
                },
                peer: Some(answered.exchange.peer),
                origin_bytes: answered.exchange.response.body().origin_bytes(),
            };
            self.note(hop, failed);
            return Judged::Failed(None);
        }
        // These fields are between the peer and this proxy only (RFC 9110, section 11.7).
        let fields = answered.exchange.response.headers_mut();
        fields.remove(PROXY_AUTHENTICATE);
        fields.remove(HeaderName::from_static("proxy-authentication-info"));
        match status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                tracing::warn!(
                    peer = peer.name(),
                    "the peer does not accept our credentials"
                );
                let bytes = answered.exchange.response.body().origin_bytes();
                let failed = SendFailure {
                    failure: Failure::PeerStatus { status: 407 },
                    peer: Some(answered.exchange.peer),
                    origin_bytes: bytes,
                };
                self.note(hop, failed);
                Judged::Failed(None)
            }
            // The peer could not reach the origin, perhaps because the peer's line is down. A
            // member that passes on an error of the origin has already tried every way.
            status if is_gateway_error(status) && !is_of_origin(hop, fields) => {
                self.kept.get_or_insert(answered);
                Judged::Failed(None)
            }
            _ => Judged::Answer(answered),
        }
    }

    fn note(&mut self, hop: &Hop, failed: SendFailure) {
        self.origin_bytes += failed.origin_bytes;
        tracing::debug!(
            peer = hop.peer().map(|peer| peer.name()),
            failure = %failed.failure,
            "next hop failed"
        );
        self.failed = Some(AskFailure {
            failure: failed.failure,
            next_hop: Some(hop.at(failed.peer)),
            origin_bytes: self.origin_bytes,
        });
    }

    fn end(self) -> Result<Box<Answered>, AskFailure> {
        match (self.kept, self.failed) {
            (Some(kept), _) => Ok(kept),
            (None, Some(failed)) => Err(failed),
            (None, None) => Err(Failure::NoRoute.into()),
        }
    }
}

/// Returns true if a member has passed on an error of the origin. Then the last name in Via is the
/// name of the member. Errors of the member itself have Proxy-Status; a response from another
/// server at that address has neither.
fn is_of_origin(hop: &Hop, fields: &HeaderMap) -> bool {
    let Some(member) = hop.member() else {
        return false;
    };
    let last = via_names(fields).last();
    let has_passed_on =
        last.is_some_and(|name| name.eq_ignore_ascii_case(member.name().as_bytes()));
    has_passed_on && !fields.contains_key(PROXY_STATUS)
}

/// Returns true if the server cannot answer now, but another server might.
fn is_gateway_error(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The hops after the current hop.
pub(crate) struct Others {
    /// The peers among the hops.
    pub(crate) peers: Vec<Arc<Peer>>,
    /// At least one hop is expected to answer.
    pub(crate) is_any_up: bool,
    is_any: bool,
}

impl Others {
    /// The hops after hop `number`.
    pub(crate) fn after(route: &Route, number: usize) -> Self {
        let hops = || route.hops().skip(number + 1);
        Self {
            peers: hops().filter_map(Hop::peer).cloned().collect(),
            is_any_up: match route.site() {
                Some(site) => hops().any(|hop| site.site.is_in_service(&hop.endpoint)),
                None => hops().any(Hop::is_up),
            },
            is_any: hops().next().is_some(),
        }
    }

    /// Connect timeout for `hop`, if it is shorter than usual. The last way that is expected to
    /// work has the usual time.
    pub(crate) fn connect_time(&self, hop: &Hop) -> Option<Duration> {
        let is_hurried = match hop.peer() {
            Some(_) => self.is_any,
            None => self.is_any_up,
        };
        is_hurried.then_some(HURRIED_CONNECT)
    }
}

/// Returns true if a failure forbids further hops: the destination is not allowed, or a peer
/// refused the tunnel by local rules, which must not be bypassed.
pub(crate) fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::DestinationDenied { .. } => true,
        Failure::PeerStatus { status } => !matches!(status, 407 | 502..=504),
        _ => false,
    }
}

/// Returns true if a member does not answer for this URL: the configuration differs, or it takes
/// this box for a client because it does not know the address.
fn is_refusal(member: &Peer, status: StatusCode, fields: &HeaderMap) -> bool {
    match status {
        StatusCode::MISDIRECTED_REQUEST | StatusCode::LOOP_DETECTED => true,
        StatusCode::FORBIDDEN => is_denied_by(member, fields),
        _ => false,
    }
}

/// Returns true if the member itself refused the request. A response that it passes on from an
/// origin has the member's name in Via, whatever the origin writes into Proxy-Status.
fn is_denied_by(member: &Peer, fields: &HeaderMap) -> bool {
    let name = member.name().as_bytes();
    if via_names(fields).any(|via| via.eq_ignore_ascii_case(name)) {
        return false;
    }
    let said = fields.get_all(PROXY_STATUS).iter();
    let mut said = said.filter_map(|value| value.to_str().ok()?.split_once(';'));
    said.any(|(name, error)| {
        let is_its_own = name.trim_matches('"').eq_ignore_ascii_case(member.name());
        is_its_own && error.contains("error=http_request_denied")
    })
}

/// Names of the client's request fields that a sibling does not get.
type Withheld = [Option<HeaderName>; 2];

/// Returns true if a sibling gave the response that it announced.
fn is_usable(sent: &Result<UpstreamExchange, Unanswered>, withheld: &Withheld) -> bool {
    let exchange = sent.as_ref();
    exchange.is_ok_and(|exchange| gives_response(exchange, withheld))
}

/// Returns true if this is a stored response that fits the client's own request: a response that
/// varies by a field that the sibling did not get may be for other clients.
fn gives_response(exchange: &UpstreamExchange, withheld: &Withheld) -> bool {
    let status = exchange.response.status();
    let fields = exchange.response.headers();
    let varies = match Vary::parse(fields) {
        Vary::Nothing => false,
        // The request to a sibling has our own Cache-Control (`only-if-cached`).
        Vary::Fields(names) => {
            names.contains(&CACHE_CONTROL)
                || withheld.iter().flatten().any(|name| names.contains(name))
        }
        Vary::Anything | Vary::TooWide => true,
    };
    let is_stored =
        matches!(status.as_u16(), 200 | 203 | 206 | 404 | 410) || status.is_redirection();
    is_stored && !varies
}

/// Connect timeout while another hop is left.
const HURRIED_CONNECT: Duration = Duration::from_secs(3);
/// Connect timeout for a member, which is near.
const MEMBER_CONNECT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_member_calls_a_response_a_hit_only_in_its_own_name() {
        let is_hit = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| HeaderValue::from_static(line));
            let fields = lines.map(|line| (CACHE_STATUS, line)).collect();
            is_hit_of("box-b", &fields)
        };
        assert!(is_hit(&["box-b; hit; ttl=376"]));
        assert!(is_hit(&["origin; fwd=miss", "Box-B; hit"]));
        assert!(is_hit(&["origin; fwd=miss, \"box-b\"; hit"]));
        for lines in [
            &[][..],
            &["box-b; fwd=uri-miss; stored"],
            &["box-b; fwd=miss; detail=hit"],
            &["box-a; hit"],
            // From the origin.
            &["box-b; hit", "box-b; fwd=uri-miss"],
            &["box-b; hit, box-a; fwd=uri-miss"],
        ] {
            assert!(!is_hit(lines), "{lines:?}");
        }
    }
}
