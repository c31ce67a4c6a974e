//! Checks access to pages that name sites and clients: only from this machine, or with the token.
//!
//! Invariant: a foreign site's page cannot read these pages, because browsers send the Origin, and
//! a foreign Origin is refused.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::answer::error;
use super::token::{Shown, Token};

/// Refuses a request for the dashboard from the client at `peer`.
pub(super) fn dashboard_refusal(
    fields: &HeaderMap,
    peer: IpAddr,
    token: &Token,
) -> Option<Response<Bytes>> {
    if !is_own_origin(fields) {
        return Some(other_origin());
    }
    if peer.to_canonical().is_loopback() {
        None
    } else {
        token.refusal(fields, Shown::BearerOrBasic)
    }
}

/// Returns the refusal for a request that another origin's page has caused.
pub(super) fn other_origin() -> Response<Bytes> {
    let what = "this page is for the admin listener's own origin";
    error(StatusCode::FORBIDDEN, what)
}

/// Returns true if no page of another origin has made a browser send this request. Programs send no
/// Origin.
pub(super) fn is_own_origin(fields: &HeaderMap) -> bool {
    let mut origins = fields.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        return !fields.contains_key(ORIGIN) && !is_of_other_origin(fields);
    };
    // The scheme is https if a TLS terminator is in front of this listener.
    let origin = origin.as_bytes();
    let authority = [&b"http://"[..], b"https://"]
        .into_iter()
        .find_map(|scheme| origin.strip_prefix(scheme));
    let host = fields.get(HOST).map(HeaderValue::as_bytes);
    authority
        .zip(host)
        .is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
        && !is_of_other_origin(fields)
}

/// Returns true if the browser reports that a page of another origin has caused the request, for
/// example as a frame or as an image. A link that the user follows is harmless and does not count.
fn is_of_other_origin(fields: &HeaderMap) -> bool {
    let site = fields.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let mode = fields.get("sec-fetch-mode").map(HeaderValue::as_bytes);
    let is_own = [None, Some(&b"same-origin"[..]), Some(b"none")].contains(&site);
    !is_own && mode != Some(b"navigate")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn fields(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = all.iter().map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        fields.collect()
    }

    fn status(all: &[(&'static str, &'static str)], peer: &str, file: Option<&Path>) -> u16 {
        let token = Token::new(file.map(Path::to_owned));
        let refusal = dashboard_refusal(&fields(all), peer.parse().unwrap(), &token);
        refusal.map_or(200, |refusal| refusal.status().as_u16())
    }

    #[test]
    fn other_machines_need_the_token_and_this_one_does_not() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = Some(&*path);
        let other = "192.0.2.7";
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(status(&[], here, None), 200);
        }
        assert_eq!(status(&[], other, None), 403);
        assert_eq!(status(&[], other, file), 401);
        let bearer = [("authorization", "Bearer 0123456789abcdef")];
        assert_eq!(status(&bearer, other, file), 200);
        // "any:0123456789abcdef", "any:0123456789abcdeX", "0123456789abcdef".
        for (basic, expected) in [
            ("Basic YW55OjAxMjM0NTY3ODlhYmNkZWY=", 200),
            ("Basic YW55OjAxMjM0NTY3ODlhYmNkZVg=", 401),
            ("Basic MDEyMzQ1Njc4OWFiY2RlZg==", 401),
            ("Basic ?", 401),
        ] {
            let basic = [("authorization", basic)];
            assert_eq!(status(&basic, other, file), expected, "{basic:?}");
            let purge = Token::new(Some(path.clone())).refusal(&fields(&basic), Shown::Bearer);
            assert_eq!(purge.map(|it| it.status().as_u16()), Some(401), "{basic:?}");
        }
    }

    #[test]
    fn a_page_of_another_origin_gets_nothing() {
        for (all, expected) in [
            (&[("host", "localhost:3180")][..], 200),
            (
                &[
                    ("host", "localhost:3180"),
                    ("origin", "http://localhost:3180"),
                ],
                200,
            ),
            (
                &[
                    ("host", "localhost:3180"),
                    ("origin", "https://localhost:3180"),
                ],
                200,
            ),
            (
                &[
                    ("host", "localhost:3180"),
                    ("origin", "http://localhost:3128"),
                ],
                403,
            ),
            (
                &[("host", "localhost:3180"), ("origin", "http://evil.test")],
                403,
            ),
            (&[("host", "localhost:3180"), ("origin", "null")], 403),
            (
                &[
                    ("host", "localhost:3180"),
                    ("sec-fetch-site", "same-origin"),
                ],
                200,
            ),
            (
                &[("host", "localhost:3180"), ("sec-fetch-site", "cross-site")],
                403,
            ),
            (
                &[("host", "localhost:3180"), ("sec-fetch-site", "same-site")],
                403,
            ),
            (
                &[
                    ("host", "localhost:3180"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                ],
                200,
            ),
        ] {
            assert_eq!(status(all, "127.0.0.1", None), expected, "{all:?}");
        }
    }
}
