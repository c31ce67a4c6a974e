//! Where the RFCs leave a choice: ours.

use hashcache_http::*;
use http::Method;

use crate::support::*;

#[test]
fn a_cookie_is_stored_only_with_leave() {
    let cookie = response(&[("set-cookie", "a=1"), ("etag", "\"a\"")]);
    assert_eq!(cookie.not_stored(), NotStored::SetCookie);
    let expires = cookie.clone().and("expires", &date(60));
    assert_eq!(expires.not_stored(), NotStored::SetCookie);
    let lasting = cookie.clone().and("cache-control", "max-age=60");
    assert_eq!(lasting.not_stored(), NotStored::SetCookie);
    for directives in ["public", "s-maxage=60"] {
        cookie.clone().and("cache-control", directives).facts();
    }
    let as_others = |mut case: Case| {
        case.options.set_cookie = SetCookie::Rfc;
        case
    };
    for case in [expires, lasting] {
        assert_eq!(as_others(case).lifetime().0, 60);
    }
    // Stale from the start, but worth asking about.
    assert_eq!(as_others(cookie).lifetime().0, 0);
}

#[test]
fn a_rule_of_the_operator_is_leave_to_store_a_cookie() {
    let case = |rule: &str| {
        let text = format!("[[rule]]\npath = '/x'\n{rule}");
        let mut case = cache_control("max-age=60").and("set-cookie", "a=1");
        case.options.rules = Rules::from_toml(&text).unwrap();
        case
    };
    for rule in ["lifetime = '1h'", "immutable = true"] {
        case(rule).facts();
        let elsewhere = case(rule).url("http://h/y");
        assert_eq!(elsewhere.not_stored(), NotStored::SetCookie);
    }
    let guess = case("heuristic = { percent = 20 }");
    assert_eq!(guess.not_stored(), NotStored::SetCookie);
    let mut shipped = cache_control("max-age=60").and("set-cookie", "a=1");
    shipped.options.rules = Rules::shipped();
    let shipped = shipped.url("http://h/x-1.0.0.crate");
    assert_eq!(shipped.not_stored(), NotStored::SetCookie);
}

#[test]
fn a_shipped_rule_is_for_files_that_no_one_client_asked_for() {
    let case = |lines: &[(&str, &str)]| {
        let mut case = response(lines).url("http://h/account/x-1.0.0.crate");
        case.options.rules = Rules::shipped();
        case
    };
    let immutable = |case: &Case| match case.storable() {
        Storable::Whole { facts, .. } => facts.lifetime.source == LifetimeSource::Immutable,
        _ => false,
    };
    assert!(immutable(&case(&[])));
    assert!(immutable(&case(&[("content-type", "application/gzip")])));
    for name in [
        "cookie",
        "authorization",
        "x-auth-token",
        "private-token",
        "x-api-key",
        "proxy-authorization",
    ] {
        assert!(!immutable(&case(&[]).asked_with(&[(name, "x")])), "{name}");
    }
    // npm sends this with every request.
    assert!(immutable(
        &case(&[]).asked_with(&[("npm-auth-type", "web")])
    ));
    for kind in [
        "text/html",
        "Text/HTML ; charset=utf-8",
        "application/xhtml+xml",
        "application/json",
        "application/problem+json;v=1",
        "text/json",
    ] {
        assert!(!immutable(&case(&[("content-type", kind)])), "{kind}");
    }
    for status in [203, 204, 206, 301, 404, 410] {
        let partial = [("content-range", "bytes 0-1/4")];
        assert!(!immutable(&case(&partial).status(status)), "{status}");
    }
    let cookie = case(&[("set-cookie", "a=1"), ("cache-control", "public")]);
    assert!(!immutable(&cookie));
    assert!(!immutable(&case(&[]).url("http://h/account/x.crate")));
    // An operator knows what lies there.
    let own = "[[rule]]\npath = '/account/*.crate'\nimmutable = true";
    let mut own_rule = case(&[("content-type", "text/html")]).asked_with(&[("cookie", "a=1")]);
    own_rule.options.rules = Rules::from_toml(own).unwrap();
    assert!(immutable(&own_rule));
}

