//! Tests that need internals: a lock that a panic has poisoned, wakers that enter the cache.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use super::Cache;
use crate::device::MemoryDevice;
use crate::disk::write_superblock;
use crate::error::{OpenError, PutError};
use crate::format::COUNT_MAX;
use crate::memory::Class;
use crate::stats::Health;
use crate::store::device::{FoundSuperblock, front};
use crate::{Ban, Config, PolicyKind, Put};

#[test]
fn a_panic_under_a_shards_lock_takes_the_device_out_and_leaves_nobody_waiting() {
    for policy in PolicyKind::ALL {
        let config = Config {
            policy,
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
        };
        let cache = Cache::open(config).unwrap();
        let put = |name: &[u8]| cache.put(name, Put::metadata("m"), b"content");
        put(b"name").unwrap();
        let key = cache.secret().name(b"name");
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _shard = cache.stripe(key).shard(key);
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        // The next call detects the panic, and all calls are answered.
        assert!(cache.remove(b"name").wait().is_err(), "{policy:?}");
        assert!(!cache.flush().wait());
        assert_eq!(cache.health(), Health::OutOfService);
        assert!(cache.get(b"name").wait().is_none());
        assert_eq!(put(b"name"), Err(PutError::OutOfService));
        cache.close();
    }
}

