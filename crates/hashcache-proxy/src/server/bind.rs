//! Binds the sockets of all listeners. They are bound before any state is loaded, so a second
//! instance fails at once.
//!
//! Called by `server` at the start.
//!
//! Invariant: addresses are bound without SO_REUSEPORT, so a second instance fails to start instead
//! of silently taking half of the connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use super::original_destination;
use super::stage::RunError;
use super::supervisor::InheritedSockets;
use super::udp_sockets::UdpSockets;
use crate::settings::{Listen, Settings};

/// The addresses that [`run`](super::run) has bound.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Client listeners.
    pub clients: Vec<SocketAddr>,
    /// Admin listener: monitoring and purges.
    pub admin: Option<SocketAddr>,
    /// Link listener, for children.
    pub link: Option<SocketAddr>,
    /// Forwarded ports, in the order of the settings.
    pub forwards: Vec<SocketAddr>,
}

impl Listening {
    /// Returns the addresses at which requests arrive. A request for one of these addresses is for
    /// this proxy itself.
    pub(super) fn for_requests(&self) -> impl Iterator<Item = SocketAddr> {
        let others = self.link.iter().chain(&self.forwards);
        self.clients.iter().chain(others).copied()
    }

    /// Returns the addresses of all TCP listeners.
    pub(super) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.for_requests().chain(self.admin)
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("serving")?;
        let clients = self.clients.iter().map(|at| ("on", at));
        let admin = self.admin.iter().map(|at| ("admin on", at));
        let link = self.link.iter().map(|at| ("link on", at));
        let forwards = self.forwards.iter().map(|at| ("forwarding", at));
        let all = clients.chain(admin).chain(link).chain(forwards);
        for (number, (what, address)) in all.enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma} {what} {address}")?;
        }
        Ok(())
    }
}

/// Bound sockets of this process. No client is served on them yet.
pub(super) struct Bound {
    /// In the order of the settings.
    pub(super) clients: Vec<StdListener>,
    pub(super) admin: Option<StdListener>,
    pub(super) link: Option<StdListener>,
    /// In the order of the settings.
    pub(super) forwards: Vec<StdListener>,
    pub(super) udp: UdpSockets,
    pub(super) addresses: Listening,
}

impl Bound {
    /// Binds the addresses of `settings`, except the addresses of sockets that the supervisor
    /// passes.
    ///
    /// # Errors
    /// An address cannot be bound, or the supervisor passes a socket that no setting names.
    pub(super) fn bind(
        settings: &Settings,
        mut inherited: InheritedSockets,
    ) -> Result<Self, RunError> {
        let startup = &settings.startup;
        inherited.prepare(&listens(settings))?;
        let mut bind = |listen: Listen| match inherited.take(listen.address) {
            Some(passed) => Ok(passed),
            None => bind(listen),
        };
        let clients = startup.listen.iter().map(|listen| bind(*listen));
        let clients: Vec<_> = clients.collect::<Result<_, _>>()?;
        let admin = startup.admin.map(|at| bind(at.into())).transpose()?;
        let link = startup.link_listen.map(|at| bind(at.into())).transpose()?;
        let forwards = startup.link_forward.iter();
        let forwards = forwards.map(|forward| bind(forward.listen.into()));
        let forwards: Vec<_> = forwards.collect::<Result<_, _>>()?;
        let address = |listener: &StdListener| listener.local_addr().ok();
        Ok(Self {
            addresses: Listening {
                clients: clients.iter().filter_map(address).collect(),
                admin: admin.as_ref().and_then(address),
                link: link.as_ref().and_then(address),
                forwards: forwards.iter().filter_map(address).collect(),
            },
            clients,
            admin,
            link,
            forwards,
            udp: UdpSockets::bind(settings)?,
        })
    }
}

/// Returns the TCP listeners of `settings`.
pub(super) fn listens(settings: &Settings) -> Vec<Listen> {
    let forwards = settings
        .startup
        .link_forward
        .iter()
        .map(|forward| forward.listen);
    let others = settings
        .startup
        .admin
        .into_iter()
        .chain(settings.startup.link_listen);
    let others = forwards.chain(others).map(Listen::from);
    settings
        .startup
        .listen
        .iter()
        .copied()
        .chain(others)
        .collect()
}

fn bind(listen: Listen) -> Result<StdListener, RunError> {
    let address = listen.address;
    let bound = || -> io::Result<StdListener> {
        let socket = socket(listen)?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    bound().map_err(|source| RunError::Listen { address, source })
}

/// Returns a socket that is bound to the address of `listen` and does not accept connections yet.
pub(super) fn socket(listen: Listen) -> io::Result<socket2::Socket> {
    let address = listen.address;
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM,
        None,
    )?;
    // Allows a new process to bind the address while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if listen.is_tproxy() {
        original_destination::set_transparent(&socket, address)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
