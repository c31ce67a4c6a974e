//! Opening after a kill: how long it takes, and what it reads.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Ban, Cache, Clock, Config, Health, OpenError, PolicyKind, inspect};

use super::support::{MIB, Overlay, Recorder, Value, copy, get, memory, open, quiet};

/// A store for objects of 4 KiB.
fn of_small(device: Arc<dyn Device>) -> Config {
    Config {
        object_bytes: 4 << 10,
        ..quiet(device, PolicyKind::Log)
    }
}

/// The device of a store that was killed after its log had wrapped and several checkpoints had
/// been written, and the values that the store had committed.
fn killed() -> (Vec<u8>, Vec<Value>) {
    let device = memory(32 * MIB);
    let cache = open(of_small(device.clone()));
    let values: Vec<Value> = (0..12_000).map(|put| Value::new(put, 3_000)).collect();
    for (n, value) in values.iter().enumerate() {
        value
            .store(&cache, format!("{}", value.put).as_bytes())
            .unwrap();
        if n % 500 == 0 {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    assert!(cache.stats().checkpoints >= 3);
    let bytes = device.to_bytes();
    drop(cache);
    (bytes, values)
}

fn found(cache: &Cache, values: &[Value]) -> usize {
    values
        .iter()
        .filter(|value| {
            let found = get(cache, format!("{}", value.put).as_bytes());
            assert!(found.is_none_or(|found| found == **value));
            found.is_some()
        })
        .count()
}

#[test]
fn with_no_checkpoint_or_an_older_one_all_is_found_just_the_same() {
    let (bytes, values) = killed();
    let whole = found(&open(of_small(copy(bytes.clone()))), &values);
    // 32 MiB of log less a segment, at 4,096 to 4,608 bytes a record.
    assert!(whole > 6_000, "{whole}");
    let serial = inspect(&of_small(copy(bytes.clone())))
        .unwrap()
        .checkpoint_serial;
    let area = |serial: u64| checkpoint_area(&bytes, serial);
    for damaged in [vec![serial], vec![serial - 1], vec![serial, serial - 1]] {
        for part in 0..2 {
            let mut bytes = bytes.clone();
            for serial in &damaged {
                bytes[area(*serial) + part * (256 << 10) + 100] ^= 1;
            }
            let inspection = inspect(&of_small(copy(bytes.clone()))).unwrap();
            assert_eq!(inspection.checkpoint_whole, !damaged.contains(&serial));
            let cache = open(of_small(copy(bytes)));
            let again = found(&cache, &values);
            // What was put out of the index early may be back, its neighbour gone.
            assert!(
                again.abs_diff(whole) * 50 < whole,
                "{damaged:?}: {again}, not {whole}"
            );
        }
    }
}

/// Where checkpoint `serial` lies: areas begin behind the journal, odd serials in the second.
fn checkpoint_area(bytes: &[u8], serial: u64) -> usize {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    usize::try_from(word(120) + serial % 2 * word(128)).unwrap()
}

#[test]
fn a_checkpoint_that_the_log_has_overtaken_is_not_gone_by() {
    let (bytes, values) = killed();
    let serial = inspect(&of_small(copy(bytes.clone())))
        .unwrap()
        .checkpoint_serial;
    // An image whose superblocks and checkpoints are those of long ago.
    let early = {
        let device = copy(bytes.clone());
        let cache = open(of_small(device.clone()));
        for put in 0..9_000 {
            let value = Value::new(100_000 + put, 3_000);
            value
                .store(&cache, format!("new {put}").as_bytes())
                .unwrap();
            if put % 500 == 0 {
                assert!(cache.flush().wait());
            }
        }
        assert!(cache.flush().wait());
        let mut late = device.to_bytes();
        let front = checkpoint_area(&bytes, 1) + (512 << 10);
        late[..front].copy_from_slice(&bytes[..front]);
        late
    };
    assert!(serial > 0);
    let cache = open(of_small(copy(early)));
    assert!(found(&cache, &values) < 1_000);
    let new = (0..9_000).filter(|put| get(&cache, format!("new {put}").as_bytes()).is_some());
    assert!(new.count() > 5_000);
    // And it lives on without giving a version out twice.
    let value = Value::new(1 << 40, 5_000);
    value.store(&cache, b"name").unwrap();
    assert!(cache.flush().wait());
    assert_eq!(get(&cache, b"name"), Some(value));
}

#[test]
fn a_gibibyte_opens_after_a_kill_reading_little() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache.img");
    let config = Config {
        size_bytes: Some(1 << 30),
        memory_bytes: 32 << 20,
        open_patience: Duration::from_secs(60),
        ..Config::new(&path)
    };
    let values: Vec<Value> = (0..4_000).map(|put| Value::new(put, 20_000)).collect();
    {
        let cache = open(config.clone());
        for value in &values {
            while value
                .store(&cache, format!("{}", value.put).as_bytes())
                .is_err()
            {
                assert!(cache.flush().wait());
            }
        }
        assert!(cache.flush().wait());
        // The file as a kill would leave it.
        std::fs::copy(&path, directory.path().join("killed.img")).unwrap();
    }
    let killed = Config {
        paths: vec![directory.path().join("killed.img")],
        ..config
    };
    let cache = open(killed);
    assert_eq!(cache.health(), Health::InService);
    // At a hundredth of a second a read, a hard disk's, and 100 MB a second: within a second.
    let stats = cache.stats();
    assert!(stats.reads < 80, "{} reads", stats.reads);
    assert!(stats.read_bytes < 32 << 20, "{} bytes", stats.read_bytes);
    assert!(found(&cache, &values) >= 3_990);
}

#[test]
fn opening_returns_before_all_is_known_and_what_happens_meanwhile_holds() {
    let (bytes, values) = killed();
    for round in 0..20 {
        let device = Arc::new(Recorder::new(MemoryDevice::from_bytes(bytes.clone())));
        let config = Config {
            open_patience: Duration::ZERO,
            ..of_small(device)
        };
        let cache = open(config);
        // The newest ones: they are taken from the lists, last of all.
        let name = |n: usize| format!("{}", values[values.len() - 1 - n].put).into_bytes();
        let removes: Vec<_> = (0..30).map(|n| cache.remove(&name(n))).collect();
        let value = Value::new(1 << 40, 500 + round);
        value.store(&cache, &name(40)).unwrap();
        for n in 0..30 {
            assert_eq!(get(&cache, &name(n)), None);
        }
        assert_eq!(get(&cache, &name(40)), Some(value));
        removes
            .into_iter()
            .for_each(|remove| remove.wait().unwrap());
        // A remove is answered by the writing thread, which has recovered by then.
        assert_eq!(cache.health(), Health::InService);
        for n in 0..30 {
            assert_eq!(get(&cache, &name(n)), None, "removed {n} came back");
        }
        assert_eq!(get(&cache, &name(40)), Some(value));
        assert!(cache.flush().wait());
        assert_eq!(get(&cache, &name(40)), Some(value));
    }
}

/// A device of which nothing behind the superblocks is read before the test allows it.
struct Shut {
    inner: Arc<MemoryDevice>,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Device for Shut {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset >= 64 << 10 {
            let is_open = self.is_open.lock().unwrap();
            drop(self.opened.wait_while(is_open, |it| !*it).unwrap());
        }
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// Where recovery ends with a checkpoint, it is written before the removes that came meanwhile, and
/// they are older than it.
#[test]
fn what_was_removed_during_recovery_stays_removed_after_a_kill_behind_its_checkpoint() {
    for (policy, grown) in [
        (PolicyKind::LogLru, None),
        (PolicyKind::Log, Some(48)),
        (PolicyKind::LogLru, Some(48)),
    ] {
        let config = |device: Arc<dyn Device>, mib: Option<usize>| Config {
            object_bytes: 4 << 10,
            size_bytes: mib.map(|it| (it * MIB) as u64),
            ..quiet(device, policy)
        };
        let name = |n: u64| format!("{n}").into_bytes();
        let disk = memory(64 * MIB);
        let cache = open(config(disk.clone(), Some(32)));
        for n in 0..200 {
            Value::new(n, 3_000).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        let killed = disk.to_bytes();
        drop(cache);
        let device = Arc::new(Shut {
            inner: copy(killed),
            is_open: Mutex::new(false),
            opened: Condvar::new(),
        });
        let cache = open(Config {
            open_patience: Duration::ZERO,
            ..config(device.clone(), grown)
        });
        assert_eq!(cache.health(), Health::Recovering);
        let removes: Vec<_> = (0..100).map(|n| cache.remove(&name(n))).collect();
        *device.is_open.lock().unwrap() = true;
        device.opened.notify_all();
        removes.into_iter().for_each(|it| it.wait().unwrap());
        assert_eq!(cache.stats().checkpoints, 1, "{policy:?} {grown:?}");
        let again = open(config(copy(device.inner.to_bytes()), grown));
        let is_found = |n: &u64| get(&again, &name(*n)).is_some();
        assert_eq!((0..100).filter(is_found).count(), 0, "{policy:?} {grown:?}");
        let kept = (100..200).filter(is_found).count();
        assert!(kept >= 95, "{policy:?} {grown:?}: {kept}");
    }
}

/// A store of 4 million slots, whose positions take 10 MB.
fn of_many(device: Arc<dyn Device>, memory_bytes: u64) -> Config {
    Config {
        object_bytes: 512,
        hot_bytes_max: 0,
        segment_bytes: Some(16 * MIB as u32),
        memory_bytes,
        ..quiet(device, PolicyKind::LogLru)
    }
}

/// How often the same was read, at the most: each pass reads the lists of the log.
fn passes(device: &Recorder<Overlay>) -> usize {
    let mut times = HashMap::new();
    for read in device.take_reads() {
        *times.entry((read.offset, read.length)).or_insert(0) += 1;
    }
    times.into_values().max().unwrap_or(0)
}

#[test]
fn log_lru_is_recovered_in_several_passes_where_memory_is_short() {
    const NAMES: u64 = 20_000;
    let disk = Arc::new(Overlay::new(4_000_000 * 512, Arc::default()));
    let plenty = 256 * MIB as u64;
    let cache = open(of_many(disk.clone(), plenty));
    let name = |n: u64| format!("{n}").into_bytes();
    let put_all = |put: u64, step: usize| {
        for n in (0..NAMES).step_by(step) {
            while Value::new(put, 10).store(&cache, &name(n)).is_err() {
                assert!(cache.flush().wait());
            }
        }
        assert!(cache.flush().wait());
    };
    put_all(1, 1);
    put_all(2, 3);
    for n in (0..NAMES).step_by(10) {
        drop(cache.remove(&name(n)));
    }
    cache.remove(b"none").wait().unwrap();
    let killed = disk.copy();
    drop(cache);
    let poor = of_many(Arc::new(killed.copy()), 1);
    let Err(OpenError::Memory { needed_bytes, .. }) = Cache::open(poor) else {
        panic!("a byte is enough");
    };
    let mut known = Vec::new();
    // With more memory a batch is larger, which takes some too.
    let scarce = needed_bytes + MIB as u64;
    for (memory_bytes, least, most) in [(plenty, 1, 3), (scarce, 4, 64)] {
        let device = Arc::new(Recorder::new(killed.copy()));
        let cache = open(of_many(device.clone(), memory_bytes));
        let passes = passes(&device);
        assert!((least..=most).contains(&passes), "{passes} passes");
        let mut found = 0;
        for n in 0..NAMES {
            let right = match n {
                n if n.is_multiple_of(10) => None,
                n if n.is_multiple_of(3) => Some(Value::new(2, 10)),
                _ => Some(Value::new(1, 10)),
            };
            let there = get(&cache, &name(n));
            assert!(there.is_none() || there == right, "{n}: {there:?}");
            found += u64::from(there.is_some());
        }
        // A full row puts one out now and then.
        assert!(found > NAMES * 9 / 10 * 99 / 100, "{found}");
        known.push(found);
        // And it continues.
        Value::new(3, 10).store(&cache, &name(0)).unwrap();
        cache.close();
        let cache = open(of_many(device, memory_bytes));
        assert_eq!(get(&cache, &name(0)), Some(Value::new(3, 10)));
    }
    assert_eq!(known[0], known[1]);
}

/// Waits with each read of the log until the test lets it, and takes a second for each of them.
struct Slow {
    inner: Arc<MemoryDevice>,
    seconds: Arc<AtomicU64>,
    is_released: Mutex<bool>,
    released: Condvar,
    /// The superblocks lie before this; opening reads them on the caller's thread.
    front_bytes: u64,
    reads: AtomicU64,
}

impl Slow {
    fn release(&self) {
        *self.is_released.lock().unwrap() = true;
        self.released.notify_all();
    }
}

impl Device for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset >= self.front_bytes {
            let is_released = self.is_released.lock().unwrap();
            let waited = self.released.wait_while(is_released, |it| !*it).unwrap();
            drop(waited);
            // On a busy machine the thread that closes the store may lose its processor between
            // asking for the time and telling the writing thread. A read takes longer than that.
            std::thread::sleep(Duration::from_millis(20));
            self.seconds.fetch_add(1, Relaxed);
            self.reads.fetch_add(1, Relaxed);
        }
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn a_store_that_is_closed_stops_recovering_and_growing_and_loses_nothing() {
    let (bytes, values) = killed();
    let whole = found(&open(of_small(copy(bytes.clone()))), &values);
    // Without a checkpoint: the lists of all segments are to be read.
    let mut bytes = bytes;
    // Room to grow.
    bytes.resize(64 * MIB, 0);
    let serial = inspect(&of_small(copy(bytes.clone())))
        .unwrap()
        .checkpoint_serial;
    for serial in [serial - 1, serial] {
        let area = checkpoint_area(&bytes, serial);
        bytes[area + 100] ^= 1;
    }
    for grown in [None, Some(48)] {
        let check = |left| {
            let again = found(&open(of_small(copy(left))), &values);
            assert!(again.abs_diff(whole) * 50 < whole, "{again}, not {whole}");
        };
        let reads = reads_after_close(&bytes, grown, |_| (), check);
        // A whole recovery reads both checkpoints' first parts, the journal, and each of 30
        // segments at least twice. On a quiet machine it is one or two.
        assert!(
            reads <= 40,
            "{grown:?}: {reads} reads after the store was closed"
        );
    }
}

#[test]
fn what_was_removed_in_a_recovery_that_the_close_cuts_short_stays_removed() {
    let (bytes, values) = killed();
    let name = |value: &Value| format!("{}", value.put).into_bytes();
    let whole = found(&open(of_small(copy(bytes.clone()))), &values);
    for (grown, what) in [
        (None, "by name"),
        (Some(48), "by name"),
        (None, "by a ban"),
        (None, "without room"),
    ] {
        let (kept, removed) = values.split_at(match what {
            "by name" => values.len() - 1_000,
            _ => 0,
        });
        let remove = |cache: &Cache| match what {
            "by a ban" => drop(cache.remove_matching(&[Ban::prefix(b"")])),
            _ => {
                for value in removed {
                    cache.invalidate(&name(value));
                    drop(cache.invalidation(&name(value)));
                }
                assert_eq!(cache.stats().no_memory > 0, what == "without room");
            }
        };
        let check = |left| {
            let cache = open(of_small(copy(left)));
            assert_eq!(found(&cache, removed), 0, "{what} {grown:?}");
            let expected = whole.saturating_sub(removed.len());
            let again = found(&cache, kept);
            assert!(
                again.abs_diff(expected) * 50 <= expected,
                "{what}: {again}, not {expected}"
            );
        };
        reads_after_close(&bytes, grown, remove, check);
    }
}

/// Opens a store, which is to grow to `grown` MiB, on a slow device, calls `meanwhile` and closes
/// it while it recovers, and shows what is left to `check`. Returns how often the device was read.
fn reads_after_close(
    bytes: &[u8],
    grown: Option<usize>,
    meanwhile: impl FnOnce(&Cache),
    check: impl FnOnce(Vec<u8>),
) -> u64 {
    const CLOSER: &str = "closer";
    let bytes = bytes.to_vec();
    let seconds = Arc::new(AtomicU64::new(0));
    let device = Arc::new(Slow {
        inner: copy(bytes.clone()),
        seconds: Arc::clone(&seconds),
        is_released: Mutex::new(false),
        released: Condvar::new(),
        front_bytes: 64 << 10,
        reads: AtomicU64::new(0),
    });
    // `close` asks for the time when it tells the writing thread.
    let seen = Arc::clone(&device);
    let clock = Clock::new(
        move || {
            if std::thread::current().name() == Some(CLOSER) {
                seen.release();
            }
            Duration::from_secs(seconds.load(Relaxed))
        },
        || Duration::from_secs(1_800_000_000),
    );
    let cache = open(Config {
        open_patience: Duration::ZERO,
        clock,
        size_bytes: grown.map(|mib| (mib * MIB) as u64),
        ..of_small(device.clone())
    });
    assert_eq!(cache.health(), Health::Recovering);
    meanwhile(&cache);
    let closer = std::thread::Builder::new().name(CLOSER.to_owned());
    closer.spawn(move || cache.close()).unwrap().join().unwrap();
    check(device.inner.to_bytes());
    device.reads.load(Relaxed)
}
