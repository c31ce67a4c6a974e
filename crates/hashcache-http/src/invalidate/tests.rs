//! Tests: the stored responses that an unsafe request invalidates.

use super::*;

fn target(url: &str) -> Target {
    Target::parse_url(url).unwrap()
}

fn resolved(reference: &str) -> Option<String> {
    resolve(&target("http://a/b/c/d;p?q"), reference).map(|target| target.to_string())
}

/// The targets that a POST to `http://a/x` invalidates if the response has these fields.
fn after_post(status: u16, lines: &[(&'static str, &str)]) -> Vec<String> {
    let mut response = HeaderMap::new();
    for (name, value) in lines {
        response.append(*name, value.parse().unwrap());
    }
    let status = StatusCode::from_u16(status).unwrap();
    let targets = invalidated(&Method::POST, &target("http://a/x"), status, &response);
    targets.iter().map(ToString::to_string).collect()
}

#[test]
fn methods_of_the_registry_are_safe_and_unknown_ones_are_not() {
    let unknown = Method::from_bytes(b"M-SEARCH").unwrap();
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        unknown,
    ] {
        assert!(is_unsafe(&method), "{method}");
    }
    for name in SAFE {
        let method = Method::from_bytes(name.as_bytes()).unwrap();
        assert!(!is_unsafe(&method), "{method}");
        let response = HeaderMap::new();
        let named = invalidated(&method, &target("http://a/"), StatusCode::OK, &response);
        assert!(named.is_empty());
    }
}

#[test]
fn success_and_redirection_invalidate_errors_do_not() {
    for status in [200, 204, 299, 302, 399] {
        assert_eq!(after_post(status, &[]), ["http://a/x"], "{status}");
    }
    for status in [100, 400, 404, 500, 599] {
        assert!(after_post(status, &[]).is_empty(), "{status}");
    }
}

#[test]
fn location_and_content_location_of_the_same_origin_are_invalidated_too() {
    let lines = [("location", "/l"), ("content-location", "http://A:80/c#f")];
    assert_eq!(
        after_post(201, &lines),
        ["http://a/x", "http://a/l", "http://a/c"]
    );
    assert_eq!(after_post(200, &[("location", "x")]), ["http://a/x"]);
}

#[test]
fn other_origins_are_never_invalidated() {
    for reference in [
        "http://b/l",
        "https://a/l",
        "http://a:81/l",
        "//b/l",
        "mailto:a",
        "http://u@a/",
    ] {
        assert_eq!(
            after_post(201, &[("location", reference)]),
            ["http://a/x"],
            "{reference}"
        );
    }
    let twice = [("location", "/1"), ("location", "/2")];
    assert_eq!(after_post(201, &twice), ["http://a/x"]);
}

#[test]
fn references_resolve_as_in_rfc_3986_5_4() {
    for (reference, expected) in [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g/"),
        ("?y", "http://a/b/c/d;p?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d;p?q"),
        ("g#s", "http://a/b/c/g"),
        ("g?y#s", "http://a/b/c/g?y"),
        (";x", "http://a/b/c/;x"),
        ("g;x?y#s", "http://a/b/c/g;x?y"),
        ("", "http://a/b/c/d;p?q"),
        (".", "http://a/b/c/"),
        ("./", "http://a/b/c/"),
        ("..", "http://a/b/"),
        ("../", "http://a/b/"),
        ("../g", "http://a/b/g"),
        ("../..", "http://a/"),
        ("../../", "http://a/"),
        ("../../g", "http://a/g"),
        ("../../../g", "http://a/g"),
        ("../../../../g", "http://a/g"),
        ("/./g", "http://a/g"),
        ("/../g", "http://a/g"),
        ("g.", "http://a/b/c/g."),
        (".g", "http://a/b/c/.g"),
        ("g..", "http://a/b/c/g.."),
        ("..g", "http://a/b/c/..g"),
        ("./../g", "http://a/b/g"),
        ("./g/.", "http://a/b/c/g/"),
        ("g/./h", "http://a/b/c/g/h"),
        ("g/../h", "http://a/b/c/h"),
        ("g;x=1/./y", "http://a/b/c/g;x=1/y"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("g?y/./x", "http://a/b/c/g?y/./x"),
        ("g?y/../x", "http://a/b/c/g?y/../x"),
        ("http://g/../h", "http://g/h"),
    ] {
        assert_eq!(
            resolved(reference).as_deref(),
            Some(expected),
            "{reference:?}"
        );
    }
    for reference in ["g:h", "http:g", "http://u@g/", "a b", "https:", "//"] {
        assert_eq!(resolved(reference), None, "{reference:?}");
    }
}
