//! Sectors that cannot be read: they cost what lies on them, and nothing else.

use std::ops::Range;
use std::sync::Arc;

use hashcache::device::{FaultDevice, MemoryDevice};
use hashcache::{Cache, Config, Health, PolicyKind};

use crate::support::{Form, MIB, Value, copy, forms, get, memory, open, quiet};

const BLOCK: usize = 4096;
const OBJECTS: u64 = 60;

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n:04}").into_bytes()
}

fn put(cache: &Cache, n: u64, put: u64) {
    Value::new(put, 300 + 70 * (n % 30) as usize)
        .store(cache, &name(n))
        .unwrap();
}

/// A store that a run before this has filled, on a device that is yet well.
fn filled(form: Form) -> Arc<FaultDevice> {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), form));
    (0..OBJECTS).for_each(|n| put(&cache, n, n));
    assert!(cache.flush().wait());
    cache.close();
    let inner = MemoryDevice::from_bytes(device.to_bytes());
    Arc::new(FaultDevice::new(inner, None))
}

/// The block in which the record of `n` begins; `None` where other names have evicted it, which
/// in the Disk Table depends on the store's secret.
fn block_of(media: &[u8], n: u64) -> Option<Range<u64>> {
    let name = name(n);
    let at = media.windows(name.len()).rposition(|it| it == name)?;
    let at = at / BLOCK * BLOCK;
    Some(at as u64..(at + BLOCK) as u64)
}

/// A stored name, and the block in which its record begins.
fn stored(media: &[u8]) -> (u64, Range<u64>) {
    let mut stored = (7..OBJECTS).filter_map(|n| Some((n, block_of(media, n)?)));
    stored.next().expect("some names are stored")
}

/// Without hot objects, so that every answer is read.
fn cold(device: Arc<FaultDevice>, form: Form) -> Config {
    Config {
        hot_bytes_max: 0,
        ..quiet(device, form)
    }
}

#[test]
fn one_bad_sector_costs_what_lies_on_it_however_often_it_is_asked_for() {
    for form in forms() {
        let device = filled(form);
        let (lost, bad) = stored(&device.media());
        device.refuse_reads(bad);
        let cache = open(cold(device.clone(), form));
        for _ in 0..100 {
            assert_eq!(get(&cache, &name(lost)), None, "{form:?}");
        }
        assert_eq!(cache.health(), Health::InService, "{form:?}");
        let found = (0..OBJECTS).filter(|n| get(&cache, &name(*n)).is_some());
        // Small records: in a log one block has up to eight of them. A set is lost whole.
        let found = found.count();
        assert!(found as u64 >= OBJECTS - 16, "{form:?}: {found}");
        let errors = cache.stats().read_errors;
        let forgets = matches!(form.policy, PolicyKind::Log | PolicyKind::LogLru);
        assert!(errors < 50 || !forgets, "{form:?}: {errors}");
        // It can be stored again, and is found then where it is written elsewhere.
        put(&cache, lost, 1000);
        assert!(cache.flush().wait());
        let again = get(&cache, &name(lost)).map(|it| it.put);
        assert!(again == Some(1000) || !forgets, "{form:?}");
        cache.close();
    }
}

#[test]
fn many_bad_places_take_the_device_out() {
    for form in forms() {
        let device = filled(form);
        let cache = open(cold(device.clone(), form));
        device.refuse_reads(0..16 * MIB as u64);
        for n in 0..OBJECTS {
            assert_eq!(get(&cache, &name(n)), None, "{form:?}");
        }
        // In a log all of these lie in one segment: that is one place.
        let in_one = matches!(form.policy, PolicyKind::Log | PolicyKind::LogLru);
        let out = cache.health() == Health::OutOfService;
        assert!(out != in_one, "{form:?}");
    }
}

#[test]
fn the_log_goes_round_a_segment_with_a_bad_sector_and_recovery_does_too() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru] {
        for readmission in [false, true] {
            let form = Form {
                readmission,
                ..Form::from(policy)
            };
            goes_round(form);
        }
    }
}

fn goes_round(form: Form) {
    let device = filled(form);
    let (lost, bad) = stored(&device.media());
    device.refuse_reads(bad.clone());
    let cache = open(cold(device.clone(), form));
    assert_eq!(get(&cache, &name(lost)), None);
    let before = device.media();
    let same = |media: &[u8]| {
        let range = usize::try_from(bad.start).unwrap()..usize::try_from(bad.end).unwrap();
        media[range.clone()] == before[range]
    };
    // Three laps and some, of names that are put again and again, each time in a newer version.
    let mut newest = std::collections::HashMap::new();
    for number in 0..700 {
        let n = number % 80;
        let value = Value::new(10_000 + number, 90_000);
        value.store(&cache, &name(n)).unwrap();
        newest.insert(n, value);
        if number % 5 == 4 {
            assert!(cache.flush().wait());
            assert!(same(&device.media()), "{form:?}: written to at {number}");
        }
        if number % 97 == 0 || number > 690 {
            // As after a kill: the device is well again, so that all is read that was written.
            assert!(cache.flush().wait());
            let again = open(cold(
                Arc::new(FaultDevice::new(
                    MemoryDevice::from_bytes(device.media()),
                    None,
                )),
                form,
            ));
            let mut found = 0;
            for (n, value) in &newest {
                match get(&again, &name(*n)) {
                    Some(it) => {
                        assert_eq!(it, *value, "{form:?}: an older version of {n} at {number}");
                        found += 1;
                    }
                    None => assert!(number > 80, "{form:?}: {n} lost at {number}"),
                }
            }
            assert!(
                found * 10 >= newest.len() * 9,
                "{form:?}: {found} at {number}"
            );
        }
    }
    assert_eq!(cache.stats().devices_out, 0);
    cache.close();
    let cache = open(quiet(copy(device.media()), form));
    let found = newest
        .iter()
        .filter(|(n, value)| get(&cache, &name(**n)) == Some(**value));
    assert!(found.count() * 10 >= newest.len() * 9);
}
