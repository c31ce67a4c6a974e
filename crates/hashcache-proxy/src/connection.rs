//! A client's connection, as far as its requests must know of it.
//!
//! Made by `server` for every connection (in HTTP/2 for every stream), and by `connect` for one
//! that is intercepted; read by `request`.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use hashcache_http::{Authority, Scheme};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::intercept::InterceptKind;
use crate::intercept::refusals::ClientProgram;
use crate::share::{Allowance, ShareReservation};
use crate::wire::{self, Ending, Protocol, Socket};
use crate::worker::Worker;

/// One client's connection, as far as its requests must know of it; in HTTP/2, one stream of it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) cell: Rc<wire::Cell>,
    /// What the client may take.
    pub(crate) allowance: Allowance,
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// What the client speaks: https where there is TLS.
    pub(crate) scheme: Scheme,
    /// Why this client is served nothing, if it is.
    pub(crate) denied: Option<Failure>,
    /// Whose requests these are, where TLS to a host ended here.
    pub(crate) intercepted: Option<Rc<InterceptedFor>>,
    /// Tells who serves requests to end with the one under way.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Tells tunnels that the time to end has come.
    pub(crate) drained: watch::Receiver<bool>,
    /// Serves what is spoken inside an intercepted connection.
    pub(crate) serve_inside: ServeInside,
}

/// Serves a stream of bytes in a protocol until it ends; the requests on it are those of the
/// [`Connection`]. A pointer that `server` gives, because `connect` lies below it. The future is
/// boxed: it contains, through the requests inside, futures of its own type.
pub(crate) type ServeInside = fn(
    Socket,
    Protocol,
    Connection,
    watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = Ending>>>;

/// Whose requests come on an intercepted connection.
pub(crate) struct InterceptedFor {
    /// All of them are for this one.
    pub(crate) authority: Authority,
    kind: InterceptKind,
    pub(crate) program: ClientProgram,
    pub(crate) has_asked: Cell<bool>,
    /// TLS and HTTP/2 take it, also when another protocol follows.
    _memory: ShareReservation,
}

impl InterceptedFor {
    pub(crate) fn new(
        authority: Authority,
        kind: InterceptKind,
        program: ClientProgram,
        memory: ShareReservation,
    ) -> Self {
        Self {
            authority,
            kind,
            program,
            has_asked: Cell::new(false),
            _memory: memory,
        }
    }

    /// The authority as clients write it in Host.
    pub(crate) fn host_field(&self) -> String {
        self.authority.display(Scheme::Https).to_string()
    }

    /// Whether the proxy answers all of it by itself.
    pub(crate) fn is_self_test(&self) -> bool {
        self.kind == InterceptKind::SelfTest
    }

    /// A request has come: this client believes us.
    pub(crate) fn note_request(&self, worker: &Worker) {
        if !self.has_asked.replace(true) && !self.is_self_test() {
            let intercept_state = &worker.common.intercept;
            intercept_state
                .refusals
                .note_request(&self.program, Instant::now());
        }
    }
}
