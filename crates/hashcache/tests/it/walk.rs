//! Walks and peeks: they find what is stored and leave no trace.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashcache::device::Device;
use hashcache::{Ban, Cache, Config, Lookup, Put, Stats, Walk};

use super::support::{Form, KIB, MIB, content, copy, forms, memory, open, quiet};

/// Enough for all of them to lie in several segments or sets, and in any store of the tests.
const COUNT: u64 = 300;

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn length(n: u64) -> usize {
    match n % 50 {
        7 => 100 * KIB,
        n => 300 + 90 * n as usize,
    }
}

fn metadata(n: u64) -> Vec<u8> {
    format!("metadata of {n}").into_bytes()
}

fn put(cache: &Cache, n: u64) {
    let put = Put::metadata(metadata(n));
    let content = content(&name(n), n, length(n));
    cache.put(&name(n), put, &content).unwrap();
}

fn store(device: Arc<dyn Device>, form: Form) -> Cache {
    open(Config {
        hot_bytes_max: 0,
        ..quiet(device, form)
    })
}

/// The names that a walk gives out; it must give out nothing else than was put.
fn names(walk: Walk) -> BTreeSet<u64> {
    let mut names = BTreeSet::new();
    for object in walk.flat_map(|step| step.objects) {
        let n = number(&object.name);
        assert_eq!(object.metadata, metadata(n));
        assert_eq!(object.content_len, Some(length(n) as u64));
        assert!(object.is_complete);
        names.insert(n);
    }
    names
}

fn number(name: &[u8]) -> u64 {
    let text = std::str::from_utf8(name).unwrap();
    text.rsplit('/').next().unwrap().parse().unwrap()
}

/// The stored objects, found by lookups.
fn stored(cache: &Cache) -> BTreeSet<u64> {
    let is_stored = |n: &u64| cache.peek(&name(*n)).wait().is_some();
    (0..COUNT).filter(is_stored).collect()
}

#[test]
fn a_walk_gives_out_what_is_stored_pending_or_on_disk_and_nothing_else() {
    for form in forms() {
        let cache = store(memory(64 * MIB), form);
        (0..COUNT).for_each(|n| put(&cache, n));
        // Meanwhile some may be written, and others evicted by that.
        let (walked, after) = (names(cache.walk()), stored(&cache));
        assert!(after.is_subset(&walked), "{form:?}, pending");
        cache.flush().wait();
        let kept = stored(&cache);
        assert!(kept.len() as u64 > COUNT / 2, "{form:?}: {}", kept.len());
        assert_eq!(names(cache.walk()), kept, "{form:?}, on disk");
        for n in 0..20 {
            let _ = cache.remove(&name(n)).wait();
        }
        cache
            .remove_matching(&[Ban::prefix(b"http://example.org/3")])
            .wait()
            .unwrap();
        let left = names(cache.walk());
        assert_eq!(left, stored(&cache), "{form:?}, after removes");
        assert!(left.iter().all(|n| *n >= 20), "{form:?}");
        let hidden = |n: &u64| n.to_string().starts_with('3');
        assert!(!left.iter().any(hidden), "{form:?}");
    }
}

#[test]
fn a_walk_goes_on_from_each_of_its_positions() {
    for form in forms() {
        let cache = store(memory(64 * MIB), form);
        (0..COUNT / 2).for_each(|n| put(&cache, n));
        cache.flush().wait();
        (COUNT / 2..COUNT).for_each(|n| put(&cache, n));
        cache.cut_batch().wait();
        let whole = names(cache.walk());
        let mut found = BTreeSet::new();
        let mut position = cache.walk().position();
        // Each step by a walk of its own.
        loop {
            let mut walk = cache.walk_from(&position).unwrap();
            assert_eq!(walk.position(), position, "{form:?}");
            let Some(step) = walk.next() else { break };
            found.extend(step.objects.iter().map(|it| number(&it.name)));
            position = walk.position();
        }
        assert_eq!(found, whole, "{form:?}");
        assert!(cache.walk_from(&position).unwrap().next().is_none());
    }
}

