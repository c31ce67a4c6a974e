//! A request and the response head, on a connection.
//!
//! Called by `Upstream::try_send`, and for it by `send_pinned` and `send_linked`, which choose
//! connections and decide about retries. The exchange waits for four events at once: the head,
//! interim responses, the second after which held content is sent anyway, and the timeout.
//!
//! Invariant: every wait is finite; an origin that extends a request with interim responses may
//! send `INTERIM_MAX` of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_http::{Related, binds_connection, continues_login, strip_interim, take_frames};
use hashcache_wire::malformed_field;
use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode, Uri, Version, response};
use tokio::time::{Instant, sleep_until};

use super::endpoint::Endpoint;
use super::flood::INTERIM_MAX;
use super::framing::{self, Framing, JudgedHead, content_length};
use super::http1::{Http1Content, SentRequest, Switched};
use super::http2::{self, Sharing};
use super::incoming::WireContent;
use super::odd_target::OddTarget;
use super::permits::Permit;
use super::pinned::{ConnHome, Pinning};
use super::pool::{RequestSender, UpstreamConn};
use super::refused::{NotSent, Refused, SendError};
use super::request_body::{BodyProgress, RequestBody};
use super::response_body::{BusyConn, ResponseBody};
use super::{SendFailure, SendOptions, Upgrade, Upstream, UpstreamExchange, is_repeatable};

/// An exchange without a response, with the data for a retry.
pub(super) struct FailedExchange {
    pub(super) failed: SendFailure,
    /// The request, if no byte of it was sent.
    pub(super) unsent: Option<Box<Request<RequestBody>>>,
    /// How the origin treated the request.
    pub(super) refused: Refused,
    /// True if the connection takes no more requests.
    pub(super) connection_broke: bool,
    pub(super) permit: Permit,
}

impl Upstream {
    /// Sends `request` on `conn` and waits for the response head.
    pub(super) async fn exchange(
        &self,
        conn: UpstreamConn,
        to: &Endpoint,
        request: Request<RequestBody>,
        permit: Permit,
        options: &SendOptions,
    ) -> Result<UpstreamExchange, FailedExchange> {
        let mut unused = None;
        let exchange = self.exchange_keeping(conn, to, request, (permit, &mut unused), options);
        exchange.await
    }

