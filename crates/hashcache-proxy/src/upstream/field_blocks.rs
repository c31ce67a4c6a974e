//! The field blocks of an origin, before h2 reads them.
//!
//! `meter` passes what was read of a connection; `http2` takes out the marks. h2 ignores
//! pseudo-fields in trailers. For octets in a field that concern one response it ends the
//! connection, with the responses to all clients (`hpack`). So each block is gathered, repaired and
//! written again, without padding. Trailers get a first field of ours: a pseudo-field behind a
//! field is malformed for h2, which resets the stream. A response whose fields were repaired has
//! the field [`REPAIRED`], which [`take_repairs`] takes out.
//!
//! Invariants: other frames pass unchanged and in order. `filter_trailers` removes our field from
//! trailers. A block is trailers only if content came before it: another one may be the head behind
//! interim responses.
//! Cost: nine bytes examined per frame, a copy of each block, and of what follows it in one read.

mod hpack;

use std::collections::HashSet;

use bytes::{Buf as _, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::ReadBuf;

use self::hpack::repaired;
use crate::wire::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS, RST_STREAM, unpadded,
};
use crate::wire::{TRAILERS_LEAD, push_string};

/// The frames of one connection.
#[derive(Debug, Default)]
pub(super) struct FieldBlocks {
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Missing bytes of the frame's payload.
    payload: usize,
    /// Whether the frame belongs to `block`.
    is_of_block: bool,
    block: Option<Block>,
    /// Streams with content, whose next block is their trailers.
    with_content: HashSet<u32>,
    /// A block had control characters. Later blocks may name its fields by their places in the
    /// table.
    has_spaces: bool,
    /// Bytes that h2 has not read.
    waiting: BytesMut,
}

/// A field block that is incomplete.
#[derive(Debug)]
struct Block {
    stream: u32,
    flags: u8,
    is_trailers: bool,
    has_first_frame: bool,
    is_last_frame: bool,
    octets: Vec<u8>,
}

impl FieldBlocks {
    /// Moves waiting bytes into `buffer`; false if there are none.
    pub(super) fn read(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let bytes = self.waiting.len().min(buffer.remaining());
        buffer.put_slice(&self.waiting[..bytes]);
        self.waiting.advance(bytes);
        if self.waiting.is_empty() {
            // Blocks are rare after the first one, and its memory is not accounted for.
            self.waiting = BytesMut::new();
        }
        bytes > 0
    }

    /// Takes out of `buffer` what h2 must not read yet, of the bytes from `before`. Returns whether
    /// any are left.
    pub(super) fn pass(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> bool {
        let unchanged = self.unchanged(&buffer.filled()[before..]);
        self.rewrite(&buffer.filled()[before + unchanged..]);
        buffer.set_filled(before + unchanged);
        unchanged > 0
    }

    /// The length of the begin of `bytes` that may pass as it is.
    fn unchanged(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            if self.have > 0 || self.block.is_some() {
                return at;
            }
            let payload = self.payload.min(bytes.len() - at);
            self.payload -= payload;
            at += payload;
            let Some(head) = bytes[at..].first_chunk() else {
                return at;
            };
            if self.payload > 0 || matches!(head[3], HEADERS | CONTINUATION) {
                return at;
            }
            self.head = *head;
            self.begin();
            at += FRAME_HEAD;
        }
    }

