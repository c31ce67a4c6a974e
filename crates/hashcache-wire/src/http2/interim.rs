//! Interim responses (1xx) in HTTP/2, which hyper cannot send.
//!
//! h2 frames all other messages. An interim response needs the stream number, which hyper does not
//! expose. Therefore [`Marker`] adds it to each head on the way to h2, in a field that no request
//! has otherwise, and [`take_stream`] removes it again. [`InterimQueue`] holds the waiting frames;
//! `flow` writes them between two frames from h2. [`Marker`] also inserts a field at the start of
//! trailers, so that h2 resets a stream with pseudo-fields in trailers (RFC 9113, section 8.1).
//!
//! Invariants: the mark is the last field in the block, and only the last field with this name
//! counts. If the last string of a client claims more bytes than are present, it swallows the mark;
//! a number that the client has written itself can then only select another stream on the client's
//! own connection. A frame is written only while the response on its stream has not started. The
//! field block uses no table, so h2's encoder and the client's decoder stay in step. A client with
//! a smaller table than usual gets no interim responses, because the next block must start with the
//! table size update (RFC 7541, section 4.2).
//! Cost: 22 bytes and one field per head; up to 16 KiB while padded trailers are incomplete.

use std::collections::{BTreeSet, VecDeque};

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS, PADDED, PREFACE, PRIORITY,
    RST_STREAM, unpadded,
};

/// Adds the stream number to each head from a client.
#[derive(Debug)]
pub(super) struct Marker {
    /// Remaining bytes of the preface.
    preface: usize,
    head: [u8; FRAME_HEAD],
    have: usize,
    /// Remaining bytes of the frame payload.
    payload: usize,
    kind: FrameKind,
    setting: [u8; SETTING],
    of_setting: usize,
    has_small_table: bool,
    /// Streams on which the client may still send content: a block on such a stream is trailers. At
    /// most [`OPEN_MAX`]. A block on any other stream is a head or an error, which h2 must see
    /// unchanged.
    open: BTreeSet<u32>,
    /// The block of the current HEADERS or CONTINUATION frames is trailers.
    in_trailers: bool,
    /// The first frame of trailers, with padding or priority: at most `FRAME_MAX` bytes.
    padded: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    /// The last frame of the head on this stream.
    EndOfHead(u32),
    Settings,
    /// The first frame of trailers, with padding or priority: it is collected in `padded`.
    PaddedTrailers,
    Other,
}

impl Marker {
    pub(super) fn new() -> Self {
        Self {
            preface: PREFACE.len(),
            head: [0; FRAME_HEAD],
            have: 0,
            payload: 0,
            kind: FrameKind::Other,
            setting: [0; SETTING],
            of_setting: 0,
            has_small_table: false,
            open: BTreeSet::new(),
            in_trailers: false,
            padded: Vec::new(),
        }
    }

    /// Returns true if the client has announced a smaller field table than usual.
    pub(super) fn has_small_table(&self) -> bool {
        self.has_small_table
    }

