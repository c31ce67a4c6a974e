//! Scans and observers: together they know of every object that is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use hashcache::device::{Device, FaultDevice, MemoryDevice};
use hashcache::{
    Ban, Cache, Clock, Config, Event, Health, Hour, HourChange, Keep, MarkedObject, NoLists,
    Observation, PolicyKind, Put, Scan, ScanError, Update, Updated,
};

use super::support::{
    EVERY, Form, KIB, MIB, Recorder, SetOnDrop, content, copy, forms, memory, open, quiet, rounds,
};
use super::wrap::{Holding, Side};

/// 2026-11-23T12:00Z.
const NOW: u64 = 1_795_435_200;

fn log_forms() -> impl Iterator<Item = Form> {
    forms().filter(|it| matches!(it.policy, PolicyKind::Log | PolicyKind::LogLru))
}

/// A store in which time does not pass. Without hot objects, for those may outlive their entries.
fn store(device: Arc<dyn Device>, form: Form) -> Cache {
    open(Config {
        hot_bytes_max: 0,
        ..config(device, form)
    })
}

fn config(device: Arc<dyn Device>, form: Form) -> Config {
    let now = Duration::from_secs(NOW);
    Config {
        clock: Clock::new(|| Duration::ZERO, move || now),
        object_bytes: 12 << 10,
        ..quiet(device, form)
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

fn mark(n: u64) -> u128 {
    u128::from(n + 1) << 60 | 5
}

fn hour(n: u64) -> Option<Hour> {
    (!n.is_multiple_of(3)).then(|| Hour::from_unix_seconds(NOW + n * 3600).unwrap())
}

fn length(n: u64) -> usize {
    match n % 50 {
        7 => 300 * KIB,
        n => 300 + 90 * n as usize,
    }
}

fn put_as(cache: &Cache, n: u64, mark: u128) {
    let put = Put {
        mark,
        fresh_until: hour(n),
        group: n % 4,
        ..Put::metadata("m")
    };
    // As a caller does that has looked the name up, for example a proxy.
    let old = cache.get(&name(n)).wait();
    let intent = cache.intend(&name(n)).unwrap();
    let intent = match &old {
        Some(hit) => intent.replacing(hit),
        None => intent,
    };
    let mut writer = intent.writer(put).unwrap();
    writer.write(&content(&name(n), n, length(n))).unwrap();
    writer.commit().unwrap();
}

fn put(cache: &Cache, n: u64) {
    put_as(cache, n, mark(n));
}

fn fill(cache: &Cache, names: std::ops::Range<u64>) {
    for n in names {
        put(cache, n);
        if n % 100 == 99 {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
}

/// All that a scan gives out, and how many segments it could not read.
fn scan(cache: &Cache) -> (Vec<MarkedObject>, u64) {
    let mut scan = cache.scan().unwrap();
    let objects: Vec<_> = scan.by_ref().flat_map(|step| step.objects).collect();
    (objects, scan.unread_segments())
}

fn marks(objects: &[MarkedObject]) -> BTreeSet<u128> {
    objects.iter().map(|object| object.mark).collect()
}

/// The marks of the names below `names` that are stored.
fn stored(cache: &Cache, names: u64) -> BTreeSet<u128> {
    let found = |n: &u64| cache.get(&name(*n)).wait().is_some();
    (0..names).filter(found).map(mark).collect()
}

/// Marks that a sink has seen, and how often it was called for each kind of event.
#[derive(Default)]
struct Seen {
    marks: Mutex<BTreeSet<u128>>,
    batches: AtomicU64,
    reclaimed_bytes: AtomicU64,
}

impl Seen {
    fn observe(self: &Arc<Self>, cache: &Cache) -> Observation {
        let seen = Arc::clone(self);
        let sink = move |event: Event<'_>| match event {
            Event::Recorded { objects, .. } => {
                seen.marks.lock().unwrap().extend(marks(objects));
                seen.batches.fetch_add(1, Ordering::Relaxed);
            }
            Event::Reclaimed { segment_bytes, .. } => {
                let bytes = &seen.reclaimed_bytes;
                bytes.fetch_add(segment_bytes, Ordering::Relaxed);
            }
            _ => panic!("an event that this test does not know"),
        };
        cache.observe(sink).unwrap()
    }
}

/// That `given` has all of `stored`, and more only where the index knows no more than the tag and
/// lap of an object that it has displaced (`log-lru`, see [`Cache::scan`]).
fn assert_only_tags_confused(form: Form, stored: &BTreeSet<u128>, given: &BTreeSet<u128>) {
    let missing = stored - given;
    assert!(missing.is_empty(), "{form:?}: {missing:?}");
    let more = given - stored;
    let most = match form.policy {
        PolicyKind::Log => 0,
        _ => given.len() / 20,
    };
    assert!(more.len() <= most, "{form:?}: {more:?}");
}

#[test]
fn a_scan_gives_out_the_marks_of_what_is_stored() {
    for form in log_forms() {
        let device = memory(24 * MIB);
        let cache = store(device.clone(), form);
        fill(&cache, 0..600);
        // No mark.
        (600..650).for_each(|n| put_as(&cache, n, 0));
        (0..50).for_each(|n| cache.invalidate(&name(n * 3)));
        // Replaced under another mark, which goes; and under none.
        (400..420).for_each(|n| put_as(&cache, n, mark(n + 1_000)));
        (420..440).for_each(|n| put_as(&cache, n, 0));
        assert!(cache.flush().wait());
        let replaced = |marks: &mut BTreeSet<u128>| {
            for n in 400..440 {
                if marks.remove(&mark(n)) && n < 420 {
                    marks.insert(mark(n + 1_000));
                }
            }
        };
        let mut expected = stored(&cache, 600);
        replaced(&mut expected);
        assert!(expected.len() > 450, "{form:?}");
        let (objects, unread) = scan(&cache);
        let given = marks(&objects);
        assert_eq!((objects.len(), unread), (given.len(), 0), "{form:?}");
        assert_only_tags_confused(form, &expected, &given);
        for object in &objects {
            let n = (object.mark >> 60) as u64 - 1;
            let expected = hour(if n >= 1_000 { n - 1_000 } else { n });
            assert_eq!(object.fresh_until, expected, "{form:?} {n}");
            let head = length(n % 1_000).min(64 * KIB) as u64;
            let padded = head..head + 4 * KIB as u64;
            assert!(padded.contains(&object.head_bytes), "{form:?} {object:?}");
        }
        // After a crash, and after a stop.
        let killed = store(copy(device.to_bytes()), form);
        cache.close();
        let stopped = store(device, form);
        for cache in [killed, stopped] {
            let mut now_stored = stored(&cache, 600);
            replaced(&mut now_stored);
            let (objects, unread) = scan(&cache);
            assert_eq!(unread, 0, "{form:?}");
            // An index that was made anew from the lists does not know what replaced what.
            let mut given = marks(&objects);
            (400..440).for_each(|n| _ = given.remove(&mark(n)));
            assert_only_tags_confused(form, &now_stored, &given);
        }
    }
}

#[test]
fn what_the_log_has_overwritten_or_a_full_row_evicted_is_left_out() {
    for form in log_forms() {
        let cache = store(memory(8 * MIB), form);
        let names = 4_000 * rounds();
        for first in (0..names).step_by(500) {
            fill(&cache, first..first + 500);
            let (objects, unread) = scan(&cache);
            let given = marks(&objects);
            let stored = stored(&cache, first + 500);
            assert_eq!(unread, 0, "{form:?}");
            assert!(stored.is_subset(&given), "{form:?} at {first}");
            let more = given.len() - stored.len();
            let most = match form.policy {
                PolicyKind::Log => 0,
                _ => given.len() / 20,
            };
            assert!(more <= most, "{form:?}: {more} of {}", given.len());
        }
        let early = cache.stats().early_evictions;
        assert!(early > 0, "{form:?}: nothing was evicted early");
    }
}

#[test]
fn pending_objects_are_given_out_without_a_read() {
    for form in log_forms() {
        // With some secrets two names have equal tags in one row, and one is forgotten with the
        // other.
        let cache = open(Config {
            hot_bytes_max: 0,
            name_secret: Some(*b"no equal tags !!"),
            ..config(memory(16 * MIB), form)
        });
        (0..40).for_each(|n| put(&cache, n));
        let steps: Vec<_> = cache.scan().unwrap().collect();
        let given: Vec<_> = steps.iter().flat_map(|it| it.objects.clone()).collect();
        assert_eq!(marks(&given), (0..40).map(mark).collect());
        assert!(given.iter().all(|object| object.head_bytes >= 512));
        assert_eq!(steps.iter().map(|it| it.read_bytes).sum::<u64>(), 0);
        // Pending again under another mark: the line of the older version does not count.
        assert!(cache.flush().wait());
        put_as(&cache, 1, mark(100));
        put_as(&cache, 2, 0);
        cache.invalidate(&name(3));
        let mut expected: BTreeSet<_> = (0..40).map(mark).collect();
        (1..4).for_each(|n| assert!(expected.remove(&mark(n))));
        expected.insert(mark(100));
        assert_eq!(marks(&scan(&cache).0), expected, "{form:?}");
    }
}

#[test]
fn an_object_that_is_not_complete_is_not_given_out_until_it_is() {
    let device = memory(16 * MIB);
    let form = Form::from(PolicyKind::Log);
    let cache = store(device.clone(), form);
    let seen = Arc::new(Seen::default());
    let _observation = seen.observe(&cache);
    let put = |n| Put {
        mark: mark(n),
        keep: Keep::Partial,
        ..Put::metadata("m")
    };
    let mut writer = cache.intend(b"1").unwrap().writer(put(1)).unwrap();
    writer.write(&vec![1; 100 * KIB]).unwrap();
    let incomplete = cache.intend(b"2").unwrap().incomplete(put(2)).unwrap();
    assert_eq!(incomplete.mark(), mark(2));
    assert_eq!(scan(&cache), (vec![], 0));
    assert!(cache.flush().wait());
    assert_eq!(cache.get(b"1").wait().unwrap().mark(), mark(1));
    assert_eq!(scan(&cache), (vec![], 0));
    assert_eq!(*seen.marks.lock().unwrap(), BTreeSet::new());
    writer.commit().unwrap();
    assert!(cache.flush().wait());
    let expected = BTreeSet::from([mark(1)]);
    assert_eq!(marks(&scan(&cache).0), expected);
    assert_eq!(*seen.marks.lock().unwrap(), expected);
    let killed = store(copy(device.to_bytes()), form);
    assert_eq!(marks(&scan(&killed).0), expected);
}

#[test]
fn an_update_keeps_the_mark_and_keeps_or_sets_the_hour() {
    for form in log_forms() {
        let device = memory(16 * MIB);
        let cache = store(device.clone(), form);
        put(&cache, 1);
        assert!(cache.flush().wait());
        // The newest is last: older ones are given out too by an index that was made anew.
        let of = |cache: &Cache| {
            let (objects, _) = scan(cache);
            assert_eq!(marks(&objects), BTreeSet::from([mark(1)]), "{form:?}");
            objects.last().unwrap().fresh_until
        };
        for (change, expected) in [
            (HourChange::Keep, hour(1)),
            (HourChange::Set(hour(500)), hour(500)),
            (HourChange::Keep, hour(500)),
            (HourChange::Set(None), None),
            (HourChange::Set(hour(40)), hour(40)),
        ] {
            let version = cache.get(&name(1)).wait().unwrap().version();
            let update = Update {
                fresh_until: change,
                ..Update::metadata("new")
            };
            let updated = cache.update(&name(1), version, update).wait();
            assert_eq!(updated, Updated::Done);
            assert_eq!(of(&cache), expected, "{form:?} {change:?}");
            assert!(cache.flush().wait());
            assert_eq!(of(&cache), expected, "{form:?} {change:?}");
            // From a record that is read from the disk too.
            let cold = store(copy(device.to_bytes()), form);
            let updated = cold.update_metadata(&name(1), version, "newer".into());
            assert_eq!(updated.wait(), Updated::Done);
            assert!(cold.flush().wait());
            assert_eq!(of(&cold), expected, "{form:?} {change:?}");
        }
    }
}

#[test]
fn a_copy_for_another_lap_keeps_mark_and_hour_and_is_reported() {
    let form = Form {
        readmission: true,
        ..Form::from(PolicyKind::Log)
    };
    // With hot objects: those are known to be in use.
    let cache = open(config(memory(8 * MIB), form));
    let seen = Arc::new(Seen::default());
    fill(&cache, 0..50);
    let observation = seen.observe(&cache);
    for first in (1_000..6_000).step_by(100) {
        fill(&cache, first..first + 100);
        (0..20).for_each(|n| drop(cache.get(&name(n)).wait()));
    }
    drop(observation);
    assert!(cache.stats().readmitted > 0);
    let reported = seen.marks.lock().unwrap().clone();
    let (objects, _) = scan(&cache);
    let given = marks(&objects);
    let kept: Vec<_> = (0..20).filter(|n| given.contains(&mark(*n))).collect();
    assert!(kept.len() > 5, "{kept:?}");
    let hours: BTreeMap<_, _> = objects.iter().map(|it| (it.mark, it.fresh_until)).collect();
    for n in kept {
        assert!(reported.contains(&mark(n)), "{n}");
        assert_eq!(hours.get(&mark(n)), Some(&hour(n)), "{n}");
    }
}

#[test]
fn a_ban_of_everything_leaves_nothing_to_give_out() {
    for form in log_forms() {
        let cache = store(memory(16 * MIB), form);
        fill(&cache, 0..100);
        put(&cache, 100);
        // Softly: stale objects are stored.
        cache
            .remove_matching(&[Ban::prefix(b"").softly()])
            .wait()
            .unwrap();
        assert_eq!(marks(&scan(&cache).0), stored(&cache, 101));
        cache.remove_matching(&[Ban::prefix(b"")]).wait().unwrap();
        assert_eq!(scan(&cache), (vec![], 0), "{form:?}");
        put(&cache, 101);
        assert_eq!(marks(&scan(&cache).0), BTreeSet::from([mark(101)]));
    }
}

#[test]
fn a_store_on_several_devices_gives_out_what_counts_on_each() {
    let (a, b) = (memory(16 * MIB), memory(16 * MIB));
    let on = |devices: Vec<Arc<dyn Device>>| {
        let first = Arc::clone(&devices[0]);
        open(Config {
            devices,
            memory_bytes: 32 * MIB as u64,
            ..quiet(first, PolicyKind::Log)
        })
    };
    let cache = on(vec![a.clone(), b.clone()]);
    let seen = Arc::new(Seen::default());
    let observation = seen.observe(&cache);
    fill(&cache, 0..300);
    drop(observation);
    let everything = stored(&cache, 300);
    assert_eq!(marks(&scan(&cache).0), everything);
    assert!(everything.is_subset(&seen.marks.lock().unwrap()));
    cache.close();
    // Alone, one has its share. What the other one holds when it is back does not count, because
    // its names belonged to this one meanwhile.
    let alone = on(vec![a.clone()]);
    assert_eq!(marks(&scan(&alone).0), stored(&alone, 300));
    (0..20).for_each(|n| alone.invalidate(&name(n)));
    alone.close();
    let both = on(vec![a, b]);
    assert_eq!(marks(&scan(&both).0), stored(&both, 300));
    both.close();
}

#[test]
fn a_device_that_fails_ends_its_part_of_a_scan_and_a_store_without_devices_refuses_one() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 * MIB), None));
    let cache = store(device.clone(), PolicyKind::Log.into());
    fill(&cache, 0..300);
    let mut scan = cache.scan().unwrap();
    assert!(scan.next().is_some());
    device.refuse_reads(0..16 * MIB as u64);
    let mut n = 0;
    while cache.health() == Health::InService {
        drop(cache.get(&name(n % 300)).wait());
        n += 1;
        assert!(n < 100_000, "the device stays in service");
    }
    assert_eq!(scan.next(), None);
    assert_eq!(cache.scan().err(), Some(ScanError::OutOfService));
}

