//! Bans: what they match is gone, or stale, at once and for good, wherever it lies.

use std::sync::Arc;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Ban, Cache, Config, Lookup, PolicyKind, Put, PutError, Updated};

use super::support::{
    Form, Gate, KIB, MIB, Recorder, Value, copy, forms, get, memory, open, quiet,
};

fn name(n: u64) -> Vec<u8> {
    format!("http\0host{}\0/{}/{n}", n % 3, n % 5).into_bytes()
}

/// A put with the label that its number says.
fn put(cache: &Cache, n: u64, round: u64) {
    let value = Value::new(round * 1_000 + n, 3_000 + 700 * (n as usize % 5));
    let put = Put {
        labels: vec![cache.label(format!("label {}", n % 4).as_bytes())],
        ..Put::metadata(value.metadata())
    };
    cache.put(&name(n), put, &value.content(&name(n))).unwrap();
}

fn round_of(cache: &Cache, n: u64) -> Option<u64> {
    get(cache, &name(n)).map(|value| value.put / 1_000)
}

/// Returns true if a ban of the tests matches an object.
fn matches(ban: usize, n: u64) -> bool {
    match ban {
        0 => n.is_multiple_of(4),
        1 => n % 3 == 1 && n.is_multiple_of(5),
        2 => n % 3 == 2,
        _ => n == 7,
    }
}

fn ban(cache: &Cache, number: usize) -> Ban {
    match number {
        0 => Ban::label(cache.label(b"label 0")),
        1 => Ban::prefix(b"http\0host1\0/0/").within(b"http\0host1\0"),
        2 => Ban::prefix(b"http\0host2\0"),
        _ => Ban::name(&name(7)).within(b"http\0host1\0"),
    }
}

/// Where an object is when the ban is made.
#[derive(Clone, Copy, Debug)]
enum Place {
    Pending,
    Hot,
    Disk,
}

const OBJECTS: u64 = 60;

fn filled(form: Form, place: Place, device: Arc<dyn Device>) -> Cache {
    let mut cache = open(quiet(device.clone(), form));
    for n in 0..OBJECTS {
        put(&cache, n, 0);
    }
    match place {
        Place::Pending => {}
        Place::Hot => {
            assert!(cache.flush().wait());
            let found = (0..OBJECTS)
                .filter(|n| round_of(&cache, *n).is_some())
                .count();
            assert!(found > 0);
        }
        Place::Disk => {
            cache.close();
            cache = open(quiet(device, form));
        }
    }
    cache
}

#[test]
fn what_a_rule_matches_is_gone_at_once_and_after_kills_and_what_comes_later_stays() {
    for form in forms() {
        // With `basic` these names have 1,280 places.
        let put_out = match form.policy {
            PolicyKind::Basic => 12,
            _ => 6,
        };
        for place in [Place::Pending, Place::Hot, Place::Disk] {
            for number in 0..4 {
                let device = memory(16 * MIB);
                let cache = filled(form, place, device.clone());
                let kept = (0..OBJECTS)
                    .filter(|n| round_of(&cache, *n) == Some(0))
                    .count();
                let doomed = (0..OBJECTS).filter(|n| matches(number, *n)).count();
                // A name that shares the place of another may have been put out by it.
                assert!(kept + put_out >= OBJECTS as usize, "{form:?} {kept}");
                let removed = cache.remove_matching(&[ban(&cache, number)]);
                for n in 0..OBJECTS {
                    let found = round_of(&cache, n);
                    assert!(
                        found.is_none() || !matches(number, n),
                        "{form:?} {place:?} {n}"
                    );
                }
                removed.wait().unwrap();
                let late = (0..OBJECTS).find(|n| matches(number, *n)).unwrap();
                put(&cache, late, 1);
                assert!(cache.flush().wait());
                let mut device = copy(device.to_bytes());
                cache.close();
                for _ in 0..3 {
                    let cache = open(quiet(device.clone(), form));
                    let mut found = 0;
                    for n in 0..OBJECTS {
                        match round_of(&cache, n) {
                            Some(round) if n == late => assert_eq!(round, 1),
                            Some(_) => {
                                assert!(!matches(number, n), "{form:?} {place:?} {n}");
                                found += 1;
                            }
                            None => {}
                        }
                    }
                    assert!(
                        found + doomed + put_out >= OBJECTS as usize,
                        "{form:?} {found} {doomed}"
                    );
                    device = copy(device.to_bytes());
                }
            }
        }
    }
}

