//! The received content equals the sent content, for any content, dictionary and cut.

use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::digest::Digest;
use hashcache_wan::encode::Encoder;
use hashcache_wan::error::{EncodeError, Reason};
use hashcache_wan::frame::{Dictionary, Head};
use proptest::prelude::*;
use zstd_safe::{DCtx, InBuffer, OutBuffer};

use super::support::{decode, encode, head, noise, places, slice, text};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A change of a document.
#[derive(Clone, Debug)]
enum Edit {
    Replace(usize, Vec<u8>),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Move(usize, usize, usize),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..2_000);
    let edit = prop_oneof![
        (any::<usize>(), bytes()).prop_map(|(at, bytes)| Edit::Replace(at, bytes)),
        (any::<usize>(), bytes()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<usize>(), 0..50_000_usize).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<usize>(), any::<usize>(), 0..90_000_usize)
            .prop_map(|(from, to, length)| Edit::Move(from, to, length)),
    ];
    proptest::collection::vec(edit, 0..8)
}

fn edited(old: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut new = old.to_vec();
    for edit in edits {
        let place = |at: usize, new: &Vec<u8>| at % (new.len() + 1);
        match edit {
            Edit::Replace(at, bytes) => {
                let at = place(*at, &new);
                let end = new.len().min(at + bytes.len());
                new.splice(at..end, bytes.iter().copied());
            }
            Edit::Insert(at, bytes) => {
                let at = place(*at, &new);
                new.splice(at..at, bytes.iter().copied());
            }
            Edit::Remove(at, length) => {
                let at = place(*at, &new);
                let end = new.len().min(at + length);
                new.drain(at..end);
            }
            Edit::Move(from, to, length) => {
                let from = place(*from, &new);
                let end = new.len().min(from + length);
                let part: Vec<u8> = new.drain(from..end).collect();
                let to = place(*to, &new);
                new.splice(to..to, part);
            }
        }
    }
    new
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_edit_comes_back_in_any_pieces(
        seed in 0..1_000_u64,
        bytes in 1..400_000_usize,
        edits in edits(),
        pieces in (1..200_000_usize, 1..200_000_usize),
        is_length_known: bool,
    ) {
        let old = text(seed, bytes);
        let new = edited(&old, &edits);
        let mut head = head(&new, Some(&old));
        head.length = head.length.filter(|_| is_length_known);
        let frames = encode(head, &new, Some(&old), pieces.0);
        let received = decode(&frames, Some(&old), pieces.1);
        prop_assert!(received.end.is_ok(), "{:?}", received.end);
        prop_assert!(received.content == new);
    }
}

#[test]
fn every_length_comes_back_with_and_without_a_dictionary() {
    let old = text(1, 5 * MIB);
    let edges = [64 * KIB, 256 * KIB, 2 * MIB, 4 * MIB];
    let around = edges
        .into_iter()
        .flat_map(|edge| [edge - 1, edge, edge + 1]);
    for length in [0, 1, 15, 511, 6 * MIB + 7].into_iter().chain(around) {
        for content in [text(1, length), text(2, length), noise(3, length)] {
            for old in [None, Some(&old[..]), Some(&old[..100])] {
                for is_length_known in [true, false] {
                    let mut head = head(&content, old);
                    head.length = head.length.filter(|_| is_length_known);
                    let frames = encode(head, &content, old, 100_000);
                    let received = decode(&frames, old, 9_000);
                    received.end.unwrap();
                    assert!(received.content == content, "{length}");
                }
            }
        }
    }
}