#[test]
fn policies_with_a_disk_table_refuse_scans_and_observers_and_say_why() {
    for policy in EVERY {
        let cache = store(memory(16 * MIB), policy.into());
        let is_log = matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
        assert_eq!(cache.scan().is_ok(), is_log, "{policy:?}");
        assert_eq!(cache.observe(|_| {}).is_ok(), is_log, "{policy:?}");
        if !is_log {
            let no_lists = NoLists {
                policy: policy.name(),
            };
            let error = cache.scan().err().unwrap();
            assert_eq!(error, ScanError::NoLists(no_lists));
            assert_eq!(cache.observe(|_| {}).err(), Some(no_lists));
            let message = error.to_string();
            assert!(message.contains(policy.name()) && message.contains("`log-lru`"));
        }
    }
}

// -- observers --------------------------------------------------------------------------------

#[test]
fn an_observer_hears_of_each_batch_and_each_segment_until_it_is_dropped() {
    for form in log_forms() {
        let cache = store(memory(8 * MIB), form);
        let seen = Arc::new(Seen::default());
        let observation = seen.observe(&cache);
        fill(&cache, 0..100);
        assert_eq!(*seen.marks.lock().unwrap(), (0..100).map(mark).collect());
        // In the first lap nothing is overwritten.
        assert_eq!(seen.reclaimed_bytes.load(Ordering::Relaxed), 0);
        fill(&cache, 100..3_000);
        let log_bytes = cache.stats().log_bytes;
        let put_bytes: u64 = (0..3_000).map(|n| length(n) as u64).sum();
        let reclaimed = seen.reclaimed_bytes.load(Ordering::Relaxed);
        assert!(put_bytes > 2 * log_bytes);
        let expected = put_bytes - log_bytes..put_bytes * 3 / 2;
        assert!(expected.contains(&reclaimed), "{form:?}: {reclaimed}");
        let batches = seen.batches.load(Ordering::Relaxed);
        drop(observation);
        fill(&cache, 3_000..3_100);
        assert_eq!(seen.batches.load(Ordering::Relaxed), batches);
        assert!(!seen.marks.lock().unwrap().contains(&mark(3_050)));
    }
}

