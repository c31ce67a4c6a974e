//! Objects that begin empty and are filled in, and puts that were given up.

use std::time::{Duration, Instant};

use hashcache::{Cache, Config, Hit, Keep, PolicyKind, Put, PutError, ReadError};

use crate::support::{EVERY, MIB, Value, copy, get, memory, open, quiet, read};

const PAGE: usize = hashcache::PAGE;

fn value(length: usize) -> Value {
    Value::new(1, length)
}

/// An object of this value without content.
fn begun(cache: &Cache, value: Value) -> Hit {
    let put = Put {
        length: Some(value.length as u64),
        span_pages: 1,
        ..Put::metadata(value.metadata())
    };
    cache.intend(b"name").unwrap().incomplete(put).unwrap()
}

/// Fills in these bytes of it.
fn fill(hit: &Hit, value: Value, first: usize, end: usize) {
    let mut filler = hit.filler(first as u64).unwrap();
    filler.write(&value.content(b"name")[first..end]).unwrap();
    filler.commit().unwrap();
}

#[test]
fn an_object_that_began_empty_is_whole_when_all_has_been_filled_in_and_after_a_kill() {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    let value = value(5 * PAGE + 100);
    let total = value.length as u64;
    let hit = begun(&cache, value);
    assert!(!hit.is_complete());
    assert_eq!(hit.holes(0..total), [0..total]);
    // The last span, which is short, first; then the middle, then the rest.
    fill(&hit, value, 5 * PAGE, value.length);
    fill(&hit, value, 2 * PAGE, 3 * PAGE);
    let page = PAGE as u64;
    assert_eq!(hit.holes(0..total), [0..2 * page, 3 * page..5 * page]);
    fill(&hit, value, 0, 2 * PAGE);
    fill(&hit, value, 3 * PAGE, 5 * PAGE);
    assert_eq!(hit.holes(0..total), []);
    assert_eq!(read(&hit, b"name"), Some(value));
    assert!(cache.flush().wait());
    drop(cache);
    let cache = open(quiet(copy(device.to_bytes()), PolicyKind::Log));
    assert_eq!(get(&cache, b"name"), Some(value));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what took hours must not")]
fn a_length_that_is_only_announced_costs_few_spans_and_few_holes() {
    // As many lookups as 2^50 bytes have spans take hours; those that are made take milliseconds.
    let (begun_at, most) = (Instant::now(), Duration::from_secs(60));
    for policy in EVERY {
        for announced in [1 << 42, 1 << 50, u64::MAX] {
            let cache = open(quiet(memory(64 * MIB), policy));
            // So that some sets are held and others are not.
            for put in 0..500 {
                let value = Value::new(put, 100);
                value.store(&cache, format!("{put}").as_bytes()).unwrap();
            }
            let put = Put {
                length: Some(announced),
                span_pages: 1,
                ..Put::metadata("m")
            };
            let hit = cache.intend(b"name").unwrap().incomplete(put).unwrap();
            hit.fill(0, &[1; PAGE]).unwrap();
            hit.fill(PAGE as u64, &[1; PAGE]).unwrap();
            assert!(cache.flush().wait());
            for from in [0, announced / 2 + 1] {
                let holes = hit.holes(from..u64::MAX);
                assert!(holes.len() <= 4097, "{policy:?} {}", holes.len());
                assert!(holes.iter().all(|hole| hole.start < hole.end));
                assert!(holes.is_sorted_by(|one, other| one.end < other.start));
                assert!(holes.last().is_none_or(|hole| hole.end <= announced));
            }
            // Stored content is never reported as missing.
            assert!(hit.holes(0..2 * PAGE as u64).is_empty(), "{policy:?}");
            assert!(begun_at.elapsed() < most, "{policy:?} {announced}");
        }
    }
}

#[test]
fn only_policies_with_an_index_know_what_an_incomplete_object_lacks() {
    for policy in EVERY {
        let cache = open(quiet(memory(64 * MIB), policy));
        let value = value(5 * PAGE);
        let hit = begun(&cache, value);
        fill(&hit, value, 0, 3 * PAGE);
        assert!(cache.flush().wait());
        let total = value.length as u64;
        let has_index = matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
        let is_known = hit.is_known(0..total);
        assert!(is_known || !has_index, "{policy:?}");
        // Where memory knows all, it knows the hole.
        let holes = hit.holes(0..total);
        assert_eq!(is_known, holes == [3 * PAGE as u64..total], "{policy:?}");
    }
}

#[test]
fn a_span_behind_the_end_is_refused() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let value = value(PAGE + 100);
    let hit = begun(&cache, value);
    let behind = [1, 2, 5, 1 << 20, 1 << 47];
    for at in behind.map(|spans| (spans + 1) * PAGE as u64) {
        for length in [0, 1, 100, PAGE] {
            let refused = hit.fill(at, &vec![0; length]);
            assert!(
                matches!(refused, Err(PutError::Length { announced: 0, .. })),
                "{refused:?} at {at}"
            );
        }
    }
    assert!(hit.fill(u64::MAX, b"").is_err());
    assert!(hit.fill(0, &value.content(b"name")[..PAGE]).is_ok());
}

