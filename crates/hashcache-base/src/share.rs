//! Limits on each client's share of common resources: memory and unfinished request heads here,
//! connections to origins in `permits` in `hashcache-upstream`.
//!
//! `server` in the proxy makes an [`Allowance`] for each accepted connection. `hashcache-wire`
//! reserves memory through it and registers unfinished heads. `request` in the proxy hands the
//! [`Share`] on to `hashcache-upstream`.
//!
//! Invariants: a [`Network`]'s connections never hold more memory than `client_share` of the
//! budget. All unfinished heads together hold at most half of the budget: beyond that the client
//! with the most bytes in heads loses its oldest head, so that slow heads cannot shut out other
//! clients. A child's link has no such heads: it must not close because the proxy is busy.
//! Cost: one lock when a connection is accepted and when a head starts or finishes; one atomic
//! operation per reservation.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hashcache::{Cache, Reservation};
use hashcache_http::client_tag;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A client, as limits and shares count clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// An IPv4 address, or the first address of an IPv6 /64, the smallest network that a subscriber
    /// gets.
    Address(IpAddr),
    /// A child on a link, by bits of the child's pin: the child has proved the key, and may share
    /// an address with strangers.
    Child(u128),
    /// A client of a child: bits of the pin of that child, and the number that the child gives to
    /// the client. The number means nothing on the link of another child.
    ChildClient(u128, u32),
}

impl Network {
    /// Only this address, also in IPv6, so that machines in the same /64 are distinguished.
    pub fn exact(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }

    /// The client at `address`; for an IPv6 address, the /64.
    pub fn containing(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let prefix = address.to_bits() >> 64 << 64;
                Ipv6Addr::from_bits(prefix).into()
            }
        })
    }
}

impl Network {
    /// A tag that distinguishes clients in a variant table.
    pub fn tag(self, nonce: u64) -> u8 {
        match self {
            Self::Address(IpAddr::V4(address)) => client_tag(nonce, &address.octets()),
            Self::Address(IpAddr::V6(address)) => client_tag(nonce, &address.octets()),
            Self::Child(number) => client_tag(nonce, &number.to_be_bytes()),
            Self::ChildClient(child, number) => {
                let mut bytes = [0; 20];
                bytes[..16].copy_from_slice(&child.to_be_bytes());
                bytes[16..].copy_from_slice(&number.to_be_bytes());
                client_tag(nonce, &bytes)
            }
        }
    }

    /// The child that serves the client, or the client itself. Some limits count per child, because
    /// a child could multiply them by numbering clients.
    pub fn without_client(self) -> Self {
        match self {
            Self::ChildClient(child, _) => Self::Child(child),
            other => other,
        }
    }
}

/// The shares of all clients; one value per process.
#[derive(Debug)]
pub struct Shares {
    /// Maximum memory per client, bytes.
    memory_max: u64,
    clients: Mutex<HashMap<Network, Weak<ClientUsage>>>,
    /// Maximum memory of all unfinished heads, bytes.
    heads_max: u64,
    heads: Mutex<UnfinishedHeads>,
    connections: Mutex<OpenConnections>,
    /// The zero point of [`GivenUp::rests_since`].
    start: Instant,
}

/// The connections that may be closed while they are idle, by number.
#[derive(Debug, Default)]
struct OpenConnections {
    next_number: u64,
    open: BTreeMap<u64, Arc<GivenUp>>,
}

#[derive(Debug)]
struct ClientUsage {
    network: Network,
    memory: AtomicU64,
    /// The bytes in `memory` that are content read from disk.
    reading: AtomicU64,
    shares: Arc<Shares>,
    /// The share of the child that serves this client. All the client's memory counts in it too.
    child: Option<Share>,
}

impl Drop for ClientUsage {
    fn drop(&mut self) {
        let mut clients = lock(&self.shares.clients);
        // The client may have connected again meanwhile; then the entry is a new one.
        let gone = |client: &Weak<ClientUsage>| client.strong_count() == 0;
        if clients.get(&self.network).is_some_and(gone) {
            clients.remove(&self.network);
        }
    }
}

