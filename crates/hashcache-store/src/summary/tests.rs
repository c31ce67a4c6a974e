//! Tests of our own summary: builds, reports and updates.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config};
use hashcache_peers::filter::{SMALL_FILTER_BITS_PER_ENTRY, Size};
use hashcache_peers::{digest, update};

use super::*;

const NOW: UnixTime = UnixTime(1_800_000_000);

fn memory() -> Reservation {
    let mut config = Config::on_device(Arc::new(MemoryDevice::new(16 << 20)));
    config.memory_bytes = 16 << 20;
    Cache::open(config).unwrap().reserve(1).unwrap()
}

fn mark(n: u32) -> u128 {
    let url = format!("http://x.test/{n}");
    u128::from_be_bytes(Key::of_get(url.as_bytes()).octets())
}

fn object(n: u32) -> MarkedObject {
    MarkedObject {
        mark: mark(n),
        fresh_until: Hour::from_unix_seconds(NOW.0 + 86_400),
        head_bytes: 512,
    }
}

fn report(summary: &Summary, objects: &[MarkedObject]) {
    summary.note(Event::Recorded { device: 0, objects }, NOW);
}

/// A summary of these objects, built for `capacity` entries.
fn built(capacity: u32, objects: &[u32], updates: Updates) -> Arc<Summary> {
    let summary = Arc::<Summary>::default();
    rebuild(&summary, capacity, objects, updates);
    summary
}

fn rebuild(summary: &Summary, capacity: u32, objects: &[u32], updates: Updates) {
    let filter = Filter::empty(Size::new(capacity, 10).unwrap()).unwrap();
    summary.begin_build(filter, memory());
    let objects: Vec<_> = objects.iter().map(|n| object(*n)).collect();
    summary.add_scanned(&objects, NOW);
    summary.end_build(updates, NOW);
}