    /// As [`Self::exchange`]; afterwards `sent_request` is the request if it was sent in HTTP/1.1
    /// and has no content.
    pub(super) async fn exchange_keeping(
        &self,
        mut conn: UpstreamConn,
        to: &Endpoint,
        mut request: Request<RequestBody>,
        (permit, sent_request): (Permit, &mut Option<Request<RequestBody>>),
        options: &SendOptions,
    ) -> Result<UpstreamExchange, FailedExchange> {
        let method = request.method().clone();
        let may_upgrade = request.headers().contains_key(header::UPGRADE);
        let progress = request.body().progress();
        progress.begin();
        if !conn.is_http_2() {
            progress.note_opened();
        }
        if request.headers().contains_key(header::EXPECT) {
            progress.hold();
        }
        if conn.is_http_1()
            && let Some(length) = content_length(request.headers())
        {
            progress.announce(length);
        }
        let interim = Interim::default();
        let (received_before, begun) = (conn.meter.received(), Instant::now());
        let sent_before = conn.meter.sent();
        let is_reused = conn.is_reused();
        let response = match &mut conn.sender {
            RequestSender::Http1(http1)
                if is_reused && !is_repeatable(&request) && http1.has_ended() =>
            {
                Err(NoHead {
                    unsent: Some(Box::new(request)),
                    ..Failure::ConnectionTerminated.into()
                })
            }
            RequestSender::Http1(http1) => {
                let target = odd_target(&mut request, to, options);
                let http1 = http1.clone();
                let client = options.client.as_ref();
                let request = if request.body().is_empty() {
                    SentRequest::Kept(sent_request.insert(request))
                } else {
                    SentRequest::Given(Box::new(request))
                };
                let sending = async {
                    let push = |status, fields| interim.push(status, fields);
                    let sent = http1.send(request, target.as_deref(), client, push).await;
                    Ok(sent?.map(|()| Http1Content::none().into()))
                };
                let timeout = HeadTimeout::new(&self.limits, &conn, &progress, begun);
                head(sending, &interim, timeout, options).await
            }
            RequestSender::Linked(linked) => {
                progress.let_go();
                let sent = linked.send(request);
                let sending = async move { Ok(sent.await?.map(WireContent::from)) };
                // On the heap: otherwise requests in HTTP/1.1 would keep room for this future.
                let timeout = HeadTimeout::new(&self.limits, &conn, &progress, begun);
                Box::pin(head(sending, &interim, timeout, options)).await
            }
            // h2 would write the placeholder `/`.
            RequestSender::Http2(_) if OddTarget::from_request(&request).is_some() => {
                Err(http2::NEEDED.into())
            }
            RequestSender::Http2(stream) => {
                if progress.is_held() && self.http2_conns.sends_no_continue(to) {
                    request.headers_mut().remove(header::EXPECT);
                    progress.let_go();
                }
                if !request.body().is_empty() {
                    stream.begin_upload(&progress);
                }
                http2::convert(&mut request, to);
                let is_shared = stream.conn().sharing() == Sharing::Shared;
                let client = options.client.as_ref().filter(|_| is_shared);
                let given_up = client.map(|client| {
                    let network = Some(client.network());
                    self.http2_conns.given_up_guard(to, network)
                });
                let sent = stream.send(request, given_up, |response| {
                    let (head, ()) = response.into_parts();
                    interim.push(head.status, head.headers);
                });
                let sending = async move { Ok(sent.await?.map(WireContent::from)) };
                let timeout = HeadTimeout::new(&self.limits, &conn, &progress, begun);
                Box::pin(head(sending, &interim, timeout, options)).await
            }
        };
        if conn.is_http_2() {
            // A 100 after the second is only late: the next 100 may be in time.
            if progress.has_continued() {
                self.http2_conns.note_continue(to);
            } else if progress.was_held_in_vain() {
                self.http2_conns.note_no_continue(to, permit.client());
            }
        }
        let accepted = response.and_then(|response| {
            let asked = (&method, may_upgrade);
            self.accept(response, &conn, to, asked, options)
        });
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(mut no_head) => {
                let is_unwritten = conn.is_http_1() && conn.meter.sent() == sent_before;
                if is_unwritten && no_head.failure == Failure::ConnectionTerminated {
                    no_head.refused = Refused::Unseen;
                }
                let received = conn.meter.received() - received_before;
                return Err(no_head.into_failed(&conn, received, permit));
            }
        };
        let reused = match &conn.sender {
            RequestSender::Http1(_) => received_before > 0,
            RequestSender::Http2(stream) => stream.answered(),
            RequestSender::Linked(_) => true,
        };
        let head = &accepted.head;
        conn.note_content(head_size(&head.headers));
        let head_time = begun.elapsed();
        if head.status.as_u16() >= 400 && !progress.is_ended() {
            // A client stops sending content after an error response (RFC 9112 9.3). The origin may
            // close with unread content, and the resulting RST would drop the remaining response.
            progress.hold();
        }
        let peer = conn.peer;
        let switched = match &conn.sender {
            RequestSender::Http1(http1) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                Some(Switched::new(http1.clone()))
            }
            _ => None,
        };
        let (body, upgrade) = if let Some(stream) = switched {
            let body = ResponseBody::none(accepted.incoming);
            (body, Some(Upgrade { stream, permit }))
        } else {
            let limit = self.limits.between_bytes_time + conn.turn_time();
            let is_framed = accepted.is_framed && matches!(conn.sender, RequestSender::Linked(_));
            let busy = BusyConn {
                conn,
                to: to.clone(),
                pool: Rc::clone(&self.pool),
                home: accepted.home,
                permit,
                received_before,
                progress,
                trusted: accepted.judged.trusted,
            };
            let framing = accepted.judged.framing;
            let body = ResponseBody::new(accepted.incoming, framing, busy, limit);
            (body.framed(is_framed), None)
        };
        Ok(UpstreamExchange {
            response: Response::from_parts(accepted.head, body),
            peer,
            reused,
            head_time,
            upgrade,
        })
    }

    /// Checks a response head from `conn`, and finds the content framing.
    fn accept(
        &self,
        response: Response<WireContent>,
        conn: &UpstreamConn,
        to: &Endpoint,
        (method, may_upgrade): (&Method, bool),
        options: &SendOptions,
    ) -> Result<Accepted, NoHead> {
        let malformed = |reason| NoHead::from(Failure::ResponseMalformed(reason));
        let (mut head, incoming) = response.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(reason) = refused_switch(conn, may_upgrade)
        {
            return Err(malformed(reason));
        }
        let binds = binds_connection(&head.headers);
        let continues = continues_login(head.status, &head.headers);
        let is_framed = take_frames(&mut head.headers);
        if let Some(related) = Related::take(&mut head.headers) {
            head.extensions.insert(related);
        }
        let is_http_2 = matches!(conn.sender, RequestSender::Http2(_));
        if is_http_2 && http2::head_bytes(&head.headers) > self.limits.head_bytes {
            return Err(malformed("head is too large"));
        }
        if head.version == Version::HTTP_2
            && let Some(reason) = malformed_field(&head.headers)
        {
            return Err(malformed(reason));
        }
        let mut judged = framing::judge(&mut head, method)?;
        if head.version == Version::HTTP_2 && judged.framing == Framing::UntilClose {
            // In HTTP/2 the stream marks the end.
            judged.framing = Framing::Chunked;
        }
        let home = home(&options.pinning, binds);
        if let Some(turn) = options.pinning.turn() {
            turn.answered(continues);
            if matches!(conn.sender, RequestSender::Linked(_)) {
                turn.keep_linked(to.clone());
            }
        }
        let incoming = match &conn.sender {
            RequestSender::Http1(http1) => Http1Content::new(http1.clone(), judged.framing).into(),
            RequestSender::Http2(_) | RequestSender::Linked(_) => incoming,
        };
        Ok(Accepted {
            head,
            incoming,
            judged,
            home,
            is_framed,
        })
    }
}

