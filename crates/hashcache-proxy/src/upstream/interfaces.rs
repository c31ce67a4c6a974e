//! The addresses this host holds and the networks it stands in, asked of the kernel.
//!
//! Called by `address` for its verdicts, by `connect` to know whether IPv6 is worth trying, and by
//! `server` to recognise a request for ourselves. One netlink dump (`RTM_GETADDR`) answers all
//! three; it costs some 20 µs and is repeated at most every 10 s. `/proc/net/fib_trie` would say
//! the same but prints whole routing tables, which on a router is a hundred megabytes.
//!
//! Invariant: where the kernel does not answer, an address is still recognised as ours, by asking
//! which source address a datagram to it would carry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::prefix::Prefix;

/// The addresses of this host, shared by all cores and kept up to date.
#[derive(Clone, Debug)]
pub(crate) struct OwnAddresses(Arc<OwnState>);

#[derive(Debug)]
struct OwnState {
    known: ArcSwap<Snapshot>,
    /// Milliseconds since `BEGINNING` at which `known` grows old; never for a fixed list.
    refresh_at_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Snapshot {
    addresses: Vec<IpAddr>,
    networks: Vec<Prefix>,
    /// The kernel answered; else addresses are tried one by one.
    complete: bool,
}

impl OwnAddresses {
    /// The addresses of this host, read now and again every 10 s when asked for.
    pub(crate) fn new() -> Self {
        let own = Self(Arc::new(OwnState {
            known: ArcSwap::from_pointee(Snapshot::default()),
            refresh_at_ms: AtomicU64::new(0),
        }));
        own.refresh();
        own
    }

    /// A list that does not change; for tests.
    #[cfg(test)]
    pub(crate) fn fixed(addresses: &[IpAddr], networks: &[Prefix]) -> Self {
        Self(Arc::new(OwnState {
            known: ArcSwap::from_pointee(Snapshot {
                addresses: addresses.to_vec(),
                networks: networks.to_vec(),
                complete: true,
            }),
            refresh_at_ms: AtomicU64::new(u64::MAX),
        }))
    }

    /// Whether `address` is one of ours.
    pub(crate) fn holds(&self, address: IpAddr) -> bool {
        self.refresh();
        let known = self.0.known.load();
        let address = address.to_canonical();
        known.addresses.contains(&address) || (!known.complete && is_local_by_route(address))
    }

    /// Whether `address` lies in a network one of our interfaces stands in.
    pub(crate) fn is_neighbour(&self, address: IpAddr) -> bool {
        self.refresh();
        self.0
            .known
            .load()
            .networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Whether this host has an IPv6 address that reaches beyond its own links.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.refresh();
        let known = self.0.known.load();
        // 2000::/3 is what is routed between sites; a ULA alone leads nowhere a stranger lives, but
        // a laboratory may well be built of them, and a failed try costs it nothing but a packet.
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
        // Whoever wins the exchange does the work; the others go on with what is known.
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
                let (addresses, networks) = found.into_iter().unzip();
                self.0.known.store(Arc::new(Snapshot {
                    addresses,
                    networks,
                    complete: true,
                }));
            }
            Err(error) => {
                // A sandbox may forbid netlink; what was known stays, and single addresses are
                // tried.
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

/// Asks which source a datagram to `address` would carry: only for an address of our own it is that
/// address itself. Nothing is sent.
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

fn read_from_kernel() -> std::io::Result<Vec<(IpAddr, Prefix)>> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
        recv, sendto, socket_with, sockopt,
    };
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The kernel answers while it is asked; the bound only keeps a strange one from stopping us.
    let bound = Some(Duration::from_millis(100));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, bound)?;
    sendto(
        &socket,
        &dump_request(),
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 32 << 10];
    // A host of 100 000 addresses fills some 300 datagrams; no more are read than ten times that.
    for _ in 0..4096 {
        let (_, length) = recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let datagram = buffer.get(..length).unwrap_or_default();
        if parse_answer(datagram, &mut found)? == DumpState::Complete {
            return Ok(found);
        }
    }
    Err(std::io::Error::other("netlink dump without end"))
}

