//! Conditions and fields on both sides of a mirror.

use super::super::tests::{links, npm, pypi};
use super::*;

fn fields(list: &[(&'static str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &str)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    };
    list.iter().map(field).collect()
}

fn npm_links() -> Links {
    links(&npm(), "http://registry.test/npm/a")
}

/// The tag that clients get for a response with this one.
fn tag(etag: &str) -> Option<String> {
    let mut response = fields(&[("etag", etag)]);
    rewrite_fields(&npm_links(), LinkRewriting::Renamed, &mut response);
    Some(response.get(ETAG)?.to_str().unwrap().to_owned())
}

/// The If-None-Match that is sent upstream.
fn translated(value: &str) -> Option<String> {
    let mut request = fields(&[
        ("if-none-match", value),
        ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
    ]);
    translate_conditions(&npm_links(), &mut request);
    assert!(!request.contains_key(IF_MODIFIED_SINCE));
    Some(request.get(IF_NONE_MATCH)?.to_str().unwrap().to_owned())
}

#[test]
fn a_tag_comes_back_as_what_it_was_made_of() {
    for original in ["\"abc\"", "W/\"abc\"", "\"a,b-m\"", "\"\""] {
        let own = tag(original).unwrap();
        assert!(own.starts_with("W/\"") && own.contains("-m"), "{own}");
        let opaque = original.trim_start_matches("W/");
        let expected = format!("{opaque}, W/{opaque}");
        assert_eq!(translated(&own).as_deref(), Some(&expected[..]));
        let among = format!("\"other\", {own},\"W/x\"");
        assert_eq!(translated(&among).as_deref(), Some(&expected[..]));
    }
    assert_eq!(tag("unquoted"), None);
}

#[test]
fn tags_of_anything_else_match_nothing() {
    let own = tag("\"abc\"").unwrap();
    let elsewhere = Links::new(&npm(), "http://other:1", npm_links_page());
    let mut response = fields(&[("etag", "\"abc\"")]);
    rewrite_fields(&elsewhere, LinkRewriting::Renamed, &mut response);
    let other = response[ETAG].to_str().unwrap();
    assert_ne!(other, own);
    for value in [
        other,
        "\"abc\"",
        "W/\"abc\"",
        "",
        "\"",
        "-m",
        own.trim_end_matches('"'),
    ] {
        // An unclosed tag may be read as one: it is what its sender was given.
        if value != own.trim_end_matches('"') {
            assert_eq!(translated(value), None, "{value}");
        }
    }
    assert_eq!(translated("*").as_deref(), Some("*"));
}

fn npm_links_page() -> hashcache_http::Target {
    hashcache_http::Target::parse_url("http://registry.test/npm/a").unwrap()
}

#[test]
fn clients_of_a_kind_ask_alike() {
    let accept = |kind, value: &'static str| {
        let mut request = fields(&[
            ("accept", value),
            ("range", "bytes=0-1"),
            ("if-range", "\"a\""),
        ]);
        ask_plainly(kind, &mut request);
        assert!(!request.contains_key(RANGE) && !request.contains_key(IF_RANGE));
        assert_eq!(request[ACCEPT_ENCODING], "gzip");
        request[ACCEPT].to_str().unwrap().to_owned()
    };
    let pip = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, \
               text/html; q=0.01";
    assert_eq!(accept(MirrorKind::Pypi, pip), PYPI_JSON_FIRST);
    assert_eq!(accept(MirrorKind::Pypi, "*/*"), "text/html");
    let refused = "application/vnd.pypi.simple.v1+json;q=0.0, text/html";
    assert_eq!(accept(MirrorKind::Pypi, refused), "text/html");
    let npm = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*";
    assert_eq!(accept(MirrorKind::Npm, npm), NPM_SHORT_FIRST);
    assert_eq!(
        accept(MirrorKind::Npm, "application/json"),
        "application/json"
    );
    assert_eq!(accept(MirrorKind::Crates, "*/*"), "*/*");
}

#[test]
fn only_codings_that_were_asked_for_are_read() {
    for (value, expected) in [
        ("gzip", Some(ContentCoding::Gzip)),
        ("X-GZip, identity", Some(ContentCoding::Gzip)),
        ("", Some(ContentCoding::Identity)),
        ("br", None),
        ("gzip, gzip", None),
        ("gzip, br", None),
    ] {
        let coding = coding(&fields(&[("content-encoding", value)]));
        assert_eq!(coding.ok(), expected, "{value}");
    }
    assert_eq!(coding(&HeaderMap::new()), Ok(ContentCoding::Identity));
}

#[test]
fn what_described_their_bytes_or_their_host_goes() {
    let all = [
        ("content-length", "10"),
        ("content-encoding", "gzip"),
        ("repr-digest", "sha-256=:AA==:"),
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("set-cookie", "a=b"),
        ("alt-svc", "h3=\":443\""),
        ("strict-transport-security", "max-age=1"),
        ("cache-control", "max-age=60"),
        ("location", "/npm/b"),
    ];
    let mut renamed = fields(&all);
    rewrite_fields(&npm_links(), LinkRewriting::Renamed, &mut renamed);
    let mut left: Vec<&str> = renamed.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    let expected = [
        "accept-ranges",
        "cache-control",
        "content-security-policy",
        "location",
        "x-content-type-options",
    ];
    assert_eq!(left, expected);
    assert_eq!(renamed[ACCEPT_RANGES], "none");
    assert_eq!(renamed[LOCATION], "http://box:3128/mirror/npm/b");
    let mut plain = fields(&all);
    rewrite_fields(&npm_links(), LinkRewriting::Plain, &mut plain);
    assert_eq!(plain[CONTENT_LENGTH], "10");
    assert!(plain.contains_key(LAST_MODIFIED) && !plain.contains_key(SET_COOKIE));
    let away = "https://elsewhere.test/x";
    let mut response = fields(&[("location", away)]);
    rewrite_fields(
        &links(&pypi(), "https://index.test/simple/a"),
        LinkRewriting::Plain,
        &mut response,
    );
    assert_eq!(response[LOCATION], away);
}