    /// Calls `pass` with `bytes` and the inserted marks.
    pub(super) fn mark(&mut self, mut bytes: &[u8], mut pass: impl FnMut(&[u8])) {
        let preface = self.preface.min(bytes.len());
        self.preface -= preface;
        pass(&bytes[..preface]);
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            let payload = self.payload.min(bytes.len());
            if payload > 0 {
                let part;
                (part, bytes) = bytes.split_at(payload);
                self.payload -= payload;
                match self.kind {
                    FrameKind::Settings => self.read_settings(part),
                    FrameKind::PaddedTrailers => self.padded.extend_from_slice(part),
                    FrameKind::EndOfHead(_) | FrameKind::Other => {}
                }
                if self.kind != FrameKind::PaddedTrailers {
                    pass(part);
                }
            } else {
                // A frame head is passed only when complete, because the flags may change.
                let taken = (FRAME_HEAD - self.have).min(bytes.len());
                self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                bytes = &bytes[taken..];
                if self.have < FRAME_HEAD {
                    return;
                }
                self.have = 0;
                self.begin_frame();
                let is_trailers = self.head[KIND] == HEADERS && self.in_trailers;
                if is_trailers && self.kind != FrameKind::PaddedTrailers {
                    self.lead_trailers(&mut pass);
                }
                if self.kind != FrameKind::PaddedTrailers {
                    pass(&self.head);
                }
            }
            if self.payload > 0 {
                continue;
            }
            match std::mem::replace(&mut self.kind, FrameKind::Other) {
                FrameKind::EndOfHead(stream) => pass(&mark_of(stream)),
                FrameKind::PaddedTrailers => self.pass_padded(&mut pass),
                FrameKind::Settings | FrameKind::Other => {}
            }
        }
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let stream = u32::from_be_bytes(stream) & u32::MAX >> 1;
        let is_oversized = self.payload > usize::from(FRAME_MAX);
        if kind == HEADERS {
            let is_open = self.open.contains(&stream);
            self.in_trailers = is_open && !is_oversized;
            if !is_open {
                self.add_open(stream);
            }
        }
        let is_end = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
        if is_end || kind == RST_STREAM {
            self.open.remove(&stream);
        }
        self.kind = match kind {
            // h2 closes the connection as soon as it has the frame head. If the frame were
            // collected, a client could make us hold 16 MiB without a reservation.
            _ if is_oversized => FrameKind::Other,
            HEADERS if self.in_trailers && flags & (PADDED | PRIORITY) != 0 => {
                FrameKind::PaddedTrailers
            }
            HEADERS | CONTINUATION if self.in_trailers => FrameKind::Other,
            HEADERS | CONTINUATION if flags & END_HEADERS != 0 => {
                self.head[FLAGS] = flags & !END_HEADERS;
                FrameKind::EndOfHead(stream)
            }
            SETTINGS => FrameKind::Settings,
            _ => FrameKind::Other,
        };
        self.of_setting = 0;
    }

    fn add_open(&mut self, stream: u32) {
        // The proxy refuses streams beyond a limit, but that is not visible here. If a stream is
        // forgotten, only pseudo-fields in its trailers are not detected.
        if self.open.len() == OPEN_MAX {
            self.open.pop_first();
        }
        self.open.insert(stream);
    }

    /// Inserts a field before the trailers in the current frame, in a separate frame: h2 ignores
    /// pseudo-fields in trailers, but a block with a pseudo-field after a field is malformed, so h2
    /// resets the stream.
    fn lead_trailers(&mut self, mut pass: impl FnMut(&[u8])) {
        let [.., flags, a, b, c, d] = self.head;
        let length = u8::try_from(TRAILERS_LEAD.len()).unwrap_or_default();
        pass(&[0, 0, length, HEADERS, flags & END_STREAM, a, b, c, d]);
        pass(TRAILERS_LEAD);
        self.head[KIND] = CONTINUATION;
        self.head[FLAGS] = flags & END_HEADERS;
    }

    /// Passes a collected frame of trailers, without the padding.
    fn pass_padded(&mut self, mut pass: impl FnMut(&[u8])) {
        let frame = std::mem::take(&mut self.padded);
        match unpadded(self.head[FLAGS], &frame) {
            Some(block) => {
                self.lead_trailers(&mut pass);
                let length = u32::try_from(block.len()).unwrap_or_default();
                self.head[..KIND].copy_from_slice(&length.to_be_bytes()[1..]);
                pass(&self.head);
                pass(&frame[block]);
            }
            // h2 closes the connection for it.
            None => {
                pass(&self.head);
                pass(&frame);
            }
        }
    }

    fn read_settings(&mut self, payload: &[u8]) {
        for &byte in payload {
            self.setting[self.of_setting] = byte;
            self.of_setting = (self.of_setting + 1) % SETTING;
            if self.of_setting == 0 {
                let [high, low, value @ ..] = self.setting;
                let is_table = u16::from_be_bytes([high, low]) == HEADER_TABLE_SIZE;
                let is_small = u32::from_be_bytes(value) < USUAL_TABLE;
                self.has_small_table |= is_table && is_small;
            }
        }
    }
}

