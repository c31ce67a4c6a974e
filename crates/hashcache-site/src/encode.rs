//! Content codings that the proxy applies when it serves a response from a site.
//!
//! A response is stored once, as the origin sent it: the request to the origin names no coding (see
//! [`take_accept_encoding`]), and the coding that a client accepts is applied each time. The
//! encoded form is another representation: the entity tag is weak, it has no ranges and no digests,
//! and `Vary` names Accept-Encoding. Requests for a range get the identity form.
//!
//! Called by `request` in the proxy around the response to a request for a site.
//!
//! Invariants: a response with `no-transform` or with a content coding is never changed. The memory
//! of an encoder is bounded ([`Coding::memory`]) and charged to the client; `budget` bounds the
//! processor time.
//!
//! Text that a box with a link has stored in pages is sent in zstd without an encoder
//! (`request/stored_form` in the proxy), with the fields that are made here.
//!
//! zstd is not among the codings for sites. Among the encoders without C code, `ruzstd` compresses
//! worse than gzip at its fastest, takes content only as a whole and has only one level (numbers in
//! `encoder`). `structured-zstd` has 1,289 lines with `unsafe` and a new release every few days,
//! and would read origins' content.

mod budget;
mod encoder;

pub use self::budget::{EncodeBudget, Verdict};
pub use self::encoder::Encoder;

use http::StatusCode;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, VARY,
};

/// A content coding that the proxy can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Brotli (RFC 7932).
    Brotli,
    /// gzip (RFC 1952).
    Gzip,
}

impl Coding {
    /// All codings in the order of preference: the smallest result first.
    pub const ALL: [(&str, Self); 2] = [("br", Self::Brotli), ("gzip", Self::Gzip)];

    /// The name in Content-Encoding.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// The weights that a client gives to codings in Accept-Encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptEncoding {
    /// In thousandths, for each coding in [`Coding::ALL`].
    codings: [u16; Coding::ALL.len()],
    identity: u16,
}

impl AcceptEncoding {
    fn parse(request: &HeaderMap) -> Self {
        let mut weights: [Option<u16>; Coding::ALL.len()] = Default::default();
        let (mut identity, mut any) = (None, None);
        let lines = request.get_all(ACCEPT_ENCODING).iter();
        for member in lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b',')) {
            let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(weight).unwrap_or(1000);
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            let known = Coding::ALL.iter().position(|(known, _)| is(known));
            match known.or(is("x-gzip").then_some(1)) {
                Some(n) => weights[n] = Some(weight),
                None if is("identity") => identity = Some(weight),
                None if name == b"*" => any = Some(weight),
                None => {}
            }
        }
        Self {
            codings: weights.map(|weight| weight.or(any).unwrap_or(0)),
            // If identity is not named, it is acceptable, but any coding is preferred.
            identity: identity.unwrap_or(0),
        }
    }

    /// The coding in `offered` that the client prefers; `None`: identity.
    pub fn choose(&self, offered: &[Coding]) -> Option<Coding> {
        let rated = Coding::ALL.iter().zip(self.codings);
        let rated = rated.filter(|((_, coding), weight)| *weight > 0 && offered.contains(coding));
        // `rev`: for equal weights the last item wins, which must be the preferred coding.
        let best = rated.rev().max_by_key(|(_, weight)| *weight)?;
        (best.1 >= self.identity).then_some(best.0.1)
    }
}

/// The weight in a parameter `q=0.5`, in thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
    let text = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    let (whole, fraction) = match text.iter().position(|&byte| byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let mut weight = if whole == b"1" { 1000 } else { 0 };
    for (&digit, value) in fraction.iter().zip([100, 10, 1]) {
        weight += u16::from(digit.wrapping_sub(b'0').min(9)) * value;
    }
    Some(weight.min(1000))
}

/// Removes Accept-Encoding from a request before the lookup, so that all clients share the same
/// stored response, which has no coding.
pub fn take_accept_encoding(request: &mut HeaderMap) -> AcceptEncoding {
    let accepted = AcceptEncoding::parse(request);
    request.remove(ACCEPT_ENCODING);
    accepted
}

