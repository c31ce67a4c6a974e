//! Response heads.
//!
//! Called by `Http1Conn` when `repair` has seen a complete head.
//!
//! Invariant: names and values are as `repair` has let them pass; a line without a name is dropped,
//! but never a line that could frame the content.
//! Cost: a pass, a copy of the head, which all values share, and the map. A large head is not
//! copied, but read twice.

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use hashcache_base::failure::Failure;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode, Version};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;

/// Maximum numbers of bytes and of fields in a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    pub(super) bytes: usize,
    pub(super) fields: usize,
}

/// Takes the complete head at the start of `read`.
pub(super) fn take(read: &mut BytesMut, limits: HeadLimits) -> Result<Response<()>, Failure> {
    let small = |text: &[u8]| (text.len() <= COPIED_MAX).then(|| Bytes::copy_from_slice(text));
    let (length, response) = parse(read, limits, small)?;
    if let Some(response) = response {
        read.advance(length);
        return Ok(response);
    }
    // The fields of a large head share the buffer that it was read into.
    let text = read.split_to(length).freeze();
    let (_, response) = parse(&text, limits, |_| Some(text.clone()))?;
    response.ok_or(MALFORMED)
}

/// Fails if `read` can never become a head within `limits`. Empty lines before a head have no
/// meaning, but they count.
pub(super) fn check_begun(read: &[u8], limits: HeadLimits) -> Result<(), Failure> {
    const VERSION: &[u8] = b"HTTP/1.";
    let begin = read.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let begun = &read[begin.unwrap_or(read.len())..];
    let begun = &begun[..begun.len().min(VERSION.len())];
    if !VERSION.starts_with(begun) {
        return Err(MALFORMED);
    }
    if read.len() > limits.bytes {
        Err(TOO_LARGE)
    } else {
        Ok(())
    }
}

const MALFORMED: Failure = Failure::ResponseMalformed("head is not HTTP/1");
const TOO_LARGE: Failure = Failure::ResponseMalformed("head is too large");

/// Returns the length of the head at the start of `read`, and the head. `shared` makes the buffer
/// that the field values share; if it returns `None`, no head is built.
fn parse(
    read: &[u8],
    limits: HeadLimits,
    shared: impl FnOnce(&[u8]) -> Option<Bytes>,
) -> Result<(usize, Option<Response<()>>), Failure> {
    let mut config = ParserConfig::default();
    config
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        // Framing does not depend on a line that is dropped; see `repair`.
        .ignore_invalid_headers_in_responses(true);
    let (mut few, mut many) = ([const { MaybeUninit::uninit() }; FEW_FIELDS], Vec::new());
    let mut parsed = httparse::Response::new(&mut []);
    let mut status = config.parse_response_with_uninit_headers(&mut parsed, read, &mut few);
    if status == Err(httparse::Error::TooManyHeaders) && limits.fields > FEW_FIELDS {
        many.resize_with(limits.fields, MaybeUninit::uninit);
        parsed = httparse::Response::new(&mut []);
        status = config.parse_response_with_uninit_headers(&mut parsed, read, &mut many);
    }
    let length = match status {
        Ok(Status::Complete(length)) if length <= limits.bytes => length,
        Ok(Status::Complete(_)) | Err(httparse::Error::TooManyHeaders) => return Err(TOO_LARGE),
        Ok(Status::Partial) | Err(_) => return Err(MALFORMED),
    };
    if parsed.headers.len() > limits.fields {
        return Err(TOO_LARGE);
    }
    let text = &read[..length];
    match shared(text) {
        Some(shared) => {
            let response = build(&parsed, text, &shared).ok_or(MALFORMED)?;
            Ok((length, Some(response)))
        }
        None => Ok((length, None)),
    }
}

