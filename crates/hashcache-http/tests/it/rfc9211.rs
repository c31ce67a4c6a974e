//! RFC 9211, Cache-Status: what a response says about how it was answered.

use hashcache_http::*;
use http::StatusCode;

use crate::support::*;

fn told(status: CacheStatus<'_>) -> String {
    let us = Pseudonym::new("hashcache").unwrap();
    status.to_value(&us).to_str().unwrap().to_owned()
}

#[test]
fn s2_1_a_hit_says_so_and_nothing_of_upstream() {
    let hit = CacheStatus {
        ttl: Some(60),
        ..CacheStatus::from_handling(Handling::Hit)
    };
    assert_eq!(told(hit), "hashcache; hit; ttl=60");
}

#[test]
fn s2_2_why_a_request_went_upstream_is_one_of_these_words() {
    for (forward, word) in [
        (Forward::Bypass, "bypass"),
        (Forward::Method, "method"),
        (Forward::UriMiss, "uri-miss"),
        (Forward::VaryMiss, "vary-miss"),
        (Forward::Miss, "miss"),
        (Forward::Request, "request"),
        (Forward::Stale, "stale"),
        (Forward::Partial, "partial"),
    ] {
        let status = CacheStatus::from_handling(Handling::Forwarded(forward));
        assert_eq!(told(status), format!("hashcache; fwd={word}"));
    }
}

#[test]
fn s2_3_to_2_6_parameters_stand_in_one_order() {
    let status = CacheStatus {
        upstream_status: Some(StatusCode::NOT_MODIFIED),
        ttl: Some(-5),
        stored: true,
        collapsed: true,
        ..CacheStatus::from_handling(Handling::Forwarded(Forward::Stale))
    };
    let expected = "hashcache; fwd=stale; fwd-status=304; ttl=-5; stored; collapsed";
    assert_eq!(told(status), expected);
}

#[test]
fn s2_4_a_lifetime_fits_an_integer_of_structured_fields() {
    let status = CacheStatus {
        ttl: Some(i64::MIN),
        ..CacheStatus::from_handling(Handling::Hit)
    };
    assert_eq!(told(status), "hashcache; hit; ttl=-999999999999999");
}

#[test]
fn s2_8_a_detail_that_is_no_token_is_quoted() {
    let detail = |detail| {
        told(CacheStatus {
            detail: Some(detail),
            ..CacheStatus::from_handling(Handling::Hit)
        })
    };
    assert_eq!(detail("no-store"), "hashcache; hit; detail=no-store");
    assert_eq!(detail("a \"b\""), "hashcache; hit; detail=\"a \\\"b\\\"\"");
}

#[test]
fn s2_a_cache_adds_its_member_behind_those_nearer_the_origin() {
    let mut response = fields(&[("cache-status", "origin; hit")]);
    let us = Pseudonym::new("hashcache").unwrap();
    CacheStatus::from_handling(Handling::Hit).append(&us, &mut response);
    let lines: Vec<_> = response.get_all("cache-status").iter().collect();
    assert_eq!(lines, ["origin; hit", "hashcache; hit"]);
}
