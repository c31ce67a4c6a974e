//! The request table: every known way to write an ambiguous request, and requests that only look
//! ambiguous.
//!
//! In the bytes, `|` stands for CRLF, and a word in braces for a text that differs from run to run:
//!
//! | word | meaning |
//! |---|---|
//! | `{t}` | target of the request, in the form of the mode (a URL, or a path) |
//! | `{p}` | target of a second, intended request |
//! | `{s}` | target of bytes that must never be parsed as a request |
//! | `{h}` | authority of the origin |
//! | `{path}` | the path of `{t}` |
//! | `{x*N}` | the letter x, N times |
//! | `{f*N}` | N field lines |
//!
//! Sources: RFC 9112, the published tables of request smuggling research (CL.TE, TE.CL, TE.TE,
//! CL.0, chunk extensions, funky chunks), and the refusals in `hashcache-wire`.

use super::{Allowed, Modes, Shape};

use Allowed::{Either, Forwarded, Refused, RefusedAlone};
use Modes::{Accelerate, Both, Forward};

const fn refused(name: &'static str, bytes: &'static [u8]) -> Shape {
    Shape {
        name,
        bytes,
        allowed: Refused,
        modes: Both,
    }
}

/// The end of this request is unambiguous, so the proxy refuses only the request and may keep the
/// connection.
const fn refused_alone(name: &'static str, bytes: &'static [u8]) -> Shape {
    Shape {
        name,
        bytes,
        allowed: RefusedAlone,
        modes: Both,
    }
}

const fn passed(name: &'static str, bytes: &'static [u8], body: &'static [u8]) -> Shape {
    Shape {
        name,
        bytes,
        allowed: Forwarded(body),
        modes: Both,
    }
}

const fn either(name: &'static str, bytes: &'static [u8]) -> Shape {
    Shape {
        name,
        bytes,
        allowed: Either,
        modes: Both,
    }
}

const fn only(modes: Modes, shape: Shape) -> Shape {
    Shape { modes, ..shape }
}

