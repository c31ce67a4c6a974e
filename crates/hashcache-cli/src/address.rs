//! Listener addresses, in the form that programs on this machine use.
//!
//! Called by the subcommands that print a running proxy's address or send it a request.

use std::net::{Ipv6Addr, SocketAddr};

/// Returns an address to which a program on this machine can connect. A listener on the unspecified
/// address accepts connections on every address, so the loopback address replaces it.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}
