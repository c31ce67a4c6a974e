//! Policies: given a key, *where* to look and what to replace. `cache` goes there.
//!
//! | policy | bits per slot | reads per hit | reads per miss | writes per put |
//! |---|---|---|---|---|
//! | `basic` | 0 | 1 (2 beyond a block) | 1 | 1 |
//! | `set` | 0 | 1 (2 beyond a block) | 1 | 1 and 1 read, at one place |
//! | `set-mem-lru` | 11, 76 a set | 1 (2 beyond a block) | 1, held 0.031 | 1, not held 1 read |
//! | `set-mem` | 11 | 1 (2 beyond a block) | 0.031 | 1, and 1 and a sync a batch |
//! | `log-lru` | 31, waiting below 1 | 1 (2 if displaced) | at most 0.046 | as `log`, and merging |
//! | `log-lru`, grouped | 35, and waiting | 1 a run, 1 each displaced | as without | as without |
//! | `log` | 48 | 1 (2 beyond the first read) | at most 0.031 | much less than 0.01 (batched) |
//! | `log`, one row | 47 | 1 (2 beyond the first read) | at most 0.031 | much less than 0.01 |
//! | `log`, grouped | 56, one row 55 | 1 for a whole run | at most 0.031 | much less than 0.01 |
//! | `log`, readmission | as without | as without | as without | at most a third more records |
//!
//! Each cell has a test that counts device calls (`tests/it/cost.rs`, `tests/it/groups.rs`,
//! `tests/it/readmission.rs`, and for the bits `log.rs`, `log_lru.rs`, `ranks.rs` and
//! `held_sets.rs`).
//! Called by `stripe` and `writer` under the shard's lock, so nothing here may wait, read or
//! allocate much.
//!
//! Invariants: a policy does no I/O and reads no clock. Of two entries that could be the same name,
//! the one at the later log position is the newer one: look-ups go from new to old. All that could
//! be the same name lies in one row, and rows lose their oldest entry first (`log-lru`: of equal
//! tags); so an older version is never found before, and never outlives, a newer one. What
//! readmission copies is the newest of its name. In a set that memory knows, a put takes the slot
//! of its older version.

mod basic;
mod held_sets;
mod log;
mod log_lru;
mod packed;
mod ranks;
mod set;
mod set_mem;
mod set_mem_lru;
mod spill;

pub(crate) use basic::Basic;
pub(crate) use held_sets::held_sets_bits;
pub(crate) use log::{Log, entry_bits};
pub(crate) use log_lru::{LogLru, place_bits, row_bits, saved_row_bytes};
use packed::Packed;
pub(crate) use ranks::SLOT_BITS;
pub(crate) use set::Set;
pub(crate) use set_mem::SetMem;
pub(crate) use set_mem_lru::SetMemLru;
pub(crate) use spill::spill_bytes;

/// Entries in a row, slots in a set.
pub(crate) const WAYS: usize = 8;

use crate::address::{LogPos, SetId, Slot};
use crate::key::KeyHash;
use crate::object::Version;

/// The state a shard's sets were in when one of them was looked for: what is read of it meanwhile
/// may be taken over only if none has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u64);

impl Epoch {
    /// Of policies that learn a set once and keep it, or learn none.
    pub(crate) const ANY: Self = Self(0);
}

/// Most places a look-up can name: two rows of eight.
pub(crate) const MAX_CANDIDATES: usize = 2 * WAYS;

/// Log positions to look at, newest first, and how far the run of each goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    len: usize,
    at: [LogPos; MAX_CANDIDATES],
    runs: [u8; MAX_CANDIDATES],
}

impl Candidates {
    pub(crate) const NONE: Self = Self {
        len: 0,
        at: [LogPos(0); MAX_CANDIDATES],
        runs: [0; MAX_CANDIDATES],
    };

    /// Adds one in its place of the order.
    fn add(&mut self, at: LogPos, run: u8) {
        let n = self.as_slice().partition_point(|other| *other > at);
        self.at.copy_within(n..self.len, n + 1);
        self.runs.copy_within(n..self.len, n + 1);
        (self.at[n], self.runs[n]) = (at, run);
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[LogPos] {
        &self.at[..self.len]
    }

    /// How far the run of what lies at `at` goes on from there, 4 KiB; 0 when that is not known.
    pub(crate) fn run(&self, at: LogPos) -> u8 {
        let n = self.as_slice().iter().position(|other| *other == at);
        n.map_or(0, |n| self.runs[n])
    }
}

/// What a policy knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// It is not stored.
    Nowhere,
    /// At one of these positions of the log, if at all.
    Log(Candidates),
    /// At positions of which some lie in this row of the shard's saved index: who reads it asks
    /// `resolve`.
    Displaced(u32),
    /// In this set of the Disk Table, if at all. Who reads it hands the epoch to `learn_set`.
    Set(SetId, Epoch),
    /// In this slot of it, if at all.
    Slot(SetId, Slot),
}

impl Located {
    /// The first of the log's positions to look at.
    pub(crate) fn newest_in_log(&self) -> Option<LogPos> {
        match self {
            Self::Log(candidates) => candidates.as_slice().first().copied(),
            Self::Nowhere | Self::Displaced(_) | Self::Set(..) | Self::Slot(..) => None,
        }
    }

    /// See [`Candidates::run`].
    pub(crate) fn run(&self, at: LogPos) -> u8 {
        match self {
            Self::Log(candidates) => candidates.run(at),
            Self::Nowhere | Self::Displaced(_) | Self::Set(..) | Self::Slot(..) => 0,
        }
    }
}

/// What a slot holds, as read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
}

