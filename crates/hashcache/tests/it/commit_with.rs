//! Metadata that is known only when the content has ended, such as its digest.

use std::sync::Arc;

use hashcache::device::Device;
use hashcache::{Cache, Keep, PolicyKind, Put, PutError, Storage, Writer};

use super::support::{Gate, KIB, MIB, POLICIES, Value, copy, get, memory, open, quiet};

const NAME: &[u8] = b"name";

/// A put of `value` that has all content but announced `metadata`.
fn written(cache: &Cache, value: Value, put: Put) -> Writer {
    let mut writer = cache.intend(NAME).unwrap().writer(put).unwrap();
    writer.write(&value.content(NAME)).unwrap();
    writer
}

#[test]
fn the_last_metadata_is_found_in_memory_on_disk_and_after_a_kill() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for (put, length) in (0..).zip([0, 1, 64 * KIB, 64 * KIB + 1, 400 * KIB, 2 * MIB]) {
            for keep in [Keep::Whole, Keep::Partial, Keep::AtEnd] {
                let value = Value::new(put, length);
                let announced = Put {
                    keep,
                    ..Put::metadata("not known yet")
                };
                let writer = written(&cache, value, announced);
                let version = writer.version();
                assert_eq!(writer.commit_with(value.metadata()), Ok(version));
                assert_eq!(get(&cache, NAME), Some(value), "{policy:?} {length}");
                assert!(cache.flush().wait());
                assert_eq!(get(&cache, NAME), Some(value), "{policy:?} {length}");
                let killed = open(quiet(copy(device.to_bytes()), policy));
                assert_eq!(get(&killed, NAME), Some(value), "{policy:?} {length}");
            }
        }
    }
}

#[test]
fn an_incomplete_object_has_the_first_metadata_until_the_commit() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let value = Value::new(1, 700_000);
        let put = Put {
            keep: Keep::Partial,
            length: Some(700_000),
            ..Put::metadata("first")
        };
        let mut writer = cache.intend(NAME).unwrap().writer(put).unwrap();
        writer.write(&value.content(NAME)[..300_000]).unwrap();
        let hit = cache.get(NAME).wait().unwrap();
        assert!(!hit.is_complete() && hit.metadata() == &b"first"[..]);
        writer.write(&value.content(NAME)[300_000..]).unwrap();
        writer.commit_with(value.metadata()).unwrap();
        assert!(cache.get(NAME).wait().unwrap().is_complete());
        assert_eq!(get(&cache, NAME), Some(value), "{policy:?}");
    }
}

#[test]
fn an_object_for_memory_has_the_last_metadata_and_is_not_written() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    let value = Value::new(5, 5_000);
    let put = Put {
        storage: Storage::Memory,
        length: Some(5_000),
        ..Put::metadata("first")
    };
    let writer = written(&cache, value, put);
    writer.commit_with(value.metadata()).unwrap();
    assert_eq!(get(&cache, NAME), Some(value));
    assert!(cache.flush().wait());
    assert_eq!(cache.stats().puts, 0);
}

#[test]
fn too_much_metadata_stores_nothing_and_followers_see_all() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let old = Value::new(1, 100);
        old.store(&cache, NAME).unwrap();
        let value = Value::new(2, 400_000);
        let writer = written(&cache, value, Put::metadata("first"));
        let follower = writer.follow(0);
        let error = writer.commit_with(vec![0; 65_537]).unwrap_err();
        assert_eq!(error, PutError::Metadata { length: 65_537 });
        assert_eq!(follower.read_to_vec().unwrap(), value.content(NAME));
        assert_eq!(get(&cache, NAME), Some(old), "{policy:?}");

        let writer = written(&cache, value, Put::metadata("first"));
        writer.commit_with(vec![0; 65_536]).unwrap();
        let found = cache.get(NAME).wait().unwrap();
        assert_eq!(found.metadata().len(), 65_536);
    }
}

#[test]
fn a_wrong_length_stores_nothing_whatever_the_metadata() {
    let cache = open(quiet(memory(16 * MIB), PolicyKind::Log));
    let value = Value::new(2, 4);
    let put = Put {
        length: Some(5),
        ..Put::metadata("first")
    };
    for bytes in [0, 65_537] {
        let writer = written(&cache, value, put.clone());
        let follower = writer.follow(0);
        let error = writer.commit_with(vec![0; bytes]).unwrap_err();
        let (written, announced) = (4, 5);
        assert_eq!(error, PutError::Length { written, announced });
        assert!(follower.read_to_vec().is_err());
        assert!(cache.get(NAME).wait().is_none());
    }
}

#[test]
fn a_put_that_announced_as_much_metadata_is_not_refused_when_memory_is_full() {
    for policy in POLICIES {
        let gate = Arc::new(Gate::new(hashcache::device::MemoryDevice::new(64 * MIB)));
        let cache = open(quiet(gate.clone() as Arc<dyn Device>, policy));
        gate.shut();
        let value = Value::new(1, 1_000);
        let last = value.metadata();
        let short = written(&cache, value, Put::metadata("first"));
        let follower = short.follow(0);
        let announced = written(&cache, value, Put::metadata(vec![0; last.len()]));
        let is_full = (0..10_000).any(|put| {
            let value = Value::new(put, 10_000);
            value.store(&cache, format!("{put}").as_bytes()) == Err(PutError::Full)
        });
        assert!(is_full);
        assert_eq!(short.commit_with(vec![0; 65_000]), Err(PutError::Full));
        assert_eq!(follower.read_to_vec().unwrap(), value.content(NAME));
        announced.commit_with(last).unwrap();
        assert_eq!(get(&cache, NAME), Some(value), "{policy:?}");
        let stats = cache.stats();
        assert!(stats.memory_used_bytes <= stats.memory_limit_bytes);
        gate.open();
        assert!(cache.flush().wait());
        assert_eq!(get(&cache, NAME), Some(value), "{policy:?}");
    }
}

#[test]
fn longer_metadata_is_counted_until_it_is_on_disk() {
    let gate = Arc::new(Gate::new(hashcache::device::MemoryDevice::new(64 * MIB)));
    let mut config = quiet(gate.clone() as Arc<dyn Device>, PolicyKind::Log);
    config.hot_bytes_max = 0;
    let cache = open(config);
    gate.shut();
    let value = Value::new(1, 1_000);
    let writer = written(&cache, value, Put::metadata("first"));
    let before = cache.stats().memory_used_bytes;
    writer.commit_with(vec![0; 60_000]).unwrap();
    assert!(cache.stats().memory_used_bytes >= before + 59_000);
    gate.open();
    assert!(cache.flush().wait());
    assert!(cache.stats().memory_used_bytes < before);
}

#[test]
fn a_put_that_a_newer_one_replaced_gives_way_with_any_metadata() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let (old, new) = (Value::new(1, 10), Value::new(2, 20));
        let writer = written(&cache, old, Put::metadata("first"));
        new.store(&cache, NAME).unwrap();
        let ended = writer.commit_with(old.metadata());
        assert_eq!(ended, Err(PutError::Superseded));
        assert_eq!(get(&cache, NAME), Some(new), "{policy:?}");
    }
}
