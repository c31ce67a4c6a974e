//! CONNECT to a host that may be intercepted: the decisions between the 200 and the first request
//! inside, and the tunnel if the connection is not intercepted.
//!
//! Called by `connect`, and by `transparent` for connections without a CONNECT; uses the modules of
//! `hashcache-intercept`. Requests inside pass through `server` and `request` like all others.
//!
//! Invariants: until our TLS handshake starts, every byte from the client can still be sent to the
//! origin. A refused client gets no tunnel, however the handshake turns out. No connection is made
//! to a recently verified host before it is needed. Cost: for a host that is not verified, a
//! connection and a handshake with it; for other hosts two lookups in memory.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashcache_access::RequestUser;
use hashcache_access::quota::RequestLimits;
use hashcache_base::failure::Failure;
use hashcache_base::share::ShareReservation;
use hashcache_base::task::spawn_local;
use hashcache_http::{Authority, Host, RequestTarget, Scheme, UnixTime};
use hashcache_intercept::client_hello::ParsedHello;
use hashcache_intercept::hosts::without_dot;
use hashcache_intercept::peek::peek;
use hashcache_intercept::refusals::ClientProgram;
use hashcache_intercept::{Handshake, InterceptKind, Interceptor, PEEK_TIME, Reason, suits};
use hashcache_upstream::Unverified;
use hashcache_upstream::channel::Channel;
use hashcache_wire::{INTERCEPTED_BYTES, Protocol, Socket, Upgraded, handshake};
use http::header::{USER_AGENT, VIA};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::dial::{self, Destination};
use crate::connection::{Connection, InterceptedFor};
use crate::log_entry::{LogEntryBuilder, TunnelEntryBuilder};
use crate::worker::{LiveSettings, Worker};

/// A CONNECT that may be intercepted, judging by the host name.
pub(crate) struct Candidate {
    interceptor: Arc<Interceptor>,
    kind: InterceptKind,
    user: Option<Arc<str>>,
    authority: Authority,
    to: Destination,
    host: Box<str>,
    memory: ShareReservation,
    /// Limits for the connection if it becomes a tunnel.
    limits: Option<RequestLimits>,
    /// Set if the client gets only an error page with this failure, and nothing from the host.
    refused: Option<Failure>,
    /// The client shows such a page to a person.
    is_browser: bool,
}

/// A CONNECT to `to`, if it may be intercepted.
///
/// # Errors
/// There is no memory to find the host that the client names, and the rules must know that host.
pub(crate) fn candidate(
    connection: &Connection,
    authority: &Authority,
    user: Option<&Arc<str>>,
    to: &Destination,
) -> Result<Option<Candidate>, Failure> {
    let worker = &connection.worker;
    let Some(interceptor) = worker.common.live().intercept.clone() else {
        return Ok(None);
    };
    let judged = interceptor.judge(authority).and_then(|kind| {
        let memory = connection.allowance.reserve(INTERCEPTED_BYTES);
        Ok((kind, memory.ok_or(Reason::Memory)?))
    });
    match (judged, &authority.host) {
        (Ok((kind, memory)), Host::Name(name)) => Ok(Some(Candidate {
            interceptor,
            kind,
            user: user.cloned(),
            authority: authority.clone(),
            to: to.clone(),
            host: without_dot(name).into(),
            memory,
            limits: None,
            refused: None,
            is_browser: false,
        })),
        (Ok(_), Host::V4(_) | Host::V6(_)) => Ok(None),
        (Err(reason), _) => {
            worker.metrics.not_intercepted(reason);
            if reason == Reason::Memory && judges_hosts(connection) {
                Err(NO_MEMORY)
            } else {
                Ok(None)
            }
        }
    }
}