impl Shares {
    /// Each client may hold `client_percent` of `budget` bytes.
    pub fn new(budget: u64, client_percent: u8) -> Arc<Self> {
        Arc::new(Self {
            memory_max: budget.saturating_mul(client_percent.into()) / 100,
            clients: Mutex::default(),
            heads_max: budget / HEADS_PART,
            heads: Mutex::default(),
            connections: Mutex::default(),
            start: Instant::now(),
        })
    }

    /// Maximum memory per client, bytes.
    pub fn memory_max(&self) -> u64 {
        self.memory_max
    }

    /// The share of the client at this address.
    pub fn of(self: &Arc<Self>, address: IpAddr) -> Share {
        self.of_network(Network::containing(address))
    }

    /// Selects the connection that has been idle longest and makes it close, unless enough of the
    /// `all` connections are closing already to leave fewer than `most`. Returns false if no
    /// connection is idle.
    ///
    /// Cost: reads the state of every connection, so only for a connection beyond the limit.
    fn give_up_resting(&self, all: usize, most: usize) -> bool {
        let connections = lock(&self.connections);
        loop {
            let (mut closing, mut longest) = (0, None);
            for connection in connections.open.values() {
                match connection.rests_since.load(Ordering::Relaxed) {
                    BUSY => {}
                    GIVEN_UP => closing += 1,
                    since if longest.is_none_or(|(first, _)| since < first) => {
                        longest = Some((since, connection));
                    }
                    _ => {}
                }
            }
            if all.saturating_sub(closing) < most {
                return true;
            }
            let Some((since, longest)) = longest else {
                return false;
            };
            // A request may have arrived meanwhile.
            if longest.change_rest(since, GIVEN_UP) {
                longest.notify.notify_one();
                return true;
            }
        }
    }

    /// The share of a client.
    pub fn of_network(self: &Arc<Self>, network: Network) -> Share {
        self.within(network, None)
    }

    fn within(self: &Arc<Self>, network: Network, child: Option<&Share>) -> Share {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(&network).and_then(Weak::upgrade) {
            return Share(client);
        }
        let client = Arc::new(ClientUsage {
            network,
            memory: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            shares: Arc::clone(self),
            child: child.cloned(),
        });
        clients.insert(network, Arc::downgrade(&client));
        Share(client)
    }
}

/// A client's share.
#[derive(Clone, Debug)]
pub struct Share(Arc<ClientUsage>);

impl Share {
    /// The client that the share belongs to.
    pub fn network(&self) -> Network {
        self.0.network
    }

    /// Makes room for another connection, if `all` are open and `most` are allowed. Closes a
    /// connection with a slow head; if there is none, the connection that has been idle longest;
    /// otherwise a connection with a young head. Returns false if there is none.
    ///
    /// A browser opens several connections at once. Each is an unfinished head until the request
    /// arrives, so without the age each connection would close the previous one.
    pub fn make_room(&self, all: usize, most: usize) -> bool {
        let shares = &self.0.shares;
        let give_up_head = |age| lock(&shares.heads).give_up_one(age);
        give_up_head(SLOW_HEAD) || shares.give_up_resting(all, most) || give_up_head(Duration::ZERO)
    }

    /// The share of the client to which this child gives `number`; for a client that is no child,
    /// this share itself.
    pub fn of_client(&self, number: u32) -> Self {
        match self.network() {
            Network::Child(child) => {
                let network = Network::ChildClient(child, number);
                self.0.shares.within(network, Some(self))
            }
            Network::Address(_) | Network::ChildClient(..) => self.clone(),
        }
    }

    /// Returns true if the client holds no more than a quarter of the share. For a child's client,
    /// it must be no more than a sixteenth, and the child must hold no more than three quarters.
    fn holds_little(&self) -> bool {
        let (held, most) = (self.held(), self.0.shares.memory_max);
        match &self.0.child {
            None => held <= most / 4,
            Some(child) => held <= most / 16 && child.held() <= most / 4 * 3,
        }
    }

    fn held(&self) -> u64 {
        self.0.memory.load(Ordering::Relaxed)
    }