#[test]
fn an_answer_that_was_on_its_way_does_not_come_back() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    put(&cache, 8, 0);
    let intent = cache.intend(&name(8)).unwrap();
    let stream = cache.intend(&name(9)).unwrap();
    let put_of = |n: u64| Put {
        labels: vec![cache.label(format!("label {}", n % 4).as_bytes())],
        ..Put::metadata(Value::new(n, 0).metadata())
    };
    let mut writer = intent.writer(put_of(8)).unwrap();
    cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
    writer.write(b"old").unwrap();
    assert_eq!(writer.commit(), Err(PutError::Superseded));
    assert!(cache.get(&name(8)).wait().is_none());
    // Nothing was said of this one.
    stream.writer(put_of(9)).unwrap().commit().unwrap();
    assert!(cache.get(&name(9)).wait().is_some());
    put(&cache, 8, 1);
    assert_eq!(round_of(&cache, 8), Some(1));
}

#[test]
fn a_purge_takes_what_is_being_written_when_it_comes() {
    for number in 0..4 {
        let gate = Arc::new(Gate::new(MemoryDevice::new(16 * MIB)));
        // With another secret two names can have equal tags in one row, and then the index forgets
        // one of them.
        let cache = open(Config {
            name_secret: Some(*b"no equal tags !!"),
            ..quiet(gate.clone(), PolicyKind::Log)
        });
        (0..OBJECTS).for_each(|n| put(&cache, n, 0));
        gate.shut();
        let cut = cache.cut_batch();
        // A thread of its own, while the one that orders writes waits for it.
        assert_eq!(gate.wait_for_write(), "hc-background");
        let by_ban = cache.remove_matching(&[ban(&cache, number)]);
        let by_name = cache.remove(&name(13));
        let gone = |n: u64| n == 13 || matches(number, n);
        let holds = |cache: &Cache, when: &str| {
            for n in 0..OBJECTS {
                let found = round_of(cache, n);
                assert_eq!(found, (!gone(n)).then_some(0), "{number} {when}: {n}");
            }
        };
        holds(&cache, "while it is written");
        gate.open();
        assert!(cut.wait());
        holds(&cache, "once it is written");
        by_ban.wait().unwrap();
        by_name.wait().unwrap();
        let killed = open(quiet(copy(gate.inner.to_bytes()), PolicyKind::Log));
        holds(&killed, "after a kill");
        cache.close();
        holds(&open(quiet(gate, PolicyKind::Log)), "after an orderly end");
    }
}

#[test]
fn what_a_soft_rule_matches_is_stale_until_it_is_confirmed_or_replaced() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru, PolicyKind::Set] {
        let device = memory(16 * MIB);
        let cache = filled(policy.into(), Place::Hot, device.clone());
        let asked = cache.next_version();
        cache
            .remove_matching(&[ban(&cache, 0).softly()])
            .wait()
            .unwrap();
        let stale = |cache: &Cache, n| cache.get(&name(n)).wait().unwrap().is_made_stale();
        assert!(stale(&cache, 0) && !stale(&cache, 1));
        // A hit from before the ban does not know of the ban.
        let hit = cache.get(&name(0)).wait().unwrap();
        let metadata = Value::parse(hit.metadata()).metadata();
        let confirm = |at| cache.confirm_metadata(&name(0), hit.version(), at, metadata.clone());
        assert_eq!(confirm(asked).wait(), Updated::Gone);
        assert!(stale(&cache, 0));
        assert_eq!(confirm(cache.next_version()).wait(), Updated::Done);
        assert!(!stale(&cache, 0));
        put(&cache, 4, 1);
        assert!(!stale(&cache, 4) && stale(&cache, 8));
        assert!(cache.flush().wait());
        let cache = open(quiet(copy(device.to_bytes()), policy));
        assert_eq!(
            [0, 4, 8, 1].map(|n| stale(&cache, n)),
            [false, false, true, false],
            "{policy:?}"
        );
        // A hard one takes what was confirmed too.
        cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
        assert!(cache.get(&name(0)).wait().is_none());
    }
}

