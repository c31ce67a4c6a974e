//! The memory that a process takes from the system beside the memory that the store counts.
//! Measured in a process of its own, because other tests begin and end meanwhile: this test's
//! binary, started again.

use std::process::Command;
use std::sync::Arc;

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Config, PolicyKind, Put};

use crate::support::{Gate, MIB, open, quiet};

/// Set in the process that is to be measured.
const CHILD: &str = "HASHCACHE_TEST_PEAK";
const THREADS: usize = 6;

/// Memory that belongs to this process and to no file.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|it| it.trim().strip_suffix(" kB"));
        number.unwrap().trim().parse().unwrap()
    };
    (kib("RssAnon:") + kib("RssShmem:")) * 1024
}

#[test]
fn pending_empty_objects_of_six_threads_take_no_more_memory_than_is_counted() {
    if std::env::var(CHILD).is_ok() {
        return flood();
    }
    let this = "peak::pending_empty_objects_of_six_threads_take_no_more_memory_than_is_counted";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{told}{child:?}");
    assert!(told.contains("counted"), "nothing was measured: {told}");
}

/// Has all wait that may, while nothing is written.
fn flood() {
    let gate = Arc::new(Gate::new(MemoryDevice::new(64 * MIB)));
    let device = Arc::clone(&gate) as Arc<dyn Device>;
    let cache = open(Config {
        memory_bytes: 64 * MIB as u64,
        hot_bytes_max: 0,
        ..quiet(device, PolicyKind::Log)
    });
    gate.shut();
    let (before, counted_before) = (resident(), cache.stats().memory_used_bytes);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                for number in 0.. {
                    let name = format!("http://example.org/{thread}/{number:08}");
                    if cache.put(name.as_bytes(), Put::metadata(""), b"").is_err() {
                        break;
                    }
                }
            });
        }
    });
    let taken = resident() - before;
    let stats = cache.stats();
    gate.open();
    let counted = stats.memory_used_bytes - counted_before;
    println!(
        "{taken} bytes taken, {counted} counted, {} objects",
        stats.puts
    );
    // What the writer holds of its first batch is counted apart.
    assert!(stats.puts > 20_000);
    assert!(taken <= counted + 3 * MIB as u64, "{taken} for {counted}");
}
