//! Request heads: where a head ends, and whether it has exactly one meaning.
//!
//! Called by `inbound` with the client's bytes; pure functions of bytes. [`Scan`] finds the end of
//! a head however it is cut into pieces, [`check`] parses the complete head.
//!
//! Invariant: every head that [`check`] accepts is accepted by every careful
//! recipient, with the same fields and the same end of body. It is stricter than RFC 9112 where
//! that allows leniency (bare LF, line folding): each such leniency is one half of a smuggling
//! attack. A repetition that says the same again has one meaning, so it is accepted; but it is
//! never passed on ([`single`]), because the next recipient may compare less carefully.
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
    /// A whole URL: http, https, ftp or gopher.
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

/// Limits on one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    pub(super) bytes: usize,
    pub(super) fields: usize,
    pub(super) target: usize,
}

/// Progress of the search for the end of a head; no byte is examined twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// Everything before this has been examined.
    at: usize,
    /// Start of the current line.
    line: usize,
    /// Start of the head, behind leading empty lines.
    start: usize,
}

/// Result of a [`Scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    Partial,
    /// The head, without leading empty lines and with the final one.
    Complete(Range<usize>),
    Refused(Refusal),
}

impl Scan {
    /// Continues in `input`, which must begin with the bytes of the earlier calls.
    pub(super) fn advance(&mut self, input: &[u8], limits: &HeadLimits) -> Scanned {
        while let Some(found) = find(&input[self.at..], is_control) {
            let here = self.at + found;
            // First of all, or the result would depend on how the head was cut into pieces.
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
                        // RFC 9112, 2.2: empty lines before a request are a bug of old clients and
                        // mean nothing. An endless row of them could keep us busy.
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

    /// The refusal of a head that does not end within the limit. Without an end of the first line
    /// it is the target that is too long: the method has few bytes in every honest request.
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
    /// Some field line repeats another one, or says nothing: [`single`] takes it out.
    pub(super) has_repetitions: bool,
    /// The client reads trailers (`TE: trailers`, RFC 9110, 10.1.4).
    pub(super) takes_trailers: bool,
}

/// Parses a complete head, from its request line to its empty line.
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

/// The field lines of an accepted head with its empty line, without those that [`CheckedHead`]
/// calls repetitions: one Host, and one Content-Length with one number. A CONNECT keeps no length,
/// because it has no content; an empty Host names nothing and goes too.
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

/// Splits `method SP target SP version`, one space each.
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
        // A later minor version is read as the latest known one (RFC 9110, 2.5).
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

/// The form of a target (RFC 9112, 3.2); the method decides which forms are allowed.
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

/// The framing that the fields declare, collected line by line.
#[derive(Default)]
struct FieldSummary<'a> {
    count: usize,
    hosts: usize,
    /// The value of Host; empty if there is none.
    host: &'a [u8],
    /// Numbers in Content-Length, over all its lines.
    lengths: usize,
    /// The number as it is written: two spellings of a number are not one.
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
    /// Parses one line and returns the rest.
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
        // More than `http`'s field names can hold; only possible with a head limit above 64 KiB.
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
        // The length alone excludes nearly all other names.
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

    /// A second Host that differs only in case names the same host; any other is a second meaning
    /// (RFC 9112, 3.2).
    fn host(&mut self, value: &'a [u8]) -> Result<(), Refusal> {
        self.hosts += 1;
        if self.hosts > 1 && !self.host.eq_ignore_ascii_case(value) {
            return Err(malformed("more than one Host"));
        }
        // RFC 9112, 3.2: empty if the target has no authority. Whether it may be is known later.
        if !value.is_empty() && !is_authority(value, Port::Optional) {
            return Err(malformed("Host is no authority"));
        }
        self.host = value;
        Ok(())
    }

    /// `1*DIGIT`, or a list of the same digits again and again over any number of lines (RFC 9110,
    /// 8.6). Every recipient before us that takes such a request at all has found this number.
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
        // Higher values are nobody's content, and some recipients use them for other purposes.
        let length = length.filter(|&length| length < 1 << 63);
        self.length = Some(length.ok_or(malformed("Content-Length too large"))?);
        Ok(())
    }

    /// Whether Host is what the version and the form of the target want.
    fn check_host(&self, version: Version, form: RequestForm) -> Result<(), Refusal> {
        match form {
            // The target of CONNECT names the server, and programs of all ages send no Host, an
            // empty one, or one without the port. Nothing reads it.
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

    /// Whether a line is to be taken out before the head is passed on.
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
            // Every program that uses WinINet sends it. It says that nothing follows the head.
            (RequestForm::Authority, ContentFraming::Length(0)) => Ok(ContentFraming::None),
            (RequestForm::Authority, ContentFraming::Length(_) | ContentFraming::Chunked) => {
                Err(malformed("CONNECT with content"))
            }
            _ => Ok(content),
        }
    }
}

/// Refuses a `Connection` that names a field whose removal would change the meaning of the request.
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

/// Whether an authority must have a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    Required,
    Optional,
}

/// `host [":" port]` without user information. Only names that can be looked up: the other
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

/// Empty lines that are ignored before a request.
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

/// Bytes that end a line or are not allowed in a head; a tab is allowed.
pub(super) fn is_control(byte: u8) -> bool {
    ((byte < 0x20) & (byte != b'\t')) | (byte == 0x7f)
}

/// The position of the first byte that `is` accepts. `is` must be plain arithmetic: then sixteen
/// bytes are tested at once, in a quarter of the time.
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
