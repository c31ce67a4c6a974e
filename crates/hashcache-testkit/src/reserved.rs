//! Addresses for servers that start later, or never.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, SockAddr, Socket, Type};

/// An address of `host` where connections are refused until a server listens there with
/// `SO_REUSEADDR`, as HashCache and [`std::net::TcpListener`] do.
///
/// Until the process ends, the system gives its port to nobody else: to listen and to stop is not
/// enough, because tests that run at the same time take the port. It costs a file descriptor for
/// good.
///
/// # Errors
///
/// What the system says.
pub fn reserved_address(host: Ipv4Addr) -> io::Result<SocketAddr> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::from((host, 0))))?;
    // Only now, so that the port is one that nobody has.
    socket.set_reuse_address(true)?;
    let address = socket.local_addr()?.as_socket();
    std::mem::forget(socket);
    address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}
