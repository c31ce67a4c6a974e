//! A relay in front of a server on loopback: a link that tests make slow, lossy or broken.
//!
//! Tests and campaigns put the relay between two programs, for TCP or for UDP, and change the link
//! while it runs: delay, rate, loss, a hang, a cut, a wrong bit, a server that disappears and
//! returns.
//!
//! Invariant: the relay keeps the port until it is dropped, also while nothing listens there;
//! dropping the relay stops all tasks and closes all connections and sockets.
//! Cost: at most 1 MiB for each direction of at most 256 connections, or 2048 datagrams.

mod tcp;
mod udp;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Both directions of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// From clients to the server.
    pub to_server: Way,
    /// From the server to clients.
    pub to_client: Way,
}

/// One direction of a link; the default forwards everything immediately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Delay for each byte, and for the FIN in TCP. At most a day.
    pub delay: Duration,
    /// Rate that all connections share; `None` is unlimited.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Datagrams lost, per thousand. TCP loses nothing.
    pub loss_per_mille: u16,
    /// Fault in this direction.
    pub fault: Option<Fault>,
}

/// A fault at a byte of a TCP connection or UDP flow, counted from 0 in each direction.
///
/// UDP has no connection that could hang or be cut, so the datagram with that byte and all later
/// datagrams are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// After this many forwarded bytes the rest waits until the fault is removed. With 0 bytes to
    /// the server, the relay accepts connections, but the server does not see them.
    HangAfter(u64),
    /// After this many forwarded bytes the next byte resets the connection on both sides.
    CutAfter(u64),
    /// This bit in this byte is inverted; for UDP, in each datagram.
    FlipBit {
        /// Byte index.
        byte: u64,
        /// Bit index within the byte, from 0.
        bit: u8,
    },
}

/// A relay on a loopback port, at 127.0.0.1 unless another address is given; dropping it stops the
/// relay.
#[derive(Debug)]
pub struct Relay {
    transport: Transport,
    server: SocketAddr,
    shared: Arc<Shared>,
    /// Bound but never listening, so that no other program gets the port.
    _reserved: Socket,
    address: SocketAddr,
    running: Option<Running>,
}

/// Task while the relay listens; it stops when `stop` is dropped.
#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Tcp,
    Udp,
}

impl Relay {
    /// Starts a relay of TCP connections to `server`.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub fn tcp(server: SocketAddr) -> io::Result<Self> {
        Self::tcp_at(Ipv4Addr::LOCALHOST, server)
    }

    /// As [`Relay::tcp`], but at another loopback address, for programs that are identified by
    /// their addresses.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub fn tcp_at(host: Ipv4Addr, server: SocketAddr) -> io::Result<Self> {
        Self::begin(Transport::Tcp, host, server, 0)
    }

    /// Starts a relay of datagrams to `server`; `seed` determines which datagrams are lost.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub fn udp(server: SocketAddr, seed: u64) -> io::Result<Self> {
        Self::udp_at(Ipv4Addr::LOCALHOST, server, seed)
    }

    /// As [`Relay::udp`], but at another loopback address.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub fn udp_at(host: Ipv4Addr, server: SocketAddr, seed: u64) -> io::Result<Self> {
        Self::begin(Transport::Udp, host, server, seed)
    }

    fn begin(
        transport: Transport,
        host: Ipv4Addr,
        server: SocketAddr,
        seed: u64,
    ) -> io::Result<Self> {
        let reserved = transport.socket()?;
        reserved.bind(&SockAddr::from(SocketAddr::from((host, 0))))?;
        // Set only after `bind`: the system may give one UDP port to two sockets that both have
        // this option.
        reserved.set_reuse_address(true)?;
        let address = reserved.local_addr()?.as_socket();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        if let Transport::Udp = transport {
            // A connected socket receives only from its peer. Therefore datagrams find no receiver
            // while the relay is stopped, as with a server that is not running.
            reserved.connect(&SockAddr::from(address))?;
        }
        let mut relay = Self {
            transport,
            server,
            shared: Arc::new(Shared::new(seed)),
            _reserved: reserved,
            address,
            running: None,
        };
        relay.start()?;
        Ok(relay)
    }

    /// Address at which clients reach the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far; datagrams are not counted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Bytes forwarded in TCP connections so far: to the server, and to clients.
    #[must_use]
    pub fn passed_bytes(&self) -> [u64; 2] {
        self.shared
            .passed
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Changes the link. Delay, rate and loss apply to bytes that arrive after this call, faults to
    /// all bytes that have not been forwarded yet.
    pub fn change(&self, change: impl FnOnce(&mut Link)) {
        self.shared
            .state
            .send_modify(|state| change(&mut state.link));
        // These times were computed with the earlier rate, which may have been slower.
        for free_at in &self.shared.free_at {
            *free_at.lock().unwrap_or_else(PoisonError::into_inner) = now();
        }
    }

    /// Resets all accepted connections, or drops all flows; new connections and flows work.
    pub fn kill_connections(&self) {
        self.shared.state.send_modify(|state| state.killed += 1);
    }

    /// Makes the server unreachable: resets all connections and refuses new ones. Returns when this
    /// is done.
    pub async fn stop(&mut self) {
        if let Some(Running { stop, task }) = self.running.take() {
            drop(stop);
            // An error would be a panic, which the task has already reported.
            let _ = task.await;
        }
    }

    /// Listens again at the same address; does nothing if the relay listens already.
    ///
    /// # Errors
    /// If the system refuses to listen.
    pub fn start(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let socket = self.transport.socket()?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(self.address))?;
        let (server, shared) = (self.server, self.shared.clone());
        let (stop, stopped) = oneshot::channel();
        let task = match self.transport {
            Transport::Tcp => {
                socket.listen(BACKLOG)?;
                let listener = tokio::net::TcpListener::from_std(socket.into())?;
                tokio::spawn(tcp::run(listener, server, shared, stopped))
            }
            Transport::Udp => {
                let socket = tokio::net::UdpSocket::from_std(socket.into())?;
                tokio::spawn(udp::run(socket, server, shared, stopped))
            }
        };
        self.running = Some(Running { stop, task });
        Ok(())
    }
}

