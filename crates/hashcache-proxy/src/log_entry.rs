//! Builds the log entry of a request while the request is answered.
//!
//! Invariant: the entry is written when the last byte of the response was sent, or when it is
//! certain that this will never happen.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use hashcache_base::clock::UnixMillis;
use hashcache_base::failure::Failure;
use hashcache_http::{Scheme, Target};
use hashcache_intercept::Handshake;
use hashcache_wire::{ClientBody, ExchangeEnd, OnSent, RequestHead};
use http::header::{CONTENT_TYPE, REFERER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, Version};
use tokio::time::Instant;

use crate::access_log::{LogEntry, LoggedHop, Outcome, RequestId};
use crate::connection::Connection;
use crate::fetch::counters::ByteCount;
use crate::history::name::Name;
use crate::route::NextHop;
use crate::worker::Worker;

/// An unfinished log entry.
pub(crate) struct LogEntryBuilder {
    id: RequestId,
    start: UnixMillis,
    received: Instant,
    client: SocketAddr,
    user: Option<Arc<str>>,
    method: Method,
    version: Version,
    scheme: Scheme,
    authority: String,
    /// The registry's host, if the request is for a mirror.
    registry: Option<String>,
    path: Arc<str>,
    outcome: Outcome,
    error: Option<&'static str>,
    next_hop: Option<NextHop>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    byte_count: ByteCount,
    /// True if a tunnel has taken the entry over and writes it.
    handed_over: bool,
}

impl LogEntryBuilder {
    pub(crate) fn new(
        connection: &Connection,
        request: &Request<ClientBody>,
        head: &RequestHead,
    ) -> Self {
        let (received, version) = match head {
            RequestHead::Accepted(info) => (info.received, info.version),
            RequestHead::Refused(_) if request.version() == Version::HTTP_2 => {
                (Instant::now(), Version::HTTP_2)
            }
            RequestHead::Refused(_) => (Instant::now(), Version::HTTP_11),
        };
        Self {
            id: RequestId::fresh(),
            start: connection.worker.common.clock.now(),
            received,
            client: connection.client,
            user: connection.connect_user().cloned(),
            method: request.method().clone(),
            version,
            scheme: connection.scheme,
            authority: String::new(),
            registry: None,
            path: "".into(),
            outcome: Outcome::Own,
            error: None,
            next_hop: None,
            user_agent: request.headers().get(USER_AGENT).cloned(),
            referer: request.headers().get(REFERER).cloned(),
            byte_count: ByteCount::default(),
            handed_over: false,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the host of the upstream server: for a mirror, the registry's host.
    pub(crate) fn server(&self) -> &str {
        self.registry.as_deref().unwrap_or(&self.authority)
    }

    /// Sets the resource of the registry that a request for a mirror means.
    pub(crate) fn set_registry(&mut self, target: &Target) {
        self.registry = Some(target.authority.host_field(target.scheme));
    }

    pub(crate) fn set_authority(&mut self, authority: String) {
        self.authority = authority;
    }

    /// Sets the target; `scheme` is the scheme in the client's view.
    pub(crate) fn set_target(&mut self, target: &Target, scheme: Scheme) {
        self.authority = target.authority.host_field(target.scheme);
        self.scheme = scheme;
        self.path = target.path_and_query.clone();
    }

    /// Sets the client, if it is not the peer of the connection.
    pub(crate) fn set_client(&mut self, client: SocketAddr) {
        self.client = client;
    }

    pub(crate) fn user(&self) -> Option<&Arc<str>> {
        self.user.as_ref()
    }

    pub(crate) fn set_user(&mut self, user: Option<Arc<str>>) {
        self.user = user;
    }

    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    pub(crate) fn set_next_hop(&mut self, next_hop: Option<NextHop>) {
        self.next_hop = next_hop;
    }

    /// Returns the counter of bytes received from upstream for this request.
    pub(crate) fn byte_count(&self) -> ByteCount {
        Rc::clone(&self.byte_count)
    }

    pub(crate) fn set_failure(&mut self, failure: &Failure) {
        self.error = Some(failure.slug());
        if failure.is_denial() {
            self.outcome = Outcome::Denied;
        }
    }

    /// Sets an error although the request was answered.
    pub(crate) fn set_error(&mut self, failure: &Failure) {
        self.error = Some(failure.slug());
    }

    /// Returns the entry of the tunnel that opens now; the builder's own entry is not written then.
    pub(crate) fn begin_tunnel(&mut self) -> TunnelEntryBuilder {
        self.handed_over = true;
        TunnelEntryBuilder {
            start: self.start,
            received: self.received,
            client: self.client,
            user: self.user.clone(),
            version: self.version,
            method: self.method.clone(),
            status: if self.method == Method::CONNECT {
                200
            } else {
                101
            },
            scheme: self.scheme,
            authority: self.authority.clone(),
            path: self.path.clone(),
            next_hop: self.next_hop.clone(),
            id: self.id,
            user_agent: self.user_agent.clone(),
        }
    }

    /// Writes the entry when `response` was sent; `counted` of the sent bytes are in the metrics by
    /// then.
    pub(crate) fn finish<B>(
        self,
        connection: &Connection,
        response: &Response<B>,
        counted: ByteCount,
    ) {
        if self.handed_over {
            return;
        }
        let worker = Rc::clone(&connection.worker);
        let status = response.status().as_u16();
        // Copied, because the field would keep the whole head in memory for as long as a slow
        // client takes.
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.map(|value| Box::<[u8]>::from(value.as_bytes()));
        let first_byte = self.received.elapsed();
        connection.cell.on_sent(move |sent: ExchangeEnd| {
            let entry = LogEntry {
                start: self.start,
                duration: self.received.elapsed(),
                first_byte: Some(first_byte),
                client: self.client,
                user: self.user.as_deref(),
                method: self.method.as_str(),
                scheme: self.scheme.as_str(),
                authority: &self.authority,
                path: &self.path,
                version: self.version,
                status,
                outcome: self.outcome.with_status(status),
                aborted: !sent.complete,
                client_bytes: sent.bytes_written,
                origin_bytes: self.byte_count.get(),
                link: self.byte_count.link(),
                next_hop: logged(self.next_hop.as_ref()),
                error: self.error,
                request_id: self.id,
                user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
                referer: self.referer.as_ref().map(HeaderValue::as_bytes),
                content_type: content_type.as_deref(),
            };
            worker.metrics.record_rest(&entry, counted.get());
            worker.tally.count(Name::of_site(&self.authority), &entry);
            worker.log.write(&entry);
        });
    }
}

/// Log entry of a plain request that was answered from memory.
pub(crate) struct MemoryHitEntry<'a> {
    pub(crate) version: Version,
    pub(crate) received: Instant,
    pub(crate) target: &'a Target,
    pub(crate) status: u16,
    pub(crate) user_agent: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) content_type: Option<&'a [u8]>,
}