/// A response head that fulfils the HTTP requirements.
struct Accepted {
    head: response::Parts,
    incoming: WireContent,
    judged: JudgedHead,
    /// Where the connection is kept after the content, if it is kept.
    home: ConnHome,
    /// True if a parent sends the content in link frames.
    is_framed: bool,
}

/// Takes a request target that `Uri` cannot hold out of the request. The caller writes the target
/// as it is; a gateway gets it encoded.
fn odd_target(
    request: &mut Request<RequestBody>,
    to: &Endpoint,
    options: &SendOptions,
) -> Option<Bytes> {
    let odd = OddTarget::from_request(request).cloned()?;
    if to.scheme.needs_gateway() {
        *request.uri_mut() = odd.encoded();
        return None;
    }
    *request.uri_mut() = Uri::from_static("/");
    let origin = options.absolute.as_ref().map(|form| &form.origin);
    Some(odd.written(origin))
}

type SendResult = Result<Response<WireContent>, NotSent>;

/// Returns the reason why a connection must not switch to another protocol now; `None`: it may
/// switch.
fn refused_switch(conn: &UpstreamConn, may_upgrade: bool) -> Option<&'static str> {
    match &conn.sender {
        // A client in HTTP/1.1 would take the following bytes for another protocol (RFC 9113,
        // section 8.6).
        RequestSender::Http2(_) | RequestSender::Linked(_) => Some("protocol switch in HTTP/2"),
        RequestSender::Http1(_) if !may_upgrade => Some("protocol switch that was not requested"),
        // The rest of the request would be taken for the other protocol.
        RequestSender::Http1(http1) if !http1.is_sent() => {
            Some("protocol switch before the end of the request")
        }
        RequestSender::Http1(_) => None,
    }
}

/// Decides where the connection is kept after a response, if it is kept; `binds`: the response
/// shows that the connection belongs to a single client.
fn home(pinning: &Pinning, binds: bool) -> ConnHome {
    match pinning {
        Pinning::Turn(turn) => ConnHome::Turn(Rc::clone(turn)),
        Pinning::Offer(offer) if binds => ConnHome::Offer(Rc::clone(offer)),
        Pinning::None if binds => ConnHome::Nowhere,
        Pinning::Alone => ConnHome::Nowhere,
        Pinning::None | Pinning::Offer(_) => ConnHome::Pool,
    }
}

