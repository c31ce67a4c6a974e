//! Clocks that jump, and what is made of them.

use super::*;

/// A clock whose hands the test moves.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) boot_ms: AtomicU64,
    pub(super) wall_ms: AtomicU64,
}

const DAY_MS: u64 = 86_400_000;
const NOON_MS: u64 = RELEASED_SECONDS * 1000 + 100 * DAY_MS;
const MONTH_SECONDS: u64 = 30 * 86_400;

fn script(wall_ms: u64) -> Arc<Script> {
    Arc::new(Script {
        boot_ms: AtomicU64::new(5_000),
        wall_ms: AtomicU64::new(wall_ms),
    })
}

fn clock(script: &Arc<Script>) -> Clock {
    Clock::with_source(Source::Scripted(Arc::clone(script)), None)
}

fn clock_at(script: &Arc<Script>, path: &Path) -> Clock {
    Clock::with_source(Source::Scripted(Arc::clone(script)), Some(path.to_owned()))
}

impl Script {
    fn pass(&self, ms: u64) {
        self.boot_ms.fetch_add(ms, Relaxed);
        self.wall_ms.fetch_add(ms, Relaxed);
    }
}

/// The host of this number says so, from a network of its own.
fn says(clock: &Clock, host: u16, seconds: u64) {
    let [high, low] = host.to_be_bytes();
    let name = Host::Name(format!("{host}.test").into());
    clock.hint(&name, [198, high, low, 1].into(), seconds);
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
    // And it is mended.
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
    let script = script(NOON_MS);
    let clock = clock(&script);
    let told = NOON_MS / 1000 + MONTH_SECONDS;
    let name = |n: u8| Host::Name(format!("{n}.test").into());
    for n in 0..100 {
        clock.hint(&name(n), [198, 51, 100, n].into(), told);
        clock.hint(&name(0), [203, 0, n, 1].into(), told);
    }
    assert_eq!(clock.evidence().notes.len(), 2);
    for n in 0..100 {
        let site = [0x2001, 0xdb8, 1, n.into(), 0, 0, 0, 1];
        clock.hint(&name(0), IpAddr::from(site), told);
        clock.hint(&name(n), [198, 51, 100, n].into(), told);
    }
    assert_eq!(clock.evidence().notes.len(), 2);
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    // A third of another network and name is one more.
    clock.hint(&name(200), [192, 0, 2, 1].into(), told);
    assert_eq!(clock.now().seconds(), told);
}

#[test]
fn hosts_that_contradict_each_other_are_not_believed() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    let now = NOON_MS / 1000;
    for host in 0..3 {
        says(&clock, host, now + MONTH_SECONDS * (u64::from(host) + 1));
    }
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
    // Three agree now, of six: no majority.
    for host in 3..6 {
        says(&clock, host, now + 12 * MONTH_SECONDS);
    }
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
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
fn a_clock_that_was_sent_far_ahead_heals_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clock");
    let system = script(NOON_MS);
    let clock = clock_at(&system, &path);
    let far = u64::from(u32::MAX) * 1000;
    system.wall_ms.store(far, Relaxed);
    clock.tick();
    system.wall_ms.store(NOON_MS, Relaxed);
    three_hosts_say(&clock, NOON_MS / 1000);
    // Not back while the process lives, but it knows.
    assert_eq!(clock.now(), UnixMillis(far));
    assert!(clock.suspect());

    clock.persist().unwrap();
    let after = clock_at(&script(NOON_MS + 60_000), &path);
    assert_eq!(after.now(), UnixMillis(NOON_MS + 60_000));
    assert!(!after.suspect());
}

#[test]
fn dates_out_of_all_reason_are_not_noted() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    for date in [0, 784_111_777, u64::MAX, BELIEVABLE_SECONDS] {
        three_hosts_say(&clock, date);
    }
    assert!(clock.evidence().notes.is_empty());
    assert_eq!(clock.now(), UnixMillis(NOON_MS));
}

#[test]
fn what_hosts_said_long_ago_does_not_count() {
    let script = script(NOON_MS);
    let clock = clock(&script);
    let month_on = |script: &Script| script.wall_ms.load(Relaxed) / 1000 + MONTH_SECONDS;
    says(&clock, 0, month_on(&script));
    says(&clock, 1, month_on(&script));
    script.pass(NOTE_LIFE_MS + 1);
    says(&clock, 2, month_on(&script));
    assert_eq!(clock.now(), UnixMillis(script.wall_ms.load(Relaxed)));
    assert_eq!(clock.evidence().notes.len(), 1);
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