/// Returns true if a response is encoded for clients that accept a coding. The caller has checked
/// that the response answers a GET or HEAD.
pub fn is_encodable(status: StatusCode, fields: &HeaderMap) -> bool {
    let length = fields.get(CONTENT_LENGTH).map(|length| length.to_str());
    let length = length.map(|text| text.ok().and_then(|text| text.parse::<u64>().ok()));
    let is_long = match length {
        // The length is not known in advance, but text is worth encoding.
        None => true,
        Some(length) => length.is_some_and(|length| length >= LENGTH_MIN),
    };
    is_long && is_plain_text(status, fields) && !forbids_changes(fields)
}

/// Returns true if the response content is a complete text without a content coding.
pub fn is_plain_text(status: StatusCode, fields: &HeaderMap) -> bool {
    let has_content = matches!(status.as_u16(), 200 | 203 | 404 | 410);
    has_content
        && !fields.contains_key(CONTENT_RANGE)
        && !fields.contains_key(CONTENT_ENCODING)
        && fields.get(CONTENT_TYPE).is_some_and(is_text)
}

/// Returns true if the values of Accept-Encoding prefer zstd to identity. Only a client that names
/// zstd gets zstd.
pub fn prefers_zstd<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut zstd, mut identity) = (0, 0);
    for member in values.flat_map(|value| value.split(|&byte| byte == b',')) {
        let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(weight).unwrap_or(1000);
        if name.eq_ignore_ascii_case(b"zstd") {
            zstd = weight;
        } else if name.eq_ignore_ascii_case(b"identity") {
            identity = weight;
        }
    }
    zstd > 0 && zstd >= identity
}

/// Returns true if Cache-Control has `no-transform`.
pub fn forbids_changes(fields: &HeaderMap) -> bool {
    let mut lines = fields.get_all(CACHE_CONTROL).iter();
    lines.any(|line| has_no_transform(line.as_bytes()))
}

/// Returns true if a value of Cache-Control has `no-transform`.
pub fn has_no_transform(value: &[u8]) -> bool {
    let mut members = value.split(|&byte| byte == b',');
    members.any(|member| member.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
}

/// Returns true if a content type is text that compresses well.
fn is_text(content_type: &HeaderValue) -> bool {
    let essence = content_type.as_bytes().split(|&byte| byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    let essence = essence.to_ascii_lowercase();
    // Events must reach the client at once, one by one.
    if essence == b"text/event-stream" {
        return false;
    }
    essence.starts_with(b"text/")
        || essence.ends_with(b"+json")
        || essence.ends_with(b"+xml")
        || TEXT_TYPES.iter().any(|known| known.as_bytes() == essence)
}

/// Adds Accept-Encoding to `Vary`, because another client may get another coding.
pub fn add_vary(fields: &mut HeaderMap) {
    let lines = fields.get_all(VARY).iter();
    let mut members = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    let has = members.any(|member| {
        let member = member.trim_ascii();
        member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding")
    });
    if !has {
        fields.append(VARY, HeaderValue::from_static("accept-encoding"));
    }
}

/// Makes a strong entity tag weak: the strong tag belongs to the identity form, and clients must
/// not combine ranges from different forms.
pub fn weaken_tag(fields: &mut HeaderMap) {
    if let Some(tag) = fields.get(ETAG)
        && tag.as_bytes().starts_with(b"\"")
        && let Ok(weak) = HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat())
    {
        fields.insert(ETAG, weak);
    }
}

/// Changes the fields of a response for the encoded form.
pub fn encoded_fields(coding: &'static str, fields: &mut HeaderMap) {
    fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    weaken_tag(fields);
    for name in ABOUT_IDENTITY {
        fields.remove(name);
    }
}

/// Fields that describe the bytes in identity form.
pub const ABOUT_IDENTITY: [HeaderName; 6] = [
    CONTENT_LENGTH,
    ACCEPT_RANGES,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Shorter content fits one packet anyway.
pub const LENGTH_MIN: u64 = 1024;

/// Text types with names that do not show it.
const TEXT_TYPES: [&str; 12] = [
    "application/javascript",
    "application/json",
    "application/manifest+json",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/xml",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/x-icon",
];

#[cfg(test)]
mod tests;
