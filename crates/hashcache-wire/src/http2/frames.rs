//! HTTP/2 frame boundaries, and the cost of frames.
//!
//! `flow` uses it for client frames and `flood` in `hashcache-upstream` for origin frames; hyper
//! and h2 read the same bytes afterwards.
//!
//! Cost: nine bytes examined per frame.

use std::ops::Range;

use tokio::time::Instant;

/// Parser position in the frames from a single side.
#[derive(Debug)]
pub struct Frames {
    /// Remaining bytes of the preface.
    preface: usize,
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Remaining bytes of the frame payload.
    payload: usize,
    block: FieldBlock,
}

/// State of a field block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldBlock {
    None,
    /// More frames with parts of the block follow.
    Open,
    /// The current frame is the last of the block.
    Ends,
}

/// A frame head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Frame type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Stream number; 0 for the connection.
    pub stream: u32,
    /// Length of the payload.
    pub length: usize,
}

impl FrameHead {
    /// Returns true if the sender sends nothing more on the stream.
    pub fn ends_stream(self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// Returns true if the frame costs the sender almost nothing.
    pub fn is_cheap(self) -> bool {
        match self.kind {
            DATA => self.length == 0 && !self.ends_stream(),
            HEADERS => false,
            _ => true,
        }
    }
}

impl Frames {
    /// For client frames, which start with the preface.
    pub fn of_client() -> Self {
        Self {
            preface: PREFACE.len(),
            ..Self::of_server()
        }
    }

    /// For server frames.
    pub fn of_server() -> Self {
        Self {
            preface: 0,
            head: [0; FRAME_HEAD],
            have: 0,
            payload: 0,
            block: FieldBlock::None,
        }
    }
}

/// Totals over some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Frames that cost the sender almost nothing.
    pub(super) cheap: u64,
    /// Bytes of content, padding included.
    pub(super) content: u64,
    /// Request heads, including trailers.
    pub(super) heads: u64,
}

impl Seen {
    pub(super) fn add(&mut self, frame: FrameHead) {
        self.cheap += u64::from(frame.is_cheap());
        self.heads += u64::from(frame.kind == HEADERS);
        if frame.kind == DATA {
            self.content += frame.length as u64;
        }
    }
}

impl Frames {
    /// Continues with these bytes; calls `begun` for each frame head that they complete.
    pub fn advance(&mut self, bytes: &[u8], mut begun: impl FnMut(FrameHead)) {
        self.advance_while(bytes, |frame| {
            begun(frame);
            true
        });
    }

    /// As [`Self::advance`], but stops after the first frame head for which `goes_on` returns
    /// false. Returns the number of bytes up to that position.
    pub fn advance_while(
        &mut self,
        mut bytes: &[u8],
        mut goes_on: impl FnMut(FrameHead) -> bool,
    ) -> usize {
        let all = bytes.len();
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            let payload = self.payload.min(bytes.len());
            self.payload -= payload;
            bytes = &bytes[payload..];
            if self.payload == 0 && self.block == FieldBlock::Ends && self.have == 0 {
                self.block = FieldBlock::None;
            }
            let head = (FRAME_HEAD - self.have).min(bytes.len());
            if self.payload > 0 || head == 0 {
                continue;
            }
            self.head[self.have..self.have + head].copy_from_slice(&bytes[..head]);
            self.have += head;
            bytes = &bytes[head..];
            if self.have == FRAME_HEAD {
                self.have = 0;
                if !goes_on(self.begin()) {
                    break;
                }
            }
        }
        all - bytes.len()
    }

    /// Parses a complete frame head.
    fn begin(&mut self) -> FrameHead {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let ends_head = flags & END_HEADERS != 0;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block = match (ends_head, self.payload) {
                (true, 0) => FieldBlock::None,
                (true, _) => FieldBlock::Ends,
                (false, _) => FieldBlock::Open,
            };
        }
        FrameHead {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & u32::MAX >> 1,
            length: self.payload,
        }
    }

    /// Bytes up to the end of the current frame.
    pub(super) fn left(&self) -> usize {
        let of_head = match self.have {
            0 => 0,
            have => FRAME_HEAD - have,
        };
        self.payload + of_head
    }

    /// Returns true if another frame may be inserted here.
    pub(super) fn is_between(&self) -> bool {
        self.have == 0 && self.payload == 0 && !self.is_in_head()
    }

    pub(super) fn is_in_head(&self) -> bool {
        self.preface > 0
            || (self.block != FieldBlock::None
                && (self.payload > 0 || self.block == FieldBlock::Open))
    }
}

/// The position of the field block in the payload of a HEADERS frame with these flags; `None` if
/// padding and priority do not fit into the payload.
pub fn unpadded(flags: u8, payload: &[u8]) -> Option<Range<usize>> {
    let (padding, length) = match flags & PADDED {
        0 => (0, 0),
        _ => (usize::from(*payload.first()?), 1),
    };
    let priority = match flags & PRIORITY {
        0 => 0,
        _ => PRIORITY_BYTES,
    };
    let range = length + priority..payload.len().checked_sub(padding)?;
    (range.start <= range.end).then_some(range)
}

/// The number of cheap frames that the other side may still send.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    left: u64,
    since: Instant,
    /// Bytes sent to the other side that are not yet converted into frames.
    sent: u64,
}