    /// Adds `bytes`, with their blocks repaired, to those that h2 reads next.
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
                if !self.is_of_block {
                    self.waiting.extend_from_slice(&self.head);
                }
            } else {
                let part;
                (part, bytes) = bytes.split_at(self.payload.min(bytes.len()));
                self.payload -= part.len();
                match &mut self.block {
                    Some(block) if self.is_of_block => block.octets.extend_from_slice(part),
                    _ => self.waiting.extend_from_slice(part),
                }
            }
            if self.payload == 0 && self.is_of_block {
                self.end_frame();
            }
        }
    }

    /// The head of a frame is complete.
    fn begin(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let stream = u32::from_be_bytes(stream) & u32::MAX >> 1;
        self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.is_of_block = match kind {
            HEADERS if self.block.is_none() => {
                self.block = Some(Block {
                    stream,
                    flags,
                    is_trailers: self.with_content.contains(&stream),
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
        if !self.is_of_block {
            // No other frame may stand within a block; h2 ends the connection for it.
            self.abandon_block();
        }
        match kind {
            DATA | HEADERS if flags & END_STREAM != 0 => self.forget(stream),
            RST_STREAM => self.forget(stream),
            DATA => {
                if self.with_content.len() >= STREAMS_MAX {
                    // Origins never end streams that we have reset.
                    self.with_content.clear();
                }
                self.with_content.insert(stream);
            }
            _ => {}
        }
    }

    fn forget(&mut self, stream: u32) {
        self.with_content.remove(&stream);
    }

    fn abandon_block(&mut self) {
        if let Some(block) = self.block.take() {
            let flags = block.flags & END_STREAM;
            write_frame(
                &mut self.waiting,
                (HEADERS, flags, block.stream),
                &block.octets,
            );
        }
    }

    /// A frame of the block is complete.
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
        if let Some(block) = self.block.take() {
            match is_framed {
                true => self.has_spaces = block.write(self.has_spaces, &mut self.waiting),
                // h2 ends the connection for it.
                false => {
                    let head = (HEADERS, block.flags, block.stream);
                    write_frame(&mut self.waiting, head, &block.octets);
                }
            }
        }
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

    /// Writes the block for h2; `had_spaces`: one before it had control characters. Returns whether
    /// one has by now.
    fn write(self, had_spaces: bool, waiting: &mut BytesMut) -> bool {
        let repaired = repaired(&self.octets);
        let has_spaces = had_spaces || repaired.as_ref().is_some_and(|it| it.has_spaces);
        let is_malformed = repaired.as_ref().is_some_and(|it| it.is_malformed);
        let mut octets = repaired.map_or(self.octets, |it| it.block);
        if has_spaces {
            push_field(&mut octets, REPAIRED.as_str());
        }
        if is_malformed {
            // A field of the connection is malformed in HTTP/2: h2 resets the stream.
            push_field(&mut octets, "connection");
        }
        let flags = self.flags & END_STREAM;
        if self.is_trailers {
            // In a frame of its own, because a change of the table's size must come first in a
            // block, and for h2 each frame may begin with one.
            write_frame(waiting, (HEADERS, flags, self.stream), TRAILERS_LEAD);
            write_frame(waiting, (CONTINUATION, END_HEADERS, self.stream), &octets);
        } else {
            let head = (HEADERS, flags | END_HEADERS, self.stream);
            write_frame(waiting, head, &octets);
        }
        has_spaces
    }
}

/// Appends a field without a value, as a literal that enters no table.
fn push_field(block: &mut Vec<u8>, name: &str) {
    block.push(0);
    push_string(block, name.as_bytes());
    push_string(block, b"");
}

/// Writes a frame; its payload continues in CONTINUATION frames, of which the last one has the flag
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

/// Removes the mark of repaired fields. Spaces that stand for control characters at the ends of
/// values are no part of them, as in HTTP/1.1.
pub(super) fn take_repairs(fields: &mut HeaderMap) {
    if fields.remove(REPAIRED).is_none() {
        return;
    }
    for value in fields.values_mut() {
        let trimmed = value.as_bytes().trim_ascii();
        if trimmed.len() < value.len()
            && let Ok(trimmed) = HeaderValue::from_bytes(trimmed)
        {
            *value = trimmed;
        }
    }
}

/// Marks a block in which control characters became spaces.
const REPAIRED: HeaderName = HeaderName::from_static("hashcache-repaired");
/// The largest payload that h2 takes.
const FRAME_MAX: usize = 1 << 14;
/// Maximum number of streams remembered.
const STREAMS_MAX: usize = 4096;

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
        let (mut blocks, mut passed) = (FieldBlocks::default(), Vec::new());
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
                if !blocks.read(&mut buffer) {
                    break;
                }
                passed.extend(buffer.filled());
            }
        }
        passed
    }

    const STEPS: [usize; 5] = [1, 2, 8, 40, 100_000];

    #[test]
    fn blocks_are_written_again_and_other_frames_stay_however_they_are_cut() {
        let large = [b"\x88\0\x01x\x7f\x81\x7f".to_vec(), vec![b'v'; 16_384]].concat();
        let large = &large[..7 + 16_384];
        let bytes = [
            frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]),
            // Padding, then priority.
            frame(HEADERS, 0x2c, 1, b"\x02.....\x88\0\0"),
            frame(DATA, 0, 1, b"content"),
            frame(HEADERS, 0, 3, b"\x88\0\x01"),
            frame(CONTINUATION, 4, 3, b"x\x02a\x7f"),
            frame(DATA, 1, 3, b""),
            frame(6, 1, 0, &[1; 8]),
            frame(HEADERS, 5, 5, large), // in two frames
            frame(HEADERS, 5, 1, b"\0\x01t\x01v"),
        ]
        .concat();
        let mark = b"\0\x12hashcache-repaired\0";
        let expected = [
            frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(HEADERS, 4, 1, b"\x88"),
            frame(DATA, 0, 1, b"content"),
            frame(HEADERS, 4, 3, &[b"\x88\0\x01x\x02a ", &mark[..]].concat()),
            frame(DATA, 1, 3, b""),
            frame(6, 1, 0, &[1; 8]),
            frame(HEADERS, 1, 5, &large[..FRAME_MAX]),
            frame(CONTINUATION, 4, 5, &[&large[FRAME_MAX..], mark].concat()),
            frame(HEADERS, 1, 1, TRAILERS_LEAD),
            frame(CONTINUATION, 4, 1, &[b"\0\x01t\x01v", &mark[..]].concat()),
        ]
        .concat();
        for step in STEPS {
            assert!(passed(&bytes, step) == expected, "cut every {step} bytes");
        }
    }

    #[test]
    fn only_a_block_after_content_is_taken_for_trailers() {
        let hints = frame(HEADERS, 4, 1, b"\x08\x03103");
        let head = frame(HEADERS, 5, 1, b"\x88");
        let bytes = [hints.clone(), head.clone()].concat();
        for step in STEPS {
            assert_eq!(passed(&bytes, step), bytes);
        }
        // A stream that has ended or was reset is forgotten.
        let mut blocks = FieldBlocks::default();
        for end in [
            frame(DATA, 1, 1, b""),
            frame(RST_STREAM, 0, 1, &[0; 4]),
            head,
        ] {
            blocks.rewrite(&frame(DATA, 0, 1, b"x"));
            assert!(blocks.with_content.contains(&1));
            blocks.rewrite(&end);
            assert!(blocks.with_content.is_empty());
        }
    }

    #[test]
    fn frames_that_may_not_stand_there_reach_h2() {
        for bytes in [
            // Another frame within a block, and a block of another stream.
            [frame(HEADERS, 0, 1, b"\x88"), frame(DATA, 0, 1, b"x")].concat(),
            [
                frame(HEADERS, 0, 1, b"\x88"),
                frame(CONTINUATION, 4, 3, b""),
            ]
            .concat(),
            frame(CONTINUATION, 4, 1, b"\x88"),
            // More padding than there is.
            frame(HEADERS, 0x0c, 1, b"\x05\x88"),
            frame(HEADERS, 0x0c, 1, b""),
            frame(HEADERS, 0x24, 1, b"...."),
        ] {
            for step in STEPS {
                assert_eq!(passed(&bytes, step), bytes, "cut every {step} bytes");
            }
        }
    }

    #[test]
    fn spaces_for_control_characters_at_the_ends_are_no_part_of_a_value() {
        let mut fields = HeaderMap::new();
        fields.insert("x", HeaderValue::from_static(" a b "));
        fields.insert("y", HeaderValue::from_static("c"));
        let untouched = fields.clone();
        take_repairs(&mut fields);
        assert_eq!(fields, untouched);
        fields.insert(REPAIRED, HeaderValue::from_static(""));
        take_repairs(&mut fields);
        let values = ["x", "y"].map(|name| fields[name].to_str().unwrap());
        assert_eq!((values, fields.len()), (["a b", "c"], 2));
    }
}
