//! Wrong bits in lists and slots, at rest or in one read: what was replaced or removed never
//! answers, and no more is forgotten than must be.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Config, PolicyKind};

use super::support::{Form, MIB, Value, copy, forms, get, memory, open, quiet};

/// Names of each kind.
const NAMES: u64 = 24;

fn name(kind: &str, n: u64) -> Vec<u8> {
    format!("{kind}{n}").into_bytes()
}

fn put_all(cache: &Cache, kind: &str, put: u64, length: usize) {
    for n in 0..NAMES {
        Value::new(put, length)
            .store(cache, &name(kind, n))
            .unwrap();
    }
    assert!(cache.flush().wait());
}

/// A store whose log has several segments and batches, as a kill leaves it. Names `a` were put
/// twice, `b` put and removed, `c` put once, last of all. Where it was `closed` before, a
/// checkpoint has the first puts.
fn killed(devices: usize, form: Form, closed: bool) -> Vec<Vec<u8>> {
    let disks: Vec<Arc<MemoryDevice>> = (0..devices).map(|_| memory(16 * MIB)).collect();
    let cache = open(config(&disks, form));
    put_all(&cache, "a", 1, 15_000);
    put_all(&cache, "b", 2, 15_000);
    let cache = if closed {
        cache.close();
        open(config(&disks, form))
    } else {
        cache
    };
    put_all(&cache, "a", 3, 15_000);
    for n in 0..NAMES {
        cache.remove(&name("b", n)).wait().unwrap();
    }
    put_all(&cache, "filler", 4, 15_000);
    put_all(&cache, "c", 5, 2_000);
    disks.iter().map(|disk| disk.to_bytes()).collect()
}

fn config<D: Device + 'static>(disks: &[Arc<D>], form: Form) -> Config {
    let devices = disks.iter().map(|it| Arc::clone(it) as Arc<dyn Device>);
    let first: Arc<dyn Device> = Arc::clone(&disks[0]) as _;
    Config {
        devices: devices.collect(),
        hot_bytes_max: 0,
        name_secret: Some([3; 16]),
        ..quiet(first, form)
    }
}

/// How many of the names are found; none with what was replaced or removed.
fn found(cache: &Cache, what: &str) -> [usize; 2] {
    for n in 0..NAMES {
        let a = get(cache, &name("a", n));
        assert!(a.is_none_or(|it| it.put == 3), "{what}: a{n} is {a:?}");
        assert_eq!(get(cache, &name("b", n)), None, "{what}: b{n} was removed");
    }
    ["a", "c"].map(|kind| {
        (0..NAMES)
            .filter(|n| get(cache, &name(kind, *n)).is_some())
            .count()
    })
}

fn logs() -> impl Iterator<Item = Form> {
    forms().filter(|it| matches!(it.policy, PolicyKind::Log | PolicyKind::LogLru))
}

/// Offsets of all batch headers.
fn headers(bytes: &[u8]) -> Vec<usize> {
    let at = (0..bytes.len()).step_by(4096);
    at.filter(|at| &bytes[at + 8..at + 12] == b"HCba").collect()
}

