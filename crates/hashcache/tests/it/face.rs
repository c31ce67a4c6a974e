//! Put, get, replace, remove, update: what a caller sees, for both policies.

use std::sync::Arc;

use hashcache::{Cache, Keep, Lookup, PAGE, PolicyKind, Put, PutError, ReadError, Updated};

use super::support::{
    KIB, MIB, Overlay, POLICIES, Value, content, copy, get, memory, open, quiet, read,
};

const LENGTHS: [usize; 7] = [
    0,
    1,
    64 * KIB - 1,
    64 * KIB,
    64 * KIB + 1,
    320 * KIB,
    5 * MIB,
];

fn store(policy: PolicyKind) -> Cache {
    open(quiet(memory(64 * MIB), policy))
}

#[test]
fn every_length_comes_back_from_memory_from_disk_and_after_a_clean_close() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for (put, length) in (0..).zip(LENGTHS) {
            let name = format!("object of {length}");
            Value::new(put, length)
                .store(&cache, name.as_bytes())
                .unwrap();
            assert_eq!(get(&cache, name.as_bytes()), Some(Value::new(put, length)));
        }
        assert!(cache.flush().wait());
        let all = |cache: &Cache| {
            for (put, length) in (0..).zip(LENGTHS) {
                let name = format!("object of {length}");
                let value = Some(Value::new(put, length));
                assert_eq!(get(cache, name.as_bytes()), value, "{policy:?} {length}");
            }
        };
        all(&cache);
        cache.close();
        let bytes = device.to_bytes();
        for _ in 0..2 {
            let cache = open(quiet(device.clone(), policy));
            all(&cache);
            drop(cache);
        }
        // A kill: nothing is said to the store that it ends.
        all(&open(quiet(copy(bytes), policy)));
    }
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for (put, length) in (0..).zip(LENGTHS) {
            Value::new(put, length)
                .store(&cache, format!("{length}").as_bytes())
                .unwrap();
        }
        assert!(cache.flush().wait());
        let killed = copy(device.to_bytes());
        drop(cache);
        let cache = open(quiet(killed, policy));
        for (put, length) in (0..).zip(LENGTHS) {
            let found = get(&cache, format!("{length}").as_bytes());
            assert_eq!(found, Some(Value::new(put, length)), "{policy:?} {length}");
        }
    }
}

#[test]
fn content_of_unknown_length_is_written_in_any_pieces() {
    for policy in POLICIES {
        let cache = store(policy);
        for (put, length) in (0..).zip(LENGTHS) {
            for piece in [1, 1000, 70_000, 6 * MIB] {
                if length / piece > 100_000 {
                    continue;
                }
                let value = Value::new(put, length);
                let name = format!("{length} by {piece}");
                let intent = cache.intend(name.as_bytes()).unwrap();
                let mut writer = intent.writer(Put::metadata(value.metadata())).unwrap();
                for part in value.content(name.as_bytes()).chunks(piece) {
                    writer.write(part).unwrap();
                }
                assert_eq!(writer.written(), length as u64);
                writer.commit().unwrap();
                assert_eq!(get(&cache, name.as_bytes()), Some(value));
                assert!(cache.flush().wait());
                assert_eq!(get(&cache, name.as_bytes()), Some(value));
            }
        }
    }
}

#[test]
fn any_range_can_be_read() {
    for policy in POLICIES {
        let cache = store(policy);
        let value = Value::new(7, MIB + 77);
        value.store(&cache, b"name").unwrap();
        let whole = value.content(b"name");
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..100 {
            if round == 50 {
                assert!(cache.flush().wait());
            }
            let start = random.usize(..=whole.len());
            let end = random.usize(start..=whole.len());
            let hit = cache.get(b"name").wait().unwrap();
            let part = hit.reader(start as u64..end as u64).read_to_vec().unwrap();
            assert!(part == whole[start..end], "{start}..{end}");
        }
        let hit = cache.get(b"name").wait().unwrap();
        let beyond = whole.len() as u64;
        assert_eq!(hit.reader(beyond..u64::MAX).read_to_vec(), Ok(Vec::new()));
        assert_eq!(
            hit.reader(u64::MAX - 1..u64::MAX).read_to_vec(),
            Ok(Vec::new())
        );
        #[expect(clippy::reversed_empty_ranges, reason = "a caller may get it wrong")]
        let reversed = hit.reader(9..3).read_to_vec();
        assert_eq!(reversed, Ok(Vec::new()));
    }
}

