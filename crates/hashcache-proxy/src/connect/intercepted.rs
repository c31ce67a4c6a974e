//! CONNECT to a host whose TLS may end here: what is found out between the 200 and the first
//! request inside, and the tunnel it becomes when anything speaks against it.
//!
//! Called by `connect`; the parts are those of `intercept`. What is asked inside goes through
//! `server` and `request` like any other request.
//!
//! Invariant: until our handshake begins, everything the client said can still be replayed to the
//! origin. A host that was verified lately is not connected to before somebody needs it. Cost: for
//! a host that is not known, a connection and a handshake with it; for others a look at two tables.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use hashcache_http::{Host, RequestTarget, Scheme, UnixTime};
use http::StatusCode;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::tunnel;
use crate::connection::{Connection, InterceptedFor};
use crate::failure::Failure;
use crate::intercept::client_hello::ParsedHello;
use crate::intercept::peek::peek;
use crate::intercept::refusals::ClientProgram;
use crate::intercept::{Handshake, InterceptKind, Interceptor, PEEK_TIME, Reason, suits};
use crate::log_entry::{LogEntryBuilder, TunnelEntryBuilder};
use crate::share::ShareReservation;
use crate::upstream::Unverified;
use crate::upstream::endpoint::Endpoint;
use crate::wire::{self, INTERCEPTED_BYTES, Protocol, Socket, Upgraded, handshake};
use crate::worker::Worker;

/// A CONNECT that may be intercepted, by its name alone.
pub(crate) struct Candidate {
    interceptor: Arc<Interceptor>,
    kind: InterceptKind,
    to: Endpoint,
    host: Box<str>,
    memory: ShareReservation,
}

/// Whether a CONNECT to `to` may be intercepted.
pub(crate) fn candidate(connection: &Connection, to: &Endpoint) -> Option<Candidate> {
    let worker = &connection.worker;
    let interceptor = worker.common.live().intercept.clone()?;
    let judged = interceptor.judge(&to.authority).and_then(|kind| {
        let memory = connection.allowance.reserve(INTERCEPTED_BYTES);
        Ok((kind, memory.ok_or(Reason::Memory)?))
    });
    match (judged, &to.authority.host) {
        (Ok((kind, memory)), Host::Name(name)) => Some(Candidate {
            interceptor,
            kind,
            to: to.clone(),
            host: name.clone(),
            memory,
        }),
        (Ok(_), Host::V4(_) | Host::V6(_)) => None,
        (Err(reason), _) => {
            worker.metrics.not_intercepted(reason);
            None
        }
    }
}

/// Agrees to the CONNECT, after it has connected to a host that is not known, so that the client
/// hears of a failure; then goes on by itself.
pub(crate) async fn begin(
    connection: &Rc<Connection>,
    candidate: Candidate,
    log_entry: &mut LogEntryBuilder,
) -> Result<(), Failure> {
    let worker = &connection.worker;
    let upstream = match candidate.is_known(worker) {
        true => None,
        false => {
            let (upstream, peer) = worker.upstream().connect(&candidate.to).await?;
            log_entry.set_upstream(Some(peer));
            Some(upstream)
        }
    };
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
    tokio::task::spawn_local(going);
}

/// What follows the 200.
async fn go_on(
    connection: Rc<Connection>,
    candidate: Candidate,
    client: oneshot::Receiver<Upgraded>,
    upstream: Option<TcpStream>,
    log_entry: TunnelEntryBuilder,
) {
    let worker = &connection.worker;
    let Ok(Upgraded { socket, read }) = client.await else {
        return log_entry.write(worker, 0, true);
    };
    let mut drained = connection.drained.clone();
    let deciding = Box::pin(decide(
        worker,
        &connection,
        candidate,
        socket.begun_with(read),
        upstream,
    ));
    let decided = tokio::select! {
        decided = deciding => decided,
        _ = drained.wait_for(|drained| *drained) => return log_entry.write(worker, 0, true),
    };
    match decided {
        Decision::Tunnel(tunnel) => {
            worker.metrics.not_intercepted(tunnel.reason);
            tunnel.carry(&connection, log_entry).await;
        }
        Decision::Broken(handshake) => {
            worker.metrics.intercepted(handshake);
            log_entry.intercepted(worker, handshake);
        }
        Decision::Ours(ours) => {
            worker.metrics.intercepted(Handshake::Finished);
            log_entry.intercepted(worker, Handshake::Finished);
            ours.serve(&connection).await;
        }
    }
}

/// What becomes of a candidate.
enum Decision {
    Tunnel(Tunnel),
    /// Our handshake was not finished.
    Broken(Handshake),
    Ours(Intercepted),
}

/// Bytes that go on as they came.
struct Tunnel {
    reason: Reason,
    client: Socket,
    upstream: Option<TcpStream>,
    to: Endpoint,
}

/// A client whose TLS ended here.
struct Intercepted {
    socket: Socket,
    protocol: Protocol,
    intercepted: Rc<InterceptedFor>,
}