/// An exchange that failed without a head.
struct NoHead {
    failure: Failure,
    unsent: Option<Box<Request<RequestBody>>>,
    refused: Refused,
    /// True if the connection failed, and not only a single stream.
    is_of_connection: bool,
}

impl NoHead {
    fn new(NotSent { error, unsent }: NotSent, timeout: &HeadTimeout<'_>) -> Self {
        let unsent = unsent.map(Box::new);
        if let RequestSender::Http2(stream) = &timeout.conn.sender
            && error.is_protocol_error()
        {
            stream.note_error();
        }
        // On a link, hyper drops a request that waited for a free stream when the connection
        // closes: no frame was sent. hyper reports a user error in this case, as it does if the
        // content breaks off.
        let is_user = matches!(&error, SendError::Linked(error) if error.is_user());
        if is_user && !timeout.progress.has_failed() {
            return Self {
                failure: Failure::ConnectionTerminated,
                refused: Refused::Unseen,
                is_of_connection: true,
                unsent,
            };
        }
        Self {
            failure: failure_of(&error, timeout.progress),
            refused: Refused::from_error(&error),
            is_of_connection: error.is_of_connection(),
            unsent,
        }
    }

    /// Adds the data for a retry, after `received` bytes of the response.
    fn into_failed(self, conn: &UpstreamConn, received: u64, permit: Permit) -> FailedExchange {
        FailedExchange {
            failed: SendFailure {
                failure: conn.gateway_failure().unwrap_or(self.failure),
                peer: Some(conn.peer),
                origin_bytes: received,
            },
            unsent: self.unsent,
            refused: self.refused,
            connection_broke: self.is_of_connection || conn.is_closed(),
            permit,
        }
    }
}

impl From<Failure> for NoHead {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            unsent: None,
            refused: Refused::No,
            is_of_connection: false,
        }
    }
}

/// Returns the approximate memory for the fields in a head, bytes.
fn head_size(fields: &HeaderMap) -> usize {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    sizes.sum()
}

async fn head(
    sending: impl Future<Output = SendResult>,
    interim: &Interim,
    mut timeout: HeadTimeout<'_>,
    options: &SendOptions,
) -> Result<Response<WireContent>, NoHead> {
    let mut sending = pin!(sending);
    loop {
        let let_go_at = let_go_at(timeout.progress);
        tokio::select! {
            biased;
            sent = &mut sending => {
                // Interim responses may have arrived in the same packet as the final head; forward
                // them first.
                interim.pass_on(&mut timeout, options)?;
                return sent.map_err(|not_sent| NoHead::new(not_sent, &timeout));
            }
            () = interim.arrived() => {
                interim.pass_on(&mut timeout, options)?;
            }
            () = sleep_until(let_go_at), if timeout.progress.is_held() => {
                // The stream may have been opened meanwhile.
                if Instant::now() >= self::let_go_at(timeout.progress) {
                    timeout.progress.hold_ends_in_vain();
                }
            }
            () = sleep_until(timeout.ends_at()) => {
                if timeout.is_over() {
                    let failure = Failure::FirstByteTimeout(timeout.first_byte_time());
                    return Err(failure.into());
                }
            }
        }
    }
}

/// Returns the time when held content is sent without a 100. An origin cannot send a 100 before it
/// has the head, which in HTTP/2 may wait for a stream.
fn let_go_at(progress: &BodyProgress) -> Instant {
    progress.opened().unwrap_or_else(Instant::now) + CONTINUE_WAIT
}

/// The timeout for a response head.
struct HeadTimeout<'a> {
    limits: &'a Limits,
    conn: &'a UpstreamConn,
    progress: &'a BodyProgress,
    /// Time when the exchange started, or when the last interim response arrived.
    since: Instant,
    /// Bytes received up to that time.
    received: u64,
    /// A head has started, and the extra time is in use.
    extended: bool,
}

impl<'a> HeadTimeout<'a> {
    fn new(
        limits: &'a Limits,
        conn: &'a UpstreamConn,
        progress: &'a BodyProgress,
        since: Instant,
    ) -> Self {
        Self {
            limits,
            conn,
            progress,
            since,
            received: conn.meter.received(),
            extended: false,
        }
    }

