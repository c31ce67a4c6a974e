//! Every write can be the last: a mixed workload is ended at each of its writes in turn, in several
//! ways, and what is left is opened.
//!
//! The rule. After a crash a lookup gives a miss, or a whole value that was once committed under
//! that very name, that no remove or purge which had returned took away, and that nothing has
//! replaced before a flush that had returned. One device call that is lost or damaged while all
//! others arrive may void the removes that were new in it and bring back what was replaced in it.
//!
//! A label is that of a put, not of a name: a purge that matches the newest version of a name takes
//! all older ones with it, whatever their labels.

use std::collections::HashMap;
use std::sync::Arc;

use hashcache::device::{Fault, FaultDevice, MemoryDevice};
use hashcache::{Ban, Cache, PolicyKind, Put, Updated, Version};

use super::support::{
    Call, Form, KIB, LABELS, MIB, Overlay, Recorder, Value, copy, forms, get, label, memory, open,
    quiet, rounds,
};

/// Lengths that make the log wrap, and lengths that make many writes of little.
const LARGE: &[usize] = &[
    0,
    300,
    2_000,
    9_000,
    64 * KIB,
    64 * KIB + 1,
    320 * KIB,
    900 * KIB,
    MIB + 64 * KIB,
];
const SMALL: &[usize] = &[
    0,
    300,
    2_000,
    9_000,
    30_000,
    64 * KIB,
    64 * KIB + 1,
    200 * KIB,
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Put(usize),
    Update,
    Remove,
    /// All that was put with this label, whatever the name.
    PurgeLabel(u64),
    /// All names that begin like this one.
    PurgePrefix,
    Read,
    Flush,
}

/// One step of the workload: the name it is for, and what is done.
type Step = (usize, Op);

/// An event for a name, and the writes of the device between which it happened.
#[derive(Clone, Copy, Debug)]
struct Event {
    what: Happened,
    /// Which step of the workload it was.
    step: usize,
    /// Writes that had arrived before it was asked for, and when it had returned.
    before: usize,
    after: usize,
}

#[derive(Clone, Copy, Debug)]
enum Happened {
    Put(Value, Version),
    Updated(Value, Version),
    Removed,
    /// All that had this label was purged.
    Purged(u64),
    Flushed,
}

#[derive(Default)]
struct History {
    events: HashMap<usize, Vec<Event>>,
    flushes: Vec<Event>,
}

/// Names of the workload.
const NAMES: usize = 12;

fn name(n: usize) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// Names replaced by longer and shorter contents, updated, removed, read while replaced.
fn workload(seed: u64, steps: usize, lengths: &[usize]) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(seed);
    // An object of five spans replaced by one of three, always.
    let mut all = vec![
        (0, Op::Put(MIB + 64 * KIB)),
        (0, Op::Flush),
        (0, Op::Put(500 * KIB)),
    ];
    while all.len() < steps {
        let op = match random.u32(..100) {
            0..45 => Op::Put(lengths[random.usize(..lengths.len())]),
            45..60 => Op::Update,
            60..69 => Op::Remove,
            69..73 => Op::PurgeLabel(random.u64(..LABELS)),
            73 => Op::PurgePrefix,
            74..80 => Op::Read,
            _ => Op::Flush,
        };
        all.push((random.usize(..NAMES), op));
    }
    all.push((0, Op::Flush));
    all
}

