//! Nothing older answers in the place of something newer: not after damage, not after a crash
//! between two writes, not while the log wraps.
//!
//! Each test was made for a fault that was planted and that no other test caught (`cargo xtask
//! mutants` plants them again).

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use hashcache::device::{Device, Fault, FaultDevice, MemoryDevice};
use hashcache::{Cache, Config, PolicyKind, inspect};

use super::support::{Form, KIB, MIB, Recorder, Value, copy, forms, get, memory, open, quiet};

const LOGS: [PolicyKind; 2] = [PolicyKind::Log, PolicyKind::LogLru];

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n}/").into_bytes()
}

/// Where `bytes` lie in `image`.
fn find(image: &[u8], bytes: &[u8]) -> usize {
    let found = image.windows(bytes.len()).position(|it| it == bytes);
    found.expect("it was written")
}

/// Zeros both areas for checkpoints (`docs/FORMAT.md`).
fn without_checkpoints(mut image: Vec<u8>) -> Vec<u8> {
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let at = usize::try_from(word(120)).unwrap();
    let bytes = usize::try_from(2 * word(128)).unwrap();
    image[at..at + bytes].fill(0);
    image
}

// -- removes --------------------------------------------------------------------------------------

#[test]
fn without_a_checkpoint_no_remove_comes_back_that_the_ring_has_forgotten() {
    const NAMES: u64 = 1_500;
    for policy in LOGS {
        let device = memory(16 * MIB);
        let cache = open(quiet(device.clone(), policy));
        for n in 0..NAMES {
            Value::new(n, 100).store(&cache, &name(n)).unwrap();
        }
        assert!(cache.flush().wait());
        // The ring of a small store has room for 1,352.
        let removes: Vec<_> = (0..NAMES).map(|n| cache.remove(&name(n))).collect();
        removes.into_iter().for_each(|it| it.wait().unwrap());
        assert!(cache.stats().checkpoints >= 2);
        let killed = open(quiet(copy(without_checkpoints(device.to_bytes())), policy));
        let back = (0..NAMES).filter(|n| get(&killed, &name(*n)).is_some());
        assert_eq!(back.count(), 0, "{policy:?}");
    }
}

// -- damage ---------------------------------------------------------------------------------------

#[test]
fn a_damaged_newest_version_does_not_give_way_to_an_older_one() {
    for policy in LOGS {
        let device = memory(16 * MIB);
        let mut cache = open(quiet(device.clone(), policy));
        let value = |version: u64, n: u64| Value::new(version * 1_000 + n, 2_000);
        for version in 1..3 {
            for n in 0..10 {
                value(version, n).store(&cache, &name(n)).unwrap();
            }
            assert!(cache.flush().wait());
            // So that the put of the next version knows nothing of this one's place.
            cache.close();
            cache = open(quiet(device.clone(), policy));
        }
        let mut image = device.to_bytes();
        for n in 0..10 {
            let at = find(&image, &value(2, n).content(&name(n))[..64]);
            image[at + 40] ^= 1;
        }
        for image in [image.clone(), without_checkpoints(image)] {
            let device = copy(image);
            for _ in 0..2 {
                let cache = open(quiet(device.clone(), policy));
                for n in 0..10 {
                    for _ in 0..2 {
                        assert_eq!(get(&cache, &name(n)), None, "{policy:?}: {n}");
                    }
                }
                cache.close();
            }
        }
    }
}

// -- crashes --------------------------------------------------------------------------------------

/// Offset and bytes of the last write that has `name` in it.
fn last_write_of(device: &Recorder<MemoryDevice>, name: &[u8]) -> (usize, Vec<u8>) {
    let has_name = |bytes: &[u8]| bytes.windows(name.len()).any(|it| it == name);
    let mut written = device.written().into_iter().rev();
    let (offset, bytes) = written.find(|(_, bytes)| has_name(bytes)).unwrap();
    (usize::try_from(offset).unwrap(), bytes)
}

/// A header of a batch with one record.
const HEADER: usize = 512;