    /// Takes `bytes` from the share; `None` if too little is left.
    pub fn take(&self, bytes: u64) -> Option<ShareGuard> {
        let most = self.0.shares.memory_max;
        let guard = |of_child| ShareGuard {
            share: self.clone(),
            bytes,
            of_child,
        };
        let Some(child) = &self.0.child else {
            return add_within(&self.0.memory, bytes, most).then(|| guard(None));
        };
        let of_child = child.take(bytes)?;
        // Counted first, so that two requests from the same client cannot both find room if there
        // is room for only one. If there is no room, dropping the guard undoes the count.
        let held = self.0.memory.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let guard = guard(Some(Box::new(of_child)));
        // A client leaves a quarter of the free share to the others, so that none takes all. The
        // largest encoder, with a dictionary, needs most of a 16-MiB share.
        let left = most.saturating_sub(child.held());
        (held <= left.saturating_mul(CHILD_CLIENT_FACTOR)).then_some(guard)
    }

    /// Returns true if `bytes` may be taken while `rest` stays free. For a child's client, `rest`
    /// is counted in the child's share.
    pub fn leaves(&self, bytes: u64, rest: u64) -> bool {
        let all = self.0.child.as_ref().unwrap_or(self);
        all.take(bytes.saturating_add(rest)).is_some() && self.take(bytes).is_some()
    }

    /// As [`take`](Self::take), for content that is read from disk. The engine reads into memory
    /// that transfers leave free, a quarter of the budget. A client gets at most half of its share
    /// for reads, an eighth of the budget, but always one read.
    pub fn take_for_reading(&self, bytes: u64) -> Option<ReadingGuard> {
        let most = self.0.shares.memory_max / READING_PART;
        let reading = &self.0.reading;
        if let Some(child) = &self.0.child
            && child.0.reading.load(Ordering::Relaxed) >= most
            && reading.load(Ordering::Relaxed) > 0
        {
            return None;
        }
        if !add_within(reading, bytes, most) {
            let none = Ordering::Relaxed;
            reading
                .compare_exchange(0, bytes, Ordering::AcqRel, none)
                .ok()?;
        }
        if let Some(child) = &self.0.child {
            child.0.reading.fetch_add(bytes, Ordering::AcqRel);
        }
        let counted = ReadingCount {
            share: self.clone(),
            bytes,
        };
        self.take(bytes).map(|taken| ReadingGuard {
            _taken: taken,
            _counted: counted,
        })
    }

    /// Returns true if there is room for `bytes` and in addition for content to be sent: streams
    /// must not use up the whole share.
    pub fn has_room_beside_content(&self, bytes: u64) -> bool {
        let part = match self.0.child {
            None => CONTENT_PART,
            Some(_) => CONTENT_PART * 4,
        };
        let content = PIECE_BYTES.max(self.0.shares.memory_max / part);
        self.take(bytes.saturating_add(content)).is_some()
    }
}

/// Adds `bytes` to `taken`, unless the sum exceeds `most`.
fn add_within(taken: &AtomicU64, bytes: u64, most: u64) -> bool {
    let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
    taken
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
        .is_ok()
}

/// Reserves memory for a transfer that `client` started. Other clients may share the transfer, so
/// the memory is not charged to the client. The memory for transfers is used first. If it is used
/// up, a client that holds little of its share, or the proxy itself, may use memory that transfers
/// leave free.
pub fn reserve_for(client: Option<&Share>, cache: &Cache, bytes: u64) -> Option<Reservation> {
    let holds_little = client.is_none_or(Share::holds_little);
    let free = || holds_little.then(|| cache.reserve(bytes)).flatten();
    cache.reserve_bulk(bytes).or_else(free)
}

/// Memory that makes a request faster but that the request does not need. The memory counts in the
/// client's share: a client that starts many requests must not use up the memory of all clients.
#[derive(Debug)]
pub struct SpareMemory {
    _held: Reservation,
    _taken: Option<ShareGuard>,
}

