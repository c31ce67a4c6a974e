//! A request as text, and the content on the way to the connection.
//!
//! Called by `Http1Conn::send`. `prepare` has set the request fields; here they decide the content
//! framing.
//!
//! Invariant: the request stops where the head announces, or the connection closes.

use std::io::Write as _;

use hashcache_wire::Outgoing;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Request, Version};
use http_body::Body as _;

use super::super::framing::content_length;
use super::super::request_body::RequestBody;

/// The way in which the end of a request's content is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentFraming {
    /// There is no content.
    Empty,
    /// By Content-Length: this many bytes are left.
    Length(u64),
    /// By the last chunk.
    Chunked,
}

/// Appends the head of `request`, with `target` instead of the URI if there is one, to `outgoing`.
pub(super) fn write_head(
    outgoing: &mut Outgoing,
    request: &Request<RequestBody>,
    target: Option<&[u8]>,
) -> SentFraming {
    debug_assert_eq!(request.version(), Version::HTTP_11);
    let text = &mut outgoing.text;
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
            outgoing.push_field(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    match framing {
        SentFraming::Length(length) if !fields.contains_key(CONTENT_LENGTH) => {
            let mut digits = itoa::Buffer::new();
            outgoing.push_field(b"content-length", digits.format(length).as_bytes());
        }
        SentFraming::Chunked if !fields.contains_key(TRANSFER_ENCODING) => {
            outgoing.push_field(b"transfer-encoding", b"chunked");
        }
        SentFraming::Length(_) | SentFraming::Chunked | SentFraming::Empty => {}
    }
    outgoing.text.extend_from_slice(b"\r\n");
    framing
}

/// Writes the target. In origin-form `http::Uri` has exactly this text; otherwise `Uri` formats it.
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
