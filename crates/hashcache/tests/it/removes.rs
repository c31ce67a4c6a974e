//! Removes that are faster than the device: what they take, and what waits for them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Config, PolicyKind};

use super::support::{EVERY, KIB, MIB, Recorder, Value, copy, get, memory, open, quiet};

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}").into_bytes()
}

/// A device that stops at a gate, or takes a while for each read.
struct Slow {
    inner: Arc<MemoryDevice>,
    shut: Mutex<bool>,
    opened: Condvar,
    pause: Duration,
    reads: AtomicU64,
}

impl Slow {
    fn new(pause: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner: memory(32 * MIB),
            shut: Mutex::new(false),
            opened: Condvar::new(),
            pause,
            reads: AtomicU64::new(0),
        })
    }

    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
    }
}

impl Device for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.pass();
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.pause);
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.pass();
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.pass();
        self.inner.sync()
    }
}

#[test]
fn removes_that_wait_take_a_sixteenth_of_the_memory_and_each_of_them_becomes_durable() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru, PolicyKind::Basic] {
        let device = Slow::new(Duration::ZERO);
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
        let device = Slow::new(Duration::ZERO);
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
        let device = Slow::new(Duration::from_millis(1));
        let cache = open(quiet(Arc::clone(&device) as _, policy));
        let before = device.reads.load(Ordering::Relaxed);
        for n in 0..1_000 {
            cache.invalidate(&name(n));
        }
        Value::new(1, 500).store(&cache, b"new").unwrap();
        assert!(cache.flush().wait());
        cache.remove(b"other").wait().unwrap();
        let reads = device.reads.load(Ordering::Relaxed) - before;
        assert!(reads < 900, "{policy:?}: {reads} reads first");
    }
}