#[test]
fn behind_a_crash_no_place_is_written_twice_under_one_stamp() {
    for policy in LOGS {
        for with_checkpoint in [true, false] {
            let device = memory(16 * MIB);
            let cache = open(quiet(device.clone(), policy));
            Value::new(1, 900).store(&cache, b"another").unwrap();
            assert!(cache.flush().wait());
            let killed = device.to_bytes();
            cache.close();
            let image = if with_checkpoint {
                device.to_bytes()
            } else {
                killed
            };
            let device = Arc::new(Recorder::keeping(MemoryDevice::from_bytes(image)));
            let cache = open(quiet(device.clone(), policy));
            Value::new(2, 900).store(&cache, &name(7)).unwrap();
            assert!(cache.flush().wait());
            // A power cut: of the batch all has arrived but its header.
            let mut torn = device.inner.to_bytes();
            let (at, bytes) = last_write_of(&device, &name(7));
            assert_eq!(torn[at..at + bytes.len()], bytes);
            torn[at..at + HEADER].fill(0);
            let device = Recorder::keeping(MemoryDevice::from_bytes(torn.clone()));
            let device = Arc::new(device);
            let cache = open(quiet(device.clone(), policy));
            assert_eq!(get(&cache, &name(7)), None);
            cache.remove(&name(7)).wait().unwrap();
            Value::new(3, 900).store(&cache, &name(7)).unwrap();
            assert!(cache.flush().wait());
            // A second power cut: of this batch only the header has arrived. What lies behind it
            // must not be taken for what the header lists.
            let mut again = device.inner.to_bytes();
            let (at, bytes) = last_write_of(&device, &name(7));
            let records = at + HEADER..at + bytes.len();
            again[records.clone()].copy_from_slice(&torn[records]);
            let found = get(&open(quiet(copy(again), policy)), &name(7));
            let what = format!("{policy:?}, with a checkpoint: {with_checkpoint}");
            assert_eq!(found, None, "{what}: it was removed");
        }
    }
}

