//! Lifetimes that the operator of a site sets.

use hashcache_http::*;
use http::{HeaderName, StatusCode};

use crate::support::*;

/// The lifetimes of the site `h`.
fn lifetimes(text: &str) -> Result<Lifetimes, RuleError> {
    #[derive(serde::Deserialize)]
    struct Table {
        lifetime: Vec<LifetimeSpec>,
    }
    let table: Table = toml::from_str(&format!("lifetime = [{text}]")).unwrap();
    Lifetimes::new(table.lifetime)
}

fn at_site(text: &str, mut case: Case) -> Case {
    let host = Host::parse("h").unwrap();
    let lifetimes = lifetimes(text).unwrap();
    case.options.sites.insert([&host], &lifetimes);
    case
}

/// The lifetime that the site gives a response without a stated lifetime, cookies aside.
fn plain(text: &str, url: &'static str) -> (u32, LifetimeSource) {
    at_site(
        text,
        response(&[("vary", "cookie"), ("etag", "\"a\"")]).url(url),
    )
    .lifetime()
}

const NONE: (u32, LifetimeSource) = (0, LifetimeSource::None);
const HOUR: (u32, LifetimeSource) = (3600, LifetimeSource::Rule);

#[test]
fn the_first_path_that_matches_decides() {
    let text = "{ path = '/static/**', default = '1h' }, { path = ['/a', '/b/*'], max = '1d' },
        { default = '1m' }";
    let minute = (60, LifetimeSource::Rule);
    for (url, lifetime) in [
        ("http://h/static/x/y.css", HOUR),
        ("http://h/static/x?query", HOUR),
        ("http://h/a", NONE),
        ("http://h/b/x", NONE),
        ("http://h/b/x/y", minute),
        ("http://h/", minute),
        ("http://other/static/x", NONE),
    ] {
        assert_eq!(plain(text, url), lifetime, "{url}");
    }
}

#[test]
fn what_the_origin_or_a_rule_states_precedes_the_default() {
    let text = "{ default = '1h' }";
    let vary = ("vary", "Cookie");
    for (lines, lifetime) in [
        (("cache-control", "max-age=5"), (5, LifetimeSource::MaxAge)),
        (("expires", "0"), (0, LifetimeSource::Expires)),
        (
            ("cache-control", "s-maxage=7"),
            (7, LifetimeSource::SMaxage),
        ),
        (("last-modified", "Fri, 15 Jan 2027 07:00:00 GMT"), HOUR),
    ] {
        let case = at_site(text, response(&[vary, ("etag", "\"a\""), lines]));
        assert_eq!(case.lifetime(), lifetime, "{lines:?}");
    }
    let mut ruled = at_site(text, response(&[vary]));
    ruled.options.rules = Rules::from_toml("[[rule]]\npath = '/x'\nlifetime = '2m'").unwrap();
    assert_eq!(ruled.lifetime(), (120, LifetimeSource::Rule));
}

#[test]
fn a_default_is_no_leave_to_store_what_is_for_one_client() {
    let text = "{ default = '1h', ignore_cookies = true }";
    for (line, reason) in [
        (("cache-control", "private"), NotStored::Private),
        (("cache-control", "no-store"), NotStored::NoStore),
        (("set-cookie", "a=1"), NotStored::SetCookie),
        (("vary", "*"), NotStored::VaryAnything),
    ] {
        let case = at_site(text, response(&[line]));
        assert_eq!(case.not_stored(), reason, "{line:?}");
    }
    let authorized = response(&[]).asked_with(&[("authorization", "Basic eA==")]);
    assert_eq!(
        at_site(text, authorized).not_stored(),
        NotStored::Authorization
    );
    // Stored because the origin says so, but without a lifetime from here.
    let public = [("cache-control", "public"), ("etag", "\"a\"")];
    let cookie = at_site(text, response(&public).and("set-cookie", "a=1"));
    assert_eq!(cookie.lifetime(), NONE);
    let authorized = response(&public).asked_with(&[("authorization", "Basic eA==")]);
    assert_eq!(at_site(text, authorized).lifetime(), NONE);
    assert_eq!(at_site(text, response(&public)).lifetime(), HOUR);
}

#[test]
fn a_default_is_for_requests_without_cookies_unless_the_operator_ignores_them() {
    let (careful, careless) = (
        "{ default = '1h' }",
        "{ default = '1h', ignore_cookies = true }",
    );
    let tag = ("etag", "\"a\"");
    let asked = |case: Case| case.asked_with(&[("cookie", "session=1")]);
    let (plain, marked) = (response(&[tag]), response(&[tag, ("vary", "cookie")]));
    for (text, case, lifetime) in [
        (careful, plain.clone(), NONE),
        (careful, marked.clone(), HOUR),
        (careful, asked(marked), NONE),
        (careless, plain.clone(), HOUR),
        (careless, asked(plain), HOUR),
    ] {
        assert_eq!(at_site(text, case).lifetime(), lifetime, "{text}");
    }
}