/// A scan relies on it: what the index shows to have moved was reported.
#[test]
fn a_sink_runs_before_the_index_has_the_batch_and_without_a_lock_of_the_engine() {
    let cache = store(memory(16 * MIB), PolicyKind::Log.into());
    put(&cache, 0);
    assert!(cache.flush().wait());
    let from_memory = Arc::new(AtomicU64::new(0));
    let (own, count) = (cache.clone(), Arc::clone(&from_memory));
    let sink = move |event: Event<'_>| {
        let Event::Recorded { objects, .. } = event else {
            return;
        };
        for object in objects {
            let n = (object.mark >> 60) as u64 - 1;
            let before = own.stats().pending_hits;
            assert!(own.get(&name(n)).wait().is_some());
            count.fetch_add(own.stats().pending_hits - before, Ordering::Relaxed);
        }
        // All of these take the locks of shards, of bans and of the queue.
        own.invalidate(&name(0));
        drop(own.remove_matching(&[Ban::prefix(b"nothing")]));
        assert!(own.scan().unwrap().count() > 0);
        assert!(own.observe(|_| {}).is_ok());
    };
    let observation = cache.observe(sink).unwrap();
    (1..40).for_each(|n| put(&cache, n));
    assert!(cache.flush().wait());
    assert!(!observation.has_failed());
    assert_eq!(from_memory.load(Ordering::Relaxed), 39);
    assert!(cache.get(&name(0)).wait().is_none());
    drop(observation);
}

