//! The HTTP/2 connections on a core, and the choice of a connection for each request.
//!
//! Called by `Upstream::try_send` and `Upstream::open`.
//!
//! A shared connection carries requests from many clients. Three kinds of requests get a connection
//! that carries nothing else meanwhile: requests with a large head, because some origins close the
//! connection for such a head; the second attempt of a request after the connection broke; and, for
//! a minute, requests from clients that waited for an answer when an origin closed a connection for
//! an error, because any of them may be the cause, or that have given up many requests at once.
//!
//! Invariants: no stream waits until another stream's content is read, because a connection has at
//! most `STREAMS_MAX` streams, and the window is the sum of the stream windows. No request content
//! waits for another request's content, because a connection takes only as much content at once as
//! every origin has to accept (`CONTENT_MAX`). A connection gets a second stream when the origin's
//! SETTINGS have arrived, and never more streams than they allow.
//! Cost: a search through the connections of an endpoint; mostly there is only a single connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hashcache_base::fair_table::FairTable;
use hashcache_base::share::Network;
use hashcache_base::task::spawn_local;
use http::Request;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::super::endpoint::Endpoint;
use super::super::request_body::RequestBody;
use super::wary::WaryClients;
use super::{FIELD_BYTES, Http2Conn, Http2Stream, head_bytes};

/// Use of a connection: `Shared` if other requests may use it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Sharing {
    Shared,
    Alone,
}

/// A request's requirements for the connection.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Wanted {
    pub(in super::super) sharing: Sharing,
    /// Content that waits for the origin to accept it, bytes; see [`content_bytes`].
    pub(in super::super) content: u64,
    /// A connection without streams must have had a stream within this time.
    pub(in super::super) max_idle: Duration,
}

/// Result of the search for a connection.
pub(in super::super) enum Found {
    Stream(Http2Stream),
    /// The origin's SETTINGS on this connection will decide whether it takes another stream.
    Unsettled(Rc<Http2Conn>),
    None,
}

/// The HTTP/2 connections on a core.
pub(in super::super) struct Http2Conns {
    open: RefCell<HashMap<Endpoint, Vec<Rc<Http2Conn>>>>,
    /// Locked while connecting, so that concurrent requests share the new connection. Each lock is
    /// for as many requests as one connection has room for.
    opening: RefCell<HashMap<Endpoint, Vec<Rc<Mutex<()>>>>>,
    /// Endpoints that support only HTTP/1.1, and the time when that was last seen.
    plain: RefCell<FairTable<Endpoint, Instant>>,
    /// Endpoints that got `Expect: 100-continue` and sent no 100, and the time of that.
    no_continue: RefCell<FairTable<Endpoint, Instant>>,
    /// Clients whose requests share no connections.
    wary: RefCell<WaryClients>,
}

impl Default for Http2Conns {
    fn default() -> Self {
        Self {
            open: RefCell::default(),
            opening: RefCell::default(),
            plain: RefCell::new(FairTable::new(ENDPOINTS_MAX)),
            no_continue: RefCell::new(FairTable::new(ENDPOINTS_MAX)),
            wary: RefCell::default(),
        }
    }
}

impl Http2Conns {
    /// Returns a stream on a connection to `to`. Forgets connections that are closed, or were idle
    /// for too long.
    pub(in super::super) fn stream(&self, to: &Endpoint, wanted: Wanted) -> Found {
        let mut open = self.open.borrow_mut();
        let Some(conns) = open.get_mut(to) else {
            return Found::None;
        };
        conns.retain(|conn| conn.takes_requests() && !conn.was_idle_for(wanted.max_idle));
        let fitting = || {
            let is_fitting = |conn: &&Rc<Http2Conn>| conn.sharing.get() == wanted.sharing;
            conns.iter().filter(is_fitting)
        };
        let found = fitting().find(|conn| conn.has_room(wanted.content));
        if let Some(conn) = found {
            return Found::Stream(Http2Stream::new(Rc::clone(conn)));
        }
        if wanted.sharing == Sharing::Alone {
            return Found::None;
        }
        if let Some(conn) = fitting().find(|conn| !conn.signals.is_settled()) {
            return Found::Unsettled(Rc::clone(conn));
        }
        // A connection with `Sharing::Alone` that has room has no request in progress, so other
        // requests may use it.
        match conns.iter().find(|conn| conn.has_room(wanted.content)) {
            Some(conn) => {
                conn.sharing.set(Sharing::Shared);
                Found::Stream(Http2Stream::new(Rc::clone(conn)))
            }
            None => Found::None,
        }
    }

    /// Uses `conn` for no more requests to `to`; requests in progress continue.
    pub(in super::super) fn retire(&self, to: &Endpoint, conn: &Rc<Http2Conn>) {
        let mut open = self.open.borrow_mut();
        if let Some(conns) = open.get_mut(to) {
            conns.retain(|known| !Rc::ptr_eq(known, conn));
            if conns.is_empty() {
                open.remove(to);
            }
        }
    }

