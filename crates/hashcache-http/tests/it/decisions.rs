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
    for directives in ["public", "max-age=60", "s-maxage=60"] {
        cookie.clone().and("cache-control", directives).facts();
    }
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
        assert_eq!(dated.lifetime(), (100, LifetimeSource::Heuristic));
        assert_eq!(case.url("http://h/x?y").not_stored(), NotStored::NoUse);
    }
    assert_eq!(response(&[]).status(405).not_stored(), NotStored::NoUse);
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
    for status in [412, 416, 417] {
        let case = cache_control("max-age=60").status(status);
        assert_eq!(case.not_stored(), NotStored::Status, "{status}");
    }
    let refused = cache_control("max-age=60").status(400);
    assert_eq!(refused.lifetime().0, 60);
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
        url: "http://h/pool/a.deb",
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
        url: "http://h/pool/a.deb?x",
        ..with_shipped_rules(response(&[]))
    };
    assert_eq!(query.not_stored(), NotStored::NoUse);
    let part = with_shipped_rules(response(&[("content-range", "bytes 0-1/9")]).status(206));
    let Storable::Partial { facts, .. } = part.storable() else {
        panic!("not stored as a part");
    };
    assert!(facts.flags.has(FactFlags::IMMUTABLE));
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
        let request = RequestFacts::of(&Method::GET, &fields(&[("cache-control", wanted)]));
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
    let request = RequestFacts::of(&Method::GET, &fields(&[("cache-control", "max-stale")]));
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
