//! A store that is given more room: nothing it holds is lost by it, nothing it had forgotten
//! returns, whenever it is cut off; and what cannot grow, or would have to shrink, is refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hashcache::device::{Device, Fault, FaultDevice, MemoryDevice};
use hashcache::{Ban, Cache, Config, OpenError, PolicyKind, Put, Resize, Rows, inspect};

use super::support::{Form, MIB, Value, copy, get, memory, open, quiet};

/// Every form of the log, and its index as published.
fn log_forms() -> Vec<(Form, Rows)> {
    let log = Form::from(PolicyKind::Log);
    let with_all = Form {
        grouped: true,
        readmission: true,
        ..log
    };
    let log_lru = Form::from(PolicyKind::LogLru);
    vec![
        (log, Rows::Two),
        (log, Rows::One),
        (with_all, Rows::Two),
        (log_lru, Rows::Two),
        (
            Form {
                grouped: true,
                ..log_lru
            },
            Rows::Two,
        ),
    ]
}

/// A store of `mib` MiB of small objects on a device that may have more. Its secret is fixed: with
/// some secrets, names that shared no row share one after growing and have equal tags, and the
/// index forgets one of them.
fn sized(device: Arc<dyn Device>, (form, rows): (Form, Rows), mib: usize) -> Config {
    Config {
        size_bytes: Some((mib * MIB) as u64),
        object_bytes: 1024,
        hot_bytes_max: 0,
        rows,
        memory_bytes: 32 * MIB as u64,
        name_secret: Some(*b"no equal tags !!"),
        ..quiet(device, form)
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// Takes a KiB of the log, or almost.
fn value(n: u64) -> Value {
    Value::new(n, 800 - (n % 900) as usize / 2)
}

fn put_all(cache: &Cache, names: std::ops::Range<u64>) {
    for n in names {
        while value(n).store(cache, &name(n)).is_err() {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
}

fn found(cache: &Cache, names: std::ops::Range<u64>) -> Vec<u64> {
    let is_there = |n: &u64| get(cache, &name(*n)).is_some_and(|it| it == value(*n));
    names.filter(is_there).collect()
}

/// The device after a kill or an orderly end.
fn end(cache: Cache, device: &Arc<MemoryDevice>, killed: bool) -> Arc<MemoryDevice> {
    let killed = killed.then(|| copy(device.to_bytes()));
    cache.close();
    killed.unwrap_or_else(|| Arc::clone(device))
}

#[test]
fn nothing_is_lost_by_growing_nor_does_what_was_removed_come_back() {
    for form in log_forms() {
        for killed in [false, true] {
            let device = memory(64 * MIB);
            let cache = open(sized(device.clone(), form, 12));
            // The log has wrapped, and stands in the middle of a lap.
            put_all(&cache, 0..18_000);
            let removed = |n: &u64| n.is_multiple_of(7);
            for n in (0..18_000).filter(removed) {
                drop(cache.remove(&name(n)));
            }
            cache.remove(b"none").wait().unwrap();
            // Records of the last lap in the open segment are not found by the next run, grown or
            // not.
            cache.close();
            let cache = open(sized(device.clone(), form, 12));
            let before = found(&cache, 0..18_000);
            assert!(before.len() > 5_000, "{form:?}: {}", before.len());
            let mut device = end(cache, &device, killed);
            let mut last = before;
            for mib in [24, 48] {
                let cache = open(sized(device.clone(), form, mib));
                assert_eq!(cache.stats().device_bytes, (mib * MIB) as u64);
                let now = found(&cache, 0..18_000);
                // Behind a kill the rest of the open segment is given up, and what the last lap had
                // there.
                let lost = last.iter().filter(|n| !now.contains(n)).count();
                let allowed = if killed { 1100 } else { 0 };
                assert!(
                    lost <= allowed,
                    "{form:?}, killed {killed}, {mib}: {lost} lost"
                );
                assert!(!now.iter().any(removed), "{form:?}: one came back");
                device = end(cache, &device, killed);
                last = now;
            }
            // Once more with the size it has, or with none.
            let config = sized(device.clone(), form, 48);
            let cache = open(Config {
                size_bytes: None,
                ..config
            });
            assert!(found(&cache, 0..18_000).len() >= last.len() - 1100);
        }
    }
}

#[test]
fn rules_survive_growing_and_go_on_to_be_forgotten() {
    for form in log_forms() {
        for killed in [false, true] {
            let device = memory(64 * MIB);
            let cache = open(sized(device.clone(), form, 12));
            let labelled = |n: u64| n.is_multiple_of(3);
            let put = |cache: &Cache, n: u64| {
                let labels = if labelled(n) {
                    vec![cache.label(b"doomed")]
                } else {
                    Vec::new()
                };
                let put = Put {
                    labels,
                    ..Put::metadata(value(n).metadata())
                };
                cache
                    .put(&name(n), put, &value(n).content(&name(n)))
                    .unwrap();
            };
            (0..600).for_each(|n| put(&cache, n));
            assert!(cache.flush().wait());
            let doomed = Ban::label(cache.label(b"doomed"));
            let stale = Ban::prefix(&name(1)).softly();
            cache.remove_matching(&[doomed, stale]).wait().unwrap();
            let is_stale = |n: u64| name(n).starts_with(&name(1));
            let mut device = end(cache, &device, killed);
            for mib in [24, 48] {
                let cache = open(sized(device.clone(), form, mib));
                assert_eq!(cache.stats().bans, 2, "{form:?}, killed {killed}, {mib}");
                let mut kept = 0;
                for n in 0..600 {
                    let Some(hit) = cache.get(&name(n)).wait() else {
                        continue;
                    };
                    assert!(!labelled(n), "{form:?}, killed {killed}, {mib}: {n}");
                    assert_eq!(hit.is_made_stale(), is_stale(n), "{form:?} {n}");
                    kept += 1;
                }
                assert!(kept > 390, "{form:?}, killed {killed}, {mib}: {kept}");
                device = end(cache, &device, killed);
            }
            let cache = open(sized(device.clone(), form, 48));
            // An object that is put later is not older than the ban.
            put(&cache, 3);
            assert_eq!(get(&cache, &name(3)), Some(value(3)));
            put_all(&cache, 1_000..60_000);
            put_all(&cache, 60_000..120_000);
            // What outlives bans is done behind what a flush waits for.
            assert!(cache.flush().wait());
            assert_eq!(cache.stats().bans, 0, "{form:?}, killed {killed}");
            assert!((0..600).all(|n| get(&cache, &name(n)).is_none()));
        }
    }
}

#[test]
fn a_log_of_twice_the_size_reaches_what_a_new_one_does() {
    for form in log_forms() {
        let device = memory(16 * MIB);
        let cache = open(sized(device.clone(), form, 8));
        put_all(&cache, 0..4_000);
        cache.close();
        let other = memory(16 * MIB);
        let grown = open(sized(device.clone(), form, 16));
        let new = open(sized(other.clone(), form, 16));
        put_all(&new, 0..4_000);
        let reach = |cache: Cache, device: &Arc<MemoryDevice>| {
            // The old lap, then one and a half of all.
            put_all(&cache, 4_000..30_000);
            let slots = cache.stats().index_slots;
            let found = found(&cache, 10_000..30_000).len() as f64;
            cache.close();
            let config = sized(device.clone(), form, 16);
            // The log of the grown one has less room: checkpoints of the old index lie where they
            // lay.
            (slots, found / inspect(&config).unwrap().log_bytes as f64)
        };
        let (grown, new) = (reach(grown, &device), reach(new, &other));
        assert_eq!(grown.0, new.0, "{form:?}: slots");
        assert!(grown.1 >= new.1 * 0.97, "{form:?}: {grown:?}, {new:?}");
    }
}

/// What a name may answer: the last that was on disk, or what came later; a removed one nothing
/// older than its remove.
#[derive(Default)]
struct Model {
    oldest: HashMap<u64, u64>,
}

/// Growing is cut off at each of its writes in turn, in several ways; then the store is opened with
/// the old size, the new one, or none.
#[test]
fn cut_off_at_any_write_a_store_has_grown_or_has_not() {
    for form in log_forms() {
        let device = memory(40 * MIB);
        let cache = open(sized(device.clone(), form, 8));
        put_all(&cache, 0..10_000);
        for n in (9_000..9_400).step_by(2) {
            drop(cache.remove(&name(n)));
        }
        cache.remove(b"none").wait().unwrap();
        cache.close();
        let image = device.to_bytes();
        let kept: Vec<u64> = found(&open(sized(device, form, 8)), 9_000..10_000);
        assert!(kept.len() > 700, "{form:?}");
        let mut crash = 0;
        loop {
            let fault = match crash % 3 {
                0 => Fault::Freeze,
                1 => Fault::Torn { sectors: 3 },
                _ => Fault::Torn { sectors: 40 },
            };
            let inner = MemoryDevice::from_bytes(image.clone());
            let device = Arc::new(FaultDevice::new(inner, Some((crash, fault))));
            let cache = open(sized(device.clone(), form, 20));
            let grown_at = device.writes();
            let mut model = Model::default();
            for n in 9_600..9_700 {
                let put = Value::new(n + 100_000, 700);
                put.store(&cache, &name(n)).unwrap();
            }
            assert!(cache.flush().wait());
            if device.writes() <= crash {
                model
                    .oldest
                    .extend((9_600..9_700).map(|n| (n, n + 100_000)));
            }
            cache.remove(&name(9_650)).wait().unwrap();
            if device.writes() <= crash {
                model.oldest.insert(9_650, u64::MAX);
            }
            let all = device.writes() <= crash;
            let left = device.media();
            drop(cache);
            for size in [None, Some(20), Some(8), Some(32)] {
                let config = sized(copy(left.clone()), form, size.unwrap_or(8));
                let config = Config {
                    size_bytes: config.size_bytes.filter(|_| size.is_some()),
                    ..config
                };
                let cache = match Cache::open(config) {
                    Ok(cache) => cache,
                    Err(OpenError::Size { why, .. }) => {
                        assert_eq!((why, size), (Resize::Smaller, Some(8)), "{form:?} {crash}");
                        assert!(crash + 4 > grown_at, "{form:?} {crash}");
                        continue;
                    }
                    Err(error) => panic!("{form:?}, crash {crash}: {error}"),
                };
                let mut lost = 0;
                for n in &kept {
                    let there = get(&cache, &name(*n)).map(|it| it.put);
                    let oldest = model.oldest.get(n).copied().unwrap_or(0);
                    let put = there.unwrap_or(u64::MAX);
                    assert!(
                        put >= oldest,
                        "{form:?}, crash {crash}, {size:?}: {n} is {put}"
                    );
                    lost += usize::from(there.is_none() && !(9_600..9_700).contains(n));
                }
                // An object with the tag of a record that was cut off is not known any more.
                let allowed = if crash < grown_at { 0 } else { 8 };
                assert!(
                    lost <= allowed,
                    "{form:?}, crash {crash}, {size:?}: {lost} lost"
                );
                for n in (9_000..9_400).step_by(2) {
                    assert_eq!(get(&cache, &name(n)), None, "{form:?}, crash {crash}");
                }
            }
            if all {
                break;
            }
            crash += 1;
        }
        assert!(crash > 5, "{form:?}: {crash}");
    }
}

fn refused(config: Config) -> (u64, u64, Resize) {
    match Cache::open(config).err() {
        Some(OpenError::Size {
            size_bytes,
            asked_bytes,
            why,
            ..
        }) => (size_bytes, asked_bytes, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_grows_and_what_cannot_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let config = |policy, mib: usize| Config {
        policy,
        size_bytes: Some((mib * MIB) as u64),
        memory_bytes: 32 * MIB as u64,
        open_patience: Duration::from_secs(3600),
        name_secret: Some(*b"no equal tags !!"),
        ..Config::new(&path)
    };
    let length = |path: &Path| std::fs::metadata(path).unwrap().len();
    let cache = open(config(PolicyKind::Log, 16));
    put_all(&cache, 0..500);
    cache.close();
    // Another policy of the family at the same time.
    let cache = open(config(PolicyKind::LogLru, 32));
    assert_eq!(length(&path), 32 * MIB as u64);
    assert_eq!(found(&cache, 0..500).len(), 500);
    cache.close();
    assert_eq!(
        inspect(&Config::new(&path)).unwrap().device_bytes,
        32 * MIB as u64
    );
    let sizes = |mib: usize| (32 * MIB as u64, (mib * MIB) as u64);
    let (found, asked, why) = refused(config(PolicyKind::Log, 16));
    assert_eq!(
        (found, asked, why),
        (sizes(16).0, sizes(16).1, Resize::Smaller)
    );
    let (.., why) = refused(Config {
        size_bytes: Some(32 * MIB as u64 + 4096),
        ..config(PolicyKind::Log, 0)
    });
    let Resize::Between { least_bytes } = why else {
        panic!("{why}");
    };
    let (.., why) = refused(Config {
        size_bytes: Some(4 << 40),
        ..config(PolicyKind::Log, 0)
    });
    assert!(matches!(why, Resize::Above { most_bytes } if most_bytes < 2 << 40));
    assert_eq!(length(&path), 32 * MIB as u64);
    // The size that is reported as enough is enough.
    open(Config {
        size_bytes: Some(least_bytes),
        ..config(PolicyKind::Log, 0)
    })
    .close();
    std::fs::remove_file(&path).unwrap();
    for policy in [
        PolicyKind::Basic,
        PolicyKind::Set,
        PolicyKind::SetMem,
        PolicyKind::SetMemLru,
    ] {
        open(config(policy, 32)).close();
        assert_eq!(refused(config(policy, 64)).2, Resize::Table);
        assert_eq!(refused(config(policy, 16)).2, Resize::Smaller);
        assert_eq!(length(&path), 32 * MIB as u64);
        std::fs::remove_file(&path).unwrap();
    }
}

/// The share of the device that grows is larger then: what others lose to it they have lost for
/// good, what they keep is the newest there is.
#[test]
fn one_of_several_devices_grows_and_no_more_moves_than_its_share() {
    const NAMES: u64 = 3_000;
    for form in log_forms() {
        let (a, b) = (memory(48 * MIB), memory(16 * MIB));
        let both = |mib: usize| Config {
            devices: vec![a.clone(), b.clone()],
            ..sized(a.clone(), form, mib)
        };
        // B has no more than 16 MiB, so only A grows.
        let cache = open(both(16));
        put_all(&cache, 0..NAMES);
        for n in (0..NAMES).step_by(5) {
            drop(cache.remove(&name(n)));
        }
        let before = found(&cache, 0..NAMES);
        cache.close();
        let cache = open(both(48));
        let kept = found(&cache, 0..NAMES);
        assert!(kept.iter().all(|n| before.contains(n)), "{form:?}");
        // Of B's half, half: its share has become a quarter.
        let moved = before.len() - kept.len();
        assert!(
            moved.abs_diff(before.len() / 4) < before.len() / 20,
            "{form:?}: {moved} of {}",
            before.len()
        );
        let gone = (0..NAMES)
            .find(|n| before.contains(n) && !kept.contains(n))
            .unwrap();
        let newer = Value::new(1_000_000, 500);
        newer.store(&cache, &name(gone)).unwrap();
        cache.close();
        // Whatever becomes of A: B does not answer for what it has lost.
        for devices in [vec![a.clone(), b.clone()], vec![b.clone()]] {
            let cache = open(Config {
                size_bytes: None,
                devices: devices
                    .into_iter()
                    .map(|it| it as Arc<dyn Device>)
                    .collect(),
                ..sized(a.clone(), form, 48)
            });
            let there = get(&cache, &name(gone));
            assert!(
                there.is_none() || there == Some(newer),
                "{form:?}: {there:?}"
            );
            assert!(found(&cache, 0..NAMES).iter().all(|n| kept.contains(n)));
            cache.close();
        }
    }
}
