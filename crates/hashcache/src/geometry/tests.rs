//! Sizes and places: what fits, what does not overlap, how large the index is.

use super::*;
use crate::config::{PolicyKind, Rows};
use crate::policy::{LogLru, SetMemLru};

fn plan(size: u64) -> Result<Geometry, OpenError> {
    Geometry::plan(&Config::new("x"), size)
}

#[test]
fn a_terabyte_takes_less_than_700_mb_of_index() {
    let geometry = plan(1_000_000_000_000).unwrap();
    let index = geometry
        .index(IndexPolicy::from_config(&Config::new("x")))
        .bytes();
    assert!(index < 700_000_000, "{index}");
    assert_eq!(geometry.segment_bytes, 64 << 20);
    assert_eq!(geometry.unit_bytes, 512);
}

#[test]
fn a_terabyte_takes_less_than_530_mb_with_log_lru_and_what_waits_less_than_a_bit_a_slot() {
    let config = Config {
        policy: PolicyKind::LogLru,
        ..Config::new("x")
    };
    let geometry = Geometry::plan(&config, 1_000_000_000_000).unwrap();
    let index = geometry.index(IndexPolicy::from_config(&config));
    assert!(index.bytes() < 530_000_000, "{}", index.bytes());
    let slots = index.rows() * 8;
    assert!((31 * slots / 8..32 * slots / 8).contains(&index.bytes()));
    let grouped = Config {
        grouped: true,
        ..config
    };
    let index = geometry.index(IndexPolicy::from_config(&grouped));
    assert!((35 * slots / 8..36 * slots / 8).contains(&index.bytes()));
}

#[test]
fn the_code_on_disk_tells_every_form_and_areas_have_room_for_rows_of_56_bytes() {
    for kind in [PolicyKind::Log, PolicyKind::LogLru] {
        for (grouped, readmission) in [(false, false), (false, true), (true, false), (true, true)] {
            let config = Config {
                policy: kind,
                grouped,
                readmission,
                ..Config::new("x")
            };
            let policy = IndexPolicy::from_config(&config);
            assert_eq!(policy.grouped, grouped);
            assert_eq!(policy.ranked, readmission && kind == PolicyKind::Log);
            let geometry = Geometry::plan(&config, 1 << 30).unwrap();
            assert!(geometry.index(policy).saved_row_bytes() <= 56);
            assert_eq!(IndexPolicy::from_code(policy.code()), Some(policy));
        }
    }
    let largest = IndexShape::largest(Family::Log, 8, 1);
    assert_eq!(largest.saved_row_bytes(), 56);
}

#[test]
fn the_code_of_an_old_form_tells_the_policy_and_no_form_of_this_build_has_it() {
    for (code, rows, grouped, ranked) in [
        (1, Rows::Two, false, false),
        (3, Rows::One, false, false),
        (129, Rows::Two, true, false),
        (131, Rows::One, true, false),
        (8, Rows::Two, false, false),
        (9, Rows::One, false, false),
        (9 + 64, Rows::One, false, true),
        (8 + 128, Rows::Two, true, false),
        (10 + 128, Rows::Two, true, false),
        (11 + 64 + 128, Rows::One, true, true),
        (8 + 64 + 128, Rows::Two, true, true),
    ] {
        let policy = IndexPolicy::from_code(code).unwrap();
        assert_eq!(
            (policy.kind, policy.rows, policy.grouped, policy.ranked),
            (PolicyKind::Log, rows, grouped, ranked)
        );
        assert_ne!(policy.code(), code);
    }
    assert_eq!(IndexPolicy::from_code(0), None);
}

#[test]
fn what_is_told_of_the_index_is_what_its_parts_take() {
    for size in [1 << 30, 20 << 30, 100 << 30_u64] {
        let planned = |policy, grouped| {
            let config = Config {
                policy,
                grouped,
                ..Config::new("x")
            };
            let geometry = Geometry::plan(&config, size).unwrap();
            (geometry, IndexPolicy::from_config(&config))
        };
        let is_near = |told: u64, shard: u64| {
            // Not counted: a word of padding for each array.
            let taken = shard * SHARDS as u64;
            let off = told.abs_diff(taken);
            assert!(off <= 80 * SHARDS as u64, "{size}: {told}, {taken}");
        };
        for grouped in [false, true] {
            let (geometry, policy) = planned(PolicyKind::LogLru, grouped);
            let index = geometry.index(policy);
            let (held, unsaved_max) = (policy.positions_held(), geometry.unsaved_max(policy));
            let capacity = geometry.capacity();
            let log = LogLru::new(grouped, index.shard_rows, capacity, held, unsaved_max);
            is_near(index.bytes(), log.bytes());
        }
        let (geometry, policy) = planned(PolicyKind::SetMemLru, false);
        let here = geometry.sets / SHARDS as u64;
        let sets = SetMemLru::new(geometry.sets, 0, here, geometry.held_sets(policy));
        is_near(geometry.index(policy).bytes(), sets.bytes());
    }
}

#[test]
fn beyond_two_tebibytes_units_grow() {
    let unit = |tib: u64| plan(tib << 40).unwrap().unit_bytes;
    assert_eq!(
        [unit(1), unit(2), unit(4), unit(8)],
        [512, 1024, 2048, 4096]
    );
}