/// Runs the workload; `writes` tells how many writes the device has seen.
fn run(cache: &Cache, steps: &[Step], writes: &dyn Fn() -> usize) -> History {
    let mut history = History::default();
    let mut last: HashMap<usize, (Value, Version)> = HashMap::new();
    for (number, (n, op)) in steps.iter().enumerate() {
        let name = name(*n);
        let before = writes();
        let what = match op {
            Op::Put(length) => {
                let value = Value::new(number as u64, *length);
                let intent = cache.intend(&name).unwrap();
                // Known before it can be seen: after a fault the put may be seen without returning.
                let version = intent.version();
                let put = Put {
                    length: None,
                    group: number as u64 % 4,
                    labels: value.labels(cache),
                    ..Put::metadata(value.metadata())
                };
                let stored = intent.writer(put).and_then(|mut writer| {
                    writer.write(&value.content(&name))?;
                    writer.commit()
                });
                stored.is_ok().then(|| {
                    last.insert(*n, (value, version));
                    Happened::Put(value, version)
                })
            }
            Op::Update => last.get(n).copied().and_then(|(value, version)| {
                let value = Value {
                    revision: value.revision + 1,
                    ..value
                };
                let updated = cache
                    .update_metadata(&name, version, value.metadata())
                    .wait();
                (updated == Updated::Done).then(|| {
                    last.insert(*n, (value, version));
                    Happened::Updated(value, version)
                })
            }),
            Op::Remove => {
                last.remove(n);
                cache.remove(&name).wait().ok().map(|()| Happened::Removed)
            }
            Op::PurgeLabel(drawn) => {
                last.retain(|_, (value, _)| value.label() != Some(*drawn));
                let ban = Ban::label(label(cache, *drawn));
                let done = cache.remove_matching(&[ban]).wait().is_ok();
                done.then_some(Happened::Purged(*drawn))
            }
            Op::PurgePrefix => {
                let is_taken = |other: &usize| super::crash::name(*other).starts_with(&name);
                last.retain(|other, _| !is_taken(other));
                let ban = Ban::prefix(&name).within(b"http://example.org/");
                let done = cache.remove_matching(&[ban]).wait().is_ok();
                let after = writes();
                for other in (0..NAMES).filter(|it| done && it != n && is_taken(it)) {
                    history.events.entry(other).or_default().push(Event {
                        what: Happened::Removed,
                        step: number,
                        before,
                        after,
                    });
                }
                done.then_some(Happened::Removed)
            }
            Op::Read => {
                if let Some(hit) = cache.get(&name).wait() {
                    let _ = hit.reader(100_000..500_000).read_to_vec();
                }
                None
            }
            Op::Flush => cache.flush().wait().then_some(Happened::Flushed),
        };
        let Some(what) = what else { continue };
        let event = Event {
            what,
            step: number,
            before,
            after: writes(),
        };
        match what {
            Happened::Flushed => history.flushes.push(event),
            Happened::Purged(_) => {
                for n in 0..NAMES {
                    history.events.entry(n).or_default().push(event);
                }
            }
            _ => history.events.entry(*n).or_default().push(event),
        }
    }
    history
}

/// What of the history had happened when the writes below `arrived` had arrived and no others.
/// Writes in `void` did not.
fn verify(
    cache: &Cache,
    history: &History,
    arrived: usize,
    void: Option<usize>,
    what: &str,
) -> usize {
    let mut found = 0;
    for (n, events) in &history.events {
        let name = name(*n);
        let Some(hit) = cache.get(&name).wait() else {
            continue;
        };
        let version = hit.version();
        let Some(value) = super::support::read(&hit, &name) else {
            continue;
        };
        found += 1;
        let position = events.iter().rposition(|event| match event.what {
            Happened::Put(put, of) | Happened::Updated(put, of) => {
                put == value && of == version && event.before <= arrived
            }
            _ => false,
        });
        let position = position.unwrap_or_else(|| panic!("{what}: {value:?} was never committed"));
        let is_void =
            |event: &Event| void.is_some_and(|n| (event.before..event.after).contains(&n));
        let removed = (position..events.len()).find(|at| {
            let event = &events[*at];
            // The newest version may be what was lost: a purge that it matched took it alone then.
            let before = if void.is_some() { &[] } else { &events[..*at] };
            event.after <= arrived && !is_void(event) && takes(before, event.what, value)
        });
        let removed = removed.map(|at| events[at]);
        assert!(
            removed.is_none(),
            "{what}: {value:?} came back: {removed:?}"
        );
        let flush = history.flushes.iter().rfind(|it| it.after <= arrived);
        let flushed = flush.map_or(0, |it| it.step);
        let is_put = |it: &&Event| matches!(it.what, Happened::Put(..) | Happened::Updated(..));
        let mut replaced = events[position + 1..].iter().filter(is_put);
        let replaced = replaced.find(|it| it.step < flushed && void.is_none());
        assert!(
            replaced.is_none(),
            "{what}: {value:?} was replaced by {replaced:?} before the flush of step {flushed}"
        );
    }
    found
}

