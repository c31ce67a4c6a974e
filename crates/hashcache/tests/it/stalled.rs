//! Reads that take so long that the world has changed when they end.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Ban, Config, PolicyKind, Put};

use crate::support::{KIB, MIB, Recorder, Value, copy, get, memory, open, quiet};

/// A device of which one read stalls, with what it has read already.
struct Stalling {
    inner: MemoryDevice,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Flows,
    /// The next read stalls.
    Armed,
    Stalls,
}

impl Stalling {
    fn new(inner: MemoryDevice) -> Self {
        Self {
            inner,
            stage: Mutex::new(Stage::Flows),
            changed: Condvar::new(),
        }
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap() = stage;
        self.changed.notify_all();
    }

    /// Waits for the stage; a test that fails ends all the same.
    fn wait_for(&self, wanted: Stage) {
        let stage = self.stage.lock().unwrap();
        let minute = Duration::from_secs(60);
        let waited = self
            .changed
            .wait_timeout_while(stage, minute, |it| *it != wanted);
        assert!(!waited.unwrap().1.timed_out(), "never {wanted:?}");
    }
}

impl Device for Stalling {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)?;
        let mut stage = self.stage.lock().unwrap();
        if *stage == Stage::Armed {
            *stage = Stage::Stalls;
            drop(stage);
            self.changed.notify_all();
            self.wait_for(Stage::Flows);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn a_read_that_outlasts_a_put_and_a_purge_does_not_return_what_was_purged() {
    for policy in [PolicyKind::Basic, PolicyKind::Set, PolicyKind::SetMem] {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        Value::new(1, 500).store(&cache, b"name").unwrap();
        cache.close();
        let inner = MemoryDevice::from_bytes(copy(device.to_bytes()).to_bytes());
        let device = Arc::new(Stalling::new(inner));
        let cache = open(Config {
            hot_bytes_max: 0,
            ..quiet(device.clone(), policy)
        });
        std::thread::scope(|scope| {
            device.set(Stage::Armed);
            let reader = scope.spawn(|| get(&cache, b"name"));
            device.wait_for(Stage::Stalls);
            Value::new(2, 500).store(&cache, b"name").unwrap();
            assert!(cache.flush().wait());
            cache.remove_matching(&[Ban::prefix(b"na")]).wait().unwrap();
            // The ban has done its work, and is forgotten.
            let is_done = || cache.flush().wait() && cache.stats().bans == 0;
            assert!((0..100_000).any(|_| is_done()), "{policy:?}");
            device.set(Stage::Flows);
            assert_eq!(reader.join().unwrap(), None, "{policy:?}");
        });
        assert_eq!(get(&cache, b"name"), None);
    }
}

#[test]
fn what_lies_before_a_run_that_is_being_read_is_read_up_to_there() {
    let device = Arc::new(Recorder::new(Stalling::new(MemoryDevice::new(16 * MIB))));
    let config = Config {
        grouped: true,
        // Equal tags in one row would cost reads of their own.
        name_secret: Some(*b"no equal tags !!"),
        memory_bytes: 64 * MIB as u64,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    let name = |n: u64| format!("object/{n}").into_bytes();
    let value = |n: u64| Value::new(n, 20 * KIB);
    let cache = open(config.clone());
    for n in 0..10 {
        let put = Put {
            group: 5,
            ..Put::metadata(value(n).metadata())
        };
        let content = value(n).content(&name(n));
        cache.put(&name(n), put, &content).unwrap();
    }
    assert!(cache.flush().wait());
    cache.close();
    let cache = open(config);
    device.take_reads();
    std::thread::scope(|scope| {
        device.inner.set(Stage::Armed);
        let reader = scope.spawn(|| get(&cache, &name(6)));
        device.inner.wait_for(Stage::Stalls);
        assert_eq!(get(&cache, &name(2)), Some(value(2)));
        device.inner.set(Stage::Flows);
        assert_eq!(reader.join().unwrap(), Some(value(6)));
    });
    let reads = device.take_reads();
    let [stalled, before] = reads[..] else {
        panic!("{reads:?}");
    };
    let end = before.offset + before.length as u64;
    assert!(
        (stalled.offset..=stalled.offset + 8 * KIB as u64).contains(&end),
        "{reads:?}"
    );
    for n in 3..10 {
        assert_eq!(get(&cache, &name(n)), Some(value(n)));
    }
    assert_eq!(device.take_reads(), []);
}
