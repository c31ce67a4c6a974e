//! Stores on several devices where a part of the name chooses the device: names of one page lie on
//! one device, and no change of devices or of the rule brings back what was replaced or removed.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashcache::device::{Device, FaultDevice, MemoryDevice};
use hashcache::{Ban, Cache, Config, Placement, PolicyKind, Put};

use crate::devices::Joint;
use crate::support::{Form, MIB, Value, copy, forms, get, memory, quiet};

const DEVICE_BYTES: usize = 16 * MIB;
const PAGES: u64 = 24;
/// Of a page.
const OBJECTS: u64 = 5;
const NAMES: u64 = PAGES * OBJECTS;
/// Pages with one object of several spans.
const LARGE: u64 = 6;
const BY_PAGE: Placement = Placement::new(NonZeroU32::MIN, page);
const RULES: [Placement; 2] = [Placement::NAME, BY_PAGE];

/// The page that a name starts with.
fn page(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == b'/').next().unwrap_or(name)
}

fn name(n: u64) -> Vec<u8> {
    format!("page{}/{}", n / OBJECTS, n % OBJECTS).into_bytes()
}

fn on(devices: Vec<Arc<dyn Device>>, form: Form, placement: Placement) -> Config {
    let first = Arc::clone(&devices[0]);
    Config {
        devices,
        placement,
        memory_bytes: 32 * MIB as u64,
        ..quiet(first, form)
    }
}

/// The secret is fixed: with some, a device of three gets no page, or a name shares its row and tag
/// with one of another page, whose run is then read in vain.
fn open(devices: &[&Arc<MemoryDevice>], form: Form, placement: Placement) -> Cache {
    let devices = devices.iter().map(|it| Arc::clone(it) as Arc<dyn Device>);
    let config = Config {
        name_secret: Some(*b"no equal tags !!"),
        ..on(devices.collect(), form, placement)
    };
    Cache::open(config).expect("a store that can be opened")
}

fn put(cache: &Cache, n: u64, put: u64) {
    let value = Value::new(put, 300 + 70 * (n % 30) as usize);
    let of_page = Put {
        group: n / OBJECTS + 1,
        ..Put::metadata(value.metadata())
    };
    cache
        .put(&name(n), of_page, &value.content(&name(n)))
        .expect("there is room");
}

fn close(cache: Cache) {
    assert!(cache.flush().wait());
    cache.close();
}

fn found(cache: &Cache) -> HashMap<u64, u64> {
    let value = |n| Some((n, get(cache, &name(n))?.put));
    (0..NAMES).filter_map(value).collect()
}

#[test]
fn all_objects_of_a_page_lie_on_one_device_with_their_spans() {
    for form in forms() {
        let devices = [(); 3].map(|()| memory(DEVICE_BYTES));
        let cache = open(&devices.each_ref(), form, BY_PAGE);
        (0..NAMES).for_each(|n| put(&cache, n, n));
        let large = |page| Value::new(1000 + page, 300 << 10);
        let name_of_large = |page| format!("page{page}/large").into_bytes();
        for page in 0..LARGE {
            large(page).store(&cache, &name_of_large(page)).unwrap();
        }
        close(cache);
        let mut device_of = HashMap::new();
        let mut large_on = Vec::new();
        let mut there = 0;
        for (at, device) in devices.iter().enumerate() {
            let cache = open(&[&copy(device.to_bytes())], form, BY_PAGE);
            for (n, put) in found(&cache) {
                assert_eq!(put, n);
                let first = *device_of.entry(n / OBJECTS).or_insert(at);
                assert_eq!(first, at, "{form:?}, name {n}");
                there += 1;
            }
            for page in 0..LARGE {
                if let Some(whole) = get(&cache, &name_of_large(page)) {
                    assert_eq!(whole, large(page));
                    large_on.push((page, at));
                }
            }
        }
        // With `basic` names and spans put each other out; with the other policies of a Disk Table
        // those of equal tags in one set do.
        assert!(there > NAMES * 2 / 3, "{form:?}: {there} of {NAMES}");
        assert!(large_on.len() as u64 > LARGE / 2, "{form:?}: {large_on:?}");
        for (page, at) in large_on {
            assert_eq!(device_of.get(&page), Some(&at), "{form:?}, page {page}");
        }
        let used: std::collections::HashSet<_> = device_of.values().collect();
        assert_eq!(used.len(), 3, "{form:?}");
    }
}

