//! The UDP socket of one protocol: opened at the start, and by a reload that changes the address.
//!
//! `server` opens it and hands a copy to `peers`, which receives; all cores send on it.
//!
//! Cost: one system call per datagram.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A socket that may be closed.
#[derive(Debug, Default)]
pub(crate) struct Line(ArcSwapOption<Open>);

#[derive(Debug)]
struct Open {
    socket: UdpSocket,
    address: SocketAddr,
}

impl Line {
    /// Starts to send on `socket`, which must not block.
    ///
    /// # Errors
    /// The system does not return the socket's address.
    pub(crate) fn open(&self, socket: UdpSocket) -> io::Result<()> {
        let address = socket.local_addr()?;
        self.0.store(Some(Arc::new(Open { socket, address })));
        Ok(())
    }

    /// Stops sending.
    pub(crate) fn close(&self) {
        self.0.store(None);
    }

    /// Returns the bound address of the socket; `None` if it is closed.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.load().as_ref().map(|open| open.address)
    }

    /// Returns true if datagrams to `address` can be sent.
    pub(super) fn reaches(&self, address: IpAddr) -> bool {
        let bound = self.address();
        bound.is_some_and(|bound| address.is_ipv4() || bound.is_ipv6())
    }

    /// Sends a datagram, unless the system has no room for it now.
    pub(crate) fn send(&self, datagram: &[u8], to: SocketAddr) -> bool {
        let open = self.0.load();
        let Some(open) = open.as_ref() else {
            return false;
        };
        let to = match to.ip() {
            IpAddr::V4(v4) if open.address.is_ipv6() => {
                SocketAddr::new(v4.to_ipv6_mapped().into(), to.port())
            }
            _ => to,
        };
        open.socket.send_to(datagram, to).is_ok()
    }
}