impl MemoryHitEntry<'_> {
    /// Returns the callback that writes the entry when the response was sent. Text is copied only
    /// if there is a log.
    pub(crate) fn on_sent(self, connection: &Connection) -> OnSent {
        let (id, start) = (RequestId::fresh(), connection.worker.common.clock.now());
        let first_byte = self.received.elapsed();
        let (client, worker) = (connection.client, Rc::clone(&connection.worker));
        let user = connection.connect_user().cloned();
        let (received, status, scheme) = (self.received, self.status, self.target.scheme);
        let version = self.version;
        let site = Name::new(self.target.authority.display(self.target.scheme));
        let texts = worker.log.is_written().then(|| {
            let copy = |text: Option<&[u8]>| text.map(Box::<[u8]>::from);
            let path = self.target.path_and_query.clone();
            let kept = [self.user_agent, self.referer, self.content_type].map(copy);
            Box::new((
                self.target.authority.host_field(self.target.scheme),
                path,
                kept,
            ))
        });
        Box::new(move |sent: ExchangeEnd| {
            let (authority, path, kept) = match &texts {
                Some(texts) => {
                    let (authority, path, kept) = &**texts;
                    (
                        &authority[..],
                        &path[..],
                        kept.each_ref().map(Option::as_deref),
                    )
                }
                None => ("", "", [None; 3]),
            };
            let entry = LogEntry {
                start,
                duration: received.elapsed(),
                first_byte: Some(first_byte),
                client,
                user: user.as_deref(),
                method: Method::GET.as_str(),
                scheme: scheme.as_str(),
                authority,
                path,
                version,
                status,
                outcome: Outcome::MemoryHit,
                aborted: !sent.complete,
                client_bytes: sent.bytes_written,
                origin_bytes: 0,
                link: None,
                next_hop: None,
                error: None,
                request_id: id,
                user_agent: kept[0],
                referer: kept[1],
                content_type: kept[2],
            };
            worker.metrics.record(&entry);
            worker.tally.count(site, &entry);
            worker.log.write(&entry);
        })
    }
}