/// A CONTINUATION frame that completes a head with the stream number.
fn mark_of(stream: u32) -> Vec<u8> {
    let digits = stream.to_string();
    let length = u8::try_from(3 + digits.len()).unwrap_or(u8::MAX);
    let mut frame = vec![0, 0, length, CONTINUATION, END_HEADERS];
    frame.extend_from_slice(&stream.to_be_bytes());
    // A literal that enters no table, with a name from the static table.
    frame.extend([0x0f, RETRY_AFTER_INDEX - 0x0f, length - 3]);
    frame.extend_from_slice(digits.as_bytes());
    frame
}

/// Removes the stream number from a head and returns it.
pub(super) fn take_stream(fields: &mut HeaderMap) -> Option<u32> {
    let mark = fields.get_all(RETRY_AFTER).iter().next_back();
    let stream = mark.and_then(|mark| mark.to_str().ok()?.parse().ok());
    fields.remove(RETRY_AFTER);
    stream
}

/// Interim responses waiting to be written.
#[derive(Debug, Default)]
pub(super) struct InterimQueue {
    frames: VecDeque<(u32, Vec<u8>)>,
    /// Number of bytes of the first response already written.
    written: usize,
    bytes: usize,
}

impl InterimQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds an interim response for `stream`; returns false if it is too large, or too many wait.
    pub(super) fn push(&mut self, stream: u32, status: StatusCode, fields: &HeaderMap) -> bool {
        let block = field_block(status, fields);
        let Ok(length) = u16::try_from(block.len()) else {
            return false;
        };
        if length > FRAME_MAX || self.bytes + block.len() > QUEUE_MAX {
            return false;
        }
        let [high, low] = length.to_be_bytes();
        let mut frame = vec![0, high, low, HEADERS, END_HEADERS];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&block);
        self.bytes += frame.len();
        self.frames.push_back((stream, frame));
        true
    }

    /// The bytes to write next.
    pub(super) fn next(&self) -> Option<&[u8]> {
        let (_, frame) = self.frames.front()?;
        Some(&frame[self.written..])
    }

    /// Records that `written` bytes were written.
    pub(super) fn advance(&mut self, written: usize) {
        self.written += written;
        if let Some((_, frame)) = self.frames.front()
            && self.written >= frame.len()
        {
            self.bytes -= frame.len();
            self.frames.pop_front();
            self.written = 0;
        }
    }

    /// Returns true if a frame is partly written: nothing else may be written then.
    pub(super) fn is_within_frame(&self) -> bool {
        self.written > 0
    }

    /// Removes the responses for a stream that is over; a partly written frame is completed.
    pub(super) fn forget(&mut self, stream: u32) {
        let mut place = 0;
        let begun = usize::from(self.written > 0);
        let bytes = &mut self.bytes;
        self.frames.retain(|(of, frame)| {
            let stays = *of != stream || place < begun;
            place += 1;
            if !stays {
                *bytes -= frame.len();
            }
            stays
        });
    }
}

/// Status and fields in literals that enter no table (RFC 7541, section 6.2.2).
fn field_block(status: StatusCode, fields: &HeaderMap) -> Vec<u8> {
    let mut block = vec![STATUS_INDEX];
    push_string(&mut block, status.as_str().as_bytes());
    for (name, value) in fields {
        block.push(0);
        push_string(&mut block, name.as_str().as_bytes());
        push_string(&mut block, value.as_bytes());
    }
    block
}

/// Appends a string without Huffman coding.
pub fn push_string(block: &mut Vec<u8>, text: &[u8]) {
    const PREFIX: usize = 0x7f;
    if text.len() < PREFIX {
        block.push(u8::try_from(text.len()).unwrap_or_default());
    } else {
        block.push(0x7f);
        let mut rest = text.len() - PREFIX;
        while rest >= 0x80 {
            block.push(u8::try_from(rest & 0x7f).unwrap_or_default() | 0x80);
            rest >>= 7;
        }
        block.push(u8::try_from(rest).unwrap_or_default());
    }
    block.extend_from_slice(text);
}

