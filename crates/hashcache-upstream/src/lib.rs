//! Upstream: sends a request to an origin or a peer, and returns the response.
//!
//! `fetch` and `request` in the proxy call [`Upstream::try_send`]. A request passes these modules
//! in this order: `permits` limits the busy connections. `pool` has an idle connection (`pinned`
//! has the connections of logged-in clients), or `connect` opens a new connection (`unreachable`
//! remembers failures, `dns` finds the addresses, `hashcache_base::net` checks them; for https
//! `tls` does the handshake; `proxied` makes a tunnel through a peer, `gateway` speaks protocols
//! other than HTTP, and `channel` is a socket, such a tunnel or a gateway). `http1` writes the
//! request (`request_body` is the content) and reads the head, `framing` checks the head, and
//! `response_body` is the content (`incoming` as it arrives; `unframe` reads content from links).
//! `http2` keeps HTTP/2 connections, on which h2 does the same work as `http1` (`field_blocks`
//! repairs field blocks that h2 cannot read). `attempt` chooses the connection for each attempt and
//! decides about another attempt, for which `kept_content` has the request content. `linked` and
//! `linked_requests` do the same on the link to a parent.
//!
//! `peer` is another cache, with health and digest; `offline` finds out whether the line is up.
//!
//! There is one `Upstream` per core; connections stay on the core that opened them. DNS cache,
//! permits and access rules are shared through [`UpstreamShared`].
//!
//! Invariant: a request is sent again only if it has no content, is idempotent, was sent on a
//! connection that other requests use or have used, and no byte was received; or if the origin
//! signals that it did not process the request. Cost: no allocation that grows with content.

pub mod announced;
mod attempt;
pub mod channel;
pub(crate) mod connect;
pub mod dns;
pub(crate) mod endpoint;
mod exchange;
mod field_blocks;
mod flood;
pub(crate) mod framing;
pub mod gateway;
mod http1;
mod http2;
mod incoming;
mod kept_content;
pub mod linked;
mod linked_requests;
mod meter;
pub(crate) mod odd_target;
pub mod offline;
pub mod peer;
pub(crate) mod permits;
pub mod pinned;
mod pool;
mod proxied;
mod refused;
pub(crate) mod request_body;
pub(crate) mod response_body;
mod signals;
pub mod tls;
mod transport;
mod unframe;
pub mod unreachable;

use hashcache::{Cache, Reservation};
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_base::net::address::Purpose;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::share::{self, Network, Share};
use hashcache_base::tls::verified_hosts::VerifiedHosts;
use hashcache_http::{
    Authority, HintUse, Host, Origin, Scheme, UnixTime, keeps_connection, logs_in_connection,
    say_keeps_login,
};
use hashcache_link::coding::LinkCoding;
use hashcache_wire::TLS_BYTES;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use self::announced::ClientEnds;
use self::attempt::{Attempt, Way};
use self::channel::{Channel, PeerSocket};
use self::connect::Connector;
use self::dns::{DnsCache, Resolver};
use self::exchange::FailedExchange;
use self::http1::ReadMemory;
use self::http2::Http2Conns;
use self::odd_target::OddTarget;
use self::permits::{Permit, Permits};
use self::pinned::Pinning;
use self::pool::{Pool, UpstreamConn};
use self::tls::{AlpnOffer, Trust};
use self::transport::Transport;
use self::unreachable::UnreachableCache;
use crate::gateway::Session;
use crate::offline::Line;
use crate::peer::Peer;

pub use self::endpoint::Endpoint;
pub use self::http1::Switched;
pub use self::odd_target::set_target;
pub use self::permits::UpstreamFigures;
pub use self::request_body::RequestBody;
pub use self::response_body::ResponseBody;
pub use self::tls::Unverified;
pub use hashcache_base::net::address::Destinations;