#[test]
fn an_older_version_without_the_label_does_not_come_back() {
    for form in forms() {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), form));
        put(&cache, 5, 0);
        assert!(cache.flush().wait());
        let value = Value::new(1_005, 2_000);
        let labelled = Put {
            labels: vec![cache.label(b"other")],
            ..Put::metadata(value.metadata())
        };
        cache
            .put(&name(5), labelled, &value.content(&name(5)))
            .unwrap();
        assert!(cache.flush().wait());
        let other = Ban::label(cache.label(b"other"));
        cache.remove_matching(&[other]).wait().unwrap();
        // Neither of these changes the index; the lookup does.
        assert!(cache.peek(&name(5)).wait().is_none(), "{form:?}");
        assert!(cache.walk().all(|step| step.objects.is_empty()), "{form:?}");
        assert_eq!(round_of(&cache, 5), None, "{form:?}");
        assert_eq!(round_of(&cache, 5), None, "{form:?}");
        let cache = open(quiet(copy(device.to_bytes()), form));
        assert_eq!(round_of(&cache, 5), None, "{form:?}");
    }
}

#[test]
fn an_object_with_more_labels_than_there_is_room_for_goes_with_any() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    let labels = |count: u32| (0..count).map(|n| cache.label(&n.to_le_bytes())).collect();
    for count in [32, 33] {
        let put = Put {
            labels: labels(count),
            ..Put::metadata(&b"m"[..])
        };
        cache
            .put(&[1, 2, u8::try_from(count).unwrap()], put, b"content")
            .unwrap();
    }
    let unrelated = Ban::label(cache.label(b"unrelated"));
    cache.remove_matching(&[unrelated]).wait().unwrap();
    assert!(cache.get(&[1, 2, 32]).wait().is_some());
    assert!(cache.get(&[1, 2, 33]).wait().is_none());
    let last = Ban::label(cache.label(&31u32.to_le_bytes()));
    cache.remove_matching(&[last]).wait().unwrap();
    assert!(cache.get(&[1, 2, 32]).wait().is_none());
}

