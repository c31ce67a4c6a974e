//! How long a response waits for content that another request's fetch brings.
//!
//! Used by `assembly` while it follows such a fetch. Its own fetch is waited for until that ends.
//!
//! Invariant: only time during which the next byte is not written counts, not time of this
//! response's client, disk or memory.
//! Cost: a timer per piece of content that is not there yet.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, ReadError};
use tokio::time::{Instant, timeout};

/// Content that must arrive within the time of a patience. A fetch that brings less is late, even
/// if it brings something: 8 KB/s with the shortest patience, which a line of 64 kbit/s has.
const BYTES_MIN: u64 = 16 << 10;

/// The patience with one fetch.
pub(super) struct Patience {
    limit: Duration,
    left: Duration,
    /// Content since `left` was whole.
    received: u64,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            left: limit,
            received: 0,
        }
    }

    /// The next piece of `follower`; `Err`: its fetch is late.
    pub(super) async fn next(
        &mut self,
        follower: &mut Follower,
    ) -> Result<Option<Result<Bytes, ReadError>>, Late> {
        loop {
            let begun = Instant::now();
            let piece = poll_fn(|context| follower.poll_next(context));
            let Ok(piece) = timeout(self.left, piece).await else {
                if follower.waits_for_writer() {
                    return Err(Late);
                } else {
                    // The bytes are there: the disk is slow, or the client's memory is used up.
                    self.renew();
                }
                continue;
            };
            self.left = self.left.saturating_sub(begun.elapsed());
            if let Some(Ok(bytes)) = &piece {
                self.received += bytes.len() as u64;
            }
            if self.received >= BYTES_MIN {
                self.renew();
            }
            return Ok(piece);
        }
    }

    fn renew(&mut self) {
        (self.left, self.received) = (self.limit, 0);
    }
}

/// A fetch has not brought its bytes in time.
pub(super) struct Late;