#[test]
fn a_sink_that_panics_costs_its_caller_nothing_else() {
    let cache = store(memory(16 * MIB), PolicyKind::Log.into());
    let observation = cache.observe(|_| panic!("planted by this test")).unwrap();
    fill(&cache, 0..100);
    assert!(observation.has_failed());
    assert_eq!(cache.health(), Health::InService);
    assert_eq!(stored(&cache, 100).len(), 100);
}

// -- lists ------------------------------------------------------------------------------------

/// Where each footer of a closed segment of 1 MiB begins, and the blocks with headers of batches.
fn blocks(bytes: &[u8], magic: &[u8; 4]) -> Vec<usize> {
    let at = |block: usize| block * 4096;
    let begins = |block: &usize| match magic {
        b"HCft" => &bytes[at(*block) + 4096 - 56..][..4] == magic,
        _ => &bytes[at(*block) + 8..][..4] == magic,
    };
    (0..bytes.len() / 4096).filter(begins).map(at).collect()
}

#[test]
fn a_scan_reads_one_list_a_segment_and_no_record() {
    let device = Arc::new(Recorder::new(MemoryDevice::new(24 * MIB)));
    let cache = store(device.clone(), PolicyKind::Log.into());
    fill(&cache, 0..1_500);
    let objects = scan(&cache).0.len();
    device.take_reads();
    let steps: Vec<_> = cache.scan().unwrap().collect();
    let reads = device.take_reads();
    let read_bytes: u64 = reads.iter().map(|it| it.length as u64).sum();
    assert_eq!(read_bytes, steps.iter().map(|it| it.read_bytes).sum());
    let sealed = blocks(&device.inner.to_bytes(), b"HCft").len();
    assert!(sealed > 8, "{sealed}");
    // One for each segment with a footer; the open one has less than four windows.
    assert!(
        (sealed..=sealed + 5).contains(&reads.len()),
        "{sealed} {}",
        reads.len()
    );
    assert!(steps.iter().all(|it| it.read_bytes <= 2 * 256 * KIB as u64));
    let given: usize = steps.iter().map(|it| it.objects.len()).sum();
    assert_eq!(given, objects);
}

