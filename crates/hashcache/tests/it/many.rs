//! Batches of lookups: every answer its own, the disk crossed once.

use std::sync::Arc;

use hashcache::device::{Device, Pace, ThrottleDevice};
use hashcache::{Cache, Lookup, PolicyKind};

use super::support::{KIB, MIB, POLICIES, Recorder, Value, copy, memory, open, quiet, read};

/// Threads of the engine that read: so many may be between taking a read and the device.
const READERS: usize = 16;
const OBJECTS: u64 = 200;

fn name(n: u64) -> Vec<u8> {
    format!("object {n}").into_bytes()
}

/// The content of a device of `bytes` after puts of objects 0 to 199, in this order.
fn filled(bytes: usize, policy: PolicyKind) -> Vec<u8> {
    let device = memory(bytes);
    let cache = open(quiet(device.clone(), policy));
    for n in 0..OBJECTS {
        Value::new(n, KIB).store(&cache, &name(n)).unwrap();
    }
    cache.close();
    device.to_bytes()
}

fn shuffled() -> Vec<Vec<u8>> {
    let mut numbers: Vec<u64> = (0..OBJECTS).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut numbers);
    numbers.into_iter().map(name).collect()
}

/// Looks for all names at once; every one must be there.
fn get_all(cache: &Cache, names: &[Vec<u8>]) {
    let asked: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for (name, answer) in names.iter().zip(cache.get_many(&asked)) {
        let hit = answer.wait().expect("it was put");
        assert!(read(&hit, name).is_some());
    }
}

#[test]
fn answers_come_in_the_order_of_the_names_wherever_they_come_from() {
    for policy in POLICIES {
        let cache = open(quiet(copy(filled(64 * MIB, policy)), policy));
        // One is hot, one is pending, the rest on disk or nowhere.
        assert!(cache.get(&name(7)).wait().is_some());
        let pending = Value::new(1000, 100 * KIB);
        pending.store(&cache, b"pending").unwrap();
        let long = vec![b'n'; 5000];
        let asked: [&[u8]; 9] = [
            b"object 9",
            b"none",
            b"object 3",
            b"pending",
            b"",
            b"object 7",
            &long,
            b"object 9",
            b"object 0",
        ];
        let answers = cache.get_many(&asked);
        assert!(matches!(answers[3], Lookup::Hit(_)));
        assert!(matches!(answers[5], Lookup::Hit(_)));
        let values: Vec<Option<Value>> = answers
            .into_iter()
            .zip(asked)
            .map(|(answer, name)| read(&answer.wait()?, name))
            .collect();
        let small = |put| Some(Value::new(put, KIB));
        let wanted = [
            small(9),
            None,
            small(3),
            Some(pending),
            None,
            small(7),
            None,
            small(9),
            small(0),
        ];
        assert_eq!(values, wanted, "{policy:?}");
        assert!(cache.get_many(&[]).is_empty());
    }
}

#[test]
fn reads_of_a_batch_go_out_in_position_order() {
    for policy in POLICIES {
        let bytes = filled(64 * MIB, policy);
        let device = Arc::new(Recorder::new(Arc::into_inner(copy(bytes)).unwrap()));
        let cache = open(quiet(device.clone() as Arc<dyn Device>, policy));
        device.take_reads();
        get_all(&cache, &shuffled());
        let offsets: Vec<u64> = device.take_reads().iter().map(|it| it.offset).collect();
        assert!(offsets.len() >= OBJECTS as usize);
        for (n, offset) in offsets.iter().enumerate() {
            // A thread may be late with its read, but none can be early: there are only so many.
            // (A few more because of equal tags, each of which is a read more.)
            let rank = offsets.iter().filter(|other| *other < offset).count();
            assert!(rank < n + READERS + 5, "{policy:?}: read {n} was {rank}th");
        }
    }
}

#[test]
fn a_batch_takes_a_disk_that_turns_less_time_than_its_look_ups_one_by_one() {
    let bytes = filled(64 * MIB, PolicyKind::Set);
    let time = |look_up: &dyn Fn(&Cache)| {
        let disk = "70".parse().unwrap();
        let device = ThrottleDevice::new(copy(bytes.clone()), disk, Pace::Modelled, 1);
        let device = Arc::new(device);
        let cache = open(quiet(device.clone() as Arc<dyn Device>, PolicyKind::Set));
        let before = device.figures();
        look_up(&cache);
        let after = device.figures();
        assert_eq!(after.reads - before.reads, OBJECTS);
        after.busy - before.busy
    };
    let one_by_one = time(&|cache| {
        for name in shuffled() {
            assert!(cache.get(&name).wait().is_some());
        }
    });
    let at_once = time(&|cache| get_all(cache, &shuffled()));
    assert!(4 * at_once < 3 * one_by_one, "{at_once:?}, {one_by_one:?}");
}
