//! Memory for a transfer on each side, so that a caller can reserve it in advance.
//!
//! Invariant: a transfer holds no more than these functions return. A test measures this with
//! zstd's own functions, for content of many lengths.
//! Cost: none.

use crate::limits::{SEGMENT_BYTES_MAX, STRETCH_BYTES_MAX};

/// Memory for an encoder and the frames that it has just written, bytes, for content of `length`
/// bytes and a dictionary of `dictionary` bytes (0: none).
pub fn encoder_bytes(length: Option<u64>, dictionary: u64) -> u64 {
    let segment = segment(length);
    // zstd's tables grow with the content up to their own limits.
    let tables = (8 * segment).min(1536 << 10);
    let with_dictionary = match dictionary {
        0 => 0,
        _ => dictionary.min(STRETCH_BYTES_MAX) + (1856 << 10),
    };
    (704 << 10) + tables + segment + with_dictionary
}

/// Memory for a decoder and the last push, as in [`encoder_bytes`].
pub fn decoder_bytes(length: Option<u64>, dictionary: u64) -> u64 {
    (832 << 10) + segment(length) + dictionary.min(STRETCH_BYTES_MAX)
}

/// Content bytes that are coded with a single window.
fn segment(length: Option<u64>) -> u64 {
    length.unwrap_or(u64::MAX).min(SEGMENT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoder, Event, Offer};
    use crate::encode::Encoder;
    use crate::frame::{Dictionary, Head};
    use crate::limits::TRANSFER_BYTES_MAX;

    fn content(bytes: usize, more: u8) -> Vec<u8> {
        let word = |n: usize| u32::try_from(n).unwrap().wrapping_mul(2_654_435_761);
        let letter = |n| (word(n).to_le_bytes()[3] & 31) + more;
        (0..bytes).map(letter).collect()
    }

    /// The most that both ends hold while this content passes, bytes.
    fn measured(length: Option<u64>, content: &[u8], dictionary: &[u8]) -> [usize; 2] {
        let head = Head {
            length,
            version: 0,
            dictionary: match dictionary {
                [] => Dictionary::None,
                _ => Dictionary::Offered,
            },
        };
        let mut encoder = Encoder::new(head, dictionary.len() as u64);
        let mut decoder = Decoder::new(Offer {
            offered: Some(dictionary.len() as u64),
            named_max: 0,
        });
        let wanted = |range: std::ops::Range<u64>| {
            &dictionary[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
        };
        let (mut rest, mut most) = (content, [0, 0]);
        while !rest.is_empty() {
            let mut out = Vec::new();
            if let Some(range) = encoder.wants() {
                encoder.give(wanted(range));
            }
            let piece = &rest[..rest.len().min(16 << 10)];
            let taken = encoder.push(piece, &mut out).unwrap();
            rest = &rest[taken..];
            if rest.is_empty() {
                encoder.flush(&mut out).unwrap();
            }
            most[0] = most[0].max(encoder.memory_bytes() + out.capacity());
            for piece in out.chunks(16 << 10) {
                decoder.push(piece);
                loop {
                    match decoder.next().unwrap() {
                        Event::Wants(range) => decoder.give(wanted(range)),
                        Event::More => break,
                        Event::Head(_) | Event::Content(_) | Event::End(_) => {}
                    }
                    most[1] = most[1].max(decoder.memory_bytes());
                }
            }
        }
        most
    }

    #[test]
    fn a_transfer_holds_no_more_than_is_said() {
        for bytes in [1000, 20_000, 64 << 10, 200_000, 500_000, 1 << 20, 5 << 20] {
            for dictionary in [0, bytes, 8 << 20] {
                for length in [Some(bytes as u64), None] {
                    let (new, old) = (content(bytes, 64), content(dictionary, 63));
                    let [encoder, decoder] = measured(length, &new, &old);
                    let said = encoder_bytes(length, old.len() as u64);
                    assert!(encoder as u64 <= said, "{bytes} {dictionary} {encoder}");
                    assert!(said <= TRANSFER_BYTES_MAX as u64);
                    let said = decoder_bytes(length, old.len() as u64);
                    assert!(decoder as u64 <= said, "{bytes} {dictionary} {decoder}");
                }
            }
        }
    }
}
