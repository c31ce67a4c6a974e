//! Peeks at the first bytes of a tunnel: detects TLS and the server name.
//!
//! Called by `connect/intercepted` of the proxy after the 200. `Peek` does no I/O; [`peek`] reads
//! for it.
//!
//! Invariant: all bytes that were read are returned, to be replayed to the origin or into our own
//! handshake. Cost: at most `PEEK_BYTES` twice, beyond `SMALL_BYTES` reserved within the share of
//! the client; a timer.

use std::time::Duration;

use bytes::Bytes;
use hashcache_base::share::{Allowance, ShareReservation};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, timeout_at};

use super::Reason;
use super::client_hello::{HANDSHAKE, ParsedHello};

/// Result of peeking.
pub struct Peeked {
    /// All bytes that were read.
    pub bytes: Bytes,
    /// The ClientHello, or the reason why there is none.
    pub seen: Result<ParsedHello, Reason>,
    /// Memory for a long ClientHello, to be held until it is replayed.
    pub memory: Option<ShareReservation>,
}

/// Reads until there is a ClientHello, or it is clear that there will be none, within `limit`.
pub async fn peek(
    from: &mut (impl AsyncRead + Unpin),
    limit: Duration,
    allowance: &Allowance,
) -> Peeked {
    let deadline = Instant::now() + limit;
    let mut peek = Peek::default();
    let mut page = vec![0; PAGE_BYTES];
    let mut memory = None;
    let seen = loop {
        if peek.bytes.len() >= SMALL_BYTES && memory.is_none() {
            memory = allowance.reserve_bulk(2 * PEEK_BYTES as u64);
            if memory.is_none() {
                break Err(Reason::Memory);
            }
        }
        let room = PEEK_BYTES - peek.bytes.len();
        let room = room.min(page.len());
        let read = match timeout_at(deadline, from.read(&mut page[..room])).await {
            Err(_) => break Err(Reason::Slow),
            // The tunnel forwards the close, and finds out which side closed.
            Ok(Ok(0) | Err(_)) => break Err(Reason::Ended),
            Ok(Ok(read)) => read,
        };
        if let Some(seen) = peek.feed(&page[..read]) {
            break seen;
        }
    };
    Peeked {
        bytes: peek.bytes.into(),
        seen,
        memory,
    }
}

/// Bytes that may become a ClientHello.
#[derive(Default)]
pub(super) struct Peek {
    bytes: Vec<u8>,
    acceptor: Acceptor,
}

impl Peek {
    /// Adds bytes; `None` means that more are needed. Must not be called again after a result.
    fn feed(&mut self, mut more: &[u8]) -> Option<Result<ParsedHello, Reason>> {
        self.bytes.extend_from_slice(more);
        if self.bytes.first().is_some_and(|first| *first != HANDSHAKE) {
            return Some(Err(Reason::NotTls));
        }
        while !more.is_empty() {
            if !matches!(self.acceptor.read_tls(&mut more), Ok(1..)) {
                return Some(Err(Reason::Malformed));
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = ParsedHello::new(&accepted.client_hello(), &self.bytes);
                    return Some(hello.ok_or(Reason::Malformed));
                }
                Err(_) => return Some(Err(Reason::Malformed)),
            }
        }
        (self.bytes.len() >= PEEK_BYTES).then_some(Err(Reason::Malformed))
    }
}

/// Maximum size of a ClientHello; with keys for every post-quantum group a ClientHello has some 6
/// KiB.
pub(super) const PEEK_BYTES: usize = 64 << 10;
/// The part that is counted with the connection.
const SMALL_BYTES: usize = 8 << 10;
const PAGE_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests;