#[test]
fn a_damaged_list_costs_no_more_than_its_segment_and_is_counted() {
    let device = memory(24 * MIB);
    let cache = store(device.clone(), PolicyKind::Log.into());
    fill(&cache, 0..1_500);
    let everything = marks(&scan(&cache).0);
    let footers = blocks(&device.to_bytes(), b"HCft");
    assert!(footers.len() > 8);
    // Without its footer a segment is read by the headers of its batches.
    let footer = footers[3];
    device.alter(|bytes| bytes[footer + 4000] ^= 1);
    assert_eq!(scan(&cache), (scan(&cache).0, 0));
    assert_eq!(marks(&scan(&cache).0), everything);
    // A damaged header then costs what follows it.
    let segment = footer + 4096 - MIB;
    let headers = blocks(&device.to_bytes(), b"HCba");
    let mut headers = headers.iter().filter(|at| (segment..footer).contains(*at));
    let second = *headers.nth(1).unwrap();
    device.alter(|bytes| bytes[second + 70] ^= 1);
    let (objects, unread) = scan(&cache);
    let lost = everything.difference(&marks(&objects)).count();
    assert_eq!(unread, 1);
    assert!(lost > 0 && lost < everything.len() / 8, "{lost}");
    // The first one too: nothing of the segment is left, not even a claim.
    device.alter(|bytes| bytes[segment..segment + 64].fill(0));
    let (objects, unread) = scan(&cache);
    let all_lost = everything.difference(&marks(&objects)).count();
    assert_eq!(unread, 1);
    assert!(
        all_lost > lost && all_lost < everything.len() / 8,
        "{all_lost}"
    );
    assert_eq!(stored(&cache, 1_500), everything, "only the list is gone");
}