impl SpareMemory {
    /// `None` unless half of the budget is free, and the client's share has room for content to be
    /// sent in addition.
    pub fn reserve(cache: &Cache, client: Option<&Share>, bytes: u64) -> Option<Self> {
        let taken = match client {
            Some(client) if !client.has_room_beside_content(bytes) => return None,
            Some(client) => Some(client.take(bytes)?),
            None => None,
        };
        Some(Self {
            _held: cache.reserve_spare(bytes)?,
            _taken: taken,
        })
    }
}

/// A part of a share; returned when dropped.
#[derive(Debug)]
pub struct ShareGuard {
    share: Share,
    bytes: u64,
    /// The bytes in the share of the child, if this is a client of a child.
    of_child: Option<Box<ShareGuard>>,
}

impl ShareGuard {
    /// Takes over the bytes that `other` has taken from the same share.
    pub fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.share.0, &other.share.0));
        self.bytes += std::mem::take(&mut other.bytes);
        match (&mut self.of_child, other.of_child.take()) {
            (Some(of_child), Some(more)) => of_child.join(*more),
            (of_child, more) => debug_assert!(of_child.is_none() && more.is_none()),
        }
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        self.share.0.memory.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A part of a share for content read from disk; returned when dropped.
#[derive(Debug)]
pub struct ReadingGuard {
    _taken: ShareGuard,
    _counted: ReadingCount,
}

#[derive(Debug)]
struct ReadingCount {
    share: Share,
    bytes: u64,
}

impl Drop for ReadingCount {
    fn drop(&mut self) {
        let share = &self.share.0;
        for counted in [Some(&self.share), share.child.as_ref()]
            .into_iter()
            .flatten()
        {
            counted.0.reading.fetch_sub(self.bytes, Ordering::AcqRel);
        }
    }
}

/// The resources that a connection may use.
#[derive(Clone)]
pub struct Allowance {
    share: Share,
    cache: Cache,
    given_up: Arc<GivenUp>,
    /// True if the connection may be closed while it is idle.
    may_rest: bool,
}

/// State by which a connection learns that it must close to make room for others.
#[derive(Debug, Default)]
struct GivenUp {
    notify: Notify,
    /// The connection must close because of an unfinished head.
    head: AtomicBool,
    /// The connection must close because it was idle, and has at most one request left.
    is_closing: AtomicBool,
    /// Milliseconds from [`Shares::start`] to the start of the idle time, plus one; or [`BUSY`], or
    /// [`GIVEN_UP`].
    rests_since: AtomicU64,
}

/// The connection is not idle.
const BUSY: u64 = 0;
/// The connection was chosen to close while it was idle. A request that arrives before the
/// connection notices makes it busy, and is served.
const GIVEN_UP: u64 = u64::MAX;

impl GivenUp {
    fn change_rest(&self, old: u64, new: u64) -> bool {
        let changed =
            self.rests_since
                .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        changed.is_ok()
    }
}

/// Why a connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The head is unfinished, and heads hold too much memory.
    Head,
    /// The connection was idle, and another connection needs the place.
    Rest,
}

/// An entry in the register of connections that may be closed while they are idle.
#[derive(Debug)]
pub struct OpenConnection {
    shares: Arc<Shares>,
    number: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        lock(&self.shares.connections).open.remove(&self.number);
    }
}

/// Memory reserved for a client, from the budget and from the client's share.
#[derive(Debug)]
pub struct ShareReservation {
    memory: Reservation,
    taken: Vec<ShareGuard>,
}

impl ShareReservation {
    /// Merges the reservation `other` into this one.
    pub fn join(&mut self, other: Self) {
        self.memory.join(other.memory);
        self.taken.extend(other.taken);
    }
}

impl Allowance {
    /// The allowance for a connection from the client with `share`.
    pub fn new(share: Share, cache: Cache) -> Self {
        Self {
            share,
            cache,
            given_up: Arc::default(),
            may_rest: true,
        }
    }

    /// The allowance for a stream on an HTTP/2 connection: the connection is not idle when only a
    /// stream is.
    pub fn of_stream(&self) -> Self {
        Self {
            may_rest: false,
            ..self.clone()
        }
    }

