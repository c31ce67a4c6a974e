//! Which objects are stored, without reading them: a scan gives the marks of all that is there, and
//! an observer those that are written later.
//!
//! A cache that sends its peers a summary of its content keeps such a set of marks (or a Bloom
//! filter of them): it fills the set from a scan, adds what the observer sees, and makes it anew by
//! another scan when enough of the log was overwritten.
//!
//! Run with `cargo run -p hashcache --example list_stored`.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Event, Hour, Put};

/// Made from the name, so that a neighbour can make the same. A real cache takes a good hash.
fn mark(name: &str) -> u128 {
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn put(cache: &Cache, name: &str) -> Result<(), Box<dyn Error>> {
    let put = Put {
        mark: mark(name),
        fresh_until: Hour::from_unix_seconds(1_800_000_000),
        ..Put::metadata("text/plain")
    };
    cache.put(name.as_bytes(), put, &[0; 8 << 10])?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::on_device(Arc::new(MemoryDevice::new(64 << 20)));
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    for n in 0..1_000 {
        put(&cache, &format!("/early/{n}"))?;
        if n % 100 == 0 {
            cache.flush().wait();
        }
    }

    // The observer first, so that nothing falls between it and the scan. The sink must not wait:
    // what finds no room in the queue is dropped, and counted as a reason for another scan.
    let (queue, events) = mpsc::sync_channel(10_000);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    let observation = cache.observe(move |event| {
        if let Event::Recorded { objects, .. } = event {
            for object in objects {
                if queue.try_send(object.mark).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    })?;

    let mut known = BTreeSet::new();
    let mut read_bytes = 0;
    let mut scan = cache.scan()?;
    for step in scan.by_ref() {
        known.extend(step.objects.iter().map(|object| object.mark));
        read_bytes += step.read_bytes;
        // A scan of a large disk would wait here, so that others have most of the disk.
    }
    println!(
        "{} objects, {read_bytes} bytes of lists read, {} segments not read",
        known.len(),
        scan.unread_segments()
    );

    put(&cache, "/late")?;
    cache.flush().wait();
    drop(observation);
    known.extend(events.try_iter());
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    assert!(known.contains(&mark("/late")) && known.contains(&mark("/early/7")));
    assert!(!known.contains(&mark("/never")));
    println!("{} objects with the late one", known.len());
    Ok(())
}
