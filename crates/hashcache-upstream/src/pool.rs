//! Connections to origins: a connection for a request, and the pool of idle connections.
//!
//! `Upstream` takes a connection from the pool or opens a new connection, sends a single request at
//! a time on it, and `ResponseBody` puts it back when the response is complete. All on one core.
//!
//! Invariants: no client has logged in on a connection in the pool, and no response on it has
//! offered such a login (`pinned` has the connections that belong to a client). The response on a
//! connection in the pool is complete, and the connection is taken only while nothing has arrived
//! on it since. Dropping a connection closes it, even if a part of the request is still being sent.
//! Cost: an idle connection keeps the socket and the memory reserved by `http1::memory`, 32 KiB or,
//! after much content, up to 136 KiB; there are at most [`IDLE_MAX`] of them, and all grown buffers
//! together take at most a part of the memory budget.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::fair_table::{Owner, with_most};
use hashcache_base::limits::Limits;
use hashcache_base::task::spawn_local;
use hashcache_link::TURN_TIME;
use tokio::time::{Instant, sleep_until};

use super::channel::Channel;
use super::endpoint::Endpoint;
use super::http1::{Http1Conn, READ_MAX, ReadMemory, buffered};
use super::http2::{Http2Conn, Http2Stream};
use super::linked::LinkedStream;
use super::meter::Meter;
use super::permits::{CountedIdle, Permits};
use super::transport::Transport;
use crate::gateway::GatewayFailure;

/// An HTTP/1.1 connection, or a stream of an HTTP/2 connection.
pub(super) struct UpstreamConn {
    pub(super) sender: RequestSender,
    /// For a stream: only the bytes of the request on it.
    pub(super) meter: Meter,
    pub(super) peer: SocketAddr,
    gateway: Option<GatewayFailure>,
    /// The owner of the request that it had carried when it became idle for the first time.
    owner: Option<Owner>,
}

/// The connection or stream that carries requests.
pub(super) enum RequestSender {
    Http1(Http1Conn),
    Http2(Http2Stream),
    Linked(LinkedStream),
}

impl UpstreamConn {
    /// Makes an HTTP/1.1 connection from a connected stream.
    pub(super) fn new(
        stream: Transport<Channel>,
        peer: SocketAddr,
        memory: ReadMemory,
        limits: &Limits,
    ) -> Self {
        let meter = Meter::new();
        let gateway = match &stream {
            Transport::Plain(channel) => channel.gateway_failure(),
            Transport::Tls(_) => None,
        };
        let conn = Http1Conn::new(stream, meter.clone(), memory, limits);
        Self {
            sender: RequestSender::Http1(conn),
            meter,
            peer,
            gateway,
            owner: None,
        }
    }

    /// Wraps an HTTP/2 stream, for a single request.
    pub(super) fn on(stream: Http2Stream) -> Self {
        let peer = stream.peer();
        Self {
            sender: RequestSender::Http2(stream),
            meter: Meter::new(),
            peer,
            gateway: None,
            owner: None,
        }
    }

    /// Wraps a request on the link to a parent.
    pub(super) fn linked(linked: LinkedStream) -> Self {
        let peer = linked.stream.address;
        Self {
            sender: RequestSender::Linked(linked),
            meter: Meter::new(),
            peer,
            gateway: None,
            owner: None,
        }
    }

    /// Returns the reason why the gateway gave no response, if this is a gateway.
    pub(super) fn gateway_failure(&self) -> Option<Failure> {
        self.gateway.as_ref().and_then(GatewayFailure::get)
    }

    /// Time of the last write for this request, if the connection knows it: an HTTP/2 connection
    /// carries bytes for other requests too.
    pub(super) fn last_sent(&self) -> Option<Instant> {
        match &self.sender {
            RequestSender::Http1(_) => Some(self.meter.last_sent()),
            RequestSender::Http2(_) => None,
            RequestSender::Linked(linked) => Some(linked.last_sent()),
        }
    }

    /// Counts content in HTTP/2, where the bytes below belong to many requests.
    pub(super) fn note_content(&self, bytes: usize) {
        if !matches!(self.sender, RequestSender::Http1(_)) {
            self.meter.note_received(bytes);
        }
    }

