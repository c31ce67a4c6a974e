//! RFC 9111, HTTP Caching. A test's name begins with the section it shows.

use hashcache_http::*;
use http::Method;

use crate::support::*;

#[test]
fn s3_a_response_with_a_lifetime_is_stored() {
    assert_eq!(
        cache_control("max-age=60").lifetime(),
        (60, LifetimeSource::MaxAge)
    );
}

#[test]
fn s3_only_get_is_stored() {
    for method in [Method::HEAD, Method::POST, Method::PUT, Method::OPTIONS] {
        let case = Case {
            method,
            ..cache_control("max-age=60")
        };
        assert_eq!(case.not_stored(), NotStored::Method);
    }
}

#[test]
fn s3_a_request_with_content_is_not_stored() {
    for lines in [
        [("content-length", "5")],
        [("transfer-encoding", "chunked")],
    ] {
        let case = cache_control("max-age=60").asked_with(&lines);
        assert_eq!(case.not_stored(), NotStored::RequestContent);
    }
    cache_control("max-age=60")
        .asked_with(&[("content-length", "0")])
        .facts();
}

#[test]
fn s3_any_final_status_with_a_lifetime_is_stored() {
    for status in [
        200, 203, 204, 299, 301, 302, 303, 307, 308, 400, 404, 410, 499, 500, 502, 503, 504, 599,
    ] {
        let case = cache_control("max-age=60").status(status);
        assert_eq!(case.lifetime(), (60, LifetimeSource::MaxAge), "{status}");
    }
}

#[test]
fn s3_informational_and_304_are_not_stored() {
    for status in [100, 102, 103, 199, 304] {
        let case = cache_control("max-age=60").status(status);
        assert_eq!(case.not_stored(), NotStored::Status, "{status}");
    }
}

#[test]
fn s3_without_any_word_only_some_statuses_are_stored() {
    for status in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501] {
        response(&[("etag", "\"a\"")]).status(status).facts();
    }
    for status in [201, 202, 302, 303, 307, 400, 500, 502, 503, 599] {
        let case = response(&[("etag", "\"a\"")]).status(status);
        assert_eq!(case.not_stored(), NotStored::NoLifetime, "{status}");
    }
}

#[test]
fn s3_1_a_connection_that_names_cache_control_is_not_stored() {
    let case = cache_control("max-age=60").and("connection", "cache-control");
    assert_eq!(case.not_stored(), NotStored::Connection);
    cache_control("max-age=60")
        .and("connection", "x-hop")
        .facts();
    for name in [
        "vary",
        "Set-Cookie",
        "expires",
        "age",
        "CDN-Cache-Control",
        "content-type",
    ] {
        let case = cache_control("max-age=60").and("connection", name);
        assert_eq!(case.not_stored(), NotStored::Connection, "{name}");
    }
}

#[test]
fn s3_3_a_206_is_stored_as_a_part_only() {
    let part = cache_control("max-age=60")
        .status(206)
        .and("content-range", "bytes 2-4/10");
    let Storable::Partial { facts, range, .. } = part.storable() else {
        panic!("not stored as a part");
    };
    assert_eq!(facts.status, 206);
    assert_eq!(
        range,
        ContentRange::new(ByteRange { first: 2, last: 4 }, 10)
    );
}

#[test]
fn s3_3_a_206_without_one_valid_range_is_not_stored() {
    let plain = cache_control("max-age=60").status(206);
    assert_eq!(plain.not_stored(), NotStored::ContentRange);
    for range in ["bytes */10", "bytes 4-2/10", "items 0-1/2"] {
        let case = plain.clone().and("content-range", range);
        assert_eq!(case.not_stored(), NotStored::ContentRange, "{range}");
    }
    let parts = plain
        .and("content-type", "Multipart/ByteRanges; boundary=x")
        .and("content-range", "bytes 0-1/2");
    assert_eq!(parts.not_stored(), NotStored::ContentRange);
}

#[test]
fn s3_5_a_response_to_credentials_needs_leave_to_be_shared() {
    let case = |directives| cache_control(directives).asked_with(&[("authorization", "Basic x")]);
    assert_eq!(case("max-age=60").not_stored(), NotStored::Authorization);
    assert_eq!(
        case("max-age=60, proxy-revalidate").not_stored(),
        NotStored::Authorization
    );
    for directives in [
        "max-age=60, public",
        "s-maxage=60",
        "max-age=60, must-revalidate",
    ] {
        case(directives).facts();
    }
}

#[test]
fn s4_a_fresh_response_is_served_with_its_age() {
    let case = cache_control("max-age=60");
    assert_eq!(case.then(0, &[]), fresh(0, 60));
    assert_eq!(case.then(59, &[]), fresh(59, 1));
    assert_eq!(case.then(60, &[]), validate_stale());
}

