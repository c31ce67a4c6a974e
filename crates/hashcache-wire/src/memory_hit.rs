//! Responses to plain requests from memory.
//!
//! `stream` passes each checked head to the connection's [`MemoryHits`]. If the response is in
//! memory, `stream` writes it, and the service never sees the request. Otherwise the service gets
//! the request, and the attempt has no effect. In HTTP/2, hyper frames the response, but the head
//! and content are complete when hyper polls for them: see `http2/memory_hit`.
//!
//! Invariants: only requests with a single meaning get here: HTTP/1.1 heads were checked in the
//! same way as for the service, and `http2/memory_hit` checks the relevant rules for HTTP/2. The
//! response has the same bytes as a response from the service. The exchange runs through the states
//! of the `Cell`, so it is reported as any other.
//! Cost: one system call for a response with up to [`PIECES_MAX`] pieces. The head is built in a
//! buffer of the thread.

use std::cell::RefCell;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use hashcache_base::share::ShareGuard;
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use tokio::time::Instant;

use super::cell::OnSent;
use super::head::{RequestForm, trim};
use super::outgoing::push_field;

/// Answers requests from memory.
pub trait MemoryHits {
    /// Returns the response to `request`, and appends its head to `head`. `None`: the request must
    /// take the usual path, and there were no side effects.
    fn answer(
        &self,
        request: &PlainRequest<'_>,
        head: &mut ResponseHead<'_>,
    ) -> Option<MemoryResponse>;
}

/// A GET request without content.
#[derive(Clone, Copy, Debug)]
pub struct PlainRequest<'a> {
    /// The request target as the client sent it; in HTTP/2, in absolute form.
    pub target: &'a str,
    /// The form of the target.
    pub form: RequestForm,
    /// The authority in HTTP/2, which is not in the fields.
    pub authority: Option<&'a str>,
    pub(super) fields: RequestFields<'a>,
    /// The time at which the first byte of the head was read; in HTTP/2, the whole head.
    pub received: Instant,
}

/// The fields of a plain request.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestFields<'a> {
    /// HTTP/1.1 lines, with the empty line.
    Lines(&'a [u8]),
    /// HTTP/2 fields.
    Map(&'a HeaderMap),
}

impl<'a> PlainRequest<'a> {
    /// The protocol version.
    pub fn version(&self) -> Version {
        match self.fields {
            RequestFields::Lines(_) => Version::HTTP_11,
            RequestFields::Map(_) => Version::HTTP_2,
        }
    }

    /// Names, in the client's spelling, and values of the fields.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (lines, map) = match self.fields {
            RequestFields::Lines(lines) => (Some(lines), None),
            RequestFields::Map(map) => (None, Some(map)),
        };
        let lines = lines.into_iter().flat_map(|lines| {
            let lines = lines.split(|&byte| byte == b'\n');
            lines.filter_map(|line| {
                let colon = line.iter().position(|&byte| byte == b':')?;
                let value = line[colon + 1..].strip_suffix(b"\r")?;
                Some((&line[..colon], trim(value)))
            })
        });
        let map = map.into_iter().flatten();
        lines.chain(map.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())))
    }
}

/// Number of fields in a usual response; a map with this capacity need not grow.
const FIELDS: usize = 16;

/// The head of a response with status 200, in the format of the protocol.
pub enum ResponseHead<'a> {
    /// HTTP/1.1 text.
    Text(&'a mut Vec<u8>),
    /// HTTP/2 fields, and the total length of names and values.
    Fields(&'a mut HeaderMap, usize),
}

impl ResponseHead<'_> {
    /// Writes the part before the fields.
    pub fn begin(&mut self) {
        match self {
            Self::Text(text) => text.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
            Self::Fields(map, _) => map.reserve(FIELDS),
        }
    }

    /// Adds a field; returns the size of the head so far. `None`: it is not a valid field.
    pub fn push(&mut self, name: &[u8], value: &[u8]) -> Option<usize> {
        match self {
            Self::Text(text) => {
                push_field(text, name, value);
                Some(text.len())
            }
            Self::Fields(map, bytes) => {
                *bytes += name.len() + value.len();
                let name = HeaderName::from_bytes(name).ok()?;
                map.try_append(name, HeaderValue::from_bytes(value).ok()?)
                    .ok()?;
                Some(*bytes)
            }
        }
    }

    /// Adds Content-Length. In HTTP/2 hyper adds it, as for every response.
    pub fn push_length(&mut self, length: u64) -> Option<usize> {
        match self {
            Self::Text(_) => {
                let mut number = itoa::Buffer::new();
                self.push(b"content-length", number.format(length).as_bytes())
            }
            Self::Fields(_, bytes) => Some(*bytes),
        }
    }

    /// Writes the part after the fields.
    pub fn end(&mut self) {
        if let Self::Text(text) = self {
            text.extend_from_slice(b"\r\n");
        }
    }
}

