//! The frames of an origin, before h2 reads them: field blocks, and short frames of content.
//!
//! `meter` passes the bytes read from a connection. h2 closes the connection, and so drops the
//! responses to all clients, for octets in a field that concern only a single response, and for a
//! malformed field in a block with several frames. So each block is gathered and decoded (`hpack`),
//! the message is checked (`message`), and the block is written again in a form that needs no
//! table. A message that must not be used is replaced by a marker block, which `http2` treats as an
//! error of that stream only.
//!
//! h2 also closes the connection for too many empty frames of content, or too many short unread
//! frames. So empty frames are left out, and short frames are merged while their reader is behind
//! (`small_frames`).
//!
//! Invariants: other frames pass unchanged and in order. A block is trailers if a final head
//! arrived before it on the stream. Content without a head gets a malformed head. A block has at
//! most the bytes that `flood` allows to a stream, and is decoded to at most the size of a head.
//! Per stream less than `MERGED_MIN` content bytes are kept back, until the reader has caught up.
//! Cost: nine bytes examined per frame, two copies of each block, and one copy of the bytes that
//! follow a block in the same read.

mod hpack;
mod huffman;
mod message;
mod small_frames;

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use bytes::{Buf as _, BytesMut};
use hashcache_wire::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS, PADDED, RST_STREAM, unpadded,
};
use tokio::io::ReadBuf;

use self::hpack::{Decoder, NoBlock};
use self::message::{BlockKind, Message};
use self::small_frames::{MERGED_MIN, is_small};

pub(super) use self::message::take_malformed;
pub(super) use self::small_frames::{SmallFrames, SmallReader};

/// The frames on a connection.
#[derive(Debug)]
pub(super) struct FieldBlocks {
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Missing bytes of the frame's payload.
    payload: usize,
    /// True if the frame belongs to `block`.
    is_of_block: bool,
    block: Option<Block>,
    /// True if the frame is content that is not passed as a separate frame.
    is_merged: bool,
    /// Short frames of streams with a reader that is behind: at most `MERGED_MAX` streams.
    merged: BTreeMap<u32, Vec<u8>>,
    /// Streams with a reader that has caught up while another frame was in progress.
    due: Vec<u32>,
    small: SmallFrames,
    /// Maximum size for the fields in a head, bytes.
    head_bytes: usize,
    decoder: Decoder,
    answered: AnsweredStreams,
    /// Bytes that h2 has not read.
    waiting: BytesMut,
    /// h2 must close the connection: no further bytes are passed on.
    is_over: bool,
}

/// Streams with a final head, but without an end so far.
#[derive(Debug, Default)]
struct AnsweredStreams {
    /// At most `STREAMS_MAX`.
    known: BTreeSet<u32>,
    /// Streams up to this number may have been forgotten.
    forgotten: u32,
}

/// A field block that is incomplete.
#[derive(Debug)]
struct Block {
    stream: u32,
    flags: u8,
    kind: BlockKind,
    has_first_frame: bool,
    is_last_frame: bool,
    octets: Vec<u8>,
}

impl FieldBlocks {
    /// For heads of at most `head_bytes`, as RFC 9113, section 6.5.2, counts them; `small` knows
    /// which content was read.
    pub(super) fn new(head_bytes: usize, small: SmallFrames) -> Self {
        Self {
            head: [0; FRAME_HEAD],
            have: 0,
            payload: 0,
            is_of_block: false,
            block: None,
            is_merged: false,
            merged: BTreeMap::new(),
            due: Vec::new(),
            small,
            head_bytes,
            decoder: Decoder::new(),
            answered: AnsweredStreams::default(),
            waiting: BytesMut::new(),
            is_over: false,
        }
    }

    /// Moves waiting bytes into `buffer`; false if there are none. `connection` is woken when there
    /// are waiting bytes.
    pub(super) fn read(&mut self, buffer: &mut ReadBuf<'_>, connection: &Waker) -> bool {
        self.due.extend(self.small.take_due(connection));
        // Nothing may be inserted into a frame if h2 has read a part.
        if self.payload == 0 || self.is_of_block || self.is_merged {
            self.pass_due();
        }
        let bytes = self.waiting.len().min(buffer.remaining());
        buffer.put_slice(&self.waiting[..bytes]);
        self.waiting.advance(bytes);
        if self.waiting.is_empty() {
            // Blocks are rare after the first block, and this memory is not accounted for.
            self.waiting = BytesMut::new();
        }
        bytes > 0
    }

