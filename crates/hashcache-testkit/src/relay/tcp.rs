//! TCP connections through a relay.
//!
//! Each direction of a connection is a reader, a queue of pieces and a writer; each piece has the
//! time at which it must be forwarded. A full queue stops the reader, so TCP flow control stops a
//! peer that sends while the link hangs.
//!
//! Invariant: a connection that is not closed by a FIN in both directions is reset on both sides;
//! no byte that a fault holds back is forwarded.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Direction, Fault, Shared, wait_until};

/// Accepts connections until `stopped` is closed, then resets them.
pub(super) async fn run(
    listener: TcpListener,
    server: SocketAddr,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((client, _)) => {
                    // Read before the task starts: only connections accepted before a kill are
                    // killed.
                    let killed = shared.state.borrow().killed;
                    shared.accepted.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(connection(client, server, killed, shared.clone()));
                }
                // For example, no file descriptors are left.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn connection(client: TcpStream, server: SocketAddr, killed: u64, shared: Arc<Shared>) {
    let mut state = shared.state.subscribe();
    tokio::select! {
        // After an error both sides have been reset.
        _ = relayed(client, server, &shared) => {}
        // The sender is in `shared`, so this cannot fail: it returns only after a kill.
        _ = state.wait_for(|state| state.killed != killed) => {}
    }
}

/// Connects to the server and forwards both directions; dropping this future resets both sides.
async fn relayed(mut client: TcpStream, server: SocketAddr, shared: &Shared) -> io::Result<()> {
    client.set_zero_linger()?;
    client.set_nodelay(true)?;
    permit(shared, Direction::ToServer, 0).await?;
    let socket = match server {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Set before `connect`: the server may already have accepted when the connection is killed.
    socket.set_zero_linger()?;
    // Nagle's algorithm would add delays of its own.
    socket.set_nodelay(true)?;
    let mut server = socket.connect(server).await?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        pass(shared, Direction::ToServer, from_client, to_server),
        pass(shared, Direction::ToClient, from_server, to_client),
    )?;
    // Close without RST: a RST now would discard data that a slow reader has not read yet.
    SockRef::from(&client).set_linger(None)?;
    SockRef::from(&server).set_linger(None)
}

/// Forwards one direction until its FIN.
async fn pass(
    shared: &Shared,
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(QUEUE_PIECES);
    let reading = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let room = piece_bytes(shared, direction);
            let read = from.read(&mut buffer[..room]).await?;
            let due = shared.due(direction, read);
            // An empty piece is the FIN. The queue closes only after a write error.
            let sent = queue.send((due, buffer[..read].to_vec())).await;
            if read == 0 || sent.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let writing = async {
        let mut passed = 0;
        while let Some((due, mut piece)) = queued.recv().await {
            wait_until(due).await;
            if piece.is_empty() {
                permit(shared, direction, passed).await?;
                return to.shutdown().await;
            }
            deliver(shared, direction, &mut to, &mut passed, &mut piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Writes a piece as far as faults allow: waits if the link hangs, fails if the link is cut.
async fn deliver(
    shared: &Shared,
    direction: Direction,
    to: &mut WriteHalf<'_>,
    passed: &mut u64,
    mut piece: &mut [u8],
) -> io::Result<()> {
    while !piece.is_empty() {
        let room = permit(shared, direction, *passed).await?;
        let length = usize::try_from(room).map_or(piece.len(), |room| room.min(piece.len()));
        let (now, later) = piece.split_at_mut(length);
        if let Some(Fault::FlipBit { byte, bit }) = shared.way(direction).fault
            && let Some(at) = byte.checked_sub(*passed)
            && let Some(byte) = usize::try_from(at).ok().and_then(|at| now.get_mut(at))
        {
            *byte ^= 1 << (bit % 8);
        }
        to.write_all(now).await?;
        *passed += length as u64;
        shared.passed[direction as usize].fetch_add(length as u64, Ordering::Relaxed);
        piece = later;
    }
    Ok(())
}

/// Returns how many bytes may be forwarded after `passed` bytes; waits while it is zero because of
/// a hang.
///
/// # Errors
/// `ConnectionReset` if the link is cut at this byte.
async fn permit(shared: &Shared, direction: Direction, passed: u64) -> io::Result<u64> {
    let room = |fault| match fault {
        Some(Fault::HangAfter(bytes) | Fault::CutAfter(bytes)) => {
            u64::saturating_sub(bytes, passed)
        }
        _ => u64::MAX,
    };
    let mut state = shared.state.subscribe();
    let allows = state.wait_for(|state| {
        let fault = state.way(direction).fault;
        room(fault) > 0 || matches!(fault, Some(Fault::CutAfter(_)))
    });
    let fault = allows
        .await
        .map(|state| state.way(direction).fault)
        .map_err(io::Error::other)?;
    match room(fault) {
        0 => Err(io::ErrorKind::ConnectionReset.into()),
        room => Ok(room),
    }
}

/// Returns the maximum piece size; small at a low rate, so that bytes arrive evenly.
fn piece_bytes(shared: &Shared, direction: Direction) -> usize {
    let Some(rate) = shared.way(direction).bytes_per_second else {
        return PIECE_BYTES;
    };
    let bytes = rate.get() / PIECES_PER_SECOND;
    usize::try_from(bytes).map_or(PIECE_BYTES, |bytes| bytes.clamp(1, PIECE_BYTES))
}

const CONNECTIONS_MAX: usize = 256;
const QUEUE_PIECES: usize = 64;
const PIECE_BYTES: usize = 16 << 10;
const PIECES_PER_SECOND: u64 = 100;
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
