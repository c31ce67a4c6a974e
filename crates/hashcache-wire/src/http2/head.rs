//! HTTP/2 request heads: refuses heads that hyper accepts but that are not valid in HTTP/1.1.
//!
//! `http2` calls it for each head; it is the counterpart of `head`. `h2` has already parsed the
//! frames and has reset streams with connection fields, upper-case names, a TE other than trailers,
//! misplaced pseudo-fields, or content that differs from the declared length.
//!
//! Invariant: an accepted request has a single authority, in `Host`, and the same meaning when it
//! is forwarded in HTTP/1.1.

use bytes::Bytes;
use hashcache_base::limits::Limits;
use hashcache_http::{Authority, HASHCACHE_TARGET, Scheme, TARGET_EXPECTATION};
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Version};
use http_body::Body;
use tokio::time::Instant;

use super::super::cell::{HeadInfo, RequestHead, RequestTraits, StreamHead};
use super::super::head::{ContentFraming, Refusal, RequestForm, TARGET_TOO_LONG, refuse};
use super::fields::{field_size, malformed_field};

/// Sender of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    /// A child, over a link.
    Child,
}

/// Checks a head; writes the authority into `Host` and joins Cookie fields.
pub(super) fn judge(
    parts: &mut Parts,
    content: &impl Body,
    (sender, limits): (Sender, &Limits),
) -> StreamHead {
    let asked = RequestTraits {
        http_2: true,
        head_only: parts.method == Method::HEAD,
        ..RequestTraits::default()
    };
    let target = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    let size = fields_size(&parts.headers) + target as u64;
    let head = match check(parts, content, sender, limits) {
        Ok(info) => RequestHead::Accepted(info),
        Err(refusal) => RequestHead::Refused(refusal.into()),
    };
    StreamHead { head, asked, size }
}

/// As [`judge`], for CONNECT on a connection that may have tunnels.
pub(super) fn judge_tunnel(parts: &mut Parts, limits: &Limits) -> StreamHead {
    let asked = RequestTraits {
        http_2: true,
        connect: true,
        ..RequestTraits::default()
    };
    let size = fields_size(&parts.headers);
    let head = match check_tunnel(parts, limits) {
        Ok(info) => RequestHead::Accepted(info),
        Err(refusal) => RequestHead::Refused(refusal.into()),
    };
    StreamHead { head, asked, size }
}

fn check_tunnel(parts: &mut Parts, limits: &Limits) -> Result<HeadInfo, Refusal> {
    if parts.headers.len() > limits.head_fields {
        let reason = "too many fields";
        return Err(refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason));
    }
    let authority = authority(parts)?;
    let malformed = |reason| refuse(StatusCode::BAD_REQUEST, reason);
    let host = HeaderValue::try_from(&*authority);
    let host = host.map_err(|_| malformed("Host is no authority"))?;
    parts.headers.insert(HOST, host);
    Ok(HeadInfo {
        target: Bytes::from(authority),
        form: RequestForm::Authority,
        version: Version::HTTP_2,
        content: ContentFraming::None,
        received: Instant::now(),
    })
}

/// The uncompressed size of the fields as defined in RFC 9113 (section 6.5.2).
pub(super) fn fields_size(fields: &HeaderMap) -> u64 {
    fields.iter().map(field_size).sum::<usize>() as u64
}

fn check(
    parts: &mut Parts,
    content: &impl Body,
    sender: Sender,
    limits: &Limits,
) -> Result<HeadInfo, Refusal> {
    let large = |reason| refuse(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason);
    let malformed = |reason| refuse(StatusCode::BAD_REQUEST, reason);
    if parts.headers.len() > limits.head_fields {
        return Err(large("too many fields"));
    }
    if parts.method == Method::CONNECT {
        return Err(refuse(
            StatusCode::NOT_IMPLEMENTED,
            "CONNECT is served in HTTP/1.1 only",
        ));
    }
    if let Some(reason) = malformed_field(&parts.headers) {
        return Err(malformed(reason));
    }
    let odd = match sender {
        Sender::Child => odd_target(&mut parts.headers).map_err(malformed)?,
        Sender::Client => None,
    };
    let authority = authority(parts)?;
    let path = parts.uri.path_and_query().map_or("/", |it| it.as_str());
    let path = odd.as_ref().map_or(path.as_bytes(), HeaderValue::as_bytes);
    if path.len() > limits.target_bytes {
        return Err(TARGET_TOO_LONG);
    }
    let scheme = parts.uri.scheme_str().unwrap_or("http");
    let (target, form) = match path {
        b"*" if parts.method == Method::OPTIONS => {
            (Bytes::from_static(b"*"), RequestForm::Asterisk)
        }
        [b'/', ..] => {
            let server = format!("{scheme}://{authority}");
            let target = [server.as_bytes(), path].concat();
            (target.into(), RequestForm::Absolute)
        }
        _ => return Err(malformed("unknown form of request target")),
    };
    let length = content_length(&mut parts.headers).map_err(malformed)?;
    expectation(&parts.headers)?;
    let host = HeaderValue::try_from(authority).map_err(|_| malformed("Host is no authority"))?;
    parts.headers.insert(HOST, host);
    join_cookies(&mut parts.headers);
    let content = match length {
        _ if content.is_end_stream() => ContentFraming::None,
        Some(length) => ContentFraming::Length(length),
        None => ContentFraming::Chunked,
    };
    Ok(HeadInfo {
        target,
        form,
        version: Version::HTTP_2,
        content,
        received: Instant::now(),
    })
}

