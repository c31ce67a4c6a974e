//! A store's index, in memory and in checkpoints: policy and size.

use super::Geometry;
use crate::address::Windows;
use crate::config::{Config, PolicyKind, Rows};
use crate::format::{Family, PART_BODY, ROW_CHECK};
use crate::key::SHARDS;
use crate::policy::{
    LogForm, SLOT_BITS, WAYS, held_sets_bits, place_bits, row_bits, saved_row_bytes,
    unsaved_positions_bytes,
};
/// A policy with all parameters that change the index format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexPolicy {
    pub(crate) kind: PolicyKind,
    pub(crate) rows: Rows,
    /// In 1/100.
    pub(crate) held_share: u8,
    pub(crate) grouped: bool,
    /// True if `log` entries have ranks: with readmission.
    pub(crate) ranked: bool,
}

/// Default share of positions that `log-lru` holds in memory, in 1/100: half, as published (section
/// 3.5).
pub(crate) const POSITIONS_HELD: u8 = 50;
/// Default share of sets that `set-mem-lru` holds in memory, in 1/100: the larger of the paper's
/// two (section 5.2).
pub(crate) const SETS_HELD: u8 = 40;

/// Added to a policy's code if entries hold run lengths.
const GROUPED_CODE: u8 = 128;
/// Added to the `log` code if entries hold ranks.
const RANKED_CODE: u8 = 64;

impl IndexPolicy {
    pub(crate) fn from_config(config: &Config) -> Self {
        Self {
            kind: config.policy,
            rows: config.rows,
            held_share: config
                .held_share
                .unwrap_or(Self::default_share(config.policy)),
            grouped: config.grouped && config.policy.family() == Family::Log,
            ranked: config.readmission && config.policy == PolicyKind::Log,
        }
    }

    fn default_share(kind: PolicyKind) -> u8 {
        match kind {
            PolicyKind::LogLru => POSITIONS_HELD,
            _ => SETS_HELD,
        }
    }

    /// Positions held in memory for each `log-lru` row.
    pub(crate) fn positions_held(self) -> usize {
        ((WAYS * usize::from(self.held_share) + 50) / 100).clamp(1, WAYS - 1)
    }

    /// The `log` entry format for a log with these `windows`.
    pub(crate) fn log_form(self, windows: Windows) -> LogForm {
        LogForm {
            rows: self.rows,
            window_bits: windows.bits(),
            grouped: self.grouped,
            ranked: self.ranked,
        }
    }

    /// Policy code on disk. Each saved-row format has a separate code: a checkpoint with another
    /// code is not used, and the index is rebuilt from the lists.
    pub(crate) fn code(self) -> u8 {
        let grouped = if self.grouped { GROUPED_CODE } else { 0 };
        let ranked = if self.ranked { RANKED_CODE } else { 0 };
        self.plain_code() + grouped + ranked
    }

    fn plain_code(self) -> u8 {
        match (self.kind, self.rows) {
            (PolicyKind::Set, _) => 2,
            (PolicyKind::Basic, _) => 4,
            (PolicyKind::SetMem, _) => 5,
            (PolicyKind::SetMemLru, _) => 6,
            (PolicyKind::LogLru, _) => 7,
            (PolicyKind::Log, Rows::Two) if self.grouped => 12,
            (PolicyKind::Log, Rows::One) if self.grouped => 13,
            (PolicyKind::Log, Rows::Two) => 10,
            (PolicyKind::Log, Rows::One) => 11,
        }
    }

    /// Decodes a policy code. Older builds wrote other codes for `log`, with another entry format:
    /// for these codes the policy is returned, but no checkpoint has these codes.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let flags = code & (GROUPED_CODE | RANKED_CODE);
        let is_grouped = flags & GROUPED_CODE != 0;
        let code = match code - flags {
            1 | 8 | 10 if is_grouped => flags + 12,
            3 | 9 | 11 if is_grouped => flags + 13,
            1 | 8 => flags + 10,
            3 | 9 => flags + 11,
            _ => code,
        };
        let policy = |kind, rows, grouped, ranked| Self {
            kind,
            rows,
            held_share: Self::default_share(kind),
            grouped,
            ranked,
        };
        let flags = [(false, false), (false, true), (true, false), (true, true)];
        let forms = [Rows::Two, Rows::One]
            .into_iter()
            .flat_map(|rows| flags.map(|(grouped, ranked)| (rows, grouped, ranked)));
        PolicyKind::ALL
            .into_iter()
            .flat_map(|kind| {
                forms
                    .clone()
                    .map(move |(rows, grouped, ranked)| policy(kind, rows, grouped, ranked))
            })
            .find(|it| it.code() == code)
    }
}

/// A store's index policy, and the version since which only this policy has written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexId {
    pub(crate) policy: IndexPolicy,
    /// The first such version; 0: since the store was created.
    pub(crate) since: u64,
}

/// Index size, in memory and in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexShape {
    /// Rows in each shard.
    pub(crate) shard_rows: u32,
    /// Row bytes in a checkpoint.
    pub(crate) row_bytes: usize,
    /// Check bytes behind each row there, if rows are read one by one.
    check_bytes: usize,
    memory_bytes: u64,
    widened_bytes: u64,
    /// Position unit in a log index.
    pub(crate) windows: Windows,
}

