//! Clients under limits, on clocks that the tests move.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;

use hashcache::Config;
use hashcache::device::MemoryDevice;
use hashcache_base::clock::zone::Zone;
use hashcache_base::failure::Failure;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::super::settings::{Quota, QuotaEnd, QuotaPeriod, Rate};
use super::super::throttle::Throttle;
use super::super::{ContentFrom, LimitPer};
use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// 2026-11-27, a Friday, 12:00 UTC.
const NOON: u64 = 1_795_780_800;
const DAY: u64 = 86_400;

fn cache() -> Cache {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

fn limiter(path: Option<&Path>) -> Arc<Limiter> {
    let clock = Arc::new(Clock::of_test(NOON));
    Limiter::load(path.map(Path::to_owned), clock, &cache())
}

fn limit(name: &str, per: LimitPer) -> LimitSettings {
    LimitSettings {
        name: name.into(),
        per,
        quota: None,
        bandwidth: None,
        requests: None,
    }
}

fn quota(bytes: u64, period: QuotaPeriod, end: QuotaEnd) -> Option<Quota> {
    Some(Quota { bytes, period, end })
}

fn daily(name: &str, per: LimitPer, bytes: u64) -> LimitSettings {
    LimitSettings {
        quota: quota(bytes, QuotaPeriod::Day, QuotaEnd::Refuse),
        ..limit(name, per)
    }
}

fn rate(per_second: u64, burst: u64) -> Option<Rate> {
    Some(Rate { per_second, burst })
}

fn plan(limits: Vec<LimitSettings>) -> Arc<LimitPlan> {
    Arc::new(LimitPlan {
        limits,
        zone: Zone::default(),
        contact: Some("Ms Abara".into()),
    })
}

fn client(last: u8) -> Sender<'static> {
    Sender {
        client: Network::containing(IpAddr::from([192, 0, 2, last])),
        user: None,
    }
}

/// All limits of the plan.
const ALL: u64 = u64::MAX;

/// Moves content from there for so long; returns the bytes.
async fn transfer(limits: RequestLimits, from: ContentFrom, time: Duration) -> u64 {
    let mut throttle = Throttle::new(&limits, from).unwrap();
    let (start, mut moved) = (Instant::now(), 0);
    while let Ok(room) = poll_fn(|context| throttle.poll_room(context)).await {
        if start.elapsed() >= time {
            break;
        }
        throttle.spend(room);
        let room = u64::try_from(room).unwrap();
        moved += room;
        if from == ContentFrom::Origin {
            limits.charge(room);
        }
    }
    moved
}

/// Runs a transfer from the store for each of these clients at once; returns the bytes of each.
async fn transfers(
    limiter: &Limiter,
    plan: &Arc<LimitPlan>,
    clients: &[u8],
    time: Duration,
) -> Vec<u64> {
    let local = LocalSet::new();
    let tasks: Vec<_> = clients
        .iter()
        .map(|last| {
            let limits = limiter.of_request(plan, ALL, client(*last));
            local.spawn_local(transfer(limits, ContentFrom::Store, time))
        })
        .collect();
    local
        .run_until(async {
            let mut moved = Vec::new();
            for task in tasks {
                moved.push(task.await.unwrap());
            }
            moved
        })
        .await
}

