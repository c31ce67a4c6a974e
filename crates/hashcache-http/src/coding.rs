//! Content codings, and which codings a request accepts (RFC 9110 8.4, 12.5.3).
//!
//! `vary` parses Accept-Encoding here; `storable` and the proxy check if the client accepts the
//! coding of a stored response.
//!
//! Some origins select the coding by Accept-Encoding and do not list the field in `Vary`. The
//! stored response is then served only to clients that accept its coding; other requests are
//! forwarded to the origin. RFC 9110 12.5.3 lets an origin send any coding to a client without
//! Accept-Encoding, but such clients do not decode, and an origin that negotiates sends them the
//! content without a coding.
//!
//! Other origins set Content-Encoding on files that are stored compressed (`.gz`, `.svgz`), or set
//! it to a word that is not a coding (`utf-8`, `aws-chunked`), for every request. A response to a
//! request without Accept-Encoding, or with `identity` only, was not negotiated: it may be served
//! to every client. Package tools need this, because they send no Accept-Encoding and decode the
//! file themselves. Any other Accept-Encoding may be the reason for the coding, even a field that
//! refuses it: some origins search for the letters `gzip` anywhere in the field.
//!
//! Invariant: a coding with a malformed weight counts as not accepted.
//! Cost: one pass over Accept-Encoding, only for stored responses with a coding.

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap};

use crate::fields::{Backslash, members, split_list, trim};

/// Returns true if a request explicitly accepts all content codings of a response.
pub(crate) fn accepts_coding(request: &HeaderMap, response: &HeaderMap) -> bool {
    let lines = || request.get_all(ACCEPT_ENCODING).iter();
    let mut codings = members(response, &CONTENT_ENCODING);
    codings.all(|coding| accepts(lines().map(|line| line.as_bytes()), coding))
}

/// As `accepts_coding`, for a single line of each field.
pub fn line_accepts_coding(accepted: Option<&[u8]>, codings: &[u8]) -> bool {
    let mut codings = split_list(codings, Backslash::Escapes);
    codings.all(|coding| accepts(accepted.into_iter(), coding))
}

/// Returns true if no client's Accept-Encoding can be the reason for the content codings in a
/// response to this request: either the request asks for no coding (no Accept-Encoding, or only
/// `identity`), or the codings are not registered and the request does not name them.
pub(crate) fn is_for_any_client(request: &HeaderMap, response: &HeaderMap) -> bool {
    let lines = || request.get_all(ACCEPT_ENCODING).iter();
    let accepted = || lines().flat_map(|line| split_list(line.as_bytes(), Backslash::Escapes));
    let is_identity = |member: &[u8]| {
        weighted(member).is_some_and(|it| it.item.eq_ignore_ascii_case(b"identity"))
    };
    if accepted().all(is_identity) {
        return true;
    }
    let names = |coding: &[u8]| {
        lines().any(|line| {
            let mut parts = line.as_bytes().windows(coding.len());
            line.as_bytes().contains(&b'*') || parts.any(|part| part.eq_ignore_ascii_case(coding))
        })
    };
    members(response, &CONTENT_ENCODING)
        .all(|coding| !coding.is_empty() && !is_registered(coding) && !names(coding))
}

/// Returns true if clients can decode this coding (IANA HTTP Content Coding Registry, and codings
/// that clients were seen to accept before they were registered).
fn is_registered(coding: &[u8]) -> bool {
    let coding = canonical(coding);
    REGISTERED
        .iter()
        .any(|known| known.as_bytes().eq_ignore_ascii_case(coding))
}

const REGISTERED: [&str; 16] = [
    "aes128gcm",
    "br",
    "bzip2",
    "compress",
    "dcb",
    "dcz",
    "deflate",
    "exi",
    "gzip",
    "identity",
    "lzma",
    "pack200-gzip",
    "sdch",
    "x-bzip2",
    "xz",
    "zstd",
];

/// Returns true if these lines of Accept-Encoding accept the coding. The weight of the coding
/// itself takes precedence over the weight of `*`.
fn accepts<'a>(lines: impl Iterator<Item = &'a [u8]>, coding: &[u8]) -> bool {
    let coding = canonical(coding);
    if coding.eq_ignore_ascii_case(b"identity") {
        return true;
    }
    let (mut own, mut others) = (None, None);
    for member in lines.flat_map(|line| split_list(line, Backslash::Escapes)) {
        let item = member.split(|&byte| byte == b';').next();
        let item = canonical(trim(item.unwrap_or_default()));
        let accepted = weighted(member).is_some_and(|member| member.weight > 0);
        if item.eq_ignore_ascii_case(coding) {
            own = Some(own.unwrap_or(true) && accepted);
        } else if item == b"*" {
            others = Some(accepted);
        }
    }
    own.or(others).unwrap_or(false)
}

