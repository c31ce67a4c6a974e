//! RFC 9213, targeted cache control: what an origin tells the caches that it has put before itself.

use hashcache_http::*;
use http::HeaderName;

use crate::support::*;

fn targeted(lines: &[(&str, &str)]) -> Case {
    let mut case = response(lines);
    case.options.targets = vec![CDN_CACHE_CONTROL];
    case
}

#[test]
fn s2_1_a_targeted_field_takes_the_place_of_cache_control_and_expires() {
    let longer = targeted(&[
        ("cdn-cache-control", "max-age=600"),
        ("cache-control", "no-store"),
        ("expires", "0"),
    ]);
    assert_eq!(longer.lifetime(), (600, LifetimeSource::MaxAge));
    let shorter = targeted(&[
        ("cdn-cache-control", "max-age=1"),
        ("cache-control", "s-maxage=600"),
    ]);
    assert_eq!(shorter.lifetime(), (1, LifetimeSource::MaxAge));
    // Without a lifetime of its own it leaves none, whatever Expires says.
    let silent = targeted(&[("cdn-cache-control", "public"), ("expires", &date(60))]);
    assert_eq!(silent.not_stored(), NotStored::NoUse);
}

#[test]
fn s2_1_its_restrictions_hold_alone() {
    for (directives, reason) in [
        ("no-store", NotStored::NoStore),
        ("private", NotStored::Private),
        ("max-age=600, no-store", NotStored::NoStore),
    ] {
        let lines = [
            ("cdn-cache-control", directives),
            ("cache-control", "max-age=60"),
        ];
        assert_eq!(targeted(&lines).not_stored(), reason, "{directives}");
    }
    let validated = targeted(&[
        ("cdn-cache-control", "no-cache, max-age=600"),
        ("cache-control", "max-age=60"),
        ("etag", "\"a\""),
    ]);
    assert_eq!(
        validated.then(0, &[]),
        validate(Forward::Stale, OnError::Fail)
    );
    let shared = targeted(&[
        ("cdn-cache-control", "max-age=600"),
        ("cache-control", "private"),
    ]);
    assert_eq!(shared.lifetime().0, 600);
}

#[test]
fn s2_1_what_is_no_dictionary_or_empty_counts_as_absent() {
    for value in [
        "",
        "max-age=600,",
        "MAX-AGE=600",
        "max-age =600",
        "max-age=600, &&&",
        "max-age: 600",
    ] {
        let lines = [
            ("cdn-cache-control", value),
            ("cache-control", "max-age=60"),
        ];
        assert_eq!(
            targeted(&lines).lifetime(),
            (60, LifetimeSource::MaxAge),
            "{value:?}"
        );
    }
}

#[test]
fn s2_1_a_value_of_another_type_is_read_carefully() {
    for value in [
        "max-age=\"600\"",
        "max-age=600.0",
        "max-age",
        "max-age=-1",
        "max-age=(600)",
    ] {
        let lines = [("cdn-cache-control", value), ("etag", "\"a\"")];
        assert_eq!(targeted(&lines).lifetime().0, 0, "{value:?}");
    }
    let parameters = targeted(&[("cdn-cache-control", "max-age=600;x=1, ext;y")]);
    assert_eq!(parameters.lifetime().0, 600);
    let withdrawn = targeted(&[("cdn-cache-control", "max-age=600, no-store=?0")]);
    assert_eq!(withdrawn.lifetime().0, 600);
    let last = targeted(&[
        ("cdn-cache-control", "max-age=1"),
        ("cdn-cache-control", "max-age=2"),
    ]);
    assert_eq!(last.lifetime().0, 2);
}

#[test]
fn s2_2_the_first_usable_target_counts() {
    let mut case = targeted(&[
        ("example-cache-control", "max-age=1, &&&"),
        ("cdn-cache-control", "max-age=2"),
    ]);
    let own = HeaderName::from_static("example-cache-control");
    case.options.targets.insert(0, own);
    assert_eq!(case.lifetime().0, 2);
    let both = case.and("example-cache-control", "x");
    assert_eq!(both.lifetime().0, 2);
}

#[test]
fn s3_a_cache_that_is_not_the_origins_own_ignores_it() {
    let case = response(&[
        ("cdn-cache-control", "max-age=600"),
        ("cache-control", "max-age=60"),
    ]);
    assert_eq!(case.lifetime().0, 60);
}