#[test]
fn no_lifetime_is_guessed_for_queries_cookies_and_credentials() {
    let modified = response(&[("last-modified", &date(-1000)), ("cache-control", "public")]);
    assert_eq!(modified.lifetime().0, 100);
    assert_eq!(modified.clone().url("http://h/x?").lifetime().0, 0);
    assert_eq!(modified.clone().and("set-cookie", "a=1").lifetime().0, 0);
    let credentials = modified.asked_with(&[("authorization", "Basic x")]);
    assert_eq!(credentials.lifetime().0, 0);
}

#[test]
fn what_is_not_there_is_remembered_for_a_minute() {
    for status in [404, 410] {
        let case = response(&[]).status(status);
        assert_eq!(case.lifetime(), (60, LifetimeSource::Negative));
        let dated = response(&[("last-modified", &date(-1000))]).status(status);
        assert_eq!(dated.lifetime(), (60, LifetimeSource::Negative));
        assert_eq!(case.url("http://h/x?y").not_stored(), NotStored::NoUse);
    }
    assert_eq!(response(&[]).status(405).not_stored(), NotStored::NoUse);
    for status in [405, 414, 501] {
        let dated = response(&[("last-modified", &date(-1000))]).status(status);
        assert_eq!(dated.lifetime(), (60, LifetimeSource::Negative), "{status}");
    }
}

fn row_of(case: &Case) -> VaryRow {
    match case.storable() {
        Storable::Whole { facts, row } => {
            assert!(facts.flags.has(FactFlags::VARIES));
            row.expect("a row")
        }
        other => panic!("not stored whole: {other:?}"),
    }
}

#[test]
fn an_error_without_a_lifetime_answers_only_requests_with_the_same_fields() {
    let plain = [("user-agent", "u"), ("accept", "*/*")];
    let row = row_of(&response(&[]).status(404).asked_with(&plain));
    assert!(row.is_of_all_fields() && row.matches(&fields(&plain)));
    // Fields of caches, connections and tracing are no reason for an error.
    let inert = [
        ("host", "h"),
        ("cache-control", "no-cache"),
        ("traceparent", "1"),
    ];
    assert!(row.matches(&fields(&[&plain[..], &inert].concat())));
    for other in [
        ("authorization", "Bearer x"),
        ("cookie", "a=1"),
        ("private-token", "x"),
        ("referer", "http://h/"),
        ("accept", "x/y"),
    ] {
        assert!(
            !row.matches(&fields(&[&plain[..], &[other]].concat())),
            "{other:?}"
        );
    }
    assert!(!row.matches(&fields(&plain[..1])));
    assert_eq!(VaryRow::from_bytes(row.as_bytes()), Some(row));
    // A Vary counts besides.
    let varied = response(&[("vary", "cookie-of-ours")]).status(404);
    let row = row_of(&varied.asked_with(&plain));
    assert!(row.is_of_all_fields() && row.names(&HeaderName::from_static("cookie-of-ours")));
    // A lifetime that the origin states is for all.
    let stated = cache_control("max-age=60").status(404).asked_with(&plain);
    assert!(matches!(
        stated.storable(),
        Storable::Whole { row: None, .. }
    ));
}

#[test]
fn an_error_is_not_remembered_if_the_request_may_be_its_reason() {
    for (name, value) in [
        ("cookie", "a=1"),
        ("authorization", "Basic x"),
        ("range", "bytes=9-"),
        ("if-match", "\"x\""),
        ("origin", "http://evil"),
        ("expect", "100-continue"),
        ("content-type", "x"),
        ("x-forwarded-for", "1.2.3.4"),
        ("forwarded", "for=1.2.3.4"),
        ("x-host", "nosuch"),
        ("x-custom", "1"),
    ] {
        for status in [404, 410] {
            let case = response(&[]).status(status).asked_with(&[(name, value)]);
            let stored = !matches!(case.storable(), Storable::No(_));
            assert!(!stored, "{name} {status}");
        }
    }
}