/// The digest as a peer receives it.
fn served(summary: &Arc<Summary>) -> (Position, Filter) {
    let edition = summary.edition(NOW).unwrap();
    let mut body = Vec::new();
    for piece in DigestReader::new(Arc::clone(summary), edition) {
        body.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(body.len() as u64, edition.length());
    (edition.position, digest::parse(&body).unwrap())
}

/// Applies the updates that wait to a peer's copy.
fn apply(summary: &Summary, (position, filter): &mut (Position, Filter)) {
    while let Some(datagram) = summary.next_update() {
        let update = update::parse(&datagram).unwrap();
        match position.step_to(update.position()) {
            update::Step::Old => continue,
            update::Step::Next => {}
            update::Step::Gap => panic!("a gap at {:?}", update.position()),
        }
        update.apply(filter).unwrap();
        *position = update.position();
    }
}

const ALWAYS: Threshold = Threshold { permille: 1 };

#[tokio::test(start_paused = true)]
async fn a_copy_with_all_updates_is_equal_to_the_filter_after_insertions_and_a_rebuild() {
    let first: Vec<u32> = (0..1000).collect();
    let summary = built(4096, &first, Updates::Sent);
    let mut copy = served(&summary);
    report(&summary, &(1000..1500).map(object).collect::<Vec<_>>());
    summary.absorb(Updates::Sent, NOW);
    summary.make_updates(ALWAYS, (Instant::now(), NOW));
    apply(&summary, &mut copy);
    assert_eq!(copy.0, served(&summary).0);
    assert!((0..1500).all(|n| copy.1.contains(&key(mark(n)))));
    // The oldest ones are gone; what arrives during the build is kept.
    let filter = Filter::empty(copy.1.size()).unwrap();
    summary.begin_build(filter, memory());
    report(&summary, &[object(9000)]);
    summary.absorb(Updates::Sent, NOW);
    summary.add_scanned(&(500..1500).map(object).collect::<Vec<_>>(), NOW);
    summary.end_build(Updates::Sent, NOW);
    tokio::time::advance(UPDATE_TIME).await;
    summary.make_updates(ALWAYS, (Instant::now(), NOW));
    apply(&summary, &mut copy);
    let now = served(&summary);
    assert_eq!(copy.0, now.0);
    assert_eq!(copy.1.octets(), now.1.octets());
    assert!(copy.1.contains(&key(mark(9000))));
    let left = (0..500).filter(|n| copy.1.contains(&key(mark(*n)))).count();
    assert!(left < 20, "{left}");
}

#[tokio::test(start_paused = true)]
async fn updates_wait_for_the_threshold_and_many_bits_or_a_minute() {
    let first: Vec<u32> = (0..2000).collect();
    let summary = built(4096, &first, Updates::Sent);
    // The announcement of the epoch.
    assert!(summary.next_update().is_some());
    let threshold = Threshold { permille: 100 };
    let add = |range: std::ops::Range<u32>| {
        report(&summary, &range.map(object).collect::<Vec<_>>());
        summary.absorb(Updates::Sent, NOW);
        summary.make_updates(threshold, (Instant::now(), NOW));
        std::iter::from_fn(|| summary.next_update()).count()
    };
    assert_eq!(add(2000..2150), 0);
    assert!(add(2150..2300) > 0);
    assert_eq!(add(2300..2301), 0);
    tokio::time::advance(UPDATE_TIME).await;
    assert_eq!(add(0..0), 1);
}

#[tokio::test(start_paused = true)]
async fn peers_that_make_no_use_of_the_summary_get_updates_in_a_row() {
    let first: Vec<u32> = (0..1000).collect();
    let summary = built(1 << 14, &first, Updates::Sent);
    let mut copy = served(&summary);
    // A hundred new objects in each step; how many steps made updates.
    let run = |copy: &mut (Position, Filter), steps: std::ops::Range<u32>| {
        let mut made = 0;
        for n in steps {
            let from = 1000 + n * 100;
            report(
                &summary,
                &(from..from + 100).map(object).collect::<Vec<_>>(),
            );
            summary.absorb(Updates::Sent, NOW);
            summary.make_updates(ALWAYS, (Instant::now(), NOW));
            made += u32::from(summary.has_updates());
            apply(&summary, copy);
        }
        made
    };
    assert_eq!(run(&mut copy, 0..4), 4);
    assert!(!summary.is_used());
    assert_eq!(run(&mut copy, 4..20), 0);
    assert!(!copy.1.contains(&key(mark(2900))));
    tokio::time::advance(UPDATE_TIME).await;
    assert_eq!(run(&mut copy, 20..21), 1);
    assert!((1000..3100).all(|n| copy.1.contains(&key(mark(n)))));
    // Or when there are many.
    assert_eq!(run(&mut copy, 21..45), 1);
    summary.note_use();
    assert_eq!(run(&mut copy, 45..47), 2);
    assert_eq!(copy.1.octets(), served(&summary).1.octets());
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_is_of_no_use_is_built_anew_less_often() {
    let summary = built(4096, &[1], Updates::Sent);
    summary
        .updates_since_use
        .store(UNUSED_MAX, Ordering::Relaxed);
    for _ in 0..6 {
        let event = Event::Reclaimed {
            device: 0,
            segment_bytes: 10,
            log_bytes: 400,
        };
        summary.note(event, NOW);
    }
    // 60 bytes: more than 1/16, less than 1/4.
    assert!(!summary.is_outdated());
    summary.note_use();
    assert!(summary.is_outdated());
}

#[tokio::test(start_paused = true)]
async fn an_entity_tag_stands_for_one_content() {
    let summary = built(4096, &[1], Updates::NotSent);
    let first = summary.edition(NOW).unwrap();
    assert_eq!(summary.edition(NOW), Some(first));
    // Known already: nothing changes.
    report(&summary, &[object(1)]);
    summary.absorb(Updates::NotSent, NOW);
    assert_eq!(summary.edition(NOW).unwrap().position, first.position);
    report(&summary, &[object(2)]);
    summary.absorb(Updates::NotSent, NOW);
    let second = summary.edition(NOW).unwrap();
    assert_eq!(second.position, first.position.next());
    assert!(second.modified > first.modified);
    rebuild(&summary, 4096, &[2], Updates::NotSent);
    assert_eq!(
        summary.edition(NOW).unwrap().position,
        second.position.next()
    );
    rebuild(&summary, 8192, &[2], Updates::NotSent);
    let third = summary.edition(NOW).unwrap();
    assert_ne!(third.position.epoch, first.position.epoch);
}

#[tokio::test(start_paused = true)]
async fn too_many_bits_for_the_queue_begin_an_epoch_whose_digest_has_them() {
    let summary = built(1 << 17, &[], Updates::Sent);
    let before = served(&summary).0;
    let octets = summary.state().live.as_ref().unwrap().octets();
    assert_eq!(bits_due(octets), BITS_DUE_MAX);
    for from in (0..BITS_DUE_MAX / 2).step_by(1000) {
        let from = u32::try_from(from).unwrap();
        report(
            &summary,
            &(from..from + 1000).map(object).collect::<Vec<_>>(),
        );
        summary.absorb(Updates::Sent, NOW);
    }
    let (position, filter) = served(&summary);
    assert_ne!(position.epoch, before.epoch);
    assert!(filter.contains(&key(mark(1))) && filter.contains(&key(mark(15_000))));
    let queued = summary.state().live.as_ref().unwrap().queued();
    assert!(queued <= bits_max(octets), "{queued}");
}

#[test]
fn what_waits_takes_little_memory_beside_the_smallest_filter() {
    let filter = Size::new(CAPACITY_MIN, SMALL_FILTER_BITS_PER_ENTRY)
        .unwrap()
        .octets();
    assert_eq!((filter, memory_bytes(filter)), (32 << 10, 176 << 10));
    // And a bounded amount beside the largest.
    assert_eq!(memory_bytes(16 << 20), (16 << 20) + (288 << 10));
}

#[tokio::test(start_paused = true)]
async fn the_list_of_bits_never_grows_beyond_what_is_reserved() {
    for capacity in [CAPACITY_MIN, 30_000, 1 << 17] {
        let first: Vec<u32> = (0..2_000).collect();
        let summary = built(capacity, &first, Updates::Sent);
        let octets = summary.state().live.as_ref().unwrap().octets();
        let capacity_now = || summary.state().live.as_ref().unwrap().pending.capacity();
        for round in 0..20 {
            let from = 10_000 + round * 4_000;
            report(
                &summary,
                &(from..from + 4_000).map(object).collect::<Vec<_>>(),
            );
            summary.absorb(Updates::Sent, NOW);
            assert!(capacity_now() <= list_max(octets));
            if round % 5 == 4 {
                rebuild(&summary, capacity, &first, Updates::Sent);
                assert!(capacity_now() <= list_max(octets));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_digest_of_an_epoch_that_is_over_breaks_off() {
    let summary = built(100_000, &[1], Updates::NotSent);
    let edition = summary.edition(NOW).unwrap();
    let mut reader = DigestReader::new(Arc::clone(&summary), edition);
    assert!(reader.next().unwrap().is_ok() && reader.next().unwrap().is_ok());
    summary.begin_epoch(NOW);
    assert_eq!(reader.next(), Some(Err(EpochOver)));
}

#[test]
fn what_is_stale_soon_or_has_no_hour_is_not_announced() {
    let until = |seconds| MarkedObject {
        fresh_until: Hour::from_unix_seconds(seconds),
        ..object(1)
    };
    assert!(is_announced(&until(NOW.0 + FRESH_MIN), NOW));
    assert!(!is_announced(&until(NOW.0 - 3600), NOW));
    let unknown = MarkedObject {
        fresh_until: None,
        ..object(1)
    };
    assert!(!is_announced(&unknown, NOW));
}

#[tokio::test(start_paused = true)]
async fn a_sixteenth_of_the_log_lost_reports_or_too_many_entries_outdate_a_filter() {
    let summary = built(4096, &[1], Updates::NotSent);
    let reclaim = |device| {
        let event = Event::Reclaimed {
            device,
            segment_bytes: 10,
            log_bytes: 400,
        };
        summary.note(event, NOW);
    };
    assert!(!summary.is_outdated());
    (0..2).for_each(|_| reclaim(0));
    assert!(!summary.is_outdated());
    // Two devices: 1/16 of 800 bytes.
    (0..2).for_each(|_| reclaim(1));
    assert!(!summary.is_outdated());
    reclaim(0);
    assert!(summary.is_outdated());
    rebuild(&summary, 4096, &[1], Updates::NotSent);
    assert!(!summary.is_outdated());
    for _ in 0..=QUEUE_MAX {
        report(&summary, &[object(1)]);
    }
    assert!(summary.is_outdated());
    summary.absorb(Updates::NotSent, NOW);
    let many: Vec<u32> = (0..5000).collect();
    rebuild(&summary, 4096, &many, Updates::NotSent);
    assert!(summary.is_outdated());
    let capacity = summary.capacity_for(5000);
    assert!(capacity >= 7500, "{capacity}");
    rebuild(&summary, capacity, &many, Updates::NotSent);
    assert!(!summary.is_outdated());
    assert_eq!(summary.capacity_for(5000), capacity);
}
