//! How a connection is closed whose client may still be sending.
//!
//! Invariant: bounded in bytes and in time, whatever the client does.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::socket::Socket;
use super::stream::ClientSide;

/// Closes so that the client can read everything that was sent. Closing with unread input would
/// send a RST, and many clients then drop data that they have not read yet (RFC 9112, 9.6).
pub(super) async fn linger(mut socket: Socket, peer: ClientSide, bounds: &Linger) {
    // TLS has a last record for the client, who may not read any more.
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

/// How much input is read and dropped before a connection closes; at most [`LINGER_TIME`] without
/// input.
pub(super) struct Linger {
    bytes: u64,
    time: Duration,
}

impl Linger {
    /// For a request that was answered before all of its content arrived (RFC 9112, 9.3): many
    /// clients read the response only after they have sent everything. It costs one buffer and one
    /// of the client's connections.
    pub(super) fn for_content(left: u64) -> Self {
        Self {
            bytes: left.saturating_add(LINGER.bytes),
            time: Duration::from_secs(30),
        }
    }
}

/// For input that a client may have sent before it saw the end.
pub(super) const LINGER: Linger = Linger {
    bytes: 64 << 10,
    time: LINGER_TIME,
};

/// How long a client may send nothing before its connection is closed.
pub(super) const LINGER_TIME: Duration = Duration::from_secs(1);