/// State that the cores share.
#[derive(Clone, Debug)]
pub struct UpstreamShared {
    /// The DNS cache.
    pub names: DnsCache,
    /// Access rules for destinations.
    pub destinations: Destinations,
    /// This host's addresses.
    pub own: OwnAddresses,
    /// The listeners of this process, which clients must not reach through the proxy.
    pub listeners: Arc<[SocketAddr]>,
    /// Recently unreachable origins.
    pub unreachable: UnreachableCache,
    /// The line to the Internet, which is notified about connections to origins.
    pub line: Arc<Line>,
    /// The trusted certificate authorities.
    pub trust: Trust,
    /// Recently verified hosts.
    pub verified: Arc<VerifiedHosts>,
    /// Permits for busy connections.
    pub permits: Permits,
    /// Permits for tunnels over links, by the parent's authority.
    pub link_tunnels: Permits,
    /// Limits on time and memory.
    pub limits: Arc<Limits>,
    /// Our member of Via in requests for tunnels.
    pub via: HeaderValue,
    /// Servers that get a PROXY header with the address of the client.
    pub announced: Arc<[Origin]>,
}

/// Sends requests to origins, for one core.
pub struct Upstream {
    connector: Connector,
    trust: Trust,
    verified: Arc<VerifiedHosts>,
    permits: Permits,
    link_tunnels: Permits,
    pool: Rc<Pool>,
    http2_conns: Rc<Http2Conns>,
    limits: Arc<Limits>,
    via: HeaderValue,
    announced: Arc<[Origin]>,
    /// The budget for buffers; `None` in tests of this module.
    memory: Option<Cache>,
}

/// A response whose head has arrived.
#[derive(Debug)]
pub struct UpstreamExchange {
    /// The head, without Transfer-Encoding and with at most a single Content-Length, and the
    /// content.
    pub response: Response<ResponseBody>,
    /// The address that answered.
    pub peer: SocketAddr,
    /// True if the connection had served another request before.
    pub reused: bool,
    /// Time from handing the request to the connection to the head.
    pub head_time: Duration,
    /// After a 101, the upgraded connection.
    pub upgrade: Option<Upgrade>,
}

/// An upgraded connection; holds the permit until dropped.
#[derive(Debug)]
pub struct Upgrade {
    /// The connection.
    pub stream: Switched,
    /// The connection's permit.
    pub permit: Permit,
}

/// A failed attempt to get a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendFailure {
    /// The reason.
    pub failure: Failure,
    /// The server's address, if a connection was made.
    pub peer: Option<SocketAddr>,
    /// Bytes received before the failure.
    pub origin_bytes: u64,
}

/// Called for interim responses; `100 Continue` is not among them.
pub type Informational = Rc<dyn Fn(StatusCode, HeaderMap)>;

/// Options for sending a request.
#[derive(Clone, Default)]
pub struct SendOptions {
    /// Called for each interim response except 100, before the final response is returned.
    pub informational: Option<Informational>,
    /// The client whose share is used; `None`: the proxy's own request.
    pub client: Option<Share>,
    /// Both addresses of that client's connection, for servers that want a PROXY header.
    pub ends: Option<ClientEnds>,
    /// For a peer: the request is sent with the whole URL.
    pub absolute: Option<AbsoluteForm>,
    /// Limit on connecting, if it is shorter than the usual limit: another hop is left to try.
    pub connect_time: Option<Duration>,
    /// Limit on waiting for a permit, if it is shorter than the usual limit.
    pub permit_time: Option<Duration>,
    /// How the request uses a link, if it is sent on a link.
    pub link: LinkCoding,
    /// How the request takes part in hints on that link.
    pub hints: HintUse,
    /// How the request uses upstream connections, if it has, follows or may be offered a login that
    /// belongs to its connection.
    pub pinning: Pinning,
}

/// A request to a peer with the whole URL of a resource (RFC 9112, section 3.2.2).
#[derive(Clone, Debug)]
pub struct AbsoluteForm {
    /// The peer.
    pub peer: Arc<Peer>,
    /// The resource's origin.
    pub origin: Origin,
    /// The work that the peer is to do.
    pub wanted: Wanted,
}

/// The work that a peer is to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Fetch the response if it is not in the store.
    Fetched,
    /// Answer from the store, or with 504. The request has no fields that identify the client.
    Stored,
}

/// The client that a connection's PROXY header names to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announces {
    Nobody,
    /// The client of the only request on that connection.
    Client,
}

/// A failed attempt, with the request if no byte of it was sent.
#[derive(Debug)]
pub struct Unanswered {
    /// Why there is no response.
    pub failed: SendFailure,
    /// The request.
    pub unsent: Option<Box<Request<RequestBody>>>,
}