    /// Returns true if `to` is known to support only HTTP/1.1.
    pub(in super::super) fn is_plain(&self, to: &Endpoint) -> bool {
        let plain = self.plain.borrow();
        plain
            .get(to)
            .is_some_and(|seen| seen.elapsed() < PLAIN_TIME)
    }

    /// Notes that `to` supports only HTTP/1.1; `client` has chosen the origin.
    pub(in super::super) fn note_plain(&self, to: &Endpoint, client: Option<Network>) {
        let is_over = |seen: &Instant| seen.elapsed() >= PLAIN_TIME;
        let mut plain = self.plain.borrow_mut();
        plain.insert_unless_over(to.clone(), Instant::now(), client, is_over);
    }

    /// Returns true if `to` is known to ignore `Expect: 100-continue`. nginx does so in HTTP/2;
    /// each upload would wait for the 100 in vain.
    pub(in super::super) fn sends_no_continue(&self, to: &Endpoint) -> bool {
        let no_continue = self.no_continue.borrow();
        let noted = no_continue.get(to);
        noted.is_some_and(|noted| noted.elapsed() < NO_CONTINUE_TIME)
    }

    /// Notes that `to` has sent no 100; `client` has chosen the origin.
    pub(in super::super) fn note_no_continue(&self, to: &Endpoint, client: Option<Network>) {
        let mut no_continue = self.no_continue.borrow_mut();
        let is_over = |noted: &Instant| noted.elapsed() >= NO_CONTINUE_TIME;
        no_continue.insert_unless_over(to.clone(), Instant::now(), client, is_over);
    }

    /// Notes that `to` has sent a 100.
    pub(in super::super) fn note_continue(&self, to: &Endpoint) {
        self.no_continue.borrow_mut().remove(to);
    }

    /// Decides whether `request` of `client` may share a connection to `to`.
    pub(in super::super) fn sharing(
        &self,
        to: &Endpoint,
        request: &Request<RequestBody>,
        client: Option<Network>,
    ) -> Sharing {
        let head_max = {
            let open = self.open.borrow();
            let conns = open.get(to).into_iter().flatten();
            let announced = conns.map(|conn| conn.signals.head_max()).min();
            announced.map_or(SHARED_HEAD_MAX, |announced| announced.min(SHARED_HEAD_MAX))
        };
        if request_head_bytes(request) > head_max || self.is_wary(to, client) {
            Sharing::Alone
        } else {
            Sharing::Shared
        }
    }

    fn is_wary(&self, to: &Endpoint, client: Option<Network>) -> bool {
        self.wary.borrow().has(client, to, Instant::now())
    }

    /// Notes that a shared connection to `to` was closed for an error while `client` waited for an
    /// answer on it.
    pub(in super::super) fn note_broken(&self, to: &Endpoint, client: Option<Network>) {
        self.wary.borrow_mut().note(client, to, Instant::now());
    }

    /// Makes a guard for a request of `client` to `to` on a shared connection. If the guard is
    /// dropped before [`GivenUpGuard::ends`], it notes that the client has given the request up.
    pub(in super::super) fn given_up_guard(
        self: &Rc<Self>,
        to: &Endpoint,
        client: Option<Network>,
    ) -> GivenUpGuard {
        GivenUpGuard {
            conns: Rc::downgrade(self),
            request: Some((to.clone(), client)),
        }
    }

    /// Returns the lock to hold while connecting to `to`. A connection has room for `STREAMS_MAX`
    /// requests, so further requests wait for another lock, and connect at the same time.
    pub(in super::super) fn opening(&self, to: &Endpoint) -> Rc<Mutex<()>> {
        let mut opening = self.opening.borrow_mut();
        opening.retain(|_, gates| {
            gates.retain(|gate| Rc::strong_count(gate) > 1);
            !gates.is_empty()
        });
        let gates = opening.entry(to.clone()).or_default();
        let has_room = |gate: &&Rc<Mutex<()>>| Rc::strong_count(gate) <= STREAMS_MAX;
        if let Some(gate) = gates.iter().find(has_room) {
            return Rc::clone(gate);
        }
        let gate = Rc::default();
        gates.push(Rc::clone(&gate));
        gate
    }

    /// Adds a new connection and returns the first stream.
    pub(in super::super) fn keep(
        self: &Rc<Self>,
        to: &Endpoint,
        conn: Http2Conn,
        idle_time: Duration,
    ) -> Http2Stream {
        let conn = Rc::new(conn);
        let stream = Http2Stream::new(Rc::clone(&conn));
        spawn_local(sweep(
            Rc::downgrade(self),
            to.clone(),
            Rc::downgrade(&conn),
            idle_time,
        ));
        self.open
            .borrow_mut()
            .entry(to.clone())
            .or_default()
            .push(conn);
        stream
    }

    /// Number of connections kept.
    #[cfg(test)]
    pub(in super::super) fn len(&self) -> usize {
        self.open.borrow().values().map(Vec::len).sum()
    }
}

/// See [`Http2Conns::given_up_guard`].
#[derive(Debug)]
pub(in super::super) struct GivenUpGuard {
    conns: Weak<Http2Conns>,
    request: Option<(Endpoint, Option<Network>)>,
}