    /// An allowance without limits, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn unbounded(cache: &Cache) -> Self {
        let shares = Shares::new(cache.stats().memory_limit_bytes * 2, 100);
        Self::new(shares.of(Ipv6Addr::LOCALHOST.into()), cache.clone())
    }

    /// The share of the client.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The allowance for the client to which this child gives `number`.
    pub fn of_client(&self, number: u32) -> Self {
        Self::new(self.share.of_client(number), self.cache.clone())
    }

    /// [`Cache::reserve`] within the client's share. A client that holds much already may only use
    /// the memory for transfers; the rest is for other clients.
    pub fn reserve(&self, bytes: u64) -> Option<ShareReservation> {
        let holds_little = self.share.holds_little();
        self.within_share(bytes, |cache| {
            if holds_little {
                cache.reserve(bytes)
            } else {
                cache.reserve_bulk(bytes)
            }
        })
    }

    /// [`Cache::reserve_bulk`] within the client's share.
    pub fn reserve_bulk(&self, bytes: u64) -> Option<ShareReservation> {
        self.within_share(bytes, |cache| cache.reserve_bulk(bytes))
    }

    /// [`Cache::reserve_spare`] within the client's share.
    pub fn reserve_spare(&self, bytes: u64) -> Option<ShareReservation> {
        self.within_share(bytes, |cache| cache.reserve_spare(bytes))
    }

    fn within_share(
        &self,
        bytes: u64,
        reserve: impl FnOnce(&Cache) -> Option<Reservation>,
    ) -> Option<ShareReservation> {
        let taken = vec![self.share.take(bytes)?];
        let memory = reserve(&self.cache)?;
        Some(ShareReservation { memory, taken })
    }

    /// Registers an unfinished head for a connection that holds `bytes`. This may close another
    /// connection with an unfinished head, or this connection.
    pub fn begin_head(&self, bytes: u64) -> UnfinishedHead {
        let shares = &self.share.0.shares;
        let network = self.share.network();
        let mut heads = lock(&shares.heads);
        let number = heads.enter(network, bytes, Arc::clone(&self.given_up));
        while heads.bytes > shares.heads_max && heads.give_up_one(Duration::ZERO) {}
        UnfinishedHead {
            share: self.share.clone(),
            number,
            bytes,
        }
    }

    /// Enters the connection into the register of connections that may be closed while they are
    /// idle.
    pub fn open_connection(&self) -> OpenConnection {
        let shares = &self.share.0.shares;
        let mut connections = lock(&shares.connections);
        let number = connections.next_number;
        connections.next_number += 1;
        connections.open.insert(number, Arc::clone(&self.given_up));
        OpenConnection {
            shares: Arc::clone(shares),
            number,
        }
    }

    /// Marks the connection as idle since `now`, so that it may be closed for a new connection.
    pub fn rest(&self, now: Instant) {
        if self.may_rest {
            let since = now.saturating_duration_since(self.share.0.shares.start);
            let ms = u64::try_from(since.as_millis()).unwrap_or(GIVEN_UP - 2);
            let since = if self.given_up.is_closing.load(Ordering::Relaxed) {
                GIVEN_UP
            } else {
                ms + 1
            };
            self.given_up.rests_since.store(since, Ordering::Relaxed);
        }
    }

    /// Marks the request head as complete. If another core has just chosen this connection to
    /// close, the request wins, because it may be on its way to an origin.
    pub fn end_head(&self) {
        self.given_up.head.store(false, Ordering::Relaxed);
    }

    /// Marks the connection as busy with a request, or with a part of a request.
    pub fn end_rest(&self) {
        if self.may_rest {
            self.given_up.rests_since.store(BUSY, Ordering::Relaxed);
        }
    }

    /// Resolves when the connection must close to make room for others.
    pub async fn given_up(&self) -> GiveUp {
        let given_up = &self.given_up;
        loop {
            given_up.notify.notified().await;
            if given_up.head.load(Ordering::Relaxed) {
                return GiveUp::Head;
            }
            // Otherwise a request has arrived and the connection is busy again.
            if given_up.rests_since.load(Ordering::Relaxed) == GIVEN_UP {
                given_up.is_closing.store(true, Ordering::Relaxed);
                return GiveUp::Rest;
            }
        }
    }
}

