//! The HTTP/2 frames in which both sides of a link report the bytes that they have read: see
//! `turns`.
//!
//! | bytes | meaning |
//! |---|---|
//! | 9 | head of a frame: type 0xf8, stream 0 |
//! | 1 | 0: this side acknowledges; 1: acknowledgements |
//! | 4 | with 0: the connection's window, bytes |
//! | 12 each | with 1: a request number (8), bytes that were read (4; all bits set: all) |
//!
//! Numbers have the most significant byte first. The type is not registered; a side that does not
//! know the type ignores such frames (RFC 9113, sections 4.1 and 5.5).
//!
//! Used on both sides, below hyper: by `http2/flow` in `hashcache-wire` on the parent, by `linked`
//! in `hashcache-upstream` on the child. hyper does not see frames that are written here; received
//! frames pass to hyper, and h2 drops them.
//!
//! Invariants: a frame is written only between two hyper frames, outside a field block, and after
//! the first frame, which is SETTINGS. Malformed frames are ignored.
//! Cost: nine bytes examined per frame in either direction.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::turns::{Ack, Turns};

/// A connection's frames.
#[derive(Debug)]
pub struct TurnFrames {
    turns: Arc<Turns>,
    sent: Walk,
    received: Walk,
    /// The frame that is being written, from `written` on.
    own: Vec<u8>,
    written: usize,
    has_begun: bool,
    /// The payload of the frame that is being read.
    payload: Vec<u8>,
}

/// A position in the frames of a direction.
#[derive(Debug)]
struct Walk {
    /// Missing bytes of the preface.
    preface: usize,
    head: [u8; HEAD],
    have: usize,
    /// Missing bytes of the payload.
    missing: usize,
    kind: u8,
    /// More frames from a field block follow.
    is_in_block: bool,
    frames: u64,
}

impl Walk {
    fn new(preface: usize) -> Self {
        Self {
            preface,
            head: [0; HEAD],
            have: 0,
            missing: 0,
            kind: 0,
            is_in_block: false,
            frames: 0,
        }
    }

    /// Returns true if our own frame may start here.
    fn is_between(&self) -> bool {
        let is_at_head = self.preface == 0 && self.have == 0 && self.missing == 0;
        is_at_head && !self.is_in_block && self.frames > 0
    }

    /// Continues with `bytes`. `payload` gets the pieces from frames with our type, and true for a
    /// frame's last piece.
    fn advance(&mut self, mut bytes: &[u8], mut payload: impl FnMut(&[u8], bool)) {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.missing > 0 {
                let (now, rest) = bytes.split_at(self.missing.min(bytes.len()));
                self.missing -= now.len();
                bytes = rest;
                if self.kind == TURNS {
                    payload(now, self.missing == 0);
                }
                continue;
            }
            let (now, rest) = bytes.split_at((HEAD - self.have).min(bytes.len()));
            self.head[self.have..self.have + now.len()].copy_from_slice(now);
            self.have += now.len();
            bytes = rest;
            if self.have == HEAD {
                let [a, b, c, kind, flags, ..] = self.head;
                self.missing = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                (self.kind, self.have) = (kind, 0);
                self.frames += 1;
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.is_in_block = flags & END_HEADERS == 0;
                }
            }
        }
    }
}

impl TurnFrames {
    /// For the side that connects.
    pub fn of_client(turns: &Arc<Turns>) -> Self {
        Self::new(turns, [PREFACE_BYTES, 0])
    }

    /// For the side that accepts.
    pub fn of_server(turns: &Arc<Turns>) -> Self {
        Self::new(turns, [0, PREFACE_BYTES])
    }

    fn new(turns: &Arc<Turns>, [sent, received]: [usize; 2]) -> Self {
        Self {
            turns: Arc::clone(turns),
            sent: Walk::new(sent),
            received: Walk::new(received),
            own: Vec::new(),
            written: 0,
            has_begun: false,
            payload: Vec::new(),
        }
    }

    /// Notes bytes from hyper that the socket has accepted.
    pub fn note_sent(&mut self, bytes: &[u8]) {
        self.sent.advance(bytes, |_, _| ());
    }

    /// Notes bytes that were received.
    pub fn note_received(&mut self, bytes: &[u8]) {
        let Self {
            received,
            payload,
            turns,
            ..
        } = self;
        received.advance(bytes, |piece, is_last| {
            let room = PAYLOAD_MAX.saturating_sub(payload.len());
            payload.extend_from_slice(&piece[..piece.len().min(room)]);
            if is_last {
                note(turns, payload);
                payload.clear();
            }
        });
    }

    /// Writes the frames that this side has to send, if hyper is between two frames. Called before
    /// hyper writes and when hyper flushes.
    pub fn poll_write_own<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.sent.is_between() {
            return Poll::Ready(Ok(()));
        }
        loop {
            while self.written < self.own.len() {
                let rest = &self.own[self.written..];
                let written = ready!(Pin::new(&mut *socket).poll_write(cx, rest))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += written;
            }
            self.own.clear();
            self.written = 0;
            self.begin_own(cx);
            if self.own.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn begin_own(&mut self, cx: &Context<'_>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.begin_frame(5, 0);
            self.own.extend(self.turns.window().to_be_bytes());
            return;
        }
        let acks = self.turns.take_acks(ACKS_MAX, cx.waker());
        if acks.is_empty() {
            return;
        }
        self.begin_frame(1 + ACK * acks.len(), 1);
        for (number, ack) in acks {
            let bytes = match ack {
                Ack::Bytes(bytes) => bytes.min(u32::MAX - 1),
                Ack::All => u32::MAX,
            };
            self.own.extend(number.to_be_bytes());
            self.own.extend(bytes.to_be_bytes());
        }
    }

