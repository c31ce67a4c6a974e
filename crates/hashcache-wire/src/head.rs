//! Request heads: finds the end of a head, and checks that it has exactly one meaning.
//!
//! `inbound` calls it with the client's bytes; all functions are pure. [`Scan`] finds the end of a
//! head for any division into pieces, [`check`] parses the complete head.
//!
//! Invariant: every careful recipient accepts each head that [`check`] accepts, with the same
//! fields and the same end of the body. `check` is stricter than RFC 9112 where the RFC allows
//! leniency (bare LF, line folding), because each such leniency is one half of a smuggling attack.
//! A repeated field with the same value has a single meaning, so it is accepted; but it is never
//! forwarded ([`single`]), because the next recipient may compare less carefully.
//! Cost: two passes, mostly sixteen bytes at a time; no allocation.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::str::FromStr;

use http::{StatusCode, Version};

/// The form of a request target (RFC 9112, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// `/path?query`.
    Origin,
    /// An absolute URL: http, https, ftp or gopher.
    Absolute,
    /// `host:port`; the method is CONNECT.
    Authority,
    /// `*`; the method is OPTIONS.
    Asterisk,
}

/// The framing of a request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFraming {
    /// No content.
    None,
    /// Content-Length.
    Length(u64),
    /// Chunked.
    Chunked,
}

/// Why a head was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
}

/// Limits for a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    pub(super) bytes: usize,
    pub(super) fields: usize,
    pub(super) target: usize,
}

/// State of the search for the end of a head; no byte is examined twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// Number of bytes already examined.
    at: usize,
    /// Start of the current line.
    line: usize,
    /// Start of the head, after leading empty lines.
    start: usize,
}

/// Result of a [`Scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    Partial,
    /// The head, without leading empty lines and with the final empty line.
    Complete(Range<usize>),
    Refused(Refusal),
}

impl Scan {
    /// Continues in `input`, which must start with the bytes from the earlier calls.
    pub(super) fn advance(&mut self, input: &[u8], limits: &HeadLimits) -> Scanned {
        while let Some(found) = find(&input[self.at..], is_control) {
            let here = self.at + found;
            // Checked first, because otherwise the result would depend on how the head was cut into
            // pieces.
            if here + 1 - self.start > limits.bytes {
                return Scanned::Refused(self.too_large());
            }
            match (input[here], input.get(here + 1)) {
                (b'\r', None) => {
                    self.at = here;
                    return self.partial(input, limits);
                }
                (b'\r', Some(b'\n')) => {
                    let empty = here == self.line;
                    if here + 2 - self.start > limits.bytes {
                        return Scanned::Refused(self.too_large());
                    }
                    self.at = here + 2;
                    self.line = here + 2;
                    if empty && here != self.start {
                        return Scanned::Complete(self.start..self.at);
                    }
                    if empty {
                        // RFC 9112, 2.2: empty lines before a request are a bug in old clients and
                        // have no meaning. They are limited, because an endless series of them
                        // could keep us busy.
                        if self.start >= EMPTY_LINES_MAX * 2 {
                            return Scanned::Refused(malformed("empty lines before the request"));
                        }
                        self.start = self.at;
                    }
                }
                (b'\r', Some(_)) => return Scanned::Refused(malformed("CR without LF")),
                (b'\n', _) => return Scanned::Refused(malformed("LF without CR")),
                _ => return Scanned::Refused(malformed("control character in the head")),
            }
        }
        self.at = input.len();
        self.partial(input, limits)
    }

    fn partial(&self, input: &[u8], limits: &HeadLimits) -> Scanned {
        if input.len() - self.start > limits.bytes {
            Scanned::Refused(self.too_large())
        } else {
            Scanned::Partial
        }
    }

    /// The refusal for a head that exceeds the limit. If the first line is incomplete, the target
    /// is too long, because the method has few bytes in every legitimate request.
    fn too_large(&self) -> Refusal {
        if self.line == self.start {
            TARGET_TOO_LONG
        } else {
            HEAD_TOO_LARGE
        }
    }
}

