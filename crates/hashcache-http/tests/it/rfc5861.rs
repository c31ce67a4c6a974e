//! RFC 5861, stale-while-revalidate and stale-if-error.

use hashcache_http::*;

use crate::support::*;

#[test]
fn s3_within_the_window_stale_is_served_while_it_is_validated() {
    let case = cache_control("max-age=60, stale-while-revalidate=30");
    let allowed = |age, ttl| stale(age, ttl, StaleAllowance::WhileRevalidating);
    assert_eq!(case.then(59, &[]), fresh(59, 1));
    assert_eq!(case.then(60, &[]), allowed(60, 0));
    assert_eq!(case.then(89, &[]), allowed(89, -29));
    assert_eq!(case.then(90, &[]), validate_stale());
}

#[test]
fn s3_the_window_does_not_hold_against_a_client_who_wants_better() {
    let case = cache_control("max-age=60, stale-while-revalidate=30");
    for wanted in ["no-cache", "max-age=60", "min-fresh=1"] {
        let decision = case.then(61, &[("cache-control", wanted)]);
        assert_eq!(decision, validate_stale(), "{wanted}");
    }
}

#[test]
fn s3_no_window_without_a_readable_one() {
    for window in ["stale-while-revalidate", "stale-while-revalidate=x"] {
        let case = cache_control(&format!("max-age=60, {window}"));
        assert_eq!(case.then(60, &[]), validate_stale(), "{window}");
    }
}

#[test]
fn s4_within_the_window_stale_stands_in_for_errors() {
    let case = cache_control("max-age=60, stale-if-error=30");
    assert_eq!(
        case.then(90, &[]),
        validate(Forward::Stale, OnError::ServeIfError)
    );
    assert_eq!(case.then(91, &[]), validate_stale());
}

#[test]
fn s4_a_client_may_open_the_window_too() {
    let case = cache_control("max-age=60");
    let request = [("cache-control", "stale-if-error=30")];
    assert_eq!(
        case.then(90, &request),
        validate(Forward::Stale, OnError::ServeIfError)
    );
    assert_eq!(case.then(91, &request), validate_stale());
}

#[test]
fn the_operators_windows_hold_where_the_origin_names_none() {
    let options = ReuseOptions {
        stale_if_error: Seconds::new(30),
        stale_while_revalidate: Seconds::new(10),
        ..ReuseOptions::default()
    };
    let request = RequestFacts::new(&http::Method::GET, &fields(&[]));
    let decided = |directives: &str, age| {
        let facts = cache_control(directives).facts();
        reuse(&request, &facts, UnixTime(T + age), &options)
    };
    let allowed = |age, ttl| stale(age, ttl, StaleAllowance::WhileRevalidating);
    assert_eq!(decided("max-age=60", 69), allowed(69, -9));
    let on_error = validate(Forward::Stale, OnError::ServeIfError);
    assert_eq!(decided("max-age=60", 70), on_error);
    assert_eq!(decided("max-age=60", 90), on_error);
    assert_eq!(decided("max-age=60", 91), validate_stale());
    let own = "max-age=60, stale-while-revalidate=1, stale-if-error=2";
    assert_eq!(decided(own, 61), on_error);
    assert_eq!(decided(own, 63), validate_stale());
    for forbidden in ["must-revalidate", "proxy-revalidate", "s-maxage=60"] {
        let decision = decided(&format!("max-age=60, {forbidden}"), 61);
        assert_eq!(
            decision,
            validate(Forward::Stale, OnError::Fail),
            "{forbidden}"
        );
    }
}
