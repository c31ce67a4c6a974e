//! The child's handle for the link to a parent.
//!
//! A part of `Peer` in `hashcache-upstream`, so all cores share it. The thread of `server/links` in
//! the proxy enters the open connection ([`ParentLink::opened`]); requests and tunnels take a
//! stream on it ([`ParentLink::stream`]).
//!
//! Invariants: streams exist only on a connection that the parent has accepted. A caller waits only
//! for the current attempt, never for a later attempt, so it gets the failure at once and can try
//! another hop. A connection that accepts no more streams is replaced while the open streams
//! continue ([`ParentLink::retired`]). A connection has no more streams than the parent allows, so
//! no stream waits in hyper, where the time would count against the parent. A client has at most
//! half the streams. Each client network has a number, which the parent sees; the number stays the
//! same for the `CLIENTS_MAX` most recently used networks. Cost: two locks per stream.

use std::collections::HashMap;
use std::future::ready;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::share::{Network, Share};
use hashcache_http::{LinkTurn, UnixTime};
use hyper::client::conn::http2::SendRequest;
use lru::LruCache;
use rustls::ClientConfig;
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::content::LinkContent;
use super::counters::{LinkCounters, OpenStream};
use super::identity::LinkIdentity;
use super::named::NamedResults;
use super::pin::Pin;
use super::turns::{ReadTurn, SendTurn, Turns};
use super::{STREAMS, tls, tunnels_of};

/// The link to one parent.
#[derive(Debug)]
pub struct ParentLink {
    /// TLS: our key, and the parent's pin.
    pub config: Arc<ClientConfig>,
    /// This link's counters.
    pub counters: Arc<LinkCounters>,
    /// Lookup results for the dictionaries that the parent has named.
    pub named: NamedResults,
    /// The pins of both sides, which identify the link.
    pins: [Pin; 2],
    state: Mutex<State>,
    clients: Mutex<ClientNumbers>,
    changes: watch::Sender<()>,
    /// The number of the last connection that accepts no more streams.
    retired: watch::Sender<u64>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    open: Option<OpenLink>,
    /// Connections made so far.
    number: u64,
    /// Failure of the last attempt or the last connection.
    failed: Option<(Failure, Instant)>,
}

/// The numbers of client networks.
#[derive(Debug)]
struct ClientNumbers {
    numbers: LruCache<Network, u32>,
    last: u32,
}

#[derive(Clone, Debug)]
struct OpenLink {
    number: u64,
    sender: SendRequest<LinkContent>,
    address: SocketAddr,
    since: UnixTime,
    places: Arc<Semaphore>,
    /// Streams that tunnels may have.
    for_tunnels: Arc<Semaphore>,
    /// How many streams a client may have.
    for_client: usize,
    /// By client number, for clients with streams or waiting for a stream.
    of_clients: Arc<Mutex<HashMap<u32, Weak<Semaphore>>>>,
    turns: Arc<Turns>,
}

/// A connection that the parent has accepted.
#[derive(Debug)]
pub struct NewConnection {
    /// Sends requests on the connection.
    pub sender: SendRequest<LinkContent>,
    /// The parent's address.
    pub address: SocketAddr,
    /// How many streams the parent allows.
    pub streams: usize,
    /// The turns of this connection's clients.
    pub turns: Arc<Turns>,
}

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUse {
    /// A request and its response.
    Request,
    /// The bytes of a CONNECT.
    Tunnel,
}

/// A request or tunnel on the connection.
#[derive(Debug)]
pub struct LinkStream {
    /// Sends the request.
    pub sender: SendRequest<LinkContent>,
    /// The parent's address.
    pub address: SocketAddr,
    /// The connection's number, for [`ParentLink::retire`].
    pub number: u64,
    /// The permit for a stream on the link.
    pub place: StreamPlace,
    /// Identifies the request's client.
    pub turn: LinkTurn,
    /// Account for content from the parent.
    pub reading: ReadTurn,
    turns: Arc<Turns>,
}