/// The registered name of a coding: `x-gzip` and `x-compress` are aliases (RFC 9110 8.4.1).
fn canonical(coding: &[u8]) -> &[u8] {
    match coding.len() {
        6 if coding.eq_ignore_ascii_case(b"x-gzip") => b"gzip",
        10 if coding.eq_ignore_ascii_case(b"x-compress") => b"compress",
        _ => coding,
    }
}

/// The index of a coding in [`CODINGS`].
pub(crate) fn coding_index(name: &[u8]) -> Option<usize> {
    let name = canonical(name);
    let is = |coding: &str| coding.as_bytes().eq_ignore_ascii_case(name);
    CODINGS.iter().position(|coding| is(coding))
}

/// A member of a list with weights.
pub(crate) struct WeightedItem<'a> {
    pub(crate) item: &'a [u8],
    /// In thousandths.
    pub(crate) weight: u16,
}

/// `item [ ";" "q=" qvalue ]`
pub(crate) fn weighted(member: &[u8]) -> Option<WeightedItem<'_>> {
    let mut parts = member.split(|&b| b == b';');
    let item = trim(parts.next()?);
    let weight = match parts.next() {
        None => 1000,
        Some(parameter) => {
            let parameter = trim(parameter);
            let value = parameter
                .strip_prefix(b"q=")
                .or_else(|| parameter.strip_prefix(b"Q="))?;
            qvalue(value)?
        }
    };
    parts
        .next()
        .is_none()
        .then_some(WeightedItem { item, weight })
}

/// Parses `0`, `0.5`, `1.000` into thousandths.
fn qvalue(text: &[u8]) -> Option<u16> {
    let (&whole, rest) = text.split_first()?;
    let decimals = match rest {
        [] => &[][..],
        [b'.', decimals @ ..] if decimals.len() <= 3 => decimals,
        _ => return None,
    };
    let digit = |b: u8| b.is_ascii_digit().then(|| u16::from(b - b'0'));
    let mut weight = digit(whole)?;
    for place in 0..3 {
        weight = weight * 10 + decimals.get(place).map_or(Some(0), |&b| digit(b))?;
    }
    (weight <= 1000).then_some(weight)
}

/// The codings that `vary` distinguishes, sorted.
pub(crate) const CODINGS: [&str; 4] = ["br", "gzip", "identity", "zstd"];

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_coding_is_accepted_only_by_a_request_that_names_it_or_any() {
        let accepts = |accepted: Option<&str>, codings: &str| {
            line_accepts_coding(accepted.map(str::as_bytes), codings.as_bytes())
        };
        for accepted in [
            "gzip",
            "br, GZIP;q=0.1",
            "x-gzip",
            "*",
            "br;q=0, *",
            "gzip ; q=1",
        ] {
            assert!(accepts(Some(accepted), "gzip"), "{accepted}");
            assert!(accepts(Some(accepted), "X-GZIP"), "{accepted}");
        }
        for accepted in [
            "",
            "identity",
            "gzip;q=0",
            "gzip;q=0.000",
            "gzip;q=x",
            "gzip, gzip;q=0",
            "*;q=0",
            "*, gzip;q=0",
            "x-gzip;q=0, *",
            "br, zstd",
            "gzipped",
        ] {
            assert!(!accepts(Some(accepted), "gzip"), "{accepted}");
        }
        assert!(!accepts(None, "gzip"));
        assert!(accepts(None, "identity") && accepts(Some("br"), ""));
        assert!(accepts(Some("gzip, br"), "gzip, br"));
        assert!(!accepts(Some("gzip"), "gzip, br"));
    }

    #[test]
    fn a_coding_is_for_any_client_only_if_no_request_can_be_the_reason() {
        let is_for_any = |accepted: Option<&'static str>, codings: &'static str| {
            let (mut request, mut response) = (HeaderMap::new(), HeaderMap::new());
            if let Some(accepted) = accepted {
                request.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            }
            response.insert(CONTENT_ENCODING, HeaderValue::from_static(codings));
            is_for_any_client(&request, &response)
        };
        for accepted in [
            None,
            Some(""),
            Some("identity"),
            Some("Identity;q=1, identity;q=0.5"),
        ] {
            for codings in ["gzip", "utf-8", "gzip, br"] {
                assert!(is_for_any(accepted, codings), "{accepted:?} {codings}");
            }
        }
        for accepted in [
            "gzip;q=0",
            "xgzip",
            "gzipped",
            "br",
            "*;q=0",
            "identity, *;q=0",
            "identity;gzip",
            "identity;q=gzip",
        ] {
            assert!(!is_for_any(Some(accepted), "gzip"), "{accepted}");
            assert!(!is_for_any(Some(accepted), "utf-8, gzip"), "{accepted}");
        }
        // No client decodes these codings, so no request has selected them.
        assert!(is_for_any(Some("gzip, deflate, br"), "aws-chunked"));
        assert!(is_for_any(Some("gzip"), "utf-8"));
        assert!(!is_for_any(Some("gzip, frob"), "Frob"));
        assert!(!is_for_any(Some("gzip, frobbed;q=0"), "frob"));
        assert!(!is_for_any(Some("*"), "frob"));
    }
}
