//! A client's connection, as its requests see it.
//!
//! Made by `server` for every connection (in HTTP/2 for every stream), and by `connect` for an
//! intercepted one; read by `request`.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use hashcache::Reservation;
use hashcache_access::RequestUser;
use hashcache_base::failure::Failure;
use hashcache_base::limits::Limits;
use hashcache_base::share::{Allowance, ShareReservation};
use hashcache_http::{Authority, Host, Scheme, Space};
use hashcache_intercept::refusals::ClientProgram;
use hashcache_intercept::{InterceptKind, SELF_TEST_HOST};
use hashcache_link::pin::Pin as KeyPin;
use hashcache_link::sent_to::SentTo;
use hashcache_upstream::announced::ClientEnds;
use hashcache_upstream::peer::{Peer, PeerMisses};
use hashcache_upstream::pinned::Pins;
use hashcache_wire::{Ending, Http2Kind, Protocol, Socket};
use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client_access::ClientAccess;
use crate::worker::{LiveSettings, Worker};

/// One client's connection, as its requests see it; in HTTP/2, one stream of it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) cell: Rc<hashcache_wire::Cell>,
    /// The client's share of memory and connections.
    pub(crate) allowance: Allowance,
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The server that the client has connected to, if the network has sent the connection here.
    pub(crate) destination: Option<SocketAddr>,
    /// The client's scheme: https over TLS.
    pub(crate) scheme: Scheme,
    /// What the access rules say of the client.
    pub(crate) access: Rc<ClientAccess>,
    /// The host whose TLS ends here, if the connection is intercepted.
    pub(crate) intercepted: Option<Rc<InterceptedFor>>,
    /// The child whose link it is.
    pub(crate) child: Option<Rc<LinkedChild>>,
    /// Connections to upstream on which this client has logged in.
    pub(crate) pins: Pins,
    /// Becomes true when the connection must end after the current request.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Becomes true when tunnels must end.
    pub(crate) drained: watch::Receiver<bool>,
    /// Serves the protocol inside an intercepted connection.
    pub(crate) serve_inside: ServeInside,
}

/// Whether a client may be asked for a login, as far as the form of its request tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayAsk {
    Yes,
    No,
}

/// A child, and how its link is served.
pub(crate) struct LinkedChild {
    pub(crate) pin: KeyPin,
    pub(crate) limits: Rc<Limits>,
    pub(crate) kind: Http2Kind,
    /// What was sent to it.
    pub(crate) sent: Option<Arc<SentTo>>,
    /// What the connection holds, outside of its share and in it. Every stream of it has this value
    /// too, and may outlast the socket.
    _memory: (Reservation, ShareReservation),
}

impl LinkedChild {
    /// The child with the key `pin`; `memory` is that of its connection.
    pub(crate) fn new(
        pin: KeyPin,
        limits: Rc<Limits>,
        kind: Http2Kind,
        sent: Option<Arc<SentTo>>,
        memory: (Reservation, ShareReservation),
    ) -> Self {
        Self {
            pin,
            limits,
            kind,
            sent,
            _memory: memory,
        }
    }
}

/// Serves a byte stream in a protocol until it ends; its requests belong to the [`Connection`]. It
/// is a function pointer set by `server`, because `connect` lies below `server`. The future is
/// boxed: through the requests inside, it contains futures of its own type.
pub(crate) type ServeInside = fn(
    Socket,
    Protocol,
    Connection,
    watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = Ending>>>;

impl Connection {
    /// Why this client gets no response, if that is so. A reload may have removed a child.
    pub(crate) fn denied(&self) -> Option<Failure> {
        let removed = || Failure::ClientDenied {
            client: self.client.ip(),
        };
        let common = &self.worker.common;
        let Some(child) = &self.child else {
            let refused = self.access.refused(&common.live());
            return refused.or_else(|| self.is_in_loop().then_some(Failure::Loop));
        };
        (!common.is_child(&child.pin)).then(removed)
    }

    /// Whether the network has sent a connection here that is from this machine or to it: then the
    /// rules of the network match connections of the proxy itself.
    fn is_in_loop(&self) -> bool {
        let is_own = |address| self.worker.common.is_own_address(address);
        self.destination
            .is_some_and(|to| is_own(to.ip()) || is_own(self.client.ip()))
    }

    /// The server that the client has connected to, if the network has sent the connection here and
    /// no TLS ends here: such requests may name any host.
    pub(crate) fn plain_destination(&self) -> Option<SocketAddr> {
        self.destination.filter(|_| self.intercepted.is_none())
    }

    /// The two ends, for servers that want to be told.
    pub(crate) fn ends(&self) -> ClientEnds {
        ClientEnds {
            client: self.client,
            local: self.local,
        }
    }

    /// Whether another member has sent a request with these fields. The rules there have decided
    /// about its client, whose address and login are not known here.
    pub(crate) fn is_from_member(&self, fields: &HeaderMap) -> bool {
        let live = self.worker.common.live();
        let Some(members) = live.routes.members() else {
            return false;
        };
        let is_other = self.child.is_some() || self.intercepted.is_some();
        let is_plain = !is_other && self.destination.is_none();
        is_plain && members.have_sent(self.client.ip(), fields)
    }

    /// The user of the CONNECT of an intercepted connection.
    pub(crate) fn connect_user(&self) -> Option<&Arc<str>> {
        self.intercepted.as_ref()?.user.as_ref()
    }

    /// The user of every request on this connection, if that is known before they are read. A
    /// reload may have removed the user of the CONNECT.
    pub(crate) fn settled_user(&self, live: &LiveSettings) -> Option<&Arc<str>> {
        let user = self.connect_user()?;
        let users = live.users.as_ref()?;
        users.has(user).then_some(user)
    }

    /// The user of a request without a login.
    pub(crate) fn user_without_login<'a>(
        &'a self,
        live: &LiveSettings,
        asks: MayAsk,
    ) -> RequestUser<'a> {
        match (self.settled_user(live), asks) {
            (Some(user), _) => RequestUser::Known(user),
            (None, MayAsk::Yes) if self.may_ask_for_login(live) => RequestUser::Unknown,
            (None, _) => RequestUser::Unknowable,
        }
    }

    /// Whether a password may be asked for on this connection: nobody else can read it there, and
    /// the client knows that it speaks to a proxy.
    fn may_ask_for_login(&self, live: &LiveSettings) -> bool {
        let client = self.client.ip();
        self.intercepted.is_none()
            && self.destination.is_none()
            && live.users.is_some()
            && (self.scheme == Scheme::Https
                || live
                    .settings
                    .login_networks
                    .iter()
                    .any(|network| network.contains(client)))
    }

    /// Whether a request is for the host of the self-test while interception is on. Over plain HTTP
    /// the answer only says that the client uses this proxy.
    pub(crate) fn is_self_test(&self, authority: &Authority) -> bool {
        let is_host = matches!(&authority.host, Host::Name(name) if &**name == SELF_TEST_HOST);
        is_host && self.worker.common.live().intercept.is_some()
    }

    /// Whether the client is a peer for which nothing is fetched.
    pub(crate) fn gets_stored_only(&self) -> bool {
        let live = self.worker.common.live();
        // Most requests end here: few sites have such a peer.
        if !live.routes.has_stored_only_peer() {
            return false;
        }
        let peer = self.peer_address().and_then(|at| live.routes.peer_at(at));
        peer.is_some_and(|peer| peer.settings.misses == PeerMisses::Refused)
    }

    /// The address by which the client is recognised if it is a peer. A child has shown its key,
    /// and its address says nothing: it may share it with others, and a line between may rewrite
    /// it.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        self.child.is_none().then(|| self.client.ip())
    }

    /// The peer at the client's address.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        let live = self.worker.common.live();
        live.routes.peer_at(self.peer_address()?).cloned()
    }

    /// Whether this client may purge in `space`. A child has no right by its address.
    pub(crate) fn may_purge(&self, space: Space) -> bool {
        self.child.is_none() && self.worker.common.may_purge(self.client.ip(), space)
    }
}

