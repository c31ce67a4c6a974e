//! Remove journal blocks. The journal keeps an object removed once `remove` has returned. Called by
//! `disk/journal`.

use super::layout::{covered, record, seal};
use super::{COUNT_MAX, IO_BLOCK};
use crate::key::{KeyHash, Secret};
use crate::object::Version;

/// Size of a journal block, bytes.
pub(crate) const JOURNAL_BLOCK: usize = IO_BLOCK;
/// Removes that fit into one block.
pub(crate) const REMOVES_PER_BLOCK: usize = (JOURNAL_BLOCK - JOURNAL_HEADER) / REMOVE_BYTES;

const JOURNAL_HEADER: usize = JournalHeader::BYTES;
const REMOVE_BYTES: usize = Removed::BYTES;
const MAGIC: u32 = u32::from_le_bytes(*b"HCrj");

record! {
    /// A journal block's header; the removes follow.
    struct JournalHeader = "JOURNAL", 32;
    0 mac: u64,
    8 magic: u32,
    12 count: u32,
    16 ordinal: u64,
    24 device: u16,
}

record! {
    /// A remove: every `key` version below `version` is removed.
    struct Removed = "REMOVED", 24;
    0 key: KeyHash,
    16 version: Version,
}

/// A journal block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalBlock {
    pub(crate) device: u16,
    /// Block number since the store was created; it determines the position in the ring.
    pub(crate) ordinal: u64,
    pub(crate) removed: Vec<Removed>,
}

impl JournalBlock {
    /// Encodes at most [`REMOVES_PER_BLOCK`] removes.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.removed.len() <= REMOVES_PER_BLOCK && out.len() == JOURNAL_BLOCK);
        out.fill(0);
        let header = JournalHeader {
            mac: 0,
            magic: MAGIC,
            count: u32::try_from(self.removed.len()).expect("at most 169"),
            ordinal: self.ordinal,
            device: self.device,
        };
        header.encode(out);
        let lines = out[JOURNAL_HEADER..].chunks_exact_mut(REMOVE_BYTES);
        for (line, removed) in lines.zip(&self.removed) {
            removed.encode(line);
        }
        seal(out, secret.mac(&[b"journal", covered(out)]));
    }

    /// Decodes the block in `bytes`, if the MAC is ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let bytes = bytes.get(..JOURNAL_BLOCK)?;
        let header = JournalHeader::decode(bytes)?;
        let count = usize::try_from(header.count).ok()?;
        let genuine = header.magic == MAGIC
            && count <= REMOVES_PER_BLOCK
            && header.ordinal < COUNT_MAX
            && secret.mac(&[b"journal", covered(bytes)]) == header.mac;
        let lines = bytes[JOURNAL_HEADER..].chunks_exact(REMOVE_BYTES);
        genuine.then(|| Self {
            device: header.device,
            ordinal: header.ordinal,
            removed: lines
                .take(count)
                .filter_map(Removed::decode)
                .filter(|removed| removed.version.0 < COUNT_MAX)
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_block_comes_back_and_damage_voids_it() {
        let secret = Secret::from_bytes([2; 32]);
        let remove = |n: u64| Removed {
            key: secret.name(&n.to_le_bytes()),
            version: Version(n),
        };
        let removed = (0..REMOVES_PER_BLOCK as u64).map(remove).collect();
        let block = JournalBlock {
            device: 0,
            ordinal: 8,
            removed,
        };
        let mut bytes = vec![0; JOURNAL_BLOCK];
        block.encode(&mut bytes, &secret);
        assert_eq!(JournalBlock::decode(&bytes, &secret), Some(block));
        bytes[4000] ^= 0x10;
        assert_eq!(JournalBlock::decode(&bytes, &secret), None);
    }
}