/// All shapes.
#[rustfmt::skip]
pub const SHAPES: &[Shape] = &[
    // Line ends and control characters.
    refused("lf-everywhere", b"GET {t} HTTP/1.1\nHost: {h}\n\n"),
    refused("lf-after-request-line", b"GET {t} HTTP/1.1\nHost: {h}||"),
    refused("lf-between-fields", b"GET {t} HTTP/1.1|Host: {h}|X: a\nY: b||"),
    refused("lf-ends-head", b"GET {t} HTTP/1.1|Host: {h}|\n"),
    refused("lf-hides-coding", b"POST {t} HTTP/1.1|Host: {h}|X: a\nTransfer-Encoding: chunked|Content-Length: 5||0||X"),
    refused("lf-then-request", b"GET {t} HTTP/1.1|Host: {h}|X: a\n\nGET {s} HTTP/1.1|Host: {h}||"),
    refused("cr-in-value", b"GET {t} HTTP/1.1|Host: {h}|X: a\rY: b||"),
    refused("cr-hides-length", b"POST {t} HTTP/1.1|Host: {h}|X: a\rContent-Length: 5||hello"),
    refused("cr-after-request-line", b"GET {t} HTTP/1.1\rHost: {h}||"),
    refused("cr-cr-lf", b"GET {t} HTTP/1.1|Host: {h}\r|X: a||"),
    refused("cr-lf-cr-ends-head", b"GET {t} HTTP/1.1|Host: {h}|\rX"),
    passed("one-empty-line-before", b"|GET {t} HTTP/1.1|Host: {h}||", b""),
    passed("four-empty-lines-before", b"||||GET {t} HTTP/1.1|Host: {h}||", b""),
    refused("five-empty-lines-before", b"|||||GET {t} HTTP/1.1|Host: {h}||"),
    refused("empty-lines-then-lf-before", b"||\nGET {t} HTTP/1.1|Host: {h}||"),
    refused("lf-before", b"\nGET {t} HTTP/1.1|Host: {h}||"),
    refused("nul-in-value", b"GET {t} HTTP/1.1|Host: {h}|X: a\0b||"),
    refused("nul-in-target", b"GET {t}\0 HTTP/1.1|Host: {h}||"),
    refused("nul-in-coding-name", b"POST {t} HTTP/1.1|Host: {h}|Transfer-\0Encoding: chunked|Content-Length: 5||0||X"),
    refused("control-in-value", b"GET {t} HTTP/1.1|Host: {h}|X: a\x01b||"),
    refused("delete-in-value", b"GET {t} HTTP/1.1|Host: {h}|X: a\x7fb||"),
    refused("escape-in-target", b"GET {t}\x1b[2J HTTP/1.1|Host: {h}||"),
    refused("tls-hello", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03||"),
    refused("http2-preface", b"PRI * HTTP/2.0||SM||"),

    // The request line.
    refused("space-before-method", b" GET {t} HTTP/1.1|Host: {h}||"),
    refused("two-spaces-before-target", b"GET  {t} HTTP/1.1|Host: {h}||"),
    refused("two-spaces-before-version", b"GET {t}  HTTP/1.1|Host: {h}||"),
    refused("space-after-version", b"GET {t} HTTP/1.1 |Host: {h}||"),
    refused("tab-for-space", b"GET\t{t} HTTP/1.1|Host: {h}||"),
    refused("tab-before-version", b"GET {t}\tHTTP/1.1|Host: {h}||"),
    refused("space-in-target", b"GET {t} {s} HTTP/1.1|Host: {h}||"),
    refused("two-versions", b"GET {t} HTTP/1.1 HTTP/1.1|Host: {h}||"),
    refused("http-0.9", b"GET {t}|Host: {h}||"),
    refused("no-method", b"{t} HTTP/1.1|Host: {h}||"),
    refused("method-no-token", b"G(T {t} HTTP/1.1|Host: {h}||"),
    refused("method-high-byte", b"G\xc9T {t} HTTP/1.1|Host: {h}||"),
    either("method-lower-case", b"get {t} HTTP/1.1|Host: {h}||"),
    either("method-unknown", b"SMUGGLE {t} HTTP/1.1|Host: {h}||"),
    either("method-unknown-with-body", b"SMUGGLE {t} HTTP/1.1|Host: {h}|Content-Length: 5||hello"),
    refused("version-lower-case", b"GET {t} http/1.1|Host: {h}||"),
    refused("version-1.10", b"GET {t} HTTP/1.10|Host: {h}||"),
    passed("version-1.2", b"GET {t} HTTP/1.2|Host: {h}||", b""),
    passed("version-1.9-with-chunks", b"POST {t} HTTP/1.9|Host: {h}|Transfer-Encoding: chunked||5|hello|0||", b"hello"),
    refused("version-1.2-without-host", b"GET {t} HTTP/1.2||"),
    refused("version-2.0", b"GET {t} HTTP/2.0|Host: {h}||"),
    refused("version-trailing", b"GET {t} HTTP/1.1x|Host: {h}||"),
    refused("version-0.9-named", b"GET {t} HTTP/0.9|Host: {h}||"),

    // Targets.
    refused("fragment", b"GET {t}#f HTTP/1.1|Host: {h}||"),
    refused("fragment-hides-path", b"GET http://{h}#{path} HTTP/1.1|Host: {h}||"),
    refused("userinfo", b"GET http://u@{h}{path} HTTP/1.1|Host: {h}||"),
    refused("userinfo-looks-like-host", b"GET http://{h}:80@{h}{path} HTTP/1.1|Host: {h}||"),
    refused("port-0", b"GET http://127.0.0.1:0{path} HTTP/1.1|Host: {h}||"),
    refused("port-65536", b"GET http://127.0.0.1:65536{path} HTTP/1.1|Host: {h}||"),
    refused("port-sign", b"GET http://127.0.0.1:+80{path} HTTP/1.1|Host: {h}||"),
    refused_alone("ipv4-as-one-number", b"GET http://2130706433{path} HTTP/1.1|Host: {h}||"),
    refused_alone("ipv4-in-hex", b"GET http://0x7f.0.0.1{path} HTTP/1.1|Host: {h}||"),
    refused_alone("ipv4-in-octal", b"GET http://0177.0.0.1{path} HTTP/1.1|Host: {h}||"),
    refused_alone("ipv4-short", b"GET http://127.1{path} HTTP/1.1|Host: {h}||"),
    refused("ipv6-broken", b"GET http://[::1{path} HTTP/1.1|Host: {h}||"),
    refused("backslash-in-host", b"GET http://{h}\\{path} HTTP/1.1|Host: {h}||"),
    refused("percent-in-host", b"GET http://127.0.0.1%2f{path} HTTP/1.1|Host: {h}||"),
    refused("no-host-in-url", b"GET http://{path} HTTP/1.1|Host: {h}||"),
    refused("one-slash-url", b"GET http:{path} HTTP/1.1|Host: {h}||"),
    refused("scheme-file", b"GET file://{path} HTTP/1.1|Host: {h}||"),
    refused("scheme-ws", b"GET ws://{h}{path} HTTP/1.1|Host: {h}||"),
    refused_alone("scheme-ftp", b"GET ftp://{h}{path} HTTP/1.1|Host: {h}||"),
    refused("target-relative", b"GET smuggled HTTP/1.1|Host: {h}||"),
    refused("target-asterisk", b"GET * HTTP/1.1|Host: {h}||"),
    refused("target-authority", b"GET {h} HTTP/1.1|Host: {h}||"),
    refused("target-high-then-fragment", b"GET {t}\xff#x HTTP/1.1|Host: {h}||"),
    only(Forward, passed("host-field-lies", b"GET {t} HTTP/1.1|Host: elsewhere.example||", b"")),
    only(Forward, passed("scheme-upper-case", b"GET HTTP://{h}{path} HTTP/1.1|Host: {h}||", b"")),
    only(Accelerate, either("url-of-another-site", b"GET http://elsewhere.example{path} HTTP/1.1|Host: {h}||")),
    only(Accelerate, either("host-of-another-site", b"GET {path} HTTP/1.1|Host: elsewhere.example||")),
    passed("target-bytes-that-uris-do-not-have", b"GET {t}/\"<>^`\\[]?\"<>^`\\[] HTTP/1.1|Host: {h}||", b""),
    passed("path-that-looks-encoded", b"GET {t}/..%2f%0d%0aX:%20y?a=%00 HTTP/1.1|Host: {h}||", b""),
    refused("connect-with-length", b"CONNECT {h} HTTP/1.1|Host: {h}|Content-Length: 5||hello"),
    refused("connect-with-coding", b"CONNECT {h} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||0||"),
    refused("connect-without-port", b"CONNECT localhost HTTP/1.1|Host: {h}||"),
    refused("connect-to-url", b"CONNECT http://{h}/ HTTP/1.1|Host: {h}||"),
    refused("connect-to-path", b"CONNECT {path} HTTP/1.1|Host: {h}||"),

    // Field lines.
    refused("space-before-colon", b"POST {t} HTTP/1.1|Host: {h}|Content-Length : 5||hello"),
    refused("tab-before-colon", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding\t: chunked|Content-Length: 5||0||X"),
    refused("fold-with-space", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding:| chunked|Content-Length: 5||0||X"),
    refused("fold-with-tab", b"GET {t} HTTP/1.1|Host: {h}|X: a|\tb||"),
    refused("fold-at-first-field", b"GET {t} HTTP/1.1| X: a|Host: {h}||"),
    refused("fold-hides-length", b"POST {t} HTTP/1.1|Host: {h}|X: a| Content-Length: 5||hello"),
    refused("field-without-colon", b"GET {t} HTTP/1.1|Host: {h}|X||"),
    refused("field-without-name", b"GET {t} HTTP/1.1|Host: {h}|: a||"),
    refused("field-name-no-token", b"GET {t} HTTP/1.1|Host: {h}|X(: a||"),
    refused("field-name-high-byte", b"POST {t} HTTP/1.1|Host: {h}|Content-L\xc3\xa9ngth: 5||hello"),
    passed("underscore-is-another-name", b"POST {t} HTTP/1.1|Host: {h}|Content_Length: 50|Transfer_Encoding: chunked|Content-Length: 5||hello", b"hello"),
    refused("fields-too-many", b"GET {t} HTTP/1.1|Host: {h}|{f*300}|"),
    refused("head-too-large", b"GET {t} HTTP/1.1|Host: {h}|X: {x*70000}||"),
    refused("target-too-long", b"GET {t}{x*20000} HTTP/1.1|Host: {h}||"),

    // Host.
    refused("host-missing", b"GET {t} HTTP/1.1||"),
    passed("host-twice-equal", b"GET {t} HTTP/1.1|Host: {h}|Host: {h}||", b""),
    passed("host-twice-equal-with-body", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5|HOST:\t{h} ||hello", b"hello"),
    refused("host-twice-different", b"GET {t} HTTP/1.1|Host: {h}|host: elsewhere.example||"),
    refused("host-list", b"GET {t} HTTP/1.1|Host: {h}, elsewhere.example||"),
    refused("host-with-path", b"GET {t} HTTP/1.1|Host: {h}/x||"),
    refused("host-with-userinfo", b"GET {t} HTTP/1.1|Host: u@{h}||"),
    refused("host-with-space", b"GET {t} HTTP/1.1|Host: {h} elsewhere.example||"),
    refused("host-empty-and-not", b"GET {t} HTTP/1.1|Host:|Host: {h}||"),
    only(Accelerate, refused("host-empty", b"GET {t} HTTP/1.1|Host:||")),
    only(Forward, passed("host-empty-beside-url", b"GET {t} HTTP/1.1|Host: ||", b"")),
    only(Forward, passed("host-empty-twice-beside-url", b"GET {t} HTTP/1.1|Host: |Host:||", b"")),
    refused("host-space-before-colon", b"GET {t} HTTP/1.1|Host : elsewhere.example|Host: {h}||"),

    // Content-Length.
    refused("length-empty", b"POST {t} HTTP/1.1|Host: {h}|Content-Length:||"),
    refused("length-negative", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: -5||"),
    refused("length-sign", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: +5||hello"),
    refused("length-hex", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0x5||hello"),
    refused("length-fraction", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5.0||hello"),
    refused("length-letters-after", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5a||hello"),
    refused("length-two-words", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5 5||hello"),
    passed("length-list-equal", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5, 5||hello", b"hello"),
    passed("length-list-and-line-equal", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5,5|X: a|content-length:5\t||hello", b"hello"),
    passed("length-0-twice-then-request", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0, 0||GET {p} HTTP/1.1|Host: {h}||", b""),
    refused("length-list-two-spellings", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5, 05||hello"),
    refused("length-list-empty-member", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5,||hello"),
    refused("length-list-empty-first", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: ,5||hello"),
    refused("length-twice-one-empty", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5|Content-Length:||hello"),
    refused("length-list-semicolon", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5; 5||hello"),
    refused("length-twice-equal-and-coding", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5, 5|Transfer-Encoding: chunked||0||"),
    refused("length-list-different", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5, 0||hello"),
    passed("length-twice-equal", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5|Content-Length: 5||hello", b"hello"),
    refused("length-twice-different", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0|Content-Length: 52||GET {s} HTTP/1.1|Host: {h}||"),
    refused("length-2-to-64", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 18446744073709551621||hello"),
    refused("length-2-to-63", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 9223372036854775808||hello"),
    refused("length-vertical-tab", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: \x0b5||hello"),
    refused("length-no-break-space", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: \xa05||hello"),
    passed("length-leading-zeros", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0005||hello", b"hello"),
    passed("length-space-around", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: \t 5 \t||hello", b"hello"),
    passed("length-0-then-request", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0||GET {p} HTTP/1.1|Host: {h}||", b""),
    passed("body-that-is-a-request", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 35||GET /smuggled HTTP/1.1|Host: a||", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    either("get-with-body", b"GET {t} HTTP/1.1|Host: {h}|Content-Length: 35||GET /smuggled HTTP/1.1|Host: a||"),
    either("head-with-body", b"HEAD {t} HTTP/1.1|Host: {h}|Content-Length: 5||hello"),
    either("get-with-chunks", b"GET {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0||"),
    either("options-with-body", b"OPTIONS {t} HTTP/1.1|Host: {h}|Content-Length: 5||hello"),
    either("http-1.0-with-length", b"POST {t} HTTP/1.0|Host: {h}|Content-Length: 5||hello"),

    // Transfer-Encoding.
    refused("cl-te", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5|Transfer-Encoding: chunked||0||X"),
    refused("te-cl", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked|Content-Length: 4||5c|GET {s} HTTP/1.1|Host: {h}||0||"),
    refused("cl-0-te", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 0|Transfer-Encoding: chunked||5|hello|0||"),
    refused("te-twice", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked|Transfer-Encoding: chunked||0||"),
    refused("te-twice-cow", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked|Transfer-Encoding: cow||0||"),
    refused("te-cow-twice", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: cow|Transfer-Encoding: chunked||0||"),
    refused("te-chunked-chunked", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked, chunked||0||"),
    refused("te-chunked-identity", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked, identity||0||"),
    refused("te-identity-chunked", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: identity, chunked||0||"),
    refused("te-identity", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: identity|Content-Length: 5||hello"),
    refused("te-gzip-chunked", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: gzip, chunked||0||"),
    refused("te-xchunked", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: xchunked||0||"),
    refused("te-parameter", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked;q=1||0||"),
    refused("te-quoted", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: \"chunked\"||0||"),
    refused("te-vertical-tab", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: \x0bchunked||0||"),
    refused("te-form-feed", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked\x0c||0||"),
    refused("te-nul", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked\0||0||"),
    refused("te-high-byte", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunk\xc4\x97d||0||"),
    refused("te-empty", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding:||0||"),
    refused("te-comma-first", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: ,chunked||0||"),
    refused("te-two-words", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked foo||0||"),
    refused("te-in-1.0", b"POST {t} HTTP/1.0|Host: {h}|Transfer-Encoding: chunked||0||"),
    refused("te-in-1.0-with-length", b"POST {t} HTTP/1.0|Host: {h}|Connection: keep-alive|Content-Length: 5|Transfer-Encoding: chunked||0||X"),
    passed("te-odd-case-and-space", b"POST {t} HTTP/1.1|Host: {h}|transfer-encoding:\t ChUnKeD ||5|hello|0||", b"hello"),
    passed("content-encoding-is-no-framing", b"POST {t} HTTP/1.1|Host: {h}|Content-Encoding: chunked|Content-Length: 5||hello", b"hello"),
    passed("x-te-is-no-framing", b"POST {t} HTTP/1.1|Host: {h}|X-Transfer-Encoding: chunked|Content-Length: 5||hello", b"hello"),

    // Chunks.
    passed("chunks", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||3|hel|2|lo|0||", b"hello"),
    passed("chunks-then-request", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0||GET {p} HTTP/1.1|Host: {h}||", b"hello"),
    passed("chunk-extension-space", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5 ; a = \"b;\\\"c\" ;d|hello|0 ;e||", b"hello"),
    refused("chunk-extension-unclosed", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;a=\"b|hello|0||"),
    passed("chunk-extension", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;a=b;c=\"d\"|hello|0;e||", b"hello"),
    passed("chunk-size-zeros", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||0005|hello|000||", b"hello"),
    passed("chunk-of-a-request", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||1F|GET /smuggled HTTP/1.1|Host: a|0||", b"GET /smuggled HTTP/1.1\r\nHost: a"),
    refused("chunk-size-sign", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||+5|hello|0||"),
    refused("chunk-size-negative", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||-5|hello|0||"),
    refused("chunk-size-0x", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||0x5|hello|0||"),
    refused("chunk-size-underscore", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||0_5|hello|0||"),
    refused("chunk-size-space-before", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked|| 5|hello|0||"),
    either("chunk-size-space-after", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5 |hello|0||"),
    refused("chunk-size-empty", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked|||hello|0||"),
    refused("chunk-size-2-to-64", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||10000000000000005|hello|0||"),
    refused("chunk-size-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5\nhello|0||"),
    refused("chunk-size-cr", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5\rhello|0||"),
    refused("chunk-data-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello\n0||"),
    refused("chunk-data-longer", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello!|0||"),
    refused("chunk-data-two-bytes-for-crlf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|helloXX0||"),
    refused("chunk-missing-last", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|GET {s} HTTP/1.1|Host: {h}||"),
    refused("chunk-extension-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;a\n|hello|0||"),
    refused("chunk-extension-cr", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;a\rX|hello|0||"),
    refused("chunk-extension-hides-request", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;\nxxxxx|5c|0||GET {s} HTTP/1.1|Host: {h}||0||"),
    refused("chunk-extension-huge", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5;{x*5000}|hello|0||"),
    refused("last-chunk-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0\n\n"),
    refused("last-chunk-then-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|\n"),
    refused("last-chunk-is-a-request", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|GET {s} HTTP/1.1|Host: {h}||"),
    either("trailer", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|X: a||"),
    either("trailer-with-length", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|Content-Length: 50||"),
    either("trailer-with-coding", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|Transfer-Encoding: chunked||"),
    refused("trailer-lf", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|X: a\nY: b||"),
    refused("trailer-fold", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|X: a| b||"),
    refused("trailer-huge", b"POST {t} HTTP/1.1|Host: {h}|Transfer-Encoding: chunked||5|hello|0|X: {x*100000}||"),

    // Expect, Connection, Upgrade.
    refused("expect-unknown", b"POST {t} HTTP/1.1|Host: {h}|Expect: 200-ok|Content-Length: 5||hello"),
    refused("expect-list", b"POST {t} HTTP/1.1|Host: {h}|Expect: 100-continue, x|Content-Length: 5||hello"),
    refused("expect-empty", b"POST {t} HTTP/1.1|Host: {h}|Expect:|Content-Length: 5||hello"),
    passed("expect-100-body-at-once", b"POST {t} HTTP/1.1|Host: {h}|Expect: 100-continue|Content-Length: 5||hello", b"hello"),
    either("expect-100-without-body", b"GET {t} HTTP/1.1|Host: {h}|Expect: 100-continue||"),
    refused("connection-host", b"GET {t} HTTP/1.1|Host: {h}|Connection: Host||"),
    refused("connection-length", b"POST {t} HTTP/1.1|Host: {h}|Connection: content-length|Content-Length: 5||hello"),
    refused("connection-cache-control", b"GET {t} HTTP/1.1|Host: {h}|Connection: close, Cache-Control||"),
    refused("connection-authorization", b"GET {t} HTTP/1.1|Host: {h}|Connection: Authorization||"),
    refused("connection-cookie", b"GET {t} HTTP/1.1|Host: {h}|Connection: x|Connection: Cookie||"),
    refused("connection-via", b"GET {t} HTTP/1.1|Host: {h}|Connection: via||"),
    either("connection-coding", b"POST {t} HTTP/1.1|Host: {h}|Connection: Transfer-Encoding|Transfer-Encoding: chunked||5|hello|0||"),
    passed("connection-names-a-field", b"GET {t} HTTP/1.1|Host: {h}|Connection: X-Drop|X-Drop: 1||", b""),
    either("upgrade-h2c", b"GET {t} HTTP/1.1|Host: {h}|Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQAAP__||"),
    either("upgrade-with-body", b"POST {t} HTTP/1.1|Host: {h}|Connection: Upgrade|Upgrade: websocket|Content-Length: 5||hello"),
    either("te-trailers", b"GET {t} HTTP/1.1|Host: {h}|Connection: TE|TE: trailers, chunked||"),
    passed("connection-close", b"GET {t} HTTP/1.1|Host: {h}|Connection: close||", b""),
    either("http-1.0", b"GET {t} HTTP/1.0|Host: {h}||"),
    either("http-1.0-keep-alive", b"GET {t} HTTP/1.0|Host: {h}|Connection: keep-alive||"),

    // Two requests on one connection, and bytes behind the content that look like a request.
    passed("pipelined", b"GET {t} HTTP/1.1|Host: {h}||GET {p} HTTP/1.1|Host: {h}||", b""),
    passed("pipelined-with-empty-line", b"GET {t} HTTP/1.1|Host: {h}|||GET {p} HTTP/1.1|Host: {h}||", b""),
    passed("pipelined-after-body", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 5||helloGET {p} HTTP/1.1|Host: {h}||", b"hello"),
    either("second-is-refused", b"GET {t} HTTP/1.1|Host: {h}||GET {s}#x HTTP/1.1|Host: {h}||"),
    either("body-longer-than-told", b"POST {t} HTTP/1.1|Host: {h}|Content-Length: 3||hel/lo|GET {s} HTTP/1.1|Host: {h}||"),
];