/// An accepted head, as offsets into its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedHead {
    pub(super) method: Range<usize>,
    pub(super) target: Range<usize>,
    pub(super) form: RequestForm,
    pub(super) version: Version,
    pub(super) content: ContentFraming,
    pub(super) fields: usize,
    /// A field line repeats an earlier line, or is empty: [`single`] removes it.
    pub(super) has_repetitions: bool,
    /// The client accepts trailers (`TE: trailers`, RFC 9110, 10.1.4).
    pub(super) takes_trailers: bool,
}

/// Parses a complete head, from the request line to the empty line.
pub(super) fn check(head: &[u8], limits: &HeadLimits) -> Result<CheckedHead, Refusal> {
    let line = find(head, |byte| byte == b'\r').unwrap_or(head.len());
    let (method, target, version) = request_line(&head[..line], limits)?;
    let form = form(&head[method.clone()], &head[target.clone()])?;

    let mut rest = head.get(line + 2..).unwrap_or_default();
    let mut fields = FieldSummary::default();
    while !matches!(rest.first(), None | Some(b'\r')) {
        if fields.count == limits.fields {
            return Err(refuse(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too many fields",
            ));
        }
        rest = fields.take_line(rest)?;
    }
    let content = fields.content(version, form)?;
    fields.check_host(version, form)?;
    Ok(CheckedHead {
        method,
        target,
        form,
        version,
        content,
        fields: fields.count,
        has_repetitions: fields.has_repetitions(form),
        takes_trailers: fields.takes_trailers && version == Version::HTTP_11,
    })
}

/// Copies the field lines of an accepted head and the empty line, without the repetitions flagged
/// in [`CheckedHead`]: at most one Host remains, and one Content-Length with a single number. A
/// CONNECT keeps no length, because it has no content; an empty Host is removed too, because it
/// names no host.
pub(super) fn single(lines: &[u8], form: RequestForm, content: ContentFraming) -> Vec<u8> {
    let mut out = Vec::with_capacity(lines.len());
    let (mut hosts, mut lengths) = (0, 0);
    let mut rest = lines;
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let line;
        (line, rest) = rest.split_at(end + 2);
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(0);
        let name = &line[..colon];
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
            let is_empty = trim(&line[colon + 1..end]).is_empty();
            if hosts > 1 || is_empty {
                continue;
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            lengths += 1;
            if let ContentFraming::Length(length) = content
                && lengths == 1
                && form != RequestForm::Authority
            {
                out.extend_from_slice(name);
                out.extend_from_slice(b": ");
                out.extend_from_slice(length.to_string().as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            continue;
        }
        out.extend_from_slice(line);
    }
    out
}

/// Splits `method SP target SP version`, with a single space each.
fn request_line(
    line: &[u8],
    limits: &HeadLimits,
) -> Result<(Range<usize>, Range<usize>, Version), Refusal> {
    let method = line
        .iter()
        .position(|&byte| !is_token(byte))
        .unwrap_or(line.len());
    if method == 0 || line.get(method) != Some(&b' ') {
        return Err(malformed("the method is not a token"));
    }
    let start = method + 1;
    let rest = &line[start..];
    let length = find(rest, |byte| byte <= b' ').unwrap_or(rest.len());
    if length == 0 {
        return Err(malformed("no request target"));
    }
    if length > limits.target {
        return Err(TARGET_TOO_LONG);
    }
    let version = match &rest[length..] {
        b" HTTP/1.1" => Version::HTTP_11,
        b" HTTP/1.0" => Version::HTTP_10,
        // A later minor version is read as the latest known version (RFC 9110, 2.5).
        [b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Version::HTTP_11,
        [b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(refuse(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "unknown HTTP version",
            ));
        }
        _ => return Err(malformed("malformed request line")),
    };
    Ok((0..method, start..start + length, version))
}

/// Determines the form of a target (RFC 9112, 3.2); the method decides which forms are allowed.
fn form(method: &[u8], target: &[u8]) -> Result<RequestForm, Refusal> {
    if target.contains(&b'#') {
        return Err(malformed("fragment in the request target"));
    }
    if method == b"CONNECT" {
        return if is_authority(target, Port::Required) {
            Ok(RequestForm::Authority)
        } else {
            Err(malformed("CONNECT to what is no host:port"))
        };
    }
    match target {
        [b'/', ..] => Ok(RequestForm::Origin),
        b"*" if method == b"OPTIONS" => Ok(RequestForm::Asterisk),
        _ => absolute(target),
    }
}

fn absolute(target: &[u8]) -> Result<RequestForm, Refusal> {
    const UNKNOWN: Refusal = malformed("unknown form of request target");
    let scheme = target
        .iter()
        .position(|&byte| byte == b':')
        .ok_or(UNKNOWN)?;
    let authority = target[scheme..].strip_prefix(b"://").ok_or(UNKNOWN)?;
    let end = authority
        .iter()
        .position(|byte| b"/?".contains(byte))
        .unwrap_or(authority.len());
    let authority = &authority[..end];
    let is = |name: &[u8]| target[..scheme].eq_ignore_ascii_case(name);
    if is(b"http") || is(b"https") {
        if !is_authority(authority, Port::Optional) {
            return Err(malformed("the authority of the request target"));
        }
    } else if is(b"ftp") || is(b"gopher") {
        // Well-formed but not supported: the service answers 501 with an explanation.
        if authority.is_empty() {
            return Err(malformed("the authority of the request target"));
        }
    } else {
        return Err(UNKNOWN);
    }
    Ok(RequestForm::Absolute)
}

/// The framing and Host that the field lines declare, collected line by line.
#[derive(Default)]
struct FieldSummary<'a> {
    count: usize,
    hosts: usize,
    /// The value of Host; empty if there is none.
    host: &'a [u8],
    /// Count of numbers in Content-Length, over all lines.
    lengths: usize,
    /// The number as written, because two spellings of the same number are not accepted.
    digits: &'a [u8],
    length: Option<u64>,
    coding: TransferCoding,
    takes_trailers: bool,
}

/// The transfer codings of all lines so far.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum TransferCoding {
    #[default]
    None,
    Chunked,
    /// Codings that are not supported; a chunked after them makes no difference.
    Unknown,
}