/// Takes the target of a child's request if it contains octets that `:path` cannot carry.
fn odd_target(fields: &mut HeaderMap) -> Result<Option<HeaderValue>, &'static str> {
    let is_expected = fields.get(EXPECT) == Some(&TARGET_EXPECTATION);
    let target = fields.remove(HASHCACHE_TARGET).filter(|_| is_expected);
    if is_expected {
        fields.remove(EXPECT);
    }
    let is_wrong = |byte: &u8| *byte <= b' ' || matches!(*byte, b'#' | 0x7f);
    match target {
        Some(target) if target.as_bytes().iter().any(is_wrong) => Err("malformed request target"),
        target => Ok(target),
    }
}

/// Reduces a field with equal lines to a single line; returns false if the lines differ.
fn fold_equal(fields: &mut HeaderMap, name: HeaderName) -> bool {
    let mut lines = fields.get_all(&name).iter();
    let (first, second) = (lines.next(), lines.next());
    let (Some(first), Some(second)) = (first, second) else {
        return true;
    };
    let is_first = |line: &HeaderValue| line.as_bytes().eq_ignore_ascii_case(first.as_bytes());
    if !is_first(second) || !lines.all(is_first) {
        return false;
    }
    let first = first.clone();
    fields.insert(name, first);
    true
}

/// The authority in `:authority` and Host, which must not differ (RFC 9113, 8.3.1).
fn authority(parts: &mut Parts) -> Result<String, Refusal> {
    let malformed = |reason| refuse(StatusCode::BAD_REQUEST, reason);
    if !fold_equal(&mut parts.headers, HOST) {
        return Err(malformed("more than one Host"));
    }
    let host = parts.headers.get(HOST);
    let host = host.filter(|host| !host.is_empty());
    let host = host.map(HeaderValue::to_str).transpose();
    let host = host.map_err(|_| malformed("Host is no authority"))?;
    let named = parts.uri.authority().map(|named| named.as_str());
    let scheme = match parts.uri.scheme_str() {
        Some("https") => Scheme::Https,
        _ => Scheme::Http,
    };
    let parse = |text| Authority::parse(text, scheme);
    match (named, host) {
        (Some(named), Some(host)) if named != host => match (parse(named), parse(host)) {
            (Ok(one), Ok(other)) if one == other => Ok(named.to_owned()),
            _ => Err(malformed("Host is not what :authority says")),
        },
        (Some(named), _) => Ok(named.to_owned()),
        (None, Some(host)) => Ok(host.to_owned()),
        (None, None) => Err(malformed("no authority")),
    }
}

fn content_length(fields: &mut HeaderMap) -> Result<Option<u64>, &'static str> {
    if !fold_equal(fields, CONTENT_LENGTH) {
        return Err("more than one Content-Length");
    }
    let Some(length) = fields.get(CONTENT_LENGTH) else {
        return Ok(None);
    };
    let digits = length.to_str().unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("Content-Length is not a number");
    }
    digits
        .parse()
        .map(Some)
        .map_err(|_| "Content-Length too large")
}

fn expectation(fields: &HeaderMap) -> Result<(), Refusal> {
    let known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if fields.get_all(EXPECT).iter().all(known) {
        Ok(())
    } else {
        Err(refuse(
            StatusCode::EXPECTATION_FAILED,
            "unknown expectation",
        ))
    }
}

