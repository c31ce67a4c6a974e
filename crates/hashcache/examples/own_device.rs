//! A device of one's own: here a file that counts its reads and writes.
//!
//! The engine needs no more of a device than to read, write and sync at offsets. It calls from
//! its own threads, several reads at a time.
//!
//! Run with `cargo run -p hashcache --example own_device`.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashcache::device::Device;
use hashcache::{Cache, Config, Put};

struct CountingDevice {
    file: File,
    size_bytes: u64,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Device for CountingDevice {
    fn len(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.file.write_all_at(buffer, offset)
    }

    /// A put that was reported durable must survive a power cut, so this may not return early.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = tempfile::tempfile()?;
    let size_bytes = 64 << 20;
    file.set_len(size_bytes)?;
    let device = Arc::new(CountingDevice {
        file,
        size_bytes,
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
    });
    let mut config = Config::on_device(device.clone());
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    cache.put(b"name", Put::metadata(""), b"content")?;
    assert!(cache.flush().wait(), "the device works");
    cache.close();
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let (reads, writes) = (count(&device.reads), count(&device.writes));
    println!("{reads} reads, {writes} writes");
    Ok(())
}
