//! Where answers come from: one request to an origin, and its response.
//!
//! `fetch` and `request` call [`Upstream::send`]. In the order of a request: `permits` gives a
//! place, `pool` an idle connection or `connect` a new one (`unreachable` knows where that was in
//! vain, `dns` finds the addresses, `address` judges them, `interfaces` knows our own; for https
//! `tls` shakes hands), hyper writes the request (`request_body`) and reads the head (`meter`
//! counts below it), `framing` judges it, and `response_body` carries the content. Where HTTP/2 is
//! offered, `http2` keeps the connection.
//!
//! There is one `Upstream` per core; connections stay on the core that opened them. Names, places
//! and the verdict on destinations are shared through [`UpstreamShared`].
//!
//! Invariant: a request is sent twice only if it has no content, is idempotent, went out on a
//! connection used before, and not a byte came back; or if the origin said that it did not look at
//! it. Cost: no allocation that grows with content.

pub(crate) mod address;

pub(crate) mod connect;
pub(crate) mod dns;
pub(crate) mod endpoint;
mod exchange;
mod flood;
pub(crate) mod framing;
mod http2;
pub(crate) mod interfaces;
mod meter;
pub(crate) mod nat64;
pub(crate) mod permits;
mod pool;
pub(crate) mod prefix;
pub(crate) mod request_body;
pub(crate) mod response_body;
pub(crate) mod tls;
mod transport;
pub(crate) mod unreachable;
pub(crate) mod verified_hosts;

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_http::{Scheme, UnixTime};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::client::conn::http1::Builder;
use hyper::upgrade::OnUpgrade;
use tokio::time::timeout;

use self::connect::Connector;
use self::dns::{DnsCache, Resolver};
use self::http2::{Http2Conn, Http2Conns, Refused};
use self::interfaces::OwnAddresses;
use self::meter::ReadMemory;
use self::permits::{Permit, Permits};
use self::pool::{Pool, UpstreamConn};
use self::tls::{AlpnOffer, Trust};
use self::transport::Transport;
use self::unreachable::UnreachableCache;
use self::verified_hosts::VerifiedHosts;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::share::Share;

pub(crate) use self::address::Destinations;
pub(crate) use self::endpoint::Endpoint;
pub(crate) use self::permits::UpstreamFigures;
pub(crate) use self::request_body::RequestBody;
pub(crate) use self::response_body::ResponseBody;
pub(crate) use self::tls::Unverified;

/// What the cores have in common.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamShared {
    /// What is known about names.
    pub(crate) names: DnsCache,
    /// Which addresses may be reached.
    pub(crate) destinations: Destinations,
    /// The addresses of this host.
    pub(crate) own: OwnAddresses,
    /// What could not be reached lately.
    pub(crate) unreachable: UnreachableCache,
    /// Whose certificates are good.
    pub(crate) trust: Trust,
    /// Whose certificates were found good.
    pub(crate) verified: Arc<VerifiedHosts>,
    /// Places for busy connections.
    pub(crate) permits: Permits,
    /// Bounds on time and memory.
    pub(crate) limits: Arc<Limits>,
}

/// Sends requests to origins, from one core.
pub(crate) struct Upstream {
    connector: Connector,
    trust: Trust,
    verified: Arc<VerifiedHosts>,
    permits: Permits,
    pool: Rc<Pool>,
    http2_conns: Rc<Http2Conns>,
    limits: Arc<Limits>,
    http: Builder,
    /// Out of whose budget buffers are set aside; none in tests of this module.
    memory: Option<Cache>,
}

/// A response whose head has come.
#[derive(Debug)]
pub(crate) struct UpstreamExchange {
    /// The head, freed of Transfer-Encoding and of all but one Content-Length, and the content.
    pub(crate) response: Response<ResponseBody>,
    /// The address that answered.
    pub(crate) peer: SocketAddr,
    /// Whether the connection had served another request before.
    pub(crate) reused: bool,
    /// From the request handed to the connection to the head.
    pub(crate) head_time: Duration,
    /// After a 101, the connection to go on with.
    pub(crate) upgrade: Option<Upgrade>,
}