/// The first field in trailers, as a literal that enters no table: `retry-after: 0`. It is not
/// allowed in trailers, so it is removed with other such fields.
const TRAILERS_LEAD: &[u8] = &[0x0f, RETRY_AFTER_INDEX - 0x0f, 1, b'0'];
/// More than the default limit for concurrent streams of a client (`limits.streams`).
const OPEN_MAX: usize = 256;
const SETTINGS: u8 = 4;
/// Offsets of the type and the flags in a frame head.
const KIND: usize = 3;
const FLAGS: usize = 4;
/// Bytes of a setting.
const SETTING: usize = 6;
/// SETTINGS_HEADER_TABLE_SIZE, and its initial value on a connection.
const HEADER_TABLE_SIZE: u16 = 1;
const USUAL_TABLE: u32 = 4096;
/// Indexes for `:status` and `retry-after` in the static table.
const STATUS_INDEX: u8 = 8;
const RETRY_AFTER_INDEX: u8 = 53;
/// The largest payload that every client accepts, and that we accept from clients: the initial
/// value of SETTINGS_MAX_FRAME_SIZE (RFC 9113, section 6.5.2), which hyper keeps.
const FRAME_MAX: u16 = 1 << 14;
/// Maximum bytes of waiting responses on a connection.
const QUEUE_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn each_head_is_marked_at_its_end_however_it_is_cut() {
        let bytes = [
            PREFACE.to_vec(),
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(HEADERS, 4, 1, b"abc"),
            frame(0, 0, 1, b"data"),
            frame(HEADERS, 0, 3, b"de"),
            frame(CONTINUATION, 4, 3, b""),
            frame(HEADERS, 1, 3, b"tr"),
            frame(CONTINUATION, 4, 3, b"ailers"),
            // Padding, then priority, and padding longer than the frame.
            frame(HEADERS, 0x2d, 1, b"\x02.....abc\0\0"),
            frame(HEADERS, 4, 5, b"f"),
            frame(HEADERS, 0x0d, 5, b"\x02a"),
            // The content on stream 1 is complete, so this block is an error.
            frame(HEADERS, 5, 1, b"again"),
        ]
        .concat();
        let expected = [
            PREFACE.to_vec(),
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(HEADERS, 0, 1, b"abc"),
            frame(CONTINUATION, 4, 1, b"\x0f\x26\x011"),
            frame(0, 0, 1, b"data"),
            frame(HEADERS, 0, 3, b"de"),
            frame(CONTINUATION, 0, 3, b""),
            frame(CONTINUATION, 4, 3, b"\x0f\x26\x013"),
            frame(HEADERS, 1, 3, TRAILERS_LEAD),
            frame(CONTINUATION, 0, 3, b"tr"),
            frame(CONTINUATION, 4, 3, b"ailers"),
            frame(HEADERS, 1, 1, TRAILERS_LEAD),
            frame(CONTINUATION, 4, 1, b"abc"),
            frame(HEADERS, 0, 5, b"f"),
            frame(CONTINUATION, 4, 5, b"\x0f\x26\x015"),
            frame(HEADERS, 0x0d, 5, b"\x02a"),
            frame(HEADERS, 1, 1, b"again"),
            frame(CONTINUATION, 4, 1, b"\x0f\x26\x011"),
        ]
        .concat();
        for step in [1, 2, 7, 100, bytes.len()] {
            let (mut marker, mut marked) = (Marker::new(), Vec::new());
            for part in bytes.chunks(step) {
                marker.mark(part, |bytes| marked.extend_from_slice(bytes));
            }
            assert_eq!(marked, expected, "cut every {step} bytes");
            assert!(!marker.has_small_table());
        }
    }

    #[test]
    fn only_a_block_behind_a_head_whose_content_may_go_on_is_trailers() {
        let is_trailers = |before: &[Vec<u8>]| {
            let mut marker = Marker::new();
            marker.mark(PREFACE, |_| {});
            before.iter().for_each(|bytes| marker.mark(bytes, |_| {}));
            let mut marked = Vec::new();
            let block = frame(HEADERS, 5, 1, b"x");
            marker.mark(&block, |bytes| marked.extend_from_slice(bytes));
            marked.starts_with(&frame(HEADERS, 1, 1, TRAILERS_LEAD))
        };
        let head = frame(HEADERS, 4, 1, b"h");
        assert!(is_trailers(std::slice::from_ref(&head)));
        for ended in [
            vec![],
            vec![frame(HEADERS, 5, 1, b"h")],
            vec![frame(HEADERS, 4, 3, b"h")],
            vec![head.clone(), frame(DATA, END_STREAM, 1, b"d")],
            vec![head.clone(), frame(RST_STREAM, 0, 1, &[0; 4])],
            vec![head.clone(), frame(HEADERS, 5, 1, b"t")],
        ] {
            assert!(!is_trailers(&ended), "{ended:?}");
        }
        let others =
            (1..=u32::try_from(OPEN_MAX).unwrap()).map(|n| frame(HEADERS, 4, 2 * n + 1, b"h"));
        let many: Vec<_> = [head].into_iter().chain(others).collect();
        assert!(!is_trailers(&many), "the oldest stream is forgotten");
    }

    #[test]
    fn no_frame_beyond_the_size_limit_is_gathered() {
        let mut marker = Marker::new();
        marker.mark(PREFACE, |_| ());
        marker.mark(&frame(HEADERS, 4, 1, b"abc"), |_| ());
        for flags in [PADDED, PRIORITY, PADDED | PRIORITY | END_HEADERS, 0] {
            let mut oversized = frame(HEADERS, flags, 1, &[1; 1 + FRAME_MAX as usize]);
            oversized.pop();
            for part in oversized.chunks(1000) {
                let mut passed = Vec::new();
                marker.mark(part, |bytes| passed.extend_from_slice(bytes));
                assert_eq!(passed, part, "flags {flags}");
            }
            assert_eq!(marker.padded.capacity(), 0);
            marker.mark(&[1], |_| ());
        }
    }

    #[test]
    fn a_smaller_table_of_the_client_is_noticed() {
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 15, 255]);
        for step in [1, 5, 100] {
            let mut marker = Marker::new();
            for part in [PREFACE.to_vec(), settings.clone()].concat().chunks(step) {
                marker.mark(part, |_| ());
            }
            assert!(marker.has_small_table());
        }
    }

    #[test]
    fn a_client_cannot_name_another_stream() {
        let mut fields = HeaderMap::new();
        fields.append(RETRY_AFTER, HeaderValue::from_static("9"));
        fields.append(RETRY_AFTER, HeaderValue::from_static("5"));
        assert_eq!(take_stream(&mut fields), Some(5));
        assert!(fields.is_empty());
    }

    #[test]
    fn responses_wait_in_order_and_those_of_an_ended_stream_are_forgotten() {
        let mut queue = InterimQueue::default();
        let hints = StatusCode::EARLY_HINTS;
        let mut fields = HeaderMap::new();
        fields.insert("link", HeaderValue::from_static("</a>"));
        assert!(queue.push(1, hints, &fields) && queue.push(3, hints, &fields));
        let first = queue.next().unwrap().to_vec();
        assert_eq!(
            first,
            frame(HEADERS, 4, 1, b"\x08\x03103\0\x04link\x04</a>")
        );
        queue.advance(4);
        assert!(queue.is_within_frame());
        queue.forget(1);
        queue.forget(3);
        assert_eq!(queue.next().unwrap(), &first[4..]);
        queue.advance(first.len() - 4);
        assert!(queue.is_empty() && !queue.is_within_frame());
        let large = HeaderValue::from_bytes(&vec![b'x'; 17 << 10]).unwrap();
        fields.insert("link", large);
        assert!(!queue.push(1, hints, &fields));
        fields.insert("link", HeaderValue::from_bytes(&vec![b'x'; 300]).unwrap());
        assert!(queue.push(1, hints, &fields));
        assert!(queue.next().unwrap().ends_with(&[b'x'; 300]));
        let waiting = (0..1000)
            .take_while(|_| queue.push(1, hints, &fields))
            .count();
        assert!(waiting < 300);
    }
}