/// A closed store with `set-mem` whose sets are full, and the names in it.
fn full_table() -> (Vec<u8>, Vec<u64>) {
    let device = memory(16 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    for n in 0..8_000 {
        if Value::new(n, 300).store(&cache, &name(n)).is_err() {
            assert!(cache.flush().wait());
            Value::new(n, 300).store(&cache, &name(n)).unwrap();
        }
    }
    assert!(cache.flush().wait());
    cache.close();
    let names = stored_of(device.to_bytes(), 0..8_000);
    assert!(names.len() > 500, "{}", names.len());
    (device.to_bytes(), names)
}

/// Those of `candidates` whose objects lie in the slots of `image`. The store is opened anew, so
/// that no object answers from memory.
fn stored_of(image: Vec<u8>, candidates: std::ops::Range<u64>) -> Vec<u64> {
    let cache = open(quiet(copy(image), PolicyKind::SetMem));
    let there = |n: &u64| get(&cache, &name(*n)).is_some();
    candidates.filter(there).collect()
}

/// Names that the full table in `image` does not have, and of which none takes the slot of another
/// one. `set-mem` lets a put take the slot of an equal tag, and each store places names by a secret
/// of its own: in one store of thirty, two of 40 names have both a set and a tag in common.
fn new_names(image: &[u8]) -> Vec<u64> {
    const CANDIDATES: std::ops::Range<u64> = 10_000..10_050;
    let device = copy(image.to_vec());
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    put_new(&cache, &Vec::from_iter(CANDIDATES), 0);
    cache.close();
    let mut names = stored_of(device.to_bytes(), CANDIDATES);
    assert!(names.len() >= 40, "{}", names.len());
    names.truncate(40);
    names
}

/// Puts `names` in one batch.
fn put_new(cache: &Cache, names: &[u64], round: u64) {
    for n in names {
        let value = Value::new(round * 100_000 + n, 300);
        value.store(cache, &name(*n)).unwrap();
    }
}

#[test]
fn what_a_slot_holds_that_was_about_to_be_written_is_known_after_a_crash() {
    let (image, names) = full_table();
    let new = new_names(&image);
    let counting = Arc::new(FaultDevice::new(
        MemoryDevice::from_bytes(image.clone()),
        None,
    ));
    let cache = open(quiet(counting.clone(), PolicyKind::SetMem));
    let before = counting.writes();
    drop(cache);
    // The list of the slots arrives, none of the slots does.
    let inner = MemoryDevice::from_bytes(image);
    let device = Arc::new(FaultDevice::new(inner, Some((before + 1, Fault::Freeze))));
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    assert_eq!(device.writes(), before);
    put_new(&cache, &new, 1);
    assert!(cache.flush().wait());
    let killed = open(quiet(copy(device.media()), PolicyKind::SetMem));
    let lost = names.iter().filter(|n| get(&killed, &name(**n)).is_none());
    assert_eq!(
        lost.count(),
        0,
        "of {} names that nothing has hurt",
        names.len()
    );
}

/// Blocks of the device that begin with a record of `name`.
fn copies_of(image: &[u8], name: &[u8]) -> usize {
    let heads = image.chunks(8 * KIB).map(|block| &block[..512]);
    let has_name = |head: &&[u8]| head.windows(name.len()).any(|it| it == name);
    heads.filter(has_name).count()
}

#[test]
fn no_slot_is_written_that_memory_would_not_know_of_after_a_power_cut() {
    let (image, names) = full_table();
    let new = new_names(&image);
    let inner = MemoryDevice::from_bytes(image);
    let device = Arc::new(FaultDevice::with_volatile_cache(inner));
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    put_new(&cache, &new, 1);
    assert!(cache.cut_batch().wait());
    // The slots, which were written last, arrive. Nothing does of what was not synced before them.
    let mut sectors = new.len() * 8 * KIB / 512;
    device.cut_power(|| {
        let keep = sectors > 0;
        sectors = sectors.saturating_sub(1);
        keep
    });
    let image = device.media();
    assert!(new.iter().all(|n| copies_of(&image, &name(*n)) == 1));
    let device = copy(image);
    let cache = open(quiet(device.clone(), PolicyKind::SetMem));
    // Other slots become free: a put that does not know of its older version takes one of them.
    let removes: Vec<_> = names.iter().map(|n| cache.remove(&name(*n))).collect();
    removes.into_iter().for_each(|it| it.wait().unwrap());
    put_new(&cache, &new, 2);
    assert!(cache.flush().wait());
    let image = device.to_bytes();
    let twice = new.iter().filter(|n| copies_of(&image, &name(**n)) > 1);
    assert_eq!(
        twice.count(),
        0,
        "names of which two versions lie in their set"
    );
}

/// A device that, at each write of a superblock, notes what a power cut would leave that has lost
/// all that was not synced but this superblock.
struct Cuts {
    inner: MemoryDevice,
    state: Mutex<CutsState>,
}

#[derive(Default)]
struct CutsState {
    /// Offset, and what was there before.
    unsynced: Vec<(u64, Vec<u8>)>,
    images: Vec<Vec<u8>>,
}

impl Device for Cuts {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if offset < 8 * KIB as u64 {
            let mut image = self.inner.to_bytes();
            let mut put = |offset: u64, bytes: &[u8]| {
                let at = usize::try_from(offset).unwrap();
                image[at..at + bytes.len()].copy_from_slice(bytes);
            };
            for (offset, before) in state.unsynced.iter().rev() {
                put(*offset, before);
            }
            put(offset, buffer);
            state.images.push(image);
        }
        let mut before = vec![0; buffer.len()];
        self.inner.read_at(offset, &mut before)?;
        state.unsynced.push((offset, before));
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.state.lock().unwrap().unsynced.clear();
        Ok(())
    }
}

#[test]
fn no_superblock_names_a_checkpoint_that_a_power_cut_can_still_tear() {
    for form in forms() {
        let device = Arc::new(Cuts {
            inner: MemoryDevice::new(12 * MIB),
            state: Mutex::default(),
        });
        let cache = open(quiet(device.clone(), form));
        for n in 0..40 {
            Value::new(n, 2_000).store(&cache, &name(n)).unwrap();
        }
        cache.close();
        open(quiet(device.clone(), form)).close();
        let images = std::mem::take(&mut device.state.lock().unwrap().images);
        let mut named = 0;
        for image in images {
            let inspection = inspect(&quiet(copy(image), form)).unwrap();
            named += u64::from(inspection.checkpoint_serial > 0);
            let is_whole = inspection.checkpoint_serial == 0 || inspection.checkpoint_whole;
            assert!(is_whole, "{form:?}: {}", inspection.checkpoint_serial);
        }
        assert!(named >= 3, "{form:?}: {named}");
    }
}

