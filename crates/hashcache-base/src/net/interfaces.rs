//! The addresses and networks of this host, read from the kernel.
//!
//! Called by `address` for access rules, by `connect` in `hashcache-upstream` to decide about IPv6,
//! and by `worker` in the proxy to recognise requests for ourselves. A single `getifaddrs` serves
//! all three callers; it takes some 70 µs with four interfaces and is repeated at most every 10 s.
//! `/proc/net/fib_trie` has the same data, but prints whole routing tables, which are a hundred
//! megabytes on a router.
//!
//! Invariant: if the kernel does not answer, our own addresses are still recognised by the source
//! address that a datagram to them would have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use tokio::time::Instant;

use super::prefix::Prefix;

/// The addresses of this host, shared by all cores and kept up to date.
#[derive(Clone, Debug)]
pub struct OwnAddresses(Arc<OwnState>);

#[derive(Debug)]
struct OwnState {
    known: ArcSwap<Snapshot>,
    /// Milliseconds since `BEGINNING` at which `known` expires; never for a fixed list.
    refresh_at_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Snapshot {
    addresses: Vec<IpAddr>,
    networks: Vec<Prefix>,
    /// The kernel answered; otherwise each address is tested separately.
    complete: bool,
}

impl OwnAddresses {
    /// The addresses of this host, read now and refreshed at most every 10 s.
    pub fn of_this_machine() -> Self {
        let own = Self(Arc::new(OwnState {
            known: ArcSwap::from_pointee(Snapshot::default()),
            refresh_at_ms: AtomicU64::new(0),
        }));
        own.refresh();
        own
    }

    /// A fixed list, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn fixed(addresses: &[IpAddr], networks: &[Prefix]) -> Self {
        Self(Arc::new(OwnState {
            known: ArcSwap::from_pointee(Snapshot {
                addresses: addresses.to_vec(),
                networks: networks.to_vec(),
                complete: true,
            }),
            refresh_at_ms: AtomicU64::new(u64::MAX),
        }))
    }

