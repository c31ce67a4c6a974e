//! The history over hours, restarts and wrong clocks.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;

use hashcache::Config;
use hashcache::device::MemoryDevice;
use hashcache_base::clock::UnixMillis;

use super::counts::{Counts, Kind};
use super::*;
use crate::access_log::{LogEntry, Outcome, RequestId};

fn cache(memory_bytes: u64) -> Cache {
    let config = Config {
        memory_bytes,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

fn start_with(
    path: &Path,
    persons: Persons,
    metrics: &Arc<Metrics>,
    cache: &Cache,
) -> Arc<History> {
    let clock = Arc::new(Clock::start(None));
    History::start(
        Some(path.to_owned()),
        persons,
        (cache, 1),
        (&clock, metrics),
    )
}

fn start(path: &Path, metrics: &Arc<Metrics>) -> Arc<History> {
    start_with(path, Persons::Named, metrics, &cache(16 << 20))
}

/// An entry of `bytes` for the client with this number.
fn entry(outcome: Outcome, client: u8, bytes: u64) -> LogEntry<'static> {
    let is_fetched = !matches!(outcome, Outcome::Hit | Outcome::MemoryHit);
    LogEntry {
        start: UnixMillis(0),
        duration: Duration::from_secs(1),
        first_byte: Some(Duration::from_millis(20)),
        client: SocketAddr::from(([192, 0, 2, client], 1)),
        user: None,
        method: "GET",
        scheme: "http",
        authority: "",
        path: "/",
        version: http::Version::HTTP_11,
        status: 200,
        outcome,
        aborted: false,
        client_bytes: bytes,
        origin_bytes: if is_fetched { bytes } else { 0 },
        link: None,
        next_hop: None,
        error: None,
        request_id: RequestId(1),
        user_agent: None,
        referer: None,
        content_type: None,
    }
}

/// Counts entries as a core does.
fn count(history: &History, metrics: &Metrics, site: &str, entries: &[LogEntry<'_>]) {
    let mut counted = Counted::new(tally::LINES);
    for entry in entries {
        metrics.worker(0).record(entry);
        if entry.outcome != Outcome::Tunnel {
            metrics.worker(0).fetched(entry.origin_bytes, 0);
        }
        counted.count(Name::of_site(site), entry, history.persons);
    }
    history.take(&mut counted);
    assert!(counted.totals.is_empty());
}

fn names(record: &HourRecord, by: By) -> Vec<&str> {
    let lines = record.of(by).named.iter();
    lines.map(|(name, _)| name.as_str()).collect()
}

fn line(table: &Table<Name>, name: &str) -> Option<Counts> {
    let (lines, _) = table.top(usize::MAX);
    let found = lines.into_iter().find(|(it, _)| it.as_str() == name);
    found.map(|(_, counts)| counts)
}

#[test]
fn an_hour_is_in_the_file_and_a_restart_continues_it() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    let (miss, hit) = (
        entry(Outcome::Miss, 1, 1_000),
        entry(Outcome::MemoryHit, 2, 900),
    );
    let tunnel = entry(Outcome::Tunnel, 2, 50);
    history.persist_at(hour).unwrap();
    assert!(!path.exists(), "nothing was counted");
    count(
        &history,
        &metrics,
        "a.test",
        &[miss.clone(), hit.clone(), tunnel],
    );
    history.persist_at(hour).unwrap();
    // A killed process has no end; another one continues from the file.
    let metrics = Metrics::new(1);
    let again = start(&path, &metrics);
    count(&again, &metrics, "a.test", &[hit]);
    again.persist_at(hour).unwrap();

    let read = file::read(&path, hour, hour).unwrap();
    let [record] = &read.hours[..] else {
        panic!("{read:?}")
    };
    assert_eq!((read.damaged, record.hour), (0, hour));
    let totals = &record.totals;
    assert_eq!((totals.requests(), totals.hits()), (3, 2));
    assert_eq!((totals.client_bytes, totals.origin_bytes), (2_800, 1_000));
    assert_eq!(totals.saved_bytes(), 1_800);
    assert_eq!(totals.of(Kind::Memory).bytes, 1_800);
    assert_eq!(totals.of(Kind::Origin).requests, 1);
    assert_eq!(totals.of(Kind::Tunnel).bytes, 50);
    let site = record.of(By::Site).named[0];
    assert_eq!(site.0.as_str(), "a.test");
    assert_eq!((site.1.requests, site.1.client_bytes), (3, 2_850));
    assert_eq!((site.1.answered, site.1.wait_us), (1, 20_000));
    assert_eq!(names(record, By::Client), ["192.0.2.2", "192.0.2.1"]);
    assert_eq!(names(record, By::Network), ["192.0.2.0/24"]);
}

#[test]
fn the_day_and_the_week_are_what_their_hours_add_up_to() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let begin = history.state().hour.0;
    // One request more in each hour, so that no two sums are equal by accident.
    for n in 0..200_u64 {
        let hits = vec![entry(Outcome::Hit, 1, 10); usize::try_from(n).unwrap() + 1];
        count(&history, &metrics, &format!("{n}.test"), &hits);
        let next = Hour(begin + u32::try_from(n).unwrap() + 1);
        history.persist_at(next).unwrap();
    }
    // Hours 0 to 199 had 1 to 200 requests. Hour 200 is the current one.
    let overview = history.overview();
    let sum = |hours: std::ops::RangeInclusive<u64>| hours.sum::<u64>();
    assert_eq!(overview.day.requests(), sum(178..=200));
    assert_eq!(overview.week.requests(), sum(34..=200));
    assert_eq!(overview.since_start.requests(), sum(1..=200));
    assert_eq!(overview.week.client_bytes, 10 * sum(34..=200));
    assert_eq!(
        line(overview.of(By::Site), "199.test").unwrap().requests,
        200
    );
    assert_eq!(
        line(overview.of(By::Site), "177.test").unwrap().requests,
        178
    );
    assert_eq!(line(overview.of(By::Site), "176.test"), None);
    let read = file::read(&path, Hour(begin), Hour(begin + 200)).unwrap();
    let requests: Vec<u64> = read.hours.iter().map(|it| it.totals.requests()).collect();
    assert_eq!(requests, (1..=200).collect::<Vec<_>>());
}

