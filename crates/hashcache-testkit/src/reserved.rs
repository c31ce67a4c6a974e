//! Addresses for servers that start later, or never.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, SockAddr, Socket, Type};

/// Returns an address of `host` where connections are refused until a server listens there with
/// `SO_REUSEADDR`, as HashCache and [`std::net::TcpListener`] do.
///
/// Until the process exits, the system gives this port to no other program. To bind a port and
/// close it again is not enough, because tests that run at the same time take the port. The cost is
/// a file descriptor that is never closed.
///
/// # Errors
///
/// The system's error from creating or binding the socket.
pub fn reserved_address(host: Ipv4Addr) -> io::Result<SocketAddr> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::from((host, 0))))?;
    // Set only after `bind`, so that the system chooses a port that no other socket has.
    socket.set_reuse_address(true)?;
    let address = socket.local_addr()?.as_socket();
    std::mem::forget(socket);
    address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}
