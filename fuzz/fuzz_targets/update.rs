//! Directory updates: a datagram is ignored, or names bits that exist and is rebuilt from them.

#![no_main]

use hashcache_peers::filter::{Bit, Filter, Size};
use hashcache_peers::update::{self, Changes, Flip};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(update) = update::parse(data) else {
        return;
    };
    let flips: Vec<Flip> = update.flips().collect();
    assert!(flips.len() <= data.len());
    assert!(flips.iter().all(|it| it.bit < update.filter_bits()));
    // A filter of that size, unless it would take long to make.
    let octets = update.filter_bits() / 8;
    let Ok(size) = Size::new(octets.min(1 << 16), 8) else {
        return;
    };
    let mut filter = Filter::empty(size).unwrap();
    let before = filter.clone();
    match update.apply(&mut filter) {
        Ok(_) => {
            let bits = flips.iter().map(|it| it.bit).collect();
            let mut changes = Changes::new(size, bits, |bit| filter.value(bit));
            let is_one = changes.left() == flips.len();
            let rebuilt = changes.datagram(update.position());
            // There is one code, unless a bit is named twice or the datagram is larger than ours.
            // Option data and the sender's address are not read.
            if is_one && changes.left() == 0 {
                assert_eq!(rebuilt[..12], data[..12]);
                assert_eq!(rebuilt[20..], data[20..]);
            }
            for (n, flip) in flips.iter().enumerate() {
                let is_last = flips[n + 1..].iter().all(|it| it.bit != flip.bit);
                assert!(!is_last || filter.is_set(flip.bit) == (flip.value == Bit::Set));
            }
            let back: Vec<Flip> = update::differences(&filter, &before).unwrap().collect();
            for flip in back {
                filter.put(flip.bit, flip.value);
            }
            assert_eq!(filter, before);
        }
        Err(error) => {
            assert_eq!(error.theirs, update.filter_bits());
            assert_eq!(filter, before);
        }
    }
});
