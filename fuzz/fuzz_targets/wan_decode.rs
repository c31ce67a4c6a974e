//! Frames of a transfer of any bytes, with the real zstd: what is given matches its checks, memory
//! has its bound, and an end is an end.
//!
//! The first two bytes say what is done with the rest: it is read as it is, or it is content whose
//! frames are damaged at one place.

#![no_main]

use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::digest::Digest;
use hashcache_wan::encode::Encoder;
use hashcache_wan::frame::{Dictionary, Head};
use hashcache_wan::limits::TRANSFER_BYTES_MAX;
use libfuzzer_sys::fuzz_target;

/// The dictionary that the receiver has.
const OLD: &[u8] = b"The cache may forget; it must never lie. A lost object costs one fetch.";

fuzz_target!(|data: &[u8]| {
    let Some((&[what, at], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    if what < 128 {
        read(rest, usize::from(at) + 1, None);
        return;
    }
    let mut frames = sent(rest, usize::from(what & 63) + 1);
    read(&frames, usize::from(at) + 1, Some(rest));
    let place = usize::from(at) * frames.len() / 256;
    frames[place] ^= 1 << (what & 7);
    let content = read(&frames, 4096, None);
    assert!(rest.starts_with(&content));
});

/// The frames of `content`, in blocks of `block` bytes.
fn sent(content: &[u8], block: usize) -> Vec<u8> {
    let head = Head {
        length: Some(content.len() as u64),
        version: 1,
        dictionary: Dictionary::Offered,
    };
    let mut encoder = Encoder::new(head, OLD.len() as u64);
    encoder.give(OLD);
    let mut frames = Vec::new();
    for piece in content.chunks(block * 64) {
        assert_eq!(encoder.push(piece, &mut frames), Ok(piece.len()));
        encoder.flush(&mut frames).expect("zstd has memory");
    }
    encoder.finish(&mut frames).expect("zstd has memory");
    frames
}

/// Reads `frames`, which are those of `sent` if given, and returns what was given.
fn read(frames: &[u8], piece: usize, sent: Option<&[u8]>) -> Vec<u8> {
    let mut decoder = Decoder::new(Offer {
        offered: Some(OLD.len() as u64),
        named_max: OLD.len() as u64,
    });
    let mut content = Vec::new();
    let mut is_complete = false;
    'link: for piece in frames.chunks(piece) {
        decoder.push(piece);
        loop {
            assert!(decoder.memory_bytes() <= TRANSFER_BYTES_MAX);
            match decoder.next() {
                Ok(Event::More) => break,
                Ok(Event::Head(_)) => {}
                Ok(Event::Wants(range)) => {
                    decoder.give(&OLD[range.start as usize..range.end as usize]);
                }
                Ok(Event::Content(bytes)) => {
                    assert!(!bytes.is_empty() && !is_complete);
                    content.extend_from_slice(bytes);
                }
                Ok(Event::End(digest)) => {
                    assert_eq!(digest, Digest::from_content(&content));
                    is_complete = true;
                }
                Err(reason) => {
                    assert_eq!(decoder.next(), Err(reason));
                    is_complete = false;
                    break 'link;
                }
            }
        }
    }
    if let Some(sent) = sent {
        assert!(is_complete && content == sent);
    }
    content
}
