use super::*;

fn url(text: &str) -> Result<String, TargetError> {
    Target::parse_url(text).map(|target| target.to_string())
}

#[test]
fn equal_resources_get_one_spelling() {
    for text in [
        "http://example.com/",
        "http://EXAMPLE.com",
        "HTTP://example.com:80/",
        "http://example.com:/",
        "http://example.com:0080/",
    ] {
        assert_eq!(url(text).as_deref(), Ok("http://example.com/"), "{text}");
    }
    assert_eq!(url("https://h:443?q").as_deref(), Ok("https://h/?q"));
    assert_eq!(url("https://h:80/").as_deref(), Ok("https://h:80/"));
}

#[test]
fn path_and_query_stay_byte_for_byte() {
    for text in [
        "http://h/a%2fb/../c?y&x",
        "http://h//",
        "http://h/?",
        "http://h/%7E~",
    ] {
        assert_eq!(url(text).as_deref(), Ok(text));
    }
}

#[test]
fn ports_are_digits_from_1_to_65535() {
    for text in [
        "http://h:0/",
        "http://h:65536/",
        "http://h:+80/",
        "http://h:8x/",
        "http://h:80:80/",
        "http://h:000080/",
    ] {
        assert_eq!(url(text), Err(TargetError::Port), "{text}");
    }
    assert_eq!(url("http://h:65535/").as_deref(), Ok("http://h:65535/"));
}

#[test]
fn fragments_userinfo_and_blanks_are_errors() {
    assert_eq!(url("http://h/#a"), Err(TargetError::Fragment));
    assert_eq!(url("http://h#a"), Err(TargetError::Fragment));
    assert_eq!(url("http://u:p@h/"), Err(TargetError::Userinfo));
    assert_eq!(url("http://h/a b"), Err(TargetError::Path));
    assert_eq!(url("http://h\\a/"), Err(TargetError::Host));
    assert_eq!(url("wais://h/"), Err(TargetError::Scheme));
}

#[test]
fn absolute_form_wins_over_host() {
    let target = parse_target(&Method::GET, "http://a/x", Some("b"), Scheme::Https).unwrap();
    assert_eq!(
        target,
        RequestTarget::Resource(Target::parse_url("http://a/x").unwrap())
    );
}

#[test]
fn origin_form_needs_a_host_and_takes_the_connections_scheme() {
    let target = parse_target(&Method::GET, "/x://y", Some("A:443"), Scheme::Https).unwrap();
    let expected = Target::parse_url("https://a/x://y").unwrap();
    assert_eq!(target, RequestTarget::Resource(expected));
    let missing = parse_target(&Method::GET, "/x", None, Scheme::Http);
    assert_eq!(missing, Err(TargetError::NoHost));
}

#[test]
fn connect_takes_authority_form_with_a_port_and_nothing_else() {
    let parse = |target| parse_target(&Method::CONNECT, target, Some("h"), Scheme::Http);
    let expected = Authority::parse_with_port("h:443").unwrap();
    assert_eq!(parse("H:443"), Ok(RequestTarget::Tunnel(expected)));
    assert_eq!(parse("h"), Err(TargetError::Port));
    assert_eq!(parse("h:"), Err(TargetError::Port));
    assert!(parse("http://h/").is_err());
    assert!(parse("/").is_err());
}

#[test]
fn asterisk_belongs_to_options() {
    let parse = |method| parse_target(&method, "*", Some("h"), Scheme::Http);
    assert!(matches!(
        parse(Method::OPTIONS),
        Ok(RequestTarget::Server(_))
    ));
    assert_eq!(parse(Method::GET), Err(TargetError::Form));
}

#[test]
fn options_for_a_host_without_a_path_is_about_the_server() {
    let path = |method: Method, url: &str| match parse_target(&method, url, None, Scheme::Http) {
        Ok(RequestTarget::Resource(target)) => target.path_and_query.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(path(Method::OPTIONS, "http://h"), "*");
    assert_eq!(path(Method::OPTIONS, "HTTP://h:8080"), "*");
    assert_eq!(path(Method::OPTIONS, "http://h/"), "/");
    assert_eq!(path(Method::OPTIONS, "http://h?x"), "/?x");
    assert_eq!(path(Method::GET, "http://h"), "/");
}
