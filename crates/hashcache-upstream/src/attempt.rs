//! The attempts of a request: the connection for each attempt, and the decision about another
//! attempt.
//!
//! Called by `Upstream::try_send`. `http2` and `pool` have the connections that are open.
//!
//! Invariants: a request that the origin may have processed is sent again only if it has no
//! content, is idempotent, and no byte of a response has arrived. A request that the origin has
//! certainly not processed is sent again whatever the method, with the content if that was kept.
//! After a connection has failed, the next attempt does not share a connection with other requests,
//! because this request may be the cause.
//! Cost: for each attempt in HTTP/2 a copy of the request's fields.

use std::rc::Rc;
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::net::address::Purpose;
use hashcache_base::share::{Share, SpareMemory};
use hashcache_http::Scheme;
use http::{Request, header};
use tokio::time::{sleep, timeout};

use super::exchange::FailedExchange;
use super::http2::{self, Found, Http2Conn, Sharing, Wanted, content_bytes, reserve_stream};
use super::kept_content::{KeptContent, Recall, kept_bytes};
use super::odd_target::OddTarget;
use super::pool::UpstreamConn;
use super::refused::Refused;
use super::tls::AlpnOffer;
use super::{
    Announces, Endpoint, RequestBody, SendFailure, SendOptions, Upstream, copy_of, is_repeatable,
};

/// The kind of connection for an attempt.
pub(super) enum Way {
    Http1,
    /// There is no memory for an HTTP/2 stream, but the origin may offer HTTP/2.
    Http1ForMemory,
    Http2(Sharing, Option<SpareMemory>),
}

/// A copy of a request for another attempt.
pub(super) struct Repeat {
    request: Request<RequestBody>,
    has_content: bool,
    recall: Option<Recall>,
}

/// A failed attempt.
pub(super) struct Attempt<'a> {
    pub(super) number: usize,
    /// True if the connection was open before this attempt.
    pub(super) is_used: bool,
    pub(super) http2_conn: Option<&'a Rc<Http2Conn>>,
    pub(super) is_repeatable: bool,
    pub(super) client: Option<&'a Share>,
}

impl Upstream {
    /// Chooses the kind of connection for the first attempt.
    pub(super) fn first_way(
        &self,
        to: &Endpoint,
        request: &Request<RequestBody>,
        options: &SendOptions,
        announces: Announces,
    ) -> Way {
        // Requests to peers use HTTP/1.1.
        let is_peer = options.absolute.is_some() || to.purpose == Purpose::Peer;
        // Only HTTP/1.1 allows a change to another protocol.
        let may_upgrade = request.headers().contains_key(header::UPGRADE);
        let is_odd = OddTarget::from_request(request).is_some();
        let is_http_1 = is_peer || announces == Announces::Client || may_upgrade || is_odd;
        if is_http_1 || to.scheme != Scheme::Https || self.http2_conns.is_plain(to) {
            return Way::Http1;
        }
        let client = options.client.as_ref();
        let network = client.map(Share::network);
        self.way_of(self.http2_conns.sharing(to, request, network), client)
    }

    fn way_of(&self, sharing: Sharing, client: Option<&Share>) -> Way {
        match &self.memory {
            None => Way::Http2(sharing, None),
            Some(cache) => match reserve_stream(cache, client) {
                Some(memory) => Way::Http2(sharing, Some(memory)),
                None => Way::Http1ForMemory,
            },
        }
    }

    /// Returns an open connection for the first attempt of a request.
    pub(super) fn open_conn(
        &self,
        to: &Endpoint,
        way: &mut Way,
        request: &Request<RequestBody>,
        announces: Announces,
    ) -> Option<UpstreamConn> {
        // A request that cannot be repeated takes a recently used connection or a new connection:
        // the longer a connection was idle, the more likely the origin is about to close it.
        let max_idle = if is_repeatable(request) {
            Duration::MAX
        } else {
            SURELY_OPEN
        };
        if let Way::Http2(sharing, memory) = way {
            let wanted = Wanted {
                sharing: *sharing,
                content: content_bytes(request),
                max_idle,
            };
            if let Found::Stream(stream) = self.http2_conns.stream(to, wanted) {
                return Some(UpstreamConn::on(stream.holding(memory.take())));
            }
        }
        let taken = match announces {
            Announces::Nobody => self.pool.take(to, max_idle),
            Announces::Client => None,
        };
        if taken.is_some() {
            // Releases the memory for a stream.
            *way = Way::Http1;
        }
        taken
    }