impl LinkStream {
    /// Account for content to the parent.
    pub fn sending(&self) -> SendTurn {
        self.turns.send(self.turn)
    }
}

/// The place of a stream on the connection; free again when dropped.
#[derive(Debug)]
pub struct StreamPlace {
    _counted: OpenStream,
    _place: OwnedSemaphorePermit,
    _for_tunnel: Option<OwnedSemaphorePermit>,
    _of_client: OwnedSemaphorePermit,
}

impl PartialEq for ParentLink {
    fn eq(&self, other: &Self) -> bool {
        self.pins == other.pins
    }
}

impl ParentLink {
    /// The link from the box with the key of `identity` to the parent with the key `pin`.
    pub fn new(identity: &LinkIdentity, pin: Pin) -> Self {
        Self {
            config: tls::of_child(&identity.key, pin),
            counters: Arc::default(),
            named: NamedResults::default(),
            pins: [identity.pin(), pin],
            state: Mutex::default(),
            clients: Mutex::new(ClientNumbers {
                numbers: LruCache::new(CLIENTS_MAX),
                last: 0,
            }),
            changes: watch::Sender::default(),
            retired: watch::Sender::default(),
            wanted: Notify::new(),
        }
    }

    /// The parent's pin.
    pub fn pin(&self) -> Pin {
        self.pins[1]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number for `client`; 0: the proxy itself.
    fn number_of(&self, client: Option<&Share>) -> u32 {
        let Some(client) = client else {
            return 0;
        };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let ClientNumbers { numbers, last } = &mut *clients;
        let number = numbers.get_or_insert(client.network(), || {
            *last = last.wrapping_add(1).max(1);
            *last
        });
        *number
    }

    /// Returns true if the connection is open.
    pub fn is_up(&self) -> bool {
        self.state().is_open()
    }

    /// Takes a stream on the connection for `client`, or for the proxy itself. If there is no
    /// connection, or no free place, waits up to `limit`.
    ///
    /// # Errors
    /// The attempt to connect has failed, or the time limit is over.
    pub async fn stream(
        &self,
        what: StreamUse,
        client: Option<&Share>,
        limit: Duration,
    ) -> Result<LinkStream, Failure> {
        let client = self.number_of(client);
        let mut changes = self.changes.subscribe();
        let mut late = Failure::ConnectTimeout(limit);
        let waiting = async {
            loop {
                changes.borrow_and_update();
                match self.connection() {
                    Some(Err(failure)) => return Err(failure),
                    Some(Ok(open)) => {
                        // Other streams have the places. The parent is not at fault.
                        late = Failure::UpstreamLimit;
                        tokio::select! {
                            biased;
                            begun = self.begin((what, client), open) => return begun,
                            _ = changes.changed() => {}
                        }
                    }
                    None => {
                        late = Failure::ConnectTimeout(limit);
                        self.wanted.notify_one();
                        if changes.changed().await.is_err() {
                            return Err(Failure::Internal("the link has ended"));
                        }
                    }
                }
            }
        };
        let begun = timeout(limit, waiting).await;
        begun.unwrap_or(Err(late))
    }

    /// Waits for a place on `open`.
    async fn begin(
        &self,
        (what, client): (StreamUse, u32),
        open: OpenLink,
    ) -> Result<LinkStream, Failure> {
        let closed = |_| Failure::Internal("places are closed");
        // From the narrowest limit to the widest.
        let of_client = open.of_client(client).acquire_owned().await;
        let of_client = of_client.map_err(closed)?;
        // Before the place, so that a waiting tunnel holds no place.
        let for_tunnel = match what {
            StreamUse::Request => None,
            StreamUse::Tunnel => Some(open.for_tunnels.acquire_owned().await.map_err(closed)?),
        };
        let place = open.places.acquire_owned().await.map_err(closed)?;
        let turn = open.turns.next(client);
        Ok(LinkStream {
            turn,
            reading: open.turns.read(turn),
            turns: open.turns,
            sender: open.sender,
            address: open.address,
            number: open.number,
            place: StreamPlace {
                _counted: self.counters.begin_stream(),
                _place: place,
                _for_tunnel: for_tunnel,
                _of_client: of_client,
            },
        })
    }

    /// The connection, or the failure of an attempt that has just finished; `None`: wait.
    fn connection(&self) -> Option<Result<OpenLink, Failure>> {
        let state = self.state();
        if let Some(open) = state.open.as_ref().filter(|open| !open.sender.is_closed()) {
            return Some(Ok(open.clone()));
        }
        match &state.failed {
            Some((failure, at)) if at.elapsed() < ATTEMPT_PAUSE => Some(Err(failure.clone())),
            _ => None,
        }
    }

    /// Starts no more streams on the connection `number`; open streams continue.
    pub fn retire(&self, number: u64) {
        let mut state = self.state();
        if state.number == number {
            state.open = None;
            drop(state);
            self.retired.send_replace(number);
            // Streams that wait for a place on this connection now wait for the next connection.
            self.changes.send_replace(());
        }
    }

    /// Resolves when the connection `number` is retired. The connection may then stay open for
    /// long, because the last stream may be a large transfer.
    pub async fn retired(&self, number: u64) {
        let mut retired = self.retired.subscribe();
        // The sender is a part of this link, so it cannot be gone.
        let _ = retired.wait_for(|retired| *retired >= number).await;
    }

    /// Uses this connection for all new streams. Returns the connection's number.
    pub fn opened(&self, connection: NewConnection, since: UnixTime) -> u64 {
        let NewConnection {
            sender,
            address,
            streams,
            turns,
        } = connection;
        let streams = streams.min(STREAMS);
        let mut state = self.state();
        state.number += 1;
        state.failed = None;
        let number = state.number;
        state.open = Some(OpenLink {
            number,
            sender,
            address,
            since,
            places: Arc::new(Semaphore::new(streams)),
            for_tunnels: Arc::new(Semaphore::new(tunnels_of(streams))),
            for_client: streams.div_ceil(2),
            of_clients: Arc::default(),
            turns,
        });
        drop(state);
        self.counters.connected();
        self.changes.send_replace(());
        number
    }

    /// Notes that an attempt to connect has failed.
    pub fn failed(&self, failure: Failure) {
        let mut state = self.state();
        state.open = None;
        state.failed = Some((failure, Instant::now()));
        drop(state);
        self.changes.send_replace(());
    }

    /// Resolves when it is time for the next attempt to connect: after `pause`, or when a request
    /// needs the link.
    pub async fn pause(&self, pause: Duration) {
        // Earlier requests already got the failure: they are no reason to hurry.
        tokio::select! {
            biased;
            () = self.wanted.notified() => {}
            () = ready(()) => {}
        }
        let least = Instant::now() + ATTEMPT_PAUSE.min(pause);
        let wanted = timeout(pause, self.wanted.notified()).await.is_ok();
        if wanted {
            tokio::time::sleep_until(least).await;
        }
    }

    /// Status for operators; times are seconds since 1970.
    pub fn to_json(&self) -> Value {
        let mut shown = self.counters.to_json();
        let state = self.state();
        let open = state.open.as_ref().filter(|_| state.is_open());
        let failed = state.failed.as_ref().filter(|_| open.is_none());
        let failure = failed.map(|(failure, _)| failure);
        shown["up"] = json!(open.is_some());
        shown["address"] = json!(open.map(|open| open.address.to_string()));
        shown["since"] = json!(open.map(|open| open.since.0));
        shown["pin"] = json!(self.pins[1].to_string());
        shown["failure"] = json!(failure.map(ToString::to_string));
        shown["advice"] = json!(failure.map(advice));
        shown
    }
}

impl OpenLink {
    /// A client's places.
    fn of_client(&self, client: u32) -> Arc<Semaphore> {
        let mut clients = self
            .of_clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = clients.get(&client).and_then(Weak::upgrade) {
            return places;
        }
        // Clear the dead entries only at this limit: there are at most `STREAMS` clients with
        // streams.
        if clients.len() >= 2 * STREAMS {
            clients.retain(|_, places| places.strong_count() > 0);
        }
        let places = Arc::new(Semaphore::new(self.for_client));
        clients.insert(client, Arc::downgrade(&places));
        places
    }
}

impl State {
    fn is_open(&self) -> bool {
        self.open.as_ref().is_some_and(|it| !it.sender.is_closed())
    }
}

/// Advice for the operator after a failure to connect.
pub fn advice(failure: &Failure) -> &'static str {
    match failure {
        Failure::Link(fault) => fault.advice(),
        Failure::NameNotFound | Failure::NameError | Failure::NameTimeout(_) => {
            "check the host name in the URL of the parent, and the name server of this box"
        }
        Failure::ConnectionRefused => {
            "nothing listens there: start the parent with `link_listen`, and check the port"
        }
        Failure::Unreachable | Failure::ConnectTimeout(_) => {
            "the line may be down, or a firewall before the parent closed; it is tried again"
        }
        Failure::TlsProtocol(_) | Failure::TlsAlert(_) => {
            "the URL of the parent must have the port of its `link_listen`, not that of `listen`"
        }
        _ => "it is tried again; see the logs of both boxes",
    }
}