/// An unfinished head in the register; removed when dropped, at the latest when the head is
/// complete.
#[derive(Debug)]
pub struct UnfinishedHead {
    share: Share,
    number: u64,
    bytes: u64,
}

impl UnfinishedHead {
    /// The bytes that the register counts for the connection.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for UnfinishedHead {
    fn drop(&mut self) {
        let heads = &self.share.0.shares.heads;
        lock(heads).leave(self.share.network(), self.number);
    }
}

/// The register of unfinished heads.
#[derive(Debug, Default)]
struct UnfinishedHeads {
    next_number: u64,
    bytes: u64,
    clients: HashMap<Network, ClientHeads>,
}

/// The unfinished heads of a client, oldest first.
#[derive(Debug, Default)]
struct ClientHeads {
    bytes: u64,
    heads: BTreeMap<u64, HeadEntry>,
}

#[derive(Debug)]
struct HeadEntry {
    bytes: u64,
    begun: Instant,
    given_up: Arc<GivenUp>,
}

impl UnfinishedHeads {
    fn enter(&mut self, network: Network, bytes: u64, given_up: Arc<GivenUp>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += bytes;
        let client = self.clients.entry(network).or_default();
        client.bytes += bytes;
        let begun = Instant::now();
        let entry = HeadEntry {
            bytes,
            begun,
            given_up,
        };
        client.heads.insert(number, entry);
        number
    }

    fn leave(&mut self, network: Network, number: u64) -> Option<Arc<GivenUp>> {
        let client = self.clients.get_mut(&network)?;
        let entry = client.heads.remove(&number)?;
        client.bytes -= entry.bytes;
        self.bytes -= entry.bytes;
        if client.heads.is_empty() {
            self.clients.remove(&network);
        }
        Some(entry.given_up)
    }

    /// Makes the oldest head's connection close, for the client with the most bytes in heads, if
    /// that head started at least `age` ago.
    fn give_up_one(&mut self, age: Duration) -> bool {
        let most = self.clients.iter().max_by_key(|(_, client)| client.bytes);
        let oldest = most.and_then(|(network, client)| {
            let (number, head) = client.heads.first_key_value()?;
            (head.begun.elapsed() >= age).then_some((*network, *number))
        });
        let given_up = oldest.and_then(|(network, number)| self.leave(network, number));
        if let Some(given_up) = &given_up {
            // `notify_one` is remembered if the connection is not waiting at this moment.
            given_up.head.store(true, Ordering::Relaxed);
            given_up.notify.notify_one();
        }
        given_up.is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The largest buffer for response content: a page of the store.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Content read from disk may take 1/`READING_PART` of a share.
const READING_PART: u64 = 2;
/// A client of a child may hold this many times the memory that it leaves to the other clients of
/// that child.
const CHILD_CLIENT_FACTOR: u64 = 3;
/// Streams leave 1/`CONTENT_PART` of a share to content: 1 MiB of 16, four spans. For a child's
/// client, streams leave a quarter of that.
const CONTENT_PART: u64 = 16;

/// A head that takes longer is slow: most heads arrive with the connection, or one round trip
/// later.
const SLOW_HEAD: Duration = Duration::from_secs(1);
/// Unfinished heads may hold 1/`HEADS_PART` of the budget.
const HEADS_PART: u64 = 2;

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use hashcache::Config;
    use hashcache::device::MemoryDevice;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn cache() -> Cache {
        let config = Config {
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
        };
        Cache::open(config).unwrap()
    }

    fn allowance(shares: &Arc<Shares>, cache: &Cache, address: &str) -> Allowance {
        Allowance::new(shares.of(address.parse().unwrap()), cache.clone())
    }

    fn is_given_up(allowance: &Allowance) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(allowance.given_up()).poll(&mut context).is_ready()
    }

