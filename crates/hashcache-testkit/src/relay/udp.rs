//! UDP datagrams through a relay.
//!
//! Each client address is a flow with a separate socket to the server, so that answers reach the
//! right client. Each direction of a flow is a queue of datagrams; each datagram has the time at
//! which it must be forwarded.
//!
//! Invariant: a relay has at most [`FLOWS_MAX`] flows, and at most [`DATAGRAMS_MAX`] datagrams wait
//! in it. A new flow replaces the flow that has not received a client's datagram for the longest
//! time; a datagram without room is lost.

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

/// Forwards datagrams until `stopped` is closed, then drops all flows.
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
            // `biased`, with the kill before the datagram: a flow killed before a datagram arrived
            // must not forward the datagram.
            biased;
            _ = &mut stopped => break,
            Ok(state) = state.wait_for(|state| state.killed != killed) => {
                killed = state.killed;
                flows.clear();
            }
            got = relay.public.recv_from(&mut buffer) => {
                // An error reports that an earlier datagram found no receiver.
                let Ok((length, client)) = got else { continue };
                let Some(datagram) = relay.admit(Direction::ToServer, &buffer[..length]) else {
                    continue;
                };
                make_room(&mut flows, client);
                let flow = match flows.entry(client) {
                    Entry::Occupied(flow) => flow.into_mut(),
                    Entry::Vacant(place) => match Flow::start(&relay, client) {
                        Ok(flow) => place.insert(flow),
                        // Without a socket for the flow the datagram is lost.
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
    // The flows also hold the public socket: it is closed only when all their tasks have stopped.
    for mut flow in flows.into_values() {
        flow.tasks.shutdown().await;
    }
}

/// Drops the flow without a client datagram for the longest time, if `client` needs the place.
fn make_room(flows: &mut HashMap<SocketAddr, Flow>, client: SocketAddr) {
    if flows.len() < FLOWS_MAX || flows.contains_key(&client) {
        return;
    }
    let oldest = flows.iter().min_by_key(|(_, flow)| flow.last_used);
    let oldest = oldest.map(|(client, _)| *client);
    oldest.and_then(|client| flows.remove(&client));
}

/// State that the relay flows share.
struct UdpRelay {
    public: UdpSocket,
    server: SocketAddr,
    places: Arc<Semaphore>,
    shared: Arc<Shared>,
}

/// A client and the socket to the server for this client; dropping it stops the tasks.
struct Flow {
    to_server: mpsc::UnboundedSender<Datagram>,
    last_used: u64,
    tasks: JoinSet<()>,
}

struct Datagram {
    due: Instant,
    content: Vec<u8>,
    /// Returned when the datagram has been forwarded.
    _place: OwnedSemaphorePermit,
}

impl UdpRelay {
    /// Returns a queue entry for a datagram that arrived now, or `None` if the datagram is lost.
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

    /// Passes each datagram of a queue to `send` when it is due, as far as faults allow.
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
            // An error means that no receiver was found: the datagram is lost, as on a network.
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
                // An error reports that the server is not running; it may return.
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