#[test]
fn small_content_is_had_in_one_piece() {
    for policy in POLICIES {
        let cache = store(policy);
        for (put, length) in (0..).zip([0, 1, 5000, PAGE]) {
            let value = Value::new(put, length);
            value.store(&cache, b"name").unwrap();
            let hit = cache.get(b"name").wait().unwrap();
            assert_eq!(hit.whole_content().unwrap(), value.content(b"name"));
        }
        Value::new(9, PAGE + 1).store(&cache, b"name").unwrap();
        assert_eq!(cache.get(b"name").wait().unwrap().whole_content(), None);
    }
}

#[test]
fn a_replaced_object_is_never_seen_again_and_versions_only_grow() {
    for policy in POLICIES {
        let cache = store(policy);
        let mut last = None;
        for put in 0..200 {
            let value = Value::new(put, [700_000, 300_000, 100, 9_000][put as usize % 4]);
            let version = value.store(&cache, b"name").unwrap();
            assert!(last < Some(version));
            last = Some(version);
            assert_eq!(get(&cache, b"name"), Some(value));
            if put % 3 == 0 {
                assert!(cache.flush().wait());
                assert_eq!(get(&cache, b"name"), Some(value));
            }
        }
    }
}

#[test]
fn a_hit_keeps_its_content_while_the_name_is_replaced_and_removed() {
    for policy in POLICIES {
        let cache = store(policy);
        let old = Value::new(1, 600_000);
        old.store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        let hit = cache.get(b"name").wait().unwrap();
        Value::new(2, 10).store(&cache, b"name").unwrap();
        // The spans are stored under their own version: right, or gone (the table has a limited
        // number of slots).
        assert!(matches!(read(&hit, b"name"), Some(value) if value == old));
        cache.remove(b"name").wait().unwrap();
        assert!(matches!(read(&hit, b"name"), Some(value) if value == old));
        assert!(cache.get(b"name").wait().is_none());
    }
}

#[test]
fn a_removed_object_is_gone_at_once_and_after_a_kill() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for put in 0..300 {
            Value::new(put, 2000)
                .store(&cache, format!("{put}").as_bytes())
                .unwrap();
        }
        assert!(cache.flush().wait());
        for put in (0..300).step_by(2) {
            let name = format!("{put}");
            let removed = cache.remove(name.as_bytes());
            assert!(cache.get(name.as_bytes()).wait().is_none());
            removed.wait().unwrap();
            assert!(cache.get(name.as_bytes()).wait().is_none());
        }
        let killed = copy(device.to_bytes());
        drop(cache);
        for device in [device, killed] {
            let cache = open(quiet(device, policy));
            let found = |put: u64| get(&cache, format!("{put}").as_bytes());
            assert!((0..300).step_by(2).all(|put| found(put).is_none()));
            let kept = (1..300)
                .step_by(2)
                .filter(|put| found(*put).is_some())
                .count();
            // A remove forgets all entries that could be its name's: one in 500 neighbours is
            // forgotten too.
            assert!(kept >= 145, "{policy:?}: {kept} of 150");
        }
    }
}

#[test]
fn an_invalidated_object_is_gone_after_a_kill_too() {
    for policy in POLICIES {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        Value::new(1, 2000).store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        cache.invalidate(b"name");
        assert!(cache.get(b"name").wait().is_none());
        assert!(cache.flush().wait());
        let cache = open(quiet(copy(device.to_bytes()), policy));
        assert!(cache.get(b"name").wait().is_none());
    }
}

#[test]
fn removes_beyond_the_journal_are_kept_by_checkpoints() {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    for put in 0..100 {
        Value::new(put, 1000)
            .store(&cache, format!("{put}").as_bytes())
            .unwrap();
    }
    assert!(cache.flush().wait());
    for put in 0..50 {
        cache.remove(format!("{put}").as_bytes()).wait().unwrap();
    }
    // One by one, so that the ring of 16 blocks wraps several times.
    for other in 0..8_000 {
        cache
            .remove(format!("other {other}").as_bytes())
            .wait()
            .unwrap();
    }
    assert!(cache.stats().checkpoints >= 2);
    let cache = open(quiet(copy(device.to_bytes()), PolicyKind::Log));
    let found = |put: u64| get(&cache, format!("{put}").as_bytes()).is_some();
    assert!(!(0..50).any(found));
    assert!((50..100).filter(|put| found(*put)).count() > 0);
}

