//! Many threads at once, contents checked to the byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hashcache::{Cache, Config, PolicyKind, Put, PutError, Updated};

use super::support::{
    Form, KIB, MIB, SetOnDrop, Value, chosen, copy, duration, forms, get, memory, open, quiet,
    read, rounds, threads,
};

const NAMES: u64 = 40;

fn busy(device: Arc<dyn hashcache::device::Device>, policy: Form) -> Config {
    Config {
        batch_delay: std::time::Duration::from_millis(1),
        sync_interval: std::time::Duration::from_millis(5),
        memory_bytes: 12 * MIB as u64,
        ..quiet(device, policy)
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// One thread's share of everything at once.
fn everything(cache: &Cache, seed: u64, puts: &AtomicU64, steps: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hits = 0;
    for _ in 0..steps {
        let name = name(random.u64(..NAMES));
        match random.u32(..100) {
            0..25 => {
                let put = puts.fetch_add(1, Ordering::Relaxed);
                let length = [0, 700, 5_000, 70_000, 600 * KIB][random.usize(..5)];
                let value = Value::new(put, length);
                let metadata = Put::metadata(value.metadata());
                let Ok(intent) = cache.intend(&name) else {
                    continue;
                };
                let Ok(mut writer) = intent.writer(metadata) else {
                    continue;
                };
                let follower = (put.is_multiple_of(5)).then(|| writer.follow(0));
                let content = value.content(&name);
                let written = content
                    .chunks(20_000)
                    .all(|part| writer.write(part).is_ok());
                if !written || put.is_multiple_of(9) {
                    drop(writer);
                    if let Some(follower) = follower {
                        assert!(follower.read_to_vec().is_err());
                    }
                    continue;
                }
                match writer.commit() {
                    Ok(_) | Err(PutError::Superseded) => {}
                    Err(error) => panic!("{error:?}"),
                }
                if let Some(follower) = follower {
                    // All of it or an error: what it wanted next may have been lost meanwhile.
                    assert!(follower.read_to_vec().is_ok_and(|seen| seen == content) || length > 0);
                }
            }
            25..32 => {
                let Some(hit) = cache.get(&name).wait() else {
                    continue;
                };
                let value = Value::parse(hit.metadata());
                let value = Value {
                    revision: hit.revision() + 1,
                    ..value
                };
                let updated = cache.update_metadata(&name, hit.version(), value.metadata());
                if random.bool() {
                    let _: Updated = updated.wait();
                }
            }
            32..36 => drop(cache.remove(&name)),
            36..38 => cache.invalidate(&name),
            38..39 => assert!(cache.flush().wait()),
            _ => {
                let Some(hit) = cache.get(&name).wait() else {
                    continue;
                };
                hits += u64::from(read(&hit, &name).is_some());
            }
        }
        let stats = cache.stats();
        assert!(stats.memory_used_bytes <= stats.memory_limit_bytes);
    }
    hits
}

/// As many steps as there are to be, or as there is time for.
#[expect(clippy::disallowed_methods, reason = "a campaign has an end")]
fn until_time_is_over(cache: &Cache, seed: u64, puts: &AtomicU64) -> u64 {
    let seed = seed + super::support::seed();
    let Some(duration) = duration() else {
        return everything(cache, seed, puts, 1_500 * rounds());
    };
    let started = std::time::Instant::now();
    let mut hits = 0;
    for round in 0.. {
        if started.elapsed() >= duration {
            break;
        }
        hits += everything(cache, seed ^ round << 32, puts, 100);
    }
    hits
}

#[test]
fn never_a_wrong_byte_however_many_do_everything_at_once() {
    for policy in chosen() {
        let device = memory(24 * MIB);
        let cache = open(busy(device.clone(), policy));
        let puts = AtomicU64::new(1);
        let hits: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads())
                .map(|seed| {
                    let (cache, puts) = (&cache, &puts);
                    scope.spawn(move || until_time_is_over(cache, seed, puts))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert!(hits > 1_000, "{hits}");
        assert_eq!(cache.stats().damaged, 0);
        // A kill in full flight, then an end in order.
        let killed = open(busy(copy(device.to_bytes()), policy));
        assert!((0..NAMES).filter_map(|n| get(&killed, &name(n))).count() > 0);
        cache.close();
        let cache = open(busy(device, policy));
        assert!((0..NAMES).filter_map(|n| get(&cache, &name(n))).count() > 0);
    }
}

#[test]
fn what_remove_took_away_stays_away_while_others_put_other_names() {
    for policy in forms() {
        let cache = open(busy(memory(24 * MIB), policy));
        let done = AtomicBool::new(false);
        let puts = AtomicU64::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    everything(&cache, puts.load(Ordering::Relaxed), &puts, 20);
                }
            });
            // Readers that try to bring back what is removed: a read under way must not make it
            // hot.
            for n in 0..3 {
                let (cache, done) = (&cache, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let _: Option<Value> = get(cache, &name(1_000 + n));
                    }
                });
            }
            let _done = SetOnDrop(&done);
            for round in 0..300 {
                let name = name(1_000 + round % 3);
                let value = Value::new(round, 3_000 + 70_000 * (round as usize % 2));
                if value.store(&cache, &name).is_err() {
                    assert!(cache.flush().wait());
                    continue;
                }
                if round % 2 == 0 {
                    assert!(cache.flush().wait());
                }
                let found = get(&cache, &name);
                assert!(found.is_none_or(|found| found == value), "{found:?}");
                let remove = cache.remove(&name);
                assert_eq!(get(&cache, &name), None, "{policy:?} round {round}");
                remove.wait().unwrap();
                assert_eq!(get(&cache, &name), None, "{policy:?} round {round}");
            }
        });
    }
}

#[test]
fn concurrent_updates_count_one_by_one_or_are_refused() {
    let cache = open(busy(memory(24 * MIB), PolicyKind::Log.into()));
    let value = Value::new(1, 5_000);
    let version = value.store(&cache, b"name").unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let hit = cache.get(b"name").wait().unwrap();
                    assert_eq!(read(&hit, b"name"), Some(value));
                    let updated = cache.update_metadata(b"name", version, value.metadata());
                    if updated.wait() == Updated::Done {
                        done.fetch_add(1, Ordering::Relaxed);
                        let now = cache.get(b"name").wait().unwrap().revision();
                        assert!(now > hit.revision());
                    }
                }
            });
        }
    });
    let hit = cache.get(b"name").wait().unwrap();
    assert_eq!(u64::from(hit.revision()), done.load(Ordering::Relaxed));
}
