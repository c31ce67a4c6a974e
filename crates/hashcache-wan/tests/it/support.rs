//! Both ends of a transfer, content to send over it, and a plain reader of frames.

use std::ops::Range;

use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::digest::Digest;
use hashcache_wan::encode::Encoder;
use hashcache_wan::error::Reason;
use hashcache_wan::frame::{Dictionary, Head};

/// Lines of text with numbers in them: zstd saves about three quarters.
pub fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words = [
        "cache", "object", "origin", "stale", "vary", "range", "peer", "hit",
    ];
    let mut text = String::new();
    while text.len() < bytes {
        text += words[random.usize(..words.len())];
        text += if random.u8(..5) == 0 { ";\n" } else { " " };
        if random.u8(..3) == 0 {
            text += &random.u32(..).to_string();
        }
    }
    text.truncate(bytes);
    text.into_bytes()
}

pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

pub fn slice(bytes: &[u8], range: &Range<u64>) -> Vec<u8> {
    bytes[range.start as usize..range.end as usize].to_vec()
}

pub fn head(content: &[u8], old: Option<&[u8]>) -> Head {
    Head {
        length: Some(content.len() as u64),
        version: 3,
        dictionary: old.map_or(Dictionary::None, |_| Dictionary::Offered),
    }
}

/// The frames of `content`, pushed in pieces of `piece` bytes.
pub fn encode(head: Head, content: &[u8], old: Option<&[u8]>, piece: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(head, old.map_or(0, <[u8]>::len) as u64);
    let mut frames = Vec::new();
    for mut piece in content.chunks(piece) {
        loop {
            if let Some(range) = encoder.wants() {
                encoder.give(&slice(old.unwrap(), &range));
            }
            piece = &piece[encoder.push(piece, &mut frames).unwrap()..];
            if piece.is_empty() {
                break;
            }
        }
    }
    let (digest, totals) = encoder.finish(&mut frames).unwrap();
    assert_eq!(digest, Digest::from_content(content));
    assert_eq!(totals.frame_bytes, frames.len() as u64);
    assert_eq!(totals.content_bytes, content.len() as u64);
    frames
}

/// The content that a receiver got, and how the transfer ended.
pub struct Received {
    pub content: Vec<u8>,
    pub end: Result<(), Reason>,
}

pub fn decode(frames: &[u8], old: Option<&[u8]>, piece: usize) -> Received {
    let mut decoder = Decoder::new(Offer {
        offered: old.map(|old| old.len() as u64),
        named_max: 0,
    });
    let (mut content, mut end) = (Vec::new(), Err(Reason::Cut));
    for piece in frames.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Event::More) => break,
                Ok(Event::Head(_)) => {}
                Ok(Event::Wants(range)) => decoder.give(&slice(old.unwrap(), &range)),
                Ok(Event::Content(bytes)) => content.extend_from_slice(bytes),
                Ok(Event::End(digest)) => {
                    assert_eq!(digest, Digest::from_content(&content));
                    end = Ok(());
                }
                Err(reason) => {
                    return Received {
                        content,
                        end: Err(reason),
                    };
                }
            }
        }
    }
    Received { content, end }
}

/// Where the frames of a transfer without a named dictionary lie, with their types. Written from
/// the table in `frame`, not with its parser.
pub fn places(frames: &[u8]) -> Vec<(u8, Range<usize>)> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < frames.len() {
        let bytes = match frames[at] {
            1 => 19,
            2 => 13,
            3 | 4 => {
                let length = [frames[at + 1], frames[at + 2], frames[at + 3], 0];
                12 + u32::from_le_bytes(length) as usize
            }
            6 => 41,
            7 => 2,
            kind => panic!("no frame has type {kind}"),
        };
        places.push((frames[at], at..at + bytes));
        at += bytes;
    }
    places
}