#[test]
fn s4_unsafe_methods_and_requests_with_content_go_upstream() {
    let facts = cache_control("max-age=60").facts();
    let decide = |method, lines: &[(&str, &str)]| {
        let request = RequestFacts::new(&method, &fields(lines));
        reuse(&request, &facts, UnixTime(T), &ReuseOptions::default())
    };
    let miss = |forward| Reuse::Miss { forward };
    assert_eq!(decide(Method::POST, &[]), miss(Forward::Method));
    assert_eq!(decide(Method::OPTIONS, &[]), miss(Forward::Method));
    assert_eq!(
        decide(Method::GET, &[("content-length", "1")]),
        miss(Forward::Bypass)
    );
    assert_eq!(decide(Method::HEAD, &[]), fresh(0, 60));
}

#[test]
fn s4_1_the_row_of_the_varying_fields_is_kept() {
    let case = cache_control("max-age=60")
        .and("vary", "Foo")
        .asked_with(&[("foo", "1"), ("bar", "2")]);
    let Storable::Whole { facts, row } = case.storable() else {
        panic!("not stored");
    };
    let row = row.unwrap();
    assert!(facts.flags.has(FactFlags::VARIES));
    assert!(row.matches(&fields(&[("foo", "1"), ("bar", "3")])));
    assert!(!row.matches(&fields(&[("foo", "2"), ("bar", "2")])));
}

#[test]
fn s4_1_vary_star_is_never_stored() {
    for vary in ["*", "*, *", ", *", "foo, *", "foo bar"] {
        let case = cache_control("max-age=60").and("vary", vary);
        assert_eq!(case.not_stored(), NotStored::VaryAnything, "{vary}");
    }
}

#[test]
fn s4_2_1_s_maxage_precedes_max_age_precedes_expires() {
    let expires = response(&[("expires", &date(10)), ("date", &date(0))]);
    assert_eq!(expires.lifetime(), (10, LifetimeSource::Expires));
    let max_age = expires.and("cache-control", "max-age=20");
    assert_eq!(max_age.lifetime(), (20, LifetimeSource::MaxAge));
    let s_maxage = max_age.and("cache-control", "s-maxage=5");
    assert_eq!(s_maxage.lifetime(), (5, LifetimeSource::SMaxage));
}

#[test]
fn s4_2_1_expires_counts_from_date() {
    let case = response(&[("expires", &date(100)), ("date", &date(-50))]);
    assert_eq!(case.lifetime(), (150, LifetimeSource::Expires));
    assert_eq!(case.then(0, &[]), fresh(50, 100));
    let undated = response(&[("expires", &date(100))]);
    assert_eq!(undated.then(0, &[]), fresh(0, 100));
}

#[test]
fn s4_2_1_a_lifetime_that_cannot_be_read_is_zero() {
    for directives in [
        "max-age=abc",
        "max-age=-1",
        "max-age=1.5",
        "max-age",
        "s-maxage=x",
    ] {
        let case = cache_control(directives)
            .and("expires", &date(100))
            .and("etag", "\"a\"");
        assert_eq!(case.lifetime().0, 0, "{directives}");
    }
    let before = cache_control("max-age=60").and("cache-control", "max-age=1");
    assert_eq!(before.lifetime().0, 60);
}

#[test]
fn s4_2_2_a_guess_is_a_tenth_of_the_age_and_at_most_a_day() {
    let guess = |age: i64| {
        let case = response(&[("last-modified", &date(-age)), ("date", &date(0))]);
        case.lifetime()
    };
    assert_eq!(guess(5), (0, LifetimeSource::Heuristic));
    assert_eq!(guess(1000), (100, LifetimeSource::Heuristic));
    assert_eq!(guess(100_000_000), (86_400, LifetimeSource::Heuristic));
    assert_eq!(guess(-10), (0, LifetimeSource::None));
}

#[test]
fn s4_2_2_no_guess_where_the_origin_says_anything_about_the_lifetime() {
    for line in [
        ("cache-control", "max-age=0"),
        ("expires", "0"),
        ("expires", "never"),
    ] {
        let case = response(&[("last-modified", &date(-1000)), line]);
        assert_eq!(case.lifetime().0, 0, "{line:?}");
    }
}

#[test]
fn s4_2_2_public_lets_any_status_be_guessed() {
    let case = |status| response(&[("last-modified", &date(-1000))]).status(status);
    assert_eq!(case(599).not_stored(), NotStored::NoLifetime);
    let public = case(599).and("cache-control", "public");
    assert_eq!(public.lifetime(), (100, LifetimeSource::Heuristic));
}