/// HTTP/2 may split Cookie into several fields; HTTP/1.1 has a single field (RFC 9113, 8.2.3).
fn join_cookies(fields: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = fields
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if pieces.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
    {
        fields.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::{Empty, Full};

    use super::*;

    fn judged(request: http::request::Builder) -> (Result<HeadInfo, u16>, HeaderMap) {
        let mut parts = request.body(()).unwrap().into_parts().0;
        let by = (Sender::Child, &Limits::default());
        let judged = judge(&mut parts, &Empty::<Bytes>::new(), by);
        let head = match judged.head {
            RequestHead::Accepted(info) => Ok(info),
            RequestHead::Refused(failure) => Err(failure.status().as_u16()),
        };
        (head, parts.headers)
    }

    #[test]
    fn the_authority_goes_into_host_and_the_target_is_absolute() {
        let (info, fields) = judged(Request::get("https://a.test:8443/x?y"));
        let info = info.unwrap();
        assert_eq!(info.target, "https://a.test:8443/x?y");
        assert_eq!(
            (info.form, info.version),
            (RequestForm::Absolute, Version::HTTP_2)
        );
        assert_eq!(info.content, ContentFraming::None);
        assert_eq!(fields[HOST], "a.test:8443");
        let (info, fields) = judged(Request::get("/x").header(HOST, "b.test"));
        assert_eq!(info.unwrap().target, "http://b.test/x");
        assert_eq!(fields[HOST], "b.test");
        let (info, _) = judged(Request::options("*").header(HOST, "b.test"));
        assert_eq!(info.unwrap().form, RequestForm::Asterisk);
    }

    #[test]
    fn what_has_two_meanings_is_refused_as_in_http_1() {
        let at = |path: &str| Request::get(format!("https://a.test{path}"));
        let no_token = HeaderName::from_lowercase(b"x\"").unwrap();
        let many = (0..300).fold(at("/"), |all, n| all.header(format!("x-{n}"), "y"));
        for (request, status) in [
            (at("/").header(HOST, "b.test"), 400),
            (at("/").header(HOST, "a.test").header(HOST, "b.test"), 400),
            (at("/").header(HOST, "a.test:80"), 400),
            (Request::get("/"), 400),
            (
                at("/")
                    .header(CONTENT_LENGTH, "1")
                    .header(CONTENT_LENGTH, "01"),
                400,
            ),
            (at("/").header(CONTENT_LENGTH, "+1"), 400),
            (at("/").header(EXPECT, "a miracle"), 417),
            (Request::connect("a.test:443"), 501),
            (Request::get("*").header(HOST, "a.test"), 400),
            (at(&format!("/{}", "x".repeat(17 << 10))), 414),
            (many, 431),
            (at("/").header("x", "a "), 400),
            (at("/").header("x", "\ta"), 400),
            (at("/").header(no_token, "a"), 400),
        ] {
            let told = format!("{request:?}");
            assert_eq!(judged(request).0.map(|_| ()), Err(status), "{told}");
        }
        for fine in [
            at("/").header(HOST, "A.test:443"),
            at("/").header(HOST, "a.test").header(HOST, "A.test"),
            at("/").header(HOST, ""),
            at("/")
                .header(CONTENT_LENGTH, "1")
                .header(CONTENT_LENGTH, "1"),
            at("/").header(EXPECT, "100-Continue"),
        ] {
            assert!(judged(fine).0.is_ok());
        }
    }

    #[test]
    fn content_is_there_unless_the_stream_has_ended() {
        let mut parts = Request::post("https://a.test/")
            .body(())
            .unwrap()
            .into_parts()
            .0;
        let content = Full::new(Bytes::from_static(b"x"));
        let by = (Sender::Client, &Limits::default());
        let RequestHead::Accepted(info) = judge(&mut parts, &content, by).head else {
            panic!("refused")
        };
        assert_eq!(info.content, ContentFraming::Chunked);
    }

    #[test]
    fn only_a_child_that_says_so_names_its_target_in_a_field() {
        let odd = HeaderValue::from_bytes(b"/<\xe4>").unwrap();
        let asked = || Request::get("https://a.test/").header(HASHCACHE_TARGET, &odd);
        let (info, fields) = judged(asked().header(EXPECT, TARGET_EXPECTATION));
        assert_eq!(info.unwrap().target, &b"https://a.test/<\xe4>"[..]);
        assert!(!fields.contains_key(EXPECT) && !fields.contains_key(HASHCACHE_TARGET));
        let (info, _) = judged(asked());
        assert_eq!(info.unwrap().target, "https://a.test/");
        let blank = Request::get("https://a.test/").header(HASHCACHE_TARGET, "/a b");
        let (info, _) = judged(blank.header(EXPECT, TARGET_EXPECTATION));
        assert_eq!(info.map(|_| ()), Err(400));
        let request = asked().header(EXPECT, TARGET_EXPECTATION).body(()).unwrap();
        let mut parts = request.into_parts().0;
        let by = (Sender::Client, &Limits::default());
        let judged = judge(&mut parts, &Empty::<Bytes>::new(), by);
        assert!(matches!(judged.head, RequestHead::Refused(it) if it.status() == 417));
    }

    #[test]
    fn pieces_of_a_cookie_become_one_field() {
        let request = Request::get("https://a.test/");
        let request = request.header(COOKIE, "a=1").header(COOKIE, "b=2");
        let (_, fields) = judged(request);
        let cookies: Vec<_> = fields.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }
}
