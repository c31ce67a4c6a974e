//! A request as text, and its content on the way to the connection.
//!
//! Called by `Http1Conn::send`. `prepare` has given the request its fields; here they decide how
//! the content is framed.
//!
//! Invariant: what is sent ends where its head says, or the connection ends.
//! Cost: a head is written into a buffer of the thread, which is kept if the socket takes it at
//! once.

use std::cell::RefCell;
use std::io::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Request, Version};
use http_body::Body as _;

use super::super::framing::content_length;
use super::super::request_body::RequestBody;
use crate::wire::push_title_case;

/// How the end of a request's content is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentFraming {
    /// There is none.
    Empty,
    /// By Content-Length: this many bytes are left.
    Length(u64),
    /// By the last chunk.
    Chunked,
}

/// Appends the head of `request`, with `target` in place of its URI if there is one, to `text`.
pub(super) fn write_head(
    text: &mut Vec<u8>,
    request: &Request<RequestBody>,
    target: Option<&[u8]>,
) -> SentFraming {
    debug_assert_eq!(request.version(), Version::HTTP_11);
    text.extend_from_slice(request.method().as_str().as_bytes());
    text.push(b' ');
    match target {
        Some(target) => text.extend_from_slice(target),
        None => write_target(text, request),
    }
    text.extend_from_slice(b" HTTP/1.1\r\n");
    let fields = request.headers();
    let body = request.body();
    let framing = if body.is_empty() {
        SentFraming::Empty
    } else if fields.contains_key(TRANSFER_ENCODING) {
        SentFraming::Chunked
    } else {
        let length = content_length(fields).or_else(|| body.size_hint().exact());
        length.map_or(SentFraming::Chunked, SentFraming::Length)
    };
    for (name, value) in fields {
        let is_other_framing = match framing {
            SentFraming::Chunked => name == CONTENT_LENGTH,
            SentFraming::Length(_) | SentFraming::Empty => name == TRANSFER_ENCODING,
        };
        if !is_other_framing {
            push_field(text, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    match framing {
        SentFraming::Length(length) if !fields.contains_key(CONTENT_LENGTH) => {
            let mut digits = itoa::Buffer::new();
            push_field(text, b"content-length", digits.format(length).as_bytes());
        }
        SentFraming::Chunked if !fields.contains_key(TRANSFER_ENCODING) => {
            push_field(text, b"transfer-encoding", b"chunked");
        }
        SentFraming::Length(_) | SentFraming::Chunked | SentFraming::Empty => {}
    }
    text.extend_from_slice(b"\r\n");
    framing
}

/// In origin-form `http::Uri` has the very text; otherwise it writes it.
fn write_target(text: &mut Vec<u8>, request: &Request<RequestBody>) {
    let uri = request.uri();
    match uri.path_and_query() {
        Some(target) if uri.scheme().is_none() => {
            text.extend_from_slice(target.as_str().as_bytes());
        }
        // Writing to a vector does not fail.
        _ => drop(write!(text, "{uri}")),
    }
}

fn push_field(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    push_title_case(text, name);
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

/// Appends the beginning of a chunk with `length` bytes.
pub(super) fn begin_chunk(text: &mut Vec<u8>, length: usize) {
    // Writing to a vector does not fail.
    drop(write!(text, "{length:x}\r\n"));
}

/// Appends the last chunk and `trailers`.
pub(super) fn end_chunks(text: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    text.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        push_field(text, name.as_str().as_bytes(), value.as_bytes());
    }
    text.extend_from_slice(b"\r\n");
}

/// What is to be written next: framing, then content, then the end of its chunk.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) text: Vec<u8>,
    pub(super) text_sent: usize,
    pub(super) data: Bytes,
    pub(super) ending: &'static [u8],
}

impl Outgoing {
    /// With the thread's buffer for `text`.
    pub(super) fn new() -> Self {
        let mut outgoing = Self::default();
        outgoing.text = BUFFER.take();
        outgoing.text.clear();
        outgoing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.len() == self.text_sent && self.data.is_empty() && self.ending.is_empty()
    }

    /// What is left.
    pub(super) fn parts(&self) -> [std::io::IoSlice<'_>; 3] {
        [
            std::io::IoSlice::new(&self.text[self.text_sent..]),
            std::io::IoSlice::new(&self.data),
            std::io::IoSlice::new(self.ending),
        ]
    }

    /// `written` more bytes were sent.
    pub(super) fn advance(&mut self, written: usize) {
        let of_text = written.min(self.text.len() - self.text_sent);
        let of_data = (written - of_text).min(self.data.len());
        let of_ending = (written - of_text - of_data).min(self.ending.len());
        self.text_sent += of_text;
        self.data = self.data.slice(of_data..);
        self.ending = &self.ending[of_ending..];
        if self.text_sent == self.text.len() {
            self.text.clear();
            self.text_sent = 0;
        }
    }

    /// Gives up what is left.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        (self.text_sent, self.data, self.ending) = (0, Bytes::new(), b"");
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if text.capacity() <= BUFFER_MAX {
            // At the end of the thread there is no place to return it to.
            let _ = BUFFER.try_with(|it| it.replace(text));
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The largest buffer that is kept.
const BUFFER_MAX: usize = 16 << 10;