#[test]
fn a_filler_stores_whole_spans_only() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let value = value(4 * PAGE);
    let hit = begun(&cache, value);
    fill(&hit, value, 0, PAGE + PAGE / 2);
    let (page, total) = (PAGE as u64, value.length as u64);
    assert_eq!(hit.holes(0..total), [page..total]);
    let refused = hit.filler(page + 1).err();
    assert!(matches!(refused, Some(PutError::Length { .. })));
    // A filler that is dropped has stored what was whole.
    let mut dropped = hit.filler(page).unwrap();
    let content = value.content(b"name");
    dropped.write(&content[PAGE..2 * PAGE + 1]).unwrap();
    drop(dropped);
    assert_eq!(hit.holes(0..total), [2 * page..total]);
}

#[test]
fn a_filler_that_comes_late_adds_nothing_to_the_object_that_took_the_place() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let old = value(3 * PAGE);
    let hit = begun(&cache, old);
    let mut late = hit.filler(0).unwrap();
    let new = Value::new(2, 3 * PAGE);
    let put = Put {
        length: Some(new.length as u64),
        span_pages: 1,
        ..Put::metadata(new.metadata())
    };
    let next = cache.intend(b"name").unwrap().incomplete(put).unwrap();
    late.write(&old.content(b"name")).unwrap();
    drop(late);
    let total = new.length as u64;
    assert_eq!(next.holes(0..total), [0..total]);
    let found = cache.get(b"name").wait().unwrap();
    assert_eq!(found.version(), next.version());
    let nothing = found.reader(0..total).read_to_vec();
    assert_eq!(nothing, Err(ReadError::Missing { offset: 0 }));
}

#[test]
fn a_begun_object_that_was_overtaken_never_comes_to_be() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let intent = cache.intend(b"name").unwrap();
    let newer = Value::new(2, 10);
    newer.store(&cache, b"name").unwrap();
    let put = Put {
        length: Some(PAGE as u64),
        ..Put::metadata("m")
    };
    let overtaken = intent.incomplete(put).err();
    assert!(matches!(overtaken, Some(PutError::Superseded)));
    assert_eq!(get(&cache, b"name"), Some(newer));
}

/// A put of `value` with this wish, given up after `written` bytes.
fn given_up(keep: Keep, value: Value, written: usize) -> (Cache, bool) {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let put = Put {
        keep,
        length: Some(value.length as u64),
        span_pages: 1,
        ..Put::metadata(value.metadata())
    };
    let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
    writer.write(&value.content(b"name")[..written]).unwrap();
    if keep == Keep::AtEnd {
        assert!(cache.get(b"name").wait().is_none(), "found before its end");
    }
    let kept = writer.keep();
    (cache, kept)
}

#[test]
fn what_came_of_a_put_that_is_kept_at_its_end_is_found_only_then() {
    let value = value(4 * PAGE);
    let (cache, kept) = given_up(Keep::AtEnd, value, 2 * PAGE + 10);
    assert!(kept);
    let hit = cache.get(b"name").wait().unwrap();
    assert!(!hit.is_complete());
    let (page, total) = (PAGE as u64, value.length as u64);
    assert_eq!(hit.holes(0..total), [2 * page..total]);
    let there = hit.reader(0..2 * page).read_to_vec().unwrap();
    assert!(there == value.content(b"name")[..2 * PAGE]);
    fill(&hit, value, 2 * PAGE, value.length);
    assert_eq!(read(&hit, b"name"), Some(value));
}

#[test]
fn what_came_before_a_put_was_bypassed_is_kept() {
    for written in [10, PAGE, 2 * PAGE + 10] {
        let value = value(4 * PAGE);
        let cache = open(Config {
            hot_bytes_max: 0,
            ..quiet(memory(64 * MIB), PolicyKind::Log)
        });
        let at_rest = cache.stats().memory_used_bytes;
        let put = Put {
            keep: Keep::AtEnd,
            length: Some(value.length as u64),
            span_pages: 1,
            ..Put::metadata(value.metadata())
        };
        let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
        let content = value.content(b"name");
        writer.write(&content[..written]).unwrap();
        writer.bypass();
        // Of what waits for the disk, all is on the books.
        let used = cache.stats().memory_used_bytes - at_rest;
        assert!(used >= written.min(PAGE) as u64, "{used} {written}");
        // The object is found while the rest is still being written, and stays when the write is
        // given up.
        let hit = cache.get(b"name").wait().unwrap();
        writer.write(&content[written..]).unwrap();
        assert_eq!(writer.commit(), Err(PutError::Bypassed));
        assert!(cache.flush().wait());
        let kept = (written / PAGE * PAGE) as u64;
        let total = value.length as u64;
        assert_eq!(hit.holes(0..total), [kept..total], "{written}");
        let used = cache.stats().memory_used_bytes;
        assert!(used <= at_rest + (64 << 10), "{used} {at_rest}");
        fill(&hit, value, usize::try_from(kept).unwrap(), value.length);
        assert_eq!(get(&cache, b"name"), Some(value));
    }
}

#[test]
fn nothing_is_kept_of_a_put_that_must_be_whole_or_of_which_nothing_came() {
    for (keep, written) in [(Keep::Whole, 3 * PAGE), (Keep::AtEnd, 0)] {
        let (cache, kept) = given_up(keep, value(4 * PAGE), written);
        assert!(!kept, "{keep:?}");
        assert!(cache.get(b"name").wait().is_none(), "{keep:?}");
    }
}
