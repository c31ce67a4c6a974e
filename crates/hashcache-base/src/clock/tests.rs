//! Tests of the clock: system clocks that jump, and the resulting time.

use super::testing::{Script, clock, script};
use super::*;

const DAY_MS: u64 = 86_400_000;
const NOON_MS: u64 = RELEASED_SECONDS * 1000 + 100 * DAY_MS;
const MONTH_SECONDS: u64 = 30 * 86_400;

fn clock_at(script: &Arc<Script>, path: &Path) -> Clock {
    Clock::with_source(
        TimeSource::Scripted(Arc::clone(script)),
        Some(path.to_owned()),
    )
}

/// The name and address of the host with this number, in a separate network.
fn whereabouts(host: u16) -> (Host, IpAddr) {
    let [high, low] = host.to_be_bytes();
    let name = Host::Name(format!("{host}.test").into());
    (name, [198, high, low, 1].into())
}

/// A certificate for 90 days that became valid 30 days before `seconds`.
fn around(seconds: u64) -> Validity {
    Validity {
        not_before: seconds.saturating_sub(MONTH_SECONDS),
        not_after: seconds.saturating_add(2 * MONTH_SECONDS),
    }
}

/// The host proves the name with a certificate for this time, and sends a `Date`.
fn says(clock: &Clock, host: u16, seconds: u64) {
    let (name, peer) = whereabouts(host);
    clock.verified(&name, peer, around(seconds));
    clock.hint(&name, peer, seconds);
}

fn three_hosts_say(clock: &Clock, seconds: u64) {
    (0..3).for_each(|host| says(clock, host, seconds));
}

#[test]
fn time_passes_with_the_boot_clock() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    script.boot_ms.fetch_add(1_234, Relaxed);
    assert_eq!(clock.now(), UnixMillis(NOON_MS + 1_234));
    assert_eq!(clock.now().seconds(), NOON_MS / 1000 + 1);
    assert_eq!(clock.now().subsec_millis(), 234);
}

#[test]
fn a_step_forward_of_the_system_clock_is_followed() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    script.wall_ms.fetch_add(DAY_MS, Relaxed);
    clock.tick();
    assert_eq!(clock.now(), UnixMillis(NOON_MS + DAY_MS));
    assert!(!clock.suspect());
}

#[test]
fn drift_within_two_seconds_is_left_alone() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    script.wall_ms.fetch_add(STEP_MS, Relaxed);
    clock.tick();
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
}

#[test]
fn a_step_back_is_not_followed_but_makes_the_clock_suspect_until_it_is_caught_up() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    script.wall_ms.fetch_sub(DAY_MS, Relaxed);
    clock.tick();
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    assert!(clock.suspect());
    script.wall_ms.fetch_add(DAY_MS, Relaxed);
    clock.tick();
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    assert!(!clock.suspect());
}

#[test]
fn a_box_without_a_battery_starts_no_earlier_than_its_release() {
    let script = script(7_000);
    let clock = clock(&script);
    assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
    assert!(clock.suspect());
}

#[test]
fn the_last_known_time_outlives_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let before = script(NOON_MS);
    let clock = clock_at(&before, &path);
    before.pass(90_000);
    clock.persist().unwrap();

    let after = clock_at(&script(7_000), &path);
    assert_eq!(after.now(), UnixMillis(NOON_MS + 90_000));
    assert!(after.suspect());
}

#[test]
fn a_system_clock_ahead_of_the_last_known_time_is_not_suspect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    clock_at(&script(NOON_MS), &path).persist().unwrap();
    let after = clock_at(&script(NOON_MS + DAY_MS), &path);
    assert_eq!(after.now(), UnixMillis(NOON_MS + DAY_MS));
    assert!(!after.suspect());
}

