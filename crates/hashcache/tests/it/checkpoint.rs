//! A checkpoint leaves the device to others: on a disk whose time is counted, it takes a tenth.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Clock, Config, PolicyKind};

use super::support::{BadBlocks, KIB, MIB, Recorder, Value, copy, forms, get, memory, open, quiet};

/// A part of a checkpoint, bytes.
const PART: usize = 256 * KIB;

/// A write, and the time at which it began and ended.
#[derive(Clone, Copy, Debug)]
struct Write {
    length: usize,
    began: u64,
    ended: u64,
}

/// A disk on which a write takes 1 ms and 10 ns a byte, by a clock that only this disk moves.
struct Slow {
    inner: MemoryDevice,
    now: Arc<AtomicU64>,
    /// Writes take no time.
    stopped: AtomicBool,
    writes: Mutex<Vec<Write>>,
}

impl Device for Slow {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let length = buffer.len();
        let takes = if self.stopped.load(Ordering::Acquire) {
            0
        } else {
            1_000_000 + 10 * length as u64
        };
        let began = self.now.fetch_add(takes, Ordering::AcqRel);
        self.writes.lock().unwrap().push(Write {
            length,
            began,
            ended: began + takes,
        });
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A store whose index takes several parts, on such a disk.
fn slow() -> (Cache, Arc<Slow>) {
    let now = Arc::new(AtomicU64::new(0));
    let device = Arc::new(Slow {
        inner: MemoryDevice::new(96 * MIB),
        now: Arc::clone(&now),
        stopped: AtomicBool::new(false),
        writes: Mutex::default(),
    });
    let clock = Clock::new(
        move || Duration::from_nanos(now.load(Ordering::Acquire)),
        Duration::default,
    );
    let config = Config {
        object_bytes: 512,
        clock,
        ..quiet(device.clone(), PolicyKind::Log)
    };
    (open(config), device)
}

/// Puts and flushes an object; its batch has another length than a part.
fn put(cache: &Cache, put: u64) {
    let value = Value::new(put, 60 * KIB);
    value.store(cache, format!("{put}").as_bytes()).unwrap();
    assert!(cache.flush().wait());
}

#[test]
fn a_checkpoint_takes_a_tenth_of_the_device_and_batches_get_through_between_its_parts() {
    let (cache, device) = slow();
    let mut puts = 0;
    while cache.stats().checkpoints < 2 {
        put(&cache, puts);
        puts += 1;
        assert!(puts < 20_000, "a checkpoint that never ends");
    }
    let writes = device.writes.lock().unwrap().clone();
    let parts: Vec<usize> = (0..writes.len())
        .filter(|n| writes[*n].length == PART)
        .collect();
    // Both checkpoints, each of more than one part.
    assert!(parts.len() >= 6, "{} parts", parts.len());
    for pair in parts.windows(2) {
        let (part, next) = (writes[pair[0]], writes[pair[1]]);
        let (took, rest) = (part.ended - part.began, next.began - part.ended);
        assert!(rest >= 9 * took, "{rest} ns behind a part of {took} ns");
        assert!(pair[1] - pair[0] > 10, "parts with hardly a batch between");
    }
    // And it does get on: the next part is written as soon as it may be.
    let (first, last) = (writes[parts[0]], writes[parts[3]]);
    assert!(last.began - first.began < 3 * 10 * (first.ended - first.began) * 3 / 2);
    assert_eq!(
        get(&cache, format!("{}", puts - 1).as_bytes()).map(|it| it.put),
        Some(puts - 1)
    );
}

#[test]
fn closing_does_not_wait_between_parts() {
    let (cache, device) = slow();
    for n in 0..20 {
        put(&cache, n);
    }
    let before = device.writes.lock().unwrap().len();
    cache.close();
    let writes = device.writes.lock().unwrap().split_off(before);
    let parts = writes.iter().filter(|write| write.length == PART).count();
    assert!(parts >= 4, "{parts} parts");
    // All parts one behind the other, then the superblock.
    assert!(writes[..parts].iter().all(|write| write.length == PART));
    assert!(writes.len() <= parts + 2, "{writes:?}");
}

/// A client that removes names as fast as it can, whether they were ever stored or not, must not
/// keep the device busy with checkpoints.
#[test]
fn removes_that_fill_the_journal_wait_and_leave_the_device_to_others() {
    let (cache, device) = slow();
    let removes: Vec<_> = (0..30_000_u64)
        .map(|n| cache.remove(&n.to_le_bytes()))
        .collect();
    let are_durable = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let failed = removes.into_iter().filter_map(|it| it.wait().err());
            assert_eq!(failed.count(), 0);
            are_durable.store(true, Ordering::Release);
        });
        // Only writes move the clock.
        for put in 0.. {
            let value = Value::new(put, 60 * KIB);
            value.store(&cache, format!("{put}").as_bytes()).unwrap();
            assert!(cache.cut_batch().wait());
            if are_durable.load(Ordering::Acquire) {
                break;
            }
            assert!(put < 20_000, "removes that wait for ever");
        }
    });
    let checkpoints = cache.stats().checkpoints;
    assert!((2..=13).contains(&checkpoints), "{checkpoints} checkpoints");
    let writes = device.writes.lock().unwrap().clone();
    let parts: Vec<Write> = writes.into_iter().filter(|it| it.length == PART).collect();
    for pair in parts.windows(2) {
        let (took, rest) = (pair[0].ended - pair[0].began, pair[1].began - pair[0].ended);
        assert!(rest >= 9 * took, "{rest} ns behind a part of {took} ns");
    }
}

