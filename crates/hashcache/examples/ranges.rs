//! Ranges: read a part of an object, store an object in parts, and see which parts are missing.
//!
//! Run with `cargo run -p hashcache --example ranges`.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Keep, PAGE, Put};

/// Pages in a span: what is stored and filled in at once.
const SPAN_PAGES: u8 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let mut config = Config::on_device(device);
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    let film: Vec<u8> = (0..u8::MAX).cycle().take(10 * PAGE).collect();

    // A download that breaks off after three of ten pages. `Keep::Partial` keeps what arrived.
    let put = Put {
        length: Some(film.len() as u64),
        keep: Keep::Partial,
        span_pages: SPAN_PAGES,
        ..Put::metadata("video")
    };
    let mut writer = cache.intend(b"film")?.writer(put)?;
    writer.write(&film[..3 * PAGE])?;
    drop(writer);

    // Page 0 is stored with the head; further content only counts in whole spans.
    let hit = cache.get(b"film").wait().ok_or("not stored")?;
    let holes = hit.holes(0..film.len() as u64);
    println!("missing: {holes:?}");

    // Fetch what is missing, span by span.
    let span = u64::from(SPAN_PAGES) * PAGE as u64;
    for hole in holes {
        let mut start = hole.start;
        while start < hole.end {
            // Span 0 is the first page alone; the others are `span` bytes long.
            let end = hole.end.min(if start == 0 {
                PAGE as u64
            } else {
                start + span
            });
            let content = &film[usize::try_from(start)?..usize::try_from(end)?];
            hit.fill(start, content)?;
            start = end;
        }
    }
    println!("missing: {:?}", hit.holes(0..film.len() as u64));

    // Two bytes of the second page. A reader is a `std::io::Read`.
    let middle = PAGE as u64 + 100;
    let mut two = [0; 2];
    hit.reader(middle..middle + 2).read_exact(&mut two)?;
    println!("bytes {middle} and {}: {two:?}", middle + 1);
    Ok(())
}
