//! `cargo bench -p hashcache`: nanoseconds a call of each policy, on a device in memory.
//!
//! The cost of the engine itself: no disk, no socket. Each figure is the median of several rounds;
//! compare figures of one run, never across machines. `hashcache bench engine` tells of disks.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench reads a clock, and is over when something fails"
)]

use std::sync::Arc;
use std::time::Instant;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, PolicyKind, Put};

const OBJECTS: u64 = 2_000;
const OBJECT_BYTES: usize = 3_000;
const CALLS: u64 = 20_000;
const ROUNDS: usize = 7;

fn store(policy: PolicyKind, hot_bytes_max: u64) -> Cache {
    let config = Config {
        policy,
        hot_bytes_max,
        memory_bytes: 64 << 20,
        segment_bytes: Some(4 << 20),
        ..Config::on_device(Arc::new(MemoryDevice::new(128 << 20)))
    };
    let cache = Cache::open(config).unwrap();
    for n in 0..OBJECTS {
        put(&cache, n);
    }
    assert!(cache.flush().wait());
    cache
}

fn name(n: u64) -> String {
    format!("http://example.org/{n:016}")
}

fn put(cache: &Cache, n: u64) {
    let content = [7; OBJECT_BYTES];
    let put = || {
        cache.put(
            name(n).as_bytes(),
            Put::metadata(&b"text/plain"[..]),
            &content,
        )
    };
    if put().is_err() {
        assert!(cache.flush().wait());
        put().unwrap();
    }
}

/// Nanoseconds a call: the median of the rounds.
fn measure(mut round: impl FnMut() -> u64) -> f64 {
    let mut each: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            let calls = round();
            started.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    each.sort_by(f64::total_cmp);
    each[ROUNDS / 2]
}

fn get_hot(cache: &Cache) -> f64 {
    // Asked for once, they are hot.
    let names: Vec<String> = (0..100).map(name).collect();
    let asked = |name: &String| cache.get(name.as_bytes()).wait().is_some();
    let known: Vec<&String> = names.iter().filter(|name| asked(name)).collect();
    measure(|| {
        for n in 0..CALLS {
            assert!(asked(known[usize::try_from(n).unwrap() % known.len()]));
        }
        CALLS
    })
}

fn get_disk(cache: &Cache) -> f64 {
    measure(|| {
        let mut found = 0;
        for n in 0..OBJECTS {
            found += u64::from(cache.get(name(n).as_bytes()).wait().is_some());
        }
        // Of `basic` some put others out.
        assert!(found > OBJECTS / 2);
        OBJECTS
    })
}

fn miss(cache: &Cache) -> f64 {
    measure(|| {
        for n in 0..OBJECTS {
            assert!(cache.get(name(1 << 40 | n).as_bytes()).wait().is_none());
        }
        OBJECTS
    })
}

fn put_new(cache: &Cache) -> f64 {
    let mut next = OBJECTS;
    measure(|| {
        for _ in 0..OBJECTS {
            put(cache, next);
            next += 1;
        }
        // A put is done when it is written.
        assert!(cache.flush().wait());
        OBJECTS
    })
}

fn main() {
    // `cargo test --benches` runs it too, and wants to know only whether it does.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9}",
        "ns a call", "get hot", "get disk", "miss", "put"
    );
    for policy in PolicyKind::ALL {
        let hot = store(policy, u64::MAX);
        let cold = store(policy, 0);
        if is_test {
            assert!(cold.get(name(0).as_bytes()).wait().is_some() || policy == PolicyKind::Basic);
            continue;
        }
        let figures = [get_hot(&hot), get_disk(&cold), miss(&cold), put_new(&cold)];
        let cells: String = figures.map(|each| format!(" {each:>9.0}")).concat();
        println!("{:<12}{cells}", policy.name());
    }
}