impl<'a> FieldSummary<'a> {
    /// Parses a line and returns the rest.
    fn take_line(&mut self, rest: &'a [u8]) -> Result<&'a [u8], Refusal> {
        let name = rest
            .iter()
            .position(|&byte| !is_token(byte))
            .unwrap_or(rest.len());
        match rest.get(name) {
            Some(b':') if name > 0 => {}
            Some(b' ' | b'\t') if name == 0 => return Err(malformed("folded field line")),
            Some(b' ' | b'\t') => return Err(malformed("whitespace before a field's colon")),
            _ => return Err(malformed("field name is not a token")),
        }
        // More than a field name in `http` can hold; only possible with a head limit above 64 KiB.
        if name > 0x7fff {
            return Err(refuse(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "field name too long",
            ));
        }
        let value = &rest[name + 1..];
        let end = find(value, |byte| byte == b'\r');
        let end = end.ok_or(malformed("unfinished field line"))?;
        self.count += 1;
        self.note(&rest[..name], trim(&value[..end]))?;
        Ok(value.get(end + 2..).unwrap_or_default())
    }

    fn note(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), Refusal> {
        // The length excludes nearly all other names.
        match name.len() {
            2 if name.eq_ignore_ascii_case(b"te") => {
                let mut members = value.split(|&byte| byte == b',').map(trim);
                self.takes_trailers |= members.any(|it| it.eq_ignore_ascii_case(b"trailers"));
                Ok(())
            }
            4 if name.eq_ignore_ascii_case(b"host") => self.host(value),
            6 if name.eq_ignore_ascii_case(b"expect") => {
                if value.eq_ignore_ascii_case(b"100-continue") {
                    Ok(())
                } else {
                    Err(refuse(
                        StatusCode::EXPECTATION_FAILED,
                        "unknown expectation",
                    ))
                }
            }
            10 if name.eq_ignore_ascii_case(b"connection") => connection(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.content_length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.transfer_encoding(value),
            _ => Ok(()),
        }
    }

    /// A second Host that differs only in letter case names the same host; any other value is
    /// ambiguous (RFC 9112, 3.2).
    fn host(&mut self, value: &'a [u8]) -> Result<(), Refusal> {
        self.hosts += 1;
        if self.hosts > 1 && !self.host.eq_ignore_ascii_case(value) {
            return Err(malformed("more than one Host"));
        }
        // RFC 9112, 3.2: Host is empty if the target has no authority. `check_host` decides later
        // if that is allowed.
        if !value.is_empty() && !is_authority(value, Port::Optional) {
            return Err(malformed("Host is no authority"));
        }
        self.host = value;
        Ok(())
    }

    /// `1*DIGIT`, or a list that repeats the same digits, over any number of lines (RFC 9110, 8.6).
    /// Every earlier recipient that accepts such a request has found this number.
    fn content_length(&mut self, value: &'a [u8]) -> Result<(), Refusal> {
        for digits in value.split(|&byte| byte == b',').map(trim) {
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(malformed("Content-Length is not a number"));
            }
            if self.lengths > 0 && digits != self.digits {
                return Err(malformed("more than one Content-Length"));
            }
            self.lengths += 1;
            self.digits = digits;
        }
        let length = self.digits.iter().try_fold(0_u64, |sum, digit| {
            sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        });
        // No legitimate content is longer, and some recipients use higher values for other
        // purposes.
        let length = length.filter(|&length| length < 1 << 63);
        self.length = Some(length.ok_or(malformed("Content-Length too large"))?);
        Ok(())
    }

    /// Checks that Host fits the version and the form of the target.
    fn check_host(&self, version: Version, form: RequestForm) -> Result<(), Refusal> {
        match form {
            // The target of CONNECT names the server. Old and new clients send no Host, an empty
            // Host, or a Host without the port, and no code reads it.
            RequestForm::Authority => Ok(()),
            RequestForm::Absolute | RequestForm::Origin | RequestForm::Asterisk
                if self.hosts == 0 && version == Version::HTTP_11 =>
            {
                Err(malformed("request has no Host field"))
            }
            // The target has an authority, which replaces any Host (RFC 9112, 3.2.2).
            RequestForm::Absolute => Ok(()),
            RequestForm::Origin | RequestForm::Asterisk
                if self.hosts > 0 && self.host.is_empty() =>
            {
                Err(malformed("Host is empty"))
            }
            RequestForm::Origin | RequestForm::Asterisk => Ok(()),
        }
    }

    /// Returns true if a line must be removed before the head is forwarded.
    fn has_repetitions(&self, form: RequestForm) -> bool {
        let lengths_max = usize::from(form != RequestForm::Authority);
        self.hosts > 1 || self.lengths > lengths_max || (self.hosts > 0 && self.host.is_empty())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        for element in value.split(|&byte| byte == b',').map(trim) {
            let end = element
                .iter()
                .position(|&byte| byte == b';')
                .unwrap_or(element.len());
            let coding = trim(&element[..end]);
            if coding.is_empty() || !coding.iter().all(|&byte| is_token(byte)) {
                return Err(malformed("malformed Transfer-Encoding"));
            }
            let chunked = coding.eq_ignore_ascii_case(b"chunked");
            self.coding = match (self.coding, chunked) {
                _ if chunked && end < element.len() => {
                    return Err(malformed("chunked has no parameters"));
                }
                (TransferCoding::Chunked, _) => {
                    return Err(malformed("chunked is not the last coding"));
                }
                (TransferCoding::None, true) => TransferCoding::Chunked,
                (TransferCoding::None | TransferCoding::Unknown, _) => TransferCoding::Unknown,
            };
        }
        Ok(())
    }

    fn content(&self, version: Version, form: RequestForm) -> Result<ContentFraming, Refusal> {
        if self.coding != TransferCoding::None {
            if version == Version::HTTP_10 {
                return Err(malformed("Transfer-Encoding in HTTP/1.0"));
            }
            if self.length.is_some() {
                return Err(malformed("Content-Length and Transfer-Encoding"));
            }
        }
        let content = match (self.coding, self.length) {
            (TransferCoding::Unknown, _) => {
                return Err(refuse(
                    StatusCode::NOT_IMPLEMENTED,
                    "unknown transfer coding",
                ));
            }
            (TransferCoding::Chunked, _) => ContentFraming::Chunked,
            (TransferCoding::None, Some(length)) => ContentFraming::Length(length),
            (TransferCoding::None, None) => ContentFraming::None,
        };
        match (form, content) {
            // Every program that uses WinINet sends it. It declares that no content follows the
            // head.
            (RequestForm::Authority, ContentFraming::Length(0)) => Ok(ContentFraming::None),
            (RequestForm::Authority, ContentFraming::Length(_) | ContentFraming::Chunked) => {
                Err(malformed("CONNECT with content"))
            }
            _ => Ok(content),
        }
    }
}

/// Refuses a `Connection` that names a field if its removal would change the meaning of the
/// request.
fn connection(value: &[u8]) -> Result<(), Refusal> {
    const KEPT: [&[u8]; 6] = [
        b"host",
        b"content-length",
        b"cache-control",
        b"authorization",
        b"cookie",
        b"via",
    ];
    for option in value.split(|&byte| byte == b',').map(trim) {
        if KEPT.iter().any(|name| option.eq_ignore_ascii_case(name)) {
            return Err(malformed("Connection names an end-to-end field"));
        }
    }
    Ok(())
}

/// The port in an authority.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Required,
    Optional,
}

