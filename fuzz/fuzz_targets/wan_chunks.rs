//! Frames of a chunk stream of any bytes, with the real zstd: content is given in order and
//! checked, memory has its bound, and an end is an end.
//!
//! The first two bytes say what is done with the rest: it is read as it is, or it is content that
//! is sent twice, the second time damaged at one place.

#![no_main]

use std::collections::HashMap;

use hashcache_wan::chunk::{Event, Key, Known, Name, Stream, Windows};
use libfuzzer_sys::fuzz_target;

const KEY: Key = Key([3; 16]);

type Store = HashMap<Name, Vec<u8>>;

fuzz_target!(|data: &[u8]| {
    let Some((&[what, at], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (known, mut store) = (Known::new(10_000), Store::new());
    if what < 128 {
        read(rest, &known, &mut store);
        return;
    }
    // Long enough for chunks, extents and references.
    let content = rest.repeat(usize::from(what & 63) + 1);
    let content = &content[..content.len().min(200_000)];
    let first = sent(content, &known);
    let (received, is_finished) = read(&first, &Known::new(0), &mut store);
    assert!(is_finished && received == content);
    let mut second = sent(content, &known);
    let (received, is_finished) = read(&second, &Known::new(0), &mut store);
    assert!(is_finished && received == content);
    let place = usize::from(at) * second.len() / 256;
    second[place] ^= 1 << (what & 7);
    let (received, is_finished) = read(&second, &Known::new(0), &mut store);
    assert!(content.starts_with(&received));
    assert!(!is_finished || received == content);
});

fn sent(content: &[u8], known: &Known) -> Vec<u8> {
    let mut stream = Stream::new(KEY, Windows::both(u64::MAX));
    let mut link = Vec::new();
    for piece in content.chunks(9_000) {
        let taken = stream.push(piece, known, &mut link);
        assert_eq!(taken, Ok(piece.len()));
    }
    stream.finish(known, &mut link).expect("zstd has memory");
    link
}

/// What is given for `link`, and whether it ends.
fn read(link: &[u8], known: &Known, store: &mut Store) -> (Vec<u8>, bool) {
    let mut stream = Stream::new(KEY, Windows::both(u64::MAX));
    let mut content = Vec::new();
    let mut is_finished = false;
    let mut out = Vec::new();
    for piece in link.chunks(5_000) {
        stream.push_link(piece);
        loop {
            let most = Windows::both(u64::MAX).memory_bytes();
            assert!(stream.memory_bytes() as u64 <= most);
            match stream.next(known, &mut out) {
                Ok(Event::More) => break,
                Ok(Event::Wants(name)) => stream.give(store.get(&name).map(|it| &**it)),
                Ok(Event::Store(name, extent)) => {
                    assert!(KEY.name(extent) == name);
                    store.insert(name, extent.to_vec());
                }
                Ok(Event::Content(bytes)) => {
                    assert!(!bytes.is_empty() && !is_finished);
                    content.extend_from_slice(bytes);
                }
                Ok(Event::Finished) => is_finished = true,
                Err(_) => return (content, is_finished),
            }
        }
    }
    (content, is_finished)
}
