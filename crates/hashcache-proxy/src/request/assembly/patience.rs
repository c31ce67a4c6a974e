//! Time limit on waiting for content from the fetch of another request.
//!
//! Used by `assembly` while it follows such a fetch. For a fetch that the assembly itself started,
//! it waits until the fetch is over.
//!
//! Invariant: only time during which the next byte is not written counts, not time spent by this
//! response's client, disk or memory.
//! Cost: a timer for each piece of content that has not arrived yet.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, ReadError};
use tokio::time::{Instant, timeout};

/// Content that must arrive within the time of a patience. A slower fetch is late, even if some
/// bytes arrive: 8 KB/s with the shortest patience, which a line of 64 kbit/s has.
const BYTES_MIN: u64 = 16 << 10;

/// The patience with one fetch.
pub(super) struct Patience {
    limit: Duration,
    left: Duration,
    /// Content since `left` was reset.
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

    /// The next piece of `follower`; `Err`: the fetch is late.
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
                }
                // The bytes have arrived: the disk is slow, or the client's memory is used up.
                self.renew();
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

/// A fetch did not deliver the bytes in time.
pub(super) struct Late;