#[test]
fn a_page_of_a_store_on_five_devices_is_read_at_once() {
    let form = Form {
        grouped: true,
        ..Form::from(PolicyKind::Log)
    };
    let reads = |placement| {
        let devices = [(); 5].map(|()| memory(DEVICE_BYTES));
        let cache = open(&devices.each_ref(), form, placement);
        (0..NAMES).for_each(|n| put(&cache, n, n));
        close(cache);
        let cache = open(&devices.each_ref(), form, placement);
        assert_eq!(found(&cache).len() as u64, NAMES);
        let stats = cache.stats();
        (stats.group_reads, stats.group_reads + stats.lone_reads)
    };
    assert_eq!(reads(BY_PAGE), (PAGES, PAGES));
    assert!(reads(Placement::NAME).1 > 2 * PAGES);
}

#[test]
fn a_store_that_is_placed_by_another_rule_answers_nothing_from_before() {
    for form in forms() {
        for [before, after] in [RULES, [RULES[1], RULES[0]]] {
            for is_killed in [false, true] {
                let (a, b) = (memory(DEVICE_BYTES), memory(DEVICE_BYTES));
                close_or_kill(&[&a, &b], form, before, false, |cache| {
                    (0..NAMES).for_each(|n| put(cache, n, n));
                });
                let [a, b] = close_or_kill(&[&a, &b], form, after, is_killed, |cache| {
                    assert!(found(cache).is_empty(), "{form:?}");
                    for n in (0..NAMES).step_by(3) {
                        put(cache, n, NAMES + n);
                        cache.remove(&name(n + 1)).wait().unwrap();
                    }
                });
                // The old rule again: neither what was removed nor what was replaced returns.
                close_or_kill(&[&a, &b], form, before, false, |cache| {
                    assert!(found(cache).is_empty(), "{form:?}");
                });
            }
        }
    }
}

/// Opens a store, has `work` done with it and flushes. Returns the devices as they are when it was
/// closed, or killed just before that.
fn close_or_kill(
    devices: &[&Arc<MemoryDevice>; 2],
    form: Form,
    placement: Placement,
    is_killed: bool,
    work: impl FnOnce(&Cache),
) -> [Arc<MemoryDevice>; 2] {
    let cache = open(devices, form, placement);
    work(&cache);
    assert!(cache.flush().wait());
    let killed = devices.map(|it| copy(it.to_bytes()));
    cache.close();
    if is_killed {
        killed
    } else {
        devices.map(Arc::clone)
    }
}

/// Devices join, leave and crash and the rule changes at random while names are put, put again,
/// removed one by one and banned page by page; each run has one device of the last.
#[test]
fn whatever_devices_and_rules_do_an_answer_is_the_last_put() {
    for form in forms() {
        for seed in 0..3 * crate::support::rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut devices: Vec<_> = (0..4).map(|_| memory(DEVICE_BYTES)).collect();
            let mut last: Vec<Option<u64>> = vec![None; NAMES as usize];
            let (mut last_run, mut puts, mut rule) = (vec![0], 0, BY_PAGE);
            for _ in 0..8 {
                let mut present: Vec<usize> = (0..4).filter(|_| random.bool()).collect();
                if !present.iter().any(|n| last_run.contains(n)) {
                    present.push(last_run[0]);
                }
                if random.u8(..4) == 0 {
                    rule = RULES[random.usize(..RULES.len())];
                }
                let here: Vec<_> = present.iter().map(|n| &devices[*n]).collect();
                let cache = open(&here, form, rule);
                for (n, put) in found(&cache) {
                    let right = last[n as usize];
                    assert_eq!(Some(put), right, "{form:?}, seed {seed}, name {n}");
                }
                for _ in 0..30 {
                    let n = random.u64(..NAMES);
                    match random.u8(..8) {
                        0 | 1 => {
                            cache.remove(&name(n)).wait().unwrap();
                            last[n as usize] = None;
                        }
                        2 => {
                            let page = n / OBJECTS;
                            let prefix = format!("page{page}/");
                            let ban = Ban::prefix(prefix.as_bytes());
                            cache.remove_matching(&[ban]).wait().unwrap();
                            let of_page = page * OBJECTS..(page + 1) * OBJECTS;
                            of_page.for_each(|n| last[n as usize] = None);
                        }
                        _ => {
                            puts += 1;
                            put(&cache, n, puts);
                            last[n as usize] = Some(puts);
                        }
                    }
                }
                assert!(cache.flush().wait());
                let killed = present.iter().map(|n| copy(devices[*n].to_bytes()));
                let killed: Vec<_> = killed.collect();
                cache.close();
                if random.bool() {
                    for (n, it) in present.iter().zip(killed) {
                        devices[*n] = it;
                    }
                }
                last_run = present;
            }
        }
    }
}