/// Writes through the whole log `laps` times.
fn fill(cache: &Cache, from: u64, bytes: usize) {
    let each = 60 * KIB;
    for n in 0..(bytes / each) as u64 {
        let value = Value::new(from + n, each);
        let name = format!("filler {n}").into_bytes();
        while value.store(cache, &name).is_err() {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
}

#[test]
fn a_rule_is_forgotten_when_the_log_has_come_round_and_no_sooner() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    put(&cache, 0, 0);
    assert!(cache.flush().wait());
    // A put that has begun may end after the log has wrapped, and is no less old then.
    let intent = cache.intend(&name(4)).unwrap();
    cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
    fill(&cache, 10_000, 40 * MIB);
    assert_eq!(cache.stats().bans, 1);
    let put_of_4 = Put {
        labels: vec![cache.label(b"label 0")],
        ..Put::metadata(&b"m"[..])
    };
    let late = intent.writer(put_of_4).unwrap().commit();
    assert_eq!(late, Err(PutError::Superseded));
    fill(&cache, 20_000, 40 * MIB);
    assert_eq!(cache.stats().bans, 0);
    assert!(cache.get(&name(0)).wait().is_none());
}

#[test]
fn a_hot_object_does_not_outlive_the_rule_that_took_it() {
    let cache = open(Config {
        memory_bytes: 64 * MIB as u64,
        ..quiet(memory(16 * MIB), PolicyKind::Log)
    });
    put(&cache, 0, 0);
    assert!(cache.flush().wait());
    assert!(matches!(cache.get(&name(0)), Lookup::Hit(_)));
    cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
    // Nobody asks for it meanwhile. All of a fill may be written in one go, behind which it is seen
    // that the ban is settled, and behind the next one that it is outlived.
    fill(&cache, 10_000, 40 * MIB);
    fill(&cache, 20_000, 40 * MIB);
    assert!(cache.flush().wait());
    assert_eq!(cache.stats().bans, 0);
    assert!(cache.get(&name(0)).wait().is_none());
}

#[test]
fn a_table_forgets_a_rule_when_it_has_cleared_what_that_took() {
    for policy in [
        PolicyKind::Set,
        PolicyKind::SetMem,
        PolicyKind::SetMemLru,
        PolicyKind::Basic,
    ] {
        let device = memory(16 * MIB);
        let cache = filled(policy.into(), Place::Disk, device.clone());
        cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
        cache
            .remove_matching(&[ban(&cache, 2).softly()])
            .wait()
            .unwrap();
        // The soft one stays: what it made stale is not to go.
        let is_done = || cache.flush().wait() && cache.stats().bans == 1;
        assert!((0..100_000).any(|_| is_done()), "{policy:?}");
        let is_stale = |n| Some(cache.get(&name(n)).wait()?.is_made_stale());
        for n in 0..OBJECTS {
            if matches(0, n) {
                assert_eq!(is_stale(n), None, "{policy:?} {n}");
            } else if let Some(stale) = is_stale(n) {
                assert_eq!(stale, matches(2, n), "{policy:?} {n}");
            }
        }
    }
}

#[test]
fn rules_hold_on_every_device_and_after_one_was_away() {
    let devices = [memory(16 * MIB), memory(16 * MIB), memory(16 * MIB)];
    let config = |devices: &[Arc<MemoryDevice>]| Config {
        devices: devices
            .iter()
            .map(|it| it.clone() as Arc<dyn Device>)
            .collect(),
        // With some secrets a name that goes has the tag of one that stays.
        name_secret: Some(*b"no equal tags !!"),
        ..quiet(devices[0].clone(), PolicyKind::Log)
    };
    let cache = open(config(&devices));
    (0..OBJECTS).for_each(|n| put(&cache, n, 0));
    assert!(cache.flush().wait());
    cache
        .remove_matching(&[ban(&cache, 0), ban(&cache, 2)])
        .wait()
        .unwrap();
    let copies = devices.each_ref().map(|it| copy(it.to_bytes()));
    cache.close();
    let held = |devices: &[Arc<MemoryDevice>]| {
        let cache = open(config(devices));
        let found: Vec<u64> = (0..OBJECTS)
            .filter(|n| round_of(&cache, *n).is_some())
            .collect();
        assert!(
            found.iter().all(|n| !matches(0, *n) && !matches(2, *n)),
            "{found:?}"
        );
        cache.close();
        found.len()
    };
    assert_eq!(held(&copies), 30);
    let fewer = held(&copies[..2]);
    assert!((1..30).contains(&fewer), "{fewer}");
    assert_eq!(held(&copies), fewer);
}

#[test]
fn nobody_joins_a_fetch_that_a_rule_may_have_outdated() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    let fetched = |content: &'static [u8]| hashcache::Fetched {
        put: Put::metadata(&b"m"[..]),
        content: content.into(),
    };
    let answer = cache
        .get_or_fetch(b"name", || async {
            cache.remove_matching(&[Ban::prefix(b"na")]).wait().unwrap();
            let inner = cache.get_or_fetch(b"name", || async {
                Ok::<_, std::io::Error>(fetched(b"new"))
            });
            assert_eq!(inner.wait().unwrap().read_to_vec().unwrap(), b"new");
            Ok::<_, std::io::Error>(fetched(b"old"))
        })
        .wait()
        .unwrap();
    assert_eq!(answer.read_to_vec().unwrap(), b"old");
    let found = cache.get(b"name").wait().unwrap();
    assert_eq!(found.whole_content().unwrap(), &b"new"[..]);
}