impl UpstreamShared {
    /// Makes the state that the cores of a process share.
    pub fn new(
        names: DnsCache,
        destinations: Destinations,
        own: OwnAddresses,
        trust: Trust,
        limits: Arc<Limits>,
        via: HeaderValue,
    ) -> Self {
        let permits = Permits::new(
            limits.upstream_per_origin,
            limits.upstream,
            limits.client_share,
        );
        let link_tunnels = Permits::new(hashcache_link::TUNNELS, usize::MAX, limits.client_share);
        Self {
            names,
            destinations,
            own,
            listeners: Arc::default(),
            unreachable: UnreachableCache::new(Duration::ZERO),
            line: Arc::default(),
            trust,
            verified: Arc::default(),
            permits,
            link_tunnels,
            limits,
            via,
            announced: Arc::default(),
        }
    }
}

impl Upstream {
    /// Makes an `Upstream` for the calling core. It spawns local tasks, so the core must run a
    /// `LocalRuntime` or a `LocalSet`.
    pub fn new(shared: &UpstreamShared) -> Self {
        let UpstreamShared {
            names,
            destinations,
            own,
            listeners,
            unreachable,
            line,
            trust,
            verified,
            permits,
            link_tunnels,
            limits,
            via,
            announced,
        } = shared.clone();
        let connector = Connector {
            resolver: Resolver::new(names).with_domains(destinations.domains()),
            destinations,
            own,
            listeners,
            unreachable,
            line,
            connect_time: limits.connect_time,
        };
        let pool = Pool::new(limits.upstream_idle_time, permits.clone());
        Self {
            connector,
            trust,
            verified,
            permits,
            link_tunnels,
            pool,
            http2_conns: Rc::default(),
            limits,
            via,
            announced,
            memory: None,
        }
    }

    /// Makes this `Upstream` reserve the buffers in the budget of `cache`.
    pub fn within(mut self, cache: &Cache) -> Self {
        self.pool.set_memory(cache.stats().memory_limit_bytes);
        self.memory = Some(cache.clone());
        self
    }

    /// Opens a channel to `to` for a tunnel. A tunnel needs no permit: the client's connection is
    /// the limit, and 64 tunnels to a popular host are normal. `via` is for a peer that makes the
    /// tunnel: the members of Via, our own included; `None`: only our own.
    pub async fn connect(
        &self,
        to: &Endpoint,
        via: Option<&HeaderValue>,
        limit: Option<Duration>,
        client: Option<&Share>,
    ) -> Result<(Channel, SocketAddr), Failure> {
        let Some(peer) = &to.through else {
            let client = client.map(Share::network);
            let (socket, address) = self.connector.connect(to, limit, client).await?;
            return Ok((socket.into(), address));
        };
        let via = via.unwrap_or(&self.via);
        if let Some(link) = &peer.link {
            let tunnel = self.connect_linked((peer, link), &to.authority, via, (limit, client));
            let tunnel = tunnel.await;
            note_tunnel(peer, &tunnel);
            return tunnel;
        }
        let memory = match peer.settings.url.scheme {
            Scheme::Https => self.reserve(client, TLS_BYTES)?,
            Scheme::Http | Scheme::Ftp | Scheme::Gopher => None,
        };
        let tunnel = self.connect_through(peer, &to.authority, via, limit);
        let tunnel = tunnel.await;
        note_tunnel(peer, &tunnel);
        let (channel, address) = tunnel?;
        Ok((channel.holding(memory), address))
    }

    /// Reserves memory for `client`; `None` without accounting.
    fn reserve(&self, client: Option<&Share>, bytes: u64) -> Result<Option<Reservation>, Failure> {
        let Some(cache) = &self.memory else {
            return Ok(None);
        };
        let held = share::reserve_for(client, cache, bytes);
        held.map(Some).ok_or(Failure::UpstreamLimit)
    }

    /// Opens a tunnel to `to` through `peer`.
    async fn connect_through(
        &self,
        peer: &Peer,
        to: &Authority,
        via: &HeaderValue,
        limit: Option<Duration>,
    ) -> Result<(Channel, SocketAddr), Failure> {
        let (mut socket, address) = self.connect_peer(peer, limit).await?;
        // The peer connects to the origin within this time, so this wait has a separate limit.
        // While another hop is left, a slow origin gets less time.
        let limit = match limit {
            Some(_) => self.limits.connect_time,
            None => self.limits.connect_time * 2,
        };
        let opening = proxied::open_tunnel(&mut socket, to, peer, via);
        let opened = timeout(limit, opening).await;
        let begun = opened.unwrap_or(Err(Failure::FirstByteTimeout(limit)))?;
        Ok((Channel::tunnel(socket, begun), address))
    }

