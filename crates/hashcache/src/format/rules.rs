//! Blocks of rules: what a purge took away that was not one name.

use super::{COUNT_MAX, Fieldreader, IO_BLOCK, Layout, put, tiles};
use crate::key::Secret;

/// Rules that fit into one block.
pub(crate) const RULES_PER_BLOCK: usize = (IO_BLOCK - RULES_HEADER) / RULE_BYTES;

const RULES_HEADER: usize = 32;
const RULE_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"HCru");

/// The head of a block of rules; the rules follow.
#[rustfmt::skip]
pub(crate) const RULES_LAYOUT: Layout = &[
    ("mac", 0, 8), ("magic", 8, 4), ("count", 12, 4), ("serial", 16, 8), ("device", 24, 2),
    ("block", 26, 2), ("blocks", 28, 2), ("reserved", 30, 2),
];

/// One rule.
#[rustfmt::skip]
pub(crate) const RULE_LAYOUT: Layout = &[
    ("hash", 0, 8), ("within hash", 8, 8), ("version", 16, 8), ("length", 24, 2),
    ("within length", 26, 2), ("kind", 28, 1), ("flags", 29, 1), ("reserved", 30, 2),
];

const _: () = assert!(tiles(RULES_LAYOUT, RULES_HEADER));
const _: () = assert!(tiles(RULE_LAYOUT, RULE_BYTES));

const KIND_LABEL: u8 = 1;
const KIND_PREFIX: u8 = 2;
const FLAG_SOFT: u8 = 1;

/// The first bytes of names: how many, and their keyed hash. A name counts as one zero byte longer
/// than it is, so that a prefix can say where names end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    pub(crate) length: u16,
    pub(crate) hash: u64,
}

/// Which objects a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Select {
    /// Those with this label.
    Label(u64),
    /// Those whose names begin so.
    Prefix(Prefix),
}

/// Everything older than `version` that is selected is gone, or stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleLine {
    pub(crate) select: Select,
    /// What the rule becomes a part of when there are too many; of length 0: everything.
    pub(crate) within: Prefix,
    pub(crate) soft: bool,
    pub(crate) version: u64,
}

/// A block of a set of rules, which counts only with all its other blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RulesBlock {
    pub(crate) device: u16,
    /// Of the whole set; the higher one counts.
    pub(crate) serial: u64,
    /// Which block of the set this is, and of how many.
    pub(crate) block: u16,
    pub(crate) blocks: u16,
    pub(crate) lines: Vec<RuleLine>,
}

impl RulesBlock {
    /// Encodes at most [`RULES_PER_BLOCK`] rules.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        assert!(self.lines.len() <= RULES_PER_BLOCK && out.len() == IO_BLOCK);
        out.fill(0);
        let count = u32::try_from(self.lines.len()).expect("at most 127");
        put(out, 8, &MAGIC.to_le_bytes());
        put(out, 12, &count.to_le_bytes());
        put(out, 16, &self.serial.to_le_bytes());
        put(out, 24, &self.device.to_le_bytes());
        put(out, 26, &self.block.to_le_bytes());
        put(out, 28, &self.blocks.to_le_bytes());
        for (out, line) in out[RULES_HEADER..]
            .chunks_exact_mut(RULE_BYTES)
            .zip(&self.lines)
        {
            let (kind, hash, length) = match line.select {
                Select::Label(label) => (KIND_LABEL, label, 0),
                Select::Prefix(prefix) => (KIND_PREFIX, prefix.hash, prefix.length),
            };
            put(out, 0, &hash.to_le_bytes());
            put(out, 8, &line.within.hash.to_le_bytes());
            put(out, 16, &line.version.to_le_bytes());
            put(out, 24, &length.to_le_bytes());
            put(out, 26, &line.within.length.to_le_bytes());
            out[28] = kind;
            out[29] = if line.soft { FLAG_SOFT } else { 0 };
        }
        let mac = secret.mac(&[b"rules", &out[8..]]);
        put(out, 0, &mac.to_le_bytes());
    }

    /// The block in `bytes`, if it is one of ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let bytes = bytes.get(..IO_BLOCK)?;
        let field = Fieldreader(bytes);
        let count = usize::try_from(field.u32(12)).ok()?;
        let genuine = field.u32(8) == MAGIC
            && count <= RULES_PER_BLOCK
            && field.u64(16) < COUNT_MAX
            && secret.mac(&[b"rules", &bytes[8..]]) == field.u64(0);
        if !genuine {
            return None;
        }
        let lines = bytes[RULES_HEADER..].chunks_exact(RULE_BYTES);
        // A line of a kind that is not known voids the block: to pass over it would be to forget a
        // purge.
        let lines: Option<Vec<_>> = lines.take(count).map(decode_line).collect();
        Some(Self {
            device: field.u16(24),
            serial: field.u64(16),
            block: field.u16(26),
            blocks: field.u16(28),
            lines: lines?,
        })
    }
}

fn decode_line(line: &[u8]) -> Option<RuleLine> {
    let field = Fieldreader(line);
    let select = match field.u8(28) {
        KIND_LABEL => Select::Label(field.u64(0)),
        KIND_PREFIX => Select::Prefix(Prefix {
            length: field.u16(24),
            hash: field.u64(0),
        }),
        _ => return None,
    };
    let line = RuleLine {
        select,
        within: Prefix {
            length: field.u16(26),
            hash: field.u64(8),
        },
        soft: field.u8(29) & FLAG_SOFT != 0,
        version: field.u64(16),
    };
    (line.version < COUNT_MAX).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_block_comes_back_and_damage_voids_it() {
        let secret = Secret::from_bytes([2; 32]);
        let line = |n: u64| RuleLine {
            select: match n % 2 {
                0 => Select::Label(n),
                _ => Select::Prefix(Prefix { length: 7, hash: n }),
            },
            within: Prefix { length: 3, hash: 9 },
            soft: n.is_multiple_of(3),
            version: n,
        };
        let block = RulesBlock {
            device: 1,
            serial: 8,
            block: 2,
            blocks: 5,
            lines: (0..RULES_PER_BLOCK as u64).map(line).collect(),
        };
        let mut bytes = vec![0; IO_BLOCK];
        block.encode(&mut bytes, &secret);
        assert_eq!(RulesBlock::decode(&bytes, &secret), Some(block));
        for at in [0, 12, 31, 4000] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert_eq!(RulesBlock::decode(&bad, &secret), None, "byte {at}");
        }
    }
}