fn is_close(moved: u64, due: u64) -> bool {
    moved.abs_diff(due) * 50 <= due
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test(start_paused = true)]
async fn bandwidth_is_right_within_two_percent_over_ten_minutes() {
    for per_second in [4 * KIB, 100 * KIB, 3 * MIB] {
        let limiter = limiter(None);
        let plan = plan(vec![LimitSettings {
            bandwidth: rate(per_second, per_second),
            ..limit("each", LimitPer::Client)
        }]);
        let moved = transfers(&limiter, &plan, &[1, 2, 2, 2], TEN_MINUTES).await;
        let of_second: u64 = moved[1..].iter().sum();
        for moved in [moved[0], of_second] {
            assert!(is_close(moved, 600 * per_second), "{per_second}: {moved}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_share_a_bandwidth_get_equal_parts_whatever_they_open() {
    let limiter = limiter(None);
    let plan = plan(vec![LimitSettings {
        bandwidth: rate(900 * KIB, 900 * KIB),
        ..limit("line", LimitPer::All)
    }]);
    let mut clients = vec![1; 30];
    clients.extend([2, 3, 3]);
    let moved = transfers(&limiter, &plan, &clients, TEN_MINUTES).await;
    let of = |first: usize, last: usize| moved[first..last].iter().sum::<u64>();
    for moved in [of(0, 30), of(30, 31), of(31, 33)] {
        assert!(is_close(moved, 600 * 300 * KIB), "{moved}");
    }
    assert!(is_close(of(0, 33), 600 * 900 * KIB), "{}", of(0, 33));
}

#[tokio::test(start_paused = true)]
async fn the_lowest_of_several_limits_decides_and_small_pieces_lose_nothing() {
    let limiter = limiter(None);
    let plan = plan(vec![
        LimitSettings {
            bandwidth: rate(100 * KIB, 100 * KIB),
            ..limit("each", LimitPer::Client)
        },
        LimitSettings {
            bandwidth: rate(150 * KIB, 150 * KIB),
            ..limit("line", LimitPer::All)
        },
    ]);
    let moved = transfers(&limiter, &plan, &[1], TEN_MINUTES).await;
    assert!(is_close(moved[0], 600 * 100 * KIB), "{moved:?}");
    let moved = transfers(&limiter, &plan, &[1, 2], TEN_MINUTES).await;
    assert!(is_close(moved[0] + moved[1], 600 * 150 * KIB), "{moved:?}");
    // Each response of 3,000 bytes has a throttle of its own.
    let (start, mut moved) = (Instant::now(), 0);
    while start.elapsed() < TEN_MINUTES {
        let limits = limiter.of_request(&plan, ALL, client(3));
        let mut throttle = Throttle::new(&limits, ContentFrom::Store).unwrap();
        let mut left = 3000;
        while left > 0 {
            let room = poll_fn(|context| throttle.poll_room(context))
                .await
                .unwrap();
            let piece = room.min(left);
            throttle.spend(piece);
            left -= piece;
        }
        moved += 3000;
    }
    assert!(is_close(moved, 600 * 100 * KIB), "{moved}");
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_is_dropped_while_it_waits_holds_nobody_up() {
    let limiter = limiter(None);
    let plan = plan(vec![LimitSettings {
        bandwidth: rate(10 * KIB, 1),
        ..limit("line", LimitPer::All)
    }]);
    let local = LocalSet::new();
    let moved = Rc::new(Cell::new(0));
    local
        .run_until(async {
            for last in 1..=20 {
                let limits = limiter.of_request(&plan, ALL, client(last));
                let task = tokio::task::spawn_local(transfer(
                    limits,
                    ContentFrom::Store,
                    Duration::from_secs(3600),
                ));
                sleep(Duration::from_millis(50 * u64::from(last))).await;
                task.abort();
            }
            let limits = limiter.of_request(&plan, ALL, client(99));
            moved.set(transfer(limits, ContentFrom::Store, TEN_MINUTES).await);
        })
        .await;
    assert!(is_close(moved.get(), 600 * 10 * KIB), "{}", moved.get());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_one_limit_refuses_takes_nothing_of_another() {
    let limiter = limiter(None);
    let plan = plan(vec![
        LimitSettings {
            requests: rate(1, 3),
            ..limit("all", LimitPer::All)
        },
        LimitSettings {
            requests: rate(1, 1),
            ..limit("own", LimitPer::Client)
        },
    ]);
    let greedy = limiter.of_request(&plan, ALL, client(1));
    assert!(greedy.take_request(Instant::now()).is_ok());
    for _ in 0..10 {
        let Err(Failure::TooManyRequests(denial)) = greedy.take_request(Instant::now()) else {
            panic!("its own limit is reached");
        };
        assert_eq!(&*denial.limit, "own");
    }
    for last in 2..4 {
        let other = limiter.of_request(&plan, ALL, client(last));
        assert!(other.take_request(Instant::now()).is_ok(), "client {last}");
    }
    let late = limiter.of_request(&plan, ALL, client(4));
    assert!(late.take_request(Instant::now()).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_used_up_quota_slows_content_of_origins_and_no_other() {
    let limiter = limiter(None);
    let plan = plan(vec![LimitSettings {
        quota: quota(10 * MIB, QuotaPeriod::Day, QuotaEnd::Slow(64 * KIB)),
        ..limit("day", LimitPer::Client)
    }]);
    let limits = limiter.of_request(&plan, ALL, client(1));
    assert!(limits.check_quota().is_ok());
    assert!(Throttle::new(&limits, ContentFrom::Store).is_none());
    let moved = transfer(limits.clone(), ContentFrom::Origin, TEN_MINUTES).await;
    assert!(is_close(moved, 10 * MIB + 600 * 64 * KIB), "{moved}");
    assert!(limits.check_quota().is_ok(), "it is not refused");
    // Another client has another quota.
    let other = limiter.of_request(&plan, ALL, client(2));
    let mut throttle = Throttle::new(&other, ContentFrom::Origin).unwrap();
    for _ in 0..10 {
        let room = poll_fn(|context| throttle.poll_room(context)).await;
        throttle.spend(room.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_used_up_quota_ends_transfers_and_begins_anew_at_midnight() {
    let limiter = limiter(None);
    let plan = plan(vec![daily("day", LimitPer::Client, 10 * MIB)]);
    let limits = limiter.of_request(&plan, ALL, client(1));
    let moved = transfer(limits.clone(), ContentFrom::Origin, TEN_MINUTES).await;
    // A transfer may continue for one mebibyte.
    assert!(moved.abs_diff(11 * MIB) <= 64 * KIB, "{moved}");
    let Err(Failure::QuotaUsed(denial)) = limits.check_quota() else {
        panic!("the quota is used up");
    };
    assert_eq!((&*denial.limit, denial.bytes), ("day", 10 * MIB));
    assert_eq!(&*denial.ends, "Saturday 28 November, 00:00");
    assert_eq!(denial.wait, Duration::from_secs(DAY / 2));
    assert_eq!(denial.contact.as_deref(), Some("Ms Abara"));
    let other = limiter.of_request(&plan, ALL, client(2));
    assert!(other.check_quota().is_ok());
    limiter.shared.clock.pass(DAY / 2 - 1);
    assert!(limits.check_quota().is_err());
    limiter.shared.clock.pass(1);
    assert!(limits.check_quota().is_ok());
    limits.charge(MIB);
    let standings = limiter.standings(&plan, ALL, client(1));
    let tomorrow = "Sunday 29 November, 00:00".to_owned();
    assert_eq!(standings[0].used, Some((MIB, tomorrow)));
}

#[test]
fn a_user_has_one_quota_on_all_devices_and_a_client_without_user_its_own() {
    let limiter = limiter(None);
    let plan = plan(vec![
        daily("user", LimitPer::User, MIB),
        daily("all", LimitPer::All, 10 * MIB),
    ]);
    let user = |last, user| Sender {
        user,
        ..client(last)
    };
    let used = |sender| {
        let standings = limiter.standings(&plan, ALL, sender).into_iter();
        let used = standings.map(|it| it.used.unwrap().0);
        used.collect::<Vec<_>>()
    };
    for last in 1..=3 {
        let sender = user(last, Some("anna"));
        limiter.of_request(&plan, ALL, sender).charge(1000);
    }
    limiter.of_request(&plan, ALL, client(1)).charge(5);
    // Only the second limit.
    limiter.of_request(&plan, 2, client(1)).charge(7);
    assert_eq!(used(user(9, Some("anna"))), [3000, 3012]);
    assert_eq!(used(client(1)), [5, 3012]);
    assert_eq!(used(user(1, Some("bert"))), [0, 3012]);
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_rate_are_refused_and_counted_for_each_client() {
    let limiter = limiter(None);
    let plan = plan(vec![LimitSettings {
        requests: rate(2, 10),
        ..limit("calm", LimitPer::Client)
    }]);
    let ask = |last| {
        let limits = limiter.of_request(&plan, ALL, client(last));
        limits.take_request(Instant::now())
    };
    assert!((0..10).all(|_| ask(1).is_ok()));
    let Err(Failure::TooManyRequests(denial)) = ask(1) else {
        panic!("there were too many");
    };
    assert_eq!((denial.per_second, denial.wait.as_millis()), (2, 500));
    assert!(ask(2).is_ok());
    let (start, mut served) = (Instant::now(), 0u64);
    while start.elapsed() < TEN_MINUTES {
        served += u64::from(ask(1).is_ok());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(is_close(served, 1200), "{served}");
}

#[test]
fn usage_outlives_a_restart_and_only_what_was_not_written_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.quotas");
    let plan = plan(vec![daily("day", LimitPer::Client, 10 * MIB)]);
    let used = |limiter: &Limiter, last| {
        let standings = limiter.standings(&plan, ALL, client(last));
        standings[0].used.clone().unwrap().0
    };
    {
        let limiter = limiter(Some(&path));
        limiter.persist().unwrap();
        assert!(!path.exists(), "there was nothing to write");
        limiter.of_request(&plan, ALL, client(1)).charge(MIB);
        limiter.of_request(&plan, ALL, client(2)).charge(7);
        limiter.persist().unwrap();
        limiter.of_request(&plan, ALL, client(1)).charge(MIB);
        // The process is killed here.
    }
    let after = limiter(Some(&path));
    assert_eq!((used(&after, 1), used(&after, 2)), (MIB, 7));
    // A quota that is not used is not written either, and an old day is forgotten.
    after.shared.clock.pass(DAY);
    after.of_request(&plan, ALL, client(2)).charge(9);
    after.persist().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(decode(&bytes).0.len(), 1);
    std::fs::write(&path, b"other things").unwrap();
    assert_eq!(used(&limiter(Some(&path)), 1), 0);
}

#[test]
fn a_reload_keeps_what_was_used_and_takes_the_new_limit() {
    let limiter = limiter(None);
    let before = plan(vec![
        daily("other", LimitPer::Client, 1),
        daily("day", LimitPer::Client, MIB),
    ]);
    limiter.of_request(&before, 2, client(1)).charge(MIB);
    // The limit has another number now.
    let after = plan(vec![daily("day", LimitPer::Client, 2 * MIB)]);
    let limits = limiter.of_request(&after, ALL, client(1));
    assert!(limits.check_quota().is_ok());
    limits.charge(MIB);
    assert!(limits.check_quota().is_err());
    // The day lies in its week, and the week does not lie in the day.
    let weekly = plan(vec![LimitSettings {
        quota: quota(MIB, QuotaPeriod::Week, QuotaEnd::Refuse),
        ..limit("day", LimitPer::Client)
    }]);
    let limits = limiter.of_request(&weekly, ALL, client(1));
    assert!(limits.check_quota().is_err());
    let limits = limiter.of_request(&after, ALL, client(1));
    assert!(limits.check_quota().is_ok());
}

/// One of many clients.
fn numbered(number: u32) -> Sender<'static> {
    Sender {
        client: Network::containing(IpAddr::from(number.to_be_bytes())),
        user: None,
    }
}

fn used_by(limiter: &Limiter, plan: &LimitPlan, sender: Sender<'_>) -> u64 {
    let standings = limiter.standings(plan, ALL, sender);
    standings[0].used.clone().unwrap().0
}

#[test]
fn many_clients_take_bounded_memory_and_none_gets_its_quota_anew() {
    let limiter = limiter(None);
    let plan = plan(vec![daily("day", LimitPer::Client, MIB)]);
    let before = limiter.cache.stats().memory_used_bytes;
    let most = u32::try_from(SUBJECTS_MAX).unwrap();
    let early = 1 << 30;
    let waiting = limiter.of_request(&plan, ALL, numbered(early));
    for number in 0..2 * most {
        limiter.of_request(&plan, ALL, numbered(number)).charge(1);
        limiter.of_request(&plan, ALL, numbered(7)).charge(1);
    }
    let (known, steps, forgotten) = {
        let subjects = limiter.lock();
        let floor = subjects.forgotten.values().next().unwrap().bytes;
        (subjects.by_key.len(), subjects.memory.len(), floor)
    };
    assert!(
        known <= SUBJECTS_MAX && known <= steps * SUBJECTS_STEP,
        "{known} {steps}"
    );
    assert!(known >= SUBJECTS_STEP, "{known}");
    let held = limiter.cache.stats().memory_used_bytes - before;
    assert_eq!(
        held,
        u64::try_from(steps * SUBJECTS_STEP).unwrap() * SUBJECT_BYTES
    );
    let used = |number| used_by(&limiter, &plan, numbered(number));
    // One that used much is known exactly, and so is one with a request on its way.
    assert_eq!(used(7), u64::from(2 * most) + 1);
    waiting.charge(5);
    assert_eq!(used(early), 5);
    // All others have what they used, and little more.
    let known = u64::try_from(known).unwrap();
    assert!(forgotten <= 2 * u64::from(2 * most) / known, "{forgotten}");
    for number in 0..2 * most {
        let used = used(number);
        assert!(used >= 1, "{number}");
        assert!(number == 7 || used <= forgotten + 1, "{number}: {used}");
    }
    // All addresses of a /64 are one client.
    let known = || limiter.lock().by_key.iter().count();
    let before = known();
    for last in 0..1000u128 {
        let address = 0x2001_0db8_u128 << 96 | last;
        let client = Network::containing(IpAddr::from(std::net::Ipv6Addr::from_bits(address)));
        let sender = Sender { client, user: None };
        limiter.of_request(&plan, ALL, sender);
    }
    assert!(known() <= before + 1);
}

#[test]
fn what_forgotten_clients_had_used_outlives_a_restart_and_not_the_day() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.quotas");
    let plan = plan(vec![
        daily("day", LimitPer::Client, MIB),
        daily("other", LimitPer::User, MIB),
    ]);
    let most = u32::try_from(SUBJECTS_MAX).unwrap();
    let forgotten = {
        let limiter = limiter(Some(&path));
        for number in 0..=most {
            limiter.of_request(&plan, 1, numbered(number)).charge(10);
        }
        limiter.persist().unwrap();
        let subjects = limiter.lock();
        subjects.forgotten.values().next().unwrap().bytes
    };
    assert!(forgotten >= 10, "{forgotten}");
    let after = limiter(Some(&path));
    let used = |number| used_by(&after, &plan, numbered(number));
    assert_eq!(used(0), forgotten);
    // The client was new when other clients had been forgotten.
    assert_eq!(used(most), forgotten + 10);
    // Of another limit nothing was forgotten.
    let standings = after.standings(&plan, 2, numbered(0));
    assert_eq!(standings[0].used.clone().unwrap().0, 0);
    after.shared.clock.pass(DAY);
    assert_eq!((used(0), used(most)), (0, 0));
}

#[test]
fn operators_see_what_happened_under_each_limit() {
    let limiter = limiter(None);
    let plan = plan(vec![
        LimitSettings {
            requests: rate(1, 1),
            ..daily("day", LimitPer::Client, 10)
        },
        limit("other", LimitPer::All),
    ]);
    let limits = limiter.of_request(&plan, ALL, client(1));
    let now = Instant::now();
    assert!(limits.take_request(now).is_ok());
    assert!(limits.take_request(now).is_err());
    limits.charge(10);
    assert!(limits.check_quota().is_err());
    // A look that is no request counts nothing.
    assert!(limits.check_transfer(0).is_err() && limits.check_transfer(1).is_ok());
    let figures = limiter.figures();
    assert_eq!((figures.subjects, figures.forgotten), (2, 0));
    let counts = figures.limits.iter().map(|it| {
        let refusals = (it.quota_refusals, it.request_refusals);
        (&*it.name, it.bytes, refusals)
    });
    let expected = [("day", 10, (1, 1)), ("other", 0, (0, 0))];
    assert!(counts.eq(expected));
}

#[tokio::test(start_paused = true)]
async fn many_transfers_of_a_client_exceed_its_quota_by_little_together() {
    let limiter = limiter(None);
    let plan = plan(vec![daily("day", LimitPer::Client, 50 * MIB)]);
    let moved = LocalSet::new()
        .run_until(async {
            let mut transfers = tokio::task::JoinSet::new();
            for _ in 0..500 {
                let limits = limiter.of_request(&plan, ALL, client(1));
                transfers.spawn_local(transfer(limits, ContentFrom::Origin, TEN_MINUTES));
            }
            transfers.join_all().await
        })
        .await;
    let moved: u64 = moved.iter().sum();
    assert!(moved <= 59 * MIB, "{moved}");
}

#[test]
fn a_state_with_all_its_buckets_is_no_larger_than_what_is_reserved() {
    let place = size_of::<SubjectKey>() + size_of::<Arc<SubjectState>>() + 4 * size_of::<usize>();
    let state = size_of::<SubjectState>() + 3 * size_of::<super::super::bucket::Bucket>();
    let with_counts = state + 4 * 2 * size_of::<usize>();
    assert!(place + with_counts < usize::try_from(SUBJECT_BYTES).unwrap());
}
