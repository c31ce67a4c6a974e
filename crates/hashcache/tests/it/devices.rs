//! Stores on several devices: ownership of names, devices that join, leave and fail; an old,
//! removed or foreign object is never an answer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashcache::device::{Device, FaultDevice, MemoryDevice};
use hashcache::{Cache, Config, Health, OpenError, PolicyKind};

use crate::support::{EVERY, Gate, MIB, Value, copy, get, memory, quiet};

const DEVICE_BYTES: usize = 16 * MIB;

/// The secret is fixed: with one in 40, two names share a row and have equal tags, and the index
/// forgets one of them.
fn on(devices: Vec<Arc<dyn Device>>, policy: PolicyKind) -> Config {
    let first = Arc::clone(&devices[0]);
    Config {
        devices,
        name_secret: Some([1; 16]),
        memory_bytes: 32 * MIB as u64,
        ..quiet(first, policy)
    }
}

fn open(devices: &[&Arc<MemoryDevice>], policy: PolicyKind) -> Cache {
    let devices = devices.iter().map(|it| Arc::clone(it) as Arc<dyn Device>);
    Cache::open(on(devices.collect(), policy)).expect("a store that can be opened")
}

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn put(cache: &Cache, n: u64, put: u64) {
    Value::new(put, 300 + 70 * (n % 30) as usize)
        .store(cache, &name(n))
        .expect("there is room");
}

fn close(cache: Cache) {
    assert!(cache.flush().wait());
    cache.close();
}

fn found(cache: &Cache, names: u64) -> HashMap<u64, u64> {
    let value = |n| Some((n, get(cache, &name(n))?.put));
    (0..names).filter_map(value).collect()
}

#[test]
fn objects_spread_over_devices_and_all_come_back() {
    for policy in [PolicyKind::Log, PolicyKind::Set] {
        let (a, b) = (memory(DEVICE_BYTES), memory(2 * DEVICE_BYTES));
        let cache = open(&[&a, &b], policy);
        (0..300).for_each(|n| put(&cache, n, n));
        // A large object too, whose spans lie with its head.
        let large = Value::new(1000, 3 * MIB / 2);
        large.store(&cache, b"large").unwrap();
        close(cache);
        // In whatever order they are named.
        let cache = open(&[&b, &a], policy);
        let there = found(&cache, 300);
        assert!(there.len() > 290, "{policy:?}: {}", there.len());
        assert!(there.iter().all(|(n, put)| n == put));
        assert_eq!(get(&cache, b"large"), Some(large));
        assert_eq!(cache.stats().devices, 2);
        close(cache);
        // One alone has its share, and knows nothing of the other's.
        let cache = open(&[&b], policy);
        let alone = found(&cache, 300).len();
        assert!((160..240).contains(&alone), "{policy:?}: {alone} of 300");
    }
}

#[test]
fn a_device_added_moves_its_share_and_no_more() {
    const NAMES: u64 = 1200;
    let [a, b, c] = [(); 3].map(|()| memory(DEVICE_BYTES));
    let cache = open(&[&a, &b], PolicyKind::Log);
    (0..NAMES).for_each(|n| put(&cache, n, n));
    close(cache);
    let cache = open(&[&a, &b, &c], PolicyKind::Log);
    let kept = found(&cache, NAMES).len() as u64;
    // A third has moved to where it is not; binomial, so within 5.5 sigma. The id of a device is
    // drawn at random.
    assert!(kept.abs_diff(NAMES * 2 / 3) < 90, "{kept} of {NAMES} kept");
    for n in 0..NAMES {
        if get(&cache, &name(n)).is_none() {
            put(&cache, n, NAMES + n);
        }
    }
    assert_eq!(found(&cache, NAMES).len() as u64, NAMES);
    close(cache);
    // Taken out again, it takes with it what it had, and what had moved is not what it was before.
    let cache = open(&[&a, &b], PolicyKind::Log);
    let left = found(&cache, NAMES);
    assert_eq!(left.len() as u64, kept);
    assert!(left.iter().all(|(n, put)| n == put));
}