    /// Opens a new connection, or takes a shared connection that a concurrent request has opened
    /// meanwhile.
    pub(super) async fn open(
        &self,
        to: &Endpoint,
        way: Way,
        request: &Request<RequestBody>,
        options: &SendOptions,
    ) -> Result<UpstreamConn, SendFailure> {
        let (sharing, memory) = match way {
            Way::Http2(sharing, memory) => (sharing, memory),
            Way::Http1 => return self.open_own(to, options).await,
            Way::Http1ForMemory => {
                let opened = self.open_own(to, options).await;
                return match opened {
                    Err(failed) if failed.failure == http2::NEEDED => {
                        self.open_http2(to, (Sharing::Alone, None), request, options)
                            .await
                    }
                    opened => opened,
                };
            }
        };
        if sharing == Sharing::Alone {
            return self
                .open_http2(to, (sharing, memory), request, options)
                .await;
        }
        let limit = self.limits.connect_time;
        let gate = self.http2_conns.opening(to);
        let turn = timeout(limit, gate.lock()).await;
        let _turn = turn.map_err(|_| Failure::ConnectTimeout(limit))?;
        let wanted = Wanted {
            sharing,
            content: content_bytes(request),
            max_idle: Duration::MAX,
        };
        loop {
            match self.http2_conns.stream(to, wanted) {
                Found::Stream(stream) => return Ok(UpstreamConn::on(stream.holding(memory))),
                Found::Unsettled(conn) => {
                    if timeout(limit, conn.settled()).await.is_err() {
                        self.http2_conns.retire(to, &conn);
                    }
                }
                Found::None => break,
            }
        }
        if self.http2_conns.is_plain(to) {
            self.open_own(to, options).await
        } else {
            self.open_http2(to, (sharing, memory), request, options)
                .await
        }
    }

    /// Opens a new HTTP/2 connection, or HTTP/1.1 if the origin needs that or memory is short.
    async fn open_http2(
        &self,
        to: &Endpoint,
        (sharing, mut memory): (Sharing, Option<SpareMemory>),
        request: &Request<RequestBody>,
        options: &SendOptions,
    ) -> Result<UpstreamConn, SendFailure> {
        let way = (sharing, &mut memory);
        match self.try_open_http2(to, way, request, options).await {
            // A server that restarts closes connections that it has just accepted. Nothing of the
            // request was sent yet.
            Err(failed) if failed.failure == Failure::ConnectionTerminated => {
                let way = (sharing, &mut memory);
                self.try_open_http2(to, way, request, options).await
            }
            opened => opened,
        }
    }

    async fn try_open_http2(
        &self,
        to: &Endpoint,
        (sharing, stream_memory): (Sharing, &mut Option<SpareMemory>),
        request: &Request<RequestBody>,
        options: &SendOptions,
    ) -> Result<UpstreamConn, SendFailure> {
        let client = options.client.as_ref();
        let memory = match &self.memory {
            Some(cache) if stream_memory.is_none() => {
                // The origin takes only HTTP/2.
                let memory = Http2Conn::reserve_needed(cache, client);
                Some(memory.ok_or(Failure::UpstreamLimit)?)
            }
            Some(cache) => match Http2Conn::reserve(cache) {
                Some(memory) => Some(memory),
                None => return self.open_own(to, options).await,
            },
            None => None,
        };
        let connecting = self.connect(to, None, options.connect_time, client);
        let (channel, peer) = connecting.await?;
        let at_peer = |failure: Failure| SendFailure {
            peer: Some(peer),
            ..failure.into()
        };
        let secured = self.secure(channel, to, AlpnOffer::Both).await;
        let secured = secured.map_err(at_peer)?;
        if !secured.is_http_2() {
            self.http2_conns.note_plain(to, client.map(Share::network));
            drop((memory, stream_memory.take()));
            let memory = self.narrow(to, client)?;
            return Ok(UpstreamConn::new(secured, peer, memory, &self.limits));
        }
        let conn = Http2Conn::new(secured, peer, &self.limits, sharing, memory).await;
        let idle_time = self.limits.upstream_idle_time;
        let conn = conn.map_err(at_peer)?;
        let stream = self.http2_conns.keep(to, conn, idle_time);
        if !is_repeatable(request) {
            // If a connection closes without SETTINGS, we cannot know whether the origin has seen
            // the request; if it closes after SETTINGS, a GOAWAY gives that information.
            let limit = self.limits.connect_time;
            let settled = timeout(limit, stream.conn().settled()).await;
            settled.map_err(|_| at_peer(Failure::ConnectTimeout(limit)))?;
            if !stream.conn().takes_requests() {
                return Err(at_peer(Failure::ConnectionTerminated));
            }
        }
        Ok(UpstreamConn::on(stream.holding(stream_memory.take())))
    }