    /// Opens a connection to `peer`, with TLS if the peer needs TLS.
    async fn connect_peer(
        &self,
        peer: &Peer,
        limit: Option<Duration>,
    ) -> Result<(PeerSocket, SocketAddr), Failure> {
        if peer.link.is_some() {
            return Err(Failure::Internal(
                "a parent with a pin is used by its link alone",
            ));
        }
        let to = Endpoint::of_peer(peer);
        let begun = Instant::now();
        let (mut socket, address) = self.connector.connect(&to, limit, None).await?;
        peer.health.note_connect_time(begun.elapsed());
        self.announce(&to, None, &mut socket).await?;
        if to.scheme != Scheme::Https {
            return Ok((PeerSocket::Plain(socket), address));
        }
        let limit = limit.unwrap_or(self.limits.connect_time);
        let connected = (socket, Some(address));
        let handshake =
            self.trust
                .handshake(&to.authority.host, connected, AlpnOffer::Http1, limit);
        Ok((PeerSocket::Tls(Box::new(handshake.await?)), address))
    }

    /// Decides whether connections to `to` start with a PROXY header.
    fn announces(&self, to: &Endpoint) -> Announces {
        let is_it =
            |server: &Origin| server.scheme == to.scheme && server.authority == to.authority;
        let is_chosen = to.purpose != Purpose::Forward && to.through.is_none();
        if is_chosen && self.announced.iter().any(is_it) {
            Announces::Client
        } else {
            Announces::Nobody
        }
    }

    /// Sends the PROXY header on a new connection, if the server wants that header.
    async fn announce(
        &self,
        to: &Endpoint,
        ends: Option<ClientEnds>,
        connection: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Failure> {
        match self.announces(to) {
            Announces::Nobody => Ok(()),
            // The header fits into the empty buffer of the socket.
            Announces::Client => {
                let written = connection.write_all(&announced::header(ends)).await;
                written.map_err(|_| Failure::ConnectionTerminated)
            }
        }
    }

    /// Looks up the addresses of `peer`'s host.
    pub async fn addresses(&self, peer: &Peer) -> Result<dns::Addresses, Failure> {
        let host = &peer.settings.url.authority.host;
        self.connector.addresses(host, None).await
    }

    /// Returns true if `address` is among the addresses of `host`, which `client` has named. A name
    /// that cannot be resolved has no addresses.
    pub async fn leads_to(&self, host: &Host, address: IpAddr, client: Network) -> bool {
        let is_it = |it: &IpAddr| it.to_canonical() == address.to_canonical();
        let addresses = self.connector.addresses(host, Some(client)).await;
        addresses.is_ok_and(|addresses| addresses.iter().any(is_it))
    }

    /// Returns true if `origin` can be reached now. Remembered failures do not count.
    pub async fn reaches(&self, origin: &Authority) -> bool {
        self.connector.reaches(origin, PROBE_TIME).await
    }

    /// Sends OPTIONS to `peer`, and notes in the peer's health whether it answers, with any status.
    pub async fn probe(&self, peer: &Peer) {
        if let Some(link) = &peer.link {
            // The link's PINGs find out whether the parent answers.
            if link.is_up() {
                peer.note_success();
            } else {
                peer.note_failed_probe(&Failure::ConnectionTerminated);
            }
            return;
        }
        let asking = async {
            let (mut socket, _) = self.connect_peer(peer, Some(PROBE_TIME)).await?;
            proxied::ask_options(&mut socket, peer, &self.via).await
        };
        let outcome = timeout(PROBE_TIME, asking).await;
        match outcome.unwrap_or(Err(Failure::FirstByteTimeout(PROBE_TIME))) {
            Ok(()) => peer.note_success(),
            Err(failure) => peer.note_failed_probe(&failure),
        }
    }

    /// Number of idle connections on this core.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.pool.len()
    }

