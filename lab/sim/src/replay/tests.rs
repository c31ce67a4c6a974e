//! Replays of generated requests: they repeat exactly, and hits stand as a cache without bounds has
//! them.

use std::ops::ControlFlow;

use super::*;
use crate::disk_names::disk;
use crate::intervals::Interval;
use crate::stats;

/// Requests for 3,000 objects, of which the first ones are popular; some are large, some may not be
/// stored, and one has a name that no store takes.
struct Made {
    requests: u64,
}

impl Source for Made {
    fn read(
        &mut self,
        each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let mut random = fastrand::Rng::with_seed(7);
        for n in 0..self.requests {
            let drawn = [(); 3].map(|()| random.u64(..3000));
            let object = drawn.into_iter().min().unwrap();
            let mut name = format!("http://a.test/{object}.gif");
            if object == 77 {
                name = "x".repeat(5000);
            }
            let bytes = match object % 100 {
                13 => 300_000,
                14 => 70_000,
                15 => 2_000_000,
                rest => 600 + rest * 150,
            };
            let request = Request {
                time_us: n * 100_000,
                client: b"me",
                name: name.as_bytes(),
                bytes: (n % 50 != 0).then_some(bytes),
                group: b"",
                may_be_stored: object % 40 != 3,
            };
            if each(&request).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn settings(policy: PolicyKind) -> Settings {
    Settings {
        policy,
        rows: Rows::Two,
        grouped: false,
        held_share: None,
        readmission: false,
        memory_bytes: 2 << 20,
        disk_bytes: 256 << 20,
        disk: disk("hdd").unwrap(),
        object_bytes: 8 << 10,
        block_bytes: 8 << 10,
        view: View::Proxy,
        seed: 1,
    }
}

fn json(settings: &Settings, requests: u64) -> String {
    let report = replay(&mut Made { requests }, settings).unwrap();
    serde_json::to_string(&report).unwrap()
}

#[test]
fn equal_seeds_give_equal_bytes_with_every_policy() {
    for policy in PolicyKind::ALL {
        let settings = Settings {
            disk_bytes: 96 << 20,
            ..settings(policy)
        };
        assert_eq!(json(&settings, 8_000), json(&settings, 8_000), "{policy:?}");
    }
}

#[test]
fn pages_are_kept_together_in_the_same_way_each_time() {
    let requests = 8_000;
    let settings = Settings {
        grouped: true,
        readmission: true,
        disk_bytes: 96 << 20,
        memory_bytes: 1 << 20,
        ..settings(PolicyKind::Log)
    };
    assert_eq!(json(&settings, requests), json(&settings, requests));
}

#[test]
fn a_store_that_has_room_for_all_has_the_hits_of_a_cache_without_bounds() {
    let requests = 6_000;
    let bound = stats::count(&mut Made { requests }, View::Proxy).unwrap();
    let report = replay(&mut Made { requests }, &settings(PolicyKind::Log)).unwrap();
    assert_eq!(report.requests, bound.requests);
    assert_eq!(report.without_size, bound.without_size);
    assert_eq!(
        (report.uncacheable, report.bytes),
        (bound.uncacheable, bound.bytes)
    );
    // The name that is too long is never stored.
    assert!(report.names_too_long > 1);
    let hits = report.memory_hits + report.disk_hits;
    assert_eq!(hits + report.names_too_long - 1, bound.hits);
    assert!(report.memory_hits > 0 && report.disk_hits > 0);
    let sum = |figure: fn(&Interval) -> u64| report.intervals.iter().map(figure).sum::<u64>();
    assert_eq!(
        (sum(|it| it.requests), sum(|it| it.hits)),
        (report.requests, hits)
    );
    let of_disk = (report.disk.reads, report.disk.writes);
    assert_eq!((sum(|it| it.reads), sum(|it| it.writes)), of_disk);
    assert_eq!(sum(|it| it.hit_bytes), report.hit_bytes);
    // The plan with memory is near, that without it is too slow.
    let plan = report.plan.unwrap();
    let to_planned = report.requests_per_s / plan.with_memory_requests_per_s.unwrap();
    assert!((0.8..1.25).contains(&to_planned), "{plan:?}");
    assert!(
        plan.without_memory_requests_per_s < report.requests_per_s,
        "{plan:?}"
    );
    // Hits come when there is something to hit.
    let (first, last) = (report.intervals[0], report.intervals.last().unwrap());
    let ratio = |it: &Interval| share(it.hits, it.requests);
    assert!(ratio(&first) < ratio(last), "{first:?} {last:?}");
    assert_eq!(
        report.puts + hits + report.names_too_long + report.uncacheable,
        report.requests
    );
}

#[test]
fn objects_larger_than_an_eighth_of_the_store_are_counted_and_not_put() {
    let settings = Settings {
        disk_bytes: 96 << 20,
        ..settings(PolicyKind::Log)
    };
    struct Large;
    impl Source for Large {
        fn read(
            &mut self,
            each: &mut dyn FnMut(&Request<'_>) -> ControlFlow<()>,
        ) -> Result<(), SourceError> {
            for bytes in [12 << 20, (12 << 20) + 1, 12 << 20] {
                let name = bytes.to_string();
                let _ = each(&Request {
                    time_us: 0,
                    client: b"",
                    name: name.as_bytes(),
                    bytes: Some(bytes),
                    group: b"",
                    may_be_stored: true,
                });
            }
            Ok(())
        }
    }
    let report = replay(&mut Large, &settings).unwrap();
    assert_eq!((report.puts, report.objects_too_large), (1, 1));
    assert_eq!(report.disk_hits + report.memory_hits, 1);
}

#[test]
fn an_index_larger_than_the_memory_is_refused_with_both_sizes() {
    let settings = Settings {
        memory_bytes: 1000,
        ..settings(PolicyKind::Log)
    };
    let error = replay(&mut Made { requests: 1 }, &settings).unwrap_err();
    assert!(
        matches!(
            error,
            ReplayError::Memory {
                memory_bytes: 1000,
                ..
            }
        ),
        "{error}"
    );
}
