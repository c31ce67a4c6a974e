//! Caches opened with another policy than the last time: what one wrote another must not misread.

use hashcache::{Cache, Config, OpenError, PolicyKind, Rows};

use super::support::{MIB, Value, copy, get, memory, open, quiet, rounds};

const OF_SETS: [PolicyKind; 3] = [PolicyKind::Set, PolicyKind::SetMem, PolicyKind::SetMemLru];

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn put_all(cache: &Cache, numbers: std::ops::Range<u64>) {
    for put in numbers {
        Value::new(put, 3_000).store(cache, &name(put)).unwrap();
    }
}

#[test]
fn a_cache_made_with_one_policy_opens_with_another_of_its_family() {
    let pairs = OF_SETS.map(|made| OF_SETS.map(|opened| (made, opened)));
    for (made, opened) in pairs.into_iter().flatten() {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), made));
        put_all(&cache, 0..100);
        cache.close();
        let cache = open(quiet(device, opened));
        let found = (0..100).filter(|put| get(&cache, &name(*put)).is_some());
        // Now and then two names of a set have equal tags.
        assert!(found.count() >= 95, "{made:?} then {opened:?}");
    }
}

#[test]
fn a_log_may_change_the_rows_of_its_index() {
    let device = memory(64 * MIB);
    let with = |rows| Config {
        rows,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    for (round, rows) in (0..).zip([Rows::Two, Rows::One, Rows::Two]) {
        let cache = open(with(rows));
        let known = round * 100;
        let found = (0..known).filter(|put| get(&cache, &name(*put)).is_some());
        // Tags of the one row are shorter, and what is full in it is put out.
        assert!(found.count() as u64 * 100 >= known * 97, "{rows:?}");
        put_all(&cache, known..known + 100);
        cache.close();
    }
}

#[test]
fn other_families_and_other_sets_are_refused() {
    for (made, opened) in [
        (PolicyKind::Log, PolicyKind::SetMem),
        (PolicyKind::Basic, PolicyKind::Set),
        (PolicyKind::SetMem, PolicyKind::Basic),
    ] {
        let device = memory(64 * MIB);
        open(quiet(device.clone(), made)).close();
        let refused = Cache::open(quiet(device, opened)).err();
        let field = matches!(
            refused,
            Some(OpenError::Geometry {
                field: "policy",
                ..
            })
        );
        assert!(field, "{made:?} then {opened:?}: {refused:?}");
    }
}

/// Policies in turn, some runs closed in order, some killed: no version but the last is ever found.
#[test]
fn whoever_wrote_last_no_older_version_comes_back() {
    for seed in 0..6 * rounds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut device = memory(16 * MIB);
        let mut last = vec![None; 300];
        for round in 0..8 {
            let policy = OF_SETS[random.usize(..3)];
            let cache = open(quiet(device.clone(), policy));
            for put in 0..random.u64(1..400) {
                let n = random.usize(..last.len());
                if random.u8(..10) == 0 {
                    cache.remove(&name(n as u64)).wait().unwrap();
                    last[n] = None;
                } else {
                    let value = Value::new(round * 1_000 + put, random.usize(100..9_000));
                    value.store(&cache, &name(n as u64)).unwrap();
                    last[n] = Some(value);
                }
            }
            assert!(cache.flush().wait());
            for (n, last) in last.iter().enumerate() {
                let found = get(&cache, &name(n as u64));
                let right = found.is_none() || found == *last;
                assert!(
                    right,
                    "seed {seed} round {round} {policy:?}: {found:?}, not {last:?}"
                );
            }
            if random.bool() {
                cache.close();
            } else {
                let killed = copy(device.to_bytes());
                drop(cache);
                device = killed;
            }
        }
    }
}

#[test]
fn after_a_kill_all_sets_are_learned_without_being_asked_for() {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    put_all(&cache, 0..400);
    assert!(cache.flush().wait());
    let stored = cache.stats().entries;
    let killed = copy(device.to_bytes());
    drop(cache);
    let cache = open(quiet(killed, PolicyKind::SetMem));
    for _ in 0..10_000_000 {
        if cache.stats().entries == stored {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{} of {stored} entries", cache.stats().entries);
}
