//! Tests for preconditions, validations and freshening.

use super::*;

use http::StatusCode;
use http::header::{CACHE_CONTROL, CONNECTION, LOCATION};

use crate::date::Seconds;
use crate::freshness::{Lifetime, LifetimeSource};
use crate::stored_facts::FactFlags;

const NOW: UnixTime = UnixTime(1_800_000_000);
const CHANGED: UnixTime = UnixTime(784_111_777);
const CHANGED_TEXT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn fields(lines: &[(HeaderName, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        fields.append(name.clone(), value);
    }
    fields
}

fn facts(status: u16, etag: bool, last_modified: Option<UnixTime>) -> StoredFacts {
    StoredFacts {
        status: StatusCode::from_u16(status).unwrap(),
        lifetime: Lifetime {
            seconds: Seconds::DAY,
            source: LifetimeSource::MaxAge,
        },
        initial_age: Seconds::ZERO,
        response_time: NOW,
        date: NOW,
        last_modified,
        stale_while_revalidate: Seconds::ZERO,
        stale_if_error: Seconds::ZERO,
        flags: FactFlags::default().with(FactFlags::ETAG, etag),
        asked_with: None,
    }
}

/// Returns true if a request with these If-None-Match lines gets a 304 for a response with this
/// ETag.
fn none_match(lines: &[&str], etag: &str) -> bool {
    let lines: Vec<_> = lines.iter().map(|line| (IF_NONE_MATCH, *line)).collect();
    let stored = fields(&[(ETAG, etag)]);
    let outcome = evaluate_conditions(&fields(&lines), &facts(200, true, None), &stored, NOW);
    outcome == ConditionOutcome::NotModified
}

fn modified_since(value: &str, facts: &StoredFacts) -> ConditionOutcome {
    let request = fields(&[(IF_MODIFIED_SINCE, value)]);
    evaluate_conditions(&request, facts, &HeaderMap::new(), NOW)
}

#[test]
fn if_none_match_compares_weakly_over_the_whole_list() {
    assert!(none_match(&["\"a\""], "\"a\""));
    assert!(none_match(&["W/\"a\""], "\"a\""));
    assert!(none_match(&["\"x\" , \"a\""], "W/\"a\""));
    assert!(none_match(&["\"x\"", "\"y\", \"a\""], "\"a\""));
    assert!(none_match(&["*"], "\"a\""));
    assert!(none_match(&["\"x,\\\", \"a\""], "\"a\""));
    assert!(none_match(&["\"\u{e4}\""], "\"\u{e4}\""));
    assert!(none_match(&["a"], "a"));
}

#[test]
fn if_none_match_is_not_fooled_by_near_matches() {
    assert!(!none_match(&["\"b\""], "\"a\""));
    assert!(!none_match(&["a"], "\"a\""));
    assert!(!none_match(&["\"a\""], "a"));
    assert!(!none_match(&["w/\"a\""], "W/\"a\""));
    assert!(!none_match(&["\"x, \\\"a\\\"\""], "\"a\""));
    assert!(!none_match(&[""], "\"a\""));
    assert!(!none_match(&["\"*\""], "\"a\""));
}

#[test]
fn if_none_match_takes_precedence_over_if_modified_since() {
    let request = fields(&[(IF_NONE_MATCH, "\"b\""), (IF_MODIFIED_SINCE, CHANGED_TEXT)]);
    let stored = fields(&[(ETAG, "\"a\"")]);
    let facts = facts(200, true, Some(CHANGED));
    let outcome = evaluate_conditions(&request, &facts, &stored, NOW);
    assert_eq!(outcome, ConditionOutcome::Send);
}

#[test]
fn if_modified_since_compares_with_last_modified_else_date() {
    use ConditionOutcome::{NotModified, Send};
    let dated = facts(200, false, Some(CHANGED));
    assert_eq!(modified_since(CHANGED_TEXT, &dated), NotModified);
    assert_eq!(
        modified_since("Sunday, 06-Nov-94 08:49:37 GMT", &dated),
        NotModified
    );
    assert_eq!(
        modified_since("Sun, 06 Nov 1994 08:49:36 GMT", &dated),
        Send
    );
    assert_eq!(modified_since("nonsense", &dated), Send);
    let undated = facts(200, false, None);
    assert_eq!(modified_since(CHANGED_TEXT, &undated), Send);
    let today = http_date(NOW);
    assert_eq!(
        modified_since(today.to_str().unwrap(), &undated),
        NotModified
    );
}

#[test]
fn conditions_count_only_where_the_answer_is_a_success() {
    let request = fields(&[(IF_NONE_MATCH, "*")]);
    let stored = fields(&[(ETAG, "\"a\"")]);
    let outcome = |status| evaluate_conditions(&request, &facts(status, true, None), &stored, NOW);
    assert_eq!(outcome(404), ConditionOutcome::Send);
    assert_eq!(outcome(301), ConditionOutcome::Send);
    assert_eq!(outcome(203), ConditionOutcome::NotModified);
}

#[test]
fn a_validation_carries_our_validators_in_place_of_the_clients() {
    let mut request = fields(&[
        (IF_NONE_MATCH, "\"theirs\""),
        (RANGE, "bytes=0-1"),
        (IF_RANGE, "\"theirs\""),
        (LOCATION, "kept"),
    ]);
    let stored = fields(&[(ETAG, "W/\"ours\"")]);
    set_validators(&mut request, &facts(200, true, Some(CHANGED)), &stored);
    let expected = fields(&[
        (LOCATION, "kept"),
        (IF_NONE_MATCH, "W/\"ours\""),
        (IF_MODIFIED_SINCE, CHANGED_TEXT),
    ]);
    assert_eq!(request, expected);
}

#[test]
fn a_validation_falls_back_on_date_and_then_on_nothing() {
    let today = http_date(NOW);
    let mut request = HeaderMap::new();
    let plain = facts(200, false, None);
    set_validators(
        &mut request,
        &plain,
        &fields(&[(DATE, today.to_str().unwrap())]),
    );
    assert_eq!(request.get(IF_MODIFIED_SINCE), Some(&today));
    set_validators(&mut request, &plain, &HeaderMap::new());
    assert!(request.is_empty());
}

#[test]
fn unquoted_entity_tags_go_back_as_they_came() {
    let mut request = HeaderMap::new();
    set_validators(
        &mut request,
        &facts(200, true, None),
        &fields(&[(ETAG, "abc")]),
    );
    assert_eq!(request[IF_NONE_MATCH], "abc");
}

/// Returns true if these preconditions hold for a stored response with this status.
fn origin_hold(status: u16, request: &[(HeaderName, &str)]) -> bool {
    let stored = fields(&[(ETAG, "\"a\"")]);
    let facts = facts(status, true, Some(CHANGED));
    origin_conditions_hold(&fields(request), &facts, &stored, NOW)
}

#[test]
fn if_match_holds_for_the_strong_tag_of_the_stored_response_only() {
    for (value, holds) in [
        ("\"a\"", true),
        ("\"b\", \"a\"", true),
        ("*", true),
        ("W/\"a\"", false),
        ("\"b\"", false),
        ("", false),
    ] {
        assert_eq!(origin_hold(200, &[(IF_MATCH, value)]), holds, "{value}");
    }
    let lines = [(IF_MATCH, "\"b\""), (IF_MATCH, "\"a\"")];
    assert!(origin_hold(200, &lines));
    assert!(!origin_hold(404, &[(IF_MATCH, "*")]));
    let untagged = |value| {
        let request = fields(&[(IF_MATCH, value)]);
        origin_conditions_hold(&request, &facts(200, false, None), &HeaderMap::new(), NOW)
    };
    assert!(!untagged("\"a\""));
    assert!(untagged("*"));
}

#[test]
fn if_unmodified_since_holds_from_the_stored_date_on_and_not_beside_if_match() {
    let later = "Sun, 06 Nov 1994 08:49:38 GMT";
    let earlier = "Sun, 06 Nov 1994 08:49:36 GMT";
    for (value, holds) in [
        (CHANGED_TEXT, true),
        (later, true),
        (earlier, false),
        ("nonsense", true),
    ] {
        let request = [(IF_UNMODIFIED_SINCE, value)];
        assert_eq!(origin_hold(200, &request), holds, "{value}");
    }
    let both = |tag| [(IF_MATCH, tag), (IF_UNMODIFIED_SINCE, earlier)];
    assert!(origin_hold(200, &both("\"a\"")));
    assert!(!origin_hold(200, &both("\"b\"")));
    let request = fields(&[(IF_UNMODIFIED_SINCE, later)]);
    let undated = facts(200, true, None);
    assert!(!origin_conditions_hold(
        &request,
        &undated,
        &HeaderMap::new(),
        NOW
    ));
}

#[test]
fn a_304_confirms_only_what_its_validators_name() {
    let tag = |tag| fields(&[(ETAG, tag)]);
    let date = |date| fields(&[(LAST_MODIFIED, date)]);
    assert!(not_modified_confirms(&tag("\"a\""), &tag("\"a\"")));
    assert!(!not_modified_confirms(&tag("\"a\""), &tag("\"b\"")));
    assert!(not_modified_confirms(&tag("W/\"a\""), &tag("W/\"a\"")));
    assert!(not_modified_confirms(&tag("W/\"a\""), &tag("\"a\"")));
    assert!(!not_modified_confirms(&HeaderMap::new(), &tag("\"a\"")));
    assert!(not_modified_confirms(
        &date(CHANGED_TEXT),
        &date(CHANGED_TEXT)
    ));
    assert!(!not_modified_confirms(
        &date(CHANGED_TEXT),
        &date("Sun, 06 Nov 1994 08:49:38 GMT")
    ));
    assert!(not_modified_confirms(&tag("\"a\""), &HeaderMap::new()));
    assert!(not_modified_confirms(
        &date(CHANGED_TEXT),
        &HeaderMap::new()
    ));
}

#[test]
fn freshening_replaces_fields_but_never_those_of_the_bytes() {
    let private = HeaderName::from_static("x-private");
    let mut stored = fields(&[
        (CONTENT_LENGTH, "10"),
        (CONTENT_ENCODING, "gzip"),
        (CACHE_CONTROL, "max-age=1"),
        (LOCATION, "kept"),
        (AGE, "100"),
        (DATE, CHANGED_TEXT),
    ]);
    let not_modified = fields(&[
        (CONTENT_LENGTH, "0"),
        (CONTENT_ENCODING, "br"),
        (CONTENT_RANGE, "bytes 0-0/1"),
        (TRANSFER_ENCODING, "chunked"),
        (CONNECTION, "x-private"),
        (private, "1"),
        (CACHE_CONTROL, "max-age=60"),
        (CACHE_CONTROL, "public"),
    ]);
    freshen(&mut stored, &not_modified, NOW);
    let today = http_date(NOW);
    let expected = fields(&[
        (CONTENT_LENGTH, "10"),
        (CONTENT_ENCODING, "gzip"),
        (CACHE_CONTROL, "max-age=60"),
        (CACHE_CONTROL, "public"),
        (LOCATION, "kept"),
        (DATE, today.to_str().unwrap()),
    ]);
    assert_eq!(stored, expected);
}

#[test]
fn freshening_leaves_the_tag_and_the_digests_of_the_stored_bytes() {
    let before = fields(&[
        (ETAG, "W/\"a\""),
        (HeaderName::from_static("repr-digest"), "sha-256=:AA==:"),
        (DATE, CHANGED_TEXT),
    ]);
    let mut stored = before.clone();
    let not_modified = fields(&[
        (ETAG, "\"a\""),
        (HeaderName::from_static("repr-digest"), "sha-256=:AB==:"),
        (HeaderName::from_static("content-digest"), "sha-256=:AC==:"),
        (HeaderName::from_static("content-md5"), "AC=="),
        (HeaderName::from_static("digest"), "sha-256=AB=="),
        (DATE, CHANGED_TEXT),
    ]);
    freshen(&mut stored, &not_modified, NOW);
    assert_eq!(stored, before);
}

#[test]
fn freshening_takes_age_and_date_of_the_304() {
    let mut stored = fields(&[(AGE, "100"), (DATE, CHANGED_TEXT)]);
    let update = fields(&[(AGE, "5"), (DATE, "Sun, 06 Nov 1994 08:49:38 GMT")]);
    freshen(&mut stored, &update, NOW);
    assert_eq!(stored, update);
}

#[test]
fn freshening_withholds_what_the_304_names() {
    let mut stored = fields(&[(LOCATION, "secret"), (CONTENT_TYPE, "kept")]);
    let update = fields(&[
        (CACHE_CONTROL, "private=\"location\""),
        (LOCATION, "secret"),
    ]);
    freshen(&mut stored, &update, NOW);
    assert!(!stored.contains_key(LOCATION) && stored.contains_key(CONTENT_TYPE));
}

#[test]
fn a_304_of_ours_leaves_content_fields_out() {
    let stored = fields(&[
        (CONTENT_TYPE, "text/html"),
        (CONTENT_LENGTH, "5"),
        (ETAG, "\"a\""),
        (LAST_MODIFIED, CHANGED_TEXT),
        (CACHE_CONTROL, "max-age=1"),
        (HeaderName::from_static("content-digest"), "sha-256=:AA==:"),
        (HeaderName::from_static("content-md5"), "AA=="),
    ]);
    let expected = fields(&[(ETAG, "\"a\""), (CACHE_CONTROL, "max-age=1")]);
    assert_eq!(not_modified_fields(&stored), expected);
    let untagged = fields(&[(LAST_MODIFIED, CHANGED_TEXT)]);
    assert_eq!(not_modified_fields(&untagged), untagged);
}

#[test]
fn a_response_without_date_gets_that_of_its_arrival() {
    let mut response = HeaderMap::new();
    ensure_date(&mut response, CHANGED);
    assert_eq!(response[DATE], CHANGED_TEXT);
    ensure_date(&mut response, NOW);
    assert_eq!(response[DATE], CHANGED_TEXT);
}