    /// Notes that response content was read.
    pub(super) fn note_read(&self, bytes: usize) {
        if let RequestSender::Linked(linked) = &self.sender {
            linked.stream.reading.read(bytes);
        }
    }

    pub(super) fn is_http_1(&self) -> bool {
        matches!(self.sender, RequestSender::Http1(_))
    }

    /// Memory that it holds beyond the memory of a new connection, in HTTP/1.1, bytes.
    pub(super) fn extra_bytes(&self) -> u64 {
        match &self.sender {
            RequestSender::Http1(conn) => conn.extra_bytes(),
            RequestSender::Http2(_) | RequestSender::Linked(_) => 0,
        }
    }

    /// Returns true if it has carried an earlier request, in HTTP/1.1.
    pub(super) fn is_reused(&self) -> bool {
        self.is_http_1() && self.meter.received() > 0
    }

    pub(super) fn is_http_2(&self) -> bool {
        matches!(self.sender, RequestSender::Http2(_))
    }

    /// Returns the HTTP/2 connection to an origin that carries the request.
    pub(super) fn http2_conn(&self) -> Option<Rc<Http2Conn>> {
        match &self.sender {
            RequestSender::Http2(stream) => Some(Rc::clone(stream.conn())),
            RequestSender::Http1(_) | RequestSender::Linked(_) => None,
        }
    }

    /// Time that the server may take in addition to the limits: on a link, bytes wait for their
    /// turn.
    pub(super) fn turn_time(&self) -> Duration {
        match &self.sender {
            RequestSender::Http1(_) | RequestSender::Http2(_) => Duration::ZERO,
            RequestSender::Linked(_) => TURN_TIME,
        }
    }

    /// Returns true if the connection certainly takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            RequestSender::Http1(conn) => !conn.is_open(),
            RequestSender::Http2(stream) => !stream.conn().takes_requests(),
            RequestSender::Linked(linked) => linked.stream.sender.is_closed(),
        }
    }

    /// Returns true if it is idle and takes a request, in HTTP/1.1.
    pub(super) fn is_open(&self) -> bool {
        matches!(&self.sender, RequestSender::Http1(conn) if conn.is_open())
    }

    /// Called when the response is complete. Returns true if the connection may be kept, in
    /// HTTP/1.1: other connections are shared and kept by `http2` and by `parent` of
    /// `hashcache-link`.
    pub(super) fn rest(&self) -> bool {
        matches!(&self.sender, RequestSender::Http1(conn) if conn.rest())
    }
}

impl Drop for UpstreamConn {
    fn drop(&mut self) {
        // Otherwise the request content upload would continue, and keep the connection open.
        if let RequestSender::Http1(conn) = &self.sender {
            conn.stop_upload();
        }
    }
}

impl fmt::Debug for UpstreamConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConn")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// The idle connections on a core.
#[derive(Debug)]
pub(super) struct Pool {
    idle: RefCell<HashMap<Endpoint, Vec<IdleConn>>>,
    pub(super) idle_time: Duration,
    pub(super) permits: Permits,
    /// Maximum memory for grown buffers in idle connections, bytes.
    extra_max: Cell<u64>,
    /// Maximum number of idle connections.
    pub(super) idle_max: Cell<usize>,
    sweeping: Cell<bool>,
}

#[derive(Debug)]
struct IdleConn {
    conn: UpstreamConn,
    /// The client for which it counts. Other clients may have used it since: a client with many
    /// connections must not make them count for other clients.
    client: Owner,
    since: Instant,
    _counted: CountedIdle,
}