    /// Sends `request` to `to` and waits for the response head.
    ///
    /// The target is sent in origin-form, or with the whole URL if `options.absolute` is set,
    /// whatever the URI contains. A request with content and `Expect: 100-continue` holds the
    /// content back until a 100 arrives, 1 s passes, or a final response arrives, after which the
    /// content is never sent. If no byte of the request was sent, the failure has the request.
    pub async fn try_send(
        &self,
        to: &Endpoint,
        request: Request<RequestBody>,
        options: &SendOptions,
    ) -> Result<UpstreamExchange, Unanswered> {
        let announces = if options.pinning.is_login() {
            // A connection of one client has the right header for all its requests.
            Announces::Nobody
        } else {
            self.announces(to)
        };
        let mut request = prepare(request, to, options, announces);
        let client = options.client.as_ref();
        let mut permit = match self.permit(to, client, options.permit_time).await {
            Ok(permit) => permit,
            Err(failure) => return Err(Unanswered::unsent(failure.into(), request)),
        };
        let link = options.absolute.as_ref();
        if let Some(link) = link.and_then(|form| form.peer.link.as_ref()) {
            // On the heap, as for every rare path: otherwise each request would keep room for this
            // future.
            let sending = self.send_linked(link, to, (request, permit), options);
            return Box::pin(sending).await;
        }
        if options.pinning.is_login() {
            let sending = self.send_pinned(to, (request, permit), options);
            return Box::pin(sending).await;
        }
        let mut way = self.first_way(to, &request, options, announces);
        let mut used = self.open_conn(to, &mut way, &request, announces);
        let mut before = None;
        for number in 1.. {
            let is_used = used.is_some();
            let opening = match used.take() {
                Some(conn) => Ok(conn),
                None => Box::pin(self.open(to, way, &request, options)).await,
            };
            let conn = match (opening, before.take()) {
                (Ok(conn), _) => conn,
                // The last attempt was to use HTTP/1.1; the failure before is more exact.
                (Err(failed), Some(before)) if failed.failure == http2::NEEDED => {
                    return Err(Unanswered::unsent(before, request));
                }
                (Err(failed), _) => return Err(Unanswered::unsent(failed, request)),
            };
            let http2_conn = conn.http2_conn();
            let is_repeatable = is_repeatable(&request);
            let repeat = self.repeat(&mut request, &conn, client);
            let mut sent_request = None;
            let kept = (permit, &mut sent_request);
            let sent = self
                .exchange_keeping(conn, to, request, kept, options)
                .await;
            let again;
            (again, permit, way) = match sent {
                Ok(exchange) => {
                    let is_first = is_used && number == 1 && is_repeatable;
                    if !is_first || !exchange.is_misdirected() {
                        return Ok(exchange);
                    }
                    let copied = repeat.and_then(|repeat| repeat.again(None));
                    let Some(again) = sent_request.or(copied) else {
                        return Ok(exchange);
                    };
                    // On another connection, the request may reach the right server (RFC 9110,
                    // 15.5.20).
                    if let Some(conn) = &http2_conn {
                        self.http2_conns.retire(to, conn);
                    }
                    drop(exchange);
                    let way = self.first_way(to, &again, options, announces);
                    let permit = self.permit(to, client, options.permit_time).await;
                    (again, permit.map_err(SendFailure::from)?, way)
                }
                Err(mut failed) => {
                    let attempt = Attempt {
                        number,
                        is_used,
                        http2_conn: http2_conn.as_ref(),
                        is_repeatable,
                        client,
                    };
                    let Some(way) = self.next_way(to, attempt, &failed).await else {
                        return Err(failed.into());
                    };
                    let unsent = failed.unsent.take();
                    let again = match repeat {
                        Some(repeat) => repeat.again(unsent),
                        None => sent_request.or(unsent.map(|unsent| *unsent)),
                    };
                    let Some(again) = again else {
                        return Err(failed.into());
                    };
                    before = Some(failed.failed);
                    (again, failed.permit, way)
                }
            };
            // The last attempt may have used another HTTP version: prepare the request again.
            request = prepare(again, to, options, announces);
        }
        Err(SendFailure::from(Failure::Internal("attempts have no end")).into())
    }

