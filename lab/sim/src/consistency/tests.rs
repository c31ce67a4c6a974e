//! Tests of the schemes on a small hierarchy.

use hashcache_http::Seconds;

use super::*;

fn small() -> Settings {
    Settings {
        objects: 300,
        sites: 60,
        fan_out: 2,
        levels: 2,
        requests_per_day: 1500.0,
        days: 30,
        warm_up_days: 10,
        ..Settings::default()
    }
}

fn run(scheme: Scheme) -> Counts {
    simulate(&small(), scheme)
}

fn days(days: u64) -> Seconds {
    Seconds::new(days * 86_400)
}

#[test]
fn objects_live_as_the_paper_found() {
    let settings = Settings {
        objects: 100_000,
        ..Settings::default()
    };
    let objects = Objects::new(&settings, fastrand::Rng::with_seed(1));
    let lives = objects.mean_days();
    let mean = lives.iter().sum::<f64>() / lives.len() as f64;
    assert!((42.0..46.0).contains(&mean), "{mean}");
    let short = lives.iter().filter(|days| **days < 10.0).count();
    assert!((26_500..28_000).contains(&short), "{short}");
}

#[test]
fn equal_settings_give_equal_results() {
    let scheme = Scheme::Validated(days(1));
    assert_eq!(run(scheme), run(scheme));
    let other = Settings { seed: 2, ..small() };
    assert_ne!(run(scheme), simulate(&other, scheme));
}

#[test]
fn what_caches_are_told_of_is_never_stale() {
    for scheme in [Scheme::Invalidation, Scheme::GroupPurge] {
        let counts = run(scheme);
        assert_eq!(counts.stale, 0, "{scheme}");
        assert!(counts.messages > 0 && counts.requests > 50_000);
    }
    assert_eq!(run(Scheme::Fixed(Seconds::ZERO)).stale, 0);
}

#[test]
fn a_longer_lifetime_is_cheaper_and_staler() {
    for scheme in [Scheme::Fixed, Scheme::Validated, Scheme::WhileRevalidating] {
        let runs = [1, 4, 16].map(|lifetime| run(scheme(days(lifetime))));
        assert!(runs.windows(2).all(|two| two[0].stale < two[1].stale));
        assert!(
            runs.windows(2)
                .all(|two| two[0].link_bytes > two[1].link_bytes)
        );
    }
}

#[test]
fn a_validation_is_cheaper_than_another_transfer_and_as_current() {
    let lifetime = days(2);
    let (fixed, validated) = (
        run(Scheme::Fixed(lifetime)),
        run(Scheme::Validated(lifetime)),
    );
    assert!(validated.link_bytes < fixed.link_bytes);
    assert_eq!(fixed.confirmed, 0);
    assert_eq!(validated.stale, fixed.stale);
    assert_eq!(validated.waits, fixed.waits);
}

#[test]
fn with_revalidation_in_the_background_clients_wait_less_and_get_older_content() {
    let lifetime = days(2);
    let before = run(Scheme::Validated(lifetime));
    let after = run(Scheme::WhileRevalidating(lifetime));
    assert!(after.waits < before.waits);
    assert!(after.stale > before.stale);
}

#[test]
fn a_longer_bound_of_a_doubled_lifetime_is_cheaper_and_staler() {
    let runs = [1, 8, 64].map(|most| run(Scheme::Doubling(days(most))));
    assert!(runs.windows(2).all(|two| two[0].stale < two[1].stale));
    assert!(
        runs.windows(2)
            .all(|two| two[0].confirmed > two[1].confirmed)
    );
}

#[test]
fn a_lifetime_that_costs_as_much_is_found_between_two_that_were_run() {
    let counts = |link_bytes, stale| Counts {
        requests: 100,
        link_bytes,
        stale,
        ..Counts::default()
    };
    let runs = [
        (1.0, counts(900, 10)),
        (5.0, counts(500, 20)),
        (10.0, counts(300, 30)),
    ];
    let found = crossing(&runs, &counts(400, 0)).unwrap();
    assert!((found.days - 7.5).abs() < 1e-9 && (found.stale_share - 0.25).abs() < 1e-9);
    assert_eq!(crossing(&runs, &counts(1000, 0)), None);
    assert_eq!(crossing(&runs, &counts(200, 0)), None);
}