#[test]
fn content_that_changes_its_kind_in_a_segment_comes_back() {
    let kinds: [fn(u64, usize) -> Vec<u8>; 2] = [text, noise];
    let lengths = [64 * KIB, 1_900 * KIB, 2 * MIB - 64 * KIB, 2 * MIB, 3 * MIB];
    fastrand::seed(1);
    for round in 0..60 {
        let parts = (0..5).map(|part| {
            let kind = kinds[(part + round) % 2];
            kind(part as u64, lengths[fastrand::usize(..lengths.len())])
        });
        let content = parts.collect::<Vec<_>>().concat();
        for is_length_known in [true, false] {
            let mut head = head(&content, None);
            head.length = head.length.filter(|_| is_length_known);
            let frames = encode(head, &content, None, 64 * KIB);
            assert!(
                decode(&frames, None, 64 * KIB).content == content,
                "{round}"
            );
        }
    }
}

#[test]
fn a_small_change_of_a_large_object_sends_little() {
    let old = text(1, 9 * MIB);
    let new = [&old[..3_000_000], b"one line more\n", &old[3_000_000..]].concat();
    let frames = encode(head(&new, Some(&old)), &new, Some(&old), 64 * KIB);
    assert!(frames.len() < 5_000, "{} bytes", frames.len());
    assert!(decode(&frames, Some(&old), 64 * KIB).content == new);
}

#[test]
fn content_that_saves_nothing_grows_by_less_than_a_thousandth() {
    let content = noise(1, 5 * MIB);
    let old = noise(2, 5 * MIB);
    for old in [None, Some(&old[..])] {
        let frames = encode(head(&content, old), &content, old, 64 * KIB);
        let more = frames.len() - content.len();
        assert!(more < content.len() / 1_000, "{more} bytes more");
    }
}

#[test]
fn what_was_pushed_is_received_after_a_flush() {
    let content = text(1, 300_000);
    let mut encoder = Encoder::new(head(&content, None), 0);
    let mut decoder = Decoder::new(Offer::default());
    let mut received = Vec::new();
    for piece in content.chunks(7_001) {
        let mut frames = Vec::new();
        assert_eq!(encoder.push(piece, &mut frames), Ok(piece.len()));
        encoder.flush(&mut frames).unwrap();
        decoder.push(&frames);
        loop {
            match decoder.next().unwrap() {
                Event::Content(bytes) => received.extend_from_slice(bytes),
                Event::More => break,
                _ => {}
            }
        }
        assert!(content.starts_with(&received));
        assert_eq!(received.len() as u64, encoder.totals().content_bytes);
    }
    assert_eq!(received, content);
}

#[test]
fn the_data_of_zstd_frames_is_what_plain_zstd_reads() {
    let old = text(1, 3 * MIB);
    let new = [&old[..MIB], &noise(5, 10_000), &old[MIB..]].concat();
    for old in [None, Some(&old[..])] {
        let frames = encode(head(&new, old), &new, old, 64 * KIB);
        let mut content = Vec::new();
        let mut prefix: &[u8] = &[];
        let mut data = Vec::new();
        for (kind, place) in places(&frames).into_iter().chain([(2, 0..0)]) {
            match kind {
                3 => data.extend_from_slice(&frames[place.start + 4..place.end - 8]),
                2 => {
                    content.extend(plain_zstd(prefix, &data));
                    data.clear();
                    if let Some(old) = old.filter(|_| !place.is_empty()) {
                        let number = |at: usize, bytes: usize| {
                            let mut word = [0; 8];
                            word[..bytes].copy_from_slice(&frames[at..at + bytes]);
                            u64::from_le_bytes(word) as usize
                        };
                        let start = number(place.start + 1, 8);
                        prefix = &old[start..start + number(place.start + 9, 4)];
                    }
                }
                _ => {}
            }
        }
        assert!(content == new);
    }
}

/// All zstd frames of `data`, read with `prefix`.
fn plain_zstd(prefix: &[u8], data: &[u8]) -> Vec<u8> {
    let mut context = DCtx::create();
    context.ref_prefix(prefix).unwrap();
    let mut content = Vec::with_capacity(8 * MIB);
    let mut input = InBuffer::around(data);
    while input.pos() < data.len() {
        let at = content.len();
        let mut output = OutBuffer::around_pos(&mut content, at);
        context.decompress_stream(&mut output, &mut input).unwrap();
    }
    content
}