/// Where the journal of a small store lies, and its length (`docs/FORMAT.md`).
const JOURNAL: usize = 64 * KIB;
const JOURNAL_BYTES: usize = 64 * KIB;

#[test]
fn a_set_of_rules_that_is_cut_anywhere_leaves_the_one_before() {
    let device = Arc::new(Recorder::keeping(MemoryDevice::new(16 * MIB)));
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    (0..OBJECTS).for_each(|n| put(&cache, n, 0));
    assert!(cache.flush().wait());
    // Two blocks' worth that match nothing.
    let others = (0..200u32).map(|n| Ban::label(cache.label(&n.to_le_bytes())));
    let others: Vec<_> = others.collect();
    cache.remove_matching(&others).wait().unwrap();
    cache.remove_matching(&[ban(&cache, 0)]).wait().unwrap();
    cache.remove_matching(&[ban(&cache, 2)]).wait().unwrap();
    let written = device.written();
    // The set of bans, and its copy that is written when the first is durable.
    let [before @ .., last, copied] = &written[..] else {
        panic!("{} writes", written.len());
    };
    assert_eq!(last.1.len(), 2 * 4 * KIB, "the set of bans");
    assert_eq!(last.1, copied.1, "both areas hold the same");
    let mut image = vec![0; 16 * MIB];
    let mut write = |offset: u64, bytes: &[u8]| {
        let at = usize::try_from(offset).unwrap();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image.clone()
    };
    for (offset, bytes) in before {
        write(*offset, bytes);
    }
    for sectors in 0..=16 {
        let device = copy(write(last.0, &last.1[..sectors * 512]));
        let cache = open(quiet(device.clone(), PolicyKind::Log));
        let whole = (0..OBJECTS).all(|n| !matches(2, n) || round_of(&cache, n).is_none());
        // The bans end in the thirteenth sector.
        assert_eq!(whole, sectors >= 13, "{sectors}");
        let gone = |cache: &Cache, number| {
            let mut named = (0..OBJECTS).filter(|n| matches(number, *n));
            named.all(|n| round_of(cache, n).is_none())
        };
        assert!(gone(&cache, 0), "{sectors}");
        // The next set must not go over the only one that is whole.
        for number in [1, 3] {
            cache
                .remove_matching(&[ban(&cache, number)])
                .wait()
                .unwrap();
            let cache = open(quiet(copy(device.to_bytes()), PolicyKind::Log));
            assert!(gone(&cache, 0) && gone(&cache, number), "{sectors}");
        }
    }
}

#[test]
fn removes_of_a_store_from_before_there_were_rules_outlive_the_first_rules() {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    (0..OBJECTS).for_each(|n| put(&cache, n, 0));
    assert!(cache.flush().wait());
    cache.remove(&name(7)).wait().unwrap();
    let mut bytes = device.to_bytes();
    // The ring took the whole journal then: its first block could as well be its last.
    let last = JOURNAL + JOURNAL_BYTES - 4 * KIB;
    bytes.copy_within(JOURNAL..JOURNAL + 4 * KIB, last);
    bytes[JOURNAL..JOURNAL + 4 * KIB].fill(0);
    let device = copy(bytes);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    assert_eq!(round_of(&cache, 7), None);
    for number in [0, 2] {
        cache
            .remove_matching(&[ban(&cache, number)])
            .wait()
            .unwrap();
        // Whatever is written there by then.
        let mut bytes = device.to_bytes();
        bytes[last..last + 4 * KIB].fill(0);
        let cache = open(quiet(copy(bytes), PolicyKind::Log));
        assert_eq!(round_of(&cache, 7), None);
        assert_eq!(round_of(&cache, 0), None);
    }
}