#[test]
fn areas_do_not_overlap_and_end_within_the_device() {
    for policy in PolicyKind::ALL {
        for size in [64 << 20, 1 << 30, 100 << 30, 3 << 40u64] {
            let config = Config {
                policy,
                ..Config::new("x")
            };
            let g = Geometry::plan(&config, size).unwrap();
            assert!(g.journal_offset + g.journal_bytes <= g.checkpoint_offset);
            assert!(g.checkpoint_offset + 2 * g.checkpoint_bytes <= g.table_offset);
            assert!(g.table_offset + g.sets * g.set_bytes() <= g.log_offset);
            assert!(g.log_offset + g.segments * u64::from(g.segment_bytes) <= size);
            assert!(g.capacity() <= 1 << 32);
            assert!(g.is_sound());
        }
    }
}

#[test]
fn settings_that_cannot_be_are_rounded_to_ones_that_can() {
    for (segment, block, object) in [(0, 0, 0), (1, 5000, 1), (u32::MAX, u32::MAX, u32::MAX)] {
        let config = Config {
            segment_bytes: Some(segment),
            block_bytes: Some(block),
            object_bytes: object,
            policy: PolicyKind::Set,
            ..Config::new("x")
        };
        assert!(Geometry::plan(&config, 4 << 30).unwrap().is_sound());
    }
}

#[test]
fn a_layout_that_nobody_could_have_made_is_refused() {
    let good = plan(1 << 30).unwrap();
    assert!(good.is_sound());
    let bad: [fn(&mut Geometry); 9] = [
        |g| g.unit_bytes = 0,
        |g| g.unit_bytes = 1 << 30,
        |g| g.segment_bytes = 0,
        |g| g.segments = u64::MAX,
        |g| g.checkpoint_bytes = u64::MAX,
        |g| g.checkpoint_bytes = 0,
        |g| g.journal_offset = 0,
        |g| g.log_offset = g.table_offset - 4096,
        |g| g.device_bytes = 1,
    ];
    for change in bad {
        let mut geometry = good.clone();
        change(&mut geometry);
        assert!(!geometry.is_sound(), "{geometry:?}");
    }
}

#[test]
fn a_device_too_small_for_a_log_is_refused_with_the_size_it_needs() {
    for policy in PolicyKind::ALL {
        for block_bytes in [2 << 10, 8 << 10, 1 << 20].map(Some) {
            let config = Config {
                policy,
                block_bytes,
                ..Config::new("x")
            };
            let mut size = 1 << 20;
            // A larger store takes a larger checkpoint: a few steps lead to a size that will do.
            for _ in 0..10 {
                match Geometry::plan(&config, size) {
                    Ok(_) => break,
                    Err(OpenError::TooSmall { needed_bytes, .. }) => {
                        assert!(needed_bytes > size, "{policy:?} {size}");
                        size = needed_bytes;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(Geometry::plan(&config, size).is_ok(), "{policy:?} {size}");
        }
    }
}

#[test]
fn every_size_either_makes_a_store_that_can_be_opened_again_or_is_refused() {
    // Around each power of two, where units, segments and positions change.
    let around = |power: u32| [-1_i64, 0, 1].map(|by| (1_u64 << power).wrapping_add_signed(by));
    let sizes = (20..64).flat_map(around).chain([u64::MAX]);
    for size in sizes {
        for policy in PolicyKind::ALL {
            let config = Config {
                policy,
                // The largest and the smallest slots there are.
                block_bytes: Some(if size % 2 == 0 { 1 << 20 } else { 2 << 10 }),
                ..Config::new("x")
            };
            match Geometry::plan(&config, size) {
                Ok(geometry) => assert!(geometry.is_sound(), "{policy:?}: {size}"),
                Err(OpenError::TooSmall { needed_bytes, .. }) => assert!(size < needed_bytes),
                Err(OpenError::TooLarge { most_bytes, .. }) => {
                    assert!(size > most_bytes);
                    assert!(Geometry::plan(&config, most_bytes).unwrap().is_sound());
                }
                Err(other) => panic!("{policy:?}: {size}: {other}"),
            }
        }
    }
}

#[test]
fn the_disk_table_and_the_log_are_full_at_about_as_many_objects() {
    for (object_bytes, block_bytes) in [
        (4 << 10, 8 << 10),
        (8 << 10, 8 << 10),
        (100 << 10, 8 << 10),
        (8 << 10, 2 << 10),
    ] {
        let config = Config {
            policy: PolicyKind::Set,
            object_bytes,
            block_bytes: Some(block_bytes),
            ..Config::new("x")
        };
        let geometry = Geometry::plan(&config, 100 << 30).unwrap();
        let (mean, block) = (f64::from(object_bytes), f64::from(block_bytes));
        let by_table = geometry.slots() as f64 / 1.1;
        let log_bytes = geometry.segments * u64::from(geometry.segment_bytes);
        let by_log = log_bytes as f64 / (mean * mean / (mean + block));
        let ratio = by_table / by_log;
        assert!((0.98..1.02).contains(&ratio), "{object_bytes}: {ratio}");
    }
}
