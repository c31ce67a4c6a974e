//! Damaged, cut, reordered and repeated frames: nothing unchecked is given, and nothing short looks
//! complete.

use hashcache_wan::error::Reason;

use super::support::{decode, encode, head, noise, places, text};

struct Sent {
    content: Vec<u8>,
    old: Option<Vec<u8>>,
    frames: Vec<u8>,
}

/// Transfers of several kinds, in small blocks so that there are many.
fn sent() -> Vec<Sent> {
    let old = text(1, 40_000);
    let changed = [&old[..20_000], &noise(1, 300), &old[20_000..]].concat();
    let mixed = [text(2, 3_000), noise(2, 3_000)].concat();
    let cases = [
        (changed, Some(old)),
        (mixed, None),
        (noise(3, 5_000), None),
        (Vec::new(), None),
    ];
    let sent = cases.map(|(content, old)| {
        let mut encoder = hashcache_wan::encode::Encoder::new(
            head(&content, old.as_deref()),
            old.as_ref().map_or(0, |old| old.len() as u64),
        );
        if let Some(old) = &old {
            encoder.give(old);
        }
        let mut frames = Vec::new();
        for piece in content.chunks(1_500) {
            encoder.push(piece, &mut frames).unwrap();
            encoder.flush(&mut frames).unwrap();
        }
        encoder.finish(&mut frames).unwrap();
        Sent {
            content,
            old,
            frames,
        }
    });
    sent.into()
}

/// `frames` after some accident.
fn damaged(frames: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = frames.to_vec();
    let places = places(frames);
    let frame = |random: &mut fastrand::Rng| places[random.usize(..places.len())].1.clone();
    match random.u8(..8) {
        0 => bytes.truncate(random.usize(..bytes.len())),
        1 => {
            // A frame twice.
            let place = frame(random);
            bytes.splice(place.end..place.end, frames[place].iter().copied());
        }
        2 => {
            // A frame is lost.
            bytes.drain(frame(random));
        }
        3 => {
            // Two frames change places.
            let (a, b) = (frame(random), frame(random));
            if a.end <= b.start {
                let between = &frames[a.end..b.start];
                let swapped = [&frames[b.clone()], between, &frames[a.clone()]].concat();
                bytes.splice(a.start..b.end, swapped);
            }
        }
        4 => {
            // Some bytes are lost or arrive from elsewhere.
            let at = random.usize(..bytes.len());
            let end = bytes.len().min(at + random.usize(..20));
            let count = random.usize(..20);
            bytes.splice(
                at..end,
                (0..count).map(|_| random.u8(..)).collect::<Vec<_>>(),
            );
        }
        5 => bytes.extend_from_slice(&frames[frame(random)]),
        _ => {
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }
        }
    }
    bytes
}

#[test]
fn nothing_unchecked_is_given_and_nothing_short_looks_complete() {
    let sent = sent();
    let mut complete = 0;
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let sent = &sent[random.usize(..sent.len())];
        let frames = damaged(&sent.frames, &mut random);
        let received = decode(&frames, sent.old.as_deref(), random.usize(1..10_000));
        assert!(sent.content.starts_with(&received.content), "seed {seed}");
        if received.end.is_ok() {
            complete += 1;
            assert!(received.content == sent.content, "seed {seed}");
        }
    }
    assert!(complete < 2_000, "{complete} were not damaged at all");
}

#[test]
fn no_cut_looks_complete() {
    for sent in sent() {
        for cut in 0..sent.frames.len() {
            let received = decode(&sent.frames[..cut], sent.old.as_deref(), 1_000_000);
            assert_eq!(received.end, Err(Reason::Cut));
            assert!(sent.content.starts_with(&received.content));
        }
    }
}

#[test]
fn another_dictionary_of_the_same_length_is_found_out_at_the_first_block() {
    let old = text(1, 100_000);
    let new = [&old[..50_000], b"edit", &old[50_000..]].concat();
    let frames = encode(head(&new, Some(&old)), &new, Some(&old), 64 << 10);
    let other = text(9, 100_000);
    let received = decode(&frames, Some(&other), 1_000_000);
    assert_eq!(received.end, Err(Reason::Check));
    assert_eq!(received.content, []);
    // Where the bytes that are needed are the same, so is the content.
    let mut other = old.clone();
    other[99_990] ^= 1;
    let received = decode(&frames, Some(&other), 1_000_000);
    assert_eq!(received.end, Err(Reason::Check));
    assert!(new.starts_with(&received.content));
}

#[test]
fn a_transfer_of_another_head_does_not_match_its_checks() {
    let content = text(1, 5_000);
    let frames = encode(head(&content, None), &content, None, 5_000);
    let mut other = head(&content, None);
    other.version += 1;
    let other = encode(other, &content, None, 5_000);
    let mixed = [&other[..19], &frames[19..]].concat();
    let received = decode(&mixed, None, 10_000);
    assert_eq!(received.end, Err(Reason::Check));
    assert_eq!(received.content, []);
}