    /// Sends a request that has or follows a login, on the connection of that client.
    async fn send_pinned(
        &self,
        to: &Endpoint,
        (mut request, permit): (Request<RequestBody>, Permit),
        options: &SendOptions,
    ) -> Result<UpstreamExchange, Unanswered> {
        let turn = options.pinning.turn();
        if turn.is_some() && options.absolute.is_some() {
            // Without this field a parent cannot know that this connection has one client.
            say_keeps_login(request.headers_mut());
        }
        let has_credentials = logs_in_connection(request.headers());
        let kept = turn.and_then(|turn| turn.take(to));
        let is_kept = kept.is_some();
        let is_half_done = has_credentials && turn.is_some_and(|turn| turn.is_half_done());
        if is_half_done && !is_kept {
            return Err(SendFailure::from(Failure::ConnectionTerminated).into());
        }
        let conn = match kept {
            Some(conn) => conn,
            None => match self.open_for_login(to, &request, options).await {
                Ok(conn) => conn,
                Err(failed) => return Err(Unanswered::unsent(failed, request)),
            },
        };
        if let Some(turn) = turn {
            turn.begin(has_credentials);
        }
        // The server may close a connection while it is idle. In this case send the request on
        // another connection, as for a client without a login, unless the request belongs to a
        // challenge.
        let may_move = is_kept && !is_half_done;
        let copy = (may_move && is_repeatable(&request)).then(|| copy_of(&request));
        let mut failed = match self.exchange(conn, to, request, permit, options).await {
            Ok(exchange) => return Ok(exchange),
            Err(failed) if !may_move => return Err(failed.failed.into()),
            Err(failed) => failed,
        };
        let again = match failed.unsent.take() {
            Some(unsent) => Some(*unsent),
            None => copy.filter(|_| failed.failed.is_stale_connection()),
        };
        let Some(again) = again else {
            return Err(failed.failed.into());
        };
        let conn = self.open_for_login(to, &again, options).await?;
        let sent = self.exchange(conn, to, again, failed.permit, options);
        sent.await.map_err(|failed| failed.failed.into())
    }

    /// Opens a connection that no other request shares. It uses HTTP/1.1 wherever the origin takes
    /// that version: servers refuse such logins in HTTP/2 (HTTP_1_1_REQUIRED in RFC 9113, section
    /// 7).
    async fn open_for_login(
        &self,
        to: &Endpoint,
        request: &Request<RequestBody>,
        options: &SendOptions,
    ) -> Result<UpstreamConn, SendFailure> {
        let way = match OddTarget::from_request(request) {
            None => Way::Http1ForMemory,
            // HTTP/2 would send the request to `/`.
            Some(_) => Way::Http1,
        };
        let opened = self.open(to, way, request, options).await?;
        if let Some(conn) = opened.http2_conn() {
            self.http2_conns.retire(to, &conn);
        }
        Ok(opened)
    }

    /// As [`Self::try_send`], for tests.
    #[cfg(test)]
    pub(crate) async fn send(
        &self,
        to: &Endpoint,
        request: Request<RequestBody>,
        options: SendOptions,
    ) -> Result<UpstreamExchange, SendFailure> {
        let sent = self.try_send(to, request, &options).await;
        sent.map_err(|unanswered| unanswered.failed)
    }

    async fn permit(
        &self,
        to: &Endpoint,
        client: Option<&Share>,
        limit: Option<Duration>,
    ) -> Result<Permit, Failure> {
        timeout(
            limit.unwrap_or(self.limits.connect_time),
            self.permits.take(&to.authority, client),
        )
        .await
        .unwrap_or(Err(Failure::UpstreamLimit))
    }

    /// Opens a new HTTP/1.1 connection.
    async fn open_own(
        &self,
        to: &Endpoint,
        options: &SendOptions,
    ) -> Result<UpstreamConn, SendFailure> {
        let memory = self.narrow(to, options.client.as_ref())?;
        let begun = Instant::now();
        let client = options.client.as_ref();
        if to.scheme.needs_gateway() {
            let (channel, peer) = self.begin_gateway(to, options).await?;
            let channel = Transport::Plain(channel);
            return Ok(UpstreamConn::new(channel, peer, memory, &self.limits));
        }
        let connecting = self.connect(to, None, options.connect_time, client);
        let (mut channel, peer) = connecting.await?;
        self.announce(to, options.ends, &mut channel).await?;
        if let Some(form) = &options.absolute {
            form.peer.health.note_connect_time(begun.elapsed());
        }
        let secured = self.secure(channel, to, AlpnOffer::Http1).await;
        let secured = secured.map_err(|failure| SendFailure {
            peer: Some(peer),
            ..failure.into()
        })?;
        Ok(UpstreamConn::new(secured, peer, memory, &self.limits))
    }