#[test]
fn a_damaged_file_is_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let long = "9".repeat(1000);
    for text in [
        "",
        "\n",
        "noon",
        "-1",
        "18446744073709551615",
        &long,
        "\u{feff}1",
        "0",
    ] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(
            clock_at(&script(NOON_MS), &path).now(),
            UnixMillis(NOON_MS),
            "{text:?}"
        );
    }
    std::fs::write(&path, [0xff; 20]).unwrap();
    assert_eq!(clock_at(&script(NOON_MS), &path).now(), UnixMillis(NOON_MS));
    // The file is repaired.
    let clock = clock_at(&script(NOON_MS), &path);
    clock.persist().unwrap();
    assert_eq!(last_known(&path), Some(NOON_MS / 1000));
}

#[test]
fn what_a_kill_left_half_written_is_used_again_and_no_other_file_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (path, others) = (dir.path().join("c.clock"), dir.path().join("c.new"));
    let left = dir.path().join("c.clock.new");
    std::fs::write(&left, "17").unwrap();
    std::fs::write(&others, "a cache of that name").unwrap();
    clock_at(&script(NOON_MS), &path).persist().unwrap();
    assert!(path.exists() && !left.exists());
    assert_eq!(std::fs::read(&others).unwrap(), b"a cache of that name");
}

#[test]
fn two_hosts_are_not_believed_and_three_are() {
    let script = script(7_000);
    let clock = clock(&script);
    let told = NOON_MS / 1000;
    says(&clock, 0, told);
    says(&clock, 1, told);
    says(&clock, 1, told);
    assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
    assert!(clock.suspect());
    says(&clock, 2, told + 1);
    assert_eq!(clock.now().seconds(), told);
    assert!(!clock.suspect());
}

#[test]
fn many_names_of_one_network_and_many_addresses_of_one_name_are_one() {
    let script = script(7_000);
    let clock = clock(&script);
    let told = NOON_MS / 1000;
    let name = |n: u8| Host::Name(format!("{n}.test").into());
    let says = |name: &Host, peer: IpAddr| {
        clock.verified(name, peer, around(told));
        clock.hint(name, peer, told);
    };
    for n in 0..100 {
        says(&name(n), [198, 51, 100, n].into());
        says(&name(0), [203, 0, n, 1].into());
    }
    assert_eq!(clock.evidence().notes.len(), 2);
    for n in 0..100 {
        let site = [0x2001, 0xdb8, 1, n.into(), 0, 0, 0, 1];
        says(&name(0), IpAddr::from(site));
        says(&name(n), [198, 51, 100, n].into());
    }
    assert_eq!(clock.evidence().notes.len(), 2);
    assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
    // A third host with another network and name is a further witness.
    says(&name(200), [192, 0, 2, 1].into());
    assert_eq!(clock.now().seconds(), told);
}

#[test]
fn a_host_that_has_shown_no_certificate_is_not_believed() {
    for wall in [7_000, NOON_MS] {
        let script = script(wall);
        let clock = clock(&script);
        let before = clock.now();
        let far = NOON_MS / 1000 + 180 * MONTH_SECONDS;
        for host in 0..60 {
            let (name, peer) = whereabouts(host);
            clock.hint(&name, peer, far);
        }
        assert_eq!(clock.now(), before);
        assert!(clock.evidence().notes.is_empty());
    }
}

#[test]
fn a_plausible_system_clock_is_not_overruled_by_more_than_it_can_be_wrong() {
    let minute = 60_000;
    let script = script(NOON_MS);
    let clock = clock(&script);
    // Ten minutes in total, not ten more minutes with each step.
    for step in 1..60 {
        three_hosts_say(&clock, (NOON_MS + step * 9 * minute) / 1000);
        let ahead = clock.now().0 - script.wall_ms.load(Relaxed);
        assert!(ahead <= SYSTEM_WRONG_MS, "{ahead} ms after {step} steps");
    }
    assert!(clock.suspect());
    // The difference does not add up over restarts either.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    for _ in 0..5 {
        let clock = clock_at(&script, &path);
        three_hosts_say(&clock, (NOON_MS + 9 * minute) / 1000);
        three_hosts_say(&clock, (NOON_MS + 18 * minute) / 1000);
        clock.persist().unwrap();
    }
    let clock = clock_at(&script, &path);
    assert_eq!(clock.now().0, NOON_MS + 9 * minute);
    // Honest witnesses undo it.
    three_hosts_say(&clock, NOON_MS / 1000);
    assert_eq!(clock.now().0 / 1000, NOON_MS / 1000);
    assert!(!clock.suspect());
    clock.tick();
    assert_eq!(clock.now().0 / 1000, NOON_MS / 1000);
}