/// Returns true if `what`, which happened after `before`, takes `value` away.
fn takes(before: &[Event], what: Happened, value: Value) -> bool {
    let Happened::Purged(label) = what else {
        return matches!(what, Happened::Removed);
    };
    // With the newest version all older ones go, whatever their labels.
    let newest = before.iter().rev().find_map(|event| match event.what {
        Happened::Put(newest, _) | Happened::Updated(newest, _) => Some(newest),
        _ => None,
    });
    [Some(value), newest]
        .into_iter()
        .flatten()
        .any(|it| it.label() == Some(label))
}

/// What must be there when the writes below `arrived` have: names put before the last flush that
/// has returned, and not touched since, nor so long ago that the log may have wrapped.
fn due(history: &History, arrived: usize, recent: impl Fn(usize) -> bool) -> Vec<(usize, Value)> {
    let Some(flush) = history.flushes.iter().rfind(|event| event.after <= arrived) else {
        return Vec::new();
    };
    let last = |(n, events): (&usize, &Vec<Event>)| {
        let happened = events.iter().filter(|event| event.before <= arrived);
        // A purge of a label that it does not have leaves it where it is.
        let last = happened
            .rev()
            .find(|event| !matches!(event.what, Happened::Purged(_)))?;
        let (value, version) = match last.what {
            Happened::Put(value, version) | Happened::Updated(value, version) => (value, version),
            _ => return None,
        };
        let is_purged = |event: &Event| {
            let begun = event.step > last.step && event.before <= arrived;
            begun && takes(&[], event.what, value)
        };
        if events.iter().any(is_purged) {
            return None;
        }
        // An update leaves the spans where the put has written them.
        let of_put = |event: &&Event| matches!(event.what, Happened::Put(_, of) if of == version);
        let put = events.iter().find(of_put)?;
        (last.step < flush.step && recent(put.before)).then_some((*n, value))
    };
    history.events.iter().filter_map(last).collect()
}

/// Opens what is left twice, the second time as after a kill right behind the first, and then lives
/// on.
fn reopen(
    bytes: &Arc<Vec<u8>>,
    policy: Form,
    history: &History,
    arrived: usize,
    void: Option<usize>,
    what: &str,
) -> usize {
    let device = Arc::new(Overlay::new(bytes.len() as u64, bytes.clone()));
    let cache = open(quiet(device.clone(), policy));
    let found = verify(&cache, history, arrived, void, what);
    let again = Arc::new(device.copy());
    drop(cache);
    let cache = open(quiet(again, policy));
    verify(&cache, history, arrived, void, what);
    // An object that is put now is found, whatever the crash left behind.
    let value = Value::new(1 << 40, 70_000);
    value.store(&cache, b"new").unwrap();
    assert!(cache.flush().wait());
    assert_eq!(get(&cache, b"new"), Some(value), "{what}");
    found
}

fn device_bytes(policy: Form) -> usize {
    match policy.policy {
        PolicyKind::Log => 8 * MIB,
        _ => 12 * MIB,
    }
}