#[test]
fn a_clock_that_is_set_back_continues_the_hour_that_was() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    let later = Hour(hour.0 + 5);
    let hit = [entry(Outcome::Hit, 1, 10)];
    count(&history, &metrics, "a.test", &hit);
    history.persist_at(later).unwrap();
    count(&history, &metrics, "a.test", &hit);
    history.persist_at(hour).unwrap();
    count(&history, &metrics, "a.test", &hit);
    history.persist_at(hour).unwrap();
    let read = file::read(&path, hour, later).unwrap();
    let hours: Vec<_> = read
        .hours
        .iter()
        .map(|it| (it.hour, it.totals.requests()))
        .collect();
    assert_eq!(hours, [(hour, 2), (later, 1)]);
    // The later hour is not of the last day: it has not been yet.
    assert_eq!(history.overview().day.requests(), 2);
}

#[test]
fn more_names_than_there_are_lines_are_counted_as_one() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    for n in 0..2_000_u64 {
        let hit = entry(Outcome::Hit, 1, 1_000 + n % 100);
        count(&history, &metrics, &format!("{n}.test"), &[hit]);
    }
    assert!(history.overview().of(By::Site).top(usize::MAX).0.len() <= LINES);
    history.persist_at(hour).unwrap();
    let read = file::read(&path, hour, hour).unwrap();
    let sites = read.hours[0].of(By::Site);
    assert_eq!(sites.named.len(), record::NAMES);
    let named: u64 = sites.named.iter().map(|(_, counts)| counts.requests).sum();
    assert_eq!(named + sites.rest.requests, 2_000);
}

#[test]
fn without_memory_everything_is_counted_and_nothing_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let cache = cache(16 << 20);
    let held: Vec<_> = std::iter::from_fn(|| cache.reserve(256 << 10)).collect();
    let metrics = Metrics::new(1);
    let history = start_with(&path, Persons::Named, &metrics, &cache);
    drop(held);
    let hour = history.state().hour;
    count(&history, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    history.persist_at(Hour(hour.0 + 1)).unwrap();
    let overview = history.overview();
    assert_eq!(overview.day.requests(), 1);
    assert_eq!(overview.of(By::Site).top(10).0, []);
    let read = file::read(&path, hour, hour).unwrap();
    assert_eq!(read.hours[0].of(By::Site).named, []);
    assert_eq!(read.hours[0].of(By::Site).rest.requests, 1);
}

#[test]
fn hours_that_could_not_be_written_are_written_when_the_disk_has_room_again() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("missing").join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let begin = history.state().hour.0;
    // One request more in each hour.
    for n in 0..30_u32 {
        let hits = vec![entry(Outcome::Hit, 1, 10); usize::try_from(n).unwrap() + 1];
        count(&history, &metrics, "a.test", &hits);
        assert!(history.persist_at(Hour(begin + n + 1)).is_err());
    }
    // Back in an hour that is not in the file yet.
    assert!(history.persist_at(Hour(begin + 20)).is_err());
    count(&history, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    history.persist_at(Hour(begin + 20)).unwrap();
    let read = file::read(&path, Hour(begin), Hour(begin + 40)).unwrap();
    let hours: Vec<(u32, u64)> = read
        .hours
        .iter()
        .map(|it| (it.hour.0 - begin, it.totals.requests()))
        .collect();
    let expected = |n: u32| (n, u64::from(n) + if n == 20 { 2 } else { 1 });
    // The oldest were lost, and no more memory is taken.
    let first = 30 - u32::try_from(UNWRITTEN).unwrap();
    assert_eq!(hours, (first..30).map(expected).collect::<Vec<_>>());
    assert!(history.state().unwritten.is_empty());
}

