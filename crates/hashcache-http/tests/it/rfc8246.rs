//! RFC 8246, `immutable`.

use crate::support::*;

#[test]
fn s2_a_plain_reload_does_not_validate_what_is_immutable() {
    let case = cache_control("max-age=60, immutable");
    assert_eq!(
        case.then(10, &[("cache-control", "max-age=0")]),
        fresh(10, 50)
    );
}

#[test]
fn s2_a_forced_reload_does() {
    let case = cache_control("max-age=60, immutable");
    assert_eq!(
        case.then(10, &[("cache-control", "no-cache")]),
        validate_as_requested()
    );
}

#[test]
fn s2_what_is_stale_is_validated_all_the_same() {
    let case = cache_control("max-age=60, immutable");
    assert_eq!(case.then(60, &[]), validate_stale());
}
