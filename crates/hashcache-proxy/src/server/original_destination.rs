//! Finds the server to which a client had connected before the network diverted its connection
//! here.
//!
//! Called by `bind` and `supervisor` for the sockets of `tproxy://` listeners, and by `cores` for
//! each connection that a `redirect://` or `tproxy://` listener accepts.
//!
//! Invariant: a connection without a known original destination is not served. The destination is
//! taken only from the kernel, so a client cannot choose it by the bytes that it sends.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{SockAddr, SockRef, Socket};
use tokio::net::TcpStream;

use crate::settings::Diversion;

/// Lets a socket accept connections to addresses of other hosts. Needs the capability CAP_NET_RAW
/// or CAP_NET_ADMIN, unless a service manager has already set the option (`Transparent=yes`).
pub(super) fn set_transparent(socket: &Socket, listen: SocketAddr) -> io::Result<()> {
    match listen.ip() {
        IpAddr::V4(_) if socket.ip_transparent_v4()? => Ok(()),
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true),
        IpAddr::V6(_) if socket.ip_transparent_v6()? => Ok(()),
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true),
    }
}

/// Returns the original destination of an accepted connection.
pub(super) fn of(socket: &TcpStream, diversion: Diversion) -> io::Result<SocketAddr> {
    let local = socket.local_addr()?;
    let original = match diversion {
        Diversion::Tproxy => local,
        Diversion::Redirect => redirected(SockRef::from(socket), local)?,
    };
    Ok(SocketAddr::new(
        original.ip().to_canonical(),
        original.port(),
    ))
}

/// Returns the destination before REDIRECT. A dual-stack socket also has IPv4 clients, and their
/// destinations are in the IPv4 tables.
fn redirected(socket: SockRef<'_>, local: SocketAddr) -> io::Result<SocketAddr> {
    let original = match local.ip().to_canonical() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    let unknown = || io::Error::other("the kernel gave another kind of address");
    original.and_then(|original: SockAddr| original.as_socket().ok_or_else(unknown))
}
