//! Policies: given a key, *where* to look and what to replace. `cache` goes there.
//!
//! | policy | bits per slot | reads per hit | reads per miss | writes per put |
//! |---|---|---|---|---|
//! | `set` | 0 | 1 (2 beyond a block) | 1 | 1 and 1 read, at one place |
//! | `log` | 48 | 1 (2 beyond the first read) | at most 0.031 | much less than 0.01 (batched) |
//!
//! Each cell has a test that counts device calls (`tests/it/cost.rs`, and `log.rs` for the bits).
//! Called by `shard` under the shard's lock, so nothing here may wait, read or allocate much.
//!
//! Invariants: a policy does no I/O and reads no clock. Of two entries that could be the same name,
//! the one at the later log position is the newer one: look-ups go from new to old. All that could
//! be the same name lies in one row, and rows lose their oldest entry first; so an older version is
//! never found before, and never outlives, a newer one.

mod log;
mod set;

pub(crate) use log::{ENTRY_BYTES, Log, WAYS};
pub(crate) use set::Set;

use crate::key::KeyHash;
use crate::object::Version;

/// Units since the log was made. Never used twice, so a position names one record for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogPos(pub(crate) u64);

/// A set of the Disk Table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetId(pub(crate) u64);

/// A slot within its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) usize);

/// Most places a look-up can name: two rows of eight.
pub(crate) const MAX_CANDIDATES: usize = 2 * WAYS;

/// Log positions to look at, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    len: usize,
    at: [LogPos; MAX_CANDIDATES],
}

impl Candidates {
    pub(crate) const NONE: Self = Self {
        len: 0,
        at: [LogPos(0); MAX_CANDIDATES],
    };

    fn add(&mut self, at: LogPos) {
        self.at[self.len] = at;
        self.len += 1;
    }

    fn sort(&mut self) {
        self.at[..self.len].sort_unstable_by(|a, b| b.cmp(a));
    }

    pub(crate) fn as_slice(&self) -> &[LogPos] {
        &self.at[..self.len]
    }
}

/// What a policy knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// It is not stored.
    Nowhere,
    /// At one of these positions of the log, if at all.
    Log(Candidates),
    /// In this set of the Disk Table, if at all.
    Set(SetId),
}

/// What a slot holds, as read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupant {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
}

/// One shard's part of an index. Methods of the other family keep their defaults.
pub(crate) trait Policy: Send {
    /// Where `key` may lie, given how far the log has come.
    fn locate(&self, key: KeyHash, head: LogPos) -> Located;

    /// Which slot of its set `key` goes to, given what the slots hold (table family).
    fn victim(&self, _key: KeyHash, _slots: &[Option<Occupant>]) -> Slot {
        Slot(0)
    }

    /// `key` was written at `at`; `replaces` is where an older version of it is known to lie.
    fn record(&mut self, _key: KeyHash, _at: LogPos, _replaces: Option<LogPos>, _head: LogPos) {}

    /// `key` was served from `at`. No effect when the entry is no longer there.
    fn touch(&mut self, _key: KeyHash, _at: LogPos, _head: LogPos) {}

    /// What lies at `at` is not to be found any more. No effect when the entry is no longer there.
    fn forget(&mut self, _key: KeyHash, _at: LogPos, _head: LogPos) {}

    /// Nothing that could be `key` is to be found any more, wherever it lies: in recovery that may
    /// be beyond the head, which is still on its way there. Whether there was any this side of it.
    fn forget_all(&mut self, _key: KeyHash, _head: LogPos) -> bool {
        false
    }

    /// Rows of the index, for `sweep`, `save` and `restore`.
    fn rows(&self) -> u32 {
        0
    }

    /// Drops entries that the head has passed, so that the 4 bits of generation never meet
    /// themselves.
    fn sweep(&mut self, _rows: std::ops::Range<u32>, _head: LogPos) {}

    /// Appends the bytes of `rows` to `out`.
    fn save(&self, _rows: std::ops::Range<u32>, _out: &mut Vec<u8>) {}

    /// Takes over the rows from `first` on, as `save` gave them.
    fn restore(&mut self, _first: u32, _bytes: &[u8]) {}

    /// Entries in use.
    fn entries(&self) -> u64 {
        0
    }

    /// Entries put out for want of room in their rows, before the log came round to them.
    fn early_evictions(&self) -> u64 {
        0
    }

    /// Forgets everything.
    fn clear(&mut self) {}
}