#[test]
fn the_proxy_adds_cookie_to_vary_where_the_lifetime_is_ours() {
    let limits = |text: &str, status: u16, lines: &[(&str, &str)]| {
        let case = response(lines);
        let cdn = [HeaderName::from_static("cdn-cache-control")];
        let response = (StatusCode::from_u16(status).unwrap(), &case.response);
        lifetimes(text)
            .unwrap()
            .limits_cookies("/x", response, &cdn)
    };
    let text = "{ default = '1h' }";
    assert!(limits(text, 200, &[]));
    assert!(limits(text, 301, &[]));
    assert!(limits(text, 200, &[("cache-control", "public")]));
    for lines in [
        ("cache-control", "max-age=1"),
        ("cdn-cache-control", "max-age=1"),
        ("expires", "0"),
        ("vary", "Accept, Cookie"),
    ] {
        assert!(!limits(text, 200, &[lines]), "{lines:?}");
    }
    for status in [302, 404, 500] {
        assert!(!limits(text, status, &[]), "{status}");
    }
    // A Vary of a 304 replaces the stored one.
    assert!(limits(text, 304, &[("vary", "accept")]));
    assert!(!limits(text, 304, &[]));
    for text in [
        "{ default = '1h', ignore_cookies = true }",
        "{ max = '1h' }",
        "{ path = '/y', default = '1h' }",
    ] {
        assert!(!limits(text, 200, &[]), "{text}");
    }
}

#[test]
fn errors_and_temporary_redirects_get_no_default() {
    let text = "{ default = '1h', ignore_cookies = true }";
    for (status, lifetime) in [
        (200, HOUR),
        (206, HOUR),
        (301, HOUR),
        (308, HOUR),
        (404, (60, LifetimeSource::Negative)),
        (405, NONE),
    ] {
        let lines = [("etag", "\"a\""), ("content-range", "bytes 0-0/1")];
        let case = at_site(text, response(&lines).status(status));
        let lifetime_of = match case.storable() {
            Storable::Whole { facts, .. } | Storable::Partial { facts, .. } => facts.lifetime,
            Storable::No(reason) => panic!("{status}: {reason:?}"),
        };
        assert_eq!(lifetime_of.seconds, Seconds::new(lifetime.0.into()));
        assert_eq!(lifetime_of.source, lifetime.1, "{status}");
    }
    let redirect = at_site(text, response(&[]).status(302));
    assert_eq!(redirect.not_stored(), NotStored::NoLifetime);
}

#[test]
fn a_limit_shortens_every_lifetime_and_lengthens_none() {
    let text = "{ max = '1m' }";
    for (line, lifetime) in [
        (
            ("cache-control", "max-age=3600"),
            (60, LifetimeSource::MaxAge),
        ),
        (
            ("cache-control", "max-age=59"),
            (59, LifetimeSource::MaxAge),
        ),
        (
            ("last-modified", "Fri, 15 Jan 2021 07:00:00 GMT"),
            (60, LifetimeSource::Heuristic),
        ),
    ] {
        let case = at_site(text, response(&[line]));
        assert_eq!(case.lifetime(), lifetime, "{line:?}");
    }
    let mut immutable = at_site(text, cache_control("max-age=3600"));
    immutable.options.rules = Rules::from_toml("[[rule]]\npath = '/x'\nimmutable = true").unwrap();
    assert_eq!(immutable.lifetime(), (60, LifetimeSource::Immutable));
    let both = at_site(
        "{ default = '1h', max = '1m', ignore_cookies = true }",
        response(&[]),
    );
    assert_eq!(both.lifetime(), (60, LifetimeSource::Rule));
}

#[test]
fn a_limit_holds_for_lifetimes_that_grow() {
    let mut case = at_site("{ max = '3m' }", response(&[("etag", "\"a\"")]));
    case.options.adaptive = true;
    let exchange = Exchange {
        target: &Target::parse_url("http://h/x").unwrap(),
        method: &case.method,
        request: &case.request,
        exempt: Exempt::default(),
        status: StatusCode::OK,
        response: &case.response,
        request_time: UnixTime(T),
        response_time: UnixTime(T),
    };
    let zero = Lifetime {
        seconds: Seconds::ZERO,
        source: LifetimeSource::None,
    };
    let mut seconds = zero;
    for expected in [60, 120, 180, 180] {
        seconds = confirmed_lifetime(&exchange, seconds, zero, &case.options);
        assert_eq!(seconds.seconds, Seconds::new(expected));
    }
}

#[test]
fn lifetimes_that_say_nothing_are_refused() {
    for (text, error) in [
        (
            "{ path = '/a' }",
            "lifetime for /a: default or max is needed",
        ),
        (
            "{ ignore_cookies = true }",
            "lifetime for /**: default or max is needed",
        ),
        (
            "{ path = 'a', max = '1h' }",
            "path pattern a does not begin with /",
        ),
    ] {
        assert_eq!(lifetimes(text).unwrap_err().to_string(), error);
    }
}
