//! What will stand in the log about a request, gathered on its way.
//!
//! Invariant: the entry is written when the last byte of the answer has gone, or never will.

use std::net::SocketAddr;
use std::rc::Rc;

use hashcache_http::{Scheme, Target};
use http::header::{CONTENT_TYPE, REFERER, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, Version};
use tokio::time::Instant;

use crate::access_log::{LogEntry, Outcome, RequestId};
use crate::clock::UnixMillis;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fetch::counters::ByteCount;
use crate::intercept::Handshake;
use crate::wire::{ClientBody, ExchangeEnd, RequestHead};
use crate::worker::Worker;

/// The beginnings of a log entry.
pub(crate) struct LogEntryBuilder {
    id: RequestId,
    start: UnixMillis,
    received: Instant,
    client: SocketAddr,
    method: Method,
    version: Version,
    scheme: Scheme,
    authority: String,
    path: Box<str>,
    outcome: Outcome,
    error: Option<&'static str>,
    upstream: Option<SocketAddr>,
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    byte_count: ByteCount,
    /// The entry is written by somebody else: the tunnel.
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
            method: request.method().clone(),
            version,
            scheme: connection.scheme,
            authority: String::new(),
            path: "".into(),
            outcome: Outcome::Own,
            error: None,
            upstream: None,
            user_agent: request.headers().get(USER_AGENT).cloned(),
            referer: request.headers().get(REFERER).cloned(),
            byte_count: ByteCount::default(),
            handed_over: false,
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn set_authority(&mut self, authority: String) {
        self.authority = authority;
    }

    /// Notes what is asked for; `scheme` is that of the URL the client has in mind.
    pub(crate) fn set_target(&mut self, target: &Target, scheme: Scheme) {
        self.authority = Worker::host_field(target);
        self.scheme = scheme;
        self.path = target.path_and_query.clone();
    }

    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    pub(crate) fn set_upstream(&mut self, peer: Option<SocketAddr>) {
        self.upstream = peer;
    }

    /// Counts what is received from upstream on behalf of this request.
    pub(crate) fn byte_count(&self) -> ByteCount {
        Rc::clone(&self.byte_count)
    }

    pub(crate) fn set_failure(&mut self, failure: &Failure) {
        self.error = Some(failure.slug());
        if matches!(
            failure,
            Failure::ClientDenied { .. }
                | Failure::ConnectPortDenied { .. }
                | Failure::PortDenied { .. }
                | Failure::DestinationDenied { .. }
        ) {
            self.outcome = Outcome::Denied;
        }
    }

    /// Something went wrong, but the request was answered all the same.
    pub(crate) fn set_error(&mut self, failure: &Failure) {
        self.error = Some(failure.slug());
    }

    /// The entry of a tunnel that is open now; this note's own is not written.
    pub(crate) fn begin_tunnel(&mut self) -> TunnelEntryBuilder {
        self.handed_over = true;
        TunnelEntryBuilder {
            start: self.start,
            received: self.received,
            client: self.client,
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
            upstream: self.upstream,
            id: self.id,
            user_agent: self.user_agent.clone(),
        }
    }

    /// Has the entry written when `response` is out, of which `counted` bytes are counted by then.
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
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        let first_byte = self.received.elapsed();
        connection.cell.on_sent(move |sent: ExchangeEnd| {
            let entry = LogEntry {
                start: self.start,
                duration: self.received.elapsed(),
                first_byte: Some(first_byte),
                client: self.client,
                method: self.method.as_str(),
                scheme: self.scheme.as_str(),
                authority: &self.authority,
                path: &self.path,
                version: self.version,
                status,
                outcome: self.outcome,
                aborted: !sent.complete,
                client_bytes: sent.bytes_written,
                origin_bytes: self.byte_count.get(),
                upstream: self.upstream,
                peer: None,
                error: self.error,
                request_id: self.id,
                user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
                referer: self.referer.as_ref().map(HeaderValue::as_bytes),
                content_type: content_type.as_ref().map(HeaderValue::as_bytes),
            };
            worker.metrics.record_rest(&entry, counted.get());
            worker.log.write(&entry);
        });
    }
}

/// What will stand in the log about a tunnel.
pub(crate) struct TunnelEntryBuilder {
    start: UnixMillis,
    received: Instant,
    client: SocketAddr,
    version: Version,
    method: Method,
    status: u16,
    scheme: Scheme,
    authority: String,
    path: Box<str>,
    upstream: Option<SocketAddr>,
    id: RequestId,
    user_agent: Option<HeaderValue>,
}

impl TunnelEntryBuilder {
    /// Notes where it leads, if that was not known when it was handed over.
    pub(crate) fn set_upstream(&mut self, peer: SocketAddr) {
        self.upstream = Some(peer);
    }

    /// Writes an entry about what passed since the one before.
    pub(crate) fn write(&self, worker: &Worker, to_client: u64, aborted: bool) {
        self.write_as(worker, Outcome::Tunnel, to_client, (aborted, None));
    }

    /// Writes the entry of a tunnel that leads nowhere.
    pub(crate) fn failed(&self, worker: &Worker, failure: &Failure) {
        self.write_as(worker, Outcome::Tunnel, 0, (true, Some(failure.slug())));
    }

    /// Writes the entry of a CONNECT that ended here; what is asked inside has entries of its own.
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
            upstream: self.upstream,
            peer: None,
            error,
            request_id: self.id,
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            referer: None,
            content_type: None,
        };
        worker.metrics.record(&entry);
        worker.log.write(&entry);
    }
}
