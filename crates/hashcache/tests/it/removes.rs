//! Removes that are faster than the device: what they take, and what waits for them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, Health, Lookup, PolicyKind, Remove};

use super::support::{EVERY, KIB, MIB, Recorder, Value, copy, get, memory, open, quiet};

/// Objects of a store whose removes find no more room.
const STORED: u64 = 800;

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// A device that stops at a gate, or takes a while for each call.
struct Slow {
    inner: Arc<MemoryDevice>,
    shut: Mutex<bool>,
    opened: Condvar,
    /// How long each call takes, ms.
    pause: AtomicU64,
    reads: AtomicU64,
    calls: AtomicU64,
    /// Calls that have come to the gate while it was shut.
    held: AtomicU64,
}

impl Slow {
    fn new() -> Arc<Self> {
        Self::with(memory(32 * MIB))
    }

    fn with(inner: Arc<MemoryDevice>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            shut: Mutex::new(false),
            opened: Condvar::new(),
            pause: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            held: AtomicU64::new(0),
        })
    }

    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }

    /// A store can be opened while it is shut.
    fn pass(&self, offset: u64) {
        let mut shut = self.shut.lock().unwrap();
        let is_held = |shut: &mut bool| *shut && offset >= 64 * KIB as u64;
        let held = u64::from(is_held(&mut shut));
        self.held.fetch_add(held, Ordering::Relaxed);
        // A test that fails while it is shut would else never end.
        let minute = Duration::from_secs(60);
        let waited = self.opened.wait_timeout_while(shut, minute, is_held);
        drop(waited.unwrap());
        self.calls.fetch_add(1, Ordering::Relaxed);
        let pause = self.pause.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(pause));
    }
}

impl Device for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.pass(offset);
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.pass(offset);
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(0);
        self.inner.sync()
    }
}

#[test]
fn removes_that_wait_take_a_sixteenth_of_the_memory_and_each_of_them_becomes_durable() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru, PolicyKind::Basic] {
        let device = Slow::new();
        let cache = open(Config {
            hot_bytes_max: 0,
            ..quiet(Arc::clone(&device) as _, policy)
        });
        for n in 0..40 {
            Value::new(n, 500).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        device.shut(true);
        let before = cache.stats().memory_used_bytes;
        let removes: Vec<_> = (0..1_800).rev().map(|n| cache.remove(&name(n))).collect();
        let stats = cache.stats();
        let taken = stats.memory_used_bytes - before;
        let most = stats.memory_limit_bytes / 16 + 64 * KIB as u64;
        assert!(taken <= most, "{policy:?}: {taken} bytes");
        device.shut(false);
        for remove in removes {
            remove.wait().unwrap();
        }
        let again = open(quiet(copy(device.inner.to_bytes()), policy));
        for n in 0..40 {
            assert_eq!(get(&cache, &name(n)), None, "{policy:?}");
            assert_eq!(get(&again, &name(n)), None, "{policy:?}");
        }
    }
}

#[test]
fn names_that_are_invalidated_again_and_again_wait_once() {
    for policy in EVERY {
        let device = Slow::new();
        let cache = open(quiet(Arc::clone(&device) as _, policy));
        Value::new(1, 500).store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        device.shut(true);
        let before = cache.stats().memory_used_bytes;
        for _ in 0..50_000 {
            cache.invalidate(b"name");
        }
        assert!(cache.stats().memory_used_bytes < before + 64 * KIB as u64);
        device.shut(false);
        cache.remove(b"name").wait().unwrap();
        assert_eq!(get(&cache, b"name"), None);
    }
}

#[test]
fn an_invalidation_of_what_memory_knows_is_not_stored_asks_no_device() {
    for policy in [PolicyKind::SetMem, PolicyKind::Log, PolicyKind::LogLru] {
        let device = Arc::new(Recorder::new(MemoryDevice::new(32 * MIB)));
        let cache = open(quiet(Arc::clone(&device) as _, policy));
        device.take_reads();
        device.take_writes();
        for n in 0..2_000 {
            cache.invalidate(&name(n));
        }
        assert!(cache.flush().wait());
        assert_eq!(device.take_reads(), [], "{policy:?}");
        assert_eq!(device.take_writes(), [], "{policy:?}");
    }
}