#[test]
fn every_write_can_be_the_last_whole_or_torn() {
    for policy in forms() {
        for seed in 0..rounds() {
            let device = Arc::new(Recorder::keeping(MemoryDevice::new(device_bytes(policy))));
            let cache = open(quiet(device.clone(), policy));
            let history = run(&cache, &workload(seed, 110, LARGE), &|| device.writes());
            cache.close();
            let written = device.written();
            let log_bytes: usize = written.iter().map(|(_, bytes)| bytes.len()).sum();
            assert!(log_bytes > device_bytes(policy), "the log comes round");
            let mut image = Arc::new(vec![0; device_bytes(policy)]);
            let (mut opened, mut found, mut all_due, mut lost) = (0, 0, 0, 0);
            for (n, (offset, bytes)) in written.iter().enumerate() {
                let at = usize::try_from(*offset).unwrap();
                let sectors = bytes.len() / 512;
                // Nothing of it, its head, most of it.
                let mut arrived: Vec<usize> = vec![0, 1 + n % 3, sectors / 2 + n % 7];
                arrived.retain(|it| *it < sectors);
                arrived.dedup();
                // Before the first superblock has arrived there is no store yet.
                for sectors in arrived.into_iter().filter(|_| n > 0) {
                    let torn = &mut Arc::make_mut(&mut image)[at..at + sectors * 512];
                    torn.copy_from_slice(&bytes[..sectors * 512]);
                    let what = format!("{policy:?} seed {seed} write {n} cut at {sectors}");
                    found += reopen(&image, policy, &history, n, None, &what);
                    opened += 1;
                }
                let recent = |from: usize| {
                    let since = written[from..n]
                        .iter()
                        .map(|(_, bytes)| bytes.len())
                        .sum::<usize>();
                    since < 2 * MIB
                };
                let due = due(&history, n, recent);
                if !due.is_empty() {
                    let device = Overlay::new(image.len() as u64, image.clone());
                    let cache = open(quiet(Arc::new(device), policy));
                    let is_lost =
                        |(n, value): &&(usize, Value)| get(&cache, &name(*n)) != Some(*value);
                    all_due += due.len();
                    lost += due.iter().filter(is_lost).count();
                }
                Arc::make_mut(&mut image)[at..at + bytes.len()].copy_from_slice(bytes);
            }
            // An equal tag in the same row, which is forgotten with a removed name, is rare; but if
            // there is one in this store it is so in all of its images, of which each has three or
            // four names that are due.
            assert!(
                all_due > 50 && lost * 3 <= all_due,
                "{policy:?}: {lost} of {all_due}"
            );
            assert!(
                opened > 200 && found > opened,
                "{opened} opened, {found} found"
            );
        }
    }
}

#[test]
fn every_write_can_be_lost_or_damaged_while_all_others_arrive() {
    for policy in forms() {
        let steps = workload(7, 60, SMALL);
        let run_with = |fault: Option<(u64, Fault)>| {
            let inner = FaultDevice::new(MemoryDevice::new(device_bytes(policy)), fault);
            let device = Arc::new(Recorder::new(inner));
            let cache = open(quiet(device.clone(), policy));
            let history = run(&cache, &steps, &|| device.writes());
            let bytes = device.inner.media();
            // A kill: the close that follows writes to what nobody looks at any more.
            drop(cache);
            (bytes, history, device.take_writes())
        };
        let (_, _, writes): (_, _, Vec<Call>) = run_with(None);
        let mut random = fastrand::Rng::with_seed(3);
        // Removes that wait are written together, as many as are queued meanwhile.
        assert!(writes.len() > 20, "{policy:?}: {} writes", writes.len());
        for (n, write) in writes.iter().enumerate().skip(1) {
            let bits = write.length * 8;
            // The bit within the first sector, where headers are, every other time.
            let range = if n % 2 == 0 { bits } else { 8 * 512 };
            let faults = [
                Fault::Lost,
                Fault::Flip {
                    bit: random.usize(..range),
                },
            ];
            for fault in faults {
                let (bytes, history, calls) = run_with(Some((n as u64, fault)));
                let what = format!("{policy:?} write {n} of {}: {fault:?}", calls.len());
                let arrived = calls.len();
                reopen(&Arc::new(bytes), policy, &history, arrived, Some(n), &what);
            }
        }
    }
}

#[test]
fn an_opening_is_not_forgotten_with_one_superblock() {
    // The first two writes of an opening are superblocks: the store is not closed in order any
    // more, and a range of versions is taken. Either may be lost.
    for policy in forms() {
        let clean = memory(device_bytes(policy));
        let cache = open(quiet(clean.clone(), policy));
        Value::new(1, 70_000).store(&cache, &name(1)).unwrap();
        cache.close();
        for fault in [Fault::Lost, Fault::Flip { bit: 1_000 }] {
            for n in 0..2 {
                let inner = MemoryDevice::from_bytes(clean.to_bytes());
                let device = Arc::new(FaultDevice::new(inner, Some((n, fault))));
                let cache = open(quiet(device.clone(), policy));
                let value = Value::new(2, 70_000);
                let version = value.store(&cache, &name(2)).unwrap();
                cache.remove(&name(1)).wait().unwrap();
                assert!(cache.flush().wait());
                let again = open(quiet(copy(device.media()), policy));
                let what = format!("{policy:?} superblock {n} {fault:?}");
                assert!(again.next_version() > version, "{what}");
                assert_eq!(get(&again, &name(2)), Some(value), "{what}");
                assert_eq!(get(&again, &name(1)), None, "{what}");
                drop(cache);
            }
        }
    }
}

