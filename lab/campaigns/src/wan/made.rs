//! Releases that need no network: text, with the edits that a release brings.
//!
//! Used by the short forms, and where a section needs content of a chosen size. The text has the
//! statistics of markup: zstd makes it several times smaller, and no line stands in it twice.
//!
//! Invariant: the same seed makes the same bytes.

use std::sync::Arc;

use super::packages::{File, Releases};

/// Text of `bytes` bytes.
pub fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = Vec::with_capacity(bytes + 100);
    while text.len() < bytes {
        let (class, number, word) = (random.u8(..), random.u64(..), random.u16(..));
        let line = format!("<p class=\"c{class}\" id=\"p{number:x}\">word {word}</p>\n");
        text.extend_from_slice(line.as_bytes());
    }
    text.truncate(bytes);
    text
}

/// Bytes that nothing makes smaller.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words = std::iter::repeat_with(|| random.u64(..).to_le_bytes());
    let mut noise: Vec<u8> = words.take(bytes.div_ceil(8)).flatten().collect();
    noise.truncate(bytes);
    noise
}

/// The next version of `old`: an edit of up to 200 bytes in each 40 kB.
pub fn edited(seed: u64, old: &[u8]) -> Vec<u8> {
    edited_every(40_000, seed, old)
}

/// The same with an edit in so many bytes.
pub fn edited_every(bytes: usize, seed: u64, old: &[u8]) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut new = Vec::with_capacity(old.len() + old.len() / 100);
    for part in old.chunks(bytes) {
        let at = random.usize(..part.len());
        let skipped = random.usize(..200).min(part.len() - at);
        new.extend_from_slice(&part[..at]);
        new.extend_from_slice(&text(random.u64(..), random.usize(..200)));
        new.extend_from_slice(&part[at + skipped..]);
    }
    new
}

/// Two releases of `count` files of `bytes` bytes each.
pub fn releases(count: u64, bytes: usize) -> Releases {
    let file = |seed, content| File {
        path: format!("/made/{seed}.html"),
        content: Arc::new(content),
    };
    let old: Vec<File> = (0..count)
        .map(|seed| file(seed, text(seed, bytes)))
        .collect();
    let new = old.iter().zip(0..);
    let new = new.map(|(old, seed)| file(seed, edited(seed + count, &old.content)));
    Releases {
        new: new.collect(),
        old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_keeps_most_of_its_bytes_and_changes_some() {
        let made = releases(2, 100_000);
        for (old, new) in made.old.iter().zip(&made.new) {
            assert!(old.path == new.path && old.content != new.content);
            assert!(new.content.len().abs_diff(old.content.len()) < 1000);
        }
        assert!(made.new[0].content != made.new[1].content);
        assert_eq!(noise(1, 1001).len(), 1001);
        assert_eq!(made.new[0].content, releases(2, 100_000).new[0].content);
    }
}