#[test]
fn a_device_that_returns_answers_nothing_that_was_replaced_or_removed() {
    const NAMES: u64 = 120;
    for policy in EVERY {
        let (a, b) = (memory(DEVICE_BYTES), memory(DEVICE_BYTES));
        let cache = open(&[&a, &b], policy);
        (0..NAMES).for_each(|n| put(&cache, n, n));
        close(cache);
        let cache = open(&[&a], policy);
        for n in 0..NAMES {
            match n % 3 {
                0 => cache.remove(&name(n)).wait().unwrap(),
                1 => put(&cache, n, NAMES + n),
                _ => {}
            }
        }
        close(cache);
        let cache = open(&[&a, &b], policy);
        for (n, put) in found(&cache, NAMES) {
            let right = match n % 3 {
                0 => None,
                1 => Some(NAMES + n),
                _ => Some(n),
            };
            assert_eq!(Some(put), right, "{policy:?}, name {n}");
        }
        // The device takes part again: objects that are put to it stay, even if it leaves and joins
        // once more.
        (0..NAMES).for_each(|n| put(&cache, n, 2 * NAMES + n));
        let there = found(&cache, NAMES).len();
        close(cache);
        close(open(&[&b], policy));
        let cache = open(&[&a, &b], policy);
        let again = found(&cache, NAMES);
        assert!(again.iter().all(|(n, put)| *put == 2 * NAMES + n));
        assert!(
            again.len() < there,
            "{policy:?}: A came back with what it had"
        );
    }
}

/// Devices whose writes stop all at once: at the n-th of all of them.
pub struct Joint {
    pub inner: MemoryDevice,
    pub left: Arc<AtomicU64>,
}

