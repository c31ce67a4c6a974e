//! Access rules: which destination addresses and ports may be reached, and which clients are
//! served.
//!
//! `connect` in `hashcache-upstream` checks each address immediately before connecting to it, in
//! every attempt, so an attacker gains nothing with a name that resolves differently the second
//! time (DNS rebinding). `server` in the proxy checks a client once per connection. `interfaces`
//! knows the addresses of this host.
//!
//! Invariant: an IPv4 address embedded in an IPv6 address is checked as the IPv4 address.
//! Cost: a few comparisons; no allocation and no waiting.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use hashcache_http::{Host, Scheme};
use ipnet::{Ipv4Net, Ipv6Net};

use super::interfaces::OwnAddresses;
use super::nat64::Nat64;
use super::own_domain::OwnDomain;
use super::prefix::Prefix;
use crate::failure::Failure;

/// Ports that clients may use: a port, or a range that includes both ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectPort(RangeInclusive<u16>);

/// A text is not a [`ConnectPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a port from 1 to 65535, or a range such as 8000-8999")]
pub struct ConnectPortError;

impl ConnectPort {
    /// Ports from the first to the last, both included.
    pub fn new(ports: RangeInclusive<u16>) -> Self {
        Self(ports)
    }

    /// The first port.
    pub fn first(&self) -> u16 {
        *self.0.start()
    }

    /// The last port.
    pub fn last(&self) -> u16 {
        *self.0.end()
    }

    /// Returns true if `port` is the only port.
    pub fn is_only(&self, port: u16) -> bool {
        (*self.0.start(), *self.0.end()) == (port, port)
    }

    /// Returns true if `port` is in the range.
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

/// The party that chose a destination. The purpose is part of the pool's key, so that a connection
/// never serves another party than the party it was opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A client, by its request.
    Forward,
    /// The operator: an accelerated origin, a mirror.
    Configured,
    /// The operator, as a peer. Unlike origins, peers are not remembered as unreachable: their
    /// health is watched separately.
    Peer,
}

/// Access rules for destinations; shared by the whole process.
#[derive(Clone, Debug)]
pub struct Destinations {
    allow: Arc<[Prefix]>,
    deny: Arc<[Prefix]>,
    domains: Arc<[OwnDomain]>,
    nat64: Arc<[Nat64]>,
    own: OwnAddresses,
}

impl Destinations {
    /// Rules with the operator's two lists; `deny` takes precedence over everything.
    pub fn new(allow: &[Prefix], deny: &[Prefix], own: OwnAddresses) -> Self {
        Self {
            allow: allow.into(),
            deny: deny.into(),
            domains: Arc::default(),
            nat64: Arc::default(),
            own,
        }
    }

    /// Adds the domains of the operator's own network.
    pub fn with_domains(mut self, domains: &[OwnDomain]) -> Self {
        self.domains = domains.into();
        self
    }

    /// The domains of the operator's own network.
    pub fn domains(&self) -> &[OwnDomain] {
        &self.domains
    }

    /// Adds the prefixes of the network's NAT64 translator.
    pub fn behind(mut self, nat64: &[Nat64]) -> Self {
        self.nat64 = nat64.into();
        self
    }

    /// Checks that a connection to `address` is allowed.
    pub fn check(&self, address: IpAddr, purpose: Purpose) -> Result<(), Failure> {
        if self.allows(address, purpose) {
            Ok(())
        } else {
            Err(Failure::DestinationDenied { address })
        }
    }

    /// As [`check`](Self::check), for an `address` that belongs to `host`. For clients, a name in
    /// the operator's own network may also have private addresses.
    pub fn check_named(
        &self,
        host: &Host,
        address: IpAddr,
        purpose: Purpose,
    ) -> Result<(), Failure> {
        let checked = self.check(address, purpose);
        let is_own = || matches!(host, Host::Name(_)) && self.is_inside(host);
        if purpose == Purpose::Forward && is_own() && self.is_private(address) {
            Ok(())
        } else {
            checked
        }
    }

    /// Returns true if `host` is in the operator's own network: an address or a name that
    /// `allow_destination` lists.
    pub fn is_inside(&self, host: &Host) -> bool {
        let listed = |address: IpAddr| self.allow.iter().any(|network| network.contains(address));
        match host {
            Host::V4(v4) => listed(IpAddr::V4(*v4)),
            Host::V6(v6) => listed(IpAddr::V6(*v6)),
            Host::Name(name) => self.domains.iter().any(|domain| domain.contains(name)),
        }
    }

    /// Returns true if `address` is a private address of another machine, and not denied. Loopback,
    /// link-local and the like do not count, because a domain would have no such addresses.
    fn is_private(&self, address: IpAddr) -> bool {
        let inner = embedded(address, &self.nat64);
        let is_private = match inner {
            IpAddr::V4(v4) => PRIVATE_V4.iter().any(|network| network.contains(&v4)),
            IpAddr::V6(v6) => v6.is_unique_local(),
        };
        let mut deny = self.deny.iter();
        let denied = deny.any(|network| network.contains(inner) || network.contains(address));
        is_private && !denied && !self.own.holds(inner)
    }

    fn allows(&self, address: IpAddr, purpose: Purpose) -> bool {
        let translated = translated(address, &self.nat64);
        let inner = translated.unwrap_or_else(|| unwrap(address));
        let listed = |list: &[Prefix]| {
            list.iter()
                .any(|p| p.contains(inner) || p.contains(address))
        };
        if listed(&self.deny) {
            return false;
        }
        if purpose != Purpose::Forward || listed(&self.allow) {
            return true;
        }
        // The translator's own prefix may be private, but it leads out of this network.
        let is_open = translated.is_some() || !refused_by_default(address);
        is_open && !refused_by_default(inner) && !self.own.holds(inner)
    }
}