/// Looks at what the client says and finds out whether it may be answered by us.
async fn decide(
    worker: &Rc<Worker>,
    connection: &Connection,
    candidate: Candidate,
    mut client: Socket,
    mut upstream: Option<TcpStream>,
) -> Decision {
    let peeked = peek(&mut client, PEEK_TIME, &worker.cache).await;
    let client = client.begun_with(peeked.bytes).until_read(peeked.memory);
    let hello = peeked
        .seen
        .and_then(|hello| suits(&hello, &candidate.host).map(|()| hello));
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
            return Decision::Tunnel(Tunnel {
                reason,
                client,
                upstream,
                to: candidate.to,
            });
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
                to, kind, memory, ..
            } = candidate;
            let intercepted = Rc::new(InterceptedFor::new(to.authority, kind, program, memory));
            Decision::Ours(Intercepted {
                socket,
                protocol,
                intercepted,
            })
        }
        Err(error) => {
            let handshake = Handshake::of(&error);
            debug!(client = %connection.client, host = %candidate.host, %error, "not believed");
            match handshake {
                // By a wrong clock our certificate ends too early for everybody.
                _ if !is_origin || worker.common.clock.suspect() => {}
                Handshake::Refused => refusals.note_refusal(&program, Instant::now()),
                Handshake::Left => refusals.note_abort(&program, Instant::now()),
                Handshake::Finished | Handshake::Failed => {}
            }
            Decision::Broken(handshake)
        }
    }
}

fn shaken_in_time<T>(shaken: Result<io::Result<T>, tokio::time::error::Elapsed>) -> io::Result<T> {
    shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Candidate {
    /// Whether the host need not be asked.
    fn is_known(&self, worker: &Worker) -> bool {
        self.kind == InterceptKind::SelfTest || self.verified_until(worker).is_some()
    }

    fn verified_until(&self, worker: &Worker) -> Option<UnixTime> {
        let common = &worker.common;
        common
            .intercept
            .verified
            .not_after(&self.to.authority, common.now())
    }

    /// Makes ready to answer for the host, which may mean to verify it first.
    async fn enable(
        &self,
        worker: &Worker,
        connection: &Connection,
        hello: &ParsedHello,
        upstream: &mut Option<TcpStream>,
    ) -> Result<(ClientProgram, tokio_rustls::TlsAcceptor), Reason> {
        let common = &worker.common;
        let program = ClientProgram {
            client: connection.client.ip(),
            host: self.host.clone(),
            fingerprint: hello.fingerprint,
        };
        let is_origin = self.kind == InterceptKind::Origin;
        if is_origin && common.intercept.refusals.tunnels(&program, Instant::now()) {
            return Err(Reason::Learned);
        }
        let not_after = match self.verified_until(worker) {
            _ if !is_origin => UnixTime(u64::from(u32::MAX)),
            Some(not_after) => not_after,
            None => self.verify(worker, upstream.take()).await?,
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

    /// Verifies the host by a connection that serves nothing else.
    async fn verify(
        &self,
        worker: &Worker,
        upstream: Option<TcpStream>,
    ) -> Result<UnixTime, Reason> {
        let common = &worker.common;
        let verified = worker.upstream().verify(&self.to, upstream).await;
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
            .note(&self.to.authority, not_after, common.now());
        Ok(not_after)
    }
}

impl Tunnel {
    /// Carries bytes both ways until the end, to an upstream that is connected to if need be.
    async fn carry(self, connection: &Rc<Connection>, mut log_entry: TunnelEntryBuilder) {
        let worker = &connection.worker;
        let upstream = match self.upstream {
            Some(upstream) => upstream,
            None => {
                let mut drained = connection.drained.clone();
                let upstream = worker.upstream();
                let connected = tokio::select! {
                    connected = upstream.connect(&self.to) => connected,
                    _ = drained.wait_for(|drained| *drained) => {
                        return log_entry.write(worker, 0, true);
                    }
                };
                match connected {
                    Ok((upstream, peer)) => {
                        log_entry.set_upstream(peer);
                        upstream
                    }
                    // The client has its 200; all there is left to say is that it ends.
                    Err(failure) => return log_entry.failed(worker, &failure),
                }
            }
        };
        let open = worker.metrics.tunnel();
        tunnel::carry(connection, log_entry, self.client, upstream, open).await;
    }
}

impl Intercepted {
    /// Serves the requests inside until the connection ends.
    async fn serve(self, connection: &Connection) {
        let worker = &connection.worker;
        let intercepted = Rc::clone(&self.intercepted);
        let inside = Connection {
            cell: wire::Cell::within(&connection.allowance, INTERCEPTED_BYTES),
            scheme: Scheme::Https,
            intercepted: Some(self.intercepted),
            ..connection.clone()
        };
        let mut drained = connection.drained.clone();
        let stopping = connection.stopping.clone();
        let serving = (connection.serve_inside)(self.socket, self.protocol, inside, stopping);
        tokio::select! {
            ending = serving => worker.count_ending(ending),
            _ = drained.wait_for(|drained| *drained) => {}
        }
        // Whom we told to stop may have had no time to ask.
        let is_stopping = *connection.stopping.borrow();
        if !intercepted.has_asked.get() && !intercepted.is_self_test() && !is_stopping {
            let intercept_state = &worker.common.intercept;
            intercept_state
                .refusals
                .note_silence(&intercepted.program, Instant::now());
        }
    }
}

/// Why a request on an intercepted connection is not answered, if it is not.
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