#[test]
fn a_witness_cannot_put_the_time_outside_its_certificate() {
    let script = script(7_000);
    let clock = clock(&script);
    let noon = NOON_MS / 1000;
    let decades = Validity {
        not_before: noon,
        not_after: noon + 300 * MONTH_SECONDS,
    };
    for (validity, date) in [
        (around(noon), noon - 2 * MONTH_SECONDS),
        (around(noon), noon + 3 * MONTH_SECONDS),
        (decades, noon + STEP_MAX_SECONDS + 1),
    ] {
        for host in 0..3 {
            let (name, peer) = whereabouts(host);
            clock.verified(&name, peer, validity);
            clock.hint(&name, peer, date);
        }
        assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
    }
}

#[test]
fn without_a_plausible_clock_a_certificate_is_judged_at_its_beginning_until_hosts_agree() {
    let script = script(7_000);
    let clock = clock(&script);
    let noon = NOON_MS / 1000;
    let (now, old) = (around(noon), around(RELEASED_SECONDS - 4 * MONTH_SECONDS));
    assert_eq!(clock.certificate_time(now), now.not_before);
    // An old one is not good for it.
    assert_eq!(clock.certificate_time(old), RELEASED_SECONDS);
    three_hosts_say(&clock, noon);
    assert_eq!(clock.certificate_time(now), noon);
    assert_eq!(
        clock.certificate_time(around(noon + 4 * MONTH_SECONDS)),
        noon
    );
}

#[test]
fn a_plausible_clock_judges_every_certificate_at_its_own_time() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    let noon = NOON_MS / 1000;
    for host in 0..9 {
        let (name, peer) = whereabouts(host);
        clock.out_of_time(&name, peer);
    }
    assert!(clock.suspect());
    for months in [0, 1, 4, 40] {
        let validity = around(noon + months * MONTH_SECONDS);
        assert_eq!(clock.certificate_time(validity), noon);
        let validity = around(noon - months * MONTH_SECONDS);
        assert_eq!(clock.certificate_time(validity), noon);
    }
}

#[test]
fn honest_hosts_bring_a_clock_back_that_others_sent_ahead() {
    let script = script(7_000);
    let clock = clock(&script);
    let noon = NOON_MS / 1000;
    // Three hosts claim false dates, as far as their certificates allow.
    let year = Validity {
        not_before: noon - MONTH_SECONDS,
        not_after: noon + 12 * MONTH_SECONDS,
    };
    for host in 100..103 {
        let (name, peer) = whereabouts(host);
        clock.verified(&name, peer, year);
        clock.hint(&name, peer, year.not_after);
    }
    assert_eq!(clock.now().seconds(), year.not_after);
    // Honest hosts have shorter certificates, which have expired by that time.
    let honest = around(noon);
    assert!(clock.certificate_time(honest) > honest.not_after);
    for host in 0..4 {
        let (name, peer) = whereabouts(host);
        clock.out_of_time(&name, peer);
    }
    assert!(clock.suspect());
    assert_eq!(clock.certificate_time(honest), honest.not_after);
    (0..4).for_each(|host| says(&clock, host, noon));
    assert_eq!(clock.now().seconds(), noon);
    assert!(!clock.suspect());
    assert_eq!(clock.certificate_time(honest), noon);
}

#[test]
fn hosts_that_contradict_each_other_are_not_believed() {
    let script = script(7_000);
    let clock = clock(&script);
    let now = NOON_MS / 1000;
    for host in 0..3 {
        says(&clock, host, now + MONTH_SECONDS * (u64::from(host) + 1));
    }
    assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
    // Three of six hosts agree now: no majority.
    for host in 3..6 {
        says(&clock, host, now + 12 * MONTH_SECONDS);
    }
    assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000));
}

