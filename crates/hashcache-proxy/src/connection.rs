//! A client connection, as its requests see it.
//!
//! Made by `server` for every connection (in HTTP/2 for every stream), and by `connect` for an
//! intercepted connection; read by `request`.

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

/// A client connection, as its requests see it; in HTTP/2, a stream.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) worker: Rc<Worker>,
    pub(crate) cell: Rc<hashcache_wire::Cell>,
    /// The client's share of memory and connections.
    pub(crate) allowance: Allowance,
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The server that the client connected to, if the network redirected the connection to this
    /// proxy.
    pub(crate) destination: Option<SocketAddr>,
    /// The client's scheme: https over TLS.
    pub(crate) scheme: Scheme,
    /// Access rules for the client.
    pub(crate) access: Rc<ClientAccess>,
    /// The host for which this proxy terminates TLS, if the connection is intercepted.
    pub(crate) intercepted: Option<Rc<InterceptedFor>>,
    /// The child, if this is a child's link.
    pub(crate) child: Option<Rc<LinkedChild>>,
    /// Upstream connections on which this client has logged in.
    pub(crate) pins: Pins,
    /// Becomes true when the connection must be closed after the current request.
    pub(crate) stopping: watch::Receiver<bool>,
    /// Becomes true when tunnels must be closed.
    pub(crate) drained: watch::Receiver<bool>,
    /// Serves the protocol inside an intercepted connection.
    pub(crate) serve_inside: ServeInside,
}

/// Permission to challenge the client for a login, which depends on the form of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayAsk {
    Yes,
    No,
}

/// A child, and the settings of the link.
pub(crate) struct LinkedChild {
    pub(crate) pin: KeyPin,
    pub(crate) limits: Rc<Limits>,
    pub(crate) kind: Http2Kind,
    /// Objects that were sent to the child.
    pub(crate) sent: Option<Arc<SentTo>>,
    /// Memory that the connection holds, outside the child's share and in it. Every stream has this
    /// value too, because a stream may outlast the socket.
    _memory: (Reservation, ShareReservation),
}

impl LinkedChild {
    /// The child with the key `pin`; `memory` belongs to the connection.
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

/// Serves a byte stream in a protocol until the stream closes; the requests in it belong to the
/// [`Connection`]. This is a function pointer set by `server`, because `connect` is a layer below
/// `server`. The future is boxed, because the requests inside contain futures of the same type.
pub(crate) type ServeInside = fn(
    Socket,
    Protocol,
    Connection,
    watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = Ending>>>;

impl Connection {
    /// Reason to refuse this client, if there is a reason. A reload may have removed a child.
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

    /// Returns true if the network redirected a connection here that is from this machine or to it.
    /// Then the redirection rules also match connections that the proxy itself makes.
    fn is_in_loop(&self) -> bool {
        let is_own = |address| self.worker.common.is_own_address(address);
        self.destination
            .is_some_and(|to| is_own(to.ip()) || is_own(self.client.ip()))
    }

    /// The server that the client connected to, if the network redirected the connection here and
    /// this proxy does not terminate TLS. Requests on such a connection may name any host.
    pub(crate) fn plain_destination(&self) -> Option<SocketAddr> {
        self.destination.filter(|_| self.intercepted.is_none())
    }

    /// Addresses of both ends, for servers that get a PROXY header (`proxy_protocol_to`).
    pub(crate) fn ends(&self) -> ClientEnds {
        ClientEnds {
            client: self.client,
            local: self.local,
        }
    }

    /// Returns true if another member sent a request with these fields. That member has already
    /// applied access rules to the client; the client's address and login are not known here.
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

    /// The user of every request on this connection, if it is known before the requests are read. A
    /// reload may have removed the user of the CONNECT.
    pub(crate) fn settled_user(&self, live: &LiveSettings) -> Option<&Arc<str>> {
        let user = self.connect_user()?;
        let users = live.users.as_ref()?;
        users.has(user).then_some(user)
    }

    /// The user for a request without a login.
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

    /// Returns true if the proxy may send a login challenge on this connection: nobody else can
    /// read the password there, and the client knows that it speaks to a proxy.
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

    /// Returns true if a request is for the host of the self-test while interception is on. Over
    /// plain HTTP the answer only shows that the client uses this proxy.
    pub(crate) fn is_self_test(&self, authority: &Authority) -> bool {
        let is_host = matches!(&authority.host, Host::Name(name) if &**name == SELF_TEST_HOST);
        is_host && self.worker.common.live().intercept.is_some()
    }

    /// Returns true if the client is a peer for which this proxy serves stored responses only.
    pub(crate) fn gets_stored_only(&self) -> bool {
        let live = self.worker.common.live();
        // Most requests return here, because few sites have such a peer.
        if !live.routes.has_stored_only_peer() {
            return false;
        }
        let peer = self.peer_address().and_then(|at| live.routes.peer_at(at));
        peer.is_some_and(|peer| peer.settings.misses == PeerMisses::Refused)
    }

    /// The address by which the client is recognised if it is a peer. A child is known by a key,
    /// not by an address: it may share the address with others, and a device between may rewrite
    /// it.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        self.child.is_none().then(|| self.client.ip())
    }

    /// The peer at the client's address.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        let live = self.worker.common.live();
        live.routes.peer_at(self.peer_address()?).cloned()
    }

    /// Returns true if this client may purge in `space`. The address of a child gives it no right.
    pub(crate) fn may_purge(&self, space: Space) -> bool {
        self.child.is_none() && self.worker.common.may_purge(self.client.ip(), space)
    }
}

/// The reason for refusing all requests on an intercepted connection. It is sent once per
/// connection, because at the next reload of the page the rules may be different, or the line may
/// be up again.
pub(crate) struct RefusedHost {
    failure: Failure,
    was_told: watch::Sender<bool>,
}

impl RefusedHost {
    /// The failure to send as response. The connection is closed after it.
    pub(crate) fn tell(&self) -> Failure {
        self.was_told.send_replace(true);
        self.failure.clone()
    }

    /// Closes the connection when `outer` becomes true, even if no response was sent yet. Never
    /// returns.
    pub(crate) async fn end_with(&self, mut outer: watch::Receiver<bool>) {
        // An error means that the sender was dropped, so the server has stopped.
        let _ = outer.wait_for(|stop| *stop).await;
        self.was_told.send_replace(true);
        std::future::pending::<()>().await;
    }

    /// Becomes true when the connection must be closed.
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
    /// Set if all requests for the host are refused.
    refused: Option<RefusedHost>,
    /// Memory for TLS and HTTP/2, held even if another protocol follows.
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

    /// Refuses all requests on the connection with `failure`, if there is a failure.
    pub(crate) fn refused(self, failure: Option<Failure>) -> Self {
        Self {
            refused: failure.map(|failure| RefusedHost {
                failure,
                was_told: watch::channel(false).0,
            }),
            ..self
        }
    }

    /// The refusal, if all requests on the connection are refused.
    pub(crate) fn refusal(&self) -> Option<&RefusedHost> {
        self.refused.as_ref()
    }

    /// The authority in the form of a Host field.
    pub(crate) fn host_field(&self) -> String {
        self.authority.host_field(Scheme::Https)
    }

    /// Returns true if the proxy itself answers all requests on the connection.
    pub(crate) fn is_self_test(&self) -> bool {
        self.kind == InterceptKind::SelfTest
    }

    /// Records that the client trusts our certificate, because it has sent a request. For a refused
    /// host nothing is recorded: there are many such hosts, and they need not exist.
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