#[test]
fn a_list_that_the_device_refuses_to_read_costs_its_segment_and_is_counted() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(24 * MIB), None));
    let cache = store(device.clone(), PolicyKind::Log.into());
    fill(&cache, 0..1_500);
    let everything = marks(&scan(&cache).0);
    let footer = blocks(&device.media(), b"HCft")[3];
    let segment = (footer + 4096 - MIB) as u64;
    device.refuse_reads(footer as u64..footer as u64 + 4096);
    // Records near it are read together with it, so the last batches may be lost.
    let (objects, unread) = scan(&cache);
    let few = everything.difference(&marks(&objects)).count();
    assert!(unread <= 1 && few < everything.len() / 8, "{unread} {few}");
    device.refuse_reads(segment..segment + 4096);
    let (objects, unread) = scan(&cache);
    let lost = everything.difference(&marks(&objects)).count();
    assert_eq!(unread, 1);
    assert!(lost > few && lost < everything.len() / 8, "{lost}");
    assert_eq!(cache.health(), Health::InService);
}

/// Bytes of a client at the end of a segment: they claim to be a footer as long as the segment.
#[test]
fn what_only_claims_to_be_a_long_list_is_not_read() {
    let device = Arc::new(Recorder::new(MemoryDevice::new(24 * MIB)));
    let cache = store(device.clone(), PolicyKind::Log.into());
    fill(&cache, 0..1_500);
    let everything = marks(&scan(&cache).0);
    let footers = blocks(&device.inner.to_bytes(), b"HCft");
    for (n, footer) in footers.iter().enumerate().skip(2).take(3) {
        let lines = [18_000_u32, 10_000, u32::MAX][n - 2];
        let count = footer + 4096 - 52;
        device
            .inner
            .alter(|bytes| bytes[count..count + 4].copy_from_slice(&lines.to_le_bytes()));
    }
    device.take_reads();
    assert_eq!(marks(&scan(&cache).0), everything);
    let longest = device.take_reads().iter().map(|it| it.length).max();
    assert!(longest <= Some(256 * KIB), "{longest:?}");
    let used = cache.stats().memory_used_bytes;
    assert_eq!(scan(&cache).1, 0);
    assert_eq!(
        cache.stats().memory_used_bytes,
        used,
        "memory of a scan is kept"
    );
}

