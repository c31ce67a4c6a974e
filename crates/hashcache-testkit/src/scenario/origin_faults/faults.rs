//! The fault table: every known way for an origin to send a false, ambiguous or incomplete
//! response.
//!
//! In the bytes, `|` stands for CRLF, `{x*N}` for N letters x, `{f*N}` for N field lines, and
//! `{i*N}` for N interim responses. Most heads carry `max-age`, so that a faulty proxy would store
//! the response.

use super::{After, Fault};

const fn fault(
    name: &'static str,
    bytes: &'static [u8],
    after: After,
    whole: &'static [(u16, &'static [u8])],
) -> Fault {
    Fault {
        name,
        bytes,
        after,
        method: "GET",
        whole,
    }
}

use After::{Close, Keep, Reset};

/// All faults: name, bytes, action after the bytes, and the responses that a client may accept as
/// complete.
#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    // Correct responses, for comparison.
    fault("none-length", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("none-chunks", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0||", Keep, &[(200, b"hello")]),
    fault("none-until-close", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Connection: close||hello", Close, &[(200, b"hello")]),

    // Conflicting or invalid framing.
    fault("length-and-coding", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 3|Transfer-Encoding: chunked||5|hello|0||", Keep, &[(200, b"hello")]),
    fault("coding-and-length", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked|Content-Length: 30||5|hello|0||", Keep, &[(200, b"hello")]),
    fault("lengths-different", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5|Content-Length: 7||hello", Close, &[]),
    fault("lengths-equal", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("length-list-different", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5, 7||hello", Close, &[]),
    fault("length-negative", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: -5||hello", Close, &[]),
    fault("length-sign", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: +5||hello", Close, &[]),
    fault("length-hex", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 0x5||hello", Close, &[]),
    fault("length-letters", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5a||hello", Close, &[]),
    fault("length-too-large", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 18446744073709551621||hello", Close, &[]),
    fault("length-empty", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length:||hello", Close, &[]),
    fault("coding-unknown", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: gzip||hello", Close, &[]),
    fault("coding-gzip-chunked", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: gzip, chunked||5|hello|0||", Close, &[]),
    fault("coding-twice", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked|Transfer-Encoding: chunked||5|hello|0||", Close, &[]),
    fault("coding-chunked-identity", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked, identity||5|hello|0||", Close, &[]),
    fault("coding-in-1.0", b"HTTP/1.0 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0||", Close, &[]),

    // Content or head cut short.
    fault("short-length-fin", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 10||hello", Close, &[]),
    fault("short-length-rst", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 10||hello", Reset, &[]),
    fault("short-by-one", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 6||hello", Close, &[]),
    fault("short-large", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 300000||{x*299999}", Close, &[]),
    fault("nothing-of-the-body", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 10||", Close, &[]),
    fault("chunks-without-last", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|", Close, &[]),
    fault("chunks-rst", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|", Reset, &[]),
    fault("chunks-without-end-of-trailers", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0|", Close, &[]),
    fault("chunk-broken-off", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||a|hello", Close, &[]),
    fault("chunk-head-broken-off", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|5", Close, &[]),
    fault("no-chunk-at-all", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||", Close, &[]),
    fault("until-close-rst", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600||{x*100000}", Reset, &[]),
    fault("head-broken-off", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Len", Close, &[]),
    fault("head-without-end", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5|", Close, &[]),
    fault("closed-at-once", b"", Close, &[]),
    fault("reset-at-once", b"", Reset, &[]),

    // Malformed or oversized chunks and trailers.
    fault("chunk-size-sign", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||+5|hello|0||", Close, &[]),
    fault("chunk-size-0x", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||0x5|hello|0||", Close, &[]),
    fault("chunk-size-letters", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||five|hello|0||", Close, &[]),
    fault("chunk-size-empty", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked|||hello|0||", Close, &[]),
    fault("chunk-size-2-to-64", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||10000000000000005|hello|0||", Close, &[]),
    fault("chunk-longer", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello!|0||", Close, &[]),
    fault("chunk-shorter", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||6|hello|0||", Close, &[]),
    fault("chunk-extension-huge", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5;{x*1000000}|hello|0||", Close, &[(200, b"hello")]),
    fault("trailers-huge", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0|{f*100000}|", Close, &[(200, b"hello")]),
    fault("trailer-malformed", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0|no colon||", Close, &[]),
    fault("trailer-with-length", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0|Content-Length: 50||", Keep, &[(200, b"hello")]),

    // Malformed heads.
    fault("folded", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X: a| b|Content-Length: 5||hello", Close, &[(200, b"hello")]),
    fault("folded-length", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length:| 5||hello", Close, &[(200, b"hello")]),
    fault("folded-coding", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding:| chunked||5|hello|0||", Close, &[(200, b"hello")]),
    fault("space-before-colon", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length : 5||hello", Close, &[(200, b"hello")]),
    fault("length-without-colon", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length||hello", Close, &[]),
    fault("field-without-colon", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X|Content-Length: 5||hello", Close, &[(200, b"hello")]),
    fault("nul-in-value", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X: a\0b|Content-Length: 5||hello", Close, &[]),
    fault("cr-in-value", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X: a\rContent-Length: 3|Content-Length: 5||hello", Close, &[]),
    fault("control-in-value", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X: a\x7fb\x01|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("control-in-length", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 3\x01||hello", Close, &[]),
    fault("control-in-coding", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: \x0bchunked||5|hello|0||", Close, &[]),
    fault("control-in-coding-name", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer\x01-Encoding: chunked|Content-Length: 5||5|hello|0||", Close, &[]),
    fault("space-before-coding-name", b"HTTP/1.1 200 OK| Transfer-Encoding: chunked|Cache-Control: max-age=3600|Content-Length: 5||5|hello|0||", Close, &[]),
    fault("name-no-token", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X Y: a|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("reason-of-any-bytes", b"HTTP/1.1 200 \xe4\x01\0|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("version-1.9", b"HTTP/1.9 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("version-1.10", b"HTTP/1.10 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Close, &[]),
    fault("lf-everywhere", b"HTTP/1.1 200 OK\nCache-Control: max-age=3600\nContent-Length: 5\n\nhello", Close, &[(200, b"hello")]),
    fault("head-huge", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|X: {x*1000000}|Content-Length: 5||hello", Close, &[]),
    fault("fields-too-many", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|{f*20000}Content-Length: 5||hello", Close, &[]),
    fault("head-endless", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|{f*500000}", Close, &[]),
    fault("status-four-digits", b"HTTP/1.1 2000 OK|Content-Length: 5||hello", Close, &[]),
    fault("status-two-digits", b"HTTP/1.1 20 OK|Content-Length: 5||hello", Close, &[]),
    fault("status-letters", b"HTTP/1.1 OK|Content-Length: 5||hello", Close, &[]),
    fault("status-000", b"HTTP/1.1 000 Zero|Content-Length: 5||hello", Close, &[]),
    fault("status-999", b"HTTP/1.1 999 Nine|Content-Length: 5||hello", Close, &[(999, b"hello")]),
    fault("version-2", b"HTTP/2.0 200 OK|Content-Length: 5||hello", Close, &[]),
    fault("not-http", b"220 mail.example ESMTP||", Close, &[]),
    fault("icy", b"ICY 200 OK||hello", Close, &[]),
    fault("binary", b"\x00\x01\x02\x03\xff\xfe\xfd||", Close, &[]),

    // Interim responses, and statuses with special rules (101, 204, 206, 304).
    fault("interim-then-final", b"{i*3}HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(200, b"hello")]),
    fault("interim-flood", b"{i*5000}HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Close, &[(200, b"hello")]),
    fault("interim-then-nothing", b"{i*3}", Close, &[]),
    fault("interim-with-length", b"HTTP/1.1 103 Early|Content-Length: 5||HTTP/1.1 200 OK|Content-Length: 5||hello", Close, &[(200, b"hello")]),
    fault("unasked-101", b"HTTP/1.1 101 Switching|Connection: Upgrade|Upgrade: x||hello", Close, &[]),
    fault("no-content-with-content", b"HTTP/1.1 204 No Content|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(204, b"")]),
    fault("unasked-304", b"HTTP/1.1 304 Not Modified|Cache-Control: max-age=3600|ETag: \"a\"||", Keep, &[(304, b"")]),
    fault("304-with-content", b"HTTP/1.1 304 Not Modified|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(304, b"")]),
    fault("unasked-206", b"HTTP/1.1 206 Partial|Cache-Control: max-age=3600|ETag: \"a\"|Content-Range: bytes 0-4/10|Content-Length: 5||hello", Keep, &[(206, b"hello")]),
    fault("206-without-range", b"HTTP/1.1 206 Partial|Cache-Control: max-age=3600|ETag: \"a\"|Content-Length: 5||hello", Keep, &[(206, b"hello")]),
    fault("206-range-and-length-differ", b"HTTP/1.1 206 Partial|Cache-Control: max-age=3600|ETag: \"a\"|Content-Range: bytes 0-9/10|Content-Length: 5||hello", Keep, &[(206, b"hello")]),

    // Bytes after the response, which the next request on the connection must not get.
    fault("second-answer", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||helloHTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 8||poisoned", Keep, &[(200, b"hello")]),
    fault("second-answer-after-chunks", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0||HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 8||poisoned", Keep, &[(200, b"hello")]),
    fault("bytes-after-the-body", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello, world", Keep, &[(200, b"hello")]),
    fault("answer-after-204", b"HTTP/1.1 204 No Content||HTTP/1.1 200 OK|Content-Length: 8||poisoned", Keep, &[(204, b"")]),
    fault("answer-after-304", b"HTTP/1.1 304 Not Modified||HTTP/1.1 200 OK|Content-Length: 8||poisoned", Keep, &[(304, b"")]),
    Fault { method: "HEAD", ..fault("head-with-content", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||hello", Keep, &[(200, b"")]) },
    Fault { method: "HEAD", ..fault("head-with-chunks", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Transfer-Encoding: chunked||5|hello|0||", Keep, &[(200, b"")]) },
    Fault { method: "HEAD", ..fault("head-then-answer", b"HTTP/1.1 200 OK|Cache-Control: max-age=3600|Content-Length: 5||HTTP/1.1 200 OK|Content-Length: 8||poisoned", Keep, &[(200, b"")]) },
];
