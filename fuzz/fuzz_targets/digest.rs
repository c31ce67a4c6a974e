//! Cache digests: a body is refused, or its filter is sent as the same body.

#![no_main]

use hashcache_peers::digest::{self, BLOCK_BYTES, ControlBlock};
use hashcache_peers::key::Key;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(mut filter) = digest::parse(data) else {
        return;
    };
    let block = ControlBlock::from_filter(&filter);
    assert_eq!(ControlBlock::parse(data), Ok(block));
    let sent = block.octets();
    // Versions, deletions and what is reserved are not kept.
    assert_eq!(sent[4..12], data[4..12]);
    assert_eq!(sent[16..22], data[16..22]);
    assert_eq!(filter.octets(), &data[BLOCK_BYTES..]);
    assert!((0.0..=1.0).contains(&filter.false_positive_share()));

    let key = Key::of_get(data);
    let was_contained = filter.contains(&key);
    let new = filter.insert(&key);
    assert!(filter.contains(&key));
    assert_eq!(was_contained, new.as_slice().is_empty());
});