/// Builds the response; `text` is the parsed text, and `shared` has the same bytes.
fn build(parsed: &httparse::Response<'_, '_>, text: &[u8], shared: &Bytes) -> Option<Response<()>> {
    let mut response = Response::new(());
    let code = StatusCode::from_u16(parsed.code?).ok()?;
    *response.status_mut() = code;
    *response.version_mut() = match parsed.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    let reason = parsed.reason?;
    if code.canonical_reason() != Some(reason) {
        let reason = ReasonPhrase::try_from(reason.as_bytes()).ok()?;
        response.extensions_mut().insert(reason);
    }
    let text_at = text.as_ptr().addr();
    let mut fields = HeaderMap::try_with_capacity(parsed.headers.len()).ok()?;
    for field in &*parsed.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = if field.value.contains(&b'\n') {
            HeaderValue::from_bytes(&unfold(field.value)).ok()?
        } else {
            let at = field.value.as_ptr().addr().checked_sub(text_at)?;
            let value = shared.slice(at..at + field.value.len());
            HeaderValue::from_maybe_shared(value).ok()?
        };
        fields.try_append(name, value).ok()?;
    }
    *response.headers_mut() = fields;
    Some(response)
}

/// Returns a value with each line folding replaced by a space (RFC 9112, section 5.2).
fn unfold(value: &[u8]) -> Vec<u8> {
    let lines: Vec<_> = value.split(|&byte| byte == b'\n').collect();
    let lines: Vec<_> = lines.iter().map(|line| line.trim_ascii()).collect();
    lines.join(&b' ')
}

/// A head up to this size is copied, so that the read buffer can be used again.
const COPIED_MAX: usize = 8 << 10;
/// Enough fields for almost every head; an array with this size is on the stack.
const FEW_FIELDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Result<(Response<()>, Vec<u8>), Failure> {
        let mut read = BytesMut::from(text);
        let limits = HeadLimits {
            bytes: 20_000,
            fields: 100,
        };
        let response = take(&mut read, limits)?;
        Ok((response, read.to_vec()))
    }

    #[test]
    fn a_head_is_taken_and_what_follows_it_stays() {
        let text =
            "HTTP/1.0 299 So so\r\nA: b \r\nC : d\r\nE: f\r\n \t g\r\n h\r\nno\x01: x\r\n\r\nrest";
        let (response, rest) = taken(text).unwrap();
        assert_eq!(
            (response.status().as_u16(), response.version()),
            (299, Version::HTTP_10)
        );
        assert_eq!(
            response
                .extensions()
                .get::<ReasonPhrase>()
                .unwrap()
                .as_bytes(),
            b"So so"
        );
        let fields: Vec<_> = response.headers().iter().collect();
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(fields, [("a", "b"), ("c", "d"), ("e", "f g h")]);
        assert_eq!(rest, b"rest");
        let (response, _) = taken("HTTP/1.1 200 OK\r\n\r\n").unwrap();
        assert!(response.extensions().is_empty());
    }

    #[test]
    fn a_head_has_many_fields_but_not_any_number() {
        let head = |count| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(count));
        for count in [0, 64, 65, 100] {
            assert_eq!(taken(&head(count)).unwrap().0.headers().len(), count);
        }
        assert_eq!(taken(&head(101)).unwrap_err(), TOO_LARGE);
        let few = HeadLimits {
            bytes: 1000,
            fields: 3,
        };
        assert!(take(&mut BytesMut::from(&*head(3)), few).is_ok());
        let over = take(&mut BytesMut::from(&*head(4)), few);
        assert_eq!(over.unwrap_err(), TOO_LARGE);
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "b".repeat(20_000));
        assert_eq!(taken(&long).unwrap_err(), TOO_LARGE);
        let large = format!(
            "HTTP/1.1 200 OK\r\nA: {}\r\nC: d\r\n\r\nrest",
            "b".repeat(10_000)
        );
        let (response, rest) = taken(&large).unwrap();
        assert_eq!(
            (response.headers()["a"].len(), rest),
            (10_000, b"rest".to_vec())
        );
        assert_eq!(response.headers()["c"], "d");
        for text in [
            "HTTP/2 200 OK\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n",
        ] {
            assert_eq!(taken(text).unwrap_err(), MALFORMED, "{text:?}");
        }
    }
}