/// How many client numbers are remembered.
const CLIENTS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// Minimum time between two attempts to connect.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use hashcache_base::failure::LinkFault;

    use super::*;

    fn link() -> Arc<ParentLink> {
        let home = tempfile::tempdir().unwrap();
        let identity = LinkIdentity::make(home.path()).unwrap();
        Arc::new(ParentLink::new(&identity, identity.pin()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_hears_of_the_failure_of_the_attempt_that_is_made() {
        let link = link();
        let waiting = link.stream(StreamUse::Request, None, Duration::from_secs(10));
        let failing = async {
            link.pause(Duration::from_secs(60)).await;
            link.failed(Failure::Link(LinkFault::OtherKey));
        };
        let begun = Instant::now();
        let ((), failed) = tokio::join!(failing, waiting);
        assert_eq!(failed.unwrap_err(), Failure::Link(LinkFault::OtherKey));
        assert_eq!(
            begun.elapsed(),
            ATTEMPT_PAUSE,
            "the request ended the pause"
        );
        let again = link
            .stream(StreamUse::Request, None, Duration::from_secs(10))
            .await;
        assert_eq!(again.unwrap_err(), Failure::Link(LinkFault::OtherKey));
        assert_eq!(begun.elapsed(), ATTEMPT_PAUSE, "it has just been tried");
        let shown = link.to_json();
        assert_eq!(shown["up"], false);
        assert!(shown["advice"].as_str().unwrap().contains("link pin"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_heard_of_a_failure_does_not_shorten_the_pause_after_it() {
        let link = link();
        let failing = async {
            tokio::task::yield_now().await;
            link.failed(Failure::ConnectionRefused);
        };
        let (failed, ()) = tokio::join!(
            link.stream(StreamUse::Request, None, Duration::from_secs(10)),
            failing
        );
        assert_eq!(failed.unwrap_err(), Failure::ConnectionRefused);
        let (begun, pause) = (Instant::now(), Duration::from_secs(20));
        link.pause(pause).await;
        assert_eq!(begun.elapsed(), pause);
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_is_never_made_is_waited_for_no_longer_than_the_limit() {
        let limit = Duration::from_secs(3);
        let failed = link().stream(StreamUse::Request, None, limit).await;
        assert_eq!(failed.unwrap_err(), Failure::ConnectTimeout(limit));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_may_be_retired_before_it_ends() {
        let link = link();
        let is_retired = |number| {
            let link = Arc::clone(&link);
            async move {
                timeout(Duration::from_secs(1), link.retired(number))
                    .await
                    .is_ok()
            }
        };
        link.state().number = 2;
        link.retire(1);
        assert!(!is_retired(2).await, "an older one");
        link.retire(2);
        assert!(is_retired(2).await && is_retired(1).await);
        assert!(!is_retired(3).await, "its successor");
    }
}
