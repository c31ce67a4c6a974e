//! The history over hours, restarts and wrong clocks.

use std::net::SocketAddr;

use hashcache::Config;
use hashcache::device::MemoryDevice;

use super::counts::{Counts, Kind};
use super::name::Client;
use super::*;
use crate::access_log::{LogEntry, Outcome, RequestId};
use crate::clock::UnixMillis;

fn cache(memory_bytes: u64) -> Cache {
    let config = Config {
        memory_bytes,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

fn start_with(path: &Path, metrics: &Arc<Metrics>, cache: &Cache) -> Arc<History> {
    let clock = Arc::new(Clock::start(None));
    History::start(
        Some(path.to_owned()),
        ClientForm::Client,
        (cache, 1),
        (&clock, metrics),
    )
}

fn start(path: &Path, metrics: &Arc<Metrics>) -> Arc<History> {
    start_with(path, metrics, &cache(16 << 20))
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
        let client = Client::of(entry.client.ip(), history.client_form);
        counted.count(Name::of_site(site), client, entry);
    }
    history.take(&mut counted);
    assert!(counted.totals.is_empty());
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
    let site = record.sites.named[0];
    assert_eq!(site.0.as_str(), "a.test");
    assert_eq!((site.1.requests, site.1.client_bytes), (3, 2_850));
    assert_eq!((site.1.answered, site.1.wait_us), (1, 20_000));
    let clients: Vec<_> = record
        .clients
        .named
        .iter()
        .map(|(it, _)| it.as_str())
        .collect();
    assert_eq!(clients, ["192.0.2.2", "192.0.2.1"]);
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
    assert_eq!(line(&overview.sites, "199.test").unwrap().requests, 200);
    assert_eq!(line(&overview.sites, "177.test").unwrap().requests, 178);
    assert_eq!(line(&overview.sites, "176.test"), None);
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
    assert!(history.state().sites.top(usize::MAX).0.len() <= LINES);
    history.persist_at(hour).unwrap();
    let read = file::read(&path, hour, hour).unwrap();
    let sites = &read.hours[0].sites;
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
    let history = start_with(&path, &metrics, &cache);
    drop(held);
    let hour = history.state().hour;
    count(&history, &metrics, "a.test", &[entry(Outcome::Hit, 1, 10)]);
    history.persist_at(Hour(hour.0 + 1)).unwrap();
    let overview = history.overview();
    assert_eq!(overview.day.requests(), 1);
    assert_eq!(overview.sites.top(10).0, []);
    let read = file::read(&path, hour, hour).unwrap();
    assert_eq!(read.hours[0].sites.named, []);
    assert_eq!(read.hours[0].sites.rest.requests, 1);
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
        let counts = line(&history.overview().sites, "a.test").unwrap();
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