#[test]
fn versions_are_never_given_out_twice_not_even_after_kills() {
    let device = memory(16 * MIB);
    let mut bytes = device.to_bytes();
    let mut last = None;
    for _ in 0..5 {
        let device = copy(bytes);
        let cache = open(quiet(device.clone(), PolicyKind::Log));
        for _ in 0..10 {
            let version = Some(cache.next_version());
            assert!(last < version);
            last = version;
        }
        bytes = device.to_bytes();
        drop(cache);
    }
}

#[test]
fn a_put_that_began_before_a_newer_put_or_a_remove_is_refused() {
    for policy in POLICIES {
        let cache = store(policy);
        let begin = |value: Value| {
            let intent = cache.intend(b"name").unwrap();
            let mut writer = intent.writer(Put::metadata(value.metadata())).unwrap();
            writer.write(&value.content(b"name")).unwrap();
            writer
        };
        let old = begin(Value::new(1, 100_000));
        let new = Value::new(2, 50);
        begin(new).commit().unwrap();
        assert_eq!(old.commit(), Err(PutError::Superseded));
        assert_eq!(get(&cache, b"name"), Some(new));

        let old = begin(Value::new(3, 10));
        cache.remove(b"name").wait().unwrap();
        assert_eq!(old.commit(), Err(PutError::Superseded));
        assert!(cache.get(b"name").wait().is_none());

        // The other way round all is well: the newer one is simply the last.
        let (first, second) = (begin(Value::new(4, 10)), begin(Value::new(5, 10)));
        first.commit().unwrap();
        second.commit().unwrap();
        assert_eq!(get(&cache, b"name"), Some(Value::new(5, 10)));
    }
}

#[test]
fn a_writer_that_was_dropped_never_happened() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let old = Value::new(1, 100);
        old.store(&cache, b"name").unwrap();
        for length in [0, 10, 64 * KIB, 700_000] {
            let value = Value::new(2, length);
            let mut writer = cache
                .intend(b"name")
                .unwrap()
                .writer(Put::metadata(value.metadata()))
                .unwrap();
            writer.write(&value.content(b"name")).unwrap();
            drop(writer);
            assert_eq!(get(&cache, b"name"), Some(old));
        }
        assert!(cache.flush().wait());
        assert_eq!(get(&cache, b"name"), Some(old));
        let cache = open(quiet(copy(device.to_bytes()), policy));
        assert_eq!(get(&cache, b"name"), Some(old));
    }
}

#[test]
fn what_cannot_be_put_is_refused_by_name() {
    let cache = store(PolicyKind::Log);
    let put = |name: &[u8], metadata: usize| {
        cache.put(name, Put::metadata(vec![0; metadata]), b"content")
    };
    assert_eq!(put(b"", 0), Err(PutError::Name { length: 0 }));
    assert_eq!(put(&[1; 4097], 0), Err(PutError::Name { length: 4097 }));
    assert_eq!(
        put(b"name", 65_537),
        Err(PutError::Metadata { length: 65_537 })
    );
    assert!(put(&[1; 4096], 65_536).is_ok());
    assert!(cache.flush().wait());
    assert_eq!(
        cache.get(&[1; 4096]).wait().unwrap().metadata().len(),
        65_536
    );
    assert!(matches!(cache.get(b""), Lookup::Miss));
    assert!(matches!(cache.get(&[1; 4097]), Lookup::Miss));
    assert_eq!(
        cache
            .update_metadata(b"", cache.next_version(), "m".into())
            .wait(),
        Updated::Gone
    );

    let announced = Put {
        length: Some(5),
        ..Put::metadata("")
    };
    let mut writer = cache
        .intend(b"name")
        .unwrap()
        .writer(announced.clone())
        .unwrap();
    assert_eq!(
        writer.write(b"123456"),
        Err(PutError::Length {
            written: 6,
            announced: 5
        })
    );
    writer.write(b"1234").unwrap();
    assert_eq!(
        writer.commit(),
        Err(PutError::Length {
            written: 4,
            announced: 5
        })
    );
    assert!(cache.get(b"name").wait().is_none());
}

