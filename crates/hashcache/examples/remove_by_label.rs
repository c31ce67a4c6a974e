//! Labels: remove many objects at once, or mark them stale, without listing them.
//!
//! Run with `cargo run -p hashcache --example remove_by_label`.

use std::error::Error;
use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Ban, Cache, Config, Put};

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::on_device(Arc::new(MemoryDevice::new(64 << 20)));
    config.memory_bytes = 16 << 20;
    let cache = Cache::open(config)?;
    let (shoes, sale) = (cache.label(b"shoes"), cache.label(b"sale"));
    let put = |name: &[u8], labels: &[_]| {
        let labels = labels.to_vec();
        let put = Put {
            labels,
            ..Put::metadata("text/html")
        };
        cache.put(name, put, b"a page of a shop")
    };
    put(b"/shoes/1", &[shoes])?;
    put(b"/shoes/2", &[shoes, sale])?;
    put(b"/hats/1", &[sale])?;
    let is_stored = |name: &[u8]| cache.get(name).wait().is_some();

    // In force when the call returns; durable when the wait is over.
    cache.remove_matching(&[Ban::label(shoes)]).wait()?;
    assert!(!is_stored(b"/shoes/1") && !is_stored(b"/shoes/2") && is_stored(b"/hats/1"));

    // A soft ban keeps the object and says that it has to be validated.
    cache.remove_matching(&[Ban::label(sale).softly()]).wait()?;
    let hat = cache.get(b"/hats/1").wait().ok_or("not stored")?;
    assert!(hat.is_made_stale());

    // By the start of the name.
    cache.remove_matching(&[Ban::prefix(b"/hats/")]).wait()?;
    assert!(!is_stored(b"/hats/1"));
    println!("three bans, no object searched for");
    Ok(())
}
