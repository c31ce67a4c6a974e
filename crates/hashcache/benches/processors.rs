//! `cargo bench -p hashcache --bench processors`: what a second processor adds to answers from
//! memory.
//!
//! One thread, or two on processors of their own, ask for objects of 1 KiB, each time one of
//! 10,000 drawn evenly: hot ones, whose length or content they look at, some that are not stored,
//! and 2,000 that wait to be written. Slices of 4 ms in turn: on a machine that does other things
//! too, the best slices of each kind are those that were left alone. Hashing the same names without
//! a cache shows what the machine itself gives.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench reads a clock, and is over when something fails"
)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Put};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const OBJECTS: usize = 10_000;
const OBJECT_BYTES: usize = 1 << 10;
const SLICE: Duration = Duration::from_millis(4);
const SLICES: usize = 300;
/// Answers between two looks at the clock.
const STRIDE: u64 = 64;

/// So many that no batch of them is full.
const PENDING: usize = 500;

fn open(batch_delay: Duration) -> Cache {
    let config = Config {
        batch_delay,
        memory_bytes: 128 << 20,
        segment_bytes: Some(4 << 20),
        ..Config::on_device(Arc::new(MemoryDevice::new(128 << 20)))
    };
    Cache::open(config).unwrap()
}

fn name(n: usize) -> String {
    format!("http://example.org/{n:016}")
}

/// A store whose objects all wait to be written, and their names.
fn pending_store(objects: usize) -> (Cache, Vec<String>) {
    let cache = open(Duration::from_secs(3600));
    let names: Vec<String> = (0..objects).map(name).collect();
    for name in &names {
        let put = Put::metadata(&b"text/plain"[..]);
        cache.put(name.as_bytes(), put, &[7; OBJECT_BYTES]).unwrap();
    }
    let found = |name: &String| cache.get(name.as_bytes()).wait().is_some();
    assert!(names.iter().all(found));
    assert_eq!(cache.stats().pending_hits, names.len() as u64);
    (cache, names)
}

/// A store whose objects are all hot, and their names.
fn hot_store(objects: usize) -> (Cache, Vec<String>) {
    let cache = open(Duration::from_millis(250));
    let names: Vec<String> = (0..objects).map(name).collect();
    for (n, name) in names.iter().enumerate() {
        let put = Put::metadata(&b"text/plain"[..]);
        cache.put(name.as_bytes(), put, &[7; OBJECT_BYTES]).unwrap();
        if n % 1_000 == 999 {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    // Asked for once, they are hot.
    let asked = |name: &String| cache.get(name.as_bytes()).wait().is_some();
    let names: Vec<String> = names.into_iter().filter(asked).collect();
    assert!(names.len() > objects * 9 / 10, "{} are left", names.len());
    let before = cache.stats().hot_hits;
    assert!(names.iter().all(asked));
    assert_eq!(cache.stats().hot_hits - before, names.len() as u64);
    (cache, names)
}

/// Calls a second of `call` by threads on `processors`, within a slice.
fn slice(processors: &[usize], names: &[String], call: impl Fn(&str) + Sync) -> f64 {
    let (ready, go) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |processor: usize| {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set).unwrap();
        let mut random = fastrand::Rng::with_seed(processor as u64);
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < processors.len() || !go.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let (started, mut calls) = (Instant::now(), 0);
        loop {
            for _ in 0..STRIDE {
                call(&names[random.usize(..names.len())]);
            }
            calls += STRIDE;
            let elapsed = started.elapsed();
            if elapsed >= SLICE {
                return calls as f64 / elapsed.as_secs_f64();
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = processors
            .iter()
            .map(|processor| scope.spawn(move || work(*processor)))
            .collect();
        go.store(true, Ordering::Release);
        started.into_iter().map(|it| it.join().unwrap()).sum()
    })
}

/// Rates of one kind of slice: the best and the median.
fn best_and_median(mut rates: Vec<f64>) -> (f64, f64) {
    rates.sort_by(f64::total_cmp);
    (rates[rates.len() - 1], rates[rates.len() / 2])
}

fn compare(what: &str, processors: [usize; 2], names: &[String], call: impl Fn(&str) + Sync) {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for n in 0..SLICES {
        one.push(slice(&[processors[n % 2]], names, &call));
        two.push(slice(&processors, names, &call));
    }
    let (one, two) = (best_and_median(one), best_and_median(two));
    println!(
        "{what:<22} {:>8.2} {:>8.2} {:>6.2} {:>10.2} {:>8.2} {:>6.2}",
        one.0 / 1e6,
        two.0 / 1e6,
        two.0 / one.0,
        one.1 / 1e6,
        two.1 / 1e6,
        two.1 / one.1
    );
}

fn main() {
    // `cargo test --benches` runs it too, and wants to know only whether it does.
    if !std::env::args().any(|argument| argument == "--bench") {
        drop((hot_store(OBJECTS / 10), pending_store(PENDING)));
        return;
    }
    let allowed = sched_getaffinity(None).unwrap();
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|n| allowed.is_set(*n))
        .collect();
    let [first, second, ..] = allowed[..] else {
        println!("answers on two processors: there is but one here");
        return;
    };
    let processors = [first, second];
    let (cache, names) = hot_store(OBJECTS);
    println!(
        "{:<22} {:>8} {:>8} {:>6} {:>10} {:>8} {:>6}",
        "millions a second", "best, 1", "2", "ratio", "median, 1", "2", "ratio"
    );
    compare("names hashed", processors, &names, |name| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        std::hint::black_box(hasher.finish());
    });
    compare("hot, its length", processors, &names, |name| {
        let hit = cache.get(name.as_bytes()).wait().unwrap();
        assert_eq!(hit.content_len(), Some(OBJECT_BYTES as u64));
    });
    compare("hot, its content", processors, &names, |name| {
        let hit = cache.get(name.as_bytes()).wait().unwrap();
        // Content that straddles two slabs is in two pieces.
        let content = hit.whole_content();
        assert!(content.is_none_or(|it| it.len() == OBJECT_BYTES && it[OBJECT_BYTES - 1] == 7));
    });
    let unknown: Vec<String> = (OBJECTS..2 * OBJECTS).map(name).collect();
    let hint = |name: &String| cache.contains_hint(name.as_bytes());
    // An equal tag would have the disk asked.
    let unknown: Vec<String> = unknown.into_iter().filter(|name| !hint(name)).collect();
    compare("a miss", processors, &unknown, |name| {
        assert!(cache.get(name.as_bytes()).wait().is_none());
    });
    drop(cache);
    let (cache, names) = pending_store(PENDING);
    compare("pending, its length", processors, &names, |name| {
        let hit = cache.get(name.as_bytes()).wait().unwrap();
        assert_eq!(hit.content_len(), Some(OBJECT_BYTES as u64));
    });
}
