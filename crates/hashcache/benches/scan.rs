//! `cargo bench -p hashcache --bench scan`: what a scan costs, and what it costs others.
//!
//! A store of 2 GiB in memory, filled with objects of 8 KiB. One thread looks up or puts, alone and
//! beside a scan that begins anew whenever it ends. Rounds in pairs, in turn with and without;
//! medians. Without a pause between steps a scan takes a processor; a paced one, which waits nine
//! times as long as each step took, takes a tenth of one.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench reads a clock, and is over when something fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Put};

const STORE_BYTES: usize = 2 << 30;
const OBJECT_BYTES: usize = 8 << 10;
const OBJECTS: u64 = 200_000;
const HOT: u64 = 2_000;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);

fn name(n: u64) -> Vec<u8> {
    format!("http://example.org/{n:016}").into_bytes()
}

fn put(cache: &Cache, n: u64) -> bool {
    let put = Put {
        mark: u128::from(n) + 1,
        ..Put::metadata(&b"text/plain"[..])
    };
    cache.put(&name(n), put, &[7; OBJECT_BYTES]).is_ok()
}

fn filled() -> Cache {
    let config = Config {
        memory_bytes: 128 << 20,
        object_bytes: 8 << 10,
        ..Config::on_device(Arc::new(MemoryDevice::new(STORE_BYTES)))
    };
    let cache = Cache::open(config).unwrap();
    for n in 0..OBJECTS {
        while !put(&cache, n) {
            assert!(cache.flush().wait());
        }
    }
    assert!(cache.flush().wait());
    cache
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// One scan: objects, steps, bytes read, seconds, seconds of the longest step.
fn scan(cache: &Cache, over: &AtomicBool) -> (u64, u64, u64, f64, f64) {
    let (started, mut longest) = (Instant::now(), Duration::ZERO);
    let (mut objects, mut steps, mut bytes) = (0, 0, 0);
    let mut scan = cache.scan().unwrap();
    loop {
        let step_started = Instant::now();
        let Some(step) = scan.next().filter(|_| !over.load(Ordering::Relaxed)) else {
            break;
        };
        longest = longest.max(step_started.elapsed());
        objects += step.objects.len() as u64;
        steps += 1;
        bytes += step.read_bytes;
    }
    let seconds = started.elapsed().as_secs_f64();
    (objects, steps, bytes, seconds, longest.as_secs_f64())
}

/// The work of another thread meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Scan,
    PacedScan,
}

/// Scans at a tenth of the pace that it could have.
fn scan_paced(cache: &Cache, over: &AtomicBool) {
    let mut scan = cache.scan().unwrap();
    loop {
        let started = Instant::now();
        if over.load(Ordering::Relaxed) || scan.next().is_none() {
            break;
        }
        std::thread::sleep(9 * started.elapsed());
    }
}

/// Calls of `call` a second, on this thread.
fn round(cache: &Cache, beside: Beside, mut call: impl FnMut(u64)) -> f64 {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        if beside != Beside::Nothing {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match beside {
                        Beside::PacedScan => scan_paced(cache, over),
                        _ => _ = scan(cache, over),
                    }
                }
            });
        }
        let (started, mut calls) = (Instant::now(), 0);
        while started.elapsed() < ROUND {
            for _ in 0..32 {
                call(calls);
                calls += 1;
            }
        }
        let rate = calls as f64 / started.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        rate
    })
}

fn pairs(cache: &Cache, what: &str, mut call: impl FnMut(u64)) {
    pairs_beside(cache, what, Beside::Scan, &mut call);
    pairs_beside(cache, what, Beside::PacedScan, &mut call);
}

fn pairs_beside(cache: &Cache, what: &str, beside: Beside, mut call: impl FnMut(u64)) {
    let (mut without, mut with, mut ratios) = (vec![], vec![], vec![]);
    for n in 0..ROUNDS {
        // In turn first: what drifts touches both alike.
        let first_with = n % 2 == 1;
        let kinds = [Beside::Nothing, beside];
        let one = round(cache, kinds[usize::from(first_with)], &mut call);
        let other = round(cache, kinds[usize::from(!first_with)], &mut call);
        let (alone, together) = if first_with {
            (other, one)
        } else {
            (one, other)
        };
        without.push(alone);
        with.push(together);
        ratios.push(together / alone);
    }
    let (without, with, ratio) = (median(without), median(with), median(ratios));
    let pace = match beside {
        Beside::PacedScan => "paced scan",
        _ => "scan",
    };
    println!("{what}: {without:.0} a second alone, {with:.0} beside a {pace}: {ratio:.3}");
}

fn main() {
    let cache = filled();
    let never = AtomicBool::new(false);
    let scans: Vec<_> = (0..ROUNDS).map(|_| scan(&cache, &never)).collect();
    let of = |f: fn(&(u64, u64, u64, f64, f64)) -> f64| median(scans.iter().map(f).collect());
    let (objects, bytes) = (of(|it| it.0 as f64), of(|it| it.2 as f64));
    println!(
        "scan of {objects} objects: {:.3} ms for 1,000, {:.1} bytes read an object, {} steps, the \
         longest {:.1} ms, {:.0} bytes read a step",
        of(|it| it.3) * 1e6 / objects,
        bytes / objects,
        of(|it| it.1 as f64),
        of(|it| it.4) * 1e3,
        bytes / of(|it| it.1 as f64),
    );
    let mut random = fastrand::Rng::with_seed(1);
    (0..HOT).for_each(|n| drop(cache.get(&name(OBJECTS - 1 - n)).wait()));
    pairs(&cache, "hits in memory", |_| {
        let n = OBJECTS - 1 - random.u64(..HOT);
        assert!(cache.get(&name(n)).wait().is_some());
    });
    let mut random = fastrand::Rng::with_seed(2);
    pairs(&cache, "lookups on disk", |_| {
        drop(cache.get(&name(random.u64(..OBJECTS))).wait());
    });
    let next = AtomicU64::new(OBJECTS);
    pairs(&cache, "puts", |_| {
        while !put(&cache, next.load(Ordering::Relaxed)) {
            std::thread::yield_now();
        }
        next.fetch_add(1, Ordering::Relaxed);
    });
}
