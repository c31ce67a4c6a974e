//! Memory that is never exceeded, devices that are slow or fail, and ends that always come.

use std::sync::Arc;

use hashcache::device::{Device, Fault, FaultDevice, MemoryDevice};
use hashcache::{Cache, Config, Health, PolicyKind, Put, PutError, Updated};

use super::support::{Gate, KIB, MIB, POLICIES, Value, get, memory, open, quiet};

fn gated(policy: PolicyKind) -> (Cache, Arc<Gate<MemoryDevice>>) {
    let gate = Arc::new(Gate::new(MemoryDevice::new(64 * MIB)));
    (open(quiet(gate.clone() as Arc<dyn Device>, policy)), gate)
}

#[test]
fn puts_are_refused_while_the_disk_is_behind_and_taken_again_afterwards() {
    for policy in POLICIES {
        let (cache, gate) = gated(policy);
        gate.shut();
        let mut accepted = Vec::new();
        let refused = (0..10_000).find(|put| {
            let value = Value::new(*put, 20_000);
            match value.store(&cache, format!("{put}").as_bytes()) {
                Ok(_) => {
                    accepted.push(value);
                    false
                }
                Err(error) => {
                    assert_eq!(error, PutError::Full);
                    true
                }
            }
        });
        assert!(refused.is_some());
        let stats = cache.stats();
        assert!(stats.memory_used_bytes <= stats.memory_limit_bytes);
        assert!(stats.puts_refused > 0);
        // What was accepted is served from memory, removes and look-ups go on.
        for value in &accepted {
            assert_eq!(
                get(&cache, format!("{}", value.put).as_bytes()),
                Some(*value)
            );
        }
        let removed = cache.remove(b"0");
        assert_eq!(get(&cache, b"0"), None);
        gate.open();
        removed.wait().unwrap();
        assert!(cache.flush().wait());
        Value::new(7, 20_000).store(&cache, b"again").unwrap();
        assert_eq!(get(&cache, b"again"), Some(Value::new(7, 20_000)));
    }
}

#[test]
fn what_is_reserved_by_users_of_the_cache_counts_and_comes_back() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    for put in 0..2_000 {
        while Value::new(put, 8_000)
            .store(&cache, format!("{put}").as_bytes())
            .is_err()
        {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    let hot = cache.stats().hot_bytes;
    assert!(hot > MIB as u64);
    let mut held = Vec::new();
    while let Some(reservation) = cache.reserve(256 << 10) {
        assert_eq!(reservation.bytes(), 256 << 10);
        held.push(reservation);
        assert!(cache.stats().memory_used_bytes <= cache.stats().memory_limit_bytes);
    }
    // Hot objects made room, down to next to nothing.
    assert!(cache.stats().hot_bytes < hot / 4);
    assert!(held.len() as u64 * (256 << 10) > cache.stats().memory_limit_bytes / 4 * 3);
    // A quarter of a mebibyte could not be had any more, so this cannot.
    assert_eq!(
        Value::new(1, 300_000).store(&cache, b"name"),
        Err(PutError::Full)
    );
    drop(held);
    Value::new(1, 100_000).store(&cache, b"name").unwrap();
}

#[test]
fn without_memory_for_a_read_the_answer_is_a_miss_in_the_end() {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Set));
    Value::new(1, 1_000).store(&cache, b"name").unwrap();
    cache.close();
    let cache = open(quiet(device, PolicyKind::Set));
    let mut held = Vec::new();
    for bytes in [1 << 20, 64 << 10, 4 << 10, 512] {
        while let Some(reservation) = cache.reserve(bytes) {
            held.push(reservation);
        }
    }
    assert_eq!(get(&cache, b"name"), None);
    assert!(cache.stats().no_memory > 0);
    drop(held);
    assert_eq!(get(&cache, b"name"), Some(Value::new(1, 1_000)));
    assert_eq!(cache.health(), Health::InService);
}

#[test]
fn a_device_that_fails_takes_the_store_out_and_leaves_nobody_waiting() {
    for policy in POLICIES {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 * MIB), None));
        let cache = open(quiet(device.clone(), policy));
        for put in 0..20 {
            Value::new(put, 3_000)
                .store(&cache, format!("{put}").as_bytes())
                .unwrap();
        }
        let writer = cache
            .intend(b"late")
            .unwrap()
            .writer(Put::metadata("m"))
            .unwrap();
        device.fail();
        let (flush, remove) = (cache.flush(), cache.remove(b"1"));
        assert!(!flush.wait());
        assert!(remove.wait().is_err());
        assert_eq!(cache.health(), Health::OutOfService);
        assert_eq!(writer.commit(), Err(PutError::OutOfService));
        assert_eq!(
            Value::new(1, 1).store(&cache, b"name"),
            Err(PutError::OutOfService)
        );
        assert!(cache.remove(b"2").wait().is_err());
        assert!(!cache.flush().wait());
        for put in 0..20 {
            assert_eq!(get(&cache, format!("{put}").as_bytes()), None);
        }
        assert_eq!(cache.stats().pending_bytes, 0);
        cache.close();
    }
}

#[test]
fn reads_that_the_device_refuses_are_misses_and_take_it_out_in_the_end() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(64 * MIB), None));
    let config = Config {
        memory_bytes: 16 * MIB as u64,
        ..quiet(device.clone(), PolicyKind::Set)
    };
    let cache = open(config);
    device.fail();
    for put in 0..20 {
        assert_eq!(get(&cache, format!("{put}").as_bytes()), None);
    }
    assert_eq!(cache.health(), Health::OutOfService);
    assert!(cache.stats().read_errors >= 8);
    let version = cache.next_version();
    assert_eq!(
        cache.update_metadata(b"1", version, "m".into()).wait(),
        Updated::Gone
    );
    cache.close();
}

#[test]
fn a_device_that_fails_while_closing_does_not_keep_the_caller() {
    for policy in POLICIES {
        for after in 0..4 {
            let inner = MemoryDevice::new(64 * MIB);
            let device = Arc::new(FaultDevice::new(inner, Some((3 + after, Fault::Error))));
            let cache = open(quiet(device, policy));
            Value::new(1, 100 * KIB).store(&cache, b"name").unwrap();
            cache.close();
        }
    }
}

#[test]
fn the_last_handle_may_be_dropped_anywhere() {
    for policy in POLICIES {
        for _ in 0..20 {
            let device = memory(16 * MIB);
            let cache = open(quiet(device.clone(), policy));
            let version = Value::new(1, 200_000).store(&cache, b"name").unwrap();
            cache.close();
            let cache = open(quiet(device, policy));
            // In the engine's own threads: an update that waits for the disk holds a handle.
            let updated = cache.update_metadata(b"name", version, "m".into());
            let lookup = cache.get(b"name");
            drop(cache);
            drop(lookup);
            // Done, or given up because all others have let go.
            updated.wait();
        }
    }
}

#[test]
fn readers_and_followers_outlive_their_cache() {
    let cache = open(quiet(memory(64 * MIB), PolicyKind::Log));
    let value = Value::new(1, 700_000);
    value.store(&cache, b"name").unwrap();
    let reader = cache.get(b"name").wait().unwrap().reader(0..u64::MAX);
    let mut writer = cache
        .intend(b"other")
        .unwrap()
        .writer(Put::metadata("m"))
        .unwrap();
    let follower = writer.follow(0);
    writer.write(b"content").unwrap();
    drop(cache);
    assert!(reader.read_to_vec().unwrap() == value.content(b"name"));
    writer.commit().unwrap();
    assert_eq!(follower.read_to_vec().unwrap(), b"content");
}