#[test]
fn positions_that_no_walk_gave_are_refused_or_harmless() {
    for form in forms() {
        let cache = store(memory(64 * MIB), form);
        (0..COUNT).for_each(|n| put(&cache, n));
        cache.flush().wait();
        for position in [
            "",
            "0",
            "0.log",
            "1.over",
            "0.pending.65",
            "0.pending.18446744073709551615",
            "0.set.18446744073709551615",
            "0.log.18446744073709551615.0.0.0",
            "0.log.0.18446744073709551615.0.0",
            "0.log.0.0.18446744073709551615.0",
            "0.log.0.0.0.0.0",
            "0.log.-1.0.0.0",
            "x.over",
        ] {
            assert!(cache.walk_from(position).is_none(), "{form:?}: {position}");
        }
        if let Some(walk) = cache.walk_from("0.log.0.0.1.18446744073709551615") {
            assert!(names(walk).len() as u64 <= COUNT);
        }
    }
}

/// The counts that lookups change.
fn traces(stats: &Stats) -> [u64; 8] {
    [
        stats.hot_hits,
        stats.pending_hits,
        stats.disk_hits,
        stats.misses,
        stats.joined_reads,
        stats.hot_bytes,
        stats.false_reads,
        stats.puts,
    ]
}

#[test]
fn a_peek_finds_what_a_lookup_finds_and_leaves_no_trace() {
    for form in forms() {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone() as Arc<dyn Device>, form));
        (0..COUNT).for_each(|n| put(&cache, n));
        let peek_all = |cache: &Cache| -> Vec<Option<u64>> {
            let version = |n| Some(cache.peek(&name(n)).wait()?.version().to_u64());
            (0..COUNT + 5).map(version).collect()
        };
        // The first may still be pending.
        assert!(cache.peek(&name(0)).wait().is_some(), "{form:?}");
        cache.flush().wait();
        let before = traces(&cache.stats());
        let peeked = peek_all(&cache);
        assert_eq!(traces(&cache.stats()), before, "{form:?}, written");
        let found = |n| Some(cache.get(&name(n)).wait()?.version().to_u64());
        let found: Vec<_> = (0..COUNT + 5).map(found).collect();
        assert_eq!(peeked, found, "{form:?}");
        // After a restart nothing is hot: the disk is asked, and nothing becomes hot.
        cache.close();
        let cache = open(quiet(copy(device.to_bytes()), form));
        let before = traces(&cache.stats());
        let peeked = peek_all(&cache);
        assert_eq!(traces(&cache.stats()), before, "{form:?}, opened");
        let found = peeked.iter().filter(|it| it.is_some()).count();
        assert!(found as u64 > COUNT / 2, "{form:?}: {found}");
        assert!(matches!(cache.peek(b""), Lookup::Miss));
    }
}

/// Replaced often and removed, in an index that is too small: entries of older versions stay in it.
#[test]
fn a_walk_gives_out_each_name_once_as_a_lookup_finds_it() {
    for form in forms() {
        let config = |device| Config {
            hot_bytes_max: 0,
            object_bytes: 8 << 10,
            ..quiet(device, form)
        };
        let device = memory(24 * MIB);
        let cache = open(config(device.clone()));
        let put = |cache: &Cache, n: u64, version: u64| {
            let put = Put::metadata(format!("{version}").into_bytes());
            cache
                .put(&name(n), put, &content(&name(n), version, 1_500))
                .unwrap();
            if n % 50 == 49 {
                assert!(cache.flush().wait());
            }
        };
        (0..800).for_each(|n| put(&cache, n, 1));
        (0..400).for_each(|n| put(&cache, n, 2));
        assert!(cache.flush().wait());
        for n in (0..800).step_by(4) {
            cache.remove(&name(n)).wait().unwrap();
        }
        (1_000..1_800).for_each(|n| put(&cache, n, 3));
        assert!(cache.flush().wait());
        let right = |cache: &Cache| {
            let mut seen = BTreeSet::new();
            for object in cache.walk().flat_map(|step| step.objects) {
                let found = cache.get(&object.name).wait();
                let found = found.map(|hit| hit.metadata().clone());
                assert_eq!(found, Some(object.metadata), "{form:?} {:?}", object.name);
                assert!(seen.insert(object.name), "{form:?}: a name twice");
            }
            assert!(seen.len() > 700, "{form:?}: {}", seen.len());
        };
        right(&cache);
        cache.close();
        right(&open(config(device)));
    }
}