// -- at the same time ---------------------------------------------------------------------------

/// Changes between two steps of a scan stand for changes at any moment.
#[test]
fn a_name_that_moves_behind_the_scan_was_reported() {
    for form in log_forms() {
        let cache = store(memory(16 * MIB), form);
        let seen = Arc::new(Seen::default());
        fill(&cache, 0..1_000);
        let _observation = seen.observe(&cache);
        let before = stored(&cache, 1_000);
        let mut scan = cache.scan().unwrap();
        let mut given = BTreeSet::new();
        let mut random = fastrand::Rng::with_seed(4);
        for step in scan.by_ref() {
            given.extend(marks(&step.objects));
            (0..20).for_each(|_| put(&cache, random.u64(..1_000)));
            match random.u32(..3) {
                0 => assert!(cache.flush().wait()),
                1 => assert!(cache.cut_batch().wait()),
                _ => {}
            }
        }
        assert_eq!(scan.unread_segments(), 0);
        // An object that was put since the start and is still pending is reported when it is
        // written.
        assert!(cache.flush().wait());
        let reported = seen.marks.lock().unwrap().clone();
        assert!(!reported.is_empty() && !given.is_superset(&before));
        let after = stored(&cache, 1_000);
        let known: BTreeSet<_> = given.union(&reported).copied().collect();
        let missed: Vec<_> = after.difference(&known).collect();
        assert!(missed.is_empty(), "{form:?}: {missed:?}");
    }
}

