//! Encodes and decodes every record on disk, and does nothing else. `docs/FORMAT.md` describes the
//! same format in prose.
//!
//! Called by the modules in `disk` and by `store/recover`; calls `key` for MACs.
//!
//! Invariant: nothing here trusts a byte before it is checked; decoding returns for any input.
//! Each record is defined once, by `layout::record!`; a test compares the definitions with the
//! document.

mod bans;
mod batch;
mod checkpoint;
mod journal;
mod layout;
mod record;
mod run_length;
mod superblock;

pub(crate) use bans::{BANS_PER_BLOCK, BanLine, BansBlock, Prefix, Select};
pub(crate) use batch::{
    BatchHeader, DurablePoint, FOOTER_TAIL, Footer, HEADER as BATCH_HEADER, KIND_SLOT, KIND_TAIL,
    LIST_ENTRY, Link, Listed,
};
pub(crate) use checkpoint::{
    CheckpointPart, LogState, PART_BODY, PART_BYTES, PART_HEADER, ROW_CHECK,
};
pub(crate) use journal::{JOURNAL_BLOCK, JournalBlock, REMOVES_PER_BLOCK, Removed};
pub(crate) use record::{
    Fields, Kind, MAX_LABELS, PRELUDE_REST_MAX, Prelude, RecordAddress, TAIL_HEADER, Tail,
    TailAddress, claimed_key, encode_record, kind_number, record_bytes,
};
pub(crate) use run_length::{RUN_BYTES_MAX, run_bytes, run_code};
pub(crate) use superblock::{Family, SUPERBLOCK_BYTES, Superblock, SuperblockError};

/// Smallest position step; every record is padded to a multiple.
pub(crate) const MIN_UNIT: usize = 512;
/// Alignment for batches, superblocks and journal blocks.
pub(crate) const IO_BLOCK: usize = 4096;
/// The format version that this build writes.
pub(crate) const VERSION: u32 = 3;
/// The oldest format version that this build reads: in version 2, page checksums had no key (see
/// `record`). The first open raises the version to the current version; old records keep their
/// form.
pub(crate) const OLDEST_VERSION: u32 = 2;

/// Bound for numbers that count up by one (versions, serials, stamps, ordinals). They never get
/// near it: a larger number was forged, to make a sum overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 62;
/// Bound for log laps, which are factors in positions.
pub(crate) const LAP_MAX: u64 = 1 << 31;
/// Bound for batch ordinals: a 64 MiB segment has room for fewer batches.
pub(crate) const ORDINAL_MAX: u32 = 1 << 16;

/// All record layouts, for the test against the document.
#[cfg(test)]
const RECORDS: [layout::RecordLayout; 14] = [
    superblock::SuperblockFields::LAYOUT,
    superblock::MemberFields::LAYOUT,
    superblock::MembershipFields::LAYOUT,
    record::RecordHeader::LAYOUT,
    batch::BatchFields::LAYOUT,
    Listed::LAYOUT,
    batch::FooterFields::LAYOUT,
    record::TailHeader::LAYOUT,
    journal::JournalHeader::LAYOUT,
    Removed::LAYOUT,
    bans::BansHeader::LAYOUT,
    bans::BanFields::LAYOUT,
    checkpoint::PartHeader::LAYOUT,
    LogState::LAYOUT,
];

/// `n` rounded up to a multiple of `step`, a power of two.
pub(crate) const fn round_up(n: usize, step: usize) -> usize {
    (n + step - 1) & !(step - 1)
}

/// As [`round_up`], for device offsets.
pub(crate) const fn round_up_u64(n: u64, step: u64) -> u64 {
    (n + step - 1) & !(step - 1)
}