/// Why the client of an intercepted connection gets nothing of its host. It is told once: a reload
/// of the page may find another rule, or the line up again.
pub(crate) struct RefusedHost {
    failure: Failure,
    was_told: watch::Sender<bool>,
}

impl RefusedHost {
    /// The answer to a request. The connection ends after it.
    pub(crate) fn tell(&self) -> Failure {
        self.was_told.send_replace(true);
        self.failure.clone()
    }

    /// Has the connection end when `outer` becomes true, also if the client was told nothing yet.
    /// Never returns.
    pub(crate) async fn end_with(&self, mut outer: watch::Receiver<bool>) {
        // An error means that the sender was dropped, so the server has ended.
        let _ = outer.wait_for(|stop| *stop).await;
        self.was_told.send_replace(true);
        std::future::pending::<()>().await;
    }

    /// Becomes true when the connection is to end.
    pub(crate) fn ending(&self) -> watch::Receiver<bool> {
        self.was_told.subscribe()
    }
}

/// The host and the program for which a connection is intercepted.
pub(crate) struct InterceptedFor {
    /// The authority of all requests on the connection.
    pub(crate) authority: Authority,
    kind: InterceptKind,
    /// The user of the CONNECT.
    user: Option<Arc<str>>,
    pub(crate) program: ClientProgram,
    pub(crate) has_asked: Cell<bool>,
    /// The client gets nothing of the host.
    refused: Option<RefusedHost>,
    /// Memory for TLS and HTTP/2, kept even when another protocol follows.
    _memory: ShareReservation,
}

impl InterceptedFor {
    pub(crate) fn new(
        authority: Authority,
        (kind, user): (InterceptKind, Option<Arc<str>>),
        program: ClientProgram,
        memory: ShareReservation,
    ) -> Self {
        Self {
            authority,
            kind,
            user,
            program,
            has_asked: Cell::new(false),
            refused: None,
            _memory: memory,
        }
    }

    /// The same for a client that gets nothing of the host but `failure`.
    pub(crate) fn refused(self, failure: Option<Failure>) -> Self {
        Self {
            refused: failure.map(|failure| RefusedHost {
                failure,
                was_told: watch::channel(false).0,
            }),
            ..self
        }
    }

    /// What the client gets, if it is nothing of the host.
    pub(crate) fn refusal(&self) -> Option<&RefusedHost> {
        self.refused.as_ref()
    }

    /// The authority in the form of a Host field.
    pub(crate) fn host_field(&self) -> String {
        self.authority.host_field(Scheme::Https)
    }

    /// Whether the proxy itself answers all requests on it.
    pub(crate) fn is_self_test(&self) -> bool {
        self.kind == InterceptKind::SelfTest
    }

    /// Notes that the client trusts our certificate: it has sent a request. Of a refused host
    /// nothing is learned: there are many, and they need not exist.
    pub(crate) fn note_request(&self, worker: &Worker) {
        let counts = !self.is_self_test() && self.refused.is_none();
        if !self.has_asked.replace(true) && counts {
            let intercept_state = &worker.common.intercept;
            intercept_state
                .refusals
                .note_request(&self.program, Instant::now());
        }
    }
}
