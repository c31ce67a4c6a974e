//! HTTP/2 request heads: refuses those that hyper accepts and HTTP/1.1 would not.
//!
//! Called by `http2` for each head; the counterpart of `wire::head`. `h2` has read the frames and
//! has reset streams with connection fields, upper-case names, a TE other than trailers, misplaced
//! pseudo-fields, or content of another length than declared.
//!
//! Invariant: an accepted request has one authority, in `Host`, and the same meaning when it is
//! forwarded in HTTP/1.1.

use bytes::Bytes;
use hashcache_http::{Authority, Scheme};
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, Version};
use http_body::Body;
use tokio::time::Instant;

use super::super::cell::{HeadInfo, RequestHead, RequestTraits, StreamHead};
use super::super::head::{ContentFraming, Refusal, RequestForm, refuse};
use crate::limits::Limits;

/// Checks a head; puts the authority into `Host` and joins Cookie fields.
pub(super) fn judge(parts: &mut Parts, content: &impl Body, limits: &Limits) -> StreamHead {
    let asked = RequestTraits {
        http_2: true,
        head_only: parts.method == Method::HEAD,
        ..RequestTraits::default()
    };
    let target = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
    let size = fields_size(&parts.headers) + target as u64;
    let head = match check(parts, content, limits) {
        Ok(info) => RequestHead::Accepted(info),
        Err(refusal) => RequestHead::Refused(refusal.into()),
    };
    StreamHead { head, asked, size }
}

/// The same for CONNECT on a connection that may have tunnels.
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

/// The uncompressed size of the fields as RFC 9113 counts it (section 6.5.2).
pub(super) fn fields_size(fields: &HeaderMap) -> u64 {
    let sizes = fields
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum::<usize>() as u64
}

fn check(parts: &mut Parts, content: &impl Body, limits: &Limits) -> Result<HeadInfo, Refusal> {
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
    let authority = authority(parts)?;
    let path = parts.uri.path_and_query().map_or("/", |it| it.as_str());
    if path.len() > limits.target_bytes {
        return Err(large("request target too long"));
    }
    let scheme = parts.uri.scheme_str().unwrap_or("http");
    let (target, form) = match path {
        "*" if parts.method == Method::OPTIONS => (Bytes::from_static(b"*"), RequestForm::Asterisk),
        _ if !path.starts_with('/') => {
            return Err(malformed("unknown form of request target"));
        }
        _ => (
            Bytes::from(format!("{scheme}://{authority}{path}")),
            RequestForm::Absolute,
        ),
    };
    let length = content_length(&parts.headers).map_err(malformed)?;
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

/// The authority in `:authority` and Host, which must not differ (RFC 9113, 8.3.1).
fn authority(parts: &Parts) -> Result<String, Refusal> {
    let malformed = |reason| refuse(StatusCode::BAD_REQUEST, reason);
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return Err(malformed("more than one Host"));
    }
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

fn content_length(fields: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(None);
    };
    if lengths.next().is_some() {
        return Err("more than one Content-Length");
    }
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
    match fields.get_all(EXPECT).iter().all(known) {
        true => Ok(()),
        false => Err(refuse(
            StatusCode::EXPECTATION_FAILED,
            "unknown expectation",
        )),
    }
}

/// HTTP/2 may split Cookie into several fields; HTTP/1.1 has one (RFC 9113, 8.2.3).
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
        let judged = judge(&mut parts, &Empty::<Bytes>::new(), &Limits::default());
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
        let many = (0..300).fold(at("/"), |all, n| all.header(format!("x-{n}"), "y"));
        for (request, status) in [
            (at("/").header(HOST, "b.test"), 400),
            (at("/").header(HOST, "a.test").header(HOST, "a.test"), 400),
            (at("/").header(HOST, "a.test:80"), 400),
            (Request::get("/"), 400),
            (
                at("/")
                    .header(CONTENT_LENGTH, "1")
                    .header(CONTENT_LENGTH, "1"),
                400,
            ),
            (at("/").header(CONTENT_LENGTH, "+1"), 400),
            (at("/").header(EXPECT, "a miracle"), 417),
            (Request::connect("a.test:443"), 501),
            (Request::get("*").header(HOST, "a.test"), 400),
            (at(&format!("/{}", "x".repeat(17 << 10))), 431),
            (many, 431),
        ] {
            let told = format!("{request:?}");
            assert_eq!(judged(request).0.map(|_| ()), Err(status), "{told}");
        }
        for fine in [
            at("/").header(HOST, "A.test:443"),
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
        let RequestHead::Accepted(info) = judge(&mut parts, &content, &Limits::default()).head
        else {
            panic!("refused")
        };
        assert_eq!(info.content, ContentFraming::Chunked);
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
