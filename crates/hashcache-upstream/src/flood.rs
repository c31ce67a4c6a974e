//! Limits on frames from an HTTP/2 origin that no request caused: interim responses, and frames
//! that cost the origin nothing.
//!
//! `meter` passes the bytes below h2 to this module, because h2 limits neither kind: it keeps every
//! interim response until the request is over.
//!
//! Invariant: an origin that exceeds a limit loses the connection, and the requests on it fail.
//! Cost: nine bytes examined per frame, a map entry per stream in progress.

use std::collections::HashMap;

use hashcache_base::limits::Limits;
use tokio::time::Instant;

use hashcache_wire::frames::{
    Budget, CONTINUATION, DATA, END_HEADERS, FrameHead, Frames, HEADERS, RST_STREAM,
};

/// Checks the frames on a connection.
#[derive(Debug)]
pub(super) struct FloodGuard {
    frames: Frames,
    budget: Budget,
    heads: HashMap<u32, StreamHeads>,
    head_bytes: usize,
}

/// A stream's field blocks so far.
#[derive(Clone, Copy, Debug, Default)]
struct StreamHeads {
    count: usize,
    bytes: usize,
    /// The current block is the last block on the stream.
    is_last: bool,
}

impl FloodGuard {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            frames: Frames::of_server(),
            budget: Budget::new(limits.frames as u64, Instant::now()),
            heads: HashMap::new(),
            head_bytes: limits.head_bytes,
        }
    }

    /// Notes that `bytes` were sent to the origin, which it may confirm in small steps.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.budget.earn(bytes as u64);
    }

    /// Returns true if the connection may continue after these bytes from the origin.
    pub(super) fn admits(&mut self, bytes: &[u8]) -> bool {
        let Self {
            frames,
            budget,
            heads,
            head_bytes,
        } = self;
        let (mut cheap, mut content, mut fits) = (0, 0, true);
        frames.advance(bytes, |frame| {
            cheap += u64::from(frame.is_cheap());
            match frame.kind {
                DATA => content += frame.length as u64,
                HEADERS | CONTINUATION => fits &= count(heads, frame, *head_bytes),
                _ => {}
            }
            if frame.kind == RST_STREAM || frame.kind == DATA && frame.ends_stream() {
                heads.remove(&frame.stream);
            }
        });
        // Some origins measure the round trip with a PING now and then while they send content.
        budget.earn(content / CONTENT_PER_SENT);
        fits && budget.pay(cheap, Instant::now())
    }
}

/// Counts a field block; false if there were too many blocks, or the blocks are too large.
fn count(heads: &mut HashMap<u32, StreamHeads>, frame: FrameHead, head_bytes: usize) -> bool {
    if heads.len() >= STREAMS_MAX && !heads.contains_key(&frame.stream) {
        // Origins never close streams that we have reset, so their entries would stay.
        heads.clear();
    }
    let so_far = heads.entry(frame.stream).or_default();
    so_far.count += usize::from(frame.kind == HEADERS);
    so_far.bytes += frame.length;
    so_far.is_last |= frame.ends_stream();
    let fits = so_far.count <= BLOCKS_MAX && so_far.bytes <= 2 * head_bytes;
    if so_far.is_last && frame.flags & END_HEADERS != 0 {
        heads.remove(&frame.stream);
    }
    fits
}

/// Interim responses, the final response and trailers.
const BLOCKS_MAX: usize = INTERIM_MAX + 2;
/// Maximum number of streams remembered.
const STREAMS_MAX: usize = 4096;
/// This many content bytes count as one byte sent.
const CONTENT_PER_SENT: u64 = 16;

/// Maximum number of interim responses to a request; more are a fault or an attack.
pub(super) const INTERIM_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
        frame.resize(9 + usize::from(length), 0);
        frame
    }

    fn flood() -> FloodGuard {
        FloodGuard::new(&Limits::default())
    }

    #[tokio::test]
    async fn more_interim_responses_than_a_request_may_have_end_the_connection() {
        let mut flood = flood();
        for _ in 0..INTERIM_MAX {
            assert!(flood.admits(&frame(HEADERS, 4, 1, 20)));
        }
        assert!(
            flood.admits(&frame(HEADERS, 4, 1, 20)),
            "the final response"
        );
        assert!(flood.admits(&frame(HEADERS, 4, 3, 20)), "another request");
        assert!(flood.admits(&frame(DATA, 0, 1, 200)));
        assert!(flood.admits(&frame(HEADERS, 5, 1, 20)), "trailers");
        assert!(flood.heads.len() == 1, "what has ended is forgotten");
        for _ in 0..INTERIM_MAX + 1 {
            assert!(flood.admits(&frame(HEADERS, 4, 3, 20)));
        }
        assert!(!flood.admits(&frame(HEADERS, 4, 3, 20)));
    }

    #[tokio::test]
    async fn field_blocks_without_end_end_the_connection() {
        let mut flood = flood();
        assert!(flood.admits(&frame(HEADERS, 0, 1, 200)));
        // The budget pays for each of them too, and has room for more than these.
        let fits = (0..1000).take_while(|_| flood.admits(&frame(CONTINUATION, 0, 1, 250)));
        let bytes = 200 + fits.count() * 250;
        assert!(bytes <= 2 * (64 << 10) && bytes > 64 << 10, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn frames_for_nothing_are_bounded_and_earned_by_time_and_content() {
        let mut flood = flood();
        let most = Limits::default().frames;
        let unknown = frame(0xfa, 0, 0, 0);
        for _ in 0..most {
            assert!(flood.admits(&unknown));
        }
        assert!(!flood.admits(&unknown));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(flood.admits(&unknown));
        let mut flood = self::flood();
        for _ in 0..most {
            flood.admits(&unknown);
        }
        flood.sent(4 << 10);
        assert!(flood.admits(&unknown), "it confirms what it was sent");
    }
}
