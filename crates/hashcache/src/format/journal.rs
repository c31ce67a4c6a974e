//! Blocks of the remove journal: what a returned `remove` took away stays away.

use super::{COUNT_MAX, Fieldreader, IO_BLOCK, Layout, put, tiles};
use crate::key::{KeyHash, Secret};
use crate::object::Version;

/// Size of a journal block, bytes.
pub(crate) const JOURNAL_BLOCK: usize = IO_BLOCK;
/// Removes that fit into one block.
pub(crate) const REMOVES_PER_BLOCK: usize = (JOURNAL_BLOCK - JOURNAL_HEADER) / REMOVE_BYTES;

const JOURNAL_HEADER: usize = 32;
const REMOVE_BYTES: usize = 24;
const MAGIC: u32 = u32::from_le_bytes(*b"HCrj");

/// The head of a journal block; the removes follow.
#[rustfmt::skip]
pub(crate) const JOURNAL_LAYOUT: Layout = &[
    ("mac", 0, 8), ("magic", 8, 4), ("count", 12, 4), ("ordinal", 16, 8), ("device", 24, 2),
    ("reserved", 26, 6),
];

/// One remove in a journal block.
#[rustfmt::skip]
pub(crate) const REMOVED_LAYOUT: Layout = &[("key hash", 0, 16), ("version", 16, 8)];

const _: () = assert!(tiles(JOURNAL_LAYOUT, JOURNAL_HEADER));
const _: () = assert!(tiles(REMOVED_LAYOUT, REMOVE_BYTES));

/// Every version of `key` below `version` is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
}

/// A block of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalBlock {
    pub(crate) device: u16,
    /// Number of the block since the store was made; its place in the ring follows from it.
    pub(crate) ordinal: u64,
    pub(crate) removed: Vec<Removed>,
}

impl JournalBlock {
    /// Encodes at most [`REMOVES_PER_BLOCK`] removes.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.removed.len() <= REMOVES_PER_BLOCK && out.len() == JOURNAL_BLOCK);
        out.fill(0);
        let count = u32::try_from(self.removed.len()).expect("at most 169");
        put(out, 8, &MAGIC.to_le_bytes());
        put(out, 12, &count.to_le_bytes());
        put(out, 16, &self.ordinal.to_le_bytes());
        put(out, 24, &self.device.to_le_bytes());
        for (line, removed) in out[JOURNAL_HEADER..]
            .chunks_exact_mut(24)
            .zip(&self.removed)
        {
            put(line, 0, &removed.key.to_bytes());
            put(line, 16, &removed.version.0.to_le_bytes());
        }
        let mac = secret.mac(&[b"journal", &out[8..]]);
        put(out, 0, &mac.to_le_bytes());
    }

    /// The block in `bytes`, if it is one of ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let bytes = bytes.get(..JOURNAL_BLOCK)?;
        let field = Fieldreader(bytes);
        let count = usize::try_from(field.u32(12)).ok()?;
        let genuine = field.u32(8) == MAGIC
            && count <= REMOVES_PER_BLOCK
            && field.u64(16) < COUNT_MAX
            && secret.mac(&[b"journal", &bytes[8..]]) == field.u64(0);
        let lines = bytes[JOURNAL_HEADER..]
            .chunks_exact(REMOVE_BYTES)
            .take(count);
        genuine.then(|| Self {
            device: field.u16(24),
            ordinal: field.u64(16),
            removed: lines
                .map(|line| Removed {
                    key: KeyHash::from_bytes(Fieldreader(line).array(0)),
                    version: Version(Fieldreader(line).u64(16)),
                })
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
