//! Addresses of listeners, as programs on this machine use them.
//!
//! Called by the subcommands that name or ask a running proxy.

use std::net::{Ipv6Addr, SocketAddr};

/// An address that a user of this machine can connect to, also when the listener accepts
/// connections on every address.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}
