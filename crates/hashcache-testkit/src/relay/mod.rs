//! A relay in front of a server on loopback: a link that tests make slow, lossy or broken.
//!
//! Tests and campaigns put it between two programs, for TCP or for UDP, and change it while it
//! runs: delay, rate, loss, a hang, a cut, a wrong bit, a server that is gone and returns.
//!
//! Invariant: the relay keeps its port until it is dropped, also while nothing listens there; its
//! tasks, connections and sockets end with it.
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

/// One direction of a link; the default passes everything on at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// How long each byte travels; also the end of a TCP connection. At most a day.
    pub delay: Duration,
    /// What all connections together get.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Datagrams of a thousand that are lost. TCP loses nothing.
    pub loss_per_mille: u16,
    /// What breaks.
    pub fault: Option<Fault>,
}

/// What breaks at a byte of a TCP connection or UDP flow, counted from 0 in each direction.
///
/// UDP has no connection to hang or cut: the datagram with that byte and those after it are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// So many bytes pass; the rest waits until the fault is taken away. After 0 bytes to the
    /// server, the relay accepts connections of which the server sees nothing.
    HangAfter(u64),
    /// So many bytes pass; the next one resets the connection on both sides.
    CutAfter(u64),
    /// This bit of this byte is inverted, for UDP in each datagram.
    FlipBit {
        /// Which byte.
        byte: u64,
        /// Which of its bits, from 0.
        bit: u8,
    },
}

/// A relay on a port of loopback, of 127.0.0.1 unless another address is named; it ends when
/// dropped.
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

/// A relay that listens, until `stop` is dropped.
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
    /// When no port can be had.
    pub fn tcp(server: SocketAddr) -> io::Result<Self> {
        Self::tcp_at(Ipv4Addr::LOCALHOST, server)
    }

    /// The same on a port of another address of loopback, for programs that are known by their
    /// addresses.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn tcp_at(host: Ipv4Addr, server: SocketAddr) -> io::Result<Self> {
        Self::begin(Transport::Tcp, host, server, 0)
    }

    /// Starts a relay of datagrams to `server`; `seed` decides which ones are lost.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn udp(server: SocketAddr, seed: u64) -> io::Result<Self> {
        Self::udp_at(Ipv4Addr::LOCALHOST, server, seed)
    }

    /// The same on a port of another address of loopback.
    ///
    /// # Errors
    /// When no port can be had.
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
        // Only now: the system may give one UDP port to two sockets that both have this option.
        reserved.set_reuse_address(true)?;
        let address = reserved.local_addr()?.as_socket();
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        if let Transport::Udp = transport {
            // A connected socket receives from its peer alone. Thus datagrams find nothing here
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

    /// Where clients reach the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that it has accepted so far; datagrams are not counted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Bytes that have left it in TCP connections so far: to the server, and to clients.
    #[must_use]
    pub fn passed_bytes(&self) -> [u64; 2] {
        self.shared
            .passed
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Changes the link. Delay, rate and loss apply to bytes that arrive from now on, faults to
    /// all bytes that have not left yet.
    pub fn change(&self, change: impl FnOnce(&mut Link)) {
        self.shared
            .state
            .send_modify(|state| change(&mut state.link));
        // What an earlier, slower rate has promised no longer holds.
        for free_at in &self.shared.free_at {
            *free_at.lock().unwrap_or_else(PoisonError::into_inner) = now();
        }
    }

    /// Resets all connections that it has accepted, or forgets all flows; new ones work.
    pub fn kill_connections(&self) {
        self.shared.state.send_modify(|state| state.killed += 1);
    }

    /// Makes the server unreachable: all connections are reset, and new ones refused. Returns when
    /// that is so.
    pub async fn stop(&mut self) {
        if let Some(Running { stop, task }) = self.running.take() {
            drop(stop);
            // An error would be a panic, which the task has reported.
            let _ = task.await;
        }
    }

    /// Listens again, at the same address; nothing changes if it does already.
    ///
    /// # Errors
    /// When the system refuses to listen.
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

/// What the tasks of a relay share.
#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    /// For each direction, when the link has sent all that it has accepted.
    free_at: [Mutex<Instant>; 2],
    random: Mutex<u64>,
    accepted: AtomicUsize,
    /// Bytes that have left, for each direction.
    passed: [AtomicU64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    link: Link,
    /// How often all connections were killed.
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

    /// When bytes that arrive now are to leave.
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

    /// Whether the next datagram is lost.
    fn loses(&self, direction: Direction) -> bool {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // SplitMix64. A number is drawn for every datagram, so that a change of the share changes
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

/// Waits until `due`. A timer would round a moment that has passed up to the next millisecond.
async fn wait_until(due: Instant) {
    if due > now() {
        tokio::time::sleep_until(due).await;
    }
}

/// The clock of the runtime, which tests may pause.
fn now() -> Instant {
    Instant::now()
}

const BACKLOG: i32 = 128;
const DELAY_MAX: Duration = Duration::from_secs(24 * 3600);
