//! Framing of responses, checked on the fields, and the trailers that may pass.
//!
//! Called by `Upstream` for every final head, with the fields as received.
//!
//! Invariant: every response that passes has one meaning: at most a single Content-Length, and no
//! Transfer-Encoding.

use hashcache_base::failure::Failure;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Version, response};

/// The way in which the end of a response's content is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// No content, whatever the fields contain: HEAD, 1xx, 204, 304.
    Empty,
    /// By Content-Length.
    Length(u64),
    /// By the last chunk.
    Chunked,
    /// By the close of the connection.
    UntilClose,
}

/// A response's framing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JudgedHead {
    pub(super) framing: Framing,
    /// True if the bytes after this response certainly belong to the next response.
    pub(super) trusted: bool,
}

/// Determines the framing of the final response to a `method` request, and removes ambiguous
/// fields.
pub(super) fn judge(head: &mut response::Parts, method: &Method) -> Result<JudgedHead, Failure> {
    let empty = *method == Method::HEAD
        || matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        )
        || head.status.is_informational();
    let coded = head.headers.contains_key(header::TRANSFER_ENCODING);
    if coded && !empty && !is_chunked_alone(&head.headers) {
        // The proxy never requests other codings (TE is dropped). Content in a coding that the
        // reader does not expect would be wrong bytes.
        return Err(Failure::ResponseMalformed("transfer-coding is not chunked"));
    }
    if coded && !empty && head.version == Version::HTTP_10 {
        // HTTP/1.0 has no codings, so another recipient may take the chunks for content (RFC 9112,
        // section 6.1).
        return Err(Failure::ResponseMalformed("transfer-coding in HTTP/1.0"));
    }
    let length = if coded {
        None
    } else {
        one_length(&head.headers).map_err(Failure::ResponseMalformed)?
    };
    // A length together with a coding is an old smuggling trick (RFC 9112, section 6.3): the coding
    // counts, and the connection is not reused.
    let trusted = !(coded && head.headers.contains_key(header::CONTENT_LENGTH));
    head.headers.remove(header::TRANSFER_ENCODING);
    let stated = length.filter(|_| head.status != StatusCode::NO_CONTENT);
    if stated.is_none() || !has_one_plain_length(&head.headers) {
        head.headers.remove(header::CONTENT_LENGTH);
        if let Some(length) = stated {
            head.headers
                .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    let framing = match (empty, coded, length) {
        (true, ..) => Framing::Empty,
        (_, true, _) => Framing::Chunked,
        (_, _, Some(length)) => Framing::Length(length),
        _ => Framing::UntilClose,
    };
    Ok(JudgedHead { framing, trusted })
}

fn is_chunked_alone(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let (first, second) = (codings.next(), codings.next());
    second.is_none()
        && first.is_some_and(|coding| {
            coding
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(b"chunked")
        })
}

/// Returns true if Content-Length occurs once, in the form that this proxy writes: digits without
/// leading zeros.
fn has_one_plain_length(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let (first, second) = (lines.next(), lines.next());
    let is_plain = |text: &[u8]| match text {
        [b'0', _, ..] => false,
        text => text.iter().all(u8::is_ascii_digit),
    };
    second.is_none() && first.is_some_and(|value| is_plain(value.as_bytes()))
}

/// Returns the length if all Content-Length fields agree.
fn one_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut found = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for member in value.as_bytes().split(|byte| *byte == b',') {
            let digits = member.trim_ascii();
            let number = std::str::from_utf8(digits)
                .ok()
                .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|text| text.parse::<u64>().ok())
                .ok_or("content-length is not a number")?;
            if found.is_some_and(|other| other != number) {
                return Err("content-lengths differ");
            }
            found = Some(number);
        }
    }
    Ok(found)
}

/// Returns the Content-Length value, if it is a number.
pub(super) fn content_length(fields: &HeaderMap) -> Option<u64> {
    let value = fields.get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.parse().ok()
}