/// The rest of a response after the head.
pub struct MemoryResponse {
    /// At most [`PIECES_MAX`] pieces.
    pub content: Vec<Bytes>,
    /// Charges the content to the client until it is sent.
    pub charge: Option<ShareGuard>,
    /// Called when the response was sent or can never be.
    pub on_sent: OnSent,
}

/// Maximum number of content pieces.
pub const PIECES_MAX: usize = 15;

/// The unsent part of a response.
pub(super) struct Sending {
    head: Vec<u8>,
    head_sent: usize,
    content: Vec<Bytes>,
    /// Index of the first piece not completely sent.
    first: usize,
    /// Held until the response is sent, because a client that does not read keeps the content from
    /// being evicted. The charge limits this to the client's share of memory.
    _charge: Option<ShareGuard>,
}

impl Sending {
    pub(super) fn new(head: Vec<u8>, content: Vec<Bytes>, charge: Option<ShareGuard>) -> Self {
        Self {
            head,
            head_sent: 0,
            content,
            first: 0,
            _charge: charge,
        }
    }

    /// Calls `write` with the unsent part; `None` if everything is sent.
    pub(super) fn write<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> Option<T> {
        let mut slices = [IoSlice::new(&[]); 1 + PIECES_MAX];
        let head = &self.head[self.head_sent..];
        let pieces = self.content[self.first..].iter().map(|piece| &piece[..]);
        let left = std::iter::once(head).chain(pieces);
        let mut count = 0;
        for bytes in left.filter(|bytes| !bytes.is_empty()).take(slices.len()) {
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        (count > 0).then(|| write(&slices[..count]))
    }

    /// Records that `written` more bytes were sent.
    pub(super) fn advance(&mut self, written: usize) {
        let of_head = written.min(self.head.len() - self.head_sent);
        self.head_sent += of_head;
        let mut left = written - of_head;
        while left > 0
            && let Some(piece) = self.content.get_mut(self.first)
        {
            let of_piece = left.min(piece.len());
            piece.advance(of_piece);
            left -= of_piece;
            if piece.is_empty() {
                // Dropped now, because a piece keeps a slab in memory.
                *piece = Bytes::new();
                self.first += 1;
            }
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        put_back(std::mem::take(&mut self.head));
    }
}

/// Takes the thread's buffer for a head, cleared.
pub(super) fn take_buffer() -> Vec<u8> {
    let mut buffer = BUFFER.take();
    buffer.clear();
    buffer
}

/// Returns a buffer to the thread.
pub(super) fn put_back(buffer: Vec<u8>) {
    if buffer.capacity() <= BUFFER_MAX {
        // Fails only while the thread exits; the buffer is then freed.
        let _ = BUFFER.try_with(|it| it.replace(buffer));
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Content that a slow client may keep in memory without a charge: a slab.
pub const FREE_BYTES: usize = 64 << 10;
/// The largest buffer that a thread keeps for the next head.
const BUFFER_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn left(sending: &Sending) -> Vec<u8> {
        let all = |slices: &[IoSlice<'_>]| slices.iter().flat_map(|it| it.to_vec()).collect();
        sending.write(all).unwrap_or_default()
    }

    #[test]
    fn a_response_is_whole_however_it_is_cut() {
        let pieces: Vec<Bytes> = ["", "cd", "", "efg", "h"].map(Bytes::from).into();
        for step in 1..10 {
            let mut sending = Sending::new(b"ab".to_vec(), pieces.clone(), None);
            let mut sent = 0;
            while sent < 8 {
                assert_eq!(left(&sending), b"abcdefgh"[sent..], "{step} {sent}");
                let now = step.min(8 - sent);
                sending.advance(now);
                sent += now;
            }
            assert_eq!(left(&sending), b"");
        }
    }

    #[test]
    fn fields_are_read_as_they_were_checked() {
        let request = PlainRequest {
            target: "/",
            form: RequestForm::Origin,
            authority: None,
            fields: RequestFields::Lines(b"Host: a:80\r\nX-Empty:\r\nY:\t z\t \r\n\r\n"),
            received: Instant::now(),
        };
        let fields: Vec<_> = request.fields().collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"Host", b"a:80"), (b"X-Empty", b""), (b"Y", b"z")];
        assert_eq!(fields, expected);
    }
}
