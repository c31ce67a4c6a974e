//! Closes a connection while the client may still be sending.
//!
//! Invariant: bounded in bytes and in time, for any behaviour of the client.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::socket::Socket;
use super::stream::ClientSide;

/// Closes so that the client can read everything that was sent. Closing with unread input would
/// send a RST, and many clients then drop data that they have not yet read (RFC 9112, 9.6).
pub(super) async fn linger(mut socket: Socket, peer: ClientSide, bounds: &Linger) {
    // Has a timeout, because TLS sends a last record and the client may no longer read.
    let shutdown = timeout(LINGER_TIME, socket.shutdown()).await;
    if !matches!(shutdown, Ok(Ok(()))) || peer == ClientSide::Finished {
        return;
    }
    let drain = async {
        let mut page = vec![0; 4 << 10];
        let mut left = bounds.bytes;
        while left > 0 {
            match timeout(LINGER_TIME, socket.read(&mut page)).await {
                Ok(Ok(0) | Err(_)) | Err(_) => return,
                Ok(Ok(read)) => left = left.saturating_sub(read as u64),
            }
        }
    };
    let _ = timeout(bounds.time, drain).await;
}

/// Limits for input that is read and dropped before a connection closes; each read waits at most
/// [`LINGER_TIME`].
pub(super) struct Linger {
    bytes: u64,
    time: Duration,
}

impl Linger {
    /// For a request that was answered before all its content arrived (RFC 9112, 9.3): many clients
    /// read the response only after they have sent everything. It costs a buffer and a connection
    /// slot of the client.
    pub(super) fn for_content(left: u64) -> Self {
        Self {
            bytes: left.saturating_add(LINGER.bytes),
            time: Duration::from_secs(30),
        }
    }
}

/// For input that a client may have sent before it saw the close.
pub(super) const LINGER: Linger = Linger {
    bytes: 64 << 10,
    time: LINGER_TIME,
};

/// How long a client may send nothing before the connection is closed.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);