// -- the log coming round -------------------------------------------------------------------------

/// A device that stops in the middle of a write over one place.
struct HalfWay {
    inner: MemoryDevice,
    state: Mutex<HalfWayState>,
    changed: Condvar,
}

#[derive(Default)]
struct HalfWayState {
    /// The first half of a write over this arrives, the other half when it is let go.
    over: Option<u64>,
    stopped: bool,
}

impl Device for HalfWay {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        let covers = |at: &u64| (offset..offset + buffer.len() as u64).contains(at);
        let Some(at) = state.over.filter(covers) else {
            drop(state);
            return self.inner.write_at(offset, buffer);
        };
        // Up to the middle of the record there.
        let half = usize::try_from(at - offset).unwrap() / 512 * 512 + 1_024;
        self.inner.write_at(offset, &buffer[..half])?;
        (state.over, state.stopped) = (None, true);
        self.changed.notify_all();
        let state = self
            .changed
            .wait_while(state, |state| state.stopped)
            .unwrap();
        drop(state);
        self.inner.write_at(offset + half as u64, &buffer[half..])
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

impl HalfWay {
    fn wait_until_stopped(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| !state.stopped)
                .unwrap(),
        );
    }

    fn go_on(&self) {
        self.state.lock().unwrap().stopped = false;
        self.changed.notify_all();
    }
}

/// Small enough that each batch is written by the thread that orders writes, or by the other.
fn round_and_round(form: Form, bytes_each: usize) {
    let device = Arc::new(HalfWay {
        inner: MemoryDevice::new(8 * MIB),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let cache = open(Config {
        hot_bytes_max: 0,
        ..quiet(device.clone(), form)
    });
    let value = Value::new(1, 4_000);
    Value::new(0, 900).store(&cache, b"in front").unwrap();
    value.store(&cache, &name(1)).unwrap();
    assert!(cache.flush().wait());
    let at = find(&device.inner.to_bytes(), &value.content(&name(1))[..64]);
    assert_eq!(get(&cache, &name(1)), Some(value));
    device.state.lock().unwrap().over = Some(at as u64);
    // Until the log's head reaches it.
    for n in 2..1_000 {
        Value::new(n, bytes_each).store(&cache, &name(n)).unwrap();
        let cut = cache.cut_batch();
        let stopped = || device.state.lock().unwrap().stopped;
        let is_done = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cut.wait());
            while !waiter.is_finished() && !stopped() {
                std::thread::yield_now();
            }
            if waiter.is_finished() {
                return true;
            }
            device.wait_until_stopped();
            let found = get(&cache, &name(1));
            let damaged = cache.stats().damaged;
            // Whatever was found: the writer must not wait for ever.
            device.go_on();
            // Half of it is gone: it counts as passed, which is no damage.
            assert_eq!((found, damaged), (None, 0), "{form:?}");
            false
        });
        if !is_done {
            return;
        }
    }
    panic!("the log did not come round");
}

#[test]
fn a_record_that_is_being_written_over_is_passed_and_not_damaged() {
    for policy in LOGS {
        for bytes_each in [30 * KIB, 60 * KIB] {
            round_and_round(policy.into(), bytes_each);
        }
    }
}

#[test]
fn entries_that_the_log_has_passed_are_dropped_once_a_lap() {
    for policy in LOGS {
        let cache = open(Config {
            object_bytes: 512,
            ..quiet(memory(16 * MIB), policy)
        });
        // About 1,800 fit, and the index has room for many times as many.
        for n in 0..12_000 {
            while Value::new(n, 7_000).store(&cache, &name(n)).is_err() {
                assert!(cache.flush().wait());
            }
        }
        assert!(cache.flush().wait());
        let stats = cache.stats();
        assert!(stats.index_slots > 12_000, "{}", stats.index_slots);
        let (all, live) = (stats.entries, stats.live_entries);
        assert!(
            live > 1_000 && all < live * 8 / 5,
            "{policy:?}: {all}, {live} live"
        );
    }
}