/// `host [":" port]` without user information. Only names that can be resolved: the other
/// characters that RFC 3986 allows occur in no host name and have confused parsers.
fn is_authority(text: &[u8], port: Port) -> bool {
    let host_end = match text {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else {
                return false;
            };
            if !std::str::from_utf8(&rest[..end]).is_ok_and(|ip| Ipv6Addr::from_str(ip).is_ok()) {
                return false;
            }
            end + 2
        }
        _ => {
            let end = text
                .iter()
                .position(|&byte| byte == b':')
                .unwrap_or(text.len());
            let host = &text[..end];
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
            if host.is_empty() || host.len() > 255 || !host.iter().all(plain) {
                return false;
            }
            end
        }
    };
    match &text[host_end..] {
        [] => port == Port::Optional,
        [b':'] => port == Port::Optional,
        [b':', digits @ ..] => {
            digits.len() <= 5
                && digits.iter().all(u8::is_ascii_digit)
                && matches!(
                    digits
                        .iter()
                        .fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')),
                    1..=65535
                )
        }
        _ => false,
    }
}

/// Removes spaces and tabs at both ends (`OWS`).
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

pub(super) const fn refuse(status: StatusCode, reason: &'static str) -> Refusal {
    Refusal { status, reason }
}

const fn malformed(reason: &'static str) -> Refusal {
    refuse(StatusCode::BAD_REQUEST, reason)
}