/// One shard's part of an index. Methods of the other family keep their defaults.
pub(crate) trait Policy: Send + Sync {
    /// Where `key` may lie, given how far the log has come. Many ask at the same time.
    fn locate(&self, key: KeyHash, head: LogPos) -> Located;

    /// Whether [`Policy::looked_for`] wants to be told.
    fn notes_look_ups(&self) -> bool {
        false
    }

    /// Somebody looks for `key`: from now on its set counts as used last.
    fn looked_for(&mut self, _key: KeyHash) {}

    // -- the table family -----------------------------------------------------------------------

    /// Whether [`Policy::claim`] must be told what the slots of `key`'s set hold.
    fn wants_slots(&self, _key: KeyHash) -> bool {
        false
    }

    /// The slot of its set that `key` goes to. It counts as taken from now on.
    fn claim(&mut self, _key: KeyHash, _slots: &[Option<Occupant>]) -> Slot {
        Slot(0)
    }

    /// The slot that `key` claimed is written.
    fn written(&mut self, _key: KeyHash) {}

    /// Slots of a set that must be cleared before memory can know what it holds.
    fn surplus(&self, _slots: &[Option<Occupant>]) -> Vec<Slot> {
        Vec::new()
    }

    /// `slot` of `key`'s set was cleared.
    fn vacated(&mut self, _key: KeyHash, _slot: Slot) {}

    /// `key` was served from the slot that it is known in.
    fn used(&mut self, _key: KeyHash) {}

    /// In recovery: `key` was put into `slot`.
    fn claimed(&mut self, _key: KeyHash, _slot: Slot) {}

    /// In recovery: what lies in `key`'s set is not known.
    fn unlearn(&mut self, _key: KeyHash) {}

    /// In recovery: the table is known to be empty.
    fn nothing_stored(&mut self) {}

    /// The first set at or after row `from` that memory does not know.
    fn unknown_set(&self, _from: u32) -> Option<(u32, SetId)> {
        None
    }

    /// Takes over what the slots of `set` were seen to hold since `epoch`, if memory can tell them
    /// apart.
    fn learn_set(&mut self, _set: SetId, _epoch: Epoch, _slots: &[Option<Occupant>]) {}

    // -- the log family -------------------------------------------------------------------------

    /// `key` was written at `at`; `replaces` is where an older version of it is known to lie.
    fn record(&mut self, _key: KeyHash, _at: LogPos, _replaces: Option<LogPos>, _head: LogPos) {}

    /// The run of what lies at `at` goes on for `run` times 4 KiB from there. No effect when the
    /// entry is no longer there, or has no room for it.
    fn set_run(&mut self, _key: KeyHash, _at: LogPos, _run: u8, _head: LogPos) {}

    /// Whether what lies at `at` was used late enough to be worth keeping when the log comes round.
    fn is_hot(&self, _key: KeyHash, _at: LogPos, _head: LogPos) -> bool {
        false
    }

    /// `key` was served from `at`, and neither put nor removed since it was looked for. No effect
    /// when the entry is no longer there.
    fn touch(&mut self, _key: KeyHash, _at: LogPos, _head: LogPos) {}

    /// Where `key` may lie, given its row as the last checkpoint that counts has it.
    fn resolve(&self, _key: KeyHash, _saved: &[u8], _head: LogPos) -> Candidates {
        Candidates::NONE
    }

    /// What lies at `at` is not to be found any more. No effect when the entry is no longer there.
    fn forget(&mut self, _key: KeyHash, _at: LogPos, _head: LogPos) {}

    /// Nothing that could be `key` is to be found any more, wherever it lies: in recovery that may
    /// be beyond the head, which is still on its way there. Whether there was any this side of it.
    fn forget_all(&mut self, _key: KeyHash, _head: LogPos) -> bool {
        false
    }

    // -- both -----------------------------------------------------------------------------------

    /// Rows of the index, for `sweep`, `save` and `restore`.
    fn rows(&self) -> u32 {
        0
    }

    /// Drops entries that the head has passed, so that the 4 bits of generation never meet
    /// themselves.
    fn sweep(&mut self, _rows: std::ops::Range<u32>, _head: LogPos) {}

    /// Appends the bytes of `rows` to `out`. `old`: as the last checkpoint that counts has them,
    /// empty if none does.
    fn save(&mut self, _rows: std::ops::Range<u32>, _old: &[u8], _out: &mut Vec<u8>) {}

    /// From now on memory has all positions, those too that lie on disk otherwise: rows are
    /// restored, filled and saved without looking there. Takes `IndexShape::widened_bytes` more.
    fn widen(&mut self) {}

    /// What only `widen` had in memory has been saved.
    fn narrow(&mut self) {}

    /// Rows are going to be saved for a checkpoint, from the first on.
    fn save_begins(&mut self) {}

    /// The checkpoint that all rows were saved for counts from now on.
    fn save_counts(&mut self) {}

    /// How much of the room for what only a checkpoint can take in is used, in 1/100.
    fn unsaved(&self) -> usize {
        0
    }

    /// Takes over the rows from `first` on, as `save` gave them.
    fn restore(&mut self, _first: u32, _bytes: &[u8]) {}

    /// Entries in use.
    fn entries(&self) -> u64 {
        0
    }

    /// Entries in use of which the head has not passed what they stand for.
    fn live(&self, _head: LogPos) -> u64 {
        self.entries()
    }

    /// Entries put out for want of room in their rows, before the log came round to them.
    fn early_evictions(&self) -> u64 {
        0
    }

    /// Forgets everything.
    fn clear(&mut self) {}
}
