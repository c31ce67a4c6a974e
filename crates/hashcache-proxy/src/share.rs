//! What one client may take of what all clients need: memory and unfinished request heads here,
//! connections to origins in `upstream/limit`.
//!
//! `server` makes an [`Allowance`] for each accepted connection; `wire` takes memory through it and
//! registers heads that are not complete; `request` hands the [`Share`] on to `upstream`.
//!
//! Invariants: the connections of one [`Network`] never hold more memory than `client_share` of the
//! budget. Unfinished heads together hold no more than half of the budget: beyond that the
//! client with the most of them loses its oldest, so slow heads cannot shut out quick ones.
//! Cost: one lock when a connection is accepted and when a head begins or ends, one atomic
//! operation beside each reservation.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashcache::{Cache, Reservation};
use hashcache_http::client_tag;
use tokio::sync::Notify;

/// What counts as one client: an IPv4 address, or an IPv6 network of 64 bits, which is the least
/// that one subscriber gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network(IpAddr);

impl Network {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let prefix = address.to_bits() >> 64 << 64;
                Ipv6Addr::from_bits(prefix).into()
            }
        })
    }
}

impl Network {
    /// What tells it apart from others in a table of variants.
    pub(crate) fn tag(self, nonce: u64) -> u8 {
        match self.0 {
            IpAddr::V4(address) => client_tag(nonce, &address.octets()),
            IpAddr::V6(address) => client_tag(nonce, &address.octets()),
        }
    }
}

/// The shares of all clients; one for the process.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Bytes that one client may hold.
    memory_max: u64,
    clients: Mutex<HashMap<Network, Weak<ClientUsage>>>,
    /// Bytes of unfinished heads, in all.
    heads_max: u64,
    heads: Mutex<UnfinishedHeads>,
}

#[derive(Debug)]
struct ClientUsage {
    network: Network,
    memory: AtomicU64,
    /// What of `memory` is content read from disk.
    reading: AtomicU64,
    shares: Arc<Shares>,
}

impl Drop for ClientUsage {
    fn drop(&mut self) {
        let mut clients = lock(&self.shares.clients);
        // A client that came back meanwhile has a new entry.
        let gone = |client: &Weak<ClientUsage>| client.strong_count() == 0;
        if clients.get(&self.network).is_some_and(gone) {
            clients.remove(&self.network);
        }
    }
}

impl Shares {
    /// Each client may hold so many percent of `budget` bytes.
    pub(crate) fn new(budget: u64, client_percent: u8) -> Arc<Self> {
        Arc::new(Self {
            memory_max: budget.saturating_mul(client_percent.into()) / 100,
            clients: Mutex::default(),
            heads_max: budget / HEADS_PART,
            heads: Mutex::default(),
        })
    }

    /// The share of the client at this address.
    pub(crate) fn of(self: &Arc<Self>, address: IpAddr) -> Share {
        let network = Network::of(address);
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(&network).and_then(Weak::upgrade) {
            return Share(client);
        }
        let client = Arc::new(ClientUsage {
            network,
            memory: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            shares: Arc::clone(self),
        });
        clients.insert(network, Arc::downgrade(&client));
        Share(client)
    }
}

/// One client's share.
#[derive(Clone, Debug)]
pub(crate) struct Share(Arc<ClientUsage>);

impl Share {
    pub(crate) fn network(&self) -> Network {
        self.0.network
    }

    /// Gives up the oldest unfinished head of the client that has most of them; false if there is
    /// none.
    pub(crate) fn give_up_head(&self) -> bool {
        lock(&self.0.shares.heads).give_up_one()
    }

    /// Whether the client holds no more than a quarter of its share.
    fn holds_little(&self) -> bool {
        self.0.memory.load(Ordering::Relaxed) <= self.0.shares.memory_max / 4
    }

    /// Takes so much of the share; `None` beyond it.
    pub(crate) fn take(&self, bytes: u64) -> Option<ShareGuard> {
        add_within(&self.0.memory, bytes, self.0.shares.memory_max).then(|| ShareGuard {
            share: self.clone(),
            bytes,
        })
    }

