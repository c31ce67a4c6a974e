//! The children that are connected to this parent, and the connections in their handshake, which
//! have not shown a key yet.
//!
//! `server/link_listener` in the proxy enters both; `server/links` shows the children.
//!
//! Invariants: at most `STRANGERS_MAX` connections are in their handshake. If this limit is
//! reached, the network with the most such connections loses the oldest, so strangers that connect
//! and stay silent do not keep a child out. A key has at most `CONNECTIONS_MAX` connections: after
//! a line break a child connects again before the parent has noticed the break, and then the oldest
//! connection is closed. After a reload, no child with a removed pin stays connected.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hashcache::Cache;
use hashcache_base::share::Network;
use hashcache_base::sort::sort_by_key;
use hashcache_http::{Target, UnixTime};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::counters::LinkCounters;
use super::hints::PageObjects;
use super::identity::NameSecret;
use super::pin::Pin;
use super::sent_to::SentTo;

/// The link listener in the active configuration.
#[derive(Debug)]
pub struct LinkServer {
    /// TLS: our key, and the children's pins.
    pub config: Arc<ServerConfig>,
    /// The children's pins.
    pub children: Vec<Pin>,
    /// Hashes the names that children send.
    pub names: NameSecret,
}

/// All connections on the link listener.
#[derive(Debug, Default)]
pub struct Children {
    connections: Mutex<Connections>,
    pages: OnceLock<PageObjects>,
}

#[derive(Debug, Default)]
struct Connections {
    /// Number of entries so far. Each entry gets a unique number, and the oldest has the smallest.
    entered: u64,
    strangers: Vec<Stranger>,
    children: Vec<Child>,
    /// Counters, which continue when a child returns.
    counters: HashMap<Pin, Arc<LinkCounters>>,
    /// Tables with the objects sent to each child, which are also kept.
    sent: HashMap<Pin, Arc<SentTo>>,
}

#[derive(Debug)]
struct Stranger {
    number: u64,
    network: Network,
    displaced: Arc<Notify>,
}

#[derive(Debug)]
struct Child {
    number: u64,
    pin: Pin,
    address: SocketAddr,
    since: UnixTime,
    displaced: Arc<Notify>,
}

/// The entry for a connection; removed when dropped.
#[derive(Debug)]
pub struct Entered {
    list: Arc<Children>,
    number: u64,
    displaced: Arc<Notify>,
}

impl Children {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection from `address` that has not shown a key yet.
    pub fn enter_stranger(self: &Arc<Self>, address: IpAddr) -> Entered {
        let mut connections = self.connections();
        while connections.strangers.len() >= STRANGERS_MAX {
            connections.displace_stranger();
        }
        let entered = self.entered(&mut connections);
        connections.strangers.push(Stranger {
            number: entered.number,
            network: Network::containing(address),
            displaced: Arc::clone(&entered.displaced),
        });
        entered
    }

    /// Enters a child's connection, and returns its counters.
    pub fn enter_child(
        self: &Arc<Self>,
        pin: Pin,
        address: SocketAddr,
        since: UnixTime,
    ) -> (Entered, Arc<LinkCounters>) {
        let mut connections = self.connections();
        let of_pin = |child: &&Child| child.pin == pin;
        if connections.children.iter().filter(of_pin).count() >= CONNECTIONS_MAX
            && let Some(oldest) = connections
                .children
                .iter()
                .position(|child| child.pin == pin)
        {
            connections.children.remove(oldest).displaced.notify_one();
        }
        let entered = self.entered(&mut connections);
        connections.children.push(Child {
            number: entered.number,
            pin,
            address,
            since,
            displaced: Arc::clone(&entered.displaced),
        });
        let counters = Arc::clone(connections.counters.entry(pin).or_default());
        drop(connections);
        counters.connected();
        (entered, counters)
    }

    /// The table with the objects sent to the child with the key `pin`; `children` is how many
    /// children share the budget. `None` without memory for the table.
    pub fn sent_to(&self, pin: Pin, cache: &Cache, children: usize) -> Option<Arc<SentTo>> {
        let mut connections = self.connections();
        if let Some(sent) = connections.sent.get(&pin) {
            return Some(Arc::clone(sent));
        }
        let sent = Arc::new(SentTo::within(cache, children)?);
        connections.sent.insert(pin, Arc::clone(&sent));
        Some(sent)
    }

    /// The objects on the pages that clients have requested here; `None` without memory for the
    /// table.
    pub fn pages(&self, cache: &Cache) -> Option<&PageObjects> {
        if let Some(pages) = self.pages.get() {
            return Some(pages);
        }
        let pages = PageObjects::new(cache)?;
        Some(self.pages.get_or_init(|| pages))
    }

    /// Returns true if `object` waits for a request from another client, before it is named to
    /// children.
    pub fn take_awaited(&self, object: &Target) -> bool {
        let pages = self.pages.get();
        pages.is_some_and(|pages| pages.take_awaited(object))
    }

    fn entered(self: &Arc<Self>, connections: &mut Connections) -> Entered {
        connections.entered += 1;
        Entered {
            list: Arc::clone(self),
            number: connections.entered,
            displaced: Arc::default(),
        }
    }

    /// Closes connections from children with pins that are not in `pins`.
    pub fn keep_only(&self, pins: &[Pin]) {
        let mut connections = self.connections();
        connections.sent.retain(|pin, _| pins.contains(pin));
        let removed = |child: &mut Child| !pins.contains(&child.pin);
        for child in connections.children.extract_if(.., removed) {
            child.displaced.notify_one();
        }
    }

