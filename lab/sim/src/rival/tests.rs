//! The models count as their designs say, and memory bounds what they index.

use super::*;
use crate::disk_names::disk;
use crate::workload::{Generated, Name, Settings as Workload};

fn settings(rival: Rival, memory_bytes: u64, disk_bytes: u64) -> Settings {
    Settings {
        rival,
        memory_bytes,
        disk_bytes,
        disk: disk("hdd").unwrap(),
        view: View::Proxy,
    }
}

fn replayed(rival: Rival, memory_bytes: u64, disk_bytes: u64) -> Report {
    let mut source = Generated(Workload::new(Name::Foxy, 1, 20_000));
    replay(&mut source, &settings(rival, memory_bytes, disk_bytes)).unwrap()
}

/// Names, one after another, each of so many bytes.
struct Names<'a>(&'a [(&'a str, u64)]);

impl Source for Names<'_> {
    fn read(
        &mut self,
        each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        for (name, bytes) in self.0 {
            let _ = each(&Request {
                time_us: 0,
                client: b"",
                name: name.as_bytes(),
                bytes: Some(*bytes),
                group: b"",
                may_be_stored: true,
            });
        }
        Ok(())
    }
}

#[test]
fn a_terabyte_of_8_kib_objects_takes_squid_8_gb_and_tiger_3_and_a_half() {
    let of = |rival: Rival| rival.index_bytes(1_000_000_000_000, 8192) / 10_000_000;
    assert_eq!((of(Rival::Squid), of(Rival::Tiger)), (854, 354));
}

#[test]
fn with_room_for_all_both_hit_what_a_cache_without_bounds_hits() {
    let (squid, tiger) = (
        replayed(Rival::Squid, 1 << 30, 1 << 30),
        replayed(Rival::Tiger, 1 << 30, 1 << 30),
    );
    assert_eq!(squid.memory_hits, tiger.memory_hits);
    assert_eq!(squid.disk_hits, 0);
    assert!((squid.hit_ratio - 0.4).abs() < 0.01, "{}", squid.hit_ratio);
    assert_eq!(squid.disk.writes, 2 * squid.puts);
    for report in [&squid, &tiger] {
        let writes: u64 = report.intervals.iter().map(|it| it.writes).sum();
        assert_eq!(writes, report.disk.writes);
        assert!(report.intervals.len() > 50);
    }
    // About 60 MB in batches of 1 MiB.
    assert!(
        (50..65).contains(&tiger.disk.writes),
        "{}",
        tiger.disk.writes
    );
}

#[test]
fn memory_bounds_the_objects_that_are_indexed() {
    let squid = replayed(Rival::Squid, 70 * 1000, 1 << 30);
    assert_eq!((squid.index.objects, squid.index.bytes), (1000, 70_000));
    let tiger = replayed(Rival::Tiger, 29 * 1000, 1 << 30);
    assert_eq!((tiger.index.objects, tiger.index.bytes), (1000, 29_000));
    // No memory is left for hot objects, but while the index was smaller there was some.
    assert!(squid.memory_hits < squid.disk_hits / 10);
    assert_eq!(squid.costs.hits.seeks, 2 * squid.disk_hits);
    assert_eq!(tiger.costs.hits.seeks, tiger.disk_hits);
    assert!(squid.hit_ratio < 0.3);
}

#[test]
fn squid_evicts_what_was_not_used_for_longest_and_tiger_what_is_oldest() {
    const ASKED: &[(&str, u64)] = &[
        ("a", 100),
        ("b", 100),
        ("c", 100),
        ("d", 100),
        ("e", 100),
        ("f", 100),
        ("g", 100),
        ("h", 100),
        ("a", 100),
        ("i", 100),
        // Squid has evicted b, Tiger a.
        ("a", 100),
        ("b", 100),
    ];
    let memory = 10_000;
    let hits = |rival| {
        let report = replay(&mut Names(ASKED), &settings(rival, memory, 800)).unwrap();
        report.memory_hits + report.disk_hits
    };
    assert_eq!(hits(Rival::Squid), 2);
    // a: once before it was overwritten. Then a and b are written again, and b was overwritten when
    // a was.
    assert_eq!(hits(Rival::Tiger), 1);
}

#[test]
fn an_object_that_was_written_again_outlives_its_first_place_in_the_log() {
    const ASKED: &[(&str, u64)] = &[("a", 100), ("large", 901), ("a", 100)];
    let report = replay(&mut Names(ASKED), &settings(Rival::Tiger, 10_000, 800)).unwrap();
    assert_eq!((report.objects_too_large, report.memory_hits), (1, 1));
}

#[test]
fn tiger_loses_an_object_when_the_head_overwrites_the_beginning_of_its_record() {
    // As many as the log has room for.
    const EIGHT: [(&str, u64); 8] = [
        ("a", 100),
        ("b", 100),
        ("c", 100),
        ("d", 100),
        ("e", 100),
        ("f", 100),
        ("g", 100),
        ("h", 100),
    ];
    let hits = |then: &[(&str, u64)]| {
        let asked = [&EIGHT[..], then].concat();
        let report = replay(&mut Names(&asked), &settings(Rival::Tiger, 10_000, 800)).unwrap();
        report.memory_hits + report.disk_hits
    };
    assert_eq!(hits(&EIGHT), 8);
    assert_eq!(hits(&[("small", 1), ("b", 100)]), 1);
    assert_eq!(hits(&[("small", 1), ("a", 100)]), 0);
}

#[test]
fn sums_of_the_largest_sizes_do_not_wrap() {
    const LARGE: u64 = u64::MAX / 8;
    const ASKED: &[(&str, u64)] = &[("a", LARGE); 20];
    for rival in [Rival::Squid, Rival::Tiger] {
        let report = replay(&mut Names(ASKED), &settings(rival, 1 << 30, u64::MAX)).unwrap();
        assert_eq!(report.disk_hits, 19, "{rival:?}");
        assert_eq!(
            (report.hit_bytes, report.disk.read_bytes),
            (u64::MAX, u64::MAX)
        );
    }
}