    /// Returns true if `address` belongs to this host.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.refresh();
        let known = self.0.known.load();
        let address = address.to_canonical();
        known.addresses.contains(&address) || (!known.complete && is_local_by_route(address))
    }

    /// Returns true if a connection to `address` reaches this host. All of 127/8 and 0.0.0.0 do,
    /// although no interface has these addresses.
    pub fn is_this_host(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified() || self.holds(address)
    }

    /// Returns true if `address` is in a network of one of this host's interfaces.
    pub fn is_neighbour(&self, address: IpAddr) -> bool {
        self.refresh();
        self.0
            .known
            .load()
            .networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Returns true if this host has an IPv6 address that reaches beyond its own links.
    pub fn has_ipv6(&self) -> bool {
        self.refresh();
        let known = self.0.known.load();
        // 2000::/3 is routed between sites. With only a ULA no public host is reachable, but a test
        // network may consist of ULAs, and a failed attempt costs only a packet.
        known.addresses.iter().any(|address| match address {
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        })
    }

    fn refresh(&self) {
        let now_ms = u64::try_from(BEGINNING.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        let due_ms = self.0.refresh_at_ms.load(Ordering::Relaxed);
        if now_ms < due_ms {
            return;
        }
        let next_ms = now_ms.saturating_add(REFRESH_MS);
        // The thread that wins the exchange refreshes; the others use the known addresses.
        let won = self.0.refresh_at_ms.compare_exchange(
            due_ms,
            next_ms,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if won.is_err() {
            return;
        }
        match read_from_kernel() {
            Ok(found) => {
                let (addresses, networks): (_, Vec<_>) = found.into_iter().unzip();
                let networks = networks.into_iter().flatten().collect();
                self.0.known.store(Arc::new(Snapshot {
                    addresses,
                    networks,
                    complete: true,
                }));
            }
            Err(error) => {
                // A sandbox may forbid netlink. Then the known addresses stay, and single addresses
                // are tested.
                let old = self.0.known.load();
                if old.complete || old.addresses.is_empty() {
                    tracing::warn!(%error, "cannot list the addresses of this host");
                }
                let (addresses, networks) = (old.addresses.clone(), old.networks.clone());
                self.0.known.store(Arc::new(Snapshot {
                    addresses,
                    networks,
                    complete: false,
                }));
            }
        }
    }
}

/// Finds the source address that a datagram to `address` would have: it is `address` itself only if
/// that address belongs to this host. No packet is sent.
fn is_local_by_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind(SocketAddr::new(any, 0))
        .and_then(|socket| socket.connect(SocketAddr::new(address, 9)).map(|()| socket))
        .and_then(|socket| socket.local_addr());
    source.is_ok_and(|source| source.ip() == address)
}

/// The addresses of all interfaces, each with its network. An address counts even if the mask
/// cannot be understood.
fn read_from_kernel() -> std::io::Result<Vec<(IpAddr, Option<Prefix>)>> {
    let addresses = getifaddrs()?.filter_map(|it| {
        let own = ip(it.address)?;
        let mask = ip(it.netmask);
        let ends = [ip(it.destination), ip(it.broadcast)];
        Some((own, mask.and_then(|mask| network(own, mask, ends))))
    });
    Ok(addresses.collect())
}

/// The network of an interface's address. `ends` are the address of the other end and the broadcast
/// address, as far as they are known. An address with a peer (`ip address add A peer B`) belongs to
/// the network of that peer, on every kind of link. The C library reports the peer as the other end
/// of a point-to-point link; on other links it reports the peer, if there is one, in the place of
/// the broadcast address.
fn network(own: IpAddr, mask: IpAddr, ends: [Option<IpAddr>; 2]) -> Option<Prefix> {
    let bits = ipnet::ip_mask_to_prefix(mask).ok()?;
    let alone = Prefix::new(own, bits);
    let [destination, broadcast] = ends;
    let is_peer = |end: &IpAddr| *end != Ipv4Addr::BROADCAST && !alone.contains(*end);
    let other_end = destination.or(broadcast.filter(is_peer));
    Some(other_end.map_or(alone, |end| Prefix::new(end, bits)))
}

fn ip(address: Option<SockaddrStorage>) -> Option<IpAddr> {
    let address = address?;
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

/// The zero point of `refresh_at_ms`.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

const REFRESH_MS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_loopback_with_its_network() {
        let own = OwnAddresses::of_this_machine();
        assert!(own.0.known.load().complete);
        assert!(own.holds(Ipv4Addr::LOCALHOST.into()));
        assert!(own.holds("::ffff:127.0.0.1".parse().unwrap()));
        assert!(own.is_neighbour("127.1.2.3".parse().unwrap()));
        assert!(!own.holds("240.0.0.1".parse().unwrap()));
        for address in ["127.9.9.9", "::ffff:127.9.9.9", "0.0.0.0", "::"] {
            assert!(own.is_this_host(address.parse().unwrap()), "{address}");
        }
        assert!(!own.is_this_host("240.0.0.1".parse().unwrap()));
        assert!(!own.is_neighbour("240.0.0.1".parse().unwrap()));
    }

    #[test]
    fn without_netlink_an_address_is_known_by_its_route() {
        assert!(is_local_by_route(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_local_by_route("240.0.0.1".parse().unwrap()));
    }

    #[test]
    fn the_network_of_a_point_to_point_link_is_that_of_the_other_end() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (own, mask) = (ip("10.0.0.1"), ip("255.255.255.0"));
        let of = |destination: Option<&str>, broadcast: Option<&str>| {
            let ends = [destination.map(ip), broadcast.map(ip)];
            network(own, mask, ends).unwrap().to_string()
        };
        assert_eq!(of(None, None), "10.0.0.0/24");
        assert_eq!(of(None, Some("10.0.0.255")), "10.0.0.0/24");
        assert_eq!(of(None, Some("255.255.255.255")), "10.0.0.0/24");
        assert_eq!(of(Some("10.9.0.2"), None), "10.9.0.0/24");
        // `ip address add 10.0.0.1 peer 192.0.2.0/24 dev eth0`
        assert_eq!(of(None, Some("192.0.2.0")), "192.0.2.0/24");
        assert_eq!(network(own, ip("255.0.255.0"), [None, None]), None);
    }
}