/// Maximum number of ignored empty lines before a request.
const EMPTY_LINES_MAX: usize = 4;

pub(super) const TARGET_TOO_LONG: Refusal =
    refuse(StatusCode::URI_TOO_LONG, "request target too long");

const HEAD_TOO_LARGE: Refusal = refuse(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "request head too large",
);

/// `tchar` of RFC 9110, 5.6.2.
pub(super) fn is_token(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Returns true for bytes that end a line or are not allowed in a head; a tab is allowed.
pub(super) fn is_control(byte: u8) -> bool {
    ((byte < 0x20) & (byte != b'\t')) | (byte == 0x7f)
}

/// The position of the first byte that `is` accepts. `is` must be plain arithmetic, because the
/// compiler can then test sixteen bytes at once, in a quarter of the time.
fn find(bytes: &[u8], is: impl Fn(u8) -> bool) -> Option<usize> {
    let blocks = bytes.chunks_exact(16);
    let clear = blocks.take_while(|block| !block.iter().fold(false, |any, &byte| any | is(byte)));
    let at = clear.count() * 16;
    bytes[at..]
        .iter()
        .position(|&byte| is(byte))
        .map(|found| at + found)
}

static TOKEN: [bool; 256] = {
    let mut token = [false; 256];
    let chars = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut at = 0;
    while at < chars.len() {
        token[chars[at] as usize] = true;
        at += 1;
    }
    token
};