#[test]
fn a_named_dictionary_is_learned_from_the_head_and_used() {
    let old = text(1, 60_000);
    let named = Dictionary::Named {
        key: b"http://origin.test/app.1.js"[..].into(),
        digest: Digest::from_content(&old),
        length: old.len() as u64,
    };
    let sent = Head {
        dictionary: named,
        ..head(&old, None)
    };
    let mut encoder = Encoder::new(sent.clone(), 0);
    encoder.give(&slice(&old, &encoder.wants().unwrap()));
    let mut frames = Vec::new();
    encoder.push(&old, &mut frames).unwrap();
    encoder.finish(&mut frames).unwrap();
    for (named_max, is_taken) in [(60_000, true), (59_999, false), (0, false)] {
        let mut decoder = Decoder::new(Offer {
            offered: None,
            named_max,
        });
        decoder.push(&frames);
        if !is_taken {
            assert_eq!(decoder.next(), Err(Reason::Limit("dictionary")));
            continue;
        }
        assert_eq!(decoder.next().unwrap(), Event::Head(&sent));
        assert_eq!(decoder.next().unwrap(), Event::Wants(0..60_000));
        decoder.give(&old[..40_000]);
        assert_eq!(decoder.next().unwrap(), Event::Wants(40_000..60_000));
        decoder.give(&old[40_000..]);
        let content = decoder.next().unwrap();
        assert!(content == Event::Content(&old));
        assert_eq!(
            decoder.next().unwrap(),
            Event::End(Digest::from_content(&old))
        );
        assert_eq!(decoder.next().unwrap(), Event::More);
    }
}

#[test]
fn a_dictionary_that_cannot_be_read_is_given_up_at_any_time() {
    let old = text(1, 9 * MIB);
    for give_up_at in [0, 1, 3] {
        let mut encoder = Encoder::new(head(&old, Some(&old)), old.len() as u64);
        let (mut frames, mut at, mut wanted) = (Vec::new(), 0, 0);
        while at < old.len() {
            if let Some(range) = encoder.wants() {
                if wanted == give_up_at {
                    encoder.give(&slice(&old, &(range.start..range.start + 5)));
                    encoder.give_up_dictionary();
                    assert_eq!(encoder.wants(), None);
                } else {
                    encoder.give(&slice(&old, &range));
                }
                wanted += 1;
            }
            at += encoder.push(&old[at..], &mut frames).unwrap();
        }
        encoder.finish(&mut frames).unwrap();
        let received = decode(&frames, Some(&old), 100_000);
        received.end.unwrap();
        assert!(received.content == old);
    }
}

#[test]
fn a_source_that_fails_is_no_end() {
    let content = text(1, 100_000);
    let mut encoder = Encoder::new(head(&content, None), 0);
    let mut frames = Vec::new();
    encoder.push(&content[..90_000], &mut frames).unwrap();
    encoder.flush(&mut frames).unwrap();
    encoder.abort(5, &mut frames);
    let received = decode(&frames, None, 100_000);
    assert_eq!(received.end, Err(Reason::Aborted(5)));
    assert_eq!(received.content, content[..90_000]);
}

#[test]
fn another_length_than_announced_is_refused_by_the_encoder() {
    let announced = Head {
        length: Some(10),
        ..head(b"", None)
    };
    let mut encoder = Encoder::new(announced.clone(), 0);
    let refused = encoder.push(&[1; 11], &mut Vec::new());
    let (announced_bytes, written) = (10, 11);
    let error = EncodeError::Length {
        announced: announced_bytes,
        written,
    };
    assert_eq!(refused, Err(error));
    let mut encoder = Encoder::new(announced, 0);
    encoder.push(&[1; 9], &mut Vec::new()).unwrap();
    assert!(encoder.finish(&mut Vec::new()).is_err());
}