    /// Removes from `buffer`, among the bytes from `before` on, those that h2 must not read yet.
    /// Returns true if any are left.
    pub(super) fn pass(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> bool {
        if self.is_over {
            buffer.set_filled(before);
            return false;
        }
        let unchanged = self.unchanged(&buffer.filled()[before..]);
        self.rewrite(&buffer.filled()[before + unchanged..]);
        buffer.set_filled(before + unchanged);
        unchanged > 0
    }

    /// Returns the length of the prefix of `bytes` that may pass unchanged.
    fn unchanged(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            if self.have > 0 || self.block.is_some() || self.is_merged {
                return at;
            }
            let payload = self.payload.min(bytes.len() - at);
            self.payload -= payload;
            at += payload;
            let Some(head) = bytes[at..].first_chunk() else {
                return at;
            };
            if self.payload > 0 || !self.passes(head) {
                return at;
            }
            self.head = *head;
            self.begin();
            at += FRAME_HEAD;
        }
    }

    /// Returns true if a frame with this head passes unchanged, and with nothing before it.
    fn passes(&self, head: &[u8; FRAME_HEAD]) -> bool {
        let [.., kind, _, a, b, c, d] = *head;
        let stream = stream_of([a, b, c, d]);
        let is_content = match kind {
            DATA => self.merged_by(head).is_none() && !self.answered.lacks(stream),
            _ => !matches!(kind, HEADERS | CONTINUATION),
        };
        is_content && self.due.is_empty() && !self.merged.contains_key(&stream)
    }

    /// Returns the stream to which the content of a frame with this head is added, if the frame
    /// must not pass as a separate frame.
    fn merged_by(&self, head: &[u8; FRAME_HEAD]) -> Option<u32> {
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let stream = stream_of(stream);
        if kind != DATA || flags & (END_STREAM | PADDED) != 0 {
            return None;
        }
        let is_merged = match payload_of([a, b, c]) {
            0 => true,
            bytes if is_small(bytes) => {
                self.merged.contains_key(&stream) || self.small.is_behind(stream)
            }
            _ => false,
        };
        is_merged.then_some(stream)
    }

    /// Passes on merged content for the streams that are due.
    fn pass_due(&mut self) {
        for stream in std::mem::take(&mut self.due) {
            self.pass_merged(stream);
        }
    }

    /// Passes on the merged content of `stream`.
    fn pass_merged(&mut self, stream: u32) {
        let Some(content) = self.merged.remove(&stream) else {
            return;
        };
        if is_small(content.len()) {
            self.small.note_passed(stream);
        }
        write_frame(&mut self.waiting, (DATA, 0, stream), &content);
    }

    /// Called when a merged content frame is complete.
    fn end_merged(&mut self, stream: u32) {
        self.is_merged = false;
        let bytes = self.merged.get(&stream).map_or(0, Vec::len);
        // The reader may have caught up while the frame arrived: then nothing would make the stream
        // due.
        if bytes >= MERGED_MIN || !self.small.is_behind(stream) {
            self.pass_merged(stream);
        }
        // The oldest stream first: the reader may have left long ago, and the origin never closes
        // it.
        if self.merged.len() > MERGED_MAX
            && let Some((&oldest, _)) = self.merged.first_key_value()
        {
            self.pass_merged(oldest);
        }
    }