impl IndexShape {
    /// The largest shape for a policy in `family`: the policy may change later, but offsets on disk
    /// may not.
    pub(super) fn largest(family: Family, ways: u32, shard_rows: u64) -> Self {
        let packed = |bits: u32| WAYS * bits as usize / 8;
        let row_bytes = match family {
            Family::Log => {
                packed(LogForm::LONGEST.entry_bits()).max(saved_row_bytes(true) + ROW_CHECK)
            }
            Family::Table if ways == 1 => 0,
            Family::Table => packed(SLOT_BITS),
        };
        Self {
            shard_rows: u32::try_from(shard_rows).unwrap_or(u32::MAX),
            row_bytes,
            check_bytes: 0,
            memory_bytes: 0,
            widened_bytes: 0,
            windows: Windows { units: 1, count: 0 },
        }
    }

    /// Total rows in all shards.
    pub(crate) fn rows(&self) -> u64 {
        u64::from(self.shard_rows) * SHARDS as u64
    }

    /// Memory in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Additional memory for each shard while it also has the positions that are on disk, bytes.
    pub(crate) fn widened_bytes(&self) -> u64 {
        self.widened_bytes
    }

    /// A shard row's number among all rows.
    pub(crate) fn row_number(&self, shard: usize, row: u32) -> u64 {
        shard as u64 * u64::from(self.shard_rows) + u64::from(row)
    }

    /// Row bytes in a checkpoint, including the check.
    pub(crate) fn saved_row_bytes(&self) -> usize {
        self.row_bytes + self.check_bytes
    }

    /// Returns true if rows are read from the last checkpoint one by one.
    pub(crate) fn stays_on_disk(&self) -> bool {
        self.check_bytes > 0
    }

    /// Rows that fit into a checkpoint part.
    pub(crate) fn rows_per_part(&self) -> u64 {
        (PART_BODY / self.saved_row_bytes().max(1)) as u64
    }
}

impl Geometry {
    /// Index size for `policy` in this store.
    pub(crate) fn index(&self, policy: IndexPolicy) -> IndexShape {
        let of_rows = |bits: u32| {
            let rows = if bits == 0 { 0 } else { self.shard_rows() };
            let row_bytes = WAYS * bits as usize / 8;
            IndexShape {
                shard_rows: u32::try_from(rows).unwrap_or(u32::MAX),
                row_bytes,
                check_bytes: 0,
                memory_bytes: rows * (SHARDS * row_bytes) as u64,
                widened_bytes: 0,
                windows: Windows {
                    units: 1,
                    count: self.capacity(),
                },
            }
        };
        match policy.kind {
            PolicyKind::Basic | PolicyKind::Set => of_rows(0),
            PolicyKind::SetMemLru => IndexShape {
                memory_bytes: self.held_sets_bytes(policy),
                ..of_rows(0)
            },
            PolicyKind::SetMem => of_rows(SLOT_BITS),
            PolicyKind::Log => IndexShape {
                windows: self.windows(),
                ..of_rows(policy.log_form(self.windows()).entry_bits())
            },
            PolicyKind::LogLru => IndexShape {
                row_bytes: saved_row_bytes(policy.grouped),
                check_bytes: ROW_CHECK,
                memory_bytes: self.log_lru_bytes(policy),
                widened_bytes: self.shard_rows()
                    * (WAYS - policy.positions_held()) as u64
                    * u64::from(place_bits(policy.grouped) / 8),
                ..of_rows(row_bits(policy.grouped, policy.positions_held()))
            },
        }
    }

    /// For `log-lru`, displaced positions that may wait for a checkpoint in each shard: one for 128
    /// slots, 2^20 in total; relatively more in a small store, because batches are not smaller
    /// there.
    pub(crate) fn unsaved_max(&self, policy: IndexPolicy) -> usize {
        let rows = usize::try_from(self.shard_rows()).unwrap_or(usize::MAX);
        let wanted = (rows * WAYS / 128).clamp(512, (1 << 20) / SHARDS);
        wanted.min(rows * (WAYS - policy.positions_held()))
    }

    fn log_lru_bytes(&self, policy: IndexPolicy) -> u64 {
        let row_bytes = u64::from(row_bits(policy.grouped, policy.positions_held()) / 8);
        let shard =
            self.shard_rows() * row_bytes + unsaved_positions_bytes(self.unsaved_max(policy));
        shard * SHARDS as u64
    }

    /// For `set-mem-lru`, most sets that a shard holds.
    pub(crate) fn held_sets(&self, policy: IndexPolicy) -> usize {
        let held = self.shard_rows() * u64::from(policy.held_share.clamp(1, 100)) / 100;
        usize::try_from(held.max(1)).unwrap_or(usize::MAX)
    }

    /// Memory for held sets in all shards, bytes.
    fn held_sets_bytes(&self, policy: IndexPolicy) -> u64 {
        let rows = self.held_sets(policy);
        let known = (rows * WAYS) as u64 * u64::from(SLOT_BITS);
        let bits = known + held_sets_bits(self.shard_rows(), rows);
        bits.div_ceil(8) * SHARDS as u64
    }
}

/// Checkpoint parts for the log state and all rows.
pub(crate) fn checkpoint_parts(segments: u64, index: &IndexShape) -> u64 {
    let rows = if index.row_bytes == 0 {
        0
    } else {
        index.rows()
    };
    meta_parts(segments) + rows.div_ceil(index.rows_per_part())
}

/// Checkpoint parts for the log state: a few words, and a stamp per segment.
pub(crate) fn meta_parts(segments: u64) -> u64 {
    (segments * 8 + 128).div_ceil(PART_BODY as u64)
}
