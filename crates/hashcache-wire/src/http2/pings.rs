//! The round-trip time of an HTTP/2 connection, measured by the PINGs that hyper sends anyway.
//!
//! Used on both sides of a link, above TLS: `flow` on the parent, `linked` in `hashcache-upstream`
//! on the child.
//!
//! Cost: nine bytes examined per frame.

use std::time::Duration;

use tokio::time::Instant;

use super::frames::{FrameHead, Frames};

/// Matches PINGs with their acknowledgements.
#[derive(Debug)]
pub struct Pings {
    sent: Frames,
    received: Frames,
    asked_at: Option<Instant>,
}

/// Information from the frames of the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Time from a PING to the acknowledgement, if it has arrived.
    pub round_trip: Option<Duration>,
    /// The other side accepts no more requests on this connection (GOAWAY).
    pub goes_away: bool,
}

impl Pings {
    /// For the side that connects.
    pub fn of_client() -> Self {
        Self {
            sent: Frames::of_client(),
            received: Frames::of_server(),
            asked_at: None,
        }
    }

    /// For the side that accepts.
    pub(crate) fn of_server() -> Self {
        Self {
            sent: Frames::of_server(),
            received: Frames::of_client(),
            asked_at: None,
        }
    }

    /// Records sent bytes.
    pub fn note_sent(&mut self, bytes: &[u8]) {
        let asked_at = &mut self.asked_at;
        self.sent.advance(bytes, |frame| {
            if is_ping(frame, false) {
                asked_at.get_or_insert_with(Instant::now);
            }
        });
    }

    /// Records received bytes.
    pub fn note_received(&mut self, bytes: &[u8]) -> Heard {
        let mut heard = Heard::default();
        let asked_at = &mut self.asked_at;
        self.received.advance(bytes, |frame| {
            if is_ping(frame, true) {
                heard.round_trip = asked_at.take().map(|at| at.elapsed());
            }
            heard.goes_away |= frame.kind == GOAWAY;
        });
        heard
    }
}

fn is_ping(frame: FrameHead, is_answer: bool) -> bool {
    frame.kind == PING && (frame.flags & ACK != 0) == is_answer
}

const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(flags: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, 8, PING, flags, 0, 0, 0, 0];
        frame.resize(9 + 8, 0);
        frame
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_trip_is_the_time_from_a_ping_to_its_answer() {
        let mut pings = Pings::of_server();
        pings.note_received(super::super::PREFACE);
        assert_eq!(pings.note_received(&ping(ACK)), Heard::default(), "unasked");
        pings.note_sent(&ping(ACK));
        pings.note_sent(&ping(0));
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(pings.note_received(&ping(0)).round_trip, None, "its own");
        let heard = pings.note_received(&ping(ACK));
        assert_eq!(heard.round_trip, Some(Duration::from_millis(600)));
        assert!(!heard.goes_away);
        assert!(
            pings
                .note_received(&[0, 0, 0, GOAWAY, 0, 0, 0, 0, 0])
                .goes_away
        );
    }
}