    /// The children seen since the start, by pin: true if the child is connected, and the counters.
    pub fn seen(&self) -> Vec<(Pin, bool, Arc<LinkCounters>)> {
        let connections = self.connections();
        let is_up = |pin: &Pin| connections.children.iter().any(|child| child.pin == *pin);
        let mut seen: Vec<_> = connections
            .counters
            .iter()
            .map(|(pin, counters)| (*pin, is_up(pin), Arc::clone(counters)))
            .collect();
        sort_by_key(&mut seen, |(pin, ..)| *pin);
        seen
    }

    /// Status for each pin in `pins`, for operators; times are seconds since 1970.
    pub fn to_json(&self, pins: &[Pin]) -> Value {
        let connections = self.connections();
        let shown = pins.iter().map(|pin| {
            let counters = connections.counters.get(pin);
            let mut shown = counters.map_or_else(|| json!({}), |counters| counters.to_json());
            // The latest connection is in use.
            let child = connections.children.iter().rfind(|child| child.pin == *pin);
            shown["pin"] = json!(pin.to_string());
            shown["up"] = json!(child.is_some());
            shown["address"] = json!(child.map(|child| child.address.to_string()));
            shown["since"] = json!(child.map(|child| child.since.0));
            shown
        });
        shown.collect()
    }
}

impl Connections {
    fn displace_stranger(&mut self) {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(stranger.network).or_default() += 1;
        }
        let most = counts.values().max().copied();
        // Strangers are ordered by arrival.
        let oldest = self
            .strangers
            .iter()
            .position(|stranger| counts.get(&stranger.network).copied() == most);
        if let Some(oldest) = oldest {
            self.strangers.remove(oldest).displaced.notify_one();
        }
    }
}

impl Entered {
    /// Resolves when this connection must be closed to make room for another connection.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut connections = self.list.connections();
        let number = self.number;
        connections.strangers.retain(|it| it.number != number);
        connections.children.retain(|it| it.number != number);
    }
}

/// Limit for connections in their handshake.
const STRANGERS_MAX: usize = 64;
/// Limit for connections with the same key.
const CONNECTIONS_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::net::Ipv6Addr;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_displaced(entered: &Entered) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(entered.displaced()).poll(&mut context).is_ready()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn silent_strangers_make_room_for_a_child_of_another_address() {
        let children = Arc::new(Children::default());
        let child = children.enter_stranger(address(1));
        let strangers: Vec<_> = (0..200)
            .map(|_| children.enter_stranger(address(2)))
            .collect();
        assert!(!is_displaced(&child));
        let displaced = strangers.iter().filter(|it| is_displaced(it)).count();
        assert_eq!(displaced, 200 + 1 - STRANGERS_MAX);
        let again = children.enter_stranger(address(1));
        assert!(!is_displaced(&again) && !is_displaced(&child));
        drop((strangers, child, again));
        assert!(children.connections().strangers.is_empty());
    }

    #[test]
    fn strangers_with_many_addresses_of_one_network_are_counted_as_one() {
        let children = Arc::new(Children::default());
        let child = children.enter_stranger(address(1));
        let strangers: Vec<_> = (0..200_u128)
            .map(|host| {
                let address = Ipv6Addr::from_bits(0x2001_0db8 << 96 | host);
                children.enter_stranger(address.into())
            })
            .collect();
        assert!(!is_displaced(&child));
        drop(strangers);
    }

    #[test]
    fn a_child_whose_pin_is_removed_has_to_go() {
        let children = Arc::new(Children::default());
        let pins = pins();
        let at = SocketAddr::new(address(1), 1);
        let [first, second] = pins.map(|pin| children.enter_child(pin, at, UnixTime(1)).0);
        children.keep_only(&pins);
        children.keep_only(&pins[1..]);
        assert!(is_displaced(&first) && !is_displaced(&second));
        children.keep_only(&[]);
        assert!(is_displaced(&second));
    }

    fn pins() -> [Pin; 2] {
        [b'A', b'B'].map(|byte| {
            let text = String::from_utf8(vec![byte; 42]).unwrap();
            format!("sha256:{text}A=").parse::<Pin>().unwrap()
        })
    }

    #[test]
    fn a_child_that_comes_back_takes_the_place_of_its_oldest_connection() {
        let children = Arc::new(Children::default());
        let pins = pins();
        let at = |last| SocketAddr::new(address(last), 1);
        let (other, _) = children.enter_child(pins[1], at(9), UnixTime(1));
        let (first, counters) = children.enter_child(pins[0], at(1), UnixTime(1));
        counters.received(7);
        let (second, _) = children.enter_child(pins[0], at(2), UnixTime(2));
        assert!(!is_displaced(&first));
        let (third, counters) = children.enter_child(pins[0], at(3), UnixTime(3));
        assert!(is_displaced(&first) && !is_displaced(&second) && !is_displaced(&third));
        assert!(!is_displaced(&other));
        drop(first);
        let shown = children.to_json(&pins[..1]);
        assert_eq!(
            (&shown[0]["since"], &shown[0]["connections"]),
            (&json!(3), &json!(3))
        );
        assert_eq!(counters.bytes(), [7, 0]);
        drop((second, third, other));
        let up = children.seen().into_iter().filter(|(_, up, _)| *up).count();
        assert_eq!((up, children.seen().len()), (0, 2));
    }
}
