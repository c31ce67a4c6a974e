//! A cache in ten lines: open, put, get.
//!
//! Run with `cargo run -p hashcache --example embed`.

use std::error::Error;

use hashcache::{Cache, Config, Put};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let mut config = Config::new(directory.path().join("cache.img"));
    config.size_bytes = Some(64 << 20);
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    cache.put(b"greeting", Put::metadata("text/plain"), b"hello, world")?;
    // In an async function: `cache.get(b"greeting").await`.
    let hit = cache.get(b"greeting").wait().ok_or("not stored")?;
    let content = hit.reader(0..u64::MAX).read_to_vec()?;
    println!("{}", String::from_utf8(content)?);
    // Writes what is pending and saves the index. Without it, the next start recovers from the log.
    cache.close();
    Ok(())
}