#[test]
fn a_response_to_a_request_with_an_override_is_stored_only_if_it_varies_by_it() {
    for (name, value) in [
        ("x-forwarded-host", "evil"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-prefix", "/evil"),
        ("x-host", "evil"),
        ("x-original-url", "/admin"),
        ("x-rewrite-url", "/admin"),
        ("x-http-method-override", "POST"),
        ("x_http_method_override", "POST"),
        ("forwarded", "host=evil"),
    ] {
        for status in [200, 301, 404, 500] {
            let case = cache_control("public, max-age=60").status(status);
            let case = case.asked_with(&[(name, value)]);
            assert_eq!(case.not_stored(), NotStored::Override, "{name} {status}");
        }
        if name == "forwarded" {
            continue;
        }
        let varied = cache_control("max-age=60").and("vary", name);
        let row = row_of(&varied.asked_with(&[(name, value)]));
        let request = fields(&[(name, value)]);
        let exempt = Exempt::default();
        assert!(answers_overrides(&request, exempt, Some(&row)));
        assert!(!answers_overrides(&request, exempt, None));
        let two = fields(&[(name, value), ("x-method-override", "PUT")]);
        assert!(!answers_overrides(&two, exempt, Some(&row)));
    }
}

#[test]
fn with_a_field_that_is_not_known_to_be_harmless_only_explicit_lifetimes_count() {
    let with_key = |case: Case| case.asked_with(&[("x-jfrog-art-api", "secret")]);
    let dated = response(&[("last-modified", &date(-1000)), ("etag", "\"a\"")]);
    assert_eq!(dated.clone().lifetime().1, LifetimeSource::Heuristic);
    assert_eq!(
        with_key(dated.clone()).not_stored(),
        NotStored::RequestField
    );
    // The operator may know the field, or Vary may keep its values apart.
    let mut known = with_key(dated.clone());
    known.options.harmless = vec![HeaderName::from_static("x-jfrog-art-api")];
    assert_eq!(known.lifetime().1, LifetimeSource::Heuristic);
    let varied = with_key(dated.clone().and("vary", "X-JFrog-Art-Api"));
    assert_eq!(varied.lifetime().1, LifetimeSource::Heuristic);
    for rule in ["lifetime = '1h'", "immutable = true"] {
        let mut ruled = with_key(response(&[]));
        let text = format!("[[rule]]\npath = '/x'\n{rule}");
        ruled.options.rules = Rules::from_toml(&text).unwrap();
        assert_eq!(ruled.not_stored(), NotStored::RequestField, "{rule}");
        let stated = Case {
            response: fields(&[("cache-control", "max-age=60")]),
            ..ruled
        };
        assert_eq!(stated.lifetime(), (60, LifetimeSource::MaxAge), "{rule}");
    }
    for directives in ["max-age=60", "s-maxage=60", "public"] {
        with_key(dated.clone().and("cache-control", directives)).facts();
    }
}

#[test]
fn no_lifetime_is_guessed_where_the_origin_says_no_in_any_spelling() {
    for (name, value) in [
        ("cache-control", "no-store; must-revalidate"),
        ("cache-control", "private; max-age=0"),
        ("cache-control", "\"no-store\""),
        ("pragma", "no-cache"),
        ("pragma", "No-Cache=1"),
        ("surrogate-control", "no-store"),
        ("cdn-cache-control", "private"),
        ("x-accel-expires", "0"),
    ] {
        let dated = response(&[("last-modified", &date(-1000)), (name, value)]);
        let lifetime = dated.lifetime();
        assert_eq!(lifetime, (0, LifetimeSource::None), "{name}: {value}");
        let gone = response(&[(name, value)]).status(404);
        assert_eq!(gone.not_stored(), NotStored::NoUse, "{name}: {value}");
        let shipped = with_shipped_rules(response(&[(name, value), ("etag", "\"a\"")]));
        assert_eq!(shipped.lifetime().0, 0, "{name}: {value}");
    }
}

#[test]
fn a_page_that_a_cookie_may_have_made_is_validated_at_each_use() {
    let dated = |kind: &str| {
        let case = response(&[("last-modified", &date(-1000)), ("content-type", kind)]);
        case.asked_with(&[("cookie", "u=alice")])
    };
    for kind in ["text/html", "application/json", "text/xml", "text/plain"] {
        let facts = dated(kind).facts();
        assert_eq!(facts.lifetime.seconds, Seconds::ZERO, "{kind}");
        // Not even if the origin cannot be reached.
        let later = decide(&facts, 10, &[]);
        assert_eq!(later, validate(Forward::Stale, OnError::Fail), "{kind}");
        // And not after a validation for somebody else.
        let confirmed = dated(kind).asked_with(&[]).facts().with_request_of(&facts);
        assert_eq!(confirmed.lifetime.seconds, Seconds::ZERO, "{kind}");
        assert!(confirmed.flags.has(FactFlags::NO_CACHE), "{kind}");
        let varied = dated(kind).and("vary", "cookie");
        assert_eq!(varied.lifetime().0, 100, "{kind}");
    }
    for kind in [
        "image/png",
        "text/css",
        "text/javascript",
        "font/woff2",
        "application/zip",
    ] {
        assert_eq!(dated(kind).lifetime().0, 100, "{kind}");
    }
}

/// Whether a 304 without fields leaves the lifetime as it was, of facts that were read from the
/// store.
fn keeps_lifetime(case: &Case) -> bool {
    let facts = case.facts();
    let stored = StoredFacts::from_bytes(&facts.to_bytes()).unwrap();
    let confirmed = case.confirmed(&stored, &[]).unwrap();
    assert_eq!(confirmed.asked_with, facts.asked_with);
    confirmed.lifetime == facts.lifetime
}

#[test]
fn a_304_gives_back_no_lifetime_that_the_first_request_has_forbidden() {
    let tagged = || response(&[("etag", "\"a\""), ("last-modified", &date(-1000))]);
    let crate_file = |case: Case| {
        let mut case = case.url("http://h/account/x-1.0.0.crate");
        case.options.rules = Rules::shipped();
        case
    };
    let cases = [
        // A private file with a name that a shipped rule calls immutable.
        (crate_file(tagged()), ("cookie", "u=alice")),
        (
            crate_file(tagged().and("cache-control", "public")),
            ("authorization", "Basic x"),
        ),
        // An Origin that the origin has copied into its response.
        (
            crate_file(tagged().and("access-control-allow-origin", "http://a")),
            ("origin", "http://a"),
        ),
        (
            tagged().and("access-control-allow-origin", "http://a"),
            ("origin", "http://a"),
        ),
        // Pages for an address or a session.
        (
            tagged().and("content-type", "text/html"),
            ("x-forwarded-for", "192.0.2.1"),
        ),
        (
            tagged().and("content-type", "text/html"),
            ("forwarded", "for=192.0.2.1"),
        ),
        (
            tagged().and("content-type", "text/html"),
            ("cookie", "u=alice"),
        ),
        // A lifetime that the origin states counts, and no rule lengthens it.
        (
            crate_file(tagged().and("cache-control", "max-age=60")),
            ("x-api-key", "secret"),
        ),
        (
            tagged().and("cache-control", "public"),
            ("x-api-key", "secret"),
        ),
    ];
    for (case, field) in cases {
        let plain = case.clone().facts().lifetime;
        let case = case.asked_with(&[field]);
        assert_ne!(case.facts().lifetime, plain, "{field:?} forbids nothing");
        assert!(keeps_lifetime(&case), "{field:?}");
        // Not by doubling either.
        let mut doubling = case.clone();
        doubling.options.adaptive = true;
        assert!(keeps_lifetime(&doubling), "{field:?}");
    }
}

#[test]
fn a_304_gives_an_error_no_lifetime_that_the_first_request_has_forbidden() {
    for field in [
        ("range", "bytes=9-"),
        ("if-match", "\"x\""),
        ("origin", "http://a"),
        ("cookie", "u=alice"),
        ("x-forwarded-for", "192.0.2.1"),
    ] {
        let gone = response(&[("etag", "\"a\"")]).status(404);
        assert_eq!(gone.facts().lifetime.seconds, Seconds::new(60));
        let gone = gone.asked_with(&[field]);
        assert_eq!(gone.facts().lifetime.seconds, Seconds::ZERO);
        assert!(keeps_lifetime(&gone), "{field:?}");
    }
}

#[test]
fn a_304_that_takes_back_the_leave_to_share_ends_what_credentials_were_sent_for() {
    let shared = cache_control("public, max-age=60").and("etag", "\"a\"");
    let newer = [("cache-control", "max-age=60")];
    let of_one = shared.clone().asked_with(&[("authorization", "Basic x")]);
    assert!(of_one.confirmed(&of_one.facts(), &newer).is_none());
    assert!(shared.confirmed(&shared.facts(), &newer).is_some());
}

#[test]
fn a_304_leaves_the_lifetime_of_a_response_that_harmless_fields_have_asked_for() {
    let harmless = [("user-agent", "u"), ("accept", "*/*"), ("req-num", "1")];
    let dated = response(&[("last-modified", &date(-1000))]).asked_with(&harmless);
    assert_eq!(dated.lifetime(), (100, LifetimeSource::Heuristic));
    assert!(keeps_lifetime(&dated));
    let mut file = dated.url("http://h/x-1.0.0.crate");
    file.options.rules = Rules::shipped();
    assert_eq!(file.lifetime().1, LifetimeSource::Immutable);
    assert!(keeps_lifetime(&file));
}

#[test]
fn a_response_of_a_build_that_kept_no_request_keeps_only_what_the_origin_states() {
    let of_old = |case: &Case| {
        let mut facts = case.facts();
        facts.asked_with = None;
        StoredFacts::from_bytes(&facts.to_bytes()).unwrap()
    };
    let dated = response(&[("last-modified", &date(-1000)), ("etag", "\"a\"")]);
    let mut file = dated.clone().url("http://h/x-1.0.0.crate");
    file.options.rules = Rules::shipped();
    for case in [&dated, &file] {
        // The response is fetched again.
        assert!(case.confirmed(&of_old(case), &[]).is_none());
    }
    for control in ["max-age=60", "public, max-age=60", "s-maxage=60"] {
        let stated = file.clone().and("cache-control", control);
        let lifetime = stated.confirmed(&of_old(&stated), &[]).unwrap().lifetime;
        assert_eq!(lifetime.seconds, Seconds::new(60), "{control}");
        assert_ne!(lifetime.source, LifetimeSource::Immutable);
    }
    // A response that may answer a request with credentials.
    let shared = cache_control("public, max-age=60").and("etag", "\"a\"");
    let newer = [("cache-control", "max-age=60")];
    assert!(shared.confirmed(&of_old(&shared), &newer).is_none());
}

#[test]
fn redirects_get_no_guess() {
    for status in [300, 301, 308] {
        let dated = response(&[("last-modified", &date(-1000))]).status(status);
        assert_eq!(dated.lifetime().0, 0, "{status}");
    }
}

#[test]
fn a_coding_that_was_negotiated_is_for_clients_that_accept_it() {
    let coded = |accepted: &[(&str, &str)]| {
        let case = cache_control("max-age=60").and("content-encoding", "gzip");
        case.asked_with(accepted)
    };
    let fits = |case: &Case, request: &[(&str, &str)]| {
        coding_fits(&case.facts(), &case.response, &fields(request))
    };
    let negotiated = coded(&[("accept-encoding", "gzip, br")]);
    assert!(fits(&negotiated, &[("accept-encoding", "x-gzip")]));
    for request in [
        &[][..],
        &[("accept-encoding", "identity")],
        &[("accept-encoding", "gzip;q=0, br")],
        &[("accept-encoding", "br")],
    ] {
        assert!(!fits(&negotiated, request), "{request:?}");
    }
    // A file that is gzip for everybody, as package tools fetch it.
    for request in [&[][..], &[("accept-encoding", "identity")]] {
        let forced = coded(request);
        assert!(fits(&forced, &[]) && fits(&forced, &[("accept-encoding", "br")]));
    }
    // Some origins look for the word anywhere in the field.
    for accepted in ["gzip;q=0", "xgzip"] {
        let careless = coded(&[("accept-encoding", accepted)]);
        assert!(!fits(&careless, &[]), "{accepted}");
        assert!(
            fits(&careless, &[("accept-encoding", "gzip")]),
            "{accepted}"
        );
    }
    let plain = cache_control("max-age=60").asked_with(&[("accept-encoding", "gzip")]);
    assert!(fits(&plain, &[]));
}

#[test]
fn a_response_that_varies_by_a_field_that_proxies_rewrite_is_not_stored() {
    for name in [
        "Via",
        "X-Forwarded-For",
        "forwarded",
        "CDN-Loop",
        "Range",
        "If-None-Match",
        "Connection",
    ] {
        let case = cache_control("max-age=60").and("vary", name);
        assert_eq!(case.not_stored(), NotStored::VaryRewritten, "{name}");
    }
    // The proxy writes it from the URL, which the key holds.
    let host = cache_control("max-age=60").and("vary", "host");
    let row = row_of(&host.asked_with(&[("host", "a")]));
    assert!(row.matches(&fields(&[("host", "b")])));
}

#[test]
fn errors_are_not_stored_without_an_explicit_lifetime() {
    for status in [500, 502, 503, 504] {
        let case = response(&[("last-modified", &date(-1000))]).status(status);
        assert_eq!(case.not_stored(), NotStored::NoLifetime, "{status}");
    }
}

#[test]
fn an_error_that_speaks_of_one_request_is_not_stored_for_all() {
    for status in [
        401, 403, 406, 408, 412, 413, 416, 417, 421, 425, 428, 429, 431,
    ] {
        let case = cache_control("max-age=60").status(status);
        assert_eq!(case.not_stored(), NotStored::Status, "{status}");
    }
    // The URL is the key, so an error that blames the URL answers every request for it.
    for status in [400, 414] {
        let case = cache_control("max-age=60").status(status);
        assert_eq!(case.lifetime().0, 60, "{status}");
    }
    let refused = cache_control("max-age=60").status(400);
    let long = "x".repeat(2 << 10);
    for (name, value) in [
        ("cookie", "a=1"),
        ("x-long", &long[..]),
        ("x-odd", "a\u{80}b"),
        ("content-type", "text/evil"),
    ] {
        let case = refused.clone().asked_with(&[(name, value)]);
        assert_eq!(case.not_stored(), NotStored::Status, "{name}");
        let broken = cache_control("max-age=60").status(502);
        let broken = broken.asked_with(&[(name, value)]);
        assert_eq!(broken.not_stored(), NotStored::Status, "{name}");
        if name != "x-odd" {
            let missing = cache_control("max-age=60").status(404);
            missing.asked_with(&[(name, value)]).facts();
        }
    }
    let many: Vec<_> = std::iter::repeat_n(("x-many", "x"), 65).collect();
    let case = refused.clone().asked_with(&many);
    assert_eq!(case.not_stored(), NotStored::Status);
    for name in [
        "x-http-method-override",
        "x-original-url",
        "x-method-override",
    ] {
        for status in [400, 404, 405, 410, 500] {
            let case = cache_control("max-age=60").status(status);
            let case = case.asked_with(&[(name, "x")]);
            assert_eq!(case.not_stored(), NotStored::Override, "{name} {status}");
        }
    }
    for wish in [
        "range",
        "if-range",
        "if-match",
        "if-unmodified-since",
        "expect",
    ] {
        let case = refused.clone().asked_with(&[(wish, "x")]);
        assert_eq!(case.not_stored(), NotStored::Status, "{wish}");
        let missing = cache_control("max-age=60")
            .status(404)
            .asked_with(&[(wish, "x")]);
        assert_eq!(missing.lifetime().0, 60, "{wish}");
    }
}

#[test]
fn codings_that_the_row_forgets_are_not_stored() {
    let case = cache_control("max-age=60")
        .and("vary", "accept-encoding")
        .and("content-encoding", "deflate")
        .asked_with(&[("accept-encoding", "deflate")]);
    assert_eq!(case.not_stored(), NotStored::VaryCoding);
}

#[test]
fn rows_beyond_a_bound_are_not_stored() {
    let case = cache_control("max-age=60").and("vary", "a, b, c, d, e, f, g, h, i");
    assert_eq!(case.not_stored(), NotStored::VaryTooWide);
}

fn with_shipped_rules(case: Case) -> Case {
    let options = StoreOptions::default();
    Case {
        url: "http://h/pool/a_1.0.deb",
        options,
        ..case
    }
}

#[test]
fn an_immutable_name_is_kept_a_year_without_any_word_of_the_origin() {
    let case = with_shipped_rules(response(&[]));
    assert_eq!(case.lifetime(), (365 * 86_400, LifetimeSource::Immutable));
    let year = 365 * 86_400;
    assert_eq!(
        case.then(1000, &[("cache-control", "max-age=0")]),
        fresh(1000, year - 1000)
    );
    let forced = case.then(1000, &[("cache-control", "no-cache")]);
    assert_eq!(forced, validate_as_requested());
}

#[test]
fn an_immutable_name_lengthens_what_the_origin_grants() {
    let case = with_shipped_rules(cache_control("max-age=60"));
    assert_eq!(case.lifetime(), (365 * 86_400, LifetimeSource::Immutable));
    let longer = with_shipped_rules(cache_control("max-age=999999999"));
    assert_eq!(longer.lifetime(), (999_999_999, LifetimeSource::Immutable));
}

#[test]
fn an_immutable_name_overrules_no_prohibition() {
    let case = |directives| with_shipped_rules(cache_control(directives).and("etag", "\"a\""));
    assert_eq!(case("no-store").not_stored(), NotStored::NoStore);
    assert_eq!(case("private").not_stored(), NotStored::Private);
    assert_eq!(case("max-age=0").lifetime(), (0, LifetimeSource::MaxAge));
    assert_eq!(
        case("max-age=9, must-revalidate").lifetime(),
        (9, LifetimeSource::MaxAge)
    );
    assert_eq!(case("s-maxage=9").lifetime(), (9, LifetimeSource::SMaxage));
    assert_eq!(
        case("no-cache").then(0, &[]),
        validate(Forward::Stale, OnError::Fail)
    );
}

#[test]
fn an_immutable_name_is_one_of_content_without_a_query() {
    let not_found = with_shipped_rules(response(&[]).status(404));
    assert_eq!(not_found.lifetime(), (60, LifetimeSource::Negative));
    let redirect = with_shipped_rules(cache_control("max-age=9").status(302));
    assert_eq!(redirect.lifetime(), (9, LifetimeSource::MaxAge));
    let query = Case {
        url: "http://h/pool/a_1.0.deb?x",
        ..with_shipped_rules(response(&[]))
    };
    assert_eq!(query.not_stored(), NotStored::NoUse);
    let part = response(&[("content-range", "bytes 0-1/9"), ("etag", "\"a\"")]).status(206);
    let Storable::Partial { facts, .. } = with_shipped_rules(part).storable() else {
        panic!("not stored as a part");
    };
    assert!(!facts.flags.has(FactFlags::IMMUTABLE));
}

#[test]
fn a_rules_lifetime_and_guess_yield_to_the_origins_word() {
    let text = "
        [[rule]]
        path = '/x'
        lifetime = '1h'
        [[rule]]
        path = '/y'
        heuristic = { percent = 50, max = '2d' }";
    let ruled = |case: Case| Case {
        options: StoreOptions {
            rules: Rules::from_toml(text).unwrap(),
            ..case.options.clone()
        },
        ..case
    };
    let plain = ruled(response(&[]));
    assert_eq!(plain.lifetime(), (3600, LifetimeSource::Rule));
    assert_eq!(
        plain.url("http://h/x?q").lifetime(),
        (3600, LifetimeSource::Rule)
    );
    let stated = ruled(cache_control("max-age=9"));
    assert_eq!(stated.lifetime(), (9, LifetimeSource::MaxAge));
    let guessed = ruled(response(&[("last-modified", &date(-1000))])).url("http://h/y");
    assert_eq!(guessed.lifetime(), (500, LifetimeSource::Heuristic));
    let error = ruled(response(&[]).status(503));
    assert_eq!(error.not_stored(), NotStored::NoLifetime);
}

#[test]
fn on_a_metered_link_a_reload_may_be_ignored_for_a_while() {
    let facts = cache_control("max-age=60").facts();
    let client_reload = ClientReload::IgnoreWithin(Seconds::new(10));
    let options = ReuseOptions {
        client_reload,
        ..ReuseOptions::default()
    };
    let at = |later, wanted: &str| {
        let request = RequestFacts::new(&Method::GET, &fields(&[("cache-control", wanted)]));
        reuse(&request, &facts, UnixTime(T + later), &options)
    };
    for wanted in ["no-cache", "max-age=0"] {
        assert_eq!(at(10, wanted), fresh(10, 50));
        assert_eq!(at(11, wanted), validate_as_requested());
    }
    assert_eq!(at(10, "max-age=5"), validate_as_requested());
    assert_eq!(at(10, "no-cache, min-fresh=55"), validate_as_requested());
}

#[test]
fn a_response_from_the_future_is_validated() {
    let facts = cache_control("max-age=60, stale-while-revalidate=60").facts();
    let request = RequestFacts::new(&Method::GET, &fields(&[("cache-control", "max-stale")]));
    let decision = reuse(&request, &facts, UnixTime(T - 1), &ReuseOptions::default());
    assert_eq!(decision, validate_stale());
}

#[test]
fn a_guess_that_proves_right_doubles_if_asked_for() {
    let guessed = response(&[("last-modified", &date(-1000)), ("etag", "\"a\"")]);
    let confirmed = |case: &Case, before: u32, adaptive| {
        let exchange = Exchange {
            target: &Target::parse_url(case.url).unwrap(),
            method: &Method::GET,
            request: &case.request,
            exempt: Exempt::default(),
            status: http::StatusCode::OK,
            response: &case.response,
            request_time: UnixTime(T),
            response_time: UnixTime(T),
        };
        let options = StoreOptions {
            adaptive,
            ..case.options.clone()
        };
        let before = Lifetime {
            seconds: Seconds::new(before.into()),
            source: LifetimeSource::Heuristic,
        };
        confirmed_lifetime(&exchange, before, case.facts().lifetime, &options)
            .seconds
            .get()
    };
    assert_eq!(confirmed(&guessed, 100, false), 100);
    for (before, after) in [(0, 100), (100, 200), (200, 400), (80_000, 86_400)] {
        assert_eq!(confirmed(&guessed, before, true), after);
    }
    let bare = response(&[("etag", "\"a\"")]);
    assert_eq!(confirmed(&bare, 0, true), ADAPTIVE_FIRST.get());
    // Neither what the origin states nor what no guess is made for.
    let stated = guessed.clone().and("cache-control", "max-age=5");
    assert_eq!(confirmed(&stated, 100, true), 5);
    assert_eq!(confirmed(&bare.url("http://h/x?q"), 100, true), 0);
}