fn logged(next_hop: Option<&NextHop>) -> Option<LoggedHop<'_>> {
    next_hop.map(|hop| LoggedHop {
        address: hop.address,
        peer: hop.peer.as_ref().map(|peer| peer.name()),
        code: hop.code(),
    })
}

/// The unfinished log entry of a tunnel.
pub(crate) struct TunnelEntryBuilder {
    start: UnixMillis,
    received: Instant,
    client: SocketAddr,
    user: Option<Arc<str>>,
    version: Version,
    method: Method,
    status: u16,
    scheme: Scheme,
    authority: String,
    path: Arc<str>,
    next_hop: Option<NextHop>,
    id: RequestId,
    user_agent: Option<HeaderValue>,
}

impl TunnelEntryBuilder {
    /// Creates the entry of a connection to a forwarded port for `authority`. The client sends no
    /// request; the log shows the CONNECT to the parent.
    pub(crate) fn of_forward(worker: &Worker, client: SocketAddr, authority: String) -> Self {
        Self {
            version: Version::HTTP_2,
            ..Self::of_transparent(worker, client, authority)
        }
    }

    /// Creates the entry of a connection to `authority` that the network has diverted here. The
    /// client sends no request; the log shows the CONNECT that a client with proxy settings would
    /// send.
    pub(crate) fn of_transparent(worker: &Worker, client: SocketAddr, authority: String) -> Self {
        Self {
            start: worker.common.clock.now(),
            received: Instant::now(),
            client,
            user: None,
            version: Version::HTTP_11,
            method: Method::CONNECT,
            status: 200,
            scheme: Scheme::Http,
            authority,
            path: "".into(),
            next_hop: None,
            id: RequestId::fresh(),
            user_agent: None,
        }
    }

    /// Sets the server, if it was not known at the start.
    pub(crate) fn set_authority(&mut self, authority: String) {
        self.authority = authority;
    }

    /// Sets the next hop, if it was not known at the start of the tunnel.
    pub(crate) fn set_next_hop(&mut self, next_hop: NextHop) {
        self.next_hop = Some(next_hop);
    }

    /// Writes an entry about the traffic since the previous entry.
    pub(crate) fn write(&self, worker: &Worker, to_client: u64, aborted: bool) {
        self.write_as(worker, Outcome::Tunnel, to_client, (aborted, None));
    }

    /// Writes the entry of a tunnel that is not allowed, or has no reachable upstream.
    pub(crate) fn failed(&self, worker: &Worker, failure: &Failure) {
        let outcome = if failure.is_denial() {
            Outcome::Denied
        } else {
            Outcome::Tunnel
        };
        self.write_as(worker, outcome, 0, (true, Some(failure.slug())));
    }

    /// Writes the entry of a diverted connection that gets no tunnel, with the status that a client
    /// with proxy settings would get.
    pub(crate) fn refused(&mut self, worker: &Worker, failure: &Failure) {
        self.status = failure.status().as_u16();
        self.failed(worker, failure);
    }

    /// Writes the entry of an intercepted CONNECT; the requests inside have separate entries.
    pub(crate) fn intercepted(&self, worker: &Worker, handshake: Handshake) {
        let failed = match handshake {
            Handshake::Finished => (false, None),
            Handshake::Refused => (true, Some("certificate-refused")),
            Handshake::Left => (true, Some("handshake-left")),
            Handshake::Failed => (true, Some("handshake-failed")),
        };
        self.write_as(worker, Outcome::Intercepted, 0, failed);
    }

    fn write_as(
        &self,
        worker: &Worker,
        outcome: Outcome,
        to_client: u64,
        (aborted, error): (bool, Option<&'static str>),
    ) {
        let entry = LogEntry {
            start: self.start,
            duration: self.received.elapsed(),
            first_byte: None,
            client: self.client,
            user: self.user.as_deref(),
            method: self.method.as_str(),
            scheme: self.scheme.as_str(),
            authority: &self.authority,
            path: &self.path,
            version: self.version,
            status: self.status,
            outcome,
            aborted,
            client_bytes: to_client,
            origin_bytes: to_client,
            link: None,
            next_hop: logged(self.next_hop.as_ref()),
            error,
            request_id: self.id,
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: None,
            content_type: None,
        };
        worker.metrics.record(&entry);
        worker.tally.count(Name::of_site(&self.authority), &entry);
        worker.log.write(&entry);
    }
}
