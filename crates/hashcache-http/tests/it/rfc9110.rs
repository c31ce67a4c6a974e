//! RFC 9110, HTTP Semantics: preconditions and ranges around a stored response.

use hashcache_http::*;
use http::Method;

use crate::support::*;

#[test]
fn s13_1_if_match_and_if_unmodified_since_are_the_origins() {
    let case = cache_control("max-age=60");
    for line in [("if-match", "\"a\""), ("if-unmodified-since", "x")] {
        let miss = Reuse::Miss {
            forward: Forward::Request,
        };
        assert_eq!(case.then(0, &[line]), miss);
    }
}

#[test]
fn s13_1_conditions_and_ranges_do_not_hinder_reuse() {
    let case = cache_control("max-age=60");
    let lines = [("if-none-match", "\"a\""), ("range", "bytes=0-1")];
    assert_eq!(case.then(0, &lines), fresh(0, 60));
    let request = RequestFacts::of(&Method::GET, &fields(&lines));
    assert!(request.has_condition && request.has_range && !request.has_origin_condition);
}

#[test]
fn s14_2_a_range_of_a_stored_response_is_cut_out() {
    let case = cache_control("max-age=60").and("etag", "\"a\"");
    let answer = |lines: &[(&str, &str)]| {
        answer_range(
            &fields(lines),
            &case.facts(),
            &case.response,
            10,
            UnixTime(T),
        )
    };
    let range = ByteRange { first: 5, last: 9 };
    assert_eq!(answer(&[("range", "bytes=-5")]), RangeAnswer::Part(range));
    assert_eq!(ContentRange::of(range, 10).to_value(), "bytes 5-9/10");
    assert_eq!(ContentRange::unsatisfied(10).to_value(), "bytes */10");
    let changed = [("range", "bytes=-5"), ("if-range", "\"b\"")];
    assert_eq!(answer(&changed), RangeAnswer::Whole);
}

#[test]
fn s15_1_these_statuses_may_be_guessed() {
    let guessed: Vec<u16> = (100..600)
        .filter(|&code| is_heuristically_cacheable(http::StatusCode::from_u16(code).unwrap()))
        .collect();
    assert_eq!(
        guessed,
        [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501]
    );
}
