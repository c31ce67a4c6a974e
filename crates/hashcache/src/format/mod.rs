//! Every record on disk: encode, decode, nothing else. `docs/FORMAT.md` is this module in prose.
//!
//! Called by what lies in `disk` and by `store/recover`; calls `key` for MACs.
//!
//! Invariant: nothing here trusts a byte it has not checked; every decode of any input returns.
//! Each record is defined once, by `layout::record!`; a test compares the definitions with the
//! document.

mod batch;
mod checkpoint;
mod journal;
pub(crate) mod layout;
mod record;
mod rules;
mod superblock;

pub(crate) use batch::{
    BatchHeader, FOOTER_TAIL, Footer, HEADER as BATCH_HEADER, KIND_SLOT, KIND_TAIL, LIST_ENTRY,
    Listed,
};
pub(crate) use checkpoint::{PART_BODY, PART_BYTES, PART_HEADER, Part, ROW_CHECK};
pub(crate) use journal::{JOURNAL_BLOCK, JournalBlock, REMOVES_PER_BLOCK, Removed};
pub(crate) use record::{
    Fields, Kind, MAX_LABELS, PRELUDE_REST_MAX, Prelude, RecordAddress, TAIL_HEADER, Tail,
    TailAddress, encode_record, kind_number, record_bytes,
};
pub(crate) use rules::{Prefix, RULES_PER_BLOCK, RuleLine, RulesBlock, Select};
pub(crate) use superblock::{Family, SUPERBLOCK_BYTES, Superblock, SuperblockError};

/// Smallest step of a position, and what every record is padded to.
pub(crate) const MIN_UNIT: usize = 512;
/// What batches, superblocks and journal blocks are aligned to.
pub(crate) const IO_BLOCK: usize = 4096;
/// The format this build reads and writes.
pub(crate) const VERSION: u32 = 2;

/// What counts up by one (versions, serials, stamps, ordinals) never comes near this: a larger one
/// was made up, to have a sum overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 62;
/// Laps of a log, by which positions are multiplied.
pub(crate) const LAP_MAX: u64 = 1 << 31;
/// A segment of 64 MiB has room for fewer batches than this.
pub(crate) const ORDINAL_MAX: u32 = 1 << 16;

/// Every record.
#[cfg(test)]
const RECORDS: &[layout::Layout] = &[
    old("SUPERBLOCK", superblock::SUPERBLOCK_LAYOUT, 4096),
    old("MEMBER", superblock::MEMBER_LAYOUT, 16),
    old("MEMBERSHIP", superblock::MEMBERSHIP_LAYOUT, 16),
    old("RECORD", record::RECORD_LAYOUT, 128),
    old("TAIL", record::TAIL_LAYOUT, 64),
    old("BATCH", batch::BATCH_LAYOUT, 64),
    old("LISTED", batch::LISTED_LAYOUT, 56),
    old("FOOTER", batch::FOOTER_LAYOUT, 64),
    checkpoint::PartHeader::LAYOUT,
    rules::BlockHeader::LAYOUT,
    rules::LineFields::LAYOUT,
    journal::BlockHeader::LAYOUT,
    Removed::LAYOUT,
];

#[cfg(test)]
const fn old(record: &'static str, fields: Layout, bytes: usize) -> layout::Layout {
    layout::Layout {
        record,
        bytes,
        fields,
    }
}

/// A field of a record on disk: name, offset, size in bytes.
pub(crate) type Layout = &'static [(&'static str, usize, usize)];

/// Whether the fields follow each other without gap or overlap and end at `size`.
pub(crate) const fn tiles(layout: Layout, size: usize) -> bool {
    let (mut n, mut at) = (0, 0);
    while n < layout.len() {
        if layout[n].1 != at {
            return false;
        }
        at += layout[n].2;
        n += 1;
    }
    at == size
}

/// Reads little-endian fields out of bytes whose length was checked by the caller's layout.
pub(crate) struct Fieldreader<'a>(pub(crate) &'a [u8]);

impl Fieldreader<'_> {
    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(crate) fn u128(&self, at: usize) -> u128 {
        u128::from_le_bytes(self.array(at))
    }

    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }
}

/// Writes bytes at an offset of a buffer.
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    buffer[at..at + bytes.len()].copy_from_slice(bytes);
}

/// `n` rounded up to a multiple of `step`, a power of two.
pub(crate) const fn round_up(n: usize, step: usize) -> usize {
    (n + step - 1) & !(step - 1)
}

/// `round_up` for device offsets.
pub(crate) const fn round_up_u64(n: u64, step: u64) -> u64 {
    (n + step - 1) & !(step - 1)
}
