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
    let request = RequestFacts::new(&Method::GET, &fields(&lines));
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
    assert_eq!(ContentRange::new(range, 10).to_value(), "bytes 5-9/10");
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

/// The outcome of a GET with these fields, if a response with those fields is stored.
fn condition(stored: &[(&str, &str)], request: &[(&str, &str)]) -> ConditionOutcome {
    let case = cache_control("max-age=60");
    let case = stored.iter().fold(case, |mut case, (name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        case.response.append(name, value.parse().unwrap());
        case
    });
    evaluate_conditions(&fields(request), &case.facts(), &case.response, UnixTime(T))
}

#[test]
fn s13_1_2_if_none_match_compares_weakly_and_knows_any() {
    use ConditionOutcome::{NotModified, Send};
    for (stored, asked, outcome) in [
        ("\"a\"", "\"a\"", NotModified),
        ("\"a\"", "W/\"a\"", NotModified),
        ("W/\"a\"", "\"a\"", NotModified),
        ("\"a\"", "\"b\", \"a\"", NotModified),
        ("\"a\"", "\"b\"", Send),
        ("\"a\"", "*", NotModified),
        ("\"a,b\"", "\"c\", \"a,b\"", NotModified),
    ] {
        let seen = condition(&[("etag", stored)], &[("if-none-match", asked)]);
        assert_eq!(seen, outcome, "{stored} {asked}");
    }
    assert_eq!(condition(&[], &[("if-none-match", "*")]), NotModified);
    assert_eq!(condition(&[], &[("if-none-match", "\"a\"")]), Send);
}

#[test]
fn s13_1_3_if_modified_since_is_for_those_without_if_none_match() {
    use ConditionOutcome::{NotModified, Send};
    let changed = date(-100);
    let stored = [("etag", "\"a\""), ("last-modified", &changed[..])];
    for (since, outcome) in [(-100, NotModified), (-50, NotModified), (-101, Send)] {
        let since = date(since);
        assert_eq!(
            condition(&stored, &[("if-modified-since", &since)]),
            outcome
        );
    }
    let since = date(0);
    let both = [
        ("if-none-match", "\"b\""),
        ("if-modified-since", &since[..]),
    ];
    assert_eq!(condition(&stored, &both), Send);
    assert_eq!(
        condition(&stored, &[("if-modified-since", "yesterday")]),
        Send
    );
}

#[test]
fn s13_1_3_without_last_modified_the_date_stands_in() {
    // RFC 9111 4.3.2. What was made at T may have changed until then, so 100 s before is too early.
    let made = date(0);
    let asked = |since: &str| condition(&[("date", &made)], &[("if-modified-since", since)]);
    assert_eq!(asked(&date(0)), ConditionOutcome::NotModified);
    assert_eq!(asked(&date(-100)), ConditionOutcome::Send);
}

#[test]
fn s13_2_1_conditions_count_only_where_the_answer_would_be_a_success() {
    let missing = cache_control("max-age=60").status(404).and("etag", "\"a\"");
    let request = fields(&[("if-none-match", "\"a\"")]);
    let outcome = evaluate_conditions(&request, &missing.facts(), &missing.response, UnixTime(T));
    assert_eq!(outcome, ConditionOutcome::Send);
}

#[test]
fn s13_1_5_if_range_wants_a_strong_validator() {
    let answer = |tag: &str, wanted: &str| {
        let case = cache_control("max-age=60").and("etag", tag);
        let request = fields(&[("range", "bytes=0-1"), ("if-range", wanted)]);
        answer_range(&request, &case.facts(), &case.response, 10, UnixTime(T))
    };
    let part = RangeAnswer::Part(ByteRange { first: 0, last: 1 });
    assert_eq!(answer("\"a\"", "\"a\""), part);
    for (tag, wanted) in [
        ("W/\"a\"", "W/\"a\""),
        ("\"a\"", "W/\"a\""),
        ("\"a\"", "\"b\""),
    ] {
        assert_eq!(answer(tag, wanted), RangeAnswer::Whole, "{tag} {wanted}");
    }
}

#[test]
fn s14_1_2_ranges_are_cut_to_the_content_or_not_satisfiable() {
    let case = cache_control("max-age=60");
    let answer = |range: &str, length| {
        let request = fields(&[("range", range)]);
        answer_range(&request, &case.facts(), &case.response, length, UnixTime(T))
    };
    let part = |first, last| RangeAnswer::Part(ByteRange { first, last });
    assert_eq!(answer("bytes=8-100", 10), part(8, 9));
    assert_eq!(answer("bytes=-100", 10), part(0, 9));
    assert_eq!(answer("BYTES=0-0", 10), part(0, 0));
    for range in ["bytes=10-", "bytes=10-20", "bytes=-0"] {
        assert_eq!(answer(range, 10), RangeAnswer::NotSatisfiable, "{range}");
    }
    // A Range that is no range of bytes is ignored (14.2).
    for range in [
        "bytes=5-2",
        "items=0-1",
        "bytes=a-b",
        "bytes",
        "bytes=0-1;2",
    ] {
        assert_eq!(answer(range, 10), RangeAnswer::Whole, "{range}");
    }
}

#[test]
fn s15_4_5_a_304_leaves_out_what_describes_the_content() {
    let stored = fields(&[
        ("etag", "\"a\""),
        ("last-modified", "x"),
        ("content-type", "text/plain"),
        ("content-length", "5"),
        ("content-encoding", "gzip"),
        ("cache-control", "max-age=60"),
        ("vary", "accept"),
        ("expires", "x"),
        ("content-location", "/y"),
    ]);
    let told = not_modified_fields(&stored);
    for name in [
        "etag",
        "cache-control",
        "vary",
        "expires",
        "content-location",
    ] {
        assert!(told.contains_key(name), "{name}");
    }
    for name in [
        "content-type",
        "content-length",
        "content-encoding",
        "last-modified",
    ] {
        assert!(!told.contains_key(name), "{name}");
    }
}

#[test]
fn s15_5_17_a_416_tells_the_length_and_is_not_stored() {
    assert_eq!(ContentRange::unsatisfied(7).to_value(), "bytes */7");
    let case = cache_control("max-age=60").status(416);
    assert_eq!(case.not_stored(), NotStored::Status);
}