#[test]
fn an_update_of_metadata_keeps_version_and_content() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let value = Value::new(3, 900_000);
        let version = value.store(&cache, b"name").unwrap();
        for revision in 1..=5 {
            if revision % 2 == 0 {
                assert!(cache.flush().wait());
            }
            let value = Value { revision, ..value };
            let updated = cache
                .update_metadata(b"name", version, value.metadata())
                .wait();
            assert_eq!(updated, Updated::Done);
            let hit = cache.get(b"name").wait().unwrap();
            assert_eq!((hit.version(), hit.revision()), (version, revision));
            assert_eq!(read(&hit, b"name"), Some(value));
        }
        assert!(cache.flush().wait());
        let updated = Some(Value {
            revision: 5,
            ..value
        });
        let reopened = open(quiet(copy(device.to_bytes()), policy));
        assert_eq!(get(&reopened, b"name"), updated);

        let newer = Value::new(4, 10);
        newer.store(&cache, b"name").unwrap();
        let late = cache.update_metadata(b"name", version, Value::new(9, 9).metadata());
        assert_eq!(late.wait(), Updated::Gone);
        assert_eq!(get(&cache, b"name"), Some(newer));
        let unknown = cache.update_metadata(b"unknown", version, "m".into());
        assert_eq!(unknown.wait(), Updated::Gone);
        let long = cache.update_metadata(b"name", version, vec![0; 65_537].into());
        assert_eq!(long.wait(), Updated::Refused);
    }
}

#[test]
fn an_update_gives_way_to_the_put_it_belongs_to_while_that_is_under_way() {
    let cache = store(PolicyKind::Log);
    let value = Value::new(1, 700_000);
    let put = Put {
        keep: Keep::Partial,
        ..Put::metadata(value.metadata())
    };
    let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
    let content = value.content(b"name");
    writer.write(&content[..400_000]).unwrap();
    let updated = cache
        .update_metadata(b"name", writer.version(), "other".into())
        .wait();
    assert_eq!(updated, Updated::Refused);
    writer.write(&content[400_000..]).unwrap();
    let version = writer.commit().unwrap();
    assert_eq!(get(&cache, b"name"), Some(value));
    let value = Value {
        revision: 1,
        ..value
    };
    let updated = cache
        .update_metadata(b"name", version, value.metadata())
        .wait();
    assert_eq!(updated, Updated::Done);
    assert_eq!(get(&cache, b"name"), Some(value));
}

#[test]
fn an_update_of_an_object_of_5_gib_writes_at_most_128_kib() {
    for policy in POLICIES {
        let cache = store(policy);
        let put = Put {
            keep: Keep::Partial,
            length: Some(5 << 30),
            ..Put::metadata(vec![1; 2000])
        };
        let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
        writer.write(&content(b"name", 1, MIB)).unwrap();
        let version = writer.version();
        assert!(writer.keep());
        assert!(cache.flush().wait());
        let before = cache.stats().written_bytes;
        let updated = cache
            .update_metadata(b"name", version, vec![2; 2000].into())
            .wait();
        assert_eq!(updated, Updated::Done);
        assert!(cache.flush().wait());
        let written = cache.stats().written_bytes - before;
        assert!(written <= 128 << 10, "{written}");
        let hit = cache.get(b"name").wait().unwrap();
        assert_eq!(hit.metadata(), &vec![2; 2000]);
        assert!(
            hit.reader(0..850_000).read_to_vec().unwrap() == content(b"name", 1, MIB)[..850_000]
        );
    }
}

#[test]
fn a_partial_object_keeps_what_came_and_takes_what_was_missing() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let value = Value::new(1, MIB + 5000);
        let content = value.content(b"name");
        let total = content.len() as u64;
        let put = Put {
            keep: Keep::Partial,
            length: Some(total),
            ..Put::metadata(value.metadata())
        };
        let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
        writer.write(&content[..KIB]).unwrap();
        assert!(
            cache.get(b"name").wait().is_none(),
            "not before the first page is whole"
        );
        writer.write(&content[KIB..700_000]).unwrap();
        let hit = cache.get(b"name").wait().unwrap();
        assert!(!hit.is_complete());
        assert_eq!(hit.content_len(), Some(total));
        assert!(writer.keep());
        assert!(cache.flush().wait());
        drop(cache);

        let cache = open(quiet(device.clone(), policy));
        let hit = cache.get(b"name").wait().unwrap();
        assert!(!hit.is_complete());
        // Spans lie at 64 KiB and every 256 KiB from there: two whole ones came.
        let (second, third, fourth) = (64 * KIB as u64, 320 * KIB as u64, 576 * KIB as u64);
        if policy == PolicyKind::Log {
            assert_eq!(hit.holes(0..u64::MAX), [fourth..total]);
            assert_eq!(hit.holes(0..third), []);
            assert_eq!(
                hit.holes(fourth + 1..fourth + 2),
                [fourth..fourth + 256 * KIB as u64]
            );
        }
        let there = hit.reader(0..fourth).read_to_vec().unwrap();
        assert!(there == content[..fourth as usize]);
        let missing = hit.reader(second..total).read_to_vec();
        assert_eq!(missing, Err(ReadError::Missing { offset: fourth }));

        let span = |at: u64| &content[at as usize..content.len().min(at as usize + 256 * KIB)];
        assert!(matches!(
            hit.fill(fourth, &span(fourth)[1..]),
            Err(PutError::Length { .. })
        ));
        assert!(matches!(
            hit.fill(fourth + 1, span(fourth)),
            Err(PutError::Length { .. })
        ));
        for at in [fourth + 256 * KIB as u64, fourth] {
            hit.fill(at, span(at)).unwrap();
        }
        assert_eq!(read(&hit, b"name"), Some(value));
        assert!(cache.flush().wait());
        drop(cache);
        let cache = open(quiet(device, policy));
        assert_eq!(get(&cache, b"name"), Some(value));
    }
}