    fn begin_frame(&mut self, length: usize, what: u8) {
        let length = u16::try_from(length).expect("at most ACKS_MAX acknowledgements");
        let [high, low] = length.to_be_bytes();
        self.own.extend([0, high, low, TURNS, 0, 0, 0, 0, 0, what]);
    }
}

/// Applies a frame from the other side.
fn note(turns: &Turns, payload: &[u8]) {
    match payload {
        [0, window @ ..] => {
            if let Some(window) = window.first_chunk() {
                turns.begin(u32::from_be_bytes(*window));
            }
        }
        [1, acks @ ..] => {
            for ack in acks.chunks_exact(ACK) {
                let (number, bytes) = ack.split_at(8);
                let number = number.first_chunk().map(|it| u64::from_be_bytes(*it));
                let bytes = bytes.first_chunk().map(|it| u32::from_be_bytes(*it));
                if let (Some(number), Some(bytes)) = (number, bytes) {
                    let ack = match bytes {
                        u32::MAX => Ack::All,
                        bytes => Ack::Bytes(bytes),
                    };
                    turns.acknowledged(number, ack);
                }
            }
        }
        _ => {}
    }
}

const TURNS: u8 = 0xf8;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const HEAD: usize = 9;
const PREFACE_BYTES: usize = 24;
const ACK: usize = 12;
/// Acknowledgements in one frame.
const ACKS_MAX: usize = 100;
/// Payload bytes beyond this limit are ignored.
const PAYLOAD_MAX: usize = 1 + ACK * ACKS_MAX;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + usize::from(length), TURNS);
        frame
    }

    /// Bytes that `frames` writes by itself after hyper has written `before`.
    fn own_after(frames: &mut TurnFrames, before: &[u8]) -> Vec<u8> {
        frames.note_sent(before);
        let mut written = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(frames.poll_write_own(&mut written, &mut cx).is_ready());
        written
    }

    #[test]
    fn what_one_end_has_read_the_other_end_hears_however_it_is_cut() {
        for step in [1, 2, 7, 100, 10_000] {
            let (near, far) = (Turns::new(1 << 20), Turns::new(2 << 20));
            let mut child = TurnFrames::of_client(&near);
            let mut parent = TurnFrames::of_server(&far);
            let hear = |frames: &mut TurnFrames, bytes: &[u8]| {
                bytes.chunks(step).for_each(|it| frames.note_received(it));
            };
            let preface = [vec![0; PREFACE_BYTES], frame(4, 0, 0)].concat();
            let hello = own_after(&mut child, &preface);
            assert_eq!(hello.len(), HEAD + 5);
            hear(&mut parent, &[preface, hello].concat());
            let settings = frame(4, 0, 0);
            let hello = own_after(&mut parent, &settings);
            hear(&mut child, &[settings, hello].concat());
            // The parent sends, and the child reads.
            let turn = near.next(3);
            let sending = far.send(turn);
            let cx = Context::from_waker(Waker::noop());
            sending.sent(900 << 10);
            assert!(sending.poll(&cx).is_pending(), "cut every {step} bytes");
            near.read(turn).read(900 << 10);
            let acks = own_after(&mut child, &frame(1, END_HEADERS, 20));
            assert_eq!(acks.len(), HEAD + 1 + ACK);
            hear(&mut parent, &[frame(0, 0, 200), acks].concat());
            assert!(sending.poll(&cx).is_ready(), "cut every {step} bytes");
        }
    }

    #[test]
    fn nothing_is_written_within_a_frame_or_a_field_block_of_hyper() {
        let mut frames = TurnFrames::of_client(&Turns::new(1 << 20));
        assert!(own_after(&mut frames, &[0; PREFACE_BYTES]).is_empty());
        let data = frame(0, 0, 50);
        assert!(own_after(&mut frames, &data[..20]).is_empty());
        assert!(own_after(&mut frames, &data[20..data.len() - 1]).is_empty());
        assert!(!own_after(&mut frames, &data[data.len() - 1..]).is_empty());
        let mut frames = TurnFrames::of_server(&Turns::new(1 << 20));
        assert!(own_after(&mut frames, &frame(1, 0, 10)).is_empty());
        assert!(!own_after(&mut frames, &frame(9, END_HEADERS, 10)).is_empty());
    }

    #[test]
    fn any_payload_is_harmless() {
        let turns = Turns::new(1 << 20);
        let mut frames = TurnFrames::of_server(&turns);
        frames.note_received(&[0; PREFACE_BYTES]);
        for payload in [
            &[][..],
            &[0],
            &[0, 1],
            &[1],
            &[1, 2, 3],
            &[9; 255],
            &[1; 255],
        ] {
            let length = u8::try_from(payload.len()).unwrap();
            let mut bytes = vec![0, 0, length, TURNS, 0xff, 0xff, 0, 0, 9];
            bytes.extend_from_slice(payload);
            frames.note_received(&bytes);
        }
        let long = [&[1, 0, 0, TURNS, 0, 0, 0, 0, 0][..], &[1; 1 << 16]].concat();
        frames.note_received(&long);
        assert!(frames.payload.capacity() <= 4 * PAYLOAD_MAX);
    }
}