    /// Adds `bytes`, with rewritten blocks, to the bytes that h2 reads next.
    fn rewrite(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.payload == 0 {
                let taken = (FRAME_HEAD - self.have).min(bytes.len());
                self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                bytes = &bytes[taken..];
                if self.have < FRAME_HEAD {
                    return;
                }
                self.have = 0;
                self.begin();
                if !self.is_of_block && !self.is_merged {
                    self.waiting.extend_from_slice(&self.head);
                }
            } else {
                let part;
                (part, bytes) = bytes.split_at(self.payload.min(bytes.len()));
                self.payload -= part.len();
                match &mut self.block {
                    Some(block) if self.is_of_block => block.octets.extend_from_slice(part),
                    _ if self.is_merged => {
                        let merged = self.merged.entry(self.stream()).or_default();
                        merged.extend_from_slice(part);
                    }
                    _ => self.waiting.extend_from_slice(part),
                }
            }
            if self.payload == 0 && self.is_of_block {
                self.end_frame();
                if self.waiting.len() > WAITING_MAX {
                    self.end_connection(self.stream());
                    self.is_over = true;
                    return;
                }
            } else if self.payload == 0 && self.is_merged {
                self.end_merged(self.stream());
            }
        }
    }

    /// The frame's stream.
    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.head;
        stream_of([a, b, c, d])
    }

    /// Called when a frame head is complete.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        let stream = self.stream();
        self.payload = payload_of([a, b, c]);
        self.pass_due();
        self.is_merged = self.merged_by(&self.head).is_some();
        if !self.is_merged && matches!(kind, DATA | HEADERS | RST_STREAM) {
            self.pass_merged(stream);
        }
        self.is_of_block = match kind {
            HEADERS if self.block.is_none() => {
                self.block = Some(Block {
                    stream,
                    flags,
                    kind: self.answered.kind_of_next(stream),
                    has_first_frame: false,
                    is_last_frame: flags & END_HEADERS != 0,
                    octets: Vec::new(),
                });
                true
            }
            CONTINUATION => match &mut self.block {
                Some(block) if block.stream == stream => {
                    block.is_last_frame = flags & END_HEADERS != 0;
                    true
                }
                _ => false,
            },
            _ => false,
        };
        if !self.is_of_block && self.block.take().is_some() {
            // No other frame may be inside a block.
            self.end_connection(stream);
        }
        if kind == DATA && self.answered.lacks(stream) {
            let head = (HEADERS, END_HEADERS, stream);
            write_frame(&mut self.waiting, head, &Message::headless().block);
            self.answered.add(stream);
        }
        // For a padded frame h2 counts only the content, and the content length is not known here.
        if kind == DATA && !self.is_merged && flags & PADDED == 0 && is_small(self.payload) {
            self.small.note_passed(stream);
        }
        let is_end = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if is_end || kind == RST_STREAM {
            self.answered.known.remove(&stream);
            self.small.forget(stream);
        }
    }

    /// Called when a block frame is complete.
    fn end_frame(&mut self) {
        self.is_of_block = false;
        let Some(block) = &mut self.block else {
            return;
        };
        let is_first = !std::mem::replace(&mut block.has_first_frame, true);
        let is_framed = !is_first || block.strip();
        if is_framed && !block.is_last_frame {
            return;
        }
        let Some(block) = self.block.take() else {
            return;
        };
        let mut message = Message::new(block.kind, self.head_bytes);
        let decoded = if is_framed {
            self.decoder
                .decode(&block.octets, |field| message.add(field))
        } else {
            Err(NoBlock)
        };
        if decoded.is_err() {
            return self.end_connection(block.stream);
        }
        let written = message.written();
        let flags = block.flags & END_STREAM;
        if written.is_final_head && flags == 0 {
            self.answered.add(block.stream);
        }
        let head = (HEADERS, flags | END_HEADERS, block.stream);
        write_frame(&mut self.waiting, head, &written.block);
    }

    /// Makes h2 close the connection: no later block can be decoded.
    fn end_connection(&mut self, stream: u32) {
        write_frame(&mut self.waiting, (HEADERS, END_HEADERS, stream), NO_BLOCK);
    }
}

impl AnsweredStreams {
    fn add(&mut self, stream: u32) {
        // Origins never close streams that we have reset.
        if self.known.len() >= STREAMS_MAX
            && let Some(oldest) = self.known.pop_first()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.known.insert(stream);
    }

    fn kind_of_next(&self, stream: u32) -> BlockKind {
        if self.known.contains(&stream) {
            BlockKind::Trailers
        } else if stream <= self.forgotten {
            BlockKind::Unknown
        } else {
            BlockKind::Head
        }
    }

    /// Returns true if the stream has certainly no head.
    fn lacks(&self, stream: u32) -> bool {
        self.kind_of_next(stream) == BlockKind::Head
    }
}

impl Block {
    /// Removes padding and priority from the first frame; false if they do not fit in.
    fn strip(&mut self) -> bool {
        let Some(range) = unpadded(self.flags, &self.octets) else {
            return false;
        };
        self.octets.truncate(range.end);
        self.octets.drain(..range.start);
        true
    }
}

fn payload_of([a, b, c]: [u8; 3]) -> usize {
    usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
}

