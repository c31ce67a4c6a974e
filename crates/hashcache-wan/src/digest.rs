//! The running SHA-256 of a transfer's content: a check for each block, a digest at the end.
//!
//! Invariant: a check depends on the HEAD frame and on all content so far. So a block that is
//! damaged, lost, repeated or out of order fails the check.
//! Cost: about 1 ms per MB with the processor's SHA instructions, 3 to 5 without.

use ring::digest::{Context, SHA256, digest};

/// SHA-256 of an object's content. Names a dictionary.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `content`.
    pub fn from_content(content: &[u8]) -> Self {
        Self(octets(digest(&SHA256, content).as_ref()))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The digest of content that arrives in pieces.
#[derive(Clone)]
pub struct Running {
    content: Context,
    length: u64,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            content: Context::new(&SHA256),
            length: 0,
        }
    }
}

impl Running {
    /// Adds content.
    pub fn update(&mut self, content: &[u8]) {
        self.content.update(content);
        self.length += content.len() as u64;
    }

    /// Bytes so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The digest of the content so far.
    pub fn digest(&self) -> Digest {
        Digest(octets(self.content.clone().finish().as_ref()))
    }

    /// The check of a block, after the block's last byte.
    pub(crate) fn check(&self, head: HeadMark) -> Check {
        let digest = self.digest().0;
        Check(std::array::from_fn(|at| digest[at] ^ head.0[at]))
    }
}

/// The part of every check that depends on the HEAD frame.
#[derive(Clone, Copy, Default)]
pub(crate) struct HeadMark([u8; 8]);

impl HeadMark {
    pub(crate) fn from_frame(frame: &[u8]) -> Self {
        Self(octets(&Digest::from_content(frame).0[..8]))
    }
}

/// Eight bytes behind each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check(pub(crate) [u8; 8]);

fn octets<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256_however_the_content_is_cut() {
        let mut running = Running::default();
        running.update(b"a");
        running.update(b"bc");
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(format!("{:?}", running.digest()), known);
        assert_eq!(running.digest(), Digest::from_content(b"abc"));
        assert_eq!(running.length(), 3);
    }

    #[test]
    fn another_head_makes_another_check() {
        let mut running = Running::default();
        running.update(b"abc");
        let (a, b) = (HeadMark::from_frame(b"a"), HeadMark::from_frame(b"b"));
        assert_ne!(running.check(a), running.check(b));
        assert_eq!(
            running.check(HeadMark::default()).0,
            Digest::from_content(b"abc").0[..8]
        );
    }
}