/// A connection that has switched to another protocol; holds its place until dropped.
#[derive(Debug)]
pub(crate) struct Upgrade {
    /// Resolves to the connection.
    pub(crate) stream: OnUpgrade,
    /// Its place among the busy ones.
    pub(crate) permit: Permit,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendFailure {
    /// The reason.
    pub(crate) failure: Failure,
    /// The address that was asked, if one was connected to.
    pub(crate) peer: Option<SocketAddr>,
    /// Bytes received before it failed.
    pub(crate) origin_bytes: u64,
}

/// What is done with interim responses; `100 Continue` is not among them.
pub(crate) type Informational = Rc<dyn Fn(StatusCode, HeaderMap)>;

/// How to send a request.
#[derive(Clone, Default)]
pub(crate) struct SendOptions {
    /// Called for each interim response but 100, before the final one is returned.
    pub(crate) informational: Option<Informational>,
    /// Out of whose share it takes a place; none: nobody waits for it.
    pub(crate) client: Option<Share>,
}

impl UpstreamShared {
    /// What the cores of one process share.
    pub(crate) fn new(
        names: DnsCache,
        destinations: Destinations,
        own: OwnAddresses,
        trust: Trust,
        limits: Arc<Limits>,
    ) -> Self {
        let permits = Permits::new(
            limits.upstream_per_origin,
            limits.upstream,
            limits.client_share,
        );
        Self {
            names,
            destinations,
            own,
            unreachable: UnreachableCache::new(Duration::ZERO),
            trust,
            verified: Arc::default(),
            permits,
            limits,
        }
    }
}

impl Upstream {
    /// An `Upstream` for the core that calls this. Its tasks are local ones: the core runs a
    /// `LocalRuntime` or a `LocalSet`.
    pub(crate) fn new(shared: &UpstreamShared) -> Self {
        let UpstreamShared {
            names,
            destinations,
            own,
            unreachable,
            trust,
            verified,
            permits,
            limits,
        } = shared.clone();
        let connector = Connector {
            resolver: Resolver::new(names),
            destinations,
            own,
            unreachable,
            connect_time: limits.connect_time,
        };
        let mut http = Builder::new();
        http.title_case_headers(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .allow_spaces_after_header_name_in_responses(true)
            .max_headers(limits.head_fields)
            .max_header_size(limits.head_bytes)
            // Reads grow up to this where content comes fast and memory is not short; see `meter`.
            .max_buf_size(limits.head_bytes.max(BUFFER_MIN));
        let pool = Pool::new(limits.upstream_idle_time, permits.clone());
        Self {
            connector,
            trust,
            verified,
            permits,
            pool,
            http2_conns: Rc::default(),
            limits,
            http,
            memory: None,
        }
    }

    /// The same, with buffers set aside out of the budget of `cache`.
    pub(crate) fn within(mut self, cache: &Cache) -> Self {
        self.memory = Some(cache.clone());
        self
    }

    /// A socket to `to` for a tunnel. It takes no place: a tunnel is bounded by the client
    /// connection it lives in, and 64 of them to one popular host are nothing.
    pub(crate) async fn connect(
        &self,
        to: &Endpoint,
    ) -> Result<(tokio::net::TcpStream, SocketAddr), Failure> {
        self.connector.connect(to).await
    }

    /// Idle connections of this core.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.pool.len()
    }