#[test]
fn a_flush_does_not_wait_for_all_invalidations_and_a_remove_goes_before_them() {
    for policy in [PolicyKind::Set, PolicyKind::Basic, PolicyKind::SetMemLru] {
        let device = Slow::new();
        let cache = open(quiet(Arc::clone(&device) as _, policy));
        device.pause.store(1, Ordering::Relaxed);
        let before = device.reads.load(Ordering::Relaxed);
        // Each twice: a name that waits already does not become more urgent.
        for n in (0..1_000).chain(0..1_000) {
            cache.invalidate(&name(n));
        }
        Value::new(1, 500).store(&cache, b"new").unwrap();
        assert!(cache.flush().wait());
        cache.remove(b"other").wait().unwrap();
        let reads = device.reads.load(Ordering::Relaxed) - before;
        assert!(reads < 900, "{policy:?}: {reads} reads first");
    }
}

/// A store of [`STORED`] objects whose device has stopped, with three quarters of the room for
/// removes taken by those of other names.
fn full_of_removes(policy: PolicyKind) -> (Arc<Slow>, Cache, Vec<Remove>) {
    let device = Slow::new();
    let cache = open(Config {
        hot_bytes_max: 0,
        ..quiet(Arc::clone(&device) as _, policy)
    });
    for n in (0..STORED).chain([9_999]) {
        Value::new(n, 500).store(&cache, &name(n)).unwrap();
    }
    assert!(cache.flush().wait());
    device.shut(true);
    // The writer must stand at the gate before the room fills, or it takes thousands out at once.
    let first = cache.remove(&name(9_999));
    while device.held.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let others = (10_000..16_000).map(|n| cache.remove(&name(n)));
    let removes = [first].into_iter().chain(others).collect();
    (device, cache, removes)
}

#[test]
fn removes_beyond_their_share_block_no_caller_and_are_in_force_at_once() {
    for policy in EVERY {
        let (device, cache, removes) = full_of_removes(policy);
        let before = cache.stats();
        for n in 0..STORED {
            match n % 3 {
                0 => cache.invalidate(&name(n)),
                1 => drop(cache.invalidation(&name(n))),
                _ => drop(cache.remove(&name(n))),
            }
            // A lookup that asked the device would wait for it.
            let answer = cache.get(&name(n));
            assert!(matches!(answer, Lookup::Miss), "{policy:?}: {n}");
        }
        let stats = cache.stats();
        assert!(
            stats.no_memory > before.no_memory + STORED / 4,
            "{policy:?}"
        );
        drop(removes);
        let used = cache.stats().memory_used_bytes;
        let most = stats.memory_limit_bytes / 16 + 64 * KIB as u64;
        assert!(
            used <= before.memory_used_bytes + most,
            "{policy:?}: {used}"
        );
        device.shut(false);
        cache.close();
        let again = open(quiet(copy(device.inner.to_bytes()), policy));
        for n in 0..STORED {
            assert_eq!(get(&again, &name(n)), None, "{policy:?}: {n}");
        }
    }
}