#[test]
fn removes_of_names_never_stored_cost_a_checkpoint_for_many_hundreds_of_them() {
    let of_log = |policy| matches!(policy, PolicyKind::Log | PolicyKind::LogLru);
    for form in forms() {
        let cache = open(quiet(memory(64 * MIB), form));
        let before = cache.stats().checkpoints;
        let remove = |n: u64| cache.remove(format!("never stored {n}").as_bytes());
        // One by one, which takes most of the journal.
        for n in 0..10_000 {
            remove(n).wait().unwrap();
        }
        let one_by_one = cache.stats().checkpoints - before;
        let all: Vec<_> = (0..20_000).map(remove).collect();
        all.into_iter().for_each(|it| it.wait().unwrap());
        let at_once = cache.stats().checkpoints - before - one_by_one;
        if of_log(form.policy) {
            assert!(one_by_one <= 12, "{form:?}: {one_by_one}");
            // They may reach the writing thread in any pieces.
            assert!(at_once <= 24, "{form:?}: {at_once}");
        } else {
            // The Disk Table clears slots; there is nothing to be cleared.
            assert!(one_by_one + at_once <= 1, "{form:?}");
        }
    }
}

#[test]
fn a_batch_that_a_checkpoint_has_made_durable_gets_its_end_mark_at_once() {
    for policy in [PolicyKind::Log, PolicyKind::LogLru] {
        let device = Arc::new(Recorder::keeping(MemoryDevice::new(32 * MIB)));
        // By a clock that stands still nothing is due but the checkpoint.
        let clock = Clock::manual(|| Duration::ZERO, || Duration::from_secs(1_800_000_000));
        let cache = open(Config {
            clock,
            ..quiet(Arc::clone(&device) as _, policy)
        });
        let before = cache.stats().checkpoints;
        let mut n = 0u64;
        while cache.stats().checkpoints == before {
            Value::new(n, 60 * KIB)
                .store(&cache, &n.to_le_bytes())
                .unwrap();
            assert!(cache.cut_batch().wait());
            n += 1;
        }
        let (_, last) = device.written().pop().unwrap();
        // A header of a batch with no line in its list.
        assert!(last.len() >= 64 && &last[8..12] == b"HCba", "{policy:?}");
        assert_eq!(last[40..44], [0; 4], "{policy:?}");
    }
}

/// The rows that a checkpoint saved before a remove came have the name: if the remove cannot be
/// read any more, the checkpoint does not make up for it.
#[test]
fn removes_that_came_while_a_checkpoint_was_written_are_not_held_by_it() {
    // Five blocks of the journal.
    const VICTIMS: u64 = 5 * 169;
    let (cache, device) = slow();
    let name = |n: u64| format!("victim {n}").into_bytes();
    for n in 0..VICTIMS {
        Value::new(n, 100).store(&cache, &name(n)).unwrap();
    }
    assert!(cache.flush().wait());
    let parts = || {
        let writes = device.writes.lock().unwrap();
        writes.iter().filter(|write| write.length == PART).count()
    };
    let mut puts = VICTIMS..20_000;
    // The first part has no rows.
    while parts() < 2 {
        put(&cache, puts.next().expect("a checkpoint that never begins"));
    }
    assert_eq!(cache.stats().checkpoints, 0);
    // They may take hundreds of writes, in which time the checkpoint would end.
    device.stopped.store(true, Ordering::Release);
    let removes: Vec<_> = (0..VICTIMS).map(|n| cache.remove(&name(n))).collect();
    assert!(cache.flush().wait());
    removes.into_iter().for_each(|it| it.wait().unwrap());
    assert_eq!(cache.stats().checkpoints, 0, "they came too late");
    device.stopped.store(false, Ordering::Release);
    while cache.stats().checkpoints < 1 {
        put(&cache, puts.next().expect("a checkpoint that never ends"));
    }
    let image = device.inner.to_bytes();
    let found = |cache: &Cache| {
        let there = |n: &u64| get(cache, &name(*n)).is_some();
        (0..VICTIMS).filter(there).count()
    };
    let config = |device| Config {
        object_bytes: 512,
        ..quiet(device, PolicyKind::Log)
    };
    let whole = open(config(copy(image.clone())));
    assert_eq!((found(&whole), whole.stats().forgotten), (0, 0));
    let journal = u64::from_le_bytes(image[104..112].try_into().unwrap());
    let second = journal + 4096;
    let device = BadBlocks::new(MemoryDevice::from_bytes(image), &[second]);
    let damaged = open(config(Arc::new(device)));
    assert_eq!((found(&damaged), damaged.stats().forgotten), (0, 1));
}