/// Access rules for clients; shared by the whole process.
#[derive(Clone, Debug)]
pub struct Clients {
    allow: Arc<[Prefix]>,
    own: OwnAddresses,
}

impl Clients {
    /// The default rules with the operator's additions.
    pub fn new(allow: &[Prefix], own: OwnAddresses) -> Self {
        Self {
            allow: allow.into(),
            own,
        }
    }

    /// Checks that `client` is served.
    pub fn check(&self, client: IpAddr) -> Result<(), Failure> {
        let client = client.to_canonical();
        match self.rule(client) {
            Some(_) => Ok(()),
            None => Err(Failure::ClientDenied { client }),
        }
    }

    /// Why `client` is served; `None` if it is not served.
    pub fn rule(&self, client: IpAddr) -> Option<ClientRule> {
        // Only the IPv4-mapped form is unwrapped here: a dual-stack socket reports IPv4 clients in
        // it. The other forms are addresses of hosts elsewhere.
        let client = client.to_canonical();
        let near = match client {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => {
                v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local()
            }
        };
        match () {
            () if near => Some(ClientRule::Near),
            () if self.allow.iter().any(|p| p.contains(client)) => Some(ClientRule::Listed),
            () if self.own.is_neighbour(client) => Some(ClientRule::Neighbour),
            () => None,
        }
    }
}

/// Why a client is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRule {
    /// The client is this machine, or in a private network.
    Near,
    /// The client is on the operator's list.
    Listed,
    /// The client is in the network of an interface.
    Neighbour,
}

/// Checks that `CONNECT` to `port` is allowed.
pub fn check_connect_port(ports: &[ConnectPort], port: u16) -> Result<(), Failure> {
    if ports.iter().any(|p| p.contains(port)) {
        Ok(())
    } else {
        Err(Failure::ConnectPortDenied { port })
    }
}

/// Checks that clients may request resources with `scheme` at `port` of an origin.
pub fn check_port(ports: &[ConnectPort], scheme: Scheme, port: u16) -> Result<(), Failure> {
    let is_listed = ports.iter().any(|p| p.contains(port));
    let is_allowed = match scheme {
        Scheme::Http | Scheme::Https => is_listed,
        // Services on lower ports could read a client's text as their own commands.
        Scheme::Ftp => port == scheme.default_port() || (is_listed && port >= FREE_PORT_MIN),
        // A Gopher request is a line that the client chose, so a range is not enough.
        Scheme::Gopher => {
            let is_named = || ports.iter().any(|p| p.is_only(port));
            port == scheme.default_port() || (port >= FREE_PORT_MIN && is_named())
        }
    };
    if is_allowed {
        Ok(())
    } else {
        Err(Failure::PortDenied { port })
    }
}

/// The lowest port without a well-known service.
const FREE_PORT_MIN: u16 = 1024;

/// The address that `address` embeds, also in the prefixes of these translators; otherwise
/// `address` itself. In the forms 6to4 and ISATAP the address's owner chooses the embedded address,
/// so a client must not be served because of it.
pub fn embedded(address: IpAddr, nat64: &[Nat64]) -> IpAddr {
    translated(address, nat64).unwrap_or_else(|| unwrap(address))
}

/// The IPv4 address to which `address` leads through these translators, or through a translator
/// with the well-known prefix.
pub fn translated(address: IpAddr, nat64: &[Nat64]) -> Option<IpAddr> {
    let mut prefixes = nat64.iter().chain([&Nat64::WELL_KNOWN]);
    prefixes.find_map(|it| it.embedded(address)).map(IpAddr::V4)
}

/// The IPv4 address that an IPv6 address embeds: mapped, translated (SIIT, RFC 2765), 6to4 or
/// ISATAP; otherwise the address itself.
fn unwrap(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) | (0, 0, 0, 0, 0xffff, 0) => v4(g, h).into(),
        // The identifier of an ISATAP interface, in any network (RFC 5214, section 6.1).
        (.., 0 | 0x200, 0x5efe) => v4(g, h).into(),
        (0x2002, high, low, ..) => v4(high, low).into(),
        _ => address,
    }
}

fn refused_by_default(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => REFUSED_V4.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => REFUSED_V6.iter().any(|net| net.contains(&v6)),
    }
}

/// Addresses that clients must not reach by default: this network, private and shared space,
/// loopback, link-local (cloud metadata is at 169.254.169.254), protocol assignments, 6to4 relays
/// (RFC 7526: any network may announce them), benchmarking, multicast and reserved space.
const REFUSED_V4: [Ipv4Net; 11] = [
    Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 0), 24),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 88, 99, 0), 24),
    Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15),
    Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// IPv6 addresses that clients must not reach by default. `::/96` includes `::`, `::1` and the
/// unrouted IPv4-compatible addresses; `::ffff:0:0:0/96` the addresses of a local translator (SIIT,
/// RFC 2765), which are not routed either. 2001::/32 is Teredo, which reaches a device behind a
/// NAT. 64:ff9b:1::/48 is local-use NAT64: only the network's operator can find the embedded IPv4
/// address. fec0::/10 is the old site-local space.
const REFUSED_V6: [Ipv6Net; 8] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96),
    Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
];

/// Addresses that a network may give to internal machines: private (RFC 1918) and shared ones (RFC
/// 6598).
const PRIVATE_V4: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
];

#[cfg(test)]
mod tests;