    #[test]
    fn the_connection_that_rests_longest_is_given_up_unless_a_request_arrives() {
        let cache = cache();
        let shares = Shares::new(16 * MIB, 25);
        let connections = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let connections = connections.map(|address| allowance(&shares, &cache, address));
        let [busy, first, second] = &connections;
        let open = connections.each_ref().map(Allowance::open_connection);
        assert!(!shares.give_up_resting(3, 3), "none rests");
        first.rest(shares.start + Duration::from_secs(1));
        second.rest(shares.start + Duration::from_secs(2));
        // A stream that rests does not make its connection rest.
        busy.of_stream().rest(shares.start);
        assert!(shares.give_up_resting(3, 3));
        assert!(shares.give_up_resting(3, 3), "one closes already");
        // A request ends the rest before the connection has closed.
        first.end_rest();
        assert!(!is_given_up(first));
        assert!(shares.give_up_resting(3, 3));
        assert!(is_given_up(second) && !is_given_up(busy));
        assert!(!shares.give_up_resting(4, 3), "nobody else rests");
        // After one more request it is closing still.
        second.end_rest();
        second.rest(shares.start);
        assert!(shares.give_up_resting(3, 3) && !shares.give_up_resting(4, 3));
        drop(open);
        assert!(lock(&shares.connections).open.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_goes_before_an_idle_connection_and_that_before_a_young_head() {
        let cache = cache();
        let shares = Shares::new(16 * MIB, 25);
        let [slow, idle, young] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let [slow, idle, young] = [slow, idle, young].map(|it| allowance(&shares, &cache, it));
        let _open = idle.open_connection();
        let _slow_head = slow.begin_head(2000);
        tokio::time::advance(SLOW_HEAD).await;
        idle.rest(Instant::now());
        let _young_head = young.begin_head(1000);
        for expected in [
            [true, false, false],
            [false, true, false],
            [false, false, true],
        ] {
            assert!(idle.share().make_room(9, 1));
            assert_eq!([&slow, &idle, &young].map(is_given_up), expected);
        }
        assert!(!idle.share().make_room(9, 1));
    }

    #[test]
    fn a_request_whose_head_is_given_up_just_when_it_is_complete_is_served() {
        let cache = cache();
        let shares = Shares::new(16 * MIB, 25);
        let client = allowance(&shares, &cache, "192.0.2.1");
        let head = client.begin_head(1000);
        assert!(client.share().make_room(1, 1));
        drop(head);
        client.end_head();
        assert!(!is_given_up(&client));
    }

    #[test]
    fn one_client_gets_a_quarter_and_leaves_the_rest_to_others() {
        let cache = cache();
        let shares = Shares::new(16 * MIB, 25);
        let greedy = allowance(&shares, &cache, "192.0.2.1");
        let again = allowance(&shares, &cache, "::ffff:192.0.2.1");
        let held: Vec<_> = std::iter::from_fn(|| greedy.reserve(MIB)).collect();
        assert_eq!(held.len(), 4);
        assert!(again.reserve(1).is_none(), "the same address");
        let other = allowance(&shares, &cache, "192.0.2.2");
        assert!(other.reserve(4 * MIB).is_some());
        drop(held);
        assert!(again.reserve(4 * MIB).is_some());
        drop((greedy, again, other));
        assert!(lock(&shares.clients).is_empty());
    }

    #[test]
    fn one_client_of_a_child_leaves_room_in_its_share_to_the_others_of_that_child() {
        let shares = Shares::new(16 * MIB, 25);
        let child = shares.of_network(Network::Child(7));
        let take_all =
            |share: &Share| -> Vec<_> { std::iter::from_fn(|| share.take(MIB / 16)).collect() };
        let greedy = child.of_client(1);
        let held = take_all(&greedy);
        assert_eq!(held.len(), 48, "three quarters of the child's 4 MiB");
        assert!(child.of_client(1).take(1).is_none(), "the same client");
        let second = take_all(&child.of_client(2));
        assert_eq!(second.len(), 12, "three quarters of the rest");
        assert!(child.of_client(3).take(MIB / 16).is_some(), "room is left");
        let many: Vec<_> = (3..1000).map(|n| take_all(&child.of_client(n))).collect();
        let of_many: usize = many.iter().map(Vec::len).sum();
        assert!(
            of_many <= 4,
            "numbers give a child no more than its share: {of_many}"
        );
        drop((held, second, many));
        let mut joined = greedy.take(3).unwrap();
        joined.join(greedy.take(4).unwrap());
        assert_eq!((greedy.held(), child.held()), (7, 7));
        drop(joined);
        assert_eq!((greedy.held(), child.held()), (0, 0));
        drop((greedy, child));
        assert!(lock(&shares.clients).is_empty());
    }

    #[test]
    fn clients_of_a_child_read_from_disk_within_the_share_of_that_child() {
        let shares = Shares::new(8 * MIB, 25);
        let child = shares.of_network(Network::Child(7));
        let read = |number| child.of_client(number).take_for_reading(MIB / 4);
        let mut held: Vec<_> = std::iter::from_fn(|| read(1)).collect();
        assert_eq!(held.len(), 4);
        // Each other client gets one read.
        held.push(read(2).unwrap());
        assert!(read(2).is_none());
        drop(held);
        assert_eq!(child.0.reading.load(Ordering::Relaxed), 0);
        assert!(read(2).is_some() && child.held() == 0);
    }

    #[test]
    fn content_read_from_disk_gets_half_of_a_share_and_one_read_in_any_case() {
        let shares = Shares::new(8 * MIB, 25);
        let client = shares.of("192.0.2.1".parse().unwrap());
        let half: Vec<_> = std::iter::from_fn(|| client.take_for_reading(MIB / 4)).collect();
        assert_eq!(half.len(), 4);
        assert!(client.take(MIB).is_some(), "the other half");
        assert!(client.take(MIB + 1).is_none());
        drop(half);
        let large = client.take_for_reading(2 * MIB).unwrap();
        assert!(client.take_for_reading(1).is_none());
        drop(large);
        let all = client.take(2 * MIB).unwrap();
        assert!(client.take_for_reading(1).is_none());
        drop(all);
        assert!(
            client.take_for_reading(MIB).is_some(),
            "a refusal takes nothing"
        );
    }

    #[test]
    fn the_addresses_of_an_ipv6_network_have_one_share() {
        let cache = cache();
        let shares = Shares::new(16 * MIB, 25);
        let one = allowance(&shares, &cache, "2001:db8::1");
        let _held = one.reserve(4 * MIB).unwrap();
        let other = allowance(&shares, &cache, "2001:db8::ffff:1");
        assert!(
            other.reserve(1).is_none(),
            "another address of the same /64"
        );
        let elsewhere = allowance(&shares, &cache, "2001:db8:0:1::1");
        assert!(elsewhere.reserve(1).is_some());
    }

    #[test]
    fn a_refusal_of_the_budget_takes_nothing_of_the_share() {
        let cache = cache();
        let shares = Shares::new(100 * MIB, 100);
        let client = allowance(&shares, &cache, "192.0.2.1");
        assert!(client.reserve(50 * MIB).is_none());
        assert_eq!(client.share.0.memory.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_client_with_most_unfinished_heads_loses_its_oldest() {
        let cache = cache();
        let shares = Shares::new(8 * MIB, 25);
        let quick = allowance(&shares, &cache, "192.0.2.1");
        let _waits = quick.begin_head(MIB);
        let slow: Vec<_> = (0..3)
            .map(|_| allowance(&shares, &cache, "192.0.2.2"))
            .collect();
        let heads: Vec<_> = slow.iter().map(|slow| slow.begin_head(MIB)).collect();
        assert!(slow.iter().chain([&quick]).all(|it| !is_given_up(it)));
        let late = allowance(&shares, &cache, "192.0.2.3");
        let _late = late.begin_head(MIB);
        let lost: Vec<bool> = slow.iter().map(is_given_up).collect();
        assert_eq!(lost, [true, false, false]);
        assert!(!is_given_up(&quick) && !is_given_up(&late));
        drop(heads);
        assert_eq!(lock(&shares.heads).bytes, 2 * MIB);
    }
}