#[test]
fn a_clock_that_jumps_back_a_year_and_returns_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    let year_ago = Hour(hour.0 - 365 * 24);
    let hit = [entry(Outcome::Hit, 1, 10)];
    for now in [hour, year_ago, year_ago, hour, year_ago, hour] {
        count(&history, &metrics, "a.test", &hit);
        history.persist_at(now).unwrap();
    }
    let read = file::read(&path, year_ago, hour).unwrap();
    let hours = read.hours.iter();
    let hours: Vec<_> = hours.map(|it| (it.hour, it.totals.requests())).collect();
    // Each request is counted in the hour that the clock showed when it was told.
    assert_eq!(hours, [(year_ago, 3), (hour, 3)]);
    let overview = history.overview();
    assert_eq!((overview.day.requests(), overview.week.requests()), (3, 3));
    assert_eq!(line(overview.of(By::Site), "a.test").unwrap().requests, 3);
    assert_eq!(overview.since_start.requests(), 6);
}

#[test]
fn a_damaged_file_hides_no_whole_hour_and_stops_nothing() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    for now in [Hour(hour.0 - 2), Hour(hour.0 - 1), hour] {
        history.persist_at(now).unwrap();
        count(&history, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    }
    history.persist_at(hour).unwrap();
    // The record of this hour and that of the hour before: noise.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for hour in [hour, Hour(hour.0 - 1)] {
        file.write_all_at(&[0xa5; 3_000], place(hour) + 50).unwrap();
    }
    let length = file.metadata().unwrap().len();
    let metrics = Metrics::new(1);
    let again = start(&path, &metrics);
    let overview = again.overview();
    assert_eq!((overview.damaged, overview.day.requests()), (2, 1));
    count(&again, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    again.persist_at(hour).unwrap();
    let read = file::read(&path, Hour(hour.0 - 2), hour).unwrap();
    assert_eq!((read.hours.len(), read.damaged), (2, 1));
    assert_eq!(file.metadata().unwrap().len(), length);
}

#[test]
fn users_and_networks_have_lines_of_their_own() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    let of_user = |user, client, bytes| LogEntry {
        user,
        ..entry(Outcome::Hit, client, bytes)
    };
    let entries = [
        of_user(Some("ada"), 1, 500),
        of_user(Some("bob"), 2, 300),
        of_user(Some("ada"), 2, 100),
        of_user(None, 3, 50),
    ];
    count(&history, &metrics, "a.test", &entries);
    history.persist_at(hour).unwrap();
    let read = file::read(&path, hour, hour).unwrap();
    let record = &read.hours[0];
    assert_eq!(names(record, By::User), ["ada", "bob"]);
    assert_eq!(record.of(By::User).named[0].1.client_bytes, 600);
    assert_eq!(names(record, By::Network), ["192.0.2.0/24"]);
    assert_eq!(record.of(By::Network).named[0].1.client_bytes, 950);
    assert_eq!(names(record, By::Client).len(), 3);
}

#[test]
fn an_anonymous_history_has_networks_and_no_persons() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("cache.history");
    let hit = LogEntry {
        user: Some("ada"),
        ..entry(Outcome::Hit, 7, 10)
    };
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    count(&history, &metrics, "a.test", std::slice::from_ref(&hit));
    history.persist_at(hour).unwrap();
    assert!(contains(&path, hour, b"ada") && contains(&path, hour, b"192.0.2.7"));
    // From now on names are left out, also of what this hour had before.
    let metrics = Metrics::new(1);
    let again = start_with(&path, Persons::LeftOut, &metrics, &cache(16 << 20));
    count(&again, &metrics, "a.test", &[hit]);
    again.persist_at(hour).unwrap();
    let overview = again.overview();
    let network = line(overview.of(By::Network), "192.0.2.0/24");
    assert_eq!(network.unwrap().requests, 2);
    assert!(overview.of(By::Client).is_empty() && overview.of(By::User).is_empty());
    assert!(!contains(&path, hour, b"ada") && !contains(&path, hour, b"192.0.2.7"));
}