/// Returns true if a person sees the response that the client gets inside a tunnel. Other programs
/// and other caches understand the answer to their CONNECT, and fewer of them trust our certificate
/// authority.
pub(super) fn is_browser(connection: &Connection, fields: &HeaderMap) -> bool {
    let agent = fields.get(USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_some_and(|agent| agent.starts_with(b"Mozilla/"))
        && connection.child.is_none()
        && !fields.contains_key(VIA)
        && connection.peer().is_none()
}

/// Returns true if this proxy may terminate TLS for the host, judging by the name.
pub(super) fn is_listed(live: &LiveSettings, authority: &Authority) -> bool {
    let interceptor = live.intercept.as_ref();
    interceptor.is_some_and(|it| it.judge(authority) == Ok(InterceptKind::Origin))
}

/// Returns true if rules apply to the host name in the ClientHello.
fn judges_hosts(connection: &Connection) -> bool {
    let live = connection.worker.common.live();
    connection.access.judges_hosts(&live)
}

/// Time to wait for a ClientHello. If rules judge the host in it, there may be no tunnel without
/// it, so a slow client then gets more time.
pub(super) fn peek_time(connection: &Connection) -> Duration {
    if judges_hosts(connection) {
        PEEK_TIME.max(connection.worker.limits.head_time)
    } else {
        PEEK_TIME
    }
}

/// Answers the CONNECT. Connects first if the host is not verified, so that the client gets an
/// error response if that fails; but a browser gets the page about an offline line inside. The rest
/// runs in a separate task.
pub(crate) async fn begin(
    connection: &Rc<Connection>,
    mut candidate: Candidate,
    log_entry: &mut LogEntryBuilder,
) -> Result<(), Failure> {
    let worker = &connection.worker;
    let mut upstream = None;
    if !candidate.is_known(worker) {
        let share = connection.allowance.share();
        match candidate.to.dial(worker, share).await {
            Ok((channel, next_hop)) => {
                log_entry.set_next_hop(Some(next_hop));
                upstream = Some(channel);
            }
            Err(Failure::Offline) if candidate.is_browser => {
                candidate = candidate.refused(Failure::Offline);
            }
            Err(failure) => return Err(failure),
        }
    }
    let client = connection.cell.upgraded();
    let connection = Rc::clone(connection);
    spawn(go_on(
        connection,
        candidate,
        client,
        upstream,
        log_entry.begin_tunnel(),
    ));
    Ok(())
}

fn spawn(going: impl Future<Output = ()> + 'static) {
    spawn_local(going);
}

/// Runs after the 200 was sent.
async fn go_on(
    connection: Rc<Connection>,
    candidate: Candidate,
    client: oneshot::Receiver<Upgraded>,
    upstream: Option<Channel>,
    log_entry: TunnelEntryBuilder,
) {
    let worker = &connection.worker;
    let refused = candidate.refused.clone();
    let Ok(Upgraded { socket, read }) = client.await else {
        return log_left(worker, &log_entry, refused.as_ref());
    };
    let mut client = socket.begun_with(read);
    let mut drained = connection.drained.clone();
    let time = peek_time(&connection);
    let peeking = Box::pin(peek(&mut client, time, &connection.allowance));
    let peeked = tokio::select! {
        peeked = peeking => peeked,
        _ = drained.wait_for(|drained| *drained) => {
            return log_left(worker, &log_entry, refused.as_ref());
        }
    };
    let client = client.begun_with(peeked.bytes).until_read(peeked.memory);
    answer(
        &connection,
        candidate,
        (client, peeked.seen),
        upstream,
        log_entry,
    )
    .await;
}

/// Logs a connection that was closed before the decision whether to intercept it.
fn log_left(worker: &Worker, log_entry: &TunnelEntryBuilder, refused: Option<&Failure>) {
    match refused {
        Some(failure) => log_entry.failed(worker, failure),
        None => log_entry.write(worker, 0, true),
    }
}

/// Serves a client that has sent `hello`, or makes a tunnel for it. `hello` will be read from
/// `client` again.
pub(super) async fn answer(
    connection: &Rc<Connection>,
    candidate: Candidate,
    (client, hello): (Socket, Result<ParsedHello, Reason>),
    upstream: Option<Channel>,
    log_entry: TunnelEntryBuilder,
) {
    let worker = &connection.worker;
    let refused = candidate.refused.clone();
    let mut drained = connection.drained.clone();
    let deciding = Box::pin(decide(connection, candidate, client, hello, upstream));
    let decided = tokio::select! {
        decided = deciding => decided,
        _ = drained.wait_for(|drained| *drained) => {
            return log_left(worker, &log_entry, refused.as_ref());
        }
    };
    match decided {
        Decision::Tunnel(tunnel) => {
            worker.metrics.not_intercepted(tunnel.reason);
            let Tunnel {
                client,
                upstream,
                to,
                limits,
                ..
            } = *tunnel;
            let way = (&to, limits);
            dial::carry(connection, (client, upstream), way, log_entry).await;
        }
        Decision::Denied(failure) => log_entry.failed(worker, &failure),
        Decision::Broken(handshake) => {
            worker.metrics.intercepted(handshake);
            match &refused {
                Some(failure) => log_entry.failed(worker, failure),
                None => log_entry.intercepted(worker, handshake),
            }
        }
        Decision::Ours(ours) => {
            worker.metrics.intercepted(Handshake::Finished);
            log_entry.intercepted(worker, Handshake::Finished);
            ours.serve(connection).await;
        }
    }
}

/// The decision about a candidate.
enum Decision {
    Tunnel(Box<Tunnel>),
    /// The client may not connect to the host in the ClientHello, or the host cannot be read
    /// although the rules must know it.
    Denied(Failure),
    /// The client did not finish our handshake.
    Broken(Handshake),
    Ours(Intercepted),
}

/// A tunnel: bytes are forwarded unchanged.
struct Tunnel {
    reason: Reason,
    client: Socket,
    upstream: Option<Channel>,
    to: Destination,
    limits: Option<RequestLimits>,
}

/// A client with TLS that this proxy terminates.
struct Intercepted {
    socket: Socket,
    protocol: Protocol,
    intercepted: Rc<InterceptedFor>,
}

/// Decides whether the proxy may answer the ClientHello.
async fn decide(
    connection: &Connection,
    candidate: Candidate,
    client: Socket,
    hello: Result<ParsedHello, Reason>,
    mut upstream: Option<Channel>,
) -> Decision {
    let worker = &connection.worker;
    let named = hello.as_ref().map(|hello| hello.name.clone());
    let named = named.map_err(|reason| *reason);
    let hello = hello.and_then(|hello| suits(&hello, &candidate.host).map(|()| hello));
    let able = match hello {
        Ok(hello) => {
            candidate
                .enable(worker, connection, &hello, &mut upstream)
                .await
        }
        Err(reason) => Err(reason),
    };
    let (program, acceptor) = match able {
        Ok(able) => able,
        Err(reason) => {
            let denied = match named {
                Ok(name) => name.and_then(|name| candidate.denied(connection, &name)),
                Err(reason) => hides_host(reason, connection).then_some(HIDDEN_HOST),
            };
            if let Some(failure) = candidate.refused.clone().or(denied) {
                return Decision::Denied(failure);
            }
            return Decision::Tunnel(Box::new(Tunnel {
                reason,
                client,
                upstream,
                to: candidate.to,
                limits: candidate.limits,
            }));
        }
    };
    drop(upstream);
    let refusals = &worker.common.intercept.refusals;
    let is_origin = candidate.kind == InterceptKind::Origin;
    let shaking = timeout(worker.limits.head_time, handshake(client, acceptor)).await;
    let shaken = shaken_in_time(shaking);
    match shaken {
        Ok((socket, protocol)) => {
            let Candidate {
                authority,
                kind,
                user,
                memory,
                refused,
                ..
            } = candidate;
            let intercepted = InterceptedFor::new(authority, (kind, user), program, memory);
            let intercepted = Rc::new(intercepted.refused(refused));
            Decision::Ours(Intercepted {
                socket,
                protocol,
                intercepted,
            })
        }
        Err(error) => {
            let handshake = Handshake::from_error(&error);
            debug!(client = %connection.client, host = %candidate.host, %error, "not believed");
            match handshake {
                // If our clock is wrong, every client may take our certificate as expired.
                _ if !is_origin || worker.common.clock.suspect() => {}
                // The client was refused, so there is no tunnel to fall back to.
                _ if candidate.refused.is_some() => {}
                Handshake::Refused => refusals.note_refusal(&program, Instant::now()),
                Handshake::Left => refusals.note_abort(&program, Instant::now()),
                Handshake::Finished | Handshake::Failed => {}
            }
            Decision::Broken(handshake)
        }
    }
}

/// Returns true if a client could still name a host inside the tunnel that the rules must know.
pub(super) fn hides_host(reason: Reason, connection: &Connection) -> bool {
    let is_hidden = matches!(reason, Reason::Slow | Reason::Malformed | Reason::Memory);
    is_hidden && judges_hosts(connection)
}

fn shaken_in_time<T>(shaken: Result<io::Result<T>, tokio::time::error::Elapsed>) -> io::Result<T> {
    shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Candidate {
    /// Sets the limits that apply if the connection becomes a tunnel. Requests inside have their
    /// own limits.
    pub(super) fn within(self, limits: Option<RequestLimits>) -> Self {
        Self { limits, ..self }
    }

    /// Marks the client as refused: each request gets the page about `failure`.
    pub(super) fn refused(self, failure: Failure) -> Self {
        Self {
            refused: Some(failure),
            ..self
        }
    }

    /// Marks the client as a browser, which shows such pages to a person.
    pub(super) fn of_browser(self) -> Self {
        Self {
            is_browser: true,
            ..self
        }
    }

    /// Reason to refuse a tunnel to the host in the ClientHello, if that host is not the host in
    /// the CONNECT: many servers answer for both.
    fn denied(&self, connection: &Connection, name: &str) -> Option<Failure> {
        if without_dot(name) == &*self.host {
            return None;
        }
        let authority = Authority {
            host: Host::parse(name).ok()?,
            port: self.authority.port,
        };
        let user = self.user.as_deref();
        let user = user.map_or(RequestUser::Unknowable, RequestUser::Known);
        let worker = &connection.worker;
        let live = worker.common.live();
        let request = (user, "CONNECT", &authority);
        connection.access.permit(worker, &live, request).err()
    }

    /// Returns true if the host needs no connection for verification now. If the client is refused,
    /// nothing from the host is shown and nothing is sent there.
    fn is_known(&self, worker: &Worker) -> bool {
        self.kind == InterceptKind::SelfTest
            || self.refused.is_some()
            || self.verified_until(worker).is_some()
    }

    fn verified_until(&self, worker: &Worker) -> Option<UnixTime> {
        let common = &worker.common;
        common
            .intercept
            .verified
            .not_after(&self.authority, common.now())
    }

    /// Prepares a certificate for the host, after verifying the host if necessary.
    async fn enable(
        &self,
        worker: &Worker,
        connection: &Connection,
        hello: &ParsedHello,
        upstream: &mut Option<Channel>,
    ) -> Result<(ClientProgram, tokio_rustls::TlsAcceptor), Reason> {
        let common = &worker.common;
        let program = ClientProgram {
            client: connection.client.ip(),
            host: self.host.clone(),
            fingerprint: hello.fingerprint,
        };
        let is_origin = self.kind == InterceptKind::Origin;
        let may_be_tunnel = is_origin && self.refused.is_none();
        if may_be_tunnel && common.intercept.refusals.tunnels(&program, Instant::now()) {
            return Err(Reason::Learned);
        }
        let not_after = match self.verified_until(worker) {
            _ if !is_origin || self.refused.is_some() => UnixTime(u64::from(u32::MAX)),
            Some(not_after) => not_after,
            None => self.verify(worker, connection, upstream.take()).await?,
        };
        let acceptor = self
            .interceptor
            .acceptor(&self.host, not_after, common.now());
        let acceptor = acceptor.map_err(|error| {
            debug!(host = %self.host, %error, "no certificate for a host");
            Reason::NoLeaf
        })?;
        Ok((program, acceptor))
    }

    /// Verifies the host on a connection that is used for nothing else.
    async fn verify(
        &self,
        worker: &Worker,
        connection: &Connection,
        upstream: Option<Channel>,
    ) -> Result<UnixTime, Reason> {
        let common = &worker.common;
        let channel = match upstream {
            Some(channel) => Ok(channel),
            None => {
                let dialled = self.to.dial(worker, connection.allowance.share()).await;
                dialled.map(|(channel, _)| channel)
            }
        };
        let verified = match channel {
            Ok(channel) => {
                worker
                    .upstream()
                    .verify(&self.authority.host, channel)
                    .await
            }
            Err(failure) => Err(Unverified::Failed(failure)),
        };
        let not_after = verified.map_err(|unverified| match unverified {
            Unverified::Failed(failure) => {
                debug!(host = %self.host, %failure, "host not verified");
                Reason::Unverified
            }
            Unverified::WantsCertificate => Reason::ClientCertificate,
        })?;
        let intercept_state = &common.intercept;
        intercept_state
            .verified
            .note(&self.authority, not_after, common.now());
        Ok(not_after)
    }
}

impl Intercepted {
    /// Serves the requests inside until the connection closes.
    async fn serve(self, connection: &Connection) {
        let worker = &connection.worker;
        let intercepted = Rc::clone(&self.intercepted);
        let inside = Connection {
            cell: hashcache_wire::Cell::within(&connection.allowance, INTERCEPTED_BYTES),
            scheme: Scheme::Https,
            intercepted: Some(self.intercepted),
            ..connection.clone()
        };
        let mut drained = connection.drained.clone();
        let refused = intercepted.refusal();
        let stopping = match refused {
            Some(refused) => refused.ending(),
            None => connection.stopping.clone(),
        };
        let ending = async {
            match refused {
                Some(refused) => refused.end_with(connection.stopping.clone()).await,
                None => std::future::pending().await,
            }
        };
        let serving = (connection.serve_inside)(self.socket, self.protocol, inside, stopping);
        tokio::select! {
            ending = serving => worker.count_ending(ending),
            () = ending => {}
            _ = drained.wait_for(|drained| *drained) => {}
        }
        // A client that was stopped by us may not have had time for a request, so silence proves
        // nothing.
        let is_stopping = *connection.stopping.borrow();
        let is_silent = !intercepted.has_asked.get() && !is_stopping;
        if is_silent && !intercepted.is_self_test() && refused.is_none() {
            let intercept_state = &worker.common.intercept;
            intercept_state
                .refusals
                .note_silence(&intercepted.program, Instant::now());
        }
    }
}

/// The failure for a request that does not belong to this intercepted connection; `None` if it
/// belongs to it.
pub(crate) fn refusal(intercepted: &InterceptedFor, named: &RequestTarget) -> Option<Failure> {
    let is_ours = match named {
        RequestTarget::Resource(target) => {
            target.scheme == Scheme::Https && target.authority == intercepted.authority
        }
        RequestTarget::Server(authority) => *authority == intercepted.authority,
        RequestTarget::Tunnel(_) => {
            return Some(Failure::NotImplemented("CONNECT within another"));
        }
    };
    (!is_ours).then_some(Failure::Refused {
        status: StatusCode::MISDIRECTED_REQUEST,
        reason: "this connection was made for another host",
    })
}

/// The failure if the ClientHello does not arrive, or cannot be read.
pub(super) const HIDDEN_HOST: Failure = Failure::Refused {
    status: StatusCode::FORBIDDEN,
    reason: "the rules must know the host of the TLS handshake, and it cannot be read",
};
const NO_MEMORY: Failure = Failure::Refused {
    status: StatusCode::SERVICE_UNAVAILABLE,
    reason: "no memory for a TLS handshake",
};
