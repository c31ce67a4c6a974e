//! Tests: fields of the connection are not forwarded.

use super::*;

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
    }
    fields
}

#[test]
fn a_request_loses_what_belongs_to_its_connection() {
    let mut request = fields(&[
        ("connection", "close, X-Mine"),
        ("connection", "x-other"),
        ("x-mine", "1"),
        ("x-other", "1"),
        ("keep-alive", "1"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic x"),
        ("te", "gzip"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("host", "h"),
        ("content-length", "5"),
    ]);
    strip_request(&mut request, Upgrading::No).unwrap();
    assert_eq!(request, fields(&[("host", "h"), ("content-length", "5")]));
}

#[test]
fn trailers_and_a_wanted_upgrade_go_on_and_are_named() {
    let mut request = fields(&[("te", "gzip, Trailers"), ("upgrade", "websocket")]);
    let mut upgrading = request.clone();
    strip_request(&mut request, Upgrading::No).unwrap();
    assert_eq!(request, fields(&[("te", "trailers"), ("connection", "te")]));
    strip_request(&mut upgrading, Upgrading::Yes).unwrap();
    let expected = fields(&[
        ("te", "trailers"),
        ("connection", "upgrade, te"),
        ("upgrade", "websocket"),
    ]);
    assert_eq!(upgrading, expected);
}

#[test]
fn a_connection_that_names_what_the_message_rests_on_is_refused() {
    for name in [
        "Host",
        "content-length",
        "Cache-Control",
        "authorization",
        "cookie",
        "via",
    ] {
        let mut message = fields(&[("connection", &format!("close, {name}"))]);
        let refused = ForbiddenOption(name.parse().unwrap());
        assert_eq!(
            strip_request(&mut message, Upgrading::No),
            Err(refused.clone())
        );
        assert_eq!(strip_response(&mut message, Upgrading::No), Err(refused));
    }
}

#[test]
fn a_response_with_two_lengths_keeps_neither() {
    let mut response = fields(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
    strip_response(&mut response, Upgrading::No).unwrap();
    assert!(response.is_empty());
}

#[test]
fn the_upgrade_of_a_101_goes_on() {
    let mut response = fields(&[("connection", "Upgrade"), ("upgrade", "websocket")]);
    let before = fields(&[("connection", "upgrade"), ("upgrade", "websocket")]);
    strip_response(&mut response, Upgrading::Yes).unwrap();
    assert_eq!(response, before);
    strip_response(&mut response, Upgrading::No).unwrap();
    assert!(response.is_empty());
}

#[test]
fn withheld_and_proxy_fields_are_not_stored() {
    let response = fields(&[
        ("set-cookie", "a=1"),
        ("x-secret", "1"),
        ("x-hop", "1"),
        ("connection", "x-hop"),
        ("proxy-authenticate", "Basic"),
        ("proxy-authentication-info", "x"),
        ("etag", "\"a\""),
        ("via", "1.1 a"),
        ("via", "1.1 b"),
    ]);
    let directives = ResponseDirectives {
        no_cache: Scope::Fields(vec!["set-cookie".parse().unwrap()]),
        private: Scope::Fields(vec!["x-secret".parse().unwrap()]),
        ..ResponseDirectives::default()
    };
    let expected = fields(&[("etag", "\"a\""), ("via", "1.1 a"), ("via", "1.1 b")]);
    assert_eq!(fields_to_store(&response, &directives), expected);
    let all = fields_to_store(&response, &ResponseDirectives::default());
    assert!(all.contains_key("set-cookie") && all.contains_key("x-secret"));
}

#[test]
fn an_upgrade_must_be_named_by_connection() {
    let asks = |lines| asks_for_upgrade(&Method::GET, &fields(lines));
    assert!(asks(&[
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket")
    ]));
    assert!(!asks(&[("upgrade", "websocket")]));
    assert!(!asks(&[("connection", "upgrade")]));
}

#[test]
fn an_offer_of_h2c_is_not_taken_up() {
    let asks = |protocols| {
        let connection = ("connection", "Upgrade, HTTP2-Settings");
        asks_for_upgrade(&Method::GET, &fields(&[connection, ("upgrade", protocols)]))
    };
    assert!(!asks("h2c"));
    assert!(!asks("H2C"));
    assert!(asks("h2c, websocket"));
}

#[test]
fn http_in_another_form_is_offered_to_nobody() {
    let get = Method::GET;
    for (offer, passed) in [
        ("h2c", None),
        ("x, h2c", Some("x")),
        ("H2C ,websocket,,tls/1.2", Some("websocket")),
        ("HTTP/2.0, h2, h2c/1", None),
        ("websocket", Some("websocket")),
        ("h2cx", Some("h2cx")),
    ] {
        let mut request = fields(&[
            ("connection", "Upgrade, HTTP2-Settings"),
            ("upgrade", offer),
            ("http2-settings", "AAMAAABkAAQ"),
        ]);
        assert_eq!(
            asks_for_upgrade(&get, &request),
            passed.is_some(),
            "{offer}"
        );
        strip_request(&mut request, Upgrading::Yes).unwrap();
        let upgrade = request.get(UPGRADE).map(|it| it.to_str().unwrap());
        assert_eq!(upgrade, passed, "{offer}");
        assert!(!request.contains_key("http2-settings"), "{offer}");
    }
    let mut unnamed = fields(&[("http2-settings", "AAMAAABkAAQ")]);
    strip_request(&mut unnamed, Upgrading::No).unwrap();
    assert_eq!(unnamed, fields(&[]));
    assert!(grants_other_protocol(&fields(&[("upgrade", "websocket")])));
    for granted in [&[][..], &[("upgrade", "h2c")], &[("upgrade", "x, H2C")]] {
        assert!(!grants_other_protocol(&fields(granted)), "{granted:?}");
    }
}

#[test]
fn what_is_stripped_once_stays_as_it_is() {
    let mut once = fields(&[
        ("connection", "upgrade, te, origin"),
        ("upgrade", "websocket, h2c"),
        ("te", "trailers"),
        ("origin", "https://app"),
    ]);
    strip_request(&mut once, Upgrading::Yes).unwrap();
    let mut twice = once.clone();
    strip_request(&mut twice, Upgrading::Yes).unwrap();
    assert_eq!(once, twice);
    assert!(!once.contains_key("origin"));
}