/// The crash happens at every write of a run that opens with another rule, removes, puts and
/// closes; then the store is opened with either rule.
#[test]
fn a_crash_at_any_write_of_a_run_with_another_rule_brings_nothing_old_back() {
    let form = Form {
        grouped: true,
        ..Form::from(PolicyKind::Log)
    };
    let [a, b] = [(); 2].map(|()| memory(6 * MIB));
    close_or_kill(&[&a, &b], form, Placement::NAME, false, |cache| {
        (0..NAMES).for_each(|n| put(cache, n, n));
    });
    let images = [&a, &b].map(|it| it.to_bytes());
    for crash in 0.. {
        let left = Arc::new(AtomicU64::new(crash));
        let devices = images.each_ref().map(|image| {
            Arc::new(Joint {
                inner: MemoryDevice::from_bytes(image.clone()),
                left: Arc::clone(&left),
            })
        });
        let all = devices.iter().map(|it| Arc::clone(it) as Arc<dyn Device>);
        let cache = Cache::open(on(all.collect(), form, BY_PAGE)).unwrap();
        let is_alive = || left.load(Ordering::Acquire) > 0;
        cache.remove(&name(0)).wait().unwrap();
        let is_removed = is_alive();
        (1..NAMES).for_each(|n| put(&cache, n, NAMES + n));
        cache.flush().wait();
        let oldest = if is_alive() { NAMES } else { 0 };
        cache.close();
        let has_ended = is_alive();
        let copies = devices.each_ref().map(|it| copy(it.inner.to_bytes()));
        let [first, second] = match crash % 2 {
            0 => RULES,
            _ => [RULES[1], RULES[0]],
        };
        let cache = open(&copies.each_ref(), form, first);
        for (n, put) in found(&cache) {
            assert!(put >= oldest, "crash {crash}: {n} is {put}");
            assert!(
                n > 0 || !is_removed,
                "crash {crash}: what was removed is {put}"
            );
        }
        close(cache);
        let cache = open(&copies.each_ref(), form, second);
        assert!(found(&cache).is_empty(), "crash {crash}");
        close(cache);
        if has_ended {
            break;
        }
    }
}

#[test]
fn pages_of_a_device_that_fails_are_stored_on_the_others() {
    for form in forms() {
        let a = memory(DEVICE_BYTES);
        let b = Arc::new(FaultDevice::new(MemoryDevice::new(DEVICE_BYTES), None));
        let both: Vec<Arc<dyn Device>> = vec![a.clone(), b.clone()];
        let cache = Cache::open(on(both, form, BY_PAGE)).unwrap();
        (0..NAMES).for_each(|n| put(&cache, n, n));
        assert!(cache.flush().wait());
        b.fail();
        // Something has to be written to it for the failure to show.
        (0..NAMES).for_each(|n| put(&cache, n, NAMES + n));
        cache.flush().wait();
        while cache.stats().devices_out == 0 {
            std::thread::yield_now();
        }
        for n in (0..NAMES).step_by(2) {
            cache.remove(&name(n)).wait().expect("a remove that holds");
        }
        for n in (1..NAMES).step_by(2) {
            put(&cache, n, 2 * NAMES + n);
        }
        assert!(cache.flush().wait());
        let is_last = |(n, put): (&u64, &u64)| n % 2 == 1 && *put == 2 * NAMES + n;
        assert!(found(&cache).iter().all(is_last), "{form:?}");
        // Killed; the device is well again.
        let (a, b) = (copy(a.to_bytes()), copy(b.media()));
        cache.close();
        let cache = open(&[&a, &b], form, BY_PAGE);
        assert!(found(&cache).iter().all(is_last), "{form:?}");
    }
}