#[test]
fn holes_of_an_object_of_absurd_length_are_told_at_once() {
    let cache = store(PolicyKind::Log);
    for length in [Some(u64::MAX), Some(1 << 62), None] {
        let put = Put {
            keep: Keep::Partial,
            length,
            ..Put::metadata("m")
        };
        let mut writer = cache.intend(b"name").unwrap().writer(put).unwrap();
        writer.write(&[1; 100_000]).unwrap();
        let hit = cache.get(b"name").wait().unwrap();
        assert!(writer.keep());
        let holes = hit.holes(0..u64::MAX);
        assert_eq!(holes, [PAGE as u64..length.unwrap_or(u64::MAX)]);
        assert_eq!(
            hit.holes(u64::MAX - 1..u64::MAX).len(),
            usize::from(length != Some(1 << 62))
        );
        let late = hit.reader(u64::MAX - 9..u64::MAX).read_to_vec();
        assert_eq!(late.is_err(), length != Some(1 << 62));
    }
}

#[test]
fn marks_and_hints_are_kept() {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    let put = Put {
        mark: 1 << 100,
        ..Put::metadata("m")
    };
    cache.put(b"name", put, b"c").unwrap();
    assert!(cache.contains_hint(b"name"));
    assert!(!cache.contains_hint(b"another name"));
    cache.close();
    let cache = open(quiet(device, PolicyKind::Log));
    assert!(cache.contains_hint(b"name"));
    assert_eq!(cache.get(b"name").wait().unwrap().mark(), 1 << 100);
}

#[test]
fn a_closed_cache_answers_everything_and_stores_nothing() {
    for policy in POLICIES {
        let cache = store(policy);
        let value = Value::new(1, 100);
        value.store(&cache, b"name").unwrap();
        let mut writer = cache
            .intend(b"late")
            .unwrap()
            .writer(Put::metadata("m"))
            .unwrap();
        writer.write(b"content").unwrap();
        let other = cache.clone();
        cache.close();
        assert_eq!(writer.commit(), Err(PutError::OutOfService));
        assert_eq!(value.store(&other, b"other"), Err(PutError::OutOfService));
        assert!(!other.flush().wait());
        assert!(other.remove(b"name").wait().is_err());
        assert!(other.get(b"name").wait().is_none());
        assert!(other.get(b"unknown").wait().is_none());
        let version = other.next_version();
        assert_eq!(
            other.update_metadata(b"name", version, "m".into()).wait(),
            Updated::Gone
        );
        other.close();
    }
}

#[test]
fn a_store_of_several_tebibytes_counts_in_larger_units() {
    for tib in [1, 3, 6, 20] {
        let device = Arc::new(Overlay::new(tib << 40, Arc::default()));
        let mut config = quiet(device.clone(), PolicyKind::Log);
        config.segment_bytes = Some(64 * MIB as u32);
        config.object_bytes = 1 << 28;
        config.memory_bytes = 64 * MIB as u64;
        let cache = open(config.clone());
        let values: Vec<Value> = (0..60)
            .map(|put| Value::new(put, 3001 * put as usize))
            .collect();
        for value in &values {
            let name = format!("{}", value.put);
            value.store(&cache, name.as_bytes()).unwrap();
            if value.put % 7 == 0 {
                assert!(cache.flush().wait());
            }
        }
        assert!(cache.flush().wait());
        let killed = Arc::new(device.copy());
        drop(cache);
        let cache = open(hashcache::Config {
            devices: vec![killed],
            ..config
        });
        for value in values {
            let name = format!("{}", value.put);
            assert_eq!(get(&cache, name.as_bytes()), Some(value), "{tib} TiB");
        }
    }
}
