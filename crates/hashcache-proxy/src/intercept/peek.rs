//! The first bytes of a tunnel, looked at and kept: is it TLS, and who is asked for?
//!
//! Called by `connect/intercepted` when a client has its 200. [`Peek`] does no I/O; [`peek`] reads
//! for it.
//!
//! Invariant: what was read is given back whole, whatever it was, to be replayed to the origin or
//! into a handshake of ours. Cost: at most [`PEEK_BYTES`] twice, beyond [`SMALL_BYTES`] set aside
//! out of the budget; one timer.

use std::time::Duration;

use bytes::Bytes;
use hashcache::{Cache, Reservation};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, timeout_at};

use super::Reason;
use super::client_hello::{HANDSHAKE, ParsedHello};

/// What came of a look.
pub(crate) struct Peeked {
    /// All that was read.
    pub(crate) bytes: Bytes,
    /// What the client wants, or why that is not known.
    pub(crate) seen: Result<ParsedHello, Reason>,
    /// Memory for a long hello, to be held until it is replayed.
    pub(crate) memory: Option<Reservation>,
}

/// Reads until there is a ClientHello, or it is clear that there will be none, within `limit`.
pub(crate) async fn peek(
    from: &mut (impl AsyncRead + Unpin),
    limit: Duration,
    cache: &Cache,
) -> Peeked {
    let deadline = Instant::now() + limit;
    let mut peek = Peek::default();
    let mut page = vec![0; PAGE_BYTES];
    let mut memory = None;
    let seen = loop {
        if peek.bytes.len() >= SMALL_BYTES && memory.is_none() {
            memory = cache.reserve_bulk(2 * PEEK_BYTES as u64);
            if memory.is_none() {
                break Err(Reason::Memory);
            }
        }
        let room = PEEK_BYTES - peek.bytes.len();
        let room = room.min(page.len());
        let read = match timeout_at(deadline, from.read(&mut page[..room])).await {
            Err(_) => break Err(Reason::Slow),
            // An end is passed on as one; who broke off is found out by the tunnel.
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
    /// Takes more; no verdict means that more is needed. Not to be called again after one.
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
                    let hello = ParsedHello::of(&accepted.client_hello(), &self.bytes);
                    return Some(hello.ok_or(Reason::Malformed));
                }
                Err(_) => return Some(Err(Reason::Malformed)),
            }
        }
        (self.bytes.len() >= PEEK_BYTES).then_some(Err(Reason::Malformed))
    }
}

/// What a ClientHello may have; with keys of every post-quantum group it has some 6 KiB.
pub(super) const PEEK_BYTES: usize = 64 << 10;
/// What is counted with the connection.
const SMALL_BYTES: usize = 8 << 10;
const PAGE_BYTES: usize = 4 << 10;

#[cfg(test)]
mod tests;