impl Transport {
    fn socket(self) -> io::Result<Socket> {
        match self {
            Self::Tcp => Socket::new(Domain::IPV4, Type::STREAM, None),
            Self::Udp => Socket::new(Domain::IPV4, Type::DGRAM, None),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    ToServer,
    ToClient,
}

/// State that the relay tasks share.
#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    /// For each direction, the time at which the link will have sent all bytes that it has
    /// accepted.
    free_at: [Mutex<Instant>; 2],
    random: Mutex<u64>,
    accepted: AtomicUsize,
    /// Bytes forwarded, for each direction.
    passed: [AtomicU64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    link: Link,
    /// Number of times that all connections were killed.
    killed: u64,
}

impl Shared {
    fn new(seed: u64) -> Self {
        Self {
            state: watch::Sender::default(),
            free_at: [(); 2].map(|()| Mutex::new(now())),
            random: Mutex::new(seed),
            accepted: AtomicUsize::new(0),
            passed: Default::default(),
        }
    }

    fn way(&self, direction: Direction) -> Way {
        self.state.borrow().way(direction)
    }

    /// Returns the time at which bytes that arrive now must be forwarded.
    fn due(&self, direction: Direction, bytes: usize) -> Instant {
        let way = self.way(direction);
        let sent = match way.bytes_per_second {
            None => now(),
            Some(rate) => {
                let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.get());
                let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                let mut free_at = self.free_at[direction as usize]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *free_at = (*free_at).max(now()) + takes.min(DELAY_MAX);
                *free_at
            }
        };
        sent + way.delay.min(DELAY_MAX)
    }

    /// Returns true if the next datagram is lost.
    fn loses(&self, direction: Direction) -> bool {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // SplitMix64. A number is drawn for every datagram, so that a different loss rate changes
        // no later draw.
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % 1000 < u64::from(self.way(direction).loss_per_mille)
    }
}

impl State {
    fn way(&self, direction: Direction) -> Way {
        match direction {
            Direction::ToServer => self.link.to_server,
            Direction::ToClient => self.link.to_client,
        }
    }
}

/// Waits until `due`. A time in the past is skipped, because the timer would round it up to the
/// next millisecond.
async fn wait_until(due: Instant) {
    if due > now() {
        tokio::time::sleep_until(due).await;
    }
}

/// The runtime clock, which tests may pause.
fn now() -> Instant {
    Instant::now()
}

const BACKLOG: i32 = 128;
const DELAY_MAX: Duration = Duration::from_secs(24 * 3600);