fn place(hour: Hour) -> u64 {
    u64::from(hour.0 % file::HOURS) * record::RECORD_BYTES as u64
}

/// Returns true if the record of `hour` contains `text`.
fn contains(path: &Path, hour: Hour, text: &[u8]) -> bool {
    let mut bytes = [0; record::RECORD_BYTES];
    let file = std::fs::File::open(path).unwrap();
    file.read_exact_at(&mut bytes, place(hour)).unwrap();
    bytes.windows(text.len()).any(|it| it == text)
}

#[test]
fn pages_of_the_proxy_itself_save_nothing() {
    let home = tempfile::tempdir().unwrap();
    let metrics = Metrics::new(1);
    let history = start(&home.path().join("h"), &metrics);
    let refused = LogEntry {
        error: Some("rule-denied"),
        origin_bytes: 0,
        ..entry(Outcome::Denied, 1, 3_000)
    };
    let failed = LogEntry {
        error: Some("unreachable"),
        origin_bytes: 0,
        ..entry(Outcome::Miss, 1, 4_000)
    };
    // The CA page, the PAC file, a digest for a peer.
    let own = LogEntry {
        origin_bytes: 0,
        ..entry(Outcome::Own, 1, 5_000)
    };
    let hit = entry(Outcome::Hit, 1, 1_000);
    let stale = LogEntry {
        error: Some("unreachable"),
        origin_bytes: 0,
        ..entry(Outcome::StaleIfError, 1, 200)
    };
    count(
        &history,
        &metrics,
        "a.test",
        &[refused, failed, own, hit, stale],
    );
    let overview = history.overview();
    let totals = overview.day;
    assert_eq!(totals.client_bytes, 13_200);
    assert_eq!(totals.own_page_bytes(), 12_000);
    assert_eq!(
        (totals.served_bytes(), totals.saved_bytes()),
        (1_200, 1_200)
    );
    let site = line(overview.of(By::Site), "a.test").unwrap();
    assert_eq!((site.client_bytes, site.saved_bytes()), (1_200, 1_200));
    assert_eq!((site.requests, site.hits, site.failures), (4, 2, 2));
}

#[test]
fn a_file_that_cannot_be_written_is_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("missing").join("cache.history");
    let metrics = Metrics::new(1);
    let history = start(&path, &metrics);
    let hour = history.state().hour;
    count(&history, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    assert!(history.persist_at(hour).is_err());
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    history.persist_at(hour).unwrap();
    let read = file::read(&path, hour, hour).unwrap();
    assert_eq!(read.hours[0].totals.requests(), 1);
}

#[test]
fn failures_of_origins_are_counted_and_ours_are_not() {
    let history_of = |error, outcome| {
        let home = tempfile::tempdir().unwrap();
        let metrics = Metrics::new(1);
        let history = start(&home.path().join("h"), &metrics);
        let failed = LogEntry {
            error: Some(error),
            ..entry(outcome, 1, 10)
        };
        count(&history, &metrics, "a.test", &[failed]);
        let counts = line(history.overview().of(By::Site), "a.test").unwrap();
        (counts.failures, counts.answered)
    };
    assert_eq!(history_of("unreachable", Outcome::Miss), (1, 0));
    assert_eq!(
        history_of("first-byte-timeout", Outcome::StaleIfError),
        (1, 0)
    );
    assert_eq!(history_of("connect-timeout", Outcome::Tunnel), (1, 0));
    assert_eq!(history_of("not-cached", Outcome::Miss), (0, 0));
    assert_eq!(history_of("port-denied", Outcome::Denied), (0, 0));
}

#[test]
fn an_origin_that_answers_with_errors_fails_and_a_stored_error_is_no_hit() {
    let home = tempfile::tempdir().unwrap();
    let metrics = Metrics::new(1);
    let history = start(&home.path().join("h"), &metrics);
    let answered = |outcome, status| LogEntry {
        status,
        ..entry(outcome, 1, 10)
    };
    let entries = [
        answered(Outcome::Miss, 500),
        answered(Outcome::Bypass, 503),
        // The client got what is stored in place of an error.
        answered(Outcome::StaleIfError, 200),
        answered(Outcome::Miss, 404),
        // Stored errors: no request was sent, and nobody got what it had asked for.
        answered(Outcome::NegativeHit, 404),
        answered(Outcome::NegativeHit, 503),
    ];
    count(&history, &metrics, "a.test", &entries);
    let overview = history.overview();
    let site = line(overview.of(By::Site), "a.test").unwrap();
    assert_eq!((site.requests, site.hits, site.failures), (6, 1, 3));
    assert_eq!(overview.day.hits(), 1);
    assert_eq!(overview.day.of(Kind::Negative).requests, 2);
}