/// While a list is read, its segment is overwritten.
#[test]
fn a_segment_that_is_overwritten_while_its_list_is_read_gives_nothing_wrong() {
    for side in [Side::Before, Side::Behind] {
        let device = Holding::new(8 * MIB);
        let cache = store(device.clone(), PolicyKind::Log.into());
        fill(&cache, 0..2_000);
        device.hold(0, side);
        let scanning = cache.clone();
        let scan = std::thread::spawn(move || scan(&scanning));
        device.wait_until_held();
        fill(&cache, 2_000..2_300);
        device.release();
        let (objects, unread) = scan.join().unwrap();
        assert!(marks(&objects).is_subset(&stored(&cache, 2_300)));
        assert!(unread <= 1, "{unread}");
    }
}

/// Runs `scan` to its end, a step whenever the others have gone on.
fn paced(mut scan: Scan, given: &mut BTreeSet<u128>) -> u64 {
    for step in scan.by_ref() {
        given.extend(marks(&step.objects));
        std::thread::yield_now();
    }
    scan.unread_segments()
}

const NAMES: u64 = 3_000;

#[test]
fn scan_and_observer_know_of_all_that_is_stored_whatever_happens_meanwhile() {
    for form in log_forms() {
        let cache = open(Config {
            batch_delay: Duration::from_millis(1),
            sync_interval: Duration::from_millis(5),
            object_bytes: 12 << 10,
            hot_bytes_max: 0,
            ..quiet(memory(8 * MIB), form)
        });
        fill(&cache, 0..NAMES);
        // Held by all while they change something; by the test alone while nothing may change.
        let (over, still) = (AtomicBool::new(false), RwLock::new(()));
        std::thread::scope(|scope| {
            let (cache, over, still) = (&cache, &over, &still);
            for seed in 0..3 {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    while !over.load(Ordering::Relaxed) {
                        let _changing = still.read().unwrap();
                        change_something(cache, &mut random);
                    }
                });
            }
            let _over = SetOnDrop(over);
            for round in 0..20 * rounds() {
                let seen = Arc::new(Seen::default());
                let observation = seen.observe(cache);
                let mut given = BTreeSet::new();
                let unread = paced(cache.scan().unwrap(), &mut given);
                // An object that was put during the scan is reported when it is written.
                let _still = still.write().unwrap();
                assert!(cache.flush().wait());
                given.extend(seen.marks.lock().unwrap().iter());
                let stored = stored(cache, NAMES);
                let missed: Vec<_> = stored.difference(&given).collect();
                assert!(stored.len() > 100, "{form:?}: {}", stored.len());
                assert!(
                    missed.is_empty() || unread > 0,
                    "{form:?} in round {round}: {missed:?}"
                );
                drop(observation);
            }
        });
    }
}

/// Puts, removes, updates, bans or looks up a name.
fn change_something(cache: &Cache, random: &mut fastrand::Rng) {
    let n = random.u64(..NAMES);
    match random.u32(..100) {
        0..30 => {
            let put = Put {
                mark: mark(n),
                ..Put::metadata("m")
            };
            let content = content(&name(n), n, length(n));
            // Superseded, or too much waits: not stored then.
            let _ = cache.put(&name(n), put, &content);
        }
        30..35 => cache.invalidate(&name(n)),
        35..40 => {
            let Some(hit) = cache.get(&name(n)).wait() else {
                return;
            };
            drop(cache.update_metadata(&name(n), hit.version(), "new".into()));
        }
        // Rarely: too many bans become one of everything.
        40 if random.u32(..100) == 0 => {
            drop(cache.remove_matching(&[Ban::prefix(&name(n))]));
        }
        // Some are in use, so that they are readmitted.
        40..70 => drop(cache.get(&name(n % 50)).wait()),
        _ => drop(cache.get(&name(n)).wait()),
    }
}