#[test]
fn whichever_header_of_the_log_is_damaged_nothing_that_was_replaced_or_removed_answers() {
    for form in logs() {
        for (devices, closed) in [(1, false), (1, true), (2, true)] {
            let disks = killed(devices, form, closed);
            let whole: Vec<_> = disks.iter().cloned().map(copy).collect();
            let [a, c] = found(&open(config(&whole, form)), "as it is");
            assert!(a >= 22 && c >= 22, "{form:?}: {a} {c}");
            for (device, disk) in disks.iter().enumerate() {
                let headers = headers(disk);
                assert!(headers.len() > 4);
                for (n, at) in headers.iter().enumerate() {
                    for damage in ["reserved", "stamp", "list", "zeros"] {
                        let mut bytes = disk.clone();
                        match damage {
                            "reserved" => bytes[at + 60] ^= 1,
                            "stamp" => bytes[at + 16] ^= 4,
                            "list" => bytes[at + 70] ^= 0x80,
                            _ => bytes[*at..at + 4096].fill(0),
                        }
                        let mut damaged: Vec<_> = disks.iter().cloned().map(copy).collect();
                        damaged[device] = copy(bytes);
                        let what = format!(
                            "{form:?} closed {closed}, {damage} of header {n} of device {device}"
                        );
                        let cache = open(config(&damaged, form));
                        let [_, c] = found(&cache, &what);
                        // Those behind it are found: the last batches have `c`.
                        if n + 4 < headers.len() {
                            assert!(c >= 22, "{what}: {c} behind it");
                        }
                        // The store goes on, and what it forgot stays forgotten.
                        put_all(&cache, "new", 6, 2_000);
                        let bytes: Vec<_> = damaged.iter().map(|it| copy(it.to_bytes())).collect();
                        let again = open(config(&bytes, form));
                        found(&again, &what);
                        assert_eq!(get(&again, b"new0").map(|it| it.put), Some(6), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_large_batch_that_became_zeros_hides_no_batch_behind_it() {
    for form in logs() {
        let disk = memory(16 * MIB);
        let disks = [Arc::clone(&disk)];
        let cache = open(config(&disks, form));
        put_all(&cache, "a", 1, 1_000);
        // Large enough that more than a window of the search is blank.
        let large = Value::new(2, 450 << 10);
        large.store(&cache, b"large").unwrap();
        put_all(&cache, "a", 3, 1_000);
        put_all(&cache, "c", 5, 1_000);
        let mut bytes = disk.to_bytes();
        let at = headers(&bytes);
        let batch = (at.windows(2))
            .find(|it| it[1] - it[0] > 300 << 10)
            .unwrap();
        bytes[batch[0]..batch[1]].fill(0);
        let [_, c] = found(&open(config(&[copy(bytes)], form)), "zeros");
        assert!(c >= 22, "{form:?}: {c}");
    }
}

/// A disk can write a block to a wrong place, or read another block than it was asked for.
#[test]
fn a_genuine_header_in_the_place_of_another_one_is_not_taken_for_it() {
    for form in logs() {
        let disk = memory(16 * MIB);
        let cache = open(config(std::slice::from_ref(&disk), form));
        // All of it lies in the first segment.
        put_all(&cache, "a", 1, 100);
        put_all(&cache, "b", 2, 100);
        put_all(&cache, "a", 3, 100);
        for n in 0..NAMES {
            cache.remove(&name("b", n)).wait().unwrap();
        }
        for put in 4..7 {
            put_all(&cache, "filler", put, 100);
        }
        put_all(&cache, "c", 7, 100);
        let bytes = disk.to_bytes();
        let headers = headers(&bytes);
        assert!(headers.len() >= 7 && headers[headers.len() - 1] - headers[0] < MIB);
        // The lists of the first batches name what was replaced and removed later, those of the
        // last ones what counts.
        let (first, last) = (&headers[..3], &headers[headers.len() - 2..]);
        for from in first.iter().chain(last) {
            for to in 3..headers.len() - 2 {
                for with_one_damaged in [false, true] {
                    let mut wrong = bytes.clone();
                    wrong.copy_within(*from..from + 4096, headers[to]);
                    if with_one_damaged {
                        wrong[headers[to - 1] + 60] ^= 1;
                    }
                    let at = headers[to];
                    let what = format!("{form:?}: {from} at {at}, damaged: {with_one_damaged}");
                    let again = copy(wrong.clone());
                    found(&open(config(std::slice::from_ref(&again), form)), &what);
                    // In a store that is in use.
                    disk.alter(|altered| altered.copy_from_slice(&wrong));
                    let mut walked = BTreeSet::new();
                    for object in cache.walk().flat_map(|step| step.objects) {
                        assert!(
                            walked.insert(object.name.clone()),
                            "{what}: {object:?} twice"
                        );
                    }
                    disk.alter(|altered| altered.copy_from_slice(&bytes));
                }
            }
        }
    }
}

/// A device of which some reads are wrong.
struct Wrong {
    inner: Arc<MemoryDevice>,
    /// Reads still to be made before the first that is wrong.
    good: AtomicU64,
    /// Reads in a row that are wrong.
    wrong: AtomicU64,
    refuses: bool,
    random: Mutex<fastrand::Rng>,
    /// Where a bit is flipped; anywhere if it is empty.
    place: Mutex<Range<u64>>,
    was_wrong: AtomicBool,
}

impl Wrong {
    fn new(bytes: Vec<u8>, seed: u64) -> Self {
        Self {
            inner: copy(bytes),
            good: AtomicU64::new(u64::MAX),
            wrong: AtomicU64::new(0),
            refuses: false,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            place: Mutex::new(0..0),
            was_wrong: AtomicBool::new(false),
        }
    }
}

impl Device for Wrong {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)?;
        let place = self.place.lock().unwrap().clone();
        let end = offset + buffer.len() as u64;
        let is_there = place.is_empty() || offset <= place.start && place.start < end;
        let is_good = !is_there
            || self
                .good
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |it| it.checked_sub(1))
                .is_ok();
        let take = |it: u64| it.checked_sub(1);
        if is_good
            || self
                .wrong
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_err()
        {
            return Ok(());
        }
        self.was_wrong.store(true, Ordering::Relaxed);
        if self.refuses {
            return Err(io::Error::from_raw_os_error(5));
        }
        let at = if place.is_empty() {
            self.random.lock().unwrap().usize(..buffer.len())
        } else {
            usize::try_from(place.start - offset).unwrap()
        };
        buffer[at] ^= 1 << (at % 8);
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn whichever_reads_of_an_opening_are_wrong_or_refused_no_older_answer_returns() {
    for form in forms() {
        for closed in [false, true] {
            let bytes = killed(1, form, closed).remove(0);
            for (refuses, wrong) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
                for good in 0.. {
                    let device = Arc::new(Wrong {
                        refuses,
                        good: AtomicU64::new(good),
                        wrong: AtomicU64::new(wrong),
                        ..Wrong::new(bytes.clone(), good)
                    });
                    let what = format!(
                        "{form:?} closed {closed}, {wrong} reads behind {good}, refused {refuses}"
                    );
                    // Not opened is no lie either: a superblock may be among what was refused.
                    if let Ok(cache) = Cache::open(config(&[Arc::clone(&device)], form)) {
                        device.wrong.store(0, Ordering::Relaxed);
                        found(&cache, &what);
                    }
                    if !device.was_wrong.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        }
    }
}

fn tables() -> impl Iterator<Item = PolicyKind> {
    use PolicyKind::{Basic, Set, SetMem, SetMemLru};
    [Basic, Set, SetMem, SetMemLru].into_iter()
}

/// A store of the table family on which `page` was put, and where the bytes of it lie.
fn with_page(policy: PolicyKind) -> (Arc<Wrong>, Config, u64) {
    let device = Arc::new(Wrong::new(memory(16 * MIB).to_bytes(), 0));
    let config = config(&[Arc::clone(&device)], policy.into());
    let cache = open(config.clone());
    Value::new(1, 3_000).store(&cache, b"page").unwrap();
    assert!(cache.flush().wait());
    let at = content_at(&device, 1).unwrap();
    drop(cache);
    (device, config, at)
}

/// Where the content of put `put` of `page` lies on the device.
fn content_at(device: &Wrong, put: u64) -> Option<u64> {
    let content = Value::new(put, 3_000).content(b"page");
    let bytes = device.inner.to_bytes();
    let at = bytes.windows(32).position(|it| it == &content[..32])?;
    Some(at as u64)
}

/// The next `reads` reads of the slot of `at` have a wrong bit in the header.
fn spoil(device: &Wrong, at: u64, reads: u64) {
    let header = at / 4096 * 4096 + 20;
    *device.place.lock().unwrap() = header..header + 1;
    device.wrong.store(reads, Ordering::Relaxed);
    device.good.store(0, Ordering::Relaxed);
}

#[test]
fn a_slot_that_cannot_be_read_right_while_its_name_is_removed_is_gone() {
    for policy in tables() {
        for reads in 1..4 {
            let (device, config, at) = with_page(policy);
            let cache = open(config.clone());
            spoil(&device, at, reads);
            cache.remove(b"page").wait().unwrap();
            device.wrong.store(0, Ordering::Relaxed);
            assert_eq!(get(&cache, b"page"), None, "{policy:?} {reads}");
            drop(cache);
            assert_eq!(get(&open(config), b"page"), None, "{policy:?} {reads}");
            assert_eq!(content_at(&device, 1), None, "{policy:?} {reads}");
        }
    }
}

/// Two versions of a name must not lie in one set: the older would answer when another name has
/// taken the slot of the newer.
#[test]
fn a_slot_that_cannot_be_read_right_is_not_taken_for_empty() {
    for policy in tables() {
        for (reads, looked_up) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
            let (device, config, at) = with_page(policy);
            let cache = open(config);
            spoil(&device, at, reads);
            if looked_up {
                get(&cache, b"page");
            }
            Value::new(2, 3_000).store(&cache, b"page").unwrap();
            assert!(cache.flush().wait());
            assert!(content_at(&device, 2).is_some());
            assert_eq!(
                content_at(&device, 1),
                None,
                "{policy:?} {reads} {looked_up}"
            );
        }
    }
}
