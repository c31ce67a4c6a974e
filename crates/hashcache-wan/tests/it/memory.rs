//! The memory of one transfer, at both ends, measured with zstd's own functions.

use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::encode::Encoder;
use hashcache_wan::limits::TRANSFER_BYTES_MAX;

use super::support::{head, noise, slice, text};

#[test]
fn a_transfer_takes_at_most_twelve_mebibytes_at_either_end() {
    let old = text(1, 20 << 20);
    let contents = [old.clone(), noise(1, 5 << 20), text(2, 9 << 20)];
    for (content, is_length_known) in contents.iter().flat_map(|it| [(it, true), (it, false)]) {
        for old in [None, Some(&old[..])] {
            let mut head = head(content, old);
            head.length = head.length.filter(|_| is_length_known);
            let length = old.map(|old| old.len() as u64);
            let mut encoder = Encoder::new(head, length.unwrap_or(0));
            let mut decoder = Decoder::new(Offer {
                offered: length,
                named_max: 0,
            });
            let (mut most, mut at, mut received) = ((0, 0), 0, 0);
            while at < content.len() {
                if let Some(range) = encoder.wants() {
                    encoder.give(&slice(old.unwrap(), &range));
                }
                let mut frames = Vec::new();
                let upto = content.len().min(at + (64 << 10));
                at += encoder.push(&content[at..upto], &mut frames).unwrap();
                most.0 = most.0.max(encoder.memory_bytes() + frames.capacity());
                decoder.push(&frames);
                loop {
                    match decoder.next().unwrap() {
                        Event::More => break,
                        Event::Wants(range) => decoder.give(&slice(old.unwrap(), &range)),
                        Event::Content(bytes) => received += bytes.len(),
                        _ => {}
                    }
                    most.1 = most.1.max(decoder.memory_bytes());
                }
            }
            assert!(received > 0);
            println!("{most:?} bytes");
            assert!(most.0 <= TRANSFER_BYTES_MAX, "encoder: {} bytes", most.0);
            assert!(most.1 <= TRANSFER_BYTES_MAX, "decoder: {} bytes", most.1);
        }
    }
}

#[test]
fn short_content_of_known_length_takes_little_memory() {
    let content = text(1, 5_000);
    let mut encoder = Encoder::new(head(&content, None), 0);
    let mut frames = Vec::new();
    encoder.push(&content[..4_999], &mut frames).unwrap();
    encoder.flush(&mut frames).unwrap();
    let bytes = encoder.memory_bytes();
    println!("{bytes} bytes");
    assert!(bytes < 600_000, "{bytes} bytes");
}
