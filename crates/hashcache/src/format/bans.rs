//! Ban blocks: purges that match more than a single name.
//!
//! On disk they keep their old name, rules: the magic is `HCru`, and the MAC covers `rules`.

use super::layout::{covered, record, seal};
use super::{COUNT_MAX, IO_BLOCK};
use crate::key::Secret;

/// Bans that fit into one block.
pub(crate) const BANS_PER_BLOCK: usize = (IO_BLOCK - BANS_HEADER) / BAN_BYTES;

const BANS_HEADER: usize = BansHeader::BYTES;
const BAN_BYTES: usize = BanFields::BYTES;
const MAGIC: u32 = u32::from_le_bytes(*b"HCru");

record! {
    /// A ban block's header; the bans follow.
    struct BansHeader = "BANS", 32;
    0 mac: u64,
    8 magic: u32,
    12 count: u32,
    16 serial: u64,
    24 device: u16,
    26 block: u16,
    28 blocks: u16,
}

record! {
    /// A ban.
    struct BanFields = "BAN", 32;
    0 hash: u64,
    8 within_hash: u64,
    16 version: u64,
    24 length: u16,
    26 within_length: u16,
    28 kind: u8,
    29 flags: u8,
}

const KIND_LABEL: u8 = 1;
const KIND_PREFIX: u8 = 2;
const FLAG_SOFT: u8 = 1;

/// The first bytes of names: their number and keyed hash. Each name counts with a zero byte
/// appended, so that a prefix can include a name's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    pub(crate) length: u16,
    pub(crate) hash: u64,
}

/// Selects the objects that a ban matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Select {
    /// Objects with this label.
    Label(u64),
    /// Objects with names that start with this prefix.
    Prefix(Prefix),
}

/// All selected objects older than `version` are purged, or stale if the ban is soft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BanLine {
    pub(crate) select: Select,
    /// When there are too many bans, this ban is widened to this prefix; a prefix of length 0
    /// matches all objects.
    pub(crate) within: Prefix,
    pub(crate) soft: bool,
    pub(crate) version: u64,
}

/// A block in a set of bans; the set is valid only with all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BansBlock {
    pub(crate) device: u16,
    /// Serial for the whole set; the set with the highest serial is used.
    pub(crate) serial: u64,
    /// This block's number in the set, and how many blocks the set has.
    pub(crate) block: u16,
    pub(crate) blocks: u16,
    pub(crate) lines: Vec<BanLine>,
}

impl BansBlock {
    /// Encodes at most [`BANS_PER_BLOCK`] bans.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.lines.len() <= BANS_PER_BLOCK && out.len() == IO_BLOCK);
        out.fill(0);
        let header = BansHeader {
            mac: 0,
            magic: MAGIC,
            count: u32::try_from(self.lines.len()).expect("at most 127"),
            serial: self.serial,
            device: self.device,
            block: self.block,
            blocks: self.blocks,
        };
        header.encode(out);
        let places = out[BANS_HEADER..].chunks_exact_mut(BAN_BYTES);
        for (place, line) in places.zip(&self.lines) {
            line.fields().encode(place);
        }
        seal(out, secret.mac(&[b"rules", covered(out)]));
    }

    /// Decodes the block in `bytes`, if the MAC is ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let bytes = bytes.get(..IO_BLOCK)?;
        let header = BansHeader::decode(bytes)?;
        let count = usize::try_from(header.count).ok()?;
        let genuine = header.magic == MAGIC
            && count <= BANS_PER_BLOCK
            && header.serial < COUNT_MAX
            && secret.mac(&[b"rules", covered(bytes)]) == header.mac;
        if !genuine {
            return None;
        }
        let lines = bytes[BANS_HEADER..].chunks_exact(BAN_BYTES);
        // A ban with an unknown kind invalidates the block, because skipping the ban would lose a
        // purge.
        let lines: Option<Vec<_>> = lines.take(count).map(BanLine::decode).collect();
        Some(Self {
            device: header.device,
            serial: header.serial,
            block: header.block,
            blocks: header.blocks,
            lines: lines?,
        })
    }
}

impl BanLine {
    fn fields(&self) -> BanFields {
        let (kind, hash, length) = match self.select {
            Select::Label(label) => (KIND_LABEL, label, 0),
            Select::Prefix(prefix) => (KIND_PREFIX, prefix.hash, prefix.length),
        };
        BanFields {
            hash,
            within_hash: self.within.hash,
            version: self.version,
            length,
            within_length: self.within.length,
            kind,
            flags: if self.soft { FLAG_SOFT } else { 0 },
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = BanFields::decode(bytes)?;
        let prefix = |length, hash| Prefix { length, hash };
        let select = match fields.kind {
            KIND_LABEL => Select::Label(fields.hash),
            KIND_PREFIX => Select::Prefix(prefix(fields.length, fields.hash)),
            _ => return None,
        };
        let line = Self {
            select,
            within: prefix(fields.within_length, fields.within_hash),
            soft: fields.flags & FLAG_SOFT != 0,
            version: fields.version,
        };
        (line.version < COUNT_MAX).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_block_comes_back_and_damage_voids_it() {
        let secret = Secret::from_bytes([2; 32]);
        let line = |n: u64| BanLine {
            select: match n % 2 {
                0 => Select::Label(n),
                _ => Select::Prefix(Prefix { length: 7, hash: n }),
            },
            within: Prefix { length: 3, hash: 9 },
            soft: n.is_multiple_of(3),
            version: n,
        };
        let block = BansBlock {
            device: 1,
            serial: 8,
            block: 2,
            blocks: 5,
            lines: (0..BANS_PER_BLOCK as u64).map(line).collect(),
        };
        let mut bytes = vec![0; IO_BLOCK];
        block.encode(&mut bytes, &secret);
        assert_eq!(BansBlock::decode(&bytes, &secret), Some(block));
        for at in [0, 12, 31, 4000] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(BansBlock::decode(&bad, &secret), None, "byte {at}");
        }
    }
}
