//! Datagrams through a relay.
//!
//! Each client address is a flow with a socket of its own to the server, so that answers find the
//! way back. Each direction of a flow is a queue of datagrams with the moment at which each is to
//! leave.
//!
//! Invariant: at most [`FLOWS_MAX`] flows and [`DATAGRAMS_MAX`] datagrams wait in a relay. The flow
//! that was silent longest gives way to a new one; a datagram without room is lost.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Direction, Fault, Shared, wait_until};

/// Relays datagrams until `stopped` is closed, then forgets all flows.
pub(super) async fn run(
    public: UdpSocket,
    server: SocketAddr,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let relay = Arc::new(UdpRelay {
        public,
        server,
        places: Arc::new(Semaphore::new(DATAGRAMS_MAX)),
        shared,
    });
    let mut state = relay.shared.state.subscribe();
    let mut killed = state.borrow().killed;
    let mut flows: HashMap<SocketAddr, Flow> = HashMap::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let mut received: u64 = 0;
    loop {
        tokio::select! {
            // First: what was killed before a datagram arrived does not answer it.
            biased;
            _ = &mut stopped => break,
            Ok(state) = state.wait_for(|state| state.killed != killed) => {
                killed = state.killed;
                flows.clear();
            }
            got = relay.public.recv_from(&mut buffer) => {
                // An error is a report about an earlier datagram that found nobody.
                let Ok((length, client)) = got else { continue };
                let Some(datagram) = relay.admit(Direction::ToServer, &buffer[..length]) else {
                    continue;
                };
                make_room(&mut flows, client);
                let flow = match flows.entry(client) {
                    Entry::Occupied(flow) => flow.into_mut(),
                    Entry::Vacant(place) => match Flow::start(&relay, client) {
                        Ok(flow) => place.insert(flow),
                        // Without a socket for it the datagram is lost.
                        Err(_) => continue,
                    },
                };
                received += 1;
                flow.last_used = received;
                // The receiver lives as long as the flow.
                let _ = flow.to_server.send(datagram);
            }
        }
    }
    // The flows hold the socket too: it is closed when their tasks have ended.
    for mut flow in flows.into_values() {
        flow.tasks.shutdown().await;
    }
}

/// Ends the flow that was silent longest, if `client` needs its place.
fn make_room(flows: &mut HashMap<SocketAddr, Flow>, client: SocketAddr) {
    if flows.len() < FLOWS_MAX || flows.contains_key(&client) {
        return;
    }
    let oldest = flows.iter().min_by_key(|(_, flow)| flow.last_used);
    let oldest = oldest.map(|(client, _)| *client);
    oldest.and_then(|client| flows.remove(&client));
}

/// What the flows of a relay share.
struct UdpRelay {
    public: UdpSocket,
    server: SocketAddr,
    places: Arc<Semaphore>,
    shared: Arc<Shared>,
}

/// A client and its socket to the server; ends when dropped.
struct Flow {
    to_server: mpsc::UnboundedSender<Datagram>,
    last_used: u64,
    tasks: JoinSet<()>,
}

struct Datagram {
    due: Instant,
    content: Vec<u8>,
    /// Given back when it has left.
    _place: OwnedSemaphorePermit,
}

impl UdpRelay {
    /// A datagram that arrived now, unless it is lost.
    fn admit(&self, direction: Direction, content: &[u8]) -> Option<Datagram> {
        if self.shared.loses(direction) {
            return None;
        }
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some(Datagram {
            due: self.shared.due(direction, content.len()),
            content: content.to_vec(),
            _place: place,
        })
    }

    /// Gives each datagram of a queue to `send` when it is due, as faults allow.
    async fn deliver<Sent: Future<Output = io::Result<usize>>>(
        &self,
        direction: Direction,
        mut queued: mpsc::UnboundedReceiver<Datagram>,
        send: impl Fn(Vec<u8>) -> Sent,
    ) {
        let mut passed: u64 = 0;
        while let Some(mut datagram) = queued.recv().await {
            wait_until(datagram.due).await;
            let mut content = std::mem::take(&mut datagram.content);
            passed += content.len() as u64;
            match self.shared.way(direction).fault {
                Some(Fault::HangAfter(bytes) | Fault::CutAfter(bytes)) if passed > bytes => {
                    continue;
                }
                Some(Fault::FlipBit { byte, bit }) => {
                    let at = usize::try_from(byte).ok();
                    if let Some(byte) = at.and_then(|at| content.get_mut(at)) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
                _ => {}
            }
            // An error is a datagram that found nobody: it is lost, as on a network.
            let _ = send(content).await;
        }
    }
}

impl Flow {
    fn start(relay: &Arc<UdpRelay>, client: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(relay.server)?;
        socket.set_nonblocking(true)?;
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let (to_server, for_server) = mpsc::unbounded_channel();
        let (to_client, for_client) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let (own, server) = (relay.clone(), socket.clone());
        tasks.spawn(async move {
            let send = |content: Vec<u8>| {
                let server = server.clone();
                async move { server.send(&content).await }
            };
            own.deliver(Direction::ToServer, for_server, send).await;
        });
        let own = relay.clone();
        tasks.spawn(async move {
            let send = |content: Vec<u8>| {
                let own = own.clone();
                async move { own.public.send_to(&content, client).await }
            };
            own.deliver(Direction::ToClient, for_client, send).await;
        });
        let relay = relay.clone();
        tasks.spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES];
            loop {
                // An error is a report that the server is not there; it may return.
                let Ok(length) = socket.recv(&mut buffer).await else {
                    continue;
                };
                if let Some(datagram) = relay.admit(Direction::ToClient, &buffer[..length]) {
                    // The receiver lives as long as the flow.
                    let _ = to_client.send(datagram);
                }
            }
        });
        Ok(Self {
            to_server,
            last_used: 0,
            tasks,
        })
    }
}

const FLOWS_MAX: usize = 256;
pub(super) const DATAGRAMS_MAX: usize = 2048;
const DATAGRAM_BYTES: usize = 64 << 10;
