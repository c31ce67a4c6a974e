//! Memory that is never exceeded, devices that are slow or fail, and operations that always end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use hashcache::device::{Device, Fault, FaultDevice, MemoryDevice};
use hashcache::{
    Cache, Config, Health, OpenError, Paid, Payer, PolicyKind, Put, PutError, Updated,
};

use super::support::{
    EVERY, Gate, KIB, MIB, Overlay, POLICIES, Value, get, memory, open, quiet, read,
};

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
        // Accepted objects are served from memory; removes and lookups continue.
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
fn a_device_without_space_at_any_write_takes_the_store_out_and_what_is_hot_is_served() {
    for policy in POLICIES {
        for (fault, n) in [Fault::Full, Fault::Error]
            .into_iter()
            .flat_map(|fault| (3..40).map(move |n| (fault, n)))
        {
            let inner = MemoryDevice::new(16 * MIB);
            let device = Arc::new(FaultDevice::new(inner, Some((n, fault))));
            let cache = open(quiet(device.clone(), policy));
            let mut flushed = Vec::new();
            for put in 0..200 {
                let value = Value::new(put, 90_000);
                let name = format!("{put}").into_bytes();
                if value.store(&cache, &name).is_err() || !cache.flush().wait() {
                    break;
                }
                flushed.push((name, value));
                if put % 3 == 2 {
                    let (name, _) = flushed.remove(0);
                    if cache.remove(&name).wait().is_err() {
                        break;
                    }
                }
            }
            let what = format!("{policy:?} {fault:?} at write {n}");
            assert!(device.writes() > n, "{what}");
            assert_eq!(cache.stats().health, Health::OutOfService, "{what}");
            assert_eq!(
                Value::new(1, 1).store(&cache, b"late"),
                Err(PutError::OutOfService),
                "{what}"
            );
            if let Some((name, value)) = flushed.last() {
                let hit = cache.get(name).wait().expect("its head is hot still");
                assert_eq!(Value::parse(hit.metadata()), *value, "{what}");
            }
            assert_eq!(cache.stats().pending_bytes, 0, "{what}");
            cache.close();
        }
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
fn no_more_tiny_objects_wait_for_slots_than_their_slots_have_memory() {
    for policy in EVERY {
        if !matches!(policy, PolicyKind::Log | PolicyKind::LogLru) {
            let (cache, gate) = gated(policy);
            gate.shut();
            let put = |n: u32| cache.put(&n.to_le_bytes(), Put::metadata(""), b"").is_ok();
            let waiting = (0..100_000).take_while(|n| put(*n)).count();
            // With 16 MiB of memory. Each waits for a write of 8 KiB, and with `set` for a read of
            // 64 KiB: that is what closing waits for.
            assert!(
                (500..=16 * MIB / (8 * KIB)).contains(&waiting),
                "{policy:?} {waiting}"
            );
            gate.open();
        }
    }
}

/// Names of one byte of which none puts out another one in the store on `device`. Each store places
/// names by a secret of its own: with `basic` and blocks of 1 MiB, in one store of 150 two of five
/// names have one place.
fn names_apart(device: Overlay, open: impl Fn(Arc<dyn Device>) -> Cache) -> Vec<u8> {
    let device: Arc<dyn Device> = Arc::new(device);
    let cache = open(device.clone());
    for name in 0..12 {
        Value::new(0, 100).store(&cache, &[name]).unwrap();
        assert!(cache.flush().wait());
    }
    cache.close();
    // Evicted objects do not answer from memory any more.
    let cache = open(device);
    let is_stored = |name: &u8| get(&cache, &[*name]).is_some();
    let names: Vec<u8> = (0..12).filter(is_stored).collect();
    assert!(names.len() >= 5, "{}", names.len());
    names
}

#[test]
fn the_least_memory_that_a_refusal_names_is_enough_to_store_and_to_find() {
    for policy in EVERY {
        for block_bytes in [2 * KIB, 8 * KIB, 256 * KIB, MIB] {
            let device = Arc::new(Overlay::new(3 << 30, Arc::default()));
            let with = |memory_bytes: u64| Config {
                memory_bytes,
                block_bytes: Some(block_bytes as u32),
                ..quiet(device.clone() as Arc<dyn Device>, policy)
            };
            let Some(OpenError::Memory { needed_bytes, .. }) = Cache::open(with(MIB as u64)).err()
            else {
                panic!("{policy:?} does with 1 MiB");
            };
            open(with(needed_bytes)).close();
            let roomy = |device| Config {
                devices: vec![device],
                ..with(2 * needed_bytes)
            };
            let names = names_apart(device.copy(), |device| open(roomy(device)));
            let values: Vec<Value> = (0..5).map(|n| Value::new(n, 3_000 << n)).collect();
            let name = |value: &Value| [names[usize::try_from(value.put).unwrap()]];
            let cache = open(with(needed_bytes));
            for value in &values {
                value.store(&cache, &name(value)).unwrap();
                assert!(cache.flush().wait());
            }
            cache.close();
            let cache = open(with(needed_bytes));
            // Held as by clients that read slowly.
            let hits = values.iter().map(|it| cache.get(&name(it)).wait());
            let hits: Vec<_> = hits.collect();
            for (value, hit) in values.iter().zip(&hits) {
                let found = hit.as_ref().and_then(|hit| read(hit, &name(value)));
                assert_eq!(found, Some(*value), "{policy:?} {block_bytes}");
            }
            assert_eq!(cache.stats().no_memory, 0, "{policy:?} {block_bytes}");
        }
    }
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

/// Memory that a payer has set aside.
struct Account(Arc<AtomicU64>, u64);

impl Drop for Account {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[test]
fn a_read_from_disk_is_paid_for_as_long_as_any_piece_of_it_is_held() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let value = Value::new(1, 2 * MIB);
        value.store(&cache, b"name").unwrap();
        cache.close();
        // Nothing of it is hot.
        let cache = open(quiet(device, policy));
        let (held, room) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let account = (Arc::clone(&held), Arc::clone(&room));
        let payer: Payer = Arc::new(move |bytes| {
            let (held, room) = &account;
            let fits = held.load(Ordering::Relaxed) + bytes <= room.load(Ordering::Relaxed);
            fits.then(|| {
                held.fetch_add(bytes, Ordering::Relaxed);
                Arc::new(Account(Arc::clone(held), bytes)) as Paid
            })
        });
        let hit = cache.get(b"name").wait().unwrap();
        let mut reader = hit.reader(0..u64::MAX).paid_by(payer);
        let mut context = Context::from_waker(Waker::noop());
        let mut content = Vec::new();
        // The head is in memory.
        while let Poll::Ready(piece) = reader.poll_next(&mut context) {
            content.extend_from_slice(&piece.unwrap().unwrap());
        }
        assert!(content.len() < MIB, "{policy:?}: some of it is read");
        // Room for two spans, one that is read and one that is held.
        room.store(512 * KIB as u64, Ordering::Relaxed);
        let mut last = None;
        loop {
            match reader.poll_next(&mut context) {
                Poll::Pending => std::thread::yield_now(),
                Poll::Ready(None) => break,
                Poll::Ready(Some(piece)) => {
                    let piece = piece.unwrap();
                    content.extend_from_slice(&piece);
                    assert!(held.load(Ordering::Relaxed) >= piece.len() as u64);
                    last = Some(piece);
                }
            }
        }
        assert!(content == value.content(b"name"));
        drop((reader, hit));
        assert!(held.load(Ordering::Relaxed) > 0, "the last piece is held");
        drop(last);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}

/// Takes all that transfers which nobody reads can take, first to be stored and then by the way.
fn stall(cache: &Cache, transfers: usize) -> Vec<(hashcache::Writer, hashcache::Follower)> {
    let stalled = (0..transfers).map(|number| {
        let put = Put {
            length: Some(10 * MIB as u64),
            ..Put::metadata("m")
        };
        let intent = cache.intend(format!("slow {number}").as_bytes());
        let mut writer = intent.unwrap().writer(put).unwrap();
        let follower = writer.follow(0);
        while writer.write(&[1; 16 * KIB]).is_ok() {}
        writer.bypass();
        while writer.write(&[1; 16 * KIB]).is_ok() {}
        (writer, follower)
    });
    stalled.collect()
}

#[test]
fn transfers_that_nobody_reads_leave_memory_to_small_puts_and_reads() {
    let (cache, gate) = gated(PolicyKind::Log);
    Value::new(1, 5_000).store(&cache, b"stored").unwrap();
    assert!(cache.flush().wait());
    gate.shut();
    let stalled = stall(&cache, 20);
    let stats = cache.stats();
    assert!(stats.memory_used_bytes >= stats.memory_limit_bytes / 2);
    assert_eq!(get(&cache, b"stored"), Some(Value::new(1, 5_000)));
    for put in 0..20 {
        let name = format!("small {put}");
        let stored = Value::new(put, 20_000).store(&cache, name.as_bytes());
        assert!(stored.is_ok(), "{put}: {stored:?}");
    }
    assert!(cache.reserve(64 << 10).is_some());
    drop(stalled);
    gate.open();
}

#[test]
fn a_writer_that_is_refused_wakes_no_other_one() {
    struct Count(AtomicU64);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (cache, gate) = gated(PolicyKind::Log);
    gate.shut();
    let begin = |name: &[u8]| {
        let put = Put {
            length: Some(10 * MIB as u64),
            ..Put::metadata("m")
        };
        cache.intend(name).unwrap().writer(put).unwrap()
    };
    let (mut one, mut other) = (begin(b"one"), begin(b"other"));
    let mut held = Vec::new();
    while let Some(reservation) = cache.reserve(32 << 10) {
        held.push(reservation);
    }
    assert_eq!(one.write(&[1; 100 * KIB]), Err(PutError::Full));
    let mut released = Box::pin(one.released());
    let count = Arc::new(Count(0.into()));
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    assert!(released.as_mut().poll(&mut context).is_pending());
    for _ in 0..10 {
        assert_eq!(other.write(&[1; 100 * KIB]), Err(PutError::Full));
    }
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    drop(held);
    assert!(released.as_mut().poll(&mut context).is_ready());
    gate.open();
}
