//! Which addresses may be reached and which may ask: prefixes, ports, and the two verdicts.
//!
//! `connect` asks for a verdict on the very address it is about to hand to the kernel, each attempt
//! anew, so a name that resolves differently the second time (DNS rebinding) gains nothing.
//! `server` asks for the verdict on a client once per connection. Addresses of this host come from
//! `interfaces`.
//!
//! Invariant: an IPv4 address inside an IPv6 one is judged as the IPv4 address it stands for.
//! Cost: a handful of comparisons; nothing is allocated and nothing waits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use super::interfaces::OwnAddresses;
use super::nat64::Nat64;
use super::prefix::{Prefix, mask_v4, mask_v6};
use crate::failure::Failure;

/// Ports that clients may ask for: one, or a range with both ends included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectPort(RangeInclusive<u16>);

/// Why a text is not a [`ConnectPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a port from 1 to 65535, or a range such as 8000-8999")]
pub struct ConnectPortError;

impl ConnectPort {
    /// Ports from the first to the last.
    pub fn new(ports: RangeInclusive<u16>) -> Self {
        Self(ports)
    }

    /// Whether this names `port`.
    pub fn contains(&self, port: u16) -> bool {
        self.0.contains(&port)
    }
}

impl FromStr for ConnectPort {
    type Err = ConnectPortError;

    fn from_str(text: &str) -> Result<Self, ConnectPortError> {
        let port = |digits: &str| -> Result<u16, ConnectPortError> {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ConnectPortError);
            }
            digits
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or(ConnectPortError)
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(ConnectPortError);
        }
        Ok(Self(first..=last))
    }
}

impl fmt::Display for ConnectPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.start() == self.0.end() {
            write!(f, "{}", self.0.start())
        } else {
            write!(f, "{}-{}", self.0.start(), self.0.end())
        }
    }
}

/// Who chose a destination; part of the key of pooled connections, so that a connection opened for
/// one can never serve the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// A client did, by the request it sent.
    Forward,
    /// The operator did: an accelerated origin, a mirror, a parent.
    Configured,
}

/// The verdict on destinations; one for the process, shared.
#[derive(Clone, Debug)]
pub(crate) struct Destinations {
    allow: Arc<[Prefix]>,
    deny: Arc<[Prefix]>,
    nat64: Arc<[Nat64]>,
    own: OwnAddresses,
}

impl Destinations {
    /// Destinations with the operator's two lists; `deny` wins over everything.
    pub(crate) fn new(allow: &[Prefix], deny: &[Prefix], own: OwnAddresses) -> Self {
        Self {
            allow: allow.into(),
            deny: deny.into(),
            nat64: Arc::default(),
            own,
        }
    }

    /// The same where a translator of this network has these prefixes.
    pub(crate) fn behind(mut self, nat64: &[Nat64]) -> Self {
        self.nat64 = nat64.into();
        self
    }

    /// Whether `address` may be connected to.
    pub(crate) fn check(&self, address: IpAddr, purpose: Purpose) -> Result<(), Failure> {
        if self.allows(address, purpose) {
            Ok(())
        } else {
            Err(Failure::DestinationDenied { address })
        }
    }

    fn allows(&self, address: IpAddr, purpose: Purpose) -> bool {
        let translated = self.nat64.iter().find_map(|it| it.embedded(address));
        let inner = translated.map_or_else(|| unwrap(address), IpAddr::V4);
        let listed = |list: &[Prefix]| {
            list.iter()
                .any(|p| p.contains(inner) || p.contains(address))
        };
        if listed(&self.deny) {
            return false;
        }
        if purpose == Purpose::Configured || listed(&self.allow) {
            return true;
        }
        // The translator's prefix may be one of private addresses: it leads out of this network.
        let is_open = translated.is_some() || !refused_by_default(address);
        is_open && !refused_by_default(inner) && !self.own.holds(inner)
    }
}

/// The verdict on clients; one for the process, shared.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    allow: Arc<[Prefix]>,
    own: OwnAddresses,
}

impl Clients {
    /// Clients with the operator's additions.
    pub(crate) fn new(allow: &[Prefix], own: OwnAddresses) -> Self {
        Self {
            allow: allow.into(),
            own,
        }
    }

    /// Whether `client` may ask anything of us.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), Failure> {
        // Only the IPv4-mapped form is unwrapped here: it is how a dual-stack socket reports an
        // IPv4 client, while the other two are addresses of strangers somewhere else.
        let client = client.to_canonical();
        let near = match client {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => {
                v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local()
            }
        };
        if near || self.allow.iter().any(|p| p.contains(client)) || self.own.is_neighbour(client) {
            Ok(())
        } else {
            Err(Failure::ClientDenied { client })
        }
    }
}

/// Whether `CONNECT` may go to `port`.
pub(crate) fn check_connect_port(ports: &[ConnectPort], port: u16) -> Result<(), Failure> {
    if ports.iter().any(|p| p.contains(port)) {
        Ok(())
    } else {
        Err(Failure::ConnectPortDenied { port })
    }
}

/// Whether a client may ask for a resource at `port` of somebody.
pub(crate) fn check_port(ports: &[ConnectPort], port: u16) -> Result<(), Failure> {
    if ports.iter().any(|p| p.contains(port)) {
        Ok(())
    } else {
        Err(Failure::PortDenied { port })
    }
}

/// The IPv4 address that an IPv6 one stands for: mapped, translated (SIIT, RFC 2765), NAT64, 6to4
/// or ISATAP; else the address itself.
fn unwrap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, 0, 0, 0) => {
            v4(g, h).into()
        }
        // The identifier of an ISATAP interface, whatever the network (RFC 5214, section 6.1).
        (.., 0 | 0x200, 0x5efe) => v4(g, h).into(),
        (0x2002, high, low, ..) => v4(high, low).into(),
        _ => address,
    }
}

fn refused_by_default(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => REFUSED_V4.iter().any(|&(net, bits)| {
            v4.to_bits() & mask_v4(bits) == Ipv4Addr::from_octets(net).to_bits()
        }),
        IpAddr::V6(v6) => REFUSED_V6.iter().any(|&(net, bits)| {
            v6.to_bits() & mask_v6(bits) == Ipv6Addr::from_segments(net).to_bits()
        }),
    }
}

/// What a stranger's name must not lead to: this network, private and shared space, loopback,
/// link-local (cloud metadata lives at 169.254.169.254), protocol assignments, 6to4 relays (RFC
/// 7526: whoever announces them is nobody's choice), benchmarking, multicast and reserved space.
const REFUSED_V4: [([u8; 4], u8); 11] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 168, 0, 0], 16),
    ([192, 0, 0, 0], 24),
    ([192, 88, 99, 0], 24),
    ([198, 18, 0, 0], 15),
    ([224, 0, 0, 0], 3),
];

/// The same for IPv6. `::/96` holds `::`, `::1` and the IPv4-compatible addresses nobody routes;
/// `::ffff:0:0:0/96` those that a translator of this network makes (SIIT, RFC 2765), which nobody
/// routes either; 2001::/32 is Teredo, which leads to a device behind somebody's NAT;
/// 64:ff9b:1::/48 is local-use NAT64, which hides an IPv4 address where only its operator knows;
/// fec0::/10 is the old site-local space.
const REFUSED_V6: [([u16; 8], u8); 8] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 96),
    ([0, 0, 0, 0, 0xffff, 0, 0, 0], 96),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),
];

#[cfg(test)]
mod tests;