    /// Starts a gateway session with a server of a protocol other than HTTP. The session behaves
    /// like an origin.
    async fn begin_gateway(
        &self,
        to: &Endpoint,
        options: &SendOptions,
    ) -> Result<(Channel, SocketAddr), Failure> {
        let client = options.client.as_ref().map(Share::network);
        let connecting = self.connector.connect(to, options.connect_time, client);
        let (socket, address) = connecting.await?;
        let (connector, purpose) = (self.connector.clone(), to.purpose);
        let memory = self.memory.clone();
        let session = Session {
            scheme: to.scheme,
            host: to.authority.host_field(to.scheme),
            address,
            dial: Box::new(move |address| {
                let connector = connector.clone();
                Box::pin(async move { connector.connect_data(address, purpose).await })
            }),
            head_bytes: self.limits.head_bytes * 2,
            reply_time: self.limits.first_byte_time,
            between_bytes_time: self.limits.between_bytes_time,
            now: self.trust.now(),
            memory: memory.map(|cache| (cache, options.client.clone())),
        };
        Ok((gateway::start(session, socket).into(), address))
    }

    /// Reserves memory for an HTTP/1.1 connection that has read nothing yet.
    fn narrow(&self, to: &Endpoint, client: Option<&Share>) -> Result<ReadMemory, Failure> {
        let Some(cache) = &self.memory else {
            return Ok(ReadMemory::uncounted());
        };
        ReadMemory::narrow(cache, to.scheme, client).ok_or(Failure::UpstreamLimit)
    }

    /// Does the TLS handshake on a new channel, if the scheme needs it.
    async fn secure(
        &self,
        channel: Channel,
        to: &Endpoint,
        offer: AlpnOffer,
    ) -> Result<Transport<Channel>, Failure> {
        if to.scheme != Scheme::Https {
            return Ok(Transport::Plain(channel));
        }
        let limit = self.limits.connect_time;
        // Through a peer, nothing is known about the origin's address.
        let address = channel.server_address().filter(|_| to.through.is_none());
        let connected = (channel, address);
        let handshake = self
            .trust
            .handshake(&to.authority.host, connected, offer, limit);
        let shaken = handshake.await;
        match &shaken {
            Ok(stream) => {
                let now = self.trust.now();
                let not_after = || tls::not_after(stream);
                self.verified.renew(&to.authority, now, not_after);
            }
            // The host refuses us, perhaps because a client certificate is missing. Forget the
            // host, so that the next CONNECT verifies it again. A bad certificate is no reason to
            // forget the host: a captive portal on a broken line shows such a certificate for every
            // host.
            Err(Failure::TlsAlert(_)) => self.verified.forget(&to.authority),
            Err(_) => {}
        }
        Ok(Transport::Tls(Box::new(shaken?)))
    }

    /// Verifies the certificate of `host` and returns the time when it expires. Does a handshake on
    /// `channel`, which is used for nothing else.
    pub async fn verify(&self, host: &Host, channel: Channel) -> Result<UnixTime, Unverified> {
        let limit = self.limits.connect_time;
        self.trust.verify(host, channel, limit).await
    }
}

impl UpstreamExchange {
    /// Returns true if the connection takes another request after this response, according to the
    /// server.
    pub fn may_leave_connection(&self) -> bool {
        keeps_connection(self.response.version(), self.response.headers())
            && self.response.body().may_leave_connection()
    }

    /// Returns true if the origin answered 421: this connection does not serve the authority.
    fn is_misdirected(&self) -> bool {
        self.response.status() == StatusCode::MISDIRECTED_REQUEST
    }
}

/// Notes a tunnel result in `peer`'s health.
fn note_tunnel<T>(peer: &Peer, tunnel: &Result<T, Failure>) {
    match tunnel {
        Err(Failure::PeerStatus { status: 407 }) => {
            tracing::warn!(
                peer = peer.name(),
                "the peer does not accept our credentials"
            );
            peer.note_success();
        }
        // Any answer shows that the peer is there; other errors are between the peer and the
        // origin.
        Ok(_) | Err(Failure::PeerStatus { .. }) => peer.note_success(),
        Err(failure) => peer.note_failure(failure),
    }
}