    /// Prepares for another attempt after an attempt on `conn`. Returns `None` if another attempt
    /// is possible only for a request of which no byte was sent, or if the request outlives the
    /// attempt.
    pub(super) fn repeat(
        &self,
        request: &mut Request<RequestBody>,
        conn: &UpstreamConn,
        client: Option<&Share>,
    ) -> Option<Repeat> {
        if conn.is_http_1() && request.body().is_empty() {
            return None;
        }
        // A new HTTP/1.1 connection cannot be stale.
        if !conn.is_http_2() && !conn.is_reused() && !is_repeatable(request) {
            return None;
        }
        let room = kept_bytes(&http_body::Body::size_hint(request.body()));
        let recall = request.body_mut().keep(|stream| match &self.memory {
            None => Ok(KeptContent::new(stream, room, None)),
            Some(cache) => match SpareMemory::reserve(cache, client, room as u64) {
                Some(memory) => Ok(KeptContent::new(stream, room, Some(memory))),
                None => Err(stream),
            },
        });
        Some(Repeat {
            request: copy_of(request),
            has_content: !request.body().is_empty(),
            recall,
        })
    }

    /// Chooses the connection for the next attempt after a failed attempt; `None` if there is no
    /// next attempt. Forgets connections that the failed attempt has shown to be useless.
    pub(super) async fn next_way(
        &self,
        to: &Endpoint,
        attempt: Attempt<'_>,
        failed: &FailedExchange,
    ) -> Option<Way> {
        let is_unseen = failed.refused != Refused::No;
        let conn = attempt.http2_conn;
        if let Some(conn) = conn.filter(|_| is_unseen || failed.connection_broke) {
            self.http2_conns.retire(to, conn);
            if conn.sharing() == Sharing::Shared && conn.has_error() && !is_unseen {
                let network = attempt.client.map(Share::network);
                self.http2_conns.note_broken(to, network);
            }
        }
        if failed.refused == Refused::NeedsHttp1 {
            self.http2_conns
                .note_plain(to, attempt.client.map(Share::network));
            return (attempt.number < ATTEMPTS_MAX).then_some(Way::Http1);
        }
        let Some(conn) = conn else {
            let is_stale = attempt.is_repeatable && failed.failed.is_stale_connection();
            let may_repeat = is_stale || is_unseen || failed.unsent.is_some();
            let is_first = attempt.is_used && attempt.number == 1;
            return (may_repeat && is_first).then_some(Way::Http1);
        };
        let alone = || Some(self.way_of(Sharing::Alone, attempt.client));
        if is_unseen || failed.unsent.is_some() {
            if attempt.number > 1 {
                // The origin refused the request on a new connection as well: it may be about to
                // restart.
                sleep(REFUSED_PAUSE).await;
            }
            return (attempt.number < ATTEMPTS_MAX).then(alone).flatten();
        }
        let may_repeat = attempt.is_repeatable && failed.failed.is_stale_connection();
        match conn.sharing() {
            _ if !may_repeat || attempt.number >= ATTEMPTS_MAX => None,
            Sharing::Shared if attempt.is_used || conn.was_shared() => alone(),
            // Some origins close the connection for a request that they do not like. In HTTP/1.1
            // they answer with an error that gives the client the reason.
            Sharing::Alone if failed.connection_broke => Some(Way::Http1),
            Sharing::Shared | Sharing::Alone => None,
        }
    }
}

impl Repeat {
    /// Returns the request for another attempt; `unsent` is the request if it was given back.
    pub(super) fn again(
        self,
        unsent: Option<Box<Request<RequestBody>>>,
    ) -> Option<Request<RequestBody>> {
        let mut request = self.request;
        if let Some(unsent) = unsent {
            *request.body_mut() = unsent.into_body();
        } else if self.has_content {
            *request.body_mut() = RequestBody::kept(self.recall?.again()?);
        }
        Some(request)
    }
}

/// A request that cannot be repeated uses a connection only if that was idle for less than this
/// time. Origins close idle connections after full seconds, some after one second.
const SURELY_OPEN: Duration = Duration::from_millis(500);
/// Maximum number of attempts, if the origin has not processed the request in any earlier attempt.
const ATTEMPTS_MAX: usize = 3;
/// Pause before the last attempt.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