#[test]
fn a_device_that_fails_at_any_write_leaves_a_store_that_opens() {
    for policy in forms() {
        let steps = workload(9, 40, LARGE);
        for n in (3..60).step_by(3) {
            let inner = MemoryDevice::new(device_bytes(policy));
            let device = Arc::new(FaultDevice::new(inner, Some((n, Fault::Error))));
            let cache = open(quiet(device.clone(), policy));
            let counted = device.clone();
            let writes = move || usize::try_from(counted.writes()).unwrap();
            let history = run(&cache, &steps, &writes);
            // Nothing hangs, and no caller gets a success that was none.
            drop(cache);
            let arrived = usize::try_from(n).unwrap();
            let what = format!("{policy:?} error at write {n}");
            reopen(
                &Arc::new(device.media()),
                policy,
                &history,
                arrived,
                None,
                &what,
            );
        }
    }
}

#[test]
fn a_real_record_in_a_body_is_never_served() {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    let victim = b"http://victim.example/";
    Value::new(1, 700).store(&cache, victim).unwrap();
    assert!(cache.flush().wait());
    let image = device.to_bytes();
    let at = image
        .windows(victim.len())
        .position(|window| window == victim)
        .unwrap();
    let record = &image[at / 512 * 512..at / 512 * 512 + 1536];
    cache.remove(victim).wait().unwrap();

    // Bodies that are nothing but copies of the record, at every alignment.
    let mut attackers = Vec::new();
    for shift in (0..512).step_by(4) {
        let mut body = vec![0; shift];
        for _ in 0..40 {
            body.extend_from_slice(record);
        }
        let name = format!("http://attacker.example/{shift}");
        cache
            .put(name.as_bytes(), Put::metadata("m"), &body)
            .unwrap();
        attackers.push((name, body));
    }
    assert!(cache.flush().wait());
    let mut bytes = device.to_bytes();
    drop(cache);
    let check = |bytes: Vec<u8>, what: &str| {
        let cache = open(quiet(copy(bytes), PolicyKind::Log));
        assert!(cache.get(victim).wait().is_none(), "{what}");
        for (name, body) in &attackers {
            if let Some(hit) = cache.get(name.as_bytes()).wait() {
                assert!(
                    hit.reader(0..u64::MAX)
                        .read_to_vec()
                        .is_ok_and(|it| it == *body)
                );
            }
        }
        cache.stats().entries
    };
    assert!(check(bytes.clone(), "as it was") > 100);
    // Whatever a scan could go by is damaged: headers of batches and footers, one after another.
    for magic in [b"HCba", b"HCft"] {
        let places: Vec<usize> = (0..bytes.len() / 512)
            .flat_map(|sector| [sector * 512 + 8, sector * 512 + 448 + 8])
            .filter(|at| &bytes[*at..*at + 4] == magic)
            .collect();
        for at in places {
            bytes[at + 8] ^= 0x10;
            check(bytes.clone(), "a header damaged");
        }
    }
}

#[test]
fn records_of_one_store_mean_nothing_in_another() {
    for policy in forms() {
        let (one, two) = (memory(16 * MIB), memory(16 * MIB));
        for device in [&one, &two] {
            let cache = open(quiet(device.clone(), policy));
            for put in 0..100 {
                let value = Value::new(put, 3000);
                value.store(&cache, format!("{put}").as_bytes()).unwrap();
            }
            cache.close();
        }
        // The superblocks of one in front of the areas of the other.
        let mut mixed = two.to_bytes();
        mixed[..8192].copy_from_slice(&one.to_bytes()[..8192]);
        let cache = open(quiet(copy(mixed), policy));
        assert!((0..100).all(|put| get(&cache, format!("{put}").as_bytes()).is_none()));
    }
}
