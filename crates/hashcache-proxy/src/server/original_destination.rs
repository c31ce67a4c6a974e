//! The server to which a client had connected before the network sent its connection here.
//!
//! Called by `server` and `supervisor` for the sockets of `tproxy://` listeners, and by `cores` for
//! each connection that a `redirect://` or `tproxy://` listener accepts.
//!
//! Invariant: a connection whose original destination is not known is not served. Only the kernel
//! is asked for it, so a client cannot choose it by what it sends.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{SockAddr, SockRef, Socket};
use tokio::net::TcpStream;

use crate::settings::Diversion;

/// Lets a socket accept connections to addresses that are not those of this host. Needs the
/// capability CAP_NET_RAW or CAP_NET_ADMIN, unless a service manager has set it before
/// (`Transparent=yes`).
pub(super) fn set_transparent(socket: &Socket, listen: SocketAddr) -> io::Result<()> {
    match listen.ip() {
        IpAddr::V4(_) if socket.ip_transparent_v4()? => Ok(()),
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true),
        IpAddr::V6(_) if socket.ip_transparent_v6()? => Ok(()),
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true),
    }
}

/// The original destination of an accepted connection.
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

/// The destination before REDIRECT. A socket for both families has IPv4 clients too, and their
/// destination is in the tables of IPv4.
fn redirected(socket: SockRef<'_>, local: SocketAddr) -> io::Result<SocketAddr> {
    let original = match local.ip().to_canonical() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    let unknown = || io::Error::other("the kernel gave another kind of address");
    original.and_then(|original: SockAddr| original.as_socket().ok_or_else(unknown))
}