#[test]
fn a_panic_under_a_lock_of_hot_objects_costs_nobody_an_answer() {
    for policy in PolicyKind::ALL {
        let config = Config {
            policy,
            memory_bytes: 16 << 20,
            ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
        };
        let cache = Cache::open(config).unwrap();
        let put = |name: &[u8]| cache.put(name, Put::metadata("m"), b"content").unwrap();
        put(b"name");
        assert!(cache.flush().wait());
        assert_eq!(cache.hot().bytes(), 8, "{policy:?}");
        // The first call is under the lock of a reader, which is not poisoned.
        let calls = AtomicUsize::new(0);
        let panics = || {
            let gone = |_: &_| calls.fetch_add(1, Ordering::Relaxed) == 0 || panic!("on purpose");
            cache.hot().remove_all(gone);
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let found = cache.get(b"name").wait();
        assert_eq!(found.unwrap().metadata(), &b"m"[..], "{policy:?}");
        put(b"name");
        cache.remove(b"name").wait().unwrap();
        put(b"another");
        cache.remove_matching(&[Ban::prefix(b"a")]).wait().unwrap();
        assert!(cache.flush().wait());
        assert_eq!(cache.health(), Health::InService);
        assert!(cache.get(b"name").wait().is_none() && cache.get(b"another").wait().is_none());
        cache.close();
    }
}

// -- wakers ---------------------------------------------------------------------------------------

/// A waker that enters the cache, like the waker of an executor that polls in place: it looks up
/// names in all shards, removes one, and puts a ban in force.
struct Enters {
    cache: Cache,
    entered: AtomicUsize,
}

const NAMES: u64 = 2_000;

impl Wake for Enters {
    fn wake(self: Arc<Self>) {
        for n in 0..NAMES {
            drop(self.cache.get(&n.to_le_bytes()));
        }
        drop(self.cache.remove(&0_u64.to_le_bytes()));
        drop(self.cache.remove_matching(&[Ban::prefix(b"none")]));
        self.entered.fetch_add(1, Ordering::Release);
    }
}

/// Runs `test` on a separate thread: it must finish.
fn ends(what: &str, test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match is_done.recv_timeout(Duration::from_secs(2 * 60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it waits for itself"),
        _ => thread.join().expect("the test holds"),
    }
}

/// A store with memory full of hot objects and with more objects on disk.
fn full_of_hot_objects(policy: PolicyKind) -> Cache {
    let hour = Duration::from_secs(3600);
    let config = Config {
        policy,
        memory_bytes: 16 << 20,
        batch_delay: hour,
        sync_interval: hour,
        ..Config::on_device(Arc::new(MemoryDevice::new(128 << 20)))
    };
    let cache = Cache::open(config).expect("memory can be opened");
    for n in 0..NAMES {
        let put = Put::metadata("m");
        while let Err(error) = cache.put(&n.to_le_bytes(), put.clone(), &[7; 10_000]) {
            assert_eq!(error, PutError::Full);
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    cache
}

/// Runs `act` while a caller waits for memory with a waker that enters the cache. Returns how often
/// it entered.
#[expect(
    clippy::disallowed_methods,
    reason = "the test waits for another thread"
)]
fn with_one_who_waits(cache: &Cache, act: impl FnOnce()) -> usize {
    // No memory is free except the memory that hot objects can release.
    let mut spent = Vec::new();
    while let Some(reservation) = cache.budget().reserve_free(64) {
        spent.push(reservation);
    }
    let enters = Arc::new(Enters {
        cache: cache.clone(),
        entered: AtomicUsize::new(0),
    });
    let waker = Waker::from(Arc::clone(&enters));
    let budget = cache.budget();
    let mut waits = pin!(budget.room_since(budget.releases(), Class::Small, 1));
    let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    act();
    // Engine threads release memory too, and then the waker runs there.
    let until = Instant::now() + Duration::from_secs(60);
    while enters.entered.load(Ordering::Acquire) == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    enters.entered.load(Ordering::Acquire)
}

#[test]
fn a_waker_that_enters_the_cache_does_not_wait_for_who_makes_an_object_hot() {
    for policy in PolicyKind::ALL {
        ends("making an object hot", move || {
            let cache = full_of_hot_objects(policy);
            let hot = |n: &u64| cache.hot().contains(cache.secret().name(&n.to_le_bytes()));
            let cold: Vec<u64> = (0..NAMES).filter(|n| !hot(n)).collect();
            assert!(!cold.is_empty(), "{policy:?}");
            let entered = with_one_who_waits(&cache, || {
                for n in cold {
                    drop(cache.get(&n.to_le_bytes()).wait());
                }
            });
            assert!(entered > 0, "{policy:?}: nobody was woken");
        });
    }
}

#[test]
fn a_waker_that_enters_the_cache_does_not_wait_for_who_makes_a_ban() {
    ends("making a ban", || {
        let cache = full_of_hot_objects(PolicyKind::Log);
        let bans: Vec<Ban> = (0..40_u8).map(|n| Ban::prefix(&[0xff, n])).collect();
        // Hot objects must make room for these bans.
        let entered = with_one_who_waits(&cache, || drop(cache.remove_matching(&bans)));
        assert!(entered > 0, "nobody was woken");
        // The wide ban replaces these bans, and their memory is released.
        let wide = Ban::prefix(b"");
        let entered = with_one_who_waits(&cache, || drop(cache.remove_matching(&[wide])));
        assert!(entered > 0, "nobody was woken");
    });
}

#[test]
fn a_waker_that_enters_the_cache_does_not_wait_for_who_writes_what_others_follow() {
    ends("a write with followers", || {
        let cache = full_of_hot_objects(PolicyKind::Log);
        let mut writer = cache
            .intend(b"followed")
            .unwrap()
            .writer(Put::metadata("m"));
        let writer = writer.as_mut().unwrap();
        let stream = writer.stream();
        let reads = Arc::new(Reads(Mutex::new(stream.follow(0))));
        let budget = cache.budget().clone();
        let waker = Waker::from(Arc::clone(&reads));
        // Small pieces are merged; hot objects make room for the merged piece.
        for _ in 0..400 {
            let mut spent = Vec::new();
            while let Some(reservation) = budget.reserve_free(16) {
                spent.push(reservation);
            }
            let mut waits = pin!(budget.room_since(budget.releases(), Class::Small, 1));
            let _ = waits.as_mut().poll(&mut Context::from_waker(&waker));
            let _ = writer.write(b"0123456789");
        }
    });
}

/// A waker that reads the content that is being written.
struct Reads(Mutex<Option<super::Follower>>);

impl Wake for Reads {
    fn wake(self: Arc<Self>) {
        if let Ok(mut follower) = self.0.try_lock()
            && let Some(follower) = follower.as_mut()
        {
            let mut context = Context::from_waker(Waker::noop());
            while follower.poll_next(&mut context).is_ready() {}
        }
    }
}

#[test]
fn a_store_whose_versions_have_come_to_an_end_says_so_and_stays_as_it_is() {
    for policy in PolicyKind::ALL {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let config = Config {
            policy,
            memory_bytes: 16 << 20,
            ..Config::on_device(device.clone())
        };
        let cache = Cache::open(config.clone()).unwrap();
        cache.put(b"name", Put::metadata("m"), b"content").unwrap();
        cache.close();
        let FoundSuperblock::Superblock(mut superblock) = front(&*device).unwrap() else {
            panic!("no superblock");
        };
        superblock.next_version = COUNT_MAX - 9;
        for _ in 0..2 {
            write_superblock(&*device, &mut superblock).unwrap();
        }
        let before = device.to_bytes();
        for _ in 0..2 {
            let opened = Cache::open(config.clone());
            let Err(OpenError::NoVersionsLeft { path }) = opened else {
                panic!("{:?}", opened.err());
            };
            assert!(!path.as_os_str().is_empty());
            assert!(device.to_bytes() == before, "{policy:?}");
        }
    }
}