fn stream_of(octets: [u8; 4]) -> u32 {
    u32::from_be_bytes(octets) & u32::MAX >> 1
}

/// Writes a frame; the payload continues in CONTINUATION frames, and the last frame has the flag
/// END_HEADERS.
fn write_frame(waiting: &mut BytesMut, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) {
    let parts = payload.len().div_ceil(FRAME_MAX).max(1);
    let mut rest = payload;
    for number in 1..=parts {
        let (part, after) = rest.split_at(rest.len().min(FRAME_MAX));
        rest = after;
        let is_last = number == parts;
        let (kind, of_first) = match number {
            1 => (kind, flags & !END_HEADERS),
            _ => (CONTINUATION, 0),
        };
        let of_last = if is_last { flags & END_HEADERS } else { 0 };
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
        waiting.extend_from_slice(&length[1..]);
        waiting.extend_from_slice(&[kind, of_first | of_last]);
        waiting.extend_from_slice(&stream.to_be_bytes());
        waiting.extend_from_slice(part);
    }
}

/// Octets that are no field block: an index of 0 (RFC 7541, section 6.1).
const NO_BLOCK: &[u8] = &[0x80];
/// Maximum number of bytes that wait for h2. A few octets on the wire can expand to a 4 KiB field,
/// so an origin could fill memory with a single read.
const WAITING_MAX: usize = 2 << 20;
/// The largest payload that h2 accepts.
const FRAME_MAX: usize = 1 << 14;
/// Maximum number of streams remembered.
const STREAMS_MAX: usize = 4096;
/// Maximum number of streams with content that is kept back: eight times as many as a connection
/// has at once.
const MERGED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        write_frame(&mut bytes, (kind, flags, stream), payload);
        bytes.to_vec()
    }

    /// Bytes that h2 reads if `bytes` arrive in parts of `step`.
    fn passed(bytes: &[u8], step: usize) -> Vec<u8> {
        let (mut blocks, mut passed) = (
            FieldBlocks::new(100_000, SmallFrames::default()),
            Vec::new(),
        );
        for part in bytes.chunks(step) {
            let mut page = vec![0; 3 + step];
            let mut buffer = ReadBuf::new(&mut page);
            buffer.put_slice(b"old");
            buffer.put_slice(part);
            let has_some = blocks.pass(&mut buffer, 3);
            assert_eq!(has_some, buffer.filled().len() > 3);
            passed.extend(&buffer.filled()[3..]);
            loop {
                let mut page = [0; 7];
                let mut buffer = ReadBuf::new(&mut page);
                if !blocks.read(&mut buffer, Waker::noop()) {
                    break;
                }
                passed.extend(buffer.filled());
            }
        }
        passed
    }

    const STEPS: [usize; 5] = [1, 2, 8, 40, 100_000];
    const HEAD: &[u8] = b"\x08\x03200";

    #[test]
    fn blocks_are_written_again_and_other_frames_stay_however_they_are_cut() {
        let large = [b"\x88\0\x01x\x7f\x81\x7f".to_vec(), vec![b'v'; 16_384]].concat();
        let settings = frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]);
        let ping = frame(6, 1, 0, &[1; 8]);
        let bytes = [
            settings.clone(),
            // Padding, then priority.
            frame(HEADERS, 0x2c, 1, b"\x02.....\x88\0\0"),
            frame(DATA, 0, 1, b"content"),
            frame(HEADERS, 0, 3, b"\x88\x40\x01"),
            frame(CONTINUATION, 4, 3, b"x\x02a\x7f"),
            frame(DATA, 1, 3, b""),
            ping.clone(),
            frame(HEADERS, 5, 5, &large), // in two frames
            frame(HEADERS, 5, 1, b"\xbe"),
        ]
        .concat();
        let large = [HEAD, &large[1..]].concat();
        let expected = [
            settings,
            frame(HEADERS, 4, 1, HEAD),
            frame(DATA, 0, 1, b"content"),
            frame(HEADERS, 4, 3, &[HEAD, b"\0\x01x\x01a"].concat()),
            frame(DATA, 1, 3, b""),
            ping,
            frame(HEADERS, 1, 5, &large[..FRAME_MAX]),
            frame(CONTINUATION, 4, 5, &large[FRAME_MAX..]),
            frame(HEADERS, 5, 1, b"\0\x01x\x01a"),
        ]
        .concat();
        for step in STEPS {
            assert!(passed(&bytes, step) == expected, "cut every {step} bytes");
        }
    }

    #[test]
    fn a_malformed_block_of_many_frames_becomes_one_that_says_so() {
        let large = [b"\x88\0\x01x\x7f\x81\x7f".to_vec(), vec![b'v'; 16_384]].concat();
        for late in [&b"\x88"[..], b"\0\x0aconnection\0", b"\0\0\x01v"] {
            let bytes = [
                frame(HEADERS, 0, 1, &large),
                frame(CONTINUATION, 4, 1, late),
                frame(DATA, 1, 1, b"x"),
            ]
            .concat();
            for step in STEPS {
                let passed = passed(&bytes, step);
                assert_eq!(passed[3..10], [HEADERS, END_HEADERS, 0, 0, 0, 1, 0x88]);
                assert!(passed.len() < 100 && passed.ends_with(&frame(DATA, 1, 1, b"x")));
            }
        }
    }

    #[test]
    fn a_block_behind_a_final_head_is_trailers() {
        let bytes = [
            frame(HEADERS, 4, 1, b"\x08\x03103"),
            frame(HEADERS, 4, 1, HEAD),
            frame(HEADERS, 5, 1, b"\0\x01t\x01v"),
        ]
        .concat();
        for step in STEPS {
            assert_eq!(passed(&bytes, step), bytes);
        }
        // A stream that has ended or was reset is forgotten.
        let mut blocks = FieldBlocks::new(1000, SmallFrames::default());
        for end in [
            frame(DATA, 1, 1, b""),
            frame(RST_STREAM, 0, 1, &[0; 4]),
            frame(HEADERS, 5, 1, b""),
        ] {
            blocks.rewrite(&frame(HEADERS, 4, 1, HEAD));
            assert!(blocks.answered.known.contains(&1));
            blocks.rewrite(&end);
            assert!(blocks.answered.known.is_empty());
        }
    }

    #[test]
    fn streams_that_never_end_take_no_more_than_their_room() {
        let mut blocks = FieldBlocks::new(1000, SmallFrames::default());
        for stream in (0..).map(|n| 2 * n + 1).take(STREAMS_MAX + 10) {
            blocks.rewrite(&frame(HEADERS, 4, stream, HEAD));
        }
        assert_eq!(blocks.answered.known.len(), STREAMS_MAX);
        // Both blocks of a stream that may have been forgotten pass, and its content.
        for bytes in [
            frame(HEADERS, 4, 1, HEAD),
            frame(DATA, 0, 3, b"x"),
            frame(HEADERS, 5, 3, b"\0\x01t\x01v"),
        ] {
            blocks.waiting.clear();
            blocks.rewrite(&bytes);
            assert_eq!(blocks.waiting, bytes);
        }
    }

    #[test]
    fn content_without_a_head_gets_a_malformed_one() {
        let hints = frame(HEADERS, 4, 1, b"\x08\x03103");
        let content = frame(DATA, 0, 1, b"x");
        let bytes = [hints.clone(), content.clone(), content.clone()].concat();
        let head = frame(HEADERS, 4, 1, &Message::headless().block);
        let expected = [hints, head, content.clone(), content].concat();
        for step in STEPS {
            assert_eq!(passed(&bytes, step), expected, "cut every {step} bytes");
        }
    }

    /// Reads what waits.
    fn waiting(blocks: &mut FieldBlocks) -> Vec<u8> {
        let mut page = vec![0; 1 << 20];
        let mut buffer = ReadBuf::new(&mut page);
        blocks.read(&mut buffer, Waker::noop());
        buffer.filled().to_vec()
    }

    #[test]
    fn short_frames_are_merged_while_their_reader_is_behind() {
        let small = SmallFrames::default();
        let mut blocks = FieldBlocks::new(1000, small.clone());
        blocks.rewrite(&frame(HEADERS, 4, 1, HEAD));
        blocks.rewrite(&frame(HEADERS, 4, 3, HEAD));
        waiting(&mut blocks);
        let event = frame(DATA, 0, 1, b"an event\n");
        let other = frame(DATA, 0, 3, b"of another stream");
        let mut passed = Vec::new();
        for _ in 0..10_000 {
            blocks.rewrite(&event);
            passed.extend(waiting(&mut blocks));
        }
        let short = passed.windows(event.len()).filter(|part| *part == event);
        assert!(short.count() <= 64);
        let content = payloads(&passed).concat().len();
        assert!(10_000 * 9 - content < MERGED_MIN, "{content} bytes");
        // Another stream is not kept back, nor is the end of this one.
        blocks.rewrite(&other);
        assert_eq!(waiting(&mut blocks), other);
        blocks.rewrite(&event);
        assert_eq!(waiting(&mut blocks), b"");
        let reader = small.reader(1);
        (0..32).for_each(|_| reader.note_read(9));
        let kept = waiting(&mut blocks);
        assert!(kept.ends_with(b"an event\n"), "the reader has caught up");
        for _ in 0..100 {
            blocks.rewrite(&event);
        }
        waiting(&mut blocks);
        blocks.rewrite(&event);
        blocks.rewrite(&frame(DATA, 1, 1, b""));
        let end = waiting(&mut blocks);
        assert!(end.ends_with(&[b"an event\n", &frame(DATA, 1, 1, b"")[..]].concat()));
    }

    #[test]
    fn merged_frames_have_all_of_their_content_however_they_are_cut() {
        let mut bytes = frame(HEADERS, 4, 1, HEAD);
        for n in 0..2000_u32 {
            bytes.extend(frame(DATA, 0, 1, &n.to_be_bytes()));
        }
        bytes.extend(frame(DATA, 1, 1, b"end"));
        let numbers = (0..2000_u32).flat_map(u32::to_be_bytes);
        let expected: Vec<u8> = numbers.chain(*b"end").collect();
        for step in STEPS {
            let passed = passed(&bytes, step);
            let payloads = payloads(&passed);
            assert!(payloads.len() < 200);
            assert!(payloads[1..].concat() == expected, "cut every {step} bytes");
        }
    }

    fn payloads(mut frames: &[u8]) -> Vec<&[u8]> {
        let mut payloads = Vec::new();
        while let Some((head, rest)) = frames.split_first_chunk::<FRAME_HEAD>() {
            let [a, b, c, ..] = *head;
            let payload;
            (payload, frames) = rest.split_at(payload_of([a, b, c]));
            payloads.push(payload);
        }
        payloads
    }

    #[test]
    fn what_was_kept_back_never_stands_within_another_frame() {
        let small = SmallFrames::default();
        let mut blocks = FieldBlocks::new(1000, small.clone());
        for stream in [1, 3] {
            blocks.rewrite(&frame(HEADERS, 4, stream, HEAD));
        }
        for _ in 0..65 {
            blocks.rewrite(&frame(DATA, 0, 1, b"x"));
        }
        waiting(&mut blocks);
        let large = frame(DATA, 0, 3, &[b'l'; 1000]);
        blocks.rewrite(&large[..500]);
        let reader = small.reader(1);
        (0..64).for_each(|_| reader.note_read(1));
        assert_eq!(waiting(&mut blocks), large[..500]);
        blocks.rewrite(&large[500..]);
        blocks.rewrite(&frame(6, 1, 0, &[1; 8]));
        let kept = frame(DATA, 0, 1, b"x");
        let ping = frame(6, 1, 0, &[1; 8]);
        let expected = [&large[500..], &kept, &ping].concat();
        assert_eq!(waiting(&mut blocks), expected);
    }

    #[test]
    fn content_that_is_due_passes_when_the_frame_that_was_under_way_is_complete() {
        let small = SmallFrames::default();
        let mut blocks = FieldBlocks::new(1000, small.clone());
        for stream in [1, 3] {
            blocks.rewrite(&frame(HEADERS, 4, stream, HEAD));
        }
        for _ in 0..65 {
            blocks.rewrite(&frame(DATA, 0, 1, b"x"));
        }
        let large = frame(DATA, 0, 3, &[b'l'; 1000]);
        blocks.rewrite(&large[..500]);
        let reader = small.reader(1);
        (0..64).for_each(|_| reader.note_read(1));
        waiting(&mut blocks);
        blocks.rewrite(&large[500..]);
        let kept = frame(DATA, 0, 1, b"x");
        let got = [waiting(&mut blocks), waiting(&mut blocks)].concat();
        assert_eq!(got.len(), large.len() - 500 + kept.len());
        assert!(got.starts_with(&large[500..]) || got.ends_with(&large[500..]));
    }

    #[test]
    fn a_reader_that_catches_up_within_a_frame_gets_it_at_its_end() {
        let small = SmallFrames::default();
        let mut blocks = FieldBlocks::new(1000, small.clone());
        blocks.rewrite(&frame(HEADERS, 4, 1, HEAD));
        for _ in 0..64 {
            blocks.rewrite(&frame(DATA, 0, 1, b"x"));
        }
        let last = frame(DATA, 0, 1, b"last");
        blocks.rewrite(&last[..11]);
        let reader = small.reader(1);
        (0..64).for_each(|_| reader.note_read(1));
        waiting(&mut blocks);
        blocks.rewrite(&last[11..]);
        // The part of it that had arrived may have passed as a separate frame.
        let rest: usize = waiting(&mut blocks).len();
        assert_eq!(rest, FRAME_HEAD + 2);
    }

    #[test]
    fn streams_that_were_left_do_not_keep_those_of_others_from_being_merged() {
        let small = SmallFrames::default();
        let mut blocks = FieldBlocks::new(1000, small.clone());
        for stream in (1..).step_by(2).take(MERGED_MAX + 10) {
            blocks.rewrite(&frame(HEADERS, 4, stream, HEAD));
            drop(small.reader(stream));
            blocks.rewrite(&frame(DATA, 0, stream, b"x"));
            assert!(blocks.merged.contains_key(&stream));
            assert!(blocks.merged.len() <= MERGED_MAX);
        }
    }

    #[test]
    fn blocks_that_grow_without_end_end_the_connection() {
        let entry = [&b"\x88\x40\x01x\x7f\xd9\x1e"[..], &[b'v'; 4056]].concat();
        let mut blocks = FieldBlocks::new(256 << 10, SmallFrames::default());
        blocks.rewrite(&frame(HEADERS, 4, 1, &entry));
        let again = [&b"\x88"[..], &[0xbe; 60]].concat();
        for stream in (3..99).step_by(2) {
            if !blocks.is_over {
                blocks.rewrite(&frame(HEADERS, 4, stream, &again));
            }
        }
        assert!(blocks.is_over);
        assert!(blocks.waiting.len() < WAITING_MAX + (512 << 10));
        assert!(blocks.waiting.ends_with(NO_BLOCK));
        let mut page = vec![0; 100];
        let mut buffer = ReadBuf::new(&mut page);
        buffer.put_slice(b"more");
        assert!(!blocks.pass(&mut buffer, 0));
        assert!(buffer.filled().is_empty());
    }

    #[test]
    fn empty_frames_of_content_are_left_out_unless_they_are_the_last() {
        let head = frame(HEADERS, 4, 1, HEAD);
        let (empty, end) = (frame(DATA, 0, 1, b""), frame(DATA, 1, 1, b""));
        let content = frame(DATA, 0, 1, b"content");
        let bytes = [&head[..], &empty, &content, &empty, &empty, &end].concat();
        for step in STEPS {
            assert_eq!(passed(&bytes, step), [&head[..], &content, &end].concat());
        }
    }

    #[test]
    fn what_is_no_block_ends_the_connection() {
        let broken = frame(HEADERS, 4, 1, NO_BLOCK);
        for bytes in [
            // Another frame within a block.
            [frame(HEADERS, 0, 1, b"\x88"), frame(6, 0, 1, &[0; 8])].concat(),
            [frame(HEADERS, 0, 3, b"\x88"), frame(HEADERS, 4, 1, b"\x88")].concat(),
            [
                frame(HEADERS, 0, 3, b"\x88"),
                frame(CONTINUATION, 4, 1, b""),
            ]
            .concat(),
            // More padding than there is.
            frame(HEADERS, 0x0c, 1, b"\x05\x88"),
            frame(HEADERS, 0x0c, 1, b""),
            frame(HEADERS, 0x24, 1, b"...."),
            frame(HEADERS, 4, 1, b"\xff"),
            frame(HEADERS, 4, 1, b"\0\x05x"),
        ] {
            for step in STEPS {
                let passed = passed(&bytes, step);
                assert!(
                    passed.starts_with(&broken),
                    "{bytes:?} by {step}: {passed:?}"
                );
            }
        }
        let stray = frame(CONTINUATION, 4, 1, b"\x88");
        assert_eq!(passed(&stray, 100), stray, "h2 ends the connection for it");
    }
}