#[test]
fn s4_2_3_the_age_counts_date_age_delay_and_time_in_the_store() {
    let case = response(&[("cache-control", "max-age=100"), ("age", "30")]);
    assert_eq!(case.then(10, &[]), fresh(40, 60));
    let slow = Case {
        request_time: T - 5,
        ..case.clone()
    };
    assert_eq!(slow.then(10, &[]), fresh(45, 55));
    let old = case.and("date", &date(-50));
    assert_eq!(old.then(10, &[]), fresh(60, 40));
}

#[test]
fn s4_2_4_stale_is_never_served_against_the_origins_word() {
    for directives in [
        "max-age=60, must-revalidate",
        "max-age=60, proxy-revalidate",
        "s-maxage=60",
        "s-maxage=60, stale-while-revalidate=60, stale-if-error=60",
        "max-age=60, must-revalidate, stale-while-revalidate=60, stale-if-error=60",
    ] {
        let decision = cache_control(directives).then(61, &[("cache-control", "max-stale")]);
        assert_eq!(
            decision,
            validate(Forward::Stale, OnError::Fail),
            "{directives}"
        );
    }
}

#[test]
fn s4_2_4_a_disconnected_cache_may_serve_stale() {
    let facts = cache_control("max-age=60").facts();
    assert_eq!(decide(&facts, 1_000_000, &[]), validate_stale());
    let bounded = ReuseOptions {
        disconnected: Seconds::new(10),
        ..ReuseOptions::default()
    };
    let request = RequestFacts::new(&Method::GET, &fields(&[]));
    let at = |later| reuse(&request, &facts, UnixTime(T + later), &bounded);
    assert_eq!(at(70), validate_stale());
    assert_eq!(at(71), validate(Forward::Stale, OnError::Fail));
}

#[test]
fn s4_3_1_what_cannot_be_validated_nor_used_is_not_stored() {
    assert_eq!(response(&[]).not_stored(), NotStored::NoUse);
    assert_eq!(cache_control("max-age=0").not_stored(), NotStored::NoUse);
    assert_eq!(
        cache_control("no-cache, max-age=60").not_stored(),
        NotStored::NoUse
    );
    response(&[("etag", "\"a\"")]).facts();
    cache_control("no-cache")
        .and("last-modified", &date(-5))
        .facts();
}

#[test]
fn s4_3_4_a_304_that_says_no_store_ends_the_storing() {
    let mut case = cache_control("max-age=1").and("etag", "\"a\"");
    let not_modified = fields(&[("etag", "\"a\""), ("cache-control", "no-store")]);
    assert!(not_modified_confirms(&case.response, &not_modified));
    freshen(&mut case.response, &not_modified, UnixTime(T));
    assert_eq!(case.not_stored(), NotStored::NoStore);
}

#[test]
fn s5_2_1_1_a_request_may_want_a_younger_response() {
    let case = cache_control("max-age=60");
    let wanting = |later, wanted| case.then(later, &[("cache-control", wanted)]);
    assert_eq!(wanting(10, "max-age=10"), fresh(10, 50));
    assert_eq!(wanting(11, "max-age=10"), validate_as_requested());
    assert_eq!(wanting(0, "max-age=0"), validate_as_requested());
    assert_eq!(wanting(0, "max-age=x"), validate_as_requested());
}

#[test]
fn s5_2_1_2_a_request_may_take_a_stale_response() {
    let case = cache_control("max-age=60");
    let by_client = |age, ttl| stale(age, ttl, StaleAllowance::Client);
    assert_eq!(
        case.then(70, &[("cache-control", "max-stale")]),
        by_client(70, -10)
    );
    assert_eq!(
        case.then(70, &[("cache-control", "max-stale=10")]),
        by_client(70, -10)
    );
    assert_eq!(
        case.then(71, &[("cache-control", "max-stale=10")]),
        validate_stale()
    );
    let limited = [("cache-control", "max-stale, max-age=65")];
    assert_eq!(case.then(65, &limited), by_client(65, -5));
    assert_eq!(case.then(66, &limited), validate_stale());
}

#[test]
fn s5_2_1_3_a_request_may_want_a_response_that_stays_fresh() {
    let case = cache_control("max-age=60");
    assert_eq!(
        case.then(10, &[("cache-control", "min-fresh=50")]),
        fresh(10, 50)
    );
    assert_eq!(
        case.then(11, &[("cache-control", "min-fresh=50")]),
        validate_as_requested()
    );
    assert_eq!(
        case.then(0, &[("cache-control", "min-fresh=x")]),
        validate_as_requested()
    );
}

#[test]
fn s5_2_1_4_a_request_may_want_a_validation() {
    let case = cache_control("max-age=60");
    for line in [("cache-control", "no-cache"), ("pragma", "no-cache")] {
        assert_eq!(case.then(0, &[line]), validate_as_requested());
    }
    let both = [("pragma", "no-cache"), ("cache-control", "max-age=30")];
    assert_eq!(case.then(0, &both), fresh(0, 60));
}

