//! The supervisor, such as systemd, that has started and watches this process: the sockets that it
//! passes, and the messages that it gets.
//!
//! Made by `hashcache-cli`; used by `server` and `control`. The protocols are sd_listen_fds(3) and
//! sd_notify(3). Messages are two lines of text, so they need no crate; but turning a descriptor
//! into a socket is `unsafe`, and the crate `listenfd` has that code.
//!
//! Invariants: without a supervisor no message is sent and no socket is taken. A passed socket is
//! used only for a setting with exactly its address, and a socket that no setting names prevents
//! the start.

use std::env;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self, UnixDatagram};
use std::process;
use std::time::Duration;

use listenfd::ListenFd;
use rustix::time::{ClockId, clock_gettime};
use socket2::SockRef;
use tracing::warn;

use super::original_destination::set_transparent;
use super::stage::RunError;
use crate::settings::Listen;

/// The program that has started this process.
#[derive(Debug, Default)]
pub struct Supervisor {
    pub(super) sockets: InheritedSockets,
    pub(super) notifier: Notifier,
    /// The supervisor terminates this process if it hears nothing for this time.
    pub(super) watchdog: Option<Duration>,
}

impl Supervisor {
    /// Reads the supervisor's environment variables, and removes the variables of the sockets.
    /// Therefore it must be called before the process has other threads.
    ///
    /// # Errors
    /// A passed descriptor is not a listening TCP socket, or the supervisor's notification socket
    /// does not exist.
    pub fn of_this_process() -> io::Result<Self> {
        let notifier = match env::var("NOTIFY_SOCKET") {
            Ok(name) => Notifier::new(&name)?,
            Err(_) => Notifier::default(),
        };
        Ok(Self {
            sockets: InheritedSockets::of_this_process()?,
            watchdog: watchdog().filter(|_| notifier.socket.is_some()),
            notifier,
        })
    }
}

/// Returns the time of the variable WATCHDOG_USEC, if it is meant for this process.
fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse().ok();
    let other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && !other);
    micros.map(Duration::from_micros)
}

/// Listening sockets that the supervisor passes to this process.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets(Vec<(SocketAddr, TcpListener)>);

impl InheritedSockets {
    fn of_this_process() -> io::Result<Self> {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            let Some(socket) = passed.take_tcp_listener(index)? else {
                continue;
            };
            // A unit with `Accept=yes` passes accepted connections.
            if !SockRef::from(&socket).is_listener()? {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a connection was passed instead of a listening socket",
                ));
            }
            socket.set_nonblocking(true)?;
            sockets.push((socket.local_addr()?, socket));
        }
        Ok(Self(sockets))
    }

    /// Prepares the sockets for the `wanted` listeners. Refuses sockets at other addresses, because
    /// clients would wait there for ever.
    pub(super) fn prepare(&self, wanted: &[Listen]) -> Result<(), RunError> {
        for (address, socket) in &self.0 {
            let address = *address;
            let Some(listen) = wanted.iter().find(|listen| listen.address == address) else {
                return Err(RunError::Inherited { address });
            };
            if listen.is_tproxy() {
                // The kernel delivers connections to other servers' addresses only to a transparent
                // socket.
                let set = set_transparent(&SockRef::from(socket), address);
                set.map_err(|source| RunError::NotTransparent { address, source })?;
            }
        }
        Ok(())
    }

    /// Returns true if a socket at `address` was passed.
    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(it, _)| *it == address)
    }

    /// Takes the socket at `address`, if there is one.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = self.0.iter().position(|(it, _)| *it == address)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// Sends the state of this process to the supervisor.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    socket: Option<UnixDatagram>,
}

impl Notifier {
    fn new(name: &str) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => net::SocketAddr::from_abstract_name(name)?,
            None => net::SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Self::with_socket(socket)
    }

    fn with_socket(socket: UnixDatagram) -> io::Result<Self> {
        // A supervisor that does not read must not block the main thread.
        socket.set_write_timeout(Some(SEND_TIME))?;
        Ok(Self {
            socket: Some(socket),
        })
    }

    /// Reports that clients are served; `status` is a line for people.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the settings are being reloaded; `ready` follows.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Reports that the process is stopping.
    pub(super) fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// Reports that the process works.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(message.as_bytes())
        {
            warn!(%error, "the service manager was not told");
        }
    }
}

/// How long the supervisor may take to read a message.
const SEND_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A notifier, and the other end of its socket.
    pub(in super::super) fn notifier() -> (Notifier, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        (Notifier::with_socket(ours).unwrap(), theirs)
    }

    #[test]
    fn a_socket_is_used_for_its_own_address_only() {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (socket(), socket());
        let at = |it: &TcpListener| it.local_addr().unwrap();
        let (first, second) = (at(&one), at(&other));
        let mut sockets = InheritedSockets(vec![(first, one), (second, other)]);
        assert!(sockets.prepare(&[first.into(), second.into()]).is_ok());
        let any: SocketAddr = ([0, 0, 0, 0], second.port()).into();
        let refused = sockets.prepare(&[first.into(), any.into()]);
        assert!(
            matches!(&refused, Err(RunError::Inherited { address }) if *address == second),
            "{refused:?}"
        );
        assert!(sockets.take(any).is_none());
        assert_eq!(at(&sockets.take(second).unwrap()), second);
        assert!(sockets.take(second).is_none());
        assert_eq!(at(&sockets.take(first).unwrap()), first);
    }
}