#[test]
fn removes_beyond_their_share_during_recovery_hold_when_it_is_over() {
    for policy in EVERY {
        let inner = memory(32 * MIB);
        let cache = open(quiet(Arc::clone(&inner) as _, policy));
        for n in 0..STORED {
            Value::new(n, 500).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        let device = Slow::with(copy(inner.to_bytes()));
        device.shut(true);
        let cache = open(Config {
            open_patience: Duration::ZERO,
            hot_bytes_max: 0,
            ..quiet(Arc::clone(&device) as _, policy)
        });
        assert_eq!(cache.health(), Health::Recovering);
        let before = cache.stats();
        let others = 10_000..16_000;
        let removes: Vec<_> = others.map(|n| cache.remove(&name(n))).collect();
        (0..STORED).for_each(|n| cache.invalidate(&name(n)));
        let stats = cache.stats();
        assert!(stats.no_memory > before.no_memory, "{policy:?}");
        let used = stats.memory_used_bytes - before.memory_used_bytes;
        let most = stats.memory_limit_bytes / 16 + 64 * KIB as u64;
        assert!(used <= most, "{policy:?}: {used}");
        device.shut(false);
        for remove in removes {
            remove.wait().unwrap();
        }
        assert_eq!(cache.health(), Health::InService);
        for n in 0..STORED {
            assert_eq!(get(&cache, &name(n)), None, "{policy:?}: {n}");
        }
        let is_log = matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
        assert_eq!(cache.stats().forgotten, u64::from(is_log), "{policy:?}");
        // Nothing stays hidden in the log, whose index has forgotten them.
        Value::new(1, 500).store(&cache, &name(STORED - 1)).unwrap();
        assert!(cache.flush().wait());
        assert!(
            !is_log || get(&cache, &name(STORED - 1)).is_some(),
            "{policy:?}"
        );
    }
}

#[test]
fn what_is_removed_before_a_close_is_seen_to_have_begun_holds_after_the_next_opening() {
    const THREADS: u64 = 2;
    for policy in EVERY {
        let device = memory(32 * MIB);
        let cache = open(quiet(Arc::clone(&device) as _, policy));
        for n in 0..STORED {
            Value::new(n, 500).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        let removed = std::thread::scope(|scope| {
            let removing: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let cache = cache.clone();
                    scope.spawn(move || {
                        let own = (0..STORED).filter(|n| n % THREADS == thread);
                        let mut removed = Vec::new();
                        for n in own {
                            drop(cache.invalidation(&name(n)));
                            if cache.is_closed() {
                                break;
                            }
                            removed.push(n);
                        }
                        removed
                    })
                })
                .collect();
            cache.clone().close();
            let removed = removing.into_iter().map(|it| it.join().unwrap());
            removed.collect::<Vec<_>>().concat()
        });
        drop(cache);
        let cache = open(quiet(copy(device.to_bytes()) as _, policy));
        for n in removed {
            assert_eq!(get(&cache, &name(n)), None, "{policy:?}: {n}");
        }
    }
}

#[test]
fn names_removed_beyond_the_share_stay_gone_and_take_few_others_with_them() {
    for policy in [PolicyKind::Set, PolicyKind::SetMem, PolicyKind::SetMemLru] {
        let (device, cache, removes) = full_of_removes(policy);
        let before = cache.stats().no_memory;
        let mut removed = 0;
        while cache.stats().no_memory < before + 12 {
            cache.invalidate(&name(removed));
            removed += 1;
        }
        assert!(removed < STORED * 3 / 4, "{policy:?}: {removed} removed");
        device.shut(false);
        for remove in removes {
            remove.wait().unwrap();
        }
        // An object that the writer has cleared is found again once it is put again.
        let put = || {
            Value::new(STORED, 500)
                .store(&cache, &name(removed - 1))
                .unwrap();
            assert!(cache.flush().wait());
            get(&cache, &name(removed - 1)).is_none()
        };
        while put() {}
        cache.close();
        let again = open(quiet(copy(device.inner.to_bytes()), policy));
        let found = |n: &u64| get(&again, &name(*n)).is_some();
        assert_eq!((0..removed - 1).filter(found).count(), 0, "{policy:?}");
        let others = (removed..STORED).filter(found).count() as u64;
        let left = STORED - removed;
        assert!(others + 60 >= left, "{policy:?}: {others} of {left}");
    }
}

#[test]
fn a_put_and_a_flush_beside_two_thousand_removes_cost_at_most_twice_the_calls_of_quiet_ones() {
    for policy in EVERY {
        let device = Slow::new();
        let cache = open(Config {
            memory_bytes: 64 * MIB as u64,
            ..quiet(Arc::clone(&device) as _, policy)
        });
        for n in 0..1_000 {
            Value::new(n, 500).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        // As on a disk with a head. Where time is short, rounds of removes have fewer calls.
        device.pause.store(8, Ordering::Relaxed);
        // The least of some: a thread that is kept waiting may see two rounds.
        let calls = |put: u64| {
            let calls = (0..3).map(|n| {
                let before = device.calls.load(Ordering::Relaxed);
                Value::new(put, 500).store(&cache, &[7, n]).unwrap();
                assert!(cache.flush().wait());
                device.calls.load(Ordering::Relaxed) - before
            });
            calls.min().unwrap()
        };
        let quiet = calls(1);
        (0..2_000).for_each(|n| cache.invalidate(&name(n)));
        let beside = calls(2);
        device.pause.store(0, Ordering::Relaxed);
        assert!(
            beside <= 2 * quiet,
            "{policy:?}: {beside} calls, {quiet} when quiet"
        );
    }
}