#[test]
fn hosts_within_a_minute_move_nothing() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    three_hosts_say(&clock, NOON_MS / 1000 + 59);
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    assert!(!clock.suspect());
}

#[test]
fn hosts_clear_a_suspicion_that_the_system_clock_cast() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    script.wall_ms.fetch_sub(DAY_MS, Relaxed);
    clock.tick();
    assert!(clock.suspect());
    three_hosts_say(&clock, NOON_MS / 1000);
    assert!(!clock.suspect());
    clock.tick();
    assert!(!clock.suspect());
}

#[test]
fn a_system_clock_that_was_sent_ahead_and_back_is_followed_back_when_hosts_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let system = script(NOON_MS);
    let clock = clock_at(&system, &path);
    let far = NOON_MS + 3650 * DAY_MS;
    system.wall_ms.store(far, Relaxed);
    clock.tick();
    system.wall_ms.store(NOON_MS, Relaxed);
    clock.tick();
    assert_eq!(clock.now(), UnixMillis(far));
    assert!(clock.suspect());
    three_hosts_say(&clock, NOON_MS / 1000);
    assert_eq!(clock.now().seconds(), NOON_MS / 1000);
    assert!(!clock.suspect());

    clock.persist().unwrap();
    let after = clock_at(&script(NOON_MS + 60_000), &path);
    assert_eq!(after.now(), UnixMillis(NOON_MS + 60_000));
    assert!(!after.suspect());
}

#[test]
fn a_system_clock_out_of_all_reason_is_not_followed() {
    let far = u64::from(u32::MAX) * 1000;
    let system = script(NOON_MS);
    let running = clock(&system);
    system.wall_ms.store(far, Relaxed);
    running.tick();
    assert_eq!(running.now(), UnixMillis(NOON_MS));
    assert!(running.suspect());
    let started = clock(&system);
    assert_eq!(started.now(), UnixMillis(RELEASED_SECONDS * 1000));
    assert!(started.suspect());
}

#[test]
fn dates_out_of_all_reason_do_not_count() {
    let script = script(7_000);
    let clock = clock(&script);
    for date in [0, 784_111_777, u64::MAX, BELIEVABLE_SECONDS] {
        three_hosts_say(&clock, date);
        assert_eq!(clock.now(), UnixMillis(RELEASED_SECONDS * 1000), "{date}");
    }
}

#[test]
fn what_hosts_said_long_ago_does_not_count() {
    let script = script(7_000);
    let clock = clock(&script);
    let told = NOON_MS / 1000;
    says(&clock, 0, told);
    says(&clock, 1, told);
    script.pass(NOTE_LIFE_MS + 1);
    says(&clock, 2, told + NOTE_LIFE_MS / 1000 + 1);
    assert!(clock.now().seconds() < told);
    assert_eq!(clock.evidence().notes.len(), 1);
}

#[test]
fn the_release_is_the_day_that_the_comment_names() {
    let day = hashcache_http::parse_http_date(
        b"Sun, 01 Nov 2026 00:00:00 GMT",
        hashcache_http::UnixTime(RELEASED_SECONDS),
    );
    assert_eq!(day.unwrap().0, RELEASED_SECONDS);
}

#[test]
fn a_thousand_hosts_take_the_room_of_a_few() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    for host in 0..1000 {
        script.pass(10);
        says(&clock, host, NOON_MS / 1000 + u64::from(host) * 100);
    }
    assert_eq!(clock.evidence().notes.len(), NOTES);
    assert_eq!(clock.now(), UnixMillis(NOON_MS + 10_000));
}

#[test]
fn the_systems_own_clock_never_goes_back() {
    let clock = Clock::start(None);
    let mut last = clock.now();
    assert!(last.seconds() >= RELEASED_SECONDS);
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

#[tokio::test]
async fn the_time_is_kept_as_soon_as_the_keeper_starts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let keeper = tokio::spawn(Arc::new(clock_at(&script(NOON_MS), &path)).keep());
    let kept = async {
        while last_known(&path) != Some(NOON_MS / 1000) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), kept)
        .await
        .unwrap();
    keeper.abort();
}