/// `struct nlmsghdr` and `struct ifaddrmsg`: every address of every family.
#[expect(
    clippy::host_endian_bytes,
    reason = "netlink speaks the byte order of the machine"
)]
fn dump_request() -> [u8; 24] {
    let mut request = [0; 24];
    request[0..4].copy_from_slice(&24_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    request
}

#[derive(Debug, PartialEq, Eq)]
enum DumpState {
    Complete,
    MoreToCome,
}

/// Reads one datagram of the dump; what does not parse is an error, never a panic.
fn parse_answer(mut rest: &[u8], found: &mut Vec<(IpAddr, Prefix)>) -> std::io::Result<DumpState> {
    while !rest.is_empty() {
        let (length, kind) = (u32_at(rest, 0)?, u16_at(rest, 4)?);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let message = rest.get(16..length).ok_or_else(malformed)?;
        match kind {
            NLMSG_DONE => return Ok(DumpState::Complete),
            NLMSG_ERROR => return Err(std::io::Error::other("netlink refused the request")),
            RTM_NEWADDR => found.extend(parse_address(message)?),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(DumpState::MoreToCome)
}

/// `struct ifaddrmsg` and its attributes.
fn parse_address(message: &[u8]) -> std::io::Result<Option<(IpAddr, Prefix)>> {
    let &[_family, bits, ..] = message else {
        return Err(malformed());
    };
    let mut attributes = message.get(8..).ok_or_else(malformed)?;
    let (mut address, mut local) = (None, None);
    while attributes.len() >= 4 {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length).ok_or_else(malformed)?;
        let ip = <[u8; 4]>::try_from(value)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
            .ok();
        match u16_at(attributes, 2)? {
            IFA_ADDRESS => address = ip,
            IFA_LOCAL => local = ip,
            _ => {}
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    // On a point-to-point link IFA_ADDRESS is the other end; IFA_LOCAL, where given, is ours.
    Ok(local
        .or(address)
        .map(|own| (own, Prefix::new(address.unwrap_or(own), bits))))
}

#[expect(
    clippy::host_endian_bytes,
    reason = "netlink speaks the byte order of the machine"
)]
fn u16_at(bytes: &[u8], at: usize) -> std::io::Result<u16> {
    let two = bytes.get(at..at + 2).ok_or_else(malformed)?;
    Ok(u16::from_ne_bytes(two.try_into().map_err(|_| malformed())?))
}

#[expect(
    clippy::host_endian_bytes,
    reason = "netlink speaks the byte order of the machine"
)]
fn u32_at(bytes: &[u8], at: usize) -> std::io::Result<u32> {
    let four = bytes.get(at..at + 4).ok_or_else(malformed)?;
    Ok(u32::from_ne_bytes(
        four.try_into().map_err(|_| malformed())?,
    ))
}

fn malformed() -> std::io::Error {
    std::io::Error::other("netlink answer is cut off")
}

/// What `refresh_at_ms` counts from.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

const REFRESH_MS: u64 = 10_000;

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_loopback_with_its_network() {
        let own = OwnAddresses::new();
        assert!(own.0.known.load().complete);
        assert!(own.holds(Ipv4Addr::LOCALHOST.into()));
        assert!(own.holds("::ffff:127.0.0.1".parse().unwrap()));
        assert!(own.is_neighbour("127.1.2.3".parse().unwrap()));
        assert!(!own.holds("240.0.0.1".parse().unwrap()));
        assert!(!own.is_neighbour("240.0.0.1".parse().unwrap()));
    }

    #[test]
    fn without_netlink_an_address_is_known_by_its_route() {
        assert!(is_local_by_route(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_local_by_route("240.0.0.1".parse().unwrap()));
    }

    #[test]
    #[expect(
        clippy::host_endian_bytes,
        reason = "netlink speaks the byte order of the machine"
    )]
    fn the_far_end_of_a_point_to_point_link_is_not_ours() {
        let mut message = vec![2, 32, 0, 0, 1, 0, 0, 0];
        let mut attribute = |kind: u16, value: [u8; 4]| {
            message.extend(8_u16.to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
        };
        attribute(IFA_ADDRESS, [10, 0, 0, 2]);
        attribute(IFA_LOCAL, [10, 0, 0, 1]);
        let (own, network) = parse_address(&message).unwrap().unwrap();
        assert_eq!(own, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(network.to_string(), "10.0.0.2/32");
    }

    #[test]
    fn no_datagram_makes_the_parser_panic_or_stand_still() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut datagram: Vec<u8> = (0..random.usize(..80)).map(|_| random.u8(..)).collect();
            // Small numbers at the places of lengths and kinds lead deeper than noise would.
            for byte in &mut datagram {
                if random.bool() {
                    *byte %= 32;
                }
            }
            let _ = parse_answer(&datagram, &mut Vec::new());
            let _ = parse_address(&datagram);
        }
    }
}