    /// The same for content that is read from disk. The engine reads out of what transfers leave
    /// free, a quarter of the budget; half of a share, an eighth of the budget, is the most that
    /// one client gets of that. One read it gets in any case.
    pub(crate) fn take_for_reading(&self, bytes: u64) -> Option<ReadingGuard> {
        let most = self.0.shares.memory_max / READING_PART;
        let reading = &self.0.reading;
        if !add_within(reading, bytes, most) {
            let none = Ordering::Relaxed;
            reading
                .compare_exchange(0, bytes, Ordering::AcqRel, none)
                .ok()?;
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

    /// Whether there is room for `bytes` and, beside them, for content to be sent: streams and
    /// their like must not take all of the share.
    pub(crate) fn has_room_beside_content(&self, bytes: u64) -> bool {
        let content = PIECE_BYTES.max(self.0.shares.memory_max / CONTENT_PART);
        self.take(bytes.saturating_add(content)).is_some()
    }
}

/// Adds `bytes` to what is taken unless that goes beyond `most`.
fn add_within(taken: &AtomicU64, bytes: u64, most: u64) -> bool {
    let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
    taken
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
        .is_ok()
}

/// Memory for a transfer that `client` began, which others may share, so that it is not charged to
/// the client. First out of what transfers may take; a client that holds little of its share, or a
/// transfer of the proxy's own, may have what those leave free.
pub(crate) fn reserve_for(
    client: Option<&Share>,
    cache: &Cache,
    bytes: u64,
) -> Option<Reservation> {
    let holds_little = client.is_none_or(Share::holds_little);
    let free = || holds_little.then(|| cache.reserve(bytes)).flatten();
    cache.reserve_bulk(bytes).or_else(free)
}

/// Part of a share, until dropped.
#[derive(Debug)]
pub(crate) struct ShareGuard {
    share: Share,
    bytes: u64,
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        self.share.0.memory.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Part of a share that is content read from disk, until dropped.
#[derive(Debug)]
pub(crate) struct ReadingGuard {
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
        let reading = &self.share.0.reading;
        reading.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What one connection may take.
#[derive(Clone)]
pub(crate) struct Allowance {
    share: Share,
    cache: Cache,
    given_up: Arc<GivenUp>,
}

/// Tells a connection that it is given up.
#[derive(Debug, Default)]
struct GivenUp(Notify);

/// Memory set aside for a client, out of the budget and out of its share.
#[derive(Debug)]
pub(crate) struct ShareReservation {
    memory: Reservation,
    taken: Vec<ShareGuard>,
}

impl ShareReservation {
    /// Takes over what `other` holds.
    pub(crate) fn join(&mut self, other: Self) {
        self.memory.join(other.memory);
        self.taken.extend(other.taken);
    }
}

impl Allowance {
    pub(crate) fn new(share: Share, cache: Cache) -> Self {
        Self {
            share,
            cache,
            given_up: Arc::default(),
        }
    }

    /// An allowance of all there is, for tests.
    #[cfg(test)]
    pub(crate) fn unbounded(cache: &Cache) -> Self {
        let shares = Shares::new(cache.stats().memory_limit_bytes * 2, 100);
        Self::new(shares.of(Ipv6Addr::LOCALHOST.into()), cache.clone())
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// [`Cache::reserve`] within the client's share. A client that holds much already gets no more
    /// than transfers may take: what they leave free is for other clients.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<ShareReservation> {
        let holds_little = self.share.holds_little();
        self.within_share(bytes, |cache| match holds_little {
            true => cache.reserve(bytes),
            false => cache.reserve_bulk(bytes),
        })
    }

    /// [`Cache::reserve_bulk`] within the client's share.
    pub(crate) fn reserve_bulk(&self, bytes: u64) -> Option<ShareReservation> {
        self.within_share(bytes, |cache| cache.reserve_bulk(bytes))
    }

    /// [`Cache::reserve_spare`] within the client's share.
    pub(crate) fn reserve_spare(&self, bytes: u64) -> Option<ShareReservation> {
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

    /// Registers a head that is not complete, for a connection that holds `bytes` with it. May give
    /// up another one's, or this one.
    pub(crate) fn begin_head(&self, bytes: u64) -> UnfinishedHead {
        let shares = &self.share.0.shares;
        let network = self.share.network();
        let mut heads = lock(&shares.heads);
        let number = heads.enter(network, bytes, Arc::clone(&self.given_up));
        while heads.bytes > shares.heads_max && heads.give_up_one() {}
        UnfinishedHead {
            share: self.share.clone(),
            number,
            bytes,
        }
    }

    /// Resolves when the connection is to make room for others.
    pub(crate) async fn given_up(&self) {
        self.given_up.0.notified().await;
    }
}

/// A head in the register, until it is complete and this is dropped.
#[derive(Debug)]
pub(crate) struct UnfinishedHead {
    share: Share,
    number: u64,
    bytes: u64,
}

impl UnfinishedHead {
    /// What the register knows its connection to hold.
    pub(crate) fn bytes(&self) -> u64 {
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

/// The unfinished heads of one client, oldest first.
#[derive(Debug, Default)]
struct ClientHeads {
    bytes: u64,
    heads: BTreeMap<u64, (u64, Arc<GivenUp>)>,
}

impl UnfinishedHeads {
    fn enter(&mut self, network: Network, bytes: u64, given_up: Arc<GivenUp>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.bytes += bytes;
        let client = self.clients.entry(network).or_default();
        client.bytes += bytes;
        client.heads.insert(number, (bytes, given_up));
        number
    }

    fn leave(&mut self, network: Network, number: u64) -> Option<Arc<GivenUp>> {
        let client = self.clients.get_mut(&network)?;
        let (bytes, given_up) = client.heads.remove(&number)?;
        client.bytes -= bytes;
        self.bytes -= bytes;
        if client.heads.is_empty() {
            self.clients.remove(&network);
        }
        Some(given_up)
    }

    fn give_up_one(&mut self) -> bool {
        let most = self.clients.iter().max_by_key(|(_, client)| client.bytes);
        let oldest = most.and_then(|(network, client)| {
            let (number, _) = client.heads.first_key_value()?;
            Some((*network, *number))
        });
        let given_up = oldest.and_then(|(network, number)| self.leave(network, number));
        if let Some(given_up) = &given_up {
            // Remembered if its connection does not wait for it at this moment.
            given_up.0.notify_one();
        }
        given_up.is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The largest piece of an answer that lies in memory: a page of the store.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
/// Content read from disk may take one part in so many of a share.
const READING_PART: u64 = 2;
/// What streams leave to content is one part in so many of a share: 1 MiB of 16, four spans.
const CONTENT_PART: u64 = 16;

/// Unfinished heads may hold one part in so many of the budget.
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
