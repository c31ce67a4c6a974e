//! The UDP sockets for ICP and HTCP: bound at the start, and again by a reload that changes their
//! addresses.
//!
//! Called by `server` and `control`; runs the tasks of `peers`, and gives the sockets to `queries`.
//!
//! Invariant: a socket is open only while a peer wants the protocol. If a new address cannot be
//! bound, the old socket stays.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use hashcache::Cache;
use hashcache_base::task::spawn;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::stage::{RunError, Stage};
use crate::peers;
use crate::settings::Settings;
use crate::worker::Common;

/// A protocol over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Icp,
    Htcp,
}

impl Protocol {
    pub(super) const ALL: [Self; 2] = [Self::Icp, Self::Htcp];

    /// The protocol's setting.
    const fn key(self) -> &'static str {
        match self {
            Self::Icp => "icp",
            Self::Htcp => "htcp",
        }
    }

    /// Returns the address of the socket; `None` while no peer has a port for this protocol.
    pub(super) fn address(self, settings: &Settings) -> Option<SocketAddr> {
        let mut peers = settings.reloadable.peers.iter();
        match self {
            Self::Icp => settings
                .reloadable
                .icp
                .filter(|_| peers.any(|peer| peer.icp.is_some())),
            Self::Htcp => {
                let address = settings.reloadable.htcp;
                address.filter(|_| peers.any(|peer| peer.htcp.is_some()))
            }
        }
    }
}

/// The sockets of all protocols.
pub(super) struct UdpSockets([Bound; 2]);

/// The socket of one protocol.
struct Bound {
    protocol: Protocol,
    /// Address in the settings.
    address: Option<SocketAddr>,
    /// A bound socket that no task uses yet.
    socket: Option<UdpSocket>,
    task: Option<AbortHandle>,
}

/// Shared state that the tasks need.
pub(super) type Shared<'a> = (&'a Arc<Common>, &'a Cache, &'a watch::Receiver<Stage>);

impl UdpSockets {
    /// Binds the addresses of `settings`.
    ///
    /// # Errors
    /// An address is in use, or is not an address of this host.
    pub(super) fn bind(settings: &Settings) -> Result<Self, RunError> {
        let bind = |protocol: Protocol| -> Result<Bound, RunError> {
            let address = protocol.address(settings);
            let socket = address.map(|address| {
                let bound = peers::bind(address);
                bound.map_err(|source| RunError::Listen { address, source })
            });
            Ok(Bound {
                protocol,
                address,
                socket: socket.transpose()?,
                task: None,
            })
        };
        Ok(Self([bind(Protocol::Icp)?, bind(Protocol::Htcp)?]))
    }

    /// Starts the tasks that receive and send on the sockets. Call it within a runtime.
    pub(super) fn serve(&mut self, shared: Shared<'_>) -> io::Result<()> {
        for bound in &mut self.0 {
            if let Some(socket) = bound.socket.take() {
                bound.serve(socket, shared)?;
            }
        }
        Ok(())
    }

    /// Binds the addresses of the new `settings`; returns the names of settings that need a
    /// restart, because their new address cannot be bound now.
    pub(super) fn reload(&mut self, settings: &Settings, shared: Shared<'_>) -> Vec<&'static str> {
        let mut failed = Vec::new();
        for bound in &mut self.0 {
            if let Err(error) = bound.reload(bound.protocol.address(settings), shared) {
                let (setting, old) = (bound.protocol.key(), bound.address);
                warn!(setting, %error, ?old, "the new address cannot be used, the old one stays");
                failed.push(setting);
            }
        }
        failed
    }
}

impl Bound {
    fn reload(&mut self, address: Option<SocketAddr>, shared: Shared<'_>) -> io::Result<()> {
        if address == self.address {
            return Ok(());
        }
        let setting = self.protocol.key();
        match address {
            Some(address) => {
                let socket = peers::bind(address)?;
                self.serve(socket, shared)?;
                info!(setting, %address, "UDP socket opened");
            }
            None => {
                self.end_task();
                self.line(shared).close();
                info!(setting, "UDP socket closed: no peer needs it");
            }
        }
        self.address = address;
        Ok(())
    }

    fn line<'a>(&self, (common, ..): Shared<'a>) -> &'a crate::queries::Line {
        match self.protocol {
            Protocol::Icp => &common.queries.icp,
            Protocol::Htcp => &common.queries.htcp,
        }
    }

    fn end_task(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Replaces the socket in use by `socket`.
    fn serve(&mut self, socket: UdpSocket, shared: Shared<'_>) -> io::Result<()> {
        self.line(shared).open(socket.try_clone()?)?;
        self.end_task();
        let (common, cache, stage) = shared;
        let parts = (Arc::clone(common), cache.clone());
        let stage = stage.clone();
        let is_ending = move || *stage.borrow() != Stage::Serving;
        let task = match self.protocol {
            Protocol::Icp => spawn(peers::serve_icp(parts, socket, is_ending)),
            Protocol::Htcp => spawn(peers::serve_htcp(parts, socket, is_ending)),
        };
        self.task = Some(task.abort_handle());
        Ok(())
    }
}