impl Device for Joint {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let less = |left: u64| left.checked_sub(1);
        if self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
            .is_err()
        {
            return Ok(());
        }
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The answers that are allowed for a name: puts from `oldest` on, or a miss.
#[derive(Clone, Copy, Default)]
struct Allowed {
    oldest: u64,
}

/// The crash happens at every write of a run that opens with a changed membership, puts, flushes,
/// removes and closes.
#[test]
fn a_crash_at_any_write_of_several_devices_brings_nothing_old_back() {
    const NAMES: u64 = 16;
    for policy in [PolicyKind::Log, PolicyKind::SetMem] {
        let size = if policy == PolicyKind::Log { 6 } else { 16 } * MIB;
        let [a, b, c] = [(); 3].map(|()| memory(size));
        let cache = open(&[&a, &b], policy);
        (0..NAMES).for_each(|n| put(&cache, n, n));
        close(cache);
        // B was away while its names were put elsewhere, and is back.
        let cache = open(&[&a, &c], policy);
        (0..NAMES).for_each(|n| put(&cache, n, 100 + n));
        close(cache);
        let images = [&a, &b, &c].map(|it| it.to_bytes());
        for crash in 0.. {
            let left = Arc::new(AtomicU64::new(crash));
            let devices = [0, 1, 2].map(|n: usize| {
                Arc::new(Joint {
                    inner: MemoryDevice::from_bytes(images[n].clone()),
                    left: Arc::clone(&left),
                })
            });
            let all = devices.iter().map(|it| Arc::clone(it) as Arc<dyn Device>);
            let mut allowed = vec![Allowed { oldest: 100 }; NAMES as usize];
            let cache = Cache::open(on(all.collect(), policy)).unwrap();
            let alive = || left.load(Ordering::Acquire) > 0;
            (0..NAMES).for_each(|n| put(&cache, n, 200 + n));
            cache.flush().wait();
            if alive() {
                allowed.iter_mut().for_each(|it| it.oldest = 200);
            }
            for n in (0..NAMES).step_by(3) {
                cache.remove(&name(n)).wait().unwrap();
                if alive() {
                    allowed[n as usize].oldest = 300;
                }
            }
            cache.close();
            let ended = alive();
            let copies = devices.each_ref().map(|it| copy(it.inner.to_bytes()));
            // All join again, or one is left out and joins later.
            let left_out = (crash % 4) as usize;
            let first: Vec<_> = (0..3).filter(|n| *n != left_out).collect();
            for present in [first, vec![0, 1, 2]] {
                let present: Vec<_> = present.into_iter().map(|n| &copies[n]).collect();
                let cache = open(&present, policy);
                for (n, put) in found(&cache, NAMES) {
                    let oldest = allowed[n as usize].oldest;
                    assert!(put >= oldest, "{policy:?}, crash {crash}: {n} is {put}");
                }
                close(cache);
            }
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_device_that_fails_is_taken_out_and_the_others_go_on() {
    const NAMES: u64 = 60;
    for policy in EVERY {
        let a = memory(DEVICE_BYTES);
        let b = Arc::new(FaultDevice::new(MemoryDevice::new(DEVICE_BYTES), None));
        let both: Vec<Arc<dyn Device>> = vec![a.clone(), b.clone()];
        let cache = Cache::open(on(both, policy)).unwrap();
        (0..NAMES).for_each(|n| put(&cache, n, n));
        assert!(cache.flush().wait());
        b.fail();
        // Something has to be written to it for the failure to show.
        (0..NAMES).for_each(|n| put(&cache, n, 100 + n));
        cache.flush().wait();
        while cache.stats().devices_out == 0 {
            std::thread::yield_now();
        }
        assert_eq!(cache.health(), Health::InService);
        // Whatever is asked of its names from now on holds, and is kept by the other.
        for n in (0..NAMES).step_by(2) {
            cache.remove(&name(n)).wait().expect("a remove that holds");
        }
        for n in (1..NAMES).step_by(2) {
            while Value::new(200 + n, 100).store(&cache, &name(n)).is_err() {
                std::thread::yield_now();
            }
        }
        assert!(cache.flush().wait());
        let there = found(&cache, NAMES);
        assert!(there.iter().all(|(n, put)| n % 2 == 1 && *put == 200 + n));
        // Killed before anything is written but what was waited for; the device is well again.
        let (a, b) = (copy(a.to_bytes()), copy(b.media()));
        cache.close();
        let cache = open(&[&a, &b], policy);
        for (n, put) in found(&cache, NAMES) {
            assert!(n % 2 == 1 && put == 200 + n, "{policy:?}: {n} is {put}");
        }
    }
}

/// Were it otherwise, a crash could leave a superblock that says that the device takes part, and
/// what lies on it would count beside what was put elsewhere.
#[test]
fn names_of_a_device_that_failed_do_not_move_before_the_others_have_that_on_disk() {
    const NAMES: u64 = 60;
    for policy in [PolicyKind::Log, PolicyKind::Set] {
        let a = Arc::new(Gate::new(MemoryDevice::new(DEVICE_BYTES)));
        let b = Arc::new(FaultDevice::new(MemoryDevice::new(DEVICE_BYTES), None));
        let both: Vec<Arc<dyn Device>> = vec![a.clone(), b.clone()];
        let cache = Cache::open(on(both, policy)).unwrap();
        (0..NAMES).for_each(|n| put(&cache, n, n));
        assert!(cache.flush().wait());
        let owners = || Vec::from_iter((0..NAMES).map(|n| cache.device_of(&name(n))));
        let before = owners();
        let moved = || owners() != before;
        a.shut();
        b.fail();
        (0..NAMES).for_each(|n| put(&cache, n, 100 + n));
        let flush = cache.flush();
        while cache.stats().devices_out == 0 {
            std::thread::yield_now();
        }
        // Long enough for the thread of the device that has failed to ask the other one.
        let moved_early = (0..500).any(|_| {
            std::thread::yield_now();
            moved()
        });
        a.open();
        assert!(!moved_early, "{policy:?}");
        while !moved() {
            std::thread::yield_now();
        }
        assert!(!flush.wait());
    }
}

#[test]
fn a_remove_that_waited_for_room_when_its_device_failed_is_told_to_hold_only_if_it_does() {
    const NAMES: u64 = 60;
    for policy in [PolicyKind::Basic, PolicyKind::Set] {
        let a = memory(DEVICE_BYTES);
        let fault = FaultDevice::new(MemoryDevice::new(DEVICE_BYTES), None);
        let b = Arc::new(Gate::new(fault));
        let both: Vec<Arc<dyn Device>> = vec![a.clone(), b.clone()];
        let cache = Cache::open(on(both, policy)).unwrap();
        (0..NAMES).for_each(|n| put(&cache, n, n));
        assert!(cache.flush().wait());
        // All are in memory from here on.
        assert!(found(&cache, NAMES).len() as u64 > NAMES - 10);
        b.shut();
        let mut removes: Vec<_> = (0..20).map(|n| cache.remove(&name(n))).collect();
        b.wait_for_write();
        removes.extend((100..9_000).map(|n| cache.remove(&name(n))));
        let last: Vec<_> = (20..NAMES).map(|n| cache.remove(&name(n))).collect();
        assert!(!found(&cache, NAMES).is_empty(), "there was room for all");
        b.inner.fail();
        b.open();
        for (n, remove) in (20..NAMES).zip(last) {
            remove.wait().expect("the other device goes on");
            assert_eq!(get(&cache, &name(n)), None, "{policy:?}: {n}");
        }
        cache.close();
    }
}

#[test]
fn the_last_device_that_fails_takes_the_store_with_it() {
    let fault = || Arc::new(FaultDevice::new(MemoryDevice::new(DEVICE_BYTES), None));
    let (a, b) = (fault(), fault());
    let both: Vec<Arc<dyn Device>> = vec![a.clone(), b.clone()];
    let cache = Cache::open(on(both, PolicyKind::Log)).unwrap();
    a.fail();
    b.fail();
    (0..20).for_each(|n| put(&cache, n, n));
    assert!(!cache.flush().wait());
    while cache.stats().devices_out < 2 {
        std::thread::yield_now();
    }
    assert_eq!(cache.health(), Health::OutOfService);
    assert!(cache.remove(&name(1)).wait().is_err());
    assert!(found(&cache, 20).is_empty());
    cache.close();
}

#[test]
fn a_device_of_another_store_is_refused_and_nothing_is_changed() {
    let [a, b, new] = [(); 3].map(|()| memory(DEVICE_BYTES));
    close(open(&[&a], PolicyKind::Log));
    close(open(&[&b], PolicyKind::Log));
    let before = [&a, &b].map(|it| it.to_bytes());
    let all: Vec<Arc<dyn Device>> = vec![new.clone(), a.clone(), b.clone()];
    let error = Cache::open(on(all, PolicyKind::Log)).err().unwrap();
    assert!(matches!(error, OpenError::OtherStore { .. }), "{error}");
    // Two that joined one store while the other was away bear different numbers.
    let [c, d] = [(); 2].map(|()| memory(DEVICE_BYTES));
    close(open(&[&a, &c], PolicyKind::Log));
    a.alter(|bytes| bytes.copy_from_slice(&before[0]));
    close(open(&[&a, &d], PolicyKind::Log));
    close(open(&[&a, &c, &d], PolicyKind::Log));
    // One that was copied bears the number of the other.
    let d = copy(c.to_bytes());
    let all: Vec<Arc<dyn Device>> = vec![a.clone(), c.clone(), d.clone()];
    let error = Cache::open(on(all, PolicyKind::Log)).err().unwrap();
    assert!(matches!(error, OpenError::Twins { .. }), "{error}");
    assert_eq!(b.to_bytes(), before[1]);
    assert!(new.to_bytes().iter().all(|byte| *byte == 0));
}

/// Devices join, leave and crash at random while names are put and removed; each run has one device
/// of the last.
#[test]
fn whatever_devices_do_an_answer_is_the_last_put() {
    const NAMES: u64 = 40;
    for policy in EVERY {
        for seed in 0..3 * crate::support::rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut devices: Vec<_> = (0..4).map(|_| memory(DEVICE_BYTES)).collect();
            let mut last: Vec<Option<u64>> = vec![None; NAMES as usize];
            let (mut last_run, mut puts) = (vec![0], 0);
            for _ in 0..8 {
                let mut present: Vec<usize> = (0..4).filter(|_| random.bool()).collect();
                if !present.iter().any(|n| last_run.contains(n)) {
                    present.push(last_run[0]);
                }
                let cache = open(
                    &present.iter().map(|n| &devices[*n]).collect::<Vec<_>>(),
                    policy,
                );
                for (n, put) in found(&cache, NAMES) {
                    let right = last[n as usize];
                    assert_eq!(Some(put), right, "{policy:?}, seed {seed}, name {n}");
                }
                for _ in 0..30 {
                    let n = random.u64(..NAMES);
                    if random.u8(..3) == 0 {
                        cache.remove(&name(n)).wait().unwrap();
                        last[n as usize] = None;
                    } else {
                        puts += 1;
                        put(&cache, n, puts);
                        last[n as usize] = Some(puts);
                    }
                }
                assert!(cache.flush().wait());
                if random.bool() {
                    let killed = present.iter().map(|n| (*n, copy(devices[*n].to_bytes())));
                    let killed: Vec<_> = killed.collect();
                    cache.close();
                    killed.into_iter().for_each(|(n, it)| devices[n] = it);
                } else {
                    cache.close();
                }
                last_run = present;
            }
        }
    }
}

/// Names of which a device that is rolled back has some.
const ROLLED: u64 = 50;

/// What is done in the run whose end a device does not keep: half of the names are removed, some
/// put again.
fn change_names(cache: &Cache) {
    for n in 0..ROLLED {
        match n % 4 {
            0 | 1 => cache.remove(&name(n)).wait().unwrap(),
            2 => put(cache, n, 1_000 + n),
            _ => {}
        }
    }
    assert!(cache.flush().wait());
}

/// Nothing that was removed or replaced answers. Returns how many names do.
fn only_what_was_left(cache: &Cache, what: &str) -> usize {
    let there = found(cache, ROLLED);
    for (n, put) in &there {
        let right = match n % 4 {
            0 | 1 => None,
            2 => Some(1_000 + n),
            _ => Some(*n),
        };
        assert_eq!(Some(*put), right, "{what}: name {n}");
    }
    there.len()
}

#[test]
fn a_device_rolled_back_to_before_the_last_opening_answers_nothing_of_that() {
    for policy in EVERY {
        for orderly in [true, false] {
            let what = format!("{policy:?}, closed: {orderly}");
            let (a, b) = (memory(DEVICE_BYTES), memory(DEVICE_BYTES));
            let cache = open(&[&a, &b], policy);
            (0..ROLLED).for_each(|n| put(&cache, n, n));
            close(cache);
            let image = b.to_bytes();
            let cache = open(&[&a, &b], policy);
            change_names(&cache);
            let a_killed = a.to_bytes();
            let whole = only_what_was_left(&cache, &what);
            close(cache);
            let a = if orderly { a } else { copy(a_killed) };
            let b = copy(image);
            let cache = open(&[&a, &b], policy);
            let left = only_what_was_left(&cache, &what);
            // The other device has what it had.
            assert!(0 < left && left < whole, "{what}: {left} of {whole}");
            // And the one that is back takes part.
            (0..ROLLED).for_each(|n| put(&cache, n, 2_000 + n));
            close(cache);
            let again = found(&open(&[&a, &b], policy), ROLLED);
            // (A name that shares the place of another may have been put out by it.)
            let least = ROLLED as usize * 9 / 10;
            assert!(again.len() >= least, "{what}: {}", again.len());
            assert!(again.iter().all(|(n, put)| *put == 2_000 + n), "{what}");
        }
    }
}

#[test]
fn a_device_rolled_back_within_the_last_run_is_known_by_the_orderly_end() {
    for policy in EVERY {
        for which in 0..2 {
            let what = format!("{policy:?}, device {which}");
            let mut devices = [memory(DEVICE_BYTES), memory(DEVICE_BYTES)];
            let cache = open(&[&devices[0], &devices[1]], policy);
            (0..ROLLED).for_each(|n| put(&cache, n, n));
            assert!(cache.flush().wait());
            let image = devices[which].to_bytes();
            change_names(&cache);
            close(cache);
            devices[which] = copy(image);
            let cache = open(&[&devices[0], &devices[1]], policy);
            assert!(only_what_was_left(&cache, &what) > 0, "{what}");
        }
    }
}

#[test]
fn a_crash_while_a_store_opens_and_a_damaged_superblock_cost_no_content() {
    for policy in [PolicyKind::Log, PolicyKind::Set] {
        let devices = [memory(DEVICE_BYTES), memory(DEVICE_BYTES)];
        let cache = open(&[&devices[0], &devices[1]], policy);
        (0..ROLLED).for_each(|n| put(&cache, n, n));
        let whole = found(&cache, ROLLED).len();
        close(cache);
        let images = devices.each_ref().map(|it| it.to_bytes());
        let with = |images: &[Vec<u8>; 2]| {
            let copies = images.each_ref().map(|it| copy(it.clone()));
            found(&open(&[&copies[0], &copies[1]], policy), ROLLED).len()
        };
        // At each of the first writes: those are superblocks.
        for crash in 0..8 {
            let left = Arc::new(AtomicU64::new(crash));
            let joint = images.each_ref().map(|it| {
                Arc::new(Joint {
                    inner: MemoryDevice::from_bytes(it.clone()),
                    left: Arc::clone(&left),
                })
            });
            let all = joint.each_ref().map(|it| Arc::clone(it) as Arc<dyn Device>);
            drop(Cache::open(on(all.to_vec(), policy)).unwrap());
            let copies = joint.each_ref().map(|it| it.inner.to_bytes());
            assert_eq!(with(&copies), whole, "{policy:?}, crash at write {crash}");
        }
        for device in 0..2 {
            for superblock in 0..2 {
                let mut damaged = images.clone();
                damaged[device][superblock * 4096 + 300] ^= 1;
                let what = format!("{policy:?}, device {device}, superblock {superblock}");
                assert_eq!(with(&damaged), whole, "{what}");
            }
        }
    }
}