    /// Sends `request` to `to` and waits for the head of the response.
    ///
    /// The target is sent in origin-form whatever the URI holds. A request with content and
    /// `Expect: 100-continue` keeps its content back until 100 comes, 1 s passes, or a final
    /// response comes, after which the content is never sent.
    pub(crate) async fn send(
        &self,
        to: &Endpoint,
        request: Request<RequestBody>,
        options: SendOptions,
    ) -> Result<UpstreamExchange, SendFailure> {
        let mut request = prepare(request, to);
        let client = options.client.as_ref();
        let mut permit = self.permit(to, client).await?;
        let repeatable = request.body().is_empty() && request.method().is_idempotent();
        // What cannot be repeated takes a connection used a moment ago or a new one: the longer one
        // lies idle, the likelier its other end is about to close it.
        let max_idle = if repeatable {
            Duration::MAX
        } else {
            SURELY_OPEN
        };
        let mut used = match self.version(to, &request) {
            Version::HTTP_2 => self.http2_conns.stream(to, max_idle).map(UpstreamConn::on),
            _ => None,
        };
        used = used.or_else(|| self.pool.take(to, max_idle));
        let mut tries = 0;
        loop {
            tries += 1;
            let is_used = used.is_some();
            let conn = match used.take() {
                Some(conn) => conn,
                None => self.open(to, self.version(to, &request), client).await?,
            };
            let copy = repeatable.then(|| copy_of(&request));
            let sent = self.exchange(conn, to, request, permit, &options).await;
            if tries > 1 {
                return sent.map_err(|failed_exchange| failed_exchange.failed);
            }
            (request, permit) = match sent {
                Ok(exchange) => match copy.filter(|_| is_used && exchange.is_misdirected()) {
                    // By a connection of its own it may find the right server (RFC 9110, 15.5.20).
                    Some(copy) => {
                        self.http2_conns.forget(to);
                        drop(exchange);
                        (copy, self.permit(to, client).await?)
                    }
                    None => return Ok(exchange),
                },
                Err(failed_exchange) => {
                    let unseen = failed_exchange.refused != Refused::No;
                    let stale = is_used && failed_exchange.failed.is_stale_connection();
                    if unseen || stale {
                        self.http2_conns.forget(to);
                    }
                    if failed_exchange.refused == Refused::NeedsHttp1 {
                        self.http2_conns.note_plain(to);
                    }
                    let again = match failed_exchange.unsent {
                        Some(unsent) if is_used || unseen => Some(*unsent),
                        _ => copy.filter(|_| stale || unseen),
                    };
                    match again {
                        // What was made for the one version fits the other after this.
                        Some(again) => (prepare(again, to), failed_exchange.permit),
                        None => return Err(failed_exchange.failed),
                    }
                }
            };
        }
    }

    async fn permit(&self, to: &Endpoint, client: Option<&Share>) -> Result<Permit, Failure> {
        timeout(
            self.limits.connect_time,
            self.permits.take(&to.authority, client),
        )
        .await
        .unwrap_or(Err(Failure::UpstreamLimit))
    }

    /// What to speak with `to`, if it speaks it too.
    fn version(&self, to: &Endpoint, request: &Request<RequestBody>) -> Version {
        // Another protocol can be changed to from HTTP/1.1 only.
        let may_upgrade = request.headers().contains_key(header::UPGRADE);
        match to.scheme {
            Scheme::Https if !may_upgrade && !self.http2_conns.is_plain(to) => Version::HTTP_2,
            _ => Version::HTTP_11,
        }
    }

    /// A new connection, or one that somebody else opens meanwhile.
    async fn open(
        &self,
        to: &Endpoint,
        version: Version,
        client: Option<&Share>,
    ) -> Result<UpstreamConn, SendFailure> {
        if version != Version::HTTP_2 {
            return self.open_own(to, client).await;
        }
        let gate = self.http2_conns.opening(to);
        let turn = timeout(self.limits.connect_time, gate.lock()).await;
        let _turn = turn.map_err(|_| Failure::ConnectTimeout(self.limits.connect_time))?;
        if let Some(stream) = self.http2_conns.stream(to, Duration::MAX) {
            return Ok(UpstreamConn::on(stream));
        }
        if self.http2_conns.is_plain(to) {
            return self.open_own(to, client).await;
        }
        let memory = match &self.memory {
            Some(cache) => match Http2Conn::reserve(cache) {
                Some(memory) => Some(memory),
                None => return self.open_own(to, client).await,
            },
            None => None,
        };
        let (socket, peer) = self.connector.connect(to).await?;
        let told = |failure: Failure| SendFailure {
            peer: Some(peer),
            ..failure.into()
        };
        let secured = self
            .secure(socket, to, AlpnOffer::Both)
            .await
            .map_err(told)?;
        if !secured.is_http_2() {
            self.http2_conns.note_plain(to);
            drop(memory);
            let memory = self.narrow(to, client)?;
            return Ok(UpstreamConn::new(&self.http, secured, peer, memory).await?);
        }
        let conn = Http2Conn::new(secured, peer, &self.limits, memory).await;
        let idle_time = self.limits.upstream_idle_time;
        let stream = self.http2_conns.keep(to, conn.map_err(told)?, idle_time);
        Ok(UpstreamConn::on(stream))
    }