impl GivenUpGuard {
    /// Called when the response is complete, or has failed.
    pub(super) fn ends(&mut self) {
        self.request = None;
    }
}

impl Drop for GivenUpGuard {
    fn drop(&mut self) {
        if let (Some(conns), Some((to, client))) = (self.conns.upgrade(), self.request.take()) {
            let now = Instant::now();
            conns.wary.borrow_mut().note_given_up(client, &to, now);
        }
    }
}

/// Closes a connection that had no stream for `idle_time`.
async fn sweep(
    http2_conns: Weak<Http2Conns>,
    to: Endpoint,
    conn: Weak<Http2Conn>,
    idle_time: Duration,
) {
    loop {
        let Some(until) = conn.upgrade().map(|it| it.rests_since.get() + idle_time) else {
            return;
        };
        sleep_until(until.max(Instant::now() + SWEEP_STEP)).await;
        let (Some(http2_conns), Some(conn)) = (http2_conns.upgrade(), conn.upgrade()) else {
            return;
        };
        if conn.was_idle_for(idle_time) || !conn.takes_requests() {
            http2_conns.retire(&to, &conn);
            return;
        }
    }
}

/// Returns a request head's size as an origin counts it for the limit.
fn request_head_bytes(request: &Request<RequestBody>) -> usize {
    let target = request.uri().path_and_query();
    let target = target.map_or(1, |target| target.as_str().len());
    let method = request.method().as_str().len();
    PSEUDO_FIELDS_BYTES + method + target + head_bytes(request.headers())
}

/// Returns the number of request content bytes that may wait on the connection until the origin
/// accepts them. Content of unknown length is mostly short (gRPC sends no length), and counts as
/// more after it has started.
pub(in super::super) fn content_bytes(request: &Request<RequestBody>) -> u64 {
    let length = http_body::Body::size_hint(request.body()).exact();
    length.map_or(CONTENT_MAX / 2, |length| length.min(CONTENT_MAX))
}

/// Maximum number of streams per connection. More streams need a larger connection window, and with
/// a larger window h2 lets the origin take more memory for tiny frames.
pub(super) const STREAMS_MAX: usize = 32;
/// Maximum request content that may wait for the origin on one connection, bytes. Every origin
/// accepts as much before anything was read (RFC 9113, section 6.9.2). A single request may have
/// more.
pub(super) const CONTENT_MAX: u64 = 65_535;
/// Maximum request head on a shared connection, bytes. nginx closes the connection for a field
/// above `large_client_header_buffers`, 8 KiB by default, and some versions for a field of 4 KiB.
const SHARED_HEAD_MAX: usize = 4 << 10;
/// The names `:method`, `:scheme`, `:authority` and `:path`, and `https`. The authority is counted
/// as Host.
const PSEUDO_FIELDS_BYTES: usize = 7 + 7 + 10 + 5 + 5 + 4 * FIELD_BYTES;
/// Maximum number of endpoints remembered for a property.
const ENDPOINTS_MAX: usize = 4096;
/// Time for which requests to an origin have no Expect after it sent no 100. The origin may only
/// have been slow, and a client saves all content if the origin refuses it unread.
const NO_CONTINUE_TIME: Duration = Duration::from_secs(600);
/// Time for which an origin counts as an origin without HTTP/2. After that the next connection to
/// it offers both versions again. The only cost is that concurrent requests wait for that
/// handshake.
const PLAIN_TIME: Duration = Duration::from_secs(3600);
/// Minimum time between two checks of a connection that may be idle.
const SWEEP_STEP: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use hashcache_base::net::address::Purpose;
    use hashcache_http::{Authority, Scheme};

    use super::*;

    fn endpoint(n: usize) -> Endpoint {
        Endpoint {
            authority: Authority::parse(&format!("{n}.test:443"), Scheme::Https).unwrap(),
            purpose: Purpose::Forward,
            scheme: Scheme::Https,
            through: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_without_a_100_is_asked_for_one_after_ten_minutes() {
        let (conns, to) = (Http2Conns::default(), endpoint(1));
        conns.note_no_continue(&to, None);
        tokio::time::advance(Duration::from_secs(599)).await;
        assert!(conns.sends_no_continue(&to));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!conns.sends_no_continue(&to));
    }

    #[test]
    fn no_more_origins_without_http_2_are_remembered_than_there_is_room_for() {
        let conns = Http2Conns::default();
        let client = |n| Some(Network::containing(std::net::IpAddr::from([192, 0, 2, n])));
        let first = endpoint(4 * ENDPOINTS_MAX);
        conns.note_plain(&first, client(1));
        conns.note_no_continue(&first, client(1));
        for n in 0..3 * ENDPOINTS_MAX {
            let to = endpoint(n);
            conns.note_plain(&to, client(2));
            conns.note_no_continue(&to, client(2));
            assert!(conns.is_plain(&to) && conns.sends_no_continue(&to));
            assert!(conns.plain.borrow().len() <= ENDPOINTS_MAX);
            assert!(conns.no_continue.borrow().len() <= ENDPOINTS_MAX);
        }
        assert!(conns.is_plain(&first) && conns.sends_no_continue(&first));
    }
}