/// Prepares a request for upstream: HTTP/1.1, the right form of the target, a Host, the credentials
/// of this hop, and framed content. A request that was prepared for another hop may be prepared
/// again.
fn prepare(
    request: Request<RequestBody>,
    to: &Endpoint,
    options: &SendOptions,
    announces: Announces,
) -> Request<RequestBody> {
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    let target = match head.uri.into_parts().path_and_query {
        Some(target) if head.method == Method::OPTIONS || target != "*" => target,
        _ => PathAndQuery::from_static("/"),
    };
    head.headers.remove(header::PROXY_AUTHORIZATION);
    let (scheme, authority) = match &options.absolute {
        Some(AbsoluteForm {
            peer,
            origin,
            wanted,
        }) => {
            if *wanted == Wanted::Stored {
                only_if_cached(&mut head.headers);
            }
            if let Some(authorization) = &peer.authorization {
                head.headers
                    .insert(header::PROXY_AUTHORIZATION, authorization.clone());
            }
            (origin.scheme, &origin.authority)
        }
        None => (to.scheme, &to.authority),
    };
    let host = || authority.host_field(scheme);
    head.uri = match &options.absolute {
        Some(_) => whole_url(scheme, &host(), target),
        None => Uri::from(target),
    };
    if !head.headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::try_from(host())
    {
        head.headers.insert(header::HOST, host);
    }
    if announces == Announces::Client && !head.headers.contains_key(header::UPGRADE) {
        let close = HeaderValue::from_static("close");
        head.headers.insert(header::CONNECTION, close);
    }
    if body.is_empty() {
        // Without content there is nothing to continue with.
        head.headers.remove(header::EXPECT);
    } else if !head.headers.contains_key(header::CONTENT_LENGTH)
        && http_body::Body::size_hint(&body).exact().is_none()
    {
        head.headers.insert(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    }
    Request::from_parts(head, body)
}

/// Adds `only-if-cached`, so that the peer answers from its store or not at all, and removes Cookie
/// and Referer. A second call changes nothing.
fn only_if_cached(fields: &mut HeaderMap) {
    fields.remove(header::COOKIE);
    fields.remove(header::REFERER);
    let directive = HeaderValue::from_static("only-if-cached");
    let lines = fields.get_all(header::CACHE_CONTROL);
    if !lines.iter().any(|line| line == directive) {
        fields.append(header::CACHE_CONTROL, directive);
    }
}

/// Builds the URL for absolute-form. For `OPTIONS *` the URL should have no path (RFC 9112, section
/// 3.2.4), but `Uri` writes `/`: in this case the request is about the options of `/`.
fn whole_url(scheme: Scheme, host: &str, target: PathAndQuery) -> Uri {
    let url = Uri::builder().scheme(scheme.as_str()).authority(host);
    let url = match target.as_str() {
        "*" => url.path_and_query(""),
        _ => url.path_and_query(target.clone()),
    };
    // Host names are checked when a target is parsed; a name that `http` refuses is sent in
    // origin-form, with Host, which every proxy has to understand.
    url.build().unwrap_or_else(|_| Uri::from(target))
}

/// Returns true if a request may be sent again although the server may have seen it.
fn is_repeatable(request: &Request<RequestBody>) -> bool {
    request.body().is_empty() && request.method().is_idempotent()
}

/// Copies a request without the content.
pub fn copy_of(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    *copy.version_mut() = request.version();
    if let Some(odd) = OddTarget::from_request(request) {
        copy.extensions_mut().insert(odd.clone());
    }
    copy
}

impl SendFailure {
    /// Returns true if the failure looks like a connection that was closed while idle.
    fn is_stale_connection(&self) -> bool {
        self.failure == Failure::ConnectionTerminated && self.origin_bytes == 0
    }
}

impl Unanswered {
    fn unsent(failed: SendFailure, request: Request<RequestBody>) -> Self {
        let unsent = Some(Box::new(request));
        Self { failed, unsent }
    }
}

impl From<SendFailure> for Unanswered {
    fn from(failed: SendFailure) -> Self {
        let unsent = None;
        Self { failed, unsent }
    }
}

impl From<FailedExchange> for Unanswered {
    fn from(exchange: FailedExchange) -> Self {
        Self {
            failed: exchange.failed,
            unsent: exchange.unsent,
        }
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

/// Maximum time for a probe: until a peer has answered, or until an origin has accepted the
/// connection.
const PROBE_TIME: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