    fn ends_at(&self) -> Instant {
        let last_sent = self.conn.last_sent().max(self.progress.last_sent());
        let mut ends_at = last_sent.map_or(self.since, |sent| sent.max(self.since));
        ends_at += self.first_byte_time();
        if self.progress.is_starved() {
            // The client is silent, not the origin. The client has a separate limit, which expires
            // first.
            ends_at += self.limits.progress_time;
        }
        if self.extended {
            ends_at += self.limits.between_bytes_time + self.conn.turn_time();
        }
        ends_at
    }

    fn first_byte_time(&self) -> Duration {
        self.limits.first_byte_time + self.conn.turn_time()
    }

    /// Called when the timeout has passed; an incomplete head gets extra time, once.
    fn is_over(&mut self) -> bool {
        if Instant::now() < self.ends_at() {
            return false; // something was sent meanwhile
        }
        let begun = self.conn.meter.received() > self.received;
        if begun && !self.extended {
            self.extended = true;
            return false;
        }
        true
    }
}

/// Interim responses that arrived during the wait for the final response.
#[derive(Default)]
struct Interim {
    waiting: RefCell<VecDeque<(StatusCode, HeaderMap)>>,
    seen: Cell<usize>,
}

impl Interim {
    fn push(&self, status: StatusCode, headers: HeaderMap) {
        self.seen.set(self.seen.get() + 1);
        if self.seen.get() <= INTERIM_MAX {
            self.waiting.borrow_mut().push_back((status, headers));
        }
    }

    /// Ready if there is an interim response. The task that waits for the final response also
    /// pushes the interim responses, so no wake-up is needed.
    async fn arrived(&self) {
        std::future::poll_fn(|_| {
            if self.waiting.borrow().is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    fn pass_on(&self, timeout: &mut HeadTimeout<'_>, options: &SendOptions) -> Result<(), Failure> {
        loop {
            if self.seen.get() > INTERIM_MAX {
                return Err(Failure::ResponseMalformed("too many interim responses"));
            }
            let next = self.waiting.borrow_mut().pop_front();
            let Some((status, mut headers)) = next else {
                return Ok(());
            };
            if timeout.conn.is_http_2() {
                if status == StatusCode::SWITCHING_PROTOCOLS {
                    // A client in HTTP/1.1 would take the following bytes for another protocol (RFC
                    // 9113, section 8.6).
                    let reason = "protocol switch in HTTP/2";
                    return Err(Failure::ResponseMalformed(reason));
                }
                if let Some(reason) = malformed_field(&headers) {
                    return Err(Failure::ResponseMalformed(reason));
                }
            }
            timeout.since = Instant::now();
            timeout.received = timeout.conn.meter.received();
            timeout.extended = false;
            if status == StatusCode::CONTINUE {
                timeout.progress.note_continue();
            } else if let Some(informational) = &options.informational {
                strip_interim(&mut headers);
                informational(status, headers);
            }
        }
    }
}

fn failure_of(error: &SendError, progress: &BodyProgress) -> Failure {
    let is_content = match error {
        SendError::Http1(failure) => return failure.clone(),
        SendError::Malformed(reason) => return Failure::ResponseMalformed(reason),
        SendError::Linked(error) => error.is_user(),
        SendError::Http2(_) => progress.has_failed(),
        SendError::Unopened => false,
    };
    if is_content {
        // The client's content was incomplete; the origin is not at fault.
        Failure::Refused {
            status: StatusCode::BAD_REQUEST,
            reason: "the request content ended early",
        }
    } else if error.is_invalid() {
        Failure::ResponseMalformed("head is too large, or not HTTP/2")
    } else {
        Failure::ConnectionTerminated
    }
}

/// Time for which content is held for a `100 Continue` that may never arrive (RFC 9110, section
/// 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_100_begins_when_the_head_is_sent() {
        let body = RequestBody::empty();
        let progress = body.progress();
        progress.begin();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(let_go_at(&progress) > Instant::now(), "no stream is open");
        progress.note_opened();
        let opened = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(let_go_at(&progress), opened + CONTINUE_WAIT);
    }
}