#[test]
fn s5_2_1_5_a_request_may_forbid_storing_but_not_reuse() {
    let case = cache_control("max-age=60").asked_with(&[("cache-control", "no-store")]);
    assert_eq!(case.not_stored(), NotStored::RequestNoStore);
    let stored = cache_control("max-age=60");
    assert_eq!(
        stored.then(0, &[("cache-control", "no-store")]),
        fresh(0, 60)
    );
}

#[test]
fn s5_2_1_7_a_request_may_want_nothing_from_upstream() {
    let case = cache_control("max-age=60");
    let only = [("cache-control", "only-if-cached")];
    assert_eq!(case.then(0, &only), fresh(0, 60));
    assert_eq!(case.then(60, &only), Reuse::Unsatisfiable);
    let stale_too = [("cache-control", "only-if-cached, max-stale")];
    assert_eq!(
        case.then(60, &stale_too),
        stale(60, 0, StaleAllowance::Client)
    );
}

#[test]
fn s5_2_2_3_must_understand_needs_a_known_status() {
    let case = |status| cache_control("max-age=60, must-understand").status(status);
    case(200).facts();
    assert_eq!(case(599).not_stored(), NotStored::StatusNotUnderstood);
}

#[test]
fn s5_2_2_3_must_understand_overrules_no_store() {
    cache_control("max-age=60, must-understand, no-store").facts();
}

#[test]
fn s5_2_2_4_no_cache_is_validated_each_time() {
    let case = cache_control("no-cache, max-age=60").and("etag", "\"a\"");
    let expected = validate(Forward::Stale, OnError::Fail);
    assert_eq!(case.then(0, &[]), expected);
    assert_eq!(case.then(0, &[("cache-control", "max-stale")]), expected);
}

#[test]
fn s5_2_2_4_no_cache_with_field_names_is_for_these_fields_alone() {
    let case = cache_control("no-cache=\"a\", max-age=60")
        .and("a", "1")
        .and("b", "2");
    assert_eq!(case.then(0, &[]), fresh(0, 60));
    let directives = ResponseDirectives::parse(&case.response);
    let stored = fields_to_store(&case.response, &directives);
    assert!(!stored.contains_key("a") && stored.contains_key("b"));
}

#[test]
fn s5_2_2_5_no_store_is_not_stored() {
    for directives in ["no-store", "No-Store, max-age=60", "max-age=60, no-store=x"] {
        assert_eq!(
            cache_control(directives).not_stored(),
            NotStored::NoStore,
            "{directives}"
        );
    }
}

#[test]
fn s5_2_2_7_private_is_not_stored_by_a_shared_cache() {
    for directives in [
        "private, max-age=60",
        "private, public, s-maxage=60",
        "private=\"\"",
    ] {
        assert_eq!(
            cache_control(directives).not_stored(),
            NotStored::Private,
            "{directives}"
        );
    }
    cache_control("private=\"a\", max-age=60").facts();
}

#[test]
fn s5_3_an_expires_that_is_no_date_is_past() {
    let invalid = |value: &str| response(&[("expires", value), ("etag", "\"a\"")]).lifetime();
    for value in [
        "0",
        "-1",
        "",
        "Thu, 18 Aug 2050 02:01:18 AEST",
        "Thu 18 Aug 2050 02:01:18 GMT",
        "Thu, 18-Aug-2050 02:01:18 GMT",
        "Thu, 18 Aug 2050 02.01.18 GMT",
        "Thu, 18 Aug 2050 2:01:18 GMT",
    ] {
        assert_eq!(invalid(value), (0, LifetimeSource::Expires), "{value:?}");
    }
    for zone in ["UTC", "EST", "+0000", "AEST", "utc"] {
        let local = invalid(&format!("Thu, 18 Aug 2050 02:01:18 {zone}"));
        assert_eq!(local, (0, LifetimeSource::Expires), "{zone}");
    }
    let twice = response(&[("expires", "Thu"), ("expires", "18 Aug 2050 02:01:18 GMT")]);
    assert_eq!(
        twice.and("etag", "\"a\"").lifetime(),
        (0, LifetimeSource::Expires)
    );
}

#[test]
fn s5_3_expires_is_read_in_old_spellings_and_any_case() {
    for value in [
        "Thursday, 18-Aug-50 02:01:18 GMT",
        "THU, 18 Aug 2050 02:01:18 GMT",
        "Thu, 18 AUG 2050 02:01:18 gmt",
        "Thu Aug 18 02:01:18 2050",
    ] {
        assert!(response(&[("expires", value)]).lifetime().0 > 0, "{value}");
    }
}

#[test]
fn s5_4_pragma_means_nothing_in_a_response() {
    let case = response(&[("pragma", "no-cache"), ("cache-control", "max-age=60")]);
    assert_eq!(case.then(0, &[]), fresh(0, 60));
}