impl Budget {
    /// A full budget with `most` frames.
    pub fn new(most: u64, now: Instant) -> Self {
        Self {
            most,
            left: most,
            since: now,
            sent: 0,
        }
    }

    /// Records that `bytes` were sent to the other side.
    pub fn earn(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Returns true if the budget covers `frames` more.
    pub fn pay(&mut self, frames: u64, now: Instant) -> bool {
        let seconds = now.duration_since(self.since).as_secs();
        self.since += std::time::Duration::from_secs(seconds);
        // Sent bytes earn frames, because a receiver of much content confirms it with many small
        // WINDOW_UPDATEs.
        let by_time = seconds.saturating_mul(self.most.div_ceil(CHEAP_SECONDS));
        let earned = by_time.saturating_add(self.sent / BYTES_PER_CHEAP);
        self.sent %= BYTES_PER_CHEAP;
        self.left = self.left.saturating_add(earned).min(self.most);
        let paid = self.left.checked_sub(frames);
        self.left = paid.unwrap_or(0);
        paid.is_some()
    }
}

/// The client connection preface (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Type of a frame with content (RFC 9113, section 6.1).
pub const DATA: u8 = 0;
/// Type of a frame that starts a field block (section 6.2).
pub const HEADERS: u8 = 1;
/// Type of a frame that resets a stream (section 6.4).
pub const RST_STREAM: u8 = 3;
/// Type of a frame that continues a field block (section 6.10).
pub const CONTINUATION: u8 = 9;

/// Flag: nothing more follows on the stream.
pub const END_STREAM: u8 = 1;
/// Flag: the payload has padding.
pub const PADDED: u8 = 8;
pub(super) const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;
/// Flag: the frame completes the field block.
pub const END_HEADERS: u8 = 4;
/// Length of a frame head in bytes.
pub const FRAME_HEAD: usize = 9;

/// Seconds in which an empty budget refills.
const CHEAP_SECONDS: u64 = 16;
/// Sent bytes that earn a frame: some clients confirm every 4 KiB, and twice.
const BYTES_PER_CHEAP: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(length: usize, kind: u8, flags: u8) -> Vec<u8> {
        let length_bytes = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = length_bytes[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(FRAME_HEAD + length, 0xff);
        frame
    }

    #[test]
    fn frames_are_told_apart_however_they_are_cut() {
        let mut bytes = PREFACE.to_vec();
        for (length, kind, flags) in [
            (0, 4, 0), // SETTINGS
            (300, HEADERS, 4),
            (1000, DATA, 0),
            (0, DATA, 0), // for nothing
            (0, DATA, 1), // the end
            (8, 6, 0),    // PING
            (70, HEADERS, 0),
            (5, CONTINUATION, 4),
            (4, 3, 0), // RST_STREAM
        ] {
            bytes.extend(frame(length, kind, flags));
        }
        for step in [1, 2, 7, 64, bytes.len()] {
            let mut frames = Frames::of_client();
            let mut all = Seen::default();
            for part in bytes.chunks(step) {
                frames.advance(part, |frame| all.add(frame));
            }
            let expected = Seen {
                cheap: 5,
                content: 1000,
                heads: 2,
            };
            assert_eq!(all, expected, "cut every {step} bytes");
            assert!(!frames.is_in_head());
        }
    }

    #[test]
    fn reading_may_stop_behind_the_head_of_any_frame() {
        let bytes = [
            frame(20, HEADERS, 4),
            frame(5, DATA, 0),
            frame(20, HEADERS, 4),
        ]
        .concat();
        let mut frames = Frames::of_server();
        let first = frames.advance_while(&bytes, |_| false);
        assert_eq!(first, FRAME_HEAD);
        assert!(frames.is_in_head());
        let mut kinds = Vec::new();
        let rest = frames.advance_while(&bytes[first..], |frame| {
            kinds.push(frame.kind);
            true
        });
        assert_eq!((first + rest, kinds), (bytes.len(), vec![DATA, HEADERS]));
        assert!(!frames.is_in_head());
    }

    #[test]
    fn a_head_is_under_way_until_its_last_byte() {
        let mut frames = Frames::of_client();
        assert!(frames.is_in_head(), "the preface is missing");
        frames.advance(PREFACE, |_| ());
        assert!(!frames.is_in_head());
        let head = frame(20, HEADERS, 4);
        frames.advance(&head[..head.len() - 1], |_| ());
        assert!(frames.is_in_head());
        frames.advance(&head[head.len() - 1..], |_| ());
        assert!(!frames.is_in_head());
        frames.advance(&frame(20, HEADERS, 0), |_| ());
        assert!(frames.is_in_head(), "no END_HEADERS yet");
        frames.advance(&frame(20, CONTINUATION, 4), |_| ());
        assert!(!frames.is_in_head());
    }

    #[tokio::test(start_paused = true)]
    async fn cheap_frames_are_bounded_and_earned_by_time_and_content() {
        let mut budget = Budget::new(160, Instant::now());
        assert!(budget.pay(160, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(budget.pay(20, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
        budget.sent = 10 * BYTES_PER_CHEAP;
        assert!(budget.pay(10, Instant::now()));
        assert!(!budget.pay(1, Instant::now()));
    }
}