impl Pool {
    /// Makes a pool. Connections may be idle for `idle_time`; they are counted in `permits`.
    pub(super) fn new(idle_time: Duration, permits: Permits) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            idle_time,
            permits,
            extra_max: Cell::new(IDLE_EXTRA_MIN),
            idle_max: Cell::new(IDLE_MAX),
            sweeping: Cell::new(false),
        })
    }

    /// Lets grown buffers of idle connections take a part of a budget of `memory_bytes`.
    pub(super) fn set_memory(&self, memory_bytes: u64) {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let extra = memory_bytes / IDLE_EXTRA_PART / cores as u64;
        self.extra_max.set(extra.max(IDLE_EXTRA_MIN));
    }

    /// Takes the most recently used connection to `to`, if it was idle for less than `max_idle`.
    /// The most recent connection is the least likely to be closed by the origin at this moment.
    pub(super) fn take(&self, to: &Endpoint, max_idle: Duration) -> Option<UpstreamConn> {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        let conns = idle.get_mut(to)?;
        let mut taken = None;
        while let Some(last) = conns.pop_if(|idle| idle.time(now) < max_idle.min(self.idle_time)) {
            if last.conn.is_open() {
                taken = Some(last.conn);
                break;
            }
        }
        if conns.is_empty() {
            idle.remove(to);
        }
        taken
    }

    /// Puts a connection back after the last exchange, for `client`, is complete.
    pub(super) fn put(self: &Rc<Self>, to: Endpoint, mut conn: UpstreamConn, client: Owner) {
        if !conn.rest() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let extra = conn.extra_bytes();
        if extra > 0 {
            let idle = idle.values().flatten();
            let held: u64 = idle.map(|idle| idle.conn.extra_bytes()).sum();
            if held + extra > self.extra_max.get() {
                return;
            }
        }
        if idle.values().map(Vec::len).sum::<usize>() >= self.idle_max.get() {
            drop_one(&mut idle);
        }
        let client = *conn.owner.get_or_insert(client);
        idle.entry(to).or_default().push(IdleConn {
            conn,
            client,
            since: Instant::now(),
            _counted: self.permits.idle(),
        });
        if !self.sweeping.replace(true) {
            spawn_local(sweep(Rc::downgrade(self), self.idle_time));
        }
    }

    fn oldest(&self) -> Option<Instant> {
        let idle = self.idle.borrow();
        idle.values().flatten().map(|idle| idle.since).min()
    }

    /// Number of idle connections.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.idle.borrow().values().map(Vec::len).sum()
    }
}

impl IdleConn {
    fn time(&self, now: Instant) -> Duration {
        now.duration_since(self.since)
    }

    fn is_worth_keeping(&self, now: Instant, idle_time: Duration) -> bool {
        self.time(now) < idle_time && self.conn.is_open()
    }
}

/// Drops the oldest connection of the client with the most connections.
fn drop_one(idle: &mut HashMap<Endpoint, Vec<IdleConn>>) {
    let all = idle
        .values()
        .flatten()
        .map(|idle| (idle.client, idle.since));
    let Some(client) = with_most(all) else { return };
    // Connections are pushed and popped at the end, so the first connection in each list is the
    // oldest.
    let first = |conns: &[IdleConn]| conns.iter().position(|idle| idle.client == client);
    let firsts = idle
        .iter()
        .filter_map(|(to, conns)| first(conns).map(|at| (conns[at].since, at, to)));
    let Some((_, at, to)) = firsts.min_by_key(|(since, ..)| *since) else {
        return;
    };
    let to = to.clone();
    if let Some(conns) = idle.get_mut(&to) {
        conns.remove(at);
        if conns.is_empty() {
            idle.remove(&to);
        }
    }
}

/// Closes connections that were idle too long, or that the server has closed; returns when none is
/// left, or with the pool.
async fn sweep(pool: Weak<Pool>, idle_time: Duration) {
    while let Some(oldest) = pool.upgrade().and_then(|pool| pool.oldest()) {
        sleep_until((oldest + idle_time).min(Instant::now() + LOOK_EVERY)).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        pool.idle.borrow_mut().retain(|_, conns| {
            conns.retain(|idle| idle.is_worth_keeping(now, idle_time));
            !conns.is_empty()
        });
    }
    if let Some(pool) = pool.upgrade() {
        pool.sweeping.set(false);
    }
}

/// Maximum number of idle connections per core.
const IDLE_MAX: usize = 256;
/// The part of the memory budget that grown buffers of idle connections may take in all cores. To
/// connect again costs more processor time than a 32 KiB miss, and the buffers' memory is taken
/// only while memory is not short.
const IDLE_EXTRA_PART: u64 = 32;
/// Room for at least eight connections with the largest reads.
const IDLE_EXTRA_MIN: u64 = 8 * buffered(READ_MAX);
/// Time for which a connection that the server has closed may keep the socket.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);