/// Removes fields from `trailers` that are only allowed in a head (RFC 9110, section 6.5.1):
/// framing, routing, authentication, request modifiers, caching, and connection fields.
pub(crate) fn filter_trailers(trailers: &mut HeaderMap) {
    for name in NOT_IN_TRAILERS {
        trailers.remove(name);
    }
    let connection: [HeaderName; 2] =
        ["keep-alive", "proxy-connection"].map(HeaderName::from_static);
    for name in connection {
        trailers.remove(name);
    }
}

const NOT_IN_TRAILERS: [HeaderName; 37] = [
    header::AGE,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::ETAG,
    header::EXPECT,
    header::EXPIRES,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::MAX_FORWARDS,
    header::PRAGMA,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::RETRY_AFTER,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::VARY,
    header::VIA,
    header::WARNING,
    header::WWW_AUTHENTICATE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(
        method: &Method,
        status: u16,
        fields: &[(&'static str, &'static str)],
    ) -> Result<(Framing, bool, Option<String>), Failure> {
        let mut response = http::Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let mut head = response.body(()).unwrap().into_parts().0;
        let JudgedHead { framing, trusted } = judge(&mut head, method)?;
        assert!(!head.headers.contains_key("transfer-encoding"));
        assert!(head.headers.get_all("content-length").iter().count() <= 1);
        let length = head.headers.get("content-length");
        Ok((
            framing,
            trusted,
            length.map(|value| value.to_str().unwrap().to_owned()),
        ))
    }

    #[test]
    fn every_response_that_passes_has_one_meaning() {
        let five = || Some("5".to_owned());
        for (method, status, fields, expected) in [
            (Method::GET, 200, &[][..], (Framing::UntilClose, true, None)),
            (
                Method::GET,
                200,
                &[("content-length", "5")],
                (Framing::Length(5), true, five()),
            ),
            (
                Method::GET,
                200,
                &[("content-length", "5"), ("content-length", "5, 05")],
                (Framing::Length(5), true, five()),
            ),
            (
                Method::GET,
                200,
                &[("transfer-encoding", "Chunked")],
                (Framing::Chunked, true, None),
            ),
            (
                Method::GET,
                200,
                &[("transfer-encoding", "chunked"), ("content-length", "5")],
                (Framing::Chunked, false, None),
            ),
            (
                Method::HEAD,
                200,
                &[("content-length", "5")],
                (Framing::Empty, true, five()),
            ),
            (
                Method::HEAD,
                200,
                &[("transfer-encoding", "x")],
                (Framing::Empty, true, None),
            ),
            (
                Method::GET,
                304,
                &[("content-length", "5")],
                (Framing::Empty, true, five()),
            ),
            (
                Method::GET,
                204,
                &[("content-length", "5")],
                (Framing::Empty, true, None),
            ),
        ] {
            assert_eq!(
                judged(&method, status, fields),
                Ok(expected),
                "{method} {status} {fields:?}"
            );
        }
    }

    #[test]
    fn a_response_with_two_meanings_is_refused() {
        for fields in [
            &[("content-length", "5"), ("content-length", "6")][..],
            &[("content-length", "5, 6")],
            &[("content-length", "+5")],
            &[("content-length", "")],
            &[("content-length", "0x5")],
            &[("content-length", "99999999999999999999999")],
            &[("transfer-encoding", "gzip")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked, chunked")],
            &[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            &[("transfer-encoding", "identity")],
            &[("transfer-encoding", "")],
        ] {
            let refused = judged(&Method::GET, 200, fields);
            assert!(
                matches!(refused, Err(Failure::ResponseMalformed(_))),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn trailers_keep_only_what_may_come_late() {
        let mut trailers = HeaderMap::new();
        for name in [
            "content-length",
            "set-cookie",
            "keep-alive",
            "cache-control",
            "x-checksum",
        ] {
            trailers.insert(name, HeaderValue::from_static("1"));
        }
        filter_trailers(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-checksum"]);
    }
}
