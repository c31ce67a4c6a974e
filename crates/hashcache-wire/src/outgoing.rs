//! Bytes of a message to write next.
//!
//! Used for responses to clients, and in `hashcache-upstream` for requests: a head or chunk
//! framing, content, and the end of the chunk are written in a single call.
//!
//! Cost: heads are written into a buffer of the thread, which is kept if the socket accepts them at
//! once.

use std::cell::RefCell;
use std::io::{IoSlice, Write as _};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;

/// The bytes to write next: text, then content, then the end of the chunk.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Written before the content.
    pub text: Vec<u8>,
    text_sent: usize,
    data: Bytes,
    ending: &'static [u8],
}

impl Outgoing {
    /// An empty message, with the thread's buffer for the text.
    pub fn new() -> Self {
        let mut outgoing = Self::default();
        outgoing.text = BUFFER.take();
        outgoing.text.clear();
        outgoing
    }

    /// Returns true if everything was written.
    pub fn is_empty(&self) -> bool {
        self.text.len() == self.text_sent && self.data.is_empty() && self.ending.is_empty()
    }

    /// Returns true if content, or the end of a chunk, is not yet sent: then nothing can be
    /// appended except the final chunk.
    pub(crate) fn has_content(&self) -> bool {
        !(self.data.is_empty() && self.ending.is_empty())
    }

    /// Appends a field line.
    pub fn push_field(&mut self, name: &[u8], value: &[u8]) {
        push_field(&mut self.text, name, value);
    }

    /// Appends content; there must be no unsent content.
    pub fn push_data(&mut self, data: Bytes) {
        debug_assert!(!self.has_content());
        self.data = data;
    }

    /// Appends content as a chunk.
    pub fn push_chunk(&mut self, data: Bytes) {
        // Writing to a vector does not fail.
        drop(write!(self.text, "{:x}\r\n", data.len()));
        self.push_data(data);
        self.ending = b"\r\n";
    }

    /// Appends the last chunk and `trailers`.
    pub fn end_chunks(&mut self, trailers: Option<&HeaderMap>) {
        match trailers.filter(|trailers| !trailers.is_empty()) {
            None if self.ending == b"\r\n" => self.ending = b"\r\n0\r\n\r\n",
            trailers => {
                debug_assert!(!self.has_content());
                self.text.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    self.push_field(name.as_str().as_bytes(), value.as_bytes());
                }
                self.text.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The unsent bytes.
    pub fn parts(&self) -> [IoSlice<'_>; 3] {
        [
            IoSlice::new(&self.text[self.text_sent..]),
            IoSlice::new(&self.data),
            IoSlice::new(self.ending),
        ]
    }

    /// Records that the socket has accepted `written` more bytes.
    pub fn advance(&mut self, written: usize) {
        let of_text = written.min(self.text.len() - self.text_sent);
        let of_data = (written - of_text).min(self.data.len());
        let of_ending = (written - of_text - of_data).min(self.ending.len());
        self.text_sent += of_text;
        self.data.advance(of_data);
        self.ending = &self.ending[of_ending..];
        if self.text_sent == self.text.len() {
            self.text_sent = 0;
            match self.text.capacity() {
                ..=BUFFER_MAX => self.text.clear(),
                // Freed, because content may follow for a long time.
                _ => self.text = Vec::new(),
            }
        }
        if self.data.is_empty() {
            // Dropped now, because the content keeps a slab in memory.
            self.data = Bytes::new();
        }
    }

    /// Drops the unsent bytes.
    pub fn clear(&mut self) {
        self.text.clear();
        (self.text_sent, self.data, self.ending) = (0, Bytes::new(), b"");
    }
}

/// Appends a field line. The name is in title case, as old clients expect.
pub(super) fn push_field(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let mut is_first = true;
    text.extend(name.iter().map(|byte| {
        let first = std::mem::replace(&mut is_first, *byte == b'-');
        if first {
            byte.to_ascii_uppercase()
        } else {
            *byte
        }
    }));
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if (1..=BUFFER_MAX).contains(&text.capacity()) {
            // Fails only while the thread exits; the buffer is then freed.
            let _ = BUFFER.try_with(|it| it.replace(text));
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The largest buffer that a thread keeps for the next head.
const BUFFER_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_however_it_is_cut() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        let cases = [
            (None, "H: v\r\n3\r\nabc\r\n0\r\n\r\n"),
            (Some(&trailers), "H: v\r\n3\r\nabc\r\n0\r\nEtag: x\r\n\r\n"),
        ];
        for (trailers, expected) in cases {
            for step in 1..=expected.len() {
                let mut outgoing = Outgoing::new();
                let mut written = Vec::new();
                let mut write_all = |outgoing: &mut Outgoing| {
                    while !outgoing.is_empty() {
                        let left = outgoing.parts().map(|part| part.to_vec()).concat();
                        let now = step.min(left.len());
                        written.extend_from_slice(&left[..now]);
                        outgoing.advance(now);
                    }
                };
                outgoing.push_field(b"h", b"v");
                outgoing.push_chunk(Bytes::from_static(b"abc"));
                if trailers.is_some() {
                    write_all(&mut outgoing);
                }
                outgoing.end_chunks(trailers);
                write_all(&mut outgoing);
                assert_eq!(String::from_utf8(written).unwrap(), expected);
            }
        }
    }
}