    /// A new connection in HTTP/1.1.
    async fn open_own(
        &self,
        to: &Endpoint,
        client: Option<&Share>,
    ) -> Result<UpstreamConn, SendFailure> {
        let memory = self.narrow(to, client)?;
        let (socket, peer) = self.connector.connect(to).await?;
        let secured = self.secure(socket, to, AlpnOffer::Http1).await;
        let secured = secured.map_err(|failure| SendFailure {
            peer: Some(peer),
            ..failure.into()
        })?;
        Ok(UpstreamConn::new(&self.http, secured, peer, memory).await?)
    }

    /// Memory for a connection in HTTP/1.1 that has read nothing yet.
    fn narrow(&self, to: &Endpoint, client: Option<&Share>) -> Result<Option<ReadMemory>, Failure> {
        let Some(cache) = &self.memory else {
            return Ok(None);
        };
        let memory = ReadMemory::narrow(cache, to.scheme, client);
        memory.map(Some).ok_or(Failure::UpstreamLimit)
    }

    /// What a socket to an origin becomes before the first request: TLS, if that is its scheme.
    async fn secure(
        &self,
        socket: tokio::net::TcpStream,
        to: &Endpoint,
        offer: AlpnOffer,
    ) -> Result<Transport, Failure> {
        if to.scheme == Scheme::Http {
            return Ok(Transport::Plain(socket));
        }
        let limit = self.limits.connect_time;
        let handshake = self
            .trust
            .handshake(&to.authority.host, socket, offer, limit);
        let shaken = handshake.await;
        match &shaken {
            Ok(stream) => {
                let now = self.trust.now();
                let not_after = || tls::not_after(stream);
                self.verified.renew(&to.authority, now, not_after);
            }
            // It does not want us, perhaps for want of a certificate of ours: whoever comes next by
            // CONNECT shall see whether it wants him. A certificate that is not good is no reason
            // to forget: it may be that of a line that is down and says so to everybody.
            Err(Failure::TlsAlert(_)) => self.verified.forget(&to.authority),
            Err(_) => {}
        }
        Ok(Transport::Tls(Box::new(shaken?)))
    }

    /// Finds out whether `to` has a certificate that is good, and when it ends, by a handshake on
    /// `socket` or on one of its own that is used for nothing else.
    pub(crate) async fn verify(
        &self,
        to: &Endpoint,
        socket: Option<tokio::net::TcpStream>,
    ) -> Result<UnixTime, Unverified> {
        let socket = match socket {
            Some(socket) => socket,
            None => self.connect(to).await.map_err(Unverified::Failed)?.0,
        };
        let limit = self.limits.connect_time;
        self.trust.verify(&to.authority.host, socket, limit).await
    }
}

impl UpstreamExchange {
    /// Whether the origin says that this connection is not for that authority.
    fn is_misdirected(&self) -> bool {
        self.response.status() == StatusCode::MISDIRECTED_REQUEST
    }
}

/// Makes a client's request one of ours: HTTP/1.1, origin-form, a Host, content with an end.
fn prepare(request: Request<RequestBody>, to: &Endpoint) -> Request<RequestBody> {
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    let target = match head.uri.into_parts().path_and_query {
        Some(target) if head.method == Method::OPTIONS || target != "*" => target,
        _ => PathAndQuery::from_static("/"),
    };
    head.uri = Uri::from(target);
    if !head.headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::try_from(to.authority.display(to.scheme).to_string())
    {
        head.headers.insert(header::HOST, host);
    }
    if body.is_empty() {
        // There is nothing to continue with.
        head.headers.remove(header::EXPECT);
    } else if !head.headers.contains_key(header::CONTENT_LENGTH)
        && http_body::Body::size_hint(&body).exact().is_none()
    {
        // hyper would drop the content of a GET without this.
        head.headers.insert(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    }
    Request::from_parts(head, body)
}

/// The same request once more; only for one without content.
fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.version_mut() = request.version();
    copy
}

impl SendFailure {
    /// Whether this is what a connection looks like that was closed while it lay idle.
    fn is_stale_connection(&self) -> bool {
        self.failure == Failure::ConnectionTerminated && self.origin_bytes == 0
    }
}

impl From<Failure> for SendFailure {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            peer: None,
            origin_bytes: 0,
        }
    }
}

impl fmt::Debug for SendOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendOptions")
            .field("informational", &self.informational.is_some())
            .finish()
    }
}

/// How long a connection may have lain idle to be trusted with what cannot be sent twice.
const SURELY_OPEN: Duration = Duration::from_secs(1);
/// The least hyper allows, and room for a page of content at once.
const BUFFER_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests;
